"""Projection: divides a selection among the chunks of a grid, and a chunk's part among its inner chunks.

Each dimension is divided on its own, into one :class:`AxisProjection` for each chunk along it. No list of all
chunks is made, unless single elements are selected. :class:`Slices` is one way to describe the wanted
elements of a chunk; there is one for each kind of selection. Knows nothing of codecs and stores.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from xzarr3._types import AnyArray
from xzarr3.grid import Edges, Steps
from xzarr3.io.selection import DimChoice, DimIndices, DimSelection, Indices, as_progression

Inner: TypeAlias = "tuple[Any, ...]"
"""The wanted elements of a chunk: a slice with a step, or an array, for each dimension."""


class AxisProjection(NamedTuple):
    """The wanted part of a chunk along one dimension."""

    coord: int
    """Coordinate of the chunk in the grid."""
    inner: Any
    """The elements within the chunk: a slice, or an array in ascending order."""
    outer: slice
    """Their place in the result."""
    whole: bool
    """Whether these are all elements of the chunk that lie within the array."""


class ChunkProjection(NamedTuple):
    """The wanted part of a chunk; each field has that of the :class:`AxisProjection` of every dimension."""

    coords: tuple[int, ...]
    """Coordinates of the chunk in the grid."""
    inner: Inner
    """The wanted elements within the chunk."""
    outer: tuple[Any, ...]
    """Their place in the result."""
    whole: tuple[bool, ...]
    """For each dimension, whether these are all elements of the chunk that lie within the array."""


# Calling the classes would run Python code for each chunk; these calls run none.
_axis_projection = cast("Callable[[tuple[Any, ...]], AxisProjection]", partial(tuple.__new__, AxisProjection))
chunk_projection = cast("Callable[[Iterable[Any]], ChunkProjection]", partial(tuple.__new__, ChunkProjection))
"""Makes a projection from an iterable of its four fields."""

_LARGEST = np.iinfo(np.intp).max

ONE = ChunkProjection((), (), (...,), ())
"""The only chunk of an array of no dimensions. Indexing the result with the Ellipsis gives a view."""


def axis_parts(selected: DimChoice, axis: Steps | Edges, size: int) -> list[AxisProjection]:
    """Divide the selection along a dimension of ``size`` elements among the chunks of a grid."""
    if isinstance(selected, DimIndices):
        return _index_parts(selected.indices, axis, size)
    if isinstance(axis, Steps):
        return dimension_parts(selected, axis.length, size)
    first, step, stop = selected.start, selected.step, selected.stop
    parts: list[AxisProjection] = []
    done = 0
    while selected.count and first < stop:
        start, end, base, length = axis.run_at(first, size)
        within = DimSelection(first - start, step, -(-(min(end, stop) - first) // step))
        for part in dimension_parts(within, length, end - start):
            place = slice(done + part.outer.start, done + part.outer.stop)
            parts.append(AxisProjection(base + part.coord, part.inner, place, part.whole))
        done += within.count
        first += within.count * step
    return parts


def touched(selected: DimChoice, axis: Steps | Edges) -> int | None:
    """Number of chunks that a selection along a dimension touches; None if that takes as long as dividing."""
    if isinstance(selected, DimIndices) or not isinstance(axis, Steps):
        return None
    if selected.count == 0 or selected.step >= axis.length:
        return selected.count
    last = selected.start + (selected.count - 1) * selected.step
    return last // axis.length - selected.start // axis.length + 1


def dimension_parts(selected: DimSelection, length: int, size: int) -> list[AxisProjection]:
    """Divide the selection along a dimension of ``size`` elements among chunks of ``length`` elements."""
    first, step, count = selected.start, selected.step, selected.count
    if count == 0:
        return []
    stop, index = first + (count - 1) * step + 1, first // length
    low = index * length
    if stop <= low + length:  # Fast path: all lie in one chunk.
        inner, whole = slice(first - low, stop - low, step), count == min(length, size - low)
        return [_axis_projection((index, inner, slice(0, count), whole))]
    parts: list[AxisProjection] = []
    done = 0
    while first < stop:
        index = first // length
        low = index * length
        end = min(low + length, size)
        count = -(-(min(end, stop) - first) // step)
        inner = slice(first - low, first - low + (count - 1) * step + 1, step)
        place = slice(done, done + count)
        parts.append(_axis_projection((index, inner, place, count == end - low)))
        done += count
        first += count * step
    return parts


def _index_parts(indices: Indices, axis: Steps | Edges, size: int) -> list[AxisProjection]:
    chunks, within = axis.locate(indices)
    edges = [0, *(np.flatnonzero(chunks[1:] != chunks[:-1]) + 1).tolist(), len(chunks)]
    parts: list[AxisProjection] = []
    for begin, end in itertools.pairwise(edges if len(chunks) else ()):
        coord = int(chunks[begin])
        extent = min(axis.length_at(coord), size - axis.start(coord))
        inner = within[begin:end]
        found = as_progression(inner)
        whole = end - begin >= extent and len(np.unique(inner)) == extent
        chosen = inner if found is None else slice(found.start, found.stop, found.step)
        parts.append(_axis_projection((coord, chosen, slice(begin, end), whole)))
    return parts


def _parts_within(inner: Any, length: int, size: int) -> list[AxisProjection]:
    """Divide elements of a chunk, along one dimension, among inner chunks of ``length`` elements."""
    if isinstance(inner, slice):
        count = len(range(inner.start, inner.stop, inner.step))
        return dimension_parts(DimSelection(inner.start, inner.step, count), length, size)
    return _index_parts(inner, Steps(length), size)


def projections(parts: Sequence[Sequence[AxisProjection]]) -> Iterator[ChunkProjection]:
    """The chunk projections that these axis projections combine to, in C order."""
    if not all(parts):
        return iter(())
    if max(map(len, parts)) == 1:  # Fast path: one chunk.
        return iter((chunk_projection(zip(*[along[0] for along in parts], strict=True)),))
    # One product for each field is faster than one product of the parts, which would need unpacking.
    columns = zip(*(zip(*along, strict=True) for along in parts), strict=True)
    return map(chunk_projection, zip(*itertools.starmap(itertools.product, columns), strict=True))


class Slices:
    """One way to describe the wanted elements of a chunk: a slice for each dimension.

    The values of these elements are an array of the shape that :meth:`take` returns. Other ways derive from
    this one.
    """

    same: Callable[[Any, Any], bool] = staticmethod(operator.eq)
    """Whether two descriptions certainly are of the same elements; False does not mean that they differ."""

    def view(self, chunk: AnyArray) -> AnyArray:
        """The chunk with its dimensions in the order of ``inner``."""
        return chunk

    def index(self, inner: Inner) -> Inner:
        """The numpy index that selects the elements from the view."""
        return inner

    def take(self, chunk: AnyArray, inner: Inner) -> AnyArray:
        """The wanted elements."""
        taken: AnyArray = self.view(chunk)[self.index(inner)]
        return taken

    def put(self, chunk: AnyArray, inner: Inner, values: AnyArray, fields: tuple[str, ...] = ()) -> None:
        """Set these elements, or only ``fields`` of them, to ``values``."""
        view, index = self.view(chunk), self.index(inner)
        if not fields:
            view[index] = values
        for name in fields:
            view[name][index] = values[name]

    def divide(
        self, inner: Inner, lengths: tuple[int, ...], sizes: tuple[int, ...]
    ) -> tuple[Any, list[ChunkProjection]]:
        """Divide the elements among inner chunks of one shape.

        Returns
        -------
        tuple
            An index that selects the inner chunks, in C order, from an array that has the shape of their grid
            and one more dimension; and the inner chunks in that order.
        """
        parts = [*map(_parts_within, inner, lengths, sizes)]
        if not parts:
            return (), [ONE]
        # Neighbours, the usual case, are selected without a copy.
        if all(along[-1].coord - along[0].coord + 1 == len(along) for along in parts):
            chosen: Any = tuple([slice(along[0].coord, along[-1].coord + 1) for along in parts])
        else:
            chosen = np.ix_(*([part.coord for part in along] for along in parts))
        return chosen, [*projections(parts)]

    def offsets(self, inner: Inner, strides: tuple[int, ...]) -> Indices:
        """Offset in bytes of each element in a chunk with these strides; has the shape of :meth:`take`."""
        return reduce(np.add.outer, map(operator.mul, map(_elements, inner), strides))


def _elements(chosen: slice | Indices) -> Indices:
    return np.arange(chosen.start, chosen.stop, chosen.step) if isinstance(chosen, slice) else chosen


def _same(one: Any, other: Any) -> bool:
    pairs = zip(one, other, strict=True)
    return all(a is b or (isinstance(a, slice) and isinstance(b, slice) and a == b) for a, b in pairs)


class Mesh(Slices):
    """A slice or an array for each dimension: all combinations are wanted."""

    same = staticmethod(_same)

    def index(self, inner: Inner) -> Inner:
        # For one array among slices, numpy means the same.
        arrays = sum(not isinstance(chosen, slice) for chosen in inner)
        return inner if arrays < 2 else np.ix_(*map(_elements, inner))


class PointGroups(NamedTuple):
    """Points grouped by chunk."""

    order: Indices | None
    """The order that groups the points; None if they are grouped already."""
    begins: Indices
    """The first point of each chunk."""
    chunks: list[Indices]
    """For each dimension that has points, the coordinate of each chunk."""
    within: list[Indices]
    """For each dimension that has points, the position of each grouped point in its chunk."""


class Pointwise(Slices):
    """Index arrays that select points together along some dimensions, and slices along the others.

    In ``inner`` the arrays come first, and in the values the dimension of the points comes first.

    Parameters
    ----------
    axes : tuple of int
        The dimensions that have an index array.
    ndim : int
        Number of dimensions of the array.
    """

    same = staticmethod(operator.is_)

    def __init__(self, axes: tuple[int, ...], ndim: int) -> None:
        self.axes = axes
        self.others = tuple(axis for axis in range(ndim) if axis not in axes)
        self._order = axes + self.others
        self._back = tuple(self._order.index(axis) for axis in range(ndim))
        self._points = len(axes)

    def view(self, chunk: AnyArray) -> AnyArray:
        return chunk.transpose(self._order)

    def grouped(
        self, points: tuple[Indices, ...], axes: Sequence[Steps | Edges], finer: tuple[int, ...] | None = None
    ) -> PointGroups:
        """Group points by chunk.

        Parameters
        ----------
        points : tuple of ndarray of int
            The indices, for each dimension of :attr:`axes`.
        axes : sequence of Steps or Edges
            The grid along all dimensions.
        finer : tuple of int, optional
            Shape of the inner chunks. If given, the order groups points by inner chunk as well.
        """
        located = [axes[axis].locate(indices) for axis, indices in zip(self.axes, points, strict=True)]
        chunks, within = [chunk for chunk, _ in located], [inside for _, inside in located]
        keys = [*chunks]
        if finer is not None:
            keys += [inside // min(finer[at], _LARGEST) for at, inside in zip(self.axes, within, strict=True)]
        lexical = np.lexsort(keys[::-1])
        order = None if np.all(lexical[1:] > lexical[:-1]) else lexical
        if order is not None:
            chunks, within = [chunk[order] for chunk in chunks], [inside[order] for inside in within]
        changes = np.any([chunk[1:] != chunk[:-1] for chunk in chunks], axis=0)
        begins = np.flatnonzero(np.concatenate([[len(within[0]) > 0], changes]))
        return PointGroups(order, begins, [chunk[begins] for chunk in chunks], within)

    def units(
        self, groups: PointGroups, axes: Sequence[Steps | Edges], others: list[list[AxisProjection]]
    ) -> Iterator[tuple[tuple[int, ...], ChunkProjection]]:
        """The chunks that hold grouped points, each with its shape.

        Parameters
        ----------
        groups : PointGroups
        axes : sequence of Steps or Edges
            The grid along all dimensions.
        others : list of list of AxisProjection
            The parts along each of the other dimensions.
        """
        combinations = [*itertools.product(*others)]
        regular = all(isinstance(axis, Steps) for axis in axes)
        shape = tuple(axis.longest for axis in axes)
        ends = [*groups.begins[1:].tolist(), len(groups.within[0])]
        firsts = zip(*(chunk.tolist() for chunk in groups.chunks), strict=True)
        for begin, end, at in zip(groups.begins.tolist(), ends, firsts, strict=False):
            ours = tuple([inside[begin:end] for inside in groups.within])
            for parts in combinations:
                first = (*at, *[part.coord for part in parts])
                coords = tuple([first[axis] for axis in self._back])
                inner = (*ours, *(part.inner for part in parts))
                outer = (slice(begin, end), *(part.outer for part in parts))
                if not regular:
                    shape = tuple(axis.length_at(index) for axis, index in zip(axes, coords, strict=True))
                yield shape, chunk_projection((coords, inner, outer, (False,)))

    def divide(
        self, inner: Inner, lengths: tuple[int, ...], sizes: tuple[int, ...]
    ) -> tuple[Any, list[ChunkProjection]]:
        slices = inner[self._points :]
        others = [
            _parts_within(part, lengths[axis], sizes[axis])
            for part, axis in zip(slices, self.others, strict=True)
        ]
        axes = [Steps(length) for length in lengths]
        groups = self.grouped(inner[: self._points], axes)
        order, found = groups.order, [unit for _, unit in self.units(groups, axes, others)]
        if order is not None:
            found = [unit._replace(outer=(order[unit.outer[0]], *unit.outer[1:])) for unit in found]
        coords = [unit.coords for unit in found]
        return tuple(np.array(coords, np.intp).reshape(len(coords), -1).T), found

    def offsets(self, inner: Inner, strides: tuple[int, ...]) -> Indices:
        along = [_elements(chosen) * strides[axis] for chosen, axis in zip(inner, self._order, strict=True)]
        return reduce(np.add.outer, along[self._points :], reduce(np.add, along[: self._points]))
