"""The format of Zarr version 3: parses and makes the documents ``zarr.json``. Makes no requests to a store.

Specification: Zarr v3 core, "Metadata". Consolidated metadata have the form of zarr-python.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, cast

import msgspec

from xzarr3._types import JSON
from xzarr3.codecs.base import Codec
from xzarr3.codecs.bytes import BytesCodec
from xzarr3.codecs.registry import codecs_from_json
from xzarr3.dtypes.registry import registry
from xzarr3.errors import MetadataError, UnknownExtensionError, shorten
from xzarr3.extensions import EXTENSION, is_optional, parse_extension, unknown_fields
from xzarr3.formats.base import (
    Document,
    DocumentKey,
    Format,
    check_path_below,
    fill_value_from_json,
    node_prefix,
)
from xzarr3.grid import Grid, parse_grid
from xzarr3.model.chunk_keys import ChunkKeyEncoding
from xzarr3.model.metadata import ArrayMetadata, GroupMetadata, NodeMetadata, check_shape
from xzarr3.model.storage_transformers import StorageTransformer, storage_transformer

DOCUMENT = "zarr.json"
_EARLY_STRUCT = "structured"

_Extension = str | dict[str, Any]
_ACCEPTED = {
    "shape": "an array of integers",
    "data_type": EXTENSION,
    "chunk_grid": EXTENSION,
    "chunk_key_encoding": EXTENSION,
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


def parse(document: Mapping[str, Any], path: str = "") -> NodeMetadata:
    """Parse a document.

    Raises
    ------
    MetadataError
        If it is not a valid document of an array or a group; the error names the field.
    UnknownExtensionError
        If it needs an unknown extension.
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
    ignored = unknown_fields(document, fields, "fields marked '\"must_understand\": false'")
    try:
        return msgspec.convert(document, cls), ignored
    except msgspec.ValidationError as error:
        raise _invalid(error, document) from error


def _invalid(error: msgspec.ValidationError, document: Mapping[str, Any], within: str = "") -> MetadataError:
    """The error for a field that is missing or has a wrong type."""
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
    """The value of a field such as ``shape[0]``, as far as it can be found; Ellipsis if it is missing."""
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
    try:
        found = parse_extension(value)
    except MetadataError as error:
        error.at(field=field)
        raise
    if found.optional:
        raise MetadataError(
            "this field must be understood",
            field=f"{field}.must_understand",
            found=False,
            accepted="true, or no such field",
        )
    if not isinstance(found.configuration, dict):
        raise MetadataError("not an extension", field=field, found=value, accepted=EXTENSION)
    return found.name, found.configuration


def _parse_array(document: Mapping[str, Any]) -> ArrayMetadata:
    typed, ignored = _convert(document, _ARRAY_FIELDS, _ArrayDocument)
    shape = tuple(typed.shape)
    check_shape(shape)
    transformers = tuple(_storage_transformers(typed.storage_transformers))
    if len(transformers) != len(typed.storage_transformers):
        ignored["storage_transformers"] = document["storage_transformers"]
    named = _data_type(typed.data_type)
    try:
        data_type = registry.match_json(named, zarr_format=3)
    except MetadataError as error:
        error.at(field="data_type")
        raise
    fill_value = fill_value_from_json(data_type, typed.fill_value, 3)
    names = typed.dimension_names
    if names is not None and len(names) != len(shape):
        raise MetadataError(
            f"the array has {len(shape)} dimensions", field="dimension_names", found=names,
            accepted=f"{len(shape)} strings or nulls",
        )  # fmt: skip
    codecs = codecs_from_json(typed.codecs)
    if len(codecs) != len(typed.codecs):
        ignored["codecs"] = document["codecs"]  # Skipped optional codecs must stay in the document.
    if data_type.has_byte_order and isinstance(named, dict) and named["name"] == _EARLY_STRUCT:
        codecs = tuple(map(_little, codecs))
    meta = ArrayMetadata(
        shape=shape,
        data_type=data_type,
        chunk_grid=_chunk_grid(typed.chunk_grid, shape),
        chunk_key_encoding=_chunk_key_encoding(typed.chunk_key_encoding),
        fill_value=fill_value,
        codecs=codecs,
        attributes=typed.attributes,
        dimension_names=None if names is None else tuple(names),
        storage_transformers=transformers,
        ignored=ignored,
    )
    meta.check_codecs()  # Codecs that do not fit the array fail now and not at the first chunk.
    return meta


def _little(codec: Codec) -> Codec:
    """A codec with the byte order that the first writers of structs left out: they meant little endian."""
    if isinstance(codec, BytesCodec) and codec.endian is None:
        return replace(codec, endian="little")
    inner = getattr(codec, "codecs", None)
    return codec if inner is None else replace(codec, codecs=tuple(map(_little, inner)))  # type: ignore[type-var]


def _data_type(value: Any) -> JSON:
    name, configuration = _extension(value, "data_type") if isinstance(value, dict) else (value, {})
    return {"name": name, "configuration": configuration} if configuration else cast("JSON", name)


def _chunk_grid(value: Any, shape: tuple[int, ...]) -> Grid:
    name, configuration = _extension(value, "chunk_grid")
    return parse_grid(name, configuration, shape)


