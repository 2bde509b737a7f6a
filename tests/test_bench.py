"""The bench runs from end to end on a small field, and judges its bars by what it measured."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "ci" / "bench"
HAS_ZARR = importlib.util.find_spec("zarr") is not None


def run_bench(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH), "--size", "1", "--repeat", "1", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def bar_lines(page: str) -> list[list[str]]:
    section = page.split("## Bars")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_small_run_writes_page(tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    libraries = "xzarr3,zarr-python" if HAS_ZARR else "xzarr3"
    finished = run_bench("--libraries", libraries, "--only", "uncompressed, 64 KiB", "--out", str(page))
    assert finished.returncode == 0, finished.stderr
    assert "failed" not in finished.stderr
    text = page.read_text(encoding="utf-8")
    for row in ("full read (ms)", "one chunk (ms)", "one point through time (ms)", "full write (ms)"):
        assert row in finished.stdout
        assert row in text
    judged = [bar for bar in bar_lines(text) if bar[-1] in ("met", "missed")]
    assert any(bar[0].startswith("function calls") for bar in judged) == (sys.version_info >= (3, 12))
    if HAS_ZARR:
        full_read = next(bar for bar in judged if bar[0] == "full read: uncompressed, 64 KiB")
        assert re.fullmatch(r"\d+\.\d\d times", full_read[2])
        assert full_read[3] == ("met" if float(full_read[2].split()[0]) >= 2 else "missed")


def test_partial_run_leaves_recorded_results_alone() -> None:
    results = BENCH / "RESULTS.md"
    before = results.read_bytes() if results.exists() else None
    finished = run_bench("--libraries", "xzarr3", "--only", "million")
    assert finished.returncode == 0, finished.stderr
    assert "dask array of a million chunks (ms)" in finished.stdout
    assert (results.read_bytes() if results.exists() else None) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--repeat", "0"), "at least 1"),
        (("--libraries", "xarchive"), "no library is called 'xarchive'"),
        (("--libraries", "xzarr3", "--only", "full sleep"), "no case has 'full sleep' in its name"),
    ],
)
def test_wrong_option_is_refused(options: tuple[str, ...], message: str) -> None:
    finished = run_bench(*options, "--no-write")
    assert finished.returncode != 0
    assert message in finished.stderr
