"""Codecs: bytes made by hand or by other libraries, and bytes that are corrupt, truncated or too large."""

import gzip
import itertools
import pickle
import struct
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numcodecs
import numpy as np
import pytest
import zstandard
from _chains import MIB, Unchanged, checked, crc32c, refused, refused_within, registered
from _documents import document
from _peers import CRC32C, LITTLE, codec
from _slow import slow, slow_but
from _strategies import array_document, chunk_document, same_bits, stored
from _things import Thing, refuses
from hypothesis import given, settings
from hypothesis import strategies as st

import xzarr3
from xzarr3 import ChunkDecodeError, ChunkEncodeError, MetadataError, codecs, extensions
from xzarr3.codecs import BloscCodec, GzipCodec, TransposeCodec, VLenBytesCodec, ZstdCodec, parse_codec
from xzarr3.codecs.base import ChunkSpec
from xzarr3.codecs.registry import codecs_from_json

CRC, BYTES = CRC32C, codec("bytes")
GZIP, ZSTD = codec("gzip", level=5), codec("zstd", level=3, checksum=False)
CHECKED = codec("zstd", level=3, checksum=True)
BLOSC = codec("blosc", cname="lz4", clevel=5, shuffle="shuffle", typesize=2, blocksize=0)
SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")
CNAMES = ("lz4", "lz4hc", "blosclz", "zlib", "zstd")
BLOSC_SIZES = ((0, 0, 2), (5, 0, 2), (9, 4096, 2), (3, 0, 16), (5, 256, 3))


def one_chunk(dtype: str, size: int, *codecs: Any) -> xzarr3.Array:
    return stored(chunk_document(dtype, (size,), list(codecs)))


def read_chunk(data: bytes, size: int, *codecs: Any, dtype: str = "int16") -> Any:
    array = one_chunk(dtype, size, *codecs)
    array.store.set("c/0", data)
    return array.get()


def not_read(bad: bytes, size: int, compressor: Any, *names: str) -> ChunkDecodeError:
    """The error of an array of int16 whose only chunk is these bytes, behind a compressor."""
    return refused(lambda: read_chunk(bad, size, LITTLE, compressor), *(names or (compressor["name"],)))


def changed(data: bytes, at: int, bits: int = 1) -> bytes:
    damaged = bytearray(data)
    damaged[at] ^= bits
    return bytes(damaged)


def numbers(size: int) -> tuple[np.ndarray[Any, Any], bytes]:
    values = (np.arange(size) % 1013).astype("int16")
    return values, values.astype("<i2").tobytes()


def test_elements_lie_in_c_order_and_edge_chunks_are_whole() -> None:
    held = array_document(shape=[3, 4], data_type="uint8", codecs=["bytes"], fill_value=9)
    keys = [f"c/{i}/{j}" for i in (0, 1) for j in (0, 1)]
    array = stored(held, {key: bytes(range(6 * at, 6 * at + 6)) for at, key in enumerate(keys)})
    assert array[...].tolist() == [[0, 1, 2, 6], [3, 4, 5, 9], [12, 13, 14, 18]]
    values = array[...]
    array.store.erase("c/1/1")
    array[...] = values
    # What lies beyond the edge is the fill value, unless somebody has stored something there.
    assert bytes(array.store.get("c/1/1") or b"") == bytes([18, 9, 9, 9, 9, 9])
    assert bytes(array.store.get("c/0/1") or b"") == bytes([6, 7, 8, 9, 10, 11])


@pytest.mark.parametrize("size", [0, 1, 11, 13, 24])
def test_bytes_of_another_size(size: int) -> None:
    array = stored(array_document(), {"c/1/0": bytes(size)})
    for selection in (..., (2, 0), (slice(2, 3), slice(0, 2)), (-1, -4)):
        error = refused(lambda s=selection: array[s], "bytes", chunk=(1, 0), key="c/1/0")
        assert str(size) in error.reason
        assert "12" in error.reason
    assert array[0:2].tolist() == [[0] * 6] * 2


