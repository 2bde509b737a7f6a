"""What goes wrong silently elsewhere when datasets are written is exact here, or refused."""

import json
import math
import os
import pickle
import warnings
from collections import deque
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cftime
import dask
import dask.array
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from _documents import edit
from _engines import DOCUMENTS, NotingStore, contents, refused
from _killed import opened
from _slow import slow
from _waiting import WaitingStore

import xzarr3
from xzarr3 import MemoryStore, to_zarr
from xzarr3.conventions.fill_value_attribute import encode_fill_value
from xzarr3.errors import ChangedError, ConflictError, MetadataError
from xzarr3.xarray import open_dataset

pytestmark = [pytest.mark.usefixtures("one_task_at_a_time"), pytest.mark.filterwarnings(
    "ignore:The specified chunks separate the stored chunks",
    "ignore:saving variable .* with floating point data as an integer",
    "ignore:invalid value encountered in cast",
)]  # fmt: skip


def stamps(*texts: str) -> xr.Dataset:
    return xr.Dataset({"v": ("time", np.arange(float(len(texts))))}, {"time": np.array(texts, "M8[ns]")})


def stored(dataset: xr.Dataset, **encoding: Any) -> Any:
    """A store that holds a dataset."""
    return to_zarr(dataset, encoding=encoding).store


DAYS = {"units": "days since 2000-01-01", "dtype": "int64"}
THREE = ("2000-01-01", "2000-01-02", "2000-01-03")


@pytest.mark.parametrize(
    ("added", "units"), [("06:00", "hours"), ("06:30", "minutes"), ("06:30:15", "seconds")]
)
def test_units_are_widened_if_asked_for_and_needed(added: str, units: str) -> None:
    store, more = stored(stamps(*THREE), time=DAYS), stamps(f"2000-01-03T{added}")
    refused(store, more, f"widen_units=True, which stores all .* anew in '{units}", append_dim="time")
    to_zarr(more, store, append_dim="time", widen_units=True)
    to_zarr(stamps("2000-01-04"), store, append_dim="time", widen_units=True)  # There is no need for it.
    found, times = open_dataset(store), [*THREE, f"2000-01-03T{added}", "2000-01-04"]
    np.testing.assert_array_equal(found["time"], np.array(times, "M8[ns]"))
    assert found["time"].encoding["units"].startswith(units)
    assert found["time"].encoding["dtype"] == np.int64
    assert found["v"].values.tolist() == [0, 1, 2, 0, 0]


@pytest.mark.parametrize("calendar", ["noleap", "360_day"])
def test_other_calendars(calendar: str) -> None:
    def dataset(n: int, start: int, freq: str = "D") -> xr.Dataset:
        time = xr.date_range("2000-02-27", periods=n + start, freq=freq, calendar=calendar, use_cftime=True)
        return xr.Dataset({"v": ("time", np.arange(float(n)))}, coords={"time": time[start:]})

    store, six_hours = stored(dataset(3, 0), time=DAYS), dataset(1, 21, "6h")
    to_zarr(dataset(2, 3), store, append_dim="time")
    for more, match in ((six_hours, "exactly in the units"), (stamps("2000-03-05"), "calendar")):
        with pytest.raises(ValueError, match=match):
            to_zarr(more, store, append_dim="time")
    np.testing.assert_array_equal(open_dataset(store)["time"], dataset(5, 0)["time"])
    to_zarr(six_hours, store, append_dim="time", widen_units=True)
    expected = [*dataset(5, 0)["time"].values, *six_hours["time"].values]
    np.testing.assert_array_equal(open_dataset(store)["time"], expected)


def test_times_in_dask_arrays() -> None:
    when = pd.to_datetime(["2000-01-01", "2000-01-02"])
    first = xr.Dataset({"when": ("x", when)}).chunk(x=1)
    store, bad = stored(first, when=DAYS), xr.Dataset({"when": ("x", when + pd.Timedelta("1h"))})
    message = r"T01:00 at index .* of variable 'when' asks for; .*widen_units"
    refused(store, bad.chunk(x=1), message, append_dim="x")
    to_zarr(first, store, append_dim="x")
    np.testing.assert_array_equal(open_dataset(store)["when"], [*when.values, *when.values])
    early = xr.Dataset({"when": ("x", np.array(["1500-01-01"], "M8[s]"))}).chunk()
    with pytest.raises(xzarr3.ArgumentError, match=r"times of variable 'when' cannot be encoded in 'days"):
        to_zarr(early, MemoryStore(), encoding={"when": {**DAYS, "calendar": "standard"}})


@pytest.mark.filterwarnings("ignore:Ambiguous reference date")
@pytest.mark.parametrize("is_lazy", [False, True])
@pytest.mark.parametrize("calendar", ["standard", "proleptic_gregorian"])
@pytest.mark.parametrize(("units", "dtype"), [("hours since 1-1-1", "f8"), ("days since 0001-01-01", "i4")])
def test_times_that_count_from_the_first_year(units: str, dtype: str, calendar: str, is_lazy: bool) -> None:
    """As archives of NOAA have them: numpy's nanoseconds do not hold that date, and cftime decodes them."""
    when = xr.Dataset({"when": ("x", np.array(["NaT", "2000-01-02", "NaT", "1999-12-31"], "M8[ns]"))})
    coding = {"units": units, "calendar": calendar, "dtype": dtype, "_FillValue": -9}
    store = stored(when.chunk(x=2) if is_lazy else when, when=coding)
    again = open_dataset(store)
    np.testing.assert_array_equal(again["when"].values, when["when"].values)
    to_zarr(again if is_lazy else again.load(), store, append_dim="x")
    np.testing.assert_array_equal(open_dataset(store)["when"].values, [*when["when"].values] * 2)
    more = when + np.timedelta64(1, "h")
    if dtype == "i4":
        refused(store, more.chunk(x=2) if is_lazy else more, r"T01|exactly in the units", append_dim="x")


@pytest.mark.parametrize("units", ["hrs since 2000-01-01", "d since 2000-01-01", "msec since 2000-01-01"])
@pytest.mark.parametrize("is_lazy", [False, True])
def test_units_that_are_only_read(units: str, is_lazy: bool) -> None:
    when = xr.Dataset({"when": ("x", np.array(["2000-01-02"], "M8[ns]"))})
    coding = {"units": units, "dtype": "f8"}
    with pytest.raises(xzarr3.ArgumentError, match=rf"unknown unit in units='{units}' .* 'when'; .*'hours'"):
        stored(when.chunk() if is_lazy else when, when=coding)


