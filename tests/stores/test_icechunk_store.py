"""Sessions of Icechunk: transactions that the user commits."""

from __future__ import annotations

import itertools
import json
import pickle
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr
from _conformance import contents, run_numbered
from _slow import slow_but
from _things import refused

import xzarr3
from xzarr3 import InvalidKeyError, ReadOnlyError, StoreCapabilityError, StoreError, open_store
from xzarr3.stores import WrapperStore, cut
from xzarr3.stores import foreign as module

icechunk = pytest.importorskip("icechunk")

ZARR_KEY = re.compile(r"(.+/)?(zarr\.json|c(/[0-9]+)*)")
VALUES = np.arange(40, dtype="float64").reshape(5, 8)


@pytest.fixture
def repository(tmp_path: Path) -> Any:
    return icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "repository")))


@pytest.fixture
def session(repository: Any) -> Iterator[Any]:
    """A session. Whatever a test does with it, it then holds documents and chunks only."""
    made = repository.writable_session("main")
    yield made
    assert [key for key in open_store(made.store).list() if not ZARR_KEY.fullmatch(key)] == []


def dataset(first: int = 0) -> xr.Dataset:
    time = np.arange(first, first + 5)
    return xr.Dataset({"t": (("time", "x"), VALUES + first)}, {"time": time, "x": np.arange(8)}, {"a": 1})


def by_zarr_python(store: Any, **options: Any) -> xr.Dataset:
    return xr.open_dataset(store, engine="zarr", consolidated=False, **options).load()


def test_icechunk_store_nothing_is_seen_before_the_commit(repository: Any, session: Any) -> None:
    ds = dataset()
    xzarr3.to_zarr(ds, session.store, encoding={"t": {"chunks": (2, 4), "shards": (4, 8)}})
    before = repository.readonly_session("main")
    assert list(open_store(before.store).list()) == []
    refused(xzarr3.NodeNotFoundError, None, lambda: xzarr3.open_group(before.store))
    xr.testing.assert_identical(xr.open_dataset(session.store, engine="xzarr3").load(), ds)
    first = session.commit("first")
    after = repository.readonly_session("main")
    xr.testing.assert_identical(by_zarr_python(after.store), ds)
    xr.testing.assert_identical(xr.open_dataset(after.store, engine="xzarr3", chunks={}).load(), ds)
    second = repository.writable_session("main")
    xzarr3.to_zarr(dataset(5).chunk({"time": 2}), second.store, append_dim="time")
    second.commit("second")
    both = xr.concat([ds, dataset(5)], "time")
    xr.testing.assert_identical(by_zarr_python(repository.readonly_session("main").store), both)
    at_first = repository.readonly_session(snapshot_id=first)
    xr.testing.assert_identical(xr.open_dataset(at_first.store, engine="xzarr3").load(), ds)


def test_icechunk_store_node_that_is_named_as_chunks_are(session: Any) -> None:
    root = xzarr3.create_group(session.store)
    root.create_group("g").create_array("c", data=np.arange(3))
    root.create_array("c", data=np.array(5))
    store = open_store(session.store)
    for key in ("g/c", "g/c/1", "g/c/1/2"):
        store.erase(key)
        assert (store.get(key), store.get(key, (0, 2)), store.exists(key)) == (None, None, False)
    assert store.list_dir("g/") == ({"g/zarr.json"}, {"g/c/"})
    assert store.list_dir("c/") == ({"c/zarr.json", "c/c"}, set())
    assert [path for path, _ in xzarr3.open_group(store).members(max_depth=None)] == ["c", "g", "g/c"]
    np.testing.assert_array_equal(xzarr3.open_array(store, "g/c")[:], np.arange(3))


