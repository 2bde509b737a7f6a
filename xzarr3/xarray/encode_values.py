"""Translates values of xarray to those that are stored, by the CF conventions.

xarray's own coders pack values and encode times and text. What they would store wrongly raises an error:
numbers that do not fit a type, values that equal the mark of missing ones, missing text without a mark. A
warning tells of fractions that are rounded.
"""

from __future__ import annotations

import warnings
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
from xzarr3.errors import ArgumentTypeError, DataTypeValidationError, levels_to_caller, one_of, shorten

_NAT = np.iinfo(np.int64).min
_TEXT = np.dtypes.StringDType()
_MARKS = ("_FillValue", "missing_value")

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
        Refuse fractions if unpacked integers are stored; otherwise fractions are rounded, with a warning.

    Raises
    ------
    DataTypeValidationError
        If the data type cannot represent all values, if a value would be read as missing, or if text is
        missing and no ``_FillValue`` marks it; for a dask array when it is computed. If bytes end in a zero
        byte, which cannot be told from the padding to a fixed length.
    ValueError, TypeError, NotImplementedError
        From xarray, if it cannot encode the values.
    """
    conventions.ensure_not_multiindex(variable, name=name)
    _check_dtype(variable, name)
    variable = _as_objects(variable)
    complete = _Complete(name, exact)
    marks = [key for key in _MARKS if variable.encoding.get(key) is not None]
    if variable.dtype.kind == "O":
        if any(isinstance(variable.encoding[key], (str, bytes)) for key in marks):
            variable = _mapped(variable, _nan_for_none, object)
        elif not marks and np.dtype(variable.encoding.get("dtype", object)).kind in "TUS":
            variable = _mapped(variable, complete, object)
    encoded = unmasked = _with_fill_value(variable, name, explicit)
    with np.errstate(invalid="ignore", over="ignore"):  # Numbers outside the integer range are refused below.
        for coder in _CODERS:
            if isinstance(coder, variables.CFMaskCoder):
                unmasked = encoded
            encoded = coder.encode(encoded, name=name)
    in_attrs = not any(key in encoded.attrs for key in marks)
    is_time = variable.dtype.kind in "mMO"
    encoded = _checked(
        encoded, unmasked, name, is_time=is_time, exact=exact, in_attrs=in_attrs, explicit=explicit
    )
    for key in conventions.CF_RELATED_DATA:
        pop_to(encoded.encoding, encoded.attrs, key)
    if encoded.dtype.kind == "O":
        encoded = _with_text_dtype(encoded, name, complete)
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


def _as_objects(variable: Variable) -> Variable:
    """The variable with text that may be missing as objects; xarray handles missing text only among these."""
    asked = variable.encoding.get("dtype")
    if variable.dtype.kind == "T" and variable.dtype != _TEXT:
        asked = _TEXT if asked is None else asked
        variable = _mapped(variable, partial(np.asarray, dtype=object), object)
    if getattr(asked, "kind", "") != "T":
        return variable
    encoding = {**variable.encoding, "dtype": _TEXT}
    return Variable(variable.dims, variable._data, variable.attrs, encoding, fastpath=True)


def _nan_for_none(values: AnyArray) -> AnyArray:
    """The objects with NaN for all missing ones; xarray does not find None in dask arrays."""
    return np.where(pd.isnull(values), np.nan, values)


@dataclass(frozen=True)
class _Complete:
    """The check that no text of one variable is missing, for which there is no mark."""

    name: str
    exact: bool

    def __call__(self, values: AnyArray, block_id: tuple[int, ...] | None = None) -> AnyArray:
        """``values`` unchanged."""
        missing = np.asarray(pd.isnull(values))
        if not missing.any():
            return values
        is_bytes = isinstance(next(iter(values[~missing]), None), bytes)
        advice = f"mark it by a text that no value has, in encoding={{{self.name!r}: {{'_FillValue': 'NA'}}}}"
        if self.exact:
            advice += ", which needs mode='w' since the variable exists"
        raise DataTypeValidationError(
            f"variable {self.name!r} has missing {'bytes' if is_bytes else 'text'}"
            f"{_place(missing, block_id)}, which would be stored as if present",
            found=values[missing][0],
            accepted=f"no missing values, as after .fillna({b'' if is_bytes else ''!r})",
            advice=None if is_bytes else advice,
        )


def _place(found: AnyArray, block_id: tuple[int, ...] | None) -> str:
    """Where the first of the ``found`` elements is, for a message; empty for values without dimensions."""
    if not found.ndim:
        return ""
    index = tuple(map(int, np.unravel_index(np.argmax(found), found.shape)))
    return f" at index {index}" + ("" if block_id is None else f" of block {tuple(block_id)}")


def _with_text_dtype(encoded: Variable, name: str, complete: _Complete) -> Variable:
    """Objects in the data type that xarray infers from all of them, after a check that no text is missing."""
    if strings.check_vlen_dtype(encoded.dtype) is not None:  # type: ignore[no-untyped-call]
        return _mapped(encoded, complete, encoded.dtype)
    if is_lazy(encoded.data):  # xarray computes all of them, and the check needs them, too.
        encoded = Variable(
            encoded.dims, encoded.data.persist(), encoded.attrs, encoded.encoding, fastpath=True
        )
    inferred = ensure_dtype_not_object(encoded, name=name)
    if inferred.dtype.kind in "OSU":
        complete(np.asarray(encoded.data))
    return inferred


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
    for key in _MARKS:
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
    encoded: Variable,
    unmasked: Variable,
    name: str,
    *,
    is_time: bool,
    exact: bool,
    in_attrs: bool,
    explicit: bool,
) -> Variable:
    """``encoded``, checked now or when it is computed: no value is lost by the data type or ``_FillValue``.

    ``unmasked`` has the values before missing ones became ``_FillValue`` and all were cast to integers.
    ``in_attrs`` tells that the mark of missing values is among the attributes and not in the encoding.
    """
    dtype, source, attrs = encoded.dtype, unmasked.dtype, encoded.attrs
    if exact and source.kind in "iuf" and dtype.kind == "b":
        raise _other_kind(name, source, dtype, "for instance by != 0")
    fill_value = attrs.get("_FillValue", attrs.get("missing_value"))
    if np.all(pd.isnull(fill_value)):
        fill_value = None
    # For encoded times in dask arrays, the announced data type may differ from the true one.
    sure = np.can_cast(source, dtype, "safe") and not (
        is_time and (is_lazy(encoded.data) or fill_value is not None)
    )
    to_integer = dtype.kind in "iu" and source.kind in "iuf" and not sure
    to_float = dtype.kind == "f" and (
        (source.kind == "f" and dtype.itemsize < source.itemsize)
        or (source.kind in "iu" and not is_time and 8 * source.itemsize > np.finfo(dtype).nmant + 1)
    )
    shortens = dtype.kind in "SU" and source != dtype
    if not (to_integer or to_float or shortens or (fill_value is not None and not in_attrs)):
        return encoded
    kind = {"true": "u", "false": "i"}.get(str(attrs.get("_Unsigned", "")).lower(), dtype.kind)
    info = np.iinfo(f"{kind}{dtype.itemsize}") if dtype.kind in "iu" else None
    check = _Fits(
        name=name,
        dtype=dtype,
        lowest=0 if info is None else int(info.min),
        highest=0 if info is None else int(info.max),
        fill_value=fill_value if info is None or fill_value is None else int(fill_value),
        in_attrs=in_attrs,
        scale=attrs.get("scale_factor"),
        offset=attrs.get("add_offset"),
        is_time=is_time,
        exact=exact,
        explicit=explicit,
    )
    _rounded.discard(name)
    return _mapped(encoded, check, dtype, unmasked)


_rounded: set[str] = set()
"""Variables of dask arrays of whose rounding this process has warned; it is one warning for all blocks."""


@dataclass(frozen=True)
class _Fits:
    """The check that encoded values represent their source values, for one variable."""

    name: str
    dtype: np.dtype[Any]
    lowest: int
    highest: int
    fill_value: Any
    in_attrs: bool
    scale: Any
    offset: Any
    is_time: bool
    exact: bool
    explicit: bool

    def __call__(
        self, encoded: AnyArray, source: AnyArray, block_id: tuple[int, ...] | None = None
    ) -> AnyArray:
        """Check values; returns ``encoded`` in the stored data type.

        Parameters
        ----------
        encoded, source : ndarray
            Values as they are stored, and as they were before rounding and before missing ones were replaced.
        block_id : tuple of int, optional
            Which block of a dask array they are.
        """
        if encoded.size:
            kinds = source.dtype.kind, self.dtype.kind
            if kinds[0] in "iuf" and kinds[1] in "iu":
                self._check_range(source)
                self._check_can_be_missing(source)
            elif kinds == ("f", "f"):
                self._check_finite(encoded, source)
            elif kinds[0] in "iu" and kinds[1] == "f" and not self.is_time:
                self._check_digits(encoded, source, block_id)
            elif kinds[1] in "SU":
                self._check_length(source, block_id)
            if self.fill_value is not None:
                self._check_taken(encoded, source, block_id)
            if kinds[0] == "f" and kinds[1] in "iu" and not self.is_time and not self._is_packed:
                self._check_fractions(source, block_id)
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

    def _missing(self, source: AnyArray) -> AnyArray:
        if source.dtype.kind in "fcO":
            return np.asarray(pd.isnull(source))
        return source == _NAT if self.is_time and source.dtype.kind == "i" else np.zeros(source.shape, bool)

    def _check_can_be_missing(self, source: AnyArray) -> None:
        if self.fill_value is not None or (self.is_time and self.dtype == np.int64):
            return
        missing = self._missing(source)
        if missing.any():
            raise self._error(
                f"a missing value cannot be stored as data type {self.dtype}",
                source[missing][0],
                "a _FillValue in the encoding, or a floating point dtype",
            )

    def _check_taken(self, encoded: AnyArray, source: AnyArray, block_id: tuple[int, ...] | None) -> None:
        """Refuse values that are stored as the mark of missing values and are not missing."""
        stored: Any = self.fill_value
        if encoded.dtype.kind in "iuf":
            stored = np.asarray(stored).astype(encoded.dtype)
        taken = np.asarray(encoded == stored, bool)
        if not taken.any():
            return
        taken &= ~self._missing(source)
        if self.in_attrs and not self._is_packed and not self.is_time:
            taken &= source != self.fill_value  # An attribute is of values that were not decoded.
        if taken.any():
            value = source[taken][0]
            mark = value.item() if isinstance(value, np.generic) else value
            raise self._error(
                f"value {self._shown(value)}{_place(taken, block_id)} would be stored as the "
                f"_FillValue {self.fill_value} and read as missing",
                value,
                "a _FillValue that no value is stored as",
                f"if such values are missing, make them NaN with .where(ds[{self.name!r}] != {mark!r})",
            )

    def _check_finite(self, encoded: AnyArray, source: AnyArray) -> None:
        lost = np.isinf(encoded)
        if lost.any() and (lost := lost & np.isfinite(source)).any():
            info = np.finfo(self.dtype)
            raise self._error(
                f"value {source[lost][0]} does not fit data type {self.dtype}",
                source[lost][0],
                f"{info.min} to {info.max}, or another dtype",
            )

    def _check_digits(self, encoded: AnyArray, source: AnyArray, block_id: tuple[int, ...] | None) -> None:
        """Refuse integers that a floating point type would round."""
        with np.errstate(invalid="ignore", over="ignore"):
            lost = encoded.astype(source.dtype) != source
            # Casts of larger numbers to integers have undefined results.
            lost |= np.isinf(encoded) | (encoded >= 2.0 ** (8 * source.itemsize - (source.dtype.kind == "i")))
        if lost.any():
            raise self._error(
                f"value {source[lost][0]}{_place(lost, block_id)} would be read as {encoded[lost][0]:.0f} "
                f"from data type {self.dtype}",
                source[lost][0],
                f"integers that {self.dtype} represents exactly, or another dtype",
            )

    def _check_length(self, source: AnyArray, block_id: tuple[int, ...] | None) -> None:
        """Refuse text and bytes that a type of fixed length would cut off."""
        items = np.where(self._missing(source), self.fill_value or "", source.astype(object))
        lengths = [len(item if isinstance(item, (str, bytes)) else str(item)) for item in items.flat]
        long = (
            np.reshape(lengths, items.shape) > self.dtype.itemsize // np.dtype(f"{self.dtype.kind}1").itemsize
        )
        if long.any():
            raise self._error(
                f"{items[long][0]!r}{_place(long, block_id)} is too long for data type {self.dtype}",
                items[long][0],
                "another dtype",
            )

    def _check_fractions(self, source: AnyArray, block_id: tuple[int, ...] | None) -> None:
        """Refuse fractions if ``exact``, else warn that they are rounded."""
        with np.errstate(invalid="ignore"):
            errors = np.where(np.isfinite(source), np.abs(source - np.rint(source)), 0)
        largest = errors.max()
        if not largest:
            return
        if self.exact:
            value, place = source[errors > 0][0], _place(errors > 0, block_id)
            raise self._error(f"value {value} does not fit data type {self.dtype}{place}", value, "integers")
        if block_id is not None:
            if self.name in _rounded:
                return
            _rounded.add(self.name)
        first = errors == largest
        warnings.warn(
            f"fractions of variable {self.name!r} are rounded, since its encoding has dtype {self.dtype} and "
            f"no scale_factor: {source[first][0]}{_place(first, block_id)} has the largest error"
            f"{'' if block_id is None else ' in this block'}, {largest:.2g}",
            stacklevel=levels_to_caller(),
        )

    @property
    def _is_packed(self) -> bool:
        return self.scale is not None or self.offset is not None

    def _unpacked(self, value: Any) -> Any:
        unpacked = value * (1 if self.scale is None else self.scale)
        return unpacked + (0 if self.offset is None else self.offset)

    def _shown(self, value: Any) -> str:
        return f"{self._unpacked(value)} (packed {value})" if self._is_packed else f"{value}"

    def _error(
        self, reason: str, found: Any, accepted: str, advice: str | None = None
    ) -> DataTypeValidationError:
        if advice is None and self.explicit:
            advice = f"change what encoding={{{self.name!r}: ...}} asks for"
        elif advice is None and not self.exact:  # Else the encoding is that of the store.
            advice = (
                "call .drop_encoding() to ignore the variable's own encoding, as of the file it came from"
            )
        return DataTypeValidationError(
            f"{reason}, which the encoding of variable {self.name!r} asks for",
            found=found.item() if isinstance(found, np.generic) else found,
            accepted=accepted,
            advice=advice,
        )
