"""How commands print: JSON, texts, tables and trees; colours only on a terminal and without ``NO_COLOR``.

Names and values come from stores that others may have written: :func:`printable` makes them safe, and none
of them is taken as markup. rich is imported when something is printed, so that ``--help`` is quick.
"""

from __future__ import annotations

import base64
import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from xzarr3.errors import printable

if TYPE_CHECKING:
    from rich.text import Text

_FILE_WIDTH = 10_000  # Columns of a file or a pipe: lines are not cut there.
_WORDS = {
    "bold red": r"(?m)^  error\b|^only in .*|\bcannot be read\b",
    "yellow": r"(?m)^  warning\b",
    "dim": r"(?m)^  note\b",
    "bold": r"(?m)^/\S*$|^to do$",
}
"""What stands out in a text, by style."""


def is_terminal(stream: Any) -> bool:
    """Whether a stream is a terminal; a closed one is None."""
    return stream is not None and stream.isatty()


def is_colored(stream: Any = None) -> bool:
    """Whether a stream, by default standard output, is a terminal that may be colored."""
    return (
        is_terminal(stream or sys.stdout)
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") != "dumb"
    )


def echo(text: str) -> None:
    """Print a text that is safe to print; on a terminal some of its words stand out."""
    if not is_colored():
        click.echo(text)
        return
    from rich.text import Text

    styled = Text(text)
    for style, words in _WORDS.items():
        styled.highlight_regex(words, style)
    echo_styled(styled)


def echo_styled(*things: Any) -> None:
    """Print texts or tables of rich, in color if standard output is a terminal."""
    from rich.console import Console

    colored = is_colored()
    console = Console(
        file=sys.stdout,
        width=None if is_terminal(sys.stdout) else _FILE_WIDTH,
        no_color=not colored,
        force_terminal=colored,
        highlight=False,
        markup=False,
        emoji=False,
    )
    for thing in things:
        if colored:
            console.print(thing, soft_wrap=not hasattr(thing, "columns"))
        else:
            with console.capture() as captured:
                console.print(thing, soft_wrap=not hasattr(thing, "columns"))
            click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def styled(text: str, style: str = "") -> Text:
    """A text for a table or a tree, safe to print."""
    from rich.text import Text

    return Text(printable(text), style)


def echo_table(heading: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> None:
    """Print a table: the first ``left`` columns to the left, the others to the right."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for at, name in enumerate(heading):
        table.add_column(name, justify="left" if at < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(styled, row))
    echo_styled(table)


def echo_json(document: object, *, indent: int | None = 2) -> None:
    """Print a document as JSON that any program reads: without NaN and control characters."""
    text = json.dumps(_finite(document), indent=indent, allow_nan=False)
    click.echo(text.replace("\x7f", "\\u007f"))


def _finite(value: Any) -> Any:
    """``value`` with texts in place of floats that JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(name): _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value


def values_to_json(values: Any) -> Any:
    """Elements of an array as JSON: nested lists, with texts for times, base64 for bytes, pairs for complex.

    Examples
    --------
    >>> values_to_json(np.array(["2020-01-01", "NaT"], "M8[D]"))
    ['2020-01-01', 'NaT']
    """
    found = np.asarray(values)
    if found.dtype.names is not None:
        return _by_field(found)
    if found.dtype.kind in "mM":
        return found.astype(str).tolist()
    if found.dtype.kind == "c":
        return np.stack([found.real, found.imag], axis=-1).tolist()
    if found.dtype.kind == "V":  # Types of other packages, such as bfloat16, or raw bytes.
        try:
            return found.astype(np.float64).tolist()
        except (TypeError, ValueError):
            return _plain(found.tolist())
    return _plain(found.tolist())


def _by_field(found: Any) -> Any:
    fields = {name: values_to_json(found[name]) for name in found.dtype.names}
    return fields if found.ndim == 0 else _transposed(fields, found.ndim)


def _transposed(fields: Mapping[str, Any], depth: int) -> Any:
    """Lists of mappings from a mapping of lists."""
    if depth == 0:
        return dict(fields)
    number = len(next(iter(fields.values()), ()))
    return [_transposed({name: each[at] for name, each in fields.items()}, depth - 1) for at in range(number)]


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    return value if isinstance(value, str | int | float | bool | None) else str(value)
