"""Fixtures that several test modules share."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from _servers import (  # noqa: F401 - fixtures, and what says which of them there were
    azure_server,
    fault_process,
    fault_server,
    gcs_server,
    http_server,
    pytest_runtest_call,
    pytest_sessionfinish,
    pytest_terminal_summary,
    pytest_testnodedown,
    s3_server,
)
from hypothesis import HealthCheck, settings

from xzarr3 import LocalStore, MemoryStore, Store

pytest.register_assert_rewrite("_conformance", "_unprivileged")

# How quick the machine is says nothing about the code. Examples are the same each time, so that a run that
# fails does so again; `pytest --hypothesis-profile explore` looks for new ones.
settings.register_profile("explore", suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.register_profile("same", settings.get_profile("explore"), derandomize=True)
settings.load_profile("same")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # As in the background; children would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def local_store(tmp_path: Path) -> LocalStore:
    """A store in a directory that is not there yet."""
    return LocalStore(tmp_path / "store.zarr")


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store of each kind."""
    return MemoryStore() if request.param == "memory" else LocalStore(tmp_path / "store.zarr")
