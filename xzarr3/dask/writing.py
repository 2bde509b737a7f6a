"""Dask arrays into arrays in stores: :func:`store`."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
from dask._task_spec import Task, TaskRef
from dask.array.optimization import optimize
from dask.blockwise import Blockwise, blockwise
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph

from xzarr3._types import AnyArray
from xzarr3.array import Array
from xzarr3.dask.blocks import Regions, threads_of
from xzarr3.errors import AlignmentError, SelectionError, shorten
from xzarr3.grids import Edges, Steps
from xzarr3.indexing import basic_selection


def _write_block(block: AnyArray, target: Array, region: tuple[slice, ...]) -> None:
    expected = tuple(part.stop - part.start for part in region)
    if np.shape(block) != expected:
        raise SelectionError(
            f"a block for array '{target.name}' has shape {np.shape(block)} where dask was told {expected}; "
            "accepted: blocks of the shapes in .chunks"
        )
    target.set(region, block, threads=threads_of(target))


def store(
    sources: da.Array | Sequence[da.Array],
    targets: Array | Sequence[Array],
    *,
    regions: Any = None,
    compute: bool = True,
    **kwargs: Any,
) -> Delayed | None:
    """Write dask arrays into arrays in stores.

    Each block is written by one task. No two blocks may touch the same unit of storage, a shard or a
    chunk, because the one would overwrite what the other wrote.

    Parameters
    ----------
    sources : dask array or sequence of these
    targets : Array or sequence of these
        As many as there are sources.
    regions : tuple of slices or sequence of these, optional
        The part of each target that is written, without steps; the whole target by default.
    compute : bool
        Write now; otherwise return a Delayed that will.
    **kwargs
        Options for the scheduler.

    Returns
    -------
    Delayed or None

    Raises
    ------
    AlignmentError
        If blocks share a unit of storage, or a source reads what the call writes and blocks would get in
        each other's way. Nothing is written then.
    SelectionError
        If a region does not fit.
    ReadOnlyError
        If a target cannot be written.

    Examples
    --------
    >>> import dask.array, xzarr3
    >>> target = xzarr3.create_array(xzarr3.MemoryStore(), shape=100, chunks=10, dtype="int64")
    >>> store(dask.array.arange(100, chunks=50), target)
    >>> int(target[99])
    99
    """
    if isinstance(sources, da.Array):
        sources, targets, regions = [sources], [targets], None if regions is None else [regions]  # type: ignore[list-item]
    elif isinstance(targets, Array):  # It can be iterated over, but that would read all of it.
        targets = [targets]
    sources, targets = list(sources), list(targets)
    wanted = [...] * len(sources) if regions is None else list(regions)
    if not len(sources) == len(targets) == len(wanted):
        raise SelectionError(
            f"{len(sources)} sources, {len(targets)} targets and {len(wanted)} regions do not pair up"
        )
    jobs = [_Job(s, t, r) for s, t, r in zip(sources, targets, wanted, strict=True)]
    _check_disjoint(jobs)
    _check_sources(jobs)
    layers = [job.layer() for job in jobs]
    keys = [key for layer in layers for key in layer.get_output_keys()]
    graph = HighLevelGraph.merge(
        *(
            HighLevelGraph.from_collections(layer.output, layer, dependencies=[job.source])  # type: ignore[list-item]
            for job, layer in zip(jobs, layers, strict=True)
        )
    )
    name = f"store-zarr-{uuid.uuid4().hex}"  # Each call writes anew, so none may stand for another.
    # A Delayed is not optimized as arrays are, so that is done here: blocks are fused with their writing.
    tasks = dict(optimize(graph, keys))
    delayed = Delayed(name, {**tasks, name: Task(name, _all_done, *map(TaskRef, keys))})
    if not compute:
        return delayed
    delayed.compute(**kwargs)
    return None


def _all_done(*written: object) -> None:
    """What depends on every write."""


def _within(units: Steps | Edges, edges: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which of some elements are not the first ones of chunks."""
    if isinstance(units, Steps):
        return np.not_equal(edges % units.length, 0)
    return np.array([units.start(units.index(edge)) != edge for edge in edges.tolist()], bool)


