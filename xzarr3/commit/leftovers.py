"""Timestamps of leftovers: when a write stored them, and after how long they may be removed."""

from __future__ import annotations

import json
import math
import re
import time
from typing import Any

from xzarr3._types import Buffer
from xzarr3.stores.local.names import STAGED

ABANDONED = 24 * 3600.0
"""Seconds without a change after which leftovers of a write may be removed."""
_END_OF_TIME = 2.0**53  # Seconds
_TOP = re.compile(f"{re.escape(STAGED)}[0-9a-f]{{32}}/", re.ASCII)


def is_top(prefix: str) -> bool:
    """Whether a prefix is that of all that a write has staged."""
    return _TOP.fullmatch(prefix) is not None


def now(**said: object) -> bytes:
    """A JSON value with the current time and further fields."""
    return json.dumps({"time": time.time(), **said}).encode()


def said_in(value: Buffer | None) -> dict[str, Any]:
    """The fields of a value made by :func:`now`; empty if it is no such value."""
    try:
        said = {} if value is None else json.loads(bytes(value))
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def age(stored: object) -> float:
    """Seconds since a stored time; infinite if it is no number, or more than a day in the future."""
    if not isinstance(stored, (int, float)) or not abs(stored) < _END_OF_TIME:
        return math.inf
    found = time.time() - stored
    return found if found >= -ABANDONED else math.inf  # clocks differ by less than a day
