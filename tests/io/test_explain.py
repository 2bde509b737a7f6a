"""What ``explain`` says beforehand is what reading asks the store for, and what chunks cost."""

import math
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _fault_server import FaultServer
from _graphs import calls_of
from _large_as_small import large_as_small
from _recording import RecordingStore, Request, recording
from _strategies import layouts, uneven_layouts
from _things import refuses
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import xzarr3
from xzarr3.codecs import BloscCodec, BytesCodec, GzipCodec, ShardingCodec, ZstdCodec
from xzarr3.io import executor as io_executor
from xzarr3.io import fetch as io_fetch
from xzarr3.io.explain import Explanation
from xzarr3.io.shards import _indexes
from xzarr3.stores.local import files

LITTLE = BytesCodec("little")


def forget_indexes() -> None:
    _indexes.__init__()  # type: ignore[misc]


def check(store: RecordingStore, reader: Any, selection: Any, *, threads: int = 1) -> Explanation:
    """Compare what is explained with what is asked for when the same is read."""
    is_array = isinstance(reader, xzarr3.Array)
    forget_indexes()
    with store.recorded() as looked:  # Indexers take all cores.
        found: Explanation = reader.explain(selection, threads=threads if is_array else None)
    forget_indexes()
    with store.recorded() as made:
        result = reader.get(selection, threads=threads) if is_array else np.asarray(reader[selection])
    present = [fetch for fetch in found if fetch.size is not None]
    told = [Request(each.key, *part, each.size or 0) for each in present for part in each.ranges]
    assert (Counter(made), found.requests) == (Counter(told), len(made))
    assert found.bytes_moved == sum(request.length for request in made)
    assert (found.shape, found.bytes_used) == (result.shape, result.nbytes)
    assert {fetch.key for fetch in present} == {request.key for request in made}
    assert (found.units, found.absent) == (len(list(found)), len(list(found)) - len(present))
    assert found.index_requests == sum(fetch.index_requests for fetch in found)
    for fetch in found:
        assert not fetch.whole or fetch.ranges == ((0, fetch.size),)
        for start, length in fetch.ranges:
            assert fetch.size is not None
            assert 0 <= start < start + length <= fetch.size
    shard = (reader if is_array else reader._array).metadata.chain.shard
    assert {request.length for request in looked} <= {-1 if shard is None else shard.index_size}
    return found


def threads_for_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(io_executor, "_SMALL", 1)
    patch.setattr(io_executor, "_LOCKED", 1e-9)


def stored(data: Any, request_bytes: int = 64, traits: Any = None, **options: Any) -> Any:
    store = recording(None, request_bytes, **(traits or {}))
    return store, xzarr3.create_array(store, data=data, **{"compressors": None, **options})


@st.composite
def filled(draw: st.DrawFn, folder: Path) -> tuple[RecordingStore, xzarr3.Array]:
    """An array of which some chunks are absent, in a store that notes what is asked for."""
    shape = tuple(draw(st.lists(st.sampled_from([0, 1, 5, 8, 13]), max_size=3)))
    store = recording(
        draw(st.sampled_from([None, None, xzarr3.LocalStore(folder)])),
        request_bytes=draw(st.sampled_from([1, 16, 64, 4096])), concurrency=draw(st.sampled_from([1, 1, 8])),
        over_read=draw(st.sampled_from([1, 1.5, 2, math.inf])),
    )  # fmt: skip
    dtype = draw(st.sampled_from(["int16", "float64"]))
    uneven = uneven_layouts(dtype, shape).filter(lambda options: "shards" not in options)
    options = draw(st.one_of(layouts(dtype, shape), layouts(dtype, shape), uneven))
    array = xzarr3.create_array(store, shape=shape, **options)
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    region = tuple(slice(draw(st.integers(0, n)) if n else 0, n) for n in shape)
    array[region] = rng.integers(1, 99, [part.stop - part.start for part in region])
    return store, array


@st.composite
def basic(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, ...]:
    found: list[Any] = []
    for size in shape:
        low, high = sorted(draw(st.tuples(st.integers(0, size), st.integers(0, size))))
        part = slice(low, high, draw(st.sampled_from([1, 1, 2, 3])))
        found.append(draw(st.integers(0, size - 1)) if size and draw(st.booleans()) else part)
    return tuple(found)


