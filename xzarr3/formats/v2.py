"""The format of Zarr version 2: parses and makes the documents ``.zarray``, ``.zgroup`` and ``.zattrs``.

Specification: Zarr v2, "Arrays", "Hierarchies", "Attributes". Consolidated metadata (``.zmetadata``) and
object codecs have the form of zarr-python. Dimension names have the form of xarray (``_ARRAY_DIMENSIONS``) or
netCDF-C (NCZarr). All other attributes and fields of NCZarr are kept unchanged. Makes no requests to a store.
"""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np

from xzarr3._types import JSON, Scalar
from xzarr3.codecs.base import ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec, ChunkSpec, Codec
from xzarr3.codecs.bytes import BytesCodec
from xzarr3.codecs.numcodecs import from_numcodecs, stored_endian, to_numcodecs
from xzarr3.codecs.registry import NUMCODECS, default_serializer, remembered
from xzarr3.codecs.transpose import TransposeCodec
from xzarr3.dtypes import ZDType
from xzarr3.dtypes.base import FOREIGN_ERRORS
from xzarr3.dtypes.registry import registry
from xzarr3.errors import InvalidKeyError, MetadataError, UnknownExtensionError, listed
from xzarr3.formats.base import (
    LENGTHS,
    Document,
    DocumentKey,
    Fetch,
    Format,
    check_path_below,
    chunk_shape_of,
    fill_value_from_json,
    lengths_of,
    node_prefix,
)
from xzarr3.grid import RegularGrid
from xzarr3.model.chunk_keys import ChunkKeyEncoding
from xzarr3.model.metadata import ArrayMetadata, GroupMetadata, NodeMetadata, check_shape

ARRAY = ".zarray"
GROUP = ".zgroup"
ATTRIBUTES = ".zattrs"
CONSOLIDATED = ".zmetadata"
DIMENSIONS = "_ARRAY_DIMENSIONS"
"""The attribute that names the dimensions of an array."""

_OWN = (ARRAY, GROUP, ATTRIBUTES)
_NCZARR_ARRAY = ".nczarray"
# Documents of netCDF-C 4.8.0. Later versions use attributes, or fields of the other documents.
_NCZARR = (".nczarr", ".nczgroup", _NCZARR_ARRAY, ".nczvar", ".nczattr", ".nczattrs")
_KINDS: dict[str, Literal["array", "group", "other"]] = {ARRAY: "array", GROUP: "group"}
_KINDS.update(dict.fromkeys((ATTRIBUTES, CONSOLIDATED, *_NCZARR), "other"))

_CONSOLIDATED_FORMAT = 1
_CODEC = "an object with an 'id'"
_FIELDS = frozenset(
    {"zarr_format", "shape", "chunks", "dtype", "compressor", "fill_value", "order", "filters"}
    | {"dimension_separator"}
)
_WORDS = ("compressor", "dtype", "filters", "order")
_OBJECTS = "|O"
_OBJECT_CODECS = {name: name for name in ("vlen-utf8", "vlen-bytes", "json2")} | {"categorize": "vlen-utf8"}
"""Codecs that define the type of objects, and the codec under which the data type is registered."""
_NO_OBJECT_CODECS = {
    "pickle": "what is unpickled may do anything",
    "msgpack2": "its elements may be objects of any class",
    "vlen-array": "its elements are arrays",
}


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
    except RecursionError as error:
        raise MetadataError(
            "nested too deeply", path=path, field=ARRAY, accepted="fewer fields within fields"
        ) from error
    except MemoryError as error:
        raise MetadataError("no memory for one element", path=path, field="dtype") from error


# Reading


def _check_version(document: Mapping[str, Any]) -> None:
    version = document.get("zarr_format")
    if type(version) is not int or version != 2:
        raise MetadataError("not a format that can be read", field="zarr_format", found=version, accepted="2")


