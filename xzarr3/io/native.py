"""The library of native rows: loads it, describes codecs for it, and lends it memory.

``_native.c`` beside this module says what a row is. The codecs' functions come out of packages that xzarr3
depends on, whose shared objects export them. Each library encodes or decodes known bytes once before it is
used; if a function is missing or the bytes differ, Python does that codec's work. Where the library of native
rows is absent, Python does all work: :func:`report` tells why.
"""

from __future__ import annotations

import contextlib
import ctypes
import gzip
import importlib.util
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import google_crc32c
import numpy as np
import numpy.typing as npt
import zstandard
from numcodecs import blosc

from xzarr3.codecs.base import BytesBytesCodec, Codec
from xzarr3.codecs.blosc import SHUFFLES, BloscCodec
from xzarr3.codecs.crc32c import Crc32cCodec
from xzarr3.codecs.gzip import GzipCodec
from xzarr3.codecs.numcodecs.compressors import ShuffleCodec
from xzarr3.codecs.pipeline import CodecChain
from xzarr3.codecs.transpose import TransposeCodec
from xzarr3.codecs.zstd import ZstdCodec
from xzarr3.tracing.counters import add, process

Numbers: TypeAlias = npt.NDArray[np.int64]

LEFT, DONE, ABSENT = range(3)
"""What became of a row."""
WORTH = 150.0
"""Microseconds of work that are worth another thread."""
RUN_BYTES = 2**20
"""Decoded bytes that a thread takes at a time, at most; Ctrl-C waits for them."""
_COUNTS = 6  # What a call counts: requests and chunks, each with bytes and nanoseconds.
MOST_DIMENSIONS = 32
LARGEST = 2**28
"""Most bytes of a chunk, and of a shard that is written. A call ends only after the chunks that it has begun,
so that larger ones would delay Ctrl-C."""
_CONTRACT = 2  # Changes with `_native.c`, so that a library of another version is not used.
_MOST_THREADS = 64
_SLICE = 100  # Milliseconds after which a call returns, so that Python hears signals.
_KEPT = 2**25  # Bytes of scratch memory that a thread keeps.
_SLACK = 4096  # Bytes; encoders of others may compress a little worse.
_INFLATE_STATE = 2**18
_PATH = Path(__file__).parent / "_native.so.1"  # Of a name that Python does not take for a module.


class Left(NamedTuple):
    """What native code leaves to Python."""

    absent: list[Numbers]
    """Coordinates of the units that a read found absent, or a write left out."""
    coords: set[tuple[int, ...]]
    """The units that Python has to read or write."""


class _Function(NamedTuple):
    """A function that a shared object exports."""

    name: str
    result: Any
    arguments: tuple[Any, ...]


_I32, _U32, _I64, _AT = ctypes.c_int32, ctypes.c_uint32, ctypes.c_int64, ctypes.c_void_p


@dataclass(frozen=True)
class _Library:
    """Functions of one shared object, in the order in which ``Libraries`` of ``_native.c`` has them.

    Parameters
    ----------
    package : str
    pattern : str
        Matches the name of the shared object in the folder of the package. The functions are in it, or in one
        that it is linked to.
    functions : tuple of _Function
    check : callable
        Gets the functions by name; returns whether they give what is known.
    """

    package: str
    pattern: str
    functions: tuple[_Function, ...]
    check: Callable[[Mapping[str, Any]], bool]

    def addresses(self) -> list[int]:
        """The addresses of the functions.

        Raises
        ------
        OSError
            If there is no such shared object, it cannot be loaded, or its functions return other bytes.
        AttributeError
            If it lacks a function.
        """
        found = importlib.util.find_spec(self.package)
        folder = Path(found.origin).parent if found is not None and found.origin else Path()
        paths = sorted(folder.glob(self.pattern))
        if found is None or not paths:
            raise FileNotFoundError(f"no shared object {self.pattern} in the package {self.package}")
        shared = ctypes.CDLL(str(paths[0]))
        each = [ctypes.cast(shared[name], _AT).value or 0 for name, _, _ in self.functions]
        calls = {
            name: ctypes.CFUNCTYPE(result, *arguments)(address)
            for (name, result, arguments), address in zip(self.functions, each, strict=True)
        }
        if not self.check(calls):
            raise OSError("its functions do not return the expected bytes")
        return each


_SAMPLE = bytes(range(256)) * 8 + b"the same bytes again and again" * 20


