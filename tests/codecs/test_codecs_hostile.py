"""Stored bytes that nobody's codec wrote: every codec there is, read through an array.

Whatever a store holds, a read ends in the right values or in ``ChunkDecodeError`` that names key, chunk and
codec, and takes no more memory than the chunk and what is stored of it do.
"""

import bz2
import itertools
import json
import lzma
import struct
import textwrap
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import support_table
import zstandard
from _chains import MIB
from _peers import BIG, CRC32C, LITTLE, ZSTD, blosc, codec, sharding
from _processes import printed_by
from _strategies import attempt, chunk_document
from hypothesis import given, settings
from hypothesis import strategies as st

import xzarr3
from xzarr3 import ChunkDecodeError
from xzarr3.codecs import ArrayBytesCodec, ConditionalCodec, ShardingCodec, codec_names, parse_codec

pytestmark = pytest.mark.slow
LIBRARIES = {"numcodecs.pcodec": "pcodec", "numcodecs.zfpy": "zfpy", "zfp": "zfpy"}
SHAPE, CHUNKS = (3, 4), (2, 2)
CHUNK = (0, 1)
FILL = -12851
ALWAYS_CHECKED = {
    "transposed", "crc32c", "numcodecs.adler32", "numcodecs.crc32", "numcodecs.crc32c",
    "numcodecs.fletcher32", "numcodecs.jenkins_lookup3",
}  # fmt: skip
"""Codecs that find any change of one bit."""
DATA_CHECKED = {*ALWAYS_CHECKED, "gzip", *(f"numcodecs.{name}" for name in ("zlib", "gzip", "bz2", "lzma"))}
"""Codecs that find any change of the data, as their streams have checksums."""
WITHOUT_END = {"numcodecs.zfpy", "zfp"}
"""Codecs whose data do not tell where they end, so that data cut short may still hold all that counts."""
ZEROS = bytes(16 * MIB)
GIB = 64  # Of these


def values_for(element: str) -> Any:
    numbers = np.arange(1, 13).reshape(SHAPE)
    if element == "string":
        return np.array([f"word {number}" for number in numbers.flat], object).reshape(SHAPE)
    if element == "bytes":
        return np.array([b"octets %d" % number for number in numbers.flat], object).reshape(SHAPE)
    return numbers % 3 == 0 if element == "bool" else numbers


CHAINS: dict[str, list[Any]] = {
    "bits of blosc": [BIG, blosc("zstd", "bitshuffle", 2)],
    "transposed": [codec("transpose", order=[1, 0]), BIG, codec("zstd", level=3, checksum=True), CRC32C],
    "shard without a checksum": [sharding((1, 1), LITTLE, ZSTD, index=(LITTLE,), location="start")],
    "shard of blosc": [sharding((2, 1), LITTLE, blosc("lz4", "shuffle", 2))],
    "inner shard": [sharding((1, 2), sharding((1, 1), LITTLE, index=(BIG,)), index=(BIG,), location="start")],
    "encoded shard": [sharding((1, 1), LITTLE), codec("gzip", level=5)],
}
NAMES = [*codec_names(), *CHAINS]


def make(store: xzarr3.Store, name: str) -> None:
    if name in LIBRARIES:
        pytest.importorskip(LIBRARIES[name])
    options: dict[str, Any] = {"compressors": None}
    if name in CHAINS:
        element = "int16"
        document = chunk_document(element, CHUNKS, CHAINS[name], shape=list(SHAPE), fill_value=FILL)
        store.set("a/zarr.json", json.dumps(document).encode())
        xzarr3.open_array(store, "a", mode="r+")[...] = values_for(element)
        return
    parsed = parse_codec(support_table._configured(name, support_table.CODECS))
    element = support_table.ELEMENTS.get(name, "int16")
    if isinstance(parsed, ArrayBytesCodec):
        options["serializer"] = parsed
    else:
        is_filter = isinstance(parsed, xzarr3.codecs.ArrayArrayCodec)
        options["filters" if is_filter else "compressors"] = [parsed]
    array = xzarr3.create_array(store, "a", shape=SHAPE, chunks=CHUNKS, dtype=element, **options)
    array[...] = values_for(element)