def _need(document: Mapping[str, Any], field: str, accepted: str) -> Any:
    if field not in document:
        raise MetadataError("missing field", field=field, accepted=accepted)
    return document[field]


def _choice(document: Mapping[str, Any], field: str, choices: tuple[str, ...], default: Any = ...) -> str:
    value = _need(document, field, listed(choices)) if default is ... else document.get(field, default)
    if not isinstance(value, str) or value not in choices:
        raise MetadataError("not a valid value", field=field, found=value, accepted=choices)
    return value


def _lengths(document: Mapping[str, Any], field: str) -> tuple[int, ...]:
    return lengths_of(_need(document, field, LENGTHS), field)


def _chunks(document: Mapping[str, Any], shape: tuple[int, ...]) -> RegularGrid:
    return RegularGrid(chunk_shape_of(_need(document, "chunks", LENGTHS), shape, "chunks"))


@dataclass(frozen=True)
class _Stage:
    """The configuration of a codec in a document, and its field."""

    field: str
    config: Mapping[str, Any]

    @property
    def id(self) -> str:
        """The name of the codec in numcodecs."""
        return str(self.config["id"])


def _stages(document: Mapping[str, Any]) -> Iterator[_Stage]:
    """The filters, followed by the compressor."""
    filters = document.get("filters")
    if filters is not None and not isinstance(filters, list):
        raise MetadataError(
            "not a valid value", field="filters", found=filters, accepted="an array of codecs, null"
        )
    configs = [(f"filters[{at}]", config) for at, config in enumerate(filters or ())]
    compressor = _need(document, "compressor", f"{_CODEC}, null")
    if compressor is not None:
        configs.append(("compressor", compressor))
    for field, config in configs:
        if not isinstance(config, dict) or not isinstance(config.get("id"), str):
            accepted = _CODEC if field != "compressor" else f"{_CODEC}, null"
            raise MetadataError("not a codec", field=field, found=config, accepted=accepted)
        yield _Stage(field, config)


def _object_codec(stages: Iterable[_Stage]) -> str:
    """The name of the codec that defines the type of the elements of an array of objects."""
    for stage in stages:
        if stage.id in _OBJECT_CODECS:
            return _OBJECT_CODECS[stage.id]
        if stage.id in _NO_OBJECT_CODECS:
            raise UnknownExtensionError(
                f"codec '{stage.id}' is not read: {_NO_OBJECT_CODECS[stage.id]}", field=f"{stage.field}.id",
                found=stage.id, accepted=_OBJECT_CODECS,
            )  # fmt: skip
    raise UnknownExtensionError(
        "no filter says what the objects are", field="dtype", found=_OBJECTS,
        accepted=f"a filter among {listed(_OBJECT_CODECS)}, or another data type",
    )  # fmt: skip


def _data_type(document: Mapping[str, Any]) -> ZDType:
    """The data type, in the byte order of the stored elements."""
    accepted = "a string such as '<f8', or an array of fields"
    name = _need(document, "dtype", accepted)
    if not isinstance(name, (str, list)):
        raise MetadataError("not a data type", field="dtype", found=name, accepted=accepted)
    codec = _object_codec(_stages(document)) if name == _OBJECTS else None
    try:
        return registry.match_json({"name": name, "object_codec_id": codec}, zarr_format=2)
    except MetadataError as error:
        error.field = "dtype"
        error.accepted = error.accepted or accepted
        raise


def _scalar_as(scalar: Scalar, data_type: ZDType) -> Scalar:
    """A scalar in the byte order of a data type. Only scalars with fields have a byte order."""
    if not isinstance(scalar, np.void):
        return scalar
    ordered: Scalar = np.asarray(scalar).astype(data_type.to_native_dtype())[()]  # type: ignore[assignment]
    return ordered


