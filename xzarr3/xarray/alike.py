"""Makes the stored values of several arrays mean the same, so that they can be joined.

Arrays of one variable in several stores may be packed by other scales, mark missing values otherwise, or
count time in other units. Where all decode their values alike, nothing is done. Else each array that differs
gets a function that converts its values when they are read. What cannot be converted exactly is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from xarray import Variable

from xzarr3._types import AnyArray
from xzarr3.conventions.fill_value_attribute import (
    encode_fill_value,
    follows_version_2,
    to_fill_value_attribute,
)
from xzarr3.errors import ArgumentError, DataTypeValidationError, shorten
from xzarr3.joined.array import JoinedArray, Source
from xzarr3.readable import ReadableArray
from xzarr3.xarray.coders import MARKS, PACKING, STANDARD, UNITS, decoded_by
from xzarr3.xarray.exact import encode_values
from xzarr3.xarray.variables import are_times, own_attributes, seen_attributes

_TIMES = ("units", "calendar")
_OTHERS = ("dtype", "_Encoding")
_EARLIEST = -(2**63)  # Marks times that are missing, as in numpy.


def coded(
    array: ReadableArray, bounded: ReadableArray | None = None, mask: bool | None = None
) -> dict[str, Any]:
    """The attributes by which the values of an array are decoded, in one form for equal meanings.

    Bounds have the units of the variable that they bound, ``bounded``. ``mask`` is that of
    :func:`xzarr3.xarray.variables.seen_attributes`.
    """
    attributes = seen_attributes(array, mask)
    if bounded is not None:
        owner = seen_attributes(bounded, mask)
        attributes = {key: owner[key] for key in _TIMES if key in owner} | attributes
    found = {key: attributes[key] for key in (*PACKING, *_TIMES, *_OTHERS) if key in attributes}
    if array.dtype.kind == "f" and not {"scale_factor", "add_offset"} & found.keys():
        for key in MARKS:
            if key in found and np.size(found[key]) == 1 and found[key] != found[key]:
                del found[key]  # A NaN is missing in any case.
    if are_times(found) and str(found.get("calendar", "standard")).lower() in STANDARD:
        found["calendar"] = "standard"
    return found


def alike(
    name: str,
    arrays: Sequence[ReadableArray],
    bounded: Sequence[ReadableArray] | None = None,
    *,
    mask: bool | None = None,
) -> tuple[list[Source], dict[str, Any]]:
    """The arrays of one variable as sources of a joined array, and the attributes of that.

    Parameters
    ----------
    name : str
        The name of the variable, for errors.
    arrays : sequence of Array or JoinedArray
    bounded : sequence, optional
        The arrays whose bounds they are.
    mask : bool, optional
        Whether the fill value of an array marks missing values; by default in formats where xarray stores it
        so.

    Raises
    ------
    ArgumentError
        If values cannot be converted exactly. The error names two arrays that differ.
    """
    owners: Sequence[Any] = bounded or [None] * len(arrays)
    found = [coded(*each, mask) for each in zip(arrays, owners, strict=True)]
    keys = [  # Bits that are read as another sign mean other numbers in a wider type.
        _key(each) + (array.dtype.str if "_Unsigned" in each else "")
        for array, each in zip(arrays, found, strict=True)
    ]
    attributes = _stored(arrays[0], mask)
    if len(set(keys)) == 1:
        return [Source(array) for array in arrays], attributes
    other = next(at for at, key in enumerate(keys) if key != keys[0])
    if all(map(are_times, found)):
        target = _common_times(name, arrays, found, other)
        attributes.update(target)
        for key in PACKING:
            if key not in target:
                attributes.pop(key, None)
        dtype = "int64" if all(array.dtype.kind in "iu" for array in arrays) else "float64"
        sources = []
        for array, each in zip(arrays, found, strict=True):
            convert = Retimed(name, array.place, each, target, dtype)
            sources.append(Source(_watched(array), convert, np.dtype(dtype)))
        return sources, attributes
    one, another = _plain(found[0]), _plain(found[other])
    differing = [key for key in (one | another) if repr(one.get(key)) != repr(another.get(key))]
    differing = differing or ["_Unsigned"]
    unknown = [key for key in differing if key not in PACKING]
    if unknown:
        raise _differ(name, unknown[0], arrays, found, other, "convert the values of one of them")
    if any(array.dtype.kind not in "iufc" for array in arrays):
        advice = "only numbers are converted; store one of them anew, as the other is stored"
        raise _differ(name, differing[0], arrays, found, other, advice)
    if any(array.dtype.kind in "iu" and array.dtype.itemsize == 8 for array in arrays):
        advice = "they would be read as floating point numbers, which hold no integers of 64 bits exactly"
        raise _differ(name, differing[0], arrays, found, other, advice)
    for key in (*PACKING, "dtype"):
        attributes.pop(key, None)
    made: dict[str, Unpacked] = {}  # Equal ones are pickled once.
    sources = []
    for array, each in zip(arrays, found, strict=True):
        packing = {key: value for key, value in each.items() if key in (*PACKING, "dtype")}
        unpack = made.setdefault(_key(packing), Unpacked(packing))
        sources.append(Source(_watched(array), unpack, unpack.dtype_of(array)))
    return sources, attributes


def _stored(array: ReadableArray, mask: bool | None) -> dict[str, Any]:
    """The attributes of an array as version 3 has them."""
    meta = array.metadata
    if follows_version_2(array.format) and mask is not False:
        meta = to_fill_value_attribute(replace(meta, zarr_format=3), is_null=meta.fill_is_null)
    attributes = own_attributes(meta, array.format)
    mark = seen_attributes(array, mask).get("_FillValue")
    if isinstance(mark, bytes):
        attributes["_FillValue"] = encode_fill_value(mark, array.dtype)
    return attributes


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether attributes of :func:`coded` decode values alike."""
    return one == other or _key(one) == _key(other)  # A NaN is equal to no other.


