"""Datasets and trees as users of xarray have them, made by code: what the tests of xarray read and write.

Everything is small, and every dataset differs from the others in what has to be encoded, not in its values.
"""

from collections.abc import Callable
from typing import Any

import cftime
import numpy as np
import pandas as pd
import xarray as xr

Made = Callable[[], xr.Dataset]


def _random(seed: int, *shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).random(shape)


def packed() -> xr.Dataset:
    """Air temperature as packed 16 bit integers with missing values, one chunk of them throughout."""
    values = (250 + 50 * _random(1, 30, 12, 10)).round(2)
    values[3, 4] = values[0:8, 0:6, 0:5] = np.nan
    tas = ("time", "lat", "lon"), values, {"units": "K", "standard_name": "air_temperature"}
    ds = xr.Dataset({"tas": tas}, {
        "time": pd.date_range("2001-01-01", periods=30),
        "lat": ("lat", np.linspace(-55, 55, 12), {"units": "degrees_north", "bounds": "lat_bnds"}),
        "lon": ("lon", np.arange(10) * 36.0, {"units": "degrees_east"}),
        "lat_bnds": (("lat", "bnds"), np.linspace(-60, 60, 24).reshape(12, 2)),
        "height": ((), 2.0, {"units": "m", "positive": "up"}),
    }, {"Conventions": "CF-1.8", "title": "packed", "history": ["one", "two"]})  # fmt: skip
    ds["tas"].encoding = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 273.15, "chunks": (8, 6, 5)}
    ds["tas"].encoding["_FillValue"] = np.int16(-32767)
    ds["time"].encoding = {"units": "hours since 1900-01-01", "calendar": "standard", "dtype": "int32"}
    return ds


def calendars() -> xr.Dataset:
    """Time axes in several calendars, with bounds, and lengths of time."""
    variables: dict[str, object] = {}
    for calendar in ("noleap", "360_day", "julian", "standard"):
        times = xr.date_range("1999-12-15", periods=6, freq="MS", calendar=calendar, use_cftime=True)
        variables[f"time_{calendar}"] = ((f"time_{calendar}",), times)
        variables[f"on_{calendar}"] = ((f"time_{calendar}",), np.arange(6.0, dtype="f4"))
    ds = xr.Dataset(variables)
    ds["time_noleap"].encoding = {"units": "days since 1850-01-01", "calendar": "noleap", "dtype": "float64"}
    ds["time_noleap"].attrs["bounds"] = "time_bnds"
    bounds = [[cftime.DatetimeNoLeap(2000, m, 1), cftime.DatetimeNoLeap(2000, m + 1, 1)] for m in range(1, 7)]
    ds["time_bnds"] = (("time_noleap", "bnds"), np.array(bounds))
    ds["time_bnds"].encoding = dict(ds["time_noleap"].encoding)
    ds["age"] = (("sample",), pd.to_timedelta([1, 5, 36], unit="h"))
    ds["stamp"] = (("sample",), np.array(["2020-01-01T00:00:01", "NaT", "1999-12-31"], dtype="M8[ns]"))
    return ds


def kinds() -> xr.Dataset:
    """Every core data type, the ends of what they hold, 0-d variables, fill values of all sorts."""
    rng = np.random.default_rng(2)
    variables: dict[str, object] = {}
    for dtype in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16", "?"):
        variables[f"v_{np.dtype(dtype).name}"] = (("x",), rng.integers(0, 2, 7).astype(dtype))
    variables |= {
        "scalar": ((), np.float32(2.5)), "integer_scalar": ((), np.int64(-3)),
        "nothing": (("x", "none"), np.zeros((7, 0))), "big_endian": (("x",), np.arange(7.0).astype(">f8")),
        "big_integer": ("n", np.array([1, -2, 3, 2**31 - 1], ">i4")),
        "half": ("n", np.array([0.1, np.inf, np.nan, -65504], "f2")),
        "complex": ("n", np.array([1j, -1, np.inf, 2 - 3j], "c16")),
        "unsigned": ("n", np.array([0, 1, 2**63, 2**64 - 1], "u8")),
        "signed": ("n", np.array([-(2**63), 0, 1, 2**63 - 1], "i8")),
        "negative_zero": ("n", np.array([-0.0, 0.0, np.nan, np.inf])),
        "marked": ("n", np.array([1.5, np.nan, -9999.5, 0])),
    }  # fmt: skip
    attrs = {"number": 1, "text": "x", "list": [1, 2.5], "nested": {"a": [1, {"b": "c"}]}}
    ds = xr.Dataset(variables, coords={"n": np.array([4, 3, 2, 1], ">i2")}, attrs=attrs)
    ds["v_float32"].attrs["_FillValue"] = np.float32(1)  # Values that equal an attribute are missing ones.
    ds["v_float64"].encoding["_FillValue"] = None
    ds["v_int32"].attrs["_FillValue"] = 1
    ds["v_uint8"].attrs["missing_value"] = np.uint8(0)
    ds["v_int16"].encoding["fill_value"] = 7
    ds["marked"].encoding = {"_FillValue": -9999.0, "missing_value": -9999.0}
    return ds


