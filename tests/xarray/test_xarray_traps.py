"""What goes wrong silently elsewhere when datasets are written is exact here, or refused."""

from __future__ import annotations

import json
import math
import os
import pickle
import warnings
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import dask.array
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from _engines import contents, refused
from _slow import slow
from _waiting import WaitingStore

import xzarr3
from xzarr3 import MemoryStore, to_zarr
from xzarr3.conventions.fill_value_attribute import encode_fill_value
from xzarr3.errors import ChangedError, ConflictError, MetadataError
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


# Times


@pytest.mark.parametrize(
    ("added", "units"), [("06:00", "hours"), ("06:30", "minutes"), ("06:30:15", "seconds")]
)
def test_units_are_widened_if_asked_for_and_needed(days: MemoryStore, added: str, units: str) -> None:
    more = stamps(f"2000-01-03T{added}")
    refused(days, more, f"widen_units=True, which stores all .* anew in '{units}", append_dim="time")
    to_zarr(more, days, append_dim="time", widen_units=True)
    found = open_dataset(days)
    expected = ["2000-01-01", "2000-01-02", "2000-01-03", f"2000-01-03T{added}"]
    np.testing.assert_array_equal(found["time"].values, np.array(expected, "M8[ns]"))
    assert found["time"].encoding["units"].startswith(units)
    assert found["time"].encoding["dtype"] == np.int64
    assert found["v"].values.tolist() == [0, 1, 2, 0]
    to_zarr(stamps("2000-01-04"), days, append_dim="time", widen_units=True)
    assert open_dataset(days)["time"].values[-1] == np.datetime64("2000-01-04")
    assert open_dataset(days)["time"].encoding["units"].startswith(units)


def test_bounds_are_widened_with_what_they_bound() -> None:
    store = MemoryStore()

    def with_bounds(*texts: str, hours: int = 24) -> xr.Dataset:
        made = stamps(*texts)
        edges = np.stack([made["time"].values, made["time"].values + np.timedelta64(hours, "h")], axis=1)
        made["time_bnds"] = ("time", "nv"), edges
        made["time"].attrs["bounds"] = "time_bnds"
        return made

    first = with_bounds("2000-01-01", "2000-01-02")
    units = {"units": "days since 2000-01-01", "dtype": "int64"}
    to_zarr(first, store, encoding={"time": units, "time_bnds": units})
    group = xzarr3.open_group(store, mode="r+")
    for key in ("units", "calendar"):  # As netCDF has it.
        del group["time_bnds"].attrs[key]
    assert open_dataset(store)["time_bnds"].dtype.kind == "M"
    more = with_bounds("2000-01-03", hours=12)
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
        to_zarr(dataset(1, 21, "6h"), store, append_dim="time")
    with pytest.raises(ValueError, match="calendar"):
        to_zarr(stamps("2000-03-05"), store, append_dim="time")
    np.testing.assert_array_equal(open_dataset(store)["time"].values, dataset(5, 0)["time"].values)
    to_zarr(dataset(1, 21, "6h"), store, append_dim="time", widen_units=True)
    expected = [*dataset(5, 0)["time"].values, *dataset(1, 21, "6h")["time"].values]
    np.testing.assert_array_equal(open_dataset(store)["time"].values, expected)


def test_numbers_among_times(days: MemoryStore) -> None:
    raw = xr.Dataset({"v": ("time", [9.0])}, coords={"time": [3]})
    for units in ({}, {"units": "hours since 2000-01-01"}):
        raw["time"].attrs.update(units)
        refused(days, raw, r"has numbers of .*, and dates of the calendar 'standard'", append_dim="time")
    numbers = MemoryStore()
    to_zarr(raw.drop_attrs(), numbers)
    message = r"has dates of .*, and numbers of dtype int64 in the store"
    refused(numbers, stamps("2000-01-01"), message, append_dim="time")
    raw["time"].attrs["units"] = open_dataset(days)["time"].encoding["units"]
    to_zarr(raw, days, append_dim="time")
    assert open_dataset(days)["time"].values[-1] == np.datetime64("2000-01-04")


def test_times_in_dask_arrays(days: MemoryStore) -> None:
    store = MemoryStore()
    when = pd.to_datetime(["2000-01-01", "2000-01-02"])
    first = xr.Dataset({"when": ("x", when)}).chunk(x=1)
    to_zarr(first, store, encoding={"when": {"units": "days since 2000-01-01", "dtype": "int64"}})
    bad = xr.Dataset({"when": ("x", when + pd.Timedelta("1h"))}).chunk(x=1)
    before = contents(store)
    with pytest.raises(
        xzarr3.DataTypeValidationError, match=r"T01:00 at index .* of variable 'when' asks for; .*widen_units"
    ):
        to_zarr(bad, store, append_dim="x")
    assert contents(store) == before
    to_zarr(first, store, append_dim="x")
    np.testing.assert_array_equal(open_dataset(store)["when"].values, [*when.values, *when.values])
    early = xr.Dataset({"when": ("x", np.array(["1500-01-01"], "M8[s]"))}).chunk()
    encoding = {"when": {"units": "days since 2000-01-01", "calendar": "standard", "dtype": "int64"}}
    with pytest.raises(xzarr3.ArgumentError, match=r"times of variable 'when' cannot be encoded in 'days"):
        to_zarr(early, MemoryStore(), encoding=encoding)


