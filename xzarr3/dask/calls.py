"""Finds the calls of functions in the graph that dask would run, without running it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from dask.array import Array as DaskArray

Call: TypeAlias = tuple[Callable[..., Any], list[Any]]


class _GraphKnownError(Exception):
    """Ends a computation before anything has run."""


def calls(arrays: Sequence[DaskArray], functions: Collection[Callable[..., Any]]) -> Iterator[Call]:
    """The calls of some functions, with their arguments, in the graph that computes arrays together."""
    from dask._task_spec import DataNode, convert_legacy_graph
    from dask.base import compute
    from dask.optimization import cull

    needed: list[Mapping[Any, Any]] = []

    def keep(graph: Any, keys: Any, **options: Any) -> None:
        tasks = graph.__dask_graph__() if hasattr(graph, "__dask_graph__") else graph
        needed.append(cull(tasks, keys)[0])  # As schedulers do: compute() may leave other tasks.
        raise _GraphKnownError

    with suppress(_GraphKnownError):
        compute(*arrays, scheduler=keep, traverse=False)
    for tasks in needed:
        graph = convert_legacy_graph(tasks)
        data = {key: node.value for key, node in graph.items() if isinstance(node, DataNode)}
        for node in graph.values():
            yield from _calls_of(node, functions, data)


def _calls_of(
    node: object, functions: Collection[Callable[..., Any]], known: Mapping[Any, Any]
) -> Iterator[Call]:
    """The calls in a task, also in those that dask has fused into it.

    ``known`` holds the values of the keys that it refers to, as far as they are no results of tasks.
    """
    from dask._task_spec import Task

    if not isinstance(node, Task):
        if isinstance(node, (list, tuple)):
            for each in node:
                yield from _calls_of(each, functions, known)
        return
    args = [_value(each, known) for each in node.args]
    if any(node.func is function for function in functions):
        yield node.func, args
        return
    if node.has_subgraph():
        inner, _, names, *given = args
        values = dict(zip(names, given, strict=True))
        for each in inner.values():
            yield from _calls_of(each, functions, values)
    for each in (*node.args, *node.kwargs.values()):
        yield from _calls_of(each, functions, known)


def _value(item: Any, known: Mapping[Any, Any]) -> Any:
    """The value of an argument, where it is known before anything has run."""
    from dask._task_spec import Alias, DataNode, TaskRef

    if isinstance(item, DataNode):
        return item.value
    if isinstance(item, TaskRef):
        return known.get(item.key, item)
    return known.get(item.target, item) if isinstance(item, Alias) else item
