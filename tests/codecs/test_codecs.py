"""Codecs: bytes made by hand or by other libraries, and bytes that are corrupt, truncated or too large."""

from __future__ import annotations

import gzip
import itertools
import json
import pickle
import struct
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numcodecs
import numpy as np
import pytest
import zstandard
from _strategies import (
    LITTLE,
    NUMERIC,
    array_document,
    attempt,
    chunk_document,
    from_bits,
    native,
    same_bits,
    stored,
)
from _things import Thing
from hypothesis import given, settings
from hypothesis import strategies as st

import xzarr3
from xzarr3 import ChunkDecodeError, ChunkEncodeError, MetadataError
from xzarr3._types import Buffer
from xzarr3.codecs import (
    BloscCodec,
    BytesBytesCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    ShardingCodec,
    TransposeCodec,
    ZstdCodec,
    codec_from_json,
    codec_names,
    parse_codec,
    register_codec,
    registry,
)
from xzarr3.codecs.base import ChunkSpec
from xzarr3.codecs.registry import codecs_from_json
from xzarr3.dtypes import parse_dtype

BIG = {"name": "bytes", "configuration": {"endian": "big"}}
CRC = {"name": "crc32c"}
GZIP = {"name": "gzip", "configuration": {"level": 5}}
ZSTD = {"name": "zstd", "configuration": {"level": 3, "checksum": False}}
CHECKED = {"name": "zstd", "configuration": {"level": 3, "checksum": True}}
BLOSC = {
    "name": "blosc",
    "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 2, "blocksize": 0},
}
SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")
CNAMES = ("lz4", "lz4hc", "blosclz", "zlib", "zstd")
EMPTY = (2**64 - 1, 2**64 - 1)


def crc32c(data: bytes) -> int:
    """CRC-32C, bit by bit: slow, and made from nothing but the polynomial."""
    remainder = 0xFFFFFFFF
    for octet in data:
        remainder ^= octet
        for _ in range(8):
            remainder = remainder >> 1 ^ (0x82F63B78 if remainder & 1 else 0)
    return remainder ^ 0xFFFFFFFF


def checked(data: bytes) -> bytes:
    return data + struct.pack("<I", crc32c(data))


def shard_index(entries: list[tuple[int, int]], order: str = "<", check: bool = True) -> bytes:
    data = b"".join(struct.pack(f"{order}QQ", *entry) for entry in entries)
    return checked(data) if check else data


def sharding(
    chunk_shape: list[int], *codecs: Any, index: Any = None, location: str = "end"
) -> dict[str, Any]:
    return {
        "name": "sharding_indexed",
        "configuration": {
            "chunk_shape": chunk_shape,
            "codecs": list(codecs) or [LITTLE],
            "index_codecs": [LITTLE, CRC] if index is None else index,
            "index_location": location,
        },
    }


def read_chunk(codecs: list[Any], shape: tuple[int, ...], data: bytes, dtype: str = "int16") -> Any:
    """An array that is one chunk, read from these bytes."""
    array = stored(chunk_document(dtype, shape, codecs), {array_key(shape): data})
    return array.get()


def array_key(shape: tuple[int, ...]) -> str:
    return "/".join(["c", *("0" for _ in shape)])


def written(array: xzarr3.Array) -> bytes:
    """The stored bytes of an array that is one chunk."""
    value = array.store.get(array_key(array.shape))
    assert value is not None
    return bytes(value)


def refused(call: Callable[[], Any], codec: str, chunk: tuple[int, ...], key: str) -> ChunkDecodeError:
    """The error of reading a bad chunk, after a check that it says what it has to say."""
    with pytest.raises(ChunkDecodeError) as caught:
        call()
    error = caught.value
    message = str(error)
    assert error.codec == codec
    assert error.chunk == chunk
    assert error.key == key
    assert error.reason
    for part in (codec, str(chunk), key, error.reason):
        assert part in message
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.chunk, again.key) == (message, chunk, key)
    # The cause travels along where tracebacks do, as they do between dask's workers.
    assert type(pickle.loads(pickle.dumps(error.__cause__))) is type(error.__cause__)
    assert isinstance(error, ValueError)
    return error


# bytes


@pytest.mark.parametrize("endian", ["little", "big"])
@pytest.mark.parametrize(
    ("dtype", "letter", "values"),
    [
        ("bool", "?", [True, False, True]),
        ("int8", "b", [-128, 0, 127]),
        ("uint8", "B", [0, 1, 255]),
        ("int16", "h", [-2, 258, 32767]),
        ("uint16", "H", [1, 258, 65535]),
        ("int32", "i", [-2, 16909060, 2**31 - 1]),
        ("uint32", "I", [1, 16909060, 2**32 - 1]),
        ("int64", "q", [-2, 72623859790382856, 2**63 - 1]),
        ("uint64", "Q", [1, 72623859790382856, 2**64 - 1]),
        ("float16", "e", [-0.0, 1.5, 6e-8]),
        ("float32", "f", [-0.0, 1.5, 1e-45]),
        ("float64", "d", [-0.0, 1.5, 5e-324]),
    ],
)
def test_bytes_of_each_type(dtype: str, letter: str, values: list[Any], endian: str) -> None:
    data = struct.pack((">" if endian == "big" else "<") + 3 * letter, *values)
    codec = {"name": "bytes", "configuration": {"endian": endian}}
    found = read_chunk([codec], (3,), data, dtype)
    assert same_bits(found, np.array(values, dtype))
    assert found.dtype.isnative
    array = stored(chunk_document(dtype, (3,), [codec]))
    array[...] = np.array(values, dtype)
    assert written(array) == data


def test_bytes_of_complex_numbers() -> None:
    data = struct.pack(">4f", 1.5, -0.0, np.inf, 2.5)
    document = chunk_document("complex64", (2,), [BIG], fill_value=[0, 0])
    array = stored(document, {"c/0": data})
    assert same_bits(array[...], np.array([1.5, -0.0, np.inf, 2.5], "f4").view("c8"))
    array[...] = array[...]
    assert written(array) == data


@pytest.mark.parametrize("codec", [LITTLE, BIG, "bytes"], ids=str)
def test_raw_bits_have_no_byte_order(codec: Any) -> None:
    document = chunk_document("r24", (2,), [codec], fill_value=[0, 0, 0])
    array = stored(document, {"c/0": b"abcdef"})
    assert array[...].tobytes() == b"abcdef"
    array[1] = np.void(b"xyz")
    assert written(array) == b"abcxyz"


def test_elements_lie_in_c_order_and_edge_chunks_are_whole() -> None:
    document = array_document(shape=[3, 4], data_type="uint8", codecs=["bytes"], fill_value=9)
    chunks = {
        f"c/{i}/{j}": bytes(range(6 * (2 * i + j), 6 * (2 * i + j + 1))) for i in (0, 1) for j in (0, 1)
    }
    array = stored(document, chunks)
    expected = [[0, 1, 2, 6], [3, 4, 5, 9], [12, 13, 14, 18]]
    assert array[...].tolist() == expected
    array[...] = array[...]
    # What lies beyond the edge is the fill value.
    assert bytes(array.store.get("c/1/1")) == bytes([18, 9, 9, 9, 9, 9])


@pytest.mark.parametrize("size", [0, 1, 11, 13, 24])
def test_bytes_of_another_size(size: int) -> None:
    array = stored(array_document(), {"c/1/0": bytes(size)})
    for selection in (..., (2, 0), (slice(2, 3), slice(0, 2)), (-1, -4)):
        error = refused(lambda selection=selection: array[selection], "bytes", (1, 0), "c/1/0")
        assert str(size) in error.reason
        assert "12" in error.reason
    assert array[0:2].tolist() == [[0] * 6] * 2


# transpose


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_transpose_in_three_dimensions(order: tuple[int, ...]) -> None:
    shape = (2, 3, 4)
    values = np.arange(24, dtype="uint8").reshape(shape)
    encoded_shape = [shape[axis] for axis in order]
    data = bytearray(24)
    for place in itertools.product(*map(range, shape)):
        at = 0
        for axis, length in zip(order, encoded_shape, strict=True):
            at = at * length + place[axis]
        data[at] = values[place]
    codecs = [{"name": "transpose", "configuration": {"order": list(order)}}, "bytes"]
    array = stored(chunk_document("uint8", shape, codecs), {"c/0/0/0": bytes(data)})
    assert same_bits(array[...], values)
    assert same_bits(array[1, ::-1, 1:3], values[1, ::-1, 1:3])
    array[...] = 0
    array[...] = values
    assert written(array) == bytes(data)


