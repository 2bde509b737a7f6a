"""What a comparison of two stores found, and its text, HTML and JSON. Knows no stores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from xzarr3.display import html
from xzarr3.display.shown import Description, Shown
from xzarr3.display.text import cut
from xzarr3.display.units import counted
from xzarr3.errors import printable, shorten

_SHOWN = 200  # Lines of a printed comparison,
_OF_NODE = 20  # of which so many fields of one node.
_MOST_ROWS = 300  # Rows of a table in HTML.
_LONGEST = 60  # Characters of a value.

Kind: TypeAlias = Literal["meaning", "attribute", "encoding"]


class Absent:
    """Stands for a field that one side does not have."""

    def __repr__(self) -> str:
        return "absent"


ABSENT = Absent()


@dataclass(frozen=True)
class FieldDifference:
    """A field of the documents that differs.

    Parameters
    ----------
    path : str
        Path of the node below the compared ones; empty for these.
    field : str
        Such as ``shape`` or ``attributes.units``.
    kind : {"meaning", "attribute", "encoding"}
        Whether it says what the elements mean, is an attribute, or only says how they are stored.
    a, b : object
        Both values; :data:`ABSENT` where there is none.
    """

    path: str
    field: str
    kind: Kind
    a: Any
    b: Any

    def __str__(self) -> str:
        return f"{self.field}: {_shown(self.a)} | {_shown(self.b)}"

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON has them; an absent value is left out."""
        return {name: value for name, value in vars(self).items() if value is not ABSENT}


@dataclass(frozen=True)
class ValueDifference:
    """Elements of an array that differ.

    Parameters
    ----------
    path : str
        Path of the array below the compared nodes.
    count : int
        Number of elements that differ.
    compared : int
        Number of elements that were compared.
    first : tuple
        The first differences in C order: index, value in a, value in b.
    largest : float or None
        The largest absolute difference of numbers; None where there is none.
    why : str
        Why all elements count as different, if they cannot be compared.
    """

    path: str
    count: int
    compared: int
    first: tuple[tuple[tuple[int, ...], Any, Any], ...] = ()
    largest: float | None = None
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON has them."""
        first = [{"index": list(index), "a": a, "b": b} for index, a, b in self.first]
        return {**vars(self), "first": first}

    def lines(self) -> Iterator[str]:
        """The number of differences, and the first ones."""
        if self.why:
            yield f"values: {self.why}"
            return
        largest = "" if self.largest is None else f"; largest difference {self.largest:.6g}"
        yield f"values: {self.count:,} of {self.compared:,} differ{largest}"
        for index, a, b in self.first:
            yield f"  [{', '.join(map(str, index))}]  {_shown(a)} | {_shown(b)}"


@dataclass(frozen=True)
class Diff(Shown):
    """What :func:`xzarr3.diff` found.

    Parameters
    ----------
    a, b : str
        Both stores with the paths in them, as messages name them.
    only_in_a, only_in_b : tuple of str
        Paths of nodes that only one side has, with all that is below them.
    fields : tuple of FieldDifference
        Fields of documents that differ.
    values : tuple of ValueDifference
        Arrays whose elements differ.
    problems : tuple of (str, str)
        Paths and what could not be compared there, because it cannot be read.
    nodes : int
        Number of nodes that both sides have.
    compared : int
        Number of elements that were compared.

    Examples
    --------
    >>> import xzarr3
    >>> one, other = xzarr3.array([1, 2, 3]), xzarr3.array([1, 2, 4])
    >>> found = xzarr3.diff(one.store, other.store)
    >>> found.ok, found.values[0].first
    (False, (((2,), 3, 4),))
    """

    a: str
    b: str
    only_in_a: tuple[str, ...] = ()
    only_in_b: tuple[str, ...] = ()
    fields: tuple[FieldDifference, ...] = ()
    values: tuple[ValueDifference, ...] = ()
    problems: tuple[tuple[str, str], ...] = field(default=())
    nodes: int = 0
    compared: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing differs and all could be compared."""
        return not (self.only_in_a or self.only_in_b or self.fields or self.values or self.problems)

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON."""
        return {
            "a": self.a,
            "b": self.b,
            "ok": self.ok,
            "only_in_a": list(self.only_in_a),
            "only_in_b": list(self.only_in_b),
            "fields": [each.to_json() for each in self.fields],
            "values": [each.to_json() for each in self.values],
            "problems": [{"path": path, "problem": problem} for path, problem in self.problems],
            "nodes": self.nodes,
            "compared": self.compared,
        }

    def __str__(self) -> str:
        lines = [*self._lines()]
        if len(lines) > _SHOWN:
            lines = [*lines[:_SHOWN], f"and {len(lines) - _SHOWN:,} more lines; to_json() has all of them"]
        head = [f"a: {self.a}", f"b: {self.b}"]
        return "\n".join(map(printable, [*head, *lines, self._summary()]))

    def _summary(self) -> str:
        compared = f"{counted(self.nodes, 'node')} and {counted(self.compared, 'value')} compared"
        if self.ok:
            return f"{compared}: no difference"
        numbers = {
            f"{len(self.only_in_a):,} only in a": self.only_in_a,
            f"{len(self.only_in_b):,} only in b": self.only_in_b,
            counted(len(self.fields), "different field"): self.fields,
            f"{counted(len(self.values), 'array')} with other values": self.values,
            f"{counted(len(self.problems), 'part')} that cannot be read": self.problems,
        }
        return f"{compared}: " + ", ".join(text for text, found in numbers.items() if found)

    def _lines(self) -> Iterator[str]:
        for path in self.only_in_a:
            yield f"only in a: /{path}"
        for path in self.only_in_b:
            yield f"only in b: /{path}"
        of_fields, of_values = (each.path for each in self.fields), (each.path for each in self.values)
        for path in dict.fromkeys((*of_fields, *of_values, *(path for path, _ in self.problems))):
            yield f"/{path}"
            fields = [f"  {each}" for each in self.fields if each.path == path]
            yield from fields[:_OF_NODE]
            if len(fields) > _OF_NODE:
                yield f"  and {len(fields) - _OF_NODE} more fields"
            found = (each for each in self.values if each.path == path)
            yield from (f"  {line}" for each in found for line in each.lines())
            yield from (f"  cannot be read: {problem}" for where, problem in self.problems if where == path)

    def _describe(self) -> Description:
        return Description(str(self), self._html)

    def _html(self) -> str:
        facts = [("a", self.a), ("b", self.b), ("Found", self._summary())]
        facts += [("Only in a", f"/{path}") for path in self.only_in_a[:_MOST_ROWS]]
        facts += [("Only in b", f"/{path}") for path in self.only_in_b[:_MOST_ROWS]]
        facts += [("Problem", f"/{path}: {problem}") for path, problem in self.problems[:_MOST_ROWS]]
        rows = [(f"/{each.path}", each.field, _shown(each.a), _shown(each.b)) for each in self.fields]
        for each in self.values:
            rows.append((f"/{each.path}", each.why or f"{each.count:,} values", "", ""))
            rows += [(f"/{each.path}", str(list(index)), _shown(a), _shown(b)) for index, a, b in each.first]
        table = html.tall(html.table([("node", "what", "a", "b"), *rows[:_MOST_ROWS]], left=4))
        return html.box(html.title("xzarr3.Diff"), html.facts(facts), *([table] if rows else []))


def _shown(value: Any) -> str:
    return cut(value, _LONGEST) if isinstance(value, str) else shorten(value, _LONGEST)
