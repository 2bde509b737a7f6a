"""``bitround``: rounds floating point numbers to some bits of the mantissa, so that they compress better.

Specification: zarr-extensions, "bitround codec". Names: ``bitround``. ``numcodecs.bitround``, which knows no
``bfloat16``, is a separate class.
Example: ``{"name": "bitround", "configuration": {"keepbits": 10}}``.

Rounding goes to the nearest number, and to the even one of two equally near. NaN and infinity do not change.
A number that would round to more than its type can hold is truncated instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from xzarr3._types import AnyArray
from xzarr3.codecs.base import ArrayArrayCodec, ChunkSpec
from xzarr3.fields import Meta

MANTISSA = {"float16": 10, "float32": 23, "float64": 52, "bfloat16": 7}
"""Bits of the mantissa, without the implied one."""


@dataclass(frozen=True)
class BitRoundCodec(ArrayArrayCodec):
    """Rounds floating point numbers to some bits.

    Parameters
    ----------
    keepbits : int
        How many bits of the mantissa are kept.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.array([1.2345, 6.789], filters=xzarr3.codecs.BitRoundCodec(keepbits=3))[...]
    array([1.25, 7.  ])
    """

    name = "bitround"
    keepbits: Annotated[int, Meta(ge=1, le=2**32 - 1)]

    def resolve(self, spec: ChunkSpec) -> ChunkSpec:
        self.require_data_type(spec, MANTISSA)
        return replace(spec, fill_value=self.encoded_fill_value(spec))

    def encode(self, array: AnyArray, spec: ChunkSpec) -> AnyArray:
        values = np.ascontiguousarray(array, dtype=spec.dtype)
        bits = values.reshape(-1).view(f"u{spec.dtype.itemsize}")
        rounded = _rounded(bits, self.keepbits, MANTISSA[spec.data_type.name])
        return rounded.view(spec.dtype).reshape(spec.shape)

    def decode(self, array: AnyArray, spec: ChunkSpec) -> AnyArray:
        return array


def _rounded(bits: npt.NDArray[Any], keep: int, mantissa: int) -> npt.NDArray[Any]:
    """Round floating point numbers, given as unsigned integers, to ``keep`` bits of the mantissa.

    Examples
    --------
    >>> bits = np.array([0.1, 123.4, 1234.5, np.nan], "f4").view("u4")
    >>> _rounded(bits, 3, 23).view("f4").tolist()
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
