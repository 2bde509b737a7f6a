"""Writing xarray's datasets: :func:`to_zarr`.

Everything is worked out and checked before the first byte is written: new arrays in
:mod:`xzarr3.xarray.planning`, changes of those that are there in :mod:`xzarr3.xarray.appending`. Then data
come first, in a place of their own where there is something to replace, and documents after them, that of the
group last.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Hashable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias, overload

import dask
import dask.threaded
from dask._task_spec import DataNode, Task, TaskRef
from dask.base import get_scheduler
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer
from xarray import DataArray, Dataset, DataTree

from xzarr3.array import Array
from xzarr3.commit.replace import Replacement
from xzarr3.concurrency import spread
from xzarr3.dask.cleanup import Cleanup, Writing
from xzarr3.dask.journal import Journal
from xzarr3.errors import listed
from xzarr3.formats import Format, ZarrFormat, documents, parse_format
from xzarr3.formats.base import Held, node_prefix
from xzarr3.group import Group
from xzarr3.literals import Telling
from xzarr3.lookup import depth_first
from xzarr3.metadata import GroupMetadata, NodeMetadata
from xzarr3.node_documents import store_documents
from xzarr3.nodes import normal_path
from xzarr3.progress import Asked, check_asked, shown
from xzarr3.resuming import check_resumable
from xzarr3.stores import MemoryStore, Store, StoreLike, ZipStore, in_flight, open_store
from xzarr3.xarray.appending import plan_changes
from xzarr3.xarray.later import Abandoning, Begun, Last
from xzarr3.xarray.planning import (
    PlannedArray,
    PlannedGroup,
    as_dataset,
    check_group_path,
    format_to_write,
    growing_dimensions,
    plan_group,
    to_be_consolidated,
)
from xzarr3.xarray.selfreads import Aside, Job, plan_in_turn, reads_below
from xzarr3.xarray.taking_up import Resumable, plan_of_creation, resumable

WriteMode: TypeAlias = Literal["w", "w-", "a", "a-", "r+"]
ReplaceHow: TypeAlias = Literal["staged", "in place"]
Region: TypeAlias = Mapping[Any, slice | Literal["auto"]] | Literal["auto"]
"""What ``region=`` takes."""

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
    consolidated: bool | None = ...,
    append_dim: Hashable | None = ...,
    region: Region | None = ...,
    safe_chunks: bool = ...,
    align_chunks: bool = ...,
    storage_options: Mapping[str, Any] | None = ...,
    zarr_format: ZarrFormat | None = ...,
    write_empty_chunks: bool | None = ...,
    chunkmanager_store_kwargs: Mapping[str, Any] | None = ...,
    write_inherited_coords: bool = ...,
    widen_units: bool = ...,
    progress: Asked = ...,
    resume: bool = ...,
    replace: ReplaceHow = ...,
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
    consolidated: bool | None = ...,
    append_dim: Hashable | None = ...,
    region: Region | None = ...,
    safe_chunks: bool = ...,
    align_chunks: bool = ...,
    storage_options: Mapping[str, Any] | None = ...,
    zarr_format: ZarrFormat | None = ...,
    write_empty_chunks: bool | None = ...,
    chunkmanager_store_kwargs: Mapping[str, Any] | None = ...,
    write_inherited_coords: bool = ...,
    widen_units: bool = ...,
    progress: Asked = ...,
    resume: bool = ...,
    replace: ReplaceHow = ...,
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
    data are stored, so that it may even be what ``dataset`` reads from. If something fails, it is put back.

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
    cannot rename without some of its arrays.) A process that is killed leaves the old dataset, the new one
    or, within the renames, none and both of them in that directory; the write can be repeated with
    ``mode="w"`` in every case. The directory goes with a later call of this function for the same store once
    it has not changed for a day; if it holds what was replaced, only with one that replaces the same group.

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
    leaves them in their place, or in ``old``, from where the next call with ``mode="w"`` for the same group
    brings them back.

    Others may write to the same place at the same time. In a directory, what has appeared there since the
    call is put back, and the write fails, if ``mode`` is ``w-``; only of two processes that rename the same
    document within microseconds, the last one wins.
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
    same host, and elsewhere after five minutes. What is not taken up is removed as said above. Without
    ``fsync=True``, what was written to a directory before its system crashed is written again.

    JSON has neither NaN nor infinities. In attributes, at any depth, they are stored as the text "NaN",
    "Infinity" and "-Infinity". A ``missing_value`` that is NaN is left out, as NaN is missing anyway; one
    that is infinite becomes the ``_FillValue`` if that is none or NaN. The ``_FillValue`` itself may be
    either, as it has a form of its own in documents. One warning names the attributes and what became of
    them. So whatever was read can be written, and its decoded values are the same.

    A dask array may be made of what the same call writes: if not each block takes the place of what it
    was made of, it is computed to the side first, and put in place when all of it is there.

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
    opened = MemoryStore() if store is None else open_store(store, storage_options, mode="a")
    with ExitStack() as ours:
        if opened is not store:  # A zip is complete once it is closed, and as it was before after an error.
            ours.enter_context(opened)
        check_group_path(path)
        with Telling():
            write = _planned(
                dataset,
                opened,
                path,
                mode,
                encoding or {},
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
        if resume:
            write = resumable(write, opened, path)
        if not compute or compute == "later":
            own = None if opened is store else opened
            if isinstance(write, Creation) and not compute:
                later = templated(write, own)
            else:
                later = written_later(write, own)
            ours.pop_all()
            return later
        begun = write_blocks(write, opened, progress, resume, chunkmanager_store_kwargs)
        write.finish(begun)
    return write.group()


def _planned(
    dataset: Dataset | DataArray | DataTree,
    opened: Store,
    path: str,
    mode: WriteMode,
    encoding: Mapping[Any, Mapping[str, Any]],
    *,
    consolidated: bool | None,
    append_dim: Hashable | None,
    region: Region | None,
    write_empty_chunks: bool | None,
    write_inherited_coords: bool,
    zarr_format: ZarrFormat | None,
    widen_units: bool,
    resume: bool,
    in_place: bool,
) -> Write:
    """What will be written, worked out and checked."""
    if resume:
        check_resumable(opened)
    if isinstance(dataset, DataTree):
        from xzarr3.xarray.tree import plan_tree

        return plan_tree(
            dataset,
            opened,
            path,
            mode,
            encoding,
            consolidated=consolidated,
            append_dim=append_dim,
            region=region,
            write_empty_chunks=write_empty_chunks,
            write_inherited_coords=write_inherited_coords,
            zarr_format=zarr_format,
            widen_units=widen_units,
            resume=resume,
            in_place=in_place,
        )
    data = as_dataset(dataset)
    if mode not in ("w", "w-"):
        changes: Write | None = plan_changes(
            data,
            opened,
            path,
            mode,
            encoding,
            consolidated=consolidated,
            append_dim=append_dim,
            region=region,
            write_empty_chunks=write_empty_chunks,
            zarr_format=zarr_format,
            widen_units=widen_units,
        )
        if changes is not None:
            return changes
    format = format_to_write(opened, path, zarr_format)
    growing = growing_dimensions(data, append_dim)
    planned = plan_group(data, format, path, encoding, write_empty_chunks, growing=growing)
    groups, overwrite = {"": planned}, mode == "w"
    return Creation(
        opened, format, path, groups, consolidated, overwrite=overwrite, resume=resume, in_place=in_place
    )


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


# Writing


class Write(Protocol):
    """One call of :func:`to_zarr`: where values go, and how they become a dataset."""

    jobs: list[Job]
    """What is written by dask."""

    def begin(self) -> Any:
        """Make room for values, before the first one is stored; what is returned is for those below."""

    def finish(self, begun: Any) -> None:
        """Write all that is not in dask arrays, which were written, and make a dataset of it."""

    def discard(self, begun: Any, error: BaseException) -> None:
        """Remove what was written before ``error``, for good."""

    def group(self) -> Group:
        """The group that was written."""


def write_blocks(
    write: Write,
    opened: Store,
    progress: Asked = False,
    resume: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Begin a write and write what is in dask arrays; gives what finishes it what it needs.

    Parameters
    ----------
    write : Write
    opened : Store
    progress, resume
        As :func:`to_zarr` has them.
    options : mapping, optional
        For the scheduler.
    """
    journal = write.journal if resume and isinstance(write, Resumable) else None
    blocks = plan_in_turn(write.jobs, journal)
    begun = write.begin()
    if blocks is not None:
        number = len(write.jobs)
        try:
            shown(
                blocks.delayed(),
                blocks.sizes,
                f"writing {number} variable{'' if number == 1 else 's'} to {opened}",
                progress,
                **{**_workers(opened, write.jobs), **_for_scheduler(options)},
            )
        except BaseException as error:
            write.discard(begun, error)
            raise
        finally:
            if blocks.aside is not None:
                blocks.aside.clean()
    return begun


