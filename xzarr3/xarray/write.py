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
from typing import Any, Literal, TypeAlias, overload

from dask.delayed import Delayed
from xarray import DataArray, Dataset, DataTree

from xzarr3.commit.resume import check_resumable
from xzarr3.dask.bars import check_shown
from xzarr3.errors import ArgumentError, one_of, short_traceback
from xzarr3.formats import ZarrFormat, parse_format
from xzarr3.formats.nonfinite_attributes import Telling
from xzarr3.groups import Group
from xzarr3.nodes.node import locate_node, normal_path
from xzarr3.stores import MemoryStore, Store, StoreLike
from xzarr3.stores.open import was_made
from xzarr3.xarray.commit import Commit
from xzarr3.xarray.compare import compare
from xzarr3.xarray.execute import Started, values_later
from xzarr3.xarray.plan import WriteOptions, check_group_path, nodes_of

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
) -> Group | Delayed:
    """Write a dataset, a data array or a tree of datasets to a Zarr store.

    The result reads back the same with ``engine="xzarr3"`` and with xarray's own ``engine="zarr"``. The
    arguments are those of :meth:`xarray.Dataset.to_zarr` and :meth:`xarray.DataTree.to_zarr`. Everything is
    checked before anything is written. With ``mode="w"`` the old dataset stays in place until all new data
    are stored, so ``dataset`` may even read from it. If the write fails before that, the old dataset stays.

    Parameters
    ----------
    dataset : xarray.Dataset, xarray.DataArray or xarray.DataTree
        Each node of a tree becomes a group, at or below ``group``.
    store : path, file URL or Store, optional
        By default a new store in memory; it is the store of the returned group.
    mode : {"w-", "w", "a", "a-", "r+"}, optional
        ``w-`` writes only where nothing exists yet. ``w`` replaces a group and everything below it, but keeps
        files that are not part of a Zarr hierarchy, such as ``.DS_Store`` or a README. ``a`` sets the values
        of existing variables, and adds new ones. ``r+`` sets values and changes nothing else. By default
        ``r+`` with ``region``, and ``w-`` otherwise. With ``append_dim``, the mode decides about existing
        variables without that dimension. By default they are compared with the dataset, and an append of
        other values is refused. ``a`` stores those of the dataset, except for index coordinates, which are
        compared. ``a-`` leaves them as they are.
    group : str, optional
        Path of the group to write to; the root by default. Groups above it are made if they do not exist.
    encoding : mapping of str to mapping, optional
        How to store variables, by name. It replaces their own ``encoding``. Keys for the storage are
        ``chunks``, ``shards``, ``compressors``, ``filters``, ``serializer``, ``fill_value``,
        ``chunk_key_encoding``, ``write_empty_chunks`` and ``order``. Keys for the values are ``dtype``,
        ``scale_factor``, ``add_offset``, ``_FillValue``, ``missing_value``, ``units`` and ``calendar``.
        An item of ``chunks`` may be a tuple of the lengths of all chunks along a dimension, if the format
        supports that. Existing variables that are not replaced accept no ``encoding``: they keep their own,
        and new values are stored with it. For a tree, a mapping of such mappings by the path of the node, as
        in ``tree.groups``.
    compute : bool
        True writes now. False writes all documents and all values that are in memory now, as xarray does, and
        returns a Delayed that writes the values of dask arrays when it is computed. Until then new arrays
        read as the fill value, and other calls may write regions of them; a region of existing arrays keeps
        its old values. So with dask arrays, False is refused where stored data would be gone before the new
        values are there: with ``mode="w"`` over existing data, and in an append. A zip that this call opened
        by its path is closed by the last task, and contains the values of dask arrays only after that.
    consolidated : bool, optional
        Whether the root shall contain the documents of all nodes. True by default, if the format supports
        that. Existing consolidated copies are updated in any case.
    append_dim : str, optional
        The dimension along which the dataset is appended to existing variables. All stored variables with
        this dimension must be in the dataset. Only these, and variables that are new to the store, are
        written; see ``mode``. If there is no dataset yet, one is made whose chunks leave room along this
        dimension; ``unlimited_dims`` in the encoding of a dataset does the same.
    region : mapping of str to slice or "auto", or "auto", optional
        The part of the variables to write, by dimension. ``"auto"`` finds it from the values of the
        coordinate. Indexes along a region are not written, unless they are unwritten in the store.
    safe_chunks, align_chunks : bool
        Accepted for compatibility with xarray. Blocks of any chunking are always written safely.
    storage_options : mapping, optional
        Further options of the store; see :func:`xzarr3.open_store`.
    zarr_format : {3, 2, "3-draft"}, optional
        By default the format of what exists, or 3 if nothing does. In format 2 the fill value of an array is
        its ``_FillValue``, as in xarray.
    write_empty_chunks : bool, optional
        Store chunks that contain only the fill value as well; by default they are left out, except for those
        of scalars and of index coordinates.
    chunkmanager_store_kwargs : mapping, optional
        Options for dask's scheduler.
    write_inherited_coords : bool
        Write inherited coordinates with each node of a tree. By default a coordinate is written only to the
        node that defines it, where it is found when the whole tree is opened.
    widen_units : bool
        If appended times cannot be stored exactly in the stored units, store the whole variable again in
        finer units. Otherwise such times are refused.
    check_labels : bool
        Refuse to append labels that are in the store already, or after which an index coordinate that
        increases or decreases would no longer do so. Refuse to write a region whose index coordinates differ
        from those of the dataset. Pass False to write all the same.
    progress : bool
        Show the progress bar of dask, or of the cluster, for the values of dask arrays.
    resume : bool
        Keep what is written if the write is interrupted, and write only the rest if a write with the same
        data and settings was interrupted; see below. For modes ``w-`` and ``w``.

    Returns
    -------
    Group or dask.delayed.Delayed
        The group that was written, or a Delayed that writes it.

    Raises
    ------
    NodeExistsError
        If ``mode`` is ``w-`` and something exists. If ``mode`` is ``w`` and there are files that may be
        chunks of an array whose document cannot be read, or that lie where a new array needs a chunk.
    NodeNotFoundError
        If ``mode`` is ``r+`` and nothing exists.
    ValueError, TypeError
        If the dataset cannot be stored with these settings, or does not match the stored one. If
        ``compute=False`` would replace existing data by fill values, or append them.
        :class:`MetadataError` is one of these and names the variable and the attribute or setting.
    ConflictError
        If another writer has changed the length of a variable since the write was planned. Nothing is
        appended then.
    ChangedError
        If another writer replaced a variable during the append. The variable stays as that writer made it.
    StoreError
        If the store cannot be written. Then either the old dataset is still there, or no dataset is.

    Notes
    -----
    *Dask arrays.* They need not be chunked as they are stored: no two tasks write the same stored unit. If a
    task of a Delayed fails, what other tasks have stored stays, and the Delayed may be computed again.

    *Checks.* Values are checked while they are encoded: values in memory before anything is written, values
    of dask arrays in the task that writes them. If a check fails, the call fails and removes what it stored.
    Values that are compared with the store are compared as they would be stored. Labels that are floating
    point numbers may differ by a thousandth of the distance between neighbours; then the stored ones stay.
    Values of existing variables are refused if their attributes ``units`` or ``calendar`` differ from the
    stored ones, or if they are packed in another way, as ``scale_factor`` among their attributes tells.

    *Replacing in a directory.* New data are staged in ``.xzarr3-staged-<id>/new`` at the top of the store
    until they are complete. Then the old directories are renamed to ``.xzarr3-staged-<id>/old`` and the new
    ones to their places, and ``old`` is removed last. Between the renames readers find no group. These are
    two renames for a group below the root, and one for each variable for the root. (The draft of version 3
    keeps a group in three places and has groups without documents. So a reader may find a group without its
    attributes for a moment and, in stores that cannot rename, without some of its arrays.) A process that is
    killed before the renames leaves the old dataset and the staging directory. A later call of this function
    for the same store removes that directory once it has not changed for a day. After a kill between the
    renames, the next reader that opens the group finishes them, or the next writer, or
    :func:`xzarr3.recover`.

    *Replacing in other stores.* Other stores cannot rename. Where nothing exists, data are stored in place
    and the documents last. Otherwise new data are staged under a key that also begins with
    ``.xzarr3-staged-``, while the old data stay readable. Then one swap follows. The lease of the group
    records the swap. The old documents are erased, then the old chunks. The new chunks are copied within the
    store, and the documents are stored, the one of the group last. Then the staged data are erased. A process
    that is killed before the swap leaves the old dataset. A process that is killed during the swap leaves
    everything that is needed to finish it; :func:`xzarr3.recover` finishes it, or the next write to the
    group. Until then a reader that opens the group gets an :class:`IncompleteWriteError`, which names the
    writer and its start time.

    *Foreign files.* ``mode="w"`` erases only keys of the hierarchy: documents, chunks of the existing arrays,
    and keys that have the name of a chunk of a new array. All other files stay, also in the directories of
    arrays, and also files that appear during the write. In a directory they are hard-linked into the new data
    before anything is renamed, or copied if the file system has no hard links. So a process that is killed
    leaves them in their place or in ``old``; the process that finishes the renames brings them back.

    *Concurrent writers.* In a directory with ``mode="w-"``, a node that has appeared since the call stays,
    and the write fails. Two writers that replace the same group at the same moment take turns: a lease of the
    group is held during the renames. Other stores that can erase hold a lease, the key ``.xzarr3-lease`` in
    the group, during a first write and during a replacement; other calls for the same group then raise
    NodeExistsError. Groups above and below it have leases of their own. Between processes a lease is as
    reliable as the conditional puts of the store. A zip has no lease, but only one writer. The lease of a
    killed process is ignored at once on the same host. On another host the next writer waits until the lease
    has not been renewed for 45 seconds. The duration of a write and the clocks of the hosts do not matter. A
    write fails if it stored nothing for a day and another writer has removed what it had stored.

    *Appending.* Appended values are first stored past the end of the variables, where no reader looks. Then
    the documents of all variables get their new shapes together, on the condition that no other writer has
    changed them. The consolidated copy in the root follows as one value. A reader of the consolidated copy
    sees the old or the new dataset at any time, also after a crash. A reader without it may find variables of
    two lengths while the documents are stored, and after a crash during that; the error of the next append
    tells how to shorten the longer ones. An append that fails erases what it stored, and its tasks that still
    run store no more. Two things may remain past the end of a variable: what a task in another process was
    storing at that moment, and what a killed call stored. The next append overwrites
    it and :meth:`Array.resize` erases it, but other software that lengthens the variable would expose it. A
    writer does not wait for a process that was killed on the same host, and waits 45 seconds for one that was
    killed elsewhere. While a variable grows, its key ``.xzarr3-lease`` names the writer. Values that are set
    by ``r+``, ``region`` or ``a`` take effect one stored unit after the other. A variable whose units are
    widened is replaced like a dataset with ``mode="w"``, and is absent from consolidated copies meanwhile.

    *Precision.* Times that are stored as floating point numbers may be off by a microsecond. Integers that a
    floating point type would round are refused, and so are values that equal the ``_FillValue`` of the
    encoding, since they would be read as missing. A ``_FillValue`` among the attributes says that such values
    are missing. For existing variables, values that unpacked integers cannot represent, such as fractions,
    are refused. A first write rounds them, as xarray does, and warns; with a ``scale_factor`` it does not.

    *Missing text.* None and NaN in text are stored as the ``_FillValue`` or ``missing_value`` of the
    encoding, a text that no value has, and are read as NaN. Without such a mark they are refused. Format 3
    stores it as ``missing_value``, since xarray's own engine cannot open text with a ``_FillValue`` there.

    *Resuming.* With ``resume=True``, what a kill, an error or Ctrl-C leaves stays, and the same call with
    mode ``w-`` or ``w`` writes the rest: a stored shard or chunk that exists is done. Those that hold only
    the fill value are not stored, so they are computed again. The result has the same bytes as an
    uninterrupted write.
    A call is the same if the place, the layout of the arrays and the names of the dask arrays are the same.
    Dask derives these names from files and from values in memory, but not for random numbers or
    ``name=False``. A source that others change meanwhile may be read partly before and partly after that. A
    different call warns and starts again. Attributes and values that are not in dask arrays may differ. Two
    such calls at the same time are refused. A killed call is detected at once on the same host, and after 45
    seconds elsewhere. What was stored for a group and is not resumed is removed by the next call for the same
    group that finds its lease. Without ``fsync=True``, what was written to a directory before the system
    crashed is written again. Regions and appends that were interrupted are simply repeated.

    *NaN and infinities.* JSON has neither. In attributes, at any depth, they are stored as the text "NaN",
    "Infinity" and "-Infinity". A ``missing_value`` that is NaN is left out, because NaN always counts as
    missing. An infinite ``missing_value`` becomes the ``_FillValue`` if there is none or it is NaN. The
    ``_FillValue`` itself may be NaN or infinite, because documents have a special form for it. One warning
    names the attributes and what was done to them. So every dataset that was read can be written, with the
    same decoded values.

    *Reading from the target.* A dask array may be computed from data that the same call replaces: with mode
    "w", and with whole variables in the other modes, the old values stay until all new ones are stored. A
    write into a region that it also reads is refused.

    Examples
    --------
    >>> import numpy as np, xarray as xr, xzarr3
    >>> ds = xr.Dataset({"t": ("time", np.array([280.5, np.nan]))}, coords={"time": [0, 1]})
    >>> store = xzarr3.MemoryStore()
    >>> to_zarr(ds, store, encoding={"t": {"dtype": "int16", "scale_factor": 0.1, "_FillValue": -999}})
    <xzarr3.Group / of <MemoryStore, 5 keys>>
    >>> xzarr3.open_array(store, "t")[:].tolist()
    [2805, -999]
    >>> _ = to_zarr(ds.assign_coords(time=[2, 3]), store, append_dim="time")
    >>> xzarr3.open_array(store, "t")[:].tolist()
    [2805, -999, 2805, -999]
    """
    others: Any = "write" if append_dim is None else {None: "compare", "a-": "keep"}.get(mode, "write")
    mode = chosen_mode(mode, append_dim, region)
    check_shown(progress)
    if compute not in (True, False):
        raise ArgumentError(f"compute={compute!r} is not supported by to_zarr; accepted: True, False")
    if resume and (mode not in ("w-", "w") or not compute):
        raise ArgumentError(
            "resume=True goes with mode='w-' or mode='w' and compute=True: a region or an append that was "
            f"interrupted is simply repeated; found mode={mode!r}, compute={compute}; leave resume out"
        )
    if zarr_format is not None:
        parse_format(zarr_format)
    path = normal_path(group or "")
    asked = WriteOptions(
        mode=mode,
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
        others=others,
    )
    if store is None:
        store = MemoryStore()
    opened, path = locate_node(store, path, storage_options, mode="a")
    with ExitStack() as ours:
        if was_made(opened, store):  # Closing completes a zip; after an error it stays as it was before.
            ours.enter_context(opened)
        check_group_path(path)
        if resume:
            check_resumable(opened)
        if not compute:
            write = _planned(dataset, opened, path, asked)
            later = values_later(write, opened if was_made(opened, store) else None)
            ours.pop_all()
            return later
        started = Started(_planned(dataset, opened, path, asked), chunkmanager_store_kwargs)
        started.write_blocks(progress)
        started.write.finish(started.begun)
    return started.write.group()


def _planned(data: Dataset | DataArray | DataTree, store: Store, path: str, asked: WriteOptions) -> Commit:
    with Telling():
        nodes = nodes_of(data, path, asked)
        return Commit(compare(nodes, store, path, asked))


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
