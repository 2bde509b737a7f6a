"""Numbers of few bits, from the package ml_dtypes: ``int4``, ``bfloat16``, ``float8_e5m2`` and others.

An element of less than a byte is stored in the lower bits of a byte; the upper bits mean nothing. Complex
numbers of such parts are not supported. ml_dtypes is optional and is imported only when such a type is used.

Specification: zarr-extensions, a document for each name. ``float8_e4m3fn`` has no document there; TensorStore
uses this name. Version 2 uses the same names, as in TensorStore.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, ClassVar, Self, cast

import numpy as np

from xzarr3._types import JSON, AnyArray
from xzarr3.dtypes.base import ZDType, unmasked
from xzarr3.dtypes.core import Ordered, PlainlyNamed, order_of
from xzarr3.dtypes.numbers import FloatForm, converted, float_from_json, float_to_json, native_order, widened
from xzarr3.dtypes.specs import ZarrFormat, check_dtype_spec_no_object_codec_v2, spelling_of
from xzarr3.errors import DataTypeValidationError, UnknownExtensionError


class _NativeClass:
    """The class of the numpy dtype. Reading it imports ml_dtypes."""

    def __get__(self, instance: object, owner: type[_Small]) -> type[np.dtype[Any]]:
        return type(owner._machine())


class _Small(PlainlyNamed):
    """A data type of ml_dtypes; it has the same name in versions 2 and 3."""

    dtype_cls = _NativeClass()
    _listed: ClassVar[bool] = False

    @classmethod
    def _machine(cls) -> np.dtype[Any]:
        """The dtype in the byte order of this machine.

        Raises
        ------
        UnknownExtensionError
            If ml_dtypes is not installed or too old.
        """
        name = cls._zarr_v3_name
        try:
            import ml_dtypes

            dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
            return dtype
        except (ImportError, AttributeError) as error:
            raise UnknownExtensionError(
                f"data type '{cls._zarr_v3_name}' needs the package ml_dtypes with '{name}': {error}",
                found=cls._zarr_v3_name,
                advice="install it with pip install 'xzarr3[ml-dtypes]'",
            ) from error

    def __post_init__(self) -> None:
        self._machine()
        super().__post_init__()

    @classmethod
    def _check_native_dtype(cls, dtype: np.dtype[Any]) -> bool:
        return (
            dtype.type.__module__ == "ml_dtypes"
            and dtype.type.__name__ == cls._zarr_v3_name
            and type(dtype) is cls.dtype_cls
        )

    @classmethod
    def from_native_dtype(cls, dtype: np.dtype[Any]) -> Self:
        cls._require_dtype(dtype)
        return cls(endianness=order_of(dtype)) if issubclass(cls, Ordered) else cls()

    def to_native_dtype(self) -> np.dtype[Any]:
        machine = self._machine()
        return self._ordered(machine) if isinstance(self, Ordered) else machine

    def default_scalar(self) -> Any:
        return self._scalar(bytes(self.item_size))

    def _scalar(self, raw: bytes) -> Any:
        """The scalar with these bytes, which are in the byte order of this machine."""
        return np.frombuffer(raw, self._machine())[0]

    def cast_scalar(self, data: object) -> Any:
        if isinstance(data, str):
            return self.from_json_scalar(data, zarr_format=3)
        try:
            given = unmasked(data, self)
            if given.ndim:
                raise ValueError("not a scalar")
            return native_order(self.cast_array(given))[()]
        except ValueError as error:
            raise self._refused(data, "value cannot be held") from error

    def bits(self, scalar: Any) -> bytes:
        return np.asarray(scalar, dtype=self._machine()).tobytes()

    @classmethod
    def _from_json_v2(cls, data: Any) -> Self:
        if not check_dtype_spec_no_object_codec_v2(data) or data["name"] != cls._zarr_v3_name:
            raise DataTypeValidationError(
                f"not the data type '{cls._zarr_v3_name}'", found=data, accepted=repr(cls._zarr_v3_name)
            )
        # The name has no byte order; little endian is usual.
        return cls(endianness="little") if issubclass(cls, Ordered) else cls()

    def _to_json_v2(self) -> Any:
        if self.byte_order == "big":
            raise DataTypeValidationError(
                f"Zarr format 2 cannot express the byte order of data type '{self.name}'",
                found="big",
                accepted="little",
            )
        return {"name": self._zarr_v3_name, "object_codec_id": None}


def _unused_cleared(array: AnyArray, width: int) -> AnyArray:
    """Clear all but the lower ``width`` bits of elements of one byte."""
    octets, mask = array.view(np.uint8), (1 << width) - 1
    return (octets & mask).view(array.dtype) if octets.size and octets.max() > mask else array


def _numbers(values: Any, data_type: ZDType) -> AnyArray:
    """``values`` as an array of numbers of numpy.

    Raises
    ------
    DataTypeValidationError
        If they are not numbers.
    """
    given = widened(unmasked(values, data_type))
    if given.dtype.kind not in "biufc":
        raise data_type._cannot_hold(given)
    return given


class _SmallInteger(_Small):
    """Integers of less than a byte."""

    _width: ClassVar[int]  # bits
    _bounds: ClassVar[tuple[int, int]]
    has_unused_bits: ClassVar[bool] = True

    def __init_subclass__(cls, *, name: str = "") -> None:
        super().__init_subclass__()
        if not name:
            return
        cls._zarr_v3_name = name
        cls._width = int(name.lstrip("uint"))
        high = 1 << (cls._width - (name[0] == "i"))
        cls._bounds = (-high if name[0] == "i" else 0, high - 1)
        cls._permitted = f"an integer from {cls._bounds[0]} to {cls._bounds[1]}, without fraction or exponent"

    @property
    def item_size(self) -> int:
        return 1

    def decoded(self, array: AnyArray) -> AnyArray:
        return _unused_cleared(array, self._width)

    def from_json_scalar(self, data: JSON, *, zarr_format: ZarrFormat) -> Any:
        spelling_of(zarr_format)
        low, high = self._bounds
        if not isinstance(data, int) or isinstance(data, bool) or not low <= data <= high:
            raise self._refused(data)
        return self._scalar(bytes([data & ((1 << self._width) - 1)]))

    def to_json_scalar(self, data: object, *, zarr_format: ZarrFormat) -> Any:
        spelling_of(zarr_format)
        return int(self.cast_scalar(data))

    def cast_array(self, values: Any) -> AnyArray:
        given = unmasked(values, self)
        dtype = self._machine()
        if given.dtype == dtype:
            return self.decoded(given)
        result, lost = converted(_numbers(given, self), dtype)
        if lost.any():
            raise self._cannot_hold(given, found=given[lost].flat[0], accepted=self._permitted)
        return result


class Int2(_SmallInteger, name="int2"):
    """``int2``: integers from -2 to 1.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.empty(3, dtype="int2").zdtype
    Int2()
    """


class Int4(_SmallInteger, name="int4"):
    """``int4``: integers from -8 to 7.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.empty(3, dtype="int4").zdtype
    Int4()
    """


class UInt2(_SmallInteger, name="uint2"):
    """``uint2``: integers from 0 to 3.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.empty(3, dtype="uint2").zdtype
    UInt2()
    """


class UInt4(_SmallInteger, name="uint4"):
    """``uint4``: integers from 0 to 15.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.empty(3, dtype="uint4").zdtype
    UInt4()
    """


class _SmallFloat(_Small):
    """Floating point numbers of up to 16 bits."""

    _width: ClassVar[int]  # bits
    _nan: ClassVar[int | None]  # the bits of the NaN that "NaN" means
    _infinite: ClassVar[bool]

    def __init_subclass__(
        cls, *, name: str = "", width: int = 8, nan: int | None = None, infinite: bool = False
    ) -> None:
        super().__init_subclass__()
        if not name:
            return
        cls._zarr_v3_name, cls._width, cls._nan, cls._infinite = name, width, nan, infinite
        words = ["'NaN'"] if cls._nan is not None else []
        words += ["'Infinity'", "'-Infinity'"] if cls._infinite else []
        cls._permitted = (
            f"a number{''.join(f', {word}' for word in words)} or '0x' and the {-(-cls._width // 4)} "
            "hexadecimal digits of its bits"
        )

    @property
    def item_size(self) -> int:
        return 2 if self._width > 8 else 1

    @property
    def has_unused_bits(self) -> bool:  # type: ignore[override]
        """Whether the numbers fill less than a byte."""
        return self._width < 8

    def decoded(self, array: AnyArray) -> AnyArray:
        return _unused_cleared(array, self._width) if self._width < 8 else array

    @classmethod
    def _form(cls) -> FloatForm:
        return FloatForm(cls._machine(), cls._width, cls._nan, cls._infinite)

    def from_json_scalar(self, data: JSON, *, zarr_format: ZarrFormat) -> Any:
        spelling = spelling_of(zarr_format)._replace(all_bits=True)
        try:
            number = float_from_json(data, self._form(), spelling)
            return number if isinstance(data, str) else self.cast_scalar(float(cast("float", data)))
        except DataTypeValidationError as error:
            raise self._refused(data, "number out of range") from error
        except (ValueError, OverflowError) as error:  # OverflowError: an integer that no double holds
            raise self._refused(data) from error

    def to_json_scalar(self, data: object, *, zarr_format: ZarrFormat) -> Any:
        return float_to_json(self.cast_scalar(data), self._form(), spelling_of(zarr_format))

    def cast_array(self, values: Any) -> AnyArray:
        given = unmasked(values, self)
        if given.dtype == self._dtype:
            return self.decoded(given)
        limits = (-math.inf, math.inf) if self._infinite else _limits(type(self))
        result, lost = converted(_numbers(given, self), self._machine(), limits)
        if lost.any():
            raise self._cannot_hold(given, found=given[lost].flat[0])
        return self._in_order(result) if isinstance(self, Ordered) else result


@lru_cache(maxsize=64)
def _limits(cls: type[_SmallFloat]) -> tuple[float, float]:
    """The least and the greatest number of a type of at most eight bits, each extended by half a step."""
    numbers = np.arange(1 << cls._width, dtype=np.uint8).view(cls._machine()).astype(np.float64)
    numbers = np.unique(numbers[np.isfinite(numbers)])
    return numbers[0] - (numbers[1] - numbers[0]) / 2, numbers[-1] + (numbers[-1] - numbers[-2]) / 2


class BFloat16(_SmallFloat, Ordered, name="bfloat16", width=16, nan=0x7FC0, infinite=True):
    """``bfloat16``: the upper half of a single precision number.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.empty(3, dtype="bfloat16").zdtype
    BFloat16(endianness='little')
    """


class Float4E2M1FN(_SmallFloat, name="float4_e2m1fn", width=4, nan=None, infinite=False):
    """``float4_e2m1fn``: 4 bits; neither infinity nor NaN.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.empty(3, dtype="float4_e2m1fn").zdtype
    Float4E2M1FN()
    """


class Float6E2M3FN(_SmallFloat, name="float6_e2m3fn", width=6, nan=None, infinite=False):
    """``float6_e2m3fn``: 6 bits; neither infinity nor NaN.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.empty(3, dtype="float6_e2m3fn").zdtype
    Float6E2M3FN()
    """


class Float6E3M2FN(_SmallFloat, name="float6_e3m2fn", width=6, nan=None, infinite=False):
    """``float6_e3m2fn``: 6 bits; neither infinity nor NaN.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.empty(3, dtype="float6_e3m2fn").zdtype
    Float6E3M2FN()
    """


class Float8E3M4(_SmallFloat, name="float8_e3m4", width=8, nan=0x78, infinite=True):
    """``float8_e3m4``: 3 bits of exponent, 4 bits of mantissa.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.empty(3, dtype="float8_e3m4").zdtype
    Float8E3M4()
    """


class Float8E4M3(_SmallFloat, name="float8_e4m3", width=8, nan=0x7C, infinite=True):
    """``float8_e4m3``: 4 bits of exponent, 3 bits of mantissa.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.empty(3, dtype="float8_e4m3").zdtype
    Float8E4M3()
    """


class Float8E4M3B11FNUZ(_SmallFloat, name="float8_e4m3b11fnuz", width=8, nan=0x80, infinite=False):
    """``float8_e4m3b11fnuz``: an exponent biased by 11; no infinity, one zero, one NaN.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.empty(3, dtype="float8_e4m3b11fnuz").zdtype
    Float8E4M3B11FNUZ()
    """


class Float8E4M3FN(_SmallFloat, name="float8_e4m3fn", width=8, nan=0x7F, infinite=False):
    """``float8_e4m3fn``: no infinity.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.empty(3, dtype="float8_e4m3fn").zdtype
    Float8E4M3FN()
    """


class Float8E4M3FNUZ(_SmallFloat, name="float8_e4m3fnuz", width=8, nan=0x80, infinite=False):
    """``float8_e4m3fnuz``: no infinity, one zero, one NaN.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.empty(3, dtype="float8_e4m3fnuz").zdtype
    Float8E4M3FNUZ()
    """


class Float8E5M2(_SmallFloat, name="float8_e5m2", width=8, nan=0x7E, infinite=True):
    """``float8_e5m2``: 5 bits of exponent, 2 bits of mantissa.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.empty(3, dtype="float8_e5m2").zdtype
    Float8E5M2()
    """


class Float8E5M2FNUZ(_SmallFloat, name="float8_e5m2fnuz", width=8, nan=0x80, infinite=False):
    """``float8_e5m2fnuz``: no infinity, one zero, one NaN.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.empty(3, dtype="float8_e5m2fnuz").zdtype
    Float8E5M2FNUZ()
    """


class Float8E8M0FNU(_SmallFloat, name="float8_e8m0fnu", width=8, nan=0xFF, infinite=False):
    """``float8_e8m0fnu``: powers of two; no sign, no zero, no infinity.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.empty(3, dtype="float8_e8m0fnu").zdtype
    Float8E8M0FNU()
    """


SMALL_TYPES: tuple[type[ZDType], ...] = (
    Int2, Int4, UInt2, UInt4, BFloat16, Float4E2M1FN, Float6E2M3FN, Float6E3M2FN, Float8E3M4, Float8E4M3,
    Float8E4M3B11FNUZ, Float8E4M3FN, Float8E4M3FNUZ, Float8E5M2, Float8E5M2FNUZ, Float8E8M0FNU,
)  # fmt: skip
