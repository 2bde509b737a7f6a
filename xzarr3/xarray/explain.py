"""Tells what loading or computing lazy variables fetches: requests and bytes by variable.

Nothing is computed. The selections that xarray holds are those that it will read with, and the tasks that
read are taken from the graph that dask would run. Each read is then explained by :mod:`xzarr3.io.explain`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from xarray import Variable
from xarray.core import indexing
from xarray.namedarray.utils import is_duck_dask_array

from xzarr3.arrays import Array
from xzarr3.display import html, text
from xzarr3.display.picture import picture
from xzarr3.display.report import Page, Report, Table
from xzarr3.io.explain import NUMBERS, Explanation, KeptIndexes, explain
from xzarr3.io.pointwise import Selected
from xzarr3.io.selection import basic_selection
from xzarr3.joined.array import JoinedArray
from xzarr3.parallel import parallel_map
from xzarr3.readable import ReadableArray
from xzarr3.xarray.lazy import LazyArray
from xzarr3.xarray.unreadable import UnreadableArray

if TYPE_CHECKING:
    from dask.array import Array as DaskArray

_DRAWN = 600  # Reads of one array.


class Read(NamedTuple):
    """One read of a stored array."""

    array: Array
    selection: Selected
    where: str
    """Name of the array; with its store, if it is one of several that are joined."""


def reads_of(array: object, selection: Selected, *, named: bool = False) -> Iterator[Read]:
    """The reads of stored arrays for a selection of an array; none if it is not stored."""
    if isinstance(array, JoinedArray):
        for piece in array.pieces(selection):
            yield from reads_of(array.sources[piece.at].array, piece.selection, named=True)
    elif isinstance(array, Array):
        yield Read(array, selection, array.place if named else array.name)


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
    chunks_kept: int
    """Number of chunks that a cache of decoded chunks has."""
    requests: int
    index_requests: int
    bytes_moved: int
    bytes_used: int
    picture: Callable[[], str] = field(repr=False, compare=False)
    """Draws the array and the touched chunks."""

    _left_out = ("picture",)


_NUMBERS = ("reads", "units", *NUMBERS)
_COLUMNS = {each: each for each in ("reads", "chunks", "absent", "requests")}
_COLUMNS |= {"moved": "bytes_moved", "used": "bytes_used"}


@dataclass(frozen=True, repr=False)
class LazyExplanation(Report):
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
        Names of the variables that are made or read by something else than this package, or cannot be read.

    Examples
    --------
    >>> import xzarr3
    >>> import xarray as xr
    >>> store = xzarr3.MemoryStore()
    >>> _ = xzarr3.to_zarr(xr.Dataset({"sst": ("x", [1.0, 2.0])}), store)
    >>> ds = xr.open_dataset(store, engine="xzarr3")
    >>> ds.xzarr3.explain()["sst"]["requests"]
    1
    """

    arrays: tuple[ArrayReads, ...]
    in_memory: tuple[Hashable, ...]
    elsewhere: tuple[Hashable, ...]

    _also = ("total",)

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

    def _page(self) -> Page:
        named = [((_names(each.variables), each.array), vars(each)) for each in self.arrays]
        rows = text.counts(("variable", "array"), _COLUMNS, [*named, (("total", ""), self.total)])
        told = (("in memory", self.in_memory), ("not read by xzarr3", self.elsewhere))
        return Page(
            "xzarr3.explain",
            tables=[Table(rows, left=2)],
            notes=[f"{what}: {_names(names)}" for what, names in told if names],
            heading=("", "what loading or computing this reads"),
            picture=self._pictures,
        )

    def _pictures(self) -> str:
        return html.row(*(html.code(_names(each.variables)) + each.picture() for each in self.arrays[:6]))


def _sums(parts: Iterable[object], names: Iterable[str] = _NUMBERS) -> dict[str, int]:
    found = list(parts)
    return {name: sum(getattr(each, name) for each in found) for name in names}


def _names(names: Iterable[Hashable]) -> str:
    return ", ".join(map(str, names))


