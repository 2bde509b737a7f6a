"""Fixtures that several test modules share."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from _servers import (  # noqa: F401 - fixtures, and what says which of them there were
    azure_server,
    fault_process,
    fault_server,
    gcs_server,
    http_server,
    pytest_sessionfinish,
    pytest_terminal_summary,
    pytest_testnodedown,
    s3_server,
)
from _skips import fail_if_unknown
from hypothesis import HealthCheck, settings

from xzarr3 import LocalStore, MemoryStore, Store
from xzarr3.io import native, native_read, native_write

pytest.register_assert_rewrite("_conformance", "_unprivileged")

collect_ignore_glob = ["conftest.py", "*/conftest.py"]  # They hold no doctests, and share a name.

# How quick the machine is says nothing about the code. Examples are the same each time, so that a run that
# fails does so again; `pytest --hypothesis-profile explore` looks for new ones.
settings.register_profile("explore", suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.register_profile("same", settings.get_profile("explore"), derandomize=True)
settings.load_profile("same")

# What takes long, or needs what a newcomer does not have: bash ci/test.sh --all runs these as well.
SLOW_FOLDERS = frozenset(("cluster", "faults", "interop", "remote"))
SLOW_FIXTURES = frozenset(("azure_server", "gcs_server", "http_server", "s3_server"))
CASES = 6  # Of a parametrized test the default run takes so many, spread evenly.


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests as slow by their folder and by their servers, and sample the cases of the default run."""
    for item in items:
        if item.path.parent.name in SLOW_FOLDERS or SLOW_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker("slow")
    asked = config.option.keyword or any(os.path.splitext(arg)[1] or "::" in arg for arg in config.args)
    if config.option.markexpr != "not slow" or asked:  # Who names tests wants all of them.
        return
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    chosen = (
        [each[at * len(each) // CASES] for at in range(CASES)] if len(each) > CASES else each
        for each in cases.values()
    )
    kept = set(itertools.chain.from_iterable(chosen))
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    """Fail where a test is skipped for a reason that nobody knows of."""
    report = yield
    fail_if_unknown(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, Any]:
    """Fail where a module is skipped for a reason that nobody knows of."""
    report = yield
    fail_if_unknown(report)
    return report


# The tests use native code wherever it can do the work; with XZARR3_NATIVE=0 they use none.
native_read.FEW = native_write.FEW = 1

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # As in the background; children would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def python_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python does all work, for what only it does: it keeps indexes of shards, for one."""
    monkeypatch.setattr(native.switch, "is_on", False)


@pytest.fixture
def local_store(tmp_path: Path) -> LocalStore:
    """A store in a directory that is not there yet."""
    return LocalStore(tmp_path / "store.zarr")


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store of each kind."""
    return MemoryStore() if request.param == "memory" else LocalStore(tmp_path / "store.zarr")
