"""Finds the store of xzarr3 for an object with zarr-python's store interface.

Objects are recognized by the module and the name of their class, so that no other library is imported. A
store of zarr-python that xzarr3 can read itself is opened natively: it then has locks, versions and leases. A
class that is derived from one of these may do something else, and is called through its interface.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

from xzarr3.stores.base import Store
from xzarr3.stores.local.store import LocalStore
from xzarr3.stores.zarr_python.interface import has_interface, layers

_USUAL_ABSENCES = {FileNotFoundError, IsADirectoryError, NotADirectoryError}


def store_of(store: Any) -> Store | None:
    """The store for an object with zarr-python's interface, or for a session of Icechunk; None for others."""
    kind = type(store)
    if kind.__module__ == "icechunk.session" and hasattr(store, "store"):
        return store_of(store.store)
    make = _NATIVE.get(f"{kind.__module__}.{kind.__qualname__}")
    found = None if make is None else make(store)
    if found is not None:
        return found
    if not has_interface(store):
        return None
    from xzarr3.stores.zarr_python.store import ZarrPythonStore, adapted

    kinds = (each for layer in layers(store) for each in type(layer).__mro__)
    names = {f"{each.__module__}.{each.__qualname__}" for each in kinds}
    if "icechunk.store.IcechunkStore" in names:
        from xzarr3.stores.zarr_python.icechunk import IcechunkStore

        return adapted(store, IcechunkStore)
    if "virtualizarr.manifests.store.ManifestStore" in names:
        from xzarr3.stores.zarr_python.virtualizarr import ManifestStore

        return adapted(store, ManifestStore)
    return adapted(store, ZarrPythonStore)


def _local(store: Any) -> Store:
    return LocalStore(os.fspath(store.root), read_only=store.read_only)


def _memory(store: Any) -> Store | None:
    if getattr(store, "path", ""):  # Only some of the keys of the dictionary.
        return None
    from xzarr3.stores.mapping import mapping_store

    return mapping_store(store._store_dict, as_buffers=True, read_only=store.read_only)


def _object(store: Any) -> Store:
    prefix = getattr(store.store, "prefix", None)
    if type(store.store).__name__ == "LocalStore" and isinstance(prefix, os.PathLike):
        return LocalStore(os.fspath(prefix), read_only=store.read_only)
    from xzarr3.stores.object.store import ObjectStore

    return ObjectStore(store.store, read_only=store.read_only)


def _fsspec(store: Any) -> Store | None:
    if set(store.allowed_exceptions) != _USUAL_ABSENCES:
        return None
    from xzarr3.stores.fsspec.store import store_for

    return store_for(store.fs, store.path, read_only=store.read_only)


def _zip(store: Any) -> Store | None:
    if not store.read_only or not isinstance(store.path, os.PathLike):  # Its own writer holds the file open.
        return None
    from xzarr3.stores.zip import ZipStore

    return ZipStore(os.fspath(store.path), mode="r")


_NATIVE: Final[dict[str, Callable[[Any], Store | None]]] = {
    "zarr.storage._local.LocalStore": _local,
    "zarr.storage._memory.MemoryStore": _memory,
    "zarr.storage._memory.ManagedMemoryStore": _memory,
    "zarr.storage._obstore.ObjectStore": _object,
    "zarr.storage._fsspec.FsspecStore": _fsspec,
    "zarr.storage._zip.ZipStore": _zip,
}
