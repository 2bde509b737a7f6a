"""Data types whose elements have no fixed size: text, bytes, and JSON values.

``string`` is numpy's ``StringDType``. ``bytes``, which zarr-python calls ``variable_length_bytes``, and
``json2`` are arrays of Python objects. Version 2 has one dtype for all of them, ``|O``; a codec among the
filters selects the data type: ``vlen-utf8``, ``vlen-bytes`` or ``json2``. Other codecs of objects are
refused. One of them, ``pickle``, would run any code that the chunks hold.

Specification: zarr-extensions, "String", "Bytes"; Zarr v2, "Data type encoding". ``json2`` exists only in
version 2, as a codec of numcodecs.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar, Self

import numpy as np

from xzarr3._types import JSON, AnyArray
from xzarr3.dtypes.base import unmasked
from xzarr3.dtypes.core import PlainlyNamed, native_order
from xzarr3.dtypes.fixed_length import is_text, text_items
from xzarr3.dtypes.specs import (
    ZarrFormat,
    check_dtype_spec_v2,
    check_format,
    from_base64,
    spelling_of,
    to_base64,
)
from xzarr3.errors import DataTypeValidationError, UnknownExtensionError

OBJECT_NAMES = ("|O", "O", "|O8", "<O", ">O", "=O")
"""The names of numpy's dtype of objects in version 2."""

_MAX_LEVELS = 200  # deepest nesting of a JSON value


class _VariableLength(PlainlyNamed):
    is_variable: ClassVar[bool] = True
    object_codec_id: ClassVar[str]

    @classmethod
    def from_native_dtype(cls, dtype: np.dtype[Any]) -> Self:
        if not cls._check_native_dtype(dtype):
            raise DataTypeValidationError(
                f"not a dtype of '{cls._zarr_v3_name}'", found=dtype, accepted=cls.dtype_cls.__name__
            )
        return cls()

    def to_native_dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = self.dtype_cls()
        return dtype

    @classmethod
    def _from_json_v2(cls, data: Any) -> Self:
        if (
            not check_dtype_spec_v2(data)
            or data["name"] not in OBJECT_NAMES
            or data["object_codec_id"] != cls.object_codec_id
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
    """``string``: text of any length; numpy holds it as ``StringDType``."""

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
        if isinstance(data, np.ndarray) and data.ndim == 0:
            data = data[()]
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
        check_format(zarr_format)
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
        items = text_items(given, self)
        try:
            if items is None:  # some releases of numpy misread text in the other byte order
                return native_order(given).astype(dtype)
            return np.array(items, object).astype(dtype).reshape(given.shape)
        except (TypeError, ValueError) as error:
            raise self._cannot_hold(given, str(error)) from error


class _Objects(_VariableLength):
    dtype_cls = np.dtypes.ObjectDType

    def holds_only(self, array: AnyArray, fill: Any) -> bool:
        wanted = self.bits(fill)
        return all(self.bits(item) == wanted for item in array.flat)


class VariableLengthBytes(_Objects):
    """``bytes``, ``variable_length_bytes``: byte strings of any length; numpy holds them as objects."""

    _zarr_v3_name = "bytes"
    _zarr_v3_aliases = ("variable_length_bytes",)
    object_codec_id = "vlen-bytes"
    _permitted = "bytes"

    def default_scalar(self) -> bytes:
        return b""

    def cast_scalar(self, data: object) -> bytes:
        if isinstance(data, np.ndarray) and data.ndim == 0:
            data = data[()]
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
        check_format(zarr_format)
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


class JSONObjects(_Objects):
    """``json2``: any JSON value; numpy holds it as an object. Exists in version 2 only."""

    _zarr_v3_name = "json2"
    object_codec_id = "json2"
    _permitted = "what JSON can say"

    @classmethod
    def _from_json_v3(cls, data: Any) -> Self:
        super()._from_json_v3(data)
        raise UnknownExtensionError("only Zarr format 2 has data type 'json2'", found=data)

    def _to_json_v3(self) -> Any:
        raise DataTypeValidationError(
            "only Zarr format 2 has data type 'json2'", found=self.name, accepted="zarr_format=2"
        )

    def _to_json_draft(self) -> Any:
        return self._to_json_v3()

    def default_scalar(self) -> None:
        return None

    def cast_scalar(self, data: object) -> Any:
        return self._plain(data, data, _MAX_LEVELS)

    def _plain(self, data: object, whole: object, room: int) -> Any:
        """``data`` as a copy made only of JSON types; ``room`` levels of nesting are left."""
        if isinstance(data, (np.generic, np.ndarray)) and np.ndim(data) == 0:
            data = data.item()
        if data is None or type(data) in (bool, int, float, str):
            if isinstance(data, str) and not is_text(data):
                raise self._refused(whole, "value cannot be held")
            return data
        if not room:
            raise DataTypeValidationError(
                "value nested too deeply for data type 'json2'", accepted=f"at most {_MAX_LEVELS} levels"
            )
        if isinstance(data, list):
            return [self._plain(item, whole, room - 1) for item in data]
        if isinstance(data, dict) and all(isinstance(key, str) and is_text(key) for key in data):
            return {key: self._plain(item, whole, room - 1) for key, item in data.items()}
        raise self._refused(whole, "value cannot be held")

    def from_json_scalar(self, data: JSON, *, zarr_format: ZarrFormat) -> Any:
        check_format(zarr_format)
        return self.cast_scalar(data)

    def to_json_scalar(self, data: object, *, zarr_format: ZarrFormat) -> Any:
        check_format(zarr_format)
        return self.cast_scalar(data)

    def bits(self, scalar: Any) -> bytes:
        import json

        return json.dumps(scalar, sort_keys=True, separators=(",", ":")).encode()

    def filled(self, shape: tuple[int, ...], fill: Any) -> AnyArray:
        array = super().filled(shape, fill)
        if isinstance(fill, (list, dict)):  # each element gets a copy, so that changing one leaves the others
            flat = array.reshape(-1)
            for at in range(flat.size):
                flat[at] = copy.deepcopy(fill)
        return array

    def cast_array(self, values: Any) -> AnyArray:
        given = unmasked(values, self, None if hasattr(values, "dtype") else object)
        if given.dtype.kind not in "biufUTO":
            raise self._cannot_hold(given, accepted=self._permitted)
        result = np.empty(given.size, object)
        for at, item in enumerate(given.astype(object, copy=False).flat):
            result[at] = self.cast_scalar(item)
        return result.reshape(given.shape)
