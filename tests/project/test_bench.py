"""The bench runs from end to end on a small field, and judges its bars by what it measured."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

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


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The modules of the bench, which are no package and have names others may have too."""
    monkeypatch.syspath_prepend(str(BENCH))
    names = ("cores", "file_system", "layouts", "report", "rows", "run", "sections", "timing")
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "/").parent == BENCH:
            del sys.modules[name]


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
@pytest.mark.parametrize(
    ("only", "cases"),
    [
        (
            "small regions",
            ["uncompressed, 64 KiB", "zstd, 64 KiB", "blosc-lz4, 64 KiB", "zstd, 64 KiB in 16 MiB shards"],
        ),
        ("10^3", ["10^3 files", "10^3 chunks in shards"]),
    ],
)
def test_row_with_arrays_of_its_own(only: str, cases: list[str], tmp_path: Path) -> None:
    # What was read or written is compared with numpy's in the run, which fails when it differs.
    page = tmp_path / "page.md"
    stores = tmp_path / "stores"
    stores.mkdir()
    options = ("--libraries", LIBRARIES, "--only", only, "--out", str(page), "--directory", str(stores))
    finished = run_bench(*options)
    assert finished.returncode == 0, finished.stderr
    assert "failed" not in finished.stderr
    figures = table_lines(page.read_text(encoding="utf-8"), "Figures")
    assert [line[0] for line in figures] == cases
    assert all(re.match(r"\d", cell) for line in figures for cell in line[1:])
    assert not list(stores.iterdir())


@pytest.mark.slow
def test_partial_run_leaves_recorded_results_alone() -> None:
    results = BENCH / "RESULTS.md"
    before = results.read_bytes() if results.exists() else None
    finished = run_bench("--libraries", "xzarr3", "--only", "million")
    assert finished.returncode == 0, finished.stderr
    assert "dask array of a million chunks (ms)" in finished.stdout
    assert (results.read_bytes() if results.exists() else None) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--repeat", "0"), "at least 1"),
        (("--libraries", "xarchive"), "no library is called 'xarchive'"),
        (("--libraries", "xzarr3", "--only", "full sleep"), "no case has 'full sleep' in its name"),
        (("--libraries", "bare loop"), "nothing to measure"),
        (("--only", "cores", "--libraries", "bare loop"), "no library is called 'bare loop'"),
        (("--only", "cores", "--threads", "1,0"), "0 is not a number of cores"),
    ],
)
def test_wrong_option_is_refused(options: tuple[str, ...], message: str) -> None:
    finished = run_bench(*options, "--no-write")
    assert finished.returncode != 0
    assert message in finished.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "others", "line"),
    [
        ("cores", ("--threads", "1"), r"\| full write: zstd, 64 KiB \| xzarr3 \| [\d.]+ \|"),
        pytest.param(
            *("lock", (), r"\| gzip, 64 KiB (\| [\d.]+, [\d.]+ \(\d+ %\) )+\|"),
            marks=pytest.mark.skipif(os.cpu_count() == 1, reason="needs two cores"),
        ),
    ],
    ids=["cores", "lock"],
)
def test_section_takes_its_place_in_a_page(
    name: str, others: tuple[str, ...], line: str, tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Before\n")
    options = ("--only", name, "--libraries", "xzarr3", "--out", str(page), *others)
    for _ in range(2):
        finished = run_bench(*options)
        assert finished.returncode == 0, finished.stderr
        assert "failed" not in finished.stderr
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"# Before\n\n<!-- Made by ci/bench: {name} -->\n\n## ")
    assert text.count("## ") == 1
    assert re.search(f"^{line}$", text, re.MULTILINE)


def test_sections_outlive_a_new_page(bench: SimpleNamespace) -> None:
    cores, lock = bench.rows.SECTIONS["cores"], bench.rows.SECTIONS["lock"]
    old = lock.put(cores.put("# Old\n", "of cores"), "of the lock")
    assert cores.put(old, "anew") == lock.put(cores.put("# Old\n", "anew"), "of the lock")
    assert lock.carry(old, cores.carry(old, "# New\n")) == old.replace("Old", "New")
    assert lock.carry("# Old\n", "# New\n") == "# New\n"


