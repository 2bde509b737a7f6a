"""Patterns of access: what users of a dataset read again and again, as selections of an array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from xzarr3.errors import SelectionError, one_of

TIME_NAMES = ("time", "valid_time", "date", "step", "t", "year", "month")
APPEND = "append"
_CROP = 64  # Elements along each horizontal dimension of a training sample.
_STEPS = 8  # Times of a training sample.

PATTERNS = {
    "map": "one time, everywhere",
    "series": "one point, all times",
    "region": "a quarter along each horizontal dimension, for a month",
    "scan": "everything",
    "sample": f"{_STEPS} times of {_CROP} by {_CROP} points, to train a model",
    APPEND: "the times of one more day are written, or one time that is longer",
}
"""The patterns that have a name."""


class Access(NamedTuple):
    """One pattern of access and how often it happens."""

    name: str
    weight: float
    """Share of all accesses."""
    selection: tuple[Any, ...] | None
    """What is read; None for an append."""
    steps: int = 1
    """Times of an append."""


class Roles(NamedTuple):
    """Which dimension of an array is what."""

    time: int
    """The dimension that grows."""
    space: tuple[int, ...]
    """The horizontal dimensions."""


def roles(shape: Sequence[int], names: Sequence[str | None] | None) -> Roles:
    """The roles of the dimensions: time is found by its name, or is the first; the last two are horizontal.

    Examples
    --------
    >>> roles((365, 10, 721, 1440), ["time", "level", "lat", "lon"])
    Roles(time=0, space=(2, 3))
    """
    known = [str(name).lower() for name in names or ()]
    time = next((known.index(name) for name in TIME_NAMES if name in known), 0)
    others = [axis for axis in range(len(shape)) if axis != time]
    return Roles(time, tuple(others[-2:]))


def accesses(
    wanted: Mapping[str, Any] | None,
    shape: Sequence[int],
    found: Roles,
    *,
    steps_of_a_month: int = 30,
    steps_of_a_day: int = 1,
) -> list[Access]:
    """The accesses that a user asks for.

    Parameters
    ----------
    wanted : mapping of str to float, or to (float, selection), optional
        How often each pattern happens. A name of one's own comes with a selection. By default maps and series
        happen equally often.
    shape : sequence of int
    found : Roles
    steps_of_a_month, steps_of_a_day : int
        Times in a month, for a region, and in a day, for an append.

    Raises
    ------
    SelectionError
        If a name is not known, or a weight is no positive number.
    """
    wanted = {"map": 1.0, "series": 1.0} if wanted is None else wanted
    made: list[Access] = []
    for name, asked in wanted.items():
        weight, own = asked if isinstance(asked, tuple) else (asked, None)
        if not isinstance(weight, (int, float)) or isinstance(weight, bool) or not 0 < weight < float("inf"):
            raise SelectionError(
                f"access[{name!r}]={asked!r}: not how often it happens; give a positive number, or such a "
                "number and a selection"
            )
        if own is None and name not in PATTERNS:
            raise SelectionError(
                f"access[{name!r}]: no pattern of this name; {one_of(name, PATTERNS)}; for a pattern of your "
                "own give its selection: {'own': (0.5, (slice(0, 7), ...))}"
            )
        selection = _selection(name, shape, found, steps_of_a_month) if own is None else own
        steps = steps_of_a_day if selection is None else 1
        made.append(Access(name, float(weight), selection, steps))
    total = sum(each.weight for each in made)
    if not made:
        raise SelectionError(f"access={wanted!r} names no pattern; accepted: {', '.join(PATTERNS)}")
    return [each._replace(weight=each.weight / total) for each in made]


def _selection(name: str, shape: Sequence[int], found: Roles, month: int) -> tuple[Any, ...] | None:
    if name == APPEND:
        return None
    chosen: list[Any] = [slice(None)] * len(shape)
    n_times = shape[found.time] if shape else 0
    if name == "map" and shape:
        chosen[found.time] = n_times // 2
    elif name == "series":
        for axis in range(len(shape)):
            if axis != found.time:
                chosen[axis] = shape[axis] // 2
    elif name == "region":
        chosen[found.time] = _window(n_times, month)
        for axis in found.space:
            chosen[axis] = _window(shape[axis], max(1, shape[axis] // 4))
    elif name == "sample":
        chosen[found.time] = _window(n_times, _STEPS)
        for axis in found.space:
            chosen[axis] = _window(shape[axis], _CROP)
    return tuple(chosen)


def _window(length: int, wanted: int) -> slice:
    """A window that begins at a third of the length, as those of users rarely begin where a chunk does."""
    wanted = min(wanted, length)
    start = min(length // 3, length - wanted)
    return slice(start, start + wanted)
