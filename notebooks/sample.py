"""Real fields for the notebooks, from the package `iris-sample-data` (Met Office, Open Government Licence).

Some of its files are in PP, the format of the Unified Model's output: records of Fortran, in big endian, with
a header of 45 integers and 19 floats before each map. `read_pp` reads fields that are not packed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import iris_sample_data
import numpy as np
import xarray as xr

FOLDER = Path(iris_sample_data.path)
YEAR, END_YEAR, ROWS, COLUMNS, PACKING = 0, 6, 17, 18, 20  # Positions in the header.
SOUTH, LATITUDE_STEP, WEST, LONGITUDE_STEP, MISSING = 13, 14, 15, 16, 17  # Positions among its floats.
Y = 2  # The kind of a vector of latitudes, where these are not equally spaced.


def records(path: Path) -> Iterator[bytes]:
    """The records of a file of Fortran, each between two copies of its length."""
    data, at = path.read_bytes(), 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        yield data[at + 4 : at + 4 + length]
        at += length + 8


def moment(header: np.ndarray, at: int) -> np.datetime64:
    """A time of a header, to the minute."""
    year, month, day, hour, minute = (int(number) for number in header[at : at + 5])
    return np.datetime64(f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}", "ns")


def extra(data: bytes, wanted: int) -> np.ndarray:
    """One of the vectors behind a map, each after a word of its length times 1000 plus its kind."""
    at = 0
    while at < len(data):
        length, kind = divmod(int.from_bytes(data[at : at + 4], "big"), 1000)
        if kind == wanted:
            return np.frombuffer(data, ">f4", length, at + 4)
        at += 4 * (length + 1)
    raise ValueError(f"no vector of kind {wanted} behind the map")


def read_pp(path: Path, name: str, **attributes: str) -> xr.DataArray:
    """The maps of a PP file as one array: time, latitude and longitude.

    Parameters
    ----------
    path : Path
        The file, of maps on one grid, in the order of time.
    name : str
        Name of the array.
    **attributes : str
        Its attributes, such as ``units``.

    Returns
    -------
    xarray.DataArray
        float32 of shape (time, latitude, longitude), NaN where values are missing. A map that is the mean
        of a month has the middle of the month as its time.

    Raises
    ------
    ValueError
        A field is packed, or its latitudes are not there.
    """
    every = records(path)
    maps, times = [], []
    for header in every:
        whole, real = np.frombuffer(header, ">i4", 45), np.frombuffer(header, ">f4", 19, 180)
        if whole[PACKING] != 0:
            raise ValueError(f"{path} has fields packed by method {whole[PACKING]}; accepted: 0, not packed")
        shape = int(whole[ROWS]), int(whole[COLUMNS])
        record = next(every)
        values = np.frombuffer(record, ">f4", shape[0] * shape[1]).reshape(shape).astype("f4")
        maps.append(np.where(values == real[MISSING], np.float32("nan"), values))
        begin, end = moment(whole, YEAR), moment(whole, END_YEAR)
        times.append(begin + (end - begin) // 2)
    latitude = real[SOUTH] + real[LATITUDE_STEP] * np.arange(1, shape[0] + 1)
    if real[LATITUDE_STEP] == 0:
        latitude = extra(record[4 * shape[0] * shape[1] :], Y)
    longitude = real[WEST] + real[LONGITUDE_STEP] * np.arange(1, shape[1] + 1)
    coordinates = {
        "time": ("time", np.array(times), {"standard_name": "time"}),
        "latitude": ("latitude", latitude.astype("f4"), {"units": "degrees_north"}),
        "longitude": ("longitude", longitude.astype("f4"), {"units": "degrees_east"}),
    }
    return xr.DataArray(np.stack(maps), coordinates, ("time", "latitude", "longitude"), name, attributes)


def sea_ice() -> xr.DataArray:
    """Ten years of monthly northward velocities of sea ice, 1890 to 1899, on a grid of 1 degree: 37 MB."""
    files = sorted((FOLDER / "UM").glob("northward_sea_ice_velocity.*.pp"))
    months = [read_pp(path, "northward_sea_ice_velocity", units="m s-1") for path in files]
    return xr.concat(months, "time", coords="minimal", compat="override", join="exact")


def forecast() -> xr.DataArray:
    """A seasonal forecast of GloSea4 for August 2011 to January 2012: surface temperature of each member."""
    files = sorted((FOLDER / "GloSea4").glob("ensemble_*.pp"))
    members = [read_pp(path, "surface_temperature", units="K") for path in files]
    numbers = xr.Variable("member", [int(path.stem[-3:]) for path in files])
    return xr.concat(members, numbers, coords="minimal", compat="override", join="exact")
