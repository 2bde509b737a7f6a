"""Encodes values for existing variables, exactly in the encoding in which these are stored.

Values that this encoding cannot represent are refused: before anything is written, or when they are computed
if they are in a dask array. xarray's own functions would round them, truncate them, or change units that the
stored variable does not get.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
from xarray import Variable, conventions
from xarray.core.common import contains_cftime_datetimes

from xzarr3.arrays import Array
from xzarr3.errors import ArgumentError, DataTypeValidationError, MetadataError, shorten
from xzarr3.xarray.absent import as_masked
from xzarr3.xarray.exact import PACKING, UNFAITHFUL, encode_values, is_lazy, unit_of
from xzarr3.xarray.variables import as_variable

STANDARD = frozenset(("standard", "gregorian", "proleptic_gregorian"))
_DATES, _LENGTHS = "dates of the calendar", "lengths of time"
UNITS = ("days", "hours", "minutes", "seconds", "milliseconds", "microseconds", "nanoseconds")


class InexactTimesError(DataTypeValidationError):
    """Times that cannot be represented exactly in the stored units; ``found`` are finer ones that can."""


def decoded_as_stored(arrays: Mapping[str, Array]) -> dict[Hashable, Variable]:
    """The variables of a group by name, decoded lazily. Their ``encoding`` tells how they are stored.

    Arrays without dimension names are left out.
    """
    variables: dict[Hashable, Variable] = {}
    for name, array in arrays.items():
        names = array.metadata.dimension_names or ()
        if len(names) == array.ndim and None not in names:
            variables[name] = as_variable(array)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Unable to decode time axis")
        decoded, _, _ = conventions.decode_cf_variables(variables, {}, decode_coords=False)
    return dict(decoded)


def inherits_units(array: Array, stored: Variable) -> bool:
    """Whether a variable has the units of the variable that it bounds, and none among its own attributes."""
    return "units" in stored.encoding and "units" not in array.metadata.attributes


def encode_as_stored(
    variable: Variable, name: str, array: Array, stored: Variable, *, units: str | None = None
) -> Variable:
    """Encode the values of a variable in the encoding of the stored variable.

    Parameters
    ----------
    variable : Variable
    name : str
    array : Array
        The stored array.
    stored : Variable
        The stored variable, from :func:`decoded_as_stored`.
    units : str, optional
        Units of time to use instead of the stored ones.

    Raises
    ------
    InexactTimesError
        If times cannot be represented exactly in the units.
    ValueError
        If other values cannot be represented in the stored encoding.
    """
    masked = as_masked(variable)
    if masked is not None:
        _check_absent(masked, name, array, stored)
        variable = Variable(variable.dims, masked.filled(0), variable.attrs, variable.encoding, fastpath=True)
    kind = _checked_kind(variable, name, array, stored)
    if array.is_optional and array.dtype.kind == "T" and set(PACKING).isdisjoint(stored.encoding):
        return variable  # Missing text has no value there.
    is_time = kind == _LENGTHS or kind.startswith(_DATES)
    encoding = dict(stored.encoding)
    if units is not None:
        encoding["units"] = units
    if array.dtype.kind in "SU":  # With the stored dtype, longer text would be truncated.
        encoding.pop("dtype", None)
    if array.is_optional and variable.dtype.kind in "biu":  # Else by way of xarray's floating numbers.
        encoding["dtype"] = array.dtype
    attrs = dict(variable.attrs)
    if not is_time:  # The stored units apply, and these attributes would conflict with the encoding.
        for key in ("units", "calendar"):
            if key in encoding:
                attrs.pop(key, None)
    given = Variable(variable.dims, variable._data, attrs, encoding, fastpath=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", UNFAITHFUL)
        encoded = encode_values(given, name, explicit=False, exact=True)
    needed, wanted = encoded.attrs.get("units"), encoding.get("units")
    if is_time and unit_of(needed) != unit_of(wanted):  # The reference date may be spelled differently.
        raise InexactTimesError(
            f"times of variable {name!r} cannot be expressed exactly in the units {wanted!r} and the data "
            f"type {np.dtype(encoding.get('dtype', encoded.dtype))} in which it is stored",
            found=needed,
            advice=f"pass widen_units=True, which stores all of the variable anew in {needed!r}; or use such "
            f"units from the first write on, encoding={{{name!r}: {{'units': {needed!r}}}}}",
        )
    if masked is None or not masked.mask.any():
        return encoded
    elements = np.array(array.fitted(np.asarray(encoded.data), encoded.shape))
    elements[masked.mask] = array.zdtype.default_scalar()
    return encoded.copy(deep=False, data=elements)


def _check_absent(masked: Any, name: str, array: Array, stored: Variable) -> None:
    """Refuse elements without a value for an array that cannot hold them as such."""
    is_packed = not set(PACKING).isdisjoint(stored.encoding)
    if masked.mask.any() and (is_packed or not array.is_optional):
        at = tuple(int(each[0]) for each in np.nonzero(np.atleast_1d(masked.mask)))
        raise DataTypeValidationError(
            f"variable {name!r} has no value at index {at}, but in the store each element has one",
            path=array.path,
            field="data_type",
            found=array.zdtype.name,
            accepted="values, or an array of data type 'optional' that is not packed",
            advice="fill it with .fillna(), convert it with .astype(float), to numbers among which NaN marks "
            "what is absent, or write the dataset anew with mode='w'",
        )


def fitted(encoded: Variable, name: str, array: Array) -> Any:
    """Encoded values in the data type of the array. A dask array stays one; its blocks are fitted later.

    Raises
    ------
    ValueError
        If the data type of the array cannot represent them.
    """
    data = encoded.data
    if is_lazy(data):
        return data
    try:
        return array.fitted(np.asarray(data), encoded.shape)
    except MetadataError as error:
        if array.dtype.kind not in "SU":
            raise
        raise ArgumentError(
            f"Mismatched dtypes for variable {name} between Zarr store on disk and dataset to append: {error}"
        ) from error


def _kind(variable: Variable, calendar: str | None = None) -> str:
    """What decoded values are, in words; ``calendar`` is that of objects, empty if these are no dates."""
    kind = variable.dtype.kind
    if kind == "M":
        calendar = "standard"
    elif kind != "O":
        named = {"m": _LENGTHS, "V": f"records of dtype {variable.dtype}"}
        return named.get(kind, "text" if kind in "SUT" else "numbers")
    elif calendar is None and contains_cftime_datetimes(variable):
        dates = (value for value in np.asarray(variable.data).flat if hasattr(value, "calendar"))
        calendar = str(next(dates).calendar).lower()
    return f"{_DATES} {'standard' if calendar in STANDARD else calendar!r}" if calendar else "text"


def _checked_kind(variable: Variable, name: str, array: Array, stored: Variable) -> str:
    """The kind of values. Those of another kind than the stored ones, or with other units, are refused.

    Numbers may be stored as times if their units say that they are such. What objects are, their values tell.
    """
    here = _kind(variable)
    there = _kind(stored, stored.encoding.get("calendar", "standard" if "units" in stored.encoding else ""))
    if array.is_optional and array.dtype.kind == "b":
        there = "numbers"
    units = variable.attrs.get("units", variable.encoding.get("units"))
    is_raw = here == "numbers" and units is not None and units == stored.encoding.get("units")
    objects = variable.dtype.kind == "O" and here == "text"
    if variable.size and here != there and not is_raw and not objects:
        raise ArgumentError(
            f"Mismatched dtypes for variable {name} between Zarr store on disk and dataset to append: it has "
            f"{here} of dtype {variable.dtype} here, and {there} of dtype {array.dtype} in the store"
            + (f", in {stored.encoding['units']!r}" if "units" in stored.encoding else "")
            + "; convert the values, as with .astype() or .convert_calendar(), or write the dataset anew "
            "with mode='w'"
        )
    for key in ("units", "calendar", *PACKING):
        one, other = variable.attrs.get(key), stored.encoding.get(key, stored.attrs.get(key))
        if one is None or one != one:  # NaN is missing in any case.
            continue
        if one != other and (other is not None or key in PACKING):
            raise ArgumentError(
                f"variable {name!r} has the attribute {key} {shorten(one)} here and {shorten(other)} in the "
                "store, which keeps one for all values; give unpacked values, as xarray.decode_cf does, "
                f"convert them, or correct .attrs[{key!r}]"
            )
    return here


def finer(one: str | None, other: str) -> str:
    """The finer of two units of time with the same reference date.

    Examples
    --------
    >>> finer("days since 2000-01-01", "hours since 2000-01-01")
    'hours since 2000-01-01'
    """
    ranks = {word: rank for rank, word in enumerate(UNITS)}
    return other if one is None else max(other, one, key=lambda units: ranks.get(unit_of(units), -1))


def place(
    name: str,
    variable: Variable,
    array: Array,
    slices: Mapping[Hashable, slice],
    append_dim: Hashable | None,
) -> tuple[Variable, tuple[slice, ...]]:
    """A variable with its dimensions in stored order, and the region of the array that it is written to.

    Raises
    ------
    ValueError
        If its dimensions or their lengths differ from the stored ones.
    """
    dims = tuple(array.dimension_names or ())
    if set(dims) != {*variable.dims} or len(dims) != array.ndim:
        raise ArgumentError(
            f"variable {name!r} already exists with different dimension names {dims} != {variable.dims}, "
            "but changing variable dimensions is not supported by to_zarr(); rename those of the dataset "
            "with .rename(), or replace the store with mode='w'"
        )
    sizes, region = variable.sizes, list[slice]()
    for dim, size in zip(dims, array.shape, strict=True):
        start, stop, _ = slices.get(dim, slice(None)).indices(size)
        added = slice(size, size + sizes[dim])
        region.append(added if dim == append_dim else slice(start, max(start, stop)))
    lengths = {dim: part.stop - part.start for dim, part in zip(dims, region, strict=True)}
    differ = [dim for dim, length in lengths.items() if length != sizes[dim]]
    if differ:
        found = [
            f"{dim!r} has {sizes[dim]} here and {lengths[dim]} in the "
            f"{'region' if dim in slices else 'store'}"
            for dim in differ
        ]
        along = next((dim for dim in differ if dim in slices), None)
        if along is None and append_dim is None:
            advice = "pass append_dim to make the store longer, region to write a part of it, or mode='w'"
        elif along is None:
            advice = f"only {append_dim!r} gets longer, so give all of the others, as after .reindex_like()"
        elif slices[along] == slice(None):
            advice = f"add the coordinate {along!r} to find the region with, or pass "
            advice += f"region={{{along!r}: slice(...)}}"
        else:
            start = slices[along].start or 0
            advice = (
                f"pass the part of the dataset that goes there, or region={{{along!r}: slice({start}, "
                f"{start + sizes[along]})}}; append_dim makes the store longer"
            )
        raise ArgumentError(
            f"variable {name!r} already exists with different dimension sizes: {'; '.join(found)}; {advice}"
        )
    return variable if variable.dims == dims else variable.transpose(*dims), tuple(region)
