"""Events: stores report each request to listeners when the request has ended.

Requests are reported in one place, the public operations of :class:`~xzarr3.Store` and the readers and
writers that a store gives to threads. A trace listens to all stores of the process. A
:class:`~xzarr3.stores.LoggingStore` listens to its own requests only.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

from xzarr3._types import Buffer

Item = TypeVar("Item")


class Request:
    """One request. It is measured within a ``with`` statement and reported at its end.

    Attributes
    ----------
    operation : str
        The operation of the store, of its reader or writer, or of an open value.
    key : str
        The key or prefix; the first one if there are several.
    start, length : int or None
        The requested byte range, or the first one of several.
    number : int
        Number of values, parts or keys. For an update, how often the change was applied.
    size : int
        Bytes read or written.
    read, missed : int
        For an update: the bytes read, and how often there was no value.
    outcome : str
        ``ok``, ``absent``, ``changed``, ``erased``, ``kept`` or the name of the error.
    array : str
        The path of the array that the request belongs to; empty for none.
    outer : Request or None
        The request that this one is part of.
    is_told_elsewhere : bool
        Whether the requests that this one caused, for example to a service, were reported instead.

    Notes
    -----
    A listener that receives a request does not receive its parts.
    """

    __slots__ = (
        *("array", "began", "is_told_elsewhere", "key", "length", "listeners", "missed", "number"),
        *("operation", "outcome", "outer", "read", "seconds", "size", "start", "started", "store"),
    )

    def __init__(
        self,
        store: object,
        listeners: tuple[Listener, ...],
        operation: str,
        key: str,
        start: int | None = None,
        length: int | None = None,
        number: int = 1,
    ) -> None:
        self.store = store
        self.array = here.array
        self.listeners = listeners
        self.operation = operation
        self.key = key
        self.start = start
        self.length = length
        self.number = number
        self.size = self.read = self.missed = 0
        self.seconds = 0.0
        self.outcome = "ok"
        self.outer: Request | None = None
        self.is_told_elsewhere = False

    def __enter__(self) -> Request:
        self.outer, here.request = here.request, self
        self.began = time.time()
        self.started = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds = time.perf_counter() - self.started
        here.request = self.outer
        if kind is not None:
            self.outcome = kind.__name__
        self.tell()

    def tell(self) -> None:
        """Report to each listener, except those that receive a request that this one is part of."""
        for listener in self.listeners:
            if not self._is_part_for(listener):
                listener(self)

    def _is_part_for(self, listener: Listener) -> bool:
        """Whether a listener receives a request that this one is part of."""
        outer = self.outer
        while outer is not None and self.store is not None:
            if listener in outer.listeners:
                return True
            outer = outer.outer
        return False

    def value(self, value: Buffer | None) -> None:
        """Record the value that was read, or its absence."""
        if value is None:
            self.outcome = "absent"
        else:
            self.size = len(value)

    def values(self, values: Sequence[Buffer | None]) -> None:
        """Record several values or parts that were read; absent if all of them are."""
        found = [value for value in values if value is not None]
        self.size = sum(map(len, found))
        if values and not found:
            self.outcome = "absent"

    def changing(self, change: Callable[[Any], Any], key: str) -> Callable[[Any], Any]:
        """Wrap ``change`` to record what is read and written, except requests made by ``change`` itself."""
        self.number = 0

        def noted(stored: Buffer | None) -> Any:
            self.number += 1
            self.read += 0 if stored is None else len(stored)
            self.missed += stored is None
            before, here.request = here.request, None
            try:
                pieces = change(stored)
            finally:
                here.request = before
            self.size, self.outcome = 0, "ok"
            if isinstance(pieces, Sequence):
                self.size = sum(memoryview(piece).nbytes for piece in pieces)
            else:
                self.outcome = "erased" if pieces is None and stored is not None else "kept"
            return pieces

        return noted


Listener: TypeAlias = Callable[[Request], None]


class _Unheard(Request):
    """A request without listeners, shared by all threads."""

    __slots__ = ()

    def __enter__(self) -> Request:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def changing(self, change: Callable[[Any], Any], key: str) -> Callable[[Any], Any]:
        return change


class _Here(threading.local):
    """The current activity of this thread."""

    request: Request | None = None
    """The request in progress."""
    array: str = ""
    """The path of the array that this thread works for."""
    coding: bool = False
    """Whether codecs are at work; work nested in theirs is not counted."""


class _Everywhere:
    listeners: tuple[Listener, ...] = ()
    """Listeners to the requests of all stores."""


here = _Here()
everywhere = _Everywhere()
UNHEARD = _Unheard(None, (), "", "")


def sent(kind: str) -> Request:
    """A request to a service, which is reported instead of the store requests that caused it.

    Parameters
    ----------
    kind : {"get", "get_range", "head", "list", "put", "delete"} or str
        With an empty string nothing is reported.
    """
    listeners = everywhere.listeners
    if not (kind and listeners):
        return UNHEARD
    outer = here.request
    while outer is not None:
        outer.is_told_elsewhere = True
        outer = outer.outer
    return Request(None, listeners, kind, "")


def listen(listener: Listener) -> None:
    """Add a listener to the requests of all stores of this process."""
    everywhere.listeners = (*everywhere.listeners, listener)


def listen_no_more(listener: Listener) -> None:
    """Remove a listener."""
    everywhere.listeners = tuple(other for other in everywhere.listeners if other is not listener)


def told(request: Request, items: Iterator[Item], *, sizes: bool = False) -> Iterator[Item]:
    """Yield ``items`` as part of a request. The time that the consumer takes between items is not counted."""
    request.began = time.time()
    try:
        while True:
            started = time.perf_counter()
            before, here.request = here.request, request
            try:
                item = next(items)
            except StopIteration:
                return
            except BaseException as error:
                request.outcome = type(error).__name__
                raise
            finally:
                here.request = before
                request.seconds += time.perf_counter() - started
            if sizes:
                request.size += len(item)  # type: ignore[arg-type]
            else:
                request.number += 1
            yield item
    finally:
        request.outer = here.request
        request.tell()
