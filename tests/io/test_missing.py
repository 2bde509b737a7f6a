"""Chunks that are absent from the store: read as the fill value, told of, or refused."""

import copy
import math
import pickle
import re
from functools import partial
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import xarray as xr
from _slow import slow
from _strategies import layouts, selections, shapes
from _things import refused, refuses
from _unprivileged import unprivileged
from _waiting import WaitingStore
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import xzarr3
import xzarr3.dask
from xzarr3 import MissingChunksError, MissingChunksWarning, StoreError
from xzarr3.xarray import Xzarr3BackendEntrypoint

OURS = Xzarr3BackendEntrypoint


class Waiting(WaitingStore):
    """Values in memory that several threads are worth waiting for; notes what is asked for."""

    traits = replace(WaitingStore.traits, concurrency=8)

    @property
    def asked(self) -> list[str]:
        return [key for operation, key in self.count.requests if operation != "version"]


def some(store: xzarr3.Store | None = None, absent: Any = ((1, 0), (1, 1)), **options: Any) -> xzarr3.Array:
    """An array of 3 by 2 stored units, a few of which are erased."""
    options = {"chunks": (2, 3), "compressors": None, "fill_value": -1, **options}
    model = np.arange(30, dtype="int32").reshape(6, 5)
    store = xzarr3.MemoryStore() if store is None else store
    array = xzarr3.create_array(store, "a/b", data=model, write_empty_chunks=True, **options)
    for coords in absent:
        array.store.erase(array.chunk_key(coords))
    return array


def opened(array: xzarr3.Array, how: str = "error") -> xzarr3.Array:
    return xzarr3.open_array(array.store, array.path, missing=how)  # type: ignore[arg-type]


@pytest.mark.parametrize("zarr_format", [3, 2])
def test_an_error_names_what_is_absent(zarr_format: Any) -> None:
    array = opened(some(zarr_format=zarr_format))
    keys = ", ".join(repr(array.chunk_key(at)) for at in ((1, 0), (1, 1)))
    expected = re.escape(
        f"array '/a/b' of {array.store}: 2 of the 6 chunks to be read are absent: {keys}; "
        "pass missing='fill' or 'warn' to read the fill value "
    )
    (error,) = refused(MissingChunksError, expected, lambda: array[...])
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (MissingChunksError, str(error))
    assert isinstance(again, StoreError)
    refused(MissingChunksError, r"1 of the 1 chunk to be read is absent: 'a.b.*1.1'; ", lambda: array[3, 4])
    np.testing.assert_array_equal(array[:2], np.arange(10).reshape(2, 5))
    whole, part = np.zeros((6, 5), "int32"), np.zeros((6, 2), "int32")
    some_columns = partial(array.get, (slice(None), [4, 0]), out=part)
    refused(MissingChunksError, None, partial(array.get, out=whole), some_columns)
    # Few of many are named.
    for shape, match in (
        ((100, 100), r"100 of the 100 .*: 'c/0/0', 'c/0/1', 'c/0/2' and 97 more; "),
        ((), "1 of the 1 chunk to be read is absent: 'c'; "),
    ):
        many = xzarr3.create_array(xzarr3.MemoryStore(), shape=shape, chunks=(10,) * len(shape), dtype="i1")
        refuses(opened(many).get, [...], MissingChunksError, match)


