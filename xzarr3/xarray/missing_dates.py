"""What xarray decodes otherwise than it is stored: missing dates, and the resolution of time differences.

cftime takes NaN for the date from which times are counted, so that xarray would read a missing date as that
one, and it refuses the integer that marks one. Here only the numbers that are dates are decoded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from xarray import Variable
from xarray.coding import times

from xzarr3._types import AnyArray
from xzarr3.xarray.exact import RESOLUTIONS
from xzarr3.xarray.unpack import Decoded


def keep_missing(variable: Variable) -> None:
    """Let a decoded variable have NaN, or NaT, where a date is missing."""
    data: Any = variable._data
    if type(data) is Decoded and getattr(data.func, "func", None) is times.decode_cf_datetime:
        data.func = partial(decoded_dates, data.func, data.dtype)


def announce_resolution(variable: Variable) -> None:
    """Let a decoded variable of time differences announce the resolution of its units, which its values have.

    xarray announces that of the attribute ``dtype``, though it decodes to the finer one of the two.
    """
    data: Any = variable._data
    if type(data) is Decoded and getattr(data.func, "func", None) is times.decode_cf_timedelta:
        unit = RESOLUTIONS.get(data.func.keywords["units"].removesuffix("s"))
        if unit is not None:
            finer = np.promote_types(data.dtype, f"m8[{unit}]")
            variable._data = Decoded(data.array, data.func, finer)


def decoded_dates(
    decode: Callable[[AnyArray], AnyArray], dtype: np.dtype[Any], numbers: AnyArray
) -> AnyArray:
    """Numbers as dates of cftime and NaN, or as those of numpy and NaT, as ``decode`` returns them.

    ``dtype`` is the one that they have if none of them is a date; ``decode`` may need one to tell.
    """
    # numpy 2.2.0 ends the process where it compares parts of smaller integers with a number beyond them.
    there = ~np.isnan(numbers) if numbers.dtype.kind == "f" else numbers != np.int64(np.iinfo("i8").min)
    if there.all() and numbers.size:
        return decode(numbers)
    dates = decode(numbers[there]) if there.any() else np.empty(0, dtype)
    found = np.full(numbers.shape, np.nan if dates.dtype.kind == "O" else "NaT", dates.dtype)
    found[there] = dates
    return found
