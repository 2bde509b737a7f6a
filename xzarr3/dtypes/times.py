"""``numpy.datetime64`` and ``numpy.timedelta64``: counts of a unit of time, in 64 bits.

Specification: zarr-extensions, "numpy.datetime64", "numpy.timedelta64"; Zarr v2, "Data type encoding"
(``<M8[10s]``). Example: ``{"name": "numpy.datetime64", "configuration": {"unit": "s", "scale_factor": 10}}``.
In the draft of version 3 an extension has them.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from xzarr3._types import JSON, AnyArray
from xzarr3.dtypes.base import unmasked
from xzarr3.dtypes.core import NumpyNamed, Ordered, order_of
from xzarr3.dtypes.numbers import native_order
from xzarr3.dtypes.specs import ZarrFormat, native_v2, spelling_of
from xzarr3.errors import FOREIGN_ERRORS, DataTypeValidationError, listed

DRAFT_URI = "https://purl.org/zarr/spec/extensions/data-types/datetime/1.0"
"""The extension that has these data types in the draft of version 3."""
UNITS = ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as", "generic")
_MICRO = ("\u03bcs", "\u00b5s")  # other spellings of "us": with the Greek letter, and with the micro sign
_DATE = re.compile(
    r"[-+]?[0-9]{4,20}(-[0-9]{2}(-[0-9]{2}(T[0-9]{2}(:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,18})?)?)?)?)?)?"
)
_NAT = -(2**63)


@dataclass(frozen=True, repr=False)
class _Time(NumpyNamed, Ordered):
    unit: str = "generic"
    scale_factor: int = 1
    _letter: ClassVar[str]
    _type: ClassVar[type[Any]]
    _python: ClassVar[type[Any]]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.unit in _MICRO:
            object.__setattr__(self, "unit", "us")
        if self.unit not in UNITS:
            raise self._wrong("unit", self.unit, listed(UNITS))
        if type(self.scale_factor) is not int or not 0 < self.scale_factor < 2**31:
            raise self._wrong("scale_factor", self.scale_factor, "an integer from 1 to 2^31 - 1")

    def __repr__(self) -> str:
        """The fields in alphabetical order."""
        return (
            f"{type(self).__name__}(endianness={self.endianness!r}, scale_factor={self.scale_factor!r}, "
            f"unit={self.unit!r})"
        )

    @classmethod
    def _wrong(cls, field: str, found: object, accepted: str) -> DataTypeValidationError:
        return DataTypeValidationError(
            f"data type '{cls._zarr_v3_name}'", field=f"configuration.{field}", found=found, accepted=accepted
        )

    @property
    def item_size(self) -> int:
        return 8

    @property
    def _code(self) -> str:
        if self.unit == "generic" and self.scale_factor == 1:
            return f"{self._letter}8"
        return f"{self._letter}8[{'' if self.scale_factor == 1 else self.scale_factor}{self.unit}]"

    @classmethod
    def from_native_dtype(cls, dtype: np.dtype[Any]) -> Self:
        cls._require_dtype(dtype, f"numpy's {cls._letter}8[...]")
        unit, scale_factor = np.datetime_data(dtype)
        return cls(unit=unit, scale_factor=scale_factor, endianness=order_of(dtype))

    def to_native_dtype(self) -> np.dtype[Any]:
        return self._ordered(np.dtype(self._code))

    @classmethod
    def _from_json_v3(cls, data: Any) -> Self:
        given = cls._configuration_v3(data)
        if given.keys() != {"unit", "scale_factor"}:
            raise cls._wrong("unit", data, "a configuration of 'unit' and 'scale_factor'")
        unit, scale_factor = given["unit"], given["scale_factor"]
        if not isinstance(unit, str) or type(scale_factor) is not int:
            raise cls._wrong("unit", data, f"one of {listed(UNITS)}, and an integer as 'scale_factor'")
        return cls(unit=unit, scale_factor=scale_factor)

    def _to_json_v2(self) -> Any:
        order = "<" if self.endianness == "little" else ">"
        return {"name": order + self._code, "object_codec_id": None}

    def _to_json_v3(self) -> Any:
        return {
            "name": self._zarr_v3_name,
            "configuration": {"unit": self.unit, "scale_factor": self.scale_factor},
        }

    @classmethod
    def _from_json_draft(cls, data: Any) -> Self:
        if not isinstance(data, Mapping) or data.get("extension") != DRAFT_URI:
            return cls._from_json_v3(data)
        native = native_v2({"name": data.get("type"), "object_codec_id": None})
        if native is None:
            raise DataTypeValidationError(f"not the data type '{cls._zarr_v3_name}'", found=data)
        return cls.from_native_dtype(native).in_native_order()

    def _to_json_draft(self) -> Any:
        if self.unit == "generic" or self.scale_factor != 1:
            return super()._to_json_draft()
        return {"extension": DRAFT_URI, "type": f"<{self._code}", "fallback": "int64"}

    def _of(self, count: int) -> Any:
        """The scalar of ``count`` units."""
        return np.int64(count).view(np.dtype(self._code))

    def default_scalar(self) -> Any:
        return self._of(_NAT)

    def from_json_scalar(self, data: JSON, *, zarr_format: ZarrFormat) -> Any:
        spelling = spelling_of(zarr_format)
        if data == "NaT" or (spelling.digits and data is None):
            return self._of(_NAT)
        if type(data) is int and -(2**63) <= data < 2**63:
            return self._of(data)
        if spelling.old_fills and isinstance(data, str):
            try:
                return self.cast_scalar(data)  # zarr-python 3.0 wrote dates
            except DataTypeValidationError as error:
                raise self._refused(data, "fill value not permitted", "'NaT' or an integer") from error
        raise self._refused(data, "fill value not permitted", "'NaT' or an integer of 64 bits")

    def to_json_scalar(self, data: object, *, zarr_format: ZarrFormat) -> Any:
        spelling = spelling_of(zarr_format)
        count = int(self.cast_scalar(data).view(np.int64))
        # zarr-python 2 reads and writes only the number.
        return "NaT" if count == _NAT and spelling.all_bits and not spelling.digits else count

    def cast_scalar(self, data: object) -> Any:
        if type(data) is int or (isinstance(data, str) and data == "NaT"):
            return self.from_json_scalar(data, zarr_format=3)
        try:
            scalar = self._parsed(data) if isinstance(data, str) else data
            result = self.cast_array(np.asarray(scalar))
            if result.ndim:
                raise ValueError("not a scalar")
        except FOREIGN_ERRORS as error:
            raise self._refused(
                data, "value cannot be held", f"{self._accepted}, 'NaT' or the number of units"
            ) from error
        return native_order(result)[()]

    _accepted: ClassVar[str]

    # If a dtype has no unit, numpy chooses its unit, scale factor and byte order. So all methods below use
    # integer counts.

    @property
    def numpy_swaps(self) -> bool:  # type: ignore[override]
        """Whether numpy's casts convert between byte orders: only if there is a unit."""
        return self.unit != "generic"

    def bits(self, scalar: Any) -> bytes:
        return np.asarray(scalar.view(np.int64), self._counts).tobytes()

    @property
    def _counts(self) -> np.dtype[Any]:
        """The integer dtype of counts, in the byte order of this type."""
        return self._ordered(np.dtype(np.int64))

    def filled(self, shape: tuple[int, ...], fill: Any) -> AnyArray:
        return np.full(shape, fill.view(np.int64), self._counts).view(self._dtype)

    def holds_only(self, array: AnyArray, fill: Any) -> bool:
        counts = array.view("i8" if array.dtype.isnative else np.dtype("i8").newbyteorder("S"))
        return super().holds_only(counts, fill.view(np.int64))

    def _parsed(self, text: str) -> Any:
        raise ValueError("not a duration")

    def cast_array(self, values: Any) -> AnyArray:
        given = unmasked(values, self)
        dtype = self._dtype
        if given.dtype == dtype:
            return given
        if given.dtype.kind == "O":
            counts = [self._count(given, item) for item in given.reshape(-1).tolist()]
            return np.array(counts, self._counts).view(dtype).reshape(given.shape)
        if given.dtype.kind != self._letter:
            if given.size == 0 and not hasattr(values, "dtype"):
                return np.empty(given.shape, dtype)
            raise self._cannot_hold(given, accepted=self._accepted)
        return self._converted(given)

    def _count(self, given: AnyArray, item: Any) -> int:
        """The count of units of a Python or pandas object."""
        exact = getattr(item, f"to_{self._type.__name__}", None)  # pandas has it, to keep nanoseconds
        try:
            is_known = exact is not None or isinstance(item, (self._python, self._type))
            if not is_known or getattr(item, "tzinfo", None) is not None:
                raise TypeError("not a time, or one of a time zone")
            if exact is not None:
                item = exact()
            return int(native_order(self._converted(np.asarray(self._type(item)))).view(np.int64)[()])
        except DataTypeValidationError:
            raise
        except FOREIGN_ERRORS as error:
            raise self._cannot_hold(given, found=item, accepted=self._accepted) from error

    def _converted(self, given: AnyArray) -> AnyArray:
        """Convert times to this unit; they must be whole numbers of it."""
        given = native_order(given)
        source, target = given.dtype, np.dtype(self._code)
        if source == target:
            return self._in_order(given)
        missing = np.isnat(given)
        generic = "generic" in (np.datetime_data(source)[0], self.unit)
        if not missing.all() and (generic or not np.can_cast(source, target, "same_kind")):
            raise self._cannot_hold(
                given, accepted=f"{self._accepted} in units that convert to '{self.unit}'"
            )
        result = np.full(given.shape, _NAT, np.int64).view(target)
        if not missing.all():
            try:
                result = given.astype(target)
                back = result.astype(source)
            except (OverflowError, ValueError) as error:
                raise self._cannot_hold(given, str(error)) from error
            changed = np.asarray(back.view(np.int64) != given.view(np.int64))
            if changed.any():
                raise self._cannot_hold(
                    given,
                    found=given[changed].flat[0],
                    accepted=f"whole numbers of {self.scale_factor} '{self.unit}'",
                )
        return self._in_order(result)


