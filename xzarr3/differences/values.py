"""Compares the elements of two arrays, tile by tile and several tiles at a time, with bounded memory."""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from xzarr3._types import AnyArray
from xzarr3.arrays import Array
from xzarr3.differences.report import ValueDifference
from xzarr3.errors import ChunkError
from xzarr3.io.selection import DimSelection
from xzarr3.options import memory_for_values
from xzarr3.parallel import asked_threads, available_threads, parallel_map

_LARGEST = 2**25  # Bytes of a tile of one array, where its chunks permit that.
_SMALLEST = 2**22  # Bytes of a tile; many small chunks are read together.
_AT_ONCE = 2**16  # Elements of a tile that are compared together, so that what that takes is small.
_BATCH = 256  # Tiles that are handed to the threads together.
_MOST_PROBLEMS = 20  # Chunks of an array that are named because they cannot be read.
_LATEST = 2**63 - 1  # The largest number of units of a time.
_EXACT = 2**53  # Integers up to this are exact as float64.


@dataclass(frozen=True)
class Found:
    """What the comparison of one tile, or of several, found."""

    compared: int = 0
    count: int = 0
    first: tuple[tuple[tuple[int, ...], Any, Any], ...] = ()
    largest: float | None = None
    problems: tuple[str, ...] = ()


