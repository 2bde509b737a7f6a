"""The core data types, and the fill values that each one permits.

Specification: Zarr v3, "Data Types" (``bool``, ``int8`` ... ``uint64``, ``float16`` ... ``float64``,
``complex64``, ``complex128``), section "Permitted fill values"; zarr-extensions,
``complex_float32`` and ``complex_float64``, which are other names of the two complex types. Version 2 uses
the names of numpy (``|b1``, ``<i2``, ``>f8``, ``<c16``) and cannot express the bits of a NaN.

Fill values of version 2 come from many writers. So other forms are also read there if they have only one
meaning: 0 and 1 for truth values, ``1.0`` for integers, strings for numbers, a number for a complex one.
"""

from __future__ import annotations

import re
import sys
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, TypeGuard, cast

import numpy as np

from xzarr3._types import JSON, AnyArray, Scalar
from xzarr3.dtypes.base import Endianness, ZDType, has_lost_digits, unmasked
from xzarr3.dtypes.numbers import (
    converted,
    float_from_json,
    float_to_json,
    form_of,
    from_digits,
    swapped,
    to_digits,
    widened,
)
from xzarr3.dtypes.specs import ZarrFormat, native_v2, spelling_of
from xzarr3.errors import DataTypeValidationError, UnknownExtensionError


class NumpyNamed(ZDType[np.dtype[Any], Any]):
    """A data type that has numpy's name in version 2."""

    _numpy_names: ClassVar[str | None] = None
    """Some of these names, for error messages."""

    @classmethod
    def _from_json_v2(cls, data: Any) -> Self:
        dtype = native_v2(data)
        if dtype is None or not cls._check_native_dtype(dtype):
            raise DataTypeValidationError(
                f"not the data type '{cls._zarr_v3_name}'", found=data, accepted=cls._numpy_names
            )
        return cls.from_native_dtype(dtype)

    def _to_json_v2(self) -> Any:
        return {"name": self._dtype.str, "object_codec_id": None}


class PlainlyNamed(ZDType[Any, Any]):
    """A data type that version 3 describes by its name alone."""

    @classmethod
    def _from_json_v3(cls, data: Any) -> Self:
        if cls._configuration_v3(data):
            name = cls._zarr_v3_name
            raise UnknownExtensionError(
                f"data type '{name}' has no configuration", found=data, accepted=repr(name)
            )
        return cls()

    def _to_json_v3(self) -> Any:
        return self._zarr_v3_name