@pytest.mark.parametrize("seconds", [0, 3600], ids=["an older file", "written just now"])
@pytest.mark.parametrize("threads", [1, 4])
def test_an_index_is_asked_for_once(threads: int, seconds: int, tmp_path: Path, monkeypatch: Any) -> None:
    threads_for_all(monkeypatch)
    monkeypatch.setattr(files, "_SETTLED", seconds * 10**9)
    store = recording(xzarr3.LocalStore(tmp_path / "a"))
    data = np.random.default_rng(0).integers(0, 99, (64, 64), dtype="i4")
    array = xzarr3.create_array(store, data=data, chunks=8, shards=64, compressors="zstd")
    array[3:5, 4] = 7
    found = check(store, array, (slice(3, 30), slice(0, 24)), threads=threads)
    assert found.index_requests == 1
    (shard,) = found
    assert len(set(shard.ranges)) == len(shard.ranges)


def test_plain_chunks_are_read_in_parts_where_that_is_faster() -> None:
    data = np.arange(80, dtype="u1").reshape(8, 10)
    store, array = stored(data, 4, chunks=(4, 10))
    found = check(store, array, (slice(1, 6), 3))
    assert [(fetch.key, fetch.ranges, fetch.whole) for fetch in found] == [
        ("c/0/0", ((13, 1), (23, 1), (33, 1)), False), ("c/1/0", ((3, 1), (13, 1)), False),
    ]  # fmt: skip
    assert (found.requests, found.bytes_moved, found.bytes_used, found.chunks) == (5, 5, 5, 2)
    whole = check(store, array, slice(0, 4))
    assert [(fetch.key, fetch.ranges, fetch.whole) for fetch in whole] == [("c/0/0", ((0, 40),), True)]
    store, array = stored(data, 20, chunks=(8, 10))
    assert check(store, array, (slice(None), 3)).requests == 1
    assert check(store, array, (3, slice(None))).bytes_moved == 10


@pytest.mark.parametrize("shards", [None, 320])
@pytest.mark.parametrize("traits", [{}, {"concurrency": 8, "over_read": 1}], ids=["near", "far"])
def test_points_in_a_plain_chunk_are_one_range(shards: int | None, traits: dict[str, Any]) -> None:
    store, array = stored((np.arange(320) % 160).astype("u1"), 4, traits, chunks=80, shards=shards)
    for points, expected in (([3], (3, 1)), ([41, 3, 3, 20, 22], (3, 39)), ([0, 79], (0, 80))):
        (fetch,) = check(store, array.vindex, (points,))
        assert fetch.ranges[fetch.index_requests :] == (expected,)
        for reader in (array.vindex, array.oindex):
            np.testing.assert_array_equal(reader[points], points)


@pytest.mark.parametrize("selection", [5, (5, 7), (slice(None), 5), (slice(3, 40), 5, slice(7, 9))], ids=str)
@pytest.mark.parametrize(("concurrency", "request_bytes"), [(1, 2**12), (64, 2**20)])
def test_a_part_of_a_large_chunk_moves_little(selection: Any, concurrency: int, request_bytes: int) -> None:
    """Of an uncompressed block of 64 MiB, over which only its ends were written."""
    traits = {"request_bytes": request_bytes, "over_read": 2, "concurrency": concurrency}
    store, shape = xzarr3.MemoryStore().with_traits(**traits), (64, 512, 512)
    array = xzarr3.create_array(store, shape=shape, chunks=shape, dtype="f4", compressors=None)
    array.store.set("c/0/0/0", bytes(array.nbytes))
    found = array.explain(selection)
    assert found.bytes_moved < 4 * 2**20
    assert found.requests <= 64


def test_a_slab_of_a_chunk_moves_no_more_than_twice_what_is_wanted_where_requests_wait_together() -> None:
    data = np.arange(32 * 2**16, dtype="u4").reshape(32, -1)  # 32 rows of 256 KiB
    store, array = stored(data, 2**20, {"concurrency": 64}, chunks=data.shape)
    found = check(store, array, (slice(None), slice(100, 2**13)))
    assert 16 < found.requests <= 32
    assert found.bytes_moved <= 2 * found.bytes_used
    # Of more parts than wait together, all is read at once.
    fewer = recording(store.inner, request_bytes=2**20, concurrency=16)
    assert check(fewer, xzarr3.open_array(fewer), (slice(None), slice(100, 2**13))).requests == 1


def test_fields_are_fetched_with_all_others() -> None:
    dtype = np.dtype([("x", "i4"), ("y", "f8"), ("z", "S3")])
    store, array = stored(np.zeros(20, dtype), chunks=5, write_empty_chunks=True, zarr_format=2)
    whole = check(store, array, slice(0, 10))
    assert whole.bytes_used == 10 * dtype.itemsize
    for fields, size in (("x", 4), ("z", 3), (["x", "y"], 12), (["y"], 8)):
        for reader in (array, array.oindex, array.vindex):
            found = reader.explain((fields, slice(0, 10)))
            assert (found.bytes_moved, found.bytes_used) == (whole.bytes_moved, 10 * size)
            assert found.shape == np.shape(reader[fields, 0:10])


