"""What stored values of an array mean, and how that has changed since the array was opened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xzarr3.conventions.fill_value_attribute import FILL_VALUE
from xzarr3.errors import shorten
from xzarr3.model.metadata import ArrayMetadata

_DECODED_BY = (
    *("units", "calendar", "scale_factor", "add_offset", FILL_VALUE, "missing_value", "_Unsigned"),
    *("dtype", "_Encoding"),
)


def coding(meta: ArrayMetadata) -> dict[str, Any]:
    """The metadata that define what stored values mean, by their names in documents.

    Other attributes, such as ``history``, may change without a change in the meaning of stored values.

    Examples
    --------
    >>> import xzarr3
    >>> attributes = {"units": "K", "history": "made yesterday", "scale_factor": 0.5}
    >>> array = xzarr3.create_array(xzarr3.MemoryStore(), shape=2, dtype="i2", attributes=attributes)
    >>> coding(array.metadata)
    {'units': 'K', 'scale_factor': 0.5}
    """
    found = {name: meta.attributes[name] for name in _DECODED_BY if name in meta.attributes}
    if meta.dimension_names is not None:
        found["dimension_names"] = meta.dimension_names
    if meta.fill_is_null:
        found["fill_value"] = None
    return found


def recoded(now: ArrayMetadata, then: ArrayMetadata) -> str | None:
    """A message that says how the coding of values has changed; None if it has not.

    Examples
    --------
    >>> import xzarr3
    >>> from dataclasses import replace
    >>> array = xzarr3.create_array(xzarr3.MemoryStore(), shape=2, dtype="i2", attributes={"units": "K"})
    >>> recoded(replace(array.metadata, attributes={"units": "degC"}), array.metadata)
    "'units' is 'degC' and was 'K'"
    """
    if now is then:
        return None
    found, before = coding(now), coding(then)
    changed = [
        f"'{name}' is {_said(found, name)} and was {_said(before, name)}"
        for name in dict.fromkeys((*found, *before))
        if name not in found or name not in before or repr(found[name]) != repr(before[name])
    ]  # By repr: the scales 1 and 1.0 differ, and a NaN equals a NaN.
    return "; ".join(changed) or None


def _said(coded: Mapping[str, Any], name: str) -> str:
    return shorten(coded[name]) if name in coded else "not there"
