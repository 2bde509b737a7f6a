"""A store that keeps values of a slow store, in memory or in another store.

The cache holds entries: whole values, parts of values, and heads, which are the version and the size of a
value of which parts are kept. An entry in a store begins with a checksum of everything that follows and of
its name, with the version of the whole value and with the time at which it was current.

A number counts the writes through the cache. Who reads a value keeps it only if the number is what it was
before the read, so that a slow read cannot bring back a value that was replaced meanwhile.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import itertools
import math
import os
import stat
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self, TypeGuard
from urllib.parse import quote

import msgspec
import numpy as np
from isal import isal_zlib

from xzarr3._types import Buffer, ByteRange, Found, Part
from xzarr3.errors import ArgumentError, ChangedError, StoreError, StorePermissionError, printable
from xzarr3.quantities import byte_count
from xzarr3.stores.base import Facts, Store
from xzarr3.stores.interned import interned, is_plain, reduced
from xzarr3.stores.keys import below_document
from xzarr3.stores.local.store import LocalStore
from xzarr3.stores.locks import key_lock
from xzarr3.stores.memory import MemoryStore
from xzarr3.stores.open import StoreLike
from xzarr3.stores.values import (
    ANY,
    NO_LIMIT,
    BytesValue,
    Into,
    Value,
    check_range,
    check_size,
    cut,
    joined,
    part_of,
)
from xzarr3.stores.wrappers import WrapperStore

clock = time.time

FOLDER = "xzarr3-cache-3"
"""The prefix of all entries in a store, which belongs to caches alone."""
_WORD = 4  # Bytes of a checksum or of a length.
_OVERHEAD = 400  # About what an entry takes besides its bytes.
_PATIENCE = 0.1  # Seconds that a reader waits in order to keep a value.
_DEADLINE = 30.0  # Seconds that a writer waits in order to forget one.
_SOME = 8  # Room is made each time that this part of the limit was written.
_WRITES = f"{FOLDER}/writes"
_WHOLE, _HEAD = "whole", "head"
_turns = itertools.count()


class _Entry(NamedTuple):
    """A kept value, part or head; never modified."""

    value: Buffer
    version: object | None
    """Version of the whole value; None if the store could not tell."""
    size: int | None
    """Size of the whole value in bytes, if known."""
    checked: float
    """Time at which the value was certainly current: just before it was requested."""


class _Kept:
    """The entries of a cache in a store. Those that this process does not use make room for new ones.

    Parameters
    ----------
    store : Store
    max_bytes : int
    """

    def __init__(self, store: Store, max_bytes: int) -> None:
        self.max_bytes, self.pid, self.hits, self.misses = max_bytes, os.getpid(), 0, 0
        self._store = store.with_traits(conflict_deadline=_DEADLINE)
        self._hasty = store.with_traits(conflict_deadline=_PATIENCE)
        self._store.reports = self._hasty.reports = False  # Nobody asked for these requests.
        self._used: dict[str, int] = {}
        self._written = max_bytes  # Since room was made.

    def count(self, is_kept: bool) -> None:
        """Count a request that was served from the cache, or one that was not."""
        self.hits += is_kept
        self.misses += not is_kept

    def sizes(self) -> dict[str, int]:
        """How many bytes each entry takes."""
        keys = [key for key in self._store.list(f"{FOLDER}/") if key != _WRITES]
        sizes = (getattr(key, "size", None) or self._store.getsize(key) or 0 for key in keys)
        return {key: size + _OVERHEAD for key, size in zip(keys, sizes, strict=True)}

    def number(self) -> bytes | None:
        """Changes with each write; None if nothing can be kept."""
        with contextlib.suppress(StoreError):
            return bytes(self._store.get(_WRITES) or b"")
        return None

    def find(self, name: str) -> _Entry | None:
        """The entry of a name, of any age."""
        with contextlib.suppress(StoreError):
            data = self._store.get(name)
            entry = None if data is None else _unpacked(name, data)
            if entry is not None:
                self._used[name] = next(_turns)
            elif data is not None:
                self._store.erase(name)  # It is damaged.
            return entry
        return None

    def keep(self, name: str, entry: _Entry, number: bytes | None) -> None:
        """Keep an entry, unless it is too large or the number of writes has changed."""
        pieces = _packed(name, entry)
        size = sum(map(len, pieces)) + _OVERHEAD
        if size > self.max_bytes or number is None:
            return
        with contextlib.suppress(StoreError):  # The disk may be full: a value that is not kept is read again.
            self._written += size
            if self._written > self.max_bytes // _SOME:
                self._written = size
                self._make_room((self.max_bytes - size) * (_SOME - 1) // _SOME)
            with self._hasty.exclusive(_WRITES):
                if self.number() == number:
                    self._store.put(name, pieces)
                    self._used[name] = next(_turns)

    def _make_room(self, limit: int) -> None:
        sizes, used = self.sizes(), self._used
        self._used = {name: used[name] for name in sizes if name in used}
        excess = sum(sizes.values()) - limit
        for name in sorted(sizes, key=lambda name: (_is_of_document(name), used.get(name, -1))):
            if excess > 0:
                self._store.erase(name)
                excess -= sizes[name]

    def forget(self, names: Sequence[str], prefix: str | None = None) -> None:
        """Count a write, and drop what it changes; with a prefix, also every entry below it."""
        with self._store.exclusive(_WRITES):
            self._store.put(_WRITES, [os.urandom(16)])
            self._store.erase(*names)
            if prefix is not None:
                self._store.erase_prefix(prefix)


def _kept_version(version: object) -> object | None:
    """A version as an entry has it; None for one that text does not bring back, such as NaN."""
    with contextlib.suppress(ValueError):
        if is_plain(version) and ast.literal_eval(repr(version)) == version:
            return version
    return None


def _is_of_document(name: str) -> bool:
    """Whether an entry is a document: those go last, as they tell whether chunks are too old."""
    return below_document(name.split("/")[-2].removeprefix("k")) is not None


def _packed(name: str, entry: _Entry) -> list[Buffer]:
    text = repr((entry.version, entry.size, entry.checked)).encode()
    head = len(text).to_bytes(_WORD, "little") + text
    return [_sum(name, head, entry.value) + head, entry.value]


def _unpacked(name: str, data: Buffer) -> _Entry | None:
    """The entry in a stored value; None if it is damaged."""
    view = memoryview(data)
    if view[:_WORD] != _sum(name, view[_WORD:]):
        return None
    end = 2 * _WORD + int.from_bytes(view[_WORD : 2 * _WORD], "little")
    return _Entry(view[end:], *_head(bytes(view[2 * _WORD : end])))


def _sum(name: str, *parts: Buffer) -> bytes:
    """A checksum of the bytes of an entry and of its name."""
    found = isal_zlib.crc32(name.encode())
    for part in parts:
        found = isal_zlib.crc32(part, found)
    return found.to_bytes(_WORD, "little")


@functools.lru_cache(1024)
def _head(text: bytes) -> tuple[object, int | None, float]:
    return ast.literal_eval(text.decode())  # type: ignore[no-any-return]  # of anything plain


class CacheStore(WrapperStore):
    """Keeps values of another store, in memory or in a directory that processes share.

    The cache keeps chunks. Of values that are read in parts, such as shards, it keeps these parts, if the
    inner store tells versions apart. Absent values are requested every time. Lists are not kept. Entries that
    were not used for long make room for new ones.

    Documents are requested each time that they are needed. If one has changed, nothing is kept any more
    of what is below it, so that old chunks are never read as those of a new array. A kept chunk may be up
    to ``max_age`` seconds older than the chunk in the inner store, if another writer changes it there
    without any change of a document. A kept value beyond that age is checked by its version, where that
    is quicker than reading it again, or else read again. Writes through this cache take effect at once;
    with a directory, so do writes through any cache in that directory. Whatever changes a value by what
    it was, and :func:`~xzarr3.stores.versioned`, asks the inner store. Values that are read one after the
    other may be of different ages, and so may parts of one value that several threads read. What a writer
    was storing through this cache when it was killed counts as the change of another writer.

    Threads that want the same value while it is not kept wait for the first one to read it. With a
    ``max_age`` of 0 each thread reads it itself. A value that is read while any value is written through the
    cache is not kept.

    A zip that is being written, and a session of Icechunk that can be written, are refused: what they hold
    may still be discarded.

    Pickling the store does not include kept values. Unpickled copies in one process share a cache, and all
    processes with the same directory share that directory. The inner store checks credentials; the cache does
    not. Only this user may enter the directory.

    Parameters
    ----------
    store : Store, path or URL
    max_bytes : int or str
        Limit on all kept values, such as ``"1 GiB"``; for a directory, of all processes together, each of
        which may exceed it by an eighth.
    directory : str, path or Store, optional
        Where to keep values, below ``xzarr3-cache-3``: a directory, which should be on a local disk, or any
        store that can be written and listed. Without it values are kept in memory. Processes that share a
        store without locks may read a value for ``max_age`` that was replaced while it was read.
    max_age : float or None
        Seconds. With 0 every value is checked or read again; with None kept chunks never expire.

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
    >>> store.get("a") == store.get("a") == b"old", store.hits, store.misses
    (True, 1, 1)
    >>> slow.set("a", b"new")
    >>> bytes(store.get("a"))
    b'old'
    >>> store.set("a", b"newer")
    >>> bytes(store.get("a"))
    b'newer'
    """

    _held: _Kept | None = None
    _not_pickled = Store._not_pickled | {"_held"}

    def __init__(
        self,
        store: StoreLike,
        *,
        max_bytes: int | str = 2**28,
        directory: str | os.PathLike[str] | Store | None = None,
        max_age: float | None = 300.0,
    ) -> None:
        super().__init__(store)
        if self.inner.writeable and self.traits.visible != "at once":
            raise ArgumentError(
                f"a cache of {self.inner}, whose values others do not see before it is closed or committed; "
                "close or commit it first, and open it anew to read it"
            )
        self.max_bytes, self.max_age = byte_count(max_bytes, "max_bytes"), max_age
        is_age = isinstance(max_age, (int, float, np.number)) and 0 <= max_age < math.inf
        if max_age is not None and not is_age:
            raise ArgumentError(f"max_age={max_age!r}; accepted: None or a number of seconds, 0 or more")
        self.directory = directory
        if directory is not None and not isinstance(directory, Store):
            self.directory = os.path.abspath(os.path.expanduser(os.fspath(directory)))
        is_current = max_age == 0 and self.traits.tells_changes
        self.traits = msgspec.structs.replace(self.traits, tells_changes=is_current)
        self._token = uuid.uuid4().hex
        named = hashlib.blake2b(repr(self.inner.identity).encode(), digest_size=20).hexdigest()
        self._base = f"{FOLDER}/{named}/"
        _ = self._kept  # An error about the directory belongs here.

    @property
    def _kept(self) -> _Kept:
        """What is kept, for all copies of this store in this process; a forked child begins anew."""
        if self._held is None or self._held.pid != os.getpid():
            self._held = interned((CacheStore, self._token, os.getpid()), self._make, keep=False)
        return self._held

    def _make(self) -> _Kept:
        place = MemoryStore() if self.directory is None else self.directory
        return _Kept(place if isinstance(place, Store) else _private(str(place)), self.max_bytes)

    def __reduce__(self) -> tuple[object, ...]:
        return reduced(self, CacheStore)

    def __repr__(self) -> str:
        where = "" if self.directory is None else f" in '{printable(str(self.directory))}'"
        return f"<{type(self).__name__} {self.inner}{where}>"

    def _facts(self) -> Facts:
        from xzarr3.display.units import counted, size

        kept = f"{size(self.size)} of at most {size(self.max_bytes)}"
        asked = counted(self.hits + self.misses, "request")
        return [*super()._facts(), ("Kept", kept), ("Hits", f"{self.hits:,} of {asked}")]

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
        """Bytes kept; for a directory, of all processes."""
        return sum(self._kept.sizes().values())

    def clear(self) -> None:
        """Discard every kept value of this store."""
        self._kept.forget((), self._base)

    @property
    def told_apart(self) -> object:
        # Values kept by one cache may be older than those kept by another.
        return super().told_apart if self.max_age == 0 else str(self.directory or self._token)

    def __dask_tokenize__(self) -> object:
        token = super().__dask_tokenize__()
        return token if self.max_age == 0 else (token, uuid.uuid4().hex)

    def _current(self) -> Self:
        """The same cache, which checks or reads again every value."""
        made = super()._current()
        if self.max_age == 0:
            return made
        made = made.with_traits(tells_changes=made.inner.traits.tells_changes)
        made.max_age = 0
        return made

    def versions(self, keys: Sequence[str]) -> Sequence[object | None]:
        return super().versions(keys) if self.max_age == 0 else [None] * len(keys)

    # Kept values

    def _named(self, key: str, part: str) -> str:
        """The name of an entry. That of a key begins with that of a prefix, if the key does."""
        names = [f"k{quote(name, safe='', errors='surrogatepass')}" for name in key.split("/")]
        return f"{self._base}{'/'.join(names)}/{part}"

    def _find(self, key: str, part: str = _WHOLE) -> _Entry | None:
        return self._kept.find(self._named(key, part))

    def _keep(self, key: str, part: str, entry: _Entry, number: bytes | None) -> None:
        entry = entry._replace(version=_kept_version(entry.version))
        has_version = entry.version is not None  # Without one, parts could be of several values.
        if (has_version and part != _HEAD) or (self.max_age != 0 and (has_version or part == _WHOLE)):
            self._kept.keep(self._named(key, part), entry, number)

    def _forget(self, *keys: str, prefix: str | None = None) -> None:
        below = self._base if prefix == "" else None
        if prefix:
            below = self._named(prefix.removesuffix("/"), "")
        # Without the head, the parts are not used.
        self._kept.forget([self._named(key, part) for key in keys for part in (_WHOLE, _HEAD)], below)

    @contextlib.contextmanager
    def _writing(self, *keys: str, prefix: str | None = None) -> Iterator[None]:
        self._forget(*keys, prefix=prefix)
        try:
            yield
        finally:
            self._forget(*keys, prefix=prefix)

    def _is_fresh(self, entry: _Entry | None, key: str) -> TypeGuard[_Entry]:
        if entry is None or below_document(key) is not None:
            return False
        return self.max_age is None or 0 <= clock() - entry.checked < self.max_age

    def _asked(self, key: str, limit: int = NO_LIMIT, *, anew: bool = False) -> _Entry | None:
        """The value in the inner store."""
        began, number, stale = clock(), self._kept.number(), self._find(key)
        if not anew and self._is_fresh(stale, key):  # Another thread has just read it.
            return stale
        found = self._read(key, limit, began, None if anew else stale)
        below = below_document(key)
        if below is not None and stale is not None and (found is None or found.value != stale.value):
            self._forget(key, prefix=below)  # Chunks of before are not decoded by the document of now.
            number = self._kept.number()
        if found is not None:
            self._keep(key, _WHOLE, found, number)
        elif anew or stale is not None:
            self._forget(key)
        return found

    def _read(self, key: str, limit: int, began: float, stale: _Entry | None = None) -> _Entry | None:
        """Read a value and its version with one request; a stale one if its version is still there."""
        first: ByteRange = (0, None if limit == NO_LIMIT else limit)
        if stale is not None and stale.version is not None:
            is_large = len(stale.value) > self.inner.traits.request_bytes
            # Asking for the version is quicker than reading such a value.
            first = (0, 1) if is_large or self.inner.concurrency == 1 else first
        # Some servers cannot send parts.
        with contextlib.nullcontext() if first == (0, None) else contextlib.suppress(StoreError):
            value = self.inner.open(key, first)
            if value is None:
                return None
            with value:
                if first == (0, 1) and stale is not None and value.version == stale.version:
                    return stale._replace(checked=began)
                check_size(value.size or 0, limit)
                data = bytes(value.read(0, value.size))
                check_size(len(data), limit)
                return _Entry(data, value.version, len(data), began)
        found = self.inner.get(key, limit=limit)
        return None if found is None else _Entry(bytes(found), None, len(found), began)

    # The contract

    def get(self, key: str, byte_range: Part = None, *, into: Into = None, limit: int = NO_LIMIT) -> Found:
        entry = self._find(key)
        is_fresh = self._is_fresh(entry, key)
        if byte_range is not None and not is_fresh:
            return part_of(self, key, byte_range)
        self._kept.count(is_fresh)
        if byte_range is not None and entry is not None:
            return cut(entry.value, byte_range)
        if not is_fresh:
            # Of several threads that want the same value, only the first one reads it.
            with key_lock(self._token, key) if self.max_age != 0 else contextlib.nullcontext():
                entry = self._asked(key, limit)
        return None if entry is None else entry.value

    def open(self, key: str, first: Part = None, version: object = None) -> Value | None:
        if first == (0, None):  # It is asked of the place itself.
            found = self._asked(key, anew=True)
            return None if found is None else BytesValue(found.value, found.version)
        began, number, entry = clock(), self._kept.number(), self._find(key)
        if self._is_fresh(entry, key):
            return self._hit(entry)
        head = self._find(key, _HEAD)
        if self._is_fresh(head, key):
            return _Parts(self, key, None, head, number)
        value = self.inner.open(key, first)
        if value is None:
            if entry is not None or head is not None:
                self._forget(key)
            return None
        if entry is not None and value.version is not None and value.version == entry.version:
            value.close()
            self._keep(key, _WHOLE, entry._replace(checked=began), number)
            return self._hit(entry)
        if isinstance(value, BytesValue):  # It is in memory already.
            self._kept.count(False)
            self._keep(key, _WHOLE, _Entry(bytes(value.data), value.version, value.size, began), number)
            return value
        head = _Entry(b"", value.version, value.size, began)
        if value.version is not None:
            self._keep(key, _HEAD, head, number)
        return _Parts(self, key, value, head, number)

    def _hit(self, entry: _Entry) -> Value:
        self._kept.count(True)
        return BytesValue(entry.value, entry.version)

    def put(self, key: str, pieces: Sequence[Buffer] | None, *, if_version: object = ANY) -> bool:
        with self._writing(key):
            is_stored = super().put(key, pieces, if_version=if_version)
        if is_stored and pieces is not None and below_document(key) is not None:
            data = joined(pieces)  # What others make of it is compared with this.
            self._keep(key, _WHOLE, _Entry(data, None, len(data), clock()), self._kept.number())
        return is_stored

    def erase(self, *keys: str) -> None:
        with self._writing(*keys):
            super().erase(*keys)

    def erase_prefix(self, prefix: str) -> None:
        with self._writing(prefix=prefix):
            super().erase_prefix(prefix)

    def copy(self, source: str, target: str) -> None:
        with self._writing(target):
            super().copy(source, target)

    @contextlib.contextmanager
    def exclusive(self, key: str) -> Iterator[None]:
        with super().exclusive(key):
            self._forget(key)  # What changes a value by what it was asks the inner store.
            yield


class _Parts(Value):
    """Parts of one version of a value; each part read is kept.

    Parameters
    ----------
    store : CacheStore
    key : str
    inner : Value or None
        The open value in the inner store; None until a part is needed that is not kept.
    head : _Entry
        The version and the size of the value.
    number : bytes or None
        The number of writes before the head was found.
    """

    def __init__(
        self, store: CacheStore, key: str, inner: Value | None, head: _Entry, number: bytes | None
    ) -> None:
        self._store, self._key, self._inner, self._head, self._number = store, key, inner, head, number
        self.size, self.version = head.size, head.version

    def _find(self, start: int, length: int | None) -> Buffer | None:
        check_range((start, length))
        entry = None if self.version is None else self._store._find(self._key, f"{start}-{length}")
        return None if entry is None or entry.version != self.version else entry.value

    def _below(self, start: int, length: int | None) -> Value:
        """The open value in the inner store, of the version in the head."""
        if self._inner is None:
            value = self._store.inner.open(self._key, (start, 1 if length is None else length), self.version)
            if value is None or value.version != self.version:
                if value is not None:
                    value.close()
                raise ChangedError(f"key '{self._key}' of {self._store} was replaced while it was read")
            self._inner = value
        return self._inner

    def _keep(self, start: int, length: int | None, part: Buffer) -> None:
        is_whole = start == 0 and len(part) == self.size
        if is_whole or self.version is not None:
            entry = _Entry(bytes(part), self.version, self.size, self._head.checked)
            name = _WHOLE if is_whole else f"{start}-{length}"
            self._store._keep(self._key, name, entry, self._number)

    def read(self, start: int, length: int | None = None) -> Buffer:
        return self.read_ranges([start], [length])[0]

    def read_ranges(self, starts: Sequence[int], lengths: Sequence[int | None]) -> list[Buffer]:
        wanted = [*zip(starts, lengths, strict=True)]
        kept = [self._find(*each) for each in wanted]
        for part in kept:
            self._store._kept.count(part is not None)
        missing = [each for each, part in zip(wanted, kept, strict=True) if part is None]
        found = self._missing(missing) if missing else []
        for each, part in zip(missing, found, strict=True):
            self._keep(*each, part)
        rest = iter(found)
        return [next(rest) if part is None else part for part in kept]

    def _missing(self, wanted: Sequence[ByteRange]) -> list[Buffer]:
        try:
            below = self._below(*wanted[0])
            if len(wanted) == 1:
                return [below.read(*wanted[0])]
            return below.read_ranges([start for start, _ in wanted], [length or 0 for _, length in wanted])
        except ChangedError:
            self._store._forget(self._key)
            raise

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()


def _private(directory: str) -> LocalStore:
    """The store of a cache in a directory that only this user may enter."""
    folder = os.path.join(directory, FOLDER)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        info = os.lstat(folder)
        is_private = os.name == "nt" or (info.st_uid, info.st_mode & 0o077) == (os.getuid(), 0)
        if not (stat.S_ISDIR(info.st_mode) and is_private):
            raise PermissionError(13, f"it belongs to user {info.st_uid} with mode {info.st_mode:#o}")
    except OSError as error:
        raise StorePermissionError(
            f"cannot keep a cache in '{folder}': {error.strerror}; give a directory of this user, mode 0o700"
        ) from error
    return LocalStore(directory)
