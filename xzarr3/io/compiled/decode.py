"""Decodes chunks in compiled code: the codecs after the array became bytes, last one first.

Each decoder is given the size of its target and writes nothing beyond it. A result of another size than
expected counts as a failure.
"""

from __future__ import annotations

import numpy as np

from xzarr3.io.compiled.libraries import INFLATE_STATE, function
from xzarr3.io.compiled.memory import U8, U32, free, get, inner, load, malloc, move, put

ZSTD, BLOSC, GZIP, CRC32C, SHUFFLE = range(5)
"""The codecs that compiled code knows."""
_FAILED = -1
_SNAPPY = 2  # In the header of Blosc.

_memset = function("memset")
_zstd_new, _zstd_free = function("ZSTD_createDCtx"), function("ZSTD_freeDCtx")
_zstd, _blosc = function("ZSTD_decompressDCtx"), function("blosc_decompress_ctx")
_inflate, _crc32 = function("isal_inflate_stateless"), function("crc32_gzip_refl")
_crc32c = function("crc32c_value")


@inner
def new_contexts(stages, number, contexts):
    """Put the memory that the decoders of one thread need into ``contexts``, 0 where none is needed."""
    put(contexts, ZSTD, 0)
    put(contexts, GZIP, 0)
    for at in range(number):
        if get(stages, 3 * at) == ZSTD and get(contexts, ZSTD) == 0:
            put(contexts, ZSTD, _zstd_new())
        elif get(stages, 3 * at) == GZIP and get(contexts, GZIP) == 0:
            state = malloc(INFLATE_STATE)
            if state:
                _memset(state, np.int32(0), INFLATE_STATE)
            put(contexts, GZIP, state)


@inner
def free_contexts(contexts):
    if get(contexts, ZSTD):
        _zstd_free(get(contexts, ZSTD))
    free(get(contexts, GZIP))


@inner
def is_checked(source, size):
    """Whether bytes end with their CRC-32C."""
    return size >= 4 and np.int64(_crc32c(source, size - 4)) == load(source + size - 4, U32)


@inner
def _gunzip(state, source, size, target, room):
    """Decode one gzip member without extra fields; returns the number of bytes, or a negative number."""
    # RFC 1952: 31 139, method 8, flags; a header of 10 bytes; CRC-32 and size at the end.
    if size < 18 or load(source, U32) != 0x00088B1F or state == 0 or size > 2**31 or room > 2**31:
        return _FAILED
    put(state, 0, target)
    put(state, 1, room)
    put(state, 2, source + 10)
    put(state, 4, size - 18)
    if _inflate(state) != 0:
        return _FAILED
    count = load(state + 12, U32)
    if count != load(source + size - 4, U32) or load(state + 32, U32) != 0:
        return _FAILED
    same = np.int64(_crc32(np.uint32(0), target, count)) == load(source + size - 8, U32)
    return count if same else _FAILED


@inner
def _blosc_decode(source, size, target, room):
    # Blosc trusts its header, so the header is compared with the sizes first. Most builds lack snappy.
    if size < 16 or load(source + 12, U32) != size or load(source + 4, U32) > room:
        return _FAILED
    if load(source + 2, U8) >> 5 == _SNAPPY:
        return _FAILED
    count = load(source + 4, U32)
    return count if _blosc(source, target, count, np.int32(1)) == count else _FAILED


@inner
def _unshuffle(source, size, target, width):
    if size % width:
        return _FAILED
    number = size // width
    for byte in range(width):
        for at in range(number):
            move(target + at * width + byte, source + byte * number + at, U8)
    return size


@inner
def decode(stages, number, contexts, source, size, target, spare, room, nbytes):
    """Undo all codecs of a chunk.

    Parameters
    ----------
    stages, number : int
        Address of three numbers for each codec, the last one first: which it is, the most bytes that it
        decodes to, and a parameter; and how many codecs there are.
    contexts : int
    source, size : int
        The stored bytes.
    target : int
        Address of ``nbytes`` bytes for the result.
    spare : int
        Address of scratch memory for two results in between, of ``room`` bytes each.
    room, nbytes : int

    Returns
    -------
    int
        The address of the result, which may lie in the source or the scratch memory; 0 if a codec fails.
    """
    for at in range(number):
        codec, most, into = get(stages, 3 * at), min(get(stages, 3 * at + 1), room), spare
        if at == number - 1:
            most, into = min(most, nbytes), target
        elif source == spare:
            into = spare + room
        if codec == CRC32C:
            if not is_checked(source, size):
                return 0
            size -= 4
            continue
        if codec == ZSTD:
            context = get(contexts, ZSTD)
            size = _zstd(context, into, most, source, size) if context else _FAILED
        elif codec == BLOSC:
            size = _blosc_decode(source, size, into, most)
        elif codec == GZIP:
            size = _gunzip(get(contexts, GZIP), source, size, into, most)
        elif size <= most:
            size = _unshuffle(source, size, into, get(stages, 3 * at + 2))
        else:
            return 0
        if size < 0:
            return 0
        source = into
    return source if size == nbytes else 0
