"""Arrays in stores as dask arrays: :func:`from_zarr`.

A read is one Blockwise layer, so that it is built in a time that does not depend on the number of
chunks, fuses with what follows and is culled with it. Tasks read in their own thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any, Literal

import dask.array as da
import numpy as np
from dask.base import tokenize
from dask.blockwise import blockwise
from dask.highlevelgraph import HighLevelGraph

from xzarr3._types import AnyArray
from xzarr3.array import Array
from xzarr3.dask.blocks import Regions, asked_chunks, shortened, threads_of
from xzarr3.hierarchy import open_array
from xzarr3.missing import Missing, check_missing
from xzarr3.stores import StoreLike


def _read_block(array: Array, region: tuple[slice, ...]) -> AnyArray:
    return array.get(region, threads=threads_of(array))


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
    blocks = asked_chunks(array, chunks)
    if name is None:
        name = f"read-zarr-{tokenize(array, [shortened(along) for along in blocks])}"
    index = tuple(range(array.ndim))
    layer = blockwise(
        _read_block,
        name,
        index,
        array,
        None,
        Regions(blocks, (0,) * array.ndim),
        index,
        numblocks={},
        _data_producer=True,
    )
    graph = HighLevelGraph.from_collections(name, layer)
    return da.Array(graph, name, chunks=blocks, meta=np.empty((0,) * array.ndim, array.dtype))
