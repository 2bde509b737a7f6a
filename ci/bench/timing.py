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
    """

    library: str
    prepared: Callable[[int], AbstractContextManager[Run]]
    calls: int = 1


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
        Unit of the samples: "ms", "calls" or "MiB".
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
    later rounds.
    """
    samples: dict[str, list[float]] = {task.library: [] for task in tasks}
    notes: dict[str, str] = {}
    gc.collect()
    for round_number in range(-1, repeat):
        first = round_number % max(len(tasks), 1)
        for task in itertools.chain(tasks[first:], tasks[:first]):
            if task.library in notes:
                continue
            try:
                seconds = _timed(task, round_number)
            except LIBRARY_ERRORS as error:
                notes[task.library] = f"{type(error).__name__}: {error}"
                samples[task.library].clear()
                continue
            if round_number >= 0:
                samples[task.library].append(1000 * seconds / task.calls)
    return [
        Figure(row, case, task.library, tuple(samples[task.library]), "ms", notes.get(task.library, ""))
        for task in tasks
    ]


def _timed(task: Task, round_number: int) -> float:
    with task.prepared(round_number) as run:
        start = time.perf_counter()
        result = run()
        seconds = time.perf_counter() - start
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
