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
from xzarr3.stores import MemoryStore, Store

if TYPE_CHECKING:
    from xarray import Variable

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
    """For each variable that the advice is for, what stores it as it is, but for its layout."""
    place: Store | str = "s3"
    """Where the data are, if something tells."""


def subject_of(
    data: Any, shape: Sequence[int] | None, dtype: Any, dims: Sequence[str | None] | None
) -> Subject:
    """What :func:`xzarr3.advise` is asked about.

    Raises
    ------
    TypeError
        If there is neither data nor shape and dtype, or both.
    """
    if data is None:
        if shape is None or dtype is None:
            raise ArgumentTypeError("nothing to advise on; give an array or a dataset, or shape= and dtype=")
        new = create_array(MemoryStore(), shape=shape, dtype=dtype)
        return Subject(new, roles(new.shape, dims))
    whole = open_node(data) if isinstance(data, (str, os.PathLike, Store)) else data
    found = _variables(whole)
    if shape is not None or dtype is not None:
        raise ArgumentTypeError("data= has a shape and a dtype; leave shape= and dtype= out, or data=")
    if not found:
        raise ArgumentTypeError(
            "no array to advise on: each has no elements, no dimensions, or is the coordinate of its only "
            "dimension; give an array, or shape= and dtype="
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


def _variables(data: Any) -> dict[str, Any]:
    """The arrays or variables that the advice may be for, by path or name."""
    if isinstance(data, Group):
        return of_data(dict(data.members(max_depth=None)))
    if isinstance(data, Array):
        return {data.path: data}
    if hasattr(data, "data_vars"):
        return of_data({name: each.variable for name, each in data.data_vars.items()})
    if hasattr(data, "variable"):
        return {"" if data.name is None else data.name: data.variable}
    raise ArgumentTypeError(
        f"cannot advise on {type(data).__name__}; accepted: an xzarr3.Array, a Dataset or DataArray of "
        "xarray, a path or store, or shape= and dtype="
    )


def _dims(each: Any) -> tuple[str | None, ...]:
    """The names of the dimensions of an array or a variable, if it has any."""
    return tuple(getattr(each, "dims", None) or getattr(each, "dimension_names", None) or ())


def _kind(path: str, each: Any) -> tuple[object, ...]:
    """What arrays have in common that are laid out alike: their group, shape and dimensions."""
    return str(path).rpartition("/")[0], each.shape, _dims(each)


def _stored(variable: Variable, name: str, nbytes: int) -> Array:
    """The middle of a variable, as :func:`xzarr3.to_zarr` stores it."""
    from xarray import Dataset

    from xzarr3.xarray.variables import UNNAMED
    from xzarr3.xarray.write import to_zarr

    name = name or UNNAMED
    array: Any = to_zarr(Dataset({name: variable[_middle(variable, nbytes)].load()}))[name]
    return array  # type: ignore[no-any-return]


def _encoding(array: Array) -> dict[str, Any]:
    """What :func:`xzarr3.to_zarr` takes to store an array as it is, but for its layout."""
    from xzarr3.xarray.variables import are_times, seen_attributes

    attributes, fill_value = seen_attributes(array), array.fill_value
    own: dict[str, Any] = {"serializer": array.serializer.to_json()}
    for name, codecs in (("filters", array.filters), ("compressors", array.compressors)):
        own[name] = [codec.to_json() for codec in codecs]
    # Of times xarray takes a data type with units only, and finds both.
    is_time = are_times(attributes) or "timedelta" in str(attributes.get("dtype"))
    if array.dtype.kind in "iuf" and not array.is_optional and not is_time:
        own["dtype"] = array.dtype
        if not follows_version_2(array.format) and fill_value and fill_value == fill_value:
            own["fill_value"] = fill_value
    return own | {key: attributes[key] for key in PACKING if key in attributes}


def of_data(variables: Mapping[str, Any]) -> dict[str, Any]:
    """The variables or arrays with elements and dimensions, without coordinates of their only dimension."""
    return {
        path: each
        for path, each in variables.items()
        if not isinstance(each, Group) and each.size and each.ndim
        if _dims(each) != (str(path).rpartition("/")[2],)
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
