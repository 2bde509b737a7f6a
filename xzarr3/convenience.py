"""One call for common work: ``save`` and ``load`` as in numpy, ``tree``, consolidated metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from xzarr3._types import AnyArray
from xzarr3.api import create_array, open, open_group, place_for_new
from xzarr3.arrays import Array
from xzarr3.errors import ArgumentError, ArgumentTypeError, short_traceback
from xzarr3.formats import ZarrFormat
from xzarr3.groups import Group
from xzarr3.new_array import make_nodes
from xzarr3.nodes.node import locate_node
from xzarr3.stores import Store, StoreLike
from xzarr3.stores.open import was_made


def save(
    store: StoreLike,
    *arrays: Any,
    path: str = "",
    overwrite: bool = False,
    zarr_format: ZarrFormat | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **named: Any,
) -> None:
    """Save one array, or several as a group, like :func:`numpy.save` and :func:`numpy.savez`.

    Parameters
    ----------
    store : path, URL or Store
    *arrays : array_like
        One array is saved as an array at ``path``. Several are saved in a group, as ``arr_0``, ``arr_1``, ...
    path : str
        Path in the hierarchy; the root by default.
    overwrite : bool
        Replace what is there, with all nodes below it.
    zarr_format : {3, 2, "3-draft"}, optional
    storage_options : mapping, optional
        Further options of the store; see :func:`xzarr3.open_store`.
    **named : array_like
        Arrays to save in a group, by name.

    Raises
    ------
    ValueError
        If no array is given.
    NodeExistsError
        If there is a node already and ``overwrite`` is not set.

    Examples
    --------
    >>> import xzarr3
    >>> store = xzarr3.MemoryStore()
    >>> xzarr3.save(store, sst=[280.5, 281.5], mask=[True, False])
    >>> xzarr3.load(store)["sst"]
    array([280.5, 281.5])
    """
    options: dict[str, Any] = {"zarr_format": zarr_format, "storage_options": storage_options}
    if len(arrays) == 1 and not named:
        save_array(store, arrays[0], path=path, overwrite=overwrite, **options)
    else:
        save_group(store, *arrays, path=path, overwrite=overwrite, **options, **named)


def save_array(store: StoreLike, arr: Any, *, path: str = "", **options: Any) -> None:
    """Save an array; ``options`` are those of :func:`xzarr3.create_array`, such as ``overwrite``.

    Raises
    ------
    NodeExistsError
        If there is a node already and ``overwrite`` is not set.

    Examples
    --------
    >>> import xzarr3
    >>> store = xzarr3.MemoryStore()
    >>> xzarr3.save_array(store, [1, 2, 3], path="numbers", chunks=2)
    >>> xzarr3.load(store, "numbers")
    array([1, 2, 3])
    """
    _complete(create_array(store, path, data=arr, **options).store, store)


def _complete(opened: Store, store: StoreLike) -> None:
    """Write what is pending in a store that was opened for a call: a zip is complete only after this."""
    if was_made(opened, store):
        opened.close()


@short_traceback
def save_group(
    store: StoreLike,
    *arrays: Any,
    path: str = "",
    overwrite: bool = False,
    zarr_format: ZarrFormat | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **named: Any,
) -> None:
    """Save arrays in a new group; parameters and errors as for :func:`save`.

    With ``overwrite``, what is there stays until all arrays are stored, and after an error.

    Examples
    --------
    >>> import xzarr3
    >>> store = xzarr3.MemoryStore()
    >>> xzarr3.save_group(store, [1, 2], mask=[True, False])
    >>> sorted(xzarr3.open_group(store))
    ['arr_0', 'mask']
    """
    values = {**{f"arr_{at}": each for at, each in enumerate(arrays)}, **named}
    if not values:
        raise ArgumentError("no array to save; pass one or more, by position or by name")
    opened, normal = locate_node(store, path, storage_options, mode="a")
    format, normal, _ = place_for_new(opened, normal, zarr_format)
    make_nodes(opened, format, normal, values, overwrite=overwrite)
    _complete(opened, store)


@short_traceback
def load(
    store: StoreLike,
    path: str = "",
    *,
    zarr_format: ZarrFormat | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> AnyArray | dict[str, AnyArray]:
    """Read an array, or all arrays directly below a group, into memory.

    Parameters
    ----------
    store : path, URL or Store
    path : str
        Path of the node in its hierarchy; the root by default.
    zarr_format : {3, 2, "3-draft"}, optional
    storage_options : mapping, optional
        Further options of the store; see :func:`xzarr3.open_store`.

    Returns
    -------
    ndarray, or dict of ndarray by name
        The dictionary is that of a group.

    Raises
    ------
    NodeNotFoundError
        If there is no store or no node.

    Examples
    --------
    >>> import xzarr3
    >>> store = xzarr3.MemoryStore()
    >>> xzarr3.save(store, [1, 2], [3.5])
    >>> xzarr3.load(store)
    {'arr_0': array([1, 2]), 'arr_1': array([3.5])}
    """
    node = open(store, path, zarr_format=zarr_format, storage_options=storage_options)
    if isinstance(node, Array):
        return node.get()
    return {name: each.get() for name, each in node.arrays()}


@short_traceback
def tree(group: StoreLike | Group, path: str = "", **options: Any) -> Any:
    """The nodes below a group as text, a line for each; see :meth:`Group.tree`.

    Parameters
    ----------
    group : Group, or path, URL or Store
    path : str
        Path of the group in its hierarchy; the root by default.
    **options
        Options of :func:`xzarr3.open_group`, if a store is given.

    Examples
    --------
    >>> import xzarr3
    >>> store = xzarr3.MemoryStore()
    >>> _ = xzarr3.create_array(store, "ocean/sst", shape=4, dtype="int16")
    >>> print(xzarr3.tree(store))
    /
    └── ocean/
        └── sst (4) int16
    """
    if isinstance(group, Group):
        return group.get_group(path).tree()
    return open_group(group, path, **options).tree()


@short_traceback
def open_consolidated(
    store: StoreLike, path: str = "", *, use_consolidated: Literal[True] = True, **options: Any
) -> Group:
    """Open a group from its consolidated metadata; ``options`` are those of :func:`xzarr3.open_group`.

    Raises
    ------
    MetadataError
        If the group has no consolidated metadata.

    Examples
    --------
    >>> import xzarr3
    >>> store = xzarr3.MemoryStore()
    >>> _ = xzarr3.create_array(store, "sst", shape=4, dtype="int16")
    >>> _ = xzarr3.consolidate_metadata(store)
    >>> xzarr3.open_consolidated(store)["sst"]
    <xzarr3.Array /sst shape=(4,) dtype=int16 chunks=(4,)>
    """
    if use_consolidated is not True:
        raise ArgumentTypeError(f"use_consolidated={use_consolidated!r}; accepted: True, or use open_group()")
    return open_group(store, path, use_consolidated=True, **options)


@short_traceback
def consolidate_metadata(
    store: StoreLike,
    path: str = "",
    *,
    zarr_format: ZarrFormat | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Group:
    """Copy the documents of all nodes below a group into its consolidated metadata.

    The copies go into the group's document, or into ``.zmetadata`` in version 2. One request then opens the
    whole hierarchy. Returns the group, opened from the new document.

    Examples
    --------
    >>> import xzarr3
    >>> store = xzarr3.MemoryStore()
    >>> _ = xzarr3.create_array(store, "sst", shape=4, dtype="int16")
    >>> xzarr3.consolidate_metadata(store).consolidated
    True
    """
    options: dict[str, Any] = {"zarr_format": zarr_format, "storage_options": storage_options}
    group = open_group(store, path, mode="r+", use_consolidated=False, **options).consolidate()
    _complete(group.store, store)
    return group
