"""Reading with ``engine="xzarr3"``: the entry point, the data store and the lazy arrays."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from xarray.backends.common import BackendArray
from xarray.core import indexing

from xzarr3._types import AnyArray
from xzarr3.errors import SelectionError

_Integers = npt.NDArray[np.int64]
_MAX_GAP = 4


class _Readable(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def chunks(self) -> tuple[int, ...]: ...
    def get(self, selection: Any) -> AnyArray: ...


def read_outer(array: _Readable, key: Sequence[Any]) -> AnyArray:
    """Read an orthogonal selection: each index applies to its own dimension.

    Index arrays may repeat, run backwards, be unordered, negative or empty. What lies close together is
    read together; chunks between the selected elements are not read.

    Parameters
    ----------
    array : Array
    key : sequence of int, slice or one-dimensional integer ndarray
        One index for each dimension.

    Returns
    -------
    ndarray
        Without the dimensions that an integer selects.
    """
    shape = []
    parts: list[list[tuple[Any, Any, Any]]] = []
    for axis, (index, size, chunk) in enumerate(zip(key, array.shape, array.chunks, strict=True)):
        if isinstance(index, np.ndarray):
            shape.append(index.size)
            parts.append(list(_runs(_positive(index.ravel(), size, axis), chunk)))
        elif isinstance(index, slice):
            shape.append(len(range(*index.indices(size))))
            parts.append([(index, None, slice(None))])
        else:
            parts.append([(index, None, None)])
    result = np.empty(shape, dtype=array.dtype)
    for part in product(*parts):
        block = array.get(tuple(source for source, _, _ in part))
        kept = [(within, place) for _, within, place in part if place is not None]
        for axis, (within, _) in enumerate(kept):
            if within is not None:
                block = block.take(within, axis=axis)
        result[_open_mesh([place for _, place in kept], shape)] = block
    return result


def _positive(index: AnyArray, size: int, axis: int) -> _Integers:
    wrapped = np.where(index < 0, index + size, index)
    outside = (wrapped < 0) | (wrapped >= size)
    if outside.any():
        raise SelectionError(f"axis {axis}: index {index[outside][0]} is out of bounds for length {size}")
    return wrapped


def _runs(index: _Integers, chunk: int) -> Iterator[tuple[slice, _Integers | None, Any]]:
    """Cover an index array with slices.

    Yields a slice of the array, where the elements lie within it (None: all, as they are) and where they
    go in the result.
    """
    if index.size == 0:
        return
    elements, position = np.unique(index, return_inverse=True)
    steps = np.diff(elements)
    if steps.size == 0 or (steps == steps[0]).all():
        source = slice(int(elements[0]), int(elements[-1]) + 1, int(steps[0]) if steps.size else 1)
        yield source, None if elements.size == index.size and (index == elements).all() else position, slice(None)
        return
    chunks = elements // chunk
    cuts = np.flatnonzero((np.diff(chunks) > 0) & (steps > _MAX_GAP)) + 1
    for first, last in zip([0, *cuts], [*cuts, elements.size], strict=True):
        start, stop = int(elements[first]), int(elements[last - 1]) + 1
        if first == 0 and last == elements.size:
            yield slice(start, stop), index - start, slice(None)
        else:
            place = np.flatnonzero((position >= first) & (position < last))
            yield slice(start, stop), index[place] - start, place


def _open_mesh(places: list[Any], shape: Sequence[int]) -> tuple[Any, ...]:
    if sum(isinstance(place, np.ndarray) for place in places) < 2:
        return tuple(places)
    return np.ix_(
        *(
            place if isinstance(place, np.ndarray) else np.arange(size)
            for place, size in zip(places, shape, strict=True)
        )
    )


def read_points(array: _Readable, key: Sequence[Any]) -> AnyArray:
    """Read a pointwise selection, as numpy's advanced indexing has it, sliced dimensions last.

    Only chunks that hold a point are read, each once. Dimensions whose indices do not depend on those of
    other dimensions are read as whole rows, so that a few series out of a long record cost a few reads.

    Parameters
    ----------
    array : Array
    key : sequence of slice or integer ndarray
        One index for each dimension; the arrays have the same number of dimensions and broadcast.

    Returns
    -------
    ndarray
    """
    given = {axis: index for axis, index in enumerate(key) if isinstance(index, np.ndarray)}
    common = np.broadcast_shapes(*(index.shape for index in given.values()))
    sliced = [axis for axis in range(len(key)) if axis not in given]
    lengths = [len(range(*key[axis].indices(array.shape[axis]))) for axis in sliced]
    result_shape = (*common, *lengths)
    if 0 in result_shape:
        return np.empty(result_shape, dtype=array.dtype)

    arrays = {
        axis: _reduced(_positive(index, array.shape[axis], axis)) for axis, index in given.items()
    }
    users: list[list[int]] = [
        [axis for axis, index in arrays.items() if index.shape[at] > 1] for at in range(len(common))
    ]
    # Where each dimension of the array goes in the result, for those that are read as whole rows.
    target = {axis: len(common) + at for at, axis in enumerate(sliced)}
    rows: list[Any] = list(key)
    pointed = []
    for axis, index in arrays.items():
        varying = [at for at, length in enumerate(index.shape) if length > 1]
        if not varying:
            rows[axis] = int(index.flat[0])
        elif len(varying) == 1 and users[varying[0]] == [axis]:
            rows[axis] = index.ravel()
            target[axis] = varying[0]
        else:
            pointed.append(axis)
    whole = sorted(target)

    if pointed:
        points = np.broadcast_arrays(*(arrays[axis] for axis in pointed))
        over = [at for at, length in enumerate(points[0].shape) if length > 1]
        flat = np.stack([index.ravel() for index in points])
        block = _gather(array, rows, pointed, whole, flat)
        order = [*over, *(target[axis] for axis in whole)]
        block = block.reshape(*(common[at] for at in over), *block.shape[1:])
    else:
        block = read_outer(array, rows)
        order = [target[axis] for axis in whole]
    block = block.transpose(np.argsort(order))
    missing = tuple(at for at in range(len(result_shape)) if at not in order)
    return np.broadcast_to(np.expand_dims(block, missing), result_shape).copy()


def _reduced(index: _Integers) -> _Integers:
    """The same indices without the repetition along dimensions on which they do not depend."""
    for at in range(index.ndim):
        first = index.take([0], axis=at)
        if index.shape[at] > 1 and (index == first).all():
            index = first
    return index


def _gather(
    array: _Readable, rows: list[Any], pointed: list[int], whole: list[int], points: _Integers
) -> AnyArray:
    """Read points, given as one row of ``points`` for each of the ``pointed`` dimensions.

    Returns an array of shape (number of points, length of each ``whole`` dimension).
    """
    lengths = [
        rows[axis].size
        if isinstance(rows[axis], np.ndarray)
        else len(range(*rows[axis].indices(array.shape[axis])))
        for axis in whole
    ]
    result = np.empty((points.shape[1], *lengths), dtype=array.dtype)
    chunks = np.array([array.chunks[axis] for axis in pointed])
    counts = [-(-array.shape[axis] // array.chunks[axis]) for axis in pointed]
    number = np.ravel_multi_index(tuple(points // chunks[:, None]), counts)
    order = np.argsort(number, kind="stable")
    cuts = np.flatnonzero(np.diff(number[order])) + 1
    kept = [axis for axis in range(len(rows)) if axis in whole or axis in pointed]
    to_front = [kept.index(axis) for axis in pointed]
    for group in np.split(order, cuts):
        here = points[:, group]
        low, high = here.min(axis=1), here.max(axis=1) + 1
        for axis, start, stop in zip(pointed, low, high, strict=True):
            rows[axis] = slice(int(start), int(stop))
        block = read_outer(array, rows)
        block = np.moveaxis(block, to_front, range(len(pointed)))
        result[group] = block[tuple(here - low[:, None])]
    return result
