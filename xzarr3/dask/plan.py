"""Plans writes of dask arrays: which tasks write which tiles, in which order, within which memory.

Each task writes one tile. A tile consists of whole stored units, shards or unsharded chunks, so that no two
tasks write the same unit. Blocks that consist of whole units are tiles themselves. :mod:`xzarr3.dask.tiles`
makes the tiles, and :mod:`xzarr3.dask.write_layer` the graph layers.
"""

from __future__ import annotations

import math
import uuid
import warnings
from collections.abc import Container, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, cast

import dask.array as da
import numpy as np
from dask._task_spec import TaskRef
from dask.base import get_scheduler
from dask.blockwise import blockwise
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph

from xzarr3.arrays import Array
from xzarr3.dask.array import read_block, read_in_chunks
from xzarr3.dask.blocks import Regions, check_dask, label, writing_label
from xzarr3.dask.cleanup import Writing
from xzarr3.dask.ending import Gate
from xzarr3.dask.journal import Journal
from xzarr3.dask.memory import frontier, memory_limit
from xzarr3.dask.sources import Place, ReadLocations
from xzarr3.dask.spill import Spill, copy_tile, spill_axes, workers, write_spill
from xzarr3.dask.tasks import Sink, Tile, read_written, write_block, write_tile
from xzarr3.dask.tiles import AxisTiles, chunks_of, plan_axes
from xzarr3.dask.write_layer import Done, Tiles, Written
from xzarr3.display.units import size
from xzarr3.errors import (
    AlignmentError,
    ArgumentError,
    ArgumentTypeError,
    LargeWriteWarning,
    SelectionError,
    levels_to_caller,
    printable,
    shorten,
)
from xzarr3.io.selection import basic_selection
from xzarr3.nodes.freshness import note_values

_Box = tuple[tuple[int, int], ...]

_SHARE = 1 / 4  # Share of a thread's memory for one tile, of which it holds up to three copies.


@dataclass(frozen=True, eq=False)
class BlockWrite:
    """A dask array, and the array and the region that it is written to.

    ``in_place`` tells that the write overwrites stored values, which a source of the same call may read.
    """

    source: Any
    target: Array
    region: Any
    in_place: bool = False


def plan_writes(
    wanted: Sequence[BlockWrite],
    *,
    journal: Journal | None = None,
    memory_limit: int | str | None = None,
    scheduler: Any = None,
    **kwargs: Any,
) -> Writes:
    """Check jobs and plan their writes; nothing is written yet.

    Parameters
    ----------
    wanted : sequence of Job
    journal : Journal, optional
        Tiles that it lists as written are left out, and each tile that is written is entered in it.
    memory_limit : int or str, optional
        See :func:`store`.
    scheduler, **kwargs
        The scheduler that will run the write, and its options.
    """
    check_dask()
    places = ReadLocations()
    jobs = [_TiledWrite(number, job, journal, places) for number, job in enumerate(wanted)]
    _check_overlaps(jobs)
    _put_in_turn(jobs, places)
    _fit_memory(jobs, memory_limit, scheduler, kwargs)
    for job in jobs:  # Noted now, because other processes may do the writes.
        note_values(job.target)
    return Writes(jobs)


def _put_in_turn(jobs: Sequence[_TiledWrite], places: ReadLocations) -> None:
    """Order the jobs, and spill where needed, so that no value is overwritten before it is read.

    Raises
    ------
    ValueError
        If the write may be resumed but reads arrays that it changes: these may hold new values already.
    """
    overwritten = {job.place for job in jobs if job.in_place}
    for job in jobs if overwritten else ():
        read = places.read_in(job.source.dask.layers)
        job.goes_first = bool(job.source.size) and not overwritten.isdisjoint(read)
        if job.goes_first and job.in_place:
            job.set_aside()
    early = [job for job in jobs if job.goes_first]
    if any(job.journal is not None for job in early) and (
        len(early) < len(jobs) or any(job.aside is not None for job in early)
    ):
        raise ArgumentError(
            "resume=True cannot resume a write whose source reads the arrays that it changes, because their "
            "values have changed; pass resume=False, or store the source elsewhere first"
        )


def _fit_memory(
    jobs: Sequence[_TiledWrite], limit: int | str | None, scheduler: Any, kwargs: dict[str, Any]
) -> None:
    """Let jobs spill that would need too much memory."""
    if limit is not None:
        memory_limit(limit)
    large = [job for job in jobs if job.live and job.aside is None]
    if not large:
        return
    get = get_scheduler(scheduler=scheduler)
    client = getattr(get, "__self__", None)
    if not hasattr(client, "scheduler_info"):
        client = None
    most = memory_limit(limit, client)
    for job in large:
        if job.live > most:
            job.plan_spill(most, client is not None, workers(kwargs))


