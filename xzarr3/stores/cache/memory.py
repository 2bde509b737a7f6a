"""What a :class:`~xzarr3.stores.CacheStore` keeps, and where: here, in the memory of this process.

Whoever reads a value to keep it takes a ticket first, which is good as long as nobody begins to write that
value: a read that was slow does not bring back what has been replaced meanwhile. Values share the counters
that this takes; so now and then a value is not kept because another one was written.
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
"""Stands for a value of which parts are kept: its version, its size, and when that was so."""

_STRIPES = 1024
_OVERHEAD = 400  # Bytes that an entry takes besides its value, about.


class Entry(NamedTuple):
    """A value or a part of one that is kept, which nobody changes."""

    value: Buffer
    version: object | None
    """That of the value, None if the store could not tell."""
    size: int | None
    """Bytes of the whole value, if known."""
    checked: float
    """When the value was surely this one: before it was asked for."""


class Kept:
    """What is kept for a store and its copies, which unpickling makes in plenty; and how often that served.

    Parameters
    ----------
    max_bytes : int
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.reset()

    def reset(self) -> None:
        """Begin anew; in a forked child, where no thread of the parent ends what it has begun."""
        self._lock = threading.Lock()
        self.hits = self.misses = 0

    def count(self, hits: int, misses: int) -> None:
        """Count values and parts that were kept and that were not."""
        with self._lock:
            self.hits += hits
            self.misses += misses


class MemoryKept(Kept):
    """Values in the memory of this process; those that were not asked for the longest make room for others.

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
        """Bytes that are kept."""
        return self._size

    def find(self, key: str, part: Part) -> Entry | None:
        """What is kept of a value, of any age."""
        name = key, part
        with self._lock:
            entry = self._entries.get(name)
            if entry is not None:
                self._entries.move_to_end(name)
            return entry

    def ticket(self, key: str) -> object | None:
        """To be taken before a value is read; None if it cannot be kept, since it is being written."""
        stripe = hash(key) % _STRIPES
        with self._lock:
            return None if self._writers[stripe] else self._begun[stripe]

    def keep(self, key: str, part: Part, entry: Entry, ticket: object | None) -> None:
        """Keep something, unless that would be too large or the ticket is not good any more."""
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
        """Forget values, and keep none of them within a ``with`` statement, in which they are written.

        Parts of a value are of no use without its head, which is forgotten.

        Parameters
        ----------
        keys : collection of str
        prefix : str, optional
            Also all values whose keys begin with it.
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
