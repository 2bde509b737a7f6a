"""A store in memory that answers late, counts requests, and how often somebody had to wait for an answer."""

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from xzarr3 import MemoryStore
from xzarr3._types import Buffer
from xzarr3.parallel import parallel_map
from xzarr3.stores import ANY, BytesValue, Value
from xzarr3.stores.values import ABSENT


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

    traits = msgspec.structs.replace(
        MemoryStore.traits, concurrency=200, conditional="service", tells_changes=False
    )

    def __init__(self, latency: float = 0.02, *, listable: bool = True) -> None:
        super().__init__()
        if not listable:
            self.traits = msgspec.structs.replace(self.traits, operations=("get", "put", "erase"))
        self.latency = 0.0
        self._slow = latency
        self._counting = threading.Condition()
        self._is_answering = False
        self._answered = 0  # Rounds, of all times.
        self._asking: list[int] = []  # The rounds of those who have asked, and do not know their answer yet.
        self.count = Count()
        self.before: Any = None
        """Called with the operation and the key before each request."""

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
            self._asking.append(mine)
        if self.latency:
            time.sleep(self.latency)
            self._wait_for(mine)
        with self._counting:
            self._asking.remove(mine)
        if self.before is not None:
            self.before(operation, key)
        yield

    def _wait_for(self, mine: int) -> None:
        """Wait for the answers of a round; one thread finds out when they come, for all."""
        with self._counting:
            self._counting.wait_for(lambda: self._answered >= mine or not self._is_answering)
            if self._answered >= mine:
                return
            self._is_answering = True
        self._rest()  # For a while, as whoever waits for the interpreter's lock does not seem to run.
        while _others_run() or self._is_answered_late(mine):
            self._rest()
        with self._counting:
            self._answered = mine
            self.count.rounds += 1
            self._is_answering = False
            self._counting.notify_all()

    def _is_answered_late(self, mine: int) -> bool:
        """Whether somebody has yet to learn the answer of a round before this one."""
        with self._counting:
            return min(self._asking) < mine

    @staticmethod
    def _rest() -> None:
        """Wait until this process did next to nothing for 10 ms."""
        still, used = 0, time.process_time()
        while still < 10:
            time.sleep(0.001)
            before, used = used, time.process_time()
            still = still + 1 if used - before < 0.0005 else 0

    def get(self, key: str, byte_range: Any = None) -> Any:
        with self._request("get", key):
            return super().get(key, byte_range)

    def open(self, key: str, first: Any = None, version: object | None = None) -> Value | None:
        with self._request("exists" if first is None else "get", key):
            value = self._values.get(key)
            return None if value is None else BytesValue(value, bytes(value))

    def versions(self, keys: Sequence[str]) -> Sequence[object | None]:
        return [None] * len(keys)

    def put(self, key: str, pieces: Sequence[Buffer] | None, *, if_version: object = ANY) -> bool:
        with self._request("erase" if pieces is None else "set", key), self._lock:
            if if_version is not ANY and self._values.get(key, ABSENT) != if_version:
                return False
            if pieces is None:
                self._values.pop(key, None)
            else:
                self._values[key] = b"".join(pieces)
            return True

    def erase(self, *keys: str) -> None:
        def erase(key: str) -> None:
            # As those of a service do: threads of this process hold locks while other threads ask.
            with self._request("erase", key), self._lock:
                self._values.pop(key, None)

        parallel_map(erase, keys, self.concurrency)

    def list(self, prefix: str = "") -> Iterator[str]:
        with self._request("list", prefix):
            return super().list(prefix)
