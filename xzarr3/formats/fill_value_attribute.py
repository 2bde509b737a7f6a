"""Conventions of xarray for the attributes of arrays: what it masks in each format.

In version 2, xarray masks the fill value of an array. In version 3 it masks what the attribute ``_FillValue``
says, which is spelled as :func:`encode_fill_value` has it.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from xzarr3._types import JSON
from xzarr3.errors import shorten
from xzarr3.formats import Format
from xzarr3.formats.nonfinite import finite_attributes, finite_marks, is_finite, tell
from xzarr3.formats.v2 import DIMENSIONS
from xzarr3.model.metadata import ArrayMetadata

FILL_VALUE = "_FillValue"
_SPELLED_KINDS = "biufc"  # Of data types for which the attribute has a spelling that xarray reads.
_T = TypeVar("_T")
_DECODED_BY = (
    *("units", "calendar", "scale_factor", "add_offset", FILL_VALUE, "missing_value", "_Unsigned"),
    *("dtype", "_Encoding"),
)


def fill_value_is_mask(format: Format) -> bool:
    """Whether the fill value of an array is its ``_FillValue``: so xarray has it where it did not write 3."""
    return format.fill_value_is_mask


def coding(meta: ArrayMetadata) -> dict[str, Any]:
    """What says of stored values which ones they are, by the names under which documents have it.

    Other attributes, such as ``history``, may change while values that are stored mean the same.

    Examples
    --------
    >>> import xzarr3
    >>> attributes = {"units": "K", "history": "made yesterday", "scale_factor": 0.5}
    >>> array = xzarr3.create_array(xzarr3.MemoryStore(), shape=2, dtype="i2", attributes=attributes)
    >>> coding(array.metadata)
    {'units': 'K', 'scale_factor': 0.5}
    """
    found = {name: meta.attributes[name] for name in _DECODED_BY if name in meta.attributes}
    if meta.dimension_names is not None:
        found["dimension_names"] = meta.dimension_names
    if meta.fill_is_null:
        found["fill_value"] = None
    return found


def recoded(now: ArrayMetadata, then: ArrayMetadata) -> str | None:
    """How the coding of values has changed, in words; None if it has not.

    Examples
    --------
    >>> import xzarr3
    >>> array = xzarr3.create_array(xzarr3.MemoryStore(), shape=2, dtype="i2", attributes={"units": "K"})
    >>> recoded(replace(array.metadata, attributes={"units": "degC"}), array.metadata)
    "'units' is 'degC' and was 'K'"
    """
    if now is then:
        return None
    found, before = coding(now), coding(then)
    changed = [
        f"'{name}' is {_said(found, name)} and was {_said(before, name)}"
        for name in dict.fromkeys((*found, *before))
        if name not in found or name not in before or repr(found[name]) != repr(before[name])
    ]  # As 1 is another scale than 1.0, and a NaN is the same as another one.
    return "; ".join(changed) or None


def _said(coded: Mapping[str, Any], name: str) -> str:
    return shorten(coded[name]) if name in coded else "not there"


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


def without_literals(meta: ArrayMetadata, format: Format, path: str) -> ArrayMetadata:
    """Metadata that can be stored as JSON, where attributes hold NaN or infinities; the user is told of it.

    What marks missing values marks the same ones afterwards.

    Parameters
    ----------
    meta : ArrayMetadata
    format : Format
        In which it will be stored.
    path : str
        Of the array, for the user.
    """
    if is_finite(meta.attributes):
        return meta
    dtype = meta.data_type.to_native_dtype()
    attributes = dict(meta.attributes)
    if dtype.kind in "iuf" and fill_value_is_mask(format):
        meta, attributes = _marks_in_fill_value(meta, attributes, path)
    elif dtype.kind in "iuf":
        attributes = _marks_in_attributes(attributes, dtype, path)
    return replace(meta, attributes=finite_attributes(attributes, path))


def _marks_in_attributes(attributes: dict[str, Any], dtype: np.dtype[Any], path: str) -> dict[str, Any]:
    """Attributes with a ``_FillValue`` that xarray reads, and a ``missing_value`` that JSON has."""
    try:
        before = decode_fill_value(attributes[FILL_VALUE], dtype) if FILL_VALUE in attributes else None
    except ValueError:  # Not what xarray masks.
        return attributes
    rest = {key: value for key, value in attributes.items() if key != FILL_VALUE}
    rest, value = finite_marks(rest, before, path, floating=dtype.kind == "f")
    if value is None:
        return rest
    if FILL_VALUE in attributes and not is_finite(attributes[FILL_VALUE]):
        tell(path, FILL_VALUE, "is stored as the base64 of its bits, which xarray reads")
    return {**rest, FILL_VALUE: encode_fill_value(value, dtype)}


def _marks_in_fill_value(
    meta: ArrayMetadata, attributes: dict[str, Any], path: str
) -> tuple[ArrayMetadata, dict[str, Any]]:
    """Metadata and attributes where the fill value marks what attributes with NaN or infinities marked."""
    floating = meta.data_type.to_native_dtype().kind == "f"
    before: Any = None if meta.fill_is_null else meta.fill_value
    value = before
    mark = attributes.get(FILL_VALUE)
    if isinstance(mark, float) and not np.isfinite(mark) and (np.isnan(mark) or (floating and value is None)):
        del attributes[FILL_VALUE]
        value = value if np.isnan(mark) else mark
        became = "is left out, as NaN is missing anyway" if np.isnan(mark) else "is stored as the fill value"
        tell(path, FILL_VALUE, became)
    attributes, value = finite_marks(attributes, value, path, floating=floating)
    if value is not before:
        cast = meta.data_type.cast_scalar(value)
        meta = replace(meta, fill_value=cast, fill_is_null=False, ignored=dict(meta.ignored))
    return meta, attributes


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
