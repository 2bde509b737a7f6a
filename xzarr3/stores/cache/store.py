"""A store that caches values read from a slow store.

This module decides which requests go to the inner store and when a kept value may be used.
:mod:`xzarr3.stores.cache.memory` and :mod:`xzarr3.stores.cache.directory` own the kept values.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from operator import index
from typing import Any, TypeGuard

from xzarr3._types import Buffer, ByteRange
from xzarr3.errors import ArgumentError, ChangedError, StoreError, printable
from xzarr3.parallel import parallel_map
from xzarr3.stores.base import Parts, check_key, cut, negative_length
from xzarr3.stores.cache.directory import DirectoryKept, check_place
from xzarr3.stores.cache.memory import HEAD, WHOLE, Entry, MemoryKept, Part
from xzarr3.stores.locks import fork_safe, key_lock
from xzarr3.stores.open import StoreLike
from xzarr3.stores.readers import (
    BytesReader,
    Change,
    OversizedError,
    Reader,
    Scratch,
    ValueReader,
    Writer,
    steady,
)
from xzarr3.stores.sharing import reduced
from xzarr3.stores.wrappers import WrapperStore

_FAR = 2**60  # Bytes; no part that extends further is kept.
_WEIGHT = 8  # Weight in `xzarr3.stores.sharing`: the memory cache is kept alive while no task uses it.
_KEPT: weakref.WeakValueDictionary[str, MemoryKept | DirectoryKept] = weakref.WeakValueDictionary()
_making = fork_safe(threading.Lock())


def _forked() -> None:
    """Empty the caches of a forked child: no thread of its parent will finish its work there."""
    for kept in list(_KEPT.values()):
        kept.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class CacheStore(WrapperStore, hands_on=True):
    """Caches values of another store, in memory or in a directory that processes share.

    The cache keeps whole values, both documents and chunks. Of values that are read in parts, such as shards,
    it keeps these parts, if the inner store tells versions apart. Absent values are requested every time.
    Lists are not kept. The least recently used entries make room for new ones.

    A kept value may be up to ``max_age`` seconds older than the value in the inner store, if another writer
    changes it there. A kept value beyond that age is checked by its version, where that is quicker than
    reading it again, or else read again. Writes through this cache take effect at once; with a directory, so
    do writes through any cache in that directory. ``compare_and_set``, ``update`` and ``get_versioned``
    always go to the inner store. Values that are read one after the other may be of different ages, and so
    may parts of one value that several threads read.

    In a directory a value is sometimes not kept, because too many threads want to keep one or because a
    suspended process holds a lock. A read does not wait long for that lock. A write waits for at most half a
    minute.

    Threads that want the same value while it is not kept wait for the first one to read it. With a
    ``max_age`` of 0 each thread reads it itself.

    Pickling the store does not include kept values. Unpickled copies in one process share a cache, and all
    processes with the same directory share that directory. The inner store checks credentials; the cache does
    not. Only this user may enter the directory.

    Parameters
    ----------
    store : Store, path or URL
    max_bytes : int
        Limit on all kept values; for a directory, of all processes together.
    directory : str or path, optional
        Where to keep values, in a folder ``xzarr3-cache-1`` that only this user may enter. It should be on a
        local disk. Without it values are kept in memory.
    max_age : float or None
        Seconds. With 0 every value is checked or read again; with None kept values never expire.

    Attributes
    ----------
    hits, misses : int
        How many values and parts that this process requested were kept, and how many were not.
    size : int
        Bytes kept.

    Examples
    --------
    >>> from xzarr3 import MemoryStore
    >>> slow = MemoryStore({"a": b"old"})
    >>> store = CacheStore(slow, max_age=60)
    >>> store.get("a"), store.get("a"), store.hits, store.misses
    (b'old', b'old', 1, 1)
    >>> slow.set("a", b"new")
    >>> store.get("a")
    b'old'
    >>> store.set("a", b"newer")
    >>> store.get("a")
    b'newer'
    """

    def __init__(
        self,
        store: StoreLike,
        *,
        max_bytes: int = 2**28,
        directory: str | os.PathLike[str] | None = None,
        max_age: float | None = 300.0,
    ) -> None:
        super().__init__(store)
        self.max_bytes = index(max_bytes)
        if self.max_bytes < 1:
            raise ArgumentError(f"max_bytes={max_bytes!r}; accepted: an integer of at least 1")
        if max_age is not None and not 0 <= max_age < math.inf:
            raise ArgumentError(f"max_age={max_age!r}; accepted: None or a number of seconds, 0 or more")
        self.max_age = max_age
        self.directory = None if directory is None else check_place(directory)
        self._token = uuid.uuid4().hex
        self._parts_work: bool | None = None
        self._begin()

    def _begin(self) -> None:
        self._clock: Callable[[], float] = time.time
        with _making:
            kept = _KEPT.get(self._token)
            if kept is None:
                place, size = self.directory, self.max_bytes
                kept = MemoryKept(size) if place is None else DirectoryKept(place, size, self.inner.identity)
                _KEPT[self._token] = kept
        self._kept = kept

    def __reduce__(self) -> tuple[object, ...]:
        return reduced(self, CacheStore, weight=_WEIGHT)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_kept"], state["_clock"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def __repr__(self) -> str:
        where = "" if self.directory is None else f" in '{printable(str(self.directory))}'"
        return f"<{type(self).__name__} {self.inner}{where}>"

    def _facts(self) -> list[tuple[str, str]]:
        from xzarr3.display.units import counted, size

        kept = f"{size(self.size)} of at most {size(self.max_bytes)}"
        asked = self.hits + self.misses
        return [*super()._facts(), ("Kept", kept), ("Hits", f"{self.hits:,} of {counted(asked, 'request')}")]

    @property
    def hits(self) -> int:
        """How many requested values and parts were kept."""
        return self._kept.hits

    @property
    def misses(self) -> int:
        """How many requested values and parts had to be read from the inner store."""
        return self._kept.misses

    @property
    def size(self) -> int:
        """Bytes kept; for a directory, of all processes and in whole blocks."""
        return self._kept.size

    def clear(self) -> None:
        """Discard everything kept; in a directory, also the values of other stores."""
        with self._kept.writing((), ""):
            pass

    def stamp(self, keys: Sequence[str]) -> object:
        # A kept value may be older than the value that the inner store's stamp describes.
        return self.inner.stamp(keys) if self.max_age == 0 else uuid.uuid4().hex

    @property
    def tells_changes(self) -> bool:
        return self.max_age == 0 and super().tells_changes

    def _told_apart(self) -> object:
        # Values kept by one cache may be older than those kept by another.
        own = None if self.max_age == 0 else self.directory or self._identity
        return own if own is not None else super()._told_apart()

    def tag(self, key: str) -> str | None:
        return self.inner.tag(key) if self.max_age == 0 else None

    def __dask_tokenize__(self) -> object:
        token = super().__dask_tokenize__()
        return token if self.max_age == 0 else (token, uuid.uuid4().hex)

    def version(self, key: str) -> object | None:
        return self.inner.version(key) if self.max_age == 0 else None

    # Kept values

    def _is_fresh(self, entry: Entry | None) -> TypeGuard[Entry]:
        if entry is None or self.max_age is None:
            return entry is not None
        return 0 <= self._clock() - entry.checked < self.max_age

    def _fresh(self, key: str, part: Part) -> Entry | None:
        entry = self._kept.find(key, part)
        return entry if self._is_fresh(entry) else None

    def _forget(self, key: str) -> None:
        with self._kept.writing([key]):
            pass

    @property
    def _tells_parts(self) -> bool:
        """Whether the inner store has a reader of its own; otherwise there is no version to compare."""
        return self.inner._has("reader")

    @property
    def _waits(self) -> bool:
        return self.inner.concurrency > 1

    def _whole(self, key: str, limit: int = sys.maxsize) -> Buffer | None:
        """A whole value, kept or read."""
        entry = self._fresh(key, WHOLE)
        self._kept.count(entry is not None, entry is None)
        if entry is None:
            # Of several threads that want the same value, only the first one reads it.
            with key_lock(self._token, key) if self.max_age != 0 else contextlib.nullcontext():
                entry = self._asked(key, limit)
        if entry is not None and len(entry.value) > limit:
            raise OversizedError(len(entry.value), limit)
        return None if entry is None else entry.value

    def _asked(self, key: str, limit: int) -> Entry | None:
        """The value in the inner store, or the kept one if the inner store confirms its version."""
        began, ticket, stale = self._clock(), self._kept.ticket(key), self._kept.find(key, WHOLE)
        if self._is_fresh(stale):  # Another thread has just read it.
            return stale
        if stale is not None and self._is_still(key, stale):
            return self._again(key, stale, began, ticket)
        found = self._read(key, limit, began)
        if found is not None and found.size == len(found.value):
            self._kept.keep(key, WHOLE, found, ticket)
        elif stale is not None:
            self._forget(key)
        return found

    def _again(self, key: str, stale: Entry, began: float, ticket: object | None) -> Entry:
        """The kept entry, with a new time of check."""
        entry = stale._replace(checked=began)
        if self.max_age:
            self._kept.keep(key, WHOLE, entry, ticket)
        return entry

    def _is_still(self, key: str, stale: Entry) -> bool:
        """Whether the inner store has the same version; not checked where reading the value is as quick."""
        version = stale.version
        if version is None or (self._waits and len(stale.value) <= self.inner.request_bytes):
            return False
        with contextlib.suppress(StoreError):  # Reading the whole value will report the error.
            reader = self.inner.reader().open(key, (0, 1))
            if reader is not None:
                with reader:
                    return reader.version == version
        return False

    def _read(self, key: str, limit: int, began: float) -> Entry | None:
        """Read a value and its version with one request."""
        inner, bounded = self.inner, limit != sys.maxsize
        if self._tells_parts and not (self._waits and (self._parts_work is False or not bounded)):
            try:
                # Size and version come with this part, which is never larger than the limit.
                reader = inner.reader().open(key, (0, limit) if self._waits else None)
                entry = None if reader is None else _all_of(reader, limit, began)
                self._parts_work = True
                return entry
            except StoreError:
                if self._parts_work or not self._waits:
                    raise
        version: object | None = None
        if bounded or not inner._has("get_versioned"):
            value = inner.reader(Scratch(), limit).get(key)
            if bounded and value is not None:  # Some servers cannot send parts.
                self._parts_work = False
        else:
            value, version = inner.get_versioned(key)
            if isinstance(version, bytes):  # A digest, which readers do not provide.
                version = None
        return None if value is None else Entry(bytes(value), version, len(value), began)

    # Readable

    def _get(self, key: str, byte_range: ByteRange | None) -> Buffer | None:
        return self._whole(key) if byte_range is None else self._values(key, [byte_range])[0]

    def _get_partial_values(self, wanted: Sequence[tuple[str, ByteRange]]) -> list[Buffer | None]:
        ranges: dict[str, list[ByteRange]] = {}
        for key, byte_range in wanted:
            ranges.setdefault(key, []).append(byte_range)
        values = parallel_map(lambda key: self._values(key, ranges[key]), ranges, self.concurrency)
        parts = dict(zip(ranges, map(iter, values), strict=True))
        return [next(parts[key]) for key, _ in wanted]

    def _values(self, key: str, ranges: Sequence[ByteRange]) -> Sequence[Buffer | None]:
        """Parts of a single version of a value."""
        entry = self._fresh(key, WHOLE)
        if entry is not None:
            self._kept.count(len(ranges), 0)
            return [cut(entry.value, each) for each in ranges]
        start, length = ranges[0]
        part = None if length is None or abs(start) + length > _FAR else (start, length)
        if not self._tells_parts or (len(ranges) == 1 and part is None):
            self._kept.count(0, len(ranges))
            return [self.inner.get(key, each) for each in ranges]
        return steady(lambda: self._read_opened(key, part, ranges))

    def _read_opened(
        self, key: str, part: tuple[int, int] | None, ranges: Sequence[ByteRange]
    ) -> Sequence[Buffer | None]:
        reader = self._open(key, part)
        if reader is None:
            return [None] * len(ranges)
        with reader:
            return [reader.read(*each) for each in ranges]

    def _exists(self, key: str) -> bool:
        return bool(self._fresh(key, WHOLE) or self._fresh(key, HEAD)) or self.inner.exists(key)

    def _reader(self, scratch: Scratch | None, limit: int) -> Reader:
        return _CacheReader(self, scratch, limit)

    def _open(self, key: str, part: tuple[int, int] | None) -> ValueReader | None:
        kept = self._kept
        entry = kept.find(key, WHOLE)
        if self._is_fresh(entry):
            return self._opened(entry)
        began, ticket = self._clock(), kept.ticket(key)
        head = kept.find(key, HEAD) if self._waits else None
        if self._is_fresh(head):
            return _PartReader(self, key, None, head, ticket)
        reader = self.inner.reader().open(key, part)
        if reader is None:
            if entry is not None or head is not None:
                self._forget(key)
            return None
        version = reader.version
        if entry is not None and version is not None and version == entry.version:
            reader.close()
            return self._opened(self._again(key, entry, began, ticket))
        if isinstance(reader, BytesReader):  # The value is in memory already.
            kept.count(0, 1)
            return reader
        head = Entry(b"", version, reader.size, began)
        if self._waits and self.max_age != 0 and version is not None:
            kept.keep(key, HEAD, head, ticket)
        return _PartReader(self, key, reader, head, ticket)

    def _opened(self, entry: Entry) -> ValueReader:
        self._kept.count(1, 0)
        return _KeptReader(entry)

    # Writeable

    def _compare_and_set(self, key: str, version: object, value: bytes | None) -> bool:
        with self._kept.writing([key]):
            return super()._compare_and_set(key, version, value)

    def _writer(self, scratch: Scratch | None, limit: int) -> Writer:
        return _CacheWriter(self, super()._writer(scratch, limit))

    def _set(self, key: str, value: bytes) -> None:
        with self._kept.writing([key]):
            super()._set(key, value)

    def _set_partial_values(self, parts: dict[str, Parts]) -> None:
        with self._kept.writing(parts):
            super()._set_partial_values(parts)

    def _copy_values(self, pairs: Sequence[tuple[str, str]]) -> None:
        with self._kept.writing([target for _, target in pairs]):
            super()._copy_values(pairs)

    def _erase(self, key: str) -> None:
        with self._kept.writing([key]):
            super()._erase(key)

    def _erase_values(self, keys: Sequence[str]) -> None:
        with self._kept.writing(keys):
            super()._erase_values(keys)

    def _erase_prefix(self, prefix: str) -> None:
        with self._kept.writing((), prefix):
            super()._erase_prefix(prefix)


class _CacheReader(Reader):
    """Reads kept values or requests them; starts again if a value is replaced meanwhile."""

    _store: CacheStore

    def get(self, key: str) -> Buffer | None:
        return self._store._whole(check_key(key), self._limit)

    def get_ranges(
        self, key: str, starts: Sequence[int], lengths: Sequence[int]
    ) -> tuple[int | None, list[Buffer]] | None:
        return steady(lambda: Reader.get_ranges(self, key, starts, lengths))

    def get_into(self, key: str, start: int, out: memoryview) -> tuple[int | None, int] | None:
        return steady(lambda: Reader.get_into(self, key, start, out))

    def open(
        self, key: str, part: tuple[int, int] | None = None, version: object | None = None
    ) -> ValueReader | None:
        return self._store._open(check_key(key), part)


class _CacheWriter(Writer):
    """Writes to the inner store and forgets the kept values that it writes."""

    _store: CacheStore

    def __init__(self, store: CacheStore, inner: Writer) -> None:
        super().__init__(store)
        self._inner = inner

    def set(self, key: str, pieces: Sequence[Buffer]) -> None:
        with self._store._kept.writing([key]):
            self._inner.set(key, pieces)

    def update(self, key: str, change: Change) -> None:
        with self._store._kept.writing([key]):
            self._inner.update(key, change)

    def close(self) -> None:
        self._inner.close()


def _all_of(reader: ValueReader, limit: int, began: float) -> Entry:
    with reader:
        size = reader.size
        if size is not None and size > limit:
            raise OversizedError(size, limit)
        value = bytes(reader.read(0, limit + 1 if size is None and limit != sys.maxsize else size))
        return Entry(value, reader.version, len(value) if size is None else size, began)


class _KeptReader(BytesReader):
    """Parts of a kept whole value."""

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry.value)
        self._entry = entry

    @property
    def version(self) -> object | None:
        return self._entry.version


class _PartReader(ValueReader):
    """Parts of one version of a value; each part read is kept.

    Parameters
    ----------
    store : CacheStore
    key : str
    inner : ValueReader or None
        The open value in the inner store; None until a part is needed that is not kept.
    head : Entry
        The version and the size of the value.
    ticket : object or None
        Ticket taken before the head was found.
    """

    def __init__(
        self, store: CacheStore, key: str, inner: ValueReader | None, head: Entry, ticket: object | None
    ) -> None:
        self._store, self._key, self._inner, self._head, self._ticket = store, key, inner, head, ticket
        self._version, self.size = head.version, head.size

    @property
    def version(self) -> object | None:
        return self._version

    def _find(self, start: int, length: int | None) -> Buffer | None:
        if length is not None and length < 0:
            raise negative_length(length)
        entry = None if self._version is None else self._store._kept.find(self._key, (start, length))
        return None if entry is None or entry.version != self._version else entry.value

    def _below(self, start: int, length: int | None) -> ValueReader:
        """The open value in the inner store, of the version in the head."""
        if self._inner is None:
            part = start, 1 if length is None or length > _FAR else length
            reader = self._store.inner.reader().open(self._key, part, self._version)
            if reader is None or reader.version != self._version:
                if reader is not None:
                    reader.close()
                raise ChangedError(
                    f"key '{self._key}' of {self._store} was replaced or removed while it was read"
                )
            self._inner = reader
        return self._inner

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except ChangedError:
            self._store._forget(self._key)
            raise

    def _keep(self, start: int, length: int | None, part: Buffer) -> None:
        ends = len(part) == self.size if self.size is not None else length is not None and len(part) < length
        name: Part = WHOLE if start == 0 and ends else (start, length)
        if self._ticket is not None and (name == WHOLE or self._version is not None):
            entry = Entry(bytes(part), self._version, self.size, self._head.checked)
            self._store._kept.keep(self._key, name, entry, self._ticket)

    def read(self, start: int, length: int | None = None) -> Buffer:
        part = self._find(start, length)
        self._store._kept.count(part is not None, part is None)
        if part is None:
            with self._reading():
                part = self._below(start, length).read(start, length)
            self._keep(start, length, part)
        return part

    def read_ranges(self, starts: Sequence[int], lengths: Sequence[int]) -> list[Buffer]:
        return list(self.iter_ranges(starts, lengths))

    def iter_ranges(self, starts: Sequence[int], lengths: Sequence[int]) -> Iterator[Buffer]:
        kept = [(*each, self._find(*each)) for each in zip(starts, lengths, strict=True)]
        missing = [(start, length) for start, length, part in kept if part is None]
        self._store._kept.count(len(kept) - len(missing), len(missing))
        below: Iterator[Buffer] = iter(())
        with self._reading():
            if missing:
                below = self._below(*missing[0]).iter_ranges(*zip(*missing, strict=True))
            for start, length, part in kept:
                if part is None:
                    part = next(below)
                    self._keep(start, length, part)
                yield part

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()
