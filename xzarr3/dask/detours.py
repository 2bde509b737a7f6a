"""Other ways to tiles than to put them together from blocks that wait in memory.

What would need too much memory is rechunked by the workers of a cluster, or lies in a temporary directory in
between.
"""

from __future__ import annotations

import atexit
import math
import os
import shutil
import tempfile
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask._task_spec import TaskRef
from dask.array.core import getter, getter_inline, getter_nofancy
from dask.base import tokenize
from dask.blockwise import Blockwise, blockwise
from dask.highlevelgraph import HighLevelGraph

from xzarr3.array import Array
from xzarr3.array_settings import array_metadata
from xzarr3.dask.blocks import Regions, label
from xzarr3.dask.ending import Gate
from xzarr3.dask.layers import SelectLayer
from xzarr3.dask.sources import is_array
from xzarr3.dask.tasks import Cuts, Region, Rooms, Sink, Tile, read_region, rooms_of, write_tile
from xzarr3.dask.tiles import AxisTiles, block_edges, chunks_of, distinct
from xzarr3.dask.zarr_array import read_block
from xzarr3.stores import LocalStore


@dataclass(frozen=True, eq=False)
class Reading:
    """A source that is read from a store and not changed.

    Parameters
    ----------
    array : Array
    starts : tuple of int
        Where in the array the source begins.
    """

    array: Array
    starts: tuple[int, ...]


_READERS = (read_block, read_region, getter, getter_inline, getter_nofancy)


def as_reading(source: da.Array) -> Reading | None:
    """What a source reads, if it does nothing else."""
    layer = source.dask.layers.get(source.name)
    reader = source.dask.layers.get(layer.source) if isinstance(layer, SelectLayer) else layer
    if not isinstance(reader, Blockwise) or reader.task.func not in (read_block, read_region):
        return None
    arrays = [value for value, index in reader.indices if index is None and isinstance(value, Array)]
    starts = read_from(layer, source.chunks)
    if len(arrays) != 1 or starts is None or arrays[0].ndim != source.ndim:
        return None
    return Reading(arrays[0], starts)


def reads_alone(layer: Blockwise, name: str | None = None) -> bool:
    """Whether each task of a layer reads a region of one array, which a layer ``name`` holds, and no more."""
    held = [value for value, index in layer.indices if index is None]
    if layer.task.func not in _READERS or len(held) != 1 or len(layer.indices) != 2:
        return False
    return is_array(held[0]) if name is None else name in (held[0], getattr(held[0], "key", None))


def read_from(layer: Blockwise | SelectLayer, chunks: Sequence[Sequence[int]]) -> tuple[int, ...] | None:
    """Where a layer that reads an array block by block begins in it, if it reads all from there on."""
    parts = _parts(layer)
    if len(parts) != 1 or tuple(parts[0].numblocks) != tuple(map(len, chunks)):
        return None
    first = parts[0][(0,) * len(chunks)]
    last = parts[0][tuple(len(along) - 1 for along in chunks)]
    goes_on = len(first) == len(chunks) and all(
        isinstance(part, slice)
        and isinstance(end, slice)
        and part.step in (None, 1)
        and end.step in (None, 1)
        and end.stop - part.start == sum(along)
        for part, end, along in zip(first, last, chunks, strict=True)
    )
    return tuple(part.start for part in first) if goes_on else None


def _parts(layer: Blockwise | SelectLayer) -> list[Any]:
    """What tells which part of an array each block of a layer is."""
    return [layer.parts] if isinstance(layer, SelectLayer) else [*layer.io_deps.values()]


def reads_blocks_of(
    layer: Blockwise | SelectLayer, starts: Sequence[int], chunks: Sequence[Sequence[int]]
) -> bool:
    """Whether each block that a layer reads is the one in the same place among those from ``starts`` on."""
    if read_from(layer, chunks) != tuple(starts):
        return False
    (parts,) = _parts(layer)
    for axis, (start, along) in enumerate(zip(starts, chunks, strict=True)):
        begins = (start + block_edges(along)).tolist()
        for at, begin in enumerate(begins[:-1]):
            part = parts[tuple(at if other == axis else 0 for other in range(len(chunks)))][axis]
            if along[at] and part.start != begin:
                return False
    return True


def _paired(edges: Any) -> Any:
    return edges if len(edges) <= 2 else np.append(edges[:-1:2], edges[-1])