class DateTime64(_Time):
    """``numpy.datetime64``: points in time, counted from 1970-01-01T00:00 UTC.

    Parameters
    ----------
    unit : str
        Unit of time, as numpy names it.
    scale_factor : int
        Number of units that are counted as one.
    endianness : {"little", "big"}
        Byte order.

    Examples
    --------
    >>> DateTime64("s", 10).cast_scalar("2000-01-01").view("int64")
    np.int64(94668480)
    """

    dtype_cls = np.dtypes.DateTime64DType
    _zarr_v3_name: ClassVar[str] = "numpy.datetime64"
    _letter: ClassVar[str] = "M"
    _numpy_names: ClassVar[str | None] = "'<M8[s]', ..."
    _type: ClassVar[type[Any]] = np.datetime64
    _python: ClassVar[type[Any]] = datetime.date
    _accepted: ClassVar[str] = "datetime64, datetime.datetime without a time zone, datetime.date"

    def _parsed(self, text: str) -> Any:
        if not _DATE.fullmatch(text):  # numpy also accepts "today" and other words
            raise ValueError("not a date")
        return np.datetime64(text)


class TimeDelta64(_Time):
    """``numpy.timedelta64``: durations; parameters as for :class:`DateTime64`.

    Examples
    --------
    >>> TimeDelta64("m", 30).cast_scalar(datetime.timedelta(hours=2)).view("int64")
    np.int64(4)
    """

    dtype_cls = np.dtypes.TimeDelta64DType
    _zarr_v3_name: ClassVar[str] = "numpy.timedelta64"
    _letter: ClassVar[str] = "m"
    _numpy_names: ClassVar[str | None] = "'<m8[s]', ..."
    _type: ClassVar[type[Any]] = np.timedelta64
    _python: ClassVar[type[Any]] = datetime.timedelta
    _accepted: ClassVar[str] = "timedelta64, datetime.timedelta"