def test_a_warning_comes_once_for_each_read_and_names_the_caller(stored: xzarr3.LocalStore) -> None:
    array = opened(some(), "warn")
    with pytest.warns(MissingChunksWarning) as caught:
        found = array[1:]
    expected = np.arange(30).reshape(6, 5)[1:]
    expected[1:3] = -1
    np.testing.assert_array_equal(found, expected)
    (only,) = caught
    assert only.filename == __file__
    assert "2 of the 6 chunks to be read are absent" in str(only.message)
    assert str(only.message).endswith("'a/b/c/1/1'; read as the fill value -1")
    ds = xr.open_dataset(stored, engine=OURS, missing="warn")
    with pytest.warns(MissingChunksWarning, match="'t2m/c/2/1/0'") as caught:
        values = ds["t2m"].values
    assert [each.filename for each in caught] == [__file__]
    assert np.isnan(values[2, 2:]).all()
    assert not np.isnan(values[2, :2]).any()


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=150)
def test_what_is_reported_is_what_is_selected_and_absent(data: st.DataObject) -> None:
    shape = data.draw(shapes(1, 3))
    store = Waiting() if data.draw(st.booleans()) else xzarr3.MemoryStore()
    model = np.arange(1, math.prod(shape) + 1, dtype="int16").reshape(shape)
    options = {**data.draw(layouts("int16", shape)), "write_empty_chunks": True}
    created = xzarr3.create_array(store, shape=shape, **options)
    created[...] = model
    units = [*np.ndindex(*created.shard_grid_shape)]
    labels = np.empty(shape, int)
    for number, coords in enumerate(units):
        labels[created.metadata.chunk_grid.region(coords, shape)] = number
    absent = data.draw(st.sets(st.sampled_from(range(len(units))))) if units else set()
    for number in absent:
        store.erase(created.chunk_key(units[number]))
        model[labels == number] = created.fill_value
    array = xzarr3.open_array(store, missing="warn")
    way = data.draw(st.sampled_from(["get", "oindex", "vindex", "mask"]))
    reader: Any = array if way in ("get", "mask") or 0 in shape else getattr(array, way)
    chosen: Any
    if way == "get" or 0 in shape:
        index = chosen = data.draw(selections(shape))
    elif way == "mask":
        index = chosen = data.draw(st.integers(0, 2**32)) % (np.arange(model.size).reshape(shape) + 2) < 2
    else:
        number = data.draw(st.integers(1, 4))
        lists = st.lists(st.integers(0, 10**6), min_size=number, max_size=number)
        chosen = tuple([at % n for at in data.draw(lists)] for n in shape)
        index = chosen if way == "vindex" else np.ix_(*chosen)
    found: list[Any] = []  # How many units were to be read and which of them were absent.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("xzarr3.arrays.report", lambda _, asked, missing: found.append((asked, set(missing))))
        result = reader.get(chosen, threads=data.draw(st.sampled_from([None, 1, 3])))
    np.testing.assert_array_equal(result, model[index])
    wanted = set(np.unique(labels[index]).tolist())
    lacking = {units[number] for number in wanted & absent}
    assert found == ([(len(wanted), lacking)] if lacking else [])


def test_blocks_and_chunks_and_fields() -> None:
    array = opened(some())
    np.testing.assert_array_equal(array.blocks[0], np.arange(10).reshape(2, 5))
    fields = xzarr3.create_array(xzarr3.MemoryStore(), shape=4, chunks=2, dtype=[("x", "i2"), ("y", "f4")])
    fields["x", :2] = 5
    fields = opened(fields)
    np.testing.assert_array_equal(fields["x", :2], 5)
    one, two, of_fields = "'a/b/c/1/0'", "'a/b/c/1/1'", "'c/1'"
    refused(MissingChunksError, two, lambda: array.blocks[1:, 1], lambda: [*array.chunk_tasks()][3]())
    refused(MissingChunksError, one, lambda: array.read_chunk((1, 0)), lambda: np.asarray(array))
    refused(MissingChunksError, one, lambda: list(array))
    refused(MissingChunksError, of_fields, lambda: fields["y"])


@pytest.mark.parametrize("make", [xzarr3.MemoryStore, Waiting])
@pytest.mark.parametrize("threads", [None, 1, 4])
def test_an_inner_chunk_that_is_marked_as_empty_is_not_missing(make: Any, threads: int | None) -> None:
    store = make()
    array = xzarr3.create_array(store, shape=(8, 8), chunks=2, shards=4, dtype="int16", fill_value=9)
    array[:4] = 9
    array[0, 0] = 1
    array[4:] = 2
    array[5, 5] = 3
    assert (store.exists("c/0/0"), store.exists("c/0/1")) == (True, False)
    strict = xzarr3.open_array(store, missing="error")
    assert strict.get((slice(0, 4), slice(0, 4)), threads=threads).sum() == 9 * 15 + 1
    assert strict.get((3, 3), threads=threads)[()] == 9
    match = "1 of the 4 shards to be read is absent: 'c/0/1'; "
    refused(MissingChunksError, match, lambda: strict.get(threads=threads))


def test_writing_reads_what_is_absent_as_before() -> None:
    array = some()
    strict = xzarr3.open_array(array.store, "a/b", mode="r+", missing="error")
    strict[2:4, 0] = 5
    refused(MissingChunksError, "1 of the 6 chunks", lambda: strict[...])
    strict[3, 4] = 7
    np.testing.assert_array_equal(strict[2:4], [[5, -1, -1, -1, -1], [5, -1, -1, -1, 7]])


def test_arrays_carry_it() -> None:
    plain = some()
    strict = opened(plain)
    assert repr(strict) == repr(plain)
    assert strict.info == opened(plain, "fill").info
    copies = (pickle.loads(pickle.dumps(strict)), copy.copy(strict), copy.deepcopy(strict))
    assert [again.missing for again in copies] == ["error"] * 3
    refuses(lambda again: again[...], copies, MissingChunksError)
    assert str(strict.explain()) == str(opened(plain, "fill").explain())
    assert dask.base.tokenize(strict) != dask.base.tokenize(plain)
    assert dask.base.tokenize(strict) == dask.base.tokenize(opened(plain))


