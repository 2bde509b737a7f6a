"""Which format is found where, and that formats do not get into each other's way."""

from __future__ import annotations

import datetime
import json
from typing import Any

import numpy as np
import pytest
from _things import Thing

import xzarr3
from xzarr3 import MemoryStore, MetadataError, NodeExistsError, NodeNotFoundError, Store

FORMATS = (3, 2, "3-draft")
formats = pytest.mark.parametrize("zarr_format", FORMATS)


def _small(store: Store, path: str = "g/a", **options: Any) -> xzarr3.Array:
    return xzarr3.create_array(
        store,
        path,
        data=np.arange(12.0).reshape(3, 4),
        chunks=(2, 2),
        dimension_names=("y", "x"),
        attributes={"units": "K"},
        **options,
    )


@formats
def test_found_without_being_named(store: Store, zarr_format: Any) -> None:
    _small(store, zarr_format=zarr_format)
    for path, kind in (("", xzarr3.Group), ("g", xzarr3.Group), ("g/a", xzarr3.Array)):
        node = xzarr3.open(store, path)
        assert isinstance(node, kind)
        assert node.zarr_format == zarr_format
    array = xzarr3.open_array(store, "g/a", zarr_format=zarr_format)
    np.testing.assert_array_equal(array[...], np.arange(12.0).reshape(3, 4))
    assert array.dimension_names == ("y", "x")
    assert dict(array.attrs) == {"units": "K"}
    assert list(xzarr3.open_group(store)) == ["g"]
    assert [path for path, _ in xzarr3.open_group(store).members(max_depth=None)] == ["g", "g/a"]


@formats
def test_another_format_is_not_found(store: Store, zarr_format: Any) -> None:
    _small(store, zarr_format=zarr_format)
    for other in set(FORMATS) - {zarr_format}:
        with pytest.raises((NodeNotFoundError, MetadataError)) as caught:
            xzarr3.open(store, "g/a", zarr_format=other)
        assert str(other) in str(caught.value) or "zarr_format" in str(caught.value)


@pytest.mark.parametrize("wrong", [1, 4, "3", "2-draft", 2.5, True, [3]])
def test_no_such_format(wrong: Any) -> None:
    store = MemoryStore()
    for call in (
        lambda: xzarr3.create_group(store, zarr_format=wrong),
        lambda: _small(store, zarr_format=wrong),
        lambda: xzarr3.open(store, zarr_format=wrong),
        lambda: xzarr3.open_group(store, mode="w", zarr_format=wrong),
    ):
        with pytest.raises(MetadataError, match="zarr_format"):
            call()
    assert list(store.list()) == []


@formats
def test_what_is_made_below_has_the_format_of_what_is_above(store: Store, zarr_format: Any) -> None:
    root = xzarr3.create_group(store, zarr_format=zarr_format)
    root.create_array("by_group", shape=3, dtype="i4")
    xzarr3.create_array(store, "deep/by_function", shape=3, dtype="i4")
    xzarr3.open_group(store, "by_mode", mode="a")
    for path in ("by_group", "deep", "deep/by_function", "by_mode"):
        assert xzarr3.open(store, path).zarr_format == zarr_format
    for other in set(FORMATS) - {zarr_format}:
        before = {key: bytes(store.get(key)) for key in store.list()}
        with pytest.raises(MetadataError, match="zarr_format"):
            _small(store, "deep/other", zarr_format=other)
        assert {key: bytes(store.get(key)) for key in store.list()} == before


@pytest.mark.parametrize("old", FORMATS)
@pytest.mark.parametrize("new", FORMATS)
def test_one_format_replaces_another(store: Store, old: Any, new: Any) -> None:
    _small(store, zarr_format=old)
    if (old, new) == ("3-draft", "3-draft"):
        # The root is implied by what is below it, so it can be given a document.
        assert "g" in xzarr3.create_group(store, zarr_format=new)
    with pytest.raises(NodeExistsError):
        xzarr3.create_group(store, zarr_format=new)
    root = xzarr3.create_group(store, zarr_format=new, overwrite=True)
    assert root.zarr_format == new
    assert list(root) == []
    _small(store, zarr_format=new)
    assert xzarr3.open_array(store, "g/a")[1, 1] == 5.0
    clean = MemoryStore()
    _small(clean, zarr_format=new)
    # The root group itself is explicit only where it was made by name.
    extra = set(store.list()) - set(clean.list())
    assert extra <= {"meta/group.json"}


