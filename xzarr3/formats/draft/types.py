"""Data types and fill values in documents of the draft of May 2022.

Specification: Zarr v3 core, editor's draft of 25 May 2022, "Core data types", "Array metadata"; and the draft
of the datetime data types.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import msgspec
import numpy as np

from xzarr3._types import JSON
from xzarr3.dtypes import RawBits, ZDType
from xzarr3.dtypes.core import CORE_TYPES
from xzarr3.dtypes.registry import registry
from xzarr3.dtypes.times import DRAFT_URI, UNITS
from xzarr3.errors import DataTypeValidationError, MetadataError, UnknownExtensionError, listed
from xzarr3.fields import Meta
from xzarr3.formats.draft.json import URI, Refuse, read


@dataclass(frozen=True)
class Named:
    """The data type in a document.

    Parameters
    ----------
    data_type : ZDType
    endian : {"little", "big"}
        Byte order of the elements, unless a codec defines it.
    instead_of : JSON, optional
        The unknown extension for which the data type is the fallback.
    """

    data_type: ZDType
    endian: str = "little"
    instead_of: JSON = None


_CORE: dict[str, ZDType] = {cls._zarr_v3_name: cls() for cls in CORE_TYPES}


def _numpy_names() -> Iterator[tuple[str, Named]]:
    """Numpy's names of the core data types: from earlier states of the draft, and still in its examples."""
    for data_type in _CORE.values():
        code = data_type.to_native_dtype().str[1:]
        if data_type.item_size == 1:
            yield code, Named(data_type)
            yield f"|{code}", Named(data_type)
        else:
            yield f"<{code}", Named(data_type)
            yield f">{code}", Named(data_type, "big")


_NUMPY_NAMES = dict(_numpy_names())
_MAX_RAW_BITS = 2**30

_UNITS = UNITS[:-1]  # all but "generic"
_TIME = re.compile(rf"([<>])([mM]8)\[({'|'.join(_UNITS)})\]")
_CORE_TYPES = f"{listed(_CORE)}, 'r8', 'r16' ..."


def _core_type(name: str) -> Named | None:
    """The core data type with this name, None if there is none."""
    if name in _CORE:
        return Named(_CORE[name])
    if re.fullmatch("r[1-9][0-9]{0,9}", name):
        bits = int(name[1:])
        if bits % 8 or bits > _MAX_RAW_BITS:
            raise DataTypeValidationError(
                "raw bits come in whole bytes", found=name,
                accepted=f"'r' and a multiple of 8 up to {_MAX_RAW_BITS}",
            )  # fmt: skip
        return Named(RawBits.from_native_dtype(np.dtype(f"V{bits // 8}")))
    return _NUMPY_NAMES.get(name)


def _extension_type(uri: str, name: Any) -> Named | None:
    """The data type of a known extension; None for an unknown extension."""
    is_known = isinstance(name, str) and uri.replace("http:", "https:") == DRAFT_URI
    time = _TIME.fullmatch(name) if is_known else None
    if time is None:
        return None
    data_type = registry.match_dtype(np.dtype(name[1:]))
    return Named(data_type, "big" if time[1] == ">" else "little")


class _ExtensionType(msgspec.Struct, frozen=True):
    extension: URI
    type: Annotated[Any, Meta(description="what the extension defines")]
    fallback: Any = None


def data_type_from_json(value: object) -> Named:
    """The data type that a document names; for an unknown one, its first known fallback."""
    if isinstance(value, str):
        core = _core_type(value)
        if core is None:
            raise UnknownExtensionError("unknown data type", found=value, accepted=_CORE_TYPES)
        return core
    if not isinstance(value, Mapping):
        raise DataTypeValidationError(
            "not a data type", found=value, accepted="a name, or an object with 'extension' and 'type'"
        )
    found, _ = read(_ExtensionType, value)
    known = _extension_type(found.extension, found.type)
    if known is not None:
        return known
    for each in found.fallback if isinstance(found.fallback, list) else (found.fallback,):
        try:
            known = data_type_from_json(each)
        except MetadataError:
            continue
        return replace(known, instead_of=known.instead_of or dict(value))
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
