"""Remembers what was last seen of the documents of open arrays, to find out that an array was replaced.

Where each look takes a request, handles on one array share what one of them saw a moment ago. The digest of
each document that is read or stored is noted, for dask's names.

This module compares documents only as bytes; its callers parse them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from xzarr3._types import Buffer
from xzarr3.model.metadata import NodeMetadata
from xzarr3.stores import Store, versioned
from xzarr3.stores.locks import fork_safe

RECENT = 2.0
"""Seconds for which readers trust a document that was seen."""
_REMEMBERED = 1024  # number of looks remembered
_MOST_NOTED = 2**14

Parse = Callable[[Sequence[Buffer | None]], NodeMetadata | None]


class Seen(NamedTuple):
    """The documents as seen at one time; ``metadata`` is None if the first one was absent."""

    time: float
    digest: bytes
    metadata: NodeMetadata | None

    @property
    def tells(self) -> bool:
        """Whether readers may trust this instead of looking again; False if the document was absent."""
        return self.is_recent and self.metadata is not None

    @property
    def is_recent(self) -> bool:
        """Whether this was seen at most :data:`RECENT` seconds ago."""
        return time.monotonic() - self.time < RECENT


_guard = fork_safe(threading.Lock())
_noted: dict[object, bytes] = {}
_seen: dict[object, Seen] = {}


def _note(store: Store, key: str, value: Buffer | None) -> None:
    """Note the digest of a document."""
    if value is not None:
        with _guard:
            while len(_noted) >= _MOST_NOTED:
                _noted.pop(next(iter(_noted)))
            _noted[store.identity, key] = _digest(value)


def note_all(store: Store, documents: Iterable[tuple[str, Buffer | None]]) -> None:
    """Note documents, in a store where looking at one again takes a request."""
    if store.concurrency > 1 or not store.traits.tells_changes:
        for key, value in documents:
            _note(store, key, value)


def tag(store: Store, key: str) -> str | None:
    """Names the version of a document that was last read or stored, where the store cannot tell versions."""
    found = _noted.get((store.identity, key))
    return None if found is None else found.hex()[:16]


def last(store: Store, keys: tuple[str, ...]) -> Seen | None:
    """The last look at these documents."""
    return _seen.get((store.identity, keys))


def look(store: Store, keys: tuple[str, ...], parse: Parse, *, to_write: bool = False) -> Seen:
    """Read documents and remember what they say; equal documents are not parsed again.

    Parameters
    ----------
    store : Store
    keys : tuple of str
        Keys of the documents of one node, the defining one first.
    parse : callable
        Parses the values of the documents; None stands for an absent one.
    to_write : bool
        Bypass caches.
    """
    now = time.monotonic()
    if to_write:
        stored = [versioned(store, key)[0] for key in keys]
    else:
        stored = [store.get(keys[0])] if len(keys) == 1 else store.get_values(keys)
    _note(store, keys[0], stored[0])
    digest = b"" if stored[0] is None else b"".join(map(_digest, stored))
    place = store.identity, keys
    before = _seen.get(place)
    if before is not None and before.digest == digest:
        found = before.metadata
    else:
        found = None if stored[0] is None else parse(stored)
    return _remember(place, Seen(now, digest, found))


def _digest(stored: Buffer | None) -> bytes:
    import hashlib

    return b"-" if stored is None else hashlib.sha256(stored).digest()


def remember(store: Store, key: str, document: Buffer, metadata: NodeMetadata, time: float) -> None:
    """Remember a document that was read for another purpose, at ``time``."""
    _note(store, key, document)
    _remember((store.identity, (key,)), Seen(time, _digest(document), metadata))


def in_the_making(store: Store, keys: Iterable[str]) -> None:
    """Remember that these documents are absent: the caller is about to write them."""
    for key in keys:
        _remember((store.identity, (key,)), Seen(time.monotonic(), b"", None))


def _remember(place: object, seen: Seen) -> Seen:
    with _guard:
        while len(_seen) >= _REMEMBERED:
            _seen.pop(next(iter(_seen)))
        _seen.pop(place, None)
        _seen[place] = seen
    return seen
