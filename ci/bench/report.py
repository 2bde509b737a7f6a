"""What came out: tables of medians and ratios, the bars, and the page that records a run."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bare import cpu_count
from layouts import SEED
from peers import AUTO, OPENED, UNITS
from rows import CALLS, FROM_ZARR, FULL_READ, ONE_CHUNK, OPEN, Bench
from timing import Figure

OURS = "xzarr3"
DEFAULT_PEER = "zarr-python"
DISTRIBUTIONS = ("xzarr3", "zarr", "zarrs", "tensorstore", "xarray", "dask", "numpy", "numcodecs", "isal")


class Figures:
    """All figures of a run, found by row, case and library."""

    def __init__(self, figures: Iterable[Figure]) -> None:
        self.all = list(figures)
        self._by_key = {(figure.row, figure.case, figure.library): figure for figure in self.all}

    def rows(self) -> list[str]:
        """Return the rows in the order they were measured."""
        return list(dict.fromkeys(figure.row for figure in self.all))

    def cases(self, row: str) -> list[str]:
        """Return the cases of `row` in the order they were measured."""
        return list(dict.fromkeys(figure.case for figure in self.all if figure.row == row))

    def find(self, row: str, case: str, library: str) -> Figure | None:
        """Return a figure, None if it was not measured."""
        return self._by_key.get((row, case, library))

    def median(self, row: str, case: str, library: str = OURS) -> float | None:
        """Return a figure's median, None if there is none."""
        figure = self.find(row, case, library)
        return None if figure is None else figure.median

    def ratio(self, row: str, case: str, library: str) -> float | None:
        """Return a peer's time over that of xzarr3: above 1, xzarr3 is the faster."""
        ours, theirs = self.median(row, case), self.median(row, case, library)
        return None if ours is None or theirs is None or ours <= 0 else theirs / ours


@dataclass(frozen=True)
class Bar:
    """One bar and what was measured against it.

    Attributes
    ----------
    what : str
        What is asked, with the case it is asked of.
    bar, measured : str
        What is asked for and what was reached, in words.
    met : bool or None
        Whether it was reached; None if it was not measured.
    """

    what: str
    bar: str
    measured: str
    met: bool | None

    @property
    def verdict(self) -> str:
        """Return met, missed or not measured."""
        return {True: "met", False: "missed", None: "not measured"}[self.met]


def bars(figures: Figures, small: Sequence[str], layouts: Sequence[str]) -> list[Bar]:
    """Return the bars of the first version, judged by `figures`.

    Parameters
    ----------
    figures : Figures
        What was measured.
    small : sequence of str
        The layouts in which a full read is to be twice as fast as zarr-python's.
    layouts : sequence of str
        All layouts.
    """
    judged = []
    for layout in layouts:
        judged.append(_times_faster(figures, FULL_READ, layout, 2.0 if layout in small else 1.0))
    for layout in layouts:
        ratio = figures.ratio(ONE_CHUNK, layout, DEFAULT_PEER)
        share = None if ratio is None else 1 / ratio
        judged.append(
            Bar(
                f"{ONE_CHUNK}: {layout}",
                f"below 60 % of {DEFAULT_PEER}'s time",
                "" if share is None else f"{100 * share:.0f} %",
                None if share is None else share < 0.6,
            )
        )
    judged.extend(_at_most(figures, CALLS, layout, 6, "calls") for layout in small)
    judged.extend(
        _times_faster(figures, OPEN, case, 2.0)
        for case in ("500 variables, chunks=None", "500 variables, chunks={}")
    )
    judged.extend(_at_most(figures, FROM_ZARR, case, 20, "ms", strict=True) for case in (UNITS, OPENED, AUTO))
    return judged


def _times_faster(figures: Figures, row: str, case: str, factor: float) -> Bar:
    ratio = figures.ratio(row, case, DEFAULT_PEER)
    asked = "at least as fast as" if factor == 1 else f"at least {factor:g} times as fast as"
    return Bar(
        f"{row}: {case}",
        f"{asked} {DEFAULT_PEER}",
        "" if ratio is None else f"{ratio:.2f} times",
        None if ratio is None else ratio >= factor,
    )


def _at_most(figures: Figures, row: str, case: str, most: float, unit: str, *, strict: bool = False) -> Bar:
    value = figures.median(row, case)
    return Bar(
        f"{row}: {case}",
        f"{'under' if strict else 'at most'} {most:g} {unit}",
        "" if value is None else f"{value:.3g} {unit}",
        None if value is None else (value < most if strict else value <= most),
    )


def table(figures: Figures, row: str, libraries: Sequence[str]) -> list[list[str]]:
    """Return the table of a row, header first: a median for each library, and in a peer's cell its ratio."""
    unit = next(figure.unit for figure in figures.all if figure.row == row)
    lines = [[f"{row} ({unit})", *libraries]]
    for case in figures.cases(row):
        cells = [_cell(figures, row, case, library) for library in libraries]
        lines.append([case, *cells])
    return lines


def _cell(figures: Figures, row: str, case: str, library: str) -> str:
    figure = figures.find(row, case, library)
    if figure is None:
        return "-"
    if figure.median is None:
        return "failed"
    ratio = figures.ratio(row, case, library)
    value = _rounded(figure.median)
    return value if library == OURS or ratio is None else f"{value} ({ratio:.2f}x)"


