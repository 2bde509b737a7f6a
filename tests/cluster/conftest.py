"""A cluster of two worker processes of one thread each, on this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import dask
import pytest
from _clusters import cluster
from distributed import Client

OPTIONS = {
    "distributed.scheduler.allowed-failures": 3,
    "distributed.worker.daemon": True,
    "distributed.comm.timeouts.connect": "20s",
}


@contextmanager
def _cluster() -> Iterator[Client]:
    with dask.config.set(OPTIONS), cluster() as client, client.as_current():
        yield client


@pytest.fixture(scope="module")
def clients() -> Iterator[list[tuple[Client, ExitStack]]]:
    """The cluster of a module, as long as there is one."""
    clients: list[tuple[Client, ExitStack]] = []
    yield clients
    for _, stack in clients:
        _close(stack)


def _close(stack: ExitStack) -> None:
    with suppress(KeyError):  # A cluster that has lost a worker may look for it in vain as it ends.
        stack.close()


def _all_answer(client: Client) -> bool:
    """Whether there are two workers, and none that was killed is still counted among them."""
    known = client.scheduler_info()["workers"]
    return len(known) == len(client.run(os.getpid, on_error="ignore")) == 2


@pytest.fixture
def client(clients: list[tuple[Client, ExitStack]]) -> Client:
    """A cluster of two workers; another one, if one that was killed does not come back."""
    if clients:
        end = time.monotonic() + 30
        while not (answer := _all_answer(clients[0][0])) and time.monotonic() < end:
            time.sleep(0.1)
        if not answer:
            _close(clients.pop()[1])
    if not clients:
        stack = ExitStack()
        clients.append((stack.enter_context(_cluster()), stack))
    return clients[0][0]
