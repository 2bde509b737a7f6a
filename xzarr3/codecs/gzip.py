"""``gzip``: compression with gzip (RFC 1952), one or more members.

Specification: Zarr v3, "Gzip codec". Names: ``gzip``.
Example: ``{"name": "gzip", "configuration": {"level": 5}}``.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

from isal import isal_zlib
from isal.igzip_lib import IsalError
from zlib_ng import zlib_ng

from xzarr3._types import Buffer
from xzarr3.codecs.base import BytesBytesCodec, Configuration, ParameterCodec, parameter
from xzarr3.errors import ChunkDecodeError

_GZIP = 31  # zlib's window size for a gzip header
_PIECE = 2**9  # bytes


@dataclass(frozen=True)
class GzipCodec(ParameterCodec, BytesBytesCodec):
    """Compression with gzip.

    ISA-L decodes, twice as fast as zlib. zlib-ng encodes, in less than half the time of zlib. ISA-L is not
    used to encode, because it does not always encode the same data to the same bytes.

    Parameters
    ----------
    level : int
        0 (store) to 9 (smallest).
    """

    name = "gzip"
    level: int = parameter(Configuration.integer, 0, 9, default=5, required=True)

    def encoded_size(self, size: int) -> None:
        return None

    def max_encoded_size(self, size: int) -> int:
        return size + size // 8 + 64

    def encode(self, data: Buffer) -> Buffer:
        # At level 1, zlib-ng hardly compresses, and makes incompressible data larger.
        return zlib_ng.compress(data, 2 if self.level == 1 else self.level, _GZIP)

    def decode(self, data: Buffer, limit: int) -> Buffer:
        view = memoryview(data)
        values: list[bytes] = []
        at, left = 0, limit
        # The decompressor copies all input after the end of its member. With many small members, passing all
        # of the data each time would take quadratic time. So only the first member, mostly the only one,
        # gets all of the data. Each later member gets a small piece, then pieces of doubling size.
        size = len(view)
        while True:
            member = isal_zlib.decompressobj(_GZIP)
            while not member.eof:
                piece = view[at : at + size]
                if not piece:
                    raise ChunkDecodeError(
                        f"gzip data end early, after {at} stored and {limit - left} decoded bytes",
                        codec=self.name,
                    )
                value, failure = _decompress(member, piece, left + 1)
                if failure is not None:
                    raise ChunkDecodeError(f"not valid gzip data: {failure}", codec=self.name) from failure
                left -= len(value)
                if left < 0:
                    raise self.too_large(limit)
                if value:
                    values.append(value)
                at += len(piece)
                size *= 2
            at -= len(member.unused_data)
            if at == len(view):
                return values[0] if len(values) == 1 else b"".join(values)
            size = _PIECE


def _decompress(member: Any, data: Buffer, limit: int) -> tuple[bytes, zlib.error | None]:
    """Decode at most ``limit`` bytes, or return the error as zlib.error: errors of isal cannot be pickled."""
    try:
        return member.decompress(data, limit), None
    except IsalError as error:  # type: ignore[misc]
        return b"", zlib.error(str(error))
