"""Casts numbers from one data type to another by value, with a chosen rounding and checks of the range.

Specification: zarr-extensions, "Cast_value codec", "rounding" and "out_of_range".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from xzarr3._types import AnyArray
from xzarr3.codecs.bitround import bit_lengths, magnitudes
from xzarr3.dtypes import ZDType
from xzarr3.errors import ChunkError, shorten

ROUNDINGS = ("nearest-even", "towards-zero", "towards-positive", "towards-negative", "nearest-away")
OUT_OF_RANGE = ("clamp", "wrap")
_INTEGERS = (
    "int2", "int4", "int8", "int16", "int32", "int64",
    "uint2", "uint4", "uint8", "uint16", "uint32", "uint64",
)  # fmt: skip
_FLOATS = (
    "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz",
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "bfloat16",
    "float16", "float32", "float64",
)  # fmt: skip
_TIMES = ("numpy.datetime64", "numpy.timedelta64")
REAL = _INTEGERS + _FLOATS
NUMBERS = REAL + _TIMES
"""The data types that can be cast. Times are cast as their integer counts; NaT is treated like NaN."""
_NAT = -(2**63)

Fail = Callable[[str], ChunkError]
"""Makes the error for values that cannot be cast."""


@dataclass(frozen=True)
class Number:
    """The numbers that a data type can hold.

    Parameters
    ----------
    name : str
        Name of the data type.
    dtype : numpy.dtype
        Its numpy dtype, in the byte order of this machine.
    low, high : int or float
        The least and the greatest finite number.
    digits : int
        Bits of an integer, or bits of the mantissa of a floating point number, with the implied one.
    step : int
        Smallest step between floating point numbers, as an exponent of two.
    has_nan, has_infinity : bool
    """

    name: str
    dtype: np.dtype[Any]
    low: int | float
    high: int | float
    digits: int
    step: int = 0
    has_nan: bool = False
    has_infinity: bool = False

    @property
    def is_integer(self) -> bool:
        """Whether the data type holds integers."""
        return isinstance(self.low, int)

    @property
    def _is_foreign(self) -> bool:
        return self.dtype.type.__module__ == "ml_dtypes"

    def read(self, array: AnyArray) -> AnyArray:
        """The numbers of an array as a numpy dtype that holds all of them exactly."""
        values = np.asarray(array, dtype=self.dtype)
        if self.name in _TIMES:
            return values.view(np.int64)
        if self._is_foreign:
            return values.astype(np.int8 if self.is_integer else np.float32)
        return values.astype(np.float32) if self.dtype == np.float16 else values

    def make(self, numbers: AnyArray) -> AnyArray:
        """An array of this data type from numbers that it can hold."""
        if self.name in _TIMES:
            return numbers.astype(np.int64).view(self.dtype)
        if self._is_foreign:  # ml_dtypes converts from few numpy dtypes only
            return numbers.astype(np.int8 if self.is_integer else np.float32).astype(self.dtype)
        return numbers.astype(self.dtype)

    def holds(self, other: Number) -> bool:
        """Whether this type holds every number of ``other``, including NaN and infinity."""
        if self.is_integer or other.is_integer:
            return self.is_integer and other.is_integer and self.low <= other.low and other.high <= self.high
        return (
            self.low <= other.low
            and other.high <= self.high
            and self.digits >= other.digits
            and self.step <= other.step
            and self.has_nan >= other.has_nan
            and self.has_infinity >= other.has_infinity
        )


@lru_cache(maxsize=128)
def number_of(data_type: ZDType) -> Number | None:
    """The numbers that a data type can hold; None if its elements are not single numbers.

    Examples
    --------
    >>> from xzarr3.dtypes import parse_dtype
    >>> number_of(parse_dtype("int16")).high
    32767
    >>> number_of(parse_dtype("float16")).digits
    11
    """
    name = data_type.name
    if name not in NUMBERS:
        return None
    dtype: np.dtype[Any] = data_type.in_native_order().to_native_dtype()
    if name in _TIMES:
        return Number(name, dtype, _NAT + 1, 2**63 - 1, 64, has_nan=True)
    if name in _INTEGERS:
        digits = int(name.lstrip("uint"))
        half = 1 << digits - 1
        low, high = (0, 2 * half - 1) if name[0] == "u" else (-half, half - 1)
        return Number(name, dtype, low, high, digits)
    info = import_module(dtype.type.__module__).finfo(dtype)  # finfo of numpy, or of ml_dtypes
    special = np.array([np.nan, np.inf], np.float32).astype(dtype).astype(np.float32)
    return Number(
        name, dtype, float(info.min), float(info.max), int(info.nmant) + 1,
        int(info.minexp) - int(info.nmant), bool(np.isnan(special[0])), bool(np.isinf(special[1])),
    )  # fmt: skip


def cast(
    array: AnyArray, source: Number, target: Number, rounding: str, out_of_range: str | None, fail: Fail
) -> AnyArray:
    """Cast an array from the type ``source`` to the type ``target``.

    Parameters
    ----------
    array : ndarray
    source, target : Number
    rounding : str
        One of ``ROUNDINGS``.
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
    if source.dtype == target.dtype:
        return np.asarray(array, dtype=source.dtype)
    numbers = source.read(np.atleast_1d(array))
    if numbers.size == 0:
        return np.empty(np.shape(array), target.dtype)
    with np.errstate(all="ignore"):
        result = _cast(numbers, source, target, rounding, out_of_range, fail)
    return result.reshape(np.shape(array))


