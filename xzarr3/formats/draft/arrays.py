"""Documents of arrays in the draft of May 2022: parses and makes them.

Specification: Zarr v3 core, editor's draft of 25 May 2022, "Array metadata".
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from xzarr3._types import JSON, Scalar
from xzarr3.errors import (
    DataTypeValidationError,
    FallbackWarning,
    MetadataError,
    levels_to_caller,
    printable,
    shorten,
)
from xzarr3.formats.base import lengths_of
from xzarr3.formats.draft.codecs import chunk_grid_from_json, codecs_from_json, codecs_to_json, with_shards
from xzarr3.formats.draft.early import is_early, parse_early
from xzarr3.formats.draft.json import (
    ARRAY_FIELDS,
    Refuse,
    check_extensions,
    invalid,
    items_of,
    members,
)
from xzarr3.formats.draft.types import (
    Named,
    data_type_from_json,
    data_type_to_json,
    fill_value_forms,
    fill_value_from_json,
    fill_value_to_json,
)
from xzarr3.grid import RegularGrid
from xzarr3.model.chunk_keys import DraftChunkKeyEncoding
from xzarr3.model.metadata import ArrayMetadata, check_shape

if TYPE_CHECKING:
    from xzarr3.formats.base import Document

_STORAGE = ("data_type", "chunk_grid", "chunk_memory_layout", "codecs", "fill_value", "storage_transformers")
"""The fields that define how the array is stored. Rewriting a document keeps all of them unchanged."""

_OPTIONAL = ("chunk_memory_layout", "codecs", "storage_transformers", "dimension_names")
_ALL_FIELDS = frozenset({*ARRAY_FIELDS, *_OPTIONAL})


@dataclass(frozen=True, eq=False)
class DraftArrayMetadata(ArrayMetadata):
    """Metadata of an array from a document of the draft.

    Parameters
    ----------
    as_read : mapping
        The fields that define how the array is stored, if this package would write them differently: because
        they come from another state of the draft, or an extension data type is read as its fallback.
    """

    as_read: Mapping[str, JSON] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class EarlyArrayMetadata(DraftArrayMetadata):
    """Metadata of an array in a hierarchy that is only read, with its document.

    Parameters
    ----------
    document : mapping
        The document as it was read.
    """

    document: Mapping[str, JSON] = field(default_factory=dict)

    @classmethod
    def of(cls, meta: ArrayMetadata, document: Mapping[str, JSON]) -> Self:
        """The metadata together with the document that they were read from."""
        return cls(**{each.name: getattr(meta, each.name) for each in fields(meta)}, document=document)


def parse_array(
    document: object, path: str = "", *, early: bool = False, lenient: bool = False, quiet: bool = False
) -> ArrayMetadata:
    """Parse the document of an array.

    Parameters
    ----------
    document : object
    path : str
        Path of the array, for messages.
    early : bool
        Whether earlier tools may have written the document.
    lenient : bool
        Accept unknown names.
    quiet : bool
        Do not warn if a fallback replaces an unknown data type.

    Raises
    ------
    MetadataError
        If it is not valid; the error names the field.
    UnknownExtensionError
        If it needs an unknown extension.
    """
    if early and isinstance(document, Mapping) and is_early(document):
        return parse_early(document)
    found, unknown = members(document, ARRAY_FIELDS, _OPTIONAL, lenient=lenient)
    shape = lengths_of(found["shape"], "shape")
    check_shape(shape)
    try:
        named = data_type_from_json(found["data_type"])
    except MetadataError as error:
        error.at(field="data_type")
        raise
    fill_value, fill_is_null, remark = _fill_value_or_default(named, found["fill_value"])
    chunk_shape, separator = chunk_grid_from_json(found["chunk_grid"], shape)
    check_extensions(found["extensions"], lenient=lenient)
    attributes = found["attributes"]
    if not isinstance(attributes, dict):
        raise invalid("attributes", attributes, "an object")
    meta = DraftArrayMetadata(
        shape=shape,
        data_type=named.data_type,
        chunk_grid=RegularGrid(chunk_shape),
        chunk_key_encoding=DraftChunkKeyEncoding(separator=separator),
        fill_value=fill_value,
        codecs=codecs_from_json(found, named, len(shape)),
        attributes=attributes,
        dimension_names=_dimension_names(found, len(shape)),
        zarr_format="3-draft",
        fill_is_null=fill_is_null,
    )
    meta = with_shards(meta, chunk_shape, found.get("storage_transformers", []))
    ignored = {"extensions": found["extensions"]} if found["extensions"] else {}
    if named.instead_of is not None:
        ignored["data_type"] = named.instead_of
        if not quiet:
            _warn(path, named, remark)
    return replace(meta, ignored={**ignored, **unknown}, as_read=_as_read(found, meta))


def _fill_value_or_default(named: Named, value: object) -> tuple[Scalar, bool, str]:
    """The fill value, whether it is a default, and a remark for the warning."""
    default = named.data_type.default_scalar()
    if value is None and not named.core and named.data_type.to_native_dtype().kind not in "mM":
        return default, True, ""
    try:
        return fill_value_from_json(named, value), False, ""
    except DataTypeValidationError:
        if named.instead_of is None:
            raise
        return default, True, f"; its fill value {shorten(value, 40)} is not one of that type and not used"


def _warn(path: str, named: Named, remark: str) -> None:
    unknown = named.instead_of if isinstance(named.instead_of, Mapping) else {}
    warnings.warn(
        f"node '/{printable(path)}': unknown data type {unknown.get('type')!r} of "
        f"{unknown.get('extension')!r}, read as its fallback '{named.data_type.name}'{remark}",
        FallbackWarning,
        stacklevel=levels_to_caller(),
    )


def _dimension_names(document: Mapping[str, Any], ndim: int) -> tuple[str | None, ...] | None:
    if "dimension_names" not in document:
        return None
    accepted = f"{ndim} strings or nulls"
    names = items_of(document["dimension_names"], "dimension_names", accepted)
    if len(names) != ndim or not all(name is None or isinstance(name, str) for name in names):
        raise invalid("dimension_names", names, accepted, f"the array has {ndim} dimensions")
    return tuple(names)


def _as_read(document: Mapping[str, Any], meta: ArrayMetadata) -> dict[str, JSON]:
    """The fields that define how the array is stored, if this package would write them differently."""
    found = {name: document[name] for name in _STORAGE if name in document}
    if isinstance(found["fill_value"], float) and not np.isfinite(found["fill_value"]):
        del found["fill_value"]  # The literals NaN and Infinity of older writers are not valid JSON.
    try:
        fresh = _storage_fields(meta, _cannot_say)
    except MetadataError:
        return found
    return {} if found == fresh else found


def _cannot_say(field: str, found: object, accepted: str) -> MetadataError:
    return MetadataError("the draft cannot express this", field=field, found=found, accepted=accepted)


def array_document(meta: ArrayMetadata, refuse: Refuse, *, lenient: bool = False) -> Document:
    """The document for ``meta``.

    Parameters
    ----------
    meta : ArrayMetadata
    refuse : callable
        Makes the error for metadata that the draft cannot express.
    lenient : bool
        Accept fields that the draft does not define.

    Raises
    ------
    MetadataError
        If the draft cannot express ``meta``.
    """
    rest = {name: item for name, item in meta.ignored.items() if name not in _ALL_FIELDS}
    for name, item in rest.items():
        if not lenient:
            raise refuse(name, item, "the fields that it defines")
    as_read = meta.as_read if isinstance(meta, DraftArrayMetadata) else {}
    if as_read:
        document = _with_storage(as_read, meta)
        try:
            same = _same(parse_array(document, quiet=True), meta)
        except MetadataError:
            same = False  # The metadata have changed since they were read.
        if same:
            return document | rest
    return _with_storage(_storage_fields(meta, refuse), meta) | rest


def _same(read: ArrayMetadata, meta: ArrayMetadata) -> bool:
    return read.stores_as(meta) and read.fill_is_null == meta.fill_is_null


def _with_storage(storage: Mapping[str, JSON], meta: ArrayMetadata) -> Document:
    """A complete document: the ``storage`` fields, and all fields that do not define how it is stored."""
    document: Document = {"shape": list(meta.shape)}
    if meta.dimension_names is not None:
        document["dimension_names"] = list(meta.dimension_names)
    if "fill_value" not in storage:
        document["fill_value"] = fill_value_to_json(meta.data_type, meta.fill_value)
    extensions = meta.ignored.get("extensions", [])
    return {**document, **storage, "extensions": extensions, "attributes": dict(meta.attributes)}


def _storage_fields(meta: ArrayMetadata, refuse: Refuse) -> dict[str, JSON]:
    """The fields that define how an array is stored."""
    if not isinstance(meta.chunk_grid, RegularGrid):
        raise refuse("chunk_grid", meta.chunk_grid.name, "'regular'")
    encoding = meta.chunk_key_encoding
    if not isinstance(encoding, DraftChunkKeyEncoding) or encoding.scalar != "c":
        example = encoding.key((0,) * len(meta.shape))
        raise refuse(
            "chunk_key_encoding", example, "keys such as 'c0/1' and 'c0.1', and 'c' without dimensions"
        )
    if meta.storage_transformers:
        raise refuse("storage_transformers", [each.name for each in meta.storage_transformers], "none")
    data_type = data_type_to_json(meta.data_type, refuse)
    if meta.fill_is_null:
        raise refuse("fill_value", None, fill_value_forms(meta.data_type))
    layout, codecs = codecs_to_json(meta, refuse)
    return {
        "data_type": data_type,
        "chunk_grid": {
            "type": "regular",
            "chunk_shape": list(meta.chunk_grid.chunk_shape),
            "separator": encoding.separator,
        },
        "chunk_memory_layout": layout,
        "codecs": codecs,
        "fill_value": fill_value_to_json(meta.data_type, meta.fill_value),
    }
