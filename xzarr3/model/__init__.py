"""Metadata of arrays and groups, independent of the format of their documents. Makes no requests."""
