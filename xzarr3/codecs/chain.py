"""Codecs bound to the chunks of one array: everything that can be worked out once is.

:class:`CodecChain` encodes and decodes whole chunks. :class:`Shard` is the part of it that knows the
inside of a shard, so that the inner chunks can be read and replaced one by one.
"""

from __future__ import annotations

import itertools
import math
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from xzarr3._types import AnyArray, Buffer
from xzarr3.codecs.base import (
    MAX_VARIABLE,
    ArrayArrayCodec,
    ArrayBytesCodec,
    BytesBytesCodec,
    ChunkSpec,
    Codec,
)
from xzarr3.codecs.bytes import BytesCodec
from xzarr3.counting import add, coded, process
from xzarr3.dtypes import UInt64
from xzarr3.dtypes.base import FOREIGN_ERRORS
from xzarr3.errors import (
    ChunkDecodeError,
    ChunkEncodeError,
    ChunkError,
    MetadataError,
    Xzarr3Error,
    listed,
)
from xzarr3.grids import RegularGrid
from xzarr3.telling import here

if TYPE_CHECKING:
    from xzarr3.codecs.sharding import ShardingCodec

EMPTY = 2**64 - 1
"""Offset and size, in the index of a shard, of an inner chunk that is not there."""
MAX_CODECS = 64
"""How many codecs a list may have. Each one may make a chunk larger, and takes time."""
_SLACK = 2**20  # Bytes
_INNER_SLACK = 2**12  # Bytes
_MAX_SCRATCH = 2**25  # Bytes
COPY_RATE = 8000
"""About how many bytes are read from a file that is at hand in a microsecond."""
_FILTER_RATE = 1000  # Bytes that a filter takes in a microsecond.


class _PackedElements(threading.local):
    """Memory in which this thread puts the elements of a chunk side by side: fresh memory costs more.

    It is lent to one chunk at a time, until nothing refers to that chunk's bytes any more. Who encodes
    another one before, as a codec or a store may do that writes to an array itself, gets memory of its own.
    """

    def __init__(self) -> None:
        self._free = [np.empty(0, np.uint8)]
        self._lent: weakref.ref[npt.NDArray[np.uint8]] | None = None

    def of(self, array: AnyArray, dtype: np.dtype[np.generic]) -> memoryview:
        """The elements of an array in C order, as this dtype."""
        size = array.size * dtype.itemsize
        free = self._free
        if free:
            memory = free.pop()
            if len(memory) < size:
                memory = np.empty(size, np.uint8)
            octets = memory[:size]  # The memory view refers to this, and what is made of it to the view.
            self._lent = weakref.ref(octets, lambda _: free.append(memory))
        else:
            octets = np.empty(size, np.uint8)
        octets.view(dtype).reshape(array.shape)[...] = array
        return octets.data


_packed_elements = _PackedElements()

_Error = TypeVar("_Error", bound=ChunkError)


def foreign_error(kind: type[_Error], codec: Codec, error: Exception) -> _Error:
    """The error for whatever a codec, which may be anybody's, raises instead of ours."""
    return kind(f"{type(error).__name__}: {error}", codec=codec.name)


def most_encoded(size: int) -> int:
    """A size in bytes that ``size`` bytes are not believed to take, whatever codecs encode them.

    Each codec has a bound of its own. Of many in a row these grow without limit, and so would the memory
    that a few compressed bytes can fill.
    """
    return 2 * size + _SLACK


def _truth_values(array: AnyArray) -> AnyArray:
    """Truth values of which numpy can be sure: any byte but 0 means true, numpy knows 0 and 1 only.

    Who stores masks of 0 and 255 means no less than true by them. To look costs half of what copying the
    chunk does; a new array is only made where there is such a byte.
    """
    octets = array.view(np.uint8)
    return octets != 0 if octets.size and octets.max() > 1 else array


