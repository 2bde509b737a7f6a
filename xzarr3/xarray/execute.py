"""Writes the values of dask arrays with dask, now or later.

The write itself is a :class:`xzarr3.xarray.commit.Commit`; this module decides when its steps run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import dask
import dask.threaded
from dask.base import get_scheduler
from dask.delayed import Delayed

from xzarr3.dask.plan import BlockWrite, plan_writes
from xzarr3.dask.write import compute_writes
from xzarr3.stores import Store, in_flight

if TYPE_CHECKING:
    from xzarr3.xarray.commit import Commit


def write_now(
    writes: Sequence[Commit],
    options: Mapping[str, Any] | None,
    progress: bool,
    save: Callable[[], None] | None = None,
) -> None:
    """Carry out writes: the values of all dask arrays at once, then all else in turn.

    What is finished before an error stays. ``options`` are for dask's scheduler. With ``save`` values are
    written in parts, and it is called after each.
    """
    jobs = [job for write in writes for job in write.jobs]
    resume = writes[0].plan.asked.resume
    _carry_out(writes, planned(jobs, writes[0].store, options, progress, resume=resume, save=save))


def planned(
    jobs: Sequence[BlockWrite],
    store: Store,
    options: Mapping[str, Any] | None,
    progress: bool,
    *,
    resume: bool = False,
    save: Callable[[], None] | None = None,
) -> Callable[[], None]:
    """Plan the writes of dask arrays; returns what carries them out."""
    if not jobs:
        return lambda: None
    chosen = _for_scheduler(options)
    blocks = plan_writes(jobs, resume=resume)
    forks = blocks.forks(chosen.get("scheduler"))
    return lambda: compute_writes(blocks, progress, forks, save, **{**_workers(store, jobs), **chosen})


def _carry_out(writes: Sequence[Commit], values: Callable[[], None] = lambda: None) -> None:
    """Begin writes, store values, and finish the writes in turn; after an error discard those left."""
    left = [*writes]
    try:
        for write in writes:
            write.begin()
        values()
        while left:
            left[0].finish()
            del left[0]
    except BaseException as error:
        for write in left:
            write.discard(error)
        raise


def values_later(writes: Sequence[Commit], opened: Store | None) -> Delayed:
    """Write everything but the values of dask arrays; returns a Delayed that writes these.

    The Delayed closes ``opened`` at the end.

    Raises
    ------
    ValueError
        If stored values would be gone before the new ones are there.
    """
    blocks = plan_writes([job for write in writes for job in write.take_jobs()])
    _carry_out(writes)
    if opened is not None and opened.traits.visible == "at close":
        cast("Any", opened).flush()
    return blocks.delayed(None if opened is None else opened.close)


def _for_scheduler(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options that are for the scheduler, without those of ``dask.array.store`` itself."""
    own = ("lock", "flush", "compute", "return_stored", "load_stored", "regions")
    return {key: value for key, value in (options or {}).items() if key not in own}


def _workers(store: Store, jobs: Sequence[BlockWrite]) -> dict[str, int]:
    """The option ``num_workers`` for a store with latency; empty if the user has configured threads."""
    set_up = dask.config.get("num_workers", None) or dask.config.get("pool", None)
    if store.concurrency <= 1 or set_up or get_scheduler() not in (None, dask.threaded.get):
        return {}
    blocks = [math.prod(map(max, job.source.chunks)) * job.source.dtype.itemsize for job in jobs]
    return {"num_workers": in_flight.at_once(store.concurrency, 4 * max(blocks, default=0))}