def _key(attributes: Mapping[str, Any]) -> str:
    return repr(_plain(attributes))


def _plain(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes with Python's numbers for numpy's, in one order."""
    return {key: np.asarray(attributes[key]).tolist() for key in sorted(attributes)}


def _differ(
    name: str, key: str, arrays: Sequence[Any], found: Sequence[Mapping[str, Any]], other: int, advice: str
) -> ArgumentError:
    one, another = (
        f"{arrays[at].place} has {f'{key} {shorten(found[at][key])}' if key in found[at] else f'no {key}'}"
        for at in (0, other)
    )
    return ArgumentError(f"variable {name!r} cannot be joined: {one}, {another}; {advice}")


@dataclass(frozen=True)
class Unpacked:
    """Decodes values as xarray does: missing ones are NaN, packed ones floating point numbers."""

    attributes: Mapping[str, Any]

    def __call__(self, values: AnyArray) -> AnyArray:
        return decoded_by(self.attributes, values, "joined", decode_times=False)

    def dtype_of(self, array: ReadableArray) -> np.dtype[Any]:
        """The dtype of the decoded values of an array."""
        found = self(np.empty(0, array.dtype)).dtype
        return np.dtype("f4" if array.dtype.itemsize <= 2 else "f8") if found.kind in "iu" else found


def _watched(array: Any) -> Any:
    """An array of which each read checks that its attributes are still those by which it is converted."""
    if array._is_decoded or isinstance(array, JoinedArray):
        return array
    found = copy(array)
    found._is_decoded = True
    return found


@dataclass(frozen=True)
class Retimed:
    """Converts times to other units, exactly.

    Parameters
    ----------
    name, place : str
        The variable and its place, for errors.
    attributes, target : mapping
        The attributes by which values are decoded, before and after.
    dtype : str
        The dtype of the converted values.
    """

    name: str
    place: str
    attributes: Mapping[str, Any]
    target: Mapping[str, Any]
    dtype: str

    def __call__(self, values: AnyArray) -> AnyArray:
        counted = self._counted(values)
        if counted is not None:
            return counted
        dims = tuple(map(str, range(values.ndim)))
        missing = np.asarray(pd.isnull(decoded_by(self.attributes, values, self.name, decode_times=False)))
        mark = np.nan if self.dtype == "float64" else _EARLIEST
        if missing.all():  # xarray decodes and encodes no array without a date.
            return np.full(values.shape, mark, self.dtype)
        decoded = decoded_by(self.attributes, values, self.name)
        given = Variable(dims, decoded, {}, {**self.target, "dtype": self.dtype}, fastpath=True)
        try:
            encoded = encode_values(given, self.name, exact=True)
        except DataTypeValidationError as error:
            raise ArgumentError(
                f"times of variable {self.name!r} of {self.place}, in {self.attributes['units']!r}, are not "
                f"exact in {self.target['units']!r}; store them in the units of the others first"
            ) from error
        needed = str(encoded.attrs.get("units"))
        # The date may be spelled anew.
        if needed.partition(" ")[0] != self.target["units"].partition(" ")[0]:
            raise ArgumentError(
                f"times of variable {self.name!r} of {self.place} need {needed!r}, and "
                f"are joined in {self.target['units']!r}; store them in the units of the others first"
            )
        return np.where(missing, mark, encoded.values).astype(self.dtype, copy=False)

    def _counted(self, values: AnyArray) -> AnyArray | None:
        """Integers that are converted by one multiplication and one addition; None where that is not exact.

        xarray takes a hundred times as long to decode and encode a few dates, which counts for many stores.
        """
        if self.dtype != "int64" or values.dtype.kind not in "iu" or not self.attributes.keys() <= {*_TIMES}:
            return None
        here, there = (_clock(each["units"], each.get("calendar")) for each in (self.attributes, self.target))
        if here is None or there is None:
            return None
        factor, part = divmod(here[1], there[1])
        first, rest = divmod(here[0] - there[0], there[1])
        largest = max(abs(int(each)) for each in (values.min(initial=0), values.max(initial=0)))
        if part or rest or largest * factor + abs(first) >= 2**63:
            return None
        return values.astype(np.int64) * factor + first


@lru_cache(maxsize=4096)
def _clock(units: Any, calendar: Any) -> tuple[int, int] | None:
    """The date of zero and the length of one, in nanoseconds; None where no such numbers tell all dates."""
    attributes = {"units": units} if calendar is None else {"units": units, "calendar": calendar}
    try:
        dates = decoded_by(attributes, np.array([0, 1, 1000]), "")
    except (ValueError, OverflowError):  # Who decodes values tells it.
        return None
    if dates.dtype != "M8[ns]":
        return None
    zero, one, many = dates.astype(np.int64).tolist()
    return (zero, one - zero) if many - zero == 1000 * (one - zero) > 0 else None


def _common_times(
    name: str, arrays: Sequence[Any], found: Sequence[Mapping[str, Any]], other: int
) -> dict[str, Any]:
    """The units in which the times of all arrays are exact: the finest unit there is, or a finer one."""
    calendars = [str(each.get("calendar", "standard")).lower() for each in found]
    if len(set(calendars)) > 1:
        other = next(at for at, each in enumerate(calendars) if each != calendars[0])
        raise _differ(
            name, "calendar", arrays, found, other, "convert one of them, as .convert_calendar() does"
        )
    words = [str(each["units"]).partition(" ")[0].lower() for each in found]
    words = [word if word in UNITS else f"{word}s" for word in words]
    finest = max((UNITS.index(word) for word in words if word in UNITS), default=0)
    since = str(found[0]["units"]).partition(" since ")[2]
    target: dict[str, Any] = {"calendar": calendars[0]}
    if all(array.dtype.kind in "iu" for array in arrays) and any(
        mark in each for each in found for mark in MARKS
    ):
        target["_FillValue"] = _EARLIEST
    different = {_key(each): each for each in found}.values()
    for unit in UNITS[finest:-1]:
        target["units"] = f"{unit} since {since}"
        try:
            for each in different:
                bare = {key: each[key] for key in _TIMES if key in each}
                Retimed(name, "", bare, target, "int64")(np.zeros(1, "int64"))
        except ArgumentError:
            continue
        return target
    raise _differ(name, "units", arrays, found, other, "store them in the same units first")
