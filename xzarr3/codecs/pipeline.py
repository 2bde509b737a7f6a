"""The codec pipeline: the codecs of an array, bound to the description of its chunks.

:class:`CodecChain` encodes and decodes whole chunks. It computes sizes, bounds and dtypes once, when it is
made. Code that reads and replaces single inner chunks of a shard is in :mod:`xzarr3.codecs.sharding`.
Nothing here knows stores, chunk keys or selections.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

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
from xzarr3.dtypes import ZDType
from xzarr3.errors import (
    FOREIGN_ERRORS,
    ChunkDecodeError,
    ChunkEncodeError,
    ChunkError,
    MetadataError,
    Xzarr3Error,
    listed,
    told_by,
)
from xzarr3.tracing.counters import coded, process
from xzarr3.tracing.events import here

if TYPE_CHECKING:
    from xzarr3.codecs.sharding import Shard, ShardingCodec

MAX_CODECS = 64
"""Largest number of codecs in a list. Each codec takes time and may make a chunk larger."""
_SLACK = 2**20  # bytes
COPY_RATE = 8000
"""About how many bytes of a cached file are read in a microsecond."""
_FILTER_RATE = 1000  # bytes that a filter decodes in a microsecond


class Calling:
    """Turns any other exception of a codec, which may come from another package, into a chunk error.

    Parameters
    ----------
    kind : type of ChunkError
    codec : Codec
        The codec that runs or ran last; to be set before each call.
    """

    __slots__ = ("_kind", "codec")

    def __init__(self, kind: type[ChunkError], codec: Any) -> None:
        self._kind, self.codec = kind, codec

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, (Xzarr3Error, MemoryError)):
            raise self._kind(told_by(error), codec=self.codec.name) from error


def most_encoded(size: int) -> int:
    """Upper bound in bytes for ``size`` bytes after any number of bytes to bytes codecs.

    Each codec has a bound of its own. The bounds of many codecs in a row multiply without limit, and so
    would the memory that a few compressed bytes can fill.
    """
    return 2 * size + _SLACK


def _truth_values(array: AnyArray) -> AnyArray:
    """Truth values as the bytes 0 and 1, the only ones that numpy handles correctly.

    Any byte other than 0 means true; some writers store masks of 0 and 255. The check costs half as much as
    a copy of the chunk. A new array is made only if there is such a byte.
    """
    octets = array.view(np.uint8)
    return octets != 0 if octets.size and octets.max() > 1 else array


class CodecChain:
    """The codecs of an array, in order, bound to the description of its chunks.

    Parameters
    ----------
    codecs : tuple of Codec
        Array to array codecs, then one array to bytes codec, then bytes to bytes codecs.
    spec : ChunkSpec
        The chunks before encoding.

    Raises
    ------
    MetadataError
        If the codecs are in another order or cannot encode such chunks.
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
        """About the largest size in bytes that the array to bytes codec returns, without gaps in shards."""
        if len(codecs) > MAX_CODECS:
            raise MetadataError(
                "too many codecs", field="codecs", found=len(codecs), accepted=f"at most {MAX_CODECS}"
            )
        for at, given in enumerate(codecs):
            try:
                if serializer is None and spec.data_type.name == "optional" and not given.takes_optional:
                    raise given.refuses_data_type(spec, "data types without 'optional', or codec 'optional'")
                codec = given.evolve(spec)
                if isinstance(codec, ArrayArrayCodec) and serializer is None:
                    self._filters.append((codec, spec))
                    spec = codec.resolve(spec)
                elif codec.name == "sharding_indexed" and serializer is None:
                    sharding = cast("ShardingCodec", codec)
                    self._shard = sharding.bound(spec)
                    serializer = codec = replace(sharding, codecs=self._shard.inner.codecs)
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
                    f"codec '{given.name}' cannot be used for these chunks: {told_by(error)}",
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
        # Whether a codec decides the shape of the decoded array, so that the shape has to be checked.
        self._shapes_array = bool(self._filters) or self.stored_dtype is None
        # Other writers may set bits that no value of the type uses. Shards clear them in each inner chunk.
        self._settle: Callable[[AnyArray], AnyArray] | None = None
        if self._shard is None and spec.dtype.kind == "b":
            self._settle = _truth_values
        elif self._shard is None and spec.data_type.has_unused_bits:
            self._settle = self._decoded
        # A single compressor without filters may decode directly into the output array.
        alone = self._compressors[0][0] if len(self._compressors) == 1 and not self._filters else None
        floor = None if alone is None else alone.direct_from
        large = floor is not None and self._exact is not None and self._exact >= floor
        self._direct = alone if large and self.stored_dtype == self.spec.dtype else None
        is_bare = not self._filters and not self._compressors
        self.shard: Shard | None = self._shard if is_bare else None
        """The shard layout, if byte ranges of the stored unit are inner chunks of the array; else None."""
        self.is_plain: bool = is_bare and self.stored_dtype is not None
        """Whether the stored unit holds just the elements, so that any byte range can be read alone."""

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of what is decoded alone: a chunk, or of shards an inner chunk."""
        return self.spec.nbytes if self.shard is None else self.shard.inner.chunk_nbytes

    @property
    def filters(self) -> tuple[ArrayArrayCodec, ...]:
        """The array to array codecs, in order."""
        return tuple(codec for codec, _ in self._filters)

    @property
    def decompressors(self) -> tuple[tuple[BytesBytesCodec, int], ...]:
        """The bytes to bytes codecs, the last one first, and the most bytes that each may decode to."""
        return tuple(self._stages)

    @property
    def settles(self) -> bool:
        """Whether stored elements may hold bits that have to be cleared: see :meth:`settle`."""
        return self._settle is not None

    @property
    def largest_stored(self) -> int:
        """Most bytes that a stored unit may have; leaves room for encoders that compress badly."""
        return 2 * self.max_encoded_size + _SLACK

    @property
    def encoded_size(self) -> int | None:
        """Size of every encoded chunk in bytes; None if the size varies."""
        size = self._exact
        for codec, _ in self._compressors:
            size = None if size is None else codec.encoded_size(size)
        return size

    def decode(self, data: Buffer) -> AnyArray:
        """Decode a stored chunk.

        The result may share memory with ``data`` and may be read-only.

        Raises
        ------
        ChunkDecodeError
            If ``data`` do not hold a chunk of this shape and type, or a codec fails in any other way.
        """
        if process.collectors and not here.coding:
            with coded("decode", "decoded") as done:
                array = self.decode(data)
                done(array.nbytes)
                return array
        with Calling(ChunkDecodeError, self._serializer) as call:
            for call.codec, limit in self._stages:
                data = call.codec.decode(data, limit)
            if self.stored_dtype is not None and len(data) == self._stored.nbytes != 0:
                array = np.frombuffer(data, self.stored_dtype).reshape(self._stored.shape)
            else:
                call.codec = self._serializer
                shard = self._shard
                array = call.codec.decode(data, self._stored) if shard is None else shard.decode(data)
            if self._settle is not None:
                array = self._settle(array)
            for call.codec, spec in self._undo:
                array = call.codec.decode(array, spec)
            if self._shapes_array and array.shape != self.spec.shape:
                raise ChunkDecodeError(
                    f"decodes to shape {array.shape}, expected {self.spec.shape}", codec=call.codec.name
                )
        return array

    def _decoded(self, array: AnyArray) -> AnyArray:
        """Clear the unused bits of stored elements and check that all are values of the data type."""
        try:
            return self._stored.data_type.decoded(array)
        except FOREIGN_ERRORS as error:
            raise ChunkDecodeError(str(error), codec=self._serializer.name) from error

    @cached_property
    def everything(self) -> tuple[slice, ...]:
        """The index of all elements of a chunk."""
        return tuple([slice(0, length, 1) for length in self.spec.shape])

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
        """About how many microseconds of reading and decoding a chunk can run beside other threads."""
        if self._shard is not None:
            return self._shard.inner.decode_time
        size = self._stored.nbytes
        filters = size / _FILTER_RATE if self._filters else 0
        return size / COPY_RATE + filters + sum(size / codec.decode_rate for codec, _ in self._compressors)

    def is_direct(self, number: int) -> bool:
        """Whether it pays to use :meth:`decode_into` when ``number`` chunks are read."""
        return self._direct is not None and (number == 1 or self._direct.direct_many)

    def decode_into(self, data: Buffer, out: AnyArray) -> bool:
        """Decode directly into ``out``, a C-contiguous array of the chunk's shape, if that is possible.

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
        with Calling(ChunkDecodeError, codec):
            if not codec.decode_into(data, memoryview(out.reshape(-1).view(np.uint8))):
                return False
        self.settle(out)
        return True

    def settle(self, out: AnyArray) -> None:
        """Normalize stored elements in place: clear unused bits, make truth values 0 or 1.

        Raises
        ------
        ChunkDecodeError
            If an element is not a value of the data type.
        """
        if self._settle is not None:
            settled = self._settle(out)
            if settled is not out:
                out[...] = settled

    def settled(self, array: AnyArray) -> AnyArray:
        """Like :meth:`settle`, but returns a new array if something changes, else ``array`` itself."""
        return array if self._settle is None else self._settle(array)

    def encode(self, array: AnyArray, *, keep_empty: bool = False) -> Buffer:
        """Encode a whole chunk.

        The result may share memory with ``array``.

        Parameters
        ----------
        array : ndarray
            The chunk, of the full chunk shape.
        keep_empty : bool
            Store inner chunks of a shard even if they hold only the fill value.

        Raises
        ------
        ChunkEncodeError
            If a codec cannot encode the chunk.
        """
        if process.collectors and not here.coding:
            with coded("encode", "encoded") as done:
                found = self.encode(array, keep_empty=keep_empty)
                done(array.nbytes)
                return found
        data: Buffer
        with Calling(ChunkEncodeError, self._serializer) as call:
            for call.codec, spec in self._filters:
                array = call.codec.encode(array, spec)
            call.codec = self._serializer
            if self._shard is not None:
                data = self._shard.encode(array, keep_empty=keep_empty)
            else:
                data = call.codec.encode(array, self._stored)
            for call.codec, limit in self._compressors:
                # More bytes could not be decoded again. Elements of no fixed size and long lists of codecs
                # can get here.
                if len(data) > limit:
                    raise ChunkEncodeError(
                        f"found {len(data)} bytes to encode; at most {limit} are possible",
                        codec=call.codec.name,
                    )
                data = call.codec.encode(data)
        return data

    def encoded_pieces(self, array: AnyArray, *, keep_empty: bool = False) -> list[Buffer]:
        """Encode a whole chunk; a shard in consecutive pieces, which saves the copy that joins them."""
        if process.collectors and not here.coding:
            with coded("encode", "encoded") as done:
                pieces = self.encoded_pieces(array, keep_empty=keep_empty)
                done(array.nbytes)
                return pieces
        if self.shard is not None:
            return self.shard.encoded_pieces(array, keep_empty=keep_empty)
        return [self.encode(array, keep_empty=keep_empty)]


@lru_cache(maxsize=256)
def chain_of(codecs: tuple[Codec, ...], shape: tuple[int, ...], data_type: ZDType) -> CodecChain:
    """The codecs bound to chunks of this shape, where none of them uses the fill value."""
    return CodecChain(codecs, ChunkSpec(shape, data_type, data_type.default_scalar()))


def _order_error(codecs: tuple[Codec, ...]) -> MetadataError:
    return MetadataError(
        f"the codecs {listed(c.name for c in codecs)} are in the wrong order",
        field="codecs",
        accepted="array to array codecs, then one array to bytes codec, then bytes to bytes codecs",
    )
