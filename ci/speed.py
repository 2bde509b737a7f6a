"""The picture of the speeds in README.md: how many times as long as xzarr3 other libraries take.

    python ci/speed.py                 draws ci/speed.svg
    python ci/speed.py --out FILE      draws another file, .svg or .png

The numbers are those of the tables of ci/bench/RESULTS.md. The rows are chosen by a rule, never by their
result: of arrays, each operation with each layout compressed by zstd; of xarray, all that the bench times but
the opening of 50 variables, which is shown with 500; all rows with latency.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any, TypeAlias

from scaling import RESULTS, ROOT, STYLES

PICTURE = ROOT / "ci" / "speed.svg"
PANELS = {
    "arrays in files, zstd": (
        "full read",
        "one chunk",
        "one point through time",
        "1000 random points",
        "full write",
        "100 small regions written",
    ),
    "xarray, and a server 20 ms away": (
        "xarray open",
        "xarray compute",
        "xarray write",
        "xarray tree of 80 groups",
        "20 ms latency",
    ),
}
PEERS: dict[str, dict[str, Any]] = {
    "zarr-python": {"color": "#8a8a8a", "marker": "D"},
    "zarr-python fused": {"color": "#8a8a8a", "marker": "D", "markerfacecolor": "white"},
    "zarrs": STYLES["zarrs"],
    "tensorstore": STYLES["tensorstore"],
}
BEYOND = 20.0
"""Where the axis ends; what takes longer is written there as a number."""

Times: TypeAlias = dict[str, float]
"""By library, how many times as long as xzarr3 it takes."""


def tables(page: str) -> dict[str, dict[str, Times]]:
    """The tables in milliseconds: by operation and case, what each library takes over what xzarr3 takes.

    Raises
    ------
    ValueError
        If the page has no such table.
    """
    found: dict[str, dict[str, Times]] = {}
    for block in re.findall(r"^\| [^\n]+ \(ms\) \| xzarr3 \|.*?(?=\n\n)", page, re.MULTILINE | re.DOTALL):
        head, _, *lines = [
            [cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()
        ]
        rows = found.setdefault(head[0].removesuffix(" (ms)"), {})
        for case, ours, *theirs in lines:
            figures = zip(head[2:], (re.match(r"[\d.]+", cell) for cell in theirs), strict=True)
            rows[case] = {name: float(text[0]) / float(ours) for name, text in figures if text}
    if not found:
        raise ValueError("no table of times in milliseconds; make them: bash ci/bench.sh")
    return found


def chosen(found: dict[str, dict[str, Times]], operations: tuple[str, ...]) -> dict[str, Times]:
    """The rows of a panel by the rule, in the order of the page."""
    rows = {}
    for operation in operations:
        for case, times in found[operation].items():
            is_layout = re.search(r"\d [KM]iB", case) and operation in PANELS["arrays in files, zstd"]
            if (not is_layout or case.startswith("zstd")) and not case.startswith("50 variables"):
                shown = case.removeprefix("zstd, ").replace("16 MiB shards", "shards") if is_layout else case
                rows[f"{operation}: {shown}"] = times
    return rows


def draw_panel(axes: Any, title: str, rows: dict[str, Times]) -> None:
    """Draw a line for each row, with a mark for each library."""
    for at, times in enumerate(rows.values()):
        axes.axhline(at, color="#eeeeee", linewidth=0.8, zorder=0)
        for peer, style in PEERS.items():
            if peer not in times:
                continue
            ratio = times[peer]
            plain = {name: value for name, value in style.items() if name not in ("linewidth", "zorder")}
            axes.plot(min(ratio, BEYOND), at, linestyle="", markersize=5.5, label=peer, **plain)
        if (most := max(times.values())) > BEYOND:
            axes.text(BEYOND * 1.12, at, f"{most:.0f}", fontsize=7.5, va="center")
    axes.axvline(1, color=STYLES["xzarr3"]["color"], linewidth=2)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.tick_params(axis="y", labelsize=8.5, length=0)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xscale("log")
    axes.set_xlim(0.6, BEYOND * 1.7)
    ticks = (0.7, 1, 2, 5, 10, 20)
    axes.set_xticks(ticks, [f"{tick}x" for tick in ticks], fontsize=8)
    axes.minorticks_off()
    axes.set_title(title, fontsize=10)
    axes.spines[["top", "right", "left"]].set_visible(False)


def draw(found: dict[str, dict[str, Times]], file: Path) -> None:
    """Draw both panels."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.6, 9), layout="constrained", facecolor="white")
    for axes, (title, operations) in zip(figure.subplots(2, 1), PANELS.items(), strict=True):
        draw_panel(axes, title, chosen(found, operations))
    known: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            known.setdefault(label, handle)
    line = figure.axes[0].lines[-1]
    figure.legend(
        [line, *known.values()],
        ["xzarr3", *known],
        loc="outside upper center",
        ncols=len(known) + 1,
        frameon=False,
        fontsize=9.5,
    )
    figure.supxlabel(
        "time over that of xzarr3: right of the red line xzarr3 is faster, left of it slower", fontsize=9
    )
    with mpl.rc_context({"svg.hashsalt": "xzarr3", "svg.fonttype": "none"}):
        figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None, dpi=100)


def main() -> int:
    """Draw the picture; return 1 if there is nothing to draw."""
    parser = argparse.ArgumentParser(description="Draw the speeds.")
    parser.add_argument("--results", type=Path, default=RESULTS, help="page with the tables (%(default)s)")
    parser.add_argument("--out", type=Path, default=PICTURE, help="picture to draw (%(default)s)")
    options = parser.parse_args()
    try:
        found = tables(options.results.read_text("utf-8"))
    except ValueError as error:
        print(f"{options.results}: {error}", file=sys.stderr)
        return 1
    draw(found, options.out)
    print(f"drawn: {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
