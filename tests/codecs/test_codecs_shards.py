"""Shards: made by hand, and with an index that lies or inner chunks that are bad."""

import gzip
import json
import struct
import zlib
from typing import Any

import numpy as np
import pytest
import zstandard
from _chains import EMPTY, MIB, checked, refused, refused_within
from _peers import BIG, CRC32C, LITTLE, codec, sharding
from _slow import slow, slow_but
from _strategies import attempt, chunk_document, stored
from _things import refuses
from hypothesis import given, settings
from hypothesis import strategies as st

import xzarr3
from xzarr3 import ChunkDecodeError
from xzarr3.codecs import parse_codec

BYTES = codec("bytes")
GZIP, ZSTD = codec("gzip", level=5), codec("zstd", level=3, checksum=False)
BLOSC = codec("blosc", cname="lz4", clevel=5, shuffle="noshuffle", typesize=1, blocksize=0)
SWAP, KEEP = codec("transpose", order=[1, 0]), codec("transpose", order=[0, 1])
INNER = [bytes([10 * at + n for n in range(6)]) for at in range(4)]
"""The inner chunks of a 4 by 6 shard of 2 by 3 chunks of uint8."""
TURNED = [np.frombuffer(part, "u1").reshape(2, 3).T.tobytes() for part in INNER]


def shard_values(missing: tuple[int, ...] = (), fill: int = 0) -> Any:
    blank = np.full((2, 3), fill, "u1")
    parts = [blank if at in missing else np.frombuffer(INNER[at], "u1").reshape(2, 3) for at in range(4)]
    return np.block([[parts[0], parts[1]], [parts[2], parts[3]]])


def shard_of(entries: Any, body: bytes, location: str = "end", order: str = "<", check: bool = True) -> bytes:
    index = b"".join(struct.pack(f"{order}QQ", *entry) for entry in entries)
    index = checked(index) if check else index
    return index + body if location == "start" else body + index


def build_shard(
    parts: list[Any], location: str = "end", order: tuple[int, ...] | None = None, gap: bytes = b"",
    endian: str = "<", check: bool = True,
) -> bytes:  # fmt: skip
    """A shard put together by hand: in any order, with gaps between the inner chunks."""
    start = 16 * len(parts) + 4 * check if location == "start" else 0
    entries, body = [EMPTY] * len(parts), b""
    for at in order or range(len(parts)):
        body += gap
        if parts[at] is not None:
            entries[at] = (start + len(body), len(parts[at]))
            body += parts[at]
    return shard_of(entries, body + gap, location, endian, check)


def open_shard(store: xzarr3.Store, data: bytes, *codecs: Any, fill: int = 0) -> xzarr3.Array:
    document = chunk_document("uint8", (4, 6), list(codecs), fill_value=fill)
    store.set("zarr.json", json.dumps(document).encode())
    store.set("c/0/0", data)
    return xzarr3.open_array(store, mode="r+")


def check_parts(array: xzarr3.Array, expected: Any) -> None:
    """Read a shard whole and in parts, which are different ways through the code."""
    for selection in (..., (0, 0), (3, 5), (slice(None), 4), (1, slice(1, 5)), (slice(1, 3), slice(2, 4)),
                      (slice(None, None, -3), slice(None, None, 2)), (slice(0, 2), slice(0, 3))):  # fmt: skip
        assert np.array_equal(array[selection], expected[selection])
    assert np.array_equal(array.read_chunk((0, 0)), expected)


def check_change(array: xzarr3.Array, expected: Any) -> None:
    check_parts(array, expected)
    changed = expected.copy()
    array[1, 1] = changed[1, 1] = 200
    check_parts(array, changed)


@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize(("endian", "check"), [("<", True), (">", True), ("<", False), (">", False)])
def test_layout(location: str, endian: str, check: bool, store: xzarr3.Store) -> None:
    index = (LITTLE if endian == "<" else BIG, *([CRC32C] if check else []))
    data = build_shard(INNER, location, endian=endian, check=check)
    array = open_shard(store, data, sharding((2, 3), BYTES, index=index, location=location))
    assert (array.chunks, array.shards) == ((2, 3), (4, 6))
    check_parts(array, shard_values())
    # Written by us it is the same: in C order, without gaps.
    array[...] = 255
    array[...] = shard_values()
    assert bytes(store.get("c/0/0") or b"") == data


@pytest.mark.parametrize("location", [slow("start"), "end"])
@pytest.mark.parametrize("gap", [b"", b"gap", bytes(1000)], ids=len)
def test_any_order_gaps_and_missing_chunks(location: str, gap: bytes, store: xzarr3.Store) -> None:
    for missing in ((), (0,), (1, 2), (0, 1, 2, 3)):
        for order in ((0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)):
            parts = [None if at in missing else part for at, part in enumerate(INNER)]
            data = build_shard(parts, location, order, gap)
            array = open_shard(store, data, sharding((2, 3), BYTES, location=location), fill=77)
            check_change(array, shard_values(missing, 77))


