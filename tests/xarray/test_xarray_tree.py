"""``xzarr3.to_zarr`` of trees of datasets, and the accessor: beside ``DataTree.to_zarr`` of xarray."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import xarray as xr
from _engines import QUIET, NotingStore, contents
from _slow import slow, slow_but
from _xarray_datasets import TREES, inheriting_tree, large_tree, mixed_tree

import xzarr3
from xzarr3.xarray.backend import Xzarr3BackendEntrypoint

zarr = pytest.importorskip("zarr")

pytestmark = [pytest.mark.filterwarnings(each) for each in (*QUIET, "ignore:what was written to:UserWarning")]

SMALL = ("mixed_tree", "inheriting_tree")  # Of which xarray's own engine takes less than seconds.


def ours(store: Any, **options: Any) -> xr.DataTree:
    return xr.open_datatree(store, engine=Xzarr3BackendEntrypoint, **options).load()


def theirs(store: Any, **options: Any) -> xr.DataTree:
    return xr.open_datatree(store, engine="zarr", **options).load()


class ReadingStore(NotingStore):
    """Notes the keys that are read as well."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []

    def get(self, key: str, byte_range: Any = None) -> Any:
        self.reads.append(key)
        return super().get(key, byte_range)


def tree(offset: int = 0) -> xr.DataTree:
    """Three groups, the lowest of which has what it inherits."""
    return xr.DataTree.from_dict(
        {
            "/": xr.Dataset(attrs={"n": offset}, coords={"x": [1, 2, 3]}),
            "/a": xr.Dataset({"v": ("x", np.arange(3) + offset)}, attrs={"n": offset}),
            "/a/b": xr.Dataset({"w": (("x", "y"), np.arange(6.0).reshape(3, 2) + offset)}),
        }
    )


# What is written


@pytest.mark.parametrize(("zarr_format", "chunked"), [(3, False), slow(2, True)])
@pytest.mark.parametrize("name", slow_but(SMALL, "mixed_tree"))
def test_the_same_as_xarray_writes(tmp_path: Path, name: str, zarr_format: Any, chunked: bool) -> None:
    data = TREES[name]()
    if chunked:
        data = data.chunk()
    group = xzarr3.to_zarr(data, tmp_path / "ours", zarr_format=zarr_format)
    data.to_zarr(tmp_path / "theirs", zarr_format=zarr_format)
    expected = theirs(tmp_path / "theirs")
    for options in ({}, {"consolidated": False}):
        for read in (ours, theirs):
            xr.testing.assert_identical(read(tmp_path / "ours", **options), expected)
    assert group.zarr_format == zarr_format
    assert group.consolidated
    held = set(zarr.open_group(tmp_path / "ours").metadata.consolidated_metadata.flattened_metadata)
    there = zarr.open_group(tmp_path / "theirs").metadata.consolidated_metadata.flattened_metadata
    assert held == set(there)


def test_inherited_coordinates_are_written_where_they_belong(tmp_path: Path) -> None:
    for inherited in (False, True):
        path = tmp_path / str(inherited)
        xzarr3.to_zarr(inheriting_tree(), path / "ours", write_inherited_coords=inherited)
        inheriting_tree().to_zarr(path / "theirs", write_inherited_coords=inherited)
        for group in ("/", "/a", "/a/b", "/c"):
            found, expected = (xzarr3.open_group(path / who, group) for who in ("ours", "theirs"))
            assert {n for n, _ in found.arrays()} == {n for n, _ in expected.arrays()}
        xr.testing.assert_identical(ours(path / "ours"), theirs(path / "theirs"))
        xr.testing.assert_identical(ours(path / "ours"), inheriting_tree())
    assert not (tmp_path / "False/ours/a/x").exists()
    assert (tmp_path / "True/ours/a/b/x").exists()


def test_a_part_of_a_tree(tmp_path: Path) -> None:
    part: Any = inheriting_tree()["/a"]
    xzarr3.to_zarr(part, tmp_path / "ours", encoding={"/a/b": {"w": {"dtype": "int16"}}})
    part.to_zarr(tmp_path / "theirs", encoding={"/a/b": {"w": {"dtype": "int16"}}})
    xr.testing.assert_identical(ours(tmp_path / "ours"), theirs(tmp_path / "theirs"))
    assert xzarr3.open_array(tmp_path / "ours", "b/w").dtype == np.int16
    assert "x" in xzarr3.open_group(tmp_path / "ours")  # It is inherited no more.


