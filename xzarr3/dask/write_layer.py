"""Dask graph layers of a write: the tasks that write tiles, and the tasks that wait for all writes.

The plan of tiles comes from :mod:`xzarr3.dask.tiles`, and the functions that the tasks run from
:mod:`xzarr3.dask.tasks`. This module only builds graphs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dask._task_spec import Task, TaskRef

from xzarr3.dask.layers import LazyLayer
from xzarr3.dask.tasks import Gate, Tile, merged
from xzarr3.dask.tiles import AxisTiles, Cut

Key = Any

_MOST_SLABS = 1024
_ARITY = 64  # Most inputs of a waiting task: a task is sent the location of each of its inputs.


class Tiles(LazyLayer):
    """Layer with one writing task per tile, where tiles are not blocks.

    Each task depends on the blocks that its tile overlaps.

    Parameters
    ----------
    name : str
    source : str
        Name of the layer whose blocks are written.
    axes : sequence of AxisTiles
    starts : sequence of int
        First element of the first tile in the target.
    write : callable
        Called with the region of a tile, the cuts along each dimension, the blocks, and the results of
        ``after``.
    finished : container of tuple of int
        Tiles that need no task.
    after : sequence of keys
        Tasks that must be done before any tile is written.
    """

    def __init__(
        self,
        name: str,
        source: str,
        axes: Sequence[AxisTiles],
        starts: Sequence[int],
        write: Callable[..., Any],
        finished: Container[Tile] = (),
        after: Sequence[Key] = (),
    ) -> None:
        super().__init__(name)
        self._source, self._axes, self._starts = source, list(axes), list(starts)
        self._write, self._finished, self._after = write, finished, tuple(after)

    def make(self) -> dict[Key, Task]:
        after = [*map(TaskRef, self._after)]
        along = [_described(axis, start) for axis, start in zip(self._axes, self._starts, strict=True)]
        tasks: dict[Key, Task] = {}
        for tile in itertools.product(*(range(axis.count) for axis in self._axes)):
            if tile in self._finished:
                continue
            chosen = [parts[at] for parts, at in zip(along, tile, strict=True)]
            region, cuts, indexes = zip(*chosen, strict=True)
            blocks = [TaskRef((self._source, *index)) for index in itertools.product(*indexes)]
            key = (self.name, *tile)
            tasks[key] = Task(key, self._write, region, cuts, *blocks, *after)
        return tasks


@dataclass(frozen=True)
class Written:
    """The tiles that a layer writes.

    Parameters
    ----------
    counts : tuple of int
        Number of tiles along each dimension.
    finished : container of tuple of int
        Tiles that the layer does not write.
    slabs : int, optional
        The dimension along which slabs are written in order; None if any order will do.
    """

    counts: tuple[int, ...]
    finished: Container[Tile] = ()
    slabs: int | None = None

    def groups(self) -> Iterator[list[Tile]]:
        """The tiles to write in groups: a run of slabs each, or some tiles where any order will do."""
        ranges = [*map(range, self.counts)]
        if self.slabs is None:
            tiles = self._left(ranges)
            while some := [*itertools.islice(tiles, _ARITY)]:
                yield some
            return
        along = ranges[self.slabs]
        step = -(-len(along) // _MOST_SLABS)
        for start in along[::step]:
            ranges[self.slabs] = along[start : start + step]
            yield [*self._left(ranges)]

    def _left(self, ranges: Sequence[range]) -> Iterator[Tile]:
        return (tile for tile in itertools.product(*ranges) if tile not in self.finished)


class Done(LazyLayer):
    """Layer that waits for all writes: a tree of tasks. The key of its root is the name of the layer.

    Where slabs are written in order, the tasks that wait for them are a chain: each waits for a slab and for
    the slab before. So dask makes the blocks of one slab after those of another, though no tile waits for a
    tile of another slab.

    Parameters
    ----------
    name : str
    written : mapping of str to Written
        What each layer writes, by the name of the layer.
    gate : Gate
        The gate that all tasks of the write pass before they store anything.
    then : callable, optional
        Called by the root task once all is written.
    """

    def __init__(
        self, name: str, written: Mapping[str, Written], gate: Gate, then: Callable[[], None] | None = None
    ) -> None:
        super().__init__(name)
        self._written, self.gate, self._then = dict(written), gate, then

    def make(self) -> dict[Key, Task]:
        tasks: dict[Key, Task] = {}

        def waiting(needed: Iterable[Key]) -> Key:
            key = (self.name, len(tasks))
            tasks[key] = Task(key, all_done, *map(TaskRef, needed))
            return key

        ends: list[Key] = []
        for name, each in self._written.items():
            before: list[Key] = []
            for group in each.groups():
                last = waiting([*((name, *tile) for tile in group), *before])
                if each.slabs is None:
                    ends.append(last)
                else:
                    before = [last]
            ends += before
        while len(ends) > _MOST_SLABS:
            ends = [waiting(ends[at : at + _ARITY]) for at in range(0, len(ends), _ARITY)]
        tasks[self.name] = Task(self.name, _end, self._then, *map(TaskRef, ends))
        return tasks


def all_done(*written: bytes | None) -> bytes | None:
    """Depend on the writes given; returns the forks that they wrote to as one, if they did."""
    return merged(written)


def _end(then: Callable[[], None] | None, *written: bytes | None) -> bytes | None:
    if then is not None:
        then()
    return merged(written)


def _described(axis: AxisTiles, start: int) -> list[tuple[slice, tuple[Cut, ...], tuple[int, ...]]]:
    """For each tile along a dimension: its slice of the target, the cuts of blocks, and their indexes."""
    edges = (start + axis.edges).tolist()
    found = []
    for at in range(axis.count):
        indexes, cuts = zip(*axis.parts(at), strict=True)
        found.append((slice(edges[at], edges[at + 1]), cuts, indexes))
    return found
