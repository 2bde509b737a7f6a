"""Translates values of xarray to those that are stored, by the CF conventions.

xarray's own coders pack values and encode times and text. What they would store wrongly raises an error:
numbers that do not fit a type, fractions that would be lost, values that equal the fill value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from xarray import Variable, conventions
from xarray.backends.common import ensure_dtype_not_object
from xarray.coders import CFDatetimeCoder, CFTimedeltaCoder
from xarray.coding import strings, variables
from xarray.coding.common import VariableCoder, pop_to

from xzarr3._types import AnyArray
from xzarr3.errors import ArgumentTypeError, DataTypeValidationError, one_of, shorten

_NAT = np.iinfo(np.int64).min
_TEXT = np.dtypes.StringDType()

# The coders that xarray applies to values for Zarr, in this order. Booleans stay booleans.
_CODERS: tuple[VariableCoder, ...] = getattr(conventions, "ZARR_CODERS", None) or (
    CFDatetimeCoder(),
    CFTimedeltaCoder(),
    variables.CFScaleOffsetCoder(),
    variables.CFMaskCoder(),
    variables.NativeEnumCoder(),
    variables.NonStringCoder(),
    variables.DefaultFillvalueCoder(),
)

_DTYPES = (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "bool", "str", "complex64", "complex128",
)  # fmt: skip


def _check_dtype(variable: Variable, name: str) -> None:
    """Refuse a data type in the encoding that numpy does not know."""
    asked = variable.encoding.get("dtype")
    try:
        np.dtype(asked)
    except TypeError as error:
        raise ArgumentTypeError(
            f"unknown dtype in the encoding of variable {name!r}: {shorten(asked)}; {one_of(asked, _DTYPES)}"
        ) from error


def encode_values(variable: Variable, name: str, *, explicit: bool = True, exact: bool = False) -> Variable:
    """Encode the values of a variable by the CF conventions, as xarray does for Zarr.

    Dates become numbers, packed variables integers, missing values ``_FillValue``. Dask arrays stay lazy.

    Parameters
    ----------
    variable : xarray.Variable
    name : str
    explicit : bool
        Whether its encoding was passed to ``to_zarr``. If not, a ``_FillValue`` that does not fit the data
        type is left out instead of refused.
    exact : bool
        Refuse fractions if unpacked integers are stored; otherwise fractions are rounded.

    Raises
    ------
    DataTypeValidationError
        If the integer type cannot represent all values; for a dask array when it is computed. If bytes end
        in a zero byte, which cannot be told from the padding to a fixed length.
    ValueError, TypeError, NotImplementedError
        From xarray, if it cannot encode the values.
    """
    conventions.ensure_not_multiindex(variable, name=name)
    _check_dtype(variable, name)
    if variable.dtype.kind == "T" and variable.dtype != _TEXT:
        variable = variable.astype(object)  # xarray handles missing text only among objects.
    becomes_text = variable.dtype.kind == "O" and getattr(variable.encoding.get("dtype"), "kind", "") == "T"
    if becomes_text and not {"_FillValue", "missing_value"} & set(variable.encoding):
        variable = _mapped(variable, _filled, object)
    encoded = unmasked = _with_fill_value(variable, name, explicit)
    with np.errstate(invalid="ignore", over="ignore"):  # Numbers outside the integer range are refused below.
        for coder in _CODERS:
            if isinstance(coder, variables.CFMaskCoder):
                unmasked = encoded
            encoded = coder.encode(encoded, name=name)
    encoded = _checked(
        encoded, unmasked, name, is_time=variable.dtype.kind in "mMO", exact=exact, explicit=explicit
    )
    for key in conventions.CF_RELATED_DATA:
        pop_to(encoded.encoding, encoded.attrs, key)
    encoded = ensure_dtype_not_object(encoded, name=name)
    if encoded.dtype.kind == "T":
        return encoded
    text_coder = strings.EncodedStringCoder(allows_unicode=True)  # type: ignore[no-untyped-call]
    fixed = strings.ensure_fixed_length_bytes(text_coder.encode(encoded, name=name))
    if encoded.dtype.kind == "O" and fixed.dtype.kind == "S":
        for value in np.asarray(encoded.data).flat:
            if value.endswith(b"\0"):
                raise DataTypeValidationError(
                    f"variable {name!r} has bytes that end in a zero byte, which would be lost",
                    found=value,
                    accepted="bytes of one length as numpy's void, or uint8 with one more dimension",
                )
    return fixed


def is_lazy(data: object) -> bool:
    """Whether values are in a dask array."""
    return hasattr(data, "__dask_graph__")


def _mapped(variable: Variable, change: Callable[..., AnyArray], dtype: Any, *others: Variable) -> Variable:
    """The variable with ``change`` applied to its values and those of ``others``; lazy if it is lazy."""
    data = variable.data
    if is_lazy(data):
        import dask.array as da

        meta = np.empty((0,) * variable.ndim, dtype)
        data = da.map_blocks(change, data, *(other.data for other in others), dtype=dtype, meta=meta)
    else:
        data = change(np.asarray(data), *(np.asarray(other.data) for other in others))
    return Variable(variable.dims, data, variable.attrs, variable.encoding, fastpath=True)


def _filled(values: AnyArray) -> AnyArray:
    """The values with missing text as empty text, as xarray stores it elsewhere."""
    return np.where(pd.isnull(values), "", values)


def _with_fill_value(variable: Variable, name: str, explicit: bool) -> Variable:
    """``variable``, after a check that its kind of numbers and its fill values fit the stored data type.

    A fill value that does not fit is refused if ``explicit``, else removed.
    """
    encoding = dict(variable.encoding)
    dtype = np.dtype(encoding.get("dtype", variable.dtype))
    if variable.dtype.kind == "c" and dtype.kind in "biuf":
        raise _other_kind(name, variable.dtype, dtype, "such as the .real and .imag parts")
    if dtype.kind not in "iu":
        return variable
    info = np.iinfo(dtype)
    signed, unsigned = np.iinfo(f"i{dtype.itemsize}"), np.iinfo(f"u{dtype.itemsize}")
    lowest, highest = int(info.min), int(info.max)
    if encoding.get("_Unsigned") is not None:
        lowest, highest = int(signed.min), int(unsigned.max)
    for key in ("_FillValue", "missing_value"):
        value = encoding.get(key)
        if not isinstance(value, (int, float, np.integer, np.floating)) or lowest <= value <= highest:
            continue
        if explicit and value == value:
            raise DataTypeValidationError(
                f"the {key} of variable {name!r} does not fit data type {dtype}",
                found=value.item() if isinstance(value, np.generic) else value,
                accepted=f"{lowest} to {highest}",
            )
        if not explicit:
            del encoding[key]
    if encoding.keys() == variable.encoding.keys():
        return variable
    return Variable(variable.dims, variable.data, variable.attrs, encoding, fastpath=True)


def _other_kind(name: str, found: np.dtype[Any], dtype: np.dtype[Any], fix: str) -> DataTypeValidationError:
    return DataTypeValidationError(
        f"values of variable {name!r} of dtype {found} cannot be stored as data type {dtype}",
        found=str(found),
        accepted=f"values of dtype {dtype}, {fix}",
    )


def _checked(
    encoded: Variable, unmasked: Variable, name: str, *, is_time: bool, exact: bool, explicit: bool
) -> Variable:
    """``encoded``, checked now or when it is computed: no value is lost by the data type or ``_FillValue``.

    ``unmasked`` has the values before missing ones became ``_FillValue`` and all were cast to integers.
    """
    dtype, source = encoded.dtype, unmasked.dtype
    if exact and source.kind in "iuf" and dtype.kind == "b":
        raise _other_kind(name, source, dtype, "for instance by != 0")
    if dtype.kind == "f" and source.kind == "f" and dtype.itemsize < source.itemsize:
        return _mapped(encoded, partial(_finite, name), dtype, unmasked)
    # For encoded times in dask arrays, the announced data type may differ from the true one.
    lazy, attrs = is_lazy(encoded.data), encoded.attrs
    fill_value = attrs.get("_FillValue", attrs.get("missing_value"))
    sure = np.can_cast(source, dtype, "safe") and not (is_time and (lazy or fill_value is not None))
    if dtype.kind not in "iu" or source.kind not in "iuf" or sure:
        return encoded
    kind = {"true": "u", "false": "i"}.get(str(attrs.get("_Unsigned", "")).lower(), dtype.kind)
    info = np.iinfo(f"{kind}{dtype.itemsize}")
    if fill_value != fill_value:
        fill_value = None
    check = _Fits(
        name=name,
        dtype=dtype,
        lowest=int(info.min),
        highest=int(info.max),
        fill_value=None if fill_value is None else int(fill_value),
        scale=attrs.get("scale_factor"),
        offset=attrs.get("add_offset"),
        is_time=is_time,
        exact=exact,
        explicit=explicit,
    )
    return _mapped(encoded, check, dtype, unmasked)


def _finite(name: str, encoded: AnyArray, source: AnyArray) -> AnyArray:
    lost = np.isinf(encoded)
    if lost.any() and (lost := lost & np.isfinite(source)).any():
        info = np.finfo(encoded.dtype)
        raise DataTypeValidationError(
            f"value {source[lost][0]} of variable {name!r} does not fit data type {encoded.dtype}",
            found=source[lost][0].item(),
            accepted=f"{info.min} to {info.max}",
            advice="choose another dtype",
        )
    return encoded


@dataclass(frozen=True)
class _Fits:
    """The check that encoded values represent their source values, for one variable."""

    name: str
    dtype: np.dtype[Any]
    lowest: int
    highest: int
    fill_value: int | None
    scale: Any
    offset: Any
    is_time: bool
    exact: bool
    explicit: bool

    def __call__(self, encoded: AnyArray, source: AnyArray) -> AnyArray:
        """Check values; returns ``encoded`` in the stored integer type.

        Parameters
        ----------
        encoded, source : ndarray
            Values as they are stored, and as they were before rounding and before missing ones were replaced.
        """
        if encoded.size:
            self._check_range(source)
            self._check_missing(encoded, source)
            if self.exact and source.dtype.kind == "f" and not self.is_time and not self._is_packed:
                self._check_fractions(source)
        return encoded.astype(self.dtype, copy=False)

    def _check_range(self, source: AnyArray) -> None:
        if source.dtype.kind == "f":
            ends = [np.fmin.reduce(source, axis=None), np.fmax.reduce(source, axis=None)]
        elif self.is_time and source.dtype.kind == "i":
            times = source[source != _NAT]
            ends = [times.min(), times.max()] if times.size else []
        else:
            ends = [source.min(), source.max()]
        for value in ends:
            if value != value:
                continue
            if not np.isfinite(value) or not self.lowest <= int(np.rint(value)) <= self.highest:
                raise self._error(
                    f"value {self._shown(value)} does not fit data type {self.dtype}",
                    value,
                    f"{self._unpacked(self.lowest)} to {self._unpacked(self.highest)}, or another dtype"
                    + (", scale_factor or add_offset" if self._is_packed else ""),
                )

    def _check_missing(self, encoded: AnyArray, source: AnyArray) -> None:
        if source.dtype.kind == "f":
            missing = np.isnan(source)
        elif self.is_time:
            missing = source == _NAT
        else:
            return
        if self.fill_value is None:
            if missing.any() and not (self.is_time and self.dtype == np.int64):
                raise self._error(
                    f"a missing value cannot be stored as data type {self.dtype}",
                    source[missing][0],
                    "a _FillValue in the encoding, or a floating point dtype",
                )
        else:
            taken = (encoded == np.asarray(self.fill_value).astype(encoded.dtype)) & ~missing
            if not self._is_packed and not self.is_time:
                taken &= source != self.fill_value  # The user may have marked missing values with it.
            if taken.any():
                raise self._error(
                    f"value {self._shown(source[taken][0])} would be stored as the _FillValue "
                    f"{self.fill_value} and read as missing",
                    source[taken][0],
                    "a _FillValue that no value is stored as",
                )

    def _check_fractions(self, source: AnyArray) -> None:
        fractions = np.isfinite(source) & (source != np.rint(source))
        if fractions.any():
            value = source[fractions][0]
            raise self._error(f"value {value} does not fit data type {self.dtype}", value, "integers")

    @property
    def _is_packed(self) -> bool:
        return self.scale is not None or self.offset is not None

    def _unpacked(self, value: Any) -> Any:
        unpacked = value * (1 if self.scale is None else self.scale)
        return unpacked + (0 if self.offset is None else self.offset)

    def _shown(self, value: Any) -> str:
        return f"{self._unpacked(value)}" + (f" (packed {value})" if self._is_packed else "")

    def _error(self, reason: str, found: Any, accepted: str) -> DataTypeValidationError:
        advice = None  # If exact, the encoding is that of the store.
        if self.explicit:
            advice = f"change what encoding={{{self.name!r}: ...}} asks for"
        elif not self.exact:
            advice = (
                "call .drop_encoding() to ignore the variable's own encoding, as of the file it came from"
            )
        return DataTypeValidationError(
            f"{reason}, which the encoding of variable {self.name!r} asks for",
            found=found.item() if isinstance(found, np.generic) else found,
            accepted=accepted,
            advice=advice,
        )
