"""A store that tells what is asked of another one: to a logger, as records and as a table of totals.

Keys and numbers are told, never values, nor the texts of errors.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any, NamedTuple

from xzarr3._types import Buffer, ByteRange
from xzarr3.errors import shorten
from xzarr3.stores.base import (
    UNCHANGED,
    Change,
    IntoLoader,
    KeySet,
    Loader,
    RangeLoader,
    Scratch,
    Updater,
    ValueReader,
    Writer,
    flat,
)
from xzarr3.stores.memory import BytesReader, MemoryStore
from xzarr3.stores.opening import StoreLike
from xzarr3.stores.sharing import reduced
from xzarr3.stores.wrappers import WrapperStore, handed_on

_counting = threading.Lock()


def _renew_lock() -> None:
    """A forked child must not wait for a thread of its parent to give the lock back."""
    global _counting
    _counting = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


class Request(NamedTuple):
    """What was asked of a store, and how that ended."""

    operation: str
    """The method of the store, of a loader of it, or of an open value."""
    key: str
    """The key or the prefix; the first one of several."""
    start: int | None
    """First byte of a part, or of the first one of several; a negative one counts from the end."""
    length: int | None
    """Bytes asked for; None if it is all there is."""
    number: int
    """How many values, parts or keys were asked for or listed."""
    size: int
    """Bytes that were read or written."""
    began: float
    """When, in seconds since 1970."""
    seconds: float
    """How long it took."""
    outcome: str
    """``ok``, ``absent``, ``changed`` or the name of the error."""


class Total(NamedTuple):
    """What all requests of one operation amount to."""

    operation: str
    requests: int
    size: int
    seconds: float
    absent: int
    failed: int


class Summary(tuple[Total, ...]):
    """The totals of all operations; a table when it is printed."""

    __slots__ = ()

    def __str__(self) -> str:
        columns = zip(*(row[1:] for row in self), strict=True) if self else ((0,),) * 5
        everything = Total("total", *(sum(column) for column in columns))
        width = max(len(row.operation) for row in (*self, everything, _TITLE))
        lines = [f"{'operation':<{width}}  requests       bytes   seconds  absent  failed"]
        lines += [
            f"{row.operation:<{width}}  {row.requests:8}  {_bytes(row.size):>10}  {row.seconds:8.3f}  "
            f"{row.absent:6}  {row.failed:6}"
            for row in (*self, everything)
        ]
        return "\n".join(lines)

    __repr__ = __str__


_TITLE = Total("operation", 0, 0, 0.0, 0, 0)


def _bytes(number: int) -> str:
    amount, units = float(number), ["PB", "TB", "GB", "MB", "kB"]
    if number < 1000:
        return f"{number} B"
    while amount >= 999.95 and units:
        amount /= 1000
        unit = units.pop()
    return f"{amount:.1f} {unit}"


class _Note:
    """One request while it is made."""

    __slots__ = (
        *("began", "key", "length", "number", "operation"),
        *("outcome", "size", "start", "started", "store"),
    )

    def __init__(
        self,
        store: LoggingStore,
        operation: str,
        key: str,
        start: int | None = None,
        length: int | None = None,
        number: int = 1,
    ) -> None:
        self.store = store
        self.operation = operation
        self.key = key
        self.start = start
        self.length = length
        self.number = number
        self.size = 0
        self.outcome = "ok"

    def __enter__(self) -> _Note:
        self.began = time.time()
        self.started = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        seconds = time.perf_counter() - self.started
        if kind is not None:
            self.outcome = kind.__name__
        self.store._note(self, seconds)

    def value(self, value: Buffer | None) -> None:
        """Note what was read, if anything."""
        if value is None:
            self.outcome = "absent"
        else:
            self.size = value.nbytes if isinstance(value, memoryview) else len(value)

    def values(self, values: Sequence[Buffer | None]) -> None:
        """Note what was read of several values or parts."""
        self.size = sum(len(value) for value in values if value is not None)
        if values and all(value is None for value in values):
            self.outcome = "absent"


class LoggingStore(WrapperStore):
    """Hands everything on to another store, and tells what was asked of it and how long that took.

    While nobody listens, which is when the logger is not enabled for the level and no records are kept, this
    costs next to nothing. What is in progress when somebody begins to listen may stay untold.

    Parameters
    ----------
    store : Store, path or URL
    logger : logging.Logger, optional
        By default the one called ``xzarr3.stores``.
    level : int
        The level of the messages.
    keep : int
        How many of the newest requests are kept as records; 0 keeps none, and counts none either.

    Attributes
    ----------
    records : tuple of Request
        The newest requests, the oldest of them first.

    Examples
    --------
    >>> from xzarr3 import MemoryStore
    >>> store = LoggingStore(MemoryStore({"a": b"12345", "b": b"123"}))
    >>> _ = store.get("a", (1, 3)), store.get("none")
    >>> for request in store.records:
    ...     print(request.operation, request.key, request.start, request.length, request.outcome)
    get a 1 3 ok
    get none None None absent
    >>> store.summary()[0][:3]
    ('get', 2, 3)
    """

    _kind_of_note = _Note

    def __init__(
        self,
        store: StoreLike,
        logger: logging.Logger | None = None,
        level: int = logging.DEBUG,
        *,
        keep: int = 10_000,
    ) -> None:
        super().__init__(store)
        self.logger = logging.getLogger("xzarr3.stores") if logger is None else logger
        self.level = level
        self.keep = keep
        self._begin()

    def _begin(self) -> None:
        self._records: deque[Request] = deque(maxlen=self.keep)
        self._totals: dict[str, list[Any]] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return reduced(self, LoggingStore)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_records"], state["_totals"]  # What happens elsewhere is counted there.
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    @property
    def records(self) -> tuple[Request, ...]:
        """The newest requests, the oldest of them first."""
        with _counting:
            return tuple(self._records)

    def summary(self) -> Summary:
        """The totals of all requests so far, of each operation; those of several threads add up."""
        with _counting:
            return Summary(Total(name, *self._totals[name]) for name in sorted(self._totals))

    def clear(self) -> None:
        """Forget all requests so far."""
        with _counting:
            self._begin()

    def _heard(self) -> bool:
        return self.keep > 0 or self.logger.isEnabledFor(self.level)

    def _told(
        self,
        operation: str,
        key: str,
        start: int | None = None,
        length: int | None = None,
        number: int = 1,
    ) -> _Note:
        if not self._heard():
            return _UNHEARD
        return self._kind_of_note(self, operation, key, start, length, number)

    def _note(self, note: _Note, seconds: float) -> None:
        outcome = note.outcome
        if self.keep:
            request = Request(
                note.operation, note.key, note.start, note.length, note.number, note.size, note.began,
                seconds, outcome,
            )  # fmt: skip
            with _counting:
                self._records.append(request)
                total = self._totals.get(note.operation)
                if total is None:
                    total = self._totals[note.operation] = [0, 0, 0.0, 0, 0]
                total[0] += 1
                total[1] += note.size
                total[2] += seconds
                if outcome != "ok":
                    total[3 if outcome == "absent" else 4] += outcome != "changed"
        if self.logger.isEnabledFor(self.level):
            where = "" if note.start is None else f" from {note.start}"
            where += "" if note.length is None else f", {note.length} bytes asked for"
            where += "" if note.number == 1 else f", {note.number} in all"
            self.logger.log(
                self.level, "%s %s%s: %d bytes in %.6f s, %s",
                note.operation, shorten(note.key, 1000), where, note.size, seconds, outcome,
            )  # fmt: skip

    # Readable

    @handed_on
    def get(self, key: str, byte_range: ByteRange | None = None) -> Buffer | None:
        with self._told("get", key, *(byte_range or (None, None))) as note:
            value = self.inner.get(key, byte_range)
            note.value(value)
            return value

    @handed_on
    def get_partial_values(self, key_ranges: Iterable[tuple[str, ByteRange]]) -> list[Buffer | None]:
        wanted = list(key_ranges)
        key, (start, length) = wanted[0] if wanted else ("", (None, None))
        with self._told("get_partial_values", key, start, length, len(wanted)) as note:
            values = self.inner.get_partial_values(wanted)
            note.values(values)
            return values

    @handed_on
    def get_values(self, keys: Iterable[str]) -> list[Buffer | None]:
        wanted = list(keys)
        with self._told("get_values", wanted[0] if wanted else "", number=len(wanted)) as note:
            values = self.inner.get_values(wanted)
            note.values(values)
            return values

    @handed_on
    def exists(self, key: str) -> bool:
        with self._told("exists", key) as note:
            found = self.inner.exists(key)
            note.outcome = "ok" if found else "absent"
            return found

    def _opened(self, note: _Note, reader: ValueReader | None) -> ValueReader | None:
        if note is _UNHEARD:
            return reader
        if reader is None:
            note.outcome = "absent"
        elif isinstance(reader, BytesReader):  # All of it is here already; nothing more will be asked for.
            note.size = reader.size
            return reader
        return None if reader is None else _LoggedReader(self, note.key, reader)

    @handed_on
    def open_value(self, key: str) -> ValueReader | None:
        with self._told("open_value", key) as note:
            return self._opened(note, self.inner.open_value(key))

    @handed_on
    def open_part(
        self, key: str, start: int, length: int, version: object | None = None
    ) -> ValueReader | None:
        with self._told("open_part", key, start, length) as note:
            return self._opened(note, self.inner.open_part(key, start, length, version))

    @handed_on
    def loader(self) -> Loader:
        return self._loader("loader", self.inner.loader())

    @handed_on
    def scratch_loader(self, scratch: Scratch, limit: int) -> Loader:
        return self._loader("scratch_loader", self.inner.scratch_loader(scratch, limit))

    def _loader(self, operation: str, load: Loader) -> Loader:
        def noted(key: str) -> Buffer | None:
            with self._told(operation, key) as note:
                value = load(key)
                note.value(value)
                return value

        return noted if self._heard() else load

    @handed_on
    def range_loader(self) -> RangeLoader:
        load = self.inner.range_loader()

        def noted(
            key: str, starts: Sequence[int], lengths: Sequence[int]
        ) -> tuple[int | None, list[Buffer]] | None:
            with self._told("range_loader", key, *_first(starts, lengths), len(starts)) as note:
                found = load(key, starts, lengths)
                note.values([None] if found is None else found[1])
                return found

        return noted if self._heard() else load

    @handed_on
    def into_loader(self) -> IntoLoader:
        load = self.inner.into_loader()

        def noted(key: str, start: int, out: memoryview) -> tuple[int | None, int] | None:
            with self._told("into_loader", key, start, len(out)) as note:
                found = load(key, start, out)
                note.value(None if found is None else out[: found[1]])
                return found

        return noted if self._heard() else load

    # Changes that lose no others

    @handed_on
    def get_versioned(self, key: str) -> tuple[Buffer | None, object]:
        with self._told("get_versioned", key) as note:
            value, version = self.inner.get_versioned(key)
            note.value(value)
            return value, version

    @handed_on
    def compare_and_set(self, key: str, version: object, value: Buffer | None) -> bool:
        with self._told("compare_and_set", key) as note:
            done = super().compare_and_set(key, version, value)
            if not done:
                note.outcome = "changed"
            elif value is not None:
                note.size = flat(value, key).nbytes
            return done

    @handed_on
    def update(self, key: str, change: Change) -> None:
        self._noted_update(super().update, "update", key, change)

    @handed_on
    def updater(
        self, scratch: Scratch | None = None, limit: int = sys.maxsize
    ) -> AbstractContextManager[Updater]:
        opened = super().updater(scratch, limit)
        return self._updater(opened) if self._heard() else opened

    @contextmanager
    def _updater(self, opened: AbstractContextManager[Updater]) -> Iterator[Updater]:
        with opened as update:
            yield lambda key, change: self._noted_update(update, "updater", key, change)

    def _noted_update(self, update: Updater, operation: str, key: str, change: Change) -> None:
        """``number`` is how often the value was read and changed."""
        with self._told(operation, key, number=0) as note:

            def noted(stored: Buffer | None) -> Any:
                note.number += 1
                pieces = change(stored)
                note.size = 0
                if pieces is not None and pieces is not UNCHANGED:
                    note.size = sum(flat(piece, key).nbytes for piece in pieces)
                return pieces

            update(key, noted)

    # Writeable

    @handed_on
    def set(self, key: str, value: Buffer) -> None:
        with self._told("set", key) as note:
            super().set(key, value)
            note.size = flat(value, key).nbytes

    @handed_on
    def set_partial_values(self, key_start_values: Iterable[tuple[str, int, Buffer]]) -> None:
        parts = list(key_start_values)
        key, start, _ = parts[0] if parts else ("", None, b"")
        with self._told("set_partial_values", key, start, number=len(parts)) as note:
            super().set_partial_values(parts)
            note.size = sum(flat(value, key).nbytes for key, _, value in parts)

    @handed_on
    def set_values(self, items: Iterable[tuple[str, Buffer]]) -> None:
        wanted = list(items)
        with self._told("set_values", wanted[0][0] if wanted else "", number=len(wanted)) as note:
            super().set_values(wanted)
            note.size = sum(flat(value, key).nbytes for key, value in wanted)

    @handed_on
    def copy_values(self, pairs: Iterable[tuple[str, str]]) -> None:
        wanted = list(pairs)
        with self._told("copy_values", wanted[0][0] if wanted else "", number=len(wanted)):
            super().copy_values(wanted)

    @handed_on
    def writer(self) -> AbstractContextManager[Writer]:
        opened = super().writer()
        return self._writer(opened) if self._heard() else opened

    @contextmanager
    def _writer(self, opened: AbstractContextManager[Writer]) -> Iterator[Writer]:
        with opened as write:

            def noted(key: str, pieces: Sequence[Buffer]) -> None:
                with self._told("writer", key) as note:
                    write(key, pieces)
                    note.size = sum(flat(piece, key).nbytes for piece in pieces)

            yield noted

    @handed_on
    def erase(self, key: str) -> None:
        with self._told("erase", key):
            super().erase(key)

    @handed_on
    def erase_values(self, keys: Iterable[str]) -> None:
        wanted = list(keys)
        with self._told("erase_values", wanted[0] if wanted else "", number=len(wanted)):
            super().erase_values(wanted)

    @handed_on
    def erase_prefix(self, prefix: str) -> None:
        with self._told("erase_prefix", prefix):
            super().erase_prefix(prefix)

    @handed_on
    def sweep(self, prefix: str = "") -> None:
        with self._told("sweep", prefix):
            super().sweep(prefix)

    # Listable

    @handed_on
    def list(self) -> Iterator[str]:
        return self._listed("list", "", self.inner.list())

    @handed_on
    def list_prefix(self, prefix: str) -> Iterator[str]:
        return self._listed("list_prefix", prefix, self.inner.list_prefix(prefix))

    def _listed(self, operation: str, prefix: str, keys: Iterator[str]) -> Iterator[str]:
        return _timed(self._kind_of_note(self, operation, prefix, number=0), keys) if self._heard() else keys

    @handed_on
    def list_dir(self, prefix: str) -> tuple[KeySet, KeySet]:
        with self._told("list_dir", prefix) as note:
            keys, prefixes = self.inner.list_dir(prefix)
            note.number = len(keys) + len(prefixes)
            return keys, prefixes


def _first(starts: Sequence[int], lengths: Sequence[int]) -> tuple[int | None, int | None]:
    return (starts[0], lengths[0]) if starts else (None, None)


def _timed(note: _Note, items: Iterator[Any], *, measure: bool = False) -> Iterator[Any]:
    """Items that come one after the other; the time between them is that of whoever takes them."""
    note.began = time.time()
    seconds = 0.0
    try:
        while True:
            started = time.perf_counter()
            try:
                item = next(items)
            except StopIteration:
                return
            except BaseException as error:
                note.outcome = type(error).__name__
                raise
            finally:
                seconds += time.perf_counter() - started
            if measure:
                note.size += len(item)
            else:
                note.number += 1
            yield item
    finally:
        note.store._note(note, seconds)


class _Unheard(_Note):
    """A request that nobody wants to hear of; all threads have the same one."""

    __slots__ = ()

    def __enter__(self) -> _Note:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class _LoggedReader(ValueReader):
    """Tells of each part that is read of an open value."""

    def __init__(self, store: LoggingStore, key: str, inner: ValueReader) -> None:
        self._store = store
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
        with self._store._told("read", self._key, start, length) as note:
            part = self._inner.read(start, length)
            note.value(part)
            return part

    def read_ranges(self, starts: Sequence[int], lengths: Sequence[int]) -> list[Buffer]:
        with self._store._told("read_ranges", self._key, *_first(starts, lengths), len(starts)) as note:
            parts = self._inner.read_ranges(starts, lengths)
            note.values(parts)
            return parts

    def iter_ranges(self, starts: Sequence[int], lengths: Sequence[int]) -> Iterator[Buffer]:
        note = self._store._kind_of_note(
            self._store, "iter_ranges", self._key, *_first(starts, lengths), len(starts)
        )
        return _timed(note, self._inner.iter_ranges(starts, lengths), measure=True)

    def read_into(self, start: int, out: memoryview) -> int:
        with self._store._told("read_into", self._key, start, len(out)) as note:
            count = note.size = self._inner.read_into(start, out)
            return count

    def close(self) -> None:
        self._inner.close()


_UNHEARD = _Unheard(LoggingStore(MemoryStore(), keep=0), "", "")
