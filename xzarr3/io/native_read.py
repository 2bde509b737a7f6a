"""Reads by native code: gives it the rows of a plan, batch by batch, and tells which units it left."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from xzarr3._types import AnyArray, Buffer
from xzarr3.codecs.pipeline import CodecChain
from xzarr3.codecs.sharding import EMPTY, Shard
from xzarr3.io import native, rows
from xzarr3.io.fetch import AHEAD, Row, divided
from xzarr3.io.native import ABSENT, DONE, LEFT, Call, Layout, Left, Numbers
from xzarr3.io.plan import ReadPlan
from xzarr3.io.selection import Points
from xzarr3.parallel import is_wanted
from xzarr3.stores.local import system
from xzarr3.tracing.counters import process

if TYPE_CHECKING:
    from xzarr3.io.executor import Engine

FEW, FEW_INNER = 8, 16
"""Chunks, and inner chunks of shards. Python reads fewer of them sooner."""
LONG = 2000.0
"""Microseconds to decode a chunk. Native code reads fewer of these sooner, too, as its decoder is faster."""
MANY = 64
"""Ranges of bytes in fewer uncompressed chunks. Native code reads so many of them sooner."""
BLOCKS = 2**20
"""Bytes of a chunk of blosc, which then has several blocks. Native code reads those that are needed."""
_LONGEST = 2**48  # Most elements along a dimension, so that no place exceeds 64 bits.
_SHARDS = 64  # Most shards that are open at a time: a process has few descriptors.
_INNER = 2**15  # Most inner chunks in a call.
_INDEXES = 2**24  # Bytes of the indexes of the shards that are open.
_OPEN = 4.0  # Microseconds to open and close a file, or to find an inner chunk.

Statuses = npt.NDArray[np.uint8]


class NativeRead(msgspec.Struct, frozen=True):
    """A read by native code, as :func:`native_read` makes it.

    Parameters
    ----------
    engine : Engine
    plan : ReadPlan
    out : ndarray
        Has the shape of the plan's buffer.
    geometry : Geometry
    left : Left
    """

    engine: Any
    plan: ReadPlan
    out: AnyArray
    geometry: rows.Geometry
    left: Left

    def run(self, threads: int) -> Left | None:
        """Read all units with at most so many threads; None if Python is to read all of them."""
        batches = rows.batches(self.plan, self.out)
        for shape, batch in batches or ():
            chain = self.engine.chain_of(shape)
            layout = native.reading.of(chain if chain.shard is None else chain.shard.inner)
            if layout is None:
                self._note(batch.coords, np.zeros(len(batch.coords), np.uint8))
            elif chain.shard is None:
                call = self._call(layout, len(batch.coords), threads)
                self._do(call, [*self._names(batch.coords), 0, 0, 0, 0, 0], batch)
                absent = self._note(batch.coords, call.status)
                call.tell("get_range" if layout.is_plain else "get", absent=absent)
            else:
                self._shards(batch, layout, chain.shard, threads)
            if not is_wanted():
                break
        return None if batches is None else self.left

    def _note(self, coords: Numbers, status: Statuses) -> int:
        """Record what became of units; returns the number of absent ones."""
        if status.tobytes().count(DONE) == len(status):
            return 0
        absent = coords[status == ABSENT]
        self.left.absent.append(absent)
        self.left.coords.update(map(tuple, coords[status == LEFT].tolist()))
        return len(absent)

    def _call(self, layout: Layout, number: int, threads: int, edges: Numbers | None = None) -> Call:
        each = _OPEN + self.engine.meta.chain.decode_time
        return Call(layout, number, threads, each, edges=edges)

    def _names(self, coords: Numbers) -> list[Any]:
        path = os.path.join(self.engine.store.folder or "", self.engine.key_prefix)
        prefix = array("b", os.fsencode(path))
        separator, gap = ord(self.engine.meta.chunk_key_encoding.separator), self.plan.price.request
        return [prefix, len(prefix), separator, coords.shape[1], system.OPEN, gap, coords]

    def _do(self, call: Call, places: Sequence[Any], batch: rows.Rows) -> None:
        call.read(places, batch.begin, batch.boxes, self.geometry[1:], self.out, self.engine.fill)

    def _shards(self, batch: rows.Rows, layout: Layout, shard: Shard, threads: int) -> None:
        """Read units that are shards: their indexes, and then their inner chunks."""
        most = max(1, min(_SHARDS, _INDEXES // shard.index_size, _INNER // shard.number))
        for first in range(0, len(batch.coords), most):
            last = min(first + most, len(batch.coords))
            coords = batch.coords[first:last]
            boxes = batch.boxes.take(slice(batch.begin[first], batch.begin[last]))
            unit = np.arange(last - first).repeat(np.diff(batch.begin[first : last + 1]))
            given = self.geometry._replace(lengths=shard.grid.chunk_shape)
            inner, parent, inside = rows.divided(boxes, given)
            parts = rows.grouped(inner, unit[parent], inside)
            with native.closing(np.full(len(coords), -1, np.int64)) as files:
                index, status = self._indexes(shard, coords, files, threads)
                self._parts(index, status, shard, layout, coords, parts, files, threads)
            self._note(coords, status)
            if not is_wanted():
                break

    def _parts(
        self,
        index: npt.NDArray[np.uint64],
        status: Statuses,
        shard: Shard,
        layout: Layout,
        coords: Numbers,
        parts: rows.Rows,
        files: Numbers,
        threads: int,
    ) -> None:
        """Read the inner chunks of some shards; ``status`` gets what became of each shard."""
        unit = np.ascontiguousarray(parts.unit)
        at = np.ravel_multi_index(tuple(parts.coords.T), shard.counts) if shard.counts else 0
        entries = index[unit, at]
        offset, length = np.ascontiguousarray(entries.T).view(np.int64)
        odd = (offset < 0) | (length < 0)
        absent = odd & (entries == EMPTY).all(axis=1) | (status == ABSENT)[unit]
        length[odd | (status == LEFT)[unit]] = -2
        offset[absent], length[absent] = 0, -1
        edges = None
        if not layout.is_plain:
            inside = _edges(unit, offset, length, self.plan.price.request)
            edges = np.concatenate([[0], inside, [len(offset)]])
        call = self._call(layout, len(offset), threads, edges)
        self._do(call, [*self._names(coords), files, 0, unit, offset, length], parts)
        call.tell("get_range", absent=int(np.count_nonzero(status == ABSENT)))
        status[unit[call.status == LEFT]] = LEFT

    def _indexes(
        self, shard: Shard, coords: Numbers, files: Numbers, threads: int
    ) -> tuple[npt.NDArray[np.uint64], Statuses]:
        """The indexes of some shards, and what became of each; ``files`` gets the open shards."""
        number, shape = len(coords), (*shard.counts, 2)
        layout = native.reading.of(shard.index_chain)
        index = np.empty((number, *shape), np.uint64)
        start = np.zeros((number, len(shape)), np.int64)
        boxes = start, start + shape, np.arange(number) * index.strides[0]
        part = np.full(number, shard.index_start), np.full(number, shard.index_size)
        call = self._call(layout, number, threads)  # type: ignore[arg-type]  # `does` has asked for it.
        places, begin = [*self._names(coords), files, 0, 0, *part], np.arange(number + 1)
        apart = [1] * len(shape), index.strides[1:]
        call.read(places, begin, boxes, apart, index)
        call.tell("get_range", is_index=True)
        return index.reshape(number, shard.number, 2), call.status


def native_read(engine: Engine, plan: ReadPlan, out: AnyArray) -> NativeRead | None:
    """A read by native code, or None if it does not know the store, the grid or the codecs."""
    if not does(engine, plan) or out.dtype != engine.meta.chain.spec.dtype:
        return None
    if process.wants_each:
        return None
    geometry = rows.geometry(plan, out)
    return NativeRead(engine, plan, out, geometry, Left([], set()))


def does(engine: Engine, plan: ReadPlan) -> bool:
    """Whether native code carries out a plan. It then reads the index of each shard, and keeps none."""
    chain, shard = engine.meta.chain, engine.meta.chain.shard
    if not engine.store.traits.plain_files:
        return False
    few = FEW if shard is None else FEW_INNER
    is_long = shard is None and chain.decode_time >= LONG
    if plan.chunks < few and not (is_long or _has_many_ranges(plan) or _has_blocks(plan)):
        return False
    if not engine.meta.chunk_key_encoding.is_joined or max(engine.meta.shape, default=0) > _LONGEST:
        return False
    known = [chain] if shard is None else [shard.inner, shard.index_chain]
    return None not in map(native.reading.of, known)


def _has_many_ranges(plan: ReadPlan) -> bool:
    """Whether a part of few uncompressed chunks lies in many places, each of which is read by itself."""
    if isinstance(plan.selection, Points) or math.prod(plan.buffer_shape) < MANY:
        return False
    chain, first = plan.chain_of(plan.grid.largest), [along[0] for along in plan.parts]
    inner = tuple(each.inner for each in first)
    if not chain.is_plain or all(each.whole for each in first) or not all(type(at) is slice for at in inner):
        return False
    shape, *_, split = divided(inner, chain.strides, chain.spec.dtype.itemsize, plan.price)
    return plan.chunks * math.prod(shape[:split]) >= MANY


def _has_blocks(plan: ReadPlan) -> bool:
    """Whether a part is wanted of chunks that consist of blocks of blosc."""
    chain = plan.chain_of(plan.grid.largest)
    if chain.shard is not None or chain.spec.nbytes < BLOCKS:
        return False
    if [codec.name for codec, _ in chain.decompressors] != ["blosc"]:
        return False
    return isinstance(plan.selection, Points) or not all(along[0].whole for along in plan.parts)


def _edges(unit: Numbers, offset: Numbers, length: Numbers, gap: int) -> Numbers:
    """The first row of each fetch: as :func:`~xzarr3.io.fetch.requests` puts them together."""
    at = np.flatnonzero(length >= 0)  # Rows that are absent go with the one before them.
    unit, offset, length = unit[at], offset[at], length[at]
    between = offset[1:] - offset[:-1] - length[:-1]
    cut = (unit[1:] != unit[:-1]) | (between < 0) | (between > gap)
    first = np.append(0, np.flatnonzero(cut) + 1)
    base = np.repeat(offset[first[: len(at)]], np.diff(first, append=len(at)))
    part = (offset - base) // AHEAD
    cut |= part[1:] != part[:-1]
    edges: Numbers = at[1:][cut]
    return edges


def place_rows(
    chain: CodecChain, listed: Sequence[Row], value: Buffer, out: AnyArray, fill: AnyArray, threads: int
) -> list[Row]:
    """Decode and place inner chunks of a shard in memory; returns the rows that Python has to do.

    Parameters
    ----------
    chain : CodecChain
        The codecs of inner chunks.
    listed : sequence of Row
        Whole inner chunks, of which slices are wanted.
    value : buffer
        The shard.
    out : ndarray
        The part of the result that belongs to the shard.
    fill : ndarray
        The fill value.
    threads : int
        The most threads.
    """
    layout = native.reading.of(chain) if out.dtype == chain.spec.dtype else None
    if layout is None or out.ndim == 0 or len(listed) < FEW_INNER:
        return [*listed]
    octets, number = np.frombuffer(value, np.uint8), len(listed)
    entries = np.array([row[:2] for row in listed], np.uint64)
    part = np.minimum(entries, 2**62).T.astype(np.int64, "C")  # An index may hold any numbers.
    start = np.array([[each.start for each in row.inner] for row in listed], np.int64)
    first = np.array([[each.start for each in row.outer] for row in listed], np.int64)
    extent = np.array([[each.stop for each in row.outer] for row in listed], np.int64) - first
    boxes = start, extent, first @ np.array(out.strides, np.int64)
    memory = array("q", [native.at(octets), len(octets)])
    places = [*[0] * 8, memory, np.zeros(number, np.int64), *part]
    steps, begin = [each.step for each in listed[0].inner], np.arange(number + 1)
    with contextlib.suppress(MemoryError):  # Python takes less.
        call = Call(layout, number, threads, chain.decode_time)
        call.read(places, begin, boxes, (steps, out.strides), out, fill)
        call.tell("get_range")
        return [*itertools.compress(listed, call.status == LEFT)]
    return [*listed]
