"""Binds functions of shared libraries for compiled code.

The codecs' libraries come with packages that xzarr3 depends on: shared objects in them export the functions.
A function is registered under a name of our own, so that cached machine code finds it again in another
process. Each library encodes or decodes known bytes once before it is used. If a function is missing or the
bytes differ, Python does the codec's work instead.
"""

from __future__ import annotations

import ctypes
import gzip
import importlib.util
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import google_crc32c
import llvmlite.binding
import zstandard
from numba import types
from numcodecs import blosc

I32, I64, U32 = types.int32, types.int64, types.uint32
_PREFIX = "xzarr3_"
INFLATE_STATE = 2**18
"""Bytes of ISA-L's state, whose real size is less than half of that."""

ZSTD_LEVEL, ZSTD_CHECKSUM = 100, 201
"""Numbers of parameters of Zstandard's encoder."""
BLOSC_HEADER = 16
"""The most bytes that Blosc adds to what it encodes."""

_CTYPES = {I32: ctypes.c_int32, I64: ctypes.c_int64, U32: ctypes.c_uint32}
_SAMPLE = bytes(range(256)) * 64 + b"the same bytes again and again" * 100


def _check_zstd(call: Mapping[str, Any]) -> bool:
    stored = zstandard.compress(_SAMPLE, 3)
    out = ctypes.create_string_buffer(len(_SAMPLE))
    context = call["ZSTD_createDCtx"]()
    into, room = ctypes.addressof(out), len(out)
    size = call["ZSTD_decompressDCtx"](context, into, room, _address(stored), len(stored))
    call["ZSTD_freeDCtx"](context)
    return size == len(_SAMPLE) and out.raw == _SAMPLE


def _check_zstd_encoder(call: Mapping[str, Any]) -> bool:
    """Whether the bytes are those of the Python executor, which uses another shared object."""
    out = ctypes.create_string_buffer(2 * len(_SAMPLE))
    for level, checksum in ((0, 0), (-3, 1), (7, 0), (12, 1)):
        context = call["ZSTD_createCCtx"]()
        call["ZSTD_CCtx_setParameter"](context, ZSTD_LEVEL, level)
        call["ZSTD_CCtx_setParameter"](context, ZSTD_CHECKSUM, checksum)
        made = context, ctypes.addressof(out), len(out), _address(_SAMPLE), len(_SAMPLE)
        size = call["ZSTD_compress2"](*made)
        call["ZSTD_freeCCtx"](context)
        compressor = zstandard.ZstdCompressor(level=level, write_checksum=bool(checksum))
        if size < 0 or out.raw[:size] != compressor.compress(_SAMPLE):
            return False
    return True


def _check_blosc_encoder(call: Mapping[str, Any]) -> bool:
    out = ctypes.create_string_buffer(len(_SAMPLE) + BLOSC_HEADER)
    for name, level, shuffle in ((b"lz4", 5, 1), (b"zstd", 3, 2)):
        given = level, shuffle, 4, len(_SAMPLE), _address(_SAMPLE), ctypes.addressof(out), len(out)
        size = call["blosc_compress_ctx"](*given, _address(name), 0, 1)
        if size <= 0 or out.raw[:size] != blosc.compress(_SAMPLE, name, level, shuffle, 0, 4):
            return False
    return True


def _check_blosc(call: Mapping[str, Any]) -> bool:
    stored = blosc.compress(_SAMPLE, b"lz4", 5, 1, 0, 4)
    out = ctypes.create_string_buffer(len(_SAMPLE))
    size = call["blosc_decompress_ctx"](_address(stored), ctypes.addressof(out), len(out), 1)
    return size == len(_SAMPLE) and out.raw == _SAMPLE


def _check_gzip(call: Mapping[str, Any]) -> bool:
    stored = gzip.compress(_SAMPLE, 6, mtime=0)[10:-8]
    out = ctypes.create_string_buffer(len(_SAMPLE))
    state = ctypes.create_string_buffer(INFLATE_STATE)
    begin_inflate(state, ctypes.addressof(out), len(out), _address(stored), len(stored))
    is_done = call["isal_inflate_stateless"](ctypes.addressof(state)) == 0
    begin_inflate(state, ctypes.addressof(out), len(out), _address(stored), len(stored) - 3)
    is_short = call["isal_inflate_stateless"](ctypes.addressof(state)) != 0
    checksum = call["crc32_gzip_refl"](0, _address(_SAMPLE), len(_SAMPLE))
    return is_done and is_short and out.raw == _SAMPLE and checksum == zlib.crc32(_SAMPLE)


def begin_inflate(state: Any, out: int, room: int, source: int, size: int) -> None:
    """Fill in the first fields of ISA-L's ``inflate_state``; the others stay 0."""
    ctypes.memset(state, 0, len(state))
    for at, number, width in ((0, out, 8), (8, room, 4), (16, source, 8), (32, size, 4)):
        state[at : at + width] = number.to_bytes(width, "little")


def _check_crc32c(call: Mapping[str, Any]) -> bool:
    return bool(call["crc32c_value"](_address(_SAMPLE), len(_SAMPLE)) == google_crc32c.value(_SAMPLE))


def _address(data: bytes) -> int:
    """The address of bytes, which have to live as long as it is used."""
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0