def test_transposes_follow_each_other() -> None:
    values = np.arange(24, dtype="int16").reshape(2, 3, 4)
    codecs = [TransposeCodec((2, 0, 1)), TransposeCodec((1, 0, 2))]
    array = xzarr3.create_array(
        xzarr3.MemoryStore(), data=values, chunks=(2, 3, 4), filters=codecs, compressors=None
    )
    assert written(array) == values.transpose(2, 0, 1).transpose(1, 0, 2).tobytes()
    assert same_bits(array[...], values)


# crc32c


def test_known_checksums() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert Crc32cCodec().encode(b"123456789") == b"123456789" + bytes.fromhex("839206e3")
    assert bytes(Crc32cCodec().encode(bytes(32))) == bytes(32) + bytes.fromhex("aa36918a")


def test_checksum_is_behind_the_data_and_verified() -> None:
    data = struct.pack("<3h", 1, 2, 3)
    assert read_chunk([LITTLE, CRC], (3,), checked(data)).tolist() == [1, 2, 3]
    assert read_chunk([LITTLE, CRC, CRC], (3,), checked(checked(data))).tolist() == [1, 2, 3]
    for at in range(10):
        damaged = bytearray(checked(data))
        damaged[at] ^= 4
        error = refused(
            lambda damaged=damaged: read_chunk([LITTLE, CRC], (3,), bytes(damaged)), "crc32c", (0,), "c/0"
        )
        assert "CRC mismatch" in error.reason
    for size in range(10):
        refused(
            lambda size=size: read_chunk([LITTLE, CRC], (3,), checked(data)[:size]), "crc32c", (0,), "c/0"
        )


# gzip


def small() -> tuple[np.ndarray[Any, Any], bytes]:
    values = np.arange(-500, 500, dtype="int16")
    return values, values.astype("<i2").tobytes()


@pytest.mark.parametrize("level", range(10))
def test_gzip_is_read_by_others(level: int) -> None:
    values, data = small()
    array = stored(
        chunk_document("int16", (1000,), [LITTLE, {"name": "gzip", "configuration": {"level": level}}])
    )
    array[...] = values
    assert gzip.decompress(written(array)) == data
    assert same_bits(array[...], values)
    assert read_chunk([LITTLE, GZIP], (1000,), gzip.compress(data, level)).tolist() == values.tolist()


@pytest.mark.parametrize("level", range(10))
def test_gzip_is_the_same_every_time(level: int) -> None:
    # Not so with ISA-L, whose output depends on what its memory held before.
    codec = GzipCodec(level)
    data = (np.random.default_rng(0).normal(size=30_001).cumsum() * 10).astype("<i4").tobytes()
    expected = bytes(codec.encode(data))
    for at in (0, 1, 3, 8, 33, 64):
        buffer = bytearray(np.random.default_rng(at).bytes(len(data) + 100))
        buffer[at : at + len(data)] = data
        assert bytes(codec.encode(memoryview(buffer)[at : at + len(data)])) == expected
    with ThreadPoolExecutor(4) as pool:
        assert set(map(bytes, pool.map(codec.encode, [data] * 8))) == {expected}


@pytest.mark.parametrize("level", range(1, 10))
def test_gzip_makes_noise_no_larger(level: int) -> None:
    data = np.random.default_rng(0).bytes(100_000)
    assert len(GzipCodec(level).encode(data)) < len(data) + 200
    for size in (0, 1, 1000, 100_000):
        worst = np.random.default_rng(size).integers(144, 256, size, "u1").tobytes()
        assert len(GzipCodec(level).encode(worst)) <= GzipCodec(level).max_encoded_size(size)


def gzip_member(data: bytes, flags: int = 0, extra: bytes = b"") -> bytes:
    """A gzip member with any header fields (RFC 1952)."""
    deflate = zlib.compressobj(6, zlib.DEFLATED, -15)
    body = deflate.compress(data) + deflate.flush()
    head = struct.pack("<BBBBIBB", 0x1F, 0x8B, 8, flags, 12345, 0, 255) + extra
    if flags & 2:
        head += struct.pack("<H", zlib.crc32(head) & 0xFFFF)
    return head + body + struct.pack("<II", zlib.crc32(data), len(data) & 0xFFFFFFFF)


def test_gzip_with_header_fields() -> None:
    values, data = small()
    extra = struct.pack("<H", 6) + b"ab\x02\x00xy"
    for flags, fields in ((0, b""), (8, b"name\0"), (16, b"a comment\0"), (4, extra), (2, b""),
                          (30, extra + b"name\0comment\0")):  # fmt: skip
        member = gzip_member(data, flags, fields)
        assert gzip.decompress(member) == data
        assert read_chunk([LITTLE, GZIP], (1000,), member).tolist() == values.tolist()


def test_gzip_of_several_members() -> None:
    values, data = small()
    for cuts in ([], [1], [0], [2000], [1, 1, 1999], [700, 1400], range(0, 2000, 20)):
        ends = [0, *cuts, 2000]
        members = b"".join(gzip.compress(data[low:high]) for low, high in itertools.pairwise(ends))
        assert read_chunk([LITTLE, GZIP], (1000,), members).tolist() == values.tolist()


@pytest.mark.parametrize(
    "garbage",
    [b"\0", b"\x1f", b"\x1f\x8b", b"garbage", bytes(100), gzip.compress(b"x", mtime=0)[:-1]],
    ids=repr,
)
def test_gzip_with_garbage_behind(garbage: bytes) -> None:
    _, data = small()
    member = gzip.compress(data)
    refused(lambda: read_chunk([LITTLE, GZIP], (1000,), member + garbage), "gzip", (0,), "c/0")


@pytest.mark.slow
def test_gzip_that_is_not() -> None:
    _, data = small()
    member = gzip.compress(data)
    damaged_sum = bytearray(member)
    damaged_sum[-8] ^= 1
    damaged_size = bytearray(member)
    damaged_size[-1] ^= 1
    for bad in (
        b"", b"\x1f", data, zlib.compress(data), member[2:], bytes(damaged_sum), bytes(damaged_size),
        b"\x1f\x8b\x09" + member[3:], gzip.compress(data + b"x"), gzip.compress(data + data),
    ):  # fmt: skip
        refused(lambda bad=bad: read_chunk([LITTLE, GZIP], (1000,), bad), "gzip", (0,), "c/0")
    for size in range(len(member)):
        refused(lambda size=size: read_chunk([LITTLE, GZIP], (1000,), member[:size]), "gzip", (0,), "c/0")
    short = gzip.compress(data[:-1])
    refused(lambda: read_chunk([LITTLE, GZIP], (1000,), short), "bytes", (0,), "c/0")


def test_many_empty_gzip_members_are_read_in_linear_time() -> None:
    values, data = small()
    members = gzip.compress(b"") * 20_000 + gzip.compress(data)
    assert read_chunk([LITTLE, GZIP], (1000,), members).tolist() == values.tolist()


# zstd

SIZES = [1000, 2**18 + 5]
"""Elements of int16 of a small chunk, and of one large enough for the ways that only those take."""


def numbers(size: int) -> tuple[np.ndarray[Any, Any], bytes]:
    values = (np.arange(size) % 1013).astype("int16")
    return values, values.astype("<i2").tobytes()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("level", [-100, 0, 1, 3, 19])
def test_zstd_is_read_by_others(level: int, checksum: bool, size: int) -> None:
    values, data = numbers(size)
    codec = {"name": "zstd", "configuration": {"level": level, "checksum": checksum}}
    array = stored(chunk_document("int16", (size,), [LITTLE, codec]))
    array[...] = values
    frame = written(array)
    assert zstandard.ZstdDecompressor().decompress(frame) == data
    assert zstandard.get_frame_parameters(frame).has_checksum is checksum
    assert same_bits(array[...], values)


def frame(data: bytes, **options: Any) -> bytes:
    return zstandard.ZstdCompressor(level=3, **options).compress(data)


