"""Reading and writing: from a plan to stored values and back, on several threads.

A thread takes runs of units from what all of them share; each unit is read, decoded and put into its
place in the result before the next one. There is no future, task or event loop per chunk.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from xzarr3._types import AnyArray, Buffer
from xzarr3.codecs.chain import CodecChain, Shard
from xzarr3.errors import ChunkDecodeError, ChunkError
from xzarr3.indexing import DimSelection
from xzarr3.metadata import ArrayMetadata
from xzarr3.plan import Part, ReadPlan, Unit, dimension_parts, split_parts
from xzarr3.stores import Store, ValueReader
from xzarr3.stores.memory import BytesReader

_SMALL = 2**18  # Bytes; below, starting another thread costs more than it saves.
_MAX_RUN = 4096  # Units that a thread takes at once.
_WHOLE = 2**26  # Bytes of a decoded shard; larger ones are not read in one piece, to spare memory.
_REQUEST = 3 * 2**14  # Bytes that can be read in the time that one more range to read takes.

_LOCKS = 64
_unit_locks = [threading.RLock() for _ in range(_LOCKS)]  # A store may write to another array.


def _renew_locks() -> None:
    """A forked child must not wait for a thread of its parent to give a lock back."""
    _unit_locks[:] = [threading.RLock() for _ in _unit_locks]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


def available_threads() -> int:
    """How many threads a read or write may use: all cores, but one within somebody else's thread.

    Tasks of dask and of other pools run in threads of their own, of which there are enough already.
    """
    if threading.current_thread() is not threading.main_thread():
        return 1
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # Only some systems can tell which cores this process may use.
        return os.cpu_count() or 1


class _Pool:
    """Threads of this process that help reading and writing; a forked child starts its own."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._pid = -1

    def get(self) -> ThreadPoolExecutor:
        if self._pool is None or self._pid != os.getpid():
            self._pool = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="xzarr3")
            self._pid = os.getpid()
        return self._pool


_pool = _Pool()

ReadPart: TypeAlias = Callable[[CodecChain, str, tuple[slice, ...], AnyArray], bool]
"""Reads a part of the unit of a key into its place; False if there is no such unit."""

Batch: TypeAlias = tuple[CodecChain, list[list[Part]]]
"""Units of one shape: the codecs bound to it, and along each dimension the parts whose product they are."""


