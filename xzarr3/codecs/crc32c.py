"""``crc32c``: appends the CRC-32C checksum of the data; and the base of all checksums.

A checksum has four bytes, little endian.

Specification: Zarr v3, "CRC32C checksum codec". Names: ``crc32c``. Example: ``{"name": "crc32c"}``.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import cast

from xzarr3._types import Buffer
from xzarr3.codecs.base import BytesBytesCodec
from xzarr3.errors import ChunkDecodeError

_SIZE = 4


class Checksum(BytesBytesCodec):
    """A checksum before or after the data; decoding always verifies it."""

    location: str = "end"

    @abstractmethod
    def checksum(self, data: Buffer) -> int:
        """The checksum of ``data``, 32 bits."""

    def encoded_size(self, size: int) -> int:
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
            raise ChunkDecodeError(
                f"checksum mismatch: stored is {expected:#010x}, the data have {actual:#010x}",
                codec=self.name,
            )
        return value


@dataclass(frozen=True)
class Crc32cCodec(Checksum):
    """Appends the CRC-32C of the data.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.array([1, 2, 3], compressors=xzarr3.codecs.Crc32cCodec()).compressors
    (Crc32cCodec(),)
    """

    name = "crc32c"
    decode_rate = 10000

    def checksum(self, data: Buffer) -> int:
        import google_crc32c

        return cast("int", google_crc32c.value(bytes(data)))
