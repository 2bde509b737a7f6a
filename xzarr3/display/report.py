"""Reports: what a tool found, as facts, tables and notes. One page of them becomes text, HTML and JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from xzarr3.display import html, text
from xzarr3.display.attributes import folded_attributes
from xzarr3.display.shown import Description, Shown
from xzarr3.errors import printable

_MOST_ROWS = 300  # Rows of a table in HTML.
_OF_NODE = 8  # Lines of one node in text, as long as others have rows, too.


class Absent:
    """Stands for a value that there is none of; JSON leaves its field out."""

    def __repr__(self) -> str:
        return "absent"


ABSENT = Absent()


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of a page.

    Parameters
    ----------
    cells : sequence of sequence of str
        The first row has the titles.
    left : int
        How many columns hold text; the others hold numbers.
    by_node : bool
        Whether text has each row below its first cell, which names a node, and no titles.
    most : int
        Most lines in text.
    """

    cells: Sequence[Sequence[str]]
    left: int = 1
    by_node: bool = False
    most: int = 10_000


@dataclasses.dataclass(frozen=True)
class Page:
    """What a report shows.

    Parameters
    ----------
    kind, title : str
        What was made, and of what. HTML has both in its first line, text the title.
    facts : iterable of (str, str)
    tables : iterable of Table
    notes : iterable of str
        Lines below the tables.
    heading : sequence of str
        The name and more that HTML has in its first line, where the facts tell them in text.
    details : mapping of str to sequence of (str, str)
        More facts by their title; text has them indented, HTML folded.
    picture : callable, optional
        Draws HTML beside the facts, or below all where there are none.
    attributes : mapping
        Attributes of a node, which HTML shows folded.
    """

    kind: str
    title: str = ""
    facts: Iterable[tuple[str, str]] = ()
    tables: Iterable[Table] = ()
    notes: Iterable[str] = ()
    heading: Sequence[str] = ()
    details: Mapping[str, Sequence[tuple[str, str]]] = dataclasses.field(default_factory=dict)
    picture: Callable[[], str] | None = None
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def text(self) -> str:
        """All of it as text."""
        facts = [(printable(label), said) for label, said in self.facts]
        width = max((len(label) for label, _ in facts), default=0) + 2
        details = (f"  {label}: {said}" for found in self.details.values() for label, said in found)
        parts = [printable(self.title), text.rows(facts, width), *map(_text, self.tables)]
        return "\n".join([*filter(None, parts), *map(printable, (*details, *self.notes))])

    def html(self) -> str:
        """All of it as HTML."""
        facts = html.facts(found) if (found := [*self.facts]) else ""
        drawn = "" if self.picture is None else self.picture()
        told, below = (html.beside(facts, drawn), "") if facts else ("", drawn)
        tables = (part for table in self.tables for part in _html(table))
        details = (html.folded(title, html.facts(found)) for title, found in self.details.items())
        title = html.title(self.kind, *(self.heading or (self.title,)))
        attributes = folded_attributes(self.attributes)
        return html.box(title, told, *tables, *map(html.note, self.notes), *details, attributes, below)

    def description(self) -> Description:
        """The text, which notebooks show as HTML."""
        return Description(self.text(), self.html)


class Report(Shown):
    """Mixin of objects that hold what a tool found. They make a page, and the rest follows."""

    _also: ClassVar[tuple[str, ...]] = ()
    """Properties that JSON has beside the fields of a dataclass."""
    _left_out: ClassVar[tuple[str, ...]] = ()
    """Fields that it has not."""

    def _page(self) -> Page:
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON: the fields, and what follows from them."""
        found: dict[str, Any] = plain(self)
        return found

    def __str__(self) -> str:
        return self._page().text()

    __repr__ = __str__

    def _describe(self) -> Description:
        return self._page().description()


def plain(value: Any) -> Any:
    """A value as JSON has it: of dataclasses and named tuples the fields by name.

    Examples
    --------
    >>> plain({"shape": (2, 3), "dtype": np.dtype("f4"), "a": ABSENT})
    {'shape': [2, 3], 'dtype': 'float32'}
    """
    if dataclasses.is_dataclass(value) or isinstance(value, Report):
        own = [each.name for each in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
        names = [name for name in own if name not in getattr(value, "_left_out", ())]
        value = {name: getattr(value, name) for name in (*names, *getattr(value, "_also", ()))}
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items() if each is not ABSENT}
    if isinstance(value, (list, tuple)):
        return [*map(plain, value)]
    value = value.item() if isinstance(value, np.generic) else value
    return value if isinstance(value, (str, int, float, type(None))) else str(value)


def element(value: Any) -> Any:
    """An element of an array without numpy's types: of records the fields by name, times as text.

    Examples
    --------
    >>> element(np.array((1, [2.5, 3]), [("a", "i2"), ("b", "f4", 2)])[()])
    {'a': 1, 'b': [2.5, 3.0]}
    """
    if isinstance(value, np.ndarray):
        return [*map(element, value)] if value.ndim else element(value[()])
    if isinstance(value, np.void) and value.dtype.names == ("value", "valid"):  # It is optional.
        return element(value["value"]) if value["valid"] else None
    if isinstance(value, np.void) and value.dtype.names is not None:
        return {name: element(value[name]) for name in value.dtype.names}
    if isinstance(value, np.datetime64 | np.timedelta64):
        return str(value)
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, str | bytes | int | float | complex | None):
        return plain
    return float(plain) if hasattr(plain, "__float__") else str(plain)  # bfloat16 and others


def _html(table: Table) -> Iterable[str]:
    head, *rows = table.cells
    if rows:
        yield html.tall(html.table([head, *rows[:_MOST_ROWS]], table.left))
    if len(rows) > _MOST_ROWS:
        yield html.note(f"and {len(rows) - _MOST_ROWS:,} more; to_json() has all of them")


def _text(table: Table) -> str:
    if not table.cells[1:]:
        return ""
    lines = [*_by_node(table)] if table.by_node else text.table(table.cells, table.left).split("\n")
    if len(lines) > table.most:
        left = len(lines) - table.most + 1
        lines = [*lines[: table.most - 1], f"and {left:,} more lines; to_json() has all of them"]
    return "\n".join(lines)


def _by_node(table: Table) -> Iterable[str]:
    """The rows below the names of their nodes."""
    _, *rows = table.cells
    lines = text.table([row[1:] for row in rows], table.left).split("\n")
    nodes: dict[str, list[str]] = {}
    for row, line in zip(rows, lines, strict=True):
        nodes.setdefault(row[0], []).append(f"  {line}".rstrip())
    for node, found in nodes.items():
        most = _OF_NODE if len(nodes) > 1 else table.most
        yield from (printable(node), *found[:most])
        if len(found) > most:
            yield f"  and {len(found) - most:,} more"
