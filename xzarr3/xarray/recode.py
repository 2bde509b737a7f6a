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

from xzarr3._types import AnyArray
from xzarr3.arrays import Array
from xzarr3.errors import ArgumentError, DataTypeValidationError, MetadataError, shorten
from xzarr3.xarray.exact import MARKS, encode_values, is_lazy
from xzarr3.xarray.variables import as_variable

_STANDARD = frozenset(("standard", "gregorian", "proleptic_gregorian"))
_UNITS = ("days", "hours", "minutes", "seconds", "milliseconds", "microseconds", "nanoseconds")
_PACKING = (*MARKS, "scale_factor", "add_offset", "_Unsigned")


class InexactTimesError(DataTypeValidationError):
    """Times that cannot be represented exactly in the stored units.

    ``units`` are finer units that can represent them.
    """

    units: str = ""


def decoded_as_stored(arrays: Mapping[str, Array], mask: bool) -> dict[Hashable, Variable]:
    """The variables of a group by name, decoded lazily. Their ``encoding`` tells how they are stored.

    Arrays without dimension names are left out.

    Parameters
    ----------
    arrays : mapping of str to Array
    mask : bool
        Use the fill value of an array as its ``_FillValue``.
    """
    variables: dict[Hashable, Variable] = {}
    for name, array in arrays.items():
        names = array.metadata.dimension_names or ()
        if len(names) == array.ndim and None not in names:
            variables[name] = as_variable(array, mask)
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
    _check_kind(variable, name, array, stored)
    is_time = _is_time(variable)
    encoding = dict(stored.encoding)
    if units is not None:
        encoding["units"] = units
    if array.dtype.kind in "SU":  # With the stored dtype, longer text would be truncated.
        encoding.pop("dtype", None)
    if is_time:
        _check_calendar(variable, name, encoding)
    elif _stores_times(stored):
        _check_raw_times(variable, name, encoding)
    else:
        _check_units(variable, name, stored)
    _check_packing(variable, name, stored)
    attrs = dict(variable.attrs)
    if not is_time:  # The stored units apply, and these attributes would conflict with the encoding.
        for key in ("units", "calendar"):
            if key in encoding:
                attrs.pop(key, None)
    given = Variable(variable.dims, variable._data, attrs, encoding, fastpath=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Times can't be serialized faithfully")
        warnings.filterwarnings("ignore", "Timedeltas can't be serialized faithfully")
        encoded = encode_values(given, name, explicit=False, exact=True)
    found, wanted = encoded.attrs.get("units"), encoding.get("units")
    if is_time and _word(found) != _word(wanted):  # The reference date may be spelled differently.
        raise _inexact(name, wanted, np.dtype(encoding.get("dtype", encoded.dtype)), str(found))
    return encoded


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


def _is_time(variable: Variable) -> bool:
    return variable.dtype.kind in "mM" or (
        variable.dtype.kind == "O" and bool(contains_cftime_datetimes(variable))
    )


def _stores_times(stored: Variable) -> bool:
    """Whether a decoded variable has times, also if these are out of numpy's range."""
    return _is_time(stored) or (stored.dtype.kind == "O" and "calendar" in stored.encoding)


def _check_kind(variable: Variable, name: str, array: Array, stored: Variable) -> None:
    """Refuse values of another kind than the stored ones, such as text among numbers."""
    new, old = variable.dtype, stored.dtype
    is_text = new.kind in "SUT", array.dtype.kind in "SUTO"
    if new.kind == "O" or is_text == (True, True):
        return
    kinds = {"M": "dates", "m": "lengths of time"}
    differ = is_text[0] != is_text[1] or ("V" in (new.kind, old.kind) and new != old)
    if not differ and new.kind in kinds and not _stores_times(stored):
        raise ArgumentError(
            f"variable {name!r} is stored as numbers of dtype {old} without units of time, and would hold "
            f"{kinds[new.kind]}; give numbers, or write the dataset anew with mode='w'"
        )
    if differ or (new.kind in kinds and (new.kind == "m") != (old.kind == "m")):
        raise ArgumentError(
            f"Mismatched dtypes for variable {name} between Zarr store on disk and dataset to append. Store "
            f"has dtype {old} but dataset to append has dtype {new}; convert it with .astype()"
        )


def _check_calendar(variable: Variable, name: str, encoding: Mapping[str, Any]) -> None:
    calendar = str(encoding.get("calendar", "standard")).lower()
    own = "standard"
    if variable.dtype.kind == "m":
        return
    if variable.dtype.kind == "O":
        first = next((value for value in np.asarray(variable.data).flat if hasattr(value, "calendar")), None)
        own = str(getattr(first, "calendar", own)).lower()
    if own != calendar and not {own, calendar} <= _STANDARD:
        raise ArgumentError(
            f"dates of variable {name!r} have the calendar {own!r}, those stored have {calendar!r}; "
            f"convert the dates, for instance with .convert_calendar({calendar!r})"
        )


def _check_raw_times(variable: Variable, name: str, encoding: Mapping[str, Any]) -> None:
    """Refuse numbers for stored times, unless their attribute ``units`` equals the stored units."""
    units = variable.attrs.get("units", variable.encoding.get("units"))
    if units != encoding.get("units") and variable.size:
        raise ArgumentError(
            f"variable {name!r} is stored as times in units {encoding.get('units')!r}, but the values given "
            f"are numbers of dtype {variable.dtype} with units {units!r}; give dates, or numbers with the "
            "same attribute 'units'"
        )


def _check_units(variable: Variable, name: str, stored: Variable) -> None:
    """Refuse numbers whose units or calendar are not the stored ones; numbers without units have these."""
    for key in ("units", "calendar"):
        here, there = variable.attrs.get(key), stored.attrs.get(key)
        if here is not None and there is not None and here != there:
            raise ArgumentError(
                f"variable {name!r} has the {key} {here!r} here and {there!r} in the store, which keeps one "
                f"for all values; convert the values, or correct .attrs[{key!r}]"
            )


def _check_packing(variable: Variable, name: str, stored: Variable) -> None:
    """Refuse packed values, as their attributes tell, whose packing is not the stored one."""
    for key in _PACKING:
        here, there = variable.attrs.get(key), stored.encoding.get(key, stored.attrs.get(key))
        if here is not None and here == here and here != there:  # NaN is missing in any case.
            raise ArgumentError(
                f"variable {name!r} has the attribute {key} {shorten(here)} here and {shorten(there)} in the "
                "store, so its values are packed in another way than those stored; give unpacked values, as "
                "xarray.open_dataset and xarray.decode_cf do"
            )


def _inexact(name: str, units: Any, dtype: np.dtype[Any], needed: str) -> InexactTimesError:
    error = InexactTimesError(
        f"times of variable {name!r} cannot be expressed exactly in the units {units!r} and the data type "
        f"{dtype} in which it is stored",
        found=needed,
        advice=f"pass widen_units=True, which stores all of the variable anew in {needed!r}; or use such "
        f"units from the first write on, encoding={{{name!r}: {{'units': {needed!r}}}}}",
    )
    error.units = needed
    return error


def finer(one: str | None, other: str) -> str:
    """The finer of two units of time with the same reference date.

    Examples
    --------
    >>> finer("days since 2000-01-01", "hours since 2000-01-01")
    'hours since 2000-01-01'
    """
    ranks = {word: rank for rank, word in enumerate(_UNITS)}
    return other if one is None else max(other, one, key=lambda units: ranks.get(_word(units), -1))


def _word(units: object) -> str:
    """The unit in units of time, such as ``days``."""
    return str(units).strip().partition(" ")[0].lower()


def widened(
    new: Variable | None,
    name: str,
    array: Array,
    stored: Variable,
    units: str,
    shape: tuple[int, ...],
    region: tuple[slice, ...],
) -> AnyArray:
    """All values of a variable encoded in other units: the stored ones, with new ones in ``region``.

    Raises
    ------
    ValueError
        If the data type cannot represent them.
    """
    old = encode_as_stored(stored.load(), name, array, stored, units=units)
    values = np.zeros(shape, array.dtype)
    values[tuple(slice(length) for length in stored.shape)] = fitted(old, name, array)
    if new is not None:
        loaded = Variable(new.dims, np.asarray(new.data), new.attrs, new.encoding)
        encoded = encode_as_stored(loaded, name, array, stored, units=units)
        values[region] = fitted(encoded.transpose(*stored.dims), name, array)
    return values


def fitting(
    name: str,
    encoded: Variable,
    array: Array,
    region: Mapping[Hashable, slice],
    append_dim: Hashable | None,
) -> Variable:
    """``encoded`` with its dimensions in stored order, after a check that its shape fits.

    Raises
    ------
    ValueError
        If its dimensions or their lengths differ from the stored ones.
    """
    dims = tuple(array.dimension_names or ())
    if encoded.dims != dims:
        if set(dims) != set(encoded.dims):
            raise ArgumentError(
                f"variable {name!r} already exists with different dimension names {dims} != {encoded.dims}, "
                "but changing variable dimensions is not supported by to_zarr(); rename those of the dataset "
                "with .rename(), or replace the store with mode='w'"
            )
        encoded = encoded.transpose(*dims)
    there = {}
    for dim, size in zip(dims, array.shape, strict=True):
        if dim != append_dim:
            there[dim] = len(range(*region[dim].indices(size))) if dim in region else size
    given = {dim: size for dim, size in encoded.sizes.items() if dim != append_dim}
    if there != given:
        raise _wrong_sizes(name, given, there, region, append_dim)
    return encoded


def _wrong_sizes(
    name: str,
    given: Mapping[Any, int],
    there: Mapping[Any, int],
    region: Mapping[Hashable, slice],
    append_dim: Hashable | None,
) -> ArgumentError:
    """The error for sizes of a variable that differ from those ``there``: in the store, or in its region."""
    differ = [dim for dim in there if there[dim] != given[dim]]
    sizes = [
        f"{dim!r} has {given[dim]} here and {there[dim]} in the {'region' if dim in region else 'store'}"
        for dim in differ
    ]
    if any(dim in region for dim in differ):
        dim = next(dim for dim in differ if dim in region)
        start = region[dim].start or 0
        advice = f"pass the part of the dataset that goes there, or region={{{dim!r}: slice({start}, "
        advice += f"{start + given[dim]})}}; append_dim makes the store longer"
    elif append_dim is not None:
        advice = f"an append changes {append_dim!r} only, so give all of the others, as after .reindex_like()"
    else:
        advice = "pass append_dim to make the store longer, region to write a part of it, or mode='w'"
    return ArgumentError(
        f"variable {name!r} already exists with different dimension sizes: {'; '.join(sizes)}; {advice}"
    )