def skippable(data: bytes, number: int = 0) -> bytes:
    return struct.pack("<II", 0x184D2A50 + number, len(data)) + data


def raw_frame(data: bytes) -> bytes:
    """A frame of raw blocks without a content size, made by hand (RFC 8878)."""
    blocks = [data[at : at + 1000] for at in range(0, len(data), 1000)] or [b""]
    body = b"".join(
        struct.pack("<I", (block is blocks[-1]) | len(block) << 3)[:3] + block for block in blocks
    )
    return struct.pack("<IBB", 0xFD2FB528, 0, 0x58) + body


def rle_frame(octet: int, size: int) -> bytes:
    """A frame of one run, with its size in the header, made by hand."""
    head = struct.pack("<IBI", 0xFD2FB528, 0xA0, size)
    runs = [min(size - at, 2**17) for at in range(0, size, 2**17)]
    return head + b"".join(
        struct.pack("<I", (at == len(runs) - 1) | 1 << 1 | run << 3)[:3] + bytes([octet])
        for at, run in enumerate(runs)
    )


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "compress",
    [
        lambda data: frame(data),
        lambda data: frame(data, write_checksum=True),
        lambda data: frame(data, write_content_size=False),
        lambda data: frame(data, write_content_size=False, write_checksum=True),
        lambda data: frame(data, threads=2),
        lambda data: frame(data[:700]) + frame(data[700:]),
        lambda data: frame(data[:700], write_content_size=False) + frame(data[700:], write_checksum=True),
        lambda data: frame(data[:700], write_checksum=True) + frame(data[700:], write_content_size=False),
        lambda data: b"".join(frame(data[at : at + 50_000]) for at in range(0, len(data), 50_000)),
        lambda data: frame(b"") + frame(data),
        lambda data: frame(data) + frame(b""),
        lambda data: frame(b"", write_content_size=False) + frame(data),
        lambda data: skippable(b"before") + frame(data),
        lambda data: frame(data) + skippable(b"behind", 15),
        lambda data: (
            skippable(b"") + frame(data[:9]) + skippable(b"x" * 99, 7) + frame(data[9:]) + skippable(b"")
        ),
        lambda data: skippable(b"1") + skippable(b"2") + frame(data, write_content_size=False),
        lambda data: raw_frame(data),
        lambda data: raw_frame(data[:1500]) + frame(data[1500:]),
        lambda data: zstandard.ZstdCompressor().compressobj().compress(b"") or raw_frame(data),
    ],
    ids=range(19),
)
def test_zstd_of_others(compress: Callable[[bytes], bytes], size: int) -> None:
    values, data = numbers(size)
    assert same_bits(read_chunk([LITTLE, ZSTD], (size,), compress(data)), values)


def test_zstd_of_one_run() -> None:
    for size in (10, 2**18, 2**19):
        assert (read_chunk(["bytes", ZSTD], (size,), rle_frame(7, size), "uint8") == 7).all()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("codec", [ZSTD, CHECKED], ids=["plain", "checksum"])
def test_zstd_that_is_not(codec: Any, size: int) -> None:
    _, data = numbers(size)
    good = frame(data, write_checksum=True)
    unsized = frame(data, write_content_size=False)
    damaged = bytearray(good)
    damaged[-1] ^= 1
    reserved = bytearray(good)
    reserved[0] ^= 1
    for bad in (
        b"", b"\x28", b"\x28\xb5\x2f\xfd", data, gzip.compress(data), good[4:], bytes(damaged),
        bytes(reserved),
        good[:-1], good[:-4], good[:-5], unsized[:-1], good + b"\0", good + b"garbage", good + good[:-1],
        good + good, frame(data + b"x"), frame(data + b"x", write_content_size=False),
        frame(data[:-9]) + unsized, skippable(b"only"), skippable(b"x")[:-1] + good[:0],
        good + skippable(b"x")[:-1], skippable(b"x")[:5] + good, raw_frame(data)[:-1],
        good + struct.pack("<II", 0x184D2A50, 2**32 - 1), b"\x50\x2a\x4d\x18",
    ):  # fmt: skip
        with pytest.raises(ChunkDecodeError) as caught:
            read_chunk([LITTLE, codec], (size,), bad)
        assert caught.value.codec in ("zstd", "bytes")
        assert (caught.value.key, caught.value.chunk) == ("c/0", (0,))
    refused(lambda: read_chunk([LITTLE, codec], (size,), frame(data[:-1])), "bytes", (0,), "c/0")


@pytest.mark.slow
def test_truncated_zstd() -> None:
    _, data = numbers(1000)
    for good in (frame(data), frame(data, write_content_size=False), frame(data[:9]) + frame(data[9:])):
        for size in range(len(good)):
            with pytest.raises(ChunkDecodeError):
                read_chunk([LITTLE, ZSTD], (1000,), good[:size])


@pytest.mark.slow
def test_damaged_zstd_with_a_checksum_is_always_found() -> None:
    _, data = numbers(1000)
    good = frame(data, write_checksum=True)
    for at in range(len(good)):
        for bit in (1, 16, 128):
            damaged = bytearray(good)
            damaged[at] ^= bit
            values, error = attempt(
                lambda damaged=damaged: read_chunk([LITTLE, ZSTD], (1000,), bytes(damaged)), ChunkDecodeError
            )
            # Some bits of the header say how to store and not what.
            assert error is not None or values.tobytes() == data


# blosc


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shuffle", range(3))
@pytest.mark.parametrize("cname", CNAMES)
def test_blosc_is_read_by_others_and_theirs_by_us(cname: str, shuffle: int, size: int) -> None:
    values, data = numbers(size)
    for clevel, blocksize, typesize in ((0, 0, 2), (5, 0, 2), (9, 4096, 2), (3, 0, 16), (5, 256, 3)):
        codec = {
            "name": "blosc",
            "configuration": {
                "cname": cname, "clevel": clevel, "shuffle": SHUFFLES[shuffle], "typesize": typesize,
                "blocksize": blocksize,
            },
        }  # fmt: skip
        array = stored(chunk_document("int16", (size,), [LITTLE, codec]))
        array[...] = values
        ours = written(array)
        assert numcodecs.Blosc().decode(ours) == data
        assert ours[3] == typesize
        assert same_bits(array[...], values)
        theirs = numcodecs.Blosc(cname, clevel, shuffle, blocksize).encode(values)
        assert same_bits(read_chunk([LITTLE, codec], (size,), bytes(theirs)), values)


def test_blosc_with_snappy() -> None:
    pytest.importorskip("cramjam")
    values, data = numbers(1000)
    codec = {"name": "blosc", "configuration": {**BLOSC["configuration"], "cname": "snappy"}}
    array = stored(chunk_document("int16", (1000,), [LITTLE, codec]))
    array[...] = values
    assert written(array)[2] >> 5 == 2
    assert same_bits(array[...], values)
    # What is no snappy inside is read by a library that knows none.
    codec["configuration"]["clevel"] = 0
    array = stored(chunk_document("int16", (1000,), [LITTLE, codec]))
    array[...] = values
    assert numcodecs.Blosc().decode(written(array)) == data


def test_blosc_takes_size_and_shuffle_from_the_elements() -> None:
    for dtype, size, shuffle in (
        ("int16", 2, "shuffle"),
        ("uint8", 1, "bitshuffle"),
        ("complex128", 16, "shuffle"),
    ):
        array = xzarr3.create_array(xzarr3.MemoryStore(), shape=4, dtype=dtype, compressors=BloscCodec())
        document = json.loads(bytes(array.store.get("zarr.json")))
        configuration = document["codecs"][1]["configuration"]
        assert (configuration["typesize"], configuration["shuffle"]) == (size, shuffle)


def test_blosc_of_large_elements() -> None:
    data = np.frombuffer(bytes(range(256)) * 10, "V320")
    array = xzarr3.create_array(xzarr3.MemoryStore(), data=data, compressors=BloscCodec())
    assert same_bits(xzarr3.open_array(array.store)[...], data)


def blosc_header(data: bytes, *, nbytes: int | None = None, cbytes: int | None = None) -> bytes:
    changed = bytearray(data)
    if nbytes is not None:
        changed[4:8] = struct.pack("<I", nbytes)
    if cbytes is not None:
        changed[12:16] = struct.pack("<I", cbytes)
    return bytes(changed)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("cname", CNAMES)
