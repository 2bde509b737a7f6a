"""Threads: how many there may be, and how they share work."""

from __future__ import annotations

import operator
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from xzarr3.tracing.events import here

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
    return None if threads is None else positive("threads", threads, "None or an integer of at least 1")


def positive(name: str, value: object, accepted: str = "an integer of at least 1") -> int:
    """The number that a parameter of this name was given.

    Raises
    ------
    ValueError
        If it is no positive integer.
    """
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError as error:
        raise ValueError(f"{name}={value!r}: accepted: {accepted}") from error
    if number < 1:
        raise ValueError(f"{name}={value!r}: accepted: {accepted}")
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
        self._told_for = here.array, here.request
        self._within = _current.work
        self._parts: dict[int, Work] = {}  # The work that its threads do together with others.
        self._stopped = False  # No event: Ctrl-C within its lock would leave that locked.
        self.first: BaseException | None = None
        """The first error there was; those of others may be about having been stopped."""
        if self._within is not None:
            self._within._parts[id(self)] = self
            if self._within.stopped:
                self.stop()

    def stop(self) -> None:
        """What is left is not wanted any more, and nor is what is left of its parts."""
        self._stop()
        self._stopped = True
        for part in list(self._parts.values()):
            part.stop()

    def end(self) -> None:
        """Nobody is at work any more."""
        _current.work = self._within
        if self._within is not None:
            self._within._parts.pop(id(self), None)

    @property
    def stopped(self) -> bool:
        """Whether this work, or what it is a part of, is to end."""
        return self._stopped or (self._within is not None and self._within.stopped)

    def run(self, worker: Callable[[], Result]) -> Result:
        """Do a part of the work in this thread."""
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
    """A thread of a pool that may help with work.

    Whether it has begun and whether it has ended is told by single steps of the interpreter, so that Ctrl-C
    between any two of them does no harm.
    """

    __slots__ = ("_begun", "_busy", "_ended")

    def __init__(self) -> None:
        self._begun: dict[str, bool] = {}
        self._busy = threading.Lock()
        self._busy.acquire()
        self._ended = False

    def help(self, work: Work, worker: Callable[[], Result], results: list[Result]) -> None:
        """Do a part of the work in this thread, unless it is closed; the work is told of an error."""
        if self._begun.setdefault("begun", True):
            try:
                results.append(work.run(worker))
            finally:
                self._ended = True
                self._busy.release()

    def close(self) -> None:
        """It may not begin any more."""
        self._begun.setdefault("begun", False)

    def finish(self) -> None:
        """Wait until it has begun and ended."""
        # Looked up from now and then: a signal that comes just before it waits does not wake it. Whoever is
        # interrupted after it has got this finds that it has ended.
        while not self._ended and not self._busy.acquire(timeout=_GLANCE):
            pass

    def wait(self) -> None:
        """Wait until it has ended, if it has begun; once it is closed."""
        if self._begun["begun"]:
            self.finish()


class _Current(threading.local):
    work: Work | None = None


_current = _Current()


def is_shared() -> bool:
    """Whether this thread has a part in work, which may be stopped."""
    return _current.work is not None


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


def to_the_end(step: Callable[[], object]) -> None:
    """Repeat a step until nothing interrupts it, and then raise the last interruption there was.

    Parameters
    ----------
    step : callable
        Raises nothing but what comes from outside, as Ctrl-C does, and may be called again at any time.
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


def together(
    worker: Callable[[], Result],
    threads: int,
    pool: Pool,
    stop: Callable[[], object],
    *,
    leaves: bool = False,
) -> list[Result]:
    """Run ``worker`` in this thread and in others of a pool; what all of them share tells them what to do.

    Nobody waits for a thread that has not begun: this one carries on alone if it must, so that work within
    work is never stuck. No thread is at work any more when this returns or raises, also after Ctrl-C.

    Parameters
    ----------
    worker : callable
    threads : int
        How many threads there are at most, this one counted.
    pool : Pool
    stop : callable
        Tells the workers to end; called when all is done or one of them has failed.
    leaves : bool
        After Ctrl-C others need not be waited for, as all they can do is read, and nobody sees what they
        read.

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
            finish()  # All is taken, and they end with what they have.
        except Exception as error:  # noqa: BLE001 - raised below, or the one that came before it
            work.first = work.first or error
        except (KeyboardInterrupt, SystemExit):
            if leaves:  # Who wants to leave does not wait for answers that may never come.
                waited_for = []
            raise
        finally:
            to_the_end(settle)
    finally:
        to_the_end(settle)  # Again, as Ctrl-C may have come between two steps of the first one.
    if work.first is not None:
        try:
            raise work.first
        finally:
            del work, finish, settle  # The error holds this frame, which would hold it.
    return results


def undisturbed(call: Callable[[], Result]) -> Result:
    """Have another thread call, where this is the one that hears of Ctrl-C, which waits until it has ended.

    For what changes something elsewhere and cannot be called back: it has happened, or failed, when this
    returns or raises.
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
        to_the_end(settle)  # Again, as Ctrl-C may have come between two steps of the first one.
    if work.first is not None:
        try:
            raise work.first
        finally:
            del work, settle  # The error holds this frame, which would hold it.
    return results[0]


def spread(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    threads: int,
    *,
    leaves: bool = False,
    pool: Pool = waiters,
) -> list[Result]:
    """Call ``function`` with each item, many at a time.

    Parameters
    ----------
    function : callable
    items : iterable
    threads : int
        How many calls there are at most at a time.
    leaves : bool
        After Ctrl-C calls that are under way need not be waited for; see :func:`together`.
    pool : Pool
        Gives the threads; by default those that mostly wait.

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

    together(worker, min(threads, len(waiting)), pool, stop, leaves=leaves)
    return results  # type: ignore[return-value]
