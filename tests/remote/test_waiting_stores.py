"""Arrays in stores whose answers have to be waited for: how many requests, how many at a time, of what."""

from __future__ import annotations

import itertools
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import dask
import dask.array as da
import msgspec
import numpy as np
import pytest
import xarray as xr
from _conformance import run_threads
from _kinds import Remote, RemoteValue
from _things import refused
from hypothesis import given, settings
from hypothesis import strategies as st

import xzarr3
from xzarr3.commit import keys
from xzarr3.errors import ChangedError, StoreError
from xzarr3.nodes import seen
from xzarr3.parallel import parallel_map, pause
from xzarr3.stores import Traits, Value, in_flight


class FarStore(Remote):
    """Each answer takes ``latency`` seconds; versions are told with it. ``log`` has the requests."""

    def __init__(self, latency: float = 0.0, concurrency: int = 64, *, versions: bool = True) -> None:
        super().__init__()
        self.traits = Traits(concurrency=concurrency)
        self.latency, self.tells_versions = latency, versions
        self.log: list[tuple[Any, ...]] = []
        self.under_way = self.most = 0
        self._counting = threading.Lock()

    @contextmanager
    def _request(self, key: str, *part: Any) -> Iterator[None]:
        with self._counting:
            self.log.append((key, *part))
            self.under_way += 1
            self.most = max(self.most, self.under_way)
        try:
            time.sleep(self.latency)
            yield
        finally:
            with self._counting:
                self.under_way -= 1

    def ask(self, key: str, *what: object) -> Any:
        with self._request(key, *what):
            value, version = super().ask(key, *what)
            return value, version if self.tells_versions else None

    def put(self, key: str, pieces: Any) -> None:
        with self._request(key):
            super().put(key, pieces)

    def erase(self, *keys: str) -> None:
        for key in keys:
            with self._request(key):
                super().erase(key)

    def requests_of_values(self) -> list[tuple[Any, ...]]:
        return [each for each in self.log if not each[0].endswith("zarr.json")]

    def most_during(self, act: Callable[[], object], latency: float = 0.01) -> int:
        self.latency, self.most, self.log = latency, 0, []
        act()
        self.latency = 0.0
        return self.most


@pytest.fixture
def documents_stay_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """No document is read again beside values, however long a test takes."""
    monkeypatch.setattr(seen, "RECENT", 1e9)


@pytest.mark.usefixtures("documents_stay_known")
@pytest.mark.parametrize("shards", [None, (20,)], ids=["chunks", "shards"])
@pytest.mark.parametrize("compressors", [None, "zstd"])
def test_many_units_are_read_and_written_at_a_time(shards: Any, compressors: Any) -> None:
    store, data, units = FarStore(concurrency=16), np.arange(1600), 1600 // (20 if shards else 10)
    layout = {"chunks": (10,), "shards": shards, "compressors": compressors, "fill_value": -1}
    array = xzarr3.create_array(store, data=data, **layout)
    assert store.most_during(lambda: np.testing.assert_array_equal(array[...], data), 0.02) == 16
    assert len(store.requests_of_values()) == units
    assert store.most_during(lambda: array.set(..., data + 1), 0.02) == 16
    assert len(store.requests_of_values()) == units


def sharded(size: int = 32, **options: Any) -> tuple[FarStore, xzarr3.Array, np.ndarray[Any, Any]]:
    """An array of one shard whose parts are fetched one by one."""
    store = FarStore(**options)
    data = np.random.default_rng(7).integers(0, 255, (size, size), dtype="u1")
    array = xzarr3.create_array(store, data=data, chunks=(4, 4), shards=(size, size), compressors="zstd")
    store.log = []
    return store, array, data


def indexes(store: FarStore) -> int:
    """How often the index of a shard was asked for, which is at its end."""
    return sum(part[:1] < [0] for _, *part in store.requests_of_values() if part)


@pytest.mark.usefixtures("documents_stay_known")
@pytest.mark.parametrize("threads", [1, 3])
def test_as_many_threads_as_are_asked_for(threads: int) -> None:
    store = FarStore()
    array = xzarr3.create_array(store, data=np.arange(60), chunks=3)
    assert store.most_during(lambda: array.get(threads=threads), 0.002) == threads
    assert store.most_during(lambda: array.set(..., np.arange(60) + 1, threads=threads), 0.002) == threads


@pytest.mark.usefixtures("documents_stay_known")
def test_many_requests_at_a_time_in_tasks_of_dask_too() -> None:
    store = FarStore(concurrency=16)
    array = xzarr3.create_array(store, data=np.arange(640), chunks=10)
    block = dask.delayed(array.__getitem__)(slice(None))
    assert store.most_during(lambda: block.compute(scheduler="threads")) == 16
    assert store.most_during(lambda: xzarr3.store(da.arange(1, 641, chunks=320), array)) >= 16
    np.testing.assert_array_equal(array[...], np.arange(1, 641))


