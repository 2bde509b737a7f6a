"""A cluster of two worker processes of one thread each, on this machine; tests may kill them.

The workers have no nannies. A nanny does not always start a worker again that was killed, and what waits for
it then waits for ever. Here a test begins with as many new workers as were killed before it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import dask
import pytest
from _clusters import cluster
from distributed import Client

OPTIONS = {"distributed.scheduler.allowed-failures": 3, "distributed.comm.timeouts.connect": "20s"}


class Workers:
    """The worker processes of a scheduler.

    Parameters
    ----------
    client : Client
    folder : Path
        For what the workers store themselves.
    """

    def __init__(self, client: Client, folder: Path) -> None:
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


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with dask.config.set(OPTIONS), cluster(workers=0) as client, client.as_current():
        made = Workers(client, tmp_path_factory.mktemp("workers"))
        try:
            yield made
        finally:
            made.end()


@pytest.fixture
def client(workers: Workers) -> Client:
    workers.fill_up()
    return workers.client
