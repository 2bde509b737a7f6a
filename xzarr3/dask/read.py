"""Reads stored arrays as dask arrays: :func:`from_zarr`.

A read is one Blockwise layer. It is built in constant time, whatever the number of chunks, and dask fuses and
culls it together with the layers that use it. A task reads in its own thread. A selection with integers and
slices adds one small layer. When dask optimizes the graph, it joins a selection and the read of a block that
nobody else needs, so only the selected elements are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any, Literal

import dask.array as da
from dask.base import tokenize

from xzarr3.api import open_array
from xzarr3.arrays import Array
from xzarr3.dask.array import Source, read_block, zarr_array
from xzarr3.dask.blocks import asked_blocks, check_dask, label
from xzarr3.dask.expressions import are_default, read_as_expression
from xzarr3.dask.slicing import every
from xzarr3.errors import ArgumentTypeError, short_traceback
from xzarr3.joined.array import JoinedArray
from xzarr3.options import Missing, check_missing
from xzarr3.readable import ReadableArray
from xzarr3.stores import StoreLike


@short_traceback
def from_zarr(
    source: StoreLike | Array | JoinedArray,
    path: str = "",
    *,
    chunks: Literal["grouped", "units", "chunks"] | Any = "grouped",
    name: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    missing: Missing | None = None,
) -> da.Array:
    """Make a dask array that reads from a stored array.

    Parameters
    ----------
    source : path, URL, Store, Array or JoinedArray
        The array, or the store that contains it.
    path : str
        Path of the array in its hierarchy; the root by default.
    chunks : {"grouped", "units", "chunks"} or any chunks of dask
        ``units`` makes one block of each stored unit: a shard, or a chunk without shards. ``chunks`` makes
        one block of each chunk: in a shard, of each inner chunk. ``grouped`` makes blocks of units but groups
        small ones, because running a task costs more than reading a small chunk.

        Everything that dask accepts has the meaning that dask gives it: a number, -1, ``"auto"`` or a size in
        bytes such as ``"64 MiB"`` for blocks of about that size that are made of whole units, a tuple of
        these, tuples of the lengths of all blocks, and a mapping from dimensions, by name or number, to any
        of these. The size of ``"auto"`` is dask's option ``array.chunk-size``. A mapping makes one block of
        each dimension that it leaves out.
        ``"units"`` and ``"chunks"`` can stand for a single dimension, too. Blocks of length 0 are left out.
    name : str, optional
        Name of the dask array. By default an array has the same name in every process until it is changed;
        see the notes.
    storage_options : mapping, optional
        Further options of the store; see :func:`xzarr3.open_store`.
    missing : {"fill", "warn", "error"}, optional
        What each task does about absent chunks; see :func:`xzarr3.open`. By default the setting of ``source``
        if that is an array, else the option ``missing`` of :class:`xzarr3.set_options`.

    Returns
    -------
    dask.array.Array
        A selection with integers and slices reads only the selected elements. If several results of one
        computation need parts of the same block, the block is read once; selections whose chunks are less
        than a quarter of their blocks are read by themselves. A selection has the blocks that dask would
        make, without empty ones.

    Raises
    ------
    NodeNotFoundError, MetadataError, StoreError
        As :func:`xzarr3.open_array`.
    NotImplementedError
        If dask's configuration enables ``array.query-planning``, whose arrays have no graphs of this kind.

    Notes
    -----
    Where arrays of the package ``dask-array`` are the default, after ``dask_array.xarray.register()``, the
    result is one of these.

    The name is derived from the location of the array, its documents, and what this process has written to
    the array since it was first named here. So it is the same in every process, and changes with the shape,
    the attributes and the encoding. If another process changes a chunk and no document, the name stays the
    same, and a cluster that still holds a result of that name returns the old result. Pass another ``name``
    to read again.

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
    >>> from_zarr(array, chunks=((60, 40),)).chunks, from_zarr(array, chunks={0: "400 B"}).chunks
    (((60, 40),), ((50, 50),))
    """
    check_dask()
    if name is not None and not isinstance(name, str):
        raise ArgumentTypeError(f"name={name!r}; accepted: a string or None")
    array: ReadableArray
    if isinstance(source, JoinedArray):
        array = source
    elif not isinstance(source, Array):
        array = open_array(source, path, storage_options=storage_options, missing=missing)
    elif missing in (None, source.missing):
        array = source
    else:
        other = copy(source)
        other.missing = check_missing(missing)
        array = other
    blocks = asked_blocks(array, chunks)
    if are_default():
        found: da.Array = read_as_expression(array, blocks, name)
        return found
    prefix = f"read-zarr-{label(array)}"
    name = f"{prefix}-{tokenize(array, repr(blocks))}" if name is None else name
    view = tuple(map(every, blocks, array.shape))
    return zarr_array(Source(read_block, array, array.dtype, view, prefix, name))
