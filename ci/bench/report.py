"""What came out: tables of medians and ratios, the bars, and the page that records a run."""

from __future__ import annotations

import datetime
import importlib.metadata
import math
import os
import platform
import statistics
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bare import cpu_count
from cost_rows import CALLS, MEMORY
from dask_rows import (
    BUILD_WRITE,
    BUILT,
    FROM_ZARR,
    LIVE,
    MISALIGNED,
    NO_OP,
    RECHUNKED,
    SLICE,
    SLICED,
    STREAM,
    STREAMED,
)
from dask_rows import MEAN as DASK_MEAN
from dask_rows import WRITE as DASK_WRITE
from file_system import kind_of
from latency_rows import CASES as LATENCY_CASES
from latency_rows import DELAY_S, LATENCY
from layouts import BLOSC, MIB_4, SEED, Layout
from peers import AUTO, OPENED, UNITS, BareLoop, Tensorstore
from read_rows import (
    FULL_READ,
    GROWTH,
    GROWTH_CHUNKS,
    GROWTH_KINDS,
    GROWTH_STEPS,
    N_RANDOM_POINTS,
    ONE_CHUNK,
    PATIENCE_S,
    POINT,
    RANDOM_POINTS,
)
from run import Bench
from timing import LEAST_ROUNDS, LIMIT_S, Figure
from write_rows import FULL_WRITE, N_REGIONS, REGION, REGIONS
from xarray_rows import (
    COMPUTE,
    MEAN_OWN,
    MEAN_SMALL,
    OPEN,
    PACKED,
    SERIES,
    TREE,
    TREE_OPEN,
    TREE_WRITE,
    WRITE,
    WRITE_LARGE,
    WRITE_SMALL,
    unconsolidated,
)

from xzarr3.io import native

OURS = "xzarr3"
TIMES = ("ms", "µs")
DEFAULT_PEER = "zarr-python"
NOT_PEERS = (OURS, BareLoop.label)
BARE_LOOP_FACTOR = 1.2
MEMORY_MIB = 64
"""What a full read may need beside its result."""
GROWTH_FACTOR = 1.25
DISTRIBUTIONS = (
    *("xzarr3", "zarr", "zarrs", "tensorstore", "xarray", "dask", "numpy", "numcodecs", "isal"),
    "obstore",
)


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

    def fastest_peer(self, row: str, case: str) -> str | None:
        """Return the label of the peer with the least median, None without any; the bare loop is no peer."""
        medians = {
            figure.library: figure.median
            for figure in self.all
            if (figure.row, figure.case) == (row, case) and figure.library not in NOT_PEERS
        }
        known = {library: median for library, median in medians.items() if median is not None}
        return min(known, key=known.__getitem__, default=None)


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


def bars(figures: Figures, layouts: Sequence[Layout], size_mib: int) -> list[Bar]:
    """Return the bars, judged by `figures`.

    Parameters
    ----------
    figures : Figures
        What was measured.
    layouts : sequence of Layout
        The layouts the bars ask for.
    size_mib : int
        Size in MiB of what a full read returns.
    """
    judged = []
    for layout in layouts:
        judged.append(_times_faster(figures, FULL_READ, layout.name, _least(FULL_READ, layout)))
        judged.append(_near_bare_loop(figures, layout.name))
    for layout in layouts:
        peer = Tensorstore.label if layout.small else None
        judged.append(_times_faster(figures, ONE_CHUNK, layout.name, _least(ONE_CHUNK, layout), peer))
    for row in (POINT, RANDOM_POINTS, FULL_WRITE):
        judged.extend(_times_faster(figures, row, layout.name, _least(row, layout)) for layout in layouts)
    judged.extend(_times_faster(figures, REGIONS, layout.name, 1) for layout in layouts if layout.small)
    judged.extend(_at_most(figures, MEMORY, layout.name, size_mib + MEMORY_MIB, "MiB") for layout in layouts)
    judged.extend(_flat(figures, kind) for kind in GROWTH_KINDS)
    judged.extend(_at_most(figures, CALLS, layout.name, 6, "calls") for layout in layouts if layout.small)
    judged.extend(
        _times_faster(figures, row, case, factor, DEFAULT_PEER)
        for row, case, factor in (
            (OPEN, "500 variables, chunks=None", 2.7),
            (OPEN, "500 variables, chunks={}", 3),
            (OPEN, unconsolidated(500), 3),
            *zip([COMPUTE] * len(PACKED), PACKED, (5, 1.5), strict=True),
            (COMPUTE, MEAN_SMALL, 3.5),
            (COMPUTE, MEAN_OWN, 15),
            (COMPUTE, SERIES, 1.5),
            (WRITE, WRITE_SMALL, 3),
            (WRITE, WRITE_LARGE.format(16 * size_mib), 1.2),
            (TREE, TREE_OPEN, 2.5),
            (TREE, TREE_WRITE, 5),
        )
    )
    judged.extend(_times_faster(figures, LATENCY, case, 1.5, DEFAULT_PEER) for case in LATENCY_CASES)
    judged.extend(_at_most(figures, FROM_ZARR, case, 20, "ms", strict=True) for case in (UNITS, OPENED, AUTO))
    judged.append(_times_faster(figures, DASK_MEAN, UNITS, 3.5, DEFAULT_PEER))
    judged.append(_within(figures, DASK_MEAN, UNITS, NO_OP, 1.3))
    judged.append(_times_faster(figures, DASK_MEAN, AUTO, 15, DEFAULT_PEER))
    judged.append(_at_most(figures, SLICE, SLICED, 1, "ms", strict=True))
    judged.append(_within(figures, DASK_WRITE, MISALIGNED, RECHUNKED, 1))
    judged.append(_at_most(figures, LIVE, MISALIGNED, 25, "% of the array", strict=True))
    judged.append(_at_most(figures, STREAM, STREAMED, 700, "MiB", strict=True))
    judged.append(_at_most(figures, BUILD_WRITE, BUILT, 50, "ms", strict=True))
    return judged