def _codecs(
    stages: Sequence[_Stage], order: str, ndim: int, endian: str | None
) -> tuple[tuple[Codec, ...], list[str]]:
    """The codecs, and for each codec the field of the document that it comes from."""
    codecs: list[Codec] = []
    fields: list[str] = []
    # json2: a chunk holds its shape and nests its lists like the elements, for either order in memory. So it
    # gets no transpose. zarr-python 2 writes it the same way, but reads it as elements in order F and so gets
    # other elements than it wrote.
    # bitround: what numcodecs writes differs. Versions after 0.12 turn order F into order C, unless all bits
    # are kept. A chunk does not tell its order, so the order of the document counts, as in zarr-python.
    if order == "F" and ndim > 1 and all(stage.id != "json2" for stage in stages):
        codecs.append(TransposeCodec(tuple(reversed(range(ndim)))))
        fields.append("order")
    in_bytes = False
    for stage in stages:
        try:
            codec = _codec(stage.config, endian)
        except MetadataError as error:
            error.field = f"{stage.field}.{(error.field or '').removeprefix('configuration.')}".strip(".")
            raise
        if in_bytes and not isinstance(codec, BytesBytesCodec):
            raise UnknownExtensionError(
                f"codec '{stage.id}' encodes arrays, but the codecs before it return bytes",
                field=stage.field, found=dict(stage.config),
                accepted="filters on arrays before filters on bytes",
            )  # fmt: skip
        if not in_bytes and isinstance(codec, BytesBytesCodec):
            codecs.append(BytesCodec(endian))
            fields.append("dtype")
        in_bytes = in_bytes or not isinstance(codec, ArrayArrayCodec)
        endian = stored_endian(codec) or endian
        codecs.append(codec)
        fields.append(stage.field)
    if not in_bytes:
        codecs.append(BytesCodec(endian))
        fields.append("dtype")
    return tuple(codecs), fields


def _codec(config: Mapping[str, Any], endian: str | None) -> Codec:
    """The codec with this configuration, for elements in this byte order."""
    codec = from_numcodecs(config, endian)
    if codec.name == "numcodecs.shuffle" and codec.configuration().get("elementsize") == 0:
        return type(codec)()  # In netCDF-C, 0 means the element size of the array.
    return codec


def _parse_array(held: Mapping[str, Document]) -> ArrayMetadata:
    document = held[ARRAY]
    _check_version(document)
    shape = _lengths(document, "shape")
    check_shape(shape)
    grid = _chunks(document, shape)
    stored, data_type, codecs, fields = _read_words(document, len(shape))
    fill = document.get("fill_value")
    fill_value = stored.default_scalar() if fill is None else fill_value_from_json(stored, fill, 2)
    separator = _choice(document, "dimension_separator", (".", "/"), ".")
    ignored = {field: value for field, value in document.items() if field not in _FIELDS}
    attributes, names = _attributes(held, len(shape))
    meta = ArrayMetadata(
        shape=shape,
        data_type=data_type,
        chunk_grid=grid,
        chunk_key_encoding=ChunkKeyEncoding("v2", separator),
        fill_value=_scalar_as(fill_value, data_type),
        codecs=codecs,
        attributes=attributes,
        dimension_names=names,
        ignored=ignored,
        zarr_format=2,
        fill_is_null=fill is None,
    )
    try:
        # The chain fills in the parameters that the codecs leave open.
        evolved = meta.chain.codecs
        if evolved != codecs:
            meta = replace(meta, codecs=evolved)
    except MetadataError as error:
        error.field = _document_field(error.field, fields)
        raise
    # Cached, as the arrays of a dataset mostly have the same fields.
    said = {field: document.get(field) for field in _WORDS}
    spelled = remembered((repr(said), grid.chunk_shape, data_type), lambda: _other_words(said, meta))
    return replace(meta, ignored=_Ignored(ignored, spelled)) if spelled else meta


def _other_words(said: dict[str, Any], meta: ArrayMetadata) -> dict[str, Any]:
    """The fields of a document that this module would write with other values."""
    words, _ = _words(meta)
    return {field: word for field, word in said.items() if word != words[field]}


