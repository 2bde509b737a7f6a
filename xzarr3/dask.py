"""Chunks as dask tasks: arrays in stores as dask arrays, and dask arrays into stores.

A read is one Blockwise layer, so that it is built in a time that does not depend on the number of
chunks, fuses with what follows and is culled with it. Tasks read and write in their own thread.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from typing import Any, Literal

import dask.array as da
import numpy as np
import numpy.typing as npt
from dask._task_spec import Task, TaskRef
from dask.array.core import normalize_chunks
from dask.array.optimization import optimize
from dask.base import tokenize
from dask.blockwise import Blockwise, BlockwiseDep, blockwise
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph

from xzarr3._types import AnyArray
from xzarr3.array import Array
from xzarr3.errors import AlignmentError, SelectionError, shorten
from xzarr3.grids import Edges, Steps
from xzarr3.hierarchy import open_array
from xzarr3.indexing import basic_selection
from xzarr3.missing import Missing, check_missing
from xzarr3.stores import StoreLike

_GROUPED = 16 * 2**20  # Bytes of a block that small chunks are grouped to.
_BLOCKS = 16  # Grouping leaves an array at least about this many blocks.

BlockChunks = tuple[tuple[int, ...], ...]


class _Regions(BlockwiseDep):
    """The region of each block of an array: what a task gets to know besides the array itself."""

    def __init__(self, chunks: BlockChunks, offsets: tuple[int, ...]) -> None:
        self.numblocks = tuple(map(len, chunks))
        self.produces_tasks = False
        self._edges = tuple(_edges(along, offset) for along, offset in zip(chunks, offsets, strict=True))

    def __getitem__(self, idx: tuple[int, ...]) -> tuple[slice, ...]:
        return tuple(slice(*edges(at)) for at, edges in zip(idx, self._edges, strict=True))


class _EvenEdges:
    """First and one past the last element of blocks that all have the same length but the last."""

    def __init__(self, length: int, size: int, offset: int) -> None:
        self._length, self._size, self._offset = length, size, offset

    def __call__(self, at: int) -> tuple[int, int]:
        start = at * self._length
        return self._offset + start, self._offset + min(start + self._length, self._size)


class _UnevenEdges:
    """First and one past the last element of blocks of any lengths."""

    def __init__(self, lengths: tuple[int, ...], offset: int) -> None:
        self._starts = (offset + np.cumsum((0, *lengths))).tolist()

    def __call__(self, at: int) -> tuple[int, int]:
        return self._starts[at], self._starts[at + 1]


def _is_even(lengths: tuple[int, ...]) -> bool:
    """Whether all blocks have the same length, but for a shorter last one."""
    equal = lengths.count(lengths[0]) if lengths else 0
    return equal == len(lengths) or (equal == len(lengths) - 1 and lengths[-1] < lengths[0])


def _edges(lengths: tuple[int, ...], offset: int) -> _EvenEdges | _UnevenEdges:
    if _is_even(lengths):
        return _EvenEdges(lengths[0] if lengths else 0, sum(lengths), offset)
    return _UnevenEdges(lengths, offset)


def _shortened(lengths: tuple[int, ...]) -> tuple[object, ...]:
    """What tells these blocks from others, without naming every one of many equal ones."""
    return (lengths[0], lengths[-1], len(lengths)) if lengths and _is_even(lengths) else lengths


def _threads(array: Array) -> int | None:
    """A task has one thread, and others only to wait for a store with it."""
    return None if array.engine.waiting else 1


def _read_block(array: Array, region: tuple[slice, ...]) -> AnyArray:
    return array.get(region, threads=_threads(array))


def _write_block(block: AnyArray, target: Array, region: tuple[slice, ...]) -> None:
    expected = tuple(part.stop - part.start for part in region)
    if np.shape(block) != expected:
        raise SelectionError(
            f"a block for array '{target.name}' has shape {np.shape(block)} where dask was told {expected}; "
            "accepted: blocks of the shapes in .chunks"
        )
    target.set(region, block, threads=_threads(target))


def _grouped(array: Array) -> list[Steps | Edges]:
    """Blocks of whole write units along each dimension, of several where these are small."""
    axes = list(array.metadata.chunk_grid.axes)
    target = min(_GROUPED, array.nbytes // _BLOCKS)
    while 2 * math.prod(axis.longest for axis in axes) * array.dtype.itemsize <= target:
        left = [axis.count(size) for size, axis in zip(array.shape, axes, strict=True)]
        at = max(range(array.ndim), key=left.__getitem__, default=None)
        if at is None or left[at] <= 1:
            break
        axes[at] = axes[at].paired()
    return axes


def _block_chunks(shape: tuple[int, ...], axes: Sequence[Steps | Edges]) -> BlockChunks:
    """Chunks of dask for the chunks of a grid."""
    return tuple(axis.lengths(size) for size, axis in zip(shape, axes, strict=True))


def _chunks(array: Array, chunks: Any) -> BlockChunks:
    if isinstance(chunks, str) and chunks == "auto":
        return _block_chunks(array.shape, _grouped(array))
    units = _block_chunks(array.shape, array.metadata.chunk_grid.axes)
    if isinstance(chunks, str) and chunks == "units":
        return units
    normal: BlockChunks = normalize_chunks(chunks, array.shape, dtype=array.dtype, previous_chunks=units)
    return normal


def from_zarr(
    source: StoreLike | Array,
    path: str = "",
    *,
    chunks: Literal["auto", "units"] | Any = "auto",
    name: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    missing: Missing | None = None,
) -> da.Array:
    """A dask array that reads from an array in a store.

    Parameters
    ----------
    source : path, URL, Store or Array
        Where the array is, or the array itself.
    path : str
        Path of the array in its hierarchy; the root by default.
    chunks : {"auto", "units"} or any chunks of dask
        ``units`` makes one block of each shard, or of each chunk that is in none. ``auto`` does so
        too, but groups small ones, because a task costs more than a small chunk.
    name : str, optional
        Name of the dask array. By default it is derived from the content: the same array has the same
        name in every process, until it is changed.
    storage_options : mapping, optional
        What the store takes besides; see :func:`xzarr3.open_store`.
    missing : {"fill", "warn", "error"}, optional
        What each task does about chunks that are absent, as :func:`xzarr3.open` has it; by default what the
        array was opened with, and ``"fill"`` where it is opened here.

    Returns
    -------
    dask.array.Array

    Raises
    ------
    NodeNotFoundError, MetadataError, StoreError
        As :func:`xzarr3.open_array`.

    Examples
    --------
    >>> import xzarr3
    >>> array = xzarr3.create_array(xzarr3.MemoryStore(), data=np.arange(100.0), chunks=10)
    >>> from_zarr(array, chunks="units")
    dask.array<read-zarr, shape=(100,), dtype=float64, chunksize=(10,), chunktype=numpy.ndarray>
    >>> float(from_zarr(array)[5:8].sum().compute())
    18.0
    """
    if not isinstance(source, Array):
        wanted: Missing = "fill" if missing is None else missing
        array = open_array(source, path, storage_options=storage_options, missing=wanted)
    elif missing in (None, source.missing):
        array = source
    else:
        array = copy(source)
        array.missing = check_missing(missing)
    blocks = _chunks(array, chunks)
    if name is None:
        name = f"read-zarr-{tokenize(array, [_shortened(along) for along in blocks])}"
    index = tuple(range(array.ndim))
    layer = blockwise(
        _read_block,
        name,
        index,
        array,
        None,
        _Regions(blocks, (0,) * array.ndim),
        index,
        numblocks={},
        _data_producer=True,
    )
    graph = HighLevelGraph.from_collections(name, layer)
    return da.Array(graph, name, chunks=blocks, meta=np.empty((0,) * array.ndim, array.dtype))


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
            _Regions(self.source.chunks, offsets),
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
