"""Compares the datasets to write with the stored nodes: what is added, and which stored arrays change.

Values of variables that an append leaves as they are, and labels of a region, are compared here if they are
in memory. Those of dask arrays are compared by tasks, before any document is stored.

The result is a :class:`Plan`. This module reads stores and never changes one.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from xarray import Dataset, Variable

from xzarr3.api import find_group, open_group
from xzarr3.arrays import Array
from xzarr3.commit.recover import format_swapped
from xzarr3.dask.plan import WrittenArray
from xzarr3.errors import (
    ArgumentError,
    ConflictError,
    MetadataError,
    NodeExistsError,
    NodeNotFoundError,
    ReadOnlyError,
    StoreCapabilityError,
    listed,
)
from xzarr3.formats import Format, ZarrFormat, parse_format
from xzarr3.formats.base import node_prefix, refusal
from xzarr3.groups import Group
from xzarr3.model.metadata import GroupMetadata
from xzarr3.nodes.consolidated import check_consolidates
from xzarr3.nodes.find import check_holds, find_format, format_for_new
from xzarr3.parallel import parallel_map
from xzarr3.stores import Store
from xzarr3.xarray.coders import is_lazy
from xzarr3.xarray.labels import check_appended, comparable, difference, is_index, other_labels, other_values
from xzarr3.xarray.plan import (
    DatasetNode,
    WriteOptions,
    encode_attributes,
    encoded_coordinates,
    plan_arrays,
    plan_group,
    stored_name,
)
from xzarr3.xarray.recode import Change, Recoder, decoded_as_stored
from xzarr3.xarray.region import find_region


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """What a write does to one existing group, or the groups that it makes."""

    store: Store
    path: str
    """Path of the group that is written."""
    format: Format
    asked: WriteOptions
    consolidated: bool = False
    """Whether the root shall contain the documents of all nodes."""
    group: Group | None = None
    """The group, if it exists and is not replaced."""
    new: Mapping[str, GroupMetadata] = field(default_factory=dict)
    """Otherwise the groups that are made, by path relative to the uppermost one."""
    added: Sequence[WrittenArray] = ()
    """New arrays."""
    changes: Sequence[Change] = ()
    attributes: dict[str, Any] | None = None
    """The new attributes of the group; None to keep the old ones."""


def compare(nodes: Mapping[str, DatasetNode], store: Store, asked: WriteOptions) -> list[Plan]:
    """Plan the write of datasets, given by path relative to the first one, to a store.

    What is made or replaced is one plan. If the first group stays, each group that exists is one of its own.

    Raises
    ------
    ValueError, TypeError, StoreError
        See :func:`xzarr3.to_zarr`. For a tree, a note names the group.
    """
    if asked.mode in ("w", "w-"):
        return [_creation(nodes, store, asked)]
    if store.read_only:
        raise ReadOnlyError(f"{store} is read-only")

    def changed(relative: str) -> Plan | None:
        with _about(nodes, relative) as node:
            return _change(node, store)

    top, *below = nodes
    first = changed(top)
    if first is None:
        return [_creation(nodes, store, asked)]
    found = [first, *parallel_map(changed, below, store.concurrency)]
    plans, created = [each for each in found if each is not None], dict[str, dict[str, DatasetNode]]()
    for (relative, node), each in zip(nodes.items(), found, strict=True):
        if each is None:
            up = next((up for up in created if relative.startswith(node_prefix(up))), relative)
            created.setdefault(up, {})[relative] = node
    later = replace(asked, consolidated=False)
    plans += [_creation(each, store, later) for each in created.values()]
    wanted = asked.mode != "r+" and _to_be_consolidated(asked.consolidated, store, first.format, first.path)
    return [*plans[:-1], replace(plans[-1], consolidated=wanted)]  # Once, after all else.


def _creation(nodes: Mapping[str, DatasetNode], store: Store, asked: WriteOptions) -> Plan:
    """The plan of new groups, of which the first is the uppermost."""
    top = next(iter(nodes))
    path = nodes[top].path
    format = _format_to_write(store, path, asked.zarr_format)
    new, added = dict[str, GroupMetadata](), list[WrittenArray]()
    for relative in nodes:
        with _about(nodes, relative) as node:
            group, arrays = plan_group(node, format)
            new["" if relative == top else relative.removeprefix(node_prefix(top))] = group
            added += arrays
    consolidated = _to_be_consolidated(asked.consolidated, store, format, path)
    return Plan(
        store=store, path=path, format=format, asked=asked, consolidated=consolidated, new=new, added=added
    )


@contextmanager
def _about(nodes: Mapping[str, DatasetNode], relative: str) -> Iterator[DatasetNode]:
    """Context manager that adds a note with the group to errors, if there are several groups."""
    try:
        yield nodes[relative]
    except Exception as error:
        if len(nodes) > 1:
            error.add_note(f"raised for the group '/{nodes[relative].path}'")
        raise


def _format_to_write(store: Store, path: str, zarr_format: ZarrFormat | None) -> Format:
    if path:
        return format_for_new(store, path, zarr_format)
    if zarr_format is not None:
        check_holds(store, path, zarr_format)
        return parse_format(zarr_format)
    try:
        found = find_format(store, "") or format_swapped(store)
    except MetadataError:  # An invalid document does not prevent the write, or is replaced by it.
        found = None
    return found if found is not None else parse_format(3)


def _to_be_consolidated(asked: bool | None, store: Store, format: Format, path: str) -> bool:
    """Whether the root shall contain the documents of all nodes after a write at ``path``."""
    if format.keys("").consolidated is None:
        if asked:
            field, accepted = "consolidated_metadata", "consolidated=None or False"
            raise refusal(format.zarr_format, field, "consolidated=True", accepted)
        return False
    if asked:
        check_consolidates(store)
    elif store.traits.visible == "at commit":
        return False
    return (not path or store.listable) if asked is None else asked  # Other nodes are found by listing.


def _change(node: DatasetNode, store: Store) -> Plan | None:
    """The plan that changes an existing group; None if there is none and one may be made."""
    path, asked = node.path, node.asked
    group = _find_group(store, path, asked)
    if group is None:
        return None
    arrays, others = _children(group, map(stored_name, node.dataset.variables))
    decoded = decoded_as_stored(arrays)
    dataset, slices, labels = find_region(node.dataset, asked, decoded)
    _check_given(dataset, arrays, asked)
    variables, attributes = encoded_coordinates(dataset, asked.encoding)
    given = {name: var for name, var in variables.items() if stored_name(name) in arrays}
    new = {name: var for name, var in variables.items() if name not in given}
    if asked.mode == "r+" and new:
        raise ArgumentError(
            f"dataset contains non-pre-existing variables {list(new)!r}, which is not allowed in to_zarr() "
            "with ``mode='r+'``. To allow writing new variables, set ``mode='a'``."
        )
    growing = () if asked.append_dim is None else (asked.append_dim,)
    _check_new(new, others, path, asked.append_dim if arrays else None, slices, arrays)
    given, compared = _to_encode(given, asked)
    names = frozenset(map(stored_name, [*compared, *labels]))
    changes = Recoder(arrays, decoded, slices, asked, names).changes(given | labels)
    changes = _without_equal(changes, [*map(stored_name, labels)], store)
    if asked.check_labels and asked.append_dim is not None:
        _check_labels(str(asked.append_dim), changes, before=asked.prepends)
    return Plan(
        store=store,
        path=path,
        format=group.format,
        asked=asked,
        group=group,
        changes=changes,
        added=plan_arrays(new, node, group.format, growing),
        attributes=None if asked.mode == "r+" else encode_attributes(attributes, path=path),
    )


def _check_given(dataset: Dataset, arrays: Mapping[str, Array], asked: WriteOptions) -> None:
    """Refuse encodings for variables that exist, and appends that do not fit what is there."""
    for name in asked.encoding:
        if name in arrays:
            raise ArgumentError(
                f"variable {name!r} already exists, but encoding was provided; leave it out, since new "
                "values of a variable are stored in its own encoding"
            )
    if not arrays:  # All variables are new.
        asked.check_growing(dataset.sizes)
    elif asked.append_dim is not None:
        _check_appended(dataset, arrays, asked)


def _to_encode(
    given: dict[Hashable, Variable], asked: WriteOptions
) -> tuple[dict[Hashable, Variable], Collection[Hashable]]:
    """The existing variables that are written or compared, and the names of those that are only compared."""
    if asked.append_dim is None:
        return given, ()
    fixed = {name: var for name, var in given.items() if asked.append_dim not in var.dims}
    compared = [name for name, var in fixed.items() if asked.others == "compare" or var.dims == (name,)]
    left = fixed.keys() - compared if asked.others == "keep" else ()
    return {name: var for name, var in given.items() if name not in left}, compared


def _find_group(store: Store, path: str, asked: WriteOptions) -> Group | None:
    """The group to write to; None if there is none and one may be made."""
    zarr_format = asked.zarr_format
    group = find_group(store, path, zarr_format=zarr_format, use_consolidated=False)
    if group is not None:
        return group
    other = None if zarr_format is None else find_format(store, path)
    if other is not None:
        raise ArgumentError(
            f"the node at '/{path}' in {store} has Zarr format {other.zarr_format}, but "
            f"zarr_format={zarr_format!r} was passed; accepted: {other.zarr_format!r} or None"
        )
    if asked.mode == "r+" or asked.region is not None:
        try:  # Its error says what is there instead.
            return open_group(store, path, zarr_format=zarr_format, use_consolidated=False)
        except NodeNotFoundError as error:
            error.add_note("to_zarr(..., compute=False) makes a dataset of which regions can be written")
            raise
    return None


def _children(group: Group, wanted: Iterable[str]) -> tuple[dict[str, Array], list[str]]:
    """The arrays directly below a group by name, and the names of other nodes.

    If the store cannot list keys, only ``wanted`` nodes are found.
    """
    arrays, others = {}, []
    nodes: Iterable[tuple[str, object]]
    try:
        nodes = group.load()
    except StoreCapabilityError:
        nodes = [(name, group.get(name)) for name in wanted]
    for name, node in nodes:
        if isinstance(node, MetadataError):
            raise node
        if isinstance(node, Array):
            arrays[name] = Array(node.store, node.path, node.metadata, format=node.format)
        elif node is not None:
            others.append(name)
    return arrays, others


def _lengths(arrays: Mapping[str, Array]) -> dict[str, dict[str, int]]:
    """For each dimension, its length in each variable that has it."""
    found: dict[str, dict[str, int]] = {}
    for name, array in arrays.items():
        for dim, size in zip(array.dimension_names or (), array.shape, strict=False):
            if dim is not None:
                found.setdefault(dim, {})[name] = size
    return found


def _check_appended(dataset: Dataset, arrays: Mapping[str, Array], asked: WriteOptions) -> None:
    """Refuse to append along a dimension that is not stored, or to only some of the variables with it."""
    lengths, append_dim = _lengths(arrays), asked.append_dim
    asked.check_growing({dim: max(found.values()) for dim, found in lengths.items()})
    how = asked.growing_option.removesuffix("_dim")
    along = lengths[str(append_dim)]
    if len(set(along.values())) > 1:
        shortest = min(along.values())
        longer = [name for name, size in along.items() if size != shortest]
        raise ConflictError(
            f"variables have different lengths along {append_dim!r}, {along}: another append is storing its "
            "documents now, or was interrupted while it stored them; nothing was written; repeat the call, "
            f"and if that fails, make them {shortest} long with xzarr3.open_array(store, name, "
            f"mode='r+').resize(...) of {listed(longer)}"
        )
    given = [stored_name(name) for name, var in dataset.variables.items() if append_dim in var.dims]
    absent = [name for name in along if name not in given]
    if absent and given:
        raise ArgumentError(
            f"variables {listed(absent)} have the dimension {append_dim!r} in the store, but are not in "
            f"the dataset, so they would be shorter than {listed(given)}; {how} all of them"
        )
    if not given:
        raise ArgumentError(
            f"no variable of the dataset has the dimension {append_dim!r}; {how} values of {listed(along)}"
        )


def _without_equal(changes: list[Change], labels: Sequence[str], store: Store) -> list[Change]:
    """The changes without those that only compare values, which are compared now. Dask arrays stay.

    Of the ``labels`` of a region, those that are still unwritten are written.

    Raises
    ------
    ValueError
        If values differ from the stored ones.
    """

    def compared(change: Change) -> Change | str | None:
        if not change.compared or is_lazy(change.data):
            return change
        array, region = change.array, change.region
        given, may_complete = np.asarray(change.data), array.basename in labels
        first = difference(array, region, given, array.get(region), may_complete=may_complete)
        return replace(change, compared=False) if first == "" else first

    found = parallel_map(compared, changes, store.concurrency)
    by_name = {change.array.basename: change.array for change in changes}
    others = {name: each for name, each in zip(by_name, found, strict=True) if isinstance(each, str)}
    of_region = {name: others[name] for name in others if name in labels}
    if of_region:
        raise other_labels(of_region)
    if others:
        indexes = {name: others[name] for name in others if is_index(by_name[name])}
        raise other_values(indexes or others, "coordinates" if indexes else "variables")
    return [each for each in found if isinstance(each, Change)]


def _check_labels(dim: str, changes: Iterable[Change], *, before: bool) -> None:
    """Refuse labels along ``dim`` that repeat those of the store, or do not continue their order."""
    for change in changes:
        array, labels = change.array, change.data
        if array.basename == dim and is_index(array) and change.metadata.shape != array.shape:
            if not change.rewritten:
                both = array.get(), np.asarray(labels)
                labels = np.concatenate([comparable(array, each) for each in both])
            after = Array(array.store, array.path, change.metadata, format=array.format)
            check_appended(after, np.asarray(labels), array.shape[0], before=before)


def _check_new(
    new: Mapping[Hashable, Variable],
    others: Sequence[str],
    path: str,
    append_dim: Hashable | None,
    slices: Mapping[Hashable, slice],
    arrays: Mapping[str, Array],
) -> None:
    """Refuse new variables that do not fit the stored nodes."""
    lengths: Mapping[Any, Mapping[str, int]] = _lengths(arrays)
    for name, var in new.items():
        if stored_name(name) in others:
            raise NodeExistsError(
                f"a group exists at '/{node_prefix(path)}{stored_name(name)}', where variable {name!r} "
                "would be stored; give the variable another name, for instance with .rename()"
            )
        if append_dim is not None and append_dim in var.dims:
            raise ArgumentError(
                f"variable {name!r} is not in the store and would be shorter along {append_dim!r} than the "
                f"others; write it first for all of {append_dim!r}, with mode='a'"
            )
        partly = [dim for dim in var.dims if dim in slices]
        if partly:
            raise ArgumentError(
                f"variable {name!r} is not in the store, so no region of it can be written along "
                f"{listed(partly)}; write it first for all of these dimensions, with mode='a'"
            )
        for dim, size in var.sizes.items():
            there = lengths.get(dim, {})
            if there and size not in there.values():
                raise ArgumentError(
                    f"conflicting sizes for dimension {dim!r}: length {size} on {name!r}, {there} in the "
                    "store; give variables of the same lengths"
                )
