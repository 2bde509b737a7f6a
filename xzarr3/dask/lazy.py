"""Dask arrays that are yet to be made, of anything that is read in regions.

Of many variables that are opened only a few are computed, and mostly not even whole. So nothing is made of a
variable but its blocks before its dask array is wanted; until then, integers and slices make less of it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import dask.array as da
import numpy as np
from dask.base import tokenize
from dask.blockwise import blockwise
from dask.highlevelgraph import HighLevelGraph

from xzarr3._types import AnyArray
from xzarr3.dask.blocks import Regions
from xzarr3.dask.views import Along, Part, Selections, as_blocks

Read: TypeAlias = Callable[[Any, tuple[Part, ...]], AnyArray]


class Reads:
    """What a dask array reads, before there is one.

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
        What is selected of the source.
    prefix : str
        What the names of tasks begin with; a token of the identity and the view follows.
    identity : object
        What identifies the values, for dask's ``tokenize``.
    """

    __slots__ = ("_identity", "_made", "_prefix", "_read", "_source", "_view", "dtype", "shape")

    def __init__(
        self,
        read: Read,
        source: Any,
        dtype: np.dtype[Any],
        view: tuple[Along, ...],
        prefix: str,
        identity: Any,
    ) -> None:
        self._read, self._source, self._view = read, source, view
        self._prefix, self._identity = prefix, identity
        self.dtype = dtype
        self.shape = tuple([along.count for along in view if not along.drop])
        self._made: tuple[da.Array, str] | None = None

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def is_changed(self) -> bool:
        """Whether something was assigned to elements of the dask array."""
        return self._made is not None and self._made[0].name != self._made[1]

    @property
    def array(self) -> da.Array:
        """The dask array; the same one each time."""
        if self._made is None:
            parts = [(along.blocks, along.start, along.step, along.count, along.drop) for along in self._view]
            name = f"{self._prefix}-{tokenize(self._identity, repr(parts))}"
            chunks = tuple(along.lengths for along in self._view if not along.drop)
            selections = Selections(name, self._view)
            self._made = _array(self._read, self._source, name, selections, chunks, self.dtype), name
        return self._made[0]

    def selected(self, indices: Sequence[Any]) -> Reads:
        """What integers and slices select, one for each dimension.

        Raises
        ------
        IndexError
            If an integer is out of bounds.
        """
        left = iter([_normal(index, size) for index, size in zip(indices, self.shape, strict=True)])
        view = tuple([along if along.drop else along.selected(next(left)) for along in self._view])
        if view == self._view:
            return self
        return Reads(self._read, self._source, self.dtype, view, self._prefix, self._identity)


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

    The parameters are those of :class:`Reads`.
    """
    blocks = [as_blocks(along) for along in chunks]
    known = [each for each in blocks if each is not None]
    if len(known) == len(blocks):
        view = tuple([Along(each, 0, 1, sum(along)) for each, along in zip(known, chunks, strict=True)])
        return Reads(read, source, dtype, view, prefix, identity)
    regions = Regions(tuple(chunks), (0,) * len(blocks))
    return _array(read, source, f"{prefix}-{tokenize(identity, chunks)}", regions, tuple(chunks), dtype)


def _array(
    read: Read,
    source: Any,
    name: str,
    parts: Regions | Selections,
    chunks: tuple[tuple[int, ...], ...],
    dtype: np.dtype[Any],
) -> da.Array:
    """A dask array of one layer of tasks that read."""
    index = tuple(range(len(chunks)))
    layer = blockwise(read, name, index, source, None, parts, index, numblocks={}, _data_producer=True)
    graph = HighLevelGraph({name: layer}, {name: set()})
    return da.Array(graph, name, chunks, meta=np.empty((0,) * len(chunks), dtype))