def explain_lazy(variables: Mapping[Hashable, Variable]) -> LazyExplanation:
    """Tell what loading all these variables fetches; those of dask are computed together."""
    reads = defaultdict[object, list[Read]](list)  # By stored array.
    names = defaultdict[object, dict[Hashable, None]](dict)
    in_dask: dict[Hashable, Any] = {}
    held: dict[int, tuple[Any, list[Hashable]]] = {}  # Variables that share their values load them once.
    for name, variable in variables.items():
        data: Any = variable._data
        if is_duck_dask_array(data):
            from xzarr3.dask.expressions import with_graph

            in_dask[name] = with_graph(data)
        else:
            held.setdefault(id(data), (data, []))[1].append(name)
    for data, sharing in held.values():
        for read in lazy_reads(data):
            reads[_place(read)].append(read)
            names[_place(read)].update(dict.fromkeys(sharing))
    together = list(dask_reads([*in_dask.values()])) if in_dask else []
    for read in together:
        reads[_place(read)].append(read)
    for name, data in in_dask.items():  # Alone, to know what belongs to it.
        for read in together if len(in_dask) == 1 else dask_reads([data]):
            names[_place(read)][name] = None
    order = {name: at for at, name in enumerate(variables)}
    explained = [_explained(each, tuple(names[place])) for place, each in reads.items()]
    explained.sort(key=lambda each: ([order[name] for name in each.variables], each.array))
    others = {*variables} - {name for each in explained for name in each.variables}
    in_memory = tuple(name for name in variables if name in others and variables[name]._in_memory)
    elsewhere = tuple(name for name in variables if name in others and name not in in_memory)
    return LazyExplanation(tuple(explained), in_memory, elsewhere)


def _place(read: Read) -> object:
    return read.array.store.identity, read.array.path


def _explained(reads: Sequence[Read], variables: tuple[Hashable, ...]) -> ArrayReads:
    first = reads[0].array
    plans = [read.array.engine.plan(read.selection) for read in reads]
    kept: KeptIndexes | None = {} if len(reads) > 1 and first.shards is not None else None

    def one(at: int) -> Explanation:
        return explain(reads[at].array, plans[at], kept=kept)

    # Several reads of a shard find its index kept, so that one after the other is explained.
    each = parallel_map(one, range(len(reads)), first.store.concurrency if kept is None else 1)
    numbers = _sums(each, ("units", *NUMBERS))
    drawn = partial(picture, first.metadata, plans[:_DRAWN])
    return ArrayReads(variables=variables, array=reads[0].where, reads=len(reads), picture=drawn, **numbers)


def lazy_reads(data: Any) -> Iterator[Read]:
    """The reads of stored arrays that loading ``data`` makes.

    xarray wraps a stored array in objects that select from it and decode its values. The selections are
    handed down to the stored array, as xarray does when it loads the values.
    """
    while isinstance(data, indexing.ExplicitlyIndexed):
        if isinstance(data, (indexing.LazilyIndexedArray, indexing.LazilyVectorizedIndexedArray)):
            inner = data.array
            if isinstance(inner, LazyArray):
                yield from reads_of(inner.array, inner.selected(data.key)[0])
                return
            if isinstance(inner, UnreadableArray) or not isinstance(inner, indexing.ExplicitlyIndexed):
                return
            data = indexing.apply_indexer(inner, data.key)
        else:  # Decodes values, keeps them, or copies them before a change.
            data = getattr(data, "array", None)


def dask_reads(arrays: Sequence[DaskArray]) -> Iterator[Read]:
    """The reads of stored arrays in the graph that dask runs to compute arrays together."""
    from xzarr3.dask.layers import Reader, calls_of_getters

    for source, parts, *_ in calls_of_getters(arrays):
        data = source.source if isinstance(source, Reader) else source
        array = data.array if isinstance(data, LazyArray) else data
        if isinstance(array, ReadableArray):
            yield from reads_of(array, basic_selection(parts, array.shape))
        elif isinstance(data, indexing.ImplicitToExplicitIndexingAdapter):
            yield from lazy_reads(getattr(data[parts], "array", None))  # xarray selects lazily.
