"""The counts of traces in one process, and its log of requests.

Stores report requests, codecs count their own work. Native code adds what it did in one sum.
"""

from __future__ import annotations

import functools
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar

from xzarr3.errors import printable
from xzarr3.tracing.events import Request, everywhere, here

P = ParamSpec("P")
T = TypeVar("T")

Numbers: TypeAlias = dict[str, float]
Counts: TypeAlias = dict[str, Numbers]
"""Numbers by the path of their array; the empty path is everything else."""

KINDS: Final = ("get", "get_range", "head", "list", "put", "delete")
FIELDS: Final = (
    *("requests", *KINDS, "absent", "failed", "retries", "bytes_read", "bytes_written", "request_seconds"),
    *("chunks_decoded", "bytes_decoded", "decode_seconds", "chunks_encoded", "bytes_encoded"),
    *("encode_seconds", "indexes_read", "indexes_kept", "chunks_absent", "chunks_kept"),
)
"""Every field that is counted."""


class Collector:
    """Counts for one trace in this process.

    Parameters
    ----------
    trace : str
        The name of the trace.
    logs : bool
        Whether each request is also logged.

    Attributes
    ----------
    source : str
        Names the process.
    """

    def __init__(self, trace: str, *, logs: bool = False) -> None:
        self.trace, self.logs, self.source = trace, logs, uuid.uuid4().hex
        self._lock = threading.Lock()
        self._counts: Counts = {}

    def add(self, array: str, numbers: Mapping[str, float]) -> None:
        with self._lock:
            found = self._counts.setdefault(array, {})
            for field, number in numbers.items():
                found[field] = found.get(field, 0) + number

    def told(self) -> tuple[str, Counts]:
        """The name of the process and its counts so far."""
        with self._lock:
            return self.source, {array: dict(numbers) for array, numbers in self._counts.items()}


class _Process:
    collectors: tuple[Collector, ...] = ()
    """The collectors of this process."""

    @property
    def wants_each(self) -> bool:
        """Whether anybody wants each single request, so that native code may not add up what it did."""
        return everywhere.listeners not in ((), (_heard,))


process = _Process()
_lock = threading.RLock()


def begin(collector: Collector) -> None:
    """Start counting for a trace."""
    with _lock:
        _listen_for((*process.collectors, collector))


def end(collector: Collector) -> None:
    """Stop counting for a trace."""
    with _lock:
        _listen_for(tuple(other for other in process.collectors if other is not collector))


def _listen_for(collectors: tuple[Collector, ...]) -> None:
    """Count for these traces from now on, and log once if any of them wants it."""
    process.collectors = collectors
    others = [listener for listener in everywhere.listeners if listener not in (_heard, _log)]
    logs = any(collector.logs for collector in collectors)
    # Set at once: a trace that goes on misses no request.
    everywhere.listeners = (*others, *[_heard][: len(collectors)], *[_log][:logs])


def current(trace: str) -> Collector | None:
    """The collector of a trace in this process, if any."""
    return next((collector for collector in process.collectors if collector.trace == trace), None)


def add(numbers: Mapping[str, float], array: str | None = None) -> None:
    """Add numbers to the counts of ``array``, by default the array of this thread."""
    for collector in process.collectors:
        collector.add(here.array if array is None else array, numbers)


def _forked() -> None:
    """Count nothing in a forked child; threads of the parent may have held the locks."""
    global _lock
    _lock = threading.RLock()
    for collector in process.collectors:
        collector._lock = threading.Lock()
    process.collectors = everywhere.listeners = ()
    here.array, here.request, here.coding = "", None, False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


# Requests of stores

_KINDS = {
    "open": "head", "read": "get", "copy": "put", "list_dir": "list", "erase": "delete",
    "erase_prefix": "delete",
}  # fmt: skip
"""What an operation counts as, if it is none of the kinds itself."""
_ABSENT = ("absent", "NotFoundError", "FileNotFoundError")
_NO_FAILURES = ("ok", "changed", "AlreadyExistsError", "PreconditionError", "NotModifiedError")


def _heard(request: Request) -> None:
    """Count a request that a store reports."""
    kind = _KINDS.get(request.operation, request.operation)
    if request.operation == "open" and request.byte_range is not None:
        kind = "get"
    if kind == "get" and request.byte_range not in (None, (0, None)):
        kind = "get_range"
    # Each key or byte range counts as a request.
    number = request.number if request.operation in ("erase", "read") else 1
    found: Numbers = {"requests": number, kind: number, "request_seconds": request.seconds}
    if request.size:
        found["bytes_written" if kind == "put" else "bytes_read"] = request.size
    if request.outcome in _ABSENT:
        found["absent"] = number
    elif request.outcome not in _NO_FAILURES:
        found["failed"] = number
    add(found, request.array)


def _log(request: Request) -> None:
    """Log a request in one line: names and numbers, never values or the texts of errors."""
    from logging import getLogger

    start, length = request.byte_range or (None, None)
    where = "" if start is None else f" from {start}" + ("" if length is None else f", {length} bytes")
    many = "" if request.number == 1 else f", {request.number} in all"
    getLogger("xzarr3.stores").debug(
        "%s %s %s: %d bytes, %s, %.3f ms", "-" if request.store is None else request.store, request.operation,
        printable(f"'{request.key}'{where}{many}"), request.size, request.outcome, 1e3 * request.seconds,
    )  # fmt: skip


# Work of codecs, and the array it belongs to


def for_array(engine_of: Callable[[Any], Any]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a method so that its requests and decoding count for an array.

    Parameters
    ----------
    engine_of : callable
        Returns the engine of the array for the object of the method.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def counted(*args: P.args, **kwargs: P.kwargs) -> T:
            if not process.collectors:
                return function(*args, **kwargs)
            before, here.array = here.array, f"/{engine_of(args[0]).prefix.strip('/')}"
            try:
                return function(*args, **kwargs)
            finally:
                here.array = before

        return counted

    return decorate


@contextmanager
def uncounted() -> Iterator[None]:
    """Count no work of codecs in a ``with`` statement."""
    before, here.coding = here.coding, True
    try:
        yield
    finally:
        here.coding = before


@contextmanager
def coded(what: str, done: str) -> Iterator[Callable[[int], None]]:
    """Count the work of codecs in a ``with`` statement. The yielded function takes the bytes of each chunk.

    Parameters
    ----------
    what : {"decode", "encode"}
    done : {"decoded", "encoded"}
    """
    sizes: list[int] = []
    here.coding = True
    began = time.perf_counter()
    try:
        yield sizes.append
    finally:
        here.coding = False
        seconds = time.perf_counter() - began
        for size in sizes:
            add({f"chunks_{done}": 1, f"bytes_{done}": size, f"{what}_seconds": seconds})
