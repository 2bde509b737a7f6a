"""Nodes in a store: finding, creating, changing and erasing them."""
