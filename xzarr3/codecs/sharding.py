"""``sharding_indexed``: a shard holds inner chunks, each encoded on its own, and an index of them.

:class:`ShardingCodec` is the codec as a document describes it. :class:`Shard` is the codec bound to the
shards of one array. It reads and writes the index, and finds, replaces and decodes inner chunks. It works
on bytes in memory and knows no stores.

Specification: Zarr v3, "Sharding codec". Names: ``sharding_indexed``.
Example: ``{"name": "sharding_indexed", "configuration": {"chunk_shape": [32, 32], "codecs": [{"name":
"bytes", "configuration": {"endian": "little"}}], "index_codecs": [{"name": "bytes", "configuration":
{"endian": "little"}}, {"name": "crc32c"}], "index_location": "end"}}``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from xzarr3._types import AnyArray, Buffer
from xzarr3.codecs.base import MAX_VARIABLE, ArrayBytesCodec, ChunkSpec, Codec
from xzarr3.codecs.bytes import BytesCodec
from xzarr3.codecs.crc32c import Crc32cCodec
from xzarr3.codecs.pipeline import CodecChain, most_encoded
from xzarr3.codecs.registry import codecs_from_json
from xzarr3.dtypes import UInt64
from xzarr3.errors import ChunkDecodeError, ChunkError, MetadataError, located
from xzarr3.fields import Meta, parsed
from xzarr3.grid import RegularGrid
from xzarr3.tracing.counters import add, process
from xzarr3.tracing.events import here

EMPTY = 2**64 - 1
"""Offset and size of a missing inner chunk in the index of a shard."""
_INNER_SLACK = 2**12  # bytes


@dataclass(frozen=True)
class ShardingCodec(ArrayBytesCodec):
    """Encodes a chunk as a shard of inner chunks.

    Parameters
    ----------
    chunk_shape : tuple of int
        Shape of an inner chunk; it divides the shard evenly.
    codecs : tuple of Codec
        Codecs of an inner chunk.
    index_codecs : tuple of Codec
        Codecs of the index, all of fixed size.
    index_location : {"end", "start"}
        Where in the shard the index is.

    Examples
    --------
    >>> import xzarr3
    >>> array = xzarr3.zeros(100, shards=50, chunks=10)
    >>> array.metadata.codecs[0].chunk_shape, array.metadata.codecs[0].index_location
    ((10,), 'end')
    """

    name = "sharding_indexed"
    takes_optional = True
    chunk_shape: tuple[Annotated[int, Meta(ge=1)], ...]
    codecs: tuple[Codec, ...] = parsed(
        codecs_from_json, "a list of codecs", required=True, default=(BytesCodec(),)
    )
    index_codecs: tuple[Codec, ...] = parsed(
        codecs_from_json, "a list of codecs", required=True, default=(BytesCodec(), Crc32cCodec())
    )
    index_location: Literal["end", "start"] = "end"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("codecs", "index_codecs"):
            object.__setattr__(self, name, tuple(getattr(self, name)))

    def bound(self, spec: ChunkSpec) -> Shard:
        """The layout of shards that ``spec`` describes."""
        return Shard(self, spec)

    def max_encoded_size(self, spec: ChunkSpec) -> int:
        return self.bound(spec).max_encoded_size

    def encode(self, array: AnyArray, spec: ChunkSpec) -> Buffer:
        return self.bound(spec).encode(array)

    def decode(self, data: Buffer, spec: ChunkSpec) -> AnyArray:
        return self.bound(spec).decode(data)


def _try_shards(sizes: tuple[int, ...], lengths: tuple[int, ...]) -> str:
    """What to do about shards that are not whole multiples of their inner chunks."""
    if len(sizes) != len(lengths):
        return f"give both {len(sizes)} lengths"
    pairs = list(zip(sizes, lengths, strict=True))
    fewer = tuple(chunk * max(1, size // chunk) for size, chunk in pairs)
    more = tuple(chunk * -(-size // chunk) for size, chunk in pairs)
    return f"try shards={fewer}" + (f" or {more}" if more != fewer else "")


class Shard:
    """The layout of the shards of one array: their index and inner chunks.

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
                f"shards={sizes} is not a multiple of chunks={lengths}",
                field="configuration.chunk_shape",
                found=list(lengths),
                accepted=f"chunks that divide shards={sizes} evenly",
                advice=_try_shards(sizes, lengths),
            )
        self.counts = self.grid.counts(spec.shape)
        self.number = math.prod(self.counts)
        with located(field="configuration"):
            self.inner = CodecChain(codec.codecs, ChunkSpec(lengths, spec.data_type, spec.fill_value))
        index_spec = ChunkSpec((*self.counts, 2), UInt64(), np.uint64(EMPTY))
        try:
            self.index_chain = CodecChain(codec.index_codecs, index_spec)
        except MetadataError as error:
            error.field = f"configuration.index_{error.field}"
            raise
        size = self.index_chain.encoded_size
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
        # Gaps of nested shards do not count here; otherwise the bound would grow with each level.
        most = min(self.inner.max_encoded_size, self.inner.dense_size + _INNER_SLACK)
        self.dense_size = size + self.number * most
        # The specification allows gaps of any size. A compressor around the shard needs a bound, or a few
        # compressed bytes could fill the memory. So gaps may be about as large as the rest of the shard.
        self.max_encoded_size = most_encoded(self.dense_size)
        if spec.data_type.is_variable:
            self.max_encoded_size = self.dense_size = MAX_VARIABLE
        self.max_inner_size = EMPTY - 1 if self.inner.shard is not None else self.inner.max_encoded_size
        self._largest_entry = np.array([EMPTY - 1, self.max_inner_size], np.uint64)

    @cached_property
    def index_layout(self) -> object:
        """Arrays can use each other's encoded indexes if these values are equal."""
        return self.counts, self.index_start, self.index_chain.codecs

    def decode_index(self, data: Buffer) -> npt.NDArray[np.uint64]:
        """Decode the index: offset and size in bytes of each inner chunk, of shape ``(*counts, 2)``.

        Raises
        ------
        ChunkDecodeError
            If ``data`` are not a valid index.
        """
        if len(data) != self.index_size:
            raise ChunkDecodeError(
                f"the shard index takes {self.index_size} bytes, found {len(data)}: the shard is truncated",
                codec="sharding_indexed",
            )
        counts = process.collectors and not here.coding
        if counts:
            here.coding = True
        try:
            index = self.index_chain.decode(data)
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
        """Decode the index of a whole shard."""
        if len(value) < self.index_size:
            raise ChunkDecodeError(
                f"the shard is truncated: found {len(value)} bytes, its index alone takes {self.index_size}",
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
        """Which inner chunks exist, by their index entries. Only this method decides it.

        Parameters
        ----------
        entries : ndarray
            Offset and size in bytes of each inner chunk, of shape (number, 2).
        coords : callable, optional
            Returns the coordinates of an inner chunk by its position in ``entries``. By default ``entries``
            holds all inner chunks of the shard in C order.
        size : int, optional
            Size of the shard in bytes, if known; then no inner chunk may end beyond it.

        Returns
        -------
        ndarray or None
            Whether each inner chunk exists; None if all exist.

        Raises
        ------
        ChunkDecodeError
            If an entry neither marks a missing inner chunk nor gives a possible place.
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
                    f"the shard index says offset {entries[at, 0]} and size {entries[at, 1]}, but an inner "
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
        """Add the coordinates of inner chunk number ``at`` to an error."""
        if coords is not None:
            error.inner_chunk = coords(at)
        else:
            error.inner_chunk = tuple(map(int, np.unravel_index(at, self.counts))) if self.counts else ()
        return error

    def cut(self, value: Buffer, entry: list[int]) -> Buffer | None:
        """The bytes of an inner chunk in a whole shard, or None if it is missing."""
        if self.present(np.array([entry], np.uint64), lambda _: (), len(value)) is not None:
            return None
        offset, size = entry
        return memoryview(value)[offset : offset + size]

    @staticmethod
    def outside(offset: int, size: int, found: int) -> ChunkDecodeError:
        """The error for an inner chunk that lies beyond the end of its shard."""
        return ChunkDecodeError(
            f"the shard index says {size} bytes at offset {offset}, but {found} bytes are left there",
            codec="sharding_indexed",
        )

    def all_coords(self) -> Iterator[tuple[int, ...]]:
        """The coordinates of all inner chunks, in C order."""
        return itertools.product(*map(range, self.counts))

    def _part(self, array: AnyArray, coords: tuple[int, ...]) -> AnyArray:
        """The elements of an inner chunk as a view, even for zero dimensions."""
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
        """Encode a whole shard as consecutive pieces."""
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
        return self.with_index(sizes, [data for data in encoded if data is not None])

    def rewritten(
        self,
        value: Buffer,
        index: npt.NDArray[np.uint64] | None,
        changes: Mapping[tuple[int, ...], Buffer | None],
    ) -> list[Buffer]:
        """A shard with some inner chunks replaced, as consecutive pieces.

        The kept inner chunks are not copied. Those that are adjacent in the old shard share one piece, a
        view of the old shard.

        Parameters
        ----------
        value : buffer
            The old shard; empty if there is none.
        index : ndarray or None
            The decoded index of the old shard; None if there is none.
        changes : mapping
            The new encoded inner chunks by their coordinates; None removes one.

        Returns
        -------
        list of buffer
            Empty if no inner chunk remains.

        Raises
        ------
        ChunkDecodeError
            If an entry of the index is not valid.
        """
        view = memoryview(value)
        if index is None:
            index = np.full((self.number, 2), EMPTY, np.uint64)
        index = index.reshape(-1, 2)
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
        return self.with_index(sizes, pieces)

    def with_index(self, sizes: npt.NDArray[np.uint64], pieces: list[Buffer]) -> list[Buffer]:
        """Add the index to pieces of consecutive inner chunks, at the start or the end."""
        there = sizes != EMPTY
        index = np.full((self.number, 2), EMPTY, np.uint64)
        ends = np.cumsum(sizes[there], dtype=np.uint64)
        start = np.uint64(self.index_size if self._index_at_start else 0)
        index[there, 0] = start + ends - sizes[there]
        index[there, 1] = sizes[there]
        encoded = self.index_chain.encode(index.reshape(*self.counts, 2))
        return [encoded, *pieces] if self._index_at_start else [*pieces, encoded]
