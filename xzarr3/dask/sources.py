"""Which arrays in stores a dask array is made of, and whether two of them are the same one.

Tasks hold what they read in many ways: as an argument of a layer, in what xarray puts around it, in a task of
a graph that was optimized, or as a variable of the function that reads it. All that is in memory already is
searched; nothing is read, pickled or made for that.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import BuiltinFunctionType, CellType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, TypeAlias

import numpy as np
from dask._task_spec import Task, TaskRef
from dask.base import tokenize

from xzarr3.array import Array
from xzarr3.hierarchy import open_array
from xzarr3.stores import Store

Place: TypeAlias = "tuple[object, str]"
"""Where an array is: the same for all handles on it, whatever hierarchy it was opened in."""

_PLAIN = frozenset(
    {bool, int, float, complex, str, bytes, slice, range, type(None), type(...), np.ndarray, TaskRef}
)
_CLOSED_TYPES = (np.generic, np.dtype, type, ModuleType, BuiltinFunctionType, Store)
_CLOSED_PACKAGES = frozenset(
    {"_thread", "asyncio", "concurrent", "distributed", "fsspec", "logging", "numpy", "obstore", "pandas"}
    | {"threading", "tornado", "weakref"}
)
_FOLLOWED_PACKAGES = frozenset({"builtins", "dask", "functools", "types", "xarray", "xzarr3", "zarr"})
_LONG = 1000  # Integers at both ends of anything longer are taken for lengths of blocks.


def place(array: Array) -> Place:
    """Where an array is.

    Examples
    --------
    >>> from xzarr3 import LocalStore, MemoryStore, ReadOnlyStore, create_array, open_array
    >>> store = MemoryStore()
    >>> array = create_array(store, "a", shape=3, dtype="i4")
    >>> place(array) == place(open_array(ReadOnlyStore(store), "a"))
    True
    """
    match array.store.identity:
        case ("LocalStore", str(root)):
            return _local(root, array.path)
        case ("ObjectStore" | "FsspecStore" as kind, str(one), str(other)):
            top, rest = (one, other) if kind == "FsspecStore" else (other, one)
            return (kind, rest), "/".join(part for part in (top.rstrip("/"), array.path) if part)
        case identity:
            return identity, array.path


def _local(root: str, path: str) -> Place:
    return "LocalStore", os.path.realpath(os.path.join(root, path))


def places_read(value: Any) -> set[Place]:
    """Where the arrays in stores are that are found in tasks, or in anything that tasks are made of.

    Examples
    --------
    >>> from xzarr3 import MemoryStore, create_array, from_zarr
    >>> array = create_array(MemoryStore(), shape=3, dtype="i4")
    >>> read = from_zarr(array) + 1
    >>> [places_read(layer) == {place(array)} for layer in read.dask.layers.values()]
    [True, False]
    """
    found: set[Place] = set()
    for each in _arrays_in(value):
        if isinstance(each, Array):
            found.add(place(each))
        elif (root := _root_of(each)) is not None:
            found.add(_local(root, each.store_path.path))
    return found


def stamps_of_others(value: Any) -> list[str]:
    """What tells the data of zarr-python's arrays from what they were before, of those found in tasks.

    xarray names tasks that read them after the time of the top directory, which most changes leave as it was.

    Examples
    --------
    >>> stamps_of_others([1, "a"])
    []
    """
    found = []
    for each in _arrays_in(value):
        if not isinstance(each, Array):
            root = _root_of(each)
            opened = None if root is None else open_array(root, each.store_path.path)
            # Of other stores nobody can tell.
            found.append(uuid.uuid4().hex if opened is None else tokenize(opened))
    return sorted(set(found))


def _root_of(array: Any) -> str | None:
    """The directory of an array of zarr-python; None if it is in none."""
    root = getattr(array.store_path.store, "root", None)
    return os.fspath(root) if isinstance(root, (str, os.PathLike)) else None


def _arrays_in(value: Any) -> Iterator[Any]:
    """The arrays in stores in anything that tasks are made of, of this library and of zarr-python."""
    seen: dict[int, object] = {}  # All of them are kept, so that no other object takes the same number.
    left = [value]
    while left:
        value = left.pop()
        kind = type(value)
        if kind in _PLAIN or id(value) in seen:
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
        elif isinstance(value, dict):  # And no other mapping: layers would make all of their tasks.
            left += list(value.values())
        elif isinstance(value, (list, tuple, set, frozenset)):
            left += value
        elif not isinstance(value, _CLOSED_TYPES):
            left += _held_by(value)


def is_array(value: object) -> bool:
    """Whether this is an array in a store, of this library or of zarr-python."""
    return isinstance(value, Array) or _is_of_zarr_python(value)


def is_held_alone(layer: Mapping[Any, object]) -> bool:
    """Whether a layer has a single task, which gives an array in a store."""
    return len(layer) == 1 and all(is_array(getattr(task, "value", task)) for task in layer.values())


def _is_of_zarr_python(value: object) -> bool:
    return type(value).__module__.startswith("zarr.") and hasattr(value, "store_path")


def _held_by(value: Any) -> Iterator[object]:
    """What a function or another object holds."""
    if isinstance(value, MethodType):
        yield from (value.__func__, *filter(_is_followed, [value.__self__]))
    elif isinstance(value, FunctionType):
        yield from (value.__defaults__, value.__kwdefaults__)
        yield from filter(_is_followed, map(_content, value.__closure__ or ()))
        # Of what it uses of its module, arrays alone: everything else leads everywhere.
        used = map(value.__globals__.get, value.__code__.co_names)
        yield from (each for each in used if is_array(each))
    elif type(value).__module__.partition(".")[0] not in _CLOSED_PACKAGES:
        yield getattr(value, "__dict__", None)
        for slot in _slots(value.__class__):
            try:
                yield slot.__get__(value)
            except AttributeError:  # Nothing was set.
                continue
        if hasattr(value, "func") and type(value).__module__ == "functools":
            yield from (value.func, value.args, value.keywords)


def _is_followed(value: object) -> bool:
    """Whether to look into what a function has at hand, which need not use all that others' objects hold."""
    return type(value).__module__.partition(".")[0] in _FOLLOWED_PACKAGES


@lru_cache(1024)
def _slots(kind: type) -> list[Any]:
    """What gives the attributes of an object that are not in a dictionary."""
    found = [each for base in kind.__mro__ for each in base.__dict__.values()]
    return [each for each in found if isinstance(each, MemberDescriptorType)]


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # It is empty.
        return None
