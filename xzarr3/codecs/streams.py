"""Decodes compressed streams of unknown size in bounded memory: gzip, zlib, bzip2 and xz."""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Callable
from typing import Any

from isal.igzip_lib import IsalError

from xzarr3._types import Buffer
from xzarr3.codecs.base import BytesBytesCodec
from xzarr3.errors import ChunkDecodeError

_PIECE = 2**9  # bytes
_FAILURES = (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error, MemoryError)


def decompressed(
    codec: BytesBytesCodec, make: Callable[[], Any], data: Buffer, limit: int, *, several: bool = True
) -> bytes:
    """Decode consecutive streams, each with a new decompressor.

    Parameters
    ----------
    codec : BytesBytesCodec
        For errors.
    make : callable
        Makes a decompressor as the modules zlib, bz2 and lzma of Python have.
    data : buffer
    limit : int
        Largest number of decoded bytes.
    several : bool
        Whether other streams may follow the first one.

    Raises
    ------
    ChunkDecodeError
        If the data are corrupt, truncated or decode to more bytes.
    """
    # A decompressor copies all input after the end of its stream. With many small streams, passing all of the
    # data each time would take quadratic time. So only the first stream, mostly the only one, gets all of the
    # data. Each later one gets a small piece, then pieces of doubling size.
    view = memoryview(data)
    values: list[bytes] = []
    at, left, size = 0, limit, len(view)
    while True:
        stream = make()
        while not stream.eof:
            hungry = getattr(stream, "needs_input", True)
            piece = view[at : at + size] if hungry else view[:0]
            if hungry and not piece:
                raise ChunkDecodeError(
                    f"the data end early, after {at} stored and {limit - left} decoded bytes",
                    codec=codec.name,
                )
            value, failure = _decompress(stream, piece, left + 1)
            if failure is not None:
                raise ChunkDecodeError(f"not valid data: {failure}", codec=codec.name) from failure
            left -= len(value)
            if left < 0:
                raise codec.too_large(limit)
            if value:
                values.append(value)
            at += len(piece)
            size *= 2
        at -= len(stream.unused_data)
        if at == len(view):
            return values[0] if len(values) == 1 else b"".join(values)
        if not several:
            raise ChunkDecodeError(f"{len(view) - at} bytes remain after the data", codec=codec.name)
        size = _PIECE


def _decompress(stream: Any, data: Buffer, limit: int) -> tuple[bytes, Exception | None]:
    """At most ``limit`` decoded bytes, or the error: those of isal cannot be pickled and are replaced."""
    try:
        return stream.decompress(data, limit), None
    except IsalError as error:  # type: ignore[misc]
        return b"", zlib.error(str(error))
    except _FAILURES as error:
        return b"", error
