"""The format of Zarr version 3: parses and makes the documents ``zarr.json``. Makes no requests to a store.

Specification: Zarr v3 core, "Metadata". Consolidated metadata have the form of zarr-python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, cast

import msgspec

from xzarr3 import fields
from xzarr3._types import JSON
from xzarr3.codecs.base import Codec
from xzarr3.codecs.bytes import BytesCodec
from xzarr3.codecs.registry import codecs_from_json
from xzarr3.dtypes.registry import registry
from xzarr3.errors import MetadataError, UnknownExtensionError, located
from xzarr3.extensions import EXTENSION, is_optional, json_key, parse_extension, remembered, unknown_fields
from xzarr3.fields import Meta
from xzarr3.formats.base import (
    Document,
    DocumentKey,
    Format,
    Keys,
    check_path_below,
    fill_value_from_json,
    node_prefix,
    without_consolidated,
)
from xzarr3.formats.documents import Stored
from xzarr3.grid import parse_grid
from xzarr3.model.chunk_keys import chunk_key_encoding
from xzarr3.model.metadata import ArrayMetadata, GroupMetadata, NodeMetadata, check_shape
from xzarr3.model.storage_transformers import StorageTransformer, storage_transformer

DOCUMENT = "zarr.json"
_EARLY_STRUCT = "structured"

_Extension = Annotated[str | dict[str, Any], Meta(description=EXTENSION)]


class _ArrayDocument(msgspec.Struct, frozen=True):
    zarr_format: Literal[3]
    node_type: Literal["array"]
    shape: list[int]
    data_type: _Extension
    chunk_grid: _Extension
    chunk_key_encoding: _Extension
    fill_value: Annotated[Any, Meta(description="a value of the data type")]
    codecs: list[_Extension]
    attributes: dict[str, Any] = msgspec.field(default_factory=dict)
    dimension_names: list[str | None] | None = None
    storage_transformers: list[_Extension] = msgspec.field(default_factory=list)


class _GroupDocument(msgspec.Struct, frozen=True):
    zarr_format: Literal[3]
    node_type: Literal["group"]
    attributes: dict[str, Any] = msgspec.field(default_factory=dict)
    consolidated_metadata: dict[str, Any] | None = None


class _Consolidated(msgspec.Struct, frozen=True):
    kind: Literal["inline"]
    metadata: Annotated[dict[str, dict[str, Any]], Meta(description="an object of documents by path")]
    must_understand: Literal[False] = False


_LONG = 4096  # Bytes of a document; the metadata of longer ones are not kept.
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
        with located(path=path):
            if kind == "array":  # What is stored by itself tells when it was put in its place.
                return (_parse_array if isinstance(document, Stored) else _parse_copy)(document)
            if kind == "group":
                return _parse_group(document)
    except RecursionError as error:
        raise MetadataError(
            "nested too deeply", path=path, field=DOCUMENT, accepted="fewer codecs within codecs"
        ) from error
    raise MetadataError(
        "not a type of node", path=path, field="node_type", found=kind, accepted="'array', 'group'"
    )


def _extension(value: Any, field: str) -> tuple[str, dict[str, Any]]:
    """Name and configuration of an extension point that must be understood."""
    with located(field=field):
        found = parse_extension(value)
    if found.optional:
        raise MetadataError(
            "this field must be understood",
            field=f"{field}.must_understand",
            found=False,
            accepted="true, or no such field",
        )
    return found.name, found.configuration


def _parse_array(document: Mapping[str, Any]) -> ArrayMetadata:
    attributes = document.get("attributes", {})
    rest = {name: value for name, value in document.items() if name != "attributes"}
    key = json_key(rest)
    if not isinstance(attributes, dict) or not isinstance(key, bytes) or len(key) > _LONG:
        return _read_array(document)
    return remembered(("array", key), lambda: _read_array(rest)).like(document, attributes)


def _parse_copy(document: Mapping[str, Any]) -> ArrayMetadata:
    """The metadata of an array in consolidated metadata: one object for the equal ones of many stores."""
    key = json_key(document)
    if not isinstance(key, bytes) or len(key) > _LONG:
        return _parse_array(document)
    return remembered(("copy", key), lambda: _parse_array(document))


def _read_array(document: Mapping[str, Any]) -> ArrayMetadata:
    ignored = unknown_fields(document, _ARRAY_FIELDS, "fields marked '\"must_understand\": false'")
    typed = fields.document(_ArrayDocument, document)
    shape = tuple(typed.shape)
    check_shape(shape)
    transformers = tuple(_storage_transformers(typed.storage_transformers))
    named = _data_type(typed.data_type)
    with located(field="data_type"):
        data_type = registry.match_json(named, zarr_format=3)
    fill_value = fill_value_from_json(data_type, typed.fill_value, 3)
    names = typed.dimension_names
    if names is not None and len(names) != len(shape):
        raise MetadataError(
            f"the array has {len(shape)} dimensions", field="dimension_names", found=names,
            accepted=f"{len(shape)} strings or nulls",
        )  # fmt: skip
    codecs = codecs_from_json(cast("JSON", typed.codecs))
    if data_type.has_byte_order and isinstance(named, dict) and named["name"] == _EARLY_STRUCT:
        codecs = tuple(map(_little, codecs))
    meta = ArrayMetadata(
        shape=shape,
        data_type=data_type,
        chunk_grid=parse_grid(*_extension(typed.chunk_grid, "chunk_grid"), shape),
        chunk_key_encoding=chunk_key_encoding(*_extension(typed.chunk_key_encoding, "chunk_key_encoding")),
        fill_value=fill_value,
        codecs=codecs,
        attributes=typed.attributes,
        dimension_names=None if names is None else tuple(names),
        storage_transformers=transformers,
    )
    meta.check_codecs()  # Codecs that do not fit the array fail now and not at the first chunk.
    return meta.read_from(document, ignored)


def _little(codec: Codec) -> Codec:
    """A codec with the byte order that the first writers of structs left out: they meant little endian."""
    if isinstance(codec, BytesCodec) and codec.endian is None:
        return replace(codec, endian="little")
    inner = getattr(codec, "codecs", None)
    return codec if inner is None else replace(codec, codecs=tuple(map(_little, inner)))  # type: ignore[type-var]


def _data_type(value: Any) -> JSON:
    name, configuration = _extension(value, "data_type") if isinstance(value, dict) else (value, {})
    return {"name": name, "configuration": configuration} if configuration else cast("JSON", name)


def _storage_transformers(values: list[Any]) -> Iterator[StorageTransformer]:
    """The known storage transformers. Skips an unknown one that need not be understood."""
    for at, value in enumerate(values):
        try:
            with located(field=f"storage_transformers[{at}]"):
                found = parse_extension(value, "a storage transformer")
                yield storage_transformer(found.name, found.configuration)
        except UnknownExtensionError:
            if not is_optional(value):
                raise


def _parse_group(document: Mapping[str, Any]) -> GroupMetadata:
    ignored = unknown_fields(document, _GROUP_FIELDS, "fields marked '\"must_understand\": false'")
    typed = fields.document(_GroupDocument, document)
    consolidated = None
    if typed.consolidated_metadata is not None:
        within = "consolidated_metadata"
        consolidated = fields.document(_Consolidated, typed.consolidated_metadata, within).metadata
        for key in consolidated:
            check_path_below(key, "consolidated_metadata.metadata")
    meta = GroupMetadata(attributes=typed.attributes, consolidated=consolidated)
    return meta.read_from(document, ignored)


def document(meta: NodeMetadata, consolidated: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The document for ``meta``.

    Parameters
    ----------
    meta : ArrayMetadata or GroupMetadata
    consolidated : mapping of str to document, optional
        The documents of all nodes below a group, for its consolidated metadata.
    """
    if isinstance(meta, GroupMetadata):
        found = {"zarr_format": 3, "node_type": "group", **(meta.source or {})}
        found.pop("consolidated_metadata", None)
        if not meta.is_as_read("attributes"):
            found["attributes"] = dict(meta.attributes)
        if consolidated is not None:
            found["consolidated_metadata"] = {
                "kind": "inline",
                "must_understand": False,
                "metadata": dict(consolidated),
            }
        return found
    if meta.fill_is_null:
        raise MetadataError(
            "version 3 needs a fill value", field="fill_value", accepted="a value of the data type"
        )
    found = {"zarr_format": 3, "node_type": "array", **(meta.source or {})}
    if meta.is_as_read(*_TO_JSON):
        return found
    for field, to_json in _TO_JSON.items():
        if not meta.is_as_read(field, *(("data_type",) if field == "fill_value" else ())):
            found[field] = to_json(meta)
    known = meta.source or {}
    if meta.dimension_names is None and "dimension_names" not in known:
        found.pop("dimension_names", None)
    if not meta.storage_transformers and "storage_transformers" not in known:
        found.pop("storage_transformers", None)
    return found


