"""Reserving places for writers, staging what they write, and putting it in place."""
