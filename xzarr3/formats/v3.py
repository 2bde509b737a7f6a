"""Documents of Zarr version 3 (``zarr.json``), read and written; no store is touched here.

Specification: Zarr v3 core, "Metadata"; consolidated metadata as zarr-python writes them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Literal, cast

import msgspec
import numpy as np

from xzarr3._types import JSON, Buffer
from xzarr3.chunk_keys import ChunkKeyEncoding
from xzarr3.codecs.registry import codecs_from_json
from xzarr3.dtypes.registry import registry
from xzarr3.errors import MetadataError, UnknownExtensionError, shorten
from xzarr3.grids import RegularGrid
from xzarr3.metadata import ArrayMetadata, GroupMetadata, NodeMetadata, check_shape

DOCUMENT = "zarr.json"
_MAX_DEPTH = 200

_Extension = str | dict[str, Any]
_EXTENSION = "a name, or an object with 'name' and, if needed, 'configuration'"
_ACCEPTED = {
    "shape": "an array of integers",
    "data_type": _EXTENSION,
    "chunk_grid": _EXTENSION,
    "chunk_key_encoding": _EXTENSION,
    "fill_value": "a value of the data type",
    "codecs": "an array of codecs",
    "kind": "'inline'",
    "metadata": "an object of documents by path",
    "must_understand": "false",
}


class _ArrayDocument(msgspec.Struct):
    zarr_format: Literal[3]
    node_type: Literal["array"]
    shape: list[int]
    data_type: _Extension
    chunk_grid: _Extension
    chunk_key_encoding: _Extension
    fill_value: Any
    codecs: list[_Extension]
    attributes: dict[str, Any] = {}
    dimension_names: list[str | None] | None = None
    storage_transformers: list[_Extension] = []


class _GroupDocument(msgspec.Struct):
    zarr_format: Literal[3]
    node_type: Literal["group"]
    attributes: dict[str, Any] = {}
    consolidated_metadata: dict[str, Any] | None = None


class _Consolidated(msgspec.Struct):
    kind: Literal["inline"]
    metadata: dict[str, dict[str, Any]]
    must_understand: Literal[False] = False


_ARRAY_FIELDS = frozenset(_ArrayDocument.__struct_fields__)
_GROUP_FIELDS = frozenset(_GroupDocument.__struct_fields__)


def decode(data: Buffer, path: str = "") -> dict[str, Any]:
    """The JSON object that a stored document holds.

    The literals ``NaN`` and ``Infinity``, which JSON lacks and older writers used, are read.

    Raises
    ------
    MetadataError
        If it is not a JSON object.
    """
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        try:
            document = json.loads(bytes(data))
        except (ValueError, RecursionError):
            raise MetadataError(
                f"not a JSON document: {error}", path=path, field=DOCUMENT, found=bytes(data[:60])
            ) from error
    if not isinstance(document, dict):
        raise MetadataError(
            "not a metadata document", path=path, field=DOCUMENT, found=document, accepted="a JSON object"
        )
    return document


def encode(document: Mapping[str, Any], path: str = "") -> bytes:
    """A document as it is stored.

    Raises
    ------
    MetadataError
        If it holds what JSON cannot.

    Examples
    --------
    >>> encode({"a": float("nan")})
    Traceback (most recent call last):
    xzarr3.errors.MetadataError: node '/', field 'a': cannot be written as JSON; found nan; accepted: ...
    """
    try:
        return json.dumps(document, indent=2, allow_nan=False, default=_without_numpy).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise _unwritable(path, *(_not_json(document) or ("", ...))) from error


def plain_attributes(attributes: Mapping[str, Any], path: str | None = None) -> dict[str, Any]:
    """A copy of ``attributes`` as they are once they have been written and read again.

    Raises
    ------
    MetadataError
        If they hold what JSON cannot, such as keys that are no strings.

    Examples
    --------
    >>> plain_attributes({"valid_range": (0, np.int16(7))})
    {'valid_range': [0, 7]}
    """
    whole = {"attributes": dict(attributes)}
    bad = _not_json(whole)
    if bad is not None:
        raise _unwritable(path, *bad)
    plain: dict[str, Any] = json.loads(json.dumps(whole, default=_without_numpy))["attributes"]
    return plain


def _unwritable(path: str | None, field: str, found: object) -> MetadataError:
    return MetadataError(
        "cannot be written as JSON", path=path, field=field.strip(".") or None, found=found,
        accepted="objects with string keys, arrays, strings, finite numbers, booleans and null",
    )  # fmt: skip


def _without_numpy(value: object) -> object:
    """Scalars and arrays of numpy as those of Python, which JSON has."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not a type of JSON")


