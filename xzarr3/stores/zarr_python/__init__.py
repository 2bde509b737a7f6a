"""Stores with the asynchronous interface of zarr-python: its own, Icechunk's, VirtualiZarr's and others.

This package imports none of these libraries. It takes what it needs from the modules that the user's objects
have loaded.
"""
