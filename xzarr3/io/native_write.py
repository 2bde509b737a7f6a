"""Writes by native code: whole stored units of a local store, under the locks of Python's writers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from xzarr3._types import AnyArray
from xzarr3.codecs.bytes import BytesCodec
from xzarr3.codecs.crc32c import Crc32cCodec
from xzarr3.codecs.sharding import Shard
from xzarr3.errors import Xzarr3Error
from xzarr3.io import rows
from xzarr3.io.native import (
    ABSENT,
    DONE,
    FIELDS,
    LARGEST,
    LEFT,
    Call,
    Layout,
    Numbers,
    address,
    loaded,
    reading,
    writing,
)
from xzarr3.io.plan import ReadPlan
from xzarr3.io.projection import Slices
from xzarr3.io.shards import forget_index
from xzarr3.stores.local.files import FileWriter
from xzarr3.stores.locks import free_key_locks
from xzarr3.tracing.counters import add, process
from xzarr3.tracing.events import everywhere

if TYPE_CHECKING:
    from xzarr3.io.executor import Engine

FEW = 2
"""Chunks. Python writes fewer of them before native code would have begun."""
_AT_ONCE = 1024  # Units whose locks are held together.
_DIGITS = 21  # Most bytes of a coordinate and a separator.
_LONG = 512  # Characters of a path, beyond which the store checks whether the system can reach it.
_NOT_OURS = 3  # The status of a unit that Python writes.
_CREATE = 30.0  # Microseconds to create and rename a file.
_RATE = 1000  # Bytes that are encoded and written in a microsecond.
_WORTH = 150.0  # Microseconds of work that are worth another thread.


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
    left_out : list, optional
        Gets the coordinates of the units that are absent afterwards.
    """

    def __init__(
        self,
        engine: Engine,
        plan: ReadPlan,
        source: AnyArray,
        *,
        keep_empty: bool,
        left_out: list[tuple[int, ...]] | None,
    ) -> None:
        chain = engine.meta.chain
        self._engine, self._plan, self._source = engine, plan, source
        self._keep_empty, self._left_out = keep_empty, left_out
        self._shard = chain.shard
        self._layout = cast("Layout", writing.of(chain if chain.shard is None else chain.shard.inner))
        self._above, _, name = engine.key_prefix.rpartition("/")
        self._name = os.fsencode(name)
        self._lengths, self._sizes = np.array(plan.grid.largest), np.array(engine.meta.shape)
        self._stop = np.zeros(1, np.int64)
        self._serial = np.zeros(1, np.int64)
        self._left: set[tuple[int, ...]] = set()

    @classmethod
    def of(
        cls,
        engine: Engine,
        plan: ReadPlan,
        source: AnyArray,
        *,
        keep_empty: bool,
        left_out: list[tuple[int, ...]] | None,
    ) -> NativeWrite | None:
        """The write, or None if native code does not know its store, grid, selection or codecs."""
        store, chain, shard = engine.store, engine.meta.chain, engine.meta.chain.shard
        spec = chain.spec
        if loaded() is None or not store.replaces_files or not plan.grid.is_regular or spec.nbytes > LARGEST:
            return None
        if plan.number * (1 if shard is None else shard.number) < FEW:
            return None
        if type(plan.addressing) is not Slices or source.dtype != spec.dtype:
            return None
        if everywhere.listeners and not process.collectors:
            return None
        if len(store.files or "") + len(engine.key_prefix) + _DIGITS * len(spec.shape) > _LONG:
            return None
        if writing.of(chain if shard is None else shard.inner) is None or (shard and not _is_known(shard)):
            return None
        # The elements are compared with the fill value bit for bit.
        if not spec.data_type.holds_only(engine.fill, spec.fill_value):
            return None
        return cls(engine, plan, source, keep_empty=keep_empty, left_out=left_out)

    def stop(self) -> None:
        """Let the threads return soon."""
        self._stop[0] = 1

    def write(self, threads: int) -> set[tuple[int, ...]] | None:
        """Write the units with at most so many threads; returns those that Python has to write.

        Returns None, and writes nothing, if the store does not accept the keys or a directory.
        """
        with self._engine.store.writer() as writer:
            if not isinstance(writer, FileWriter):
                return None
            boxes = rows.boxes_of(self._plan, self._source)
            if boxes is None:
                return None
            try:  # The keys differ in their digits only.
                writer.check(self._engine.key((0,) * len(self._sizes)))
            except Xzarr3Error:  # The Python executor raises it.
                return None
            steps, strides = rows.steps_of(self._plan), self._source.strides
            for batch in rows.units(boxes, self._plan.grid.largest, steps, strides):
                self._batch(batch, writer, threads)
        return self._left

    def _batch(self, batch: rows.Rows, writer: FileWriter, threads: int) -> None:
        ndim = len(self._sizes)
        count = np.stack(batch.boxes.extent, axis=1) if ndim else np.zeros((1, 0), np.int64)
        whole = (count == np.minimum(self._lengths, self._sizes - batch.coords * self._lengths)).all(axis=1)
        self._left.update(map(tuple, batch.coords[~whole].tolist()))
        coords, count, place = batch.coords[whole], count[whole], batch.boxes.place[whole]
        for at in range(0, len(coords), _AT_ONCE):
            if self._stop[0]:
                break
            part = slice(at, at + _AT_ONCE)
            self._some(coords[part], count[part], place[part], writer, threads)

    def _some(
        self, coords: Numbers, count: Numbers, place: Numbers, writer: FileWriter, threads: int
    ) -> None:
        """Write units under their locks, except those whose lock is held by another thread."""
        engine, shard = self._engine, self._shard
        each = [*map(tuple, coords.tolist())]
        keys = [*map(engine.key, each)]
        try:
            folder = writer.folders.handle(self._above, lambda: self._is_stored(coords, count))
        except OSError:  # The Python executor raises it.
            self._left.update(each)
            return
        if folder is None:
            if self._left_out is not None:
                self._left_out += each
            return
        try:
            writer.folders.forget()  # The handle stays open, and other writers need descriptors.
            with free_key_locks(engine.store_identity, keys) as held:
                try:
                    status = self._call(coords, count, place, np.array(held), folder, writer, threads)
                finally:
                    if shard is not None:  # The kept indexes are out of date now.
                        for key in keys:
                            forget_index(shard, engine.store_identity, key)
        finally:
            os.close(folder)
        self._left.update(map(tuple, coords[(status == LEFT) | (status == _NOT_OURS)].tolist()))
        if self._left_out is not None:
            self._left_out += map(tuple, coords[status == ABSENT].tolist())

    def _is_stored(self, coords: Numbers, count: Numbers) -> bool:
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

    def _call(
        self,
        coords: Numbers,
        count: Numbers,
        place: Numbers,
        held: npt.NDArray[np.bool_],
        folder: int,
        writer: FileWriter,
        threads: int,
    ) -> npt.NDArray[np.uint8]:
        engine, shard, number = self._engine, self._shard, len(coords)
        work = number * (_CREATE + engine.meta.chain.spec.nbytes / _RATE)
        busy = min(threads, 1 + int(work / _WORTH))
        run = max(1, min(16, number // (4 * busy)))
        size = 0 if shard is None else shard.index_size
        call = Call(self._layout, number, busy, run, self._stop, extra=size, timed=bool(process.collectors))
        call.status[~held] = _NOT_OURS
        before, after = (part + b"\0" for part in writer.around)
        strides = np.array(self._source.strides, np.int64)
        inner = None if shard is None else np.array(shard.counts, np.int64)
        job = [
            *(folder, address(self._name), len(self._name), ord(engine.separator), coords.shape[1]),
            *(coords.ctypes.data, address(before), address(after), self._serial.ctypes.data),
            *(count.ctypes.data, place.ctypes.data, self._source.ctypes.data, strides.ctypes.data),
            *(engine.fill.ctypes.data, int(self._keep_empty)),
            *(0 if inner is None else inner.ctypes.data, size),
            *(int(shard is not None and shard.index_start == 0), size % 16),
        ]
        try:
            call.do("xzarr3_write", job)
        finally:
            if (call.status == DONE).any():
                writer.touch()
        _count(call)
        return call.status


def _is_known(shard: Shard) -> bool:
    """Whether native code writes the index: numbers in little endian, and a checksum at most."""
    first, *others = shard.index_chain.codecs
    if type(first) is not BytesCodec or first.endian != "little" or len(others) > 1:
        return False
    if others and type(others[0]) is not Crc32cCodec:
        return False
    return reading.of(shard.index_chain) is not None


def _count(call: Call) -> None:
    """Add what a call did to the counts of traces."""
    if not process.collectors:
        return
    found = dict(zip(FIELDS, call.counts.tolist(), strict=True))
    numbers = {
        "requests": found["reads"],
        "put": found["reads"],
        "bytes_written": found["bytes_read"],
        "request_seconds": found["read_time"] / 1e9,
        "chunks_encoded": found["chunks"],
        "bytes_encoded": found["bytes"],
        "encode_seconds": found["time"] / 1e9,
    }
    add({name: number for name, number in numbers.items() if number})
