"""Names in a directory that are no keys, because xzarr3 keeps something else there."""

from __future__ import annotations

from typing import Final

from xzarr3.stores.keys import OWN

LOCK: Final = ".__lock"
"""Ends the name of a lock file, into which the next value of a key is written; tensorstore's name for it."""
STAGED: Final = f"{OWN}staged-"
"""Begins the names of stage directories at the root, whose values are not committed yet."""


def is_lock(key: str) -> bool:
    """Whether a name in a key is that of a lock file."""
    return LOCK in key and any(name.endswith(LOCK) for name in key.split("/"))
