"""Clusters of dask workers on this machine, for tests."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def cluster(workers: int = 2, **options: Any) -> Iterator[Any]:
    """The client of a cluster of worker processes of one thread; it is not the current client by itself.

    Parameters
    ----------
    workers : int
    **options
        Options of ``distributed.LocalCluster``. Without ``memory_limit`` the workers have no limit.
    """
    from distributed import Client, LocalCluster

    options = {"memory_limit": 0, "dashboard_address": ":0", "host": "127.0.0.1", **options}
    with (
        LocalCluster(
            n_workers=workers, threads_per_worker=1, silence_logs=logging.CRITICAL, **options
        ) as started,
        Client(started, set_as_default=False) as client,
    ):
        # Tasks of the tests are pickled by the names of their modules.
        client.run(lambda paths: sys.path.extend(set(paths) - set(sys.path)), list(sys.path))
        yield client


@pytest.fixture
def client(workers: Any) -> Iterator[Any]:
    """The cluster ``workers`` of a folder of tests as the current client."""
    with workers.as_current():
        yield workers
