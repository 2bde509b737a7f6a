"""Divides a write into runs of whole units for compiled code, and holds directories and locks for it."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from xzarr3._types import AnyArray
from xzarr3.codecs.pipeline import CodecChain
from xzarr3.errors import Xzarr3Error
from xzarr3.io.compiled.encode import free_encoders
from xzarr3.io.compiled.layout import Layout, Numbers, address_of, allocate, writing
from xzarr3.io.compiled.read import ABSENT, DONE, LEFT, Chunk, Shards
from xzarr3.io.compiled.write import AHEAD, FILE, UNIT, Memory, Target, Units, write_units
from xzarr3.io.plan import Batch as PlanBatch
from xzarr3.io.plan import ReadPlan
from xzarr3.io.projection import AxisProjection, Slices
from xzarr3.io.shards import forget_index
from xzarr3.stores.local import platform
from xzarr3.stores.local.files import FileWriter
from xzarr3.stores.locks import free_key_locks
from xzarr3.tracing.events import everywhere

if TYPE_CHECKING:
    from xzarr3.io.executor import Engine

_CALL = 100
"""Milliseconds that a call of compiled code takes at most: a signal is heard after it."""
_MOST_RUN = 256  # Most units that a thread takes at a time: it holds their locks meanwhile.
_MOST_FOLDERS = 6  # Most directories that a thread has open at a time: a process has few descriptors.
_DIGITS = 21  # Most bytes of a coordinate and a separator.
_LONG = 512  # Characters of a path, beyond which the store checks whether the system can reach it.
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)


class _Axis(NamedTuple):
    """The parts of a selection along one dimension that are whole."""

    at: Numbers
    """Their places among all parts."""
    coord: Numbers
    size: Numbers
    outer: Numbers
    """The first element in the values."""


def _axis(parts: Sequence[AxisProjection]) -> _Axis:
    rows = [
        (at, part.coord, part.outer.stop - part.outer.start, part.outer.start)
        for at, part in enumerate(parts)
        if part.whole
    ]
    return _Axis(*np.array(rows, np.int64).reshape(-1, 4).T)


class _Run(NamedTuple):
    """Units that a thread takes at a time."""

    batch: Batch
    place: Numbers
    """Where their status is."""
    folder: Numbers
    """For each unit the number of its directory."""
    coord: Numbers
    """The coordinates of each unit, as are the next two of shape (number, dimensions)."""
    size: Numbers
    """Elements in the array."""
    outer: Numbers
    """The first element in the values."""


class Batch:
    """The units of one shape, of which compiled code writes those that are given whole.

    Parameters
    ----------
    chain : CodecChain
    parts : list of list of AxisProjection
        For each dimension, the parts of the selection; their product is the units.
    """

    def __init__(self, chain: CodecChain, parts: Sequence[Sequence[AxisProjection]]) -> None:
        self.chain = chain
        self.layout = writing.of(chain)
        self._axes = [*map(_axis, parts)]
        self._coords = [[part.coord for part in along] for along in parts]
        self._numbers = [*map(len, parts)]
        self._whole = tuple(len(axis.coord) for axis in self._axes)
        self.total = 0 if self.layout is None else math.prod(self._whole)
        """Number of units for compiled code."""
        self.status = np.full(math.prod(self._numbers), LEFT, np.uint8)
        """What became of each unit."""

    def run(self, begin: int, most: int, *, is_nested: bool) -> _Run:
        """At most so many units from number ``begin`` on, in few directories."""
        last = self._whole[-1] if is_nested and len(self._whole) > 1 else self.total
        end = min(begin + most, self.total, (begin // last + _MOST_FOLDERS) * last)
        numbers = np.arange(begin, end)
        within = np.unravel_index(numbers, self._whole)
        each = [*zip(self._axes, within, strict=True)]
        place = np.ravel_multi_index([axis.at[at] for axis, at in each], self._numbers)
        coord = np.stack([axis.coord[at] for axis, at in each], axis=1)
        size = np.stack([axis.size[at] for axis, at in each], axis=1)
        outer = np.stack([axis.outer[at] for axis, at in each], axis=1)
        return _Run(self, place, numbers // last - begin // last, coord, size, outer)

    def absent(self) -> Iterator[tuple[int, ...]]:
        """The coordinates of the units that are absent now."""
        places = np.unravel_index(np.flatnonzero(self.status == ABSENT), self._numbers)
        chosen = [
            [coords[at] for at in along.tolist()] for coords, along in zip(self._coords, places, strict=True)
        ]
        return zip(*chosen, strict=True)


class _Scratch:
    """The memory of one thread for units of one shape."""

    def __init__(self, layout: Layout, ndim: int, name_size: int) -> None:
        chunk, shards = layout.chunk, layout.shards
        self._number = chunk.number
        self.kept = np.zeros(8, np.int64)
        self.kept[FILE] = -1
        self._contexts = np.zeros(chunk.number + 1, np.int64)
        self.temporary = np.zeros(_LONG, np.uint8)
        numbers = np.zeros(3 * ndim + 2, np.int64)
        room = layout.chunk.room + 4 * chunk.number + 16  # A checksum may follow each result.
        is_shard = shards.counts != 0
        sizes = (
            name_size,
            chunk.nbytes,
            2 * room if chunk.number else 0,
            AHEAD if is_shard else 0,
            shards.index_size if is_shard else 0,
        )
        others = [*map(allocate, sizes)]
        self._arrays = numbers, others
        name, elements, spare, ahead, index = (each.ctypes.data for each in others)
        at, width = address_of(numbers), 8 * ndim
        self.memory = Memory(
            address_of(self.kept), address_of(self._contexts), at, at + width, at + 2 * width, at + 3 * width,
            name, self.temporary.ctypes.data, elements, spare, room, ahead, index,
        )  # fmt: skip

    def close(self) -> None:
        """Free what the encoders need."""
        free_encoders(address_of(self._contexts), self._number)

    def abandon(self, folders: Numbers) -> None:
        """Remove the temporary file of a shard that is not finished."""
        descriptor, self.kept[FILE] = int(self.kept[FILE]), -1
        if descriptor >= 0:
            os.close(descriptor)
            name = self.temporary.tobytes().partition(b"\0")[0]
            with contextlib.suppress(OSError):  # The write has failed, and that error is reported.
                platform.unlink_at(int(folders[self.kept[UNIT]]), os.fsdecode(name))


class CompiledWrite:
    """A write by compiled code of the units that are given whole.

    Parameters
    ----------
    engine : Engine
    plan : ReadPlan
    source : ndarray
        Has the shape of the plan's buffer.
    keep_empty : bool
        Whether to store units that hold only the fill value.
    """

    def __init__(self, engine: Engine, plan: ReadPlan, source: AnyArray, *, keep_empty: bool) -> None:
        self._engine = engine
        self._plan = plan
        self._source = source
        self._keep_empty = keep_empty
        self._steps = np.array(source.strides, np.int64)
        above, _, name = engine.key_prefix.rpartition("/")
        self._is_nested = engine.separator == "/"
        if self._is_nested and source.ndim > 1:  # Then it begins the name of a directory.
            name = ""
        self._above = above
        self._name = np.frombuffer(os.fsencode(name) + b"\0", np.uint8)
        self._stop = np.zeros(1, np.int64)
        self._lock = threading.Lock()
        self._begin = 0
        self._batches = [Batch(engine.chain_of(shape), parts) for shape, parts in plan.shapes()]
        self._waiting = [batch for batch in reversed(self._batches) if batch.total]
        self.total = sum(batch.total for batch in self._batches)
        """Number of units for compiled code."""

    @classmethod
    def of(
        cls, engine: Engine, plan: ReadPlan, source: AnyArray, *, keep_empty: bool
    ) -> CompiledWrite | None:
        """The write, or None if compiled code does not know its codecs, selection or store."""
        store, spec = engine.store, engine.meta.chain.spec
        if not store.replaces_files or everywhere.listeners:
            return None
        if type(plan.addressing) is not Slices or source.dtype != spec.dtype:
            return None
        longest = len(store.files or "") + len(engine.key_prefix) + _DIGITS * len(spec.shape)
        if longest > _LONG or writing.of(engine.meta.chain) is None:
            return None
        # The loop compares elements with the fill value bit for bit.
        if not spec.data_type.holds_only(engine.fill, spec.fill_value):
            return None
        found = cls(engine, plan, source, keep_empty=keep_empty)
        return found if found.total else None

    def _take(self, threads: int) -> _Run | None:
        """The next units; None after the last ones."""
        with self._lock:
            if not self._waiting or self._stop[0]:
                return None
            batch = self._waiting[-1]
            most = _MOST_RUN if threads <= 1 else max(1, min(_MOST_RUN, batch.total // (4 * threads)))
            run = batch.run(self._begin, most, is_nested=self._is_nested)
            self._begin += len(run.place)
            if self._begin == batch.total:
                self._waiting.pop()
                self._begin = 0
            return run

    def work(self, threads: int) -> int:
        """Write units in this thread until none are left; returns 0."""
        with contextlib.ExitStack() as opened:
            writer = opened.enter_context(self._engine.store.writer())
            if not isinstance(writer, FileWriter):
                return 0
            # The Python executor takes less memory, and writes what is left.
            opened.enter_context(contextlib.suppress(MemoryError))
            last: tuple[Batch, _Scratch] | None = None
            while self._is_possible(writer) and (run := self._take(threads)):
                batch = run.batch
                if batch.layout is None:
                    continue
                if last is None or last[0] is not batch:
                    size = len(self._name) + _DIGITS * len(self._steps)
                    last = batch, _Scratch(batch.layout, len(self._steps), size)
                    opened.callback(last[1].close)
                self._write(run, batch.layout, last[1], writer)
        return 0

    def _is_possible(self, writer: FileWriter) -> bool:
        """Whether the store accepts the keys of the units, which differ in their digits only."""
        try:
            writer.check(self._engine.key((0,) * len(self._steps)))
        except Xzarr3Error:  # The Python executor raises it.
            return False
        return True

    def _write(self, run: _Run, layout: Layout, scratch: _Scratch, writer: FileWriter) -> None:
        """Write the units of a run, except those whose lock is held by another thread."""
        engine, number = self._engine, len(run.place)
        status = np.full(number, LEFT, np.uint8)
        join = engine.separator.join
        keys = [engine.key_prefix + join(map(str, coords)) for coords in run.coord.tolist()]
        handles: list[int] = []
        try:
            folders = self._folders(run, keys, writer, handles, status)
            writer.folders.forget()  # The handles stay open, and other writers need descriptors.
            with free_key_locks(engine.store_identity, keys) as held:
                folders[~np.array(held)] = -1
                try:
                    self._call(run, layout, scratch, writer, folders, status)
                finally:
                    scratch.abandon(folders)
                    if run.batch.chain.shard is not None:  # The kept indexes are out of date now.
                        for key in keys:
                            forget_index(run.batch.chain.shard, engine.store_identity, key)
        finally:
            while handles:
                os.close(handles.pop())
        run.batch.status[run.place] = status

    def _folders(
        self, run: _Run, keys: list[str], writer: FileWriter, handles: list[int], status: AnyArray
    ) -> Numbers:
        """For each unit its open directory, or -1 to leave it; ``handles`` gets each directory once."""
        folders = np.full(len(keys), -1, np.int64)
        begins = np.flatnonzero(np.diff(run.folder, prepend=-1)).tolist()
        for begin, end in itertools.pairwise([*begins, len(keys)]):
            above = keys[begin].rpartition("/")[0]
            try:
                handle = writer.folders.handle(above, lambda: self._is_stored(run, begin, end))  # noqa: B023
            except OSError:  # The Python executor raises it.
                continue
            if handle is None:
                status[begin:end] = ABSENT
            else:
                handles.append(handle)
                folders[begin:end] = handle
        return folders

    def _is_stored(self, run: _Run, begin: int, end: int) -> bool:
        """Whether one of these units is not empty, so that their directory is needed."""
        if self._keep_empty:
            return True
        spec = run.batch.chain.spec
        for outer, count in zip(run.outer[begin:end].tolist(), run.size[begin:end].tolist(), strict=True):
            box = tuple(slice(at, at + size) for at, size in zip(outer, count, strict=True))
            if not spec.data_type.holds_only(self._source[box], spec.fill_value):
                return True
        return False

    def _call(
        self,
        run: _Run,
        layout: Layout,
        scratch: _Scratch,
        writer: FileWriter,
        folders: Numbers,
        status: AnyArray,
    ) -> None:
        """Run compiled code until all units of the run are done or another thread stops this one."""
        engine, ndim = self._engine, len(self._steps)
        beginning, end = (np.frombuffer(part + b"\0", np.uint8) for part in writer.around)
        addresses = run.outer @ self._steps + self._source.ctypes.data
        units = Units(
            ndim, len(folders), address_of(folders), address_of(run.coord),
            ndim - 1 if self._is_nested else 0, address_of(run.size), address_of(addresses),
            address_of(self._steps), engine.fill.ctypes.data, int(self._keep_empty),
        )  # fmt: skip
        target = Target(
            self._name.ctypes.data, len(self._name) - 1, ord(engine.separator), beginning.ctypes.data,
            len(beginning) - 1, end.ctypes.data, len(end) - 1, _FLAGS,
        )  # fmt: skip
        stop, written = address_of(self._stop), status.ctypes.data
        scratch.kept[UNIT] = 0
        while scratch.kept[UNIT] < len(folders) and not self._stop[0]:
            try:
                write_units(units, target, layout.chunk, layout.shards, scratch.memory, _CALL, stop, written)
            finally:
                if (status == DONE).any():
                    writer.touch()

    def stop(self) -> None:
        """Let all threads return soon."""
        self._stop[0] = 1

    def absent(self) -> list[tuple[int, ...]]:
        """The coordinates of the units that are absent now."""
        return [coords for batch in self._batches for coords in batch.absent()]

    def left(self) -> tuple[int, Iterator[PlanBatch]]:
        """The number of units that the Python executor has to write, and these units."""
        chosen = [batch.status == LEFT for batch in self._batches]
        number = sum(int(np.count_nonzero(each)) for each in chosen)
        planned = self._plan.batches() if number else iter(())
        left = (
            (chain, itertools.compress(units, each.tolist()))
            for (chain, units), each in zip(planned, chosen, strict=False)
            if each.any()
        )
        return number, left


def compile_all() -> None:
    """Compile the loop, or load its machine code from the disk."""
    zero = np.zeros(8, np.int64)
    at = address_of(zero)
    units, target = Units(1, 0, at, at, 0, at, at, at, at, 0), Target(at, 0, 0, at, 0, at, 0, 0)
    chunk, shards = Chunk(at, at, 1, 1, 0, 1, 0, 0, 1, 1), Shards(0, 0, 0, 0, 0)
    memory = Memory(at, at, at, at, at, address_of(zero[4:]), at, at, at, at, 0, at, at)
    write_units(units, target, chunk, shards, memory, 0, at, at)
    free_encoders(at, 0)
