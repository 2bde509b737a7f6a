"""NaN and infinities in attributes: replaces them, as JSON lacks them, and warns the user once.

Older writers left the literals ``NaN`` and ``Infinity`` in documents; these are read. Documents written to a
new place are valid JSON. There such numbers become the text "NaN", "Infinity" or "-Infinity", as in fill
values. Attributes that mark missing values are converted so that they mark the same values.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from contextvars import ContextVar, Token
from typing import Any

import numpy as np

from xzarr3.errors import levels_to_caller, shorten

_MOST = 20  # Most attributes that one warning names.
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
    """Whether a value has no NaN and no infinity at any depth."""
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
    """The value with NaN and infinities replaced by text."""
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
    """The attributes with NaN and infinities replaced by text; the warning names them."""
    found = {key: as_text(value) for key, value in attributes.items()}
    for key, value in attributes.items():
        if found[key] is not value:
            tell(path, key, f"is stored as {shorten(found[key], 60)}")
    return found


def finite_marks(
    attributes: Mapping[str, Any], fill_value: Any, path: str, *, floating: bool, said: bool = False
) -> tuple[dict[str, Any], Any]:
    """Attributes with a ``missing_value`` that JSON can hold, and the ``_FillValue`` that goes with them.

    Decoded values do not change. A NaN mark can be left out, because NaN is missing anyway. A single infinity
    can become the ``_FillValue`` if that is None or NaN.

    Parameters
    ----------
    attributes : mapping
        Without ``_FillValue``.
    fill_value : scalar, optional
        The value that marks missing values besides ``missing_value``.
    path : str
        Path of the node, for the warning.
    floating : bool
        Whether values are stored as floating point numbers.
    said : bool
        Do not warn if a mark is left out because the ``_FillValue`` has said the same before.
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
    """Add the outcome for an attribute to the warning of the enclosing :class:`Telling`, or warn at once."""
    lines = _telling.get()
    line = f"attribute {name!r} of '/{path}' {outcome}"
    if lines is None:
        _warn([line])
    else:
        lines.append(line)


class Telling:
    """Collects the outcomes for attributes in a ``with`` statement and gives one warning at its end."""

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
        + (f"; and {more} more" if more > 0 else ""),
        stacklevel=levels_to_caller(),
    )
