"""A zip file as a store."""
