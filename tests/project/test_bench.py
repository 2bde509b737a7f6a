"""The bench runs from end to end on a small field."""

from __future__ import annotations

import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "ci" / "bench"
HAS_ZARR = importlib.util.find_spec("zarr") is not None
LIBRARIES = "xzarr3,zarr-python" if HAS_ZARR else "xzarr3"


def run_bench(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH), "--mib", "1", "--repeat", "1", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def table_lines(page: str, heading: str) -> list[list[str]]:
    """The cells of the table below a heading."""
    section = page.split(f"## {heading}")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


@pytest.mark.slow
def test_small_run_writes_page(tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    finished = run_bench("--libraries", LIBRARIES, "--only", "uncompressed, 64 KiB", "--out", str(page))
    assert finished.returncode == 0, finished.stderr
    assert "failed" not in finished.stderr
    text = page.read_text(encoding="utf-8")
    for row in ("full read", "one chunk", "one point through time", "1000 random points", "full write"):
        assert f"{row} (ms)" in finished.stdout
        assert f"{row} (ms)" in text
    systems = r"^\| file systems \| \w+ for what is read, \w+ for what is written \|$"
    assert re.search(systems, text, re.MULTILINE)
    judged = [bar for bar in table_lines(text, "Bars") if bar[-1] in ("met", "missed")]
    assert any(bar[0].startswith("function calls") for bar in judged) == (sys.version_info >= (3, 12))
    if HAS_ZARR:
        full_read = next(bar for bar in judged if bar[0] == "full read: uncompressed, 64 KiB")
        assert re.fullmatch(r"\d+\.\d\d times \(zarr-python\)", full_read[2])
        assert full_read[3] == ("met" if float(full_read[2].split()[0]) >= 1.3 else "missed")


@pytest.mark.slow
def test_partial_run_leaves_recorded_results_alone() -> None:
    results = BENCH / "RESULTS.md"
    before = results.read_bytes() if results.exists() else None
    finished = run_bench("--libraries", "xzarr3", "--only", "million")
    assert finished.returncode == 0, finished.stderr
    assert "dask array of a million chunks (ms)" in finished.stdout
    assert (results.read_bytes() if results.exists() else None) == before
