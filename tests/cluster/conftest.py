"""A cluster of two worker processes, which tests may kill; each test begins with two that live."""

from collections.abc import Iterator

import dask
import pytest
from _clusters import Workers, cluster
from distributed import Client

OPTIONS = {"distributed.scheduler.allowed-failures": 3, "distributed.comm.timeouts.connect": "20s"}


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