def _rounded(value: float) -> str:
    """Return `value` with three figures, and no exponent."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Return a table as text for a terminal: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def markdown(lines: Sequence[Sequence[str]], *, words: bool = False) -> str:
    """Return a table in Markdown; all columns but the first are to the right unless they hold `words`."""
    head, *body = ["| " + " | ".join(line) + " |" for line in lines]
    rule = "|---" + ("|---" if words else "|---:") * (len(lines[0]) - 1) + "|"
    return "\n".join([head, rule, *body])


def bar_table(judged: Sequence[Bar]) -> list[list[str]]:
    """Return the table of the bars, header first."""
    return [
        ["what", "bar", "measured", "verdict"],
        *([bar.what, bar.bar, bar.measured or "-", bar.verdict] for bar in judged),
    ]


def page(
    bench: Bench,
    figures: Figures,
    absent: dict[str, str],
    judged: Sequence[Bar],
    seconds: float,
    loads: Sequence[float],
) -> str:
    """Return the page that records a run, in Markdown.

    Parameters
    ----------
    bench, figures, absent, judged
        The run, what it measured, the libraries that were not there, and the bars.
    seconds : float
        How long it took.
    loads : sequence of float
        The load averages over a minute before and after it, as far as the platform tells them.
    """
    labels = [library.label for library in bench.libraries]
    sections = [
        "# Results of the bench",
        "Written by `bash ci/bench.sh`; every figure on this page was computed in that run.",
        markdown(_conditions(bench, figures, absent, seconds, loads), words=True),
        "## Bars",
        markdown(bar_table(judged), words=True),
        "## Figures",
        _EXPLANATION,
        *(markdown(table(figures, row, labels)) for row in figures.rows()),
        *_failures(figures),
        "## Layouts",
        markdown(_layout_table(bench)),
    ]
    return "\n\n".join(sections) + "\n"


_EXPLANATION = """\
Medians. In a peer's cell, the number in parentheses is its figure over that of xzarr3: above 1, xzarr3 is
the faster (or needs less). All libraries run in one process, one after the other in each round, each round
beginning with another one; a first round, in which what each library read or wrote is compared with the
source, is not counted. Every library reads the same files, out of a warm page cache, with its default
number of threads. Arrays are opened before the timing, so what a library keeps of an open array (a shard's
index, say) counts in its favour. One chunk and one point are the mean of several places, read one after the
other, of which one result at a time is held. Writing creates the array and deletes it outside the timing;
nobody calls fsync (tensorstore, which would, is told not to). "zarr-python" has its default pipeline. The
peak memory is that of a process of its own, above what it held before the read, the result included.
Function calls are Python's, in all threads; for xzarr3 it is the larger of the counts with its default
number of threads and with one. The bare loop is file read, decoder and placement in as many threads as
there are CPUs, without a library and without a check: what calling these decoders takes."""


def _conditions(
    bench: Bench, figures: Figures, absent: dict[str, str], seconds: float, loads: Sequence[float]
) -> list[list[str]]:
    spreads = [figure.spread for figure in figures.all if figure.spread is not None]
    repeats = {len(figure.samples) for figure in figures.all if figure.unit == "ms" and figure.samples}
    versions = [f"{name} {_version(name)}" for name in DISTRIBUTIONS]
    lines = [
        ["", ""],
        ["date", f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC"],
        ["field", f"{bench.size_mib} MiB of float32, shape {bench.source.shape}, seed {SEED}"],
        ["timed rounds of a case", ", ".join(map(str, sorted(repeats))) or "-"],
        ["duration", f"{seconds:.0f} s"],
        ["platform", f"{platform.system()} {platform.machine()}, {_processor()}"],
        ["CPUs", str(cpu_count())],
        ["load average before and after", " and ".join(f"{load:.1f}" for load in loads) or "unknown"],
        ["Python", f"{platform.python_implementation()} {platform.python_version()}"],
        ["versions", ", ".join(versions)],
        ["absent", ", ".join(absent) or "none"],
    ]
    if spreads:
        middle = 100 * statistics.median(spreads)
        lines.append(["interquartile range over median", f"{middle:.0f} % (median of all cases)"])
    return lines


def _layout_table(bench: Bench) -> list[list[str]]:
    lines = [["layout", "chunks", "shards", "chunks in all", "times smaller than the field"]]
    for layout in bench.layouts:
        compression = bench.compression.get(layout.name)
        lines.append(
            [
                layout.name,
                str(layout.chunks),
                str(layout.shards or "-"),
                str(layout.n_chunks(bench.source.shape)),
                "-" if compression is None else f"{compression:.2f}",
            ]
        )
    return lines


def _failures(figures: Figures) -> list[str]:
    failed = [
        f"- {figure.library}, {figure.row}: {figure.case}: {' '.join(figure.note.split())}"
        for figure in figures.all
        if figure.note
    ]
    return ["### Failed", "\n".join(failed)] if failed else []


def failures(figures: Figures) -> list[str]:
    """Return a line for each figure that could not be measured, with the error."""
    return [line for text in _failures(figures)[1:] for line in text.splitlines()]


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "(absent)"


def load_average() -> list[float]:
    """Return the load average over the last minute, nothing where the platform does not tell it."""
    try:
        return [os.getloadavg()[0]]
    except (AttributeError, OSError):
        return []


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "processor unknown"