class CodecChain:
    """The codecs of an array, in order, bound to the description of its chunks.

    Parameters
    ----------
    codecs : tuple of Codec
        Array to array codecs, one array to bytes codec, bytes to bytes codecs.
    spec : ChunkSpec
        The chunks before encoding.

    Raises
    ------
    MetadataError
        If the codecs are in no such order or cannot encode such chunks.
    """

    def __init__(self, codecs: tuple[Codec, ...], spec: ChunkSpec) -> None:
        self.spec = spec
        self._filters: list[tuple[ArrayArrayCodec, ChunkSpec]] = []
        self._compressors: list[tuple[BytesBytesCodec, int]] = []
        self._shard: Shard | None = None
        serializer: ArrayBytesCodec | None = None
        evolved: list[Codec] = []
        size = 0
        self.dense_size: int = 0
        """A size in bytes that no encoded chunk exceeds by much, the gaps of shards aside."""
        if len(codecs) > MAX_CODECS:
            raise MetadataError(
                "too many codecs", field="codecs", found=len(codecs), accepted=f"at most {MAX_CODECS}"
            )
        for at, given in enumerate(codecs):
            try:
                codec = given.evolve(spec)
                if isinstance(codec, ArrayArrayCodec) and serializer is None:
                    self._filters.append((codec, spec))
                    spec = codec.resolve(spec)
                elif codec.name == "sharding_indexed" and serializer is None:
                    self._shard = Shard(cast("ShardingCodec", codec), spec)
                    serializer = codec = replace(
                        cast("ShardingCodec", codec), codecs=self._shard.inner.codecs
                    )
                    self.dense_size = self._shard.dense_size
                    self._exact, size = None, self._shard.max_encoded_size
                elif isinstance(codec, ArrayBytesCodec) and serializer is None:
                    codec.check(spec)
                    serializer, size = codec, codec.max_encoded_size(spec)
                    self._exact, self.dense_size = codec.encoded_size(spec), size
                elif isinstance(codec, BytesBytesCodec) and serializer is not None:
                    most = MAX_VARIABLE if spec.data_type.is_variable else most_encoded(self.dense_size)
                    self._compressors.append((codec, size))
                    size = min(codec.max_encoded_size(size), most)
                else:
                    raise _order_error(codecs)
            except MetadataError as error:
                if error.field != "codecs":
                    error.at(field=f"codecs[{at}]")
                raise
            except FOREIGN_ERRORS as error:
                raise MetadataError(
                    f"codec '{given.name}' fails for such chunks: {type(error).__name__}: {error}",
                    field=f"codecs[{at}]",
                ) from error
            evolved.append(codec)
        if serializer is None:
            raise _order_error(codecs)
        self.codecs: tuple[Codec, ...] = tuple(evolved)
        self.max_encoded_size: int = size
        self._serializer = serializer
        self._stored = spec
        self._undo = list(reversed(self._filters))
        self._stages = list(reversed(self._compressors))
        self.stored_dtype = serializer.stored_dtype(spec) if isinstance(serializer, BytesCodec) else None
        self._shapes_array = bool(self._filters) or self.stored_dtype is None  # A codec does, not we here.
        self._packs = self.stored_dtype is not None and 0 < spec.nbytes <= _MAX_SCRATCH
        # Bits that no value of the type uses may be set in what others stored. Shards see to their parts.
        self._settle: Callable[[AnyArray], AnyArray] | None = None
        if self._shard is None and spec.dtype.kind == "b":
            self._settle = _truth_values
        elif self._shard is None and spec.data_type.has_unused_bits:
            self._settle = self._decoded
        # A compressor that is alone may decode straight to where the chunk is wanted.
        alone = self._compressors[0][0] if len(self._compressors) == 1 and not self._filters else None
        floor = None if alone is None else alone.direct_from
        large = floor is not None and self._exact is not None and self._exact >= floor
        self._direct = alone if large and self.stored_dtype == self.spec.dtype else None

    @property
    def shard(self) -> Shard | None:
        """The shard layout, if parts of the stored value are whole inner chunks of the array."""
        return None if self._filters or self._compressors else self._shard

    @property
    def is_plain(self) -> bool:
        """Whether the stored value is just the elements, so that any part of it can be read alone."""
        return self.stored_dtype is not None and not (self._filters or self._compressors)

    @property
    def encoded_size(self) -> int | None:
        """Size in bytes of every encoded chunk, if it is the same for all."""
        size = self._exact
        for codec, _ in self._compressors:
            size = None if size is None else codec.encoded_size(size)
        return size

    def decode(self, data: Buffer) -> AnyArray:
        """Decode a stored value.

        The result may lie in the memory of ``data`` and may be read-only.

        Raises
        ------
        ChunkDecodeError
            If ``data`` are not a chunk of this shape and type, or a codec fails in any other way.
        """
        if process.collectors and not here.coding:
            with coded("decode", "decoded") as done:
                array = self.decode(data)
                done(array.nbytes)
                return array
        codec: Any = self._serializer  # The one that runs, or ran last.
        try:
            for codec, limit in self._stages:
                data = codec.decode(data, limit)
            if self.stored_dtype is not None and len(data) == self._stored.nbytes != 0:
                array = np.frombuffer(data, self.stored_dtype).reshape(self._stored.shape)
            elif self._shard is not None:
                codec = self._serializer
                array = self._shard.decode(data)
            else:
                codec = self._serializer
                array = codec.decode(data, self._stored)
            if self._settle is not None:
                array = self._settle(array)
            for codec, spec in self._undo:
                array = codec.decode(array, spec)
            if self._shapes_array and array.shape != self.spec.shape:
                raise ChunkDecodeError(
                    f"decoded to shape {array.shape}, expected {self.spec.shape}", codec=codec.name
                )
        except (Xzarr3Error, MemoryError):
            raise
        except Exception as error:
            raise foreign_error(ChunkDecodeError, codec, error) from error
        return array

    def _decoded(self, array: AnyArray) -> AnyArray:
        """Stored elements with the bits cleared that mean nothing, if all are values of the data type."""
        try:
            return self._stored.data_type.decoded(array)
        except FOREIGN_ERRORS as error:
            raise ChunkDecodeError(str(error), codec=self._serializer.name) from error

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """Strides in bytes of a chunk whose elements lie in C order."""
        strides, distance = [], self.spec.dtype.itemsize
        for length in reversed(self.spec.shape):
            strides.append(distance)
            distance *= length
        return tuple(reversed(strides))

    @cached_property
    def decode_time(self) -> float:
        """About how many microseconds reading and decoding a chunk takes in which other threads can run."""
        if self._shard is not None:
            return self._shard.inner.decode_time
        size = self._stored.nbytes
        filters = size / _FILTER_RATE if self._filters else 0
        return size / COPY_RATE + filters + sum(size / codec.decode_rate for codec, _ in self._compressors)

    def is_direct(self, number: int) -> bool:
        """Whether it pays to use :meth:`decode_into` when ``number`` chunks are read."""
        return self._direct is not None and (number == 1 or self._direct.direct_many)

    def decode_into(self, data: Buffer, out: AnyArray) -> bool:
        """Decode straight into ``out``, a C-contiguous array of the chunk's shape, if that is possible.

        Returns
        -------
        bool
            Whether ``out`` now holds the chunk.
        """
        codec = self._direct
        if codec is None:
            return False
        if process.collectors and not here.coding:
            with coded("decode", "decoded") as done:
                is_done = self.decode_into(data, out)
                if is_done:
                    done(out.nbytes)
                return is_done
        try:
            if not codec.decode_into(data, memoryview(out.reshape(-1).view(np.uint8))):
                return False
        except (Xzarr3Error, MemoryError):
            raise
        except Exception as error:
            raise foreign_error(ChunkDecodeError, codec, error) from error
        self.settle(out)
        return True

    def settle(self, out: AnyArray) -> None:
        """Make values of elements that were read as they are stored, by bits that mean nothing.

        Raises
        ------
        ChunkDecodeError
            If one of them is no value of the data type.
        """
        if self._settle is not None:
            settled = self._settle(out)
            if settled is not out:
                out[...] = settled

    def settled(self, array: AnyArray) -> AnyArray:
        """What :meth:`settle` makes of an array, in memory of its own if that is another one."""
        return array if self._settle is None else self._settle(array)

    def encode(self, array: AnyArray, *, keep_empty: bool = False) -> Buffer:
        """Encode a whole chunk.

        The result may lie in the memory of ``array``.

        Parameters
        ----------
        array : ndarray
            The chunk, of the full chunk shape.
        keep_empty : bool
            Store the inner chunks of shards even if they hold the fill value only.

        Raises
        ------
        ChunkEncodeError
            If a codec cannot encode it.
        """
        if process.collectors and not here.coding:
            with coded("encode", "encoded") as done:
                found = self.encode(array, keep_empty=keep_empty)
                done(array.nbytes)
                return found
        data: Buffer
        codec: Any = self._serializer  # The one that runs, or ran last.
        try:
            for codec, spec in self._filters:
                array = codec.encode(array, spec)
            if self._packs and not array.flags.c_contiguous:
                data = _packed_elements.of(array, cast("np.dtype[np.generic]", self.stored_dtype))
            elif self._shard is not None:
                codec = self._serializer
                data = self._shard.encode(array, keep_empty=keep_empty)
            else:
                codec = self._serializer
                data = codec.encode(array, self._stored)
            for codec, limit in self._compressors:
                # It could not be decoded again. Elements of any size come to this, and codecs that are many.
                if len(data) > limit:
                    raise ChunkEncodeError(
                        f"{len(data)} bytes to encode, at most {limit} possible", codec=codec.name
                    )
                data = codec.encode(data)
        except (Xzarr3Error, MemoryError):
            raise
        except Exception as error:
            raise foreign_error(ChunkEncodeError, codec, error) from error
        return data

    def encoded_pieces(self, array: AnyArray, *, keep_empty: bool = False) -> list[Buffer]:
        """Encode a whole chunk; a shard in pieces that follow one another, so that they need no copy."""
        if process.collectors and not here.coding:
            with coded("encode", "encoded") as done:
                pieces = self.encoded_pieces(array, keep_empty=keep_empty)
                done(array.nbytes)
                return pieces
        if self.shard is not None:
            return self.shard.encoded_pieces(array, keep_empty=keep_empty)
        return [self.encode(array, keep_empty=keep_empty)]


