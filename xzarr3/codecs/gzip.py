"""``gzip``: compression with gzip (RFC 1952), one or more members.

Specification: Zarr v3, "Gzip codec". Names: ``gzip``.
Example: ``{"name": "gzip", "configuration": {"level": 5}}``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from isal import isal_zlib
from zlib_ng import zlib_ng

from xzarr3._types import Buffer
from xzarr3.codecs.base import BytesBytesCodec
from xzarr3.codecs.streams import decompressed
from xzarr3.fields import REQUIRED, Meta

_GZIP = 31  # zlib's window size for a gzip header


@dataclass(frozen=True)
class GzipCodec(BytesBytesCodec):
    """Compression with gzip.

    ISA-L decodes, twice as fast as zlib. zlib-ng encodes, in less than half the time of zlib. ISA-L is not
    used to encode, because it does not always encode the same data to the same bytes.

    Parameters
    ----------
    level : int
        0 (store) to 9 (smallest).

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.array([1, 2, 3], compressors=xzarr3.codecs.GzipCodec(level=1)).compressors
    (GzipCodec(level=1),)
    """

    name = "gzip"
    level: Annotated[int, Meta(ge=0, le=9), REQUIRED] = 5

    def encode(self, data: Buffer) -> Buffer:
        # At level 1, zlib-ng hardly compresses, and makes incompressible data larger.
        return zlib_ng.compress(data, 2 if self.level == 1 else self.level, _GZIP)

    def decode(self, data: Buffer, limit: int) -> Buffer:
        return decompressed(self, lambda: isal_zlib.decompressobj(_GZIP), data, limit)
