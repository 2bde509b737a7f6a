"""``numcodecs.adler32``: the data with the Adler-32 of zlib.

Specification: zarr-extensions, "numcodecs.adler32"; the documentation of numcodecs, "Adler32".
Names: ``numcodecs.adler32``.
Example: ``{"name": "numcodecs.adler32", "configuration": {"location": "end"}}``.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from xzarr3._types import Buffer
from xzarr3.codecs.numcodecs._checksums import PlacedChecksumCodec


@dataclass(frozen=True)
class Adler32Codec(PlacedChecksumCodec):
    """The Adler-32 of zlib.

    Parameters
    ----------
    location : {"start", "end"}
        Where it is.
    """

    name = "numcodecs.adler32"

    def checksum(self, data: Buffer) -> int:
        return zlib.adler32(data)
