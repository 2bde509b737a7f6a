"""The bench runs from end to end on a small field, and its table of rows is sound."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from _things import module_at

BENCH = Path(__file__).parents[2] / "ci" / "bench"
RESULTS = BENCH / "RESULTS.md"
LAYOUT = "uncompressed, 64 KiB"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return module_at(BENCH / "__main__.py")


def run_bench(*options: str) -> None:
    command = [sys.executable, str(BENCH), "--mib", "1", "--repeat", "1", *options]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert finished.returncode == 0, finished.stderr
    assert "Failed" not in finished.stdout


def test_rows_name_what_there_is(bench: ModuleType) -> None:
    for row in bench.ROWS:
        assert callable(getattr(bench, row.does))
        assert set(row.libraries) <= set(bench.PEERS)
        assert row.libraries[0] == "xzarr3"
        assert row.section in bench.TABLE["sections"]
        assert row.panel in ("", *bench.TABLE["panels"])
        assert row.does != "reading" or row.name in bench.PLACES
        for case in row.cases:
            known = {"computing": bench.COMPUTED, "writing": bench.WRITTEN, "reading": bench.TABLE["layouts"]}
            assert case in known.get(row.does, (case,))


@pytest.mark.parametrize(
    ("bar", "ours", "theirs", "expected"),
    [
        ("1.3x", 10, 12.99, "at least 1.3 times as fast as the fastest peer|1.29 times (zarrs)|missed"),
        ("1.3x", 10, 13.0, "at least 1.3 times as fast as the fastest peer|1.30 times (zarrs)|met"),
        ("3x zarr-python", 10, 1.0, "at least 3 times as fast as zarr-python|10.00 times|met"),
        ("<= 9.999", 10, 1.0, "at most 9.999 ms|10.00 ms|missed"),
        (">= 10", 10, 1.0, "at least 10 ms|10.00 ms|met"),
        ("<= 1.2x other", 10, 1.0, "at most 1.2 times as long as: other|2.00 times|missed"),
        ("<= 9", None, 1.0, "at most 9 ms|-|not measured"),
    ],
)
def test_judged(bench: ModuleType, bar: str, ours: float | None, theirs: float, expected: str) -> None:
    row = bench.Row("read", "reading", ["xzarr3", "zarr-python", "zarrs"], {"one": [bar], "other": []})
    samples = {("one", "zarrs"): theirs, ("one", "zarr-python"): 100.0, ("other", "xzarr3"): 5.0}
    samples |= {} if ours is None else {("one", "xzarr3"): ours}
    run = bench.Bench("", [row], {}, row.libraries, 1, "")
    run.figures = {("read", *key): bench.Figure([sample]) for key, sample in samples.items()}
    assert bench.judged(run, row, "one", bar) == ["read: one", *expected.split("|")]


def test_put_replaces_one_section(bench: ModuleType) -> None:
    page = bench.put(bench.put(bench.put("", "", "# All"), "cores", "by cores"), "lock", "beside")
    again = bench.put(bench.put(page, "cores", "new"), "", "# Anew")
    assert again == page.replace("by cores", "new").replace("# All", "# Anew")


@pytest.mark.slow
def test_pictures_are_those_of_the_page(bench: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    bench.draw(tmp_path)
    for name in ("speed.svg", "scaling.svg"):
        drawn, kept = ((folder / name).read_text("utf-8") for folder in (tmp_path, BENCH.parent))
        texts = [{line.strip() for line in each.splitlines() if "<text" in line} for each in (drawn, kept)]
        assert len(texts[1]) > 20
        assert {line.split(">")[1] for line in texts[0]} == {line.split(">")[1] for line in texts[1]}


OTHERS = ("series", "tiny", "import,", "20 ms")


@pytest.mark.slow
def test_small_run_writes_page(bench: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("tensorstore")
    page = tmp_path / "RESULTS.md"
    wanted = "|".join((LAYOUT, *OTHERS))
    run_bench("--libraries", "xzarr3,tensorstore", "--only", wanted, "--out", str(page))
    found = bench.tables(page.read_text("utf-8"))
    rows = [row for row in bench.ROWS if LAYOUT in row.cases and not row.section]
    assert len(rows) == 7
    for row in rows:
        (line,) = (line for line in found[f"{row.name} ({row.unit})"] if LAYOUT in line[0])
        assert float(line[1]) > 0
        assert line[2].endswith("x)")
    judged = {line[0]: line[3] for line in found["what"][1:]}
    assert judged.keys() >= {f"{row.name}: {LAYOUT}" for row in rows}
    assert all(any(text in name.casefold() for name in judged) for text in OTHERS)
    assert {judged[f"{row.name}: {LAYOUT}"] for row in rows} <= {"met", "missed"}


@pytest.mark.slow
@pytest.mark.parametrize("only", ["dask: slice|dask: graph|dask: write|dask: data", "lock"])
def test_partial_run_leaves_recorded_results_alone(only: str) -> None:
    pytest.importorskip("zarr", minversion="3.4")
    before = RESULTS.read_bytes()
    run_bench("--libraries", "xzarr3", "--only", only)
    assert RESULTS.read_bytes() == before
