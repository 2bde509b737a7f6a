"""Turns a plan into batches for compiled code: flat arrays, without an object for each chunk."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from xzarr3._types import AnyArray, Buffer
from xzarr3.codecs.pipeline import CodecChain
from xzarr3.io.compiled.layout import LONGEST, Layout, Numbers, address_of, allocate, reading
from xzarr3.io.compiled.libraries import bind
from xzarr3.io.compiled.read import (
    ABSENT,
    BOX,
    DONE,
    FILE,
    LEFT,
    UNIT,
    Boxes,
    Chunk,
    Scratch,
    Shards,
    Source,
    read_units,
    scratch_sizes,
)
from xzarr3.io.plan import Batch as PlanBatch
from xzarr3.io.plan import ReadPlan
from xzarr3.io.projection import AxisProjection, ChunkProjection, Pointwise, Slices
from xzarr3.io.selection import DimChoice, DimIndices, DimSelection, Points
from xzarr3.stores.local import platform
from xzarr3.tracing.events import everywhere

if TYPE_CHECKING:
    from xzarr3.io.executor import Engine

_CALL = 100
"""Milliseconds that a call of compiled code takes at most: a signal is heard after it."""
_DENSE = 64  # Points of a chunk; numpy takes more of them faster, with less memory.
_LONG_BOX = 16  # Elements of a box that are copied as fast as numpy takes them.
_MOST_POINTS = 2**20  # Each takes some hundred bytes.
_KEPT_SCRATCH = 2**25  # Bytes that a thread keeps.
_MOST_RUN = 64  # Most units that a thread takes at a time.
_RUN_BYTES = 2**22  # Most of their bytes, beyond one unit: a call of compiled code ends after a run.


class Lists(NamedTuple):
    """The arrays of :class:`~xzarr3.io.compiled.read.Boxes`."""

    first: Numbers | None
    number: Numbers | None
    coord: Numbers
    start: Numbers
    extent: Numbers
    outer: Numbers
    begin: Numbers | None
    step: Numbers
    outer_step: Numbers


class _Parts(NamedTuple):
    """The parts of a selection along one dimension."""

    coord: Numbers
    start: Numbers
    extent: Numbers
    outer: Numbers
    """The first element in the result."""


def _steps(selected: DimSelection, length: int) -> _Parts:
    """The parts of a slice along a dimension of equal chunks."""
    first, step, count = selected.start, selected.step, selected.count
    if step >= length:
        elements = first + step * np.arange(count)
        return _Parts(elements // length, elements % length, np.ones(count, np.int64), np.arange(count))
    coord = np.arange(first // length, (first + (count - 1) * step) // length + 1)
    outer = np.maximum(0, -(-(coord * length - first) // step))
    stop = np.minimum(count, -(-((coord + 1) * length - first) // step))
    return _Parts(coord, first + outer * step - coord * length, stop - outer, outer)


def _listed(parts: Sequence[AxisProjection]) -> _Parts:
    rows = [
        (part.coord, part.inner.start, part.outer.stop - part.outer.start, part.outer.start) for part in parts
    ]
    return _Parts(*np.array(rows, np.int64).T)


def _product(along: Sequence[_Parts], steps: Sequence[int], out: AnyArray) -> Lists:
    """The units that combine one part along each dimension."""
    number = np.array([len(parts.coord) for parts in along], np.int64)
    columns = [np.concatenate(each).astype(np.int64) for each in zip(*along, strict=True)]
    coord, start, count, outer = columns
    outer_step = np.array(out.strides, np.int64)
    outer *= np.repeat(outer_step, number)
    return Lists(
        np.cumsum(number) - number,
        number,
        coord,
        start,
        count,
        outer,
        None,
        np.array(steps, np.int64),
        outer_step,
    )


def _points(plan: ReadPlan, addressing: Pointwise, out: AnyArray) -> Lists:
    """The units of points, as a list: one box for each point and each combination of the other parts."""
    groups, ndim = plan.groups, len(plan.grid.axes)
    number, total = len(groups.begins), len(groups.within[0])
    ends = np.append(groups.begins[1:], total)
    others = [_listed(parts) for parts in plan.other_parts]
    sizes = [len(parts.coord) for parts in others]
    every = math.prod(sizes)
    # Units are ordered by the group of points, then by the parts of the other dimensions; boxes within a
    # unit by the point.
    coord = np.empty((number, every, ndim), np.int64)
    combined = [each.reshape(-1) for each in np.indices(sizes)]
    for axis, chunks in zip(addressing.axes, groups.chunks, strict=True):
        coord[:, :, axis] = chunks[:, np.newaxis]
    for axis, parts, at in zip(addressing.others, others, combined, strict=True):
        coord[:, :, axis] = parts.coord[at]
    lengths = np.repeat(ends - groups.begins, every)
    begin = np.concatenate([[0], np.cumsum(lengths)])
    # For each box the number of its point and of its combination.
    combination = np.repeat(np.tile(np.arange(every), number), lengths)
    point = np.arange(begin[-1]) - np.repeat(begin[:-1] - np.repeat(groups.begins, every), lengths)
    start, count = np.empty((len(point), ndim), np.int64), np.ones((len(point), ndim), np.int64)
    outer, step, outer_step = point * out.strides[0], np.ones(ndim, np.int64), np.zeros(ndim, np.int64)
    for axis, within in zip(addressing.axes, groups.within, strict=True):
        start[:, axis] = within[point]
    selection = cast("Points", plan.selection).others
    each = zip(addressing.others, others, combined, selection, out.strides[1:], strict=True)
    for axis, parts, at, chosen, stride in each:
        here = at[combination]
        start[:, axis], count[:, axis] = parts.start[here], parts.extent[here]
        outer = outer + parts.outer[here] * stride
        step[axis], outer_step[axis] = chosen.step, stride
    flat = coord.reshape(-1), start.reshape(-1), count.reshape(-1)
    return Lists(None, None, *flat, outer, begin, step, outer_step)


class _Runs(NamedTuple):
    """The parts of a selection along one dimension, each as runs of elements that follow one another."""

    coord: Numbers
    """The chunk of each part."""
    begin: Numbers
    """The first run of each part, and the number of all runs."""
    start: Numbers
    """The first element of each run within its chunk; the next two have a number for each run, too."""
    extent: Numbers
    outer: Numbers
    """The first element in the result."""


def _runs(parts: Sequence[AxisProjection], step: int, length: int) -> _Runs:
    """The runs along one dimension: elements ``step`` apart within chunks, or inner chunks, of ``length``."""
    rows: list[Numbers] = []
    for part in parts:
        inner = part.inner
        elements = np.arange(inner.start, inner.stop, inner.step) if isinstance(inner, slice) else inner
        cut = (np.diff(elements) != step) | (np.diff(elements // length) != 0)
        begins = np.append(0, np.flatnonzero(cut) + 1)
        extents = np.diff(begins, append=len(elements))
        rows.append(np.array([elements[begins], extents, part.outer.start + begins], np.int64))
    begin = np.cumsum([0, *(row.shape[1] for row in rows)])
    return _Runs(np.array([part.coord for part in parts]), begin, *np.concatenate(rows, axis=1))


def _has_few_boxes(plan: ReadPlan, counts: Sequence[int]) -> bool:
    """Whether a selection by arrays of indices consists of few boxes of neighbours.

    ``counts`` is the number of inner chunks of a shard along each dimension.
    """
    boxes = 1
    for chosen, parts, count in zip(
        cast("tuple[DimChoice, ...]", plan.selection), plan.parts, counts, strict=True
    ):
        gaps = np.count_nonzero(np.diff(chosen.indices) != 1) if isinstance(chosen, DimIndices) else 0
        boxes *= int(gaps) + count * len(parts)  # At most: a gap may be where a chunk ends.
    elements = math.prod(plan.buffer_shape)
    return boxes <= min(_MOST_POINTS, max(_DENSE * plan.chunks, elements // _LONG_BOX))


def _mesh(along: Sequence[_Runs], steps: Sequence[int], lengths: Sequence[int], out: AnyArray) -> Lists:
    """The units that combine one part along each dimension, as a list.

    A unit has a box for each combination of one run along each dimension. Boxes of one inner chunk, of shape
    ``lengths``, follow one another, as it is decoded once for them.
    """
    units = np.indices([len(runs.coord) for runs in along]).reshape(len(along), -1)
    coord = np.array([runs.coord[at] for runs, at in zip(along, units, strict=True)])
    number = np.array([np.diff(runs.begin)[at] for runs, at in zip(along, units, strict=True)])
    begin = np.append(0, np.cumsum(number.prod(axis=0)))
    unit = np.repeat(np.arange(units.shape[1]), np.diff(begin))
    rest = np.arange(begin[-1]) - begin[unit]
    start, extent = np.empty((2, begin[-1], len(along)), np.int64)
    outer = np.zeros(begin[-1], np.int64)
    for axis in reversed(range(len(along))):
        runs = along[axis]
        run = runs.begin[units[axis][unit]] + rest % number[axis][unit]
        rest //= number[axis][unit]
        start[:, axis], extent[:, axis] = runs.start[run], runs.extent[run]
        outer += runs.outer[run] * out.strides[axis]
    order = np.lexsort((*(start // lengths).T[::-1], unit))
    flat = coord.T.reshape(-1).astype(np.int64), start[order].reshape(-1), extent[order].reshape(-1)
    strides = np.array(out.strides, np.int64)
    return Lists(None, None, *flat, outer[order], begin, np.array(steps, np.int64), strides)


def _pieces(units: Sequence[ChunkProjection], steps: Sequence[int], out: AnyArray) -> Lists:
    """Units that slices select, as a list of one box each."""
    strides = np.array(out.strides, np.int64)
    coord = np.array([unit.coords for unit in units], np.int64)
    start = np.array([[part.start for part in unit.inner] for unit in units], np.int64)
    outer = np.array([[part.start for part in unit.outer] for unit in units], np.int64)
    stop = np.array([[part.stop for part in unit.outer] for unit in units], np.int64)
    return Lists(
        None,
        None,
        coord.reshape(-1),
        start.reshape(-1),
        (stop - outer).reshape(-1),
        outer @ strides,
        np.arange(len(units) + 1),
        np.array(steps, np.int64),
        strides,
    )


class _Kept(threading.local):
    arrays: tuple[npt.NDArray[np.uint8], ...] = (np.empty(0, np.uint8),) * len(Scratch._fields)


_kept = _Kept()


@contextlib.contextmanager
def leased(sizes: Scratch) -> Iterator[tuple[npt.NDArray[np.uint8], ...]]:
    """Scratch memory of at least these sizes. It is kept for the thread, as fresh memory costs more."""
    arrays = tuple(
        array if len(array) >= size else allocate(size)
        for array, size in zip(_kept.arrays, sizes, strict=True)
    )
    yield arrays
    if sum(map(len, arrays)) <= _KEPT_SCRATCH:
        _kept.arrays = arrays


class Batch:
    """Units of one shape, as compiled code reads them.

    Parameters
    ----------
    layout : Layout
    prefix : bytes
        Start of the paths of all units.
    separator : str
    lists : Lists
    number : int
        Number of units.
    opened : ndarray of int, optional
        An open file for each unit.
    value : ndarray of int, optional
        Address and size of the bytes of the only unit, if they are in memory.
    """

    def __init__(
        self,
        layout: Layout,
        prefix: bytes,
        separator: str,
        lists: Lists,
        number: int,
        opened: Numbers | None = None,
        value: Numbers | None = None,
    ) -> None:
        self._layout = layout
        self._lists = lists
        self._kept = np.frombuffer(prefix, np.uint8), opened, value
        self._boxes = Boxes(len(lists.step), number, *map(address_of, lists))
        name, size = self._kept[0].ctypes.data, len(prefix)
        found = (address_of(value), address_of(value) + 8) if value is not None else (0, 0)
        self._source = Source(name, size, ord(separator), platform.OPEN, address_of(opened), *found)
        self._turn = np.zeros(1, np.int64)
        self.status = np.full(number, LEFT, np.uint8)

    def read(self, out: AnyArray, fill: AnyArray, stop: Numbers, run: int) -> None:
        """Read units in this thread until none are left or another thread has set ``stop``."""
        chunk, shards, _ = self._layout
        addresses = out.ctypes.data, fill.ctypes.data, address_of(self._turn), run, _CALL, address_of(stop)
        status = self.status.ctypes.data
        sizes = scratch_sizes(self._boxes.ndim, self._source.prefix_size, chunk, shards)
        with leased(sizes) as arrays:
            scratch = Scratch(*(array.ctypes.data for array in arrays))
            kept = arrays[0].view(np.int64)
            kept[[UNIT, BOX, FILE]] = -1
            try:
                while not stop[0] and (kept[UNIT] >= 0 or self._turn[0] < len(self.status)):
                    read_units(scratch, self._source, self._boxes, chunk, shards, *addresses, status)
            finally:
                if kept[FILE] >= 0:  # An interrupt or another thread has stopped this one.
                    os.close(int(kept[FILE]))

    def absent(self) -> Iterator[tuple[int, ...]]:
        """The coordinates of the absent units."""
        units = np.flatnonzero(self.status == ABSENT)
        first, number, coord = self._lists[:3]
        if first is None or number is None:
            each = coord.reshape(-1, self._boxes.ndim)[units].T
        else:
            each = coord[first[:, np.newaxis] + np.array(np.unravel_index(units, number.tolist()))]
        return zip(*each.tolist(), strict=True)


class CompiledRead:
    """A read by compiled code.

    Parameters
    ----------
    engine : Engine
    plan : ReadPlan
    out : ndarray
        Has the shape of the plan's buffer.
    pieces : int
        As for :meth:`~xzarr3.io.plan.ReadPlan.batches`. More than 1 if several threads share shards.
    """

    def __init__(self, engine: Engine, plan: ReadPlan, out: AnyArray, pieces: int) -> None:
        self._engine = engine
        self._plan = plan
        self._out = out
        self._pieces = pieces if type(plan.addressing) is Slices else 1
        self._stop = np.zeros(1, np.int64)
        self._prefix = (engine.store.files or "") + engine.key_prefix
        self._descriptors: list[int] = []
        self._batches: list[Batch] = []
        try:
            self._divide()
        except BaseException:
            self.close()
            raise

    @classmethod
    def of(cls, engine: Engine, plan: ReadPlan, out: AnyArray, pieces: int) -> CompiledRead | None:
        """The read, or None if compiled code does not know its codecs, selection or store."""
        known = engine.store.files is not None and not everywhere.listeners
        known = known and max(engine.meta.shape, default=0) <= LONGEST
        if not known or out.dtype != engine.meta.chain.spec.dtype or reading.of(engine.meta.chain) is None:
            return None
        if isinstance(plan.selection, Points):
            shard, points = engine.meta.chain.shard, len(plan.selection.indices[0])
            chunks = len(plan.groups.begins) * (1 if shard is None else shard.number)
            if points > min(_DENSE * chunks, _MOST_POINTS) or not plan.grid.is_regular:
                return None
        elif type(plan.addressing) is not Slices:
            shard = engine.meta.chain.shard
            if not _has_few_boxes(plan, shard.counts if shard is not None else (1,) * out.ndim):
                return None
        return cls(engine, plan, out, pieces)

    def _divide(self) -> None:
        plan, out = self._plan, self._out
        if isinstance(plan.selection, Points):
            lists = _points(plan, cast("Pointwise", plan.addressing), out)
            self._add(plan.grid.largest, lists, plan.number)
            return
        steps = [chosen.step if isinstance(chosen, DimSelection) else 1 for chosen in plan.selection]
        if type(plan.addressing) is not Slices:
            for shape, parts in plan.shapes():
                shard = self._engine.chain_of(shape).shard
                lengths = shape if shard is None else shard.grid.chunk_shape
                lists = _mesh([*map(_runs, parts, steps, lengths)], steps, lengths, out)
                self._add(shape, lists, math.prod(map(len, parts)))
            return
        selection = cast("tuple[DimSelection, ...]", plan.selection)
        if self._pieces > 1:
            for chain, units in plan.batches(self._pieces):
                listed = [*units]
                lists = _pieces(listed, steps, out)
                self._add(chain.spec.shape, lists, len(listed), self._opened(listed))
            return
        if plan.grid.is_regular:
            each = zip(selection, plan.grid.largest, strict=True)
            along = [_steps(chosen, length) for chosen, length in each]
            self._add(plan.grid.largest, _product(along, steps, out), plan.number)
            return
        for shape, parts in plan.shapes():
            number = math.prod(map(len, parts))
            self._add(shape, _product([*map(_listed, parts)], steps, out), number)

    def _add(self, shape: tuple[int, ...], lists: Lists, number: int, opened: Numbers | None = None) -> None:
        engine = self._engine
        layout = cast("Layout", reading.of(engine.chain_of(shape)))
        prefix = os.fsencode(self._prefix)
        self._batches.append(Batch(layout, prefix, engine.separator, lists, number, opened))

    def _opened(self, units: Sequence[ChunkProjection]) -> Numbers:
        """An open file for each piece of a shard: all pieces are read from one version of it."""
        found: dict[tuple[int, ...], int] = {}
        for unit in units:
            if unit.coords not in found:
                try:
                    path = self._prefix + self._engine.separator.join(unit.texts)
                    found[unit.coords] = os.open(path, platform.OPEN)
                    self._descriptors.append(found[unit.coords])
                except OSError:  # Absent or not readable; the Python executor finds out which.
                    found[unit.coords] = -1
        return np.array([found[unit.coords] for unit in units], np.int64)

    def work(self, threads: int) -> int:
        """Read units in this thread until none are left; returns 0."""
        fill, nbytes = self._engine.fill, self._engine.meta.chain.spec.nbytes
        with contextlib.suppress(MemoryError):  # The Python executor takes less, and reads what is left.
            for batch in self._batches:
                run = max(1, min(_MOST_RUN, len(batch.status) // (4 * threads), _RUN_BYTES // nbytes))
                batch.read(self._out, fill, self._stop, run)
        return 0

    def stop(self) -> None:
        """Let all threads return soon."""
        self._stop[0] = 1

    def close(self) -> None:
        """Close the shared shards."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    def absent(self) -> list[tuple[int, ...]]:
        """The coordinates of the absent units."""
        return [coords for batch in self._batches for coords in batch.absent()]

    @property
    def missing(self) -> int:
        """Number of absent units."""
        return sum(int(np.count_nonzero(batch.status == ABSENT)) for batch in self._batches)

    def left(self) -> tuple[int, Iterator[PlanBatch]]:
        """The number of units that the Python executor has to read, and these units."""
        chosen = [batch.status == LEFT for batch in self._batches]
        number = sum(int(np.count_nonzero(each)) for each in chosen)
        planned = self._plan.batches(self._pieces) if number else iter(())
        left = (
            (chain, itertools.compress(units, each.tolist()))
            for (chain, units), each in zip(planned, chosen, strict=False)
            if each.any()
        )
        return number, left


