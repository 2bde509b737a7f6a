"""``to_zarr(prepend_dim=...)`` of all that a store may hold, and misused; ``test_rolling`` has the rest."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from _archives import TIMES, archive, first, months, read, roll, store_of, values
from _conformance import contents
from _killed import MortalStore, forget_process, killed_everywhere, left, opened
from _slow import slow

import xzarr3
import xzarr3.xarray
from xzarr3 import ConflictError, to_zarr
from xzarr3.dtypes import Optional, parse_dtype
from xzarr3.xarray import prepend


def test_a_grid_of_several_lengths_gets_a_first_chunk(tmp_path: Path) -> None:
    archive("prepend", tmp_path / "a", 17, (12, 7, 12))
    with xzarr3.trace() as trace:
        to_zarr(first(17), tmp_path / "a", prepend_dim="time")
    assert not trace.arrays.get("/t2m", {}).get("chunks_decoded")
    along = xzarr3.open_array(tmp_path / "a", "t2m").metadata.chunk_grid.axes[0]
    assert along.lengths(48) == (17, 12, 7, 12)
    xr.testing.assert_identical(read(tmp_path / "a"), months())


# Killed


def test_killed_without_labels_it_is_not_repeated_by_mistake() -> None:
    begun = MortalStore()
    xzarr3.create_group(begun)
    xzarr3.create_array(begun, "a", data=np.arange(10, 58), chunks=10, dimension_names=("x",))
    act: Callable[[Any], object] = lambda store: to_zarr(  # noqa: E731
        xr.Dataset({"a": ("x", np.arange(10))}), store, prepend_dim="x"
    )
    lengths = []
    for store, killed in killed_everywhere(begun, act):
        if killed:
            forget_process()
            with contextlib.suppress(ConflictError):
                act(store)
            found = xzarr3.open_array(store, "a")[:]
            lengths.append(len(found))
            np.testing.assert_array_equal(found[-58:], np.arange(58)[-len(found) :])
    done = lengths.index(68)  # From there on all was done, and only leases of lengths were left.
    assert set(lengths[:done]) == {48, 58}  # Of 48, the error has told that nothing was put before them.
    assert lengths[done:] == [68] * len(lengths[done:])
    assert len(lengths) - done <= 2


@pytest.mark.parametrize("kind", ["memory", "directory"])
def test_a_task_that_fails_leaves_what_was_there(kind: str, tmp_path: Path) -> None:
    store = store_of(kind, tmp_path)
    archive("prepend", store, 17)
    before = values(store)

    def fail(block: Any, block_info: Any = None) -> Any:
        if block_info[0]["chunk-location"][0] == 2:
            raise ZeroDivisionError
        return block

    new = first(17).chunk(time=4)
    new["t2m"].data = new.t2m.data.map_blocks(fail, dtype=float)
    with pytest.raises(ZeroDivisionError):
        to_zarr(new, store, prepend_dim="time")
    assert values(store) == before
    assert left(store) == []
    roll("prepend", store, 17)
    xr.testing.assert_identical(read(store), months())


@pytest.mark.slow
def test_blocks_are_computed_in_other_processes(tmp_path: Path) -> None:
    archive("prepend", tmp_path / "a", 17)
    new = first(17).chunk(time=4)
    to_zarr(new, tmp_path / "a", prepend_dim="time", chunkmanager_store_kwargs={"scheduler": "processes"})
    xr.testing.assert_identical(read(tmp_path / "a"), months())


# Other writers and readers


@pytest.mark.parametrize("what", ["longer", "gone", "made"])
def test_what_changes_after_the_plan_was_made_is_a_conflict(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = xzarr3.MemoryStore()
    archive("prepend", store, 24)
    put_before = prepend.put_before

    def change(*given: Any, **options: Any) -> Any:
        if what == "longer":
            later = xr.date_range("2023-01-01", periods=2, freq="MS")
            to_zarr(first(2).assign_coords(time=later), store, append_dim="time")
        elif what == "gone":
            del xzarr3.open_group(store, mode="r+")["area"]
        else:
            xzarr3.create_array(store, "new", data=np.arange(5.0), dimension_names=("lat",))
        return put_before(*given, **options)

    monkeypatch.setattr(prepend, "put_before", change)
    new = first(24).assign(new=("lat", np.ones(5)))
    if what == "gone":  # It is compared when the blocks are computed.
        new["area"] = new.area.chunk()
    with pytest.raises(ConflictError, match="nothing was written"):
        to_zarr(new, store, prepend_dim="time")
    assert opened(store).sizes["time"] == (26 if what == "longer" else 24)
    assert left(store) == []


def test_lazy_values_of_the_archive_itself_are_put_before_it(tmp_path: Path) -> None:
    archive("prepend", tmp_path / "a", 24)
    earlier = opened(tmp_path / "a", chunks={}).isel(time=slice(24)).assign_coords(time=TIMES[:24])
    to_zarr(earlier, tmp_path / "a", prepend_dim="time")
    t2m = months().t2m.values[24:]
    np.testing.assert_array_equal(read(tmp_path / "a").t2m, np.concatenate([t2m, t2m]))


# What else is in a store


@pytest.mark.parametrize("zarr_format", [3, slow(2)])
def test_a_group_with_bounds_beside_other_groups(zarr_format: Any) -> None:
    times = xr.date_range("2019-01-01", periods=6, freq="MS")
    ds = xr.Dataset(
        {
            "a": ("time", np.arange(6)),
            "time_bnds": (("time", "nv"), np.array([times, times + np.timedelta64(1, "D")]).T),
        },
        {"time": ("time", times, {"bounds": "time_bnds"})},
    )
    store = xzarr3.MemoryStore()
    other, below = xr.Dataset({"c": ("time", np.arange(3))}), xr.Dataset({"b": ("time", np.arange(5))})
    tree = xr.DataTree.from_dict({"/x": ds.isel(time=slice(2, None)), "/y": other})
    to_zarr(tree, store, zarr_format=zarr_format, consolidated=True)
    to_zarr(below, store, group="x/low", mode="w-")
    to_zarr(ds.isel(time=slice(2)), store, group="x", prepend_dim="time")
    xr.testing.assert_identical(read(store, group="x"), ds)
    xr.testing.assert_identical(read(store, group="x/low"), below)
    xr.testing.assert_identical(read(store, group="y"), other)
    assert xzarr3.open_group(store).consolidated
    xr.testing.assert_identical(read(store, group="x", consolidated=True), ds)


@pytest.mark.parametrize("zarr_format", [3, slow(2), slow("3-draft")])
def test_new_variables_and_attributes_come_with_the_same_change(zarr_format: Any) -> None:
    store = xzarr3.MemoryStore()
    archive("prepend", store, 24, zarr_format=zarr_format)
    new = first(24).assign(height=("lat", np.ones(5)), flag=("lat", da.zeros(5))).assign_attrs(title="more")
    to_zarr(new, store, prepend_dim="time")
    expected = months().assign(height=("lat", np.ones(5)), flag=("lat", np.zeros(5)))
    xr.testing.assert_identical(read(store), expected.assign_attrs(title="more"))
    if zarr_format != "3-draft":
        xr.testing.assert_identical(read(store, consolidated=False), read(store, consolidated=True))


def test_where_nothing_is_it_is_the_first_write(tmp_path: Path) -> None:
    bare = xzarr3.create_group(xzarr3.MemoryStore()).store
    for place in (tmp_path / "a", xzarr3.MemoryStore(), bare, None):
        group = to_zarr(first(3), place, prepend_dim="time")
        xr.testing.assert_identical(read(group.store), first(3))


def test_without_any_element_nothing_moves() -> None:
    store = xzarr3.MemoryStore()
    archive("prepend", store, 24)
    array = xzarr3.open_array(store, "t2m")
    to_zarr(first(0), store, prepend_dim="time")
    assert array[:].shape == (24, 5)
    xr.testing.assert_identical(read(store), months().isel(time=slice(24, None)))


def test_before_an_archive_without_elements() -> None:
    store = xzarr3.MemoryStore()
    to_zarr(first(0), store, encoding={"time": {"units": "days since 2000-01-01", "dtype": "int32"}})
    to_zarr(first(5), store, prepend_dim="time")
    xr.testing.assert_identical(read(store), first(5))


def test_labels_that_decrease_and_forced_ones() -> None:
    store = xzarr3.MemoryStore()
    falling = xr.Dataset({"a": ("x", np.arange(6))}, {"x": [6, 5, 4, 3, 2, 1]})
    to_zarr(falling.isel(x=slice(3, None)), store)
    to_zarr(falling.isel(x=slice(3)), store, prepend_dim="x")
    xr.testing.assert_identical(read(store), falling)
    with pytest.raises(
        xzarr3.ArgumentError, match=r"label 0 .*element 1 .*would precede 6, though .*decrease"
    ):
        to_zarr(falling.isel(x=slice(2)).assign_coords(x=[7, 0]), store, prepend_dim="x")
    to_zarr(falling, store, prepend_dim="x", check_labels=False)
    assert read(store).x.values.tolist() == [6, 5, 4, 3, 2, 1] * 2


def test_masked_text_and_packed_values() -> None:
    ds = xr.Dataset(
        {
            "packed": ("x", [1.5, np.nan, 3.0, 0.5, np.nan, 2.0]),
            "text": ("x", np.array(["a", "bcd", "", "é", "x" * 9, "q"], object)),
            "flag": ("x", np.array([True, False, True, True, False, False])),
        }
    )
    store = xzarr3.MemoryStore()
    packing = {"dtype": "int16", "scale_factor": 0.5, "_FillValue": -9}
    to_zarr(ds.isel(x=slice(4, None)), store, encoding={"packed": packing})
    to_zarr(ds.isel(x=slice(4)).drop_encoding(), store, prepend_dim="x")
    xr.testing.assert_identical(read(store), ds)
    with pytest.raises(ValueError, match="packed"):
        to_zarr(ds.isel(x=slice(4)).assign(packed=("x", np.full(4, 1e6))), store, prepend_dim="x")
    assert read(store).sizes["x"] == 6


@pytest.mark.parametrize("chunks", [None, {}])
@pytest.mark.parametrize(("inner", "number"), [("int32", 3), ("int32", 4), ("float32", 4)])
def test_elements_without_a_value(inner: str, number: int, chunks: Any) -> None:
    plain = np.arange(2, 14).reshape(4, 3)
    whole = np.ma.masked_array(plain.astype(inner), plain % 3 == 0)
    stores = [xzarr3.MemoryStore() for _ in range(3)]
    for store, part in zip(
        stores, (whole[:number], whole, np.ma.concatenate([whole[:number], whole])), strict=True
    ):
        group = xzarr3.create_group(store)
        dtype = Optional(parse_dtype(inner))
        group.create_array("v", data=part, dtype=dtype, chunks=(3, 2), dimension_names=("t", "x"))
    earlier, store, expected = opened(stores[0], chunks=chunks), *stores[1:]
    to_zarr(earlier, store, prepend_dim="t")
    assert repr(read(store).v.values) == repr(read(expected).v.values)
    assert contents(store).keys() == contents(expected).keys()


def test_times_before_the_reference_date() -> None:
    hours = xr.date_range("2020-01-01T01", periods=3, freq="h")
    earlier = xr.Dataset({"a": ("time", [1, 2])}, {"time": xr.date_range("2019-12-31", periods=2, freq="D")})
    for dtype in ("int32", "uint32"):
        store = xzarr3.MemoryStore()
        encoding = {"time": {"units": "hours since 2020-01-01", "dtype": dtype}}
        to_zarr(xr.Dataset({"a": ("time", [3, 4, 5])}, {"time": hours}), store, encoding=encoding)
        keys = contents(store)
        if dtype == "int32":
            to_zarr(earlier, store, prepend_dim="time")
            assert xzarr3.open_array(store, "time")[:].tolist() == [-24, 0, 1, 2, 3]
        else:
            with pytest.raises(ValueError, match="time"):
                to_zarr(earlier, store, prepend_dim="time")
            assert contents(store) == keys


def test_units_are_widened_in_the_same_change() -> None:
    days = xr.date_range("2020-01-02", periods=3, freq="D")
    store = xzarr3.MemoryStore()
    to_zarr(
        xr.Dataset({"a": ("time", [3, 4, 5])}, {"time": days}),
        store,
        encoding={"time": {"units": "days since 2020-01-02", "dtype": "int32"}},
    )
    earlier = xr.Dataset(
        {"a": ("time", [1, 2])}, {"time": np.array(["2020-01-01T06", "2020-01-01T12"], "M8[ns]")}
    )
    with pytest.raises(ValueError, match="widen_units"):
        to_zarr(earlier, store, prepend_dim="time")
    to_zarr(earlier, store, prepend_dim="time", widen_units=True)
    found = read(store)
    assert found.a.values.tolist() == [1, 2, 3, 4, 5]
    np.testing.assert_array_equal(found.time, np.concatenate([earlier.time, days]))
    assert xzarr3.open_array(store, "time")[:].tolist() == [-18, -12, 0, 24, 48]


# Misuse


@pytest.mark.parametrize(
    ("given", "options", "text"),
    [
        (first(2), {"mode": "a"}, r"mode='a' does not go with prepend_dim='time'.*leave mode out"),
        (first(2), {"append_dim": "time"}, r"append_dim='time' does not go"),
        (first(2), {"region": {"time": slice(2)}}, r"region=.* does not go"),
        (first(2).chunk(), {"compute": False}, r"compute=False does not go"),
        (first(2), {"prepend_dim": "tme"}, r"prepend_dim='tme' does not match.*did you mean 'time'"),
        (first(2), {"encoding": {"t2m": {"dtype": "f4"}}}, r"'t2m' already exists, but encoding"),
        (first(2).drop_vars("t2m"), {}, r"variables 't2m' have the dimension 'time' in the store"),
        (first(2)[["area"]], {}, r"no variable of the dataset has the dim"),
        (first(2).isel(lat=slice(3)), {}, r"'lat' has 3 here and 5 in the store"),
        (first(2).assign(more=("time", [1, 2])), {}, r"'more' is not in the store and would be shorter"),
        (
            first(2).assign(t2m=(("time", "lat"), np.full((2, 5), "x"))),
            {},
            r"Mismatched dtypes for variable t2m",
        ),
        (first(2).assign(area=("lat", np.ones(5))), {}, r"'area' have other values than in the store"),
        (first(2).assign(area=("lat", da.ones(5))), {}, r"'area' have other values than in the store"),
        (months().isel(time=slice(25)), {}, r"label 2021-01-01.*element 24.*there twice; the first label"),
        (months().isel(time=slice(23, None, -1)), {}, "would precede 2019-01-01, though the labels increase"),
        (first(2).isel(time=[0, 0]), {}, r"would be there twice"),
        (xr.DataTree(first(2)), {}, r"prepend_dim is not for trees"),
        (first(2), {"zarr_format": 2}, r"has Zarr format 3"),
    ],
)
def test_misuse_changes_nothing_and_says_what_is_accepted(given: Any, options: Any, text: str) -> None:
    store = xzarr3.MemoryStore()
    archive("prepend", store, 24)
    keys = contents(store)
    with pytest.raises((ValueError, TypeError), match=text):
        to_zarr(given, store, **{"prepend_dim": "time", **options})
    assert contents(store) == keys


def test_a_dimension_that_an_array_has_twice_is_refused() -> None:
    store = xzarr3.MemoryStore()
    archive("prepend", store, 24)
    xzarr3.create_array(store, "twice", data=np.ones((24, 24)), dimension_names=("time", "time"))
    with pytest.raises(ValueError, match="twice"):
        to_zarr(first(2), store, prepend_dim="time")


def test_stores_that_commit_by_themselves_are_refused(tmp_path: Path) -> None:
    archive("prepend", tmp_path / "a.zip", 24)
    with pytest.raises(xzarr3.StoreCapabilityError, match=r"commits by itself.*mode='w'"):
        to_zarr(first(24), tmp_path / "a.zip", prepend_dim="time")
    assert read(tmp_path / "a.zip").sizes["time"] == 24


@pytest.mark.slow
def test_icechunk_is_refused_and_nothing_is_committed(tmp_path: Path) -> None:
    icechunk = pytest.importorskip("icechunk")
    repo = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "repository")))
    to_zarr(first(5), repo)
    commits = [each.id for each in repo.ancestry(branch="main")]
    session = repo.writable_session("main")
    for store in (repo, session.store, session):
        with pytest.raises(xzarr3.StoreCapabilityError, match=r"commits by itself.*mode='w'"):
            to_zarr(first(2), store, prepend_dim="time")
    assert [each.id for each in repo.ancestry(branch="main")] == commits


def test_the_accessor_passes_it_on() -> None:
    store = xzarr3.MemoryStore()
    archive("prepend", store, 24)
    first(24).xzarr3.to_zarr(store, prepend_dim="time")
    xr.testing.assert_identical(read(store), months())
    with pytest.raises(ValueError, match="prepend_dim is not for trees"):
        xr.DataTree(first(2)).xzarr3.to_zarr(store, prepend_dim="time")


@pytest.mark.parametrize("shards", [None, 4])
@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize("way", ["drop", "prepend"])
def test_fill_values_that_were_stored_stay_stored_in_units_that_are_encoded_again(
    way: str, size: int, shards: int | None
) -> None:
    store, stored = xzarr3.MemoryStore(), np.r_[7, np.zeros(11)]
    xzarr3.create_group(store)
    options: dict[str, Any] = {"chunks": 2 if shards else 4, "shards": shards, "dimension_names": ("t",)}
    array = xzarr3.create_array(store, "a", shape=20, dtype="f8", write_empty_chunks=True, **options)
    array[:12] = stored
    if way == "drop":
        xzarr3.drop(store, t=slice(None, 4 * size + 1))
        expected = stored[4 * size + 1 :]
    else:
        new = np.arange(1.0, 4 * size + 2)
        to_zarr(xr.Dataset({"a": ("t", new)}), store, prepend_dim="t")
        expected = np.r_[new, stored]
    found = xzarr3.open_array(store, "a", missing="error")
    np.testing.assert_array_equal(found[: len(expected)], expected)
    with pytest.raises(xzarr3.MissingChunksError):
        found[-1]