@pytest.mark.parametrize("kind", ["M8[ns]", "m8[ns]", ">M8[ns]"])
def test_blocks_without_a_date_in_dask_arrays(kind: str) -> None:
    store, values = MemoryStore(), np.array(["NaT", "NaT", 24, "NaT"], kind.replace("ns", "h")).astype(kind)
    dataset = xr.Dataset({"when": ("x", values)}).chunk(x=2)
    date = "" if kind[0] == "m" else " since 1970-01-01"
    dataset["when"].encoding = {"units": f"hours{date}", "calendar": "standard", "dtype": "int64"}
    to_zarr(dataset, store)
    to_zarr(dataset, store, append_dim="x")
    np.testing.assert_array_equal(open_dataset(store)["when"].values, [*values, *values])


@pytest.mark.parametrize("is_lazy", [False, True])
@pytest.mark.parametrize("kind", ["M8[s]", "m8[s]"])
def test_times_are_added_to_those_of_such_a_data_type(kind: str, is_lazy: bool) -> None:
    array = xzarr3.create_array(MemoryStore(), "when", data=np.arange(3).astype(kind), dimension_names=["x"])
    for values in (np.array([5, 6], kind), np.array([1], kind.replace("s", "h")), np.array(["NaT"], kind)):
        more = xr.Dataset({"when": ("x", values)})
        to_zarr(more.chunk() if is_lazy else more, array.store, append_dim="x")
    expected = np.array([0, 1, 2, 5, 6, 3600, "NaT"], kind)
    np.testing.assert_array_equal(open_dataset(array.store)["when"].values, expected, strict=True)
    fine = xr.Dataset({"when": ("x", np.array([1500], kind.replace("s", "ms")))})
    refused(array.store, fine, "whole numbers of 1 's'", append_dim="x")


def test_time_differences_of_such_a_data_type_are_written_again() -> None:
    lengths = xr.Dataset({"v": ("x", np.array([1, 2], "m8[s]"))})
    store = stored(lengths, v={"dtype": "timedelta64[s]"})
    assert xzarr3.open_array(store, "v").dtype == "m8[s]"
    again = open_dataset(store)
    to_zarr(again, store, append_dim="x", widen_units=True)
    for found in (open_dataset(store), open_dataset(to_zarr(open_dataset(store)).store)):
        np.testing.assert_array_equal(found["v"].values, np.array([1, 2, 1, 2], "m8[s]"), strict=True)


@pytest.mark.parametrize("values", [[], [1.5], [1, 2]], ids=str)
@pytest.mark.parametrize("more", [["a", "b"], ["1", "2"], [b"a", None]], ids=str)
def test_text_is_not_added_to_numbers(values: list[Any], more: list[Any]) -> None:
    """An empty variable of objects is stored as numbers, as xarray does it."""
    store = stored(xr.Dataset({"v": ("x", np.array(values, None if values else object))}))
    match = (
        r"Mismatched dtypes for variable v .*it has text|'v' has an object at index \(0,\) of block \(0,\)"
    )
    refused(store, xr.Dataset({"v": ("x", np.array(more, object))}), match, append_dim="x")


UNSAYABLE: list[tuple[str, Any, str]] = [
    ("packed", [10.5, 5000.0], r"'packed'(.|\n)*-3266.8"),
    ("packed", [10.5, np.nan], r"missing value cannot be stored(.|\n)*_FillValue"),
    ("plain", [1.0, np.nan], "missing value cannot be stored"),
    ("plain", [1.0, 2.5], "2.5 at index .* would be read as 2 from data type int32"),
    ("plain", [1, 2**40], "would be read as|cannot hold"),
    ("single", [1.0, 1e300], "would be read as|cannot hold"), ("text", ["abcd", "e"], "up to 3 characters"),
    ("bytes", [b"abcd", b"e"], "up to 3 bytes"), ("plain", ["a", "b"], "Mismatched dtypes"),
    ("text", [1, 2], "Mismatched dtypes"),
]  # fmt: skip


def test_values_that_the_stored_encoding_cannot_say() -> None:
    packed = {"dtype": "int16", "scale_factor": 0.1, "add_offset": 10.0}
    values = {"packed": [10.5, 11.0], "plain": [1, 2], "single": np.array([1, 2], "f4")}
    texts = {"text": np.array(["abc", "de"]), "bytes": np.array([b"abc", b"de"])}
    first = xr.Dataset({name: ("x", each) for name, each in {**values, **texts}.items()})
    store = stored(first, packed=packed, plain={"dtype": "int32"})
    for append in ({"append_dim": "x"}, {"mode": "a"}, {"region": {"x": slice(0, 2)}}):
        for name, each, match in UNSAYABLE:
            refused(store, first.assign({name: ("x", each)}), match, **append)
    to_zarr(first.assign(text=("x", ["x", "yz"]), plain=("x", [5.0, 6.0])), store, append_dim="x")
    found = open_dataset(store)
    assert found["text"].values.tolist() == ["abc", "de", "x", "yz"]
    assert found["plain"].values.tolist() == [1, 2, 5, 6]
    np.testing.assert_allclose(found["packed"].values, [10.5, 11, 10.5, 11])


NUMBERS = xr.Dataset({"v": ("time", [9.0])}, {"time": [3]})
HOURS = NUMBERS.assign_coords(time=NUMBERS["time"].assign_attrs(units="hours since 2000-01-01"))
TWO = xr.Dataset({"a": ("x", [1]), "b": ("x", [2]), "c": ("y", [3])})
LONGER = TWO.drop_vars("c").assign(z=("y", [1, 2]))
MARKED = xr.Dataset({"v": ("x", [1.0, np.nan]), "text": ("x", np.array(["a", None], object))})
MARKS = {"v": {"dtype": "int16", "_FillValue": 0}, "text": {"_FillValue": "NA"}}
DAILY = (stamps(*THREE), {"time": DAYS})
ALONG_X, ALONG_TIME, AT_X = {"append_dim": "x"}, {"append_dim": "time"}, {"region": {"x": slice(0, 1)}}
TWICE = xr.Dataset({"v": ("x", [1, 2, 3])}, {"x": [0, 0, 1]})
MISSING_TEXT = "'v' has missing text at index(.|\n)*which needs mode='w'"
FORMAT_2 = "has Zarr format 3, but zarr_format=2 was passed"


def text(*values: Any) -> xr.Dataset:
    return xr.Dataset({"v": ("x", np.array(values, object))})


def one(value: Any) -> xr.Dataset:
    return xr.Dataset({"v": ("x", [value])})


