"""Datasets as users of xarray have them, made by code: more of them than ``_xarray_corpus`` has, and trees.

Everything is small, and every dataset differs from the others in what has to be encoded, not in its values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import _xarray_corpus
import numpy as np
import pandas as pd
import xarray as xr


def _random(seed: int, *shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).random(shape)


def _cmip(calendar: str, dtype: str, **encoding: Any) -> xr.Dataset:
    """A variable of a climate model as it is published: packed, with bounds of all its coordinates."""
    months = xr.date_range("2000-01-16", periods=9, freq="30D", calendar=calendar, use_cftime=True)
    ends = xr.date_range("2000-01-01", periods=10, freq="30D", calendar=calendar, use_cftime=True)
    lat, lon = np.linspace(-75, 75, 6), np.arange(8) * 45.0
    values = (230 + 80 * _random(1, 9, 6, 8)).round(1)
    values[:, 0, :3] = np.nan
    ds = xr.Dataset(
        {
            "tas": (
                ("time", "lat", "lon"),
                values,
                {
                    "standard_name": "air_temperature",
                    "units": "K",
                    "cell_methods": "area: time: mean",
                    "cell_measures": "area: areacella",
                },
            ),
            "time_bnds": (("time", "bnds"), np.stack([ends[:-1], ends[1:]], axis=1)),
            "lat_bnds": (("lat", "bnds"), np.stack([lat - 15, lat + 15], axis=1)),
            "lon_bnds": (("lon", "bnds"), np.stack([lon - 22.5, lon + 22.5], axis=1)),
        },
        coords={
            "time": ("time", months, {"axis": "T", "standard_name": "time", "bounds": "time_bnds"}),
            "lat": ("lat", lat, {"units": "degrees_north", "axis": "Y", "bounds": "lat_bnds"}),
            "lon": ("lon", lon, {"units": "degrees_east", "axis": "X", "bounds": "lon_bnds"}),
            "height": ((), 2.0, {"units": "m", "axis": "Z", "positive": "up"}),
        },
        attrs={"Conventions": "CF-1.11", "tracking_id": "hdl:21.14100/x", "realization_index": np.int32(1)},
    )
    ds["tas"].encoding = {"dtype": dtype, "chunks": (4, 3, 8), "_FillValue": encoding.pop("_FillValue")}
    ds["tas"].encoding |= encoding
    ds["time"].encoding = {"units": "days since 1850-01-01", "calendar": calendar, "dtype": "float64"}
    ds["time_bnds"].encoding = dict(ds["time"].encoding)
    ds.encoding["unlimited_dims"] = {"time"}
    return ds


def cmip_noleap() -> xr.Dataset:
    """Packed 16 bit integers with scale, offset and fill value, in a calendar without leap days."""
    return _cmip("noleap", "int16", scale_factor=0.01, add_offset=270.0, _FillValue=np.int16(-32768))


def cmip_unsigned() -> xr.Dataset:
    """Bytes that are to be taken for unsigned ones, packed with 32 bit numbers."""
    fill = {"_FillValue": np.int8(-1), "_Unsigned": "true"}
    scale = {"scale_factor": np.float32(0.5), "add_offset": np.float32(220)}
    return _cmip("proleptic_gregorian", "int8", **fill, **scale)


def stations() -> xr.Dataset:
    """Observations of several stations one after the other, with names of any length."""
    names = np.array(["Ny-Ålesund", "", "南極", "a" * 40], object)
    return xr.Dataset(
        {
            "row_size": ("station", np.array([3, 0, 2, 4]), {"sample_dimension": "obs"}),
            "precipitation": ("obs", np.array([0, 1, np.nan, 3, 4, 5, 6, np.nan, 8], "f4"), {"units": "mm"}),
            "remark": ("obs", np.array(["", "ok", "früh", "x", "y", "", "-", "ok", "snow, ice"], object)),
            "code": ("station", np.array([b"AB", b"C", b"", b"DEF"])),
            "when": ("obs", pd.date_range("2024-02-28T23:30", periods=9, freq="17min")),
        },
        coords={
            "station_name": ("station", names, {"cf_role": "timeseries_id"}),
            "short_name": ("station", names.astype("U12")),
            "latitude": ("station", [78.9, 0.0, -90.0, 45.0], {"standard_name": "latitude"}),
        },
        attrs={"featureType": "timeSeries"},
    )


def ragged_text() -> xr.Dataset:
    """Text as numpy's own variable type has it, beside objects and fixed lengths, in several dimensions."""
    words = np.array([["", "a", "bb"], ["ccc", "ö", "日本"]], object)
    return xr.Dataset(
        {
            "text": (("x", "y"), words.astype(np.dtypes.StringDType())),
            "objects": (("x", "y"), words),
            "fixed": (("x", "y"), words.astype("U3"), {"long_name": "of 3 characters"}),
            "scalar": ((), np.array("", object)),
        },
        coords={"y": ["one", "two", "three"], "label": ("x", ["p", "q"])},
    )


