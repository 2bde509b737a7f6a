"""How it is measured: alternating timed runs, and counts of Python function calls."""

from __future__ import annotations

import gc
import itertools
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import FrameType
from typing import TypeAlias

import numpy as np

Run: TypeAlias = Callable[[], object]

LIBRARY_ERRORS = (
    ArithmeticError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What a library may raise where it cannot do a row; the row says so, and the others go on."""


LIMIT_S = 4.0
"""Seconds of timed rounds after which a library sits out the further rounds of a case."""
LEAST_ROUNDS = 3
"""Rounds it takes part in however long they take."""


@dataclass(frozen=True)
class Task:
    """One library's part of a row.

    Attributes
    ----------
    library : str
        Label of the library.
    prepared : callable
        From the number of the round to a context manager around one sample; it yields what is timed. What it
        does before and after (fresh directories, configuration) is not timed.
    calls : int
        Number of equal operations in one sample; a sample's time is divided by it.
    case : str
        Case of the row it belongs to, where tasks of several cases alternate.
    """

    library: str
    prepared: Callable[[int], AbstractContextManager[Run]]
    calls: int = 1
    case: str = ""


@dataclass(frozen=True)
class Figure:
    """What one library reached in one case of a row.

    Attributes
    ----------
    row, case : str
        What was measured ("full read") and on what ("zstd, 64 KiB").
    library : str
        Label of the library.
    samples : tuple of float
        The measured values; empty when there are none.
    unit : str
        Unit of the samples: "ms", "µs", "calls" or "MiB".
    note : str
        Why there are no samples.
    """

    row: str
    case: str
    library: str
    samples: tuple[float, ...] = ()
    unit: str = "ms"
    note: str = ""

    @property
    def median(self) -> float | None:
        """The median of the samples, None without any."""
        return statistics.median(self.samples) if self.samples else None

    @property
    def spread(self) -> float | None:
        """The interquartile range over the median, None with fewer than four samples."""
        if len(self.samples) < 4:
            return None
        first, middle, third = statistics.quantiles(self.samples, n=4, method="inclusive")
        return (third - first) / middle


@dataclass(frozen=True)
class SelfTimed:
    """What a run returns that was timed where it ran, such as in another process.

    Attributes
    ----------
    seconds : float
        How long it took there.
    """

    seconds: float


def steady_allocator() -> None:
    """Free a block of 31 MiB, so that freed memory is used again in every run, not only in some.

    glibc gives freed memory back to the system by a threshold that follows the largest block freed so far. A
    process that has freed a few arrays keeps it; one that has not may fetch it anew for each result, which
    can take longer than reading a chunk.
    """
    np.ones(31 * 2**20, np.uint8)


def alternate(row: str, case: str, tasks: Sequence[Task], repeat: int) -> list[Figure]:
    """Time every task `repeat` times, in rounds that go through all tasks, each round from another one.

    A first round of every task is thrown away. A task that raises one of `LIBRARY_ERRORS` is left out of the
    later rounds, and so is one that has had `LIMIT_S` seconds and `LEAST_ROUNDS` rounds.
    """
    samples: list[list[float]] = [[] for _ in tasks]
    notes: dict[int, str] = {}
    spent = [0.0 for _ in tasks]
    gc.collect()
    order = range(len(tasks))
    for round_number in range(-1, repeat):
        first = round_number % max(len(tasks), 1)
        for at in itertools.chain(order[first:], order[:first]):
            patience = spent[at] < LIMIT_S or len(samples[at]) < LEAST_ROUNDS
            if at in notes or not patience:
                continue
            try:
                seconds = _timed(tasks[at], round_number)
            except LIBRARY_ERRORS as error:
                notes[at] = f"{type(error).__name__}: {error}"
                samples[at].clear()
                continue
            if round_number >= 0:
                spent[at] += seconds
                samples[at].append(1000 * seconds / tasks[at].calls)
    return [
        Figure(row, task.case or case, task.library, tuple(samples[at]), "ms", notes.get(at, ""))
        for at, task in enumerate(tasks)
    ]


def _timed(task: Task, round_number: int) -> float:
    with task.prepared(round_number) as run:
        return seconds_of(run)


def seconds_of(run: Run) -> float:
    """Return how long `run` takes, by its own clock if it has one."""
    start = time.perf_counter()
    result = run()
    seconds = time.perf_counter() - start
    if isinstance(result, SelfTimed):
        seconds = result.seconds
    # The result lives until here, so that freeing it is not part of the time.
    del result
    return seconds


def can_count_calls() -> bool:
    """Whether this Python can count the calls of threads that already run (3.12 and later)."""
    return hasattr(threading, "setprofile_all_threads")


def count_calls(run: Run) -> int:
    """Return the number of Python function calls (and generator resumptions) of `run`, in all threads."""
    set_profile = getattr(threading, "setprofile_all_threads", None)
    if set_profile is None:
        raise RuntimeError(f"counting calls needs Python 3.12 or later, this is {sys.version.split()[0]}")
    counter = itertools.count()

    def hook(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            next(counter)

    set_profile(hook)
    try:
        run()
    finally:
        set_profile(None)
    return next(counter)
