"""The limit on the bytes of answers in flight."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from _fault_server import FaultServer

from xzarr3.stores import in_flight
from xzarr3.stores.object import client
from xzarr3.stores.object.store import ObjectStore


def test_bytes_under_way_are_bounded(fault_server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """While bodies come slowly, not more of them come than there may be bytes."""
    store = ObjectStore("s3://b/x", storage_options=fault_server.storage_options)
    size, most = 200_000, 0
    fault_server.put_all({f"/b/x/{at}": bytes(size) for at in range(8)})
    fault_server.fault("slow", "/b/*", pieces=4, seconds=0.1)

    @contextmanager
    def watched(size: int) -> Iterator[None]:
        nonlocal most
        with in_flight.reserved(size):
            most = max(most, in_flight._budget.used)
            yield

    monkeypatch.setattr(client, "reserved", watched)
    before = in_flight.get_limit()
    try:
        for limit, expected in ((3 * size, 3 * size), (10, size)):  # A larger value comes alone.
            in_flight.set_limit(limit)
            most = 0
            values = store.get_values([str(at) for at in range(8)])
            assert [len(value or b"") for value in values] == [size] * 8
            assert most == expected
    finally:
        in_flight.set_limit(before)
    assert in_flight._budget.used == 0


def test_reservations() -> None:
    budget = in_flight.Budget(10)
    order: list[str] = []
    begun, release = threading.Event(), threading.Event()

    def take(name: str, size: int) -> None:
        with budget.reserved(size):
            order.append(name)
            begun.set()
            if name == "first":
                assert release.wait(120)
            with budget.reserved(100):
                pass  # Nobody waits within.

    asked = [("first", 8), ("large", 50), ("small", 1), ("smaller", 0)]
    threads = [threading.Thread(target=take, args=each) for each in asked]
    for number, thread in enumerate(threads):
        thread.start()
        assert begun.wait(120)
        while len(budget._waiting) < number:
            time.sleep(0.001)
    assert order == ["first"], "who comes first is served first"
    release.set()
    for thread in threads:
        thread.join(120)
    assert order[:2] == ["first", "large"]
    assert sorted(order) == ["first", "large", "small", "smaller"]
    assert budget.used == 0
    with pytest.raises(RuntimeError, match="within"), budget.reserved(5):
        raise RuntimeError("within")
    assert budget.used == 0
    for limit in (0, -1, 1.5, "1", None):
        with pytest.raises(ValueError, match="accepted"):
            in_flight.set_limit(limit)  # type: ignore[arg-type]
