"""Checks the values of coordinates: NaN and fill values.

A coordinate is an array of one dimension that has the name of this dimension. It is read in parts, so that
memory stays bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from xzarr3._types import AnyArray
from xzarr3.arrays import Array
from xzarr3.checks.chunks import is_too_large
from xzarr3.checks.keys import Listing, is_coordinate
from xzarr3.checks.report import Findings
from xzarr3.checks.shard_indexes import not_decoded
from xzarr3.conventions.fill_value_attribute import attribute_value, follows_version_2
from xzarr3.errors import ChunkError, StoreError, shorten
from xzarr3.options import memory_for_values

_PART, _LEAST = 2**20, 2**10  # Elements that are read at once, by the memory that there is.
_LARGEST = 2**24  # Elements of a coordinate whose units may be absent.
_NUMBERS = "iufM"  # Kinds of numpy whose values are looked at.


def check_coordinates(listing: Listing, findings: Findings) -> None:
    """Read each coordinate, and check its values."""
    for path, units in listing.units.items():
        handle = units.handle
        if not is_coordinate(handle) or findings.any("coordinate-fill", path) or is_too_large(handle):
            continue
        if handle.size > _LARGEST and units.stored < units.total:  # mostly not stored
            continue
        try:
            _check_values(path, handle, findings)
        except ChunkError as error:
            if error.key is None or not findings.has(path, error.key):
                findings.add(not_decoded(error, "").code, path, error.key or "", str(error))
        except StoreError as error:
            findings.add("chunk-unreadable", path, "", str(error))


def _check_values(path: str, handle: Array, findings: Findings) -> None:
    """Note the first element that is NaN, and the first that is the fill value."""
    kind = handle.dtype.kind
    if kind not in _NUMBERS:
        return
    fill = masked_value(handle)
    nan = filled = -1
    for start, values in _parts(handle):
        if nan < 0 and kind in "fM":
            nan = _first(np.isnan(values) if kind == "f" else np.isnat(values), start)
        if filled < 0 and fill is not None:
            filled = _first(values == fill, start)
    if nan >= 0:
        findings.add("coordinate-nan", path, "", f"element {nan} is NaN")
    if filled >= 0:
        value = shorten(fill.item(), 40)
        meaning = f"element {filled} is the fill value {value}, which xarray reads as missing"
        findings.add("coordinate-fill", path, "", meaning)


def _first(found: AnyArray, start: int) -> int:
    """The index of the first element of a part that is true; -1 without any."""
    return start + int(found.argmax()) if found.any() else -1


def _parts(handle: Array) -> Iterator[tuple[int, AnyArray]]:
    (size,) = handle.shape
    part = min(_PART, max(_LEAST, memory_for_values() // 64))
    for start in range(0, size, part):
        yield start, handle[start : start + part]


def masked_value(handle: Array) -> Any:
    """The value that xarray reads as missing; None without one, or if it is NaN."""
    meta = handle.metadata
    if follows_version_2(handle.format):
        value = None if meta.fill_is_null else meta.fill_value
    else:
        value = attribute_value(meta)
    found = np.asarray(value)
    return found if value is not None and found.ndim == 0 and found == found else None  # NaN is noted as such
