"""Compares values with those that are stored already: what an append leaves as it is, and labels.

Values are compared as they are stored, after packing and after any rounding by the codecs of the array.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from xzarr3._types import AnyArray
from xzarr3.arrays import Array
from xzarr3.errors import ArgumentError, listed
from xzarr3.formats import documents
from xzarr3.readable import ReadableArray
from xzarr3.stores import MemoryStore
from xzarr3.xarray.absent import marked
from xzarr3.xarray.coders import decoded_by
from xzarr3.xarray.exact import told
from xzarr3.xarray.variables import seen_attributes

_ORDERED = "biufmMSUOT"  # Kinds of data types whose labels can be compared.


class Compared(Array):
    """A stored array that is compared with the values written to it, and not changed."""

    def write_selected(self, selection: Any, values: npt.ArrayLike, *_: object, **options: Any) -> None:
        """Compare values with those of a selection.

        Raises
        ------
        ValueError
            If they differ.
        """
        stored = self.read_selected(selection, threads=options.get("threads"))
        region = tuple(slice(each.start, each.start + each.count) for each in selection)
        first = difference(self, region, self.fitted(values, stored.shape), stored)
        if first is not None:
            raise other_values({self.basename: first})


def difference(
    array: Array, region: Sequence[slice], given: AnyArray, stored: AnyArray, *, may_complete: bool = False
) -> str | None:
    """The first element that would change if ``given`` were stored where ``stored`` was read, in words.

    None if no element would change. Labels that are as good as the same, see :func:`is_near`, do not differ.
    With ``may_complete`` the result is empty if only elements would change that are :func:`unwritten`.
    """
    given, stored = comparable(array, given), comparable(array, stored)
    differs = unequal(given, stored)
    if differs.any() and is_index(array) and is_near(decoded(array, given), decoded(array, stored)):
        return None
    if differs.any() and stored.dtype.kind == "f":
        differs &= ~_are_rounded(array, given, stored)
    if differs.any():  # A codec may have rounded what is stored.
        memory = MemoryStore()
        for key, document in array.format.documents(array.metadata, array.path).items():
            memory.set(key, documents.encode(document, array.path))
        copy = Array(memory, array.path, array.metadata, format=array.format)
        copy.set(tuple(region), given)
        differs &= unequal(comparable(array, copy.get(tuple(region))), stored)
    if not differs.any():
        return None
    if may_complete:
        differs &= ~unwritten(array, stored)
        if not differs.any():
            return ""
    at = np.unravel_index(int(differs.argmax()), differs.shape)
    place = [part.start + int(index) for part, index in zip(region, at, strict=True)]
    here, there = (shown(array, np.asarray(each[at])) for each in (given, stored))
    return f"{f'at {place} ' if place else ''}is {here} here and {there} in the store"


def _are_rounded(array: Array, given: AnyArray, stored: AnyArray) -> AnyArray:
    """Mask of packed floating point numbers that differ by what it takes to unpack and pack them again."""
    attributes = seen_attributes(array)
    if "scale_factor" not in attributes and "add_offset" not in attributes:
        return np.zeros(stored.shape, bool)
    here, there = decoded(array, given), decoded(array, stored)
    if not here.dtype.kind == there.dtype.kind == "f":
        return np.zeros(stored.shape, bool)
    rounding = 4 * max(np.finfo(each.dtype).eps for each in (stored, there))
    limit = rounding * (np.abs(there) + np.abs(np.asarray(attributes.get("add_offset", 0))))
    with np.errstate(invalid="ignore"):  # Of infinity, which differs.
        return np.asarray(np.abs(here - there) <= limit)


def comparable(array: Array, values: AnyArray) -> AnyArray:
    """Values of an array, those of optional elements as xarray shows them, and large integers as objects."""
    shows = marked(array)
    if shows is None:
        return values
    found = array.zdtype.presented(array.zdtype.cast_array(values))
    return (shows if shows.holds(found) else shows._replace(dtype=np.dtype(object)))(found)


def unequal(one: AnyArray, other: AnyArray, *, are_labels: bool = False) -> AnyArray:
    """Mask of the elements that differ; two that are both missing do not, nor do labels that are near."""
    if one.dtype.kind == "V":
        bits = [np.ascontiguousarray(each)[..., None].view(f"V{each.itemsize}") for each in (one, other)]
        one, other = (each.view("u1").reshape(*one.shape, -1) for each in bits)
        return np.asarray((one != other).any(-1))
    missing = (one != one) & (other != other)
    differs = np.asarray((one != other) & ~missing, bool)
    if are_labels and differs.any() and is_near(one, other):
        return np.zeros_like(differs)
    return differs


def is_index(array: Array) -> bool:
    """Whether an array is the index coordinate of a dimension."""
    return array.dimension_names == (array.basename,)


def is_near(one: AnyArray, other: AnyArray) -> bool:
    """Whether decoded labels, floating point numbers, differ by less than a thousandth of their distance.

    This is the median distance of neighbours.
    """
    if not one.dtype.kind == other.dtype.kind == "f":
        return False
    near = np.median(np.abs(np.diff(other))) / 1000 if len(other) > 1 else 0
    return bool(
        np.allclose(other, one, rtol=0 if near > 0 else 1e-6, atol=near if near > 0 else 0, equal_nan=True)
    )


def other_values(found: Mapping[str, str], kind: str = "variables") -> ArgumentError:
    """The error for what an append does not change; ``found`` has the first difference of each variable."""
    name, first = next(iter(found.items()))
    return ArgumentError(
        f"the {kind} {listed(found)} have other values than in the store, which has one of each for old and "
        f"new values: {name!r} {first}; give the same values, as after .reindex_like() or .interp_like(), or "
        f"leave the {kind} out with .drop_vars({[*found]})"
        + ("; with append_dim, mode='a' stores new ones for all" if kind == "variables" else "")
    )


def other_labels(found: Mapping[str, str]) -> ArgumentError:
    """The error for coordinates of a dataset that are not those of the region it is written to."""
    name, first = next(iter(found.items()))
    return ArgumentError(
        f"the coordinates {listed(found)} are not those of the region: {name!r} {first}; pass "
        f"region={{{name!r}: 'auto'}}, which finds the region of the coordinate, leave it out with "
        f".drop_vars({[*found]}), or pass check_labels=False to write all"
    )


def decoded(array: ReadableArray, values: AnyArray) -> AnyArray:
    """Values of an array as xarray shows them, such as dates."""
    return decoded_by(seen_attributes(array), values, array.basename)


def shown(array: Array, value: AnyArray) -> str:
    """A single value, decoded, for a message."""
    found = decoded(array, value)[()]
    return repr(str(found)) if isinstance(found, str) else told(found)


def unwritten(array: Array, stored: AnyArray) -> AnyArray:
    """Mask of labels that are still to be written: missing ones, and fill values that the array has twice."""
    empty = np.asarray(pd.isnull(decoded(array, stored)))
    if array.fill_value is None:
        return empty
    fill_value = np.full_like(stored, array.fill_value, shape=())
    filled = ~unequal(stored, fill_value)
    if (filled & ~empty).any():
        filled &= np.count_nonzero(~unequal(array.get(), fill_value)) > 1
    return empty | filled


def check_appended(array: Array, labels: AnyArray, size: int, *, before: bool = False) -> None:
    """Refuse labels after which a coordinate is no longer unique, or no longer sorted, though it was.

    Parameters
    ----------
    array : Array
        The coordinate, with the attributes that it will have.
    labels : ndarray
        All labels, as they are stored: first those that are there, then the new ones.
    size : int
        The number of those that are there.
    before : bool
        Whether the new ones will be before those that are there.

    Raises
    ------
    ValueError
    """
    if not 0 < size < len(labels):
        return
    if before:  # Read from the last to the first, they follow.
        labels = np.concatenate([labels[:size][::-1], labels[size:][::-1]])
    found = misplaced(labels, [labels[:size]])
    if found is None:
        return
    at, order = found
    why = "would be there twice"
    if order:
        beside = shown(array, np.asarray(labels[at - 1]))
        order = order if not before else "decrease" if order == "increase" else "increase"
        why = f"would {'precede' if before else 'follow'} {beside}, though the labels {order}"
    raise _refused(array, labels, size, at, why, before)


def misplaced(labels: AnyArray, parts: Sequence[AnyArray]) -> tuple[int, str] | None:
    """The first label that is there twice or out of order, though within each of these parts none is.

    Returns its index, and whether the labels "increase" or "decrease"; empty if it is there twice.
    """
    if labels.dtype.kind not in _ORDERED:
        return None
    repeated = _repeated(labels)
    if repeated is not None and all(_repeated(part) is None for part in parts):
        return repeated, ""
    ends: dict[str, int] = {}  # Where an order ends that all parts have.
    for order, follows in (("increase", np.greater_equal), ("decrease", np.less_equal)):
        with np.errstate(invalid="ignore"):  # Missing ones among objects.
            steps, *own = (np.asarray(follows(each[1:], each[:-1]), bool) for each in (labels, *parts))
        if steps.all():
            return None
        if all(each.all() for each in own):
            ends[order] = int(np.argmin(steps)) + 1
    order = max(ends, key=ends.__getitem__, default="")
    return (ends[order], order) if order else None


def _repeated(labels: AnyArray) -> int | None:
    """The index of the first label that is there before; None if all differ."""
    if labels.dtype.kind == "O":  # numpy does not sort missing ones among objects.
        again = pd.Series(labels).duplicated().to_numpy()
    elif (labels[1:] > labels[:-1]).all():  # As most labels do: this is faster than to sort them.
        return None
    else:
        again = np.ones(len(labels), bool)
        again[np.unique(labels, return_index=True)[1]] = False
    return int(again.argmax()) if again.any() else None


def _refused(array: Array, labels: AnyArray, size: int, at: int, why: str, before: bool) -> ArgumentError:
    end, new = (shown(array, np.asarray(labels[index])) for index in (size - 1, at))
    name, element = array.basename, len(labels) - 1 - at if before else at - size
    last, how = ("first", "prepend those that precede") if before else ("last", "append those that follow")
    return ArgumentError(
        f"label {new} of the coordinate {name!r}, element {element} of the dataset, {why}; the {last} label "
        f"in '{array.name}' of {array.store} is {end}; {how}, as after .sel({name}=slice(...)), write to "
        f"those there with region={{{name!r}: 'auto'}}, or pass check_labels=False to write all"
    )