def _cast(
    numbers: AnyArray, source: Number, target: Number, rounding: str, out_of_range: str | None, fail: Fail
) -> AnyArray:
    """Cast numbers that :meth:`Number.read` of ``source`` returned to an array of the type ``target``."""
    if source.has_nan and source.is_integer and (missing := numbers == _NAT).any():
        return _with_nat(numbers, missing, source, target, rounding, out_of_range, fail)
    if target.holds(source):
        return target.make(numbers)
    if not source.is_integer:
        if target.is_integer:
            return _whole(numbers, target, rounding, out_of_range, fail)
        return rounded(numbers, target, rounding, out_of_range, fail)
    if target.is_integer:
        return _integers(numbers, target, out_of_range, fail)
    low, high = int(numbers.min()), int(numbers.max())
    if max(-low, high) <= 1 << target.digits and target.low <= low and high <= target.high:
        return target.make(numbers)
    return rounded(_in_digits(numbers, target.digits, rounding), target, rounding, out_of_range, fail)


def _with_nat(
    counts: AnyArray, missing: AnyArray, source: Number, target: Number, rounding: str,
    out_of_range: str | None, fail: Fail,
) -> AnyArray:  # fmt: skip
    """Cast times some of which are NaT."""
    if not target.has_nan:
        raise fail(f"data type '{target.name}' has no number for NaT")
    result = _cast(np.where(missing, 0, counts), source, target, rounding, out_of_range, fail)
    result[missing] = target.make(np.array(_NAT if target.is_integer else np.nan))
    return result


def whole_numbers(values: AnyArray, rounding: str) -> AnyArray:
    """Round floating point numbers to integers; the result keeps the dtype.

    Examples
    --------
    >>> whole_numbers(np.array([0.5, 1.5, -0.5]), "nearest-even").tolist()
    [0.0, 2.0, -0.0]
    >>> whole_numbers(np.array([0.5, 1.5, -0.5]), "nearest-away").tolist()
    [1.0, 2.0, -1.0]
    """
    if rounding == "nearest-away":
        whole = np.trunc(values)
        away: AnyArray = whole + np.copysign(np.abs(values - whole) >= 0.5, values).astype(values.dtype)
        return away
    function = {
        "nearest-even": np.rint,
        "towards-zero": np.trunc,
        "towards-positive": np.ceil,
        "towards-negative": np.floor,
    }[rounding]
    return function(values)


def _whole(
    numbers: AnyArray, target: Number, rounding: str, out_of_range: str | None, fail: Fail
) -> AnyArray:
    """Cast floating point numbers to integers."""
    whole = whole_numbers(numbers, rounding)
    beyond = 2.0 ** (target.digits - (target.low < 0))  # the least number that is too large
    least = -beyond if target.low < 0 else 0.0
    if whole.min() >= least and whole.max() < beyond and not (target.has_nan and whole.min() == least):
        return target.make(whole)
    fits = (whole > least if target.has_nan else whole >= least) & (whole < beyond)
    missing = np.isnan(whole)
    if missing.any() and not target.has_nan:
        raise fail(f"data type '{target.name}' has no number for NaN")
    out = ~(fits | missing)
    carrier = np.int64 if target.low < 0 else np.uint64
    result = np.where(fits, whole, 0).astype(carrier)
    if out.any():
        _check_out(numbers, out, target, out_of_range, fail)
        if out_of_range == "wrap":
            if np.isinf(whole[out]).any():
                raise fail(f"infinity cannot be wrapped around to data type '{target.name}'")
            rest = np.fmod(whole[out].astype(np.float64), 2.0**target.digits)
            size = np.abs(rest).astype(np.uint64)
            result[out] = _wrapped(np.where(rest < 0, ~size + np.uint64(1), size), target)
        else:
            result[whole >= beyond] = target.high
            result[out & (whole < 0)] = target.low
    result[missing] = _NAT if target.has_nan else 0
    return target.make(result)