def test_blosc_that_is_not(cname: str, size: int) -> None:
    values, data = numbers(size)
    good = bytes(numcodecs.Blosc(cname, 5, 1).encode(values))
    codec = {"name": "blosc", "configuration": {**BLOSC["configuration"], "cname": cname}}
    more = bytes(numcodecs.Blosc(cname, 5, 1).encode(np.append(values, values[:1])))
    for bad in (
        b"", b"\2", good[:4], good[:15], good[:16], good[:-1], good + b"\0", data, gzip.compress(data), more,
        blosc_header(good, cbytes=len(good) - 1), blosc_header(good[:-9], cbytes=len(good) - 9),
        blosc_header(good, nbytes=len(data) + 1), blosc_header(good, nbytes=2**31 - 1),
        blosc_header(good, nbytes=2**32 - 1), blosc_header(good[:16], cbytes=16),
        blosc_header(good[:20], cbytes=20), blosc_header(good, cbytes=0), good + good,
    ):  # fmt: skip
        error = refused(lambda bad=bad: read_chunk([LITTLE, codec], (size,), bad), "blosc", (0,), "c/0")
        assert error.key == "c/0"
    for nbytes in (0, 2, len(data) - 2):
        with pytest.raises(ChunkDecodeError):
            read_chunk([LITTLE, codec], (size,), blosc_header(good, nbytes=nbytes))


@pytest.mark.slow
def test_truncated_blosc() -> None:
    values, data = numbers(1000)
    for cname in CNAMES:
        good = bytes(numcodecs.Blosc(cname, 5, 1).encode(values))
        for size in range(len(good)):
            part = good[:size]
            refused(lambda part=part: read_chunk([LITTLE, BLOSC], (1000,), part), "blosc", (0,), "c/0")
            honest = blosc_header(part, cbytes=size) if size >= 16 else part
            found, error = attempt(
                lambda honest=honest: read_chunk([LITTLE, BLOSC], (1000,), honest), ChunkDecodeError
            )
            assert error is not None or found.tobytes() == data


def test_blosc_refuses_what_it_cannot_hold() -> None:
    class Large(bytes):
        def __len__(self) -> int:
            return 2**31

    with pytest.raises(ChunkEncodeError, match="2 GiB") as caught:
        BloscCodec().encode(Large())
    assert caught.value.codec == "blosc"


# sharding_indexed

INNER = [bytes([10 * at + n for n in range(6)]) for at in range(4)]
"""The inner chunks of a 4 by 6 shard of 2 by 3 chunks of uint8."""


def shard_values(missing: tuple[int, ...] = (), fill: int = 0) -> list[list[int]]:
    parts = [
        np.full((2, 3), fill, "u1") if at in missing else np.frombuffer(INNER[at], "u1").reshape(2, 3)
        for at in range(4)
    ]
    return np.block([[parts[0], parts[1]], [parts[2], parts[3]]]).tolist()


def build_shard(
    parts: list[bytes | None],
    *,
    location: str = "end",
    order: tuple[int, ...] = (0, 1, 2, 3),
    gap: bytes = b"",
    endian: str = "<",
    check: bool = True,
) -> bytes:
    """A shard put together by hand: in any order, with gaps between the inner chunks."""
    size = 16 * len(parts) + (4 if check else 0)
    start = size if location == "start" else 0
    entries, body = [EMPTY] * len(parts), b""
    for at in order:
        body += gap
        part = parts[at]
        if part is not None:
            entries[at] = (start + len(body), len(part))
            body += part
    body += gap
    index = shard_index(entries, endian, check)
    return index + body if location == "start" else body + index


def open_shard(
    data: bytes, codec: dict[str, Any], where: str, tmp_path: Path, *outer: Any, fill: int = 0
) -> xzarr3.Array:
    document = chunk_document("uint8", (4, 6), [codec, *outer], fill_value=fill)
    if where == "memory":
        return stored(document, {"c/0/0": data})
    store = xzarr3.LocalStore(tmp_path / "shard.zarr")
    store.set("zarr.json", json.dumps(document).encode())
    store.set("c/0/0", data)
    return xzarr3.open_array(store, mode="r+")


