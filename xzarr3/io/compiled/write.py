"""Writes whole stored units: compiled, for one thread, without Python's lock.

A unit is a chunk or a shard. The loop gathers its elements, encodes them, writes a temporary file in an open
directory and renames it. So each name has its old or its new value at any time. What the loop does not
expect, it leaves to the Python executor, which writes the unit again or raises the error; the temporary file
is removed before. Each encoder is given the size of its target.

Fields of the tuples here that are said to be arrays hold the addresses of arrays of int64.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xzarr3.io.compiled.encode import encode, put_checksum
from xzarr3.io.compiled.libraries import function
from xzarr3.io.compiled.memory import (
    copy_box,
    create_at,
    error_number,
    get,
    inner,
    is_box_of,
    memcpy,
    milliseconds,
    outer,
    put,
    put_byte,
    put_number,
    reverse_bytes,
)
from xzarr3.io.compiled.read import ABSENT, DONE, LEFT

AHEAD = 2**18
"""Bytes of a shard that are collected before they are written."""
_UNFINISHED = 3  # What became of a shard for which the time was too short; the next call goes on with it.
_NO_FILE = 2  # ENOENT
_MODE = np.int32(0o666)
_NONE, _FAILED = (
    0,
    -1,
)  # Instead of the size of an encoded chunk: it holds only the fill value; an encoder failed.

_close, _pwrite, _rename, _unlink = map(function, ("close", "pwrite", "renameat", "unlinkat"))
_access = function("faccessat")


class Units(NamedTuple):
    """The units of a call."""

    ndim: int
    total: int
    """Number of units."""
    folder: int
    """Array: for each unit the open directory of its file; negative to leave the unit."""
    coord: int
    """Array: the coordinates of each unit."""
    first: int
    """The first dimension whose coordinate is part of the name of a file."""
    sizes: int
    """Array: for each unit, its elements along each dimension that are in the array."""
    address: int
    """Array: for each unit the address of its first element."""
    step: int
    """Array: for each dimension, the bytes from one given element to the next."""
    fill: int
    """Address of the fill value."""
    keep_empty: int
    """1 if chunks that hold only the fill value are stored, else 0."""


class Target(NamedTuple):
    """How files are named and created."""

    prefix: int
    """Address of the start of each name, in bytes of the system."""
    prefix_size: int
    separator: int
    """The byte between two coordinates."""
    beginning: int
    """Address of the start of the names of temporary files; a number follows."""
    beginning_size: int
    end: int
    """Address of the end of these names."""
    end_size: int
    flags: int
    """Flags of ``openat``."""


class Memory(NamedTuple):
    """Scratch memory of one thread, which it keeps for all of its calls."""

    kept: int
    """Array: what was reached, see the indices below."""
    contexts: int
    """Array: a number for each codec, at first 0."""
    part: int
    """Array: a number for each dimension, as are the next two."""
    where: int
    none: int
    """Zeros."""
    clock: int
    """16 bytes."""
    name: int
    """The name of a file."""
    temporary: int
    """The name of the temporary file."""
    elements: int
    """The elements of a chunk."""
    spare: int
    """Two results of codecs."""
    room: int
    """Bytes of each of these."""
    ahead: int
    """:data:`AHEAD` bytes."""
    entries: int
    """The index of a shard."""


UNIT, FILE, SERIAL, NUMBER, OFFSET, FILLED, UNTIL = range(7)
# In `kept`: the number of the unit; its open temporary file, or -1; the number of the next temporary file;
# the number of the inner chunk that is next; where in the file the bytes at `ahead` begin, and how many they
# are; when the call ends.


@inner
def _copy_bytes(target, source, size):
    """Copy bytes and end them with 0; returns the address of that."""
    memcpy(target, source, size)
    put_byte(target + size, 0)
    return target + size


@inner
def _make_name(memory, units, target, unit):
    end = _copy_bytes(memory.name, target.prefix, target.prefix_size)
    for axis in range(units.first, units.ndim):
        if axis > units.first:
            put_byte(end, target.separator)
            end += 1
        end = put_number(end, get(units.coord, unit * units.ndim + axis))
    put_byte(end, 0)


@inner
def _begin(memory, target, folder):
    """Create the temporary file; returns whether that worked."""
    serial = get(memory.kept, SERIAL)
    put(memory.kept, SERIAL, serial + 1)
    end = _copy_bytes(memory.temporary, target.beginning, target.beginning_size)
    _copy_bytes(put_number(end, serial), target.end, target.end_size)
    file = create_at(folder, memory.temporary, np.int32(target.flags), _MODE)
    put(memory.kept, FILE, np.int64(file))
    return file >= 0


@inner
def _abandon(memory, folder):
    """Remove the temporary file; the unit is left."""
    file = get(memory.kept, FILE)
    if file >= 0:
        put(memory.kept, FILE, -1)
        _close(np.int32(file))
        _unlink(folder, memory.temporary, np.int32(0))
    return LEFT


@inner
def _finish(memory, folder):
    """Rename the temporary file, which is complete; returns what became of the unit."""
    file = np.int32(get(memory.kept, FILE))
    put(memory.kept, FILE, -1)
    if _close(file) == 0 and _rename(folder, memory.temporary, folder, memory.name) == 0:
        return DONE
    _unlink(folder, memory.temporary, np.int32(0))
    return LEFT


@inner
def _absent(memory, folder):
    """What becomes of a unit that holds only the fill value: if it is stored, Python erases it."""
    if _access(folder, memory.name, np.int32(0), np.int32(0)) != 0 and error_number() == _NO_FILE:
        return ABSENT
    return LEFT


@inner
def _is_whole(units, chunk, count):
    """Whether the elements of a chunk lie in memory just as they are stored."""
    if chunk.swap:
        return False
    for axis in range(units.ndim):
        number = get(count, axis)
        if number != get(chunk.shape, axis):
            return False
        if number > 1 and get(units.step, axis) != get(chunk.strides, axis):
            return False
    return True


@inner
def _gathered(memory, units, chunk, source, count, is_outside):
    """The address of the elements of a chunk as they are stored, before the codecs."""
    if not is_outside and _is_whole(units, chunk, count):
        return source
    is_part = is_outside
    for axis in range(units.ndim):
        is_part = is_part or get(count, axis) != get(chunk.shape, axis)
    if is_part:
        copy_box(
            memory.elements, chunk.strides, units.fill, memory.none, chunk.shape, 0, units.ndim,
            memory.where, chunk.itemsize,
        )  # fmt: skip
    if not is_outside:
        copy_box(
            memory.elements, chunk.strides, source, units.step, count, 0, units.ndim, memory.where,
            chunk.itemsize,
        )  # fmt: skip
    if chunk.swap:
        reverse_bytes(memory.elements, chunk.nbytes, chunk.swap)
    return memory.elements


@inner
def _encoded(memory, units, chunk, source, count, is_outside):
    """Address and size of an encoded chunk, of which ``count`` elements are in the array.

    The size is 0 if the chunk is not to be stored, and negative if an encoder fails.
    """
    if not units.keep_empty and (
        is_outside
        or is_box_of(source, units.step, count, units.ndim, memory.where, chunk.itemsize, units.fill)
    ):
        return source, _NONE
    found = _gathered(memory, units, chunk, source, count, is_outside)
    found, size = encode(
        chunk.stages, chunk.number, memory.contexts, found, chunk.nbytes, memory.spare, memory.room
    )
    return found, size if size > 0 else _FAILED


@inner
def _write_chunk(memory, units, target, chunk, folder, unit):
    """Write a unit that is a chunk; returns what became of it."""
    count = units.sizes + 8 * units.ndim * unit
    found, size = _encoded(memory, units, chunk, get(units.address, unit), count, False)
    if size == _NONE:
        return _absent(memory, folder)
    if size < 0 or not _begin(memory, target, folder):
        return LEFT
    if _pwrite(np.int32(get(memory.kept, FILE)), found, size, 0) != size:
        return _abandon(memory, folder)
    return _finish(memory, folder)


@inner
def _flush(memory):
    """Write the collected bytes of a shard; returns whether that worked."""
    kept = memory.kept
    offset, size = get(kept, OFFSET), get(kept, FILLED)
    put(kept, OFFSET, offset + size)
    put(kept, FILLED, 0)
    return size == 0 or _pwrite(np.int32(get(kept, FILE)), memory.ahead, size, offset) == size


@inner
def _append(memory, address, size):
    """Append bytes to a shard; returns whether that worked."""
    kept = memory.kept
    if get(kept, FILLED) + size > AHEAD and not _flush(memory):
        return False
    if size > AHEAD:
        offset = get(kept, OFFSET)
        put(kept, OFFSET, offset + size)
        return _pwrite(np.int32(get(kept, FILE)), address, size, offset) == size
    memcpy(memory.ahead + get(kept, FILLED), address, size)
    put(kept, FILLED, get(kept, FILLED) + size)
    return True


@inner
def _part_at(memory, units, chunk, shards, unit, number):
    """The address of the first element of an inner chunk, and whether the chunk is outside the array.

    Puts into ``memory.part`` how many of its elements along each dimension are in the array.
    """
    source, is_outside = get(units.address, unit), False
    for axis in range(units.ndim - 1, -1, -1):
        each = get(shards.counts, axis)
        low = number % each * get(chunk.shape, axis)
        number //= each
        left = get(units.sizes, unit * units.ndim + axis) - low
        is_outside = is_outside or left <= 0
        put(memory.part, axis, min(left, get(chunk.shape, axis)))
        source += low * get(units.step, axis)
    return source, is_outside


@inner
def _write_inner(memory, units, target, chunk, shards, folder, unit, number):
    """Append an inner chunk to a shard; returns whether that worked."""
    kept, entry = memory.kept, memory.entries + 16 * number
    source, is_outside = _part_at(memory, units, chunk, shards, unit, number)
    found, size = _encoded(memory, units, chunk, source, memory.part, is_outside)
    if size == _NONE:
        put(entry, 0, -1)
        put(entry, 1, -1)
        return True
    if size < 0 or (get(kept, FILE) < 0 and not _begin(memory, target, folder)):
        return False
    put(entry, 0, get(kept, OFFSET) + get(kept, FILLED))
    put(entry, 1, size)
    return _append(memory, found, size)


@inner
def _end_shard(memory, shards, folder):
    """Write the index of a shard, all of whose inner chunks are written; returns what became of it."""
    if get(memory.kept, FILE) < 0:
        return _absent(memory, folder)
    size = shards.index_size
    if shards.checked:
        put_checksum(memory.entries, size - 4)
    if shards.at_start:
        file = np.int32(get(memory.kept, FILE))
        is_written = _flush(memory) and _pwrite(file, memory.entries, size, 0) == size
    else:
        is_written = _append(memory, memory.entries, size) and _flush(memory)
    return _finish(memory, folder) if is_written else _abandon(memory, folder)


@inner
def _write_shard(memory, units, target, chunk, shards, folder, unit):
    """Write a unit that is a shard, or go on with it; returns what became of it."""
    kept, every = memory.kept, 1
    for axis in range(units.ndim):
        every *= get(shards.counts, axis)
    number = get(kept, NUMBER)
    if number == 0:
        put(kept, OFFSET, shards.index_size if shards.at_start else 0)
        put(kept, FILLED, 0)
    while number < every:
        if not _write_inner(memory, units, target, chunk, shards, folder, unit, number):
            put(kept, NUMBER, 0)
            return _abandon(memory, folder)
        number += 1
        if number < every and milliseconds(memory.clock) >= get(kept, UNTIL):
            put(kept, NUMBER, number)
            return _UNFINISHED
    put(kept, NUMBER, 0)
    return _end_shard(memory, shards, folder)


@outer
def write_units(units, target, chunk, shards, memory, until, stop, status):
    """Write units until all are done, another thread sets ``stop``, or the time is over.

    ``memory.kept`` then says which unit is next, and whether its temporary file is open.

    Parameters
    ----------
    units : Units
    target : Target
    chunk : Chunk
    shards : Shards
    memory : Memory
    until : int
        Milliseconds after which this returns, so that Python hears signals.
    stop : int
        Address of a number that is not 0 once the threads have to stop.
    status : int
        Address of a byte for each unit, which gets what became of it.
    """
    kept = memory.kept
    unit, end = get(kept, UNIT), milliseconds(memory.clock) + until
    put(kept, UNTIL, end)
    while unit < units.total and get(stop, 0) == 0:
        folder = np.int32(get(units.folder, unit))
        if folder >= 0:
            _make_name(memory, units, target, unit)
            if shards.counts:
                found = _write_shard(memory, units, target, chunk, shards, folder, unit)
            else:
                found = _write_chunk(memory, units, target, chunk, folder, unit)
            if found == _UNFINISHED:
                break
            put_byte(status + unit, found)
        unit += 1
        put(kept, UNIT, unit)
        if milliseconds(memory.clock) >= end:
            break