REFUSED: dict[str, tuple[xr.Dataset, dict[str, Any], xr.Dataset, dict[str, Any], str]] = {
    "numbers": (*DAILY, NUMBERS, ALONG_TIME, "has numbers of .*, and dates of the calendar 'standard'"),
    "hours": (*DAILY, HOURS, ALONG_TIME, "has numbers of .*, and dates of the calendar 'standard'"),
    "dates": (NUMBERS, {}, stamps(*THREE), ALONG_TIME, "has dates of .*, and numbers of dtype int64"),
    "too few": (TWO, {}, TWO[["a"]], ALONG_X, r"variables 'b' have the dimension 'x' in the store"),
    "none": (TWO, {}, TWO[["c"]], ALONG_X, "no variable of the dataset has the dimension 'x'"),
    "a new one": (TWO, {}, TWO.assign(d=TWO["a"]), ALONG_X, "'d' is not in the store and would be shorter"),
    "a new one of a region": (TWO, {}, one(4), {"mode": "a", **AT_X}, "no region of it can be written"),
    "length": (TWO, {}, LONGER, {"mode": "a"}, "conflicting sizes for dimension 'y': length 2 on 'z'"),
    "length of a-": (TWO, {}, LONGER, {"mode": "a-"}, "conflicting sizes for dimension 'y'"),
    "length of an append": (TWO, {}, LONGER, ALONG_X, "conflicting sizes for dimension 'y'"),
    "complex": (one(1.5), {}, one(2j), ALONG_X, "cannot be stored as data type"),
    "complex for integers": (one(1), {}, one(2j), ALONG_X, "cannot be stored as data type"),
    "half true": (one(True), {}, one(0.5), ALONG_X, "would be read as True"),
    "two for true": (one(True), {}, one(2), ALONG_X, "cannot be stored as data type|would be read as True"),
    "None": (text("nan", "b"), {}, text("c", None), ALONG_X, MISSING_TEXT),
    "NaN": (text("nan", "b"), {}, text("c", np.nan), ALONG_X, MISSING_TEXT),
    "mark": (MARKED, MARKS, MARKED.assign(v=("x", [1, 0])), ALONG_X, "and read as missing"),
    "mark of floats": (MARKED, MARKS, MARKED.assign(v=("x", [1.0, 0.0])), ALONG_X, "and read as missing"),
    "mark of text": (MARKED, MARKS, MARKED.assign(text=text("b", "NA").v), ALONG_X, "and read as missing"),
    "label": (TWICE, {}, TWICE.isel(x=[2]), {"region": "auto"}, "repeated values"),
    "labels": (TWICE, {}, TWICE.isel(x=[1, 2]), {"region": "auto"}, "repeated values"),
    "format": (TWO, {}, TWO, {"mode": "a", "zarr_format": 2}, FORMAT_2),
    "format of an append": (TWO, {}, TWO, {**ALONG_X, "zarr_format": 2}, FORMAT_2),
}  # fmt: skip
"""What is there and its encoding, what is written to it and how, and what the error says."""


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_go_with_what_is_there(case: str) -> None:
    first, encoding, new, options, message = REFUSED[case]
    refused(stored(first, **encoding), new, message, **options)


def test_what_goes_with_what_is_there() -> None:
    store = stored(TWO)
    to_zarr(TWO.assign(e=("y", [5])), store, append_dim="x")
    values = {name: each.values.tolist() for name, each in open_dataset(store).items()}
    assert values == {"a": [1, 1], "b": [2, 2], "c": [3], "e": [5]}
    store = stored(stamps(*THREE), time=DAYS)
    units = open_dataset(store)["time"].encoding["units"]
    to_zarr(NUMBERS.assign_coords(time=NUMBERS["time"].assign_attrs(units=units)), store, append_dim="time")
    assert open_dataset(store)["time"].values[-1] == np.datetime64("2000-01-04")
    store = stored(MARKED, **MARKS)
    to_zarr(MARKED, store, append_dim="x")
    xr.testing.assert_equal(open_dataset(store), xr.concat([MARKED, MARKED], "x"))
    to_zarr(TWO, store, group="below")
    before = contents(store)
    with pytest.raises(xzarr3.NodeExistsError, match=r"a group .* '/below', where variable 'below' would"):
        to_zarr(xr.Dataset({"below": ("x", [1, 2, 3, 4])}), store, mode="a")
    assert contents(store) == before


@pytest.mark.parametrize("chunked", [False, slow(True)])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("packed", ["i1", "u2", "i4", "f4"])
def test_packed_values_are_read_within_half_a_step(dtype: str, packed: str, chunked: bool) -> None:
    random = np.random.default_rng(7)
    values = random.uniform(-1, 1, 2**18 + 7).astype(dtype)  # More than are compared at a time.
    values[random.random(values.size) < 0.1] = np.nan
    scale, low = {"i1": (0.01, -100), "u2": (1e-4, 0), "i4": (1e-9, -(10**9)), "f4": (0.5, 0)}[packed]
    mark = np.dtype(packed).type(np.finfo("f4").max if packed == "f4" else np.iinfo(packed).max)
    encoding = {"dtype": packed, "scale_factor": scale, "add_offset": -1 - low * scale, "_FillValue": mark}
    dataset = xr.Dataset({"v": ("x", values)})
    store = to_zarr(dataset.chunk(x=10**5) if chunked else dataset, encoding={"v": encoding}).store
    found = open_dataset(store)["v"].values
    step = 0.0 if packed == "f4" else scale / 2
    np.testing.assert_allclose(found, values, rtol=0, atol=step + 2e-6, equal_nan=True)


@pytest.mark.parametrize("is_lazy", [False, True])
def test_packed_values_that_are_read_in_a_smaller_type_are_refused(is_lazy: bool) -> None:
    """Of floats that NaN marks, xarray reads packed ones in the stored type, where 1e12 is infinite."""
    values = xr.Dataset({"v": ("x", [-999999999995.0, 5.0])})
    packing = {"dtype": "f2", "scale_factor": 1e8, "add_offset": 5.0}
    with pytest.raises(ValueError, match=r"-999999999995\.0 at index \(0,\).* would be read as -inf"):
        stored(values.chunk() if is_lazy else values, v=packing)
    large = xr.Dataset({"v": ("x", [1e300])})
    with pytest.raises(ValueError, match=r"would be read as .* accepted: -9223372036854775805 to "):
        stored(large.chunk() if is_lazy else large, v={"dtype": "i8", "add_offset": np.int32(3)})


def strict(store: Any) -> dict[str, Any]:
    """The documents of a store, which hold nothing that JSON lacks."""
    found = {key: value for key, value in contents(store).items() if key.endswith(DOCUMENTS)}
    return {key: json.loads(value, parse_constant=pytest.fail) for key, value in found.items()}


