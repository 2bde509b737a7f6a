"""Executes the notebooks and stores their outputs.

    python ci/notebooks.py                 all of notebooks/*.ipynb
    python ci/notebooks.py quickstart      one of them, by its name

Each runs in a new kernel, in the folder notebooks/. Texts on stderr are not stored: they are progress bars
and what libraries say about the machine. A cell whose output differs from run to run (times, ports) has the
tag ``varies``; `tests/project/test_notebooks.py` compares the outputs of all others.
"""

from __future__ import annotations

import argparse
import re
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
LIMIT = 120  # seconds for a cell


def execute(notebook: NotebookNode) -> None:
    """Run all cells from the top, in place. Raises what the first failing cell raises."""
    folder = {"metadata": {"path": str(FOLDER)}}
    NotebookClient(notebook, timeout=LIMIT, kernel_name="python3", resources=folder).execute()


def said(notebook: NotebookNode) -> str:
    """What is on stderr."""
    return "".join(
        output.text
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output.get("name") == "stderr"
    )


def clean(notebook: NotebookNode) -> None:
    """Remove what tells about this run alone."""
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"], "language_info": {"name": "python"}}
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Execute the notebooks and store their outputs.")
    parser.add_argument("names", nargs="*", help="names without .ipynb; all, unless given")
    names = parser.parse_args().names or sorted(path.stem for path in FOLDER.glob("*.ipynb"))
    for name in names:
        path = FOLDER / f"{name}.ipynb"
        notebook = nbformat.read(path, as_version=4)
        begun = time.monotonic()
        execute(notebook)
        if found := re.search(r"Traceback|Error|Warning", said(notebook)):
            print(f"{name}: on stderr: {said(notebook)[max(found.start() - 200, 0) :][:1000]}")
        clean(notebook)
        nbformat.write(notebook, path)
        print(f"{name}: {time.monotonic() - begun:.0f} s, {path.stat().st_size // 1024} kB")


if __name__ == "__main__":
    main()
