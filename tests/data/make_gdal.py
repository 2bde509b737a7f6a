"""Stores of GDAL's driver for Zarr, through rasterio: ``python make_gdal.py DIRECTORY``."""

import sys
import warnings
from pathlib import Path

import numpy as np
import rasterio
from _expected import Expected

DIRECTORY = Path(sys.argv[1]) / f"gdal-{rasterio.__gdal_version__}"
VALUES = np.arange(35).reshape(5, 7)


def write(name, dtype, *, nodata=None, **options):
    """Write one band, in blocks of 4 by 4, and keep its values."""
    path = DIRECTORY / name
    path.parent.mkdir(parents=True, exist_ok=True)
    values = VALUES.astype(dtype) * (1 - 2j if "complex" in dtype else 1)
    profile = {"driver": "Zarr", "height": 5, "width": 7, "count": 1, "dtype": dtype, "nodata": nodata}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with rasterio.open(path, "w", **profile, **options, array_name="band") as file:
            file.write(values.astype(dtype), 1)
        with rasterio.open(path) as file:
            read = file.read(1)
    expected = Expected(path)
    expected.group("")
    attributes = {"_ARRAY_DIMENSIONS": ["Y", "X"]} if options["FORMAT"] == "ZARR_V2" else {}
    expected.array("band", read, names=("Y", "X"), attributes=attributes)
    expected.save()


if __name__ == "__main__":
    for form in ("ZARR_V2", "ZARR_V3"):
        options = {"FORMAT": form, "BLOCKSIZE": "4,4"}
        prefix = form[-2:].lower()
        write(f"{prefix}_float64", "float64", nodata=-1, COMPRESS="NONE", **options)
        write(f"{prefix}_int16", "int16", COMPRESS="GZIP", **options)
        write(f"{prefix}_complex64", "complex64", COMPRESS="NONE", **options)
    write("v2_blosc", "uint8", FORMAT="ZARR_V2", COMPRESS="BLOSC", CHUNK_MEMORY_LAYOUT="F", DIM_SEPARATOR="/")
    write("v2_delta", "int32", FORMAT="ZARR_V2", COMPRESS="ZLIB", FILTER="delta")
