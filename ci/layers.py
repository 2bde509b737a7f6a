"""The layers of the package: its rooms, what each is for, and that every import points down or sideways.

    python ci/layers.py            prints what breaks the layers
    python ci/layers.py --write    draws the picture ci/layers.svg

``ci/reference.py`` puts the table into the reference.

A room is a folder of ``xzarr3/`` or a module beside them. Imports within functions count, those for type
checkers alone do not. No modules may import each other in a circle, also within one layer.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Container, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "xzarr3"
PICTURE = ROOT / "ci" / "layers.svg"

# From the top down: rooms of one layer, each with its task.
LAYERS: list[dict[str, str]] = [
    {"cli": "the command line: a file for each family of commands", "__main__": "`python -m xzarr3`"},
    {"__init__": "the public names", "_after_xarray": "the accessor, if xarray is imported later"},
    {
        "xarray": "the engine `xzarr3` and `to_zarr`: encode, compare, plan, commit",
        "checks": "`check`: what is wrong with a store, and which command mends it",
        "inventory": "`stats`: how much is stored, by array",
        "testing": "`check_store`: tests of a store of one's own",
        "advice": "`advise`: layouts compared for the ways in which data are read",
    },
    {"dask": "`from_zarr` and `store`: blocks, tiles, graphs, what of a write is done"},
    {
        "api": "open and create",
        "creation": "`zeros`, `full_like`, `from_array` and others that create",
        "convenience": "`save`, `load`, `tree`, `consolidate_metadata`",
        "groups": "`Group`: its members; finding, creating, moving nodes",
        "new_array": "from what a user asks for to a new array",
        "arrays": "`Array`: reading, writing, attributes",
        "describe": "what arrays and groups say of themselves",
        "differences": "`diff`: what two stores do not have in common",
        "copying": "`copy`: between formats and chunk grids, resumable",
        "progress": "progress bars",
        "versions": "`show_versions`",
    },
    {
        "nodes": "finding nodes; making, changing and erasing them; pickling; freshness",
        "commit": "the transaction that makes or replaces a node; the lease of a writer",
    },
    {"io": "selection, projection on the grid, byte ranges, plan, executor; reads and writes of chunks"},
    {"formats": "documents of v3, v2 and the draft to metadata, and back"},
    {"model": "metadata of arrays and groups, chunk keys, storage transformers"},
    {
        "codecs": "bytes to arrays: one file a codec, the pipeline, shards",
        "stores": "keys to bytes: local, object, fsspec, zip, memory; cache and other wrappers",
    },
    {"grid": "how an array is divided into chunks", "dtypes": "data types and fill values"},
    {"parallel": "pools of threads"},
    {"tracing": "one event a request; counters and `trace`, also on workers"},
    {"display": "text, HTML and drawings from small data: units, tables, trees, grids"},
    {
        "extensions": "names and configurations as documents have them",
        "fields": "JSON objects read into dataclasses, and checked",
    },
    {
        "errors": "every exception",
        "options": "options of the process",
        "names": "names of zarr-python and others, and what to use",
        "quantities": "numbers that users give",
        "_types": "names of types",
    },
]

# Imports that point up, with the reason.
EXCEPTIONS = {
    ("xzarr3.new_array", "xzarr3.dask.creating"): "`create_array(data=...)` takes dask arrays",
}

LEVEL = {room: len(LAYERS) - at for at, layer in enumerate(LAYERS) for room in layer}


def modules() -> dict[str, Path]:
    """The modules of the package, by name."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def run_imports(tree: ast.AST, known: Container[str]) -> Iterator[str]:
    """The modules that one imports when it runs, also within functions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                below = f"{node.module}.{alias.name}"
                yield below if below in known else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        yield from run_imports(node, known)


def imports() -> dict[str, set[str]]:
    """For each module the modules of the package that it imports."""
    known = modules()
    return {
        name: set(run_imports(ast.parse(path.read_text("utf-8")), known)) & known.keys() - {name}
        for name, path in known.items()
    }


def room(module: str) -> str:
    """The room of a module."""
    return module.split(".")[1] if "." in module else "__init__"


def shown(name: str) -> str:
    """A room as it is on the disk."""
    return f"{name}/" if (PACKAGE / name).is_dir() else f"{name}.py"


def broken() -> list[str]:
    """What breaks the layers: rooms that are not listed, imports that point up, circles."""
    graph = imports()
    unknown = {room(name) for name in graph} ^ LEVEL.keys()
    wrong = [f"room '{name}' is only in the package or only in LAYERS" for name in sorted(unknown)]
    for name, needed in graph.items():
        for each in sorted(needed):
            points_up = LEVEL.get(room(each), 0) > LEVEL.get(room(name), 0)
            if points_up and (name, each) not in EXCEPTIONS:
                wrong.append(f"{name} imports {each}, which is in a layer above")
    left = {name: set(needed) for name, needed in graph.items()}
    while ready := [name for name, needed in left.items() if not needed & left.keys()]:
        for name in ready:
            del left[name]
    return wrong + [f"{name} is in a circle of imports, or above one" for name in left]


def table() -> str:
    """The layers as a table of Markdown."""
    lines = ["| Layer | Room | Task |", "|---|---|---|"]
    for layer in LAYERS:
        for name, task in layer.items():
            lines.append(f"| {LEVEL[name]} | `{shown(name)}` | {task} |")
    return "\n".join(lines) + "\n"


def divided(names: list[str], most: int = 5) -> list[list[str]]:
    """The rooms of a layer in rows of ``most``, which fit beside each other."""
    return [names[at : at + most] for at in range(0, len(names), most)]


def draw(file: Path) -> None:
    """Draw the layers: a box for each room, as wide as it has lines, with how many rooms it imports."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyBboxPatch

    graph = imports()
    sizes: dict[str, int] = dict.fromkeys(LEVEL, 0)
    needs: dict[str, set[str]] = {name: set() for name in LEVEL}
    for name, path in modules().items():
        sizes[room(name)] += len(path.read_text("utf-8").splitlines())
        needs[room(name)] |= {room(each) for each in graph[name]} - {room(name)}
    rows = [row for layer in reversed(LAYERS) for row in reversed(divided(list(layer)))]
    figure = Figure(figsize=(11, 0.72 * len(rows)))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 11), ylim=(0, len(rows)))
    axes.axis("off")
    narrowest = 1.55
    for low, row in enumerate(rows):
        left = 0.1
        spare = 10.9 - (narrowest + 0.1) * len(row)
        total = sum(sizes[name] for name in row)
        for name in row:
            width = narrowest + spare * sizes[name] / total
            box = FancyBboxPatch((left, low + 0.1), width, 0.8, boxstyle="round,pad=0,rounding_size=0.08")
            box.set(facecolor="#e8eef7", edgecolor="#44608c")
            axes.add_patch(box)
            below = f"{sizes[name]:,} lines, imports {len(needs[name])}"
            middle = left + width / 2
            axes.text(middle, low + 0.62, shown(name), ha="center", va="center", weight="bold", size=10)
            axes.text(middle, low + 0.32, below, ha="center", va="center", size=7.5)
            left += width + 0.1
    with mpl.rc_context({"svg.hashsalt": "xzarr3", "svg.fonttype": "none"}):
        figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None, dpi=100)


def main() -> int:
    """Check the layers, or draw them and check."""
    parser = argparse.ArgumentParser(description="Check the layers of the package.")
    parser.add_argument("--write", action="store_true", help="draw the picture")
    if parser.parse_args().write:
        draw(PICTURE)
    wrong = broken()
    print("\n".join(wrong) or "the layers hold")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