@pytest.fixture(params=["memory", "local"])
def where(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def check_parts(array: xzarr3.Array, expected: list[list[int]]) -> None:
    """Read a shard whole and in parts, which are different ways through the code."""
    wanted = np.array(expected, "u1")
    for selection in (..., (0, 0), (3, 5), (slice(None), 4), (1, slice(1, 5)), (slice(1, 3), slice(2, 4)),
                      (slice(None, None, -3), slice(None, None, 2)), (slice(0, 2), slice(0, 3))):  # fmt: skip
        assert np.array_equal(array[selection], wanted[selection])
    assert np.array_equal(array.read_chunk((0, 0)), wanted)


@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize(("endian", "check"), [("<", True), (">", True), ("<", False), (">", False)], ids=str)
def test_shard_layout(location: str, endian: str, check: bool, where: str, tmp_path: Path) -> None:
    index = [LITTLE if endian == "<" else BIG, *([CRC] if check else [])]
    codec = sharding([2, 3], "bytes", index=index, location=location)
    data = build_shard(list(INNER), location=location, endian=endian, check=check)
    array = open_shard(data, codec, where, tmp_path)
    assert array.chunks == (2, 3)
    assert array.shards == (4, 6)
    check_parts(array, shard_values())
    # Written by us it is the same: in C order, without gaps.
    array[...] = 255
    array[...] = np.array(shard_values(), "u1")
    assert written(array) == data


@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("gap", [b"", b"gap", bytes(1000)], ids=len)
def test_shard_with_any_order_gaps_and_missing_chunks(
    location: str, gap: bytes, where: str, tmp_path: Path
) -> None:
    for missing in ((), (0,), (1, 2), (0, 1, 2, 3)):
        for order in ((0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)):
            parts = [None if at in missing else part for at, part in enumerate(INNER)]
            data = build_shard(parts, location=location, order=order, gap=gap)
            codec = sharding([2, 3], "bytes", location=location)
            array = open_shard(data, codec, where, tmp_path, fill=77)
            check_parts(array, shard_values(missing, 77))
            # Writing a part keeps the other parts.
            array[0, 0] = 5
            expected = shard_values(missing, 77)
            expected[0][0] = 5
            check_parts(array, expected)


def test_inner_chunks_may_share_bytes(where: str, tmp_path: Path) -> None:
    data = INNER[0] + INNER[1] + shard_index([(0, 6), (6, 6), (0, 6), (3, 6)])
    array = open_shard(data, sharding([2, 3], "bytes"), where, tmp_path)
    both = INNER[0] + INNER[1]
    assert array[2:4, 3:6].tobytes() == both[3:9]
    assert array[2:4, 0:3].tobytes() == INNER[0]


def test_missing_shard_is_the_fill_value() -> None:
    document = array_document(codecs=[sharding([1, 3])], fill_value=-7)
    array = stored(document)
    assert (array[...] == -7).all()
    assert array[3, 5] == -7


@pytest.mark.parametrize("inner", [ZSTD, GZIP, BLOSC, CRC], ids=lambda codec: str(codec["name"]))
def test_encoded_inner_chunks(inner: Any, where: str, tmp_path: Path) -> None:
    codec = parse_codec(inner)
    parts = [bytes(codec.encode(part)) for part in INNER]
    array = open_shard(build_shard(list(parts)), sharding([2, 3], "bytes", inner), where, tmp_path)
    check_parts(array, shard_values())


def test_transposed_inner_chunks_and_transposed_shards(where: str, tmp_path: Path) -> None:
    swap = {"name": "transpose", "configuration": {"order": [1, 0]}}
    turned = [np.frombuffer(part, "u1").reshape(2, 3).T.tobytes() for part in INNER]
    array = open_shard(build_shard(list(turned)), sharding([2, 3], swap, "bytes"), where, tmp_path)
    check_parts(array, shard_values())
    # The shard of a transposed 4 by 6 chunk is 6 by 4, of 3 by 2 inner chunks.
    document = chunk_document("uint8", (4, 6), [swap, sharding([3, 2], "bytes")])
    parts: list[bytes | None] = [turned[0], turned[2], turned[1], turned[3]]
    array = stored(document, {"c/0/0": build_shard(parts)})
    check_parts(array, shard_values())


def test_encoded_shard(where: str, tmp_path: Path) -> None:
    data = build_shard(list(INNER))
    for outer, encoded in ((GZIP, gzip.compress(data)), (ZSTD, frame(data)), (CRC, checked(data))):
        array = open_shard(encoded, sharding([2, 3], "bytes"), where, tmp_path, outer)
        assert array.shards is None
        check_parts(array, shard_values())
        array[0, 0] = 99
        assert array[0, 0] == 99


def nested_shard(gap: bytes = b"") -> tuple[bytes, dict[str, Any]]:
    """A 4 by 6 shard of 2 by 6 shards of 2 by 3 chunks, the index of the inner ones at their start."""
    inner = [build_shard(list(INNER[at : at + 2]), location="start", order=(1, 0), gap=gap) for at in (0, 2)]
    codec = sharding([2, 6], sharding([2, 3], "bytes", location="start"))
    return build_shard([*inner], order=(1, 0)), codec


def test_nested_shards(where: str, tmp_path: Path) -> None:
    data, codec = nested_shard()
    array = open_shard(data, codec, where, tmp_path)
    assert array.chunks == (2, 6)
    check_parts(array, shard_values())
    array[1, 1] = 200
    expected = shard_values()
    expected[1][1] = 200
    check_parts(array, expected)


@pytest.mark.parametrize("gap", [b"gap", bytes(500)], ids=len)
def test_gaps_within_nested_and_encoded_shards(gap: bytes, where: str, tmp_path: Path) -> None:
    data, codec = nested_shard(gap)
    check_parts(open_shard(data, codec, where, tmp_path), shard_values())
    loose = build_shard(list(INNER), gap=gap)
    array = open_shard(gzip.compress(loose), sharding([2, 3], "bytes"), where, tmp_path, GZIP)
    check_parts(array, shard_values())


def test_shards_beyond_the_edge_of_the_array() -> None:
    document = array_document(
        shape=[3, 4],
        data_type="uint8",
        fill_value=8,
        chunk_grid={"name": "regular", "configuration": {"chunk_shape": [4, 6]}},
        codecs=[sharding([2, 3], "bytes")],
    )
    array = stored(document, {"c/0/0": build_shard(list(INNER))})
    assert array[...].tolist() == [row[:4] for row in shard_values()[:3]]
    array[2, 3] = 1
    assert array[2].tolist() == [*shard_values()[2][:3], 1]


def test_only_inner_chunks_that_hold_something_are_stored() -> None:
    array = stored(chunk_document("uint8", (4, 6), [sharding([2, 3], "bytes")], fill_value=3))
    values = np.full((4, 6), 3, "u1")
    values[2, 3] = 9
    array[...] = values
    assert written(array) == bytes([9, 3, 3, 3, 3, 3]) + shard_index([EMPTY, EMPTY, EMPTY, (0, 6)])
    array[2, 3] = 3
    assert array.store.get("c/0/0") is None


def bad_shards(location: str) -> list[tuple[str, bytes]]:
    """Shards whose index is not valid, or of which an inner chunk cannot be had."""
    good = build_shard(list(INNER), location=location)
    start = 68 if location == "start" else 0
    at = 0 if location == "start" else 24

    def with_entry(offset: int, size: int) -> bytes:
        entries = [(start + 6 * n, 6) for n in range(4)]
        entries[3] = (offset, size)
        index, body = shard_index(entries), b"".join(INNER)
        return index + body if location == "start" else body + index

    flipped = bytearray(good)
    flipped[at + 5] ^= 1
    return [
        ("nothing", b""),
        ("less than an index", good[:67]),
        ("truncated", good[:-1]),
        ("flipped bit in the index", bytes(flipped)),
        ("offset beyond the end", with_entry(len(good), 6)),
        ("far offset", with_entry(2**62, 6)),
        ("largest signed offset", with_entry(2**63 - 1, 6)),
        ("offset that is no signed integer", with_entry(2**63, 6)),
        ("almost empty", with_entry(2**64 - 1, 6)),
        ("almost empty, other half", with_entry(0, 2**64 - 1)),
        ("offset almost empty", with_entry(2**64 - 2, 2**64 - 1)),
        ("sum beyond 64 bits", with_entry(2**64 - 3, 6)),
        ("size beyond the end", with_entry(len(good) - 3, 6)),
        ("size too large", with_entry(0, 7)),
        ("size far too large", with_entry(0, 2**63)),
        ("size too small", with_entry(0, 5)),
        ("no size", with_entry(0, 0)),
        ("no size far away", with_entry(2**63, 0)),
    ]


@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("case", range(18))
def test_bad_shards(case: int, location: str, where: str, tmp_path: Path) -> None:
    _, data = bad_shards(location)[case]
    array = open_shard(data, sharding([2, 3], "bytes", location=location), where, tmp_path, fill=42)
    for selection in (..., (3, 5), (slice(2, 4), slice(3, 6)), (slice(None), -1), (-1, slice(None))):
        with pytest.raises(ChunkDecodeError) as caught:
            array[selection]
        error = caught.value
        assert (error.chunk, error.key) == ((0, 0), "c/0/0")
        assert error.codec in ("sharding_indexed", "crc32c", "bytes")
        assert "c/0/0" in str(error)
        if case >= 4:
            assert error.inner_chunk == (1, 1)
            assert "(1, 1)" in str(error)
    # A shard that cannot be read is not replaced by one with a hole either.
    with pytest.raises(ChunkDecodeError):
        array[3, 4] = 1
    value = array.store.get("c/0/0")
    assert value is not None
    assert bytes(value) == data
    # It can be replaced whole.
    array[...] = 1
    assert (array[...] == 1).all()


@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("case", range(4, 18))
def test_bad_shards_within_other_codecs(case: int, location: str) -> None:
    """A shard that is compressed, or transposed, is read whole."""
    _, data = bad_shards(location)[case]
    swap = {"name": "transpose", "configuration": {"order": [0, 1]}}
    codec = sharding([2, 3], "bytes", location=location)
    for chain, value in (([codec, GZIP], gzip.compress(data)), ([swap, codec], data)):
        array = stored(chunk_document("uint8", (4, 6), chain), {"c/0/0": value})
        for call in (
            array.get,
            lambda array=array: array[0, 0],
            lambda array=array: array.set((0, 0), 1),
        ):
            with pytest.raises(ChunkDecodeError) as caught:
                call()
            error = caught.value
            assert (error.key, error.chunk, error.inner_chunk) == ("c/0/0", (0, 0), (1, 1))
            assert error.codec in ("bytes", "sharding_indexed")
        assert bytes(array.store.get("c/0/0") or b"") == value


def test_a_write_next_to_a_bad_inner_chunk_does_not_lose_it(where: str, tmp_path: Path) -> None:
    for _, data in bad_shards("end")[4:]:
        array = open_shard(data, sharding([2, 3], "bytes"), where, tmp_path, fill=42)
        attempt(lambda array=array: array.set((0, 0), 1), ChunkDecodeError)
        # Whether that worked or not, the bad one is neither the fill value nor anything else.
        with pytest.raises(ChunkDecodeError):
            array[3, 5]


def test_bad_inner_chunk_spoils_no_other(where: str, tmp_path: Path) -> None:
    parts = [frame(part, write_checksum=True) for part in INNER]
    parts[2] = parts[2][:-1] + b"\0"
    array = open_shard(build_shard([*parts]), sharding([2, 3], "bytes", ZSTD), where, tmp_path)
    assert array[0:2].tolist() == shard_values()[0:2]
    assert array[3, 4] == shard_values()[3][4]
    error = refused(lambda: array[2, 2], "zstd", (0, 0), "c/0/0")
    assert error.inner_chunk == (1, 0)
    refused(lambda: array[...], "zstd", (0, 0), "c/0/0")


def test_error_in_a_nested_shard_names_both_chunks(where: str, tmp_path: Path) -> None:
    inner: list[bytes | None] = [
        build_shard(list(INNER[at : at + 2]), location="start", order=(0, 1)) for at in (0, 2)
    ]
    second = bytearray(inner[1] or b"")
    second[16:24] = struct.pack("<Q", 1000)
    second[32:36] = struct.pack("<I", crc32c(bytes(second[:32])))
    inner[1] = bytes(second)
    codec = sharding([2, 6], sharding([2, 3], "bytes", location="start"))
    array = open_shard(build_shard(inner, order=(0, 1)), codec, where, tmp_path)
    assert array[0:2].tolist() == shard_values()[0:2]
    error = refused(lambda: array[2, 4], "sharding_indexed", (0, 0), "c/0/0")
    assert error.inner_chunk == (1, 0, 0, 1)
    error = refused(lambda: array[...], "sharding_indexed", (0, 0), "c/0/0")
    assert error.inner_chunk == (1, 0, 0, 1)


# Decompression bombs: more than the chunk, or a claim of more

BOMB = 48 * 2**20


def peak(call: Callable[[], Any]) -> tuple[int, Exception | None]:
    """The most memory in bytes that a call takes, and its error."""
    tracemalloc.start()
    try:
        _, error = attempt(call, ChunkDecodeError)
        return tracemalloc.get_traced_memory()[1], error
    finally:
        tracemalloc.stop()


def bombs() -> dict[str, tuple[Any, bytes]]:
    zeros = bytes(BOMB)
    deflated = gzip.compress(zeros, 1)
    squeezed = numcodecs.Blosc("zstd", 1, 0).encode(zeros)
    claim = bytearray(rle_frame(0, 2**17))
    claim[5:9] = struct.pack("<I", 2**32 - 1)
    giant = struct.pack("<IBQ", 0xFD2FB528, 0xE0, 2**62) + bytes(claim[9:])
    window = struct.pack("<IBB", 0xFD2FB528, 0, 0xF8) + struct.pack("<I", 1 | 1 << 1 | 8 << 3)[:3] + b"\0"
    return {
        "gzip": (GZIP, deflated),
        "gzip in members": (GZIP, gzip.compress(bytes(2**20), 1) * 48),
        "zstd": (ZSTD, frame(zeros)),
        "zstd without its size": (ZSTD, frame(zeros, write_content_size=False)),
        "zstd in frames": (ZSTD, frame(bytes(2**20)) * 48),
        "zstd that claims 4 GiB": (ZSTD, bytes(claim)),
        "zstd that claims 4 EiB": (ZSTD, giant),
        "zstd with a window of 2 TiB": (ZSTD, window),
        "blosc": (BLOSC, bytes(squeezed)),
        "blosc that claims 2 GiB": (BLOSC, blosc_header(bytes(squeezed), nbytes=2**31 - 1)),
        "blosc that claims 4 GiB": (BLOSC, blosc_header(bytes(squeezed), nbytes=2**32 - 1)),
        "gzip in zstd": (ZSTD, frame(deflated)),
    }


def test_decompression_bombs_take_little_memory() -> None:
    for name, (codec, data) in bombs().items():
        for size in (1000, 2**20):
            array = stored(chunk_document("uint8", (size,), ["bytes", codec]), {"c/0": data})
            taken, error = peak(array.get)
            assert error is not None, name
            assert taken < 4 * size + 2**20, name
            assert error.codec in (codec["name"], "bytes")
            assert error.key == "c/0"
    both = stored(
        chunk_document("uint8", (1000,), ["bytes", GZIP, ZSTD]), {"c/0": frame(gzip.compress(bytes(BOMB)))}
    )
    taken, error = peak(both.get)
    assert error is not None
    assert taken < 2**20


def test_bomb_within_a_shard_takes_little_memory(where: str, tmp_path: Path) -> None:
    data = build_shard([gzip.compress(bytes(BOMB), 9), None, None, None])
    array = open_shard(data, sharding([2, 3], "bytes", GZIP), where, tmp_path)
    taken, error = peak(lambda: array[0, 0])
    assert error is not None
    assert taken < 2**20


def test_an_index_for_a_giant_shard_takes_little_memory() -> None:
    document = chunk_document("uint8", (2**40,), [sharding([1], "bytes")], shape=[10])
    array = stored(document, {"c/0": bytes(1000)})
    taken, error = peak(array.get)
    assert error is not None
    assert "index" in error.reason
    assert taken < 2**20


@pytest.mark.parametrize("codec", [LITTLE, GZIP, ZSTD, BLOSC], ids=lambda codec: str(codec["name"]))
def test_a_few_bytes_for_a_giant_chunk_take_little_memory(codec: Any) -> None:
    codecs = [LITTLE] if codec is LITTLE else [LITTLE, codec]
    document = chunk_document("int16", (2**33,), codecs, shape=[10])
    for data in (b"", b"few bytes that are nothing", bytes(numcodecs.Blosc().encode(bytes(8))), frame(b"x")):
        array = stored(document, {"c/0": data})
        taken, error = peak(array.get)
        assert error is not None
        assert taken < 2**20


# Anything else that may have happened to stored bytes

CHAINS: dict[str, list[Any]] = {
    "bytes": [LITTLE],
    "crc32c": [LITTLE, CRC],
    "gzip": [LITTLE, GZIP],
    "zstd": [LITTLE, ZSTD],
    "zstd with a checksum": [LITTLE, CHECKED],
    "blosc": [LITTLE, BLOSC],
    "blosc, bits": [
        BIG,
        {
            "name": "blosc",
            "configuration": {**BLOSC["configuration"], "cname": "zstd", "shuffle": "bitshuffle"},
        },
    ],
    "transpose": [{"name": "transpose", "configuration": {"order": [1, 0]}}, BIG, ZSTD, CRC],
    "shard": [sharding([4, 5], LITTLE)],
    "shard without a checksum": [sharding([4, 5], LITTLE, ZSTD, index=[LITTLE], location="start")],
    "shard of blosc": [sharding([2, 10], LITTLE, BLOSC)],
    "nested shard": [sharding([4, 10], sharding([4, 5], LITTLE, index=[BIG]), index=[BIG], location="start")],
    "encoded shard": [sharding([4, 5], LITTLE), GZIP],
}
VERIFIED = {"crc32c", "zstd with a checksum", "transpose"}


def damage(data: st.DataObject, value: bytes) -> bytes:
    kind = data.draw(
        st.sampled_from(["flip", "flip", "overwrite", "cut", "cut front", "extend", "insert", "swap"])
    )
    at = data.draw(st.integers(0, len(value) - 1))
    if kind == "flip":
        changed = bytearray(value)
        for place in [at, *data.draw(st.lists(st.integers(0, len(value) - 1), max_size=3))]:
            changed[place] ^= 1 << data.draw(st.integers(0, 7))
        return bytes(changed)
    if kind == "overwrite":
        piece = data.draw(
            st.one_of(st.binary(min_size=1, max_size=16), st.sampled_from([bytes(8), b"\xff" * 8]))
        )
        return value[:at] + piece + value[at + len(piece) :]
    if kind == "cut":
        return value[:at]
    if kind == "cut front":
        return value[at:]
    if kind == "swap":
        return value[at:] + value[:at]
    piece = data.draw(st.one_of(st.binary(min_size=1, max_size=16), st.just(value)))
    return value + piece if kind == "extend" else value[:at] + piece + value[at:]


@pytest.fixture(scope="module")
def encoded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[bytes, xzarr3.Array, xzarr3.Array]]:
    """For each chain the stored bytes of a chunk, and an array in memory and one in a directory."""
    found = {}
    values = np.random.default_rng(5).integers(0, 300, (8, 10)).astype("int16")
    for name, chain in CHAINS.items():
        document = chunk_document("int16", (8, 10), chain, fill_value=-12851)
        memory = stored(document)
        memory[...] = values
        store = xzarr3.LocalStore(tmp_path_factory.mktemp("damage"))
        store.set("zarr.json", json.dumps(document).encode())
        found[name] = (written(memory), memory, xzarr3.open_array(store, mode="r+"))
    return found


