"""Dask arrays that know what they read, so that less is read of what is selected from them.

An integer or a slice of such an array is another one, whose tasks read what was selected: there are no tasks
for other chunks, and no bytes of them are fetched. Everything else is done as dask does it, with plain dask
arrays as results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import dask.array as da
import numpy as np
from dask import config
from dask.array.slicing import normalize_index
from dask.base import tokenize
from dask.blockwise import blockwise
from dask.highlevelgraph import HighLevelGraph

from xzarr3._types import AnyArray
from xzarr3.array import Array
from xzarr3.dask.blocks import BlockChunks, Regions, label, threads_of
from xzarr3.dask.views import Along, Part, Selections
from xzarr3.errors import StoreError
from xzarr3.indexing import DimSelection

Whole: TypeAlias = tuple[str, tuple[Along, ...]]

_FEW = 200  # Blocks along a dimension, whose lengths are told with a layer for its picture.


def read_block(array: Array, parts: tuple[Part, ...]) -> AnyArray:
    """Read what a block holds."""
    chosen = []
    for part, size in zip(parts, array.shape, strict=True):
        if isinstance(part, int):
            start, stop = part, part + 1
            chosen.append(DimSelection(part, 1, 1, drop=True))
        else:
            start, stop, step = part.start, part.stop, part.step or 1
            if step == 1:
                chosen.append(DimSelection(start, 1, stop - start))
            elif step > 0:
                chosen.append(DimSelection(start, step, len(range(start, stop, step))))
            else:
                count = len(range(start, -1 if stop is None else stop, step))
                chosen.append(DimSelection(start + (count - 1) * step, -step, count, reverse=True))
                stop = start + 1
        if stop > size:
            raise StoreError(
                f"array '{array.name}' of {array.store} has shape {array.shape} now and was larger when its "
                "dask array was made; accepted: making it again"
            )
    return array.read_selected(tuple(chosen), threads=threads_of(array))


def _graph(array: Array, name: str, parts: Regions | Selections) -> HighLevelGraph:
    """One layer of tasks that read."""
    index = tuple(range(len(parts.numblocks)))
    layer = blockwise(read_block, name, index, array, None, parts, index, numblocks={}, _data_producer=True)
    return HighLevelGraph({name: layer}, {name: set()})


def as_dask(array: Array, name: str, chunks: BlockChunks) -> da.Array:
    """All of an array as a plain dask array, in any chunks."""
    graph = _graph(array, name, Regions(chunks, (0,) * array.ndim))
    return da.Array(graph, name, chunks=chunks, meta=np.empty((0,) * array.ndim, array.dtype))


def selected(array: Array, name: str, view: tuple[Along, ...], whole: Whole | None = None) -> da.Array:
    """What is selected of an array as a dask array.

    Parameters
    ----------
    array : Array
    name : str
        Name of the dask array.
    view : tuple of Along
        What is selected along each dimension.
    whole : (str, tuple of Along), optional
        Name of the dask array that this was selected from, and what that is, if this is not it.
    """
    parts = Selections(name, view)
    graph = _graph(array, name, parts)
    left = [along for along in view if not along.drop]
    shape, meta = tuple(along.count for along in left), np.empty((0,) * len(left), array.dtype)
    few = max(parts.numblocks, default=0) <= _FEW
    told: dict[str, Any] = {"shape": shape, "dtype": array.dtype, "type": "dask.array.core.Array"}
    if few:
        told["chunks"] = tuple(along.lengths for along in left)
    graph.layers[name].collection_annotations = told
    if config.get("array_plugins", ()):
        return da.Array(graph, name, chunks=tuple(along.lengths for along in left), meta=meta)
    made = object.__new__(ZarrArray)
    made.dask = graph
    da.Array._name.fset(made, name)  # type: ignore[attr-defined]
    made._meta = meta
    made.__dict__.update(
        _array=array, _view=view, _whole=whole or (name, view), shape=shape, numblocks=parts.numblocks
    )
    return made


class _EqualToDasks(type):
    """The type of a class that is taken for dask's own where types are compared, as xarray does."""

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is da.Array

    def __hash__(cls) -> int:
        return hash(da.Array)


