"""Dask arrays that know what they read, so that a selection of them is made in no time.

An integer or a slice of such an array is another one. Of a million blocks dask would make a task for each;
here a layer says in a few numbers what is selected. Everything else is done as dask does it, with plain dask
arrays as results.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, cast

import dask.array as da
import numpy as np
from dask import config
from dask.array.slicing import normalize_index
from dask.highlevelgraph import HighLevelGraph

from xzarr3._types import AnyArray
from xzarr3.array import Array
from xzarr3.dask.blocks import BlockChunks, threads_of
from xzarr3.dask.lazy import Reads
from xzarr3.dask.views import Part, extent
from xzarr3.errors import StoreError
from xzarr3.indexing import basic_selection

_FEW = 200  # Blocks along a dimension, whose lengths are told with a layer for its picture.


def read_block(array: Array, parts: tuple[Part, ...]) -> AnyArray:
    """Read what a block holds."""
    if any(extent(part)[1] > size for part, size in zip(parts, array.shape, strict=True)):
        raise StoreError(
            f"array '{array.name}' of {array.store} has shape {array.shape} now and was larger when its "
            "dask array was made; accepted: making it again"
        )
    return array.read_selected(basic_selection(parts, array.shape), threads=threads_of(array))


def zarr_array(reads: Reads) -> da.Array:
    """What is read as a dask array."""
    if config.get("array_plugins", ()):
        return da.Array(reads.graph(), reads.name, chunks=reads.chunks, meta=reads.meta)
    made = object.__new__(ZarrArray)
    made._meta, made._cached_keys = reads.meta, None
    made.__dict__.update(_reads=reads, shape=reads.shape, numblocks=reads.numblocks)
    return made


class _EqualToDasks(type):
    """The type of a class that is taken for dask's own where types are compared.

    xarray refuses to compute with chunked arrays of several types, which it finds in a set of these.
    """

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is da.Array

    def __hash__(cls) -> int:
        return hash(da.Array)


class ZarrArray(da.Array, metaclass=_EqualToDasks):
    """A dask array that knows what it reads, so that integers and slices of it are made in no time.

    Its graph, its name and the lengths of its blocks, of which there may be millions, are worked out when
    they are asked for. Once it is changed in place, it does everything as dask does it.
    """

    __slots__ = ()

    _reads: Reads | None

    def __reduce__(self) -> tuple[object, ...]:
        reads = self._reads
        return da.Array.__reduce__(self) if reads is None else (zarr_array, (reads,))

    def _known(self, what: str, work_out: Callable[[Reads], Any]) -> Any:
        kept = self.__dict__.get(what)
        if kept is None:
            kept = self.__dict__[what] = work_out(cast("Reads", self._reads))
        return kept

    def _change(self, **what: Any) -> None:
        """Forget what was read, and what was worked out of it: dask makes something else of this."""
        plain = {"_graph": self.dask, "_lengths": self._chunks, "_called": self.name, **what}
        self.__dict__.clear()
        self.__dict__.update(plain, _reads=None)
        self._cached_keys = None

    @property
    def dask(self) -> HighLevelGraph:
        """The graph."""
        return cast("HighLevelGraph", self._known("_graph", _graph))

    @dask.setter
    def dask(self, graph: HighLevelGraph) -> None:
        self._change(_graph=graph)

    @property  # type: ignore[misc]
    def chunks(self) -> BlockChunks:
        """Lengths of the blocks along each dimension."""
        return self._chunks

    @property
    def _chunks(self) -> BlockChunks:
        return cast("BlockChunks", self._known("_lengths", attrgetter("chunks")))

    @_chunks.setter
    def _chunks(self, chunks: BlockChunks) -> None:
        self._change(_lengths=chunks)

    @property  # type: ignore[misc]
    def name(self) -> str:
        """What the keys of the blocks begin with."""
        return self._name

    @property
    def _name(self) -> str:
        return cast("str", self._known("_called", attrgetter("name")))

    @_name.setter
    def _name(self, name: str) -> None:
        self._change(_called=name)

    @property
    def chunksize(self) -> tuple[int, ...]:
        """Length of the longest block along each dimension."""
        view = () if self._reads is None else [along for along in self._reads.view if not along.drop]
        longest = tuple(along.longest for along in view)
        known = self._reads is not None and None not in longest
        return cast("tuple[int, ...]", longest if known else super().chunksize)

    def __getitem__(self, index: Any) -> da.Array:
        reads = self._reads
        indices = index if isinstance(index, tuple) else (index,)
        if reads is None or not all(map(_is_known, indices)):
            return _by_dask(self, index)
        normal = normalize_index(indices, self.shape)
        given = _expanded(indices, len(normal))
        simple: list[Part] = []
        for known, own in zip(normal, given, strict=True):
            if known is not None:  # Dask takes slices for others that begin before an array and go down.
                simple.append(
                    own if isinstance(own, slice) else known if isinstance(known, int) else slice(None)
                )
        selected = reads.selected(simple)
        found = self if selected is reads else zarr_array(selected)
        if all(isinstance(i, (int, slice)) for i in normal):
            return found
        # What is left is new dimensions, and one array of elements it may be.
        return _by_dask(
            found, tuple(slice(None) if isinstance(i, slice) else i for i in normal if not isinstance(i, int))
        )


def _graph(reads: Reads) -> HighLevelGraph:
    """The graph of what is read, which tells dask's pictures of it what it is."""
    graph = reads.graph()
    told: dict[str, Any] = {"shape": reads.shape, "dtype": reads.dtype, "type": "dask.array.core.Array"}
    if max(reads.numblocks, default=0) <= _FEW:
        told["chunks"] = reads.chunks
    graph.layers[reads.name].collection_annotations = told
    return graph


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
