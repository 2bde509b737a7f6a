"""The library of native rows: loads it, describes codecs for it, and lends it memory.

``_native.c`` beside this module says what a row is. The codecs' functions come out of packages that xzarr3
depends on, whose shared objects export them. Before a codec is used it encodes or decodes known bytes, as
rows do; if a function is missing or the bytes are not those of Python, Python does that codec's work. Where
the library of native rows is absent, Python does all work: :func:`report` tells why.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import itertools
import os
import sys
import threading
import weakref
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from xzarr3._types import AnyArray
from xzarr3.codecs.base import BytesBytesCodec, ChunkSpec
from xzarr3.codecs.bytes import BytesCodec
from xzarr3.codecs.pipeline import CodecChain
from xzarr3.codecs.transpose import TransposeCodec
from xzarr3.dtypes import UInt8
from xzarr3.parallel import is_wanted
from xzarr3.tracing.counters import add, process, uncounted

Numbers: TypeAlias = npt.NDArray[np.int64]

LEFT, DONE, ABSENT = range(3)
"""What became of a row."""
WORTH = 150.0
"""Microseconds of work that are worth another thread."""
RUN_BYTES = 2**20
"""Decoded bytes that a thread takes at a time, at most; Ctrl-C waits for them."""
MOST_DIMENSIONS = 32
LARGEST = 2**28
"""Most bytes of a chunk, and of a shard that is written. A call ends only after the chunks that it has begun,
so that larger ones would delay Ctrl-C."""
_CONTRACT = 5  # Changes with `_native.c`, so that a library of another version is not used.
_COUNTS = 6  # What a call counts: requests and chunks, each with bytes and nanoseconds.
_MOST_THREADS = 64
_SLICE = 100  # Milliseconds after which a call returns, so that Python hears signals.
_KEPT = 2**25  # Bytes of scratch memory that a thread keeps.
_SLACK = 4096  # Bytes; encoders of others may compress a little worse.
_PATH = Path(__file__).parent / "_native.so.1"  # Of a name that Python does not take for a module.
_AT = ctypes.c_void_p


class Left(NamedTuple):
    """What native code leaves to Python."""

    absent: list[Numbers]
    """Coordinates of the units that a read found absent."""
    coords: set[tuple[int, ...]]
    """The units that Python has to read or write."""


# The package, the name of its shared object, and functions that it exports or is linked to, in the order in
# which `Libraries` of `_native.c` has them. The object that zstandard itself uses exports nothing; `_cffi`,
# beside it, is the same library, so it encodes to the same bytes. That of numcodecs decodes 4 to 7 percent
# faster.
_LIBRARIES = {
    "zstd": ("numcodecs", "zstd.*.so", "ZSTD_createDCtx ZSTD_freeDCtx ZSTD_decompressDCtx"),
    "encoder of zstd": (
        "zstandard",
        "_cffi.*.so",
        "ZSTD_createCCtx ZSTD_freeCCtx ZSTD_CCtx_setParameter ZSTD_compress2",
    ),
    "blosc": ("numcodecs", "blosc.*.so", "blosc_decompress_ctx blosc_compress_ctx"),
    "blocks of blosc": ("numcodecs", "blosc.*.so", "blosc_getitem"),
    "gzip": ("isal", "igzip_lib.*.so", "isal_inflate_stateless crc32_gzip_refl"),
    "crc32c": ("google_crc32c", "_crc32c.*.so", "crc32c_value"),
}


def _addresses(package: str, pattern: str, names: str) -> list[int]:
    found = importlib.util.find_spec(package)
    folder = Path(found.origin).parent if found is not None and found.origin else Path()
    paths = sorted(folder.glob(pattern))
    if found is None or not paths:
        raise FileNotFoundError(f"no shared object {pattern} in the package {package}")
    shared = ctypes.CDLL(str(paths[0]))
    return [ctypes.cast(shared[name], _AT).value or 0 for name in names.split()]


class Native(NamedTuple):
    """The library of native rows, and the functions that it calls."""

    library: Any
    table: array[int]
    """The addresses of the functions of all libraries."""
    absent: dict[str, str]
    """For each library that is not there the reason."""


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
        number = ctypes.c_int64
        for function in (library.xzarr3_contract, library.xzarr3_scratch, library.xzarr3_encode):
            function.restype = number
        library.xzarr3_scratch.argtypes = library.xzarr3_close.argtypes = (_AT, number)
        library.xzarr3_read.argtypes = library.xzarr3_write.argtypes = (_AT,)
        library.xzarr3_encode.argtypes = (_AT, _AT, _AT)
        library.xzarr3_free.argtypes = (_AT, _AT, number)
        if library.xzarr3_contract() != _CONTRACT:
            return f"off: {path} is of another version; install xzarr3 again"
    except (OSError, AttributeError) as error:
        return f"off: this installation has no native code ({error})"
    addresses: list[int] = []
    absent: dict[str, str] = {}
    for name, (package, pattern, functions) in _LIBRARIES.items():
        try:
            addresses += _addresses(package, pattern, functions)
        except (OSError, AttributeError) as error:
            absent[name] = f"{type(error).__name__}: {error}"
            addresses += [0] * len(functions.split())
    return Native(library, array("q", addresses), absent)


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
    faults = {
        what or known.kind: fault
        for number, known in enumerate(_CODECS)
        for what, encodes in ((known.decoder, False), (known.encoder, True))
        if what is not None and (fault := _fault(number, encodes=encodes))
    }
    return "in use" + "".join(f"; without {what}: {fault}" for what, fault in faults.items())


# Codecs


class _Known(NamedTuple):
    """A codec that native code knows; its number is its place in :data:`_CODECS`.

    It is named by its module, which is not imported before a codec of it is used: some take long.
    """

    module: str
    kind: str
    fields: dict[str, Any]
    """Those of the codec that has to agree with Python."""
    decoder: str
    """The library that decodes; empty if none is needed."""
    encoder: str | None
    """The library that encodes; None if Python encodes."""
    parameters: Callable[[Any], Sequence[int]] = lambda codec: ()

    def sample(self) -> BytesBytesCodec:
        codec: BytesBytesCodec = getattr(importlib.import_module(self.module), self.kind)(**self.fields)
        return codec


@cache
def _name(text: str) -> array[int]:
    """A name that ends with a zero byte, kept, as native code gets its address."""
    return array("b", text.encode() + b"\0")


_CODECS = (
    _Known(
        *("xzarr3.codecs.zstd", "ZstdCodec", {"level": 3, "checksum": True}),
        *("zstd", "encoder of zstd", lambda c: (c.level, c.checksum)),
    ),
    _Known(
        *("xzarr3.codecs.blosc", "BloscCodec", {"cname": "lz4", "shuffle": "noshuffle", "typesize": 4}),
        *("blosc", "blosc"),
        lambda c: (c.clevel, c.shuffle_number, c.typesize or 1, c.blocksize, at(_name(c.cname))),
    ),
    _Known("xzarr3.codecs.gzip", "GzipCodec", {"level": 6}, "gzip", None),
    _Known("xzarr3.codecs.crc32c", "Crc32cCodec", {}, "crc32c", "crc32c"),
    _Known(
        *("xzarr3.codecs.numcodecs.compressors", "ShuffleCodec", {"elementsize": 4}),
        *("", "", lambda c: (c.elementsize or 1,)),
    ),
)


@cache
def _fault(number: int, *, encodes: bool) -> str:
    """Why native code does not decode or encode for a codec; empty if it does."""
    native, known = _loaded(), _CODECS[number]
    what = known.encoder if encodes else known.decoder
    if isinstance(native, str) or what is None:
        return native if isinstance(native, str) else "Python does it"
    if what in native.absent or _agrees(native, known.sample(), encodes=encodes):
        return native.absent.get(what, "")
    return "its functions do not return the expected bytes"


class Layout(NamedTuple):
    """How native code finds the elements of a chunk."""

    numbers: array[int]
    """``Chunk`` of ``_native.c``."""
    nbytes: int
    kept: tuple[object, ...]
    """What the numbers have addresses of."""
    is_plain: bool
    """Whether the stored bytes are the elements."""


def _layout(chain: CodecChain, *, encodes: bool) -> Layout | None:
    """The layout of chunks that ``chain`` encodes; None if native code cannot find their elements."""
    spec, dtype = chain.spec, chain.spec.dtype
    strides, swap = _strides(chain), _swap(chain)
    if strides is None or swap is None or not 0 < spec.nbytes <= LARGEST or len(spec.shape) > MOST_DIMENSIONS:
        return None
    # Structs may have gaps, which say nothing about being equal to the fill value.
    if dtype.names if encodes else chain.settles and dtype.kind != "b":
        return None
    stages, room = [], spec.nbytes
    for codec, limit in reversed(chain.decompressors) if encodes else chain.decompressors:
        number, most = _number(codec), codec.max_encoded_size(limit) if encodes else limit
        if most > 2 * LARGEST:
            return None
        stage = [number, most, *_CODECS[number].parameters(codec)]
        stages.append(stage + [0] * (7 - len(stage)))
        room = max(room, most, limit)
    kept = tuple(array("q", each) for each in (itertools.chain(*stages), spec.shape, strides))
    largest = max(chain.max_encoded_size, spec.nbytes) + _SLACK
    room = room if len(stages) > (0 if encodes else 1) else 0
    head = [len(spec.shape), dtype.itemsize, spec.nbytes, swap, dtype.kind == "b", largest, room, len(stages)]
    return Layout(array("q", [*head, *map(at, kept)]), spec.nbytes, kept, not stages)


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


def _number(codec: BytesBytesCodec, what: str = "") -> int:
    """The number of a codec; -1 if none is known, or a derived class does ``what`` in another way."""
    for number, known in enumerate(_CODECS):
        kind = getattr(sys.modules.get(known.module), known.kind, ())
        if isinstance(codec, kind) and (not what or getattr(type(codec), what) is getattr(kind, what)):
            return number
    return -1


class _Layouts:
    """The layouts for reading, or those for writing. Each is made once."""

    def __init__(self, *, encodes: bool) -> None:
        self._encodes = encodes
        self._made: weakref.WeakKeyDictionary[CodecChain, Layout | None] = weakref.WeakKeyDictionary()

    def of(self, chain: CodecChain) -> Layout | None:
        """The layout of chunks that these codecs encode; None if native code does not know it."""
        if loaded() is None:
            return None
        try:
            return self._made[chain]
        except KeyError:
            known = all(self._is_known(codec) for codec, _ in chain.decompressors)
            found = self._made[chain] = _layout(chain, encodes=self._encodes) if known else None
            return found

    def _is_known(self, codec: BytesBytesCodec) -> bool:
        number = _number(codec, "encode" if self._encodes else "decode")
        return number >= 0 and not _fault(number, encodes=self._encodes)


reading = _Layouts(encodes=False)
writing = _Layouts(encodes=True)


# Calls


def at(value: Any) -> int:
    """The address of an array, which has to live as long as it is used; any number as it is.

    That of numpy's arrays takes five times as long.
    """
    if isinstance(value, np.ndarray):
        return value.ctypes.data
    return value.buffer_info()[0] if isinstance(value, array) else int(value)


class _Contexts:
    """What the codecs keep for each thread of a call, freed with this object."""

    def __init__(self, native: Native) -> None:
        self._native = native
        self.numbers = array("q", bytes(16 * _MOST_THREADS))

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # At the end of the interpreter nothing needs to be freed.
            self._native.library.xzarr3_free(at(self._native.table), at(self.numbers), _MOST_THREADS)


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
    threads : int
        The most threads. Fewer take part if they would have too little to do.
    each : float
        Microseconds that a row takes.
    edges : ndarray of int, optional
        The first row of each fetch, and the end of the last one; by default each row is a fetch.
    nbytes : int
        Decoded bytes of a row, if it is not one chunk.
    extra : int
        Bytes for the entries of a shard.
    native : Native, optional
        The library, by default the one that is loaded.

    Attributes
    ----------
    run : int
        Rows that a thread takes at a time.
    """

    def __init__(
        self,
        layout: Layout,
        rows: int,
        threads: int,
        each: float,
        *,
        edges: Numbers | None = None,
        nbytes: int = 0,
        extra: int = 0,
        native: Native | None = None,
    ) -> None:
        native = native or loaded()
        if native is None:
            raise RuntimeError("the library of native rows is not loaded")
        self._library = native.library
        self._fetches = rows if edges is None else len(edges) - 1
        busy = min(threads, 1 + int(rows * each / WORTH))
        self.run = max(1, min(16, self._fetches // (16 * busy), RUN_BYTES // (nbytes or layout.nbytes)))
        threads = max(1, min(busy, self._fetches, _MOST_THREADS))
        room = self._library.xzarr3_scratch(at(layout.numbers), extra)
        memory = _lent.memory
        if memory is None or len(memory) < threads * room:
            memory = _allocate(threads * room)
            _lent.memory = memory if len(memory) <= _KEPT else None
        contexts = _lent.contexts = _lent.contexts or _Contexts(native)
        self.counts = array("q", bytes(8 * _COUNTS))
        self.status = np.zeros(rows, np.uint8)
        self._next = array("q", [0])
        self._work = [
            *(native.table, layout.numbers, self._fetches, threads),
            *(self.run, _SLICE, bool(process.collectors)),
            *(0 if edges is None else edges, self._next, memory, room, contexts.numbers),
            *(self.counts, self.status),
        ]

    def packed(self, job: Sequence[Any]) -> array[int]:
        """The struct of ``_native.c`` that has ``job`` after ``work``: numbers and arrays."""
        return array("q", [each if type(each) is int else at(each) for each in (*self._work, *job)])

    def do(self, name: str, job: Sequence[Any]) -> None:
        """Do the rows of a job. Ctrl-C is heard between two calls."""
        packed, function = self.packed(job), getattr(self._library, name)
        while self._next[0] < self._fetches and is_wanted():
            function(at(packed))

    def write_again(self, packed: array[int]) -> int:
        """Do the only row of a write that is packed once more; returns what became of it."""
        self._next[0] = self.status[0] = 0
        self._library.xzarr3_write(at(packed))
        return int(self.status[0])

    def read(
        self,
        places: Sequence[Any],
        begin: Numbers,
        boxes: Sequence[Numbers],
        geometry: tuple[Sequence[int], Sequence[int]],
        out: AnyArray,
        fill: AnyArray | int = 0,
    ) -> None:
        """Read the rows.

        Parameters
        ----------
        places : sequence
            Where the bytes are: from ``prefix`` to ``length`` in ``Read`` of ``_native.c``.
        begin : ndarray of int
            The first box of each row.
        boxes : three arrays of int
            Starts, counts and places of the boxes.
        geometry : two sequences of int
            The steps of the selection and the strides of ``out`` along each dimension.
        out : ndarray
        fill : ndarray, or 0
            The fill value.
        """
        steps, strides = (array("q", each) for each in geometry)
        self.do("xzarr3_read", [*places, begin, *boxes, steps, out, strides, fill])

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
        requests, moved, asking, chunks, nbytes, coding = self.counts
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


def _agrees(native: Native, codec: BytesBytesCodec, *, encodes: bool) -> bool:
    """Whether a codec of native code gives the bytes that Python gives."""
    plain = np.frombuffer(bytes(range(256)) * 8 + b"the same bytes again and again" * 20, np.uint8)
    chain = CodecChain((BytesCodec(), codec), ChunkSpec(plain.shape, UInt8(), np.uint8(0)))
    with uncounted():  # By a trace of whoever is the first to use the codec.
        stored, layout = bytes(chain.encode(plain)), _layout(chain, encodes=encodes)
    out = np.zeros(2 * len(plain), np.uint8)
    if layout is None:
        return False
    call = Call(layout, 1, 1, 1.0, native=native)
    if encodes:
        packed = call.packed([])
        size = native.library.xzarr3_encode(at(packed), at(plain), at(out))
        return out[: max(size, 0)].tobytes() == stored
    octets, one = array("B", stored), np.array([0, 1], np.int64)
    memory = array("q", [at(octets), len(octets)])
    boxes = one[:1], np.array([len(plain)], np.int64), one[:1]
    call.read([*[0] * 8, memory, 0, 0, 0], one, boxes, ([1], [1]), out)
    return call.status[0] == DONE and np.array_equal(out[: len(plain)], plain)


@contextlib.contextmanager
def closing(files: Numbers) -> Iterator[Numbers]:
    """Close descriptors that a call has opened at the end of a ``with`` statement; -1 for none."""
    try:
        yield files
    finally:
        native = loaded()
        if native is not None:  # One call, which Ctrl-C does not divide.
            native.library.xzarr3_close(at(files), len(files))