class Writes:
    """Checked jobs; each writes a source to a region of a target, tile by tile."""

    def __init__(self, jobs: Sequence[_TiledWrite]) -> None:
        self._jobs = jobs

    def __str__(self) -> str:
        if len(self._jobs) != 1:
            return f"{len(self._jobs)} arrays"
        target = self._jobs[0].target
        return f"{target.name} to {target.store}"

    @property
    def sizes(self) -> dict[str, int]:
        """Number of bytes that each job writes, by the name of its tasks."""
        return {job.name: int(job.source.nbytes) for job in self._jobs}

    def _graph(self, after: Delayed | None) -> tuple[_Graph, dict[str, Written]]:
        """The graph of all writing layers, and the tiles that each layer writes, by name."""
        graph = _Graph()
        written: dict[str, Written] = {}
        done: dict[str, str] = {}
        first = [] if after is None else [after.key]
        begun = set() if after is None else graph.take(after)
        early: dict[str, Written] = {}
        for job in self._jobs:
            if job.goes_first and job.aside is None:
                job.add_to(graph, first, begun)
                early[job.name] = written[job.name] = job.written
            elif job.goes_first:
                early |= job.add_aside(graph, first, begun)
        if early:
            name = graph.add_done(early)
            first, begun = [*first, name], {*begun, name}
        for job in self._jobs:
            if job.name in written:
                continue
            before = [name for name in job.follows if name not in early]
            for name in before:
                if name not in done:
                    done[name] = graph.add_done({name: written[name]})
            followed = [done[name] for name in before]
            job.add_to(graph, [*first, *followed], begun.union(followed))
            written[job.name] = job.written
        return graph, written

    def delayed(self, after: Delayed | None = None) -> Writing:
        """A Delayed that writes everything when it is computed, after ``after`` is done."""
        graph, written = self._graph(after)
        asides = [job.aside for job in self._jobs if job.aside is not None]
        name = graph.add_done(written, asides)
        return Writing(name, HighLevelGraph(graph.layers, graph.dependencies))

    def stored(self) -> list[da.Array]:
        """Dask arrays of the written values, each block of which is written and then read."""
        if any(job.goes_first for job in self._jobs):
            raise AlignmentError(
                "a source reads what the same call writes, so its blocks cannot be written one by one; "
                "write to another target, or pass compute=True"
            )
        graph, _ = self._graph(None)
        whole = HighLevelGraph(graph.layers, graph.dependencies)
        return [job.stored(whole) for job in self._jobs]

    def reading(self) -> list[da.Array]:
        """Dask arrays that read the written values, without writing."""
        return [job.reading() for job in self._jobs]


class _Graph:
    """Layers and their dependencies, as a graph is built."""

    def __init__(self) -> None:
        self.layers: dict[str, Any] = {}
        self.dependencies: dict[str, set[str]] = {}
        self.gate = Gate()

    def add(self, name: str, layer: Any, dependencies: set[str]) -> None:
        self.layers[name] = layer
        self.dependencies[name] = dependencies

    def add_done(self, written: dict[str, Written], asides: Sequence[Spill] = ()) -> str:
        """Add a layer that waits for writing layers and removes spilled values; returns its name."""
        name = f"store-zarr-{uuid.uuid4().hex}"  # Unique: each call writes, so results are never shared.
        self.add(name, Done(name, written, asides, self.gate), set(written))
        return name

    def take(self, collection: Any) -> set[str]:
        """Add the layers of a collection; returns the names of those that give its keys."""
        graph = HighLevelGraph.from_collections("", {}, [collection])
        for name in set(graph.layers) - {""}:
            self.add(name, graph.layers[name], set(graph.dependencies[name]))
        return set(graph.dependencies[""])


