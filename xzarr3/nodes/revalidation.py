"""Looks at the documents of arrays that are open, to find out that they were replaced.

A store that answers at once tells for each read whether a document has changed. Where answers have to be
waited for, handles on one array share what one of them has seen a moment ago.

Chunks that were read of one array are those of one version of it if its document was the same before the
first and after the last one: whoever replaces an array takes its document away first and brings the new one
last, which has a mark of its own. So what a document was at any time before a read is noted, however it was
come by.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from xzarr3._types import Buffer
from xzarr3.formats.documents import mark_of
from xzarr3.model.metadata import NodeMetadata
from xzarr3.stores import Store
from xzarr3.stores.locks import fork_safe

RECENT = 2.0
"""Seconds for which readers take a document to be as it was seen."""
_REMEMBERED = 1024  # Documents that were seen.
_MOST_NOTED = 2**14

Parse = Callable[[Sequence[Buffer | None]], NodeMetadata | None]


@dataclass(frozen=True)
class Note:
    """What a document was at some time: its digest, and the mark that all have which were stored with it."""

    digest: bytes
    mark: bytes


@dataclass(frozen=True)
class Seen:
    """What documents said when they were looked at; ``metadata`` is None if the first was not there."""

    time: float
    digest: bytes
    metadata: NodeMetadata | None
    note: Note | None = None
    """What is noted of the first."""

    @property
    def tells(self) -> bool:
        """Whether readers need not look again at what was there."""
        return self.is_recent and self.metadata is not None

    @property
    def is_recent(self) -> bool:
        """Whether readers need not look again."""
        return time.monotonic() - self.time < RECENT


_guard = fork_safe(threading.Lock())
_noted: dict[object, Note] = {}
_seen: dict[object, Seen] = {}


def note(store: Store, key: str, value: Buffer | None) -> Note | None:
    """Note what a document is; None of one that is not there."""
    if value is None:
        return None
    made = Note(_digest(value), mark_of(value))
    with _guard:
        while len(_noted) >= _MOST_NOTED:
            _noted.pop(next(iter(_noted)))
        _noted[store.identity, key] = made
    return made


def note_all(store: Store, documents: Iterable[tuple[str, Buffer | None]]) -> None:
    """Note what documents are from now on, where it takes a request to look at one again."""
    if store.concurrency > 1 or not store.tells_changes:
        for key, value in documents:
            note(store, key, value)


def noted(store: Store, key: str) -> Note | None:
    """What a document was when it was read last."""
    return _noted.get((store.identity, key))


def last(store: Store, keys: tuple[str, ...]) -> Seen | None:
    """What was seen last of documents that are looked at together."""
    return _seen.get((store.identity, keys))


def look(store: Store, keys: tuple[str, ...], parse: Parse, *, to_write: bool = False) -> Seen:
    """Look at documents.

    Parameters
    ----------
    store : Store
    keys : tuple of str
        Keys of the documents of one node, the one first that makes it a node.
    parse : callable
        Tells what the documents say; None stands for each that is not there.
    to_write : bool
        What a cache remembers is not enough.
    """
    now = time.monotonic()
    if to_write:
        stored = [store.get_versioned(key)[0] for key in keys]
    else:
        stored = [store.get(keys[0])] if len(keys) == 1 else store.get_values(keys)
    own = note(store, keys[0], stored[0])
    digest = b"" if stored[0] is None else b"".join(map(_digest, stored))
    place = store.identity, keys
    before = _seen.get(place)
    if before is not None and before.digest == digest:
        found = before.metadata
    else:
        found = None if stored[0] is None else parse(stored)
    return _remember(place, Seen(now, digest, found, own))


def _digest(stored: Buffer | None) -> bytes:
    return b"-" if stored is None else hashlib.sha256(stored).digest()


def remember(store: Store, key: str, document: Buffer, metadata: NodeMetadata, time: float) -> None:
    """Remember a document that was read at a time to find out more than that."""
    own = note(store, key, document)
    _remember((store.identity, (key,)), Seen(time, _digest(document), metadata, own))


def in_the_making(store: Store, keys: Iterable[str]) -> None:
    """Take it that these documents are not there yet, as whoever is about to write them knows."""
    for key in keys:
        _remember((store.identity, (key,)), Seen(time.monotonic(), b"", None))


def _remember(place: object, seen: Seen) -> Seen:
    with _guard:
        while len(_seen) >= _REMEMBERED:
            _seen.pop(next(iter(_seen)))
        _seen.pop(place, None)
        _seen[place] = seen
    return seen
