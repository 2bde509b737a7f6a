"""Selections from blocked arrays: the blocks of a selection, and the elements that each block reads.

A selection has evenly spaced elements along each dimension. Each of its blocks contains the selected elements
of one block of the whole array. Blocks without selected elements are left out, as in dask. A few numbers
define a selection, so it is made, named and pickled without visiting each block, also if it is a selection of
a selection.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cached_property
from typing import Any, TypeAlias

import msgspec
import numpy as np
from dask.blockwise import BlockwiseDep

from xzarr3.grid import Edges, Steps

Part: TypeAlias = "int | slice"
"""The elements that a block reads along one dimension."""

_SHARED = 1 / 4  # Share of its blocks from which a selection reads them whole, as other selections do.


class Along(msgspec.Struct, frozen=True, dict=True):
    """The elements ``start``, ``start + step``, ... of a dimension, divided into blocks.

    Parameters
    ----------
    blocks : Steps or Edges
        The blocks of the dimension.
    start, step, count : int
        The step may be negative. With fewer than two elements the step is 1, and without elements the start
        is 0, so that equal selections have equal numbers.
    drop : bool
        Whether an integer selected a single element, so that the dimension is dropped.

    Examples
    --------
    >>> every = Along(Steps(4), 0, 1, 10)
    >>> every.lengths, every.part(2)
    ((4, 4, 2), slice(8, 10, 1))
    >>> third = every.selected(slice(None, None, -3))
    >>> third.lengths, [third.part(at) for at in range(third.number)]
    ((1, 1, 2), [slice(9, 10, 1), slice(6, 7, 1), slice(3, None, -3)])
    """

    blocks: Steps | Edges
    start: int
    step: int
    count: int
    drop: bool = False

    def selected(self, index: Part) -> Along:
        """The selection that an index, within bounds, makes of this one."""
        if isinstance(index, int):
            return Along(self.blocks, self.start + index * self.step, 1, 1, drop=True)
        start, stop, step = index.indices(self.count)
        count = max(0, -((start - stop) // step) if step > 0 else -((stop - start) // -step))
        if (start, step, count) == (0, 1, self.count):
            return self
        start, step = self.start + start * self.step, self.step * step
        return Along(self.blocks, start if count else 0, step if count > 1 else 1, count)

    @cached_property
    def number(self) -> int:
        """Number of blocks; one if nothing is selected."""
        if self.count <= 1:
            return 1
        if isinstance(self.blocks, Edges):
            return len(self._bounds) - 1
        return self.count if self._single else abs(self._last - self.first) + 1

    @cached_property
    def first(self) -> int:
        """The block of the whole dimension that contains the first selected element."""
        return self.blocks.index(self.start)

    @cached_property
    def _last(self) -> int:
        return self.blocks.index(self.start + (self.count - 1) * self.step)

    @cached_property
    def _single(self) -> bool:
        """Whether the step is at least as long as a block, so that each block has one element."""
        return abs(self.step) >= self.blocks.longest

    @cached_property
    def _bounds(self) -> list[int]:
        """Positions in the selection where each block begins and the last ends."""
        if self._single:
            return [*range(self.count + 1)]
        low, high = sorted((self.first, self._last))
        if isinstance(self.blocks, Steps):
            edges = np.arange(low, high + 2, dtype=np.int64) * self.blocks.length
        else:
            lengths = self.blocks.lengths(self.blocks.start(high + 1))
            edges = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)[low:]
        found = self._position(edges if self.step > 0 else edges[::-1])
        return np.unique(np.clip(found, 0, self.count)).tolist()  # type: ignore[no-any-return]

    def _position(self, edges: Any) -> Any:
        """Position in the selection of the first element at or beyond an edge, in the selection's order."""
        if self.step > 0:
            return -((self.start - edges) // self.step)
        return (self.start - edges) // -self.step + 1

    def bounds(self, at: int) -> tuple[int, int]:
        """Positions in the selection where a block begins and ends."""
        if self.count <= 1:
            return 0, self.count
        if self._single:
            return at, at + 1
        if isinstance(self.blocks, Edges):
            return self._bounds[at], self._bounds[at + 1]
        block, before = (self.first + at, 0) if self.step > 0 else (self.first - at, 1)
        begin = self._position(self.blocks.start(block + before))
        end = self._position(self.blocks.start(block + 1 - before))
        return max(begin, 0), min(end, self.count)

    def part(self, at: int) -> Part:
        """The elements of the dimension that a block reads."""
        if self.drop:
            return self.start
        begin, end = self.bounds(at)
        if begin >= end:
            return slice(0, 0, 1)
        first = self.start + begin * self.step
        last = self.start + (end - 1) * self.step
        if first == last:
            return slice(first, first + 1, 1)
        if self.step > 0:
            return slice(first, last + 1, self.step)
        return slice(first, last - 1 if last else None, self.step)

    def block(self, at: int) -> int:
        """The block of the whole dimension that contains a block of the selection; 0 if that is empty."""
        begin, end = self.bounds(at)
        return self.blocks.index(self.start + begin * self.step) if begin < end else 0

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Number of elements of each block."""
        return (self.count,) if self.number == 1 else tuple(np.diff(self._bounds).tolist())


def to_read(
    view: tuple[Along, ...], whole: tuple[Along, ...], grains: Sequence[Steps | Edges] | None
) -> tuple[Along, ...]:
    """What is read for a selection: its grains if they are less than a quarter of its blocks, else ``whole``.

    Selections in the same grains share a read, and so do all selections of more than a quarter.

    Parameters
    ----------
    view, whole : tuple of Along
        The selection, and all elements of the source.
    grains : sequence of Steps or Edges, optional
        What can be read along each dimension for the price of an element, such as chunks.

    Examples
    --------
    >>> whole = (every(Steps(100), 400),)
    >>> day, quarter = ((whole[0].selected(each),) for each in (slice(115, 117), slice(100, 130)))
    >>> (read,) = to_read(day, whole, [Steps(10)])
    >>> read.start, read.count
    (110, 10)
    >>> to_read(quarter, whole, [Steps(10)]) == to_read(day, whole, None) == whole
    True
    """
    if not all(along.count for along in view):
        return view  # Which reads nothing.
    share, found = 1.0, []
    for along, every_one, grain in zip(view, whole, grains or (None,) * len(view), strict=True):
        blocks, size = along.blocks, every_one.count
        last = along.start + (along.count - 1) * along.step
        low, high = min(along.start, last), max(along.start, last)
        first, stop = blocks.start(blocks.index(low)), min(blocks.start(blocks.index(high) + 1), size)
        start, end = first, stop
        if grain is not None:
            start = max(first, grain.start(grain.index(low)))
            end = min(stop, grain.start(grain.index(high) + 1))
        share *= (end - start) / (stop - first)
        found.append(Along(blocks, start, 1, end - start))
    return tuple(found) if share < _SHARED else whole


def every(blocks: Steps | Edges, size: int) -> Along:
    """All elements of a dimension."""
    return Along(blocks, 0, 1, size)


def extent(part: Part) -> tuple[int, int, int]:
    """The first element of a part, one past the last, and the distance between two of them.

    Examples
    --------
    >>> extent(7), extent(slice(3, 10, 3)), extent(slice(9, None, -3)), extent(slice(0, 0, 1))
    ((7, 8, 1), (3, 10, 3), (0, 10, 3), (0, 0, 1))
    """
    if isinstance(part, int):
        return part, part + 1, 1
    if part.step is None or part.step > 0:
        return part.start, part.stop, part.step or 1
    last: range = range(part.start, -1 if part.stop is None else part.stop, part.step)
    return last[-1], part.start + 1, -part.step


class Selections(BlockwiseDep):
    """The elements that each block of a selection reads; a task gets these and the array, nothing else."""

    def __init__(self, name: str, view: tuple[Along, ...]) -> None:
        self.name = name
        self.view = view
        self.numblocks = tuple(along.number for along in view if not along.drop)
        self.produces_tasks = False

    def __dask_tokenize__(self) -> object:
        return "xzarr3.dask.Selections", self.name

    def __getitem__(self, idx: tuple[int, ...]) -> tuple[Part, ...]:
        places = iter(idx)
        return tuple([along.part(0 if along.drop else next(places)) for along in self.view])


def all_blocks(lengths: Sequence[int]) -> Steps | Edges:
    """Blocks from dask's tuple of lengths, also with empty ones; only ``start`` is valid for these.

    Examples
    --------
    >>> all_blocks((4, 4, 2)), all_blocks((2, 4, 4))
    (Steps(length=4), Edges(runs=((2, 1), (4, 2))))
    """
    if len(lengths) <= 1:
        return Steps(max(sum(lengths), 1))
    equal = lengths.count(lengths[0]) if lengths[0] else 0
    if equal == len(lengths) or (equal == len(lengths) - 1 and lengths[-1] < lengths[0]):
        return Steps(lengths[0])
    return Edges(tuple((length, len(list(same))) for length, same in itertools.groupby(lengths)))


def trimmed(blocks: Steps | Edges, size: int) -> Steps | Edges:
    """The blocks cut at ``size`` elements, in a normal form: equal blocks give equal objects.

    Examples
    --------
    >>> trimmed(Steps(9), 5), trimmed(Edges(((3, 2), (2, 8))), 7), trimmed(Edges(((3, 1), (4, 2))), 10)
    (Steps(length=5), Steps(length=3), Edges(runs=((3, 1), (4, 1), (3, 1))))
    """
    if isinstance(blocks, Steps):
        return Steps(max(min(blocks.length, size), 1))
    return all_blocks(blocks.lengths(size))
