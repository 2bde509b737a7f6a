"""Arrays: what users index, and what dask's tasks read from."""

from __future__ import annotations

import hashlib
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from xzarr3 import changes, looks
from xzarr3._types import AnyArray, Buffer, Scalar
from xzarr3.codecs.base import ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec, Codec
from xzarr3.codecs.sharding import Shard
from xzarr3.commit.lease import LeaseLostError, check_complete
from xzarr3.commit.length import Length, turn
from xzarr3.concurrency import asked_threads, spread
from xzarr3.conventions import coding, recoded
from xzarr3.dtypes import Struct, ZDType
from xzarr3.dtypes.structs import FieldArray
from xzarr3.engine import Engine
from xzarr3.errors import (
    ChangedError,
    MetadataError,
    OutcomeUnknownError,
    SelectionError,
    StoreError,
    Xzarr3Error,
    listed,
    printable,
    shorten,
)
from xzarr3.explanation import Explanation
from xzarr3.formats import Format, ZarrFormat, documents, format_of, name_of, parse_format
from xzarr3.formats.base import Held
from xzarr3.grids import ChunkLengths, Edges, Grid, as_lengths
from xzarr3.indexers import Indexer, block_indexer
from xzarr3.indexing import (
    BasicSelection,
    DimChoice,
    Fields,
    Points,
    Selection,
    basic_selection,
    numpy_selection,
    orthogonal_selection,
    split_fields,
    vectorized_selection,
)
from xzarr3.lookup import read_documents, read_held
from xzarr3.metadata import ArrayMetadata, NodeMetadata
from xzarr3.missing import Describe, Missing, check_missing, report
from xzarr3.node_documents import change_document, copies_to_follow, refresh_consolidated, with_attributes
from xzarr3.nodes import Node, ancestors
from xzarr3.plan import ReadPlan
from xzarr3.recipes import Known, known
from xzarr3.stores import Store

if TYPE_CHECKING:
    from xzarr3.codecs.sharding import ShardingCodec
    from xzarr3.codecs.transpose import TransposeCodec

_FEW_UNITS = 4096  # Up to so many, asking the store for each is cheaper than listing it.
_FEW_RUNS = 64  # Of chunks of one length; more are not spelled out in a description.
MOST_STAMPED = 1024
"""Units of storage, or directories of them, up to which dask's names tell of a change of each one."""
_ATTEMPTS = 3  # To read one version of an array that is being changed.
_SOME = 256  # Of more, so many are looked at.


