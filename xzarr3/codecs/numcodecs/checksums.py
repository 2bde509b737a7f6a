"""The checksums of numcodecs: four bytes, little endian, before or after the data.

Specification: zarr-extensions, a document for each name; the documentation of numcodecs. Names:
``numcodecs.adler32``, ``numcodecs.crc32``, ``numcodecs.crc32c``, ``numcodecs.fletcher32``,
``numcodecs.jenkins_lookup3``. Example: ``{"name": "numcodecs.crc32", "configuration": {"location": "end"}}``.
"""

from __future__ import annotations

import zlib
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, cast

import google_crc32c
from numcodecs.fletcher32 import Fletcher32
from numcodecs.jenkins import jenkins_lookup3

from xzarr3._types import Buffer
from xzarr3.codecs.base import BytesBytesCodec, Configuration, parameter
from xzarr3.codecs.numcodecs.base import NumcodecsCodec
from xzarr3.errors import ChunkDecodeError

_SIZE = 4
_PLACES = ("start", "end")
_fletcher32 = Fletcher32()


class _Checksum(NumcodecsCodec, BytesBytesCodec):
    """A checksum that is always verified."""

    location: str = "end"

    @abstractmethod
    def checksum(self, data: Buffer) -> int:
        """The checksum of ``data``, 32 bits."""

    def encoded_size(self, size: int) -> int:
        return size + _SIZE

    def max_encoded_size(self, size: int) -> int:
        return size + _SIZE

    def encode(self, data: Buffer) -> Buffer:
        checksum = self.checksum(data).to_bytes(_SIZE, "little")
        return b"".join([checksum, data] if self.location == "start" else [data, checksum])

    def decode(self, data: Buffer, limit: int) -> Buffer:
        if len(data) < _SIZE:
            raise ChunkDecodeError(f"found {len(data)} bytes, expected at least {_SIZE}", codec=self.name)
        if len(data) - _SIZE > limit:
            raise self.too_large(limit, len(data) - _SIZE)
        view = memoryview(data)
        at_start = self.location == "start"
        value, stored = (view[_SIZE:], view[:_SIZE]) if at_start else (view[:-_SIZE], view[-_SIZE:])
        expected, actual = int.from_bytes(stored, "little"), self.checksum(value)
        if expected != actual:
            raise self.mismatch(expected, actual)
        return value


@dataclass(frozen=True)
class Adler32Codec(_Checksum):
    """The Adler-32 of zlib.

    Parameters
    ----------
    location : {"start", "end"}
        Whether the checksum is before or after the data.
    """

    name = "numcodecs.adler32"
    location: str = parameter(Configuration.choice, _PLACES, default="start")

    def checksum(self, data: Buffer) -> int:
        return zlib.adler32(data)


@dataclass(frozen=True)
class Crc32Codec(_Checksum):
    """The CRC-32 of zlib.

    Parameters
    ----------
    location : {"start", "end"}
        Whether the checksum is before or after the data.
    """

    name = "numcodecs.crc32"
    location: str = parameter(Configuration.choice, _PLACES, default="start")

    def checksum(self, data: Buffer) -> int:
        return zlib.crc32(data)


@dataclass(frozen=True)
class NumcodecsCrc32cCodec(_Checksum):
    """``crc32c`` under zarr-python's name for the codec of numcodecs.

    Parameters
    ----------
    location : {"end", "start"}
        Whether the checksum is before or after the data.
    """

    name = "numcodecs.crc32c"
    location: str = parameter(Configuration.choice, _PLACES, default="end")

    def checksum(self, data: Buffer) -> int:
        return cast("int", google_crc32c.value(bytes(data)))


@dataclass(frozen=True)
class Fletcher32Codec(_Checksum):
    """The checksum of the HDF5 filter of the same name, after the data."""

    name = "numcodecs.fletcher32"

    def checksum(self, data: Buffer) -> int:
        # numcodecs returns the checksum only with the data, and fails for empty data.
        return int.from_bytes(_fletcher32.encode(data)[-_SIZE:], "little") if len(data) else 0


@dataclass(frozen=True)
class JenkinsLookup3Codec(_Checksum):
    """The checksum of HDF5 metadata, lookup3 by Bob Jenkins, after the data.

    Parameters
    ----------
    initval : int
        The initial value of the checksum.
    """

    name = "numcodecs.jenkins_lookup3"
    initval: int = parameter(Configuration.integer, 0, 2**32 - 1, default=0)

    @classmethod
    def _read(cls, given: Configuration) -> dict[str, Any]:
        prefix = given.take("prefix", "null", None)
        if prefix is not None:
            raise given.error("prefix", prefix, "null", "JSON cannot hold bytes")
        return super()._read(given)

    def checksum(self, data: Buffer) -> int:
        return cast("int", jenkins_lookup3(data, self.initval))
