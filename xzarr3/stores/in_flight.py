"""A limit on the bytes of answers in flight, over all stores of this process.

Concurrent requests help as long as their answers fit into memory. Every store that fetches values from
elsewhere reserves their sizes here while they arrive, first come, first served. A value larger than the whole
limit is admitted when no other bytes are in flight.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Iterator

from xzarr3.options import most_threads
from xzarr3.quantities import integer

DEFAULT = 2**29
"""Default limit in bytes."""


class Budget:
    """A number of bytes that threads share: a weighted semaphore, whose waiting threads are served in order.

    Parameters
    ----------
    limit : int

    Attributes
    ----------
    used : int
        Bytes in flight.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.renew()

    def renew(self) -> None:
        """Start with nothing in flight; in a forked child, the threads of the parent do not exist."""
        self.used = 0
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()
        self._holding = threading.local()

    @contextlib.contextmanager
    def reserved(self, size: int) -> Iterator[None]:
        """Reserve a number of bytes, waiting until they are available.

        A thread that already holds a reservation does not wait: other threads may wait for its bytes.
        """
        is_nested = getattr(self._holding, "is_true", False)
        ticket = object()

        def is_served() -> bool:
            return self._waiting[0] is ticket and (self.used == 0 or self.used + size <= self.limit)

        with self._changed:
            if not is_nested:
                self._waiting.append(ticket)
                try:
                    self._changed.wait_for(is_served)
                finally:
                    self._waiting.remove(ticket)
                    self._changed.notify_all()
            self.used += size
        self._holding.is_true = True
        try:
            yield
        finally:
            self._holding.is_true = is_nested
            with self._changed:
                self.used -= size
                self._changed.notify_all()

    def resize(self, limit: int) -> None:
        """Set another limit."""
        with self._changed:
            self.limit = limit
            self._changed.notify_all()


class Estimate:
    """The probable size of the next value whose size is not known before it arrives."""

    size = 2**20
    """In bytes; at first a guess."""

    def note(self, size: int) -> None:
        """Take into account how large a value was."""
        self.size = max(size, self.size * 7 // 8)


_budget = Budget(DEFAULT)
reserved = _budget.reserved

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_budget.renew)


def get_limit() -> int:
    """How many bytes may be in flight at once in this process."""
    return _budget.limit


def set_limit(limit: int) -> None:
    """Set how many bytes may be in flight at once in this process.

    Bytes that have arrived no longer count, so this does not limit the total memory of a read.

    Parameters
    ----------
    limit : int
        At least 1. A larger value is still read, while no other bytes are in flight.

    Raises
    ------
    ValueError
        If it is no positive integer.

    Examples
    --------
    >>> from xzarr3.stores import in_flight
    >>> before = in_flight.get_limit()
    >>> in_flight.set_limit(2**28)
    >>> in_flight.get_limit()
    268435456
    >>> in_flight.set_limit(before)
    """
    _budget.resize(integer("limit", limit))


def at_once(most: int, size: int) -> int:
    """The most threads, up to ``most``, that may hold ``size`` bytes each; at least the number of cores.

    The option ``threads`` lowers the number.

    Examples
    --------
    >>> at_once(64, 2**10)
    64
    """
    return min(most, most_threads() or most, max(get_limit() // max(size, 1), os.cpu_count() or 1))
