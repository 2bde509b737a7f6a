"""Tells what a read of a selection fetches without reading it: keys, byte ranges, requests, bytes.

Sums the rows that the read would carry out; see :mod:`xzarr3.io.fetch`. It reads the indexes of shards and
asks the store for the sizes of stored units. It reads no chunk, unless the store cannot tell the size of a
value.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from xzarr3.codecs.pipeline import CodecChain
from xzarr3.display.report import Page, Report
from xzarr3.display.units import counted, ratio, size
from xzarr3.errors import ChunkError, printable
from xzarr3.io.fetch import Table, requests
from xzarr3.io.plan import ReadPlan
from xzarr3.io.projection import ChunkProjection
from xzarr3.io.shards import MOST_KEPT, Index, shard_index
from xzarr3.parallel import asked_threads, parallel_map
from xzarr3.stores.values import BytesValue

if TYPE_CHECKING:
    from xzarr3.arrays import Array
    from xzarr3.io.executor import Engine
    from xzarr3.io.selection import Fields

NUMBERS = ("absent", "chunks", "chunks_kept", "requests", "index_requests", "bytes_moved", "bytes_used")
_SHOWN = 20  # Most values, and most ranges of a value, that are printed.

KeptIndexes: TypeAlias = dict[tuple[int, ...], tuple[object, Index]]
"""The indexes that earlier reads of an array have kept, by the coordinates of the shard, with its version."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """The requests for one stored unit.

    Parameters
    ----------
    key : str
    coords : tuple of int
        Coordinates of the unit in the grid.
    chunks : int
        Number of chunks that are decoded: of inner chunks if the unit is a shard.
    ranges : tuple of (int, int)
        Start and length in bytes of each request. A request for the whole unit is one range.
    size : int or None
        Size of the unit in bytes, None if it is absent.
    whole : bool
        Whether one request fetches the whole unit.
    index_requests : int
        How many of the requests fetch the index of a shard. Reads keep these indexes.
    """

    key: str
    coords: tuple[int, ...]
    chunks: int
    ranges: tuple[tuple[int, int], ...]
    size: int | None
    whole: bool
    index_requests: int = 0

    @property
    def bytes_moved(self) -> int:
        """Number of bytes in all ranges."""
        return sum(length for _, length in self.ranges)

    @property
    def summary(self) -> str:
        """How much is fetched, in words."""
        if self.size is None:
            return "absent, the fill value"
        if self.whole:
            return f"all {size(self.size)}"
        shown = [f"{start}+{length}" for start, length in self.ranges[:_SHOWN]]
        shown += [f"{len(self.ranges) - _SHOWN} more"] if len(self.ranges) > _SHOWN else []
        requests = counted(len(self.ranges), "request")
        return f"{size(self.bytes_moved)} of {size(self.size)} in {requests}: {', '.join(shown)}"

    def __str__(self) -> str:
        return f"{printable(self.key)}: {self.summary}"


@dataclass(frozen=True, repr=False)
class Explanation(Report):
    """What a read of a selection fetches.

    Printing it shows a summary and the first stored units. Iterating over it gives a :class:`Fetch` for each
    touched unit; each iteration asks the store again.

    The numbers are those of a process that has read none of these units before. Where the store tells whether
    a value has changed, as directories do, reads keep the indexes of shards, and the next read makes
    ``index_requests`` fewer requests. An absent unit counts as no request and no bytes. Requests that ask
    whether a unit exists, or that look at the document of the array, do not count. If the store cannot tell
    the size of a value, the explanation reads the whole value. A store that opens a value by reading it, as
    a :class:`~xzarr3.MemoryStore` does, moves whole shards.

    Parameters
    ----------
    name : str
        Name of the array.
    shape : tuple of int
        Shape of the result.
    units : int
        Number of stored units that are touched, absent ones included.
    chunks : int
        Number of chunks that are decoded: of inner chunks in shards.
    chunks_kept : int
        Number of chunks that the :class:`ChunkCache` of the array has, which are not among these.
    absent : int
        Number of absent units.
    requests : int
        Number of requests: one for each unit read whole, each byte range and each index of a shard.
    index_requests : int
        How many of these fetch the index of a shard.
    bytes_moved : int
        Number of bytes that are requested.
    bytes_used : int
        Number of bytes of the result. For elements of variable size, only the bytes of the numpy array.
    first : tuple of Fetch
        The first units that are touched.

    Examples
    --------
    >>> import xzarr3
    >>> found = xzarr3.array([1, 2, 3], chunks=2, compressors=None).explain(2)
    >>> found.units, found.requests, found.bytes_used
    (1, 1, 8)
    >>> [fetch.key for fetch in found]
    ['c/1']
    """

    name: str
    shape: tuple[int, ...]
    units: int
    chunks: int
    chunks_kept: int
    absent: int
    requests: int
    index_requests: int
    bytes_moved: int
    bytes_used: int
    first: tuple[Fetch, ...]
    _fetches: Callable[[], Iterator[Fetch]] = field(compare=False)
    _picture: Callable[[], str] = field(compare=False)
    """Draws the array and the touched chunks."""

    def __iter__(self) -> Iterator[Fetch]:
        return self._fetches()

    _also = ("fetches",)
    _left_out: ClassVar[tuple[str, ...]] = ("first", "_fetches", "_picture")

    @property
    def fetches(self) -> list[Fetch]:
        """All units that are touched, with their ranges; the store is asked again."""
        return list(self)

    def _page(self) -> Page:
        used, left = self.bytes_used, self.units - len(self.first)
        each = f" ({ratio(self.bytes_moved, used)} moved for each)" if used else ""
        absent = f", of which {self.absent:,} absent" if self.absent else ""
        indexes = f", of which {self.index_requests:,} for indexes of shards" if self.index_requests else ""
        kept = f", {self.chunks_kept:,} from the cache" if self.chunks_kept else ""
        facts = [
            ("keys", f"{self.units:,}{absent}"),
            ("chunks", f"{self.chunks:,} decoded{kept}"),
            ("requests", f"{self.requests:,}{indexes}"),
            ("bytes moved", size(self.bytes_moved)),
            ("bytes used", f"{size(used)}{each}"),
        ]
        return Page(
            "xzarr3.explain",
            f"read of shape {self.shape} from array '{self.name}'",
            facts,
            notes=[f"  and {left:,} more"] if left else [],
            details={f"Keys ({self.units:,})": [(fetch.key, fetch.summary) for fetch in self.first]},
            picture=self._picture,
        )


def explain(
    array: Array,
    plan: ReadPlan,
    fields: Fields | None = None,
    threads: int | None = None,
    *,
    kept: KeptIndexes | None = None,
) -> Explanation:
    """Tell what carrying out a plan fetches.

    Parameters
    ----------
    array : Array
    plan : ReadPlan
    fields : str or list of str, optional
        The wanted fields of the elements. All fields are fetched; only these count as used.
    threads : int, optional
        The number of threads that the read would use, which makes no difference.
    kept : dict, optional
        The indexes that earlier reads have kept; those that this read would keep are added.
    """
    from xzarr3.display.picture import picture

    asked_threads(threads)
    dtype, names = array.dtype, [fields] if isinstance(fields, str) else fields
    each = dtype.itemsize if names is None else sum(dtype[name].itemsize for name in names)
    shape = plan.shape + (dtype[fields].shape if isinstance(fields, str) else ())
    from xzarr3.io.native_read import does  # imports the libraries of the codecs

    plans, from_cache = _cached(array, plan)
    fetches = partial(_fetches, array.engine, plans, None if does(array.engine, plan) else kept)
    first, sums = list[Fetch](), [0] * 6
    for fetch in fetches():
        if len(first) < _SHOWN:
            first.append(fetch)
        asked = len(fetch.ranges), fetch.index_requests, fetch.bytes_moved
        numbers = 1, fetch.chunks, int(fetch.size is None), *asked
        sums = [*map(int.__add__, sums, numbers)]
    units, chunks, absent, requested, indexes, moved = sums
    counts = units, chunks, from_cache, absent, requested, indexes, moved, math.prod(plan.shape) * each
    drawn = partial(picture, array.metadata, [plan])
    return Explanation(array.name, shape, *counts, tuple(first), fetches, drawn)


def _cached(array: Array, plan: ReadPlan) -> tuple[list[ReadPlan], int]:
    """The plans of the reads that a cache of decoded chunks leaves, and how many chunks it has."""
    cache = array.chunk_cache
    chunked = None if cache is None else cache.plan(array.engine, plan)
    if cache is None or chunked is None:
        return [plan], 0
    from xzarr3.io.chunk_cache import Look

    look = Look(cache, array.engine, [chunked])
    return [*look.plans], len(look.found)


def _fetches(engine: Engine, plans: Sequence[ReadPlan], kept: KeptIndexes | None) -> Iterator[Fetch]:
    kept, at_once = {} if kept is None else kept, max(engine.waiting, 1)
    for plan in plans:
        for chain, units in plan.batches() if math.prod(plan.shape) else ():
            one = partial(_fetch, engine, plan, chain, kept)
            while some := list(itertools.islice(units, at_once)):
                yield from parallel_map(one, some, at_once)


def _fetch(
    engine: Engine, plan: ReadPlan, chain: CodecChain, kept: KeptIndexes, unit: ChunkProjection
) -> Fetch:
    coords, key = unit.coords, engine.key(unit.coords)
    reader = engine.store.open(key)
    if reader is None:
        return Fetch(key, coords, 0, (), None, whole=False)
    with reader:
        nbytes = len(reader.read(0)) if reader.size is None else reader.size
        everything, table, shard = ((0, nbytes),), Table(plan, chain), chain.shard
        if shard is None:
            asked = table.requests(unit.inner)
            parts = everything if asked is None else tuple(each[:2] for each in asked)
            return Fetch(key, coords, 1, parts, nbytes, whole=asked is None)
        wanted, version = table.wanted(unit.inner), reader.version
        # A store that opens a value by reading it has all of it.
        whole = wanted.whole or isinstance(reader, BytesValue)
        before, index = kept.get(coords, (None, None))
        is_kept = index is not None and version is not None and version == before
        try:
            if index is None or not is_kept:
                index = shard_index(shard, reader, engine.store_identity, key, keeps=False)
            rows, _ = table.of_shard(index, wanted, in_memory=whole)
        except ChunkError as error:
            error.key, error.chunk = key, coords
            raise
    if version is not None and not wanted.whole and len(kept) * index.nbytes < MOST_KEPT:
        kept[coords] = version, index
    chunks = len({row.coords for row in rows})
    if whole:
        return Fetch(key, coords, chunks, everything, nbytes, whole=True)
    start = shard.index_start + (0 if shard.index_start >= 0 else nbytes)
    ranges = [] if is_kept else [(start, shard.index_size)]
    ranges += [each[:2] for each in requests(rows, plan.price)]
    return Fetch(key, coords, chunks, tuple(ranges), nbytes, whole=False, index_requests=int(not is_kept))
