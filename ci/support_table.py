"""The table of what is supported in which format, made from the registries by trying it.

``python ci/support_table.py`` prints it, and ``notebooks/conf.py`` puts it into the site.
"""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
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

BOTH, NONE = "read, write", "no"
ONLY_READ = ["read", NONE, NONE]
"""The support of a name that is another one for something: it means nothing beside version 3."""

TRIED = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
DATA_TYPES, CODECS, ELEMENTS = TRIED["data_types"], TRIED["codecs"], TRIED["elements"]
"""What is tried where a name alone says too little: configurations, and the data types that codecs need."""


def _configured(name: str, configurations: dict[str, Any]) -> Any:
    known = configurations.get(name, name)
    return {"name": name, "configuration": known} if isinstance(known, dict) else known


def _in_each_format(values: Any = 1, **options: Any) -> list[str]:
    """What comes, by format, of making an array, writing to it and reading it again by its document."""
    found = []
    options = {"shape": (3, 4), "chunks": (2, 2), "dtype": "i2", "write_empty_chunks": True, **options}
    for zarr_format in FORMATS:
        store = xzarr3.MemoryStore()
        try:
            array = xzarr3.create_array(store, "a", zarr_format=zarr_format, **options)
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
            found.append(BOTH if "a" in xzarr3.open_group(store, use_consolidated=True) else NONE)
        except xzarr3.MetadataError:
            found.append(NONE)
    return found


def points() -> Iterator[tuple[str, str, list[str]]]:
    """Extension point, name and support in each format."""
    for name, found in data_types():
        yield "Data types", name, found
    chunks = {"regular": (2, 2), "rectilinear": ([1, 2], [4])}
    for name in GRIDS:
        yield "Chunk grids", name, _in_each_format(chunks=chunks[name], compressors=None)
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
