"""Measure xzarr3 beside its peers: `python ci/bench --help`.

`bash ci/bench.sh` does the same in a virtual environment of its own.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bare import cpu_count
from file_system import room_in_memory
from layouts import LAYOUTS
from peers import LIBRARIES, find_libraries
from report import OURS, Figures, aligned, bar_table, bars, failures, load_average, page, table
from rows import ROWS
from run import Bench
from timing import steady_allocator

RESULTS = Path(__file__).with_name("RESULTS.md")
FULL_SIZE_MIB = 64


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="bench", description="Measure xzarr3 beside its peers.")
    parser.add_argument(
        "--size", type=int, default=FULL_SIZE_MIB, metavar="MIB", help="size of the field (64)"
    )
    parser.add_argument("--repeat", type=int, default=7, metavar="N", help="timed rounds of each case (7)")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help='measure cases whose "row: case" has TEXT in it'
    )
    parser.add_argument(
        "--libraries",
        default=",".join(kind.label for kind in LIBRARIES),
        metavar="A,B",
        help="libraries compared (%(default)s)",
    )
    parser.add_argument(
        "--directory",
        type=Path,
        metavar="DIR",
        help="where stores are made and deleted (a temporary one; for writes one in memory)",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"page to write (full runs: {RESULTS.name})")
    parser.add_argument("--no-write", action="store_true", help="write no page")
    options = parser.parse_args(arguments)
    if options.size < 1 or options.repeat < 1:
        parser.error(f"--size and --repeat are at least 1; got {options.size} and {options.repeat}")
    options.libraries = options.libraries.split(",")
    known = [kind.label for kind in LIBRARIES]
    for label in options.libraries:
        if label not in known:
            parser.error(f"no library is called {label!r}; there are {', '.join(known)}")
    return options


def output_path(options: argparse.Namespace) -> Path | None:
    """Return where the page goes: RESULTS.md holds runs of full size with everything in them."""
    if options.no_write:
        return None
    if options.out is not None:
        return Path(options.out)
    partial = options.only or options.size != FULL_SIZE_MIB or len(options.libraries) < len(LIBRARIES)
    return None if partial else RESULTS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench; return 0, or 1 if a figure of xzarr3 could not be measured."""
    options = parse_arguments(arguments)
    start = time.perf_counter()
    loads = load_average()
    if loads and loads[0] > cpu_count() / 2:
        print(
            f"the machine is busy (load {loads[0]:.1f} on {cpu_count()} CPUs): figures will vary",
            file=sys.stderr,
        )
    steady_allocator()
    libraries, absent = find_libraries(options.libraries)
    labels = [library.label for library in libraries]
    for label, reason in absent.items():
        print(f"absent: {label} ({reason})", file=sys.stderr)
    if all(library.whole_chunks_only for library in libraries):
        print("nothing to measure: none of the libraries is installed", file=sys.stderr)
        return 1
    measured = Figures([])
    memory = options.directory or room_in_memory()
    with (
        tempfile.TemporaryDirectory(prefix="xzarr3-bench-", dir=options.directory) as root,
        tempfile.TemporaryDirectory(prefix="xzarr3-bench-", dir=memory) as written,
    ):
        bench = Bench(Path(root), Path(written), libraries, options.size, options.repeat, options.only)
        for measure in ROWS:
            figures = Figures(measure(bench))
            measured = Figures([*measured.all, *figures.all])
            for row in figures.rows():
                print(aligned(table(figures, row, labels)), end="\n\n", flush=True)
        if not measured.all:
            print(f"nothing to measure: no case has {options.only!r} in its name", file=sys.stderr)
            return 1
        seconds = time.perf_counter() - start
        loads += load_average()
        judged = bars(measured, LAYOUTS, bench.size_mib)
        print(aligned(bar_table([bar for bar in judged if bar.met is not None])), end="\n\n")
        print(f"{len(measured.all)} figures in {seconds:.0f} s; in parentheses: a peer's time over xzarr3's")
        for line in failures(measured):
            print(f"failed: {line}", file=sys.stderr)
        out = output_path(options)
        if out is not None:
            out.write_text(page(bench, measured, absent, judged, seconds, loads), encoding="utf-8")
            print(f"written: {out}")
    return 1 if any(figure.note and figure.library == OURS for figure in measured.all) else 0


if __name__ == "__main__":
    sys.exit(main())
