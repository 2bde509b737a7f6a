"""The terms of zarr-python's store interface: requests of byte ranges, and buffers around bytes.

A store of zarr-python checks that it gets zarr-python's own classes. These are taken from the modules that
are loaded already; this package never imports them. Where they are not loaded, a store has the same interface
but cannot ask for these classes, and gets the ones of this module.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from xzarr3._types import Buffer, ByteRange

_METHODS = ("get", "set", "delete", "exists", "list_prefix", "list_dir")
_PROPERTIES = ("supports_writes", "supports_deletes", "supports_listing")
_DEEPEST = 16
_LONGEST = 2**48  # Bytes. Stores compute with numbers of 64 bits, and no value is that large.


def has_interface(store: object) -> bool:
    """Whether an object has the asynchronous store interface of zarr-python."""
    kind = type(store)
    return all(callable(getattr(kind, name, None)) for name in _METHODS) and all(
        hasattr(store, name) for name in _PROPERTIES
    )


def layers(store: Any) -> Iterator[Any]:
    """A store of zarr-python and the stores that it wraps, the outermost one first."""
    for _ in range(_DEEPEST):
        yield store
        store = getattr(store, "_store", None)
        if store is None:
            return


@dataclass(frozen=True)
class RangeByteRequest:
    """The bytes from ``start`` to ``end``."""

    start: int
    end: int


@dataclass(frozen=True)
class OffsetByteRequest:
    """The bytes from ``offset`` on."""

    offset: int


@dataclass(frozen=True)
class SuffixByteRequest:
    """The last ``suffix`` bytes."""

    suffix: int


class PlainBuffer:
    """Bytes with the methods of a buffer of zarr-python that stores call."""

    def __init__(self, value: Buffer) -> None:
        self._value = memoryview(value).cast("B")

    @classmethod
    def from_bytes(cls, value: Buffer) -> PlainBuffer:
        """The buffer of some bytes."""
        return cls(value)

    @classmethod
    def from_buffer(cls, buffer: Any) -> PlainBuffer:
        """The same bytes as another buffer."""
        return cls(buffer.to_bytes())

    from_array_like = from_bytes

    def __len__(self) -> int:
        return len(self._value)

    def __getitem__(self, part: slice) -> PlainBuffer:
        return PlainBuffer(self._value[part])

    def as_buffer_like(self) -> memoryview:
        """The bytes, without a copy."""
        return self._value

    def to_bytes(self) -> bytes:
        """A copy of the bytes."""
        return bytes(self._value)


@dataclass(frozen=True)
class Prototype:
    """Says which class of buffer a read returns."""

    buffer: Any = PlainBuffer
    nd_buffer: Any = None


def _loaded(module: str, name: str, otherwise: Any) -> Any:
    return getattr(sys.modules.get(module), name, otherwise)


def prototype() -> Any:
    """What a read is asked to return: buffers in the main memory."""
    return _loaded("zarr.core.buffer.cpu", "buffer_prototype", Prototype())


def wrapped(value: bytes) -> Any:
    """A buffer around a value, as stores take it."""
    return _loaded("zarr.core.buffer.cpu", "Buffer", PlainBuffer).from_bytes(value)


def is_buffer(value: object) -> bool:
    """Whether a value is a buffer of zarr-python, or looks like one."""
    return hasattr(value, "to_bytes") and hasattr(value, "as_buffer_like")


def unwrapped(found: Any) -> memoryview:
    """The bytes of a buffer that a store has returned.

    Raises
    ------
    TypeError
        If it is no buffer.
    """
    if type(found).__module__ == "zarr.core.buffer.cpu" and hasattr(found, "as_buffer_like"):
        return memoryview(found.as_buffer_like()).cast("B")
    if hasattr(found, "to_bytes"):  # Another device may hold the bytes.
        return memoryview(found.to_bytes())
    return memoryview(found).cast("B")


def is_requestable(byte_range: ByteRange) -> bool:
    """Whether a byte range can be requested as such: not if it is empty or beyond the size of any value."""
    start, length = byte_range
    return length != 0 and abs(start) < _LONGEST and (length is None or length < _LONGEST)


def request_of(byte_range: ByteRange) -> Any:
    """The request for a byte range; for one that counts from the end, for all bytes up to the end."""
    start, length = byte_range
    module = "zarr.abc.store"
    if start < 0:
        return _loaded(module, "SuffixByteRequest", SuffixByteRequest)(-start)
    if length is None:
        return _loaded(module, "OffsetByteRequest", OffsetByteRequest)(start)
    return _loaded(module, "RangeByteRequest", RangeByteRequest)(start, start + length)