@pytest.mark.parametrize("chain", CHAINS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damaged_chunks(encoded: dict[str, Any], chain: str, data: st.DataObject) -> None:
    good, memory, local = encoded[chain]
    bad = damage(data, good)
    selection = data.draw(
        st.sampled_from([..., (0, 0), (slice(2, 5), slice(3, 8)), (7, slice(None, None, -3))])
    )
    memory.store.set("c/0/0", good)
    expected = memory[selection]
    outcomes = []
    for array in (memory, local):
        array.store.set("c/0/0", bad)
        found, error = attempt(lambda array=array: array[selection], ChunkDecodeError)
        outcomes.append((None if error is None else str(error), None if error else found.tobytes()))
        if error is not None:
            assert (error.key, error.chunk) == ("c/0/0", (0, 0))
            assert error.codec
            continue
        assert (np.shape(found), found.dtype) == (np.shape(expected), expected.dtype)
        assert not (found == -12851).all(), "a chunk that cannot be read became the fill value"
        if chain in VERIFIED:
            assert same_bits(found, expected)
    assert (outcomes[0][0] is None) == (outcomes[1][0] is None)
    assert outcomes[0][1] == outcomes[1][1]


@pytest.mark.parametrize("chain", CHAINS)
@settings(max_examples=20, deadline=None)
@given(data=st.binary(max_size=200))
def test_arbitrary_chunks(encoded: dict[str, Any], chain: str, data: bytes) -> None:
    _, memory, local = encoded[chain]
    for array in (memory, local):
        array.store.set("c/0/0", data)
        found, error = attempt(lambda array=array: array[...], ChunkDecodeError)
        assert error is not None or found.shape == (8, 10)


def test_empty_stored_value_is_never_the_fill_value(encoded: dict[str, Any]) -> None:
    for _, memory, local in encoded.values():
        for array in (memory, local):
            array.store.set("c/0/0", b"")
            for selection in (..., (0, 0), (slice(2, 5), slice(3, 8))):
                with pytest.raises(ChunkDecodeError, match="c/0/0"):
                    array[selection]


# Round trips of everything through every codec


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(st.data())
def test_any_bits_through_any_chain(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(NUMERIC))
    raw = data.draw(st.binary(min_size=native(name).itemsize * 6, max_size=native(name).itemsize * 6))
    values = from_bits(raw, native(name)).reshape(2, 3)
    for compressor in (
        ZstdCodec(),
        ZstdCodec(checksum=True),
        GzipCodec(1),
        GzipCodec(6),
        BloscCodec(),
        Crc32cCodec(),
    ):
        store = xzarr3.MemoryStore()
        xzarr3.create_array(
            store,
            data=values,
            filters=TransposeCodec((1, 0)),
            serializer=BytesCodec("big"),
            compressors=compressor,
        )
        assert same_bits(xzarr3.open_array(store)[...], values)


# Codecs as users name them


@pytest.mark.parametrize(
    ("given_codec", "codec"),
    [
        ("zstd", ZstdCodec()),
        ("bytes", BytesCodec("little")),
        ("crc32c", Crc32cCodec()),
        (ZSTD, ZstdCodec(3, False)),
        (GZIP, GzipCodec(5)),
        (numcodecs.GZip(3), GzipCodec(3)),
        (numcodecs.Zstd(level=7), ZstdCodec(7)),
        (numcodecs.Blosc("lz4", 3, numcodecs.Blosc.BITSHUFFLE), BloscCodec("lz4", 3, "bitshuffle")),
        (numcodecs.Blosc("zlib", 9, numcodecs.Blosc.AUTOSHUFFLE), BloscCodec("zlib", 9, None)),
        ({"name": "transpose", "configuration": {"order": (1, 0)}}, TransposeCodec((1, 0))),
    ],
    ids=str,
)
def test_codecs_that_users_pass(given_codec: Any, codec: Any) -> None:
    assert parse_codec(given_codec) == codec
    assert parse_codec(parse_codec(given_codec).to_json()) == codec
    assert pickle.loads(pickle.dumps(codec)) == codec
    assert hash(pickle.loads(pickle.dumps(codec))) == hash(codec)


@pytest.mark.parametrize(
    "codec",
    [
        "lzma", "", 5, None, {}, {"name": 5}, {"id": "lzmaa"}, {"name": "gzip"}, "gzipp", "transpose",
        numcodecs.Pickle(), Thing(), {"name": "gzip", "configuration": {"level": 1, "x": 2}},
        {"name": "x", "must_understand": False},
    ],
    ids=repr,
)  # fmt: skip
def test_codecs_that_there_are_not(codec: Any) -> None:
    with pytest.raises(MetadataError) as caught:
        parse_codec(codec)
    assert caught.value.accepted


@pytest.mark.parametrize(
    "make",
    [
        lambda: GzipCodec(10),
        lambda: GzipCodec(-1),
        lambda: GzipCodec(1.5),
        lambda: GzipCodec(True),
        lambda: ZstdCodec(23),
        lambda: ZstdCodec("3"),
        lambda: ZstdCodec(3, checksum="yes"),
        lambda: BloscCodec("lz5"),
        lambda: BloscCodec(clevel=10),
        lambda: BloscCodec(shuffle="yes"),
        lambda: BloscCodec(typesize=0),
        lambda: BloscCodec(blocksize=-1),
        lambda: BytesCodec("middle"),
        lambda: TransposeCodec((1, 1)),
        lambda: TransposeCodec((1, 2)),
        lambda: ShardingCodec((2, 2), index_location="middle"),
    ],
)
def test_configurations_that_are_not_valid(make: Callable[[], Any]) -> None:
    with pytest.raises(MetadataError) as caught:
        make()
    assert str(caught.value.field).startswith("configuration.")
    assert caught.value.accepted


def test_the_core_codecs_are_there() -> None:
    assert {"blosc", "bytes", "crc32c", "gzip", "sharding_indexed", "transpose", "zstd"} <= set(codec_names())


def test_codecs_in_the_wrong_place() -> None:
    for options in (
        {"compressors": TransposeCodec((0,))},
        {"filters": ZstdCodec()},
        {"serializer": ZstdCodec()},
        {"serializer": TransposeCodec((0,))},
        {"compressors": BytesCodec()},
        {"filters": TransposeCodec((1, 0))},
        {"shards": 6, "chunks": 4},
        {"shards": 3, "chunks": 4},
        {"shards": (4, 4), "chunks": 4},
    ):
        store = xzarr3.MemoryStore()
        with pytest.raises(MetadataError) as caught:
            xzarr3.create_array(store, "a", shape=8, dtype="int16", **options)
        assert caught.value.accepted
        assert not list(store.list())


@pytest.mark.parametrize("level", range(10))
def test_gzip_of_the_same_data_is_the_same(level: int) -> None:
    """Whatever was encoded before: a store written twice is the same to the byte."""
    codec = GzipCodec(level)
    rng = np.random.default_rng(level)
    data = rng.integers(0, 3, 18, dtype="uint8").tobytes()
    first = bytes(codec.encode(data))
    for size in rng.integers(0, 300, 200):
        codec.encode(rng.bytes(size))
        assert bytes(codec.encode(data)) == first


@pytest.mark.parametrize("endian", ["little", "big"])
@pytest.mark.parametrize(
    ("name", "part"), [("complex_float16", "f2"), ("complex64", "f4"), ("complex_bfloat16", None)]
)
def test_parts_of_complex_numbers_keep_their_order(name: str, part: str | None, endian: str) -> None:
    pytest.importorskip("ml_dtypes")
    data_type = parse_dtype(name)
    parts = np.array([0x3C00, 0x4000, 0xBC00, 0x4200], "u2")  # 1, 2, -1, 3 as float16
    if part == "f4":
        values = np.array([1 + 2j, -1 + 3j], "complex64")
        stored = np.array([1, 2, -1, 3], "f4")
    else:
        values = parts.view(data_type.to_native_dtype())
        stored = parts
    spec = ChunkSpec((2,), data_type, data_type.default_scalar())
    codec = BytesCodec(endian)
    data = bytes(codec.encode(values, spec))
    assert data == stored.astype(stored.dtype.newbyteorder(endian)).tobytes()
    assert codec.decode(data, spec).astype(values.dtype).tobytes() == values.tobytes()
    store = xzarr3.MemoryStore()
    array = xzarr3.create_array(
        store, "a", data=values, dtype=data_type, chunks=2, compressors=None, serializer=codec
    )
    assert bytes(store.get("a/c/0")) == data
    assert array[1:].tobytes() == values[1:].tobytes()


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_big_endian_times_of_no_unit(zarr_format: Any) -> None:
    store = xzarr3.MemoryStore()
    values = np.array([1, -2, 2**40], "i8").view("m8")
    options = {"dtype": ">m8"} if zarr_format == 2 else {"serializer": BytesCodec("big")}
    array = xzarr3.create_array(store, "a", data=values, compressors=None, zarr_format=zarr_format, **options)
    key = "a/0" if zarr_format == 2 else "a/c/0"
    assert bytes(store.get(key)) == values.view("i8").astype(">i8").tobytes()
    assert array[...].tobytes() == values.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("data", [b"", b"x"], ids=["empty", "a byte"])
def test_gzip_of_very_many_members(data: bytes) -> None:
    """In time that grows with their number, and not with its square."""
    number = 2**17
    members = gzip.compress(data) * number
    start = time.thread_time()
    decoded = GzipCodec().decode(members + gzip.compress(b"end"), number + 3)
    assert decoded == data * number + b"end"
    assert time.thread_time() - start < 3
    with pytest.raises(ChunkDecodeError):
        GzipCodec().decode(members[:-1], number)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1, 480, 500, 520, 1100, 40000]), st.booleans(), st.integers(0, 600)),
        min_size=1, max_size=6,
    ),
    st.data(),
)  # fmt: skip
def test_gzip_members_of_any_size(sizes: list[tuple[int, bool, int]], data: st.DataObject) -> None:
    parts = [np.random.default_rng(size).bytes(size) if noise else bytes(size) for size, noise, _ in sizes]
    members = [
        gzip_member(part, 8, b"n" * name + b"\0") for part, (_, _, name) in zip(parts, sizes, strict=True)
    ]
    value, expected = b"".join(members), b"".join(parts)
    assert GzipCodec().decode(value, len(expected)) == expected == gzip.decompress(value)
    cut = data.draw(st.integers(0, len(value) - 1))
    if cut not in itertools.accumulate(map(len, members)):
        with pytest.raises(ChunkDecodeError):
            GzipCodec().decode(value[:cut], len(expected))
    if expected:
        with pytest.raises(ChunkDecodeError, match="at most"):
            GzipCodec().decode(value, len(expected) - 1)