@pytest.mark.parametrize("kind", ["M8[ns]", "m8[ns]", ">M8[ns]"])
def test_blocks_without_a_date_in_dask_arrays(kind: str) -> None:
    store, values = MemoryStore(), np.array(["NaT", "NaT", 24, "NaT"], kind.replace("ns", "h")).astype(kind)
    dataset = xr.Dataset({"when": ("x", values)}).chunk(x=2)
    date = "" if kind[0] == "m" else " since 1970-01-01"
    dataset["when"].encoding = {"units": f"hours{date}", "calendar": "standard", "dtype": "int64"}
    to_zarr(dataset, store)
    to_zarr(dataset, store, append_dim="x")
    np.testing.assert_array_equal(open_dataset(store)["when"].values, [*values, *values])


# Values


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
            ("plain", [1.0, 2.5], "2.5 at index .* would be read as 2 from data type int32"),
            ("plain", [1, 2**40], "would be read as|cannot hold"),
            ("single", [1.0, 1e300], "would be read as|cannot hold"),
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


@pytest.mark.parametrize("chunked", [False, slow(True)])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("packed", ["i1", "u2", "i4", "f4"])
def test_packed_values_are_stored_if_they_are_read_within_half_a_step(
    dtype: str, packed: str, chunked: bool
) -> None:
    random = np.random.default_rng(7)
    values = random.uniform(-1, 1, 2**18 + 7).astype(dtype)  # More than are compared at a time.
    values[random.random(values.size) < 0.1] = np.nan
    scale, low = {"i1": (0.01, -100), "u2": (1e-4, 0), "i4": (1e-9, -(10**9)), "f4": (0.5, 0)}[packed]
    mark = np.dtype(packed).type(np.finfo("f4").max if packed == "f4" else np.iinfo(packed).max)
    encoding = {"dtype": packed, "scale_factor": scale, "add_offset": -1 - low * scale, "_FillValue": mark}
    dataset = xr.Dataset({"v": ("x", values)})
    store = MemoryStore()
    to_zarr(dataset.chunk(x=10**5) if chunked else dataset, store, encoding={"v": encoding})
    found = open_dataset(store)["v"].values
    step = 0.0 if packed == "f4" else scale / 2
    np.testing.assert_allclose(found, values, rtol=0, atol=step + 2e-6, equal_nan=True)


# What does not go with what is there


def test_every_variable_along_the_dimension_is_appended() -> None:
    store = MemoryStore()
    first = xr.Dataset({"a": ("x", [1]), "b": ("x", [2]), "c": ("y", [3])})
    to_zarr(first, store)
    refused(store, first[["a"]], r"variables 'b' have the dimension 'x' in the store", append_dim="x")
    refused(store, first[["c"]], "no variable of the dataset has the dimension 'x'", append_dim="x")
    new = xr.Dataset({"d": ("x", [4])})
    refused(store, first.merge(new), "'d' is not in the store and would be shorter", append_dim="x")
    refused(store, new, "no region of it can be written", mode="a", region={"x": slice(0, 1)})
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
        xzarr3.NodeExistsError, match="a group exists at '/below', where variable 'below' would"
    ):
        to_zarr(xr.Dataset({"below": ("x", [1])}), store, mode="a")
    assert contents(store) == before


def strict(store: Any) -> dict[str, Any]:
    """The documents of a store, which hold nothing that JSON lacks."""

    def refuse(literal: str) -> None:
        raise AssertionError(f"{literal} is no JSON")

    names = ("zarr.json", ".zattrs", ".zarray", ".zgroup", ".zmetadata", ".array.json", ".group.json")
    return {
        key: json.loads(value, parse_constant=refuse)
        for key, value in contents(store).items()
        if key.endswith(names)
    }


