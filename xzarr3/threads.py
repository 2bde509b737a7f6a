"""The threads that share the units of one read or write.

A thread takes runs of units from what all of them share. There is no future, task or event loop per chunk.
"""

from __future__ import annotations

import itertools
import operator
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from xzarr3.codecs.chain import CodecChain
from xzarr3.division import Unit
from xzarr3.plan import Batch

_MAX_RUN = 4096  # Units that a thread takes at once.


def available_threads() -> int:
    """How many threads a read or write may use: all cores, but one within somebody else's thread.

    Tasks of dask and of other pools run in threads of their own, of which there are enough already.
    """
    if threading.current_thread() is not threading.main_thread():
        return 1
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # Only some systems can tell which cores this process may use.
        return os.cpu_count() or 1


def asked_threads(threads: int | None) -> int:
    """How many threads a user asks for; None stands for those that are available.

    Raises
    ------
    ValueError
        If it is no positive integer.
    """
    if threads is None:
        return available_threads()
    try:
        number = operator.index(threads)
    except TypeError as error:
        raise ValueError(f"threads={threads!r}: accepted: None or an integer of at least 1") from error
    if number < 1:
        raise ValueError(f"threads={threads!r}: accepted: None or an integer of at least 1")
    return number


class _Pool:
    """Threads of this process that help reading and writing; a forked child starts its own."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._pid = -1

    def get(self) -> ThreadPoolExecutor:
        if self._pool is None or self._pid != os.getpid():
            self._pool = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="xzarr3")
            self._pid = os.getpid()
        return self._pool


_pool = _Pool()


class Runs:
    """The units of one read or write, which its threads take in runs.

    Parameters
    ----------
    batches : iterator of Batch
    number : int
        About how many units there are.
    threads : int
    """

    __slots__ = ("_batches", "_chain", "_lock", "_run", "_units", "stopped")

    def __init__(self, batches: Iterator[Batch], number: int, threads: int) -> None:
        self._batches = batches
        self._chain, self._units = next(batches)
        self._run = _MAX_RUN if threads <= 1 else max(1, min(_MAX_RUN, number // (4 * threads)))
        self._lock = threading.Lock()
        self.stopped = False
        """Whether what is left is not wanted any more, because something failed."""

    def take(self) -> tuple[CodecChain, list[Unit]] | None:
        """The next run of units of one shape, and their codecs; None after the last one."""
        with self._lock:
            while not self.stopped:
                run = list(itertools.islice(self._units, self._run))
                if run:
                    return self._chain, run
                batch = next(self._batches, None)
                if batch is None:
                    break
                self._chain, self._units = batch
            return None

    def share(self, threads: int, worker: Callable[[Runs], int]) -> int:
        """Have ``worker`` handle the units on several threads; returns the sum of what it returns."""
        if threads <= 1:
            return worker(self)
        others: list[Future[int]] = []
        try:
            for _ in range(threads - 1):
                try:
                    others.append(_pool.get().submit(self._help, worker))
                except RuntimeError:  # The interpreter is shutting down and starts no more threads.
                    break
            total = worker(self)
            # Who has not begun yet may be waiting for a thread of the pool that waits for this one.
            others = [other for other in others if not other.cancel()]
            return total + sum(other.result() for other in others)
        finally:
            self.stopped = True
            for other in others:
                if not other.cancel():
                    other.exception()  # Waits: nobody may write into the result after this has returned.

    def _help(self, worker: Callable[[Runs], int]) -> int:
        try:
            return worker(self)
        except BaseException:
            self.stopped = True
            raise
