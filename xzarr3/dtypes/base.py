"""The base class of all Zarr data types.

A data type converts between a numpy dtype and the JSON of a metadata document. It also converts scalars
between numpy and JSON. The formats differ in their JSON, so each method that reads or writes JSON takes the
``zarr_format``: 2, 3 or ``"3-draft"``.

A complete data type has to define the abstract methods below and :meth:`ZDType.to_json`. The other methods
have defaults that are right for any type of fixed size; a subclass may define faster ones.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, TypeAlias

import numpy as np

from xzarr3._types import JSON, AnyArray
from xzarr3.dtypes.numbers import swapped
from xzarr3.dtypes.specs import ZarrFormat, from_base64, spelling_of, split_v3
from xzarr3.errors import FOREIGN_ERRORS, DataTypeValidationError, foreign

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    DType = TypeVar("DType", default=Any)
    Scalar = TypeVar("Scalar", default=Any)
else:
    from typing import TypeVar

    DType = TypeVar("DType")
    Scalar = TypeVar("Scalar")

Endianness: TypeAlias = Literal["little", "big"]


@dataclass(frozen=True)
class ZDType(ABC, Generic[DType, Scalar]):
    """A Zarr data type.

    Instances are immutable, compare and hash by value and hold no array data. ``ZDType[A, B]`` has the
    numpy dtype class ``A`` and scalars of type ``B``.

    Subclasses set ``_zarr_v3_name``, the name under which they are registered, and ``dtype_cls``, the class
    of their numpy dtype.

    Examples
    --------
    >>> import xzarr3
    >>> data_type = xzarr3.dtypes.parse_dtype("int16")
    >>> isinstance(data_type, xzarr3.dtypes.ZDType), data_type.name, data_type.to_native_dtype()
    (True, 'int16', dtype('int16'))
    """

    dtype_cls: ClassVar[Any]
    _zarr_v3_name: ClassVar[str]
    _zarr_v3_aliases: ClassVar[tuple[str, ...]] = ()

    _by_name_only: ClassVar[bool] = False
    """Whether only its name selects the type, because its numpy dtype selects another type."""

    _listed: ClassVar[bool] = True
    """Whether error messages name the type when they list the known data types."""

    is_variable: ClassVar[bool] = False
    """Whether elements have no fixed encoded size."""

    numpy_swaps: ClassVar[bool] = True
    """Whether numpy's casts convert between byte orders; :meth:`swapped` always does."""

    has_unused_bits: ClassVar[bool] = False
    """Whether stored elements have bits that no value uses; :meth:`decoded` clears or checks them."""

    def __post_init__(self) -> None:
        """Check the fields. Subclasses that override this method also call it."""

    # numpy's dtype

    @classmethod
    def _check_native_dtype(cls, dtype: np.dtype[Any]) -> bool:
        """Whether this class represents dtypes like ``dtype``."""
        return isinstance(dtype, cls.dtype_cls)

    @classmethod
    def _require_dtype(cls, dtype: np.dtype[Any], accepted: str | None = None) -> None:
        """Refuse a dtype that this class does not represent."""
        if not cls._check_native_dtype(dtype):
            raise DataTypeValidationError(
                f"not a dtype of '{cls._zarr_v3_name}'", found=dtype, accepted=accepted
            )

    @classmethod
    @abstractmethod
    def from_native_dtype(cls, dtype: np.dtype[Any]) -> Self:
        """The data type that represents ``dtype``.

        Raises
        ------
        DataTypeValidationError
            If this class does not represent ``dtype``.
        """

    @abstractmethod
    def to_native_dtype(self) -> DType:
        """The numpy dtype of arrays of this type, in the byte order of the type."""

    @property
    def has_byte_order(self) -> bool:
        """Whether elements have a byte order, which the ``bytes`` codec then has to specify."""
        return self.byte_order is not None

    @property
    def byte_order(self) -> Endianness | None:
        """Byte order of the elements; None if they have none."""
        return getattr(self, "endianness", None)

    def in_byte_order(self, order: Endianness) -> Self:
        """This data type with its elements in this byte order."""
        return self

    def in_native_order(self) -> Self:
        """This data type with its elements in the byte order of this machine."""
        return self.in_byte_order(sys.byteorder)

    @property
    def item_size(self) -> int:
        """Size of one element in memory, in bytes."""
        return self._dtype.itemsize

    @property
    def value_dtype(self) -> np.dtype[Any]:
        """The numpy dtype of what :meth:`presented` returns."""
        return self._dtype

    @property
    def name(self) -> str:
        """The name of the data type in version 3 of the format."""
        return self._zarr_v3_name

    @property
    def _dtype(self) -> np.dtype[Any]:
        return self.to_native_dtype()  # type: ignore[return-value]

    # JSON of the data type

    @classmethod
    def _check_json_v2(cls, data: Any) -> bool:
        """Whether ``data`` is the JSON of this data type in version 2."""
        return _succeeds(lambda: cls._from_json_v2(data))

    @classmethod
    def _check_json_v3(cls, data: Any) -> bool:
        """Whether ``data`` is the JSON of this data type in version 3."""
        return _succeeds(lambda: cls._from_json_v3(data))

    @classmethod
    def _from_json_v2(cls, data: Any) -> Self:
        raise _lacking("Zarr format 2", cls._zarr_v3_name, data, "zarr_format=3")

    @classmethod
    def _from_json_v3(cls, data: Any) -> Self:
        raise _lacking("Zarr format 3", cls._zarr_v3_name, data, "zarr_format=2")

    @classmethod
    def _configuration_v3(cls, data: Any) -> Mapping[str, JSON]:
        """The configuration in the JSON of version 3, which has to name this data type."""
        names, spec = (cls._zarr_v3_name, *cls._zarr_v3_aliases), split_v3(data)
        if spec is None or spec[0] not in names:
            raise DataTypeValidationError(
                f"not the data type '{names[0]}'", found=data, accepted=" or ".join(map(repr, names))
            )
        return spec[1]

    @classmethod
    def _from_json_draft(cls, data: Any) -> Self:
        return cls._from_json_v3(data)

    @classmethod
    def from_json(cls, data: Any, *, zarr_format: ZarrFormat) -> Self:
        """Read the data type from the JSON of a metadata document.

        Parameters
        ----------
        data : JSON
            In version 3 the name, or an object with ``name`` and ``configuration``. In version 2 an object:
            ``name`` is the data type as in the document, ``object_codec_id`` the codec of objects or None.
        zarr_format : {3, 2, "3-draft"}

        Raises
        ------
        DataTypeValidationError
            If ``data`` does not describe this data type.
        UnknownExtensionError
            If it does, but something that the data type needs is missing, such as a package.
        """
        read = cls._from_json_v3 if zarr_format == 3 else cls._from_json_draft
        if spelling_of(zarr_format).numpy_names:
            read = cls._from_json_v2
        with foreign(f"not the data type '{cls._zarr_v3_name}'", DataTypeValidationError, found=data):
            return read(data)

    def _to_json_v2(self) -> Any:
        raise _lacking("Zarr format 2", self.name, self.name, "zarr_format=3")

    def _to_json_v3(self) -> Any:
        raise _lacking("Zarr format 3", self.name, self.name, "zarr_format=2")

    def _to_json_draft(self) -> Any:
        raise _lacking("the draft of Zarr format 3", self.name, self.name, "zarr_format=3")

    def to_json(self, zarr_format: ZarrFormat) -> Any:
        """The JSON of this data type, in the form that :meth:`from_json` reads.

        By default no format can express the data type.

        Raises
        ------
        DataTypeValidationError
            If the format cannot express this data type.
        """
        if spelling_of(zarr_format).numpy_names:
            return self._to_json_v2()
        return self._to_json_v3() if zarr_format == 3 else self._to_json_draft()

    # Scalars

    _permitted: ClassVar[str | None] = None
    """The permitted scalars, for error messages."""

    def _refused(
        self, data: object, reason: str = "fill value not permitted", accepted: str | None = None
    ) -> DataTypeValidationError:
        """The error for a scalar that the type cannot hold."""
        return DataTypeValidationError(
            f"{reason} for data type '{self.name}'", found=data, accepted=accepted or self._permitted
        )

    def _unpacked(self, data: object, size: int, *, or_less: bool = False) -> bytes:
        """The bytes of a scalar whose JSON is their base64."""
        accepted = f"base64 of {'up to ' * or_less}{size} bytes"
        try:
            raw = from_base64(data)
        except ValueError as error:
            raise self._refused(data, accepted=accepted) from error
        if len(raw) > size or (len(raw) < size and not or_less):
            raise self._refused(data, accepted=accepted)
        return raw

    def _check_scalar(self, data: object) -> bool:
        """Whether ``data`` can be cast to a scalar of this type."""
        return _succeeds(lambda: self.cast_scalar(data))

    @abstractmethod
    def default_scalar(self) -> Scalar:
        """The fill value of an array that is created without one."""

    @abstractmethod
    def cast_scalar(self, data: object) -> Scalar:
        """``data`` as a scalar of this type.

        Raises
        ------
        DataTypeValidationError
            If the type cannot hold ``data``.
        """

    @abstractmethod
    def from_json_scalar(self, data: Any, *, zarr_format: ZarrFormat) -> Scalar:
        """Read a scalar, such as a fill value, from its JSON form.

        Raises
        ------
        DataTypeValidationError
            If the format does not permit ``data`` for this type.
        """

    @abstractmethod
    def to_json_scalar(self, data: object, *, zarr_format: ZarrFormat) -> Any:
        """The JSON form of a scalar. It keeps every bit if the format can express all bits.

        Version 2 has only one NaN.
        """

    def bits(self, scalar: Scalar) -> bytes:
        """Bytes that identify a scalar bit for bit: -0.0 differs from 0.0, and a NaN equals the same NaN."""
        return np.asarray(scalar, dtype=self._dtype).tobytes()

    # Arrays

    def filled(self, shape: tuple[int, ...], fill: Scalar) -> AnyArray:
        """A new array of this type that holds ``fill`` everywhere."""
        return np.full(shape, fill, dtype=self._dtype)

    def holds_only(self, array: AnyArray, fill: Scalar) -> bool:
        """Whether every element of ``array`` equals ``fill`` bit for bit, as :meth:`bits` compares them."""
        if array.size == 0:
            return True
        wanted = np.asarray(fill, dtype=array.dtype).tobytes()
        # The first and last elements are taken as arrays, because text scalars lose zeros at their end.
        for corner in (0, -1):
            if array[(*(corner,) * array.ndim, ...)].tobytes() != wanted:
                return False
        size = array.dtype.itemsize
        if size in (1, 2, 4, 8):
            bits = np.dtype(f"u{size}")
            return bool((array.view(bits) == np.frombuffer(wanted, bits)[0]).all())
        octets = np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(-1, size)
        return bool((octets == np.frombuffer(wanted, np.uint8)).all())

    def cast_array(self, values: Any) -> AnyArray:
        """``values`` as an array of this type; no value may change by more than rounding.

        Raises
        ------
        DataTypeValidationError
            If the type cannot hold one of the values.
        """
        given = unmasked(values, self)
        native = self._dtype
        if given.dtype == native:
            return given
        try:
            with np.errstate(all="ignore"):
                result = given.astype(native)
                changed = np.asarray(result.astype(given.dtype) != given)
        except FOREIGN_ERRORS as error:
            raise self._cannot_hold(given, str(error)) from error
        if changed.any():
            raise self._cannot_hold(given, found=given[changed].flat[0])
        return result

    def swapped(self, array: AnyArray) -> AnyArray:
        """An array of the same dtype, with the bytes of each element in reverse order."""
        return swapped(array)

    def decoded(self, array: AnyArray) -> AnyArray:
        """An array of stored elements with unused bits cleared.

        Raises
        ------
        DataTypeValidationError
            If an element is not a value of this type.
        """
        return array

    def presented(self, elements: AnyArray) -> AnyArray:
        """Elements as users see them, which is an array of their own dtype but for ``optional``."""
        return elements

    def _cannot_hold(
        self, given: AnyArray, reason: str = "", *, found: object = ..., accepted: str | None = None
    ) -> DataTypeValidationError:
        """The error for an array that the type cannot hold."""
        native = self._dtype
        kind = "" if str(native) == self.name else f" ('{native}')"
        return DataTypeValidationError(
            f"data type '{self.name}'{kind} cannot hold {'all values of ' if found is not ... else ''}"
            f"'{given.dtype}'{': ' * bool(reason)}{reason}",
            found=found,
            accepted=accepted or f"values that '{self.name}' can represent",
        )


