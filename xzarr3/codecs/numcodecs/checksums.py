"""The checksums of numcodecs: four bytes, little endian, before or after the data.

Specification: zarr-extensions, a document for each name; the documentation of numcodecs. Names:
``numcodecs.adler32``, ``numcodecs.crc32``, ``numcodecs.crc32c``, ``numcodecs.fletcher32``,
``numcodecs.jenkins_lookup3``. Example: ``{"name": "numcodecs.crc32", "configuration": {"location": "end"}}``.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Annotated, Literal, cast

from numcodecs.fletcher32 import Fletcher32
from numcodecs.jenkins import jenkins_lookup3

from xzarr3._types import Buffer
from xzarr3.codecs.base import NumcodecsCodec
from xzarr3.codecs.crc32c import Checksum, Crc32cCodec
from xzarr3.fields import Meta

_fletcher32 = Fletcher32()


@dataclass(frozen=True)
class Adler32Codec(NumcodecsCodec, Checksum):
    """The Adler-32 of zlib.

    Parameters
    ----------
    location : {"start", "end"}
        Whether the checksum is before or after the data.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.array([1, 2, 3], compressors=xzarr3.codecs.Adler32Codec()).compressors
    (Adler32Codec(location='start'),)
    """

    name = "numcodecs.adler32"
    location: Literal["start", "end"] = "start"

    def checksum(self, data: Buffer) -> int:
        return zlib.adler32(data)


@dataclass(frozen=True)
class Crc32Codec(NumcodecsCodec, Checksum):
    """The CRC-32 of zlib.

    Parameters
    ----------
    location : {"start", "end"}
        Whether the checksum is before or after the data.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.array([1, 2, 3], compressors=xzarr3.codecs.Crc32Codec()).compressors
    (Crc32Codec(location='start'),)
    """

    name = "numcodecs.crc32"
    location: Literal["start", "end"] = "start"

    def checksum(self, data: Buffer) -> int:
        return zlib.crc32(data)


@dataclass(frozen=True)
class LeadingCrc32cCodec(NumcodecsCodec, Crc32cCodec):
    """The CRC-32C before the data; after the data it is ``crc32c``."""

    name = "numcodecs.crc32c"
    location: Literal["start"] = "start"


@dataclass(frozen=True)
class Fletcher32Codec(NumcodecsCodec, Checksum):
    """The checksum of the HDF5 filter of the same name, after the data.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.array([1, 2, 3], compressors=xzarr3.codecs.Fletcher32Codec()).compressors
    (Fletcher32Codec(),)
    """

    name = "numcodecs.fletcher32"

    def checksum(self, data: Buffer) -> int:
        # numcodecs returns the checksum only with the data, and fails for empty data.
        return int.from_bytes(_fletcher32.encode(data)[-4:], "little") if len(data) else 0


@dataclass(frozen=True)
class JenkinsLookup3Codec(NumcodecsCodec, Checksum):
    """The checksum of HDF5 metadata, lookup3 by Bob Jenkins, after the data.

    Parameters
    ----------
    initval : int
        The initial value of the checksum.
    prefix : None
        Bytes before the data, which JSON cannot hold.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.array([1, 2, 3], compressors=xzarr3.codecs.JenkinsLookup3Codec(initval=1)).compressors
    (JenkinsLookup3Codec(initval=1, prefix=None),)
    """

    name = "numcodecs.jenkins_lookup3"
    initval: Annotated[int, Meta(ge=0, le=2**32 - 1)] = 0
    prefix: None = None

    def checksum(self, data: Buffer) -> int:
        return cast("int", jenkins_lookup3(data, self.initval))