@pytest.mark.parametrize("source", ["g/b/x", "g"])
@pytest.mark.parametrize("kind", ["writable", "rearrange"])
def test_icechunk_store_move(repository: Any, session: Any, source: str, kind: str) -> None:
    root = xzarr3.create_group(session.store)
    root.create_array("g/b/x", data=VALUES, chunks=(2, 4), shards=(4, 8))
    root.create_array("g/y", data=np.array(5))
    root["g"].attrs["title"] = "t"
    root.create_group("new")
    session.commit("first")
    moving = getattr(repository, f"{kind}_session")("main")
    group = xzarr3.open_group(moving.store, mode="r+")
    refused(xzarr3.NodeExistsError, "within the other", lambda: group.move(source, f"{source}/below"))
    with pytest.raises(xzarr3.NodeExistsError, match=r"key 'g/y/c' is there|key 'new/zarr.json' is there"):
        group.move(source, "g/y" if source == "g/b/x" else "new")
    assert not moving.has_uncommitted_changes
    group.move(source, "new/where")
    assert (source in group, "new/where" in group) == (False, True)
    moving.commit("moved")
    after = xzarr3.open_group(repository.readonly_session("main").store)
    assert source not in after
    moved = "new/where" if source == "g/b/x" else "new/where/b/x"
    np.testing.assert_array_equal(after[moved][...], VALUES)
    rest = after["g" if source == "g/b/x" else "new/where"]
    assert (rest["y"][()], dict(rest.attrs)) == (5, {"title": "t"})
    assert zarr.open_group(repository.readonly_session("main").store, mode="r")[moved][1, 2] == VALUES[1, 2]


def test_icechunk_store_move_that_fails_says_what_to_do(repository: Any, session: Any) -> None:
    root = xzarr3.create_group(session.store)
    root.create_array("a", data=VALUES, chunks=(2, 4))
    session.commit("first")
    rearranging = repository.rearrange_session("main")
    with pytest.raises(xzarr3.StoreError, match=r"(?s)rearrange the hierarchy, other write operations"):
        xzarr3.open_group(rearranging.store, mode="r+").move("a", "new/where")
    moving = repository.writable_session("main")
    store = open_store(moving.store)
    put = type(store).put

    def failing(self: Any, key: str, pieces: Any) -> None:
        if key.startswith("b/c/1"):
            raise xzarr3.StoreError("no more")
        put(self, key, pieces)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(store), "put", failing)
        with pytest.raises(xzarr3.StoreError, match="no more") as caught:
            xzarr3.open_group(store, mode="r+").move("a", "b")
    assert "moved in part" in caught.value.__notes__[0]
    moving.discard_changes()
    np.testing.assert_array_equal(xzarr3.open_array(moving.store, "a")[...], VALUES)


def test_icechunk_store_below_others_that_of_a_session(session: Any) -> None:
    logged = zarr.storage.LoggingStore(session.store, log_level="ERROR")
    xzarr3.to_zarr(dataset().chunk({"time": 2}), logged)
    assert open_store(logged).traits.visible == "at commit"
    xzarr3.to_zarr(dataset(5), WrapperStore(session.store), append_dim="time")
    xr.testing.assert_identical(by_zarr_python(session.store), xr.concat([dataset(), dataset(5)], "time"))
    assert xzarr3.open_group(xzarr3.ReadOnlyStore(session.store)).attrs == {"a": 1}


def test_icechunk_store_keys_it_lacks_are_absent_and_refused(session: Any) -> None:
    store = open_store(session.store)
    xzarr3.create_array(store, "a", data=np.arange(4), chunks=2)
    odd = ".zgroup a/.zarray README.md a/.xzarr3-lease a/c/01 a/c/4294967296 a/0.0 a/c.0"
    for key in odd.split():
        assert (store.get(key), store.get(key, (0, 1)), store.exists(key)) == (None, None, False)
        assert store.open(key) is None
        store.erase(key)
        refused(InvalidKeyError, "documents and chunks of Zarr version 3", partial(store.set, key, b"x"))
    for prefix, keys in {
        "": ["a/c/0", "a/c/1", "a/zarr.json", "zarr.json"],
        "a/c/": ["a/c/0", "a/c/1"],
        "none/below/": [],
    }.items():
        assert sorted(store.list_prefix(prefix)) == keys
    assert store.list_dir("") == ({"zarr.json"}, {"a/"})
    assert store.list_dir("a/") == ({"a/zarr.json"}, {"a/c/"})
    assert store.list_dir("a/c/") == ({"a/c/0", "a/c/1"}, set())
    with pytest.raises(InvalidKeyError, match="encoding 'default'"):
        xzarr3.create_array(session.store, "b", data=np.arange(3), chunk_key_encoding="v2")