def test_encoding_by_path(tmp_path: Path) -> None:
    encoding: dict[str, Any] = {
        "/a": {"v": {"dtype": "float32", "_FillValue": -1.0}},
        "/a/b": {"w": {"chunks": (3, 1)}},
    }
    xzarr3.to_zarr(tree(), tmp_path / "a", encoding=encoding)
    tree().to_zarr(tmp_path / "b", encoding=encoding)
    for path in ("a/v", "a/b/w"):
        found, expected = (json.loads((tmp_path / who / path / "zarr.json").read_text()) for who in "ab")
        for key in ("data_type", "chunk_grid", "attributes", "dimension_names"):
            assert found[key] == expected[key]
    unknown: Any = {"/nowhere": {"v": {}}, "/a": {}}
    for write in (xzarr3.to_zarr, xr.DataTree.to_zarr):
        with pytest.raises(ValueError, match=r"unexpected encoding group name\(s\) provided: {'/nowhere'}"):
            write(tree(), tmp_path / "c", encoding=unknown)  # type: ignore[operator]
    with pytest.raises(KeyError, match="which is not a variable") as caught:
        xzarr3.to_zarr(tree(), tmp_path / "c", encoding={"/a": {"nothing": {}}})
    assert "raised for the group '/a'" in caught.value.__notes__
    assert not (tmp_path / "c").exists()


def test_below_a_group(tmp_path: Path) -> None:
    xzarr3.to_zarr(xr.Dataset({"top": ("z", [1])}), tmp_path)
    group = xzarr3.to_zarr(tree(), tmp_path, group="deep/er")
    assert group.path == "deep/er"
    xr.testing.assert_identical(ours(tmp_path, group="deep/er"), tree())
    everything = theirs(tmp_path)
    assert everything.groups == ("/", "/deep", "/deep/er", "/deep/er/a", "/deep/er/a/b")
    xr.testing.assert_identical(everything, theirs(tmp_path, consolidated=False))
    assert everything["top"].item() == 1


def test_only_the_root(tmp_path: Path) -> None:
    for number, data in enumerate((xr.DataTree(), xr.DataTree(xr.Dataset({"a": ("x", [1])}), name="named"))):
        xzarr3.to_zarr(data, tmp_path / str(number))
        data.to_zarr(tmp_path / f"theirs-{number}")
        xr.testing.assert_identical(ours(tmp_path / str(number)), theirs(tmp_path / f"theirs-{number}"))


@pytest.mark.slow
@pytest.mark.parametrize("zarr_format", [3, 2, "3-draft"])
def test_a_large_tree_computed_later(tmp_path: Path, zarr_format: Any) -> None:
    data = large_tree()
    assert len(data.groups) == 21
    later = xzarr3.to_zarr(data.chunk(), tmp_path, compute=False, zarr_format=zarr_format)
    assert xzarr3.open_group(tmp_path).zarr_format == zarr_format
    dask.compute(later)
    xr.testing.assert_identical(ours(tmp_path), data)
    if zarr_format != "3-draft":
        xr.testing.assert_identical(theirs(tmp_path), data)


def test_all_nodes_are_computed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    get = dask.threaded.get

    def counting(*args: Any, **options: Any) -> Any:
        calls.append(args)
        return get(*args, **options)

    source = np.arange(6.0)
    shared = xr.DataArray(dask.array.from_array(source, chunks=3), dims="x")
    data = xr.DataTree.from_dict({f"/g{n}": xr.Dataset({"v": shared + n}) for n in range(4)})
    with dask.config.set(scheduler=counting):
        xzarr3.to_zarr(data, tmp_path)
    assert len(calls) == 1
    xr.testing.assert_identical(ours(tmp_path), data.compute())


# In which order, and when something fails


def test_data_come_first_and_the_root_last() -> None:
    store = ReadingStore()
    xzarr3.to_zarr(tree().chunk(), store)
    own = [key for key in store.changes if not key.startswith(".xzarr3-")]
    documents = [at for at, key in enumerate(own) if key.endswith("zarr.json")]
    assert documents == list(range(len(own) - len(documents), len(own)))
    assert own[-1] == "zarr.json"
    assert own.count("zarr.json") == 1  # With what it consolidates.
    assert len(documents) == 3 + 3