@pytest.mark.parametrize("options", [{}, {"mode": "a"}])
@pytest.mark.parametrize("zarr_format", [3, 2])
def test_attributes_that_json_lacks_are_stored_as_text(options: dict[str, Any], zarr_format: Any) -> None:
    attrs: dict[str, tuple[Any, Any]] = {
        "a": (np.nan, "NaN"), "b": (np.float32(-np.inf), "-Infinity"),
        "c": ([1, {"d": np.array([np.inf, 2.5])}], [1, {"d": ["Infinity", 2.5]}]),
        "e": (np.array([[np.nan, 1]], "f4"), [["NaN", 1.0]]),
        "f": (np.array([1, np.nan], object), [1, "NaN"]), "g": (1.5, 1.5),
    }  # fmt: skip
    own = {key: value for key, (value, _) in attrs.items()}
    dataset, store = xr.Dataset({"v": ("x", [1.0], own)}, attrs={"h": np.nan}), MemoryStore()
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
    assert found["v"].attrs == {key: value for key, (_, value) in attrs.items()}
    assert found.attrs == {"h": "NaN"}


MARKED_BY: dict[str, dict[str, Any]] = {
    "NaN": {"missing_value": np.nan},
    "NaN and a fill value": {"missing_value": np.nan, "_FillValue": np.nan},
    "fill value": {"_FillValue": np.inf},
    "packed": {"missing_value": np.nan, "scale_factor": 0.5, "add_offset": 1.0},
    "range": {"valid_range": [np.nan, 3.0], "_FillValue": 2.0},
    "finite": {"missing_value": 2.0, "valid_min": -np.inf}, "infinite": {"missing_value": np.inf},
    "infinite and a range": {"missing_value": -np.inf, "valid_range": [-np.inf, 1.0]},
    "infinite, both": {"_FillValue": np.inf, "missing_value": np.inf},
}  # fmt: skip


def archive(path: Path, zarr_format: int, attrs: dict[str, Any]) -> None:
    """A dataset with literals that JSON lacks, as older writers left them; one chunk is absent."""
    dims: Any = {} if zarr_format == 2 else {"dimension_names": ["x"]}
    root = xzarr3.create_group(path, zarr_format=zarr_format)
    values = np.array([0.0, 2.0, np.inf, -np.inf, np.nan, 1.0])
    root.create_array("v", data=values, chunks=2, compressors=None, **dims)
    root.create_array("w", shape=6, chunks=2, dtype="i2", compressors=None, **dims)
    root["w"][:4] = np.arange(4)
    for name in "vw":
        own = {key: value for key, value in attrs.items() if key != "_FillValue" or name == "v"}
        if zarr_format == 3 and "_FillValue" in own:
            own["_FillValue"] = encode_fill_value(own["_FillValue"], np.dtype("f8"))
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
@pytest.mark.parametrize("kind", MARKED_BY)
def test_what_is_missing_stays_missing(kind: str, old: int, new: Any, way: str, tmp_path: Path) -> None:
    zarr, attributes, is_infinite = pytest.importorskip("zarr"), MARKED_BY[kind], kind.startswith("infinite")
    archive(tmp_path / "a", old, attributes)
    wordless = "missing_value" if is_infinite else "_FillValue"  # Of fill values, in version 2.
    if is_infinite or (kind, old, new, way) == ("fill value", 2, 2, "copy"):
        with pytest.raises(MetadataError, match=rf"'/v'.*attributes\.{wordless}.*no infinity to mark mis"):
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
    edit(store, "a/zarr.json", attributes={"u": math.nan})
    with pytest.warns(UserWarning, match="attributes of '/b' 'u' is stored as 'NaN'"):
        new = xzarr3.create_array(MemoryStore(), "b", data=xzarr3.open_dataset(store)["a"]).store
    assert strict(new)["b/zarr.json"]["attributes"] == {"u": "NaN"}


@pytest.mark.parametrize(("place", "scheduler"), [("directory", "threads"), slow("memory", "synchronous")])
@pytest.mark.parametrize("how", ["w", "a", "r+", "region"])
def test_made_of_what_is_written(tmp_path: Path, how: str, scheduler: str, place: str) -> None:
    store: Any = MemoryStore() if place == "memory" else xzarr3.LocalStore(tmp_path / "data")
    options: Any = {"region": {"x": slice(None), "y": slice(None)}} if how == "region" else {"mode": how}
    a, b = np.arange(24.0).reshape(6, 4), np.arange(24.0)[::-1].reshape(6, 4)
    first = xr.Dataset({"a": (("x", "y"), a), "b": (("x", "y"), b)})
    to_zarr(first, store, encoding={"a": {"chunks": (2, 2)}, "b": {"chunks": (3, 4)}})

    def fail(block: Any, block_info: Any = None) -> Any:
        if block_info[0]["chunk-location"] == (1, 0):
            raise ArithmeticError
        return block

    for chunks in ({}, {"x": 4, "y": 3}):
        there = open_dataset(store, chunks=chunks)
        turned = there["b"].T.isel(x=slice(None, None, -1)).transpose("x", "y")
        new = xr.Dataset({"a": turned, "b": there["a"] + 1})
        before, expected = there.compute(), new.compute()
        failing = new.assign(b=new["b"].copy(data=new["b"].data.map_blocks(fail, dtype="f8")))
        with dask.config.set(scheduler=scheduler):
            if how != "region":
                with pytest.raises(ArithmeticError):
                    to_zarr(failing, store, **options)
                xr.testing.assert_equal(open_dataset(store), before)
            to_zarr(new, store, **options)
        xr.testing.assert_equal(open_dataset(store), expected)
    assert {key.partition("/")[0] for key in store.list()} == {"a", "b", "zarr.json"}


def test_a_region_that_reads_itself_is_refused(tmp_path: Path) -> None:
    first = xr.Dataset({"a": ("x", np.arange(12.0)), "b": ("x", np.arange(12.0) + 100)})
    to_zarr(first, tmp_path, encoding={"a": {"chunks": (2,)}})
    lazy = open_dataset(tmp_path, chunks={"x": 5})
    part = xr.Dataset({"a": ("x", lazy["b"].data[::-1]), "b": ("x", lazy["a"].data[::-1])}).isel(x=slice(6))
    refused(tmp_path, part, "the same call overwrites", region={"x": slice(0, 6)})


@pytest.mark.parametrize("chunks", [None, {}])
def test_a_dataset_is_appended_to_itself(tmp_path: Path, chunks: Any) -> None:
    first = xr.Dataset({"a": ("x", np.arange(5.0))}, coords={"x": np.arange(5)})
    there = open_dataset(to_zarr(first, tmp_path, encoding={"a": {"chunks": (3,)}}).store, chunks=chunks)
    backwards = there.assign_coords(x=there["x"] + 5).isel(x=slice(None, None, -1))
    to_zarr(backwards, tmp_path, append_dim="x", check_labels=False)
    np.testing.assert_array_equal(open_dataset(tmp_path)["a"].values, [*range(5), *range(5)[::-1]])


