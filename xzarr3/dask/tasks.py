"""The functions that the tasks of a write run, how a write ends, and the forks of a session.

Dask raises the error of the first failed task while other tasks still run. A gate waits for those of this
process, and after that none stores anything. It does not wait for workers in other processes.

Tasks of other processes write to forks of an Icechunk session. A fork is made when dask sends the tasks away,
so it knows the documents that were stored before. Each task writes to a copy of its own and returns that, and
the tasks that wait for others merge what these return. So a task that runs again, since its worker was lost,
adds nothing twice. Tasks of this process write to the session itself. A task does not see what another one
wrote, so no two tasks may write parts of one stored unit.
"""

from __future__ import annotations

import itertools
import pickle
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import dask.local
import dask.threaded
import numpy as np
from dask.array.optimization import optimize
from dask.base import dont_optimize, get_scheduler
from dask.context import globalmethod
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph

from xzarr3._types import AnyArray
from xzarr3.arrays import Array
from xzarr3.dask.blocks import threads_of
from xzarr3.dask.tiles import Cut
from xzarr3.errors import SelectionError, StoreCapabilityError, StoreError
from xzarr3.parallel import to_the_end
from xzarr3.stores import Store
from xzarr3.stores.foreign import IcechunkStore

_GLANCE = 0.005  # Seconds between checks whether the last task has ended.

_closed: set[str] = set()  # The gates of writes that have failed.
_inside: dict[
    object, tuple[str, int]
] = {}  # Gates and threads; changed by atomic operations, without a lock.