def _ranges(log: list[dict[str, Any]]) -> Counter[tuple[int, int]]:
    """The ranges that a server was asked for, from the start of a value or from its end."""
    found: Counter[tuple[int, int]] = Counter()
    for entry in log:
        first, _, last = entry["range"].removeprefix("bytes=").partition("-")
        found[(int(first), int(last) - int(first) + 1) if first else (-int(last), int(last))] += 1
    return found


@pytest.mark.parametrize("service", ["s3", "http"])
@pytest.mark.parametrize("compressors", [None, "zstd"])
def test_a_column_through_a_shard_moves_little(fault_server: Any, service: str, compressors: Any) -> None:
    """Of a shard of 4.2 MB a server is asked for what is explained."""
    options: Any = {"key": "k", "secret": "s", "endpoint_url": fault_server.url}
    data = np.random.default_rng(1).integers(0, 2**32, (1024, 1024), dtype="u4")
    store = xzarr3.ObjectStore("s3://b/x", storage_options=options)
    xzarr3.create_array(store, data=data, chunks=64, shards=1024, compressors=compressors)
    url, given = ("s3://b/x", options) if service == "s3" else (f"{fault_server.url}/b/x", None)
    wanted = 16 * 64 * 64 * 4

    def read(**settings: Any) -> tuple[int, int]:
        array = xzarr3.open_array(xzarr3.ObjectStore(url, storage_options=given, **settings))
        forget_indexes()
        found = array.explain((slice(None), 5))
        forget_indexes()
        fault_server.clear_log()
        np.testing.assert_array_equal(array[:, 5], data[:, 5])
        asked = _ranges(fault_server.log("GET"))
        (fetch,) = found
        assert fetch.size is not None
        index = fetch.ranges[0]
        assert asked == Counter([*fetch.ranges[1:], (index[0] - fetch.size, index[1])])
        assert sum(length * number for (_, length), number in asked.items()) == found.bytes_moved
        return found.requests, found.bytes_moved - index[1]

    byte_ranges, moved = read()
    assert (moved <= 2.1 * wanted, byte_ranges <= 16) == (True, True)
    byte_ranges, moved = read(over_read=1.05)
    assert byte_ranges == 17
    assert wanted <= moved < 1.01 * wanted
    byte_ranges, moved = read(over_read=1)
    assert (byte_ranges, moved) == (17, moved) if compressors else (1025, 4096)
    byte_ranges, moved = read(over_read=math.inf)
    assert (byte_ranges, moved > 3_900_000) == (2, True)


def test_small_chunks_of_a_shard_side_by_side_are_one_request() -> None:
    data = np.random.default_rng(1).integers(0, 99, 2**20, dtype="u1")
    store, array = stored(data, 2**20, chunks=512, shards=2**20, compressors="zstd")
    few = np.arange(0, 2**20, 2**16)  # All of these take less than 1 MiB.
    for selection in (slice(3000, 400_000), slice(100, 500_000), few):
        assert check(store, array, selection).requests == 2


def test_the_index_of_a_shard_is_read_once() -> None:
    store, array = stored(np.arange(64, dtype="u1"), 1, chunks=2, shards=32, fill_value=255)
    size = 16 * 16 + 4
    (fetch,) = found = check(store, array, slice(3, 9))
    assert (fetch.ranges[0], fetch.size) == ((32, size), 32 + size)
    assert (fetch.index_requests, found.index_requests, found.chunks) == (1, 1, 4)
    (fetch,) = whole = check(store, array, slice(0, 20))
    assert fetch.whole
    assert (whole.requests, whole.index_requests, whole.bytes_moved) == (1, 0, 32 + size)


def test_shards_in_shards() -> None:
    inner = ShardingCodec((2,), (LITTLE,), index_codecs=(LITTLE,))
    outer = ShardingCodec((16,), (inner,), index_codecs=(LITTLE,))
    store, array = stored(np.arange(1, 129, dtype="u1"), 1, chunks=128, serializer=outer)
    size, index = 16 + 8 * 16, 8 * 16
    for selection in (slice(16, 32), [17, 22]):  # The shard within is read whole.
        (part,) = check(store, array, selection)
        assert (part.ranges, part.chunks, part.index_requests) == (((8 * size, index), (size, size)), 1, 1)
    (most,) = check(store, array, slice(10, 128, 3))
    assert (most.whole, most.chunks) == (True, 8)


