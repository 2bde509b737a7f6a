"""Numbers that users give: counts, and sizes in bytes such as ``"64 MiB"``, ``"2 MB"`` and ``1024``."""

from __future__ import annotations

import operator
import re

from xzarr3.errors import ArgumentError

_NUMBER = re.compile(r"\s*([0-9]{0,30}\.?[0-9]{1,30}(?:e\+?[0-9]{1,2})?)\s*([a-z]*)\s*", re.IGNORECASE)
_UNITS = {
    "": 1,
    "b": 1,
    **{f"{letter}{rest}": 10 ** (3 * power) for power, letter in enumerate("kmgtp", 1) for rest in ("", "b")},
    **{
        f"{letter}{rest}": 2 ** (10 * power)
        for power, letter in enumerate("kmgtp", 1)
        for rest in ("i", "ib")
    },
}


def byte_count(size: object) -> int:
    """A number of bytes, from an integer or from text with a unit.

    ``MB`` is a million bytes and ``MiB`` is 2**20, as in dask; upper and lower case are the same.

    Raises
    ------
    ValueError
        If it is no size, or less than one byte.

    Examples
    --------
    >>> byte_count("2 MB"), byte_count("1.5 KiB"), byte_count(10)
    (2000000, 1536, 10)
    """
    count = 0
    if isinstance(size, str):
        found = _NUMBER.fullmatch(size)
        unit = _UNITS.get(found[2].lower()) if found is not None else None
        if found is not None and unit is not None:
            count = int(float(found[1]) * unit)
    elif not isinstance(size, bool):
        try:
            count = operator.index(size)  # type: ignore[arg-type]  # TypeError for what is no integer
        except TypeError:
            count = int(size) if isinstance(size, float) and size.is_integer() else 0
    if count < 1:
        raise ArgumentError(f"not a size: {size!r}; accepted: a positive number of bytes, or as in '64 MiB'")
    return count


def positive(name: str, value: object, accepted: str = "an integer of at least 1") -> int:
    """The integer given for the parameter ``name``.

    Raises
    ------
    ValueError
        If it is not a positive integer.
    """
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError as error:
        raise ArgumentError(f"{name}={value!r}; accepted: {accepted}") from error
    if number < 1:
        raise ArgumentError(f"{name}={value!r}; accepted: {accepted}")
    return number