@pytest.mark.parametrize(("versions", "number"), [(True, 1), (False, 16)])
def test_the_index_of_a_shard_is_read_once_where_versions_are_told(versions: bool, number: int) -> None:
    store, array, data = sharded(64, versions=versions)
    for at in range(0, 64, 4):
        assert array[at, at] == data[at, at]
    assert (indexes(store), len(store.requests_of_values())) == (number, number + 16)


def test_inner_chunks_of_one_shard_are_requested_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_ranges(value: Value, starts: Sequence[int], lengths: Sequence[int]) -> list[Any]:
        return parallel_map(lambda part: value.read(*part), [*zip(starts, lengths, strict=True)], 64)

    monkeypatch.setattr(RemoteValue, "read_ranges", read_ranges)
    store = FarStore(latency=0.05)
    store.traits = Traits(concurrency=64, request_bytes=0, over_read=1)
    array = xzarr3.create_array(store, data=np.arange(4096), chunks=(16,), shards=(4096,))
    store.most = 0
    assert array[::64].tolist() == list(range(0, 4096, 64))
    assert store.most > 8


def test_many_threads_that_want_one_shard_read_its_index_once() -> None:
    store, array, data = sharded(64)
    store.latency = 0.02
    found: dict[int, int] = {}
    run_threads(*(lambda at=at: found.update({at: int(array[at, 0])}) for at in range(0, 64, 4)))
    assert found == {at: data[at, 0] for at in range(0, 64, 4)}
    assert indexes(store) == 1


def test_a_shard_that_is_replaced_is_read_again() -> None:
    """Its index is known, so nothing but the answer to a range can tell that the shard is another one."""
    store, array, data = sharded()
    assert array[5, 5] == data[5, 5]
    for value in range(3):
        other, twin, _ = sharded()
        data = np.random.default_rng(value).integers(0, 3, (32, 32), dtype="u1")
        twin[...] = data
        store._values["c/0/0"] = other._values["c/0/0"]
        store.changes["c/0/0"] += 1
        assert array[9, 2] == data[9, 2]
        np.testing.assert_array_equal(array[3:9, 5], data[3:9, 5])
    store.erase("c/0/0")
    assert array[9, 2] == 0


@pytest.mark.parametrize("selection", [..., (slice(3, 5), 4)], ids=["whole", "a part"])
def test_a_read_after_a_write_asks_for_the_index_and_for_what_is_wanted(selection: Any) -> None:
    store, array, _ = sharded()
    for value in (1, 2, 3):
        array[selection] = value + np.zeros_like(array[selection])
        store.log = []
        assert array[3, 4] == value
        assert (len(store.requests_of_values()), indexes(store)) == (2, 1)


def test_a_shard_that_never_stops_changing_is_an_error() -> None:
    store, array, data = sharded()
    assert array[5, 5] == data[5, 5]
    ask = store.ask

    def replaced(key: str, *what: object) -> Any:
        store.changes[key] += 1
        return ask(key, *what)

    store.ask = replaced  # type: ignore[method-assign]
    refused(ChangedError, "c/0/0", lambda: array[5, 5])


def test_the_first_failure_ends_it_all() -> None:
    store = FarStore(concurrency=4)
    array = xzarr3.create_array(store, data=np.arange(1000), chunks=1)
    store.log = []

    def fail(key: str) -> None:
        if key == "c/10":
            raise StoreError("no answer")

    store.after, store.latency = fail, 0.001
    refused(StoreError, "no answer", lambda: array[...])
    assert len(store.requests_of_values()) < 100
    assert store.under_way == 0


def test_several_values_together() -> None:
    store, values = FarStore(concurrency=10), {f"k/{at}": b"%d" % at for at in range(50)}
    assert store.most_during(lambda: store.set_values(values.items()), 0.02) == 10
    assert store.most_during(lambda: store.get_values(values), 0.02) == 10
    assert store.get_values([*values, "none"]) == [*values.values(), None]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_selections_are_those_of_numpy(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=3)))
    chunks = tuple(data.draw(st.integers(1, n)) for n in shape)
    sharded = data.draw(st.booleans())
    shards = tuple(n * data.draw(st.integers(1, 3)) for n in chunks) if sharded else None
    values = np.arange(np.prod(shape), dtype="i2").reshape(shape)
    store = FarStore(concurrency=data.draw(st.sampled_from([2, 5, 64])), versions=data.draw(st.booleans()))
    store = store.with_traits(request_bytes=data.draw(st.sampled_from([1, 16, 2**20])))
    layout = {"shards": shards, "compressors": data.draw(st.sampled_from([None, "zstd"])), "fill_value": -1}
    array = xzarr3.create_array(store, data=values, chunks=chunks, **layout)
    for _ in range(3):
        ends = [sorted((data.draw(st.integers(0, n)), data.draw(st.integers(0, n)))) for n in shape]
        selection = tuple(slice(*each) for each in ends)
        np.testing.assert_array_equal(array[selection], values[selection])
        new = data.draw(st.integers(-1, 300))
        array[selection] = new
        values[selection] = new
        np.testing.assert_array_equal(array[...], values)


