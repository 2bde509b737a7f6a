"""Reading and writing the units of one array: a plan shared out among threads.

A thread takes runs of units from what all of them share. There is no future, task or event loop per chunk.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from xzarr3._types import AnyArray
from xzarr3.codecs.pipeline import COPY_RATE, CodecChain
from xzarr3.errors import ChunkError
from xzarr3.io.byte_ranges import Price
from xzarr3.io.plan import Batch, ReadPlan
from xzarr3.io.projection import ChunkProjection, Slices
from xzarr3.io.read import OpenShards, UnitReader
from xzarr3.io.selection import DimChoice, Points
from xzarr3.io.write import UnitWriter
from xzarr3.model.metadata import ArrayMetadata
from xzarr3.parallel import Pool, available_threads, cores, is_shared, together, waiters
from xzarr3.stores import Store, in_flight

_SLACK = 2**20  # Bytes
_SMALL = 2**18  # Bytes; below, starting another thread costs more than it saves.
# Microseconds in which a chunk is read and decoded; below, threads wait for each other, for Python's own
# lock, longer than they save.
_SHORT = 25.0
_MAX_RUN = 4096  # Units that a thread takes at once.


class Runs:
    """The units of one read or write, which its threads take in runs.

    Parameters
    ----------
    batches : iterator of Batch
    number : int
        About how many units there are.
    threads : int
    """

    __slots__ = ("_batches", "_chain", "_lock", "_run", "_units", "stopped")

    def __init__(self, batches: Iterator[Batch], number: int, threads: int) -> None:
        self._batches = batches
        self._chain, self._units = next(batches)
        self._run = _MAX_RUN if threads <= 1 else max(1, min(_MAX_RUN, number // (4 * threads)))
        self._lock = threading.Lock()
        self.stopped = False
        """Whether what is left is not wanted any more, because something failed."""

    def take(self) -> tuple[CodecChain, list[ChunkProjection]] | None:
        """The next run of units of one shape, and their codecs; None after the last one."""
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
        """Have ``worker`` handle the units on several threads; returns the sum of what it returns.

        None of them is at work any more when this returns or raises, but after Ctrl-C with ``leaves``.
        """
        if threads <= 1 and not is_shared():
            return worker(self)
        return sum(together(lambda: worker(self), max(threads, 1), pool, self._stop, leaves=leaves))

    def _stop(self) -> None:
        self.stopped = True


@dataclass(frozen=True)
class Engine:
    """Reads and writes the units of one array.

    Parameters
    ----------
    store : Store
    prefix : str
        What the keys of the array begin with, empty or ending with ``/``.
    meta : ArrayMetadata
    """

    store: Store
    prefix: str
    meta: ArrayMetadata

    @cached_property
    def key_prefix(self) -> str:
        """What the keys of the units begin with."""
        return self.prefix + self.meta.chunk_key_encoding.prefix(len(self.meta.shape))

    @cached_property
    def separator(self) -> str:
        """What is between the coordinates of a unit in its key."""
        return self.meta.chunk_key_encoding.separator

    @cached_property
    def fill(self) -> AnyArray:
        """The fill value as an array of no dimensions, which any element can be set to."""
        return self.meta.data_type.filled((), self.meta.fill_value)

    @cached_property
    def largest_value(self) -> int:
        """Size in bytes of the largest value that may be a unit; encoders need not be at their best."""
        return 2 * self.meta.chain.max_encoded_size + _SLACK

    @cached_property
    def store_identity(self) -> object:
        """What tells the store from others."""
        return self.store.identity

    def key(self, coords: tuple[int, ...]) -> str:
        """Key of a unit."""
        return self.key_prefix + self.separator.join(map(str, coords))

    def chain_of(self, shape: tuple[int, ...]) -> CodecChain:
        """The codecs bound to units of a shape."""
        grid = self.meta.chunk_grid
        return self.meta.chain if grid.is_regular or shape == grid.largest else self.meta.chain_of(shape)

    def plan(self, selection: tuple[DimChoice, ...] | Points) -> ReadPlan:
        """What a selection touches."""
        return ReadPlan(selection, self.meta.shape, self.meta.chunk_grid, self.chain_of, Price.of(self.store))

    def read(
        self,
        plan: ReadPlan,
        out: AnyArray,
        threads: int | None,
        absent: list[tuple[int, ...]] | None = None,
        *,
        leaves: bool = False,
    ) -> int:
        """Read what ``plan`` selects into ``out``, whose shape is that of the plan's buffer.

        Parameters
        ----------
        plan : ReadPlan
        out : ndarray
        threads : int, optional
            At most so many; None for as many as make sense.
        absent : list, optional
            Gets the coordinates of the units that are not there.
        leaves : bool
            After Ctrl-C nobody looks at ``out`` any more, so that no thread is waited for that waits for an
            answer; otherwise nothing is put into it once this has raised.

        Returns
        -------
        int
            How many units were not there, so that their part of ``out`` is the fill value.

        Raises
        ------
        StoreError, ChunkDecodeError
            If a unit is there and cannot be read. What ``out`` holds then is undefined.
        """
        if out.nbytes == 0:
            return 0
        threads, pieces = self.sharing(plan, threads)
        runs = Runs(plan.batches(pieces), max(plan.number, pieces), threads)
        shards = OpenShards() if pieces > 1 else None
        try:
            return runs.share(
                threads,
                lambda runs: UnitReader(self, plan, out, runs, absent, shards).run(),
                self.pool,
                leaves=leaves and self.waiting > 0,  # Files that others still read must not be closed.
            )
        finally:
            if shards is not None:
                shards.close()

    @cached_property
    def waiting(self) -> int:
        """How many threads wait for answers of the store at a time; 0 if it is one that answers at once."""
        return self.store.concurrency if self.store.concurrency > 1 else 0

    @property
    def pool(self) -> Pool:
        """Whose threads help."""
        return waiters if self.waiting else cores

    def sharing(self, plan: ReadPlan, threads: int | None) -> tuple[int, int]:
        """How many threads carry out a plan, and into about how many pieces shards are cut for them."""
        number, pieces = plan.number, 1
        chain = self.meta.chain
        if self.waiting:
            # Shards are not cut: a thread asks for all that is wanted of one at once.
            return min(threads or in_flight.at_once(self.waiting, plan.work() // max(number, 1)), number), 1
        busy = threads or available_threads()
        if busy > 1:
            time = chain.decode_time + self.store.request_bytes / COPY_RATE
            # No more than all units is ever decoded, which mostly tells already.
            if number * chain.spec.nbytes < _SMALL or time < _SHORT or plan.work() < _SMALL:
                busy = 1
        if chain.shard is not None and busy > 1 and number < 2 * busy:
            pieces = 2 * busy
        return min(busy, max(number, pieces)), pieces

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
        """Write ``source``, whose shape is that of the plan's buffer, to what ``plan`` selects.

        Each unit is replaced whole; a unit of which only a part is selected is read before. Units that
        then hold only the fill value are erased, unless ``keep_empty``. Of elements that have fields, only
        ``fields`` are written, if any are named. ``left_out`` gets the coordinates of the units that are not
        there afterwards.

        Raises
        ------
        StoreError, ChunkDecodeError, ChunkEncodeError
            If a unit cannot be written, or not be read to be changed. Each unit holds its old or its
            new value then.
        """
        if source.size == 0:
            return
        # Few values may change many units, which are read and written whole.
        chain = self.meta.chain
        work = plan.number * chain.spec.nbytes if chain.shard is None else plan.work()
        if threads is None:
            threads = available_threads()
            if self.waiting:
                threads = in_flight.at_once(self.waiting, 2 * chain.spec.nbytes)
        if not self.waiting and max(work, source.nbytes) < _SMALL:
            threads = 1
        threads = min(threads, plan.number)

        def worker(runs: Runs) -> int:
            options: Any = {"keep_empty": keep_empty, "fields": fields, "left_out": left_out}
            with UnitWriter(self, plan.addressing, **options) as writer:
                return writer.run(runs, source)

        Runs(plan.batches(), plan.number, threads).share(threads, worker, self.pool)

    def clear(self, coords: tuple[int, ...], inner: tuple[slice, ...], *, keep_empty: bool) -> None:
        """Set a part of a unit that is stored to the fill value."""
        fill = np.broadcast_to(self.fill, tuple(part.stop - part.start for part in inner))
        chain = self.chain_of(self.meta.chunk_grid.chunk_shape_at(coords))
        key = self.key(coords)
        try:
            with UnitWriter(self, Slices(), keep_empty=keep_empty) as writer:
                writer.update(chain, key, inner, fill)
        except ChunkError as error:
            error.key, error.chunk = key, coords
            raise
