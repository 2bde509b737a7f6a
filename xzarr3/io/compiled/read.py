"""Reads boxes of elements from stored units: compiled, for one thread, without Python's lock.

A unit is a chunk or a shard, in a file or in memory. The loop makes the name of its file, reads the file,
decodes it and copies the boxes. It writes to the result and to memory of its own only: all places were
computed from the plan, and each decoder is given the size of its target. What the loop does not expect, it
leaves to the Python executor, which gives the same result or the error.

Fields of the tuples here that are said to be arrays hold the addresses of arrays of int64.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xzarr3.io.compiled.decode import decode, free_contexts, is_checked, new_contexts
from xzarr3.io.compiled.libraries import function
from xzarr3.io.compiled.memory import (
    copy_box,
    error_number,
    get,
    inner,
    memcpy,
    milliseconds,
    outer,
    put,
    put_byte,
    put_number,
    reverse_bytes,
    take_turn,
)

DONE, ABSENT, LEFT = 0, 1, 2
_UNFINISHED = 3  # What became of a shard for which the time was too short; the next call goes on with it.
"""What became of a unit: it was read, it is absent, or the Python executor has to read it."""
_NO_FILE = 2  # ENOENT
_FROM_END = np.int32(2)  # SEEK_END
_REQUEST = 2**12  # Bytes that can be copied from the system's cache in the time of one more request.
_WINDOW = 2**18  # Bytes of a shard that are read ahead; more would not fit into the cache of a core.
_OFTEN = 2**18  # After so many bytes of inner chunks the clock is read.
_ARRAYS, _CODECS = 10, 5  # Arrays of a number for each dimension; most codecs of a chunk.
_SMALL = 2**14  # Bytes; smaller inner chunks are read many at a time.

_open, _close, _pread, _lseek = map(function, ("open", "close", "pread", "lseek"))
_readlink = function("readlink")


class Boxes(NamedTuple):
    """The units of a read, and the boxes of elements that are wanted of each.

    Either they are the product of one part along each dimension: then the arrays of parts hold those of the
    first dimension, then of the next. Or each is listed.
    """

    ndim: int
    total: int
    """Number of units."""
    first: int
    """Array: for each dimension, the index of its first part."""
    number: int
    """Array: for each dimension, its number of parts."""
    coord: int
    """Array: for each part, the coordinate of the unit. In a list, all coordinates of each unit."""
    start: int
    """Array: for each part, the first element in the unit. In a list, for each dimension of each box."""
    extent: int
    """Array: for each part, its number of elements. In a list, for each dimension of each box."""
    outer: int
    """Array: for each part, where it begins in the result, in bytes. In a list, one number for each box."""
    begin: int
    """Array: the first box of each unit in the list, and at the end the number of boxes. 0 for a product."""
    step: int
    """Array: for each dimension, the elements from one wanted element of a unit to the next."""
    outer_step: int
    """Array: for each dimension, the bytes from one element of the result to the next."""


class Source(NamedTuple):
    """Where the stored bytes are."""

    prefix: int
    """Address of the start of each path, in bytes of the system."""
    prefix_size: int
    separator: int
    """The byte between two coordinates."""
    flags: int
    """Flags of ``open``."""
    descriptors: int
    """Array: an open file for each unit; 0 if they are to be opened."""
    addresses: int
    """Array: the address of the bytes of each unit, 0 for an absent one; 0 if they are in files."""
    sizes: int
    """Array: the number of bytes of each unit in memory."""


class Chunk(NamedTuple):
    """The chunks, or the inner chunks of shards."""

    shape: int
    """Array: the number of elements along each dimension."""
    strides: int
    """Array: for each dimension, the bytes from one decoded element to the next."""
    itemsize: int
    nbytes: int
    swap: int
    """Width of the numbers whose bytes are reversed; 0 if their order is that of the machine."""
    ordered: int
    """1 if the elements lie in C order, else 0."""
    stages: int
    """Array: the codecs to undo, see :func:`~xzarr3.io.compiled.decode.decode`."""
    number: int
    """How many codecs these are."""
    limit: int
    """Most bytes that a stored chunk may have."""
    room: int
    """Most bytes between two codecs."""


class Shards(NamedTuple):
    """The shards of an array."""

    counts: int
    """Array: for each dimension, the number of inner chunks. 0 without shards."""
    index_size: int
    at_start: int
    checked: int
    """1 if the index ends with its checksum, else 0."""
    largest: int
    """Most bytes of an inner chunk."""


class Scratch(NamedTuple):
    """Memory of one thread, of the sizes that :func:`scratch_sizes` says: addresses."""

    kept: int
    """Array: what was reached and what other memory holds, see the indices below."""
    arrays: int
    stored: int
    decoded: int
    spare: int
    entries: int


def scratch_sizes(ndim: int, prefix_size: int, chunk: Chunk, shards: Shards) -> Scratch:
    """Bytes of each part of the scratch memory."""
    return Scratch(
        8 * _KEPT,
        8 * (_ARRAYS * ndim + _CODECS) + prefix_size + 21 * ndim + 1,
        max(chunk.limit, _WINDOW) + 1,
        chunk.nbytes + 1,
        2 * chunk.room * (chunk.number > 1) + 1,
        shards.index_size + 1,
    )


class _Memory(NamedTuple):
    """Scratch memory of one thread: addresses."""

    name: int
    part: int
    """Array: for each dimension, the part of the unit that is read."""
    start: int
    extent: int
    inner_step: int
    """Array: for each dimension, the bytes from one wanted element of a chunk to the next."""
    inner: int
    """Array: for each dimension, the coordinate of the inner chunk that is read."""
    inner_start: int
    inner_extent: int
    where: int
    grid: int
    none: int
    """Array: a 0 for each dimension."""
    contexts: int
    kept: int
    stored: int
    decoded: int
    spare: int
    entries: int


_BEGIN, _END, _AHEAD, _MOVED, _NUMBER, _ELEMENTS, UNIT, _LAST, BOX, FILE, _UNTIL, _SINCE, _CLOCK = range(13)
_KEPT = _CLOCK + 2
# The numbers in `kept`, in the order of these names:
# - where the bytes at `stored` begin and end in the unit; whether to read ahead; how many bytes were so read;
# - the number of the chunk that was decoded last, and the address of its elements;
# - where the next call continues: the unfinished unit, the end of its run, the unfinished box, the open file;
#   each is -1 if there is none;
# - the time at which the call ends; bytes since the clock was read; two numbers for the clock.


@inner
def _now(memory):
    """The time in milliseconds."""
    return milliseconds(memory.kept + 8 * _CLOCK)


@inner
def _is_over(memory, nbytes):
    """Whether the call has to end, after so many bytes more."""
    put(memory.kept, _SINCE, get(memory.kept, _SINCE) + nbytes)
    if get(memory.kept, _SINCE) < _OFTEN:
        return False
    put(memory.kept, _SINCE, 0)
    return _now(memory) >= get(memory.kept, _UNTIL)


@inner
def _is_whole(boxes, chunk, count):
    """Whether a box is a whole chunk whose place in the result is contiguous, in the order it is stored."""
    if not chunk.ordered or chunk.swap:
        return False
    distance = chunk.itemsize
    for axis in range(boxes.ndim - 1, -1, -1):
        number = get(count, axis)
        if number != get(chunk.shape, axis) or (number > 1 and get(boxes.outer_step, axis) != distance):
            return False
        distance *= number
    return True


@inner
def _split(memory, boxes, chunk, count, alike):
    """How to read boxes of a chunk whose stored bytes are its elements, at the least cost.

    Returns the number of leading dimensions of which each index is read on its own, or -1 to read all.
    """
    span = chunk.itemsize
    for axis in range(boxes.ndim):
        span += (get(count, axis) - 1) * get(memory.inner_step, axis)
    best, cost, number = -1, chunk.nbytes + _REQUEST, alike
    for split in range(boxes.ndim + 1):
        if number * (span + _REQUEST) < cost:
            best, cost = split, number * (span + _REQUEST)
        if split < boxes.ndim:
            span -= (get(count, split) - 1) * get(memory.inner_step, split)
            number *= get(count, split)
    return best


@inner
def _copy(memory, boxes, chunk, source, target, count, split):
    """Copy elements of a chunk into the result: a box over the dimensions from ``split`` on."""
    if split == boxes.ndim:
        memcpy(target, source, chunk.itemsize)
    else:
        copy_box(
            target, boxes.outer_step, source, memory.inner_step, count, split, boxes.ndim, memory.where,
            chunk.itemsize,
        )  # fmt: skip


@inner
def _read_pieces(memory, boxes, chunk, descriptor, offset, target, start, count, split):
    """Read a box of a chunk whose stored bytes are its elements, in pieces; returns whether that worked."""
    span, grid = chunk.itemsize, memory.grid
    for axis in range(boxes.ndim):
        offset += get(start, axis) * get(chunk.strides, axis)
        if axis >= split:
            span += (get(count, axis) - 1) * get(memory.inner_step, axis)
    # Without a gap on either side, the bytes go straight into the result.
    distance, straight = chunk.itemsize, chunk.swap == 0
    for axis in range(boxes.ndim - 1, split - 1, -1):
        if get(count, axis) > 1 and (
            get(memory.inner_step, axis) != distance or get(boxes.outer_step, axis) != distance
        ):
            straight = False
        distance *= get(count, axis)
    for axis in range(split):
        put(grid, axis, 0)
    while True:
        if _pread(descriptor, target if straight else memory.decoded, span, offset) != span:
            return False
        if not straight:
            reverse_bytes(memory.decoded, span, chunk.swap)
            _copy(memory, boxes, chunk, memory.decoded, target, count, split)
        axis = split - 1
        while axis >= 0:
            done = get(grid, axis) + 1
            target += get(boxes.outer_step, axis)
            offset += get(memory.inner_step, axis)
            if done < get(count, axis):
                put(grid, axis, done)
                break
            target -= done * get(boxes.outer_step, axis)
            offset -= done * get(memory.inner_step, axis)
            put(grid, axis, 0)
            axis -= 1
        if axis < 0:
            return True


@inner
def _stored_bytes(memory, descriptor, address, offset, length, size):
    """The address of bytes of a unit, which are read if they are not in memory; 0 if they cannot be read."""
    if address:
        return address + offset
    kept = memory.kept
    if get(kept, _BEGIN) <= offset and offset + length <= get(kept, _END):
        return memory.stored + offset - get(kept, _BEGIN)
    wanted = length
    if get(kept, _AHEAD):
        wanted = max(length, min(_WINDOW, size - offset))
        put(kept, _MOVED, get(kept, _MOVED) + wanted)
        if get(kept, _MOVED) > 2 * size:  # The chunks lie in another order in the shard.
            put(kept, _AHEAD, 0)
    put(kept, _END, 0)
    if _pread(descriptor, memory.stored, wanted, offset) != wanted:
        return 0
    put(kept, _BEGIN, offset)
    put(kept, _END, offset + wanted)
    return memory.stored


@inner
def _elements(memory, chunk, descriptor, address, offset, length, size, target):
    """The address of the elements of a chunk, which is ``target`` unless that is 0; 0 if decoding fails."""
    if chunk.number == 0 and target and not address:
        return target if _pread(descriptor, target, length, offset) == length else 0
    found = _stored_bytes(memory, descriptor, address, offset, length, size)
    if chunk.number and found:
        found = decode(
            chunk.stages, chunk.number, memory.contexts, found, length, target if target else memory.decoded,
            memory.spare, chunk.room, chunk.nbytes,
        )  # fmt: skip
    if found == 0:
        return 0
    if target and found != target:
        memcpy(target, found, chunk.nbytes)
        return target
    if chunk.swap:
        if found != memory.decoded:
            memcpy(memory.decoded, found, chunk.nbytes)
            found = memory.decoded
        reverse_bytes(found, chunk.nbytes, chunk.swap)
    return found


@inner
def _read_box(
    memory, boxes, chunk, descriptor, address, offset, length, size, number, target, start, count, alike
):
    """Read a box of the chunk at ``offset``; returns whether that worked. ``alike`` boxes are read of it."""
    kept = memory.kept
    if get(kept, _NUMBER) != number:
        put(kept, _NUMBER, -1)  # The memory with the elements of another chunk is used.
        if chunk.number == 0:
            if length != chunk.nbytes:
                return False
            if not address and not (get(kept, _AHEAD) and length < _SMALL):
                split = _split(memory, boxes, chunk, count, alike)
                if split >= 0:
                    return _read_pieces(memory, boxes, chunk, descriptor, offset, target, start, count, split)
        straight = _is_whole(boxes, chunk, count)
        found = _elements(memory, chunk, descriptor, address, offset, length, size, target if straight else 0)
        if straight or found == 0:
            return found != 0
        put(kept, _NUMBER, number)
        put(kept, _ELEMENTS, found)
    source = get(kept, _ELEMENTS)
    for axis in range(boxes.ndim):
        source += get(start, axis) * get(chunk.strides, axis)
    _copy(memory, boxes, chunk, source, target, count, 0)
    return True


@inner
def _part_inside(memory, boxes, chunk, start, count):
    """Work out which elements of a box are in the inner chunk at ``memory.inner``.

    Returns the distance of the first of them from the first of the box in the result, -1 if there is none.
    """
    distance = found = 0
    for axis in range(boxes.ndim):
        length, step, begin = get(chunk.shape, axis), get(boxes.step, axis), get(start, axis)
        low = get(memory.inner, axis) * length
        first = max(0, (low - begin + step - 1) // step)
        last = min(get(count, axis), (low + length - begin + step - 1) // step)
        if first >= last:
            found = -1
        put(memory.inner_start, axis, begin + first * step - low)
        put(memory.inner_extent, axis, last - first)
        distance += first * get(boxes.outer_step, axis)
    return found, distance


@inner
def _last(boxes, chunk, start, count, axis):
    """The coordinate of the last inner chunk that a box touches along a dimension."""
    return (get(start, axis) + (get(count, axis) - 1) * get(boxes.step, axis)) // get(chunk.shape, axis)


@inner
def _read_shard_box(memory, boxes, chunk, shards, descriptor, address, size, target, fill, start, count):
    """Read a box of a shard whose index is in memory; returns what became of it.

    If the last call left it unfinished, this goes on with the inner chunk at ``memory.inner``.
    """
    ndim, at = boxes.ndim, memory.inner
    if get(memory.kept, BOX) < 0:
        wanted = every = 1
        for axis in range(ndim):
            put(at, axis, get(start, axis) // get(chunk.shape, axis))
            wanted *= _last(boxes, chunk, start, count, axis) - get(at, axis) + 1
            every *= get(shards.counts, axis)
        put(memory.kept, _AHEAD, 1 if 2 * wanted >= every else 0)
    put(memory.kept, BOX, -1)
    while True:
        found, distance = _part_inside(memory, boxes, chunk, start, count)
        if found == 0:
            number = 0
            for axis in range(ndim):
                number = number * get(shards.counts, axis) + get(at, axis)
            offset, length = get(memory.entries, 2 * number), get(memory.entries, 2 * number + 1)
            if offset == -1 and length == -1:
                copy_box(
                    target + distance, boxes.outer_step, fill, memory.none, memory.inner_extent, 0, ndim,
                    memory.where, chunk.itemsize,
                )  # fmt: skip
            elif offset < 0 or length < 0 or length > shards.largest or offset > size - length:
                return LEFT
            else:
                worked = _read_box(
                    memory, boxes, chunk, descriptor, address, offset, length, size, number,
                    target + distance, memory.inner_start, memory.inner_extent, 1,
                )  # fmt: skip
                if not worked:
                    return LEFT
        axis = ndim - 1
        while axis >= 0:
            if get(at, axis) < _last(boxes, chunk, start, count, axis):
                put(at, axis, get(at, axis) + 1)
                break
            put(at, axis, get(start, axis) // get(chunk.shape, axis))
            axis -= 1
        if axis < 0:
            return DONE
        if _is_over(memory, chunk.nbytes):
            return _UNFINISHED


@inner
def _read_index(memory, shards, descriptor, address, size):
    """Put the index of a shard into memory; returns whether it is whole."""
    offset = 0 if shards.at_start else size - shards.index_size
    if offset < 0 or size < shards.index_size:
        return False
    if address:
        memcpy(memory.entries, address + offset, shards.index_size)
    elif _pread(descriptor, memory.entries, shards.index_size, offset) != shards.index_size:
        return False
    return shards.checked == 0 or is_checked(memory.entries, shards.index_size)


@inner
def _take_box(memory, boxes, box, out):
    """Put the start and the counts of a box into memory; returns its place in the result."""
    target = out
    for axis in range(boxes.ndim):
        at = box * boxes.ndim + axis if boxes.begin else get(memory.part, axis)
        put(memory.start, axis, get(boxes.start, at))
        put(memory.extent, axis, get(boxes.extent, at))
        if not boxes.begin:
            target += get(boxes.outer, at)
    return target + get(boxes.outer, box) if boxes.begin else target


@inner
def _read_unit(memory, boxes, chunk, shards, descriptor, address, size, unit, out, fill):
    """Read the boxes of a unit that is open or in memory; returns what became of it.

    What the last call left unfinished goes on: the index and the last inner chunk are still in memory.
    """
    begin, end = (get(boxes.begin, unit), get(boxes.begin, unit + 1)) if boxes.begin else (0, 1)
    first = get(memory.kept, BOX)
    if first < 0:
        first = begin
        for at in (_END, _AHEAD, _MOVED):
            put(memory.kept, at, 0)
        put(memory.kept, _NUMBER, -1)
        if shards.counts and not _read_index(memory, shards, descriptor, address, size):
            return LEFT
    for box in range(first, end):
        target = _take_box(memory, boxes, box, out)
        if shards.counts:
            found = _read_shard_box(
                memory, boxes, chunk, shards, descriptor, address, size, target, fill,
                memory.start, memory.extent,
            )  # fmt: skip
            if found == _UNFINISHED:
                put(memory.kept, BOX, box)
            if found != DONE:
                return found
        elif not _read_box(
            memory, boxes, chunk, descriptor, address, 0, size, size, 0, target, memory.start, memory.extent,
            end - begin,
        ):  # fmt: skip
            return LEFT
    return DONE


@inner
def _fill_unit(memory, boxes, chunk, unit, out, fill):
    """Put the fill value in the place of an absent unit; returns what became of it."""
    begin, end = (get(boxes.begin, unit), get(boxes.begin, unit + 1)) if boxes.begin else (0, 1)
    for box in range(begin, end):
        target = _take_box(memory, boxes, box, out)
        copy_box(
            target, boxes.outer_step, fill, memory.none, memory.extent, 0, boxes.ndim, memory.where,
            chunk.itemsize,
        )  # fmt: skip
    return ABSENT


@inner
def _read_file(memory, boxes, chunk, shards, descriptor, unit, out, fill):
    """Read the boxes of a unit from an open file; returns what became of it."""
    address = 0
    if shards.counts == 0 and chunk.number:
        size = _pread(descriptor, memory.stored, chunk.limit + 1, 0)
        if size > chunk.limit:
            return LEFT
        address = memory.stored
    else:
        size = _lseek(descriptor, 0, _FROM_END)
    if size < 0:
        return LEFT
    return _read_unit(memory, boxes, chunk, shards, descriptor, address, size, unit, out, fill)


@inner
def _open_and_read(memory, source, boxes, chunk, shards, unit, out, fill):
    """Open the file of a unit and read its boxes; returns what became of it. An unfinished one stays open."""
    descriptor = np.int32(get(memory.kept, FILE))
    put(memory.kept, FILE, -1)
    if descriptor < 0:
        descriptor = _open_unit(memory, source, boxes)
    if descriptor >= 0:
        found = _read_file(memory, boxes, chunk, shards, descriptor, unit, out, fill)
        if found == _UNFINISHED:
            put(memory.kept, FILE, np.int64(descriptor))
        else:
            _close(descriptor)
        return found
    # A broken link gives the same error, but the unit is not absent.
    is_gone = error_number() == _NO_FILE and _readlink(memory.name, memory.decoded, 1) < 0
    if is_gone and error_number() == _NO_FILE:
        return _fill_unit(memory, boxes, chunk, unit, out, fill)
    return LEFT


@inner
def _open_unit(memory, source, boxes):
    """Open the file of a unit; returns its descriptor, or -1."""
    end = memory.name + source.prefix_size
    for axis in range(boxes.ndim):
        if axis:
            put_byte(end, source.separator)
            end += 1
        end = put_number(end, get(boxes.coord, get(memory.part, axis)))
    put_byte(end, 0)
    return _open(memory.name, np.int32(source.flags))


@inner
def _next_unit(memory, source, boxes, chunk, shards, unit, out, fill):
    """Read a unit from wherever it is; returns what became of it."""
    rest = unit
    for axis in range(boxes.ndim - 1, -1, -1):
        if boxes.begin:
            put(memory.part, axis, unit * boxes.ndim + axis)
        else:
            number = get(boxes.number, axis)
            put(memory.part, axis, get(boxes.first, axis) + rest % number)
            rest //= number
    if source.addresses:
        address = get(source.addresses, unit)
        if address == 0:
            return _fill_unit(memory, boxes, chunk, unit, out, fill)
        size = get(source.sizes, unit)
        return _read_unit(memory, boxes, chunk, shards, np.int32(-1), address, size, unit, out, fill)
    if source.descriptors:
        descriptor = np.int32(get(source.descriptors, unit))
        if descriptor < 0:
            return LEFT
        return _read_file(memory, boxes, chunk, shards, descriptor, unit, out, fill)
    return _open_and_read(memory, source, boxes, chunk, shards, unit, out, fill)


@outer
def read_units(scratch, source, boxes, chunk, shards, out, fill, turn, run, until, stop, status):
    """Read units until none are left, another thread sets ``stop``, or the time is over.

    Parameters
    ----------
    scratch : Scratch
    source : Source
    boxes : Boxes
    chunk : Chunk
    shards : Shards
    out, fill : int
        Addresses of the result and of the fill value.
    turn : int
        Address of the number of the next unit; the threads of a read share it.
    run : int
        Number of units that a thread takes at a time.
    until : int
        Milliseconds after which this returns, so that Python hears signals.
    stop : int
        Address of a number that is not 0 once the threads have to stop.
    status : int
        Address of a byte for each unit, which gets what became of it.
    """
    ndim, arrays = boxes.ndim, scratch.arrays
    each = 8 * ndim
    other = arrays + _ARRAYS * each
    memory = _Memory(
        other + 8 * _CODECS, arrays, arrays + each, arrays + 2 * each, arrays + 3 * each, arrays + 4 * each,
        arrays + 5 * each, arrays + 6 * each, arrays + 7 * each, arrays + 8 * each, arrays + 9 * each,
        other, scratch.kept, scratch.stored, scratch.decoded, scratch.spare, scratch.entries,
    )  # fmt: skip
    memcpy(memory.name, source.prefix, source.prefix_size)
    for axis in range(ndim):
        put(memory.none, axis, 0)
        put(memory.inner_step, axis, get(boxes.step, axis) * get(chunk.strides, axis))
    new_contexts(chunk.stages, chunk.number, memory.contexts)
    kept = memory.kept
    put(kept, _UNTIL, _now(memory) + until)
    put(kept, _SINCE, 0)
    found = DONE
    while found != _UNFINISHED and get(stop, 0) == 0 and _now(memory) < get(kept, _UNTIL):
        if get(kept, UNIT) < 0:
            begin = take_turn(turn, run)
            if begin >= boxes.total:
                break
            put(kept, UNIT, begin)
            put(kept, _LAST, min(begin + run, boxes.total))
        for unit in range(get(kept, UNIT), get(kept, _LAST)):
            found = _next_unit(memory, source, boxes, chunk, shards, unit, out, fill)
            if found == _UNFINISHED:
                put(kept, UNIT, unit)
                break
            put(kept, UNIT, -1)
            put_byte(status + unit, found)
    free_contexts(memory.contexts)