def test_damage_in_a_nested_shard_is_located_on_every_level() -> None:
    nested = ShardingCodec((2,), (ShardingCodec((1,), (BytesCodec(), GzipCodec())),))
    for compressors in (None, ["gzip"]):
        array = xzarr3.create_array(
            xzarr3.MemoryStore(), shape=4, chunks=4, dtype="i4", serializer=nested, compressors=compressors
        )
        array[:] = [1, 2, 3, 4]
        value = bytes(array.store.get("c/0"))
        value = gzip.decompress(value) if compressors else value
        at = value.rfind(b"\x1f\x8b")
        value = value[:at] + b"\0" + value[at + 1 :]
        array.store.set("c/0", gzip.compress(value) if compressors else value)
        with pytest.raises(ChunkDecodeError) as caught:
            array[:]
        assert (caught.value.chunk, caught.value.inner_chunk) == ((0,), (1, 1))


# Documents that nobody writes


@pytest.mark.parametrize("name", ["<U20000000", "|S400000000", "|S1900000000", "<U5000"])
@pytest.mark.parametrize("field", ["encode_dtype", "decode_dtype"])
def test_filters_of_huge_elements(name: str, field: str) -> None:
    configuration = {"encode_dtype": "<i4", "decode_dtype": "<i4", field: name}
    with pytest.raises(MetadataError, match="an element is too large") as caught:
        codec_from_json({"name": "numcodecs.astype", "configuration": configuration})
    assert caught.value.field == f"configuration.{field}"


