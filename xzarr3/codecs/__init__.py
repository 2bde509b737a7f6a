"""Codecs: they turn chunks into bytes and back. Each codec has a file of its own.

The codecs of numcodecs are in :mod:`xzarr3.codecs.numcodecs`, one file for each kind.
Files whose names begin with an underscore hold code that several codecs share.
Nothing here knows stores, chunk keys or whole arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xzarr3.codecs.base import ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec, ChunkSpec, Codec
from xzarr3.codecs.parsing import parse_codec
from xzarr3.codecs.registry import (
    CLASSES,
    codec_from_json,
    codec_names,
    default_serializer,
    loaded,
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
    from xzarr3.codecs.numcodecs.checksums import (
        Adler32Codec,
        Crc32Codec,
        Fletcher32Codec,
        JenkinsLookup3Codec,
    )
    from xzarr3.codecs.numcodecs.compressors import Bz2Codec, Lz4Codec, LzmaCodec, ShuffleCodec, ZlibCodec
    from xzarr3.codecs.numcodecs.filters import (
        AsTypeCodec,
        DeltaCodec,
        FixedScaleOffsetCodec,
        NumcodecsBitRoundCodec,
        NumcodecsPackBitsCodec,
        QuantizeCodec,
    )
    from xzarr3.codecs.numcodecs.objects import Json2Codec
    from xzarr3.codecs.numcodecs.pcodec import PCodecCodec
    from xzarr3.codecs.optional import OptionalCodec
    from xzarr3.codecs.packbits import PackBitsCodec
    from xzarr3.codecs.reshape import ReshapeCodec
    from xzarr3.codecs.scale_offset import ScaleOffsetCodec
    from xzarr3.codecs.sharding import ShardingCodec
    from xzarr3.codecs.transpose import TransposeCodec
    from xzarr3.codecs.vlen import VLenBytesCodec, VLenUTF8Codec
    from xzarr3.codecs.zfp import ZfpCodec, ZfpyCodec
    from xzarr3.codecs.zstd import ZstdCodec

__all__ = [
    "Adler32Codec", "ArrayArrayCodec", "ArrayBytesCodec", "AsTypeCodec", "BitRoundCodec", "BloscCodec",
    "BytesBytesCodec", "BytesCodec", "Bz2Codec", "CastValueCodec", "ChunkSpec", "Codec", "ConditionalCodec",
    "Crc32Codec", "Crc32cCodec", "DeltaCodec", "FixedScaleOffsetCodec", "Fletcher32Codec", "GzipCodec",
    "JenkinsLookup3Codec", "Json2Codec", "Lz4Codec", "LzmaCodec", "N5DefaultCodec", "NumcodecsBitRoundCodec",
    "NumcodecsPackBitsCodec", "OptionalCodec", "PCodecCodec", "PackBitsCodec", "QuantizeCodec",
    "ReshapeCodec", "ScaleOffsetCodec", "ShardingCodec", "ShuffleCodec", "TransposeCodec", "VLenBytesCodec",
    "VLenUTF8Codec", "ZfpCodec", "ZfpyCodec", "ZlibCodec", "ZstdCodec", "codec_from_json", "codec_names",
    "default_serializer", "parse_codec", "register_codec",
]  # fmt: skip


def __getattr__(name: str) -> object:
    # Loads a codec on first use, because its module imports the library that does its work.
    if name in __all__:
        return loaded(CLASSES[name])
    near = [each for each in __all__ if each.lower() == f"{name}codec".lower()]  # As zarr-python has it.
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted(__all__)
