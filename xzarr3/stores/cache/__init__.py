"""A store that keeps what was read from a slow one."""