def test_numbers_of_cores_are_powers_of_two_unless_asked_for(bench: SimpleNamespace) -> None:
    counts = bench.cores.thread_counts
    assert [counts(None, cores) for cores in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4], [1, 2, 4, 8]]
    assert counts("3,1", 4) == [3, 1]
    with pytest.raises(ValueError, match="5 is not a number of cores; there are 4"):
        counts("1,5", 4)


def test_scaling_is_drawn_from_the_table(bench: SimpleNamespace, tmp_path: Path) -> None:
    figures = bench.report.Figures(
        [
            bench.timing.Figure(f"on {count} cores", f"full read: {layout}", library, (1000 / count,))
            for count in (1, 2, 4)
            for layout in ("zstd, 64 KiB", "zstd, 4 MiB")
            for library in ("xzarr3", "zarrs")
            if (library, count) != ("zarrs", 4)
        ]
    )
    run = bench.run.Bench(tmp_path, tmp_path, [], 512, 1)
    (table,) = bench.cores.tables(run, figures, ["xzarr3", "zarrs"])
    text = f"## {bench.cores.HEADING}\n\n| any | |\n|---|---|\n\n{bench.report.markdown(table)}\n"
    page = bench.rows.SECTIONS["cores"].put("# Results\n\n## Any\n\n| GiB/s |\n", text)
    spec = importlib.util.spec_from_file_location("scaling", BENCH.parent / "scaling.py")
    assert spec is not None
    assert spec.loader is not None
    scaling = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(scaling)
    found = scaling.cases(page)
    assert list(found) == ["full read: zstd, 64 KiB", "full read: zstd, 4 MiB"]
    assert found["full read: zstd, 4 MiB"]["xzarr3"] == {1: 0.5, 2: 1, 4: 2}
    assert str(found["full read: zstd, 64 KiB"]["zarrs"]) == "{1: 0.5, 2: 1.0, 4: nan}"
    with pytest.raises(
        ValueError, match=r'no table "GiB/s by cores".*make it: bash ci/bench\.sh --only cores'
    ):
        scaling.cases("# Results\n")
    pytest.importorskip("matplotlib")
    scaling.draw(found, tmp_path / "scaling.svg")
    drawn = (tmp_path / "scaling.svg").read_text(encoding="utf-8")
    assert drawn.count(">zstd<") == 1
    assert ">zarrs<" in drawn


def test_speeds_are_drawn_from_the_tables(tmp_path: Path) -> None:
    """Of the page that is stored, and with the losses."""
    import speed

    page = speed.RESULTS.read_text("utf-8")
    found = speed.tables(page)
    line = re.search(
        r"^\| zstd, 4 MiB \| ([\d.]+) \| ([\d.]+) ", page.split("| full read (ms)")[1], re.MULTILINE
    )
    assert line is not None
    assert found["full read"]["zstd, 4 MiB"]["zarr-python"] == float(line[2]) / float(line[1])
    shown = [speed.chosen(found, operations) for operations in speed.PANELS.values()]
    assert "full read: 64 KiB in shards" in shown[0]
    assert not any("uncompressed" in row or "gzip" in row for row in shown[0])
    assert any(ratio < 1 for rows in shown for times in rows.values() for ratio in times.values())
    with pytest.raises(ValueError, match=r"make them: bash ci/bench\.sh"):
        speed.tables("# Results\n")
    pytest.importorskip("matplotlib")
    speed.draw(found, tmp_path / "speed.svg")
    assert ">tensorstore<" in (tmp_path / "speed.svg").read_text(encoding="utf-8")


def judged_bars(bench: SimpleNamespace, medians: dict[tuple[str, str], dict[str, float]]) -> dict[str, Any]:
    """Return the bars that were judged by `medians`, by what they ask of."""
    figures = [
        bench.timing.Figure(row, case, library, (median,))
        for (row, case), by_library in medians.items()
        for library, median in by_library.items()
    ]
    bars = bench.report.bars(bench.report.Figures(figures), bench.layouts.LAYOUTS, 64)
    return {f"{bar.what}; {bar.bar}": bar for bar in bars if bar.met is not None}