def written_later(write: Write, opened: Store | None) -> Delayed:
    """What does all that was planned when it is computed, and closes a store that was opened for it."""
    blocks = plan_in_turn(write.jobs)
    token = uuid.uuid4().hex
    plan, begin, end = f"plan-zarr-{token}", f"begin-zarr-{token}", f"end-zarr-{token}"
    layers: dict[str, Layer] = {
        plan: MaterializedLayer({plan: DataNode(plan, write)}),
        begin: MaterializedLayer({begin: Task(begin, Begun, begin, TaskRef(plan))}),
    }
    dependencies: dict[str, set[str]] = {plan: set(), begin: {plan}}
    needed, aside = [plan, begin], None
    if blocks is not None:
        aside = blocks.aside
        written = blocks.delayed(Delayed(begin, HighLevelGraph(layers, dependencies)))
        layers, dependencies = dict(written.dask.layers), dict(written.dask.dependencies)
        needed.append(written.key)
    last = Task(end, partial(_finished, opened, aside), *map(TaskRef, needed))
    cleanups: list[Cleanup] = [Abandoning(plan, begin)]
    layers[end] = Last(end, last, cleanups if aside is None else [*cleanups, aside])
    dependencies[end] = set(needed)
    return Writing(end, HighLevelGraph(layers, dependencies))


