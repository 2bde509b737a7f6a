"""Data types and fill values in documents of the draft of May 2022.

Specification: Zarr v3 core, editor's draft of 25 May 2022, "Core data types", "Array metadata"; and the draft
of the datetime data types.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from xzarr3._types import JSON, Scalar
from xzarr3.dtypes import (
    Bool,
    Complex64,
    Complex128,
    Float16,
    Float32,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    RawBits,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
    ZDType,
)
from xzarr3.dtypes.registry import registry
from xzarr3.dtypes.times import DRAFT_URI
from xzarr3.errors import DataTypeValidationError, MetadataError, UnknownExtensionError, listed
from xzarr3.formats.draft.json import Refuse, members, string_of


@dataclass(frozen=True)
class Named:
    """The data type in a document.

    Parameters
    ----------
    data_type : ZDType
    endian : {"little", "big"}
        Byte order of the elements, unless a codec defines it.
    core : bool
        Whether the core specification defines the data type.
    instead_of : JSON, optional
        The unknown extension for which the data type is the fallback.
    """

    data_type: ZDType
    endian: str = "little"
    core: bool = True
    instead_of: JSON = None


TABLE: dict[str, ZDType] = {
    cls._zarr_v3_name: cls()
    for cls in (
        Bool, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64, Float16, Float32, Float64,
        Complex64, Complex128,
    )
}  # fmt: skip


def _numpy_names() -> Iterator[tuple[str, Named]]:
    """Numpy's names of the core data types: from earlier states of the draft, and still in its examples."""
    for data_type in TABLE.values():
        code = data_type.to_native_dtype().str[1:]
        if data_type.item_size == 1:
            yield code, Named(data_type)
            yield f"|{code}", Named(data_type)
        else:
            yield f"<{code}", Named(data_type)
            yield f">{code}", Named(data_type, "big")


_NUMPY_NAMES = dict(_numpy_names())
_MAX_RAW_BITS = 2**30

TIMES = re.compile(
    r"https?://(?:purl\.org/zarr/spec/extensions/(?:data-types/datetime|datetime-dtypes)/1\.0"
    r"|zarr-specs\.readthedocs\.io/en/[^/]*/.*datetime(?:-dtypes)?/v1\.0\.html)"
)
COMPLEX = re.compile(
    r"https?://(?:purl\.org/zarr/spec/extensions/(?:data-types/complex|complex-dtypes)/1\.0"
    r"|zarr-specs\.readthedocs\.io/en/[^/]*/.*complex(?:-dtypes)?/v1\.0\.html)"
)
_UNITS = ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as")
_TIME = re.compile(rf"([<>])([mM]8)\[({'|'.join(_UNITS)})\]")
_CORE_TYPES = f"{listed(TABLE)}, 'r8', 'r16' ..."


def _core_type(name: str) -> Named | None:
    """The core data type with this name, None if there is none."""
    if name in TABLE:
        return Named(TABLE[name])
    if re.fullmatch("r[1-9][0-9]{0,9}", name):
        bits = int(name[1:])
        if bits % 8 or bits > _MAX_RAW_BITS:
            raise DataTypeValidationError(
                "raw bits come in whole bytes", found=name,
                accepted=f"'r' and a multiple of 8 up to {_MAX_RAW_BITS}",
            )  # fmt: skip
        return Named(RawBits.from_native_dtype(np.dtype(f"V{bits // 8}")))
    return _NUMPY_NAMES.get(name)


def _extension_type(uri: str, name: object) -> Named | None:
    """The data type of a known extension; None for an unknown extension."""
    if not isinstance(name, str):
        return None
    if COMPLEX.fullmatch(uri) and name[1:] in ("c8", "c16"):
        core = _NUMPY_NAMES.get(name)
        return None if core is None else replace(core, core=False)
    time = _TIME.fullmatch(name) if TIMES.fullmatch(uri) else None
    if time is None:
        return None
    data_type = registry.match_dtype(np.dtype(name[1:]))
    return Named(data_type, "big" if time[1] == ">" else "little", core=False)


def data_type_from_json(value: object) -> Named:
    """The data type that a document names; for an unknown one, its first known fallback."""
    if isinstance(value, str):
        core = _core_type(value)
        if core is None:
            raise UnknownExtensionError("unknown data type", found=value, accepted=_CORE_TYPES)
        return core
    needed = {"extension": "a URI", "type": "what the extension defines"}
    if not isinstance(value, Mapping):
        raise DataTypeValidationError(
            "not a data type", found=value, accepted=f"a name, or an object with {listed(needed)}"
        )
    found, _ = members(value, needed, ("fallback",))
    uri = string_of(found["extension"], "extension", needed["extension"])
    known = _extension_type(uri, found["type"])
    if known is not None:
        return known
    fallback = found.get("fallback")
    for each in fallback if isinstance(fallback, list) else (fallback,):
        try:
            known = data_type_from_json(each)
        except MetadataError:
            continue
        return replace(known, core=False, instead_of=known.instead_of or dict(value))
    raise UnknownExtensionError(
        "unknown data type without a known fallback", found=dict(value),
        accepted=f"{_CORE_TYPES}, the times of {DRAFT_URI}, or one of these as 'fallback'",
    )  # fmt: skip


def data_type_to_json(data_type: ZDType, refuse: Refuse) -> JSON:
    try:
        named: JSON = data_type.to_json("3-draft")
    except DataTypeValidationError as error:
        raise refuse(
            "data_type", data_type.name,
            f"{_CORE_TYPES}, and datetimes and timedeltas that count one of {listed(_UNITS)}",
        ) from error  # fmt: skip
    return named