@pytest.mark.parametrize("options", [{}, {"mode": "a"}])
@pytest.mark.parametrize("zarr_format", [3, 2])
def test_attributes_with_numbers_that_json_lacks_are_stored_as_text(
    options: dict[str, Any], zarr_format: Any
) -> None:
    store = MemoryStore()
    attrs = {
        "a": np.nan,
        "b": np.float32(-np.inf),
        "c": [1, {"d": np.array([np.inf, 2.5])}],
        "e": np.array([[np.nan, 1]], "f4"),
        "f": np.array([1, np.nan], object),
        "g": 1.5,
    }
    dataset = xr.Dataset({"v": ("x", [1.0], attrs)}, attrs={"h": np.nan})
    if options:
        to_zarr(xr.Dataset({"u": ("x", [1])}), store, zarr_format=zarr_format)
    with pytest.warns(UserWarning, match="JSON has neither NaN nor Infinity") as told:
        to_zarr(dataset, store, zarr_format=zarr_format, **options)
    assert [each.filename for each in told] == [__file__] * 2
    said = {text.split("of the attributes of ")[1][:4]: text for text in (str(each.message) for each in told)}
    for line in ("'a' is stored as 'NaN'", "'f' is stored as [1, 'NaN']"):
        assert line in said["'/v'"]
    assert "'h' is stored as 'NaN'" in said["'/' "]
    assert "'g'" not in said["'/v'"]
    strict(store)
    found = xzarr3.open_dataset(store)
    assert found["v"].attrs == {
        "a": "NaN",
        "b": "-Infinity",
        "c": [1, {"d": ["Infinity", 2.5]}],
        "e": [["NaN", 1.0]],
        "f": [1, "NaN"],
        "g": 1.5,
    }
    assert found.attrs == {"h": "NaN"}


MARKS: dict[str, dict[str, Any]] = {
    "NaN": {"missing_value": np.nan},
    "NaN and a fill value": {"missing_value": np.nan, "_FillValue": np.nan},
    "fill value": {"_FillValue": np.inf},
    "packed": {"missing_value": np.nan, "scale_factor": 0.5, "add_offset": 1.0},
    "range": {"valid_range": [np.nan, 3.0], "_FillValue": 2.0},
    "finite": {"missing_value": 2.0, "valid_min": -np.inf},
}
INFINITE: dict[str, dict[str, Any]] = {
    "infinite": {"missing_value": np.inf},
    "infinite and a range": {"missing_value": -np.inf, "valid_range": [-np.inf, 1.0]},
    "both": {"_FillValue": np.inf, "missing_value": np.inf},
}


def archive(path: Path, zarr_format: int, attrs: dict[str, Any]) -> None:
    """A dataset with literals that JSON lacks, as older writers left them; one chunk is absent."""
    dims = {} if zarr_format == 2 else {"dimension_names": ["x"]}
    root = xzarr3.create_group(path, zarr_format=zarr_format)
    values = np.array([0.0, 2.0, np.inf, -np.inf, np.nan, 1.0])
    root.create_array("v", data=values, chunks=2, compressors=None, **dims)
    root.create_array("w", shape=6, chunks=2, dtype="i2", compressors=None, **dims)
    root["w"][:4] = np.arange(4)
    attributes = dict(attrs)
    if zarr_format == 3 and "_FillValue" in attributes:
        attributes["_FillValue"] = encode_fill_value(attributes["_FillValue"], np.dtype("f8"))
    for name in "vw":
        own = {key: value for key, value in attributes.items() if key != "_FillValue" or name == "v"}
        place, change = path / name / "zarr.json", {"attributes": own}
        if zarr_format == 2:
            (path / name / ".zattrs").write_text(json.dumps({**own, "_ARRAY_DIMENSIONS": ["x"]}))
            place, change = path / name / ".zarray", {"fill_value": None}
        place.write_text(json.dumps({**json.loads(place.read_text()), **change}))


def carry(way: str, old: Path, new: Path, zarr_format: Any) -> None:
    """Write a dataset again, by way of xarray or by a copy."""
    if way == "copy":
        xzarr3.copy(old, new, zarr_format=zarr_format)
    else:
        to_zarr(xzarr3.open_dataset(old), new, zarr_format=zarr_format, consolidated=False)


@pytest.mark.filterwarnings("ignore:variable .* non-conforming")
@pytest.mark.parametrize("way", ["to_zarr", "copy"])
@pytest.mark.parametrize("new", [3, slow(2)])
@pytest.mark.parametrize("old", [slow(3), 2])
@pytest.mark.parametrize("kind", [*MARKS, *INFINITE])
def test_what_is_missing_stays_so_where_json_has_no_words_or_is_refused(
    kind: str, old: int, new: Any, way: str, tmp_path: Path
) -> None:
    zarr = pytest.importorskip("zarr")
    attributes = {**MARKS, **INFINITE}[kind]
    archive(tmp_path / "a", old, attributes)
    wordless = "missing_value" if kind in INFINITE else "_FillValue"  # Of fill values, in version 2.
    if kind in INFINITE or (kind, old, new, way) == ("fill value", 2, 2, "copy"):
        message = rf"'/v'.*attributes\.{wordless}.*no infinity to mark missing"
        with pytest.raises(MetadataError, match=message):
            carry(way, tmp_path / "a", tmp_path / "b", new)
        assert not list(xzarr3.LocalStore(tmp_path / "b").list())
        return
    expected = xr.open_dataset(tmp_path / "a", engine="zarr", consolidated=False).load()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        carry(way, tmp_path / "a", tmp_path / "b", new)
    lines = [str(each.message) for each in told if "JSON" in str(each.message)]
    changed = [key for key, value in attributes.items() if not np.isfinite(value).all()]
    assert len(lines) <= 2
    if way == "to_zarr" and "_FillValue" in attributes and "missing_value" in attributes:
        changed = []  # The missing value is left out, and the fill value says the same as it did.
    for key in set(changed) - {"_FillValue"}:
        assert any("of the attributes of '/v' " in line and f"'{key}' is" in line for line in lines)
    strict(xzarr3.LocalStore(tmp_path / "b"))
    assert zarr.open_group(tmp_path / "b", mode="r", use_consolidated=False)["v"].shape == (6,)
    for engine in ("zarr", "xzarr3"):
        options: Any = {"consolidated": False} if engine == "zarr" else {}
        again = xr.open_dataset(tmp_path / "b", engine=engine, **options).load()
        xr.testing.assert_equal(again, expected)
        assert again["v"].dtype == expected["v"].dtype


