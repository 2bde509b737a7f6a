"""Which data types there are, and how a dtype or a document is matched to one of them."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt

from xzarr3._types import JSON
from xzarr3.dtypes.base import ZDType
from xzarr3.dtypes.core import CORE_TYPES
from xzarr3.errors import DataTypeValidationError, UnknownExtensionError, listed


class DataTypeRegistry:
    """The known data types, by name.

    A dtype or a JSON value is offered to every registered class; exactly one must take it.
    """

    def __init__(self) -> None:
        self._types: dict[str, type[ZDType]] = {}

    def register(self, cls: type[ZDType]) -> type[ZDType]:
        """Add a data type, in place of an earlier one of the same name; returns it."""
        self._types[cls._zarr_v3_name] = cls
        return cls

    @property
    def names(self) -> list[str]:
        """The names of all known data types."""
        return list(self._types)

    def match_dtype(self, dtype: np.dtype[np.generic]) -> ZDType:
        """The data type for a numpy dtype; its byte order is no part of the type.

        Raises
        ------
        DataTypeValidationError
            If no data type, or more than one, stands for ``dtype``.
        """
        found = []
        for cls in self._types.values():
            try:
                found.append(cls.from_native_dtype(dtype))
            except DataTypeValidationError:
                continue
        return self._only(found, dtype, DataTypeValidationError("no Zarr data type for this dtype"))

    def match_json(self, data: JSON, *, zarr_format: int) -> ZDType:
        """The data type that a metadata document names.

        Raises
        ------
        UnknownExtensionError
            If no data type has this name.
        DataTypeValidationError
            If more than one data type takes it.
        """
        if isinstance(data, dict) and data.keys() == {"name"}:
            data = data["name"]
        cls = self._types.get(data) if isinstance(data, str) else None
        if cls is not None:
            return cls.from_json(data, zarr_format=zarr_format)
        found = []
        for cls in self._types.values():
            try:
                found.append(cls.from_json(data, zarr_format=zarr_format))
            except DataTypeValidationError:
                continue
        return self._only(found, data, UnknownExtensionError("unknown data type"))

    def _only(
        self, found: list[ZDType], what: object, none: UnknownExtensionError | DataTypeValidationError
    ) -> ZDType:
        if len(found) == 1:
            return found[0]
        if not found:
            none.found = what
            none.accepted = listed(self._types)
            raise none
        raise DataTypeValidationError(
            f"several data types match: {listed(t.name for t in found)}",
            found=what,
            accepted="a form that only one of them takes",
        )


registry = DataTypeRegistry()
for _cls in CORE_TYPES:
    registry.register(_cls)


def parse_dtype(spec: ZDType | npt.DTypeLike | JSON, *, zarr_format: int = 3) -> ZDType:
    """The data type meant by whatever a user passes for one.

    Parameters
    ----------
    spec : ZDType, numpy dtype, str or dict
        A data type, anything ``numpy.dtype`` takes, or the name or JSON of a Zarr data type.
    zarr_format : int
        The format whose JSON ``spec`` may be.

    Raises
    ------
    DataTypeValidationError, UnknownExtensionError
        If nothing, or more than one data type, matches.

    Examples
    --------
    >>> parse_dtype("float32")
    Float32()
    >>> parse_dtype("<i2")
    Int16()
    >>> parse_dtype(bool)
    Bool()
    >>> parse_dtype("r24")
    RawBits(bits=24)
    """
    if isinstance(spec, ZDType):
        return spec
    if isinstance(spec, (str, dict)):
        try:
            return registry.match_json(spec, zarr_format=zarr_format)  # type: ignore[arg-type]
        except UnknownExtensionError as unknown:
            try:
                native: np.dtype[Any] = np.dtype(spec)  # type: ignore[arg-type]
            except (TypeError, ValueError) as error:
                raise unknown from error
    else:
        try:
            native = np.dtype(cast("npt.DTypeLike", spec))
        except (TypeError, ValueError) as error:
            raise DataTypeValidationError(
                "not a data type", found=spec, accepted=f"a numpy dtype or one of {listed(registry.names)}"
            ) from error
    return registry.match_dtype(native)