def around_and_within(gap: bytes) -> dict[str, tuple[list[Any], bytes]]:
    plain = build_shard(INNER, gap=gap)
    found: dict[str, tuple[list[Any], bytes]] = {}
    for inner in (ZSTD, GZIP, BLOSC, CRC32C):
        data = build_shard([bytes(parse_codec(inner).encode(part)) for part in INNER], gap=gap)
        found[f"{inner['name']} within"] = ([sharding((2, 3), BYTES, inner)], data)
    nested = [build_shard(INNER[at : at + 2], "start", (1, 0), gap) for at in (0, 2)]
    outer = sharding((2, 6), sharding((2, 3), BYTES, location="start"))
    # The shard of a transposed 4 by 6 chunk is 6 by 4, of 3 by 2 inner chunks.
    turned = build_shard([TURNED[at] for at in (0, 2, 1, 3)], gap=gap)
    return found | {
        "gzip around": ([sharding((2, 3), BYTES), GZIP], gzip.compress(plain)),
        "zstd around": ([sharding((2, 3), BYTES), ZSTD], zstandard.ZstdCompressor().compress(plain)),
        "crc32c around": ([sharding((2, 3), BYTES), CRC32C], checked(plain)),
        "transposed within": ([sharding((2, 3), SWAP, BYTES)], build_shard(TURNED, gap=gap)),
        "transposed around": ([SWAP, sharding((3, 2), BYTES)], turned),
        "nested": ([outer], build_shard(nested, order=(1, 0), gap=gap)),
    }


@pytest.mark.parametrize("gap", [b"", b"gap", bytes(500)], ids=len)
@pytest.mark.parametrize("name", around_and_within(b""))
def test_codecs_around_and_within(name: str, gap: bytes, store: xzarr3.Store) -> None:
    codecs, data = around_and_within(gap)[name]
    array = open_shard(store, data, *codecs)
    assert (array.shards is None) == ("around" in name)
    check_change(array, shard_values())


def test_only_inner_chunks_that_hold_something_are_stored() -> None:
    array = stored(chunk_document("uint8", (4, 6), [sharding((2, 3), BYTES)], fill_value=3))
    values = np.full((4, 6), 3, "u1")
    values[2, 3] = 9
    array[...] = values
    assert array.store.get("c/0/0") == shard_of([EMPTY, EMPTY, EMPTY, (0, 6)], bytes([9, 3, 3, 3, 3, 3]))
    array[2, 3] = 3
    assert array.store.get("c/0/0") is None
    # Without dimensions, too, one may be bad.
    codecs = [sharding((), LITTLE, index=(LITTLE,))]
    array = stored(chunk_document("uint8", (), codecs), {"c": shard_of([(NONE, 1)], b"\1", check=False)})
    reads = array.get, lambda: array.metadata.chain.decode(array.store.get("c"))
    for error in refuses(lambda read: read(), reads, ChunkDecodeError):
        assert error.inner_chunk == ()
    array.store.set("c", shard_of([(0, 1)], b"\1", check=False))
    assert array[()] == 1


NONE = 2**64 - 1
LIES = {
    # From the size of an inner chunk and that of the shard, the entry of the last inner chunk.
    "beyond the end": lambda n, end: (end, n), "over the end": lambda n, end: (end - n + 1, n),
    "far": lambda n, end: (2**62, n), "largest signed": lambda n, end: (2**63 - 1, n),
    "not signed": lambda n, end: (2**63, n), "sum beyond 64 bits": lambda n, end: (NONE - 2, n),
    "no offset": lambda n, end: (NONE, n), "no offset and no bytes": lambda n, end: (NONE, 0),
    "no size": lambda n, end: (0, NONE), "one less": lambda n, end: (NONE - 1, NONE),
    "two less": lambda n, end: (NONE, NONE - 1), "too large": lambda n, end: (0, n + MIB),
    "far too large": lambda n, end: (0, 2**63), "one more": lambda n, end: (0, n + 1),
    "one fewer": lambda n, end: (0, n - 1), "no bytes": lambda n, end: (0, 0),
    "no bytes far away": lambda n, end: (2**63, 0),
}  # fmt: skip
SEEN_WHEN_DECODED = ("one more", "one fewer", "no bytes", "no bytes far away")
NESTED_PARTS = [build_shard([part[:3], part[3:]]) for part in INNER]
KINDS: dict[str, tuple[list[bytes], list[Any]]] = {
    "plain": (INNER, [BYTES]), "nested": (NESTED_PARTS, [sharding((1, 3), BYTES)]),
    "compressed": (INNER, [BYTES]), "transposed": (INNER, [BYTES]),
}  # fmt: skip
CHANGES = {
    "there": np.s_[3, 4], "replaced there": np.s_[2:, 3:], "elsewhere": np.s_[0, 0],
    "replaced elsewhere": np.s_[:2, :3],
}  # fmt: skip