class ZarrArray(da.Array, metaclass=_EqualToDasks):
    """A dask array that reads what is selected of an array in a store.

    The lengths of its blocks are worked out when they are asked for. Once it is changed in place, it is a
    plain dask array.
    """

    __slots__ = ()

    _array: Array
    _view: tuple[Along, ...]
    _whole: Whole

    def __reduce__(self) -> tuple[object, ...]:
        return selected, (self._array, self.name, self._view, self._whole)

    @property  # type: ignore[misc]
    def chunks(self) -> BlockChunks:
        """Lengths of the blocks along each dimension."""
        kept = self.__dict__.get("_lengths")
        if kept is None:
            kept = tuple(along.lengths for along in self._view if not along.drop)
            self.__dict__["_lengths"] = kept
        return cast("BlockChunks", kept)

    @property
    def _chunks(self) -> BlockChunks:
        return self.chunks

    @_chunks.setter
    def _chunks(self, chunks: BlockChunks) -> None:
        self._become_plain()
        self._chunks = chunks

    @property
    def _name(self) -> str:
        return cast("str", self.name)

    @_name.setter
    def _name(self, name: str) -> None:
        self._become_plain()
        self._name = name

    def _become_plain(self) -> None:
        chunks = self.chunks
        self.__dict__.clear()
        self.__class__ = da.Array  # type: ignore[assignment]
        self._chunks = chunks

    @property
    def chunksize(self) -> tuple[int, ...]:
        """Length of the longest block along each dimension."""
        longest = tuple(along.longest for along in self._view if not along.drop)
        return cast("tuple[int, ...]", super().chunksize if None in longest else longest)

    def __getitem__(self, index: Any) -> da.Array:
        indices = index if isinstance(index, tuple) else (index,)
        if not all(map(_is_known, indices)):
            return _by_dask(self, index)
        normal = normalize_index(indices, self.shape)
        given = _expanded(indices, len(normal))
        simple: list[Part] = []
        for known, own in zip(normal, given, strict=True):
            if known is not None:  # Dask takes slices for others that begin before an array and go down.
                simple.append(
                    own if isinstance(own, slice) else known if isinstance(known, int) else slice(None)
                )
        found = self._selected(simple)
        if all(isinstance(i, (int, slice)) for i in normal):
            return found
        # What is left is new dimensions, and one array of elements it may be.
        return _by_dask(
            found, tuple(slice(None) if isinstance(i, slice) else i for i in normal if not isinstance(i, int))
        )

    def _selected(self, indices: Sequence[Part]) -> da.Array:
        left = iter(indices)
        view = tuple(along if along.drop else along.selected(next(left)) for along in self._view)
        if view == self._view:
            return self
        name, all_of_it = self._whole
        if view == all_of_it:
            return selected(self._array, name, view)
        parts = [(along.start, along.step, along.count, along.drop) for along in view]
        name = f"read-zarr-{label(self._array)}-{tokenize(name, parts)}"
        return selected(self._array, name, view, self._whole)


def _by_dask(array: da.Array, index: Any) -> da.Array:
    """What dask makes of an index."""
    found: da.Array = da.Array.__getitem__(array, index)
    return found


def _expanded(indices: tuple[Any, ...], number: int) -> tuple[Any, ...]:
    """As many indexes, with slices for an Ellipsis and what is left out at the end."""
    rest = (slice(None),) * (number - sum(index is not Ellipsis for index in indices))
    at = next((at for at, index in enumerate(indices) if index is Ellipsis), len(indices))
    return (*indices[:at], *rest, *indices[at + 1 :])


def _is_known(index: object) -> bool:
    """Whether an index is of a kind that dask needs no help with."""
    if isinstance(index, slice):
        return all(map(_is_bound, (index.start, index.stop, index.step)))
    if isinstance(index, np.ndarray):
        return index.ndim == 1
    if isinstance(index, list):
        return all(isinstance(at, (int, np.integer, np.bool_)) for at in index)
    return index is Ellipsis or (_is_bound(index) and not isinstance(index, bool))


def _is_bound(index: object) -> bool:
    return index is None or isinstance(index, (int, np.integer))
