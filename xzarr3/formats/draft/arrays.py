"""Documents of arrays in the draft of May 2022: parses and makes them.

Specification: Zarr v3 core, editor's draft of 25 May 2022, "Array metadata".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from xzarr3._types import JSON, Scalar
from xzarr3.errors import DataTypeValidationError, located, printable
from xzarr3.formats.base import fill_value_from_json
from xzarr3.formats.draft.codecs import chunk_grid_from_json, codecs_from_json, codecs_to_json, with_shards
from xzarr3.formats.draft.json import ArrayDocument, Refuse, check_extensions, invalid, read
from xzarr3.formats.draft.types import Named, data_type_from_json, data_type_to_json
from xzarr3.grid import RegularGrid
from xzarr3.model.chunk_keys import DraftChunkKeyEncoding
from xzarr3.model.metadata import ArrayMetadata, NodeMetadata, check_shape

if TYPE_CHECKING:
    from xzarr3.formats.base import Document


def parse_array(held: Mapping[str, Any], *, lenient: bool = False) -> ArrayMetadata:
    """Parse the document of an array.

    Parameters
    ----------
    held : mapping
        Has the document as ``"array"``.
    lenient : bool
        Accept unknown names.

    Raises
    ------
    MetadataError
        If it is not valid; the error names the field.
    UnknownExtensionError
        If it needs an unknown extension.
    """
    found, unknown = read(ArrayDocument, held["array"], lenient=lenient)
    shape = tuple(found.shape)
    check_shape(shape)
    with located(field="data_type"):
        named = data_type_from_json(found.data_type)
    fill_value, fill_is_null = _fill_value_or_default(named, found.fill_value)
    chunk_shape, separator = chunk_grid_from_json(found.chunk_grid, shape)
    check_extensions(found.extensions, lenient=lenient)
    names = found.dimension_names
    if names is not None and len(names) != len(shape):
        reason, accepted = f"the array has {len(shape)} dimensions", f"{len(shape)} strings or nulls"
        raise invalid("dimension_names", names, accepted, reason)
    meta = ArrayMetadata(
        shape=shape,
        data_type=named.data_type,
        chunk_grid=RegularGrid(chunk_shape),
        chunk_key_encoding=DraftChunkKeyEncoding(separator=separator),
        fill_value=fill_value,
        codecs=codecs_from_json(found, named, len(shape)),
        attributes=found.attributes,
        dimension_names=None if names is None else tuple(names),
        zarr_format="3-draft",
        fill_is_null=fill_is_null,
    )
    meta = with_shards(meta, chunk_shape, found.storage_transformers)
    ignored: dict[str, JSON] = {"extensions": found.extensions} if found.extensions else {}
    if named.instead_of is not None:
        ignored["data_type"] = named.instead_of
    return meta.read_from(held, {**ignored, **unknown})


def fallback_warning(meta: NodeMetadata, path: str) -> str:
    """What to say of an array whose unknown data type is read as its fallback."""
    unknown: Any = meta.ignored["data_type"]
    is_left = isinstance(meta, ArrayMetadata) and meta.fill_is_null
    left = "; its fill value is not one of that type and not used" * is_left
    read_as = meta.data_type.name if isinstance(meta, ArrayMetadata) else ""
    return (
        f"node '/{printable(path)}': unknown data type {unknown.get('type')!r} of "
        f"{unknown.get('extension')!r}, read as its fallback '{read_as}'{left}"
    )


def _fill_value_or_default(named: Named, value: object) -> tuple[Scalar, bool]:
    """The fill value, and whether it is a default."""
    default = named.data_type.default_scalar()
    if value is None and named.instead_of is not None and named.data_type.to_native_dtype().kind not in "mM":
        return default, True
    try:
        return fill_value_from_json(named.data_type, cast("JSON", value), "3-draft"), False
    except DataTypeValidationError:
        if named.instead_of is None:
            raise
        return default, True


def array_document(meta: ArrayMetadata, refuse: Refuse) -> Document:
    """The document for ``meta``; what did not change since it was read stays as it is.

    Parameters
    ----------
    meta : ArrayMetadata
    refuse : callable
        Makes the error for metadata that the draft cannot express.

    Raises
    ------
    MetadataError
        If the draft cannot express ``meta``.
    """
    document: Document = {"extensions": [], **(meta.source or {}).get("array", {})}
    if not meta.is_as_read("shape"):
        document["shape"] = list(meta.shape)
        if "chunk_grid" in document:  # a chunk of length 0 fits only a dimension of length 0
            lengths = [max(length, 1) for length in document["chunk_grid"]["chunk_shape"]]
            document["chunk_grid"] = {**document["chunk_grid"], "chunk_shape": lengths}
    if not meta.is_as_read("attributes"):
        document["attributes"] = dict(meta.attributes)
    if not meta.is_as_read("dimension_names"):
        document.pop("dimension_names", None)
        if meta.dimension_names is not None:
            document["dimension_names"] = list(meta.dimension_names)
    storage = ("data_type", "chunk_grid", "chunk_key_encoding", "codecs", "fill_value", "fill_is_null")
    if not meta.is_as_read(*storage, "storage_transformers"):
        document.pop("storage_transformers", None)
        document |= _storage_fields(meta, refuse)
    return document


def _storage_fields(meta: ArrayMetadata, refuse: Refuse) -> dict[str, JSON]:
    """The fields that define how an array is stored."""
    if not isinstance(meta.chunk_grid, RegularGrid):
        raise refuse("chunk_grid", meta.chunk_grid.name, "'regular'")
    encoding = meta.chunk_key_encoding
    if not isinstance(encoding, DraftChunkKeyEncoding):
        example = encoding.key((0,) * len(meta.shape))
        raise refuse("chunk_key_encoding", example, "keys such as 'c0/1' and 'c0.1'")
    if meta.storage_transformers:
        raise refuse("storage_transformers", [each.name for each in meta.storage_transformers], "none")
    data_type = data_type_to_json(meta.data_type, refuse)
    if meta.fill_is_null:
        raise refuse("fill_value", None, f"a value of data type '{meta.data_type.name}'")
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
        "fill_value": meta.data_type.to_json_scalar(meta.fill_value, zarr_format="3-draft"),
    }
