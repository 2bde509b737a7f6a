"""The part of :class:`~xzarr3.stores.CacheStore` that keeps values in the memory of this process.

A reader takes a ticket before it reads a value to keep. The ticket is valid until a writer begins to write
that value, so that a slow read cannot bring back a value that was replaced meanwhile. Several values share
one counter. A value is therefore sometimes not kept because another one was written.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator
from typing import NamedTuple, TypeAlias

from xzarr3._types import Buffer

Part: TypeAlias = tuple[int, int | None] | str
WHOLE = "whole"
HEAD = "head"
"""Names the entry for a value of which parts are kept: version, size and time of the last check."""

_STRIPES = 1024
_OVERHEAD = 400  # Approximate memory of an entry besides its value.


class Entry(NamedTuple):
    """A kept value or part of a value; never modified."""

    value: Buffer
    version: object | None
    """Version of the whole value; None if the store could not tell."""
    size: int | None
    """Size of the whole value in bytes, if known."""
    checked: float
    """Time at which the value was certainly current: just before it was requested."""


class CachedValues:
    """The kept values and the hit counts of a store, shared by all unpickled copies of the store.

    Parameters
    ----------
    max_bytes : int
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.reset()

    def reset(self) -> None:
        """Discard everything; in a forked child, no thread of the parent will finish its work."""
        self._lock = threading.Lock()
        self.hits = self.misses = 0

    def count(self, hits: int, misses: int) -> None:
        """Count requests that were served from the cache (hits) and others (misses)."""
        with self._lock:
            self.hits += hits
            self.misses += misses


class MemoryKept(CachedValues):
    """Values in the memory of this process. The least recently used values make room for new ones.

    Parameters
    ----------
    max_bytes : int
    """

    def reset(self) -> None:
        super().reset()
        self._entries: OrderedDict[tuple[str, Part], Entry] = OrderedDict()
        self._size = 0
        self._begun = [0] * _STRIPES
        self._writers = [0] * _STRIPES

    @property
    def size(self) -> int:
        """Bytes kept, with the overhead of the entries."""
        return self._size

    def find(self, key: str, part: Part) -> Entry | None:
        """The kept entry for a value or part, of any age."""
        name = key, part
        with self._lock:
            entry = self._entries.get(name)
            if entry is not None:
                self._entries.move_to_end(name)
            return entry

    def ticket(self, key: str) -> object | None:
        """Take a ticket before reading a value; None if the value is being written and cannot be kept."""
        stripe = hash(key) % _STRIPES
        with self._lock:
            return None if self._writers[stripe] else self._begun[stripe]

    def keep(self, key: str, part: Part, entry: Entry, ticket: object | None) -> None:
        """Keep an entry, unless it is too large or the ticket is no longer valid."""
        weight = _weight(key, entry)
        stripe = hash(key) % _STRIPES
        with self._lock:
            if weight > self.max_bytes or self._writers[stripe] or self._begun[stripe] != ticket:
                return
            self._remove((key, part))
            self._entries[key, part] = entry
            self._size += weight
            while self._size > self.max_bytes:
                self._remove(next(iter(self._entries)))

    def _remove(self, name: tuple[str, Part]) -> None:
        entry = self._entries.pop(name, None)
        if entry is not None:
            self._size -= _weight(name[0], entry)

    @contextlib.contextmanager
    def writing(self, keys: Collection[str], prefix: str | None = None) -> Iterator[None]:
        """Forget values, and keep none of them during a ``with`` statement in which they are written.

        Only the head of a value that is kept in parts is forgotten: without the head the parts are not used.

        Parameters
        ----------
        keys : collection of str
        prefix : str, optional
            Also forget all values whose keys begin with it.
        """
        stripes = {hash(key) % _STRIPES for key in keys} if prefix is None else range(_STRIPES)
        with self._lock:
            for stripe in stripes:
                self._begun[stripe] += 1
                self._writers[stripe] += 1
            names: list[tuple[str, Part]] = [(key, part) for key in keys for part in (WHOLE, HEAD)]
            if prefix is not None:
                names += [name for name in self._entries if name[0].startswith(prefix)]
            for name in names:
                self._remove(name)
        try:
            yield
        finally:
            with self._lock:
                for stripe in stripes:
                    self._writers[stripe] -= 1


def _weight(key: str, entry: Entry) -> int:
    return len(entry.value) + sys.getsizeof(key) + _OVERHEAD
