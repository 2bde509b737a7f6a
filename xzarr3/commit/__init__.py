"""Reserving places for writers, staging new values, and putting them in place."""