def test_an_archive_with_literals_is_copied_by_its_attributes(tmp_path: Path) -> None:
    store = MemoryStore()
    xzarr3.create_array(store, "a", data=np.arange(3.0), dimension_names=["x"])
    document = json.loads(bytes(store.get("a/zarr.json")))
    document["attributes"] = {"u": math.nan}
    store.set("a/zarr.json", json.dumps(document).encode())
    found = xzarr3.open_dataset(store)["a"]
    new = MemoryStore()
    with pytest.warns(UserWarning, match="attributes of '/b' 'u' is stored as 'NaN'"):
        xzarr3.create_array(new, "b", data=found)
    assert strict(new)["b/zarr.json"]["attributes"] == {"u": "NaN"}


# Datasets that are made of what they are written to


@pytest.mark.parametrize(("place", "scheduler"), [("directory", "threads"), slow("memory", "synchronous")])
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

    def fail(block: Any, block_info: Any = None) -> Any:
        if block_info[0]["chunk-location"] == (1, 0):
            raise ArithmeticError
        return block

    for chunks in ({}, {"x": 4, "y": 3}):
        there = open_dataset(store, chunks=chunks)
        new = xr.Dataset(
            {"a": there["b"].T.isel(x=slice(None, None, -1)).transpose("x", "y"), "b": there["a"] + 1}
        )
        before, expected = there.compute(), new.compute()
        failing = new.assign(b=new["b"].copy(data=new["b"].data.map_blocks(fail, dtype="f8")))
        with dask.config.set(scheduler=scheduler):
            if "region" not in options:
                with pytest.raises(ArithmeticError):
                    to_zarr(failing, store, **options)
                xr.testing.assert_equal(open_dataset(store), before)
            to_zarr(new, store, **options)
        xr.testing.assert_equal(open_dataset(store), expected)
    if place == "directory":
        assert sorted(os.listdir(store)) == ["a", "b", "zarr.json"]
    else:
        assert not [key for key in store.list() if ".xzarr3" in key]


def test_a_region_that_reads_itself_is_refused(tmp_path: Path) -> None:
    first = xr.Dataset({"a": ("x", np.arange(12.0)), "b": ("x", np.arange(12.0) + 100)})
    to_zarr(first, tmp_path, encoding={"a": {"chunks": (2,)}})
    lazy = open_dataset(tmp_path, chunks={"x": 5})
    part = xr.Dataset({"a": ("x", lazy["b"].data[::-1]), "b": ("x", lazy["a"].data[::-1])}).isel(x=slice(6))
    with pytest.raises(xzarr3.ArgumentError, match="the same call overwrites"):
        to_zarr(part, tmp_path, region={"x": slice(0, 6)})
    xr.testing.assert_equal(open_dataset(tmp_path), first)


def test_made_of_what_is_written_later(tmp_path: Path) -> None:
    values = np.arange(12.0)
    to_zarr(xr.Dataset({"a": ("x", values)}), tmp_path / "data", encoding={"a": {"chunks": (2,)}})
    there = open_dataset(tmp_path / "data", chunks={})
    turned = there.isel(x=slice(None, None, -1))
    with pytest.raises(ValueError, match="compute=True"):
        to_zarr(turned, tmp_path / "data", mode="r+", compute=False)
    np.testing.assert_array_equal(open_dataset(tmp_path / "data")["a"].values, values)
    to_zarr(turned, tmp_path / "data", mode="r+")
    np.testing.assert_array_equal(open_dataset(tmp_path / "data")["a"].values, values[::-1])
    assert sorted(os.listdir(tmp_path / "data")) == ["a", "zarr.json"]


@pytest.mark.parametrize("group", ["g", ""])
@pytest.mark.parametrize("engine", ["xzarr3", "zarr"])
def test_opened_at_another_root_than_it_is_written_to(tmp_path: Path, engine: str, group: str) -> None:
    values = np.arange(12.0)
    to_zarr(xr.Dataset({"a": ("x", values)}), tmp_path, group=group, encoding={"a": {"chunks": (2,)}})
    there = xr.open_dataset(tmp_path / group, engine=engine, chunks={}, consolidated=False)
    to_zarr(there.isel(x=slice(None, None, -1)), tmp_path, group=group, mode="r+")
    np.testing.assert_array_equal(open_dataset(tmp_path, group=group)["a"].values, values[::-1])


