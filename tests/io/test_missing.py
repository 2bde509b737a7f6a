"""Chunks that are absent from the store: read as the fill value, told of, or refused."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from _strategies import layouts, selections, shapes
from _waiting import WaitingStore
from hypothesis import given, settings
from hypothesis import strategies as st

import xzarr3
import xzarr3.dask
from xzarr3 import MissingChunksError, MissingChunksWarning, StoreError
from xzarr3.io.missing import covered
from xzarr3.xarray import Xzarr3BackendEntrypoint

OURS = Xzarr3BackendEntrypoint


class Waiting(WaitingStore):
    """Values in memory that several threads are worth waiting for; notes what is asked for."""

    concurrency = 8

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
    """The same array, opened to do something about chunks that are absent."""
    return xzarr3.open_array(array.store, array.path, missing=how)  # type: ignore[arg-type]


@contextmanager
def reports() -> Iterator[list[tuple[int, set[tuple[int, ...]]]]]:
    """How many units were to be read and which of them were absent, for each report."""
    found: list[tuple[int, set[tuple[int, ...]]]] = []

    def noted(array: Any, asked: int, absent: Any, describe: Any = None) -> None:
        found.append((asked, set(absent)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("xzarr3.arrays.report", noted)
        yield found


# What is told


def test_fill_is_the_default() -> None:
    array = some()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for each in (array, opened(array, "fill"), xzarr3.open_array(array.store, "a/b")):
            assert each.missing == "fill"
            np.testing.assert_array_equal(each[2:4], -1)


@pytest.mark.parametrize("zarr_format", [3, 2])
def test_an_error_names_what_is_absent(zarr_format: Any) -> None:
    array = opened(some(zarr_format=zarr_format))
    keys = ", ".join(repr(array.chunk_key(at)) for at in ((1, 0), (1, 1)))
    expected = (
        f"array '/a/b' of {array.store}: 2 of the 6 chunks to be read are absent: {keys}, "
        "where the array is [2:4, 0:5]; pass missing='fill' or 'warn' to read the fill value "
    )
    with pytest.raises(MissingChunksError, match=re.escape(expected)) as caught:
        array[...]
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again)) == (MissingChunksError, str(caught.value))
    with pytest.raises(MissingChunksError, match=r"1 of the 1 chunk to be read is absent.*is \[2:4, 3:5\]"):
        array[3, 4]
    np.testing.assert_array_equal(array[:2], np.arange(10).reshape(2, 5))
    assert issubclass(MissingChunksError, StoreError)
    for out, selection in (
        (np.zeros((6, 5), "int32"), ...),
        (np.zeros((6, 2), "int32"), (slice(None), [4, 0])),
    ):
        with pytest.raises(MissingChunksError):
            array.get(selection, out=out)


def test_a_warning_comes_once_for_each_read_and_names_the_caller() -> None:
    array = opened(some(), "warn")
    with pytest.warns(MissingChunksWarning) as caught:
        found = array[1:]
    expected = np.arange(30).reshape(6, 5)[1:]
    expected[1:3] = -1
    np.testing.assert_array_equal(found, expected)
    (only,) = caught
    assert only.filename == __file__
    assert "2 of the 6 chunks to be read are absent" in str(only.message)
    assert str(only.message).endswith("where the array is [2:4, 0:5]; read as the fill value -1")


def test_few_of_many_are_named_and_neighbours_are_one_part() -> None:
    def check(array: xzarr3.Array, match: str, threads: int | None = None) -> None:
        with pytest.raises(MissingChunksError, match=match):
            opened(array).get(threads=threads)

    many = xzarr3.create_array(xzarr3.MemoryStore(), shape=(100, 100), chunks=10, dtype="int8")
    check(many, r"100 of the 100 chunks.*'c/0/0', 'c/0/1', 'c/0/2' and 97 more, .* is \[0:100, 0:100\];")
    array = some(absent=[(0, 0), (1, 1), (2, 0)], chunks=(2, 3))
    check(array, r"is \[0:2, 0:3\]; \[2:4, 3:5\]; \[4:6, 0:3\];")
    chess = [at for at in itertools.product(range(6), range(5)) if sum(at) % 2]
    with pytest.raises(MissingChunksError, match=r"15 of the 30.*and 12 more.*; and 11 other parts; pass"):
        opened(some(absent=chess, chunks=1))[...]


def test_an_array_without_dimensions() -> None:
    store = xzarr3.MemoryStore()
    xzarr3.create_array(store, shape=(), dtype="float32")
    with pytest.raises(
        MissingChunksError, match=r"1 of the 1 chunk to be read is absent: 'c', .* is \[\.\.\.\]"
    ):
        xzarr3.open_array(store, missing="error")[...]


def test_errors_pickle() -> None:
    with pytest.raises(MissingChunksError) as caught:
        opened(some())[...]
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again)) == (MissingChunksError, str(caught.value))


# Which units


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_what_is_reported_is_what_is_selected_and_absent(data: st.DataObject) -> None:
    shape = data.draw(shapes(1, 3))
    options = {**data.draw(layouts("int16", shape)), "write_empty_chunks": True}
    store = Waiting() if data.draw(st.booleans()) else xzarr3.MemoryStore()
    model = np.arange(1, math.prod(shape) + 1, dtype="int16").reshape(shape)
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
    read: Any = array.get
    chosen: Any
    way = data.draw(st.sampled_from(["basic", "outer", "points", "mask"]))
    if way == "basic" or 0 in shape:
        chosen = data.draw(selections(shape))
        touched, expected = labels[chosen], model[chosen]
    elif way == "mask":
        chosen = data.draw(st.integers(0, 2**32)) % (np.arange(model.size).reshape(shape) + 2) < 2
        touched, expected = labels[chosen], model[chosen]
    else:
        lists = st.lists(st.integers(0, 10**6), min_size=1, max_size=4)
        chosen = tuple([at % n for at in data.draw(lists)] for n in shape)
        if way == "outer":
            read = array.oindex.get
            touched, expected = labels[np.ix_(*chosen)], model[np.ix_(*chosen)]
        else:
            chosen = tuple([(along * 4)[at] for at in range(4)] for along in chosen)
            read = array.vindex.get
            touched, expected = labels[chosen], model[chosen]
    threads = data.draw(st.sampled_from([None, 1, 3]))
    with reports() as found:
        np.testing.assert_array_equal(read(chosen, threads=threads), expected)
    wanted = set(np.unique(touched).tolist())
    if wanted & absent:
        assert found == [(len(wanted), {units[number] for number in wanted & absent})]
    else:
        assert found == []


@given(shape=st.lists(st.integers(1, 7), max_size=3).map(tuple), data=st.data())
@settings(max_examples=100, deadline=None)
def test_parts_are_what_the_units_cover(shape: tuple[int, ...], data: st.DataObject) -> None:
    chunks = tuple(data.draw(_division(length)) for length in shape)
    array = xzarr3.create_array(xzarr3.MemoryStore(), shape=shape, chunks=chunks, dtype="int8")
    units = [*np.ndindex(*array.shard_grid_shape)]
    coords = sorted(data.draw(st.sets(st.sampled_from(units), min_size=1)))
    grid = array.metadata.chunk_grid
    expected, found = np.zeros(shape, int), np.zeros(shape, int)
    for at in coords:
        expected[grid.region(at, shape)] += 1
    regions = covered(grid, shape, coords)
    for region in regions:
        found[region] += 1
    np.testing.assert_array_equal(found, expected)
    assert len(regions) <= len(coords)
    if len(coords) == len(units):
        assert regions == [tuple(slice(0, length) for length in shape)]


def _division(length: int) -> st.SearchStrategy[Any]:
    """Chunks of one length along a dimension, or of several."""
    lengths = st.lists(st.integers(1, 3), min_size=length, max_size=length)
    return st.one_of(st.integers(1, 4), lengths)


def test_blocks_and_chunks_and_fields() -> None:
    array = opened(some())
    np.testing.assert_array_equal(array.blocks[0], np.arange(10).reshape(2, 5))
    fields = xzarr3.create_array(xzarr3.MemoryStore(), shape=4, chunks=2, dtype=[("x", "i2"), ("y", "f4")])
    fields["x", :2] = 5
    fields = opened(fields)
    np.testing.assert_array_equal(fields["x", :2], 5)
    reads: list[tuple[Callable[[], object], str]] = [
        (lambda: array.blocks[1:, 1], r"'a/b/c/1/1', where the array is \[2:4, 3:5\]"),
        (lambda: array.read_chunk((1, 0)), "'a/b/c/1/0'"),
        (lambda: [*array.chunk_tasks()][3](), "'a/b/c/1/1'"),
        (lambda: np.asarray(array), "'a/b/c/1/0'"),
        (lambda: list(array), "'a/b/c/1/0'"),
        (lambda: fields["y"], r"\[2:4\]"),
    ]
    for read, match in reads:
        with pytest.raises(MissingChunksError, match=match):
            read()


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("threads", [None, 1, 4])
def test_an_inner_chunk_that_is_marked_as_empty_is_not_missing(slow: bool, threads: int | None) -> None:
    store = Waiting() if slow else xzarr3.MemoryStore()
    array = xzarr3.create_array(store, shape=(8, 8), chunks=2, shards=4, dtype="int16", fill_value=9)
    array[:4] = 9
    array[0, 0] = 1
    array[4:] = 2
    array[5, 5] = 3
    assert array.store.exists("c/0/0")
    assert not array.store.exists("c/0/1")
    strict = xzarr3.open_array(store, missing="error")
    assert strict.get((slice(0, 4), slice(0, 4)), threads=threads).sum() == 9 * 15 + 1
    assert strict.get((3, 3), threads=threads)[()] == 9
    with pytest.raises(
        MissingChunksError, match=r"1 of the 4 shards to be read is absent: 'c/0/1', .*\[0:4, 4:8\]"
    ):
        strict.get(threads=threads)


# What carries it


def test_arrays_carry_it() -> None:
    plain = some()
    strict = opened(plain)
    assert repr(strict) == repr(plain)
    assert strict.info == opened(plain, "fill").info
    for again in (pickle.loads(pickle.dumps(strict)), copy.copy(strict), copy.deepcopy(strict)):
        assert again.missing == "error"
        with pytest.raises(MissingChunksError):
            again[...]
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
        for each in found:
            assert each.missing == "error"
            with pytest.raises(MissingChunksError):
                each[...]
    assert xzarr3.open_group(array.store)["a/b"].missing == "fill"
    made = xzarr3.open_group(xzarr3.MemoryStore(), mode="a", missing="warn")
    made.create_array("x", shape=3, dtype="int8")
    with pytest.warns(MissingChunksWarning):
        made["x"][...]


@pytest.mark.parametrize("wrong", ["ignore", "", 1, ["fill"]])
def test_what_there_is_not_is_refused_before_anything_happens(wrong: Any) -> None:
    store = xzarr3.MemoryStore()
    for call in (
        lambda: xzarr3.open(some().store, missing=wrong),
        lambda: xzarr3.open_array(some().store, "a/b", missing=wrong),
        lambda: xzarr3.open_group(store, mode="w", missing=wrong),
        lambda: xzarr3.open_group(store, mode="a", missing=wrong),
        lambda: xr.open_dataset(some().store, engine=OURS, missing=wrong),
    ):
        with pytest.raises(ValueError, match=r"missing=.*; accepted: 'fill', 'warn', 'error'"):
            call()
    assert not [*store.list_prefix("")]


def test_writing_reads_what_is_absent_as_before() -> None:
    array = some()
    strict = xzarr3.open_array(array.store, "a/b", mode="r+", missing="error")
    strict[2:4, 0] = 5
    with pytest.raises(MissingChunksError, match="1 of the 6 chunks"):
        strict[...]
    strict[3, 4] = 7
    np.testing.assert_array_equal(strict[2:4], [[5, -1, -1, -1, -1], [5, -1, -1, -1, 7]])


# An array that is gone


@pytest.mark.parametrize("how", ["fill", "warn", "error"])
def test_an_array_that_vanished_is_an_error(how: str) -> None:
    for store in (xzarr3.MemoryStore(), Waiting()):
        array = opened(some(store), how)
        for key in [*store.list_prefix("")]:
            store.erase(key)
        with pytest.raises(StoreError, match="vanished"):
            array[...]


def test_whether_it_vanished_is_asked_once_a_read() -> None:
    store = Waiting()
    array = xzarr3.create_array(store, shape=50, chunks=1, dtype="int8")
    array[::2] = 1
    store.count.requests.clear()
    for at in range(0, 50, 2):
        assert array[at : at + 2].tolist() == [1, 0]
    assert sorted(store.asked) == sorted(["zarr.json"] * 25 + [*(f"c/{at}" for at in range(50))])
    xzarr3.MemoryStore.erase(store, "zarr.json")
    for _ in range(2):
        with pytest.raises(xzarr3.ChangedError, match="vanished"):
            array[:2]


@pytest.mark.parametrize("concurrency", [8, 1])
def test_where_nothing_is_found_it_is_asked_each_time(concurrency: int) -> None:
    store = Waiting()
    store.concurrency = concurrency
    xzarr3.create_array(store, shape=50, chunks=1, dtype="int8")
    array = xzarr3.open_array(store)
    store.count.requests.clear()
    assert not array[...].any()
    assert store.asked.count("zarr.json") == 1, "once for a read, not for a chunk"
    for key in [*store.list_prefix("")]:
        store.erase(key)
    for selection in (..., 3, slice(1, 7)):
        with pytest.raises(StoreError, match="vanished"):
            array[selection]


# dask


@pytest.mark.parametrize("scheduler", ["synchronous", "threads", "processes"])
def test_tasks_name_their_chunk(scheduler: str, tmp_path: Path) -> None:
    array = opened(some(xzarr3.LocalStore(tmp_path / "a.zarr")))
    lazy = xzarr3.dask.from_zarr(array, chunks="units")
    with dask.config.set(scheduler=scheduler, num_workers=2):
        np.testing.assert_array_equal(lazy[:2].compute(), np.arange(10).reshape(2, 5))
        with pytest.raises(
            MissingChunksError, match=r"1 of the 1 chunk.*'a/b/c/1/1', where the array is \[2:4, 3:5\]"
        ):
            lazy[3, 4].compute()


def test_dask_arrays_that_do_different_things_have_different_names() -> None:
    array = some()
    fill, warn, error = (
        xzarr3.dask.from_zarr(array.store, "a/b", missing=how) for how in ("fill", "warn", "error")
    )
    assert len({fill.name, warn.name, error.name}) == 3
    assert fill.name == xzarr3.dask.from_zarr(array.store, "a/b").name
    assert xzarr3.dask.from_zarr(array, missing="error").name == error.name
    assert xzarr3.dask.from_zarr(opened(array)).name == error.name
    assert xzarr3.dask.from_zarr(opened(array), missing="fill").name == fill.name
    assert array.missing == "fill"
    with pytest.warns(MissingChunksWarning):
        (warn + fill).compute(scheduler="synchronous")
    with pytest.raises(MissingChunksError):
        (error + fill).compute(scheduler="synchronous")
    with pytest.raises(ValueError, match="missing='ignore'; accepted: "):
        xzarr3.dask.from_zarr(array, missing="ignore")  # type: ignore[arg-type]


# xarray


def weather(path: Any, group: str | None = None) -> None:
    """Store a year of months on a small globe; x has no coordinate."""
    values = np.arange(12 * 6 * 4, dtype="float32").reshape(12, 6, 4) + 1
    ds = xr.Dataset(
        {"t2m": (("time", "lat", "x"), values)},
        coords={
            "time": pd.date_range("1979-01-01", periods=12, freq="MS"),
            "lat": np.linspace(-25, 25, 6),
            "height": ((), 2.0),
            "area": (("lat", "x"), np.ones((6, 4))),
            "station": ("x", [*"abcd"]),
        },
    )
    encoding = {"t2m": {"chunks": (1, 2, 4)}, "lat": {"_FillValue": None}}
    ds.to_zarr(path, group=group, zarr_format=3, consolidated=False, encoding=encoding)


@pytest.fixture
def stored(tmp_path: Path) -> Callable[..., xzarr3.LocalStore]:
    """Makes the stored dataset, from which some keys are erased."""

    def make(*, erase: Any = ("t2m/c/2/1/0", "t2m/c/2/2/0")) -> xzarr3.LocalStore:
        weather(tmp_path / "a.zarr")
        store = xzarr3.LocalStore(tmp_path / "a.zarr")
        for key in erase:
            assert store.exists(key)
            store.erase(key)
        return store

    return make


def test_a_dataset_names_coordinates(stored: Callable[..., xzarr3.LocalStore]) -> None:
    ds = xr.open_dataset(stored(), engine=OURS, missing="error")
    assert float(ds["t2m"][0, 0, 0]) == 1
    expected = (
        "2 of the 36 chunks to be read are absent: 't2m/c/2/1/0', 't2m/c/2/2/0', where the array is "
        "time 1979-03-01 to 1979-03-01, lat -5.0 to 25.0, x[0:4]; pass "
    )
    with pytest.raises(MissingChunksError, match=re.escape(expected)):
        ds["t2m"].load()
    with pytest.raises(
        MissingChunksError, match=r"time 1979-03-01 to 1979-03-01, lat -5\.0 to 5\.0, x\[0:4\]"
    ):
        ds["t2m"].sel(time="1979-03", lat=5).load()
    assert ds["t2m"].sel(time="1979-04").notnull().all()


def test_a_dataset_warns_once_for_each_read(stored: Callable[..., xzarr3.LocalStore]) -> None:
    ds = xr.open_dataset(stored(), engine=OURS, missing="warn")
    with pytest.warns(MissingChunksWarning, match=r"time 1979-03-01 to 1979-03-01, lat") as caught:
        values = ds["t2m"].values
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert np.isnan(values[2, 2:]).all()
    assert not np.isnan(values[2, :2]).any()


@pytest.mark.slow
def test_a_dataset_of_dask_arrays(stored: Callable[..., xzarr3.LocalStore]) -> None:
    store = stored()
    ds = xr.open_dataset(store, engine=OURS, missing="error", chunks={})
    assert float(ds["t2m"][3:].sum()) > 0
    for scheduler in ("threads", "processes"):
        with (
            dask.config.set(scheduler=scheduler, num_workers=1),
            pytest.raises(MissingChunksError, match=r"1 of the 1 chunk.*time 1979-03-01 to.*x\[0:4\]"),
        ):
            ds["t2m"].mean().compute()
    fill = xr.open_dataset(store, engine=OURS, chunks={})
    assert set(fill["t2m"].data.dask).isdisjoint(ds["t2m"].data.dask)


def test_it_is_pickled_and_copied_along(stored: Callable[..., xzarr3.LocalStore]) -> None:
    ds = xr.open_dataset(stored(), engine=OURS, missing="error")
    for again in (pickle.loads(pickle.dumps(ds)), ds.copy(), copy.deepcopy(ds), ds[["t2m"]].isel(x=0)):
        with pytest.raises(MissingChunksError, match="time 1979-03-01 to 1979-03-01, lat -5"):
            again["t2m"].load()


def test_trees_carry_it(stored: Callable[..., xzarr3.LocalStore]) -> None:
    store = stored()
    weather(store.root, "deep/er")
    store.erase("deep/er/t2m/c/0/0/0")
    tree = xr.open_datatree(store, engine=OURS, missing="error")
    with pytest.raises(
        MissingChunksError, match=r"deep/er/t2m' .*time 1979-01-01 to 1979-01-01, lat -25\.0 to -15"
    ):
        tree["deep/er/t2m"].load()
    groups = xr.open_groups(store, engine=OURS, missing="error")
    with pytest.raises(MissingChunksError, match=r"array '/t2m' .*time 1979-03-01"):
        groups["/"]["t2m"].load()
    one = xr.open_dataset(store, engine=OURS, group="deep/er", missing="error")
    with pytest.raises(MissingChunksError, match=r"time 1979-01-01"):
        one["t2m"].load()


def test_what_tells_nothing_is_left_to_indices(stored: Callable[..., xzarr3.LocalStore]) -> None:
    store = stored(erase=["t2m/c/0/0/0", "lat/c/0"])
    ds = xr.open_dataset(store, engine=OURS, missing="error", create_default_indexes=False)
    with pytest.raises(MissingChunksError, match=r"time 1979-01-01 to 1979-01-01, lat\[0:2\], x\[0:4\]"):
        ds["t2m"].variable.load()
    with pytest.raises(MissingChunksError, match=r"array '/lat'.*where the array is lat\[0:6\];"):
        ds["lat"].load()
    undecoded = xr.open_dataset(
        store, engine=OURS, missing="error", decode_times=False, create_default_indexes=False
    )
    with pytest.raises(MissingChunksError, match=r"time 0 to 0, lat\[0:2\], x\[0:4\]"):
        undecoded["t2m"].variable.load()
    with pytest.raises(MissingChunksError, match=r"array '/lat'"):
        xr.open_dataset(store, engine=OURS, missing="error")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            xr.date_range("2000-02-28", periods=4, calendar="360_day", use_cftime=True),
            "2000-02-30 to 2000-03-01",
        ),
        (pd.date_range("2000-02-28T12", periods=4, freq="h"), "2000-02-28T14:00 to 2000-02-28T15:00"),
        (pd.to_datetime(["2000-01-01", "2000-01-02", "NaT", "2001-01-01"]), "NaT to 2001-01-01"),
        (np.array([*"abcd"], object), "'c' to 'd'"),
        (np.array([*"abcd"]), "'c' to 'd'"),
        (np.array([1, 2, 3, 4]), "3 to 4"),
        (np.array([1, 2, 3, 4.5], "float32"), "3.0 to 4.5"),
    ],
)
def test_coordinates_of_all_kinds(values: Any, expected: str, tmp_path: Path) -> None:
    ds = xr.Dataset({"v": ("k", np.arange(4.0) + 1)}, coords={"k": values})
    ds.to_zarr(tmp_path / "a.zarr", zarr_format=3, consolidated=False, encoding={"v": {"chunks": (2,)}})
    store = xzarr3.LocalStore(tmp_path / "a.zarr")
    store.erase("v/c/1")
    found = xr.open_dataset(store, engine=OURS, missing="error")
    with pytest.raises(MissingChunksError, match=re.escape(f"where the array is k {expected};")):
        found["v"].load()
