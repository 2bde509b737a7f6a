"""The code in README.md runs as it stands, one block after the other."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest

from xzarr3.codecs import registry

README = Path(__file__).resolve().parent.parent / "README.md"


def test_blocks_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_loaded", dict(registry._loaded))  # A block registers a codec.
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 5
    names: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for block in blocks:
            exec(compile(block, "README.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "[20. 20. nan nan]" in printed
    assert "(31, 28, 31, 30" in printed
    assert "[59.9  0. ]" in printed
    for output in re.findall(r"```text\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL):
        assert output in printed
    assert names["monthly"].sizes["month"] == 12
