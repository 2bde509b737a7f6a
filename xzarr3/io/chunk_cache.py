"""Keeps decoded chunks, so that a chunk which several reads need is requested and decoded once.

A kept chunk is used only while the stored unit that it came from has the version that it had when it was
read. Each read asks the store for the versions of all units that it touches, so it never gives old values,
whoever wrote new ones. Absent units are not kept. This module knows nothing of documents or array handles.
"""

from __future__ import annotations

import math
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from xzarr3._types import AnyArray
from xzarr3.display.units import counted, size
from xzarr3.errors import StoreCapabilityError
from xzarr3.grid import Edges, Grid, Steps
from xzarr3.io.plan import ReadPlan
from xzarr3.io.projection import ChunkProjection
from xzarr3.io.selection import DimIndices, DimSelection
from xzarr3.model.metadata import ArrayMetadata
from xzarr3.parallel import parallel_map
from xzarr3.quantities import byte_count
from xzarr3.stores import Store
from xzarr3.stores.interned import Interned
from xzarr3.stores.locks import fork_safe
from xzarr3.tracing.counters import add, for_array, process

if TYPE_CHECKING:
    from xzarr3.io.executor import Engine

ENTRY = 512
"""Bytes that a kept chunk takes besides its elements."""
_MOST_CACHES = 4  # Caches of unpickled arrays that a process holds on to.

ChunkCacheLike: TypeAlias = "ChunkCache | str | int | None"
"""A cache, or the size of a new one."""
Coords: TypeAlias = tuple[int, ...]
Name: TypeAlias = tuple[object, str, Coords]
"""What a kept chunk is found by: the identity of its store, the start of its key, and its coordinates."""
Box: TypeAlias = tuple[tuple[int, ...], ...]
"""Chunks that are a product: their coordinates along each dimension."""


class _Kept(NamedTuple):
    """A decoded chunk, of which nobody changes the elements."""

    values: AnyArray
    version: object
    """The version of the stored unit."""
    meta: ArrayMetadata
    """What the values were decoded with."""


class ChunkCache:
    """Decoded chunks of the arrays that were opened with it, up to a number of bytes.

    ``chunk_cache="2 GiB"`` makes one for the array, or for all arrays of the group or dataset. Pass a cache
    instead of a size to share it among arrays that are opened one by one. Threads may share it. Each process
    has its own chunks: in another process, arrays that were pickled with one cache share an empty one of the
    same size.

    When it is full, the chunks that were used least recently go first. A selection of more chunks than fit is
    read as without a cache, and leaves the kept chunks as they are; so are arrays of text and of other
    objects, whose size in memory is not known.

    Parameters
    ----------
    size : str or int
        Most bytes of decoded chunks, such as ``"2 GiB"``. Reads that are in progress take more.

    Examples
    --------
    >>> import numpy as np, xzarr3
    >>> store = xzarr3.MemoryStore()
    >>> _ = xzarr3.create_array(store, data=np.arange(64), chunks=32)
    >>> cache = xzarr3.ChunkCache("1 MiB")
    >>> array = xzarr3.open_array(store, chunk_cache=cache)
    >>> with xzarr3.trace() as trace:
    ...     windows = [array[start : start + 4] for start in range(61)]
    >>> trace.total["chunks_decoded"], len(cache)
    (2, 2)
    """

    def __init__(self, size: str | int) -> None:
        self.size = byte_count(size, "chunk_cache")
        self.later: Callable[[Name], float] | None = None
        """When a chunk is needed next, if that is known; those that are needed last go first."""
        self._name = uuid.uuid4().hex
        self._lock = fork_safe(threading.Lock())
        self._kept: OrderedDict[Name, _Kept] = OrderedDict()
        self._nbytes = 0
        self._is_copy = False
        _named(self._name, lambda: self, keep=False)

    def __reduce__(self) -> tuple[object, ...]:
        return _restored, (self._name, self.size)

    def __repr__(self) -> str:
        return f"<xzarr3.ChunkCache {counted(len(self), 'chunk')}, {size(self.nbytes)} of {size(self.size)}>"

    def __len__(self) -> int:
        return len(self._kept)

    def __bool__(self) -> bool:
        return True

    @property
    def nbytes(self) -> int:
        """Bytes that the kept chunks take."""
        return self._nbytes

    def clear(self) -> None:
        """Forget all chunks."""
        with self._lock:
            self._kept.clear()
            self._nbytes = 0

    def plan(self, engine: Engine, plan: ReadPlan) -> ReadPlan | None:
        """The plan of the same read by chunks; None if it is read as without a cache."""
        dtype = engine.meta.data_type.to_native_dtype()
        if dtype.hasobject or not math.prod(plan.buffer_shape):
            return None
        chunked = _by_chunks(engine, plan)
        return chunked if chunked.number * room(chunked.grid, plan.array_shape, dtype) <= self.size else None

    def find(self, names: Iterable[Name]) -> list[_Kept | None]:
        """The kept chunks of these names, which are now the most recently used."""
        with self._lock:
            found = [self._kept.get(name) for name in names]
            for name, each in zip(names, found, strict=True):
                if each is not None:
                    self._kept.move_to_end(name)
        return found

    def keep(self, chunks: Sequence[tuple[Name, _Kept]], used: Collection[Name]) -> None:
        """Keep chunks in place of their earlier versions; those that are ``used`` now go last."""
        with self._lock:
            for name, chunk in chunks:
                self._drop(name)
                self._kept[name] = chunk
                self._nbytes += chunk.values.nbytes + ENTRY
            order: Iterator[Name] | None = None  # By default that of the dictionary: the oldest use first.
            if self.later is not None and self._nbytes > self.size:
                order = iter(sorted(self._kept, key=partial(_turn, used, self.later)))
            while self._nbytes > self.size:
                self._drop(next(iter(self._kept) if order is None else order))

    def _drop(self, name: Name) -> None:
        old = self._kept.pop(name, None)
        self._nbytes -= 0 if old is None else old.values.nbytes + ENTRY


