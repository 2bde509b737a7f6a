"""The compressors of numcodecs, and its byte shuffle, which is applied before a compressor.

Specification: zarr-extensions, a document for each name; the documentation of numcodecs. Names:
``numcodecs.bz2``, ``numcodecs.lz4``, ``numcodecs.lzma``, ``numcodecs.shuffle``, ``numcodecs.zlib``.
``numcodecs.blosc``, ``numcodecs.gzip`` and ``numcodecs.zstd`` are other names of the codecs of version 3.
Example: ``{"name": "numcodecs.zlib", "configuration": {"level": 1}}``.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self

from isal import isal_zlib
from numcodecs import lz4
from numcodecs.shuffle import Shuffle

from xzarr3._types import JSON, Buffer
from xzarr3.codecs.base import BytesBytesCodec, ChunkSpec, NumcodecsCodec
from xzarr3.codecs.streams import decompressed
from xzarr3.errors import ChunkDecodeError, ChunkEncodeError, UnknownExtensionError
from xzarr3.fields import Meta

_MAX_INT = 2**31 - 1
_MEMORY = 2**29  # bytes; the largest preset decodes in 65 MiB


@dataclass(frozen=True)
class ZlibCodec(NumcodecsCodec, BytesBytesCodec):
    """Compression with zlib (RFC 1950).

    Parameters
    ----------
    level : int
        -1 for the default of zlib, or 0 (store) to 9 (smallest).

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.array([1, 2, 3], compressors=xzarr3.codecs.ZlibCodec(level=4)).compressors
    (ZlibCodec(level=4),)
    """

    name = "numcodecs.zlib"
    level: Annotated[int, Meta(ge=-1, le=9)] = 1

    def encode(self, data: Buffer) -> Buffer:
        return zlib.compress(data, self.level)

    def decode(self, data: Buffer, limit: int) -> Buffer:
        return decompressed(self, isal_zlib.decompressobj, data, limit, several=False)


@dataclass(frozen=True)
class Bz2Codec(NumcodecsCodec, BytesBytesCodec):
    """Compression with bzip2.

    Parameters
    ----------
    level : int
        1 to 9 (smallest).

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.array([1, 2, 3], compressors=xzarr3.codecs.Bz2Codec(level=9)).compressors
    (Bz2Codec(level=9),)
    """

    name = "numcodecs.bz2"
    level: Annotated[int, Meta(ge=1, le=9)] = 1

    def encode(self, data: Buffer) -> Buffer:
        return bz2.compress(data, self.level)

    def decode(self, data: Buffer, limit: int) -> Buffer:
        return decompressed(self, bz2.BZ2Decompressor, data, limit)


@dataclass(frozen=True)
class LzmaCodec(NumcodecsCodec, BytesBytesCodec):
    """Compression with LZMA; the parameters are those of Python's ``lzma`` module, without its filters.

    Parameters
    ----------
    format : {1, 2}
        xz, or the older container.
    check : {-1, 0, 1, 4, 10}
        The checksum of xz: the default of the format, none, CRC-32, CRC-64 or SHA-256.
    preset : int, optional
        0 (fastest) to 9 (smallest), 2^31 more for slower and somewhat smaller.
    filters : None
        Chains of filters are not supported.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.array([1, 2, 3], compressors=xzarr3.codecs.LzmaCodec(preset=6)).compressors
    (LzmaCodec(format=1, check=-1, preset=6, filters=None),)
    """

    name = "numcodecs.lzma"
    format: Literal[1, 2] = 1
    check: Literal[-1, 0, 1, 4, 10] = -1
    preset: Annotated[int, Meta(ge=0, le=9 | lzma.PRESET_EXTREME)] | None = None
    filters: None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.preset is not None and self.preset & ~lzma.PRESET_EXTREME > 9:
            raise self.wrong("preset", self.preset, "an integer from 0 to 9, or null")

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, JSON]) -> Self:
        for name in ("format", "filters"):
            value = configuration.get(name)
            if value == lzma.FORMAT_RAW if name == "format" else isinstance(value, list):
                raise UnknownExtensionError(
                    f"codec '{cls.name}': raw streams and chains of filters are not read",
                    field=f"configuration.{name}", found=value, accepted="1 or 2, without filters",
                )  # fmt: skip
        return super().from_configuration(configuration)

    def encode(self, data: Buffer) -> Buffer:
        try:
            return lzma.compress(data, self.format, self.check, self.preset)
        except (lzma.LZMAError, ValueError, MemoryError) as error:
            raise ChunkEncodeError(f"compression failed: {error}", codec=self.name) from error

    def decode(self, data: Buffer, limit: int) -> Buffer:
        return decompressed(self, lambda: lzma.LZMADecompressor(memlimit=_MEMORY), data, limit)


@dataclass(frozen=True)
class Lz4Codec(NumcodecsCodec, BytesBytesCodec):
    """Compression with LZ4: the decoded size in four bytes, little endian, then one block.

    Parameters
    ----------
    acceleration : int
        1 (smallest) or more (faster).

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.array([1, 2, 3], compressors=xzarr3.codecs.Lz4Codec(acceleration=2)).compressors
    (Lz4Codec(acceleration=2),)
    """

    name = "numcodecs.lz4"
    acceleration: Annotated[int, Meta(ge=-_MAX_INT, le=_MAX_INT)] = 1

    def encode(self, data: Buffer) -> Buffer:
        if len(data) > 0x7E000000:
            raise ChunkEncodeError(
                f"the chunk has {len(data)} bytes; LZ4 holds less than 2 GiB", codec=self.name
            )
        return lz4.compress(data, self.acceleration)  # type: ignore[no-any-return]

    def decode(self, data: Buffer, limit: int) -> Buffer:
        size = int.from_bytes(data[:4], "little")
        if size > limit:
            raise self.too_large(limit, size)
        if len(data) < 5 or size > 255 * len(data):  # a byte of LZ4 data decodes to at most 255 bytes
            raise ChunkDecodeError(
                f"found {len(data)} bytes, too few for {size} decoded ones", codec=self.name
            )
        if size == 0 and data[4:] == b"\0":  # numcodecs encodes empty data to this but cannot decode it
            return b""
        try:
            return lz4.decompress(data)  # type: ignore[no-any-return]
        except (RuntimeError, ValueError) as error:
            raise ChunkDecodeError(f"not valid lz4 data: {error}", codec=self.name) from error


@dataclass(frozen=True)
class ShuffleCodec(NumcodecsCodec, BytesBytesCodec):
    """Stores the first bytes of all elements, then the second bytes, and so on. This improves compression.

    Parameters
    ----------
    elementsize : int, optional
        Size of an element in bytes; by default that of the array's data type.

    Examples
    --------
    >>> import xzarr3
    >>> codecs = [xzarr3.codecs.ShuffleCodec(elementsize=8), xzarr3.codecs.ZstdCodec()]
    >>> xzarr3.array([1, 2, 3], compressors=codecs)[...]
    array([1, 2, 3])
    """

    name = "numcodecs.shuffle"
    elementsize: Annotated[int, Meta(ge=0, le=_MAX_INT)] | None = None

    def evolve(self, spec: ChunkSpec) -> Self:
        return self if self.elementsize is not None else replace(self, elementsize=spec.element_size)

    def encoded_size(self, size: int) -> int:
        return size

    def encode(self, data: Buffer) -> Buffer:
        return self._regrouped(data, ChunkEncodeError, encode=True)

    def decode(self, data: Buffer, limit: int) -> Buffer:
        if len(data) > limit:
            raise self.too_large(limit, len(data))
        return self._regrouped(data, ChunkDecodeError, encode=False)

    def _regrouped(
        self, data: Buffer, failure: type[ChunkEncodeError | ChunkDecodeError], *, encode: bool
    ) -> Buffer:
        size = self.elementsize or 1
        if size == 1:
            return data
        if len(data) % size:
            raise failure(f"{len(data)} bytes are not whole elements of {size} bytes", codec=self.name)
        coder = Shuffle(size)
        return memoryview(coder.encode(data) if encode else coder.decode(data))
