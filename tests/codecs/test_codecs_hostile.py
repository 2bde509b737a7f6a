"""Stored bytes that nobody's codec wrote: every codec there is, read through an array.

Whatever a store holds, a read ends in the right values or in ``ChunkDecodeError`` that names key, chunk and
codec, and takes no more memory than the chunk and what is stored of it do.
"""

from __future__ import annotations

import bz2
import importlib.util
import itertools
import json
import lzma
import os
import struct
import subprocess
import sys
import textwrap
import zlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numcodecs
import numpy as np
import pytest
import zstandard
from _strategies import attempt
from hypothesis import given, settings
from hypothesis import strategies as st

import xzarr3
from xzarr3 import ChunkDecodeError
from xzarr3.codecs import (
    ArrayArrayCodec,
    ArrayBytesCodec,
    BloscCodec,
    ConditionalCodec,
    Crc32cCodec,
    ShardingCodec,
    codec_names,
    parse_codec,
)
from xzarr3.dtypes import parse_dtype

LIBRARIES = {"numcodecs.pcodec": "pcodec", "numcodecs.zfpy": "zfpy", "zfp": "zfpy"}
SHAPE, CHUNKS = (3, 4), (2, 2)
CHUNK = (0, 1)
ALWAYS_CHECKED = {
    "crc32c", "numcodecs.adler32", "numcodecs.crc32", "numcodecs.crc32c", "numcodecs.fletcher32",
    "numcodecs.jenkins_lookup3",
}  # fmt: skip
"""Codecs that find any change of one bit."""
WITHOUT_END = {"numcodecs.zfpy", "zfp"}
"""Codecs whose data do not tell where they end, so that data cut short may still hold all that counts."""


