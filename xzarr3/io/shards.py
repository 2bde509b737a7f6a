"""Opens shards for reading: reads the index of a shard once and keeps it.

A kept index is used only while the shard has the version that the index was read from.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from xzarr3.codecs.sharding import Shard
from xzarr3.stores.base import Store
from xzarr3.stores.locks import fork_safe, key_lock
from xzarr3.stores.values import Value
from xzarr3.tracing.counters import add, process

MOST_KEPT = 2**25
"""Bytes of the indexes that are kept at most."""
_ENTRY = 1024  # Bytes that a kept index takes besides its numbers.

Index: TypeAlias = npt.NDArray[np.uint64]
Opened: TypeAlias = tuple[Value, Index]
"""An open shard and its index."""


class _Indexes:
    """The shard indexes that this process read last, by store, key and layout, each with its version."""

    def __init__(self) -> None:
        self._lock = fork_safe(threading.Lock())
        self._kept: OrderedDict[object, tuple[object, Index]] = OrderedDict()
        self._size = 0

    def get(self, name: object) -> tuple[object, Index] | tuple[None, None]:
        with self._lock:
            found = self._kept.get(name)
            if found is None:
                return None, None
            self._kept.move_to_end(name)
            return found

    def keep(self, name: object, version: object, index: Index | None) -> None:
        """Keep an index in place of an earlier one; with None, forget the earlier one."""
        with self._lock:
            _, old = self._kept.pop(name, (None, None))
            self._size -= 0 if old is None else old.nbytes + _ENTRY
            if index is not None:
                self._kept[name] = version, index
                self._size += index.nbytes + _ENTRY
            while self._size > MOST_KEPT:
                _, (_, dropped) = self._kept.popitem(last=False)
                self._size -= dropped.nbytes + _ENTRY


_indexes = _Indexes()


def shard_index(shard: Shard, value: Value, store: object, key: str, *, keeps: bool = True) -> Index:
    """The index of a shard. It is kept and read again only after the version of the shard has changed.

    ``store`` is the identity of the store. Where the store tells no versions, the index is always read. With
    ``keeps=False`` an index that is read is not kept, so that reads go on as if nobody had looked.
    """
    version, name = value.version, _name(shard, store, key)
    before, index = (None, None) if version is None else _indexes.get(name)
    if index is not None and before == version:
        if process.collectors:
            add({"indexes_kept": 1})
        return index
    index = shard.decode_index(value.read(shard.index_start, shard.index_size))
    if version is not None and keeps:
        index.flags.writeable = False
        _indexes.keep(name, version, index)
    return index


def open_shard(shard: Shard, store: Store, identity: object, key: str, *, waits: bool) -> Opened | None:
    """Open a shard and read its index unless it is kept; None if the shard is absent.

    ``waits`` tells whether the store has latency: the index is then requested with the same request.
    """
    name, part = _name(shard, identity, key), (shard.index_start, shard.index_size) if waits else None
    version = _indexes.get(name)[0] if waits else None
    # One of several threads that want a shard requests its index; the others find it kept.
    with key_lock(name, key) if waits and version is None else contextlib.nullcontext():
        value = store.open(key, part, _indexes.get(name)[0] if waits else None)
        try:
            return None if value is None else (value, shard_index(shard, value, identity, key))
        except BaseException:
            if value is not None:
                value.close()
            raise


def forget_index(shard: Shard, store: object, key: str) -> None:
    """Forget the index of a shard that has changed."""
    _indexes.keep(_name(shard, store, key), None, None)


def _name(shard: Shard, store: object, key: str) -> object:
    # The layout is part of the name: another document may describe the same bytes differently.
    return store, key, shard.index_layout
