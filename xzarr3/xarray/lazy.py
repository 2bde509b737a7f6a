"""Stored arrays as xarray's lazy arrays, which are read when they are indexed."""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from xarray.backends.common import BackendArray
from xarray.core import indexing

from xzarr3._types import AnyArray
from xzarr3.arrays import Array
from xzarr3.errors import Xzarr3Error, short_traceback
from xzarr3.io.selection import (
    DimChoice,
    Points,
    as_progression,
    basic_selection,
    orthogonal_selection,
    vectorized_selection,
)
from xzarr3.parallel import parallel_map, waiters
from xzarr3.xarray.unpack import Unpacking

Chosen: TypeAlias = "tuple[DimChoice, ...] | Points"
Arrange: TypeAlias = Callable[[AnyArray], AnyArray]

_MOST_BYTES = 2**26  # Most bytes that are read ahead when a dataset or tree is opened.
_SMALL = 2**22  # Most bytes of an array of which decoding needs only the first and the last element.


class LazyArray(BackendArray):
    """A stored array that is read when xarray indexes it.

    Basic, orthogonal and pointwise selections read only the chunks that they touch, or parts of these where
    possible; :meth:`xzarr3.Array.explain` shows what is read.

    Parameters
    ----------
    array : Array
    unpack : Unpacking, optional
        Unpacks the values that were read.
    """

    __slots__ = ("array", "dtype", "is_opening", "shape", "unpack", "values")

    def __init__(self, array: Array, unpack: Unpacking | None = None) -> None:
        self.array = array
        self.shape = array.shape
        self.dtype: np.dtype[Any] = array.dtype if unpack is None else unpack.dtype
        self.unpack = unpack
        self.values: AnyArray | None = None
        """All values, if they were read ahead; they are given up when they are first used as a whole."""
        self.is_opening = False
        """Whether the values are kept until the dataset is open, however often they are used."""

    def __reduce__(self) -> tuple[object, ...]:
        return LazyArray, (self.array, self.unpack)

    def __dask_tokenize__(self) -> object:
        from dask.base import normalize_token

        return "xzarr3.LazyArray", self.array.__dask_tokenize__(), normalize_token(self.unpack)

    @short_traceback
    def __getitem__(self, key: indexing.ExplicitIndexer) -> AnyArray:
        found, arrange = self._ahead(key), None
        if found is None:
            selection, arrange = self.selected(key)
            found = self.array.read_selected(selection)
        if self.unpack is not None:
            found = self.unpack(found)
        return found if arrange is None else arrange(found)

    def _ahead(self, key: indexing.ExplicitIndexer) -> AnyArray | None:
        """The values for an index that were read ahead, if they were."""
        values = self.values
        if values is None or not isinstance(key, indexing.BasicIndexer):
            return None
        found: AnyArray = values[(*key.tuple, ...)]
        if found.shape == values.shape and not self.is_opening:
            self.values = None
        return found.copy()

    def selected(self, key: indexing.ExplicitIndexer) -> tuple[Chosen, Arrange | None]:
        """What is read for an index, and the function that arranges the values, if they need that."""
        if isinstance(key, indexing.VectorizedIndexer):
            return _points(self.shape, key.tuple)
        if isinstance(key, indexing.OuterIndexer):
            return orthogonal_selection(key.tuple, self.shape), None
        return basic_selection(key.tuple, self.shape), None

    async def async_getitem(self, key: indexing.ExplicitIndexer) -> AnyArray:
        if self.array.store.concurrency <= 1:
            return await asyncio.to_thread(self.__getitem__, key)
        # Not asyncio's own pool: it has too few threads to load all variables at a time.
        read = partial(contextvars.copy_context().run, self.__getitem__, key)
        return await asyncio.get_running_loop().run_in_executor(waiters.get(), read)


@contextmanager
def read_ahead(coordinates: Iterable[LazyArray], times: Iterable[LazyArray]) -> Iterator[None]:
    """Context manager in which xarray decodes a dataset whose coordinates are read concurrently beforehand.

    xarray reads index coordinates, and the first and last element of times, one after the other. From a store
    with latency this would take longer than all the rest.

    Parameters
    ----------
    coordinates : iterable of LazyArray
        Index coordinates. Their values stay until they are used as a whole, for an index.
    times : iterable of LazyArray
        Other arrays of times; those in one stored unit are read, and given up when the context ends.
    """
    indexed = list(coordinates)
    others = [lazy for lazy in times if lazy.array.nshards == 1 and lazy.array.nbytes <= _SMALL]
    left, ahead = _MOST_BYTES, list[LazyArray]()
    for lazy in {id(each): each for each in (*indexed, *others)}.values():
        if lazy.array.nbytes <= left:
            left -= lazy.array.nbytes
            ahead.append(lazy)
    parallel_map(_read_all, ahead, max((lazy.array.store.concurrency for lazy in ahead), default=1))
    yield
    for lazy in ahead:
        lazy.is_opening = False
    for lazy in others:
        if all(lazy is not each for each in indexed):
            lazy.values = None