class _Runs:
    """The units of one read or write, which its threads take in runs.

    Parameters
    ----------
    batches : iterator of Batch
    number : int
        How many units there are.
    threads : int
    """

    __slots__ = ("_batches", "_chain", "_lock", "_run", "_units", "stopped")

    def __init__(self, batches: Iterator[Batch], number: int, threads: int) -> None:
        self._batches = batches
        self._chain, parts = next(batches)
        self._units: Iterator[Unit] = itertools.product(*parts)
        self._run = _MAX_RUN if threads <= 1 else max(1, min(_MAX_RUN, number // (4 * threads)))
        self._lock = threading.Lock()
        self.stopped = False
        """Whether what is left is not wanted any more, because something failed."""

    def take(self) -> tuple[CodecChain, list[Unit]] | None:
        """The next run of units of one shape, and their codecs; None after the last one."""
        with self._lock:
            while not self.stopped:
                run = list(itertools.islice(self._units, self._run))
                if run:
                    return self._chain, run
                batch = next(self._batches, None)
                if batch is None:
                    break
                self._chain, parts = batch
                self._units = itertools.product(*parts)
            return None

    def share(self, threads: int, worker: Callable[[_Runs], int]) -> int:
        """Have ``worker`` handle the units on several threads; returns the sum of what it returns."""
        if threads <= 1:
            return worker(self)
        others: list[Future[int]] = [_pool.get().submit(self._help, worker) for _ in range(threads - 1)]
        try:
            total = worker(self)
            return total + sum(other.result() for other in others)
        finally:
            self.stopped = True
            for other in others:
                if not other.cancel():
                    other.exception()  # Waits: nobody may write into the result after this has returned.

    def _help(self, worker: Callable[[_Runs], int]) -> int:
        try:
            return worker(self)
        except BaseException:
            self.stopped = True
            raise


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
    def _key_prefix(self) -> str:
        return self.prefix + self.meta.chunk_key_encoding.prefix(len(self.meta.shape))

    @cached_property
    def _separator(self) -> str:
        return self.meta.chunk_key_encoding.separator

    @cached_property
    def _largest(self) -> CodecChain:
        """The codecs of the largest units: of all of them if the grid is regular."""
        return self.meta.chain

    @cached_property
    def _fill(self) -> AnyArray:
        """The fill value as an array of no dimensions, which any element can be set to."""
        return self.meta.data_type.filled((), self.meta.fill_value)

    def key(self, coords: tuple[int, ...]) -> str:
        """Key of a unit."""
        return self._key_prefix + self._separator.join(map(str, coords))

    # Reading

    def read(self, plan: ReadPlan, out: AnyArray, threads: int) -> int:
        """Read what ``plan`` selects into ``out``, whose shape is ``plan.full_shape``.

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
        chain, parts, number = self._largest, plan.parts, plan.number
        shard, plain = chain.shard, chain.is_plain
        batches: Iterator[Batch]
        # Of plain chunks only the wanted bytes are read, if these are few or all that is wanted.
        if plan.grid.is_regular:
            batches = iter([(chain, parts)])
            ranges = plain and (number == 1 or out.size * 2 <= number * math.prod(chain.spec.shape))
            work = out.nbytes if ranges else number * _unit_work(parts, chain)
        else:
            batches = self._batches(plan)
            ranges = plain and (number == 1 or out.size * 2 <= _covered(plan))
            work = out.nbytes if ranges else _work(plan, chain)
        if work < _SMALL:
            threads = 1
        if shard is not None and threads > 1 and number < 2 * threads:
            split = [_split_shards(batch, 2 * threads) for batch in batches]
            batches, number = iter(split), sum(math.prod(map(len, parts)) for _, parts in split)
        orientation = plan.orientation
        target = out if orientation is None else out[orientation]

        def worker(runs: _Runs) -> int:
            if shard is not None:
                return self._read_parts(runs, target, self._shard_reader())
            if ranges:
                return self._read_parts(runs, target, self._plain_reader())
            return self._read_units(runs, target, number)

        threads = min(threads, number)
        return _Runs(batches, number, threads).share(threads, worker)

    def _batches(self, plan: ReadPlan) -> Iterator[Batch]:
        for shape, parts in plan.groups():
            yield self.meta.chain_of(shape), parts

    def _read_units(self, runs: _Runs, out: AnyArray, number: int) -> int:
        load, fill = self.store.loader(), self._fill
        key_prefix, join = self._key_prefix, self._separator.join
        missing = 0
        while run := runs.take():
            chain, units = run
            decode, into, shape, direct = (
                chain.decode, chain.decode_into, chain.spec.shape, chain.is_direct(number)
            )  # fmt: skip
            for unit in units:
                if runs.stopped:
                    break
                _, texts, inner, outer, _ = zip(*unit, strict=True) if unit else _SCALAR
                key = key_prefix + join(texts)
                data = load(key)
                place = out[outer]
                if data is None:
                    place[...] = fill
                    missing += 1
                    continue
                try:
                    # Straight into its place if that is one piece of memory, or else with a copy.
                    if direct and place.shape == shape and place.flags.c_contiguous and into(data, place):
                        continue
                    place[...] = decode(data)[inner]
                except ChunkError as error:
                    _locate(error, key, unit)
                    raise
        return missing

    def _read_parts(self, runs: _Runs, out: AnyArray, read: ReadPart) -> int:
        """Units of which only what is wanted is read: ``read`` does that, or tells that there is no unit."""
        missing = 0
        while run := runs.take():
            chain, units = run
            for unit in units:
                if runs.stopped:
                    break
                _, texts, inner, outer, _ = zip(*unit, strict=True) if unit else _SCALAR
                key = self._key_prefix + self._separator.join(texts)
                place = out[outer]
                try:
                    if not read(chain, key, inner, place):
                        place[...] = self._fill
                        missing += 1
                except ChunkError as error:
                    _locate(error, key, unit)
                    raise
        return missing

    def _plain_reader(self) -> ReadPart:
        """Reads byte ranges of units that are stored as they are in memory."""

        def read(chain: CodecChain, key: str, inner: tuple[slice, ...], place: AnyArray) -> bool:
            reader = self.store.open_value(key)
            if reader is None:
                return False
            with reader:
                _read_elements(chain, reader, inner, place)
            return True

        return read

    def _shard_reader(self) -> ReadPart:
        """Reads inner chunks of shards: of a shard that is wanted for the most part, all in one piece."""
        load, fill = self.store.loader(), self._fill

        def read(chain: CodecChain, key: str, inner: tuple[slice, ...], place: AnyArray) -> bool:
            shard = _shard_of(chain)
            parts = _inner_parts(shard, inner)
            wanted = math.prod(map(len, parts))
            reader: ValueReader | None
            if 2 * wanted >= shard.number and shard.spec.nbytes <= _WHOLE:
                value = load(key)
                reader = None if value is None else BytesReader(value)
            else:
                reader = self.store.open_value(key)
            if reader is None:
                return False
            with reader:
                _read_inner_chunks(shard, reader, parts, place, fill)
            return True

        return read

    # Writing

    def write(self, plan: ReadPlan, values: AnyArray, threads: int, *, keep_empty: bool) -> None:
        """Write ``values``, whose shape is ``plan.full_shape``, to what ``plan`` selects.

        Each unit is replaced whole; a unit of which only a part is selected is read before. Units that
        then hold only the fill value are erased, unless ``keep_empty``.

        Raises
        ------
        StoreError, ChunkDecodeError, ChunkEncodeError
            If a unit cannot be written, or not be read to be changed. Each unit holds its old or its
            new value then.
        """
        if values.size == 0:
            return
        if values.nbytes < _SMALL:
            threads = 1
        orientation = plan.orientation
        source = values if orientation is None else values[orientation]

        def worker(runs: _Runs) -> int:
            while run := runs.take():
                chain, units = run
                for unit in units:
                    if runs.stopped:
                        break
                    coords, _, inner, outer, whole = zip(*unit, strict=True) if unit else _SCALAR
                    key = self.key(coords)
                    try:
                        if all(whole):
                            self._replace(chain, key, inner, source[outer], keep_empty)
                        else:
                            with _unit_locks[hash(key) % _LOCKS]:
                                self._update(chain, key, inner, source[outer], keep_empty)
                    except ChunkError as error:
                        _locate(error, key, unit)
                        raise
            return 0

        batches = iter([(self._largest, plan.parts)]) if plan.grid.is_regular else self._batches(plan)
        threads = min(threads, plan.number)
        _Runs(batches, plan.number, threads).share(threads, worker)

    def _replace(
        self, chain: CodecChain, key: str, inner: tuple[slice, ...], values: AnyArray, keep_empty: bool
    ) -> None:
        """Store a unit all of whose elements are given."""
        spec = chain.spec
        if not keep_empty and spec.data_type.holds_only(values, spec.fill_value):
            with _unit_locks[hash(key) % _LOCKS]:
                if self.store.exists(key):
                    self.store.erase(key)
            return
        if values.shape != spec.shape:
            chunk = spec.data_type.filled(spec.shape, spec.fill_value)
            chunk[inner] = values
            values = chunk
        data = chain.encode(values, keep_empty=keep_empty)
        # Not while another thread changes a part of what it has read before: this would be lost entirely.
        with _unit_locks[hash(key) % _LOCKS]:
            self.store.set(key, data)

    def clear(self, coords: tuple[int, ...], inner: tuple[slice, ...], *, keep_empty: bool) -> None:
        """Set a part of a unit that is stored to the fill value."""
        fill = np.broadcast_to(self._fill, tuple(part.stop - part.start for part in inner))
        chain = self.meta.chain_of(self.meta.chunk_grid.chunk_shape_at(coords))
        key = self.key(coords)
        try:
            with _unit_locks[hash(key) % _LOCKS]:
                self._update(chain, key, inner, fill, keep_empty)
        except ChunkError as error:
            error.key, error.chunk = key, coords
            raise

    def _update(
        self, chain: CodecChain, key: str, inner: tuple[slice, ...], values: AnyArray, keep_empty: bool
    ) -> None:
        """Change a part of a unit."""
        stored = self.store.get(key)
        spec = chain.spec
        if stored is None and not keep_empty and spec.data_type.holds_only(values, spec.fill_value):
            return
        if chain.shard is not None:
            parts = {} if stored is None else chain.shard.split(stored)
            _update_inner_chunks(chain.shard, parts, inner, values, keep_empty)
            data = chain.shard.assemble(parts) if parts else None
        else:
            data = _updated(chain, stored, inner, values, keep_empty)
        if data is not None:
            self.store.set(key, data)
        elif stored is not None:
            self.store.erase(key)


# The columns of a unit of an array of no dimensions; the Ellipsis keeps its place a view.
_SCALAR: tuple[Any, ...] = ((), (), (), (...,), ())


def _locate(error: ChunkError, key: str, unit: Unit) -> None:
    error.key = key
    error.chunk = tuple(part[0] for part in unit)


def _read_elements(chain: CodecChain, reader: ValueReader, inner: tuple[slice, ...], place: AnyArray) -> None:
    """Read a part of a chunk whose stored bytes are its elements."""
    spec = chain.spec
    if reader.size not in (None, spec.nbytes):
        raise ChunkDecodeError(
            f"found {reader.size} bytes, expected {spec.nbytes} for shape {spec.shape} of "
            f"'{spec.data_type.name}'",
            codec="bytes",
        )
    strides = _strides(spec.shape, spec.dtype.itemsize)
    steps = tuple(chosen.step * stride for chosen, stride in zip(inner, strides, strict=True))
    first = sum(chosen.start * stride for chosen, stride in zip(inner, strides, strict=True))

    def read(offset: int, place: AnyArray) -> None:
        length = sum((n - 1) * step for n, step in zip(place.shape, steps, strict=True)) + spec.dtype.itemsize
        axis = next((axis for axis, n in enumerate(place.shape) if n > 1), None)
        if axis is not None:
            # Either one range for all, or one for each index along the first axis that has several.
            number = place.shape[axis]
            each = length - (number - 1) * steps[axis]
            if number * (each + _REQUEST) < length:
                for at in range(number):
                    read(offset + at * steps[axis], place[(slice(None),) * axis + (slice(at, at + 1),)])
                return
        if chain.stored_dtype == place.dtype and length == place.nbytes and place.flags.c_contiguous:
            found = reader.read_into(offset, memoryview(place.reshape(-1).view(np.uint8)))
        else:
            data = reader.read(offset, length)
            found = len(data)
            if found == length:
                place[...] = np.ndarray(place.shape, chain.stored_dtype, data, strides=steps)
        if found != length:
            raise ChunkDecodeError(f"found {found} bytes at {offset}, expected {length}", codec="bytes")

    read(first, place)
    chain.settle(place)


def _strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Strides in bytes of a C-contiguous array."""
    strides = []
    for length in reversed(shape):
        strides.append(itemsize)
        itemsize *= length
    return tuple(reversed(strides))


def _unit_work(parts: list[list[Part]], chain: CodecChain) -> int:
    """About how many bytes have to be decoded for one unit: all of it, or some inner chunks of a shard."""
    if chain.shard is None:
        return chain.spec.nbytes
    touched: list[int] = [
        1 + (along[0][2].stop - 1) // length - along[0][2].start // length
        for along, length in zip(parts, chain.shard.grid.chunk_shape, strict=True)
    ]
    return math.prod(touched) * chain.shard.inner.spec.nbytes


def _covered(plan: ReadPlan) -> int:
    """Number of elements of all units that are touched, of a grid whose units differ."""
    return math.prod(
        sum(axis.length_at(part[0]) for part in parts)
        for axis, parts in zip(plan.grid.axes, plan.parts, strict=True)
    )


def _work(plan: ReadPlan, chain: CodecChain) -> int:
    """About how many bytes have to be decoded for all units of a grid whose units differ."""
    if chain.shard is None:
        return _covered(plan) * chain.spec.dtype.itemsize
    touched: list[int] = [
        sum(1 + (part[2].stop - 1) // length - part[2].start // length for part in along)
        for along, length in zip(plan.parts, chain.shard.grid.chunk_shape, strict=True)
    ]
    return math.prod(touched) * chain.shard.inner.spec.nbytes


def _shard_of(chain: CodecChain) -> Shard:
    shard = chain.shard
    if shard is None:
        raise TypeError("the chunks are no shards")
    return shard


def _split_shards(batch: Batch, pieces: int) -> Batch:
    """Cut shards into pieces at inner chunks, so that there are about ``pieces`` of them to share out."""
    chain, parts = batch
    shard = _shard_of(chain)
    axis = max(range(len(parts)), key=shard.counts.__getitem__, default=None)
    if axis is None:
        return batch
    wanted = -(-pieces // math.prod(map(len, parts)))
    cut = [*parts]
    cut[axis] = split_parts(parts[axis], shard.grid.chunk_shape[axis], wanted)
    return chain, cut


def _inner_parts(shard: Shard, inner: tuple[slice, ...]) -> list[list[Part]]:
    """Divide what is selected of a shard among its inner chunks."""
    return [
        dimension_parts(DimSelection(s.start, s.step, len(range(s.start, s.stop, s.step))), length, size)
        for s, length, size in zip(inner, shard.grid.chunk_shape, shard.spec.shape, strict=True)
    ]


def _read_inner_chunks(
    shard: Shard, reader: ValueReader, parts: list[list[Part]], out: AnyArray, fill: AnyArray
) -> None:
    """Read inner chunks of a shard into their places."""
    index = shard.decode_index(reader.read(shard.index_start, shard.index_size))
    wanted = index[np.ix_(*([part[0] for part in along] for along in parts))]
    chain, nested, read = shard.inner, shard.inner.shard, reader.read
    decode, into, shape = chain.decode, chain.decode_into, chain.spec.shape
    direct = chain.is_direct(math.prod(map(len, parts)))
    for entry, unit in zip(wanted.reshape(-1, 2).tolist(), itertools.product(*parts), strict=True):
        coords, _, inner, outer, _ = zip(*unit, strict=True) if unit else _SCALAR
        place = out[outer]
        offset, size = entry
        try:
            if size > shard.max_inner_size and shard.is_empty(entry):
                place[...] = fill
                continue
            data = read(offset, size)
            if len(data) != size:
                raise shard.outside(offset, size, len(data))
            if nested is not None:
                _read_inner_chunks(nested, BytesReader(data), _inner_parts(nested, inner), place, fill)
            elif not (direct and place.shape == shape and place.flags.c_contiguous and into(data, place)):
                place[...] = decode(data)[inner]
        except ChunkError as error:
            error.inner_chunk = coords + (error.inner_chunk or ())
            raise


def _updated(
    chain: CodecChain, stored: Buffer | None, inner: tuple[slice, ...], values: AnyArray, keep_empty: bool
) -> Buffer | None:
    """A stored chunk with a part of it replaced; None if it then holds the fill value only."""
    spec = chain.spec
    if stored is None:
        chunk = spec.data_type.filled(spec.shape, spec.fill_value)
    else:
        chunk = np.array(chain.decode(stored), dtype=spec.dtype)
    chunk[inner] = values
    if not keep_empty and spec.data_type.holds_only(chunk, spec.fill_value):
        return None
    return chain.encode(chunk, keep_empty=keep_empty)


def _update_inner_chunks(
    shard: Shard,
    stored: dict[tuple[int, ...], Buffer],
    inner: tuple[slice, ...],
    values: AnyArray,
    keep_empty: bool,
) -> None:
    """Replace a part of a shard; inner chunks that are not touched keep their stored bytes."""
    for unit in itertools.product(*_inner_parts(shard, inner)):
        coords, _, chosen, outer, _ = zip(*unit, strict=True) if unit else _SCALAR
        old = stored.pop(coords, None)
        new = values[outer]
        try:
            if new.shape != shard.inner.spec.shape:
                data = _updated(shard.inner, old, chosen, new, keep_empty)
            elif keep_empty or not shard.spec.data_type.holds_only(new, shard.spec.fill_value):
                data = shard.inner.encode(new, keep_empty=keep_empty)
            else:
                data = None
        except ChunkError as error:
            error.inner_chunk = coords + (error.inner_chunk or ())
            raise
        if data is not None:
            stored[coords] = data