@pytest.mark.parametrize("group", ["g", ""])
@pytest.mark.parametrize("how", ["xzarr3", "zarr", SimpleNamespace, deque])
def test_made_backwards_of_what_is_written(tmp_path: Path, how: Any, group: str) -> None:
    """As it was opened at another root, or as a function reads it from what it holds."""
    values = np.arange(12.0)
    to_zarr(xr.Dataset({"a": ("x", values)}), tmp_path, group=group, encoding={"a": {"chunks": (2,)}})
    array = xzarr3.open_array(tmp_path / group, "a")
    held = deque([array]) if how is deque else SimpleNamespace(array=array)

    def read(block: Any, block_info: Any = None) -> Any:
        begin, end = block_info[0]["array-location"][0]
        return (held[0] if how is deque else held.array)[12 - end : 12 - begin][::-1]

    if isinstance(how, str):
        there = xr.open_dataset(tmp_path / group, engine=how, chunks={}, consolidated=False)
        turned = there.isel(x=slice(None, None, -1))
        with pytest.raises(ValueError, match="compute=True"):
            to_zarr(turned, tmp_path, group=group, mode="r+", compute=False)
    else:
        turned = xr.Dataset({"a": ("x", dask.array.zeros(12, chunks=3).map_blocks(read, dtype=float))})
    to_zarr(turned, tmp_path, group=group, mode="r+")
    np.testing.assert_array_equal(open_dataset(tmp_path, group=group)["a"], values[::-1])
    assert sorted(os.listdir(tmp_path / group)) == ["a", "zarr.json"]


@pytest.mark.parametrize("how", ["append_dim", "unlimited_dims"])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_first_step_of_one_leaves_room(how: str, chunked: bool) -> None:
    store = MemoryStore()
    for n in range(3):
        values = {"v": (("time", "x"), np.full((1, 1000), float(n))), "s": ("x", np.arange(1000))}
        step = xr.Dataset(values, coords={"time": [n]})
        step.encoding = {how: {"time"}} if how == "unlimited_dims" else {}
        along = None if step.encoding and n == 0 else "time"
        to_zarr(step.chunk() if chunked else step, store, append_dim=along)
    group = xzarr3.open_group(store)
    assert {name: group[name].chunks for name in group} == {"v": (131, 1000), "time": (4096,), "s": (1000,)}
    np.testing.assert_array_equal(open_dataset(store)["v"].values[:, 0], [0, 1, 2])


def test_room_is_left_only_where_nobody_chose() -> None:
    made = xr.Dataset({"v": (("time", "x"), np.zeros((4, 10)))})
    made.encoding = {"unlimited_dims": ["time"]}
    for dataset, encoding, chunks in (
        (made, {"v": {"chunks": (1, 5)}}, (1, 5)), (made.chunk(time=2), {}, (2, 10)),
        (made.drop_encoding(), {}, (4, 10)),
    ):  # fmt: skip
        assert to_zarr(dataset, encoding=encoding)["v"].chunks == chunks


@pytest.mark.parametrize("there", [[0.5], np.array([0.5], "f4"), np.array([0.5], "f2")])
@pytest.mark.parametrize(("dtype", "fits", "lost", "read"), [
    ("i8", [0, -(2**10), 2**11], 2**62 + 1, "4611686018427387904"),
    ("i8", [], 2**63 - 1, "9223372036854775808"), ("u8", [2**11], 2**64 - 1, "18446744073709551616"),
    ("i8", [], -(2**53) - 1, "-9007199254740992"),
])  # fmt: skip
def test_integers_that_floats_would_round(there: Any, dtype: str, fits: Any, lost: int, read: str) -> None:
    store = stored(xr.Dataset({"v": ("x", there)}))
    to_zarr(xr.Dataset({"v": ("x", np.array(fits, dtype))}), store, append_dim="x")
    np.testing.assert_array_equal(open_dataset(store)["v"].values, [0.5, *fits])
    read = read if np.asarray(there).dtype == "f8" else ".*"
    new = xr.Dataset({"v": ("x", np.array([1, 2, lost], dtype))})
    refused(store, new, rf"value {lost} at index .* would be read as {read} from", append_dim="x")
    refused(MemoryStore(), new, f"value {lost} at index", encoding={"v": {"dtype": np.asarray(there).dtype}})


def test_times_beyond_nanoseconds_are_appended() -> None:
    store = stored(xr.Dataset({"v": ("x", np.array(["2000-01-01", "1000-01-01"], "M8[s]"))}))
    to_zarr(xr.Dataset({"v": ("x", np.array(["3000-01-01"], "M8[us]"))}), store, append_dim="x")
    seconds = xr.coders.CFDatetimeCoder(time_unit="s")
    found = xr.open_dataset(store, engine="xzarr3", decode_times=seconds)["v"]  # type: ignore[arg-type]
    assert found.values.astype("M8[Y]").astype(str).tolist() == ["2000", "1000", "3000"]


@pytest.mark.parametrize("mode", [slow("a"), slow("a-"), None])
@pytest.mark.parametrize("values", [[1.0, 0.0], [0.0, 1.5], [0.0, np.nan]])
def test_an_append_has_the_coordinates_that_are_there(tmp_path: Path, mode: Any, values: list[float]) -> None:
    """The store has one coordinate for old and new values; another one would move the old ones."""
    first = xr.Dataset({"v": (("time", "x"), np.ones((2, 2)))}, coords={"time": [0, 1], "x": [0.0, 1.0]})
    to_zarr(first, tmp_path)
    more: Any = first.assign_coords(time=[2, 3])
    message = "coordinates 'x' have other values"
    refused(tmp_path, more.assign_coords(x=values), message, mode=mode, append_dim="time")
    for start, near in ((2, [0.0, 1.0]), (4, [1e-9, 1.0]), (6, [4e-4, 1.0]), (8, None)):
        more = more.assign_coords(time=[start, start + 1])
        more = more.drop_vars("x") if near is None else more.assign_coords(x=near)
        to_zarr(more, tmp_path, mode=mode, append_dim="time")
    assert xzarr3.open_array(tmp_path, "v").shape == (10, 2)
    assert xzarr3.open_array(tmp_path, "x")[:].tolist() == [0.0, 1.0]


def test_a_region_is_not_found_without_a_coordinate(tmp_path: Path) -> None:
    """xarray takes it for the first elements, and writes over these."""
    data = xr.Dataset({"v": ("time", np.arange(10.0))}, coords={"time": np.arange(10)})
    to_zarr(data, tmp_path)
    part = data.isel(time=slice(5, 8)).drop_vars("time") + 50
    for region in ("auto", {"time": "auto"}):
        refused(tmp_path, part, "'time' has 3 here and 10 in the region; add the coordinate", region=region)
    to_zarr(data.drop_vars("time") + 1, tmp_path, region="auto")
    np.testing.assert_array_equal(xzarr3.open_array(tmp_path, "v")[...], np.arange(1, 11.0))


