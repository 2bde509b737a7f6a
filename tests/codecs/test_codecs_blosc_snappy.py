"""Snappy inside blosc: containers made by hand and by other libraries, and bytes that are none."""

from __future__ import annotations

import itertools
import json
import struct
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
from _chains import refused_within
from _peers import LIBRARIES, LITTLE, Library, Request, Xzarr3, codec, sharding
from _strategies import attempt, same_bits
from hypothesis import example, given, settings
from hypothesis import strategies as st

import xzarr3
from xzarr3 import ChunkDecodeError, ChunkEncodeError
from xzarr3.codecs import BloscCodec, _blosc_snappy, parse_codec
from xzarr3.codecs import blosc as blosc_module

cramjam = pytest.importorskip("cramjam")

SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")
FLAGS = dict(zip(SHUFFLES, (0, 1, 4), strict=True))
SNAPPY, COPIED, NOT_SPLIT = 2 << 5, 2, 16
HEADER = 16
LETTERS = b"abcd" * 32
STREAM = bytes.fromhex("8001 0c 61626364 fe0400 ee0400")
"""``LETTERS`` in snappy: their number, four of them, and copies of 64 and 60 bytes from four bytes before."""


WHOLE = SNAPPY | NOT_SPLIT


def container(
    streams: list[list[bytes]], nbytes: int, blocksize: int, typesize: int = 1, flags: int = SNAPPY,
    *, version: int = 2, inner: int = 1,
) -> bytes:  # fmt: skip
    """A container with these streams in each of its blocks."""
    blocks = [b"".join(struct.pack("<I", len(s)) + s for s in block) for block in streams]
    begins = itertools.accumulate(map(len, blocks[:-1]), initial=HEADER + 4 * len(blocks))
    body = struct.pack(f"<{len(blocks)}I", *begins) + b"".join(blocks)
    head = struct.pack("<BBBB", version, inner, flags, typesize)
    return head + struct.pack("<III", nbytes, blocksize, HEADER + len(body)) + body


def one_block(stream: bytes, size: int, *, blocksize: int | None = None, **fields: Any) -> bytes:
    """A container of one block of one stream, which is not split."""
    given = {"flags": WHOLE, **fields}
    return container([[stream]], size, size if blocksize is None else blocksize, **given)


@lru_cache
def library(name: str) -> Library:
    return LIBRARIES[name]()


@pytest.fixture(params=["tensorstore", "zarrs"])
def peer(request: pytest.FixtureRequest) -> Library:
    try:
        return library(request.param)
    except ImportError as error:
        pytest.skip(str(error))


def snappy(shuffle: str, typesize: int, blocksize: int = 0) -> dict[str, Any]:
    given = {"shuffle": shuffle, "typesize": typesize, "blocksize": blocksize}
    return codec("blosc", cname="snappy", clevel=5, **given)


