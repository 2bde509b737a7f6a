"""Reads and writes the stored units of one array: shares the units of a plan among threads.

All threads take runs of units from one shared iterator. No future, task or event loop is made per chunk.
Knows nothing of indices, documents or array handles: it gets a plan and an array in memory.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from xzarr3._types import AnyArray
from xzarr3.codecs.pipeline import CodecChain
from xzarr3.errors import ChunkError
from xzarr3.io.fetch import Price
from xzarr3.io.plan import Batch, ReadPlan
from xzarr3.io.projection import ChunkProjection, Slices
from xzarr3.io.read import UnitReader
from xzarr3.io.selection import DimChoice, Points
from xzarr3.io.threads import to_read, to_write
from xzarr3.io.write import UnitWriter
from xzarr3.model.metadata import ArrayMetadata
from xzarr3.parallel import Pool, available_threads, cores, is_shared, run_on_threads, waiters
from xzarr3.stores import Store
from xzarr3.tracing.counters import for_array

if TYPE_CHECKING:
    from xzarr3.io.native import Left
    from xzarr3.io.native_read import NativeRead
    from xzarr3.io.native_write import NativeWrite

_MAX_RUN = 4096  # Most units that a thread takes at once.


class Runs:
    """The units of one read or write. Its threads take them in runs.

    Parameters
    ----------
    batches : iterator of Batch
    number : int
        Approximate number of units.
    threads : int
    """

    __slots__ = ("_batches", "_chain", "_lock", "_run", "_units", "stopped")

    def __init__(self, batches: Iterator[Batch], number: int, threads: int) -> None:
        self._batches = batches
        self._chain, self._units = next(batches)
        self._run = _MAX_RUN if threads <= 1 else max(1, min(_MAX_RUN, number // (4 * threads)))
        self._lock = threading.Lock()
        self.stopped = False
        """Whether the threads are to skip the remaining units, for instance because one of them failed."""

    def take(self) -> tuple[CodecChain, list[ChunkProjection]] | None:
        """The next run of units of one shape, and their codecs; None after the last run."""
        with self._lock:
            while not self.stopped:
                run = list(itertools.islice(self._units, self._run))
                if run:
                    return self._chain, run
                batch = next(self._batches, None)
                if batch is None:
                    break
                self._chain, self._units = batch
            return None

    def share(
        self, threads: int, worker: Callable[[Runs], int], pool: Pool = cores, *, leaves: bool = False
    ) -> int:
        """Run ``worker`` on several threads until no units are left; returns the sum of its results.

        All workers have ended when this returns or raises, except after Ctrl-C with ``leaves``.
        """
        if threads <= 1 and not is_shared():
            return worker(self)
        return sum(run_on_threads(lambda: worker(self), max(threads, 1), pool, self._stop, leaves=leaves))

    def _stop(self) -> None:
        self.stopped = True


class Engine(msgspec.Struct, frozen=True, dict=True, weakref=True):
    """Reads and writes the stored units of one array: shards, or chunks that are in no shard.

    Parameters
    ----------
    store : Store
    prefix : str
        Start of the array's keys; empty, or ends with ``/``.
    meta : ArrayMetadata
    """

    store: Store
    prefix: str
    meta: ArrayMetadata

    @cached_property
    def key_prefix(self) -> str:
        """Start of the keys of all units."""
        return self.prefix + self.meta.chunk_key_encoding.prefix(len(self.meta.shape))

    @cached_property
    def separator(self) -> str:
        """Separator of the coordinates in the key of a unit."""
        return self.meta.chunk_key_encoding.separator

    @cached_property
    def fill(self) -> AnyArray:
        """The fill value as an array of no dimensions."""
        return self.meta.data_type.filled((), self.meta.fill_value)

    @cached_property
    def largest_value(self) -> int:
        """Most bytes that a stored unit may have."""
        return self.meta.chain.largest_stored

    @cached_property
    def store_identity(self) -> object:
        """Identity of the store, which tells it from other stores."""
        return self.store.identity

    def key(self, coords: tuple[int, ...]) -> str:
        """Key of a unit."""
        return self.key_prefix + self.separator.join(map(str, coords))

    def chain_of(self, shape: tuple[int, ...]) -> CodecChain:
        """The codecs, bound to units of this shape."""
        grid = self.meta.chunk_grid
        return self.meta.chain if grid.is_regular or shape == grid.largest else self.meta.chain_of(shape)

    def plan(self, selection: tuple[DimChoice, ...] | Points) -> ReadPlan:
        """The plan of a read or write of this selection."""
        price = Price.of(self.store, self.meta.chain)
        return ReadPlan(selection, self.meta.shape, self.meta.chunk_grid, self.chain_of, price)

    def read(
        self,
        plan: ReadPlan,
        out: AnyArray,
        threads: int | None,
        absent: list[tuple[int, ...]] | None = None,
        *,
        leaves: bool = False,
    ) -> int:
        """Read what ``plan`` selects into ``out``.

        Parameters
        ----------
        plan : ReadPlan
        out : ndarray
            Has the shape of the plan's buffer.
        threads : int, optional
            Largest number of threads; None for as many as make sense.
        absent : list, optional
            Gets the coordinates of the absent units.
        leaves : bool
            Whether ``out`` is not used after Ctrl-C. If so, Ctrl-C does not wait for threads that wait for
            the store. Otherwise no thread writes to ``out`` after this has raised.

        Returns
        -------
        int
            Number of absent units. Their parts of ``out`` hold the fill value.

        Raises
        ------
        StoreError, ChunkDecodeError
            If a unit is stored and cannot be read. The contents of ``out`` are then undefined.
        """
        if out.nbytes == 0:
            return 0
        from xzarr3.io.native_read import NativeRead  # imports the libraries of the codecs

        units, number, missing = plan.batches(), plan.number, 0
        native = NativeRead.of(self, plan, out)
        left = (
            None if native is None else self._by_native_code(native, threads or available_threads(), absent)
        )
        if left is not None:
            units, number = _only(units, left.coords), len(left.coords)
            missing = sum(map(len, left.absent))
        if not number:
            return missing
        busy = min(to_read(self, plan, threads), number)
        within = threads or available_threads()
        return missing + self._read(plan, out, units, number, busy, within, absent, leaves=leaves)

    @for_array(lambda engine: engine)
    def _by_native_code(
        self, native: NativeRead | NativeWrite, threads: int, absent: list[tuple[int, ...]] | None
    ) -> Left | None:
        """Do the rows of a read or write; None if Python has to do all of it."""
        try:
            if not is_shared():
                left = native.run(threads)
            else:
                left = run_on_threads(lambda: native.run(threads), 1, self.pool, native.stop)[0]
        except MemoryError:  # Python takes less.
            return None
        if left is not None and absent is not None:
            absent.extend(tuple(each) for coords in left.absent for each in coords.tolist())
        return left

    def _read(
        self,
        plan: ReadPlan,
        out: AnyArray,
        units: Iterator[Batch],
        number: int,
        threads: int,
        within: int,
        absent: list[tuple[int, ...]] | None,
        *,
        leaves: bool = False,
    ) -> int:
        """:meth:`read` of some units by the Python executor; one thread alone takes ``within`` in a shard."""
        return Runs(units, number, threads).share(
            threads,
            lambda runs: UnitReader(self, plan, out, runs, absent, within).run(),
            self.pool,
            leaves=leaves and self.waiting > 0,  # A file must not be closed while a thread reads it.
        )

    @cached_property
    def waiting(self) -> int:
        """Number of threads that may wait for the store at a time; 0 for a store that answers at once."""
        return self.store.concurrency if self.store.concurrency > 1 else 0

    @property
    def pool(self) -> Pool:
        """The pool that the threads come from."""
        return waiters if self.waiting else cores

    def write(
        self,
        plan: ReadPlan,
        source: AnyArray,
        threads: int | None,
        *,
        keep_empty: bool,
        fields: tuple[str, ...] = (),
        left_out: list[tuple[int, ...]] | None = None,
    ) -> None:
        """Write ``source`` to what ``plan`` selects.

        Each unit is replaced as a whole. If only a part of a unit is selected, the unit is read first.

        Parameters
        ----------
        plan : ReadPlan
        source : ndarray
            Has the shape of the plan's buffer.
        threads : int, optional
            Largest number of threads; None for as many as make sense.
        keep_empty : bool
            Whether to store units that hold only the fill value. Otherwise they are erased.
        fields : tuple of str
            The fields of the elements to write; all fields if empty.
        left_out : list, optional
            Gets the coordinates of the units that are absent afterwards.

        Raises
        ------
        StoreError, ChunkDecodeError, ChunkEncodeError
            If a unit cannot be written, or cannot be read before the change. Each unit then holds its old
            or its new value.
        """
        if source.size == 0:
            return
        from xzarr3.io.native_write import NativeWrite

        asked, threads = threads, to_write(self, plan, threads)
        options: Any = {"keep_empty": keep_empty, "fields": fields, "left_out": left_out}
        native = None if fields else NativeWrite.of(self, plan, source, keep_empty=keep_empty)
        units, number = plan.batches(), plan.number
        if native is not None:
            left = self._by_native_code(native, asked or available_threads(), left_out)
            if left is not None:
                units, number = _only(units, left.coords), len(left.coords)
        if number:
            self._write(units, number, plan, source, min(threads, number), options)

    def _write(
        self,
        units: Iterator[Batch],
        number: int,
        plan: ReadPlan,
        source: AnyArray,
        threads: int,
        options: dict[str, Any],
    ) -> None:
        """:meth:`write` of some units by the Python executor."""

        def worker(runs: Runs) -> int:
            return UnitWriter(self, plan.addressing, **options).run(runs, source)

        Runs(units, number, threads).share(threads, worker, self.pool)

    def clear(self, coords: tuple[int, ...], inner: tuple[slice, ...], *, keep_empty: bool) -> None:
        """Set a part of a stored unit to the fill value."""
        fill = np.broadcast_to(self.fill, tuple(part.stop - part.start for part in inner))
        chain = self.chain_of(self.meta.chunk_grid.chunk_shape_at(coords))
        key = self.key(coords)
        try:
            UnitWriter(self, Slices(), keep_empty=keep_empty).update(chain, key, inner, fill)
        except ChunkError as error:
            error.key, error.chunk = key, coords
            raise


def _only(batches: Iterator[Batch], coords: set[tuple[int, ...]]) -> Iterator[Batch]:
    """The units with these coordinates."""
    return ((chain, (unit for unit in units if unit.coords in coords)) for chain, units in batches)