def test_indexes_that_are_kept_are_asked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = recording(xzarr3.LocalStore(tmp_path / "a"))
    array = xzarr3.create_array(store, data=np.arange(100), chunks=1, shards=50)
    for key in ("c/0", "c/1"):
        os.utime(tmp_path / "a" / key, (0, 0))
    monkeypatch.setattr("xzarr3.stores.local.files._SETTLED", -(2**63))
    selection = [3, 60]
    for _ in range(2):  # What is kept makes no difference to what is explained.
        found = array.explain(selection)
        assert (found.requests, found.index_requests) == (4, 2)
    forget_indexes()
    with store.recorded() as first:
        array[selection]
    with store.recorded() as second:
        array[selection]
    assert (len(first), len(second)) == (found.requests, found.requests - found.index_requests)
    index = {(request.key, request.length) for request in first} - {(r.key, r.length) for r in second}
    assert len(index) == 2
    threads_for_all(monkeypatch)
    shared = array.explain(slice(None, None, 7), threads=8)  # Each thread reads one shard.
    assert (shared.units, shared.index_requests, shared.requests) == (2, 2, 2 + shared.chunks)


def test_a_shard_in_memory_is_opened_by_reading_all_of_it() -> None:
    array = xzarr3.create_array(xzarr3.MemoryStore(), data=np.arange(1, 101), chunks=10, shards=50)
    whole = array.store.getsize("c/0")
    for threads in (1, 4):
        found = array.explain(slice(0, 3), threads=threads)
        with xzarr3.trace() as t:
            array.get(slice(0, 3), threads=threads)
        assert (found.chunks, found.requests, found.bytes_moved, found.first[0].whole) == (1, 1, whole, True)
        assert (t.arrays["/"]["requests"], t.arrays["/"]["bytes_read"]) == (1, whole)


def test_a_damaged_index_is_found() -> None:
    array = xzarr3.create_array(xzarr3.MemoryStore(), data=np.arange(8), chunks=1, shards=8)
    value = bytearray(array.store.get("c/0") or b"")
    value[-1] ^= 1
    array.store.set("c/0", value)
    refuses(array.explain, [3], xzarr3.ChunkDecodeError, r"key 'c/0', chunk \(0,\).*index is not valid")


def test_absent_chunks_cost_nothing() -> None:
    store = recording()
    array = xzarr3.create_array(store, shape=12, chunks=3, dtype="i4")
    array[3:6] = 1
    found = check(store, array, ...)
    assert (found.units, found.absent, found.requests, found.chunks) == (4, 3, 1, 1)
    assert [fetch.size for fetch in found][::2] == [None, None]
    assert "c/0: absent, the fill value" in str(found)
    inner = xzarr3.create_array(store, overwrite=True, shape=12, chunks=1, shards=12, dtype="i4")
    inner[4] = 1
    found = check(store, inner, slice(3, 6))
    assert (found.units, found.absent, found.chunks, found.requests) == (1, 0, 1, 2)
    store, array = stored(np.ones((4, 0, 3)), chunks=2)
    assert check(store, array, ...).units == 0
    store, array = stored(np.ones((4, 3)), chunks=2)
    for selection in (slice(0, 0), [], (slice(None), [])):
        found = check(store, array, selection)
        assert (found.units, found.requests, found.bytes_used) == (0, 0, 0)
        assert "moved for each" not in str(found)


def test_text_and_json(tmp_path: Path) -> None:
    options = {"chunks": 10, "shards": 50, "compressors": "zstd"}
    array = xzarr3.create_array(tmp_path / "s.zarr", "a/b", data=np.arange(1, 101, dtype="i2"), **options)
    array[:50] = 0
    found = array.explain(slice(40, 62, 2))
    lines = str(found).splitlines()
    assert lines[:7] == [
        "read of shape (11,) from array '/a/b'", "keys         2, of which 1 absent",
        "chunks       2 decoded", "requests     2, of which 1 for indexes of shards",
        f"bytes moved  {found.bytes_moved} B",
        f"bytes used   22 B ({found.bytes_moved / 22:.3g} moved for each)",
        "  a/b/c/0: absent, the fill value",
    ]  # fmt: skip
    assert lines[7].startswith("  a/b/c/1: ")
    document: Any = found.to_json()
    assert (document["shape"], document["requests"]) == ([11], 2)
    assert [fetch["key"] for fetch in document["fetches"]] == ["a/b/c/0", "a/b/c/1"]
    many = xzarr3.create_array(xzarr3.MemoryStore(), data=np.ones(50), chunks=1).explain()
    assert str(many).endswith("  and 30 more")
    assert (len(many.first), len(list(many))) == (20, 50)


