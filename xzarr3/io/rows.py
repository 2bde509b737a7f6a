"""Rows: the boxes that a selection has in each chunk, as flat arrays for native code.

A box is a product of progressions: ``start``, ``extent`` and the step of the selection, for each dimension. A
selection becomes boxes of the array, these are divided at the borders of stored units, and those of shards
once more at the borders of inner chunks. All arrays have one entry a box or a row; no Python runs for each.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from xzarr3.io.plan import ReadPlan
from xzarr3.io.projection import AxisProjection, Slices
from xzarr3.io.selection import DimChoice, DimSelection, Points

Numbers: TypeAlias = npt.NDArray[np.int64]

MOST = 8192
"""Stored units in a batch of rows, at most."""
_DENSE = 64
"""Boxes of a chunk, on average; numpy places more of them faster."""


class Boxes(NamedTuple):
    """Boxes of an array or of its chunks; each list has one array for each dimension."""

    start: list[Numbers]
    extent: list[Numbers]
    place: Numbers
    """Byte of the result at which the first element of each box belongs."""

    def take(self, at: Numbers | slice) -> Boxes:
        """Some of the boxes."""
        return Boxes([each[at] for each in self.start], [each[at] for each in self.extent], self.place[at])


class Rows(NamedTuple):
    """Chunks, each with its boxes."""

    coords: Numbers
    """Coordinates of the chunks, of shape (number, dimensions)."""
    unit: Numbers
    """For rows of inner chunks, the number of the stored unit; else the number of the row."""
    begin: Numbers
    """The first box of each row, and the number of boxes."""
    boxes: Boxes


def _along(chosen: DimChoice, stride: int) -> tuple[Numbers, Numbers, Numbers]:
    """Start, count and place of the boxes along one dimension."""
    if isinstance(chosen, DimSelection):
        zero = np.zeros(1, np.int64)
        return zero + chosen.start, zero + chosen.count, zero
    indices = chosen.indices.astype(np.int64)
    begins = np.flatnonzero(np.diff(indices, prepend=indices[0] - 2) != 1)
    return indices[begins], np.diff(begins, append=len(indices)), begins * stride


def steps_of(plan: ReadPlan) -> list[int]:
    """The step of the selection along each dimension."""
    if isinstance(plan.selection, Points):
        return [
            1 if chosen is None else chosen.step for chosen in _others(plan.selection, len(plan.grid.axes))
        ]
    return [chosen.step if isinstance(chosen, DimSelection) else 1 for chosen in plan.selection]


def strides_of(plan: ReadPlan, out: npt.NDArray[np.generic]) -> list[int]:
    """Strides of the buffer along the dimensions of the array; 0 where points have an index array."""
    if not isinstance(plan.selection, Points):
        return [*out.strides]
    others = iter(out.strides[1:])
    return [0 if chosen is None else next(others) for chosen in _others(plan.selection, len(plan.grid.axes))]


def _others(points: Points, ndim: int) -> list[DimSelection | None]:
    others = iter(points.others)
    return [None if axis in points.axes else next(others) for axis in range(ndim)]


def boxes_of(plan: ReadPlan, out: npt.NDArray[np.generic]) -> Boxes | None:
    """The boxes of a selection in the array; None if they are so many that numpy places them faster."""
    selection = plan.selection
    if isinstance(selection, Points):
        number = len(selection.indices[0])
        if number > _DENSE * plan.number:
            return None
        order = slice(None) if plan.groups.order is None else plan.groups.order
        indices = iter([each[order].astype(np.int64) for each in selection.indices])
        zero, one = np.zeros(number, np.int64), np.ones(number, np.int64)
        chosen = _others(selection, len(plan.grid.axes))
        start = [next(indices) if each is None else zero + each.start for each in chosen]
        count = [one if each is None else zero + each.count for each in chosen]
        return Boxes(start, count, np.arange(number) * out.strides[0])
    along = [_along(chosen, stride) for chosen, stride in zip(selection, out.strides, strict=True)]
    number = math.prod(len(start) for start, _, _ in along)
    if number > _DENSE * max(plan.number, 1):
        return None
    each = np.unravel_index(np.arange(number), [len(start) for start, _, _ in along]) if along else ()
    start = [part[0][at] for part, at in zip(along, each, strict=True)]
    count = [part[1][at] for part, at in zip(along, each, strict=True)]
    places = (part[2][at] for part, at in zip(along, each, strict=True))
    return Boxes(start, count, sum(places, np.zeros(number, np.int64)))


def divided(
    boxes: Boxes, lengths: Sequence[int], steps: Sequence[int], strides: Sequence[int]
) -> tuple[list[Numbers], Numbers, Boxes]:
    """Divide boxes at the borders of chunks.

    Returns
    -------
    tuple
        Along each dimension the coordinate of the chunk of each new box; the number of the box that it comes
        from; and the new boxes, whose starts count from the chunk.
    """
    start, count, place = list(boxes.start), list(boxes.extent), boxes.place
    coords: list[Numbers] = []
    parent = np.arange(len(place))
    for axis, (length, step, stride) in enumerate(zip(lengths, steps, strides, strict=True)):
        first = start[axis] // length
        number = (start[axis] + (count[axis] - 1) * step) // length - first + 1
        if number.max(initial=0) > 1:
            at = np.repeat(np.arange(len(number)), number)
            chunk = first[at] + np.arange(len(at)) - np.repeat(np.cumsum(number) - number, number)
            low = chunk * length - start[axis][at]  # Of the chunk, from the start of the box.
            begin = np.maximum(-(-low // step), 0)
            end = np.minimum(-(-(low + length) // step), count[axis][at])
            if step > 1:
                wanted = end > begin  # A long step leaves chunks out.
                at, chunk, low, begin, end = (each[wanted] for each in (at, chunk, low, begin, end))
            start, count = [each[at] for each in start], [each[at] for each in count]
            coords, parent, place = [each[at] for each in coords], parent[at], place[at] + begin * stride
            start[axis], count[axis] = begin * step - low, end - begin
            coords.append(chunk)
        else:
            start[axis] = start[axis] - first * length
            coords.append(first)
    return coords, parent, Boxes(start, count, place)


def grouped(coords: list[Numbers], unit: Numbers, boxes: Boxes) -> Rows:
    """Put boxes of one chunk into one row. Rows are in C order, those of one unit together."""
    keys = [unit, *coords]
    changes = np.zeros(max(len(unit) - 1, 0), np.bool_)
    if len(unit) > 1:
        later = np.zeros(len(changes), np.bool_)
        for key in keys:  # Whether each key is after the one before it, in lexical order.
            more, less = key[1:] > key[:-1], key[1:] < key[:-1]
            if (less & ~later).any():
                order = np.lexsort(keys[::-1])
                return grouped([each[order] for each in coords], unit[order], boxes.take(order))
            later |= more
        changes = later
    begins = np.append(0, np.flatnonzero(changes) + 1)[: len(unit)]
    at = (
        np.stack([each[begins] for each in coords], axis=1)
        if coords
        else np.zeros((len(begins), 0), np.int64)
    )
    return Rows(np.ascontiguousarray(at), unit[begins], np.append(begins, len(unit)), boxes)


def batches(plan: ReadPlan, view: npt.NDArray[np.generic]) -> Iterator[tuple[tuple[int, ...], Rows]] | None:
    """The stored units of a plan in batches of one shape; None if numpy places their elements faster.

    Parameters
    ----------
    plan : ReadPlan
    view : ndarray
        The buffer; the places of the boxes are in it.
    """
    if plan.grid.is_regular:
        boxes = boxes_of(plan, view)
        if boxes is None:
            return None
        steps, strides = steps_of(plan), strides_of(plan, view)
        return ((plan.grid.largest, each) for each in _units(boxes, plan.grid.largest, steps, strides))
    if type(plan.addressing) is not Slices:
        return None
    return ((shape, each) for shape, parts in plan.shapes() for each in _product(parts, view.strides))


def _product(parts: Sequence[Sequence[AxisProjection]], strides: Sequence[int]) -> Iterator[Rows]:
    """The units that combine one part along each dimension."""
    along = [
        np.array(
            [
                (part.coord, part.inner.start, part.outer.stop - part.outer.start, part.outer.start * stride)
                for part in each
            ],
            np.int64,
        ).T
        for each, stride in zip(parts, strides, strict=True)
    ]
    numbers = [each.shape[1] for each in along]
    for first in range(0, math.prod(numbers), MOST):
        number = min(MOST, math.prod(numbers) - first)
        at = np.unravel_index(np.arange(first, first + number), numbers)
        coords, starts, extents, places = zip(
            *(each[:, chosen] for each, chosen in zip(along, at, strict=True)), strict=True
        )
        boxes = Boxes([*starts], [*extents], sum(places, np.zeros(number, np.int64)))
        yield Rows(np.stack(coords, axis=1), np.arange(number), np.arange(number + 1), boxes)


def _units(
    boxes: Boxes, lengths: Sequence[int], steps: Sequence[int], strides: Sequence[int]
) -> Iterator[Rows]:
    """The stored units that boxes touch, in batches of about :data:`MOST` rows at most."""
    for some in _batches(boxes, lengths, steps, strides, 0):
        coords, _, inside = divided(some, lengths, steps, strides)
        yield grouped(coords, np.zeros(len(inside.place), np.int64), inside)


def _batches(
    boxes: Boxes, lengths: Sequence[int], steps: Sequence[int], strides: Sequence[int], axis: int
) -> Iterator[Boxes]:
    """The boxes, divided along the first dimensions if they touch too many units."""
    each = np.ones(len(boxes.place))
    for start, count, length, step in zip(boxes.start, boxes.extent, lengths, steps, strict=True):
        each *= (start + (count - 1) * step) // length - start // length + 1
    total = np.cumsum(each)
    if len(total) == 0 or total[-1] <= MOST:
        yield boxes
    elif len(total) > 1 and each.max() <= MOST:
        edges = [0, *(np.flatnonzero(np.diff(total // MOST)) + 1).tolist(), len(total)]
        for begin, end in itertools.pairwise(edges):
            yield boxes.take(slice(begin, end))
    elif len(total) > 1:
        for at in range(len(total)):
            yield from _batches(boxes.take(slice(at, at + 1)), lengths, steps, strides, axis)
    else:
        coords, _, inside = divided(
            Boxes([boxes.start[axis]], [boxes.extent[axis]], boxes.place),
            [lengths[axis]], [steps[axis]], [strides[axis]],
        )  # fmt: skip
        number = len(inside.place)
        starts = [np.repeat(each, number) for each in boxes.start]
        extents = [np.repeat(each, number) for each in boxes.extent]
        starts[axis], extents[axis] = inside.start[0] + coords[0] * lengths[axis], inside.extent[0]
        yield from _batches(Boxes(starts, extents, inside.place), lengths, steps, strides, axis + 1)
