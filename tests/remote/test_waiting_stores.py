"""Stores whose answers have to be waited for: how many requests, how many at a time, in how many rounds."""

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
from _waiting import WaitingStore
from hypothesis import given, settings
from hypothesis import strategies as st

import xzarr3
from xzarr3 import StoreCapabilityError
from xzarr3.commit import keys, lease
from xzarr3.errors import ChangedError, StoreError
from xzarr3.nodes import seen
from xzarr3.parallel import parallel_map, pause
from xzarr3.stores import Traits, Value, in_flight
from xzarr3.xarray import to_zarr


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


@settings(max_examples=60)
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


VARIABLES = 60
SPLIT = 12
"""Rounds that a busy machine may answer in two; values that came one by one would add :data:`VARIABLES`."""
DRAFT = "3-draft"
FORMATS = (3, 2, DRAFT)
opened = partial(xr.open_dataset, engine="xzarr3")
opened_tree = partial(xr.open_datatree, engine="xzarr3")


@pytest.fixture(autouse=True)
def _unrenewed(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine a write would renew its lease meanwhile, which takes requests."""
    monkeypatch.setattr(lease, "_keep", lambda held: None)


def dataset(variables: int = VARIABLES) -> xr.Dataset:
    return xr.Dataset({f"v{n:03}": ("x", np.arange(4.0) + n) for n in range(variables)})


def filled(zarr_format: Any, *, consolidated: bool | None = None, **options: Any) -> WaitingStore:
    store = WaitingStore(**options)
    to_zarr(dataset(), store, zarr_format=zarr_format, consolidated=consolidated)
    return store


def asked(store: WaitingStore, act: Callable[[], object]) -> tuple[int, int]:
    """How many requests something takes, and how many rounds of them."""
    with store.counted() as count:
        act()
    return len(count.requests), count.rounds


@pytest.mark.parametrize(("zarr_format", "given"), [(3, None), (3, 3), (2, None), (2, 2)])
def test_a_consolidated_hierarchy_is_opened_with_two_requests_at_most(zarr_format: Any, given: Any) -> None:
    store = filled(zarr_format)

    def look_around() -> None:
        group = xzarr3.open_group(store, zarr_format=given)
        assert group.consolidated
        assert len(group) == len(list(group.items())) == VARIABLES
        assert group["v007"].shape == (4,)

    expected = 2 if (zarr_format, given) == (2, None) else 1
    for act in (look_around, *(partial(read, store, zarr_format=given) for read in (xzarr3.open, opened))):
        assert asked(store, act) == (expected, expected)
    xr.testing.assert_identical(opened(store, zarr_format=given).load(), dataset())
    # One array costs its own documents.
    assert asked(store, lambda: xzarr3.open_array(store, "v042"))[1] == (1 if zarr_format == 3 else 2)


@pytest.mark.parametrize("zarr_format", [3, 2])
def test_a_group_below_a_consolidated_root_is_opened_as_cheaply(zarr_format: Any) -> None:
    store = WaitingStore()
    to_zarr(dataset(3), store, group="a/b", zarr_format=zarr_format)
    xzarr3.consolidate_metadata(store)

    def look_around() -> None:
        group = xzarr3.open_group(store, "a/b")
        assert (group.consolidated, [*group]) == (True, ["v000", "v001", "v002"])

    for act in (look_around, partial(opened, store, group="a/b"), partial(opened_tree, store)):
        assert asked(store, act)[0] == (1 if zarr_format == 3 else 2)
    xr.testing.assert_identical(opened_tree(store)["a/b"].to_dataset().load(), dataset(3))
    with store.counted() as count:  # To be written, it is looked up where it is.
        assert not xzarr3.open_group(store, "a/b", mode="r+").consolidated
    assert "zarr.json" not in count.of("get")


def test_what_a_root_without_consolidated_metadata_says_is_no_matter() -> None:
    store = WaitingStore()
    to_zarr(dataset(2), store, group="a", consolidated=False)
    store.set("zarr.json", b"{")
    assert len(xzarr3.open_group(store, "a")) == 2
    refused(xzarr3.MetadataError, None, lambda: xzarr3.open_group(store))


@pytest.mark.parametrize(("zarr_format", "requests", "rounds"), [
    (3, 1 + 1 + VARIABLES, 3), (2, 6 + 1 + 3 * VARIABLES, 5), (DRAFT, 8 + 1 + VARIABLES, 4),
])  # fmt: skip
def test_an_unconsolidated_group_is_listed_once(zarr_format: Any, requests: int, rounds: int) -> None:
    store = filled(zarr_format, consolidated=False)

    def look(how: str) -> None:
        group = xzarr3.open_group(store)
        found = group.tree().count("\n") if how == "tree" else len(list(getattr(group, how)()))
        assert found == VARIABLES

    for how in ("items", "values", "arrays", "members", "load", "tree"):
        assert asked(store, partial(look, how)) == (requests, rounds), how
        assert len(store.count.of("list")) == 1, how
    # A dataset is of one time: the document of its group is looked at once more at the end.
    assert asked(store, lambda: opened(store)) == (requests + 1, rounds + 1)
    xr.testing.assert_identical(opened(store).load(), dataset())


def test_dropped_variables_are_not_fetched() -> None:
    store = filled(3, consolidated=False)
    store.set("v001/zarr.json", b"no document")
    with store.counted() as count:
        found = opened(store, drop_variables=[f"v{n:03}" for n in range(1, VARIABLES)])
    assert [*found.variables] == ["v000"]
    assert count.of("get") == ["zarr.json", "v000/zarr.json", "zarr.json"]  # Is it still the same group?
    refused(xzarr3.MetadataError, "v001", lambda: opened(store, on_unreadable="raise"))


@pytest.mark.parametrize("zarr_format", [3, 2])
def test_prefixes_that_are_no_nodes_are_left_out(zarr_format: Any) -> None:
    store = WaitingStore()
    root = xzarr3.create_group(store, zarr_format=zarr_format)
    root.create_array("a", shape=4, dtype="int8")
    store.set("b/c", b"something else")
    with store.counted() as count:
        assert [name for name, _ in root.items()] == ["a"]
    assert count.rounds == 3  # The last one asks whether a node is just being put there.


@pytest.mark.parametrize(("zarr_format", "rounds"), [(3, 7), (2, 9), (DRAFT, 8)])
def test_a_deep_tree_is_read_level_by_level(zarr_format: Any, rounds: int) -> None:
    store, leaves = WaitingStore(), [f"a{a}/b{b}" for a in range(4) for b in range(5)]
    for path in leaves:
        to_zarr(dataset(2), store, group=path, consolidated=False, zarr_format=zarr_format)
    with store.counted() as count:
        tree = opened_tree(store)
    assert sum(1 for node in tree.subtree if node.data_vars) == 20
    assert count.rounds <= rounds
    assert len(count.of("list")) == 1 + 4 + 20 + (zarr_format == DRAFT)
    with store.counted() as count:
        assert len(dict(xzarr3.open_group(store).members(max_depth=None))) == 4 + 20 + 40
    assert count.rounds <= rounds
    with store.counted() as count:
        found = {name for name, _ in xzarr3.open_group(store).members(max_depth=1)}
    assert found == {*leaves, "a0", "a1", "a2", "a3"}
    assert len(count.of("list")) == 1 + 4 + (zarr_format == DRAFT)


@pytest.mark.parametrize("zarr_format", FORMATS)
def test_without_listing_and_consolidated_metadata_nothing_is_empty(zarr_format: Any) -> None:
    store = filled(zarr_format, consolidated=False, listable=False)
    group = xzarr3.open_group(store)
    looks = (list, len, xzarr3.Group.tree, lambda group: dict(group.items()), xzarr3.Group.loaded)
    said = r"consolidate_metadata\(\).* open_array\(store, path"
    refused(StoreCapabilityError, said, *(partial(look, group) for look in looks))
    for array in (group["v003"], xzarr3.open_array(store, "v003")):
        np.testing.assert_array_equal(array[:], np.arange(4.0) + 3)
    assert "v003" in group
    refused(xzarr3.NodeNotFoundError, "no array or group 'other'", lambda: group["other"])
    refused(StoreCapabilityError, "consolidate", *(partial(read, store) for read in (opened, opened_tree)))
    if zarr_format != DRAFT:  # Consolidated metadata are enough.
        store = filled(zarr_format, listable=False)
        xr.testing.assert_identical(opened(store).load(), dataset())
        assert len(xzarr3.open_group(store)) == VARIABLES


@pytest.mark.parametrize(("zarr_format", "rounds"), [(3, 10), (2, 12), (DRAFT, 11)])
def test_documents_of_a_dataset_are_written_together(zarr_format: Any, rounds: int) -> None:
    store = WaitingStore()
    with store.counted() as count:
        to_zarr(dataset(), store, zarr_format=zarr_format)
    assert count.rounds <= rounds + SPLIT
    written = count.of("set")
    assert len(written) == len(set(written))
    kept = [operation for operation, key in count.requests if key.startswith(".xzarr3-")]
    assert kept == ["set", "get", "erase"]  # The lease.
    assert len(count.requests) - len(kept) - (len(written) - 1) == (4 if zarr_format == 3 else 5)
    assert written[-1] == (".zmetadata" if zarr_format == 2 else "zarr.json")
    xr.testing.assert_identical(opened(store).load(), dataset())


@pytest.mark.parametrize("zarr_format", FORMATS)
def test_a_dataset_is_replaced_erased_and_copied_in_few_rounds(zarr_format: Any) -> None:
    store, target = filled(zarr_format), WaitingStore()
    new = dataset().assign_attrs(title="new")
    # New values are stored beside the old ones, then copied to their places.
    assert asked(store, lambda: to_zarr(new, store, mode="w"))[1] <= 50 + SPLIT
    xr.testing.assert_identical(opened(store).load(), new)
    # One asks whether the group above is just being replaced.
    assert asked(store, lambda: to_zarr(dataset(), store, group="below/it"))[1] <= 35 + SPLIT
    assert asked(store, lambda: xzarr3.open_group(store, mode="r+").__delitem__("below"))[1] <= 16 + SPLIT
    xr.testing.assert_identical(opened(store).load(), new)
    assert asked(target, lambda: xzarr3.copy(store, target))[1] <= 26 + SPLIT
    xr.testing.assert_identical(opened(target).load(), new)


@pytest.mark.parametrize(
    ("zarr_format", "first", "below", "again"), [(3, 4, 6, 31), (2, 5, 9, 32), (DRAFT, 9, 12, 36)]
)
def test_a_node_is_made_in_few_rounds(zarr_format: Any, first: int, below: int, again: int) -> None:
    store = WaitingStore()
    xzarr3.create_group(store, zarr_format=zarr_format)
    make = partial(xzarr3.create_array, store, dtype="int8")
    assert asked(store, lambda: make("a", shape=4))[1] <= first
    assert asked(store, lambda: xzarr3.create_group(store, "b/c/d"))[1] <= below + 1
    for path, error in (("a", xzarr3.NodeExistsError), ("a/b/c", xzarr3.NodeTypeError)):
        with store.counted() as count:
            refused(error, None, partial(make, path, shape=4))
        assert not count.of("set")
    # It is staged, and swapped under a lease, once nobody writes in it or replaces what is above it.
    assert asked(store, lambda: make("a", shape=5, overwrite=True))[1] <= again


@pytest.mark.parametrize(("zarr_format", "rounds"), [(3, 7), (2, 9)])
def test_a_hierarchy_is_consolidated_in_few_rounds(zarr_format: Any, rounds: int) -> None:
    store = filled(zarr_format, consolidated=False)
    assert asked(store, lambda: xzarr3.consolidate_metadata(store))[1] <= rounds
    assert len(store.count.of("set")) == 1
    assert asked(store, lambda: xzarr3.consolidate_metadata(store))[1] <= rounds - 2


@pytest.mark.parametrize(("consolidated", "rounds"), [(False, 3), (True, 6)])
def test_an_attribute_costs_a_read_and_a_write(consolidated: bool, rounds: int) -> None:
    store = filled(3, consolidated=consolidated)
    array = xzarr3.open_array(store, "v001", mode="r+")
    assert asked(store, lambda: array.attrs.update(units="K"))[1] <= rounds
    assert xzarr3.open_group(store)["v001"].attrs["units"] == "K"
