"""Decoded chunks that are kept: how often chunks are decoded, and that no read gives old values.

Reads are compared with numpy's, with writes in between, in test_arrays.py and test_selections.py.
"""

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from _processes import printed_by
from _strategies import same_bits
from _things import refused
from _waiting import WaitingStore

import xzarr3
from xzarr3 import ArgumentError, ChunkCache
from xzarr3.io.executor import Engine
from xzarr3.stores.local import files

ROWS = np.random.default_rng(0).normal(size=(256, 20))


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files count as unchanging at once, which they do after a second."""
    monkeypatch.setattr(files, "_SETTLED", 0)


def opened(data: Any = ROWS, size: Any = "1 MiB", store: Any = None, **options: Any) -> xzarr3.Array:
    store = xzarr3.MemoryStore() if store is None else store
    xzarr3.create_array(store, "a", data=data, **{"chunks": (32, 20), **options})
    return xzarr3.open_array(store, "a", mode="r+", chunk_cache=size)


def decoded(trace: Any) -> tuple[int, int]:
    """Chunks decoded, and chunks that were kept."""
    return trace.total["chunks_decoded"], trace.total.get("chunks_kept", 0)


def kept(array: xzarr3.Array, *rows: int) -> list[int]:
    return [array.explain(row).chunks_kept for row in rows]


@pytest.mark.parametrize("layout", [
    {}, {"shards": (64, 20), "chunks": (32, 10)}, {"chunks": ([99, 4, 153], 7)}, {"order": "F"}])  # fmt: skip
def test_sliding_windows_decode_each_chunk_once(layout: dict[str, Any]) -> None:
    array = opened(**layout)
    with xzarr3.trace() as trace:
        for start in range(len(ROWS) - 3):
            assert same_bits(array[start : start + 4], ROWS[start : start + 4])
    assert decoded(trace)[0] == array.nchunks


def test_the_least_recently_used_chunk_goes_first() -> None:
    array = opened(size=2 * (32 * 20 * 8 + 512))
    for row in (0, 32, 0, 64):
        array[row]
    assert kept(array, 0, 32, 64) == [1, 0, 1]
    with xzarr3.trace() as trace:
        assert same_bits(array[...], ROWS)  # Beyond the budget: the cache stays as it is.
    assert decoded(trace) == (8, 0)
    assert kept(array, 0, 32, 64) == [1, 0, 1]
    cache = array.chunk_cache
    assert cache is not None
    cache.clear()
    assert (len(cache), cache.nbytes, array.explain().chunks) == (0, 0, 8)


def test_values_read_are_the_users_own() -> None:
    array = xzarr3.create_array(xzarr3.MemoryStore(), data=ROWS, chunks=(32, 20))
    assert array.chunk_cache is xzarr3.open_array(array.store).chunk_cache is None
    with xzarr3.trace() as trace:  # By default nothing is kept.
        array[:3], array[:3]
    assert decoded(trace) == (2, 0)
    array, into = opened(), np.empty((32, 20))
    for found in (array[:32], array.get(slice(32), out=into)):
        found[...] = 0
        assert same_bits(array[:32], ROWS[:32])


def test_explain_and_trace_tell_what_is_kept() -> None:
    array = opened(shards=(64, 20), chunks=(32, 10))
    array[0:40, 0:5]
    found = array.explain(slice(0, 70))
    assert (found.chunks_kept, found.chunks) == (2, 4)
    assert "4 decoded, 2 from the cache" in str(found)
    with xzarr3.trace() as trace:
        array[0:70]
    assert (decoded(trace), trace.arrays["/a"]["chunks_kept"]) == ((4, 2), 2)
    assert repr(array.chunk_cache).startswith("<xzarr3.ChunkCache 6 chunks, ")


def test_arrays_of_a_group_share_one_cache() -> None:
    store = xzarr3.MemoryStore()
    for name in ("a", "b/c"):
        xzarr3.create_array(store, name, data=ROWS, chunks=(32, 20))
    opened = xzarr3.open_group(store, chunk_cache="1 MiB")
    given: Any = xzarr3.open(store, chunk_cache=ChunkCache(2**20))
    again = pickle.loads(pickle.dumps(xzarr3.open_group(store, chunk_cache="2 MiB")))
    for group in (opened, given, opened.loaded(), again):
        group["a"][0], group["b/c"][0], group["b"]["c"][0]
        assert len(group.chunk_cache) == 2
        assert group["b"].chunk_cache is group["a"].chunk_cache is group.chunk_cache
        group.chunk_cache.clear()


def test_a_dataset_keeps_chunks_of_all_variables() -> None:
    store = xzarr3.MemoryStore()
    ds = xr.Dataset({"t": (("y", "x"), ROWS), "u": (("y", "x"), -ROWS)})
    xzarr3.to_zarr(ds.chunk(y=32), store)
    for opener in (xzarr3.open_dataset, xr.open_dataset):
        options: dict[str, Any] = {"chunks": None} if opener is xzarr3.open_dataset else {"engine": "xzarr3"}
        found = opener(store, chunk_cache="1 MiB", **options)
        with xzarr3.trace() as trace:
            for start in range(0, 60, 3):
                window = found.isel(y=slice(start, start + 4)).load()
                np.testing.assert_array_equal(window.t, ROWS[start : start + 4])
        assert decoded(trace)[0] == 4


def test_joined_arrays_keep_chunks_of_their_sources() -> None:
    stores = [xzarr3.MemoryStore(), xzarr3.MemoryStore()]
    for store in stores:
        xzarr3.to_zarr(xr.Dataset({"t": (("y", "x"), ROWS)}).chunk(y=32), store)
    ds = xzarr3.open_mfdataset(stores, concat_dim="y", chunks=None, chunk_cache="1 MiB")
    with xzarr3.trace() as trace:
        for start in range(240, 270):
            ds.t[start : start + 4].load()
    assert decoded(trace)[0] == 2
    cache = ChunkCache("1 MiB")
    both = xzarr3.concat([xzarr3.open_array(store, "t", chunk_cache=cache) for store in stores], "y")
    both[250:260]
    assert (len(cache), both.explain(slice(250, 260)).chunks_kept) == (2, 2)


def test_a_pickled_array_shares_the_cache_of_its_process(tmp_path: Path) -> None:
    array = opened()
    array[0]
    assert pickle.loads(pickle.dumps(array)).chunk_cache is array.chunk_cache
    xzarr3.create_array(tmp_path / "a.zarr", data=ROWS, chunks=(32, 20))
    array = xzarr3.open_array(tmp_path / "a.zarr", chunk_cache="1 MiB")
    (tmp_path / "pickled").write_bytes(pickle.dumps(array))
    code = f"""
