"""Writing xarray's datasets: :func:`to_zarr`.

A dataset is one node, a tree several. They are encoded, see :mod:`xzarr3.xarray.plan`, and compared with
what is there, :mod:`xzarr3.xarray.compare`; everything is checked before the first byte is written. What
was planned is then carried out, :mod:`xzarr3.xarray.commit`, the values of dask arrays by dask,
:mod:`xzarr3.xarray.execute`. Data come first, in a place of their own where there is something to replace,
and documents after them, that of the group last.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping
from contextlib import ExitStack, suppress
from typing import Any, Literal, TypeAlias, TypedDict, Unpack, overload

from dask.delayed import Delayed
from xarray import DataArray, Dataset, DataTree

from xzarr3.commit.resume import check_resumable
from xzarr3.errors import ChangedError, listed
from xzarr3.formats import ZarrFormat, parse_format
from xzarr3.formats.nonfinite import Telling
from xzarr3.group import Group
from xzarr3.nodes.node import normal_path
from xzarr3.progress import Asked, check_asked
from xzarr3.stores import MemoryStore, Store, StoreLike, open_store
from xzarr3.xarray.commit import Commit, OutdatedPlanError
from xzarr3.xarray.compare import compare
from xzarr3.xarray.execute import Started, templated, written_later
from xzarr3.xarray.plan import Request, check_group_path, nodes_of

WriteMode: TypeAlias = Literal["w", "w-", "a", "a-", "r+"]
ReplaceHow: TypeAlias = Literal["staged", "in place"]
Region: TypeAlias = Mapping[Any, slice | Literal["auto"]] | Literal["auto"]
"""What ``region=`` takes."""

_MODES = ("w", "w-", "a", "a-", "r+")


class _Options(TypedDict, total=False):
    """What :func:`to_zarr` takes by name, whether it writes now or later."""

    consolidated: bool | None
    append_dim: Hashable | None
    region: Region | None
    safe_chunks: bool
    align_chunks: bool
    storage_options: Mapping[str, Any] | None
    zarr_format: ZarrFormat | None
    write_empty_chunks: bool | None
    chunkmanager_store_kwargs: Mapping[str, Any] | None
    write_inherited_coords: bool
    widen_units: bool
    progress: Asked
    resume: bool
    replace: ReplaceHow


@overload
def to_zarr(
    dataset: Dataset | DataArray | DataTree,
    store: StoreLike | None = ...,
    mode: WriteMode | None = ...,
    group: str | None = ...,
    encoding: Mapping[Any, Mapping[str, Any]] | None = ...,
    *,
    compute: Literal[True] = ...,
    **options: Unpack[_Options],
) -> Group: ...


@overload
def to_zarr(
    dataset: Dataset | DataArray | DataTree,
    store: StoreLike | None = ...,
    mode: WriteMode | None = ...,
    group: str | None = ...,
    encoding: Mapping[Any, Mapping[str, Any]] | None = ...,
    *,
    compute: Literal[False, "later"],
    **options: Unpack[_Options],
) -> Delayed: ...


def to_zarr(
    dataset: Dataset | DataArray | DataTree,
    store: StoreLike | None = None,
    mode: WriteMode | None = None,
    group: str | None = None,
    encoding: Mapping[Any, Mapping[str, Any]] | None = None,
    *,
    compute: bool | Literal["later"] = True,
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
    progress: Asked = False,
    resume: bool = False,
    replace: ReplaceHow = "staged",
) -> Group | Delayed:
    """Write a dataset, a data array or a tree of datasets to a Zarr store.

    What is written reads back the same with ``engine="xzarr3"`` and with xarray's own ``engine="zarr"``, and
    the arguments are those of :meth:`xarray.Dataset.to_zarr` and :meth:`xarray.DataTree.to_zarr`. Nothing is
    written before everything is known to fit. With ``mode="w"`` the old dataset stays in place until all new
    data are stored, so that it may even be what ``dataset`` reads from. If something fails before, it stays.

    Parameters
    ----------
    dataset : xarray.Dataset, xarray.DataArray or xarray.DataTree
        Of a tree each node becomes a group, below the one that is written to.
    store : path, file URL or Store, optional
        By default a new store in memory, that of the group that is returned.
    mode : {"w-", "w", "a", "a-", "r+"}, optional
        ``w-`` writes only where there is nothing yet; ``w`` replaces a group with all that is below it, but
        keeps files that are no part of a Zarr hierarchy, such as ``.DS_Store`` or a README. ``a``
        sets the values of variables that are there, and adds those that are not; ``a-`` with ``append_dim``
        leaves alone what has not this dimension and is there. ``r+`` sets values and nothing else. By default
        ``a`` with ``append_dim``, ``r+`` with ``region``, and ``w-`` otherwise.
    group : str, optional
        Path of the group to write to; the root by default. Groups above are made if they are not there.
    encoding : mapping of str to mapping, optional
        How to store variables, by name, in place of what their own ``encoding`` says: ``chunks``,
        ``shards``, ``compressors``, ``filters``, ``serializer``, ``fill_value``, ``chunk_key_encoding``,
        ``write_empty_chunks``, ``order``; and for the values ``dtype``, ``scale_factor``, ``add_offset``,
        ``_FillValue``, ``missing_value``, ``units``, ``calendar``. ``chunks`` may have for a dimension
        the lengths of its chunks, if the format can say that. Not for variables that are there and are not
        replaced: they keep their encoding, and new values are stored as it says. For a tree, mappings of
        these by path of the node, as ``tree.groups`` has it.
    compute : bool or "later"
        Write now. With False, a new dataset is there at once, with all that is in memory, and the Delayed
        that is returned writes the dask arrays when it is computed; until then they hold the fill value, and
        other calls may write regions of them. A dataset that is there stays as it is until the Delayed is
        computed, which writes all values and documents then; with ``"later"`` that goes for a new dataset,
        too, and for what ``mode="w"`` replaces. A zip that was opened here by its path is closed by the last
        task, and has the values of dask arrays since then.
    consolidated : bool, optional
        Whether the root shall hold the documents of all nodes; it does by default, if the format knows
        of that. Copies that are there already are kept true in any case.
    append_dim : str, optional
        The dimension along which variables that are there grow by what the dataset has. All of them that have
        it must be in the dataset. Where there is no dataset yet, one is made, with chunks that leave room
        along this dimension; ``unlimited_dims`` in the encoding of a dataset does the same.
    region : mapping of str to slice or "auto", or "auto", optional
        The part of the variables that is written, by dimension. ``"auto"`` finds it by the values of the
        coordinate. Indexes are not written then.
    safe_chunks, align_chunks : bool
        Accepted for the sake of xarray: blocks of any chunking are written safely, in any case.
    storage_options : mapping, optional
        What the store takes besides; see :func:`xzarr3.open_store`.
    zarr_format : {3, 2, "3-draft"}, optional
        By default that of what is there, and 3 where there is nothing. In 2 the fill value of an array
        is its ``_FillValue``, as xarray has it.
    write_empty_chunks : bool, optional
        Store chunks that hold only the fill value as well; they are left out by default.
    chunkmanager_store_kwargs : mapping, optional
        Options for the scheduler of dask.
    write_inherited_coords : bool
        Write what the nodes of a tree inherit with each of them. By default coordinates are only written
        where they belong, and found there when the whole tree is opened.
    widen_units : bool
        Where appended times cannot be said exactly in the units in which times are stored, store all of the
        variable anew in finer ones; otherwise they are refused.
    progress : bool or callable
        Show how far the writing of dask arrays is; or call it with the bytes that are done and their total.
    resume : bool
        Keep what is written if the write is cut off, and write only what is left if one with the same data
        and settings was; see below. Not for what adds variables to a group that is there.
    replace : {"staged", "in place"}
        How ``mode="w"`` replaces what is there in a store that cannot rename, such as one of objects:
        ``"staged"`` stores the new data beside the old ones, which stay readable until then, and copies them
        to their places within the store; ``"in place"`` erases the old data first and stores the new ones
        once, for who can compute them again. In a directory new data are renamed in either case.

    Returns
    -------
    Group or dask.delayed.Delayed
        The group that was written.

    Raises
    ------
    NodeExistsError
        If something is there and ``mode`` is ``w-``. If ``mode`` is ``w`` and files are there that may be
        chunks of an array whose document cannot be read, or lie where a chunk of a new array would have to.
    NodeNotFoundError
        If nothing is there and ``mode`` is ``r+``.
    ValueError, TypeError
        If the dataset, or what is asked for it, cannot be stored; :class:`MetadataError` is one of these
        and names the variable and the attribute or setting. If it does not go with what is there.
    ConflictError
        If somebody else has changed the length of a variable since the write was planned. Nothing is
        appended then.
    ChangedError
        If a variable was replaced while it was appended to, which leaves it as the other writer made it.
    StoreError
        If the store cannot be written. The old dataset is then still there, or none.

    Notes
    -----
    Dask arrays need not be chunked as they are stored: no two tasks write to the same shard or chunk.
    What is computed later is cleaned up, too, when a task of it fails, whoever computes it: ``.compute()``,
    ``dask.compute``, or the client of a cluster, where that task is not tried again. Then the Delayed may be
    computed once more. Not cleaned up at once is a Delayed that another one was made of, what a worker leaves
    that is killed, what is cancelled, and what runs on a cluster whose scheduler runs no functions of others.

    Values are checked while they are encoded: what is in memory before anything is written, what is in dask
    arrays in the task that is about to write it, so that the call fails and what it stored is removed.

    In a directory, new data lie in ``.xzarr3-staged-<id>/new`` at its top until they are whole. Then old
    directories are renamed to ``.xzarr3-staged-<id>/old``, the new ones to their places, and ``old`` is
    removed last. Between the renames readers find no group: for a group below the root that is two renames,
    for the root one for each variable. (The draft of version 3 keeps a group in three places and has groups
    without documents, so that a reader may find it without its attributes for a moment, and in stores that
    cannot rename without some of its arrays.) A process that is killed before the renames leaves the old
    dataset, and that directory, which goes with a later call of this function for the same store once it has
    not changed for a day. After a kill within the renames the next to open the group finishes them, the next
    to write it, or :func:`xzarr3.recover`.

    Other stores cannot rename. Where nothing is there, data are stored in place, and the documents last. What
    is replaced stays readable while new data are stored below a key that begins in the same way. Then one
    swap follows: the lease of the place says so, the old documents are erased, then the old chunks; the new
    chunks are copied within the store, the documents stored, that of the group last, and what was stored
    beside is erased. A process that is killed before the swap leaves the old dataset. One that is killed in
    it leaves all that is needed to finish it, which :func:`xzarr3.recover` does, or the next write to the
    group; who opens the group meanwhile gets an :class:`IncompleteWriteError`, which says who writes it and
    since when.

    ``mode="w"`` erases only keys of the hierarchy: documents, chunks of the arrays that are there, and what
    has the name of a chunk of an array that is written. All other files stay, also in the directories of
    arrays, and those that come meanwhile: they get a second name among the new data before anything is
    renamed (where a file system knows no second names, they are copied), so that a process that is killed
    leaves them in their place, or in ``old``, from where whoever finishes the renames brings them back.

    Others may write to the same place at the same time. In a directory, what has appeared there since the
    call stays, and the write fails, if ``mode`` is ``w-``. Of two that replace one group at the same moment
    the second one waits, as a lease of the place is held while something is renamed.
    Other stores that can erase hold a lease of the place, a key ``.xzarr3-lease`` in the group, during a
    first write and while something is replaced; other calls for this group then raise NodeExistsError.
    Groups above and below it have places of their own. Between processes a lease is as sure as the
    conditional puts of the store are; zips have none, but one writer. That of a killed process is ignored on
    the same host, and elsewhere once it has not been renewed for 45 seconds, which whoever comes next waits
    for; how long a write takes does not matter, and neither do the clocks of the hosts. A write fails if it
    stored nothing for a day and another one has removed what it had stored before.

    What is appended is stored behind the variables first, where no reader looks. Then the documents of all
    variables get their new shapes, together and on condition that nobody else has changed them, and the
    consolidated copy in the root follows as one value: who reads that sees the old dataset or the new one at
    any time, and after a crash. Who reads without it may find variables of two lengths for the moment in
    which the documents are stored, and after a crash in that moment; the next append then tells how to
    shorten the longer ones. Appending that fails erases what it stored, and its tasks that have not ended
    store no more of it. What a task in another process was just storing at that moment may remain behind a
    variable, and so does what a killed call stored without ``resume=True``: the next call that appends writes
    over it, :meth:`Array.resize` erases it, but other software that makes the variable longer would show it.
    While a killed process of the same host is not waited for, others wait 45 seconds for one that was killed
    elsewhere; each variable has a key ``.xzarr3-lease`` while it grows, which says by whom. Values that are
    set by ``r+``, ``region`` or ``a`` are in place one shard or chunk after the other. A variable whose units
    are widened is replaced as a dataset is with
    ``mode="w"``, and is not in consolidated copies for that moment.

    Times that are stored as floating point numbers may be off by a microsecond. What integers that are not
    packed cannot say, fractions among them, is refused where variables are there; a first write rounds, as
    xarray does.

    With ``resume=True`` a journal beside the values says which tiles of the dask arrays are stored, about
    once a second. After a kill, an error or Ctrl-C, the same call writes the rest, and what was being
    written then whole; the result has the same bytes as that of an uninterrupted write. It is the same call
    if the place, the layout of the arrays and the names of the dask arrays are the same, which dask derives
    from files and values in memory but cannot for random numbers or ``name=False``; another one warns and
    begins anew. Attributes and values that are not in dask arrays may differ. What was appended already is
    not appended again. Two such calls at a time are refused; a killed one is known to be so at once on the
    same host, and elsewhere after 45 seconds. What was stored for a group and is not taken up is removed by
    the next call for the same group that finds its lease; what was noted of values that are set or appended
    by a later call, once nobody has taken it up for a day. Without ``fsync=True``, what was written to a
    directory before its system crashed is written again.

    JSON has neither NaN nor infinities. In attributes, at any depth, they are stored as the text "NaN",
    "Infinity" and "-Infinity". A ``missing_value`` that is NaN is left out, as NaN is missing anyway; one
    that is infinite becomes the ``_FillValue`` if that is none or NaN. The ``_FillValue`` itself may be
    either, as it has a form of its own in documents. One warning names the attributes and what became of
    them. So whatever was read can be written, and its decoded values are the same.

    A dask array may be made of what the same call writes: it is put aside in the store first, and in its
    place when all of it is there.

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
    mode = chosen_mode(mode, append_dim, region)
    check_asked(progress)
    if isinstance(compute, str) and compute != "later":
        raise ValueError(f"compute={compute!r} is not supported by to_zarr; accepted: True, False, 'later'")
    if resume and compute is not True:
        raise ValueError("resume=True needs a write that is carried out now; accepted: compute=True")
    if replace not in ("staged", "in place"):
        raise ValueError(f"replace={replace!r} is not supported by to_zarr; accepted: 'staged', 'in place'")
    if replace == "in place" and mode != "w":
        raise ValueError(f"replace='in place' goes with mode='w'; found mode={mode!r}")
    if zarr_format is not None:
        parse_format(zarr_format)
    path = normal_path(group or "")
    asked = Request(
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
        in_place=replace == "in place",
    )
    opened = MemoryStore() if store is None else open_store(store, storage_options, mode="a")
    with ExitStack() as ours:
        if opened is not store:  # A zip is complete once it is closed, and as it was before after an error.
            ours.enter_context(opened)
        check_group_path(path)
        if resume:
            check_resumable(opened)
        if compute is not True:
            write = _planned(dataset, opened, path, asked)
            own = None if opened is store else opened
            is_template = not compute and write.only_creates
            later = templated(write, own) if is_template else written_later(write, own)
            ours.pop_all()
            return later
        started = _started(dataset, opened, path, asked)
        started.write_blocks(progress, chunkmanager_store_kwargs)
        started.write.finish(started.begun)
    return started.write.group()