# Fill values

_SPECIAL = {"NaN": np.nan, "+Infinity": np.inf, "Infinity": np.inf, "-Infinity": -np.inf}


def fill_value_forms(data_type: ZDType) -> str:
    kind, size = data_type.to_native_dtype().kind, data_type.item_size
    digits = f"'0x' and {2 * size} hexadecimal digits, or '0b' and {8 * size} binary digits"
    numbers = {
        "b": "true or false",
        "f": f"a number, 'NaN', '+Infinity', '-Infinity', {digits}",
        "c": f"{digits}: those of the real part, then those of the imaginary part",
        "V": f"{digits}, of the bytes in their order",
        "M": "null, 'NaT', or an integer of 64 bits, the number of units",
    }
    numbers["m"] = numbers["M"]
    return numbers.get(kind, f"an integer that '{data_type.name}' can hold, {digits}")


def fill_value_from_json(named: Named, value: object) -> Scalar:
    """The fill value in a document.

    Raises
    ------
    DataTypeValidationError
        If the data type does not have this value.
    """
    dtype = named.data_type.to_native_dtype()
    try:
        return _scalar(dtype, value)
    except (ValueError, TypeError, OverflowError) as error:
        raise DataTypeValidationError(
            f"fill value not permitted for data type '{named.data_type.name}'", field="fill_value",
            found=value, accepted=fill_value_forms(named.data_type),
        ) from error  # fmt: skip


def _scalar(dtype: np.dtype[Any], value: Any) -> Scalar:
    """A scalar from any of its forms in the draft. Raises ValueError or TypeError for other values."""
    if isinstance(value, str) and value[:2] in ("0x", "0b") and dtype.kind not in "bmM":
        return _from_digits(dtype, value)
    if dtype.kind == "b" and isinstance(value, bool):
        return np.bool_(value)
    if isinstance(value, bool):
        raise ValueError("true and false are no numbers")
    if dtype.kind in "iu" and isinstance(value, int):
        info = np.iinfo(dtype)
        if info.min <= value <= info.max:
            return dtype.type(value)  # type: ignore[no-any-return]
    if dtype.kind == "f":
        return _float(dtype, value)
    if dtype.kind == "c" and isinstance(value, list) and len(value) == 2:
        # Earlier tools write the two parts. A view keeps their bits; arithmetic might change them.
        part = np.dtype(f"f{dtype.itemsize // 2}")
        return np.array([_float(part, each) for each in value], part).view(dtype)[0]  # type: ignore[no-any-return]
    if dtype.kind in "mM" and (value is None or value == "NaT"):
        return dtype.type("NaT", np.datetime_data(dtype))  # type: ignore[no-any-return]
    if dtype.kind in "mM" and isinstance(value, int) and -(2**63) <= value < 2**63:
        return np.array([value], np.int64).view(dtype)[0]  # type: ignore[no-any-return]
    raise ValueError("none of the forms of the data type")


def _float(dtype: np.dtype[Any], value: object) -> Scalar:
    if isinstance(value, str) and value == "NaN":
        # The NaN without sign and payload.
        mantissa = int(np.finfo(dtype).nmant)
        bits = ((1 << (8 * dtype.itemsize - mantissa)) - 1) << (mantissa - 1)
        return np.array([bits], f"u{dtype.itemsize}").view(dtype)[0]  # type: ignore[no-any-return]
    if isinstance(value, str):
        if value[:2] in ("0x", "0b"):
            return _from_digits(dtype, value)
        if value not in _SPECIAL:
            raise ValueError("no name of a number")
        value = _SPECIAL[value]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError("not a number")
    with np.errstate(over="ignore"):
        number = dtype.type(value)
    if np.isinf(number) and not np.isinf(float(value)):
        raise ValueError("beyond the numbers of the data type")
    return number  # type: ignore[no-any-return]


def _from_digits(dtype: np.dtype[Any], text: str) -> Scalar:
    """A scalar from all of its bits, the most significant first."""
    base, per_byte = (16, 2) if text[1] == "x" else (2, 8)
    digits = text[2:]
    pattern = "[0-9a-fA-F]*" if base == 16 else "[01]*"
    if len(digits) != per_byte * dtype.itemsize or not re.fullmatch(pattern, digits):
        raise ValueError("not all digits of the data type, and no others")
    octets = bytes(int(digits[at : at + per_byte], base) for at in range(0, len(digits), per_byte))
    stored = np.frombuffer(octets, dtype.newbyteorder(">"))
    return stored.astype(dtype)[0]  # type: ignore[no-any-return]


def fill_value_to_json(data_type: ZDType, value: Scalar) -> JSON:
    dtype = data_type.to_native_dtype()
    if dtype.kind == "b":
        return bool(value)
    scalar: Any = np.asarray(value, dtype)
    if dtype.kind in "iu":
        return int(scalar)
    if dtype.kind in "mM":
        return int(scalar.view(np.int64))
    if dtype.kind == "f" and np.isfinite(scalar):
        return float(scalar)
    if dtype.kind == "f":
        for name in ("NaN", "+Infinity", "-Infinity"):
            if _float(dtype, name).tobytes() == scalar.tobytes():
                return name
    return "0x" + bytes(scalar.astype(dtype.newbyteorder(">")).tobytes()).hex()
