"""Fixtures of the tests of dask graphs."""

from collections.abc import Iterator
from typing import Any

import pytest
from _clusters import client, cluster  # noqa: F401 - a fixture


@pytest.fixture(scope="module")
def workers() -> Iterator[Any]:
    """A cluster of two workers with little memory."""
    with cluster(memory_limit="700 MiB") as made:
        yield made
