"""Fixtures of the tests of reading and writing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
from _large_as_small import large_as_small
from _native import python_executor
from _slow import slow


@pytest.fixture(scope="module", params=["native", slow("python")])
def rows(request: pytest.FixtureRequest) -> Iterator[None]:
    """Native rows, and the Python executor; for modules that ask for it by ``usefixtures``."""
    with python_executor() if request.param == "python" else nullcontext():
        yield


@pytest.fixture(scope="module", params=["small", slow("large")])
def ways(request: pytest.FixtureRequest) -> Iterator[None]:
    """The ways through the code that small arrays take, and those that large ones take."""
    with large_as_small() if request.param == "large" else nullcontext():
        yield
