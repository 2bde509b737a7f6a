"""Reads the stored units of a plan into the result: the work of one thread, and the cache of shard indexes.

The thread reads, decodes and places one unit before the next. If the stored bytes of a unit are its elements,
it reads only the wanted ranges; of a shard it reads only the wanted inner chunks. It starts no threads and
does not choose byte ranges; the executor and the plan do.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from xzarr3._types import AnyArray, Buffer
from xzarr3.codecs.pipeline import CodecChain
from xzarr3.codecs.sharding import Shard
from xzarr3.errors import ChangedError, ChunkDecodeError, ChunkError
from xzarr3.io.byte_ranges import ElementRanges, Price, windows
from xzarr3.io.plan import InnerChunks, ReadPlan, Span
from xzarr3.io.projection import ONE, ChunkProjection, Inner, Slices
from xzarr3.io.shards import Index, OpenShards, forget_index, index_lock, index_version, shard_index, within
from xzarr3.stores import ValueReader
from xzarr3.stores.readers import BytesReader, OversizedError, Reader, Scratch
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
    shards : OpenShards, optional
        Given if several threads read pieces of the same shards.
    """

    def __init__(
        self,
        engine: Engine,
        plan: ReadPlan,
        out: AnyArray,
        runs: Runs,
        absent: list[tuple[int, ...]] | None = None,
        shards: OpenShards | None = None,
    ) -> None:
        self._engine = engine
        self._plan = plan
        self._out = out
        self._runs = runs
        self._absent = absent
        self._shared = shards
        self._fill = engine.fill
        self._slices = type(plan.addressing) is Slices
        # Cached for the last unit: the next unit mostly wants the same elements.
        self._last: Inner | None = None
        self._wanted = InnerChunks((), [], False)
        self._unit = ONE
        """The unit that is being read, for error messages."""

    @for_array(lambda reader: reader._engine)
    def run(self) -> int:
        """Read units until none are left; returns the number of absent ones."""
        if self._engine.meta.chain.is_plain:  # Not read into scratch memory.
            return self._run(self._engine.store.reader())
        with leased() as scratch:
            return self._run(self._engine.store.reader(scratch, self._engine.largest_value))

    def _run(self, reader: Reader) -> int:
        self._reader, self._load = reader, reader.get
        missing = 0
        while run := self._runs.take():
            self._chain, units = run
            chain = self._chain
            self._last = None
            try:
                if chain.shard is not None:
                    missing += self._shards(chain.shard, units)
                elif chain.is_plain:
                    missing += self._plain(chain, units)
                else:
                    missing += self._whole(chain, units)
            except ChunkError as error:
                error.key, error.chunk = self._engine.key(self._unit.coords), self._unit.coords
                raise
            except OversizedError as error:
                key, coords = self._engine.key(self._unit.coords), self._unit.coords
                raise ChunkDecodeError(
                    str(error), codec=chain.codecs[-1].name, key=key, chunk=coords
                ) from error
        if missing and process.collectors:
            add({"chunks_absent": missing})
        return missing

    def _note(self, coords: tuple[int, ...]) -> int:
        """Record an absent unit; returns 1."""
        if self._absent is not None:
            self._absent.append(coords)
        return 1

    def _whole(self, chain: CodecChain, units: list[ChunkProjection]) -> int:
        """Read units that are fetched and decoded whole."""
        runs, out, load, fill = self._runs, self._out, self._load, self._fill
        key_prefix, join = self._engine.key_prefix, self._engine.separator.join
        decode, into, shape = chain.decode, chain.decode_into, chain.spec.shape
        take, slices = self._plan.addressing.take, self._slices
        direct = chain.is_direct(self._plan.number)
        missing = 0
        for unit in units:
            if runs.stopped:
                break
            self._unit = unit
            inner, outer = unit.inner, unit.outer
            data = load(key_prefix + join(unit.texts))
            if data is None:
                out[outer] = fill
                missing += self._note(unit.coords)
                continue
            if direct and slices:
                # Decode into the result if the place is contiguous. Otherwise decode and copy.
                place = out[outer]
                if place.shape == shape and place.flags.c_contiguous and into(data, place):
                    continue
            out[outer] = decode(data)[inner] if slices else take(decode(data), inner)
        return missing

    def _plain(self, chain: CodecChain, units: list[ChunkProjection]) -> int:
        """Read units whose stored bytes are their elements."""
        runs, out, fill = self._runs, self._out, self._fill
        key_prefix, join = self._engine.key_prefix, self._engine.separator.join
        addressing, spec, stored = self._plan.addressing, chain.spec, chain.stored_dtype
        load_ranges, load_into = self._reader.get_ranges, self._reader.get_into
        same, slices, settle = addressing.same, self._slices, chain.settle
        ranges: ElementRanges | None = None
        scratch: AnyArray | None = None
        taken: AnyArray | None = None
        missing = start = 0
        for unit in units:
            if runs.stopped:
                break
            self._unit = unit
            inner, key = unit.inner, key_prefix + join(unit.texts)
            place = out[unit.outer]
            if self._last is None or not same(inner, self._last):
                ranges = self._plan.elements(chain, inner)
                start = 0 if ranges is None else ranges.starts[0]
                taken = None
                self._last = inner
            exact = slices and (
                place.shape == spec.shape if ranges is None else ranges.is_exactly(place.nbytes)
            )
            straight = exact and place.flags.c_contiguous and place.dtype == stored
            if not straight and ranges is not None:
                found = load_ranges(key, ranges.starts, ranges.lengths)
                if found is not None:
                    place[...] = _elements(chain, ranges, *found)
                    continue
            else:
                if not straight and scratch is None:
                    scratch = np.empty(spec.shape, stored)
                memory = (place if straight or scratch is None else scratch).reshape(-1).view(np.uint8).data
                placed = load_into(key, start, memory)
                if placed is not None:
                    size, count = placed
                    whole = len(memory) == spec.nbytes
                    if (
                        count < len(memory)
                        or (whole and count != len(memory))
                        or (size is not None and size != spec.nbytes)
                    ):
                        raise _size_error(chain, count if size is None else size)
                    if not straight and scratch is not None:
                        if taken is None or not slices:
                            taken = scratch[(*inner, ...)] if slices else addressing.take(scratch, inner)
                        place[...] = taken
                    settle(place)
                    continue
            place[...] = fill
            missing += self._note(unit.coords)
        return missing

    def _shards(self, shard: Shard, units: list[ChunkProjection]) -> int:
        out, fill = self._out, self._fill
        key_prefix, join = self._engine.key_prefix, self._engine.separator.join
        same = self._plan.addressing.same
        missing = 0
        for unit in units:
            if self._runs.stopped:
                break
            self._unit = unit
            if self._last is None or not same(unit.inner, self._last):
                self._wanted = self._plan.inner_chunks(shard, unit.inner)
                self._last = unit.inner
            if not self._shard(shard, key_prefix + join(unit.texts), self._wanted, out, unit.outer):
                out[unit.outer] = fill
                missing += self._note(unit.coords)
        return missing

    def _shard(self, shard: Shard, key: str, wanted: InnerChunks, out: AnyArray, outer: Any) -> bool:
        """Read the wanted inner chunks of a shard; returns whether the shard is stored."""
        if wanted.whole:
            value = self._load(key)
            if value is None:
                return False
            self._inner_chunks(shard, BytesReader(value), shard.read_index(value), wanted, out[outer])
            return True
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                if self._shared is not None:
                    opened = self._shared.get(key, lambda: self._open_shard(shard, key))
                    if opened is not None:
                        self._inner_chunks(shard, *opened, wanted, out[outer])
                    return opened is not None
                opened = self._open_shard(shard, key)
                if opened is None:
                    return False
                with opened[0] as part_reader:
                    self._inner_chunks(shard, part_reader, opened[1], wanted, out[outer])
                return True
            except ChangedError:
                forget_index(shard, self._engine.store_identity, key)
                if self._shared is not None:
                    self._shared.forget(key)
                if attempt == _ATTEMPTS:
                    raise
        return False

    def _open_shard(self, shard: Shard, key: str) -> tuple[ValueReader, Index] | None:
        """Open a shard and read its index unless it is kept; None if the shard is absent."""
        if not self._engine.waiting:
            return self._indexed(shard, self._reader.open(key), key)
        store = self._engine.store_identity
        with index_lock(shard, store, key):
            version = index_version(shard, store, key)
            reader = self._reader.open(key, (shard.index_start, shard.index_size), version)
            return self._indexed(shard, reader, key)

    def _indexed(
        self, shard: Shard, reader: ValueReader | None, key: str
    ) -> tuple[ValueReader, Index] | None:
        """An open shard with its index. Closes the shard if the index cannot be read."""
        if reader is None:
            return None
        try:
            return reader, shard_index(shard, reader, self._engine.store_identity, key)
        except BaseException:
            reader.close()
            raise

    def _inner_chunks(
        self, shard: Shard, reader: ValueReader, index: Index, wanted: InnerChunks, out: AnyArray
    ) -> None:
        """Read inner chunks of a shard into their places."""
        entries, units, absent = self._plan.present(shard, index, wanted)
        if len(entries) + len(absent) != len(wanted.units):
            raise ChunkDecodeError(
                "the shard index has another layout than the array", codec="sharding_indexed"
            )
        for unit in absent:
            out[unit.outer] = self._fill
        chain, in_memory = shard.inner, isinstance(reader, BytesReader)
        if chain.is_plain and not in_memory and len(units) > 1:
            spans, scattered = self._plan.spans(chain, entries, units)
            for at, data in _values(reader, [(span.start, span.length) for span in spans], self._plan.price):
                self._span(shard, spans[at], data, out)
            entries, units = [[*entry] for entry, _ in scattered], [unit for _, unit in scattered]
        if chain.shard is not None or (chain.is_plain and not in_memory):
            for (offset, size), unit in zip(entries, units, strict=True):
                self._part(shard, within(reader, offset, size), unit, out)
            return
        decode, into, shape, slices = chain.decode, chain.decode_into, chain.spec.shape, self._slices
        direct, take = chain.is_direct(len(units)), self._plan.addressing.take
        for at, data in _values(reader, entries, self._plan.price):
            unit = units[at]
            inner, outer = unit.inner, unit.outer
            try:
                offset, size = entries[at]
                if len(data) != size:
                    raise shard.outside(offset, size, len(data))
                if direct and slices:
                    place = out[outer]
                    if place.shape == shape and place.flags.c_contiguous and into(data, place):
                        continue
                out[outer] = decode(data)[inner] if slices else take(decode(data), inner)
            except ChunkError as error:
                error.inner_chunk = unit.coords + (error.inner_chunk or ())
                raise

    def _span(self, shard: Shard, span: Span, data: Buffer, out: AnyArray) -> None:
        """Place the elements of an inner chunk from the bytes of its span."""
        unit = span.unit
        try:
            if len(data) != span.length:
                raise shard.outside(span.start, span.length, len(data))
            if span.ranges is None:
                out[unit.outer] = self._plan.addressing.take(shard.inner.decode(data), unit.inner)
            else:
                out[unit.outer] = _elements(shard.inner, span.ranges, span.size, [data])
        except ChunkError as error:
            error.inner_chunk = unit.coords + (error.inner_chunk or ())
            raise

    def _part(self, shard: Shard, reader: ValueReader, unit: ChunkProjection, out: AnyArray) -> None:
        """Read an inner chunk, or only the wanted part where byte ranges allow it."""
        chain = shard.inner
        inner, outer = unit.inner, unit.outer
        try:
            if chain.shard is not None:
                self._nested(chain.shard, reader, inner, out, outer)
                return
            ranges = self._plan.elements(chain, inner)
            if ranges is None:
                out[outer] = self._plan.addressing.take(chain.decode(_all_of(reader)), inner)
            else:
                parts = reader.read_ranges(ranges.starts, ranges.lengths)
                out[outer] = _elements(chain, ranges, reader.size, parts)
        except ChunkError as error:
            error.inner_chunk = unit.coords + (error.inner_chunk or ())
            raise

    def _nested(self, shard: Shard, reader: ValueReader, inner: Inner, out: AnyArray, outer: Any) -> None:
        """Read a part of a shard that is an inner chunk of another shard."""
        wanted = self._plan.inner_chunks(shard, inner)
        if wanted.whole:
            reader = BytesReader(_all_of(reader))
        index = shard.decode_index(reader.read(shard.index_start, shard.index_size))
        place = out[outer]
        self._inner_chunks(shard, reader, index, wanted, place)
        if not np.may_share_memory(place, out):  # Points in any order are not a view of ``out``.
            out[outer] = place


