"""The section on Python's lock: reads with one thread, alone and beside a thread of Python that counts."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from cores import throughput
from layouts import GZIP, KIB_64, MIB_4, ZSTD, Float32Array, Layout
from layouts import LAYOUTS as BENCH_LAYOUTS
from own_process import Answer, OwnProcess, own_processes, usable_cores
from peers import InterpretedXzarr3, Tensorstore, Xzarr3, ZarrPython, Zarrs
from report import Figures
from run import EVERYTHING, Bench, require_equal
from sections import Rows, Section, Table
from timing import Figure, Run, Task, alternate

ALONE = "one of four reads, alone"
BESIDE = "one of four reads, beside a counting thread"
COUNTING = "speed of the counting thread beside the reads"
READS = 4
LARGER = 4
"""How many times larger the field is that has chunks of 4 MiB."""

LAYOUTS = (
    *(layout for layout in BENCH_LAYOUTS if layout.small and layout.shards is None),
    Layout("gzip, 64 KiB", KIB_64, GZIP),
    Layout("zstd, 64 KiB in 4 MiB shards", KIB_64, ZSTD, MIB_4),
    Layout("uncompressed, 4 MiB", MIB_4),
    Layout("zstd, 4 MiB", MIB_4, ZSTD),
)

_EXPLANATION = """\
A thread of pure Python counts on one core while a library reads with one thread on another one, each library
in a process of its own: the throughput in GiB/s alone, that beside the counting thread, and the share of it
that was kept. Python's lock is given from one thread to the other when its holder waits or has had it for
5 ms, so a library that takes the lock again for each chunk may wait 5 ms for each. The second table is what
is left of the counting thread's own speed, which is measured before each sample while no other thread runs.

A sample is four full reads of the field, one after the other; the layouts of 4 MiB have a field four times as
long. A first read, which is compared with the source, is not counted; xzarr3 warms up before. The rounds are
those of the section on cores: libraries take turns, and figures are medians."""


def rows(threads: Sequence[int]) -> list[Rows]:
    """Return what measures reads with one thread; the numbers of threads do not matter."""
    return [beside_counting]


def beside_counting(bench: Bench) -> Iterator[Figure]:
    """Read whole arrays with one thread on a core while a thread of Python counts on another one, or none."""
    reading_on, counting_on = usable_cores()[:2]
    larger = Bench(bench.root, bench.written, bench.libraries, LARGER * bench.size_mib, bench.repeat)
    with own_processes(bench.libraries, 1, [reading_on]) as processes:
        for layout in LAYOUTS:
            field = bench if layout.small else larger
            path = field.store(layout.fitted(field.source.shape))
            kept: dict[str, list[float]] = {process.label: [] for process in processes}
            tasks = [
                _task(process, path, field.source, core, kept[process.label])
                for core in (None, counting_on)
                for process in processes
            ]
            for figure in alternate("", "", tasks, bench.repeat):
                yield dataclasses.replace(figure, row=figure.case, case=layout.name)
            for label, shares in kept.items():
                yield Figure(COUNTING, layout.name, label, tuple(shares), "%")


def _task(
    process: OwnProcess, path: Path, source: Float32Array, counting_on: int | None, kept: list[float]
) -> Task:
    """Return the reads of a process beside what counts on a core; `kept` gets the shares of its speed."""

    def run() -> Answer:
        answer = process.read(path, READS, counting_on)
        if answer.counting is not None:
            kept.append(answer.counting)
        return answer

    @contextlib.contextmanager
    def prepared(round_number: int) -> Iterator[Run]:
        read = process.reader(path)
        if round_number < 0:
            yield lambda: require_equal(read(EVERYTHING), source, process.label)
        else:
            yield run

    return Task(process.label, prepared, calls=READS, case=ALONE if counting_on is None else BESIDE)


def tables(bench: Bench, figures: Figures, labels: Sequence[str]) -> list[Table]:
    """Return the table of throughputs, and that of the counting thread's own speed."""
    reads: Table = [["GiB/s alone, beside (kept)", *labels]]
    counts: Table = [["% of its speed that the counting thread kept", *labels]]
    for layout in LAYOUTS:
        size = bench.size_mib * (1 if layout.small else LARGER)
        reads.append([layout.name, *(_kept(figures, size, layout.name, label) for label in labels)])
        medians = (figures.median(COUNTING, layout.name, label) for label in labels)
        counts.append([layout.name, *("-" if median is None else f"{median:.0f}" for median in medians)])
    return [reads, counts]


def _kept(figures: Figures, size_mib: int, case: str, label: str) -> str:
    alone, beside = (figures.median(row, case, label) for row in (ALONE, BESIDE))
    if alone is None or beside is None:
        return "-"
    return f"{throughput(size_mib, alone)}, {throughput(size_mib, beside)} ({100 * alone / beside:.0f} %)"


LOCK = Section(
    "lock",
    "Reads beside a thread that holds Python's lock",
    (Xzarr3, InterpretedXzarr3, ZarrPython, Zarrs, Tensorstore),
    16,
    rows,
    tables,
    _EXPLANATION,
    least_cores=2,
)
