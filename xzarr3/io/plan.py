"""The plan of a read or write: which units of storage a selection touches, and what is fetched of each.

Reading carries a :class:`ReadPlan` out, :meth:`xzarr3.Array.explain` prints it, and writing divides its
values by it. A selection of a grid is a product over the dimensions, so a plan holds one list of parts for
each dimension and never a list of chunks, unless single elements are selected. The units of a grid whose
chunks differ are taken in groups of one shape, because the codecs are bound to a shape.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from xzarr3._types import AnyArray
from xzarr3.codecs.pipeline import CodecChain
from xzarr3.codecs.sharding import Shard
from xzarr3.grid import Grid
from xzarr3.io.byte_ranges import ElementRanges, Price, element_ranges
from xzarr3.io.projection import (
    ONE,
    Addressing,
    AxisProjection,
    ChunkProjection,
    Inner,
    Mesh,
    Pointwise,
    Slices,
    axis_parts,
    projections,
    split_part,
)
from xzarr3.io.selection import DimChoice, DimIndices, DimSelection, Indices, Points

WHOLE_SHARD = 2**26
"""Bytes of a decoded shard; larger ones are not read in one piece, to spare memory."""

Batch: TypeAlias = tuple[CodecChain, Iterator[ChunkProjection]]
"""Units of one shape, and the codecs bound to it."""


class InnerChunks(NamedTuple):
    """What is wanted of a shard."""

    chosen: Any
    """Selects the entries of the wanted inner chunks from the index."""
    units: list[ChunkProjection]
    """These inner chunks."""
    whole: bool
    """Whether the shard is read in one piece, index and all, because most of it is wanted."""


class Span(NamedTuple):
    """What is read of an inner chunk whose stored bytes are its elements."""

    start: int
    """Where in the shard it begins, in bytes."""
    length: int
    """Number of bytes."""
    size: int
    """Size in bytes of the inner chunk."""
    unit: ChunkProjection
    """The inner chunk."""
    ranges: ElementRanges | None
    """The one range of its elements; None for all of them."""


class ReadPlan:
    """What a selection of an array touches.

    Parameters
    ----------
    selection : tuple of DimSelection or DimIndices, or Points
        What is selected; see :mod:`xzarr3.io.selection`.
    shape : tuple of int
        Shape of the array.
    grid : Grid
        How the array is divided into units of storage: shards, or chunks that are in none.
    chain_of : callable
        Gives the codecs bound to units of a shape.
    price : Price
        What requests and bytes cost at the store.

    Examples
    --------
    >>> import xzarr3
    >>> array = xzarr3.create_array(xzarr3.MemoryStore(), shape=(10, 10), chunks=(4, 4), dtype="int8")
    >>> plan = array.plan((slice(1, 7), -1))
    >>> plan.shape, plan.number, list(plan.coords())
    ((6,), 2, [(0, 2), (1, 2)])
    """

    def __init__(
        self,
        selection: tuple[DimChoice, ...] | Points,
        shape: tuple[int, ...],
        grid: Grid,
        chain_of: Callable[[tuple[int, ...]], CodecChain],
        price: Price,
    ) -> None:
        self.selection = selection
        self.grid = grid
        self.price = price
        self._array_shape = shape
        self._chain_of = chain_of
        self._last_elements: tuple[CodecChain, Inner, ElementRanges | None] | None = None

    @cached_property
    def addressing(self) -> Addressing:
        """How it is told which elements of a unit are wanted."""
        if isinstance(self.selection, Points):
            return Pointwise(self.selection.axes, len(self._array_shape))
        return Slices() if all(isinstance(chosen, DimSelection) for chosen in self.selection) else Mesh()

    # The result

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        if not isinstance(self.selection, Points):
            return tuple(chosen.count for chosen in self.selection if not _is_dropped(chosen))
        others = [chosen.count for chosen in self.selection.others]
        at = self.selection.position
        return (*others[:at], *self.selection.shape, *others[at:])

    @cached_property
    def buffer_shape(self) -> tuple[int, ...]:
        """Shape of what the units are put into: no dimension is dropped, and points are one dimension."""
        if isinstance(self.selection, Points):
            return (len(self.selection.indices[0]), *(chosen.count for chosen in self.selection.others))
        return tuple(chosen.count for chosen in self.selection)

    def aligned(self, result: AnyArray) -> AnyArray:
        """A view of a result, or of values to write, with the dimensions of the buffer.

        Its elements may be in another order than those of the buffer: see :attr:`order`.
        """
        if isinstance(self.selection, Points):
            at, ndim = self.selection.position, len(self.selection.shape)
            view = np.moveaxis(result, range(at, at + ndim), range(ndim))
            directions = map(_direction, self.selection.others)
            return view[(*(slice(None),) * ndim, *directions)] if ndim or self.selection.others else view
        dropped = (np.newaxis if _is_dropped(chosen) else slice(None) for chosen in self.selection)
        aligned: AnyArray = result[(*dropped, ...)]
        if any(isinstance(chosen, DimSelection) and chosen.reverse for chosen in self.selection):
            aligned = aligned[tuple(map(_direction, self.selection))]
        return aligned

    @cached_property
    def order(self) -> tuple[Any, ...] | None:
        """Selects, from an aligned result, its elements in the order of the buffer; None if they are."""
        if isinstance(self.selection, Points):
            order = self._point_units[0]
            return None if order is None else (order,)
        if not any(isinstance(chosen, DimIndices) and chosen.order is not None for chosen in self.selection):
            return None
        return np.ix_(
            *(
                chosen.order
                if isinstance(chosen, DimIndices) and chosen.order is not None
                else np.arange(chosen.count)
                for chosen in self.selection
            )
        )

    def buffer_for(self, out: AnyArray) -> AnyArray:
        """What the units are read into: ``out`` itself, if its elements are in their order, or new memory."""
        if self.order is None:
            view = self.aligned(out)
            if view.shape == self.buffer_shape:
                return view
            if view.flags.c_contiguous:
                return view.reshape(self.buffer_shape)
        return np.empty(self.buffer_shape, out.dtype)

    def hand_over(self, buffer: AnyArray, out: AnyArray) -> None:
        """Put what was read into the result, if it was not read there."""
        if np.may_share_memory(buffer, out):
            return
        view = self.aligned(out)
        if not isinstance(self.selection, Points):
            view[self.order] = buffer
            return
        if self.order is not None:
            ordered = np.empty_like(buffer)
            ordered[self.order] = buffer
            buffer = ordered
        view[...] = buffer.reshape(view.shape)

    def source(self, values: AnyArray) -> AnyArray:
        """Values to write, whose shape is that of the result, in the order of the buffer."""
        view = self.aligned(values)
        if isinstance(self.selection, Points):
            view = view.reshape(self.buffer_shape)
        return view if self.order is None else view[self.order]

    # The units

    @cached_property
    def parts(self) -> list[list[AxisProjection]]:
        """For each dimension, how what is selected is divided among the units; not for points."""
        selection = cast("tuple[DimChoice, ...]", self.selection)
        return [*map(axis_parts, selection, self.grid.axes, self._array_shape)]

    @cached_property
    def _point_units(self) -> tuple[Indices | None, list[tuple[tuple[int, ...], ChunkProjection]]]:
        """The order of the points in which each unit's come together, and the units with their shapes."""
        points, addressing = cast("Points", self.selection), cast("Pointwise", self.addressing)
        others = [
            axis_parts(chosen, self.grid.axes[axis], self._array_shape[axis])
            for chosen, axis in zip(points.others, addressing.others, strict=True)
        ]
        shard = self._chain_of(self.grid.largest).shard
        finer = None if shard is None else shard.grid.chunk_shape
        order, units = addressing.units(points.indices, self.grid.axes, others, finer)
        return order, list(units)

    @cached_property
    def number(self) -> int:
        """Number of units that are touched."""
        if isinstance(self.selection, Points):
            return len(self._point_units[1])
        return math.prod(map(len, self.parts))

    def coords(self) -> Iterator[tuple[int, ...]]:
        """The coordinates of the units that are touched, in C order."""
        if isinstance(self.selection, Points):
            return iter(sorted(unit.coords for _, unit in self._point_units[1]))
        return itertools.product(*([part.coord for part in along] for along in self.parts))

    def batches(self, pieces: int = 1) -> Iterator[Batch]:
        """The units that are touched, by their shapes; a regular grid makes one batch.

        Parameters
        ----------
        pieces : int
            Cut shards at inner chunks, so that there are about so many units to share out.
        """
        cut = -(-pieces // max(self.number, 1))
        if isinstance(self.selection, Points):
            for shape, units in itertools.groupby(self._point_units[1], key=lambda unit: unit[0]):
                chain = self._chain_of(shape)
                found = (unit for _, unit in units)
                yield chain, (_cut_points(found, cut) if cut > 1 and chain.shard is not None else found)
            return
        for shape, parts in self._groups():
            chain = self._chain_of(shape)
            if cut > 1 and chain.shard is not None:
                parts = _cut_parts(parts, chain.shard, cut)
            yield chain, projections(parts) if parts else iter((ONE,))

    def _groups(self) -> Iterator[tuple[tuple[int, ...], list[list[AxisProjection]]]]:
        """The parts of units of one shape, whose product they are."""
        if self.grid.is_regular:
            yield self.grid.largest, self.parts
            return
        by_length: list[dict[int, list[AxisProjection]]] = []
        for axis, parts in zip(self.grid.axes, self.parts, strict=True):
            found: dict[int, list[AxisProjection]] = {}
            for part in parts:
                found.setdefault(axis.length_at(part.coord), []).append(part)
            by_length.append(found)
        for shape in itertools.product(*by_length):
            yield shape, [along[length] for along, length in zip(by_length, shape, strict=True)]

    # What is fetched of a unit

    def elements(self, chain: CodecChain, inner: Inner) -> ElementRanges | None:
        """The byte ranges of a part of a chunk that is stored as it is in memory; None for all of it."""
        last = self._last_elements
        if last is None or last[0] is not chain or not self.addressing.same(inner, last[1]):
            last = chain, inner, element_ranges(chain, self.addressing, inner, self.price)
            self._last_elements = last
        return last[2]

    def inner_chunks(self, shard: Shard, inner: Inner) -> InnerChunks:
        """The inner chunks of a shard that hold what is wanted of it."""
        chosen, units = self.addressing.divide(inner, shard.grid.chunk_shape, shard.spec.shape)
        whole = 2 * len(units) >= shard.number and shard.spec.nbytes <= WHOLE_SHARD
        return InnerChunks(chosen, units, whole)

    def present(
        self, shard: Shard, index: npt.NDArray[np.uint64], wanted: InnerChunks
    ) -> tuple[list[list[int]], list[ChunkProjection], list[ChunkProjection]]:
        """Which of the wanted inner chunks there are, given the index of the shard.

        Returns
        -------
        tuple of list
            Offset and size in bytes of those that are there, these inner chunks, and the absent ones.

        Raises
        ------
        ChunkDecodeError
            If the index cannot be true.
        """
        entries = index[wanted.chosen].reshape(-1, 2)
        there = shard.present(entries, lambda at: wanted.units[at].coords)
        if there is None:
            return entries.tolist(), wanted.units, []
        units = [*itertools.compress(wanted.units, there)]
        return entries[there].tolist(), units, [*itertools.compress(wanted.units, ~there)]

    def spans(
        self, chain: CodecChain, entries: Sequence[Sequence[int]], units: Sequence[ChunkProjection]
    ) -> tuple[list[Span], list[tuple[Sequence[int], ChunkProjection]]]:
        """What is read of inner chunks in one piece of each, and those of which several pieces are."""
        spans: list[Span] = []
        scattered: list[tuple[Sequence[int], ChunkProjection]] = []
        for entry, unit in zip(entries, units, strict=True):
            offset, size = entry
            ranges = self.elements(chain, unit.inner)
            if ranges is None:
                spans.append(Span(offset, size, size, unit, None))
            elif len(ranges.starts) == 1:
                spans.append(Span(offset + ranges.starts[0], ranges.lengths[0], size, unit, ranges))
            else:
                scattered.append((entry, unit))
        return spans, scattered

    def work(self) -> int:
        """About how many bytes have to be decoded."""
        chain, unit = next(((chain, next(units, None)) for chain, units in self.batches()), (None, None))
        if chain is None or unit is None:
            return 0
        wanted = math.prod(self.buffer_shape) * chain.spec.dtype.itemsize
        if chain.shard is not None and chain.shard.inner.is_plain:
            return wanted
        if chain.shard is not None:
            touched = self.addressing.touched(unit.inner, chain.shard.grid.chunk_shape)
            return self.number * min(touched, chain.shard.number) * chain.shard.inner.spec.nbytes
        if chain.is_plain and self.elements(chain, unit.inner) is not None:
            return wanted
        return self.number * chain.spec.nbytes


def _is_dropped(chosen: DimChoice) -> bool:
    return isinstance(chosen, DimSelection) and chosen.drop


def _direction(chosen: DimChoice) -> slice:
    return slice(None, None, -1 if isinstance(chosen, DimSelection) and chosen.reverse else 1)


def _cut_parts(parts: list[list[AxisProjection]], shard: Shard, pieces: int) -> list[list[AxisProjection]]:
    """Cut shards along the dimension in which they have most inner chunks."""
    axis = max(range(len(parts)), key=shard.counts.__getitem__, default=None)
    if axis is None:
        return parts
    length = shard.grid.chunk_shape[axis]
    cut = [piece for part in parts[axis] for piece in split_part(part, length, pieces)]
    return [*parts[:axis], cut, *parts[axis + 1 :]]


def _cut_points(units: Iterator[ChunkProjection], pieces: int) -> Iterator[ChunkProjection]:
    """Cut the points in a shard into runs; the inner chunks where two runs meet are decoded twice."""
    for unit in units:
        number = len(unit.inner[0])
        run = -(-number // pieces)
        first = unit.outer[0].start
        for at in range(0, number, run):
            stop = min(at + run, number)
            ours = tuple(chosen if isinstance(chosen, slice) else chosen[at:stop] for chosen in unit.inner)
            yield unit._replace(inner=ours, outer=(slice(first + at, first + stop), *unit.outer[1:]))
