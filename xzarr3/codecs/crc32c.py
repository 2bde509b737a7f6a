"""``crc32c``: appends the CRC-32C checksum of the data, four bytes, little endian.

Specification: Zarr v3, "CRC32C checksum codec". Names: ``crc32c``. Example: ``{"name": "crc32c"}``.
"""

from __future__ import annotations

from dataclasses import dataclass

from xzarr3._types import Buffer
from xzarr3.codecs.base import BytesBytesCodec, ParameterCodec
from xzarr3.errors import ChunkDecodeError

_SIZE = 4


@dataclass(frozen=True)
class Crc32cCodec(ParameterCodec, BytesBytesCodec):
    """Appends a checksum to the data; decoding always verifies it."""

    name = "crc32c"
    decode_rate = 10000

    def encoded_size(self, size: int) -> int:
        return size + _SIZE

    def max_encoded_size(self, size: int) -> int:
        return size + _SIZE

    def encode(self, data: Buffer) -> Buffer:
        import google_crc32c

        value = bytes(data)
        checksum: int = google_crc32c.value(value)
        return value + checksum.to_bytes(_SIZE, "little")

    def decode(self, data: Buffer, limit: int) -> Buffer:
        import google_crc32c

        if len(data) < _SIZE:
            raise ChunkDecodeError(f"found {len(data)} bytes, expected at least {_SIZE}", codec=self.name)
        if len(data) - _SIZE > limit:
            raise self.too_large(limit, len(data) - _SIZE)
        value = bytes(memoryview(data)[:-_SIZE])
        stored = int.from_bytes(data[-_SIZE:], "little")
        actual = google_crc32c.value(value)
        if stored != actual:
            raise self.mismatch(stored, actual)
        return value