@pytest.mark.parametrize("chunks", [None, {}])
def test_a_dataset_is_appended_to_itself(tmp_path: Path, chunks: Any) -> None:
    first = xr.Dataset({"a": ("x", np.arange(5.0))}, coords={"x": np.arange(5)})
    to_zarr(first, tmp_path, encoding={"a": {"chunks": (3,)}})
    there = open_dataset(tmp_path, chunks=chunks)
    backwards = there.assign_coords(x=there["x"] + 5).isel(x=slice(None, None, -1))
    to_zarr(backwards, tmp_path, append_dim="x", check_labels=False)
    np.testing.assert_array_equal(open_dataset(tmp_path)["a"].values, [*range(5), *range(5)[::-1]])


@pytest.mark.parametrize("kind", [SimpleNamespace, deque])
def test_made_of_what_a_function_reads_from_the_array_that_is_written(tmp_path: Path, kind: Any) -> None:
    values = np.arange(12.0)
    to_zarr(xr.Dataset({"a": ("x", values)}), tmp_path, encoding={"a": {"chunks": (2,)}})
    array = xzarr3.open_array(tmp_path, "a")
    held = deque([array]) if kind is deque else SimpleNamespace(array=array)

    def read(block: Any, block_info: Any = None) -> Any:
        begin, end = block_info[0]["array-location"][0]
        found = held[0] if kind is deque else held.array
        return found[12 - end : 12 - begin][::-1]

    reversed_ = dask.array.zeros(12, chunks=3).map_blocks(read, dtype=float)
    to_zarr(xr.Dataset({"a": ("x", reversed_)}), tmp_path, mode="r+")
    np.testing.assert_array_equal(open_dataset(tmp_path)["a"].values, values[::-1])


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


@pytest.mark.parametrize(("there", "new"), [(1.5, 2j), (1, 2j), (True, 0.5), (True, 2)])
def test_numbers_that_would_become_others(there: Any, new: Any) -> None:
    store = MemoryStore()
    to_zarr(xr.Dataset({"v": ("x", [there])}), store)
    message = r"cannot be stored as data type|would be read as True"
    refused(store, xr.Dataset({"v": ("x", [new])}), message, append_dim="x")


@pytest.mark.parametrize("there", [[0.5], np.array([0.5], "f4"), np.array([0.5], "f2")])
@pytest.mark.parametrize(
    ("dtype", "fits", "lost", "read"),
    [
        ("i8", [0, -(2**10), 2**11], 2**62 + 1, "4611686018427387904"),
        ("i8", [], 2**63 - 1, "9223372036854775808"),
        ("u8", [2**11], 2**64 - 1, "18446744073709551616"),
        ("i8", [], -(2**53) - 1, "-9007199254740992"),
    ],
)
def test_integers_that_floats_would_round(there: Any, dtype: str, fits: Any, lost: int, read: str) -> None:
    store = MemoryStore()
    to_zarr(xr.Dataset({"v": ("x", there)}), store)
    to_zarr(xr.Dataset({"v": ("x", np.array(fits, dtype))}), store, append_dim="x")
    np.testing.assert_array_equal(open_dataset(store)["v"].values, [0.5, *fits])
    read = read if np.asarray(there).dtype == "f8" else ".*"
    new = xr.Dataset({"v": ("x", np.array([1, 2, lost], dtype))})
    refused(store, new, rf"value {lost} at index .* would be read as {read} from", append_dim="x")
    whole = xr.Dataset({"v": ("x", np.array([lost, 1], dtype))})
    encoding = {"v": {"dtype": np.asarray(there).dtype}}
    refused(MemoryStore(), whole, f"value {lost} at index", encoding=encoding)


@pytest.mark.parametrize("missing", [None, np.nan])
def test_missing_text_is_no_text(missing: Any) -> None:
    store = MemoryStore()
    to_zarr(xr.Dataset({"v": ("x", np.array(["nan", "b"], object))}), store)
    more = xr.Dataset({"v": ("x", np.array(["c", "d", missing], object))})
    refused(store, more, "'v' has missing text at index(.|\n)*which needs mode='w'", append_dim="x")


def test_appended_values_that_would_read_as_missing() -> None:
    store = MemoryStore()
    first = xr.Dataset({"v": ("x", [1.0, np.nan]), "text": ("x", np.array(["a", None], object))})
    marks = {"v": {"dtype": "int16", "_FillValue": 0}, "text": {"_FillValue": "NA"}}
    to_zarr(first, store, encoding=marks)
    for name, values in (("v", [1, 0]), ("v", [1.0, 0.0]), ("text", np.array(["b", "NA"], object))):
        refused(store, first.assign({name: ("x", values)}), "and read as missing", append_dim="x")
    to_zarr(first, store, append_dim="x")
    xr.testing.assert_equal(open_dataset(store), xr.concat([first, first], "x"))