def test_nothing_is_written_if_one_node_cannot_be(tmp_path: Path) -> None:
    data = tree()
    data["/a/b"].attrs["bad"] = object()
    for mode in ("w", "w-", "a"):
        with pytest.raises(xzarr3.MetadataError, match="bad") as caught:
            xzarr3.to_zarr(data, tmp_path / "a", mode=mode)
        assert "raised for the group '/a/b'" in caught.value.__notes__
    assert not (tmp_path / "a").exists()
    xzarr3.to_zarr(tree(), tmp_path / "a")
    for mode in ("w", "a"):
        with pytest.raises(xzarr3.MetadataError, match="bad"):
            xzarr3.to_zarr(data, tmp_path / "a", mode=mode)
    xr.testing.assert_identical(ours(tmp_path / "a"), tree())


def test_groups_of_a_tree_that_is_there_change_one_after_the_other() -> None:
    class FullStore(xzarr3.MemoryStore):
        def put(self, key: str, pieces: Any) -> None:
            if key.endswith("d/w/c/0"):
                raise xzarr3.StoreError(f"disk is full at '{key}'")
            super().put(key, pieces)

    store = FullStore()
    xzarr3.to_zarr(tree(), store)
    added = {"/c": xr.Dataset({"v": ("x", [1, 2, 3])}), "/d": xr.Dataset({"w": ("x", [4, 5, 6])})}
    with pytest.raises(xzarr3.StoreError, match="disk is full"):
        xzarr3.to_zarr(xr.DataTree.from_dict({"/": xr.Dataset(attrs={"n": 0}), **added}), store, mode="a")
    found = ours(store, consolidated=False)
    assert {*found.groups} == {*tree().groups, "/c"}
    assert (found.attrs, found["c/v"].values.tolist()) == ({"n": 0}, [1, 2, 3])
    assert not [key for key in contents(store) if key.startswith("d")]


@pytest.mark.parametrize("mode", ["a", "r+"])
def test_a_group_is_computed_from_what_another_group_of_the_call_is_set_to(mode: str) -> None:
    store = xzarr3.MemoryStore()
    first = {"/a": xr.Dataset({"v": ("x", [1.0, 2.0])}), "/b": xr.Dataset({"w": ("x", [0.0, 0.0])})}
    xzarr3.to_zarr(xr.DataTree.from_dict(first), store)
    old = xzarr3.open_dataset(store, "a")["v"]
    new = {
        "/a": xr.Dataset({"v": ("x", dask.array.full(2, 7.0, chunks=1))}),
        "/b": xr.Dataset({"w": old * 10}),
    }
    xzarr3.to_zarr(xr.DataTree.from_dict(new), store, mode=mode)
    found = ours(store)
    assert (found["a/v"].values.tolist(), found["b/w"].values.tolist()) == ([7, 7], [10, 20])


@pytest.mark.slow
@pytest.mark.parametrize("group", [None, "below"])
def test_any_failing_change_leaves_the_old_tree_or_the_new_one(group: str | None) -> None:
    count = NotingStore()
    xzarr3.to_zarr(tree(), count, group=group)
    before = len(count.changes)
    xzarr3.to_zarr(tree(5), count, mode="w", group=group)
    outcomes = set()
    for n in range(before, len(count.changes) + 1):
        store = NotingStore()
        xzarr3.to_zarr(tree(), store, group=group)
        store.once, store.fail_at = True, n
        try:
            xzarr3.to_zarr(tree(5), store, mode="w", group=group)
        except xzarr3.StoreError:
            assert store.fail_at is None
        try:
            found = ours(store, group=group, consolidated=False)
        except xzarr3.IncompleteWriteError:
            xzarr3.recover(store)
            found = ours(store, group=group, consolidated=False)
        new = int(found["a/v"][0]) == 5
        outcomes.add(new)
        xr.testing.assert_identical(found, tree(5 if new else 0))
    assert outcomes == {False, True}


@pytest.mark.parametrize("there", [False, True])
def test_a_block_that_fails_leaves_what_was_there(tmp_path: Path, there: bool) -> None:
    def fail(block: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        raise ZeroDivisionError

    if there:
        xzarr3.to_zarr(tree(), tmp_path)
    before = contents(tmp_path)
    data = tree().chunk()
    values = dask.array.ones(3, chunks=1).map_blocks(fail, dtype=float, meta=np.empty(0))
    data["/new"] = xr.DataTree(xr.Dataset({"w": ("x", values)}))
    with pytest.raises(ZeroDivisionError):
        xzarr3.to_zarr(data, tmp_path, mode="a")
    assert contents(tmp_path) == before
    assert not (tmp_path / "new").exists()


# Modes


def test_what_is_there_is_refused_or_replaced(tmp_path: Path) -> None:
    xzarr3.to_zarr(mixed_tree(), tmp_path)
    for mode in (None, "w-"):
        with pytest.raises(xzarr3.NodeExistsError, match="mode 'w'"):
            xzarr3.to_zarr(tree(), tmp_path, mode=mode)
    xzarr3.to_zarr(tree(), tmp_path, mode="w")
    xr.testing.assert_identical(ours(tmp_path), tree())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "x", "zarr.json"]