def room(grid: Grid, shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Most bytes that a chunk of a grid takes in a cache."""
    return math.prod(map(min, grid.largest, shape)) * dtype.itemsize + ENTRY


def _by_chunks(engine: Engine, plan: ReadPlan) -> ReadPlan:
    """The plan of the same read by chunks: by inner chunks, where there are shards."""
    shard = engine.meta.chain.shard
    if shard is None:
        return plan
    inner = shard.inner
    return ReadPlan(plan.selection, plan.array_shape, shard.grid, lambda _: inner, plan.price)


def _parts(plan: ReadPlan) -> list[ChunkProjection]:
    """The part of each chunk that a plan by chunks selects."""
    return [part for _, parts in plan.batches() for part in parts]


def _turn(used: Collection[Name], later: Callable[[Name], float], name: Name) -> tuple[bool, float]:
    """The turn of a chunk to go: those that are used now go last, of the others the latest next use first."""
    return name in used, -later(name)


_named = Interned(_MOST_CACHES)
"""The caches of this process by name. Those of unpickled arrays live longer than the array of one task."""


def _restored(name: str, size: int) -> ChunkCache:
    """The cache of this name in this process."""

    def make() -> ChunkCache:
        copy = ChunkCache(size)
        copy._name, copy._is_copy = name, True
        return copy

    found = _named(name, make, keep=False)
    return _named(name, make) if found._is_copy else found


def check_tells(store: Store, keys: Sequence[str]) -> None:
    """Refuse a store that does not tell whether a value has changed.

    Parameters
    ----------
    store : Store
    keys : sequence of str
        Some that the store may have; values are asked for until one is there.

    Raises
    ------
    StoreCapabilityError
    """
    for key in keys:
        if _versions(store, [key])[0] is not None:
            return
        if store.exists(key):
            raise StoreCapabilityError(
                f"cannot keep decoded chunks of {store}: it does not tell whether a value has changed; leave "
                "out chunk_cache=..., or copy the data to a store that does, such as a directory"
            )


class Look:
    """One look at the cache: which of the chunks that reads need are kept, and which must be read.

    Parameters
    ----------
    cache : ChunkCache
    engine : Engine
    plans : sequence of ReadPlan
        Plans by chunks; see :meth:`ChunkCache.plan`.
    """

    def __init__(self, cache: ChunkCache, engine: Engine, plans: Sequence[ReadPlan]) -> None:
        self.cache, self.engine, self._plans = cache, engine, plans
        self.parts = [*map(_parts, plans)]
        self._grid, self._shape = plans[0].grid, plans[0].array_shape
        coords = {part.coords: None for parts in self.parts for part in parts}
        self._names: dict[Coords, Name] = {at: name_of(engine, at) for at in coords}
        self.units = dict.fromkeys(map(self._unit, coords))
        self._before = self._versions(self.units)
        kept = cache.find(self._names.values())
        self.found: dict[Coords, AnyArray] = {
            at: each.values
            for at, each in zip(coords, kept, strict=True)
            if each is not None and self._is_valid(at, each)
        }
        """The values of the chunks that are kept."""
        self._missing = [at for at in coords if at not in self.found]

    def _unit(self, at: Coords) -> Coords:
        """The stored unit that has a chunk."""
        units = self.engine.meta.chunk_grid
        if self._grid is units:
            return at
        axes = zip(units.axes, self._grid.axes, at, strict=True)
        return tuple([unit.index(chunk.start(each)) for unit, chunk, each in axes])

    def _versions(self, units: Collection[Coords], *, settled: bool = False) -> dict[Coords, object | None]:
        keys = [*map(self.engine.key, units)]
        return dict(zip(units, _versions(self.engine.store, keys, settled=settled), strict=True))

    def _is_valid(self, at: Coords, kept: _Kept) -> bool:
        if kept.version != self._before[self._unit(at)]:
            return False
        mine = self.engine.meta
        if kept.meta is not mine and not kept.meta.stores_as(mine):
            return False
        return kept.values.shape == self._lengths(at)  # The array may have grown.

    def _lengths(self, at: Coords) -> tuple[int, ...]:
        return tuple([part.stop - part.start for part in self._grid.region(at, self._shape)])

    @property
    def plans(self) -> Iterator[ReadPlan]:
        """The plans of the reads of the chunks that must be read, in as few products as are easily found."""
        boxes: Iterable[Box] = [tuple([(index,) for index in at]) for at in self._missing]
        for axis in range(len(self._shape)):
            merged: dict[Box, list[int]] = {}
            for box in boxes:
                merged.setdefault(box[:axis] + box[axis + 1 :], []).extend(box[axis])
            boxes = [(*rest[:axis], tuple(sorted(along)), *rest[axis:]) for rest, along in merged.items()]
        for box in boxes:
            yield self.engine.plan(tuple(map(self._elements, self._grid.axes, self._shape, box)))

    @staticmethod
    def _elements(axis: Steps | Edges, length: int, along: tuple[int, ...]) -> DimSelection | DimIndices:
        """The elements of some chunks along one dimension."""
        starts = [axis.start(at) for at in along]
        stops = [min(start + axis.length_at(at), length) for start, at in zip(starts, along, strict=True)]
        if along[-1] - along[0] + 1 == len(along):
            return DimSelection(starts[0], 1, stops[-1] - starts[0])
        return DimIndices(np.concatenate([*map(np.arange, starts, stops)]))

    @for_array(lambda look: look.engine)
    def read(self, buffers: Sequence[AnyArray], threads: int | None, absent: list[Coords]) -> int:
        """Read what the plans select into buffers; ``absent`` gets the units that are not stored.

        Returns the number of absent units.
        """
        if process.collectors:
            add({"chunks_kept": len(self.found)})
        dtype = self.engine.meta.data_type.to_native_dtype()
        for plan in self.plans:
            whole = np.empty(plan.buffer_shape, dtype)
            self.engine.read(plan, whole, threads, absent)
            for part in _parts(_by_chunks(self.engine, plan)):
                chunk = whole[part.outer]  # Kept without the others.
                self.found[part.coords] = whole if chunk.size == whole.size else chunk.copy()
        self._keep(set(absent))
        for parts, plan, buffer in zip(self.parts, self._plans, buffers, strict=True):
            for part in parts:
                buffer[part.outer] = plan.addressing.take(self.found[part.coords], part.inner)
        return len(set(absent))

    def _keep(self, absent: Collection[Coords]) -> None:
        """Keep the chunks that were read, if their units did not change meanwhile."""
        units = dict.fromkeys(self._unit(at) for at in self._missing)
        after = self._versions([unit for unit in units if unit not in absent], settled=True)
        kept = list[tuple[Name, _Kept]]()
        for at in self._missing:
            version = after.get(self._unit(at))
            if version is not None and version == self._before[self._unit(at)]:
                values = self.found[at]
                values.flags.writeable = False
                kept.append((self._names[at], _Kept(values, version, self.engine.meta)))
        self.cache.keep(kept, {*self._names.values()})


def name_of(engine: Engine, at: Coords) -> Name:
    """The name of a chunk in a cache."""
    return engine.store_identity, engine.key_prefix, at


def _versions(store: Store, keys: Sequence[str], *, settled: bool = False) -> Sequence[object | None]:
    """The versions of values; None where there is no value, or where nothing tells versions.

    With ``settled``, also None for a file that was changed just now and may change again within the same tick
    of the clock of its file system.
    """
    found = store.versions(keys)
    if store.concurrency <= 1 and not settled:
        return found
    if store.concurrency > 1 and (store.traits.tells_changes or None not in found):
        return found
    return parallel_map(lambda key: _opened_version(store, key), keys, store.concurrency)


def _opened_version(store: Store, key: str) -> object | None:
    value = store.open(key)
    if value is None:
        return None
    with value:
        return value.version
