"""Arrays and groups of every format: made, found, changed, erased and copied; one is not in another's way."""

import json
import pickle
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
from _conformance import contents
from _documents import document
from _strategies import same_bits
from _things import Thing, refused, refuses

import xzarr3
from xzarr3 import Array, Group, MemoryStore, MetadataError, NodeNotFoundError, NodeTypeError, Store
from xzarr3.codecs import BloscCodec, GzipCodec
from xzarr3.model import chunk_keys
from xzarr3.model.chunk_keys import DraftChunkKeyEncoding

FORMATS = (3, 2, "3-draft")
formats = pytest.mark.parametrize("zarr_format", FORMATS)
VALUES = np.arange(12.0).reshape(3, 4)


def small(store: Store, path: str = "g/a", **options: Any) -> Array:
    described: dict[str, Any] = {"dimension_names": ("y", "x"), "attributes": {"units": "K"}}
    return xzarr3.create_array(store, path, data=VALUES, chunks=(2, 2), **described, **options)


def sample(store: Store, zarr_format: Any) -> Group:
    root = xzarr3.create_group(store, attributes={"title": "root"}, zarr_format=zarr_format)
    root.create_array("a", data=np.arange(6, dtype="<i4"), chunks=2, compressors=None)
    root.create_array("g/x", data=np.arange(1.0, 5), chunks=3, dimension_names=["t"], compressors=None)
    return root


KEYS: dict[Any, str] = {
    3: "zarr.json a/zarr.json a/c/0 a/c/1 a/c/2 g/zarr.json g/x/zarr.json g/x/c/0 g/x/c/1",
    2: ".zattrs .zgroup a/.zarray a/.zattrs a/0 a/1 a/2 "
    "g/.zattrs g/.zgroup g/x/.zarray g/x/.zattrs g/x/0 g/x/1",
    "3-draft": "zarr.json meta/group.json meta/a.array.json data/a/c0 data/a/c1 data/a/c2 "
    "meta/g/x.array.json data/g/x/c0 data/g/x/c1",
}
DOCUMENTS: dict[Any, dict[str, Any]] = {
    3: {"zarr.json": {"zarr_format": 3, "node_type": "group", "attributes": {"title": "root"}}},
    2: {
        ".zgroup": {"zarr_format": 2}, ".zattrs": {"title": "root"},
        "a/.zarray": {
            "zarr_format": 2, "shape": [6], "chunks": [2], "dtype": "<i4", "compressor": None,
            "fill_value": 0, "order": "C", "filters": None, "dimension_separator": ".",
        },
        "g/x/.zattrs": {"_ARRAY_DIMENSIONS": ["t"]},
    },
    "3-draft": {
        "zarr.json": {
            "zarr_format": "https://purl.org/zarr/spec/core/3.0",
            "metadata_encoding": {"type": "json", "metadata_key_suffix": ".json"}, "extensions": [],
        },
        "meta/group.json": {"attributes": {"title": "root"}},
        "meta/g/x.array.json": {
            "shape": [4], "dimension_names": ["t"], "data_type": "float64",
            "chunk_grid": {"type": "regular", "chunk_shape": [3], "separator": "/"},
            "chunk_memory_layout": "C", "codecs": [], "fill_value": 0.0, "extensions": [], "attributes": {},
        },
    },
}  # fmt: skip
SECOND_CHUNK = {3: "a/c/1", 2: "a/1", "3-draft": "data/a/c1"}


@formats
def test_what_is_stored(store: Store, zarr_format: Any) -> None:
    sample(store, zarr_format)
    assert set(store.list()) == set(KEYS[zarr_format].split())
    for key, wanted in DOCUMENTS[zarr_format].items():
        assert document(store, key) == wanted
    assert store.get(SECOND_CHUNK[zarr_format]) == np.array([2, 3], "<i4").tobytes()


