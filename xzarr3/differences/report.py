"""What a comparison of two stores found, and its text, HTML and JSON. Knows no stores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from xzarr3.display.report import Page, Report, Table
from xzarr3.display.text import brief
from xzarr3.display.units import counted

_SHOWN = 200  # Lines of a printed comparison.

Kind: TypeAlias = Literal["meaning", "attribute", "encoding"]


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
        Both values; ``absent`` where there is none.

    Examples
    --------
    >>> import xzarr3
    >>> one, other = xzarr3.array([1, 2, 3]), xzarr3.array([1, 5, 3], fill_value=7)
    >>> found = xzarr3.diff(one.store, other.store)
    >>> found.fields[0].field, found.fields[0].a, found.fields[0].b
    ('fill_value', 0, 7)
    """

    path: str
    field: str
    kind: Kind
    a: Any
    b: Any


class Element(NamedTuple):
    """An element that differs.

    Examples
    --------
    >>> import xzarr3
    >>> one, other = xzarr3.array([1, 2, 3]), xzarr3.array([1, 5, 3], fill_value=7)
    >>> found = xzarr3.diff(one.store, other.store)
    >>> found.values[0].first[0]
    Element(at=(1,), a=2, b=5)
    """

    at: tuple[int, ...]
    """Its index in the arrays."""
    a: Any
    b: Any


class Problem(NamedTuple):
    """A part of a node that cannot be read.

    Examples
    --------
    >>> import xzarr3
    >>> one, other = xzarr3.array([1, 2, 3]), xzarr3.array([1, 2, 3])
    >>> other.store.set("c/0", b"")
    >>> xzarr3.diff(one.store, other.store).problems[0].path
    ''
    """

    path: str
    problem: str


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
    first : tuple of Element
        The first differences in C order: index, value in a, value in b.
    largest : float or None
        The largest absolute difference of numbers; None where there is none.
    why : str
        Why all elements count as different, if they cannot be compared.
    problems : tuple of str
        What cannot be read, which the :class:`Diff` has among its own.

    Examples
    --------
    >>> import xzarr3
    >>> one, other = xzarr3.array([1, 2, 3]), xzarr3.array([1, 5, 3], fill_value=7)
    >>> found = xzarr3.diff(one.store, other.store)
    >>> found.values[0].summary
    '1 of 3 differ; largest difference 3'
    """

    path: str = ""
    count: int = 0
    compared: int = 0
    first: tuple[Element, ...] = ()
    largest: float | None = None
    why: str = ""
    problems: tuple[str, ...] = ()

    _left_out = ("problems",)

    @property
    def summary(self) -> str:
        """How many elements differ, or why they cannot be compared."""
        largest = "" if self.largest is None else f"; largest difference {self.largest:.6g}"
        return self.why or f"{self.count:,} of {self.compared:,} differ{largest}"


@dataclass(frozen=True, repr=False)
class Diff(Report):
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
    problems : tuple of Problem
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
    (False, (Element(at=(2,), a=3, b=4),))
    """

    a: str
    b: str
    only_in_a: tuple[str, ...] = ()
    only_in_b: tuple[str, ...] = ()
    fields: tuple[FieldDifference, ...] = ()
    values: tuple[ValueDifference, ...] = ()
    problems: tuple[Problem, ...] = ()
    nodes: int = 0
    compared: int = 0

    _also = ("ok",)

    @property
    def ok(self) -> bool:
        """Whether nothing differs and all could be compared."""
        return not (self.only_in_a or self.only_in_b or self.fields or self.values or self.problems)

    def _page(self) -> Page:
        rows = [(f"/{path}", "node", "only in a") for path in self.only_in_a]
        rows += [(f"/{path}", "node", "only in b") for path in self.only_in_b]
        rows += [(f"/{each.path}", each.field, f"{brief(each.a)} | {brief(each.b)}") for each in self.fields]
        for each in self.values:
            rows.append((f"/{each.path}", "values", each.summary))
            rows += [
                (f"/{each.path}", f"[{', '.join(map(str, index))}]", f"{brief(a)} | {brief(b)}")
                for index, a, b in each.first
            ]
        rows += [(f"/{path}", "cannot be read", problem) for path, problem in self.problems]
        return Page(
            "xzarr3.diff",
            "",
            [("a", self.a), ("b", self.b), ("found", self._summary())],
            [Table([("node", "what", "a | b"), *rows], 3, by_node=True, most=_SHOWN)],
        )

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
