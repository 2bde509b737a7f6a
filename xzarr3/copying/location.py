"""Where nodes are: the same for all stores that show a place, and for stores of different parts of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeAlias

from xzarr3.commit.length import BEHIND
from xzarr3.stores import Store

Place: TypeAlias = "tuple[object, str]"
"""What holds a node, and its path there: equal for all its handles, in any hierarchy."""


def location(store: Store, path: str, resolved: Callable[[str], str] = os.path.realpath) -> Place:
    """The location of a node, in a directory, in a bucket, in a file system of fsspec or in another store.

    Parameters
    ----------
    store : Store
    path : str
    resolved : callable
        Returns the path of a directory without links.

    Examples
    --------
    >>> import xzarr3
    >>> outer, inner = (xzarr3.LocalStore(f"/data/{name}") for name in ("a", "a/b"))
    >>> location(outer, "b/c") == location(inner, "c")
    True
    """
    found = store.identity
    while isinstance(found, tuple) and len(found) == 2 and found[0] != BEHIND and isinstance(found[1], tuple):
        found = found[1]  # Of the store that this one shows in another way.
    match found:
        case ("LocalStore", str(root)):
            return "LocalStore", resolved(os.path.join(root, path))
        case ("ObjectStore" | "FsspecStore" as kind, str(one), str(other)):
            top, rest = (one, other) if kind == "FsspecStore" else (other, one)
            return (kind, rest), "/".join(part for part in (top.strip("/"), path) if part)
    return found, path


def is_within(place: Place, other: Place) -> bool:
    """Whether a node is at another place, or below it."""
    above = f"{other[1].rstrip('/')}/" if other[1] else ""
    return place[0] == other[0] and f"{place[1]}/".startswith(above)
