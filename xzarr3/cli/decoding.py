"""Decodes values by the CF conventions for printing, with xarray, which is imported only for that."""

from __future__ import annotations

from typing import Any

import numpy as np

from xzarr3._types import AnyArray
from xzarr3.arrays import Array
from xzarr3.checks.coordinates import masked_value
from xzarr3.cli.running import HintedError
from xzarr3.errors import listed, printable

_CODING = ("scale_factor", "add_offset", "missing_value", "_Unsigned", "dtype")


def attributes_of(array: Array) -> list[str]:
    """What of the metadata of an array says how its values are decoded, as xarray does; mostly nothing."""
    meta = array.metadata
    if array.dtype.kind not in "biufc" or (meta.shape and meta.dimension_names is None):
        return []
    found = [name for name in _CODING if name in meta.attributes]
    if "since" in str(meta.attributes.get("units")):
        found.append("units")
    if masked_value(array) is not None:
        found.append("fill_value" if array.format.fill_value_is_mask else "_FillValue")
    return found


def decoded(array: Array, values: AnyArray) -> AnyArray:
    """Values of an array, decoded; dates and durations as text.

    Raises
    ------
    HintedError
        If xarray cannot decode them.
    """
    from xarray import Variable, conventions
    from xarray.coders import CFTimedeltaCoder

    attributes = {name: value for name, value in array.metadata.attributes.items() if name != "_FillValue"}
    masked = masked_value(array)
    if masked is not None:
        attributes["_FillValue"] = masked[()]
    variable = Variable([f"dim_{axis}" for axis in range(values.ndim)], values, attributes)
    durations = CFTimedeltaCoder(decode_via_units=False)  # A number of days is no date.
    try:
        found: Any = conventions.decode_cf_variable(array.basename, variable, decode_timedelta=durations)
        return _times_as_text(found.values)
    except (ValueError, TypeError, OverflowError, AttributeError) as error:
        raise HintedError(
            f"xarray cannot decode '{printable(array.name)}' by {listed(attributes_of(array))}: {error}",
            "--raw prints the values as they are stored",
        ) from error


def _times_as_text(values: AnyArray) -> AnyArray:
    if values.dtype.kind == "M":
        return np.asarray(np.datetime_as_string(values, unit="auto"))
    if values.dtype.kind == "m":
        return values.astype(str)
    if values.dtype.kind != "O":
        return values
    texts = [each.isoformat().removesuffix("T00:00:00") for each in values.flat]  # Of other calendars.
    return np.array(texts, np.dtypes.StringDType()).reshape(values.shape)
