"""Tells what loading or computing lazy variables fetches: requests and bytes by variable.

Nothing is computed. The selections that xarray holds are those that it will read with, and the tasks that
read are taken from the graph that dask would run. Each read is then explained by :mod:`xzarr3.io.explain`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from xarray import Variable
from xarray.core import indexing
from xarray.namedarray.utils import is_duck_dask_array

from xzarr3._types import JSON
from xzarr3.arrays import Array
from xzarr3.display.shown import Description, Shown
from xzarr3.errors import printable
from xzarr3.io.explain import Explanation, KeptIndexes, explain
from xzarr3.io.plan import ReadPlan
from xzarr3.io.selection import basic_selection
from xzarr3.parallel import parallel_map
from xzarr3.xarray import chunked
from xzarr3.xarray.lazy import Chosen, LazyArray

if TYPE_CHECKING:
    from dask.array import Array as DaskArray

_DRAWN = 600  # Reads of one array.


class Read(NamedTuple):
    """One read of a stored array."""

    array: Array
    selection: Chosen
    threads: int | None


@dataclass(frozen=True, kw_only=True)
class ArrayReads:
    """All reads of one stored array; see :class:`xzarr3.io.explain.Explanation` for what is counted."""

    variables: tuple[Hashable, ...]
    """The variables whose values come from the array."""
    array: str
    """Name of the array."""
    reads: int
    """Number of reads: tasks of dask, or variables without dask."""
    units: int
    """Number of stored units that are touched, absent ones included; those of each read count."""
    absent: int
    chunks: int
    """Number of chunks that are decoded."""
    requests: int
    index_requests: int
    bytes_moved: int
    bytes_used: int
    picture: Callable[[], str] = field(repr=False, compare=False)
    """Draws the array and the touched chunks."""


_NUMBERS = ("reads", "units", "absent", "chunks", "requests", "index_requests", "bytes_moved", "bytes_used")


@dataclass(frozen=True, repr=False)
class LazyExplanation(Shown):
    """What loading or computing variables fetches.

    The numbers are those that a trace counts for each array afterwards: ``requests`` are its kinds ``get``
    and ``get_range``, without those for absent values; ``bytes_moved`` are its ``bytes_read``. As in
    :class:`xzarr3.io.explain.Explanation`, they are those of a process that keeps no indexes of these
    shards yet, and neither requests for documents nor for whether a value exists count. From stores with
    latency, small variables may be read ahead of their use.

    An array that several variables are computed from is read once for all of them.

    Parameters
    ----------
    arrays : tuple of ArrayReads
        By stored array.
    in_memory : tuple
        Names of the variables whose values are in memory.
    elsewhere : tuple
        Names of the variables that are made or read by something else than this package.
    """

    arrays: tuple[ArrayReads, ...]
    in_memory: tuple[Hashable, ...]
    elsewhere: tuple[Hashable, ...]

    def __getitem__(self, variable: Hashable) -> dict[str, int]:
        """The numbers of the arrays that a variable comes from.

        Raises
        ------
        KeyError
            If there is no such variable.
        """
        found = [each for each in self.arrays if variable in each.variables]
        if not found and variable not in (*self.in_memory, *self.elsewhere):
            raise KeyError(variable)
        return _sums(found)

    @property
    def total(self) -> dict[str, int]:
        """The sums over all arrays."""
        return _sums(self.arrays)

    @property
    def requests(self) -> int:
        """Number of requests for values."""
        return self.total["requests"]

    @property
    def bytes_moved(self) -> int:
        """Number of bytes that are requested."""
        return self.total["bytes_moved"]

    @property
    def bytes_used(self) -> int:
        """Number of bytes of the elements that are selected."""
        return self.total["bytes_used"]

    def to_json(self) -> dict[str, JSON]:
        """All numbers, by array."""
        arrays: list[JSON] = [
            {
                "array": each.array,
                "variables": [str(name) for name in each.variables],
                **{name: getattr(each, name) for name in _NUMBERS},
            }
            for each in self.arrays
        ]
        return {
            "arrays": arrays,
            "total": dict(self.total),
            "in_memory": [str(name) for name in self.in_memory],
            "elsewhere": [str(name) for name in self.elsewhere],
        }

    def _rows(self) -> list[list[str]]:
        columns = ["reads", "chunks", "absent", "requests", "moved", "used"]
        rows = [
            [_names(each.variables), each.array, *_cells({n: getattr(each, n) for n in _NUMBERS})]
            for each in self.arrays
        ]
        return [["variable", "array", *columns], *rows, ["total", "", *_cells(self.total)]]

    def _rest(self) -> list[str]:
        """What is said of the variables that read nothing from a store of this package."""
        told = (("in memory", self.in_memory), ("not read by xzarr3", self.elsewhere))
        return [f"{what}: {_names(names)}" for what, names in told if names]

    def _describe(self) -> Description:
        from xzarr3.display import html, text

        rows, rest = self._rows(), self._rest()
        found = "\n".join((text.table(rows, left=2), *map(printable, rest)))

        def shown() -> str:
            pictures = [html.code(_names(each.variables)) + each.picture() for each in self.arrays[:6]]
            title = html.title("xzarr3 explanation", after="what loading or computing this reads")
            return html.box(title, html.table(rows, left=2), *map(html.note, rest), html.row(*pictures))

        return Description(found, shown)

    def __str__(self) -> str:
        return str(self._describe())

    __repr__ = __str__


def _sums(arrays: Iterable[ArrayReads]) -> dict[str, int]:
    found = list(arrays)
    return {name: sum(getattr(each, name) for each in found) for name in _NUMBERS}


def _names(names: Iterable[Hashable]) -> str:
    return ", ".join(map(str, names))


def _cells(numbers: Mapping[str, int]) -> list[str]:
    from xzarr3.display.units import size

    counts = [f"{numbers[name]:,}" for name in ("reads", "chunks", "absent", "requests")]
    return [*counts, size(numbers["bytes_moved"]), size(numbers["bytes_used"])]


def explain_lazy(variables: Mapping[Hashable, Variable]) -> LazyExplanation:
    """Tell what loading all these variables fetches; those of dask are computed together."""
    found: _Found = {}
    in_dask: dict[Hashable, DaskArray] = {}
    held: dict[int, tuple[Any, list[Hashable]]] = {}  # Variables that share their values load them once.
    for name, variable in variables.items():
        data: Any = variable._data
        if is_duck_dask_array(data):
            in_dask[name] = data
        else:
            held.setdefault(id(data), (data, []))[1].append(name)
    for data, names in held.values():
        read = lazy_read(data)
        if read is not None:
            _add(found, [read], names)
    _add_dask(found, in_dask)
    order = {name: at for at, name in enumerate(variables)}
    arrays = tuple(
        sorted(
            (_explained(reads, tuple(names)) for reads, names in found.values()),
            key=lambda each: [order[name] for name in each.variables],
        )
    )
    are_read = {name for each in arrays for name in each.variables}
    others = {name: variable for name, variable in variables.items() if name not in are_read}
    in_memory = tuple(name for name, variable in others.items() if variable._in_memory)
    return LazyExplanation(arrays, in_memory, tuple(name for name in others if name not in in_memory))


_Found: TypeAlias = "dict[object, tuple[list[Read], dict[Hashable, None]]]"
"""By stored array, its reads and the variables that need it."""


def _place(read: Read) -> object:
    return read.array.store.identity, read.array.path


def _add(found: _Found, reads: Iterable[Read], names: Iterable[Hashable]) -> None:
    for read in reads:
        those, told = found.setdefault(_place(read), ([], {}))
        those.append(read)
        told.update(dict.fromkeys(names))


def _add_dask(found: _Found, in_dask: Mapping[Hashable, DaskArray]) -> None:
    if len(in_dask) == 1:
        for name, data in in_dask.items():
            _add(found, graph_reads([data]), [name])
    elif in_dask:
        _add(found, graph_reads(list(in_dask.values())), ())
        for name, data in in_dask.items():  # Alone, to know what belongs to it.
            for place in {_place(read) for read in graph_reads([data])}:
                found[place][1][name] = None


def _explained(reads: Sequence[Read], variables: tuple[Hashable, ...]) -> ArrayReads:
    first = reads[0].array
    plans = [read.array.engine.plan(read.selection) for read in reads]
    kept: KeptIndexes | None = {} if len(reads) > 1 and first.shards is not None else None

    def one(at: int) -> Explanation:
        return explain(reads[at].array, plans[at], threads=reads[at].threads, kept=kept)

    # Several reads of a shard find its index kept, so that one after the other is explained.
    each = parallel_map(one, range(len(reads)), first.store.concurrency if kept is None else 1)
    return ArrayReads(
        variables=variables,
        array=first.name,
        reads=len(reads),
        units=sum(found.units for found in each),
        absent=sum(found.absent for found in each),
        chunks=sum(found.chunks for found in each),
        requests=sum(found.requests for found in each),
        index_requests=sum(found.index_requests for found in each),
        bytes_moved=sum(found.bytes_moved for found in each),
        bytes_used=sum(found.bytes_used for found in each),
        picture=lambda: _picture(first, plans[:_DRAWN]),
    )


def _picture(array: Array, plans: Sequence[ReadPlan]) -> str:
    from xzarr3.display.picture import picture

    return picture(array.metadata, plans)


# What xarray reads without dask


def lazy_read(data: Any, *, in_task: bool = False) -> Read | None:
    """The read of a stored array that loading ``data`` makes; None if it makes none.

    xarray wraps a stored array in objects that select from it and decode its values. The selections are
    handed down to the stored array, as xarray does when it loads the values.
    """
    while isinstance(data, indexing.ExplicitlyIndexed):
        if isinstance(data, LazyArray):
            return _read_of(data, indexing.BasicIndexer((slice(None),) * data.ndim), in_task)
        if isinstance(data, (indexing.LazilyIndexedArray, indexing.LazilyVectorizedIndexedArray)):
            inner, key = data.array, data.key
            if isinstance(inner, LazyArray):
                return _read_of(inner, key, in_task)
            if not isinstance(inner, indexing.ExplicitlyIndexed):
                return None
            data = indexing.apply_indexer(inner, key)
        else:  # Decodes values, keeps them, or copies them before a change.
            data = getattr(data, "array", None)
    return None


def _read_of(lazy: LazyArray, key: indexing.ExplicitIndexer, in_task: bool) -> Read:
    threads = 1 if in_task and not lazy.array.engine.waiting else None
    return Read(lazy.array, lazy.selected(key)[0], threads)


# What dask reads


class _GraphKnownError(Exception):
    """Ends a computation before anything has run."""


def graph_reads(arrays: Sequence[DaskArray]) -> Iterator[Read]:
    """The reads of stored arrays in the graph that dask runs to compute arrays together."""
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
        for node in tasks.values():
            yield from _reads_of(node, {})


def _reads_of(node: object, known: Mapping[Any, Any]) -> Iterator[Read]:
    """The reads of a task, also of those that dask has fused into it.

    ``known`` holds the values of the keys that it refers to, as far as they are no results of tasks.
    """
    from dask._task_spec import Task

    if not isinstance(node, Task):
        if isinstance(node, (list, tuple)):
            for each in node:
                yield from _reads_of(each, known)
        return
    args = [_value(each, known) for each in node.args]
    read = next((made for function, made in _readers() if node.func is function), None)
    if read is not None:
        found = read(*args[:2])
        if found is not None:
            yield found
        return
    if node.has_subgraph():
        inner, _, names, *given = args
        values = dict(zip(names, given, strict=True))
        for each in inner.values():
            yield from _reads_of(each, values)
    for each in (*node.args, *node.kwargs.values()):
        yield from _reads_of(each, known)


def _value(item: Any, known: Mapping[Any, Any]) -> Any:
    """The value of an argument, where it is known before anything has run."""
    from dask._task_spec import Alias, DataNode, TaskRef

    if isinstance(item, DataNode):
        return item.value
    if isinstance(item, TaskRef):
        return known.get(item.key, item)
    return known.get(item.target, item) if isinstance(item, Alias) else item


@cache
def _readers() -> tuple[tuple[object, Callable[[Any, Any], Read | None]], ...]:
    """The functions of tasks that read, and what each reads."""
    from dask.array.core import getter, getter_inline, getter_nofancy

    return tuple((function, _of_indexed) for function in (getter, getter_nofancy, getter_inline))


def _of_indexed(indexed: Any, parts: Any) -> Read | None:
    """The read of what a task of dask indexes."""
    from xzarr3.dask.array import read_block
    from xzarr3.dask.layers import Reader

    if not isinstance(indexed, Reader):
        return _of_adapted(indexed, parts)
    own: dict[Any, Callable[[Any, Any], Read | None]] = {
        read_block: _of_array,
        chunked._read: _of_decoded,
    }
    return own[indexed.read](indexed.source, parts)


def _of_array(array: Array, parts: Any) -> Read:
    from xzarr3.dask.blocks import threads_of

    return Read(array, basic_selection(parts, array.shape), threads_of(array))


def _of_decoded(data: Any, parts: Any) -> Read | None:
    return _of_adapted(indexing.ImplicitToExplicitIndexingAdapter(data, indexing.OuterIndexer), parts)


def _of_adapted(adapted: Any, parts: Any) -> Read | None:
    """The read of what xarray hands to ``dask.array.from_array``."""
    if not isinstance(adapted, indexing.ImplicitToExplicitIndexingAdapter):
        return None
    data = adapted.array
    if isinstance(data, LazyArray):  # Indexing it would read.
        expanded = indexing.expanded_indexer(parts, data.ndim)  # type: ignore[no-untyped-call]
        key = adapted.indexer_cls(expanded)
        return _read_of(data, key, in_task=True)
    selected = adapted[parts]
    return lazy_read(getattr(selected, "array", None), in_task=True)
