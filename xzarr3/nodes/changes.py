"""Remembers what this process has changed in stores, for readers that do not look at the store again.

Where each look takes a request, readers trust a document for a short while, but not after this process has
changed it. Dask's names for arrays are made from their documents, which stay the same when values change. So
a change gives an array that was named before a new mark, which is part of its name in this process. This
module knows nothing of what other processes write.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from typing import NamedTuple

from xzarr3.stores import Store

_REMEMBERED = 2**14  # number of arrays


class Changed(NamedTuple):
    """The last change of an array."""

    mark: str | None = None
    """New after each change; None if there was none."""
    documents: float = 0.0
    """When its documents were last changed, on the clock of ``time.monotonic``."""


_NEVER = Changed()
_changed: dict[object, Changed] = {}
_forgotten = _NEVER
_named: dict[object, None] = {}
"""The arrays that have a dask name in this process."""


def last(store: Store, path: str) -> Changed:
    """The last change by this process of the node at a path."""
    return _changed.get((_holder(store).identity, path), _forgotten)


def named(store: Store, path: str) -> str | None:
    """The mark for the dask name of an array, whose next change gives it a new one."""
    place = _holder(store).identity, path
    while len(_named) >= _REMEMBERED:
        _named.pop(next(iter(_named)))
    _named[place] = None
    return last(store, path).mark


def note_values(store: Store, path: str) -> None:
    """Note that values of an array were changed."""
    if (_holder(store).identity, path) in _named:
        _note(store, path, last(store, path).documents)


def note_documents(store: Store, paths: Iterable[str]) -> None:
    """Note that the documents of nodes were stored."""
    for path in paths:
        _note(store, path, time.monotonic())


def _note(store: Store, path: str, documents: float) -> None:
    global _forgotten
    changed = Changed(uuid.uuid4().hex, documents)
    if len(_changed) >= _REMEMBERED:  # from now on, any forgotten array counts as changed
        _forgotten = changed
        _changed.clear()
    _changed[_holder(store).identity, path] = changed


def _holder(store: Store) -> Store:
    """The innermost store, inside all wrappers."""
    while isinstance(inner := getattr(store, "inner", None), Store):
        store = inner
    return store