def test_bars_ask_for_the_fastest_peer_and_the_bare_loop(bench: SimpleNamespace) -> None:
    times = {"xzarr3": 10.0, "zarr-python": 30.0, "zarrs": 9.99, "tensorstore": 12.0, "bare loop": 8.0}
    judged = judged_bars(bench, {("full read", "gzip, 1 MiB"): times, ("one chunk", "zstd, 64 KiB"): times})
    peers = judged["full read: gzip, 1 MiB; at least as fast as the fastest peer"]
    assert (peers.measured, peers.verdict) == ("0.99 times (zarrs)", "missed")
    loop = judged["full read: gzip, 1 MiB; at most 1.2 times as long as the bare loop"]
    assert (loop.measured, loop.verdict) == ("1.25 times", "missed")
    chunk = judged["one chunk: zstd, 64 KiB; at least as fast as tensorstore"]
    assert chunk.verdict == "met"
    assert len(judged) == 3


@pytest.mark.parametrize(
    ("row", "case", "factor"),
    [
        ("full read", "zstd, 4 MiB", 0.95),
        ("full read", "uncompressed, 64 KiB", 1.3),
        ("full read", "blosc-lz4, 64 KiB", 1.3),
        ("full read", "zstd, 64 KiB in 16 MiB shards", 1.1),
        ("one chunk", "blosc-lz4, 64 KiB", 1),
        ("one chunk", "zstd, 64 KiB in 16 MiB shards", 1),
        ("one chunk", "uncompressed, 4 MiB", 0.95),
        ("one chunk", "gzip, 1 MiB", 1),
        ("one point through time", "uncompressed, 4 MiB", 0.95),
        ("one point through time", "zstd, 64 KiB in 16 MiB shards", 1),
        ("1000 random points", "uncompressed, 64 KiB", 1.5),
        ("100 small regions written", "uncompressed, 64 KiB", 1),
        ("one point through time", "zstd, 64 KiB", 1),
        ("1000 random points", "gzip, 1 MiB", 1),
        ("full write", "uncompressed, 64 KiB", 1),
        ("100 small regions written", "zstd, 64 KiB in 16 MiB shards", 1),
    ],
)
@pytest.mark.parametrize("missed", [False, True])
def test_factor_a_bar_asks_for(
    row: str, case: str, factor: float, missed: bool, bench: SimpleNamespace
) -> None:
    ours = 1.001 if missed else 0.999
    (bar,) = judged_bars(bench, {(row, case): {"xzarr3": ours, "tensorstore": factor}}).values()
    assert bar.verdict == ("missed" if missed else "met")


@pytest.mark.parametrize(
    ("growth", "verdict"), [(1.25, ["met"]), (1.26, ["missed"]), (0.5, ["met"]), (None, [])]
)
def test_growth_is_judged_from_end_to_end(
    growth: float | None, verdict: list[str], bench: SimpleNamespace
) -> None:
    row = "full read, time per chunk"
    medians = {(row, "10^3 files"): {"xzarr3": 8.0}, (row, "10^4 files"): {"xzarr3": 80.0}}
    if growth is not None:
        medians[row, "10^5 files"] = {"xzarr3": 8 * growth}
    assert [bar.verdict for bar in judged_bars(bench, medians).values()] == verdict


@pytest.mark.parametrize(("mib", "verdict"), [(127.9, "met"), (128.5, "missed")])
def test_memory_may_be_result_and_64_mib(mib: float, verdict: str, bench: SimpleNamespace) -> None:
    judged = judged_bars(bench, {("peak memory of a full read", "zstd, 4 MiB"): {"xzarr3": mib}})
    assert [bar.verdict for bar in judged.values()] == [verdict]


