"""``numcodecs.crc32``: the data with the CRC-32 of zlib.

Specification: zarr-extensions, "numcodecs.crc32"; the documentation of numcodecs, "CRC32".
Names: ``numcodecs.crc32``. Example: ``{"name": "numcodecs.crc32", "configuration": {"location": "end"}}``.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from xzarr3._types import Buffer
from xzarr3.codecs.numcodecs._checksums import PlacedChecksumCodec


@dataclass(frozen=True)
class Crc32Codec(PlacedChecksumCodec):
    """The CRC-32 of zlib.

    Parameters
    ----------
    location : {"start", "end"}
        Where it is.
    """

    name = "numcodecs.crc32"

    def checksum(self, data: Buffer) -> int:
        return zlib.crc32(data)
