"""Which arrays in stores a dask array is made of, and whether two of them are the same one.

Tasks hold what they read in many ways: as an argument of a layer, in what xarray puts around it, in a task of
a graph that was optimized, or as a variable of the function that reads it. All that is in memory already is
searched; nothing is read, pickled or made for that.
"""

from __future__ import annotations

import gc
import hashlib
import os
import uuid
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, CellType, FunctionType, ModuleType
from typing import Any, TypeAlias

import numpy as np
from dask._task_spec import Task, TaskRef
from dask.base import tokenize

from xzarr3.array import Array
from xzarr3.errors import NodeNotFoundError
from xzarr3.model.metadata import ArrayMetadata
from xzarr3.nodes.find import find_node
from xzarr3.nodes.freshness import MOST_STAMPED, tells_changes
from xzarr3.nodes.node import normal_path
from xzarr3.stores import Store, open_store

Place: TypeAlias = "tuple[object, str]"
"""Where an array is: the same for all handles on it, whatever hierarchy it was opened in."""

BEHIND = "behind"
"""What the identity of a store begins with that holds what no reader of the store around it looks at yet."""

_PLAIN = frozenset(
    {bool, int, float, complex, str, bytes, slice, range, type(None), type(...), np.ndarray, TaskRef}
)
_CLOSED_TYPES = (np.generic, np.dtype, type, ModuleType, BuiltinFunctionType, Store)
_CLOSED_PACKAGES = frozenset(
    {"_thread", "asyncio", "concurrent", "distributed", "fsspec", "logging", "numpy", "obstore", "pandas"}
    | {"threading", "tornado", "weakref"}
)
_AT_ONCE = 2**12  # Keys whose stamps are asked for together.
_LONG = 1000  # Integers at both ends of anything longer are taken for lengths of blocks.


class Places:
    """Where arrays are, and which of them tasks read; each place is looked at once.

    Examples
    --------
    >>> from xzarr3 import MemoryStore, ReadOnlyStore, create_array, from_zarr, open_array
    >>> store = MemoryStore()
    >>> array = create_array(store, "a", shape=3, dtype="i4")
    >>> places = Places()
    >>> places.of(array) == places.of(open_array(ReadOnlyStore(store), "a"))
    True
    >>> places.read_in((from_zarr(array) + 1).dask.layers) == {places.of(array)}
    True
    """

    def __init__(self) -> None:
        self._identities: dict[int, tuple[Store, object]] = {}
        self._resolved: dict[tuple[str, str], str] = {}
        # What was searched is kept, so that nothing else takes the same number.
        self._searched: dict[int, tuple[object, frozenset[Place]]] = {}

    def of(self, array: Array) -> Place:
        """Where an array is."""
        return self.at(array.store, array.path)

    def at(self, store: Store, path: str) -> Place:
        """Where a node is, whichever store it is opened in: one of a part of a directory, or with a cache."""
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
        """Where the arrays in stores are that are found in layers.

        All that functions have at hand is looked into, though they need not use it.
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
            elif (root := _root_of(each)) is not None:
                yield self._local(os.path.realpath(root), each.store_path.path)


def stamps_of_others(value: Any) -> list[str]:
    """What tells the data of arrays in stores from what they were before, where names of tasks do not.

    A name tells of every change of an array of this library with up to about a thousand units of storage, in
    a store that can tell. Of larger ones, each unit is looked at here. xarray names tasks that read arrays of
    zarr-python after the time of the top directory, which most changes leave as it was. Where nobody can
    tell, what is given here is never the same again.

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
            root = _root_of(each)
            opened = None if root is None else _opened(root, each.store_path.path)
            found += [_unknown()] if opened is None else [tokenize(opened), _stamp_of_units(opened)]
    return sorted({stamp for stamp in found if stamp is not None})


def _stamp_of_units(array: Array) -> str | None:
    """What tells the units that are stored from others; None if the name of an array does."""
    store = array.engine.store
    if not (tells_changes(array) and store.listable):
        return _unknown()
    if array.nchunks <= MOST_STAMPED:
        return None
    digest = hashlib.blake2b(digest_size=16)
    keys = sorted(store.list_prefix(array.engine.prefix))
    for first in range(0, len(keys), _AT_ONCE):
        some = keys[first : first + _AT_ONCE]
        digest.update(repr((some, store.stamp(some))).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _unknown() -> str:
    return uuid.uuid4().hex


def _root_of(array: Any) -> str | None:
    """The directory of an array of zarr-python; None if it is in none."""
    root = getattr(array.store_path.store, "root", None)
    return os.fspath(root) if isinstance(root, (str, os.PathLike)) else None


def _opened(root: str, path: str) -> Array:
    """The array at a path below a directory."""
    store, path = open_store(root), normal_path(path)
    found = find_node(store, path)
    if found is None or not isinstance(found[1], ArrayMetadata):
        raise NodeNotFoundError(f"no array at '/{path}' in {store} any more, which tasks of dask are to read")
    return Array(store, path, found[1], format=found[0], read_only=True)


def _arrays_in(value: Any) -> Iterator[Any]:
    """The arrays in stores in anything that tasks are made of, of this library and of zarr-python."""
    seen: dict[int, object] = {}  # All of them are kept, so that no other object takes the same number.
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
        elif _is_array(value):
            yield value
        elif isinstance(value, dict):  # And no other mapping: layers would make all of their tasks.
            left += list(value.values())
        elif isinstance(value, (list, tuple, set, frozenset)):
            left += value
        elif not isinstance(value, _CLOSED_TYPES):
            left += _held_by(value)


def _is_array(value: object) -> bool:
    """Whether this is an array in a store, of this library or of zarr-python."""
    return isinstance(value, Array) or _is_of_zarr_python(value)


def _is_of_zarr_python(value: object) -> bool:
    return type(value).__module__.startswith("zarr.") and hasattr(value, "store_path")


def _holds_objects(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.hasobject


def _held_by(value: Any) -> Iterator[object]:
    """What an object holds, and all that a function has at hand that travels with it."""
    if isinstance(value, FunctionType):
        yield from (value.__defaults__, value.__kwdefaults__, *map(_content, value.__closure__ or ()))
        used = [value.__globals__.get(name) for name in value.__code__.co_names]
        travels = "<" in value.__qualname__ or value.__module__ == "__main__"
        yield from used if travels else filter(_is_array, used)
    elif isinstance(value, np.ndarray):
        yield value.tolist()
    elif type(value).__module__.partition(".")[0] not in _CLOSED_PACKAGES:
        yield from gc.get_referents(value)


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # It is empty.
        return None
