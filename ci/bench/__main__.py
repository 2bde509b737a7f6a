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
from cores import thread_counts
from file_system import ROOM, room_in_memory
from layouts import LAYOUTS
from peers import LIBRARIES, find_libraries
from report import OURS, Figures, aligned, bar_table, bars, failures, load_average, page, table
from rows import ROWS, SECTIONS
from run import Bench
from timing import steady_allocator

RESULTS = Path(__file__).with_name("RESULTS.md")
FULL_SIZE_MIB = 64
SIZES_IN_MEMORY = 8
"""How many times the field a section needs in memory: its layouts, what is written, and results."""


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="bench", description="Measure xzarr3 beside its peers.")
    sizes = ", ".join(f"{each.size_mib} of --only {each.name}" for each in SECTIONS.values())
    parser.add_argument("--mib", type=int, metavar="N", help=f"size of the field ({FULL_SIZE_MIB}; {sizes})")
    parser.add_argument("--repeat", type=int, default=7, metavar="N", help="timed rounds of each case (7)")
    parser.add_argument(
        "--only",
        default="",
        metavar="TEXT",
        help='measure cases whose "row: case" has TEXT in it; '
        f"{' and '.join(SECTIONS)} are sections that are measured only so",
    )
    parser.add_argument(
        "--threads",
        metavar="N,N",
        help="numbers of cores of --only cores (powers of two up to those there are)",
    )
    parser.add_argument("--libraries", metavar="A,B", help="libraries compared (all that are installed)")
    parser.add_argument(
        "--directory",
        type=Path,
        metavar="DIR",
        help="where stores are made and deleted (a temporary one; for writes one in memory)",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"page to write (full runs: {RESULTS.name})")
    parser.add_argument("--no-write", action="store_true", help="write no page")
    options = parser.parse_args(arguments)
    options.section = SECTIONS.get(options.only)
    options.full_size, kinds = FULL_SIZE_MIB, LIBRARIES
    if options.section is not None:
        options.full_size, kinds = options.section.size_mib, options.section.libraries
    if options.mib is None:
        options.mib = options.full_size
    if options.mib < 1 or options.repeat < 1:
        parser.error(f"--mib and --repeat are at least 1; got {options.mib} and {options.repeat}")
    options.known = [kind.label for kind in kinds]
    options.libraries = options.known if options.libraries is None else options.libraries.split(",")
    for label in options.libraries:
        if label not in options.known:
            parser.error(f"no library is called {label!r}; there are {', '.join(options.known)}")
    try:
        options.threads = thread_counts(options.threads, cpu_count())
    except ValueError as error:
        parser.error(f"--threads: {error}")
    return options


def output_path(options: argparse.Namespace) -> Path | None:
    """Return where the page goes: RESULTS.md holds runs of full size with everything in them."""
    if options.no_write:
        return None
    if options.out is not None:
        return Path(options.out)
    partial = options.only and options.section is None
    partial = partial or options.mib != options.full_size or len(options.libraries) < len(options.known)
    return None if partial else RESULTS


def directories(options: argparse.Namespace) -> tuple[Path | None, Path | None]:
    """Return where what is read and what is written are made; None is for a temporary directory."""
    if options.directory is not None:
        return options.directory, options.directory
    if options.section is None:
        return None, room_in_memory()
    memory = room_in_memory(max(ROOM, SIZES_IN_MEMORY * options.mib * 2**20))
    return memory, memory


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
    if options.section is not None and cpu_count() < options.section.least_cores:
        print(
            f"nothing to measure: --only {options.only} needs {options.section.least_cores} cores",
            file=sys.stderr,
        )
        return 1
    measured = Figures([])
    read, written = directories(options)
    with (
        tempfile.TemporaryDirectory(prefix="xzarr3-bench-", dir=read) as root,
        tempfile.TemporaryDirectory(prefix="xzarr3-bench-", dir=written) as memory,
    ):
        only = options.only if options.section is None else ""
        bench = Bench(Path(root), Path(memory), libraries, options.mib, options.repeat, only)
        for measure in ROWS if options.section is None else options.section.rows(options.threads):
            figures = Figures(measure(bench))
            measured = Figures([*measured.all, *figures.all])
            for row in figures.rows():
                print(aligned(table(figures, row, labels)), end="\n\n", flush=True)
        if not measured.all:
            print(f"nothing to measure: no case has {options.only!r} in its name", file=sys.stderr)
            return 1
        seconds = time.perf_counter() - start
        loads += load_average()
        out = output_path(options)
        old = out.read_text(encoding="utf-8") if out is not None and out.exists() else ""
        if options.section is None:
            judged = bars(measured, LAYOUTS, bench.size_mib)
            summary = [bar_table([bar for bar in judged if bar.met is not None])]
            new = page(bench, measured, absent, judged, seconds, loads)
            for section in SECTIONS.values():
                new = section.carry(old, new)
        else:
            summary = options.section.tables(bench, measured, labels)
            new = options.section.put(old, options.section.text(bench, measured, absent, seconds, loads))
        for lines in summary:
            print(aligned(lines), end="\n\n")
        print(f"{len(measured.all)} figures in {seconds:.0f} s; in parentheses: a peer's time over xzarr3's")
        for line in failures(measured):
            print(f"failed: {line}", file=sys.stderr)
        if out is not None:
            out.write_text(new, encoding="utf-8")
            print(f"written: {out}")
    return 1 if any(figure.note and figure.library == OURS for figure in measured.all) else 0


if __name__ == "__main__":
    sys.exit(main())
