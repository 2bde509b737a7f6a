"""The stored notebooks: each has its outputs and a picture, and running it again gives the same texts."""

import base64
import re
import sys
from pathlib import Path

import nbformat
import pytest
from _things import module_at
from nbformat import NotebookNode

ROOT = Path(__file__).parents[2]
NOTEBOOKS = {path.stem: path for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
PICTURE_LIMIT = 300_000  # bytes
TEXT_LIMIT = 1_500_000  # bytes
each = pytest.mark.parametrize("name", NOTEBOOKS)


def load(name: str) -> NotebookNode:
    notebook: NotebookNode = nbformat.read(NOTEBOOKS[name], as_version=4)
    return notebook


def outputs(notebook: NotebookNode) -> list[NotebookNode]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def texts(notebook: NotebookNode) -> dict[int, str]:
    """What each cell shows as plain text, by its number, without cells whose output varies and pictures."""
    return {
        number: "".join(
            output.get("text", "") or output.get("data", {}).get("text/plain", "")
            for output in cell.outputs
            if output.get("name") != "stderr" and "image/png" not in output.get("data", {})
        )
        for number, cell in enumerate(notebook.cells)
        if cell.cell_type == "code" and "varies" not in cell.metadata.get("tags", [])
    }


@each
def test_stored_notebook_was_run_from_top_to_bottom(name: str) -> None:
    notebook = load(name)
    nbformat.validate(notebook)
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    assert not [output for output in outputs(notebook) if output.output_type == "error"]


@each
def test_stored_notebook_is_fit_to_publish(name: str) -> None:
    text = NOTEBOOKS[name].read_text("utf-8")
    assert len(text) < TEXT_LIMIT
    for place in ("/home/", "/root/", "/tmp/", "/Users/", "/var/folders/", "site-packages", "tcp://"):
        assert place not in text
    data = [output.get("data", {}) for output in outputs(load(name))]
    pictures = [base64.b64decode(each["image/png"]) for each in data if "image/png" in each]
    assert pictures
    assert max(map(len, pictures)) < PICTURE_LIMIT


@pytest.mark.slow
@each
def test_notebook_runs_and_gives_the_stored_texts(name: str) -> None:
    if name == "formats" and sys.version_info < (3, 12):
        pytest.skip("formats: icechunk and virtualizarr need Python 3.12")
    notebook, runner = load(name), module_at(ROOT / "ci" / "notebooks.py")
    stored = texts(notebook)
    runner.execute(notebook)
    assert texts(notebook) == stored
    assert not re.search("Traceback|Error|Warning", runner.said(notebook)), runner.said(notebook)
