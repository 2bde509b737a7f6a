"""Elements without a value, of arrays of data type ``optional``, as xarray marks them: NaN or NaT."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from xzarr3._types import AnyArray
from xzarr3.errors import DataTypeValidationError
from xzarr3.readable import ReadableArray


class Marked(NamedTuple):
    """Turns masked values into values among which a mark stands for what is absent.

    Parameters
    ----------
    dtype : dtype
        Data type that holds the values and the mark: floating numbers for integers, objects for text and
        truth values.
    place : str
        Where the array is stored, for messages.
    """

    dtype: np.dtype[Any]
    place: str

    def __call__(self, values: AnyArray) -> AnyArray:
        if not isinstance(values, np.ma.MaskedArray):  # It is text, with None in it.
            absent = np.fromiter((each is None for each in values.flat), bool, values.size)
            values = np.ma.MaskedArray(values.astype(object), absent.reshape(values.shape))
        data, absent = values.data, np.ma.getmaskarray(values)
        found = data.astype(self.dtype)
        if data.dtype.kind in "iu" and data.dtype.itemsize == 8:
            changed = ~absent & ((np.abs(found) >= 2.0**63) | (found.astype(data.dtype) != data))
            if changed.any():
                raise DataTypeValidationError(
                    f"xarray's floating numbers cannot hold a value of the optional integers of {self.place}",
                    found=int(data[changed].flat[0]),
                    accepted="integers that a double holds, as all up to 2**53",
                    advice="read it with xzarr3.open_array(), which returns a masked array",
                )
        found[absent] = "NaT" if self.dtype.kind in "mM" else np.nan
        return found


def marked(array: ReadableArray) -> Marked | None:
    """What turns the values of an array into those of a variable; None if every element has a value."""
    if not array.is_optional:
        return None
    dtype = array.dtype
    if dtype.kind in "iu":
        dtype = np.dtype("f4" if dtype.itemsize <= 2 else "f8")
    elif dtype.kind not in "fcmM":
        dtype = np.dtype(object)
    return Marked(dtype, array.place)