def _storage_transformers(values: list[Any]) -> Iterator[StorageTransformer]:
    """The known storage transformers. Skips an unknown one that need not be understood."""
    for at, value in enumerate(values):
        field = f"storage_transformers[{at}]"
        try:
            found = parse_extension(value, "a storage transformer")
            if not isinstance(found.configuration, dict):
                raise MetadataError("not an extension", found=value, accepted=EXTENSION)
            yield storage_transformer(found.name, found.configuration)
        except MetadataError as error:
            if is_optional(value) and isinstance(error, UnknownExtensionError):
                continue
            error.at(field=field)
            raise


def _chunk_key_encoding(value: Any) -> ChunkKeyEncoding:
    name, configuration = _extension(value, "chunk_key_encoding")
    unknown_fields(configuration, ("separator",), "separator", within="chunk_key_encoding.configuration")
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
            check_path_below(key, "consolidated_metadata.metadata")
    return GroupMetadata(attributes=typed.attributes, consolidated=consolidated, ignored=ignored)


def document(meta: NodeMetadata, consolidated: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The document for ``meta``.

    Parameters
    ----------
    meta : ArrayMetadata or GroupMetadata
    consolidated : mapping of str to document, optional
        The documents of all nodes below a group, for its consolidated metadata.
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
    if meta.fill_is_null:
        raise MetadataError(
            "version 3 needs a fill value", field="fill_value", accepted="a value of the data type"
        )
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
    if meta.storage_transformers and "storage_transformers" not in array:
        array["storage_transformers"] = [each.to_json() for each in meta.storage_transformers]
    return array


@dataclass(frozen=True)
class V3Format(Format):
    """Zarr version 3: one document for each node, next to the chunks or nodes below it."""

    zarr_format: ClassVar[Literal[3]] = 3
    _taken_names: ClassVar[tuple[str, ...]] = (DOCUMENT,)

    def document_keys(self, path: str) -> tuple[str, ...]:
        return (node_prefix(path) + DOCUMENT,)

    def defining_keys(self, path: str) -> tuple[str, ...]:
        return (node_prefix(path) + DOCUMENT,)

    def array_key(self, path: str) -> str:
        return node_prefix(path) + DOCUMENT

    def attributes_key(self, path: str, *, array: bool) -> str:
        return node_prefix(path) + DOCUMENT

    def place(self, key: str) -> DocumentKey | None:
        path, _, name = key.rpartition("/")
        return DocumentKey(path, "node") if name == DOCUMENT else None

    def child_names(
        self, keys: Iterable[str], prefixes: Iterable[str], path: str
    ) -> tuple[set[str], set[str]]:
        skipped = len(node_prefix(path))
        # The specification reserves names that begin with "__", but xarray gives such a name to an array
        # without a name.
        names = {below[skipped:-1] for below in prefixes}
        return set(), {name for name in names if not name.startswith("__zarr")}

    def reading_keys(
        self, path: str, *, consolidated: bool = True, listed: Collection[str] | None = None
    ) -> tuple[str, ...]:
        return self.document_keys(path)

    def held(self, path: str, found: Mapping[str, Document]) -> Document | None:
        return found.get(node_prefix(path) + DOCUMENT)

    def is_array(self, held: Document) -> bool:
        return held.get("node_type") == "array"

    def parse(self, held: Document, path: str) -> NodeMetadata:
        return parse(held, path)

    def hold(self, meta: NodeMetadata, path: str = "") -> Document:
        return document(meta)

    def documents(
        self, meta: NodeMetadata, path: str, consolidated: Mapping[str, Document] | None = None
    ) -> dict[str, Document]:
        if consolidated is not None:
            consolidated = {key: self.without_consolidated(held) for key, held in consolidated.items()}
        return {node_prefix(path) + DOCUMENT: document(meta, consolidated)}

    def consolidated_key(self, path: str) -> str:
        return node_prefix(path) + DOCUMENT

    def without_consolidated(self, held: Document) -> Document:
        return {field: value for field, value in held.items() if field != "consolidated_metadata"}

    def update_consolidated(
        self, document: Document, relative: str, meta: NodeMetadata | None
    ) -> Document | None:
        consolidated = document.get("consolidated_metadata")
        held = consolidated.get("metadata") if isinstance(consolidated, dict) else None
        if not relative or not isinstance(consolidated, dict) or not isinstance(held, dict):
            return None
        if meta is None:
            below = f"{relative}/"
            left = {k: d for k, d in held.items() if k != relative and not k.startswith(below)}
        else:
            left = _with_node(held, relative, self.hold(meta))
        return {**document, "consolidated_metadata": {**consolidated, "metadata": left}}


def _with_node(held: Document, relative: str, document: Document) -> Document:
    """Documents with the document of one more node, placed after the other nodes below the same group.

    zarr-python 3.1 loses documents of nodes of one group that are not next to each other.
    """
    above = relative.rpartition("/")[0]
    if relative in held or not above:
        return {**held, relative: document}
    paths = list(held)
    beside = [at for at, path in enumerate(paths) if path == above or path.startswith(f"{above}/")]
    paths.insert(beside[-1] + 1 if beside else len(paths), relative)
    return {path: held.get(path, document) for path in paths}


V3 = V3Format()