def test_a_tree_replaces_what_it_reads_from(tmp_path: Path) -> None:
    xzarr3.to_zarr(tree(), tmp_path)
    for chunks in (None, {}):
        opened = xr.open_datatree(tmp_path, engine=Xzarr3BackendEntrypoint, chunks=chunks)
        xzarr3.to_zarr(opened, tmp_path, mode="w")
        xr.testing.assert_identical(ours(tmp_path), tree())


@pytest.mark.parametrize("chunked", [False, slow(True)])
@pytest.mark.parametrize("zarr_format", [3, 2])
def test_mode_a_sets_and_adds(tmp_path: Path, zarr_format: Any, chunked: bool) -> None:
    for who in ("ours", "theirs"):
        xzarr3.to_zarr(tree(), tmp_path / who, zarr_format=zarr_format)
    data = tree(10)
    data["/a/b/c/d"] = xr.DataTree(xr.Dataset({"deep": ("x", [7, 8, 9])}, attrs={"new": True}))
    data["/e"] = xr.DataTree(xr.Dataset({"own": ("z", [1.5])}))
    data["/a/more"] = xr.DataArray([1.0, 2.0, 3.0], dims="x")
    data = data.chunk() if chunked else data
    xzarr3.to_zarr(data, tmp_path / "ours", mode="a")
    data.to_zarr(tmp_path / "theirs", mode="a", zarr_format=zarr_format)
    expected = theirs(tmp_path / "theirs")
    for options in ({}, {"consolidated": False}):
        for read in (ours, theirs):
            found = read(tmp_path / "ours", **options)
            assert set(found.groups) == {"/", "/a", "/a/b", "/a/b/c", "/a/b/c/d", "/e"}
            xr.testing.assert_identical(found, expected)


def test_mode_r_plus_sets_values_only(tmp_path: Path) -> None:
    xzarr3.to_zarr(tree(), tmp_path)
    documents = {path: path.read_bytes() for path in tmp_path.rglob("zarr.json")}
    xzarr3.to_zarr(tree(3), tmp_path, mode="r+")
    found = ours(tmp_path)
    assert found["a/v"].values.tolist() == [3, 4, 5]
    assert found["a/b/w"].values[0].tolist() == [3, 4]
    assert {path: path.read_bytes() for path in tmp_path.rglob("zarr.json")} == documents
    more = tree(3)
    more["/new"] = xr.DataTree(xr.Dataset({"v": 1}))
    with pytest.raises(xzarr3.NodeNotFoundError):
        xzarr3.to_zarr(more, tmp_path, mode="r+")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("options", [{"append_dim": "x"}, {"region": "auto"}])
def test_to_zarr_refuses_to_append_trees_and_to_write_regions_of_them(options: Any) -> None:
    store = xzarr3.MemoryStore()
    xzarr3.to_zarr(tree(), store)
    before = contents(store)
    with pytest.raises(ValueError, match=r"is not for trees; write each dataset by a call of its own"):
        xzarr3.to_zarr(tree(), store, **options)
    assert contents(store) == before


# How much is done for it


def test_little_is_done_for_documents(tmp_path: Path) -> None:
    """Each document is written once, and the consolidated copy is made without reading them again."""
    store = ReadingStore()
    data = large_tree()
    xzarr3.to_zarr(data, store)
    written = [key for key in store.changes if key.endswith("zarr.json")]
    arrays = sum(len(node.to_dataset(inherit=False).variables) for node in data.subtree)
    assert len(written) == len(set(written)) == 21 + arrays
    # One of them asks whether there is one: a class with a `get` of its own is asked by that.
    assert len([key for key in store.reads if key.endswith("zarr.json")]) <= 4