class Tampered:
    """An array in memory and in a directory, and the stored value of one of its chunks."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.stores = [xzarr3.MemoryStore(), xzarr3.LocalStore(directory)]
        for store in self.stores:
            make(store, name)
        self.arrays = [xzarr3.open_array(store, "a") for store in self.stores]
        self.expected = self.arrays[0].get()
        (self.key,) = (key for key in self.stores[0].list_prefix("a/") if key.endswith(("c/0/1", "/0.1")))
        self.value = bytes(self.stores[0].get(self.key) or b"")

    def read(self, value: bytes, *, local: bool = True) -> Any:
        """What both arrays hold when the chunk has this value, or None if it cannot be decoded."""
        found, *other = [self._read(array, value) for array in self.arrays[: 1 + local]]
        for each in other:
            assert (found is None) == (each is None)
            assert found is None or (str(found.tolist()), found.dtype) == (str(each.tolist()), each.dtype)
        if found is not None:
            assert (found.shape, found.dtype) == (SHAPE, self.expected.dtype)
            assert found[2].tolist() == self.expected[2].tolist()
            assert not (found[:2, 2:] == FILL).all(), "a chunk that cannot be read became the fill value"
        return found

    def _read(self, array: xzarr3.Array, value: bytes) -> Any:
        array.store.set(self.key, value)
        found = []
        for selection in (..., (0, 2), (slice(0, 2), slice(2, 4))):
            part, error = attempt(lambda s=selection: array.get(s), ChunkDecodeError)
            if isinstance(error, ChunkDecodeError):
                assert (error.key, (error.chunk or ())[:2]) == (self.key, CHUNK), error
                assert error.codec is not None, error
                assert error.reason, error
            else:
                found.append(part)
        # A part may be whole where others are not; the whole is only if its parts are.
        return found[0] if len(found) == 3 else None


@pytest.fixture(scope="module", params=NAMES)
def chunk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tampered:
    return Tampered(request.param, tmp_path_factory.mktemp("damage"))


def test_truncated_and_extended(chunk: Tampered) -> None:
    assert chunk.read(chunk.value).tolist() == chunk.expected.tolist()
    for size in range(len(chunk.value)):
        found = chunk.read(chunk.value[:size])
        assert found is None or chunk.name in WITHOUT_END, size
    for tail in (b"\0", b"\xff", bytes(100), chunk.value):
        found = chunk.read(chunk.value + tail)
        assert found is None or found.tolist() == chunk.expected.tolist()


@settings(max_examples=60)
@given(data=st.data())
def test_changed(chunk: Tampered, data: st.DataObject) -> None:
    value = bytearray(chunk.value)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(len(value) - 1, 0)))
        change = data.draw(st.sampled_from(["flip", "flip", "set", "insert", "delete", "repeat", "swap"]))
        if change == "flip" and value:
            value[at] ^= 1 << data.draw(st.integers(0, 7))
        elif change == "set":
            value[at : at + 1] = bytes([data.draw(st.sampled_from([0, 1, 127, 128, 255]))])
        elif change == "insert":
            value[at:at] = data.draw(st.binary(min_size=1, max_size=8))
        elif change == "repeat":
            value[at:at] = value[at : at + 8]
        elif change == "swap":
            value = value[at:] + value[:at]
        else:
            del value[at : at + data.draw(st.sampled_from([1, 9, 1000]))]
    found = chunk.read(bytes(value))
    if bytes(value) == chunk.value or (found is not None and chunk.name in DATA_CHECKED):
        assert found.tolist() == chunk.expected.tolist()


def test_sizes_in_headers(chunk: Tampered) -> None:
    value = chunk.value
    for at in range(min(len(value), 40)):
        for size, number in itertools.product((4, 8), (0, 1, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1)):
            for order in ("<", ">"):
                field = struct.pack(f"{order}{'I' if size == 4 else 'Q'}", number)
                if at + size <= len(value):
                    chunk.read(value[:at] + field + value[at + size :], local=False)


@pytest.mark.parametrize("chunk", sorted(ALWAYS_CHECKED), indirect=True)
def test_checksums_find_any_bit(chunk: Tampered) -> None:
    for bit in range(8 * len(chunk.value)):
        changed = bytearray(chunk.value)
        changed[bit // 8] ^= 1 << bit % 8
        assert chunk.read(bytes(changed), local=False) is None, bit


def _gzip(data: bytes) -> bytes:
    return zlib.compress(data, 9, 31)


def _one_stream(make: Any) -> bytes:
    return b"".join([*(make.compress(ZEROS) for _ in range(GIB)), make.flush()])


def _blosc(cname: str) -> bytes:
    # blosc makes no more than 2 GiB of one buffer.
    return bytes(numcodecs.Blosc(cname, 1, numcodecs.Blosc.NOSHUFFLE).encode(bytes(2**30)))


def _sharding(compressor: str) -> ShardingCodec:
    inner = parse_codec("bytes"), parse_codec(compressor)
    return ShardingCodec((2, 2), inner, inner[:1])


COMPRESS = zstandard.ZstdCompressor(level=1)
ALONE: dict[str, Any] = {"id": "lzma", "format": 2}
SMALLEST = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 2**30}]
WINDOW = zstandard.ZstdCompressionParameters(window_log=31, write_content_size=0)
BOMBS: dict[str, tuple[Any, Callable[[], bytes]]] = {
    "gzip": ("gzip", lambda: _one_stream(zlib.compressobj(1, zlib.DEFLATED, 31))),
    "gzip-members": ("gzip", lambda: _gzip(ZEROS) * GIB),
    "gzip-small-members": ("gzip", lambda: _gzip(bytes(100)) * 30000),
    "gzip-nested": (["gzip", "gzip"], lambda: _gzip(_gzip(ZEROS) * GIB)),
    "gzip-of-bombs": (["gzip", "gzip", "gzip"], lambda: _gzip(_gzip(_gzip(ZEROS) * GIB) * 1000)),
    "zlib": ("numcodecs.zlib", lambda: _one_stream(zlib.compressobj(1))),
    "zstd": ("zstd", lambda: COMPRESS.compress(bytes(2**30))),
    "zstd-frames": ("zstd", lambda: COMPRESS.compress(ZEROS) * GIB),
    "zstd-unknown-size": ("zstd", lambda: _one_stream(COMPRESS.compressobj())),
    "zstd-window": ("zstd", lambda: zstandard.ZstdCompressor(compression_params=WINDOW).compress(ZEROS)),
    "numcodecs.zstd": ("numcodecs.zstd", lambda: COMPRESS.compress(ZEROS) * GIB),
    "bz2": ("numcodecs.bz2", lambda: bz2.compress(ZEROS) * GIB),
    "xz": ({"id": "lzma"}, lambda: lzma.compress(ZEROS, preset=1) * GIB),
    "xz-memory": ({"id": "lzma"}, lambda: lzma.compress(b"", filters=SMALLEST)),
    "lzma-alone": (ALONE, lambda: lzma.compress(bytes(8 * len(ZEROS)), lzma.FORMAT_ALONE, preset=1)),
    "lz4": ("numcodecs.lz4", lambda: bytes(numcodecs.LZ4().encode(bytes(2**30)))),
    "blosc-lz4": ("blosc", lambda: _blosc("lz4")), "blosc-zstd": ("numcodecs.blosc", lambda: _blosc("zstd")),
    "conditional": (ConditionalCodec(["zstd"]), lambda: b"\1" + COMPRESS.compress(ZEROS) * GIB),
    "conditional-skipped": (ConditionalCodec(["zstd"]), lambda: b"\0" + ZEROS),
    "conditional-twice": (ConditionalCodec(["gzip", "gzip"]), lambda: b"\3" + _gzip(_gzip(ZEROS) * GIB)),
    "checked": (["gzip", "crc32c"], lambda: bytes(xzarr3.codecs.Crc32cCodec().encode(_gzip(ZEROS) * GIB))),
    "shard": (_sharding("gzip"), lambda: _shard(_gzip(ZEROS) * GIB)),
    "shard-within-bounds": (_sharding("gzip"), lambda: _shard(_gzip(bytes(5000)))),
    "shard-of-zstd": (_sharding("zstd"), lambda: _shard(COMPRESS.compress(bytes(2**30)))),
}  # fmt: skip


def _shard(inner: bytes) -> bytes:
    return inner + struct.pack("<QQ", 0, len(inner)) * 4


CLAIMS: dict[str, tuple[Any, Callable[[], bytes]]] = {
    "zstd": ("zstd", lambda: _claiming_zstd(2**31 - 1)),
    "zstd-of-4-eib": ("zstd", lambda: _claiming_zstd(2**62)),
    "zstd-window-of-2-tib": ("zstd", lambda: _claiming_zstd(100, window=0xF8)),
    "lzma-dictionary": (ALONE, lambda: _lzma_with_dictionary(2**30)),
    "zstd-of-16-mib": ("zstd", lambda: COMPRESS.compress(ZEROS)),
    "lz4": ("numcodecs.lz4", lambda: struct.pack("<I", 2**31 - 1) + bytes(100)),
    "lz4-longer": ("numcodecs.lz4", lambda: struct.pack("<I", 255 * MIB) + bytes(MIB + 100)),
    "blosc": ("blosc", lambda: struct.pack("<BBBBIII", 2, 1, 0x21, 1, 2**31 - 1, 2**20, 40) + bytes(24)),
    "blosc-snappy": (
        "blosc",
        lambda: struct.pack("<BBBBIIIII", 2, 1, 80, 1, 2**31 - 1, 128, 40, 20, 16) + bytes(16),
    ),
    "vlen": (None, lambda: struct.pack("<II", 16, 2**31 - 1) + b"x" * 100),
    "vlen-lengths": (None, lambda: struct.pack("<I", 16) + struct.pack("<I", 2**32 - 1) * 16),
    "vlen-number": (None, lambda: struct.pack("<I", 2**32 - 1) + bytes(64)),
}
"""What claims to be large where nothing but 2 GiB bounds a chunk of text."""


def _claiming_zstd(size: int, window: int = 0x58) -> bytes:
    """A frame that claims to hold ``size`` bytes and to need such a window, and holds 100 bytes."""
    header = struct.pack("<IBBQ", 0xFD2FB528, 0b11000000, window, size)
    return header + (100 << 3 | 1).to_bytes(3, "little") + bytes(100)


def _lzma_with_dictionary(size: int) -> bytes:
    stream = lzma.compress(bytes(100), lzma.FORMAT_ALONE)
    return stream[:1] + struct.pack("<I", size) + stream[5:]


CHILD = textwrap.dedent("""
    import json, re, sys, xzarr3

    def peak():
        # Not what getrusage tells: that begins with the peak of the process that made this one.
        return int(re.search("VmHWM: *([0-9]+) kB", open("/proc/self/status").read().replace("\\t", " "))[1])

    store = xzarr3.LocalStore(sys.argv[1], read_only=True)
    for name in json.loads(sys.argv[2]):
        xzarr3.open_array(store, name)  # What is loaded for that does not count.
    for name in json.loads(sys.argv[2]):
        before = peak()
        array = xzarr3.open_array(store, name)
        found = []
        for selection in (..., (0, 0)):
            try:
                array.get(selection)
                found.append("read")
            except BaseException as error:
                where = [getattr(error, field, None) for field in ("key", "chunk", "codec")]
                found.append([type(error).__name__, *where, str(error)])
        print(json.dumps([name, found, peak() - before]), flush=True)
    before = peak()
    used = bytearray(b"x" * 2**24)
    print(json.dumps(["control", [], peak() - before]), flush=True)
