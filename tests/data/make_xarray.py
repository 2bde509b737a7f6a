"""Stores of xarray, with whichever zarr-python there is: ``python make_xarray.py DIRECTORY``."""

import sys
import warnings
from pathlib import Path

import numpy as np
import xarray
import zarr
from _expected import Expected

DIRECTORY = Path(sys.argv[1]) / f"xarray-{xarray.__version__}-zarr-python-{zarr.__version__}"


def dataset():
    """A dataset of what xarray writes in a way of its own."""
    random = np.random.default_rng(7)
    time = np.array(["2000-01-01", "2000-01-02T06", "2000-01-05"], "M8[ns]")
    words = np.array(["a", "é", "日本語"], object)
    temperature = np.round(random.normal(280, 10, (3, 4)), 1)
    temperature[1, 2] = np.nan
    packed = {"dtype": "i2", "scale_factor": 0.1, "add_offset": 250.0, "_FillValue": -32768}
    variables = {
        "temperature": (("time", "x"), temperature, {"units": "K"}),
        "packed": (("time", "x"), temperature, {}, packed),
        "words": ("time", words),
        "fixed": ("time", words.astype("U3")),
        "blobs": ("time", np.array([b"a", b"bc", b""], "S2")),
        "flags": ("x", np.array([True, False, True, True])),
        "span": ("time", np.array([1, 2, 5], "m8[h]").astype("m8[ns]")),
        "scalar": ((), np.float32(2.5)),
        "wave": ("x", random.normal(size=4).astype("c8")),
        "big": ("x", np.arange(4, dtype=">i4")),
    }
    return xarray.Dataset(variables, {"time": time, "x": [10, 20, 30, 40]}, {"title": "ø", "count": 3})


def write(name, zarr_format):
    """Write the dataset, and keep what is stored and not what xarray makes of it."""
    path = DIRECTORY / name
    version = {"zarr_format": zarr_format} if zarr.__version__ >= "3" else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset().to_zarr(path, mode="w", consolidated=True, **version)
        expected = Expected(path)
        root = zarr.open_group(path, mode="r")
        for key in sorted(root):
            array = root[key]
            attributes = dict(array.attrs)
            names = attributes.get("_ARRAY_DIMENSIONS") or dataset()[key].dims
            expected.array(key, np.asarray(array[...]), names=names, attributes=attributes)
        expected.group("", dict(root.attrs))
        expected.save()


if __name__ == "__main__":
    write("v2", 2)
    if zarr.__version__ >= "3":
        write("v3", 3)