@dataclass(frozen=True)
class Gate:
    """The gate that the tasks of one write pass before they store anything.

    In one process, equal gates are open or closed together.

    Parameters
    ----------
    name : str, optional
        Identifies the write; a random name by default.

    Examples
    --------
    >>> gate = Gate()
    >>> with gate.passing():
    ...     stored = True
    >>> gate.close()
    >>> with gate.passing():
    ...     stored = True
    Traceback (most recent call last):
        ...
    xzarr3.errors.StoreError: the write has failed, so it stores nothing more
    """

    name: str = field(default_factory=lambda: uuid.uuid4().hex)

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Context manager to store values in.

        Raises
        ------
        StoreError
            If the gate is closed.
        """
        passage = object()
        _inside[passage] = self.name, threading.get_ident()
        try:
            if self.name in _closed:
                raise StoreError("the write has failed, so it stores nothing more")
            yield
        finally:
            del _inside[passage]

    def open(self) -> None:
        """Let tasks pass, as the write begins or is computed again."""
        _closed.discard(self.name)

    def close(self) -> None:
        """Let no further task pass, and wait for the tasks that have passed and not ended."""
        try:
            to_the_end(self._close)
        finally:
            to_the_end(self._close)  # Again: Ctrl-C may have interrupted the first call.

    def _close(self) -> None:
        _closed.add(self.name)
        # Not for this thread: it stores nothing now, even if an interrupt kept it from leaving `_inside`.
        own = threading.get_ident()
        while self.name in {name for name, thread in [*_inside.values()] if thread != own}:
            time.sleep(_GLANCE)


def gates_of(layers: Mapping[str, Any]) -> list[Gate]:
    """The gates of all writing layers of a graph."""
    return [layer.gate for layer in layers.values() if isinstance(getattr(layer, "gate", None), Gate)]


class Writing(Delayed):
    """A Delayed that is optimized as dask arrays are, so that making a block and writing it are fused.

    After an error or an interrupt of :meth:`compute`, no task of this process stores anything more.
    """

    __slots__ = ()

    def __init__(self, key: str, graph: HighLevelGraph) -> None:
        super().__init__(key, graph, layer=key)  # type: ignore[no-untyped-call]

    __dask_optimize__ = globalmethod(optimize, key="array_optimize", falsey=dont_optimize)

    def __dask_graph__(self) -> Any:
        """The graph. Dask asks for it just before it runs it, so gates that a failure has closed reopen."""
        for gate in gates_of(self.dask.layers):
            gate.open()
        return self.dask

    def compute(self, **kwargs: Any) -> Any:
        """Write the values."""
        try:
            return super().compute(**kwargs)  # type: ignore[no-untyped-call]
        except BaseException:
            for gate in gates_of(self.dask.layers):
                gate.close()
            raise


class Forks:
    """The fork of a session that the tasks of one write begin with.

    Parameters
    ----------
    store : IcechunkStore
        The store of the session.
    """

    def __init__(self, store: IcechunkStore) -> None:
        self.store = store

    @cached_property
    def fork(self) -> bytes:
        """The pickled form."""
        return self.store.fork()

    def merge(self, written: bytes | None) -> None:
        """Take over what tasks of other processes have written; later tasks begin with another fork."""
        if written is not None:
            self.store.merge(written)
        vars(self).pop("fork", None)


def forks_of(store: Store, scheduler: Any = None) -> Forks | None:
    """The forks for a write to a session by a scheduler that runs tasks in other processes; else None.

    Raises
    ------
    StoreCapabilityError
        If the scheduler would write to a transaction that has no forks.
    """
    in_process = (None, dask.threaded.get, dask.local.get_sync)
    if store.traits.visible != "at commit" or get_scheduler(scheduler=scheduler) in in_process:
        return None
    store.check_writable()
    if isinstance(store, IcechunkStore) and store.can_fork:
        return Forks(store)
    raise StoreCapabilityError(
        f"{store} can be written by this process only, and the scheduler of dask runs tasks in others; "
        "pass scheduler='threads', in to_zarr as chunkmanager_store_kwargs={'scheduler': 'threads'}, or "
        "set it with dask.config.set"
    )


def merged(written: Iterable[bytes | None]) -> bytes | None:
    """One fork that has what all have; None if no task wrote to a fork."""
    first, *others = [pickle.loads(fork) for fork in written if fork is not None] or [None]
    if first is None:
        return None
    first.merge(*others)
    return pickle.dumps(first, 5)


Tile = tuple[int, ...]
Region = tuple[slice, ...]
Cuts = tuple[tuple[Cut, ...], ...]


class Sink:
    """Writes the tiles of a job to its target while the gate is open.

    Parameters
    ----------
    target : Array
    gate : Gate
    forks : Forks, optional
        What other processes write to, in place of the store of ``target``.
    """

    def __init__(self, target: Array, gate: Gate, forks: Forks | None = None) -> None:
        self.target, self._gate, self._forks = target, gate, forks

    def __reduce__(self) -> tuple[object, ...]:
        if self._forks is None:
            return Sink, (self.target, self._gate)
        _, *state = self.target.__getstate__()
        return ForkedSink, (self._forks.fork, type(self.target), state, self._gate)

    def write(self, region: Region, values: AnyArray) -> bytes | None:
        """Write one tile; the result is None, or the fork that has it."""
        with self._gate.passing():
            self.target.set(region, values, threads=threads_of(self.target))
        return None


class ForkedSink:
    """Writes each tile to a fork of its own of a session, in another process than that of the session."""

    def __init__(self, fork: bytes, kind: type[Array], state: Sequence[object], gate: Gate) -> None:
        self._given = fork, kind, state, gate
        self.target = self._on(IcechunkStore.forked(fork))

    def __reduce__(self) -> tuple[object, ...]:
        return ForkedSink, self._given

    def _on(self, store: IcechunkStore) -> Array:
        _, kind, state, _ = self._given
        array = kind.__new__(kind)
        array.__setstate__((store, *state))
        return array

    def write(self, region: Region, values: AnyArray) -> bytes:
        """Write one tile; returns the fork."""
        fork, _, _, gate = self._given
        store = IcechunkStore.forked(fork)
        Sink(self._on(store), gate).write(region, values)
        return store.fork()


def write_block(block: AnyArray, sink: Sink | ForkedSink, region: Region, *after: object) -> bytes | None:
    """Write a block that is a tile, after the tasks ``after``."""
    _check_shape(sink.target, block, tuple(part.stop - part.start for part in region))
    return sink.write(region, block)


def write_tile(sink: Sink | ForkedSink, region: Region, cuts: Cuts, *given: Any) -> bytes | None:
    """Write a tile made of parts of blocks.

    ``given`` are the blocks, and after them the results of tasks that had to be done before.
    """
    parts = list(itertools.product(*cuts))
    target, blocks = sink.target, given[: len(parts)]
    if len(parts) == 1:
        return sink.write(region, _part(target, blocks[0], parts[0]))
    elements = target.zdtype.to_native_dtype()
    whole = np.empty(tuple(part.stop - part.start for part in region), elements)
    for block, part in zip(blocks, parts, strict=True):
        values = _part(target, block, part)
        if type(values) is not np.ndarray or values.dtype != elements:
            values = target.fitted(values, values.shape)  # So no value is cast with loss, no mask dropped.
        whole[tuple(slice(to, to + end - begin) for _, begin, end, to in part)] = values
    return sink.write(region, whole)


def _part(target: Array, block: AnyArray, cuts: tuple[Cut, ...]) -> AnyArray:
    """The part of a block that a tile takes."""
    _check_shape(target, block, tuple(length for length, *_ in cuts))
    values = block if isinstance(block, np.ndarray) else np.asarray(block)
    taken: AnyArray = values[tuple(slice(begin, end) for _, begin, end, _ in cuts)]
    return taken


def _check_shape(target: Array, block: AnyArray, expected: tuple[int, ...]) -> None:
    if np.shape(block) != expected:
        raise SelectionError(
            f"a block for array '{target.name}' has shape {np.shape(block)}, but .chunks of the dask array "
            f"says {expected}; correct .chunks"
        )
