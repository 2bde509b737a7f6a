"""Finds the stored arrays that a dask array reads, and tells whether two of them are the same array.

Layers are asked for their arguments, and layers of tasks for those of each task. An argument may hold an
array inside a wrapper of xarray, and a function as a variable that it sees. The search reads nothing from a
store, pickles nothing and makes no tasks.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np
from dask._task_spec import Alias, Task, TaskRef
from dask.blockwise import Blockwise
from dask.highlevelgraph import MaterializedLayer

from xzarr3.arrays import Array
from xzarr3.copying.location import Place, is_within, location
from xzarr3.errors import NodeNotFoundError, Xzarr3Error
from xzarr3.model.metadata import ArrayMetadata
from xzarr3.nodes.find import find_node
from xzarr3.nodes.node import locate_node
from xzarr3.stores import Store

_PLAIN = (
    *(bool, int, float, complex, str, bytes, slice, range, type(None), type(...), TaskRef, Alias),
    *(np.generic, np.dtype, type, ModuleType, BuiltinFunctionType, Store),
)
_CLOSED_PACKAGES = frozenset(
    {"_thread", "asyncio", "concurrent", "distributed", "fsspec", "logging", "numpy", "obstore", "pandas"}
    | {"threading", "tornado", "weakref"}
)
_SIMPLE = frozenset(_PLAIN)


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
        self._resolved = cache(os.path.realpath)
        # Holds the searched objects, so that no other object gets the same id().
        self._searched: dict[int, tuple[object, frozenset[Place]]] = {}

    def of(self, array: Array) -> Place:
        """Location of an array."""
        return self.at(array.store, array.path)

    def at(self, store: Store, path: str) -> Place:
        """Location of a node; see :func:`~xzarr3.copying.location.location`."""
        return location(store, path, self._resolved)

    def read_in(self, layers: Mapping[str, object]) -> set[Place]:
        """Locations of all stored arrays that layers refer to.

        All variables that a function can see are searched, though the function need not use them.
        """
        return set[Place]().union(*map(self._read_by, layers.values()))

    def _read_by(self, layer: object) -> frozenset[Place]:
        known = self._searched.get(id(layer))
        if known is None:
            nodes = map(_located, _arrays_in(_arguments(layer)))
            known = layer, frozenset(self.at(*node) for node in nodes if node is not None)
            self._searched[id(layer)] = known
        return known[1]


def reads_below(sources: Sequence[Any], store: Store, path: str) -> list[bool]:
    """For each dask array, whether it is known to read from a node or from nodes below it."""
    places = ReadLocations()
    where = places.at(store, path)
    return [any(is_within(at, where) for at in places.read_in(source.dask.layers)) for source in sources]


def _located(array: Any) -> tuple[Store, str] | None:
    """The store and the path of an array; None if the store of zarr-python cannot be opened here."""
    if isinstance(array, Array):
        return array.store, array.path
    try:
        return locate_node(array, "")
    except (TypeError, Xzarr3Error):
        return None


def array_of(found: Any) -> Array:
    """The array of this library for one of it, or of zarr-python."""
    if isinstance(found, Array):
        return found
    store, path = locate_node(found, "")
    node = find_node(store, path)
    if node is None or not isinstance(node[1], ArrayMetadata):
        raise NodeNotFoundError(f"array '/{path}' in {store} is no longer there")
    return Array(store, path, node[1], format=node[0], read_only=store.read_only)


def _arguments(layer: Any) -> Iterable[object]:
    """What the tasks of a layer hold."""
    if isinstance(layer, Blockwise):
        return [layer.task, *(each for each, index in layer.indices if index is None), layer.io_deps]
    if isinstance(layer, MaterializedLayer) and layer.is_materialized():
        return layer.mapping.values()
    return [*vars(layer).values()]


@cache
def _kind(of: Any) -> type | None:
    """How objects of a type are searched; None if they hold no array."""
    for kind in (Task, list, tuple, set, frozenset, dict, np.ndarray):
        if issubclass(of, kind):
            return kind
    closed = issubclass(of, _PLAIN) or of.__module__.partition(".")[0] in _CLOSED_PACKAGES
    return None if closed else object


def _arrays_in(values: Iterable[object]) -> Iterator[Any]:
    """All stored arrays, of this library and of zarr-python, that values hold."""
    seen: dict[int, object] = {}  # Holds the objects, so that no other object gets the same id().
    left: list[Any] = [*values]
    while left:
        value = left.pop()
        of: Any = type(value)
        kind = _kind(of)
        if kind is Task:  # Of which there may be very many, and each is met once.
            left += (value.func, *value.args, *value.kwargs.values())
        elif kind is not None and id(value) not in seen:
            seen[id(value)] = value
            if is_array(value):
                yield value
            elif kind is dict:  # No other mapping: iterating over a layer makes all its tasks.
                left += value.values()
            elif kind is object or kind is np.ndarray:
                left += _held_by(value)
            elif not _SIMPLE.issuperset(map(type, value)):
                left += value


def is_array(value: object) -> bool:
    """Whether this is a stored array of this library or of zarr-python."""
    if isinstance(value, Array):
        return True
    return type(value).__module__.startswith("zarr.") and hasattr(value, "store_path")


def _held_by(value: Any) -> list[object]:
    """The objects that an object refers to; for a function, its defaults, closure and used globals.

    Globals that are no arrays count only if the function is pickled by value.
    """
    if isinstance(value, FunctionType):
        used = [value.__globals__.get(name) for name in value.__code__.co_names]
        travels = "<" in value.__qualname__ or value.__module__ == "__main__"
        own = (value.__defaults__, value.__kwdefaults__, value.__closure__)
        return [*own, *(used if travels else filter(is_array, used))]
    if isinstance(value, np.ndarray):
        return [value.tolist()] if value.dtype.hasobject else []
    return gc.get_referents(value)
