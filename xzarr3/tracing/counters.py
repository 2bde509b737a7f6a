"""The counts of a trace in one process, and their transfer between processes.

Stores report requests. For stores around other stores the inner store reports. For object stores and for
fsspec the requests to the service or file system are reported. Codecs count their own work.
"""

from __future__ import annotations

import functools
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, ParamSpec, TypeAlias, TypeVar

from xzarr3.tracing.events import Request, here, listen, listen_no_more

P = ParamSpec("P")
T = TypeVar("T")

Numbers: TypeAlias = dict[str, float]
Counts: TypeAlias = dict[str, Numbers]
"""Numbers by the path of their array; the empty path is everything else."""

KINDS: Final = ("get", "get_range", "head", "list", "put", "delete")
FIELDS: Final = (
    "requests",
    *KINDS,
    "absent",
    "failed",
    "retries",
    "bytes_read",
    "bytes_written",
    "request_seconds",
    "chunks_decoded",
    "bytes_decoded",
    "decode_seconds",
    "chunks_encoded",
    "bytes_encoded",
    "encode_seconds",
    "indexes_read",
    "indexes_kept",
    "chunks_absent",
)
"""Every field that is counted."""

FOLDERS = "XZARR3_TRACE"
"""The environment variable that names the folders into which processes write their counts."""

_MOST_ARRAYS = 1000
_OTHERS = "..."
"""Stands for all arrays after the first `_MOST_ARRAYS`."""


class Snapshot(NamedTuple):
    """The counts of one process for one trace."""

    trace: str
    source: str
    """Names the process."""
    serial: int
    """Increases with each count: of several snapshots of one process, the highest is the latest."""
    counts: Counts


class Collector:
    """Counts for one trace in this process.

    Parameters
    ----------
    trace : str
        The name of the trace.
    folder : str, optional
        The folder into which other processes write their counts.
    """

    def __init__(self, trace: str, folder: str | None = None) -> None:
        self.trace = trace
        self.folder = folder
        self.puts = False
        """Whether this process writes its counts into the folder."""
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counts = {}
        self._serial = 0
        self._put = 0
        self.source = f"{os.getpid()}-{uuid.uuid4().hex}"

    def add(self, array: str, numbers: Mapping[str, float]) -> None:
        with self._lock:
            here = self._counts.get(array)
            if here is None:
                if len(self._counts) >= _MOST_ARRAYS:
                    array = _OTHERS
                here = self._counts.setdefault(array, {})
            for field, number in numbers.items():
                here[field] = here.get(field, 0) + number
            self._serial += 1

    @property
    def serial(self) -> int:
        """Changes with each count."""
        return self._serial

    def snapshot(self) -> Snapshot:
        with self._lock:
            counts = {array: dict(numbers) for array, numbers in self._counts.items()}
            return Snapshot(self.trace, self.source, self._serial, counts)

    def put(self) -> None:
        """Write the counts into the folder, if this process does so and they have changed."""
        import json

        if not self.puts or self.folder is None or self._put == self._serial:
            return
        found = self.snapshot()
        path = os.path.join(self.folder, self.source)
        temporary = f"{path}-{threading.get_ident()}~"
        try:
            with open(temporary, "w", encoding="ascii") as file:
                json.dump(found, file)
            os.replace(temporary, path)
        except OSError:  # The trace has ended and its folder is gone.
            end(self)
        self._put = found.serial

    def begin_in_child(self) -> None:
        """Start from zero in a forked child."""
        self._begin()
        self.puts = True


def put_there(folder: str) -> Iterator[Snapshot]:
    """The counts that processes have written into a folder."""
    import json

    try:
        names = [name for name in os.listdir(folder) if not name.endswith("~")]
    except OSError:
        return
    for name in names:
        try:
            with open(os.path.join(folder, name), encoding="ascii") as file:
                found = Snapshot(*json.load(file))
        except (OSError, ValueError, TypeError):
            continue
        yield found


class _Process:
    collectors: tuple[Collector, ...] = ()
    """The collectors of this process."""


process = _Process()
_lock = threading.RLock()


def begin(collector: Collector) -> bool:
    """Start counting for a trace; returns False if this process counts for it already."""
    with _lock:
        if current(collector.trace) is not None:
            return False
        if not process.collectors:
            listen(_heard)
        process.collectors = (*process.collectors, collector)
        return True


