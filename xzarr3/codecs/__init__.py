"""Codecs: how chunks become bytes, one file for each.

Those of numcodecs are in :mod:`xzarr3.codecs.numcodecs`. What several files share is in files whose names
begin with an underscore.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from xzarr3.codecs.base import ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec, ChunkSpec, Codec
from xzarr3.codecs.parsing import parse_codec
from xzarr3.codecs.registry import (
    codec_from_json,
    codec_names,
    default_serializer,
    register_codec,
)

if TYPE_CHECKING:
    from xzarr3.codecs.bitround import BitRoundCodec
    from xzarr3.codecs.blosc import BloscCodec
    from xzarr3.codecs.bytes import BytesCodec
    from xzarr3.codecs.cast_value import CastValueCodec
    from xzarr3.codecs.conditional import ConditionalCodec
    from xzarr3.codecs.crc32c import Crc32cCodec
    from xzarr3.codecs.gzip import GzipCodec
    from xzarr3.codecs.n5_default import N5DefaultCodec
    from xzarr3.codecs.numcodecs.adler32 import Adler32Codec
    from xzarr3.codecs.numcodecs.astype import AsTypeCodec
    from xzarr3.codecs.numcodecs.bitround import NumcodecsBitRoundCodec
    from xzarr3.codecs.numcodecs.bz2 import Bz2Codec
    from xzarr3.codecs.numcodecs.crc32 import Crc32Codec
    from xzarr3.codecs.numcodecs.delta import DeltaCodec
    from xzarr3.codecs.numcodecs.fixedscaleoffset import FixedScaleOffsetCodec
    from xzarr3.codecs.numcodecs.fletcher32 import Fletcher32Codec
    from xzarr3.codecs.numcodecs.jenkins_lookup3 import JenkinsLookup3Codec
    from xzarr3.codecs.numcodecs.json2 import Json2Codec
    from xzarr3.codecs.numcodecs.lz4 import Lz4Codec
    from xzarr3.codecs.numcodecs.lzma import LzmaCodec
    from xzarr3.codecs.numcodecs.packbits import NumcodecsPackBitsCodec
    from xzarr3.codecs.numcodecs.pcodec import PCodecCodec
    from xzarr3.codecs.numcodecs.quantize import QuantizeCodec
    from xzarr3.codecs.numcodecs.shuffle import ShuffleCodec
    from xzarr3.codecs.numcodecs.zfpy import ZfpyCodec
    from xzarr3.codecs.numcodecs.zlib import ZlibCodec
    from xzarr3.codecs.packbits import PackBitsCodec
    from xzarr3.codecs.reshape import ReshapeCodec
    from xzarr3.codecs.scale_offset import ScaleOffsetCodec
    from xzarr3.codecs.sharding import ShardingCodec
    from xzarr3.codecs.transpose import TransposeCodec
    from xzarr3.codecs.vlen_bytes import VLenBytesCodec
    from xzarr3.codecs.vlen_utf8 import VLenUTF8Codec
    from xzarr3.codecs.zfp import ZfpCodec
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
    "CastValueCodec",
    "ChunkSpec",
    "Codec",
    "ConditionalCodec",
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
    "N5DefaultCodec",
    "NumcodecsBitRoundCodec",
    "NumcodecsPackBitsCodec",
    "PCodecCodec",
    "PackBitsCodec",
    "QuantizeCodec",
    "ReshapeCodec",
    "ScaleOffsetCodec",
    "ShardingCodec",
    "ShuffleCodec",
    "TransposeCodec",
    "VLenBytesCodec",
    "VLenUTF8Codec",
    "ZfpCodec",
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
    "Adler32Codec": "numcodecs.adler32",
    "AsTypeCodec": "numcodecs.astype",
    "BitRoundCodec": "bitround",
    "BloscCodec": "blosc",
    "BytesCodec": "bytes",
    "Bz2Codec": "numcodecs.bz2",
    "CastValueCodec": "cast_value",
    "ConditionalCodec": "conditional",
    "Crc32Codec": "numcodecs.crc32",
    "Crc32cCodec": "crc32c",
    "DeltaCodec": "numcodecs.delta",
    "FixedScaleOffsetCodec": "numcodecs.fixedscaleoffset",
    "Fletcher32Codec": "numcodecs.fletcher32",
    "GzipCodec": "gzip",
    "JenkinsLookup3Codec": "numcodecs.jenkins_lookup3",
    "Json2Codec": "numcodecs.json2",
    "Lz4Codec": "numcodecs.lz4",
    "LzmaCodec": "numcodecs.lzma",
    "N5DefaultCodec": "n5_default",
    "NumcodecsBitRoundCodec": "numcodecs.bitround",
    "NumcodecsPackBitsCodec": "numcodecs.packbits",
    "PCodecCodec": "numcodecs.pcodec",
    "PackBitsCodec": "packbits",
    "QuantizeCodec": "numcodecs.quantize",
    "ReshapeCodec": "reshape",
    "ScaleOffsetCodec": "scale_offset",
    "ShardingCodec": "sharding",
    "ShuffleCodec": "numcodecs.shuffle",
    "TransposeCodec": "transpose",
    "VLenBytesCodec": "vlen_bytes",
    "VLenUTF8Codec": "vlen_utf8",
    "ZfpCodec": "zfp",
    "ZfpyCodec": "numcodecs.zfpy",
    "ZlibCodec": "numcodecs.zlib",
    "ZstdCodec": "zstd",
}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(import_module(f"xzarr3.codecs.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
