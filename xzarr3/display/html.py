"""HTML for notebooks: a box with a title, facts, tables and parts that fold, without JavaScript.

The colors come from JupyterLab or VS Code, if the page is shown there, and otherwise from the light or dark
mode of the browser. The box has its own background, so it is readable on any page.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from xzarr3.display.text import cut
from xzarr3.errors import printable

_LONGEST, _LONGEST_NAME = 400, 100  # Characters of a text and of a name.

_LIGHT = {
    "text": "var(--jp-content-font-color0,var(--vscode-editor-foreground,#1f2328))",
    "dim": "var(--jp-content-font-color2,var(--vscode-descriptionForeground,#59636e))",
    "ground": "var(--jp-layout-color0,var(--vscode-editor-background,#ffffff))",
    "band": "var(--jp-rendermime-table-row-background,var(--vscode-textBlockQuote-background,#f5f7f9))",
    "line": "var(--jp-border-color2,var(--vscode-panel-border,#d1d9e0))",
    "face": "#dcebf8",
    "chunk": "#a9cbe8",
    "shard": "#3a78b0",
    "read": "#f0a03c",
}
_DARK = _LIGHT | {
    "text": "var(--jp-content-font-color0,var(--vscode-editor-foreground,#e6edf3))",
    "dim": "var(--jp-content-font-color2,var(--vscode-descriptionForeground,#9aa5b1))",
    "ground": "var(--jp-layout-color0,var(--vscode-editor-background,#16191d))",
    "band": "var(--jp-rendermime-table-row-background,var(--vscode-textBlockQuote-background,#20252b))",
    "line": "var(--jp-border-color2,var(--vscode-panel-border,#3a424b))",
    "face": "#1d3a56",
    "chunk": "#3c668f",
    "shard": "#82b9e6",
    "read": "#d98a24",
}


def _colors(colors: dict[str, str], *selectors: str) -> str:
    found = "".join(f"--xz-{name}:{value};" for name, value in colors.items())
    return f"{','.join(selectors)}{{{found}}}"


_RULES = """
.xz{color:var(--xz-text);background:var(--xz-ground);font:13px/1.5 system-ui,-apple-system,"Segoe UI",
sans-serif;display:block;max-width:800px;padding:8px 12px;border:1px solid var(--xz-line);border-radius:6px;
box-sizing:border-box;overflow-wrap:anywhere;text-align:left}
.xz *{box-sizing:border-box}
.xz code,.xz .xz-name{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:12px;
color:inherit;background:none;padding:0}
.xz .xz-title{border-bottom:1px solid var(--xz-line);padding-bottom:5px;margin-bottom:7px}
.xz .xz-kind{color:var(--xz-dim);margin-right:6px}
.xz .xz-name{font-weight:600;font-size:13px}
.xz .xz-dim{color:var(--xz-dim)}
.xz .xz-both{display:flex;flex-wrap:wrap;gap:8px 24px;align-items:flex-start}
.xz .xz-both>div{min-width:0;max-width:100%}
.xz .xz-both>div:first-child{flex:1 1 340px}
.xz .xz-row{display:flex;flex-wrap:wrap;gap:8px 24px;align-items:flex-end;margin-top:6px}
.xz .xz-row>div{min-width:0;max-width:100%}
.xz .xz-table{margin-bottom:5px}
.xz table{border-collapse:collapse;border:0;margin:0;font-size:13px;color:inherit;background:none;
table-layout:auto;max-width:100%}
.xz tr,.xz tr:nth-child(even),.xz tr:nth-child(odd){background:none}
.xz th,.xz td{border:0;padding:1px 14px 1px 0;text-align:left;vertical-align:top;color:inherit;
font-weight:400;white-space:normal;max-width:none}
.xz th{color:var(--xz-dim)}
.xz .xz-facts{display:grid;grid-template-columns:fit-content(14em) 1fr;gap:1px 14px;margin:0;padding:0}
.xz .xz-facts dt{color:var(--xz-dim);font-weight:400;margin:0;padding:0;float:none;width:auto}
.xz .xz-facts dd{margin:0;padding:0;min-width:0;white-space:pre-wrap}
.xz .xz-table{overflow-x:auto}
.xz .xz-table th,.xz .xz-table td{text-align:right;white-space:nowrap;padding:2px 10px 2px 0;
font-variant-numeric:tabular-nums}
.xz .xz-table .xz-text{text-align:left;white-space:normal;overflow-wrap:anywhere;min-width:8em}
.xz .xz-table thead th{border-bottom:1px solid var(--xz-line);white-space:normal;vertical-align:bottom;
overflow-wrap:normal}
.xz .xz-facts+.xz-table,.xz .xz-table+.xz-table,.xz .xz-tall+.xz-facts{margin-top:6px}
.xz .xz-table tbody tr:nth-child(even){background:var(--xz-band)}
.xz details{margin:5px 0}
.xz summary{cursor:pointer}
.xz summary:hover{background:var(--xz-band)}
.xz .xz-in{padding-left:18px;margin-left:4px;border-left:1px solid var(--xz-line)}
.xz .xz-leaf{padding-left:14px}
.xz .xz-tall{max-height:420px;overflow-y:auto}
.xz details details,.xz .xz-tree details{margin:0}
.xz svg{display:block;max-width:100%;height:auto}
.xz svg text{fill:var(--xz-text);font:11px system-ui,sans-serif}
.xz .xz-face{fill:var(--xz-face)}
.xz .xz-fine{stroke:var(--xz-chunk)}
.xz .xz-edge{stroke:var(--xz-shard)}
.xz .xz-read{fill:var(--xz-read)}
""".replace("\n", "")

_EXPLICIT_LIGHT = ("[data-jp-theme-light=true] .xz", "html[data-theme=light] .xz", "body.vscode-light .xz")
_EXPLICIT_DARK = (
    *("[data-jp-theme-light=false] .xz", "html[theme=dark] .xz", "html[data-theme=dark] .xz"),
    *("body[data-theme=dark] .xz", "body.vscode-dark .xz"),
)

STYLE = (
    "<style>"
    + _colors(_LIGHT, ".xz")
    + f"@media(prefers-color-scheme:dark){{{_colors(_DARK, '.xz')}}}"
    + _colors(_LIGHT, *_EXPLICIT_LIGHT)
    + _colors(_DARK, *_EXPLICIT_DARK)
    + _RULES
    + "</style>"
)
"""The style of all boxes; each one brings it, as a notebook may show any of them alone."""


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
    return f'<div class="xz">{STYLE}{"".join(parts)}</div>'


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


def lines(*parts: str) -> str:
    """Pieces of HTML, one below the other."""
    return "".join(f"<div>{part}</div>" for part in parts)


@dataclass(frozen=True)
class Branch:
    """A group with what is below it, or an array."""

    label: str
    """HTML of its line."""
    below: tuple[Branch, ...] | None = None
    """None for a node that has nothing below it."""
    left_out: int = 0
    """How many nodes directly below are not among them."""


_MOST_OPEN = 40  # Nodes of a hierarchy whose groups are shown unfolded.


def tree(branches: Sequence[Branch], left_out: int = 0) -> str:
    """The nodes of a hierarchy as a list that folds."""
    depth = 2 if _count(branches) <= _MOST_OPEN else 0
    return tall(f'<div class="xz-tree">{_list(branches, left_out, depth)}</div>')


def _count(branches: Sequence[Branch]) -> int:
    return len(branches) + sum(_count(branch.below or ()) for branch in branches)


def _list(branches: Sequence[Branch], left_out: int, depth: int) -> str:
    """The nodes of a group; groups below it are unfolded to a depth."""
    parts = [_node(branch, depth) for branch in branches]
    if left_out:
        parts.append(f'<div class="xz-leaf">{note(f"and {left_out:,} more, not shown")}</div>')
    return "".join(parts) or note("empty")


def _node(branch: Branch, depth: int) -> str:
    if branch.below is None:
        return f'<div class="xz-leaf">{branch.label}</div>'
    is_open = depth > 0 and bool(branch.below)
    return folded(branch.label, _list(branch.below, branch.left_out, depth - 1), is_open=is_open)


def note(text: str) -> str:
    """A remark."""
    return f'<div class="xz-dim">{escape(text)}</div>'
