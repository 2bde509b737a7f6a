"""Stored units that are absent from the store: reports them as a warning or an error.

Specification: Zarr v3 core, "Fill value": a chunk without a key reads as the fill value. The store does not
tell whether the chunk was left out because it holds only the fill value, or was lost. A reader may know that
no chunk was left out; it opens the array with ``missing="warn"`` or ``"error"``.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from xzarr3.errors import (
    MissingChunksError,
    MissingChunksWarning,
    levels_to_caller,
    listed,
    printable,
    shorten,
)

if TYPE_CHECKING:
    from xzarr3.arrays import Array

_NAMED = 3  # Keys in a message.
_PASSED_ON = frozenset(("xzarr3", "xarray", "dask", "concurrent", "threading", "asyncio"))


def report(array: Array, asked: int, absent: Iterable[tuple[int, ...]]) -> None:
    """Raise if the array was opened with ``missing="error"``; warn otherwise.

    Parameters
    ----------
    array : Array
    asked : int
        Number of stored units that the read touched.
    absent : iterable of tuple of int
        Coordinates of the absent units; a unit may occur several times.

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
        f"{'is' if len(coords) == 1 else 'are'} absent: {listed(keys)}{more}"
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
