"""Encodes values for existing variables, exactly in the encoding in which these are stored.

Values that this encoding cannot represent are refused: before anything is written, or when they are computed
if they are in a dask array. xarray's own functions would round them, truncate them, or change units that the
stored variable does not get.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from xarray import Variable, conventions
from xarray.core.common import contains_cftime_datetimes

from xzarr3.arrays import Array
from xzarr3.errors import ArgumentError, DataTypeValidationError, MetadataError, shorten
from xzarr3.model.metadata import ArrayMetadata
from xzarr3.nodes.resize import resized
from xzarr3.xarray.absent import as_masked
from xzarr3.xarray.coders import PACKING, STANDARD, UNFAITHFUL, UNITS, is_lazy, unit_of
from xzarr3.xarray.dates import date_coders, keep_missing
from xzarr3.xarray.exact import encode_values
from xzarr3.xarray.plan import WriteOptions, naming, stored_name
from xzarr3.xarray.variables import as_variable

_DATES, _LENGTHS = "dates of the calendar", "lengths of time"


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
        dates = date_coders(True, variables)
        decoded, _, _ = conventions.decode_cf_variables(
            variables, {}, decode_times=dates, decode_coords=False
        )
    for variable in decoded.values():
        keep_missing(variable)
    return dict(decoded)


@dataclass(frozen=True, eq=False)
class Change:
    """New values for a region of an existing array, and its new metadata.

    ``data`` are the values of the region, or all values if ``rewritten``. If ``compared``, they must be those
    of the region, which are not changed.
    """

    array: Array
    data: Any
    region: tuple[slice, ...]
    metadata: ArrayMetadata
    rewritten: bool = False
    compared: bool = False

    @property
    def grows(self) -> bool:
        """Whether the array gets a new shape in place."""
        return not self.rewritten and self.metadata.shape != self.array.shape


@dataclass(frozen=True)
class Recoder:
    """Encodes values for existing variables of a group, and works out the regions that they go to."""

    _arrays: Mapping[str, Array]
    _stored: Mapping[Hashable, Variable]
    """The stored variables, from :func:`decoded_as_stored`."""
    _slices: Mapping[Hashable, slice]
    _asked: WriteOptions
    _compared: Collection[str]
    """Names of the variables that are compared with the stored ones, and not written."""

    def changes(self, variables: Mapping[Hashable, Variable]) -> list[Change]:
        """The changes of existing variables.

        Raises
        ------
        ValueError
            If values cannot be stored in the encoding of the stored variable, or their dimensions differ.
        """
        found: dict[str, Change] = {}
        units: dict[str, str] = {}  # Finer units that are needed, by the variable that owns them.
        named = {stored_name(key): variable for key, variable in variables.items()}
        for name, variable in named.items():
            with naming(name, variable):
                try:
                    found[name] = self._change(variable, name)
                except InexactTimesError as error:
                    if not self._asked.widen_units or name in self._compared:
                        raise
                    owner = self._owner(name)
                    units[owner] = finer(units.get(owner), str(error.found))
        for name in map(str, self._stored) if units else ():
            needed = units.get(self._owner(name))
            if needed is not None:
                found[name] = self._widened(named.get(name), name, needed)
        # Rewritten bounds get their own units, and are put in place before their owner's units change.
        return sorted(found.values(), key=lambda each: each.rewritten and each.array.basename in units)

    def _owner(self, name: str) -> str:
        """The variable whose attributes contain the units of ``name``: itself, or the one that it bounds."""
        if "units" in self._stored[name].encoding and "units" not in self._arrays[name].metadata.attributes:
            for other, array in self._arrays.items():
                if array.metadata.attributes.get("bounds") == name:
                    return other
        return name

    def _change(self, variable: Variable, name: str) -> Change:
        compared = name in self._compared
        ordered, region, metadata = self._placed(variable, name)
        try:
            data = self._encoded(ordered, name)
        except DataTypeValidationError as error:
            if compared:
                error.advice = "give the values that are stored"
            raise
        return Change(self._arrays[name], data, region, metadata, compared=compared)

    def _widened(self, variable: Variable | None, name: str, units: str) -> Change:
        """The change that rewrites all of a variable in finer units of time."""
        array, stored = self._arrays[name], self._stored[name]
        region, metadata = tuple[slice, ...](), array.metadata
        if variable is not None:
            variable, region, metadata = self._placed(variable, name)
        values = np.zeros(metadata.shape, array.dtype)
        values[tuple(map(slice, stored.shape))] = self._encoded(stored.load(), name, units)
        if variable is not None:
            values[region] = self._encoded(variable.compute(), name, units)
        attributes = {**metadata.attributes, "units": units}
        calendar = stored.encoding.get("calendar")
        if calendar is not None:
            attributes["calendar"] = calendar
        return Change(array, values, region, replace(metadata, attributes=attributes), rewritten=True)

    def _encoded(self, variable: Variable, name: str, units: str | None = None) -> Any:
        """Values in the encoding and the data type of the stored array; blocks of dask are fitted later.

        Parameters
        ----------
        variable : Variable
        name : str
        units : str, optional
            Units of time to use instead of the stored ones.

        Raises
        ------
        InexactTimesError
            If times cannot be represented exactly in the units.
        ValueError
            If other values cannot be represented in the stored encoding.
        """
        array, stored = self._arrays[name], self._stored[name]
        masked = as_masked(variable)
        if masked is not None:
            _check_absent(masked, name, array, stored)
            values = masked.filled(0)
            variable = Variable(variable.dims, values, variable.attrs, variable.encoding, fastpath=True)
        encoded = _recoded(variable, name, array, stored, units)
        if is_lazy(encoded.data):
            return encoded.data
        try:
            elements = array.fitted(np.asarray(encoded.data), encoded.shape)
        except MetadataError as error:
            if array.dtype.kind not in "SU":
                raise
            raise ArgumentError(
                f"Mismatched dtypes for variable {name} between Zarr store on disk and dataset to append: "
                f"{error}"
            ) from error
        if masked is not None and masked.mask.any():
            elements = np.array(elements)
            elements[masked.mask] = array.zdtype.default_scalar()
        return elements

    def _placed(self, variable: Variable, name: str) -> tuple[Variable, tuple[slice, ...], ArrayMetadata]:
        """A variable in the order of the store, the region to write, and the new metadata of the array.

        Raises
        ------
        ValueError
            If its dimensions or their lengths differ from the stored ones.
        """
        array, slices, append_dim = self._arrays[name], self._slices, self._asked.append_dim
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
                advice = (
                    f"only {append_dim!r} gets longer, so give all of the others, as after .reindex_like()"
                )
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
                f"variable {name!r} already exists with different dimension sizes: {'; '.join(found)}; "
                f"{advice}"
            )
        shape = tuple(max(part.stop, size) for part, size in zip(region, array.shape, strict=True))
        ordered = variable if variable.dims == dims else variable.transpose(*dims)
        return ordered, tuple(region), resized(array.metadata, shape)


def _recoded(variable: Variable, name: str, array: Array, stored: Variable, units: str | None) -> Variable:
    """A variable encoded as the stored one; see :meth:`Recoder._encoded`."""
    kind = _checked_kind(variable, name, array, stored)
    if array.is_optional and array.dtype.kind == "T" and set(PACKING).isdisjoint(stored.encoding):
        return variable  # Missing text has no value there.
    if array.dtype.kind in "mM" and variable.dtype.kind == array.dtype.kind:
        return variable  # The data type has the units.
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
    return encoded


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
    objects = objects and not (array.dtype.kind in "biufc" and _holds_text(variable))
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


def _holds_text(variable: Variable) -> bool:
    """Whether there is text among objects, which xarray would convert to numbers; unknown of dask arrays."""
    items = () if is_lazy(variable.data) else np.asarray(variable.data).flat
    return any(isinstance(item, (str, bytes)) for item in items)


def finer(one: str | None, other: str) -> str:
    """The finer of two units of time with the same reference date.

    Examples
    --------
    >>> finer("days since 2000-01-01", "hours since 2000-01-01")
    'hours since 2000-01-01'
    """
    ranks = {word: rank for rank, word in enumerate(UNITS)}
    return other if one is None else max(other, one, key=lambda units: ranks.get(unit_of(units), -1))
