"""Finds the stored arrays that a dask array reads, and tells whether two of them are the same array.

A task may hold its source as an argument of a layer, inside a wrapper of xarray, in a task of an optimized
graph, or as a variable of the reading function. All objects that are in memory are searched. The search reads
nothing from a store, pickles nothing and makes no tasks.
"""

from __future__ import annotations

import gc
import hashlib
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from types import BuiltinFunctionType, CellType, FunctionType, ModuleType
from typing import Any, TypeAlias

import numpy as np
from dask._task_spec import Task, TaskRef
from dask.base import tokenize

from xzarr3.arrays import Array
from xzarr3.errors import NodeNotFoundError, Xzarr3Error
from xzarr3.model.metadata import ArrayMetadata
from xzarr3.nodes.find import find_node
from xzarr3.nodes.freshness import MOST_STAMPED, tells_changes
from xzarr3.nodes.node import locate_node
from xzarr3.stores import Store

Place: TypeAlias = "tuple[object, str]"
"""Location of an array: equal for all its handles, even if they were opened in different hierarchies."""

BEHIND = "behind"
"""First item of the identity of a store for values past the end of arrays, which no reader reads yet."""

_PLAIN = frozenset(
    {bool, int, float, complex, str, bytes, slice, range, type(None), type(...), np.ndarray, TaskRef}
)
_CLOSED_TYPES = (np.generic, np.dtype, type, ModuleType, BuiltinFunctionType, Store)
_CLOSED_PACKAGES = frozenset(
    {"_thread", "asyncio", "concurrent", "distributed", "fsspec", "logging", "numpy", "obstore", "pandas"}
    | {"threading", "tornado", "weakref"}
)
_AT_ONCE = 2**12  # Keys whose stamps are asked for together.
_LONG = 1000  # A longer sequence with integers at both ends is taken for block lengths, and not searched.


class ReadLocations:
    """Locations of arrays, and of the arrays that tasks read. Each store and layer is searched once.

    Examples
    --------
    >>> from xzarr3 import MemoryStore, ReadOnlyStore, create_array, from_zarr, open_array
    >>> store = MemoryStore()
    >>> array = create_array(store, "a", shape=3, dtype="i4")
    >>> places = ReadLocations()
    >>> places.of(array) == places.of(open_array(ReadOnlyStore(store), "a"))
    True
    >>> places.read_in((from_zarr(array) + 1).dask.layers) == {places.of(array)}
    True
    """

    def __init__(self) -> None:
        self._identities: dict[int, tuple[Store, object]] = {}
        self._resolved: dict[tuple[str, str], str] = {}
        # Holds the searched objects, so that no other object gets the same id().
        self._searched: dict[int, tuple[object, frozenset[Place]]] = {}

    def of(self, array: Array) -> Place:
        """Location of an array."""
        return self.at(array.store, array.path)

    def at(self, store: Store, path: str) -> Place:
        """Location of a node: equal for stores of different parts of a directory, and for cached stores."""
        match self._identity(store):
            case ("LocalStore", str(root)):
                return self._local(root, path)
            case ("ObjectStore" | "FsspecStore" as kind, str(one), str(other)):
                top, rest = (one, other) if kind == "FsspecStore" else (other, one)
                return (kind, rest), "/".join(part for part in (top.strip("/"), path) if part)
            case identity:
                return identity, path

    def _identity(self, store: Store) -> object:
        known = self._identities.get(id(store))
        if known is None:
            found = store.identity
            while isinstance(found, tuple) and len(found) == 2 and found[0] != BEHIND:
                if not isinstance(found[1], tuple):
                    break
                found = found[1]
            known = self._identities[id(store)] = store, found
        return known[1]

    def _local(self, root: str, path: str) -> Place:
        known = self._resolved.get((root, path))
        if known is None:
            known = self._resolved[root, path] = os.path.realpath(os.path.join(root, path))
        return "LocalStore", known

    def read_in(self, layers: Mapping[str, object]) -> set[Place]:
        """Locations of all stored arrays that layers refer to.

        All variables that a function can see are searched, though the function need not use them.
        """
        return set[Place]().union(*map(self._read_by, layers.values()))

    def _read_by(self, layer: object) -> frozenset[Place]:
        known = self._searched.get(id(layer))
        if known is None:
            known = self._searched[id(layer)] = layer, frozenset(self._found_in(layer))
        return known[1]

    def _found_in(self, value: object) -> Iterator[Place]:
        for each in _arrays_in(value):
            if isinstance(each, Array):
                yield self.of(each)
            elif (found := _located(each)) is not None:
                yield self.at(*found)


