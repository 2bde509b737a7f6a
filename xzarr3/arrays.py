"""The array handle: what users index, and what the tasks of dask read from.

Owns the public interface of an array. Reads and writes go to :mod:`xzarr3.io`, documents to
:mod:`xzarr3.nodes`. It knows nothing of how a document or a chunk is encoded.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np
import numpy.typing as npt

from xzarr3._types import AnyArray, Buffer
from xzarr3.display.shown import Description
from xzarr3.dtypes import Struct, ZDType
from xzarr3.errors import SelectionError, Xzarr3Error, located, short_traceback
from xzarr3.formats import Format, parse_format
from xzarr3.grid import Grid
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
    as_mask,
    basic_selection,
    coordinate_selection,
    mask_selection,
    orthogonal_selection,
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
from xzarr3.readable import ReadableArray, with_fields
from xzarr3.stores import Store

if TYPE_CHECKING:
    from xzarr3.commit.length import Length
    from xzarr3.io.chunk_cache import ChunkCache
    from xzarr3.io.explain import Explanation
    from xzarr3.io.stored_units import Stored


class Array(ReadableArray, Node):
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
    has_document: bool = True
    """Whether there is or will be a document; False for values that are stored only for a while."""
    _had_document: bool = False
    """Whether there was one when this handle was made: without it, the array was erased."""
    _compared: list[Buffer | None] | None = None
    """The stored documents that this handle was compared with, where they are looked at after each read."""
    _stored: Stored | None = None
    """How much of the array was stored when it was last counted."""
    _owns_ends = False
    """Whether nobody else stores elements past the end of the array."""
    _bounded: Array | None = None
    chunk_cache: ChunkCache | None = None
    """Keeps decoded chunks for later reads; see :func:`xzarr3.open`."""

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
        self._known_at, self._opened_at = time.monotonic(), seen.opened_at(store, self._key)
        self._tag = seen.tag(store, self._key)
        self.write_empty_chunks = write_empty_chunks
        self.missing: Missing = check_missing(missing)

    def __getattr__(self, name: str) -> NoReturn:
        hint = "" if name.startswith("_") else absent_name("Array", name)
        if not hint and not name.startswith("_") and hasattr(np.ndarray, name):
            hint = f"; read it first, as in array[...].{name}"
        raise AttributeError(f"'Array' object has no attribute {name!r}{hint}", name=name, obj=self)

    @cached_property
    def metadata(self) -> ArrayMetadata:  # type: ignore[override]
        """The metadata that this handle last read or wrote."""
        return self._known.metadata

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
        self._set(mask_selection, as_mask(mask), value, fields)

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

    def _set(self, parse: Parse, selection: Any, value: npt.ArrayLike, fields: Fields | None) -> None:
        Indexer(self, parse, "").set(with_fields(selection, fields), value)

    # Reading

    @cached_property
    def engine(self) -> Engine:
        """Reads and writes the stored units."""
        if self._known.store is not self.store:
            self._known = Known(self.store, self.path, self.format, self.metadata)
        return self._known.engine

    @property
    def waiting(self) -> int:
        """Number of threads that may wait for the store at a time; 0 for a store that answers at once."""
        return self.engine.waiting

    def plan_selected(self, selection: tuple[DimChoice, ...] | Points) -> ReadPlan:
        """The plan of a read of a selection that has been worked out."""
        return self.engine.plan(selection)

    def explain_selected(
        self,
        selection: tuple[DimChoice, ...] | Points,
        fields: Fields | None = None,
        threads: int | None = None,
    ) -> Explanation:
        """Tell what a read of a selection that has been worked out fetches; see :meth:`explain`."""
        from xzarr3.io.explain import explain

        return explain(self, self.engine.plan(selection), fields, threads)

    @cached_property
    def _key(self) -> str:
        """Key of the document that makes this an array."""
        return self.format.keys(self.path).array

    @short_traceback
    def chunk_key(self, coords: tuple[int, ...]) -> str:
        """Key of a stored unit, given its coordinates in the grid."""
        return self.engine.key(self._check_coords(coords))

    def _read_into(self, result: AnyArray, plan: ReadPlan, threads: int | None, *, is_own: bool) -> None:
        """Read what a plan selects into ``result``; ``is_own`` if nobody else has it yet."""
        if self.chunk_cache is not None:
            chunked = self.chunk_cache.plan(self.engine, plan)
            if chunked is not None:
                self.read_kept([(chunked, result)], threads)
                return
        buffer = plan.buffer_for(result)
        absent: list[tuple[int, ...]] | None = None if self.missing == "fill" else []

        def read() -> int:
            if absent:  # From an earlier attempt: the read is repeated.
                absent.clear()
            return self.engine.read(plan, buffer, asked_threads(threads), absent, leaves=is_own)

        read_steadily(self, read, plan.number, leaves=is_own)
        if absent:
            report(self, plan.number, absent)
        plan.hand_over(buffer, result)

    def read_kept(self, wanted: Sequence[tuple[ReadPlan, AnyArray]], threads: int | None = None) -> None:
        """Carry out plans of :meth:`xzarr3.ChunkCache.plan`, each into a result, by one look at the cache."""
        from xzarr3.io.chunk_cache import Look

        cache = cast("ChunkCache", self.chunk_cache)
        plans = [plan for plan, _ in wanted]
        buffers = [plan.buffer_for(result) for plan, result in wanted]
        absent: list[tuple[int, ...]] = []
        units = 0

        def read() -> int:
            nonlocal units
            absent.clear()  # From an earlier attempt: the read is repeated.
            look = Look(cache, self.engine, plans)
            units = len(look.units)
            return look.read(buffers, asked_threads(threads), absent)

        read_steadily(self, read, len(plans) + 1)
        if absent and self.missing != "fill":
            report(self, units, absent)
        for (plan, result), buffer in zip(wanted, buffers, strict=True):
            plan.hand_over(buffer, result)

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
        confirm, owns_ends = freshness.confirming(self)
        self._write(selection, values, fields, threads, confirm, self._owns_ends or owns_ends)

    def _write(
        self,
        selection: tuple[DimChoice, ...] | Points,
        values: npt.ArrayLike,
        fields: Fields | None = None,
        threads: int | None = None,
        confirm: Callable[[], None] = lambda: None,
        owns_ends: bool = True,
    ) -> None:
        plan = self.engine.plan(selection)
        names: tuple[str, ...] = ()
        if fields is None:
            fitted = self.fitted(values, plan.shape)
        else:
            names = (fields,) if isinstance(fields, str) else tuple(fields)
            fitted = self._fitted_fields(values, plan.shape, fields)
        threads = asked_threads(threads)
        options: Any = {"keep_empty": self._keeps_empty, "fields": names, "confirm": confirm}
        try:
            self.engine.write(plan, plan.source(fitted), threads, owns_ends=owns_ends, **options)
            confirm()
        except Xzarr3Error:
            confirm()  # What was replaced meanwhile cannot be written: report the change instead.
            raise
        finally:
            self._stored = None
            note_values(self)

    def _fitted_fields(self, values: npt.ArrayLike, shape: tuple[int, ...], fields: Fields) -> AnyArray:
        """Elements whose ``fields`` are set to ``values``, converted and broadcast."""
        types = dict(cast("Struct", self.metadata.data_type).fields)
        elements = np.zeros(shape, self.dtype)
        if not isinstance(fields, str):
            several = Struct(tuple((name, types[name]) for name in fields))
            given = self.fitted(values, shape, several)
            for name, of in zip(fields, given.dtype.names or (), strict=True):
                elements[name] = given[of]
        else:
            elements[fields] = self.fitted(values, shape, types[fields])
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

    def fitted(
        self, values: npt.ArrayLike, shape: tuple[int, ...], data_type: ZDType | None = None
    ) -> AnyArray:
        """``values`` converted to the data type and broadcast to a selection of this shape.

        The data type is that of the array by default; that of fields is another.

        Raises
        ------
        DataTypeValidationError, SelectionError
            If the data type cannot hold them or the shapes do not fit.
        """
        if not shape and self.dtype.kind == "O" and not isinstance(values, np.ndarray):
            single = np.empty((), self.dtype)  # One element, which may be a list.
            single[()] = values
            values = single
        given = self._cast(values, data_type or self.metadata.data_type)
        while given.ndim > len(shape) and given.shape[0] == 1:
            given = given[0, ...]  # An array also where a scalar is left.
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

        Raises
        ------
        ChangedError
            If the array was replaced since it was opened, or if it was appended to and the shape, which is
            no shorter than that of this handle, would cut off what was appended.
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

    def _check_to_write(self) -> bool:
        return freshness.check_to_write(self)

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
