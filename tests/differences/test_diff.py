"""``diff``: documents, members and values of two stores, between formats, with numpy as the oracle."""

import itertools
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _documents import document, edit
from _things import measured, refused

import xzarr3
from xzarr3 import Group, MemoryStore, Store
from xzarr3.differences.values import equal, incomparable, tiles_of

ATTRIBUTES = {"units": "K", "n": {"m": [1, 2]}}
GRID = np.arange(60).reshape(6, 10)


def hierarchy(zarr_format: Any = 3, **options: Any) -> Group:
    root = xzarr3.create_group(MemoryStore(), zarr_format=zarr_format, attributes={"title": "x"})
    data = np.arange(60.0).reshape(6, 10)
    data[2, 3] = np.nan
    root.create_array("deep/a", data=data, chunks=(4, 3), dimension_names=["y", "x"], **options)
    root.create_array("b", data=np.arange(4, dtype="i2"), attributes=ATTRIBUTES, **options)
    return root


@pytest.mark.parametrize("formats", [*itertools.permutations([2, 3, "3-draft"], 2)])
def test_between_formats_only_the_format_differs(formats: tuple[Any, Any]) -> None:
    a = hierarchy(formats[0], compressors="gzip").store
    b = MemoryStore()
    xzarr3.copy(a, b, zarr_format=formats[1])
    assert xzarr3.diff(a, b, encoding=False).ok
    found = xzarr3.diff(a, b)
    assert {each.kind for each in found.fields} == {"encoding"}
    first = found.fields[0]
    assert (first.field, first.a, first.b, found.values) == ("zarr_format", *formats, ())
    xzarr3.open_array(b, "deep/a", mode="r+")[5, 9] = -1
    (difference,) = xzarr3.diff(a, b, encoding=False).values
    assert difference.first == (((5, 9), 59.0, -1.0),)


CHANGES: dict[str, tuple[Callable[[Group], object], dict[str, Any]]] = {
    "attribute": (lambda root: root["b"].attrs.update(units="degC"), {"fields": ["attributes.units"]}),
    "nested attribute": (lambda root: root["b"].attrs.update(n={"m": [1]}), {"fields": ["attributes.n.m"]}),
    "type of an attribute": (lambda root: root.attrs.update(title=1), {"fields": ["attributes.title"]}),
    "new attribute": (lambda root: root.attrs.update(new=None), {"fields": ["attributes.new"]}),
    "removed node": (lambda root: root.__delitem__("deep"), {"only_in_a": ["deep"]}),
    "new node": (lambda root: root.create_array("deep/c/d", shape=1, dtype="i1"), {"only_in_b": ["deep/c"]}),
    "shape": (lambda root: root["b"].resize(3), {"fields": ["shape"]}),
    "data type": (
        lambda root: root.create_array("b", data=np.arange(4), attributes=ATTRIBUTES, overwrite=True),
        {"fields": ["data_type"]},
    ),
    "value": (lambda root: root["deep/a"].set((1, 2), 7), {"values": ["deep/a"]}),
    "NaN": (lambda root: root["deep/a"].set((2, 3), 0), {"values": ["deep/a"]}),
    "kind": (
        lambda root: (root.__delitem__("b"), root.create_group("b")),
        {"fields": ["node_type", "attributes.units", "attributes.n"]},
    ),
}


@pytest.mark.parametrize("case", CHANGES)
def test_changes_are_named(case: str) -> None:
    change, expected = CHANGES[case]
    a, b = hierarchy(), hierarchy()
    change(b)
    found = xzarr3.diff(a.store, b.store)
    names = {
        "only_in_a": list(found.only_in_a), "only_in_b": list(found.only_in_b),
        "fields": [each.field for each in found.fields if each.kind != "encoding"],
        "values": [each.path for each in found.values],
    }  # fmt: skip
    assert {name: each for name, each in names.items() if each} == expected
    assert not found.ok
    back = xzarr3.diff(b.store, a.store)
    assert (back.only_in_a, back.only_in_b) == (found.only_in_b, found.only_in_a)
    assert json.loads(json.dumps(found.to_json()))["ok"] is False
    assert "<table" in found._repr_html_() or found.only_in_a or found.only_in_b