@formats
def test_found_without_being_named(store: Store, zarr_format: Any) -> None:
    small(store, zarr_format=zarr_format)
    xzarr3.create_group(store, "g/h", zarr_format=zarr_format)
    for path, kind in (("", Group), ("g", Group), ("g/h", Group), ("g/a", Array), ("/g/a/", Array)):
        node = xzarr3.open(store, path)
        assert isinstance(node, kind)
        assert node.zarr_format == zarr_format
    array = xzarr3.open_array(store, "g/a", zarr_format=zarr_format)
    np.testing.assert_array_equal(array[...], VALUES)
    assert (array.dimension_names, dict(array.attrs)) == (("y", "x"), {"units": "K"})
    root = xzarr3.open_group(store)
    assert list(root) == ["g"]
    found = {path: type(node) for path, node in root.members(max_depth=None)}
    assert found == {"g": Group, "g/a": Array, "g/h": Group}
    assert ("g/a" in root, "g/nothing" in root) == (True, False)
    if isinstance(store, xzarr3.LocalStore):
        assert list(pickle.loads(pickle.dumps(root))["g"]) == ["a", "h"]
        assert same_bits(pickle.loads(pickle.dumps(array))[...], VALUES)
    nothing = ("nothing", "g/nothing", "g/h/nothing", "fo")
    refuses(lambda path: xzarr3.open(store, path), nothing, NodeNotFoundError)
    refused(NodeTypeError, None, lambda: xzarr3.open_group(store, "g/a"))
    for other in set(FORMATS) - {zarr_format}:
        with pytest.raises((NodeNotFoundError, MetadataError)) as caught:
            xzarr3.open(store, "g/a", zarr_format=other)
        assert str(other) in str(caught.value) or "zarr_format" in str(caught.value)


@formats
def test_the_root_and_scalars_are_arrays_too(store: Store, zarr_format: Any) -> None:
    xzarr3.create_array(store, data=np.float64(2.5), compressors=None, zarr_format=zarr_format)
    keys = {3: "zarr.json c", 2: ".zarray .zattrs 0", "3-draft": "zarr.json meta/array.json data/c"}
    assert set(store.list()) == set(keys[zarr_format].split())
    root = xzarr3.open(store)
    assert isinstance(root, Array)
    assert root[...] == 2.5


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("separator", ["/", "."])
@formats
def test_layouts(zarr_format: Any, order: Any, separator: str) -> None:
    values = np.arange(63, dtype=">f4" if zarr_format == 2 else "<f4").reshape(7, 9)
    encoding: Any = {"name": {3: "default", 2: "v2"}.get(zarr_format), "separator": separator}
    if zarr_format == "3-draft":
        encoding = DraftChunkKeyEncoding(separator=separator)
    options: dict[str, Any] = {"chunks": (3, 4), "order": order, "fill_value": np.nan}
    options |= {"zarr_format": zarr_format, "chunk_key_encoding": encoding}
    key = {3: f"a/c{separator}0{separator}1", 2: f"a/0{separator}1", "3-draft": f"data/a/c0{separator}1"}
    for compressor in (None, GzipCodec(1), BloscCodec("lz4", 5)):
        store, wanted = MemoryStore(), values.copy()
        array = xzarr3.create_array(store, "a", data=values, compressors=compressor, **options)
        assert array.dtype == "=f4"
        assert key[zarr_format] in set(store.list())
        if compressor is None:
            assert store.get(key[zarr_format]) == values[:3, 4:8].tobytes(order)
        array[2:5, 3:] = wanted[2:5, 3:] = -1
        found = xzarr3.open_array(store, "a")
        np.testing.assert_array_equal(found[...], wanted)
        assert found[::2, 8].tolist() == wanted[::2, 8].tolist()
        array.resize((4, 20))
        grown = np.full((4, 20), np.nan)
        grown[:, :9] = wanted[:4]
        np.testing.assert_array_equal(xzarr3.open_array(store, "a")[...], grown)
    names = {2: ("a/.zarray", "order"), "3-draft": ("meta/a.array.json", "chunk_memory_layout")}
    if zarr_format in names:
        assert document(store, names[zarr_format][0])[names[zarr_format][1]] == order