def _read_words(
    document: Mapping[str, Any], ndim: int
) -> tuple[ZDType, ZDType, tuple[Codec, ...], list[str]]:
    """The data type as stored, the data type of arrays in memory, the codecs, and the field of each codec."""
    stored = _data_type(document)
    order = _choice(document, "order", ("C", "F"))
    # A single byte order is a property of the chunks only. A mixed byte order stays in the data type.
    mixed = stored.byte_order == "mixed"
    endian = sys.byteorder if mixed else stored.byte_order
    said = repr([document.get(field, ...) for field in ("compressor", "filters")])
    codecs, fields = remembered(
        (said, order, ndim, endian), lambda: _codecs(list(_stages(document)), order, ndim, endian)
    )
    return stored, stored if mixed else stored.in_native_order(), codecs, fields


class _Ignored(dict[str, JSON]):
    """The ignored fields of a document, and the original values of fields that would be written differently.

    For example, in NCZarr ``>S1`` are characters and ``|S1`` strings; and the last filter may be the
    compressor. Such fields keep their original values as long as these agree with the metadata.
    """

    def __init__(self, fields: Mapping[str, JSON], spelled: Mapping[str, JSON]) -> None:
        super().__init__(fields)
        self.spelled = dict(spelled)


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
    said.append(held.get(_NCZARR_ARRAY))
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
    return GroupMetadata(
        attributes=_object(held.get(ATTRIBUTES, {}), ATTRIBUTES),
        consolidated=None if consolidated is None else _parse_consolidated(consolidated),
        ignored=ignored,
        zarr_format=2,
    )


def _parse_consolidated(document: Mapping[str, Any]) -> dict[str, dict[str, Document]]:
    """The documents of all nodes below a group, by relative path."""
    version = document.get("zarr_consolidated_format")
    if type(version) is not int or version != _CONSOLIDATED_FORMAT:
        raise MetadataError(
            "not a format of consolidated metadata that can be read",
            field=f"{CONSOLIDATED}.zarr_consolidated_format", found=version, accepted="1",
        )  # fmt: skip
    field = f"{CONSOLIDATED}.metadata"
    found: dict[str, dict[str, Document]] = {}
    for key, value in _object(document.get("metadata"), field).items():
        path, _, name = key.rpartition("/")
        if name not in _OWN or not path:
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


# Writing


