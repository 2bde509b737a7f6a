"""Encodes and decodes values by xarray's own coders, also where these would fail or lose digits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from xarray import Variable, conventions
from xarray.coders import CFDatetimeCoder, CFTimedeltaCoder
from xarray.coding import variables
from xarray.coding.common import VariableCoder

from xzarr3._types import AnyArray
from xzarr3.errors import ArgumentError
from xzarr3.xarray.dates import RESOLUTIONS, date_coder, keep_missing
from xzarr3.xarray.variables import are_times

MARKS = ("_FillValue", "missing_value")
PACKING = (*MARKS, "scale_factor", "add_offset", "_Unsigned")
TIMES = ("units", "calendar")
CODING = (*PACKING, *TIMES, "dtype")
"""Attributes by which stored values are decoded."""
UNFAITHFUL = r"Time(delta)?s can't be serialized faithfully"
"""What warnings of xarray begin with, about times that it encodes in other units than those asked for."""

STANDARD = frozenset(("standard", "gregorian", "proleptic_gregorian"))
UNITS = ("days", "hours", "minutes", "seconds", "milliseconds", "microseconds", "nanoseconds")

# The coders that xarray applies to values for Zarr, in this order. Booleans stay booleans.
_CODERS: tuple[VariableCoder, ...] = getattr(conventions, "ZARR_CODERS", None) or (
    CFDatetimeCoder(),
    CFTimedeltaCoder(),
    variables.CFScaleOffsetCoder(),
    variables.CFMaskCoder(),
    variables.NativeEnumCoder(),
    variables.NonStringCoder(),
    variables.DefaultFillvalueCoder(),
)


def coded(variable: Variable, name: str) -> Variable:
    """A variable encoded by the coders."""
    resolution, variable = variable.dtype, _as_fine_as_its_units(variable)
    calendar = variable.encoding.get("calendar")
    no_dates = variable.dtype.kind == "M" and not is_lazy(variable.data) and np.isnat(variable.data).all()
    if calendar in ("standard", "gregorian") and no_dates:  # xarray would look for the earliest date.
        variable = variable.copy(deep=False)
        variable.encoding = {**variable.encoding, "calendar": "proleptic_gregorian"}
    asked = {key for key, value in variable.encoding.items() if value is not None}
    packing = asked & {"scale_factor", "add_offset"}
    for key in packing:
        value = np.asarray(variable.encoding[key])
        if value.size != 1 or not np.isfinite(value).all():
            found = f"variable {name!r}: {key}={variable.encoding[key]!r}"
            raise ArgumentError(f"{found}; accepted: a finite number")
        if value.ndim or (key == "scale_factor" and value.dtype.kind in "biu"):  # xarray divides in place.
            variable = variable.copy(deep=False)
            variable.encoding = {**variable.encoding, key: float(value.item())}
    if variable.dtype.kind in "biu" and asked & {*MARKS} and packing:
        variable = variable.copy(data=variable.data.astype("f8"))  # xarray would divide integers in place.
    if _marks_nan_and_other(variable.encoding):  # xarray would refuse two marks, but NaN is missing anyway.
        variable = variable.copy(deep=False)
        variable.encoding = {key: value for key, value in variable.encoding.items() if key != "_FillValue"}
    with np.errstate(invalid="ignore", over="ignore"):  # What this leads to is found by decoding.
        for coder in _CODERS:
            variable = coder.encode(variable, name=name)
    if no_dates and calendar is not None:
        variable.attrs["calendar"] = calendar
    if resolution.kind == "m" and "dtype" in variable.attrs:  # Which they are read with.
        variable.attrs["dtype"] = resolution.name
    return variable


def _marks_nan_and_other(encoding: Mapping[Any, Any]) -> bool:
    """Whether NaN is the ``_FillValue``, as xarray adds it to floats, beside another ``missing_value``."""
    fill_value, other = encoding.get("_FillValue"), encoding.get("missing_value")
    is_nan = isinstance(fill_value, (float, np.floating)) and bool(np.isnan(fill_value))
    return is_nan and isinstance(other, (int, float, np.number)) and not pd.isnull(other)


def _as_fine_as_its_units(variable: Variable) -> Variable:
    """``variable`` with times as fine as its units; otherwise xarray would divide by zero."""
    unit = RESOLUTIONS.get(unit_of(variable.encoding.get("units")).removesuffix("s"))
    if variable.dtype.kind not in "mM" or unit is None or is_lazy(variable.data):  # Of these, each block is.
        return variable
    finer = np.promote_types(variable.dtype, f"{variable.dtype.kind}8[{unit}]")
    return variable if finer == variable.dtype else variable.copy(data=variable.data.astype(finer))


def decoded_by(attrs: Mapping[Any, Any], values: AnyArray, name: str, **options: Any) -> AnyArray:
    """Stored values as xarray reads them by these attributes."""
    dims = tuple(map(str, range(values.ndim)))
    if values.dtype.kind == "f" and "units" in attrs:  # xarray multiplies time differences in place.
        values = values.copy()
    stored = Variable(dims, values, dict(attrs), fastpath=True)
    if are_times(attrs):
        options["decode_times"] = date_coder(options.get("decode_times", True))
    decoded = conventions.decode_cf_variable(name, stored, **options)
    keep_missing(decoded)
    return np.asarray(decoded.data)


def is_lazy(data: object) -> bool:
    """Whether values are in a dask array."""
    return hasattr(data, "__dask_graph__")


def unit_of(units: object) -> str:
    """The unit in units of time, such as ``days``."""
    return str(units).strip().partition(" ")[0].lower()
