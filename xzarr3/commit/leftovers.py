"""What writes have left beside the values: when it was stored, and when it is nobody's any more."""

from __future__ import annotations

import json
import math
import time

from xzarr3._types import Buffer

ABANDONED = 24 * 3600.0
"""Seconds without a sign of life after which what a write has left may be removed."""
_END_OF_TIME = 2.0**53  # Seconds


def now() -> bytes:
    """A value that tells when it was stored."""
    return json.dumps({"time": time.time()}).encode()


def age(value: Buffer) -> float:
    """Seconds since a value of :func:`now` was stored; infinite if it is none, or of a day to come."""
    try:
        said = json.loads(bytes(value))
    except (ValueError, RecursionError):
        return math.inf
    stored = said.get("time") if isinstance(said, dict) else None
    if not isinstance(stored, (int, float)) or not abs(stored) < _END_OF_TIME:
        return math.inf
    found = time.time() - stored
    return found if found >= -ABANDONED else math.inf  # Clocks differ, but not by that.
