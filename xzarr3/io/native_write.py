"""Writes by native code: whole stored units of a local store, under the locks of Python's writers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

import numpy as np

from xzarr3._types import AnyArray
from xzarr3.codecs.bytes import BytesCodec
from xzarr3.codecs.crc32c import Crc32cCodec
from xzarr3.codecs.pipeline import CodecChain
from xzarr3.codecs.sharding import Shard
from xzarr3.errors import Xzarr3Error
from xzarr3.grid import Steps
from xzarr3.io import rows
from xzarr3.io.native import (
    DONE,
    LARGEST,
    LEFT,
    Call,
    Layout,
    Left,
    Numbers,
    address,
    loaded,
    reading,
    writing,
)
from xzarr3.io.plan import ReadPlan
from xzarr3.io.projection import Slices
from xzarr3.io.shards import forget_index
from xzarr3.parallel import is_wanted
from xzarr3.stores.local.system import HAS_OFD, tells_late
from xzarr3.stores.locks import free_key_locks
from xzarr3.tracing.counters import process

if TYPE_CHECKING:
    from xzarr3.io.executor import Engine
    from xzarr3.stores.local.store import LocalStore

FEW = 2
"""Chunks. Python writes fewer of them before native code would have begun."""
_AT_ONCE = 1024  # Units whose locks are held together.
_DIGITS = 21  # Most bytes of a coordinate and a separator.
_LONG = 512  # Characters of a path, beyond which the store checks whether the system can reach it.
_NOT_OURS = 3  # The status of a unit that Python writes.
_CREATE = 30.0  # Microseconds to create and rename a file.
_RATE = 1000  # Bytes that are encoded and written in a microsecond.


class NativeWrite:
    """A write by native code of the units that are given whole.

    Parameters
    ----------
    engine : Engine
    plan : ReadPlan
    source : ndarray
        Has the shape of the plan's buffer.
    keep_empty : bool
        Whether to store units that hold only the fill value.
    """

    def __init__(self, engine: Engine, plan: ReadPlan, source: AnyArray, *, keep_empty: bool) -> None:
        self._engine, self._plan, self._source = engine, plan, source
        self._keep_empty = keep_empty
        self._name = os.fsencode(engine.key_prefix.rpartition("/")[2])
        self._store = cast("LocalStore", engine.store)
        self._sizes = np.array(engine.meta.shape, np.int64)
        self._left = Left([], set())

    @classmethod
    def of(cls, engine: Engine, plan: ReadPlan, source: AnyArray, *, keep_empty: bool) -> NativeWrite | None:
        """The write, or None if native code has nothing to do, or does not know how."""
        store, chain, shard = engine.store, engine.meta.chain, engine.meta.chain.shard
        spec = chain.spec
        traits = store.traits
        if plan.number * (1 if shard is None else shard.number) < FEW:
            return None
        if loaded() is None or not HAS_OFD or not traits.plain_files or spec.nbytes > LARGEST:
            return None
        if traits.durable or traits.conditional != "processes":
            return None
        if type(plan.addressing) is not Slices or source.dtype != spec.dtype:
            return None
        if not all(any(part.whole for part in along) for along in plan.parts):
            return None  # No unit is given whole.
        if process.wants_each or not engine.has_joined_keys:
            return None
        if len(store.folder or "") + len(engine.key_prefix) + _DIGITS * len(spec.shape) > _LONG:
            return None
        if writing.of(chain if shard is None else shard.inner) is None or (shard and not _is_known(shard)):
            return None
        # The elements are compared with the fill value bit for bit.
        if not spec.data_type.holds_only(engine.fill, spec.fill_value):
            return None
        return cls(engine, plan, source, keep_empty=keep_empty)

    def run(self, threads: int) -> Left | None:
        """Write the units with at most so many threads; None if Python is to write all of them."""
        self._store.check_writable()
        batches = rows.batches(self._plan, self._source)
        if batches is None:
            return None
        for shape, batch in batches:
            self._batch(batch, self._engine.chain_of(shape), threads)
        return self._left

    def _batch(self, batch: rows.Rows, chain: CodecChain, threads: int) -> None:
        layout = writing.of(chain if chain.shard is None else chain.shard.inner)
        axes, count = self._plan.grid.axes, batch.boxes.extent
        whole = np.full(len(count), layout is not None)
        for axis, length, size, coord, given in zip(
            axes, chain.spec.shape, self._sizes, batch.coords.T, count.T, strict=True
        ):
            first = (
                coord * length if isinstance(axis, Steps) else np.array([*map(axis.start, coord.tolist())])
            )
            whole &= given == np.minimum(length, size - first)
        self._left.coords.update(map(tuple, batch.coords[~whole].tolist()))
        if layout is None:
            return
        coords, count, place = batch.coords[whole], count[whole], batch.boxes.place[whole]
        for at in range(0, len(coords), _AT_ONCE):
            if not is_wanted():
                break
            part = slice(at, at + _AT_ONCE)
            self._some(coords[part], count[part], place[part], chain, layout, threads)

    def _some(
        self,
        coords: Numbers,
        count: Numbers,
        place: Numbers,
        chain: CodecChain,
        layout: Layout,
        threads: int,
    ) -> None:
        """Write units under their locks, except those whose lock is held by another thread."""
        engine, shard = self._engine, chain.shard
        units = [*map(tuple, coords.tolist())]
        form = engine.key_prefix.replace("%", "%%") + engine.separator.join(["%d"] * coords.shape[1])
        keys = [form % unit for unit in units]  # `engine.key` takes three times as long.
        try:
            folder = self._folder(coords)
        except (OSError, Xzarr3Error):  # The Python executor raises it.
            self._left.coords.update(units)
            return
        if folder is None:
            return
        try:
            with free_key_locks(engine.store_identity, keys) as held:
                try:
                    nbytes, extra = chain.spec.nbytes, 0 if shard is None else shard.index_size
                    each = _CREATE + nbytes / _RATE
                    call = Call(layout, len(keys), threads, each, nbytes=nbytes, extra=extra)
                    call.status[~np.array(held)] = _NOT_OURS
                    self._write(call, coords, count, place, shard, folder)
                finally:
                    if shard is not None:  # The kept indexes are out of date now.
                        for key in keys:
                            forget_index(shard, engine.store_identity, key)
        finally:
            os.close(folder)
        self._left.coords.update(map(tuple, coords[np.isin(call.status, (LEFT, _NOT_OURS))].tolist()))

    def _folder(self, coords: Numbers) -> int | None:
        """The directory of the units, open; None if there is none and none is needed."""
        key = f"{self._engine.key_prefix}0"
        found = self._store.handle(key, make=False)
        return self._store.handle(key, make=True) if found is None and self._is_stored(coords) else found

    def _is_stored(self, coords: Numbers) -> bool:
        """Whether one of these units is not empty, so that the directory is needed."""
        if self._keep_empty:
            return True
        spec, parts = self._engine.meta.chain.spec, self._plan.parts
        place = [{part.coord: part.outer for part in along} for along in parts]
        return any(
            not spec.data_type.holds_only(
                self._source[tuple(along[at] for along, at in zip(place, unit, strict=True))], spec.fill_value
            )
            for unit in coords.tolist()
        )

    def _write(
        self,
        call: Call,
        coords: Numbers,
        count: Numbers,
        place: Numbers,
        shard: Shard | None,
        folder: int,
    ) -> None:
        engine = self._engine
        strides = np.array(self._source.strides, np.int64)
        size = 0 if shard is None else shard.index_size
        inner = None if shard is None else np.array(shard.counts, np.int64)
        job = [
            *(folder, address(self._name), len(self._name), ord(engine.separator), coords.shape[1]),
            *(coords.ctypes.data, int(tells_late(os.fstat(folder).st_dev))),
            *(count.ctypes.data, place.ctypes.data, self._source.ctypes.data, strides.ctypes.data),
            *(engine.fill.ctypes.data, int(self._keep_empty)),
            *(0 if inner is None else inner.ctypes.data, size),
            *(int(shard is not None and shard.index_start == 0), size % 16),
        ]
        try:
            call.do("xzarr3_write", job)
        finally:
            if (call.status == DONE).any():
                self._store.touch()
        call.tell("put")


def _is_known(shard: Shard) -> bool:
    """Whether native code writes the index: numbers in little endian, and a checksum at most."""
    first, *others = shard.index_chain.codecs
    if type(first) is not BytesCodec or first.endian != "little" or len(others) > 1:
        return False
    if others and type(others[0]) is not Crc32cCodec:
        return False
    return reading.of(shard.index_chain) is not None
