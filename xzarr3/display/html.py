"""HTML for notebooks: a box with a title, facts, tables and parts that fold, without JavaScript.

Their style is ``style.css``. The colors come from JupyterLab or VS Code, if the page is shown there, and
otherwise from the light or dark mode of the browser. The box has its own background, so it is readable on any
page.
"""

from __future__ import annotations

import html
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache

from xzarr3.display.text import cut
from xzarr3.errors import printable

_LONGEST, _LONGEST_NAME = 400, 100  # Characters of a text and of a name.


@cache
def style() -> str:
    """The style of all boxes; each one brings it, as a notebook may show any of them alone."""
    from importlib.resources import files  # Which takes a while, and few processes show a box.

    lines = files("xzarr3.display").joinpath("style.css").read_text("utf-8").splitlines()
    return f"<style>{''.join(line.strip() for line in lines if not line.startswith('/*'))}</style>"


def escape(text: str, most: int = _LONGEST) -> str:
    """Text to put into HTML: nothing in it is markup, and control characters are made visible.

    Text longer than ``most`` characters is cut.

    Examples
    --------
    >>> escape("<script>\\x07")
    '&lt;script&gt;\\\\x07'
    """
    return html.escape(printable(cut(text, most)))


def code(text: str) -> str:
    """Text in the type of code."""
    return f"<code>{escape(text, _LONGEST_NAME)}</code>"


def dim(text: str) -> str:
    """Text of less weight."""
    return f'<span class="xz-dim">{escape(text)}</span>'


def title(kind: str, name: str = "", after: str = "") -> str:
    """The first line of a box: what the object is, its name, and more about it."""
    parts = [f'<span class="xz-kind">{escape(kind)}</span>']
    if name:
        parts.append(f'<span class="xz-name">{escape(name, _LONGEST_NAME)}</span>')
    if after:
        parts.append(f'<span class="xz-dim"> {escape(after)}</span>')
    return f'<div class="xz-title">{"".join(parts)}</div>'


def box(*parts: str) -> str:
    """Everything that one object shows, with the style."""
    return f'<div class="xz">{style()}{"".join(parts)}</div>'


def beside(*parts: str) -> str:
    """Parts beside each other, as far as there is room."""
    return '<div class="xz-both">' + "".join(f"<div>{part}</div>" for part in parts if part) + "</div>"


def row(*parts: str) -> str:
    """Parts of equal rank beside each other, as far as there is room."""
    return '<div class="xz-row">' + "".join(f"<div>{part}</div>" for part in parts) + "</div>"


def facts(found: Iterable[tuple[str, str]]) -> str:
    """Labels and texts in two columns."""
    lines = (f"<dt>{escape(label, _LONGEST_NAME)}</dt><dd>{escape(text)}</dd>" for label, text in found)
    return f'<dl class="xz-facts">{"".join(lines)}</dl>'


def tall(part: str) -> str:
    """A part that scrolls where it would take too much of the page."""
    return f'<div class="xz-tall">{part}</div>'


def table(cells: Sequence[Sequence[str]], left: int = 1) -> str:
    """A table. The first row has the titles; the first ``left`` columns hold text, the others numbers."""
    head, *rows = ("".join(_cells(row, "td" if at else "th", left)) for at, row in enumerate(cells))
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="xz-table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cells(row: Sequence[str], tag: str, left: int) -> Iterator[str]:
    for at, text in enumerate(row):
        kind = ' class="xz-text"' if at < left else ""
        yield f"<{tag}{kind}>{escape(text, _LONGEST_NAME)}</{tag}>"


def folded(summary: str, *parts: str, is_open: bool = False) -> str:
    """Parts that fold under a summary, which is HTML."""
    shown = " open" if is_open else ""
    return f'<details{shown}><summary>{summary}</summary><div class="xz-in">{"".join(parts)}</div></details>'


_MOST_OPEN = 40  # Nodes of a hierarchy whose groups are shown unfolded.


def tree(labels: Mapping[str, str], groups: Collection[str], left_out: Mapping[str, int]) -> str:
    """The nodes of a hierarchy as a list that folds.

    Parameters
    ----------
    labels : mapping of str to str
        HTML of the line of each node, by path, depth first.
    groups : collection of str
        Which of them are groups.
    left_out : mapping of str to int
        How many nodes directly below a group are not among them.
    """
    below: dict[str, list[str]] = {}
    for path in labels:
        below.setdefault(path.rpartition("/")[0], []).append(path)

    def nodes(above: str, depth: int) -> str:
        """The nodes of a group; groups below it are unfolded to a depth."""
        parts = [node(path, depth) for path in below.get(above, ())]
        if left_out.get(above):
            parts.append(f'<div class="xz-leaf">{note(f"and {left_out[above]:,} more, not shown")}</div>')
        return "".join(parts) or note("empty")

    def node(path: str, depth: int) -> str:
        if path not in groups:
            return f'<div class="xz-leaf">{labels[path]}</div>'
        return folded(labels[path], nodes(path, depth - 1), is_open=depth > 0 and path in below)

    depth = 2 if len(labels) <= _MOST_OPEN else 0
    return tall(f'<div class="xz-tree">{nodes("", depth)}</div>')


def note(text: str) -> str:
    """A remark."""
    return f'<div class="xz-dim">{escape(text)}</div>'