@pytest.mark.parametrize("wrong", [1, 4, "3", "2-draft", 2.5, True, [3]])
def test_no_such_format(wrong: Any) -> None:
    store = MemoryStore()
    refused(
        MetadataError, "zarr_format", lambda: xzarr3.create_group(store, zarr_format=wrong),
        lambda: small(store, zarr_format=wrong), lambda: xzarr3.open(store, zarr_format=wrong),
        lambda: xzarr3.open_group(store, mode="w", zarr_format=wrong),
    )  # fmt: skip
    assert list(store.list()) == []


@formats
def test_what_is_made_below_has_the_format_of_what_is_above(store: Store, zarr_format: Any) -> None:
    root = xzarr3.create_group(store, zarr_format=zarr_format)
    root.create_array("by_group", shape=3, dtype="i4")
    root.create_group("inner").create_array("b", shape=3, dtype="f4")
    xzarr3.create_array(store, "deep/by_function", shape=3, dtype="i4", zarr_format=None)
    xzarr3.open_group(store, "by_mode", mode="a")
    for path in ("by_group", "inner", "inner/b", "deep", "deep/by_function", "by_mode"):
        assert xzarr3.open(store, path).zarr_format == zarr_format
    before, others = contents(store), set(FORMATS) - {zarr_format}
    refuses(lambda other: small(store, "deep/other", zarr_format=other), others, MetadataError, "zarr_format")
    assert contents(store) == before


@pytest.mark.parametrize("old", FORMATS)
@pytest.mark.parametrize("new", FORMATS)
def test_one_format_replaces_another(store: Store, old: Any, new: Any) -> None:
    small(store, zarr_format=old)
    if old == 2:
        for key in (".nczarr", "g/a/.nczarray", "g/a/.nczattr", "g/.nczgroup", "g/.zmetadata"):
            store.set(key, b"{}")
    if (old, new) == ("3-draft", "3-draft"):
        # The root is implied by what is below it, so it can be given a document.
        assert "g" in xzarr3.create_group(store, zarr_format=new)
    before = contents(store)
    again, overwrite = partial(xzarr3.create_group, store, zarr_format=new), partial(small, zarr_format=old)
    refused(xzarr3.NodeExistsError, None, again, lambda: overwrite(store))
    refused(NodeTypeError, None, lambda: overwrite(store, "g/a/below"))
    assert contents(store) == before
    root = xzarr3.create_group(store, zarr_format=new, overwrite=True)
    assert (root.zarr_format, list(root)) == (new, [])
    small(store, zarr_format=new)
    assert xzarr3.open_array(store, "g/a")[1, 1] == 5.0
    clean = MemoryStore()
    small(clean, zarr_format=new)
    # The root group itself is explicit only where it was made by name.
    assert set(store.list()) - set(clean.list()) <= {"meta/group.json"}


@formats
def test_attributes_resize_append(store: Store, zarr_format: Any) -> None:
    array = small(store, zarr_format=zarr_format)
    before = contents(store)
    array.attrs.update(a=[1, 2], b={"c": None})
    changed = {key: json.loads(value) for key, value in contents(store).items() if value != before[key]}
    assert (len(changed), str(next(iter(changed.values()))).count("units")) == (1, 1)
    array.append(np.full((2, 4), 9.0))
    array.resize((4, 3))
    group = xzarr3.open_group(store, "g", mode="r+")
    group.attrs.update(title="t", n=[1, None])
    del group.attrs["n"]
    refused(MetadataError, None, lambda: group.attrs.update(bad=float("nan")))
    again = xzarr3.open_array(store, "g/a")
    assert dict(again.attrs) == {"units": "K", "a": [1, 2], "b": {"c": None}}
    assert again[...].tolist() == [[0, 1, 2], [4, 5, 6], [8, 9, 10], [9, 9, 9]]
    assert dict(xzarr3.open_group(store, "g").attrs) == {"title": "t"}
    assert again.dimension_names == ("y", "x")
    array.resize((1, 1))
    array.resize((4, 4))
    array.append(np.ones((1, 4)))
    assert np.count_nonzero(array[...]) == 4  # What was cut off does not come back.