def compare_values(
    path: str,
    a: Array,
    b: Array,
    chosen: Sequence[DimSelection],
    *,
    first: int,
    threads: int | None,
    advance: Callable[[int], object],
) -> tuple[ValueDifference | None, int, list[str]]:
    """Compare the chosen elements, which both arrays have.

    Returns
    -------
    ValueDifference or None
        None if no element differs.
    int
        Number of compared elements.
    list of str
        What cannot be read.
    """
    number = math.prod(each.count for each in chosen)
    why = incomparable(a.dtype, b.dtype)
    if why:
        advance(number)
        return ValueDifference(path, number, 0, why=why), 0, []
    memory = memory_for_values()
    lengths = tile_lengths(a, b, min(_LARGEST, max(_AT_ONCE, memory // 4)))
    # A tile of each, and beside it a chunk as it is stored and as it is decoded.
    held = 2 * math.prod(lengths) * _itemsize(a, b) + 2 * max(
        each.metadata.chain.chunk_nbytes for each in (a, b)
    )
    most = asked_threads(threads) or max(available_threads(), a.store.concurrency, b.store.concurrency)
    most = max(1, min(most, memory // max(held, 1)))
    total = Found()
    tiles = _tiles(chosen, lengths)
    while batch := list(itertools.islice(tiles, _BATCH)):
        for found in parallel_map(lambda tile: _compare_tile(a, b, tile, first), batch, most):
            total = _added(total, found, first)
        advance(sum(math.prod(part.count for part in tile) for tile in batch))
    difference = None
    if total.count:
        difference = ValueDifference(path, total.count, total.compared, total.first, total.largest)
    problems = [*total.problems]
    if len(problems) == _MOST_PROBLEMS:
        problems.append(f"there may be more: {number - total.compared:,} values are not compared")
    return difference, total.compared, problems


def _added(one: Found, other: Found, first: int) -> Found:
    differences = heapq.nsmallest(first, (*one.first, *other.first), key=lambda each: each[0])
    largest = [each.largest for each in (one, other) if each.largest is not None]
    return Found(
        one.compared + other.compared,
        one.count + other.count,
        tuple(differences),
        max(largest, default=None),
        tuple(dict.fromkeys((*one.problems, *other.problems)))[:_MOST_PROBLEMS],
    )


# Tiles


def _itemsize(a: Array, b: Array) -> int:
    return max(8, a.dtype.itemsize, b.dtype.itemsize)  # Indices of differences take 8 bytes each.


def _unit(array: Array, axis: int) -> int:
    return array.metadata.chunk_grid.largest[axis]


def tile_lengths(a: Array, b: Array, most: int = _LARGEST) -> tuple[int, ...]:
    """Lengths of tiles that read few stored units of either array more than once, in ``most`` bytes each.

    Examples
    --------
    >>> import xzarr3
    >>> maps = xzarr3.empty((1000, 500, 500), chunks=(1, 500, 500), dtype="f8")
    >>> series = xzarr3.empty((1000, 500, 500), chunks=(1000, 5, 5), dtype="f8")
    >>> tile_lengths(maps, maps), tile_lengths(maps, series)
    ((2, 500, 500), (125, 63, 500))
    """
    axes = range(a.ndim)
    lengths = [min(_joint(_unit(a, at), _unit(b, at)), max(a.shape[at], b.shape[at], 1)) for at in axes]
    itemsize = _itemsize(a, b)

    def cost(lengths: Sequence[int]) -> float:
        """How many times the units of both arrays are read."""
        return sum(
            math.prod(max(1.0, _unit(array, at) / length) for at, length in enumerate(lengths))
            for array in (a, b)
        )

    def halved(at: int) -> list[int]:
        return [-(-length // 2) if each == at else length for each, length in enumerate(lengths)]

    while math.prod(lengths) * itemsize > most and max(lengths, default=1) > 1:
        shorter = [halved(at) for at in axes if lengths[at] > 1]
        lengths = min(shorter, key=lambda each: (cost(each), each))
    for at in reversed(axes):
        while math.prod(lengths) * itemsize < min(_SMALLEST, most) // 2 and lengths[at] < a.shape[at]:
            lengths[at] *= 2
    return tuple(lengths)


def _joint(one: int, other: int) -> int:
    """A length that both divide if it is not too large, else the larger one."""
    joint = math.lcm(one, other)
    return joint if joint <= 8 * max(one, other) else max(one, other)


def _tiles(chosen: Sequence[DimSelection], lengths: Sequence[int]) -> Iterator[tuple[DimSelection, ...]]:
    """The chosen elements of each tile that has any."""
    return _product(
        [functools.partial(_parts, each, length) for each, length in zip(chosen, lengths, strict=True)]
    )


def _product(axes: Sequence[Callable[[], Iterator[DimSelection]]]) -> Iterator[tuple[DimSelection, ...]]:
    """The product of iterators that start anew, one at a time."""
    if not axes:
        yield ()
        return
    for part in axes[0]():
        for others in _product(axes[1:]):
            yield (part, *others)


def _parts(chosen: DimSelection, length: int) -> Iterator[DimSelection]:
    """A choice along one dimension, divided at multiples of a length."""
    at, step = chosen.start, chosen.step
    left = chosen.count
    while left:
        end = (at // length + 1) * length
        count = min(-(-(end - at) // step), left)
        yield DimSelection(at, step, count, False, False)
        at, left = at + count * step, left - count


def _compare_tile(
    a: Array, b: Array, tile: tuple[DimSelection, ...], first: int, *, is_whole: bool = True
) -> Found:
    """Compare a tile; if some of its chunks cannot be read, chunk by chunk."""
    region = tuple(slice(part.start, part.start + part.count * part.step, part.step) for part in tile)
    read, problems = [], []
    for side, array in (("a", a), ("b", b)):
        try:
            read.append(array.get(region, threads=1))
        except ChunkError as error:
            problems.append(f"in {side}: {error}")
    if problems and not is_whole:
        return Found(problems=tuple(problems))
    if problems:
        parts = _tiles(tile, [min(_unit(a, at), _unit(b, at)) for at in range(a.ndim)])
        of_chunks = (_compare_tile(a, b, part, first, is_whole=False) for part in parts)
        return functools.reduce(lambda one, other: _added(one, other, first), of_chunks, Found())
    one, other = map(np.ravel, read)
    total = Found()
    for start in range(0, one.size, _AT_ONCE):
        piece = slice(start, start + _AT_ONCE)
        found = _compare_piece(one[piece], other[piece], first)
        # The numbers of the elements become their indices in the arrays.
        examples = ((_index(tile, start + number), *values) for (number,), *values in found.first)
        total = _added(total, replace(found, first=tuple(examples)), first)
    return total


def _index(tile: tuple[DimSelection, ...], number: int) -> tuple[int, ...]:
    """The index in the array of an element of a tile."""
    local = np.unravel_index(number, tuple(part.count for part in tile))
    return tuple(part.start + int(at) * part.step for part, at in zip(tile, local, strict=True))


def _compare_piece(one: AnyArray, other: AnyArray, first: int) -> Found:
    """Compare elements that stand in a row; the first differences have their numbers as index."""
    where = np.flatnonzero(~equal(one, other))
    if not where.size:
        return Found(compared=one.size)
    examples = tuple(((int(at),), shown(one[at]), shown(other[at])) for at in where[:first])
    return Found(one.size, where.size, examples, _largest(one[where], other[where]))


def shown(value: Any) -> Any:
    """An element as JSON has it, or as text."""
    plain = _plain(value)
    if isinstance(plain, float):
        return plain if math.isfinite(plain) else str(plain)
    return plain if isinstance(plain, bool | int | str | None) else str(plain)


def _plain(value: Any) -> Any:
    """An element without numpy's types, which print few digits of fields and write their own names."""
    if isinstance(value, np.ndarray):
        return [*map(_plain, value)] if value.ndim else _plain(value[()])
    if isinstance(value, np.void) and value.dtype.names is not None:
        return tuple(_plain(value[name]) for name in value.dtype.names)
    if isinstance(value, np.generic):
        return value.item() if value.dtype.kind in "biufUS" else str(value)
    return value


def _largest(one: AnyArray, other: AnyArray) -> float | None:
    """The largest absolute difference of numbers."""
    if one.dtype.kind not in "iuf" or other.dtype.kind not in "iuf":
        return None
    if one.dtype.kind == other.dtype.kind != "f":  # Unsigned numbers wrap around to the exact distance.
        wide = np.maximum(one, other).astype(np.uint64) - np.minimum(one, other).astype(np.uint64)
        return float(wide.max())
    # Where the machine has it, a wider type tells large integers from floats that are near.
    wider = np.float64 if one.dtype.kind == other.dtype.kind else np.longdouble
    with np.errstate(all="ignore"):
        distance = np.abs(one.astype(wider) - other.astype(wider))
    known = distance[~np.isnan(distance)]
    return float(known.max()) if known.size else None


# Equality

_NUMBERS, _TIMES, _TEXTS = "biufc", "mM", "OUT"


def incomparable(one: np.dtype[Any], other: np.dtype[Any]) -> str:
    """Why elements of two types cannot be compared; empty if they can."""
    if one.names is not None or other.names is not None:
        if one.names != other.names:
            return f"cannot be compared, as the fields differ: {one.names} | {other.names}"
        shapes = ((one[name].shape, other[name].shape) for name in one.names or ())
        if any(mine != theirs for mine, theirs in shapes):
            return f"cannot be compared, as the shapes of fields differ: {one} | {other}"
        pairs = ((one[name].base, other[name].base) for name in one.names or ())
        return next(filter(None, (incomparable(*pair) for pair in pairs)), "")
    kinds = one.kind, other.kind
    alike = one == other or any(set(kinds) <= set(family) for family in (_NUMBERS, _TEXTS))
    alike = alike or (kinds[0] == kinds[1] and (kinds[0] == "S" or _common_unit(one, other) is not None))
    return "" if alike else f"cannot be compared: {one} | {other}"


def equal(one: AnyArray, other: AnyArray) -> AnyArray:
    """Which elements of two arrays of one shape are equal, exactly; NaN equals NaN.

    Examples
    --------
    >>> equal(np.array([1.0, np.nan, 0.0]), np.array([1.0, np.nan, -0.0]))
    array([ True,  True,  True])
    >>> equal(np.array([2**53 + 1]), np.array([2.0**53]))
    array([False])
    """
    if one.dtype.names is not None:
        parts = (_whole(equal(one[name], other[name]), one.ndim) for name in one.dtype.names)
        same: AnyArray = np.logical_and.reduce([*parts])
        return same
    if "c" in (one.dtype.kind, other.dtype.kind):
        return np.asarray(equal(np.real(one), np.real(other)) & equal(np.imag(one), np.imag(other)))
    if one.dtype.kind in _TIMES and one.dtype != other.dtype:
        return _equal_times(one, other)
    with np.errstate(invalid="ignore"):
        same = np.asarray(one == other, bool)
        if "f" in (one.dtype.kind, other.dtype.kind) and one.dtype.kind != other.dtype.kind:
            return _exactly(same, one, other)
        if one.dtype.kind not in "biuSUT":
            same |= np.asarray((one != one) & (other != other), bool)
    return same


def _whole(same: AnyArray, ndim: int) -> AnyArray:
    """Whether all items of fields that are arrays are equal."""
    return same.all(axis=tuple(range(ndim, same.ndim))) if same.ndim > ndim else same


def _exactly(same: AnyArray, one: AnyArray, other: AnyArray) -> AnyArray:
    """Integers against floats: large ones, which numpy rounds, are compared again, as integers."""
    whole, real = (one, other) if other.dtype.kind == "f" else (other, one)
    if whole.dtype.itemsize < 8:
        return same
    at = same & (np.abs(real.astype(np.float64)) >= _EXACT)
    found, integers = real[at].astype(np.float64), whole[at]
    fits = found < 2.0 ** (64 if integers.dtype.kind == "u" else 63)  # Others are larger than any integer.
    same[at] = fits & (np.where(fits, found, 0).astype(integers.dtype) == integers)
    return same


def _equal_times(one: AnyArray, other: AnyArray) -> AnyArray:
    """Times of two units; those that the unit of both cannot hold differ."""
    common = np.promote_types(one.dtype, other.dtype)
    same, cast = np.ones(np.shape(one), bool), []
    for each in (one, other):
        fits = _fits(each, common)
        same &= fits
        cast.append(np.where(fits, each, np.array("NaT", each.dtype)).astype(common))
    same &= (cast[0] == cast[1]) | (np.isnat(cast[0]) & np.isnat(cast[1]))
    return np.asarray(same)


def _common_unit(one: np.dtype[Any], other: np.dtype[Any]) -> np.dtype[Any] | None:
    """The unit in which times of two units can be compared; None if there is none, as of years and days."""
    if one.kind != other.kind or one.kind not in _TIMES:
        return None
    try:
        return np.promote_types(one, other)
    except (TypeError, OverflowError):
        return None


def _fits(times: AnyArray, common: np.dtype[Any]) -> AnyArray:
    """Which times a finer unit can hold. numpy wraps the others around, or raises."""
    if np.datetime_data(times.dtype) == np.datetime_data(common):
        return np.ones(np.shape(times), bool)
    latest = np.array(_LATEST).view(common).astype(times.dtype).astype(np.int64)
    return np.asarray((np.abs(times.astype(np.int64)) <= latest) | np.isnat(times))
