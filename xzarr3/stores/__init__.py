"""Stores: the places that hold values under keys.

A store knows nothing of arrays, chunks, codecs or metadata documents.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from xzarr3.stores.base import Key, Store, Traits, update, versioned
from xzarr3.stores.keys import check_key, check_prefix
from xzarr3.stores.memory import MemoryStore
from xzarr3.stores.open import StoreLike, open_store
from xzarr3.stores.values import ANY, UNCHANGED, BytesValue, Scratch, Value, cut

if TYPE_CHECKING:
    from xzarr3.stores.cache import CacheStore
    from xzarr3.stores.fsspec import FsspecStore
    from xzarr3.stores.local.store import LocalStore
    from xzarr3.stores.object.store import ObjectStore
    from xzarr3.stores.wrappers import ReadOnlyStore, WrapperStore
    from xzarr3.stores.zip import ZipStore

__all__ = [
    "ANY", "UNCHANGED", "BytesValue", "CacheStore", "FsspecStore", "Key", "LocalStore", "MemoryStore",
    "ObjectStore", "ReadOnlyStore", "Scratch", "Store", "StoreLike", "Traits", "Value", "WrapperStore",
    "ZipStore", "check_key", "check_prefix", "cut", "open_store", "update", "versioned",
]  # fmt: skip

# Imported on first use.
_LAZY = {
    "CacheStore": "cache",
    "FsspecStore": "fsspec",
    "LocalStore": "local.store",
    "ObjectStore": "object.store",
    "ReadOnlyStore": "wrappers",
    "WrapperStore": "wrappers",
    "ZipStore": "zip",
}


def __getattr__(name: str) -> object:
    if name == "in_flight":
        return import_module("xzarr3.stores.in_flight")
    if name in _LAZY:
        return getattr(import_module(f"xzarr3.stores.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
