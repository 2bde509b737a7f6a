"""What xarray decodes otherwise than it is stored: missing dates, and the resolution of time differences.

cftime takes NaN for the date from which times are counted, so that xarray would read a missing date as that
one, and it refuses the integer that marks one. Here only the numbers that are dates are decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from xarray import Variable
from xarray.coding import common, times

from xzarr3._types import AnyArray
from xzarr3.xarray.unpack import Decoded
from xzarr3.xarray.variables import are_times, bounds_of

RESOLUTIONS = {"millisecond": "ms", "microsecond": "us", "nanosecond": "ns"}
"""The resolutions of numpy for units finer than seconds."""


class DateCoder(times.CFDatetimeCoder):
    """Decodes dates of which the first or the last may be missing, or of which there are none.

    xarray decodes these two to tell the dtype, and for most calendars it can do so only if they are dates.
    """

    def decode(self, variable: Variable, name: Any = None) -> Variable:
        try:
            return super().decode(variable, name)
        except ValueError:
            places = [(at,) * variable.ndim for at in (0, -1)] if variable.size else []
            ends = np.array([variable[place].values for place in places], variable.dtype)
            there = _are_dates(ends)
            if places and there.all():
                raise
        # Without a date, that from which times are counted tells the dtype.
        known = ends[there] if there.any() else np.zeros(1, ends.dtype)
        dtype = super().decode(Variable("ends", known, variable.attrs), name).dtype
        dims, data, attributes, encoding = common.unpack_for_decoding(variable)
        options: dict[str, Any] = {"use_cftime": self.use_cftime, "time_unit": self.time_unit}
        for key in ("units", "calendar"):
            options[key] = common.pop_to(attributes, encoding, key)
        decode = partial(times.decode_cf_datetime, **options)
        return Variable(
            dims, common.lazy_elemwise_func(data, decode, dtype), attributes, encoding, fastpath=True
        )


def date_coders(decode_times: Any, stored: Mapping[Any, Variable]) -> Any:
    """What ``decode_times`` asks for, by name of the variables, with :class:`DateCoder` for dates.

    Other variables keep what is asked for, since it tells xarray how to decode differences of times, too.
    """
    if decode_times is None or decode_times is False:
        return decode_times
    dates = {name for name, each in stored.items() if are_times(each.attrs)}
    dates.update(map(bounds_of, stored.values()))
    asked = decode_times if isinstance(decode_times, Mapping) else dict.fromkeys(stored, decode_times)
    coders = {name: asked.get(name, True) for name in stored}
    return {name: date_coder(coder) if name in dates else coder for name, coder in coders.items()}


def date_coder(asked: Any) -> Any:
    """What ``decode_times`` asks for of dates, with :class:`DateCoder` in the place of xarray's coder."""
    if asked is True:
        return DateCoder()
    if type(asked) is times.CFDatetimeCoder:
        return DateCoder(asked.use_cftime, asked.time_unit)
    return asked


def _are_dates(numbers: AnyArray) -> AnyArray:
    """Which numbers are dates, and not the marks that xarray makes of missing ones."""
    # numpy 2.2.0 ends the process where it compares parts of smaller integers with a number beyond them.
    return ~np.isnan(numbers) if numbers.dtype.kind == "f" else numbers != np.int64(np.iinfo("i8").min)


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
    there = _are_dates(numbers)
    if there.all() and numbers.size:
        return _exact_dates(decode, numbers)
    dates = _exact_dates(decode, numbers[there]) if there.any() else np.empty(0, dtype)
    found = np.full(numbers.shape, np.nan if dates.dtype.kind == "O" else "NaT", dates.dtype)
    found[there] = dates
    return found


_EXACT = 2**53
"""The largest integer below which floats of 64 bit hold all of them."""


def _exact_dates(decode: Callable[..., AnyArray], numbers: AnyArray) -> AnyArray:
    """Numbers as dates; large integers as exactly as they are stored.

    xarray makes floats of integers that pandas cannot decode, such as microseconds since the year 1.
    """
    asked: Mapping[str, Any] = getattr(decode, "keywords", {})
    if numbers.dtype.kind not in "iu" or asked.get("use_cftime", True) is not None or not numbers.size:
        return decode(numbers)
    if int(numbers.min()) >= -_EXACT and int(numbers.max()) <= _EXACT:
        return decode(numbers)
    with suppress(KeyError, ValueError, OverflowError):
        return decode(numbers, use_cftime=False)
    dates, exact = decode(numbers), decode(numbers, use_cftime=True)
    if dates.dtype.kind == "O":
        return exact
    return np.asarray(times.cftime_to_nptime(exact, time_unit=asked["time_unit"]))
