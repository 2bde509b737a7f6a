"""What arrays of one store and joined arrays have in common: all that can be asked of their data.

A subclass says what its elements are (``metadata``), how they are divided (``unit_grid``), and reads a
selection that has been worked out (``read_selected``). Everything else that reads is here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from numbers import Number
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from xzarr3._types import AnyArray, Scalar
from xzarr3.codecs.base import ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec, Codec
from xzarr3.codecs.sharding import Shard
from xzarr3.codecs.transpose import TransposeCodec
from xzarr3.dtypes import Optional, ZDType
from xzarr3.errors import ArgumentTypeError, SelectionError, one_of, printable, short_traceback
from xzarr3.formats import Format
from xzarr3.grid import ChunkLengths, Grid, as_lengths
from xzarr3.io.indexers import Indexer, Parse
from xzarr3.io.plan import ReadPlan
from xzarr3.io.selection import (
    BasicSelection,
    DimChoice,
    Fields,
    Points,
    Selection,
    as_mask,
    basic_selection,
    block_selection,
    coordinate_selection,
    mask_selection,
    numpy_selection,
    orthogonal_selection,
    split_fields,
    vectorized_selection,
)
from xzarr3.model.metadata import ArrayMetadata
from xzarr3.nodes.node import Named
from xzarr3.stores import Store

if TYPE_CHECKING:
    from xzarr3.io.explain import Explanation


@dataclass(frozen=True)
class ChunkTask:
    """Reads one stored unit of an array when called; picklable, for any scheduler.

    Parameters
    ----------
    array : Array or JoinedArray
    coords : tuple of int
        Coordinates of the unit, a shard or an unsharded chunk, in the grid of the array.

    Examples
    --------
    >>> import xzarr3
    >>> array = xzarr3.create_array(xzarr3.MemoryStore(), shape=5, chunks=2, dtype="int8", fill_value=7)
    >>> [(task.selection, task()) for task in array.chunk_tasks()][2]
    ((slice(4, 5, None),), array([7], dtype=int8))
    """

    array: ReadableArray
    coords: tuple[int, ...]

    @property
    def selection(self) -> tuple[slice, ...]:
        """The region of the array that the unit covers."""
        return self.array.unit_grid.region(self.coords, self.array.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        return tuple(part.stop - part.start for part in self.selection)

    @property
    def key(self) -> str:
        """Key of the unit in the store; a joined array has none."""
        key: str = self.array.chunk_key(self.coords)  # type: ignore[attr-defined]
        return key

    def __call__(self) -> AnyArray:
        return self.array.read_chunk(self.coords)


class ReadableArray(Named, ABC):
    """Base class of :class:`Array` and :class:`JoinedArray`: what they are, and all ways to read them."""

    metadata: ArrayMetadata
    store: Store
    format: Format
    _is_decoded: bool = False
    """Whether values are decoded with the attributes that the documents had when the array was opened."""
    _bounded: ReadableArray | None = None
    """The array whose bounds (CF conventions) this array holds; its attribute ``units`` applies here, too."""

    @abstractmethod
    def __dask_tokenize__(self) -> object:
        """What dask names the array by."""

    @property
    def place(self) -> str:
        """Its name and its store, for errors and descriptions."""
        return f"{printable(self.name)} of {self.store}"

    @property
    @abstractmethod
    def waiting(self) -> int:
        """Number of threads that may wait for the store at a time; 0 for a store that answers at once."""

    @property
    def unit_grid(self) -> Grid:
        """The grid of the stored units: shards, or chunks without shards."""
        return self.metadata.chunk_grid

    def read_selected(
        self,
        selection: tuple[DimChoice, ...] | Points,
        fields: Fields | None = None,
        *,
        out: AnyArray | None = None,
        threads: int | None = None,
        plan: ReadPlan | None = None,
    ) -> AnyArray:
        """Read a selection that has been worked out; see :meth:`get`.

        ``plan`` is that of the same selection of an array with the same metadata, if there is one.
        """
        plan = self.plan_selected(selection) if plan is None else plan
        if out is not None:
            self._check_out(out, plan.shape, fields)
        if self.is_optional:
            return self._read_optional(plan, threads)
        result = np.empty(plan.shape, self.dtype) if out is None or fields is not None else out
        self._read_into(result, plan, threads, is_own=result is not out)
        if fields is None:
            return result
        if out is None:
            chosen: AnyArray = result[fields]
            return chosen
        out[...] = result[fields]
        return out

    def _read_optional(self, plan: ReadPlan, threads: int | None) -> AnyArray:
        data_type = self.metadata.data_type
        elements = np.empty(plan.shape, data_type.to_native_dtype())
        self._read_into(elements, plan, threads, is_own=True)
        return data_type.presented(elements)

    @abstractmethod
    def _read_into(self, result: AnyArray, plan: ReadPlan, threads: int | None, *, is_own: bool) -> None:
        """Read what a plan selects into ``result``; ``is_own`` if nobody else has it yet."""

    @abstractmethod
    def plan_selected(self, selection: tuple[DimChoice, ...] | Points) -> ReadPlan:
        """The plan of a read of a selection that has been worked out."""

    @abstractmethod
    def explain_selected(
        self,
        selection: tuple[DimChoice, ...] | Points,
        fields: Fields | None = None,
        threads: int | None = None,
    ) -> Explanation:
        """Tell what a read of a selection that has been worked out fetches; see :meth:`explain`."""

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
        return self.metadata.data_type.value_dtype

    @cached_property
    def is_optional(self) -> bool:
        """Whether elements may have no value."""
        return isinstance(self.metadata.data_type, Optional)

    @property
    def is_masked(self) -> bool:
        """Whether reads return masked arrays: optional elements have a fixed size. Text has None in it."""
        return self.is_optional and not self.zdtype.is_variable

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
        return _lengths(self.unit_grid, self.shape)

    @property
    def chunk_grid(self) -> Grid:
        """The grid of the chunks: of the inner chunks if the array is sharded."""
        return self.unit_grid if self._shard is None else self._shard.grid

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
        return self.unit_grid.counts(self.shape)

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
        fill = None if self.metadata.fill_is_null else self.metadata.fill_value
        data_type = self.metadata.data_type
        return data_type.value(fill) if isinstance(data_type, Optional) else fill

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
        return block_selection(selection, shape, self.unit_grid)

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

    def get_orthogonal_selection(
        self, selection: Selection, *, out: AnyArray | None = None, fields: Fields | None = None
    ) -> Any:
        """Read an orthogonal selection; as ``array.oindex[selection]``, see :attr:`oindex`.

        Parameters as for :meth:`get_basic_selection`; index arrays and masks of one dimension are accepted.
        """
        return self._get(orthogonal_selection, selection, out, fields)

    def get_coordinate_selection(
        self, selection: Selection, *, out: AnyArray | None = None, fields: Fields | None = None
    ) -> AnyArray:
        """Read single elements: one array of indices for each dimension; as ``array.vindex[selection]``.

        Parameters as for :meth:`get_basic_selection`; see :attr:`vindex`. The result has the shape of the
        index arrays, broadcast together; integers alone give an array of one element.
        """
        found: AnyArray = self._get(coordinate_selection, selection, out, fields)
        return found

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
        found: AnyArray = self._get(mask_selection, as_mask(mask), out, fields)
        return found

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

    def _get(self, parse: Parse, selection: Any, out: AnyArray | None, fields: Fields | None) -> Any:
        result = Indexer(self, parse, "").get(with_fields(selection, fields), out=out)
        return result[()] if result.ndim == 0 and out is None else result

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

    def _check_out(self, out: AnyArray, shape: tuple[int, ...], fields: Fields | None) -> None:
        """Refuse an ``out`` that does not fit a result of this shape and these fields."""
        if self.is_optional:
            raise SelectionError(
                f"array '{self.name}' of data type 'optional' cannot be read into an array; leave out 'out'"
            )
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
        values = self.get()
        if np.ma.is_masked(values):  # numpy would take what is below the mask for values.
            raise TypeError(
                f"array '{self.name}' has elements without a value, which no array of {values.dtype} holds; "
                "use array[...].filled(value)"
            )
        return np.ma.getdata(values).astype(dtype or self.dtype, copy=False)

    def __eq__(self, other: object) -> bool:
        """Whether this is the same object. Numbers are refused: False would be no answer of numpy's kind."""
        if isinstance(other, (Number, np.generic, np.ndarray)):
            raise ArgumentTypeError(
                f"{self.place} is not compared with {type(other).__name__}, element by element; "
                "read it first: array[...] == value"
            )
        return super().__eq__(other)

    __hash__ = object.__hash__

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without dimensions")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        size = len(self)
        axis = self.unit_grid.axes[0]
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
        region = self.unit_grid.region(self._check_coords(coords), self.shape)
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


def _lengths(grid: Grid, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The lengths of all chunks of a grid along each dimension."""
    return tuple(axis.lengths(size) for size, axis in zip(shape, grid.axes, strict=True))


def with_fields(selection: Any, fields: Fields | None) -> Any:
    """A selection that also names fields."""
    if fields is None:
        return selection
    return (*(selection if isinstance(selection, tuple) else (selection,)), fields)
