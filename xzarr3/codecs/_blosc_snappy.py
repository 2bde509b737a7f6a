"""The Blosc 1 container with snappy inside, for a numcodecs that is built without snappy.

The optional package cramjam provides snappy.

The header holds the versions of container and compressor, flags, and four sizes: of an element, of the
decoded data, of a block, and of the stored data. The offsets of the blocks follow. A block is one stream, or
one stream for each byte of an element. Each stream begins with its size. A stream whose size equals its
decoded size is stored without compression. The last block may be shorter and is never split. Data that do
not compress follow the header unchanged.

Specification: Zarr v3, "Blosc codec"; the documentation of c-blosc, "Blosc Header Format"; the format
description of snappy.
"""

from __future__ import annotations

import struct
from importlib import import_module
from typing import Any

import numpy as np

from xzarr3._types import AnyArray, Buffer
from xzarr3.errors import ChunkDecodeError, ChunkEncodeError, ChunkError

FORMAT = 2
"""The format number of snappy, in the top three bits of the flags."""

_HEADER = struct.Struct("<BBBBIII")
_VERSION, _VERSION_SNAPPY = 2, 1
_SHUFFLE, _COPIED, _BITSHUFFLE, _RESERVED, _NOT_SPLIT = 1, 2, 4, 8, 16
_LEAST = 128  # least bytes to compress at all, and least elements in a block that is split
_MOST_SPLITS = 16
_LEAST_BLOCK = 64  # bytes; c-blosc makes no smaller blocks, and many of them would be slow to decode
_BLOCK = 2**17
_MOST_BLOCK = 2**29
_RATIO = 22  # highest compression ratio: snappy needs at least 3 bytes for 64
_LEAST_STORED = 9  # bytes of a block: its offset, the size of its stream, and at least one byte of stream


def compress(data: Buffer, codec: str, *, clevel: int, shuffle: int, blocksize: int, typesize: int) -> bytes:
    """Encode ``data``, to at most 16 more bytes; ``shuffle`` is 0 for none, 1 for bytes, 2 for bits."""
    view = memoryview(data)
    size = len(view)
    typesize = typesize if typesize <= 255 else 1
    flags = FORMAT << 5 | _NOT_SPLIT | (0, _SHUFFLE, _BITSHUFFLE)[shuffle]
    blocksize = min(max(blocksize, _LEAST) if blocksize else _BLOCK, _MOST_BLOCK, max(size, 1))
    # Bits are shuffled only in blocks of 8, 16 ... elements. The remaining elements make a short last block.
    for unit in (8 * typesize, typesize) if shuffle == 2 else (typesize,):
        if blocksize >= unit:
            blocksize -= blocksize % unit
            break

    pieces: list[Any] = []
    if clevel and size >= _LEAST:
        pieces = _blocks(view, codec, flags, typesize, blocksize)
    if not pieces:
        flags |= _COPIED
        pieces = [view]
    stored = _HEADER.size + sum(map(len, pieces))
    header = _HEADER.pack(_VERSION, _VERSION_SNAPPY, flags, typesize, size, blocksize, stored)
    return b"".join([header, *pieces])


