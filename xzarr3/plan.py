"""Which units of storage a selection touches, and which part of each goes where.

A selection of a grid is a product over the dimensions, so a plan holds one list of :data:`Part` for each
dimension and never a list of chunks. The units of a grid whose chunks differ are taken in groups of one
shape, because the codecs are bound to a shape.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TypeAlias

from xzarr3.grids import Edges, Grid, Steps
from xzarr3.indexing import DimSelection, basic_selection

Part: TypeAlias = tuple[int, str, slice, slice, bool]
"""Along one dimension: index of the chunk, the same as text, the elements within the chunk, where they lie
in the result, and whether these are all elements that the chunk shares with the array."""

Unit: TypeAlias = tuple[Part, ...]

Group: TypeAlias = tuple[tuple[int, ...], list[list[Part]]]
"""A shape that units have, and along each dimension the parts in units of that length: their product is
the units."""


def dimension_parts(selected: DimSelection, length: int, size: int) -> list[Part]:
    """Divide what is selected of a dimension of ``size`` elements among chunks of ``length`` elements."""
    if selected.count == 0:
        return []
    first, step, stop = selected.start, selected.step, selected.stop
    parts: list[Part] = []
    done = 0
    while first < stop:
        index = first // length
        low = index * length
        end = min(low + length, size)
        count = -(-(min(end, stop) - first) // step)
        inner = slice(first - low, first - low + (count - 1) * step + 1, step)
        parts.append((index, str(index), inner, slice(done, done + count), count == end - low))
        done += count
        first += count * step
    return parts


def axis_parts(selected: DimSelection, axis: Steps | Edges, size: int) -> list[Part]:
    """Divide what is selected of a dimension of ``size`` elements among the chunks of a grid."""
    if isinstance(axis, Steps):
        return dimension_parts(selected, axis.length, size)
    first, step, stop = selected.start, selected.step, selected.stop
    parts: list[Part] = []
    done = 0
    while selected.count and first < stop:
        start, end, base, length = axis.run_at(first, size)
        within = DimSelection(first - start, step, -(-(min(end, stop) - first) // step))
        for index, _, inner, outer, whole in dimension_parts(within, length, end - start):
            place = slice(done + outer.start, done + outer.stop)
            parts.append((base + index, str(base + index), inner, place, whole))
        done += within.count
        first += within.count * step
    return parts


def split_parts(parts: Sequence[Part], length: int, pieces: int) -> list[Part]:
    """Cut each part of a dimension at multiples of ``length``, the inner chunks, into about ``pieces``."""
    result: list[Part] = []
    for index, text, inner, outer, _ in parts:
        chosen = DimSelection(inner.start, inner.step, outer.stop - outer.start)
        inside = dimension_parts(chosen, length, inner.stop)
        run = -(-len(inside) // pieces)
        for at in range(0, len(inside), run):
            first, last = inside[at], inside[min(at + run, len(inside)) - 1]
            piece = slice(first[0] * length + first[2].start, last[0] * length + last[2].stop, inner.step)
            place = slice(outer.start + first[3].start, outer.start + last[3].stop)
            result.append((index, text, piece, place, False))
    return result


class ReadPlan:
    """What a basic selection of an array touches; writing divides its values in the same way.

    Parameters
    ----------
    selection : int, slice, Ellipsis or a tuple of these
    shape : tuple of int
        Shape of the array.
    grid : Grid
        How the array is divided into units of storage: shards, or chunks that are in none.

    Raises
    ------
    SelectionError
        If the selection does not fit the array.

    Examples
    --------
    >>> from xzarr3.grids import RegularGrid
    >>> plan = ReadPlan((slice(1, 7), -1), (10, 10), RegularGrid((4, 4)))
    >>> plan.shape, plan.number
    ((6,), 2)
    >>> [tuple(part[0] for part in unit) for unit in plan.units()]
    [(0, 2), (1, 2)]
    """

    def __init__(self, selection: object, shape: tuple[int, ...], grid: Grid) -> None:
        self.dimensions = basic_selection(selection, shape)
        self.grid = grid
        self._array_shape = shape

    @cached_property
    def parts(self) -> list[list[Part]]:
        """For each dimension, how what is selected is divided among the units."""
        if self.grid.is_regular:
            lengths = self.grid.largest
            return [*map(dimension_parts, self.dimensions, lengths, self._array_shape)]
        return [*map(axis_parts, self.dimensions, self.grid.axes, self._array_shape)]

    @property
    def full_shape(self) -> tuple[int, ...]:
        """Shape of the result before the dimensions selected by integers are dropped."""
        return tuple(selected.count for selected in self.dimensions)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        return tuple(selected.count for selected in self.dimensions if not selected.drop)

    @property
    def orientation(self) -> tuple[slice, ...] | None:
        """What turns a result in the order of the array into the order of the selection."""
        if not any(selected.reverse for selected in self.dimensions):
            return None
        return tuple(slice(None, None, -1 if selected.reverse else 1) for selected in self.dimensions)

    @property
    def number(self) -> int:
        """Number of units that are touched."""
        return math.prod(map(len, self.parts))

    def groups(self) -> Iterator[Group]:
        """The units that are touched, by their shapes; a regular grid makes one group."""
        if self.grid.is_regular:
            yield self.grid.largest, self.parts
            return
        by_length: list[dict[int, list[Part]]] = []
        for axis, parts in zip(self.grid.axes, self.parts, strict=True):
            found: dict[int, list[Part]] = {}
            for part in parts:
                found.setdefault(axis.length_at(part[0]), []).append(part)
            by_length.append(found)
        for shape in itertools.product(*by_length):
            yield shape, [along[length] for along, length in zip(by_length, shape, strict=True)]

    def units(self) -> Iterator[Unit]:
        """The units that are touched, in C order."""
        return itertools.product(*self.parts)
