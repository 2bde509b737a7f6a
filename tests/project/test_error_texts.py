"""Rules for all texts of the package."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import xzarr3

PACKAGE = Path(xzarr3.__file__).parent


def strings() -> Iterator[str]:
    """The strings of the package that are no docstrings, with braces for what f-strings insert."""
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Expr):
                node.value = ast.Constant(None)
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                parts = (each.value if isinstance(each, ast.Constant) else "{}" for each in node.values)
                yield "".join(map(str, parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
            elif isinstance(node, ast.keyword) and node.arg == "accepted":
                yield f"accepted: {ast.unparse(node.value).lstrip('f').strip(chr(39))}"


def test_accepted_precedes_no_advice() -> None:
    verbs = (
        "call|choose|correct|create|give|install|leave|make|open|pass|pip|raise|read|repeat|use|wait|write"
    )
    assert [text for text in strings() if re.search(rf"accepted: ({verbs})\b(?!=)", text)] == []


def test_plain_words() -> None:
    assert [text for text in strings() if re.search(r"\b(somebody|someone|whoever)\b", text)] == []
