"""Dask arrays that keep their source and selection, so that selecting from them is fast.

Of many opened variables only a few are computed, and mostly in part. So only the blocks of a source are
worked out until a graph is asked for. Indexing such an array with integers and slices gives another array of
this kind. Dask would make a task for each block, of which there may be a million; here a few numbers describe
the selection. A selection of less than a quarter of its blocks gets a reading layer of its own. All others
share that of the whole source: see :mod:`xzarr3.dask.layers`. All other operations are dask's own and give
plain dask arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, cast

import dask.array as da
import numpy as np
from dask import config
from dask.array.core import getter
from dask.array.slicing import normalize_index
from dask.base import tokenize
from dask.blockwise import Blockwise, blockwise
from dask.highlevelgraph import HighLevelGraph

from xzarr3._types import AnyArray
from xzarr3.arrays import Array
from xzarr3.dask.blocks import BlockChunks, threads_of
from xzarr3.dask.layers import Read, Reader, Readers, SelectLayer
from xzarr3.dask.slicing import Along, Part, Selections, extent, to_read
from xzarr3.errors import StoreError
from xzarr3.grid import Edges, Steps
from xzarr3.io.selection import basic_selection
from xzarr3.joined.array import JoinedArray
from xzarr3.readable import ReadableArray

_WORKED_OUT = ("dask", "_chunks", "_name")  # Attributes of a dask array that are computed on demand.
_GRAIN = 2**20  # Bytes of the rows of a chunk that are read together.


def read_block(array: ReadableArray, parts: tuple[Part, ...]) -> AnyArray:
    """Read the values of one block."""
    if any(extent(part)[1] > size for part, size in zip(parts, array.shape, strict=True)):
        raise StoreError(
            f"array {array.place} has shape {array.shape} now and was larger when its dask array was made; "
            "make the dask array again"
        )
    return array.read_selected(basic_selection(parts, array.shape), threads=threads_of(array))


def stored_in(source: Any) -> Any:
    """The array that a source of values is or reads from; None if it is neither."""
    found = source if isinstance(source, ReadableArray) else getattr(source, "array", None)
    return found if isinstance(found, ReadableArray) else None


@dataclass(eq=False)
class Source:
    """An object to read from and its blocks, shared by all selections of it.

    Parameters
    ----------
    read : callable
        Takes the source and an integer or a slice for each dimension, and returns the values. It is pickled.
    source : object
        The object to read from. It is pickled.
    dtype : dtype
        Data type of the values.
    view : tuple of Along
        All elements of each dimension, in their blocks.
    prefix : str
        Prefix of the names of tasks; a token follows.
    named : str or callable
        Name of the dask array of the whole source, or a function that returns it, called when needed.
    """

    read: Read
    source: Any
    dtype: np.dtype[Any]
    view: tuple[Along, ...]
    prefix: str
    named: str | Callable[[], str]
    is_masked: bool = field(init=False)
    """Whether the values are masked arrays; kept, as unpickling looks at no metadata."""

    def __post_init__(self) -> None:
        self.is_masked = isinstance(self.source, ReadableArray) and self.source.is_masked

    def __getstate__(self) -> dict[str, Any]:
        return {**{each.name: getattr(self, each.name) for each in fields(self)}, "named": self.name}

    @cached_property
    def name(self) -> str:
        """Name of the dask array of the whole source."""
        return self.named if isinstance(self.named, str) else self.named()

    @cached_property
    def layer(self) -> Blockwise:
        """The layer that reads the whole source."""
        return self.reading(self.name, self.view)

    def reading(self, name: str, view: tuple[Along, ...]) -> Blockwise:
        """The layer that reads a selection in blocks, each with one task."""
        parts = Selections(name, view)
        index = tuple(range(len(parts.numblocks)))
        reader: tuple[Any, Any] = Reader(self.read, self.source), None
        stored = stored_in(self.source)
        if isinstance(stored, JoinedArray) and view:
            reader = Readers(self.read, self.source, stored.joint.axis, parts), index
        made = blockwise(getter, name, index, *reader, parts, index, numblocks={}, _data_producer=True)
        return cast("Blockwise", made)

    @cached_property
    def grains(self) -> list[Steps | Edges] | None:
        """What can be read by itself along each dimension: chunks, or rows of a chunk that is not compressed.

        None if the source is neither an array of one store nor has one as its attribute ``array``.
        """
        array = stored_in(self.source)
        if not isinstance(array, Array) or array.ndim != len(self.view):
            return None
        shard = array.metadata.chain.shard
        chain = array.metadata.chain if shard is None else shard.inner
        axes: list[Steps | Edges] = list(array.chunk_grid.axes)
        longer = [at for at, axis in enumerate(axes) if axis.longest > 1]
        if chain.is_plain and longer:
            at = max(longer, key=chain.strides.__getitem__)
            rows = max(_GRAIN // chain.strides[at], 1)
            axes[at] = axes[at] if rows >= axes[at].longest else Steps(rows)
        return axes


def zarr_array(source: Source, view: tuple[Along, ...] | None = None) -> da.Array:
    """A selection of a source, by default all of it, as a dask array."""
    view = source.view if view is None else view
    left = [along for along in view if not along.drop]
    meta = _meta(source, len(left))
    if config.get("array_plugins", ()):
        name = _name(source, view)
        return da.Array(_graph(source, view), name, chunks=_lengths(view), meta=meta)
    made = object.__new__(ZarrArray)
    made._meta, made._cached_keys = meta, None
    shape, numblocks = tuple([along.count for along in left]), tuple([along.number for along in left])
    made.__dict__.update(_source=source, _view=view, shape=shape, numblocks=numblocks)
    return made


def _meta(source: Source, ndim: int) -> AnyArray:
    """An array without elements of the kind that is read."""
    meta = np.empty((0,) * ndim, source.dtype)
    return np.ma.MaskedArray(meta) if source.is_masked else meta


def _name(source: Source, view: tuple[Along, ...]) -> str:
    """Name of the dask array, derived from the name of the source and the selection."""
    if view == source.view:
        return source.name
    parts = [(along.start, along.step, along.count, along.drop) for along in view]
    return f"{source.prefix}-{tokenize(source.name, parts)}"


def _lengths(view: tuple[Along, ...]) -> BlockChunks:
    """Lengths of the blocks of the dask array along each dimension."""
    return tuple([along.lengths for along in view if not along.drop])


def _graph(source: Source, view: tuple[Along, ...]) -> HighLevelGraph:
    """The layer that reads and, unless all that is read is selected, the one that selects."""
    read = view if view == source.view else to_read(view, source.view, source.grains)
    name, reading = _name(source, view), _name(source, read)
    layers: dict[str, Any] = {reading: source.layer if read == source.view else source.reading(reading, read)}
    dependencies: dict[str, set[str]] = {reading: set()}
    if name != reading:
        layers[name] = SelectLayer(name, reading, read, view)
        dependencies[name] = {reading}
    return HighLevelGraph(layers, dependencies)


class _EqualToDasks(type):
    """Metaclass that makes a class compare equal to ``dask.array.Array``.

    xarray refuses to combine chunked arrays of several types, and collects their types in a set.
    """

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is da.Array

    def __hash__(cls) -> int:
        return hash(da.Array)


class ZarrArray(da.Array, metaclass=_EqualToDasks):
    """A dask array that keeps its source and selection, so that indexing with integers and slices is fast.

    Its graph, its name and the lengths of its blocks, of which there may be millions, are computed on demand.
    Once dask changes it in place, it behaves as a plain dask array.
    """

    __slots__ = ()

    _source: Source | None
    _view: tuple[Along, ...]

    def __reduce__(self) -> tuple[object, ...]:
        source = self._source
        return da.Array.__reduce__(self) if source is None else (zarr_array, (source, self._view))

    @cached_property
    def dask(self) -> HighLevelGraph:
        """The graph, built on demand."""
        return _graph(cast("Source", self._source), self._view)

    @cached_property
    def _chunks(self) -> BlockChunks:
        return _lengths(self._view)

    @cached_property
    def _name(self) -> str:
        return _name(cast("Source", self._source), self._view)

    def __setattr__(self, attribute: str, value: Any) -> None:
        """Set an attribute. If dask changes the array in place by that, drop its source and selection."""
        if attribute not in _WORKED_OUT:
            super().__setattr__(attribute, value)
            return
        plain = {each: getattr(self, each) for each in _WORKED_OUT}
        self.__dict__.clear()
        self.__dict__.update({**plain, attribute: value}, _source=None)
        self._cached_keys = None

    @property  # type: ignore[misc]  # Dask's property has a setter, which raises an error.
    def chunks(self) -> BlockChunks:
        """Lengths of the blocks along each dimension."""
        return self._chunks

    @property  # type: ignore[misc]  # Dask's property has a setter, which raises an error.
    def name(self) -> str:
        """Name of the array, the first item of the keys of its blocks."""
        return self._name

    def __getitem__(self, index: Any) -> da.Array:
        source = self._source
        indices = index if isinstance(index, tuple) else (index,)
        if source is None or not all(map(_is_known, indices)):
            return _by_dask(self, index)
        normal = normalize_index(indices, self.shape)
        given = _expanded(indices, len(normal))
        simple: list[Part] = []
        for known, own in zip(normal, given, strict=True):
            if known is not None:  # Not dask's own form: it misreads descending slices from before the start.
                simple.append(
                    own if isinstance(own, slice) else known if isinstance(known, int) else slice(None)
                )
        each = iter(simple)
        view = tuple([along if along.drop else along.selected(next(each)) for along in self._view])
        found = self if view == self._view else zarr_array(source, view)
        if all(isinstance(i, (int, slice)) for i in normal):
            return found
        # New dimensions are left, and at most one array of indexes.
        return _by_dask(
            found, tuple(slice(None) if isinstance(i, slice) else i for i in normal if not isinstance(i, int))
        )


def _by_dask(array: da.Array, index: Any) -> da.Array:
    """The result of dask's own indexing."""
    found: da.Array = da.Array.__getitem__(array, index)
    return found


def _expanded(indices: tuple[Any, ...], number: int) -> tuple[Any, ...]:
    """Indexes for all dimensions: full slices replace an Ellipsis, or are added at the end."""
    rest = (slice(None),) * (number - sum(index is not Ellipsis for index in indices))
    at = next((at for at, index in enumerate(indices) if index is Ellipsis), len(indices))
    return (*indices[:at], *rest, *indices[at + 1 :])


def _is_known(index: object) -> bool:
    """Whether an index is of a kind that :meth:`ZarrArray.__getitem__` handles itself."""
    if isinstance(index, slice):
        return all(map(_is_bound, (index.start, index.stop, index.step)))
    if isinstance(index, np.ndarray):
        return index.ndim == 1
    if isinstance(index, list):
        return all(isinstance(at, (int, np.integer, np.bool_)) for at in index)
    return index is Ellipsis or (_is_bound(index) and not isinstance(index, bool))


def _is_bound(index: object) -> bool:
    return index is None or isinstance(index, (int, np.integer))
