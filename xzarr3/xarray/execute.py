"""Runs a write with dask, now or later: the tasks that begin and finish it, and the cleanup after a failure.

The write itself is a :class:`xzarr3.xarray.commit.Commit`; this module decides when its steps run.
"""

from __future__ import annotations

import math
import threading
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import dask
import dask.threaded
from dask._task_spec import DataNode, Task, TaskRef
from dask.base import get_scheduler
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer

from xzarr3.arrays import Array
from xzarr3.dask.cleanup import Writing, fetched
from xzarr3.dask.plan import BlockWrite, Writes, plan_writes
from xzarr3.dask.write import check_scheduler
from xzarr3.errors import ArgumentError, ConflictError, some
from xzarr3.model.metadata import ArrayMetadata
from xzarr3.nodes.find import children, find_node
from xzarr3.progress import Asked, shown
from xzarr3.stores import Store, in_flight

if TYPE_CHECKING:
    from xzarr3.xarray.commit import Commit


class Started:
    """A write that has begun, with the values of its dask arrays still to be written.

    ``options`` are for the scheduler.
    """

    def __init__(self, write: Commit, options: Mapping[str, Any] | None = None) -> None:
        self.write, self._options = write, _for_scheduler(options)
        if write.jobs:
            check_scheduler(write.store, self._options.get("scheduler"))
        self._blocks = plan_writes(write.jobs, journal=write.journal) if write.jobs else None
        self.begun = write.begin()

    def write_blocks(self, progress: Asked) -> None:
        """Write the values of dask arrays."""
        write, blocks = self.write, self._blocks
        if blocks is not None:
            number = len(write.jobs)
            try:
                shown(
                    blocks.delayed(),
                    blocks.sizes,
                    f"writing {number} variable{'' if number == 1 else 's'} to {write.store}",
                    progress,
                    **{**_workers(write.store, write.jobs), **self._options},
                )
            except BaseException as error:
                write.discard(self.begun, error)
                raise


def written_later(write: Commit, opened: Store | None) -> Delayed:
    """A Delayed that carries out the whole plan when it is computed, and then closes ``opened``."""
    blocks = plan_writes(write.jobs) if write.jobs else None
    token = uuid.uuid4().hex
    plan, begin = f"plan-zarr-{token}", f"begin-zarr-{token}"
    beginning: Any = MaterializedLayer({begin: Task(begin, Begun, begin, TaskRef(plan))})
    beginning.cleanups = [Abandoning(plan, begin)]
    layers: dict[str, Layer] = {
        plan: MaterializedLayer({plan: DataNode(plan, write)}),
        begin: beginning,
    }
    begun = HighLevelGraph(layers, {plan: set(), begin: {plan}})
    finish = partial(_finished, opened)
    return _ending(blocks, finish, begun, [plan, begin])


def _ending(
    blocks: Writes | None,
    end: Callable[..., None],
    before: HighLevelGraph | None = None,
    needed: Sequence[str] = (),
) -> Writing:
    """A Delayed that writes blocks after the tasks ``needed``, and passes the results of all to ``end``."""
    graph = HighLevelGraph({}, {}) if before is None else before
    keys = [*needed]
    if blocks is not None:
        written = blocks.delayed(Delayed(keys[-1], graph) if keys else None)
        graph = written.dask
        keys.append(written.key)
    key = f"end-zarr-{uuid.uuid4().hex}"
    last = MaterializedLayer({key: Task(key, end, *map(TaskRef, keys))})
    layers: dict[str, Layer] = {**graph.layers, key: last}
    return Writing(key, HighLevelGraph(layers, {**graph.dependencies, key: set(keys)}))


def templated(write: Commit, opened: Store | None) -> Delayed:
    """Make a new dataset without the values of dask arrays; returns a Delayed that writes these.

    Raises
    ------
    ValueError
        If fill values would take the place of existing data.
    """
    store, jobs = write.store, write.jobs
    if jobs:
        _check_nothing_lost(store, write.path)
    targets = [
        Array(store, at.path, at.metadata, format=at.format, write_empty_chunks=at.write_empty_chunks)
        for at in (job.target for job in jobs)
    ]
    write.jobs = []
    write.finish(write.begin())
    if opened is not None and opened.traits.visible == "at close":
        cast("Any", opened).flush()
    placed = [BlockWrite(job.source, target, ...) for job, target in zip(jobs, targets, strict=True)]
    return _ending(plan_writes(placed) if placed else None, partial(_closed, opened))


