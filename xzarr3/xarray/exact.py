"""Encodes values by xarray's own coders, and proves that they read back as they were: decodes and compares.

Values in memory are proved before anything is written, those of dask arrays in the task that writes them. A
value that would be read as another one raises an error, which names the first such value, its place, what it
would be read as and the encoding at fault. A warning tells of fractions that are rounded to integers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from xarray import Variable, conventions
from xarray.backends.common import ensure_dtype_not_object
from xarray.coders import CFDatetimeCoder, CFTimedeltaCoder
from xarray.coding import strings
from xarray.coding.common import pop_to

from xzarr3._types import AnyArray
from xzarr3.errors import (
    ArgumentError,
    ArgumentTypeError,
    DataTypeValidationError,
    levels_to_caller,
    listed,
    one_of,
    shorten,
)
from xzarr3.xarray.absent import as_masked, is_nullable, stored_type
from xzarr3.xarray.coders import (
    CODING,
    MARKS,
    PACKING,
    TIMES,
    UNFAITHFUL,
    UNITS,
    coded,
    decoded_by,
    is_lazy,
    unit_of,
)

_TEXT = np.dtypes.StringDType()
_PIECE = 2**18  # Elements that are decoded and compared at a time: few enough for the cache.
_MICROSECOND = np.timedelta64(1, "us")  # Most error of times that are stored as floating point numbers.

_DTYPES = (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "bool", "str", "complex64", "complex128",
)  # fmt: skip


def encode_values(variable: Variable, name: str, *, explicit: bool = True, exact: bool = False) -> Variable:
    """Encode the values of a variable by the CF conventions, as xarray does for Zarr, and prove them.

    Dates become numbers, packed variables integers, missing values ``_FillValue``, and pandas' nullable types
    elements of the data type ``optional``. Dask arrays stay lazy.
    Decoded values may differ from the given ones by half a step if they are packed, by the precision of a
    floating point type, and times in such a type by a microsecond.

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
        If a value would be read as another one, or as missing; for a dask array when it is computed.
    ValueError, TypeError, NotImplementedError
        From xarray, if it cannot encode the values.
    """
    conventions.ensure_not_multiindex(variable, name=name)
    if is_nullable(variable.dtype):
        return _nullable(variable, name, explicit)
    given = _without_stored_resolution(_checked(variable, name))
    given = _marked(_as_objects(given), name, explicit)
    if given.dtype.kind == "O" and " since " in str(given.encoding.get("units")):
        given = given.copy(deep=False, data=_mapped(partial(_no_date_missing, name), object, given))
    elif given.dtype.kind == "O" and is_lazy(given.data):
        stored = np.dtype(given.encoding.get("dtype", object))
        if stored.kind in "biufc":
            check = partial(_as_numbers, name, stored)
            given = given.copy(deep=False, data=_mapped(check, object, given))
    if given.dtype.kind in "mM" and not given.dtype.isnative:  # Else pandas takes other values for NaT.
        given = given.astype(given.dtype.newbyteorder("="))
    is_number = given.dtype.kind in "biufc"
    # The attributes and the type of encoded numbers follow from the encoding alone.
    sample = Variable(given.dims, np.zeros((0,) * given.ndim, given.dtype), given.attrs, given.encoding)
    encoded = coded(sample if is_number else given, name)
    _pop_related(encoded)
    if not is_number:
        encoded = _with_plain_text(encoded, name)
    proof = _proof(given, encoded, name, explicit=explicit, exact=exact)
    if proof is not None:
        data = _mapped(proof, encoded.dtype, given, *([encoded] if proof.coding is None else []))
    elif is_number:
        data = given.data if encoded.dtype == given.dtype else given.data.astype(encoded.dtype)
    else:
        data = encoded.data
    return Variable(encoded.dims, data, encoded.attrs, encoded.encoding, fastpath=True)


def _with_plain_text(encoded: Variable, name: str) -> Variable:
    """An encoded variable whose objects are text or bytes, in a data type for these."""
    if encoded.dtype.kind == "O" and strings.check_vlen_dtype(encoded.dtype) is None:  # type: ignore[no-untyped-call]
        if is_lazy(encoded.data):  # xarray computes all of them to infer their type.
            encoded = encoded.copy(deep=False, data=encoded.data.persist())
        encoded = ensure_dtype_not_object(encoded, name=name)
    if encoded.dtype.kind == "T":
        return encoded
    text_coder = strings.EncodedStringCoder(allows_unicode=True)  # type: ignore[no-untyped-call]
    encoded = strings.ensure_fixed_length_bytes(text_coder.encode(encoded, name=name))
    if encoded.dtype == "S1" and encoded.ndim:  # xarray would join those of the last dimension.
        encoded = encoded.copy(data=encoded.data.astype("S2"))
    return encoded


def _nullable(variable: Variable, name: str, explicit: bool) -> Variable:
    """A variable with one of pandas' nullable arrays as elements of the data type ``optional``."""
    asked = [key for key in CODING if explicit and variable.encoding.get(key) is not None]
    asked += [key for key in PACKING if key in variable.attrs]
    if asked:
        raise ArgumentError(
            f"variable {name!r} has {listed(asked)} in its encoding or attributes, but values of pandas' "
            f"type {variable.dtype} are stored as they are; leave that out, or convert the variable with "
            ".astype(float), to numbers among which NaN marks what is absent"
        )
    elements = stored_type(variable.dtype).cast_array(as_masked(variable))
    encoded = Variable(variable.dims, elements, variable.attrs, variable.encoding, fastpath=True)
    _pop_related(encoded)
    return encoded


