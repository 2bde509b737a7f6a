"""``copy``: an array or a group with all nodes below it, within a format or to another one.

All documents are translated and checked before the first byte is written. How the copy is put in its place is
the business of :mod:`xzarr3.commit.transaction`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, cast

from xzarr3.api import open as open_node
from xzarr3.arrays import Array
from xzarr3.commit.replace import check_resumable, transaction, write
from xzarr3.copying.plan import Encoding, Plan, Source, planned
from xzarr3.copying.resume import CopyResumption, fingerprint
from xzarr3.copying.settings import Settings
from xzarr3.copying.temporary import can_keep, chunks_between, temporary
from xzarr3.copying.values import ArrayCopy, Means, do_all, most_threads
from xzarr3.differences import diff
from xzarr3.errors import ArgumentError, NodeExistsError, short_traceback
from xzarr3.formats import ZarrFormat
from xzarr3.groups import Group
from xzarr3.joined.array import JoinedArray
from xzarr3.joined.group import JoinedGroup
from xzarr3.new_array import KEEP
from xzarr3.nodes.freshness import check_read
from xzarr3.nodes.node import locate_node
from xzarr3.parallel import asked_threads, parallel_map
from xzarr3.progress import Asked, Progress, check_asked
from xzarr3.quantities import check_switches
from xzarr3.readable import ReadableArray
from xzarr3.stores import Store, StoreLike
from xzarr3.stores.open import was_made


@short_traceback
def copy(
    source: StoreLike | Array | Group | JoinedArray | JoinedGroup,
    target: StoreLike,
    *,
    source_path: str = "",
    path: str = "",
    zarr_format: ZarrFormat | None = None,
    chunks: Any = KEEP,
    shards: Any = KEEP,
    compressors: Any = KEEP,
    filters: Any = KEEP,
    serializer: Any = KEEP,
    encoding: Encoding | None = None,
    resume: bool = False,
    overwrite: bool = False,
    consolidated: bool | None = None,
    progress: Asked = False,
    threads: int | None = None,
    source_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
) -> Array | Group:
    """Copy an array, or a group with all nodes below it, in the same format and chunks or in others.

    Nothing is lost. The copy has the same values, fill values, attributes and dimension names, and xarray
    masks the same elements in it. There are two exceptions. xarray reads no mark of missing bytes in version
    3, so those that version 2 marks are plain bytes there. And JSON lacks NaN and infinities, so in
    attributes they are stored as the text "NaN", "Infinity" and "-Infinity"; where such an attribute marks
    missing values, the fill value, ``_FillValue`` or nothing marks the same elements instead, and one warning
    names these attributes and what became of them.

    Chunks are copied as bytes where both formats encode them alike. Others are copied in tiles of whole new
    chunks or shards. These grow, as far as memory allows, so that few old chunks are read more than once; if
    each would be read more than twice, values go by way of a temporary array in the store of the target. All
    threads together hold 512 MiB of values, or what the option ``memory_limit`` says
    (:class:`xzarr3.set_options`), but at least one old chunk and one new shard.

    An existing node stays in its place until the whole copy is stored, as with :func:`xzarr3.to_zarr`. A
    reader never finds half a copy.

    Parameters
    ----------
    source : path, URL, Store, Array, Group, JoinedArray or JoinedGroup
    target : path, URL or Store
    source_path, path : str
        Path of the node in the source, and of the copy in the target; the root by default.
    zarr_format : {3, 2, "3-draft"}, optional
        Format of the copy; by default the format of the groups above it, or else that of the source.
    chunks : optional
        Chunks of all arrays, as :func:`xzarr3.create_array` takes them: a length, lengths, lists of lengths,
        ``"auto"`` or a size such as ``"4 MB"``. Lengths by name of a dimension, such as ``{"time": 100}``,
        hold for all arrays with that dimension; -1 stands for the whole dimension. They do not cut
        coordinates of their own dimension, and what the attributes ``bounds`` and ``climatology`` name, since
        a reader needs all of these: name such an array in ``encoding`` to do so. By default chunks stay.
    shards : optional
        Shards, in the same forms. None stores each chunk on its own. By default shards stay.
    compressors : codecs, optional
        Encode all chunks again with these; by default the compressors stay. None for no compressors.
    filters : codecs, optional
        Encode all chunks again with these instead of their filters (:attr:`Array.filters`). None for no
        filters: use it for a format or a reader that does not know the filters of the array.
    serializer : codec, optional
        Encode all chunks again with this serializer. None or "auto" for the one that
        :func:`xzarr3.create_array` chooses.
    encoding : mapping of str to mapping, optional
        For single arrays, by path below the copied node or by name, any of ``chunks``, ``shards``,
        ``compressors``, ``filters``, ``serializer`` and ``fill_value``; ``xzarr3.advise(array).encoding()``
        gives one. What it says of the packing of values has to be so in the array. Chunks without shards are
        stored one by one. Values stay the same under another fill value.
    resume : bool
        Go on with a copy that was interrupted, and keep what is stored if this one is. Units that are stored
        are not copied again. A finished copy stays as it is: a node with all documents that the copy would
        have counts as one if all values are those of the source, which are read and compared. Values that
        others set in the source meanwhile may or may not be in the copy. Not for what is joined.
    overwrite : bool
        Replace the existing node and all nodes below it; see :func:`xzarr3.create_array` for what stays.
    consolidated : bool, optional
        Whether the copy of a group gets consolidated metadata; by default if the source has them.
    progress : bool or callable
        Show a progress bar, or call ``progress(done, total)`` from time to time with numbers of decoded
        bytes. An error that it raises ends the copy.
    threads : int, optional
        Number of threads. By default all cores in the main thread and one in any other thread. More, up to
        the number of requests that the stores answer at a time, if one of the stores has to be waited for.
    source_options, target_options : mapping, optional
        Further options of the two stores; see :func:`xzarr3.open_store`.

    Returns
    -------
    Array or Group
        The copy.

    Raises
    ------
    NodeNotFoundError
        If there is nothing to copy.
    NodeExistsError
        If there is a node already and ``overwrite`` is not set, or source and target overlap. With
        ``resume``, also if the place holds another unfinished write: of another source, of one that has
        changed since, or of other settings; or a node that looks like the finished copy and has other values.
    MetadataError
        If the format cannot express the source, or the settings do not fit it. Nothing is written then.
    StoreCapabilityError
        If an interrupted copy to the store cannot be resumed.
    StoreError, ChunkDecodeError
        If a chunk cannot be read or written. The old node is still there then; nothing of the copy is,
        unless it can be resumed.

    Examples
    --------
    >>> import numpy as np, xzarr3
    >>> old, new = xzarr3.MemoryStore(), xzarr3.MemoryStore()
    >>> _ = xzarr3.create_array(old, "sst", data=np.arange(4.0), zarr_format=2, dimension_names=["time"])
    >>> xzarr3.copy(old, new, zarr_format=3)["sst"].dimension_names
    ('time',)

    Maps become series, with all times of a place in a chunk:

    >>> _ = xzarr3.create_array(old, "t2m", shape=(365, 90, 180), chunks=(1, 90, 180), dtype="f4",
    ...     zarr_format=2, dimension_names=["time", "lat", "lon"])
    >>> xzarr3.copy(old, new, source_path="t2m", path="t2m", chunks={"time": -1, "lat": 9, "lon": 9}).chunks
    (365, 9, 9)
    """
    check_asked(progress)
    check_switches({"consolidated"}, resume=resume, overwrite=overwrite, consolidated=consolidated)
    threads = asked_threads(threads)
    node: Source
    if isinstance(source, (ReadableArray, Group, JoinedGroup)):
        node = source
    else:
        node = open_node(source, source_path, storage_options=source_options)
    if resume and isinstance(node, (JoinedArray, JoinedGroup)):
        raise ArgumentError("resume=True: a copy of what is joined cannot be resumed; leave it out")
    store, path = locate_node(target, path, target_options, mode="a")
    settings = Settings(chunks, shards, compressors, filters, serializer)
    with store if was_made(store, target) else nullcontext():
        plan = planned(node, store, path, zarr_format, settings, encoding, consolidated)
        return _run(plan, overwrite=overwrite, resume=resume, progress=progress, threads=threads)


def _run(plan: Plan, *, overwrite: bool, resume: bool, progress: Asked, threads: int | None) -> Array | Group:
    """Carry out a plan."""
    store, new = plan.store, plan.new()
    resumed = None
    if resume:
        check_resumable(store)
        asked = fingerprint(cast("Mapping[str, Array | Group]", plan.nodes), new.documents)
        resumed = CopyResumption(store, plan.path, plan.lease.key, asked)
    known = None if resumed is None else resumed.plan
    try:
        copy = transaction(store, new, overwrite=overwrite, how="overwrite=True", plan=known)
    except NodeExistsError:
        if resumed is None or not plan.is_there:
            raise
        if not resumed.has_swapped:
            _check_finished(plan, threads)
        resumed.clear()
        return plan.opened()
    if resumed is not None and resumed.has_swapped and plan.is_there:
        resumed.clear()
        return plan.opened()
    if threads is None:
        threads = most_threads(plan.nodes[""], store, plan.arrays.values())
    with write(copy):
        _copy_values(plan, copy.store, None if resumed is None else copy.top, progress, threads)
    return plan.opened()


def _check_finished(plan: Plan, threads: int | None) -> None:
    """Raise unless the arrays at the place, whose documents are those of the copy, have its values.

    The documents do not tell a finished copy from other arrays that were created alike.
    """
    for below, source in plan.nodes.items():
        if not isinstance(source, Array):
            continue
        found = diff(
            source.store, plan.store, source.path, b_path=plan.path_of(below),
            encoding=False, attributes=False, first=1, threads=threads,
        )  # fmt: skip
        if found.values or found.problems:
            raise NodeExistsError(
                f"'/{plan.path_of(below)}' in {plan.store} has the documents of this copy, and other values "
                f"than '{source.name}' in {source.store}: it is no finished copy of it, or the source has "
                "changed since, or the compressor changes values; xzarr3.diff() shows the differences, and "
                "overwrite=True copies anew"
            )


def _copy_values(plan: Plan, store: Store, top: str | None, progress: Asked, threads: int) -> None:
    """Copy the values of all arrays to ``store``, which takes them under their final keys.

    ``top`` is the prefix of what a copy that can be resumed stores beside its place.
    """
    means = Means(threads)
    copies = [
        ArrayCopy(cast("ReadableArray", plan.nodes[below]), target, top is not None)
        for below, target in plan.arrays_in(store).items()
    ]
    text = f"copying {plan.nodes[''].name} to {plan.store}"
    with Progress(progress, sum(each.source.nbytes for each in copies), text) as shown:
        direct = []
        for each in copies:
            chunks = chunks_between(each, means) if can_keep(plan.store, each.source) else None
            if chunks is None:
                direct.append(each)
            elif each.is_left:
                with temporary(each, chunks, plan.store, top) as into:
                    do_all(into.moves(means), threads, shown.advance)
                    out = replace(each, source=into.target, share=0.5)
                    do_all(out.moves(means.half()), threads, shown.advance)
        moves = itertools.chain.from_iterable(each.moves(means) for each in direct)
        do_all(moves, threads, shown.advance)
    sources = [each.source for each in copies if isinstance(each.source, Array)]
    parallel_map(check_read, sources, plan.nodes[""].store.concurrency)
