"""Several groups as one group of joined arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from xzarr3._types import AnyArray
from xzarr3.display.report import Page, Table
from xzarr3.display.shown import Description
from xzarr3.display.units import counted
from xzarr3.errors import NodeNotFoundError, one_of
from xzarr3.joined.array import JoinedArray
from xzarr3.joined.document import Joined, Recipe
from xzarr3.model.metadata import GroupMetadata

if TYPE_CHECKING:
    from xzarr3.arrays import Array


class JoinedGroup(Mapping[str, "Array | JoinedArray"], Joined):
    """Several groups as one: a mapping of names to arrays, which is read as a :class:`Group` is.

    :func:`xzarr3.concat` and :func:`xzarr3.stack` make it. It opens in xarray, as a store does, and
    :func:`xzarr3.copy` stores it.

    Parameters
    ----------
    arrays : mapping of str to Array or JoinedArray
    attributes : mapping
    recipe : Recipe
        What was joined, for :meth:`to_json`.
    labels : mapping of str to ndarray
        Values of index coordinates that were read.

    Examples
    --------
    >>> import numpy as np, xarray as xr, xzarr3
    >>> stores = [xzarr3.MemoryStore(), xzarr3.MemoryStore()]
    >>> for day, store in enumerate(stores):
    ...     ds = xr.Dataset({"t": (("time", "x"), np.full((1, 2), day))}, {"time": [day]})
    ...     _ = xzarr3.to_zarr(ds, store)
    >>> both = xzarr3.concat(stores, "time")
    >>> both, both["t"].shape, xzarr3.open_dataset(both)["t"].sum().compute().item()
    (<xzarr3.JoinedGroup of 2 groups along 'time'>, (2, 2), 2)
    """

    metadata: GroupMetadata
    recipe: Recipe
    path = ""
    name = "/"

    def __init__(
        self,
        arrays: Mapping[str, Array | JoinedArray],
        attributes: Mapping[str, Any],
        recipe: Recipe,
        labels: Mapping[str, AnyArray],
    ) -> None:
        self._arrays, self.recipe, self.labels = dict(arrays), recipe, dict(labels)
        self.metadata = GroupMetadata(attributes=dict(attributes))

    def __getitem__(self, name: str) -> Array | JoinedArray:
        try:
            return self._arrays[name]
        except (KeyError, TypeError) as error:
            raise NodeNotFoundError(f"no array {name!r} in {self!r}; {one_of(name, self._arrays)}") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    @property
    def store(self) -> Any:
        """The store of the first array."""
        return next(iter(self._arrays.values())).store

    def __repr__(self) -> str:
        return (
            f"<xzarr3.JoinedGroup of {counted(len(self.recipe.sources), 'group')} along {self.recipe.dim!r}>"
        )

    def _describe(self) -> Description:
        rows = [("array", "shape", "data type", "")]
        for name, array in self.items():
            told = "joined" if isinstance(array, JoinedArray) else "the same in all"
            rows.append((name, f"{array.shape}", f"{array.dtype}", told))
        return Page("xzarr3.JoinedGroup", repr(self), tables=[Table(rows, left=4)]).description()

    def __dask_tokenize__(self) -> object:
        return "xzarr3.JoinedGroup", [(name, array.__dask_tokenize__()) for name, array in self.items()]
