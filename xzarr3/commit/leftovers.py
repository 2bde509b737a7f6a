"""What writes have left beside the values: when it was stored, and when it is nobody's any more."""

from __future__ import annotations

import json
import math
import time
from typing import Any

from xzarr3._types import Buffer

ABANDONED = 24 * 3600.0
"""Seconds without a sign of life after which what a write has left may be removed."""
_END_OF_TIME = 2.0**53  # Seconds


def now(**said: object) -> bytes:
    """A value that tells when it was stored, and more."""
    return json.dumps({"time": time.time(), **said}).encode()


def said_in(value: Buffer | None) -> dict[str, Any]:
    """What a value of :func:`now` tells; nothing if it is none."""
    try:
        said = {} if value is None else json.loads(bytes(value))
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def age(stored: object) -> float:
    """Seconds since a time that some host has noted; infinite if it is none, or of a day to come."""
    if not isinstance(stored, (int, float)) or not abs(stored) < _END_OF_TIME:
        return math.inf
    found = time.time() - stored
    return found if found >= -ABANDONED else math.inf  # Clocks differ, but not by that.
