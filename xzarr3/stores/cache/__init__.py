"""A cache of values read from a slow store."""
