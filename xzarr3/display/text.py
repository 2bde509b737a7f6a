"""Aligned rows and tables of plain text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from xzarr3.display.units import size
from xzarr3.errors import printable, shorten


def cut(text: str, most: int) -> str:
    """The text, or its first ``most`` characters and a sign that there are more.

    Examples
    --------
    >>> cut("temperature", 4)
    'temp…'
    """
    return text if len(text) <= most else f"{text[:most]}…"


def brief(value: object, most: int = 60) -> str:
    """A value in a few characters.

    Examples
    --------
    >>> brief([1, "a"]), brief("temperature", 4)
    ("[1, 'a']", 'temp…')
    """
    return cut(value, most) if isinstance(value, str) else shorten(value, most)


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


def counts(
    names: Sequence[str],
    columns: Mapping[str, str],
    rows: Iterable[tuple[Sequence[str], Mapping[str, float]]],
) -> list[list[str]]:
    """The cells of a table of counts.

    Parameters
    ----------
    names : sequence of str
        Titles of the first columns, which name what was counted.
    columns : mapping of str to str
        Titles of the other columns, and their fields. Fields of bytes and of seconds are shown as such.
    rows : iterable
        For each row its names, and its counts by field.

    Examples
    --------
    >>> counts(["array"], {"requests": "requests", "moved": "bytes_moved"}, [
    ...     (["/sst"], {"requests": 1200, "bytes_moved": 4096}),
    ... ])
    [['array', 'requests', 'moved'], ['/sst', '1,200', '4.00 kiB']]
    """
    cells = [[*own, *(_count(each, found[each]) for each in columns.values())] for own, found in rows]
    return [[*names, *columns], *cells]


def _count(field: str, number: float) -> str:
    if field.endswith("seconds"):
        return f"{number:.3f}"
    return size(number) if field.startswith("bytes") else f"{number:,}"
