"""The texts, HTML and drawings by which arrays, groups, reports and the rest show themselves."""

import itertools
import json
import pickle
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from _examples import HOSTILE, examples
from _kinds import Unlisted
from _page import Page as HtmlPage
from dask.utils import format_bytes
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pictures import SST

import xzarr3
from xzarr3.display import html
from xzarr3.display import picture as pictures
from xzarr3.display.picture import picture
from xzarr3.display.report import ABSENT, Page, Report, Table, plain
from xzarr3.display.shown import Description, Shown
from xzarr3.display.svg import Axis, drawing
from xzarr3.display.text import brief
from xzarr3.display.units import counted, share, size
from xzarr3.errors import InvalidKeyError, MetadataError, NodeExistsError, printable

INFO = """\
name        /surface/sst
format      3
shape       (300, 180, 360)
data type   float32
dimensions  ('time', 'lat', 'lon')
chunks      (10, 45, 90)
shards      (100, 90, 180)
fill value  nan
codecs      bytes(endian=little), zstd(level=0, checksum=False)
size        74.16 MiB in 12 shards of 6.18 MiB, chunks of 158.20 kiB
store       <MemoryStore, 3 keys>"""
TREE = """\
/
└── surface/
    └── sst (time: 300, lat: 180, lon: 360) float32"""
EXPLANATION = """\
read of shape (2, 3) from array '/surface/sst'
keys         1, of which 1 absent
chunks       0 decoded
requests     0
bytes moved  0 B
bytes used   24 B (0 moved for each)
  surface/sst/c/0/0/0: absent, the fill value"""


@pytest.fixture
def root() -> xzarr3.Group:
    root = xzarr3.create_group(xzarr3.MemoryStore(), attributes={"title": "Ocean"})
    root.create_array("surface/sst", **SST, attributes={"units": "degC"})
    return root


def test_array(root: xzarr3.Group) -> None:
    sst = root["surface/sst"]
    assert isinstance(sst, xzarr3.Array)
    assert repr(sst) == (
        "<xzarr3.Array /surface/sst shape=(300, 180, 360) dtype=float32 chunks=(10, 45, 90) "
        "shards=(100, 90, 180)>"
    )
    assert sst.info == INFO
    for name, meaning in (
        ("oindex", "each index selects along its own dimension"),
        ("vindex", "arrays select points together, or a mask does"),
        ("blocks", "selects chunks, or shards, by their coordinates"),
    ):
        assert repr(getattr(sst, name)) == f"<{name} of xzarr3.Array /surface/sst: {meaning}>"
    assert repr(sst.attrs) == "{'units': 'degC'}"
    assert str(sst.explain((slice(0, 2), 3, [5, 6, 7]))) == EXPLANATION


def test_group(root: xzarr3.Group) -> None:
    assert repr(root) == "<xzarr3.Group / of <MemoryStore, 3 keys>>"
    assert root == root
    assert {root: 1}[root] == 1
    tree = root.tree()
    assert isinstance(tree, Description)
    assert repr(tree) == str(tree) == f"{tree}" == TREE
    again = pickle.loads(pickle.dumps(tree))
    assert type(again) is str
    assert again == TREE
    assert str(root._describe()) == "\n".join([repr(root), *TREE.splitlines()[1:]])


def test_what_is_stored_is_told_once_it_was_counted(root: xzarr3.Group) -> None:
    sst: Any = root["surface/sst"]
    sst[:100, :90] = 5
    assert "stored" not in sst.info
    seen: Any = xzarr3.open_array(sst.store, "surface/sst")
    with xzarr3.trace() as t:
        for show in (repr, lambda array: array.info, lambda array: array._repr_html_()):
            show(seen)
    assert t.total["requests"] == 0  # The store is not asked to show an array.
    lines = seen.info_complete().splitlines()
    assert lines[-1].startswith("stored      ")
    assert " in 2 of 12 shards (17 %), ratio " in lines[-1]
    assert seen.info.splitlines() == lines
    assert "2 of 12 shards" in seen._repr_html_()
    for change in (
        lambda: sst.resize((200, 180, 360)),
        lambda: sst.append(np.ones((1, 180, 360), "f4")),
        lambda: sst.set((0, 0, 0), 1),
    ):
        sst.info_complete()
        assert "stored" in sst.info
        change()
        assert "stored" not in sst.info