def test_version_3_comes_before_version_2() -> None:
    store = MemoryStore()
    xzarr3.create_group(store, zarr_format=2, attributes={"version": 2})
    store.set("zarr.json", b'{"zarr_format": 3, "node_type": "group", "attributes": {"version": 3}}')
    assert xzarr3.open(store).attrs["version"] == 3
    assert xzarr3.open(store, zarr_format=2).attrs["version"] == 2


@formats
def test_erasing_keeps_what_is_not_its_own(store: Store, zarr_format: Any) -> None:
    _small(store, zarr_format=zarr_format)
    chunk = next(key for key in store.list() if key.endswith(("c/0/0", "c0/0", "a/0.0")))
    foreign = f"{chunk.rpartition('a/')[0]}a/notes.txt"
    store.set(foreign, b"mine")
    del xzarr3.open_group(store, mode="r+")["g"]
    assert [key for key in store.list() if "a" in key.split("/")] == [foreign]
    assert store.get(foreign) == b"mine"


@formats
def test_attributes_resize_append(store: Store, zarr_format: Any) -> None:
    array = _small(store, zarr_format=zarr_format)
    array.attrs.update(a=[1, 2], b={"c": None})
    array.append(np.full((2, 4), 9.0))
    array.resize((4, 3))
    group = xzarr3.open_group(store, "g", mode="r+")
    group.attrs["title"] = "t"
    again = xzarr3.open_array(store, "g/a")
    assert dict(again.attrs) == {"units": "K", "a": [1, 2], "b": {"c": None}}
    assert again[...].tolist() == [[0, 1, 2], [4, 5, 6], [8, 9, 10], [9, 9, 9]]
    assert xzarr3.open_group(store, "g").attrs["title"] == "t"
    assert again.dimension_names == ("y", "x")


@pytest.mark.parametrize("zarr_format", [3, 2])
def test_consolidated(store: Store, zarr_format: Any) -> None:
    _small(store, zarr_format=zarr_format)
    _small(store, "g/h/b", zarr_format=zarr_format)
    xzarr3.consolidate_metadata(store)
    root = xzarr3.open_group(store, use_consolidated=True)
    assert root.consolidated
    assert [path for path, _ in root.members(max_depth=None)] == ["g", "g/a", "g/h", "g/h/b"]
    assert root["g"]["h/b"][2, 3] == 11.0
    # What changes afterwards changes in the copies, too.
    writable = xzarr3.open_group(store, mode="r+")
    writable["g/a"].attrs["new"] = 1
    writable["g"].attrs["title"] = "t"
    writable.attrs["root"] = 2
    del writable["g/h"]
    root = xzarr3.open_group(store, use_consolidated=True)
    assert root["g/a"].attrs["new"] == 1
    assert root["g"].attrs["title"] == "t"
    assert [path for path, _ in root.members(max_depth=None)] == ["g", "g/a"]
    if zarr_format == 2:
        held = json.loads(bytes(store.get(".zmetadata")))
        assert held["zarr_consolidated_format"] == 1
        assert held["metadata"][".zattrs"] == {"root": 2}
        assert sorted(held["metadata"]) == [
            ".zattrs", ".zgroup", "g/.zattrs", "g/.zgroup", "g/a/.zarray", "g/a/.zattrs",
        ]  # fmt: skip


def test_the_draft_has_no_consolidated_metadata(store: Store) -> None:
    _small(store, zarr_format="3-draft")
    before = set(store.list())
    with pytest.raises(MetadataError, match="consolidated"):
        xzarr3.consolidate_metadata(store)
    assert set(store.list()) == before