def test_crc32c() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert codecs.Crc32cCodec().encode(b"123456789") == b"123456789" + bytes.fromhex("839206e3")
    good = checked(struct.pack("<3h", 1, 2, 3))
    assert read_chunk(good, 3, LITTLE, CRC).tolist() == [1, 2, 3]
    assert read_chunk(checked(good), 3, LITTLE, CRC, CRC).tolist() == [1, 2, 3]
    for at in range(10):
        assert "checksum mismatch" in not_read(changed(good, at, 4), 3, CRC).reason
        not_read(good[:at], 3, CRC)


@pytest.mark.parametrize("level", slow_but(range(10), 1, 6))
def test_gzip_is_the_same_every_time(level: int) -> None:
    """Not so with ISA-L, whose output depends on what its memory held before."""
    compressor, rng = GzipCodec(level), np.random.default_rng(level)
    for data in ((rng.normal(size=30_001).cumsum() * 10).astype("<i4").tobytes(), rng.bytes(18)):
        expected = bytes(compressor.encode(data))
        for at in (0, 1, 3, 8, 33, 64):
            compressor.encode(rng.bytes(5 * at))
            buffer = bytearray(rng.bytes(len(data) + 100))
            buffer[at : at + len(data)] = data
            assert bytes(compressor.encode(memoryview(buffer)[at : at + len(data)])) == expected
        with ThreadPoolExecutor(4) as pool:
            assert set(map(bytes, pool.map(compressor.encode, [data] * 8))) == {expected}


@pytest.mark.parametrize("level", range(1, 10))
def test_gzip_makes_noise_hardly_larger(level: int) -> None:
    assert len(GzipCodec(level).encode(np.random.default_rng(0).bytes(100_000))) < 100_200
    for size in (0, 1, 1000, 100_000):
        worst = np.random.default_rng(size).integers(144, 256, size, "u1").tobytes()
        assert len(GzipCodec(level).encode(worst)) <= GzipCodec(level).max_encoded_size(size)


def gzip_member(data: bytes, flags: int = 0, extra: bytes = b"") -> bytes:
    deflate = zlib.compressobj(6, zlib.DEFLATED, -15)
    body = deflate.compress(data) + deflate.flush()
    head = struct.pack("<BBBBIBB", 0x1F, 0x8B, 8, flags, 12345, 0, 255) + extra
    if flags & 2:
        head += struct.pack("<H", zlib.crc32(head) & 0xFFFF)
    return head + body + struct.pack("<II", zlib.crc32(data), len(data) & 0xFFFFFFFF)


def test_gzip_of_others() -> None:
    values, data = numbers(1000)
    extra = struct.pack("<H", 6) + b"ab\x02\x00xy"
    for flags, fields in ((0, b""), (8, b"name\0"), (16, b"a comment\0"), (4, extra), (2, b""),
                          (30, extra + b"name\0comment\0")):  # fmt: skip
        assert same_bits(read_chunk(gzip_member(data, flags, fields), 1000, LITTLE, GZIP), values)
    good = gzip.compress(data)  # And what is none.
    for bad in (
        b"\x1f", data, zlib.compress(data), good[2:], changed(good, -8), changed(good, -1),
        b"\x1f\x8b\x09" + good[3:], gzip.compress(data + b"x"), gzip.compress(data + data),
        *(good + more for more in (b"\0", b"\x1f", b"\x1f\x8b", b"garbage", bytes(100), good[:-1])),
        *(good[:size] for size in range(0, len(good), 7)),
    ):  # fmt: skip
        not_read(bad, 1000, GZIP)
    not_read(gzip.compress(data[:-1]), 1000, GZIP, "bytes")


