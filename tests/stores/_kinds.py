"""The conformance routines over one kind of store, in one line a kind, and the ways to read a store."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _conformance import ReadingConformance, StoreConformance, contents, run_threads
from _unprivileged import run_child

from xzarr3 import LocalStore, MemoryStore, Store, ZipStore
from xzarr3.stores import CacheStore, WrapperStore
from xzarr3.stores.base import Scratch
from xzarr3.stores.fsspec.store import FsspecStore
from xzarr3.stores.mapping import MappingStore, mapping_store
from xzarr3.stores.zarr_python.store import ZarrPythonStore

NOT_PICKLED = {"test_pickling_within_the_process": None, "test_pickling_to_another_process": None}
"""Promises of a class of the tests that does not say how it travels: these two tests are left out."""

READS: dict[str, Callable[[Store, str], object]] = {
    "get": lambda store, key: store.get(key),
    "get range": lambda store, key: store.get(key, (0, 1)),
    "exists": lambda store, key: store.exists(key),
    "get_values": lambda store, key: store.get_values([key]),
    "get_partial_values": lambda store, key: store.get_partial_values([(key, (0, 1))]),
    "get_versioned": lambda store, key: store.get_versioned(key),
    "open": lambda store, key: store.reader().open(key),
    "open part": lambda store, key: store.reader().open(key, (0, 1)),
    "reader": lambda store, key: store.reader().get(key),
    "scratch": lambda store, key: store.reader(Scratch(), 10**6).get(key),
    "get_ranges": lambda store, key: store.reader().get_ranges(key, [0], [1]),
    "get_into": lambda store, key: store.reader().get_into(key, 0, memoryview(bytearray(1))),
    "list_prefix": lambda store, key: list(store.list_prefix(f"{key}/")),
    "list_dir": lambda store, key: store.list_dir(f"{key}/"),
}
"""Every way to read the value of a key, or to list what is below it."""

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
        case MappingStore():
            return mapping_store(store._mapping, read_only=True)
        case ZarrPythonStore():
            return type(store)(store.foreign, read_only=True)
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


def fork_beside(busy: Callable[[], object], work: Callable[[], Any], times: int) -> list[Any]:
    """What ``work`` returns in children that are forked one by one while other threads are busy."""
    stop, found = threading.Event(), []

    def go_on() -> None:
        while not stop.is_set():
            busy()

    def fork() -> None:
        try:
            found.extend(run_child(work).checked() for _ in range(times))
        finally:
            stop.set()

    run_threads(fork, *[go_on] * 3)
    return found
