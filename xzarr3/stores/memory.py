"""A store in the memory of this process."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence

from xzarr3._types import Buffer, ByteRange
from xzarr3.errors import ReadOnlyError
from xzarr3.stores.base import Store, ValueReader, check_key, check_prefix, cut, flat, merge, sorted_parts

_LIVE: weakref.WeakValueDictionary[str, MemoryStore] = weakref.WeakValueDictionary()


def _forget() -> None:
    """A forked child is another process: it gets copies, and no lock that a thread of its parent held."""
    for store in list(_LIVE.values()):
        store._lock = threading.Lock()
    _LIVE.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


class MemoryStore(Store):
    """Keys and values in a dictionary.

    Pickled and read back in the same process it is the same store; in another process it is a
    read-only copy, because what is written there could not come back.

    Parameters
    ----------
    values : mapping of str to bytes, optional
        What the store holds at first.
    read_only : bool
        Refuse every write.

    Examples
    --------
    >>> store = MemoryStore()
    >>> store.set("a/b", b"value")
    >>> bytes(store.get("a/b", (1, 3)))
    b'alu'
    >>> store.get("a/c") is None
    True
    >>> sorted(store.list_dir("")[1])
    ['a/']
    """

    request_bytes = 2**10

    def __init__(self, values: Mapping[str, Buffer] | None = None, *, read_only: bool = False) -> None:
        super().__init__(read_only=read_only)
        self._values = {check_key(key): bytes(flat(value, key)) for key, value in (values or {}).items()}
        self._lock = threading.Lock()
        self._version = 0
        self._is_copy = False
        _LIVE[self._identity] = self

    def __repr__(self) -> str:
        return f"<MemoryStore, {len(self._values)} keys>"

    def __reduce__(self) -> tuple[object, ...]:
        with self._lock:
            return _restore, (self._identity, dict(self._values), self._version)

    def __dask_tokenize__(self) -> object:
        return self.identity, self._version

    def get(self, key: str, byte_range: ByteRange | None = None) -> Buffer | None:
        value = self._values.get(check_key(key))
        return value if value is None or byte_range is None else cut(value, byte_range)

    def exists(self, key: str) -> bool:
        return check_key(key) in self._values

    def open_value(self, key: str) -> ValueReader | None:
        if type(self).get is not _GET:  # Of a class derived from this one, which is to be asked.
            return super().open_value(key)
        value = self._values.get(check_key(key))
        return None if value is None else BytesReader(value)

    def version(self, key: str) -> object | None:
        return self._values.get(key)

    def stamp(self, keys: Sequence[str]) -> object:
        return self._version

    def _check_writable(self) -> None:
        if self.read_only and self._is_copy:
            raise ReadOnlyError(
                f"{self} is a copy in another process, which cannot be written; accepted: threads, or a "
                "store that processes share, such as a directory"
            )
        super()._check_writable()

    def set(self, key: str, value: Buffer) -> None:
        self._check_writable()
        check_key(key)
        copied = bytes(flat(value, key))
        with self._lock:
            self._values[key] = copied
            self._version += 1

    def set_partial_values(self, key_start_values: Iterable[tuple[str, int, Buffer]]) -> None:
        self._check_writable()
        parts = sorted_parts(key_start_values)
        with self._lock:
            changed = {key: merge(key, self._values.get(key), pieces) for key, pieces in parts.items()}
            self._values.update({key: bytes(value) for key, value in changed.items()})
            self._version += len(changed)

    def erase(self, key: str) -> None:
        self._check_writable()
        check_key(key)
        with self._lock:
            self._values.pop(key, None)
            self._version += 1

    def list_prefix(self, prefix: str) -> Iterator[str]:
        check_prefix(prefix)
        with self._lock:
            keys = list(self._values)
        return (key for key in keys if key.startswith(prefix))


_GET = MemoryStore.get


class BytesReader(ValueReader):
    """Parts of a value that is in memory already."""

    def __init__(self, value: Buffer) -> None:
        self.value = memoryview(value)
        self.size: int = len(value)

    def read(self, start: int, length: int | None = None) -> Buffer:
        if start >= 0 and length is not None and length >= 0:
            return self.value[start : start + length]
        return cut(self.value, (start, length))


def _restore(identity: str, values: dict[str, Buffer], version: int) -> MemoryStore:
    store = _LIVE.get(identity)
    if store is None or (store.read_only and store._version != version):  # Copies may be of any age.
        store = MemoryStore(values, read_only=True)
        store._identity = identity
        store._version = version
        store._is_copy = True
        _LIVE[identity] = store
    return store
