"""Blocks of dask arrays over a stored array: their lengths and regions, and the names of their tasks."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import dask.array as da
import numpy as np
from dask.array.core import normalize_chunks
from dask.utils import key_split

from xzarr3.dask.slicing import all_blocks, trimmed
from xzarr3.errors import ArgumentError, one_of, shorten
from xzarr3.grid import Edges, Grid, Steps
from xzarr3.quantities import check_blocks
from xzarr3.readable import ReadableArray

_GROUPED = 16 * 2**20  # Bytes of a block that small chunks are grouped into.
_LONGEST_LABEL = 40
_BLOCKS = 16  # Grouping leaves an array at least about this many blocks.

BlockChunks: TypeAlias = tuple[tuple[int, ...], ...]
Blocks: TypeAlias = "list[Steps | Edges]"
"""The blocks along each dimension."""


def _grouped(array: ReadableArray) -> Blocks:
    """Blocks of whole stored units along each dimension; small units are grouped."""
    axes = list(array.unit_grid.axes)
    target = min(_GROUPED, array.nbytes // _BLOCKS)
    while 2 * math.prod(axis.longest for axis in axes) * array.dtype.itemsize <= target:
        left = [axis.count(size) for size, axis in zip(array.shape, axes, strict=True)]
        at = max(range(array.ndim), key=left.__getitem__, default=None)
        if at is None or left[at] <= 1:
            break
        axes[at] = axes[at].paired()
    return axes


def blocks_of(chunks: BlockChunks) -> Blocks:
    """The blocks of a dask array, without empty ones."""
    return [all_blocks([*filter(None, along)]) for along in chunks]


def asked_blocks(array: ReadableArray, chunks: Any) -> Blocks:
    """The requested blocks along each dimension.

    Raises
    ------
    ValueError
        If they do not fit the array, or name a dimension that it does not have.
    """
    check_blocks(chunks)
    if chunks is None:
        chunks = "grouped"
    if isinstance(chunks, str) and chunks in ("grouped", *_STORED):
        asked = _grouped(array) if chunks == "grouped" else _STORED[chunks](array).axes
        return [trimmed(blocks, size) for blocks, size in zip(asked, array.shape, strict=True)]
    if isinstance(chunks, Mapping):
        chunks = _by_axis(array, chunks)
    if isinstance(chunks, (tuple, list)) and len(chunks) == array.ndim:
        chunks = tuple(_stored_lengths(array, at, along) for at, along in enumerate(chunks))
        if not array.size:  # dask would divide by the bytes of the other dimensions.
            chunks = tuple(-1 if isinstance(along, str) and along == "auto" else along for along in chunks)
    try:
        units = array.write_chunk_sizes
        return blocks_of(normalize_chunks(chunks, array.shape, dtype=array.dtype, previous_chunks=units))
    except (ArithmeticError, ValueError, TypeError, NotImplementedError) as error:
        if not isinstance(chunks, str):  # Of objects, dask cannot tell the size.
            is_zero = isinstance(error, ArithmeticError)
            why = "blocks of length 0" if is_zero else str(error).partition("\n")[0]
            raise ArgumentError(
                f"chunks={shorten(chunks)} do not fit an array of shape {array.shape}: {why}"
            ) from error
        raise ArgumentError(
            f"chunks={chunks!r}; accepted: 'grouped', 'units', 'chunks', and, unless the dtype is object, "
            "'auto' or a size as '16 MiB'"
        ) from error


_STORED: dict[str, Callable[[ReadableArray], Grid]] = {
    "units": lambda array: array.unit_grid,
    "chunks": lambda array: array.chunk_grid,
}
"""What a block may be: a stored unit, or a chunk, which is a part of its shard if there are shards."""


def _by_axis(array: ReadableArray, chunks: Mapping[Any, Any]) -> tuple[Any, ...]:
    """The blocks along each dimension; None, all of the dimension, if it is not named.

    Keys are names of dimensions, or their numbers as in dask.
    """
    names = array.dimension_names or ()
    found: list[Any] = [None] * array.ndim
    for key, along in chunks.items():
        at: Any = None
        if isinstance(key, str):
            at = names.index(key) if key in names else None
        elif isinstance(key, (int, np.integer)) and -array.ndim <= key < array.ndim:
            at = key
        if at is None:
            known = [*(name for name in names if name is not None), *range(array.ndim)]
            raise ArgumentError(
                f"chunks of {key!r}, which is no dimension of the array; {one_of(key, known)}"
            )
        found[at] = along
    return tuple(found)


def _stored_lengths(array: ReadableArray, axis: int, along: Any) -> Any:
    """The blocks along one dimension: the lengths if they are named "units" or "chunks"."""
    if isinstance(along, str) and along in _STORED:
        return _STORED[along](array).axes[axis].lengths(array.shape[axis])
    return along


def label(array: ReadableArray, joint: str = "-") -> str:
    """The name of an array as a part of task names; dashboards show it up to the first non-letter."""
    name = re.sub("[^A-Za-z0-9]+", joint, array.path.rpartition("/")[2])[:_LONGEST_LABEL].strip(joint)
    return name or "root"


def check_dask() -> None:
    """Refuse dask arrays that are expressions: they have no layers from which to find what they read.

    Raises
    ------
    NotImplementedError
        If ``array.query-planning`` was true when ``dask.array`` was imported.
    """
    if getattr(da, "ARRAY_EXPR_ENABLED", False):
        raise NotImplementedError(
            "dask.config has 'array.query-planning': True; its arrays cannot be read from a store or written "
            "to one; set it to False before dask.array is imported, or use the package dask-array, whose "
            "arrays xzarr3 takes since version 0.1"
        )


def writing_label(array: ReadableArray) -> str:
    """Prefix of the names of tasks that write an array.

    Dashboards show the words of a name up to the first one that is not all letters, and always the first
    word. So ``sst`` gives ``write-zarr-sst``, while ``t2m`` has to come first.

    Examples
    --------
    >>> from xzarr3 import MemoryStore, create_array
    >>> [writing_label(create_array(MemoryStore(), name, shape=1, dtype="i4")) for name in ("sst", "t2m")]
    ['write-zarr-sst', 't2m-write-zarr']
    """
    word = label(array, "_")
    name = f"write-zarr-{word}"
    return name if key_split(name) == name else f"{word}-write-zarr"


def threads_of(array: ReadableArray) -> int | None:
    """Threads for one task: one, or None (the default) if the store uses threads to wait for answers."""
    return None if array.waiting else 1
