"""Fixtures of the tests of traces and progress."""

from collections.abc import Iterator
from typing import Any

import pytest
from _clusters import client, cluster  # noqa: F401 - a fixture


@pytest.fixture(scope="module")
def workers() -> Iterator[Any]:
    """A cluster of one worker."""
    with cluster(1) as made:
        yield made
