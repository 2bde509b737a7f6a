"""HTML of all objects: well-formed, of bounded size, and no name in it is ever markup."""

from typing import Any

import pytest
from _examples import HOSTILE, examples
from _kinds import Unlisted
from _page import Page
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import xzarr3
from xzarr3.display import html
from xzarr3.display.shown import Shown
from xzarr3.display.svg import Axis, drawing
from xzarr3.errors import InvalidKeyError, MetadataError, NodeExistsError, printable

MARKUP = ["<script>alert(1)</script>", "</div><b>", "<!--", "&lt;", "\"'", "\x00\x1b[2J\u202e", "\ud800"]
names = st.lists(st.text(max_size=12) | st.sampled_from(MARKUP), max_size=3).map("".join)
json_values = st.recursive(
    names | st.integers() | st.booleans() | st.none(), lambda inner: st.lists(inner, max_size=3), max_leaves=4
)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return examples(tmp_path_factory.mktemp("shown"))


def test_every_object_is_well_formed_and_small(shown: dict[str, Any]) -> None:
    for name, each in shown.items():
        source = each._repr_html_()
        Page(source)
        assert len(source) < (80_000 if "10,000" in name else 20_000), name
        if isinstance(each, Shown):
            bundle = each._repr_mimebundle_()
            assert bundle["text/html"] == source
            assert bundle["text/plain"]
            assert bundle["text/plain"].isprintable() or "\n" in bundle["text/plain"]


def test_hostile_names_and_attributes(shown: dict[str, Any]) -> None:
    for name in ("hostile array", "group", "attributes"):
        page = Page(shown[name]._repr_html_())
        assert printable(HOSTILE) in page.text
        assert "script" not in page.tags
    page = Page(shown["attributes"]._repr_html_())
    assert "and 204 more, not shown" in page.text
    assert max(map(len, page.texts)) <= 301


@pytest.mark.slow
def test_a_group_of_many_nodes_shows_some_of_each_and_counts_the_rest(shown: dict[str, Any]) -> None:
    group = shown["group of 10,000 nodes"]
    page = Page(group._repr_html_())
    pieces = page.text.splitlines()
    named = [text for text in pieces if text.startswith(("group ", "array ", "model", "a"))]
    assert pieces.count("and 97 more, not shown") == 99
    assert sum(text.startswith("array ") for text in named) == 297
    assert str(group._describe()).splitlines()[-1].endswith("more, not shown")
    assert len(str(group._describe()).splitlines()) < 70


@pytest.mark.parametrize("consolidated", [False, True])
def test_few_documents_are_read_to_show_a_group(consolidated: bool) -> None:
    store = xzarr3.MemoryStore()
    root = xzarr3.create_group(store)
    for at in range(300):
        root.create_group(f"group {at:03}")
    for at in range(150):
        root.create_array(f"group 000/array {at:03}", shape=3, dtype="int8")
    if consolidated:
        xzarr3.consolidate_metadata(store)
    group = xzarr3.open_group(store)
    with xzarr3.trace() as t:
        bundle = group._repr_mimebundle_()
    assert t.total["requests"] == 0 if consolidated else t.total["requests"] <= 4 * 400
    assert "and 200 more, not shown" in Page(bundle["text/html"]).text
    assert len(group.tree().splitlines()) == 1 + 300 + 150  # All of them, as it was asked for.


def test_a_group_that_cannot_be_listed_says_so() -> None:
    root = xzarr3.create_group(xzarr3.MemoryStore(), attributes={"a": 1})
    assert "cannot list" in Page(xzarr3.open_group(Unlisted(root.store))._repr_html_()).text


def test_a_hierarchy_of_very_many_levels() -> None:
    root = xzarr3.create_group(xzarr3.MemoryStore())
    root.create_array("/".join(["deep"] * 200), shape=3, dtype="int8")
    for group in (root, xzarr3.consolidate_metadata(root.store)):
        page = Page(group._repr_html_())
        assert page.texts.count("deep") == 19
        assert "and 1 more, not shown" in page.text


def test_a_length_is_written_in_one_form() -> None:
    root = xzarr3.create_group(xzarr3.MemoryStore())
    for names in (("time", "x"), None):
        options = {"chunks": (48, 5), "dtype": "int8", "dimension_names": names}
        text = Page(root.create_array(f"{names}", shape=(1464, 5), **options)._repr_html_()).text
        assert "1464" in text.replace("(1464, 5)", "")
        assert "1,464" not in text


def test_very_long_names() -> None:
    root = xzarr3.create_group(xzarr3.MemoryStore())
    options = {"fill_value": "f" * 9000, "dimension_names": ["x" * 50_000, "y"]}
    array = root.create_array("n" * 50_000, shape=(4, 5), dtype="U9000", **options)
    for each in (array, root, array.explain(0), array.oindex, root.tree()):
        assert len(each._repr_html_()) < 20_000


@settings(max_examples=60)
@given(names, st.lists(names, min_size=2, max_size=2), st.dictionaries(names, json_values, max_size=4))
def test_any_name_and_attribute_is_text(name: str, dims: list[str], attributes: dict[str, Any]) -> None:
    root = xzarr3.create_group(xzarr3.MemoryStore())
    options: dict[str, Any] = {"dimension_names": dims, "attributes": attributes}
    try:
        array = root.create_array(name, shape=(4, 6), dtype="int8", **options)
    except (InvalidKeyError, MetadataError, NodeExistsError):
        assume(False)
    for each in (array, root, array.attrs, array.explain((0, slice(2))), array.oindex, root.tree()):
        Page(each._repr_html_())
    page = Page(array._repr_html_())
    assert printable(array.name) in page.texts
    assert printable(f"({dims[0]}: 4, {dims[1]}: 6) int8").strip() in page.text.strip()
    listed = Page(array.attrs._repr_html_()).texts
    for key, value in attributes.items():
        assert printable(key[:100] + "…" * (len(key) > 100)) in listed
        if isinstance(value, str):
            assert printable(value) in listed


@given(names)
def test_escaped_text_is_text(text: str) -> None:
    shown, title = printable(text), html.title(text, text, text)
    page = Page(html.box(html.code(text), title, html.facts([(text, text)]), html.note(text)))
    expected = [*[shown] * 3, *[f" {shown}"] * bool(text), *[shown] * 3]
    assert [piece for piece in page.texts if piece] == [piece for piece in expected if piece]


@given(
    st.lists(st.integers(1, 10**9), min_size=1, max_size=3),
    st.lists(names, min_size=3, max_size=3),
    st.lists(st.tuples(st.integers(0, 10), st.integers(0, 10)), max_size=3),
)
def test_drawings(sizes: list[int], labels: list[str], boxes: list[tuple[int, int]]) -> None:
    axes = [Axis(size=size, label=label) for size, label in zip(sizes, labels, strict=False)]
    page = Page(html.box(drawing(axes, [tuple(boxes[:1] * len(axes))] if boxes else [])))
    assert page.tags.count("svg") == 1
    assert set(page.text.splitlines()) <= {printable(label) for label in labels}