@pytest.mark.parametrize("damage", [("zstd", "from_the_future"), ("[2,2]", "[3,2]")])
def test_what_cannot_be_read_is_said_and_the_rest_is_shown(damage: tuple[str, str]) -> None:
    root = xzarr3.create_group(xzarr3.MemoryStore())
    root.create_array("a", shape=(4, 5), chunks=(2, 2), shards=(4, 6), dtype="int8")
    root.create_array("b", shape=3, dtype="int8")
    text = json.dumps(json.loads(bytes(root.store.get("a/zarr.json") or b"")), separators=(",", ":"))
    assert damage[0] in text
    root.store.set("a/zarr.json", text.replace(*damage).encode())
    group = xzarr3.open_group(root.store)
    for shown in (group.tree(), group._repr_html_(), str(group._describe())):
        assert "b" in shown
        assert "cannot be read: node" in shown
        assert damage[1].replace(",", ", ") in shown


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
        HtmlPage(source)
        assert len(source) < (80_000 if "10,000" in name else 20_000), name
        if isinstance(each, Report):
            assert repr(each) == str(each), "a shell shows what print does"
        if isinstance(each, Shown):
            bundle = each._repr_mimebundle_()
            assert bundle["text/html"] == source
            assert bundle["text/plain"]
            assert bundle["text/plain"].isprintable() or "\n" in bundle["text/plain"]


def test_hostile_names_and_attributes(shown: dict[str, Any]) -> None:
    for name in ("hostile array", "group", "attributes"):
        page = HtmlPage(shown[name]._repr_html_())
        assert printable(HOSTILE) in page.text
        assert "script" not in page.tags
    page = HtmlPage(shown["attributes"]._repr_html_())
    assert "and 204 more, not shown" in page.text
    assert max(map(len, page.texts)) <= 301


@pytest.mark.slow
def test_a_group_of_many_nodes_shows_some_of_each_and_counts_the_rest(shown: dict[str, Any]) -> None:
    group = shown["group of 10,000 nodes"]
    page = HtmlPage(group._repr_html_())
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
    assert "and 200 more, not shown" in HtmlPage(bundle["text/html"]).text
    assert len(group.tree().splitlines()) == 1 + 300 + 150  # All of them, as it was asked for.


def test_a_group_that_cannot_be_listed_says_so() -> None:
    root = xzarr3.create_group(xzarr3.MemoryStore(), attributes={"a": 1})
    assert "cannot list" in HtmlPage(xzarr3.open_group(Unlisted(root.store))._repr_html_()).text


def test_a_hierarchy_of_very_many_levels() -> None:
    root = xzarr3.create_group(xzarr3.MemoryStore())
    root.create_array("/".join(["deep"] * 200), shape=3, dtype="int8")
    for group in (root, xzarr3.consolidate_metadata(root.store)):
        page = HtmlPage(group._repr_html_())
        assert page.texts.count("deep") == 19
        assert "and 1 more, not shown" in page.text


def test_a_length_is_written_in_one_form() -> None:
    root = xzarr3.create_group(xzarr3.MemoryStore())
    for names in (("time", "x"), None):
        options = {"chunks": (48, 5), "dtype": "int8", "dimension_names": names}
        text = HtmlPage(root.create_array(f"{names}", shape=(1464, 5), **options)._repr_html_()).text
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
        HtmlPage(each._repr_html_())
    page = HtmlPage(array._repr_html_())
    assert printable(array.name) in page.texts
    assert printable(f"({dims[0]}: 4, {dims[1]}: 6) int8").strip() in page.text.strip()
    listed = HtmlPage(array.attrs._repr_html_()).texts
    for key, value in attributes.items():
        assert printable(key[:100] + "…" * (len(key) > 100)) in listed
        if isinstance(value, str):
            assert printable(value) in listed


