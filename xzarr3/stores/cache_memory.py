"""What a :class:`~xzarr3.stores.CacheStore` keeps in the memory of this process.

Whoever reads a value to keep it takes a ticket first, which is good as long as nobody begins to write that
value: a read that was slow does not bring back what has been replaced meanwhile. Values share the counters
that this takes; so now and then a value is not kept because another one was written.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias

from xzarr3._types import Buffer

Part: TypeAlias = tuple[int, int | None] | str
WHOLE = "whole"
HEAD = "head"
"""Stands for a value of which parts are kept: its version, its size, and when that was so."""

_STRIPES = 1024
_OVERHEAD = 400  # Bytes that an entry takes besides its value, about.


class Entry:
    """A value or a part of one that is kept.

    Parameters
    ----------
    value : bytes or memoryview
    version : object or None
        That of the value, None if the store could not tell.
    size : int or None
        Bytes of the whole value, if known.
    checked : float
        When the value was surely this one: before it was asked for.
    """

    __slots__ = ("checked", "size", "value", "version")

    def __init__(self, value: Buffer, version: object | None, size: int | None, checked: float) -> None:
        self.value = value
        self.version = version
        self.size = size
        self.checked = checked


class Kept(Protocol):
    """Where values are kept."""

    @property
    def size(self) -> int:
        """Bytes that are kept."""

    def reset(self) -> None:
        """In a forked child: nobody else is at it."""

    def find(self, key: str, part: Part) -> Entry | None:
        """What is kept of a value, of any age."""

    def ticket(self, key: str) -> object | None:
        """To be taken before a value is read; None if it cannot be kept, since it is being written."""

    def keep(self, key: str, part: Part, entry: Entry, ticket: object) -> None:
        """Keep something, unless that would be too large or the ticket is not good any more."""

    def refresh(self, key: str, part: Part, entry: Entry, checked: float) -> None:
        """Note that what was found is still the value."""

    def drop(self, key: str) -> None:
        """Forget a value. Parts of it are of no use without their head."""

    def writing(self, keys: Collection[str]) -> AbstractContextManager[None]:
        """Forget values, and keep none of them within a ``with`` statement, in which they are written."""

    def writing_below(self, prefix: str) -> AbstractContextManager[None]:
        """The same for all values whose keys begin with ``prefix``."""


class MemoryKept:
    """Values in the memory of this process; those that were not asked for the longest make room for others.

    Parameters
    ----------
    max_bytes : int
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.reset()

    def reset(self) -> None:
        """Forget everything, while nobody else is at it."""
        self._lock = threading.Lock()
        self._entries: OrderedDict[tuple[str, Part], Entry] = OrderedDict()
        self.size = 0
        self._begun = [0] * _STRIPES
        self._writers = [0] * _STRIPES

    def find(self, key: str, part: Part) -> Entry | None:
        name = key, part
        with self._lock:
            entry = self._entries.get(name)
            if entry is not None:
                self._entries.move_to_end(name)
            return entry

    def ticket(self, key: str) -> object | None:
        stripe = hash(key) % _STRIPES
        with self._lock:
            return None if self._writers[stripe] else self._begun[stripe]

    def keep(self, key: str, part: Part, entry: Entry, ticket: object) -> None:
        weight = _weight(key, entry)
        stripe = hash(key) % _STRIPES
        with self._lock:
            if weight > self.max_bytes or self._writers[stripe] or self._begun[stripe] != ticket:
                return
            self._remove((key, part))
            self._entries[key, part] = entry
            self.size += weight
            while self.size > self.max_bytes:
                (name, _), oldest = self._entries.popitem(last=False)
                self.size -= _weight(name, oldest)

    def refresh(self, key: str, part: Part, entry: Entry, checked: float) -> None:
        with self._lock:
            entry.checked = max(entry.checked, checked)  # Who replaced it has another entry.

    def _remove(self, name: tuple[str, Part]) -> None:
        entry = self._entries.pop(name, None)
        if entry is not None:
            self.size -= _weight(name[0], entry)

    def drop(self, key: str) -> None:
        with self._lock:
            self._remove((key, WHOLE))
            self._remove((key, HEAD))

    def writing(self, keys: Collection[str]) -> AbstractContextManager[None]:
        def forget() -> None:
            for key in keys:
                self._remove((key, WHOLE))
                self._remove((key, HEAD))

        return self._written({hash(key) % _STRIPES for key in keys}, forget)

    def writing_below(self, prefix: str) -> AbstractContextManager[None]:
        def forget() -> None:
            for name in [name for name in self._entries if name[0].startswith(prefix)]:
                self._remove(name)

        return self._written(range(_STRIPES), forget)

    @contextlib.contextmanager
    def _written(self, stripes: Collection[int], forget: Callable[[], None]) -> Iterator[None]:
        with self._lock:
            writers = self._writers
            for stripe in stripes:
                self._begun[stripe] += 1
                writers[stripe] += 1
            forget()
        try:
            yield
        finally:
            with self._lock:
                for stripe in stripes:
                    writers[stripe] -= 1


def _weight(key: str, entry: Entry) -> int:
    return len(entry.value) + sys.getsizeof(key) + _OVERHEAD
