"""Data types whose elements have no fixed size: text and bytes.

``string`` is numpy's ``StringDType``. ``bytes``, which zarr-python calls ``variable_length_bytes``, are
arrays of Python objects. Version 2 has one dtype for both, ``|O``; a codec among the filters selects the data
type: ``vlen-utf8`` or ``json2`` for text, ``vlen-bytes`` for bytes. Other codecs of objects are refused. One
of them, ``pickle``, would run any code that the chunks hold.

Specification: zarr-extensions, "String", "Bytes"; Zarr v2, "Data type encoding".
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np

from xzarr3._types import JSON, AnyArray
from xzarr3.dtypes.base import item_of, unmasked
from xzarr3.dtypes.core import PlainlyNamed
from xzarr3.dtypes.fixed_length import is_text, text_items
from xzarr3.dtypes.numbers import native_order
from xzarr3.dtypes.specs import (
    OBJECT_CODECS,
    ZarrFormat,
    check_dtype_spec_v2,
    from_base64,
    spelling_of,
    to_base64,
)
from xzarr3.errors import DataTypeValidationError

OBJECT_NAMES = ("|O", "O", "|O8", "<O", ">O", "=O")
"""The names of numpy's dtype of objects in version 2."""


class _VariableLength(PlainlyNamed):
    is_variable: ClassVar[bool] = True
    object_codec_id: ClassVar[str]

    @classmethod
    def from_native_dtype(cls, dtype: np.dtype[Any]) -> Self:
        cls._require_dtype(dtype, cls.dtype_cls.__name__)
        return cls()

    def to_native_dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = self.dtype_cls()
        return dtype

    @classmethod
    def _from_json_v2(cls, data: Any) -> Self:
        if (
            not check_dtype_spec_v2(data)
            or data["name"] not in OBJECT_NAMES
            or OBJECT_CODECS.get(data["object_codec_id"] or "") != cls._zarr_v3_name
        ):
            raise DataTypeValidationError(
                f"not the data type '{cls._zarr_v3_name}'",
                found=data,
                accepted=f"'|O' with the codec '{cls.object_codec_id}'",
            )
        return cls()

    def _to_json_v2(self) -> Any:
        return {"name": "|O", "object_codec_id": self.object_codec_id}

    def filled(self, shape: tuple[int, ...], fill: Any) -> AnyArray:
        array = np.empty(shape, self._dtype)
        array.fill(fill)
        return array


class VariableLengthUTF8(_VariableLength):
    """``string``: text of any length; numpy holds it as ``StringDType``.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.empty(3, dtype="string").zdtype
    VariableLengthUTF8()
    """

    dtype_cls = np.dtypes.StringDType
    _zarr_v3_name = "string"
    object_codec_id = "vlen-utf8"
    _permitted = "text that UTF-8 can hold"

    @classmethod
    def from_native_dtype(cls, dtype: np.dtype[Any]) -> Self:
        result = super().from_native_dtype(dtype)
        if hasattr(dtype, "na_object"):
            raise DataTypeValidationError(
                "data type 'string' cannot hold missing values", found=dtype, advice="use StringDType()"
            )
        return result

    def default_scalar(self) -> str:
        return ""

    def cast_scalar(self, data: object) -> str:
        data = item_of(data)
        if not isinstance(data, str) or not is_text(data):
            raise self._refused(data, "value cannot be held")
        return str(data)

    def from_json_scalar(self, data: JSON, *, zarr_format: ZarrFormat) -> str:
        old = spelling_of(zarr_format).old_fills
        if old and isinstance(data, (int, float)) and not isinstance(data, bool):
            return str(data)  # old writers wrote 0 by default; other readers also read it as "0"
        if not isinstance(data, str) or not is_text(data):
            raise self._refused(data, "fill value not permitted")
        return data

    def to_json_scalar(self, data: object, *, zarr_format: ZarrFormat) -> Any:
        spelling_of(zarr_format)
        return self.cast_scalar(data)

    def bits(self, scalar: str) -> bytes:
        return scalar.encode("utf-8", "surrogatepass")

    def filled(self, shape: tuple[int, ...], fill: Any) -> AnyArray:
        # numpy would remove zeros at the end of a plain string, so the fill value is made an array first.
        return np.full(shape, np.array([fill], object).astype(self._dtype)[0:1].reshape(()), self._dtype)

    def holds_only(self, array: AnyArray, fill: Any) -> bool:
        if array.size == 0:
            return True
        if array[(0,) * array.ndim] != fill or array[(-1,) * array.ndim] != fill:
            return False
        return bool((array == self.filled((), fill)).all())

    def cast_array(self, values: Any) -> AnyArray:
        given = unmasked(values, self, None if hasattr(values, "dtype") else object)
        dtype = self._dtype
        if given.dtype == dtype:
            return given
        if text_items(given, self) is None:  # some releases of numpy misread text in the other byte order
            given = native_order(given)
        try:
            return given.astype(dtype)
        except (TypeError, ValueError) as error:
            raise self._cannot_hold(given, str(error)) from error


class VariableLengthBytes(_VariableLength):
    """``bytes``, ``variable_length_bytes``: byte strings of any length; numpy holds them as objects.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.empty(3, dtype="bytes").zdtype
    VariableLengthBytes()
    """

    dtype_cls = np.dtypes.ObjectDType
    _zarr_v3_name = "bytes"
    _zarr_v3_aliases = ("variable_length_bytes",)
    object_codec_id = "vlen-bytes"
    _permitted = "bytes"

    def default_scalar(self) -> bytes:
        return b""

    def cast_scalar(self, data: object) -> bytes:
        data = item_of(data)
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise self._refused(data, "value cannot be held")
        return bytes(data)

    def from_json_scalar(self, data: JSON, *, zarr_format: ZarrFormat) -> bytes:
        if spelling_of(zarr_format).old_fills and type(data) is int and data == 0:
            return b""
        if isinstance(data, list) and all(type(octet) is int and 0 <= octet <= 255 for octet in data):
            return bytes(data)  # type: ignore[arg-type]
        try:
            return from_base64(data)
        except ValueError as error:
            raise self._refused(data, accepted="base64, or an array of integers from 0 to 255") from error

    def to_json_scalar(self, data: object, *, zarr_format: ZarrFormat) -> Any:
        spelling_of(zarr_format)
        return to_base64(self.cast_scalar(data))

    def bits(self, scalar: bytes) -> bytes:
        return bytes(scalar)

    def holds_only(self, array: AnyArray, fill: Any) -> bool:
        return all(item == fill for item in array.flat)

    def cast_array(self, values: Any) -> AnyArray:
        given = unmasked(values, self, None if hasattr(values, "dtype") else object)
        if given.dtype.kind not in "SO":
            raise self._cannot_hold(given, accepted="arrays of bytes, of numpy's dtype 'S' or as objects")
        result = np.empty(given.size, object)
        for at, item in enumerate(given.astype(object, copy=False).flat):
            if not isinstance(item, (bytes, bytearray)):
                raise self._cannot_hold(given, found=item, accepted="bytes")
            result[at] = bytes(item)
        return result.reshape(given.shape)