def curvilinear() -> xr.Dataset:
    """A curvilinear grid with auxiliary coordinates and variables that refer to others, in shards."""
    tos = _random(3, 6, 20, 24).astype("f4")
    ds = xr.Dataset({
        "tos": (("time", "j", "i"), tos, {"grid_mapping": "crs"}),
        "area": (("j", "i"), _random(4, 20, 24), {"cell_measures": "area: area"}),
        "crs": ((), np.int32(0), {"grid_mapping_name": "rotated_latitude_longitude"}),
        "mask": (("j", "i"), tos[0] > 0.5),
    }, {
        "time": xr.date_range("2000-01-01", periods=6, freq="MS"),
        "lat": (("j", "i"), _random(5, 20, 24)), "lon": (("j", "i"), _random(6, 20, 24)),
        "region": ((), np.int16(4)),
    })  # fmt: skip
    ds["tos"].encoding = {"chunks": (2, 5, 6), "shards": (6, 10, 12), "coordinates": "lat lon"}
    ds["area"].encoding = {"chunks": (5, 24), "shards": (20, 24), "_FillValue": np.float64(1e20)}
    return ds


def bare() -> xr.Dataset:
    """Dimensions without coordinates and variables without attributes."""
    return xr.Dataset({"a": (("x", "y"), np.arange(12).reshape(3, 4)), "b": (("y",), np.arange(4.0))})


def texts() -> xr.Dataset:
    """Text and bytes: of any length and of fixed ones, empty ones, beyond ASCII, missing, 0-d."""
    words = np.array(["a", "", "größe", "日本語", "😀"], object)
    missing = words.copy()
    missing[1], missing[3] = None, np.nan
    ds = xr.Dataset({
        "of_any_length": ("station", words),
        "strings": ("station", words.astype(np.dtypes.StringDType())),
        "missing": ("station", missing),
        "fixed": ("station", words.astype("U"), {"long_name": "of 5 characters"}),
        "bytes": ("station", np.array([b"a", b"", b"bcd", b"\xff\x01", b"x y"])),
        "bytes_of_any_length": ("station", np.array([b"a", b"", b"bcd", b"\xff", b"x y"], object)),
        "table": (("station", "column"), np.array([["a", "bb"]] * 5, object), {"note": "é"}),
        "scalar": ((), np.array("text", object)), "fixed_scalar": ((), "text"),
        "none": ("nothing", np.array([], "U4")),
    }, {"station": list("abcde"), "kind": ("station", words, {"cf_role": "timeseries_id"})})  # fmt: skip
    ds["missing"].encoding["missing_value"] = "NA"
    return ds


def records() -> xr.Dataset:
    """Structures, raw bytes, and values that are stored in another byte order in version 2."""
    record = np.dtype([("id", "<i4"), ("name", "S3"), ("at", "<f8", ())])
    return xr.Dataset({
        "records": ("x", np.array([(1, b"ab", 0.5), (2, b"", np.inf), (3, b"xyz", -1)], record)),
        "raw": ("x", np.array([b"\0\1", b"ab", b"\xff\xff"], "V2")),
        "big_endian": ("x", np.arange(3, dtype=">i4")), "spans": ("x", np.array([1, -5, "NaT"], "m8[s]")),
        "scalar": ((), np.array((1, b"ab", 0.5), record)),
    })  # fmt: skip


