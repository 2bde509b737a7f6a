"""What this process has seen of documents lately, and what it has changed.

Where each look at a document takes a request, handles on one array share what one of them saw a moment ago,
unless this process has changed the array since. Dask's names for arrays are made from their documents, which
stay the same when values change. So a change gives an array that was named before a new mark, and the digest
of each document that is read or stored is kept; both are parts of the name. This module knows nothing of what
other processes write.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterable
from typing import Any, NamedTuple

from xzarr3._types import Buffer
from xzarr3.formats import documents
from xzarr3.model.metadata import NodeMetadata
from xzarr3.stores import Store
from xzarr3.stores.locks import fork_safe

RECENT = 2.0
"""Seconds for which readers trust documents that were seen."""
_MOST_SEEN = 1024
_MOST_NOTED = 2**14


class Seen(NamedTuple):
    """What the documents of a node said at one time, on the clock of :func:`time.monotonic`."""

    time: float
    metadata: NodeMetadata | None
    """None if there was no node, or if this process has changed it."""
    is_new: bool = False
    """Whether this process is about to make the node."""

    @property
    def is_recent(self) -> bool:
        """Whether this was seen at most :data:`RECENT` seconds ago."""
        return time.monotonic() - self.time < RECENT

    @property
    def tells(self) -> bool:
        """Whether readers may trust this instead of looking again."""
        return self.is_recent and self.metadata is not None


_guard = fork_safe(threading.Lock())
_seen: dict[object, Seen] = {}
_tags: dict[object, str] = {}
_marks: dict[object, str | None] = {}
"""The arrays that have a dask name in this process, with their marks."""
_dates: dict[object, float] = {}
"""When nodes were replaced, by documents that were read or stored; 0 for those that never were."""
_newest: dict[object, float] = {}
"""When a node of a store was last replaced."""
_forgotten: str | None = None
"""The mark of all arrays that are not among these."""


def _keep(kept: dict[Any, Any], key: object, value: object, most: int) -> None:
    with _guard:
        kept.pop(key, None)
        while len(kept) >= most:
            kept.pop(next(iter(kept)))
        kept[key] = value


# Looks


def last(store: Store, path: str) -> Seen | None:
    """What was last seen of the node at a path, or that this process changed it since, through any store."""
    found = (_seen.get((each.identity, path)) for each in (store, _holder(store)))
    return max((each for each in found if each is not None), key=lambda each: each.time, default=None)


def remember(store: Store, path: str, metadata: NodeMetadata | None, at: float) -> Seen:
    """Remember the documents of a node that were read at ``at``."""
    found = Seen(at, metadata)
    _keep(_seen, (store.identity, path), found, _MOST_SEEN)
    return found


def in_the_making(store: Store, paths: Iterable[str]) -> None:
    """Remember that nodes are absent: the caller is about to make them."""
    for path in paths:
        _keep(_seen, (store.identity, path), Seen(time.monotonic(), None, is_new=True), _MOST_SEEN)


# Changes by this process


def note_documents(store: Store, paths: Iterable[str]) -> None:
    """Note that documents of nodes were stored or erased: their readers look at them again."""
    holder = _holder(store)
    for path in paths:
        remember(holder, path, None, time.monotonic())
        note_values(holder, path)


def note_values(store: Store, path: str) -> None:
    """Note that values of an array were changed."""
    place = _holder(store).identity, path
    if place in _marks:
        with _guard:
            _marks[place] = uuid.uuid4().hex


def named(store: Store, path: str) -> str | None:
    """The mark for the dask name of an array, whose next change gives it a new one."""
    global _forgotten
    place = _holder(store).identity, path
    with _guard:
        mark = _marks.get(place, _forgotten)
        if place not in _marks and len(_marks) >= _MOST_NOTED:
            _marks.clear()
            _forgotten = uuid.uuid4().hex  # from now on, any forgotten array counts as changed
        _marks[place] = mark
    return mark


# Versions of documents


def note_all(store: Store, values: Iterable[tuple[str, Buffer | None]]) -> None:
    """Note documents by key: what tells their versions where looking at one again takes a request."""
    is_asked = store.concurrency > 1 or not store.traits.tells_changes
    for key, value in values:
        note_date(store, key, value)
        if is_asked:
            import hashlib

            if value is not None:
                _keep(_tags, (store.identity, key), hashlib.sha256(value).hexdigest()[:16], _MOST_NOTED)


def note_date(store: Store, key: str, value: Buffer | None) -> None:
    """Note when a node was replaced, by a document that was read or stored."""
    at = documents.replaced_at(value) or 0
    _keep(_dates, (store.identity, key), at, _MOST_NOTED)
    if at > _newest.get(store.identity, 0):
        _keep(_newest, store.identity, at, _MOST_NOTED)


def replaced_at(store: Store, key: str) -> float | None:
    """When a node was replaced, by its document as last read or stored; 0 if never, None if unknown."""
    return _dates.get((store.identity, key))


def placed_at(store: Store, key: str, metadata: NodeMetadata) -> float | None:
    """When a node was put in its place, by the documents of its metadata, or else as :func:`replaced_at`."""
    origin = metadata.origin
    found = None if origin is None else documents.placed_at(origin.documents)
    return replaced_at(store, key) if found is None else found


def opened_now(store: Store) -> float:
    """The time for a node that is opened now, not before that of any replacement known."""
    return max(time.time(), _newest.get(store.identity, 0))


def opened_at(store: Store, key: str) -> float:
    """The time for a node that is opened from its document: that of its replacement, or now if not known."""
    found = replaced_at(store, key)
    return opened_now(store) if found is None else found


def date_now(store: Store) -> float:
    """The date for a node that is put in its place now: after all that are known, also of hosts ahead."""
    return max(time.time(), _newest.get(store.identity, 0) + 1e-5)


def newest(store: Store) -> float | None:
    """The last time at which a node of a store was replaced, as far as this process knows."""
    return _newest.get(store.identity)


def tag(store: Store, key: str) -> str | None:
    """Names the version of a document that was last read or stored, where the store cannot tell versions."""
    return _tags.get((store.identity, key))


def _holder(store: Store) -> Store:
    """The innermost store, inside all wrappers."""
    while isinstance(inner := getattr(store, "inner", None), Store):
        store = inner
    return store
