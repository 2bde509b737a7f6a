"""Arrays in stores as dask arrays: :func:`from_zarr`.

A read is one Blockwise layer, so that it is built in a time that does not depend on the number of
chunks, fuses with what follows and is culled with it. Tasks read in their own thread. What is selected of
the array with integers and slices is another small layer. When the graph is optimized, a block of which
several results need something is read once, and of a block that one result needs a part of that part is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any, Literal

import dask.array as da
from dask.base import tokenize

from xzarr3.api import open_array
from xzarr3.array import Array
from xzarr3.dask.array import Source, in_regions, read_block, zarr_array
from xzarr3.dask.blocks import asked_blocks, check_dask, label
from xzarr3.dask.slicing import every
from xzarr3.io.missing import Missing, check_missing
from xzarr3.stores import StoreLike


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
        Name of the dask array. By default the same array has the same name in every process, until it is
        changed; see the notes.
    storage_options : mapping, optional
        What the store takes besides; see :func:`xzarr3.open_store`.
    missing : {"fill", "warn", "error"}, optional
        What each task does about chunks that are absent, as :func:`xzarr3.open` has it; by default what the
        array was opened with, and ``"fill"`` where it is opened here.

    Returns
    -------
    dask.array.Array
        What is selected of it with integers and slices reads no more than that, unless several results of one
        computation need parts of a block: what they need is read once then, if that costs less. It has the
        blocks that dask would give it, but for empty ones.

    Raises
    ------
    NodeNotFoundError, MetadataError, StoreError
        As :func:`xzarr3.open_array`.
    NotImplementedError
        If dask's configuration has ``array.query-planning``, whose arrays have no graphs of this kind.

    Notes
    -----
    The name is made of where the array is, what its documents say, and whether its values have changed. In
    directories, zips and a :class:`MemoryStore` the store can tell. Of an array of more than 1,024 chunks or
    shards in a directory, 256 of these are looked at, and the folders that hold them: all up to 1,024
    folders, 256 of more. If another program writes into another file in place, or replaces one in another
    folder, the name stays the same. What xzarr3 writes changes it.

    Object stores, web servers and fsspec cannot tell (:attr:`Store.tells_changes`). There the name changes
    with the documents, with their e-tags in an :class:`ObjectStore`, and when this process writes to the
    array. If another process changes a chunk and no document, the name stays the same, and a cluster that
    still holds a result of that name gives the old one; another ``name`` makes it read again.

    A write with ``resume=True`` does not rely on names where these do not tell of every chunk.

    Examples
    --------
    >>> import numpy as np, xzarr3
    >>> array = xzarr3.create_array(xzarr3.MemoryStore(), data=np.arange(100.0), chunks=10)
    >>> from_zarr(array, chunks="units")
    dask.array<read-zarr-root, shape=(100,), dtype=float64, chunksize=(10,), chunktype=numpy.ndarray>
    >>> float(from_zarr(array)[5:8].sum().compute())
    18.0
    >>> from_zarr(array, chunks="units")[95:8:-20].chunks
    ((1, 1, 1, 1, 1),)
    """
    check_dask()
    if not isinstance(source, Array):
        wanted: Missing = "fill" if missing is None else missing
        array = open_array(source, path, storage_options=storage_options, missing=wanted)
    elif missing in (None, source.missing):
        array = source
    else:
        array = copy(source)
        array.missing = check_missing(missing)
    blocks = asked_blocks(array, chunks)
    # The lengths of the array's own units are a part of what it is.
    units = asked_blocks(array, "units")
    told = [None if asked == unit else asked for asked, unit in zip(blocks, units, strict=True)]
    if name is None:
        name = f"read-zarr-{label(array)}-{tokenize(array, repr(told))}"
    if isinstance(blocks, tuple):
        return in_regions(read_block, array, array.dtype, blocks, name)
    view = tuple(map(every, blocks, array.shape))
    return zarr_array(Source(read_block, array, array.dtype, view, f"read-zarr-{label(array)}", name))