def _order_error(codecs: tuple[Codec, ...]) -> MetadataError:
    return MetadataError(
        f"codecs {listed(c.name for c in codecs)} are in no valid order",
        field="codecs",
        accepted="array to array codecs, then one array to bytes codec, then bytes to bytes codecs",
    )


class Shard:
    """The inside of the shards of one array.

    Parameters
    ----------
    codec : ShardingCodec
    spec : ChunkSpec
        The whole shard.

    Raises
    ------
    MetadataError
        If the inner chunks do not fit the shard or the index has no fixed size.
    """

    def __init__(self, codec: ShardingCodec, spec: ChunkSpec) -> None:
        self.spec = spec
        self.grid = RegularGrid(codec.chunk_shape)
        lengths, sizes = codec.chunk_shape, spec.shape
        if len(lengths) != len(sizes) or any(s % c for s, c in zip(sizes, lengths, strict=True)):
            raise MetadataError(
                "codec 'sharding_indexed': inner chunks do not fill the shard",
                field="configuration.chunk_shape",
                found=list(lengths),
                accepted=f"{len(sizes)} integers that divide {list(sizes)} evenly",
            )
        self.counts = self.grid.counts(spec.shape)
        self.number = math.prod(self.counts)
        try:
            self.inner = CodecChain(codec.codecs, ChunkSpec(lengths, spec.data_type, spec.fill_value))
        except MetadataError as error:
            error.at(field="configuration")
            raise
        index_spec = ChunkSpec((*self.counts, 2), UInt64(), np.uint64(EMPTY))
        try:
            self._index_chain = CodecChain(codec.index_codecs, index_spec)
        except MetadataError as error:
            error.field = f"configuration.index_{error.field}"
            raise
        size = self._index_chain.encoded_size
        if size is None:
            raise MetadataError(
                "codec 'sharding_indexed': the index has no fixed size",
                field="configuration.index_codecs",
                found=[c.name for c in codec.index_codecs],
                accepted="codecs of fixed size, such as 'bytes' and 'crc32c'",
            )
        self.index_size = size
        self._index_at_start = codec.index_location == "start"
        self.index_start = 0 if self._index_at_start else -size
        self.dense_size: int
        self.max_encoded_size: int
        # The gaps of an inner shard do not count here, or those of shards in shards would grow without limit.
        most = min(self.inner.max_encoded_size, self.inner.dense_size + _INNER_SLACK)
        self.dense_size = size + self.number * most
        # A shard may have gaps, of any size by the text. Where a bound is needed, so that what a compressor
        # yields cannot fill the memory, they may be as large as all the rest and then some.
        self.max_encoded_size = most_encoded(self.dense_size)
        if spec.data_type.is_variable:
            self.max_encoded_size = self.dense_size = MAX_VARIABLE
        self.max_inner_size = EMPTY - 1 if self.inner.shard is not None else self.inner.max_encoded_size
        self._largest_entry = np.array([EMPTY - 1, self.max_inner_size], np.uint64)

    @cached_property
    def index_layout(self) -> object:
        """What has to agree for an index of one array to be that of another one."""
        return self.counts, self.index_start, self._index_chain.codecs

    def decode_index(self, data: Buffer) -> npt.NDArray[np.uint64]:
        """The index, of the shape of the grid of inner chunks and then 2: offset and size in bytes.

        Raises
        ------
        ChunkDecodeError
            If ``data`` are no index.
        """
        if len(data) != self.index_size:
            raise ChunkDecodeError(
                f"the shard index takes {self.index_size} bytes, found {len(data)}", codec="sharding_indexed"
            )
        counts = process.collectors and not here.coding
        if counts:
            here.coding = True
        try:
            index = self._index_chain.decode(data)
        except ChunkDecodeError as error:
            error.reason = f"the shard index is not valid: {error.reason}"
            raise
        finally:
            if counts:
                here.coding = False
        if counts:
            add({"indexes_read": 1})
        return index.astype(np.uint64)

    def read_index(self, value: Buffer) -> npt.NDArray[np.uint64]:
        """The index of a whole shard."""
        if len(value) < self.index_size:
            raise ChunkDecodeError(
                f"found {len(value)} bytes, the shard index alone takes {self.index_size}",
                codec="sharding_indexed",
            )
        view = memoryview(value)
        return self.decode_index(
            view[: self.index_size] if self._index_at_start else view[-self.index_size :]
        )

    def present(
        self,
        entries: npt.NDArray[np.uint64],
        coords: Callable[[int], tuple[int, ...]] | None = None,
        size: int | None = None,
    ) -> npt.NDArray[np.bool_] | None:
        """Which inner chunks there are, by their entries in the index: the only place that decides it.

        Parameters
        ----------
        entries : ndarray
            Offset and size in bytes of each one, of shape (number, 2).
        coords : callable, optional
            Gives the coordinates of one of these inner chunks by its number, if they are not all of the
            shard in C order.
        size : int, optional
            Size of the shard in bytes, if it is known: no inner chunk lies beyond its end.

        Returns
        -------
        ndarray or None
            Whether each one is there; None if all are.

        Raises
        ------
        ChunkDecodeError
            If an entry says neither that there is no inner chunk nor where one can be.
        """
        odd = entries > self._largest_entry
        there: npt.NDArray[np.bool_] | None = None
        if odd.any():
            absent: npt.NDArray[np.bool_] = (entries == EMPTY).all(axis=1)
            there = ~absent
            wrong = odd.any(axis=1) & there
            if wrong.any():
                at = int(wrong.argmax())
                error = ChunkDecodeError(
                    f"the shard index gives offset {entries[at, 0]} and size {entries[at, 1]} where an inner "
                    f"chunk takes at most {self.max_inner_size} bytes",
                    codec="sharding_indexed",
                )
                raise self._at(error, at, coords)
        if size is not None:
            offsets = np.minimum(entries[:, 0], np.uint64(size))
            beyond = entries[:, 1] > np.uint64(size) - offsets
            if there is not None:
                beyond &= there
            if beyond.any():
                at = int(beyond.argmax())
                offset, length = entries[at].tolist()
                raise self._at(self.outside(offset, length, size - int(offsets[at])), at, coords)
        return there

    def _at(
        self, error: ChunkDecodeError, at: int, coords: Callable[[int], tuple[int, ...]] | None
    ) -> ChunkDecodeError:
        """An error about an inner chunk that is given by its number."""
        if coords is not None:
            error.inner_chunk = coords(at)
        else:
            error.inner_chunk = tuple(map(int, np.unravel_index(at, self.counts))) if self.counts else ()
        return error

    def cut(self, value: Buffer, entry: list[int]) -> Buffer | None:
        """The bytes of an inner chunk out of a whole shard, or None if it is empty."""
        if self.present(np.array([entry], np.uint64), lambda _: (), len(value)) is not None:
            return None
        offset, size = entry
        return memoryview(value)[offset : offset + size]

    @staticmethod
    def outside(offset: int, size: int, found: int) -> ChunkDecodeError:
        """The error for an inner chunk that lies beyond the end of its shard."""
        return ChunkDecodeError(
            f"the index places an inner chunk of {size} bytes at {offset}, where {found} bytes are left",
            codec="sharding_indexed",
        )

    def all_coords(self) -> Iterator[tuple[int, ...]]:
        """The coordinates of all inner chunks, in C order."""
        return itertools.product(*map(range, self.counts))

    def _part(self, array: AnyArray, coords: tuple[int, ...]) -> AnyArray:
        """The place of an inner chunk: a view, even if it has no dimensions."""
        region: tuple[Any, ...] = (*self.grid.region(coords, self.spec.shape), ...)
        part: AnyArray = array[region]
        return part

    def decode(self, value: Buffer) -> AnyArray:
        """Decode a whole shard."""
        array = self.spec.data_type.filled(self.spec.shape, self.spec.fill_value)
        index = self.read_index(value).reshape(-1, 2)
        there = self.present(index, size=len(value))
        every = zip(self.all_coords(), index.tolist(), strict=True)
        view = memoryview(value)
        for coords, (offset, size) in every if there is None else itertools.compress(every, there):
            try:
                self._part(array, coords)[...] = self.inner.decode(view[offset : offset + size])
            except ChunkError as error:
                error.inner_chunk = coords + (error.inner_chunk or ())
                raise
        return array

    def encode(self, array: AnyArray, *, keep_empty: bool = False) -> Buffer:
        """Encode a whole shard; inner chunks that hold only the fill value are left out."""
        return b"".join(self.encoded_pieces(array, keep_empty=keep_empty))

    def encoded_pieces(self, array: AnyArray, *, keep_empty: bool = False) -> list[Buffer]:
        """A whole shard encoded, in pieces that follow one another."""
        encoded: list[Buffer | None] = []
        holds_only, fill, encode = self.spec.data_type.holds_only, self.spec.fill_value, self.inner.encode
        for coords in self.all_coords():
            part = self._part(array, coords)
            try:
                empty = not keep_empty and holds_only(part, fill)
                encoded.append(None if empty else encode(part, keep_empty=keep_empty))
            except ChunkError as error:
                error.inner_chunk = coords + (error.inner_chunk or ())
                raise
        sizes = np.array([EMPTY if data is None else len(data) for data in encoded], np.uint64)
        return self._with_index(sizes, [data for data in encoded if data is not None])

    def rewritten(
        self, value: Buffer | None, changes: Mapping[tuple[int, ...], Buffer | None]
    ) -> list[Buffer]:
        """A shard with some inner chunks replaced, in pieces that follow one another.

        The others are not copied: what lies side by side in the old shard is one piece of it.

        Parameters
        ----------
        value : buffer or None
            The shard, None if there is none.
        changes : mapping
            The encoded inner chunks by their coordinates, None for those that go.

        Returns
        -------
        list of buffer
            Empty if no inner chunk is left.

        Raises
        ------
        ChunkDecodeError
            If the index of the shard is not valid.
        """
        index = np.full((self.number, 2), EMPTY, np.uint64)
        view = memoryview(b"")
        if value is not None:
            view = memoryview(value)
            index[...] = self.read_index(value).reshape(-1, 2)
        offsets, sizes = index[:, 0].copy(), index[:, 1].copy()
        there = self.present(index, size=len(view))
        kept = np.ones(self.number, np.bool_) if there is None else there
        new: dict[int, Buffer] = {}
        for coords, data in changes.items():
            at = int(np.ravel_multi_index(coords, self.counts)) if coords else 0
            kept[at] = False
            sizes[at] = EMPTY if data is None else len(data)
            if data is not None:
                new[at] = data
        left = np.flatnonzero(sizes != EMPTY)
        if not left.size:
            return []
        old = kept[left]
        ends = offsets[left] + sizes[left]
        follows = old[1:] & old[:-1] & (offsets[left][1:] == ends[:-1])
        begins = np.concatenate([[True], ~follows])
        first, last = np.flatnonzero(begins), np.flatnonzero(np.concatenate([~follows, [True]]))
        spans = zip(offsets[left[first]].tolist(), ends[last].tolist(), left[first].tolist(), strict=True)
        pieces = [new[at] if at in new else view[start:stop] for start, stop, at in spans]
        return self._with_index(sizes, pieces)

    def _with_index(self, sizes: npt.NDArray[np.uint64], pieces: list[Buffer]) -> list[Buffer]:
        """The index of inner chunks that follow one another, put before or behind them."""
        there = sizes != EMPTY
        index = np.full((self.number, 2), EMPTY, np.uint64)
        ends = np.cumsum(sizes[there], dtype=np.uint64)
        start = np.uint64(self.index_size if self._index_at_start else 0)
        index[there, 0] = start + ends - sizes[there]
        index[there, 1] = sizes[there]
        encoded = self._index_chain.encode(index.reshape(*self.counts, 2))
        return [encoded, *pieces] if self._index_at_start else [*pieces, encoded]
