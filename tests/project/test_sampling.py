"""The default run takes a few cases of each test and says so; what is named runs whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PROJECT = """
[tool.pytest.ini_options]
testpaths = ["tests"]
addopts = ["-m", "not slow"]
markers = ["slow: takes long"]
"""
CONFTEST = """
import _sampling

def pytest_configure(config):
    config.pluginmanager.register(_sampling)
"""
MODULE = """
import pytest

@pytest.mark.parametrize("case", range(20))
def test_many(case): ...

@pytest.mark.slow
@pytest.mark.parametrize("case", range(30))
def test_slow(case): ...

def test_one(): ...
"""


SAMPLED = "sampled: 7 of 21 cases ran, at most 6 of each test; 14 were left out. "


@pytest.mark.parametrize(
    ("given", "ran", "told"),
    [
        ((), 7, SAMPLED),
        pytest.param(("-n", "2"), 7, SAMPLED, marks=pytest.mark.slow),
        (("tests/part",), 21, ""),
        pytest.param(("tests/part", "-n", "2"), 21, "", marks=pytest.mark.slow),
        (("-k", "many"), 20, ""),
    ],
)
def test_sampling(given: tuple[str, ...], ran: int, told: str, tmp_path: Path) -> None:
    (tmp_path / "tests" / "part").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "tests" / "conftest.py").write_text(CONFTEST)
    (tmp_path / "tests" / "part" / "test_them.py").write_text(MODULE)
    (tmp_path / "tests" / "_sampling.py").write_bytes((TESTS / "_sampling.py").read_bytes())
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", *given]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{ran} passed" in done.stdout
    assert told in done.stdout
    assert ("sampled" in done.stdout) == bool(told)
