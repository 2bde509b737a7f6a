"""What the metadata of an array say: its shape, data type, chunks, shards and codecs. No request is made."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, Literal

import numpy as np

from xzarr3._types import Scalar
from xzarr3.codecs.base import ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec, Codec
from xzarr3.codecs.sharding import Shard
from xzarr3.codecs.transpose import TransposeCodec
from xzarr3.dtypes import ZDType
from xzarr3.grid import ChunkLengths, Grid
from xzarr3.model.metadata import ArrayMetadata
from xzarr3.nodes.node import Node


class ArrayProperties(Node):
    """The part of :class:`xzarr3.Array` that describes it."""

    metadata: ArrayMetadata

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each dimension."""
        return self.metadata.shape

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.metadata.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.metadata.shape)

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype of the values read, in the byte order of this machine."""
        dtype: np.dtype[Any] = self.metadata.data_type.to_native_dtype()
        return dtype

    @property
    def zdtype(self) -> ZDType:
        """The Zarr data type."""
        return self.metadata.data_type

    @property
    def nbytes(self) -> int:
        """Size of all elements in memory, in bytes."""
        return self.size * self.dtype.itemsize

    @cached_property
    def _shard(self) -> Shard | None:
        return self.metadata.chain.shard

    @property
    def chunks(self) -> ChunkLengths:
        """Shape of a chunk, which is decoded as a whole; of an inner chunk if the array is sharded.

        If the chunks of a rectilinear grid differ, the lengths of the chunks along each dimension.
        """
        return self.write_chunks if self._shard is None else self._shard.grid.chunk_shape

    @property
    def shards(self) -> ChunkLengths | None:
        """Shape of a shard, or None if the array is not sharded.

        If the shards differ, their lengths along each dimension.
        """
        return None if self._shard is None else self.write_chunks

    @property
    def write_chunks(self) -> ChunkLengths:
        """Shape of a stored unit: of a shard, or of a chunk if the array is not sharded.

        If the units of a rectilinear grid differ, their lengths along each dimension, in the form of dask.

        Examples
        --------
        >>> import xzarr3
        >>> array = xzarr3.create_array(xzarr3.MemoryStore(), shape=(4, 6), chunks=(3, [1, 5]), dtype="int8")
        >>> array.write_chunks
        ((3, 1), (1, 5))
        """
        return self.metadata.chunk_grid.chunk_lengths(self.shape)

    @property
    def read_chunk_sizes(self) -> tuple[tuple[int, ...], ...]:
        """Lengths of all chunks along each dimension, in the form of dask; of inner chunks if sharded.

        Examples
        --------
        >>> import xzarr3
        >>> array = xzarr3.create_array(xzarr3.MemoryStore(), shape=7, chunks=2, shards=4, dtype="int8")
        >>> array.read_chunk_sizes, array.write_chunk_sizes
        (((2, 2, 2, 1),), ((4, 3),))
        """
        return _lengths(self.chunk_grid, self.shape)

    @property
    def write_chunk_sizes(self) -> tuple[tuple[int, ...], ...]:
        """Lengths of all stored units along each dimension: of shards, or of chunks if not sharded.

        Examples
        --------
        >>> import xzarr3
        >>> xzarr3.zeros(7, chunks=2, shards=4).write_chunk_sizes
        ((4, 3),)
        """
        return _lengths(self.metadata.chunk_grid, self.shape)

    @property
    def chunk_grid(self) -> Grid:
        """The grid of the chunks: of the inner chunks if the array is sharded."""
        return self.metadata.chunk_grid if self._shard is None else self._shard.grid

    @property
    def cdata_shape(self) -> tuple[int, ...]:
        """Number of chunks along each dimension; of inner chunks if the array is sharded.

        Examples
        --------
        >>> import xzarr3
        >>> array = xzarr3.create_array(
        ...     xzarr3.MemoryStore(), shape=(10, 4), chunks=(2, 2), shards=(4, 4), dtype="int8"
        ... )
        >>> array.cdata_shape, array.shard_grid_shape
        ((5, 2), (3, 1))
        """
        return self.chunk_grid.counts(self.shape)

    @property
    def nchunks(self) -> int:
        """Number of chunks of the grid, absent ones included; of inner chunks if the array is sharded.

        Examples
        --------
        >>> import xzarr3
        >>> array = xzarr3.zeros(7, chunks=2, shards=4)
        >>> array.nchunks, array.nshards
        (4, 2)
        """
        return math.prod(self.cdata_shape)

    @property
    def shard_grid_shape(self) -> tuple[int, ...]:
        """Number of stored units along each dimension: of shards, or of chunks if not sharded.

        Examples
        --------
        >>> import xzarr3
        >>> xzarr3.zeros((10, 4), chunks=2, shards=4).shard_grid_shape
        (3, 1)
        """
        return self.metadata.chunk_grid.counts(self.shape)

    @property
    def nshards(self) -> int:
        """Number of stored units of the grid, absent ones included: shards, or chunks if not sharded.

        Examples
        --------
        >>> import xzarr3
        >>> xzarr3.zeros((10, 4), chunks=2, shards=4).nshards, xzarr3.zeros(10, chunks=5).nshards
        (3, 2)
        """
        return math.prod(self.shard_grid_shape)

    @property
    def order(self) -> Literal["C", "F"]:
        """The order in which the elements of a chunk are stored: "F" if their dimensions are reversed.

        Examples
        --------
        >>> import xzarr3
        >>> options = {"shape": (4, 6), "dtype": "int8"}
        >>> [xzarr3.create_array(xzarr3.MemoryStore(), order=order, **options).order for order in "CF"]
        ['C', 'F']
        """
        turned = tuple(range(self.ndim))[::-1]
        first = self._codecs[0]
        is_reversed = self.ndim > 1 and isinstance(first, TransposeCodec) and tuple(first.order) == turned
        return "F" if is_reversed else "C"

    @property
    def fill_value(self) -> Scalar | None:
        """Value of elements that were never written; None if the document has none."""
        return None if self.metadata.fill_is_null else self.metadata.fill_value

    @property
    def dimension_names(self) -> tuple[str | None, ...] | None:
        """Names of the dimensions, or None if the document has none."""
        return self.metadata.dimension_names

    @property
    def _codecs(self) -> tuple[Codec, ...]:
        """The codecs of a chunk: of an inner chunk if the array is sharded."""
        return self.metadata.codecs if self._shard is None else self._shard.inner.codecs

    @property
    def filters(self) -> tuple[ArrayArrayCodec, ...]:
        """The array-to-array codecs of a chunk."""
        return tuple(codec for codec in self._codecs if isinstance(codec, ArrayArrayCodec))

    @property
    def serializer(self) -> ArrayBytesCodec:
        """The array-to-bytes codec of a chunk."""
        return next(codec for codec in self._codecs if isinstance(codec, ArrayBytesCodec))

    @property
    def compressors(self) -> tuple[BytesBytesCodec, ...]:
        """The bytes-to-bytes codecs of a chunk."""
        return tuple(codec for codec in self._codecs if isinstance(codec, BytesBytesCodec))


def _lengths(grid: Grid, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The lengths of all chunks of a grid along each dimension."""
    return tuple(axis.lengths(size) for size, axis in zip(shape, grid.axes, strict=True))
