"""Reads the stored units of a plan into the result: the work of one thread.

The thread resolves a unit into rows, and reads, decodes and places one row after the other; see
:mod:`xzarr3.io.fetch`. It starts no threads and does not choose byte ranges.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np

from xzarr3._types import AnyArray
from xzarr3.codecs.pipeline import CodecChain
from xzarr3.codecs.sharding import Shard
from xzarr3.errors import ChangedError, ChunkDecodeError, ChunkError
from xzarr3.io.fetch import InnerChunks, Layout, Request, Row, Table, fetched, requests
from xzarr3.io.plan import ReadPlan
from xzarr3.io.projection import ONE, ChunkProjection, Inner, Slices
from xzarr3.io.shards import Opened, forget_index, open_shard
from xzarr3.parallel import is_shared
from xzarr3.stores.values import BytesValue, OversizedError, Scratch, steady
from xzarr3.tracing.counters import add, for_array, process

if TYPE_CHECKING:
    from xzarr3.io.executor import Engine, Runs

_KEPT_SCRATCH = 2**25  # Bytes
_ATTEMPTS = 3  # Attempts to read a shard that another writer keeps replacing.


class _Local(threading.local):
    scratch: Scratch | None = None


_local = _Local()


@contextlib.contextmanager
def leased() -> Iterator[Scratch]:
    """Memory of this thread to read values into. A nested call, from a codec or store, gets other memory."""
    scratch, _local.scratch = _local.scratch or Scratch(), None
    try:
        yield scratch
    finally:
        if len(scratch.memory) <= _KEPT_SCRATCH:
            _local.scratch = scratch


def _size_error(chain: CodecChain, found: int) -> ChunkDecodeError:
    spec = chain.spec
    return ChunkDecodeError(
        f"found {found} bytes, expected {spec.nbytes} for shape {spec.shape} of '{spec.data_type.name}'",
        codec="bytes",
    )


class UnitReader:
    """Reads the units of a plan, for one thread.

    Parameters
    ----------
    engine : Engine
    plan : ReadPlan
    out : ndarray
        Gets the elements; has the shape of the plan's buffer.
    runs : Runs
        Supplies the units.
    absent : list, optional
        Gets the coordinates of the absent units.
    threads : int
        The most threads for the inner chunks of a shard in memory, if this is the only thread.
    """

    def __init__(
        self,
        engine: Engine,
        plan: ReadPlan,
        out: AnyArray,
        runs: Runs,
        absent: list[tuple[int, ...]] | None,
        threads: int,
    ) -> None:
        self._engine, self._plan, self._out, self._runs = engine, plan, out, runs
        self._absent, self._threads = absent, threads
        self._slices = type(plan.addressing) is Slices
        self._unit = ONE
        """The unit that is being read, for error messages."""

    @for_array(lambda reader: reader._engine)
    def run(self) -> int:
        """Read units until none are left; returns the number of absent ones."""
        missing = 0
        with leased() as scratch:
            self._load = partial(self._engine.store.get, into=scratch, limit=self._engine.largest_value)
            while run := self._runs.take():
                chain, units = run
                try:
                    missing += self._shards(chain, units) if chain.shard else self._chunks(chain, units)
                except ChunkError as error:
                    error.key, error.chunk = self._engine.key(self._unit.coords), self._unit.coords
                    raise
                except OversizedError as error:
                    key, coords = self._engine.key(self._unit.coords), self._unit.coords
                    name = chain.codecs[-1].name
                    raise ChunkDecodeError(str(error), codec=name, key=key, chunk=coords) from error
        if missing and process.collectors:
            add({"chunks_absent": missing})
        return missing

    def _fill(self, unit: ChunkProjection, place: AnyArray) -> int:
        """Fill the place of an absent unit; returns 1."""
        place[...] = self._engine.fill
        if self._absent is not None:
            self._absent.append(unit.coords)
        return 1

    def _chunks(self, chain: CodecChain, units: list[ChunkProjection]) -> int:
        """Read chunks that are in no shard; returns the number of absent ones."""
        runs, out, load, slices = self._runs, self._out, self._load, self._slices
        key_prefix, join = self._engine.key_prefix, self._engine.separator.join
        decode, into, shape, stored = chain.decode, chain.decode_into, chain.spec.shape, chain.stored_dtype
        table, addressing = Table(self._plan), self._plan.addressing
        is_plain, settle, same, price = chain.is_plain, chain.settle, addressing.same, self._plan.price
        direct = slices and chain.is_direct(self._plan.number)
        rows: list[Row] | None = None
        asked: list[Request] = []
        last: Inner | None = None
        missing, start, length, is_one = 0, 0, chain.spec.nbytes, False
        for unit in units:
            if runs.stopped:
                break
            self._unit = unit
            _, texts, inner, outer, _ = unit
            key, place = key_prefix + join(texts), out[outer]
            if is_plain and (last is None or not same(inner, last)):
                rows, last = table.of_chunk(chain, inner), inner
                start, length = (0, chain.spec.nbytes) if rows is None else rows[0][:2]
                is_one = slices if rows is None else len(rows) == 1 and rows[0].is_box
                asked = []
            # One range may hold just the elements of a contiguous place.
            if is_one and place.nbytes == length and place.flags.c_contiguous and place.dtype == stored:
                if steady(partial(self._straight, chain, key, start, place)):
                    settle(place)
                else:
                    missing += self._fill(unit, place)
            elif rows is not None:
                asked = asked or requests(rows, price)
                if not steady(partial(self._ranges, chain, key, asked, place)):
                    missing += self._fill(unit, place)
            elif (data := load(key)) is None:
                missing += self._fill(unit, place)
            elif not (direct and place.shape == shape and place.flags.c_contiguous and into(data, place)):
                place[...] = decode(data)[inner] if slices else addressing.take(decode(data), inner)
        return missing

    def _straight(self, chain: CodecChain, key: str, start: int, place: AnyArray) -> bool:
        """Read a range of a chunk into its place; returns whether the chunk is stored."""
        memory = place.reshape(-1).view(np.uint8).data
        value = self._engine.store.open(key, (start, len(memory)))
        if value is None:
            return False
        with value:
            size, count = value.size, value.read_into(start, memory)
        if size is None and len(memory) == chain.spec.nbytes:  # All of the chunk: it must end there.
            size = count
        if count < len(memory) or size not in (None, chain.spec.nbytes):
            raise _size_error(chain, count if size is None else size)
        return True

    def _ranges(self, chain: CodecChain, key: str, asked: list[Request], place: AnyArray) -> bool:
        """Read parts of a chunk; returns whether the chunk is stored."""
        starts, lengths = [start for start, _, _ in asked], [length for _, length, _ in asked]
        value = self._engine.store.open(key, (starts[0], lengths[0]))
        if value is None:
            return False
        with value:
            whole, parts = value.size, value.read_ranges(starts, lengths)
        if whole is not None and whole != chain.spec.nbytes:
            raise _size_error(chain, whole)
        stored = cast("np.dtype[np.generic]", chain.stored_dtype)
        for (start, length, rows), data in zip(asked, parts, strict=True):
            if len(data) != length:
                raise ChunkDecodeError(
                    f"found {len(data)} bytes in the ranges from byte {start} on, expected {length}",
                    codec="bytes",
                )
            view = memoryview(data)
            for offset, size, _, _, outer, layout in rows:
                part = view[offset - start : offset - start + size]
                place[outer] = chain.settled(cast("Layout", layout).elements(part, stored))
        return True

    def _shards(self, chain: CodecChain, units: list[ChunkProjection]) -> int:
        """Read shards; returns the number of absent ones."""
        shard, table, same = cast("Shard", chain.shard), Table(self._plan), self._plan.addressing.same
        last: Inner | None = None
        missing = 0
        for unit in units:
            if self._runs.stopped:
                break
            self._unit = unit
            if last is None or not same(unit.inner, last):
                wanted, last = table.wanted(shard, unit.inner), unit.inner
            place = self._out[unit.outer]
            if not self._shard(shard, table, wanted, place):
                missing += self._fill(unit, place)
        return missing

    def _shard(self, shard: Shard, table: Table, wanted: InnerChunks, place: AnyArray) -> bool:
        """Read the wanted inner chunks of a shard; returns whether the shard is stored."""
        engine = self._engine
        key, store = engine.key_prefix + engine.separator.join(self._unit.texts), engine.store_identity
        if wanted.whole:
            value = self._load(key)
            if value is not None:
                self._rows(shard, table, (BytesValue(value), shard.read_index(value)), wanted, place)
            return value is not None
        for left in reversed(range(_ATTEMPTS)):
            try:
                opened = open_shard(shard, engine.store, store, key, waits=engine.waiting > 0)
                if opened is None:
                    return False
                with opened[0]:
                    self._rows(shard, table, opened, wanted, place)
                return True
            except ChangedError:
                forget_index(shard, store, key)
                if not left:
                    raise
        return False

    def _rows(self, shard: Shard, table: Table, opened: Opened, wanted: InnerChunks, out: AnyArray) -> None:
        """Read inner chunks of a shard into their places."""
        from xzarr3.io.native_read import place_rows

        (reader, index), in_memory = opened, isinstance(opened[0], BytesValue)
        chain, slices, take = shard.inner, self._slices, self._plan.addressing.take
        decode, into, shape = chain.decode, chain.decode_into, chain.spec.shape
        rows, absent = table.of_shard(shard, index, wanted, in_memory=in_memory)
        direct = slices and chain.is_direct(len(rows))
        stored = cast("np.dtype[np.generic]", chain.stored_dtype)  # Rows with a layout have one.
        for unit in absent:
            out[unit.outer] = self._engine.fill
        if slices and isinstance(reader, BytesValue):
            from xzarr3.io.native_read import place_rows  # imports the libraries of the codecs

            threads = 1 if is_shared() else self._threads
            rows = place_rows(chain, rows, reader.data, out, self._engine.fill, threads)
        for row, data in fetched(reader, rows, self._plan.price):
            offset, length, coords, inner, outer, layout = row
            try:
                if len(data) != length:
                    raise shard.outside(offset, length, len(data))
                if layout is not None:
                    out[outer] = chain.settled(layout.elements(data, stored))
                    continue
                if direct:
                    place = out[outer]
                    if place.shape == shape and place.flags.c_contiguous and into(data, place):
                        continue
                out[outer] = decode(data)[inner] if slices else take(decode(data), inner)
            except ChunkError as error:
                error.inner_chunk = coords + (error.inner_chunk or ())
                raise
