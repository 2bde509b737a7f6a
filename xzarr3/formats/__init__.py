"""The versions of the format: metadata documents <-> what they say. Pure functions, no stores."""

from __future__ import annotations

from xzarr3.formats import v3

__all__ = ["v3"]
