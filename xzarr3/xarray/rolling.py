"""``drop``: an archive that rolls loses its oldest part."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from pandas.errors import InvalidIndexError

from xzarr3.api import open_group
from xzarr3.commit.recover import finish_interrupted
from xzarr3.copying.rolling import Shift, shift
from xzarr3.errors import ArgumentError, ArgumentTypeError, ConflictError, one_of, short_traceback
from xzarr3.groups import Group
from xzarr3.nodes.node import normal_path
from xzarr3.parallel import asked_threads
from xzarr3.progress import Asked, check_asked
from xzarr3.stores import StoreLike, open_store
from xzarr3.xarray.backend import open_dataset


@short_traceback
def drop(
    store: StoreLike,
    indexers: Mapping[str, slice] | None = None,
    *,
    path: str = "",
    progress: Asked = False,
    threads: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **indexers_kwargs: slice,
) -> Group:
    """Drop the first part of a stored dataset along one dimension, as an archive that rolls does.

    All arrays of the group, and of the groups below it, that have the dimension lose the same elements. What
    remains replaces the group as one change: a reader finds all of the old dataset, or the new one; in a
    store of keys, such as S3, between the two an error that says that the node is being replaced.

    Chunks, or shards, that stay whole are not decoded. If the cut is at a border of the chunks of an array,
    which are of one length, all of its chunks stay as they are. In a directory they only get new names, so
    that dropping takes time by the number of chunks, not by their bytes; elsewhere their bytes are copied. If
    the cut is not at such a border, the values that remain are encoded again. Chunks of several lengths
    (a rectilinear grid) need no border: only the chunk that is cut is encoded again.

    The place is leased meanwhile: an append waits, or raises. If another writer sets values all the same, an
    error is raised and nothing is dropped, in a directory and in memory; elsewhere only chunks that came or
    went are noticed. The same call goes on with what was interrupted. Arrays and datasets that were opened
    before raise :class:`~xzarr3.ChangedError` when they are read or written, as their indices mean other
    elements.

    Parameters
    ----------
    store : path, URL or Store
    indexers : mapping of str to slice, optional
        The labels to drop, by dimension; one dimension. Or pass them as ``time=slice(None, "2020")``. The
        slice has an end and no start. As with :meth:`xarray.Dataset.sel`, its last label is dropped, too.
        For a dimension without a coordinate the end is a number of elements: the same call drops as many
        again, but not if it finds that an earlier call was cut off, which it finishes.
    path : str
        Path of the group.
    progress : bool or callable
        As :func:`xzarr3.copy` has it.
    threads : int, optional
        Number of threads; None for as many as make sense.
    storage_options : mapping, optional
        Further options of the store; see :func:`xzarr3.open_store`.

    Returns
    -------
    Group
        The group as it is now. It is as it was if no label is in the slice.

    Raises
    ------
    ArgumentError
        If the slice does not name the first part of the dimension, or nothing would remain.
    ConflictError
        If another writer has changed the group meanwhile, or its arrays have different lengths.
    NodeExistsError
        If another writer holds the place.
    StoreCapabilityError
        If the store commits by itself, such as Icechunk.

    Examples
    --------
    >>> import numpy as np, xarray as xr, xzarr3
    >>> store = xzarr3.MemoryStore()
    >>> times = xr.date_range("2019-01-01", periods=48, freq="MS")
    >>> ds = xr.Dataset({"t2m": ("time", np.arange(48.0))}, {"time": times})
    >>> _ = xzarr3.to_zarr(ds.chunk(time=12), store)
    >>> xzarr3.drop(store, time=slice(None, "2020"))["t2m"].shape
    (24,)
    >>> str(xzarr3.open_dataset(store).time[0].values)[:10]
    '2021-01-01'
    """
    check_asked(progress)
    if not isinstance(indexers, (Mapping, type(None))):
        raise ArgumentTypeError(f"indexers={indexers!r}; accepted: a mapping of a dimension to a slice")
    given = {**(indexers or {}), **indexers_kwargs}
    if len(given) != 1:
        raise ArgumentError(
            f"found {len(given)} dimensions in {sorted(map(str, given))}; accepted: one, as in "
            "drop(store, time=slice(None, '2020'))"
        )
    ((dim, labels),) = given.items()
    if not isinstance(labels, slice) or labels.start is not None or labels.step is not None:
        raise ArgumentTypeError(
            f"{dim}={labels!r} does not name the first part of a dimension; accepted: a slice with an end "
            "and neither start nor step, as in slice(None, '2020'); Array.resize() drops the last part"
        )
    threads = asked_threads(threads)
    place = open_store(store, mode="r+", storage_options=storage_options)
    path = normal_path(path)
    asked = partial(_asked, dim, labels, finish_interrupted(place, path))
    group = shift(place._current(), path, dim, asked, progress=progress, threads=threads)
    return group if group.store is place else open_group(place, path, mode="r+")


def _asked(dim: str, labels: slice, is_finished: bool, group: Group, _: object) -> Shift:
    """The first elements that a slice of labels selects leave."""
    with open_dataset(group.store, group=group.path, chunks=None) as dataset:
        sizes, index = dataset.sizes, dataset.indexes.get(dim)
    if dim not in sizes:
        raise ArgumentError(
            f"'/{group.path}' in {group.store} has no dimension {dim!r}; {one_of(dim, map(str, sizes))}"
        )
    if index is None:
        if not isinstance(labels.stop, (int, np.integer)) or labels.stop < 0:
            raise ArgumentTypeError(
                f"{dim}={labels!r}: the dimension has no coordinate; accepted: a slice that ends at a number "
                "of elements, as in slice(None, 10)"
            )
        if is_finished:
            raise ConflictError(
                f"a write to '/{group.path}' in {group.store} was interrupted, and is finished now; {dim!r} "
                f"has {sizes[dim]} elements, nothing more was dropped; repeat the call to drop more"
            )
        return Shift(min(int(labels.stop), sizes[dim]))
    try:
        found = index.slice_indexer(None, labels.stop)
    except (AssertionError, KeyError, TypeError, ValueError, InvalidIndexError) as error:
        raise ArgumentError(
            f"{dim}={labels!r} does not select along the coordinate {dim!r} of '/{group.path}' in "
            f"{group.store}: {error}; give a label of its kind, and for unsorted labels one that is there"
        ) from error
    return Shift(len(range(*found.indices(sizes[dim]))))