@pytest.mark.parametrize("request_bytes", [1, 4, 16])
def test_every_box_of_a_plain_chunk_is_that_of_numpy(request_bytes: int) -> None:
    """Among them are boxes that have as many bytes as the first of several ranges."""
    store = FarStore(concurrency=2).with_traits(request_bytes=request_bytes)
    values = np.arange(40, dtype="i2").reshape(2, 4, 5)
    array = xzarr3.create_array(store, data=values, chunks=values.shape, compressors=None)
    slices = [[slice(*ends) for ends in itertools.combinations(range(n + 1), 2)] for n in values.shape]
    for box in itertools.product(*slices):
        np.testing.assert_array_equal(array[box], values[box], err_msg=str(box))


def test_datasets_are_written_by_many_tasks_at_a_time() -> None:
    store = FarStore(concurrency=16)
    dataset = xr.Dataset({"t": ("x", np.arange(640))}).chunk(x=10)
    assert store.most_during(lambda: xzarr3.to_zarr(dataset, store)) >= 8
    with dask.config.set(num_workers=2):
        xzarr3.to_zarr(dataset, store, group="again")
    xr.testing.assert_equal(xzarr3.open_dataset(store, group="again"), dataset.compute())


def test_threads_are_no_more_than_memory_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    store = FarStore(concurrency=64)
    array = xzarr3.create_array(store, data=np.ones(64 * 2**14), chunks=2**14)
    monkeypatch.setattr(in_flight._budget, "limit", 8 * 2**14 * 8)
    assert store.most_during(lambda: array[...], 0.005) <= 8
    assert store.most_during(lambda: array.set(..., 5.0), 0.005) <= 4


def test_a_store_without_listing_is_copied_however_many_chunks_there_are() -> None:
    source = type("Unlisted", (FarStore,), {"listable": False})()
    xzarr3.create_array(source, data=np.arange(5000, dtype="i2"), chunks=1)
    target = xzarr3.copy(source, xzarr3.MemoryStore())
    np.testing.assert_array_equal(target[...], np.arange(5000))


class Forgetful(xzarr3.MemoryStore):
    traits = msgspec.structs.replace(xzarr3.MemoryStore.traits, concurrency=4, tells_changes=False)

    def __init__(self) -> None:
        super().__init__()
        self.forgets: Callable[[str], bool] = str.isspace  # No key is.

    def list(self, prefix: str = "") -> Iterator[str]:
        return (key for key in super().list(prefix) if not self.forgets(key))

    def list_dir(self, prefix: str) -> Any:
        keys, prefixes = super().list_dir(prefix)
        return {key for key in keys if not self.forgets(key)}, prefixes


OLD = xr.Dataset({"t": ("x", np.arange(6.0))}, {"x": np.arange(6)})
IN_PARTS = {"t": {"chunks": (2,)}}


@pytest.mark.parametrize("forgotten", ["", "t/c/1", "zarr.json"])
def test_what_is_replaced_is_whole_though_the_new_keys_are_not_listed(forgotten: str) -> None:
    store = Forgetful()
    xzarr3.to_zarr(OLD, store, encoding=IN_PARTS)
    store.forgets = lambda key: "/new/" in key and forgotten in key
    xzarr3.to_zarr(OLD + 100, store, mode="w", encoding=IN_PARTS)
    xr.testing.assert_identical(xr.open_dataset(store, engine="xzarr3").load(), OLD + 100)


def test_nothing_is_replaced_that_is_not_listed() -> None:
    store = Forgetful()
    xzarr3.to_zarr(OLD, store, encoding=IN_PARTS)
    store.forgets = lambda key: "/" not in key
    before = dict(store._values)
    write = partial(xzarr3.to_zarr, OLD + 100, store, mode="w")
    refused(StoreError, "its document exists, but is not listed", write)
    assert {key: value for key, value in store._values.items() if key in before} == before
    xr.testing.assert_identical(xr.open_dataset(store, engine="xzarr3").load(), OLD)


def test_what_other_processes_wrote_must_be_listed() -> None:
    staged = keys.StagedKeys(Forgetful(), "staged/")
    staged.set("a", b"1")
    assert staged.written() == {"a"}
    twin = pickle.loads(pickle.dumps(staged))
    twin._store = staged._store
    twin.set("b", b"2")
    assert staged.written() == {"a", "b"}
    staged.erase("a")
    assert staged.written() == {"b"}
    staged.set("a", b"1")
    staged._store.forgets = lambda key: key == "staged/a"
    refused(StoreError, r"'a'.*other processes", staged.written)


def test_the_first_error_is_raised() -> None:
    begun = threading.Event()

    def work(at: int) -> None:
        if at == 1:
            begun.wait(120)
            raise StoreError("the first")
        begun.set()
        if not pause(5):
            raise StoreError("stopped")

    refused(StoreError, "the first", lambda: parallel_map(work, [0, 1], 2))
