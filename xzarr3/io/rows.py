"""Rows: the boxes that a selection has in each chunk, as flat arrays for native code.

A box is a product of progressions: ``start``, ``extent`` and the step of the selection, for each dimension. A
selection becomes boxes of the array, these are divided at the borders of stored units, and those of shards
once more at the borders of inner chunks. All arrays have one entry a box or a row; no Python runs for each.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias, cast

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
    """Boxes of an array or of its chunks."""

    start: Numbers
    """The first element of each box, of shape (number, dimensions)."""
    extent: Numbers
    """The number of elements along each dimension."""
    place: Numbers
    """Byte of the result at which the first element of each box belongs."""

    def take(self, at: Numbers | slice) -> Boxes:
        """Some of the boxes."""
        return Boxes(self.start[at], self.extent[at], self.place[at])


class Rows(NamedTuple):
    """Chunks, each with its boxes."""

    coords: Numbers
    """Coordinates of the chunks, of shape (number, dimensions)."""
    unit: Numbers
    """For rows of inner chunks, the number of the stored unit; else 0."""
    begin: Numbers
    """The first box of each row, and the number of boxes."""
    boxes: Boxes


class Geometry(NamedTuple):
    """How elements of a selection follow each other along each dimension."""

    lengths: Sequence[int]
    """Lengths of a chunk."""
    steps: Sequence[int]
    """The steps of the selection, in elements."""
    strides: Sequence[int]
    """The strides of the buffer, in bytes; 0 where points have an index array."""


def geometry(plan: ReadPlan, view: npt.NDArray[np.generic]) -> Geometry:
    """The geometry of a plan and of its buffer."""
    if not isinstance(plan.selection, Points):
        return Geometry(plan.grid.largest, [each.step for each in plan.selection], view.strides)
    others, strides = _others(plan), iter(view.strides[1:])
    return Geometry(
        plan.grid.largest,
        [1 if each is None else each.step for each in others],
        [0 if each is None else next(strides) for each in others],
    )


def _others(plan: ReadPlan) -> list[DimSelection | None]:
    """For each dimension its selection; None where points have an index array."""
    points = cast("Points", plan.selection)
    others = iter(points.others)
    return [None if axis in points.axes else next(others) for axis in range(len(plan.grid.axes))]


def batches(plan: ReadPlan, view: npt.NDArray[np.generic]) -> Iterator[tuple[tuple[int, ...], Rows]] | None:
    """The stored units of a plan in batches of one shape; None if numpy places their elements faster.

    Parameters
    ----------
    plan : ReadPlan
    view : ndarray
        The buffer; the places of the boxes are in it.
    """
    if type(plan.addressing) is Slices:
        return _of_slices(plan, view)
    if not plan.grid.is_regular or plan.number == 0:
        return None
    given = geometry(plan, view)
    if any(step > length for step, length in zip(given.steps, given.lengths, strict=True)):
        return None  # A box would first be divided into all chunks that its step leaves out.
    boxes = _boxes_of(plan, view)
    return None if boxes is None else _units(boxes, given)


def _of_slices(plan: ReadPlan, view: npt.NDArray[np.generic]) -> Iterator[tuple[tuple[int, ...], Rows]]:
    if plan.grid.is_regular:
        each = zip(
            cast("tuple[DimSelection, ...]", plan.selection), plan.grid.largest, view.strides, strict=True
        )
        shapes = iter([(plan.grid.largest, [_chunks_along(*given) for given in each])])
    else:
        shapes = (
            (shape, [_listed(along, stride) for along, stride in zip(parts, view.strides, strict=True)])
            for shape, parts in plan.shapes()
        )
    for shape, along in shapes:
        for first in range(0, math.prod([each.shape[1] for each in along]), MOST):
            coords, *boxes = _product(along, first, MOST)
            number = len(coords)
            yield shape, Rows(coords, np.zeros(number, np.int64), np.arange(number + 1), Boxes(*boxes))


def _chunks_along(chosen: DimSelection, length: int, stride: int) -> Numbers:
    """The parts of a selection along one dimension: coordinates of the chunks, starts, extents and places."""
    first, last = chosen.start // length, (chosen.stop - 1) // length
    if first == last:
        return np.array([[first], [chosen.start - first * length], [chosen.count], [0]], np.int64)
    if chosen.step >= length:  # Chunks are left out, and each other one has one element.
        at = np.arange(chosen.count)
        chunk, start = np.divmod(chosen.start + at * chosen.step, length)
        return np.array([chunk, start, np.ones_like(at), at * stride])
    chunk = np.arange(first, last + 2)
    low = chunk * length - chosen.start  # Of the chunk, from the start of the selection.
    begin = -(low // -chosen.step)
    begin[0], begin[-1] = 0, chosen.count
    parts = np.array([chunk, begin * chosen.step - low, begin, begin * stride])
    parts[2, :-1] = begin[1:] - begin[:-1]
    return parts[:, :-1]


def _listed(parts: Sequence[AxisProjection], stride: int) -> Numbers:
    """The same of parts that a plan has divided already, as those of chunks of many lengths."""
    rows = [
        (part.coord, part.inner.start, part.outer.stop - part.outer.start, part.outer.start * stride)
        for part in parts
    ]
    return np.array(rows, np.int64).reshape(-1, 4).T


def _boxes_of(plan: ReadPlan, view: npt.NDArray[np.generic]) -> Boxes | None:
    """The boxes of a selection in the array; None if they are so many that numpy places them faster."""
    shard = plan.chain_of(plan.grid.largest).shard
    most = _DENSE * plan.number * (1 if shard is None else shard.number)
    if not isinstance(plan.selection, Points):
        begins = [*map(_begins, plan.selection)]
        number = math.prod(map(len, begins))
        if number > most:
            return None
        along = [*map(_along, plan.selection, begins, view.strides)]
        return Boxes(*_product(along, 0, number))
    points, others = plan.selection, _others(plan)
    number = len(points.indices[0])
    if number > most:
        return None
    start, extent = np.empty((2, number, len(others)), np.int64)
    indices = iter(points.indices)
    order = slice(None) if plan.groups.order is None else plan.groups.order
    for axis, each in enumerate(others):
        start[:, axis] = next(indices)[order] if each is None else each.start
        extent[:, axis] = 1 if each is None else each.count
    return Boxes(start, extent, np.arange(number) * view.strides[0])


def _begins(chosen: DimChoice) -> Numbers:
    """The numbers of the elements with which the boxes along one dimension begin."""
    later = () if isinstance(chosen, DimSelection) else np.flatnonzero(np.diff(chosen.indices) != 1) + 1
    return np.append(0, later).astype(np.int64, copy=False)


def _along(chosen: DimChoice, begins: Numbers, stride: int) -> Numbers:
    """The starts, extents and places of the boxes along one dimension."""
    if isinstance(chosen, DimSelection):
        return np.array([[chosen.start], [chosen.count], [0]], np.int64)
    start = chosen.indices[begins].astype(np.int64)
    return np.array([start, np.diff(begins, append=chosen.count), begins * stride])


def _product(along: Sequence[Numbers], first: int, most: int) -> list[Numbers]:
    """At most so many combinations of one entry along each dimension, from number ``first`` on.

    Each entry is a column of some numbers, the last of which is a place. Returns for each of the others an
    array of shape (combinations, dimensions), and the sums of the places.
    """
    numbers = [each.shape[1] for each in along]
    total = min(math.prod(numbers) - first, most)
    found = np.empty((len(along[0]) if along else 4, total, len(along)), np.int64)
    left = np.arange(first, first + total)
    for axis in range(len(along) - 1, -1, -1):
        if numbers[axis] == 1:
            found[:, :, axis] = along[axis]
        else:
            left, at = np.divmod(left, numbers[axis]) if axis else (left, left)
            found[:, :, axis] = along[axis].take(at, axis=1)
    return [*found[:-1], found[-1].sum(axis=1)]


def _units(boxes: Boxes, given: Geometry) -> Iterator[tuple[tuple[int, ...], Rows]]:
    """The stored units that boxes touch, in batches of about :data:`MOST` rows."""
    each = np.ones(len(boxes.place), np.int64)
    for axis, (length, step) in enumerate(zip(given.lengths, given.steps, strict=True)):
        start = boxes.start[:, axis]
        each *= (start + (boxes.extent[:, axis] - 1) * step) // length - start // length + 1
    edges = np.flatnonzero(np.diff(np.cumsum(each) // MOST)) + 1
    for begin, end in itertools.pairwise([0, *edges.tolist(), len(each)]):
        coords, _, inside = divided(boxes.take(slice(begin, end)), given)
        yield tuple(given.lengths), grouped(coords, np.zeros(len(inside.place), np.int64), inside)


def divided(boxes: Boxes, given: Geometry) -> tuple[Numbers, Numbers, Boxes]:
    """Divide boxes at the borders of chunks.

    Returns
    -------
    tuple
        The coordinates of the chunk of each new box, of shape (number, dimensions); the number of the box
        that it comes from; and the new boxes, whose starts count from the chunk.
    """
    lengths, steps = np.array(given.lengths, np.int64), np.array(given.steps, np.int64)
    coords, extent, place = boxes.start // lengths, boxes.extent, boxes.place
    start, parent = boxes.start - coords * lengths, np.arange(len(place))
    number = (start + (extent - 1) * steps) // lengths  # Of further chunks, along each dimension.
    for axis in number.any(axis=0).nonzero()[0].tolist():
        length, step, stride = (each[axis] for each in given)
        more = number[:, axis]
        at = np.arange(len(more)).repeat(more + 1)
        later = np.arange(len(at)) - (more.cumsum() - more)[at] - at
        low = later * length - start[at, axis]  # Of the chunk, from the start of the box.
        begin = np.maximum(-(low // -step), 0)
        end = np.minimum((low + length - 1) // step + 1, extent[at, axis])
        if step > 1:
            wanted = end > begin  # A long step leaves chunks out.
            at, later, low, begin, end = (each[wanted] for each in (at, later, low, begin, end))
        coords, start, extent, number, parent = (each[at] for each in (coords, start, extent, number, parent))
        place = place[at] + begin * stride
        start[:, axis], extent[:, axis] = begin * step - low, end - begin
        coords[:, axis] += later
    return coords, parent, Boxes(start, extent, place)


def grouped(coords: Numbers, unit: Numbers, boxes: Boxes) -> Rows:
    """Put boxes of one chunk into one row. Rows are in C order, those of one unit together."""
    keys = np.column_stack([unit, coords])
    change = keys[1:] - keys[:-1]
    change = change[np.arange(len(change)), (change != 0).argmax(axis=1)]  # Of the first key that changes.
    if (change < 0).any():
        order = np.lexsort(keys.T[::-1])
        return grouped(coords[order], unit[order], boxes.take(order))
    later = change > 0
    if later.all():
        return Rows(coords, unit, np.arange(len(unit) + 1), boxes)
    begins = np.append(0, np.flatnonzero(later) + 1)
    return Rows(coords[begins], unit[begins], np.append(begins, len(unit)), boxes)
