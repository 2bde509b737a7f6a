"""The threads that share the units of one read or write.

A thread takes runs of units from what all of them share. There is no future, task or event loop per chunk.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator

from xzarr3.codecs.chain import CodecChain
from xzarr3.concurrency import Pool, cores, is_shared, together
from xzarr3.division import ChunkProjection
from xzarr3.plan import Batch

_MAX_RUN = 4096  # Units that a thread takes at once.


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

    def take(self) -> tuple[CodecChain, list[ChunkProjection]] | None:
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

    def share(
        self, threads: int, worker: Callable[[Runs], int], pool: Pool = cores, *, leaves: bool = False
    ) -> int:
        """Have ``worker`` handle the units on several threads; returns the sum of what it returns.

        None of them is at work any more when this returns or raises, but after Ctrl-C with ``leaves``.
        """
        if threads <= 1 and not is_shared():
            return worker(self)
        return sum(together(lambda: worker(self), max(threads, 1), pool, self._stop, leaves=leaves))

    def _stop(self) -> None:
        self.stopped = True
