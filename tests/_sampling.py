"""The default run takes a few cases of each parametrized test, and says so; what is named runs whole.

A plugin of pytest, which ``conftest.py`` registers.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

CASES = 6  # Of a parametrized test the default run takes so many, spread evenly.
_COUNTS = pytest.StashKey[tuple[int, int]]()


def _is_default(config: pytest.Config) -> bool:
    """Whether neither folders, files, tests, words nor markers are asked for."""
    names_nothing = not config.option.keyword and config.args == config.getini("testpaths")
    return names_nothing and config.option.markexpr == "not slow"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out most cases of tests that have many, where nothing is named."""
    if not _is_default(config):
        return
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    chosen = (
        [each[at * len(each) // CASES] for at in range(CASES)] if len(each) > CASES else each
        for each in cases.values()
    )
    kept = set(itertools.chain.from_iterable(chosen))
    config.stash[_COUNTS] = len(kept), len(items)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Where several processes share the tests, send the numbers to the one that writes the summary."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["sampled"] = session.config.stash.get(_COUNTS, None)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the numbers of a process of the tests, which are the same in all of them."""
    counts = getattr(node, "workeroutput", {}).get("sampled")
    if counts is not None:
        node.config.stash[_COUNTS] = tuple(counts)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say how many cases were left out, and how all of them are run."""
    taken, found = config.stash.get(_COUNTS, (0, 0))
    if taken < found:
        terminalreporter.write_line(
            f"sampled: {taken:,} of {found:,} cases ran, at most {CASES} of each test; "
            f"{found - taken:,} were left out. Name a folder or a file to run all of its cases: pytest tests"
        )
