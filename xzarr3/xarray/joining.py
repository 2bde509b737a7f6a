"""Many stores as one: :func:`concat`, :func:`stack` and :func:`open_mfdataset`.

Datasets are joined variable by variable. Variables with the dimension are joined along it; the others, which
the whole has once, are compared with those of the first store, as an append compares them. Nothing else is
read, and nothing is copied.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from msgspec.structs import replace

from xzarr3.api import open as open_node
from xzarr3.arrays import Array
from xzarr3.errors import ArgumentError, ArgumentTypeError, MetadataError, short_traceback
from xzarr3.groups import Group
from xzarr3.joined.array import JoinedArray
from xzarr3.joined.document import DEEPEST, Place, Recipe, is_document, read, with_places
from xzarr3.joined.group import JoinedGroup
from xzarr3.nodes.node import normal_path
from xzarr3.options import Missing
from xzarr3.parallel import parallel_map
from xzarr3.quantities import check_switches
from xzarr3.readable import ReadableArray
from xzarr3.stores import StoreLike, open_store
from xzarr3.xarray.combining import AT_ONCE, Values, join_arrays, join_groups, members_of
from xzarr3.xarray.variables import names_of

Joinable: TypeAlias = "StoreLike | Array | Group | JoinedArray | JoinedGroup"
Joined: TypeAlias = JoinedArray | JoinedGroup


@short_traceback
def concat(
    sources: Sequence[Joinable],
    dim: str | int,
    *,
    path: str = "",
    drop_variables: str | Iterable[str] = (),
    check_labels: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    missing: Missing | None = None,
) -> Joined:
    """Join arrays or datasets along one of their dimensions, without a copy and without dask.

    The result is read as an array or a group is: it reads what a selection touches, from any stores, formats,
    codecs and chunks. Data types may differ if one of them holds all values exactly.

    Datasets are joined variable by variable. Scales, offsets, marks for missing values and units of time that
    differ are converted where that is exact; times in floating point numbers, to a microsecond. Variables
    without the dimension have the same values in all stores; they are compared now, and taken from the first
    one.

    Parameters
    ----------
    sources : sequence of path, URL, Store, Array, Group, JoinedArray or JoinedGroup
        All are arrays, or all are groups.
    dim : str or int
        The dimension: its name, or for arrays its number.
    path : str
        Path of the node in each store; the root by default.
    drop_variables : str or iterable of str
        Arrays of the groups to leave out.
    check_labels : bool
        Refuse labels along the dimension that are there twice or out of order, though those of each store are
        not.
    storage_options : mapping, optional
        Further options of the stores; see :func:`xzarr3.open_store`.
    missing : {"fill", "warn", "error"}, optional
        What reads do about absent chunks; see :func:`xzarr3.open`.

    Returns
    -------
    JoinedArray or JoinedGroup

    Raises
    ------
    ArgumentError
        If they do not fit; the error names two places that differ.
    NodeNotFoundError, MetadataError, StoreError
        As :func:`xzarr3.open`.

    Examples
    --------
    >>> import numpy as np, xzarr3
    >>> years = [xzarr3.create_array(xzarr3.MemoryStore(), data=np.arange(3) + year, dimension_names=["time"])
    ...          for year in (2020, 2030)]
    >>> both = xzarr3.concat(years, "time")
    >>> both[2:5], both.read_chunk_sizes
    (array([2022, 2030, 2031]), ((3, 3),))
    """
    check_switches(check_labels=check_labels)
    given, dropped = _given(sources), names_of(drop_variables)
    recipe = Recipe(join="concat", dim=dim, sources=given, drop_variables=dropped, check_labels=check_labels)
    return join(recipe, path, storage_options, missing)


@short_traceback
def stack(
    sources: Sequence[Joinable],
    dim: str | None = None,
    *,
    axis: int = 0,
    path: str = "",
    drop_variables: str | Iterable[str] = (),
    storage_options: Mapping[str, Any] | None = None,
    missing: Missing | None = None,
) -> Joined:
    """Join arrays or datasets of the same shape along a new dimension; see :func:`concat`.

    Parameters
    ----------
    sources : sequence of path, URL, Store, Array, Group, JoinedArray or JoinedGroup
    dim : str, optional
        Name of the new dimension; datasets need one.
    axis : int
        Where the new dimension is. In datasets it is the first of each data variable; coordinates are the
        same in all stores.
    path, drop_variables, storage_options, missing
        See :func:`concat`.

    Examples
    --------
    >>> import numpy as np, xzarr3
    >>> runs = [xzarr3.array(np.full((2, 3), run)) for run in range(4)]
    >>> xzarr3.stack(runs, "run")[1:3, 0]
    array([[1, 1, 1],
           [2, 2, 2]])
    """
    given, dropped = _given(sources), names_of(drop_variables)
    recipe = Recipe(join="stack", dim=dim, axis=axis, sources=given, drop_variables=dropped)
    return join(recipe, path, storage_options, missing)


def _given(sources: object) -> tuple[Any, ...]:
    if isinstance(sources, (str, os.PathLike, Mapping)) or not isinstance(sources, Iterable):
        raise ArgumentTypeError(f"not a sequence of stores: {type(sources).__name__}; give a list")
    given = tuple(sources)
    if not given:
        raise ArgumentError("no sources to join; give at least one")
    return given


def open_joined(
    path: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    missing: Missing | None = None,
    above: tuple[str, ...] = (),
) -> Joined:
    """Join again what a document of :meth:`JoinedGroup.to_json` names.

    ``above`` are the documents that lead to it.

    Raises
    ------
    MetadataError
        If the document is not valid, or names itself.
    """
    above = (*above, os.fspath(path))
    if len(above) > DEEPEST or above[-1] in above[:-1]:
        raise MetadataError(
            "documents of joined stores name one another without end", path=above[0], field="sources",
            found=above[-1], accepted=f"at most {DEEPEST} documents, one in another",
        )  # fmt: skip
    return _from_recipe(read(path, storage_options), storage_options, missing, above)


def _from_recipe(
    recipe: Recipe, storage_options: Mapping[str, Any] | None, missing: Missing | None, above: tuple[str, ...]
) -> Joined:
    def joined_or_place(source: Recipe | Place) -> Any:
        if isinstance(source, Recipe):
            return _from_recipe(source, storage_options, missing, above)
        if is_document(source.store):
            return below(open_joined(source.store, storage_options, missing, above), source.path)
        return source

    sources = tuple(map(joined_or_place, recipe.sources))
    return join(replace(recipe, sources=sources), "", storage_options, missing)


def opened(
    sources: Iterable[Any],
    path: str,
    storage_options: Mapping[str, Any] | None,
    missing: Missing | None,
    use_consolidated: bool | None = None,
) -> list[Any]:
    """The nodes of all sources; those that have to be waited for are opened at once."""

    def located(source: Any) -> Any:
        if isinstance(source, (ReadableArray, Group, JoinedGroup)) or is_document(source):
            return source
        place, below = (source.store, source.path) if isinstance(source, Place) else (source, path)
        return place if is_document(place) else (open_store(place, storage_options), below)

    def found_in(source: Any) -> Any:
        if isinstance(source, tuple):
            return open_node(*source, missing=missing, use_consolidated=use_consolidated)
        if is_document(source):
            source = open_joined(source, storage_options, missing)
        return below(source, path)

    found = [*map(located, sources)]
    at_once = max((each[0].concurrency for each in found if isinstance(each, tuple)), default=1)
    return parallel_map(found_in, found, min(at_once, AT_ONCE))


def below(node: Any, path: str) -> Any:
    """The node at a path below a group."""
    if path.strip("/") and isinstance(node, ReadableArray):
        raise ArgumentError(f"path={path!r} in {node!r}, which is an array; path names a node in a group")
    return node[path.strip("/")] if path.strip("/") else node


def join(
    recipe: Recipe,
    path: str = "",
    storage_options: Mapping[str, Any] | None = None,
    missing: Missing | None = None,
) -> Joined:
    """Carry out a recipe, as :func:`concat` and :func:`stack` do with their arguments."""
    nodes = opened(recipe.sources, normal_path(path), storage_options, missing)
    arrays = [node for node in nodes if isinstance(node, ReadableArray)]
    if arrays and len(arrays) < len(nodes):
        group = next(node for node in nodes if not isinstance(node, ReadableArray))
        raise ArgumentError(
            f"{arrays[0]!r} is an array, {group!r} a group; join arrays, or groups; path names a node"
        )
    if not arrays:
        return join_groups(recipe, nodes, members_of(nodes, recipe.drop_variables), Values())
    found = join_arrays(recipe.join, arrays[0].basename, arrays, recipe.dim, axis=recipe.axis, mask=False)
    found.recipe = with_places(recipe, nodes)
    return found