def read_value(
    chain: CodecChain, value: Buffer, inner: tuple[slice, ...], place: AnyArray, fill: AnyArray
) -> bool:
    """Read a box of a shard in memory.

    Parameters
    ----------
    chain : CodecChain
    value : buffer
        The stored bytes.
    inner : tuple of slice
        The wanted elements of the shard.
    place : ndarray
        Gets them.
    fill : ndarray
        The fill value.

    Returns
    -------
    bool
        Whether they were read; if not, the Python executor has to read them.
    """
    layout = reading.of(chain)
    if layout is None or place.dtype != chain.spec.dtype or place.ndim != len(inner):
        return False
    octets = np.frombuffer(value, np.uint8)
    whole = tuple(slice(0, extent) for extent in place.shape)
    unit = ChunkProjection((0,) * len(inner), (), inner, whole, ())
    lists = _pieces([unit], [min(part.step, LONGEST) for part in inner], place)
    where = np.array([octets.ctypes.data, len(octets)], np.int64)
    batch = Batch(layout, b"", "/", lists, 1, value=where)
    batch.read(place, fill, np.zeros(1, np.int64), 1)
    return bool(batch.status[0] == DONE)


def missing() -> dict[str, str]:
    """By library, the reason why compiled code does not use it; empty for a library that is used."""
    return dict(bind())


def compile_all() -> None:
    """Compile the loops, or load their machine code from the disk."""
    zero = np.zeros(1, np.int64)
    at = address_of(zero)
    boxes = Boxes(1, 0, *[at] * 9)
    chunk, shards = Chunk(at, at, 1, 1, 0, 1, 0, 0, 1, 1), Shards(0, 0, 0, 0, 0)
    arrays = np.zeros(64, np.int64)
    scratch = Scratch(address_of(arrays[32:]), address_of(arrays), at, at, at, at)
    read_units(scratch, Source(at, 1, 0, 0, 0, 0, 0), boxes, chunk, shards, at, at, at, 1, 0, at, at)
