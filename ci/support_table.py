"""The table of what is supported in which format, made from the registries by trying it.

``python ci/support_table.py`` prints it, and ``notebooks/conf.py`` puts it into the site.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

import xzarr3
from xzarr3.codecs import codec_names, parse_codec
from xzarr3.codecs.base import ArrayArrayCodec, ArrayBytesCodec
from xzarr3.dtypes import data_type_registry, parse_dtype
from xzarr3.formats import FORMATS
from xzarr3.grid import GRIDS
from xzarr3.model.storage_transformers import storage_transformer_names

HEADINGS = {3: "v3.1", 2: "v2", "3-draft": "draft of May 2022"}

BOTH, READ, NONE = "read, write", "read", "no"
ONLY_READ = [READ, NONE, NONE]
"""The support of a name that is another one for something: it means nothing beside version 3."""

# What stands for a data type or codec that is nothing without a configuration.
_FIELDS = [{"name": "x", "data_type": "float32"}, {"name": "n", "data_type": "int16"}]
DATA_TYPES: dict[str, Any] = {
    "r<N>": "r24",
    "numpy.datetime64": {"unit": "s", "scale_factor": 1},
    "numpy.timedelta64": {"unit": "ms", "scale_factor": 1},
    "fixed_length_utf32": {"length_bytes": 12},
    "null_terminated_bytes": {"length_bytes": 3},
    "raw_bytes": {"length_bytes": 3},
    "struct": {"fields": _FIELDS},
    "structured": {"fields": [[field["name"], field["data_type"]] for field in _FIELDS]},
}
CODECS: dict[str, Any] = {
    "transpose": {"order": [1, 0]},
    "reshape": {"shape": [[0, 1]]},
    "bitround": {"keepbits": 10},
    "scale_offset": {"offset": 0, "scale": 2},
    "cast_value": {"data_type": "int32"},
    "n5_default": {
        "codecs": [
            {"name": "transpose", "configuration": {"order": [1, 0]}},
            {"name": "bytes", "configuration": {"endian": "big"}},
        ]
    },
    "sharding_indexed": {
        "chunk_shape": [1, 2],
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
    },
    "endian": {"endian": "little"},
    "bytes": {"endian": "little"},
    "conditional": {"codecs": [{"name": "zstd", "configuration": {"level": 3, "checksum": False}}]},
    "gzip": {"level": 5},
    "numcodecs.delta": {"dtype": "<i2"},
    "numcodecs.astype": {"encode_dtype": "<i2", "decode_dtype": "<i4"},
    "numcodecs.fixedscaleoffset": {"offset": 0, "scale": 2, "dtype": "<i2", "astype": "<i4"},
    "numcodecs.quantize": {"digits": 3, "dtype": "<f4"},
    "numcodecs.bitround": {"keepbits": 10},
    "zfp": {"mode": "reversible"},
}
ELEMENTS: dict[str, str] = {
    "vlen-utf8": "string",
    "vlen-bytes": "bytes",
    "numcodecs.json2": "string",
    "bitround": "float32",
    "packbits": "bool",
    "numcodecs.astype": "int32",
    "numcodecs.quantize": "float32",
    "numcodecs.bitround": "float32",
    "numcodecs.packbits": "bool",
    "numcodecs.pcodec": "float32",
    "numcodecs.zfpy": "float32",
    "zfp": "float32",
}


def _configured(name: str, configurations: dict[str, Any]) -> Any:
    known = configurations.get(name, name)
    return {"name": name, "configuration": known} if isinstance(known, dict) else known


def _in_each_format(values: Any = 1, **options: Any) -> list[str]:
    """What comes, by format, of making an array, writing to it and reading it again by its document."""
    found = []
    for zarr_format in FORMATS:
        store = xzarr3.MemoryStore()
        defaults: dict[str, Any] = {"chunks": (2, 2), "dtype": "i2", "write_empty_chunks": True}
        try:
            array = xzarr3.create_array(
                store, "a", shape=(3, 4), zarr_format=zarr_format, **defaults | options
            )
        except xzarr3.MetadataError:
            found.append(NONE)
            continue
        array[...] = values
        again = xzarr3.open_array(store, "a")
        equal = again.zdtype == array.zdtype and again.get().tolist() == array.get().tolist()
        found.append(BOTH if equal else NONE)
    return found


def data_types() -> Iterator[tuple[str, list[str]]]:
    """For each data type what can be done with it in each format."""
    for name in data_type_registry.names:
        try:
            data_type = parse_dtype(_configured(name, DATA_TYPES), zarr_format=3)
        except xzarr3.MetadataError:  # Not in version 3, so named as in version 2.
            data_type = parse_dtype({"name": "|O", "object_codec_id": name}, zarr_format=2)
        values = np.full((3, 4), data_type.default_scalar(), data_type.to_native_dtype())
        found = _in_each_format(values, dtype=data_type, compressors=None)
        if found[0] == BOTH and name != "r<N>":
            written = data_type.to_json(3)
            if (written if isinstance(written, str) else written["name"]) != name:
                found = ONLY_READ
        yield name, found


def codecs() -> Iterator[tuple[str, list[str]]]:
    """For each codec what can be done with it in each format."""
    for name in codec_names():
        codec = parse_codec(_configured(name, CODECS))
        options: dict[str, Any] = {"compressors": [codec]}
        if isinstance(codec, ArrayArrayCodec):
            options = {"filters": [codec], "compressors": None}
        elif isinstance(codec, ArrayBytesCodec):
            options = {"serializer": codec, "compressors": None}
        data_type = parse_dtype(ELEMENTS.get(name, "int16"))
        values = np.full((3, 4), data_type.default_scalar(), data_type.to_native_dtype())
        found = _in_each_format(values, dtype=data_type, **options)
        yield name, found if codec.name == name else ONLY_READ


def consolidated() -> list[str]:
    """Whether each format has consolidated metadata."""
    found = []
    for zarr_format in FORMATS:
        store = xzarr3.MemoryStore()
        xzarr3.create_array(store, "a", shape=3, dtype="i2", compressors=None, zarr_format=zarr_format)
        try:
            xzarr3.consolidate_metadata(store)
        except xzarr3.MetadataError:
            found.append(NONE)
        else:
            found.append(BOTH if "a" in xzarr3.open_group(store, use_consolidated=True) else NONE)
    return found


def points() -> Iterator[tuple[str, str, list[str]]]:
    """Extension point, name and support in each format."""
    for name, found in data_types():
        yield "Data types", name, found
    for name, chunks in zip(GRIDS, ((2, 2), ([1, 2], [4])), strict=True):
        yield "Chunk grids", name, _in_each_format(chunks=chunks, compressors=None)
    for name in ("default", "v2"):
        yield "Chunk key encodings", name, _in_each_format(chunk_key_encoding=name, compressors=None)
    for name, found in codecs():
        yield "Codecs", name, found
    transformers = ", ".join(storage_transformer_names()) or "any that is registered"
    yield "Storage transformers", transformers, [BOTH, NONE, NONE]
    yield "Consolidated metadata", "inline in `zarr.json`, or `.zmetadata`", consolidated()


def table() -> str:
    """The table, in Markdown; what has the same support shares a row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for point, name, support in points():
            rows.setdefault((point, *support), []).append(name if " " in name else f"`{name}`")
    head = f"| Extension point | | {' | '.join(HEADINGS[name] for name in FORMATS)} |"
    lines = [
        f"| {point} | {', '.join(names)} | {' | '.join(support)} |"
        for (point, *support), names in rows.items()
    ]
    return "\n".join([head, "|---|---|" + "---|" * len(FORMATS), *lines]) + "\n"


if __name__ == "__main__":
    print(table())
