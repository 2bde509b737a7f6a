"""Reports: one page becomes text, HTML and JSON; sizes, shares and numbers of things."""

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from dask.utils import format_bytes
from hypothesis import given
from hypothesis import strategies as st

from xzarr3.display.report import ABSENT, Page, Report, Table, plain
from xzarr3.display.text import brief
from xzarr3.display.units import counted, share, size


@dataclass(frozen=True)
class Told(Report):
    """A report of a table."""

    rows: tuple[tuple[str, ...], ...]
    by_node: bool = True
    most: int = 10

    _also = ("number",)

    @property
    def number(self) -> int:
        """How many rows there are."""
        return len(self.rows)

    def _page(self) -> Page:
        table = Table([("node", "what", "found"), *self.rows], 3, by_node=self.by_node, most=self.most)
        return Page("told", "told of a store", [("rows", str(self.number))], [table], ["that is all"])


def test_text_has_rows_below_their_nodes() -> None:
    told = Told((("/b", "a", "1"), ("/", "long", "22"), ("/b", "", "")))
    assert str(told).splitlines() == [
        "told of a store", "rows  3", "/b", "  a     1", "", "/", "  long  22", "that is all",
    ]  # fmt: skip
    assert str(Told(())).splitlines() == ["told of a store", "rows  0", "that is all"]
    rows = [("/a", "x", str(at)) for at in range(20)]  # A node leaves lines for the others.
    assert "  and 12 more" in str(Told((*rows, ("/b", "y", "last")), most=100)).splitlines()
    assert "more" not in str(Told(tuple(rows), most=100))


@pytest.mark.parametrize("by_node", [True, False])
@pytest.mark.parametrize("nodes", [1, 50])
def test_text_and_html_are_cut_and_say_so(by_node: bool, nodes: int) -> None:
    told = Told(tuple((f"/{at % nodes}", "x", str(at)) for at in range(1000)), by_node)
    lines = str(told).splitlines()
    assert len(lines) == 2 + 10 + 1
    assert "more lines; to_json() has all of them" in lines[-2]
    html = told._repr_html_()
    assert html.count("<tr>") == 301
    assert "and 700 more; to_json() has all of them" in html
    assert told.to_json()["number"] == len(told.to_json()["rows"]) == 1000


def test_text_and_html_are_safe() -> None:
    hostile = "a\x1b[2J\n<b>"
    told = Told(((hostile, hostile, hostile),))
    assert "\x1b" not in str(told)
    assert len(str(told).splitlines()) == 5
    assert "<b>" not in told._repr_html_()
    assert "\x1b" not in told._repr_html_()


class Pair(NamedTuple):
    """A named tuple."""

    one: Any
    other: Any


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Pair(np.float32(1.5), (1, [np.int8(2)])), {"one": 1.5, "other": [1, [2]]}),
        ({"a": ABSENT, "b": None, "c": True}, {"b": None, "c": True}),
        (np.dtype("i2"), "int16"),
        (b"\xff", "b'\\xff'"),
        (Told((("/", "x", "y"),)), {"rows": [["/", "x", "y"]], "by_node": True, "most": 10, "number": 1}),
    ],
)
def test_plain(value: Any, expected: Any) -> None:
    assert plain(value) == expected
    json.dumps(plain(value))


def test_brief() -> None:
    assert (brief("x" * 100), brief(ABSENT), brief([1, "a"])) == ("x" * 60 + "…", "absent", "[1, 'a']")


EDGES = [int(0.9 * 2**n) + more for n in range(10, 60, 10) for more in (-1, 0, 1)]


@given(st.integers(0, 2**70) | st.sampled_from(EDGES))
def test_sizes_are_those_of_dask(number: int) -> None:
    assert size(number) == format_bytes(number)


@given(st.integers(1, 10**12), st.data())
def test_a_share_is_all_or_nothing_only_if_it_is(whole: int, data: st.DataObject) -> None:
    part = data.draw(st.integers(0, whole))
    text = share(part, whole)
    assert (text == "0 %", text == "100 %") == (part == 0, part == whole)
    assert abs(float(text.removesuffix(" %")) - 100 * part / whole) <= 0.51


def test_numbers_of_things() -> None:
    found = [counted(number, "chunk") for number in (0, 1, 12_345)]
    assert found == ["0 chunks", "1 chunk", "12,345 chunks"]
