"""Which cases of a matrix the default run leaves out."""

import itertools
from collections.abc import Iterable, Sequence
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


def covering(*parameters: Iterable[Any], quick: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Rows of a matrix in which every two values of two parameters meet; all but ``quick`` rows are slow."""
    every = list(itertools.product(*parameters))
    pairs = [set(itertools.combinations(enumerate(map(repr, row)), 2)) for row in every]
    taken = [every.index(row) for row in quick]
    missing = set().union(*pairs).difference(*(pairs[at] for at in taken))
    while missing:
        taken.append(max(range(len(every)), key=lambda at: len(pairs[at] & missing)))
        missing -= pairs[taken[-1]]
    return [every[at] if number < len(quick) else slow(*every[at]) for number, at in enumerate(taken)]
