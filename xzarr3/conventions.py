"""Conventions of xarray for the attributes of arrays: what it masks in each format.

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
from xzarr3.formats.v2 import DIMENSIONS
from xzarr3.metadata import ArrayMetadata

FILL_VALUE = "_FillValue"
_SPELLED_KINDS = "biufc"  # Of data types for which the attribute has a spelling that xarray reads.
_T = TypeVar("_T")


def fill_value_is_mask(format: Format) -> bool:
    """Whether the fill value of an array is its ``_FillValue``: so xarray has it where it did not write 3."""
    return format.zarr_format == 2 or not format.writable


def _names(meta: ArrayMetadata, *, to_version_2: bool) -> tuple[str | None, ...] | None:
    """The names of dimensions under which xarray opens an array, or None if it does not."""
    names = meta.dimension_names
    if names is None and to_version_2 and not meta.shape:
        return ()  # Other formats name nothing where there is no dimension.
    if names is None:
        listed = meta.attributes.get(DIMENSIONS)
        if isinstance(listed, list) and len(listed) == len(meta.shape):
            names = tuple(listed)
    return names if names is not None and all(isinstance(name, str) for name in names) else None


def to_fill_value_attribute(meta: ArrayMetadata, *, is_null: bool) -> ArrayMetadata:
    """Metadata that were those of version 2, in a format where an attribute says what xarray masks.

    Parameters
    ----------
    meta : ArrayMetadata
    is_null : bool
        Whether version 2 said nothing of the fill value, so that xarray masked what the attribute said.
    """
    dtype = meta.data_type.to_native_dtype()
    if _names(meta, to_version_2=False) is None or dtype.kind not in _SPELLED_KINDS:
        return meta
    value: Any = meta.fill_value
    if is_null:
        if FILL_VALUE not in meta.attributes:
            return meta
        try:
            value = decode_fill_value(meta.attributes[FILL_VALUE], dtype)
        except ValueError:  # Not what xarray masks.
            return meta
    return replace(meta, attributes={**meta.attributes, FILL_VALUE: encode_fill_value(value, dtype)})


def from_fill_value_attribute(meta: ArrayMetadata) -> ArrayMetadata:
    """Metadata as those of version 2, in which the fill value is what xarray masks.

    Where xarray masks nothing, or something else than the fill value, the fill value becomes null, or that.
    Units that are absent then have to be stored.
    """
    names = _names(meta, to_version_2=True)
    dtype = meta.data_type.to_native_dtype()
    if names is None or dtype.kind == "V":
        return meta
    attributes = {key: value for key, value in meta.attributes.items() if key != DIMENSIONS}
    named = replace(meta, dimension_names=names, attributes=attributes)
    try:
        masked = decode_fill_value(attributes[FILL_VALUE], dtype) if FILL_VALUE in attributes else None
    except ValueError:  # Not what xarray writes, so nothing that it masks.
        masked = None
    if masked is None or dtype.kind not in _SPELLED_KINDS:
        return replace(named, fill_value=meta.data_type.default_scalar(), fill_is_null=True)
    del attributes[FILL_VALUE]
    return replace(named, fill_value=meta.data_type.cast_scalar(masked))


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
