"""Measures the cost of reading and writing during a ``with`` statement: :func:`trace`.

This module owns the report. :mod:`xzarr3.tracing.counters` owns the counts of one process, and its log of
requests.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Final, Self

from xzarr3.display import text
from xzarr3.display.report import Page, Report, Table
from xzarr3.tracing import counters
from xzarr3.tracing.counters import FIELDS, KINDS, Collector, Counts, Numbers

_COLUMNS: Final = {
    "requests": "requests", "read": "bytes_read", "written": "bytes_written", "waiting s": "request_seconds",
    "decoded": "bytes_decoded", "decode s": "decode_seconds", "encoded": "bytes_encoded",
    "encode s": "encode_seconds", "absent chunks": "chunks_absent",
}  # fmt: skip
"""Titles of the table of arrays, and their fields."""


def trace(*, log: bool = False) -> Trace:
    """Measure the cost of reading and writing within a ``with`` statement.

    Everything in this process is counted, in whatever thread it runs, until the statement ends: requests to
    stores, bytes, retries, time spent waiting for answers, work of codecs, absent chunks and shard indexes.
    Also counted are workers of the default client of dask.distributed, including those that join later. Other
    processes are not, such as those of the scheduler ``"processes"``; use a ``LocalCluster`` to count them.
    Traces may be nested; each one counts everything.

    For most stores a request is one call of a method that the store implements, or one of the byte ranges
    that a call asks for. For object stores it is a request that is really sent, failed attempts included,
    but not what obstore itself repeats, nor each page of a list or each part of an upload. For fsspec it is
    a call to the file system, which may repeat it or answer it from a cache. For stores around other stores
    the inner store counts.

    Workers are asked for their counts when a number of the trace is read, and at its end. What a worker did
    since then is lost if it is killed, and if its cluster is closed within the statement.

    Parameters
    ----------
    log : bool
        Also log each request in one line, with its store, operation, key, byte range, bytes, outcome and
        duration: to the logger ``xzarr3.stores`` at the level DEBUG, here and in workers. Native code, which
        reads or writes many values in one call, is then not used. Without this argument nothing is logged,
        and the logger is not asked for its level.

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

    Each request as a line of text:

    >>> import logging
    >>> logging.getLogger("xzarr3.stores").setLevel(logging.DEBUG)
    >>> with trace(log=True):
    ...     _ = array[:3]
    """
    return Trace(log=log)


class Trace(Report):
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

    Examples
    --------
    >>> import xzarr3
    >>> array = xzarr3.array([1, 2, 3])
    >>> with xzarr3.trace() as trace:
    ...     _ = array[...]
    >>> trace.total["requests"], trace.processes
    (1, 1)
    """

    def __init__(self, *, log: bool = False) -> None:
        self._own = Collector(f"xzarr3-trace-{uuid.uuid4().hex}", logs=log)
        self._others: dict[str, Counts] = {}
        self._workers: Callable[..., dict[str, Counts]] | None = None
        self._began: float | None = None
        self._ended: float | None = None

    def __enter__(self) -> Self:
        if self._began is not None:
            raise RuntimeError("a trace can be used once; make another one with xzarr3.trace()")
        self._began = time.perf_counter()
        counters.begin(self._own)  # First, as workers in this process need not count then.
        try:
            if "distributed" in sys.modules:
                from xzarr3.tracing.workers import workers

                self._workers = workers(self._own.trace, logs=self._own.logs)
        except BaseException:
            counters.end(self._own)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._counts(last=True)
        finally:
            self._workers = None
            counters.end(self._own)
            self._ended = time.perf_counter()

    def _counts(self, *, last: bool = False) -> list[Counts]:
        """The counts of each process."""
        if self._workers is not None:
            self._others.update(self._workers(last=last))
        return [*dict([*self._others.items(), self._own.told()]).values()]

    @property
    def seconds(self) -> float:
        """Duration of the trace, so far or in all."""
        if self._began is None:
            return 0.0
        return (time.perf_counter() if self._ended is None else self._ended) - self._began

    @property
    def processes(self) -> int:
        """Number of processes that did something."""
        return sum(map(bool, self._counts()))

    @property
    def arrays(self) -> dict[str, Numbers]:
        """The counts of each array, by its path; the empty path is everything else."""
        found: dict[str, list[Numbers]] = {}
        for counts in self._counts():
            for path, numbers in counts.items():
                found.setdefault(path, []).append(numbers)
        return {path: _sum(found[path]) for path in sorted(found, key=lambda path: (not path, path))}

    @property
    def total(self) -> Numbers:
        """All counts."""
        return _sum(self.arrays.values())

    _also = ("seconds", "processes", "total", "arrays")

    to_dict = Report.to_json

    def _page(self) -> Page:
        arrays, number = self.arrays, self.processes
        total = _sum(arrays.values())
        kinds = [f"{total[kind]:,} {kind}" for kind in (*KINDS, "absent", "failed", "retries") if total[kind]]
        still = "; still counting" if self._began is not None and self._ended is None else ""
        title = f"{self.seconds:.3f} s, {number} process{'' if number == 1 else 'es'}{still}"
        rows = [([path or "(no array)"], numbers) for path, numbers in arrays.items()] + [(["total"], total)]
        table = Table(text.counts(["array"], _COLUMNS, rows))
        return Page("xzarr3.trace", title, [("requests", ", ".join(kinds) or "none")], [table])


def _sum(several: Iterable[Numbers]) -> Numbers:
    several = list(several)
    return {field: sum(numbers.get(field, 0) for numbers in several) for field in FIELDS}