_TO_JSON: dict[str, Callable[[ArrayMetadata], JSON]] = {
    "shape": lambda meta: list(meta.shape),
    "data_type": lambda meta: meta.data_type.to_json(3),
    "chunk_grid": lambda meta: {
        "name": meta.chunk_grid.name, "configuration": meta.chunk_grid.configuration()
    },
    "chunk_key_encoding": lambda meta: meta.chunk_key_encoding.to_json(),
    "fill_value": lambda meta: meta.data_type.to_json_scalar(meta.fill_value, zarr_format=3),
    "codecs": lambda meta: [codec.to_json() for codec in meta.codecs],
    "attributes": lambda meta: dict(meta.attributes),
    "dimension_names": lambda meta: None if meta.dimension_names is None else list(meta.dimension_names),
    "storage_transformers": lambda meta: [each.to_json() for each in meta.storage_transformers],
}  # fmt: skip
"""The fields of a document, and how each is made; a fill value depends on the data type, too."""


class V3Keys(Keys):
    """Keys in version 3: one document for each node, next to the chunks or nodes below it."""

    __slots__ = ()

    @property
    def documents(self) -> tuple[str, ...]:
        return (self.array,)

    @property
    def array(self) -> str:
        return node_prefix(self.path) + DOCUMENT

    def attributes(self, *, array: bool) -> str:
        return self.array

    @property
    def consolidated(self) -> str:
        return self.array

    def child_names(self, keys: Iterable[str], prefixes: Iterable[str]) -> tuple[set[str], set[str]]:
        skipped = len(self.listing)
        # The specification reserves names that begin with "__", but xarray gives such a name to an array
        # without a name.
        names = {below[skipped:-1] for below in prefixes}
        return set(), {name for name in names if not name.startswith("__zarr")}


class V3Format(Format):
    """Zarr version 3."""

    zarr_format: ClassVar[Literal[3]] = 3
    rectilinear_grids: ClassVar[bool] = True
    _taken_names: ClassVar[tuple[str, ...]] = (DOCUMENT,)

    def keys(self, path: str) -> V3Keys:
        return V3Keys(path)

    def place(self, key: str) -> DocumentKey | None:
        path, _, name = key.rpartition("/")
        return DocumentKey(path, "node") if name == DOCUMENT else None

    def held(self, path: str, found: Mapping[str, Document]) -> Document | None:
        return found.get(node_prefix(path) + DOCUMENT)

    def parse(self, held: Document, path: str) -> NodeMetadata:
        return parse(held, path)

    def hold(self, meta: NodeMetadata, path: str = "") -> Document:
        return document(meta)

    def documents(
        self, meta: NodeMetadata, path: str, consolidated: Mapping[str, Document] | None = None
    ) -> dict[str, Document]:
        if consolidated is not None:
            consolidated = {key: without_consolidated(held) for key, held in consolidated.items()}
        return {node_prefix(path) + DOCUMENT: document(meta, consolidated)}

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
