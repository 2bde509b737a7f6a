"""``optional``: elements that hold a value of another data type, or no value.

An element of fixed size is a record of the value and of whether there is one. Users see masked arrays of the
values instead. Text and byte strings of any length are arrays in which ``None`` stands for no value. A value
that is not there is all zeros, so that equal elements have equal bytes.

Specification: zarr-extensions, pull request 33, "Optional data type".
Example: ``{"name": "optional", "configuration": {"name": "int32"}}``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from xzarr3._types import JSON, AnyArray
from xzarr3.dtypes.base import Endianness, ZDType, has_lost_digits, holds_masks, stacked, unmasked
from xzarr3.dtypes.registry import registry
from xzarr3.dtypes.specs import ZarrFormat
from xzarr3.errors import DataTypeValidationError, UnknownExtensionError, foreign, located

_INNER = "a data type of numbers, truth values, times, raw bytes or text"


@dataclass(frozen=True)
class Optional(ZDType):
    """``optional``: a value of another data type, or no value.

    Parameters
    ----------
    inner : ZDType
        Type of the values; neither a struct nor optional itself.

    Examples
    --------
    >>> import numpy as np, xzarr3
    >>> given = np.ma.masked_equal([3, 0, 5], 0)
    >>> array = xzarr3.create_array(xzarr3.MemoryStore(), data=given, dtype=Optional(xzarr3.dtypes.Int64()))
    >>> array[:]
    masked_array(data=[3, --, 5],
                 mask=[False,  True, False],
           fill_value=999999)
    """

    inner: ZDType
    dtype_cls = np.dtypes.VoidDType
    _zarr_v3_name: ClassVar[str] = "optional"
    _by_name_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if isinstance(self.inner, Optional) or self.inner.to_native_dtype().names is not None:
            raise UnknownExtensionError(
                f"data type 'optional' of '{self.inner.name}' is not supported",
                field="configuration",
                found=self.inner.name,
                accepted=_INNER,
            )

    @property
    def is_variable(self) -> bool:  # type: ignore[override]
        """Whether the values have no fixed encoded size."""
        return self.inner.is_variable

    @property
    def value_dtype(self) -> np.dtype[Any]:
        return self._dtype if self.is_variable else self.inner._dtype

    def to_native_dtype(self) -> np.dtype[Any]:
        inner = self.inner._dtype
        if inner.kind == "T":
            return np.dtypes.StringDType(na_object=None)
        return inner if self.is_variable else np.dtype([("value", inner), ("valid", np.bool_)])

    @classmethod
    def from_native_dtype(cls, dtype: np.dtype[Any]) -> Self:
        raise DataTypeValidationError(
            "no dtype of numpy is the data type 'optional'", found=dtype, accepted="its JSON, or an object"
        )

    @property
    def byte_order(self) -> Endianness | None:
        return self.inner.byte_order

    def in_byte_order(self, order: Endianness) -> Self:
        return type(self)(self.inner.in_byte_order(order))

    # JSON of the data type

    @classmethod
    def _from_json_v3(cls, data: Any) -> Self:
        configuration = cls._configuration_v3(data)
        with located(field="configuration"):
            return cls(registry.match_json(dict(configuration), zarr_format=3))

    @classmethod
    def _from_json_draft(cls, data: Any) -> Self:
        return super()._from_json_v2(data)

    def _to_json_v3(self) -> Any:
        inner = self.inner.to_json(3)
        configuration = {"name": inner} if isinstance(inner, str) else inner
        return {"name": self._zarr_v3_name, "configuration": configuration}

    # Scalars: an element of the array, so a record, or None or a value of text and byte strings

    def default_scalar(self) -> Any:
        return self._element(None)

    def cast_scalar(self, data: object) -> Any:
        if isinstance(data, np.void) and data.dtype == self._dtype:
            return data
        return self._element(None if is_absent(data) else self.inner.cast_scalar(data))

    def _element(self, value: Any) -> Any:
        """The element that holds a value of the inner type, or None."""
        if self.is_variable:
            return value
        element = np.zeros((), self._dtype)
        if value is not None:
            element["value"], element["valid"] = value, True
        return element[()]

    def value(self, element: Any) -> Any:
        """The value of an element; None if it has none."""
        if self.is_variable or element is None:
            return element
        return element["value"] if element["valid"] else None

    def from_json_scalar(self, data: JSON, *, zarr_format: ZarrFormat) -> Any:
        if data is None:
            return self._element(None)
        if not isinstance(data, list) or len(data) != 1:
            raise self._refused(data, accepted="null, or an array of one value")
        return self._element(self.inner.from_json_scalar(data[0], zarr_format=zarr_format))

    def to_json_scalar(self, data: object, *, zarr_format: ZarrFormat) -> Any:
        value = self.value(self.cast_scalar(data))
        return None if value is None else [self.inner.to_json_scalar(value, zarr_format=zarr_format)]

    def bits(self, scalar: Any) -> bytes:
        value = self.value(scalar)
        return b"" if value is None else b"\x01" + self.inner.bits(value)

    # Arrays

    def filled(self, shape: tuple[int, ...], fill: Any) -> AnyArray:
        value = self.value(fill)
        if value is None:
            return self.joined(np.zeros(shape, bool), self.inner.filled((0,), self.inner.default_scalar()))
        valid = np.ones(shape, bool)
        return self.joined(valid, self.inner.filled((valid.size,), value))

    def holds_only(self, array: AnyArray, fill: Any) -> bool:
        if not self.is_variable:
            return super().holds_only(array, fill)
        valid, values = self.split(array)
        if fill is None:
            return not valid.any()
        return bool(valid.all()) and self.inner.holds_only(values, fill)

    def split(self, elements: AnyArray) -> tuple[AnyArray, AnyArray]:
        """Which elements hold a value, and these values in C order, in one dimension."""
        if not self.is_variable:
            valid = elements["valid"]
            return valid, elements["value"][valid]
        held = elements.astype(object)
        valid = np.fromiter((each is not None for each in held.flat), bool, held.size).reshape(held.shape)
        return valid, held[valid].astype(self.inner._dtype)

    def joined(self, valid: AnyArray, values: AnyArray) -> AnyArray:
        """Elements from what :meth:`split` returns."""
        if self.is_variable:
            held = np.full(valid.shape, None, object)
            held[valid] = values.astype(object)
            return held.astype(self._dtype)
        elements = np.zeros(valid.shape, self._dtype)
        elements["valid"] = valid
        elements["value"][valid] = values
        return elements

    def cast_array(self, values: Any) -> AnyArray:
        if isinstance(values, np.ndarray) and values.dtype == self._dtype:
            return np.asarray(values)
        given, absent = self._given(values)
        present = given[~absent]
        if not present.size:
            present = np.empty(0, self.inner._dtype)
        elif given.dtype.kind == "O" and not self.is_variable:
            # One by one: numpy would make floating numbers of integers beside them, and lose digits.
            present = np.array([self.inner.cast_scalar(each) for each in present], self.inner._dtype)
        return self.joined(~absent, self.inner.cast_array(present))

    def _given(self, values: Any) -> tuple[AnyArray, AnyArray]:
        """An array of what a user gives, and the mask of what has no value.

        NaN is a value of floating numbers, and says of all other types that there is no value.
        """
        if holds_masks(values):
            with foreign("not an array of masked arrays", DataTypeValidationError, found=values):
                values = stacked(values)
        mask = np.ma.getmask(values)
        if mask is not np.ma.nomask:
            return np.ma.getdata(values), mask
        is_list = self.is_variable and not hasattr(values, "dtype")
        given = unmasked(values, self, object if is_list else None)
        holds_nan = self.inner._dtype.kind in "fc"
        if not holds_nan and has_lost_digits(values, given):
            given = np.asarray(values, object)
        if given.dtype.kind == "f" and not holds_nan:
            return given, np.isnan(given)
        if given.dtype.kind not in "OT":
            return given, np.zeros(given.shape, bool)
        given = given.astype(object)
        absent = (is_absent(each) or (not holds_nan and each != each) for each in given.flat)
        return given, np.fromiter(absent, bool, given.size).reshape(given.shape)

    def presented(self, elements: AnyArray) -> AnyArray:
        """Elements as users see them: a masked array of the values, or text with None among it."""
        if self.is_variable:
            return elements
        # For dtypes of ml_dtypes numpy has a fill value that it cannot convert, as when dask joins blocks.
        fill = self.inner.default_scalar() if self.inner._dtype.type.__module__ == "ml_dtypes" else None
        return np.ma.MaskedArray(np.array(elements["value"]), mask=~elements["valid"], fill_value=fill)


def is_absent(item: object) -> bool:
    """Whether a Python object stands for no value: None, numpy's ``masked`` or pandas' ``NA``."""
    return item is None or item is np.ma.masked or type(item).__name__ == "NAType"


__all__ = ["Optional"]