def _check_out(
    numbers: AnyArray, out: AnyArray, target: Number, out_of_range: str | None, fail: Fail
) -> None:
    """Refuse numbers that are out of range if ``out_of_range`` is None or cannot apply to ``target``."""
    if out_of_range is None:
        found = shorten(numbers[out].flat[0])
        raise fail(
            f"{found} is out of the range of data type '{target.name}', {target.low} to {target.high}, and "
            "'out_of_range' is not set"
        )
    if out_of_range == "wrap" and (target.has_nan or not target.is_integer):
        raise fail(f"only integers wrap around, not data type '{target.name}'")


def _wrapped(bits: npt.NDArray[np.uint64], target: Number) -> AnyArray:
    """Wrap integers of 64 bits to the fewer bits of ``target``; the result still has 64."""
    unused = np.uint64(64 - target.digits)
    upper = bits << unused
    result: AnyArray = upper.view(np.int64) >> np.int64(unused) if target.low < 0 else upper >> unused
    return result


def _integers(numbers: AnyArray, target: Number, out_of_range: str | None, fail: Fail) -> AnyArray:
    """Cast integers to integers of another type."""
    low, high = int(target.low), int(target.high)
    if low <= int(numbers.min()) and int(numbers.max()) <= high:
        return target.make(numbers)
    below, above = numbers < low, numbers > high
    _check_out(numbers, below | above, target, out_of_range, fail)
    if out_of_range == "wrap":
        return target.make(_wrapped(numbers.astype(np.uint64), target))
    carrier = np.int64 if low < 0 else np.uint64
    result = np.where(below | above, 0, numbers).astype(carrier)
    result[below], result[above] = low, high
    return target.make(result)


def _in_digits(numbers: AnyArray, digits: int, rounding: str) -> npt.NDArray[np.float64]:
    """Integers as doubles. If some need more than 53 bits, all are rounded to ``digits`` bits first."""
    sizes = magnitudes(numbers).astype(np.uint64)
    if int(sizes.max()) < 2**53:
        return numbers.astype(np.float64)
    negative, one = numbers < 0, np.uint64(1)
    drop = np.maximum(bit_lengths(sizes) - digits, 0).astype(np.uint64)
    rest, half = sizes & ((one << drop) - one), (one << drop) >> one
    kept = sizes >> drop
    if rounding == "nearest-even":
        up = (rest > half) | ((rest == half) & (kept & one == one))
    elif rounding == "nearest-away":
        up = rest >= half
    elif rounding == "towards-zero":
        up = np.zeros(sizes.shape, bool)
    else:
        up = negative if rounding == "towards-negative" else ~negative
    kept += up & (rest != 0)
    result = np.ldexp(kept.astype(np.float64), drop.astype(np.int32))
    return np.where(negative, -result, result)


def rounded(
    numbers: AnyArray, target: Number, rounding: str, out_of_range: str | None, fail: Fail
) -> AnyArray:
    """Cast floating point numbers to a narrower type; see :func:`cast`."""
    if rounding == "nearest-even" and not target._is_foreign:
        result = target.make(numbers)  # numpy and the processor round in this way
        if not (np.isinf(result) & np.isfinite(numbers)).any():
            return result
    wide = numbers.astype(np.float64)
    step = np.maximum(np.frexp(wide)[1] - target.digits, target.step)
    result = np.ldexp(whole_numbers(np.ldexp(wide, -step), rounding), step)
    missing, infinite = np.isnan(wide), np.isinf(wide)
    if missing.any() and not target.has_nan:
        raise fail(f"data type '{target.name}' has no number for NaN")
    fits = (result >= target.low) & (result <= target.high) | missing
    if target.has_infinity:
        fits |= infinite
    out = ~fits
    if out.any():
        _check_out(numbers, out, target, out_of_range, fail)
        low, high = (-np.inf, np.inf) if target.has_infinity else (target.low, target.high)
        result[out] = np.where(result[out] > target.high, high, low)
    result[missing | infinite & fits] = wide[missing | infinite & fits]
    return target.make(result)