def reads_below(sources: Sequence[Any], store: Store, path: str) -> list[bool]:
    """For each dask array, whether it is known to read from a node or from nodes below it."""
    places = ReadLocations()
    where, top = places.at(store, path)

    def is_below(place: Place) -> bool:
        return place[0] == where and (
            not top or place[1] == top or place[1].startswith(f"{top.rstrip('/')}/")
        )

    return [any(map(is_below, places.read_in(source.dask.layers))) for source in sources]


def stamps_of_others(value: Any) -> list[str]:
    """Stamps that change with the data of stored arrays, for changes that task names do not show.

    For an array of this library with up to about a thousand stored units, in a store that can tell changes,
    the name of its dask array changes with the data; it gets no stamp. For a larger array, the stamp is made
    from every stored unit. For tasks that read arrays of zarr-python, xarray derives names from the
    modification time of the top directory, which most changes do not alter; those arrays always get a stamp.
    If changes cannot be detected, the stamp is random and never recurs.

    Examples
    --------
    >>> from xzarr3 import MemoryStore, create_array, from_zarr
    >>> stamps_of_others([1, "a", create_array(MemoryStore(), shape=3, dtype="i4")])
    []
    """
    found = []
    for each in _arrays_in(value):
        if isinstance(each, Array):
            found.append(_stamp_of_units(each))
        else:
            place = _located(each)
            opened = None if place is None else array_at(*place)
            found += [_unknown()] if opened is None else [tokenize(opened), _stamp_of_units(opened)]
    return sorted({stamp for stamp in found if stamp is not None})


def _stamp_of_units(array: Array) -> str | None:
    """A stamp of all stored units of an array; None if the name of its dask array changes with them."""
    store = array.engine.store
    if not (tells_changes(array) and store.listable):
        return _unknown()
    if array.nshards <= MOST_STAMPED:
        return None
    digest = hashlib.blake2b(digest_size=16)
    keys = sorted(store.list_prefix(array.engine.prefix))
    for first in range(0, len(keys), _AT_ONCE):
        some = keys[first : first + _AT_ONCE]
        digest.update(repr((some, store.versions(some))).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _unknown() -> str:
    return uuid.uuid4().hex


def _located(array: Any) -> tuple[Store, str] | None:
    """The store and the path of a zarr-python array; None if its store cannot be opened here."""
    try:
        return locate_node(array, "")
    except (TypeError, Xzarr3Error):
        return None


def array_at(store: Store, path: str, *, read_only: bool = True) -> Array:
    """Open the array at a path."""
    found = find_node(store, path)
    if found is None or not isinstance(found[1], ArrayMetadata):
        raise NodeNotFoundError(f"array '/{path}' in {store} is no longer there")
    return Array(store, path, found[1], format=found[0], read_only=read_only)


def _arrays_in(value: Any) -> Iterator[Any]:
    """All stored arrays, of this library and of zarr-python, that an object refers to."""
    seen: dict[int, object] = {}  # Holds the objects, so that no other object gets the same id().
    left = [value]
    while left:
        value = left.pop()
        kind = type(value)
        if id(value) in seen or (kind in _PLAIN and not _holds_objects(value)):
            continue
        seen[id(value)] = value
        if kind is tuple or kind is list:
            lengths = len(value) > _LONG and type(value[0]) is type(value[-1]) is int
            if not (lengths or _PLAIN.issuperset(map(type, value))):
                left += value
        elif kind is dict:
            left += list(value.values())
        elif kind is Task:
            left += (value.func, value.args, value.kwargs)
        elif is_array(value):
            yield value
        elif isinstance(value, dict):  # No other mapping: iterating over a layer makes all its tasks.
            left += list(value.values())
        elif isinstance(value, (list, tuple, set, frozenset)):
            left += value
        elif not isinstance(value, _CLOSED_TYPES):
            left += _held_by(value)


def is_array(value: object) -> bool:
    """Whether this is a stored array of this library or of zarr-python."""
    return isinstance(value, Array) or _is_of_zarr_python(value)


def _is_of_zarr_python(value: object) -> bool:
    return type(value).__module__.startswith("zarr.") and hasattr(value, "store_path")


def _holds_objects(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.hasobject


def _held_by(value: Any) -> Iterator[object]:
    """The objects that an object refers to; for a function, its defaults, closure and used globals.

    Globals that are no arrays count only if the function is pickled by value.
    """
    if isinstance(value, FunctionType):
        yield from (value.__defaults__, value.__kwdefaults__, *map(_content, value.__closure__ or ()))
        used = [value.__globals__.get(name) for name in value.__code__.co_names]
        travels = "<" in value.__qualname__ or value.__module__ == "__main__"
        yield from used if travels else filter(is_array, used)
    elif isinstance(value, np.ndarray):
        yield value.tolist()
    elif type(value).__module__.partition(".")[0] not in _CLOSED_PACKAGES:
        yield from gc.get_referents(value)


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # empty cell
        return None
