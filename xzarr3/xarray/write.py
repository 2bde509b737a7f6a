"""Writes xarray datasets: :func:`to_zarr`.

A dataset is one node, a tree several. :mod:`xzarr3.xarray.plan` encodes them, and
:mod:`xzarr3.xarray.compare` compares them with the stored nodes, before the first byte is written.
:mod:`xzarr3.xarray.commit` then carries out the plan, and :mod:`xzarr3.xarray.execute` writes the values of
dask arrays. Data are stored first, in a stage if they replace something, then the documents, the document of
the group last.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from dask.delayed import Delayed
from xarray import DataArray, Dataset, DataTree

from xzarr3.api import open_group
from xzarr3.commit.recover import finish_interrupted
from xzarr3.commit.replace import check_resumable
from xzarr3.errors import ArgumentError, StoreOptionError, listed, one_of, short_traceback, some
from xzarr3.formats import ZarrFormat
from xzarr3.groups import Group
from xzarr3.nodes.node import locate_node, normal_path
from xzarr3.quantities import check_switches
from xzarr3.stores import MemoryStore, StoreLike
from xzarr3.stores.open import is_repository, was_made, with_version
from xzarr3.xarray.commit import commits
from xzarr3.xarray.compare import compare
from xzarr3.xarray.execute import values_later, write_now
from xzarr3.xarray.plan import WriteOptions, check_group_path, nodes_of

if TYPE_CHECKING:
    from xzarr3.stores.icechunk import RepositoryCommit

WriteMode: TypeAlias = Literal["w", "w-", "a", "a-", "r+"]
Region: TypeAlias = Mapping[Any, slice | Literal["auto"]] | Literal["auto"]
"""Type of ``region=``."""

_MODES = ("w", "w-", "a", "a-", "r+")


@overload
def to_zarr(
    dataset: Dataset | DataArray | DataTree,
    store: StoreLike | None = ...,
    mode: WriteMode | None = ...,
    group: str | None = ...,
    encoding: Mapping[Any, Mapping[str, Any]] | None = ...,
    *,
    compute: Literal[True] = ...,
    **options: Any,
) -> Group: ...


@overload
def to_zarr(
    dataset: Dataset | DataArray | DataTree,
    store: StoreLike | None = ...,
    mode: WriteMode | None = ...,
    group: str | None = ...,
    encoding: Mapping[Any, Mapping[str, Any]] | None = ...,
    *,
    compute: Literal[False],
    **options: Any,
) -> Delayed: ...


@short_traceback  # type: ignore[misc]  # The overloads do not name all options.
def to_zarr(
    dataset: Dataset | DataArray | DataTree,
    store: StoreLike | None = None,
    mode: WriteMode | None = None,
    group: str | None = None,
    encoding: Mapping[Any, Mapping[str, Any]] | None = None,
    *,
    compute: bool = True,
    consolidated: bool | None = None,
    append_dim: Hashable | None = None,
    prepend_dim: Hashable | None = None,
    region: Region | None = None,
    safe_chunks: bool = True,
    align_chunks: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    zarr_format: ZarrFormat | None = None,
    write_empty_chunks: bool | None = None,
    chunkmanager_store_kwargs: Mapping[str, Any] | None = None,
    write_inherited_coords: bool = False,
    widen_units: bool = False,
    check_labels: bool = True,
    progress: bool = False,
    resume: bool = False,
    branch: str | None = None,
    message: str | None = None,
) -> Group | Delayed:
    """Write a dataset, a data array or a tree of datasets to a Zarr store.

    It reads back the same with ``engine="xzarr3"`` and ``engine="zarr"``: values that would be read as others
    are refused, before anything is written, or while dask arrays are computed. The page "What is guaranteed"
    tells what a failed write leaves.

    Parameters
    ----------
    dataset : xarray.Dataset, xarray.DataArray or xarray.DataTree
        A node of a tree becomes a group, at or below ``group``; pandas' nullable types become ``optional``.
    store : path, file URL, Store or icechunk.Repository, optional
        By default a new store in memory; it is the store of the returned group. To a repository the whole
        call is one commit, also from the workers of a cluster, and none after an error.
    mode : {"w-", "w", "a", "a-", "r+"}, optional
        ``w-`` writes only where nothing exists. ``w`` replaces a group, which stays until all new data are
        stored, and keeps what lies beside its nodes. ``a`` sets existing variables and adds new ones; ``r+``
        only sets. In both, the groups of a tree change one after the other; an error leaves some changed.
        By default ``r+`` with ``region``, else ``w-``. With ``append_dim``, variables without it are compared
        by default, stored with ``a``, left alone with ``a-``. Not with ``prepend_dim``.
    group : str, optional
        Path of the group to write to; the root by default.
    encoding : mapping of str to mapping, optional
        How to store new variables, by name, in place of their own ``encoding``. Keys: ``chunks`` (an item may
        be a tuple of lengths), ``shards``, ``compressors``, ``filters``, ``serializer``, ``fill_value``,
        ``chunk_key_encoding``, ``write_empty_chunks``, ``order``; ``dtype``, ``scale_factor``,
        ``add_offset``, ``_FillValue``, ``missing_value``, ``units``, ``calendar``. For a tree, by node path.
    compute : bool
        False writes what is in memory now, and returns a Delayed that writes the values of dask arrays.
    consolidated : bool, optional
        Whether the root contains the documents of all nodes; by default where the format supports that.
    append_dim, prepend_dim : str, optional
        The dimension along which to append, or to put the dataset before the first element, as one change.
        All stored variables with it must be given. Not for trees.
    region : mapping of str to slice or "auto", or "auto", optional
        The part of the variables to write, by dimension; ``"auto"`` finds it by labels. Not for trees.
    safe_chunks, align_chunks : bool
        Accepted as xarray has them. Blocks of any chunking are always written safely.
    storage_options : mapping, optional
        See :func:`xzarr3.open_store`.
    zarr_format : {3, 2, "3-draft"}, optional
        By default the format of what exists, or 3. In format 2 the fill value is the ``_FillValue``.
    write_empty_chunks, chunkmanager_store_kwargs : bool, mapping, optional
        Whether to store chunks of only the fill value, too; and options for dask's scheduler.
    write_inherited_coords, widen_units : bool
        Write inherited coordinates with each node of a tree. Store times again in finer units if appended
        ones need them; by default such times are refused.
    check_labels : bool
        Refuse to append labels that repeat or go back, also before the first; and other ones of a region.
    progress : bool
        Show the progress bar of dask, or of the cluster, for the values of dask arrays.
    resume : bool
        With ``w`` and ``w-``: keep what an interrupted write stored, write the rest.
    branch, message : str, optional
        The branch of a repository, by default ``"main"``, and the message of the commit.

    Returns
    -------
    Group or dask.delayed.Delayed
        The group, or a Delayed that writes the rest of it. ``group.store.snapshot`` is that of a repository.

    Raises
    ------
    NodeExistsError, NodeNotFoundError
        With ``w-`` if something exists, or with ``w`` files of others; with ``r+`` if nothing does.
    ValueError, TypeError
        If the dataset cannot be stored exactly with these settings, or does not match the stored one.
    ConflictError, ChangedError
        If another writer, or commit to the branch, changed the same; nothing is written then.
    StoreError
        If the store cannot be written; then the old dataset is still there, or none.

    Examples
    --------
    >>> import numpy as np, xarray as xr, xzarr3
    >>> ds = xr.Dataset({"t": ("time", np.array([280.5, np.nan]))}, coords={"time": [0, 1]})
    >>> group = to_zarr(ds, encoding={"t": {"dtype": "int16", "scale_factor": 0.1, "_FillValue": -999}})
    >>> _ = to_zarr(ds.assign_coords(time=[2, 3]), group.store, append_dim="time")
    >>> xzarr3.open_array(group.store, "t")[:].tolist()
    [2805, -999, 2805, -999]
    """
    _check_prepend(prepend_dim, compute, mode=mode, append_dim=append_dim, region=region)
    append_dim = prepend_dim if append_dim is None else append_dim
    others: Any = "write" if append_dim is None else {None: "compare", "a-": "keep"}.get(mode, "write")
    asked = WriteOptions(
        mode=chosen_mode(mode, append_dim, region),
        encoding=encoding or {},
        consolidated=consolidated,
        append_dim=append_dim,
        region=region,
        write_empty_chunks=write_empty_chunks,
        write_inherited_coords=write_inherited_coords,
        zarr_format=zarr_format,
        widen_units=widen_units,
        resume=resume,
        check_labels=check_labels,
        prepends=prepend_dim is not None,
        others=others,
    )
    optional = {"consolidated": consolidated, "write_empty_chunks": write_empty_chunks}
    check_switches(
        optional, **optional, compute=compute, safe_chunks=safe_chunks, align_chunks=align_chunks,
        write_inherited_coords=write_inherited_coords, widen_units=widen_units, check_labels=check_labels,
        resume=resume, progress=progress,
    )  # fmt: skip
    if resume and (asked.mode not in ("w-", "w") or not compute):
        raise ArgumentError(
            "resume=True goes with mode='w-' or mode='w' and compute=True: a region or an append that was "
            f"interrupted is simply repeated; found mode={asked.mode!r}, compute={compute}; leave resume out"
        )
    commit = None
    if is_repository(store):
        commit = _begun(store, branch or "main", asked, compute, storage_options)
        store = commit.store
    elif branch is not None or message is not None:
        with_version(store, None, branch=branch, message=message)
    if store is None:
        store = MemoryStore()
    opened, path = locate_node(store, normal_path(group or ""), storage_options, mode="a")
    ours, shown, opened = opened if was_made(opened, store) else None, opened, opened._current()
    with ExitStack() as closing:
        if ours is not None:  # Closing completes a zip; after an error it stays as it was before.
            closing.enter_context(ours)
        is_finished = asked.prepends and finish_interrupted(opened, path)
        check_group_path(path)
        if asked.resume and commit is None:
            check_resumable(opened)
        plans = compare(nodes_of(dataset, path, asked), opened, asked)
        if asked.prepends:
            from xzarr3.xarray.prepend import put_before  # Loads what copies.

            group_now = put_before(plans[0], chunkmanager_store_kwargs, progress, is_finished=is_finished)
            if group_now is not None:
                return group_now if shown is opened else open_group(shown, path, mode="r+")
        writes = commits(plans)
        save = None
        if commit is not None and asked.resume:
            writes[0].stage(commit)
            save = commit.save
        if not compute:
            later = values_later(writes, ours)
            closing.pop_all()
            return later
        write_now(writes, chunkmanager_store_kwargs, progress, save)
    if commit is None:
        return writes[0].group(shown)
    return writes[0].group(commit.commit(message or _message(dataset, asked, path)))


def _begun(
    repository: Any,
    branch: str,
    asked: WriteOptions,
    compute: bool,
    storage_options: Mapping[str, Any] | None,
) -> RepositoryCommit:
    """Begin a commit to a repository; refuses options that do not go with it."""
    if not compute:
        raise ArgumentError(
            "compute=False does not go with an Icechunk repository: a write is one commit; write to a "
            "session of your own, and commit it"
        )
    if storage_options:
        raise StoreOptionError(
            f"storage_options {listed([*storage_options])} have no meaning for a write to an Icechunk "
            "repository; name the branch as branch=; tags and snapshots cannot be written"
        )
    from xzarr3.stores.icechunk import RepositoryCommit

    return RepositoryCommit(repository, branch)


def _message(data: Dataset | DataArray | DataTree, asked: WriteOptions, path: str) -> str:
    """The message of a commit that was given none."""
    names = [str(name) for name in getattr(data, "data_vars", None) or [getattr(data, "name", None)] if name]
    how = f"append along '{asked.append_dim}'" if asked.append_dim is not None else f"mode '{asked.mode}'"
    return f"xzarr3.to_zarr, {how}: {some(names) if names else 'coordinates'} in '/{path}'"


def _check_prepend(prepend_dim: object, compute: bool, **others: object) -> None:
    """Refuse arguments that do not go with ``prepend_dim``; None is one that was not given."""
    others["compute"] = None if compute is True else compute
    for name, value in others.items():
        if prepend_dim is not None and value is not None:
            raise ArgumentError(
                f"{name}={value!r} does not go with prepend_dim={prepend_dim!r}, which puts all variables "
                f"before the first element of the stored ones, as one change; leave {name} out"
            )


def chosen_mode(mode: str | None, append_dim: Hashable | None, region: object) -> WriteMode:
    """The mode of a write; if None, the default that follows from ``append_dim`` and ``region``.

    Raises
    ------
    ValueError
        If the mode is unknown, or does not fit ``append_dim`` or ``region``.
    """
    if mode is None:
        mode = "a" if append_dim is not None else "r+" if region is not None else "w-"
    if mode not in _MODES:
        raise ArgumentError(f"mode={mode!r} is not supported by to_zarr; {one_of(mode, _MODES)}")
    if append_dim is not None and mode not in ("a", "a-"):
        raise ArgumentError(
            f"cannot set append_dim unless mode='a' or mode=None; found mode={mode!r}; leave mode out"
        )
    if region is not None and mode not in ("a", "a-", "r+"):
        raise ArgumentError(
            f"cannot set region unless mode='a', mode='a-', mode='r+' or mode=None; found mode={mode!r}; "
            "leave mode out"
        )
    return mode  # type: ignore[return-value]