def _without_stored_resolution(variable: Variable) -> Variable:
    """``variable`` without the attributes that xarray writes beside stored ``timedelta64``, and sets anew."""
    if variable.dtype.kind != "m" or not str(variable.attrs.get("dtype", "")).startswith("timedelta64"):
        return variable
    variable = variable.copy(deep=False)
    variable.attrs = {key: each for key, each in variable.attrs.items() if key not in ("dtype", "units")}
    return variable


def _pop_related(encoded: Variable) -> None:
    for key in conventions.CF_RELATED_DATA:
        pop_to(encoded.encoding, encoded.attrs, key)


def _mapped(change: Callable[..., AnyArray], dtype: Any, *variables: Variable) -> Any:
    """What ``change`` makes of the values of variables; lazy if those of the last one are."""
    if not is_lazy(variables[-1].data):  # xarray loads text with missing elements to encode it.
        return change(*(np.asarray(each.data) for each in variables))
    import dask.array as da

    meta = np.empty((0,) * variables[0].ndim, dtype)
    return da.map_blocks(change, *(each.data for each in variables), dtype=dtype, meta=meta)


def _checked(variable: Variable, name: str) -> Variable:
    """``variable``, after a check that numpy knows its data type, and that this has what its values have."""
    asked = variable.encoding.get("dtype")
    try:
        dtype = np.dtype(asked)
    except TypeError as error:
        raise ArgumentTypeError(
            f"unknown dtype in the encoding of variable {name!r}: {shorten(asked)}; {one_of(asked, _DTYPES)}"
        ) from error
    for key in MARKS:
        if np.asarray(mark := variable.encoding.get(key)).size > 1:
            raise ArgumentError(f"variable {name!r}: {key}={mark!r} in its encoding; accepted: one value")
    units = variable.encoding.get("units")
    if isinstance(units, str) and (
        variable.dtype.kind in "mM" or (variable.dtype.kind == "O" and " since " in units)
    ):
        unit = unit_of(units)
        if f"{unit.removesuffix('s')}s" not in UNITS:  # xarray reads more spellings than it writes.
            raise ArgumentError(
                f"unknown unit in units={units!r} in the encoding of variable {name!r}; "
                f"{one_of(unit, UNITS)}, as in 'hours since 2000-01-01' or, for time differences, 'hours'"
            )
    if variable.dtype.kind == "c" and asked is not None and dtype.kind in "biuf":
        raise DataTypeValidationError(
            f"values of variable {name!r} of dtype {variable.dtype} cannot be stored as data type {dtype}",
            found=str(variable.dtype),
            accepted=f"values of dtype {dtype}, such as the .real and .imag parts",
        )
    return variable


def _as_objects(variable: Variable) -> Variable:
    """The variable with text that may be missing as objects; xarray handles missing text only among these."""
    asked = variable.encoding.get("dtype")
    if variable.dtype.kind == "T" and variable.dtype != _TEXT:
        asked = _TEXT if asked is None else asked
        objects = _mapped(partial(np.asarray, dtype=object), object, variable)
        variable = variable.copy(deep=False, data=objects)
    if variable.dtype.kind == "O" and any(
        isinstance(variable.encoding.get(key), (str, bytes)) for key in MARKS
    ):
        variable = variable.copy(deep=False, data=_mapped(_nan_for_none, object, variable))
    if getattr(asked, "kind", "") != "T":
        return variable
    encoding = {**variable.encoding, "dtype": _TEXT}
    return Variable(variable.dims, variable._data, variable.attrs, encoding, fastpath=True)


