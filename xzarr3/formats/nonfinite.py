"""NaN and infinities among attributes, which JSON lacks: what is stored instead, and telling the user once.

Older writers left the literals ``NaN`` and ``Infinity`` in documents, and they are read. Whatever is written
to a new place is JSON: there these numbers are the text "NaN", "Infinity" and "-Infinity", as fill values
have them, but for those that mark missing values, which stay what they mean.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Mapping
from contextvars import ContextVar, Token
from typing import Any

import numpy as np

from xzarr3.errors import shorten

_MOST = 20  # Attributes that one warning names.
MISSING = "missing_value"


def spelled(number: float) -> str:
    """The text for a number that JSON lacks.

    Examples
    --------
    >>> spelled(float("-inf"))
    '-Infinity'
    """
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def is_finite(value: Any) -> bool:
    """Whether there is no NaN and no infinity in a value, however deep."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, (float, np.floating)):
            if not math.isfinite(item):
                return False
        elif isinstance(item, np.ndarray):
            if item.dtype.kind == "f" and not np.isfinite(item).all():
                return False
            if item.dtype.kind == "O":
                waiting.extend(item.ravel().tolist())
        elif isinstance(item, Mapping):
            waiting.extend(item.values())
        elif isinstance(item, (list, tuple)):
            waiting.extend(item)
    return True


def as_text(value: Any) -> Any:
    """A value in which the numbers that JSON lacks are text."""
    if is_finite(value):
        return value
    if isinstance(value, np.ndarray):
        return as_text(value.tolist())
    if isinstance(value, Mapping):
        return {key: as_text(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_text(item) for item in value]
    return spelled(float(value))


def finite_attributes(attributes: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Attributes in which the numbers that JSON lacks are text; which ones is told."""
    found = {key: as_text(value) for key, value in attributes.items()}
    for key, value in attributes.items():
        if found[key] is not value:
            tell(path, key, f"is stored as {shorten(found[key], 60)}")
    return found


def finite_marks(
    attributes: Mapping[str, Any], fill_value: Any, path: str, *, floating: bool, said: bool = False
) -> tuple[dict[str, Any], Any]:
    """Attributes whose ``missing_value`` can be stored, and the ``_FillValue`` that goes with them.

    Decoded values stay what they are: NaN marks nothing that is not missing anyway, and one infinity can be
    the ``_FillValue`` where that is none or NaN.

    Parameters
    ----------
    attributes : mapping
        Without ``_FillValue``.
    fill_value : scalar, optional
        What marks missing values besides.
    path : str
        The node, for the user.
    floating : bool
        Whether values are stored as floating point numbers.
    said : bool
        The user need not be told where the ``_FillValue`` says the same, as it did before.
    """
    kept = dict(attributes)
    marks = np.ravel(kept.get(MISSING, ()))
    if marks.dtype.kind != "f" or np.isfinite(marks).all():
        return kept, fill_value
    left = marks[~np.isnan(marks)]
    if len(left) == 0:
        del kept[MISSING]
        if not (said and _is_nan(fill_value)):
            tell(path, MISSING, "is left out, as NaN is missing anyway")
    elif len(left) == 1 and np.isinf(left[0]) and fill_value == left[0]:
        del kept[MISSING]
        if not said:
            tell(path, MISSING, "is left out, as the '_FillValue' says the same")
    elif len(left) == 1 and np.isinf(left[0]) and floating and (fill_value is None or _is_nan(fill_value)):
        del kept[MISSING]
        fill_value = left[0]
        tell(path, MISSING, "is stored as the '_FillValue'")
    elif len(left) < len(marks):
        kept[MISSING] = left.tolist() if len(left) > 1 else left[0].item()
        tell(path, MISSING, "is stored without NaN, which is missing anyway")
    return kept, fill_value


def _is_nan(value: Any) -> bool:
    return isinstance(value, (float, np.floating)) and bool(np.isnan(value))


_telling: ContextVar[list[str] | None] = ContextVar("_telling", default=None)


def tell(path: str, name: str, outcome: str) -> None:
    """Remember for a warning what became of an attribute."""
    lines = _telling.get()
    line = f"attribute {name!r} of '/{path}' {outcome}"
    if lines is None:
        _warn([line])
    else:
        lines.append(line)


class Telling:
    """Tells the user in one warning what became of attributes within a ``with`` statement."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._token: Token[list[str] | None] | None = None

    def __enter__(self) -> None:
        if _telling.get() is None:
            self._token = _telling.set(self._lines)

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self._token is None:
            return
        _telling.reset(self._token)
        if self._lines and kind is None:
            _warn(self._lines)


def _warn(lines: list[str]) -> None:
    more = len(lines) - _MOST
    warnings.warn(
        "JSON has neither NaN nor Infinity: "
        + "; ".join(lines[:_MOST])
        + (f"; and so are {more} more" if more > 0 else ""),
        stacklevel=levels_to_caller(),
    )


def levels_to_caller() -> int:
    """How far up the stack of the function that asks the first frame is that is not of this package."""
    package = __name__.partition(".")[0] + "."
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and f"{frame.f_globals.get('__name__')}.".startswith(package):
        frame, level = frame.f_back, level + 1
    return level
