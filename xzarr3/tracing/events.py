"""Events: each request to a store is reported to listeners when it has ended.

Two places report. :mod:`xzarr3.stores.guards` reports the methods of stores. A store that sends requests of
its own, such as those to a service, reports these with :func:`sent` instead. If one store asks another, the
requests to the other one are reported, so that each one counts once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, Self, TypeAlias, TypeVar

from xzarr3._types import Buffer, ByteRange

Item = TypeVar("Item")


class Request:
    """One request. It is measured within a ``with`` statement and reported at its end.

    Parameters
    ----------
    store : object
        Names the store in logs.
    operation : str
        A method of the contract of stores; ``read`` for a read of an open value; or what :func:`sent` was
        given.
    key : str
        The key or prefix; the first one if there are several.
    byte_range : (int, int or None), optional
        The start and length that are requested, or the first of several.
    number : int
        Number of keys or of byte ranges.
    is_told : bool
        Whether the request is reported, unless requests to another store are that it is made of.
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

    def __init__(
        self, store: object, operation: str, key: str, byte_range: ByteRange | None = None,
        *, number: int = 1, is_told: bool = True, in_parts: bool = False,
    ) -> None:  # fmt: skip
        self.store, self.operation, self.key, self.byte_range = store, operation, key, byte_range
        self.number, self.is_told, self.in_parts, self.array = number, is_told, in_parts, here.array
        self.size, self.seconds, self.outcome = 0, 0.0, "ok"
        self.outer = here.request

    def __enter__(self) -> Self:
        self.before, here.request = here.request, self
        self.started = time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.seconds += time.perf_counter() - self.started
        here.request = self.before
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
        for listener in everywhere.listeners:
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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
    """Listeners to the requests of all stores of this process; they are called from any thread."""


here = _Here()
everywhere = _Everywhere()
UNHEARD: Final = _Unheard(None, "", "", is_told=False)


def sent(kind: str) -> Request:
    """A request to a service, which is reported instead of the methods of stores that caused it.

    Parameters
    ----------
    kind : {"get", "get_range", "head", "list", "put", "delete"} or str
        With an empty string nothing is reported.
    """
    if not (kind and everywhere.listeners):
        return UNHEARD
    cause = here.request or UNHEARD
    return Request(cause.store, kind, cause.key, cause.byte_range if kind == "get_range" else None)


def told(request: Request, items: Iterator[Item]) -> Iterator[Item]:
    """Yield and count ``items`` as part of a request, without the time that the consumer takes in between."""

    def step() -> Item | None:
        with request:
            return next(items, None)

    try:
        while (item := step()) is not None:
            request.number += 1
            yield item
    finally:
        request.tell()
