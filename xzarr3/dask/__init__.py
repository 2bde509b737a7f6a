"""Dask support: read stored arrays as dask arrays, and write dask arrays to stored arrays."""

from xzarr3.dask.read import from_zarr
from xzarr3.dask.write import store

__all__ = ["from_zarr", "store"]
