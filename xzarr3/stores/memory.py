"""A store in the memory of this process."""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Iterator, Mapping, MutableMapping, Sequence

from xzarr3._types import Buffer, ByteRange
from xzarr3.errors import ReadOnlyError
from xzarr3.parallel import is_child
from xzarr3.stores.base import ABSENT, Parts, Store, check_key, cut, flat, merge
from xzarr3.stores.locks import fork_safe
from xzarr3.stores.readers import BytesReader, Reader, Scratch, ValueReader
from xzarr3.stores.sharing import is_plain

_LIVE: weakref.WeakValueDictionary[str, MemoryStore] = weakref.WeakValueDictionary()


class MemoryStore(Store):
    """Keys and values in a dictionary.

    Unpickled in the same process, the result is the same store. Unpickled in another process, it is a
    read-only copy, because writes there could not reach the original. In a process forked by
    :mod:`multiprocessing`, a store made before the fork is read-only too.

    Parameters
    ----------
    values : mapping of str to bytes, optional
        The initial contents.
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
    writes_conditionally = True

    def __init__(self, values: Mapping[str, Buffer] | None = None, *, read_only: bool = False) -> None:
        super().__init__(read_only=read_only)
        self._values: MutableMapping[str, Buffer] = {
            check_key(key): bytes(flat(value, key)) for key, value in (values or {}).items()
        }
        self._lock = fork_safe(threading.Lock())
        self._version = 0
        self._is_copy = False
        self._pid = os.getpid()
        _LIVE[self._identity] = self

    def __repr__(self) -> str:
        return f"<MemoryStore, {len(self._values)} keys>"

    def __reduce__(self) -> tuple[object, ...]:
        with self._lock:
            found = self._identity, dict(self._values), self._version
        kind, own = type(self), {name: value for name, value in vars(self).items() if name not in _OF_EACH}
        if kind is MemoryStore or "<locals>" in kind.__qualname__ or not is_plain(own):
            return restored, found  # Other processes may not know the derived class.
        return restored, (*found, kind, own)

    def _get(self, key: str, byte_range: ByteRange | None) -> Buffer | None:
        value = self._values.get(key)
        return value if value is None or byte_range is None else cut(value, byte_range)

    def _exists(self, key: str) -> bool:
        return key in self._values

    def _reader(self, scratch: Scratch | None, limit: int) -> Reader:
        return _MemoryReader(self, scratch, limit)

    def _get_versioned(self, key: str) -> tuple[Buffer | None, object]:
        value = self._values.get(key)
        return value, ABSENT if value is None else value

    def _compare_and_set(self, key: str, version: object, value: bytes | None) -> bool:
        with self._lock:
            stored = self._values.get(key)
            if (ABSENT if stored is None else stored) != version:
                return False
            self._version += 1
            if value is None:
                self._values.pop(key, None)
            else:
                self._values[key] = value
            return True

    def version(self, key: str) -> object | None:
        return self._values.get(key)

    def stamp(self, keys: Sequence[str]) -> object:
        return self._version

    def _check_writable(self) -> None:
        if self._is_copy or (self._pid != os.getpid() and is_child()):
            raise ReadOnlyError(
                f"{self} is a copy in another process, which cannot be written; use threads, or a store that "
                "processes share, such as a directory"
            )
        super()._check_writable()

    def _set(self, key: str, value: bytes) -> None:
        with self._lock:
            self._values[key] = value
            self._version += 1

    def _set_partial_values(self, parts: dict[str, Parts]) -> None:
        with self._lock:
            changed = {key: merge(key, self._values.get(key), pieces) for key, pieces in parts.items()}
            self._values.update({key: bytes(value) for key, value in changed.items()})
            self._version += len(changed)

    def _erase(self, key: str) -> None:
        with self._lock:
            self._values.pop(key, None)
            self._version += 1

    def _list(self, prefix: str) -> Iterator[str]:
        with self._lock:
            return iter(list(self._values))

    def _list_sizes(self, prefix: str) -> Iterator[tuple[str, int | None]]:
        with self._lock:
            return iter([(key, len(value)) for key, value in self._values.items()])


class _MemoryReader(Reader):
    """Reads values that are in memory."""

    _store: MemoryStore

    def get(self, key: str) -> Buffer | None:
        return self._store._values.get(check_key(key))

    def open(
        self, key: str, part: tuple[int, int] | None = None, version: object | None = None
    ) -> ValueReader | None:
        value = self._store._values.get(check_key(key))
        return None if value is None else BytesReader(value)


_OF_EACH = frozenset(("_identity", "_is_copy", "_lock", "_pid", "_values", "_version", "read_only"))


def restored(
    identity: str,
    values: dict[str, Buffer],
    version: int,
    kind: type[MemoryStore] = MemoryStore,
    own: Mapping[str, object] | None = None,
) -> MemoryStore:
    """The store of a pickled form: the original in its own process, else a copy that cannot be written."""
    store = _LIVE.get(identity)
    # A forked child is another process. Copies may have been made at any time.
    if store is None or store._pid != os.getpid() or (store.read_only and store._version != version):
        store = kind.__new__(kind)
        MemoryStore.__init__(store, values, read_only=True)
        vars(store).update(own or {})
        store._identity = identity
        store._version = version
        store._is_copy = True
        _LIVE[identity] = store
    return store
