"""A cluster of two small workers for the tests of dask graphs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import Any

import dask
import pytest


@pytest.fixture(scope="session")
def client() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed")
    with (
        dask.config.set({"distributed.worker.daemon": True}),
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            memory_limit="700 MiB",
            dashboard_address=":0",
            host="127.0.0.1",
            silence_logs=logging.CRITICAL,
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.run(lambda paths: sys.path.extend(set(paths) - set(sys.path)), list(sys.path))
        yield client
