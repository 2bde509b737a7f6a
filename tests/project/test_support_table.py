"""README's table of what is supported says what is."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "ci" / "support_table.py"


def test_readme_has_the_table_that_trying_gives() -> None:
    pytest.importorskip("ml_dtypes")
    spec = importlib.util.spec_from_file_location("support_table", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    text = script.README.read_text(encoding="utf-8")
    table = script.table()
    assert script.readme_with(text, table) == text, "run: python ci/support_table.py --write"
    assert "| `bool`, " in table
    assert "| read, write | no | no |" in table