@dataclass(frozen=True)
class V2Format(Format):
    """Zarr version 2: two documents for each node, one of them for its attributes."""

    zarr_format: ClassVar[Literal[2]] = 2
    one_document: ClassVar[bool] = False
    byte_order_in_data_type: ClassVar[bool] = True
    configures_as_numcodecs: ClassVar[bool] = True
    fill_value_may_be_null: ClassVar[bool] = True
    conventions_in_attributes: ClassVar[bool] = True
    unordered_serializers: ClassVar[tuple[str, ...]] = ("numcodecs.json2",)  # Its chunks hold nested lists.
    chunk_key_encoding: ClassVar[ChunkKeyEncoding] = ChunkKeyEncoding("v2")
    _taken_names: ClassVar[tuple[str, ...]] = (*_KINDS, "zarr.json")

    @property
    def fill_value_is_mask(self) -> bool:
        return True

    def codecs_elsewhere(self, meta: ArrayMetadata) -> tuple[Codec, ...]:
        """See :meth:`Format.codecs_elsewhere`. Replaces codecs of version 2 that another format lacks.

        Drops ``base64``. Text stored as categories, and text of a fixed length stored as text of variable
        length, get the default serializer of their data type.
        """
        codecs = [codec for codec in meta.codecs if codec.name != "numcodecs.base64"]
        names = [codec.name for codec in codecs]
        if "numcodecs.categorize" in names:
            at = names.index("numcodecs.categorize")
            codecs = codecs[:at] + [codec for codec in codecs[at:] if not isinstance(codec, ArrayArrayCodec)]
        elif meta.data_type.is_variable or not {"vlen-utf8", "vlen-bytes"} & {*names}:
            return tuple(codecs)
        usual = default_serializer(meta.data_type)
        return tuple(usual if isinstance(codec, ArrayBytesCodec) else codec for codec in codecs)

    def document_keys(self, path: str) -> tuple[str, ...]:
        return tuple(node_prefix(path) + name for name in _KINDS)

    def defining_keys(self, path: str) -> tuple[str, ...]:
        return (node_prefix(path) + ARRAY, node_prefix(path) + GROUP)

    def array_key(self, path: str) -> str:
        return node_prefix(path) + ARRAY

    def attributes_key(self, path: str, *, array: bool) -> str:
        return node_prefix(path) + ATTRIBUTES

    def place(self, key: str) -> DocumentKey | None:
        path, _, name = key.rpartition("/")
        return DocumentKey(path, _KINDS[name]) if name in _KINDS else None

    def child_names(
        self, keys: Iterable[str], prefixes: Iterable[str], path: str
    ) -> tuple[set[str], set[str]]:
        skipped = len(node_prefix(path))
        return set(), {below[skipped:-1] for below in prefixes}

    def check_name(self, name: str, path: str) -> None:
        if name in ("", ".", "..") or "\\" in name or name in self._taken_names:
            raise InvalidKeyError(
                f"not a name for a node: {name!r} in path {path!r}; accepted: names that are not empty, '.' "
                f"or '..', have no backslash and are none of {listed(self._taken_names)}"
            )

    def reading_keys(
        self, path: str, *, consolidated: bool = True, listed: Collection[str] | None = None
    ) -> tuple[str, ...]:
        names = [*_OWN]
        if consolidated:
            names.append(CONSOLIDATED)
        if listed is None or any(key.rpartition("/")[2] in _NCZARR for key in listed):
            names.append(_NCZARR_ARRAY)  # Exists only if the parent group has documents of NCZarr.
        return tuple(node_prefix(path) + name for name in names)

    def held(self, path: str, found: Mapping[str, Document]) -> dict[str, Document] | None:
        prefix = node_prefix(path)
        if prefix + ARRAY in found:
            wanted: tuple[str, ...] = (ARRAY, ATTRIBUTES, _NCZARR_ARRAY)
        elif prefix + GROUP in found:
            wanted = (GROUP, ATTRIBUTES, CONSOLIDATED)
        else:
            return None
        return {name: found[prefix + name] for name in wanted if prefix + name in found}

    def fetch_consolidated(self, path: str, get: Fetch) -> dict[str, Document] | None:
        (document,) = get((node_prefix(path) + CONSOLIDATED,))
        metadata = None if document is None else document.get("metadata")
        if document is None or not isinstance(metadata, dict) or not isinstance(metadata.get(GROUP), dict):
            return None
        own = {name: metadata[name] for name in (GROUP, ATTRIBUTES) if name in metadata}
        return {**own, CONSOLIDATED: document}

    def is_array(self, held: Mapping[str, Document]) -> bool:
        return ARRAY in held

    def parse(self, held: Mapping[str, Document], path: str) -> NodeMetadata:
        return parse(held, path)

    def hold(self, meta: NodeMetadata, path: str = "") -> dict[str, Document]:
        try:
            if isinstance(meta, ArrayMetadata):
                return {ATTRIBUTES: _attributes_document(meta), ARRAY: _array_document(meta)}
            return {ATTRIBUTES: dict(meta.attributes), GROUP: {**meta.ignored, "zarr_format": 2}}
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
            for relative in sorted(consolidated):
                metadata.update(_keys(relative, consolidated[relative]))
            documents[prefix + CONSOLIDATED] = {
                "zarr_consolidated_format": _CONSOLIDATED_FORMAT,
                "metadata": metadata,
            }
        return documents

    def consolidated_key(self, path: str) -> str:
        return node_prefix(path) + CONSOLIDATED

    def without_consolidated(self, held: dict[str, Document]) -> dict[str, Document]:
        return {name: document for name, document in held.items() if name != CONSOLIDATED}

    def update_consolidated(
        self, document: Document, relative: str, meta: NodeMetadata | None
    ) -> Document | None:
        metadata = document.get("metadata")
        version = document.get("zarr_consolidated_format")
        if version != _CONSOLIDATED_FORMAT or not isinstance(metadata, dict):
            return None
        if meta is None and not relative:
            return None
        own = {node_prefix(relative) + name for name in _OWN}
        left = {key: value for key, value in metadata.items() if key not in own}
        if not isinstance(meta, GroupMetadata):
            below = node_prefix(relative)
            left = {key: value for key, value in left.items() if not key.startswith(below)}
        if meta is not None:
            left.update(_keys(relative, self.hold(meta, relative)))
        return {**document, "metadata": left}