def end(collector: Collector) -> None:
    """Stop counting for a trace. After the last one, the listener is removed too."""
    with _lock:
        process.collectors = tuple(other for other in process.collectors if other is not collector)
        if not process.collectors:
            listen_no_more(_heard)


def current(trace: str) -> Collector | None:
    """The collector of a trace in this process, if any."""
    return next((collector for collector in process.collectors if collector.trace == trace), None)


def inherit() -> None:
    """Count for the traces of the process that started this one."""
    for folder in os.environ.get(FOLDERS, "").split(os.pathsep):
        if os.path.isdir(folder):
            collector = Collector(os.path.basename(folder), folder)
            collector.puts = True
            begin(collector)
    _put_at_exit()


def _put_at_exit() -> None:
    """Register :func:`put` with multiprocessing, whose processes end without running atexit functions."""
    from multiprocessing.util import Finalize

    Finalize(None, put, exitpriority=100)


def put() -> None:
    """Write the counts into the folders, in a process that does so."""
    for collector in process.collectors:
        collector.put()


def add(numbers: Mapping[str, float], array: str | None = None) -> None:
    """Add numbers to the counts of ``array``, by default the array of this thread."""
    for collector in process.collectors:
        collector.add(here.array if array is None else array, numbers)


def _forked() -> None:
    """Start from zero in a forked child, with a new lock: a parent thread may have held the old one."""
    global _lock
    _lock = threading.RLock()
    if process.collectors:
        here.array, here.request, here.coding = "", None, False
        for collector in process.collectors:
            collector.begin_in_child()
        _put_at_exit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


# Events of stores

_KINDS = {
    **dict.fromkeys(("get", "get_versioned"), "get"),
    **dict.fromkeys(("get_partial_values", "get_ranges", "get_into"), "get_range"),
    **dict.fromkeys(("read", "read_ranges", "iter_ranges", "read_into"), "get_range"),
    **dict.fromkeys(("exists", "getsize", "open"), "head"),
    **dict.fromkeys(("list", "list_dir", "sweep"), "list"),
    **dict.fromkeys(("set", "set_partial_values", "copy_values", "compare_and_set", "update"), "put"),
    **dict.fromkeys(("erase", "erase_values", "erase_prefix"), "delete"),
}
_OF_VALUES = ("copy_values", "erase_values")
"""Operations on several values, each of which counts as a request."""
_OF_RANGES = ("get_partial_values", "get_ranges", "read_ranges", "iter_ranges")
"""Operations on several byte ranges, each of which counts as a request."""
_ABSENT = ("absent", "NotFoundError", "FileNotFoundError")
_NO_FAILURES = (
    *("ok", "changed", "erased", "kept"),
    *("AlreadyExistsError", "PreconditionError", "NotModifiedError"),
)


def _request(kind: str, size: int, seconds: float, outcome: str = "ok", number: int = 1) -> Numbers:
    found: Numbers = {"requests": number, kind: number, "request_seconds": seconds}
    if size:
        found["bytes_written" if kind == "put" else "bytes_read"] = size
    if outcome in _ABSENT:
        found["absent"] = number
    elif outcome not in _NO_FAILURES:
        found["failed"] = number
    return found


def _heard(request: Request) -> None:
    """Count a request that a store reports."""
    if request.is_told_elsewhere:
        return
    operation, outcome = request.operation, request.outcome
    kind = _KINDS.get(operation, operation)
    if operation == "get" and request.start is not None:
        kind = "get_range"
    elif operation == "open" and request.size:  # Opening has read all bytes of the value.
        kind = "get"
    elif operation == "compare_and_set" and outcome == "erased":
        kind = "delete"
    elif operation == "update":
        if request.number:
            add(
                {
                    **_request("get", request.read, 0.0, number=request.number),
                    **({"absent": request.missed} if request.missed else {}),
                },
                request.array,
            )
        kind = {"kept": "", "erased": "delete"}.get(outcome, kind)
    if kind:
        each = operation in _OF_VALUES or (operation in _OF_RANGES and outcome != "absent")
        number = request.number if each else 1
        add(_request(kind, request.size, request.seconds, outcome, number), request.array)


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
                if not before:
                    put()

        return counted

    return decorate


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
