"""Codecs bound to the chunks of one array: everything that can be worked out once is.

:class:`CodecChain` encodes and decodes whole chunks. :class:`Shard` is the part of it that knows the
inside of a shard, so that the inner chunks can be read and replaced one by one.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

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
from xzarr3.dtypes import UInt64
from xzarr3.dtypes.base import FOREIGN_ERRORS
from xzarr3.errors import ChunkDecodeError, ChunkEncodeError, ChunkError, MetadataError, listed
from xzarr3.grids import RegularGrid

if TYPE_CHECKING:
    from xzarr3.codecs.sharding import ShardingCodec

EMPTY = 2**64 - 1
"""Offset and size, in the index of a shard, of an inner chunk that is not there."""
_GAPS = 2**20  # Bytes
_MAX_SCRATCH = 2**25  # Bytes
COPY_RATE = 8000
"""About how many bytes are read from a file that is at hand in a microsecond."""
_FILTER_RATE = 1000  # Bytes that a filter takes in a microsecond.


class _Scratch(threading.local):
    """Memory in which this thread puts the elements of a chunk side by side: fresh memory costs more."""

    def __init__(self) -> None:
        self._octets = np.empty(0, np.uint8)

    def packed(self, array: AnyArray, dtype: np.dtype[np.generic]) -> memoryview:
        """The elements of an array in C order, as this dtype, until the next call."""
        size = array.size * dtype.itemsize
        if len(self._octets) < size:
            self._octets = np.empty(size, np.uint8)
        octets = self._octets[:size]
        octets.view(dtype).reshape(array.shape)[...] = array
        return octets.data


_scratch = _Scratch()


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
                    size = self._shard.max_encoded_size
                elif isinstance(codec, ArrayBytesCodec) and serializer is None:
                    codec.check(spec)
                    serializer, size = codec, codec.max_encoded_size(spec)
                elif isinstance(codec, BytesBytesCodec) and serializer is not None:
                    self._compressors.append((codec, size))
                    size = codec.max_encoded_size(size)
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
        self._exact = serializer.encoded_size(spec)
        self._undo = list(reversed(self._filters))
        self._stages = list(reversed(self._compressors))
        self.stored_dtype = serializer.stored_dtype(spec) if isinstance(serializer, BytesCodec) else None
        self._packs = self.stored_dtype is not None and 0 < spec.nbytes <= _MAX_SCRATCH
        # Bits that no value of the type uses may be set in what others stored. Shards see to their parts.
        self._settle: Callable[[AnyArray], AnyArray] | None = None
        if self._shard is None and spec.dtype.kind == "b":
            self._settle = _truth_values
        elif self._shard is None and spec.data_type.has_unused_bits:
            self._settle = spec.data_type.decoded
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
            If ``data`` are not a chunk of this shape and type.
        """
        for codec, limit in self._stages:
            data = codec.decode(data, limit)
        if self.stored_dtype is not None and len(data) == self._stored.nbytes != 0:
            array = np.frombuffer(data, self.stored_dtype).reshape(self._stored.shape)
        elif self._shard is not None:
            array = self._shard.decode(data)
        else:
            array = self._serializer.decode(data, self._stored)
        if self._settle is not None:
            array = self._settle(array)
        for undo, spec in self._undo:
            array = undo.decode(array, spec)
        return array

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
        if self._direct is None or not self._direct.decode_into(
            data, memoryview(out.reshape(-1).view(np.uint8))
        ):
            return False
        self.settle(out)
        return True

    def settle(self, out: AnyArray) -> None:
        """Make values of elements that were read as they are stored, by bits that mean nothing."""
        if self._settle is not None:
            settled = self._settle(out)
            if settled is not out:
                out[...] = settled

    def settled(self, array: AnyArray) -> AnyArray:
        """What :meth:`settle` makes of an array, in memory of its own if that is another one."""
        return array if self._settle is None else self._settle(array)

    def encode(self, array: AnyArray, *, keep_empty: bool = False, brief: bool = False) -> Buffer:
        """Encode a whole chunk.

        Parameters
        ----------
        array : ndarray
            The chunk, of the full chunk shape.
        keep_empty : bool
            Store the inner chunks of shards even if they hold the fill value only.
        brief : bool
            Whether the result may lie in memory that this thread uses again to encode the next chunk.

        Raises
        ------
        ChunkEncodeError
            If a codec cannot encode it.
        """
        for filter_, spec in self._filters:
            array = filter_.encode(array, spec)
        packed = self._packs and not array.flags.c_contiguous and (brief or bool(self._compressors))
        if self._shard is not None:
            data = self._shard.encode(array, keep_empty=keep_empty)
        elif packed:
            data = _scratch.packed(array, cast("np.dtype[np.generic]", self.stored_dtype))
        else:
            data = self._serializer.encode(array, self._stored)
        for codec, limit in self._compressors:
            if len(data) > limit:  # It could not be decoded again. Only elements of any size come to this.
                raise ChunkEncodeError(
                    f"{len(data)} bytes to encode, at most {limit} possible", codec=codec.name
                )
            data = codec.encode(data)
        # A codec may hand on what it got, which is memory that is used again.
        return bytes(data) if packed and not brief and not isinstance(data, bytes) else data

    def encoded_pieces(self, array: AnyArray, *, keep_empty: bool = False) -> list[Buffer]:
        """Encode a whole chunk; a shard in pieces that follow one another, so that they need no copy.

        They are good until this thread encodes the next chunk.
        """
        if self.shard is not None:
            return self.shard.encoded_pieces(array, keep_empty=keep_empty)
        return [self.encode(array, keep_empty=keep_empty, brief=True)]


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
        # A shard may have gaps, of any size by the text. Where a bound is needed, so that what a compressor
        # yields cannot fill the memory, they may be as large as all the rest and then some.
        self.max_encoded_size = 2 * (size + self.number * self.inner.max_encoded_size) + _GAPS
        if spec.data_type.is_variable:
            self.max_encoded_size = MAX_VARIABLE
        self.max_inner_size = EMPTY - 1 if self.inner.shard is not None else self.inner.max_encoded_size

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
        try:
            index = self._index_chain.decode(data)
        except ChunkDecodeError as error:
            error.reason = f"the shard index is not valid: {error.reason}"
            raise
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

    def check_empty(self, entry: list[int]) -> None:
        """Refuse an entry of the index, offset and size, that should say that there is no inner chunk.

        Raises
        ------
        ChunkDecodeError
            If only one of them says so, or the size is more than an inner chunk can have.
        """
        offset, size = entry
        if offset != EMPTY or size != EMPTY:
            raise ChunkDecodeError(
                f"the shard index gives offset {offset} and size {size} where an inner chunk takes at most "
                f"{self.max_inner_size} bytes",
                codec="sharding_indexed",
            )

    def is_empty(self, entry: list[int]) -> bool:
        """Whether an entry of the index says that there is no such inner chunk; see :meth:`check_empty`."""
        offset, size = entry
        if size > self.max_inner_size or offset == EMPTY:
            self.check_empty(entry)
            return True
        return False

    def cut(self, value: Buffer, entry: list[int]) -> Buffer | None:
        """The bytes of an inner chunk out of a whole shard, or None if it is empty."""
        if self.is_empty(entry):
            return None
        offset, size = entry
        part = memoryview(value)[offset : offset + size]
        if len(part) != size:
            raise self.outside(offset, size, len(part))
        return part

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
        index = self.read_index(value).reshape(-1, 2).tolist()
        for coords, entry in zip(self.all_coords(), index, strict=True):
            try:
                data = self.cut(value, entry)
                if data is not None:
                    self._part(array, coords)[...] = self.inner.decode(data)
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
        kept = (offsets != EMPTY) | (sizes != EMPTY)
        left = len(view) - np.minimum(offsets, np.uint64(len(view)))
        lies = (offsets == EMPTY) | (sizes > left) | (sizes > np.uint64(self.max_inner_size))
        wrong = np.flatnonzero(kept & lies)
        if wrong.size:
            self.cut(view, index[wrong[0]].tolist())  # Tells what is wrong with it.
        new: dict[int, Buffer] = {}
        for coords, data in changes.items():
            at = int(np.ravel_multi_index(coords, self.counts)) if coords else 0
            kept[at] = False
            sizes[at] = EMPTY if data is None else len(data)
            if data is not None:
                new[at] = data
        there = np.flatnonzero(sizes != EMPTY)
        if not there.size:
            return []
        old = kept[there]
        ends = offsets[there] + sizes[there]
        follows = old[1:] & old[:-1] & (offsets[there][1:] == ends[:-1])
        begins = np.concatenate([[True], ~follows])
        first, last = np.flatnonzero(begins), np.flatnonzero(np.concatenate([~follows, [True]]))
        spans = zip(offsets[there[first]].tolist(), ends[last].tolist(), there[first].tolist(), strict=True)
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
