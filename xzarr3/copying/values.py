"""The values of a copy: which pieces are copied how, in bounded memory and on several threads.

Units that both arrays encode alike are copied as bytes. All others are decoded and encoded again, in tiles of
whole units of the target (:mod:`xzarr3.copying.tiles`). No unit is written by two threads.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, cast

from xzarr3._types import Buffer, Scalar
from xzarr3.arrays import Array
from xzarr3.copying.resume import left
from xzarr3.copying.tiles import Coords, Tiles, product, tiles_for
from xzarr3.errors import MetadataError
from xzarr3.io.selection import basic_selection
from xzarr3.io.stored_units import FEW
from xzarr3.model.metadata import ArrayMetadata
from xzarr3.nodes.freshness import check_read, note_values
from xzarr3.options import memory_for_values
from xzarr3.parallel import available_threads, is_wanted, pause, run_on_threads, waiters
from xzarr3.readable import ReadableArray
from xzarr3.stores import Store, in_flight
from xzarr3.stores.in_flight import Budget
from xzarr3.tracing.counters import for_array

if TYPE_CHECKING:
    from xzarr3.groups import Group
    from xzarr3.joined.group import JoinedGroup

_OBJECT_BYTES = 64  # Assumed of an element of variable length.


class Means:
    """What a copy may use.

    Parameters
    ----------
    threads : int
    memory : int, optional
        Bytes of values over all threads; by default the option ``memory_limit``, else 512 MiB.
    """

    def __init__(self, threads: int, memory: int | None = None) -> None:
        self.threads = threads
        self.memory = Budget(memory or memory_for_values())

    def do(self, step: Callable[[], object], held: int, size: int) -> int:
        """Carry out a step once there is memory for it; returns ``size``, or 0 if the copy has failed."""
        with self.memory.reserved(held):
            if not pause(0):  # Another thread has failed while this one waited.
                return 0
            step()
        return size

    def half(self) -> Means:
        """Half of the memory: reading a tile from many chunks takes as much again."""
        return Means(self.threads, max(1, self.memory.limit // 2))


@dataclass(frozen=True)
class Tiling:
    """How the values of one array are copied to another one in tiles.

    Parameters
    ----------
    tiles : Tiles
    threads : int
        Threads that work on one tile.
    held : int
        Bytes of memory for a tile.
    reads : int
        How often chunks of the source are read.
    beside : int
        Bytes of memory that each thread needs besides.
    """

    tiles: Tiles
    threads: int
    held: int
    reads: int
    beside: int

    @classmethod
    def of(cls, source: ReadableArray, target: Array, means: Means) -> Tiling:
        """The tiles that read the chunks of the source least often in the memory that there is.

        Many tiles are copied at a time if they need not be larger for that; else one large tile at a time, by
        all threads.
        """
        limit, threads = means.memory.limit, means.threads
        size = element_bytes(target)
        chunks, units = source.chunk_grid, target.metadata.chunk_grid
        # Each thread holds a chunk and a unit, decoded and encoded.
        beside = 2 * size * (math.prod(chunks.largest) + math.prod(units.largest))
        tiles = tiles_for(units, chunks, target.shape, (limit // threads - beside) // size)
        at_once = 1
        if tiles.reads(chunks) > cls.fewest(source):
            several = max(1, min(threads, limit // 2 // max(beside, 1)))
            larger = tiles_for(units, chunks, target.shape, (limit - several * beside) // size)
            if larger.reads(chunks) < tiles.reads(chunks):
                tiles, at_once = larger, several
        held = tiles.elements * size + at_once * beside
        return cls(tiles, at_once, held, tiles.reads(chunks), beside)

    @staticmethod
    def fewest(source: ReadableArray) -> int:
        """How often chunks are read if each is read once."""
        return math.prod(source.chunk_grid.counts(source.shape))


def element_bytes(array: ReadableArray) -> int:
    """Bytes of an element in memory, which for text of any length is a guess."""
    dtype = array.dtype
    return _OBJECT_BYTES if dtype.hasobject or dtype.kind == "T" else max(1, dtype.itemsize)


@dataclass(frozen=True)
class ArrayCopy:
    """The copy of the values of one array to another one of its shape.

    Parameters
    ----------
    source : Array or JoinedArray
    target : Array
    resumes : bool
        Leave out what an interrupted copy has stored.
    share : float
        The part of the bytes that counts as progress.
    """

    source: ReadableArray
    target: Array
    resumes: bool = False
    share: float = 1.0

    @property
    def absent(self) -> Absent | None:
        """What is stored in place of absent units; None if they may be absent in the target, too."""
        source, target = self.source.metadata, self.target.metadata
        left_open = self.target._is_always_stored or (target.fill_is_null and not source.fill_is_null)
        return Absent(source.fill_value, target) if left_open or not _same_fill(source, target) else None

    @property
    def moves_bytes(self) -> bool:
        """Whether stored units are copied as they are."""
        # In the bytes of a shard, absent inner chunks would get the other fill value.
        as_bytes = self.absent is None or self.target.shards is None
        is_stored = isinstance(self.source, Array)
        return is_stored and as_bytes and encoded_alike(self.source.metadata, self.target.metadata)

    def moves(self, means: Means) -> Iterator[Callable[[], int]]:
        """Callables that copy all values; each returns the decoded size in bytes of what it has copied."""
        source, target, absent = self.source, self.target, self.absent
        if self.moves_bytes:
            units = self.units
            stored = _all(units.counts) if absent is not None else _stored(cast("Array", source))
            for coords in self._left(stored, units):
                yield partial(self._move, coords, absent, means)
            return
        target.write_empty_chunks = target.write_empty_chunks or absent is not None
        tiling = Tiling.of(source, target, means)
        tiles = tiling.tiles
        wanted = touched(source, tiles) if absent is None else _all(tiles.counts)
        for coords in self._left(wanted, tiles):
            yield partial(self._recode, coords, tiling, means)

    def _move(self, coords: Coords, absent: Absent | None, means: Means) -> int:
        """Copy a stored unit, in memory for it decoded: how large it is encoded, no one knows before."""
        target = self.target
        held = math.prod(target.metadata.chunk_grid.chunk_shape_at(coords)) * element_bytes(target)
        step = partial(move_unit, cast("Array", self.source), coords, target, coords, absent)
        return means.do(step, held, self.size(self.units.region(coords)))

    def _recode(self, coords: Coords, tiling: Tiling, means: Means) -> int:
        """Read the elements of a tile and encode them again."""
        source, target, threads = self.source, self.target, tiling.threads
        region = tiling.tiles.region(coords)

        def step() -> None:
            # The target has no documents yet: skip the check that the array still exists.
            selection = basic_selection(region, target.shape)
            target._write(selection, source.get(region, threads=threads), threads=threads)

        return means.do(step, tiling.held, self.size(region))

    def _left(self, wanted: Iterator[Coords], tiles: Tiles) -> Iterator[Coords]:
        """Those of the wanted tiles that are not stored yet."""
        return left(self.target, wanted, tiles) if self.resumes else wanted

    @property
    def is_left(self) -> bool:
        """Whether any unit is left to be stored."""
        return next(self._left(_all(self.units.counts), self.units), None) is not None

    @cached_property
    def units(self) -> Tiles:
        """The stored units of the target, each a tile of its own."""
        return Tiles(self.target.metadata.chunk_grid, self.target.shape, (1,) * self.target.ndim)

    def size(self, region: tuple[slice, ...]) -> int:
        """Decoded size of a region in bytes, as it counts for progress."""
        elements = math.prod(part.stop - part.start for part in region)
        return int(self.share * elements * self.target.dtype.itemsize)


def encoded_alike(one: ArrayMetadata, other: ArrayMetadata) -> bool:
    """Whether the stored units of both have the same bytes."""
    return (
        one.data_type == other.data_type
        and one.chunk_grid == other.chunk_grid
        and repr(one.codecs) == repr(other.codecs)  # 1 and 1.0 are equal, but may encode differently
    )


@dataclass(frozen=True)
class Absent:
    """Encoded fill values for units that are absent in the source and must not be in the target."""

    fill_value: Scalar
    metadata: ArrayMetadata
    _encoded: dict[Coords, Buffer] = field(default_factory=dict)

    def unit(self, coords: Coords) -> Buffer:
        """The stored form of a unit."""
        shape = self.metadata.chunk_grid.chunk_shape_at(coords)
        if shape not in self._encoded:
            chunk = self.metadata.data_type.filled(shape, self.fill_value)
            self._encoded[shape] = bytes(self.metadata.chain_of(shape).encode(chunk, keep_empty=True))
        return self._encoded[shape]


def _all(counts: Coords) -> Iterator[Coords]:
    """All coordinates in a grid, one at a time."""
    return product([*map(range, counts)])


def _stored(array: Array) -> Iterator[Coords]:
    """The coordinates of stored units; of all units if there are few or the store cannot list."""
    few = array.nshards <= FEW or not array.engine.store.listable
    return _all(array.shard_grid_shape) if few else array.stored_units()


def touched(source: ReadableArray, tiles: Tiles) -> Iterator[Coords]:
    """The coordinates of tiles that overlap stored units of the source."""
    if not isinstance(source, Array):  # It is joined, and its arrays are not asked one by one.
        yield from _all(tiles.counts)
        return
    grid = source.metadata.chunk_grid
    if grid == tiles.grid and source.shape == tiles.shape and set(tiles.per_tile) <= {1}:
        yield from _stored(source)
        return
    done: set[Coords] = set()
    listable = source.engine.store.listable  # only units that exist are visited
    for coords in source.stored_units() if listable else _stored(source):
        region = zip(grid.region(coords, source.shape), tiles.shape, strict=True)
        for found in tiles.over([slice(part.start, min(part.stop, size)) for part, size in region]):
            if found not in done:
                done.add(found)
                yield found


def _same_fill(source: ArrayMetadata, target: ArrayMetadata) -> bool:
    data_type, fill = target.data_type, source.fill_value
    if data_type != source.data_type:
        try:
            fill = data_type.cast_scalar(fill)
        except MetadataError:  # the target holds no such value
            return False
    same: bool = data_type.bits(fill) == data_type.bits(target.fill_value)
    return same


@for_array(lambda source: source.engine)
def move_unit(source: Array, old: Coords, target: Array, new: Coords, absent: Absent | None = None) -> None:
    """Copy the bytes of a stored unit; if it is absent, store the encoded fill value, if there is one."""
    engine, into = source.engine, target.engine
    value = engine.store.get(engine.key(old))
    if value is None and absent is not None:
        value = absent.unit(new)
    if value is not None:
        into.store.set(into.key(new), value)


def copy_values(source: Array, target: Array) -> None:
    """Write all values of an array to another one of its shape, which holds none yet.

    Stored units are copied as bytes where both arrays encode them alike.
    """
    means = Means(most_threads(source, target.store, [target.metadata]))
    fresh = Array(target.store, target.path, target.metadata, format=target.format)
    try:
        do_all(ArrayCopy(source, fresh).moves(means), means.threads, lambda _: None)
        check_read(source)
    finally:
        note_values(target)


def most_threads(
    node: ReadableArray | Group | JoinedGroup, store: Store, arrays: Iterable[ArrayMetadata]
) -> int:
    """How many threads copy to a store by default."""
    held_by_each = max((2 * each.chain.spec.nbytes for each in arrays), default=0)
    most = max(node.store.concurrency, store.concurrency)
    return max(available_threads(), in_flight.at_once(most, held_by_each))


def do_all(moves: Iterator[Callable[[], int]], threads: int, advance: Callable[[int], object]) -> None:
    """Run all moves on several threads; calls ``advance`` in this thread with the bytes of each."""
    lock = threading.Lock()
    done: deque[int] = deque()
    caller = threading.current_thread()

    def worker() -> None:
        while is_wanted():
            with lock:
                move = next(moves, None)
            if move is None:
                return
            done.append(move())
            if threading.current_thread() is caller:
                report()

    def report() -> None:
        while done:
            advance(done.popleft())

    run_on_threads(worker, threads, waiters)
    report()