def _attributes_document(meta: ArrayMetadata) -> Document:
    """The attributes, including the dimension names."""
    attributes = dict(meta.attributes)
    names = meta.dimension_names
    if names is None or (names and all(name is None for name in names)):
        return attributes
    if None in names:
        raise _cannot_say(
            "dimension_names", list(names), "a name for each dimension, or none for all of them"
        )
    if attributes.get(DIMENSIONS, list(names)) != list(names):
        raise _cannot_say(
            f"attributes.{DIMENSIONS}", attributes[DIMENSIONS], f"the dimension names {list(names)}"
        )
    return {DIMENSIONS: list(names), **attributes}


def _array_document(meta: ArrayMetadata) -> Document:
    if not isinstance(meta.chunk_grid, RegularGrid):
        raise _cannot_say("chunk_grid", meta.chunk_grid.name, "a regular grid")
    if meta.chunk_key_encoding.name != "v2":
        raise _cannot_say("chunk_key_encoding", meta.chunk_key_encoding.name, "'v2'")
    if meta.storage_transformers:
        names = [each.name for each in meta.storage_transformers]
        raise _cannot_say("storage_transformers", names, "none")
    words, stored = _spelled(meta, *_words(meta))
    return {
        **meta.ignored,
        "zarr_format": 2,
        "shape": list(meta.shape),
        "chunks": [max(length, 1) for length in meta.chunk_grid.chunk_shape],
        "fill_value": _fill_value(meta, stored),
        **words,
        "dimension_separator": meta.chunk_key_encoding.separator,
    }


def _fill_value(meta: ArrayMetadata, stored: ZDType) -> JSON:
    if meta.fill_is_null:
        return None
    try:
        value: JSON = stored.to_json_scalar(_scalar_as(meta.fill_value, stored), zarr_format=2)
    except FOREIGN_ERRORS as error:
        raise _cannot_say("fill_value", meta.fill_value, f"a value of '{stored.name}'") from error
    again = _scalar_as(fill_value_from_json(stored, value, 2), meta.data_type)
    if meta.data_type.bits(again) != meta.data_type.bits(meta.fill_value):
        raise _cannot_say("fill_value", meta.fill_value, f"a value that is read back from {value!r}")
    return value


def _words(meta: ArrayMetadata) -> tuple[dict[str, Any], ZDType]:
    """The fields for data type and codecs, and the data type in the byte order of these fields."""
    endian = _stored_order(meta)
    stored = meta.data_type
    if stored.byte_order == "mixed" and endian != sys.byteorder:
        raise _cannot_say("data_type", stored.name, "fields of one byte order")
    if stored.byte_order not in (None, "mixed"):
        stored = stored.in_byte_order("big" if endian == "big" else "little")
    try:
        name = stored.to_json(2)["name"]
    except FOREIGN_ERRORS as error:
        raise _cannot_say("data_type", stored.name, "data types of numpy") from error
    words = copy.deepcopy(_codec_words(meta.codecs, meta.chain.spec.shape, meta.data_type, endian, meta.said))
    return {"dtype": name, **words}, stored


