"""Data types for text and bytes of a fixed length.

``fixed_length_utf32`` is numpy's ``U<n>``, and ``null_terminated_bytes`` is its ``S<n>``. Zeros at the end do
not belong to an element. ``raw_bytes`` is zarr-python's name for ``r<N>`` of the core specification, and what
numpy's ``V<n>`` becomes.

Specification: zarr-extensions, "fixed_length_utf32", "Null-terminated bytes"; Zarr v2, "Data type encoding"
(``<U3``, ``|S5``). Example: ``{"name": "fixed_length_utf32", "configuration": {"length_bytes": 12}}``.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from xzarr3._types import JSON, AnyArray
from xzarr3.dtypes.base import ZDType, item_of, unmasked
from xzarr3.dtypes.core import MAX_ITEM_SIZE, NumpyNamed, Ordered, is_integer, order_of
from xzarr3.dtypes.opaque import Opaque
from xzarr3.dtypes.specs import ZarrFormat, is_zero, spelling_of, to_base64
from xzarr3.errors import DataTypeValidationError

_MAX_BYTES = 2**31 - 1  # numpy's limit
_LAST_CHARACTER = 0x10FFFF
_TOGETHER = 2**16  # Texts that are looked at together, which is faster than one by one.


def _length_bytes(cls: type[ZDType], data: Any, unit: int) -> int:
    """The length in bytes from the JSON of a data type in version 3, a multiple of ``unit``."""
    given, name = cls._configuration_v3(data), cls._zarr_v3_name
    length = given.get("length_bytes")
    if given.keys() != {"length_bytes"} or type(length) is not int or length % unit:
        accepted = f"{{'name': '{name}', 'configuration': {{'length_bytes': a multiple of {unit}}}}}"
        raise DataTypeValidationError(
            f"data type '{name}' has a length in bytes", field="configuration", found=data, accepted=accepted
        )
    return length


@dataclass(frozen=True)
class _FixedLength(NumpyNamed):
    """Elements of up to ``length`` characters or bytes."""

    length: int
    _unit: ClassVar[int]  # bytes of a character or byte
    _letter: ClassVar[str]

    def __post_init__(self) -> None:
        most = _MAX_BYTES // self._unit
        if type(self.length) is not int or not 0 < self.length <= most:
            raise DataTypeValidationError(
                f"not a length of data type '{self._zarr_v3_name}'",
                field="length",
                found=self.length,
                accepted=f"an integer from 1 to {most}",
            )
        super().__post_init__()

    @property
    def item_size(self) -> int:
        return self.length * self._unit

    def to_native_dtype(self) -> np.dtype[Any]:
        return np.dtype(f"{self._letter}{self.length}")

    @classmethod
    def from_native_dtype(cls, dtype: np.dtype[Any]) -> Self:
        cls._require_dtype(dtype, f"numpy's {cls._letter}1, {cls._letter}2, ...")
        length = dtype.itemsize // cls._unit
        return cls(length, endianness=order_of(dtype)) if issubclass(cls, Ordered) else cls(length)

    @classmethod
    def _from_json_v3(cls, data: Any) -> Self:
        return cls(_length_bytes(cls, data, cls._unit) // cls._unit)

    def _to_json_v3(self) -> Any:
        return {"name": self._zarr_v3_name, "configuration": {"length_bytes": self.item_size}}


@dataclass(frozen=True)
class FixedLengthUTF32(Ordered, _FixedLength):
    """``fixed_length_utf32``: text of up to ``length`` characters, four bytes each.

    Parameters
    ----------
    length : int
        Number of characters.
    endianness : {"little", "big"}
        Byte order of the characters.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.empty(3, dtype="U4").zdtype
    FixedLengthUTF32(length=4, endianness='little')
    """

    dtype_cls = np.dtypes.StrDType
    _zarr_v3_name: ClassVar[str] = "fixed_length_utf32"
    has_unused_bits: ClassVar[bool] = True  # Unicode uses 21 of the 32 bits of a character
    _unit: ClassVar[int] = 4
    _letter: ClassVar[str] = "U"
    _numpy_names: ClassVar[str | None] = "'|U1', ..."

    def to_native_dtype(self) -> np.dtype[Any]:
        return self._ordered(np.dtype(f"U{self.length}"))

    def default_scalar(self) -> np.str_:
        return np.str_("")

    def cast_scalar(self, data: object) -> np.str_:
        data = item_of(data)
        accepted = f"text of up to {self.length} characters"
        if not isinstance(data, str):
            raise self._refused(data, "value cannot be held", accepted)
        return self._checked(data, "value cannot be held")

    def _checked(self, text: str, reason: str) -> np.str_:
        text = text.rstrip("\0")
        if len(text) > self.length or not is_text(text):
            raise self._refused(text, reason, f"text of up to {self.length} characters")
        return np.str_(text)

    def from_json_scalar(self, data: JSON, *, zarr_format: ZarrFormat) -> np.str_:
        if spelling_of(zarr_format).old_fills and is_zero(data):
            return np.str_("")
        if not isinstance(data, str):
            raise self._refused(
                data, "fill value not permitted", f"a string of up to {self.length} characters"
            )
        return self._checked(data, "fill value not permitted")

    def to_json_scalar(self, data: object, *, zarr_format: ZarrFormat) -> Any:
        spelling_of(zarr_format)
        return str(self.cast_scalar(data))

    def bits(self, scalar: np.str_) -> bytes:
        return scalar.rstrip("\0").encode("utf-8", "surrogatepass")

    def decoded(self, array: AnyArray) -> AnyArray:
        """``array`` unchanged, if all characters are code points of Unicode; halves of surrogate pairs pass.

        Python cannot make a string of other values, and numpy does not check them.
        """
        order = np.dtype(np.uint32).newbyteorder(array.dtype.byteorder)
        characters = np.dtype((order, (array.dtype.itemsize // self._unit,)))
        codes: npt.NDArray[np.uint32] = array.view(characters)
        last = int(codes.max(initial=0))
        if last > _LAST_CHARACTER:
            raise DataTypeValidationError(
                f"no character for data type '{self.name}'",
                found=f"0x{last:X}",
                accepted=f"code points up to 0x{_LAST_CHARACTER:X}",
            )
        return array

    def cast_array(self, values: Any) -> AnyArray:
        given = unmasked(values, self, None if hasattr(values, "dtype") else object)
        dtype = self._dtype
        if given.dtype.kind == "U":
            self.decoded(given)
        if given.dtype == dtype:
            return given
        items = text_items(given, self)
        if items is None:
            long = np.strings.str_len(given) > self.length
            if long.any():
                raise self._too_long(given, given[long].flat[0])
            return given.astype(dtype)
        for item in items:
            if len(item.rstrip("\0")) > self.length:
                raise self._too_long(given, item)
        return np.array(items, dtype).reshape(given.shape)

    def _too_long(self, given: AnyArray, found: object) -> DataTypeValidationError:
        return self._cannot_hold(given, found=found, accepted=f"text of up to {self.length} characters")


class NullTerminatedBytes(_FixedLength):
    """``null_terminated_bytes``: up to ``length`` bytes; zeros at the end do not belong to an element.

    Parameters
    ----------
    length : int
        Number of bytes.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.empty(3, dtype="S4").zdtype
    NullTerminatedBytes(length=4)
    """

    dtype_cls = np.dtypes.BytesDType
    _zarr_v3_name: ClassVar[str] = "null_terminated_bytes"
    _unit: ClassVar[int] = 1
    _letter: ClassVar[str] = "S"
    _numpy_names: ClassVar[str | None] = "'|S1', ..."

    def default_scalar(self) -> np.bytes_:
        return np.bytes_(b"")

    @property
    def _accepted(self) -> str:
        return f"up to {self.length} bytes, or as many ASCII characters"

    def cast_scalar(self, data: object) -> np.bytes_:
        data = item_of(data)
        if is_integer(data) and data == 0:
            return self.default_scalar()
        raw = _as_bytes(data)
        if raw is None or len(raw) > self.length:
            raise self._refused(data, "value cannot be held", self._accepted)
        return np.bytes_(raw)

    def from_json_scalar(self, data: JSON, *, zarr_format: ZarrFormat) -> np.bytes_:
        if spelling_of(zarr_format).old_fills and is_zero(data):
            return self.default_scalar()
        return np.bytes_(self._unpacked(data, self.length, or_less=True).rstrip(b"\0"))

    def to_json_scalar(self, data: object, *, zarr_format: ZarrFormat) -> Any:
        spelling_of(zarr_format)
        return to_base64(bytes(self.cast_scalar(data)))

    def bits(self, scalar: np.bytes_) -> bytes:
        return bytes(scalar).rstrip(b"\0")

    def cast_array(self, values: Any) -> AnyArray:
        given = unmasked(values, self, None if hasattr(values, "dtype") else object)
        dtype = self._dtype
        if given.dtype == dtype:
            return given
        if given.dtype.kind == "S":
            long = np.strings.str_len(given) > self.length
            if long.any():
                raise self._cannot_hold(given, found=given[long].flat[0], accepted=self._accepted)
            return given.astype(dtype)
        if given.dtype.kind not in "UTO":
            raise self._cannot_hold(given, accepted="arrays of bytes or of ASCII text")
        items = []
        for item in given.reshape(-1).tolist():
            raw = _as_bytes(item)
            if raw is None or len(raw) > self.length:
                raise self._cannot_hold(given, found=item, accepted=self._accepted)
            items.append(raw)
        return np.array(items, dtype).reshape(given.shape)


@dataclass(frozen=True)
class RawBytes(Opaque):
    """``raw_bytes``: bytes that Zarr does not interpret; zarr-python's name for ``r<N>``.

    numpy's ``V<n>`` becomes this type.

    Parameters
    ----------
    length : int
        Number of bytes.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.empty(3, dtype="V4").zdtype
    RawBytes(length=4)
    """

    length: int
    _zarr_v3_name: ClassVar[str] = "raw_bytes"

    def __post_init__(self) -> None:
        if type(self.length) is not int or not 0 < self.length <= MAX_ITEM_SIZE:
            raise DataTypeValidationError(
                "not a length of data type 'raw_bytes'",
                field="length",
                found=self.length,
                accepted=f"an integer from 1 to {MAX_ITEM_SIZE}",
            )

    @property
    def item_size(self) -> int:
        return self.length

    @classmethod
    def _of_size(cls, size: int) -> Self:
        return cls(size)

    @classmethod
    def _from_json_v3(cls, data: Any) -> Self:
        return cls(_length_bytes(cls, data, 1))

    def _to_json_v3(self) -> Any:
        return {"name": "raw_bytes", "configuration": {"length_bytes": self.length}}


def is_text(text: str) -> bool:
    """Whether UTF-8 and JSON can hold all characters; they cannot hold halves of surrogate pairs."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def text_items(given: AnyArray, data_type: ZDType) -> list[str] | None:
    """The elements of an array of objects, checked to be text; None if its numpy dtype holds only text.

    Arrays of StringDType with a missing value are treated like arrays of objects.

    Raises
    ------
    DataTypeValidationError
        If an element is not text.
    """
    accepted = "arrays of text, of numpy's dtypes 'U' and StringDType or as objects"
    if given.dtype.kind == "U" or (given.dtype.kind == "T" and not hasattr(given.dtype, "na_object")):
        return None
    if given.dtype.kind not in "TO":
        raise data_type._cannot_hold(given, accepted=accepted)
    items = given.astype(object, copy=False).reshape(-1).tolist()
    with contextlib.suppress(TypeError, UnicodeEncodeError):  # Which element it is, the loop finds out.
        for start in range(0, len(items), _TOGETHER):
            "".join(items[start : start + _TOGETHER]).encode()
        return items
    for at, item in enumerate(items):
        if not isinstance(item, str) or not is_text(item):
            place = f"at index {tuple(map(int, np.unravel_index(at, given.shape)))}" if given.ndim else ""
            raise data_type._cannot_hold(given, place, found=item, accepted=accepted)
    return items


def _as_bytes(item: object) -> bytes | None:
    if isinstance(item, (bytes, bytearray)):
        return bytes(item).rstrip(b"\0")
    if isinstance(item, str) and item.isascii():
        return item.encode().rstrip(b"\0")
    return None
