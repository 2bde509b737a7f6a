"""Stores: the places that hold values under keys.

A store knows nothing of arrays, chunks, codecs or metadata documents.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from xzarr3.stores.base import UNCHANGED, Store, ValueReader, check_key, check_prefix, cut
from xzarr3.stores.memory import MemoryStore
from xzarr3.stores.open import StoreLike, open_store

if TYPE_CHECKING:
    from xzarr3.stores.cache.store import CacheStore
    from xzarr3.stores.fsspec.store import FsspecStore
    from xzarr3.stores.local.store import LocalStore
    from xzarr3.stores.logging import LoggingStore
    from xzarr3.stores.object.store import ObjectStore
    from xzarr3.stores.wrappers import ReadOnlyStore, WrapperStore
    from xzarr3.stores.zip.store import ZipStore

__all__ = [
    "UNCHANGED",
    "CacheStore",
    "FsspecStore",
    "LocalStore",
    "LoggingStore",
    "MemoryStore",
    "ObjectStore",
    "ReadOnlyStore",
    "Store",
    "StoreLike",
    "ValueReader",
    "WrapperStore",
    "ZipStore",
    "check_key",
    "check_prefix",
    "cut",
    "open_store",
]

# Imported on first use.
_LAZY = {
    "CacheStore": "cache.store",
    "FsspecStore": "fsspec.store",
    "LocalStore": "local.store",
    "LoggingStore": "logging",
    "ObjectStore": "object.store",
    "ReadOnlyStore": "wrappers",
    "WrapperStore": "wrappers",
    "ZipStore": "zip.store",
}


def __getattr__(name: str) -> object:
    if name == "in_flight":
        return import_module("xzarr3.stores.in_flight")
    if name in _LAZY:
        return getattr(import_module(f"xzarr3.stores.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
