"""How long the steps of a time coordinate are: in a dataset of xarray, or beside an array in its store."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from xzarr3.api import open_array
from xzarr3.arrays import Array
from xzarr3.errors import InvalidKeyError, NodeNotFoundError, NodeTypeError
from xzarr3.formats.base import node_prefix

_DAYS = {
    "microsecond": 1 / 86400e6, "millisecond": 1 / 86400e3, "second": 1 / 86400, "minute": 1 / 1440,
    "hour": 1 / 24, "day": 1.0, "week": 7.0, "month": 365.2425 / 12, "year": 365.2425,
}  # fmt: skip
_SHORT = {
    "us": "microsecond", "ms": "millisecond", "msec": "millisecond", "s": "second", "sec": "second",
    "min": "minute", "h": "hour", "hr": "hour", "d": "day", "common_year": "year",
}  # fmt: skip
MONTH = _DAYS["month"]
"""Days of an average month."""


def step_days(data: Any, name: str | None, axis: int) -> float | None:
    """The average step of the time coordinate in days; None if there is none that tells.

    Reads the first and the last time.

    Parameters
    ----------
    data : Array, xarray.DataArray or other
    name : str or None
        Name of the dimension.
    axis : int

    Examples
    --------
    >>> import numpy as np, xzarr3
    >>> group = xzarr3.create_group(xzarr3.MemoryStore())
    >>> times = group.create_array("time", data=np.arange(0, 48, 6), dimension_names=["time"])
    >>> times.attrs["units"] = "hours since 2000-01-01"
    >>> data = group.create_array("t2m", shape=(8, 4), dtype="f4", dimension_names=["time", "x"])
    >>> step_days(data, "time", 0)
    0.25
    """
    number = data.shape[axis] if data.shape else 0
    coordinate = _coordinate(data, name) if name is not None and number > 1 else None
    if coordinate is None or tuple(coordinate.shape) != (number,):
        return None
    first, last = (_plain(np.asarray(coordinate[at : at + 1])[0]) for at in (0, number - 1))
    if _is_missing(coordinate, last):
        return None
    try:
        days = _days(last - first, getattr(coordinate, "attrs", {}).get("units"))
    except TypeError:  # Text, or values that cannot be subtracted.
        return None
    step = math.nan if days is None else abs(days) / (number - 1)
    return step if 0 < step < math.inf else None


def _coordinate(data: Any, name: str) -> Any:
    """The coordinate variable of a dimension."""
    if not isinstance(data, Array):
        return getattr(data, "coords", {}).get(name)
    try:
        return open_array(data.store, node_prefix(data.path.rpartition("/")[0]) + name)
    except (NodeNotFoundError, NodeTypeError, InvalidKeyError):  # A dimension may have any name.
        return None


def _is_missing(coordinate: Any, time: Any) -> bool:
    """Whether a time, as a number, was not written yet, as those at the end may be."""
    if not isinstance(time, (int, float)):
        return False
    attributes = getattr(coordinate, "attrs", {})
    marks = [attributes.get("_FillValue"), attributes.get("missing_value"), np.iinfo("i8").min]
    if isinstance(coordinate, Array):
        marks.append(coordinate.fill_value)
    return any(isinstance(mark, (int, float, np.number)) and mark == time for mark in marks)


def _plain(time: Any) -> Any:
    """A number of Python in place of one of numpy, whose difference to another may not fit its data type."""
    return time.item() if isinstance(time, np.number) and time.dtype.kind in "iuf" else time


def _days(difference: Any, units: object) -> float | None:
    """A difference of two times in days; numbers have CF units such as ``hours since 2000-01-01``."""
    if isinstance(difference, np.timedelta64):
        return None if np.isnat(difference) else float(difference / np.timedelta64(1, "D"))
    if hasattr(difference, "total_seconds"):  # cftime
        return float(difference.total_seconds()) / 86400
    if not isinstance(units, str) or " since " not in units:
        return None
    unit = units.split()[0].lower()
    unit = _SHORT.get(unit, _SHORT.get(unit.removesuffix("s"), unit.removesuffix("s")))
    return float(difference) * _DAYS[unit] if unit in _DAYS else None