@dataclass(frozen=True)
class Ordered(ZDType[np.dtype[Any], Any]):
    """A data type with a byte order.

    Parameters
    ----------
    endianness : {"little", "big"}
        Byte order; by default that of this machine.
    """

    endianness: Endianness = field(default=sys.byteorder, kw_only=True)

    def __post_init__(self) -> None:
        if self.endianness not in ("little", "big"):
            raise DataTypeValidationError(
                f"not a byte order of data type '{self._zarr_v3_name}'",
                field="endianness",
                found=self.endianness,
                accepted="'little', 'big'",
            )
        super().__post_init__()

    def in_byte_order(self, order: Endianness) -> Self:
        return self if order == self.endianness else replace(self, endianness=order)

    def _ordered(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """A dtype, given in the byte order of this machine, converted to that of this type."""
        return dtype if self.endianness == sys.byteorder else dtype.newbyteorder("S")

    def _in_order(self, array: AnyArray) -> AnyArray:
        """An array, given in the byte order of this machine, converted to that of this type."""
        return array if self.endianness == sys.byteorder else swapped(array).view(self._dtype)


def order_of(dtype: np.dtype[Any]) -> Endianness:
    """The byte order of a dtype that has one."""
    if dtype.byteorder == "=":
        return sys.byteorder
    return "big" if dtype.byteorder == ">" else "little"


class _Numeric(NumpyNamed, PlainlyNamed):
    """A data type with a numpy scalar type."""

    _type: ClassVar[type[np.generic]]

    def __init_subclass__(cls, *, of: type[np.generic] | None = None) -> None:
        super().__init_subclass__()
        if of is not None:
            native = np.dtype(of)
            cls._type, cls.dtype_cls, cls._zarr_v3_name = of, type(native), native.name
            cls._permitted = cls._forms(native)

    @classmethod
    @abstractmethod
    def _forms(cls, native: np.dtype[Any]) -> str:
        """The forms of fill values, for error messages."""

    def _to_json_draft(self) -> Any:
        return self._zarr_v3_name

    _castable: ClassVar[str] = "biuf"  # kinds of numpy dtypes whose values may be cast to this type

    @classmethod
    def _check_native_dtype(cls, dtype: np.dtype[Any]) -> bool:
        wanted = np.dtype(cls._type)
        return dtype.kind == wanted.kind and dtype.itemsize == wanted.itemsize

    @classmethod
    def from_native_dtype(cls, dtype: np.dtype[Any]) -> Self:
        cls._require_dtype(dtype, str(np.dtype(cls._type)))
        return cls(endianness=order_of(dtype)) if issubclass(cls, Ordered) else cls()

    def to_native_dtype(self) -> np.dtype[Any]:
        return np.dtype(self._type)

    def default_scalar(self) -> Scalar:
        return self._type()

    def cast_scalar(self, data: object) -> Scalar:
        try:
            source = widened(np.asarray(data))
            if source.dtype.kind == "O" and isinstance(data, int):
                source = np.asarray(float(data))  # larger than any integer of numpy
            if source.ndim != 0 or source.dtype.kind not in self._castable:
                raise TypeError("not a scalar, or not one of a type that can be cast")
            value, lost = converted(source, np.dtype(self._type))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise self._refused(data, "value cannot be held") from error
        if lost.any():
            raise self._refused(data, "value cannot be held")
        return cast("Scalar", value[()])

    def cast_array(self, values: Any) -> AnyArray:
        given, dtype = unmasked(values, self), self._dtype
        if given.dtype == dtype:
            return given
        if dtype.kind in "iu" and has_lost_digits(values, given):
            items = [self.cast_scalar(item) for item in np.asarray(values, object).flat]
            return np.array(items, dtype).reshape(given.shape)
        given = widened(given)
        if given.dtype.kind not in "biufc":
            raise self._cannot_hold(given)
        result, lost = converted(given, dtype)
        if lost.any():
            raise self._cannot_hold(given, found=given[lost].flat[0])
        return result


class _OrderedNumeric(_Numeric, Ordered):
    def to_native_dtype(self) -> np.dtype[Any]:
        return self._ordered(np.dtype(self._type))


class Bool(_Numeric, of=np.bool_):
    """``bool``: true or false, stored in one byte.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.empty(3, dtype="bool").zdtype
    Bool()
    """

    @classmethod
    def _forms(cls, native: np.dtype[Any]) -> str:
        return "true or false"

    def from_json_scalar(self, data: JSON, *, zarr_format: ZarrFormat) -> Scalar:
        old = spelling_of(zarr_format).old_fills
        if isinstance(data, bool) or (old and type(data) is int and data in (0, 1)):
            return np.bool_(data)
        raise self._refused(data)

    def to_json_scalar(self, data: object, *, zarr_format: ZarrFormat) -> Any:
        spelling_of(zarr_format)
        return bool(self.cast_scalar(data))


_INTEGER = re.compile(r"[-+]?[0-9]{1,20}")


class _Integer(_Numeric):
    @classmethod
    def _forms(cls, native: np.dtype[Any]) -> str:
        bounds = np.iinfo(native)
        return f"an integer from {bounds.min} to {bounds.max}, without fraction or exponent"

    def from_json_scalar(self, data: JSON, *, zarr_format: ZarrFormat) -> Scalar:
        spelling = spelling_of(zarr_format)
        if spelling.digits and (scalar := from_digits(data, np.dtype(self._type))) is not None:
            return scalar
        number = data
        is_text = isinstance(data, str) and _INTEGER.fullmatch(data) is not None
        if spelling.old_fills and (is_text or (isinstance(data, float) and data.is_integer())):
            number = int(data)  # type: ignore[arg-type]
        bounds = np.iinfo(self._type)  # type: ignore[type-var]
        is_integer = isinstance(number, int) and not isinstance(number, bool)
        if not is_integer or not bounds.min <= number <= bounds.max:  # type: ignore[operator]
            raise self._refused(data)
        return self._type(number)

    def to_json_scalar(self, data: object, *, zarr_format: ZarrFormat) -> Any:
        spelling_of(zarr_format)
        return int(self.cast_scalar(data))

    def cast_scalar(self, data: object) -> Scalar:
        if isinstance(data, int) and not isinstance(data, bool):
            return self.from_json_scalar(data, zarr_format=3)
        return super().cast_scalar(data)


class _OrderedInteger(_OrderedNumeric, _Integer):
    pass


class Int8(_Integer, of=np.int8):
    """``int8``: integers from -2^7 to 2^7 - 1.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.empty(3, dtype="int8").zdtype
    Int8()
    """


class Int16(_OrderedInteger, of=np.int16):
    """``int16``: integers from -2^15 to 2^15 - 1.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.empty(3, dtype="int16").zdtype
    Int16(endianness='little')
    """


class Int32(_OrderedInteger, of=np.int32):
    """``int32``: integers from -2^31 to 2^31 - 1.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.empty(3, dtype="int32").zdtype
    Int32(endianness='little')
    """


class Int64(_OrderedInteger, of=np.int64):
    """``int64``: integers from -2^63 to 2^63 - 1.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.empty(3, dtype="int64").zdtype
    Int64(endianness='little')
    """


class UInt8(_Integer, of=np.uint8):
    """``uint8``: integers from 0 to 2^8 - 1.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.empty(3, dtype="uint8").zdtype
    UInt8()
    """


class UInt16(_OrderedInteger, of=np.uint16):
    """``uint16``: integers from 0 to 2^16 - 1.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.empty(3, dtype="uint16").zdtype
    UInt16(endianness='little')
    """


class UInt32(_OrderedInteger, of=np.uint32):
    """``uint32``: integers from 0 to 2^32 - 1.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.empty(3, dtype="uint32").zdtype
    UInt32(endianness='little')
    """


class UInt64(_OrderedInteger, of=np.uint64):
    """``uint64``: integers from 0 to 2^64 - 1.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.empty(3, dtype="uint64").zdtype
    UInt64(endianness='little')
    """


def _float_forms(size: int) -> str:
    return (
        f"a number, 'NaN', 'Infinity', '-Infinity' or '0x' and the {2 * size} hexadecimal digits of its bits"
    )


class _Float(_OrderedNumeric):
    @classmethod
    def _forms(cls, native: np.dtype[Any]) -> str:
        return _float_forms(native.itemsize)

    def from_json_scalar(self, data: JSON, *, zarr_format: ZarrFormat) -> Scalar:
        spelling = spelling_of(zarr_format)
        try:
            return float_from_json(data, form_of(np.dtype(self._type)), spelling)
        except ValueError as error:
            raise self._refused(data) from error

    def to_json_scalar(self, data: object, *, zarr_format: ZarrFormat) -> Any:
        return float_to_json(self.cast_scalar(data), form_of(np.dtype(self._type)), spelling_of(zarr_format))

    def cast_scalar(self, data: object) -> Scalar:
        if isinstance(data, self._type):
            return data
        if isinstance(data, str):
            return self.from_json_scalar(data, zarr_format=3)
        return super().cast_scalar(data)


class Float16(_Float, of=np.float16):
    """``float16``: IEEE 754 half precision.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.empty(3, dtype="float16").zdtype
    Float16(endianness='little')
    """


class Float32(_Float, of=np.float32):
    """``float32``: IEEE 754 single precision.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.empty(3, dtype="float32").zdtype
    Float32(endianness='little')
    """


class Float64(_Float, of=np.float64):
    """``float64``: IEEE 754 double precision.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.empty(3, dtype="float64").zdtype
    Float64(endianness='little')
    """


class _Complex(_OrderedNumeric):
    _castable = "biufc"

    @classmethod
    def _forms(cls, native: np.dtype[Any]) -> str:
        return f"an array of two parts, each {_float_forms(native.itemsize // 2)}"

    @property
    def _part(self) -> np.dtype[Any]:
        """The dtype of the parts, in the byte order of this machine."""
        return np.dtype(f"f{self.item_size // 2}")

    def from_json_scalar(self, data: JSON, *, zarr_format: ZarrFormat) -> Scalar:
        spelling = spelling_of(zarr_format)
        if spelling.digits and (scalar := from_digits(data, np.dtype(self._type))) is not None:
            return scalar
        parts: JSON = [data, 0.0] if spelling.old_fills and isinstance(data, (int, float)) else data
        if not isinstance(parts, list) or len(parts) != 2:
            raise self._refused(data)
        try:
            numbers = [float_from_json(part, form_of(self._part), spelling) for part in parts]
        except ValueError as error:
            raise self._refused(data) from error
        # A view keeps the bits of each part; arithmetic would lose NaN payloads and -0.0.
        return np.array(numbers, dtype=self._part).view(self._type)[0]  # type: ignore[no-any-return]

    def to_json_scalar(self, data: object, *, zarr_format: ZarrFormat) -> Any:
        spelling = spelling_of(zarr_format)
        value: Any = self.cast_scalar(data)
        if spelling.digits:
            return to_digits(value, np.dtype(self._type))
        return [float_to_json(part, form_of(self._part), spelling) for part in (value.real, value.imag)]

    def cast_scalar(self, data: object) -> Scalar:
        if isinstance(data, self._type):
            return data
        if isinstance(data, list):
            return self.from_json_scalar(data, zarr_format=3)
        return super().cast_scalar(data)


class Complex64(_Complex, of=np.complex64):
    """``complex64``, ``complex_float32``: two IEEE 754 single precision numbers.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.empty(3, dtype="complex64").zdtype
    Complex64(endianness='little')
    """

    _zarr_v3_aliases = ("complex_float32",)


class Complex128(_Complex, of=np.complex128):
    """``complex128``, ``complex_float64``: two IEEE 754 double precision numbers.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.empty(3, dtype="complex128").zdtype
    Complex128(endianness='little')
    """

    _zarr_v3_aliases = ("complex_float64",)


CORE_TYPES: tuple[type[ZDType], ...] = (
    Bool, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64, Float16, Float32, Float64, Complex64,
    Complex128,
)  # fmt: skip
"""The data types that every version of the format has."""

MAX_ITEM_SIZE = 10**9 // 8
"""Largest element of fixed size in bytes. Without a limit, a document alone could fill the memory."""


def is_integer(data: object) -> TypeGuard[int]:
    """Whether ``data`` is an integer, not a truth value or a duration; numpy's durations are integers."""
    return isinstance(data, (int, np.integer)) and not isinstance(data, (bool, np.timedelta64))