def test_no_region_by_values_that_are_there_twice() -> None:
    store = MemoryStore()
    to_zarr(xr.Dataset({"v": ("x", [1, 2, 3])}, coords={"x": [0, 0, 1]}), store)
    for x in ([0, 1], [1]):
        refused(store, xr.Dataset({"v": ("x", [9] * len(x))}, {"x": x}), "repeated values", region="auto")


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


@pytest.mark.parametrize("mode", [slow("a"), slow("a-"), None])
@pytest.mark.parametrize("values", [[1.0, 0.0], [0.0, 1.5], [0.0, np.nan]])
def test_what_is_appended_has_the_coordinates_that_are_there(
    tmp_path: Path, mode: Any, values: list[float]
) -> None:
    """The store has one coordinate for old and new values; another one would move the old ones."""
    first = xr.Dataset({"v": (("time", "x"), np.ones((2, 2)))}, coords={"time": [0, 1], "x": [0.0, 1.0]})
    xzarr3.to_zarr(first, tmp_path)
    before = contents(tmp_path)
    more = first.assign_coords(time=[2, 3])
    with pytest.raises(ValueError, match="coordinates 'x' have other values"):
        xzarr3.to_zarr(more.assign_coords(x=values), tmp_path, mode=mode, append_dim="time")
    assert before == contents(tmp_path)
    for start, near in ((2, [0.0, 1.0]), (4, [1e-9, 1.0]), (6, [4e-4, 1.0])):
        more = more.assign_coords(time=[start, start + 1], x=near)
        xzarr3.to_zarr(more, tmp_path, mode=mode, append_dim="time")
    more = more.assign_coords(time=[8, 9]).drop_vars("x")
    xzarr3.to_zarr(more, tmp_path, mode=mode, append_dim="time")
    assert xzarr3.open_array(tmp_path, "v").shape == (10, 2)
    assert xzarr3.open_array(tmp_path, "x")[:].tolist() == [0.0, 1.0]


def test_a_region_is_not_found_without_a_coordinate(tmp_path: Path) -> None:
    """xarray takes it for the first elements, and writes over these."""
    data = xr.Dataset({"v": ("time", np.arange(10.0))}, coords={"time": np.arange(10)})
    xzarr3.to_zarr(data, tmp_path)
    part = data.isel(time=slice(5, 8)).drop_vars("time") + 50
    for region in ("auto", {"time": "auto"}):
        with pytest.raises(ValueError, match=r"'time' has 3 here and 10 in the region; add the coordinate"):
            xzarr3.to_zarr(part, tmp_path, region=region)  # type: ignore[arg-type]
    np.testing.assert_array_equal(xzarr3.open_array(tmp_path, "v")[...], np.arange(10.0))
    xzarr3.to_zarr(data.drop_vars("time") + 1, tmp_path, region="auto")
    np.testing.assert_array_equal(xzarr3.open_array(tmp_path, "v")[...], np.arange(1, 11.0))


@pytest.mark.parametrize("options", [{"append_dim": "time"}, {"mode": "a"}])
def test_another_format_than_that_of_the_store_is_named(tmp_path: Path, options: dict[str, Any]) -> None:
    data = xr.Dataset({"v": ("time", np.arange(3.0))})
    xzarr3.to_zarr(data, tmp_path)
    with pytest.raises(ValueError, match="has Zarr format 3, but zarr_format=2 was passed"):
        xzarr3.to_zarr(data, tmp_path, zarr_format=2, **options)
    assert xzarr3.open_array(tmp_path, "v").shape == (3,)


# Datasets that were opened before


def packed(scale: float = 0.5, fill: int = -9) -> tuple[xr.Dataset, dict[str, Any]]:
    values = np.array([0.0, 1.0, 2.0, np.nan]) * scale
    data = xr.Dataset({"v": ("x", values, {"title": "of the first"}), "whole": ("x", np.arange(4))})
    coding = {"dtype": "int16", "scale_factor": scale, "_FillValue": fill, "chunks": (2,)}
    return data, {"v": coding, "whole": {"chunks": (2,)}}


def _another_scale(place: Any, zarr_format: Any, **packing: Any) -> None:
    data, encoding = packed(**(packing or {"scale": 0.25}))
    to_zarr(data, place, mode="w", encoding=encoding, zarr_format=zarr_format)


def _another_fill_value(place: Any, zarr_format: Any) -> None:
    _another_scale(place, zarr_format, fill=-5)


def _another_attribute(place: Any, zarr_format: Any) -> None:
    xzarr3.open_array(place, "v", mode="r+").attrs["add_offset"] = 100.0


