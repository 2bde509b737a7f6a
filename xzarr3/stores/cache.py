"""A store that keeps what was read from a slow one.

What is kept, and where, is a matter of :mod:`xzarr3.stores.cache_memory` and
:mod:`xzarr3.stores.cache_directory`. Here is what is asked of the store below, and when what is kept will do.
"""

from __future__ import annotations

import copy
import itertools
import math
import os
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from operator import index
from typing import Any, NoReturn, TypeVar

from xzarr3._types import Buffer, ByteRange
from xzarr3.concurrency import spread
from xzarr3.errors import ChangedError, StoreError, printable
from xzarr3.stores.base import Parts, negative_length
from xzarr3.stores.cache_directory import DirectoryKept, check_place
from xzarr3.stores.cache_memory import HEAD, WHOLE, Entry, Kept, MemoryKept
from xzarr3.stores.opening import StoreLike
from xzarr3.stores.readers import BytesReader, Change, OversizedError, Reader, Scratch, ValueReader, Writer
from xzarr3.stores.sharing import reduced
from xzarr3.stores.wrappers import WrapperStore

Result = TypeVar("Result")

_ATTEMPTS = 3  # For a value that keeps changing while parts of it are read.
_FAR = 2**60  # Bytes; nobody keeps what lies beyond.
_WEIGHT = 8  # Of what it keeps in memory, while no task uses it.


class _Flight:
    """A value that one thread asks for and others wait for."""

    def __init__(self, ticket: object) -> None:
        self.ticket = ticket
        self.done = threading.Event()
        self.value: Buffer | None = None
        self.error: BaseException | None = None


class _Shared:
    """What a store and its copies have in common, which unpickling makes in plenty."""

    def __init__(self, kept: Kept) -> None:
        self.kept = kept
        self._begin()
        _ALL.add(self)

    def _begin(self) -> None:
        self.lock = threading.Lock()
        self.flights: dict[str, _Flight] = {}
        self.hits = 0
        self.misses = 0

    def reset(self) -> None:
        """In a child, where no thread of the parent ends what it has begun."""
        self.kept.reset()
        self._begin()

    def count(self, hits: int, misses: int) -> None:
        """Count values and parts that were kept and that were not."""
        with self.lock:
            self.hits += hits
            self.misses += misses


_ALL: weakref.WeakSet[_Shared] = weakref.WeakSet()
_BY_TOKEN: weakref.WeakValueDictionary[str, _Shared] = weakref.WeakValueDictionary()
_making = threading.Lock()