def test_groups_hand_it_on() -> None:
    array = some()
    plain = xzarr3.open_group(array.store, mode="r+")
    plain.create_array("c/d", shape=3, dtype="int8")
    plain.consolidate()
    for group in (
        xzarr3.open_group(array.store, missing="error"),
        xzarr3.open(array.store, missing="error"),
        xzarr3.open_group(array.store, missing="error", use_consolidated=False),
        xzarr3.open_group(array.store, mode="r+", missing="error"),
        pickle.loads(pickle.dumps(xzarr3.open_group(array.store, missing="error"))),
    ):
        assert isinstance(group, xzarr3.Group)
        assert group.missing == "error"
        found = [
            group["a/b"], group["a"]["b"], dict(group["a"].arrays())["b"], dict(group.members(None))["a/b"],
            dict(dict(group.groups())["c"].items())["d"], group.get("c/d"), group.require_group("a")["b"],
        ]  # fmt: skip
        assert {each.missing for each in found} == {"error"}
        refuses(lambda each: each[...], found, MissingChunksError)
    assert xzarr3.open_group(array.store)["a/b"].missing == "fill"
    made = xzarr3.open_group(xzarr3.MemoryStore(), mode="a", missing="warn")
    made.create_array("x", shape=3, dtype="int8")
    with pytest.warns(MissingChunksWarning):
        made["x"][...]


@pytest.mark.parametrize("wrong", ["ignore", "", 1, ["fill"]])
def test_what_there_is_not_is_refused_before_anything_happens(wrong: Any) -> None:
    store = xzarr3.MemoryStore()
    refused(
        ValueError, r"missing=.*; accepted: 'fill', 'warn', 'error'",
        lambda: xzarr3.open(some().store, missing=wrong),
        lambda: xzarr3.open_array(some().store, "a/b", missing=wrong),
        lambda: xzarr3.open_group(store, mode="w", missing=wrong),
        lambda: xzarr3.open_group(store, mode="a", missing=wrong),
        lambda: xr.open_dataset(some().store, engine=OURS, missing=wrong),
    )  # fmt: skip
    assert not [*store.list_prefix("")]


@pytest.mark.parametrize("how", ["fill", "warn", "error"])
def test_an_array_that_vanished_is_an_error(how: str) -> None:
    for store in (xzarr3.MemoryStore(), Waiting()):
        array = opened(some(store), how)
        for key in [*store.list_prefix("")]:
            store.erase(key)
        refuses(array.get, [...], StoreError, "vanished")


@unprivileged()
def test_an_array_that_may_not_be_read_has_not_vanished(base: Path) -> None:
    array = xzarr3.create_array(base / "store", "a", data=[1])
    (base / "store" / "a").chmod(0)
    refuses(array.get, [...], xzarr3.StorePermissionError, "cannot read key 'a/zarr.json'")
    (base / "store" / "a").chmod(0o755)


@pytest.mark.parametrize("concurrency", [8, 1])
def test_whether_it_vanished_is_asked_once_a_read(concurrency: int) -> None:
    store = Waiting()
    store.traits = replace(store.traits, concurrency=concurrency)
    array = xzarr3.create_array(store, shape=50, chunks=1, dtype="int8")
    store.count.requests.clear()
    assert not array[...].any()
    assert store.asked.count("zarr.json") == 1, "once for a read, not for a chunk"
    array[::2] = 1
    store.count.requests.clear()
    for at in range(0, 50, 2):
        assert array[at : at + 2].tolist() == [1, 0]
    assert sorted(store.asked) == sorted(["zarr.json"] * 25 + [*(f"c/{at}" for at in range(50))])
    xzarr3.MemoryStore.erase(store, "zarr.json")
    places = (slice(2), ..., 3, slice(1, 7), slice(2))
    refuses(array.__getitem__, places, xzarr3.ChangedError, "vanished")


