"""Aligned rows and tables of plain text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from xzarr3.errors import printable


def cut(text: str, most: int) -> str:
    """The text, or its first ``most`` characters and a sign that there are more.

    Examples
    --------
    >>> cut("temperature", 4)
    'temp…'
    """
    return text if len(text) <= most else f"{text[:most]}…"


def rows(facts: Iterable[tuple[str, str]], width: int = 12) -> str:
    """Labels and texts, one line each; control characters are made visible.

    Examples
    --------
    >>> print(rows([("name", "/sst"), ("shape", "(3,)")], width=8))
    name    /sst
    shape   (3,)
    """
    return "\n".join(f"{label:<{width}}{printable(text)}".rstrip() for label, text in facts)


def table(cells: Sequence[Sequence[str]], left: int = 1) -> str:
    """Rows of a table: the first ``left`` columns to the left, the others to the right.

    Examples
    --------
    >>> print(table([["array", "requests"], ["/sst", "2"]]))
    array  requests
    /sst          2
    """
    cells = [[printable(text) for text in row] for row in cells]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(
            text.ljust(width) if at < left else text.rjust(width)
            for at, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    )
