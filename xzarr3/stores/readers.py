"""Readers, writers and open values: how one thread reads and writes many values of a store.

A store gives each thread a :class:`Reader` or a :class:`Writer`. The classes here are built on the store's
public operations. A store that can do better returns classes of its own from ``_reader`` and ``_writer``.
"""

from __future__ import annotations

import contextlib
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Self, TypeAlias, TypeVar

from xzarr3._types import Buffer, ByteRange
from xzarr3.errors import (
    ChangedError,
    InvalidRangeError,
    OutcomeUnknownError,
    StoreError,
    contended,
)
from xzarr3.parallel import pause
from xzarr3.stores.locks import key_lock
from xzarr3.tracing.events import Listener, Request, told

if TYPE_CHECKING:
    from xzarr3.stores.base import Store


class Unchanged(Enum):
    """Says that a change leaves its value as it is."""

    UNCHANGED = 0


UNCHANGED: Final = Unchanged.UNCHANGED
"""What a change of a value returns to leave it as it is."""
Result = TypeVar("Result")
Change: TypeAlias = Callable[[Buffer | None], Sequence[Buffer] | Literal[Unchanged.UNCHANGED] | None]

_ATTEMPTS = 4  # To read parts of one version of a value while it is being replaced.
_FIRST_PAUSE = 0.002  # Seconds
_LONGEST_PAUSE = 1.0


class OversizedError(Exception):
    """A value is larger than its reader can use.

    Parameters
    ----------
    size, limit : int
        The size of the value and the largest accepted size, in bytes.
    """

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"found {size} bytes, at most {limit} bytes expected")
        self.size = size


class Scratch:
    """Reusable memory into which values are read one after the other; it grows as needed."""

    def __init__(self) -> None:
        self.memory = memoryview(bytearray(0))

    def part(self, size: int) -> memoryview:
        """The first ``size`` bytes."""
        if len(self.memory) < size:
            self.memory = memoryview(bytearray(max(size, 2**17)))
        return self.memory[:size]


def negative_length(length: int) -> InvalidRangeError:
    """The error for a byte range with a length below 0."""
    return InvalidRangeError(f"length {length} of a byte range; accepted: None, 0 or more bytes")


def cut(value: Buffer, byte_range: ByteRange) -> Buffer:
    """The part of ``value`` that ``byte_range`` names; a part beyond its end is shorter or empty.

    Raises
    ------
    InvalidRangeError
        If the length is negative.
    """
    start, length = byte_range
    if length is not None and length < 0:
        raise negative_length(length)
    if start < 0:
        start = max(len(value) + start, 0)
    view = memoryview(value)
    return view[start:] if length is None else view[start : start + length]