def test_consolidated_metadata_of_version_2_follow(store: Store) -> None:
    sample(store, 2).create_array("gx", shape=2, dtype="u1")
    xzarr3.consolidate_metadata(store)
    root = xzarr3.open_group(store, mode="r+")
    assert root.consolidated
    assert sorted(path for path, _ in root.members(max_depth=None)) == ["a", "g", "g/x", "gx"]
    # What changes afterwards changes in the copies, too.
    root["g/x"].attrs["new"] = 1
    xzarr3.open_array(store, "a", mode="r+").resize(9)
    root.attrs["title"] = "new"
    root.create_array("h/i/y", shape=2, dtype="u1")
    root = xzarr3.open_group(store, use_consolidated=True)
    assert (root.attrs["title"], root["g/x"].attrs["new"], root["a"].shape) == ("new", 1, (9,))
    assert (root["g"]["x"][...].tolist(), list(root["h/i"])) == ([1, 2, 3, 4], ["y"])
    writable = xzarr3.open_group(store, mode="r+")
    del writable["g"]
    writable.create_array("a", shape=2, dtype="u1", overwrite=True)
    root = xzarr3.open_group(store, use_consolidated=True)
    assert sorted(path for path, _ in root.members(max_depth=None)) == ["a", "gx", "h", "h/i", "h/i/y"]
    assert root["a"].dtype == "u1"
    assert not any(key.startswith("g/") for key in store.list())
    held = document(store, ".zmetadata")
    assert (held["zarr_consolidated_format"], held["metadata"][".zattrs"]) == (1, {"title": "new"})
    every = "gx/.zarray gx/.zattrs h/.zgroup h/.zattrs h/i/.zgroup h/i/.zattrs h/i/y/.zarray h/i/y/.zattrs"
    assert held["metadata"].keys() == {*every.split(), ".zgroup", ".zattrs", "a/.zarray", "a/.zattrs"}


def test_copies_are_trusted_when_asked_and_the_draft_has_none(store: Store) -> None:
    sample(store, 2)
    xzarr3.consolidate_metadata(store)
    store.set("a/.zattrs", b'{"later": 1}')
    assert dict(xzarr3.open_group(store)["a"].attrs) == {}
    assert dict(xzarr3.open_group(store, use_consolidated=False)["a"].attrs) == {"later": 1}
    draft = MemoryStore()
    small(draft, zarr_format="3-draft")
    before = contents(draft)
    refused(MetadataError, "consolidated", lambda: xzarr3.consolidate_metadata(draft))
    assert contents(draft) == before


@pytest.mark.parametrize(("zarr_format", "key"), [(3, "zarr.json"), (2, ".zmetadata")])
def test_consolidated_metadata_that_are_not_valid(zarr_format: Any, key: str) -> None:
    store = MemoryStore()
    small(store, "a", zarr_format=zarr_format)
    xzarr3.consolidate_metadata(store)
    whole, deep = document(store, key), "/".join(["a"] * 40_000)
    if zarr_format == 3:
        whole["consolidated_metadata"]["metadata"][deep] = {"zarr_format": 3, "node_type": "group"}
    else:
        whole["metadata"][f"{deep}/.zgroup"] = {"zarr_format": 2}
    store.set(key, json.dumps(whole).encode())
    refused(MetadataError, "at most 256 names", lambda: xzarr3.open_group(store))
    refused(xzarr3.InvalidKeyError, "at most 256", lambda: xzarr3.open(store, "/".join(["a"] * 300)))
    whole["consolidated_metadata" if zarr_format == 3 else "metadata"] = 5
    store.set(key, json.dumps(whole).encode())
    refused(MetadataError, None, lambda: xzarr3.open_group(store))
    assert list(xzarr3.open_group(store, use_consolidated=False)) == ["a"]


SHARED: list[Any] = [{"shards": (4, 6)}, {"chunks": ((1, 3), (6,))}, {"chunk_key_encoding": "default"}]
UNSAYABLE: dict[Any, list[dict[str, Any]]] = {
    2: [
        *SHARED, {"dimension_names": ["y", None]},
        {"filters": [{"id": "delta", "dtype": "<i2", "astype": ">i2"}]},
    ],
    "3-draft": [*SHARED, {"compressors": "zstd"}, {"dtype": "U3"}],
}  # fmt: skip


