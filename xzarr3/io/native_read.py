"""Reads by native code: gives it the rows of a plan, batch by batch, and tells which units it left."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from xzarr3._types import AnyArray, Buffer
from xzarr3.codecs.pipeline import CodecChain
from xzarr3.codecs.sharding import EMPTY, Shard
from xzarr3.io import rows
from xzarr3.io.fetch import AHEAD, Row
from xzarr3.io.native import (
    ABSENT,
    LEFT,
    RUN_BYTES,
    WORTH,
    Call,
    Layout,
    Left,
    Numbers,
    address,
    closing,
    loaded,
    reading,
)
from xzarr3.io.plan import ReadPlan
from xzarr3.stores.local import system
from xzarr3.tracing.counters import process

if TYPE_CHECKING:
    from xzarr3.io.executor import Engine

FEW, FEW_INNER = 8, 16
"""Chunks, and inner chunks of shards. Python reads fewer of them sooner."""
_LONGEST = 2**48  # Most elements along a dimension, so that no place exceeds 64 bits.
_SHARDS = 64  # Most shards that are open at a time: a process has few descriptors.
_INNER = 2**15  # Most inner chunks in a call.
_INDEXES = 2**24  # Bytes of the indexes of the shards that are open.
_OPEN = 4.0  # Microseconds to open and close a file, or to find an inner chunk.


class NativeRead:
    """A read by native code.

    Parameters
    ----------
    engine : Engine
    plan : ReadPlan
    out : ndarray
        Has the shape of the plan's buffer.
    """

    def __init__(self, engine: Engine, plan: ReadPlan, out: AnyArray) -> None:
        self._engine, self._plan, self._out = engine, plan, out
        self._given = rows.geometry(plan, out)
        self._prefix = os.fsencode(os.path.join(engine.store.folder or "", engine.key_prefix))
        self._fixed = np.array([*self._given.steps, *self._given.strides], np.int64)
        self._stop = np.zeros(1, np.int64)
        self._left = Left([], set())

    @classmethod
    def of(cls, engine: Engine, plan: ReadPlan, out: AnyArray) -> NativeRead | None:
        """The read, or None if native code does not know its store, grid or codecs."""
        if not does(engine, plan) or out.dtype != engine.meta.chain.spec.dtype:
            return None
        return None if process.wants_each else cls(engine, plan, out)

    def stop(self) -> None:
        """Let the threads return soon."""
        self._stop[0] = 1

    def run(self, threads: int) -> Left | None:
        """Read all units with at most so many threads; None if Python is to read all of them."""
        batches = rows.batches(self._plan, self._out)
        if batches is None:
            return None
        for shape, batch in batches:
            chain = self._engine.chain_of(shape)
            layout = reading.of(chain if chain.shard is None else chain.shard.inner)
            if layout is None:
                self._left.coords.update(map(tuple, batch.coords.tolist()))
            elif chain.shard is None:
                self._chunks(batch, layout, threads)
            else:
                self._shards(batch, layout, chain.shard, threads)
            if self._stop[0]:
                break
        return self._left

    def _call(self, layout: Layout, number: int, threads: int, edges: Numbers | None = None) -> Call:
        fetches = number if edges is None else len(edges) - 1
        work = number * (_OPEN + self._engine.meta.chain.decode_time)
        busy = min(threads, 1 + int(work / WORTH))
        run = max(1, min(16, fetches // (4 * busy), RUN_BYTES // layout.nbytes))
        return Call(layout, number, busy, run, self._stop, edges=edges, timed=bool(process.collectors))

    def _boxes(self, batch: rows.Rows) -> list[int]:
        """What follows ``length`` in the struct of a read."""
        start, extent, place = batch.boxes
        fixed = self._fixed.ctypes.data
        return [
            *(batch.begin.ctypes.data, start.ctypes.data, extent.ctypes.data, place.ctypes.data, fixed),
            *(self._out.ctypes.data, fixed + 4 * len(self._fixed), self._engine.fill.ctypes.data),
        ]

    def _names(self, coords: Numbers) -> list[int]:
        name = address(self._prefix)
        size, separator = len(self._prefix), ord(self._engine.separator)
        gap = self._plan.price.request
        return [name, size, separator, coords.shape[1], system.OPEN, gap, coords.ctypes.data]

    def _chunks(self, batch: rows.Rows, layout: Layout, threads: int) -> None:
        """Read units that are chunks."""
        call = self._call(layout, len(batch.coords), threads)
        call.do("xzarr3_read", [*self._names(batch.coords), 0, 0, 0, 0, 0, *self._boxes(batch)])
        self._note(batch.coords, call.status)
        call.tell(
            "get_range" if layout.is_plain else "get", absent=int(np.count_nonzero(call.status == ABSENT))
        )

    def _shards(self, batch: rows.Rows, layout: Layout, shard: Shard, threads: int) -> None:
        """Read units that are shards: their indexes, and then their inner chunks."""
        most = max(1, min(_SHARDS, _INDEXES // shard.index_size, _INNER // shard.number))
        for first in range(0, len(batch.coords), most):
            last = min(first + most, len(batch.coords))
            coords = batch.coords[first:last]
            boxes = batch.boxes.take(slice(batch.begin[first], batch.begin[last]))
            unit = np.repeat(np.arange(last - first), np.diff(batch.begin[first : last + 1]))
            inner, parent, inside = rows.divided(boxes, self._given._replace(lengths=shard.grid.chunk_shape))
            parts = rows.grouped(inner, unit[parent], inside)
            with closing(np.full(len(coords), -1, np.int64)) as files:
                status = self._some_shards(shard, layout, coords, parts, files, threads)
            self._note(coords, status)
            if self._stop[0]:
                break

    def _some_shards(
        self,
        shard: Shard,
        layout: Layout,
        coords: Numbers,
        parts: rows.Rows,
        files: Numbers,
        threads: int,
    ) -> npt.NDArray[np.uint8]:
        """Read the rows of some shards; returns what became of each shard."""
        index, status = self._indexes(shard, coords, files, threads)
        at = np.ravel_multi_index(tuple(parts.coords.T), shard.counts) if shard.counts else 0
        entries = index[parts.unit, at]
        offset, length = entries[:, 0].astype(np.int64), entries[:, 1].astype(np.int64)
        odd = (offset < 0) | (length < 0)
        absent = odd & (entries == EMPTY).all(axis=1) | (status == ABSENT)[parts.unit]
        offset[absent], length[absent] = 0, -1
        length[odd & ~absent] = -2
        length[(status == LEFT)[parts.unit]] = -2
        offset, length = np.ascontiguousarray(offset), np.ascontiguousarray(length)
        edges = None
        if not layout.is_plain:
            inside = _edges(parts.unit, offset, length, self._plan.price.request)
            edges = np.concatenate([[0], inside, [len(offset)]])
        call = self._call(layout, len(offset), threads, edges)
        unit = np.ascontiguousarray(parts.unit)
        places = [files.ctypes.data, 0, unit.ctypes.data, offset.ctypes.data, length.ctypes.data]
        call.do("xzarr3_read", [*self._names(coords), *places, *self._boxes(parts)])
        call.tell("get_range", absent=int(np.count_nonzero(status == ABSENT)))
        status[parts.unit[call.status == LEFT]] = LEFT
        return status

    def _indexes(
        self, shard: Shard, coords: Numbers, files: Numbers, threads: int
    ) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint8]]:
        """The indexes of some shards, and what became of each; ``files`` gets the open shards."""
        number = len(coords)
        layout = cast("Layout", _index_layout(shard))
        index = np.empty((number, shard.number, 2), np.uint64)
        begin, whole = np.arange(number + 1), np.tile([*shard.counts, 2], (number, 1)).astype(np.int64)
        start, place = np.zeros_like(whole), np.arange(number) * index.strides[0]
        at, size = np.full(number, shard.index_start), np.full(number, shard.index_size)
        ndim = len(shard.counts) + 1
        strides = [*np.empty((*shard.counts, 2), np.uint64).strides]
        fixed = np.array([*[1] * ndim, *strides], np.int64)
        call = self._call(layout, number, threads)
        job = [
            *(files.ctypes.data, 0, 0, at.ctypes.data, size.ctypes.data),
            *(begin.ctypes.data, start.ctypes.data, whole.ctypes.data, place.ctypes.data, fixed.ctypes.data),
            *(index.ctypes.data, fixed.ctypes.data + 8 * ndim, 0),
        ]
        call.do("xzarr3_read", [*self._names(coords), *job])
        call.tell("get_range", is_index=True)
        return index, call.status

    def _note(self, coords: Numbers, status: npt.NDArray[np.uint8]) -> None:
        """Record what became of units."""
        self._left.absent.append(coords[status == ABSENT])
        self._left.coords.update(map(tuple, coords[status == LEFT].tolist()))


def does(engine: Engine, plan: ReadPlan) -> bool:
    """Whether native code carries out a plan. It then reads the index of each shard, and keeps none."""
    chain, shard = engine.meta.chain, engine.meta.chain.shard
    if loaded() is None or not engine.store.traits.plain_files or max(engine.meta.shape, default=0) > _LONGEST:
        return False
    if plan.chunks < (FEW if shard is None else FEW_INNER):
        return False
    if reading.of(chain if shard is None else shard.inner) is None:
        return False
    return shard is None or _index_layout(shard) is not None


def _index_layout(shard: Shard) -> Layout | None:
    """The layout of the index of shards; None if native code does not know it."""
    return reading.of(shard.index_chain)


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
    layout = reading.of(chain) if loaded() is not None and out.dtype == chain.spec.dtype else None
    if layout is None or out.ndim == 0 or len(listed) < FEW_INNER:
        return [*listed]
    octets = np.frombuffer(value, np.uint8)
    memory = np.array([octets.ctypes.data, len(octets)], np.int64)
    entries = np.array([row[:2] for row in listed], np.uint64)
    offset, length = np.minimum(entries, 2**62).T.astype(np.int64, "C")  # An index may hold any numbers.
    start = np.array([[each.start for each in row.inner] for row in listed], np.int64)
    place = np.array([[each.start for each in row.outer] for row in listed], np.int64)
    extent = np.array([[each.stop for each in row.outer] for row in listed], np.int64) - place
    at = place @ np.array(out.strides, np.int64)
    fixed = np.array([*(each.step for each in listed[0].inner), *out.strides], np.int64)
    begin, file = np.arange(len(listed) + 1), np.zeros(len(listed), np.int64)
    busy = min(threads, 1 + int(len(listed) * chain.decode_time / WORTH))
    stop, timed = np.zeros(1, np.int64), bool(process.collectors)
    call = Call(layout, len(listed), busy, 1, stop, timed=timed)
    given = memory, file, offset, length
    job = [
        *(*[0] * 8, *(each.ctypes.data for each in given)),
        *(begin.ctypes.data, start.ctypes.data, extent.ctypes.data, at.ctypes.data, fixed.ctypes.data),
        *(out.ctypes.data, fixed.ctypes.data + 8 * out.ndim, fill.ctypes.data),
    ]
    with contextlib.suppress(MemoryError):  # Python takes less.
        call.do("xzarr3_read", job)
    call.tell("get_range")
    return [*itertools.compress(listed, call.status == LEFT)]