def test_a_store_without_open_reads_whole_values() -> None:
    class Plain(xzarr3.MemoryStore):
        open = xzarr3.Store.open  # type: ignore[assignment]

    data = np.arange(1, 65, dtype="u1")
    array = xzarr3.create_array(Plain(), data=data, chunks=1, shards=32, compressors=None)
    found, size = array.explain([3, 40]), 32 + 32 * 16 + 4
    assert [(fetch.size, fetch.whole) for fetch in found] == [(size, True)] * 2
    with xzarr3.trace() as t:
        array[[3, 40]]
    counted = t.arrays["/"]
    assert (found.requests, found.bytes_moved) == (2, 2 * size)
    assert (counted["requests"], counted["bytes_read"]) == (2, 2 * size)


@pytest.mark.parametrize("tagged", [False, True])
def test_a_server_that_does_not_say_when_a_part_was_stored(fault_server: FaultServer, tagged: bool) -> None:
    """The head of a value tells it, and an answer with a part of the same value does not."""
    values, place = xzarr3.MemoryStore(), f"/untimed/{tagged}"
    xzarr3.create_array(values, data=np.arange(1000.0), chunks=10, shards=500)
    fault_server.put_all({f"{place}/{key}": bytes(values.get(key) or b"") for key in values.list_prefix("")})
    lacking = {"Last-Modified": None} if tagged else {"Last-Modified": None, "ETag": None}
    fault_server.fault("headers", f"{place}/c/*", methods=["GET"], headers=lacking)
    if not tagged:
        fault_server.fault("headers", f"{place}/c/*", methods=["HEAD"], headers={"ETag": None})
    try:
        array = xzarr3.open_array(f"{fault_server.url}{place}")
        forget_indexes()
        assert (array.explain(slice(3, 5)).chunks, array[3:5].tolist()) == (1, [3.0, 4.0])
    finally:
        fault_server.clear_faults()


@settings(max_examples=40, suppress_health_check=[*HealthCheck])
@given(st.data())
def test_what_is_explained_is_what_is_asked_for(tmp_path_factory: Any, data: st.DataObject) -> None:
    store, array = data.draw(filled(tmp_path_factory.mktemp("explained")))
    shape, threads = array.shape, st.sampled_from([1, 1, 4])
    with large_as_small(windows=data.draw(st.booleans())), pytest.MonkeyPatch.context() as patch:
        patch.setattr(io_fetch, "_FREE", 16)
        for selection in (data.draw(basic(shape)), data.draw(basic(shape)), ...):
            check(store, array, selection, threads=data.draw(threads))
        number = data.draw(st.integers(0, 5)) if 0 not in shape else 0
        points = tuple([data.draw(st.integers(0, size - 1)) for _ in range(number)] for size in shape)
        check(store, array, tuple(map(np.array, points)) if number else ..., threads=data.draw(threads))
        selections = [points]
        if shape:
            selections.append((*points[:-1], slice(None, None, data.draw(st.sampled_from([1, 2, -1])))))  # type: ignore[arg-type]
            mask = np.zeros(shape, bool)
            mask[points] = True
            check(store, array, mask)
            blocks = data.draw(basic(array.shard_grid_shape))
            blocks = tuple(slice(b.start, b.stop) if isinstance(b, slice) else b for b in blocks)
            check(store, array.blocks, blocks)
        for each in selections:
            check(store, array.vindex, each)
            check(store, array.oindex, each)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "size"), [(32, 16 * 2**10), (4, 2**20)])
@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("compressor", [None, ZstdCodec(), BloscCodec("lz4"), GzipCodec(1)], ids=str)
def test_a_further_chunk_takes_six_python_calls_at_most(
    tmp_path: Path, compressor: Any, shards: bool, number: int, size: int
) -> None:
    options = {"compressors": compressor, "shards": (number, size) if shards else None}
    data = np.ones((number, size), "float32")
    array = xzarr3.create_array(tmp_path / "a", data=data, chunks=(1, size), **options)

    def further(*columns: slice) -> float:
        half = calls_of(lambda: array.get((slice(0, number // 2), *columns), threads=1))
        whole = calls_of(lambda: array.get((slice(None), *columns), threads=1))
        return (whole - half) / (number - number // 2)

    assert further() <= 6
    if compressor is not None and not shards:
        assert further(slice(1, None)) <= 6
