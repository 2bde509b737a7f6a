"""``scale_offset``: stores ``(x - offset) * scale``, calculated in the data type.

Specification: zarr-extensions, "Scale_Offset codec". Names: ``scale_offset``.
Example: ``{"name": "scale_offset", "configuration": {"offset": 5, "scale": 0.1}}``.

Integer results are exact or an error: they never wrap around or lose a remainder. A finite floating point
number that encodes to infinity is also an error.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from xzarr3._types import AnyArray
from xzarr3.codecs import _casting
from xzarr3.codecs._casting import Fail, Number
from xzarr3.codecs._fill import encoded_fill_value
from xzarr3.codecs.base import ArrayArrayCodec, ChunkSpec, Configuration, ParameterCodec, parameter
from xzarr3.dtypes import ZDType
from xzarr3.errors import ChunkDecodeError, ChunkEncodeError, MetadataError, listed, shorten

_SCALAR = "a number, or the string that a fill value of the data type would be"


@dataclass(frozen=True)
class ScaleOffsetCodec(ParameterCodec, ArrayArrayCodec):
    """Subtracts an offset, then multiplies by a scale.

    Parameters
    ----------
    offset, scale : int, float or str
        Written like a fill value of the data type in a metadata document. The scale must not be 0.
    """

    name = "scale_offset"
    # Later revisions of the specification made both fields optional.
    offset: int | float | str = parameter(Configuration.take, _SCALAR, default=0)
    scale: int | float | str = parameter(Configuration.take, _SCALAR, default=1)

    def __post_init__(self) -> None:
        for field in ("offset", "scale"):
            value = getattr(self, field)
            if isinstance(value, np.generic):
                value = value.item()
                object.__setattr__(self, field, value)
            if isinstance(value, bool) or not isinstance(value, (int, float, str)):
                raise Configuration(self.name, {}).error(field, value, _SCALAR)
        if self.scale == 0:
            raise Configuration(self.name, {}).error("scale", self.scale, "a number other than 0")

    def resolve(self, spec: ChunkSpec) -> ChunkSpec:
        if spec.data_type.name not in _casting.REAL:
            raise MetadataError(
                f"codec '{self.name}' cannot scale data type '{spec.data_type.name}'",
                found=self.name,
                accepted=f"data types {listed(_casting.REAL)}",
            )
        _bound(self, spec.data_type)
        return replace(spec, fill_value=encoded_fill_value(self, spec))

    def encode(self, array: AnyArray, spec: ChunkSpec) -> AnyArray:
        return _bound(self, spec.data_type).encode(np.atleast_1d(array)).reshape(spec.shape)

    def decode(self, array: AnyArray, spec: ChunkSpec) -> AnyArray:
        return _bound(self, spec.data_type).decode(np.atleast_1d(array)).reshape(spec.shape)


@lru_cache(maxsize=128)
def _bound(codec: ScaleOffsetCodec, data_type: ZDType) -> _Integers | _Floats:
    """The arithmetic of the codec for elements of a data type."""
    number = _casting.number_of(data_type)
    if number is None:
        raise TypeError(f"not a number: '{data_type.name}'")
    scalars = [_scalar(codec, field, data_type, number) for field in ("offset", "scale")]
    return _Integers(number, *map(int, scalars)) if number.is_integer else _Floats(number, *scalars)


def _scalar(codec: ScaleOffsetCodec, field: str, data_type: ZDType, number: Number) -> Any:
    value = getattr(codec, field)
    error = Configuration(codec.name, {}).error(
        field, value, f"a finite number of data type '{data_type.name}'{', not 0' * (field == 'scale')}"
    )
    if number.is_integer and isinstance(value, float) and value.is_integer():
        value = int(value)
    try:
        scalar = data_type.in_native_order().from_json_scalar(value, zarr_format=3)
    except MetadataError as cause:
        raise error from cause
    plain = number.read(np.asarray(scalar))
    if not np.isfinite(plain) or (field == "scale" and plain == 0):
        raise error
    return scalar


def _encoding(reason: str) -> ChunkEncodeError:
    return ChunkEncodeError(reason, codec=ScaleOffsetCodec.name)


def _decoding(reason: str) -> ChunkDecodeError:
    return ChunkDecodeError(reason, codec=ScaleOffsetCodec.name)


@dataclass(frozen=True)
class _Integers:
    """Arithmetic of integers. Checks the range first, so that the wrapping arithmetic of numpy is exact."""

    number: Number
    offset: int
    scale: int

    def encode(self, array: AnyArray) -> AnyArray:
        values = self.number.read(array)
        low, high = int(self.number.low), int(self.number.high)
        if self.scale > 0:
            least, greatest = -(-low // self.scale), high // self.scale
        else:
            least, greatest = -(-high // self.scale), low // self.scale
        self._check(values, least + self.offset, greatest + self.offset, _encoding)
        wrapped = values.dtype.type
        with np.errstate(all="ignore"):
            offset, scale = (np.array(n).astype(wrapped) for n in (self.offset, self.scale))
            return self.number.make((values - offset) * scale)

    def decode(self, array: AnyArray) -> AnyArray:
        values = self.number.read(array)
        with np.errstate(all="ignore"):
            offset, scale = (np.array(n).astype(values.dtype) for n in (self.offset, self.scale))
            quotient = values // scale
            if self.scale not in (1, -1):
                rest = quotient * scale != values
                if rest.any():
                    raise _decoding(
                        f"{shorten(values[rest].flat[0])} is not a multiple of the scale {self.scale}"
                    )
            ends = [(int(end) - self.offset) * self.scale for end in (self.number.low, self.number.high)]
            self._check(values, min(ends), max(ends), _decoding)
            return self.number.make(quotient + offset)

    def _check(self, values: AnyArray, least: int, greatest: int, fail: Fail) -> None:
        if values.size == 0:
            return
        for found in (int(values.min()), int(values.max())):
            if not least <= found <= greatest:
                raise fail(f"the result for {found} is out of the range of data type '{self.number.name}'")


@dataclass(frozen=True)
class _Floats:
    """Arithmetic of floating point numbers. Rounds each result to the data type."""

    number: Number
    offset: Any
    scale: Any

    def encode(self, array: AnyArray) -> AnyArray:
        values = np.asarray(array, dtype=self.number.dtype)
        with np.errstate(all="ignore"):
            if self._is_wide:
                result: AnyArray = (values - self.offset) * self.scale
                lost = np.isfinite(values) & ~np.isfinite(result)
                if lost.any():
                    raise _encoding(f"the result for {shorten(values[lost].flat[0])} would be infinite")
                return result
            less = self._rounded(self._wide(values) - self._wide(self.offset), _encoding)
            return self._rounded(self._wide(less) * self._wide(self.scale), _encoding)

    def decode(self, array: AnyArray) -> AnyArray:
        values = np.asarray(array, dtype=self.number.dtype)
        with np.errstate(all="ignore"):
            if self._is_wide:
                result: AnyArray = values / self.scale + self.offset
                return result
            quotient = self._rounded(self._wide(values) / self._wide(self.scale), _decoding)
            return self._rounded(self._wide(quotient) + self._wide(self.offset), _decoding)

    @property
    def _is_wide(self) -> bool:
        """Whether numpy itself can calculate in the data type."""
        return self.number.dtype.type.__module__ == "numpy"

    def _wide(self, values: Any) -> AnyArray:
        """Numbers as doubles: rounding their sum, product or quotient again gives the correct result."""
        return self.number.read(np.asarray(values)).astype(np.float64)

    def _rounded(self, wide: AnyArray, fail: Fail) -> AnyArray:
        return _casting.rounded(wide, self.number, "nearest-even", None, fail)
