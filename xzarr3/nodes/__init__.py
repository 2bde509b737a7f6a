"""Nodes in a store: finding, making, changing and erasing them."""
