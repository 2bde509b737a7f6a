"""An fsspec file system as a store."""