def cmip_noleap() -> xr.Dataset:
    """A variable of a climate model as it is published: packed, in a calendar without leap days, bounds."""
    options: dict[str, Any] = {"freq": "30D", "calendar": "noleap", "use_cftime": True}
    months = xr.date_range("2000-01-16", periods=9, **options)
    ends = xr.date_range("2000-01-01", periods=10, **options)
    lat, lon = np.linspace(-75, 75, 6), np.arange(8) * 45.0
    values = (230 + 80 * _random(1, 9, 6, 8)).round(1)
    values[:, 0, :3] = np.nan
    tas = {"standard_name": "air_temperature", "units": "K", "cell_methods": "area: time: mean"}
    ds = xr.Dataset({
        "tas": (("time", "lat", "lon"), values, {**tas, "cell_measures": "area: areacella"}),
        "time_bnds": (("time", "bnds"), np.stack([ends[:-1], ends[1:]], axis=1)),
        "lat_bnds": (("lat", "bnds"), np.stack([lat - 15, lat + 15], axis=1)),
        "lon_bnds": (("lon", "bnds"), np.stack([lon - 22.5, lon + 22.5], axis=1)),
    }, {
        "time": ("time", months, {"axis": "T", "standard_name": "time", "bounds": "time_bnds"}),
        "lat": ("lat", lat, {"units": "degrees_north", "axis": "Y", "bounds": "lat_bnds"}),
        "lon": ("lon", lon, {"units": "degrees_east", "axis": "X", "bounds": "lon_bnds"}),
        "height": ((), 2.0, {"units": "m", "axis": "Z", "positive": "up"}),
    }, {"Conventions": "CF-1.11", "tracking_id": "hdl:21/x", "realization_index": np.int32(1)})  # fmt: skip
    ds["tas"].encoding = {"dtype": "int16", "chunks": (4, 3, 8), "_FillValue": np.int16(-32768)}
    ds["tas"].encoding |= {"scale_factor": 0.01, "add_offset": 270.0}
    ds["time"].encoding = {"units": "days since 1850-01-01", "calendar": "noleap", "dtype": "float64"}
    ds["time_bnds"].encoding = dict(ds["time"].encoding)
    ds.encoding["unlimited_dims"] = {"time"}
    return ds


def flags() -> xr.Dataset:
    """Booleans and masks with what their values mean, and bytes that are to be taken for unsigned ones."""
    rng = np.random.default_rng(9)
    meanings = {"flag_meanings": "good bad missing", "flag_values": np.array([0, 1, 2], "i1")}
    masks = {"flag_meanings": "cloud snow", "flag_masks": np.array([1, 2], "u1"), "valid_range": [0, 3]}
    ds = xr.Dataset({
        "land": (("y", "x"), rng.random((6, 5)) > 0.5, {"flag_meanings": "sea land"}),
        "quality": (("y", "x"), rng.integers(0, 3, (6, 5), "i1"), meanings),
        "bits": (("y", "x"), rng.integers(0, 4, (6, 5), "u1"), masks),
        "unsigned": (("y", "x"), np.float32(220) + np.arange(30, dtype="f4").reshape(6, 5) * 4),
        "on": ((), np.bool_(True)),
    }, {"y": np.arange(6.0)[::-1], "x": np.arange(5), "inside": ("x", np.arange(5) % 2 == 0)})  # fmt: skip
    ds["quality"].encoding = {"_FillValue": np.int8(-1)}
    ds["land"].encoding = {"chunks": (4, 3)}
    ds["unsigned"].encoding = {"dtype": "int8", "_FillValue": np.int8(-1), "_Unsigned": "true"}
    ds["unsigned"].encoding |= {"scale_factor": np.float32(0.5), "add_offset": np.float32(220)}
    return ds


def forecast() -> xr.Dataset:
    """Lengths of time as a coordinate, dates in two dimensions, and coordinates without a dimension."""
    steps = np.array([0, 6, 12, 24], "m8[h]").astype("m8[ns]")
    runs = np.array(["2020-02-28", "2020-02-29T12", "2020-03-01"], "M8[ns]")
    ds = xr.Dataset({
        "gust": (("run", "step"), _random(10, 3, 4), {"units": "m s-1"}),
        "delay": ("run", np.array([90, "NaT", 1], "m8[s]")),
        "issued": ("run", np.array(["2020-02-28T01:00:00.125", "NaT", "1969-01-01"], "M8[ns]")),
        "day": ("run", np.array(["2020-02-28", "2020-02-29", "2020-03-01"], "M8[D]")),
        "far": ("run", np.array(["0001-01-01", "1500-06-30", "9999-12-31"], "M8[s]")),
    }, {
        "run": runs, "step": steps, "valid_time": (("run", "step"), runs[:, None] + steps),
        "reference": ((), np.datetime64("2020-01-01", "ns")),
        "lead": ((), np.timedelta64(3, "h").astype("m8[ns]")), "model": ((), "ifs"),
    })  # fmt: skip
    ds["step"].encoding = {"units": "hours", "dtype": "int32"}
    ds["valid_time"].encoding = {"units": "minutes since 2020-01-01", "dtype": "int64"}
    return ds