def _blocks(view: memoryview, codec: str, flags: int, typesize: int, blocksize: int) -> list[Any]:
    """The table of offsets, then the blocks; an empty list if they are not smaller than the data."""
    snappy = _library(ChunkEncodeError, codec).snappy
    size = len(view)
    values = np.frombuffer(view, np.uint8)
    scratch = np.empty(blocksize, np.uint8)
    number = -(-size // blocksize)
    offsets = np.empty(number, "<i4")
    pieces: list[Any] = [offsets.data.cast("B")]
    stored = offsets.nbytes
    for index in range(number):
        block = values[index * blocksize : (index + 1) * blocksize]
        if flags & _SHUFFLE:
            block = _shuffled(block, scratch[: len(block)], typesize)
        elif flags & _BITSHUFFLE:
            block = _bitshuffled(block, scratch[: len(block)], typesize)
        stream = snappy.compress_raw(block.data)
        if len(stream) >= len(block):
            stream = block.tobytes()
        offsets[index] = _HEADER.size + stored
        pieces += [len(stream).to_bytes(4, "little"), stream]
        stored += 4 + len(stream)
        if stored >= size:
            return []
    return pieces


def decompress(data: Buffer, codec: str, out: memoryview | None = None) -> Buffer:
    """Decode ``data``, into ``out`` if given. The caller has checked the sizes that the header holds."""
    view = memoryview(data)
    version, version_snappy, flags, typesize, size, blocksize, stored = _HEADER.unpack_from(view)
    if (version, version_snappy) != (_VERSION, _VERSION_SNAPPY) or flags & _RESERVED:
        raise _invalid(
            codec,
            f"found version {version}, version {version_snappy} of snappy and flags {flags:#04x}; known are "
            f"version {_VERSION}, version {_VERSION_SNAPPY} of snappy and no flag {_RESERVED:#04x}",
        )
    if flags & _COPIED:
        if size != stored - _HEADER.size:
            raise _invalid(codec, f"{stored - _HEADER.size} bytes are stored as they are, not {size}")
        if out is None:
            return bytes(view[_HEADER.size :])
        out[:] = view[_HEADER.size :]
        return out
    if typesize == 0 or not min(size, _LEAST_BLOCK) <= blocksize <= size > 0:
        raise _invalid(codec, f"{size} bytes cannot have elements of {typesize} and blocks of {blocksize}")
    offsets, ends = _table(view, codec, -(-size // blocksize))
    if size > _RATIO * stored:
        raise _invalid(codec, f"{stored} bytes cannot stand for {size}")
    if out is None:
        out = memoryview(bytearray(size))
    _decode_blocks(view, codec, out, offsets, ends)
    return out


def _table(view: memoryview, codec: str, number: int) -> tuple[AnyArray, AnyArray]:
    """The start of each block, and its latest possible end: where the next block or the end of data is."""
    first = _HEADER.size + 4 * number
    if number * _LEAST_STORED > len(view) - _HEADER.size:
        raise _invalid(codec, f"{len(view)} bytes cannot hold {number} blocks")
    offsets = np.frombuffer(view, "<u4", number, _HEADER.size).astype(np.int64)
    order = np.append(np.sort(offsets), len(view))
    if order[0] < first or (np.diff(order) <= 0).any():
        raise _invalid(codec, f"blocks do not begin at different places from {first} to {len(view)}")
    return offsets, order[np.searchsorted(order, offsets) + 1]


def _decode_blocks(view: memoryview, codec: str, out: memoryview, offsets: AnyArray, ends: AnyArray) -> None:
    cramjam = _library(ChunkDecodeError, codec)
    _, _, flags, typesize, _, blocksize, _ = _HEADER.unpack_from(view)
    split = not flags & _NOT_SPLIT and typesize <= _MOST_SPLITS and blocksize // typesize >= _LEAST
    if split and blocksize % typesize:
        raise _invalid(codec, f"blocks of {blocksize} bytes cannot be split in {typesize}")
    restore = None
    if flags & _SHUFFLE:
        restore = _unshuffled if typesize > 1 else None
    elif flags & _BITSHUFFLE:
        restore = _unbitshuffled
    scratch = None if restore is None else np.empty(blocksize, np.uint8)
    values = np.frombuffer(out, np.uint8)
    for index in range(len(offsets)):
        block = values[index * blocksize : (index + 1) * blocksize]
        decoded = block if scratch is None else scratch[: len(block)]
        number = typesize if split and len(block) == blocksize else 1
        _decode_streams(cramjam, view[offsets[index] : ends[index]], codec, decoded.data, number)
        if restore is not None:
            restore(decoded, block, typesize)


def _decode_streams(cramjam: Any, stored: memoryview, codec: str, block: memoryview, number: int) -> None:
    """Decode a block that is stored as ``number`` streams."""
    at, each = 0, len(block) // number
    for begin in range(0, len(block), each):
        length = int.from_bytes(stored[at : at + 4], "little")
        stream = stored[at + 4 : at + 4 + length]
        if len(stream) != length or not length:
            raise _invalid(
                codec, f"a stream claims {length} bytes, its block has {max(0, len(stored) - at - 4)} left"
            )
        at += 4 + length
        target = block[begin : begin + each]
        if length == each:
            target[:] = stream
            continue
        try:
            found = cramjam.snappy.decompress_raw_len(stream)
            if found == each:
                found = cramjam.snappy.decompress_raw_into(stream, target)
        except cramjam.DecompressionError as error:
            raise _invalid(codec, str(error)) from error
        if found != each:
            raise _invalid(codec, f"a stream decodes to {found} bytes, {each} expected")


def _invalid(codec: str, reason: str) -> ChunkDecodeError:
    return ChunkDecodeError(f"not valid blosc data with snappy: {reason}", codec=codec)


def _library(failure: type[ChunkError], codec: str) -> Any:
    try:
        return import_module("cramjam")
    except ImportError as error:
        raise failure(
            "snappy inside blosc needs the package 'cramjam': pip install 'xzarr3[codecs]'", codec=codec
        ) from error


def _shuffled(values: AnyArray, out: AnyArray, typesize: int) -> AnyArray:
    """Shuffle bytes: the first bytes of all elements, then the second ones; a remainder is copied."""
    number = len(values) // typesize
    whole = number * typesize
    out[:whole].reshape(typesize, number)[...] = values[:whole].reshape(number, typesize).T
    out[whole:] = values[whole:]
    return out


def _unshuffled(values: AnyArray, out: AnyArray, typesize: int) -> None:
    number = len(values) // typesize
    whole = number * typesize
    out[:whole].reshape(number, typesize)[...] = values[:whole].reshape(typesize, number).T
    out[whole:] = values[whole:]


def _bitshuffled(values: AnyArray, out: AnyArray, typesize: int) -> AnyArray:
    """Shuffle bits: the lowest bits of the first bytes of all elements, then the next bits, and so on.

    If the number of elements is not a multiple of 8, they stay unchanged.
    """
    number = len(values) // typesize
    whole = number * typesize
    if number % 8:
        whole = 0
    elif number:
        octets = values[:whole].reshape(number, typesize).T.copy()
        rows = _turned(octets.reshape(typesize, number // 8, 8))
        out[:whole].reshape(typesize, 8, number // 8)[...] = rows.transpose(0, 2, 1)
    out[whole:] = values[whole:]
    return out


def _unbitshuffled(values: AnyArray, out: AnyArray, typesize: int) -> None:
    number = len(values) // typesize
    whole = number * typesize
    if number % 8:
        whole = 0
    elif number:
        rows = values[:whole].reshape(typesize, 8, number // 8).transpose(0, 2, 1).copy()
        out[:whole].reshape(number, typesize)[...] = _turned(rows).reshape(typesize, number).T
    out[whole:] = values[whole:]


def _turned(octets: AnyArray) -> AnyArray:
    """Transpose each matrix of 8 by 8 bits in place: bit ``i`` of byte ``j`` becomes bit ``j`` of byte ``i``.

    Single bits are exchanged first, then blocks of 2 by 2 and of 4 by 4 bits.
    """
    words = octets.view("<u8")
    for distance, mask in ((7, 0x00AA00AA00AA00AA), (14, 0x0000CCCC0000CCCC), (28, 0x00000000F0F0F0F0)):
        changed = words >> distance
        changed ^= words
        changed &= mask
        words ^= changed
        changed <<= distance
        words ^= changed
    return octets
