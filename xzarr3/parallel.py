"""Threads: how many xzarr3 may use, and how several threads share one piece of work.

This module owns the thread pools of the process, interruption by Ctrl-C and the stopping of nested work. It
knows nothing of stores, arrays or codecs.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Self, TypeVar

from xzarr3.options import most_threads
from xzarr3.quantities import positive
from xzarr3.tracing.events import here

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

Item = TypeVar("Item")
Result = TypeVar("Result")

_MOST_THREADS = 256  # Most threads of a process that wait for answers; far more than there are cores.


def is_child() -> bool:
    """Whether :mod:`multiprocessing` has started this process, as pools of processes do."""
    module = sys.modules.get("multiprocessing.process")
    return module is not None and module.parent_process() is not None


def available_threads() -> int:
    """How many threads a read or write may use: one in a worker thread or worker process, else all cores.

    Tasks of dask and of other pools run in such threads or processes, which already keep the cores busy. The
    option ``threads`` lowers the number.
    """
    if threading.current_thread() is not threading.main_thread() or is_child():
        return 1
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # Not every system can tell which cores this process may use.
        cores = os.cpu_count() or 1
    return min(cores, most_threads() or cores)


def asked_threads(threads: int | None) -> int | None:
    """The number of threads that a user asks for; None leaves the choice to xzarr3.

    Raises
    ------
    ValueError
        If it is not a positive integer.
    """
    return None if threads is None else positive("threads", threads, "None or an integer of at least 1")


class Pool:
    """Threads of this process that help with work. The executor is created on first use.

    A forked child creates its own executor.
    """

    def __init__(self, number: int, name: str) -> None:
        self._number, self._name, self._pid = number, name, -1

    def get(self) -> ThreadPoolExecutor:
        """The executor of this process."""
        if self._pid != os.getpid():
            from concurrent.futures import ThreadPoolExecutor  # Takes long to import.

            self._executor = ThreadPoolExecutor(self._number, thread_name_prefix=self._name)
            self._pid = os.getpid()
        return self._executor


class Work:
    """Work that several threads share; it may be part of other work.

    Parameters
    ----------
    stop : callable
        Tells the workers to end.
    """

    def __init__(self, stop: Callable[[], object]) -> None:
        self._stop, self._within = stop, _current.work
        self._told_for = here.array, here.request
        self._parts: dict[int, Work] = {}  # Work that threads of this work share in turn.
        self.shares: list[Future[None]] = []
        """The shares of the pool threads that are waited for."""
        self._results: list[Any] = []
        self.stopped = False
        """Whether this work, or the work that it is part of, must end."""
        self.first: BaseException | None = None
        """The first error; later errors may only result from the stop that followed."""

    def __enter__(self) -> Self:
        if self._within is not None:
            self._within._parts[id(self)] = self
            if self._within.stopped:
                self.stop()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        """End this work, once no thread takes part in it; an error of a worker is raised by `found`."""
        self.stop()
        if self._within is not None:
            self._within._parts.pop(id(self), None)
        to_the_end(self.wait)
        return self.first is not None and isinstance(error, Exception)

    def found(self) -> list[Any]:
        """What the workers have returned, once this work has ended; raises the first error."""
        if self.first is not None:
            raise self.first  # Not in `__exit__`, where a later error would become its context.
        return self._results

    def stop(self) -> None:
        """Stop this work and its parts; what has not been done is no longer wanted."""
        self.stopped = True  # First, so that a new part either sees it or is among the parts below.
        self._stop()
        for part in list(self._parts.values()):
            part.stop()

    def run(self, worker: Callable[[], object]) -> None:
        """Run ``worker`` in this thread as part of this work."""
        before = _current.work, here.array, here.request
        _current.work, (here.array, here.request) = self, self._told_for
        try:
            self._results.append(worker())
        except BaseException as error:
            self.first = self.first or error
            self.stop()
            raise
        finally:
            _current.work, here.array, here.request = before

    def help(self, pool: Pool, worker: Callable[[], object]) -> None:
        """Let a pool thread run ``worker``, unless its share is cancelled before it begins.

        Raises
        ------
        RuntimeError
            If no thread can be started, for instance because the interpreter is shutting down.
        """
        from concurrent.futures import Future

        share: Future[None] = Future()  # Not the pool's, which is unknown if Ctrl-C interrupts `submit`.
        self.shares.append(share)
        pool.get().submit(self._help, share, worker)

    def _help(self, share: Future[None], worker: Callable[[], object]) -> None:
        if share.set_running_or_notify_cancel():
            try:
                self.run(worker)
            finally:
                share.set_result(None)

    def wait(self, *, to_begin: bool = False) -> None:
        """Wait for the pool threads; those that have not begun will not, unless ``to_begin``."""
        for share in self.shares:
            while not (share.done() or (not to_begin and share.cancel())):
                with contextlib.suppress(TimeoutError):  # A signal just before the wait does not end it.
                    share.result(_GLANCE)


class _Current(threading.local):
    work: Work | None = None


_current = _Current()


def is_shared() -> bool:
    """Whether this thread takes part in work that may be stopped."""
    return _current.work is not None


_GLANCE = 0.1  # Seconds


def pause(seconds: float) -> bool:
    """Sleep, but return early if the work that this thread takes part in is stopped.

    Returns
    -------
    bool
        Whether that work is still wanted.
    """
    work, end = _current.work, time.monotonic() + seconds
    while not (work and work.stopped):
        left = end - time.monotonic()
        if left <= 0:
            return True
        time.sleep(min(left, _GLANCE))
    return False


cores = Pool(os.cpu_count() or 1, "xzarr3")
"""Threads for work that keeps a core busy."""
waiters = Pool(_MOST_THREADS, "xzarr3-io")
"""Threads for work that mostly waits for answers of a store."""


def to_the_end(step: Callable[[], object]) -> None:
    """Repeat ``step`` until it is not interrupted, then raise the last interruption, if any.

    Parameters
    ----------
    step : callable
        Raises only exceptions that come from outside, such as Ctrl-C. It may be called again at any time.
    """
    try:
        step()
    except BaseException:
        to_the_end(step)
        raise


def run_on_threads(
    worker: Callable[[], Result],
    threads: int,
    pool: Pool,
    stop: Callable[[], object],
    *,
    leaves: bool = False,
) -> list[Result]:
    """Run ``worker`` in this thread and in threads of a pool; state shared by the workers divides the work.

    This thread does not wait for a pool thread that has not begun. If necessary it does all the work alone,
    so that nested work cannot deadlock. When this function returns or raises, also after Ctrl-C, no thread is
    at work any more.

    Parameters
    ----------
    worker : callable
    threads : int
        The most threads, including this one.
    pool : Pool
    stop : callable
        Tells the workers to end. Called when all work is done or a worker has failed.
    leaves : bool
        Whether to leave without waiting for the other threads after Ctrl-C. Safe where they only read and
        the results are discarded.

    Returns
    -------
    list
        What each worker returned, in any order.
    """
    with Work(stop) as work, work:  # Ended twice: Ctrl-C may come between two steps of the first end.
        try:
            with contextlib.suppress(RuntimeError):  # Without this help it takes longer.
                for _ in range(threads - 1):
                    work.help(pool, worker)
            work.run(worker)
            work.wait()  # No items are left: the workers end with what they have.
        except (KeyboardInterrupt, SystemExit):
            if leaves:  # After Ctrl-C the caller does not wait for answers that may never come.
                work.shares = [share for share in work.shares if share.cancel()]
            raise
    return work.found()


def undisturbed(call: Callable[[], Result]) -> Result:
    """Run ``call`` outside the main thread, so that Ctrl-C takes effect only after the call has ended.

    For calls that change something elsewhere and cannot be cancelled. When this function returns or raises,
    the change has either happened or failed.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    with Work(lambda: None) as work, work:
        try:
            work.help(waiters, call)
        except RuntimeError:  # No thread can be started.
            if work.shares[0].cancel():
                return call()
        work.wait(to_begin=True)
    result: Result = work.found()[0]
    return result


def parallel_map(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    threads: int,
    *,
    leaves: bool = False,
    pool: Pool = waiters,
) -> list[Result]:
    """Call ``function`` with each item, several at a time.

    Parameters
    ----------
    function : callable
    items : iterable
    threads : int
        The most calls at a time.
    leaves : bool
        Whether to leave without waiting for running calls after Ctrl-C; see :func:`run_on_threads`.
    pool : Pool
        The pool that gives the threads; by default the one for work that mostly waits.

    Returns
    -------
    list
        The results, in the order of the items. The first error stops the other calls and is raised.

    Examples
    --------
    >>> parallel_map(len, ["a", "bcd", ""], 3)
    [1, 3, 0]
    """
    waiting = list(items)
    if threads <= 1 or len(waiting) <= 1:
        return [function(item) for item in waiting]
    results: list[Result | None] = [None] * len(waiting)
    numbers = iter(range(len(waiting)))  # `next` on it is atomic, and so is exhausting it.

    def worker() -> None:
        for at in numbers:
            results[at] = function(waiting[at])

    threads = min(threads, len(waiting))
    run_on_threads(worker, threads, pool, lambda: deque(numbers, maxlen=0), leaves=leaves)
    return results  # type: ignore[return-value]
