"""Fixtures that several test modules share."""

import multiprocessing
import signal
from collections.abc import Generator, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import dask
import pytest
from _servers import azure_server, fault_process, fault_server, gcs_server, http_server, s3_server  # noqa: F401
from _skips import fail_if_unknown
from hypothesis import HealthCheck, settings

from xzarr3 import LocalStore, MemoryStore, Store
from xzarr3.commit import lease
from xzarr3.io import native, native_read, native_write

pytest.register_assert_rewrite("_conformance", "_unprivileged")

collect_ignore_glob = ["conftest.py", "*/conftest.py", "_*.py", "data/*.py"]  # They hold no doctests.

# How quick the machine is says nothing about the code. Examples are the same each time, so that a run that
# fails does so again; `pytest -m hypothesis --hypothesis-profile explore` looks for new ones, and prints how
# one that fails is run again. In CI, hypothesis would look for no new ones if it were not told to.
settings.register_profile(
    "explore", suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    deadline=None, derandomize=False, max_examples=500, print_blob=True,
)  # fmt: skip
settings.register_profile("same", settings.get_profile("explore"), derandomize=True, max_examples=100)
settings.load_profile("same")

# What takes long, or needs what a newcomer does not have: bash ci/test.sh --all runs these as well.
SLOW_FOLDERS = frozenset(("cluster", "faults", "interop", "remote"))
SLOW_FIXTURES = frozenset(("azure_server", "gcs_server", "http_server", "s3_server"))


def pytest_configure(config: pytest.Config) -> None:
    """Know the marks of xarray's own tests."""
    for mark in ("asyncio", "flaky", "network", "skip_if_param", "skip_with_dask_array"):
        config.addinivalue_line("markers", f"{mark}: of xarray's own tests")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A run without slow tests does not read folders of which it would take none."""
    is_slow = collection_path.name in SLOW_FOLDERS and collection_path.parent == Path(__file__).parent
    return True if is_slow and config.option.markexpr == "not slow" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests as slow by their folder and by their servers."""
    for item in items:
        if item.path.parent.name in SLOW_FOLDERS or SLOW_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker("slow")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    """Fail where a test or a module is skipped for a reason that nobody knows of."""
    report = yield
    fail_if_unknown(report)
    return report


pytest_make_collect_report = pytest_runtest_makereport

# The tests use native code wherever it can do the work; with XZARR3_NATIVE=0 they use none.
native_read.FEW = native_read.FEW_INNER = native_write.FEW = 1

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # As in the background; children would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def no_lease_is_renewed_after_a_test() -> Iterator[None]:
    """A lease that a test could not remove causes no requests during others, which count them."""
    yield
    for kept in [*lease._kept]:
        lease._drop(kept)


@pytest.fixture
def python_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python does all work, for what only it does: it keeps indexes of shards, for one."""
    monkeypatch.setattr(native.switch, "is_on", False)


@pytest.fixture
def one_task_at_a_time() -> Iterator[None]:
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture(scope="session")
def processes() -> Iterator[ProcessPoolExecutor]:
    """Two processes for dask's scheduler of processes, which would start others for each result."""
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


@pytest.fixture
def local_store(tmp_path: Path) -> LocalStore:
    """A store in a directory that is not there yet."""
    return LocalStore(tmp_path / "store.zarr")


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store of each kind."""
    return MemoryStore() if request.param == "memory" else LocalStore(tmp_path / "store.zarr")
