"""The table of what is supported in which format, made from the registries by trying it.

``python ci/support_table.py`` prints it, and ``notebooks/conf.py`` puts it into the site.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
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


def _works(make: Callable[[xzarr3.MemoryStore], xzarr3.Array], values: Any) -> str:
    """What comes of making an array, writing to it and reading it again through its document."""
    store = xzarr3.MemoryStore()
    try:
        array = make(store)
    except xzarr3.MetadataError:
        return NONE
    array[...] = values
    again = xzarr3.open_array(store, "a")
    equal = again.zdtype == array.zdtype and again.get().tolist() == array.get().tolist()
    return BOTH if equal else NONE


def _only_version_3(found: list[str]) -> list[str]:
    """The support of a name that is another one for something: the name means nothing elsewhere."""
    return [found[0]] + [NONE] * (len(FORMATS) - 1)


def data_types() -> Iterator[tuple[str, list[str]]]:
    """For each data type what can be done with it in each format."""
    for name in data_type_registry.names:
        found = []
        for zarr_format in FORMATS:
            try:
                data_type = parse_dtype(_configured(name, DATA_TYPES), zarr_format=3)
            except xzarr3.MetadataError:  # Not in version 3, so named as in version 2.
                data_type = parse_dtype({"name": "|O", "object_codec_id": name}, zarr_format=2)
            scalar = data_type.default_scalar()
            values = np.full((3, 4), scalar, data_type.to_native_dtype())
            support = _works(
                lambda store, zarr_format=zarr_format, data_type=data_type: xzarr3.create_array(
                    store, "a", shape=(3, 4), chunks=(2, 2), dtype=data_type, compressors=None,
                    zarr_format=zarr_format, write_empty_chunks=True,
                ),
                values,
            )  # fmt: skip
            if support == BOTH and zarr_format == 3 and name != "r<N>":
                written = data_type.to_json(3)
                if (written if isinstance(written, str) else written["name"]) != name:
                    support = READ
            found.append(support)
        yield name, _only_version_3(found) if found[0] == READ else found


def codecs() -> Iterator[tuple[str, list[str]]]:
    """For each codec what can be done with it in each format."""
    for name in codec_names():
        codec = parse_codec(_configured(name, CODECS))
        if isinstance(codec, ArrayArrayCodec):
            options = {"filters": [codec], "compressors": None}
        elif isinstance(codec, ArrayBytesCodec):
            options = {"serializer": codec, "compressors": None}
        else:
            options = {"compressors": [codec]}
        element = ELEMENTS.get(name, "int16")
        data_type = parse_dtype(element)
        values = np.full((3, 4), data_type.default_scalar(), data_type.to_native_dtype())
        found = [
            _works(
                lambda store, zarr_format=zarr_format, options=options, data_type=data_type: (
                    xzarr3.create_array(
                        store, "a", shape=(3, 4), chunks=(2, 2), dtype=data_type,
                        zarr_format=zarr_format, write_empty_chunks=True, **options,
                    )
                ),
                values,
            )
            for zarr_format in FORMATS
        ]  # fmt: skip
        yield name, found if codec.name == name else _only_version_3([READ])


def grids() -> Iterator[tuple[str, list[str]]]:
    """For each chunk grid what can be done with it in each format."""
    chunks = {"regular": (2, 2), "rectilinear": ([1, 2], [4])}
    for name in GRIDS:
        yield (
            name,
            [
                _works(
                    lambda store, name=name, zarr_format=zarr_format: xzarr3.create_array(
                        store, "a", shape=(3, 4), chunks=chunks[name], dtype="i2", compressors=None,
                        zarr_format=zarr_format,
                    ),
                    1,
                )
                for zarr_format in FORMATS
            ],
        )  # fmt: skip


def chunk_keys() -> Iterator[tuple[str, list[str]]]:
    """For each chunk key encoding what can be done with it in each format."""
    for name in ("default", "v2"):
        yield (
            name,
            [
                _works(
                    lambda store, name=name, zarr_format=zarr_format: xzarr3.create_array(
                        store, "a", shape=(3, 4), chunks=2, dtype="i2", compressors=None,
                        chunk_key_encoding=name, zarr_format=zarr_format,
                    ),
                    1,
                )
                for zarr_format in FORMATS
            ],
        )  # fmt: skip


def consolidated() -> Iterator[tuple[str, list[str]]]:
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
    yield "inline in `zarr.json`, or `.zmetadata`", found


def transformers() -> Iterator[tuple[str, list[str]]]:
    """The storage transformers that are registered, of which there are none to begin with."""
    names = storage_transformer_names()
    yield ", ".join(names) or "any that is registered", [BOTH, NONE, NONE]


def table() -> str:
    """The table, in Markdown; what has the same support shares a row."""
    lines = [
        f"| Extension point | | {' | '.join(HEADINGS[name] for name in FORMATS)} |",
        "|---|---|" + "---|" * len(FORMATS),
    ]
    points: dict[str, Callable[[], Iterator[tuple[str, list[str]]]]] = {
        "Data types": data_types,
        "Chunk grids": grids,
        "Chunk key encodings": chunk_keys,
        "Codecs": codecs,
        "Storage transformers": transformers,
        "Consolidated metadata": consolidated,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for point, probe in points.items():
            rows: dict[tuple[str, ...], list[str]] = {}
            for name, support in probe():
                rows.setdefault(tuple(support), []).append(name if " " in name else f"`{name}`")
            for support, names in rows.items():
                lines.append(f"| {point} | {', '.join(names)} | {' | '.join(support)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table())
