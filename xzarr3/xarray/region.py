"""Resolves ``region=`` of :func:`xzarr3.to_zarr` to slices of the stored variables."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from xarray import Dataset, Variable

from xzarr3.errors import ArgumentError, ArgumentTypeError, UnknownNameError, listed, one_of, shorten
from xzarr3.nodes.array_settings import is_auto
from xzarr3.xarray.plan import WriteOptions

_MOST_LABELS = 3  # Labels that a message shows.


def find_region(
    dataset: Dataset, asked: WriteOptions, stored: Mapping[Hashable, Variable]
) -> tuple[Dataset, dict[Hashable, slice], dict[Hashable, Variable]]:
    """The dataset without its indexes, which is what is written to a region, and the slices of the region.

    The third result is the labels to check: stored indexes along dimensions whose slices were given.

    Parameters
    ----------
    dataset : Dataset
    asked : WriteOptions
        See :func:`xzarr3.to_zarr`.
    stored : mapping
        The stored variables, decoded.

    Raises
    ------
    TypeError, ValueError
        If ``region`` is not valid, or does not fit the dataset or the stored variables.
    KeyError
        If the store lacks the coordinate, or some of its values.
    """
    if asked.region is None:
        return dataset, {}, {}
    found = _asked_parts(dataset, asked.region, asked.mode)
    given = [(dim,) for dim, part in found.items() if not is_auto(part)]
    for dim, part in found.items():
        if is_auto(part):
            found[dim] = part = _found_by_values(dataset, dim, stored)
        if not isinstance(part, slice):
            start = part if isinstance(part, int) else 0
            raise ArgumentTypeError(
                f"all values in ``region`` must be slice objects, got region={shorten(found)}; write "
                f"{{{dim!r}: slice({start}, {start + dataset.sizes[dim]})}}"
            )
        if part.step not in (1, None):
            raise ArgumentError(
                f"step on all slices in ``region`` must be 1 or None, got region={shorten(found)}; write "
                "each run of neighbours by a call of its own"
            )
    others = [name for name, var in dataset.variables.items() if not set(found).intersection(var.dims)]
    if found and others:
        raise ArgumentError(
            "when setting `region` explicitly in to_zarr(), all variables in the dataset to write must have "
            f"at least one dimension in common with the region's dimensions {list(found)}, but that is not "
            "the case for some variables here. To drop these variables from this dataset before exporting to "
            f"zarr, write: .drop_vars({others!r})"
        )
    append_dim = asked.append_dim
    if append_dim is not None and append_dim in found:
        raise ArgumentError(
            "cannot list the same dimension in both ``append_dim`` and ``region`` with to_zarr(), got "
            f"{append_dim} in both; leave it out of ``region``, since an append goes to the end"
        )
    indexes = {name: dataset.variables[name] for name in dataset.indexes}
    labels = {
        name: variable
        for name, variable in indexes.items()
        if asked.check_labels and variable.dims in given and name in stored
        if stored[name].dims == variable.dims
    }
    return dataset.drop_vars([*indexes]), found, labels


def _asked_parts(dataset: Dataset, region: Any, mode: str) -> dict[Hashable, Any]:
    """What is asked for along each dimension: a part of it, or "auto"."""
    if is_auto(region):
        region = dict.fromkeys(dataset.dims, "auto")
    if not isinstance(region, Mapping):
        raise ArgumentTypeError(f"``region`` must be a dict, got {type(region)}; accepted: a dict or 'auto'")
    found = dict(region)
    unknown = [dim for dim in found if dim not in dataset.dims]
    if unknown:
        raise ArgumentError(
            f"all keys in ``region`` are not in Dataset dimensions, got {list(found)} and "
            f"{list(dataset.dims)}; unknown: {listed(unknown)}; {one_of(unknown[0], dataset.dims)}"
        )
    if any(is_auto(part) for part in found.values()) and mode not in ("r+", "a"):
        raise ArgumentError(
            f"``mode`` must be 'r+' or 'a' when using ``region='auto'``, got {mode!r}; leave mode out"
        )
    return found


def _found_by_values(dataset: Dataset, dim: Hashable, stored: Mapping[Hashable, Variable]) -> slice:
    """The slice of the stored coordinate that has the dataset's labels; all of it if it has no coordinate."""
    if dim not in dataset.variables:
        return slice(None)
    index = _stored_index(dim, stored)
    places = index.get_indexer(pd.Index(dataset[dim].values))
    if (places == -1).any():
        raise UnknownNameError(
            f"Not all values of coordinate '{dim}' in the new array were found in the original store: "
            f"{_missing(dataset[dim].values[places == -1], index)}; pass append_dim={dim!r} to add them at "
            "the end, or give values that are stored"
        )
    if (np.diff(places) != 1).any():
        raise ArgumentError(
            f"The auto-detected region of coordinate '{dim}' for writing new data to the original store had "
            f"non-contiguous indices: {shorten(places.tolist())}; give neighbours in the order of the store, "
            f"as after .sortby({dim!r}), or write each run of neighbours by a call of its own"
        )
    return slice(int(places[0]), int(places[-1]) + 1) if len(places) else slice(0, 0)


def _stored_index(dim: Hashable, stored: Mapping[Hashable, Variable]) -> pd.Index[Any]:
    """The labels of the stored coordinate, each of which is there once."""
    variable = stored.get(dim)
    if variable is None:
        raise UnknownNameError(
            f"the store has no coordinate {dim!r} to find the region with; pass "
            f"region={{{dim!r}: slice(...)}}"
        )
    if variable.dims != (dim,):
        raise ArgumentError(
            f"the coordinate {dim!r} in the store has dimensions {listed(variable.dims)}, so no region can "
            f"be found with it; pass region={{{dim!r}: slice(...)}}"
        )
    index = pd.Index(variable.values)
    if not index.is_unique:
        raise ArgumentError(
            f"the coordinate {dim!r} in the store has repeated values, so no region can be found with it; "
            f"pass region={{{dim!r}: slice(...)}}"
        )
    return index


def _missing(labels: np.ndarray[Any, Any], stored: pd.Index[Any]) -> str:
    """How many labels are missing, which, and the range that the store has."""
    values = [str(label) for label in pd.Index(labels[:_MOST_LABELS])]
    more = f" and {len(labels) - _MOST_LABELS} more" if len(labels) > _MOST_LABELS else ""
    there = f"{len(stored)} from {stored[0]} to {stored[-1]}" if len(stored) else "none"
    return f"{', '.join(values)}{more} {'is' if len(labels) == 1 else 'are'} missing; the store has {there}"
