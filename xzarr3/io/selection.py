"""Selections: turns the index of an array into the elements selected along each dimension.

Every index becomes one of two forms. Basic, orthogonal and block selections are a product over the
dimensions. They hold for each dimension a :class:`DimSelection`, a forward progression of elements, or a
:class:`DimIndices`, any elements in ascending order. Selections of single elements, and masks of several
dimensions, become :class:`Points`. Knows nothing of chunks, except for block selections.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from types import EllipsisType
from typing import Any, ClassVar, SupportsIndex, TypeAlias, TypeGuard, cast

import msgspec
import numpy as np
import numpy.typing as npt

from xzarr3.display.units import counted
from xzarr3.errors import SelectionError, shorten
from xzarr3.grid import Grid

BasicIndex: TypeAlias = "SupportsIndex | slice | EllipsisType"
Fields: TypeAlias = "str | list[str]"
BasicSelection: TypeAlias = "BasicIndex | Fields | tuple[BasicIndex | Fields, ...]"
Indices: TypeAlias = npt.NDArray[np.intp]
ArrayIndex: TypeAlias = "npt.NDArray[Any] | Sequence[Any]"
Selection: TypeAlias = "BasicIndex | Fields | ArrayIndex | tuple[BasicIndex | Fields | ArrayIndex, ...]"
"""Any index that numpy takes, except ``newaxis``, and names of fields."""

_BASIC = "integers, slices and one Ellipsis"
_ANY = "integers, slices, one Ellipsis, and arrays of integers or of truth values"
_SIMPLE = frozenset({int, slice})


class DimSelection(msgspec.Struct, frozen=True):
    """The elements selected along one dimension.

    Parameters
    ----------
    start, step, count : int
        The ``count`` elements ``start``, ``start + step``, ...; ``step`` is at least 1.
    reverse : bool
        Whether the result has the elements in reverse order.
    drop : bool
        Whether the index is an integer, so that the result lacks the dimension.
    """

    start: int
    step: int
    count: int
    reverse: bool = False
    drop: bool = False
    order: ClassVar[None] = None

    @property
    def stop(self) -> int:
        """One past the last selected element."""
        return self.start + (self.count - 1) * self.step + 1 if self.count else self.start


class DimIndices(msgspec.Struct, frozen=True, eq=False):
    """The elements selected along one dimension, where they are no progression.

    Parameters
    ----------
    indices : ndarray of int
        The elements in ascending order; an element may occur several times.
    order : ndarray of int, optional
        Position of each element in the result; None if the result has them in ascending order.
    """

    indices: Indices
    order: Indices | None = None
    step: ClassVar[int] = 1
    reverse: ClassVar[bool] = False
    drop: ClassVar[bool] = False

    @property
    def count(self) -> int:
        """Number of selected elements."""
        return len(self.indices)

    @property
    def start(self) -> int:
        """The first selected element."""
        return int(self.indices[0])

    @property
    def stop(self) -> int:
        """One past the last selected element."""
        return int(self.indices[-1]) + 1


DimChoice: TypeAlias = DimSelection | DimIndices


class Points(msgspec.Struct, frozen=True, eq=False):
    """Points that index arrays select together, each combined with the selection of the other dimensions.

    Parameters
    ----------
    axes : tuple of int
        The dimensions that have an index array.
    indices : tuple of ndarray of int
        For each of these dimensions one index per point; no index is negative.
    shape : tuple of int
        Shape of the points in the result.
    others : tuple of DimSelection
        The selection of each other dimension, in their order.
    position : int
        Number of other dimensions that come before the points in the result; dropped ones do not count.
    """

    axes: tuple[int, ...]
    indices: tuple[Indices, ...]
    shape: tuple[int, ...]
    others: tuple[DimSelection, ...] = ()
    position: int = 0


def out_of_bounds(index: int, size: int, axis: int) -> SelectionError:
    """The error for an index beyond the ends of a dimension."""
    accepted = f"{-size} to {size - 1}" if size else "no index, since it is empty"
    return SelectionError(
        f"axis {axis}: index {index} is out of bounds for length {size}; accepted: {accepted}"
    )


def select_dimension(index: SupportsIndex | slice, size: int, axis: int) -> DimSelection:
    """Work out the index of one dimension of length ``size``."""
    if isinstance(index, slice):
        try:
            start, stop, step = index.indices(size)
        except (TypeError, ValueError) as error:
            raise SelectionError(f"axis {axis}: {error}; found {index!r}") from error
        count = len(range(start, stop, step))
        length = abs(step) if count > 1 else 1  # Otherwise it means nothing, and may exceed 64 bits.
        if step > 0:
            return DimSelection(start, length, count)
        return DimSelection(start + (count - 1) * step if count else 0, length, count, reverse=True)
    try:
        at = operator.index(index)
    except TypeError as error:
        raise SelectionError(
            f"axis {axis}: not a basic selection: {type(index).__name__}; accepted: {_BASIC}"
        ) from error
    if not -size <= at < size:
        raise out_of_bounds(at, size, axis)
    return DimSelection(at + size if at < 0 else at, 1, 1, drop=True)


def split_fields(selection: Selection) -> tuple[Fields | None, Selection]:
    """Split a selection into the fields that it names, or None, and the elements.

    Raises
    ------
    SelectionError
        If it has several names outside a list.

    Examples
    --------
    >>> split_fields(("x", slice(1, 3)))
    ('x', (slice(1, 3, None),))
    """
    indices = selection if isinstance(selection, tuple) else (selection,)
    fields: list[Fields] = [index for index in indices if isinstance(index, str) or _is_names(index)]
    if not fields:
        return None, selection
    if len(fields) > 1:
        raise SelectionError(f"not a selection of fields: {fields!r}; accepted: a name, or one list of names")
    return fields[0], tuple(index for index in indices if not (isinstance(index, str) or _is_names(index)))


def _is_names(index: object) -> TypeGuard[list[str]]:
    return isinstance(index, list) and bool(index) and all(isinstance(name, str) for name in index)


def basic_selection(selection: object, shape: Sequence[int]) -> tuple[DimSelection, ...]:
    """Work out a basic selection.

    Parameters
    ----------
    selection : int, slice, Ellipsis or a tuple of these
    shape : sequence of int
        Shape of the array that is selected from.

    Raises
    ------
    SelectionError
        If the selection is of another kind, has too many indices or is out of bounds.

    Examples
    --------
    >>> basic_selection((..., slice(None, None, -2)), (3, 5))[1]
    DimSelection(start=0, step=2, count=3, reverse=True, drop=False)
    """
    indices = _expanded(selection, shape, lambda index: 1, _BASIC)
    return tuple(
        select_dimension(cast("SupportsIndex | slice", index), size, axis)
        for axis, (index, size) in enumerate(zip(indices, shape, strict=True))
    )


def numpy_selection(selection: object, shape: Sequence[int]) -> tuple[DimChoice, ...] | Points:
    """Work out a selection by numpy's rules: basic, or with arrays that select points together.

    Raises
    ------
    SelectionError
        If the selection does not fit the array, or has a ``newaxis``.

    Examples
    --------
    >>> numpy_selection(([4, 0, 2], slice(None)), (5, 3))[0].indices
    array([0, 2, 4])
    >>> numpy_selection(([4, 0], [1, 1]), (5, 3)).shape
    (2,)
    """
    # Fast path: most selections have an integer or a slice for each dimension, and others no array.
    given = selection if isinstance(selection, tuple) else (selection,)
    if len(given) == len(shape) and _SIMPLE.issuperset(map(type, given)):
        return tuple(map(select_dimension, cast("Sequence[int | slice]", given), shape, itertools.count()))
    if not any(map(_is_array, given)):
        return basic_selection(selection, shape)
    indices = _with_arrays(selection, shape)
    arrays = [axis for axis, index in enumerate(indices) if isinstance(index, np.ndarray)]
    plain = all(isinstance(indices[axis], (slice, np.ndarray)) for axis in range(len(shape)))
    if plain and len(arrays) == 1 and cast("Indices", indices[arrays[0]]).ndim == 1:
        return _product(indices, shape)
    together = [axis for axis, index in enumerate(indices) if not isinstance(index, slice)]
    # As in numpy, an Ellipsis separates index arrays even where it stands for no dimension.
    apart = [isinstance(index, slice) or index is ... for index in given]
    adjacent = all(apart) or not any(apart[apart.index(False) : len(apart) - apart[::-1].index(False)])
    return _points(indices, shape, together, together[0] if adjacent else 0)


def orthogonal_selection(selection: object, shape: Sequence[int]) -> tuple[DimChoice, ...]:
    """Work out an orthogonal selection: the product of one index for each dimension.

    A boolean array selects along one dimension; an array of no dimensions is an integer.

    Raises
    ------
    SelectionError
        If the selection does not fit the array, or an array has several dimensions.
    """
    indices = _with_arrays(selection, shape, flat=True)
    return _product(indices, shape)


def vectorized_selection(selection: object, shape: Sequence[int]) -> tuple[DimChoice, ...] | Points:
    """Work out a selection whose arrays and integers select points together.

    The dimensions of the points come first in the result.

    Raises
    ------
    SelectionError
        If the selection does not fit the array, or the arrays do not fit each other.

    Examples
    --------
    >>> points = vectorized_selection(([0, 2], slice(None), [1, -1]), (3, 4, 5))
    >>> points.axes, points.shape, [other.count for other in points.others]
    ((0, 2), (2,), [4])
    """
    indices = _with_arrays(selection, shape)
    together = [axis for axis, index in enumerate(indices) if not isinstance(index, slice)]
    return _points(indices, shape, together, 0) if together else _product(indices, shape)


def coordinate_selection(selection: object, shape: Sequence[int]) -> tuple[DimChoice, ...] | Points:
    """Work out a selection of single elements: an array of indices, or an integer, for each dimension.

    Raises
    ------
    SelectionError
        If a dimension has no indices, or the arrays do not fit the array or each other.

    Examples
    --------
    >>> coordinate_selection(([0, 2], [1, -1]), (3, 4)).shape
    (2,)
    """
    indices = selection if isinstance(selection, tuple) else (selection,)
    given = [_as_array(index, at) if _is_array(index) else index for at, index in enumerate(indices)]
    wrong = [index for index in given if index is ... or isinstance(index, slice) or _is_mask(index)]
    if wrong or len(given) != len(shape):
        raise SelectionError(
            f"not a selection of elements: {shorten(selection)}; accepted: for each of the {len(shape)} "
            "dimensions an array of integers"
        )
    if given and not any(isinstance(index, np.ndarray) for index in given):
        given[0] = [given[0]]  # integers alone select one element, as an array of one element
    return vectorized_selection(tuple(given), shape)


def mask_selection(selection: object, shape: Sequence[int]) -> tuple[DimChoice, ...] | Points:
    """Work out a selection by a mask that has the shape of the array.

    Raises
    ------
    SelectionError
        If it is no array of truth values, or has another shape.

    Examples
    --------
    >>> mask_selection(np.eye(2, dtype=bool), (2, 2)).shape
    (2,)
    """
    masks = selection if isinstance(selection, tuple) else (selection,)
    if len(masks) != 1 or not _is_mask(masks[0]) or np.shape(masks[0]) != tuple(shape):
        raise SelectionError(
            f"not a mask of the array: {shorten(selection)}; accepted: one array of truth values of shape "
            f"{tuple(shape)}"
        )
    return vectorized_selection(masks, shape)


def as_mask(mask: npt.ArrayLike) -> npt.NDArray[Any]:
    """The array of a mask, which may be a list.

    Raises
    ------
    SelectionError
        If it makes no array.
    """
    try:
        return np.asarray(mask)
    except ValueError as error:  # Lists of unequal lengths.
        raise SelectionError(
            f"not a mask of the array: {shorten(mask)}; accepted: one array of truth values of its shape"
        ) from error


def _is_mask(index: object) -> bool:
    return isinstance(index, np.ndarray) and index.dtype.kind == "b"


def block_selection(selection: object, shape: Sequence[int], grid: Grid) -> tuple[DimSelection, ...]:
    """Work out a selection of whole stored units, by their coordinates in the grid.

    Raises
    ------
    SelectionError
        If it is no basic selection of the grid, or a slice has a step other than 1.

    Examples
    --------
    >>> from xzarr3.grid import RegularGrid
    >>> block_selection((slice(1, 3),), (10,), RegularGrid((4,)))
    (DimSelection(start=4, step=1, count=6, reverse=False, drop=False),)
    """
    counts = grid.counts(tuple(shape))
    chosen = []
    for at, (blocks, axis, size) in enumerate(
        zip(basic_selection(selection, counts), grid.axes, shape, strict=True)
    ):
        if blocks.count > 1 and (blocks.step != 1 or blocks.reverse):
            raise SelectionError(f"axis {at}: blocks can be selected with a step of 1 only")
        start = axis.start(blocks.start) if blocks.count else 0
        last = blocks.stop - 1
        stop = min(axis.start(last) + axis.length_at(last), size) if blocks.count else 0
        chosen.append(DimSelection(start, 1, stop - start))
    return tuple(chosen)


def _is_array(index: object) -> bool:
    return isinstance(index, (np.ndarray, list, tuple, range)) or getattr(index, "ndim", 0) != 0


def _as_array(index: object, at: int) -> npt.NDArray[Any]:
    """An index as an array of integers or booleans; ``at`` is its place in the selection, for errors."""
    try:
        array = np.asarray(index)
    except (TypeError, ValueError) as error:
        raise SelectionError(f"index {at}: not an index: {shorten(index)}; accepted: {_ANY}") from error
    if array.size == 0 and array.dtype.kind == "f" and not isinstance(index, np.ndarray):
        array = array.astype(np.intp)
    if array.dtype.kind not in "iub" or (array.dtype.kind == "b" and not array.ndim):
        raise SelectionError(f"index {at}: not an index: an array of {array.dtype}; accepted: {_ANY}")
    return array


def _expanded(
    selection: object, shape: Sequence[int], taken: Callable[[Any], int], accepted: str
) -> tuple[object, ...]:
    """Replace the Ellipsis, and the indices left out at the end, by full slices.

    ``taken`` returns the number of dimensions that an index takes.
    """
    indices = selection if isinstance(selection, tuple) else (selection,)
    for index in indices:
        if index is None or isinstance(index, (bool, np.bool_)):
            raise SelectionError(f"not a selection: {index!r}; accepted: {accepted}")
    gaps = [at for at, index in enumerate(indices) if index is ...]
    if len(gaps) > 1:
        raise SelectionError("a selection can have only one Ellipsis ('...')")
    given = sum(taken(index) for index in indices if index is not ...)
    if given > len(shape):
        dimensions = counted(len(shape), "dimension")
        raise SelectionError(
            f"too many indices: {given} for an array of {dimensions}; give {len(shape)} at most"
        )
    rest = (slice(None),) * (len(shape) - given)
    gap = gaps[0] if gaps else len(indices)
    return (*indices[:gap], *rest, *indices[gap + 1 :])


def _with_arrays(
    selection: object, shape: Sequence[int], *, flat: bool = False
) -> tuple[int | slice | Indices, ...]:
    """An index for each dimension: a slice, an integer, or an array of integers; no integer is negative.

    With ``flat``, arrays of several dimensions are refused.
    """
    given = selection if isinstance(selection, tuple) else (selection,)
    arrays = tuple(_as_array(index, at) if _is_array(index) else index for at, index in enumerate(given))

    def taken(index: object) -> int:
        return index.ndim if isinstance(index, np.ndarray) and index.dtype.kind == "b" else 1

    found: list[int | slice | Indices] = []
    for index in _expanded(arrays, shape, taken, _ANY):
        axis = len(found)
        if flat and isinstance(index, np.ndarray) and index.ndim > 1:
            raise SelectionError(
                f"axis {axis}: not an orthogonal selection: an array of {index.ndim} dimensions; accepted: "
                "arrays of one dimension"
            )
        if not isinstance(index, np.ndarray):
            if isinstance(index, slice):
                select_dimension(index, shape[axis], axis)
                found.append(index)
            else:
                found.append(select_dimension(cast("SupportsIndex", index), shape[axis], axis).start)
        elif index.dtype.kind == "b":
            expected = tuple(shape[axis : axis + index.ndim])
            if index.shape != expected:
                raise SelectionError(
                    f"axis {axis}: a mask of shape {index.shape} does not fit dimensions of shape {expected}"
                )
            found.extend(index.nonzero())
        else:
            found.append(_in_bounds(index, shape[axis], axis))
    return tuple(found)


def _in_bounds(index: npt.NDArray[Any], size: int, axis: int) -> int | Indices:
    if index.size:
        for at in (int(index.min()), int(index.max())):
            if not -size <= at < size:
                raise out_of_bounds(at, size, axis)
    array: Indices = index.astype(np.intp)
    if index.dtype.kind == "i":
        array[array < 0] += size
    return array if array.ndim else int(array)


def _product(indices: Sequence[int | slice | Indices], shape: Sequence[int]) -> tuple[DimChoice, ...]:
    return tuple(
        _choice(index) if isinstance(index, np.ndarray) else select_dimension(index, size, axis)
        for axis, (index, size) in enumerate(zip(indices, shape, strict=True))
    )


def _choice(indices: Indices) -> DimChoice:
    """The elements that an array selects along one dimension, as a progression where they are one."""
    progression = as_progression(indices)
    if progression is not None:
        return progression
    if np.all(indices[1:] >= indices[:-1]):
        return DimIndices(indices)
    order = np.argsort(indices, kind="stable")
    return DimIndices(indices[order], order)


def as_progression(indices: Indices) -> DimSelection | None:
    """These indices as a forward or backward progression; None if they are no progression."""
    count = len(indices)
    if count == 0:
        return DimSelection(0, 1, 0)
    first = int(indices[0])
    if count == 1:
        return DimSelection(first, 1, 1)
    last, step = int(indices[-1]), int(indices[1]) - first
    if step == 0 or last - first != step * (count - 1) or not np.all(np.diff(indices) == step):
        return None
    return DimSelection(first, step, count) if step > 0 else DimSelection(last, -step, count, reverse=True)


def _points(
    indices: Sequence[int | slice | Indices], shape: Sequence[int], together: list[int], position: int
) -> Points:
    try:
        arrays = np.broadcast_arrays(*(np.asarray(indices[axis], np.intp) for axis in together))
    except ValueError as error:
        shapes = [np.shape(cast("Any", indices[axis])) for axis in together]
        raise SelectionError(
            f"index arrays of shapes {shapes} cannot be broadcast together; give arrays of "
            "one shape to select points, or select each dimension alone with .oindex"
        ) from error
    slices = [(index, shape[axis], axis) for axis, index in enumerate(indices) if isinstance(index, slice)]
    others = tuple(itertools.starmap(select_dimension, slices))
    flat = tuple(array.reshape(-1) for array in arrays)
    return Points(tuple(together), flat, arrays[0].shape, others, position)
