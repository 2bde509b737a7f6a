"""Bytes without a meaning in Zarr: the data type ``r<N>``, and what it shares with other such types.

Specification: Zarr v3, "Data Types". Version 2 uses the name of numpy (``|V3``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar, Self, cast

import numpy as np

from xzarr3._types import JSON, AnyArray
from xzarr3.dtypes.base import ZDType, unmasked
from xzarr3.dtypes.core import MAX_ITEM_SIZE, NumpyNamed, is_integer
from xzarr3.dtypes.numbers import from_digits
from xzarr3.dtypes.specs import ZarrFormat, is_zero, spelling_of, split_v3, to_base64
from xzarr3.errors import DataTypeValidationError, UnknownExtensionError


class Opaque(NumpyNamed, ZDType[np.dtype[Any], np.void]):
    """Bytes that Zarr does not interpret; their numpy dtype is ``V<n>``."""

    dtype_cls = np.dtypes.VoidDType
    _numpy_names: ClassVar[str | None] = "'|V1', '|V2', ..."

    @classmethod
    def _check_native_dtype(cls, dtype: np.dtype[Any]) -> bool:
        return type(dtype) is np.dtypes.VoidDType and dtype.names is None and dtype.subdtype is None

    @classmethod
    def from_native_dtype(cls, dtype: np.dtype[Any]) -> Self:
        if not cls._check_native_dtype(dtype) or dtype.itemsize == 0:
            raise DataTypeValidationError(
                f"not a dtype of '{cls._zarr_v3_name}'", found=dtype, accepted="numpy's V1, V2, ..."
            )
        return cls._of_size(dtype.itemsize)

    @classmethod
    def _of_size(cls, size: int) -> Self:
        raise NotImplementedError

    def to_native_dtype(self) -> np.dtype[Any]:
        return np.dtype(f"V{self.item_size}")

    def _to_json_draft(self) -> Any:
        return f"r{8 * self.item_size}"

    def default_scalar(self) -> np.void:
        return np.void(bytes(self.item_size))

    def cast_scalar(self, data: object) -> np.void:
        if isinstance(data, (np.void, bytes, bytearray)):
            raw = bytes(data)
            if len(raw) == self.item_size:
                return np.void(raw)
        elif is_integer(data) and data == 0:
            return self.default_scalar()
        raise self._refused(data, "value cannot be held", f"{self.item_size} bytes")

    def from_json_scalar(self, data: JSON, *, zarr_format: ZarrFormat) -> np.void:
        spelling = spelling_of(zarr_format)
        if spelling.old_fills and is_zero(data):
            return self.default_scalar()
        if spelling.digits:
            scalar = from_digits(data, self._dtype)
            if scalar is None:
                raise self._refused(data, accepted=f"'0x' and {2 * self.item_size} hexadecimal digits")
            return cast("np.void", scalar)
        if spelling.packed_fills:
            return np.void(self._unpacked(data, self.item_size))
        return self._from_json_scalar_v3(data)

    def _from_json_scalar_v3(self, data: JSON) -> np.void:
        return np.void(self._unpacked(data, self.item_size))

    def to_json_scalar(self, data: object, *, zarr_format: ZarrFormat) -> Any:
        spelling = spelling_of(zarr_format)
        raw = bytes(self.cast_scalar(data))
        if spelling.digits:
            return f"0x{raw.hex()}"
        return to_base64(raw) if spelling.packed_fills else self._to_json_scalar_v3(raw)

    def _to_json_scalar_v3(self, raw: bytes) -> Any:
        return to_base64(raw)

    def cast_array(self, values: Any) -> AnyArray:
        # Converted to objects first, because numpy would remove zeros at the end of bytes.
        given = unmasked(values, self, None if hasattr(values, "dtype") else object)
        dtype = self._dtype
        if given.dtype == dtype:
            return given
        if given.dtype.kind != "O":
            raise self._cannot_hold(given)
        items = given.reshape(-1).tolist()
        for item in items:
            if not isinstance(item, (bytes, bytearray, np.void)) or len(bytes(item)) != self.item_size:
                raise self._cannot_hold(
                    given, found=item, accepted=f"{self.item_size} bytes for each element"
                )
        return np.frombuffer(bytearray(b"".join(map(bytes, items))), dtype).reshape(given.shape)


@dataclass(frozen=True)
class RawBits(Opaque):
    """``r<N>``: N bits that Zarr does not interpret, N a multiple of 8; their numpy dtype is ``V<N/8>``.

    Only its name selects this type. numpy's ``V<n>`` becomes ``raw_bytes``, :class:`~xzarr3.dtypes.RawBytes`,
    which is not in the core specification, but which more tools read.

    Parameters
    ----------
    width : int
        Size of one element in bits.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.empty(3, dtype="r16").zdtype
    RawBits(width=16)
    """

    width: int
    _zarr_v3_name: ClassVar[str] = "r<N>"
    # zarr-python 3.4, and with it xarray's own engine, refuses "r24". tensorstore 0.1.86 knows the name and
    # refuses the fill value as the core specification has it. Both read "raw_bytes".
    _by_name_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.width <= 0 or self.width % 8 or self.width > 8 * MAX_ITEM_SIZE:
            raise DataTypeValidationError(
                "raw bits come in whole bytes",
                found=self.name,
                accepted=f"'r' and a positive multiple of 8 up to {8 * MAX_ITEM_SIZE}",
            )

    @property
    def name(self) -> str:
        return f"r{self.width}"

    @property
    def item_size(self) -> int:
        return self.width // 8

    @classmethod
    def _of_size(cls, size: int) -> Self:
        return cls(8 * size)

    @classmethod
    def _from_json_v3(cls, data: Any) -> Self:
        name, configuration = split_v3(data) or ("", {})
        if not re.fullmatch(r"r[1-9][0-9]{0,9}", name):
            raise DataTypeValidationError(
                "not raw bits", found=data, accepted="'r' and a positive multiple of 8"
            )
        if configuration:
            raise UnknownExtensionError(
                f"data type '{name}' has no configuration", found=data, accepted=repr(name)
            )
        return cls(int(name[1:]))

    def _to_json_v3(self) -> Any:
        return self.name

    def _from_json_scalar_v3(self, data: JSON) -> np.void:
        octets = data if isinstance(data, list) else []
        if len(octets) != self.item_size or not all(type(o) is int and 0 <= o <= 255 for o in octets):
            raise self._refused(
                data, "fill value not permitted", f"an array of {self.item_size} integers from 0 to 255"
            )
        return np.void(bytes(octets))  # type: ignore[arg-type]

    def _to_json_scalar_v3(self, raw: bytes) -> Any:
        return list(raw)
