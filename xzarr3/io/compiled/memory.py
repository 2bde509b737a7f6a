"""Memory for compiled code: numbers at addresses, copies of boxes, and numbers as digits.

Addresses are integers, also those of arrays: machine code for arrays of numpy would take ten times as long to
compile. Each function states which bytes it touches; its caller has checked that they belong to one buffer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from xzarr3.io.compiled.libraries import bind, function

bind()  # Machine code from the disk is linked when it is loaded, so the addresses have to be known before.

# Part of another compiled function: no wrapper for Python is made. Numbers are never divided by 0.
inner = njit(nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
outer = njit(nogil=True, error_model="numpy", cache=True, no_cfunc_wrapper=True)

malloc, free, memcpy = map(function, ("malloc", "free", "memcpy"))
_memcmp = function("memcmp")
_errno = function("__errno_location")
_clock = function("clock_gettime")
_MONOTONIC = np.int32(1)  # CLOCK_MONOTONIC

_INT64 = ir.IntType(64)


@intrinsic
def take_turn(typing: Any, address: Any, value: Any) -> Any:
    """Add ``value`` to the number at an address; returns what it was before. Threads may do so at once."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = builder.inttoptr(args[0], _INT64.as_pointer())
        return builder.atomic_rmw("add", place, args[1], "monotonic")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def get(typing: Any, address: Any, index: Any) -> Any:
    """The number with an index in an array of int64."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = builder.inttoptr(args[0], _INT64.as_pointer())
        return builder.load(builder.gep(array, [args[1]]), align=1)

    return types.int64(types.int64, types.int64), generate


@intrinsic
def put(typing: Any, address: Any, index: Any, number: Any) -> Any:
    """Set the number with an index in an array of int64."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = builder.inttoptr(args[0], _INT64.as_pointer())
        builder.store(args[2], builder.gep(array, [args[1]]), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def put_byte(typing: Any, address: Any, number: Any) -> Any:
    """Store a byte at an address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        octet = ir.IntType(8)
        builder.store(builder.trunc(args[1], octet), builder.inttoptr(args[0], octet.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def move(typing: Any, target: Any, source: Any, like: Any) -> Any:
    """Copy one number of the type of ``like`` between two addresses."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = ir.IntType(like.bitwidth).as_pointer()
        value = builder.load(builder.inttoptr(args[1], pointer), align=1)
        builder.store(value, builder.inttoptr(args[0], pointer), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, like), generate


@intrinsic
def _turn_round(typing: Any, address: Any, like: Any) -> Any:
    """Reverse the bytes of the number of the type of ``like`` at an address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = builder.inttoptr(args[0], ir.IntType(like.bitwidth).as_pointer())
        builder.store(builder.bswap(builder.load(place, align=1)), place, align=1)
        return context.get_dummy_value()

    return types.void(types.int64, like), generate


@intrinsic
def load(typing: Any, address: Any, like: Any) -> Any:
    """The number of the type of ``like`` at an address, as a signed number of 64 bits."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = ir.IntType(like.bitwidth).as_pointer()
        return builder.zext(builder.load(builder.inttoptr(args[0], pointer), align=1), ir.IntType(64))

    return types.int64(types.int64, like), generate


U8, U16, U32, U64 = np.uint8(0), np.uint16(0), np.uint32(0), np.uint64(0)


@inner
def error_number():
    """The number of the last error of the C library in this thread."""
    return load(_errno(), U32)


@inner
def milliseconds(memory):
    """The time of a clock that only goes forward; ``memory`` has 16 bytes of scratch memory."""
    _clock(_MONOTONIC, memory)
    return get(memory, 0) * 1000 + get(memory, 1) // 1000000


@inner
def _copy_row(target, target_step, source, source_step, count, itemsize):
    """Copy ``count`` elements; steps are in bytes."""
    if target_step == itemsize and source_step == itemsize:
        memcpy(target, source, count * itemsize)
    elif itemsize == 4:
        for at in range(count):
            move(target + at * target_step, source + at * source_step, U32)
    elif itemsize == 8:
        for at in range(count):
            move(target + at * target_step, source + at * source_step, U64)
    elif itemsize == 2:
        for at in range(count):
            move(target + at * target_step, source + at * source_step, U16)
    elif itemsize == 1:
        for at in range(count):
            move(target + at * target_step, source + at * source_step, U8)
    else:
        for at in range(count):
            memcpy(target + at * target_step, source + at * source_step, itemsize)


@inner
def copy_box(target, target_step, source, source_step, count, first, ndim, where, itemsize):
    """Copy the elements of a box between two arrays.

    Of each dimension from ``first`` to ``ndim`` - 1, ``count`` elements are copied, ``target_step`` and
    ``source_step`` bytes apart. ``where`` is scratch memory for ``ndim`` numbers.
    """
    last = ndim - 1
    for axis in range(first, last):
        put(where, axis, 0)
    step, gap, number = get(target_step, last), get(source_step, last), get(count, last)
    while True:
        _copy_row(target, step, source, gap, number, itemsize)
        axis = last - 1
        while axis >= first:
            done = get(where, axis) + 1
            target += get(target_step, axis)
            source += get(source_step, axis)
            if done < get(count, axis):
                put(where, axis, done)
                break
            target -= done * get(target_step, axis)
            source -= done * get(source_step, axis)
            put(where, axis, 0)
            axis -= 1
        if axis < first:
            return


@inner
def _is_row_of(address, step, count, number, itemsize, fill):
    """Whether ``count`` elements are the one at ``fill``; ``number`` is it as a number, for common sizes."""
    if step == itemsize:  # The first one is, and each equals the one before it.
        row = _memcmp(address, fill, itemsize) == 0
        return row and _memcmp(address, address + itemsize, (count - 1) * itemsize) == 0
    for at in range(address, address + count * step, step) if step else range(address, address + 1):
        if itemsize == 8:
            same = load(at, U64) == number
        elif itemsize == 4:
            same = load(at, U32) == number
        elif itemsize == 2:
            same = load(at, U16) == number
        else:
            same = _memcmp(at, fill, itemsize) == 0
        if not same:
            return False
    return True


@inner
def is_box_of(source, step, count, ndim, where, itemsize, fill):
    """Whether all elements of a box are bit for bit the one at ``fill``; see :func:`copy_box`."""
    last, number = ndim - 1, np.int64(0)
    if itemsize == 8:
        number = load(fill, U64)
    elif itemsize == 4:
        number = load(fill, U32)
    elif itemsize == 2:
        number = load(fill, U16)
    for axis in range(last):
        put(where, axis, 0)
    gap, size = get(step, last), get(count, last)
    while _is_row_of(source, gap, size, number, itemsize, fill):
        axis = last - 1
        while axis >= 0:
            done = get(where, axis) + 1
            source += get(step, axis)
            if done < get(count, axis):
                put(where, axis, done)
                break
            source -= done * get(step, axis)
            put(where, axis, 0)
            axis -= 1
        if axis < 0:
            return True
    return False


@intrinsic
def create_at(typing: Any, folder: Any, name: Any, flags: Any, mode: Any) -> Any:
    """Call ``openat`` of the C library. Some systems pass its last argument, which is variable, otherwise."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        number = ir.IntType(32)
        kind = ir.FunctionType(number, (number, _INT64, number), var_arg=True)
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, "openat"), args)

    return types.int32(types.int32, types.int64, types.int32, types.int32), generate


@inner
def reverse_bytes(address, nbytes, width):
    """Reverse the bytes of each number of ``width`` bytes, in place."""
    if width == 2:
        for at in range(address, address + nbytes, 2):
            _turn_round(at, U16)
    elif width == 4:
        for at in range(address, address + nbytes, 4):
            _turn_round(at, U32)
    elif width == 8:
        for at in range(address, address + nbytes, 8):
            _turn_round(at, U64)


@inner
def put_number(end, number):
    """Write a number at ``end`` in decimal digits, at most 20 bytes; returns the address after it."""
    digits = 1
    rest = number // 10
    while rest:
        digits += 1
        rest //= 10
    for at in range(end + digits - 1, end - 1, -1):
        put_byte(at, 48 + number % 10)
        number //= 10
    return end + digits
