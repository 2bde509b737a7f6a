"""Layers of dask graphs that write: what waits for all that is written."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from dask._task_spec import Task, TaskRef

from xzarr3.dask.aside import Aside
from xzarr3.dask.cleanup import Cleanup
from xzarr3.dask.ending import Gate
from xzarr3.dask.layers import Made
from xzarr3.dask.tasks import Tile, rooms_of
from xzarr3.dask.tiles import AxisTiles, Cut

Key = Any

_MOST_SLABS = 1024
_WEIGHT = 32  # Powers of 2, beyond what the blocks of a slab may depend on themselves.
_ARITY = 64  # A task that waited for millions of others would be sent the place of each of them.


class Tiles(Made):
    """What writes tiles that are not blocks, each made of the blocks that it overlaps.

    Parameters
    ----------
    name : str
    source : str
        Name of the layer whose blocks are written.
    axes : sequence of AxisTiles
    starts : sequence of int
        Where the first tile goes.
    write : callable
        Takes where a tile goes, of what it is made along each dimension, and the blocks.
    finished : container of tuple of int
        Tiles that are not written.
    after : sequence of keys
        What has to be done before; it is given to ``write`` last.
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
        source, finished = self._source, self._finished
        after = [*map(TaskRef, self._after)]
        along = [_described(axis, start) for axis, start in zip(self._axes, self._starts, strict=True)]
        tasks: dict[Key, Task] = {}
        for tile in itertools.product(*(range(axis.count) for axis in self._axes)):
            if tile in finished:
                continue
            chosen = [parts[at] for parts, at in zip(along, tile, strict=True)]
            region, cuts, indexes = zip(*chosen, strict=True)
            blocks = [TaskRef((source, *index)) for index in itertools.product(*indexes)]
            key = (self.name, *tile)
            tasks[key] = Task(key, self._write, region, cuts, *blocks, *after)
        return tasks


@dataclass(frozen=True)
class Written:
    """What a layer writes.

    Parameters
    ----------
    counts : tuple of int
        How many tiles it has along each dimension.
    finished : container of tuple of int
        Tiles that it does not write.
    slabs : int, optional
        The dimension along which slabs are written one after the other; None if the order is no matter.
    """

    counts: tuple[int, ...]
    finished: Container[Tile] = ()
    slabs: int | None = None

    def groups(self) -> Iterator[Iterator[Tile]]:
        """All tiles, together those that may well be written at the same time."""
        if self.slabs is None:
            tiles = itertools.product(*map(range, self.counts))
            while some := list(itertools.islice(tiles, _ARITY)):
                yield iter(some)
            return
        count = self.counts[self.slabs]
        step = -(-count // _MOST_SLABS)
        for start in range(0, count, step):
            ranges = [*map(range, self.counts)]
            ranges[self.slabs] = range(start, min(start + step, count))
            yield itertools.product(*ranges)


class Done(Made):
    """What waits for all writing: a tree of tasks, whose root is the name of the layer.

    Dask works towards what depends on most first. Where the order matters, the nodes of the tree that stand
    for slabs therefore depend on tasks that do nothing: the first slab on what counts most.

    Parameters
    ----------
    name : str
    written : mapping of str to Written
        By the name of the layer that writes it.
    asides : sequence of Aside
        What is removed last.
    gate : Gate, optional
        What its tasks pass before they store something.
    """

    def __init__(
        self,
        name: str,
        written: Mapping[str, Written],
        asides: Sequence[Aside] = (),
        gate: Gate | None = None,
    ) -> None:
        super().__init__(name)
        self.gate = Gate() if gate is None else gate
        self._written, self._asides = dict(written), list(asides)

    def make(self) -> dict[Key, Task]:
        groups: list[tuple[bool, list[Key]]] = []
        for name, each in self._written.items():
            for group in each.groups():
                left: list[Key] = [(name, *tile) for tile in group if tile not in each.finished]
                if left:
                    groups.append((each.slabs is not None, left))
        tasks: dict[Key, Task] = {}
        ordered = sum(in_order for in_order, _ in groups)
        weights = self._weights(tasks, ordered) if ordered > 1 else []
        keys: list[Key] = []
        for at, (in_order, needed) in enumerate(groups):
            if len(groups) == 1:
                keys = needed
                break
            if in_order:
                needed += [weight for bit, weight in enumerate(weights) if ordered >> bit & 1]
                ordered -= 1
            keys.append((self.name, 0, at))
            tasks[keys[-1]] = Task(keys[-1], all_done, *map(TaskRef, needed))
        level = 1
        while len(keys) > _MOST_SLABS:
            above: list[Key] = []
            for first in range(0, len(keys), _ARITY):
                above.append((self.name, level, first // _ARITY))
                tasks[above[-1]] = Task(above[-1], all_done, *map(TaskRef, keys[first : first + _ARITY]))
            keys, level = above, level + 1
        last = partial(_finish, self._asides) if self._asides else all_done
        tasks[self.name] = Task(self.name, last, *map(TaskRef, keys))
        return tasks

    @property
    def cleanups(self) -> list[Cleanup]:
        """What removes what was only of use for the write, if that fails."""
        return list(self._asides)

    def _weights(self, tasks: dict[Key, Task], number: int) -> list[Key]:
        """Tasks each of which counts twice as much as the one before, and the first one very much."""
        name = f"{self.name}-order"
        above: list[Key] = []
        weights = []
        for level in range(_WEIGHT + number.bit_length()):
            pair = [(name, level, 0), (name, level, 1)]
            tasks.update((key, Task(key, all_done, *map(TaskRef, above))) for key in pair)
            above = pair
            if level >= _WEIGHT:
                weights.append(pair[0])
        return weights


def all_done(*written: object) -> frozenset[str] | None:
    """What depends on every write; tells where they have stored."""
    return rooms_of(written)


def _finish(asides: Sequence[Aside], *written: object) -> frozenset[str] | None:
    for aside in asides:
        aside.remove()
    return rooms_of(written)


def _described(axis: AxisTiles, start: int) -> list[tuple[slice, tuple[Cut, ...], tuple[int, ...]]]:
    """Of the tiles along a dimension, where they go, what is taken of blocks, and of which ones."""
    edges = (start + axis.edges).tolist()
    found = []
    for at in range(axis.count):
        indexes, cuts = zip(*axis.parts(at), strict=True)
        found.append((slice(edges[at], edges[at + 1]), cuts, indexes))
    return found
