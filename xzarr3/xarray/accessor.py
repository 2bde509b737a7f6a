"""The accessor ``.xzarr3`` of xarray's objects: ``ds.xzarr3.to_zarr(...)`` instead of ``ds.to_zarr(...)``.

The accessor exists after ``import xzarr3.xarray``, and after a dataset was opened or written with this
package. ``import xzarr3`` alone does not add it, because importing xarray takes long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from xarray import (
    DataArray,
    Dataset,
    DataTree,
    register_dataarray_accessor,
    register_dataset_accessor,
    register_datatree_accessor,
)

from xzarr3.groups import Group
from xzarr3.stores import StoreLike

if TYPE_CHECKING:
    from dask.delayed import Delayed


class _Accessor:
    """Base class of the accessors."""

    def __init__(self, data: Dataset | DataArray | DataTree) -> None:
        self._data = data

    def __repr__(self) -> str:
        return f"<xzarr3 for this {type(self._data).__name__}: to_zarr()>"

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
    """``ds.xzarr3``"""


@register_dataarray_accessor("xzarr3")  # type: ignore[no-untyped-call]
class DataArrayAccessor(_Accessor):
    """``da.xzarr3``"""


@register_datatree_accessor("xzarr3")  # type: ignore[no-untyped-call]
class DataTreeAccessor(_Accessor):
    """``dt.xzarr3``"""

    def to_zarr(  # type: ignore[override]
        self,
        store: StoreLike | None = None,
        mode: Any = None,
        encoding: Any = None,
        consolidated: bool | None = None,
        group: str | None = None,
        write_inherited_coords: bool = False,
        compute: bool | Literal["later"] = True,
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
