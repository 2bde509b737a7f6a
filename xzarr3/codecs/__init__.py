"""Codecs: how chunks become bytes, one file for each, or for a few of a kind."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from xzarr3.codecs.base import ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec, ChunkSpec, Codec
from xzarr3.codecs.registry import (
    codec_from_json,
    codec_names,
    default_serializer,
    parse_codec,
    register_codec,
)

if TYPE_CHECKING:
    from xzarr3.codecs.blosc import BloscCodec
    from xzarr3.codecs.bytes import BytesCodec
    from xzarr3.codecs.checksums import Adler32Codec, Crc32Codec, Fletcher32Codec, JenkinsLookup3Codec
    from xzarr3.codecs.compressors import Bz2Codec, Lz4Codec, LzmaCodec, ShuffleCodec, ZlibCodec
    from xzarr3.codecs.crc32c import Crc32cCodec
    from xzarr3.codecs.filters import (
        AsTypeCodec,
        BitRoundCodec,
        DeltaCodec,
        FixedScaleOffsetCodec,
        PackBitsCodec,
        QuantizeCodec,
    )
    from xzarr3.codecs.gzip import GzipCodec
    from xzarr3.codecs.json2 import Json2Codec
    from xzarr3.codecs.optional import PCodecCodec, ZfpyCodec
    from xzarr3.codecs.sharding import ShardingCodec
    from xzarr3.codecs.transpose import TransposeCodec
    from xzarr3.codecs.vlen import VLenBytesCodec, VLenUTF8Codec
    from xzarr3.codecs.zstd import ZstdCodec

__all__ = [
    "Adler32Codec",
    "ArrayArrayCodec",
    "ArrayBytesCodec",
    "AsTypeCodec",
    "BitRoundCodec",
    "BloscCodec",
    "BytesBytesCodec",
    "BytesCodec",
    "Bz2Codec",
    "ChunkSpec",
    "Codec",
    "Crc32Codec",
    "Crc32cCodec",
    "DeltaCodec",
    "FixedScaleOffsetCodec",
    "Fletcher32Codec",
    "GzipCodec",
    "JenkinsLookup3Codec",
    "Json2Codec",
    "Lz4Codec",
    "LzmaCodec",
    "PCodecCodec",
    "PackBitsCodec",
    "QuantizeCodec",
    "ShardingCodec",
    "ShuffleCodec",
    "TransposeCodec",
    "VLenBytesCodec",
    "VLenUTF8Codec",
    "ZfpyCodec",
    "ZlibCodec",
    "ZstdCodec",
    "codec_from_json",
    "codec_names",
    "default_serializer",
    "parse_codec",
    "register_codec",
]

# Each of these imports the library that does its work, so each is loaded when it is first asked for.
_LAZY = {
    "Adler32Codec": "checksums",
    "AsTypeCodec": "filters",
    "BitRoundCodec": "filters",
    "BloscCodec": "blosc",
    "BytesCodec": "bytes",
    "Bz2Codec": "compressors",
    "Crc32Codec": "checksums",
    "Crc32cCodec": "crc32c",
    "DeltaCodec": "filters",
    "FixedScaleOffsetCodec": "filters",
    "Fletcher32Codec": "checksums",
    "GzipCodec": "gzip",
    "JenkinsLookup3Codec": "checksums",
    "Json2Codec": "json2",
    "Lz4Codec": "compressors",
    "LzmaCodec": "compressors",
    "PCodecCodec": "optional",
    "PackBitsCodec": "filters",
    "QuantizeCodec": "filters",
    "ShardingCodec": "sharding",
    "ShuffleCodec": "compressors",
    "TransposeCodec": "transpose",
    "VLenBytesCodec": "vlen",
    "VLenUTF8Codec": "vlen",
    "ZfpyCodec": "optional",
    "ZlibCodec": "compressors",
    "ZstdCodec": "zstd",
}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(import_module(f"xzarr3.codecs.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