@lru_cache
def table() -> ModuleType:
    """The script that knows a configuration and a data type for each codec."""
    path = Path(__file__).resolve().parents[2] / "ci" / "support_table.py"
    spec = importlib.util.spec_from_file_location("support_table", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def values_for(element: str) -> Any:
    """Values of a data type, all of them different."""
    numbers = np.arange(1, 13).reshape(SHAPE)
    if element == "string":
        return np.array([f"word {number}" for number in numbers.flat], object).reshape(SHAPE)
    if element == "json2":
        return np.array([{"n": number} for number in numbers.ravel().tolist()], object).reshape(SHAPE)
    if element == "bytes":
        return np.array([b"octets %d" % number for number in numbers.flat], object).reshape(SHAPE)
    return numbers % 3 == 0 if element == "bool" else numbers


ONLY_VERSION_2: dict[str, dict[str, Any]] = {
    "base64 of version 2": {"dtype": "i2", "compressors": [{"id": "base64"}]},
    "categorize of version 2": {
        "dtype": "string",
        "compressors": None,
        "filters": [{"id": "categorize", "dtype": "|O", "labels": [f"word {n}" for n in range(1, 13)]}],
    },
}
NAMES = [*codec_names(), *ONLY_VERSION_2]


def array_of(name: str) -> tuple[xzarr3.MemoryStore, xzarr3.Array]:
    """An array with the codec ``name``, as far as a format has it."""
    if name in LIBRARIES:
        pytest.importorskip(LIBRARIES[name])
    if name in ONLY_VERSION_2:
        store = xzarr3.MemoryStore()
        given = {"shape": SHAPE, "chunks": CHUNKS, "zarr_format": 2, **ONLY_VERSION_2[name]}
        xzarr3.create_array(store, "a", **given)[...] = values_for(given["dtype"])
        return store, xzarr3.open_array(store, "a")
    script = table()
    codec = parse_codec(script._configured(name, script.CODECS))
    element = script.ELEMENTS.get(name, "int16")
    data_type = (
        parse_dtype({"name": "|O", "object_codec_id": element}, zarr_format=2)
        if element == "json2"
        else parse_dtype(element)
    )
    options: dict[str, Any] = {"compressors": None}
    if isinstance(codec, ArrayArrayCodec):
        options["filters"] = [codec]
    elif isinstance(codec, ArrayBytesCodec):
        options["serializer"] = codec
    else:
        options["compressors"] = [codec]
    store = xzarr3.MemoryStore()
    array = xzarr3.create_array(
        store, "a", shape=SHAPE, chunks=CHUNKS, dtype=data_type, zarr_format=2 if element == "json2" else 3,
        **options,
    )  # fmt: skip
    array[...] = values_for(element)
    return store, xzarr3.open_array(store, "a")


def key_of(store: xzarr3.MemoryStore) -> str:
    """The key of the chunk that is tampered with."""
    (key,) = [key for key in store.list_prefix("a/") if key.endswith(("c/0/1", "/0.1"))]
    return key


def check_error(error: ChunkDecodeError, key: str) -> None:
    """An error that tells where to look."""
    assert error.key == key, error
    assert error.chunk is not None, error
    assert error.chunk[:2] == CHUNK, error
    assert error.codec is not None, error
    assert error.reason, error


def read_with(store: xzarr3.MemoryStore, array: xzarr3.Array, key: str, value: bytes) -> Any:
    """What the array holds when the chunk has this value, or None if it cannot be decoded."""
    store.set(key, value)
    found = []
    for selection in (..., (0, 2), (slice(0, 2), slice(2, 4))):
        try:
            found.append(array.get(selection))
        except ChunkDecodeError as error:
            check_error(error, key)
    # A part may be whole where others are not; the whole is only if its parts are.
    return found[0] if len(found) == 3 else None


@pytest.mark.parametrize("name", NAMES)
def test_truncated(name: str) -> None:
    store, array = array_of(name)
    key = key_of(store)
    value, expected = bytes(store.get(key)), array.get()
    assert read_with(store, array, key, value).tolist() == expected.tolist()
    for size in range(len(value)):
        found = read_with(store, array, key, value[:size])
        if found is not None:
            assert name in WITHOUT_END, f"{size} of {len(value)} bytes"
            assert found.shape == expected.shape


@pytest.mark.parametrize("name", NAMES)
def test_something_behind(name: str) -> None:
    store, array = array_of(name)
    key = key_of(store)
    value, expected = bytes(store.get(key)), array.get()
    for tail in (b"\0", b"\xff", bytes(100), value):
        found = read_with(store, array, key, value + tail)
        assert found is None or found.tolist() == expected.tolist()


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_changed(name: str, data: st.DataObject) -> None:
    store, array = array_of(name)
    key = key_of(store)
    value = bytearray(store.get(key))
    original = bytes(value)
    expected = array.get()
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(value) - 1))
        change = data.draw(st.sampled_from(["flip", "set", "insert", "delete", "repeat"]))
        if change == "flip":
            value[at] ^= 1 << data.draw(st.integers(0, 7))
        elif change == "set":
            value[at] = data.draw(st.sampled_from([0, 1, 127, 128, 255]))
        elif change == "insert":
            value[at:at] = data.draw(st.binary(min_size=1, max_size=8))
        elif change == "repeat":
            value[at:at] = value[at : at + 8]
        elif len(value) > 1:
            del value[at]
    found = read_with(store, array, key, bytes(value))
    if found is not None:
        assert found.shape == expected.shape
        assert found.dtype == expected.dtype
        assert found[2].tolist() == expected[2].tolist()
    if bytes(value) == original:
        assert found is not None


@pytest.mark.parametrize("name", NAMES)
def test_sizes_in_headers(name: str) -> None:
    store, array = array_of(name)
    key = key_of(store)
    value = bytes(store.get(key))
    for at in range(min(len(value), 40)):
        for size, number in itertools.product((4, 8), (0, 1, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1)):
            for order in ("<", ">"):
                field = struct.pack(f"{order}{'I' if size == 4 else 'Q'}", number)
                if at + size <= len(value):
                    read_with(store, array, key, value[:at] + field + value[at + size :])


