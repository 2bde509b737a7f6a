"""Chunk grids, codecs and storage transformers in documents of the draft of May 2022.

Specification: Zarr v3 core, editor's draft of 25 May 2022, "Chunk grids", "Chunk encoding"; and the drafts of
the gzip, blosc, endian and transpose codecs and of the sharding storage transformer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, cast

import msgspec

from xzarr3 import fields
from xzarr3._types import JSON
from xzarr3.codecs.base import ArrayArrayCodec, ArrayBytesCodec, Codec
from xzarr3.codecs.blosc import BloscCodec, CName
from xzarr3.codecs.bytes import BytesCodec
from xzarr3.codecs.gzip import GzipCodec
from xzarr3.codecs.transpose import TransposeCodec
from xzarr3.errors import MetadataError, UnknownExtensionError, listed, located
from xzarr3.fields import Meta
from xzarr3.formats.base import chunk_shape_of
from xzarr3.formats.draft.json import URI, ArrayDocument, Refuse, invalid, read
from xzarr3.formats.draft.types import Named
from xzarr3.grid import RegularGrid
from xzarr3.model.metadata import ArrayMetadata


class _ChunkGrid(msgspec.Struct, frozen=True):
    type: Literal["regular"]
    chunk_shape: list[int]
    separator: Literal["/", "."] = "/"


def chunk_grid_from_json(value: object, shape: tuple[int, ...]) -> tuple[tuple[int, ...], str]:
    """The chunk shape, and the separator in chunk keys."""
    if isinstance(value, Mapping) and ("extension" in value or value.get("type", "regular") != "regular"):
        raise UnknownExtensionError(
            "unknown chunk grid", field="chunk_grid", found=dict(value), accepted="'regular'"
        )
    found, _ = read(_ChunkGrid, value, "chunk_grid")
    return chunk_shape_of(found.chunk_shape, shape, "chunk_grid.chunk_shape"), found.separator


_CODEC_URI = re.compile(r"https?://purl\.org/zarr/spec/codecs?/([a-z]+)/1\.0")
_CODECS = "https://purl.org/zarr/spec/codecs"
_KNOWN_CODECS = ("gzip", "blosc", "endian", "transpose")
_ACCEPTED_CODECS = listed(f"{_CODECS}/{name}/1.0" for name in _KNOWN_CODECS)
_SHUFFLES = {-1: None, 0: "noshuffle", 1: "shuffle", 2: "bitshuffle"}


class _Codec(msgspec.Struct, frozen=True):
    type: URI
    configuration: dict[str, Any] = msgspec.field(default_factory=dict)


class _Blosc(msgspec.Struct, frozen=True):
    clevel: Annotated[int, Meta(ge=0, le=9)]
    cname: CName = "lz4"
    shuffle: Annotated[int, Meta(ge=-1, le=2)] = 1
    blocksize: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0


class _Endian(msgspec.Struct, frozen=True):
    endian: Literal["little", "big"]


class _Transpose(msgspec.Struct, frozen=True):
    order: Annotated[
        Literal["C", "F"] | tuple[int, ...], Meta(description="'C', 'F', or each dimension once")
    ]


def _codec(item: object, ndim: int, field: str) -> Codec:
    found, _ = read(_Codec, item, field)
    match, given = _CODEC_URI.fullmatch(found.type), found.configuration
    if match is None or match[1] not in _KNOWN_CODECS:
        raise UnknownExtensionError(
            "unknown codec", field=f"{field}.type", found=found.type, accepted=_ACCEPTED_CODECS
        )
    with located(field=field):
        if match[1] == "gzip":
            return GzipCodec.from_configuration({"level": 5, **given})  # decoding needs no level
        if match[1] == "endian":
            return BytesCodec(**fields.read(_Endian, given, "codec 'endian'"))
        if match[1] == "blosc":
            blosc = _Blosc(**fields.read(_Blosc, given, "codec 'blosc'"))
            shuffle = _SHUFFLES[blosc.shuffle]
            return BloscCodec(blosc.cname, blosc.clevel, shuffle, None, blosc.blocksize)  # type: ignore[arg-type]
        order = fields.read(_Transpose, given, "codec 'transpose'")["order"]
        orders = {"C": tuple(range(ndim)), "F": _reversed(ndim).order}
        return TransposeCodec(orders.get(order, order))


def _reversed(ndim: int) -> TransposeCodec:
    return TransposeCodec(tuple(reversed(range(ndim))))


def codecs_from_json(document: ArrayDocument, named: Named, ndim: int) -> tuple[Codec, ...]:
    """The codecs, including those that the document only implies."""
    codecs = [_codec(item, ndim, f"codecs[{at}]") for at, item in enumerate(document.codecs)]
    transposed = any(isinstance(codec, TransposeCodec) for codec in codecs)
    layout = _memory_layout(document.chunk_memory_layout, transposed=transposed)
    if layout == "F" and transposed:
        raise invalid(
            "chunk_memory_layout", layout, "'C', or no codec 'transpose'", "the order is given twice"
        )
    filters = [codec for codec in codecs if isinstance(codec, ArrayArrayCodec)]
    if not any(isinstance(codec, ArrayBytesCodec) for codec in codecs):
        # Bytes-to-bytes codecs get the elements in C order and in the byte order of the data type.
        codecs.insert(len(filters), BytesCodec(cast("Any", named.endian)))
    if layout == "F" and ndim > 1:
        codecs.insert(0, _reversed(ndim))
    return tuple(codecs)


def _memory_layout(layout: object, *, transposed: bool) -> str:
    """The order of the elements in chunks. Later states of the draft use the codec ``transpose`` instead."""
    accepted = "'C', 'F'"
    if layout is None:
        if transposed:
            return "C"
        raise MetadataError("missing field", field="chunk_memory_layout", accepted=accepted)
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


class _Transformer(msgspec.Struct, frozen=True):
    extension: URI
    type: Annotated[Any, Meta(description="what the extension defines")]
    configuration: Any = msgspec.field(default_factory=dict)


class _Shards(msgspec.Struct, frozen=True):
    chunks_per_shard: Annotated[
        list[Annotated[int, Meta(ge=1, le=2**31 - 1)]], Meta(description="an array of integers of at least 1")
    ]


def with_shards(meta: ArrayMetadata, chunk_shape: tuple[int, ...], transformers: list[Any]) -> ArrayMetadata:
    """The array with the sharding codec if its chunks are in shards, and with complete codecs.

    A shard then is the stored unit. In the draft, a storage transformer makes the shards; the stored bytes
    are the same.
    """
    per_shard = _chunks_per_shard(transformers, len(meta.shape))
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


def _chunks_per_shard(transformers: list[Any], ndim: int) -> tuple[int, ...] | None:
    """Number of chunks in a shard along each dimension; None without the one known storage transformer."""
    sharding = None
    for at, item in enumerate(transformers):
        field = f"storage_transformers[{at}]"
        found, _ = read(_Transformer, item, field)
        uri = found.extension.replace("http:", "https:")
        if uri != _SHARDING or found.type != "indexed" or sharding is not None:
            raise UnknownExtensionError(
                "unknown storage transformer", field=field, found=item,
                accepted=f"'{_SHARDING}' of type 'indexed', once",
            )  # fmt: skip
        inside, _ = read(_Shards, found.configuration, f"{field}.configuration")
        sharding = tuple(inside.chunks_per_shard)
        if len(sharding) != ndim:
            field, accepted = f"{field}.configuration.chunks_per_shard", f"{ndim} integers of at least 1"
            raise invalid(field, list(sharding), accepted)
    return sharding
