"""Writes by native code: units of a local store, under the locks of Python's writers.

Of shards it writes those that are given whole. Of a chunk a part is enough: the rest is read under the lock.
"""

from __future__ import annotations

import ctypes
import os
import threading
from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

import msgspec
import numpy as np

from xzarr3._types import AnyArray
from xzarr3.codecs.bytes import BytesCodec
from xzarr3.codecs.crc32c import Crc32cCodec
from xzarr3.codecs.pipeline import CodecChain
from xzarr3.codecs.sharding import Shard
from xzarr3.errors import Xzarr3Error
from xzarr3.grid import Steps
from xzarr3.io import rows
from xzarr3.io.native import DONE, LARGEST, LEFT, Call, Layout, Left, Numbers, loaded, reading, writing
from xzarr3.io.plan import ReadPlan
from xzarr3.io.projection import Inner, Slices
from xzarr3.io.selection import DimSelection
from xzarr3.io.shards import forget_index
from xzarr3.parallel import is_wanted
from xzarr3.stores.local.system import HAS_OFD, tells_late
from xzarr3.stores.locks import free_key_locks, key_lock
from xzarr3.tracing.counters import process

if TYPE_CHECKING:
    from xzarr3.io.executor import Engine
    from xzarr3.io.write import UnitWriter
    from xzarr3.stores.local.store import LocalStore

FEW, FEW_PARTS = 2, 8
"""Chunks, and chunks of which none is given whole. Python writes fewer of them sooner."""
_AT_ONCE = 1024  # Units whose locks are held together.
_DIGITS = 21  # Most bytes of a coordinate and a separator.
_LONG = 512  # Characters of a path, beyond which the store checks whether the system can reach it.
_NOT_OURS = 3  # The status of a unit that Python writes.
_SMALL = 2**20  # Bytes of a chunk; Python changes larger ones as fast.
_CREATE = 30.0  # Microseconds to create and rename a file.
_RATE = 1000  # Bytes that are encoded and written in a microsecond.