def _least(row: str, layout: Layout) -> float:
    """Return how many times as fast as a peer xzarr3 has to be."""
    if not layout.small:
        return 0.95 if layout.chunks == MIB_4 else 1
    is_cheap = layout.compressor in (None, BLOSC)
    if row == FULL_READ:
        return 1.3 if is_cheap else 1.1
    return 1.5 if row == RANDOM_POINTS and layout.compressor is None else 1


def _within(figures: Figures, row: str, case: str, other: str, factor: float) -> Bar:
    """Return the bar of a case of xzarr3 taking at most `factor` times as long as another one."""
    ours, theirs = figures.median(row, case), figures.median(row, other)
    ratio = None if ours is None or theirs is None else ours / theirs
    return Bar(
        f"{row}: {case}",
        f"at most {factor:g} times as long as: {other}",
        "" if ratio is None else f"{_not_below(ratio)} times",
        None if ratio is None else ratio <= factor,
    )


def _times_faster(figures: Figures, row: str, case: str, factor: float, peer: str | None = None) -> Bar:
    """Return the bar of being `factor` times as fast as `peer`, without one as the fastest peer."""
    fastest = figures.fastest_peer(row, case) if peer is None else peer
    ratio = None if fastest is None else figures.ratio(row, case, fastest)
    asked = "at least as fast as" if factor == 1 else f"at least {factor:g} times as fast as"
    against = f" ({fastest})" if peer is None else ""
    return Bar(
        f"{row}: {case}",
        f"{asked} {peer or 'the fastest peer'}",
        "" if ratio is None else f"{_not_above(ratio)} times{against}",
        None if ratio is None else ratio >= factor,
    )


def _near_bare_loop(figures: Figures, case: str) -> Bar:
    ratio = figures.ratio(FULL_READ, case, BareLoop.label)
    return Bar(
        f"{FULL_READ}: {case}",
        f"at most {BARE_LOOP_FACTOR:g} times as long as the {BareLoop.label}",
        "" if ratio is None else f"{_not_below(1 / ratio)} times",
        None if ratio is None else 1 / ratio <= BARE_LOOP_FACTOR,
    )


def _flat(figures: Figures, kind: str) -> Bar:
    """Return the bar of a chunk's time staying the same from the smallest number of chunks to the largest."""
    few, *_, many = GROWTH_STEPS
    start, end = (figures.median(GROWTH, f"{step} {kind}") for step in (few, many))
    grown = None if start is None or end is None else end / start
    return Bar(
        f"{GROWTH}: {kind}",
        f"at {many} at most {GROWTH_FACTOR:g} times that at {few}",
        "" if grown is None else f"{_not_below(grown)} times",
        None if grown is None else grown <= GROWTH_FACTOR,
    )


def _at_most(figures: Figures, row: str, case: str, most: float, unit: str, *, strict: bool = False) -> Bar:
    value = figures.median(row, case)
    return Bar(
        f"{row}: {case}",
        f"{'under' if strict else 'at most'} {most:g} {unit}",
        "" if value is None else f"{value:.4g} {unit}",
        None if value is None else (value < most if strict else value <= most),
    )


def _not_above(ratio: float) -> str:
    """Return `ratio` with two decimals, rounded down: just below a bar is not shown as the bar."""
    return f"{math.floor(100 * ratio) / 100:.2f}"