@pytest.mark.slow
def test_each_changed_group_updates_the_copies_once(tmp_path: Path) -> None:
    store = ReadingStore()
    data = large_tree()
    xzarr3.to_zarr(data, store)
    store.changes.clear()
    data.attrs["title"] = "another one"
    data["/model1/member 2/more"] = xr.DataArray(np.zeros(6), dims="x")
    data["/model3/member 3"].attrs["changed"] = True
    xzarr3.to_zarr(data, store, mode="a")
    written = [key for key in store.changes if key.endswith("zarr.json")]
    own = [key for key in written if not key.startswith(".xzarr3-")]
    assert own.count("zarr.json") <= 3  # Its attributes, and copies for two groups.
    assert set(own) == {"zarr.json", "model1/member 2/more/zarr.json", "model3/member 3/zarr.json"}
    xr.testing.assert_identical(ours(store), ours(store, consolidated=False))
    xr.testing.assert_identical(ours(store), data)


# Opening


def test_trees_without_indexes(tmp_path: Path) -> None:
    inheriting_tree().to_zarr(tmp_path)
    options: dict[str, Any] = {"create_default_indexes": False}
    found, expected = (
        xr.open_datatree(tmp_path, engine=engine, **options) for engine in (Xzarr3BackendEntrypoint, "zarr")
    )
    assert type(found) is xr.DataTree
    assert not any(node.xindexes for node in found.subtree)
    xr.testing.assert_identical(found.load(), expected.load())
    opened = Xzarr3BackendEntrypoint().open_datatree(tmp_path)
    assert opened.map_over_datasets(lambda ds: ds.assign_attrs(seen=1)).attrs["seen"] == 1
    opened.encoding = {"a": 1}
    assert opened.encoding == {"a": 1}
    assert type(opened) is xr.DataTree


def test_nodes_that_do_not_go_with_what_they_inherit(tmp_path: Path) -> None:
    xr.Dataset(coords={"x": [1, 2]}).to_zarr(tmp_path)
    xr.Dataset({"v": ("x", [1, 2])}, coords={"x": [8, 9]}).to_zarr(tmp_path, group="a", mode="a")
    messages = []
    for engine in (Xzarr3BackendEntrypoint, "zarr"):
        with pytest.raises(ValueError, match="group '/a' is not aligned with its parents") as caught:
            xr.open_datatree(tmp_path, engine=engine, consolidated=False)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_a_coordinate_that_cannot_be_read(tmp_path: Path) -> None:
    xzarr3.to_zarr(tree(), tmp_path)
    for chunk in (tmp_path / "x/c").iterdir():
        chunk.write_bytes(b"x")
    for engine in (Xzarr3BackendEntrypoint, "zarr"):
        with pytest.raises(Exception) as caught:  # noqa: PT011 - theirs is any
            xr.open_datatree(tmp_path, engine=engine)
        assert "path '.'" in " ".join(getattr(caught.value, "__notes__", [])), caught.value


# The accessor


def test_accessor_of_datasets_and_arrays(tmp_path: Path) -> None:
    ds = xr.Dataset({"t": ("x", [1.0, 2.0])}, coords={"x": [1, 2]})
    group = ds.xzarr3.to_zarr(tmp_path / "ds", encoding={"t": {"dtype": "float32"}}, zarr_format=2)
    assert group.zarr_format == 2
    assert xzarr3.open_array(tmp_path / "ds", "t").dtype == np.float32
    ds.xzarr3.to_zarr(tmp_path / "ds", "w", "below")
    xr.testing.assert_identical(xr.open_dataset(tmp_path / "ds", engine="zarr", group="below").load(), ds)
    ds["t"].xzarr3.to_zarr(tmp_path / "da", mode="w")
    found = xr.open_dataarray(tmp_path / "da", engine="zarr").load()
    xr.testing.assert_identical(found, ds["t"])
    later = ds.chunk().xzarr3.to_zarr(tmp_path / "later", compute=False)
    later.compute()
    xr.testing.assert_identical(xzarr3.open_dataset(tmp_path / "later").load(), ds)
    assert "Dataset" in repr(ds.xzarr3)


def test_accessor_of_trees(tmp_path: Path) -> None:
    encoding = {"/a": {"v": {"dtype": "int8"}}}
    accessor: Any = tree().xzarr3
    accessor.to_zarr(tmp_path, "w", encoding, True, "group", True)
    found = xr.open_datatree(tmp_path, engine="zarr", group="group").load()
    xr.testing.assert_identical(
        found, tree().map_over_datasets(lambda ds: ds.astype("int8") if "v" in ds else ds)
    )
    assert "x" in xzarr3.open_group(tmp_path, "group/a/b")