def unmasked(values: Any, data_type: ZDType, dtype: Any = None) -> AnyArray:
    """``values`` as an array; refuses masked elements.

    Raises
    ------
    DataTypeValidationError
    """
    mask = getattr(values, "_mask", None)  # As `numpy.ma` finds it, which is not loaded for it.
    if isinstance(mask, np.ndarray) and (mask.any() if mask.dtype.names is None else any(mask.tobytes())):
        raise DataTypeValidationError(
            f"data type '{data_type.name}' cannot hold masked elements",
            advice="replace the masked elements by .filled(value), or make an array of data type 'optional'",
        )
    if isinstance(values, (list, tuple)) and holds_masks(values):  # numpy would ignore the masks.
        for each in values:
            unmasked(each, data_type, object)
    try:
        return np.asarray(values, dtype=dtype)
    except FOREIGN_ERRORS as error:
        raise DataTypeValidationError(
            f"not values of data type '{data_type.name}': {error}",
            found=values,
            accepted="an array, or values that numpy.asarray converts to one",
        ) from error


def holds_masks(values: Any) -> bool:
    """Whether there are masked arrays in a list. Single masked elements in it do not count."""
    masked: Any = getattr(sys.modules.get("numpy.ma"), "MaskedArray", None)
    if masked is None or not isinstance(values, (list, tuple)):
        return False
    kinds = set(map(type, values))
    if any(issubclass(kind, masked) and kind.__name__ != "MaskedConstant" for kind in kinds):
        return True
    return not kinds.isdisjoint((list, tuple)) and any(map(holds_masks, values))