@pytest.mark.slow
@pytest.mark.parametrize("data", [b"", b"x"], ids=["empty", "a byte"])
def test_gzip_of_very_many_members(data: bytes) -> None:
    """Time that grows with the square of their number would not let this end."""
    number = 2**18
    members = gzip.compress(data) * number
    assert GzipCodec().decode(members + gzip.compress(b"end"), number + 3) == data * number + b"end"
    refuses(partial(GzipCodec().decode, limit=number), [members[:-1]], ChunkDecodeError)


@settings(max_examples=200)
@given(st.lists(
    st.tuples(st.sampled_from([0, 1, 480, 500, 520, 1100, 40000]), st.booleans(), st.integers(0, 600)),
    min_size=1, max_size=6,
), st.data())  # fmt: skip
def test_gzip_members_of_any_size(sizes: list[tuple[int, bool, int]], data: st.DataObject) -> None:
    parts = [np.random.default_rng(size).bytes(size) if noise else bytes(size) for size, noise, _ in sizes]
    names = [b"n" * name + b"\0" for _, _, name in sizes]
    members = [gzip_member(part, 8, name) for part, name in zip(parts, names, strict=True)]
    value, expected = b"".join(members), b"".join(parts)
    assert GzipCodec().decode(value, len(expected)) == expected == gzip.decompress(value)
    cut = data.draw(st.integers(0, len(value) - 1))
    if cut not in itertools.accumulate(map(len, members)):
        refuses(partial(GzipCodec().decode, limit=len(expected)), [value[:cut]], ChunkDecodeError)
    if expected:
        refuses(partial(GzipCodec().decode, value), [len(expected) - 1], ChunkDecodeError, "at most")


def frame(data: bytes, **options: Any) -> bytes:
    return zstandard.ZstdCompressor(level=3, **options).compress(data)


unsized, summed = partial(frame, write_content_size=False), partial(frame, write_checksum=True)


def skippable(data: bytes, number: int = 0) -> bytes:
    return struct.pack("<II", 0x184D2A50 + number, len(data)) + data


def raw_frame(data: bytes) -> bytes:
    """A frame of raw blocks without a content size, made by hand (RFC 8878)."""
    blocks = [data[at : at + 1000] for at in range(0, len(data), 1000)] or [b""]
    heads = [struct.pack("<I", (block is blocks[-1]) | len(block) << 3)[:3] for block in blocks]
    body = b"".join(head + block for head, block in zip(heads, blocks, strict=True))
    return struct.pack("<IBB", 0xFD2FB528, 0, 0x58) + body


def test_zstd_of_others() -> None:
    values, data = numbers(1000)
    for checksum in (False, True):
        ours = bytes(ZstdCodec(-100, checksum).encode(data))
        assert zstandard.get_frame_parameters(ours).has_checksum is checksum
    for value in (
        frame(data), summed(data), unsized(data), frame(data, threads=2),
        frame(data, write_content_size=False, write_checksum=True), frame(data[:700]) + frame(data[700:]),
        unsized(data[:700]) + summed(data[700:]), summed(data[:700]) + unsized(data[700:]),
        b"".join(frame(data[at : at + 300]) for at in range(0, len(data), 300)),
        frame(b"") + frame(data), frame(data) + frame(b""), unsized(b"") + frame(data),
        skippable(b"before") + frame(data), frame(data) + skippable(b"behind", 15),
        skippable(b"") + frame(data[:9]) + skippable(b"x" * 99, 7) + frame(data[9:]) + skippable(b""),
        skippable(b"1") + skippable(b"2") + unsized(data), raw_frame(data),
        raw_frame(data[:1500]) + frame(data[1500:]),
    ):  # fmt: skip
        assert same_bits(read_chunk(value, 1000, LITTLE, ZSTD), values)


