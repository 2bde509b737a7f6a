"""Decodes values by the CF conventions for printing, with xarray, which is imported only for that."""

from __future__ import annotations

import numpy as np

from xzarr3._types import AnyArray
from xzarr3.conventions.fill_value_attribute import follows_version_2
from xzarr3.errors import MetadataError
from xzarr3.readable import ReadableArray


def decoded(array: ReadableArray, values: AnyArray) -> AnyArray:
    """Values of an array, decoded as xarray does; dates and durations as text.

    Raises
    ------
    MetadataError
        If xarray cannot decode them.
    """
    mask = follows_version_2(array.format)
    named = not array.shape or array.dimension_names is not None
    if array.dtype.kind not in "biufc" or not named or not (mask or array.metadata.attributes):
        return values

    from xarray.coders import CFTimedeltaCoder

    from xzarr3.xarray.coders import decoded_by
    from xzarr3.xarray.variables import as_variable

    attributes = as_variable(array, mask).attrs
    durations = CFTimedeltaCoder(decode_via_units=False)  # A number of days is no date.
    try:
        found = decoded_by(attributes, values, array.basename, decode_timedelta=durations)
        return _times_as_text(found)
    except (ValueError, TypeError, OverflowError, AttributeError) as error:
        raise MetadataError(
            f"xarray cannot decode the values: {error}", path=array.path,
            advice=f"correct the attributes {sorted(attributes)}, or print them as they are with --raw",
        ) from error  # fmt: skip


def _times_as_text(values: AnyArray) -> AnyArray:
    if values.dtype.kind == "M":
        return np.asarray(np.datetime_as_string(values, unit="auto"))
    if values.dtype.kind == "m":
        return values.astype(str)
    if values.dtype.kind != "O":
        return values
    texts = [each.isoformat().removesuffix("T00:00:00") for each in values.flat]  # Of other calendars.
    return np.array(texts, np.dtypes.StringDType()).reshape(values.shape)