def _attribute_is_gone(place: Any, zarr_format: Any) -> None:
    del xzarr3.open_array(place, "v", mode="r+").attrs["scale_factor"]


def _by_zarr_python(place: Any, zarr_format: Any) -> None:
    zarr = pytest.importorskip("zarr")
    zarr.open_array(str(place), path="v", mode="r+").attrs["scale_factor"] = 2.0


_CHANGES = (_another_scale, _another_fill_value, _another_attribute, _attribute_is_gone)


@pytest.mark.parametrize(("kind", "change"), [
    *((kind, change) for kind in ("local", "memory", "fsspec") for change in _CHANGES),
    ("local", _by_zarr_python),
])  # fmt: skip
@pytest.mark.parametrize("chunks", [None, slow({})])
@pytest.mark.parametrize("zarr_format", [slow(2), 3])
def test_values_are_not_decoded_by_attributes_that_have_changed_since(
    tmp_path: Path, kind: str, zarr_format: Any, chunks: Any, change: Any
) -> None:
    url = f"memory://{tmp_path.name}-{zarr_format}-{chunks is None}-{change.__name__}.zarr"
    place: Any = {"local": tmp_path / "a", "memory": MemoryStore(), "fsspec": url}[kind]
    data, encoding = packed()
    to_zarr(data, place, encoding=encoding, zarr_format=zarr_format)
    options: dict[str, Any] = {"engine": "xzarr3", "chunks": chunks, "consolidated": False}
    old = xr.open_dataset(place, **options)
    sent = pickle.dumps(old)
    read = pickle.loads(sent)
    np.testing.assert_array_equal(read["v"].isel(x=slice(0, 2)), data["v"][:2])
    change(place, zarr_format)
    for found in (old, read, pickle.loads(sent), old.isel(x=slice(1, 4)), old.chunk(x=1)):
        with pytest.raises(ChangedError, match=r"'/v' of .* replaced since it was opened.*; open it again"):
            found["v"].compute()
    if change in (_another_scale, _another_fill_value):  # Everything is replaced.
        with pytest.raises(ChangedError, match=r"'/whole' of .* replaced since it was opened"):
            old["whole"].compute()
    else:
        assert old["whole"].values.tolist() == [0, 1, 2, 3]
    assert open_dataset(place, consolidated=False)["v"].compute().shape == (4,)


def bounded(store: Any, zarr_format: Any) -> xr.Dataset:
    """Store times with bounds that have no units of their own, as netCDF has it."""
    days = np.array(["2000-01-01", "2000-01-02"], "M8[ns]")
    data = xr.Dataset({"at": ("time", days), "at_bnds": (("time", "nv"), np.stack([days, days], axis=1))})
    data["at"].attrs["bounds"] = "at_bnds"
    units = {"units": "days since 2000-01-01", "dtype": "int64"}
    encoding = {"at": {**units, "chunks": (1,)}, "at_bnds": {**units, "chunks": (1, 2)}}
    to_zarr(data, store, encoding=encoding, zarr_format=zarr_format)
    bounds = xzarr3.open_array(store, "at_bnds", mode="r+")
    for key in ("units", "calendar"):
        bounds.attrs.pop(key, None)
    return data


@pytest.mark.parametrize("chunks", [None, {}])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_times_are_not_decoded_in_units_that_were_widened_since(zarr_format: Any, chunks: Any) -> None:
    store = MemoryStore()
    data = bounded(store, zarr_format)
    old = xr.open_dataset(store, engine="xzarr3", chunks=chunks, consolidated=False)
    more = data.isel(time=[0]) + np.timedelta64(54, "h")
    more["at"].attrs["bounds"] = "at_bnds"
    to_zarr(more, store, append_dim="time", widen_units=True)
    for name in ("at", "at_bnds"):
        for found in (old, pickle.loads(pickle.dumps(old))):
            with pytest.raises(ChangedError, match=f"'/{name}' of .*'units' is 'hours"):
                found[name].compute()


@pytest.mark.parametrize("chunks", [None, {}])
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("kind", [MemoryStore, WaitingStore])
def test_bounds_are_not_decoded_in_units_that_others_have_changed_of_what_they_bound(
    kind: Any, zarr_format: Any, chunks: Any
) -> None:
    store = kind()
    data = bounded(store, zarr_format)
    old = xr.open_dataset(store, engine="xzarr3", chunks=chunks, consolidated=False)
    names = {open_dataset(store)["at_bnds"].data.name}
    xr.testing.assert_equal(old["at_bnds"].copy().compute(), data["at_bnds"])
    old = xr.open_dataset(store, engine="xzarr3", chunks=chunks, consolidated=False)
    xzarr3.open_array(store, "at", mode="r+").attrs["units"] = "hours since 2000-01-01"
    for found in (old, pickle.loads(pickle.dumps(old))):
        with pytest.raises(ChangedError, match=r"'/at' of .*'units' is 'hours"):
            found["at_bnds"].compute()
    assert open_dataset(store)["at_bnds"].data.name not in names