def test_equal_stores_do_not_differ_and_of_other_shapes_is_compared_what_both_have() -> None:
    found = xzarr3.diff(hierarchy().store, hierarchy().store)
    assert (found.ok, found.nodes, found.compared) == (True, 4, 64)
    assert str(found).splitlines()[-1] == "found  4 nodes and 64 values compared: no difference"
    a, b = (xzarr3.create_array(MemoryStore(), data=np.arange(n), chunks=3) for n in (10, 7))
    b[6] = -1
    found = xzarr3.diff(a.store, b.store)
    assert [each.field for each in found.fields] == ["shape"]
    assert (found.compared, found.values[0].first) == (7, (((6,), 6, -1),))
    refused(xzarr3.SelectionError, "ends at 10", lambda: xzarr3.diff(a.store, b.store, selection=-1))


@pytest.mark.parametrize("seed", range(12))
def test_values_against_numpy(seed: int) -> None:
    random = np.random.default_rng(seed)
    ndim = int(random.integers(0, 4))
    shape = tuple(int(each) for each in random.integers(1, 12, ndim))
    narrow, wide = [("i2", "i4"), ("f4", "f8"), ("u1", "i8")][seed % 3]
    one = random.integers(0, 5, shape).astype(narrow)
    other = np.where(random.random(shape) < 0.2, one + 1, one).astype(wide)
    a, b = (
        xzarr3.create_array(MemoryStore(), data=data, chunks=[int(random.integers(1, n + 1)) for n in shape])
        for data in (one, other)
    )
    selection = tuple(slice(int(random.integers(0, n)), None, int(random.integers(1, 4))) for n in shape)
    found = xzarr3.diff(a.store, b.store, selection=selection, first=3, encoding=False)
    chosen = np.zeros(shape, bool)
    chosen[selection] = True
    where = np.argwhere((one != other) & chosen)
    assert (found.compared, sum(each.count for each in found.values)) == (chosen.sum(), len(where))
    if len(where):
        (difference,) = found.values
        expected = [(tuple(at.tolist()), one[tuple(at)].item(), other[tuple(at)].item()) for at in where[:3]]
        assert ([*difference.first], difference.largest) == (expected, 1)