class _TiledWrite:
    """One source, its target region, and the tiles of the region."""

    def __init__(
        self, number: int, wanted: BlockWrite, journal: Journal | None, places: ReadLocations
    ) -> None:
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
        self.number, self.journal = number, journal
        self.name = f"{writing_label(target)}-{uuid.uuid4().hex}"
        self.starts = tuple(chosen.start for chosen in self.selected)
        self.axes = plan_axes(
            target.metadata.chunk_grid.axes, self.starts, source.chunks, source.dtype.itemsize
        )
        self.follows: list[str] = []
        """Names of earlier jobs that share stored units with this one, which therefore runs after them."""
        self.in_place = wanted.in_place
        self.goes_first = False
        """Whether its source reads arrays that the same call overwrites."""
        self._rechunks = False
        self.aside: Spill | None = None
        slabs, live = (None, 0) if self.aligned else frontier(self.axes)
        self.slabs, self.live = slabs, live * source.dtype.itemsize

    @property
    def aligned(self) -> bool:
        """Whether each tile is one block."""
        return all(axis.aligned for axis in self.axes)

    def set_aside(self) -> None:
        """Spill all values to the store until all sources that read the target have been read."""
        pieces, self.axes = spill_axes(self.source.chunks, self.axes, self.source.dtype.itemsize, 0)
        # A transaction has one writing process, and holds no values beside those of arrays.
        self.aside = Spill(
            self.target, pieces, self.axes, here=self.target.store.traits.visible == "at commit"
        )
        self.slabs = None

    def plan_spill(self, most: float, cluster: bool, threads: int) -> None:
        """Spill blocks to disk while they wait for others, instead of holding them in memory."""
        source, target = self.source, self.target
        way = "the workers' disks" if cluster else "a temporary directory"
        if cluster:
            self._rechunks = True
            self.axes = [AxisTiles(axis.edges, axis.edges) for axis in self.axes]
        else:
            limit = most * _SHARE / threads
            pieces, self.axes = spill_axes(source.chunks, self.axes, source.dtype.itemsize, limit)
            self.aside = Spill(target, pieces, self.axes, here=True)
        self.slabs = None
        warnings.warn(
            f"blocks of {shorten(source.chunksize)} for array '{printable(target.name)}', which is stored in "
            f"units of {shorten(target.write_chunks)}, would take up to {size(self.live)} of memory "
            f"while they wait for others; the limit is {size(int(most))}; they go through {way}. "
            "Raise memory_limit or rechunk the source to make the write faster",
            LargeWriteWarning,
            stacklevel=levels_to_caller(),
        )

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
        return Regions(chunks_of(self.axes), self.starts)

    @property
    def _stage(self) -> str:
        """Name of the layer that spills values."""
        return f"stage-zarr-{self.name}"

    @property
    def written(self) -> Written:
        """The tiles that the layer of the job writes."""
        return Written(tuple(axis.count for axis in self.axes), self._finished, self.slabs)

    @cached_property
    def _finished(self) -> Container[Tile]:
        if self.journal is None:
            return ()
        return self.journal.finished(self.number, self.target, self.regions)

    def add_to(self, graph: _Graph, after: Sequence[Any], awaited: set[str]) -> None:
        """Add the layer that writes the tiles after the keys ``after``, which the layers ``awaited`` make."""
        sink = Sink(self.target, self.number, self.journal, graph.gate)
        name, source = self.name, self.source
        if self.aside is not None:
            if self._stage not in graph.layers:
                self.add_aside(graph, after, awaited)
            last = partial(copy_tile, sink, self.aside, self.starts)
            layer = Tiles(name, self._stage, self.axes, self.starts, last, self._finished, after)
            graph.add(name, layer, awaited | {self._stage})
            return
        if self._rechunks:
            source = source.rechunk(chunks_of(self.axes), method="p2p")
        needed = awaited | graph.take(source)
        if not self.aligned:
            write = partial(write_tile, sink)
            layer = Tiles(name, source.name, self.axes, self.starts, write, self._finished, after)
            graph.add(name, layer, needed)
        else:
            graph.add(name, self._blockwise(source, sink, after), needed)

    def add_aside(self, graph: _Graph, after: Sequence[Any], awaited: set[str]) -> dict[str, Written]:
        """Add the layer that spills values; returns the tiles that it writes, by its name."""
        aside, name = cast("Spill", self.aside), self._stage
        zeros = (0,) * len(self.starts)
        keep = partial(write_spill, aside, graph.gate)
        layer = Tiles(name, self.source.name, aside.pieces, zeros, keep, (), after)
        graph.add(name, layer, awaited | graph.take(self.source))
        return {name: Written(tuple(axis.count for axis in aside.pieces))}

    def _blockwise(self, source: da.Array, sink: Sink, after: Sequence[Any]) -> Any:
        """The layer that writes blocks if each is a tile."""
        index = tuple(range(source.ndim))
        return blockwise(
            write_block,
            self.name,
            index,
            source.name,
            index,
            sink,
            None,
            self.regions,
            index,
            *(each for key in after for each in (TaskRef(key), None)),
            numblocks={source.name: source.numblocks},
        )

    def reading(self) -> da.Array:
        """A dask array that reads the written values tile by tile, without writing."""
        chunks, region = [], []
        for chosen, length, along in zip(self.selected, self.target.shape, chunks_of(self.axes), strict=True):
            ends = [(rest,) if rest else () for rest in (chosen.start, length - chosen.stop)]
            chunks.append((*ends[0], *along, *ends[1]))
            region.append(slice(chosen.start, chosen.stop))
        target, prefix = self.target, f"read-zarr-{label(self.target)}"
        found = read_in_chunks(read_block, target, target.dtype, chunks, prefix, target)[tuple(region)]
        return cast("da.Array", found)

    def stored(self, graph: HighLevelGraph) -> da.Array:
        """A dask array whose tasks each read a tile once it is written."""
        index = tuple(range(len(self.axes)))
        counts = tuple(axis.count for axis in self.axes)
        name = f"read-{self.name}"
        layer = blockwise(
            read_written,
            name,
            index,
            self.name,
            index,
            self.target,
            None,
            self.regions,
            index,
            numblocks={self.name: counts},
        )
        layers = {**graph.layers, name: layer}
        dependencies = {**graph.dependencies, name: {self.name}}
        meta = np.empty((0,) * len(self.axes), self.target.dtype)
        return da.Array(HighLevelGraph(layers, dependencies), name, chunks=chunks_of(self.axes), meta=meta)


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