@pytest.mark.parametrize("name", sorted(ALWAYS_CHECKED))
def test_checksums_find_any_bit(name: str) -> None:
    store, array = array_of(name)
    key = key_of(store)
    value = bytes(store.get(key))
    for bit in range(8 * len(value)):
        changed = bytearray(value)
        changed[bit // 8] ^= 1 << bit % 8
        assert read_with(store, array, key, bytes(changed)) is None, bit


@pytest.mark.parametrize(
    "compressor",
    [{"name": "gzip", "configuration": {"level": 5}},
     {"name": "zstd", "configuration": {"level": 3, "checksum": True}},
     {"id": "zlib"}, {"id": "lzma", "check": 4}, {"id": "lzma", "check": 1}, {"id": "bz2"}],
    ids=str,
)  # fmt: skip
def test_checksums_of_compressors(compressor: dict[str, Any]) -> None:
    values = np.random.default_rng(0).integers(0, 2**15, (64, 64), "i2")
    store = xzarr3.MemoryStore()
    xzarr3.create_array(store, "a", data=values, chunks=(64, 64), compressors=[compressor])
    array = xzarr3.open_array(store, "a")
    (key,) = [key for key in store.list_prefix("a/") if "/c/" in key]
    value = bytes(store.get(key))
    silent = 0
    for at in range(0, len(value), 7):
        changed = bytearray(value)
        changed[at] ^= 0x10
        store.set(key, bytes(changed))
        found, error = attempt(array.get, ChunkDecodeError)
        if error is None:
            silent += 1
            assert found.tolist() == values.tolist(), at  # Bytes of a header that mean nothing.
    assert silent < 10


MIB = 2**20
ZEROS = bytes(16 * MIB)
GIB = 64  # Of these


def _gzip(data: bytes) -> bytes:
    return zlib.compress(data, 9, 31)


def _one_stream(make: Any) -> bytes:
    """A GiB of zeros that a compressor was given piece by piece."""
    return b"".join([*(make.compress(ZEROS) for _ in range(GIB)), make.flush()])


def _raw_lzma(number: int) -> bytes:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 1}]
    return lzma.compress(bytes(number), lzma.FORMAT_RAW, filters=filters)


def _blosc(cname: str) -> bytes:
    # blosc makes no more than 2 GiB of one buffer.
    return bytes(numcodecs.Blosc(cname, 1, numcodecs.Blosc.NOSHUFFLE).encode(bytes(2**30)))


def codecs_of(*names: str) -> tuple[Any, ...]:
    return tuple(parse_codec(name) for name in names)


