"""Decodes stored variables into datasets by the CF conventions, with the same results as xarray."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, Literal

import numpy as np
from xarray import Coordinates, Dataset, Variable, conventions

from xzarr3.xarray import chunked
from xzarr3.xarray.lazy import LazyArray
from xzarr3.xarray.prefetch import Ahead, InTurn
from xzarr3.xarray.unpack import folded
from xzarr3.xarray.variables import Xzarr3DataStore

# Attributes of encoded values, besides units of time and _FillValue.
_CODING = frozenset(("missing_value", "scale_factor", "add_offset", "_Unsigned", "_Encoding", "dtype"))
_TIME_LIKE = re.compile("since|day|hour|minute|second")


def decoded_datasets(
    stores: Mapping[str, Xzarr3DataStore],
    *,
    decode_coords: bool | Literal["coordinates", "all"] = True,
    mask_and_scale: bool | Mapping[str, bool] = True,
    decode_times: Any = True,
    concat_characters: bool | Mapping[str, bool] = True,
    use_cftime: bool | Mapping[str, bool] | None = None,
    decode_timedelta: Any = None,
) -> dict[str, Dataset]:
    """Decode the variables of each store into a dataset without indexes, which xarray makes itself."""
    options = {
        "mask_and_scale": mask_and_scale,
        "decode_times": decode_times,
        "concat_characters": concat_characters,
        "use_cftime": use_cftime,
        "decode_timedelta": decode_timedelta,
    }
    loaded = {path: store.load() for path, store in stores.items()}  # type: ignore[no-untyped-call]
    arrays = {
        path: {name: _lazy_array(var) for name, var in stored.items()} for path, (stored, _) in loaded.items()
    }
    for path, (stored, _) in loaded.items():
        _set_bounded(stored, arrays[path])
    concurrency = max((store.group.store.concurrency for store in stores.values()), default=1)
    ahead = Ahead(concurrency)
    times = {path: dict.fromkeys(_times(stored, decode_times)) for path, (stored, _) in loaded.items()}
    ahead.look_at_ends(arrays[path][name] for path, names in times.items() for name in names)
    datasets = {
        path: _decoded_dataset(dict(stored), dict(attributes), decode_coords, options)
        for path, (stored, attributes) in loaded.items()
    }
    ahead.expect(
        arrays[path][name]
        for path, dataset in datasets.items()
        for name, var in dataset.variables.items()
        if var.dims == (name,) and (concurrency > 1 or name in times[path])
    )
    for path, store in stores.items():
        if store.group.store.concurrency > 1 and store.group.missing == "fill":
            variables = datasets[path].variables.items()
            lazies = [arrays[path][name] for name, var in variables if var.dims != (name,)]
            InTurn(store.group.store.concurrency, lazies)
    return datasets


def _decoded_dataset(
    stored: dict[Any, Variable],
    stored_attributes: dict[Any, Any],
    decode_coords: bool | Literal["coordinates", "all"],
    options: Mapping[str, Any],
) -> Dataset:
    variables, attributes, coord_names = _decoded(stored, stored_attributes, decode_coords, options)
    variables = {name: chunked.Variable.of(var) for name, var in variables.items()}
    coords = {name: var for name, var in variables.items() if name in coord_names or var.dims == (name,)}
    data_vars = {name: var for name, var in variables.items() if name not in coords}
    dims = {dim for var in variables.values() for dim in var.dims}
    if all(variables[dim].dims == (dim,) for dim in dims if dim in variables):
        # Nothing needs merging or conversion.
        return Dataset._construct_direct(
            {**data_vars, **coords}, set(coords), attrs=dict(attributes) or None, close=_close_nothing
        )
    dataset = Dataset(data_vars, Coordinates(coords, indexes={}), attributes)
    dataset.set_close(_close_nothing)
    return dataset


def _lazy_array(variable: Variable) -> LazyArray:
    """The lazy array of a variable from :func:`as_variable`."""
    lazy: LazyArray = variable._data.array  # type: ignore[union-attr]
    return lazy


def _set_bounded(stored: Mapping[Hashable, Variable], arrays: Mapping[Hashable, LazyArray]) -> None:
    """Link the arrays of bounds to the time variables whose units they have."""
    for name, var in stored.items():
        bounds, units = var.attrs.get("bounds"), var.attrs.get("units")
        if not (isinstance(bounds, str) and isinstance(units, str) and "since" in units):
            continue
        if bounds in stored and "bounds" not in stored[bounds].attrs:  # Bounds have no bounds themselves.
            arrays[bounds].array._bounded = arrays[name].array


def _times(variables: Mapping[Hashable, Variable], decode_times: Any) -> Iterator[Hashable]:
    """The names of times and their bounds, whose first and last values are read for decoding."""
    for name, var in variables.items():
        decoded = decode_times.get(name, True) if isinstance(decode_times, Mapping) else decode_times
        units, bounds = var.attrs.get("units"), var.attrs.get("bounds")
        if decoded and isinstance(units, str) and "since" in units:
            yield name
            if isinstance(bounds, str) and bounds in variables:
                yield bounds


def _close_nothing() -> None:
    """The close function of a dataset, which xarray requires; there is nothing to close."""


def _decoded(
    variables: dict[Any, Variable],
    attributes: dict[Any, Any],
    decode_coords: bool | Literal["coordinates", "all"],
    options: Mapping[str, Any],
) -> tuple[Mapping[Any, Variable], Mapping[Any, Any], set[Any]]:
    """Do what ``xarray.conventions.decode_cf_variables`` does, but decode only variables that need it.

    Most variables are stored as plain values. For these xarray would make a dozen copies and change two
    entries of the encoding.
    """
    mask = options["mask_and_scale"]
    if (
        decode_coords not in (True, False, "coordinates")
        or mask not in (True, False)
        or options["use_cftime"] is not None
        or any(isinstance(option, Mapping) for option in options.values())
        or any(var.dtype.kind == "S" for var in variables.values())
    ):
        return conventions.decode_cf_variables(variables, attributes, decode_coords=decode_coords, **options)
    coded = {name: var for name, var in variables.items() if not _is_plain(var, mask)}
    for var in list(coded.values()):
        bounds = var.attrs.get("bounds")  # Bounds have the units of the variable that they bound.
        if isinstance(bounds, str) and bounds in variables:
            coded[bounds] = variables[bounds]
    decoded, _, _ = conventions.decode_cf_variables(coded, {}, decode_coords=False, **options)
    for var in decoded.values():
        _unpack_when_read(var)
    coord_names: set[Any] = set()
    for name, var in variables.items():
        attrs = var.attrs
        if name in decoded:
            variables[name] = decoded[name]
            attrs = decoded[name].attrs
        else:
            if mask and "_FillValue" in attrs:
                var.encoding["_FillValue"] = attrs.pop("_FillValue")
            var.encoding.setdefault("dtype", var.dtype)
        if decode_coords and isinstance(attrs.get("coordinates"), str):
            text = attrs.pop("coordinates")
            variables[name].encoding["coordinates"] = text
            coord_names.update(other for other in text.split() if other in variables)
    if decode_coords and isinstance(attributes.get("coordinates"), str):
        coord_names.update(attributes.pop("coordinates").split())
    return variables, attributes, coord_names


def _unpack_when_read(var: Variable) -> None:
    """Unpack packed values while they are read, instead of afterwards as xarray does."""
    found = folded(var._data)
    if found is not None and isinstance(found[0].array, LazyArray):
        lazy, unpacking = found[0].array, found[1]
        lazy.unpack(unpacking)
        var._data = found[0]


def _is_plain(var: Variable, mask: bool) -> bool:
    """Whether decoding by the CF conventions leaves the values of a variable unchanged."""
    attrs = var.attrs
    if var.dtype.kind not in "biufc" or not _CODING.isdisjoint(attrs):
        return False
    units = attrs.get("units")
    if units is not None and (not isinstance(units, str) or _TIME_LIKE.search(units)):
        return False
    if mask and "_FillValue" in attrs:
        fill_value = attrs["_FillValue"]
        if var.dtype.kind != "f" or not isinstance(fill_value, (float, np.floating)):
            return False
        return math.isnan(fill_value)
    return True