def _all_of(reader: ValueReader) -> Buffer:
    """An inner chunk, read whole."""
    size, data = reader.size, reader.read(0)
    if len(data) != size:
        raise ChunkDecodeError(
            f"the shard index says {size} bytes, found {len(data)}", codec="sharding_indexed"
        )
    return data


def _values(
    reader: ValueReader, entries: Sequence[Sequence[int]], price: Price
) -> Iterable[tuple[int, Buffer]]:
    """The stored bytes of the inner chunks at these offsets and sizes, each with its number."""
    if isinstance(reader, BytesReader):
        view = memoryview(reader.value)
        return enumerate([view[offset : offset + size] for offset, size in entries])
    return _ranges(reader, entries, price)


def _ranges(
    reader: ValueReader, entries: Sequence[Sequence[int]], price: Price
) -> Iterator[tuple[int, Buffer]]:
    for window in windows(entries, price):
        parts = reader.iter_ranges([start for start, _, _ in window], [length for _, length, _ in window])
        for (start, _, inside), part in zip(window, parts, strict=True):
            view = memoryview(part)
            for at in inside:
                offset, size = entries[at]
                yield at, view[offset - start : offset - start + size]


def _elements(chain: CodecChain, ranges: ElementRanges, size: int | None, parts: list[Buffer]) -> AnyArray:
    """The elements in byte ranges of a chunk; ``size`` is the size of the stored chunk, if known."""
    if size is not None and size != chain.spec.nbytes:
        raise _size_error(chain, size)
    found = sum(map(len, parts))
    if found != ranges.size:
        raise ChunkDecodeError(
            f"found {found} bytes in the ranges from byte {ranges.starts[0]} on, expected {ranges.size}",
            codec="bytes",
        )
    return chain.settled(ranges.elements(parts, cast("np.dtype[np.generic]", chain.stored_dtype)))
