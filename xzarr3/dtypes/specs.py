"""The form of the JSON of data types: its Python types, and checks for version 2 of the format.

Version 2 names a data type as numpy does (``<i2``), or as a list of fields. If numpy holds objects, the codec
that encodes them is part of the type. So this package uses an object in which ``name`` is numpy's name or the
list, and ``object_codec_id`` is the codec of objects. This module knows no data type classes.

Specification: Zarr v2, "Data type encoding".
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypedDict, TypeGuard, TypeVar

import numpy as np

from xzarr3._types import JSON
from xzarr3.errors import DataTypeValidationError

ZarrFormat: TypeAlias = Literal[2, 3, "3-draft"]
"""Which format a hierarchy has: ``"3-draft"`` is the draft of version 3 of May 2022."""

DTypeJSON: TypeAlias = str | int | float | Sequence["DTypeJSON"] | Mapping[str, object] | None
"""The JSON by which a document may name a data type."""

_Name = TypeVar("_Name")
_Codec = TypeVar("_Codec")


class DTypeConfig_V2(TypedDict, Generic[_Name, _Codec]):  # noqa: N801
    """A data type of version 2: numpy's name for it, and the codec of its objects, if it has objects.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.dtypes.Int16().to_json(zarr_format=2)
    {'name': '<i2', 'object_codec_id': None}
    """

    name: _Name
    object_codec_id: _Codec


MAX_DEPTH = 32
"""Deepest nesting of data types."""

OBJECT_CODECS = {"vlen-utf8": "string", "vlen-bytes": "bytes", "json2": "string"}
"""The codecs of objects that version 2 may name, and the data types that they select."""
UNREAD_OBJECT_CODECS = {
    "pickle": "to read pickled objects is to run code that the chunks bring along",
    "msgpack": "its elements may be objects of any class",
    "msgpack2": "its elements may be objects of any class",
    "vlen-array": "its elements are arrays",
}
"""Codecs of objects of numcodecs that are not read, and why."""

_UNITS = "generic|Y|M|W|D|h|m|s|ms|us|μs|ns|ps|fs|as"
_TYPESTR = re.compile(
    r"([<>|=]?)"
    r"(\?|b1|[iu][1248]|f[248]|c8|c16|[SUV][0-9]{1,10}|O8?|"
    rf"[mM]8(?:\[(?:[1-9][0-9]{{0,9}})?(?:{_UNITS})\])?)"
)
_WORDS = {
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128",
}  # fmt: skip


class Spelling(NamedTuple):
    """How a format writes data types and fill values. It holds all differences between the formats."""

    numpy_names: bool
    """Whether data types have numpy names; if not, Zarr names and configurations."""

    old_fills: bool
    """Whether fill values are also read in forms of old writers: 0 for all-zero bits, numbers as strings."""

    all_bits: bool
    """Whether each NaN, and NaT, has a form of its own; if not, there is one NaN, and NaT is a number."""

    packed_fills: bool
    """Whether a fill value of several parts is the base64 of its bytes, in the byte order of the type."""

    levels: int
    """Deepest nesting of the JSON of a data type."""

    infinity: str = "Infinity"
    """The text for positive infinity."""

    digits: bool = False
    """Whether the bits of any number may be given by their digits, after "0x" or "0b"."""


_NUMPY = Spelling(numpy_names=True, old_fills=True, all_bits=False, packed_fills=True, levels=2 * MAX_DEPTH)
_ZARR = Spelling(numpy_names=False, old_fills=False, all_bits=True, packed_fills=False, levels=4 * MAX_DEPTH)
_DRAFT = _ZARR._replace(infinity="+Infinity", digits=True)
_SPELLINGS: dict[object, Spelling] = {2: _NUMPY, 3: _ZARR, "3-draft": _DRAFT}


def spelling_of(zarr_format: object) -> Spelling:
    """How a format writes data types and fill values.

    Raises
    ------
    DataTypeValidationError
        If there is no such format.
    """
    try:
        return _SPELLINGS[zarr_format]
    except (KeyError, TypeError) as error:  # TypeError: the value is not hashable
        raise DataTypeValidationError(
            "unknown Zarr format", field="zarr_format", found=zarr_format, accepted="3, 2, '3-draft'"
        ) from error


def check_dtype_spec_v2(data: object) -> TypeGuard[DTypeConfig_V2[Any, str | None]]:
    """Whether ``data`` has the form of a data type of version 2.

    Examples
    --------
    >>> check_dtype_spec_v2({"name": "<i2", "object_codec_id": None}), check_dtype_spec_v2("<i2")
    (True, False)
    """
    return (
        isinstance(data, Mapping)
        and data.keys() == {"name", "object_codec_id"}
        and _is_name(data["name"], MAX_DEPTH)
        and (data["object_codec_id"] is None or isinstance(data["object_codec_id"], str))
    )


def check_dtype_spec_no_object_codec_v2(data: object) -> TypeGuard[DTypeConfig_V2[Any, None]]:
    """Whether ``data`` has the form of a data type of version 2 that holds no objects.

    Examples
    --------
    >>> check_dtype_spec_no_object_codec_v2({"name": [["x", "<f4"]], "object_codec_id": None})
    True
    >>> check_dtype_spec_no_object_codec_v2({"name": "|O", "object_codec_id": "vlen-utf8"})
    False
    """
    return check_dtype_spec_v2(data) and data["object_codec_id"] is None


def _is_name(data: object, depth: int) -> bool:
    """Whether ``data`` is a string or a list of fields: name, a string or such a list, and maybe a shape."""
    if isinstance(data, str):
        return True
    return (
        isinstance(data, Sequence)
        and depth > 0
        and all(
            isinstance(field, Sequence)
            and len(field) in (2, 3)
            and isinstance(field[0], str)
            and _is_name(field[1], depth - 1)
            and all(isinstance(shape, Sequence) and not isinstance(shape, str) for shape in field[2:])
            for field in data
        )
    )


def native_v2(data: object) -> np.dtype[Any] | None:
    """The numpy dtype of a data type of version 2 that has neither objects nor fields.

    Parameters
    ----------
    data : JSON
        ``{"name": ..., "object_codec_id": None}``.

    Returns
    -------
    numpy.dtype or None
        None if ``data`` is not such a data type or numpy has no such name.
    """
    if not check_dtype_spec_no_object_codec_v2(data):
        return None
    name = data["name"]
    if not isinstance(name, str) or not (name in _WORDS or _TYPESTR.fullmatch(name)):
        return None
    try:
        return np.dtype(name)
    except (TypeError, ValueError, OverflowError):
        return None


def split_v3(data: object) -> tuple[str, Mapping[str, JSON]] | None:
    """Name and configuration of a data type of version 3; None if ``data`` has another form.

    Examples
    --------
    >>> split_v3("int8"), split_v3({"name": "r8", "configuration": {}}), split_v3({"name": "x", "y": 1})
    (('int8', {}), ('r8', {}), None)
    """
    if isinstance(data, str):
        return data, {}
    if not isinstance(data, Mapping) or not data.keys() <= {"name", "configuration"}:
        return None
    name, configuration = data.get("name"), data.get("configuration", {})
    if not isinstance(name, str) or not isinstance(configuration, Mapping):
        return None
    return name, configuration


def too_deep(data: object, zarr_format: ZarrFormat) -> bool:
    """Whether JSON is nested deeper than a data type may be."""
    level: list[object] = [data]
    for _ in range(spelling_of(zarr_format).levels):
        level = [
            inner
            for outer in level
            if isinstance(outer, (Mapping, list, tuple))
            for inner in (outer.values() if isinstance(outer, Mapping) else outer)
        ]
        if not level:
            return False
    return True


def from_base64(data: object) -> bytes:
    """Decode a base64 string; raises ValueError if it is not valid."""
    if not isinstance(data, str):
        raise ValueError("not a string")
    return base64.b64decode(data.encode("ascii"), validate=True)


def to_base64(data: bytes) -> str:
    """Encode bytes as a base64 string."""
    return base64.b64encode(data).decode("ascii")


def is_zero(data: object) -> bool:
    """Whether ``data`` is a number or string that version 2 may have for an element of all-zero bits."""
    return (isinstance(data, (int, float)) and not isinstance(data, bool) and data == 0) or data == ""