import gc, pickle, xzarr3
from xzarr3.stores.local import files
files._SETTLED = 0
text = open({str(tmp_path / "pickled")!r}, "rb").read()
with xzarr3.trace() as trace:
    for row in range(20):
        pickle.loads(text)[row]
        gc.collect()
print(trace.total["chunks_decoded"])
"""
    assert printed_by(code) == ["1"]


def test_dask_blocks_use_the_cache() -> None:
    array = opened()
    blocks = xzarr3.from_zarr(array)
    with xzarr3.trace() as trace:
        np.testing.assert_array_equal(blocks[5:60].compute(), ROWS[5:60])
        blocks[9:60].compute()
    assert decoded(trace) == (2, 2)


def written_otherwise(store: Any, how: str = "") -> None:
    """Change what is stored by another handle, or in another process."""
    if how == "process":
        code = f"import xzarr3; xzarr3.open_array({store.folder!r}, 'a', mode='r+')[:2] = 7"
        printed_by(code)
    else:
        xzarr3.open_array(store, "a", mode="r+")[:2] = 7


@pytest.mark.parametrize("shards", [None, (64, 20)])
@pytest.mark.parametrize("place", ["memory", "local", "process", "zip", "waiting"])
def test_values_written_by_others_are_read(place: str, shards: Any, tmp_path: Path, settled: None) -> None:
    zipped = partial(xzarr3.ZipStore, tmp_path / "a.zip", mode="w")
    makers = {"memory": xzarr3.MemoryStore, "zip": zipped, "waiting": WaitingStore}
    store: Any = makers.get(place, partial(xzarr3.LocalStore, tmp_path / "a.zarr"))()
    array = opened(store=store, shards=shards, chunks=(32, 20))
    array[:40], array[:40]
    assert array.explain(slice(40)).chunks_kept == 2
    written_otherwise(store, place)
    assert (array[:2] == 7).all()
    array[1] = 8
    assert (array[1] == 8).all()
    assert same_bits(array[2:40], ROWS[2:40])
    store.erase(array.chunk_key((0, 0)))
    assert (array[:2] == 0).all()
    store.close()


def test_what_may_have_changed_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = opened(store=xzarr3.LocalStore(tmp_path / "a.zarr"))  # Files that were written just now.
    array[:40]
    assert array.explain(slice(40)).chunks_kept == 0
    array, read = opened(), Engine.read  # A chunk that changes while it is read.

    def disturbed(self: Any, *args: Any, **options: Any) -> int:
        found = read(self, *args, **options)
        written_otherwise(array.store)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "read", disturbed)
        array[:40]
    assert array.explain(slice(40)).chunks_kept == 1  # The second one, which did not change.
    assert (array[:2] == 7).all()


def test_an_array_in_place_of_another_is_not_decoded_as_the_old_one() -> None:
    store, cache = xzarr3.MemoryStore(), ChunkCache("1 MiB")
    options: dict[str, Any] = {"chunks": 8, "compressors": None}
    first = opened(np.arange(8, dtype="int64"), cache, store, **options)
    first[...]
    new = xzarr3.create_array(store, "a", data=np.arange(8, dtype="float64"), overwrite=True, **options)
    new.chunk_cache = cache
    assert same_bits(new[...], np.arange(8, dtype="float64"))
    refused(xzarr3.ChangedError, None, lambda: first[...])
    # Equal bytes of another data type.
    store, cache = WaitingStore(), ChunkCache("1 MiB")  # Its versions are the bytes.
    options = {"fill_value": 0, "compressors": None, "overwrite": True}
    for dtype in ("int64", "float64", ">i8"):
        array = xzarr3.create_array(store, "a", shape=4, dtype=dtype, **options)
        store.put(array.chunk_key((0,)), [b"\1" * 32])
        array.chunk_cache = cache
        assert same_bits(array[...], xzarr3.open_array(store, "a")[...])


def test_absent_chunks_are_told_of_as_without_a_cache() -> None:
    store = xzarr3.MemoryStore()
    xzarr3.create_array(store, shape=(64, 4), chunks=(16, 4), shards=(32, 4), dtype="int8")[:16] = 1
    array = xzarr3.open_array(store, chunk_cache="1 MiB", missing="error")
    assert array[:20].sum() == 64
    assert array.explain(slice(32)).chunks_kept == 2  # One of them an empty chunk of a stored shard.
    refused(xzarr3.MissingChunksError, "1 of the 2 shards to be read is absent", lambda: array[...])
    with xzarr3.trace() as trace, pytest.raises(xzarr3.MissingChunksError):
        array[40]
    assert trace.total["absent"] == 1
    # Text is not kept, and a scalar is.
    text = opened(np.array(["a", "bb"], dtype=object), dtype="string", chunks=1)
    assert ([*text[...]], text.explain().chunks_kept) == (["a", "bb"], 0)
    scalar = opened(np.float64(3), chunks=None)
    assert (scalar[()], scalar[()], scalar.explain().chunks_kept) == (3, 3, 1)


def test_a_store_that_tells_no_changes_is_refused() -> None:
    values = dict[str, bytes]()
    xzarr3.create_array(xzarr3.MemoryStore(values), "a", data=ROWS)
    xzarr3.create_group(xzarr3.MemoryStore(values), "g")
    store, words, error = xzarr3.MemoryStore(values), "does not tell whether a", xzarr3.StoreCapabilityError
    for open_ in (xzarr3.open_array, xzarr3.open):
        refused(error, words, partial(open_, store, "a", chunk_cache="1 MiB"))
    refused(error, "leave out chunk_cache=", lambda: xzarr3.open_group(store, "g", chunk_cache="1 MiB"))


@pytest.mark.parametrize("size", ["2 giraffes", "-1 GiB", -5, 0, "", True, 1.5])
def test_a_size_that_is_none_is_refused(size: Any) -> None:
    array = opened()
    refused(
        ArgumentError, r"chunk_cache=.*accepted: a positive number of bytes",
        lambda: xzarr3.open(array.store, "a", chunk_cache=size),
        lambda: xzarr3.open_array(array.store, "a", chunk_cache=size),
        lambda: xzarr3.open_group(array.store, chunk_cache=size),
        lambda: xr.open_dataset(array.store, engine="xzarr3", chunk_cache=size),
    )  # fmt: skip


@pytest.mark.parametrize("size", ["11 KiB", "1 MiB"])
def test_threads_share_a_cache_and_never_read_a_value_older_than_one_that_was_written(size: str) -> None:
    array, written, ends = opened(size=size), [0.0], threading.Event()
    array[:4] = 0

    def reads(seed: int) -> None:
        random = np.random.default_rng(seed)
        while not ends.is_set():
            start = int(random.integers(4, 250))
            assert same_bits(array[start : start + 6], ROWS[start : start + 6])
            before = written[0]
            assert array[0, 3] >= before

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(reads, seed) for seed in range(4)]
        other = xzarr3.open_array(array.store, "a", mode="r+")
        for value in range(1, 150):
            other[:4] = value
            written[0] = value
        ends.set()
        for reader in readers:
            reader.result()
    assert array[0, 0] == 149
