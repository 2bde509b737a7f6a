"""``numcodecs.lz4``: one block of LZ4, behind its decoded size in four bytes, little endian.

Specification: zarr-extensions, "numcodecs.lz4"; the documentation of numcodecs, "LZ4".
Names: ``numcodecs.lz4``. Example: ``{"name": "numcodecs.lz4", "configuration": {"acceleration": 1}}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from numcodecs import lz4

from xzarr3._types import JSON, Buffer
from xzarr3.codecs.base import BytesBytesCodec, Configuration
from xzarr3.errors import ChunkDecodeError, ChunkEncodeError

_MAX_INT = 2**31 - 1


@dataclass(frozen=True)
class Lz4Codec(BytesBytesCodec):
    """Compression with LZ4: one block, behind its decoded size in four bytes, little endian.

    Parameters
    ----------
    acceleration : int
        1 (smallest) or more (faster).
    """

    name = "numcodecs.lz4"
    acceleration: int = 1

    def __post_init__(self) -> None:
        Configuration(self.name, {"acceleration": self.acceleration}).integer(
            "acceleration", -_MAX_INT, _MAX_INT
        )

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, JSON]) -> Self:
        fields = Configuration(cls.name, configuration)
        codec = cls(fields.integer("acceleration", -_MAX_INT, _MAX_INT, default=1))
        fields.finish()
        return codec

    def configuration(self) -> dict[str, JSON]:
        return {"acceleration": self.acceleration}

    def encoded_size(self, size: int) -> None:
        return None

    def max_encoded_size(self, size: int) -> int:
        return size + size // 255 + 20

    def encode(self, data: Buffer) -> Buffer:
        if len(data) > 0x7E000000:
            raise ChunkEncodeError(f"{len(data)} bytes, LZ4 holds less than 2 GiB", codec=self.name)
        return lz4.compress(data, self.acceleration)  # type: ignore[no-any-return]

    def decode(self, data: Buffer, limit: int) -> Buffer:
        size = int.from_bytes(data[:4], "little")
        if size > limit:
            raise self.too_large(limit, size)
        if len(data) < 5 or size > 255 * len(data):  # LZ4 makes no more of a byte.
            raise ChunkDecodeError(f"found {len(data)} bytes, too few for {size}", codec=self.name)
        if size == 0 and data[4:] == b"\0":  # numcodecs encodes no bytes so, but does not decode it.
            return b""
        try:
            return lz4.decompress(data)  # type: ignore[no-any-return]
        except (RuntimeError, ValueError) as error:
            raise ChunkDecodeError(f"not valid lz4 data: {error}", codec=self.name) from error
