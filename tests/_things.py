"""Names of tests that are the same in each process that shares them, which addresses of objects are not."""

from __future__ import annotations

import re


class Thing:
    """An object of no known kind, which nothing accepts."""

    def __repr__(self) -> str:
        return "Thing()"


def without_addresses(value: object) -> str:
    """The text of a value without the places of objects in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