class Closing:
    """An object that is closed at the end of a ``with`` statement."""

    def close(self) -> None:
        """Release the resources of this object, if any."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ValueReader(Closing, ABC):
    """One stored value, opened to read parts of it.

    All parts come from the same version of the value, as far as the store can guarantee that.
    """

    size: int | None = None
    """Size of the whole value in bytes, if it is known without a request."""

    @property
    def version(self) -> object | None:
        """A different object for each version of the value; None if the store cannot tell versions apart."""
        return None

    @abstractmethod
    def read(self, start: int, length: int | None = None) -> Buffer:
        """``length`` bytes from ``start`` on, or to the end; a negative ``start`` counts from the end.

        The result is shorter where the value ends early.
        """

    def read_ranges(self, starts: Sequence[int], lengths: Sequence[int]) -> list[Buffer]:
        """Several parts, each as by :meth:`read`."""
        return [self.read(start, length) for start, length in zip(starts, lengths, strict=True)]

    def iter_ranges(self, starts: Sequence[int], lengths: Sequence[int]) -> Iterator[Buffer]:
        """The same parts one after the other; a part may be read only once it is requested."""
        return iter(self.read_ranges(starts, lengths))

    def read_into(self, start: int, out: memoryview) -> int:
        """Read from ``start`` on into ``out``; returns the number of bytes, fewer where the value ends."""
        part = self.read(start, len(out))
        out[: len(part)] = part
        return len(part)


def steady(read: Callable[[], Result]) -> Result:
    """Read again if the value was replaced meanwhile."""
    for _ in range(_ATTEMPTS - 1):
        with contextlib.suppress(ChangedError):
            return read()
    return read()


class BytesReader(ValueReader):
    """Parts of a value that is already in memory."""

    def __init__(self, value: Buffer) -> None:
        self.value = memoryview(value)
        self.size: int = len(value)

    def read(self, start: int, length: int | None = None) -> Buffer:
        if start >= 0 and length is not None and length >= 0:
            return self.value[start : start + length]
        return cut(self.value, (start, length))


class _RangeReader(ValueReader):
    """Reads each part with a request of its own."""

    def __init__(self, store: Store, key: str) -> None:
        self._store = store
        self._key = key

    def read(self, start: int, length: int | None = None) -> Buffer:
        value = self._store.get(self._key, (start, length))
        if value is None:
            raise StoreError(f"key '{self._key}' of {self._store} was removed while it was read")
        return value


class Reader:
    """Reads values of a store for one thread. A derived class checks its keys, as a store does.

    Parameters
    ----------
    store : Store
    scratch : Scratch, optional
        Memory for whole values. Each value read into it is valid until the next one is read.
    limit : int
        Whole values of more bytes are not read, if the store knows the size beforehand. Instead
        :class:`OversizedError` is raised.
    """

    def __init__(self, store: Store, scratch: Scratch | None = None, limit: int = sys.maxsize) -> None:
        self._store = store
        self._scratch = scratch
        self._limit = limit

    def get(self, key: str) -> Buffer | None:
        """A whole value, or None if the key has none."""
        return self._store.get(key)

    def get_ranges(
        self, key: str, starts: Sequence[int], lengths: Sequence[int]
    ) -> tuple[int | None, list[Buffer]] | None:
        """The size of a value, or None if not known, and several parts, shorter where the value ends.

        Returns None if the key has no value.
        """
        reader = self.open(key, (starts[0], lengths[0]) if starts else None)
        if reader is None:
            return None
        with reader:
            return reader.size, reader.read_ranges(starts, lengths)

    def get_into(self, key: str, start: int, out: memoryview) -> tuple[int | None, int] | None:
        """Read a part of a value into ``out``; returns the size of the value and the number of bytes.

        The number is less than ``len(out)`` where the value ends early. If the size is not known (None) and
        the value continues past ``out``, the number is ``len(out) + 1``. Returns None without a value.
        """
        reader = self.open(key, (start, len(out)))
        if reader is None:
            return None
        with reader:
            if reader.size is not None:
                return reader.size, reader.read_into(start, out)
            data = reader.read(start, len(out) + 1)
            out[: len(data)] = data[: len(out)]
            return None, len(data)

    def open(
        self, key: str, part: tuple[int, int] | None = None, version: object | None = None
    ) -> ValueReader | None:
        """Open a value to read parts of it; None if the key has none.

        Parameters
        ----------
        key : str
        part : (int, int), optional
            Start and length of the part that is read first; a negative start counts from the end. A store
            that needs a request to find the value fetches this part with the same request.
        version : object, optional
            :attr:`ValueReader.version` from an earlier opening. With it a store may return a reader without a
            request. That reader raises :class:`~xzarr3.errors.ChangedError` once it finds that the value has
            another version.
        """
        return _RangeReader(self._store, key) if self._store.exists(key) else None


class Writer(Closing):
    """Stores and changes values of a store, for one thread, within a ``with`` statement.

    A derived class checks its keys, as a store does.

    Parameters
    ----------
    store : Store
    scratch : Scratch, optional
        Memory for values that are read to be changed.
    limit : int
        As for :class:`Reader`, for values that are changed.
    """

    def __init__(self, store: Store, scratch: Scratch | None = None, limit: int = sys.maxsize) -> None:
        self._store = store
        self._scratch = scratch
        self._limit = limit

    def set(self, key: str, pieces: Sequence[Buffer]) -> None:
        """Store a value given as consecutive pieces."""
        self._store.set(key, joined(pieces))

    def update(self, key: str, change: Change) -> None:
        """Replace a value by a function of it; see :meth:`Store.update`."""
        import random

        store = self._store
        end = time.monotonic() + store.conflict_deadline
        longest = _FIRST_PAUSE
        attempts = 0
        in_doubt: Buffer | None = None  # Value of an attempt whose answer was lost.
        # Threads of this process take turns. Changes by other processes fail the comparison.
        with key_lock(store.identity, key):
            while True:
                stored, version = self._versioned(key)
                if in_doubt is not None and stored is not None and memoryview(stored) == in_doubt:
                    return
                pieces = change(stored)
                if pieces is UNCHANGED or (pieces is None and stored is None):
                    return
                attempts += 1
                value = None if pieces is None else joined(pieces)
                try:
                    if store.compare_and_set(key, version, value):
                        return
                except OutcomeUnknownError:
                    in_doubt = value
                if time.monotonic() >= end or not pause(random.uniform(0, longest)):
                    raise contended(
                        key,
                        store,
                        f"other writers changed it {attempts} times within {store.conflict_deadline:g} s",
                    )
                longest = min(2 * longest, _LONGEST_PAUSE)

    def _versioned(self, key: str) -> tuple[Buffer | None, object]:
        return self._store.get_versioned(key)


def joined(pieces: Sequence[Buffer]) -> Buffer:
    """The joined pieces of a value, safe to keep: the memory of the pieces may be reused."""
    owned = len(pieces) == 1 and isinstance(pieces[0], bytes)
    return pieces[0] if owned else b"".join(pieces)


# Versions that report their requests


class ToldReader(Reader):
    """A reader that reports each request to listeners."""

    def __init__(self, store: Store, inner: Reader, listeners: tuple[Listener, ...]) -> None:
        super().__init__(store)
        self._inner = inner
        self._listeners = listeners

    def _asked(
        self, operation: str, key: str, start: int | None = None, length: int | None = None, number: int = 1
    ) -> Request:
        return Request(self._store, self._listeners, operation, key, start, length, number)

    def get(self, key: str) -> Buffer | None:
        with self._asked("get", key) as request:
            value = self._inner.get(key)
            request.value(value)
            return value

    def get_ranges(
        self, key: str, starts: Sequence[int], lengths: Sequence[int]
    ) -> tuple[int | None, list[Buffer]] | None:
        with self._asked("get_ranges", key, *_first(starts, lengths), len(starts)) as request:
            found = self._inner.get_ranges(key, starts, lengths)
            request.values([None] if found is None else found[1])
            return found

    def get_into(self, key: str, start: int, out: memoryview) -> tuple[int | None, int] | None:
        with self._asked("get_into", key, start, len(out)) as request:
            found = self._inner.get_into(key, start, out)
            request.value(None if found is None else out[: found[1]])
            return found

    def open(
        self, key: str, part: tuple[int, int] | None = None, version: object | None = None
    ) -> ValueReader | None:
        with self._asked("open", key, *(part or (None, None))) as request:
            reader = self._inner.open(key, part, version)
            if isinstance(reader, BytesReader):  # The whole value is in memory; no request follows.
                request.size = reader.size
                return reader
            if reader is None:
                request.outcome = "absent"
                return None
            return _ToldValue(self, key, reader)


def _first(starts: Sequence[int], lengths: Sequence[int]) -> tuple[int | None, int | None]:
    return (starts[0], lengths[0]) if starts else (None, None)


class _ToldValue(ValueReader):
    """An open value that reports each read to listeners."""

    def __init__(self, reader: ToldReader, key: str, inner: ValueReader) -> None:
        self._asked = reader._asked
        self._key = key
        self._inner = inner

    @property
    def size(self) -> int | None:  # type: ignore[override]
        """Size of the whole value in bytes, if it is known without a request."""
        return self._inner.size

    @property
    def version(self) -> object | None:
        return self._inner.version

    def read(self, start: int, length: int | None = None) -> Buffer:
        with self._asked("read", self._key, start, length) as request:
            part = self._inner.read(start, length)
            request.value(part)
            return part

    def read_ranges(self, starts: Sequence[int], lengths: Sequence[int]) -> list[Buffer]:
        with self._asked("read_ranges", self._key, *_first(starts, lengths), len(starts)) as request:
            parts = self._inner.read_ranges(starts, lengths)
            request.values(parts)
            return parts

    def iter_ranges(self, starts: Sequence[int], lengths: Sequence[int]) -> Iterator[Buffer]:
        def later() -> Iterator[Buffer]:  # Sends no request before the first part is wanted.
            yield from self._inner.iter_ranges(starts, lengths)

        request = self._asked("iter_ranges", self._key, *_first(starts, lengths), len(starts))
        return told(request, later(), sizes=True)

    def read_into(self, start: int, out: memoryview) -> int:
        with self._asked("read_into", self._key, start, len(out)) as request:
            count = request.size = self._inner.read_into(start, out)
            return count

    def close(self) -> None:
        self._inner.close()


class ToldWriter(Writer):
    """A writer that reports each request to listeners."""

    def __init__(self, store: Store, inner: Writer, listeners: tuple[Listener, ...]) -> None:
        super().__init__(store)
        self._inner = inner
        self._listeners = listeners

    def set(self, key: str, pieces: Sequence[Buffer]) -> None:
        with Request(self._store, self._listeners, "set", key) as request:
            self._inner.set(key, pieces)
            request.size = sum(memoryview(piece).nbytes for piece in pieces)

    def update(self, key: str, change: Change) -> None:
        with Request(self._store, self._listeners, "update", key) as request:
            self._inner.update(key, request.changing(change, key))

    def close(self) -> None:
        self._inner.close()
