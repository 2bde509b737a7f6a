"""What a dask array reads, before there is one: all of a source, or what integers and slices select of it.

Of many variables that are opened only a few are computed, and mostly not even whole. So nothing is made of a
source but its blocks before a dask array is wanted; until then, integers and slices make less of it. The
graph of a dask array says what is selected in a few numbers. What is read for that is decided when the graph
is optimized: see :mod:`xzarr3.dask.layers`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import dask.array as da
import numpy as np
from dask.base import tokenize
from dask.blockwise import blockwise
from dask.highlevelgraph import HighLevelGraph

from xzarr3.dask.blocks import BlockChunks, Regions, check_dask
from xzarr3.dask.layers import Read, ReadLayer, SelectLayer, read_layer
from xzarr3.dask.views import Along, Part, as_blocks, every


class Source:
    """All of what is read, in blocks: what its selections have in common.

    Parameters
    ----------
    read : callable
        Gets the source and what to read of it along each dimension, integers and slices, and returns the
        values; to be pickled.
    source : object
        What is read from; to be pickled.
    dtype : dtype
        Of the values.
    view : tuple of Along
        All elements of each dimension, in their blocks.
    prefix : str
        What the names of tasks begin with; a token follows.
    name : str or callable
        Name of the dask array of all of it, or what tells it once it is needed.
    """

    def __init__(
        self,
        read: Read,
        source: Any,
        dtype: np.dtype[Any],
        view: tuple[Along, ...],
        prefix: str,
        name: str | Callable[[], str],
    ) -> None:
        self.read, self.source, self.dtype = read, source, dtype
        self.view, self.prefix = view, prefix
        self._name = name

    def __reduce__(self) -> tuple[object, ...]:
        return Source, (self.read, self.source, self.dtype, self.view, self.prefix, self.name)

    @cached_property
    def name(self) -> str:
        """Name of the dask array of all of it."""
        return self._name if isinstance(self._name, str) else self._name()

    @cached_property
    def layer(self) -> ReadLayer:
        """The layer that reads."""
        return read_layer(self.read, self.source, self.name, self.view)


class Reads:
    """What a dask array reads, before there is one.

    Parameters
    ----------
    source : Source
    view : tuple of Along, optional
        What is selected of the source; by default all of it.
    """

    __slots__ = ("_name", "dtype", "shape", "source", "view")

    def __init__(self, source: Source, view: tuple[Along, ...] | None = None) -> None:
        self.source = source
        self.view = source.view if view is None else view
        self.dtype = source.dtype
        self.shape = tuple([along.count for along in self.view if not along.drop])
        self._name: str | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return Reads, (self.source, self.view)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def is_whole(self) -> bool:
        """Whether this is all of the source."""
        return self.view == self.source.view

    @property
    def name(self) -> str:
        """Name of the dask array, which follows from that of the source and what is selected of it."""
        if self._name is None:
            parts = [(along.start, along.step, along.count, along.drop) for along in self.view]
            whole = self.source.name
            self._name = whole if self.is_whole else f"{self.source.prefix}-{tokenize(whole, parts)}"
        return self._name

    @property
    def chunks(self) -> BlockChunks:
        """Lengths of the blocks of the dask array along each dimension."""
        return tuple([along.lengths for along in self.view if not along.drop])

    @property
    def numblocks(self) -> tuple[int, ...]:
        """Number of blocks along each dimension."""
        return tuple([along.number for along in self.view if not along.drop])

    @property
    def meta(self) -> np.ndarray[Any, Any]:
        """An array without elements that is like the blocks."""
        return np.empty((0,) * self.ndim, self.dtype)

    def graph(self) -> HighLevelGraph:
        """The graph of the dask array: what reads all of the source, and what takes the selection of it."""
        source = self.source
        if self.is_whole:
            return HighLevelGraph({source.name: source.layer}, {source.name: set()})
        layer = SelectLayer(self.name, source.layer, source.view, self.view)
        return HighLevelGraph(
            {source.name: source.layer, self.name: layer}, {source.name: set(), self.name: {source.name}}
        )

    def selected(self, indices: Sequence[Any]) -> Reads:
        """What integers and slices select, one for each dimension.

        Raises
        ------
        IndexError
            If an integer is out of bounds.
        """
        left = iter([_normal(index, size) for index, size in zip(indices, self.shape, strict=True)])
        view = tuple([along if along.drop else along.selected(next(left)) for along in self.view])
        return self if view == self.view else Reads(self.source, view)


def _normal(index: Any, size: int) -> Part:
    if isinstance(index, slice):
        return index
    at = operator.index(index)
    if not -size <= at < size:
        raise IndexError(f"index {at} is out of bounds for length {size}")
    return at + size if at < 0 else at


def reads(
    read: Read,
    source: Any,
    dtype: np.dtype[Any],
    chunks: Sequence[tuple[int, ...]],
    prefix: str,
    identity: Any,
) -> Reads | da.Array:
    """What a dask array in these chunks reads; the dask array itself if some of them are empty.

    Parameters
    ----------
    read, source, dtype, prefix
        As :class:`Source` has them.
    chunks : sequence of tuple of int
    identity : object
        What identifies the values, for dask's ``tokenize``.
    """
    check_dask()
    blocks = [as_blocks(along) for along in chunks]
    known = [each for each in blocks if each is not None]
    if len(known) < len(blocks):
        return in_regions(read, source, dtype, tuple(chunks), f"{prefix}-{tokenize(identity, chunks)}")
    view = tuple([every(each, sum(along)) for each, along in zip(known, chunks, strict=True)])

    def name() -> str:
        return f"{prefix}-{tokenize(identity, repr(known))}"

    return Reads(Source(read, source, dtype, view, prefix, name))


def in_regions(read: Read, source: Any, dtype: np.dtype[Any], chunks: BlockChunks, name: str) -> da.Array:
    """A dask array of blocks of which some are empty."""
    index = tuple(range(len(chunks)))
    parts = Regions(chunks, (0,) * len(chunks))
    layer = blockwise(read, name, index, source, None, parts, index, numblocks={}, _data_producer=True)
    graph = HighLevelGraph({name: layer}, {name: set()})
    return da.Array(graph, name, chunks, meta=np.empty((0,) * len(chunks), dtype))