def shapes() -> xr.Dataset:
    """No dimension, none of any length, and lengths of one."""
    coords = {"a": [7], "at": ((), 0), "none": np.zeros(0), "c": ["x", "y"], "when": ((), pd.Timestamp(0))}
    return xr.Dataset({
        "scalar": ((), 1.5), "one": (("a", "b"), np.ones((1, 1))),
        "empty": (("none", "a"), np.zeros((0, 1), "f4")),
        "empty_text": ("none", np.array([], object).astype("U1")),
        "empty_times": ("none", np.array([], "M8[ns]")),
        "cube": (("a", "c", "d", "e", "f"), _random(13, 1, 2, 3, 2, 2)),
    }, coords)  # fmt: skip


def empty() -> xr.Dataset:
    """Attributes, and nothing else."""
    return xr.Dataset(attrs={"title": "nothing"})


def attributes() -> xr.Dataset:
    """Attributes of all kinds that JSON can hold."""
    attrs = {
        "text": 'größer ≥ 1 µm\n"quoted" \\ 😀', "empty": "", "integer": 3, "large": 2**53 + 1, "float": 0.1,
        "flag": True, "nothing": None, "list": [1, 2.5, "x", None, [True]], "tuple": (1, 2),
        "mapping": {"a": {"b": [1, {"c": "d"}]}, "": ""}, "numpy_integer": np.int16(4),
        "numpy_float": np.float64(0.25), "numpy_array": np.array([1, 2, 3], "i2"),
        "numpy_text": np.array(["a", "bc"]), "numpy_flag": np.bool_(True), "table": np.ones((2, 3), "i1"),
    }  # fmt: skip
    ds = xr.Dataset({"a": ("x", [1.0, 2.0], attrs)}, coords={"x": ("x", [0, 1], attrs)}, attrs=attrs)
    ds["a"].attrs |= {"units": "1", "scale": 0.5, "coordinates_of": "x", "valid_min": np.float32(0.5)}
    return ds


def named() -> xr.Dataset:
    """Names with spaces, signs and letters of all scripts."""
    return xr.Dataset({
        "air temperature (2 m)": (("länge", "dim 2"), _random(15, 2, 3)), "100%": ((), 5),
        "Ω→λ": ("dim 2", np.arange(3), {"größe": "naïve"}), "日本": ((), 1), "a.b": ("länge", [1, 2]),
        "UPPER": ("länge", [1, 2]), "upper": ("länge", [3.0, 4.0]), "_hidden": ("länge", [1, 2]),
    }, {"länge": [1.0, 2.0], "dim 2": ["x y", "z", ""]})  # fmt: skip


def sharded() -> xr.Dataset:
    """Shards of several chunks, that end where the array does and beyond it, packed ones as well."""
    times = pd.date_range("2000", periods=24, freq="D")
    ds = xr.Dataset({
        "even": (("time", "y", "x"), _random(16, 24, 8, 8).astype("f4")),
        "odd": (("time", "y"), _random(17, 24, 8)),
        "packed": (("time", "x"), (_random(18, 24, 8) * 10).round(1)),
        "text": ("x", np.array(list("abcdefgh"), object)),
    }, {"time": times, "y": np.arange(8.0), "x": np.arange(8)})  # fmt: skip
    ds["even"].encoding = {"chunks": (4, 4, 4), "shards": (12, 8, 8)}
    ds["odd"].encoding = {"chunks": (5, 3), "shards": (10, 6), "_FillValue": -1.0}
    ds["packed"].encoding = {"dtype": "int16", "scale_factor": 0.1, "_FillValue": np.int16(-1)}
    ds["packed"].encoding |= {"chunks": (6, 4), "shards": (24, 8)}
    ds["time"].encoding = {"units": "days since 1999-01-01", "dtype": "int32"}
    ds["time"].encoding |= {"chunks": (8,), "shards": (24,)}
    return ds


