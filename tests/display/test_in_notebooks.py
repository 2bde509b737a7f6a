"""What a real Jupyter kernel sends to a notebook: HTML and text of each object."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from _page import Page
from nbclient import NotebookClient

TESTS = Path(__file__).parents[1]
SETUP = f"""
import sys; sys.path[:0] = {[str(TESTS), str(TESTS.parent / "ci")]!r}
from pathlib import Path
from _examples import examples
shown = examples(Path("."))
"""


@pytest.mark.slow
def test_a_kernel_shows_each_object(tmp_path: Path) -> None:
    names = ["array", "group", "attributes", "store", "explanation", "trace", "info", "tree", "indexer"]
    names.append("explanation of a dataset")
    cells = [SETUP, *(f"shown[{name!r}]" for name in names), "list(shown['group'].values())"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    folder = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=folder).execute()
    outputs = [cell.outputs for cell in notebook.cells]
    kinds = {each.output_type for cell in outputs for each in cell}
    assert kinds == {"execute_result"}  # Nothing is printed, and nothing fails.
    for name, (output,) in zip(names, outputs[1:], strict=False):
        Page(output.data["text/html"])
        assert output.data["text/plain"], name
    assert outputs[1 + names.index("info")][0].data["text/plain"].startswith("name        /surface/sst\n")
    (inside,) = outputs[-1]  # Within other objects, each is one line.
    assert "<xzarr3.Array /daily shape=" in inside.data["text/plain"]