def read_again(reading: Reading, axes: Sequence[AxisTiles], after: Sequence[Any] = ()) -> da.Array:
    """The same source, read tile by tile, once the keys ``after`` are done."""
    array, chunks = reading.array, chunks_of(axes)
    index = tuple(range(array.ndim))
    token = tokenize(array, [axis.edges for axis in axes], reading.starts, after)
    name = f"read-zarr-{label(array)}-{token}"
    layer = blockwise(
        read_region,
        name,
        index,
        array,
        None,
        Regions(chunks, reading.starts),
        index,
        *(each for key in after for each in (TaskRef(key), None)),
        numblocks={},
        _data_producer=True,
    )
    graph = HighLevelGraph({name: layer}, {name: set()})
    return da.Array(graph, name, chunks=chunks, meta=np.empty((0,) * array.ndim, array.dtype))


# By way of a temporary directory


class Aside:
    """An array in a temporary directory, which each task that writes to it makes if it is not there.

    A task that made it for the others would let blocks pile up in memory for as long as that takes. The
    array has no document, so there is nothing that they could get in each other's way about. The directory
    goes once everything is written, or the write has failed, with this process at the latest.
    """

    def __init__(self, target: Array, written: Sequence[AxisTiles], read: Sequence[AxisTiles]) -> None:
        folder = dask.config.get("temporary-directory", None) or tempfile.gettempdir()
        self.path = os.path.join(os.path.realpath(folder), f"xzarr3-write-{uuid.uuid4().hex}")
        _made.add((os.getpid(), self.path))
        metadata = array_metadata(
            shape=tuple(axis.size for axis in read),
            dtype=target.metadata.data_type,
            chunks=[
                np.diff(np.union1d(one.edges, other.edges)).tolist()
                for one, other in zip(written, read, strict=True)
            ],
            compressors=None,
        )
        # No chunk may be absent when it is read.
        self.array = Array(LocalStore(self.path), "", metadata, write_empty_chunks=True, missing="error")
        self.array.has_document = False

    def make(self) -> None:
        """Make the directory, which is for nobody else to read."""
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(self.path, 0o700)

    def remove(self) -> None:
        """Remove the directory; what tasks that are still running put there goes with the process."""
        shutil.rmtree(self.path, ignore_errors=True)


def write_aside(aside: Aside, gate: Gate, tile: Tile, region: Region, cuts: Cuts, *blocks: Any) -> None:
    """Write a tile to a temporary directory."""
    with gate.passing():
        aside.make()
        write_tile(Sink(aside.array), tile, region, cuts, *blocks)


def copy_tile(
    sink: Sink, aside: Aside, starts: tuple[int, ...], tile: Tile, region: Region, cuts: Cuts, *after: object
) -> Rooms:
    """Write a tile as it is in a temporary directory."""
    there = tuple(
        slice(part.start - start, part.stop - start) for part, start in zip(region, starts, strict=True)
    )
    sink.write(tile, region, aside.array.get(there, threads=1))
    return rooms_of(after)


_made: set[tuple[int, str]] = set()


@atexit.register
def _remove_left() -> None:
    for process, path in list(_made):
        if process == os.getpid():  # And not one that was forked off.
            shutil.rmtree(path, ignore_errors=True)


def aside_axes(
    blocks: Sequence[Sequence[int]], tiles: Sequence[AxisTiles], itemsize: int, limit: float
) -> tuple[list[AxisTiles], list[AxisTiles]]:
    """What is written aside in one piece, whole blocks, and what is read again in one, whole tiles.

    Both are as large as ``limit`` bytes permit, so that the pieces that lie aside are few.
    """
    write = [block_edges(along) for along in blocks]
    read = [axis.edges for axis in tiles]
    write = _enlarged(write, read, limit / itemsize)
    read = _enlarged(read, write, limit / itemsize)
    first = [
        AxisTiles(distinct(edges), block_edges(along), False)
        for edges, along in zip(write, blocks, strict=True)
    ]
    return first, [AxisTiles(edges, distinct(along), False) for edges, along in zip(read, write, strict=True)]


def _enlarged(edges: Sequence[Any], others: Sequence[Any], most: float) -> list[Any]:
    """Pieces of several along those dimensions where the others are longest."""
    chosen = [distinct(along) for along in edges]
    while True:
        mean = [int(along[-1]) / (len(along) - 1) for along in chosen]
        open_ = [at for at, along in enumerate(chosen) if len(along) > 2]
        if not open_ or 2 * math.prod(mean) > most:
            return chosen
        at = max(open_, key=lambda at: int(others[at][-1]) / (len(others[at]) - 1) / mean[at])
        chosen[at] = _paired(chosen[at])


def workers(kwargs: Any) -> int:
    """How many tasks run at a time on this machine."""
    number = kwargs.get("num_workers") or dask.config.get("num_workers", None)
    return int(number or os.cpu_count() or 1)
