"""The section on cores: full reads and writes on one core, two, four, each library in its own process."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import numpy as np
from own_process import own_processes, usable_cores
from peers import InterpretedXzarr3, Tensorstore, Xzarr3, Zarrs
from read_rows import full_read
from report import Figures, rounded
from run import Bench
from sections import Rows, Section, Table
from timing import Figure
from write_rows import full_write

HEADING = "Throughput by cores"
CORNER = "GiB/s by cores"

_EXPLANATION = """\
GiB of values in a second, medians, by the number of cores that a library has. Each library is in a process
of its own for each number of cores; the process is kept on that many cores where the platform can do so
(Linux can), and works with as many threads. The libraries take turns in each round, each round beginning
with another one; a first round is not counted, in which what was read is compared with the source, and what
was written is read by another library and compared. Each write makes a new array. The arrays are files in
memory (tmpfs) where there is room; the table above says which file system it was. A process measures its own
times. "xzarr3 in Python" is xzarr3 without its native code (`XZARR3_NATIVE=0`); zarrs is the
pipeline that zarr-python is given.

The cores are those with the lowest numbers. Where two of them are threads of one core, the figures grow less
than the number. Uncompressed values are bounded by the memory, which all cores share."""


def thread_counts(asked: str | None, cores: int) -> list[int]:
    """Return the numbers of threads that are asked for, without them the powers of two up to `cores`.

    Raises
    ------
    ValueError
        If one is not a number of the cores there are.
    """
    if asked is None:
        return [2**power for power in range(cores.bit_length())]
    counts = [int(each) for each in asked.split(",")]
    for count in counts:
        if not 1 <= count <= cores:
            raise ValueError(f"{count} is not a number of cores; there are {cores}")
    return counts


def rows(threads: Sequence[int]) -> list[Rows]:
    """Return what measures the reads and writes on each number of cores."""
    return [functools.partial(on_cores, threads=number) for number in threads]


def on_cores(bench: Bench, threads: int) -> Iterator[Figure]:
    """Read and write whole arrays in processes that have as many cores as threads."""
    libraries = bench.libraries
    _map_source(bench)
    for layout in bench.layouts:
        bench.store(layout)
    row = f"on {threads} core{'s' if threads > 1 else ''}"
    layouts = bench.layouts
    try:
        with own_processes(libraries, threads, usable_cores()[:threads]) as processes:
            bench.libraries = list(processes)
            for figure in full_read(bench):
                yield _moved(figure, row)
            bench.layouts = [layout for layout in layouts if layout.small]
            for figure in full_write(bench):
                yield _moved(figure, row)
    finally:
        bench.libraries, bench.layouts = libraries, layouts


def _map_source(bench: Bench) -> None:
    """Put the source into a file that all processes map."""
    file = bench.root / "source.npy"
    if not file.exists():
        np.save(file, bench.source)
        bench.source = np.load(file, mmap_mode="r")


def _moved(figure: Figure, row: str) -> Figure:
    return dataclasses.replace(figure, row=row, case=f"{figure.row}: {figure.case}")


def tables(bench: Bench, figures: Figures, labels: Sequence[str]) -> list[Table]:
    """Return the table of throughputs: a line for each case and library, a column a number of cores."""
    measured = figures.rows()
    counts = [row.split()[1] for row in measured]
    lines = [[CORNER, "library", *counts]]
    for case in figures.cases(measured[0]):
        for label in labels:
            medians = [figures.median(row, case, label) for row in measured]
            lines.append([case, label, *(throughput(bench.size_mib, median) for median in medians)])
    return [lines]


def throughput(size_mib: float, milliseconds: float | None) -> str:
    """Return GiB/s as a cell of a table, a dash where nothing was measured."""
    return "-" if milliseconds is None else rounded(size_mib / 1.024 / milliseconds)


CORES = Section(
    "cores", HEADING, (Xzarr3, InterpretedXzarr3, Zarrs, Tensorstore), 512, rows, tables, _EXPLANATION
)
