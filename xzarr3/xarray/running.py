"""Carrying out a write with dask: what its tasks do, in which turn, and what becomes of it when one fails.

A block that is written may be what another one is still to be made of, or what the same one is made of again
when the worker that wrote it is lost. So what is made of arrays that the same call sets values of is computed
to the side first, and put in place when all of it is there.
"""

from __future__ import annotations

import math
import os
import threading
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast

import dask
import dask.threaded
from dask._task_spec import DataNode, Task, TaskRef
from dask.base import get_scheduler
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer

from xzarr3.array import Array
from xzarr3.array_settings import array_metadata
from xzarr3.commit.moving import remove
from xzarr3.commit.stage import StagedKeys
from xzarr3.dask.cleanup import Cleanup, Writing, fetched
from xzarr3.dask.reading import from_zarr
from xzarr3.dask.sources import Place, Places
from xzarr3.dask.tasks import Journal
from xzarr3.dask.write_layer import Made
from xzarr3.dask.writing import plan_writes
from xzarr3.errors import ConflictError
from xzarr3.progress import Asked, shown
from xzarr3.stores import LocalStore, Store, in_flight
from xzarr3.stores.local_folders import STAGED


@dataclass(frozen=True, eq=False)
class Job:
    """A dask array and where it is written: a region of an array.

    ``in_place`` tells that values are there which others may still be made of.
    """

    source: Any
    target: Array
    region: Any
    in_place: bool = False


class Write(Protocol):
    """One call of :func:`xzarr3.to_zarr`: where values go, and how they become a dataset."""

    store: Store
    jobs: list[Job]
    """What is written by dask."""
    journal: Any
    """What of that is written already, if that is noted."""

    def begin(self) -> Any:
        """Make room for values, before the first one is stored; what is returned is for those below."""

    def room(self, begun: Any) -> str:
        """What tells where it has begun from what is made there once that was removed."""

    def finish(self, begun: Any) -> None:
        """Write all that is not in dask arrays, which were written, and make a dataset of it."""

    def discard(self, begun: Any, error: BaseException) -> None:
        """Remove what was written before ``error``, for good."""


