"""What the compressors of Python's standard library share: data that are several streams in a row."""

from __future__ import annotations

import lzma
from collections.abc import Callable
from typing import Any

from xzarr3._types import Buffer
from xzarr3.codecs.base import BytesBytesCodec
from xzarr3.errors import ChunkDecodeError

_PIECE = 2**16  # Bytes that a decompressor is given at once.


def decompress(
    codec: BytesBytesCodec, make: Callable[[], Any], data: Buffer, limit: int, *, several: bool = True
) -> bytes:
    """Decode streams that follow each other, each with a new decompressor of the bz2 or lzma module.

    They are fed in pieces, so that streams of a few bytes do not make the rest be copied for each one.
    """
    view = memoryview(data)
    values: list[bytes] = []
    at, left = 0, limit
    while True:
        stream = make()
        while not stream.eof:
            piece = view[at : at + _PIECE] if stream.needs_input else view[:0]
            if stream.needs_input and not piece:
                raise ChunkDecodeError(f"data end early, after {len(view)} bytes", codec=codec.name)
            at += len(piece)
            try:
                value = stream.decompress(piece, left + 1)
            except (OSError, EOFError, ValueError, lzma.LZMAError, MemoryError) as error:
                raise ChunkDecodeError(f"not valid data: {error}", codec=codec.name) from error
            left -= len(value)
            if left < 0:
                raise codec.too_large(limit)
            values.append(value)
        at -= len(stream.unused_data)
        if at == len(view):
            return b"".join(values)
        if not several:
            raise ChunkDecodeError(f"{len(view) - at} bytes are left behind the data", codec=codec.name)
