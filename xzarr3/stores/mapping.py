"""A store in a mapping of the user's, such as a dictionary."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from itertools import repeat
from typing import Any

from xzarr3._types import Buffer
from xzarr3.errors import ArgumentTypeError, StoreError, shorten
from xzarr3.stores.base import Store, check_key
from xzarr3.stores.locks import fork_safe
from xzarr3.stores.memory import MemoryStore, restored
from xzarr3.stores.zarr_python.interface import is_buffer, unwrapped, wrapped

_PLAIN = (bytes, bytearray, memoryview)

_live: weakref.WeakValueDictionary[int, MappingStore] = weakref.WeakValueDictionary()
_finding = fork_safe(threading.RLock())


class MappingStore(MemoryStore):
    """Keys and values in a mapping that the user keeps: changes are seen on both sides.

    Values are bytes. Where the mapping holds buffers of zarr-python, as that of its ``MemoryStore`` does,
    values are stored as such buffers. Everything else is as with :class:`~xzarr3.MemoryStore`; another
    process gets a copy that it cannot write.

    Parameters
    ----------
    values : mutable mapping of str to bytes
    as_buffers : bool
        Store buffers of zarr-python even if the mapping is empty.
    origin : MappingStore, optional
        The writable store of the same mapping, with which a read-only one shares all but that.

    Raises
    ------
    TypeError
        If a key is no string or a value is not bytes.
    InvalidKeyError
        If a key cannot be the key of a store.

    Examples
    --------
    >>> values = {"a": b"1"}
    >>> store = MappingStore(values)
    >>> store.set("b", b"2")
    >>> values["c"] = b"3"
    >>> values["b"], store.get("c")
    (b'2', b'3')
    """

    def __init__(
        self,
        values: MutableMapping[str, Any],
        *,
        as_buffers: bool = False,
        origin: MappingStore | None = None,
    ) -> None:
        super().__init__(read_only=origin is not None)
        self._mapping = values
        self._origin = origin
        if origin is not None:
            self._identity, self._values, self._lock = origin._identity, origin._values, origin._lock
            return
        _check(values)
        self._values = self._view = _Bytes(values, as_buffers=as_buffers)
        if self.tells_changes:
            self._view.seen = _fixed(values)

    def __repr__(self) -> str:
        return f"<MappingStore, {type(self._mapping).__name__} of {len(self._mapping)} keys>"

    def __reduce__(self) -> tuple[object, ...]:
        self.stamp([""])
        values = {key: bytes(each) for key, each in self._values.items()}
        return _restored, (self._identity, values, (self._origin or self)._version, self.read_only)

    @property
    def identity(self) -> object:
        """The same as that of the copies in other processes."""
        return MemoryStore.__name__, self._identity

    @property
    def tells_changes(self) -> bool:
        """Whether the mapping is a dictionary; the values of others may be anywhere, and are not searched."""
        return isinstance(self._mapping, dict)

    def stamp(self, keys: Sequence[str]) -> object:
        if not self.tells_changes:
            return Store.stamp(self, keys)
        if self._origin is not None:
            return self._origin.stamp(keys)
        with self._lock:
            now, seen = _fixed(self._mapping), self._view.seen
            if now.keys() != seen.keys() or not all(_is_same(now[key], seen[key]) for key in now):
                self._version += 1
            self._view.seen = now
            return self._version


class _Bytes(MutableMapping[str, Buffer]):
    """The values of another mapping as bytes."""

    def __init__(self, values: MutableMapping[str, Any], *, as_buffers: bool) -> None:
        self._of_user = values
        self.seen: dict[str, Any] = {}
        """The values when changes were last looked for, except those that this object has replaced since."""
        self._as_buffers: bool | None = True if as_buffers else None  # None: not known.

    def __getitem__(self, key: str) -> Buffer:
        value = self._of_user[key]
        if type(value) is bytes:
            return value
        if isinstance(value, _PLAIN):  # A copy, as the user may change them.
            return bytes(value)
        if not is_buffer(value):
            raise StoreError(
                f"cannot read key {shorten(key)} of a {type(self._of_user).__name__} of the user: found "
                f"{type(value).__name__}; accepted: bytes"
            )
        return unwrapped(value)

    def __setitem__(self, key: str, value: Buffer) -> None:
        self.seen.pop(key, None)  # So that the memory of a replaced value is free.
        if self._as_buffers is None and self._of_user:
            self._as_buffers = is_buffer(next(iter(self._of_user.values())))
        self._of_user[key] = wrapped(bytes(value)) if self._as_buffers else value

    def __delitem__(self, key: str) -> None:
        self.seen.pop(key, None)
        del self._of_user[key]

    def __contains__(self, key: object) -> bool:
        return key in self._of_user

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._of_user))

    def __len__(self) -> int:
        return len(self._of_user)


def _fixed(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, and copies of those that can change in place."""
    return {
        key: bytes(each) if isinstance(each, bytearray | memoryview) else each
        for key, each in list(values.items())
    }


def _is_same(one: object, other: object) -> bool:
    return one is other or (type(one) is type(other) is bytes and one == other)


def _check(values: Mapping[Any, Any]) -> None:
    items = values.items() if isinstance(values, dict) else zip(values, repeat(b""), strict=False)
    for key, value in list(items):
        if not isinstance(key, str) or not (isinstance(value, _PLAIN) or is_buffer(value)):
            raise ArgumentTypeError(
                f"not a store: a {type(values).__name__} with {shorten(key)}: {type(value).__name__}; "
                "accepted: a dict, or another mutable mapping, of str to bytes"
            )
        check_key(key)


def _restored(identity: str, values: dict[str, Buffer], version: int, read_only: bool) -> MemoryStore:
    """The store of a pickled form: of the same mapping in its own process, else a copy."""
    found = restored(identity, values, version)
    if read_only and isinstance(found, MappingStore):
        return mapping_store(found._mapping, read_only=True)
    return found


def mapping_store(
    values: MutableMapping[str, Any], *, as_buffers: bool = False, read_only: bool = False
) -> MappingStore:
    """The store of a mapping: one and the same as long as it is in use.

    Examples
    --------
    >>> values = {}
    >>> store = mapping_store(values)
    >>> mapping_store(values) is store
    True
    """
    with _finding:
        found = _live.get(id(values))
        if found is None or found._mapping is not values:
            found = _live[id(values)] = MappingStore(values, as_buffers=as_buffers)
        return MappingStore(values, origin=found) if read_only else found