BOMBS: dict[str, tuple[Any, Callable[[], bytes]]] = {
    "gzip": ("gzip", lambda: _one_stream(zlib.compressobj(1, zlib.DEFLATED, 31))),
    "gzip-members": ("gzip", lambda: _gzip(ZEROS) * GIB),
    "gzip-small-members": ("gzip", lambda: _gzip(bytes(100)) * 30000),
    "gzip-nested": (["gzip", "gzip"], lambda: _gzip(_gzip(ZEROS) * GIB)),
    "gzip-of-bombs": (["gzip", "gzip", "gzip"], lambda: _gzip(_gzip(_gzip(ZEROS) * GIB) * 1000)),
    "zlib": ("numcodecs.zlib", lambda: _one_stream(zlib.compressobj(1))),
    "zstd": ("zstd", lambda: zstandard.ZstdCompressor(level=1).compress(bytes(2**30))),
    "zstd-frames": ("zstd", lambda: zstandard.ZstdCompressor(level=1).compress(ZEROS) * GIB),
    "zstd-unknown-size": ("zstd", lambda: _one_stream(zstandard.ZstdCompressor(level=1).compressobj())),
    "zstd-window": (
        "zstd",
        lambda: zstandard.ZstdCompressor(
            compression_params=zstandard.ZstdCompressionParameters(window_log=31, write_content_size=0)
        ).compress(ZEROS),
    ),
    "numcodecs.zstd": ("numcodecs.zstd", lambda: zstandard.ZstdCompressor(level=1).compress(ZEROS) * GIB),
    "bz2": ("numcodecs.bz2", lambda: bz2.compress(ZEROS) * GIB),
    "xz": (parse_codec({"id": "lzma"}), lambda: lzma.compress(ZEROS, preset=1) * GIB),
    "xz-memory": (parse_codec({"id": "lzma"}), lambda: lzma.compress(b"", filters=[
        {"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 2**30}])),
    "lzma-alone": (
        parse_codec({"id": "lzma", "format": 2}),
        lambda: lzma.compress(bytes(8 * len(ZEROS)), lzma.FORMAT_ALONE, preset=1),
    ),
    "lzma-raw": (
        parse_codec({"id": "lzma", "format": 3, "filters": [{"id": lzma.FILTER_LZMA2, "preset": 1}]}),
        lambda: _raw_lzma(8 * len(ZEROS)),
    ),
    "lz4": ("numcodecs.lz4", lambda: bytes(numcodecs.LZ4().encode(bytes(2**30)))),
    "blosc-lz4": ("blosc", lambda: _blosc("lz4")),
    "blosc-zstd": ("numcodecs.blosc", lambda: _blosc("zstd")),
    "blosc-snappy": ("blosc", lambda: BloscCodec("snappy", 1, "noshuffle", 1).encode(ZEROS)),
    "conditional": (
        ConditionalCodec(["zstd"]),
        lambda: b"\1" + zstandard.ZstdCompressor(level=1).compress(ZEROS) * GIB,
    ),
    "conditional-skipped": (ConditionalCodec(["zstd"]), lambda: b"\0" + ZEROS),
    "conditional-nested": (
        ConditionalCodec([ConditionalCodec(["gzip", "gzip"])]),
        lambda: b"\1\3" + _gzip(_gzip(ZEROS) * GIB),
    ),
    "checked": (["gzip", "crc32c"], lambda: bytes(Crc32cCodec().encode(_gzip(ZEROS) * GIB))),
    "shard": (ShardingCodec((2, 2), codecs_of("bytes", "gzip"), codecs_of("bytes")),
              lambda: _shard(_gzip(ZEROS) * GIB)),
    "shard-within-bounds": (ShardingCodec((2, 2), codecs_of("bytes", "gzip"), codecs_of("bytes")),
                            lambda: _shard(_gzip(bytes(5000)))),
    "shard-of-zstd": (ShardingCodec((2, 2), codecs_of("bytes", "zstd"), codecs_of("bytes")),
                      lambda: _shard(zstandard.ZstdCompressor(level=1).compress(bytes(2**30)))),
}  # fmt: skip


def _shard(inner: bytes) -> bytes:
    """A shard of four inner chunks that are all at the same place."""
    return inner + struct.pack("<QQ", 0, len(inner)) * 4


CLAIMS: dict[str, tuple[Any, Callable[[], bytes]]] = {
    "zstd": ("zstd", lambda: _claiming_zstd(2**31 - 1)),
    "zstd-of-16-mib": ("zstd", lambda: zstandard.ZstdCompressor(level=1).compress(ZEROS)),
    "lz4": ("numcodecs.lz4", lambda: struct.pack("<I", 2**31 - 1) + bytes(100)),
    "lz4-longer": ("numcodecs.lz4", lambda: struct.pack("<I", 255 * MIB) + bytes(MIB + 100)),
    "blosc": ("blosc", lambda: struct.pack("<BBBBIII", 2, 1, 0x21, 1, 2**31 - 1, 2**20, 40) + bytes(24)),
    "blosc-snappy": ("blosc", lambda: _claiming_snappy(2**31 - 1)),
    "blosc-snappy-blocks": ("blosc", lambda: _claiming_snappy(2**7)),
    "vlen": (None, lambda: struct.pack("<II", 16, 2**31 - 1) + b"x" * 100),
    "vlen-lengths": (None, lambda: struct.pack("<I", 16) + struct.pack("<I", 2**32 - 1) * 16),
    "vlen-number": (None, lambda: struct.pack("<I", 2**32 - 1) + bytes(64)),
}
"""What claims to be large where nothing but 2 GiB bounds a chunk of text."""


def _claiming_snappy(blocksize: int) -> bytes:
    """Blosc with one block of snappy, which claims to hold 2 GiB."""
    return struct.pack("<BBBBIIIII", 2, 1, 0x50, 1, 2**31 - 1, blocksize, 40, 20, 16) + bytes(16)


def _claiming_zstd(size: int) -> bytes:
    """A frame that claims to hold ``size`` bytes, and holds 100 of them."""
    header = b"\x28\xb5\x2f\xfd" + bytes([0b11000000]) + bytes([0x58]) + struct.pack("<Q", size)
    return header + (100 << 3 | 1).to_bytes(3, "little") + bytes(100)


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


@pytest.mark.slow
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
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path), json.dumps(list(cases))],
        capture_output=True, text=True, timeout=300, env={**os.environ, "MALLOC_ARENA_MAX": "2"},
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    *lines, control = [json.loads(line) for line in child.stdout.splitlines()]
    assert control[2] > 8 * 1024  # Memory that is used is seen.
    assert [line[0] for line in lines] == list(cases)
    for name, found, grown in lines:
        for outcome in found:
            assert outcome[:3] == ["ChunkDecodeError", f"{name}/c/0/0", [0, 0]], (name, outcome)
            assert outcome[3] is not None, (name, outcome)
        assert grown < 64 * 1024, f"{name}: {grown} KiB"


NONE = 2**64 - 1
INNER = 4  # Elements of an inner chunk; a shard has four of them.


def sharded(location: str, inner: str | None) -> tuple[xzarr3.MemoryStore, str]:
    """A store with an array of one shard, without a checksum of the index, and the key of the shard."""
    codecs = codecs_of("bytes", *([inner] if inner else []))
    store = xzarr3.MemoryStore()
    codec = ShardingCodec((INNER,), codecs, codecs_of("bytes"), location)
    array = xzarr3.create_array(
        store, "a", shape=(16,), chunks=(16,), dtype="int16", serializer=codec, compressors=None
    )
    array[...] = np.arange(100, 116)
    return store, "a/c/0"


def expected_of(value: bytes, entries: list[tuple[int, int]], inner: str | None) -> list[Any]:
    """What numpy makes of each inner chunk: its elements, or None if the entry is not valid."""
    parts: list[Any] = []
    for offset, size in entries:
        part = value[offset : offset + size]
        if (offset, size) == (NONE, NONE):
            parts.append([0] * INNER)
        elif offset == NONE or len(part) != size:
            parts.append(None)
        else:
            data = part
            if inner:
                member = zlib.decompressobj(31)
                data, error = attempt(lambda m=member, p=part: m.decompress(p), zlib.error)  # type: ignore[misc]
                if error or not member.eof or member.unused_data:
                    data = b""
            parts.append(np.frombuffer(data, "<i2").tolist() if len(data) == 2 * INNER else None)
    return parts


def check_shard(location: str, inner: str | None, entries: list[tuple[int, int]], gap: int = 0) -> None:
    """Every way to read a shard gives what its index says, or an error."""
    store, key = sharded(location, inner)
    original = bytes(store.get(key))
    index = struct.pack("<8Q", *itertools.chain(*entries))
    body = original[64:] if location == "start" else original[:-64]
    value = index + bytes(gap) + body if location == "start" else body + bytes(gap) + index
    store.set(key, value)
    array = xzarr3.open_array(store, "a")
    parts = expected_of(value, entries, inner)
    selections: list[Any] = [..., slice(None), *range(16), *(slice(at, at + 6) for at in range(10))]
    for selection in selections:
        chosen = np.arange(16)[selection]
        needed = [parts[int(at) // INNER] for at in np.ravel(chosen)]
        found, error = attempt(lambda s=selection: array.get(s), ChunkDecodeError)  # type: ignore[misc]
        if error is None:
            assert None not in needed, (selection, entries)
            elements = [part[at % INNER] for part, at in zip(needed, np.ravel(chosen).tolist(), strict=True)]
            assert np.ravel(found).tolist() == elements, (selection, entries)
        else:
            # Reading the whole shard may refuse a part that is not needed.
            assert None in parts, (selection, entries, str(error))
            assert isinstance(error, ChunkDecodeError)
            assert (error.key, error.chunk) == (key, (0,))
            assert error.codec is not None


def entries_of(location: str, inner: str | None) -> list[tuple[int, int]]:
    """The index of the shard as it was written."""
    store, key = sharded(location, inner)
    value = bytes(store.get(key))
    numbers = struct.unpack("<8Q", value[:64] if location == "start" else value[-64:])
    return list(zip(numbers[::2], numbers[1::2], strict=True))


@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("inner", [None, "gzip"])
def test_shard_index(location: str, inner: str | None) -> None:
    good = entries_of(location, inner)
    (first, size), end = good[0], sum(good[-1])
    strange: list[tuple[int, int]] = [
        (first, size), (first + 1, size), (first, size - 1), (first, size + 1), (first, 0), (first, 2**20),
        (0, size), (0, 64), (0, 0), (end, 0), (end, size), (end - size + 1, size), (end - 1, size),
        (end + 8, size), (end + 64, 0), (end + 63, 1), (end + 65, 0), (2**31, size), (2**32, size),
        (2**62, size), (2**63 - 1, size), (2**63, size), (2**64 - 2, size), (2**64 - size, size),
        (NONE, size), (NONE, 0), (first, NONE), (0, NONE), (first, 2**63), (first, 2**64 - first),
        (NONE, NONE), (NONE - 1, NONE), (NONE, NONE - 1),
    ]  # fmt: skip
    for number, length in strange:
        entry = (number % 2**64, length % 2**64)
        check_shard(location, inner, [entry, *good[1:]])
        check_shard(location, inner, [*good[:2], entry, good[3]])
        check_shard(location, inner, [entry] * 4)
    check_shard(location, inner, good[::-1])


@pytest.mark.slow
@pytest.mark.parametrize("location", ["start", "end"])
@settings(max_examples=100, deadline=None)
@given(data=st.data(), inner=st.sampled_from([None, "gzip"]), gap=st.sampled_from([0, 1, 100]))
def test_any_shard_index(location: str, data: st.DataObject, inner: str | None, gap: int) -> None:
    good = entries_of(location, inner)
    near = st.sampled_from([number for entry in good for number in entry]).flatmap(
        lambda number: st.integers(-2, 2).map(lambda by: (number + by) % 2**64)
    )
    number = st.one_of(near, st.integers(0, 200), st.integers(0, NONE), st.just(NONE))
    entry = st.one_of(st.sampled_from(good), st.tuples(number, number), st.just((NONE, NONE)))
    check_shard(location, inner, data.draw(st.lists(entry, min_size=4, max_size=4)), gap)


def test_inner_chunks_that_overlap() -> None:
    # Nothing forbids that inner chunks share their bytes; each is decoded for itself, to its own size.
    good = entries_of("end", "gzip")
    check_shard("end", "gzip", [good[0]] * 4)
    check_shard("end", "gzip", [good[0], good[0], good[2], (NONE, NONE)])
