"""The checksums of numcodecs: the data, and in front of or behind them four bytes, little endian.

Specification: zarr-extensions, "numcodecs.*"; the documentation of numcodecs. Names: ``numcodecs.adler32``,
``numcodecs.crc32``, ``numcodecs.crc32c``, ``numcodecs.fletcher32``, ``numcodecs.jenkins_lookup3``.
Example: ``{"name": "numcodecs.crc32", "configuration": {"location": "end"}}``.
"""

from __future__ import annotations

import zlib
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self, cast

import google_crc32c
from numcodecs.fletcher32 import Fletcher32
from numcodecs.jenkins import jenkins_lookup3

from xzarr3._types import JSON, Buffer
from xzarr3.codecs.base import BytesBytesCodec, Configuration
from xzarr3.errors import ChunkDecodeError

_SIZE = 4
_fletcher32 = Fletcher32()


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
        return size + _SIZE

    def max_encoded_size(self, size: int) -> int:
        return size + _SIZE

    def encode(self, data: Buffer) -> Buffer:
        checksum = self.checksum(data).to_bytes(_SIZE, "little")
        return b"".join([checksum, data] if self.location == "start" else [data, checksum])

    def decode(self, data: Buffer, limit: int) -> Buffer:
        if len(data) < _SIZE:
            raise ChunkDecodeError(f"found {len(data)} bytes, at least {_SIZE} expected", codec=self.name)
        if len(data) - _SIZE > limit:
            raise self.too_large(limit, len(data) - _SIZE)
        view = memoryview(data)
        at_start = self.location == "start"
        value, stored = (view[_SIZE:], view[:_SIZE]) if at_start else (view[:-_SIZE], view[-_SIZE:])
        expected, actual = int.from_bytes(stored, "little"), self.checksum(value)
        if expected != actual:
            raise ChunkDecodeError(
                f"checksum mismatch: stored {expected:#010x}, the data have {actual:#010x}", codec=self.name
            )
        return value


@dataclass(frozen=True)
class _PlacedChecksumCodec(ChecksumCodec):
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


@dataclass(frozen=True)
class Crc32Codec(_PlacedChecksumCodec):
    """The CRC-32 of zlib.

    Parameters
    ----------
    location : {"start", "end"}
        Where it is.
    """

    name = "numcodecs.crc32"

    def checksum(self, data: Buffer) -> int:
        return zlib.crc32(data)


@dataclass(frozen=True)
class Adler32Codec(_PlacedChecksumCodec):
    """The Adler-32 of zlib.

    Parameters
    ----------
    location : {"start", "end"}
        Where it is.
    """

    name = "numcodecs.adler32"

    def checksum(self, data: Buffer) -> int:
        return zlib.adler32(data)


@dataclass(frozen=True)
class NumcodecsCrc32cCodec(_PlacedChecksumCodec):
    """``crc32c`` under the name that zarr-python gives the codec of numcodecs.

    Parameters
    ----------
    location : {"end", "start"}
        Where it is.
    """

    name = "numcodecs.crc32c"
    default = "end"
    location: str = "end"

    def checksum(self, data: Buffer) -> int:
        return cast("int", google_crc32c.value(bytes(data)))


@dataclass(frozen=True)
class Fletcher32Codec(ChecksumCodec):
    """The checksum of HDF5's filter of the same name, behind the data."""

    name = "numcodecs.fletcher32"

    def checksum(self, data: Buffer) -> int:
        # numcodecs does not give the checksum alone, and fails for no data.
        return int.from_bytes(_fletcher32.encode(data)[-_SIZE:], "little") if len(data) else 0


@dataclass(frozen=True)
class JenkinsLookup3Codec(ChecksumCodec):
    """The checksum of HDF5's metadata, lookup3 by Bob Jenkins, behind the data.

    Parameters
    ----------
    initval : int
        The value it begins with.
    """

    name = "numcodecs.jenkins_lookup3"
    initval: int = 0

    def __post_init__(self) -> None:
        Configuration(self.name, {"initval": self.initval}).integer("initval", 0, 2**32 - 1)

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, JSON]) -> Self:
        fields = Configuration(cls.name, configuration)
        codec = cls(fields.integer("initval", 0, 2**32 - 1, default=0))
        prefix = fields.take("prefix", "null", None)
        if prefix is not None:
            raise fields.error("prefix", prefix, "null", "JSON cannot hold the bytes that this has to be")
        fields.finish()
        return codec

    def configuration(self) -> dict[str, JSON]:
        return {"initval": self.initval}

    def checksum(self, data: Buffer) -> int:
        return cast("int", jenkins_lookup3(data, self.initval))