@dataclass(frozen=True)
class Library:
    """Functions that a shared object exports.

    Parameters
    ----------
    package : str
        The package whose folder holds the shared object, or a folder beside it.
    pattern : str
        Matches the path of the shared object, from the folder that holds the package.
    functions : mapping of str to signature
    check : callable
        Gets the functions by name; returns whether they give what is known.
    """

    package: str
    pattern: str
    functions: Mapping[str, Any]
    check: Callable[[Mapping[str, Any]], bool]

    def addresses(self) -> dict[str, int]:
        """The addresses of all functions.

        Raises
        ------
        OSError
            If there is no such shared object, or it cannot be loaded.
        AttributeError
            If it lacks a function.
        """
        found = importlib.util.find_spec(self.package)
        folder = Path(found.origin).parent.parent if found is not None and found.origin else Path()
        for path in sorted(folder.glob(self.pattern)) if found is not None else ():
            shared = ctypes.CDLL(str(path))
            return {name: ctypes.cast(shared[name], ctypes.c_void_p).value or 0 for name in self.functions}
        raise FileNotFoundError(f"no shared object {self.pattern} beside the package {self.package}")

    def callables(self, addresses: Mapping[str, int]) -> dict[str, Any]:
        """The functions as Python calls them, for the check."""
        return {
            name: ctypes.CFUNCTYPE(
                _CTYPES[signature.return_type], *(_CTYPES[each] for each in signature.args)
            )(addresses[name])
            for name, signature in self.functions.items()
        }


_MEMORY = {"malloc": I64(I64), "free": types.void(I64)}
"""Functions of the C library that a test replaces, to find accesses outside of what was allocated."""

LIBRARIES = {
    # It decodes 4 to 7 percent faster than the object of zstandard.
    "zstd": Library(
        "numcodecs",
        "numcodecs/zstd.*.so",
        {
            "ZSTD_createDCtx": I64(),
            "ZSTD_freeDCtx": I64(I64),
            "ZSTD_decompressDCtx": I64(I64, I64, I64, I64, I64),
        },
        _check_zstd,
    ),
    "blosc": Library(
        "numcodecs", "numcodecs/blosc.*.so", {"blosc_decompress_ctx": I32(I64, I64, I64, I32)}, _check_blosc
    ),
    # Libraries of their own, because a library without encoders may still decode. The object that zstandard
    # itself uses exports nothing; this one, beside it, is the same library, so it encodes to the same bytes.
    "the encoder of zstd": Library(
        "zstandard",
        "zstandard/_cffi.*.so",
        {
            "ZSTD_createCCtx": I64(),
            "ZSTD_freeCCtx": I64(I64),
            "ZSTD_CCtx_setParameter": I64(I64, I32, I32),
            "ZSTD_compress2": I64(I64, I64, I64, I64, I64),
        },
        _check_zstd_encoder,
    ),
    "the encoder of blosc": Library(
        "numcodecs",
        "numcodecs/blosc.*.so",
        {"blosc_compress_ctx": I32(I32, I32, I64, I64, I64, I64, I64, I64, I64, I32)},
        _check_blosc_encoder,
    ),
    "gzip": Library(
        "isal",
        "isal/igzip_lib.*.so",
        {"isal_inflate_stateless": I32(I64), "crc32_gzip_refl": U32(U32, I64, I64)},
        _check_gzip,
    ),
    "crc32c": Library(
        "google_crc32c", "google_crc32c.libs/libcrc32c*.so*", {"crc32c_value": U32(I64, I64)}, _check_crc32c
    ),
}

# Functions of the C library need no address: every process has them.
_C = {
    "open": I32(I64, I32),
    "close": I32(I32),
    "pread": I64(I32, I64, I64, I64),
    "lseek": I64(I32, I64, I32),
    "pwrite": I64(I32, I64, I64, I64),
    "renameat": I32(I32, I64, I32, I64),
    "unlinkat": I32(I32, I64, I32),
    "faccessat": I32(I32, I64, I32, I32),
    "readlink": I64(I64, I64, I64),
    "memcpy": I64(I64, I64, I64),
    "memset": I64(I64, I32, I64),
    "memcmp": I32(I64, I64, I64),
    "clock_gettime": I32(I32, I64),
    "__errno_location": I64(),
}


def function(name: str) -> types.ExternalFunction:
    """A function of the C library or of :data:`LIBRARIES`, in the form that compiled code can call."""
    if name in _C:
        return types.ExternalFunction(name, _C[name])
    every = (_MEMORY, *(library.functions for library in LIBRARIES.values()))
    found = next(functions[name] for functions in every if name in functions)
    return types.ExternalFunction(_PREFIX + name, found)


@cache
def bind() -> Mapping[str, str]:
    """Register the functions of all libraries.

    Returns
    -------
    mapping of str to str
        For each library why it is not used; empty if it is.
    """
    for name, address in memory_functions().items():
        llvmlite.binding.add_symbol(_PREFIX + name, address)
    reasons = {}
    for name, library in LIBRARIES.items():
        addresses, reason = dict.fromkeys(library.functions, 0), ""
        try:
            addresses = library.addresses()
            if not library.check(library.callables(addresses)):
                reason = "its functions do not return the expected bytes"
        except (OSError, AttributeError) as error:
            reason = f"{type(error).__name__}: {error}"
        # A function that is never called needs an address, too: machine code is linked as a whole.
        for each, address in addresses.items():
            llvmlite.binding.add_symbol(_PREFIX + each, address or _anything())
        reasons[name] = reason
    return reasons


def memory_functions() -> dict[str, int]:
    """The addresses of the functions that give and take back memory."""
    return {name: ctypes.cast(ctypes.CDLL(None)[name], ctypes.c_void_p).value or 0 for name in _MEMORY}


def _anything() -> int:
    """The address of a function that is never called."""
    return ctypes.cast(ctypes.pythonapi.Py_IncRef, ctypes.c_void_p).value or 0
