"""The ways to select elements of an array, to read or to write them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from xzarr3._types import AnyArray
from xzarr3.array_properties import ArrayProperties
from xzarr3.errors import short_traceback
from xzarr3.io.indexers import Indexer, Parse
from xzarr3.io.plan import ReadPlan
from xzarr3.io.selection import (
    BasicSelection,
    DimChoice,
    Fields,
    Selection,
    basic_selection,
    block_selection,
    coordinate_selection,
    mask_selection,
    numpy_selection,
    orthogonal_selection,
    vectorized_selection,
)

if TYPE_CHECKING:
    from xzarr3.io.explain import Explanation


class ArraySelections(ArrayProperties):
    """The part of :class:`xzarr3.Array` that selects."""

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


def _with_fields(selection: Any, fields: Fields | None) -> Any:
    """A selection that also names fields."""
    if fields is None:
        return selection
    return (*(selection if isinstance(selection, tuple) else (selection,)), fields)
