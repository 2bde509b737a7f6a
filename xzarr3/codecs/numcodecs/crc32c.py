"""``numcodecs.crc32c``: the data with their CRC-32C checksum.

Specification: zarr-extensions, "numcodecs.crc32c"; the documentation of numcodecs, "CRC32C".
Names: ``numcodecs.crc32c``. Example: ``{"name": "numcodecs.crc32c", "configuration": {"location": "end"}}``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import google_crc32c

from xzarr3._types import Buffer
from xzarr3.codecs.numcodecs._checksums import PlacedChecksumCodec


@dataclass(frozen=True)
class NumcodecsCrc32cCodec(PlacedChecksumCodec):
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
