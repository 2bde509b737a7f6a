"""Events: each request to a store is reported to listeners when it has ended.

Two places report. :mod:`xzarr3.stores.guards` reports the methods of stores. A store that sends requests of
its own, such as those to a service, reports these with :func:`sent` instead. Of requests that are made of
others only the innermost are reported, so that each one counts once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Final, Self, TypeAlias, TypeVar

from xzarr3._types import Buffer

Item = TypeVar("Item")


class Request:
    """One request. It is measured within a ``with`` statement and reported at its end.

    Parameters
    ----------
    store : object
        Names the store in logs.
    operation : str
        ``get``, ``put``, ``erase``, ``list``, ``open``, ``read``, ``copy`` or ``erase_prefix``; or what
        :func:`sent` was given.
    key : str
        The key or prefix; the first one if there are several.
    start, length : int or None
        The requested byte range.
    number : int
        Number of keys or of byte ranges.
    is_told : bool
        Whether the request is reported, unless requests that it is made of are. It is not where the store
        reports by itself.
    in_parts : bool
        Whether :func:`told` reports the request.

    Attributes
    ----------
    size : int
        Bytes read or written.
    outcome : str
        ``ok``, ``absent``, ``changed`` or the name of the error.
    seconds : float
    array : str
        The path of the array that the request belongs to; empty for none.
    """

    __slots__ = (
        *("array", "in_parts", "is_told", "key", "length", "number", "operation", "outcome", "outer"),
        *("seconds", "size", "start", "started", "store"),
    )

    def __init__(
        self,
        store: object,
        operation: str,
        key: str,
        start: int | None = None,
        length: int | None = None,
        *,
        number: int = 1,
        is_told: bool = True,
        in_parts: bool = False,
    ) -> None:
        self.store = store
        self.operation, self.key, self.start, self.length = operation, key, start, length
        self.number, self.is_told, self.in_parts = number, is_told, in_parts
        self.array = here.array
        self.size, self.seconds, self.outcome = 0, 0.0, "ok"
        self.outer: Request | None = None

    def __enter__(self) -> Self:
        self.outer, here.request = here.request, self
        self.started = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds += time.perf_counter() - self.started
        here.request = self.outer
        if kind is not None:
            self.outcome = kind.__name__
        if kind is not None or not self.in_parts:
            self.tell()

    def tell(self) -> None:
        """Report to the listeners, once. Those that this request is part of are then not reported."""
        if not self.is_told:
            return
        self.is_told, outer = False, self.outer
        while outer is not None:
            outer.is_told, outer = False, outer.outer
        for listener in dict.fromkeys(everywhere.listeners):
            listener(self)

    def value(self, value: Buffer | None) -> None:
        """Record the value that was read, or its absence."""
        if value is None:
            self.outcome = "absent"
        else:
            self.size = len(value)


Listener: TypeAlias = Callable[[Request], None]


class _Unheard(Request):
    """A request without listeners, shared by all threads."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


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
    wants_each: int = 0
    """How many of them must receive each single request, which native code only counts."""


here = _Here()
everywhere = _Everywhere()
UNHEARD: Final = _Unheard(None, "", "")


def sent(kind: str) -> Request:
    """A request to a service, which is reported instead of the methods of stores that caused it.

    Parameters
    ----------
    kind : {"get", "get_range", "head", "list", "put", "delete"} or str
        With an empty string nothing is reported.
    """
    if not (kind and everywhere.listeners):
        return UNHEARD
    outer = here.request
    if outer is None:
        return Request(None, kind, "")
    place = (outer.start, outer.length) if kind == "get_range" else ()
    return Request(outer.store, kind, outer.key, *place)


def listen(listener: Listener, *, to_each: bool = True) -> None:
    """Add a listener to the requests of all stores of this process.

    Parameters
    ----------
    listener : callable
        Called with each :class:`Request`, from any thread.
    to_each : bool
        Whether it must receive each single request. Values are then neither read nor written by native code.
    """
    everywhere.listeners = (*everywhere.listeners, listener)
    everywhere.wants_each += to_each


def listen_no_more(listener: Listener, *, to_each: bool = True) -> None:
    """Remove a listener, with the same arguments as it was added."""
    left = list(everywhere.listeners)
    if listener in left:
        left.remove(listener)
        everywhere.listeners = tuple(left)
        everywhere.wants_each -= to_each


def told(request: Request, items: Iterator[Item], *, sizes: bool = False) -> Iterator[Item]:
    """Yield ``items`` as part of a request. The time that the consumer takes between items is not counted.

    Parameters
    ----------
    request : Request
    items : iterator
    sizes : bool
        Whether the items are read bytes; otherwise they are counted.
    """
    try:
        while True:
            with request:
                item = next(items, None)
            if item is None:
                return
            if sizes:
                request.size += len(item)  # type: ignore[arg-type]
            else:
                request.number += 1
            yield item
    finally:
        request.tell()