@given(names)
def test_escaped_text_is_text(text: str) -> None:
    shown, title = printable(text), html.title(text, text, text)
    page = HtmlPage(html.box(html.code(text), title, html.facts([(text, text)]), html.note(text)))
    expected = [*[shown] * 3, *[f" {shown}"] * bool(text), *[shown] * 3]
    assert [piece for piece in page.texts if piece] == [piece for piece in expected if piece]


@given(
    st.lists(st.integers(1, 10**9), min_size=1, max_size=3),
    st.lists(names, min_size=3, max_size=3),
    st.lists(st.tuples(st.integers(0, 10), st.integers(0, 10)), max_size=3),
)
def test_drawings(sizes: list[int], labels: list[str], boxes: list[tuple[int, int]]) -> None:
    axes = [Axis(size=size, label=label) for size, label in zip(sizes, labels, strict=False)]
    page = HtmlPage(html.box(drawing(axes, [tuple(boxes[:1] * len(axes))] if boxes else [])))
    assert page.tags.count("svg") == 1
    assert set(page.text.splitlines()) <= {printable(label) for label in labels}


def touched_chunks(array: xzarr3.Array, elements: Any) -> set[tuple[int, ...]]:
    """The first elements of the chunks that hold elements, given by their numbers in C order."""
    meta, shard = array.metadata, array.metadata.chain.shard
    lengths = (None,) * array.ndim if shard is None else shard.grid.largest
    found = set()
    for at in np.stack(np.unravel_index(np.unique(elements), array.shape), axis=-1).tolist():
        first = []
        for index, axis, inner in zip(at, meta.chunk_grid.axes, lengths, strict=True):
            begin = axis.start(axis.index(index))
            first.append(begin if inner is None else begin + (index - begin) // inner * inner)
        found.add(tuple(first[-3:]))
    return found


def drawn_chunks(array: xzarr3.Array, plan: Any) -> set[tuple[int, ...]]:
    """The first elements of the chunks within the boxes of a drawing."""
    first = max(array.ndim - 3, 0)
    boxes: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures, "drawing", lambda axes, found: boxes.extend(found) or "")
        picture(array.metadata, [plan])
    elements = set()
    for box in boxes:
        elements |= set(itertools.product(*(range(begin, end) for begin, end in box)))
    shape = array.shape[first:]
    numbers = [np.ravel_multi_index((*(0,) * first, *at), array.shape) for at in elements]
    assert all(0 <= index < size for at in elements for index, size in zip(at, shape, strict=True))
    return touched_chunks(array, np.array(numbers, int)) if numbers else set()


