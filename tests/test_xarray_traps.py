"""What goes wrong silently elsewhere when datasets are written is exact here, or refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest
import xarray as xr

import xzarr3
from xzarr3 import MemoryStore, to_zarr
from xzarr3.xarray import open_dataset

pytestmark = pytest.mark.filterwarnings(
    "ignore:The specified chunks separate the stored chunks",
    "ignore:saving variable .* with floating point data as an integer",
    "ignore:invalid value encountered in cast",
)


def stamps(*texts: str) -> xr.Dataset:
    return xr.Dataset(
        {"v": ("time", np.arange(float(len(texts))))}, coords={"time": np.array(texts, "M8[ns]")}
    )


@pytest.fixture
def days() -> MemoryStore:
    """Three days in whole days."""
    store = MemoryStore()
    encoding = {"time": {"units": "days since 2000-01-01", "dtype": "int64"}}
    to_zarr(stamps("2000-01-01", "2000-01-02", "2000-01-03"), store, encoding=encoding)
    return store


@pytest.fixture(autouse=True)
def _one_after_the_other() -> Any:
    with dask.config.set(scheduler="synchronous"):
        yield


def contents(store: MemoryStore) -> dict[str, bytes]:
    return {key: bytes(store.get(key) or b"") for key in store.list()}


# Times


def test_times_that_whole_days_cannot_say_are_refused(days: MemoryStore) -> None:
    before = contents(days)
    with pytest.raises(
        ValueError, match=r"widen_units=True, which stores all of the variable anew in 'hours"
    ):
        to_zarr(stamps("2000-01-03T06:00"), days, append_dim="time")
    assert contents(days) == before


@pytest.mark.parametrize(
    ("added", "units"), [("06:00", "hours"), ("06:30", "minutes"), ("06:30:15", "seconds")]
)
def test_widened_units(days: MemoryStore, added: str, units: str) -> None:
    to_zarr(stamps(f"2000-01-03T{added}"), days, append_dim="time", widen_units=True)
    found = open_dataset(days)
    expected = ["2000-01-01", "2000-01-02", "2000-01-03", f"2000-01-03T{added}"]
    np.testing.assert_array_equal(found["time"].values, np.array(expected, "M8[ns]"))
    assert found["time"].encoding["units"].startswith(units)
    assert found["time"].encoding["dtype"] == np.int64
    assert found["v"].values.tolist() == [0, 1, 2, 0]
    to_zarr(stamps("2000-01-04"), days, append_dim="time")
    assert open_dataset(days)["time"].values[-1] == np.datetime64("2000-01-04")


def test_units_that_need_not_be_widened_are_not(days: MemoryStore) -> None:
    to_zarr(stamps("2000-01-04"), days, append_dim="time", widen_units=True)
    assert open_dataset(days)["time"].encoding["units"].startswith("days")


def test_bounds_are_widened_with_what_they_bound() -> None:
    store = MemoryStore()

    def bounded(*texts: str, hours: int = 24) -> xr.Dataset:
        made = stamps(*texts)
        edges = np.stack([made["time"].values, made["time"].values + np.timedelta64(hours, "h")], axis=1)
        made["time_bnds"] = ("time", "nv"), edges
        made["time"].attrs["bounds"] = "time_bnds"
        return made

    first = bounded("2000-01-01", "2000-01-02")
    units = {"units": "days since 2000-01-01", "dtype": "int64"}
    to_zarr(first, store, encoding={"time": units, "time_bnds": units})
    group = xzarr3.open_group(store, mode="r+")
    for key in ("units", "calendar"):  # As netCDF has it.
        del group["time_bnds"].attrs[key]
    assert open_dataset(store)["time_bnds"].dtype.kind == "M"
    more = bounded("2000-01-03", hours=12)
    with pytest.raises(ValueError, match=r"time_bnds.*widen_units"):
        to_zarr(more, store, append_dim="time")
    to_zarr(more, store, append_dim="time", widen_units=True)
    found = open_dataset(store).load()
    xr.testing.assert_equal(found, xr.concat([first, more], "time"))


@pytest.mark.parametrize("calendar", ["noleap", "360_day"])
def test_other_calendars(calendar: str) -> None:
    def dataset(n: int, start: int, freq: str = "D") -> xr.Dataset:
        time = xr.date_range("2000-02-27", periods=n + start, freq=freq, calendar=calendar, use_cftime=True)
        return xr.Dataset({"v": ("time", np.arange(float(n)))}, coords={"time": time[start:]})

    store = MemoryStore()
    encoding = {"time": {"units": "days since 2000-01-01", "dtype": "int64"}}
    to_zarr(dataset(3, 0), store, encoding=encoding)
    to_zarr(dataset(2, 3), store, append_dim="time")
    with pytest.raises(ValueError, match="exactly in the units"):
        to_zarr(dataset(1, 1, "6h"), store, append_dim="time")
    with pytest.raises(ValueError, match="calendar"):
        to_zarr(stamps("2000-03-05"), store, append_dim="time")
    np.testing.assert_array_equal(open_dataset(store)["time"].values, dataset(5, 0)["time"].values)
    to_zarr(dataset(1, 1, "6h"), store, append_dim="time", widen_units=True)
    expected = [*dataset(5, 0)["time"].values, *dataset(1, 1, "6h")["time"].values]
    np.testing.assert_array_equal(open_dataset(store)["time"].values, expected)


def test_numbers_among_times(days: MemoryStore) -> None:
    raw = xr.Dataset({"v": ("time", [9.0])}, coords={"time": [3]})
    with pytest.raises(ValueError, match="stored as times in units"):
        to_zarr(raw, days, append_dim="time")
    raw["time"].attrs["units"] = "hours since 2000-01-01"
    with pytest.raises(ValueError, match="stored as times in units"):
        to_zarr(raw, days, append_dim="time")
    raw["time"].attrs["units"] = open_dataset(days)["time"].encoding["units"]
    to_zarr(raw, days, append_dim="time")
    assert open_dataset(days)["time"].values[-1] == np.datetime64("2000-01-04")


def test_dates_among_numbers() -> None:
    store = MemoryStore()
    to_zarr(xr.Dataset({"v": ("time", [1.0])}, coords={"time": [3]}), store)
    with pytest.raises(ValueError, match="without units of time"):
        to_zarr(stamps("2000-01-01"), store, append_dim="time")


def test_times_in_dask_arrays(days: MemoryStore) -> None:
    store = MemoryStore()
    when = pd.to_datetime(["2000-01-01", "2000-01-02"])
    first = xr.Dataset({"when": ("x", when)}).chunk(x=1)
    to_zarr(first, store, encoding={"when": {"units": "days since 2000-01-01", "dtype": "int64"}})
    bad = xr.Dataset({"when": ("x", when + pd.Timedelta("1h"))}).chunk(x=1)
    before = contents(store)
    with pytest.raises(ValueError, match=r"Not possible to encode|serialized faithfully|Cannot encode|units"):
        to_zarr(bad, store, append_dim="x")
    assert contents(store) == before
    to_zarr(first, store, append_dim="x")
    np.testing.assert_array_equal(open_dataset(store)["when"].values, [*when.values, *when.values])


# Values


def refused(store: MemoryStore, dataset: xr.Dataset, match: str, **options: Any) -> None:
    before = contents(store)
    for chunked in (False, True):
        with pytest.raises(ValueError, match=match):
            to_zarr(dataset.chunk(x=2) if chunked else dataset, store, **options)
        assert contents(store) == before


def test_values_that_the_stored_encoding_cannot_say() -> None:
    store = MemoryStore()
    packed = {"dtype": "int16", "scale_factor": 0.1, "add_offset": 10.0}
    first = xr.Dataset(
        {
            "packed": ("x", [10.5, 11.0]),
            "plain": ("x", [1, 2]),
            "single": ("x", np.array([1, 2], "f4")),
            "text": ("x", np.array(["abc", "de"])),
            "bytes": ("x", np.array([b"abc", b"de"])),
        }
    )
    to_zarr(first, store, encoding={"packed": packed, "plain": {"dtype": "int32"}})
    for append in ({"append_dim": "x"}, {"mode": "a"}, {"region": {"x": slice(0, 2)}}):
        for name, values, match in [
            ("packed", [10.5, 5000.0], r"'packed'(.|\n)*-3266.8"),
            ("packed", [10.5, np.nan], r"missing value cannot be stored(.|\n)*_FillValue"),
            ("plain", [1.0, np.nan], "missing value cannot be stored"),
            ("plain", [1.0, 2.5], "2.5 does not fit data type int32"),
            ("plain", [1, 2**40], "does not fit|cannot hold"),
            ("single", [1.0, 1e300], "does not fit|cannot hold"),
            ("text", ["abcd", "e"], "up to 3 characters"),
            ("bytes", [b"abcd", b"e"], "up to 3 bytes"),
            ("plain", ["a", "b"], "Mismatched dtypes"),
            ("text", [1, 2], "Mismatched dtypes"),
        ]:
            refused(store, first.assign({name: ("x", values)}), match, **append)
    to_zarr(first.assign(text=("x", ["x", "yz"]), plain=("x", [5.0, 6.0])), store, append_dim="x")
    found = open_dataset(store)
    assert found["text"].values.tolist() == ["abc", "de", "x", "yz"]
    assert found["plain"].values.tolist() == [1, 2, 5, 6]
    np.testing.assert_allclose(found["packed"].values, [10.5, 11, 10.5, 11])


@pytest.mark.parametrize("chunked", [False, True])
def test_values_that_a_first_encoding_cannot_say(chunked: bool) -> None:
    store = MemoryStore()
    for values, encoding in [
        ([1.0, 5000.0], {"dtype": "int16", "scale_factor": 0.1}),
        ([1.0, np.nan], {"dtype": "int16"}),
        ([1.0, 1e300], {"dtype": "float32"}),
        ([1, 300], {"dtype": "uint8"}),
    ]:
        dataset = xr.Dataset({"v": ("x", values)})
        with pytest.raises(ValueError, match="'v'"):
            to_zarr(dataset.chunk(x=1) if chunked else dataset, store, encoding={"v": encoding})
        assert contents(store) == {}


# What does not go with what is there


def test_every_variable_along_the_dimension_is_appended() -> None:
    store = MemoryStore()
    first = xr.Dataset({"a": ("x", [1]), "b": ("x", [2]), "c": ("y", [3])})
    to_zarr(first, store)
    refused_append = [
        (first[["a"]], r"variables 'b' have the dimension 'x' in the store"),
        (first[["c"]], "no variable of the dataset has the dimension 'x'"),
        (first.assign(d=("x", [4])), "'d' is not in the store and would be shorter"),
    ]
    before = contents(store)
    for dataset, match in refused_append:
        with pytest.raises(ValueError, match=match):
            to_zarr(dataset, store, append_dim="x")
        assert contents(store) == before
    with pytest.raises(ValueError, match="no region of it can be written"):
        to_zarr(xr.Dataset({"d": ("x", [4])}), store, mode="a", region={"x": slice(0, 1)})
    assert contents(store) == before
    to_zarr(first.assign(e=("y", [5])), store, append_dim="x")
    found = open_dataset(store)
    values = {name: found[name].values.tolist() for name in "abce"}
    assert values == {"a": [1, 1], "b": [2, 2], "c": [3], "e": [5]}


def test_a_group_where_a_variable_would_be() -> None:
    store = MemoryStore()
    to_zarr(xr.Dataset({"a": ("x", [1])}), store)
    to_zarr(xr.Dataset({"a": ("x", [1])}), store, group="below")
    before = contents(store)
    with pytest.raises(
        xzarr3.NodeExistsError, match="there is a group '/below' where variable 'below' would"
    ):
        to_zarr(xr.Dataset({"below": ("x", [1])}), store, mode="a")
    assert contents(store) == before


@pytest.mark.parametrize("name", ["a/b", "/a", "a\\b", "..", ""])
def test_names_that_are_paths(tmp_path: Path, name: str) -> None:
    dataset = xr.Dataset({"v": ("x", [1])})
    to_zarr(dataset, tmp_path / "there")
    for mode in ("w", "a"):
        with pytest.raises(ValueError, match="invalid name"):
            to_zarr(dataset.rename(v=name), tmp_path / "there", mode=mode)
        with pytest.raises(ValueError, match="invalid name"):
            to_zarr(dataset.rename(v=name), tmp_path / "new", mode=mode)
    assert not (tmp_path / "new").exists()
    xr.testing.assert_identical(open_dataset(tmp_path / "there"), dataset)


BAD_ATTRIBUTES = {
    "NaN": float("nan"),
    "infinite": np.float32(np.inf),
    "bytes": b"abc",
    "date": np.datetime64("2000-01-01"),
    "timestamp": pd.Timestamp("2000-01-01"),
    "set": {1, 2},
    "complex": 1j,
    "nested": {"a": [1, np.array([np.nan])]},
    "keys": {1: 2},
    "object": object(),
}


@pytest.mark.parametrize("kind", BAD_ATTRIBUTES)
@pytest.mark.parametrize("options", [{}, {"mode": "a"}])
def test_attributes_that_json_cannot_hold(kind: str, options: dict[str, Any]) -> None:
    store = MemoryStore()
    good = xr.Dataset({"v": ("x", [1])})
    if options:
        to_zarr(good, store)
    before = contents(store)
    more = good.rename(v="w") if options else good
    value = BAD_ATTRIBUTES[kind]
    name = next(iter(more))
    for bad in (more.assign_attrs(k=value), more.assign({name: more[name].assign_attrs(k=value)})):
        with pytest.raises(ValueError, match="attribute 'k' cannot be stored"):
            to_zarr(bad, store, **options)
        assert contents(store) == before


@pytest.mark.parametrize("options", [{}, {"mode": "a"}])
def test_attributes_that_json_can_hold(options: dict[str, Any]) -> None:
    store = MemoryStore()
    attrs = {
        "scalar": np.float32(0.5),
        "array": np.array([[1, 2], [3, 4]]),
        "text": np.array(["a", "b"]),
        "nested": {"a": [np.int8(1), {"b": np.bool_(True)}], "c": (1, None)},
        "big": 2**70,
    }
    if options:
        to_zarr(xr.Dataset({"v": ("x", [1])}), store)
    to_zarr(xr.Dataset({"w": ("x", [1], attrs)}, attrs=attrs), store, **options)
    for key in store.list():
        if key.endswith("json"):
            json.loads(bytes(store.get(key) or b""), parse_constant=pytest.fail)
    found = open_dataset(store)
    expected = {
        "scalar": 0.5,
        "array": [[1, 2], [3, 4]],
        "text": ["a", "b"],
        "nested": {"a": [1, {"b": True}], "c": [1, None]},
        "big": 2**70,
    }
    assert found.attrs == found["w"].attrs == expected


def test_a_multiindex() -> None:
    store = MemoryStore()
    index = pd.MultiIndex.from_arrays([[1, 2], [3, 4]], names=["a", "b"])
    dataset = xr.Dataset({"v": ("z", [1, 2])}, coords=xr.Coordinates.from_pandas_multiindex(index, "z"))
    for mode in ("w-", "a"):
        with pytest.raises(NotImplementedError, match="reset_index"):
            to_zarr(dataset, store, mode=mode)
    assert contents(store) == {}


# Datasets that are made of what they are written to


@pytest.mark.parametrize("place", ["memory", "directory"])
@pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
@pytest.mark.parametrize(
    "options",
    [{"mode": "w"}, {"mode": "a"}, {"mode": "r+"}, {"region": {"x": slice(None), "y": slice(None)}}],
    ids=["w", "a", "r+", "region"],
)
def test_made_of_what_is_written(tmp_path: Path, options: dict[str, Any], scheduler: str, place: str) -> None:
    store: Any = MemoryStore() if place == "memory" else tmp_path / "data"
    a, b = np.arange(24.0).reshape(6, 4), np.arange(24.0)[::-1].reshape(6, 4)
    first = xr.Dataset({"a": (("x", "y"), a), "b": (("x", "y"), b)})
    to_zarr(first, store, encoding={"a": {"chunks": (2, 2)}, "b": {"chunks": (3, 4)}})
    for chunks in ({}, {"x": 4, "y": 3}):
        there = open_dataset(store, chunks=chunks)
        new = xr.Dataset(
            {"a": there["b"].T.isel(x=slice(None, None, -1)).transpose("x", "y"), "b": there["a"] + 1}
        )
        expected = new.compute()
        with dask.config.set(scheduler=scheduler):
            to_zarr(new, store, **options)
        found = open_dataset(store)
        for name in "ab":
            np.testing.assert_array_equal(found[name].values, expected[name].values)
    if place == "directory":
        assert sorted(os.listdir(store)) == ["a", "b", "zarr.json"]
    else:
        assert not [key for key in store.list() if ".xzarr3" in key]


def test_made_of_what_is_written_later(tmp_path: Path) -> None:
    values = np.arange(12.0)
    to_zarr(xr.Dataset({"a": ("x", values)}), tmp_path / "data", encoding={"a": {"chunks": (2,)}})
    there = open_dataset(tmp_path / "data", chunks={})
    later = to_zarr(there.isel(x=slice(None, None, -1)), tmp_path / "data", mode="r+", compute=False)
    np.testing.assert_array_equal(open_dataset(tmp_path / "data")["a"].values, values)
    later.compute(scheduler="threads")
    np.testing.assert_array_equal(open_dataset(tmp_path / "data")["a"].values, values[::-1])
    assert sorted(os.listdir(tmp_path / "data")) == ["a", "zarr.json"]


@pytest.mark.parametrize("engine", ["xzarr3", "zarr"])
def test_opened_below_the_root_that_is_written_to(tmp_path: Path, engine: str) -> None:
    values = np.arange(12.0)
    to_zarr(xr.Dataset({"a": ("x", values)}), tmp_path, group="g", encoding={"a": {"chunks": (2,)}})
    there = xr.open_dataset(tmp_path / "g", engine=engine, chunks={}, consolidated=False)
    to_zarr(there.isel(x=slice(None, None, -1)), tmp_path, group="g", mode="r+")
    np.testing.assert_array_equal(open_dataset(tmp_path, group="g")["a"].values, values[::-1])


def test_opened_by_the_zarr_engine(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    values = np.arange(12.0)
    to_zarr(xr.Dataset({"a": ("x", values)}), tmp_path, encoding={"a": {"chunks": (2,)}})
    there = xr.open_dataset(tmp_path, engine="zarr", chunks={})
    to_zarr(there.isel(x=slice(None, None, -1)), tmp_path, mode="r+")
    np.testing.assert_array_equal(open_dataset(tmp_path)["a"].values, values[::-1])


@pytest.mark.parametrize("chunks", [None, {}])
def test_a_dataset_is_appended_to_itself(tmp_path: Path, chunks: Any) -> None:
    first = xr.Dataset({"a": ("x", np.arange(5.0))}, coords={"x": np.arange(5)})
    to_zarr(first, tmp_path, encoding={"a": {"chunks": (3,)}})
    there = open_dataset(tmp_path, chunks=chunks)
    to_zarr(there.assign_coords(x=there["x"] + 5).isel(x=slice(None, None, -1)), tmp_path, append_dim="x")
    np.testing.assert_array_equal(open_dataset(tmp_path)["a"].values, [*range(5), *range(5)[::-1]])


# Chunks


@pytest.mark.parametrize("how", ["append_dim", "unlimited_dims"])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_first_step_of_one_leaves_room(how: str, chunked: bool) -> None:
    store = MemoryStore()

    def step(n: int) -> xr.Dataset:
        made = xr.Dataset(
            {"v": (("time", "x"), np.full((1, 1000), float(n))), "s": ("x", np.arange(1000))},
            coords={"time": [n]},
        )
        made.encoding = {"unlimited_dims": {"time"}}
        return made.chunk() if chunked else made

    if how == "append_dim":
        for n in range(3):
            to_zarr(step(n).drop_encoding(), store, append_dim="time")
    else:
        to_zarr(step(0), store)
        for n in (1, 2):
            to_zarr(step(n), store, append_dim="time")
    group = xzarr3.open_group(store)
    assert group["v"].chunks == (131, 1000)
    assert group["time"].chunks == (4096,)
    assert group["s"].chunks == (1000,)
    assert group["v"].shape == (3, 1000)
    np.testing.assert_array_equal(open_dataset(store)["v"].values[:, 0], [0, 1, 2])


def test_room_is_left_only_where_nobody_chose() -> None:
    made = xr.Dataset({"v": (("time", "x"), np.zeros((4, 10)))})
    made.encoding = {"unlimited_dims": ["time"]}
    for dataset, encoding, chunks in [
        (made, {"v": {"chunks": (1, 5)}}, (1, 5)),
        (made.chunk(time=2), {}, (2, 10)),
        (made.drop_encoding(), {}, (4, 10)),
    ]:
        store = MemoryStore()
        to_zarr(dataset, store, encoding=encoding)
        assert xzarr3.open_array(store, "v").chunks == chunks


@pytest.mark.parametrize("options", [{"mode": "w"}, {"mode": "a"}, {"append_dim": "x"}, {"mode": "r+"}])
def test_stale_encodings_never_make_a_save_fail(options: dict[str, Any]) -> None:
    store = MemoryStore()
    dataset = xr.Dataset({"v": (("x", "y"), np.arange(100.0).reshape(10, 10))})
    to_zarr(dataset, store, encoding={"v": {"chunks": (2, 5), "shards": (4, 10)}})
    opened = open_dataset(store, chunks={}).isel(y=slice(None, None, -1)).chunk(x=3, y=7)
    opened["v"].encoding["preferred_chunks"] = {"x": 1, "z": 2}
    to_zarr(opened, store, **options)
    expected = dataset["v"].values[:, ::-1]
    if "append_dim" in options:
        expected = np.concatenate([dataset["v"].values, expected])
    np.testing.assert_array_equal(open_dataset(store)["v"].values, expected)
    assert xzarr3.open_array(store, "v").shards == (4, 10)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(("there", "new"), [(1.5, 2j), (1, 2j), (True, 0.5), (True, 2)])
def test_numbers_that_would_become_others(there: Any, new: Any, lazy: bool) -> None:
    store = MemoryStore()
    to_zarr(xr.Dataset({"v": ("x", [there])}), store)
    before = contents(store)
    more = xr.Dataset({"v": ("x", [new])})
    with pytest.raises(xzarr3.DataTypeValidationError, match="cannot be stored as data type"):
        to_zarr(more.chunk() if lazy else more, store, append_dim="x")
    assert contents(store) == before


@pytest.mark.parametrize("lazy", [False, True])
def test_imaginary_parts_are_not_left_out(lazy: bool) -> None:
    dataset = xr.Dataset({"v": ("x", [1j, 2])})
    with pytest.raises(xzarr3.DataTypeValidationError, match=r"\.real and \.imag"):
        to_zarr(dataset.chunk() if lazy else dataset, MemoryStore(), encoding={"v": {"dtype": "float64"}})


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("missing", [None, np.nan])
def test_missing_text_is_no_text(missing: Any, lazy: bool) -> None:
    store = MemoryStore()
    to_zarr(xr.Dataset({"v": ("x", np.array(["nan", "b"], object))}), store)
    more = xr.Dataset({"v": ("x", np.array(["c", missing], object))})
    to_zarr(more.chunk(x=1) if lazy else more, store, append_dim="x")
    assert open_dataset(store)["v"].values.tolist() == ["nan", "b", "c", ""]


def test_no_region_by_values_that_are_there_twice() -> None:
    store = MemoryStore()
    to_zarr(xr.Dataset({"v": ("x", [1, 2, 3])}, coords={"x": [0, 0, 1]}), store)
    before = contents(store)
    for x in ([0, 1], [1]):
        with pytest.raises(ValueError, match="more than once"):
            to_zarr(xr.Dataset({"v": ("x", [9] * len(x))}, coords={"x": x}), store, region="auto")
    assert contents(store) == before


def test_times_beyond_nanoseconds_are_appended() -> None:
    store = MemoryStore()
    to_zarr(xr.Dataset({"v": ("x", np.array(["2000-01-01", "1000-01-01"], "M8[s]"))}), store)
    to_zarr(xr.Dataset({"v": ("x", np.array(["3000-01-01"], "M8[us]"))}), store, append_dim="x")
    found = xr.open_dataset(
        store,  # type: ignore[arg-type]
        engine="xzarr3",
        decode_times=xr.coders.CFDatetimeCoder(time_unit="s"),
    )
    assert found["v"].values.astype("M8[Y]").astype(str).tolist() == ["2000", "1000", "3000"]


@pytest.mark.parametrize("mode", ["a", "a-"])
@pytest.mark.parametrize("values", [[1.0, 0.0], [0.0, 1.5], [0.0, np.nan]])
def test_what_is_appended_has_the_coordinates_that_are_there(
    tmp_path: Path, mode: Any, values: list[float]
) -> None:
    """The store has one coordinate for old and new values; another one would move the old ones."""
    first = xr.Dataset({"v": (("time", "x"), np.ones((2, 2)))}, coords={"time": [0, 1], "x": [0.0, 1.0]})
    xzarr3.to_zarr(first, tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    more = first.assign_coords(time=[2, 3])
    with pytest.raises(ValueError, match="coordinates 'x' have other values"):
        xzarr3.to_zarr(more.assign_coords(x=values), tmp_path, mode=mode, append_dim="time")
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for near in ([0.0, 1.0], [1e-9, 1.0]):
        xzarr3.to_zarr(more.assign_coords(x=near), tmp_path, mode=mode, append_dim="time")
    xzarr3.to_zarr(more.drop_vars("x"), tmp_path, mode=mode, append_dim="time")
    assert xzarr3.open_array(tmp_path, "v").shape == (8, 2)


def test_a_region_is_not_found_without_a_coordinate(tmp_path: Path) -> None:
    """xarray takes it for the first elements, and writes over these."""
    data = xr.Dataset({"v": ("time", np.arange(10.0))}, coords={"time": np.arange(10)})
    xzarr3.to_zarr(data, tmp_path)
    part = data.isel(time=slice(5, 8)).drop_vars("time") + 50
    for region in ("auto", {"time": "auto"}):
        with pytest.raises(ValueError, match="3 of 10 elements"):
            xzarr3.to_zarr(part, tmp_path, region=region)  # type: ignore[arg-type]
    np.testing.assert_array_equal(xzarr3.open_array(tmp_path, "v")[...], np.arange(10.0))
    xzarr3.to_zarr(data.drop_vars("time") + 1, tmp_path, region="auto")
    np.testing.assert_array_equal(xzarr3.open_array(tmp_path, "v")[...], np.arange(1, 11.0))


@pytest.mark.parametrize("options", [{"append_dim": "time"}, {"mode": "a"}])
def test_another_format_than_that_of_the_store_is_named(tmp_path: Path, options: dict[str, Any]) -> None:
    data = xr.Dataset({"v": ("time", np.arange(3.0))})
    xzarr3.to_zarr(data, tmp_path)
    with pytest.raises(ValueError, match="is of Zarr format 3, and zarr_format=2 was asked for"):
        xzarr3.to_zarr(data, tmp_path, zarr_format=2, **options)
    assert xzarr3.open_array(tmp_path, "v").shape == (3,)