def test_half_of_a_surrogate_pair_is_no_name() -> None:
    document = array_document(codecs=[{"name": "\ud800"}])
    with pytest.raises(MetadataError, match="unknown codec"):
        xzarr3.open_array(xzarr3.MemoryStore({"zarr.json": json.dumps(document).encode()}))
    inner = {"name": "sharding_indexed", "configuration": {"codecs": ["\ud800"], "chunk_shape": [1]}}
    with pytest.raises(MetadataError, match="unknown codec"):
        parse_codec(inner)


@pytest.fixture
def careless() -> Iterator[None]:
    """A codec of another package that takes for granted what it is given."""

    @dataclass(frozen=True)
    class Careless(BytesBytesCodec):
        name = "example.careless"
        mode: str = ""

        @classmethod
        def from_configuration(cls, configuration: Mapping[str, Any]) -> Self:
            return cls(configuration["mode"].lower())

        def evolve(self, spec: ChunkSpec) -> Self:
            return replace(self, mode=self.mode[spec.shape[0]]) if self.mode == "evolve" else self

        def encoded_size(self, size: int) -> int:
            return size

        def max_encoded_size(self, size: int) -> int:
            return size // len(self.mode)

        def encode(self, data: Any) -> Any:
            return data

        def decode(self, data: Any, limit: int) -> Any:
            return data

    register_codec(Careless)
    yield
    del registry._loaded[Careless.name]
    registry._parsed.clear()


@pytest.mark.usefixtures("careless")
@pytest.mark.parametrize(
    ("configuration", "field"),
    [({}, ".configuration"), ({"mode": 5}, ".configuration"), ({"mode": ""}, ""), ({"mode": "evolve"}, "")],
    ids=repr,
)
def test_what_a_codec_of_another_package_raises(configuration: dict[str, Any], field: str) -> None:
    codec = {"name": "example.careless", "configuration": configuration}
    document = array_document(shape=[40], codecs=[LITTLE, codec])
    document["chunk_grid"]["configuration"]["chunk_shape"] = [40]
    with pytest.raises(MetadataError) as caught:
        xzarr3.open_array(xzarr3.MemoryStore({"zarr.json": json.dumps(document).encode()}))
    assert caught.value.field == f"codecs[1]{field}"
    assert isinstance(caught.value.__cause__, LookupError | AttributeError | ArithmeticError)


@pytest.mark.parametrize("codecs", [np.array(2), 5, Thing()], ids=["no dimensions", "number", "object"])
@pytest.mark.parametrize("kind", ["filters", "serializer", "compressors"])
def test_what_is_no_codec_and_no_list_of_them(codecs: Any, kind: str) -> None:
    with pytest.raises(MetadataError, match=r"not .*codec"):
        xzarr3.create_array(xzarr3.MemoryStore(), shape=3, dtype="i4", **{kind: codecs})


def test_null_and_nan_are_two_configurations() -> None:
    """Both are null to some writers of JSON; what was parsed before decides nothing."""
    for value in (None, float("nan"), None):
        with pytest.raises(MetadataError) as caught:
            codecs_from_json([{"name": "gzip", "configuration": {"level": value}}])
        assert repr(caught.value.found) == repr(value)
    assert registry._key([None]) != registry._key([float("nan")])  # type: ignore[list-item]
    assert registry._key([1]) != registry._key([1.0])


@dataclass(frozen=True)
class _HandedOn(BytesBytesCodec):
    """Returns what it is given, not a copy of it."""

    name = "test-handed-on"

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> Self:
        return cls()

    def encoded_size(self, size: int) -> int:
        return size

    def max_encoded_size(self, size: int) -> int:
        return size

    def encode(self, data: Buffer) -> Buffer:
        return data

    def decode(self, data: Buffer, limit: int) -> Buffer:
        return data


@pytest.mark.parametrize("shards", [None, (4, 4)])
def test_a_codec_may_hand_on_what_it_is_given(shards: tuple[int, int] | None, tmp_path: Path) -> None:
    register_codec(_HandedOn)
    try:
        data = np.arange(64.0).reshape(8, 8)
        for where in (xzarr3.MemoryStore(), tmp_path / "a"):
            array = xzarr3.create_array(
                where, data=data, chunks=(2, 2), shards=shards, compressors=_HandedOn()
            )
            assert np.array_equal(array[...], data)
            array[1:7, 3] = -1.0
            changed = data.copy()
            changed[1:7, 3] = -1.0
            assert np.array_equal(array[...], changed)
    finally:
        registry._loaded.pop(_HandedOn.name, None)