def _check_nothing_lost(store: Store, path: str) -> None:
    """Raise if a new dataset without values would replace a node."""
    found = find_node(store, path)
    if found is None:
        return
    format, meta = found
    there = "an array"
    if not isinstance(meta, ArrayMetadata):
        names = children(store, format, path)
        if not names and not meta.attributes:
            return
        there = f"a group with {some(names)}" if names else "a group with attributes"
    raise ArgumentError(
        f"'/{path}' in {store} is {there}, which would be gone before the new values are there, as "
        "compute=False stores these later; pass compute=True, which keeps the old data until then, write to "
        "a new place, or write the blocks into a region of what is there"
    )


def _closed(opened: Store | None, blocks: object = None) -> None:
    """Close a store that was opened for the write, after its blocks are written."""
    with opened or nullcontext():
        pass


def _for_scheduler(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options that are for the scheduler, without those of ``dask.array.store`` itself."""
    own = ("lock", "flush", "compute", "return_stored", "load_stored", "regions")
    return {key: value for key, value in (options or {}).items() if key not in own}


def _finished(opened: Store | None, write: Commit, begun: Begun, stored: object = None) -> None:
    """Finish a write whose blocks are written, and close the store that was opened for it."""
    with opened or nullcontext():
        begun.finish(write, stored)


def _workers(store: Store, jobs: list[BlockWrite]) -> dict[str, int]:
    """The option ``num_workers`` for a store with latency; empty if the user has configured threads."""
    set_up = dask.config.get("num_workers", None) or dask.config.get("pool", None)
    if store.concurrency <= 1 or set_up or get_scheduler() not in (None, dask.threaded.get):
        return {}
    blocks = [math.prod(map(max, job.source.chunks)) * job.source.dtype.itemsize for job in jobs]
    return {"num_workers": in_flight.at_once(store.concurrency, 4 * max(blocks, default=0))}


class Begun:
    """A write that has begun. It is pickled without the plan, which is the result of another task."""

    def __init__(self, key: str, write: Commit) -> None:
        self.key = key
        self.attempt = uuid.uuid4().hex
        """Identifies this attempt; if the same write is begun again, that has another id."""
        self._write: Commit | None = write
        self._begun = write.begin(shared=True)
        self.room = write.room(self._begun)
        self._is_over = False
        self._guard = threading.Lock()
        _here[key] = self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_write": None, "_guard": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _guard=threading.Lock())

    @property
    def is_original(self) -> bool:
        """Whether the write was begun in this process, which has the plan."""
        return self._write is not None

    def finish(self, write: Commit, stored: object = None) -> None:
        """Finish the write, if all of its tasks have ``stored`` their values in the room of this attempt.

        Raises
        ------
        ConflictError
            If values that some tasks stored were removed since.
        """
        if isinstance(stored, frozenset) and not stored <= {self.room}:
            raise self._given_up(write)
        with self._guard:
            self._is_over = True
        write.finish(self._begun)

    def _given_up(self, write: Commit) -> ConflictError:
        error = ConflictError(
            "values that this write stored before a worker was lost, or before it was computed again, are "
            "gone: an earlier attempt at it was cleaned up since; nothing was committed; repeat the write"
        )
        self.abandon(error, write)
        return error

    def abandon(self, error: BaseException, write: Commit | None = None) -> None:
        """Remove what was written before ``error``, once; a second caller waits until that is done."""
        with self._guard:
            write = self._write if write is None else write
            if not self._is_over and write is not None:
                self._is_over = True
                write.discard(self._begun, error)


_here: weakref.WeakValueDictionary[str, Begun] = weakref.WeakValueDictionary()
"""The writes begun in this process, by the key of the task that began them."""


class Abandoning:
    """Cleanup that abandons a write.

    Parameters
    ----------
    plan, begin : str
        Keys of the tasks that return the plan and begin the write.
    """

    def __init__(self, plan: str, begin: str) -> None:
        self._plan, self.begin = plan, begin

    def __call__(self, error: BaseException) -> None:
        """Abandon the write, if it was begun in this process."""
        begun = _here.get(self.begin)
        if begun is not None:
            begun.abandon(error)

    def held(self, begun: Sequence[Any]) -> Callable[[BaseException], None] | None:
        """A cleanup of this attempt alone, wherever in a cluster it was begun; None if its plan is gone."""
        mine = next((each for each in begun if each.key == self.begin), None)
        if mine is None:  # The write failed to begin, and has cleaned up after itself.
            return lambda error: None
        if mine.is_original:
            return cast("Begun", mine).abandon
        found = fetched([self._plan])
        return None if found is None else partial(mine.abandon, write=found[0])
