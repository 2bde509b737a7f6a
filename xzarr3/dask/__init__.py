"""Chunks as dask tasks: arrays in stores as dask arrays, and dask arrays into stores."""

from xzarr3.dask.read import from_zarr
from xzarr3.dask.write import store

__all__ = ["from_zarr", "store"]