def blocks() -> xr.Dataset:
    """Chunks that do not divide the array."""
    ds = xr.Dataset({
        "uneven": (("y", "x"), _random(19, 7, 11)), "single": (("y", "x"), np.arange(77).reshape(7, 11)),
        "zeros": (("y", "x"), np.zeros((7, 11), "i4")), "missing": (("y", "x"), np.full((7, 11), np.nan)),
    }, {"x": np.arange(11), "y": ("y", np.arange(7.0), {"units": "m"})})  # fmt: skip
    for name, chunks in (("uneven", (3, 4)), ("single", (1, 1)), ("zeros", (7, 2))):
        ds[name].encoding = {"chunks": chunks}
    return ds


def _by_name(*made: Made) -> dict[str, Made]:
    return {each.__name__: each for each in made}


CORPUS = _by_name(packed, calendars, kinds, curvilinear, bare)
"""What every format can hold."""

TEXTS = _by_name(texts, records)
"""What versions 2 and 3 can hold, but not the draft between them."""

NEW = _by_name(cmip_noleap, flags, forecast, shapes, empty, attributes, named, sharded, blocks)
"""What only tests beside xarray's own engine read and write."""

DATASETS: dict[str, Made] = {**CORPUS, **TEXTS, **NEW}


def written_alike(name: str, zarr_format: object) -> bool:
    """Whether the zarr-python that is here writes it as it is specified now, structs among them."""
    from zarr.dtype import data_type_registry

    return name != "records" or zarr_format == 2 or "struct" in data_type_registry.contents


def in_format(name: str, zarr_format: object) -> xr.Dataset:
    """A dataset with no more in its encoding than xarray's own engine takes for a format."""
    dataset = DATASETS[name]()
    for variable in dataset.variables.values() if zarr_format == 2 else ():
        variable.encoding.pop("shards", None)
    return dataset


def large_tree() -> xr.DataTree:
    """21 groups on three levels; the root has coordinates that the others inherit."""
    coords = {"x": ("x", np.arange(6.0), {"units": "m"}), "time": pd.date_range("2000", periods=4)}
    root = xr.Dataset({"orography": ("x", np.arange(6.0))}, coords=coords, attrs={"title": "all of them"})
    nodes: dict[str, xr.Dataset] = {"/": root}
    for model in range(4):
        nodes[f"/model{model}"] = xr.Dataset(attrs={"model": model})
        for member in range(4):
            tas = _random(100 * model + member, 4, 6).astype("f4")
            data = {"tas": (("time", "x"), tas), "pr": ("x", np.arange(6) + member)}
            nodes[f"/model{model}/member {member}"] = xr.Dataset(data, {"member": ((), member)})
    return xr.DataTree.from_dict(nodes)


def mixed_tree() -> xr.DataTree:
    """Datasets of the corpus as groups, one without anything in it, and one of another length below."""
    nodes = {
        "/": xr.Dataset(attrs={"kind": "mixed"}),
        "/atmosphere": cmip_noleap(),
        "/atmosphere/daily": forecast(),
        "/empty/below": xr.Dataset(),
        # zarr-python writes no blocks of no elements in version 2.
        "/stations": texts().drop_dims("nothing"),
        "/größe 2": flags(),
    }
    return xr.DataTree.from_dict(nodes)


def inheriting_tree() -> xr.DataTree:
    """Coordinates at every level, found by name two levels below, and one that is not inherited."""
    nodes = {
        "/": xr.Dataset(coords={"x": [1, 2, 3], "scalar": 4}),
        "/a": xr.Dataset({"v": ("x", [1.0, 2.0, 3.0])}, coords={"y": ["p", "q"]}),
        "/a/b": xr.Dataset({"w": (("x", "y"), np.arange(6).reshape(3, 2))}),
        "/c": xr.Dataset({"u": ("z", [0])}, coords={"z": [9]}),
    }
    return xr.DataTree.from_dict(nodes)


TREES: dict[str, Callable[[], xr.DataTree]] = {
    made.__name__: made for made in (large_tree, mixed_tree, inheriting_tree)
}
