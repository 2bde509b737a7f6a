"""``scale_offset``: stores ``(x - offset) * scale``, calculated in the data type.

Specification: zarr-extensions, "Scale_Offset codec". Names: ``scale_offset``.
Example: ``{"name": "scale_offset", "configuration": {"offset": 5, "scale": 0.1}}``.

Integer results are exact or an error: they never wrap around or lose a remainder. A finite floating point
number that encodes to infinity is also an error.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any

import numpy as np

from xzarr3._types import AnyArray
from xzarr3.codecs._casting import INTEGERS, NUMBERS
from xzarr3.codecs.base import ArrayArrayCodec, ChunkSpec
from xzarr3.dtypes import ZDType
from xzarr3.errors import ChunkDecodeError, ChunkEncodeError, MetadataError, shorten
from xzarr3.fields import Meta

_SCALAR = "a number, or the string that a fill value of the data type would be"
_Scalar = Annotated[int | float | str, Meta(description=_SCALAR)]


@dataclass(frozen=True)
class ScaleOffsetCodec(ArrayArrayCodec):
    """Subtracts an offset, then multiplies by a scale.

    Parameters
    ----------
    offset, scale : int, float or str
        Written like a fill value of the data type in a metadata document. The scale must not be 0.

    Examples
    --------
    >>> import xzarr3
    >>> scaled = xzarr3.codecs.ScaleOffsetCodec(offset=270, scale=10)
    >>> xzarr3.array([271.5, 273.0], filters=scaled)[...]
    array([271.5, 273. ])
    """

    name = "scale_offset"
    # Later revisions of the specification made both fields optional.
    offset: _Scalar = 0
    scale: _Scalar = 1

    def __post_init__(self) -> None:
        for field in ("offset", "scale"):
            if isinstance(value := getattr(self, field), np.generic):
                object.__setattr__(self, field, value.item())
        super().__post_init__()
        if self.scale == 0:
            raise self.wrong("scale", self.scale, "a number other than 0")

    def resolve(self, spec: ChunkSpec) -> ChunkSpec:
        self.require_data_type(spec, NUMBERS)
        _numbers(self, spec.data_type)
        return replace(spec, fill_value=self.encoded_fill_value(spec))

    def encode(self, array: AnyArray, spec: ChunkSpec) -> AnyArray:
        offset, scale = _numbers(self, spec.data_type)
        values = np.asarray(array, dtype=spec.dtype)
        if spec.dtype.kind != "f":
            info = np.iinfo(spec.dtype)  # type: ignore[type-var]
            ends = (
                sorted((-(-info.min // scale), info.max // scale))
                if scale > 0
                else sorted((-(-info.max // scale), info.min // scale))
            )
            self._check(values, ends[0] + offset, ends[1] + offset, ChunkEncodeError)
        with np.errstate(all="ignore"):
            result: AnyArray = (values - _wrapped(offset, values)) * _wrapped(scale, values)
        lost = np.isfinite(values) & ~np.isfinite(result)
        if lost.any():
            raise ChunkEncodeError(
                f"the result for {shorten(values[lost].flat[0])} would be infinite", codec=self.name
            )
        return result

    def decode(self, array: AnyArray, spec: ChunkSpec) -> AnyArray:
        offset, scale = _numbers(self, spec.data_type)
        values = np.asarray(array, dtype=spec.dtype)
        with np.errstate(all="ignore"):
            if spec.dtype.kind == "f":
                return np.asarray(values / scale + offset)
            quotient = values // _wrapped(scale, values)
            rest = np.asarray(quotient * _wrapped(scale, values) != values)
            if rest.any() and scale != -1:
                raise ChunkDecodeError(
                    f"{shorten(values[rest].flat[0])} is not a multiple of the scale {scale}", codec=self.name
                )
            info = np.iinfo(spec.dtype)  # type: ignore[type-var]
            ends = sorted((end - offset) * scale for end in (info.min, info.max))
            self._check(values, ends[0], ends[1], ChunkDecodeError)
            return np.asarray(quotient + _wrapped(offset, values))

    def _check(
        self, values: AnyArray, least: int, greatest: int, failure: type[ChunkEncodeError | ChunkDecodeError]
    ) -> None:
        """Refuse integers beyond these, so that the wrapping arithmetic of numpy is exact for the others."""
        for found in (int(values.min()), int(values.max())) if values.size else ():
            if not least <= found <= greatest:
                raise failure(
                    f"the result for {found} is out of the range of data type '{values.dtype}'",
                    codec=self.name,
                )


def _wrapped(number: Any, values: AnyArray) -> Any:
    """A number in the dtype of an array; integers beyond it wrap around."""
    return number if values.dtype.kind == "f" else np.array(number).astype(values.dtype)


@lru_cache(maxsize=128)
def _numbers(codec: ScaleOffsetCodec, data_type: ZDType) -> tuple[Any, Any]:
    """Offset and scale: integers of Python, or floating point numbers of the data type."""
    return _number(codec, "offset", data_type), _number(codec, "scale", data_type)


def _number(codec: ScaleOffsetCodec, field: str, data_type: ZDType) -> Any:
    value = getattr(codec, field)
    error = codec.wrong(
        field, value, f"a finite number of data type '{data_type.name}'{', not 0' * (field == 'scale')}"
    )
    is_integer = data_type.name in INTEGERS
    if is_integer and isinstance(value, float) and value.is_integer():
        value = int(value)
    try:
        scalar: Any = data_type.in_native_order().from_json_scalar(value, zarr_format=3)
    except MetadataError as cause:
        raise error from cause
    if not np.isfinite(scalar) or (field == "scale" and scalar == 0):
        raise error
    return int(scalar) if is_integer else scalar
