"""Reads boxes of elements from the files of chunks: compiled, for one thread, without Python's lock.

A box is the product of one part along each dimension, so a batch of boxes has one list of parts for each
dimension and no list of chunks. For each chunk the loop makes the file name, reads the file, decodes it and
copies the box. No memory outside the result and the thread's own scratch memory is written: all places were
checked against the result when the batch was made, and each decoder is given the size of its target.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from xzarr3.io.compiled.libraries import bind, function

bind()

DONE, ABSENT, LEFT = 0, 1, 2
"""What became of a stored unit: it was read, it is absent, or the Python executor has to look at it."""
RAW, ZSTD, BLOSC = 0, 1, 2
DECODERS = {"": RAW, "zstd": ZSTD, "blosc": BLOSC}
_ENOENT = 2
_SEEK_END = 2

_open, _close, _pread, _lseek = map(function, ("open", "close", "pread", "lseek"))
_malloc, _free, _memcpy = map(function, ("malloc", "free", "memcpy"))
_errno_address = function("__error" if sys.platform == "darwin" else "__errno_location")
_zstd_new, _zstd_free = function("ZSTD_createDCtx"), function("ZSTD_freeDCtx")
_zstd_decode, _blosc_decode = function("ZSTD_decompressDCtx"), function("blosc_decompress_ctx")

Numbers = npt.NDArray[np.int64]


class Files(NamedTuple):
    """How the files of chunks are called and opened."""

    prefix: npt.NDArray[np.uint8]
    """The start of each path, of the system's bytes."""
    separator: int
    """The byte between two coordinates."""
    flags: int
    """Flags of ``open``."""


class Boxes(NamedTuple):
    """The boxes of a batch. The arrays of parts hold those of the first dimension, then of the next."""

    first: Numbers
    """For each dimension, the index of its first part."""
    number: Numbers
    """For each dimension, its number of parts."""
    coord: Numbers
    """For each part, the coordinate of the chunk."""
    inner: Numbers
    """For each part, where it begins in the chunk, in bytes."""
    outer: Numbers
    """For each part, where it begins in the result, in bytes."""
    count: Numbers
    """For each part, its number of elements."""
    inner_step: Numbers
    """For each dimension, the bytes from one selected element of a chunk to the next."""
    outer_step: Numbers
    """For each dimension, the bytes from one element of the result to the next."""


class Chunk(NamedTuple):
    """The chunks of an array."""

    nbytes: int
    itemsize: int
    decoder: int
    limit: int
    """Most bytes that a file may have."""


@intrinsic
def take_turn(typing: Any, array: Any, value: Any) -> Any:
    """Add ``value`` to the first element of ``array``; returns what it was before. Threads may do so at once."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.atomic_rmw("add", data, args[1], "monotonic")

    return types.int64(array, types.int64), generate


@intrinsic
def _move(typing: Any, target: Any, source: Any, like: Any) -> Any:
    """Copy one number of the type of ``like`` between two addresses."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = ir.IntType(like.bitwidth).as_pointer()
        value = builder.load(builder.inttoptr(args[1], pointer), align=1)
        builder.store(value, builder.inttoptr(args[0], pointer), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, like), generate


