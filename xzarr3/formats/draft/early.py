"""Documents of arrays from zarr-python 2.12 to 2.18, in an earlier state of the draft of May 2022; only read.

They are documents of version 2 with other names of fields. Data types, fill values, compressors and filters
are the same; the filters are in the attributes. This module turns them into documents of version 2 and lets
:mod:`xzarr3.formats.v2` parse them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from xzarr3.errors import MetadataError, UnknownExtensionError
from xzarr3.formats.base import lengths_of
from xzarr3.formats.draft.codecs import chunk_grid_from_json, with_shards
from xzarr3.formats.draft.json import ARRAY_FIELDS, check_extensions, invalid, members, string_of
from xzarr3.formats.draft.types import COMPLEX, TABLE, TIMES
from xzarr3.formats.v2.names import ARRAY, ATTRIBUTES
from xzarr3.formats.v2.parse import parse
from xzarr3.model.chunk_keys import DraftChunkKeyEncoding
from xzarr3.model.metadata import ArrayMetadata, check_shape

_EARLY_FIELDS = {name: accepted for name, accepted in ARRAY_FIELDS.items() if name != "extensions"}
_EARLY_OPTIONAL = (
    "extensions", "chunk_memory_layout", "compressor", "dimension_separator", "storage_transformers",
)  # fmt: skip
_EARLY_NAMES = {"bool": "|b1", "i1": "|i1", "u1": "|u1"}
_EARLY_CODECS = ("gzip", "zlib", "blosc", "bz2", "lz4", "lzma", "zstd")
_EARLY_URI = re.compile(r"https?://purl\.org/zarr/spec/codecs?/([a-z0-9]+)/1\.0")
_IN_DRAFT = {
    "chunks": "chunk_grid.chunk_shape", "dtype": "data_type", "order": "chunk_memory_layout",
    "filters": "attributes.filters", "dimension_separator": "chunk_grid.separator",
}  # fmt: skip


def is_early(document: Mapping[str, Any]) -> bool:
    """Whether a document was written by zarr-python 2, and not in a later state of the draft."""
    data_type = document.get("data_type")
    if "codecs" in document or (isinstance(data_type, str) and data_type in TABLE and data_type != "bool"):
        return False
    if not isinstance(data_type, Mapping):
        return True
    uri = data_type.get("extension")
    # zarr-python 2 wrote "TODO: " in place of the URI of an extension that was not specified yet.
    known = isinstance(uri, str) and (TIMES.fullmatch(uri) or COMPLEX.fullmatch(uri))
    return bool(known) or str(uri).startswith("TODO: ")


def parse_early(document: Mapping[str, Any]) -> ArrayMetadata:
    """Parse a document of zarr-python 2, with the data types and codecs of version 2."""
    found, _ = members(document, _EARLY_FIELDS, _EARLY_OPTIONAL)
    shape = lengths_of(found["shape"], "shape")
    check_shape(shape)
    chunk_shape, separator = chunk_grid_from_json(found["chunk_grid"], shape)
    check_extensions(found.get("extensions", []))
    attributes = found["attributes"]
    if not isinstance(attributes, dict):
        raise invalid("attributes", attributes, "an object")
    array = {
        "zarr_format": 2,
        "shape": list(shape),
        "chunks": list(chunk_shape),
        "dtype": _early_dtype(found["data_type"]),
        "compressor": _early_compressor(found.get("compressor")),
        "filters": attributes.get("filters"),
        "fill_value": found["fill_value"],
        "order": found.get("chunk_memory_layout", "C"),
    }
    try:
        meta = cast("ArrayMetadata", parse({ARRAY: array, ATTRIBUTES: attributes}))
    except MetadataError as error:
        error.path = None
        for name, field in _IN_DRAFT.items():
            if error.field is not None and re.match(rf"{name}\b", error.field):
                error.field = field + error.field[len(name) :]
        raise
    meta = replace(
        meta,
        chunk_key_encoding=DraftChunkKeyEncoding(separator=separator, scalar="c" if shape else "c0"),
        attributes={name: item for name, item in meta.attributes.items() if name != "filters"},
        ignored={},
        zarr_format="3-draft",
    )
    return with_shards(meta, chunk_shape, found.get("storage_transformers", []), early=True)


def _early_dtype(value: object) -> object:
    """The data type in the form of version 2."""
    if isinstance(value, Mapping):
        found, _ = members(value, {"extension": "a URI", "type": "a dtype"}, ("fallback",), "data_type")
        name = found["type"]
        if isinstance(name, list) and len(name) == 1 and isinstance(name[0], list) and name[0][:1] == [""]:
            return name[0][-1]  # For raw bytes it wrote numpy's list of their fields.
        return name
    return _EARLY_NAMES.get(value, value) if isinstance(value, str) else value


def _early_compressor(value: object) -> object:
    if value is None:
        return None
    found, _ = members(value, {"codec": "a URI"}, ("configuration",), "compressor")
    uri = string_of(found["codec"], "compressor.codec", "a URI")
    match = _EARLY_URI.fullmatch(uri)
    if match is None or match[1] not in _EARLY_CODECS:
        raise UnknownExtensionError(
            "unknown codec", field="compressor.codec", found=uri, accepted=_EARLY_CODECS
        )
    configuration = found.get("configuration", {})
    if not isinstance(configuration, dict):
        raise invalid("compressor.configuration", configuration, "an object")
    return {**configuration, "id": match[1]}