@formats
def test_description(store: Store, zarr_format: Any) -> None:
    array = xzarr3.create_array(
        store, "a", shape=(9, 9), chunks=4, dtype="i2", compressors=None, zarr_format=zarr_format
    )
    array[0, 0] = array[8, 8] = 1
    assert f"format      {zarr_format}\n" in array.info
    assert array.info_complete() == f"{array.info}\nstored      64 bytes in 2 stored units"


@formats
def test_dask_reads_and_writes(store: Store, zarr_format: Any) -> None:
    da = pytest.importorskip("dask.array")
    array = _small(store, zarr_format=zarr_format)
    lazy = xzarr3.from_zarr(store, "g/a")
    np.testing.assert_array_equal((lazy + 1).compute(scheduler="sync"), array[...] + 1)
    xzarr3.store(da.full((3, 4), 3.0, chunks=2), array)
    assert array[...].tolist() == [[3.0] * 4] * 3


@pytest.mark.parametrize("zarr_format", [3, 2])
def test_consolidated_metadata_that_are_not_wanted_need_not_be_valid(zarr_format: Any) -> None:
    store = MemoryStore()
    _small(store, "a", zarr_format=zarr_format)
    key = {3: "zarr.json", 2: ".zmetadata"}[zarr_format]
    document = json.loads(bytes(store.get(key) or b"{}"))
    store.set(key, json.dumps({**document, "consolidated_metadata": 5, "metadata": 5}).encode())
    if zarr_format == 3:
        document.pop("metadata", None)
        store.set(key, json.dumps({**document, "consolidated_metadata": 5}).encode())
    with pytest.raises(MetadataError):
        xzarr3.open_group(store)
    assert list(xzarr3.open_group(store, use_consolidated=False)) == ["a"]


def test_filters_of_version_2(store: Store) -> None:
    numcodecs = pytest.importorskip("numcodecs")
    data = np.arange(20, dtype=">i4").reshape(4, 5)
    filters = [numcodecs.Delta(">i4"), numcodecs.Shuffle(4)]
    array = xzarr3.create_array(
        store, "a", data=data, zarr_format=2, filters=filters, compressors=numcodecs.Zlib(1), chunks=3
    )
    document = json.loads(bytes(store.get("a/.zarray")))
    assert [each["id"] for each in document["filters"]] == ["delta", "shuffle"]
    assert document["compressor"] == {"id": "zlib", "level": 1}
    assert document["dtype"] == ">i4"
    np.testing.assert_array_equal(xzarr3.open_array(store, "a")[...], data)
    with pytest.raises(MetadataError, match="filters"):
        xzarr3.create_array(store, "b", data=data, zarr_format=2, filters=filters[::-1])
    with pytest.raises(MetadataError, match="cannot be used here"):
        xzarr3.create_array(MemoryStore(), "b", data=data, filters=filters)
    assert array.dtype == np.dtype("i4")


def test_struct_of_several_byte_orders(store: Store) -> None:
    data = np.array([(1, 2.5), (3, 4.5)], dtype=[("a", "<i2"), ("b", ">f8")])
    xzarr3.create_array(store, "a", data=data, zarr_format=2, compressors=None)
    assert json.loads(bytes(store.get("a/.zarray")))["dtype"] == [["a", "<i2"], ["b", ">f8"]]
    assert bytes(store.get("a/0")) == data.tobytes()
    assert xzarr3.open_array(store, "a")[...].tolist() == data.tolist()


@pytest.mark.parametrize("name", ["meta", "data", "meta/data"])
def test_draft_nodes_named_like_its_keys(store: Store, name: str) -> None:
    """Keys that begin with "meta/" hold documents of all nodes, and not what is below a group "meta"."""
    _small(store, "keep/a", zarr_format="3-draft")
    xzarr3.create_group(store, name, overwrite=True)
    _small(store, f"{name}/b")
    xzarr3.create_group(store, name, overwrite=True)
    assert list(xzarr3.open_group(store, name)) == []
    del xzarr3.open_group(store, mode="r+")[name]
    assert xzarr3.open_array(store, "keep/a")[2, 3] == 11.0


