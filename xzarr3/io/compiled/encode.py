"""Encodes chunks in compiled code: applies the bytes-to-bytes codecs, in their order.

The bytes are those of the Python executor: the same functions of the same libraries get the same parameters.
Each encoder is given the size of its target and writes nothing beyond it.
"""

from __future__ import annotations

import numpy as np

from xzarr3.io.compiled.decode import BLOSC, CRC32C, SHUFFLE, ZSTD
from xzarr3.io.compiled.libraries import BLOSC_HEADER, ZSTD_CHECKSUM, ZSTD_LEVEL, function
from xzarr3.io.compiled.memory import U8, get, inner, memcpy, move, outer, put, put_byte

FIELDS = 8
"""Numbers that describe a codec: which it is, the most bytes that it encodes, the most that it encodes to,
and its parameters. These are for zstd the level and whether to store a checksum; for blosc the level, the
shuffle, the size of an element, the size of a block and the address of the compressor's name; for shuffle the
size of an element."""

_zstd_new, _zstd_free = function("ZSTD_createCCtx"), function("ZSTD_freeCCtx")
_zstd_set, _zstd = function("ZSTD_CCtx_setParameter"), function("ZSTD_compress2")
_blosc, _crc32c = function("blosc_compress_ctx"), function("crc32c_value")


@inner
def _zstd_context(codec, contexts, at):
    """The context of the encoder number ``at``, which is made on first use; 0 if that fails."""
    context = get(contexts, at)
    if context == 0:
        context = _zstd_new()
        put(contexts, at, context)
        if context:
            _zstd_set(context, np.int32(ZSTD_LEVEL), np.int32(get(codec, 3)))
            _zstd_set(context, np.int32(ZSTD_CHECKSUM), np.int32(get(codec, 4)))
    return context


@outer
def free_encoders(contexts, number):
    """Free the contexts of the encoders of one thread."""
    for at in range(number):
        if get(contexts, at):
            _zstd_free(get(contexts, at))
        put(contexts, at, 0)


@inner
def _blosc_encode(codec, source, size, target):
    return np.int64(
        _blosc(
            np.int32(get(codec, 3)), np.int32(get(codec, 4)), get(codec, 5), size, source, target,
            size + BLOSC_HEADER, get(codec, 7), get(codec, 6), np.int32(1),
        )
    )  # fmt: skip


@inner
def _shuffle(source, size, target, width):
    if size % width:
        return -1
    number = size // width
    for byte in range(width):
        for at in range(number):
            move(target + byte * number + at, source + at * width + byte, U8)
    return size


@inner
def put_checksum(source, size):
    """Append the CRC-32C of bytes to them."""
    checksum = np.int64(_crc32c(source, size))
    for byte in range(4):
        put_byte(source + size + byte, checksum >> (8 * byte))


@inner
def encode(stages, number, contexts, source, size, spare, room):
    """Apply all codecs to the bytes of a chunk.

    Parameters
    ----------
    stages, number : int
        Address of the numbers of each codec, see :data:`FIELDS`; and how many codecs there are.
    contexts : int
        Array: a number for each codec, at first 0.
    source, size : int
        The bytes, which are not changed.
    spare : int
        Address of scratch memory for two results, of ``room`` bytes each.
    room : int

    Returns
    -------
    tuple of int
        Address and size of the result; the size is negative if a codec fails.
    """
    into = spare
    for at in range(number):
        codec = stages + 8 * FIELDS * at
        if size > get(codec, 1):
            return source, -1
        kind = get(codec, 0)
        if kind == CRC32C:
            if at == 0:
                memcpy(into, source, size)
                source = into
                into = spare + room
            put_checksum(source, size)
            size += 4
            continue
        if kind == ZSTD:
            context = _zstd_context(codec, contexts, at)
            size = _zstd(context, into, get(codec, 2), source, size) if context else -1
        elif kind == BLOSC:
            size = _blosc_encode(codec, source, size, into)
            size = size if size > 0 else -1
        elif kind == SHUFFLE:
            size = _shuffle(source, size, into, get(codec, 3))
        else:
            size = -1
        if size < 0:
            return source, -1
        source = into
        into = spare + room if source == spare else spare
    return source, size
