"""Fixtures of the tests of reading and writing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
from _large_as_small import large_as_small, python_executor
from _slow import slow


@pytest.fixture(scope="module", params=["small", slow("large"), slow("large by Python")])
def ways(request: pytest.FixtureRequest) -> Iterator[None]:
    """The ways through the code that small arrays take, and those that large ones take."""
    with (
        large_as_small() if request.param != "small" else nullcontext(),
        python_executor() if request.param == "large by Python" else nullcontext(),
    ):
        yield
