"""What users give: counts, sizes in bytes such as ``"64 MiB"`` and ``1024``, and truth values."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from xzarr3.errors import ArgumentError, ArgumentTypeError

_NUMBER = re.compile(r"\s*([0-9]{0,30}\.?[0-9]{1,30}(?:e\+?[0-9]{1,2})?)\s*([a-z]*)\s*", re.IGNORECASE)
_UNITS = {"": 1, "b": 1} | {
    f"{letter}{kind}{byte}": base**power
    for power, letter in enumerate("kmgtp", 1)
    for kind, base in (("", 1000), ("i", 1024))
    for byte in ("", "b")
}


def byte_count(size: object, name: str = "size") -> int:
    """A number of bytes, given for the parameter ``name`` as an integer or as text with a unit.

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
        raise ArgumentError(f"{name}={size!r}; accepted: a positive number of bytes, or as in '64 MiB'")
    return count


def integer(name: str, value: object, accepted: str = "an integer of at least 1", least: int = 1) -> int:
    """The integer given for the parameter ``name``; a truth value is none.

    Raises
    ------
    ValueError
        If it is no integer, or less than ``least``.
    """
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError as error:
        raise ArgumentError(f"{name}={value!r}; accepted: {accepted}") from error
    if number < least:
        raise ArgumentError(f"{name}={value!r}; accepted: {accepted}")
    return number


def check_switches(optional: Iterable[str] = (), **given: object) -> None:
    """Refuse values of parameters that are no truth values; None is accepted of those that are ``optional``.

    Text such as ``"no"`` would count as True.

    Raises
    ------
    TypeError
        If a value is not accepted.
    """
    for name, value in given.items():
        if not isinstance(value, (bool, np.bool_)) and (value is not None or name not in optional):
            others = ", None" if name in optional else ""
            raise ArgumentTypeError(f"{name}={value!r}; accepted: True, False{others}")


def check_blocks(chunks: Any) -> None:
    """Refuse negative lengths of the blocks of dask arrays; -1 is all of a dimension.

    Raises
    ------
    ValueError
        If ``chunks``, as dask and xarray take them, have a negative length.
    """
    given = [*chunks.values()] if isinstance(chunks, Mapping) else chunks
    given = given.tolist() if isinstance(given, np.ndarray) else given
    for along in given if isinstance(given, (tuple, list)) else (given,):
        lengths, least = (along, 0) if isinstance(along, (tuple, list)) else ((along,), -1)
        for length in lengths:
            is_less = isinstance(length, (int, float, np.number)) and (length < least or -1 < length < 0)
            if is_less or (isinstance(length, str) and length.lstrip().startswith("-")):
                raise ArgumentError(
                    f"chunks={chunks!r} has a block of length {length!r}; accepted: positive lengths or "
                    "sizes, or -1 for one block of the whole dimension"
                )