def _check_zstd(call: Mapping[str, Any]) -> bool:
    stored, out = zstandard.compress(_SAMPLE, 3), ctypes.create_string_buffer(len(_SAMPLE))
    context = call["ZSTD_createDCtx"]()
    size = call["ZSTD_decompressDCtx"](context, out, len(out), stored, len(stored))
    call["ZSTD_freeDCtx"](context)
    return size == len(_SAMPLE) and out.raw == _SAMPLE


def _check_zstd_encoder(call: Mapping[str, Any]) -> bool:
    """Whether the bytes are those of the Python executor, which uses another shared object."""
    out = ctypes.create_string_buffer(2 * len(_SAMPLE))
    context = call["ZSTD_createCCtx"]()
    for number, value in ((100, 3), (201, 1)):
        call["ZSTD_CCtx_setParameter"](context, number, value)
    size = call["ZSTD_compress2"](context, out, len(out), _SAMPLE, len(_SAMPLE))
    call["ZSTD_freeCCtx"](context)
    wanted = zstandard.ZstdCompressor(level=3, write_checksum=True).compress(_SAMPLE)
    return 0 < size <= len(out) and out.raw[:size] == wanted


def _check_blosc(call: Mapping[str, Any]) -> bool:
    stored, out = blosc.compress(_SAMPLE, b"lz4", 5, 1, 0, 4), ctypes.create_string_buffer(len(_SAMPLE) + 16)
    if call["blosc_decompress_ctx"](stored, out, len(_SAMPLE), 1) != len(_SAMPLE):
        return False
    same = out.raw[: len(_SAMPLE)] == _SAMPLE
    given = 5, 1, 4, len(_SAMPLE), _SAMPLE, out, len(out), b"lz4", 0, 1
    size = call["blosc_compress_ctx"](*given)
    return same and size > 0 and out.raw[:size] == stored


