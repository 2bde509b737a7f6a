"""The grid for the ``chunks`` that a user gives."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, SupportsIndex, cast

import numpy as np

from xzarr3.display.units import counted
from xzarr3.errors import MetadataError
from xzarr3.grid.along import Run, merged_runs, run_from
from xzarr3.grid.grids import Grid, RectilinearGrid, RegularGrid


def as_lengths(value: SupportsIndex | Iterable[SupportsIndex]) -> tuple[int, ...]:
    """One or several integers of any integer type, as a tuple of int.

    Raises
    ------
    TypeError
        If a value is not an integer.
    """
    if isinstance(value, (str, bytes, Mapping)):  # Of bytes the items are integers.
        raise TypeError(f"{value!r} is no length")
    given: Iterable[SupportsIndex] = value if isinstance(value, Iterable) else (value,)
    return tuple(int(operator.index(length)) for length in given)


def _sample(shape: Sequence[int]) -> tuple[int, ...]:
    """Lengths of chunks that an array of this shape can have, for an error message."""
    return tuple(max(1, min(length, 100)) for length in shape)


def grid_for(chunks: Any, shape: tuple[int, ...], field: str = "chunks", *, literal: bool = False) -> Grid:
    """The grid for the ``chunks`` that a user gives.

    Parameters
    ----------
    chunks : int, or sequence of int or sequence of int
        One length for the chunks along all dimensions; or for each dimension the length of its chunks,
        -1 for the whole dimension, or a list of the lengths of its chunks, as in dask.
    shape : tuple of int
    field : str
        Name of ``chunks`` in errors.
    literal : bool
        Any list makes a rectilinear grid.

    Returns
    -------
    RegularGrid or RectilinearGrid
        Regular if every list has equal lengths, of which the last may be shorter, unless it is ``literal``.
        Otherwise rectilinear; a dimension given as a list then grows as :meth:`Edges.covering` describes.

    Raises
    ------
    MetadataError
        If the chunks do not fit the shape.

    Examples
    --------
    >>> grid_for(4, (10, 10)), grid_for(((4, 4, 2), (5, 5)), (10, 10))
    (RegularGrid(chunk_shape=(4, 4)), RegularGrid(chunk_shape=(4, 5)))
    >>> grid_for([-1, [3, 7]], (10, 10))
    RectilinearGrid(chunk_shapes=(10, ((3, 1), (7, 1))))
    >>> grid_for([[4, 4, 2]], (10,), literal=True)
    RectilinearGrid(chunk_shapes=(((4, 2), (2, 1)),))
    """
    given = [chunks] * len(shape) if _is_integer(chunks) else _items(chunks)
    if given is None or len(given) != len(shape):
        raise MetadataError(
            f"the array has {counted(len(shape), 'dimension')}", field=field, found=chunks,
            accepted=f"an integer or a list of integers for each, such as {_sample(shape)}",
        )  # fmt: skip
    found = [
        _wanted_axis(value, size, field if value is chunks else f"{field}[{at}]")
        for at, (value, size) in enumerate(zip(given, shape, strict=True))
    ]
    steps = [axis if isinstance(axis, int) else None if literal else _step(axis) for axis in found]
    if None not in steps:
        return RegularGrid(tuple(cast("list[int]", steps)))
    return RectilinearGrid(tuple(found))


def _step(runs: tuple[Run, ...]) -> int | None:
    """The length of all chunks, where the last chunk may be shorter; None if they differ otherwise."""
    regular = len(runs) == 1 or (len(runs) == 2 and runs[1][1] == 1 and runs[1][0] < runs[0][0])
    return runs[0][0] if regular else None


def _wanted_axis(value: Any, size: int, field: str) -> int | tuple[Run, ...]:
    """The chunks that a user gives along one dimension: one length for all, or the runs of lengths."""
    if _is_integer(value):
        if int(value) != -1 and not 1 <= int(value) < 2**63:
            raise MetadataError(
                "not a chunk length", field=field, found=value, accepted="integers of at least 1"
            )
        return max(size, 1) if int(value) == -1 else int(value)
    items = _items(value)
    if items is None:
        raise MetadataError(
            "not the chunks of a dimension", field=field, found=value,
            accepted="an integer of at least 1, or a list of integers",
        )  # fmt: skip
    if not size and all(_is_integer(item) and item == 0 for item in items):
        return 1  # Dask gives chunks of length 0 to a dimension without elements.
    plain = [_plain(item) for item in items]
    runs = merged_runs(run_from(item, f"{field}[{at}]") for at, item in enumerate(plain))
    total = sum(length * count for length, count in runs)
    if total < size:
        raise MetadataError(
            f"the chunk lengths add up to {total}, less than the dimension's {size}",
            field=field,
            found=value,
            accepted=f"lengths whose sum is at least {size}",
        )
    return runs


def _is_integer(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _items(value: Any) -> list[Any] | None:
    """The elements of a sequence; None for other values, and for text, which is no sequence of lengths."""
    if isinstance(value, np.ndarray):
        return list(value) if value.ndim else None
    return list(value) if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else None


def _plain(value: Any) -> Any:
    """A length, or a pair of a length and a count, as Python integers."""
    items = _items(value)
    if items is not None:
        return [int(item) if _is_integer(item) else item for item in items]
    return int(value) if _is_integer(value) else value