@pytest.mark.parametrize("location", [slow("start"), "end"])
@pytest.mark.parametrize("kind", slow_but(KINDS, "plain", "nested"))
@pytest.mark.parametrize("lie", LIES)
def test_entries_that_cannot_be_true(lie: str, kind: str, location: str, store: xzarr3.Store) -> None:
    """No way to read takes the entry for true, and no write loses or hides the inner chunk."""
    parts, inner = KINDS[kind]
    size = len(parts[0])
    start = 68 if location == "start" else 0
    entries = [(start + size * at, size) for at in range(3)]
    entries.append(LIES[lie](size, 68 + 4 * size))
    value = shard_of(entries, b"".join(parts), location)
    codecs: list[Any] = [sharding((2, 3), *inner, location=location)]
    if kind == "compressed":  # Shards that are compressed or transposed are read whole.
        codecs, value = [*codecs, GZIP], gzip.compress(value)
    elif kind == "transposed":
        codecs = [KEEP, *codecs]
    array = open_shard(store, value, *codecs, fill=42)

    def check(call: Any) -> None:
        (error,) = refuses(lambda call: call(), [call], ChunkDecodeError)
        assert (error.key, error.chunk, (error.inner_chunk or ())[:2]) == ("c/0/0", (0, 0), (1, 1))
        assert error.codec in ("sharding_indexed", "crc32c", "bytes")
        assert "c/0/0" in str(error)
        assert "(1, 1" in str(error)

    for selection in (..., (3, 5), np.s_[2:4, 3:6], np.s_[:, -1], np.s_[-1, :]):
        check(lambda selection=selection: array[selection])
    for where, selection in CHANGES.items():
        for number in (1, 42):  # 42 is the fill value.
            if lie in SEEN_WHEN_DECODED and where != "there":
                store.set("c/0/0", value)
                attempt(lambda s=selection, n=number: array.set(s, n), ChunkDecodeError)
                if "elsewhere" in where:
                    check(lambda: array[3, 5])
            else:
                check(lambda s=selection, n=number: array.set(s, n))
                assert bytes(store.get("c/0/0") or b"") == value
    store.set("c/0/0", value)
    if kind in ("plain", "nested"):
        assert np.array_equal(array[:2], shard_values()[:2])
    array[...] = 1
    assert (array[...] == 1).all()


@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("case", ["nothing", "less than an index", "truncated", "flipped"])
def test_indexes_that_are_damaged(case: str, location: str, store: xzarr3.Store) -> None:
    good = build_shard(INNER, location)
    flipped = bytearray(good)
    flipped[5 if location == "start" else 29] ^= 1
    sizes = {"nothing": 0, "less than an index": 67, "truncated": len(good) - 1}
    data = good[: sizes[case]] if case in sizes else bytes(flipped)
    array = open_shard(store, data, sharding((2, 3), BYTES, location=location), fill=42)
    calls = array.get, lambda: array[3, 5], lambda: array[:, -1], lambda: array.set((3, 4), 1)
    for error in refuses(lambda call: call(), calls, ChunkDecodeError):
        assert (error.chunk, error.key) == ((0, 0), "c/0/0")
        assert error.codec in ("sharding_indexed", "crc32c", "bytes")
    assert bytes(store.get("c/0/0") or b"") == data
    array[...] = 1
    assert (array[...] == 1).all()


def test_bad_inner_chunk_spoils_no_other(store: xzarr3.Store) -> None:
    parts = [zstandard.ZstdCompressor(write_checksum=True).compress(part) for part in INNER]
    parts[2] = parts[2][:-1] + b"\0"
    array = open_shard(store, build_shard(parts), sharding((2, 3), BYTES, ZSTD))
    assert np.array_equal(array[0:2], shard_values()[0:2])
    assert array[3, 4] == shard_values()[3, 4]
    for selection in ((2, 2), ...):
        error = refused(lambda s=selection: array[s], "zstd", chunk=(0, 0), key="c/0/0")
        assert error.inner_chunk == (1, 0)


@pytest.mark.parametrize("around", [[], [GZIP]], ids=["alone", "compressed"])
def test_error_in_a_nested_shard_names_both_chunks(around: list[Any], store: xzarr3.Store) -> None:
    good = build_shard(INNER[:2], "start")
    bad = shard_of([(36, 6), (1000, 6)], INNER[2] + INNER[3], "start")
    nested = sharding((2, 6), sharding((2, 3), BYTES, location="start"))
    data = build_shard([good, bad], order=(1, 0))
    array = open_shard(store, gzip.compress(data) if around else data, nested, *around)
    if not around:  # What is compressed is decoded whole.
        assert np.array_equal(array[0:2], shard_values()[0:2])
    for selection in ((2, 4), ...):
        error = refused(lambda s=selection: array[s], "sharding_indexed", chunk=(0, 0), key="c/0/0")
        assert error.inner_chunk == (1, 0, 0, 1)


