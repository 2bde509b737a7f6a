"""What this process has changed in stores, for readers that would not look there.

Where answers have to be waited for, readers trust for a while what they saw of a document, but not once it
was changed here. And some stores cannot tell whether a value has changed: dask's names are made of documents
there, which stay the same when values change. So each change gives an array a mark, which is a part of its
name in this process. None of this tells of what others write.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from xzarr3.stores import Store

_REMEMBERED = 2**14  # Arrays.


@dataclass(frozen=True)
class Changed:
    """The last change of an array."""

    mark: str | None = None
    """Another one after each change; None if there was none."""
    documents: float = 0.0
    """When its documents were changed, by the clock that ``time.monotonic`` has."""


_NEVER = Changed()
_changed: dict[object, Changed] = {}
_forgotten = _NEVER


def last(store: Store, path: str) -> Changed:
    """The last change that this process has made of the node at a path."""
    return _changed.get((_holder(store).identity, path), _forgotten)


def note_values(store: Store, path: str) -> None:
    """Note that values of an array were changed, of which the store cannot tell."""
    _note(store, path, last(store, path).documents)


def note_documents(store: Store, paths: Iterable[str]) -> None:
    """Note that the documents of nodes were stored."""
    for path in paths:
        _note(store, path, time.monotonic())


def _note(store: Store, path: str, documents: float) -> None:
    global _forgotten
    changed = Changed(uuid.uuid4().hex, documents)
    if len(_changed) >= _REMEMBERED:  # From now on, any array may have been changed.
        _forgotten = changed
        _changed.clear()
    _changed[_holder(store).identity, path] = changed


def _holder(store: Store) -> Store:
    """The store that holds the values, if others hand them on."""
    while isinstance(inner := getattr(store, "inner", None), Store):
        store = inner
    return store
