"""Writes dask arrays to stored arrays: :func:`store`, and what ``create_array(data=...)`` needs.

Blocks may have any shapes. This module checks what a user gives; :mod:`xzarr3.dask.plan` plans the tasks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import dask.array as da
from dask.base import get_scheduler
from dask.delayed import Delayed
from dask.diagnostics.progress import ProgressBar

from xzarr3.arrays import Array
from xzarr3.dask.expressions import is_expression, with_graph
from xzarr3.dask.plan import ALL, BlockWrite, Writes, plan_writes
from xzarr3.dask.sources import array_of, is_array, reads_below
from xzarr3.dask.tasks import Forks, forks_of
from xzarr3.errors import (
    ArgumentError,
    ArgumentTypeError,
    MetadataError,
    SelectionError,
    did_you_mean,
    short_traceback,
    unknown_arguments,
)
from xzarr3.quantities import check_switches
from xzarr3.stores import Store


def compute_shown(delayed: Delayed, progress: bool, **kwargs: Any) -> Any:
    """Compute tasks; with ``progress``, show dask's own bar, or that of the cluster.

    Parameters
    ----------
    delayed : Delayed
    progress : bool
    **kwargs
        Options of ``delayed.compute``.

    Returns
    -------
    object
        What ``delayed.compute`` returns.
    """
    if not progress:
        return delayed.compute(**kwargs)
    run: Any = get_scheduler(scheduler=kwargs.get("scheduler"), collections=[delayed])
    client: Any = getattr(run, "__self__", None)
    if not hasattr(client, "run_on_scheduler"):
        with ProgressBar():
            return delayed.compute(**kwargs)
    from distributed import progress as bar
    from distributed.worker import thread_state  # type: ignore[attr-defined]

    kwargs.pop("scheduler", None)
    if getattr(thread_state, "key", None):  # Within a task: waiting here would block its worker.
        return delayed.compute(scheduler=client, **kwargs)
    future = client.compute(delayed, **kwargs)
    try:
        with client.as_current():
            bar(future)
        return future.result()
    except KeyboardInterrupt:
        future.cancel()
        raise
    finally:
        future.release()


__all__ = ["block_lengths", "check_writable", "store", "with_graph", "write_blocks"]

_OPTIONS = ("regions", "compute", "lock", "progress")


@short_traceback
def store(
    sources: da.Array | Sequence[da.Array],
    targets: Array | Sequence[Array],
    *,
    regions: Any = None,
    compute: bool = True,
    lock: object = None,
    progress: bool = False,
    **kwargs: Any,
) -> Any:
    """Write dask arrays to stored arrays.

    Blocks need not match the shards and chunks of the target. One task writes one or several stored units
    once all blocks that overlap them are computed. Blocks that consist of whole units are written as they
    are. Elements outside a region keep their values, also in shards and chunks at its edges.

    Parameters
    ----------
    sources : dask array or sequence of these
    targets : Array or sequence of these
        As many as there are sources. Arrays of zarr-python are accepted too.
    regions : tuple of slices or sequence of these, optional
        The part of each target to write, slices without steps; the whole target by default.
    compute : bool
        Write now. If False, return a Delayed that writes when it is computed.
    lock : object
        Ignored, because no lock is needed; accepted as in :func:`dask.array.store`.
    progress : bool
        Show the progress bar of dask, or of the cluster.
    **kwargs
        Options for the scheduler.

    Returns
    -------
    None or Delayed

    Warns
    -----
    LargeWriteWarning
        If blocks that wait for other blocks would take more memory than the option ``memory_limit`` of
        :class:`xzarr3.set_options` says, by default half of that of this machine or of all workers. The
        warning says what to do instead.

    Raises
    ------
    AlignmentError
        If two sources write the same elements. Nothing is written then.
    SelectionError
        If a region does not fit its target or source.
    ArgumentError
        If a source reads an array that the call overwrites: blocks would be computed from new values. Store
        them in another array, or compute them first.
    ReadOnlyError
        If a target cannot be written.
    TypeError
        If a source is not a dask array, or a target not an array of this library or of zarr-python; or for a
        misspelt argument, such as ``region``.
    StoreCapabilityError
        If the scheduler would write to a transaction from other processes. To an Icechunk session they can.

    Examples
    --------
    >>> import dask.array, xzarr3
    >>> target = xzarr3.create_array(xzarr3.MemoryStore(), shape=100, chunks=10, dtype="int64")
    >>> store(dask.array.arange(100, chunks=33), target)
    >>> int(target[99])
    99
    """
    misspelt = {name: each for name, each in kwargs.items() if did_you_mean(name, _OPTIONS)}
    if misspelt:
        raise unknown_arguments("store", misspelt, _OPTIONS)
    check_switches(compute=compute, progress=progress)
    jobs = _paired(sources, targets, regions)
    writes = plan_writes(jobs, scheduler=kwargs.get("scheduler"))
    if not compute:
        return writes.delayed()
    compute_writes(writes, progress, writes.forks(kwargs.get("scheduler")), **kwargs)
    return None


def compute_writes(
    writes: Writes,
    progress: bool,
    forks: Forks | None,
    save: Callable[[], None] | None = None,
    **options: Any,
) -> None:
    """Write planned jobs, and take over what other processes wrote to forks; `options` are for dask.

    With ``save`` the jobs are written in parts, and it is called after each.
    """
    for part in writes.parts() if save is not None else [ALL]:
        written = compute_shown(writes.delayed(forks=forks, part=part), progress, **options)
        if forks is not None:
            forks.merge(written)
        if save is not None:
            save()


def _paired(sources: Any, targets: Any, regions: Any) -> list[BlockWrite]:
    """The jobs that a call of :func:`store` asks for."""
    if isinstance(sources, da.Array) or is_expression(sources):
        sources, targets, regions = [sources], [targets], None if regions is None else [regions]
    elif hasattr(sources, "__array__") or not isinstance(sources, Iterable):
        raise ArgumentTypeError(
            f"cannot store {type(sources).__name__}; accepted: dask arrays; write values in memory with "
            "array[...] = values"
        )
    elif is_array(targets):  # list() of an array would read all of it.
        targets = [targets]
    sources, targets = [*map(with_graph, sources)], [*map(_writable, targets)]
    wanted = [...] * len(sources) if regions is None else list(regions)
    if len(sources) == len(wanted) == 1 and isinstance(wanted[0], list):
        wanted = wanted[0]  # As in dask.array.store, which takes a list of regions for a single source.
    if not len(sources) == len(targets) == len(wanted):
        raise SelectionError(
            f"{len(sources)} sources, {len(targets)} targets and {len(wanted)} regions; give one of each "
            "for each array"
        )
    return [BlockWrite(*each, in_place=True) for each in zip(sources, targets, wanted, strict=True)]


def _writable(target: Any) -> Any:
    """The array of this library for an array of zarr-python."""
    return array_of(target) if is_array(target) else target


def block_lengths(source: da.Array, path: str) -> tuple[int, ...]:
    """The longest block along each dimension: the default chunk shape.

    Raises
    ------
    MetadataError
        If the lengths of blocks are not known.
    """
    if any(math.isnan(length) for length in source.shape):
        raise MetadataError(
            "the blocks of the data have unknown lengths", path=path, field="data", found=source.chunks,
            advice="call .compute_chunk_sizes(), which finds them in place",
        )  # fmt: skip
    return tuple(max(1, *lengths) for lengths in source.chunks)


def check_writable(store: Store, path: str, sources: Sequence[da.Array], *, overwrite: bool) -> None:
    """Raise if the blocks of dask arrays cannot be written at a path, or below it."""
    forks_of(store)
    if overwrite and store.traits.visible == "at commit" and any(reads_below(sources, store, path)):
        raise ArgumentError(
            f"the values are computed from '/{path}' of {store}, which would be erased before they are read; "
            "load them first, or create another array"
        )


def write_blocks(source: da.Array, target: Array) -> None:
    """Write a dask array to an array of the same or a larger shape, block by block."""
    store(da.broadcast_to(source, target.shape), target)
