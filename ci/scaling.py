"""The picture of the throughput by cores: a panel for each read and write of small chunks, a line a library.

    python ci/scaling.py                 draws ci/scaling.svg
    python ci/scaling.py --out FILE      draws another file, .svg or .png

The numbers are those of the table that ``bash ci/bench.sh --only cores`` puts into ci/bench/RESULTS.md.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any, TypeAlias

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "ci" / "bench" / "RESULTS.md"
PICTURE = ROOT / "ci" / "scaling.svg"
HEADING = "## Throughput by cores"
CORNER = "GiB/s by cores"
SMALL = "64 KiB"
"""What the name of a case has in it that gets a panel."""
COLUMNS = 4
STYLES: dict[str, dict[str, Any]] = {
    "xzarr3": {"color": "#c0392b", "marker": "o", "linewidth": 2.2, "zorder": 3},
    "xzarr3 in Python": {
        "color": "#c0392b",
        "marker": "o",
        "linestyle": "--",
        "markerfacecolor": "white",
    },
    "zarrs": {"color": "#2c7fb8", "marker": "s"},
    "tensorstore": {"color": "#4d9a5b", "marker": "^"},
}

Lines: TypeAlias = dict[str, dict[int, float]]
"""By library, the GiB/s by number of cores; not a number where nothing was measured."""


def cases(page: str) -> dict[str, Lines]:
    """Return the figures of a page of results, by case.

    Raises
    ------
    ValueError
        If the page has no table of throughputs by cores.
    """
    # Of a page without the heading, nothing is left.
    section = page.partition(f"{HEADING}\n")[2].partition("\n## ")[0]
    table = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line[:1] == "|"
    ]
    at = next((at for at, line in enumerate(table) if line[0] == CORNER), None)
    if at is None:
        raise ValueError(f'no table "{CORNER}" below "{HEADING}"; make it: bash ci/bench.sh --only cores')
    counts = [int(count) for count in table[at][2:]]
    found: dict[str, Lines] = {}
    for case, library, *values in table[at + 2 :]:
        numbers = [math.nan if value == "-" else float(value) for value in values]
        found.setdefault(case, {})[library] = dict(zip(counts, numbers, strict=True))
    return found


def draw(figures: dict[str, Lines], file: Path) -> None:
    """Draw a panel for each case of small chunks."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    panels = {case: lines for case, lines in figures.items() if SMALL in case}
    n_rows = -(-len(panels) // COLUMNS)
    figure = Figure(figsize=(10, 0.6 + 2.5 * n_rows), layout="constrained")
    grid = figure.subplots(n_rows, COLUMNS, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.axis("off")
    for axes, (case, lines) in zip(grid.flat, panels.items(), strict=False):
        for library, by_cores in lines.items():
            axes.plot(
                list(by_cores),
                list(by_cores.values()),
                label=library,
                markersize=4.5,
                **STYLES.get(library, {}),
            )
        counts = sorted({count for by_cores in lines.values() for count in by_cores})
        axes.set_xscale("log", base=2)
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.minorticks_off()
        axes.margins(y=0.1)
        axes.set_ylim(bottom=0)
        axes.set_title(case.replace(": ", "\n", 1).replace(f", {SMALL}", ""), fontsize=9.5)
        axes.tick_params(labelsize=8.5)
        axes.grid(color="#e6e6e6", linewidth=0.7)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in grid[:, 0]:
        axes.set_ylabel("GiB/s", fontsize=9)
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False, fontsize=9.5)
    figure.supxlabel(f"cores, and as many threads; chunks of {SMALL}", fontsize=9)
    with mpl.rc_context({"svg.hashsalt": "xzarr3", "svg.fonttype": "none"}):
        figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None, dpi=100)


def main() -> int:
    """Draw the picture; return 1 if there is no table to draw."""
    parser = argparse.ArgumentParser(description="Draw the throughput by cores.")
    parser.add_argument("--results", type=Path, default=RESULTS, help="page with the table (%(default)s)")
    parser.add_argument("--out", type=Path, default=PICTURE, help="picture to draw (%(default)s)")
    options = parser.parse_args()
    try:
        figures = cases(options.results.read_text("utf-8"))
    except ValueError as error:
        print(f"{options.results}: {error}", file=sys.stderr)
        return 1
    draw(figures, options.out)
    print(f"drawn: {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