""")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this system does not tell the peak so")
@pytest.mark.parametrize(("cases", "dtype"), [(BOMBS, "int16"), (CLAIMS, "string")], ids=["bombs", "claims"])
def test_memory(tmp_path: Path, cases: dict[str, Any], dtype: str) -> None:
    store = xzarr3.LocalStore(tmp_path)
    for name, (codecs, make) in cases.items():
        options: dict[str, Any] = {"compressors": codecs}
        if isinstance(codecs, ArrayBytesCodec):
            options = {"serializer": codecs, "compressors": None}
        array = xzarr3.create_array(store, name, shape=(4, 4), chunks=(4, 4), dtype=dtype, **options)
        array[...] = 1 if dtype == "int16" else "word"
        store.set(f"{name}/c/0/0", make())
    printed = printed_by(CHILD, str(tmp_path), json.dumps(list(cases)), MALLOC_ARENA_MAX="2")
    *lines, control = map(json.loads, printed)
    assert control[2] > 8 * 1024  # Memory that is used is seen.
    assert [line[0] for line in lines] == list(cases)
    for name, found, grown in lines:
        for outcome in found:
            assert outcome[:3] == ["ChunkDecodeError", f"{name}/c/0/0", [0, 0]], (name, outcome)
            assert outcome[3] is not None, (name, outcome)
        assert grown < 64 * 1024, f"{name}: {grown} KiB"
