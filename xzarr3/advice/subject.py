"""What an advice is about: the array that is or would be stored, and a sample of it."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from xzarr3._types import AnyArray
from xzarr3.advice.compression import SAMPLE_BYTES
from xzarr3.advice.patterns import Roles, roles
from xzarr3.api import create_array
from xzarr3.api import open as open_node
from xzarr3.arrays import Array
from xzarr3.conventions.fill_value_attribute import follows_version_2
from xzarr3.errors import ArgumentTypeError
from xzarr3.formats import V3
from xzarr3.groups import Group
from xzarr3.nodes.array_settings import array_metadata, chosen_serializer
from xzarr3.stores import MemoryStore, Store

if TYPE_CHECKING:
    from xarray import Variable

_PACKING = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")
_NAMING = (
    *("coordinates", "bounds", "climatology", "grid_mapping", "ancillary_variables", "cell_measures"),
    *("formula_terms", "geometry", "nodes", "node_coordinates"),
)
"""CF attributes that name variables, which describe the one that has the attribute."""
_FEW = 2**12  # Bytes of a sample that only tells how values are encoded.


@dataclass(frozen=True)
class Subject:
    """What the advice is about: an array as it is stored, or as :func:`xzarr3.to_zarr` would store it."""

    array: Array
    names: tuple[str | None, ...]
    sample: AnyArray | None = None
    """Stored values."""
    is_present: bool = False
    """Whether the layout of the array is one that was chosen before."""
    encodings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """For each variable that the advice is for, what :func:`xzarr3.to_zarr` takes to store it as it is."""
    place: Store | str = "s3"
    """Where the data are, if something tells."""

    @property
    def roles(self) -> Roles:
        """The roles of the dimensions."""
        return roles(self.array.shape, self.names)


def subject_of(
    data: Any, shape: Sequence[int] | None, dtype: Any, dims: Sequence[str | None] | None
) -> Subject:
    """What :func:`xzarr3.advise` is asked about.

    Raises
    ------
    TypeError
        If there is neither data nor shape and dtype.
    """
    if data is None:
        if shape is None or dtype is None:
            raise ArgumentTypeError("nothing to advise on; give an array or a dataset, or shape= and dtype=")
        return Subject(create_array(MemoryStore(), shape=tuple(shape), dtype=dtype), tuple(dims or ()))
    whole = open_node(data) if isinstance(data, (str, os.PathLike, Store)) else data
    found = _variables(whole)
    if found is None:
        return replace(subject_of(None, whole.shape, whole.dtype, dims), sample=_sample(whole))
    name, lead = _largest(found)
    beside = {path: each for path, each in found.items() if _kind(path, each) == _kind(name, lead)}
    names = tuple(dims or _dims(lead))
    if isinstance(lead, Array):
        encodings = {each.basename: _own(each) for each in beside.values()}
        return Subject(lead, names, _sample(lead), True, encodings, lead.store)
    encodings = {each: _encoded(beside[each], each, _FEW)[2] for each in beside}
    array, sample, _ = _encoded(lead, name, SAMPLE_BYTES)
    source = str(lead.encoding.get("source") or whole.encoding.get("source") or "s3://")
    place = "s3" if "://" in source and not source.startswith("file:") else "disk"
    return Subject(array, names, _sample(sample), "chunks" in lead.encoding, encodings, place)


def _variables(data: Any) -> dict[str, Any] | None:
    """The arrays or variables that the advice may be for, by path or name; None for data without names."""
    if isinstance(data, Group):
        arrays = {path: each for path, each in data.members(max_depth=None) if isinstance(each, Array)}
        return of_data(arrays)
    if isinstance(data, Array):
        return {data.path: data}
    if hasattr(data, "data_vars"):
        return {name: each for name, each in of_data({**data.variables}).items() if name in data.data_vars}
    if hasattr(data, "variable"):
        return {"" if data.name is None else data.name: data.variable}
    if hasattr(data, "shape") and hasattr(data, "dtype"):
        return None
    raise ArgumentTypeError(
        f"cannot advise on {type(data).__name__}; accepted: an array, a dataset, a path or store, or shape= "
        "and dtype="
    )


def _dims(each: Any) -> tuple[str | None, ...]:
    """The names of the dimensions of an array or a variable, if it has any."""
    return tuple(getattr(each, "dims", None) or getattr(each, "dimension_names", None) or ())


def _kind(path: str, each: Any) -> tuple[object, ...]:
    """What arrays have in common that are laid out alike: their group, shape and dimensions."""
    return str(path).rpartition("/")[0], each.shape, _dims(each)


def _encoded(variable: Variable, name: str, nbytes: int) -> tuple[Array, AnyArray, dict[str, Any]]:
    """The array that :func:`xzarr3.to_zarr` makes of a variable, stored values of it, and its encoding."""
    from xarray import Variable

    from xzarr3.xarray.encode import VALUE_KEYS, array_settings, made_with_settings, stored_dtype
    from xzarr3.xarray.exact import encode_values

    sample = variable[_middle(variable.shape, variable.dtype.itemsize, nbytes)].load()
    encoded = encode_values(sample, name, explicit=False)
    unread = np.broadcast_to(np.zeros((), encoded.dtype), variable.shape)
    whole = Variable(variable.dims, unread, encoded.attrs, encoded.encoding)
    settings = array_settings(whole, name, V3, explicit=False)
    settings.pop("write_empty_chunks", None)
    make = partial(array_metadata, shape=whole.shape, dtype=stored_dtype(encoded.dtype), format=V3)
    array = Array(MemoryStore(), "", made_with_settings(make, settings, whole, V3, explicit=False))
    given, left = variable.encoding, encoded.encoding
    own = {key: given[key] for key in VALUE_KEYS if key in given and (key not in left or given[key] is None)}
    return array, np.asarray(encoded.data), {**_layout(array), **own}


def _own(array: Array) -> dict[str, Any]:
    """The layout of an array, and how its attributes say that its values are packed."""
    from xzarr3.xarray.variables import MissingDimensionNamesError, as_variable

    own, attributes = _layout(array), array.attrs
    with suppress(MissingDimensionNamesError):
        attributes = as_variable(array, follows_version_2(array.format)).attrs
    own |= {key: attributes[key] for key in _PACKING if key in attributes}
    return {**own, "dtype": array.dtype} if array.dtype.kind in "iuf" else own


def _layout(array: Array) -> dict[str, Any]:
    """Chunks, shards and codecs of an array, and its fill value where it is no usual one."""
    own: dict[str, Any] = {"chunks": array.chunks, "shards": array.shards}
    own["compressors"] = [codec.to_json() for codec in array.compressors] or None
    if array.filters:
        own["filters"] = [codec.to_json() for codec in array.filters]
    usual = chosen_serializer("auto", array.zdtype, array.format)
    if array.serializer.name != usual.name or array.serializer.configuration().get("endian") == "big":
        own["serializer"] = array.serializer.to_json()
    fill_value = array.fill_value
    if array.dtype.kind in "iuf" and not follows_version_2(array.format) and fill_value not in (None, 0):
        own |= {} if np.isnan(fill_value) else {"fill_value": fill_value}
    return own


def of_data(variables: Mapping[str, Any]) -> dict[str, Any]:
    """The variables or arrays with elements and dimensions, without those that describe others.

    Those are coordinates of their only dimension, and what a CF attribute of another names, such as bounds.
    """
    described = set()
    for each in variables.values():
        attributes = {**getattr(each, "encoding", {}), **each.attrs}
        described |= {word for name in _NAMING for word in str(attributes.get(name, "")).split()}
    return {
        path: each
        for path, each in variables.items()
        if each.size and each.ndim and (name := str(path).rpartition("/")[2]) not in described
        if _dims(each) != (name,)
    }


def _largest(found: Mapping[str, Any]) -> tuple[str, Any]:
    if not found:
        raise ArgumentTypeError(
            "no array to advise on: none has elements and a dimension, without describing another one; give "
            "an array, or shape= and dtype="
        )
    return max(found.items(), key=lambda item: item[1].nbytes)


def _sample(data: Any) -> AnyArray | None:
    """At most 8 MiB from the middle of the data."""
    dtype = np.dtype(data.dtype)
    if not math.prod(data.shape) or dtype.hasobject or dtype.kind == "T":
        return None
    return np.ascontiguousarray(data[_middle(data.shape, dtype.itemsize, SAMPLE_BYTES)])


def _middle(shape: Sequence[int], itemsize: int, nbytes: int) -> tuple[slice, ...]:
    """The middle of the data, as whole as so many bytes allow."""
    lengths = list(shape)
    for axis in range(len(lengths)):
        over = max(1, math.prod(lengths) * itemsize / nbytes)
        lengths[axis] = max(1, int(lengths[axis] / over))
    pairs = zip(shape, lengths, strict=True)
    return tuple(slice((size - length) // 2, (size + length) // 2) for size, length in pairs)
