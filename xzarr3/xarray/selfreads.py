"""Dask arrays on their way into arrays that they are made of.

A block that is written may be what another one is still to be made of, or what the same one is made of again
when the worker that wrote it is lost. So what is made of arrays that the same call sets values of is computed
to the side first, and put in place when all of it is there.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import numpy as np
from dask.array.optimization import optimize
from dask.base import dont_optimize
from dask.context import globalmethod
from dask.delayed import Delayed

from xzarr3._types import Buffer
from xzarr3.array import Array
from xzarr3.creation import array_metadata
from xzarr3.dask.reading import from_zarr
from xzarr3.dask.tasks import Journal
from xzarr3.dask.writing import Writes, plan_writes
from xzarr3.staging import _remove, _StagedKeys
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
    ) -> None:
        left = [jobs for jobs in turns if jobs]
        if journal is not None and (aside is not None or len(left) > 1):
            raise ValueError(
                "resume=True cannot take up a write of what is made of the arrays that it changes, as they "
                "are not what they were then; accepted: resume=False, or a source that is stored elsewhere"
            )
        self._turns = [(_planned(jobs, journal), jobs) for jobs in left]
        self.aside = aside
        """Where values lie meanwhile, which has to be cleaned when all is done."""
        self.sizes: dict[str, int] = {}
        """How many bytes are written, by the name of the tasks that do it."""

    def delayed(self, after: Delayed | None = None) -> Delayed:
        """What writes everything when it is computed; nothing is written before ``after`` is done."""
        done: Any = after
        for writes, jobs in self._turns:
            done = writes.delayed(done)
            graph: Any = done.__dask_graph__()
            layers: Mapping[str, object] = graph.layers
            names = [name for name in layers if name.startswith("write-zarr-") and name not in self.sizes]
            self.sizes.update((name, job.source.nbytes) for name, job in zip(names, jobs, strict=False))
        return done  # type: ignore[no-any-return]


class Later(Delayed):
    """What depends on writing tasks, and is optimized as arrays are: they make the blocks that they write."""

    __slots__ = ()

    __dask_optimize__ = globalmethod(optimize, key="array_optimize", falsey=dont_optimize)

    def compute(self, **kwargs: Any) -> Any:
        """Do all of it; directories that were made for that are gone afterwards, even if it failed."""
        try:
            return super().compute(**kwargs)  # type: ignore[no-untyped-call]
        except BaseException:
            for layer in self.dask.layers.values():
                if hasattr(layer, "tidy"):
                    layer.tidy()
            raise


def plan_in_turn(jobs: Sequence[Job], journal: Journal | None = None) -> Turns | None:
    """What writes jobs so that nothing is overwritten that is still to be read; None if there are none.

    A journal knows which parts of them were written before.
    """
    if not jobs:
        return None
    overwritten = {_identity(job.target) for job in jobs if job.in_place}
    if not overwritten:
        return Turns([jobs], journal=journal)
    first, then = [], []
    aside = None
    for job in jobs:
        read = arrays_read(job.source)
        if read is not None and overwritten.isdisjoint(read):
            then.append(job)
        elif not job.in_place:
            first.append(job)
        else:
            aside = Aside(job.target.store) if aside is None else aside
            staged = aside.array(len(first), job)
            first.append(Job(job.source, staged, ...))
            then.append(Job(from_zarr(staged, chunks="units"), job.target, job.region))
    return Turns([first, then], aside, journal)


class Aside:
    """Where values lie until they may be put in place; picklable."""

    def __init__(self, store: Store) -> None:
        self._target = store
        self._top = f"{STAGED}{uuid.uuid4().hex}"
        self.store: Store = _StagedKeys(store, f"{self._top}/new/")
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

    def clean(self) -> None:
        """Remove what lies there."""
        if isinstance(self._target, LocalStore):
            if os.path.isdir(os.path.join(self._target.root, self._top)):
                _remove(os.path.join(self._target.root, self._top))
        else:
            self._target.erase_prefix(f"{self._top}/")


# What a dask array is made of


def place_of(store: Store, path: str) -> tuple[object, str]:
    """Where a node is, whichever store around it is used: one of a part of a directory, or with a cache."""
    found = store.identity
    while isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], tuple):
        found = found[1]
    names = [path] if path else []
    if isinstance(found, tuple) and found[0] == "LocalStore":
        return "LocalStore", "/".join([str(found[1]).rstrip("/"), *names])
    if isinstance(found, tuple) and found[0] == "ObjectStore":
        above = str(found[2]).strip("/")
        return found[:2], "/".join([above, *names] if above else names)
    return found, path


def _identity(array: Array) -> tuple[object, str]:
    return place_of(array.store, array.path)


def reads_below(source: Any, store: Store, path: str) -> bool:
    """Whether a dask array is known to be made of a node, or of what is below it."""
    where, top = place_of(store, path)
    return any(
        place == where and (not top or found == top or found.startswith(f"{top}/"))
        for place, found in arrays_read(source) or ()
    )


class _Nowhere:
    """A file that keeps nothing."""

    def write(self, data: Buffer) -> int:
        return memoryview(data).nbytes


class _Finder(cloudpickle.Pickler):  # type: ignore[misc]
    """Goes through everything that a task needs, and notes the arrays in stores among it."""

    def __init__(self) -> None:
        super().__init__(_Nowhere())
        self.found: set[tuple[object, str]] = set()

    def persistent_id(self, value: Any) -> str | None:
        if isinstance(value, Array):
            self.found.add(_identity(value))
            return "array"
        if isinstance(value, np.ndarray) and value.dtype.kind != "O":
            return "values"
        if type(value).__module__.startswith("zarr.") and hasattr(value, "store_path"):
            root = getattr(value.store_path.store, "root", None)
            if root is not None:
                self.found.add(place_of(LocalStore(os.fspath(root)), value.store_path.path))
            return "array"
        return None


def arrays_read(source: Any) -> set[tuple[object, str]] | None:
    """The arrays in stores that a dask array is made of; None if that cannot be known."""
    finder = _Finder()
    try:
        finder.dump(source.__dask_graph__())
    except Exception:  # noqa: BLE001 - whatever has no way to be pickled tells so in its own way
        return None
    return finder.found


def _planned(jobs: Sequence[Job], journal: Journal | None) -> Writes:
    sources = [job.source for job in jobs]
    return plan_writes(sources, [job.target for job in jobs], [job.region for job in jobs], journal=journal)
