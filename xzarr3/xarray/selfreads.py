"""Dask arrays on their way into arrays that they are made of.

A block that is written may be what another one is still to be made of, or what the same one is made of again
when the worker that wrote it is lost. So what is made of arrays that the same call sets values of is computed
to the side first, and put in place when all of it is there.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dask.delayed import Delayed

from xzarr3.array import Array
from xzarr3.commit.renaming import remove
from xzarr3.commit.stage import StagedKeys
from xzarr3.creation import array_metadata
from xzarr3.dask.reading import from_zarr
from xzarr3.dask.sources import Place, Places
from xzarr3.dask.tasks import Journal
from xzarr3.dask.writing import Writes, plan_writes
from xzarr3.stores import LocalStore, Store
from xzarr3.stores.local import STAGED


@dataclass(frozen=True, eq=False)
class Job:
    """A dask array and where it is written: a region of an array.

    ``in_place`` tells that values are there which others may still be made of.
    """

    source: Any
    target: Array
    region: Any
    in_place: bool = False


class Turns:
    """What writes jobs, one group of them after the other."""

    def __init__(
        self,
        turns: Sequence[Sequence[Job]],
        aside: Aside | None = None,
        journal: Journal | None = None,
        places: Places | None = None,
    ) -> None:
        left = [jobs for jobs in turns if jobs]
        if journal is not None and (aside is not None or len(left) > 1):
            raise ValueError(
                "resume=True cannot take up a write of what is made of the arrays that it changes, as they "
                "are not what they were then; accepted: resume=False, or a source that is stored elsewhere"
            )
        self._turns = [_planned(jobs, journal, places) for jobs in left]
        self.aside = aside
        """Where values lie meanwhile, which has to be cleaned when all is done."""
        self.sizes = {name: size for writes in self._turns for name, size in writes.sizes.items()}
        """How many bytes are written, by the name of the tasks that do it."""

    def delayed(self, after: Delayed | None = None) -> Delayed:
        """What writes everything when it is computed; nothing is written before ``after`` is done."""
        done: Any = after
        for writes in self._turns:
            done = writes.delayed(done)
        return done  # type: ignore[no-any-return]


def plan_in_turn(jobs: Sequence[Job], journal: Journal | None = None) -> Turns | None:
    """What writes jobs so that nothing is overwritten that is still to be read; None if there are none.

    A journal knows which parts of them were written before.
    """
    if not jobs:
        return None
    places = Places()
    overwritten = {places.of(job.target) for job in jobs if job.in_place}
    if not overwritten:
        return Turns([jobs], journal=journal, places=places)
    first, then = [], []
    aside = None
    for job in jobs:
        if overwritten.isdisjoint(places.read_in(job.source.dask.layers, thorough=True)):
            then.append(job)
        elif not job.in_place:
            first.append(job)
        else:
            aside = Aside(job.target.store) if aside is None else aside
            staged = aside.array(len(first), job)
            first.append(Job(job.source, staged, ...))
            then.append(Job(from_zarr(staged, chunks="units"), job.target, job.region))
    return Turns([first, then], aside, journal, places)


class Aside:
    """Where values lie until they may be put in place; picklable."""

    def __init__(self, store: Store) -> None:
        self._target = store
        self._top = f"{STAGED}{uuid.uuid4().hex}"
        self.store: Store = StagedKeys(store, f"{self._top}/new/")
        if isinstance(store, LocalStore):
            self.store = LocalStore(os.path.join(store.root, self._top, "new"))

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
        return Array(self.store, f"{number}", metadata, format=target.format, write_empty_chunks=True)

    def __call__(self, error: BaseException) -> None:
        """Clean up after an error."""
        self.clean()

    def held(self) -> Aside:
        """The same, as it needs nothing else."""
        return self

    def clean(self) -> None:
        """Remove what lies there."""
        if isinstance(self._target, LocalStore):
            if os.path.isdir(os.path.join(self._target.root, self._top)):
                remove(os.path.join(self._target.root, self._top))
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


def _planned(jobs: Sequence[Job], journal: Journal | None, places: Places | None) -> Writes:
    sources = [job.source for job in jobs]
    regions = [job.region for job in jobs]
    return plan_writes(sources, [job.target for job in jobs], regions, journal=journal, places=places)