def packed(scale: float = 0.5, fill: int = -9) -> tuple[xr.Dataset, dict[str, Any]]:
    values = np.array([0.0, 1.0, 2.0, np.nan]) * scale
    data = xr.Dataset({"v": ("x", values, {"title": "of the first"}), "whole": ("x", np.arange(4))})
    coding = {"dtype": "int16", "scale_factor": scale, "_FillValue": fill, "chunks": (2,)}
    return data, {"v": coding, "whole": {"chunks": (2,)}}


CHANGES: dict[str, Any] = {
    "scale": lambda place, zarr_format: again(place, zarr_format, scale=0.25),
    "fill value": lambda place, zarr_format: again(place, zarr_format, fill=-5),
    "attribute": lambda place, _: xzarr3.open_array(place, "v", mode="r+").attrs.update(add_offset=100.0),
    "gone": lambda place, _: xzarr3.open_array(place, "v", mode="r+").attrs.pop("scale_factor"),
    "zarr-python": lambda place, _: (
        pytest.importorskip("zarr").open_array(place, path="v", mode="r+").attrs.update(scale_factor=2.0)
    ),
}


def again(place: Any, zarr_format: Any, **packing: Any) -> None:
    data, encoding = packed(**packing)
    to_zarr(data, place, mode="w", encoding=encoding, zarr_format=zarr_format)


@pytest.mark.parametrize(
    ("kind", "change"), [("local", "zarr-python"), *product(("local", "memory", "fsspec"), [*CHANGES][:-1])]
)
@pytest.mark.parametrize("chunks", [None, slow({})])
@pytest.mark.parametrize("zarr_format", [slow(2), 3])
def test_changed_attributes(tmp_path: Path, kind: str, zarr_format: Any, chunks: Any, change: Any) -> None:
    url = f"memory://{tmp_path.name}-{zarr_format}-{chunks is None}-{change}.zarr"
    place: Any = {"local": tmp_path / "a", "memory": MemoryStore(), "fsspec": url}[kind]
    again(place, zarr_format)
    old = opened(place, chunks=chunks, consolidated=False)
    sent = pickle.dumps(old)
    read = pickle.loads(sent)
    np.testing.assert_array_equal(read["v"].isel(x=slice(0, 2)), packed()[0]["v"][:2])
    CHANGES[change](place, zarr_format)
    for found in (old, read, pickle.loads(sent), old.isel(x=slice(1, 4)), old.chunk(x=1)):
        with pytest.raises(ChangedError, match=r"'/v' of .* replaced since it was opened.*; open it again"):
            found["v"].compute()
    if change in ("scale", "fill value"):  # Everything is replaced.
        with pytest.raises(ChangedError, match=r"'/whole' of .* replaced since it was opened"):
            old["whole"].compute()
    else:
        assert old["whole"].values.tolist() == [0, 1, 2, 3]
    assert open_dataset(place, consolidated=False)["v"].compute().shape == (4,)


def bounded(*dates: str, hours: int = 24) -> xr.Dataset:
    """Times with bounds that have no units of their own once they are stored, as netCDF has it."""
    days = np.array(dates, "M8[ns]")
    edges = np.stack([days, days + np.timedelta64(hours, "h")], axis=1)
    return xr.Dataset({"at": ("time", days, {"bounds": "at_bnds"}), "at_bnds": (("time", "nv"), edges)})


@pytest.mark.parametrize("chunks", [None, {}])
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("kind", [MemoryStore, WaitingStore])
@pytest.mark.parametrize("is_widened", [False, True])
def test_bounds_in_changed_units(is_widened: bool, kind: Any, zarr_format: Any, chunks: Any) -> None:
    store, data, more = kind(), bounded("2000-01-01", "2000-01-02"), bounded("2000-01-03", hours=6)
    encoding = {"at": {**DAYS, "chunks": (1,)}, "at_bnds": {**DAYS, "chunks": (1, 2)}}
    to_zarr(data, store, encoding=encoding, zarr_format=zarr_format)
    for key in ("units", "calendar"):
        xzarr3.open_array(store, "at_bnds", mode="r+").attrs.pop(key, None)
    old = opened(store, chunks=chunks, consolidated=False)
    xr.testing.assert_equal(old["at_bnds"].copy().compute(), data["at_bnds"])
    old = opened(store, chunks=chunks, consolidated=False)
    name = open_dataset(store)["at_bnds"].data.name
    if is_widened:
        with pytest.raises(ValueError, match=r"at_bnds.*widen_units"):
            to_zarr(more, store, append_dim="time")
        to_zarr(more, store, append_dim="time", widen_units=True)
        xr.testing.assert_equal(open_dataset(store).load(), xr.concat([data, more], "time"))
    else:
        xzarr3.open_array(store, "at", mode="r+").attrs["units"] = "hours since 2000-01-01"
    for found in (old, pickle.loads(pickle.dumps(old))):
        for node in ("at", "at_bnds"):
            with pytest.raises(ChangedError, match=r"'/at(_bnds)?' of .*'units' is 'hours"):
                found[node].compute()
    assert open_dataset(store)["at_bnds"].data.name != name


@pytest.mark.parametrize("chunks", [None, {}])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_an_earlier_dataset_is_read_after_an_append(tmp_path: Path, zarr_format: Any, chunks: Any) -> None:
    again(tmp_path, zarr_format)
    old, data = opened(tmp_path, chunks=chunks), packed()[0]
    sent = pickle.dumps(old)
    to_zarr(data + 1, tmp_path, append_dim="x")
    array = xzarr3.open_array(tmp_path, "v", mode="r+")
    array.attrs.update(history="made again", title="of the second")
    array[0] = 2  # Stored as it is, 1.0.
    for found in (old, pickle.loads(sent)):
        np.testing.assert_array_equal(found["v"], [1.0, *data["v"].values[1:]])


def test_looking_whether_attributes_have_changed_costs_one_look_for_many_chunks() -> None:
    store, data = WaitingStore(0.0), xr.Dataset({"v": ("x", np.arange(1.0, 65.0))})
    for zarr_format, documents in ((3, ["v/zarr.json"]), (2, ["v/.zarray", "v/.zattrs"])):
        encoding = {"v": {"chunks": (1,), "dtype": "int16", "scale_factor": 0.5}}
        to_zarr(data, store, encoding=encoding, mode="w", zarr_format=zarr_format)
        old = pickle.loads(pickle.dumps(opened(store, chunks={})))
        with store.counted() as count:
            old["v"].compute()
        looked_at = [key for _, key in count.requests if "/c/" not in key and not key[-1].isdigit()]
        assert sorted(looked_at) == documents


