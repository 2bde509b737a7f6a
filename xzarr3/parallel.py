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
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from xzarr3.options import most_threads
from xzarr3.quantities import integer
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
    usable = getattr(os, "sched_getaffinity", None)  # Not every system can tell.
    cores = len(usable(0)) if usable else os.cpu_count() or 1
    return min(cores, most_threads() or cores)


def native_threads() -> int:
    """How many threads native code uses, if no other number is asked for.

    One more than there are cores: the kernels of some virtual machines keep as many threads as there are
    cores on one of them for milliseconds, longer than many a read takes.
    """
    number = available_threads()
    return number if number == 1 or most_threads() is not None else number + 1


def asked_threads(threads: int | None) -> int | None:
    """The number of threads that a user asks for; None leaves the choice to xzarr3.

    Raises
    ------
    ValueError
        If it is not a positive integer.
    """
    return None if threads is None else integer("threads", threads, "None or an integer of at least 1")


class Pool(NamedTuple):
    """Threads of this process that help with work."""

    number: int
    name: str

    def get(self) -> ThreadPoolExecutor:
        """The executor of this process. It is created on first use; a forked child creates its own."""
        return _executor(self, os.getpid())


@cache
def _executor(pool: Pool, pid: int) -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor  # Takes long to import.

    return ThreadPoolExecutor(pool.number, thread_name_prefix=pool.name)


class Work:
    """Work that several threads share; it may be part of other work."""

    def __init__(self) -> None:
        self._within, self._told_for = _current.work, (here.array, here.request)
        self.is_over = False
        self.first: BaseException | None = None
        """The first error; later errors may only result from the stop that followed."""

    def is_stopped(self) -> bool:
        """Whether this work, or the work that it is part of, must end."""
        return self.is_over or (self._within is not None and self._within.is_stopped())

    def run(self, worker: Callable[[], Result]) -> Result:
        """Run ``worker`` in this thread as part of this work."""
        before = _current.work, here.array, here.request
        _current.work, (here.array, here.request) = self, self._told_for
        try:
            return worker()
        except BaseException as error:
            self.first, self.is_over = self.first or error, True
            raise
        finally:
            _current.work, here.array, here.request = before


class _Current(threading.local):
    work: Work | None = None


_current = _Current()
_GLANCE = 0.1  # Seconds


def is_wanted() -> bool:
    """Whether the work that this thread takes part in has not been stopped."""
    return _current.work is None or not _current.work.is_stopped()


def pause(seconds: float) -> bool:
    """Sleep, but return early if the work that this thread takes part in is stopped.

    Returns
    -------
    bool
        Whether that work is still wanted.
    """
    end = time.monotonic() + seconds
    while is_wanted():
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


def _help(pool: Pool, worker: Callable[[], Result], shares: list[Future[Result]]) -> None:
    """Let a pool thread run ``worker``, unless its share is cancelled before it begins.

    Raises
    ------
    RuntimeError
        If no thread can be started, for instance because the interpreter is shutting down.
    """
    from concurrent.futures import Future

    share: Future[Result] = Future()  # Not the pool's, which is unknown if Ctrl-C interrupts `submit`.
    shares.append(share)
    executor = pool.get()
    try:
        executor.submit(_run, share, worker)
    except (KeyboardInterrupt, SystemExit):
        # The executor does not know a thread that was just being started. That would wait for work for ever,
        # and the interpreter for it. So all threads are told to end with their work, and a new pool is begun.
        _executor.cache_clear()
        executor.shutdown(wait=False)
        raise


def _run(share: Future[Result], worker: Callable[[], Result]) -> None:
    if share.set_running_or_notify_cancel():
        try:
            share.set_result(worker())
        except BaseException as error:  # noqa: BLE001 - goes to who waits for the share
            share.set_exception(error)


def _wait(shares: list[Future[Result]], *, to_begin: bool = False) -> None:
    """Wait for pool threads; those that have not begun will not, unless ``to_begin``."""
    for share in shares:
        while not (share.done() or (not to_begin and share.cancel())):
            with contextlib.suppress(TimeoutError):  # A signal just before the wait does not end it.
                share.exception(_GLANCE)


@contextlib.contextmanager
def _ended(work: Work, shares: list[Future[Result]]) -> Iterator[None]:
    """End work, also after Ctrl-C. Entered twice, as that may come between two steps of the first end."""
    try:
        yield
    finally:
        work.is_over = True
        to_the_end(lambda: _wait(shares))


def run_on_threads(
    worker: Callable[[], Result], threads: int, pool: Pool, *, leaves: bool = False
) -> list[Result]:
    """Run ``worker`` in this thread and in threads of a pool; state shared by the workers divides the work.

    This thread does not wait for a pool thread that has not begun. If necessary it does all the work alone,
    so that nested work cannot deadlock. When this function returns or raises, also after Ctrl-C, no thread is
    at work any more.

    Parameters
    ----------
    worker : callable
        Asks :func:`is_wanted` from time to time, and ends if not.
    threads : int
        The most threads, including this one.
    pool : Pool
    leaves : bool
        Whether to leave without waiting for the other threads after Ctrl-C. Safe where they only read and
        the results are discarded.

    Returns
    -------
    list
        What each worker returned, in any order.
    """
    work, shares, results = Work(), list["Future[Result]"](), list[Result]()
    try:
        with _ended(work, shares), _ended(work, shares):
            try:
                with contextlib.suppress(RuntimeError):  # Without this help it takes longer.
                    for _ in range(min(threads - 1, pool.number)):  # All that can begin.
                        _help(pool, lambda: work.run(worker), shares)
                results.append(work.run(worker))
                _wait(shares)  # No items are left: the workers end with what they have.
            except (KeyboardInterrupt, SystemExit):
                if leaves:  # After Ctrl-C the caller does not wait for answers that may never come.
                    shares[:] = [share for share in shares if share.cancel()]
                raise
    except Exception:
        if work.first is None:
            raise
    if work.first is not None:
        raise work.first  # Not above, where a later error would become its context.
    return results + [share.result() for share in shares if not share.cancelled()]


def undisturbed(call: Callable[[], Result]) -> Result:
    """Run ``call`` outside the main thread, so that Ctrl-C takes effect only after the call has ended.

    For calls that change something elsewhere and cannot be cancelled. When this function returns or raises,
    the change has either happened or failed.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    work, shares = Work(), list["Future[Result]"]()
    with _ended(work, shares), _ended(work, shares):
        try:
            _help(waiters, lambda: work.run(call), shares)
        except RuntimeError:  # No thread can be started.
            if shares[0].cancel():
                return call()
        _wait(shares, to_begin=True)
    return shares[0].result()


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

    def worker() -> None:
        while is_wanted() and (at := next(numbers, None)) is not None:
            results[at] = function(waiting[at])

    run_on_threads(worker, min(threads, len(waiting)), pool, leaves=leaves)
    return results  # type: ignore[return-value]