class _Job:
    """One source, where it goes, and the check that its blocks and the units of storage go together."""

    def __init__(self, source: da.Array, target: Array, region: Any) -> None:
        if not isinstance(source, da.Array) or not isinstance(target, Array):
            raise TypeError(
                f"cannot store {type(source).__name__} into {type(target).__name__}; accepted: dask arrays "
                "and xzarr3 arrays"
            )
        target._check_writable()
        if any(math.isnan(length) for along in source.chunks for length in along):
            raise SelectionError(
                f"the blocks of the source for array '{target.name}' have unknown shapes; accepted: a source "
                "after .compute_chunk_sizes()"
            )
        self.source, self.target = source, target
        self.selected = basic_selection(region, target.shape)
        if any(s.step != 1 or s.reverse or s.drop for s in self.selected):
            raise SelectionError(
                f"not a region: {region!r}; accepted: slices without steps, one for a dimension"
            )
        shape = tuple(s.count for s in self.selected)
        if shape != source.shape:
            raise SelectionError(
                f"a source of shape {source.shape} does not fit a region of shape {shape} of '{target.name}'"
            )
        for axis, (chosen, along) in enumerate(zip(self.selected, source.chunks, strict=True)):
            self._check_edges(axis, chosen.start, along)

    def _check_edges(self, axis: int, start: int, lengths: tuple[int, ...]) -> None:
        units = self.target.metadata.chunk_grid.axes[axis]
        filled = [length for length in lengths if length]  # Empty blocks write nothing.
        edges = start + np.cumsum(filled)[:-1]
        bad = edges[_within(units, edges)]
        if len(bad):
            unit = units.length_at(units.index(int(bad[0])))
            raise AlignmentError(
                f"array '{self.target.name}': along axis {axis} a block ends at element {bad[0]}, within a "
                f"unit of storage of {unit} elements, which two tasks would write; found blocks of "
                f"{lengths[:6]}; accepted: blocks of whole units, for instance after "
                f".rechunk({shorten(self.target.write_chunks)})"
            )

    def box(self) -> tuple[tuple[int, int], ...]:
        """The range of units that is touched along each dimension."""
        return tuple(
            (units.index(chosen.start), units.index(chosen.stop - 1) + 1) if chosen.count else (0, 0)
            for chosen, units in zip(self.selected, self.target.metadata.chunk_grid.axes, strict=True)
        )

    def layer(self) -> Any:
        """The layer that writes the blocks."""
        index = tuple(range(self.source.ndim))
        offsets = tuple(chosen.start for chosen in self.selected)
        return blockwise(
            _write_block,
            f"write-zarr-{uuid.uuid4().hex}",
            index,
            self.source.name,
            index,
            self.target,
            None,
            Regions(self.source.chunks, offsets),
            index,
            numblocks={self.source.name: self.source.numblocks},
        )


def _check_disjoint(jobs: Sequence[_Job]) -> None:
    """Refuse two jobs that would write the same unit of storage."""
    seen: dict[tuple[object, str], list[_Job]] = {}
    for job in jobs:
        target = job.target
        others = seen.setdefault((target.store.identity, target.path), [])
        for other in others:
            if all(
                low < end and start < high
                for (low, high), (start, end) in zip(job.box(), other.box(), strict=True)
            ):
                raise AlignmentError(
                    f"two sources write the same unit of storage of array '{target.name}'; accepted: regions "
                    f"that share no unit of shape {shorten(target.write_chunks)}, or one call after the other"
                )
        others.append(job)


def _check_sources(jobs: Sequence[_Job]) -> None:
    """Refuse to write what is still to be read, unless each block only replaces what it was made from."""
    for job in jobs:
        for name, layer in job.source.dask.layers.items():
            for read in _arrays_read(layer):
                for other in jobs:
                    target = other.target
                    if (read.store.identity, read.path) != (target.store.identity, target.path):
                        continue
                    if other is not job or not _keeps_places(job, name):
                        raise AlignmentError(
                            f"array '{read.name}' is read by a source and written by the same call, which "
                            "could write a block before another one is read; accepted: another target, or a "
                            "source that was computed"
                        )


def _arrays_read(layer: object) -> Iterator[Array]:
    """The arrays that a layer made by :func:`from_zarr` reads."""
    if isinstance(layer, Blockwise):
        yield from (value for value, index in layer.indices if index is None and isinstance(value, Array))


def _keeps_places(job: _Job, name: str) -> bool:
    """Whether each block that is written is made of the one block of layer ``name`` in the same place."""
    graph = job.source.dask
    if any(selected.start for selected in job.selected):
        return False
    made_of, left = {name}, set(graph.layers) - {name}
    while left:
        ready = {layer for layer in left if not graph.dependencies[layer] & left}
        for each in ready:
            layer = graph.layers[each]
            parts = graph.dependencies[each] & made_of
            if not parts:
                continue
            if not isinstance(layer, Blockwise) or any(
                index != layer.output_indices or layer.numblocks[str(part)] != job.source.numblocks
                for part, index in layer.indices
                if part in parts
            ):
                return False
            made_of.add(each)
        left -= ready
    return True
