"""Conventions of xarray for the attributes of arrays: what ``_FillValue`` is in each format.

In version 2, xarray masks the fill value of an array. In version 3 it masks what the attribute ``_FillValue``
says, which is spelled as :func:`encode_fill_value` has it.
"""

from __future__ import annotations

import base64
import binascii
import struct
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from xzarr3._types import JSON
from xzarr3.formats import Format
from xzarr3.metadata import ArrayMetadata

FILL_VALUE = "_FillValue"
_MASKED_KINDS = "biufc"
_T = TypeVar("_T")


def fill_value_is_mask(format: Format) -> bool:
    """Whether the fill value of an array is its ``_FillValue``: so xarray has it where it did not write 3."""
    return format.zarr_format == 2 or not format.writable


def _is_xarrays(meta: ArrayMetadata) -> bool:
    """Whether xarray can open an array as a variable, of a type in which it masks values."""
    names = meta.dimension_names
    if names is None:  # On its way to version 2, a scalar may be xarray's: other formats name nothing there.
        named = not meta.shape and meta.zarr_format == 2
    else:
        named = all(name is not None for name in names)
    return named and meta.data_type.to_native_dtype().kind in _MASKED_KINDS


def to_fill_value_attribute(meta: ArrayMetadata, *, is_null: bool) -> ArrayMetadata:
    """Metadata that were those of version 2, in a format where an attribute says what xarray masks.

    Parameters
    ----------
    meta : ArrayMetadata
    is_null : bool
        Whether version 2 said nothing of the fill value, so that xarray masked nothing.
    """
    if is_null or FILL_VALUE in meta.attributes or not _is_xarrays(meta):
        return meta
    value = encode_fill_value(meta.fill_value, meta.data_type.to_native_dtype())
    return replace(meta, attributes={**meta.attributes, FILL_VALUE: value})


def from_fill_value_attribute(meta: ArrayMetadata) -> ArrayMetadata:
    """Metadata as those of version 2, in which the fill value is what xarray masks.

    Where xarray masks nothing, or something else than the fill value, the fill value becomes null, or that.
    Units that are absent then have to be stored.
    """
    if not _is_xarrays(meta):
        return meta
    attributes = dict(meta.attributes)
    dtype = meta.data_type.to_native_dtype()
    try:
        masked = decode_fill_value(attributes[FILL_VALUE], dtype) if FILL_VALUE in attributes else None
    except ValueError:  # Not what xarray writes, so nothing that it masks.
        masked = None
    if masked is None:
        zero = meta.data_type.default_scalar()
        return replace(meta, fill_value=zero, fill_is_null=True)
    del attributes[FILL_VALUE]
    return replace(meta, fill_value=meta.data_type.cast_scalar(masked), attributes=attributes)


def encode_fill_value(value: Any, dtype: np.dtype[Any]) -> JSON:
    """The attribute ``_FillValue`` in the form that xarray gives it in version 3 stores.

    Integers and booleans stay what they are; floating point numbers become the base64 of a little-endian
    double, complex numbers a list of two of these, bytes their base64.

    Raises
    ------
    ValueError
        If ``value`` is no value of ``dtype``.

    Examples
    --------
    >>> encode_fill_value(float("nan"), np.dtype("f4"))
    'AAAAAAAA+H8='
    """
    kind = dtype.kind
    try:
        scalar = np.asarray(value)[()]
        if kind == "S":
            return base64.b64encode(_instance(scalar, bytes)).decode()
        if kind == "U":
            return str(_instance(scalar, str))
        if kind == "b":
            return bool(scalar)
        if kind in "iu":
            if int(scalar) != scalar:
                raise ValueError("not an integer")
            return int(scalar)
        if kind == "f":
            return _base64_double(float(scalar))
        if kind == "c":
            number = complex(scalar)
            return [_base64_double(number.real), _base64_double(number.imag)]
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"_FillValue {value!r} is not a value of dtype {dtype}: {error}") from error
    raise ValueError(f"_FillValue is not supported for dtype {dtype}")


def decode_fill_value(value: Any, dtype: np.dtype[Any]) -> Any:
    """Read the attribute ``_FillValue``, in the form xarray writes or as a plain JSON number.

    Raises
    ------
    ValueError
        If it is neither.

    Examples
    --------
    >>> decode_fill_value("AAAAAAAA+H8=", np.dtype("f4"))
    nan
    >>> decode_fill_value(-999, np.dtype("i2"))
    -999
    """
    kind = dtype.kind
    try:
        if kind == "f":
            return _read_double(value)
        if kind in "iu":
            if isinstance(value, str) or int(value) != value:
                raise ValueError("not an integer")
            return int(value)
        if kind == "b":
            return bool(value)
        if kind == "c":
            real, imag = value
            return complex(_read_double(real), _read_double(imag))
        if kind == "S":
            return base64.b64decode(_instance(value, str), validate=True)
        if kind in "UTO":
            return str(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"attribute '_FillValue' is not a value of dtype {dtype}: {error}") from error
    raise ValueError(f"attribute '_FillValue' is not supported for dtype {dtype}")


def _instance(value: Any, cls: type[_T]) -> _T:
    if not isinstance(value, cls):
        raise TypeError(f"expected {cls.__name__}, found {type(value).__name__}")
    return value


def _base64_double(number: float) -> str:
    return base64.b64encode(struct.pack("<d", number)).decode()


def _read_double(value: Any) -> float:
    if not isinstance(value, str):
        return float(value)
    if value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    try:
        packed = base64.b64decode(value, validate=True)
    except binascii.Error:
        packed = b""
    if len(packed) == 8:
        return float(struct.unpack("<d", packed)[0])
    bits = bytes.fromhex(value.removeprefix("0x"))
    forms = {2: ">e", 4: ">f", 8: ">d"}
    if not value.startswith("0x") or len(bits) not in forms:
        raise ValueError("neither a number, base64 of a double, nor hexadecimal bits")
    return float(struct.unpack(forms[len(bits)], bits)[0])
