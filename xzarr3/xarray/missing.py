"""Where in a dataset chunks are absent: ranges of coordinates instead of ranges of indices."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from copy import copy
from typing import Any

import numpy as np
from xarray import Variable

from xzarr3._types import AnyArray
from xzarr3.array import Array
from xzarr3.errors import Xzarr3Error, shorten
from xzarr3.missing import Region

Decode = Callable[[Hashable, Array], Variable]


class Places:
    """Puts parts of a variable into words by its index coordinates.

    Parameters
    ----------
    dims : tuple of hashable
        Dimensions of the variable.
    coords : mapping
        The arrays of index coordinates, by dimension; those of other dimensions do not matter.
    decode : callable
        Gives the decoded variable for the name and the array of a coordinate; to be pickled.
    """

    def __init__(self, dims: tuple[Hashable, ...], coords: Mapping[Hashable, Array], decode: Decode) -> None:
        self._dims = dims
        self._coords = {dim: coords[dim] for dim in dims if dim in coords}
        self._decode = decode

    def __call__(self, region: Region) -> str:
        """A region by ranges of coordinates, or of indices along dimensions that have none to tell.

        The coordinates are read when they are needed, which is hardly ever.
        """
        if not self._dims:
            return "[...]"
        return ", ".join(map(self._range, self._dims, region))

    def _range(self, dim: Hashable, part: slice) -> str:
        named = None if dim not in self._coords else self._values(dim, part)
        return f"{dim}[{part.start}:{part.stop}]" if named is None else f"{dim} {named}"

    def _values(self, dim: Hashable, part: slice) -> str | None:
        array = copy(self._coords[dim])
        array.missing = "error"  # What is absent itself tells nothing.
        try:
            variable = self._decode(dim, array)
            first, last = (variable[at].values for at in (part.start, part.stop - 1))
        except (Xzarr3Error, ValueError, OverflowError):
            return None  # Nor does what cannot be read or decoded; the error at hand is another one.
        return f"{_text(first)} to {_text(last)}" if first.ndim == 0 else None


def _text(value: AnyArray) -> str:
    """A coordinate as people write it: of a date no time of day if that is midnight."""
    if value.dtype.kind == "M":
        text = str(np.datetime_as_string(value, unit="auto"))
        return text if "T" in text or text.count("-") == 2 else str(value.astype("datetime64[D]"))
    found: Any = value.item()
    if hasattr(found, "isoformat"):  # A date in another calendar.
        return str(found.isoformat()).removesuffix("T00:00:00")
    return str(found) if isinstance(found, (int, float)) else shorten(found, 40)
