"""Measures the cost of reading and writing during a ``with`` statement: :func:`trace`.

This module owns the report. :mod:`xzarr3.tracing.counters` owns the counts of one process.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from xzarr3.display import html, text
from xzarr3.display.shown import Description, Shown
from xzarr3.display.units import size
from xzarr3.tracing import counters
from xzarr3.tracing.counters import FIELDS, FOLDERS, KINDS, Collector, Counts, Numbers, Snapshot

if TYPE_CHECKING:
    from xzarr3.tracing.workers import Listening

_SECONDS = ("request_seconds", "decode_seconds", "encode_seconds")
_folders = threading.Lock()


def trace() -> Trace:
    """Measure the cost of reading and writing within a ``with`` statement.

    Everything in this process is counted, in whatever thread it runs, until the statement ends: requests to
    stores, bytes, retries, time spent waiting for answers, work of codecs, absent chunks and shard indexes.
    Also counted are workers of the default client of dask.distributed, including those that join later, and
    processes started by this one, such as those of the scheduler ``"processes"``. Traces may be nested; each
    one counts everything.

    For most stores a request is one call of an operation that the store implements, or one of the byte ranges
    that a call asks for. For object stores it is a
    request that is really sent, failed attempts included, but not what obstore itself repeats, nor each page
    of a list or each part of an upload. For fsspec it is a call to the file system, which may repeat it or
    answer it from a cache. For stores around other stores the inner store counts.

    Workers report their counts twice a second and when the trace ends. If a worker dies, what it did since
    its last report is lost; the same holds for a cluster that is closed within the statement. Processes that
    existed before the trace, such as those of a user's own pool, are not counted, unless they are workers.

    Returns
    -------
    Trace

    Examples
    --------
    >>> import numpy as np, xzarr3
    >>> array = xzarr3.create_array(xzarr3.MemoryStore(), "sst", data=np.arange(8.0), chunks=2)
    >>> with trace() as t:
    ...     _ = array[:3]
    >>> t.arrays["/sst"]["requests"], t.total["bytes_decoded"]
    (2, 32)
    """
    return Trace()


class Trace(Shown):
    """The report of a :func:`trace`; prints as a table, also while the trace is still running.

    Attributes
    ----------
    total : dict of str to number
        All counts. ``requests`` is the sum of the kinds ``get``, ``get_range``, ``head`` (includes opening a
        value), ``list``, ``put`` and ``delete``; ``absent`` and ``failed`` count their outcomes. Times are in
        seconds and summed over threads and processes. A chunk is an inner chunk where a shard is read in
        parts or written; otherwise it is a stored unit.
    arrays : dict of str to dict
        The same counts for each array, by its path. Arrays of several hierarchies with equal paths are
        counted together. The empty path holds what belongs to no array: documents and lists.
    seconds : float
        Duration of the trace.
    processes : int
        Number of processes that did something.
    """

    def __init__(self) -> None:
        self._own = Collector("")
        self._others: dict[str, Snapshot] = {}
        self._lock = threading.Lock()
        self._folder: str | None = None
        self._listening: Listening | None = None
        self._began: float | None = None
        self._ended: float | None = None

    def __enter__(self) -> Self:
        if self._began is not None:
            raise RuntimeError("a trace can be used once; make another one with xzarr3.trace()")
        try:
            self._folder = tempfile.mkdtemp(prefix="xzarr3-trace-")
            name = os.path.basename(self._folder)
        except OSError:  # Without a folder other processes are not counted.
            name = f"xzarr3-trace-{uuid.uuid4().hex}"
        self._own = Collector(name, self._folder)
        try:
            if "distributed" in sys.modules:
                from xzarr3.tracing.workers import listening

                self._listening = listening(name, self._heard)
        except BaseException:
            self._clean()
            raise
        if self._folder is not None:
            with _folders:
                os.environ[FOLDERS] = os.pathsep.join([*_named(), self._folder])
        self._began = time.perf_counter()
        counters.begin(self._own)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._listening is not None:
                self._listening.end()
            self._read_folder()
        finally:
            counters.end(self._own)
            self._ended = time.perf_counter()
            self._clean()

    def _clean(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            with _folders:
                left = [name for name in _named() if name != folder]
                if left:
                    os.environ[FOLDERS] = os.pathsep.join(left)
                else:
                    os.environ.pop(FOLDERS, None)
            shutil.rmtree(folder, ignore_errors=True)

    def _heard(self, snapshot: Snapshot) -> None:
        """Take over the counts of another process."""
        if snapshot.trace != self._own.trace or snapshot.source == self._own.source:
            return
        with self._lock:
            known = self._others.get(snapshot.source)
            if known is None or known.serial < snapshot.serial:
                self._others[snapshot.source] = snapshot

    def _read_folder(self) -> None:
        if self._folder is not None:
            for snapshot in counters.put_there(self._folder):
                self._heard(snapshot)

    def _counts(self) -> list[Counts]:
        self._read_folder()
        with self._lock:
            return [self._own.snapshot().counts, *(other.counts for other in self._others.values())]

    @property
    def seconds(self) -> float:
        """Duration of the trace, so far or in all."""
        if self._began is None:
            return 0.0
        return (time.perf_counter() if self._ended is None else self._ended) - self._began

    @property
    def processes(self) -> int:
        """Number of processes that did something."""
        return sum(1 for counts in self._counts() if counts)

    @property
    def arrays(self) -> dict[str, Numbers]:
        """The counts of each array, by its path; the empty path is everything else."""
        found: dict[str, Numbers] = {}
        for counts in self._counts():
            for path, numbers in counts.items():
                _sum(found.setdefault(path, {}), numbers)
        return {path: _all_of(found[path]) for path in sorted(found, key=lambda path: (not path, path))}

    @property
    def total(self) -> Numbers:
        """All counts."""
        found: Numbers = {}
        for numbers in self.arrays.values():
            _sum(found, numbers)
        return _all_of(found)

    def to_dict(self) -> dict[str, Any]:
        """The numbers in a form that JSON can hold."""
        return {
            "seconds": self.seconds,
            "processes": self.processes,
            "total": self.total,
            "arrays": self.arrays,
        }

    def _tables(self) -> Iterable[list[list[str]]]:
        total, arrays = self.total, self.arrays
        yield [
            ["requests", "get", "get range", "head", "list", "put", "delete", "absent", "failed", "retries"],
            ["", *(_text(kind, total[kind]) for kind in (*KINDS, "absent", "failed", "retries"))],
        ]
        yield [
            ["array", *(title for title, _ in _COLUMNS)],
            *(
                [path or "(no array)", *(_text(field, numbers[field]) for _, field in _COLUMNS)]
                for path, numbers in arrays.items()
            ),
            ["total", *(_text(field, total[field]) for _, field in _COLUMNS)],
        ]

    def _title(self) -> str:
        number = self.processes
        still = ", still counting" if self._began is not None and self._ended is None else ""
        return f"{self.seconds:.3f} s, {number} process{'' if number == 1 else 'es'}{still}"

    def _describe(self) -> Description:
        title, tables = self._title(), list(self._tables())
        return Description(
            "\n\n".join([title, *map(text.table, tables)]),
            lambda: html.box(html.title("xzarr3 trace", after=title), *map(html.table, tables)),
        )

    def __str__(self) -> str:
        return str(self._describe())

    __repr__ = __str__


_COLUMNS = (
    ("requests", "requests"),
    ("read", "bytes_read"),
    ("written", "bytes_written"),
    ("waiting s", "request_seconds"),
    ("decoded", "bytes_decoded"),
    ("decode s", "decode_seconds"),
    ("encoded", "bytes_encoded"),
    ("encode s", "encode_seconds"),
    ("absent chunks", "chunks_absent"),
    ("indexes read", "indexes_read"),
    ("kept", "indexes_kept"),
)


def _named() -> list[str]:
    """The folders named in the environment."""
    return [name for name in os.environ.get(FOLDERS, "").split(os.pathsep) if name]


def _sum(found: Numbers, numbers: Numbers) -> None:
    for field, number in numbers.items():
        found[field] = found.get(field, 0) + number


def _all_of(numbers: Numbers) -> Numbers:
    return {field: numbers.get(field, 0) for field in FIELDS}


def _text(field: str, number: float) -> str:
    if field in _SECONDS:
        return f"{number:.3f}"
    if not field.startswith("bytes"):
        return f"{number:,}"
    return size(number)
