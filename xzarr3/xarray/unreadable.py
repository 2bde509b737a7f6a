"""Variables that cannot be read: they are there with shape, dimensions and attributes, and say why.

One array with an unknown codec or data type, or with a document that is not valid, does not keep the rest of
a dataset from being opened. To use its values raises the error of the array.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Container, Iterable, Mapping
from typing import Any, NoReturn

import numpy as np
import xarray as xr
from xarray.backends.common import BackendArray
from xarray.core import indexing

from xzarr3.dtypes import parse_dtype
from xzarr3.errors import MetadataError, Xzarr3Error, levels_to_caller, printable

LEFT_OUT = "unreadable"
"""The entry of the encoding of a dataset that tells why arrays are not among its variables."""
_DIMENSIONS = "_ARRAY_DIMENSIONS"
_UNKNOWN = np.dtype("V1")


class UnreadableArray(BackendArray):
    """An array that raises an error when it is read."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], error: MetadataError) -> None:
        self.shape, self.dtype = shape, dtype
        self.error = error

    def __getitem__(self, key: object) -> NoReturn:
        raise copy.copy(self.error)


class _Shown(indexing.LazilyIndexedArray):
    """An unreadable array, or a selection of it, with the reason in the line of a dataset's repr."""

    def _repr_inline_(self, max_width: int) -> str:
        error = self.array.error
        text = printable(f"unreadable: {error.reason}{'' if error.found is ... else f' {error.found!r}'}")
        return text if len(text) <= max_width else f"{text[: max(max_width, 13) - 3]}..."


class KeptVariable(xr.Variable):
    """A variable whose array stays as it is where xarray only wraps it, to copy or to cache it."""

    __slots__ = ()

    @property
    def data(self) -> Any:
        return super().data

    @data.setter
    def data(self, data: Any) -> None:
        if not isinstance(data, (indexing.CopyOnWriteArray, indexing.MemoryCachedArray)):
            xr.Variable.data.__set__(self, data)  # type: ignore[attr-defined]


class UnreadableVariable(KeptVariable):
    """A variable that raises an error when its values are used."""

    __slots__ = ()

    def chunk(self, *_: object, **options: object) -> UnreadableVariable:
        """The variable itself: there is nothing to compute."""
        return self

    @property
    def error(self) -> MetadataError:
        """Why the variable cannot be read."""
        data: Any = self._data
        found: MetadataError = data.array.error
        return found


def variable_of(held: Any, error: MetadataError) -> UnreadableVariable | None:
    """The variable of an array that cannot be read; None if its documents do not tell its dimensions.

    Parameters
    ----------
    held : held documents
        The documents of the array as :meth:`xzarr3.formats.base.Format.fetch` returns them.
    error : MetadataError
        Why they are not valid.
    """
    each = [held, *held.values()] if isinstance(held, Mapping) else []
    document = next((found for found in each if isinstance(found, Mapping) and "shape" in found), {})
    attributes = document.get("attributes", held.get(".zattrs") if isinstance(held, Mapping) else None)
    attrs: dict[str, Any] = copy.deepcopy(dict(attributes)) if isinstance(attributes, Mapping) else {}
    shape: Any
    dims: Any
    shape, dims = document.get("shape"), document.get("dimension_names", attrs.pop(_DIMENSIONS, None))
    if not (_is_list_of(int, shape) and _is_list_of(str, dims) and len(shape) == len(dims)):
        return None
    everything = indexing.BasicIndexer((slice(None),) * len(shape))
    dtype = _dtype(document.get("data_type", document.get("dtype")))
    data: Any = _Shown(UnreadableArray(tuple(shape), dtype, error), everything)
    related = {"coordinates": attrs.pop("coordinates")} if "coordinates" in attrs else {}
    return UnreadableVariable(dims, data, attrs, related, fastpath=True)


def _dtype(data_type: Any) -> np.dtype[Any]:
    """The dtype of an array; void if that is not known, since xarray reads objects while it decodes them."""
    try:
        found = np.dtype(parse_dtype(data_type).to_native_dtype())
    except Xzarr3Error:
        return _UNKNOWN
    return _UNKNOWN if found.kind == "O" else found


def _is_list_of(kind: type, values: object) -> bool:
    return isinstance(values, list) and all(
        type(each) is kind and (not isinstance(each, int) or each >= 0) for each in values
    )


def fitting(
    found: Mapping[str, UnreadableVariable | None], variables: Iterable[xr.Variable]
) -> dict[str, UnreadableVariable]:
    """Those that can be variables of one dataset with ``variables``: a coordinate of a dimension cannot."""
    sizes: dict[Any, int] = {dim: size for each in variables for dim, size in each.sizes.items()}
    fit = {}
    for name, each in found.items():
        if (
            each is not None
            and each.dims != (name,)
            and all(sizes.get(dim, size) == size for dim, size in each.sizes.items())
        ):
            fit[name] = each
            sizes |= each.sizes
    return fit


def warn(errors: Mapping[str, MetadataError], kept: Container[str]) -> None:
    """Warn of arrays that cannot be read."""
    lines = [
        f"{name!r} {'cannot be read' if name in kept else 'is left out'}: {error}"
        for name, error in errors.items()
    ]
    warnings.warn(
        f"{'; '.join(lines)} (on_unreadable='raise' raises this, drop_variables={[*errors]} leaves them out)",
        UserWarning,
        stacklevel=levels_to_caller(("xzarr3", "xarray")),
    )
