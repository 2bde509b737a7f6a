"""The data type model: what every Zarr data type can do.

A data type stands between three things: numpy's dtype, the JSON of a metadata document, and scalars
in both of these forms. The formats differ in their JSON, so each method that deals in JSON takes the
``zarr_format``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Self

import numpy as np

from xzarr3._types import JSON, AnyArray, Scalar
from xzarr3.errors import DataTypeValidationError


class ZDType(ABC):
    """A Zarr data type.

    Instances are immutable, compare and hash by value and hold no array data.
    """

    _zarr_v3_name: ClassVar[str]

    @classmethod
    @abstractmethod
    def from_native_dtype(cls, dtype: np.dtype[np.generic]) -> Self:
        """The data type that holds what ``dtype`` holds.

        Raises
        ------
        DataTypeValidationError
            If ``dtype`` is not one this class stands for.
        """

    @abstractmethod
    def to_native_dtype(self) -> np.dtype[np.generic]:
        """The numpy dtype of arrays of this type, in the byte order of this machine."""

    @classmethod
    @abstractmethod
    def from_json(cls, data: JSON, *, zarr_format: int) -> Self:
        """Read the data type from the JSON of a metadata document.

        Raises
        ------
        DataTypeValidationError
            If ``data`` does not describe this data type.
        """

    @abstractmethod
    def to_json(self, zarr_format: int) -> JSON:
        """The JSON that names this data type in a metadata document."""

    @abstractmethod
    def default_scalar(self) -> Scalar:
        """The fill value of an array that was made without one."""

    @abstractmethod
    def cast_scalar(self, data: object) -> Scalar:
        """``data`` as a scalar of this type.

        Raises
        ------
        DataTypeValidationError
            If the type cannot hold ``data``.
        """

    @abstractmethod
    def from_json_scalar(self, data: JSON, *, zarr_format: int) -> Scalar:
        """Read a scalar, such as a fill value, from its JSON form.

        Raises
        ------
        DataTypeValidationError
            If the format does not permit ``data`` for this type.
        """

    @abstractmethod
    def to_json_scalar(self, data: object, *, zarr_format: int) -> JSON:
        """The JSON form of a scalar, exact to the last bit."""

    @property
    def item_size(self) -> int:
        """Size of one element in bytes."""
        return self.to_native_dtype().itemsize

    @property
    def name(self) -> str:
        """The name of the data type in version 3 of the format."""
        return self._zarr_v3_name

    def filled(self, shape: tuple[int, ...], fill: Scalar) -> AnyArray:
        """A new array of this type that holds ``fill`` everywhere."""
        return np.full(shape, fill, dtype=self.to_native_dtype())


def require_v3(zarr_format: int) -> None:
    """Refuse a format other than 3."""
    if zarr_format != 3:
        raise DataTypeValidationError(
            "no such Zarr format for this data type", field="zarr_format", found=zarr_format, accepted="3"
        )
