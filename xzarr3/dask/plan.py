"""Plans writes of dask arrays: which tasks write which tiles, in which order, within which memory.

Each task writes one tile. A tile consists of whole stored units, shards or unsharded chunks, so that no two
tasks write the same unit. Blocks that consist of whole units are tiles themselves. :mod:`xzarr3.dask.tiles`
makes the tiles, and :mod:`xzarr3.dask.write_layer` the graph layers.

A write that is resumed leaves out tiles whose units exist, as stores put a unit in place as a whole or not
at all. A fingerprint of the plan tells whose units these are. Units that hold only the fill value are not
stored, so they are computed again.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import uuid
import warnings
from collections.abc import Callable, Container, Iterable, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from dask._task_spec import TaskRef
from dask.blockwise import blockwise
from dask.highlevelgraph import HighLevelGraph

from xzarr3 import options
from xzarr3.arrays import Array
from xzarr3.copying.location import Place
from xzarr3.dask.blocks import check_dask, writing_label
from xzarr3.dask.slicing import all_blocks
from xzarr3.dask.sources import ReadLocations
from xzarr3.dask.tasks import Forks, Gate, Sink, Tile, Writing, forks_of, write_block, write_tile
from xzarr3.dask.tiles import Regions, frontier, memory_limit, plan_axes
from xzarr3.dask.write_layer import Done, Tiles, Written
from xzarr3.display.units import size
from xzarr3.errors import (
    AlignmentError,
    ArgumentError,
    ArgumentTypeError,
    LargeWriteWarning,
    SelectionError,
    StoreCapabilityError,
    levels_to_caller,
    printable,
    shorten,
)
from xzarr3.formats import Format
from xzarr3.io.selection import basic_selection
from xzarr3.io.stored_units import stored_units
from xzarr3.model.metadata import ArrayMetadata
from xzarr3.nodes.freshness import note_values

_VERSION = 3


class WrittenArray(NamedTuple):
    """An array that a plan makes, and its values."""

    path: str
    metadata: ArrayMetadata
    write_empty_chunks: bool
    values: Any


def fingerprint(format: Format, path: str, arrays: Iterable[WrittenArray]) -> str:
    """The fingerprint of a plan: a digest of everything that decides which bytes are stored where.

    Attributes and values that are not in dask arrays do not count, because every call writes them again.

    Parameters
    ----------
    format : Format
    path : str
        Path of the node that is written.
    arrays : iterable of WrittenArray
    """
    said: list[Any] = [_VERSION, format.zarr_format, path]
    for each in arrays:
        layout = format.documents(replace(each.metadata, attributes={}), each.path)
        known: list[Any] = []
        if hasattr(each.values, "__dask_graph__"):
            blocks = [repr(all_blocks([*map(int, along)])) for along in each.values.chunks]
            known = [each.values.name, *blocks]
        said.append([each.path, layout, each.write_empty_chunks, known])
    text = json.dumps(said, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def done_tiles(target: Array, regions: Regions) -> set[Tile]:
    """The tiles whose stored units all exist.

    Parameters
    ----------
    target : Array
    regions : Regions
        The region of each tile.
    """
    there = set(stored_units(target))
    axes = target.metadata.chunk_grid.axes
    found = set()
    for tile in itertools.product(*map(range, regions.numblocks)):
        units = itertools.product(
            *(
                range(axis.index(part.start), axis.index(part.stop - 1) + 1) if part.stop > part.start else ()
                for axis, part in zip(axes, regions[tile], strict=True)
            )
        )
        if all(unit in there for unit in units):
            found.add(tile)
    return found


_Box = tuple[tuple[int, int], ...]

ALL = (0, 1)
"""The part of a write that is all of it: part 0 of 1."""
_MOST_PARTS = 16
_SMALLEST_PART = 2**28  # Bytes of values.
_SMALL_MEMORY = 2**26  # Bytes that every machine has.


@dataclass(frozen=True, eq=False)
class BlockWrite:
    """A dask array, and the array and the region that it is written to.

    ``in_place`` tells that the write overwrites stored values, which no source of the same call may read.
    """

    source: Any
    target: Array
    region: Any
    in_place: bool = False


def plan_writes(wanted: Sequence[BlockWrite], *, resume: bool = False, scheduler: Any = None) -> Writes:
    """Check jobs and plan their writes; nothing is written yet.

    Parameters
    ----------
    wanted : sequence of BlockWrite
    resume : bool
        Leave out tiles that are stored already, as an interrupted write of this plan has left them.
    scheduler : object, optional
        The scheduler that will run the write.

    Raises
    ------
    AlignmentError
        If two jobs write the same elements.
    ArgumentError
        If a source reads an array whose values a job overwrites.
    """
    check_dask()
    places = ReadLocations()
    jobs = [_TiledWrite(job, resume, places) for job in wanted]
    _check_overlaps(jobs)
    _check_nothing_read(jobs, places)
    _check_memory(jobs, scheduler)
    for job in jobs:  # Noted now, because other processes may do the writes.
        note_values(job.target)
    return Writes(jobs)


def _check_nothing_read(jobs: Sequence[_TiledWrite], places: ReadLocations) -> None:
    """Refuse sources that read what the same call overwrites: blocks would be computed from new values."""
    overwritten = {job.place: job.target for job in jobs if job.in_place}
    for job in jobs if overwritten else ():
        read = places.read_in(job.source.dask.layers) if job.source.size else set()
        for place in overwritten.keys() & read:
            target = overwritten[place]
            raise ArgumentError(
                f"the source for array '{printable(job.target.name)}' reads array '{printable(target.name)}' "
                f"of {target.store}, or holds it in a function, and the same call overwrites the values of "
                "that, so some blocks would be computed from new values; store it in another array, load it "
                "first with .compute(), or keep the array out of functions that do not read it; "
                "xzarr3.to_zarr with mode='w', or mode='a' and whole variables, keeps the old values until "
                "all new ones are stored"
            )


def _check_memory(jobs: Sequence[_TiledWrite], scheduler: Any) -> None:
    """Warn of misaligned jobs whose blocks would take too much memory while they wait for others."""
    if options.memory_limit() is None and all(job.live < _SMALL_MEMORY for job in jobs):
        return
    limit = memory_limit(scheduler)
    for job in jobs:
        if job.live > limit:
            name, units = printable(job.target.name), shorten(job.target.write_chunks)
            warnings.warn(
                f"blocks of {shorten(job.source.chunksize)} for array '{name}', which is stored in units of "
                f"{units}, will take up to {size(job.live)} of memory while they wait for others; the limit "
                f"is {size(int(limit))}. On a cluster, store source.rechunk({units}, method='p2p'), which "
                "goes through the workers' disks; on one machine, store the blocks in an array of chunks of "
                f"their shape and then call xzarr3.copy(..., chunks={units}), which takes little memory; or "
                "raise the limit with xzarr3.set_options(memory_limit=...)",
                LargeWriteWarning,
                stacklevel=levels_to_caller(),
            )


class Writes:
    """Checked jobs; each writes a source to a region of a target, tile by tile."""

    def __init__(self, jobs: Sequence[_TiledWrite]) -> None:
        self._jobs = jobs

    def forks(self, scheduler: Any = None) -> Forks | None:
        """What a scheduler that runs tasks in other processes writes to in place of a session; else None.

        Raises
        ------
        StoreCapabilityError
            If the scheduler would write to a transaction that has no forks, or not for these jobs.
        """
        stores = {id(job.target.store): job.target.store for job in self._jobs}
        found = [*filter(None, (forks_of(store, scheduler) for store in stores.values()))]
        shared = next((job.target for job in self._jobs if job.follows), None)
        if found and (len(found) > 1 or shared is not None):
            what = "several sessions" if shared is None else f"parts of the same chunks of '{shared.name}'"
            raise StoreCapabilityError(
                f"one call writes to {what} of Icechunk, and the scheduler of dask runs tasks in other "
                "processes, which do not see what others write; make it several calls, or pass "
                "scheduler='threads'"
            )
        return found[0] if found else None

    def parts(self) -> list[tuple[int, int]]:
        """The parts in which to write, so that an interrupt loses at most one: ``(0, n)``, ``(1, n)``, ...

        Each has a share of the tiles of every job, as jobs may be computed from the same blocks.
        """
        values = sum(int(job.source.nbytes) for job in self._jobs)
        number = min(_MOST_PARTS, max(1, values // _SMALLEST_PART))
        return [(at, number) for at in range(number)]

    def delayed(
        self, then: Callable[[], None] | None = None, forks: Forks | None = None, part: tuple[int, int] = ALL
    ) -> Writing:
        """A Delayed that writes everything, or a part, when it is computed, and calls ``then`` at the end.

        Its result is what ``forks`` are to merge.
        """
        gate = Gate()
        layers: dict[str, Any] = {}
        dependencies: dict[str, set[str]] = {}
        done = {job.name: job.done(part) for job in self._jobs}
        written = {job.name: job.written(done[job.name]) for job in self._jobs}

        def waiting(names: Iterable[str], then: Callable[[], None] | None = None) -> str:
            """Add the layer that waits for other layers and then calls ``then``; returns its name."""
            name = f"store-zarr-{uuid.uuid4().hex}"  # Unique: each call writes, so results are never shared.
            layers[name] = Done(name, {each: written[each] for each in names}, gate, then)
            dependencies[name] = set(names)
            return name

        for job in self._jobs:
            graph = job.source.dask
            layers.update(graph.layers)
            dependencies.update(graph.dependencies)
            after = [waiting([earlier]) for earlier in job.follows]
            layers[job.name] = job.layer(gate, after, forks, done[job.name])
            dependencies[job.name] = {*after, *job.source.__dask_layers__()}
        name = waiting(written, then)
        return Writing(name, HighLevelGraph(layers, dependencies))


class _TiledWrite:
    """One source, its target region, and the tiles of the region."""

    def __init__(self, wanted: BlockWrite, resume: bool, places: ReadLocations) -> None:
        source, target, region = wanted.source, wanted.target, wanted.region
        if not isinstance(source, da.Array) or not isinstance(target, Array):
            raise ArgumentTypeError(
                f"cannot store {type(source).__name__} into {type(target).__name__}; accepted: dask arrays "
                "and xzarr3 arrays; open the target with xzarr3.open_array(..., mode='r+'), or create it"
            )
        target._check_writable()
        if any(map(math.isnan, source.shape)):
            raise SelectionError(
                f"the blocks of the source for array '{target.name}' have unknown shapes; call "
                ".compute_chunk_sizes() on the source"
            )
        self.source, self.target, self.place = source, target, places.of(target)
        self.selected = basic_selection(region, target.shape)
        if any(s.step != 1 or s.reverse or s.drop for s in self.selected):
            raise SelectionError(
                f"not a region: {region!r}; accepted: slices without steps, one for each dimension"
            )
        shape = tuple(s.count for s in self.selected)
        if shape != source.shape:
            raise SelectionError(
                f"a source of shape {source.shape} does not fit a region of shape {shape} of array "
                f"'{target.name}'; pass the region that it goes to as regions=..., or "
                "create an array of its shape"
            )
        self._resumes = resume
        self.name = f"{writing_label(target)}-{uuid.uuid4().hex}"
        self.starts = tuple(chosen.start for chosen in self.selected)
        self.axes = plan_axes(
            target.metadata.chunk_grid.axes, self.starts, source.chunks, source.dtype.itemsize
        )
        self.follows: list[str] = []
        """Names of earlier jobs that share stored units with this one, which therefore runs after them."""
        self.in_place = wanted.in_place
        slabs, live = (None, 0) if self.aligned else frontier(self.axes)
        self.slabs, self.live = slabs, live * source.dtype.itemsize

    @property
    def aligned(self) -> bool:
        """Whether each tile is one block."""
        return all(axis.aligned for axis in self.axes)

    def elements(self) -> _Box:
        """The range of elements that is written along each dimension."""
        return tuple((chosen.start, chosen.start + chosen.count) for chosen in self.selected)

    def box(self) -> _Box:
        """The range of stored units that is touched along each dimension."""
        return tuple(
            (units.index(chosen.start), units.index(chosen.stop - 1) + 1) if chosen.count else (0, 0)
            for chosen, units in zip(self.selected, self.target.metadata.chunk_grid.axes, strict=True)
        )

    @property
    def regions(self) -> Regions:
        """The region of each tile in the target."""
        return Regions(self.axes, self.starts)

    def written(self, done: Container[Tile]) -> Written:
        """The tiles that the layer of the job writes."""
        return Written(tuple(axis.count for axis in self.axes), done, self.slabs)

    def done(self, part: tuple[int, int] = ALL) -> Container[Tile]:
        """The tiles that are not to be written: those that are stored, and those of other parts."""
        if part == ALL:
            return self._stored
        at, number = part
        left = [tile for tile in np.ndindex(*(axis.count for axis in self.axes)) if tile not in self._stored]
        start, stop = (len(left) * each // number for each in (at, at + 1))
        return {*self._stored, *left[:start], *left[stop:]}

    @cached_property
    def _stored(self) -> Set[Tile]:
        return done_tiles(self.target, self.regions) if self._resumes else frozenset()

    def layer(self, gate: Gate, after: Sequence[str], forks: Forks | None, done: Container[Tile]) -> Any:
        """The layer that writes the tiles after the tasks ``after``, each the last of its layer."""
        in_session = forks is not None and self.target.store is forks.store
        source, sink = self.source, Sink(self.target, gate, forks if in_session else None)
        if not self.aligned:
            write = partial(write_tile, sink)
            return Tiles(self.name, source.name, self.axes, self.starts, write, done, after)
        index = tuple(range(source.ndim))
        blocks: list[Any] = [source.name, index, sink, None, self.regions, index]
        for key in after:
            blocks += [TaskRef(key), None]
        return blockwise(write_block, self.name, index, *blocks, numblocks={source.name: source.numblocks})


def _overlap(one: _Box, other: _Box) -> bool:
    return all(low < end and start < high for (low, high), (start, end) in zip(one, other, strict=True))


def _check_overlaps(jobs: Sequence[_TiledWrite]) -> None:
    """Refuse jobs that write the same elements; let a job follow earlier ones that share stored units."""
    seen: dict[Place, list[_TiledWrite]] = {}
    for job in jobs:
        others = seen.setdefault(job.place, [])
        for other in others:
            if _overlap(job.elements(), other.elements()):
                raise AlignmentError(
                    f"two sources write the same elements of array '{job.target.name}'; give regions that "
                    "do not overlap, or write one after the other"
                )
            if _overlap(job.box(), other.box()):
                job.follows.append(other.name)
        others.append(job)
