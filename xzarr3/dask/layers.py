"""Dask graph layers that read: one reads blocks of an array, another selects from it; and finds reads.

Reading tasks call dask's own ``getter`` and selecting tasks dask's own ``getitem``. So where one selection
alone needs a block, dask's optimizer joins the two tasks, and only the selected elements are read. A block
that several selections need is read once, and selections are taken from it. Whether selections share a block
is decided by :func:`xzarr3.dask.slicing.to_read`.

Finds the reads in the graph that dask would run, without running it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from dask._task_spec import Task, TaskRef
from dask.array.chunk import getitem
from dask.blockwise import BlockwiseDep
from dask.highlevelgraph import Layer, MaterializedLayer

from xzarr3._types import AnyArray
from xzarr3.dask.slicing import Along, Part, Selections, extent

if TYPE_CHECKING:
    from dask.array import Array as DaskArray


Key: TypeAlias = Any
Read: TypeAlias = Callable[[Any, tuple[Part, ...]], AnyArray]


class LazyLayer(MaterializedLayer):
    """A layer that makes its tasks when they are first asked for, and is pickled without them."""

    has_legacy_tasks = False

    def __init__(self, name: str) -> None:
        Layer.__init__(self)
        self.name = name

    def make(self) -> dict[Key, Task]:
        """Make all tasks of the layer."""
        raise NotImplementedError

    @cached_property
    def mapping(self) -> dict[Key, Task]:  # type: ignore[override]  # Dask's is an attribute.
        """All tasks of the layer; made at the first call."""
        return self.make()

    def is_materialized(self) -> bool:
        return "mapping" in self.__dict__

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "mapping"}


class Reader:
    """What a reading task indexes: the values of ``source``, which ``read`` reads."""

    __slots__ = ("read", "source")

    def __init__(self, read: Read, source: Any) -> None:
        self.read, self.source = read, source

    def __getitem__(self, parts: tuple[Part, ...]) -> AnyArray:
        return self.read(self.source, parts)


class Readers(BlockwiseDep):
    """What the reading task of each block indexes, where the source is joined of arrays of several stores.

    A task gets only the arrays that its block needs: all of them may be a thousand.
    """

    def __init__(self, read: Read, source: Any, axis: int, parts: Selections) -> None:
        self.read, self.source, self.axis, self.parts = read, source, axis, parts
        self.numblocks = parts.numblocks
        self.produces_tasks = False

    def __dask_tokenize__(self) -> object:
        return "xzarr3.dask.Readers", self.parts.name

    def __getitem__(self, idx: tuple[int, ...]) -> Reader:
        start, stop, _ = extent(self.parts[idx][self.axis])
        return Reader(self.read, self.source.within(start, stop))


class SelectLayer(LazyLayer):
    """A selection from the blocks that a reading layer reads.

    Each block takes two tasks, which dask joins: one selects, the other copies what is a view, so that a
    task that changes its array in place changes no other result.

    Parameters
    ----------
    name, source : str
        Names of this layer and of the reading layer.
    read, view : tuple of Along
        The elements that the reading layer reads along each dimension of the source, and those selected.
    """

    def __init__(self, name: str, source: str, read: tuple[Along, ...], view: tuple[Along, ...]) -> None:
        super().__init__(name)
        self.source, self.view = source, view
        self.parts, self.blocks = Selections(name, view), Selections(source, read)

    def _made(self, key: Key) -> Iterator[tuple[Key, Task]]:
        """The tasks of a block, the last one first."""
        at = tuple(map(int, key[1:]))
        places = iter(at)
        block = tuple(
            [
                along.block(0 if along.drop else next(places)) - read.first
                for along, read in zip(self.view, self.blocks.view, strict=True)
            ]
        )
        wanted, whole = self.parts[at], self.blocks[block]
        taken = tuple([_forwards(part, extent(read)[0]) for part, read in zip(wanted, whole, strict=True)])
        turned = tuple(
            [slice(None, None, -1 if each.step < 0 else 1) for each in wanted if not isinstance(each, int)]
        )
        inner = (f"{self.name}-view", *key[1:])
        yield key, Task(key, owned, TaskRef(inner), turned)
        yield inner, Task(inner, getitem, TaskRef((self.source, *block)), taken)

    def make(self) -> dict[Key, Task]:
        return dict(task for key in self.get_output_keys() for task in self._made(key))

    def get_output_keys(self) -> Set[Key]:
        """The keys of all blocks, without their tasks."""
        return {*itertools.product([self.name], *map(range, self.parts.numblocks))}

    def cull(self, keys: set[Key], all_hlg_keys: Collection[Key]) -> tuple[Layer, Mapping[Key, set[Key]]]:
        """The layer with the tasks of some blocks only."""
        mine = (key for key in keys if isinstance(key, tuple) and key[0] == self.name)
        tasks = dict(task for key in mine for task in self._made(key))
        needed = {key: set(task.dependencies) for key, task in tasks.items()}
        return MaterializedLayer(tasks, annotations=self.annotations), needed


def _forwards(part: Part, first: int) -> Part:
    """The index that takes a part, forwards, from an array that begins with the element ``first``.

    Dask does not join a selecting task with a reading one if it selects backwards.
    """
    if isinstance(part, int):
        return part - first
    start, stop, step = extent(part)
    return slice(start - first, stop - first, step)


def owned(values: AnyArray, turned: tuple[slice, ...]) -> AnyArray:
    """The values in the order that is wanted, copied if they are a view of others."""
    values = values[turned] if any(each.step < 0 for each in turned) else values
    return values if values.flags.owndata else values.copy()


_GETTERS = ("getter", "getter_nofancy", "getter_inline")
"""The functions of dask, and of the package ``dask-array``, that read."""


def calls_of_getters(arrays: Sequence[DaskArray]) -> Iterator[list[Any]]:
    """The arguments of all calls that read in the graph that computes arrays together."""
    from dask._task_spec import DataNode, convert_legacy_graph
    from dask.base import collections_to_expr
    from dask.optimization import cull

    tasks = collections_to_expr(arrays).optimize().__dask_graph__()
    keys = [array.__dask_keys__() for array in arrays]
    graph = convert_legacy_graph(cull(tasks, keys)[0])  # As schedulers do: other tasks may be left.
    data = {key: node.value for key, node in graph.items() if isinstance(node, DataNode)}
    for node in graph.values():
        yield from _calls_of(node, data)


def _calls_of(node: object, known: Mapping[Any, Any]) -> Iterator[list[Any]]:
    """The calls in a task, also in those that dask has fused into it.

    ``known`` holds the values of the keys that it refers to, as far as they are no results of tasks.
    """
    from dask._task_spec import Task

    if not isinstance(node, Task):
        if isinstance(node, (list, tuple)):
            for each in node:
                yield from _calls_of(each, known)
        return
    args = [_value(each, known) for each in node.args]
    package = (getattr(node.func, "__module__", None) or "").partition(".")[0]
    if getattr(node.func, "__name__", "") in _GETTERS and package in ("dask", "dask_array"):
        yield args
        return
    if node.has_subgraph():
        inner, _, names, *given = args
        values = dict(zip(names, given, strict=True))
        for each in inner.values():
            yield from _calls_of(each, values)
    for each in (*node.args, *node.kwargs.values()):
        yield from _calls_of(each, known)


def _value(item: Any, known: Mapping[Any, Any]) -> Any:
    """The value of an argument, where it is known before anything has run."""
    from dask._task_spec import Alias, DataNode, TaskRef

    if isinstance(item, DataNode):
        return item.value
    if isinstance(item, TaskRef):
        return known.get(item.key, item)
    return known.get(item.target, item) if isinstance(item, Alias) else item
