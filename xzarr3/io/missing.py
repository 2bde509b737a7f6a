"""Stored units that are absent from the store: reports them as a warning or an error.

Specification: Zarr v3 core, "Fill value": a chunk without a key reads as the fill value. The store does not
tell whether the chunk was left out because it holds only the fill value, or was lost. A reader may know that
no chunk was left out; it opens the array with ``missing="warn"`` or ``"error"``.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from xzarr3.errors import (
    MissingChunksError,
    MissingChunksWarning,
    levels_to_caller,
    listed,
    printable,
    shorten,
)
from xzarr3.grid import Grid

if TYPE_CHECKING:
    from xzarr3.arrays import Array

Region: TypeAlias = tuple[slice, ...]
Describe: TypeAlias = Callable[[Region], str]

_NAMED = 3  # Keys in a message.
_DESCRIBED = 4  # Parts of the array in a message.
_PASSED_ON = frozenset(("xzarr3", "xarray", "dask", "concurrent", "threading", "asyncio"))


def report(
    array: Array, asked: int, absent: Iterable[tuple[int, ...]], describe: Describe | None = None
) -> None:
    """Raise if the array was opened with ``missing="error"``; warn otherwise.

    Parameters
    ----------
    array : Array
    asked : int
        Number of stored units that the read touched.
    absent : iterable of tuple of int
        Coordinates of the absent units; a unit may occur several times.
    describe : callable, optional
        Returns the words for a region of the array; by default its indices.

    Raises
    ------
    MissingChunksError
        If the array was opened with ``missing="error"``.
    """
    coords = sorted(set(absent))
    what = ("chunk" if array.shards is None else "shard") + ("" if asked == 1 else "s")
    keys = [array.engine.key(at) for at in coords[:_NAMED]]
    more = f" and {len(coords) - _NAMED} more" if len(coords) > _NAMED else ""
    text = (
        f"array '{array.name}' of {array.store}: {len(coords)} of the {asked} {what} to be read "
        f"{'is' if len(coords) == 1 else 'are'} absent: {listed(keys)}{more}, where the array is "
        f"{_described(array, coords, describe or _indices)}"
    )
    value = array.metadata.fill_value
    fill = shorten(value.item() if getattr(value, "dtype", np.dtype("V")).kind in "biufc" else value, 40)
    if array.missing == "error":
        raise MissingChunksError(f"{text}; pass missing='fill' or 'warn' to read the fill value {fill}")
    warnings.warn(
        printable(f"{text}; read as the fill value {fill}"),
        MissingChunksWarning,
        stacklevel=levels_to_caller(_PASSED_ON),
    )


def _described(array: Array, coords: Sequence[tuple[int, ...]], describe: Describe) -> str:
    regions = covered(array.metadata.chunk_grid, array.shape, coords)
    parts = [describe(region) for region in itertools.islice(regions, _DESCRIBED)]
    left = len(regions) - len(parts)
    return "; ".join(parts) + (f"; and {left} other part{'' if left == 1 else 's'}" if left else "")


def _indices(region: Region) -> str:
    return f"[{', '.join(f'{part.start}:{part.stop}' for part in region) or '...'}]"


def covered(grid: Grid, shape: tuple[int, ...], coords: Sequence[tuple[int, ...]]) -> list[Region]:
    """The regions of an array that stored units cover; regions of neighbouring units are joined.

    Examples
    --------
    >>> import xzarr3
    >>> array = xzarr3.create_array(xzarr3.MemoryStore(), shape=(4, 7), chunks=2, dtype="int8")
    >>> covered(array.metadata.chunk_grid, array.shape, [(0, 2), (0, 3), (1, 2), (1, 3), (1, 0)])
    [(slice(0, 4, None), slice(4, 7, None)), (slice(2, 4, None), slice(0, 2, None))]
    """
    low, high = _boxes(np.array(coords, np.int64).reshape(len(coords), len(shape)))
    regions = []
    for first, last in zip(low.tolist(), high.tolist(), strict=True):
        begin, end = grid.region(tuple(first), shape), grid.region(tuple(last), shape)
        regions.append(tuple(slice(a.start, b.stop) for a, b in zip(begin, end, strict=True)))
    return regions


def _boxes(coords: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """First and last corners of boxes that cover the points.

    Joins neighbours along the last axis, then joins the resulting boxes along the axis before it, and so on.
    """
    low = high = coords
    for axis in reversed(range(coords.shape[1])):
        others = [at for at in range(coords.shape[1]) if at != axis]
        sides = np.concatenate([low[:, others], high[:, others]], axis=1)
        order = np.lexsort((low[:, axis], *sides.T[::-1]))
        low, high, sides = low[order], high[order], sides[order]
        begins = np.ones(len(low), bool)
        begins[1:] = (sides[1:] != sides[:-1]).any(axis=1) | (low[1:, axis] != high[:-1, axis] + 1)
        starts = np.flatnonzero(begins)
        ends = np.append(starts[1:], len(low)) - 1
        last = high[starts]
        last[:, axis] = high[ends, axis]
        low, high = low[starts], last
    order = np.lexsort(low.T[::-1]) if coords.shape[1] else np.arange(min(len(low), 1))
    return low[order], high[order]
