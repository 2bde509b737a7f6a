"""The abstract store interface: keys and values, and what can be done with them.

Specification: Zarr v3 core, "Abstract store interface". The methods have the names of the text; what
a store lacks is made from what it has. Keys are ``/``-separated, relative and never climb; prefixes end
with ``/``, except the empty prefix, which means every key.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Self, TypeAlias

from xzarr3._types import Buffer, ByteRange
from xzarr3.errors import InvalidKeyError, ReadOnlyError, StoreError

Loader: TypeAlias = Callable[[str], Buffer | None]
KeySet: TypeAlias = set[str]  # Within the classes, `set` is the method.

_ACCEPTED_KEY = "names separated by single '/', relative, none of them empty, '.' or '..'"


def check_key(key: str) -> str:
    """Return ``key`` if it is valid, so that it cannot name anything outside of the store's root.

    Raises
    ------
    InvalidKeyError
        If it is empty, absolute, ends with ``/``, climbs or holds a NUL character.
    """
    if not isinstance(key, str):
        raise InvalidKeyError(f"a key must be a string, found {type(key).__name__}")
    names = key.split("/")
    if "" in names or "." in names or ".." in names or "\0" in key:
        raise InvalidKeyError(f"invalid key {key!r}; accepted: {_ACCEPTED_KEY}")
    return key


def check_prefix(prefix: str) -> str:
    """Return ``prefix`` if it is empty or a valid key followed by ``/``.

    Raises
    ------
    InvalidKeyError
        Otherwise.
    """
    if prefix == "":
        return prefix
    if not isinstance(prefix, str) or not prefix.endswith("/"):
        raise InvalidKeyError(f"invalid prefix {prefix!r}; accepted: '' or a key followed by '/'")
    check_key(prefix[:-1])
    return prefix


def cut(value: Buffer, byte_range: ByteRange) -> Buffer:
    """The part of ``value`` that ``byte_range`` names; a part beyond its end is shorter or empty."""
    start, length = byte_range
    if start < 0:
        start = max(len(value) + start, 0)
    view = memoryview(value)
    return view[start:] if length is None else view[start : start + length]


class ValueReader(ABC):
    """One stored value, opened to read parts of it.

    All parts come from the same version of the value, as far as the store can promise that.
    """

    size: int | None = None
    """Size of the whole value in bytes, if it is known without a request."""

    @abstractmethod
    def read(self, start: int, length: int | None = None) -> Buffer:
        """``length`` bytes from ``start`` on, or to the end; a negative ``start`` counts from the end.

        The result is shorter where the value ends before.
        """

    def read_into(self, start: int, out: memoryview) -> int:
        """Read from ``start`` on into ``out``; returns the number of bytes, fewer where the value ends."""
        part = self.read(start, len(out))
        out[: len(part)] = part
        return len(part)

    def close(self) -> None:  # noqa: B027 - most readers hold nothing
        """Release what the reader holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _RangeReader(ValueReader):
    """Reads each part with a request of its own."""

    def __init__(self, store: Store, key: str) -> None:
        self._store = store
        self._key = key

    def read(self, start: int, length: int | None = None) -> Buffer:
        value = self._store.get(self._key, (start, length))
        if value is None:
            raise StoreError(f"key '{self._key}' of {self._store} vanished while it was read")
        return value


