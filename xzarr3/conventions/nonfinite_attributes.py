"""NaN and infinities in attributes: replaces them, as JSON lacks them, and warns the user once.

Older writers left the literals ``NaN`` and ``Infinity`` in documents; these are read. Documents written to a
new place are valid JSON. There such numbers become the text "NaN", "Infinity" or "-Infinity", as in fill
values. NaN among marks of missing values is left out; infinity among them is refused.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from xzarr3.errors import MetadataError, levels_to_caller, shorten

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
    """The attributes with NaN and infinities replaced by text; one warning names them."""
    found = {key: as_text(value) for key, value in attributes.items()}
    changed = [
        f"{key!r} is stored as {shorten(found[key], 60)}"
        for key, value in attributes.items()
        if found[key] is not value
    ]
    _warn(path, changed)
    return found


def finite_marks(attributes: Mapping[str, Any], path: str, *, quiet: bool = False) -> dict[str, Any]:
    """Attributes with a ``missing_value`` that JSON can hold: without NaN, which is missing anyway.

    Parameters
    ----------
    attributes : mapping
    path : str
        Path of the node, for messages.
    quiet : bool
        Do not warn if a NaN is left out.

    Raises
    ------
    MetadataError
        If infinity marks missing values.
    """
    kept = dict(attributes)
    marks = np.ravel(kept.get(MISSING, ()))
    if marks.dtype.kind != "f" or np.isfinite(marks).all():
        return kept
    left = marks[~np.isnan(marks)]
    if np.isinf(left).any():
        raise MetadataError(
            "JSON has no infinity to mark missing values", path=path, field=f"attributes.{MISSING}",
            found=marks.tolist(), accepted="finite numbers, and NaN",
            advice="replace these values by NaN, and remove the attribute",
        )  # fmt: skip
    del kept[MISSING]
    if len(left):
        kept[MISSING] = left.tolist() if len(left) > 1 else left[0].item()
    if not quiet:
        _warn(path, [f"{MISSING!r} is stored without NaN, which is missing anyway"])
    return kept


def _warn(path: str, outcomes: list[str]) -> None:
    more = len(outcomes) - _MOST
    if outcomes:
        warnings.warn(
            f"JSON has neither NaN nor Infinity; of the attributes of '/{path}' "
            + "; ".join(outcomes[:_MOST])
            + (f"; and {more} more" if more > 0 else ""),
            stacklevel=levels_to_caller(),
        )
