"""Creates arrays from dask arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence

import dask.array as da

from xzarr3.arrays import Array
from xzarr3.dask.expressions import with_graph
from xzarr3.dask.forks import forks_of
from xzarr3.dask.sources import reads_below
from xzarr3.dask.write import store as store_blocks
from xzarr3.errors import ArgumentError, MetadataError
from xzarr3.stores import Store

__all__ = ["block_lengths", "check_writable", "with_graph", "write_blocks"]


def block_lengths(source: da.Array, path: str) -> tuple[int, ...]:
    """The longest block along each dimension: the default chunk shape.

    Raises
    ------
    MetadataError
        If the lengths of blocks are not known.
    """
    if any(math.isnan(length) for length in source.shape):
        raise MetadataError(
            "the blocks of the data have unknown lengths", path=path, field="data", found=source.chunks,
            advice="call .compute_chunk_sizes(), which finds them in place",
        )  # fmt: skip
    return tuple(max(1, *lengths) for lengths in source.chunks)


def check_writable(store: Store, path: str, sources: Sequence[da.Array], *, overwrite: bool) -> None:
    """Raise if the blocks of dask arrays cannot be written at a path, or below it."""
    forks_of(store)
    if overwrite and store.traits.visible == "at commit" and any(reads_below(sources, store, path)):
        raise ArgumentError(
            f"the values are computed from '/{path}' of {store}, which would be erased before they are read; "
            "load them first, or create another array"
        )


def write_blocks(source: da.Array, target: Array) -> None:
    """Write a dask array to an array of the same or a larger shape, block by block."""
    store_blocks(da.broadcast_to(source, target.shape), target)
