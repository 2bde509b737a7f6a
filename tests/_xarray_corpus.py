"""Datasets such as climate scientists have them, made by code: what the xarray tests read and write."""

from __future__ import annotations

import cftime
import numpy as np
import pandas as pd
import xarray as xr


def packed() -> xr.Dataset:
    """Air temperature as packed 16 bit integers with missing values, one chunk of them throughout."""
    rng = np.random.default_rng(1)
    values = (250 + 50 * rng.random((30, 12, 10))).round(2)
    values[3, 4] = np.nan
    values[0:8, 0:6, 0:5] = np.nan
    ds = xr.Dataset(
        {"tas": (("time", "lat", "lon"), values, {"units": "K", "standard_name": "air_temperature"})},
        coords={
            "time": pd.date_range("2001-01-01", periods=30),
            "lat": ("lat", np.linspace(-55, 55, 12), {"units": "degrees_north", "bounds": "lat_bnds"}),
            "lon": ("lon", np.arange(10) * 36.0, {"units": "degrees_east"}),
            "lat_bnds": (("lat", "bnds"), np.linspace(-60, 60, 24).reshape(12, 2)),
            "height": ((), 2.0, {"units": "m", "positive": "up"}),
        },
        attrs={"Conventions": "CF-1.8", "title": "packed", "history": ["one", "two"]},
    )
    ds["tas"].encoding = {
        "dtype": "int16",
        "scale_factor": 0.01,
        "add_offset": 273.15,
        "_FillValue": np.int16(-32767),
        "chunks": (8, 6, 5),
    }
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
    ds["time_bnds"].encoding = {"units": "days since 1850-01-01", "calendar": "noleap", "dtype": "float64"}
    ds["age"] = (("sample",), pd.to_timedelta([1, 5, 36], unit="h"))
    ds["stamp"] = (("sample",), np.array(["2020-01-01T00:00:01", "NaT", "1999-12-31"], dtype="M8[ns]"))
    return ds


def kinds() -> xr.Dataset:
    """Every core data type, 0-d variables, fill values of all sorts."""
    rng = np.random.default_rng(2)
    variables: dict[str, object] = {}
    for dtype in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16", "?"):
        variables[f"v_{np.dtype(dtype).name}"] = (("x",), rng.integers(0, 2, 7).astype(dtype))
    variables["scalar"] = ((), np.float32(2.5))
    variables["integer_scalar"] = ((), np.int64(-3))
    variables["nothing"] = (("x", "none"), np.zeros((7, 0)))
    variables["big_endian"] = (("x",), np.arange(7.0).astype(">f8"))
    ds = xr.Dataset(
        variables, attrs={"number": 1, "text": "x", "list": [1, 2.5], "nested": {"a": [1, {"b": "c"}]}}
    )
    ds["v_float32"].attrs["_FillValue"] = np.float32(1)  # Values that equal an attribute are missing ones.
    ds["v_float64"].encoding["_FillValue"] = None
    ds["v_int32"].attrs["_FillValue"] = 1
    ds["v_uint8"].attrs["missing_value"] = np.uint8(0)
    ds["v_int16"].encoding["fill_value"] = 7
    return ds


def curvilinear() -> xr.Dataset:
    """A curvilinear grid with auxiliary coordinates and variables that refer to others, in shards."""
    rng = np.random.default_rng(3)
    ds = xr.Dataset(
        {
            "tos": (("time", "j", "i"), rng.random((6, 20, 24)).astype("f4"), {"grid_mapping": "crs"}),
            "area": (("j", "i"), rng.random((20, 24)), {"cell_measures": "area: area"}),
            "crs": ((), np.int32(0), {"grid_mapping_name": "rotated_latitude_longitude"}),
            "mask": (("j", "i"), rng.random((20, 24)) > 0.5),
        },
        coords={
            "time": xr.date_range("2000-01-01", periods=6, freq="MS"),
            "lat": (("j", "i"), rng.random((20, 24))),
            "lon": (("j", "i"), rng.random((20, 24))),
            "region": ((), np.int16(4)),
        },
    )
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
    ds = xr.Dataset(
        {
            "of_any_length": ("station", words),
            "missing": ("station", missing),
            "fixed": ("station", words.astype("U")),
            "bytes": ("station", np.array([b"a", b"", b"bcd", b"\xff\x01", b"x y"])),
            "bytes_of_any_length": ("station", np.array([b"a", b"", b"bcd", b"\xff", b"x y"], object)),
            "table": (("station", "column"), np.array([["a", "bb"]] * 5, object), {"note": "é"}),
            "scalar": ((), np.array("text", object)),
            "fixed_scalar": ((), "text"),
            "none": ("nothing", np.array([], "U4")),
        },
        coords={"station": ["a", "b", "c", "d", "e"], "kind": ("station", words)},
    )
    ds["missing"].encoding["missing_value"] = "NA"
    return ds


def records() -> xr.Dataset:
    """Structures, raw bytes, and values that are stored in another byte order in version 2."""
    record = np.dtype([("id", "<i4"), ("name", "S3"), ("at", "<f8", ())])
    return xr.Dataset(
        {
            "records": ("x", np.array([(1, b"ab", 0.5), (2, b"", np.inf), (3, b"xyz", -1)], record)),
            "raw": ("x", np.array([b"\0\1", b"ab", b"\xff\xff"], "V2")),
            "big_endian": ("x", np.arange(3, dtype=">i4")),
            "spans": ("x", np.array([1, -5, "NaT"], "m8[s]")),
            "scalar": ((), np.array((1, b"ab", 0.5), record)),
        }
    )


CORPUS = {f.__name__: f for f in (packed, calendars, kinds, curvilinear, bare)}
"""What every format can hold."""

TEXTS = {f.__name__: f for f in (texts, records)}
"""What versions 2 and 3 can hold, but not the draft between them."""


def written_alike(name: str, zarr_format: object) -> bool:
    """Whether the zarr-python that is here writes it as it is specified now, structs among them."""
    from zarr.dtype import data_type_registry

    return name != "records" or zarr_format == 2 or "struct" in data_type_registry.contents