@st.composite
def arrays(draw: st.DrawFn) -> xzarr3.Array:
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    inner = tuple(draw(st.integers(1, 4)) for _ in shape)
    options: dict[str, Any] = {"chunks": inner}
    kind = draw(st.sampled_from(["chunks", "shards", "lengths"]))
    if kind == "shards":
        options["shards"] = tuple(length * draw(st.integers(1, 3)) for length in inner)
    if kind == "lengths":
        options["chunks"] = [[1] * (size - size // 2) + [size // 2] * (size > 1) for size in shape]
    return xzarr3.create_array(xzarr3.MemoryStore(), shape=shape, dtype="int8", **options)


@pytest.mark.slow
@settings(max_examples=150)
@given(arrays(), st.data())
def test_touched_chunks(array: xzarr3.Array, data: st.DataObject) -> None:
    numbers = np.arange(array.size).reshape(array.shape)
    slices = []
    for length in array.shape:
        low, high = sorted((data.draw(st.integers(0, length)), data.draw(st.integers(0, length))))
        part = slice(low, high, data.draw(st.sampled_from([1, 1, 2, 3])))
        slices.append(data.draw(st.sampled_from([part, part, length - 1, slice(None, None, -1)])))
    basic = tuple(slices)
    assert drawn_chunks(array, array.plan(basic)) == touched_chunks(array, numbers[basic])
    number = data.draw(st.integers(1, 4))
    drawn = [st.lists(st.integers(0, size - 1), min_size=number, max_size=number) for size in array.shape]
    lists = tuple(np.array(data.draw(each)) for each in drawn)
    outer = array.oindex.plan(lists)
    assert drawn_chunks(array, outer) == touched_chunks(array, numbers[np.ix_(*lists)])
    if number > 1 and array.ndim > 1:  # Points are not drawn.
        assert drawn_chunks(array, array.vindex.plan(lists)) == set()


def paths(source: str, kind: str) -> int:
    """How many pieces the shapes of a kind have."""
    return sum(path.count("M") for path in re.findall(f'class="xz-{kind}"[^>]* d="([^"]*)"', source))


def test_what_is_drawn() -> None:
    def drawn(plan: Any = None, **options: Any) -> str:
        array = xzarr3.create_array(xzarr3.MemoryStore(), dtype="int8", **options)
        return picture(array.metadata, [] if plan is None else [array.plan(plan)])

    assert drawn(shape=()) == drawn(shape=(3, 0, 4), chunks=1) == ""
    line = drawn(shape=10, chunks=3)
    assert (paths(line, "face"), paths(line, "edge"), paths(line, "fine")) == (1, 1 + 3, 0)
    plane = drawn(shape=(8, 12), chunks=(2, 3), shards=(4, 6))
    assert (paths(plane, "face"), paths(plane, "edge"), paths(plane, "fine")) == (1, 1 + 2, 4)
    block = drawn(shape=(8, 8, 12), chunks=(4, 2, 3), shards=(8, 4, 6))
    assert (paths(block, "face"), paths(block, "edge"), paths(block, "read")) == (3, 3 + 2 + 1 + 1, 0)
    touched = drawn((slice(1), slice(None), [0, 11]), shape=(8, 8, 12), chunks=(4, 2, 3))
    assert paths(touched, "read") == 2 + 2 + 1
    assert "the last 3 of 5 dimensions" in drawn(shape=(2, 3, 4, 5, 6), chunks=1)


@pytest.mark.parametrize("chunks", [1, 1000])
def test_drawings_of_large_arrays_are_small(chunks: int) -> None:
    shape = (10**6,) * 3
    options: dict[str, Any] = {"chunks": chunks, "shards": (10 * chunks,) * 3, "dtype": "int8"}
    array = xzarr3.create_array(xzarr3.MemoryStore(), shape=shape, **options)
    points = np.random.default_rng(0).integers(0, 10**6, (3, 5000))
    for plan in (array.vindex.plan(tuple(points)), array.plan((slice(None, None, 3000), *points[1:, :9]))):
        assert len(picture(array.metadata, [plan])) < 150_000
    assert len(picture(array.metadata)) < 10_000
    every = array.oindex.plan((points[0], slice(None), slice(5)))
    assert len(picture(array.metadata, [every])) < 20_000


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


@pytest.mark.parametrize(("value", "expected"), [
    (Pair(np.float32(1.5), (1, [np.int8(2)])), {"one": 1.5, "other": [1, [2]]}),
    ({"a": ABSENT, "b": None, "c": True}, {"b": None, "c": True}), (np.dtype("i2"), "int16"),
    (b"\xff", "b'\\xff'"),
    (Told((("/", "x", "y"),)), {"rows": [["/", "x", "y"]], "by_node": True, "most": 10, "number": 1}),
])  # fmt: skip
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