@pytest.mark.parametrize("chunks", [None, {}])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_an_earlier_dataset_is_read_after_an_append_and_a_change_of_the_history(
    tmp_path: Path, zarr_format: Any, chunks: Any
) -> None:
    place = tmp_path / "a"
    data, encoding = packed()
    to_zarr(data, place, encoding=encoding, zarr_format=zarr_format)
    old = xr.open_dataset(place, engine="xzarr3", chunks=chunks)
    sent = pickle.dumps(old)
    to_zarr(data + 1, place, append_dim="x")
    array = xzarr3.open_array(place, "v", mode="r+")
    array.attrs.update(history="made again", title="of the second")
    array[0] = 2  # Stored as it is, 1.0.
    for found in (old, pickle.loads(sent)):
        np.testing.assert_array_equal(found["v"], [1.0, *data["v"].values[1:]])


def test_looking_whether_attributes_have_changed_costs_one_look_for_many_chunks() -> None:
    store = WaitingStore(0.0)
    for zarr_format, documents in ((3, {"v/zarr.json"}), (2, {"v/.zarray", "v/.zattrs"})):
        data = xr.Dataset({"v": ("x", np.arange(1.0, 65.0))})
        encoding = {"v": {"chunks": (1,), "dtype": "int16", "scale_factor": 0.5}}
        to_zarr(data, store, encoding=encoding, mode="w", zarr_format=zarr_format)
        old = pickle.loads(pickle.dumps(xr.open_dataset(store, engine="xzarr3", chunks={})))
        with store.counted() as count, dask.config.set(scheduler="synchronous"):
            old["v"].compute()
        looked_at = [key for _, key in count.requests if "/c/" not in key and not key[-1].isdigit()]
        assert sorted(looked_at) == sorted(documents)


@pytest.mark.parametrize("region", ["auto", {"x": slice(1, 3)}])
def test_a_region_is_packed_as_the_document_says_and_not_an_outdated_copy(region: Any) -> None:
    store = MemoryStore()
    values = np.array([1.5, 2.5, 3.5, 4.5])
    whole = xr.Dataset({"v": ("x", values)}, {"x": [10, 20, 30, 40]})
    to_zarr(whole, store, encoding={"v": {"dtype": "i2", "scale_factor": 0.5}})
    document = json.loads(store.get("v/zarr.json"))
    document["attributes"]["scale_factor"] = 0.25  # By a program that leaves the copy as it is.
    store.set("v/zarr.json", json.dumps(document).encode())
    to_zarr(whole.isel(x=slice(1, 3)), store, mode="r+", region=region)
    found = open_dataset(store, consolidated=False, chunks=None)
    assert found.v.values.tolist() == [0.75, 2.5, 3.5, 2.25]


def test_to_zarr_append_refuses_variables_of_several_lengths() -> None:
    store = MemoryStore()
    to_zarr(xr.Dataset({"a": ("t", [1, 2]), "b": ("t", [1, 2])}), store)
    more = xr.Dataset({"a": ("t", [3]), "b": ("t", [3])})
    xzarr3.open_array(store, "a", mode="r+").resize(3)
    with pytest.raises(
        ConflictError, match=r"storing its documents now, or was interrupted.*make them 2 long"
    ):
        to_zarr(more, store, append_dim="t")
    xzarr3.open_array(store, "b", mode="r+").resize(3)
    to_zarr(more, store, append_dim="t")
    assert open_dataset(store, chunks=None).sizes["t"] == 4


@pytest.mark.parametrize(
    ("column", "zarr_format", "convert", "expected"),
    [
        (pd.array([1, None, 3], dtype="Int64"), 2, float, [1.0, np.nan, 3.0]),
        (pd.array([True, None, False], dtype="boolean"), 2, float, [1.0, np.nan, 0.0]),
        (pd.Categorical(["u", "v", "u"]), 3, str, ["u", "v", "u"]),
    ],
    ids=["Int64", "boolean", "categories"],
)
def test_columns_of_pandas_types_are_refused_with_what_can_be_stored(
    column: Any, zarr_format: Any, convert: type, expected: list[object]
) -> None:
    store = xzarr3.MemoryStore()
    dataset = xr.Dataset.from_dataframe(pd.DataFrame({"v": column}))
    error = xzarr3.ArgumentTypeError if zarr_format == 3 else xzarr3.DataTypeValidationError
    with pytest.raises(error, match=rf"v'.*astype\({convert.__name__}\)"):
        xzarr3.to_zarr(dataset, store, zarr_format=zarr_format)
    assert not [*store.list()]
    xzarr3.to_zarr(dataset.assign(v=dataset.v.astype(convert)), store, zarr_format=zarr_format)
    with xr.open_dataset(store, engine="xzarr3") as found:  # type: ignore[arg-type]
        np.testing.assert_array_equal(found.v, np.array(expected))