def _planned(data: Dataset | DataArray | DataTree, store: Store, path: str, asked: Request) -> Commit:
    with Telling():
        nodes = nodes_of(data, path, asked)
        return Commit(compare(nodes, store, path, asked))


def _started(data: Dataset | DataArray | DataTree, store: Store, path: str, asked: Request) -> Started:
    """Plan a write, and begin it.

    An append to a store whose answers have to be waited for is planned after the consolidated metadata, which
    spares a request for each variable. Other programs may have left these out of date. The documents, which
    are read when the leases are held, tell so. Nothing is written then, and the write is planned again, after
    the documents: any error that may come of an outdated copy is theirs to confirm.
    """
    if asked.append_dim is not None and store.concurrency > 1 and not (asked.resume or asked.widen_units):
        copied = dataclasses.replace(asked, from_copies=True)
        with suppress(ValueError, TypeError, KeyError, ChangedError, OutdatedPlanError):
            return Started(_planned(data, store, path, copied))
    return Started(_planned(data, store, path, asked))


def chosen_mode(mode: str | None, append_dim: Hashable | None, region: object) -> WriteMode:
    """The mode of a write, which follows from where it writes if it is left open.

    Raises
    ------
    ValueError
        If it is none, or does not go with the rest.
    """
    if mode is None:
        mode = "a" if append_dim is not None else "r+" if region is not None else "w-"
    if mode not in _MODES:
        raise ValueError(f"mode {mode!r} is not supported by to_zarr; accepted: {listed(_MODES)}")
    if append_dim is not None and mode not in ("a", "a-"):
        raise ValueError(f"cannot set append_dim unless mode='a' or mode=None; found mode={mode!r}")
    if region is not None and mode not in ("a", "a-", "r+"):
        raise ValueError(
            f"cannot set region unless mode='a', mode='a-', mode='r+' or mode=None; found mode={mode!r}"
        )
    return mode  # type: ignore[return-value]
