"""Elements without a value, of arrays of data type ``optional``.

xarray marks them by NaN or NaT. In one dimension and in memory it also takes pandas' nullable arrays, such as
``Int64``: these are stored as ``optional``, and read again if that is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from xarray import Variable
from xarray.core import indexing

from xzarr3._types import AnyArray
from xzarr3.dtypes import Optional, parse_dtype
from xzarr3.errors import DataTypeValidationError
from xzarr3.parallel import parallel_map
from xzarr3.readable import ReadableArray
from xzarr3.xarray.unreadable import KeptVariable

_TYPES: dict[np.dtype[Any], Any] = {
    each.numpy_dtype: each
    for each in (
        pd.BooleanDtype(), pd.Int8Dtype(), pd.Int16Dtype(), pd.Int32Dtype(), pd.Int64Dtype(), pd.UInt8Dtype(),
        pd.UInt16Dtype(), pd.UInt32Dtype(), pd.UInt64Dtype(), pd.Float32Dtype(), pd.Float64Dtype(),
    )
}  # fmt: skip
"""pandas' nullable types, by the type of their values."""
_KINDS = tuple(map(type, _TYPES.values()))


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
        changed = self._changed(values)
        if changed.size:
            raise DataTypeValidationError(
                f"xarray's floating numbers cannot hold a value of the optional integers of {self.place}",
                found=int(changed[0]),
                accepted="integers that a double holds, as all up to 2**53",
                advice="open the dataset with nullable=True, which keeps arrays of one dimension as pandas' "
                "nullable types, or read this one with xzarr3.open_array(), which returns a masked array",
            )
        found = values.data.astype(self.dtype)
        found[np.ma.getmaskarray(values)] = "NaT" if self.dtype.kind in "mM" else np.nan
        return found

    def holds(self, values: AnyArray) -> bool:
        """Whether the data type can hold all values."""
        return not self._changed(values).size

    def _changed(self, values: Any) -> AnyArray:
        """The integers that the data type cannot hold."""
        if values.dtype.kind not in "iu" or values.dtype.itemsize < 8 or self.dtype.kind != "f":
            return np.empty(0)
        present = values.compressed()
        beyond = 2.0**63 if values.dtype.kind == "i" else 2.0**64
        with np.errstate(invalid="ignore"):
            found = present.astype(self.dtype)
            changed = (found >= beyond) | (found.astype(present.dtype) != present)
        return np.asarray(present[changed])


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


class NullableVariable(KeptVariable):
    """A variable with one of pandas' nullable arrays.

    What is wrapped turns into floating numbers when an element is set, and cannot be opened with ``chunks``.
    """

    __slots__ = ()

    def to_base_variable(self) -> Variable:
        """A copy of the same class: it is not an index variable, so xarray can use it for coordinates."""
        return self.copy(deep=False)


def is_nullable(dtype: Any) -> bool:
    """Whether a data type is one of pandas' nullable numbers or truth values."""
    return isinstance(dtype, _KINDS)


def stored_type(dtype: Any) -> Optional:
    """The data type that stores one of pandas' nullable types."""
    return Optional(parse_dtype(dtype.numpy_dtype))


def as_masked(variable: Variable) -> Any:
    """The values of a variable with one of pandas' nullable arrays as a masked array; None for other ones."""
    dtype: Any = variable.dtype
    if not is_nullable(dtype):
        return None
    held: Any = variable.data
    values = held.to_numpy(dtype=dtype.numpy_dtype, na_value=0)
    return np.ma.MaskedArray(values, held.isna()).reshape(variable.shape)


def with_plain_labels(variable: Variable, name: str) -> Variable:
    """The variable with numpy's numbers if it is an index coordinate and all labels have a value.

    Other libraries can read these, and xarray makes the same index of them.
    """
    masked = as_masked(variable) if variable.dims == (name,) else None
    if masked is None or masked.mask.any():
        return variable
    return Variable(variable.dims, masked.data, variable.attrs, variable.encoding)


def hold_nullable(variables: Mapping[Any, Variable]) -> dict[Any, Variable]:
    """Those of the decoded variables that pandas' nullable types can hold, read into such arrays."""
    found: dict[Any, ReadableArray] = {}
    for name, variable in variables.items():
        data: Any = variable._data
        if type(data) is indexing.LazilyIndexedArray and isinstance(data.array.unpack, Marked):
            array = data.array.array
            if array.ndim == 1 and array.dtype in _TYPES:
                found[name] = array
    threads = max((array.waiting for array in found.values()), default=1)
    read = parallel_map(lambda array: array.get(), found.values(), threads)
    return {name: _held(variables[name], name, values) for name, values in zip(found, read, strict=True)}


def _held(variable: Variable, name: Any, values: Any) -> Variable:
    """The variable with masked values as one of pandas' nullable arrays."""
    made = _TYPES[values.dtype].construct_array_type()
    held = made(np.array(values.data), np.array(np.ma.getmaskarray(values)))
    if variable.dims == (name,):  # Of anything else xarray makes an index of numpy's numbers.
        held = pd.Index(held)
    encoding = {key: value for key, value in variable.encoding.items() if key != "dtype"}
    return NullableVariable(variable.dims, held, variable.attrs, encoding)