@pytest.mark.parametrize("region", ["auto", {"x": slice(1, 3)}])
def test_a_region_is_packed_as_the_document_says_and_not_an_outdated_copy(region: Any) -> None:
    whole = xr.Dataset({"v": ("x", np.array([1.5, 2.5, 3.5, 4.5]))}, {"x": [10, 20, 30, 40]})
    store = stored(whole, v={"dtype": "i2", "scale_factor": 0.5})
    edit(store, "v/zarr.json", attributes={"scale_factor": 0.25})  # It leaves the copy as it is.
    to_zarr(whole.isel(x=slice(1, 3)), store, mode="r+", region=region)
    assert open_dataset(store, consolidated=False).v.values.tolist() == [0.75, 2.5, 3.5, 2.25]


def test_to_zarr_append_refuses_variables_of_several_lengths() -> None:
    store = stored(xr.Dataset({"a": ("t", [1, 2]), "b": ("t", [1, 2])}))
    more = xr.Dataset({"a": ("t", [3]), "b": ("t", [3])})
    xzarr3.open_array(store, "a", mode="r+").resize(3)
    with pytest.raises(ConflictError, match=r"its documents now, or was interrupted.*make them 2 long"):
        to_zarr(more, store, append_dim="t")
    xzarr3.open_array(store, "b", mode="r+").resize(3)
    to_zarr(more, store, append_dim="t")
    assert open_dataset(store).sizes["t"] == 4


def steps(start: int, n: int = 2, area: float = 1.0, *, lazily: bool = False) -> xr.Dataset:
    """Daily steps of a field, and the areas of its cells."""
    days = pd.date_range("2000-01-01", periods=start + n)[start:]
    data = {"v": (("time", "x"), np.full((n, 3), start)), "area": ("x", np.full(3, area))}
    made = xr.Dataset(data, coords={"time": days, "x": [0.0, 1.0, 2.0]})
    return made.chunk(time=1, x=2) if lazily else made


@pytest.mark.parametrize("lazily", [False, True])
def test_to_zarr_append_refuses_other_values_of_what_does_not_grow(lazily: bool) -> None:
    store, more = NotingStore(), steps(2, lazily=lazily).assign(ref=7)
    to_zarr(steps(0).assign(ref=7), store, encoding={"area": {"chunks": (2,)}})
    other = more.assign(area=more["area"] * xr.DataArray([1.0, 1.0, 9.0], dims="x"))
    message = r"'area' at \[2\] is 9\.0 here and 1\.0 in the store(.|\n)*\.drop_vars\(\['area'\]\)"
    refused(store, other, message, append_dim="time")
    store.changes.clear()
    to_zarr(more, store, append_dim="time")
    np.testing.assert_array_equal(open_dataset(store)["v"][:, 0], [0, 0, 2, 2])
    assert not [key for key in store.changes if key.split("/")[0] in ("area", "x", "ref")]


@pytest.mark.parametrize("lazily", [False, True])
def test_to_zarr_append_stores_what_does_not_grow_only_with_mode_a(lazily: bool) -> None:
    store = to_zarr(steps(0)).store
    for start, mode, area in ((2, "a-", 1), (4, "a", 9)):
        to_zarr(steps(start, area=9, lazily=lazily), store, append_dim="time", mode=mode)
        assert open_dataset(store)["area"].values.tolist() == [area] * 3


THIRDS = np.array([1 / 3, math.nan, 2 / 3, 1.0])
TENTHS = np.array([0.001, math.nan, 0.003, 0.007], "f4")
DATES = np.array(["2000-01-01", "NaT", "2000-01-03", "2000-01-04"], "M8[ns]")
RECORDS = np.array([(1, math.nan), (2, 1.0), (3, 1.0), (4, 1.0)], "i4,f8")
BITROUND = {"name": "bitround", "configuration": {"keepbits": 4}}
KEPT: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "packed": (THIRDS, 0.7, {"dtype": "i2", "scale_factor": 0.01, "_FillValue": -9}),
    "packed floats": (TENTHS, 0.003001, {"dtype": "f4", "scale_factor": 0.01}),
    "single": (THIRDS, 0.667, {"dtype": "f4"}),
    "rounded by a codec": (THIRDS, 0.8, {"filters": [BITROUND]}),
    "times": (DATES, np.datetime64("2000-01-02", "ns"), {"units": "days since 1990-01-01"}),
    "text": (np.array(["a", "b", "c", "d"]), "C", {}),
    "truth": (np.array([True, False, True, True]), False, {}),
    "records": (RECORDS, (3, 2.0), {}),
}
"""Values, what the third one is in another dataset, and how they are encoded."""


@pytest.mark.parametrize(
    ("kind", "zarr_format"), [*product(KEPT, [3]), *product(("packed", "times", "text", "truth"), [2])]
)
def test_to_zarr_append_compares_values_as_they_are_stored(kind: str, zarr_format: Any) -> None:
    values, third, encoding = KEPT[kind]
    others, store = values.copy(), MemoryStore()
    others[2] = third
    first = xr.Dataset({"n": ("time", [0]), "kept": ("x", values)})
    to_zarr(first, store, encoding={"kept": {"chunks": (3,), **encoding}}, zarr_format=zarr_format)
    message = r"'kept' at \[2\] is .* here and .* in the store"
    refused(store, first.assign(kept=("x", others)), message, append_dim="time")
    again = open_dataset(store).isel(time=[0]).load()
    for dataset in (first, first.chunk(x=2), again, again.chunk(x=2)):
        to_zarr(dataset, store, append_dim="time")
    assert xzarr3.open_array(store, "n").shape == (5,)


def test_to_zarr_append_never_widens_what_does_not_grow() -> None:
    day = np.datetime64("2000-01-05", "ns")
    first, later = (xr.Dataset({"n": ("t", [0]), "ref": day + np.timedelta64(n, "h")}) for n in (0, 6))
    message = r"times of variable 'ref'.*give the values that are stored"
    refused(stored(first, ref=DAYS), later, message, append_dim="t", widen_units=True)


