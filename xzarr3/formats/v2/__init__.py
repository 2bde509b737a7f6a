"""The format of Zarr version 2: parses and makes the documents ``.zarray``, ``.zgroup`` and ``.zattrs``.

Specification: Zarr v2, "Arrays", "Hierarchies", "Attributes". Consolidated metadata (``.zmetadata``) and
object codecs have the form of zarr-python. Dimension names have the form of xarray (``_ARRAY_DIMENSIONS``) or
netCDF-C (NCZarr). All other attributes and fields of NCZarr are kept unchanged. Makes no requests to a store.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import ClassVar, Literal

from xzarr3._types import JSON
from xzarr3.codecs.base import ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec, Codec
from xzarr3.codecs.bytes import BytesCodec
from xzarr3.dtypes import ZDType
from xzarr3.errors import FOREIGN_ERRORS, InvalidKeyError, MetadataError, listed
from xzarr3.formats.base import Document, DocumentKey, Fetch, Format, Keys, fill_value_from_json, node_prefix
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
from xzarr3.model.metadata import ArrayMetadata, GroupMetadata, NodeMetadata

# Documents of netCDF-C 4.8.0. Later versions use attributes, or fields of the other documents.
_NCZARR = (".nczarr", ".nczgroup", NCZARR_ARRAY, ".nczvar", ".nczattr", ".nczattrs")
_KINDS: dict[str, Literal["array", "group", "other"]] = {ARRAY: "array", GROUP: "group"}
_KINDS.update(dict.fromkeys((ATTRIBUTES, CONSOLIDATED, *_NCZARR), "other"))


class V2Keys(Keys):
    """Keys in version 2: two documents for each node, one of them for its attributes."""

    __slots__ = ()
    one_document = False

    @property
    def documents(self) -> tuple[str, ...]:
        return tuple(node_prefix(self.path) + name for name in _KINDS)

    @property
    def defining(self) -> tuple[str, ...]:
        return (self.array, node_prefix(self.path) + GROUP)

    @property
    def array(self) -> str:
        return node_prefix(self.path) + ARRAY

    def attributes(self, *, array: bool) -> str:
        return node_prefix(self.path) + ATTRIBUTES

    @property
    def consolidated(self) -> str:
        return node_prefix(self.path) + CONSOLIDATED

    def child_names(self, keys: Iterable[str], prefixes: Iterable[str]) -> tuple[set[str], set[str]]:
        skipped = len(self.listing)
        return set(), {below[skipped:-1] for below in prefixes}

    def to_read(self, *, consolidated: bool = True, listed: Collection[str] | None = None) -> tuple[str, ...]:
        names = [*OWN]
        if consolidated:
            names.append(CONSOLIDATED)
        if listed is None or any(key.rpartition("/")[2] in _NCZARR for key in listed):
            names.append(NCZARR_ARRAY)  # Exists only if the parent group has documents of NCZarr.
        return tuple(node_prefix(self.path) + name for name in names)


class V2Format(Format):
    """Zarr version 2."""

    zarr_format: ClassVar[Literal[2]] = 2
    chunk_key_encoding: ClassVar[ChunkKeyEncoding] = ChunkKeyEncoding("v2")
    filter_kinds: ClassVar[type[Codec] | tuple[type[Codec], ...]] = (ArrayArrayCodec, BytesBytesCodec)
    _taken_names: ClassVar[tuple[str, ...]] = (*_KINDS, "zarr.json")

    def usual_codecs(self, data_type: ZDType) -> tuple[ArrayBytesCodec, str]:
        """See :meth:`Format.usual_codecs`. The elements are stored in the byte order of their data type."""
        serializer, compressor = super().usual_codecs(data_type)
        if isinstance(serializer, BytesCodec) and data_type.byte_order == "big":
            serializer = replace(serializer, endian="big")
        return serializer, compressor

    def adopt(self, meta: ArrayMetadata) -> ArrayMetadata:
        """See :meth:`Format.adopt`. Data types and codecs stay, since this format may have them."""
        encoding = self.chunk_key_encoding
        return replace(meta, chunk_key_encoding=encoding, zarr_format=self.zarr_format, origin=None)

    def keys(self, path: str) -> V2Keys:
        return V2Keys(path)

    def place(self, key: str) -> DocumentKey | None:
        path, _, name = key.rpartition("/")
        return DocumentKey(path, _KINDS[name]) if name in _KINDS else None

    def check_name(self, name: str, path: str) -> None:
        if name in ("", ".", "..") or "\\" in name or name in self._taken_names:
            raise InvalidKeyError(
                f"not a name for a node: {name!r} in path {path!r}; accepted: names that are not empty, '.' "
                f"or '..', have no backslash and are none of {listed(self._taken_names)}"
            )

    def held(self, path: str, found: Mapping[str, Document]) -> dict[str, Document] | None:
        prefix = node_prefix(path)
        if prefix + ARRAY in found:
            wanted: tuple[str, ...] = (ARRAY, ATTRIBUTES, NCZARR_ARRAY)
        elif prefix + GROUP in found:
            wanted = (GROUP, ATTRIBUTES, CONSOLIDATED)
        else:
            return None
        return {name: found[prefix + name] for name in wanted if prefix + name in found}

    def fetch_consolidated(self, path: str, get: Fetch) -> dict[str, Document] | None:
        """Fetch the documents of a group from its consolidated metadata alone; None if these have none."""
        (document,) = get((node_prefix(path) + CONSOLIDATED,))
        metadata = None if document is None else document.get("metadata")
        if document is None or not isinstance(metadata, dict) or not isinstance(metadata.get(GROUP), dict):
            return None
        own = {name: metadata[name] for name in (GROUP, ATTRIBUTES) if name in metadata}
        return {**own, CONSOLIDATED: document}

    def parse(self, held: Mapping[str, Document], path: str) -> NodeMetadata:
        from xzarr3.formats.v2.parse import parse

        return parse(held, path)

    def hold(self, meta: NodeMetadata, path: str = "") -> dict[str, Document]:
        try:
            if isinstance(meta, ArrayMetadata):
                return {ATTRIBUTES: _attributes_document(meta), ARRAY: _array_document(meta)}
            group = {"zarr_format": 2, **(meta.source or {}).get(GROUP, {})}
            group.pop("consolidated_metadata", None)  # zarr-python adds an empty one to consolidated copies
            return {ATTRIBUTES: dict(meta.attributes), GROUP: group}
        except MetadataError as error:
            error.path = path or None  # Without a path here, the caller may set it.
            raise

    def documents(
        self, meta: NodeMetadata, path: str, consolidated: Mapping[str, Mapping[str, Document]] | None = None
    ) -> dict[str, Document]:
        prefix = node_prefix(path)
        own = self.hold(meta, path)
        documents = {prefix + name: document for name, document in own.items()}
        if consolidated is not None:
            metadata = dict(_keys("", own))
            for relative, held in consolidated.items():
                metadata.update(_keys(relative, held))
            documents[prefix + CONSOLIDATED] = {
                "zarr_consolidated_format": CONSOLIDATED_FORMAT,
                "metadata": metadata,
            }
        return documents

    def update_consolidated(
        self, document: Document, relative: str, meta: NodeMetadata | None
    ) -> Document | None:
        metadata = document.get("metadata")
        version = document.get("zarr_consolidated_format")
        if version != CONSOLIDATED_FORMAT or not isinstance(metadata, dict):
            return None
        if meta is None and not relative:
            return None
        own = {node_prefix(relative) + name for name in OWN}
        left = {key: value for key, value in metadata.items() if key not in own}
        if not isinstance(meta, GroupMetadata):
            below = node_prefix(relative)
            left = {key: value for key, value in left.items() if not key.startswith(below)}
        if meta is not None:  # changed in its place, so that nodes stay in their order
            new = dict(_keys(relative, self.hold(meta, relative)))
            left = {**{key: value for key, value in metadata.items() if key in left or key in new}, **new}
        return {**document, "metadata": left}


def _attributes_document(meta: ArrayMetadata) -> Document:
    """The attributes, including the dimension names."""
    from xzarr3.formats.v2.codec_fields import cannot_say

    # Names from a document of NCZarr alone would be lost where that one is not: in a copy.
    if meta.is_as_read("attributes", "dimension_names") and NCZARR_ARRAY not in meta.source:
        return dict(meta.source.get(ATTRIBUTES, {}))
    attributes = dict(meta.attributes)
    names = meta.dimension_names
    if names is None or (names and all(name is None for name in names)):
        return attributes
    if None in names:
        raise cannot_say("dimension_names", list(names), "a name for each dimension, or none for all of them")
    if attributes.get(DIMENSIONS, list(names)) != list(names):
        raise cannot_say(
            f"attributes.{DIMENSIONS}", attributes[DIMENSIONS], f"the dimension names {list(names)}"
        )
    return {DIMENSIONS: list(names), **attributes}


def _array_document(meta: ArrayMetadata) -> Document:
    from xzarr3.formats.v2.codec_fields import cannot_say, codec_fields_of, stored_data_type

    if not isinstance(meta.chunk_grid, RegularGrid):
        raise cannot_say("chunk_grid", meta.chunk_grid.name, "a regular grid")
    if meta.chunk_key_encoding.name != "v2":
        raise cannot_say("chunk_key_encoding", meta.chunk_key_encoding.name, "'v2'")
    if meta.storage_transformers:
        names = [each.name for each in meta.storage_transformers]
        raise cannot_say("storage_transformers", names, "none")
    document: Document = {"zarr_format": 2, **(meta.source or {}).get(ARRAY, {})}
    if not meta.is_as_read("shape"):
        document["shape"] = list(meta.shape)
    # A chunk of length 0 fits only a dimension of length 0.
    if not meta.is_as_read("chunk_grid") or (0 in document["chunks"] and not meta.is_as_read("shape")):
        document["chunks"] = [max(length, 1) for length in meta.chunk_grid.chunk_shape]
    if meta.is_as_read("codecs", "data_type"):
        stored = stored_data_type(document)
    else:
        codec_fields, stored = codec_fields_of(meta)
        document |= codec_fields
    if not meta.is_as_read("fill_value", "fill_is_null", "data_type"):
        document["fill_value"] = _fill_value(meta, stored)
    if not meta.is_as_read("chunk_key_encoding"):
        document["dimension_separator"] = meta.chunk_key_encoding.separator
    return document


def _fill_value(meta: ArrayMetadata, stored: ZDType) -> JSON:
    from xzarr3.formats.v2.codec_fields import cannot_say
    from xzarr3.formats.v2.parse import scalar_as

    if meta.fill_is_null:
        return None
    try:
        value: JSON = stored.to_json_scalar(scalar_as(meta.fill_value, stored), zarr_format=2)
    except FOREIGN_ERRORS as error:
        raise cannot_say("fill_value", meta.fill_value, f"a value of '{stored.name}'") from error
    again = scalar_as(fill_value_from_json(stored, value, 2), meta.data_type)
    if meta.data_type.bits(again) != meta.data_type.bits(meta.fill_value):
        raise cannot_say("fill_value", meta.fill_value, f"a value that is read back from {value!r}")
    return value


def _keys(relative: str, held: Mapping[str, Document]) -> Iterator[tuple[str, Document]]:
    """The documents of a node for consolidated metadata, by their keys in it."""
    return ((node_prefix(relative) + name, held[name]) for name in OWN if name in held)


V2 = V2Format()

__all__ = ["ARRAY", "ATTRIBUTES", "CONSOLIDATED", "DIMENSIONS", "GROUP", "V2", "V2Format", "parse"]
