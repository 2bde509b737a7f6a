"""Selections of points, separated into selections along single dimensions as far as that is possible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from xzarr3._types import AnyArray
from xzarr3.io.selection import DimChoice, Points, as_progression, orthogonal_selection, vectorized_selection

Selected: TypeAlias = "tuple[DimChoice, ...] | Points"
Arrange: TypeAlias = Callable[[AnyArray], AnyArray]


def separated_points(key: Sequence[Any], shape: tuple[int, ...]) -> tuple[Selected, Arrange]:
    """A vectorized selection by slices and index arrays, whose dimensions come first in the result.

    xarray turns slices into index arrays, too. So index arrays that vary along a dimension of their own are
    separated again and read as slices or orthogonally. Otherwise a few time series of a long record would be
    read as millions of points.

    Returns
    -------
    selection : tuple of DimSelection or DimIndices, or Points
        What to read.
    arrange : callable
        Turns the values of that into the result.

    Examples
    --------
    >>> time, place = np.arange(100)[:, None], np.array([[2, 5]])
    >>> selection, arrange = separated_points((time, place), (100, 8))
    >>> [along.count for along in selection]
    [100, 2]
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
        selection: Selected = orthogonal_selection(tuple(chosen), shape)
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
