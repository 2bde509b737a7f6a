"""The stored notebook: it has its outputs, and running it again gives the same table."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "quickstart.ipynb"
PNG_LIMIT = 200_000  # bytes


def load() -> NotebookNode:
    notebook: NotebookNode = nbformat.read(NOTEBOOK, as_version=4)
    return notebook


def outputs(notebook: NotebookNode) -> list[NotebookNode]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def printed(notebook: NotebookNode, start: str) -> list[str]:
    """What is printed on stdout and starts with ``start``."""
    streams = [output.text for output in outputs(notebook) if output.output_type == "stream"]
    return [text for text in streams if text.startswith(start)]


def test_stored_notebook_was_run_from_top_to_bottom() -> None:
    notebook = load()
    nbformat.validate(notebook)
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    kinds = {output.output_type for output in outputs(notebook)}
    assert "error" not in kinds
    assert {"stream", "execute_result"} <= kinds


def test_stored_notebook_is_fit_to_publish() -> None:
    text = NOTEBOOK.read_text(encoding="utf-8")
    for place in ("/home/", "/root/", "/tmp/", "/Users/", "site-packages", "tcp://"):
        assert place not in text
    images = [
        base64.b64decode(out.data["image/png"])
        for out in outputs(load())
        if "image/png" in out.get("data", {})
    ]
    assert len(images) == 1
    assert all(len(image) < PNG_LIMIT for image in images)


@pytest.mark.slow
def test_notebook_runs_and_gives_the_stored_table() -> None:
    notebook = load()
    stored = printed(notebook, "years")
    assert len(stored) == 1
    folder = {"metadata": {"path": str(NOTEBOOK.parent)}}  # Which has demo.py, which the notebook imports.
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=folder).execute()
    assert printed(notebook, "years") == stored
    assert any("image/png" in output.get("data", {}) for output in outputs(notebook))
    said = "".join(output.text for output in outputs(notebook) if output.get("name") == "stderr")
    assert not re.search("Traceback|Error|Warning", said), said  # Libraries may say that they are slow.