NOLEAP = [cftime.DatetimeNoLeap(2000, 2, day) for day in range(1, 29)]
HOURS = np.array([1, 2], "m8[h]").astype("m8[ns]")
TWO_DAYS = np.array(["2000-01-02", "2000-01-03"], "M8[ns]")
LABELS: dict[str, tuple[Any, Any, str, str]] = {
    "the same again": ([1, 2], [1, 2], "label 1 .* there twice", "is 2;"),
    "one of them": ([1.5, 2.5], [3.5, 1.5], r"label 1\.5 .*element 1 .* there twice", r"is 2\.5;"),
    "twice in the dataset": ([1, 2], [3, 4, 4], "label 4 .*element 2 .* there twice", "is 2;"),
    "back": ([1, 3], [2], "label 2 .* would follow 3, though the labels increase", "is 3;"),
    "back within the dataset": ([1, 3], [5, 4], "label 4 .* would follow 5", "is 3;"),
    "forth where they decrease": ([3, 1], [2], "would follow 1, though the labels decrease", "is 1;"),
    "turning after one": ([1], [0, 2], "label 2 .* would follow 0, though the labels decrease", "is 1;"),
    "times": (TWO_DAYS, np.array(["2000-01-01"], "M8[s]"), "label 2000-01-01 of .* would follow 2000-01-03",
        "is 2000-01-03;"),
    "other calendars": (NOLEAP[3:5], NOLEAP[4:6], "label 2000-02-05 .* there twice", "is 2000-02-05"),
    "lengths of time": (HOURS, HOURS[1:], "label 0 days 02:00:00 .* there twice", "is 0 days 02:00:00;"),
    "text": (["a", "b"], ["c", "b"], "label 'b' .* there twice", "is 'b';"),
}  # fmt: skip


@pytest.mark.parametrize("zarr_format", [3, slow(2)])
@pytest.mark.parametrize("case", LABELS)
def test_to_zarr_append_refuses_labels_that_repeat_or_go_back(case: str, zarr_format: Any) -> None:
    there, new, reason, last = LABELS[case]

    def labelled(labels: Any) -> xr.Dataset:
        return xr.Dataset({"v": ("t", np.arange(len(labels)))}, coords={"t": labels})

    store = to_zarr(labelled(there), zarr_format=zarr_format).store
    refused(store, labelled(new), f"{reason}.* the last label in '/t' .*{last}", append_dim="t")
    to_zarr(labelled(new), store, append_dim="t", check_labels=False)
    expected = xr.concat([labelled(there), labelled(new)], "t")["t"]
    np.testing.assert_array_equal(open_dataset(store)["t"], expected)


@pytest.mark.parametrize(("there", "new"), [
    ([1, 2], [3]), ([3, 2], [1, 0]), ([1], [0]), ([], [2, 1, 2]), ([1, 3, 2], [0, 9]),
    ([1, 0, 1], [2, 0]), ([1.0, math.nan], [0.5]),
])  # fmt: skip
def test_to_zarr_append_accepts_labels_of_no_order_that_is_lost(there: list[Any], new: list[Any]) -> None:
    first, second = (xr.Dataset(coords={"x": np.array(labels, "f8")}) for labels in (there, new))
    np.testing.assert_array_equal(to_zarr(second, to_zarr(first).store, append_dim="x")["x"], [*there, *new])


def test_to_zarr_append_checks_labels_in_widened_units() -> None:
    store = stored(steps(0, 3), time=DAYS)
    back = steps(2, 1).assign_coords(time=[np.datetime64("2000-01-02T06:00", "ns")])
    message = r"label 2000-01-02T06:00 of .* would follow 2000-01-03"
    refused(store, back, message, append_dim="time", widen_units=True)
    to_zarr(back, store, append_dim="time", widen_units=True, check_labels=False)
    assert open_dataset(store)["time"].values[3] == back["time"].values[0]


def test_to_zarr_region_refuses_labels_of_other_places(tmp_path: Path) -> None:
    to_zarr(steps(0, 4), tmp_path)
    part, region = steps(10)[["v"]].drop_vars("x"), {"time": slice(1, 3)}
    message = r"'time' at \[1\] is 2000-01-11 here and 2000-01-02 in the store.*region="
    refused(tmp_path, part, message, region=region)
    to_zarr(part.assign_coords(time=steps(1)["time"]), tmp_path, region=region)
    assert open_dataset(tmp_path)["v"][:, 0].values.tolist() == [0, 10, 10, 0]
    to_zarr(part + 1, tmp_path, region=region, check_labels=False)
    found = open_dataset(tmp_path)
    assert found["v"][:, 0].values.tolist() == [0, 11, 11, 0]
    np.testing.assert_array_equal(found["time"], steps(0, 4)["time"])


@pytest.mark.parametrize(("dtype", "stored"), [("f8", "f8"), ("i8", "i8"), ("M8[ns]", "i8")])
def test_to_zarr_region_writes_labels_that_are_unwritten(dtype: str, stored: str) -> None:
    labels = np.arange(10, 16).astype("i8").view("M8[ns]" if dtype[0] == "M" else "i8").astype(dtype)
    store = to_zarr(xr.Dataset({"v": ("x", np.zeros(6))})).store
    attributes = {"units": "nanoseconds since 1970-01-01"} if dtype[0] == "M" else {}
    options: dict[str, Any] = {"dimension_names": ["x"], "attributes": attributes, "dtype": stored}
    xzarr3.create_array(store, "x", shape=6, fill_value=math.nan if stored == "f8" else 0, **options)
    xzarr3.consolidate_metadata(store)
    for start in (0, 2, 4):
        part = xr.Dataset({"v": ("x", np.ones(2))}, coords={"x": labels[start : start + 2]})
        to_zarr(part, store, region={"x": slice(start, start + 2)})
    np.testing.assert_array_equal(open_dataset(store)["x"].values, labels)
    refused(store, part, r"'x' at \[2\]", region={"x": slice(2, 4)})


@pytest.mark.parametrize("how", [{"append_dim": "x"}, {"region": {"x": slice(0, 2)}}])
@pytest.mark.parametrize(("there", "new"), [
    ({"units": "K"}, {"units": "degC"}), ({"units": "1", "calendar": "a"}, {"calendar": "b"}),
    ({}, {"scale_factor": 0.1}), ({}, {"_FillValue": -1.0}),
])  # fmt: skip
def test_to_zarr_refuses_other_units(there: dict[str, Any], new: dict[str, Any], how: Any) -> None:
    store = to_zarr(xr.Dataset({"v": ("x", [1.0, 2.0], {**there, "long_name": "a"})})).store
    (key, value) = next(iter(new.items()))
    message = f"'v' has the (attribute )?{key} {value!r} here and"
    refused(store, xr.Dataset({"v": ("x", [3.0, 4.0], new)}), message, **how)
    same = {"units": there["units"]} if "units" in there else {}
    to_zarr(xr.Dataset({"v": ("x", [3.0, 4.0], {**same, "long_name": "b", "history": "c"})}), store, **how)
    assert open_dataset(store)["v"].values[-2:].tolist() == [3, 4]
