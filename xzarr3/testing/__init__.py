"""Tests for what users add to xzarr3: :func:`check_store` for a store of one's own.

Nothing here needs pytest; a test calls the function and fails with what it raises.
"""

from __future__ import annotations

from xzarr3.testing.stores import CHECKS, StoreCheckError, check_store

__all__ = ["CHECKS", "StoreCheckError", "check_store"]