def test_what_a_format_cannot_say_is_refused_before_anything_is_written(store: Store) -> None:
    for zarr_format, options in ((name, each) for name, every in UNSAYABLE.items() for each in every):
        given: dict[str, Any] = {"shape": (4, 6), "dtype": "<i2", "chunks": (2, 3), **options}
        with pytest.raises(MetadataError) as caught:
            xzarr3.create_array(store, "a", zarr_format=zarr_format, **given)
        assert caught.value.path == "a"
        assert caught.value.accepted
        assert list(store.list()) == []


@pytest.mark.parametrize("options", [
    {"attributes": True}, {"attributes": "a"}, {"attributes": [1]}, {"chunk_key_encoding": True},
    {"dimension_names": True}, {"dimension_names": 5}, {"storage_transformers": [1]},
    {"storage_transformers": [b"x"]}, {"order": np.array([2, 2])}, {"order": None}, {"order": "A"},
    {"compressors": np.array(2)}, {"filters": np.array(2)}, {"serializer": 5}, {"chunks": "x"},
    {"chunks": Thing()}, {"shards": "x"}, {"fill_value": "x"}, {"dtype": "no"}, {"shape": "x"},
    {"data": [[1], [1, 2]]},
], ids=str)  # fmt: skip
def test_arguments_of_wrong_types(options: dict[str, Any]) -> None:
    for zarr_format in FORMATS:
        store = MemoryStore()
        given = {"data": np.arange(4), "zarr_format": zarr_format, **options}
        refused(xzarr3.Xzarr3Error, None, partial(xzarr3.create_array, store, "a", **given))
        assert list(store.list()) == []


@pytest.mark.parametrize("name", ["meta", "data", "meta/data"])
def test_draft_nodes_named_like_its_keys(store: Store, name: str) -> None:
    """Keys that begin with "meta/" hold documents of all nodes, and not what is below a group "meta"."""
    small(store, "keep/a", zarr_format="3-draft")
    xzarr3.create_group(store, name, overwrite=True)
    small(store, f"{name}/b")
    xzarr3.create_group(store, name, overwrite=True)
    assert list(xzarr3.open_group(store, name)) == []
    del xzarr3.open_group(store, mode="r+")[name]
    assert xzarr3.open_array(store, "keep/a")[2, 3] == 11.0


def test_nodes_of_several_formats_in_one_store() -> None:
    store = MemoryStore()
    xzarr3.create_group(store, zarr_format=2, attributes={"version": 2})
    store.set("zarr.json", b'{"zarr_format": 3, "node_type": "group", "attributes": {"version": 3}}')
    assert xzarr3.open(store).attrs["version"] == 3  # Which comes before version 2.
    assert xzarr3.open(store, zarr_format=2).attrs["version"] == 2
    # A node is erased in the format in which it was found.
    store, draft = MemoryStore(), MemoryStore()
    small(store, "a", zarr_format=2)
    small(draft, "a", zarr_format="3-draft")
    for key, value in contents(draft).items():
        store.set(key, value)
    root = xzarr3.open_group(store, mode="r+")
    assert root.zarr_format == 2
    del root["a"]
    assert list(root) == []
    assert xzarr3.open_array(store, "a", zarr_format="3-draft")[2, 3] == 11.0
    store.set("zarr.json", b"{broken")  # A root that cannot be read can be replaced.
    refused(MetadataError, None, lambda: xzarr3.open(store))
    assert list(xzarr3.create_group(store, overwrite=True)) == []
    assert xzarr3.open_group(store).zarr_format == 3


