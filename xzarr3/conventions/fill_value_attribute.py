"""Conventions of xarray for masked values: converts between the fill value and the attribute ``_FillValue``.

In version 2, xarray masks the fill value of an array. In version 3 it masks the value of the attribute
``_FillValue``, in the encoding of :func:`encode_fill_value`. This module does not import xarray.
"""

from __future__ import annotations

import base64
import binascii
import struct
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from xzarr3._types import JSON
from xzarr3.conventions.nonfinite_attributes import finite_attributes, finite_marks, is_finite
from xzarr3.dtypes.numbers import float_from_json, form_of
from xzarr3.dtypes.specs import spelling_of
from xzarr3.errors import MetadataError
from xzarr3.formats import Format
from xzarr3.formats.v2 import DIMENSIONS
from xzarr3.model.metadata import ArrayMetadata

FILL_VALUE = "_FillValue"
_SPELLED_KINDS = "biufc"  # Kinds of numpy for which xarray can read the attribute.
_TEXT_KINDS = "UTO"
_T = TypeVar("_T")


def follows_version_2(one: Format | ArrayMetadata) -> bool:
    """Whether xarray follows its conventions of version 2.

    Then the fill value of an array is its ``_FillValue``, the attribute ``_ARRAY_DIMENSIONS`` names its
    dimensions, and its encoding has the codecs of numcodecs. Otherwise ``_FillValue`` is an attribute.
    """
    return one.zarr_format == 2


def _names(meta: ArrayMetadata, *, to_version_2: bool) -> tuple[str | None, ...] | None:
    """The dimension names with which xarray opens an array, or None if it cannot open it."""
    names = meta.dimension_names
    if names is None and to_version_2 and not meta.shape:
        return ()  # Other formats have no names for an array without dimensions.
    if names is None:
        listed = meta.attributes.get(DIMENSIONS)
        if isinstance(listed, list) and len(listed) == len(meta.shape):
            names = tuple(listed)
    return names if names is not None and all(isinstance(name, str) for name in names) else None


def with_same_mask(meta: ArrayMetadata, source: ArrayMetadata) -> ArrayMetadata:
    """Metadata made from ``source`` for another format, changed so that xarray masks the same values."""
    if follows_version_2(meta) == follows_version_2(source):
        return meta
    if follows_version_2(meta):
        return from_fill_value_attribute(meta)
    return to_fill_value_attribute(meta, is_null=source.fill_is_null)


def to_fill_value_attribute(meta: ArrayMetadata, *, is_null: bool) -> ArrayMetadata:
    """Convert metadata from version 2 to a format in which xarray masks the attribute ``_FillValue``.

    Parameters
    ----------
    meta : ArrayMetadata
    is_null : bool
        Whether the fill value was null in version 2. Then xarray masked the attribute there, too.
    """
    dtype = meta.data_type.to_native_dtype()
    if _names(meta, to_version_2=False) is None:
        return meta
    if dtype.kind in _TEXT_KINDS:
        return _to_missing_value(meta, is_null=is_null)
    if dtype.kind not in _SPELLED_KINDS:
        return meta
    value: Any = meta.fill_value
    if is_null:
        value = attribute_value(meta)
        if value is None:
            return meta
    return replace(meta, attributes={**meta.attributes, FILL_VALUE: encode_fill_value(value, dtype)})


def attribute_value(meta: ArrayMetadata) -> Any:
    """The value of the attribute; None without it, or if xarray cannot decode it and so masks nothing."""
    try:
        found = meta.attributes.get(FILL_VALUE)
        return None if found is None else decode_fill_value(found, meta.data_type.to_native_dtype())
    except ValueError:
        return None


def _to_missing_value(meta: ArrayMetadata, *, is_null: bool) -> ArrayMetadata:
    """Mark missing text by ``missing_value``, as xarray reads no ``_FillValue`` of text there."""
    attributes = dict(meta.attributes)
    mark = attributes.pop(FILL_VALUE, None)
    mark = mark if is_null else meta.fill_value
    if not isinstance(mark, str):
        return meta
    known = attributes.get("missing_value", [])
    marks = list(dict.fromkeys([*(known if isinstance(known, list) else [known]), str(mark)]))
    return replace(meta, attributes={**attributes, "missing_value": marks if len(marks) > 1 else marks[0]})


def from_fill_value_attribute(meta: ArrayMetadata) -> ArrayMetadata:
    """Convert metadata to version 2, in which xarray masks the fill value.

    If xarray masked nothing, the fill value becomes null. If it masked another value than the fill value,
    that value becomes the fill value. In both cases absent units must be stored.
    """
    names = _names(meta, to_version_2=True)
    dtype = meta.data_type.to_native_dtype()
    if names is None or dtype.kind == "V":
        return meta
    attributes = {key: value for key, value in meta.attributes.items() if key != DIMENSIONS}
    named = replace(meta, dimension_names=names, attributes=attributes)
    masked = attribute_value(meta)
    if masked is None or dtype.kind not in _SPELLED_KINDS:
        return replace(named, fill_value=meta.data_type.default_scalar(), fill_is_null=True)
    del attributes[FILL_VALUE]
    return replace(named, fill_value=meta.data_type.cast_scalar(masked))


def without_literals(meta: ArrayMetadata, format: Format, path: str) -> ArrayMetadata:
    """Replace NaN and infinities in attributes, so that JSON can hold them; warns the user.

    Attributes that mark missing values mark the same values afterwards.

    Parameters
    ----------
    meta : ArrayMetadata
    format : Format
        The format in which the metadata will be stored.
    path : str
        Path of the array, for the warning.
    """
    if is_finite(meta.attributes):
        return meta
    attributes = finite_marks(meta.attributes, path)
    mark, dtype = attributes.get(FILL_VALUE), meta.data_type.to_native_dtype()
    if isinstance(mark, float) and np.isnan(mark) and follows_version_2(format):
        del attributes[FILL_VALUE]  # NaN is missing anyway
    elif isinstance(mark, float) and not np.isfinite(mark) and dtype.kind == "f":
        if follows_version_2(format):
            raise MetadataError(
                "JSON has no infinity to mark missing values", path=path,
                field=f"attributes.{FILL_VALUE}", found=mark, accepted="a finite number, or NaN",
            )  # fmt: skip
        attributes[FILL_VALUE] = encode_fill_value(mark, dtype)
    return replace(meta, attributes=finite_attributes(attributes, path))


def encode_fill_value(value: Any, dtype: np.dtype[Any]) -> JSON:
    """Encode the attribute ``_FillValue`` as xarray does in version 3 stores.

    Integers and booleans do not change. Floating point numbers become the base64 of a little-endian double,
    complex numbers a list of two such texts, and bytes their base64.

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
    """Decode the attribute ``_FillValue``, in the encoding of xarray or as a plain JSON number.

    Raises
    ------
    ValueError
        If the value is neither.

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
    """A number, the base64 of a double, or a form that fill values have in documents."""
    if isinstance(value, str):
        try:
            packed = base64.b64decode(value, validate=True)
        except binascii.Error:
            packed = b""
        if len(packed) == 8:
            return float(struct.unpack("<d", packed)[0])
        digits = len(value) - 2 if value.startswith("0x") else 16
        form = form_of(np.dtype({4: "f2", 8: "f4"}.get(digits, "f8")))
        return float(float_from_json(value, form, spelling_of(3)))
    return float(value)
