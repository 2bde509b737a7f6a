"""A store that notes every request, around another one."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import xzarr3
from xzarr3.stores import Store
from xzarr3.stores.base import Reader, ValueReader


class Request(NamedTuple):
    """One request: the bytes asked for, of a value that has ``size`` of them."""

    key: str
    start: int
    length: int
    size: int


class RecordingStore(Store):
    """Hands everything on to another store, and notes what is asked for below :attr:`prefix`.

    Documents are not noted. Neither is a key that has no value, nor asking whether it has one.
    """

    def __init__(self, inner: Store, request_bytes: int = 64) -> None:
        super().__init__()
        self.inner = inner
        self.request_bytes = request_bytes
        self.requests: list[Request] = []
        self._noting = threading.Lock()

    @property
    def identity(self) -> object:
        return "RecordingStore", self.inner.identity

    def _note(self, key: str, start: int, length: int | None) -> None:
        if key.rpartition("/")[2] in ("zarr.json", ".zarray", ".zattrs"):
            return
        value = self.inner.get(key)
        if value is not None:
            size = len(value)
            first = max(size + start, 0) if start < 0 else start
            with self._noting:
                self.requests.append(Request(key, first, size - first if length is None else length, size))

    @contextmanager
    def recorded(self) -> Iterator[list[Request]]:
        """The requests made in a ``with`` statement."""
        found: list[Request] = []
        self.requests = found
        yield found
        self.requests = []

    def get(self, key: str, byte_range: Any = None) -> Any:
        self._note(key, *(byte_range or (0, None)))
        return self.inner.get(key, byte_range)

    def exists(self, key: str) -> bool:
        return self.inner.exists(key)

    def _reader(self, scratch: Any, limit: int) -> Reader:
        return _RecordingReader(self, self.inner.reader(scratch, limit))

    def version(self, key: str) -> object | None:
        return self.inner.version(key)

    def set(self, key: str, value: Any) -> None:
        self.inner.set(key, value)

    def erase(self, key: str) -> None:
        self.inner.erase(key)

    def list_prefix(self, prefix: str) -> Iterator[str]:
        return self.inner.list_prefix(prefix)


class _RecordingReader(Reader):
    _store: RecordingStore

    def __init__(self, store: RecordingStore, inner: Reader) -> None:
        super().__init__(store)
        self._inner = inner

    def open(self, key: str, part: Any = None, version: object | None = None) -> Any:
        reader = self._inner.open(key, None, version)
        return None if reader is None else _Recorded(self._store, key, reader)

    def get(self, key: str) -> Any:
        self._store._note(key, 0, None)
        return self._inner.get(key)

    def get_ranges(self, key: str, starts: Sequence[int], lengths: Sequence[int]) -> Any:
        for start, length in zip(starts, lengths, strict=True):
            self._store._note(key, start, length)
        return self._inner.get_ranges(key, starts, lengths)

    def get_into(self, key: str, start: int, out: memoryview) -> Any:
        self._store._note(key, start, len(out))
        return self._inner.get_into(key, start, out)


class _Recorded(ValueReader):
    def __init__(self, store: RecordingStore, key: str, inner: ValueReader) -> None:
        self._store = store
        self._key = key
        self._inner = inner
        self.size = inner.size

    @property
    def version(self) -> object | None:
        return self._inner.version

    def read(self, start: int, length: int | None = None) -> Any:
        self._store._note(self._key, start, length)
        return self._inner.read(start, length)

    def read_ranges(self, starts: Sequence[int], lengths: Sequence[int]) -> Any:
        for start, length in zip(starts, lengths, strict=True):
            self._store._note(self._key, start, length)
        return self._inner.read_ranges(starts, lengths)

    def read_into(self, start: int, out: memoryview) -> int:
        self._store._note(self._key, start, len(out))
        return self._inner.read_into(start, out)

    def close(self) -> None:
        self._inner.close()


def recording(inner: xzarr3.Store | None = None, request_bytes: int = 64) -> RecordingStore:
    """A recording store, around one in memory unless another is given."""
    return RecordingStore(xzarr3.MemoryStore() if inner is None else inner, request_bytes)