class NativeWrite(msgspec.Struct, frozen=True):
    """A write by native code; see :func:`does`.

    The boxes of units that are given whole start at -1.

    Parameters
    ----------
    engine : Engine
    plan : ReadPlan
    source : ndarray
        Has the shape of the plan's buffer.
    keep_empty : bool
        Whether to store units that hold only the fill value.
    confirm : callable
    owns_ends : bool
        As :meth:`xzarr3.io.executor.Engine.write` has them.
    left : Left
    """

    engine: Any
    plan: ReadPlan
    source: AnyArray
    keep_empty: bool
    confirm: Callable[[], None]
    owns_ends: bool
    left: Left

    def run(self, threads: int) -> Left | None:
        """Write the units with at most so many threads; None if Python is to write all of them."""
        self.engine.store.check_writable()
        batches = rows.batches(self.plan, self.source)
        if batches is None:
            return None
        for shape, batch in batches:
            self._batch(batch, self.engine.chain_of(shape), threads)
        return self.left

    def _batch(self, batch: rows.Rows, chain: CodecChain, threads: int) -> None:
        layout = writing.of(chain if chain.shard is None else chain.shard.inner)
        whole = np.full(len(batch.coords), layout is not None)
        for axis, length, size, coord, given in zip(
            self.plan.grid.axes, chain.spec.shape, self.engine.meta.shape, batch.coords.T,
            batch.boxes.extent.T, strict=True,
        ):  # fmt: skip
            first = (
                coord * length if isinstance(axis, Steps) else np.array([*map(axis.start, coord.tolist())])
            )
            whole &= given == (np.minimum(length, size - first) if self.owns_ends else length)
        start = np.where(whole[:, np.newaxis], -1, batch.boxes.start)
        mine = np.ones_like(whole) if layout is not None and _takes_parts(self.plan) else whole
        self.left.coords.update(map(tuple, batch.coords[~mine].tolist()))
        coords, boxes = batch.coords[mine], batch.boxes._replace(start=start).take(mine)
        for at in range(0, len(coords) if layout is not None else 0, _AT_ONCE):
            if not is_wanted():
                break
            some = slice(at, at + _AT_ONCE)
            self._some(coords[some], boxes.take(some), chain, cast("Layout", layout), threads)

    def _some(
        self, coords: Numbers, boxes: rows.Boxes, chain: CodecChain, layout: Layout, threads: int
    ) -> None:
        """Write units under their locks, except those whose lock is held by another thread."""
        engine, shard = self.engine, chain.shard
        units = [*map(tuple, coords.tolist())]
        form = engine.key_prefix.replace("%", "%%") + engine.meta.chunk_key_encoding.separator.join(
            ["%d"] * coords.shape[1]
        )
        keys = [form % unit for unit in units]  # `engine.key` takes three times as long.
        try:
            found = self._folder()
        except (OSError, Xzarr3Error):  # The Python executor raises it.
            self.left.coords.update(units)
            return
        if found is None:
            return
        folder, device = found
        try:
            self.confirm()  # Nothing is written to what takes the place of this directory from now on.
            with free_key_locks(engine.store_identity, keys) as held:
                try:
                    nbytes, extra = chain.spec.nbytes, 0 if shard is None else shard.index_size
                    each = _CREATE + nbytes / _RATE
                    call = Call(layout, len(keys), threads, each, nbytes=nbytes, extra=extra)
                    call.status[~np.array(held)] = _NOT_OURS
                    self._write(call, coords, boxes, chain, folder, device)
                finally:
                    if shard is not None:  # The kept indexes are out of date now.
                        for key in keys:
                            forget_index(shard, engine.store_identity, key)
        finally:
            os.close(folder)
        self.left.coords.update(map(tuple, coords[np.isin(call.status, (LEFT, _NOT_OURS))].tolist()))

    def _folder(self) -> tuple[int, int] | None:
        """The directory of the units, open, and its device; None if there is none and none is needed."""
        store, key = cast("LocalStore", self.engine.store), f"{self.engine.key_prefix}0"
        found, spec = store.handle(key, make=False), self.engine.meta.chain.spec
        if found is not None:
            return found
        if not self.keep_empty and spec.data_type.holds_only(self.source, spec.fill_value):
            return None
        self.confirm()
        return store.handle(key, make=True)

    def _write(
        self, call: Call, coords: Numbers, boxes: rows.Boxes, chain: CodecChain, folder: int, device: int
    ) -> None:
        engine, shard, separator = self.engine, chain.shard, self.engine.meta.chunk_key_encoding.separator
        name = os.fsencode(engine.key_prefix.rpartition("/")[2])
        size = 0 if shard is None else shard.index_size
        stored = reading.of(chain if shard is None else shard.inner)
        job = [
            # An empty array is at 0.
            *(folder, array("b", name or b"\0"), len(name), ord(separator), coords.shape[1], coords),
            *(int(tells_late(device)), *boxes, 0 if stored is None else stored.numbers),
            *(self.source, array("q", self.source.strides), engine.fill, int(self.keep_empty)),
            *(0 if shard is None else array("q", shard.counts or (1,)), size),
            *(int(shard is not None and shard.index_start == 0), size % 16),
        ]
        try:
            call.do("xzarr3_write", job)
        finally:
            if (call.status == DONE).any():
                engine.store.touch()
        call.tell("put")


def does(engine: Engine, plan: ReadPlan, source: AnyArray) -> bool:
    """Whether native code writes units of a plan."""
    shard, spec = engine.meta.chain.shard, engine.meta.chain.spec
    if plan.number * (1 if shard is None else shard.number) < FEW:
        return False
    if type(plan.addressing) is not Slices or source.dtype != spec.dtype:
        return False
    is_whole = all(any(part.whole for part in along) for along in plan.parts)
    if not is_whole and (plan.number < FEW_PARTS or not _takes_parts(plan)):
        return False
    if not engine.meta.chunk_key_encoding.is_joined or not writes(engine):
        return False
    if len(engine.store.folder or "") + len(engine.key_prefix) + _DIGITS * len(spec.shape) > _LONG:
        return False
    return shard is None or _is_known(shard)


def writes(engine: Engine) -> bool:
    """Whether native code knows the store and the codecs of an array."""
    chain, traits = engine.meta.chain, engine.store.traits
    if loaded() is None or not HAS_OFD or not traits.plain_files or chain.spec.nbytes > LARGEST:
        return False
    if traits.durable or traits.conditional != "processes" or process.wants_each:
        return False
    if writing.of(chain if chain.shard is None else chain.shard.inner) is None:
        return False
    return engine.fill_is_exact  # The elements are compared with it bit for bit.


