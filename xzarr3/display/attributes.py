"""User attributes: as a table, and folded below what else a node shows."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from xzarr3.display import html
from xzarr3.display.shown import Description
from xzarr3.display.text import brief
from xzarr3.errors import printable

_MOST = 100  # Attributes that are shown.
_LONGEST = 300  # Characters of a value.


def describe_attributes(attributes: Mapping[str, Any]) -> Description:
    """The attributes as a dictionary, and as a table.

    Examples
    --------
    >>> describe_attributes({"units": "K"})
    {'units': 'K'}
    """
    title = html.title("xzarr3 attributes", after=f"({len(attributes):,})")
    return Description(printable(repr(dict(attributes))), lambda: html.box(title, _table(attributes)))


def folded_attributes(attributes: Mapping[str, Any]) -> str:
    """The attributes as a table that folds; empty without attributes."""
    if not attributes:
        return ""
    return html.folded(f"Attributes {html.dim(f'({len(attributes):,})')}", _table(attributes))


def _table(attributes: Mapping[str, Any]) -> str:
    left = len(attributes) - _MOST
    rows = [(name, brief(value, _LONGEST)) for name, value in islice(attributes.items(), _MOST)]
    return html.tall(html.facts(rows)) + (html.note(f"and {left:,} more, not shown") if left > 0 else "")
