"""What an advice is about: the array that is or would be stored, and how small a sample of it gets."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from xzarr3.advice.patterns import Roles, roles
from xzarr3.api import create_array
from xzarr3.api import open as open_node
from xzarr3.arrays import Array
from xzarr3.conventions.fill_value_attribute import follows_version_2
from xzarr3.copying.settings import PACKING, Settings
from xzarr3.errors import ArgumentTypeError
from xzarr3.groups import Group
from xzarr3.nodes.array_settings import chosen_serializer
from xzarr3.nodes.auto_chunks import auto_chunks
from xzarr3.stores import MemoryStore, Store

if TYPE_CHECKING:
    from xarray import Variable

_NAMING = ("coordinates", "ancillary_variables", "nodes")
"""CF attributes that name variables which describe the one that has the attribute, beside those of xarray."""
_SAMPLE, _FEW = 2**23, 2**12  # Bytes of a sample, and of one that only tells how values are encoded.


@dataclass(frozen=True)
class Subject:
    """What the advice is about: an array as it is stored, or as :func:`xzarr3.to_zarr` would store it."""

    array: Array
    roles: Roles
    """The roles of its dimensions."""
    ratio: float | None = None
    """Bytes of the elements for each stored byte, in a sample."""
    is_present: bool = False
    """Whether the layout of the array is one that was chosen before."""
    encodings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """For each variable that the advice is for, what :func:`xzarr3.to_zarr` takes to store it as it is."""
    place: Store | str = "s3"
    """Where the data are, if something tells."""


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
        return Subject(create_array(MemoryStore(), shape=tuple(shape), dtype=dtype), roles(shape, dims))
    whole = open_node(data) if isinstance(data, (str, os.PathLike, Store)) else data
    found = _variables(whole)
    if found is None:
        unnamed = subject_of(None, whole.shape, whole.dtype, dims)
        return replace(unnamed, ratio=_ratio(unnamed.array, whole))
    if not found:
        raise ArgumentTypeError(
            "no array to advise on: none has elements and a dimension, without describing another one; give "
            "an array, or shape= and dtype="
        )
    name, lead = max(found.items(), key=lambda item: item[1].nbytes)
    beside = {path: each for path, each in found.items() if _kind(path, each) == _kind(name, lead)}
    known = roles(lead.shape, dims or _dims(lead))
    if isinstance(lead, Array):
        encodings = {each.basename: _encoding(each) for each in beside.values()}
        return Subject(lead, known, _ratio(lead, lead), True, encodings, lead.store)
    stored = {each: _stored(beside[each], each, _SAMPLE if each == name else _FEW) for each in beside}
    array = Array(MemoryStore(), "", replace(stored[name].metadata, shape=lead.shape))
    is_present = lead.encoding.get("chunks") == array.chunks
    encodings = {each: _encoding(part) for each, part in stored.items()}
    source = str(lead.encoding.get("source") or whole.encoding.get("source") or "s3://")
    place = "s3" if "://" in source and not source.startswith("file:") else "disk"
    return Subject(array, known, _ratio(array, stored[name]), is_present, encodings, place)


def _variables(data: Any) -> dict[str, Any] | None:
    """The arrays or variables that the advice may be for, by path or name; None for data without names."""
    if isinstance(data, Group):
        return of_data(dict(data.members(max_depth=None)))
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


def _stored(variable: Variable, name: str, nbytes: int) -> Array:
    """The middle of a variable, as :func:`xzarr3.to_zarr` stores it, with chunks that suit the whole one."""
    from xarray import Dataset

    from xzarr3.xarray.variables import UNNAMED
    from xzarr3.xarray.write import to_zarr

    name, part = name or UNNAMED, variable[_middle(variable, nbytes)].load()
    part.encoding = {"chunks": auto_chunks(variable.shape, variable.dtype.itemsize), **variable.encoding}
    array: Any = to_zarr(Dataset({name: part}))[name]
    return array  # type: ignore[no-any-return]


def _encoding(array: Array) -> dict[str, Any]:
    """What :func:`xzarr3.to_zarr` takes to store an array as it is: its layout, and how values are packed."""
    from xzarr3.xarray.variables import seen_attributes

    attributes, fill_value = seen_attributes(array), array.fill_value
    own: dict[str, Any] = {"chunks": array.chunks, "shards": array.shards}
    own["compressors"] = [codec.to_json() for codec in array.compressors] or None
    if array.filters:
        own["filters"] = [codec.to_json() for codec in array.filters]
    usual = chosen_serializer("auto", array.zdtype, array.format)
    if array.serializer.name != usual.name or array.serializer.configuration().get("endian") == "big":
        own["serializer"] = array.serializer.to_json()
    if array.dtype.kind in "iuf" and not array.is_optional:
        own["dtype"] = array.dtype
        if not follows_version_2(array.format) and fill_value and fill_value == fill_value:
            own["fill_value"] = fill_value
    return own | {key: attributes[key] for key in PACKING if key in attributes}


def of_data(variables: Mapping[str, Any]) -> dict[str, Any]:
    """The variables or arrays with elements and dimensions, without those that describe others.

    Those are coordinates of their only dimension, and what a CF attribute of another names, such as bounds.
    """
    from xarray.conventions import CF_RELATED_DATA

    described = set()
    for each in variables.values():
        attributes = {**getattr(each, "encoding", {}), **each.attrs}
        named = (str(attributes.get(name, "")) for name in (*_NAMING, *CF_RELATED_DATA))
        described |= {word for names in named for word in names.split()}
    return {
        path: each
        for path, each in variables.items()
        if not isinstance(each, Group) and each.size and each.ndim
        if (name := str(path).rpartition("/")[2]) not in described
        if _dims(each) != (name,)
    }


def _ratio(array: Array, data: Any) -> float | None:
    """How many times smaller at most 8 MiB from the middle of the data get as one chunk of an array."""
    dtype = np.dtype(data.dtype)
    if not math.prod(data.shape) or dtype.hasobject or dtype.kind == "T":
        return None
    sample = data[_middle(data, _SAMPLE)]
    sample = np.ascontiguousarray(array.zdtype.cast_array(sample) if array.is_optional else sample)
    chain = Settings(chunks=sample.shape, shards=None).metadata(array, array.format).chain
    return float(sample.nbytes / max(len(bytes(chain.encode(sample, keep_empty=True))), 1))


def _middle(data: Any, nbytes: int) -> tuple[slice, ...]:
    """The middle of the data, as whole as so many bytes allow."""
    lengths, itemsize = list(data.shape), data.dtype.itemsize
    for axis, length in enumerate(lengths):
        lengths[axis] = max(1, int(length / max(1, math.prod(lengths) * itemsize / nbytes)))
    pairs = zip(data.shape, lengths, strict=True)
    return tuple(slice((size - length) // 2, (size + length) // 2) for size, length in pairs)