def _nan_for_none(values: AnyArray) -> AnyArray:
    """The objects with NaN for all missing ones; xarray does not find None in dask arrays."""
    return np.where(pd.isnull(values), np.nan, values)


def _no_date_missing(name: str, values: AnyArray, block_id: tuple[int, ...] | None = None) -> AnyArray:
    """Dates of cftime, if none is missing: xarray would read a missing one as the date of the units."""
    missing = np.flatnonzero(pd.isnull(values))
    if missing.size:
        raise DataTypeValidationError(
            f"variable {name!r} has a missing date{_place(int(missing[0]), values.shape, block_id)}, which "
            "would be read as the date of its units, since its dates are those of cftime",
            accepted="no missing dates, as after .dropna(), or numbers, as decode_times=False gives them",
        )
    return values


def _as_numbers(
    name: str, stored: np.dtype[Any], values: AnyArray, block_id: tuple[int, ...] | None = None
) -> AnyArray:
    """Objects of a block, if they can be stored as numbers: xarray's errors would not say whose they are."""
    refused = (str, bytes) if stored.kind in "fc" else object
    wrong = [at for at, item in enumerate(values.flat) if isinstance(item, refused)]
    if wrong:
        place = _place(wrong[0], values.shape, block_id)
        raise DataTypeValidationError(
            f"variable {name!r} has an object{place}, which cannot be stored as {stored}",
            found=values.flat[wrong[0]],
            accepted="numbers, as .astype() makes them",
        )
    return values


def _marked(variable: Variable, name: str, explicit: bool) -> Variable:
    """``variable`` with marks of missing ones that fit the stored integers; others are refused or left."""
    dtype = np.dtype(variable.encoding.get("dtype", variable.dtype))
    if dtype.kind not in "iu":
        return variable
    lowest, highest = _range(dtype)
    if variable.encoding.get("_Unsigned") is not None:
        lowest, highest = _range(np.dtype(f"i{dtype.itemsize}"))[0], _range(np.dtype(f"u{dtype.itemsize}"))[1]
    encoding = dict(variable.encoding)
    for key in MARKS:
        value = encoding.get(key)
        if isinstance(value, (np.integer, np.floating)):  # Else numpy rounds the limits to floats.
            value = value.item()
        if not isinstance(value, (int, float)) or lowest <= value <= highest:
            continue
        if explicit and value == value:
            raise DataTypeValidationError(
                f"the {key} of variable {name!r} does not fit data type {dtype}",
                found=value,
                accepted=f"{lowest} to {highest}",
            )
        if not explicit:
            del encoding[key]
    return Variable(variable.dims, variable._data, variable.attrs, encoding, fastpath=True)


def _range(dtype: np.dtype[Any]) -> tuple[int, int]:
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def _proof(given: Variable, encoded: Variable, name: str, *, explicit: bool, exact: bool) -> _Proof | None:
    """The proof of encoded values; None if the encoding changes no value."""
    source, dtype = given.dtype, encoded.dtype
    coding = {
        key: value
        for key, value in encoded.attrs.items()
        if key in CODING and key not in given.attrs and not np.all(pd.isnull(value))
    }
    if "scale_factor" in coding or "add_offset" in coding:
        marks = {key: value for key, value in encoded.attrs.items() if key in MARKS}
        coding = {**marks, **coding}  # A mark, also NaN, tells xarray the type to compute in.
    rounds = source.kind in "iu" and dtype.kind == "f" and 8 * source.itemsize > np.finfo(dtype).nmant + 1
    if not coding and source.kind != "O" and not rounds and np.can_cast(source, dtype, "safe"):
        return None
    own = {key: given.attrs[key] for key in MARKS if key in given.attrs}
    own_marks = tuple(np.ravel([*own.values()]))
    is_lazy_time = is_lazy(given.data) and "units" in coding
    coded_here = None
    if source.kind in "biufc" or is_lazy_time:
        # Only what codes values: dask names blocks by it, and a resumed write knows them by their names.
        attrs, encoding = (
            {key: each[key] for key in CODING if key in each} for each in (given.attrs, given.encoding)
        )
        if is_lazy_time:
            encoding |= {key: coding[key] for key in TIMES if key in coding}
            encoding["dtype"] = dtype if encoding.get("dtype") is None else encoding["dtype"]
        coded_here = attrs, encoding
    _rounded.discard(name)
    return _Proof(name, dtype, {**own, **coding}, own_marks, coded_here, exact=exact, explicit=explicit)