@intrinsic
def _number_at(typing: Any, address: Any) -> Any:
    """The unsigned number of 32 bits at an address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = builder.load(builder.inttoptr(args[0], ir.IntType(32).as_pointer()), align=1)
        return builder.zext(value, ir.IntType(64))

    return types.int64(types.int64), generate


@njit(nogil=True, cache=True)
def _row(target, target_step, source, source_step, count, itemsize):  # type: ignore[no-untyped-def]
    """Copy ``count`` elements."""
    if target_step == itemsize and source_step == itemsize:
        _memcpy(target, source, count * itemsize)
    elif itemsize == 4:
        for at in range(count):
            _move(target + at * target_step, source + at * source_step, np.uint32(0))
    elif itemsize == 8:
        for at in range(count):
            _move(target + at * target_step, source + at * source_step, np.uint64(0))
    elif itemsize == 2:
        for at in range(count):
            _move(target + at * target_step, source + at * source_step, np.uint16(0))
    elif itemsize == 1:
        for at in range(count):
            _move(target + at * target_step, source + at * source_step, np.uint8(0))
    else:
        for at in range(count):
            _memcpy(target + at * target_step, source + at * source_step, itemsize)


@njit(nogil=True, cache=True)
def _copy_box(target, target_step, source, source_step, count, where, itemsize):  # type: ignore[no-untyped-def]
    """Copy a box of ``count[d]`` elements along each dimension; ``where`` is scratch memory."""
    last = count.size - 1
    where[:] = 0
    while True:
        _row(target, target_step[last], source, source_step[last], count[last], itemsize)
        axis = last - 1
        while axis >= 0:
            where[axis] += 1
            target += target_step[axis]
            source += source_step[axis]
            if where[axis] < count[axis]:
                break
            target -= count[axis] * target_step[axis]
            source -= count[axis] * source_step[axis]
            where[axis] = 0
            axis -= 1
        if axis < 0:
            return


@njit(nogil=True, cache=True)
def _put_number(name, end, number):  # type: ignore[no-untyped-def]
    """Append a number to a name, in decimal digits; returns the new end of the name."""
    digits = 1
    rest = number // 10
    while rest:
        digits += 1
        rest //= 10
    for at in range(end + digits - 1, end - 1, -1):
        name[at] = 48 + number % 10
        number //= 10
    return end + digits


@njit(nogil=True, cache=True)
def _decode(decoder, context, source, size, target, nbytes):  # type: ignore[no-untyped-def]
    """Decode exactly ``nbytes`` bytes; returns whether that many came out."""
    if decoder == ZSTD:
        return _zstd_decode(context, target, nbytes, source, size) == nbytes
    # Blosc trusts its header, so the header is compared with the sizes first.
    if size < 16 or _number_at(source + 4) != nbytes or _number_at(source + 12) != size:
        return False
    return _blosc_decode(source, target, nbytes, 1) == nbytes


@njit(nogil=True, cache=True)
def read_boxes(files, boxes, chunk, out, fill, turn, run, stop, status):  # type: ignore[no-untyped-def]
    """Read boxes until none are left, or ``stop[0]`` is set by another thread.

    Parameters
    ----------
    files : Files
    boxes : Boxes
    chunk : Chunk
    out, fill : int
        Addresses of the result and of the fill value.
    turn : array of one int64
        Number of the next box; the threads of a read share it.
    run : int
        Number of boxes that a thread takes at a time.
    stop : array of one uint8
    status : array of uint8
        Gets what became of each box.

    Returns
    -------
    int
        Number of bytes read.
    """
    ndim = boxes.number.size
    total = status.size
    name = np.empty(files.prefix.size + 21 * ndim + 1, np.uint8)
    name[: files.prefix.size] = files.prefix
    part, count, where = np.empty(ndim, np.int64), np.empty(ndim, np.int64), np.empty(ndim, np.int64)
    none = np.zeros(ndim, np.int64)
    stored, decoded = _malloc(chunk.limit + 1), _malloc(max(chunk.nbytes, 1))
    context = _zstd_new() if chunk.decoder == ZSTD else 0
    moved = 0
    while stored != 0 and decoded != 0 and stop[0] == 0:
        begin = take_turn(turn, run)
        if begin >= total:
            break
        for box in range(begin, min(begin + run, total)):
            rest = box
            for axis in range(ndim - 1, -1, -1):
                part[axis] = boxes.first[axis] + rest % boxes.number[axis]
                rest //= boxes.number[axis]
            end = files.prefix.size
            target, inner = out, 0
            for axis in range(ndim):
                if axis:
                    name[end] = files.separator
                    end += 1
                end = _put_number(name, end, boxes.coord[part[axis]])
                target += boxes.outer[part[axis]]
                inner += boxes.inner[part[axis]]
                count[axis] = boxes.count[part[axis]]
            name[end] = 0
            descriptor = _open(name.ctypes.data, files.flags)
            if descriptor < 0:
                if _number_at(_errno_address()) == _ENOENT:
                    status[box] = ABSENT
                    _copy_box(target, boxes.outer_step, fill, none, count, where, chunk.itemsize)
                else:
                    status[box] = LEFT
                continue
            size = _pread(descriptor, stored, chunk.limit + 1, 0)
            _close(descriptor)
            source = stored
            status[box] = LEFT
            if size < 0 or size > chunk.limit:
                continue
            if chunk.decoder == RAW:
                if size != chunk.nbytes:
                    continue
            else:
                source = decoded
                if not _decode(chunk.decoder, context, stored, size, decoded, chunk.nbytes):
                    continue
            _copy_box(target, boxes.outer_step, source + inner, boxes.inner_step, count, where, chunk.itemsize)
            status[box] = DONE
            moved += size
    if context:
        _zstd_free(context)
    _free(stored)
    _free(decoded)
    return moved + 0 * name[0]
