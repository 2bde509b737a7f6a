"""Parses the documents of a node, and those that consolidated metadata hold."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from xzarr3 import fields
from xzarr3._types import Scalar
from xzarr3.dtypes import ZDType
from xzarr3.errors import MetadataError
from xzarr3.fields import Meta
from xzarr3.formats.base import Document, check_path_below, chunk_shape_of, fill_value_from_json
from xzarr3.formats.v2.codec_fields import CODEC, read_codec_fields
from xzarr3.formats.v2.names import (
    ARRAY,
    ATTRIBUTES,
    CONSOLIDATED,
    CONSOLIDATED_FORMAT,
    DIMENSIONS,
    GROUP,
    NCZARR_ARRAY,
    OWN,
)
from xzarr3.grid import RegularGrid
from xzarr3.model.chunk_keys import ChunkKeyEncoding
from xzarr3.model.metadata import ArrayMetadata, GroupMetadata, NodeMetadata, check_shape


class _ArrayDocument(msgspec.Struct, frozen=True):
    zarr_format: int
    shape: list[int]
    chunks: list[int]
    dtype: Annotated[str | list[Any], Meta(description="a string such as '<f8', or an array of fields")]
    compressor: Annotated[Any, Meta(description=f"{CODEC}, null")]
    order: Literal["C", "F"]
    fill_value: Any = None
    filters: Annotated[list[Any] | None, Meta(description="an array of codecs, null")] = None
    dimension_separator: Literal[".", "/"] = "."


_FIELDS = frozenset(_ArrayDocument.__struct_fields__)


def parse(held: Mapping[str, Document], path: str = "") -> NodeMetadata:
    """Parse the documents of a node.

    Parameters
    ----------
    held : mapping of str to document
        The documents, by the last part of their keys.
    path : str
        Path of the node, for messages.

    Raises
    ------
    MetadataError
        If they are not valid; the error names the field.
    UnknownExtensionError
        If they need an unknown data type or codec.

    Examples
    --------
    >>> held = {".zgroup": {"zarr_format": 2}, ".zattrs": {"title": "sea surface"}}
    >>> dict(parse(held).attributes)
    {'title': 'sea surface'}
    """
    try:
        return _parse_array(held) if ARRAY in held else _parse_group(held)
    except MetadataError as error:
        error.path = path
        raise
    except MemoryError as error:
        raise MetadataError("no memory for one element", path=path, field="dtype") from error


def _check_version(document: Mapping[str, Any]) -> None:
    version = document.get("zarr_format")
    if type(version) is not int or version != 2:
        raise MetadataError("not a format that can be read", field="zarr_format", found=version, accepted="2")


def scalar_as(scalar: Scalar, data_type: ZDType) -> Scalar:
    """A scalar in the byte order of a data type. Only scalars with fields have a byte order."""
    if not isinstance(scalar, np.void):
        return scalar
    ordered: Scalar = np.asarray(scalar).astype(data_type.to_native_dtype())[()]  # type: ignore[assignment]
    return ordered


def _parse_array(held: Mapping[str, Document]) -> ArrayMetadata:
    document = held[ARRAY]
    _check_version(document)
    typed = fields.document(_ArrayDocument, document)
    shape, fill = tuple(typed.shape), typed.fill_value
    check_shape(shape)
    stored, data_type, codecs, places = read_codec_fields(document, len(shape))
    fill_value = stored.default_scalar() if fill is None else fill_value_from_json(stored, fill, 2)
    ignored = {field: value for field, value in document.items() if field not in _FIELDS}
    attributes, names = _attributes(held, len(shape))
    meta = ArrayMetadata(
        shape=shape,
        data_type=data_type,
        chunk_grid=RegularGrid(chunk_shape_of(typed.chunks, shape, "chunks")),
        chunk_key_encoding=ChunkKeyEncoding("v2", typed.dimension_separator),
        fill_value=scalar_as(fill_value, data_type),
        codecs=codecs,
        attributes=attributes,
        dimension_names=names,
        zarr_format=2,
        fill_is_null=fill is None,
    )
    try:
        # The chain fills in the parameters that the codecs leave open.
        evolved = meta.chain.codecs
        if evolved != codecs:
            meta = replace(meta, codecs=evolved)
    except MetadataError as error:
        error.field = _document_field(error.field, places)
        raise
    return meta.read_from(held, ignored)


def _document_field(field: str | None, fields: Sequence[str]) -> str:
    """Turn the field of a codec in an error into the field of the document that the codec comes from."""
    place = re.fullmatch(r"codecs\[(\d+)\](.*)", field or "")
    if place is None:
        return "dtype" if field == "data_type" else "filters"
    return fields[int(place[1])] + place[2].removeprefix(".configuration")


def _attributes(held: Mapping[str, Document], ndim: int) -> tuple[dict[str, Any], tuple[str, ...] | None]:
    """The attributes without the dimension names, and the dimension names."""
    attributes = dict(_object(held.get(ATTRIBUTES, {}), ATTRIBUTES))
    if DIMENSIONS in attributes:
        names = _names(attributes[DIMENSIONS], ndim)
        if names is not None:
            del attributes[DIMENSIONS]
        return attributes, names
    places: tuple[Mapping[str, Any], ...] = (attributes, held[ARRAY])
    said = [place[key] for key in ("_nczarr_array", "_NCZARR_ARRAY") for place in places if key in place]
    said.append(held.get(NCZARR_ARRAY))
    for document in said:
        if isinstance(document, dict):
            paths = _names(document.get("dimension_references", document.get("dimrefs")), ndim)
            if paths is not None:
                return attributes, tuple(path.rpartition("/")[2] for path in paths)
    return attributes, None


def _names(value: object, ndim: int) -> tuple[str, ...] | None:
    """The names if ``value`` is a list of ``ndim`` strings; otherwise None."""
    if not isinstance(value, list) or len(value) != ndim or not all(isinstance(name, str) for name in value):
        return None
    return tuple(value)


def _object(value: object, field: str) -> Document:
    if not isinstance(value, dict):
        raise MetadataError("not a metadata document", field=field, found=value, accepted="a JSON object")
    return value


def _parse_group(held: Mapping[str, Document]) -> GroupMetadata:
    document = held[GROUP]
    _check_version(document)
    consolidated = held.get(CONSOLIDATED)
    # zarr-python adds an empty field ``consolidated_metadata`` to the consolidated copies of groups.
    ignored = {k: v for k, v in document.items() if k not in ("zarr_format", "consolidated_metadata")}
    meta = GroupMetadata(
        attributes=_object(held.get(ATTRIBUTES, {}), ATTRIBUTES),
        consolidated=None if consolidated is None else _parse_consolidated(consolidated),
        zarr_format=2,
    )
    return meta.read_from(held, ignored)


def _parse_consolidated(document: Mapping[str, Any]) -> dict[str, dict[str, Document]]:
    """The documents of all nodes below a group, by relative path."""
    version = document.get("zarr_consolidated_format")
    if type(version) is not int or version != CONSOLIDATED_FORMAT:
        raise MetadataError(
            "not a format of consolidated metadata that can be read",
            field=f"{CONSOLIDATED}.zarr_consolidated_format", found=version, accepted="1",
        )  # fmt: skip
    field = f"{CONSOLIDATED}.metadata"
    found: dict[str, dict[str, Document]] = {}
    for key, value in _object(document.get("metadata"), field).items():
        path, _, name = key.rpartition("/")
        if name not in OWN or not path:
            continue
        check_path_below(path, field)
        found.setdefault(path, {})[name] = _object(value, f"{field}['{key}']")
    nodes = {path: held for path, held in found.items() if ARRAY in held or GROUP in held}
    for path in list(nodes):  # Add parent groups that are not listed.
        above = path.rpartition("/")[0]
        while above and above not in nodes:
            nodes[above] = {GROUP: {"zarr_format": 2}, **found.get(above, {})}
            above = above.rpartition("/")[0]
    return nodes
