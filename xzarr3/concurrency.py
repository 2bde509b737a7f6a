"""Threads: how many there may be, and how they share work."""

from __future__ import annotations

import operator
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_MOST_THREADS = 256  # Of a process that wait for answers; far more than there are cores.


def is_child() -> bool:
    """Whether :mod:`multiprocessing` has started this process, as pools of processes do."""
    module = sys.modules.get("multiprocessing.process")
    return module is not None and module.parent_process() is not None


def available_threads() -> int:
    """How many threads a read or write may use: all cores, but one within somebody else's pool.

    Tasks of dask and of other pools run in threads or in processes of their own, of which there are enough
    already.
    """
    if threading.current_thread() is not threading.main_thread() or is_child():
        return 1
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # Only some systems can tell which cores this process may use.
        return os.cpu_count() or 1


def asked_threads(threads: int | None) -> int | None:
    """How many threads a user asks for; None if that is left open.

    Raises
    ------
    ValueError
        If it is no positive integer.
    """
    if threads is None:
        return None
    try:
        number = operator.index(threads)
    except TypeError as error:
        raise ValueError(f"threads={threads!r}: accepted: None or an integer of at least 1") from error
    if number < 1:
        raise ValueError(f"threads={threads!r}: accepted: None or an integer of at least 1")
    return number


class Pool:
    """Threads of this process that help with work; they are started as they are needed.

    A forked child starts its own.
    """

    def __init__(self, number: int, name: str) -> None:
        self._number = number
        self._name = name
        self._executor: ThreadPoolExecutor | None = None
        self._pid = -1

    def get(self) -> ThreadPoolExecutor:
        """The executor of this process."""
        if self._executor is None or self._pid != os.getpid():
            self._executor = ThreadPoolExecutor(self._number, thread_name_prefix=self._name)
            self._pid = os.getpid()
        return self._executor


class Work:
    """Work that several threads do together, within other work it may be.

    Parameters
    ----------
    stop : callable
        Tells the workers to end.
    """

    def __init__(self, stop: Callable[[], object]) -> None:
        self._stop = stop
        self._within = _current.work
        self._stopped = threading.Event()
        self.first: BaseException | None = None
        """The first error there was; those of others may be about having been stopped."""

    def stop(self) -> None:
        """What is left is not wanted any more."""
        self._stop()
        self._stopped.set()

    @property
    def stopped(self) -> bool:
        """Whether this work, or what it is a part of, is to end."""
        return self._stopped.is_set() or (self._within is not None and self._within.stopped)

    def run(self, worker: Callable[[], Result]) -> Result:
        """Do a part of the work in this thread."""
        before, _current.work = _current.work, self
        try:
            return worker()
        except BaseException as error:
            if self.first is None:
                self.first = error
            self.stop()
            raise
        finally:
            _current.work = before


class _Current(threading.local):
    work: Work | None = None


_current = _Current()
_GLANCE = 0.1  # Seconds


def pause(seconds: float) -> bool:
    """Wait, but no longer than the work lasts that this thread has a part in.

    Returns
    -------
    bool
        Whether that work is still wanted.
    """
    work = _current.work
    end = time.monotonic() + seconds
    while work is None or not work.stopped:
        left = end - time.monotonic()
        if left <= 0:
            return True
        time.sleep(left if work is None else min(left, _GLANCE))
    return False


cores = Pool(os.cpu_count() or 1, "xzarr3")
"""For work that keeps a core busy."""
waiters = Pool(_MOST_THREADS, "xzarr3-io")
"""For work that mostly waits for answers of a store."""


def together(
    worker: Callable[[], Result], threads: int, pool: Pool, stop: Callable[[], object]
) -> list[Result]:
    """Run ``worker`` in this thread and in others of a pool; what all of them share tells them what to do.

    Nobody waits for a thread that has not begun: this one carries on alone if it must, so that work within
    work is never stuck.

    Parameters
    ----------
    worker : callable
    threads : int
        How many threads there are at most, this one counted.
    pool : Pool
    stop : callable
        Tells the workers to end; called when all is done or one of them has failed.

    Returns
    -------
    list
        What each worker returned.
    """

    work = Work(stop)
    others: list[Future[Result]] = []
    try:
        for _ in range(threads - 1):
            try:
                others.append(pool.get().submit(work.run, worker))
            except RuntimeError:  # The interpreter is shutting down and starts no more threads.
                break
        mine = work.run(worker)
        # Who has not begun yet may be waiting for a thread of the pool that waits for this one.
        others = [other for other in others if not other.cancel()]
        return [mine, *(other.result() for other in others)]
    except (KeyboardInterrupt, SystemExit):
        for other in others:
            other.cancel()
        others.clear()  # Who wants to leave does not wait for answers that may never come.
        raise
    except Exception as error:  # noqa: BLE001 - raised below, or the one that came before it
        failure = work.first or error
    finally:
        work.stop()
        for other in others:
            if not other.cancel():
                other.exception()  # Waits: nobody may go on after this has returned.
    try:
        raise failure
    finally:
        del failure  # It holds this frame, which would hold it.


def spread(function: Callable[[Item], Result], items: Iterable[Item], threads: int) -> list[Result]:
    """Call ``function`` with each item, many at a time; for work that mostly waits.

    Parameters
    ----------
    function : callable
    items : iterable
    threads : int
        How many calls there are at most at a time.

    Returns
    -------
    list
        The results, in the order of the items. The first error ends it all and is raised.

    Examples
    --------
    >>> spread(len, ["a", "bcd", ""], 3)
    [1, 3, 0]
    """
    waiting = list(items)
    if threads <= 1 or len(waiting) <= 1:
        return [function(item) for item in waiting]
    results: list[Result | None] = [None] * len(waiting)
    numbers = iter(range(len(waiting)))  # Its next step is atomic.
    stopped = False

    def worker() -> None:
        for at in numbers:
            if stopped:
                return
            results[at] = function(waiting[at])

    def stop() -> None:
        nonlocal stopped
        stopped = True

    together(worker, min(threads, len(waiting)), waiters, stop)
    return results  # type: ignore[return-value]
