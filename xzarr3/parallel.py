"""Threads: how many xzarr3 may use, and how several threads share one piece of work.

This module owns the thread pools of the process, interruption by Ctrl-C and the stopping of nested work. It
knows nothing of stores, arrays or codecs.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from xzarr3.options import most_threads
from xzarr3.quantities import positive
from xzarr3.tracing.events import here

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

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
        self._number = number
        self._name = name
        self._executor: ThreadPoolExecutor | None = None
        self._pid = -1

    def get(self) -> ThreadPoolExecutor:
        """The executor of this process."""
        if self._executor is None or self._pid != os.getpid():
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
        self._stop = stop
        self._told_for = here.array, here.request
        self._within = _current.work
        self._parts: dict[int, Work] = {}  # Work that threads of this work share in turn.
        self._stopped = False  # Not an Event: Ctrl-C within its lock would leave the lock held.
        self.first: BaseException | None = None
        """The first error; later errors may only result from the stop that followed."""
        if self._within is not None:
            self._within._parts[id(self)] = self
            if self._within.stopped:
                self.stop()

    def stop(self) -> None:
        """Stop this work and its parts; what has not been done is no longer wanted."""
        self._stop()
        self._stopped = True
        for part in list(self._parts.values()):
            part.stop()

    def end(self) -> None:
        """Close this work, once no thread takes part in it."""
        _current.work = self._within
        if self._within is not None:
            self._within._parts.pop(id(self), None)

    @property
    def stopped(self) -> bool:
        """Whether this work, or the work that it is part of, must end."""
        return self._stopped or (self._within is not None and self._within.stopped)

    def run(self, worker: Callable[[], Result]) -> Result:
        """Run ``worker`` in this thread as part of this work."""
        before, _current.work = _current.work, self
        told_for = here.array, here.request
        here.array, here.request = self._told_for
        try:
            return worker()
        except BaseException as error:
            if self.first is None:
                self.first = error
            self.stop()
            raise
        finally:
            _current.work = before
            here.array, here.request = told_for


class Helper:
    """The share of one pool thread in a piece of work.

    Each of "begun" and "ended" changes in a single step of the interpreter, so that Ctrl-C between two steps
    leaves a consistent state.
    """

    __slots__ = ("_begun", "_busy", "_ended")

    def __init__(self) -> None:
        self._begun: dict[str, bool] = {}
        self._busy = threading.Lock()
        self._busy.acquire()
        self._ended = False

    def help(self, work: Work, worker: Callable[[], Result], results: list[Result]) -> None:
        """Run ``worker`` in this thread, unless the helper is closed; ``work`` records an error."""
        if self._begun.setdefault("begun", True):
            try:
                results.append(work.run(worker))
            finally:
                self._ended = True
                self._busy.release()

    def close(self) -> None:
        """Prevent the helper from beginning, if it has not begun."""
        self._begun.setdefault("begun", False)

    def finish(self) -> None:
        """Wait until the helper has begun and ended."""
        # The timeout is needed: a signal just before the wait does not wake it. If Ctrl-C comes right after
        # the lock is acquired, the next call finds `_ended` set.
        while not self._ended and not self._busy.acquire(timeout=_GLANCE):
            pass

    def wait(self) -> None:
        """Wait until the helper has ended, if it has begun. Call `close` first."""
        if self._begun["begun"]:
            self.finish()


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
    work = _current.work
    end = time.monotonic() + seconds
    while work is None or not work.stopped:
        left = end - time.monotonic()
        if left <= 0:
            return True
        time.sleep(left if work is None else min(left, _GLANCE))
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
    interruption: BaseException | None = None
    while True:
        try:
            step()
            break
        except BaseException as error:  # noqa: BLE001 - raised below
            interruption = error
    if interruption is not None:
        raise interruption


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
    work = Work(stop)
    helpers = [Helper() for _ in range(threads - 1)]
    results: list[Result] = []
    waited_for = helpers

    def finish() -> None:
        for helper in helpers:
            helper.close()
        for helper in waited_for:
            helper.wait()

    def settle() -> None:
        work.stop()
        finish()
        work.end()

    try:
        try:
            for helper in helpers:
                try:
                    pool.get().submit(helper.help, work, worker, results)
                except RuntimeError:  # The interpreter is shutting down and starts no more threads.
                    break
            results.append(work.run(worker))
            finish()  # No items are left: the workers end with what they have.
        except Exception as error:  # noqa: BLE001 - raised below, or the one that came before it
            work.first = work.first or error
        except (KeyboardInterrupt, SystemExit):
            if leaves:  # After Ctrl-C the caller does not wait for answers that may never come.
                waited_for = []
            raise
        finally:
            to_the_end(settle)
    finally:
        to_the_end(settle)  # Repeated, as Ctrl-C may have come between two steps of the first call.
    if work.first is not None:
        try:
            raise work.first
        finally:
            del work, finish, settle  # The error holds this frame, which must not hold the error.
    return results


def undisturbed(call: Callable[[], Result]) -> Result:
    """Run ``call`` outside the main thread, so that Ctrl-C takes effect only after the call has ended.

    For calls that change something elsewhere and cannot be cancelled. When this function returns or raises,
    the change has either happened or failed.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    results: list[Result] = []
    helper, work = Helper(), Work(lambda: None)

    def settle() -> None:
        work.stop()
        helper.close()
        helper.wait()
        work.end()

    try:
        try:
            try:
                waiters.get().submit(helper.help, work, call, results)
            except RuntimeError:  # The interpreter is shutting down and starts no more threads.
                return call()
            helper.finish()
        finally:
            to_the_end(settle)
    finally:
        to_the_end(settle)  # Repeated, as Ctrl-C may have come between two steps of the first call.
    if work.first is not None:
        try:
            raise work.first
        finally:
            del work, settle  # The error holds this frame, which must not hold the error.
    return results[0]


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
    numbers = iter(range(len(waiting)))  # `next` on it is atomic.
    stopped = False

    def worker() -> None:
        for at in numbers:
            if stopped:
                return
            results[at] = function(waiting[at])

    def stop() -> None:
        nonlocal stopped
        stopped = True

    run_on_threads(worker, min(threads, len(waiting)), pool, stop, leaves=leaves)
    return results  # type: ignore[return-value]