def _check_gzip(call: Mapping[str, Any]) -> bool:
    stored, out = gzip.compress(_SAMPLE, 6, mtime=0)[10:-8], ctypes.create_string_buffer(len(_SAMPLE))
    state = (ctypes.c_int64 * (_INFLATE_STATE // 8))()
    state[0], state[1], state[4] = ctypes.addressof(out), len(out), len(stored)
    state[2] = ctypes.cast(ctypes.c_char_p(stored), _AT).value or 0
    is_done = call["isal_inflate_stateless"](ctypes.addressof(state)) == 0
    return is_done and out.raw == _SAMPLE and call["crc32_gzip_refl"](0, b"abc", 3) == 0x352441C2


def _check_crc32c(call: Mapping[str, Any]) -> bool:
    return bool(call["crc32c_value"](_SAMPLE, len(_SAMPLE)) == google_crc32c.value(_SAMPLE))


# The object that zstandard itself uses exports nothing; `_cffi`, beside it, is the same library, so it
# encodes to the same bytes. That of numcodecs decodes 4 to 7 percent faster.
_LIBRARIES = {
    "zstd": _Library(
        "numcodecs",
        "zstd.*.so",
        (
            _Function("ZSTD_createDCtx", _AT, ()),
            _Function("ZSTD_freeDCtx", _I64, (_AT,)),
            _Function("ZSTD_decompressDCtx", _I64, (_AT, _AT, _I64, _AT, _I64)),
        ),
        _check_zstd,
    ),
    "encoder of zstd": _Library(
        "zstandard",
        "_cffi.*.so",
        (
            _Function("ZSTD_createCCtx", _AT, ()),
            _Function("ZSTD_freeCCtx", _I64, (_AT,)),
            _Function("ZSTD_CCtx_setParameter", _I64, (_AT, _I32, _I32)),
            _Function("ZSTD_compress2", _I64, (_AT, _AT, _I64, _AT, _I64)),
        ),
        _check_zstd_encoder,
    ),
    "blosc": _Library(
        "numcodecs",
        "blosc.*.so",
        (
            _Function("blosc_decompress_ctx", _I32, (_AT, _AT, _I64, _I32)),
            _Function(
                "blosc_compress_ctx",
                _I32,
                (_I32, _I32, _I64, _I64, _AT, _AT, _I64, ctypes.c_char_p, _I64, _I32),
            ),
        ),
        _check_blosc,
    ),
    "gzip": _Library(
        "isal",
        "igzip_lib.*.so",
        (
            _Function("isal_inflate_stateless", _I32, (_AT,)),
            _Function("crc32_gzip_refl", _U32, (_U32, _AT, _I64)),
        ),
        _check_gzip,
    ),
    "crc32c": _Library(
        "google_crc32c",
        "_crc32c.*.so",
        (_Function("crc32c_value", _U32, (_AT, _I64)),),
        _check_crc32c,
    ),
}


class Native(NamedTuple):
    """The library of native rows, and the functions that it calls."""

    library: Any
    table: Numbers
    """The addresses of the functions of all libraries."""
    reasons: Mapping[str, str]
    """For each library why it is not used; empty if it is."""


@cache
def _loaded() -> Native | str:
    """The library, or why it is not used."""
    path = os.environ.get("XZARR3_NATIVE") or str(_PATH)
    if path == "0":
        return "off: XZARR3_NATIVE=0"
    if sys.byteorder != "little" or sys.maxsize < 2**32:
        return "off: it needs a little endian machine of 64 bits"
    try:
        library = ctypes.CDLL(path)
        library.xzarr3_contract.restype = library.xzarr3_scratch.restype = ctypes.c_int64
        library.xzarr3_scratch.argtypes = (_AT, ctypes.c_int64)
        library.xzarr3_read.argtypes = library.xzarr3_write.argtypes = (_AT,)
        library.xzarr3_close.argtypes = (_AT, ctypes.c_int64)
        library.xzarr3_free.argtypes = (_AT, _AT, ctypes.c_int64)
        if library.xzarr3_contract() != _CONTRACT:
            return f"off: {path} is of another version; install xzarr3 again"
    except (OSError, AttributeError) as error:
        return f"off: this installation has no native code ({error})"
    addresses: list[int] = []
    reasons = {}
    for name, each in _LIBRARIES.items():
        found, reasons[name] = [0] * len(each.functions), ""
        try:
            found = each.addresses()
        except (OSError, AttributeError) as error:
            reasons[name] = f"{type(error).__name__}: {error}"
        addresses += found
    return Native(library, np.array(addresses, np.int64), reasons)


class _Switch:
    is_on = True


switch = _Switch()
"""Turns native code off for a test."""


def loaded() -> Native | None:
    """The library of native rows; None where Python does all work."""
    found = _loaded() if switch.is_on else ""
    return found if isinstance(found, Native) else None


def report() -> str:
    """Whether native rows are used in this process, and if not, why."""
    found = _loaded()
    if isinstance(found, str):
        return found
    missing = "".join(f"; without {name}: {reason}" for name, reason in found.reasons.items() if reason)
    return f"in use{missing}"


# Codecs


class Layout(NamedTuple):
    """How native code finds the elements of a chunk."""

    numbers: Numbers
    """``Chunk`` of ``_native.c``."""
    nbytes: int
    scratch: int
    """Bytes of memory that a thread needs."""
    kept: tuple[object, ...]
    """What the numbers have addresses of."""

    is_plain: bool
    """Whether the stored bytes are the elements."""


def _layout(chain: CodecChain, stages: list[list[int]], room: int, kept: tuple[object, ...]) -> Layout | None:
    """The layout of chunks that ``chain`` encodes; None if native code cannot find their elements."""
    spec, native = chain.spec, loaded()
    strides, swap = _strides(chain), _swap(chain)
    if native is None or strides is None or swap is None or not 0 < spec.nbytes <= LARGEST:
        return None
    if len(spec.shape) > MOST_DIMENSIONS:
        return None
    coded = np.array([each + [0] * (7 - len(each)) for each in stages], np.int64).reshape(-1, 7)
    shape, apart = np.array(spec.shape, np.int64), np.array(strides, np.int64)
    numbers = [
        *(len(spec.shape), spec.dtype.itemsize, spec.nbytes, swap, int(spec.dtype.kind == "b")),
        *(max(chain.max_encoded_size, spec.nbytes) + _SLACK, room, len(stages)),
        *(coded.ctypes.data, shape.ctypes.data, apart.ctypes.data),
    ]
    made = np.array(numbers, np.int64)
    scratch = native.library.xzarr3_scratch(made.ctypes.data, 0)
    return Layout(made, spec.nbytes, scratch, (coded, shape, apart, kept), not stages)


def _swap(chain: CodecChain) -> int | None:
    """Width of the numbers whose bytes are stored in the other order; None if that is not possible."""
    dtype, stored = chain.spec.dtype, chain.stored_dtype
    if stored is None or dtype.hasobject or not dtype.isnative or stored.shape:
        return None
    if stored == dtype:
        return 0
    width = dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize
    return width if dtype.kind in "iufcmM" and width in (2, 4, 8) else None


def _strides(chain: CodecChain) -> list[int] | None:
    """Bytes between stored elements along each dimension; None if a filter does more than transpose."""
    shape = chain.spec.shape
    order = list(range(len(shape)))  # The dimension of the array for each stored dimension.
    for each in chain.filters:
        if type(each) is not TransposeCodec:
            return None
        order = [order[axis] for axis in each.order]
    sizes = [shape[axis] for axis in order][:0:-1]
    stored = [*itertools.accumulate(sizes, int.__mul__, initial=chain.spec.dtype.itemsize)][::-1]
    return [stored[order.index(axis)] for axis in range(len(shape))]


_ZSTD, _BLOSC, _GZIP, _CRC32C, _SHUFFLE = range(5)
_DECODERS: tuple[tuple[type[Codec], int, str], ...] = (
    (ZstdCodec, _ZSTD, "zstd"),
    (BloscCodec, _BLOSC, "blosc"),
    (GzipCodec, _GZIP, "gzip"),
    (Crc32cCodec, _CRC32C, "crc32c"),
    (ShuffleCodec, _SHUFFLE, ""),
)
"""The codecs that native code decodes: their numbers, and the libraries that they need."""


def _does_like(codec: Codec, kind: type[Codec], what: str) -> bool:
    """Whether a codec is of a kind, and no derived class does its work in another way."""
    return isinstance(codec, kind) and getattr(type(codec), what) is getattr(kind, what)


def _has(library: str) -> bool:
    native = loaded()
    return native is not None and not native.reasons.get(library, "")


def _reading(chain: CodecChain) -> Layout | None:
    stages, room = [], chain.spec.nbytes
    for codec, limit in chain.decompressors:
        known = next((each for each in _DECODERS if _does_like(codec, each[0], "decode")), None)
        if known is None or not _has(known[2]) or limit > 2 * LARGEST:
            return None
        stages.append([known[1], limit, getattr(codec, "elementsize", 0) or 1])
        room = max(room, limit)
    if chain.settles and chain.spec.dtype.kind != "b":
        return None
    return _layout(chain, stages, room if len(stages) > 1 else 0, ())


def _writing(chain: CodecChain) -> Layout | None:
    stages, kept, room = [], list[object](), 0
    for codec, limit in reversed(chain.decompressors):
        found, most = _encoder(codec, kept), codec.max_encoded_size(limit)
        if found is None or most > 2 * LARGEST:
            return None
        stages.append([found[0], most, *found[1:]])
        room = max(room, most)
    # Structs may have gaps, which say nothing about being equal to the fill value.
    return None if chain.spec.dtype.names else _layout(chain, stages, room, tuple(kept))


def _encoder(codec: BytesBytesCodec, kept: list[object]) -> list[int] | None:
    """The number of a codec and its parameters; None if native code does not know it.

    ``kept`` gets memory whose address is among the parameters.
    """
    if _does_like(codec, ZstdCodec, "encode") and isinstance(codec, ZstdCodec):
        return [_ZSTD, codec.level, int(codec.checksum)] if _has("encoder of zstd") else None
    if _does_like(codec, BloscCodec, "encode") and isinstance(codec, BloscCodec):
        if not _has("blosc") or codec.cname not in blosc.list_compressors():
            return None
        name = ctypes.create_string_buffer(codec.cname.encode())
        kept.append(name)
        shuffle = SHUFFLES.index(codec.shuffle or "noshuffle")
        return [_BLOSC, codec.clevel, shuffle, codec.typesize or 1, codec.blocksize, ctypes.addressof(name)]
    if _does_like(codec, Crc32cCodec, "encode"):
        return [_CRC32C] if _has("crc32c") else None
    if _does_like(codec, ShuffleCodec, "encode") and isinstance(codec, ShuffleCodec):
        return [_SHUFFLE, codec.elementsize or 1]
    return None


class _Layouts:
    """The layouts for reading, or those for writing. Each is made once."""

    def __init__(self, make: Callable[[CodecChain], Layout | None]) -> None:
        self._make = make
        self._made: weakref.WeakKeyDictionary[CodecChain, Layout | None] = weakref.WeakKeyDictionary()

    def of(self, chain: CodecChain) -> Layout | None:
        """The layout of chunks that these codecs encode; None if native code does not know it."""
        try:
            return self._made[chain]
        except KeyError:
            found = self._made[chain] = self._make(chain)
            return found


reading = _Layouts(_reading)
writing = _Layouts(_writing)


# Calls


class _Contexts:
    """What the codecs keep for each thread of a call, freed with this object."""

    def __init__(self, native: Native) -> None:
        self._native = native
        self.numbers = np.zeros(2 * _MOST_THREADS, np.int64)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # At the end of the interpreter nothing needs to be freed.
            table, at = self._native.table.ctypes.data, self.numbers.ctypes.data
            self._native.library.xzarr3_free(table, at, _MOST_THREADS)


class _Lent(threading.local):
    memory: npt.NDArray[np.uint8] | None = None
    contexts: _Contexts | None = None


_lent = _Lent()


def _allocate(size: int) -> npt.NDArray[np.uint8]:
    return np.empty(size, np.uint8)


class Call:
    """Some rows, as several threads do them in one or more calls.

    Parameters
    ----------
    layout : Layout
    rows : int
    threads, run : int
        Number of threads, and of the rows that one takes at a time.
    stop : ndarray of int
        Its element is not 0 once the threads have to stop.
    edges : ndarray of int, optional
        The first row of each fetch, and the end of the last one; by default each row is a fetch.
    extra : int
        Bytes for the entries of a shard.
    timed : bool
        Whether the times are counted.
    """

    def __init__(
        self,
        layout: Layout,
        rows: int,
        threads: int,
        run: int,
        stop: Numbers,
        *,
        edges: Numbers | None = None,
        extra: int = 0,
        timed: bool = False,
    ) -> None:
        native = loaded()
        if native is None:
            raise RuntimeError("the library of native rows is not loaded")
        self._native, self._stop, self._layout, self._edges = native, stop, layout, edges
        self._fetches = rows if edges is None else len(edges) - 1
        self._threads = max(1, min(threads, self._fetches, _MOST_THREADS))
        self._scratch = layout.scratch + max(0, extra - _INFLATE_STATE + 63) // 64 * 64
        self.counts = np.zeros(_COUNTS, np.int64)
        self.status = np.zeros(rows, np.uint8)
        self._next = np.zeros(1, np.int64)
        self._head = [run, int(timed)]

    def do(self, name: str, job: list[int]) -> None:
        """Do the rows; ``job`` is what follows ``work`` in the struct of ``_native.c``.

        Ctrl-C is heard between two calls.
        """
        memory = _lent.memory
        size = self._threads * self._scratch
        if memory is None or len(memory) < size:
            memory = _allocate(size)
            _lent.memory = memory if size <= _KEPT else None
        contexts = _lent.contexts
        if contexts is None:
            contexts = _lent.contexts = _Contexts(self._native)
        run, timed = self._head
        edges = 0 if self._edges is None else self._edges.ctypes.data
        numbers = [
            *(self._native.table.ctypes.data, self._layout.numbers.ctypes.data, self._fetches),
            *(self._threads, run, _SLICE, timed, edges, self._next.ctypes.data, self._stop.ctypes.data),
            *(memory.ctypes.data, self._scratch, contexts.numbers.ctypes.data),
            *(self.counts.ctypes.data, self.status.ctypes.data, *job),
        ]
        packed = (ctypes.c_int64 * len(numbers))(*numbers)
        function = getattr(self._native.library, name)
        while self._next[0] < self._fetches and not self._stop[0]:
            function(packed)

    def tell(self, kind: str, *, absent: int = 0, is_index: bool = False) -> None:
        """Add what was done to the counts of traces.

        Parameters
        ----------
        kind : {"get", "get_range", "put"}
            What a request counts as.
        absent : int
            Number of requests for units that are absent.
        is_index : bool
            Whether the chunks are the indexes of shards.
        """
        if not process.collectors:
            return
        requests, moved, asking, chunks, nbytes, coding = self.counts.tolist()
        numbers = {
            "requests": requests + absent,
            kind: requests + absent,
            "bytes_written" if kind == "put" else "bytes_read": moved,
            "request_seconds": asking / 1e9,
            "absent": absent,
            "chunks_absent": absent,
        }
        what = "encode" if kind == "put" else "decode"
        if is_index:
            numbers["indexes_read"] = requests
        else:
            numbers |= {f"chunks_{what}d": chunks, f"bytes_{what}d": nbytes, f"{what}_seconds": coding / 1e9}
        add({name: number for name, number in numbers.items() if number})


def address(data: bytes) -> int:
    """The address of bytes, which have to live as long as it is used."""
    return ctypes.cast(ctypes.c_char_p(data), _AT).value or 0


@contextlib.contextmanager
def closing(files: Numbers) -> Iterator[Numbers]:
    """Close descriptors that a call has opened at the end of a ``with`` statement; -1 for none."""
    try:
        yield files
    finally:
        native = loaded()
        if native is not None:  # One call, which Ctrl-C does not divide.
            native.library.xzarr3_close(files.ctypes.data, len(files))
