"""Binds functions of shared libraries for compiled code.

The decoders come with packages that xzarr3 depends on: their extension modules export the functions of the
libraries that they contain. A function is registered under a name of our own, so that cached machine code
finds it again in another process. Each decoder decodes known bytes once, before it is used. If a function is
missing or the result differs, Python decodes instead.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import llvmlite.binding
from numba import types

I32, I64 = types.int32, types.int64
PREFIX = "xzarr3_"


@dataclass(frozen=True)
class Library:
    """Functions that a shared object exports.

    Parameters
    ----------
    module : str
        The extension module whose shared object it is.
    functions : mapping of str to signature
    """

    module: str
    functions: dict[str, object]


LIBRARIES = {
    "zstd": Library(
        "numcodecs.zstd",
        {
            "ZSTD_createDCtx": I64(),
            "ZSTD_freeDCtx": I64(I64),
            "ZSTD_decompressDCtx": I64(I64, I64, I64, I64, I64),
        },
    ),
    "blosc": Library("numcodecs.blosc", {"blosc_decompress_ctx": I32(I64, I64, I64, I32)}),
}

# Functions of the C library need no address: every process has them.
C = {
    "open": I32(I64, I32),
    "close": I32(I32),
    "pread": I64(I32, I64, I64, I64),
    "lseek": I64(I32, I64, I32),
    "malloc": I64(I64),
    "free": types.void(I64),
    "memcpy": I64(I64, I64, I64),
    "__error" if sys.platform == "darwin" else "__errno_location": I64(),
}


def function(name: str) -> types.ExternalFunction:
    """A function of :data:`C` or of a library, as compiled code calls it."""
    if name in C:
        return types.ExternalFunction(name, C[name])
    found = next(each.functions[name] for each in LIBRARIES.values() if name in each.functions)
    return types.ExternalFunction(PREFIX + name, found)


@cache
def bind() -> frozenset[str]:
    """Register the functions of all libraries; returns the names of the libraries that have all of theirs."""
    bound = set()
    for name, library in LIBRARIES.items():
        try:
            path = importlib.import_module(library.module).__file__
            shared = ctypes.CDLL(str(Path(path or "")))
            addresses = {each: ctypes.cast(shared[each], ctypes.c_void_p).value for each in library.functions}
        except (ImportError, OSError, AttributeError):
            addresses = dict.fromkeys(library.functions)
        # An unused function needs an address, too: machine code is linked as a whole.
        for each, address in addresses.items():
            llvmlite.binding.add_symbol(PREFIX + each, address or _absent())
        if all(addresses.values()):
            bound.add(name)
    return frozenset(bound)


def _absent() -> int:
    """An address that stands for a missing function, which is never called."""
    return ctypes.cast(ctypes.pythonapi.Py_IncRef, ctypes.c_void_p).value or 0
