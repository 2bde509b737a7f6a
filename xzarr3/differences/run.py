"""``diff``: compares the nodes of two stores in turn."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from xzarr3.api import open as open_node
from xzarr3.arrays import Array
from xzarr3.differences.documents import compare_documents
from xzarr3.differences.report import Diff, FieldDifference, Problem
from xzarr3.differences.values import compare_values
from xzarr3.errors import MetadataError, SelectionError, short_traceback
from xzarr3.groups import Group
from xzarr3.io.selection import BasicSelection, DimSelection, basic_selection
from xzarr3.progress import Asked, Progress, check_asked
from xzarr3.quantities import check_switches, integer
from xzarr3.stores.open import StoreLike
from xzarr3.walk import looked_at, nodes_of


@short_traceback
def diff(
    a: StoreLike,
    b: StoreLike,
    path: str = "",
    *,
    b_path: str | None = None,
    selection: BasicSelection = ...,
    encoding: bool = True,
    attributes: bool = True,
    values: bool = True,
    first: int = 5,
    threads: int | None = None,
    progress: Asked | None = None,
    a_options: Mapping[str, Any] | None = None,
    b_options: Mapping[str, Any] | None = None,
) -> Diff:
    """Compare an array, or a group with all that is below it, in two stores.

    Compared are which nodes there are, the fields of their documents, the attributes, and the elements. The
    two stores may have any formats, chunks and codecs: fields are compared in the same words for all formats.
    Elements are compared exactly, as they are stored; NaN equals NaN, whatever its bits, and -0.0 equals 0.0.
    They are compared with elements of their kind: integers with integers of any width, floats with floats,
    but not packed integers with unpacked floats, nor times with times of another unit, nor records with
    those of other fields, and it says so.
    Fill values are fields, in which -0.0 and 0.0 differ. Nodes are as readers find them: where there are
    consolidated metadata, these are compared (:func:`xzarr3.check` compares them with the documents). If
    shapes differ, the elements that both arrays have are compared. Memory is bounded: tiles of both arrays
    are read, several at a time, which take 512 MiB together, or what the option ``memory_limit`` says
    (:class:`xzarr3.set_options`), but at least one chunk of each.

    Parameters
    ----------
    a, b : path, URL or Store
    path : str
        Path of the array or group; by default the root.
    b_path : str, optional
        Its path in ``b``, if it is another one.
    selection : int, slice, Ellipsis or a tuple of these
        Of an array, the elements to compare.
    encoding : bool
        Whether to compare how arrays are stored: formats, chunks, shards, codecs and forms of keys.
    attributes : bool
        Whether to compare attributes.
    values : bool
        Whether to compare elements.
    first : int
        How many differences of each array are kept with their index and both values.
    threads : int, optional
        Most tiles that are read at a time.
    progress : bool or callable, optional
        Show a bar of the elements compared, or call ``progress(done, total)``.
    a_options, b_options : mapping, optional
        Further options of the stores; see :func:`xzarr3.open_store`.

    Returns
    -------
    Diff
        Its ``ok`` tells whether nothing differs; printing it shows the differences by node.

    Raises
    ------
    NodeNotFoundError
        If there is no array or group at the path in one of the stores.
    SelectionError
        If a selection is given for a group, or does not fit the array.
    StoreError
        If a store cannot be read.

    Examples
    --------
    >>> import xzarr3
    >>> one, other = xzarr3.group(), xzarr3.group(zarr_format=2)
    >>> old = one.create_array("sst", data=[[1.5, 2.5]], attributes={"units": "K"})
    >>> new = other.create_array("sst", data=[[1.5, 3.5]], attributes={"units": "degC"})
    >>> found = xzarr3.diff(one.store, other.store, encoding=False)
    >>> [each.field for each in found.fields], found.values[0].first
    (['attributes.units'], (Element(at=(0, 1), a=2.5, b=3.5),))
    """
    check_asked(progress or False)
    check_switches(encoding=encoding, attributes=attributes, values=values)
    first = integer("first", first)
    with looked_at(a, a_options) as one_store, looked_at(b, b_options) as other_store:
        one, other = open_node(one_store, path), open_node(other_store, path if b_path is None else b_path)
        if selection is not ... and (isinstance(one, Group) or isinstance(other, Group)):
            raise SelectionError("a selection of a group; accepted: the path of an array with a selection")
        found, arrays = _nodes(one, other, {"encoding": encoding, "attribute": attributes})
        chosen = [_chosen(*pair, selection) for pair in arrays.values()]
        if not values:
            return found
        total = sum(math.prod(part.count for part in each) for each in chosen)
        with Progress(progress or False, total, "comparing", "values") as shown:
            compare = partial(compare_values, first=first, threads=threads, advance=shown.advance)
            compared = [
                compare(path, *pair, each) for (path, pair), each in zip(arrays.items(), chosen, strict=True)
            ]
        unread = (Problem(each.path, problem) for each in compared for problem in each.problems)
        return replace(
            found,
            values=tuple(each for each in compared if each.count),
            problems=(*found.problems, *unread),
            compared=sum(each.compared for each in compared),
        )


def _nodes(
    a: Array | Group, b: Array | Group, kinds: Mapping[str, bool]
) -> tuple[Diff, dict[str, tuple[Array, Array]]]:
    """What the nodes and their documents do not have in common, and the arrays whose elements to compare.

    ``kinds`` has whether differences of a kind are wanted; those of meaning always are.
    """
    below = nodes_of(a), nodes_of(b)
    only: tuple[list[str], list[str]] = [], []
    fields, problems, nodes = list[FieldDifference](), list[Problem](), 0
    arrays = dict[str, tuple[Array, Array]]()
    for path in dict.fromkeys((*below[0], *below[1])):
        one, other = (each.get(path) for each in below)
        for side, node in (("a", one), ("b", other)):
            if isinstance(node, MetadataError):
                problems.append(Problem(path, f"in {side}: {node}"))
        if one is None or other is None:
            noted = only[0 if other is None else 1]
            if not (noted and path.startswith(f"{noted[-1]}/")):  # The group above it is not noted.
                noted.append(path)
        elif not (isinstance(one, MetadataError) or isinstance(other, MetadataError)):
            nodes += 1
            fields += [each for each in compare_documents(path, one, other) if kinds.get(each.kind, True)]
            if isinstance(one, Array) and isinstance(other, Array) and one.ndim == other.ndim:
                arrays[path] = one, other
    one_name, other_name = (f"'{each.name}' in {each.store}" for each in (a, b))
    told = tuple(only[0]), tuple(only[1]), tuple(fields)
    return Diff(one_name, other_name, *told, problems=tuple(problems), nodes=nodes), arrays


def _chosen(a: Array, b: Array, selection: BasicSelection) -> tuple[DimSelection, ...]:
    """The elements to compare, which both arrays have.

    Raises
    ------
    SelectionError
        If one of the arrays lacks some of the selected elements.
    """
    if selection is ...:
        return basic_selection(..., tuple(map(min, a.shape, b.shape)))
    chosen = basic_selection(selection, a.shape)
    for axis, (part, length) in enumerate(zip(chosen, b.shape, strict=True)):
        if part.stop > length:
            raise SelectionError(
                f"axis {axis}: the selection ends at {part.stop}, and '{b.name}' of {b.store} has length "
                f"{length}; choose elements that both arrays have"
            )
    return chosen
