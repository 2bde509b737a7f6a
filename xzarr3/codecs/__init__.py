"""Codecs: how chunks become bytes, one file for each."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from xzarr3.codecs.base import ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec, ChunkSpec, Codec
from xzarr3.codecs.registry import codec_from_json, codec_names, parse_codec, register_codec

if TYPE_CHECKING:
    from xzarr3.codecs.blosc import BloscCodec
    from xzarr3.codecs.bytes import BytesCodec
    from xzarr3.codecs.crc32c import Crc32cCodec
    from xzarr3.codecs.gzip import GzipCodec
    from xzarr3.codecs.sharding import ShardingCodec
    from xzarr3.codecs.transpose import TransposeCodec
    from xzarr3.codecs.zstd import ZstdCodec

__all__ = [
    "ArrayArrayCodec",
    "ArrayBytesCodec",
    "BloscCodec",
    "BytesBytesCodec",
    "BytesCodec",
    "ChunkSpec",
    "Codec",
    "Crc32cCodec",
    "GzipCodec",
    "ShardingCodec",
    "TransposeCodec",
    "ZstdCodec",
    "codec_from_json",
    "codec_names",
    "parse_codec",
    "register_codec",
]

# Each of these imports the library that does its work, so each is loaded when it is first asked for.
_LAZY = {
    "BloscCodec": "blosc",
    "BytesCodec": "bytes",
    "Crc32cCodec": "crc32c",
    "GzipCodec": "gzip",
    "ShardingCodec": "sharding",
    "TransposeCodec": "transpose",
    "ZstdCodec": "zstd",
}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(import_module(f"xzarr3.codecs.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