def templated(write: Creation, opened: Store | None) -> Delayed:
    """Make a new dataset without what is in dask arrays, and give what writes that when it is computed.

    Raises
    ------
    ValueError
        If what is replaced would be read afterwards.
    """
    jobs = write.jobs
    places = [
        Array(
            write.store,
            job.target.path,
            job.target.metadata,
            format=write.format,
            write_empty_chunks=job.target.write_empty_chunks,
        )
        for job in jobs
    ]
    read = reads_below([job.source for job in jobs], write.store, write.path)
    for job, is_replaced in zip(jobs, read, strict=True):
        if is_replaced:
            raise ValueError(
                f"array '{job.target.name}' is made of what is in {write.store} and would be replaced before "
                "it is read; accepted: compute='later', which keeps it until all is written"
            )
    write.jobs = []
    write.begin()
    write.finish()
    if isinstance(opened, ZipStore):
        opened.flush()
    blocks = plan_in_turn([Job(job.source, place, ...) for job, place in zip(jobs, places, strict=True)])
    key = f"end-zarr-{uuid.uuid4().hex}"
    if blocks is None:
        last = Task(key, _closed, opened)
        return Writing(key, HighLevelGraph({key: Last(key, last)}, {key: set()}))
    written = blocks.delayed()
    last = Task(key, _closed, opened, TaskRef(written.key))
    layer = Last(key, last, [] if blocks.aside is None else [blocks.aside])
    layers: dict[str, Layer] = {**written.dask.layers, key: layer}
    return Writing(key, HighLevelGraph(layers, {**written.dask.dependencies, key: {written.key}}))


def _closed(opened: Store | None, blocks: object = None) -> None:
    """Close a store opened for blocks that were written."""
    with opened or nullcontext():
        pass