def _not_below(ratio: float) -> str:
    """Return `ratio` with two decimals, rounded up."""
    return f"{math.ceil(100 * ratio) / 100:.2f}"


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
    value = rounded(figure.median)
    return value if library == OURS or ratio is None else f"{value} ({ratio:.2f}x)"


def rounded(value: float) -> str:
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
        markdown(conditions(bench, figures, absent, seconds, loads), words=True),
        "## Bars",
        markdown(bar_table(judged), words=True),
        "## Figures",
        _explanation(bench),
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
source, is not counted. A library that has taken {limit:g} s in a case sits out its further rounds, after
{least} at least. Every library reads the same files with its default number of threads. "zarr-python" has its
default pipeline, "fused" and "zarrs" are pipelines it is given; the fastest peer of a bar is the one of
these and tensorstore with the least median in that case.

What is read are files of a disk, out of a warm page cache. What is written in a timed round are files held
in memory (tmpfs) where there is room, else files of the disk; the table at the top says which. It need not
reach a disk: nobody calls fsync (tensorstore, which would, is told not to). On a disk, arrays of many files
that were written stay until the end of the run, because ext4, when it makes files, passes by what was
deleted in the last seconds, which makes a write of many files several times as long.

Arrays are opened before the timing, so what a library keeps of an open array (a shard's index, say) counts
in its favour. One chunk and one point through time are the mean of several places, read one after the
other, of which one result at a time is held. The random points are one `vindex` of {points} places, others
in each round. A full write creates the array and deletes it outside the timing. The small regions are
{regions} writes of {region} values, one after the other, at random places of an array that is full;
about half of them are in several chunks. Each library has a copy of its own, and writes the same values to
the same places as the others; after each round the array is read by another library and compared. Peak
memory is that of a process of its own, above what it held before the read, the result of {size} MiB
included. Function calls are Python's, in all threads; for xzarr3 it is the larger of the counts with its
default number of threads and with one.

The time per chunk is that of a full read of arrays of uncompressed chunks of {chunk} values, in files of
their own or {in_shard} in a shard (in an array of fewer, all), divided by the number of chunks. A library
whose read would take more than {patience:g} s, by its figure at the tenth of the chunks, is left out.

The rows with latency read over HTTP from a server on loopback that answers each request {delay:g} ms late,
and opening is part of them. zarr-python has its ObjectStore, made from a store of obstore, tensorstore its
HTTP driver; both have their default concurrency.

The bare loop is file read, decoder and placement in as many threads as there are CPUs, without a library
and without a check: what calling these decoders takes. It is no peer."""


def _explanation(bench: Bench) -> str:
    """Return what is measured and how, with the numbers this run was made with."""
    return filled(
        _EXPLANATION,
        limit=LIMIT_S,
        least=LEAST_ROUNDS,
        points=N_RANDOM_POINTS,
        regions=N_REGIONS,
        region=REGION,
        size=bench.size_mib,
        chunk=GROWTH_CHUNKS,
        in_shard=max(filter(None, GROWTH_KINDS.values())),
        patience=PATIENCE_S,
        delay=1000 * DELAY_S,
    )


def filled(text: str, **numbers: object) -> str:
    """Return paragraphs of prose with `numbers` put in, in lines of at most 108 characters."""
    paragraphs = text.format(**numbers).split("\n\n")
    return "\n\n".join(textwrap.fill(each, 108, break_on_hyphens=False) for each in paragraphs)


def conditions(
    bench: Bench, figures: Figures, absent: dict[str, str], seconds: float, loads: Sequence[float]
) -> list[list[str]]:
    """Return the table of when, where and with what the figures were measured; see `page`."""
    spreads = [figure.spread for figure in figures.all if figure.spread is not None]
    repeats = {len(figure.samples) for figure in figures.all if figure.unit in TIMES and figure.samples}
    versions = [f"{name} {_version(name)}" for name in DISTRIBUTIONS]
    lines = [
        ["", ""],
        ["date", f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC"],
        ["field", f"{bench.size_mib} MiB of float32, shape {bench.source.shape}, seed {SEED}"],
        [
            "file systems",
            f"{kind_of(bench.root)} for what is read, {kind_of(bench.written)} for what is written",
        ],
        ["timed rounds of a case", ", ".join(map(str, sorted(repeats))) or "-"],
        ["duration", f"{seconds:.0f} s"],
        ["platform", f"{platform.system()} {platform.machine()}, {_processor()}"],
        ["CPUs", str(cpu_count())],
        ["load average before and after", " and ".join(f"{load:.1f}" for load in loads) or "unknown"],
        ["Python", f"{platform.python_implementation()} {platform.python_version()}"],
        ["versions", ", ".join(versions)],
        ["native code of xzarr3", native.report()],
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
