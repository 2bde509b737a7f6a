"""The conformance routines over one kind of store, in one line a kind."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _conformance import ReadingConformance, StoreConformance, contents

from xzarr3 import LocalStore, MemoryStore, Store, ZipStore
from xzarr3.stores import CacheStore, WrapperStore
from xzarr3.stores.fsspec.store import FsspecStore

NOT_PICKLED = {"test_pickling_within_the_process": None, "test_pickling_to_another_process": None}
"""Promises of a class of the tests that does not say how it travels: these two tests are left out."""

ARRAYS: dict[str, dict[str, Any]] = {
    "plain": {"chunks": (16, 16), "compressors": None},
    "compressed": {"chunks": (16, 16)},
    "sharded": {"chunks": (8, 8), "shards": (32, 32)},
    "plain shards": {"chunks": (8, 8), "shards": (32, 32), "compressors": None},
}
"""Ways to store an array of 64 x 64 elements."""


def conformance(make: Callable[[Path], Store], **promises: Any) -> Any:
    """The tests of the stores that ``make`` makes in a directory; ``promises`` are those of the routine."""
    methods = {"make": lambda self, base: make(base), "read_only": lambda self, store: guarded(store)}
    return type("Conformance", (StoreConformance,), {**methods, **promises})


def reading(make: Callable[[dict[str, bytes], Path], Store]) -> Any:
    """The tests of stores that are only read; ``make`` gets what they hold, and a directory."""
    return type("Reading", (ReadingConformance,), {"make": lambda self, base: make(dict(self.VALUES), base)})


def guarded(store: Any) -> Store:
    """A store that holds the same and refuses writes."""
    match store:
        case LocalStore():
            options = {name: getattr(store, name) for name in ("fsync", "locks", "follow_links")}
            return LocalStore(store.root, read_only=True, **options)
        case MemoryStore():
            return MemoryStore(contents(store), read_only=True)
        case CacheStore():
            return CacheStore(guarded(store.inner), directory=store.directory)
        case WrapperStore():
            return type(store)(guarded(store.inner))
        case FsspecStore():
            twin = pickle.loads(pickle.dumps(store))
            twin.read_only = True
            return twin  # type: ignore[no-any-return]
        case ZipStore():
            store.flush()
            return ZipStore(store.path) if store.path is not None else ZipStore(store._inner, store.key)
    return type(store)(store.values, read_only=True)  # type: ignore[no-any-return]
