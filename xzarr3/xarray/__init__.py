"""xarray support: the engine ``"xzarr3"``, :func:`open_dataset` and :func:`to_zarr`.

Importing this package adds the accessor ``.xzarr3`` to xarray's objects; see :mod:`xzarr3.xarray.accessor`.
The modules that read and write are imported when one of their names is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import xzarr3.xarray.accessor  # noqa: F401 - importing it registers the accessors

if TYPE_CHECKING:
    from xzarr3.xarray.backend import Xzarr3BackendEntrypoint, open_dataset, open_datatree, open_zarr
    from xzarr3.xarray.write import to_zarr

__all__ = ["Xzarr3BackendEntrypoint", "open_dataset", "open_datatree", "open_zarr", "to_zarr"]


def __getattr__(name: str) -> object:
    if name in __all__:
        module = "write" if name == "to_zarr" else "backend"
        return getattr(import_module(f"xzarr3.xarray.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