@pytest.mark.parametrize("compressor", [ZSTD, CHECKED], ids=["plain", "checksum"])
def test_zstd_that_is_not(compressor: Any) -> None:
    _, data = numbers(1000)
    good = summed(data)
    for bad in (
        b"", b"\x28", b"\x28\xb5\x2f\xfd", data, gzip.compress(data), good[4:], changed(good, -1),
        changed(good, 0), good[:-1], good[:-4], good[:-5], unsized(data)[:-1], good + b"\0",
        good + b"garbage", good + good[:-1], good + good, frame(data + b"x"), unsized(data + b"x"),
        frame(data[:-9]) + unsized(data), skippable(b"only"), skippable(b"x")[:-1],
        good + skippable(b"x")[:-1], skippable(b"x")[:5] + good, raw_frame(data)[:-1],
        good + struct.pack("<II", 0x184D2A50, 2**32 - 1), b"\x50\x2a\x4d\x18",
    ):  # fmt: skip
        not_read(bad, 1000, compressor, "zstd", "bytes")
    not_read(frame(data[:-1]), 1000, compressor, "bytes")


@pytest.mark.parametrize("shuffle", [slow("noshuffle"), "shuffle", slow("bitshuffle")])
def test_blosc_both_ways(shuffle: str) -> None:
    values, data = numbers(1000)
    for cname, (clevel, blocksize, typesize) in itertools.product(CNAMES, BLOSC_SIZES):
        options = {"shuffle": shuffle, "typesize": typesize, "blocksize": blocksize}
        compressor = codec("blosc", cname=cname, clevel=clevel, **options)
        array = one_chunk("int16", 1000, LITTLE, compressor)
        array[...] = values
        chunk = bytes(array.store.get("c/0") or b"")
        assert (numcodecs.Blosc().decode(chunk), chunk[3]) == (data, typesize)
        assert same_bits(array[...], values)
        theirs = numcodecs.Blosc(cname, clevel, SHUFFLES.index(shuffle), blocksize).encode(values)
        assert same_bits(read_chunk(bytes(theirs), 1000, LITTLE, compressor), values)


@pytest.mark.parametrize(("dtype", "size", "shuffle"), [
    ("i2", 2, "shuffle"), ("u1", 1, "bitshuffle"), ("c16", 16, "shuffle"), ("V320", 320, "shuffle"),
])  # fmt: skip
def test_blosc_takes_size_and_shuffle_from_the_elements(dtype: str, size: int, shuffle: str) -> None:
    data = np.frombuffer(bytes(range(256)) * 10, dtype)
    array = xzarr3.create_array(xzarr3.MemoryStore(), data=data, compressors=BloscCodec())
    configuration = document(array.store)["codecs"][1]["configuration"]
    assert (configuration["typesize"], configuration["shuffle"]) == (size, shuffle)
    assert same_bits(xzarr3.open_array(array.store)[...], data)


def blosc_header(data: bytes, *, nbytes: int | None = None, cbytes: int | None = None) -> bytes:
    made = bytearray(data)
    for at, number in ((4, nbytes), (12, cbytes)):
        if number is not None:
            made[at : at + 4] = struct.pack("<I", number)
    return bytes(made)


@pytest.mark.parametrize("cname", CNAMES)
def test_blosc_that_is_not(cname: str) -> None:
    values, data = numbers(1000)
    theirs = numcodecs.Blosc(cname, 5, 1)
    good, more = bytes(theirs.encode(values)), bytes(theirs.encode(np.append(values, values[:1])))
    for bad in (
        b"", b"\2", good[:4], good[:15], good[:16], good[:-1], good + b"\0", data, gzip.compress(data), more,
        blosc_header(good, cbytes=len(good) - 1), blosc_header(good[:-9], cbytes=len(good) - 9),
        blosc_header(good, nbytes=len(data) + 1), blosc_header(good, nbytes=2**31 - 1),
        blosc_header(good, nbytes=2**32 - 1), blosc_header(good[:16], cbytes=16),
        blosc_header(good[:20], cbytes=20), blosc_header(good, cbytes=0), good + good,
    ):  # fmt: skip
        not_read(bad, 1000, BLOSC)
    for nbytes in (0, 2, len(data) - 2):
        not_read(blosc_header(good, nbytes=nbytes), 1000, BLOSC, "blosc", "bytes")


