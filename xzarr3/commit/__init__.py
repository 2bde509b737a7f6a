"""Who writes what, and how what was written becomes part of a store."""
