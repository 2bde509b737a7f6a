"""``numcodecs.bz2``: bzip2, one or more streams.

Specification: zarr-extensions, "numcodecs.bz2"; the documentation of numcodecs, "BZ2".
Names: ``numcodecs.bz2``. Example: ``{"name": "numcodecs.bz2", "configuration": {"level": 1}}``.
"""

from __future__ import annotations

import bz2
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from xzarr3._types import JSON, Buffer
from xzarr3.codecs.base import BytesBytesCodec, Configuration
from xzarr3.codecs.numcodecs._streams import decompress


@dataclass(frozen=True)
class Bz2Codec(BytesBytesCodec):
    """Compression with bzip2.

    Parameters
    ----------
    level : int
        1 to 9 (smallest).
    """

    name = "numcodecs.bz2"
    level: int = 1

    def __post_init__(self) -> None:
        Configuration(self.name, {"level": self.level}).integer("level", 1, 9)

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, JSON]) -> Self:
        fields = Configuration(cls.name, configuration)
        codec = cls(fields.integer("level", 1, 9, default=1))
        fields.finish()
        return codec

    def configuration(self) -> dict[str, JSON]:
        return {"level": self.level}

    def encoded_size(self, size: int) -> None:
        return None

    def max_encoded_size(self, size: int) -> int:
        return size + size // 8 + 1024

    def encode(self, data: Buffer) -> Buffer:
        return bz2.compress(data, self.level)

    def decode(self, data: Buffer, limit: int) -> Buffer:
        return decompress(self, bz2.BZ2Decompressor, data, limit)