def _read_all(lazy: LazyArray) -> None:
    with suppress(Xzarr3Error):  # Raised again where xarray needs the values.
        lazy.values = lazy.array.read_selected(basic_selection((), lazy.shape))
        lazy.is_opening = True


def _points(shape: tuple[int, ...], key: Sequence[Any]) -> tuple[Chosen, Arrange]:
    """A vectorized selection; in its result the dimensions of the index arrays come first, then the others.

    xarray turns slices into index arrays, too. So index arrays that vary along a dimension of their own are
    separated again and read as slices or orthogonally. Otherwise a few time series of a long record would be
    read as millions of points.
    """
    given = {axis: index for axis, index in enumerate(key) if isinstance(index, np.ndarray)}
    common = np.broadcast_shapes(*(index.shape for index in given.values()))
    if 0 in common:
        return vectorized_selection(tuple(key), shape), lambda block: block
    chosen: list[Any] = list(key)
    # The axis of the result for each axis of the array.
    target = {axis: len(common) + at for at, axis in enumerate(a for a in range(len(key)) if a not in given)}
    arrays = {axis: _reduced(index, len(common)) for axis, index in given.items()}
    along = {axis: [at for at, n in enumerate(index.shape) if n > 1] for axis, index in arrays.items()}
    used = Counter(at for varying in along.values() for at in varying)
    alone = {axis: varying[0] for axis, varying in along.items() if varying and used[varying[0]] == 1}
    alone = {axis: at for axis, at in alone.items() if len(along[axis]) == 1}
    for axis, index in arrays.items():
        if not along[axis]:
            chosen[axis] = int(index.flat[0])
        elif axis in alone:
            chosen[axis] = index.ravel()
    if len(alone) == sum(map(bool, along.values())):
        target |= alone
        selection: Chosen = orthogonal_selection(tuple(chosen), shape)
        order = [target[axis] for axis in sorted(target)]
    else:
        for axis, at in alone.items():
            part = _as_slice(chosen[axis], shape[axis])
            if part is not None:
                chosen[axis], target[axis] = part, at
        over = sorted({at for axis, varying in along.items() if axis not in target for at in varying})
        for axis, index in arrays.items():
            if axis not in target and along[axis]:
                chosen[axis] = index.reshape([index.shape[at] for at in over])
        selection = vectorized_selection(tuple(chosen), shape)
        order = [*over, *(target[axis] for axis in sorted(target))]
    ndim = len(common) + len(key) - len(given)
    return selection, partial(_arranged, common=common, order=order, ndim=ndim)


def _arranged(block: AnyArray, common: tuple[int, ...], order: Sequence[int], ndim: int) -> AnyArray:
    """The values with their dimensions in this order, repeated along those that no index varies along."""
    shape = [*common, *(0,) * (ndim - len(common))]
    for at, length in zip(order, block.shape, strict=True):
        shape[at] = length
    block = block.transpose(np.argsort(order))
    missing = tuple(at for at in range(ndim) if at not in order)
    if not missing:
        return block
    return np.broadcast_to(np.expand_dims(block, missing), shape).copy()


def _reduced(index: AnyArray, ndim: int) -> AnyArray:
    """The index array with length 1 along dimensions that it does not vary along."""
    index = index.reshape((1,) * (ndim - index.ndim) + index.shape)
    for at in range(ndim):
        first = index.take([0], axis=at)
        if index.shape[at] > 1 and (index == first).all():
            index = first
    return index


def _as_slice(indices: AnyArray, size: int) -> slice | None:
    """The slice that selects the same elements of a dimension; None if there is none."""
    if not ((indices >= -size) & (indices < size)).all():
        return None
    found = as_progression(np.where(indices < 0, indices + size, indices))
    if found is None:
        return None
    if not found.reverse:
        return slice(found.start, found.stop, found.step)
    return slice(found.stop - 1, found.start - 1 if found.start else None, -found.step)
