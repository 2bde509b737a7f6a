"""An object with the store interface of zarr-python that is made without zarr-python."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any


class Interface:
    """Keys and values in a dictionary."""

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
