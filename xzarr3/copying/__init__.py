"""Copies arrays and groups: within a format or to another one, in the same chunks or in others."""