def _forked() -> None:
    global _making
    _making = threading.Lock()
    for shared in list(_ALL):
        shared.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class CacheStore(WrapperStore, hands_on=True):
    """Keeps values that were read from another store, in memory or in a directory that processes share.

    Whole values are kept, documents as well as chunks, and of values that are read in parts, such as shards,
    these very parts, if the store below tells versions of values from each other. What is absent is asked for
    each time. Lists are not kept. What was not used the longest makes room for what is new.

    A value that is kept may be up to ``max_age`` seconds older than what the store below holds, if somebody
    else writes there. What is older is compared by its version, where that is quicker than reading it again,
    or read again. Writes through the cache, and in a directory those through any cache there, take effect at
    once. ``compare_and_set``, ``update`` and ``get_versioned`` always go to the store below. Values that are
    read one after the other may be of different ages; so may parts of one value that several threads read.

    In a directory a value is not kept now and then, because too many threads want to keep one, or because a
    process that holds a lock is suspended; no read waits for that. A write waits for half a minute at most.

    Many threads that want the same value while it is not kept ask for it once; with a ``max_age`` of 0 each
    asks for itself.

    Pickled, the store takes no values along. Copies of it within one process share what they keep, as all
    processes do that use one directory. Credentials are a matter of the store below: whoever can read the
    directory, which is this user, can read what is kept in it.

    Parameters
    ----------
    store : Store, path or URL
    max_bytes : int
        What may be kept in all, in a directory by all processes together.
    directory : str or path, optional
        Where values are kept, in a folder ``xzarr3-cache-1`` that only this user may enter. It should be on a
        local disk. Without it they are kept in memory.
    max_age : float or None
        Seconds; 0 has every value compared or read again, None has all good for ever.

    Attributes
    ----------
    hits, misses : int
        How many values and parts were kept and how many were not, of those that this process has asked for.
    size : int
        Bytes that are kept.

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
            raise ValueError(f"max_bytes={max_bytes!r}: accepted: an integer of at least 1")
        if max_age is not None and not 0 <= max_age < math.inf:
            raise ValueError(f"max_age={max_age!r}: accepted: None or a number of seconds, 0 or more")
        self.max_age = max_age
        self.directory = None if directory is None else check_place(directory)
        self._token = uuid.uuid4().hex
        self._parts_work: bool | None = None
        self._begin()

    def _begin(self) -> None:
        self._clock: Callable[[], float] = time.time
        with _making:
            shared = _BY_TOKEN.get(self._token)
            if shared is None:
                kept: Kept
                if self.directory is None:
                    kept = MemoryKept(self.max_bytes)
                else:
                    kept = DirectoryKept(self.directory, self.max_bytes, self.inner.identity)
                shared = _BY_TOKEN[self._token] = _Shared(kept)
        self._shared = shared
        self._kept = shared.kept

    def __reduce__(self) -> tuple[object, ...]:
        return reduced(self, CacheStore, weight=_WEIGHT)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_shared"], state["_kept"], state["_clock"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def __repr__(self) -> str:
        where = "" if self.directory is None else f" in '{printable(str(self.directory))}'"
        return f"<{type(self).__name__} {self.inner}{where}>"

    @property
    def hits(self) -> int:
        """How many values and parts were kept when they were asked for."""
        return self._shared.hits

    @property
    def misses(self) -> int:
        """How many values and parts had to be asked for below."""
        return self._shared.misses

    @property
    def size(self) -> int:
        """Bytes that are kept; in a directory by all processes, in whole blocks."""
        return self._kept.size

    def clear(self) -> None:
        """Forget everything that is kept; in a directory that of other stores, too."""
        with self._kept.writing_below(""):
            pass

    def stamp(self, keys: Sequence[str]) -> object:
        # What is kept may be older than what bears this stamp below.
        return self.inner.stamp(keys) if self.max_age == 0 else uuid.uuid4().hex

    @property
    def tells_changes(self) -> bool:
        return self.max_age == 0 and super().tells_changes

    def _told_apart(self) -> object:
        # What one cache keeps may be older than what another one does.
        own = None if self.max_age == 0 else self.directory or self._identity
        return own if own is not None else super()._told_apart()

    def tag(self, key: str) -> str | None:
        return self.inner.tag(key) if self.max_age == 0 else None

    def __dask_tokenize__(self) -> object:
        token = super().__dask_tokenize__()
        return token if self.max_age == 0 else (token, uuid.uuid4().hex)

    def version(self, key: str) -> object | None:
        return self.inner.version(key) if self.max_age == 0 else None

    # What is kept

    def _is_fresh(self, entry: Entry) -> bool:
        return self.max_age is None or 0 <= self._clock() - entry.checked < self.max_age

    def _fresh(self, key: str) -> Entry | None:
        """The whole value, if it is kept and not too old."""
        entry = self._kept.find(key, WHOLE)
        return entry if entry is not None and self._is_fresh(entry) else None

    @property
    def _tells_parts(self) -> bool:
        """Whether the store below opens values in its own way; otherwise there is no version to compare."""
        return self.inner._has("reader")

    @property
    def _waits(self) -> bool:
        return self.inner.concurrency > 1

    def _whole(self, key: str, limit: int = sys.maxsize) -> Buffer | None:
        """A whole value, kept or not."""
        entry = self._kept.find(key, WHOLE)
        if entry is not None and self._is_fresh(entry):
            self._shared.count(1, 0)
            return _within(entry.value, limit)
        self._shared.count(0, 1)
        ticket = self._kept.ticket(key)
        if ticket is None or self.max_age == 0:
            return self._asked(key, entry, limit, ticket)
        return self._flown(key, entry, limit, ticket)

    def _flown(self, key: str, stale: Entry | None, limit: int, ticket: object) -> Buffer | None:
        """Ask for a value, or wait for another thread that does and has begun after the last write."""
        shared = self._shared
        with shared.lock:
            flight = shared.flights.get(key)
            mine = flight is None or flight.ticket != ticket
            if flight is None or mine:
                flight = shared.flights[key] = _Flight(ticket)
        if mine:
            try:
                entry = self._fresh(key)  # Another thread may have just ended.
                flight.value = self._asked(key, stale, limit, ticket) if entry is None else entry.value
            except BaseException as error:
                flight.error = error
                raise
            finally:
                with shared.lock:
                    if shared.flights.get(key) is flight:
                        del shared.flights[key]
                flight.done.set()
            return _within(flight.value, limit)
        flight.done.wait()
        if flight.error is None:
            return _within(flight.value, limit)
        if isinstance(flight.error, StoreError):
            raise copy.copy(flight.error) from flight.error
        return self._asked(key, stale, limit, ticket)  # That thread was interrupted, or wanted less.

    def _asked(self, key: str, stale: Entry | None, limit: int, ticket: object | None) -> Buffer | None:
        """Ask the store below for a value, and keep it."""
        began = self._clock()
        if stale is not None and self._is_still(key, stale):
            self._kept.refresh(key, WHOLE, stale, began)
            return _within(stale.value, limit)
        value, version, is_whole = self._read(key, limit)
        if value is None:
            self._kept.drop(key)
        elif ticket is not None and is_whole:
            self._kept.keep(key, WHOLE, Entry(value, version, len(value), began), ticket)
        return value

    def _is_still(self, key: str, stale: Entry) -> bool:
        """Whether the store below has the same version of a value; not asked if reading it is as quick."""
        version = stale.version
        if version is None or (self._waits and len(stale.value) <= self.inner.request_bytes):
            return False
        try:
            reader = self.inner.reader().open(key, (0, 1))
            if reader is None:
                return False
            with reader:
                return reader.version == version
        except StoreError:  # Reading all of it will tell what is wrong.
            return False

    def _read(self, key: str, limit: int) -> tuple[bytes | None, object | None, bool]:
        """A value, its version and whether it is whole, with one request."""
        inner = self.inner
        value: Buffer | None
        version: object | None = None
        if not self._waits and self._tells_parts:
            return self._read_opened(key, inner.reader().open(key), limit)
        if limit != sys.maxsize:
            return self._read_limited(key, limit)
        if inner._has("get_versioned"):
            value, version = inner.get_versioned(key)
            if isinstance(version, bytes):  # A digest, which no reader tells of.
                version = None
        else:
            value = inner.get(key)
        return None if value is None else bytes(value), version, value is not None

    def _read_opened(
        self, key: str, reader: ValueReader | None, limit: int
    ) -> tuple[bytes | None, object | None, bool]:
        if reader is None:
            return None, None, False
        with reader:
            size = reader.size
            if size is not None and size > limit:
                raise OversizedError(size, limit)
            value = bytes(reader.read(0, limit + 1 if size is None and limit != sys.maxsize else size))
            if len(value) > limit:
                raise OversizedError(len(value), limit)
            return value, reader.version, size in (None, len(value))

    def _read_limited(self, key: str, limit: int) -> tuple[bytes | None, object | None, bool]:
        """A value that may be too large, of a store that has to be waited for.

        The part that is not too large comes with the size and the version; but some servers know no parts.
        """
        if self._parts_work is not False and self.inner._has("reader"):
            try:
                found = self._read_opened(key, self.inner.reader().open(key, (0, limit)), limit)
            except StoreError:
                if self._parts_work:
                    raise
            else:
                self._parts_work = True
                return found
        value = self.inner.reader(Scratch(), limit).get(key)
        if value is not None:
            self._parts_work = False
            value = bytes(value)
        return value, None, value is not None

    # Readable

    def _get(self, key: str, byte_range: ByteRange | None) -> Buffer | None:
        return self._whole(key) if byte_range is None else self._part(key, byte_range)

    def _part(self, key: str, byte_range: ByteRange) -> Buffer | None:
        start, length = byte_range

        def below() -> Buffer | None:
            self._shared.count(0, 1)
            return self.inner.get(key, byte_range)

        if length is None or abs(start) + length > _FAR:
            entry = self._fresh(key)
            return below() if entry is None else self._hit(entry).read(start, length)
        return self._parts(key, (start, length), 1, lambda reader: reader.read(start, length), below)

    def _hit(self, entry: Entry, number: int = 1) -> _KeptReader:
        """A whole value that is kept, of which so many parts are asked for."""
        self._shared.count(number, 0)
        return _KeptReader(entry)

    def _parts(
        self,
        key: str,
        part: tuple[int, int] | None,
        number: int,
        read: Callable[[ValueReader], Result],
        below: Callable[[], Result | None],
    ) -> Result | None:
        """What is read of the parts of one version of a value; again, if it is replaced meanwhile."""
        entry = self._fresh(key)
        if entry is not None:
            return read(self._hit(entry, number))
        if not self._tells_parts:
            return below()
        for attempt in range(_ATTEMPTS):
            reader = self._open(key, part)
            if reader is None:
                return None
            try:
                with reader:
                    return read(reader)
            except ChangedError:
                if attempt == _ATTEMPTS - 1:
                    raise
        return None

    def _get_partial_values(self, wanted: Sequence[tuple[str, ByteRange]]) -> list[Buffer | None]:
        places: dict[str, list[int]] = {}
        for at, (key, _) in enumerate(wanted):
            places.setdefault(key, []).append(at)
        found: list[Buffer | None] = [None] * len(wanted)

        def load(key: str) -> None:
            ranges = [wanted[at][1] for at in places[key]]

            def below() -> Sequence[Buffer | None]:
                self._shared.count(0, len(ranges))
                return self.inner.get_partial_values((key, each) for each in ranges)

            def read(reader: ValueReader) -> Sequence[Buffer | None]:
                return [reader.read(start, length) for start, length in ranges]

            if len(ranges) == 1:
                found[places[key][0]] = self._part(key, ranges[0])
                return
            parts = self._parts(key, None, len(ranges), read, below)
            for at, part in zip(places[key], parts or [None] * len(ranges), strict=True):
                found[at] = part

        spread(load, places, self.concurrency)
        return found

    def _exists(self, key: str) -> bool:
        entry = self._fresh(key) or self._kept.find(key, HEAD)
        if entry is not None and self._is_fresh(entry):
            self._shared.count(1, 0)
            return True
        return self.inner.exists(key)

    def _open(
        self, key: str, part: tuple[int, int] | None, version: object | None = None
    ) -> ValueReader | None:
        kept = self._kept
        entry = kept.find(key, WHOLE)
        if entry is not None and self._is_fresh(entry):
            return self._hit(entry)
        began, ticket = self._clock(), kept.ticket(key)
        head = kept.find(key, HEAD) if self._waits else None
        if head is not None and self._is_fresh(head):
            return _PartReader(self, key, None, head, ticket)
        # Of that version, or nothing: then the first part tells whether it still is.
        given = version if head is not None and head.version == version else None
        inner = self._opened_below(key, part, given)
        if inner is None:
            kept.drop(key)
            return None
        if (
            given is None
            and entry is not None
            and entry.version is not None
            and inner.version == entry.version
        ):
            inner.close()
            kept.refresh(key, WHOLE, entry, began)
            return self._hit(entry)
        if isinstance(inner, BytesReader):  # It is in memory already.
            self._shared.count(0, 1)
            return inner
        found = Entry(b"", inner.version, inner.size, began)
        reader = _PartReader(self, key, inner, found, ticket)
        if given is None:
            reader.confirm()
        return reader

    def _opened_below(
        self, key: str, part: tuple[int, int] | None, version: object | None
    ) -> ValueReader | None:
        return self.inner.reader().open(key, part if version is None else part or (0, 1), version)

    def _reader(self, scratch: Scratch | None, limit: int) -> Reader:
        return _CacheReader(self, scratch, limit)

    def _asked_into(self, key: str, start: int, out: memoryview) -> tuple[int | None, int] | None:
        """A part of a value of a store that knows no versions; kept if it is all of it."""
        self._shared.count(0, 1)
        began, ticket = self._clock(), self._kept.ticket(key)
        data = self.inner.get(key, (start, len(out) + 1))
        if data is None:
            return None
        _copy(data, out)
        if start == 0 and len(data) <= len(out) and ticket is not None:
            self._kept.keep(key, WHOLE, Entry(bytes(data), None, len(data), began), ticket)
        return None, len(data)

    # Changes that lose no others

    def _writing(self, keys: Collection[str]) -> AbstractContextManager[None]:
        return self._kept.writing(list(keys))

    def _compare_and_set(self, key: str, version: object, value: bytes | None) -> bool:
        with self._writing([key]):
            return super()._compare_and_set(key, version, value)

    def _writer(self, scratch: Scratch | None, limit: int) -> Writer:
        return _CacheWriter(self, super()._writer(scratch, limit))

    # Writeable

    def _set(self, key: str, value: bytes) -> None:
        with self._writing([key]):
            super()._set(key, value)

    def _set_partial_values(self, parts: dict[str, Parts]) -> None:
        with self._writing(parts):
            super()._set_partial_values(parts)

    def _copy_values(self, pairs: Sequence[tuple[str, str]]) -> None:
        with self._writing([target for _, target in pairs]):
            super()._copy_values(pairs)

    def _erase(self, key: str) -> None:
        with self._writing([key]):
            super()._erase(key)

    def _erase_values(self, keys: Sequence[str]) -> None:
        with self._writing(keys):
            super()._erase_values(keys)

    def _erase_prefix(self, prefix: str) -> None:
        with self._kept.writing_below(prefix):
            super()._erase_prefix(prefix)


class _CacheReader(Reader):
    """Reads what is kept, or asks for it."""

    _store: CacheStore

    def get(self, key: str) -> Buffer | None:
        return self._store._whole(key, self._limit)

    def get_ranges(
        self, key: str, starts: Sequence[int], lengths: Sequence[int]
    ) -> tuple[int | None, list[Buffer]] | None:
        store = self._store

        def below() -> tuple[int | None, list[Buffer]] | None:
            store._shared.count(0, len(starts))
            return store.inner.reader().get_ranges(key, starts, lengths)

        def read(reader: ValueReader) -> tuple[int | None, list[Buffer]]:
            parts = reader.read_ranges(starts, lengths)
            return reader.size, parts

        first = (starts[0], lengths[0]) if starts else None
        return store._parts(key, first, len(starts), read, below)

    def get_into(self, key: str, start: int, out: memoryview) -> tuple[int | None, int] | None:
        def read(reader: ValueReader) -> tuple[int | None, int]:
            # Where the size is not known, one byte more tells whether the value goes on.
            part = reader.read(start, len(out) + (reader.size is None))
            _copy(part, out)
            return reader.size, len(part) if reader.size is None else min(len(part), len(out))

        store = self._store
        return store._parts(key, (start, len(out)), 1, read, lambda: store._asked_into(key, start, out))

    def open(
        self, key: str, part: tuple[int, int] | None = None, version: object | None = None
    ) -> ValueReader | None:
        return self._store._open(key, part, version)


class _CacheWriter(Writer):
    """Has what is kept forgotten that is written."""

    _store: CacheStore

    def __init__(self, store: CacheStore, inner: Writer) -> None:
        super().__init__(store)
        self._inner = inner

    def set(self, key: str, pieces: Sequence[Buffer]) -> None:
        with self._store._writing([key]):
            self._inner.set(key, pieces)

    def update(self, key: str, change: Change) -> None:
        with self._store._writing([key]):
            self._inner.update(key, change)

    def close(self) -> None:
        self._inner.close()


def _within(value: Buffer | None, limit: int) -> Buffer | None:
    if value is not None and len(value) > limit:
        raise OversizedError(len(value), limit)
    return value


def _copy(data: Buffer, out: memoryview) -> int:
    count = min(len(data), len(out))
    out[:count] = memoryview(data)[:count]
    return count


def _begun(parts: Iterator[Buffer]) -> Iterator[Buffer]:
    """The same, the first of which has been asked for."""
    return itertools.chain([next(parts)], parts)


class _KeptReader(BytesReader):
    """Parts of a whole value that is kept."""

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry.value)
        self._entry = entry

    @property
    def version(self) -> object | None:
        return self._entry.version


class _PartReader(ValueReader):
    """Parts of a value, each of which is kept, of one version all of them.

    Parameters
    ----------
    store : CacheStore
    key : str
    inner : ValueReader or None
        The value opened in the store below; None until a part is wanted that is not kept.
    head : Entry
        The version and the size of the value.
    ticket : object or None
        Taken before that was found out.
    """

    def __init__(
        self, store: CacheStore, key: str, inner: ValueReader | None, head: Entry, ticket: object | None
    ) -> None:
        self._store = store
        self._key = key
        self._inner = inner
        self._head = head
        self._ticket = ticket
        self._confirmed = inner is None
        self._told = False

    @property
    def size(self) -> int | None:  # type: ignore[override]
        """Size of the whole value in bytes, if it is known without a request."""
        self._told = True
        if self._head.size is None and self._inner is not None:
            return self._inner.size
        return self._head.size

    @property
    def version(self) -> object | None:
        self._told = True
        return self._head.version

    def confirm(self) -> None:
        """Note that the value was of this version when it was opened."""
        self._confirmed = True
        if self._store._waits and self._ticket is not None and self._head.version is not None:
            self._store._kept.keep(self._key, HEAD, self._head, self._ticket)

    def _kept_part(self, start: int, length: int | None) -> Buffer | None:
        if length is not None and length < 0:
            raise negative_length(length)
        if not self._confirmed or self._head.version is None:
            return None
        entry = self._store._kept.find(self._key, (start, length))
        if entry is None or entry.version != self._head.version:
            return None
        self._told = True
        return entry.value

    def _source(self, start: int, length: int | None) -> ValueReader:
        """The value in the store below."""
        if self._inner is None:
            part = start, 1 if length is None or length > _FAR else length
            version = self._head.version
            reader = None
            try:
                reader = self._store.inner.reader().open(self._key, part, version)
            except ChangedError:
                self._changed()
            if reader is None or reader.version != version:
                if reader is not None:
                    reader.close()
                self._changed()
            self._inner = reader
        return self._inner

    def _changed(self) -> NoReturn:
        self._store._kept.drop(self._key)
        raise ChangedError(
            f"key '{self._key}' of {self._store} was replaced or erased while parts of it were read"
        )

    def _read(self, start: int, length: int | None, read: Callable[[ValueReader], Result]) -> Result:
        """What the store below gives; only of the version that was told of."""
        try:
            found = read(self._source(start, length))
        except ChangedError:
            self._store._kept.drop(self._key)
            if self._told:
                raise
            # Nobody has seen anything of the old version.
            self.close()
            began = self._store._clock()
            self._ticket = self._store._kept.ticket(self._key)
            self._inner = self._store.inner.reader().open(self._key)
            if self._inner is None:
                raise
            self._head = Entry(b"", self._inner.version, self._inner.size, began)
            self._confirmed = False
            found = read(self._inner)
        if not self._confirmed:
            self.confirm()
        self._told = True
        return found

    def _keep(self, start: int, length: int | None, part: Buffer) -> None:
        head, inner = self._head, self._inner
        if self._ticket is None or inner is None:
            return
        size = inner.size if head.size is None else head.size
        is_whole = start == 0 and size == len(part)
        if head.version is None and not is_whole:
            return
        entry = Entry(bytes(part), head.version, size, head.checked)
        self._store._kept.keep(self._key, WHOLE if is_whole else (start, length), entry, self._ticket)

    def read(self, start: int, length: int | None = None) -> Buffer:
        part = self._kept_part(start, length)
        self._store._shared.count(part is not None, part is None)
        if part is None:
            part = self._read(start, length, lambda inner: inner.read(start, length))
            self._keep(start, length, part)
        return part

    def read_ranges(self, starts: Sequence[int], lengths: Sequence[int]) -> list[Buffer]:
        return list(self.iter_ranges(starts, lengths))

    def iter_ranges(self, starts: Sequence[int], lengths: Sequence[int]) -> Iterator[Buffer]:
        kept = [self._kept_part(start, length) for start, length in zip(starts, lengths, strict=True)]
        missing = [at for at, part in enumerate(kept) if part is None]
        self._store._shared.count(len(kept) - len(missing), len(missing))
        parts: Iterator[Buffer] = iter(())
        if missing:
            first = missing[0]
            wanted = [starts[at] for at in missing], [lengths[at] for at in missing]
            parts = self._read(
                starts[first], lengths[first], lambda inner: _begun(inner.iter_ranges(*wanted))
            )
        for at, part in enumerate(kept):
            if part is None:
                try:
                    part = next(parts)
                except ChangedError:
                    self._store._kept.drop(self._key)
                    raise
                self._keep(starts[at], lengths[at], part)
            yield part

    def read_into(self, start: int, out: memoryview) -> int:
        return _copy(self.read(start, len(out)), out)

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()
