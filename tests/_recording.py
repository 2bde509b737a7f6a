"""What is asked of stores: a store that notes each byte range, and a list of the requests of all stores."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec

import xzarr3
from xzarr3.stores import BytesValue, Store, Value, WrapperStore
from xzarr3.tracing import events


@contextmanager
def heard() -> Iterator[list[events.Request]]:
    """The requests to all stores during a ``with`` statement; native code does nothing meanwhile."""
    found: list[events.Request] = []
    listener, everywhere = found.append, events.everywhere
    everywhere.listeners = (*everywhere.listeners, listener)
    try:
        yield found
    finally:
        everywhere.listeners = tuple(other for other in everywhere.listeners if other is not listener)


class Request(NamedTuple):
    """One request: the bytes asked for, of a value that has ``size`` of them."""

    key: str
    start: int
    length: int
    size: int


class RecordingStore(WrapperStore):
    """Hands everything on to another store, and notes what is read.

    Parts of a value are read one by one, even if the other store has all of it in memory; it then has no
    version, so that the index of a shard is read each time. Documents are not noted. Neither is a key that
    has no value, nor asking whether it has one.
    """

    def __init__(self, inner: Store, request_bytes: int = 64, **traits: Any) -> None:
        super().__init__(inner)
        traits |= {"request_bytes": request_bytes, "conditional": inner.traits.conditional}
        self.traits = msgspec.structs.replace(Store.traits, **traits)
        self.requests: list[Request] = []

    @property
    def identity(self) -> object:
        return "RecordingStore", self.inner.identity

    def _note(self, key: str, start: int, length: int | None, size: int) -> None:
        if key.rpartition("/")[2] not in ("zarr.json", ".zarray", ".zattrs"):
            first = max(size + start, 0) if start < 0 else start
            self.requests.append(Request(key, first, size - first if length is None else length, size))

    @contextmanager
    def recorded(self) -> Iterator[list[Request]]:
        """The requests made in a ``with`` statement."""
        self.requests = found = []
        yield found
        self.requests = []

    def get(self, key: str, byte_range: Any = None) -> Any:
        value = self.open(key)
        if value is None:
            return None
        with value:
            return value.read(*(byte_range or (0, None)))

    def open(self, key: str, first: Any = None, version: object | None = None) -> Value | None:
        inner = self.inner.open(key, None, version)
        return None if inner is None else _Recorded(self, key, inner)


class _Recorded(Value):
    def __init__(self, store: RecordingStore, key: str, inner: Value) -> None:
        self._store, self._key, self._inner = store, key, inner
        self.size = inner.size

    @property
    def version(self) -> object | None:
        return None if isinstance(self._inner, BytesValue) else self._inner.version

    def read(self, start: int, length: int | None = None) -> Any:
        assert self.size is not None
        self._store._note(self._key, start, length, self.size)
        return self._inner.read(start, length)

    def close(self) -> None:
        self._inner.close()


def recording(inner: xzarr3.Store | None = None, request_bytes: int = 64, **traits: Any) -> RecordingStore:
    """A recording store, around one in memory unless another is given."""
    inner = xzarr3.MemoryStore() if inner is None else inner
    return RecordingStore(inner, request_bytes, **traits)