def test_blosc_refuses_what_it_cannot_hold(tmp_path: Path) -> None:
    class Large(bytes):
        def __len__(self) -> int:
            return 2**31

    (error,) = refuses(BloscCodec().encode, [Large()], ChunkEncodeError, "2 GiB")
    assert error.codec == "blosc"
    # Snappy within it is refused by name.
    chunk = struct.pack("<BBBBIII", 2, 1, 0x50, 1, 8, 8, 40) + bytes(24)
    document = codec("blosc", cname="snappy", clevel=1, shuffle="noshuffle", typesize=1, blocksize=0)
    array = xzarr3.create_array(tmp_path, shape=(8,), chunks=(8,), dtype="uint8", compressors=[document])
    refuses(partial(array.set, ...), [1], ChunkEncodeError, "'snappy'; expected one of")
    xzarr3.open_store(tmp_path, mode="r+").set("c/0", chunk)
    refuses(array.get, [...], ChunkDecodeError, "compressed with snappy, blosc here has")


@pytest.mark.parametrize("compressor", [None, GZIP, ZSTD, BLOSC], ids=["bytes", "gzip", "zstd", "blosc"])
def test_a_few_bytes_for_a_giant_chunk_take_little_memory(compressor: Any) -> None:
    codecs = [LITTLE, compressor] if compressor else [LITTLE]
    document = chunk_document("int16", (2**33,), codecs, shape=[10])
    for data in (b"", b"few bytes that are nothing", bytes(numcodecs.Blosc().encode(bytes(8))), frame(b"x")):
        refused_within(MIB, stored(document, {"c/0": data}).get)


@pytest.mark.parametrize(("given", "expected"), [
    ("zstd", ZstdCodec()), ("bytes", codecs.BytesCodec("little")), ("crc32c", codecs.Crc32cCodec()),
    ("vlen-utf8", codecs.VLenUTF8Codec()), (numcodecs.VLenUTF8(), codecs.VLenUTF8Codec()),
    ({"id": "vlen-bytes"}, VLenBytesCodec()), (numcodecs.VLenBytes(), VLenBytesCodec()),
    ({"name": "vlen-bytes", "configuration": {}}, VLenBytesCodec()), (numcodecs.JSON(), codecs.Json2Codec()),
    (ZSTD, ZstdCodec(3, False)), (GZIP, GzipCodec(5)), (numcodecs.GZip(3), GzipCodec(3)),
    (numcodecs.Zstd(level=7), ZstdCodec(7)),
    (numcodecs.Blosc("lz4", 3, numcodecs.Blosc.BITSHUFFLE), BloscCodec("lz4", 3, "bitshuffle")),
    (numcodecs.Blosc("zlib", 9, numcodecs.Blosc.AUTOSHUFFLE), BloscCodec("zlib", 9, None)),
    ({"name": "transpose", "configuration": {"order": (1, 0)}}, TransposeCodec((1, 0))),
], ids=str)  # fmt: skip
def test_codecs_that_users_pass(given: Any, expected: Any) -> None:
    assert (parse_codec(given), parse_codec(parse_codec(given).to_json())) == (expected, expected)
    assert pickle.loads(pickle.dumps(expected)) == expected
    assert hash(pickle.loads(pickle.dumps(expected))) == hash(expected)


@pytest.mark.parametrize("given", [
    "lzma", "", 5, None, {}, {"name": 5}, {"id": "lzmaa"}, {"name": "gzip"}, "gzipp", "transpose",
    numcodecs.Pickle(), Thing(), {"name": "gzip", "configuration": {"level": 1, "x": 2}},
    {"name": "x", "must_understand": False}, {"name": "vlen-utf8", "configuration": {"level": 1}},
], ids=repr)  # fmt: skip
def test_codecs_that_there_are_not(given: Any) -> None:
    (error,) = refuses(parse_codec, [given], MetadataError)
    assert error.accepted


