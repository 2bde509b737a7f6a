"""Opens shards for reading: reads the index of a shard once and keeps it.

A kept index is used only while the shard has the version that the index was read from.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from xzarr3._types import Buffer
from xzarr3.codecs.sharding import Shard
from xzarr3.stores import ValueReader
from xzarr3.stores.locks import fork_safe, key_lock
from xzarr3.stores.readers import BytesReader
from xzarr3.tracing.counters import add, process

MOST_KEPT = 2**25
"""Bytes of the indexes that are kept at most."""
_ENTRY = 1024  # Bytes that a kept index takes besides its numbers.

Index: TypeAlias = npt.NDArray[np.uint64]


class _Indexes:
    """The shard indexes that this process read last, by store, key and version."""

    def __init__(self) -> None:
        self._lock = fork_safe(threading.Lock())
        self._kept: OrderedDict[object, tuple[object, Index]] = OrderedDict()
        self._size = 0

    def get(self, key: object, version: object) -> Index | None:
        with self._lock:
            found = self._kept.get(key)
            if found is None or found[0] != version:
                return None
            self._kept.move_to_end(key)
        if process.collectors:
            add({"indexes_kept": 1})
        return found[1]

    def version(self, key: object) -> object | None:
        """The version of the kept index, None if none is kept."""
        with self._lock:
            found = self._kept.get(key)
            return None if found is None else found[0]

    def forget(self, key: object) -> None:
        with self._lock:
            old = self._kept.pop(key, None)
            if old is not None:
                self._size -= old[1].nbytes + _ENTRY

    def keep(self, key: object, version: object, index: Index) -> None:
        with self._lock:
            old = self._kept.pop(key, None)
            self._size += (0 if old else _ENTRY) + index.nbytes - (old[1].nbytes if old else 0)
            self._kept[key] = version, index
            while self._size > MOST_KEPT:
                _, (_, dropped) = self._kept.popitem(last=False)
                self._size -= dropped.nbytes + _ENTRY


_indexes = _Indexes()


class OpenShards:
    """Open shards that several threads read pieces of. Each is opened, and its index read, only once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: dict[str, threading.Lock] = {}
        self._open: dict[str, tuple[ValueReader, Index] | None] = {}
        self._readers = contextlib.ExitStack()

    def get(
        self, key: str, opening: Callable[[], tuple[ValueReader, Index] | None]
    ) -> tuple[ValueReader, Index] | None:
        """An open shard and its index, None if the shard is absent."""
        with self._lock:
            lock = self._keys.setdefault(key, threading.Lock())
        with lock:
            if key not in self._open:
                found = self._open[key] = opening()
                if found is not None:
                    self._readers.callback(found[0].close)
            return self._open[key]

    def forget(self, key: str) -> None:
        """Forget a shard that was replaced, so that the next :meth:`get` opens it again."""
        with self._lock:
            self._keys.pop(key, None)
            self._open.pop(key, None)

    def close(self) -> None:
        """Close all shards."""
        self._readers.close()


class Within(ValueReader):
    """A part of a stored value, with the interface of a whole value."""

    def __init__(self, reader: ValueReader, offset: int, size: int) -> None:
        self._reader = reader
        self._offset = offset
        self.size: int = size

    def read(self, start: int, length: int | None = None) -> Buffer:
        if start < 0:
            start = max(self.size + start, 0)
        left = max(self.size - start, 0)
        return self._reader.read(self._offset + start, left if length is None else min(length, left))


def shard_index(shard: Shard, reader: ValueReader, store: object, key: str, *, keeps: bool = True) -> Index:
    """The index of a shard. It is kept and read again only after the version of the shard has changed.

    ``store`` is the identity of the store. Where the store tells no versions, the index is always read. With
    ``keeps=False`` an index that is read is not kept, so that reads go on as if nobody had looked.
    """
    version = reader.version
    if version is None:
        return shard.decode_index(reader.read(shard.index_start, shard.index_size))
    name = _index_name(shard, store, key)
    index = _indexes.get(name, version)
    if index is None:
        index = shard.decode_index(reader.read(shard.index_start, shard.index_size))
        index.flags.writeable = False
        if keeps:
            _indexes.keep(name, version, index)
    return index


def forget_index(shard: Shard, store: object, key: str) -> None:
    """Forget the index of a shard that has changed."""
    _indexes.forget(_index_name(shard, store, key))


def index_version(shard: Shard, store: object, key: str) -> object | None:
    """The version of the shard that the kept index was read from; None if no index is kept."""
    return _indexes.version(_index_name(shard, store, key))


def index_lock(shard: Shard, store: object, key: str) -> AbstractContextManager[object]:
    """Lets one of several threads that want a shard request its index; the others find it kept."""
    name = _index_name(shard, store, key)
    return contextlib.nullcontext() if _indexes.version(name) is not None else key_lock(name, key)


def _index_name(shard: Shard, store: object, key: str) -> object:
    # The layout is part of the name: another document may describe the same bytes differently.
    return store, key, shard.index_layout


def within(reader: ValueReader, offset: int, size: int) -> ValueReader:
    if isinstance(reader, BytesReader) and offset + size <= reader.size:
        return BytesReader(reader.read(offset, size))
    return Within(reader, offset, size)
