"""Stored arrays as xarray's lazy arrays, which are read when they are indexed."""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from xarray.backends.common import BackendArray
from xarray.core import indexing

from xzarr3._types import AnyArray
from xzarr3.arrays import Array
from xzarr3.errors import short_traceback
from xzarr3.io.selection import (
    DimChoice,
    Points,
    as_progression,
    basic_selection,
    orthogonal_selection,
    vectorized_selection,
)
from xzarr3.parallel import waiters
from xzarr3.xarray.unpack import Unpacking, read_unpacked

if TYPE_CHECKING:
    from xzarr3.xarray.prefetch import Ahead, InTurn


Chosen: TypeAlias = "tuple[DimChoice, ...] | Points"
Arrange: TypeAlias = Callable[[AnyArray], AnyArray]


class LazyArray(BackendArray):
    """A stored array that is read when xarray indexes it.

    Basic, orthogonal and pointwise selections read only the chunks that they touch, or parts of these where
    possible; :meth:`xzarr3.Array.explain` shows what is read.

    Parameters
    ----------
    array : Array
    unpacking : Unpacking, optional
        Functions that unpack the values as they are read.
    """

    __slots__ = ("ahead", "array", "dtype", "in_turn", "shape", "unpacking")

    def __init__(
        self,
        array: Array,
        unpacking: Unpacking | None = None,
    ) -> None:
        self.array = array
        self.shape = array.shape
        self.dtype: np.dtype[Any] = array.dtype if unpacking is None else unpacking.dtype
        self.unpacking = unpacking
        self.ahead: Ahead | None = None
        """Values that were prefetched."""
        self.in_turn: InTurn | None = None
        """Reads ahead in variables that are loaded one after the other."""

    def __reduce__(self) -> tuple[object, ...]:
        return LazyArray, (self.array, self.unpacking)

    def __dask_tokenize__(self) -> object:
        token = "xzarr3.LazyArray", self.array.__dask_tokenize__()
        return token if self.unpacking is None else (*token, self.unpacking.__dask_tokenize__())

    def unpack(self, unpacking: Unpacking) -> None:
        """Unpack values that are read from now on."""
        self.unpacking = unpacking
        self.dtype = unpacking.dtype

    @short_traceback
    def __getitem__(self, key: indexing.ExplicitIndexer) -> AnyArray:
        selection, arrange = self.selected(key)
        return self._read(selection) if arrange is None else arrange(self.read_selected(selection))

    def selected(self, key: indexing.ExplicitIndexer) -> tuple[Chosen, Arrange | None]:
        """What is read for an index, and the function that arranges the values, if they need that."""
        if isinstance(key, indexing.VectorizedIndexer):
            return _points(self.shape, key.tuple)
        if isinstance(key, indexing.OuterIndexer):
            return orthogonal_selection(key.tuple, self.shape), None
        return basic_selection(key.tuple, self.shape), None

    def _read(self, selection: Chosen) -> AnyArray:
        found = None if self.ahead is None else self.ahead.take(self, selection)
        if found is None and self.in_turn is not None:
            found = self.in_turn.take(self, selection)
        return self.read_selected(selection) if found is None else found

    def read_selected(self, selection: Chosen) -> AnyArray:
        """Read a normalized selection from the store."""
        if self.unpacking is not None:
            return read_unpacked(self.array, selection, self.unpacking)
        return self.array.read_selected(selection)

    def read_region(self, region: tuple[slice | int, ...]) -> AnyArray:
        """Read a region in this thread; other threads only wait for the store."""
        threads = None if self.array.engine.waiting else 1
        selection = basic_selection(region, self.shape)
        if self.unpacking is not None:
            return read_unpacked(self.array, selection, self.unpacking, threads=threads)
        return self.array.read_selected(selection, threads=threads)

    async def async_getitem(self, key: indexing.ExplicitIndexer) -> AnyArray:
        if self.array.store.concurrency <= 1:
            return await asyncio.to_thread(self.__getitem__, key)
        # Not asyncio's own pool: it has too few threads to load all variables at a time.
        read = partial(contextvars.copy_context().run, self.__getitem__, key)
        return await asyncio.get_running_loop().run_in_executor(waiters.get(), read)


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