def _stored_order(meta: ArrayMetadata) -> str:
    """The byte order of the elements before the filters: that of the codec ``bytes``, if it has one."""
    for codec in meta.codecs:
        if isinstance(codec, BytesCodec) and codec.endian is not None:
            return codec.endian
    return sys.byteorder if meta.data_type.byte_order == "mixed" else "little"


@lru_cache(maxsize=512)
def _codec_words(
    codecs: tuple[Codec, ...], chunk_shape: tuple[int, ...], data_type: ZDType, endian: str, said: str
) -> dict[str, Any]:
    """The fields for the codecs of chunks whose elements have this byte order before the filters.

    ``said`` is a part of the cache key, as unequal codecs may compare equal; see :attr:`ArrayMetadata.said`.
    """
    order = "C"
    filters: list[Any] = []
    encoded: list[Any] = []
    spec = ChunkSpec(chunk_shape, data_type, data_type.default_scalar())
    for at, codec in enumerate(codecs):
        field = f"codecs[{at}]"
        if isinstance(codec, TransposeCodec):
            axes = tuple(range(len(chunk_shape)))
            if codec.order != axes:
                if codec.order != axes[::-1] or at > 0:
                    accepted = "the reverse order of all dimensions, before all other codecs"
                    raise _cannot_say(field, codec.to_json(), accepted)
                if any(other.name == "numcodecs.json2" for other in codecs):
                    raise _cannot_say(field, codec.to_json(), "order 'C' with the codec 'json2'")
                order = "F"
        elif isinstance(codec, BytesCodec):
            if codec.endian not in (None, endian) and spec.data_type.has_byte_order:
                accepted = f"'{endian}', as its filters"
                raise _cannot_say(f"{field}.configuration.endian", codec.endian, accepted)
        else:
            try:
                config = to_numcodecs(codec, spec, endian)
            except MetadataError as error:
                twin = f"numcodecs.{codec.name}"
                accepted = f"'{twin}'" if twin in NUMCODECS else "codecs that numcodecs has"
                if codec.name == "sharding_indexed":
                    accepted = "no shards"
                raise _cannot_say(field, codec.name, accepted) from error
            (filters if isinstance(codec, ArrayArrayCodec) else encoded).append(config)
            endian = stored_endian(codec) or endian
        if isinstance(codec, ArrayArrayCodec):
            spec = codec.resolve(spec)
    compressor = encoded.pop() if encoded and encoded[-1]["id"] not in _OBJECT_CODECS else None
    return {"compressor": compressor, "order": order, "filters": [*filters, *encoded] or None}


def _spelled(meta: ArrayMetadata, words: dict[str, Any], stored: ZDType) -> tuple[dict[str, Any], ZDType]:
    """The fields with the original values of the document that was read, if these mean the same."""
    for fields in (_WORDS, ("dtype",)):
        given = copy.deepcopy(meta.ignored.spelled) if isinstance(meta.ignored, _Ignored) else {}
        spelled = {field: given[field] for field in fields if field in given}
        if not spelled:
            break
        try:
            other, data_type, codecs, _ = _read_words({**words, **spelled}, len(meta.shape))
            again = replace(meta, codecs=codecs).chain.codecs
            same = data_type == meta.data_type and repr(again) == repr(meta.chain.codecs)
        except MetadataError:
            continue
        if same:
            return {**words, **spelled}, other
    return words, stored


def _cannot_say(field: str, found: object, accepted: str) -> MetadataError:
    """The error for metadata that version 2 cannot express. The caller adds the path of the node."""
    return V2.refuse("", field, found, accepted)


def _keys(relative: str, held: Mapping[str, Document]) -> Iterator[tuple[str, Document]]:
    """The documents of a node for consolidated metadata, by their keys in it."""
    return ((node_prefix(relative) + name, held[name]) for name in _OWN if name in held)


V2 = V2Format()