def test_configurations_that_are_not_valid() -> None:
    for error in refuses(lambda make: make(), (
        lambda: GzipCodec(10), lambda: ZstdCodec(3, checksum="yes"), lambda: TransposeCodec((1, 2)),
        lambda: codecs.ShardingCodec((2, 2), index_location="middle"),
    ), MetadataError):  # fmt: skip
        assert str(error.field).startswith("configuration.")
        assert error.accepted


@pytest.mark.parametrize("options", [
    {"compressors": TransposeCodec((0,))}, {"filters": ZstdCodec()}, {"serializer": ZstdCodec()},
    {"serializer": TransposeCodec((0,))}, {"compressors": codecs.BytesCodec()},
    {"filters": TransposeCodec((1, 0))}, {"shards": 6, "chunks": 4}, {"shards": 3, "chunks": 4},
    {"shards": (4, 4), "chunks": 4},
])  # fmt: skip
def test_codecs_in_the_wrong_place(options: dict[str, Any]) -> None:
    store, given = xzarr3.MemoryStore(), {"shape": 8, "dtype": "int16", **options}
    (error,) = refuses(lambda path: xzarr3.create_array(store, path, **given), ["a"], MetadataError)
    assert error.accepted
    assert not list(store.list())


def test_filters_of_huge_elements() -> None:
    given, sizes = {"encode_dtype": "<i4", "decode_dtype": "<i4"}, ("<U20000000", "|S1900000000", "<U5000")
    for field in given:
        documents = [codec("numcodecs.astype", **given | {field: name}) for name in sizes]
        for error in refuses(codecs.codec_from_json, documents, MetadataError, "an element is too large"):
            assert error.field == f"configuration.{field}"


@dataclass(frozen=True)
class _Careless(Unchanged):
    name = "example.careless"
    mode: Any = ""

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> Self:
        return cls(configuration["mode"].lower())

    def evolve(self, spec: ChunkSpec) -> Self:
        return replace(self, mode=self.mode[spec.shape[0]]) if self.mode == "evolve" else self

    def max_encoded_size(self, size: int) -> int:
        return size // len(self.mode)


@pytest.mark.parametrize(("configuration", "field"), [
    ({}, ".configuration"), ({"mode": 5}, ".configuration"), ({"mode": ""}, ""), ({"mode": "evolve"}, ""),
], ids=repr)  # fmt: skip
def test_what_a_codec_of_another_package_raises(configuration: dict[str, Any], field: str) -> None:
    careless = {"name": "example.careless", "configuration": configuration}
    with registered(_Careless), pytest.raises(MetadataError) as caught:
        stored(chunk_document("int16", (40,), [LITTLE, careless]))
    assert caught.value.field == f"codecs[1]{field}"
    assert isinstance(caught.value.__cause__, LookupError | AttributeError | ArithmeticError)


def test_codecs_that_were_parsed_before() -> None:
    """They are kept after any number of lists, as a server opens them; what is kept decides nothing else."""
    lists = [[codec("gzip", level=1), codec("zstd", level=-at)] for at in range(3 * extensions._MOST_MADE)]
    for each in lists:
        assert codecs_from_json(each) is codecs_from_json(each)
    assert len(extensions._made) <= extensions._MOST_MADE
    values = (None, float("nan"), None)  # Both are null to some writers of JSON.
    errors = refuses(lambda level: codecs_from_json([codec("gzip", level=level)]), values, MetadataError)
    assert [repr(error.found) for error in errors] == ["None", "nan", "None"]
    # Codecs are equal if their documents are.
    for same in ((1, 1.0, True), (0.0, -0.0, 0)):
        assert len({_Careless(value) for value in (*same, *same)}) == len(same)
