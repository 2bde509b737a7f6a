"""Executes the notebooks and stores their outputs.

    python ci/notebooks.py                 all of notebooks/*.ipynb
    python ci/notebooks.py quickstart      one of them, by its name

Each runs in a new kernel, in the folder notebooks/. Texts on stderr are not stored: they are progress bars
and what libraries say about the machine. A cell whose output differs from run to run (times, ports) has the
tag ``varies``; `tests/project/test_notebooks.py` compares the outputs of all others.
"""

from __future__ import annotations

import re
import sys
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


if __name__ == "__main__":
    for name in sys.argv[1:] or sorted(path.stem for path in FOLDER.glob("*.ipynb")):
        file = FOLDER / f"{name}.ipynb"
        read = nbformat.read(file, as_version=4)
        execute(read)
        if found := re.search(r"Traceback|Error|Warning", said(read)):
            print(f"{name}: on stderr: {said(read)[max(found.start() - 200, 0) :][:1000]}")
        clean(read)
        nbformat.write(read, file)
        print(f"{name}: {file.stat().st_size // 1024} kB")
