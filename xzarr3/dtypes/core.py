"""The core data types of Zarr version 3 and the fill values each one permits.

Specification: Zarr v3, "Data Types" (``bool``, ``int8`` ... ``uint64``, ``float16`` ... ``float64``,
``complex64``, ``complex128``, ``r<N>``), section "Permitted fill values".
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, ClassVar, Self, cast

import numpy as np

from xzarr3._types import JSON, Scalar
from xzarr3.dtypes.base import ZDType, require_v3
from xzarr3.errors import DataTypeValidationError, shorten


@dataclass(frozen=True)
class _Numeric(ZDType):
    """A data type that is one numpy scalar type and has a plain name."""

    _native: ClassVar[type[np.generic]]
    _permitted: ClassVar[str]
    _castable: ClassVar[str] = "biuf"  # Kinds of numpy dtypes whose values may be cast to this type.

    @classmethod
    def from_native_dtype(cls, dtype: np.dtype[np.generic]) -> Self:
        if dtype.newbyteorder("=") != np.dtype(cls._native):
            raise DataTypeValidationError(
                f"not a dtype of '{cls._zarr_v3_name}'", found=dtype, accepted=str(np.dtype(cls._native))
            )
        return cls()

    def to_native_dtype(self) -> np.dtype[np.generic]:
        return np.dtype(self._native)

    @classmethod
    def from_json(cls, data: JSON, *, zarr_format: int) -> Self:
        require_v3(zarr_format)
        if data != cls._zarr_v3_name:
            raise DataTypeValidationError(
                f"not the data type '{cls._zarr_v3_name}'", found=data, accepted=repr(cls._zarr_v3_name)
            )
        return cls()

    def to_json(self, zarr_format: int) -> JSON:
        require_v3(zarr_format)
        return self._zarr_v3_name

    def default_scalar(self) -> Scalar:
        return self._native()

    def _refused(self, data: object, reason: str = "fill value not permitted") -> DataTypeValidationError:
        return DataTypeValidationError(
            f"{reason} for data type '{self.name}'", found=data, accepted=self._permitted
        )

    def cast_scalar(self, data: object) -> Scalar:
        try:
            source = np.asarray(data)
            if source.dtype.kind == "O" and isinstance(data, int):
                source = np.asarray(float(data))  # Beyond the integers of numpy.
            if source.ndim != 0 or source.dtype.kind not in self._castable:
                raise TypeError("not a scalar, or not one of a type that can be cast")
            with np.errstate(all="ignore"):
                value: Any = source.astype(self._native)[()]
        except (TypeError, ValueError, OverflowError) as error:
            raise self._refused(data, "value cannot be held") from error
        if not self._holds(source, value):
            raise self._refused(data, "value cannot be held")
        return cast("Scalar", value)

    def _holds(self, source: np.ndarray[Any, Any], value: Scalar) -> bool:
        """Whether ``value`` says the same as ``source``, from which it was cast."""
        return bool(source == value)


class Bool(_Numeric):
    """``bool``: true or false, stored in one byte."""

    _zarr_v3_name = "bool"
    _native = np.bool_
    _permitted = "true or false"

    def from_json_scalar(self, data: JSON, *, zarr_format: int) -> Scalar:
        require_v3(zarr_format)
        if not isinstance(data, bool):
            raise self._refused(data)
        return np.bool_(data)

    def to_json_scalar(self, data: object, *, zarr_format: int) -> JSON:
        require_v3(zarr_format)
        return bool(self.cast_scalar(data))


class _Integer(_Numeric):
    def __init_subclass__(cls) -> None:
        bounds = np.iinfo(cls._native)  # type: ignore[type-var]
        cls._zarr_v3_name = np.dtype(cls._native).name
        cls._permitted = f"an integer from {bounds.min} to {bounds.max}, without fraction or exponent"

    def from_json_scalar(self, data: JSON, *, zarr_format: int) -> Scalar:
        require_v3(zarr_format)
        if not isinstance(data, int) or isinstance(data, bool):
            raise self._refused(data)
        bounds = np.iinfo(self._native)  # type: ignore[type-var]
        if not bounds.min <= data <= bounds.max:
            raise self._refused(data)
        return self._native(data)

    def to_json_scalar(self, data: object, *, zarr_format: int) -> JSON:
        require_v3(zarr_format)
        return int(self.cast_scalar(data))

    def cast_scalar(self, data: object) -> Scalar:
        if isinstance(data, int) and not isinstance(data, bool):
            return self.from_json_scalar(data, zarr_format=3)
        return super().cast_scalar(data)


class Int8(_Integer):
    """``int8``: integers from -2^7 to 2^7 - 1."""

    _native = np.int8


class Int16(_Integer):
    """``int16``: integers from -2^15 to 2^15 - 1."""

    _native = np.int16


class Int32(_Integer):
    """``int32``: integers from -2^31 to 2^31 - 1."""

    _native = np.int32


class Int64(_Integer):
    """``int64``: integers from -2^63 to 2^63 - 1."""

    _native = np.int64


class UInt8(_Integer):
    """``uint8``: integers from 0 to 2^8 - 1."""

    _native = np.uint8


class UInt16(_Integer):
    """``uint16``: integers from 0 to 2^16 - 1."""

    _native = np.uint16


class UInt32(_Integer):
    """``uint32``: integers from 0 to 2^32 - 1."""

    _native = np.uint32


class UInt64(_Integer):
    """``uint64``: integers from 0 to 2^64 - 1."""

    _native = np.uint64


_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _float_from_json(data: JSON, native: np.dtype[Any]) -> Scalar:
    """A floating point number from any of its permitted forms, or ValueError."""
    bits = np.dtype(f"u{native.itemsize}")
    if isinstance(data, str):
        if data == "NaN":
            return bits.type(_canonical_nan(native)).view(native)  # type: ignore[no-any-return]
        if data in _SPECIAL:
            return native.type(_SPECIAL[data])  # type: ignore[no-any-return]
        if re.fullmatch(rf"0x[0-9a-fA-F]{{{2 * native.itemsize}}}", data):
            return bits.type(int(data, 16)).view(native)  # type: ignore[no-any-return]
    elif isinstance(data, (int, float)) and not isinstance(data, bool):
        try:
            with np.errstate(over="ignore"):
                return native.type(data)  # type: ignore[no-any-return]
        except OverflowError as error:
            raise ValueError("the number is too large for a double") from error
    raise ValueError("neither a number nor a permitted string")


def _float_to_json(value: Any) -> JSON:
    if math.isfinite(value):
        return float(value)
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    bits = int(value.view(f"u{value.itemsize}"))
    return "NaN" if bits == _canonical_nan(value.dtype) else f"0x{bits:0{2 * value.itemsize}x}"


def _canonical_nan(native: np.dtype[Any]) -> int:
    """Bits of the NaN that ``"NaN"`` stands for: positive, only the top bit of the mantissa set."""
    mantissa = np.finfo(native).nmant
    exponent = 8 * native.itemsize - 1 - mantissa
    return ((1 << exponent) - 1) << mantissa | 1 << (mantissa - 1)


def _float_forms(size: int) -> str:
    return (
        f"a number, 'NaN', 'Infinity', '-Infinity' or '0x' and the {2 * size} hexadecimal digits of its bits"
    )


class _Float(_Numeric):
    def __init_subclass__(cls) -> None:
        native = np.dtype(cls._native)
        cls._zarr_v3_name = native.name
        cls._permitted = _float_forms(native.itemsize)

    def from_json_scalar(self, data: JSON, *, zarr_format: int) -> Scalar:
        require_v3(zarr_format)
        try:
            return _float_from_json(data, self.to_native_dtype())
        except ValueError as error:
            raise self._refused(data) from error

    def to_json_scalar(self, data: object, *, zarr_format: int) -> JSON:
        require_v3(zarr_format)
        return _float_to_json(self.cast_scalar(data))

    def cast_scalar(self, data: object) -> Scalar:
        if isinstance(data, self._native):
            return data
        if isinstance(data, str):
            return self.from_json_scalar(data, zarr_format=3)
        return super().cast_scalar(data)

    def _holds(self, source: np.ndarray[Any, Any], value: Scalar) -> bool:
        return not np.isinf(value) or bool(np.isinf(source))


class Float16(_Float):
    """``float16``: IEEE 754 half precision."""

    _native = np.float16


class Float32(_Float):
    """``float32``: IEEE 754 single precision."""

    _native = np.float32


class Float64(_Float):
    """``float64``: IEEE 754 double precision."""

    _native = np.float64


class _Complex(_Numeric):
    _part: ClassVar[np.dtype[Any]]
    _castable = "biufc"

    def __init_subclass__(cls) -> None:
        native = np.dtype(cls._native)
        cls._zarr_v3_name = native.name
        cls._part = np.dtype(f"f{native.itemsize // 2}")
        cls._permitted = f"an array of two parts, each {_float_forms(cls._part.itemsize)}"

    def from_json_scalar(self, data: JSON, *, zarr_format: int) -> Scalar:
        require_v3(zarr_format)
        if not isinstance(data, list) or len(data) != 2:
            raise self._refused(data)
        try:
            parts = [_float_from_json(part, self._part) for part in data]
        except ValueError as error:
            raise self._refused(data) from error
        # Viewing keeps the bits of each part; arithmetic would not keep NaN payloads and -0.0.
        return np.array(parts, dtype=self._part).view(self._native)[0]  # type: ignore[no-any-return]

    def to_json_scalar(self, data: object, *, zarr_format: int) -> JSON:
        require_v3(zarr_format)
        value: Any = self.cast_scalar(data)
        return [_float_to_json(value.real), _float_to_json(value.imag)]

    def cast_scalar(self, data: object) -> Scalar:
        if isinstance(data, self._native):
            return data
        if isinstance(data, list):
            return self.from_json_scalar(data, zarr_format=3)
        return super().cast_scalar(data)

    def _holds(self, source: np.ndarray[Any, Any], value: Scalar) -> bool:
        return not np.isinf(value) or bool(np.isinf(source))


class Complex64(_Complex):
    """``complex64``: two IEEE 754 single precision numbers."""

    _native = np.complex64


class Complex128(_Complex):
    """``complex128``: two IEEE 754 double precision numbers."""

    _native = np.complex128


@dataclass(frozen=True)
class RawBits(ZDType):
    """``r<N>``: N bits that mean nothing to Zarr, N a multiple of 8; numpy holds them as ``V<N/8>``.

    Parameters
    ----------
    bits : int
        Number of bits of one element.
    """

    bits: int
    _zarr_v3_name: ClassVar[str] = "r<N>"

    def __post_init__(self) -> None:
        if self.bits <= 0 or self.bits % 8:
            raise DataTypeValidationError(
                "raw bits come in whole bytes", found=self.name, accepted="'r' and a positive multiple of 8"
            )

    @property
    def name(self) -> str:
        return f"r{self.bits}"

    @classmethod
    def from_native_dtype(cls, dtype: np.dtype[np.generic]) -> Self:
        if dtype.kind != "V" or dtype.fields is not None or dtype.subdtype is not None or dtype.itemsize == 0:
            raise DataTypeValidationError("not raw bits", found=dtype, accepted="numpy's V1, V2, ...")
        return cls(8 * dtype.itemsize)

    def to_native_dtype(self) -> np.dtype[np.generic]:
        return np.dtype(f"V{self.bits // 8}")

    @classmethod
    def from_json(cls, data: JSON, *, zarr_format: int) -> Self:
        require_v3(zarr_format)
        if not isinstance(data, str) or not re.fullmatch(r"r[1-9][0-9]{0,8}", data):
            raise DataTypeValidationError(
                "not raw bits", found=data, accepted="'r' and a positive multiple of 8"
            )
        return cls(int(data[1:]))

    def to_json(self, zarr_format: int) -> JSON:
        require_v3(zarr_format)
        return self.name

    def default_scalar(self) -> Scalar:
        return np.void(bytes(self.item_size))

    def cast_scalar(self, data: object) -> Scalar:
        if isinstance(data, (np.void, bytes, bytearray)):
            raw = bytes(data)
            if len(raw) == self.item_size:
                return np.void(raw)
        elif isinstance(data, (int, np.integer)) and data == 0:
            return self.default_scalar()
        raise DataTypeValidationError(
            f"value cannot be held by data type '{self.name}'", found=data, accepted=f"{self.item_size} bytes"
        )

    def from_json_scalar(self, data: JSON, *, zarr_format: int) -> Scalar:
        require_v3(zarr_format)
        octets = data if isinstance(data, list) else []
        if len(octets) != self.item_size or not all(type(o) is int and 0 <= o <= 255 for o in octets):
            raise DataTypeValidationError(
                f"fill value not permitted for data type '{self.name}'",
                found=shorten(data),
                accepted=f"an array of {self.item_size} integers from 0 to 255",
            )
        return np.void(bytes(octets))  # type: ignore[arg-type]

    def to_json_scalar(self, data: object, *, zarr_format: int) -> JSON:
        require_v3(zarr_format)
        return list(bytes(self.cast_scalar(data)))


CORE_TYPES: tuple[type[ZDType], ...] = (
    Bool, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64,
    Float16, Float32, Float64, Complex64, Complex128, RawBits,
)  # fmt: skip
