"""A store in memory that answers late, counts requests, and how often somebody had to wait for an answer."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from xzarr3 import MemoryStore
from xzarr3.parallel import parallel_map


@dataclass
class Count:
    """Requests, each as an operation and a key, and how many rounds of them followed one another."""

    requests: list[tuple[str, str]] = field(default_factory=list)
    rounds: int = 0

    def of(self, operation: str) -> list[str]:
        """The keys of one operation."""
        return [key for name, key in self.requests if name == operation]


def _others_run() -> bool:
    """Whether a thread of this process runs besides this one, or would if a processor were free."""
    tasks = "/proc/self/task"
    if not os.path.isdir(tasks):  # Only Linux tells.
        return False
    for name in set(os.listdir(tasks)) - {str(threading.get_native_id())}:
        try:
            with open(f"{tasks}/{name}/stat", encoding="utf-8", errors="replace") as file:
                state = file.read().rpartition(")")[2].split()[0]
        except OSError:  # It has just ended.
            continue
        if state in "RD":
            return True
    return False


class WaitingStore(MemoryStore):
    """Each request takes a while: until nothing else is left to do in this process than to wait for answers.

    Those that are answered together are one round, however slow the machine is.
    """

    concurrency = 200

    def __init__(self, latency: float = 0.02, *, listable: bool = True) -> None:
        super().__init__()
        self.latency = 0.0
        self._slow = latency
        self._counting = threading.Lock()
        self._answering = threading.Lock()
        self._answered = 0  # Rounds, of all times.
        self._listable = listable
        self.count = Count()
        self.before: Any = None
        """Called with the operation and the key before each request."""

    @property
    def listable(self) -> bool:
        return self._listable

    @contextmanager
    def counted(self) -> Iterator[Count]:
        """What is asked within a ``with`` statement, where answers take their time."""
        # Threads are there already, so that what is asked together surely overlaps.
        parallel_map(lambda _: time.sleep(0.002), range(2 * self.concurrency), self.concurrency)
        self.count = count = Count()
        self.latency = self._slow
        try:
            yield count
        finally:
            self.latency = 0.0

    @contextmanager
    def _request(self, operation: str, key: str) -> Iterator[None]:
        with self._counting:
            self.count.requests.append((operation, key))
            mine = self._answered + 1
        if self.latency:
            time.sleep(self.latency)
            self._wait_for(mine)
        if self.before is not None:
            self.before(operation, key)
        yield

    def _wait_for(self, mine: int) -> None:
        """Wait for the answers of a round; one thread finds out when they come, for all."""
        with self._answering:
            if self._answered >= mine:
                return
            still = 0
            while still < 10:  # Whoever waits for the interpreter's lock does not seem to run.
                time.sleep(0.001)
                still = 0 if _others_run() else still + 1
            with self._counting:
                self._answered = mine
                self.count.rounds += 1

    def get(self, key: str, byte_range: Any = None) -> Any:
        with self._request("get", key):
            return super().get(key, byte_range)

    def exists(self, key: str) -> bool:
        with self._request("exists", key):
            return super().exists(key)

    def version(self, key: str) -> object | None:
        return None

    def get_versioned(self, key: str) -> tuple[Any, object]:
        with self._request("get", key):
            value = self._values.get(key)
            return value, "absent" if value is None else value

    def compare_and_set(self, key: str, version: object, value: Any) -> bool:
        with self._request("set" if value is not None else "erase", key), self._lock:
            if self._values.get(key, "absent") != version:
                return False
            if value is None:
                self._values.pop(key, None)
            else:
                self._values[key] = bytes(value)
            return True

    def set(self, key: str, value: Any) -> None:
        with self._request("set", key):
            super().set(key, value)

    def erase(self, key: str) -> None:
        with self._request("erase", key):
            super().erase(key)

    def list_prefix(self, prefix: str) -> Iterator[str]:
        with self._request("list", prefix):
            return super().list_prefix(prefix)


def quickest(work: Callable[[], object], enough: float, times: int = 10) -> float:
    """Seconds that something takes that mostly waits, as the quickest of several runs.

    What else the machine does only makes it slower. There are no more runs once one took less than enough.
    """
    best = float("inf")
    for _ in range(times):
        begin = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begin)
        if best < enough:
            break
    return best
