"""Chunk grids, codecs and storage transformers in documents of the draft of May 2022.

Specification: Zarr v3 core, editor's draft of 25 May 2022, "Chunk grids", "Chunk encoding"; and the drafts of
the gzip, blosc, endian and transpose codecs and of the sharding storage transformer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from xzarr3._types import JSON
from xzarr3.codecs.base import ArrayArrayCodec, ArrayBytesCodec, Codec, Configuration
from xzarr3.codecs.bytes import BytesCodec
from xzarr3.codecs.transpose import TransposeCodec
from xzarr3.errors import MetadataError, UnknownExtensionError, listed
from xzarr3.formats.base import chunk_shape_of, lengths_of
from xzarr3.formats.draft.json import Refuse, invalid, items_of, members, string_of
from xzarr3.formats.draft.types import Named
from xzarr3.grid import RegularGrid
from xzarr3.model.metadata import ArrayMetadata

_Metadata = TypeVar("_Metadata", bound=ArrayMetadata)


def chunk_grid_from_json(value: object, shape: tuple[int, ...]) -> tuple[tuple[int, ...], str]:
    """The chunk shape, and the separator in chunk keys."""
    if isinstance(value, Mapping) and ("extension" in value or value.get("type", "regular") != "regular"):
        raise UnknownExtensionError(
            "unknown chunk grid", field="chunk_grid", found=dict(value), accepted="'regular'"
        )
    ndim = len(shape)
    needed = {"type": "'regular'", "chunk_shape": f"{ndim} integers"}
    found, _ = members(value, needed, ("separator",), "chunk_grid")
    lengths = chunk_shape_of(found["chunk_shape"], shape, "chunk_grid.chunk_shape")
    separator = found.get("separator", "/")
    if not isinstance(separator, str) or separator not in ("/", "."):
        raise invalid("chunk_grid.separator", separator, "'/', '.'")
    return lengths, separator


_CODEC_URI = re.compile(r"https?://purl\.org/zarr/spec/codecs?/([a-z]+)/1\.0")
_CODECS = "https://purl.org/zarr/spec/codecs"
_KNOWN_CODECS = ("gzip", "blosc", "endian", "transpose")
_ACCEPTED_CODECS = listed(f"{_CODECS}/{name}/1.0" for name in _KNOWN_CODECS)
_SHUFFLES = {-1: None, 0: "noshuffle", 1: "shuffle", 2: "bitshuffle"}


def _codec(item: object, ndim: int, field: str) -> Codec:
    found, _ = members(item, {"type": "a URI"}, ("configuration",), field)
    uri = string_of(found["type"], f"{field}.type", "a URI")
    match = _CODEC_URI.fullmatch(uri)
    if match is None or match[1] not in _KNOWN_CODECS:
        raise UnknownExtensionError(
            "unknown codec", field=f"{field}.type", found=uri, accepted=_ACCEPTED_CODECS
        )
    configuration = found.get("configuration", {})
    if not isinstance(configuration, dict):
        raise invalid(f"{field}.configuration", configuration, "an object")
    read = {"gzip": _gzip, "blosc": _blosc, "endian": _endian}
    try:
        if match[1] == "transpose":
            return _transpose(configuration, ndim)
        return read[match[1]](configuration)
    except MetadataError as error:
        error.at(field=field)
        raise


def _gzip(configuration: Mapping[str, JSON]) -> Codec:
    from xzarr3.codecs.gzip import GzipCodec

    fields = Configuration("gzip", configuration)
    level = fields.integer("level", 0, 9, default=GzipCodec.level)  # Decoding needs no level.
    fields.finish()
    return GzipCodec(level)


def _blosc(configuration: Mapping[str, JSON]) -> Codec:
    from xzarr3.codecs.blosc import BloscCodec

    fields = Configuration("blosc", configuration)
    cname = fields.choice("cname", ("lz4", "lz4hc", "blosclz", "snappy", "zlib", "zstd"), default="lz4")
    clevel = fields.integer("clevel", 0, 9)
    shuffle = fields.integer("shuffle", -1, 2, default=1)
    blocksize = fields.integer("blocksize", 0, 2**31 - 1, default=0)
    fields.finish()
    return BloscCodec(cname, clevel, _SHUFFLES[shuffle], None, blocksize)


def _endian(configuration: Mapping[str, JSON]) -> Codec:
    fields = Configuration("endian", configuration)
    endian = fields.choice("endian", ("little", "big"))
    fields.finish()
    return BytesCodec(endian)


def _transpose(configuration: Mapping[str, JSON], ndim: int) -> Codec:
    fields = Configuration("transpose", configuration)
    order = fields.take("order", "'C', 'F', or each dimension once")
    fields.finish()
    if order == "C":
        return TransposeCodec(tuple(range(ndim)))
    if order == "F":
        return _reversed(ndim)
    if not isinstance(order, list) or not all(type(axis) is int for axis in order):
        raise fields.error("order", order, "'C', 'F', or each dimension once")
    return TransposeCodec(tuple(order))  # type: ignore[arg-type]


def _reversed(ndim: int) -> TransposeCodec:
    return TransposeCodec(tuple(reversed(range(ndim))))


def codecs_from_json(document: Mapping[str, Any], named: Named, ndim: int) -> tuple[Codec, ...]:
    """The codecs, including those that the document only implies."""
    items = items_of(document.get("codecs", []), "codecs", "an array of codecs")
    codecs = [_codec(item, ndim, f"codecs[{at}]") for at, item in enumerate(items)]
    transposed = any(isinstance(codec, TransposeCodec) for codec in codecs)
    layout = _memory_layout(document, transposed=transposed)
    if layout == "F" and transposed:
        raise invalid(
            "chunk_memory_layout",
            layout,
            "'C', or no codec 'transpose'",
            "the order is given twice",
        )
    filters = [codec for codec in codecs if isinstance(codec, ArrayArrayCodec)]
    if not any(isinstance(codec, ArrayBytesCodec) for codec in codecs):
        # Bytes-to-bytes codecs get the elements in C order and in the byte order of the data type.
        codecs.insert(len(filters), BytesCodec(named.endian))
    if layout == "F" and ndim > 1:
        codecs.insert(0, _reversed(ndim))
    return tuple(codecs)


def _memory_layout(document: Mapping[str, Any], *, transposed: bool) -> str:
    """The order of the elements in chunks. Later states of the draft use the codec ``transpose`` instead."""
    accepted = "'C', 'F'"
    if "chunk_memory_layout" not in document:
        if transposed:
            return "C"
        raise MetadataError("missing field", field="chunk_memory_layout", accepted=accepted)
    layout = document["chunk_memory_layout"]
    if isinstance(layout, Mapping) and "extension" in layout:
        raise UnknownExtensionError(
            "unknown memory layout", field="chunk_memory_layout", found=dict(layout), accepted=accepted
        )
    if not isinstance(layout, str) or layout not in ("C", "F"):
        raise invalid("chunk_memory_layout", layout, accepted)
    return layout


def codecs_to_json(meta: ArrayMetadata, refuse: Refuse) -> tuple[str, list[JSON]]:
    """The memory layout of chunks, and the other codecs."""
    codecs = list(meta.codecs)
    ndim = len(meta.shape)
    layout = "C"
    if codecs and isinstance(codecs[0], TransposeCodec):
        first = codecs.pop(0)
        if first == _reversed(ndim):
            layout = "F" if ndim > 1 else "C"
        elif first != TransposeCodec(tuple(range(ndim))):
            raise refuse("codecs", first.to_json(), "elements in C or F order")
    return layout, [item for codec in codecs for item in _codec_to_json(codec, meta, refuse)]


def _codec_to_json(codec: Codec, meta: ArrayMetadata, refuse: Refuse) -> list[JSON]:
    configuration = codec.configuration()
    name = codec.name
    if isinstance(codec, BytesCodec):
        if codec.endian != "big":
            return []
        name = "endian"
    elif name == "blosc":
        size = meta.data_type.item_size
        numbers = {shuffle: number for number, shuffle in _SHUFFLES.items()}
        configuration["shuffle"] = numbers[configuration.get("shuffle")]  # type: ignore[index]
        if configuration.pop("typesize", size) != size:
            raise refuse("codecs", codec.to_json(), f"typesize={size}, the size of an element")
    elif name != "gzip":
        raise refuse("codecs", codec.to_json(), "'gzip', 'blosc', 'bytes', and one 'transpose' before them")
    return [{"type": f"{_CODECS}/{name}/1.0", "configuration": configuration}]


# Storage transformers

_SHARDING = "https://purl.org/zarr/spec/storage_transformers/sharding/1.0"


def with_shards(
    meta: _Metadata, chunk_shape: tuple[int, ...], transformers: object, *, early: bool = False
) -> _Metadata:
    """The array with the sharding codec if its chunks are in shards, and with complete codecs.

    A shard then is the stored unit. In the draft, a storage transformer makes the shards; the stored bytes
    are the same.
    """
    per_shard = _chunks_per_shard(transformers, len(meta.shape), early=early)
    try:
        meta = replace(meta, codecs=meta.chain.codecs)
        if per_shard is not None:
            from xzarr3.codecs.sharding import ShardingCodec

            shape = tuple(length * number for length, number in zip(chunk_shape, per_shard, strict=True))
            sharding = ShardingCodec(chunk_shape, meta.codecs, index_codecs=(BytesCodec("little"),))
            meta = replace(meta, chunk_grid=RegularGrid(shape), codecs=(sharding,))
            meta.check_codecs()
    except MetadataError as error:
        error.field = "codecs"  # No index: implied codecs have no place in the document.
        raise
    return meta


def _chunks_per_shard(value: object, ndim: int, *, early: bool) -> tuple[int, ...] | None:
    """Number of chunks in a shard along each dimension; None without the one known storage transformer."""
    needed = {"extension": "a URI", "type": "what the extension defines"}
    accepted = f"{ndim} integers of at least 1"
    sharding = None
    for at, item in enumerate(items_of(value, "storage_transformers", "an array of storage transformers")):
        field = f"storage_transformers[{at}]"
        found, _ = members(item, needed, ("configuration",), field)
        uri = string_of(found["extension"], f"{field}.extension", needed["extension"])
        if uri.replace("http:", "https:") != _SHARDING or found["type"] != "indexed" or sharding is not None:
            raise UnknownExtensionError(
                "unknown storage transformer", field=field, found=item,
                accepted=f"'{_SHARDING}' of type 'indexed', once",
            )  # fmt: skip
        field = f"{field}.configuration"
        inside, _ = members(found.get("configuration", {}), {"chunks_per_shard": accepted}, (), field)
        field = f"{field}.chunks_per_shard"
        sharding = lengths_of(inside["chunks_per_shard"], field)
        if early and not ndim and sharding == (1,):
            sharding = ()  # Earlier tools write [1] for an array without dimensions.
        if len(sharding) != ndim or not all(0 < number < 2**31 for number in sharding):
            raise invalid(field, list(sharding), accepted)
    return sharding
