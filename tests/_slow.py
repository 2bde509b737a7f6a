"""Which cases of a matrix the default run leaves out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow(*values: Any) -> Any:
    """A case that the default run leaves out."""
    return pytest.param(*values, marks=pytest.mark.slow)


def slow_but(values: Iterable[Any], *named: Any) -> list[Any]:
    """Cases of which the default run takes those that are named, by themselves or by their text."""
    every = list(values)
    taken = [any(value is name or str(value) == str(name) for name in named) for value in every]
    assert sum(taken) == len(named), f"{named} are not all among {every}"
    return [value if take else slow(value) for value, take in zip(every, taken, strict=True)]
