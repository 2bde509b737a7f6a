"""A file system of fsspec as a store."""
