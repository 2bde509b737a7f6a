"""Finds the reads in the graph that dask would run, without running it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dask.array import Array as DaskArray

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