@pytest.mark.parametrize("seed", range(20))
def test_arrays_of_which_little_is_stored(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With tiles of a few elements; those without stored units are not read where fill values are equal."""
    for name, value in {"_BATCH": 1, "_SMALLEST": 16, "_LARGEST": 64, "_AT_ONCE": 64}.items():
        monkeypatch.setattr(f"xzarr3.differences.values.{name}", value)
    random = np.random.default_rng(seed)
    fills = (0.0, [0.0, 0.0, 1.0, np.nan][seed % 4])
    arrays = []
    for fill in fills:
        shape = tuple(random.integers(20, 26, 2).tolist())
        chunks: Any = random.integers(1, 6, 2).tolist() if seed % 3 else ([1, 2, 30], 3)
        shards = None if seed % 5 else [2 * n for n in chunks]
        array = xzarr3.create_array(
            MemoryStore(), shape=shape, chunks=chunks, shards=shards if seed % 3 else None, dtype="f8",
            fill_value=fill, write_empty_chunks=bool(seed % 2),
        )  # fmt: skip
        for at in random.integers(0, 20, (3, 2)):
            array[tuple(at)] = random.integers(0, 2)
        arrays.append(array)
    a, b = arrays
    shape = tuple(map(min, a.shape, b.shape))
    one, other = (each[tuple(map(slice, shape))] for each in arrays)
    found = xzarr3.diff(a.store, b.store, first=1000)
    wrong = ~((one == other) | (np.isnan(one) & np.isnan(other)))
    assert (found.compared, sum(each.count for each in found.values)) == (one.size, wrong.sum())
    places = [each.at for value in found.values for each in value.first]
    assert places == [*map(tuple, np.argwhere(wrong))][:1000]


def test_chunks_that_neither_has_cost_nothing() -> None:
    a, b = (xzarr3.create_array(MemoryStore(), shape=10**12, chunks=10**4, dtype="i1") for _ in "ab")
    a[5] = b[10**11] = 1
    with xzarr3.trace() as trace:
        found = xzarr3.diff(a.store, b.store, selection=slice(0, 10**9))
    assert (found.compared, found.values[0].first) == (10**9, (((5,), 1, 0),))
    assert trace.total["requests"] < 5000


SAME: list[tuple[Any, Any, list[bool]]] = [
    (np.array([1.0, np.nan, -0.0, np.inf]), np.array([1, np.nan, 0, -np.inf], "f4"), [True] * 3 + [False]),
    (np.array([2**63 - 1]), np.array([2**63 - 1], "u8"), [True]),
    (np.array([-1]), np.array([2**64 - 1], "u8"), [False]),
    (np.array([complex(np.nan, 1), 1j]), np.array([complex(np.nan, 2), 1j]), [False, True]),
    (np.array(["a", "b"]), np.array(["a", "c"], object), [True, False]),
    (np.array(["a", "b"], np.dtypes.StringDType()), np.array(["a", "bb"]), [True, False]),
    (np.array([b"a", b"b"]), np.array([b"a", b"bb"]), [True, False]),
    (np.array(["2020-01-01", "NaT"], "M8[D]"), np.array(["2020-01-01", "NaT"], ">M8[D]"), [True, True]),
    (np.array([(1, np.nan), (2, 1)], "i2, f4"), np.array([(1, np.nan), (2, 2)], ">i2, >f4"), [True, False]),
    (np.array([([1, 2],)], [("a", "i2", 2)]), np.array([([1, 3],)], [("a", "i2", 2)]), [False]),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other", "expected"), SAME)
def test_equality(one: Any, other: Any, expected: list[bool]) -> None:
    assert incomparable(one.dtype, other.dtype) == ""
    assert equal(one, other).tolist() == equal(other, one).tolist() == expected


OTHER_KINDS: list[tuple[Any, Any]] = [
    *[("i2", "U2"), ("S2", "U2"), ([("a", "i2")], "i2"), ("i2", "f4"), ("b1", "i1")],
    *[([("a", "i2")], [("a", "i4")]), ([("a", "i2")], [("b", "i2")])],
    *[("M8[s]", "m8[s]"), ("M8[s]", "M8[ns]"), ("m8[Y]", "m8[D]")],
]


@pytest.mark.parametrize(("one", "other"), OTHER_KINDS)
def test_values_that_cannot_be_compared_differ(one: Any, other: Any) -> None:
    a, b = (xzarr3.create_array(MemoryStore(), shape=3, dtype=np.dtype(each)) for each in (one, other))
    found = xzarr3.diff(a.store, b.store)
    (difference,) = found.values
    assert "cannot be compared" in difference.why
    assert "cannot be compared" in str(found)
    assert ("packed" in difference.why) == ((one, other) == ("i2", "f4"))


def test_what_cannot_be_read_is_a_problem_and_the_rest_is_compared() -> None:
    a, b = hierarchy(), hierarchy()
    b.store.set("deep/a/c/1/2", b"damaged")
    b["b"][0] = 9  # type: ignore[index]
    b.store.set("bad/zarr.json", b"{")
    found = xzarr3.diff(a.store, b.store)
    assert [path for path, _ in found.problems] == ["bad", "deep/a"]
    (reverse,) = (told for path, told in xzarr3.diff(b.store, a.store).problems if path == "deep/a")
    assert [found.problems[1][1][:5], reverse[:5]] == ["in b:", "in a:"]
    assert ([each.path for each in found.values], found.compared) == (["b"], 64 - 6)
    assert not found.ok
    assert "cannot be read" in str(found)


UNITS = [(1, 512, 512), (64, 8, 8), (64, 512, 512), (3, 5, 7), (1, 1, 1)]


@pytest.mark.parametrize(("a", "b"), [*itertools.combinations_with_replacement(UNITS, 2)])
def test_tiles_are_bounded_and_not_tiny(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    large = {"store": MemoryStore(), "shape": (64, 512, 512), "dtype": "f8"}
    one, other = (
        xzarr3.create_array(path=path, chunks=each, **large) for path, each in zip("ab", (a, b), strict=True)
    )
    lengths = tiles_of(one, other).lengths
    assert 2**20 <= 8 * np.prod(lengths) <= max(2**25, 8 * np.prod(a))


def test_each_chunk_is_read_once_where_chunks_fit() -> None:
    data = np.arange(1800.0).reshape(60, 30)
    stores = [_array(data=data, chunks=chunks) for chunks in ((2, 30), (20, 3))]
    with xzarr3.trace() as traced:
        assert xzarr3.diff(*stores, encoding=False).ok
    assert traced.total["requests"] <= 2 * 30 + 12


def test_arguments_are_checked() -> None:
    a = hierarchy().store
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"first": 0}, ValueError, "first"),
        ({"selection": 0}, xzarr3.SelectionError, "path of an array"),
        ({"path": "b", "b_path": "no"}, xzarr3.NodeNotFoundError, "no"),
        ({"progress": 5}, TypeError, "progress"),
    ]
    for options, error, word in wrong:
        refused(error, word, partial(xzarr3.diff, a, a, **options))
    steps: list[tuple[int, int]] = []
    xzarr3.diff(a, a, progress=lambda done, total: steps.append((done, total)))
    assert (steps[0], steps[-1]) == ((0, 64), (64, 64))


# Stores that differ in one thing, which a comparison must not take for none


def _array(**options: Any) -> Store:
    """A store with one array."""
    return xzarr3.create_array(MemoryStore(), **options).store


def _sharded(**configuration: Any) -> Store:
    store = _array(shape=4, chunks=2, shards=4, dtype="f8")
    (codec,) = document(store)["codecs"]
    edit(store, "zarr.json", codecs=[{**codec, "configuration": codec["configuration"] | configuration}])
    return store


def _of_v2(**fields: Any) -> Store:
    store = _array(shape=2, dtype=[("a", "f4")] if "dtype" in fields else "M8[s]", zarr_format=2)
    edit(store, ".zarray", **fields)
    return store


def _filled(value: float) -> Store:
    return _array(shape=1, dtype=[("a", "f8")], fill_value=np.array((value,), [("a", "f8")])[()])


def _data(values: Any, dtype: Any, **options: Any) -> Store:
    return _array(data=np.array(values, dtype), **options)


def _keyed(separator: str, zarr_format: Any) -> Store:
    options = {"chunk_key_encoding": {"separator": separator}, "zarr_format": zarr_format}
    return _array(data=GRID, chunks=(4, 3), compressors="gzip", **options)


PAIRS: dict[str, tuple[Callable[[], Store], Callable[[], Store], str]] = {
    **{
        f"keys of {each}": (partial(_keyed, "/", each), partial(_keyed, ".", each), "chunk_key_encoding")
        for each in (2, 3, "3-draft")
    },
    "chunks": (lambda: _data(GRID, "f8"), lambda: _data(GRID, "f8", chunks=(1, 10)), "chunks"),
    "shards": (lambda: _data(GRID, "f8"), lambda: _data(GRID, "f8", chunks=2, shards=(6, 4)), "chunks"),
    "codecs": (lambda: _data(GRID, "f8"), lambda: _data(GRID, "f8", compressors="gzip"), "compressors"),
    "text": (lambda: _data([1], "i1"), lambda: _data([1], "i1", attributes={"u": "absent"}), "attributes.u"),
    "empty": (lambda: _data([1], "i1"), lambda: _data([1], "i1", attributes={"u": {}}), "attributes.u"),
    "place of an index": (_sharded, lambda: _sharded(index_location="start"), "shard_index"),
    "codecs of an index": (
        _sharded, lambda: _sharded(index_codecs=[{"name": "bytes", "configuration": {"endian": "big"}}]),
        "shard_index",
    ),
    "no fill value, NaT": (lambda: _of_v2(fill_value=None), lambda: _of_v2(fill_value="NaT"), "fill_value"),
    "digits in a fill value": (lambda: _filled(0.1), lambda: _filled(0.1 + 1e-16), "fill_value"),
    "fields of fields": (
        lambda: _of_v2(dtype=[["a", [["b", "<f4"]]]], fill_value=None),
        lambda: _of_v2(dtype=[["a", [["b", "<f4"], ["c", "<f4"]]]], fill_value=None), "data_type",
    ),
    "years and days": (lambda: _data([1], "m8[Y]"), lambda: _data([365], "m8[D]"), "data_type"),
    "years and attoseconds": (lambda: _data(["2000"], "M8[Y]"), lambda: _data([1], "M8[as]"), "data_type"),
    "far times": (lambda: _data([2**62, 7], "M8[s]"), lambda: _data([1, 7 * 10**9], "M8[ns]"), "data_type"),
}  # fmt: skip
OF_ENCODING = [case for case in PAIRS if case.startswith(("keys of", "chunks", "shards", "codecs", "place"))]


@pytest.mark.parametrize("case", PAIRS)
def test_what_differs_is_never_taken_for_equal(case: str) -> None:
    a, b, field = PAIRS[case]
    for one, other in ((a(), b()), (b(), a())):
        found = xzarr3.diff(one, other)
        assert field in {each.field for each in found.fields}
        assert str(found)
        assert xzarr3.diff(one, one).ok
        is_encoded_so = {each.kind for each in found.fields} == {"encoding"} and not found.values
        assert xzarr3.diff(one, other, encoding=False).ok == is_encoded_so == (case in OF_ENCODING)


def test_differences_are_exact() -> None:
    for one, other, largest in ((2**63 - 1, 2**63 - 2, 1), (-(2**63), 2**63 - 1, 2.0**64)):
        assert xzarr3.diff(_data([one], "i8"), _data([other], "i8")).values[0].largest == largest
    fields = (_data([(value,)], [("a", "f8")]) for value in (0.1234567891, 0.1234567892))
    assert xzarr3.diff(*fields).values[0].first == (((0,), "{'a': 0.1234567891}", "{'a': 0.1234567892}"),)
    numbers = (xzarr3.array(each).store for each in ([1.0, np.inf], [np.nan, 1.0]))
    assert xzarr3.diff(*numbers).values[0].first == (((0,), 1.0, "NaN"), ((1,), "Infinity", 1.0))


def test_memory_is_bounded_by_the_option(tmp_path: Path) -> None:
    stores = []
    for at, chunks in enumerate([(1, 512, 256), (64, 16, 128)]):
        plain = {"shape": (64, 512, 256), "dtype": "f8", "compressors": None}
        array = xzarr3.create_array(tmp_path / str(at), chunks=chunks, **plain)
        for row in range(0, 64, 8):
            array[row : row + 8] = at + 1
        stores.append(array.store)
    xzarr3.diff(*stores, selection=0)
    with xzarr3.set_options(memory_limit="16 MiB"), measured() as peak:
        found = xzarr3.diff(*stores, threads=8)
    assert found.values[0].count == found.compared == 64 * 512 * 256
    assert found.values[0].first[1] == ((0, 0, 1), 1.0, 2.0)
    assert peak[0] < 20 * 2**20


def test_many_problems_are_told_to_be_more() -> None:
    a, b = (_array(data=np.arange(60), chunks=1) for _ in range(2))
    for at in range(40):
        a.set(f"c/{at}", b"damaged")
    found = xzarr3.diff(a, b)
    assert found.problems[-1] == ("", "there may be more: 40 values are not compared")