@dataclass(frozen=True)
class ChunkTask:
    """Reads one chunk of an array when called; picklable, for any scheduler.

    Parameters
    ----------
    array : Array
    coords : tuple of int
        Coordinates of the chunk in the grid of the array's write units.

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
        """The part of the array that the chunk covers."""
        return self.array.metadata.chunk_grid.region(self.coords, self.array.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        return tuple(part.stop - part.start for part in self.selection)

    @property
    def key(self) -> str:
        """Key of the chunk in the store."""
        return self.array.chunk_key(self.coords)

    def __call__(self) -> AnyArray:
        return self.array.read_chunk(self.coords)


class Array(Node):
    """An array in a store.

    Arrays are made by :func:`xzarr3.open_array`, :func:`xzarr3.create_array` and groups. They hold no
    data: each selection reads from the store what it needs, each assignment writes.

    Pickled, an array is where it is and what its documents say, about a kilobyte; reading it back asks the
    store for nothing. Arrays of one process that were read from such pickles share the store object.

    Parameters
    ----------
    store : Store
    path : str
        Path of the array in its hierarchy, without a leading ``/``; empty for the root.
    metadata : ArrayMetadata
    format : Format, optional
        How the hierarchy is stored; by default what the metadata say.
    read_only : bool
        Refuse every write.
    write_empty_chunks : bool
        Store chunks that hold only the fill value as well, instead of leaving them out.
    missing : {"fill", "warn", "error"}
        What a read does about units of storage that are absent; see :func:`xzarr3.open`.

    Examples
    --------
    >>> import xzarr3
    >>> array = xzarr3.create_array(xzarr3.MemoryStore(), shape=(4, 6), chunks=(2, 3), dtype="float32")
    >>> array[1:3, ::2] = 5
    >>> array[1]
    array([5., 0., 5., 0., 5., 0.], dtype=float32)
    """

    _tag: str | None = None
    """What a service called the version of the document that the array was opened from."""
    _is_decoded: bool = False
    """Whether what is read is decoded by what the documents said when the array was opened."""
    has_document: bool = True
    """Whether there is a document, or will be: not of values that are put aside for a while."""
    _bounded: Array | None = None
    """The array whose units are those of this one, which holds the bounds of its values."""

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
        self._tag = store.tag(self._key)
        self.write_empty_chunks = write_empty_chunks
        self.missing: Missing = check_missing(missing)

    # What it is

    @cached_property
    def metadata(self) -> ArrayMetadata:  # type: ignore[override]
        """What the documents say, as far as this handle knows."""
        return self._known.metadata

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
        """The numpy dtype of what is read, in the byte order of this machine."""
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
        """Shape of a chunk, the unit of decoding; of an inner chunk if the array is sharded.

        Where the chunks of a rectilinear grid differ, the lengths of the chunks along each dimension.
        """
        return self.write_chunks if self._shard is None else self._shard.grid.chunk_shape

    @property
    def shards(self) -> ChunkLengths | None:
        """Shape of a shard, or None if the array is not sharded; where shards differ, as ``chunks``."""
        return None if self._shard is None else self.write_chunks

    @property
    def write_chunks(self) -> ChunkLengths:
        """Shape of a unit of storage: of a shard, or of a chunk if the array is not sharded.

        Where the units of a rectilinear grid differ, their lengths along each dimension, as dask has them.

        Examples
        --------
        >>> import xzarr3
        >>> array = xzarr3.create_array(xzarr3.MemoryStore(), shape=(4, 6), chunks=(3, [1, 5]), dtype="int8")
        >>> array.write_chunks
        ((3, 1), (1, 5))
        """
        return self.metadata.chunk_grid.chunk_lengths(self.shape)

    @property
    def cdata_shape(self) -> tuple[int, ...]:
        """Number of units of storage along each dimension."""
        return self.metadata.chunk_grid.counts(self.shape)

    @property
    def nchunks(self) -> int:
        """Number of units of storage, stored or not."""
        return math.prod(self.cdata_shape)

    @property
    def fill_value(self) -> Scalar | None:
        """Value of elements that were never written; None if the document leaves it open."""
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
        """The codecs of a chunk from arrays to arrays."""
        return tuple(codec for codec in self._codecs if isinstance(codec, ArrayArrayCodec))

    @property
    def serializer(self) -> ArrayBytesCodec:
        """The codec of a chunk from arrays to bytes."""
        return next(codec for codec in self._codecs if isinstance(codec, ArrayBytesCodec))

    @property
    def compressors(self) -> tuple[BytesBytesCodec, ...]:
        """The codecs of a chunk from bytes to bytes."""
        return tuple(codec for codec in self._codecs if isinstance(codec, BytesBytesCodec))

    @property
    def info(self) -> str:
        """A description of the array, a line for each property."""
        units = self._described_units()
        chunks = units if self._shard is None else shorten(self.chunks)
        shard = [] if self._shard is None else [("shards", units)]
        rows = [
            ("name", self.name),
            ("format", f"{self.zarr_format}"),
            ("shape", f"{self.shape}"),
            ("data type", self.zdtype.name),
            ("dimensions", f"{self.dimension_names}"),
            ("chunks", chunks),
            *shard,
            ("fill value", f"{self.fill_value}"),
            ("codecs", ", ".join(codec.name for codec in self._codecs)),
            ("size", f"{self.nbytes} bytes in {self.nchunks} units of storage"),
            ("store", f"{self.store}"),
        ]
        return "\n".join(f"{label:<12}{printable(text)}" for label, text in rows)

    def _described_units(self) -> str:
        """The shape of the units of storage; of very many that differ, how many there are of each length."""
        grid = self.metadata.chunk_grid
        if grid.is_regular or sum(self.cdata_shape) <= _FEW_UNITS:
            return shorten(self.write_chunks)
        axes = (Edges(axis.runs[:_FEW_RUNS]) if isinstance(axis, Edges) else axis for axis in grid.axes)
        return shorten([axis.to_json() for axis in axes])

    def info_complete(self) -> str:
        """What :attr:`info` says, and how much of the array is stored, for which every unit is looked at."""
        store = self.engine.store

        def size_of(coords: tuple[int, ...]) -> int | None:
            return store.getsize(self.engine.key(coords))

        few = self.nchunks <= _FEW_UNITS
        units = itertools.product(*map(range, self.cdata_shape)) if few else self.stored_units()
        sizes = [found for found in spread(size_of, units, store.concurrency) if found is not None]
        number, size = len(sizes), sum(sizes)
        return f"{self.info}\n{'stored':<12}{size} bytes in {number} units of storage"

    def __repr__(self) -> str:
        return f"<xzarr3.Array {printable(self.name)} shape={self.shape} dtype={self.dtype}>"

    def __reduce__(self) -> tuple[object, ...]:
        special: tuple[object, ...] = ()
        if self._tag or self._is_decoded or not self.has_document:
            special = self._tag, self._is_decoded, self._bounded, self.has_document
        return _restore, (
            self.store, self.path, name_of(self.format), self._known.text,
            self.read_only, self.write_empty_chunks, self.missing, *special,
        )  # fmt: skip

    def __dask_tokenize__(self) -> object:
        stamps: tuple[object, object] = self._tag, changes.last(self.store, self.path).mark
        if self._tells_changes:
            stamps = self.store.stamp([self._key]), self._stamps()
        if all(isinstance(stamp, list) for stamp in stamps):  # Of which dask would look at every number.
            stamps = hashlib.blake2b(repr(stamps).encode(), digest_size=16).hexdigest(), None
        place = self.store.identity, self.store._told_apart()
        token = "xzarr3.Array", place, self.path, self._known.text, stamps
        options: list[str] = [] if self.missing == "fill" else [self.missing]
        if self._bounded is not None:
            options.append(repr(coding(self._bounded.metadata)))
        return (*token, *options)

    def note_values(self) -> None:
        """Note that this process changes values, for dask's names where the store cannot tell."""
        if not self._tells_changes:
            changes.note_values(self.store, self.path)

    @property
    def _tells_changes(self) -> bool:
        """Whether dask's names tell of every change of values that :meth:`_stamps` can notice.

        Where the store cannot tell, they are made of what the documents said when the array was opened, and
        of what this process has written.
        """
        return self.store.tells_changes and self.engine.store.tells_changes

    def _stamps(self) -> object:
        """What changes whenever the values of units do, at the price of no more than about a thousand looks.

        Where there are few units, each one is looked at. Of more, all directories that they lie in are, as a
        file that is replaced or erased changes its directory; and some of the files, as there are programs
        that write into files in place: what these do elsewhere is missed, which :func:`xzarr3.from_zarr` says
        and which a write that is taken up again does not rely on. Where the directories are very
        many as well, or there are none, some of them are looked at and the root, which each write of ours
        changes, even one of another array.
        """
        # Storage transformers may keep the values under other keys, or somewhere else.
        counts, key, store = self.cdata_shape, self.engine.key, self.engine.store
        if math.prod(counts) <= MOST_STAMPED:
            return store.stamp(_Made(lambda: map(key, _sample(counts, MOST_STAMPED))))
        many = math.prod(counts[:-1]) > MOST_STAMPED
        rows = _sample(counts[:-1], _SOME if many else MOST_STAMPED)
        folders = _Made(lambda: dict.fromkeys(key((*at, 0)).rpartition("/")[0] for at in rows))
        stamps = [store.stamp(folders), store.stamp(_Made(lambda: map(key, _sample(counts, _SOME))))]
        if not all(isinstance(stamp, list) for stamp in stamps):
            return stamps
        looked_at: Any = stamps[0]
        if many or not any(looked_at):
            stamps.append(store.stamp([""]))
        return stamps

    # Reading

    @cached_property
    def engine(self) -> Engine:
        """What reads and writes the units of storage."""
        if self._known.store is not self.store:
            self._known = Known(self.store, self.path, self.format, self.metadata)
        return self._known.engine

    @cached_property
    def _key(self) -> str:
        """Key of the document that makes this an array."""
        return self.format.array_key(self.path)

    def chunk_key(self, coords: tuple[int, ...]) -> str:
        """Key in the store of a unit of storage, given its coordinates in the grid."""
        return self.engine.key(self._check_coords(coords))

    def plan(self, selection: Selection = ...) -> ReadPlan:
        """What reading ``selection`` would touch."""
        return self._indexer.plan(selection)

    def explain(self, selection: Selection = ..., *, threads: int | None = None) -> Explanation:
        """What reading ``selection`` fetches: keys, byte ranges, bytes moved against bytes used.

        The indexes of the shards that are touched are read, and the sizes of values are asked for, but no
        data are. ``oindex``, ``vindex`` and ``blocks`` explain the same of their selections. See
        :class:`xzarr3.explanation.Explanation` for what is counted.

        Parameters
        ----------
        selection : int, slice, Ellipsis, array of integers or of truth values, or a tuple of these
            As :meth:`get` has them.
        threads : int, optional
            As many as would read, by default those of :meth:`get`: several that share one shard each ask for
            a part of it.

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
        return Indexer(self, numpy_selection)

    @property
    def oindex(self) -> Indexer:
        """Orthogonal selections: each index, which may be an array, stands for itself.

        Examples
        --------
        >>> import xzarr3
        >>> array = xzarr3.create_array(xzarr3.MemoryStore(), data=np.arange(12).reshape(3, 4), chunks=2)
        >>> array.oindex[[0, 2], [3, 1]]
        array([[ 3,  1],
               [11,  9]])
        """
        return Indexer(self, orthogonal_selection)

    @property
    def vindex(self) -> Indexer:
        """Vectorized selections: arrays and integers select points together, or a mask does.

        The dimensions of the points come first in the result, then those of slices.

        Examples
        --------
        >>> import xzarr3
        >>> array = xzarr3.create_array(xzarr3.MemoryStore(), data=np.arange(12).reshape(3, 4), chunks=2)
        >>> array.vindex[[0, 2], [3, 1]]
        array([3, 9])
        """
        return Indexer(self, vectorized_selection)

    @property
    def blocks(self) -> Indexer:
        """Selections of whole units of storage, by their coordinates: integers and slices.

        Examples
        --------
        >>> import xzarr3
        >>> array = xzarr3.create_array(xzarr3.MemoryStore(), data=np.arange(12).reshape(3, 4), chunks=2)
        >>> array.blocks[1, 0]
        array([[8, 9]])
        """
        return Indexer(self, block_indexer(self))

    def get(
        self, selection: Selection = ..., *, out: AnyArray | None = None, threads: int | None = None
    ) -> AnyArray:
        """Read a selection.

        Parameters
        ----------
        selection : int, slice, Ellipsis, array of integers or of truth values, or a tuple of these
            As numpy understands them. The name of a field, or a list of names, among them selects these
            fields of elements that have several.
        out : ndarray, optional
            An array of the shape of the result and this data type, to read into.
        threads : int, optional
            At most so many threads; by default as many as there are cores in the main thread, and one in any
            other and in processes of :mod:`multiprocessing`. Small work is not shared. Over a store whose
            answers have to be waited for, by default its ``concurrency``, in any thread.

        Returns
        -------
        ndarray
            Always an array; of no dimensions where ``array[selection]`` is a scalar.

        Raises
        ------
        SelectionError
            If the selection does not fit.
        StoreError, ChunkDecodeError
            If a chunk is there, or may be, and cannot be read. A chunk that is absent is the fill value.
        MissingChunksError
            If a chunk is absent and the array was opened with ``missing="error"``. What ``out`` holds then
            is undefined.

        Examples
        --------
        >>> import xzarr3
        >>> array = xzarr3.create_array(xzarr3.MemoryStore(), data=np.arange(6), chunks=4)
        >>> array.get(slice(None, None, -2))
        array([5, 3, 1])
        """
        return self._indexer.get(selection, out=out, threads=threads)

    def split(self, selection: Selection) -> tuple[Fields | None, Selection]:
        """The fields that a selection names, None for all, and its elements.

        Raises
        ------
        SelectionError
            If the array has no such field, or one is named twice.
        """
        if self.dtype.names is None:
            return None, selection
        fields, elements = split_fields(selection)
        named = [] if fields is None else [fields] if isinstance(fields, str) else fields
        for at, name in enumerate(named):
            if name not in self.dtype.names:
                raise SelectionError(
                    f"array '{self.name}' has no field {name!r}; accepted: {listed(self.dtype.names)}"
                )
            if name in named[:at]:
                raise SelectionError(f"array '{self.name}': field {name!r} is named twice; accepted: once")
        return fields, elements

    def read_selected(
        self,
        selection: tuple[DimChoice, ...] | Points,
        fields: Fields | None = None,
        *,
        out: AnyArray | None = None,
        threads: int | None = None,
        describe: Describe | None = None,
    ) -> AnyArray:
        """Read a selection that is worked out already; see :meth:`get`.

        ``describe`` puts parts of the array into words where chunks of them are absent.
        """
        plan = self.engine.plan(selection)
        if out is not None:
            self._check_out(out, plan.shape, fields)
        result = np.empty(plan.shape, self.dtype) if out is None or fields is not None else out
        buffer = plan.buffer_for(result)
        absent: list[tuple[int, ...]] | None = None if self.missing == "fill" else []
        leaves = result is not out

        def read() -> int:
            if absent:  # What is read again.
                absent.clear()
            return self.engine.read(plan, buffer, asked_threads(threads), absent, leaves=leaves)

        self.read_steadily(read, plan.number, leaves=leaves)
        if absent:
            report(self, plan.number, absent, describe)
        plan.hand_over(buffer, result)
        if fields is None:
            return result
        if out is None:
            chosen: AnyArray = result[fields]
            return chosen
        out[...] = result[fields]
        return out

    def _check_out(self, out: AnyArray, shape: tuple[int, ...], fields: Fields | None) -> None:
        """Refuse what a selection of this shape, or these fields of it, cannot be read into."""
        if not (isinstance(out, np.ndarray) and out.flags.writeable):
            found = "an ndarray that is read-only" if isinstance(out, np.ndarray) else type(out).__name__
            raise SelectionError(f"cannot read into {found}; accepted: an ndarray that can be written to")
        element = np.empty(1, self.dtype) if fields is None else np.empty(1, self.dtype)[fields]
        expected = (*shape, *element.shape[1:])
        if out.shape != expected or out.dtype != element.dtype:
            raise SelectionError(
                f"cannot read {element.dtype} of shape {expected} into {out.dtype} of shape {out.shape}"
            )

    def __getitem__(self, selection: Selection) -> Any:
        result = self.get(selection)
        return result[()] if result.ndim == 0 else result

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> AnyArray:
        if copy is False:
            raise ValueError("an array in a store cannot be had without a copy")
        return self.get().astype(dtype or self.dtype, copy=False)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array of no dimensions")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        size = len(self)
        axis = self.metadata.chunk_grid.axes[0]
        for at in range(axis.count(size)):
            start = axis.start(at)
            yield from self[start : min(start + axis.length_at(at), size)]

    def read_chunk(self, coords: tuple[int, ...] | int) -> AnyArray:
        """Read one unit of storage: a shard, or a chunk if the array is not sharded.

        Parameters
        ----------
        coords : tuple of int
            Coordinates in the grid of these units.

        Returns
        -------
        ndarray
            The part that lies within the array, so that those at the upper edges are smaller.
        """
        region = self.metadata.chunk_grid.region(self._check_coords(coords), self.shape)
        return self.get(region, threads=1)

    def chunk_tasks(self, selection: Selection = ...) -> Iterator[ChunkTask]:
        """The tasks that read the units of storage which ``selection`` touches, whole, in C order."""
        for coords in self.plan(selection).coords():
            yield ChunkTask(self, coords)

    def _check_coords(self, coords: tuple[int, ...] | int) -> tuple[int, ...]:
        counts = self.cdata_shape
        try:
            found = as_lengths(coords)
        except TypeError as error:
            raise SelectionError(
                f"not coordinates of a chunk of array '{self.name}': {coords!r}; accepted: integers"
            ) from error
        if len(found) != len(counts) or not all(0 <= at < n for at, n in zip(found, counts, strict=True)):
            raise SelectionError(f"no chunk {found} in array '{self.name}', whose grid has {counts} chunks")
        return found

    # Writing

    def set(self, selection: Selection, values: npt.ArrayLike, *, threads: int | None = None) -> None:
        """Write to a selection.

        Parameters
        ----------
        selection : int, slice, Ellipsis, array of integers or of truth values, or a tuple of these
            As :meth:`get` has them. Of an element that is selected several times the last value stays.
        values : array_like
            Broadcast to the shape of the selection, as numpy does.
        threads : int, optional
            At most so many threads; by default as many as there are cores in the main thread, and one in any
            other and in processes of :mod:`multiprocessing`. Small work is not shared. Over a store whose
            answers have to be waited for, by default its ``concurrency``, in any thread.

        Raises
        ------
        DataTypeValidationError
            If the array's data type cannot hold the values: a NaN or a fraction among integers, say.
        SelectionError
            If the shapes do not fit.
        ReadOnlyError, StoreError
            If the store cannot be written.
        """
        self._indexer.set(selection, values, threads=threads)

    def write_selected(
        self,
        selection: tuple[DimChoice, ...] | Points,
        values: npt.ArrayLike,
        fields: Fields | None = None,
        *,
        threads: int | None = None,
        left_out: list[tuple[int, ...]] | None = None,
    ) -> None:
        """Write to a selection that is worked out already; see :meth:`set`.

        ``left_out`` gets the coordinates of the units that are not stored, as they hold the fill value only.
        """
        self._check_writable()
        if self.store.concurrency > 1 and self.store.version(self._key) is None:
            self._check_to_write()
        else:
            self._check_current()
        self._write(selection, values, fields, threads, left_out)

    def _write(
        self,
        selection: tuple[DimChoice, ...] | Points,
        values: npt.ArrayLike,
        fields: Fields | None = None,
        threads: int | None = None,
        left_out: list[tuple[int, ...]] | None = None,
    ) -> None:
        plan = self.engine.plan(selection)
        names: tuple[str, ...] = ()
        if fields is None:
            spread = self.fitted(values, plan.shape)
        else:
            names = (fields,) if isinstance(fields, str) else tuple(fields)
            spread = self._fitted_fields(values, plan.shape, fields)
        threads = asked_threads(threads)
        try:
            self.engine.write(
                plan,
                plan.source(spread),
                threads,
                keep_empty=self._keeps_empty,
                fields=names,
                left_out=left_out,
            )
        finally:
            self.note_values()

    def _fitted_fields(self, values: npt.ArrayLike, shape: tuple[int, ...], fields: Fields) -> AnyArray:
        """Elements of the array of which these fields are set to ``values``, converted and broadcast."""
        types = dict(cast("Struct", self.metadata.data_type).fields)
        elements = np.zeros(shape, self.dtype)
        if not isinstance(fields, str):
            several = Struct(tuple((name, types[name]) for name in fields))
            given = self._fitted(values, shape, several)
            for name, of in zip(fields, given.dtype.names or (), strict=True):
                elements[name] = given[of]
        elif isinstance(block := types[fields], FieldArray):
            elements[fields] = self._fitted(values, (*shape, *block.shape), block.item)
        else:
            elements[fields] = self._fitted(values, shape, types[fields])
        return elements

    @property
    def _keeps_empty(self) -> bool:
        """Whether units are stored that hold only the fill value."""
        return self.write_empty_chunks or self.metadata.fill_is_null

    def __setitem__(self, selection: Selection, values: npt.ArrayLike) -> None:
        self.set(selection, values)

    def _cast(self, values: npt.ArrayLike, data_type: ZDType) -> AnyArray:
        try:
            return data_type.cast_array(values)
        except MetadataError as error:
            error.at(path=self.path)
            raise

    def fitted(self, values: npt.ArrayLike, shape: tuple[int, ...]) -> AnyArray:
        """``values`` as they are written to a selection of this shape: converted and broadcast.

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
                f"cannot write values of shape {given.shape} to a selection of shape {shape}"
            ) from error

    def resize(self, shape: int | tuple[int, ...]) -> None:
        """Change the shape, in place.

        Where the array grows, it holds the fill value. What is cut off is erased: growing again does
        not bring it back, nor what others, who do not know of it yet, write beyond the end. Of what they
        write within the new shape nothing is lost. A dimension of a rectilinear grid that grows beyond its
        last chunk gets more chunks, as long as the longest one and the last as long as what is left; one
        that shrinks keeps its chunks.

        Parameters
        ----------
        shape : tuple of int
            The new length of each dimension.
        """
        self._check_writable()
        try:
            new = as_lengths(shape)
        except TypeError as error:
            raise SelectionError(f"not a shape: {shape!r}; accepted: {self.ndim} integers") from error
        if len(new) != self.ndim or any(length < 0 for length in new):
            raise SelectionError(f"array '{self.name}' of shape {self.shape} cannot get shape {new}")
        self._with_lease(partial(self._resize, new))

    def _with_lease(self, change: Callable[[Length], None]) -> None:
        """Change the shape as the only one who does, and again if that could not be kept up."""
        deadline = time.monotonic() + self.store.conflict_deadline
        prefix = self.format.chunk_prefix(self.path) if self.path else ""
        with turn(self.store, self._key):
            while True:
                try:
                    with Length(self.store, prefix, self._key, deadline) as length:
                        change(length)
                    break
                except LeaseLostError:
                    if time.monotonic() >= deadline:
                        raise
        self._refresh_copies()

    def _resize(self, shape: tuple[int, ...], length: Length) -> None:
        stored = self._at_first(length)
        resized = self._resized(stored, shape)
        old = self._over(length, stored)
        # A write or an append that was cut off may have left something where the array is going to be.
        old._erase_beyond(tuple(map(max, shape, stored.shape)), resized.chunk_grid, may_list=True)
        shrinks = any(now < then for now, then in zip(shape, stored.shape, strict=True))

        def change(found: NodeMetadata) -> NodeMetadata:
            return self._resized(self._same(found, stored.shape), shape)

        self._change_document(self._key, change, length=length)
        if shrinks:
            # Whoever has taken the lease away may have added to the array already. What is left beyond its
            # end is erased when it grows.
            with suppress(LeaseLostError):
                self._over(length, resized)._erase_beyond(stored.shape, resized.chunk_grid)

    def _at_first(self, length: Length) -> ArrayMetadata:
        """What the document said when the lease had been taken."""
        name = self._key.rpartition("/")[2]
        held = {self._key: documents.decode(length.document, self.path, name)}
        if not self.format.one_document:
            keys = self.format.reading_keys(self.path, consolidated=False)
            others = [key for key in keys if key != self._key]
            found = zip(others, read_documents(self.store, others, self.path), strict=True)
            held.update({key: document for key, document in found if document is not None})
        found_here = self.format.held(self.path, held)
        return self._same(None if found_here is None else self.format.parse_again(found_here, self.path))

    def _over(self, length: Length, metadata: ArrayMetadata) -> Array:
        """This array with other metadata, which writes as long as the lease holds."""
        keeps_empty = self.write_empty_chunks or length.keeps_empty
        return Array(length.store, self.path, metadata, format=self.format, write_empty_chunks=keeps_empty)

    def _resized(self, stored: ArrayMetadata, shape: tuple[int, ...]) -> ArrayMetadata:
        """The metadata for another shape."""
        grid = stored.chunk_grid.resized(shape, _inner_shape(stored.codecs, len(shape)))
        return replace(stored, shape=shape, chunk_grid=grid)

    def _erase_beyond(self, old: tuple[int, ...], grid: Grid, *, may_list: bool = False) -> None:
        """Erase what was within the shape ``old``, which ``grid`` divides, and is beyond the present one.

        With ``may_list``, not in a store that cannot list, if there are too many units to ask for each.
        """
        for axis, new in enumerate(self.shape):
            if new >= old[axis]:
                continue
            # Along the axes before this one, what is beyond the shape is erased already.
            region = tuple(
                slice(new, old[axis])
                if at == axis
                else slice(min(self.shape[at], old[at]) if at < axis else old[at])
                for at in range(self.ndim)
            )
            if may_list and not self.engine.store.listable and not _are_few(region, old, grid):
                continue
            beyond = []
            for coords in self.stored_units(region, old, grid):
                start = grid.axes[axis].start(coords[axis])
                if start >= new:
                    beyond.append(self.engine.key(coords))
                else:
                    lengths = grid.chunk_shape_at(coords)
                    inner = tuple(
                        slice(new - start if at == axis else 0, n, 1) for at, n in enumerate(lengths)
                    )
                    self.engine.clear(coords, inner, keep_empty=self._keeps_empty)
            if beyond:
                self.engine.store.erase_values(beyond)

    def stored_units(
        self, region: BasicSelection = ..., shape: tuple[int, ...] | None = None, grid: Grid | None = None
    ) -> Iterator[tuple[int, ...]]:
        """The coordinates of those units that are stored and lie between the ends of ``region``.

        The shape and the grid are those of the array, if no others are given.
        """
        shape, grid = shape or self.shape, grid or self.metadata.chunk_grid
        bounds = _unit_bounds(region, shape, grid)
        store = self.engine.store
        if math.prod(map(len, bounds)) <= _FEW_UNITS:
            few = list(itertools.product(*bounds))
            there = spread(store.exists, [self.engine.key(coords) for coords in few], store.concurrency)
            yield from itertools.compress(few, there)
            return
        # Of many units, most of which may never have been written, the store is asked what there is.
        prefix, keys = self.engine.prefix, self.metadata.chunk_key_encoding
        for key in list(self.engine.store.list_prefix(prefix)):
            found = keys.coords(key[len(prefix) :], self.ndim)
            if found is not None and all(at in bound for at, bound in zip(found, bounds, strict=True)):
                yield found

    def append(self, data: npt.ArrayLike, axis: int = 0) -> tuple[int, ...]:
        """Add ``data`` behind the array along ``axis``.

        The data are written before the document, so that a reader, or a crash, sees all or nothing. Of
        several who append or resize at the same time one goes first, and the others wait; the data of one
        stay together. Who was killed on another host meanwhile is waited for
        :data:`xzarr3.commit.lease.PATIENCE` seconds, less than a minute.

        Done twice it adds twice, so it is nothing for a task, which a scheduler may repeat: there, resize
        the array first and have the tasks write to regions of it.

        Returns
        -------
        tuple of int
            The new shape.

        Raises
        ------
        ConflictError
            If others kept changing the length for the ``conflict_deadline`` of the store. Nothing is added
            then.
        OutcomeUnknownError
            If no answer came from the store, and what is there does not tell whether the data were added.
        """
        self._check_writable()
        values = self._cast(data, self.metadata.data_type)
        if not -self.ndim <= axis < self.ndim:
            raise SelectionError(
                f"axis {axis} is out of bounds for array '{self.name}' of {self.ndim} dimensions"
            )
        self._with_lease(partial(self._append, values, axis % self.ndim))
        return self.shape

    def _append(self, values: AnyArray, axis: int, length: Length) -> None:
        stored = self._at_first(length)
        old = stored.shape
        fits = values.ndim == self.ndim and all(
            at == axis or values.shape[at] == old[at] for at in range(self.ndim)
        )
        if not fits:
            raise SelectionError(
                f"cannot append shape {values.shape} to '{self.name}' of shape {old} along axis {axis}"
            )
        shape = tuple(n + values.shape[at] if at == axis else n for at, n in enumerate(old))
        grown = self._over(length, self._resized(stored, shape))

        def change(found: NodeMetadata) -> NodeMetadata:
            return self._resized(self._same(found, old), shape)

        try:
            region = (slice(None),) * axis + (slice(old[axis], None),)
            grown._write(basic_selection(region, shape), values)
            self._change_document(self._key, change, length=length)
        except (LeaseLostError, OutcomeUnknownError, ChangedError):
            raise  # What is behind the array is no matter of ours any more.
        except BaseException as error:
            try:
                self._over(length, stored)._erase_beyond(shape, grown.metadata.chunk_grid)
            except StoreError as another:
                error.add_note(f"what was written behind the array could not be erased: {another}")
            raise

    def _stored(self) -> ArrayMetadata:
        """What the stored document says now, which another handle may have changed.

        Raises
        ------
        ChangedError
            If it is gone, or of an array that is stored in another way.
        """
        return self._same_as(read_held(self.store, self.format, self.path, consolidated=False))

    def _same_as(self, held: Held | None) -> ArrayMetadata:
        return self._same(None if held is None else self.format.parse_again(held, self.path))

    def _same(self, found: NodeMetadata | None, shape: tuple[int, ...] | None = None) -> ArrayMetadata:
        """Refuse metadata that are not of this array any more, or of another shape, if one is given."""
        if not isinstance(found, ArrayMetadata) or not found.stores_as(self.metadata):
            raise ChangedError(
                f"array '{self.name}' of {self.store} was removed or replaced since it was opened; "
                "accepted: opening it again"
            )
        if shape is not None and found.shape != shape:  # By somebody who does not know of leases.
            raise LeaseLostError(
                f"array '{self.name}' of {self.store} got shape {found.shape} while its shape {shape} was "
                "being changed; accepted: one who changes it at a time"
            )
        return found

    def _check_current(self, version: object | None = None) -> None:
        """Refuse to go on if the array was replaced since it was opened, if the store can tell at once.

        The version of its document may have been asked for already.
        """
        known = self._known
        version = self.store.version(self._key) if version is None else version
        if version is None or version == known.version:
            return
        coding_version = self._coding_version(version)
        held = read_held(self.store, self.format, self.path, consolidated=False)
        opened, known.held = known.held, None
        if held is None or opened is None or repr(held) != repr(opened):  # Where 0.0 is not -0.0.
            found = self._same_as(held)
            self._check_shape(found)
            known.recoded = recoded(found, self.metadata)
        known.version, known.coding_version = version, coding_version

    def _coding_version(self, version: object) -> object:
        """Tells versions apart of what values are decoded by, given that of the array's document."""
        attributes = self.format.attributes_key(self.path, array=True)
        return version if attributes == self._key else (version, self.store.version(attributes))

    def _check_coding(self) -> None:
        """Refuse values that are decoded in another way by now, if the store can tell that at once."""
        known, version = self._known, self.store.version(self._key)
        if version is None:
            return
        version = self._coding_version(version)
        if version != known.coding_version:
            held = read_held(self.store, self.format, self.path, consolidated=False)
            known.recoded = recoded(self._same_as(held), self.metadata)
            known.coding_version = version
        if known.recoded is not None:
            raise self._decoded_otherwise(known.recoded)

    def _decoded_otherwise(self, how: str) -> ChangedError:
        return ChangedError(
            f"array '{self.name}' of {self.store} was replaced since it was opened, and what is stored now "
            f"would be decoded wrongly: {how}; accepted: opening it again, with consolidated=False if it was "
            "opened from consolidated metadata that are out of date"
        )

    def _check_shape(self, found: ArrayMetadata) -> None:
        if any(now < then for now, then in zip(found.shape, self.shape, strict=True)):
            raise StoreError(
                f"array '{self.name}' of {self.store} has shape {found.shape} now and had {self.shape} when "
                "it was opened; accepted: opening it again"
            )

    def read_steadily(self, read: Callable[[], int], number: int, *, leaves: bool = False) -> int:
        """Read units that are all of one version of the array, or else raise.

        Whoever replaces an array takes its document away first and stores the new one last, which no other
        one is equal to. So all that was read is of one version if the document is the same afterwards as it
        was at any time before. If it has changed, all is read again: it may have been an attribute, or the
        length. Where answers are waited for, a document that was seen :data:`xzarr3.looks.RECENT` seconds ago
        is good enough for one unit that was there.

        Parameters
        ----------
        read : callable
            Reads, and returns how many units were not there.
        number : int
            How many units it reads.
        leaves : bool
            As :meth:`xzarr3.engine.Engine.read` has it.

        Raises
        ------
        ChangedError
            If the array was removed or replaced since it was opened, or others kept changing its document.
        IncompleteWriteError
            If it is just being replaced.
        """
        if not self.has_document:
            return read()
        for _ in range(_ATTEMPTS):
            if number > 1 or self._known.version is None:
                version = self.store.version(self._key)
                if version is None:
                    missing, is_steady = self._read_looking(read, number, leaves)
                    if is_steady:
                        return missing
                    continue
                self._check_current(version)
            before = self._known.version
            try:
                missing = read()
            except Xzarr3Error:  # What was replaced may well be unreadable.
                self._check_current()
                raise
            version = self.store.version(self._key)
            if version is None:
                raise self._vanished()
            if version != before:
                self._check_current(version)
            if self._is_decoded:
                for array in self._decoded_like:
                    array._check_coding()
            if version == before:
                return missing
        raise ChangedError(
            f"array '{self.name}' of {self.store} was replaced, or its document changed, each of the "
            f"{_ATTEMPTS} times that it was read; accepted: the same again, once nobody writes to it"
        )

    def _read_looking(self, read: Callable[[], int], number: int, leaves: bool) -> tuple[int, bool]:
        """Read where it takes a request to look at the document; and whether all is of one version."""
        own = looks.noted(self.store, self._key)
        before = own or self._noted_above(number)
        if before is None and (number > 1 or self.store.concurrency <= 1):
            own = before = self._look_at_own()
        due = [array for array in self._decoded_like if array._needs_look()]
        later = number > 1 and self in due and len(self._looked_at) == 1
        if later:  # It is looked at after the chunks anyway.
            due.remove(self)
        try:
            missing = self._read_and_look(read, due, leaves)
        except Xzarr3Error:
            if later:
                self._look_at_own()
            raise
        if number <= 1 and not missing:
            return missing, True
        after = self._look_at_own()
        if before is None:
            return missing, False
        return missing, after == before if own else after.mark == before.mark

    def _noted_above(self, number: int) -> looks.Note | None:
        """What was read of a document that may hold a copy of this one, and is then stored with it.

        It may not have been, and then all is read again, which is not for several rounds of requests.
        """
        if number > self.store.concurrency:
            return None
        keys = [self.format.consolidated_key(above) for above in ancestors(self.path)]
        found = (looks.noted(self.store, key) for key in keys if key is not None)
        return next((note for note in found if note is not None), None)

    def _vanished(self) -> Xzarr3Error:
        more = check_complete(self.store, self.path, f"array '{self.name}'")
        return ChangedError(
            f"array '{self.name}' of {self.store} vanished: the document that was there when it was opened "
            f"is gone{more}; accepted: opening it again once it has been written"
        )

    def _read_and_look(self, read: Callable[[], int], due: Sequence[Array], leaves: bool) -> int:
        """Read, and look meanwhile at documents that have to be looked at."""
        if not due:
            return read()

        def tried(work: Callable[[], object]) -> object:
            try:
                return work()
            except Xzarr3Error as error:
                return error

        works: list[Callable[[], object]] = [read, *(array._look for array in due)]
        found = spread(tried, works, 1 + len(due), leaves=leaves)
        for outcome in (*found[1:], found[0]):  # What was replaced may well be unreadable.
            if isinstance(outcome, Xzarr3Error):
                raise outcome
        return cast("int", found[0])

    @property
    def _decoded_like(self) -> tuple[Array, ...]:
        """The arrays by whose documents values are decoded, this one first."""
        return (self,) if self._bounded is None else (self, self._bounded)

    @cached_property
    def _looked_at(self) -> tuple[str, ...]:
        """The keys of the documents that are looked at by those who read."""
        attributes = self.format.attributes_key(self.path, array=True)
        return (self._key, attributes) if self._is_decoded and attributes != self._key else (self._key,)

    def _needs_look(self) -> bool:
        """Whether the documents have to be looked at; what was seen of them a moment ago is checked."""
        seen = looks.last(self.store, self._looked_at)
        changed = changes.last(self.store, self.path).documents  # By this process.
        if seen is not None and seen.tells and seen.time >= max(self._known_at, changed):
            self._check_seen(seen)
            return False
        return changed > self._known_at or time.monotonic() - self._known_at >= looks.RECENT

    def _look(self, keys: tuple[str, ...] | None = None) -> looks.Note:
        """Look at the documents that tell how values are decoded, or at some of them, and compare them."""
        keys = keys or self._looked_at
        seen = looks.look(self.store, keys, self._parsed)
        if seen.note is None:
            raise self._vanished()
        self._check_seen(seen, coded=keys == self._looked_at)
        return seen.note

    def _look_at_own(self) -> looks.Note:
        """Look at the document that comes last when the array is stored."""
        return self._look((self._key,))

    def _check_to_write(self) -> None:
        """Refuse to write to an array that was replaced; one that is in the making has no document yet."""
        keys = (self._key,)
        seen = looks.last(self.store, keys)
        if seen is None or seen.metadata is not None or not seen.is_recent:
            seen = looks.look(self.store, keys, self._parsed, to_write=True)
        if seen.metadata is not None:
            self._check_shape(self._same(seen.metadata))

    def _check_seen(self, seen: looks.Seen, *, coded: bool = True) -> None:
        if seen.metadata is None:
            return
        found = self._same(seen.metadata)
        self._check_shape(found)
        how = recoded(found, self.metadata) if self._is_decoded and coded else None
        if how is not None:
            raise self._decoded_otherwise(how)

    def _parsed(self, stored: Sequence[Buffer | None]) -> NodeMetadata | None:
        """What the documents say that make this an array, or also tell how its values are decoded."""
        found = {
            key: documents.decode(value, self.path, key.rpartition("/")[2])
            for key, value in zip((self._key, *self._looked_at[1:]), stored, strict=False)
            if value is not None
        }
        held = self.format.held(self.path, found)
        return None if held is None else self.format.parse_again(held, self.path)

    def _change_attributes(self, change: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
        self._check_writable()

        def changed(found: NodeMetadata) -> NodeMetadata:
            return with_attributes(self._same(found), change, self.path)

        key = self.format.attributes_key(self.path, array=True)
        self._change_document(key, changed)
        self._refresh_copies()

    def _change_document(
        self, key: str, change: Callable[[NodeMetadata], NodeMetadata], **options: Any
    ) -> None:
        changed = change_document(self.store, self.format, self.path, key, change, **options)
        self.metadata = cast("ArrayMetadata", changed)
        self._known = Known(self.store, self.path, self.format, self.metadata)
        self._known_at = time.monotonic()
        self.__dict__.pop("engine", None)

    def _refresh_copies(self) -> None:
        with copies_to_follow(self.path):
            refresh_consolidated(self.store, self.format, [self.path])


def _unit_bounds(region: BasicSelection, shape: tuple[int, ...], grid: Grid) -> list[range]:
    """The coordinates of units between the ends of a region, along each dimension."""
    return [
        range(axis.index(chosen.start), axis.index(chosen.stop - 1) + 1) if chosen.count else range(0)
        for chosen, axis in zip(basic_selection(region, shape), grid.axes, strict=True)
    ]


def _are_few(region: BasicSelection, shape: tuple[int, ...], grid: Grid) -> bool:
    return math.prod(map(len, _unit_bounds(region, shape, grid))) <= _FEW_UNITS


def _inner_shape(codecs: Iterable[Codec], ndim: int) -> tuple[int, ...] | None:
    """Shape of the inner chunks that codecs divide a chunk into, as the array has its dimensions."""
    order = list(range(ndim))
    for codec in codecs:
        if codec.name == "transpose":
            order = [order[axis] for axis in cast("TransposeCodec", codec).order]
        elif codec.name == "sharding_indexed":
            lengths = cast("ShardingCodec", codec).chunk_shape
            return tuple(lengths[order.index(axis)] for axis in range(ndim))
    return None


def _sample(counts: tuple[int, ...], most: int) -> Iterator[tuple[int, ...]]:
    """Coordinates in a grid: of all its elements, or of some that lie evenly in it."""
    number = math.prod(counts)
    if number <= most:
        yield from itertools.product(*map(range, counts))
        return
    for n in range(most):
        at = n * (number - 1) // (most - 1)
        coords = []
        for count in reversed(counts):
            at, rest = divmod(at, count)
            coords.append(rest)
        yield tuple(reversed(coords))


class _Made(Sequence[str]):
    """Keys that are made when they are looked at, which most stores do not do for a stamp."""

    def __init__(self, make: Callable[[], Iterable[str]]) -> None:
        self._make = make

    @cached_property
    def _keys(self) -> list[str]:
        return list(self._make())

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, at: Any) -> Any:
        return self._keys[at]

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)


def _restore(
    store: Store,
    path: str,
    format: Format | ZarrFormat,
    text: bytes,
    read_only: bool,
    write_empty_chunks: bool,
    missing: Missing,
    tag: str | None = None,
    is_decoded: bool = False,
    bounded: Array | None = None,
    has_document: bool = True,
) -> Array:
    array = Array.__new__(Array)
    Node.__init__(array, store, path, format_of(format), read_only=read_only)
    array._known = known(store, path, array.format, text)
    array._known_at = -math.inf  # Who knows how long it took to get here.
    array.write_empty_chunks = write_empty_chunks
    array.missing = missing
    array._tag, array._is_decoded, array._bounded = tag, is_decoded, bounded
    array.has_document = has_document
    return array
