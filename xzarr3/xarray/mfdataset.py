"""``open_mfdataset``: many stores as one dataset."""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, cast

from msgspec.structs import replace
from xarray import Dataset

from xzarr3.errors import ArgumentError, ArgumentTypeError, short_traceback, shorten
from xzarr3.joined.document import Recipe
from xzarr3.joined.group import JoinedGroup
from xzarr3.options import Missing
from xzarr3.quantities import check_switches
from xzarr3.readable import ReadableArray
from xzarr3.stores import open_store
from xzarr3.xarray.backend import check_options, open_dataset
from xzarr3.xarray.combining import by_coords
from xzarr3.xarray.joining import join, opened
from xzarr3.xarray.variables import names_of


@short_traceback
def open_mfdataset(
    paths: str | os.PathLike[str] | Sequence[Any],
    *,
    concat_dim: str | Sequence[str] | None = None,
    combine: Literal["by_coords", "nested"] | None = None,
    group: str | None = None,
    chunks: Any = "grouped",
    drop_variables: str | Iterable[str] = (),
    check_labels: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    missing: Missing | None = None,
    **options: Any,
) -> Dataset:
    """Open many stores as one dataset, lazily, with one graph layer a variable.

    Unlike :func:`xarray.open_mfdataset` it makes no dataset for each store, and needs no dask: with
    ``chunks=None`` values are read when they are used.

    Parameters
    ----------
    paths : path or URL with wildcards, or sequence of path, URL, Store or Group
        ``"data/*.zarr"`` in the order of the names. In a URL, only the last part may have wildcards. For
        several dimensions in ``concat_dim`` a sequence of sequences, as in xarray.
    concat_dim : str or sequence of str, optional
        The dimension along which the stores lie, in the order that is given. A dimension that no variable has
        is new.
    combine : {"by_coords", "nested"}, optional
        ``"by_coords"``, the default without ``concat_dim``, finds dimensions and order from the labels of
        the index coordinates. ``"nested"``, the default with it, takes the order as given.
    group : str, optional
        Path of the group in each store.
    chunks : "grouped" or any ``chunks`` of :func:`xarray.open_dataset`
        See :func:`open_dataset`; ``{}`` makes one block of each stored unit.
    drop_variables, check_labels, storage_options, missing
        See :func:`concat`.
    **options
        Further options of :func:`open_dataset`.

    Raises
    ------
    ArgumentError
        If nothing is found, or the stores do not fit; see :func:`concat`.

    Examples
    --------
    >>> import numpy as np, xarray as xr, xzarr3
    >>> stores = [xzarr3.MemoryStore() for _ in range(3)]
    >>> for day, store in enumerate(stores):
    ...     _ = xzarr3.to_zarr(xr.Dataset({"t": ("time", [day * 1.5])}, {"time": [day]}), store)
    >>> xzarr3.open_mfdataset(stores[::-1])["t"].values
    array([0. , 1.5, 3. ])
    """
    how = combine or ("by_coords" if concat_dim is None else "nested")
    if how not in ("by_coords", "nested") or (how == "by_coords") != (concat_dim is None):
        raise ArgumentError(
            f"combine={combine!r} with concat_dim={concat_dim!r}; accepted: combine='by_coords' without "
            "concat_dim, or 'nested' with it"
        )
    check_options(open_mfdataset, options)
    check_switches(check_labels=check_labels)
    consolidated = options.pop("consolidated", None)

    def open_all(sources: Iterable[Any]) -> list[Any]:
        return opened(sources, group or "", storage_options, missing, consolidated)

    found, dropped = _expanded(paths, storage_options), names_of(drop_variables)
    if not found:
        raise ArgumentError("no stores to open; give at least one")
    asked = Recipe(join="concat", sources=found, drop_variables=dropped, check_labels=check_labels)
    if how == "by_coords":
        whole = by_coords(replace(asked, sources=tuple(open_all(found))))
    else:
        several = isinstance(concat_dim, Iterable) and not isinstance(concat_dim, str)
        dims: list[Any] = [*cast("Iterable[Any]", concat_dim)] if several else [concat_dim]
        if not dims or not all(isinstance(dim, str) for dim in dims):
            raise ArgumentError(f"concat_dim={concat_dim!r}; accepted: names of dimensions, at least one")
        whole = _nested(asked, dims, open_all)
    return open_dataset(whole, chunks=chunks, **options)


def _expanded(paths: Any, storage_options: Mapping[str, Any] | None) -> tuple[Any, ...]:
    """The stores that a path with wildcards names, in the order of their names."""
    if not isinstance(paths, (str, os.PathLike)):
        if not isinstance(paths, Iterable):
            raise ArgumentTypeError(f"{paths!r} is no list; accepted: stores, or a path with wildcards")
        return tuple(paths)
    text = os.fspath(paths)
    if "://" not in text:
        found = sorted(glob.glob(text))
    else:
        above, _, pattern = text.rstrip("/").rpartition("/")
        keys, folders = open_store(above, storage_options).list_dir("")
        names = sorted({each.rstrip("/") for each in (*keys, *folders)})
        found = [f"{above}/{name}" for name in names if fnmatch.fnmatchcase(name, pattern)]
    if not found:
        raise ArgumentError(f"found no store that matches {text!r}; give other wildcards, or a list of paths")
    return tuple(found)


def _nested(asked: Recipe, dims: Sequence[str], open_all: Callable[..., list[Any]]) -> JoinedGroup:
    """Join sequences of sequences along several dimensions, the outermost first."""
    sources = asked.sources
    if not isinstance(sources, Sequence) or isinstance(sources, str) or not sources:
        raise ArgumentError(
            f"not a list of stores: {shorten(sources)}; lists are nested as deeply as concat_dim has names"
        )
    if len(dims) > 1:
        sources = tuple(_nested(replace(asked, sources=each), dims[1:], open_all) for each in sources)
    nodes = open_all(sources)
    arrays = [node for node in nodes[0].values() if isinstance(node, ReadableArray)]
    is_new = not any(dims[0] in (array.dimension_names or ()) for array in arrays)
    how = "stack" if is_new else "concat"
    return cast("JoinedGroup", join(replace(asked, join=how, dim=dims[0], sources=tuple(nodes))))
