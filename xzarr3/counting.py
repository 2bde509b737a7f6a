"""The numbers of a trace in one process, and how they come together from several.

What is counted is in :mod:`xzarr3.instruments`, which nobody imports before a trace begins.
"""

from __future__ import annotations

import json
import os
import threading
import uuid
from collections.abc import Iterator, Mapping
from multiprocessing import util as processes
from typing import Final, NamedTuple, TypeAlias

Numbers: TypeAlias = dict[str, float]
Counts: TypeAlias = dict[str, Numbers]
"""Numbers by the path of the array they belong to; the empty path is everything else."""

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
"""All that is counted."""

FOLDERS = "XZARR3_TRACE"
"""The environment variable that names the folders in which processes put what they have counted."""

_MOST_ARRAYS = 1000
_OTHERS = "..."
"""Stands for all arrays beyond so many."""


class Snapshot(NamedTuple):
    """What one process has counted for one trace."""

    trace: str
    source: str
    """The process."""
    serial: int
    """Of several snapshots of one process the one with the highest number is the last one."""
    counts: Counts


class Collector:
    """Counts for one trace in this process.

    Parameters
    ----------
    trace : str
        The name of the trace.
    folder : str, optional
        Where other processes than this one put what they have counted.
    """

    def __init__(self, trace: str, folder: str | None = None) -> None:
        self.trace = trace
        self.folder = folder
        self.puts = False
        """Whether this is a process that puts its counts into the folder."""
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
        """Put the counts into the folder, if this is a process that does so."""
        if not self.puts or self.folder is None or self._put == self._serial:
            return
        found = self.snapshot()
        path = os.path.join(self.folder, self.source)
        temporary = f"{path}-{threading.get_ident()}~"
        try:
            with open(temporary, "w", encoding="ascii") as file:
                json.dump(found, file)
            os.replace(temporary, path)
        except OSError:  # The trace is over, and its folder is gone.
            end(self)
        self._put = found.serial

    def begin_in_child(self) -> None:
        """Count anew, in a process that was forked off."""
        self._begin()
        self.puts = True


def put_there(folder: str) -> Iterator[Snapshot]:
    """What processes have put into a folder."""
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


class _Here(threading.local):
    array: str = ""
    """The array this thread works for."""
    coding: bool = False
    """Whether codecs are at work, whose parts do not count."""


class _Process:
    collectors: tuple[Collector, ...] = ()
    """Who counts in this process."""


here = _Here()
process = _Process()
_lock = threading.RLock()


def begin(collector: Collector) -> bool:
    """Count for a trace from now on; returns whether this process did not do so already."""
    from xzarr3.instruments import install

    with _lock:
        if current(collector.trace) is not None:
            return False
        process.collectors = (*process.collectors, collector)
        install()
        return True


def end(collector: Collector) -> None:
    """Count no more for a trace; the last one leaves nothing behind."""
    from xzarr3.instruments import uninstall

    with _lock:
        process.collectors = tuple(other for other in process.collectors if other is not collector)
        if not process.collectors:
            uninstall()


def current(trace: str) -> Collector | None:
    """Who counts for a trace in this process."""
    return next((collector for collector in process.collectors if collector.trace == trace), None)


def inherit() -> None:
    """Count for the traces of the process that started this one."""
    for folder in os.environ.get(FOLDERS, "").split(os.pathsep):
        if os.path.isdir(folder):
            collector = Collector(os.path.basename(folder), folder)
            collector.puts = True
            begin(collector)
    processes.Finalize(None, put, exitpriority=100)


def put() -> None:
    """Put what was counted into the folders, in a process that does so."""
    for collector in process.collectors:
        collector.put()


def add(numbers: Mapping[str, float], array: str | None = None) -> None:
    """Count, for the array of this thread unless another one is named."""
    for collector in process.collectors:
        collector.add(here.array if array is None else array, numbers)


def _forked() -> None:
    """A forked child counts anew, and waits for no lock that a thread of its parent held."""
    global _lock
    _lock = threading.RLock()
    if process.collectors:
        here.array, here.coding = "", False
        for collector in process.collectors:
            collector.begin_in_child()
        processes.Finalize(None, put, exitpriority=100)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
