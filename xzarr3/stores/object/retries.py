"""When a failed request to an object store is sent again: how often, after which pauses, until when.

obstore retries what it knows to be safe, by :func:`retry_config`. :class:`Pace` retries the rest in the same
way, where the caller knows that it is safe.
"""

from __future__ import annotations

import random
import time
from datetime import timedelta
from typing import Any

from xzarr3.parallel import pause
from xzarr3.stores.object.errors import Failure
from xzarr3.tracing.counters import add

_FIRST_PAUSE = 0.1  # Seconds
_LONGEST_PAUSE = 15.0


def retry_config(retries: int, deadline: float) -> dict[str, Any]:
    """The retries of obstore, which end within ``deadline`` seconds."""
    # obstore checks the deadline before a pause, so the last attempt begins before the deadline.
    longest = min(_LONGEST_PAUSE, deadline / 4)
    return {
        "max_retries": retries,
        "retry_timeout": timedelta(seconds=deadline - longest),
        "backoff": {
            "init_backoff": timedelta(seconds=min(_FIRST_PAUSE, longest)),
            "max_backoff": timedelta(seconds=longest),
        },
    }


class Pace:
    """Decides when to try again: growing randomized pauses, up to a number of retries and a deadline.

    Parameters
    ----------
    retries : int
    deadline : float
        Seconds.
    longest : float, optional
        The longest pause in seconds.
    """

    def __init__(self, retries: int, deadline: float, longest: float | None = None) -> None:
        self._longest = _LONGEST_PAUSE if longest is None else longest
        self._left = retries
        self._end = time.monotonic() + deadline
        self._pause = _FIRST_PAUSE
        self.attempts = 1

    def again(self, failure: Failure) -> bool:
        """Wait for the next attempt; returns whether there is one."""
        seconds = self._pause * random.uniform(0.5, 1.0)
        if (
            not failure.passing
            or self._left <= 0
            or time.monotonic() + seconds >= self._end
            or not pause(seconds)
        ):
            return False
        add({"retries": 1})
        self._pause = min(2 * self._pause, self._longest)
        self._left -= 1
        self.attempts += 1
        return True
