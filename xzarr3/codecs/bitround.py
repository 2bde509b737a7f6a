"""``bitround``: rounds numbers to some bits, so that they compress better.

Specification: zarr-extensions, "bitround codec". Names: ``bitround``. ``numcodecs.bitround``, which rounds
floating point numbers only, is a separate class.
Example: ``{"name": "bitround", "configuration": {"keepbits": 10}}``.

Rounding goes to the nearest number, and to the even one of two equally near. NaN and infinity do not change.
A number that would round to more than its type can hold is truncated instead. Negative integers are rounded
by their magnitude.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from xzarr3._types import AnyArray
from xzarr3.codecs._fill import encoded_fill_value
from xzarr3.codecs.base import ArrayArrayCodec, ChunkSpec, Configuration, ParameterCodec, parameter
from xzarr3.errors import MetadataError, listed

_MANTISSA = {
    "float16": 10, "float32": 23, "float64": 52, "bfloat16": 7,
    "complex64": 23, "complex128": 52, "complex_float16": 10, "complex_bfloat16": 7,
}  # fmt: skip
"""Bits of the mantissa of a number, or of each part of a complex number, without the implied bit."""
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_TIMES = ("numpy.datetime64", "numpy.timedelta64")


@dataclass(frozen=True)
class BitRoundCodec(ParameterCodec, ArrayArrayCodec):
    """Rounds numbers to some bits.

    Parameters
    ----------
    keepbits : int
        How many bits are kept: bits of the mantissa of a floating point number, or bits of an integer,
        counted from its most significant bit that is set.
    """

    name = "bitround"
    keepbits: int = parameter(Configuration.integer, 1, 2**32 - 1)

    def resolve(self, spec: ChunkSpec) -> ChunkSpec:
        names = (*_MANTISSA, *_INTEGERS, *_TIMES)
        if spec.data_type.name not in names:
            raise MetadataError(
                f"codec '{self.name}' cannot round data type '{spec.data_type.name}'",
                found=self.name,
                accepted=f"data types {listed(names)}",
            )
        return replace(spec, fill_value=encoded_fill_value(self, spec))

    def encode(self, array: AnyArray, spec: ChunkSpec) -> AnyArray:
        values = np.ascontiguousarray(array, dtype=spec.dtype)
        mantissa = _MANTISSA.get(spec.data_type.name)
        if mantissa is not None:
            part = spec.dtype.itemsize // (2 if spec.data_type.name.startswith("complex") else 1)
            bits = values.reshape(-1).view(f"u{part}")
            rounded: AnyArray = rounded_mantissas(bits, self.keepbits, mantissa)
        else:
            kind = "u" if spec.dtype.kind == "u" else "i"
            rounded = rounded_integers(values.reshape(-1).view(f"{kind}{spec.dtype.itemsize}"), self.keepbits)
        return rounded.view(spec.dtype).reshape(spec.shape)

    def decode(self, array: AnyArray, spec: ChunkSpec) -> AnyArray:
        return array


def rounded_mantissas(bits: npt.NDArray[Any], keep: int, mantissa: int) -> npt.NDArray[Any]:
    """Round floating point numbers, given as unsigned integers, to ``keep`` bits of the mantissa.

    Examples
    --------
    >>> bits = np.array([0.1, 123.4, 1234.5, np.nan], "f4").view("u4")
    >>> rounded_mantissas(bits, 3, 23).view("f4").tolist()
    [0.1015625, 120.0, 1280.0, nan]
    """
    drop = mantissa - keep
    if drop <= 0:
        return bits
    number = bits.dtype.type
    low = number((1 << drop) - 1)
    special = number((1 << (8 * bits.dtype.itemsize - 1)) - (1 << mantissa))  # all bits of the exponent
    odd = (bits >> number(drop)) & number(1)
    rounded: npt.NDArray[Any] = (bits + (odd + (low >> number(1)))) & ~low
    if not ((bits & special) >= special - number(1 << mantissa)).any():
        return rounded
    beyond = (rounded & special) == special
    kept = (bits & special) == special
    return np.where(kept, bits, np.where(beyond, bits & ~low, rounded))


def rounded_integers(values: npt.NDArray[Any], keep: int) -> npt.NDArray[Any]:
    """Round integers to ``keep`` bits, counted from the most significant bit of their magnitude.

    Examples
    --------
    >>> rounded_integers(np.array([11, 123, 209, 255], "u1"), 3).tolist()
    [12, 128, 224, 224]
    """
    width = 8 * values.dtype.itemsize
    if keep >= width:
        return values
    signed = values.dtype.kind == "i"
    size = magnitudes(values)
    number = size.dtype.type
    drop = np.maximum(bit_lengths(size) - keep, 0).astype(size.dtype)
    one = number(1)
    half = (one << drop) >> one
    odd = (size >> drop) & one & (half != 0)
    rounded = size + (odd + np.maximum(half, one) - one)
    rounded = np.where(rounded < size, size, rounded) >> drop << drop
    rounded = np.where(rounded > number(np.iinfo(values.dtype).max), size >> drop << drop, rounded)
    result: npt.NDArray[Any] = np.where(values < 0, ~rounded + one, rounded) if signed else rounded
    return result.view(values.dtype)


def magnitudes(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Absolute values as unsigned integers, which can also hold that of the least integer."""
    size = values.view(f"u{values.dtype.itemsize}")
    return size if values.dtype.kind == "u" else np.where(values < 0, ~size + size.dtype.type(1), size)


def bit_lengths(sizes: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """How many bits each integer needs; all are at least 0.

    Examples
    --------
    >>> bit_lengths(np.array([0, 1, 255, 2**53 + 1, 2**64 - 1], "u8")).tolist()
    [0, 1, 8, 54, 64]
    """
    if sizes.dtype.itemsize <= 4:
        return np.frexp(sizes.astype(np.float64))[1]
    upper, lower = sizes >> np.uint64(32), sizes & np.uint64(2**32 - 1)
    return np.where(
        upper != 0, 32 + np.frexp(upper.astype(np.float64))[1], np.frexp(lower.astype(np.float64))[1]
    )
