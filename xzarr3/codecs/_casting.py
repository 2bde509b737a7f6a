"""Casts numbers of numpy from one dtype to another by value, with a chosen rounding and checks of the range.

Specification: zarr-extensions, "Cast_value codec", "rounding" and "out_of_range".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from xzarr3._types import AnyArray
from xzarr3.dtypes.numbers import converted
from xzarr3.errors import ChunkError, shorten

Rounding = Literal["nearest-even", "towards-zero", "towards-positive", "towards-negative", "nearest-away"]
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
NUMBERS = (*INTEGERS, "float16", "float32", "float64")
"""The data types that can be cast."""

Fail = Callable[[str], ChunkError]
"""Makes the error for values that cannot be cast."""


def cast(
    array: AnyArray, target: np.dtype[np.generic], rounding: str, out_of_range: str | None, fail: Fail
) -> AnyArray:
    """Cast an array of numbers to another dtype.

    Parameters
    ----------
    array : ndarray
    target : numpy.dtype
        One of ``NUMBERS``.
    rounding : str
        One of ``Rounding``.
    out_of_range : {None, "clamp", "wrap"}
        What happens to a number that is out of the range of ``target`` after rounding. None: an error.
        "clamp": the nearest number that ``target`` holds, which may be infinity. "wrap": the integer modulo
        the range.
    fail : callable
        Makes the error.

    Raises
    ------
    ChunkError
        Made by ``fail``, if a number, or NaN, cannot be cast.
    """
    with np.errstate(all="ignore"):
        if target.kind != "f":
            numbers = _whole(array, rounding) if array.dtype.kind == "f" else array
            result, lost = converted(numbers, target)
        else:
            numbers = array
            result, lost = converted(array, target)
            if rounding != "nearest-even" and array.dtype != target:
                result = _rounded(array, result, rounding)
                greatest = (
                    np.ldexp(1.0, np.finfo(str(target)).maxexp - 1) * 2
                )  # the first number beyond the range
                lost = np.isfinite(array) & (np.isinf(result) | (np.abs(array.astype("f8")) >= greatest))
        if lost.any():
            result[lost] = _out_of_range(numbers[lost], array[lost], target, out_of_range, fail)
    return result


def _whole(values: AnyArray, rounding: str) -> AnyArray:
    """Round floating point numbers to whole ones; the dtype may become wider."""
    if rounding == "nearest-away":
        values = values.astype(np.float64)
        whole = np.trunc(values)
        away: AnyArray = whole + np.copysign(np.abs(values - whole) >= 0.5, values)
        return away
    function = {
        "nearest-even": np.rint,
        "towards-zero": np.trunc,
        "towards-positive": np.ceil,
        "towards-negative": np.floor,
    }[rounding]
    return function(values)


def _rounded(values: AnyArray, nearest: AnyArray, rounding: str) -> AnyArray:
    """Numbers that were rounded to the nearest, rounded in another way instead."""
    if values.dtype.kind == "f":
        back = nearest.astype(np.float64)
        values = values.astype(np.float64)
        beyond = np.zeros(values.shape, np.bool_)
    else:  # compared as integers, as a double does not hold all of them
        beyond = nearest >= 2.0 ** (8 * values.dtype.itemsize - (values.dtype.kind == "i"))
        back = np.where(beyond, 0, nearest).astype(values.dtype)
    above, below = beyond | (back > values), ~beyond & (back < values)
    smaller, larger = (np.nextafter(nearest, nearest.dtype.type(end)) for end in (-np.inf, np.inf))
    if rounding == "nearest-away":
        distance = np.where(above, back - values, values - back).astype(np.float64)
        beside = np.where(values > 0, larger, smaller)
        step = np.abs(beside.astype(np.float64) - nearest.astype(np.float64))
        tie = (below & (values > 0) | above & (values < 0)) & (2 * distance == step)
        return np.where(tie, beside, nearest)
    down = np.asarray(
        {"towards-zero": values > 0, "towards-positive": False, "towards-negative": True}[rounding]
    )
    return np.where(above & down, smaller, np.where(below & ~down, larger, nearest))


def _out_of_range(
    numbers: AnyArray, given: AnyArray, target: np.dtype[np.generic], out_of_range: str | None, fail: Fail
) -> AnyArray:
    """What numbers become that the dtype cannot hold; ``numbers`` are ``given``, rounded."""
    if np.isnan(numbers).any():
        raise fail(f"data type '{target}' has no number for NaN")
    limits = np.finfo(target) if target.kind == "f" else np.iinfo(target)  # type: ignore[type-var]
    if out_of_range is None:
        raise fail(
            f"{shorten(given.flat[0])} is out of the range of data type '{target}', {limits.min} to "
            f"{limits.max}, and 'out_of_range' is not set"
        )
    if out_of_range == "clamp":
        ends = (-np.inf, np.inf) if target.kind == "f" else (limits.min, limits.max)
        return np.where(numbers > 0, np.array(ends[1], target), np.array(ends[0], target))
    if target.kind == "f":
        raise fail(f"only integers wrap around, not data type '{target}'")
    if numbers.dtype.kind != "f":
        return numbers.astype(target)
    if np.isinf(numbers).any():
        raise fail(f"infinity cannot be wrapped around to data type '{target}'")
    rest = np.fmod(numbers.astype(np.float64), 2.0 ** (8 * target.itemsize))
    size = np.abs(rest).astype(np.uint64)
    return np.where(rest < 0, ~size + np.uint64(1), size).astype(target)