@pytest.mark.parametrize("scheduler", ["synchronous", "threads", slow("processes")])
def test_tasks_name_their_chunk(scheduler: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    pool = request.getfixturevalue("processes") if scheduler == "processes" else None
    array = opened(some(xzarr3.LocalStore(tmp_path / "a.zarr")))
    lazy = xzarr3.dask.from_zarr(array, chunks="units")
    with dask.config.set(scheduler=scheduler, pool=pool):
        np.testing.assert_array_equal(lazy[:2].compute(), np.arange(10).reshape(2, 5))
        with pytest.raises(MissingChunksError, match=r"1 of the 1 chunk.*'a/b/c/1/1'"):
            lazy[3, 4].compute()


def test_dask_arrays_that_do_different_things_have_different_names() -> None:
    array = some()
    lazy = partial(xzarr3.dask.from_zarr, array.store, "a/b")
    fill, warn, error = (lazy(missing=how) for how in ("fill", "warn", "error"))
    assert len({fill.name, warn.name, error.name}) == 3
    assert fill.name == xzarr3.dask.from_zarr(array.store, "a/b").name
    assert xzarr3.dask.from_zarr(array, missing="error").name == error.name
    assert xzarr3.dask.from_zarr(opened(array)).name == error.name
    assert xzarr3.dask.from_zarr(opened(array), missing="fill").name == fill.name
    assert array.missing == "fill"
    with pytest.warns(MissingChunksWarning):
        (warn + fill).compute(scheduler="synchronous")
    refused(MissingChunksError, None, lambda: (error + fill).compute(scheduler="synchronous"))
    wrong = partial(xzarr3.dask.from_zarr, array, missing="ignore")  # type: ignore[arg-type]
    refused(ValueError, "missing='ignore'; accepted: ", wrong)


def weather(path: Any, group: str | None = None) -> None:
    values = np.arange(12 * 6 * 4, dtype="float32").reshape(12, 6, 4) + 1
    ds = xr.Dataset({"t2m": (("time", "lat", "x"), values)}, coords={"lat": np.linspace(-25, 25, 6)})
    encoding = {"t2m": {"chunks": (1, 2, 4)}, "lat": {"_FillValue": None}}
    ds.to_zarr(path, group=group, zarr_format=3, consolidated=False, encoding=encoding)


@pytest.fixture
def stored(tmp_path: Path) -> xzarr3.LocalStore:
    """A dataset that lacks two chunks."""
    weather(tmp_path / "a.zarr")
    store = xzarr3.LocalStore(tmp_path / "a.zarr")
    for key in ("t2m/c/2/1/0", "t2m/c/2/2/0"):
        assert store.exists(key)
        store.erase(key)
    return store


def test_a_dataset_names_keys(stored: xzarr3.LocalStore) -> None:
    ds = xr.open_dataset(stored, engine=OURS, missing="error")
    assert float(ds["t2m"][0, 0, 0]) == 1
    expected = "2 of the 36 chunks to be read are absent: 't2m/c/2/1/0', 't2m/c/2/2/0'; pass "
    refused(MissingChunksError, re.escape(expected), ds["t2m"].load)
    one = ds["t2m"].isel(time=2).sel(lat=5)
    refused(MissingChunksError, "1 of the 1 chunk to be read is absent: 't2m/c/2/1/0'", one.load)
    again = (pickle.loads(pickle.dumps(ds)), ds.copy(), copy.deepcopy(ds), ds[["t2m"]].isel(x=0))
    refuses(lambda each: each["t2m"].load(), again, MissingChunksError, "'t2m/c/2/1/0'")
    assert ds["t2m"].isel(time=3).notnull().all()


@pytest.mark.slow
def test_a_dataset_of_dask_arrays(stored: xzarr3.LocalStore, processes: Any) -> None:
    ds = xr.open_dataset(stored, engine=OURS, missing="error", chunks={})
    assert float(ds["t2m"][3:].sum()) > 0
    for scheduler, pool in (("threads", None), ("processes", processes)):
        with dask.config.set(scheduler=scheduler, pool=pool):
            refused(MissingChunksError, r"1 of the 1 chunk.*'t2m/c/2", ds["t2m"].mean().compute)
    fill = xr.open_dataset(stored, engine=OURS, chunks={})
    assert set(fill["t2m"].data.dask).isdisjoint(ds["t2m"].data.dask)


def test_trees_carry_it(stored: xzarr3.LocalStore) -> None:
    weather(stored.root, "deep/er")
    stored.erase("deep/er/t2m/c/0/0/0")
    tree = xr.open_datatree(stored, engine=OURS, missing="error")
    groups = xr.open_groups(stored, engine=OURS, missing="error")
    one = xr.open_dataset(stored, engine=OURS, group="deep/er", missing="error")
    for data, match in (
        (tree["deep/er/t2m"], r"array '/deep/er/t2m' .*'deep/er/t2m/c/0/0/0'"),
        (groups["/"]["t2m"], r"array '/t2m' .*'t2m/c/2/1/0'"),
        (one["t2m"], "'deep/er/t2m/c/0/0/0'"),
    ):
        refused(MissingChunksError, match, data.load)
