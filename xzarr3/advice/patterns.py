"""Patterns of access: what users of a dataset read again and again, as selections of an array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from xzarr3.errors import ArgumentError, SelectionError, one_of, shorten

_TIMES = ("date", "step", "t", "year", "month", "day", "hour")  # And what begins or ends with "time".
_HORIZONTAL = ("latitude", "longitude", "lat", "lon", "rlat", "rlon", "nlat", "nlon", "y", "x", "j", "i")
APPEND = "append"
NEED_TIME = ("series", APPEND)

PATTERNS = {
    "map": "one time, everywhere",
    "series": "one point, all times",
    "region": "a quarter along each horizontal dimension, 30 times if there is time",
    "scan": "everything",
    "sample": "8 times of 64 by 64 points, to train a model",
    APPEND: "one more time is written",
}
"""The patterns that have a name."""
_TIMES_READ = {"map": 1, APPEND: 1, "region": 30, "sample": 8}
"""How many times each of them is about, if not about all."""


class Access(NamedTuple):
    """One pattern of access and how often it happens."""

    name: str
    weight: float
    """Share of all accesses."""
    selection: tuple[Any, ...]
    """What is read, or written by an append."""
    meaning: str
    grows: int | None = None
    """The dimension at whose end the selection is written; None if it is read."""


class Roles(NamedTuple):
    """Which dimension of an array is what."""

    time: int | None
    """The dimension that grows, if there is one."""
    space: tuple[int, ...]
    """The horizontal dimensions."""


def roles(shape: Sequence[int], names: Sequence[str | None] | None) -> Roles:
    """The roles of the dimensions, by their names.

    Time has a name such as ``time`` or ``date``. If no dimension has, it is the first one, unless that is
    horizontal by its name, or the dimensions have names and are only two. Horizontal are dimensions with
    names such as ``lat`` and ``x``; if fewer than two have, the last two beside time.

    Examples
    --------
    >>> roles((365, 10, 721, 1440), ["time", "level", "lat", "lon"])
    Roles(time=0, space=(2, 3))
    >>> roles((721, 1440), ["latitude", "longitude"])
    Roles(time=None, space=(0, 1))
    """
    if names and (not isinstance(names, Sequence) or len(names) != len(shape)):
        raise ArgumentError(f"dims={names!r}; accepted: {len(shape)} names, of which some may be None")
    known = [str(name).lower() if name is not None else "" for name in names or [None] * len(shape)]
    times = [axis for axis, name in enumerate(known) if name.startswith("time") or name.endswith("time")]
    times += [axis for axis, name in enumerate(known) if name in _TIMES]
    horizontal = tuple(axis for axis, name in enumerate(known) if name in _HORIZONTAL and axis not in times)
    is_first = len(known) > 2 or (len(known) > 0 and not any(known))
    time = times[0] if times else 0 if is_first and 0 not in horizontal else None
    others = tuple(axis for axis in range(len(shape)) if axis != time)
    return Roles(time, horizontal[-2:] if len(horizontal) > 1 else others[-2:])


def accesses(wanted: Mapping[str, Any] | None, shape: Sequence[int], found: Roles) -> list[Access]:
    """The accesses that a user asks for.

    Parameters
    ----------
    wanted : mapping of str to float, or to (float, selection), optional
        How often each pattern happens. A name of one's own comes with a selection. By default maps, series
        and scans happen equally often, or maps and regions where there is no time.
    shape : sequence of int
    found : Roles

    Raises
    ------
    SelectionError
        If a name is not known or needs time, where there is none, or a weight is no positive number.
    """
    if wanted is None:
        wanted = dict.fromkeys(("map", "region") if found.time is None else ("map", "series", "scan"), 1.0)
    if not isinstance(wanted, Mapping) or not wanted:
        raise SelectionError(
            f"access={wanted!r} names no pattern; accepted: weights by name, of {', '.join(PATTERNS)}"
        )
    made = [_access(name, asked, shape, found) for name, asked in wanted.items()]
    total = sum(each.weight for each in made)
    return [each._replace(weight=each.weight / total) for each in made]


def _access(name: str, asked: Any, shape: Sequence[int], found: Roles) -> Access:
    weight, own = asked if isinstance(asked, tuple) else (asked, None)
    if not isinstance(weight, (int, float)) or isinstance(weight, bool) or not 0 < weight < float("inf"):
        raise SelectionError(
            f"access[{name!r}]={asked!r}: not how often it happens; give a positive number, or such a "
            "number and a selection"
        )
    if own is not None:
        return Access(name, float(weight), own, f"your selection {shorten(own)}")
    if name not in PATTERNS:
        raise SelectionError(
            f"access[{name!r}]: no pattern of this name; {one_of(name, PATTERNS)}; for a pattern of your "
            "own give its selection: {'own': (0.5, (slice(0, 7), ...))}"
        )
    if found.time is None and name in NEED_TIME:
        raise SelectionError(
            f"access[{name!r}]: no dimension is time; give dims=, one of them 'time', or take one of "
            f"{', '.join(each for each in PATTERNS if each not in NEED_TIME)}"
        )
    grows = found.time if name == APPEND else None
    return Access(name, float(weight), _selection(name, shape, found), PATTERNS[name], grows)


def _selection(name: str, shape: Sequence[int], found: Roles) -> tuple[Any, ...]:
    """What a pattern reads; an append writes what a map reads."""
    lengths = [1] * len(shape) if name == "series" else [*shape]
    for axis in found.space if name in ("region", "sample") else ():
        lengths[axis] = max(1, shape[axis] // 4) if name == "region" else 64
    if found.time is not None:
        lengths[found.time] = _TIMES_READ.get(name, shape[found.time])
    return tuple(map(_window, shape, lengths))


def _window(length: int, wanted: int) -> slice:
    """A window that begins at a third of the length, as those of users rarely begin where a chunk does."""
    start = max(0, min(length // 3, length - wanted))
    return slice(start, min(start + wanted, length))
