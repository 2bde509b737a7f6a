"""Compares the elements of two arrays, tile by tile and several tiles at a time, with bounded memory."""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from xzarr3._types import AnyArray
from xzarr3.arrays import Array
from xzarr3.copying.tiles import Coords, Tiles, tiles_for
from xzarr3.copying.values import touched
from xzarr3.differences.report import Element, ValueDifference
from xzarr3.display.report import element
from xzarr3.errors import ChunkError
from xzarr3.grid import RegularGrid
from xzarr3.io.selection import DimSelection
from xzarr3.options import memory_for_values
from xzarr3.parallel import asked_threads, available_threads, parallel_map

_LARGEST = 2**25  # Bytes of a tile of one array, where its chunks permit that.
_SMALLEST = 2**22  # Bytes of a tile; many small chunks are read together.
_AT_ONCE = 2**16  # Elements of a tile that are compared together, so that what that takes is small.
_BATCH = 256  # Tiles that are handed to the threads together.
_MOST_PROBLEMS = 20  # Chunks of an array that are named because they cannot be read.


def compare_values(
    path: str,
    a: Array,
    b: Array,
    chosen: Sequence[DimSelection],
    *,
    first: int,
    threads: int | None,
    advance: Callable[[int], object],
) -> ValueDifference:
    """Compare the chosen elements, which both arrays have."""
    number = math.prod(each.count for each in chosen)
    why = incomparable(a.dtype, b.dtype)
    if a.is_optional != b.is_optional:
        why = "cannot be compared, as only the elements of one may have no value"
    if why:
        advance(number)
        return ValueDifference(path, number, why=why)
    memory = memory_for_values()
    tiles = tiles_of(a, b, min(_LARGEST, max(_AT_ONCE, memory // 4)))
    # A tile of each, and beside it a chunk as it is stored and as it is decoded.
    held = 2 * tiles.elements * _itemsize(a, b) + 2 * max(each.metadata.chain.chunk_nbytes for each in (a, b))
    most = asked_threads(threads) or max(available_threads(), a.store.concurrency, b.store.concurrency)
    most = max(1, min(most, memory // max(held, 1)))
    total, read = ValueDifference(path), 0
    parts = _tiles(chosen, tiles, _with_stored_units(a, b, tiles))
    while batch := list(itertools.islice(parts, _BATCH)):
        for found in parallel_map(lambda tile: _compare_tile(a, b, tile, first), batch, most):
            total = _added(total, found, first)
        size = sum(math.prod(part.count for part in tile) for tile in batch)
        read += size
        advance(size)
    advance(number - read)
    total = replace(total, compared=total.compared + number - read)
    if len(total.problems) < _MOST_PROBLEMS:
        return total
    more = f"there may be more: {number - total.compared:,} values are not compared"
    return replace(total, problems=(*total.problems, more))


def _added(one: ValueDifference, other: ValueDifference, first: int) -> ValueDifference:
    differences = heapq.nsmallest(first, (*one.first, *other.first), key=lambda each: each[0])
    largest = [each.largest for each in (one, other) if each.largest is not None]
    return replace(
        one,
        count=one.count + other.count,
        compared=one.compared + other.compared,
        first=tuple(differences),
        largest=max(largest, default=None),
        problems=tuple(dict.fromkeys((*one.problems, *other.problems)))[:_MOST_PROBLEMS],
    )


# Tiles


def _itemsize(a: Array, b: Array) -> int:
    return max(8, a.dtype.itemsize, b.dtype.itemsize)  # Indices of differences take 8 bytes each.


def tiles_of(a: Array, b: Array, most: int = _LARGEST) -> Tiles:
    """Tiles of whole chunks of ``a`` that seldom read chunks of ``b`` again, in ``most`` bytes.

    Examples
    --------
    >>> import xzarr3
    >>> maps = xzarr3.empty((1000, 500, 500), chunks=(1, 500, 500), dtype="f8")
    >>> series = xzarr3.empty((1000, 500, 500), chunks=(1000, 5, 5), dtype="f8")
    >>> tiles_of(maps, maps).lengths, tiles_of(maps, series).lengths
    ((2, 500, 500), (16, 500, 500))
    """
    shape, itemsize = tuple(map(min, a.shape, b.shape)), _itemsize(a, b)
    tiles = tiles_for(a.chunk_grid, b.chunk_grid, shape, most // itemsize)
    return tiles.at_least(min(_SMALLEST, most) // 2 // itemsize)


def _with_stored_units(a: Array, b: Array, tiles: Tiles) -> set[Coords] | None:
    """The tiles in which an array has stored units; others hold equal fill values. None for all tiles."""
    one, other = a.metadata, b.metadata
    lists = all(each.store.listable and each.missing == "fill" for each in (a, b))
    if math.prod(tiles.counts) <= _BATCH or not lists or one.data_type != other.data_type:
        return None
    if one.data_type.bits(one.fill_value) != other.data_type.bits(other.fill_value):
        return None
    return {coords for each in (a, b) for coords in touched(each, tiles)}


def _tiles(
    chosen: Sequence[DimSelection], tiles: Tiles, wanted: set[Coords] | None = None
) -> Iterator[tuple[DimSelection, ...]]:
    """The chosen elements of each wanted tile that has any."""
    for coords in tiles.over([slice(part.start, part.stop) for part in chosen]):
        if wanted is not None and coords not in wanted:
            continue
        parts = tuple(map(_within, chosen, tiles.region(coords)))
        if all(part.count for part in parts):
            yield parts


def _within(chosen: DimSelection, part: slice) -> DimSelection:
    """The elements of a choice along one dimension that lie in a part of it."""
    first, end = (
        min(max(-(-(at - chosen.start) // chosen.step), 0), chosen.count) for at in (part.start, part.stop)
    )
    return DimSelection(chosen.start + first * chosen.step, chosen.step, end - first, False, False)


def _compare_tile(
    a: Array, b: Array, tile: tuple[DimSelection, ...], first: int, *, is_whole: bool = True
) -> ValueDifference:
    """Compare a tile; if some of its chunks cannot be read, chunk by chunk."""
    region = tuple(slice(part.start, part.start + part.count * part.step, part.step) for part in tile)
    read, problems = [], []
    for side, array in (("a", a), ("b", b)):
        try:
            read.append(_elements(array, array.get(region, threads=1)))
        except ChunkError as error:
            problems.append(f"in {side}: {error}")
    if problems and not is_whole:
        return ValueDifference(problems=tuple(problems))
    if problems:
        lengths = tuple(map(min, *(each.metadata.chunk_grid.largest for each in (a, b))))
        parts = _tiles(tile, Tiles(RegularGrid(lengths), tuple(map(min, a.shape, b.shape)), (1,) * a.ndim))
        of_chunks = (_compare_tile(a, b, part, first, is_whole=False) for part in parts)
        return functools.reduce(lambda one, other: _added(one, other, first), of_chunks, ValueDifference())
    one, other = map(np.ravel, read)
    total = ValueDifference()
    for start in range(0, one.size, _AT_ONCE):
        piece = slice(start, start + _AT_ONCE)
        found = _compare_piece(one[piece], other[piece], first)
        # The numbers of the elements become their indices in the arrays.
        examples = (Element(_index(tile, start + number), *values) for (number,), *values in found.first)
        total = _added(total, replace(found, first=tuple(examples)), first)
    return total


def _elements(array: Array, values: AnyArray) -> AnyArray:
    """Values as elements that :func:`equal` compares; optional ones become records, or text with None."""
    if not array.is_optional:
        return values
    return array.zdtype.cast_array(values) if array.is_masked else values.astype(object)


def _index(tile: tuple[DimSelection, ...], number: int) -> tuple[int, ...]:
    """The index in the array of an element of a tile."""
    local = np.unravel_index(number, tuple(part.count for part in tile))
    return tuple(part.start + int(at) * part.step for part, at in zip(tile, local, strict=True))


def _compare_piece(one: AnyArray, other: AnyArray, first: int) -> ValueDifference:
    """Compare elements that stand in a row; the first differences have their numbers as index."""
    where = np.flatnonzero(~equal(one, other))
    if not where.size:
        return ValueDifference(compared=one.size)
    examples = tuple(Element((int(at),), shown(one[at]), shown(other[at])) for at in where[:first])
    return ValueDifference("", where.size, one.size, examples, _largest(one[where], other[where]))


def shown(value: Any) -> Any:
    """An element as JSON has it, or as text."""
    plain = element(value)
    if isinstance(plain, float) and not math.isfinite(plain):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(plain)]
    return plain if isinstance(plain, bool | int | float | str | None) else str(plain)


def _largest(one: AnyArray, other: AnyArray) -> float | None:
    """The largest absolute difference of numbers."""
    if one.dtype.kind not in "iuf":
        return None
    if one.dtype.kind != "f":  # Unsigned numbers wrap around to the exact distance.
        wide = np.maximum(one, other).astype(np.uint64) - np.minimum(one, other).astype(np.uint64)
        return float(wide.max())
    with np.errstate(all="ignore"):
        distance = np.abs(one.astype(np.float64) - other.astype(np.float64))
    known = distance[~np.isnan(distance)]
    return float(known.max()) if known.size else None


# Equality

_FAMILIES = ("iu", "OUT")  # Kinds of numpy whose elements are compared with each other's.


def incomparable(one: np.dtype[Any], other: np.dtype[Any]) -> str:
    """Why elements of two types are not compared; empty if they are of one kind.

    Integers are compared with integers of any width, floats with floats, text with text; times of one unit,
    and records of the same fields.
    """
    kinds = {one.kind, other.kind}
    alike = any(kinds <= set(family) for family in _FAMILIES) or len(kinds) == 1
    if kinds <= {"m", "M"}:
        alike = alike and np.datetime_data(one) == np.datetime_data(other)
    elif kinds == {"V"}:
        alike = one.newbyteorder("=") == other.newbyteorder("=")
    if alike:
        return ""
    packed = kinds <= set("iuf")
    advice = "; unpack both with xarray to compare packed values with others" if packed else ""
    return f"cannot be compared: {one} | {other}{advice}"


def equal(one: AnyArray, other: AnyArray) -> AnyArray:
    """Which elements of two arrays of one shape and kind are equal, exactly; NaN equals NaN.

    Examples
    --------
    >>> equal(np.array([1.0, np.nan, 0.0]), np.array([1.0, np.nan, -0.0]))
    array([ True,  True,  True])
    >>> equal(np.array([2**63 - 1]), np.array([2**63 - 1], "u8"))
    array([ True])
    """
    if one.dtype.names is not None:
        parts = (_whole(equal(one[name], other[name]), one.ndim) for name in one.dtype.names)
        return np.asarray(np.logical_and.reduce([*parts]))
    if one.dtype.kind == "c":
        return np.asarray(equal(np.real(one), np.real(other)) & equal(np.imag(one), np.imag(other)))
    with np.errstate(invalid="ignore"):
        same = np.asarray(one == other, bool)
        if one.dtype.kind not in "biuSUT":
            same |= np.asarray((one != one) & (other != other), bool)
    return same


def _whole(same: AnyArray, ndim: int) -> AnyArray:
    """Whether all items of fields that are arrays are equal."""
    return same.all(axis=tuple(range(ndim, same.ndim))) if same.ndim > ndim else same
