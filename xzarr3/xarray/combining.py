"""Joins groups to one: which variables are joined, and whether the others are the same in all groups.

Variables without the dimension, which the whole has once, are compared with those of the first group, as an
append compares them. Labels along the dimension are in order, as after an append. The values that this needs
are read once, those of several stores at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from msgspec.structs import replace

from xzarr3._types import AnyArray
from xzarr3.errors import ArgumentError, did_you_mean, listed
from xzarr3.io.plan import ReadPlan
from xzarr3.io.selection import basic_selection
from xzarr3.joined.array import JoinedArray, joined
from xzarr3.joined.document import Recipe, with_places
from xzarr3.joined.group import JoinedGroup
from xzarr3.parallel import parallel_map
from xzarr3.xarray.alike import alike, coded, same
from xzarr3.xarray.labels import decoded, misplaced, unequal
from xzarr3.xarray.variables import OpenOptions, Xzarr3DataStore

AT_ONCE = 64
"""Most stores that are asked at a time, where they have to be waited for."""


class Values:
    """Values of whole arrays; those of several stores are read at once."""

    def __init__(self) -> None:
        self._kept: dict[Any, AnyArray] = {}

    def read(self, arrays: Sequence[Any]) -> list[AnyArray]:
        """The values of arrays, as they are stored. Those that were kept are not read again."""
        plans: dict[Any, ReadPlan] = {}  # Arrays of one variable mostly have the same metadata.

        def whole(array: Any) -> AnyArray:
            kind = id(array.metadata), type(array.store)
            if kind not in plans:
                plans[kind] = array.plan_selected(basic_selection((), array.shape))
            values: AnyArray = array.read_selected(plans[kind].selection, plan=plans[kind])
            return values

        left = [array for array in arrays if array not in self._kept]
        at_once = max((array.waiting for array in left), default=1)
        found = iter(parallel_map(whole, left, min(at_once, AT_ONCE)))
        return [self._kept[array] if array in self._kept else next(found) for array in arrays]

    def keep(self, arrays: Sequence[Any]) -> list[AnyArray]:
        """The values of arrays, such as labels, which are needed again."""
        found = self.read(arrays)
        self._kept.update(zip(arrays, found, strict=True))
        return found

    def keep_joined(self, array: JoinedArray) -> AnyArray:
        """Those of a joined array of one dimension."""
        read = zip(array.sources, self.keep([each.array for each in array.sources]), strict=True)
        parts = [values if each.convert is None else each.convert(values) for each, values in read]
        values = np.stack(parts) if array.joint.is_new else np.concatenate(parts)
        self._kept[array] = values.astype(array.dtype, copy=False)
        return self._kept[array]


def _comparable(arrays: Sequence[Any], values: Sequence[AnyArray]) -> list[AnyArray]:
    """The values of arrays of one variable; decoded, unless all are decoded alike."""
    first = coded(arrays[0])
    if all(each.dtype == arrays[0].dtype and same(coded(each), first) for each in arrays[1:]):
        return [*values]
    return [*map(decoded, arrays, values)]


def members_of(nodes: Sequence[Any], leave_out: Sequence[str]) -> list[dict[str, Any]]:
    """The arrays directly below each group, by their names.

    Raises
    ------
    ArgumentError
        If an array is in some groups alone.
    """
    at_once = max(node.store.concurrency for node in nodes)
    one = partial(_members, asked=OpenOptions(drop_variables=leave_out, on_unreadable="raise"))
    members = parallel_map(one, nodes, min(at_once, AT_ONCE))
    for name in dict.fromkeys(itertools.chain.from_iterable(members)):
        there = [name in each for each in members]
        if not all(there):
            has, lacks = nodes[there.index(True)], nodes[there.index(False)]
            raise ArgumentError(
                f"{has!r} has {name!r}, {lacks!r} has not; pass drop_variables=[{name!r}] to join the others"
            )
    return members


def join_groups(
    recipe: Recipe, nodes: Sequence[Any], members: Sequence[Mapping[str, Any]], values: Values
) -> JoinedGroup:
    """Join groups along a dimension.

    Parameters
    ----------
    recipe : Recipe
    nodes : sequence of Group or JoinedGroup
        The sources of the recipe, opened.
    members : sequence of mapping
        Their arrays, from :func:`members_of`.
    values : Values
        What was read before.

    Raises
    ------
    ArgumentError
        If they do not fit.
    """
    how, dim = recipe.join, recipe.dim
    if not isinstance(dim, str):
        raise ArgumentError(f"dim={dim!r}: groups are joined along a dimension that has a name")
    columns = {name: [each[name] for each in members] for name in members[0]}
    owners = _bound(columns)
    wanted = _to_join(how, nodes[0], members[0], dim)
    found: dict[str, Any] = {
        name: join_arrays(how, name, column, dim, owners=columns.get(owners.get(name, "")))
        if name in wanted
        else column[0]
        for name, column in columns.items()
    }
    once = [name for name in columns if name not in wanted]
    for name in once:
        _check_same(name, columns[name], values)
    labels = {name: values.keep([found[name]])[0] for name in once if found[name].dimension_names == (name,)}
    if dim in wanted and found[dim].ndim == 1:
        labels[dim] = values.keep_joined(found[dim])
        if recipe.check_labels:
            _check_labels(found[dim], labels[dim])
    return JoinedGroup(found, nodes[0].metadata.attributes, with_places(recipe, nodes), labels)


def _bound(columns: Mapping[str, Sequence[Any]]) -> dict[str, str]:
    """For each variable that holds the bounds of another one, the name of that; the arrays are told."""
    found = {}
    for name, column in columns.items():
        bounds = column[0].metadata.attributes.get("bounds")
        if isinstance(bounds, str) and bounds in columns:
            found[bounds] = name
            for array, owner in zip(columns[bounds], column, strict=True):
                array._bounded = owner
    return found


def _to_join(how: str, node: Any, arrays: Mapping[str, Any], dim: str) -> set[str]:
    """The names of the variables that are joined."""
    found = {name for name, array in arrays.items() if dim in (array.dimension_names or ())}
    if how == "concat":
        if found:
            return found
        known = sorted({name for array in arrays.values() for name in array.dimension_names or () if name})
        near = did_you_mean(dim, known) or f"it has {listed(known)}"
        raise ArgumentError(
            f"dim={dim!r} is no dimension of a variable of {node!r}; {near}; xzarr3.stack() joins "
            "along a new one"
        )
    if found:
        raise ArgumentError(
            f"dim={dim!r} is a dimension of {listed(sorted(found))}; xzarr3.concat() joins along it"
        )
    return (arrays.keys() - _coordinates(arrays)) | (arrays.keys() & {dim})


def _members(node: Any, asked: OpenOptions) -> dict[str, Any]:
    """The arrays directly below a group."""
    found = dict(Xzarr3DataStore(node, asked).arrays())
    if not found:
        raise ArgumentError(f"{node!r} has no arrays to join")
    for array in found.values():
        array._is_decoded = True
    return found


def _coordinates(arrays: Mapping[str, Any]) -> set[str]:
    """The names of the coordinates of a dataset: of dimensions, and those that attributes name."""
    found = {name for name, array in arrays.items() if array.dimension_names == (name,)}
    for array in arrays.values():
        for key in ("coordinates", "bounds", "grid_mapping"):
            named = array.metadata.attributes.get(key)
            found.update(named.split() if isinstance(named, str) else ())
    return found & arrays.keys()


def join_arrays(
    how: str,
    name: str,
    arrays: Sequence[Any],
    dim: str | int | None,
    *,
    axis: int = 0,
    owners: Sequence[Any] | None = None,
    mask: bool | None = None,
) -> JoinedArray:
    """Join arrays along a dimension, or along a new one at ``axis``.

    Parameters
    ----------
    how : {"concat", "stack"}
    name : str
        The name of the variable, for errors.
    arrays : sequence of Array or JoinedArray
    dim : str, int or None
    axis : int
    owners : sequence, optional
        The arrays whose bounds they are.
    mask : bool, optional
        As :func:`xzarr3.xarray.alike.alike` has it.
    """
    first = arrays[0]
    names, ndim = first.dimension_names, first.ndim
    for array in arrays:
        if array.dimension_names != names:
            raise ArgumentError(
                f"{name!r} has the dimensions {array.dimension_names} in {array.place} and {names} in "
                f"{first.place}; store one of them anew; drop_variables leaves out those of a group"
            )
    sources, attributes = alike(name, arrays, owners, mask=mask)
    if how == "concat":
        return joined(sources, _axis(first, dim), dimension_names=names, attributes=attributes)
    if not isinstance(axis, (int, np.integer)) or not -ndim - 1 <= axis <= ndim:
        raise ArgumentError(f"axis={axis}: the joined array has {ndim + 1} dimensions")
    if dim is not None and dim in (names or ()):
        raise ArgumentError(f"dim={dim!r} is a dimension of the arrays; xzarr3.concat() joins along it")
    axis %= ndim + 1
    every = names or (None,) * ndim
    new = None if names is None and dim is None else (*every[:axis], dim, *every[axis:])
    return joined(sources, axis, dimension_names=new, is_new=True, attributes=attributes)


def _axis(array: Any, dim: str | int | None) -> int:
    """The number of a dimension."""
    names = array.dimension_names or ()
    if isinstance(dim, str) and dim in names:
        return names.index(dim)
    if isinstance(dim, (int, np.integer)) and not isinstance(dim, bool) and -array.ndim <= dim < array.ndim:
        return int(dim) % array.ndim  # type: ignore[no-any-return]
    near = did_you_mean(dim, [name for name in names if name]) if isinstance(dim, str) else ""
    raise ArgumentError(
        f"dim={dim!r} is no dimension of {array.place}, which has {names or array.ndim}"
        + (f"; {near}" if near else "; xzarr3.stack() joins along a new one")
    )


# Comparing


def _check_same(name: str, column: Sequence[Any], values: Values) -> None:
    """Refuse a variable that the whole has once, unless its values are the same in all stores."""
    first = column[0]
    of_first = values.read([first])[0] if len(column) > 1 else np.empty(0)
    for start in range(1, len(column), AT_ONCE):  # They may be large: a few are in memory at a time.
        some = column[start : start + AT_ONCE]
        for array in some:
            _check_shape(name, array, first)
        for array, found in zip(some, values.read(some), strict=True):
            _check_values(name, array, first, *_comparable([array, first], [found, of_first]))


def _check_shape(name: str, array: Any, first: Any) -> None:
    one, other = ((each.shape, each.dimension_names or ()) for each in (array, first))
    if one != other:
        raise ArgumentError(
            f"variable {name!r} has shape {one[0]} and dimensions {one[1]} in {array.place}, {other[0]} and "
            f"{other[1]} in {first.place}; the whole has it once; leave it out with "
            f"drop_variables=[{name!r}]"
        )


def _check_values(name: str, array: Any, first: Any, here: AnyArray, there: AnyArray) -> None:
    is_other_kind = here.dtype.kind != there.dtype.kind
    are_labels = first.dimension_names == (name,)
    differs = np.ones(here.shape, bool) if is_other_kind else unequal(here, there, are_labels=are_labels)
    if differs.any():
        at = np.unravel_index(int(differs.argmax()), differs.shape)
        where = f"at {[*map(int, at)]} " if at else ""
        raise ArgumentError(
            f"variable {name!r} has other values in {array.place} than in {first.place}: {where}{here[at]} "
            f"and {there[at]}; the whole has it once; leave it out with drop_variables=[{name!r}]"
        )


def _check_labels(array: JoinedArray, values: AnyArray) -> None:
    """Refuse labels that are there twice or out of order, though those of each source are not."""
    labels, bounds = decoded(array, values), array.joint.bounds
    found = misplaced(labels, np.split(labels, bounds[1:-1]))
    if found is None:
        return
    at, order = found
    one = next(number for number, stop in enumerate(bounds[1:]) if at < stop)
    element = "the first" if at == bounds[one] else f"element {at - bounds[one]}"
    why = f"follows {labels[at - 1]} of the store before it" if order else "is there twice"
    raise ArgumentError(
        f"label {labels[at]} of {array.basename!r}, {element} of {array.sources[one].array.place}, {why}; "
        "give the stores in the order of their labels and without overlap, or pass check_labels=False"
    )


# Finding dimensions and order


def _equal(one: AnyArray, other: AnyArray) -> bool:
    """Whether labels are the same, but for rounding."""
    if one.shape != other.shape or one.dtype.kind != other.dtype.kind:
        return False
    return not unequal(one, other, are_labels=True).any()


def _check_sorted(array: Any, labels: AnyArray) -> None:
    """Refuse labels that give their store no place among others."""
    if not len(labels):
        raise ArgumentError(f"{array.place} has no labels; leave its store out")
    if pd.isnull(labels).any():
        found = "a label that is missing"
    elif (labels[1:] >= labels[:-1]).all() or (labels[1:] <= labels[:-1]).all():
        return
    else:
        found = "labels that neither increase nor decrease"
    raise ArgumentError(
        f"{array.place} has {found}; give the stores in their order, and concat_dim, the dimension along "
        "which they lie"
    )


def by_coords(asked: Recipe) -> JoinedGroup:
    """Join the groups of a recipe along the dimensions whose labels differ, in the order of the labels.

    Raises
    ------
    ArgumentError
        If no labels differ, or the groups do not form a block without gaps.
    """
    values, nodes = Values(), asked.sources
    members = members_of(nodes, asked.drop_variables)
    names = [name for name, array in members[0].items() if array.dimension_names == (name,)]
    columns = {name: [each[name] for each in members] for name in names}
    values.keep([*itertools.chain.from_iterable(columns.values())])
    order: dict[str, list[int]] = {}
    for name, column in columns.items():
        labels = _comparable(column, values.keep(column))
        if all(_equal(each, labels[0]) for each in labels):
            continue
        for array, each in zip(column, labels, strict=True):
            _check_sorted(array, each)
        starts, decreases = [each[0] for each in labels], any(each[0] > each[-1] for each in labels)
        places = dict(zip(sorted({*starts}, reverse=decreases), itertools.count(), strict=False))
        order[name] = [places[start] for start in starts]
    if not order and (len(nodes) > 1 or not names):
        raise ArgumentError(
            f"the {len(nodes)} stores have the same labels along {listed(names) or 'no dimension'}; give "
            "concat_dim, the dimension along which they lie"
        )
    return _block(asked, members, order or {names[0]: [0]}, values)


def _block(
    asked: Recipe, members: Sequence[Mapping[str, Any]], order: Mapping[str, Sequence[int]], values: Values
) -> JoinedGroup:
    """Join groups that form a block: each row along the last dimension, then the rows along the others.

    ``order`` has for each dimension the place of each group in it.
    """
    nodes, (*outer, last) = asked.sources, order
    rows: dict[Any, list[int]] = {}
    for at in range(len(nodes)):
        rows.setdefault(tuple(order[name][at] for name in outer), []).append(at)
    lengths = {len(row) for row in rows.values()}
    if len(lengths) > 1:
        raise ArgumentError(
            f"the stores form no block along {listed([*order])}: of the rows along {last!r}, one has "
            f"{max(lengths)} stores and one {min(lengths)}; give nested lists and concat_dim"
        )
    whole = []
    for row in rows.values():
        row.sort(key=order[last].__getitem__)
        there = tuple(nodes[at] for at in row)
        recipe = replace(asked, dim=last, sources=there)
        whole.append(join_groups(recipe, there, [members[at] for at in row], values))
    if not outer:
        return whole[0]
    left = {name: [order[name][row[0]] for row in rows.values()] for name in outer}
    return _block(replace(asked, sources=tuple(whole)), members_of(whole, ()), left, values)
