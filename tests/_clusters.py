"""Clusters of dask workers on this machine, for tests."""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def cluster(workers: int = 2, **options: Any) -> Iterator[Any]:
    """The client of a cluster of worker processes of one thread; it is not the current client by itself."""
    from distributed import Client, LocalCluster

    options = {"memory_limit": 0, "dashboard_address": ":0", "host": "127.0.0.1", **options}
    options |= {"n_workers": workers, "threads_per_worker": 1, "silence_logs": logging.CRITICAL}
    with LocalCluster(**options) as started, Client(started, set_as_default=False) as client:
        # Tasks of the tests are pickled by the names of their modules.
        client.run(lambda paths: sys.path.extend(set(paths) - set(sys.path)), list(sys.path))
        yield client


class Workers:
    """Worker processes that a test may kill, of a scheduler that ``cluster(0)`` started.

    They have one thread and no nannies. A nanny does not always start a worker again that was killed: what
    waits for it then waits for ever, and closing it fails. They store in ``folder``.
    """

    def __init__(self, client: Any, folder: Path) -> None:
        self.client, self._folder = client, folder
        self._processes: list[subprocess.Popen[bytes]] = []

    def _start(self) -> subprocess.Popen[bytes]:
        options = ["--no-nanny", "--no-dashboard", "--nthreads=1", "--memory-limit=0", "--death-timeout=60"]
        place = [f"--local-directory={self._folder}", "--host=127.0.0.1", self.client.scheduler.address]
        return subprocess.Popen(
            [sys.executable, "-m", "distributed.cli.dask_worker", *options, *place],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def fill_up(self, number: int = 2) -> None:
        """Start workers until there are ``number``, and wait until they and no others are known."""
        alive = [each for each in self._processes if each.poll() is None]
        self._processes = [*alive, *(self._start() for _ in range(number - len(alive)))]
        expected, end = sorted(each.pid for each in self._processes), time.monotonic() + 120
        while sorted(self._known()) != expected:
            assert time.monotonic() < end, f"workers {self._known()} are known, expected {expected}"
            time.sleep(0.05)

    def _known(self) -> list[int]:
        answers = self.client.run(os.getpid, on_error="ignore")
        known = self.client.scheduler_info(n_workers=-1)["workers"]
        return list(answers.values()) if answers.keys() == known.keys() else []

    def end(self) -> None:
        for each in self._processes:
            each.kill()
            each.wait()


@pytest.fixture
def client(workers: Any) -> Iterator[Any]:
    """The cluster ``workers`` of a folder of tests as the current client."""
    with workers.as_current():
        yield workers
