"""Reads the stored units of a plan into the result: the work of one thread.

The thread resolves a unit into rows, and reads, decodes and places one row after the other; see
:mod:`xzarr3.io.fetch`. It starts no threads and does not choose byte ranges.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np

from xzarr3._types import AnyArray, Buffer
from xzarr3.codecs.pipeline import CodecChain
from xzarr3.codecs.sharding import Shard
from xzarr3.errors import ChangedError, ChunkDecodeError, ChunkError
from xzarr3.io.fetch import InnerChunks, Request, Row, Table, fetched
from xzarr3.io.plan import Batch, ReadPlan
from xzarr3.io.projection import ONE, ChunkProjection, Inner, Slices
from xzarr3.io.shards import Opened, forget_index, open_shard
from xzarr3.parallel import available_threads, is_wanted
from xzarr3.stores.values import BytesValue, OversizedError, Scratch, Value, steady
from xzarr3.tracing.counters import add, for_array, process

if TYPE_CHECKING:
    from xzarr3.io.executor import Engine

_KEPT_SCRATCH = 2**25  # Bytes
_ATTEMPTS = 3  # Attempts to read a shard that another writer keeps replacing.


class _Local(threading.local):
    scratch: Scratch | None = None


_local = _Local()


class ThreadScratch:
    """Memory of this thread to read values into. A nested use, by a codec or store, gets other memory."""

    def __enter__(self) -> Scratch:
        self._scratch, _local.scratch = _local.scratch or Scratch(), None
        return self._scratch

    def __exit__(self, *error: object) -> None:
        if len(self._scratch.memory) <= _KEPT_SCRATCH:
            _local.scratch = self._scratch


class _Place(Scratch):
    """The memory of the result, for a chunk whose stored bytes are its elements."""

    def __init__(self, place: AnyArray) -> None:
        self.memory = place.reshape(-1).view(np.uint8).data


class UnitReader(msgspec.Struct, eq=False, dict=True):
    """Reads the units of a plan, for one thread.

    Parameters
    ----------
    engine : Engine
    plan : ReadPlan
    out : ndarray
        Gets the elements; has the shape of the plan's buffer.
    batches : iterable of Batch
        The units.
    absent : list, optional
        Gets the coordinates of the absent units.
    threads : int, optional
        The most threads for the inner chunks of a shard in memory.
    """

    engine: Engine
    plan: ReadPlan
    out: AnyArray
    batches: Iterable[Batch]
    absent: list[tuple[int, ...]] | None
    threads: int | None

    @for_array(lambda reader: reader.engine)
    def run(self) -> int:
        """Read units until none are left; returns the number of absent ones."""
        self._slices = type(self.plan.addressing) is Slices
        missing = 0
        with ThreadScratch() as self._scratch:
            for chain, units in self.batches:
                missing += self._batch(chain, units)
        if missing and process.collectors:
            add({"chunks_absent": missing})
        return missing

    def _batch(self, chain: CodecChain, units: Iterable[ChunkProjection]) -> int:
        """Read units of one shape; returns the number of absent ones."""
        engine, out, missing = self.engine, self.out, 0
        self._table, self._is_plain = Table(self.plan, chain), chain.is_plain
        self._direct = self._slices and chain.is_direct(self.plan.number)
        read = self._chunk if chain.shard is None else self._shard
        unit, key = ONE, ""
        try:
            for unit in units:
                if not is_wanted():
                    break
                key = engine.key(unit.coords)
                place = out[unit.outer]
                if not read(chain, key, unit.inner, place):
                    place[...] = engine.fill
                    missing += 1
                    if self.absent is not None:
                        self.absent.append(unit.coords)
        except ChunkError as error:
            error.key, error.chunk = key, unit.coords
            raise
        except OversizedError as error:
            name = chain.codecs[-1].name
            raise ChunkDecodeError(str(error), codec=name, key=key, chunk=unit.coords) from error
        return missing

    def _get(self, key: str, into: Scratch) -> Buffer | None:
        return self.engine.store.get(key, into=into, limit=self.engine.meta.chain.largest_stored)

    def _put(self, chain: CodecChain, data: Buffer, inner: Inner, out: AnyArray, outer: Any = ...) -> None:
        """Decode a chunk and put its wanted elements into their place."""
        if self._direct:
            place = out[outer]
            same = place.shape == chain.spec.shape and place.flags.c_contiguous
            if same and chain.decode_into(data, place):
                return
        array = chain.decode(data)
        out[outer] = array[inner] if self._slices else self.plan.addressing.take(array, inner)

    def _chunk(self, chain: CodecChain, key: str, inner: Inner, place: AnyArray) -> bool:
        """Read a chunk that is in no shard; returns whether it is stored."""
        into = self._scratch
        if self._is_plain:
            is_whole = self._slices and inner == chain.everything
            asked = None if is_whole else self._table.requests(inner)
            if asked is not None:
                return steady(partial(self._parts, chain, key, asked, place))
            if self._slices and self._is_memory_of(chain, place, chain.spec.nbytes):
                into = _Place(place)  # Numpy copies no elements to themselves.
        data = self._get(key, into)
        if data is not None:
            self._put(chain, data, inner, place)
        return data is not None

    def _is_memory_of(self, chain: CodecChain, place: AnyArray, nbytes: int) -> bool:
        """Whether stored elements can be read straight into their place."""
        return place.nbytes == nbytes and place.flags.c_contiguous and place.dtype == chain.stored_dtype

    def _parts(self, chain: CodecChain, key: str, asked: list[Request], place: AnyArray) -> bool:
        """Read parts of a chunk whose stored bytes are its elements; returns whether the chunk is stored."""
        (start, length, (row, *others)), *further = asked
        value = self.engine.store.open(key, (start, length))
        if value is None:
            return False
        with value:
            if value.size not in (None, chain.spec.nbytes):
                raise ChunkDecodeError(
                    f"found {value.size} bytes, expected {chain.spec.nbytes} for shape {chain.spec.shape} of "
                    f"'{chain.spec.data_type.name}'",
                    codec="bytes",
                )
            is_box = row.layout is not None and row.layout.places is None
            # One range may hold just the elements of a contiguous place.
            is_only = not others and not further
            if is_box and is_only and self._is_memory_of(chain, place, length):
                count = value.read_into(start, _Place(place).memory)
                if count != length:
                    raise _short(start, length, count)
                chain.settle(place)
            else:
                rows = [row for _, _, inside in asked for row in inside]
                self._place(chain, value, rows, place, _short)
        return True

    def _shard(self, chain: CodecChain, key: str, inner: Inner, place: AnyArray) -> bool:
        """Read the wanted inner chunks of a shard; returns whether the shard is stored."""
        engine, shard = self.engine, cast("Shard", chain.shard)
        wanted = self._table.wanted(inner)
        if wanted.whole:
            data = self._get(key, self._scratch)
            if data is not None:
                self._rows(shard, (BytesValue(data), shard.read_index(data)), wanted, place)
            return data is not None
        for left in reversed(range(_ATTEMPTS)):
            try:
                opened = open_shard(shard, engine.store, engine.store_identity, key, waits=engine.waiting > 0)
                if opened is None:
                    return False
                with opened[0]:
                    self._rows(shard, opened, wanted, place)
                return True
            except ChangedError:
                forget_index(shard, engine.store_identity, key)
                if not left:
                    raise
        return False

    def _rows(self, shard: Shard, opened: Opened, wanted: InnerChunks, out: AnyArray) -> None:
        """Read inner chunks of a shard into their places."""
        (value, index), in_memory, chain = opened, isinstance(opened[0], BytesValue), shard.inner
        rows, absent = self._table.of_shard(index, wanted, in_memory=in_memory)
        for unit in absent:
            out[unit.outer] = self.engine.fill
        if self._slices and isinstance(value, BytesValue):
            from xzarr3.io.native_read import place_rows  # imports the libraries of the codecs

            threads = self.threads or available_threads()
            rows = place_rows(chain, rows, value.data, out, self.engine.fill, threads)
        self._direct = self._slices and chain.is_direct(len(rows))
        self._place(chain, value, rows, out, shard.outside)

    def _place(
        self,
        chain: CodecChain,
        value: Value,
        rows: Sequence[Row],
        out: AnyArray,
        short: Callable[[int, int, int], ChunkError],
    ) -> None:
        """Read, decode and place rows of an open value; ``short`` makes the error if bytes are missing."""
        stored = cast("np.dtype[np.generic]", chain.stored_dtype)  # Rows with a layout have one.
        for (offset, length, coords, inner, outer, layout), data in fetched(value, rows, self.plan.price):
            try:
                if len(data) != length:
                    raise short(offset, length, len(data))
                if layout is None:
                    self._put(chain, data, inner, out, outer)
                else:
                    out[outer] = chain.settled(layout.elements(data, stored))
            except ChunkError as error:
                error.inner_chunk = coords + (error.inner_chunk or ()) or None
                raise


def _short(offset: int, length: int, found: int) -> ChunkDecodeError:
    return ChunkDecodeError(
        f"found {found} bytes in the range from byte {offset} on, expected {length}", codec="bytes"
    )