def flags() -> xr.Dataset:
    """Booleans and masks with what their values mean."""
    rng = np.random.default_rng(9)
    meanings = {"flag_meanings": "good bad missing", "flag_values": np.array([0, 1, 2], "i1")}
    masks = {"flag_meanings": "cloud snow", "flag_masks": np.array([1, 2], "u1"), "valid_range": [0, 3]}
    ds = xr.Dataset(
        {
            "land": (("y", "x"), rng.random((6, 5)) > 0.5, {"flag_meanings": "sea land"}),
            "quality": (("y", "x"), rng.integers(0, 3, (6, 5), "i1"), meanings),
            "bits": (("y", "x"), rng.integers(0, 4, (6, 5), "u1"), masks),
            "on": ((), np.bool_(True)),
        },
        coords={
            "y": np.arange(6.0)[::-1],
            "x": np.arange(5),
            "inside": ("x", [True, False, True, True, False]),
        },
    )
    ds["quality"].encoding = {"_FillValue": np.int8(-1)}
    ds["land"].encoding = {"chunks": (4, 3)}
    return ds


def forecast() -> xr.Dataset:
    """Lengths of time as a coordinate, dates in two dimensions, and coordinates without a dimension."""
    steps = np.array([0, 6, 12, 24], "m8[h]").astype("m8[ns]")
    runs = np.array(["2020-02-28", "2020-02-29T12", "2020-03-01"], "M8[ns]")
    ds = xr.Dataset(
        {
            "gust": (("run", "step"), _random(10, 3, 4), {"units": "m s-1"}),
            "delay": ("run", np.array([90, "NaT", 1], "m8[s]")),
            "issued": ("run", np.array(["2020-02-28T01:00:00.125", "NaT", "1969-01-01"], "M8[ns]")),
            "day": ("run", np.array(["2020-02-28", "2020-02-29", "2020-03-01"], "M8[D]")),
            "far": ("run", np.array(["0001-01-01", "1500-06-30", "9999-12-31"], "M8[s]")),
        },
        coords={
            "run": runs,
            "step": steps,
            "valid_time": (("run", "step"), runs[:, None] + steps),
            "reference": ((), np.datetime64("2020-01-01", "ns")),
            "lead": ((), np.timedelta64(3, "h").astype("m8[ns]")),
            "model": ((), "ifs"),
        },
    )
    ds["step"].encoding = {"units": "hours", "dtype": "int32"}
    ds["valid_time"].encoding = {"units": "minutes since 2020-01-01", "dtype": "int64"}
    return ds


def numbers() -> xr.Dataset:
    """Data types at the ends of what they hold, in both byte orders."""
    ds = xr.Dataset(
        {
            "big_float": (("x", "y"), _random(11, 4, 3).astype(">f4")),
            "big_integer": ("x", np.array([1, -2, 3, 2**31 - 1], ">i4")),
            "half": ("x", np.array([0.1, np.inf, np.nan, -65504], "f2")),
            "complex": ("x", np.array([1j, -1, np.inf, 2 - 3j], "c16")),
            "complex_single": (("x", "y"), (_random(12, 4, 3) + 1j).astype("c8")),
            "unsigned": ("x", np.array([0, 1, 2**63, 2**64 - 1], "u8")),
            "signed": ("x", np.array([-(2**63), 0, 1, 2**63 - 1], "i8")),
            "negative_zero": ("x", np.array([-0.0, 0.0, np.nan, np.inf])),
            "marked": ("x", np.array([1.5, np.nan, -9999.5, 0])),
        },
        coords={"x": np.array([4, 3, 2, 1], ">i2"), "y": np.array([0.5, 1.5, 2.5], ">f8")},
    )
    ds["marked"].encoding = {"_FillValue": -9999.0, "missing_value": -9999.0}
    return ds