def _for_scheduler(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """What ``dask.array.store`` takes and the scheduler understands."""
    own = ("lock", "flush", "compute", "return_stored", "load_stored", "regions")
    return {key: value for key, value in (options or {}).items() if key not in own}


def _finished(
    opened: Store | None, aside: Aside | None, write: Write, begun: Begun, blocks: object = None
) -> None:
    """Finish a write that has begun and whose blocks were written, and close a store opened for it."""
    with opened or nullcontext():
        begun.finish(write)
        if aside is not None:
            aside.clean()


def _workers(store: Store, jobs: list[Job]) -> dict[str, int]:
    """How many of dask's threads write at a time, where the user leaves it open and they have to wait."""
    set_up = dask.config.get("num_workers", None) or dask.config.get("pool", None)
    if store.concurrency <= 1 or set_up or get_scheduler() not in (None, dask.threaded.get):
        return {}
    blocks = [math.prod(map(max, job.source.chunks)) * job.source.dtype.itemsize for job in jobs]
    return {"num_workers": in_flight.at_once(store.concurrency, 4 * max(blocks, default=0))}


class Creation:
    """New groups, one or a tree of them, in a place where there is nothing or what they replace.

    Parameters
    ----------
    store : Store
    format : Format
    path : str
        Path of the uppermost group.
    groups : mapping of str to PlannedGroup
        The groups by path relative to that one, which has the empty path; those above each are among them.
    consolidated : bool or None
        Whether the root shall hold the documents of all nodes; None where that is to be decided here.
    overwrite : bool
        Replace what is there; otherwise there must be nothing.
    resume : bool
        Keep what was written if the write is cut off, and go on from there if it was.
    in_place : bool
        Erase what is replaced before the first value is stored, where nothing can be renamed.

    Raises
    ------
    ValueError
        If that would be read afterwards.
    """

    def __init__(
        self,
        store: Store,
        format: Format,
        path: str,
        groups: Mapping[str, PlannedGroup],
        consolidated: bool | None,
        *,
        overwrite: bool,
        resume: bool = False,
        in_place: bool = False,
    ) -> None:
        consolidated = to_be_consolidated(consolidated, store, format, path)
        self.store = store
        self.format = format
        self.path = path
        self._consolidated = consolidated
        version = format.zarr_format
        self._groups = {
            relative: GroupMetadata(attributes=group.attributes, zarr_format=version)
            for relative, group in groups.items()
        }
        planned = {
            node_prefix(relative) + variable.name: variable
            for relative, group in groups.items()
            for variable in group.variables
        }
        lazy = {name: variable for name, variable in planned.items() if variable.is_lazy}
        if in_place and any(reads_below([variable.data for variable in lazy.values()], store, path)):
            raise ValueError(
                f"variables are made of what is in '/{path}' of {store}, which would be erased before it is "
                "read; accepted: replace='staged', which keeps it until all is written"
            )
        self._variables = {
            name: replace(variable, data=None) if name in lazy else variable
            for name, variable in planned.items()
        }
        self._stored = self._group_documents()
        plan = plan_of_creation(format, path, planned, self._stored[path]) if resume else None
        below = [name for name in (*planned, *groups) if name]
        prefix = node_prefix(path)
        self._replacement = Replacement(
            store,
            format,
            path,
            list(dict.fromkeys(name.partition("/")[0] for name in below)),
            {prefix + name: variable.metadata for name, variable in planned.items()},
            overwrite=overwrite,
            how="mode 'w'",
            plan=plan,
            in_place=in_place,
        )
        self.journal = None if plan is None else Journal(store, plan.journal, plan.fingerprint)
        self.jobs = [Job(var.data, self.array(name, var), ...) for name, var in lazy.items()]

    def _group_documents(self) -> dict[str, dict[str, bytes]]:
        """The documents of the groups by key, for each path."""
        stored = {}
        for relative, meta in self._groups.items():
            path = f"{node_prefix(self.path)}{relative}".rstrip("/")
            held = self._held() if self._consolidated and not path else None
            found = self.format.documents(meta, path, held)
            if not path:  # Without these there is no hierarchy, so they come last.
                found = {**found, **self.format.hierarchy_documents()}
            stored[path] = {key: documents.encode(document, path) for key, document in found.items()}
        return stored

    def array(self, name: str, variable: PlannedArray) -> Array:
        """Where the chunks of a variable are written."""
        return Array(
            self._replacement.store,
            node_prefix(self.path) + name,
            variable.metadata,
            format=self.format,
            write_empty_chunks=variable.write_empty_chunks,
        )

    def begin(self) -> None:
        self._replacement.begin()

    def finish(self, begun: object = None) -> None:
        with self._replacement.discarding():
            if self.journal is not None:
                self.journal.flush()
            eager = [(name, var) for name, var in self._variables.items() if not var.is_written]
            # Mostly small coordinates, each of which is waited for.
            spread(lambda each: self.array(*each).set(..., each[1].data), eager, self.store.concurrency)
            self._replacement.check_again()
            prefix = node_prefix(self.path)
            stored = {prefix + name: each.stored for name, each in self._variables.items()}
            stored.update(self._stored)
            store_documents(self._replacement.store, self.format, stored, last=self.path)
        nodes = self._nodes()
        self._replacement.put(nodes, consolidate=self._consolidated)

    def _held(self) -> dict[str, Held]:
        """The documents of all nodes below the group as it holds them, by relative path."""
        prefix = node_prefix(self.path)
        return {name: self.format.hold(meta, prefix + name) for name, meta in self._nodes().items() if name}

    def _nodes(self) -> dict[str, NodeMetadata]:
        """The nodes by relative path, each followed by what is below it: zarr-python 3.1 takes no others."""
        nodes: dict[str, NodeMetadata] = {name: each.metadata for name, each in self._variables.items()}
        nodes.update(self._groups)
        return {"": nodes.pop(""), **{relative: nodes[relative] for relative in depth_first(nodes)}}

    def discard(self, begun: object, error: BaseException) -> None:
        if self.journal is not None:
            self.journal.close(error)
        self._replacement.discard(error, close=True)

    def group(self) -> Group:
        held = self._held() if self._consolidated else None
        return Group(self.store, self.path, replace(self._groups[""], consolidated=held), format=self.format)
