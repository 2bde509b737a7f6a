"""A store in the memory of this process."""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence

from xzarr3._types import Buffer, ByteRange
from xzarr3.concurrency import is_child
from xzarr3.errors import ReadOnlyError
from xzarr3.stores.base import (
    Store,
    ValueReader,
    check_key,
    check_prefix,
    cut,
    flat,
    is_same,
    merge,
    sorted_parts,
)
from xzarr3.stores.sharing import is_plain

_LIVE: weakref.WeakValueDictionary[str, MemoryStore] = weakref.WeakValueDictionary()


def _forget() -> None:
    """A forked child is another process: it gets copies, and no lock that a thread of its parent held."""
    for store in list(_LIVE.values()):
        store._lock = threading.Lock()
        store._is_inherited = True
    _LIVE.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


class MemoryStore(Store):
    """Keys and values in a dictionary.

    Pickled and read back in the same process it is the same store; in another process it is a
    read-only copy, because what is written there could not come back. So is one that was there before
    :mod:`multiprocessing` forked a process, in that process.

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
    over_read = math.inf

    def __init__(self, values: Mapping[str, Buffer] | None = None, *, read_only: bool = False) -> None:
        super().__init__(read_only=read_only)
        self._values = {check_key(key): bytes(flat(value, key)) for key, value in (values or {}).items()}
        self._lock = threading.Lock()
        self._version = 0
        self._is_copy = False
        self._is_inherited = False
        _LIVE[self._identity] = self

    def __repr__(self) -> str:
        return f"<MemoryStore, {len(self._values)} keys>"

    def __reduce__(self) -> tuple[object, ...]:
        with self._lock:
            found = self._identity, dict(self._values), self._version
        kind, own = type(self), {name: value for name, value in vars(self).items() if name not in _OF_EACH}
        if kind is MemoryStore or "<locals>" in kind.__qualname__ or not is_plain(own):
            return _restore, found  # Elsewhere it is one of this class, which is all that is known of it.
        return _restore, (*found, kind, own)

    def __dask_tokenize__(self) -> object:
        return self.identity, self._version

    def get(self, key: str, byte_range: ByteRange | None = None) -> Buffer | None:
        value = self._values.get(check_key(key))
        return value if value is None or byte_range is None else cut(value, byte_range)

    def exists(self, key: str) -> bool:
        return check_key(key) in self._values

    def open_value(self, key: str) -> ValueReader | None:
        if not is_same(type(self).get, _GET):  # Of a class derived from this one, which is to be asked.
            return super().open_value(key)
        value = self._values.get(check_key(key))
        return None if value is None else BytesReader(value)

    def version(self, key: str) -> object | None:
        return self._values.get(key)

    def stamp(self, keys: Sequence[str]) -> object:
        return self._version

    def _check_writable(self) -> None:
        if self._is_copy or (self._is_inherited and is_child()):
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


_OF_EACH = frozenset(("_identity", "_is_copy", "_is_inherited", "_lock", "_values", "_version", "read_only"))


def _restore(
    identity: str,
    values: dict[str, Buffer],
    version: int,
    kind: type[MemoryStore] = MemoryStore,
    own: Mapping[str, object] | None = None,
) -> MemoryStore:
    store = _LIVE.get(identity)
    if store is None or (store.read_only and store._version != version):  # Copies may be of any age.
        store = kind.__new__(kind)
        MemoryStore.__init__(store, values, read_only=True)
        vars(store).update(own or {})
        store._identity = identity
        store._version = version
        store._is_copy = True
        _LIVE[identity] = store
    return store
