"""The accessor ``.xzarr3`` of xarray's objects: ``ds.xzarr3.to_zarr(...)`` and ``ds.xzarr3.explain()``.

The accessor exists once both xarray and xzarr3 are imported, in any order. ``import xzarr3`` imports no
xarray, because that takes long; :mod:`xzarr3._after_xarray` imports this module when xarray is imported.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from xarray import (
    DataArray,
    Dataset,
    DataTree,
    Variable,
    register_dataarray_accessor,
    register_dataset_accessor,
    register_datatree_accessor,
)

from xzarr3.groups import Group
from xzarr3.stores import StoreLike
from xzarr3.xarray.unreadable import LEFT_OUT, UnreadableVariable

if TYPE_CHECKING:
    from dask.delayed import Delayed

    from xzarr3.xarray.explain import LazyExplanation


class _Accessor:
    """Base class of the accessors."""

    def __init__(self, data: Dataset | DataArray | DataTree) -> None:
        self._data = data

    def __repr__(self) -> str:
        return f"<xzarr3 for this {type(self._data).__name__}: explain(), to_zarr()>"

    def _variables(self) -> dict[Hashable, Variable]:
        data: Any = self._data
        if isinstance(data, DataArray):
            name = "this array" if data.name is None else data.name
            return {name: data.variable, **{key: coord.variable for key, coord in data.coords.items()}}
        return dict(data.variables)

    @property
    def unreadable(self) -> dict[Hashable, str]:
        """Why stored arrays cannot be read, by name: variables that raise this error, and arrays left out.

        Examples
        --------
        >>> import xarray as xr, xzarr3.xarray
        >>> store = xzarr3.MemoryStore()
        >>> _ = xr.Dataset({"t": ("x", [1.5, 2.5])}).xzarr3.to_zarr(store)
        >>> xzarr3.open_dataset(store).xzarr3.unreadable
        {}
        """
        left_out = self._data.encoding.get(LEFT_OUT, {})
        kept = {
            name: str(each.error)
            for name, each in self._variables().items()
            if isinstance(each, UnreadableVariable)
        }
        return {**left_out, **kept}

    def explain(self) -> LazyExplanation:
        """Tell what loading or computing this reads: requests and bytes by variable.

        Nothing is computed. For dask arrays the graph is optimized as for ``compute()``, so that selections
        and blocks that several variables need count as they are read. Indexes of shards are read, and sizes
        of values are asked for.

        Examples
        --------
        >>> import numpy as np, xarray as xr, xzarr3.xarray
        >>> ds = xr.Dataset({"t": (("time", "x"), np.ones((40, 50)))})
        >>> store = xzarr3.MemoryStore()
        >>> _ = ds.xzarr3.to_zarr(store, encoding={"t": {"chunks": (10, 50), "compressors": None}})
        >>> found = xzarr3.open_dataset(store).isel(time=slice(5, 15)).xzarr3.explain()
        >>> found
        variable  array  reads  chunks  absent  requests     moved      used
        t         /t         2       2       0         2  3.91 kiB  3.91 kiB
        total                2       2       0         2  3.91 kiB  3.91 kiB
        >>> found["t"]["bytes_moved"]
        4000
        """
        from xzarr3.xarray.explain import explain_lazy

        return explain_lazy(self._variables())

    def to_zarr(
        self,
        store: StoreLike | None = None,
        mode: Any = None,
        group: str | None = None,
        encoding: Any = None,
        **options: Any,
    ) -> Group | Delayed:
        """Write to a Zarr store; ``options`` are the other parameters of :func:`xzarr3.to_zarr`.

        Examples
        --------
        >>> import xarray as xr, xzarr3.xarray
        >>> ds = xr.Dataset({"t": ("time", [280.5, 281.5])})
        >>> ds.xzarr3.to_zarr(xzarr3.MemoryStore(), encoding={"t": {"dtype": "float32"}})
        <xzarr3.Group / of <MemoryStore, 3 keys>>
        """
        from xzarr3.xarray.write import to_zarr

        written: Group | Delayed = to_zarr(
            self._data, store, mode=mode, group=group, encoding=encoding, **options
        )
        return written


@register_dataset_accessor("xzarr3")  # type: ignore[no-untyped-call]
class DatasetAccessor(_Accessor):
    """``ds.xzarr3``

    Examples
    --------
    >>> import xzarr3
    >>> import xarray as xr
    >>> store = xzarr3.MemoryStore()
    >>> _ = xzarr3.to_zarr(xr.Dataset({"sst": ("x", [1.0, 2.0])}), store)
    >>> ds = xr.open_dataset(store, engine="xzarr3")
    >>> ds.xzarr3.explain().requests
    1
    """


@register_dataarray_accessor("xzarr3")  # type: ignore[no-untyped-call]
class DataArrayAccessor(_Accessor):
    """``da.xzarr3``"""


@register_datatree_accessor("xzarr3")  # type: ignore[no-untyped-call]
class DataTreeAccessor(_Accessor):
    """``dt.xzarr3``"""

    def _variables(self) -> dict[Hashable, Variable]:
        tree: Any = self._data
        return {
            f"{path.strip('/')}/{name}".lstrip("/"): variable
            for path, node in tree.subtree_with_keys
            for name, variable in node.to_dataset(inherit=False).variables.items()
        }

    def to_zarr(  # type: ignore[override]
        self,
        store: StoreLike | None = None,
        mode: Any = None,
        encoding: Any = None,
        consolidated: bool | None = None,
        group: str | None = None,
        write_inherited_coords: bool = False,
        compute: bool = True,
        **options: Any,
    ) -> Group | Delayed:
        """Write a tree with :func:`xzarr3.to_zarr`; arguments are in the order of ``DataTree.to_zarr``.

        Examples
        --------
        >>> import xarray as xr, xzarr3.xarray
        >>> tree = xr.DataTree.from_dict({"/ocean": xr.Dataset({"sst": ("x", [280.5, 281.5])})})
        >>> tree.xzarr3.to_zarr(xzarr3.MemoryStore(), "w", {"/ocean": {"sst": {"dtype": "float32"}}})
        <xzarr3.Group / of <MemoryStore, 4 keys>>
        """
        return super().to_zarr(
            store,
            mode,
            group,
            encoding,
            consolidated=consolidated,
            write_inherited_coords=write_inherited_coords,
            compute=compute,
            **options,
        )