@pytest.mark.parametrize(
    "options",
    [
        {"attributes": True}, {"attributes": "a"}, {"attributes": [1]}, {"chunk_key_encoding": True},
        {"dimension_names": True}, {"dimension_names": 5}, {"storage_transformers": [1]},
        {"storage_transformers": [b"x"]}, {"order": np.array([2, 2])}, {"order": None}, {"order": "A"},
        {"compressors": np.array(2)}, {"filters": np.array(2)}, {"serializer": 5}, {"chunks": "x"},
        {"chunks": Thing()}, {"shards": "x"}, {"fill_value": "x"}, {"dtype": "no"}, {"shape": "x"},
        {"data": [[1], [1, 2]]},
    ],
    ids=str,
)  # fmt: skip
@formats
def test_arguments_of_wrong_types(zarr_format: Any, options: dict[str, Any]) -> None:
    store = MemoryStore()
    with pytest.raises(xzarr3.Xzarr3Error):
        xzarr3.create_array(store, "a", **{"data": np.arange(4), "zarr_format": zarr_format, **options})
    assert list(store.list()) == []


@pytest.mark.parametrize("zarr_format", [3, 2])
def test_very_deep_paths_in_consolidated_metadata(zarr_format: Any) -> None:
    store = MemoryStore()
    _small(store, "a", zarr_format=zarr_format)
    xzarr3.consolidate_metadata(store)
    key = {3: "zarr.json", 2: ".zmetadata"}[zarr_format]
    document = json.loads(bytes(store.get(key)))
    held = document["consolidated_metadata"]["metadata"] if zarr_format == 3 else document["metadata"]
    group = {3: {"zarr_format": 3, "node_type": "group"}, 2: {"zarr_format": 2}}[zarr_format]
    held["/".join(["a"] * 40_000) + ("/.zgroup" if zarr_format == 2 else "")] = group
    store.set(key, json.dumps(document).encode())
    with pytest.raises(MetadataError, match="at most 256 names"):
        xzarr3.open_group(store)
    with pytest.raises(xzarr3.InvalidKeyError, match="at most 256"):
        xzarr3.open(store, "/".join(["a"] * 300))


def test_a_node_is_erased_in_the_format_in_which_it_was_found() -> None:
    store, draft = MemoryStore(), MemoryStore()
    _small(store, "a", zarr_format=2)
    _small(draft, "a", zarr_format="3-draft")
    for key in draft.list():
        store.set(key, bytes(draft.get(key)))
    root = xzarr3.open_group(store, mode="r+")
    assert root.zarr_format == 2
    del root["a"]
    assert list(root) == []
    assert xzarr3.open_array(store, "a", zarr_format="3-draft")[2, 3] == 11.0


def test_data_in_lists_become_what_the_data_type_says(store: Store) -> None:
    def made(name: str, data: Any, dtype: Any) -> Any:
        return xzarr3.create_array(store, name, data=data, dtype=dtype)[...].tolist()

    assert made("b", [b"\0\1\0", b""], "bytes") == [b"\0\1\0", b""]
    assert made("s", ["a\0", "ø"], "string") == ["a\0", "ø"]
    assert made("r", [(1, 2.5), (3, 4.5)], [("a", "i4"), ("b", "f8")]) == [(1, 2.5), (3, 4.5)]
    assert made("t", [datetime.date(2020, 1, 1)], "M8[s]") == [datetime.datetime(2020, 1, 1)]
    with pytest.raises(xzarr3.DataTypeValidationError, match="'/x'"):
        xzarr3.create_array(store, "x", data=[1.5], dtype="i4")
    assert "x" not in xzarr3.open_group(store)


def test_a_root_that_cannot_be_read_can_be_replaced(store: Store) -> None:
    store.set("zarr.json", b"{broken")
    with pytest.raises(MetadataError):
        xzarr3.open(store)
    assert list(xzarr3.create_group(store, overwrite=True)) == []
    assert xzarr3.open_group(store).zarr_format == 3