def _not_json(value: Any, depth: int = 0) -> tuple[str, object] | None:
    """Where in ``value`` there is something that JSON cannot hold, and what it is."""
    if depth > _MAX_DEPTH:
        return "", value
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                return "", key
        items = [(f".{key}", item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        items = [(f"[{at}]", item) for at, item in enumerate(value)]
    elif (
        value is None or isinstance(value, (str, int)) or (isinstance(value, float) and math.isfinite(value))
    ):
        return None
    else:
        return "", value
    for place, item in items:
        inner = _not_json(item, depth + 1)
        if inner is not None:
            return place + inner[0], inner[1]
    return None


def parse(document: Mapping[str, Any], path: str = "") -> NodeMetadata:
    """What a document says.

    Raises
    ------
    MetadataError
        If it is not a valid document of an array or a group; the error names the field.
    UnknownExtensionError
        If it asks for an extension that is not known here.
    """
    version = document.get("zarr_format")
    if version != 3 or isinstance(version, bool):
        raise MetadataError(
            "not a format that can be read", path=path, field="zarr_format", found=version, accepted="3"
        )
    kind = document.get("node_type")
    try:
        if kind == "array":
            return _parse_array(document)
        if kind == "group":
            return _parse_group(document)
    except MetadataError as error:
        error.at(path=path)
        raise
    except RecursionError as error:
        raise MetadataError(
            "nested too deeply", path=path, field=DOCUMENT, accepted="fewer codecs within codecs"
        ) from error
    raise MetadataError(
        "not a type of node", path=path, field="node_type", found=kind, accepted="'array', 'group'"
    )


def _convert(
    document: Mapping[str, Any], fields: frozenset[str], cls: type[Any]
) -> tuple[Any, dict[str, JSON]]:
    """The typed document, and the unknown fields that need not be understood."""
    ignored: dict[str, JSON] = {}
    for field in document.keys() - fields:
        value = document[field]
        if not (isinstance(value, dict) and value.get("must_understand") is False):
            raise UnknownExtensionError(
                "unknown field",
                field=field,
                found=value,
                accepted="fields marked '\"must_understand\": false'",
            )
        ignored[field] = value
    try:
        return msgspec.convert(document, cls), ignored
    except msgspec.ValidationError as error:
        raise _invalid(error, document) from error


def _invalid(error: msgspec.ValidationError, document: Mapping[str, Any], within: str = "") -> MetadataError:
    """The error for a field of another type than it must have, or that is missing."""
    reason, _, place = str(error).partition(" - at `$")
    field = within + place.strip("`")
    missing = re.fullmatch("Object missing required field `(.*)`", reason)
    if missing is not None:
        name = missing[1]
        return MetadataError("missing field", field=f"{field}.{name}".strip("."), accepted=_ACCEPTED[name])
    field = field.strip(".")
    wanted = re.match("Expected `(.*?)`", reason)
    accepted = _ACCEPTED.get(field.rpartition(".")[2]) if wanted is None else wanted[1].replace(" | ", " or ")
    return MetadataError(reason, field=field or None, found=_dig(document, field), accepted=accepted)


def _dig(document: Any, field: str) -> object:
    """The value of a field such as ``shape[0]``, as far as it can be found."""
    for name in field.replace("[", ".").replace("]", "").split("."):
        if isinstance(document, Mapping) and name in document:
            document = document[name]
        elif isinstance(document, list) and name.isdigit() and int(name) < len(document):
            document = document[int(name)]
        else:
            return ... if isinstance(document, Mapping) else document
    return document


def _extension(value: Any, field: str) -> tuple[str, dict[str, Any]]:
    """Name and configuration of an extension point that must be understood."""
    if isinstance(value, str):
        return value, {}
    for key in value.keys() - {"name", "configuration", "must_understand"}:
        raise UnknownExtensionError(
            "unknown field", field=f"{field}.{key}", found=value[key], accepted=_EXTENSION
        )
    if value.get("must_understand", True) is not True:
        raise MetadataError(
            "this field must be understood",
            field=f"{field}.must_understand",
            found=value["must_understand"],
            accepted="true, or no such field",
        )
    name, configuration = value.get("name"), value.get("configuration", {})
    if not isinstance(name, str) or not isinstance(configuration, dict):
        raise MetadataError("not an extension", field=field, found=value, accepted=_EXTENSION)
    return name, configuration


def _known(configuration: Mapping[str, Any], accepted: set[str], field: str) -> None:
    for key in configuration.keys() - accepted:
        if not (isinstance(configuration[key], dict) and configuration[key].get("must_understand") is False):
            raise UnknownExtensionError(
                "unknown field", field=f"{field}.configuration.{key}", found=configuration[key],
                accepted=", ".join(sorted(accepted)),
            )  # fmt: skip


def _parse_array(document: Mapping[str, Any]) -> ArrayMetadata:
    typed, ignored = _convert(document, _ARRAY_FIELDS, _ArrayDocument)
    shape = tuple(typed.shape)
    check_shape(shape)
    for at, transformer in enumerate(typed.storage_transformers):
        if not (isinstance(transformer, dict) and transformer.get("must_understand") is False):
            raise UnknownExtensionError(
                "unknown storage transformer",
                field=f"storage_transformers[{at}]",
                found=transformer,
                accepted="none",
            )
    if typed.storage_transformers:
        ignored["storage_transformers"] = document["storage_transformers"]
    named = _data_type(typed.data_type)
    try:
        data_type = registry.match_json(named, zarr_format=3)
    except MetadataError as error:
        error.at(field="data_type")
        raise
    try:
        fill_value = data_type.from_json_scalar(typed.fill_value, zarr_format=3)
    except MetadataError as error:
        error.at(field="fill_value")
        raise
    names = typed.dimension_names
    if names is not None and len(names) != len(shape):
        raise MetadataError(
            f"the array has {len(shape)} dimensions", field="dimension_names", found=names,
            accepted=f"{len(shape)} strings or nulls",
        )  # fmt: skip
    codecs = codecs_from_json(typed.codecs)
    if len(codecs) != len(typed.codecs):
        ignored["codecs"] = document["codecs"]  # Some need not be understood here, but stay in the document.
    meta = ArrayMetadata(
        shape=shape,
        data_type=data_type,
        chunk_grid=_chunk_grid(typed.chunk_grid, shape),
        chunk_key_encoding=_chunk_key_encoding(typed.chunk_key_encoding),
        fill_value=fill_value,
        codecs=codecs,
        attributes=typed.attributes,
        dimension_names=None if names is None else tuple(names),
        ignored=ignored,
    )
    _ = meta.chain  # Codecs that do not fit the array are found now and not at the first chunk.
    return meta


def _data_type(value: Any) -> JSON:
    name, configuration = _extension(value, "data_type") if isinstance(value, dict) else (value, {})
    return {"name": name, "configuration": configuration} if configuration else cast("JSON", name)


def _chunk_grid(value: Any, shape: tuple[int, ...]) -> RegularGrid:
    name, configuration = _extension(value, "chunk_grid")
    if name != RegularGrid.name:
        raise UnknownExtensionError(
            "unknown chunk grid", field="chunk_grid.name", found=name, accepted=f"'{RegularGrid.name}'"
        )
    _known(configuration, {"chunk_shape"}, "chunk_grid")
    lengths = configuration.get("chunk_shape")
    if not isinstance(lengths, list) or not all(type(n) is int and 0 <= n < 2**63 for n in lengths):
        raise MetadataError(
            "not a chunk shape", field="chunk_grid.configuration.chunk_shape", found=lengths,
            accepted=f"{len(shape)} integers of at least 1",
        )  # fmt: skip
    grid = RegularGrid(tuple(lengths))
    grid.check(shape)
    return grid


def _chunk_key_encoding(value: Any) -> ChunkKeyEncoding:
    name, configuration = _extension(value, "chunk_key_encoding")
    _known(configuration, {"separator"}, "chunk_key_encoding")
    if "separator" not in configuration:
        return ChunkKeyEncoding(name)
    separator = configuration["separator"]
    return ChunkKeyEncoding(
        name, separator if isinstance(separator, str) and separator else shorten(separator)
    )


def _parse_group(document: Mapping[str, Any]) -> GroupMetadata:
    typed, ignored = _convert(document, _GROUP_FIELDS, _GroupDocument)
    consolidated = None
    if typed.consolidated_metadata is not None:
        try:
            consolidated = msgspec.convert(typed.consolidated_metadata, _Consolidated).metadata
        except msgspec.ValidationError as error:
            raise _invalid(error, document, "consolidated_metadata") from error
        for key in consolidated:
            if not key or any(name in ("", ".", "..") for name in key.split("/")):
                raise MetadataError(
                    "not a path of a node", field="consolidated_metadata.metadata", found=key,
                    accepted="names separated by single '/', none of them empty, '.' or '..'",
                )  # fmt: skip
    return GroupMetadata(attributes=typed.attributes, consolidated=consolidated, ignored=ignored)


def document(meta: NodeMetadata, consolidated: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The document that says what ``meta`` says.

    Parameters
    ----------
    meta : ArrayMetadata or GroupMetadata
    consolidated : mapping of str to document, optional
        The documents of all nodes below a group, to be held in its own.
    """
    if isinstance(meta, GroupMetadata):
        group: dict[str, Any] = {
            "zarr_format": 3,
            "node_type": "group",
            "attributes": dict(meta.attributes),
            **meta.ignored,
        }
        if consolidated is not None:
            group["consolidated_metadata"] = {
                "kind": "inline",
                "must_understand": False,
                "metadata": dict(consolidated),
            }
        return group
    array: dict[str, Any] = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(meta.shape),
        "data_type": meta.data_type.to_json(3),
        "chunk_grid": {"name": meta.chunk_grid.name, "configuration": meta.chunk_grid.configuration()},
        "chunk_key_encoding": meta.chunk_key_encoding.to_json(),
        "fill_value": meta.data_type.to_json_scalar(meta.fill_value, zarr_format=3),
        "codecs": [codec.to_json() for codec in meta.codecs],
        "attributes": dict(meta.attributes),
        **meta.ignored,
    }
    if meta.dimension_names is not None:
        array["dimension_names"] = list(meta.dimension_names)
    return array
