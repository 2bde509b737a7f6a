"""Basic selections: what ``array[...]`` means, worked out per dimension.

A selection becomes one :class:`DimSelection` for each dimension: a forward progression
``start, start + step, ...`` of ``count`` elements, to be reversed afterwards or dropped from the result.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import SupportsIndex, TypeAlias, TypeGuard

from xzarr3.errors import SelectionError

BasicIndex: TypeAlias = "SupportsIndex | slice | EllipsisType"
Fields: TypeAlias = "str | list[str]"
BasicSelection: TypeAlias = "BasicIndex | Fields | tuple[BasicIndex | Fields, ...]"

_ACCEPTED = "integers, slices and one Ellipsis"


@dataclass(frozen=True, slots=True)
class DimSelection:
    """The elements selected along one dimension.

    Parameters
    ----------
    start, step, count : int
        The elements ``start``, ``start + step``, ..., ``count`` of them; ``step`` is at least 1.
    reverse : bool
        Whether the result runs the other way.
    drop : bool
        Whether an integer selected this, so that the result lacks the dimension.
    """

    start: int
    step: int
    count: int
    reverse: bool = False
    drop: bool = False

    @property
    def stop(self) -> int:
        """One past the last selected element."""
        return self.start + (self.count - 1) * self.step + 1 if self.count else self.start


def select_dimension(index: SupportsIndex | slice, size: int, axis: int) -> DimSelection:
    """Work out the index of one dimension of length ``size``."""
    if isinstance(index, slice):
        try:
            start, stop, step = index.indices(size)
        except (TypeError, ValueError) as error:
            raise SelectionError(f"axis {axis}: {error}; found {index!r}") from error
        count = len(range(start, stop, step))
        if step > 0:
            return DimSelection(start, step, count)
        return DimSelection(start + (count - 1) * step if count else 0, -step, count, reverse=True)
    try:
        at = operator.index(index)
    except TypeError as error:
        raise SelectionError(
            f"axis {axis}: not a basic selection: {type(index).__name__}; accepted: {_ACCEPTED}"
        ) from error
    if not -size <= at < size:
        raise SelectionError(f"axis {axis}: index {at} is out of bounds for length {size}")
    return DimSelection(at + size if at < 0 else at, 1, 1, drop=True)


def split_fields(selection: BasicSelection) -> tuple[Fields | None, BasicSelection]:
    """Take a selection apart into the fields it names, None if it names none, and the elements.

    Raises
    ------
    SelectionError
        If there are several names outside a list.

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
        raise SelectionError(
            f"not one selection of fields: {fields!r}; accepted: a name, or one list of names"
        )
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
    indices = selection if isinstance(selection, tuple) else (selection,)
    for index in indices:
        if index is None or isinstance(index, bool) or type(index).__name__ == "bool_":
            raise SelectionError(f"not a basic selection: {index!r}; accepted: {_ACCEPTED}")
    gaps = [at for at, index in enumerate(indices) if index is ...]
    if len(gaps) > 1:
        raise SelectionError("a selection can have only one Ellipsis ('...')")
    given = len(indices) - len(gaps)
    if given > len(shape):
        raise SelectionError(f"too many indices: {given} for an array of {len(shape)} dimensions")
    rest = (slice(None),) * (len(shape) - given)
    gap = gaps[0] if gaps else len(indices)
    indices = (*indices[:gap], *rest, *indices[gap + 1 :])
    return tuple(
        select_dimension(index, size, axis)
        for axis, (index, size) in enumerate(zip(indices, shape, strict=True))
    )
