"""The array handle: what users index, and what the tasks of dask read from.

Owns the public interface of an array. Reads and writes go to :mod:`xzarr3.io`, documents to
:mod:`xzarr3.nodes`. It knows nothing of how a document or a chunk is encoded.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast

import numpy as np
import numpy.typing as npt

from xzarr3._types import AnyArray, Scalar
from xzarr3.codecs.base import ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec, Codec
from xzarr3.codecs.sharding import Shard
from xzarr3.codecs.transpose import TransposeCodec
from xzarr3.display.shown import Description
from xzarr3.dtypes import Struct, ZDType
from xzarr3.errors import SelectionError, located, one_of, short_traceback
from xzarr3.formats import Format, parse_format
from xzarr3.grid import ChunkLengths, Grid, as_lengths
from xzarr3.io.executor import Engine
from xzarr3.io.indexers import Indexer, Parse
from xzarr3.io.missing import report
from xzarr3.io.plan import ReadPlan
from xzarr3.io.selection import (
    BasicSelection,
    DimChoice,
    Fields,
    Points,
    Selection,
    basic_selection,
    block_selection,
    coordinate_selection,
    mask_selection,
    numpy_selection,
    orthogonal_selection,
    split_fields,
    vectorized_selection,
)
from xzarr3.model.metadata import ArrayMetadata, NodeMetadata
from xzarr3.names import absent_name
from xzarr3.nodes import freshness, pickling, seen
from xzarr3.nodes.consolidated import refresh_copies
from xzarr3.nodes.documents import change_document, with_attributes
from xzarr3.nodes.freshness import note_values, read_steadily, same
from xzarr3.nodes.node import Node
from xzarr3.nodes.pickling import Known
from xzarr3.options import Missing, check_missing
from xzarr3.parallel import asked_threads, parallel_map
from xzarr3.stores import Store

if TYPE_CHECKING:
    from xzarr3.commit.length import Length
    from xzarr3.io.explain import Explanation
    from xzarr3.io.stored_units import Stored


@dataclass(frozen=True)
class ChunkTask:
    """Reads one stored unit of an array when called; picklable, for any scheduler.

    Parameters
    ----------
    array : Array
    coords : tuple of int
        Coordinates of the unit, a shard or an unsharded chunk, in the grid of the array.

    Examples
    --------
    >>> import xzarr3
    >>> array = xzarr3.create_array(xzarr3.MemoryStore(), shape=5, chunks=2, dtype="int8", fill_value=7)
    >>> [(task.selection, task()) for task in array.chunk_tasks()][2]
    ((slice(4, 5, None),), array([7], dtype=int8))
    """

    array: Array
    coords: tuple[int, ...]

    @property
    def selection(self) -> tuple[slice, ...]:
        """The region of the array that the unit covers."""
        return self.array.metadata.chunk_grid.region(self.coords, self.array.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        return tuple(part.stop - part.start for part in self.selection)

    @property
    def key(self) -> str:
        """Key of the unit in the store."""
        return self.array.chunk_key(self.coords)

    def __call__(self) -> AnyArray:
        return self.array.read_chunk(self.coords)


class Array(Node):
    """An array in a store.

    :func:`xzarr3.open_array`, :func:`xzarr3.create_array` and groups make arrays. An array holds no data:
    each selection reads what it needs from the store, and each assignment writes to the store.

    The pickled form has the place of the array and the contents of its documents, about a kilobyte.
    Unpickling makes no requests. Arrays that one process unpickles share the store object.

    Parameters
    ----------
    store : Store
    path : str
        Path of the array in its hierarchy, without a leading ``/``; empty for the root.
    metadata : ArrayMetadata
    format : Format, optional
        Format of the hierarchy; by default that of the metadata.
    read_only : bool
        Refuse every write.
    write_empty_chunks : bool
        Store chunks that hold only the fill value, instead of leaving them out. Those of scalars and of index
        coordinates, which have one dimension of their own name, are always stored.
    missing : {"fill", "warn", "error"}
        What a read does about absent chunks; see :func:`xzarr3.open`.

    Examples
    --------
    >>> import xzarr3
    >>> array = xzarr3.create_array(xzarr3.MemoryStore(), shape=(4, 6), chunks=(2, 3), dtype="float32")
    >>> array[1:3, ::2] = 5
    >>> array[1]
    array([5., 0., 5., 0., 5., 0.], dtype=float32)
    """

    _tag: str | None = None
    """The service's tag for the version of the document that the array was opened from."""
    _is_decoded: bool = False
    """Whether values are decoded with the attributes that the documents had when the array was opened."""
    has_document: bool = True
    """Whether there is or will be a document; False for values that are stored only for a while."""
    _stored: Stored | None = None
    """How much of the array was stored when it was last counted."""
    _bounded: Array | None = None
    """The array whose bounds (CF conventions) this array holds; its attribute ``units`` applies here, too."""

    def __init__(
        self,
        store: Store,
        path: str,
        metadata: ArrayMetadata,
        *,
        format: Format | None = None,
        read_only: bool = False,
        write_empty_chunks: bool = False,
        missing: Missing = "fill",
    ) -> None:
        format = parse_format(metadata.zarr_format) if format is None else format
        super().__init__(store, path, format, read_only=read_only)
        self._known = Known(store, path, format, metadata)
        self._known_at = time.monotonic()
        self._tag = seen.tag(store, self._key)
        self.write_empty_chunks = write_empty_chunks
        self.missing: Missing = check_missing(missing)

    def __getattr__(self, name: str) -> NoReturn:
        hint = "" if name.startswith("_") else absent_name("Array", name)
        raise AttributeError(f"'Array' object has no attribute {name!r}{hint}", name=name, obj=self)

    @cached_property
    def metadata(self) -> ArrayMetadata:  # type: ignore[override]
        """The metadata that this handle last read or wrote."""
        return self._known.metadata

    # What the metadata say

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

    # Descriptions

    @property
    def info(self) -> Description:
        """A description of the array, one line for each property; a notebook shows it with a drawing.

        How much of the array is stored is among them once it was counted: see :meth:`info_complete`.
        """
        return self._describe()

    @short_traceback
    def info_complete(self) -> Description:
        """:attr:`info`, and how much of the array is stored. Asks the store for the size of every unit."""
        from xzarr3.io.stored_units import count_stored

        self._stored = count_stored(self)
        return self.info

    def _describe(self) -> Description:
        from xzarr3.describe import describe_array

        return describe_array(self)

    def nbytes_stored(self) -> int:
        """Bytes that the array takes in the store, its documents included. Asks for the size of every unit.

        Examples
        --------
        >>> import xzarr3
        >>> array = xzarr3.create_array(xzarr3.MemoryStore(), shape=100, dtype="int8", compressors=None)
        >>> before = array.nbytes_stored()
        >>> array[...] = 1
        >>> array.nbytes_stored() - before
        100
        """
        from xzarr3.io.stored_units import count_stored

        keys = self.format.keys(self.path).documents
        documents = parallel_map(self.store.getsize, keys, self.store.concurrency)
        self._stored = count_stored(self)
        return self._stored.nbytes + sum(size for size in documents if size is not None)

    @property
    def nchunks_initialized(self) -> int:
        """Number of chunks that are stored. A stored shard counts with all its chunks within the array.

        Asks the store which units exist. It does not read the indexes of shards, which tell the chunks that a
        shard leaves out.

        Examples
        --------
        >>> import xzarr3
        >>> array = xzarr3.create_array(xzarr3.MemoryStore(), shape=7, chunks=2, shards=4, dtype="int8")
        >>> array[5] = 1
        >>> array.nchunks_initialized, array.nchunks
        (2, 4)
        """
        units = self.stored_units()
        if self._shard is None:
            return sum(1 for _ in units)
        grid, inner = self.metadata.chunk_grid, self._shard.grid
        regions = (grid.region(coords, self.shape) for coords in units)
        return sum(
            math.prod(inner.counts(tuple(part.stop - part.start for part in region))) for region in regions
        )

    def __repr__(self) -> str:
        from xzarr3.describe import array_line

        return array_line(self)

    def __getstate__(self) -> tuple[object, ...]:
        return pickling.state_of(self)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        pickling.restore(self, *state)

    def __dask_tokenize__(self) -> object:
        return freshness.token(self)

    # Selecting

    @short_traceback
    def plan(self, selection: Selection = ...) -> ReadPlan:
        """The plan of a read of ``selection``."""
        return self._indexer.plan(selection)

    @short_traceback
    def explain(self, selection: Selection = ..., *, threads: int | None = None) -> Explanation:
        """Tell what a read of ``selection`` fetches: keys, byte ranges, bytes moved against bytes used.

        Reads the indexes of the touched shards and asks for the sizes of values, but reads no data.
        ``oindex``, ``vindex`` and ``blocks`` have the same method for their selections. See
        :class:`xzarr3.io.explain.Explanation` for what is counted.

        Parameters
        ----------
        selection : int, slice, Ellipsis, array of integers or of truth values, or a tuple of these
            See :meth:`get`.
        threads : int, optional
            The number of threads that the read would use, by default that of :meth:`get`. Threads that share
            a shard each request a part of it.

        Examples
        --------
        >>> import xzarr3
        >>> array = xzarr3.create_array(
        ...     xzarr3.MemoryStore(), shape=(8, 4000), chunks=(4, 4000), dtype="int8", compressors=None
        ... )
        >>> array[...] = 1
        >>> found = array.explain((slice(None), 2))
        >>> found.chunks, found.requests, found.bytes_moved, found.bytes_used
        (2, 8, 8, 8)
        """
        return self._indexer.explain(selection, threads=threads)

    @property
    def _indexer(self) -> Indexer:
        return Indexer(self, numpy_selection, "")

    @property
    def oindex(self) -> Indexer:
        """Orthogonal selections: each index, which may be an array, selects along its own dimension.

        Examples
        --------
        >>> import xzarr3
        >>> array = xzarr3.array(np.arange(12).reshape(3, 4), chunks=2)
        >>> array.oindex[[0, 2], [3, 1]]
        array([[ 3,  1],
               [11,  9]])
        """
        return Indexer(self, orthogonal_selection, "oindex")

    @property
    def vindex(self) -> Indexer:
        """Vectorized selections: arrays and integers select points together, or a mask does.

        The dimensions of the points come first in the result, then those of slices.

        Examples
        --------
        >>> import xzarr3
        >>> array = xzarr3.array(np.arange(12).reshape(3, 4), chunks=2)
        >>> array.vindex[[0, 2], [3, 1]]
        array([3, 9])
        """
        return Indexer(self, vectorized_selection, "vindex")

    @property
    def blocks(self) -> Indexer:
        """Selections of whole stored units, by their coordinates: integers and slices.

        Examples
        --------
        >>> import xzarr3
        >>> array = xzarr3.array(np.arange(12).reshape(3, 4), chunks=2)
        >>> array.blocks[1, 0]
        array([[8, 9]])
        """
        return Indexer(self, self._block_selection, "blocks")

    def _block_selection(self, selection: object, shape: tuple[int, ...]) -> tuple[DimChoice, ...]:
        return block_selection(selection, shape, self.metadata.chunk_grid)

    def get(
        self, selection: Selection = ..., *, out: AnyArray | None = None, threads: int | None = None
    ) -> AnyArray:
        """Read a selection.

        Parameters
        ----------
        selection : int, slice, Ellipsis, array of integers or of truth values, or a tuple of these
            With the meaning that numpy gives them. The name of a field, or a list of names, selects these
            fields of structured elements.
        out : ndarray, optional
            An array to read into. It has the shape of the result and the dtype of the array.
        threads : int, optional
            Largest number of threads. The default is the number of cores in the main thread, and one in any
            other thread and in processes of :mod:`multiprocessing`. Small work uses one thread. Over a store
            with latency the default is its ``concurrency``, in any thread.

        Returns
        -------
        ndarray
            Always an array; it has no dimensions where ``array[selection]`` is a scalar.

        Raises
        ------
        SelectionError
            If the selection does not fit the array.
        StoreError, ChunkDecodeError
            If a chunk that exists, or may exist, cannot be read. An absent chunk reads as the fill value.
        MissingChunksError
            If a chunk is absent and the array was opened with ``missing="error"``. The contents of ``out``
            are then undefined.

        Examples
        --------
        >>> import xzarr3
        >>> array = xzarr3.create_array(xzarr3.MemoryStore(), data=np.arange(6), chunks=4)
        >>> array.get(slice(None, None, -2))
        array([5, 3, 1])
        """
        return self._indexer.get(selection, out=out, threads=threads)

    def __getitem__(self, selection: Selection) -> Any:
        result = self.get(selection)
        return result[()] if result.ndim == 0 else result

    def set(self, selection: Selection, values: npt.ArrayLike, *, threads: int | None = None) -> None:
        """Write to a selection.

        Parameters
        ----------
        selection : int, slice, Ellipsis, array of integers or of truth values, or a tuple of these
            See :meth:`get`. If an element is selected several times, its last value counts.
        values : array_like
            Broadcast to the shape of the selection, as in numpy.
        threads : int, optional
            Largest number of threads; the default is that of :meth:`get`.

        Raises
        ------
        DataTypeValidationError
            If the data type of the array cannot hold the values, such as a NaN among integers.
        SelectionError
            If the shapes do not fit.
        ReadOnlyError, StoreError
            If the store cannot be written.
        """
        self._indexer.set(selection, values, threads=threads)

    def __setitem__(self, selection: Selection, values: npt.ArrayLike) -> None:
        self.set(selection, values)

    # zarr-python's names

    def get_basic_selection(
        self, selection: BasicSelection = ..., *, out: AnyArray | None = None, fields: Fields | None = None
    ) -> Any:
        """Read a selection of integers and slices; as ``array[selection]``, but index arrays are refused.

        Parameters
        ----------
        selection : int, slice, Ellipsis or a tuple of these
        out : ndarray, optional
            An array to read into.
        fields : str or list of str, optional
            The fields of structured elements to read; all by default.

        Raises
        ------
        SelectionError
            If the selection does not fit the array.

        Examples
        --------
        >>> import numpy as np, xzarr3
        >>> array = xzarr3.array(np.arange(12).reshape(3, 4), chunks=2)
        >>> array.get_basic_selection((slice(None), 1))
        array([1, 5, 9])
        """
        return self._get(basic_selection, selection, out, fields)

    def set_basic_selection(
        self, selection: BasicSelection, value: npt.ArrayLike, *, fields: Fields | None = None
    ) -> None:
        """Write to a selection of integers and slices; see :meth:`get_basic_selection`.

        Examples
        --------
        >>> import xzarr3
        >>> array = xzarr3.create_array(xzarr3.MemoryStore(), shape=3, dtype="int8")
        >>> array.set_basic_selection(slice(1, 3), 7)
        >>> array[:]
        array([0, 7, 7], dtype=int8)
        """
        self._set(basic_selection, selection, value, fields)

    def get_orthogonal_selection(
        self, selection: Selection, *, out: AnyArray | None = None, fields: Fields | None = None
    ) -> Any:
        """Read an orthogonal selection; as ``array.oindex[selection]``, see :attr:`oindex`.

        Parameters as for :meth:`get_basic_selection`; index arrays and masks of one dimension are accepted.
        """
        return self._get(orthogonal_selection, selection, out, fields)

    def set_orthogonal_selection(
        self, selection: Selection, value: npt.ArrayLike, *, fields: Fields | None = None
    ) -> None:
        """Write to an orthogonal selection; as ``array.oindex[selection] = value``.

        Examples
        --------
        >>> import numpy as np, xzarr3
        >>> array = xzarr3.zeros((2, 3), dtype="int8")
        >>> array.set_orthogonal_selection(([0, 1], [0, 2]), 5)
        >>> array[:]
        array([[5, 0, 5],
               [5, 0, 5]], dtype=int8)
        """
        self._set(orthogonal_selection, selection, value, fields)

    def get_coordinate_selection(
        self, selection: Selection, *, out: AnyArray | None = None, fields: Fields | None = None
    ) -> AnyArray:
        """Read single elements: one array of indices for each dimension; as ``array.vindex[selection]``.

        Parameters as for :meth:`get_basic_selection`; see :attr:`vindex`. The result has the shape of the
        index arrays, broadcast together; integers alone give an array of one element.
        """
        found: AnyArray = self._get(coordinate_selection, selection, out, fields)
        return found

    def set_coordinate_selection(
        self, selection: Selection, value: npt.ArrayLike, *, fields: Fields | None = None
    ) -> None:
        """Write to single elements; as ``array.vindex[selection] = value``.

        Examples
        --------
        >>> import numpy as np, xzarr3
        >>> array = xzarr3.zeros((2, 3), dtype="int8")
        >>> array.set_coordinate_selection(([0, 1], [0, 2]), [5, 6])
        >>> array[:]
        array([[5, 0, 0],
               [0, 0, 6]], dtype=int8)
        """
        self._set(coordinate_selection, selection, value, fields)

    def get_mask_selection(
        self, mask: npt.ArrayLike, *, out: AnyArray | None = None, fields: Fields | None = None
    ) -> AnyArray:
        """Read the elements for which a mask of the shape of the array is true, in C order.

        Examples
        --------
        >>> import numpy as np, xzarr3
        >>> array = xzarr3.create_array(xzarr3.MemoryStore(), data=np.arange(6).reshape(2, 3), chunks=2)
        >>> array.get_mask_selection([[True, False, True], [False, False, True]])
        array([0, 2, 5])
        """
        found: AnyArray = self._get(mask_selection, np.asarray(mask), out, fields)
        return found

    def set_mask_selection(
        self, mask: npt.ArrayLike, value: npt.ArrayLike, *, fields: Fields | None = None
    ) -> None:
        """Write to the elements for which a mask of the shape of the array is true.

        Examples
        --------
        >>> import numpy as np, xzarr3
        >>> array = xzarr3.zeros((2, 3), dtype="int8")
        >>> array.set_mask_selection(np.eye(2, 3, dtype=bool), 5)
        >>> array[:]
        array([[5, 0, 0],
               [0, 5, 0]], dtype=int8)
        """
        self._set(mask_selection, np.asarray(mask), value, fields)

    def get_block_selection(
        self, selection: BasicSelection, *, out: AnyArray | None = None, fields: Fields | None = None
    ) -> AnyArray:
        """Read whole stored units, by their coordinates; as ``array.blocks[selection]``.

        Parameters as for :meth:`get_basic_selection`. A stored unit is a shard, or a chunk if the array is
        not sharded.

        Examples
        --------
        >>> import numpy as np, xzarr3
        >>> array = xzarr3.array(np.arange(12).reshape(3, 4), chunks=2)
        >>> array.get_block_selection((0, 1))
        array([[2, 3],
               [6, 7]])
        """
        found: AnyArray = self._get(self._block_selection, selection, out, fields)
        return found

    def set_block_selection(
        self, selection: BasicSelection, value: npt.ArrayLike, *, fields: Fields | None = None
    ) -> None:
        """Write to whole stored units; as ``array.blocks[selection] = value``.

        Examples
        --------
        >>> import xzarr3
        >>> array = xzarr3.zeros((2, 3), dtype="int8", chunks=(1, 2))
        >>> array.set_block_selection((1, 0), 5)
        >>> array[:]
        array([[0, 0, 0],
               [5, 5, 0]], dtype=int8)
        """
        self._set(self._block_selection, selection, value, fields)

    def _get(self, parse: Parse, selection: Any, out: AnyArray | None, fields: Fields | None) -> Any:
        result = Indexer(self, parse, "").get(_with_fields(selection, fields), out=out)
        return result[()] if result.ndim == 0 and out is None else result

    def _set(self, parse: Parse, selection: Any, value: npt.ArrayLike, fields: Fields | None) -> None:
        Indexer(self, parse, "").set(_with_fields(selection, fields), value)

    # Reading

    @cached_property
    def engine(self) -> Engine:
        """Reads and writes the stored units."""
        if self._known.store is not self.store:
            self._known = Known(self.store, self.path, self.format, self.metadata)
        return self._known.engine

    @cached_property
    def _key(self) -> str:
        """Key of the document that makes this an array."""
        return self.format.keys(self.path).array

    @short_traceback
    def chunk_key(self, coords: tuple[int, ...]) -> str:
        """Key of a stored unit, given its coordinates in the grid."""
        return self.engine.key(self._check_coords(coords))

    def split(self, selection: Selection) -> tuple[Fields | None, Selection]:
        """Split a selection into the fields that it names, None for all fields, and its elements.

        Raises
        ------
        SelectionError
            If the array has no such field, or a field is named twice.
        """
        if self.dtype.names is None:
            return None, selection
        fields, elements = split_fields(selection)
        named = [] if fields is None else [fields] if isinstance(fields, str) else fields
        for at, name in enumerate(named):
            if name not in self.dtype.names:
                raise SelectionError(
                    f"array '{self.name}' has no field {name!r}; {one_of(name, self.dtype.names)}"
                )
            if name in named[:at]:
                raise SelectionError(f"array '{self.name}': field {name!r} is named twice; name it once")
        return fields, elements

    def read_selected(
        self,
        selection: tuple[DimChoice, ...] | Points,
        fields: Fields | None = None,
        *,
        out: AnyArray | None = None,
        threads: int | None = None,
    ) -> AnyArray:
        """Read a selection that has been worked out; see :meth:`get`."""
        plan = self.engine.plan(selection)
        if out is not None:
            self._check_out(out, plan.shape, fields)
        result = np.empty(plan.shape, self.dtype) if out is None or fields is not None else out
        buffer = plan.buffer_for(result)
        absent: list[tuple[int, ...]] | None = None if self.missing == "fill" else []
        leaves = result is not out

        def read() -> int:
            if absent:  # From an earlier attempt: the read is repeated.
                absent.clear()
            return self.engine.read(plan, buffer, asked_threads(threads), absent, leaves=leaves)

        read_steadily(self, read, plan.number, leaves=leaves)
        if absent:
            report(self, plan.number, absent)
        plan.hand_over(buffer, result)
        if fields is None:
            return result
        if out is None:
            chosen: AnyArray = result[fields]
            return chosen
        out[...] = result[fields]
        return out

    def _check_out(self, out: AnyArray, shape: tuple[int, ...], fields: Fields | None) -> None:
        """Refuse an ``out`` that does not fit a result of this shape and these fields."""
        if not (isinstance(out, np.ndarray) and out.flags.writeable):
            found = "an ndarray that is read-only" if isinstance(out, np.ndarray) else type(out).__name__
            raise SelectionError(f"cannot read into {found}; accepted: an ndarray that can be written to")
        element = np.empty(1, self.dtype) if fields is None else np.empty(1, self.dtype)[fields]
        expected = (*shape, *element.shape[1:])
        if out.shape != expected or out.dtype != element.dtype:
            raise SelectionError(
                f"cannot read {element.dtype} of shape {expected} into {out.dtype} of shape {out.shape}"
            )

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> AnyArray:
        if copy is False:
            raise ValueError("an array in a store cannot be converted without a copy; leave out copy=False")
        return self.get().astype(dtype or self.dtype, copy=False)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without dimensions")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        size = len(self)
        axis = self.metadata.chunk_grid.axes[0]
        for at in range(axis.count(size)):
            start = axis.start(at)
            yield from self[start : min(start + axis.length_at(at), size)]

    def read_chunk(self, coords: tuple[int, ...] | int) -> AnyArray:
        """Read one stored unit: a shard, or a chunk if the array is not sharded.

        Parameters
        ----------
        coords : tuple of int
            Coordinates of the unit in the grid.

        Returns
        -------
        ndarray
            The part of the unit that lies within the array; units at the upper edges give a smaller array.
        """
        region = self.metadata.chunk_grid.region(self._check_coords(coords), self.shape)
        return self.get(region, threads=1)

    @short_traceback
    def chunk_tasks(self, selection: Selection = ...) -> Iterator[ChunkTask]:
        """One task for each stored unit that ``selection`` touches, in C order; a task reads a whole unit."""
        for coords in self.plan(selection).coords():
            yield ChunkTask(self, coords)

    def _check_coords(self, coords: tuple[int, ...] | int) -> tuple[int, ...]:
        counts = self.shard_grid_shape
        try:
            found = as_lengths(coords)
        except TypeError as error:
            raise SelectionError(
                f"not the coordinates of a chunk of array '{self.name}': {coords!r}; accepted: integers"
            ) from error
        if len(found) != len(counts) or not all(0 <= at < n for at, n in zip(found, counts, strict=True)):
            raise SelectionError(
                f"no chunk {found} in array '{self.name}', whose grid has {counts} chunks; accepted: for "
                "each dimension a number from 0 to the last one"
            )
        return found

    # Writing

    def write_selected(
        self,
        selection: tuple[DimChoice, ...] | Points,
        values: npt.ArrayLike,
        fields: Fields | None = None,
        *,
        threads: int | None = None,
    ) -> None:
        """Write to a selection that has been worked out; see :meth:`set`."""
        self._check_writable()
        if self.store.concurrency > 1 and self.store.versions([self._key])[0] is None:
            self._check_to_write()
        else:
            self._check_current()
        self._write(selection, values, fields, threads)

    def _write(
        self,
        selection: tuple[DimChoice, ...] | Points,
        values: npt.ArrayLike,
        fields: Fields | None = None,
        threads: int | None = None,
    ) -> None:
        plan = self.engine.plan(selection)
        names: tuple[str, ...] = ()
        if fields is None:
            fitted = self.fitted(values, plan.shape)
        else:
            names = (fields,) if isinstance(fields, str) else tuple(fields)
            fitted = self._fitted_fields(values, plan.shape, fields)
        threads = asked_threads(threads)
        try:
            self.engine.write(plan, plan.source(fitted), threads, keep_empty=self._keeps_empty, fields=names)
        finally:
            self._stored = None
            note_values(self)

    def _fitted_fields(self, values: npt.ArrayLike, shape: tuple[int, ...], fields: Fields) -> AnyArray:
        """Elements whose ``fields`` are set to ``values``, converted and broadcast."""
        types = dict(cast("Struct", self.metadata.data_type).fields)
        elements = np.zeros(shape, self.dtype)
        if not isinstance(fields, str):
            several = Struct(tuple((name, types[name]) for name in fields))
            given = self._fitted(values, shape, several)
            for name, of in zip(fields, given.dtype.names or (), strict=True):
                elements[name] = given[of]
        else:
            elements[fields] = self._fitted(values, shape, types[fields])
        return elements

    @property
    def _keeps_empty(self) -> bool:
        """Whether to store units that hold only the fill value."""
        return self.write_empty_chunks or self.metadata.fill_is_null or self._is_always_stored

    @property
    def _is_always_stored(self) -> bool:
        """Whether it is a scalar or an index coordinate, whose values are never left out.

        They are few, and a reader that asks for missing chunks to be errors would refuse the whole dataset.
        """
        return not self.shape or self.dimension_names == (self.basename,)

    def _cast(self, values: npt.ArrayLike, data_type: ZDType) -> AnyArray:
        with located(path=self.path):
            return data_type.cast_array(values)

    def fitted(self, values: npt.ArrayLike, shape: tuple[int, ...]) -> AnyArray:
        """``values`` converted to the data type and broadcast to a selection of this shape.

        Raises
        ------
        DataTypeValidationError, SelectionError
            If the data type cannot hold them or the shapes do not fit.
        """
        return self._fitted(values, shape, self.metadata.data_type)

    def _fitted(self, values: npt.ArrayLike, shape: tuple[int, ...], data_type: ZDType) -> AnyArray:
        if not shape and self.dtype.kind == "O" and not isinstance(values, np.ndarray):
            single = np.empty((), self.dtype)  # One element, which may be a list.
            single[()] = values
            values = single
        given = self._cast(values, data_type)
        while given.ndim > len(shape) and given.shape[0] == 1:
            given = given[0]
        if given.shape == shape:
            return given
        try:
            return np.broadcast_to(given, shape)
        except ValueError as error:
            raise SelectionError(
                f"cannot write values of shape {given.shape} to a selection of shape {shape} of array "
                f"'{self.name}'"
            ) from error

    @short_traceback
    def resize(self, shape: int | tuple[int, ...]) -> None:
        """Change the shape, in place.

        New elements hold the fill value. Elements beyond the new shape are erased: growing the array again
        does not restore them. The same holds for what another writer, which does not know the new shape yet,
        writes beyond the end. Nothing that it writes within the new shape is lost.

        If a dimension of a rectilinear grid grows beyond its last chunk, it gets more chunks of the longest
        length, and a last chunk for the rest. If it shrinks, it keeps its chunks.

        Parameters
        ----------
        shape : tuple of int
            The new length of each dimension.
        """
        from xzarr3.commit import append as lengths

        lengths.resize(self, shape)

    @short_traceback
    def append(self, data: npt.ArrayLike, axis: int = 0) -> tuple[int, ...]:
        """Add ``data`` at the end of the array along ``axis``.

        The data are written before the document. So a reader sees all data or none, also after a crash.
        If several writers append or resize at the same time, they take turns, and the data of one append stay
        together. An append waits up to :data:`xzarr3.commit.lease.PATIENCE` seconds, less than a minute, for
        the lease of a writer that died on another host.

        Do not append in a task: a scheduler may repeat the task, and a repeated append adds the data twice.
        Resize the array first, and let the tasks write to regions of it.

        Returns
        -------
        tuple of int
            The new shape.

        Raises
        ------
        ConflictError
            If other writers kept changing the length for the ``conflict_deadline`` of the store. Then
            nothing is added.
        OutcomeUnknownError
            If the store did not answer, and its contents do not tell whether the data were added.
        """
        from xzarr3.commit import append as lengths

        lengths.append(self, data, axis)
        return self.shape

    @short_traceback
    def stored_units(
        self, region: BasicSelection = ..., shape: tuple[int, ...] | None = None, grid: Grid | None = None
    ) -> Iterator[tuple[int, ...]]:
        """The coordinates of the units that exist in the store and lie between the ends of ``region``.

        ``shape`` and ``grid`` are those of the array by default.
        """
        from xzarr3.io.stored_units import stored_units

        return stored_units(self, region, shape, grid)

    def _over(self, length: Length, metadata: ArrayMetadata) -> Array:
        """This array with other metadata, and a store that writes only while the lease holds."""
        keeps_empty = self.write_empty_chunks or length.keeps_empty
        return Array(length.store, self.path, metadata, format=self.format, write_empty_chunks=keeps_empty)

    def _check_not_being_replaced(self) -> str:
        """Raise if a writer is just replacing the array; returns what else is known of its absence."""
        from xzarr3.commit.lease import check_complete

        return check_complete(self.store, self.path, f"array '{self.name}'")

    def _check_shape(self, found: ArrayMetadata) -> None:
        freshness.check_shape(self, found)

    def _check_to_write(self) -> None:
        freshness.check_to_write(self)

    def _check_current(self, version: object | None = None) -> None:
        freshness.check_current(self, version)

    def _change_attributes(self, change: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
        self._check_writable()

        def changed(found: NodeMetadata) -> NodeMetadata:
            return with_attributes(same(self, found), change, self.path)

        key = self.format.keys(self.path).attributes(array=True)
        self._change_document(key, changed)
        refresh_copies(self.store, self.format, self.path)

    def _change_document(
        self, key: str, change: Callable[[NodeMetadata], NodeMetadata], **options: Any
    ) -> None:
        self._adopt(change_document(self.store, self.format, self.path, key, change, **options))

    def _adopt(self, metadata: NodeMetadata) -> None:
        """Take over the metadata that are stored now."""
        self.metadata = cast("ArrayMetadata", metadata)
        self._stored = None
        self._known = Known(self.store, self.path, self.format, self.metadata)
        self._known_at = time.monotonic()
        self.__dict__.pop("engine", None)


def _lengths(grid: Grid, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The lengths of all chunks of a grid along each dimension."""
    return tuple(axis.lengths(size) for size, axis in zip(shape, grid.axes, strict=True))


def _with_fields(selection: Any, fields: Fields | None) -> Any:
    """A selection that also names fields."""
    if fields is None:
        return selection
    return (*(selection if isinstance(selection, tuple) else (selection,)), fields)
