"""Divides a selection among arrays that lie one after the other along a dimension, or beside one another.

A part is what one array reads, and where its values go in the result. Knows nothing of stores or chunks.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
from msgspec.structs import replace

from xzarr3.io.selection import DimChoice, DimIndices, DimSelection, Points

Selected: TypeAlias = "tuple[DimChoice, ...] | Points"


class Piece(NamedTuple):
    """What one array reads of a selection.

    Parameters
    ----------
    at : int
        The number of the array.
    selection : selection
        What it reads.
    place : tuple
        Index of the result: the part that gets the values.
    repeated : int, optional
        The dimension of that part along which the values, which lack it, are repeated.
    """

    at: int
    selection: Selected
    place: tuple[Any, ...]
    repeated: int | None = None


@dataclass(frozen=True)
class Joint:
    """How arrays are joined.

    Parameters
    ----------
    axis : int
        The dimension of the joined array along which they lie.
    bounds : sequence of int
        The first element of each array along it, and one past the last element of the last array.
    is_new : bool
        Whether the arrays lack the dimension, so that each is one element of it.
    """

    axis: int
    bounds: Sequence[int]
    is_new: bool

    def split(self, selection: Selected) -> Iterator[Piece]:
        """What each array reads of a selection. An array without selected elements is left out."""
        points = selection
        if not isinstance(points, Points):  # The same as around no points.
            points = Points((), (), (), cast("tuple[DimSelection, ...]", selection))
        if self.axis in points.axes:
            yield from self._split_at_points(points)
            return
        others, number = points.others, self.axis - sum(axis < self.axis for axis in points.axes)
        chosen, kept = others[number], sum(not each.drop for each in others[:number])
        is_behind = kept >= points.position
        before = (slice(None),) * (kept + (len(points.shape) if is_behind else 0))
        position = points.position - (self.is_new and not chosen.drop and not is_behind)
        for at, part, place in self._along(chosen):
            own = () if self.is_new else (part,)
            left: tuple[Any, ...] = (*others[:number], *own, *others[number + 1 :])
            read: Selected = left
            if points.axes:
                read = replace(points, axes=self._left(points), others=left, position=position)
            for index in self._places(chosen, part, place):
                yield Piece(at, read, (*before, *index) if index else ())

    def _places(self, chosen: DimChoice, part: DimChoice, place: Any) -> Iterable[tuple[Any, ...]]:
        """Where along the axis of the result an array goes: in many places if it lacks the axis."""
        if chosen.drop:
            return [()]
        if not self.is_new:
            return [(place,)]
        found = range(place.start, place.start + part.count) if isinstance(place, slice) else place.tolist()
        return ((position,) for position in found)

    def _along(self, chosen: DimChoice) -> Iterator[tuple[int, DimChoice, Any]]:
        """For each array, what of it is selected along the axis, and where that is in the result."""
        first, last = self.touched(chosen.start, chosen.stop) if chosen.count else (0, 0)
        for at in range(first, last):
            start, stop = self.bounds[at], self.bounds[at + 1]
            if isinstance(chosen, DimSelection):
                begin = max(0, -((chosen.start - start) // chosen.step))
                end = min(chosen.count, -((chosen.start - stop) // chosen.step))
                if begin < end:
                    local = chosen.start + begin * chosen.step - start
                    part = replace(chosen, start=local, count=end - begin)
                    turned = slice(chosen.count - end, chosen.count - begin)
                    yield at, part, turned if chosen.reverse else slice(begin, end)
            else:
                begin, end = np.searchsorted(chosen.indices, (start, stop)).tolist()
                if begin < end:
                    place = slice(begin, end) if chosen.order is None else chosen.order[begin:end]
                    yield at, DimIndices(chosen.indices[begin:end] - start), place

    def touched(self, start: int, stop: int) -> tuple[int, int]:
        """The number of the first array between these elements, and one past that of the last."""
        return bisect.bisect_right(self.bounds, start) - 1, bisect.bisect_left(self.bounds, stop)

    def _split_at_points(self, points: Points) -> Iterator[Piece]:
        """The pieces of points that have an index for the axis."""
        number = points.axes.index(self.axis)
        owners = np.searchsorted(np.asarray(self.bounds), points.indices[number], side="right") - 1
        before = (slice(None),) * points.position
        for at in np.unique(owners).tolist():
            mine = np.flatnonzero(owners == at)
            indices = [each[mine] for each in points.indices]
            place: tuple[Any, ...] = ()
            shape: tuple[int, ...] = ()
            if points.shape:
                place, shape = (*before, *np.unravel_index(mine, points.shape)), mine.shape
            if not self.is_new:
                indices[number] = indices[number] - self.bounds[at]
                yield Piece(at, replace(points, indices=tuple(indices), shape=shape), place)
                continue
            del indices[number]
            axes = self._left(points)
            if axes:
                yield Piece(at, replace(points, axes=axes, indices=tuple(indices), shape=shape), place)
            else:  # The array has the same values for all points.
                yield Piece(at, points.others, place, points.position if points.shape else None)

    def _left(self, points: Points) -> tuple[int, ...]:
        """The dimensions with points, as the arrays number them, which may lack the axis."""
        return tuple(axis - (self.is_new and axis > self.axis) for axis in points.axes if axis != self.axis)
