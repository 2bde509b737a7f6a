"""Reads and writes the stored units of one array: shares the units of a plan among threads.

All threads take runs of units from one shared iterator. No future, task or event loop is made per chunk.
Knows nothing of indices, documents or array handles: it gets a plan and an array in memory.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from xzarr3._types import AnyArray
from xzarr3.codecs.pipeline import COPY_RATE, CodecChain
from xzarr3.errors import ChunkError
from xzarr3.io.fetch import Price
from xzarr3.io.plan import Batch, ReadPlan
from xzarr3.io.projection import Slices
from xzarr3.io.read import UnitReader
from xzarr3.io.selection import DimChoice, Points
from xzarr3.io.write import UnitWriter
from xzarr3.model.metadata import ArrayMetadata
from xzarr3.parallel import Pool, available_threads, cores, is_wanted, native_threads, run_on_threads, waiters
from xzarr3.stores import Store, in_flight
from xzarr3.tracing.counters import for_array

if TYPE_CHECKING:
    from xzarr3.io.native_read import NativeRead
    from xzarr3.io.native_write import NativeWrite

_SMALL = 2**18  # Bytes; for less work, starting another thread costs more than it saves.
_ENCODING = 4  # How many times as long as decoding takes it to encode.
_LOCKED = 12.5  # Microseconds that each chunk holds Python's lock.
_MAX_RUN = 4096  # Most units that a thread takes at once.


def _runs(batches: Iterator[Batch], size: int) -> Iterator[Batch]:
    for chain, units in batches:
        while run := list(itertools.islice(units, size)):
            yield chain, run


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
    def fill(self) -> AnyArray:
        """The fill value as an array of no dimensions."""
        return self.meta.data_type.filled((), self.meta.fill_value)

    @cached_property
    def fill_is_exact(self) -> bool:
        """Whether elements are the fill value if, and only if, all their bits are."""
        return self.meta.data_type.holds_only(self.fill, self.meta.fill_value)

    @cached_property
    def price(self) -> Price:
        """The cost of requests and bytes at the store."""
        return Price.of(self.store, self.meta.chain)

    @cached_property
    def store_identity(self) -> object:
        """Identity of the store, which tells it from other stores."""
        return self.store.identity

    def key(self, coords: tuple[int, ...]) -> str:
        """Key of a unit."""
        return self.prefix + self.meta.chunk_key_encoding.key(coords)

    def chain_of(self, shape: tuple[int, ...]) -> CodecChain:
        """The codecs, bound to units of this shape."""
        grid = self.meta.chunk_grid
        return self.meta.chain if grid.is_regular or shape == grid.largest else self.meta.chain_of(shape)

    def plan(self, selection: tuple[DimChoice, ...] | Points) -> ReadPlan:
        """The plan of a read or write of this selection."""
        return ReadPlan(selection, self.meta.shape, self.meta.chunk_grid, self.chain_of, self.price)

    def threads(self, plan: ReadPlan, most: int | None, *, writes: bool = False) -> int:
        """Number of threads for a read or a write.

        A further thread pays if there are :data:`_SMALL` bytes to decode for it, or a quarter as many to
        encode, and if reading and decoding a chunk takes longer than what holds Python's lock for it. Over a
        store with latency, threads wait for answers, and as many take part as the store and the memory
        permit. ``most`` is the most that the user permits, None for all cores.
        """
        chain, number = self.meta.chain, plan.number
        if number <= 1:
            return number
        if self.waiting:
            each = 2 * chain.spec.nbytes if writes else plan.work() // number
            return min(most or in_flight.at_once(self.waiting, each), number)
        free = chain.decode_time + self.store.traits.request_bytes / COPY_RATE
        work = _ENCODING * plan.work(in_parts=False) if writes else plan.work()
        pays = min(int(free / _LOCKED), work // _SMALL)
        return max(1, min(most or available_threads(), number, pays))

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
        from xzarr3.io.native_read import native_read  # imports the libraries of the codecs

        native = native_read(self, plan, out)
        units, number, missing = plan.batches(), plan.number, 0
        if native is not None:
            units, number, missing = self._left(plan, native, threads, absent)
        if not number:
            return missing
        most = self.threads(plan, threads)
        within = 1 if min(most, number) > 1 else threads
        return missing + self._share(
            lambda batches: UnitReader(self, plan, out, batches, absent, within).run(),
            units,
            number,
            most,
            leaves=leaves and self.waiting > 0,  # A file must not be closed while a thread reads it.
        )

    def _share(
        self,
        work: Callable[[Iterable[Batch]], int],
        units: Iterator[Batch],
        number: int,
        threads: int,
        *,
        leaves: bool = False,
    ) -> int:
        """Let threads work until no units are left; returns the sum of what ``work`` returns.

        All have ended when this returns or raises, except after Ctrl-C with ``leaves``.
        """
        threads = min(threads, number)
        if threads <= 1:
            return work(units)
        runs, lock = _runs(units, max(1, min(_MAX_RUN, number // (4 * threads)))), threading.Lock()

        def take() -> Batch | None:
            """The next run of units of one shape, and their codecs; None after the last run."""
            with lock:
                return next(runs, None) if is_wanted() else None

        return sum(run_on_threads(lambda: work(iter(take, None)), threads, self.pool, leaves=leaves))

    @for_array(lambda engine: engine)
    def _left(
        self,
        plan: ReadPlan,
        native: NativeRead | NativeWrite,
        threads: int | None,
        absent: list[tuple[int, ...]] | None = None,
    ) -> tuple[Iterator[Batch], int, int]:
        """Let native code do what it can.

        Returns
        -------
        tuple
            The units that are left, their number, and the number of those that native code found absent.
        """
        left = None
        with contextlib.suppress(MemoryError):  # Python takes less.
            left = native.run(threads or native_threads())
        if left is None:
            return plan.batches(), plan.number, 0
        if absent is not None:
            absent.extend(tuple(each) for coords in left.absent for each in coords.tolist())
        wanted = left.coords
        units = ((chain, (unit for unit in some if unit.coords in wanted)) for chain, some in plan.batches())
        return units, len(wanted), sum(map(len, left.absent))

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
        confirm: Callable[[], None] = lambda: None,
        owns_ends: bool = True,
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
        confirm : callable
            Raises if the array is no longer at its place. It is called before each unit is stored, once
            nothing can be stored in what replaces the array after the call.
        owns_ends : bool
            Whether nobody else stores elements past the end of the array, in its last units. If others may,
            these count as given in part.

        Raises
        ------
        StoreError, ChunkDecodeError, ChunkEncodeError
            If a unit cannot be written, or cannot be read before the change. Each unit then holds its old
            or its new value.
        """
        if source.size == 0:
            return
        from xzarr3.io.native import Left  # imports the libraries of the codecs
        from xzarr3.io.native_write import NativeWrite, does

        units, number = plan.batches(), plan.number
        if not fields and does(self, plan, source):
            native = NativeWrite(self, plan, source, keep_empty, confirm, owns_ends, Left([], set()))
            units, number, _ = self._left(plan, native, threads)
        if number:
            writer = UnitWriter(self, plan.addressing, keep_empty, confirm, fields, owns_ends)
            most = self.threads(plan, threads, writes=True)
            self._share(lambda batches: writer.run(batches, source), units, number, most)

    def clear(self, coords: tuple[int, ...], inner: tuple[slice, ...], *, keep_empty: bool) -> None:
        """Set a part of a stored unit to the fill value."""
        fill = np.broadcast_to(self.fill, tuple(part.stop - part.start for part in inner))
        chain = self.chain_of(self.meta.chunk_grid.chunk_shape_at(coords))
        key = self.key(coords)
        try:
            UnitWriter(self, Slices(), keep_empty, lambda: None).update(chain, key, inner, fill)
        except ChunkError as error:
            error.key, error.chunk = key, coords
            raise
