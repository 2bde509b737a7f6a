"""Checks the values of coordinates: NaN, fill values, order and duplicates.

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
from xzarr3.errors import ChunkError, StoreError, shorten
from xzarr3.formats.fill_value_attribute import decode_fill_value, fill_value_is_mask
from xzarr3.options import memory_for_values

_PART, _LEAST = 2**20, 2**10  # Elements that are read at once, by the memory that there is.
_LARGEST = 2**24  # Elements of a coordinate whose units may be absent.
_NUMBERS = "iufM"  # Kinds of numpy whose order counts.


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
            if error.key is None or not _is_known(findings, path, error.key):
                findings.add("chunk-damaged", path, error.key or "", str(error))
        except StoreError as error:
            findings.add("chunk-unreadable", path, "", str(error))


def _is_known(findings: Findings, path: str, key: str) -> bool:
    """Whether another check has noted what is wrong with a unit."""
    codes = ("chunk-damaged", "chunk-empty", "chunk-size", "shard-small", "shard-index", "shard-bounds")
    return any(findings.has(code, path, key) for code in codes)


class _Order:
    """Follows the order of numbers across the parts of a coordinate."""

    def __init__(self) -> None:
        self.rises = self.falls = False
        self.repeated: Any = None
        self._last: AnyArray | None = None

    def see(self, values: AnyArray) -> None:
        joined = values if self._last is None else np.concatenate([self._last, values])
        self._last = values[-1:]
        before, after = joined[:-1], joined[1:]
        equal = before == after
        if self.repeated is None and equal.any():
            self.repeated = after[int(equal.argmax())]
        self.rises |= bool((after > before).any())
        self.falls |= bool((after < before).any())


def _check_values(path: str, handle: Array, findings: Findings) -> None:
    kind = handle.dtype.kind
    if kind not in _NUMBERS:
        return
    fill = masked_value(handle)
    nan = filled = 0
    order = _Order()
    for start, values in _parts(handle):
        invalid = np.isnat(values) if kind == "M" else np.isnan(values) if kind == "f" else None
        if invalid is not None and invalid.any():
            nan = nan or 1 + start + int(invalid.argmax())
        masked = None if fill is None else values == fill
        if masked is not None and masked.any():
            filled = filled or 1 + start + int(masked.argmax())
        order.see(values)
    if nan:
        findings.add("coordinate-nan", path, "", f"element {nan - 1} is NaN")
    if filled:
        value = shorten(fill.item(), 40)
        meaning = f"element {filled - 1} is the fill value {value}, which xarray reads as missing"
        findings.add("coordinate-fill", path, "", meaning)
    if not (nan or filled):
        _note_order(path, order, findings)


def _note_order(path: str, order: _Order, findings: Findings) -> None:
    if order.rises and order.falls:
        findings.add("coordinate-order", path, "", "its values neither only rise nor only fall")
    if order.repeated is not None:
        findings.add("coordinate-duplicates", path, "", f"the value {order.repeated} is there more than once")


def _parts(handle: Array) -> Iterator[tuple[int, AnyArray]]:
    (size,) = handle.shape
    part = min(_PART, max(_LEAST, memory_for_values() // 64))
    for start in range(0, size, part):
        yield start, handle[start : start + part]


def masked_value(handle: Array) -> Any:
    """The value that xarray reads as missing; None without one, or if it is NaN."""
    meta = handle.metadata
    value: Any = None
    if fill_value_is_mask(handle.format):
        value = None if meta.fill_is_null else meta.fill_value
    elif "_FillValue" in meta.attributes:
        try:
            value = decode_fill_value(meta.attributes["_FillValue"], handle.dtype)
        except ValueError:  # noted by the check of conventions
            return None
    if value is None:
        return None
    found = np.asarray(value)
    return found if found.ndim == 0 and found == found else None  # NaN is noted as such
