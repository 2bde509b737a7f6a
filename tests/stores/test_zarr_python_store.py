"""Objects with the asynchronous store interface of zarr-python, called through it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import zarr
from _kinds import conformance
from zarr.storage import LocalStore, LoggingStore, ManagedMemoryStore

from xzarr3 import (
    open_store,
)

ADAPTED: dict[str, Any] = {
    "holds_versions": False,
    "stamps": False,
    "forks": False,
    "ranges": 20,
}


class OnDisk(LocalStore):
    """A class of a user, which may do anything."""


class Interface:
    """A store that is made without zarr-python."""

    supports_writes = supports_deletes = supports_listing = True
    read_only = False

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        await asyncio.sleep(0)
        value = self.values.get(key)
        if value is None:
            return None
        if hasattr(byte_range, "suffix"):
            value = value[-byte_range.suffix :]
        elif hasattr(byte_range, "offset"):
            value = value[byte_range.offset :]
        elif byte_range is not None:
            value = value[byte_range.start : byte_range.end]
        return prototype.buffer.from_bytes(value)

    async def set(self, key: str, value: Any) -> None:
        self.values[key] = value.to_bytes()

    async def delete(self, key: str) -> None:
        del self.values[key]

    async def exists(self, key: str) -> bool:
        return key in self.values

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        for key in list(self.values):
            if key.startswith(prefix):
                yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        beginning = f"{prefix}/".lstrip("/")
        for name in {
            key[len(beginning) :].partition("/")[0] for key in self.values if key.startswith(beginning)
        }:
            yield name


def quiet(store: Any) -> LoggingStore[Any]:
    return LoggingStore(store, log_level="ERROR")


TestWrappedMemory = conformance(
    lambda base: open_store(quiet(zarr.storage.MemoryStore())), **{**ADAPTED, "travels": "copy"}
)
TestPartOfMemory = conformance(
    lambda base: open_store(ManagedMemoryStore(path="a")), **{**ADAPTED, "travels": "same"}
)
TestDirectory = conformance(
    lambda base: open_store(OnDisk(base / "store")), nests=False, bounds_keys=True, **ADAPTED
)
TestWithoutZarrPython = conformance(lambda base: open_store(Interface()), **ADAPTED)