def stacked(values: Any) -> Any:
    """A list with masked arrays in it, as one masked array."""
    if not isinstance(values, (list, tuple)):
        return np.ma.asanyarray(values)
    return np.ma.stack([*map(stacked, values)])


def has_lost_digits(values: Any, given: AnyArray) -> bool:
    """Whether numpy made ``given`` of objects, and may have rounded integers among them.

    It makes floating point numbers of integers that no dtype of integers holds together, or that stand beside
    a floating point number.
    """
    if given.dtype.kind != "f" or hasattr(values, "dtype"):
        return False
    return bool((np.abs(given) >= _LAST_EXACT).any())


_LAST_EXACT = 2.0**53
"""From here on not every integer is a floating point number."""


def item_of(data: object) -> Any:
    """The element of an array without dimensions; anything else unchanged."""
    return data[()] if isinstance(data, np.ndarray) and data.ndim == 0 else data


def _lacking(format: str, name: str, found: object, accepted: str) -> DataTypeValidationError:
    """The error for a data type that a format does not have."""
    return DataTypeValidationError(f"{format} has no data type '{name}'", found=found, accepted=accepted)


def _succeeds(call: Callable[[], object]) -> bool:
    try:
        call()
    except FOREIGN_ERRORS:
        return False
    return True


__all__ = ["JSON", "DType", "Endianness", "Scalar", "ZDType", "item_of", "swapped", "unmasked"]