def test_filters_of_version_2(store: Store) -> None:
    data = np.arange(20, dtype=">i4").reshape(4, 5)
    filters, last = [numcodecs.Delta(">i4"), numcodecs.Shuffle(4)], numcodecs.Zlib(1)
    xzarr3.create_array(store, "a", data=data, zarr_format=2, filters=filters, compressors=last, chunks=3)
    found = document(store, "a/.zarray")
    assert [each["id"] for each in found["filters"]] == ["delta", "shuffle"]
    assert (found["compressor"], found["dtype"]) == ({"id": "zlib", "level": 1}, ">i4")
    np.testing.assert_array_equal(xzarr3.open_array(store, "a")[...], data)
    for zarr_format, given, match in ((2, filters[::-1], "filters"), (3, filters, "cannot be used here")):
        make = partial(xzarr3.create_array, data=data, zarr_format=zarr_format, filters=given)
        refuses(make, [MemoryStore()], MetadataError, match)


@pytest.mark.filterwarnings("error")
def test_copies_to_version_3_and_back(tmp_path: Path) -> None:
    values = np.arange(63, dtype=">i4").reshape(7, 9)
    xzarr3.create_array(
        tmp_path / "a", data=values, chunks=(3, 4), zarr_format=2, order="F", dimension_names=["y", "x"],
        compressors={"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": -1}, attributes={"n": 1},
    )  # fmt: skip
    path = tmp_path / "a/.zarray"
    path.write_text(path.read_text().replace('"shuffle": 1', '"shuffle": -1'))  # Chosen by the writer.
    copied: Any = xzarr3.copy(tmp_path / "a", tmp_path / "b", zarr_format=3)
    found = json.loads((tmp_path / "b/zarr.json").read_text())
    assert [codec["name"] for codec in found["codecs"]] == ["transpose", "bytes", "blosc"]
    assert found["codecs"][1]["configuration"] == {"endian": "big"}
    assert found["codecs"][2]["configuration"]["typesize"] == 4
    back: Any = xzarr3.copy(tmp_path / "b", tmp_path / "c", zarr_format=2)
    assert copied[...].tolist() == back[...].tolist() == values.tolist()
    assert (tmp_path / "c/2.1").read_bytes() == (tmp_path / "a/2.1").read_bytes()
    xzarr3.copy(tmp_path / "a", tmp_path / "d", zarr_format=2)
    assert json.loads((tmp_path / "d/.zarray").read_text()) == json.loads(path.read_text())


def test_arrays_alike_keep_their_own_attributes_and_documents() -> None:
    store = MemoryStore()
    for name in "ab":
        xzarr3.create_array(store, name, shape=(4, 4), chunks=2, dtype="f4", attributes={"name": name})
    odd = {**document(store, "a/zarr.json"), "later": {"must_understand": False}, "attributes": {"name": "c"}}
    store.set("c/zarr.json", json.dumps(odd).encode())
    a, b, c = (xzarr3.open_array(store, name) for name in "abc")
    assert [dict(each.attrs) for each in (a, b, c)] == [{"name": name} for name in "abc"]
    assert a.metadata.codecs is b.metadata.codecs
    xzarr3.open_array(store, "c", mode="r+").attrs["units"] = "K"
    assert document(store, "c/zarr.json") == {**odd, "attributes": {"name": "c", "units": "K"}}
    assert [dict(xzarr3.open_array(store, name).attrs) for name in "ab"] == [{"name": "a"}, {"name": "b"}]
    # A document says nothing of one alike that is not valid.
    for attributes in ([], None, "x"):
        wrong = {**document(store, "a/zarr.json"), "attributes": attributes}
        store.set("b/zarr.json", json.dumps(wrong).encode())
        refuses(partial(xzarr3.open_array, store), ["b"], MetadataError, "attributes")


def test_an_extension_registered_later_is_used_by_documents_read_before() -> None:
    def encoding() -> type[xzarr3.ChunkKeyEncoding]:
        @xzarr3.register_chunk_key_encoding
        @dataclass(frozen=True)
        class Replaced(xzarr3.ChunkKeyEncoding):
            name: str = "example.replaced"

        return Replaced

    store, cls = MemoryStore(), encoding()
    try:
        xzarr3.create_array(store, "a", shape=4, dtype="f4", chunk_key_encoding=cls())
        for _ in range(3):
            assert type(xzarr3.open_array(store, "a").metadata.chunk_key_encoding) is cls
            cls = encoding()
    finally:
        del chunk_keys._known["example.replaced"]
