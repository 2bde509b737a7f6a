"""Dask graph layers that read: one reads all blocks of an array, others select from it.

A selection layer reads nothing. It depends on the layer that reads the whole array, and both are described by
a few numbers. Which parts of a block a graph needs is known only when the graph is optimized. Dask culls a
graph from its results down. So selection layers first ask for the parts of blocks that they need, through
keys that contain the numbers of these parts. The reading layer is culled last. It groups the parts of each
block that cost less to read together, and makes tasks that read a group and tasks that take a part of it.

In a graph that is not optimized, whole blocks are read and selections are taken from them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

from dask._task_spec import Alias, GraphNode, Task, TaskRef
from dask.base import clone_key
from dask.blockwise import Blockwise, blockwise
from dask.graph_manipulation import chunks as manipulation
from dask.highlevelgraph import Layer, MaterializedLayer

from xzarr3._types import AnyArray
from xzarr3.dask.costs import Cost, cost_of
from xzarr3.dask.slicing import Along, Part, Selections, extent, within

Key: TypeAlias = Any
Read: TypeAlias = Callable[[Any, tuple[Part, ...]], AnyArray]
Parts: TypeAlias = tuple[Part, ...]
Block: TypeAlias = tuple[int, ...]
Numbers: TypeAlias = tuple[int, ...]

_COMPARED = 16  # Most groups per block that a further part is compared with.


class LazyLayer(Layer):
    """A layer that makes its tasks when they are first asked for, and is pickled without them."""

    _tasks: dict[Key, Task] | None = None

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def make(self) -> dict[Key, Task]:
        """Make all tasks of the layer."""
        raise NotImplementedError

    @property
    def mapping(self) -> dict[Key, Task]:
        """All tasks of the layer; made at the first call."""
        if self._tasks is None:
            self._tasks = self.make()
        return self._tasks

    @property
    def has_legacy_tasks(self) -> bool:
        return False

    def is_materialized(self) -> bool:
        return self._tasks is not None

    def __getitem__(self, key: Key) -> Task:
        return self.mapping[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self.mapping)

    def __len__(self) -> int:
        return len(self.mapping)

    def get_output_keys(self) -> Set[Key]:
        return self.mapping.keys()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_tasks"}


def read_layer(read: Read, source: Any, name: str, view: tuple[Along, ...]) -> ReadLayer:
    """The layer that reads a whole source in blocks."""
    index = tuple(range(len(view)))
    parts = Selections(name, view)
    made = blockwise(read, name, index, source, None, parts, index, numblocks={}, _data_producer=True)
    told = made.output, made.output_indices, made.task, made.indices, made.numblocks
    return ReadLayer(*told, io_deps=made.io_deps)


class ReadLayer(Blockwise):
    """Reads the blocks of a source, and the parts of blocks that selection layers ask for."""

    @property
    def source(self) -> Any:
        """The object that is read from."""
        return self.indices[0][0]

    @property
    def parts(self) -> Selections:
        """The selection that each block reads."""
        (parts,) = self.io_deps.values()
        return parts  # type: ignore[return-value]

    def cull(self, keys: set[Key], all_hlg_keys: Iterable[Key]) -> tuple[Layer, Mapping[Key, set[Key]]]:
        """Make the tasks that are needed, after all selection layers have asked for their parts."""
        name, ndim = self.output, len(self.output_indices)
        blocks: set[Block] = set()
        asked: dict[Block, dict[Numbers, list[Key]]] = {}
        for key in keys:
            if type(key) is tuple and key[0] == name:
                if len(key) == 1 + ndim:
                    blocks.add(key[1:])
                else:
                    same = asked.setdefault(key[1 : 1 + ndim], {}).setdefault(key[1 + ndim : -1], [])
                    same.append(key[-1].answered())
        if not asked:
            return super().cull(keys, all_hlg_keys)
        tasks: dict[Key, GraphNode] = {}
        cost = cost_of(self.source)
        for block in blocks | asked.keys():
            wanted = [(_parts(numbers), sorted(those)) for numbers, those in asked.get(block, {}).items()]
            if block in blocks:
                tasks.update(self._made((name, *block), self.parts[block], wanted))
                continue
            for together, those in read_together([parts for parts, _ in wanted], cost):
                found = [wanted[at] for at in those]
                if sum(len(each) for _, each in found) > 1:
                    tasks.update(self._made((name, *block, *_numbers(together)), together, found))
                else:
                    tasks.update([self.reading(found[0][1][0], together)])
        return MaterializedLayer(tasks, annotations=self.annotations), {key: set() for key in tasks}

    def _made(
        self, read: Key, together: Parts, wanted: Iterable[tuple[Parts, list[Key]]]
    ) -> Iterator[tuple[Key, GraphNode]]:
        """The task that reads parts of a block together, and the tasks that take each part."""
        yield self.reading(read, together)
        for parts, keys in wanted:
            for key in keys:
                if parts == together:
                    yield key, Alias(key, read)
                else:
                    yield key, Task(key, take, TaskRef(read), _relative(parts, together))

    def reading(self, key: Key, parts: Parts) -> tuple[Key, GraphNode]:
        """The key and the task that reads parts of a block."""
        return key, Task(key, self.task.func, self.source, parts, _data_producer=True)


class _Unanswered(Mapping[Key, GraphNode]):
    """Tasks for the parts that a selection layer asked for and the reading layer did not make.

    In a merged graph another layer may stand under the name of the reading layer, with the values of the
    whole source, and it answers no such keys.

    Parameters
    ----------
    layer : ReadLayer
        The layer that makes these tasks otherwise.
    left : dict
        The parts to read for each key. The reading layer removes a key whose task it makes.
    """

    def __init__(self, layer: ReadLayer, left: dict[Key, Parts]) -> None:
        self._layer, self._left = layer, left

    def __getitem__(self, key: Key) -> GraphNode:
        return self._layer.reading(key, self._left[key])[1]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._left)

    def __len__(self) -> int:
        return len(self._left)


@dataclass(slots=True, eq=False)
class _Asking:
    """A request for a part of a block: the key that asks, and all requests that are still unanswered."""

    key: Key
    left: dict[Key, Parts]

    def answered(self) -> Key:
        """Mark the request as answered; returns the key of the task to make."""
        del self.left[self.key]
        return self.key


class SelectLayer(LazyLayer):
    """A selection from the blocks that a :class:`ReadLayer` reads.

    Parameters
    ----------
    name : str
    reads : ReadLayer
    whole, view : tuple of Along
        The elements that ``reads`` reads along each dimension of the source, and those that are selected.
    """

    def __init__(
        self, name: str, reads: ReadLayer, whole: tuple[Along, ...], view: tuple[Along, ...]
    ) -> None:
        super().__init__(name)
        self.source, self.view = reads.output, view
        self.parts, self.blocks = Selections(name, view), Selections(reads.output, whole)
        self._reads = reads

    def _block(self, idx: tuple[int, ...]) -> tuple[int, ...]:
        """The block of the source that contains a block of the selection."""
        places = iter(idx)
        return tuple([along.block(0 if along.drop else next(places)) for along in self.view])

    def make(self) -> dict[Key, Task]:
        tasks = {}
        for key in self.get_output_keys():
            block = self._block(key[1:])
            taken = _relative(self.parts[key[1:]], self.blocks[block])
            tasks[key] = Task(key, take, TaskRef((self.source, *block)), taken)
        return tasks

    def __contains__(self, key: object) -> bool:
        numbers = self.parts.numblocks
        return (
            type(key) is tuple
            and len(key) == 1 + len(numbers)
            and key[0] == self.name
            and all(type(at) is int and 0 <= at < number for at, number in zip(key[1:], numbers, strict=True))
        )

    def get_output_keys(self) -> Set[Key]:
        """The keys of all blocks."""
        return {(self.name, *idx) for idx in itertools.product(*map(range, self.parts.numblocks))}

    # Optimization

    def cull(self, keys: set[Key], all_hlg_keys: Collection[Key]) -> tuple[Layer, Mapping[Key, set[Key]]]:
        """Ask the reading layer for the parts of blocks that are needed."""
        few = math.prod(self.parts.numblocks) < len(keys)
        mine = [key for key in (self.get_output_keys() if few else keys) if key in keys and key in self]
        left = {key: self.parts[key[1:]] for key in mine}
        asking = {key: {self._asking(key, left)} for key in mine}
        return MaterializedLayer(_Unanswered(self._reads, left), annotations=self.annotations), asking

    def _asking(self, key: Key, left: dict[Key, Parts]) -> Key:
        """The key that asks the reading layer to make the task of a block."""
        return (self.source, *self._block(key[1:]), *_numbers(left[key]), _Asking(key, left))

    def clone(self, keys: set[Key], seed: Hashable, bind_to: Key | None = None) -> tuple[Layer, bool]:
        """The layer cloned for ``dask.graph_manipulation``; it takes its selections from whole blocks."""
        tasks: dict[Key, GraphNode] = {}
        bound = False
        for key, task in self.items():
            made: GraphNode = task
            if key in keys:
                others = {each: clone_key(each, seed) for each in task.dependencies if each in keys}
                cloned = clone_key(key, seed)
                made = task.substitute(others, key=cloned)
                if bind_to is not None and not others:
                    made = Task(cloned, manipulation.bind, made, TaskRef(bind_to))
                    bound = True
            tasks[made.key] = made
        return MaterializedLayer(tasks), bound


def take(block: AnyArray, index: Parts) -> AnyArray:
    """A copy of a part of a block, so that a task that changes its array in place changes no other part."""
    taken: AnyArray = block[(*index, ...)]
    return taken.copy()


def _numbers(parts: Parts) -> Iterator[int]:
    """The numbers that encode parts in a key: three for each dimension, with step 0 for an integer."""
    for part in parts:
        if isinstance(part, int):
            yield from (part, 0, 0)
        else:
            yield from (part.start, -1 if part.stop is None else part.stop, part.step)


def _parts(numbers: Numbers) -> Parts:
    """The parts that numbers in a key encode; inverse of :func:`_numbers`."""
    return tuple(
        [
            slice(start, None if stop < 0 else stop, step) if step else start
            for start, stop, step in zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True)
        ]
    )


def _relative(parts: Parts, read: Parts) -> Parts:
    """The index that takes ``parts`` from the values of ``read``, which has no steps."""
    return tuple([within(part, extent(whole)[0]) for part, whole in zip(parts, read, strict=True)])


def read_together(parts: Sequence[Parts], cost: Cost) -> list[tuple[Parts, list[int]]]:
    """Group the parts of a block into regions that are read at once.

    A part joins a group if reading one region around both costs less than reading both alone. In the end all
    groups become one if that costs less still.

    Returns
    -------
    list of tuple
        The region to read, and the indexes of the parts that are taken from it.

    Examples
    --------
    >>> day, next_day, later = ((slice(at, at + 24, 1),) for at in (0, 24, 900))
    >>> read_together([day, next_day, later], lambda parts: 1)
    [((slice(0, 924, 1),), [0, 1, 2])]
    >>> read_together([later, day], lambda parts: parts[0].stop - parts[0].start)
    [((slice(0, 24, 1),), [1]), ((slice(900, 924, 1),), [0])]
    """
    nothing: list[_SharedRead] = []
    groups: list[_SharedRead] = []
    extents = [[extent(along) for along in part] for part in parts]
    for which in sorted(range(len(parts)), key=extents.__getitem__):
        own = cost(parts[which])
        if not own:
            nothing.append(_SharedRead(parts[which], [which], own))
            continue
        for group in groups[: -_COMPARED - 1 : -1]:
            around = _around(group.read, parts[which])
            price = cost(around)
            if price < group.cost + own:
                group.read, group.cost = around, price
                group.which.append(which)
                break
        else:
            groups.append(_SharedRead(parts[which], [which], own))
    if len(groups) > 1:
        around = reduce(_around, [group.read for group in groups])
        price = cost(around)
        if price < sum(group.cost for group in groups):
            groups = [_SharedRead(around, [which for group in groups for which in group.which], price)]
    return [(group.read, group.which) for group in [*nothing, *groups]]


@dataclass
class _SharedRead:
    """Parts of a block that are read together, and the region around them."""

    read: Parts
    which: list[int]
    cost: int


def _around(one: Parts, other: Parts) -> Parts:
    """The smallest region without steps that contains both parts."""
    along = zip(map(extent, one), map(extent, other), strict=True)
    return tuple([slice(min(low, start), max(high, end), 1) for (low, high, _), (start, end, _) in along])
