"""What the checksums of numcodecs share: data, and in front or behind them four bytes, little endian."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from xzarr3._types import JSON, Buffer
from xzarr3.codecs.base import BytesBytesCodec, Configuration
from xzarr3.errors import ChunkDecodeError

SIZE = 4


class ChecksumCodec(BytesBytesCodec):
    """A checksum that is always verified."""

    location: str = "end"

    @abstractmethod
    def checksum(self, data: Buffer) -> int:
        """The checksum of ``data``, 32 bits."""

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, JSON]) -> Self:
        Configuration(cls.name, configuration).finish()
        return cls()

    def to_json(self) -> JSON:
        # zarr-python wants a configuration even if it is empty.
        return {"name": self.name, "configuration": self.configuration()}

    def encoded_size(self, size: int) -> int:
        return size + SIZE

    def max_encoded_size(self, size: int) -> int:
        return size + SIZE

    def encode(self, data: Buffer) -> Buffer:
        checksum = self.checksum(data).to_bytes(SIZE, "little")
        return b"".join([checksum, data] if self.location == "start" else [data, checksum])

    def decode(self, data: Buffer, limit: int) -> Buffer:
        if len(data) < SIZE:
            raise ChunkDecodeError(f"found {len(data)} bytes, at least {SIZE} expected", codec=self.name)
        if len(data) - SIZE > limit:
            raise self.too_large(limit, len(data) - SIZE)
        view = memoryview(data)
        at_start = self.location == "start"
        value, stored = (view[SIZE:], view[:SIZE]) if at_start else (view[:-SIZE], view[-SIZE:])
        expected, actual = int.from_bytes(stored, "little"), self.checksum(value)
        if expected != actual:
            raise ChunkDecodeError(
                f"checksum mismatch: stored {expected:#010x}, the data have {actual:#010x}", codec=self.name
            )
        return value


@dataclass(frozen=True)
class PlacedChecksumCodec(ChecksumCodec):
    """A checksum that may be in front of the data or behind them."""

    default: ClassVar[str] = "start"
    location: str = "start"

    def __post_init__(self) -> None:
        Configuration(self.name, {"location": self.location}).choice("location", ("start", "end"))

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, JSON]) -> Self:
        fields = Configuration(cls.name, configuration)
        codec = cls(fields.choice("location", ("start", "end"), default=cls.default))
        fields.finish()
        return codec

    def configuration(self) -> dict[str, JSON]:
        return {"location": self.location}