def shapes() -> xr.Dataset:
    """No dimension, none of any length, and lengths of one."""
    return xr.Dataset(
        {
            "scalar": ((), 1.5),
            "one": (("a", "b"), np.ones((1, 1))),
            "empty": (("none", "a"), np.zeros((0, 1), "f4")),
            "empty_text": ("none", np.array([], object).astype("U1")),
            "empty_times": ("none", np.array([], "M8[ns]")),
            "cube": (("a", "c", "d", "e", "f"), _random(13, 1, 2, 3, 2, 2)),
        },
        coords={"a": [7], "at": ((), 0), "none": np.zeros(0), "c": ["x", "y"], "when": ((), pd.Timestamp(0))},
    )


def empty() -> xr.Dataset:
    """Attributes, and nothing else."""
    return xr.Dataset(attrs={"title": "nothing"})


def attributes() -> xr.Dataset:
    """Attributes of all kinds that JSON can hold."""
    attrs = {
        "text": 'größer ≥ 1 µm\n"quoted" \\ 😀',
        "empty": "",
        "integer": 3,
        "large": 2**53 + 1,
        "float": 0.1,
        "flag": True,
        "nothing": None,
        "list": [1, 2.5, "x", None, [True]],
        "tuple": (1, 2),
        "mapping": {"a": {"b": [1, {"c": "d"}]}, "": ""},
        "numpy_integer": np.int16(4),
        "numpy_float": np.float64(0.25),
        "numpy_array": np.array([1, 2, 3], "i2"),
        "numpy_text": np.array(["a", "bc"]),
        "numpy_flag": np.bool_(True),
        "table": np.array([[1, 2], [3, 4]]),
    }
    ds = xr.Dataset({"a": ("x", [1.0, 2.0], attrs)}, coords={"x": ("x", [0, 1], attrs)}, attrs=attrs)
    ds["a"].attrs |= {"units": "1", "scale": 0.5, "coordinates_of": "x", "valid_min": np.float32(0.5)}
    return ds


def named() -> xr.Dataset:
    """Names with spaces, signs and letters of all scripts."""
    return xr.Dataset(
        {
            "air temperature (2 m)": (("länge", "dim 2"), _random(15, 2, 3)),
            "Ω→λ": ("dim 2", np.arange(3), {"größe": "naïve"}),
            "日本": ((), 1),
            "a.b": ("länge", [1, 2]),
            "UPPER": ("länge", [1, 2]),
            "upper": ("länge", [3.0, 4.0]),
            "_hidden": ("länge", [1, 2]),
            "100%": ((), 5),
        },
        coords={"länge": [1.0, 2.0], "dim 2": ["x y", "z", ""]},
    )


def sharded() -> xr.Dataset:
    """Shards of several chunks, that end where the array does and beyond it, packed ones as well."""
    times = pd.date_range("2000", periods=24, freq="D")
    ds = xr.Dataset(
        {
            "even": (("time", "y", "x"), _random(16, 24, 8, 8).astype("f4")),
            "odd": (("time", "y"), _random(17, 24, 8)),
            "packed": (("time", "x"), (_random(18, 24, 8) * 10).round(1)),
            "text": ("x", np.array(list("abcdefgh"), object)),
        },
        coords={"time": times, "y": np.arange(8.0), "x": np.arange(8)},
    )
    ds["even"].encoding = {"chunks": (4, 4, 4), "shards": (12, 8, 8)}
    ds["odd"].encoding = {"chunks": (5, 3), "shards": (10, 6), "_FillValue": -1.0}
    ds["packed"].encoding = {"dtype": "int16", "scale_factor": 0.1, "_FillValue": np.int16(-1)}
    ds["packed"].encoding |= {"chunks": (6, 4), "shards": (24, 8)}
    ds["time"].encoding = {
        "units": "days since 1999-01-01",
        "dtype": "int32",
        "chunks": (8,),
        "shards": (24,),
    }
    return ds


