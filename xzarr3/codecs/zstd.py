"""``zstd``: compression with Zstandard (RFC 8878), one or more frames.

Specification: zarr-extensions, "Zstd codec". Names: ``zstd``.
Example: ``{"name": "zstd", "configuration": {"level": 0, "checksum": false}}``.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Annotated

import zstandard

from xzarr3._types import Buffer
from xzarr3.codecs.base import BytesBytesCodec
from xzarr3.errors import ChunkDecodeError
from xzarr3.fields import Meta

_SKIPPABLE = 0x184D2A50  # first magic number of skippable frames; the last four bits are free
_RLE = 1
_BLOCK = 2**17  # most decoded bytes of a block; a block takes at least 3 stored bytes
_PIECE = 2**20


class _Contexts(threading.local):
    """zstandard's contexts, one set for each thread: they are costly to make and not safe to share."""

    def __init__(self) -> None:
        self.decompressor = zstandard.ZstdDecompressor()
        self.compressors: dict[ZstdCodec, zstandard.ZstdCompressor] = {}


_local = _Contexts()


@dataclass(frozen=True)
class ZstdCodec(BytesBytesCodec):
    """Compression with Zstandard.

    Parameters
    ----------
    level : int
        -131072 (fastest) to 22 (smallest); 0 is the library's default, 3.
    checksum : bool
        Whether to store a checksum in each frame. Decoding always verifies stored checksums.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.array([1, 2, 3], compressors=xzarr3.codecs.ZstdCodec(level=3)).compressors
    (ZstdCodec(level=3, checksum=False),)
    """

    name = "zstd"
    decode_rate = 1500
    # decode_into has to walk over the frame first, which costs too much for smaller chunks.
    direct_from = 2**19
    level: Annotated[int, Meta(ge=-131072, le=22)] = 0
    checksum: bool = False

    def max_encoded_size(self, size: int) -> int:
        return size + size // 128 + 512

    def encode(self, data: Buffer) -> Buffer:
        compressor = _local.compressors.get(self)
        if compressor is None:
            compressor = zstandard.ZstdCompressor(level=self.level, write_checksum=self.checksum)
            _local.compressors[self] = compressor
        return compressor.compress(data)

    def decode(self, data: Buffer, limit: int) -> Buffer:
        try:
            size = zstandard.frame_content_size(data)
            # zstandard allocates the size that the frame claims, so the fast path requires a claim that the
            # blocks can hold. A claim of 0 is excluded, because zstandard then ignores frames that follow.
            if 0 < size <= limit and size <= _BLOCK * (len(data) // 3 + 1):
                return _local.decompressor.decompress(data, allow_extra_data=False)
        except zstandard.ZstdError as error:
            first: zstandard.ZstdError | None = error
        else:
            first = None
        # The rare cases: several frames, a frame that does not state its size, or an error.
        try:
            return self._decode_frames(memoryview(data), limit)
        except zstandard.ZstdError as error:
            raise ChunkDecodeError(
                f"not valid zstd data: {error if first is None else first}", codec=self.name
            ) from error

    def decode_into(self, data: Buffer, out: memoryview) -> bool:
        try:
            if zstandard.frame_content_size(data) != len(out) or _frame_end(memoryview(data)) != len(data):
                return False
            with _local.decompressor.stream_reader(data) as reader:
                return reader.readinto(out) == len(out) and not reader.read(1)
        except zstandard.ZstdError:  # the caller then calls decode, which reports the error
            return False

    def _decode_frames(self, data: memoryview, limit: int) -> Buffer:
        values: list[Buffer] = []
        left = limit
        if not data:
            raise zstandard.ZstdError("no data")
        while data:
            end = _frame_end(data)
            with _local.decompressor.stream_reader(data[:end]) as reader:
                piece = _PIECE
                while value := reader.read(min(left + 1, piece)):
                    left -= len(value)
                    if left < 0:
                        raise self.too_large(limit)
                    values.append(value)
                    piece *= 2
            data = data[end:]
        return b"".join(values)


def _frame_end(data: memoryview) -> int:
    """Size of the first frame of ``data``, found by walking over its blocks (RFC 8878, 3.1)."""
    if len(data) >= 8 and int.from_bytes(data[:4], "little") & 0xFFFFFFF0 == _SKIPPABLE:
        end = 8 + int.from_bytes(data[4:8], "little")
    else:
        checksum = zstandard.get_frame_parameters(data).has_checksum
        end, last = zstandard.frame_header_size(data), 0
        while not last:
            header = int.from_bytes(data[end : end + 3], "little")
            last, kind, size = header & 1, header >> 1 & 3, header >> 3
            end += 3 + (1 if kind == _RLE else size)
            if end > len(data):
                break
        end += 4 if checksum else 0
    if end > len(data):
        raise zstandard.ZstdError(f"data end early: found {len(data)} bytes, expected at least {end}")
    return end
