"""Chunks as dask tasks: arrays in stores as dask arrays, and dask arrays into stores."""

from xzarr3.dask.reading import from_zarr
from xzarr3.dask.writing import store

__all__ = ["from_zarr", "store"]