def blocks() -> xr.Dataset:
    """Chunks that do not divide the array, of compressors that were asked for, and none at all."""
    ds = xr.Dataset(
        {
            "uneven": (("y", "x"), _random(19, 7, 11)),
            "single": (("y", "x"), np.arange(77).reshape(7, 11)),
            "zeros": (("y", "x"), np.zeros((7, 11), "i4")),
            "missing": (("y", "x"), np.full((7, 11), np.nan)),
        },
        coords={"x": np.arange(11), "y": ("y", np.arange(7.0), {"units": "m"})},
    )
    ds["uneven"].encoding = {"chunks": (3, 4)}
    ds["single"].encoding = {"chunks": (1, 1)}
    ds["zeros"].encoding = {"chunks": (7, 2)}
    return ds


Made = Callable[[], xr.Dataset]

NEW: dict[str, Made] = {
    made.__name__: made
    for made in (
        cmip_noleap, cmip_unsigned, stations, ragged_text, flags, forecast, numbers, shapes, empty,
        attributes, named, sharded, blocks,
    )
}  # fmt: skip
"""What is made here."""

DATASETS: dict[str, Made] = {**_xarray_corpus.CORPUS, **_xarray_corpus.TEXTS, **NEW}


def in_format(name: str, zarr_format: object) -> xr.Dataset:
    """A dataset with no more in its encoding than xarray's own engine takes for a format."""
    dataset = DATASETS[name]()
    for variable in dataset.variables.values() if zarr_format == 2 else ():
        variable.encoding.pop("shards", None)
    return dataset


# Trees


def large_tree() -> xr.DataTree:
    """21 groups on three levels; the root has coordinates that the others inherit."""
    x, time = np.arange(6.0), pd.date_range("2000", periods=4)
    nodes: dict[str, xr.Dataset] = {
        "/": xr.Dataset(
            {"orography": ("x", np.arange(6.0))},
            coords={"x": ("x", x, {"units": "m"}), "time": time},
            attrs={"title": "all of them"},
        )
    }
    for model in range(4):
        nodes[f"/model{model}"] = xr.Dataset(attrs={"model": model})
        for member in range(4):
            nodes[f"/model{model}/member {member}"] = xr.Dataset(
                {
                    "tas": (("time", "x"), _random(100 * model + member, 4, 6).astype("f4")),
                    "pr": ("x", np.arange(6) + member),
                },
                coords={"member": ((), member)},
            )
    return xr.DataTree.from_dict(nodes)


def mixed_tree() -> xr.DataTree:
    """Datasets of the corpus as groups, one without anything in it, and one of another length below."""
    return xr.DataTree.from_dict(
        {
            "/": xr.Dataset(attrs={"kind": "mixed"}),
            "/atmosphere": DATASETS["cmip_noleap"](),
            "/atmosphere/daily": DATASETS["forecast"](),
            "/empty/below": xr.Dataset(),
            "/stations": DATASETS["stations"](),
            "/größe 2": DATASETS["flags"](),
        }
    )


def inheriting_tree() -> xr.DataTree:
    """Coordinates at every level, found by name two levels below, and one that is not inherited."""
    return xr.DataTree.from_dict(
        {
            "/": xr.Dataset(coords={"x": [1, 2, 3], "scalar": 4}),
            "/a": xr.Dataset({"v": ("x", [1.0, 2.0, 3.0])}, coords={"y": ["p", "q"]}),
            "/a/b": xr.Dataset({"w": (("x", "y"), np.arange(6).reshape(3, 2))}),
            "/c": xr.Dataset({"u": ("z", [0])}, coords={"z": [9]}),
        }
    )


TREES: dict[str, Callable[[], xr.DataTree]] = {
    made.__name__: made for made in (large_tree, mixed_tree, inheriting_tree)
}