@pytest.mark.parametrize("key", ["a/zarr.json", "a/c/0"])
def test_icechunk_store_byte_ranges(session: Any, key: str) -> None:
    store = open_store(session.store)
    xzarr3.create_array(store, "a", data=np.arange(3))
    value = store.get(key)
    size = len(value)
    starts, lengths = (-2000, -3, -1, 0, 1, 5, size - 1, size, size + 3), (None, 0, 1, 7, size, 2**50)
    for part in itertools.product(starts, lengths):
        assert store.get(key, part) == cut(value, part), part


# Changes


CHANGES: dict[str, Callable[[Any], object]] = {
    "set": lambda array: array.__setitem__((slice(1, 3), slice(2, 7)), -1),
    "append": lambda array: array.append(np.full((4, 8), 7.0)),
    "append along x": lambda array: array.append(np.full((5, 3), 7.0), axis=1),
    "shrink": lambda array: array.resize((3, 5)),
    "grow": lambda array: array.resize((9, 12)),
    "shrink and grow": lambda array: (array.resize((1, 1)), array.resize((5, 8))),
    "both": lambda array: (array.resize((2, 12)), array.resize((7, 3))),
    "to nothing": lambda array: (array.resize((0, 8)), array.append(np.ones((3, 8)))),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("options", [{"chunks": (2, 3)}, {"chunks": (1, 4), "shards": (2, 8)}], ids=repr)
def test_icechunk_store_arrays_change_as_elsewhere(session: Any, change: Any, options: Any) -> None:
    """No chunk that was beyond the end comes back."""
    made = []
    for store in (session.store, {}):
        array = xzarr3.create_array(store, "a", data=VALUES, fill_value=0, **options)
        change(array)
        made.append(xzarr3.open_array(store, "a"))
    np.testing.assert_array_equal(made[0][...], made[1][...])
    np.testing.assert_array_equal(zarr.open_array(session.store, path="a")[...], made[1][...])


def test_icechunk_store_chunks_beyond_the_end_do_not_come_back(session: Any) -> None:
    xzarr3.create_array(session.store, "a", data=VALUES, chunks=(2, 8), fill_value=0)
    key, store = "a/zarr.json", open_store(session.store)
    document = json.loads(bytes(store.get(key)))
    store.set(key, json.dumps({**document, "shape": [1, 8]}).encode())
    array = xzarr3.open_array(store, "a", mode="r+")
    assert array.shape == (1, 8)
    array.resize((5, 8))
    np.testing.assert_array_equal(array[2:], 0)


MODES: dict[str, Callable[[Any], object]] = {
    "w, dask": lambda store: xzarr3.to_zarr((dataset() * 2).chunk({"time": 2}), store, mode="w"),
    "a": lambda store: xzarr3.to_zarr((dataset() + 1)[["t"]].rename(t="u").chunk(), store, mode="a"),
    "r+": lambda store: xzarr3.to_zarr(
        xr.Dataset({"t": (("time", "x"), VALUES[:2] - 1)}), store, region={"time": slice(0, 2)}
    ),
    "below": lambda store: xzarr3.to_zarr(dataset(), store, group="some/where"),
    "tree": lambda store: xzarr3.to_zarr(
        xr.DataTree(dataset(), children={"k": xr.DataTree(dataset())}), store, mode="w"
    ),
    "later": lambda store: xzarr3.to_zarr(
        dataset().chunk({"time": 2}), store, group="below", compute=False
    ).compute(scheduler="threads"),
    "copy": lambda store: xzarr3.copy(store, store, source_path="t", path="copied/t"),
    "overwrite": lambda store: xzarr3.create_array(
        store, "t", data=da.ones((5, 8), chunks=3), dimension_names=("time", "x"), overwrite=True
    ),
    "delete": lambda store: xzarr3.open_group(store, mode="r+").__delitem__("t"),
    "attributes": lambda store: xzarr3.open_group(store, mode="r+").attrs.update(b=2),
    "widen": lambda store: xzarr3.to_zarr(
        times("12:30"), store, group="times", append_dim="when", widen_units=True
    ),
}


def times(clock: str) -> xr.Dataset:
    time = np.array([f"2000-01-0{1 if clock == '00:00' else 2}T{clock}"], "datetime64[ns]")
    return xr.Dataset({"v": ("when", [1.0])}, {"when": time})


@pytest.mark.parametrize("name", slow_but(MODES, "w, dask", "a", "r+"))
def test_icechunk_store_datasets_are_written_as_elsewhere(session: Any, name: str) -> None:
    places: list[Any] = [session.store, {}]
    for store in places:
        xzarr3.to_zarr(dataset(), store, encoding={"t": {"chunks": (2, 4)}})
        days = {"when": {"units": "days since 2000-01-01"}}
        xzarr3.to_zarr(times("00:00"), store, group="times", encoding=days)
        MODES[name](store)
    found, expected = (xr.open_datatree(store, engine="xzarr3").load() for store in places)
    xr.testing.assert_identical(found, expected)
    session.commit("all")
    with xr.open_datatree(session.store, engine="zarr", consolidated=False) as again:
        xr.testing.assert_identical(again.load(), expected)


def test_icechunk_store_threads_change_parts_of_one_chunk(session: Any) -> None:
    array = xzarr3.create_array(session.store, "a", shape=(32,), dtype="i4")

    def work(at: int) -> None:
        for place in range(at, 32, 8):
            array[place] = place

    run_numbered(work, 8)
    np.testing.assert_array_equal(array[:], np.arange(32))


# What is refused, and what is left after an error


@pytest.mark.parametrize("zarr_format", [2, "3-draft"])
@pytest.mark.parametrize("holds", [False, True])
def test_icechunk_store_other_formats_are_refused_before_anything_is_written(
    repository: Any, session: Any, zarr_format: Any, holds: bool
) -> None:
    if holds:
        xzarr3.to_zarr(dataset(), session)
        session.commit("first")
    ds, changed = dataset(), repository.writable_session("main")
    source = xzarr3.create_group({}, zarr_format=zarr_format)
    for write in (
        lambda: xzarr3.to_zarr(ds, changed, mode="w", zarr_format=zarr_format),
        lambda: xzarr3.to_zarr(ds, repository, mode="w", zarr_format=zarr_format),
        lambda: xzarr3.create_group(changed, zarr_format=zarr_format, overwrite=True),
        lambda: xzarr3.create_array(changed, shape=3, dtype="i1", zarr_format=zarr_format, overwrite=True),
        lambda: xzarr3.copy(source, changed, overwrite=True, zarr_format=zarr_format),
        *([] if holds else [lambda: xzarr3.copy(source, changed)]),
    ):
        refused(xzarr3.StoreCapabilityError, r"Icechunk holds format 3 only; pass zarr_f", write)
        assert not changed.has_uncommitted_changes


def test_icechunk_store_what_would_be_erased_before_it_is_read_is_refused(session: Any) -> None:
    xzarr3.to_zarr(dataset(), session.store)
    for engine, options in (("xzarr3", {}), ("zarr", {"consolidated": False})):
        lazy = xr.open_dataset(session.store, engine=engine, chunks={}, **options)
        with pytest.raises(ValueError, match="would be erased before they are read; load them first"):
            xzarr3.to_zarr(lazy + 1, session.store, mode="w")
    with pytest.raises(ValueError, match="would be erased before they are read; load them first"):
        xzarr3.create_array(session.store, "t", data=xzarr3.from_zarr(session.store, "t") + 1, overwrite=True)
    xr.testing.assert_identical(by_zarr_python(session.store), dataset())
    xzarr3.to_zarr(xr.open_dataset(session.store, engine="xzarr3") + 1, session.store, mode="w")
    np.testing.assert_array_equal(xzarr3.open_array(session.store, "t")[...], VALUES + 1)
    array = xzarr3.open_array(session.store, "t", mode="r+")
    with pytest.raises(ValueError, match="the same call overwrites"):
        xzarr3.store(xzarr3.from_zarr(array)[::-1], array)
    np.testing.assert_array_equal(array[...], VALUES + 1)


def test_icechunk_store_what_a_transaction_lacks_says_so(session: Any) -> None:
    ds, source = dataset(), xzarr3.create_group({})
    for ask in (
        lambda: xzarr3.to_zarr(ds, session.store, resume=True),
        lambda: xzarr3.to_zarr(ds, session.store, consolidated=True),
        lambda: xzarr3.copy(source, session.store, consolidated=True),
    ):
        refused(StoreCapabilityError, "IcechunkStore session of branch 'main'", ask)
    assert list(open_store(session.store).list()) == []
    xzarr3.to_zarr(ds, session.store)
    with pytest.raises(StoreCapabilityError, match="no consolidated metadata"):
        xzarr3.consolidate_metadata(session.store)


def failing(ds: xr.Dataset) -> xr.Dataset:
    def fail(block: Any) -> Any:
        if block.size and block[0, 0] >= 16:
            raise RuntimeError("no such value")
        return block

    lazy = ds.chunk({"time": 1})
    lazy["t"] = lazy.t.copy(data=lazy.t.data.map_blocks(fail, dtype="f8", meta=np.empty((0, 0))))
    return lazy


def test_icechunk_store_failures_leave_no_new_node_and_say_what_is_gone(session: Any) -> None:
    with pytest.raises(RuntimeError, match="no such value"):
        xzarr3.to_zarr(failing(dataset()), session.store, group="new")
    assert [key for key in open_store(session.store).list() if "new" in key] == []
    xzarr3.to_zarr(dataset(), session.store)
    with pytest.raises(RuntimeError, match="no such value") as caught:
        xzarr3.to_zarr(failing(dataset()), session.store, mode="w")
    assert "discard the changes of the transaction, or write again" in caught.value.__notes__[-1]
    assert list(open_store(session.store).list()) == []
    xzarr3.to_zarr(dataset(), session.store, mode="w")
    xr.testing.assert_identical(by_zarr_python(session.store), dataset())


def test_icechunk_store_failed_append_leaves_the_array_as_it_was(session: Any) -> None:
    xzarr3.to_zarr(dataset(), session.store, encoding={"t": {"chunks": (2, 8)}})
    with pytest.raises(RuntimeError, match="no such value"):
        xzarr3.to_zarr(failing(dataset(5)), session.store, append_dim="time")
    xr.testing.assert_identical(by_zarr_python(session.store), dataset())
    array = zarr.open_array(session.store, path="t", mode="r+")
    array.resize((10, 8))  # Unlike xzarr3, it does not erase what is there already.
    assert np.isnan(array[5:]).all()


def test_icechunk_store_read_only_session(repository: Any, session: Any) -> None:
    xzarr3.create_array(session.store, "a", data=np.arange(4))
    session.commit("a")
    store = open_store(repository.readonly_session("main").store)
    assert (store.writeable, store.traits.tells_changes) == (False, True)
    refused(ReadOnlyError, None, lambda: xzarr3.create_array(store, "b", shape=3, dtype="i4"))
    other = open_store(repository.readonly_session("main").store)
    assert other.identity == store.identity
    assert other.__dask_tokenize__() == store.__dask_tokenize__()
    lazy = xzarr3.from_zarr(store, "a")
    assert xzarr3.from_zarr(other, "a").name == lazy.name


def test_icechunk_store_committed_session_is_read_only(session: Any) -> None:
    array = xzarr3.create_array(session.store, "a", data=np.arange(4))
    session.commit("a")
    for write in (
        lambda: array.__setitem__(0, 7),
        lambda: xzarr3.create_array(session.store, "b", data=np.arange(4)),
        lambda: xzarr3.to_zarr(dataset(), session.store, mode="w"),
    ):
        refused(ReadOnlyError, "read-only since its session was committed; write to a new", write)
    np.testing.assert_array_equal(array[:], np.arange(4))


# Other processes


def elsewhere(thing: object, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What another process would get."""
    data = pickle.dumps(thing)
    monkeypatch.setattr(module, "_live", type(module._live)())
    return pickle.loads(data)


def test_icechunk_store_pickles_snapshots(repository: Any, session: Any, monkeypatch: Any) -> None:
    xzarr3.create_array(session.store, "a", data=np.arange(4))
    session.commit("a")
    array = xzarr3.open_array(repository.readonly_session("main").store, "a")
    twin = elsewhere(array, monkeypatch)
    assert twin.store is not array.store
    assert twin.store.identity == array.store.identity
    np.testing.assert_array_equal(twin[:], np.arange(4))


def test_icechunk_store_copies_of_a_fork_are_not_written(
    repository: Any, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their chunks would be lost, as nothing merges them."""
    xzarr3.create_array(session.store, "a", data=np.arange(4))
    session.commit("a")
    fork = repository.writable_session("main").fork()
    with pytest.raises(StoreError, match=r"cannot be sent to other processes.*readonly_session"):
        pickle.dumps(xzarr3.open_array(repository.writable_session("main").store, "a"))
    array = xzarr3.open_array(fork.store, "a", mode="r+")
    array[0] = 7
    twin = elsewhere(array, monkeypatch)
    assert twin[0] == 7
    with pytest.raises(ReadOnlyError, match="changes would be lost"):
        twin[0] = 8


def test_icechunk_store_scheduler_of_other_processes_is_refused(session: Any) -> None:
    """Where a store around it hides the session, which is forked otherwise; before anything is erased."""
    ds = dataset()
    logged = zarr.storage.LoggingStore(session.store, log_level="ERROR")
    xzarr3.to_zarr(ds, logged)
    array = xzarr3.open_array(logged, "t", mode="r+")
    for ask in (
        lambda: xzarr3.to_zarr(ds.chunk(), logged, mode="w"),
        lambda: xzarr3.create_array(logged, "t", data=da.ones(3), overwrite=True),
        lambda: xzarr3.store(da.ones((5, 8)), array),
    ):
        with (
            dask.config.set(scheduler="processes"),
            pytest.raises(StoreCapabilityError, match="scheduler='threads'"),
        ):
            ask()
    xr.testing.assert_identical(by_zarr_python(session.store), ds)
    with dask.config.set(scheduler="processes"):
        options = {"scheduler": "threads"}
        xzarr3.to_zarr(ds.chunk() + 1, session.store, mode="w", chunkmanager_store_kwargs=options)
    with dask.config.set(scheduler="single-threaded"):
        xzarr3.store(da.ones((5, 8)), xzarr3.open_array(session.store, "t", mode="r+"))
    np.testing.assert_array_equal(zarr.open_array(session.store, path="t")[...], 1)


def test_icechunk_store_session_that_is_made_anew_is_another(repository: Any, session: Any) -> None:
    assert open_store(session) is open_store(session.store)
    other = open_store(repository.writable_session("main").store)
    assert other.identity != open_store(session.store).identity
    xzarr3.create_group(session.store)
    assert contents(other) == {}