class Store(ABC):
    """Keys and values.

    Parameters
    ----------
    read_only : bool
        Refuse every write.
    """

    def __init__(self, *, read_only: bool = False) -> None:
        self.read_only = read_only
        self._identity = uuid.uuid4().hex

    @property
    def identity(self) -> object:
        """What tells this store from others, the same in every process if that can be."""
        return type(self).__name__, self._identity

    def __dask_tokenize__(self) -> object:
        """The identity and, if the store can tell, something that changes when a value does."""
        return self.identity

    # Readable

    @abstractmethod
    def get(self, key: str, byte_range: ByteRange | None = None) -> Buffer | None:
        """The value of ``key``, or None if there is none.

        Parameters
        ----------
        key : str
        byte_range : (int, int or None), optional
            Start and length in bytes; a length of None reads to the end, a negative start counts from it.

        Raises
        ------
        StoreError
            If the value is there, or may be, but cannot be read.
        """

    def get_partial_values(self, key_ranges: Iterable[tuple[str, ByteRange]]) -> list[Buffer | None]:
        """The parts of values that ``key_ranges`` names, in that order; None for keys without a value."""
        return [self.get(key, byte_range) for key, byte_range in key_ranges]

    def exists(self, key: str) -> bool:
        """Whether ``key`` has a value."""
        return self.get(key, (0, 1)) is not None

    def open_value(self, key: str) -> ValueReader | None:
        """Open the value of ``key`` to read parts of it, or None if there is none."""
        return _RangeReader(self, key) if self.exists(key) else None

    def loader(self) -> Loader:
        """A function that reads whole values, for use by one thread.

        What it returns may be overwritten by its next call; its keys are not checked.
        """
        return self.get

    def stamp(self, keys: Sequence[str]) -> object:
        """A picklable value that changes when any of these values changes.

        Dask names its tasks after it. A store that cannot tell never gives the same stamp twice.
        """
        return uuid.uuid4().hex

    def version(self, key: str) -> object | None:
        """What changes whenever the value of ``key`` does, if that costs no request; otherwise None."""
        return None

    # Writeable

    def set(self, key: str, value: Buffer) -> None:
        """Store ``value`` under ``key``, whole or not at all.

        Raises
        ------
        StoreError
            If that fails; the old value is then still there.
        """
        raise ReadOnlyError(f"{self} cannot be written")

    def set_partial_values(self, key_start_values: Iterable[tuple[str, int, Buffer]]) -> None:
        """Overwrite parts of values; each triple names a key, the first byte and the new bytes.

        Raises
        ------
        ValueError
            If two parts of one key overlap, or a part begins beyond the end of its value.
        """
        parts: dict[str, list[tuple[int, Buffer]]] = {}
        for key, start, value in key_start_values:
            parts.setdefault(key, []).append((start, value))
        changed: dict[str, bytearray] = {}
        for key, pieces in parts.items():
            pieces.sort(key=lambda piece: piece[0])
            merged = changed[key] = bytearray(self.get(key) or b"")
            end = 0
            for start, value in pieces:
                if start < end:
                    raise ValueError(f"parts to store under key '{key}' overlap at byte {start}")
                if start > len(merged):
                    raise ValueError(f"key '{key}' has {len(merged)} bytes, cannot store from {start} on")
                end = start + len(value)
                merged[start:end] = value
        for key, whole in changed.items():
            self.set(key, whole)

    def erase(self, key: str) -> None:
        """Remove ``key`` and its value, if it is there."""
        raise ReadOnlyError(f"{self} cannot be written")

    def erase_values(self, keys: Iterable[str]) -> None:
        """Remove several keys, or none of them if one is not valid."""
        for key in [check_key(key) for key in keys]:
            self.erase(key)

    def erase_prefix(self, prefix: str) -> None:
        """Remove every key that begins with ``prefix``, which must not be empty."""
        if not check_prefix(prefix):
            raise InvalidKeyError("the empty prefix names the whole store; erase its keys by name")
        self.erase_values(list(self.list_prefix(prefix)))

    # Listable

    @abstractmethod
    def list_prefix(self, prefix: str) -> Iterator[str]:
        """Every key that begins with ``prefix``."""

    def list(self) -> Iterator[str]:
        """Every key."""
        return self.list_prefix("")

    def list_dir(self, prefix: str) -> tuple[KeySet, KeySet]:
        """The keys and the prefixes directly below ``prefix``."""
        keys: KeySet = set()
        prefixes: KeySet = set()
        for key in self.list_prefix(prefix):
            name, slash, _ = key[len(prefix) :].partition("/")
            (prefixes if slash else keys).add(prefix + name + slash)
        return keys, prefixes

    def _check_writable(self) -> None:
        if self.read_only:
            raise ReadOnlyError(f"{self} is read-only")