def test_slow_library_sits_out(bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    task = bench.timing.Task("any", lambda round_number: contextlib.nullcontext(lambda: None))
    for limit, rounds in ((0.0, bench.timing.LEAST_ROUNDS), (60.0, 7)):
        monkeypatch.setattr(bench.timing, "LIMIT_S", limit)
        (figure,) = bench.timing.alternate("row", "case", [task], 7)
        assert len(figure.samples) == rounds
    assert bench.timing.LEAST_ROUNDS == 3


def test_cases_that_alternate_keep_their_own_samples(bench: SimpleNamespace) -> None:
    runs: list[str] = []

    def task(case: str, *, fails: bool) -> Any:
        @contextlib.contextmanager
        def prepared(round_number: int) -> Iterator[Any]:
            if fails:
                raise RuntimeError("no such thing")
            yield lambda: runs.append(case)

        return bench.timing.Task("any", prepared, case=case)

    tasks = [task("few", fails=False), task("none", fails=True), task("many", fails=False)]
    few, none, many = bench.timing.alternate("row", "", tasks, 2)
    assert runs == ["many", "few", "few", "many", "many", "few"]
    assert [figure.case for figure in (few, none, many)] == ["few", "none", "many"]
    assert [len(figure.samples) for figure in (few, none, many)] == [2, 0, 2]
    assert none.note == "RuntimeError: no such thing"
    assert not few.note + many.note


@pytest.fixture
def file_system(bench: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, on a machine with 6 GiB free and a file system in memory at `tmp_path`/shm."""
    module: ModuleType = bench.file_system
    (tmp_path / "shm").mkdir()
    (tmp_path / "of two words").mkdir()
    mounts = f"""\
/dev/vda / ext4 rw 0 0
none {tmp_path}/shm ext4 rw 0 0
none {tmp_path}/shm tmpfs rw 0 0
none {tmp_path}/of\\040two\\040words ramfs rw 0 0
"""
    (tmp_path / "mounts").write_text(mounts)
    (tmp_path / "meminfo").write_text("MemTotal: 9000000 kB\nMemAvailable: 6291456 kB\n")
    monkeypatch.setattr(module, "MOUNTS", tmp_path / "mounts")
    monkeypatch.setattr(module, "MEMORY_STATUS", tmp_path / "meminfo")
    monkeypatch.setattr(module, "SHARED_MEMORY", tmp_path / "shm")
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: SimpleNamespace(free=5 * 2**30))
    return module


@pytest.mark.parametrize(
    ("place", "kind"), [("shm/a/b", "tmpfs"), ("of two words", "ramfs"), ("shmem", "ext4"), (".", "ext4")]
)
def test_file_system_of_path(place: str, kind: str, file_system: ModuleType, tmp_path: Path) -> None:
    assert file_system.kind_of(tmp_path / place) == kind
    assert file_system.in_memory(tmp_path / place) == (kind != "ext4")


def test_file_system_is_unknown_where_nothing_tells(file_system: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "mounts").unlink()
    assert file_system.kind_of(tmp_path / "shm") == "unknown"
    assert file_system.room_in_memory() is None


def test_memory_is_used_if_there_is_room(
    file_system: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert file_system.room_in_memory() == tmp_path / "shm"
    (tmp_path / "meminfo").write_text("MemAvailable: 3000000 kB\n")
    assert file_system.room_in_memory() is None
    (tmp_path / "meminfo").write_text("MemAvailable: 6291456 kB\n")
    monkeypatch.setattr(file_system.shutil, "disk_usage", lambda path: SimpleNamespace(free=2**30))
    assert file_system.room_in_memory() is None
    monkeypatch.setattr(file_system, "SHARED_MEMORY", tmp_path / "absent")
    assert file_system.room_in_memory() is None


def test_many_files_on_a_disk_stay_until_the_end(
    bench: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = bench.run.Bench(tmp_path, tmp_path, [], 1, 1)
    written = tmp_path / "written"
    for in_memory, n_files, free, kept in (
        (False, 1000, 2**40, True),
        (False, 1000, 2**20, False),
        (False, 4, 2**40, False),
        (True, 1000, 2**40, False),
    ):
        monkeypatch.setattr(run, "in_memory", in_memory)
        monkeypatch.setattr(
            bench.run.shutil, "disk_usage", lambda path, free=free: SimpleNamespace(free=free)
        )
        written.mkdir(exist_ok=True)
        run.discard(written, n_files)
        assert written.exists() == kept, (in_memory, n_files, free)