_rounded: set[str] = set()
"""Variables of dask arrays of whose rounding this process has warned; it is one warning for all blocks."""


@dataclass(frozen=True)
class _Proof:
    """The proof that encoded values of one variable are read as they were given."""

    name: str
    dtype: np.dtype[Any]
    """The stored data type."""
    attrs: Mapping[str, Any]
    """The attributes by which the values are decoded, without those of values that are encoded already."""
    own_marks: tuple[Any, ...]
    """Marks that the variable had among its attributes: such values are missing as they are."""
    coding: tuple[Mapping[Any, Any], Mapping[Any, Any]] | None
    """The attributes and the encoding by which values are encoded here; None if they are encoded before."""
    exact: bool
    explicit: bool

    def __call__(
        self, given: AnyArray, encoded: AnyArray | None = None, block_id: tuple[int, ...] | None = None
    ) -> AnyArray:
        """The values in the stored data type; raises for the first one that is read as another one.

        Parameters
        ----------
        given : ndarray
        encoded : ndarray, optional
            The values as they are encoded, if they are.
        block_id : tuple of int, optional
            Which block of a dask array they are.
        """
        stored = (
            np.empty(given.shape, self.dtype) if encoded is None else encoded.astype(self.dtype, copy=False)
        )
        flat, target = given.reshape(-1), stored.reshape(-1)
        for start in range(0, given.size, _PIECE):
            part = slice(start, start + _PIECE)
            wanted = flat[part]
            if encoded is None:
                target[part] = self._encoded(wanted)
            with np.errstate(all="ignore"):
                found = self._decoded(target[part], given.dtype)
                wrong = self._wrong(found, wanted)
            if wrong.size:
                at = int(wrong[0])
                raise self._refused(wanted[at], found[at], _place(start + at, given.shape, block_id))
        self._tell_of_fractions(given, block_id)
        return stored

    def _encoded(self, given: AnyArray) -> AnyArray:
        """Values as xarray encodes them; of times that are not exact in the units, the nearest."""
        attrs, encoding = map(dict, self.coding or ())
        if not any(key in encoding or key in attrs for key in MARKS):
            attrs["missing_value"] = None  # Else the coder warns of each piece that it has no mark.

        def here() -> Variable:
            return coded(Variable(("",), given, attrs, encoding, fastpath=True), self.name)

        if not self.is_time:
            return np.asarray(here().data)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", UNFAITHFUL)
                encoded = here()
                if unit_of(encoded.attrs["units"]) == unit_of(encoding["units"]):
                    return np.asarray(encoded.data)
                encoding["dtype"] = np.dtype("float64")
                return np.rint(np.asarray(here().data))
        except (ValueError, TypeError, OverflowError) as error:
            raise ArgumentError(
                f"{error}; times of variable {self.name!r} cannot be encoded in {encoding['units']!r}"
            ) from error

    @property
    def is_time(self) -> bool:
        return "units" in self.attrs

    @property
    def _is_packed(self) -> bool:
        return "scale_factor" in self.attrs or "add_offset" in self.attrs

    @property
    def _packing(self) -> tuple[Any, Any]:
        return self.attrs.get("scale_factor", 1), self.attrs.get("add_offset", 0)

    def _decoded(self, stored: AnyArray, dtype: np.dtype[Any]) -> AnyArray:
        """Stored values as xarray reads them; times in the resolution of ``dtype``."""
        if stored.dtype.kind == "O":  # So is missing text stored.
            stored = np.where(pd.isnull(stored), "", stored)
        unit = np.datetime_data(dtype)[0] if dtype.kind in "mM" else "ns"
        time_unit: Any = unit if unit in ("s", "ms", "us", "ns") else "ns"

        def read(use_cftime: bool | None) -> AnyArray:
            dates: Any = CFDatetimeCoder(use_cftime=use_cftime, time_unit=time_unit)
            return decoded_by(
                self.attrs,
                stored,
                self.name,
                concat_characters=False,
                decode_times=dates if self.is_time and dtype.kind != "m" else False,
                decode_timedelta=CFTimedeltaCoder(time_unit=time_unit) if dtype.kind == "m" else False,
            )

        try:
            return read(use_cftime=dtype.kind == "O")
        except (ValueError, OverflowError) as error:
            if dtype.kind == "M":  # What counts from a date before 1582 may be decoded by cftime alone.
                with suppress(ValueError, OverflowError):
                    found = read(use_cftime=None)
                    if found.dtype.kind == "M":
                        return found
            accepted = "units such as 'days since 2000-01-01'" if self.is_time else "another encoding"
            raise ArgumentError(
                f"{error}; variable {self.name!r} could not be read again; accepted: {accepted}"
            ) from error

    def _wrong(self, found: AnyArray, given: AnyArray) -> AnyArray:
        """The indexes of the values that are not ``found`` as they were ``given``."""
        if {"O", "T"} & {found.dtype.kind, given.dtype.kind}:
            found, given = found.astype(object, copy=False), given.astype(object, copy=False)
            right = np.zeros(given.shape, bool)
            both = ~np.asarray(pd.isnull(found) | pd.isnull(given), bool)
            right[both] = self._equal(found[both], given[both])
        else:
            right = self._equal(found, given)
        if right.all():
            return np.zeros(0, int)
        right |= np.asarray(pd.isnull(found) & pd.isnull(given), bool)
        (at,) = np.nonzero(~right)
        if at.size and self.own_marks and not (self._is_packed or self.is_time):
            at = at[~(np.isin(given[at], self.own_marks) & pd.isnull(found[at]))]
        return at

    def _equal(self, found: AnyArray, given: AnyArray) -> AnyArray:
        """Mask of the values that are equal, or differ by what is permitted; false where one is missing."""
        kinds = found.dtype.kind, given.dtype.kind
        right = np.zeros(given.shape, bool)
        if kinds[0] != kinds[1] and {"M", "m"} & {*kinds}:
            return right
        left: Any = ...  # The indexes of the values that are not known to be right.
        for constant, part in self._limits(found.dtype, given.dtype):
            limit = constant + part * np.abs(given[left]) if part else constant
            right[left] = np.abs(found[left] - given[left]) <= limit
            if right.all():
                break
            (left,) = np.nonzero(~right & (found == found))
        else:
            right[left] |= np.asarray(found[left] == given[left], bool)
        if self._is_packed or self.is_time:
            return right
        # Floats past the largest integer compare as equal to it.
        if self.dtype.kind in "iu" and kinds[1] == "f":
            right &= given < 2.0 ** (8 * self.dtype.itemsize - (kinds[0] == "i"))
        elif kinds[0] == "f" and kinds[1] in "iu":
            right &= found < 2.0 ** (8 * given.itemsize - (kinds[1] == "i"))
            right &= found.astype(given.dtype) == given
        return right

    def _limits(self, found: np.dtype[Any], given: np.dtype[Any]) -> Iterator[tuple[Any, Any]]:
        """By how much values may differ: by a constant, and by a part of the value."""
        if self.is_time:
            if self.dtype.kind == "f" or self._is_packed:
                yield _MICROSECOND.astype(object) if given.kind == "O" else _MICROSECOND, 0
        elif self._is_packed and given.kind in "iuf":
            scale, offset = self._packing
            step = abs(scale) / 2 if self.dtype.kind in "iu" else 0
            yield step, 0
            types = [each for each in (found, given, self.dtype) if each.kind == "f"]
            rounding = 4 * max(np.finfo(each).eps for each in types)
            yield step + rounding * abs(offset), rounding
        elif given.kind == "f" and self.dtype.kind in "iu":
            yield 0 if self.exact else 0.5, 0
        elif found.kind == given.kind == self.dtype.kind == "f" and self.dtype.itemsize < given.itemsize:
            info = np.finfo(self.dtype)
            yield info.smallest_subnormal, info.eps

    def _refused(self, value: Any, back: Any, place: str) -> DataTypeValidationError:
        """The error for a value that would be read ``back`` as another one."""
        advice = None
        if pd.isnull(value):
            if isinstance(back, (str, bytes)):
                return self._missing_text(back, place)
            reason = f"a missing value cannot be stored as data type {self.dtype}: the one"
            reason += f"{place} would be read as {told(back)}"
            accepted = "a _FillValue in the encoding, or a floating point dtype"
        elif pd.isnull(back) and (key := next((key for key in MARKS if key in self.attrs), None)):
            reason = f"value {told(value)}{place} would be stored as the {key} {self.attrs[key]} and read as "
            reason += "missing"
            accepted = f"a {key} that no value is stored as"
            mark = value.item() if isinstance(value, np.generic) else value
            advice = f"if such values are missing, make them NaN with .where(ds[{self.name!r}] != {mark!r})"
        else:
            whole = isinstance(value, np.integer) and isinstance(back, np.floating) and back == back
            read = f"{back:.0f}" if whole else told(back)
            reason = f"value {told(value)}{place} would be read as {read} from data type {self.dtype}"
            accepted = self._accepted()
            if self.is_time and self.exact:
                advice = (
                    "call .load() on the variable and pass widen_units=True, which stores it in finer units"
                )
        if advice is None and self.explicit:
            advice = f"change what encoding={{{self.name!r}: ...}} asks for"
        elif advice is None and not self.exact:  # Else the encoding is that of the store.
            advice = (
                "call .drop_encoding() to ignore the variable's own encoding, as of the file it came from"
            )
        how = ", ".join(f"{key} {told(value)}" for key, value in self.attrs.items() if key in CODING)
        is_plain = isinstance(value, np.generic) and value.dtype.kind in "biufcSU"
        return DataTypeValidationError(
            f"{reason}{f' with {how}' if how else ''}, which the encoding of variable {self.name!r} asks for",
            found=value.item() if is_plain else str(value),
            accepted=accepted,
            advice=advice,
        )

    def _missing_text(self, back: str | bytes, place: str) -> DataTypeValidationError:
        kind, empty, read = ("text", "", str(back)) if isinstance(back, str) else ("bytes", b"", bytes(back))
        advice = f"mark it by a text that no value has, in encoding={{{self.name!r}: {{'_FillValue': 'NA'}}}}"
        advice += ", which needs mode='w' since the variable exists" if self.exact else ""
        return DataTypeValidationError(
            f"variable {self.name!r} has missing {kind}{place}, which would be read as {read!r}",
            accepted=f"no missing values, as after .fillna({empty!r})",
            advice=advice if kind == "text" else None,
        )

    def _accepted(self) -> str:
        if self.is_time:
            return f"times that {self.dtype} represents in {self.attrs['units']!r}, or another dtype or units"
        if self.dtype.kind == "f":
            return f"numbers that {self.dtype} represents, or another dtype"
        if self.dtype.kind not in "iu":
            return "another dtype"
        kind = {"true": "u", "false": "i"}.get(str(self.attrs.get("_Unsigned")).lower(), self.dtype.kind)
        scale, offset = self._packing
        scale, offset = (each.item() if isinstance(each, np.generic) else each for each in (scale, offset))
        lowest, highest = (each * scale + offset for each in _range(np.dtype(f"{kind}{self.dtype.itemsize}")))
        return f"{'' if self._is_packed else 'integers from '}{lowest} to {highest}, or another dtype" + (
            ", scale_factor or add_offset" if self._is_packed else ""
        )

    def _tell_of_fractions(self, given: AnyArray, block_id: tuple[int, ...] | None) -> None:
        """Warn that fractions are rounded, once for all blocks."""
        if given.dtype.kind != "f" or self.dtype.kind not in "iu" or self._is_packed:
            return
        errors = np.where(np.isfinite(given), np.abs(given - np.rint(given)), 0)
        largest = errors.max(initial=0)
        if not largest or (block_id is not None and self.name in _rounded):
            return
        if block_id is not None:
            _rounded.add(self.name)
        at = int(errors.argmax())
        warnings.warn(
            f"fractions of variable {self.name!r} are rounded, since its encoding has dtype {self.dtype} and "
            f"no scale_factor: {given.flat[at]}{_place(at, given.shape, block_id)} has the largest error"
            f"{'' if block_id is None else ' in this block'}, {largest:.2g}",
            stacklevel=levels_to_caller(),
        )


def _place(at: int, shape: tuple[int, ...], block_id: tuple[int, ...] | None) -> str:
    """Where an element is, for a message; empty for values without dimensions."""
    if not shape:
        return ""
    index = tuple(map(int, np.unravel_index(at, shape)))
    return f" at index {index}" + ("" if block_id is None else f" of block {tuple(block_id)}")


def told(value: Any) -> str:
    """A value for a message."""
    if isinstance(value, np.datetime64):
        return str(np.datetime_as_string(value, unit="auto"))
    if isinstance(value, np.timedelta64):
        return str(pd.Timedelta(value))
    return repr(bytes(value)) if isinstance(value, bytes) else str(value)