def test_small_shards_that_claim_much_take_little_memory(store: xzarr3.Store) -> None:
    data = build_shard([gzip.compress(bytes(48 * MIB), 9), None, None, None])
    array = open_shard(store, data, sharding((2, 3), BYTES, GZIP))
    refused_within(MIB, lambda: array[0, 0])
    document = chunk_document("uint8", (2**40,), [sharding((1,), BYTES)], shape=[10])
    giant = stored(document, {"c/0": bytes(1000)})
    assert "index" in refused_within(MIB, giant.get).reason


def expected_parts(value: bytes, entries: list[tuple[int, int]], compressed: bool) -> list[Any]:
    """What numpy and zlib make of each inner chunk; None of one that cannot be had."""
    parts: list[Any] = []
    for offset, size in entries:
        data: Any = value[offset : offset + size]
        if (offset, size) == EMPTY:
            data = bytes([77] * 6)
        elif offset == NONE or len(data) != size:
            data = b""
        elif compressed:
            member = zlib.decompressobj(31)
            data, error = attempt(lambda member=member, data=data: member.decompress(data), zlib.error)
            data = b"" if error or not member.eof or member.unused_data else data
        parts.append(np.frombuffer(data, "u1").reshape(2, 3) if len(data) == 6 else None)
    return parts


@pytest.mark.slow
@pytest.mark.parametrize("location", ["start", "end"])
@settings(max_examples=150)
@given(data=st.data(), compressed=st.booleans(), gap=st.sampled_from([0, 1, 100]))
def test_any_index(location: str, data: st.DataObject, compressed: bool, gap: int) -> None:
    """Every way to read gives what the index says, or an error; a write keeps what it does not change."""
    stored_parts = [gzip.compress(part, mtime=0) if compressed else part for part in INNER]
    size, start = len(stored_parts[0]), 64 if location == "start" else 0
    good = [(start + at * size, size) for at in range(4)]
    near = st.sampled_from([number for entry in good for number in entry]).flatmap(
        lambda number: st.integers(-2, 2).map(lambda by: (number + by) % 2**64)
    )
    powers = st.sampled_from([2**20, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, NONE])
    number = st.one_of(near, st.integers(0, 200), powers, st.integers(0, NONE))
    entry = st.one_of(st.sampled_from(good), st.tuples(number, number), st.just(EMPTY))
    entries = data.draw(st.lists(entry, min_size=4, max_size=4))
    body = b"".join(stored_parts)
    value = shard_of(entries, body + bytes(gap) if start else bytes(gap) + body, location, check=False)
    inner = (BYTES, GZIP) if compressed else (BYTES,)
    codec = sharding((2, 3), *inner, index=(LITTLE,), location=location)
    array = open_shard(xzarr3.MemoryStore(), value, codec, fill=77)
    parts = expected_parts(value, entries, compressed)
    known = [np.zeros((2, 3), "u1") if part is None else part for part in parts]
    expected = np.block([[known[0], known[1]], [known[2], known[3]]])
    owner = np.repeat(np.repeat(np.arange(4).reshape(2, 2), 2, 0), 3, 1)

    def check(selection: Any) -> None:
        found, error = attempt(lambda: array.get(selection), ChunkDecodeError)
        if error is None:
            assert all(parts[at] is not None for at in np.unique(owner[selection])), (selection, entries)
            assert np.array_equal(found, expected[selection]), (selection, entries)
        else:  # Reading the whole shard may refuse a part that is not needed.
            assert any(part is None for part in parts), (selection, entries, str(error))
            assert (error.key, error.chunk, error.codec is None) == ("c/0/0", (0, 0), False)  # type: ignore[attr-defined]

    for selection in (..., *np.ndindex(4, 6), *(np.s_[at : at + 2, at : at + 4] for at in range(3))):
        check(selection)
    for at, part in enumerate(parts):
        if part is None:
            continue
        array.store.set("c/0/0", value)
        first = (at // 2 * 2, at % 2 * 3)
        _, error = attempt(lambda first=first: array.set(first, 7), ChunkDecodeError)  # type: ignore[misc]
        if error is not None:
            assert any(part is None for part in parts), (at, entries)
            assert array.store.get("c/0/0") == value
            continue
        before, expected[first] = expected[first], 7
        for row, column in ((0, 0), (0, 3), (2, 0), (2, 3)):
            check(np.s_[row : row + 2, column : column + 3])
        expected[first] = before
