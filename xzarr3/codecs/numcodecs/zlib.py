"""``numcodecs.zlib``: RFC 1950.

Specification: zarr-extensions, "numcodecs.zlib"; the documentation of numcodecs, "Zlib".
Names: ``numcodecs.zlib``. Example: ``{"name": "numcodecs.zlib", "configuration": {"level": 1}}``.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from isal import isal_zlib
from isal.igzip_lib import IsalError

from xzarr3._types import JSON, Buffer
from xzarr3.codecs.base import BytesBytesCodec, Configuration
from xzarr3.errors import ChunkDecodeError


@dataclass(frozen=True)
class ZlibCodec(BytesBytesCodec):
    """Compression with zlib (RFC 1950).

    Parameters
    ----------
    level : int
        -1 for the default of zlib, or 0 (store) to 9 (smallest).
    """

    name = "numcodecs.zlib"
    level: int = 1

    def __post_init__(self) -> None:
        Configuration(self.name, {"level": self.level}).integer("level", -1, 9)

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, JSON]) -> Self:
        fields = Configuration(cls.name, configuration)
        codec = cls(fields.integer("level", -1, 9, default=1))
        fields.finish()
        return codec

    def configuration(self) -> dict[str, JSON]:
        return {"level": self.level}

    def encoded_size(self, size: int) -> None:
        return None

    def max_encoded_size(self, size: int) -> int:
        return size + size // 8 + 64

    def encode(self, data: Buffer) -> Buffer:
        return zlib.compress(data, self.level)

    def decode(self, data: Buffer, limit: int) -> Buffer:
        stream = isal_zlib.decompressobj()
        value, failure = b"", ""
        try:
            value = stream.decompress(data, limit + 1)
        except IsalError as error:  # type: ignore[misc]
            failure = str(error)  # The error itself cannot be pickled, so it is not chained.
        if failure:
            raise ChunkDecodeError(f"not valid zlib data: {failure}", codec=self.name)
        if len(value) > limit:
            raise self.too_large(limit)
        if not stream.eof:
            raise ChunkDecodeError(f"zlib data end early, after {len(data)} bytes", codec=self.name)
        if stream.unused_data:
            raise ChunkDecodeError(
                f"{len(stream.unused_data)} bytes are left behind the zlib data", codec=self.name
            )
        return value