def samples(size: int) -> dict[str, bytes]:
    """Bytes of all kinds, none of which are those of a chunk that is not stored."""
    noise = np.random.default_rng(size).integers(0, 256, size, dtype="uint8")
    half = noise.copy()
    half[: size // 2] = 1
    return {
        "smooth": (1 + np.arange(size // 2 + 1, dtype="uint16") // 7).tobytes()[:size],
        "noise": noise.tobytes(),
        "half noise": half.tobytes(),
        "constant": b"\1" * size,
    }


def planes(data: bytes, typesize: int) -> bytes:
    """The elements whose bytes were regrouped to ``data``, one by one."""
    number = len(data) // typesize
    whole = b"".join(data[i : number * typesize : number] for i in range(number))
    return whole + data[number * typesize :]


def bit_planes(data: bytes, typesize: int) -> bytes:
    """The elements whose bits were regrouped to ``data``, one by one."""
    number = len(data) // typesize
    if number % 8:
        return data
    octets = bytearray(data)
    for element, byte in itertools.product(range(number), range(typesize)):
        at = [((8 * byte + bit) * number + element) for bit in range(8)]
        octets[element * typesize + byte] = sum((data[n // 8] >> n % 8 & 1) << b for b, n in enumerate(at))
    return bytes(octets)


ORIGINAL = {"noshuffle": lambda data, _: data, "shuffle": planes, "bitshuffle": bit_planes}


# Made by hand


def test_a_container_byte_by_byte() -> None:
    data = bytes.fromhex("02 01 50 01  80000000 80000000 25000000  14000000  0d000000") + STREAM
    assert data == one_block(STREAM, 128)
    for compressor in ("blosc", "numcodecs.blosc"):
        assert parse_codec(compressor).decode(data, 128) == LETTERS  # type: ignore[union-attr]
    out = bytearray(128)
    assert BloscCodec().decode_into(data, memoryview(out))
    assert out == LETTERS


@pytest.mark.parametrize("typesize", [1, 2, 3, 4, 8, 16, 17, 128, 255])
@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_shuffles(shuffle: str, typesize: int) -> None:
    noise = samples(1003)["noise"]
    for size in (128, 130, 8 * typesize, 16 * typesize + 1, 1000, 1003):
        for stored, block in ((STREAM, LETTERS), (noise[:size], noise[:size])):
            data = one_block(stored, len(block), typesize=typesize, flags=WHOLE | FLAGS[shuffle])
            assert BloscCodec().decode(data, len(block)) == ORIGINAL[shuffle](block, typesize)


def test_regrouped_bits_one_by_one() -> None:
    """Of eight elements of two bytes, one has one bit: bit 3 of the second byte of the sixth element."""
    bits = bytearray(16)
    bits[8 + 3] = 1 << 5
    data = container([[bytes(bits)]], 16, 16, 2, WHOLE | 4)
    expected = np.zeros(8, "<u2")
    expected[5] = 1 << 11
    assert BloscCodec().decode(data, 16) == expected.tobytes()


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_blocks_that_are_split_and_a_shorter_last_one_that_is_not(shuffle: str) -> None:
    noise = samples(138)["noise"]
    data = container(
        [[STREAM, noise[:128]], [STREAM, STREAM], [noise[128:]]], 522, 256, 2, SNAPPY | FLAGS[shuffle]
    )
    expected = [LETTERS + noise[:128], 2 * LETTERS, noise[128:]]
    assert BloscCodec().decode(data, 522) == b"".join(ORIGINAL[shuffle](block, 2) for block in expected)


@pytest.mark.parametrize(
    ("typesize", "size"), [(2, 254), (3, 381), (16, 2032), (17, 17 * 128), (255, 255 * 128)]
)
def test_blocks_that_are_not_split_whatever_the_flag_says(typesize: int, size: int) -> None:
    """Large elements, or fewer than 128 of them in a block: older versions have no flag that tells it."""
    values = samples(size)["smooth"]
    stream = bytes(cramjam.snappy.compress_raw(values))
    for flags in (SNAPPY, SNAPPY | NOT_SPLIT):
        assert BloscCodec().decode(container([[stream]], size, size, typesize, flags), size) == values


def test_blocks_in_any_order() -> None:
    """Threads that encode write them as they come."""
    noise = samples(128)["noise"]
    data = bytearray(container([[STREAM], [noise], [noise[::-1]]], 384, 128, flags=WHOLE))
    first, second, third = struct.unpack_from("<3I", data, HEADER)
    struct.pack_into("<3I", data, HEADER, third, first, second)
    assert BloscCodec().decode(bytes(data), 384) == noise[::-1] + LETTERS + noise


def test_what_is_not_compressed() -> None:
    data = bytes.fromhex("02 01 52 01  03000000 03000000 13000000") + b"abc"
    assert BloscCodec().decode(data, 3) == b"abc"
    assert BloscCodec("snappy", 5, "noshuffle", 1).encode(b"abc") == data
    for shuffle, clevel in itertools.product(SHUFFLES, (0, 9)):
        for values in (b"", b"a", *samples(127).values(), samples(5000)["noise"]):
            stored = bytes(BloscCodec("snappy", clevel, shuffle, 2).encode(values))
            assert stored[HEADER:] == values
            assert stored[2] == WHOLE | COPIED | FLAGS[shuffle]
            assert BloscCodec().decode(stored, len(values)) == values
    stored = BloscCodec("snappy", 0, "shuffle", 2).encode(LETTERS)
    assert len(stored) == HEADER + len(LETTERS)


# Against others


@pytest.mark.slow
@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("size", [1, 10, 127, 128, 129, 1000, 4096, 5003, 40005, 300001])
def test_others_read_ours_and_we_theirs(size: int, shuffle: str, peer: Library, tmp_path: Path) -> None:
    # c-blosc as the others have it splits blocks, and copies bits of elements whose number is not one of 8.
    compressed = 0
    counter = itertools.count()
    for typesize, blocksize in itertools.product((1, 2, 3, 8, 16, 17, 255), (0, 1, 500, 4096)):
        if (size > 10000 and blocksize in (1, 500)) or (size in (10, 127) and blocksize):
            continue
        for data in samples(size).values():
            values = np.frombuffer(data, "uint8")
            request = Request(
                shape=(size,), chunks=(size,), dtype="uint8",
                codecs=(LITTLE, snappy(shuffle, typesize, blocksize=blocksize)),
            )  # fmt: skip
            theirs, ours = tmp_path / f"theirs{next(counter)}", tmp_path / f"ours{next(counter)}"
            peer.save(theirs, request, values)
            stored = (theirs / "c/0").read_bytes()
            assert stored[2] >> 5 == 2
            compressed += not stored[2] & COPIED
            assert same_bits(xzarr3.open_array(theirs)[...], values)
            Xzarr3().save(ours, request, values)
            stored = (ours / "c/0").read_bytes()
            assert len(stored) <= size + HEADER
            compressed += not stored[2] & COPIED
            assert same_bits(peer.read(ours), values)
            assert same_bits(xzarr3.open_array(ours)[...], values)
    assert (compressed > 0) == (size >= 128)


@pytest.mark.parametrize(
    ("blocksize", "typesize", "found"),
    [(1, 1, 128), (1, 100, 100), (1, 200, 128), (500, 8, 496), (0, 3, 2**17 - 2)],
)
def test_no_block_is_smaller_than_others_make_them(blocksize: int, typesize: int, found: int) -> None:
    stored = bytes(BloscCodec("snappy", 5, "noshuffle", typesize, blocksize).encode(bytes(2**18)))
    assert struct.unpack_from("<I", stored, 8) == (found,)
    assert not stored[2] & COPIED


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_what_compresses_is_compressed(shuffle: str) -> None:
    values = np.repeat(np.random.default_rng(0).normal(size=1000), 40)
    for blocksize in (0, 1000, 2**20):
        stored = bytes(BloscCodec("snappy", 5, shuffle, 8, blocksize).encode(values.tobytes()))
        assert len(stored) < values.nbytes / (2 if blocksize == 1000 else 4), blocksize
    # Bits of elements whose number is none of 8 are regrouped too, where c-blosc would leave them.
    few = np.arange(1001, dtype="<i8") % 16
    stored = bytes(BloscCodec("snappy", 5, "bitshuffle", 8).encode(few.tobytes()))
    assert struct.unpack_from("<I", stored, 8) == (8000,)
    assert len(stored) < 700
    assert BloscCodec().decode(stored, few.nbytes) == few.tobytes()
    # One large chunk is decoded in place.
    options = {"chunks": values.shape, "compressors": BloscCodec("snappy", 5, shuffle)}
    array = xzarr3.create_array(xzarr3.MemoryStore(), data=values, **options)
    assert same_bits(xzarr3.open_array(array.store)[...], values)


@settings(max_examples=300)
@given(
    st.builds(
        BloscCodec, st.just("snappy"), st.integers(0, 9), st.sampled_from([None, *SHUFFLES]),
        st.one_of(st.none(), st.integers(1, 300)),
        st.one_of(st.just(0), st.integers(1, 5000), st.just(2**31 - 1)),
    ),
    st.binary(min_size=1, max_size=40), st.integers(0, 500), st.binary(max_size=300),
)  # fmt: skip
def test_any_bytes_round_trip(chosen: BloscCodec, pattern: bytes, times: int, rest: bytes) -> None:
    values = pattern * times + rest
    stored = chosen.encode(values)
    assert len(stored) <= len(values) + HEADER == chosen.max_encoded_size(len(values))
    assert chosen.decode(stored, len(values)) == values
    out = bytearray(len(values))
    assert chosen.decode_into(stored, memoryview(out))
    assert out == values
    for kind in (bytearray, memoryview):
        assert chosen.encode(kind(values)) == stored
        assert chosen.decode(kind(stored), len(values)) == values


# Arrays


@pytest.mark.parametrize("dtype", ["bool", "int16", "float32", "float64", "complex128"])
@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("sharded", [False, True], ids=["chunks", "shards"])
def test_arrays(sharded: bool, shuffle: str, dtype: str, peer: Library, tmp_path: Path) -> None:
    inner = (LITTLE, snappy(shuffle, np.dtype(dtype).itemsize))
    codecs = (sharding((32, 16), *inner),) if sharded else inner
    request = Request(shape=(150, 90), chunks=(64, 48), dtype=dtype, codecs=codecs)
    values = np.add.outer(1 + np.arange(150) // 20, np.arange(90) // 8).astype(dtype)
    peer.save(tmp_path / "theirs", request, values)
    Xzarr3().save(tmp_path / "ours", request, values)
    array = xzarr3.open_array(tmp_path / "theirs")
    assert same_bits(array[...], values)
    assert same_bits(array[33:70:3, 5], values[33:70:3, 5])
    assert same_bits(peer.read(tmp_path / "ours"), values)
    ours = xzarr3.open_array(tmp_path / "ours", mode="r+")
    ours[40:80, 17:50] = values[:40, :33]
    assert same_bits(peer.read(tmp_path / "ours")[40:80, 17:50], values[:40, :33])


@pytest.mark.parametrize("shuffle", [-1, 0, 1, 2])
def test_version_2(shuffle: int, tmp_path: Path) -> None:
    values = np.arange(30000, dtype="int32").reshape(100, 300) // 50
    compressor = {"id": "blosc", "cname": "snappy", "clevel": 5, "shuffle": shuffle, "blocksize": 0}
    options = {"chunks": (40, 300), "zarr_format": 2, "compressors": [compressor]}
    xzarr3.create_array(tmp_path, data=values, **options)
    stored = (tmp_path / "0.0").read_bytes()
    assert stored[2] >> 5 == 2
    assert not stored[2] & COPIED
    assert json.loads((tmp_path / ".zarray").read_text())["compressor"]["cname"] == "snappy"
    assert same_bits(xzarr3.open_array(tmp_path)[...], values)
    tensorstore = pytest.importorskip("tensorstore")
    spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": str(tmp_path)}}
    assert same_bits(tensorstore.open(spec).result().read().result(), values)
    named = codec("numcodecs.blosc", cname="snappy", shuffle=2)
    array = xzarr3.create_array(xzarr3.MemoryStore(), data=values, compressors=[named])
    assert same_bits(xzarr3.open_array(array.store)[...], values)


# The library


def array_with(cname: str) -> xzarr3.Array:
    given = BloscCodec(cname, 5, "shuffle")
    return xzarr3.create_array(xzarr3.MemoryStore(), shape=1000, dtype="int32", compressors=given)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blosc_module, "_lacks_snappy", lambda: True)
    array = array_with("snappy")
    array[...] = 1
    monkeypatch.setitem(sys.modules, "cramjam", None)
    again = xzarr3.open_array(array.store, mode="r+")
    assert again.shape == (1000,)
    with pytest.raises(ChunkDecodeError, match=r"'cramjam'.*xzarr3\[codecs\]") as caught:
        again[...]
    assert (caught.value.key, caught.value.codec) == ("c/0", "blosc")
    assert isinstance(caught.value.__cause__, ImportError)
    with pytest.raises(ChunkEncodeError, match=r"'cramjam'.*xzarr3\[codecs\]"):
        again[...] = 2
    other = array_with("lz4")
    other[...] = 3
    assert (other[...] == 3).all()
    values = np.random.default_rng(0).integers(-(2**31), 2**31, 10, dtype="int32")
    small = xzarr3.create_array(xzarr3.MemoryStore(), data=values, compressors=BloscCodec("snappy"))
    assert same_bits(small[...], values)  # What is copied needs no library.


def test_numcodecs_where_it_has_snappy(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []

    def compress(data: Any, cname: bytes, *rest: Any) -> bytes:
        called.append(cname)
        return bytes(original(data, b"lz4", *rest))

    original = numcodecs.blosc.compress
    monkeypatch.setattr(numcodecs.blosc, "compress", compress)
    monkeypatch.setattr(numcodecs.blosc, "list_compressors", lambda: ["lz4", "snappy"])
    array = array_with("snappy")
    array[...] = 1
    assert called == [b"snappy"]
    assert (array[...] == 1).all()


@pytest.mark.slow
@pytest.mark.parametrize("cname", ["lz4", "snappy"])
def test_the_library_is_imported_for_snappy_alone(cname: str) -> None:
    code = (
        "import sys, numpy, xzarr3; from xzarr3.codecs import BloscCodec; "
        f"codec = BloscCodec({cname!r}); "
        "a = xzarr3.create_array(xzarr3.MemoryStore(), data=numpy.ones(1000), compressors=codec); "
        "assert (a[...] == 1).all(); print('cramjam' in sys.modules)"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == str(cname == "snappy" and blosc_module._lacks_snappy())


# Bytes that nobody's codec wrote


def refused(data: bytes, limit: int, match: str) -> None:
    with pytest.raises(ChunkDecodeError, match=match) as caught:
        _blosc_snappy.decompress(data, "blosc")
    assert caught.value.codec == "blosc"
    for compressor in (BloscCodec(), parse_codec("numcodecs.blosc")):
        with pytest.raises(ChunkDecodeError):
            compressor.decode(data, limit)  # type: ignore[union-attr]
        assert not compressor.decode_into(data, memoryview(bytearray(limit)))  # type: ignore[union-attr]


BAD: dict[str, tuple[bytes, str]] = {
    "version": (one_block(STREAM, 128, version=1), "version 1"),
    "version of blosc 2": (one_block(STREAM, 128, version=4), "version 4"),
    "version of snappy": (one_block(STREAM, 128, inner=2), "version 2 of snappy"),
    "reserved flag": (one_block(STREAM, 128, flags=WHOLE | 8), "0x58"),
    "no type size": (one_block(STREAM, 128, typesize=0), "elements of 0"),
    "no block size": (one_block(STREAM, 128, blocksize=0), "blocks of 0"),
    "larger blocks": (one_block(STREAM, 128, blocksize=129), "blocks of 129"),
    "small blocks": (container([[b"a" * 63]] * 3, 189, 63, flags=WHOLE), "blocks of 63"),
    "many small blocks": (one_block(STREAM, 2**31 - 1, blocksize=1), "blocks of 1$"),
    "many blocks": (one_block(STREAM, 2**31 - 1, blocksize=64), "cannot hold 33554432 blocks"),
    "two blocks, one there": (one_block(STREAM, 129, blocksize=128), "different places from 24"),
    "too much of one block": (one_block(STREAM, 2**31 - 1), "cannot stand for"),
    "copied and shorter": (one_block(STREAM, 128, flags=WHOLE | COPIED), "as they are, not 128"),
    "copied and longer": (one_block(STREAM, 20, flags=WHOLE | COPIED), "as they are, not 20"),
    "cut off": (one_block(STREAM[:-1], 128), "snappy"),
    "empty stream": (container([[b"", STREAM]], 128, 128, flags=WHOLE), "claims 0 bytes"),
    "no second stream": (container([[STREAM]], 256, 256, 2), "block has 0 left"),
    "split unevenly": (container([[STREAM]], 259, 259, 2), "cannot be split in 2"),
    "decodes to more": (one_block(STREAM, 127), "decodes to 128 bytes, 127 expected"),
    "decodes to less": (one_block(STREAM, 129), "decodes to 128 bytes, 129 expected"),
    "claims 4 GiB": (one_block(b"\xff" * 4 + b"\x0f\0", 128), "to 4294967295 bytes"),
    "no length": (one_block(b"\xff" * 20, 128), "snappy"),
    "more than it says": (one_block(b"\x80\x01" + STREAM[2:] * 2, 128), "snappy"),
    "less than it says": (one_block(STREAM[:-3], 128), "snappy"),
    "copy from before": (one_block(b"\x80\x01\xfe\4\0", 128), "snappy"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad(name: str) -> None:
    data, match = BAD[name]
    refused(data, min(int.from_bytes(data[4:8], "little"), 4096), match)
    # What claims 2 GiB takes no memory.
    refused_within(2**18, lambda: BloscCodec().decode(data, 2**31 - 1))


def test_larger_than_the_chunk() -> None:
    with pytest.raises(ChunkDecodeError, match="128 bytes; at most 127"):
        BloscCodec().decode(one_block(STREAM, 128), 127)
    assert not BloscCodec().decode_into(b"\2\1\x50\1" + bytes(4) + b"\0\0\0\0" + b"\x0d", memoryview(b""))


@pytest.mark.parametrize("offset", [0, 16, 19, 21, 36, 37, 2**31 - 1, 2**32 - 1])
def test_bad_offset(offset: int) -> None:
    data = bytearray(one_block(STREAM, 128))
    struct.pack_into("<I", data, HEADER, offset)
    refused(bytes(data), 128, "blocks do not begin|a stream claims")


def test_blocks_that_share_bytes() -> None:
    # Many blocks that are one and the same would make much of little.
    good = container([[STREAM], [STREAM]], 256, 128, flags=WHOLE)
    begin, other = struct.unpack_from("<2I", good, HEADER)
    assert BloscCodec().decode(good, 256) == 2 * LETTERS
    for wrong in (begin, begin + 1, other - 1, other + 1):
        data = bytearray(good)
        struct.pack_into("<I", data, HEADER + 4, wrong)
        refused(bytes(data), 256, "not valid blosc data with snappy")


def check_any(data: bytes, limit: int) -> None:
    """Whatever the bytes are, they are decoded to no more than that, or refused with the one error."""
    value, error = attempt(lambda: BloscCodec().decode(data, limit), ChunkDecodeError)
    size = int.from_bytes(data[4:8], "little")
    out = bytearray(min(size, limit))
    done = BloscCodec().decode_into(data, memoryview(out))
    if error is None:
        assert len(value) == size <= limit
        assert done or size == 0  # Nothing is there to decode.
        assert out == value
    else:
        assert error.codec == "blosc"
        assert not done


@lru_cache
def good_containers() -> tuple[bytes, ...]:
    found = [
        bytes(BloscCodec("snappy", 5, shuffle, typesize, 256).encode(samples(1003)["smooth"]))
        for shuffle, typesize in itertools.product(SHUFFLES, (1, 2, 8))
    ]
    assert all(not data[2] & COPIED for data in found if data[2] & 5)
    for flags in FLAGS.values():
        found.append(container([[STREAM, STREAM], [STREAM, STREAM], [b"rest"]], 516, 256, 2, SNAPPY | flags))
    return tuple(found)


@pytest.mark.slow
@settings(max_examples=1500)
@given(
    st.integers(0, 11),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(1, 255)), max_size=4),
    st.one_of(st.none(), st.integers(0, 2000)),
    st.booleans(),
)
def test_damaged(index: int, changes: list[tuple[int, int]], cut: int | None, adjusted: bool) -> None:
    data = bytearray(good_containers()[index])
    for at, bits in changes:
        data[at % len(data)] ^= bits
    del data[len(data) if cut is None else cut :]
    if adjusted and len(data) >= HEADER:  # As otherwise nothing but the size is looked at.
        struct.pack_into("<I", data, 12, len(data))
    check_any(bytes(data), 4096)


@pytest.mark.parametrize("index", range(12))
def test_each_bit_of_the_head_and_each_length(index: int) -> None:
    good = good_containers()[index]
    for at, bit in itertools.product(range(min(len(good), 60)), range(8)):
        data = bytearray(good)
        data[at] ^= 1 << bit
        check_any(bytes(data), 4096)
    for size in range(HEADER, len(good), 3):
        data = bytearray(good[:size])
        check_any(bytes(data), 4096)
        struct.pack_into("<I", data, 12, size)
        check_any(bytes(data), 4096)


@pytest.mark.slow
@settings(max_examples=1000)
@given(
    st.sampled_from([0, 1, 2, 4, 5, 8, 16, 17, 18, 20, 21]),
    st.integers(0, 255),
    st.one_of(st.integers(0, 300), st.integers(0, 2**32 - 1)),
    st.one_of(st.integers(0, 300), st.integers(0, 2**32 - 1)),
    st.binary(max_size=200),
    st.lists(st.integers(0, 60), max_size=4),
)
@example(0, 1, 0, 0, b"", [])
def test_any_header(
    flags: int, typesize: int, nbytes: int, blocksize: int, body: bytes, table: list[int]
) -> None:
    body = struct.pack(f"<{len(table)}I", *table) + body
    header = struct.pack("<BBBBIII", 2, 1, SNAPPY | flags, typesize, nbytes, blocksize, HEADER + len(body))
    check_any(header + body, 4096)