def write_blocks(write: Write, progress: Asked, options: Mapping[str, Any] | None) -> Any:
    """Begin a write and write what is in dask arrays; gives what finishes it what it needs.

    ``options`` are for the scheduler.
    """
    blocks = plan_in_turn(write.jobs, write.journal)
    begun = write.begin()
    if blocks is not None:
        number = len(write.jobs)
        try:
            shown(
                blocks.delayed(),
                blocks.sizes,
                f"writing {number} variable{'' if number == 1 else 's'} to {write.store}",
                progress,
                **{**_workers(write.store, write.jobs), **_for_scheduler(options)},
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
    plan, begin = f"plan-zarr-{token}", f"begin-zarr-{token}"
    layers: dict[str, Layer] = {
        plan: MaterializedLayer({plan: DataNode(plan, write)}),
        begin: MaterializedLayer({begin: Task(begin, Begun, begin, TaskRef(plan))}),
    }
    begun = HighLevelGraph(layers, {plan: set(), begin: {plan}})
    finish = partial(_finished, opened, None if blocks is None else blocks.aside)
    return _ending(blocks, finish, begun, [plan, begin], [Abandoning(plan, begin)])


def _ending(
    blocks: Turns | None,
    end: Callable[..., None],
    before: HighLevelGraph | None = None,
    needed: Sequence[str] = (),
    cleanups: Sequence[Cleanup] = (),
) -> Writing:
    """What writes blocks once the tasks ``needed`` are done, and calls ``end`` with what all these give."""
    graph = HighLevelGraph({}, {}) if before is None else before
    keys, cleanups = [*needed], [*cleanups]
    if blocks is not None:
        written = blocks.delayed(Delayed(keys[-1], graph) if keys else None)
        graph = written.dask
        keys.append(written.key)
        cleanups += [] if blocks.aside is None else [blocks.aside]
    key = f"end-zarr-{uuid.uuid4().hex}"
    last = Last(key, Task(key, end, *map(TaskRef, keys)), cleanups)
    layers: dict[str, Layer] = {**graph.layers, key: last}
    return Writing(key, HighLevelGraph(layers, {**graph.dependencies, key: set(keys)}))


def templated(write: Any, opened: Store | None) -> Delayed:
    """Make a new dataset without what is in dask arrays, and give what writes that when it is computed.

    Raises
    ------
    ValueError
        If what is replaced would be read afterwards.
    """
    store, jobs = write.store, write.jobs
    read = reads_below([job.source for job in jobs], store, write.path)
    for job, is_replaced in zip(jobs, read, strict=True):
        if is_replaced:
            raise ValueError(
                f"array '{job.target.name}' is made of what is in {store} and would be replaced before "
                "it is read; accepted: compute='later', which keeps it until all is written"
            )
    targets = [
        Array(store, at.path, at.metadata, format=at.format, write_empty_chunks=at.write_empty_chunks)
        for at in (job.target for job in jobs)
    ]
    write.jobs = []
    write.finish(write.begin())
    if opened is not None and opened.publishes_at_close:
        cast("Any", opened).flush()
    placed = [Job(job.source, target, ...) for job, target in zip(jobs, targets, strict=True)]
    return _ending(plan_in_turn(placed), partial(_closed, opened))


def _closed(opened: Store | None, blocks: object = None) -> None:
    """Close a store opened for blocks that were written."""
    with opened or nullcontext():
        pass


def _for_scheduler(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """What ``dask.array.store`` takes and the scheduler understands."""
    own = ("lock", "flush", "compute", "return_stored", "load_stored", "regions")
    return {key: value for key, value in (options or {}).items() if key not in own}


def _finished(
    opened: Store | None, aside: Aside | None, write: Write, begun: Begun, stored: object = None
) -> None:
    """Finish a write that has begun and whose blocks were written, and close a store opened for it."""
    with opened or nullcontext():
        begun.finish(write, stored)
        if aside is not None:
            aside.clean()


def _workers(store: Store, jobs: list[Job]) -> dict[str, int]:
    """How many of dask's threads write at a time, where the user leaves it open and they have to wait."""
    set_up = dask.config.get("num_workers", None) or dask.config.get("pool", None)
    if store.concurrency <= 1 or set_up or get_scheduler() not in (None, dask.threaded.get):
        return {}
    blocks = [math.prod(map(max, job.source.chunks)) * job.source.dtype.itemsize for job in jobs]
    return {"num_workers": in_flight.at_once(store.concurrency, 4 * max(blocks, default=0))}


class Begun:
    """A write that has begun. Where it travels the plan stays behind, of which there is a task."""

    def __init__(self, key: str, write: Write) -> None:
        self.key = key
        self.attempt = uuid.uuid4().hex
        """What tells it from the same write when that is begun again."""
        self._write: Write | None = write
        self._begun = write.begin()
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
        """Whether it was begun in this process, where the plan is."""
        return self._write is not None

    def finish(self, write: Write, stored: object = None) -> None:
        """Finish the write, if all of its tasks have ``stored`` their values where it has begun.

        Raises
        ------
        ConflictError
            If what some of them stored was removed since.
        """
        if isinstance(stored, frozenset) and not stored <= {self.room}:
            raise self._given_up(write)
        with self._guard:
            self._is_over = True
        write.finish(self._begun)

    def _given_up(self, write: Write) -> ConflictError:
        error = ConflictError(
            "values are gone that this write had stored before a worker was lost, or it was computed again: "
            "an earlier attempt at it was cleaned up since; nothing was put in its place; accepted: the same "
            "again, or a new call"
        )
        self.abandon(error, write)
        return error

    def abandon(self, error: BaseException, write: Write | None = None) -> None:
        """Remove what was written before ``error``, once; who comes second waits until that is done."""
        with self._guard:
            write = self._write if write is None else write
            if not self._is_over and write is not None:
                self._is_over = True
                write.discard(self._begun, error)


_here: weakref.WeakValueDictionary[str, Begun] = weakref.WeakValueDictionary()
"""What was begun in this process, by the key of the task that did."""


class Abandoning:
    """Gives up what a task has begun.

    Parameters
    ----------
    plan, begin : str
        Keys of the tasks that give the plan of the write and begin it.
    """

    def __init__(self, plan: str, begin: str) -> None:
        self._plan, self.begin = plan, begin

    def __call__(self, error: BaseException) -> None:
        """Give it up, if it was begun in this process."""
        begun = _here.get(self.begin)
        if begun is not None:
            begun.abandon(error)

    def held(self, begun: Sequence[Any]) -> Cleanup | None:
        """What gives it up, wherever in a cluster it was begun; not the same that was begun again since."""
        mine = next((each for each in begun if each.key == self.begin), None)
        if mine is None or mine.is_original:
            return _Held(mine)
        found = fetched([self._plan])
        return None if found is None else _Held(mine, found[0])


class _Held:
    """Gives up what has begun; nothing, if it failed to begin and has cleaned up itself."""

    def __init__(self, begun: Begun | None, write: Write | None = None) -> None:
        self._begun, self._write = begun, write

    def __call__(self, error: BaseException) -> None:
        if self._begun is not None:
            self._begun.abandon(error, self._write)

    def held(self, begun: Sequence[Any]) -> _Held:
        return self


class Last(Made):
    """The task that ends a write.

    Parameters
    ----------
    name : str
    task : Task
    cleanups : sequence of Cleanup
        What removes what was begun, if the write fails.
    """

    def __init__(self, name: str, task: Task, cleanups: Sequence[Cleanup] = ()) -> None:
        super().__init__(name)
        self._task = task
        self.cleanups = list(cleanups)

    def make(self) -> dict[Any, Task]:
        return {self.name: self._task}


class Turns:
    """What writes jobs, one group of them after the other.

    Parameters
    ----------
    turns : sequence of sequence of Job
        No source of one reads what the same one writes.
    places : Places
        Where arrays are.
    journal : Journal, optional
        Knows which parts of them were written before.
    aside : Aside, optional
        Where values lie meanwhile, which has to be cleaned when all is done.
    """

    def __init__(
        self, turns: Sequence[Sequence[Job]], places: Places, journal: Journal | None, aside: Aside | None
    ) -> None:
        left = [jobs for jobs in turns if jobs]
        if journal is not None and (aside is not None or len(left) > 1):
            raise ValueError(
                "resume=True cannot take up a write of what is made of the arrays that it changes, as they "
                "are not what they were then; accepted: resume=False, or a source that is stored elsewhere"
            )
        self._turns = []
        for jobs in left:
            sources, targets = [job.source for job in jobs], [job.target for job in jobs]
            regions = [job.region for job in jobs]
            self._turns.append(plan_writes(sources, targets, regions, journal=journal, places=places))
        self.aside = aside
        self.sizes = {name: size for writes in self._turns for name, size in writes.sizes.items()}
        """How many bytes are written, by the name of the tasks that do it."""

    def delayed(self, after: Delayed | None = None) -> Delayed:
        """What writes everything when it is computed; nothing is written before ``after`` is done."""
        done: Any = after
        for writes in self._turns:
            done = writes.delayed(done)
        return done  # type: ignore[no-any-return]


def plan_in_turn(jobs: Sequence[Job], journal: Journal | None = None) -> Turns | None:
    """What writes jobs so that nothing is overwritten that is still to be read; None if there are none."""
    if not jobs:
        return None
    places = Places()
    overwritten = {places.of(job.target) for job in jobs if job.in_place}
    first: list[Job] = []
    then: list[Job] = []
    aside = None
    for job in jobs:
        if not overwritten or overwritten.isdisjoint(places.read_in(job.source.dask.layers, thorough=True)):
            then.append(job)
        elif not job.in_place:
            first.append(job)
        else:
            aside = Aside(job.target.store) if aside is None else aside
            staged = aside.array(len(first), job)
            first.append(Job(job.source, staged, ...))
            then.append(Job(from_zarr(staged, chunks="units", missing="error"), job.target, job.region))
    return Turns([first, then], places, journal, aside)


class Aside:
    """Where values lie until they may be put in place; picklable."""

    def __init__(self, store: Store) -> None:
        self._target = store
        self._top = f"{STAGED}{uuid.uuid4().hex}"
        self.store: Store = StagedKeys(store, f"{self._top}/new/")
        if store.folder is not None:
            self.store = LocalStore(os.path.join(store.folder, self._top, "new"))

    def array(self, number: int, job: Job) -> Array:
        """What takes the values of a job, in chunks that are as large as those that they are for."""
        target, source = job.target, job.source
        units = target.metadata.chunk_grid.largest
        metadata = array_metadata(
            shape=source.shape,
            dtype=target.metadata.data_type,
            chunks=tuple(max(1, min(unit, size)) for unit, size in zip(units, source.shape, strict=True)),
            compressors=None,
            fill_value=target.fill_value,
            format=target.format,
        )
        aside = Array(self.store, f"{number}", metadata, format=target.format, write_empty_chunks=True)
        aside.has_document = False
        return aside

    def __call__(self, error: BaseException) -> None:
        """Clean up after an error."""
        self.clean()

    def held(self, begun: Sequence[Any]) -> Aside:
        """The same, as it needs nothing else."""
        return self

    def clean(self) -> None:
        """Remove what lies there."""
        if self._target.folder is not None:
            if os.path.isdir(os.path.join(self._target.folder, self._top)):
                remove(os.path.join(self._target.folder, self._top))
        else:
            self._target.erase_prefix(f"{self._top}/")


def reads_below(sources: Sequence[Any], store: Store, path: str) -> list[bool]:
    """Which dask arrays are known to be made of a node, or of what is below it."""
    places = Places()
    where, top = places.at(store, path)

    def is_below(place: Place) -> bool:
        return place[0] == where and (
            not top or place[1] == top or place[1].startswith(f"{top.rstrip('/')}/")
        )

    return [any(map(is_below, places.read_in(source.dask.layers, thorough=True))) for source in sources]