class _Part:
    """A part of one chunk, as native code changes it. A thread describes it once, as that takes long.

    Parameters
    ----------
    chain : CodecChain
    layout, stored : Layout
        How native code encodes and decodes chunks.
    fill : ndarray
        The fill value.
    """

    def __init__(self, chain: CodecChain, layout: Layout, stored: Layout, fill: AnyArray) -> None:
        ndim = len(chain.spec.shape)
        self._kept = layout, stored, fill  # Native code has their addresses.
        self._name = ctypes.create_string_buffer(_LONG + 1)
        self._box = (ctypes.c_int64 * (3 * ndim + 1))()  # Start, count and strides; the place is 0.
        start, count, strides, place = (ctypes.addressof(self._box) + 8 * ndim * at for at in range(4))
        self._call = Call(layout, 1, 1, 1.0)
        path = ctypes.addressof(self._name)
        job = [0, path, 0, 0, 0, 0, 0, start, count, place, stored.numbers, 0, strides, fill, 0, 0, 0, 0, 0]
        self._packed = self._call.packed(job)
        self._first = len(self._packed) - len(job)

    def change(
        self,
        folder: int,
        name: bytes,
        inner: Sequence[slice],
        values: AnyArray,
        *,
        late: bool,
        keep_empty: bool,
    ) -> int:
        """Put values into the chunk of a file in an open directory; returns what became of it."""
        packed, first = self._packed, self._first
        packed[first], self._name.value = folder, name
        self._box[:-1] = [*[each.start for each in inner], *values.shape, *values.strides]
        packed[first + 2], packed[first + 6], packed[first + 11] = len(name), late, values.ctypes.data
        packed[first + 14] = keep_empty
        return self._call.write_again(packed)


class _Parts(threading.local):
    """The parts that a thread has described, by the codecs of the chunk."""

    def __init__(self) -> None:
        self.known: WeakKeyDictionary[CodecChain, _Part | None] = WeakKeyDictionary()

    def of(self, chain: CodecChain, fill: AnyArray) -> _Part | None:
        try:
            return self.known[chain]
        except KeyError:
            found, layout, stored = None, writing.of(chain), reading.of(chain)
            if chain.spec.shape and chain.spec.nbytes <= _SMALL and layout is not None and stored is not None:
                found = _Part(chain, layout, stored, fill)
            self.known[chain] = found
            return found


_parts = _Parts()


def change_part(writer: UnitWriter, chain: CodecChain, key: str, inner: Inner, values: AnyArray) -> bool:
    """Change a part of a chunk without losing changes by other writers; returns whether it was done."""
    part = _parts.of(chain, writer.engine.fill)
    if part is None or values.dtype != chain.spec.dtype or values.ndim != len(inner):
        return False
    if [each for each in inner if type(each) is not slice or each.step not in (None, 1)]:
        return False
    store, name = cast("LocalStore", writer.engine.store), os.fsencode(key.rpartition("/")[2])
    try:
        found = None if len(name) > _LONG else store.handle(key, make=False)
    except OSError:  # Python raises it.
        return False
    if found is None:
        return False
    folder, device = found
    try:
        writer.confirm()  # Of what takes the place of this directory from now on nothing is changed.
        with key_lock(writer.engine.store_identity, key):
            keep, late = writer.keep_empty, tells_late(device)
            done = part.change(folder, name, inner, values, late=late, keep_empty=keep)
    finally:
        os.close(folder)
    return done != LEFT


def changes(writer: UnitWriter) -> bool:
    """Whether native code changes parts of the chunks of a writer. A trace counts reads and writes apart."""
    engine = writer.engine
    is_known = engine.meta.chain.shard is None and not writer.fields and not process.collectors
    return is_known and writes(engine)


def _is_known(shard: Shard) -> bool:
    """Whether native code writes the index: numbers in little endian, and a checksum at most."""
    first, *others = shard.index_chain.codecs
    if type(first) is not BytesCodec or first.endian != "little" or len(others) > 1:
        return False
    if others and type(others[0]) is not Crc32cCodec:
        return False
    return reading.of(shard.index_chain) is not None


def _takes_parts(plan: ReadPlan) -> bool:
    """Whether native code changes the parts of chunks that a plan gives."""
    chain = plan.chain_of(plan.grid.largest)
    selection = cast("tuple[DimSelection, ...]", plan.selection)
    if chain.shard is not None or not selection or any(each.step != 1 for each in selection):
        return False
    return reading.of(chain) is not None and not process.collectors  # A trace counts reads and writes apart.
