"""``xzarr3.to_zarr`` of trees of datasets, and the accessor: beside ``DataTree.to_zarr`` of xarray."""

import json
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import xarray as xr
from _engines import QUIET, NotingStore, check_same, contents
from _recording import heard
from _slow import slow, slow_but
from _things import refused
from _xarray_datasets import TREES, inheriting_tree, large_tree, mixed_tree

import xzarr3
from xzarr3.xarray.backend import Xzarr3BackendEntrypoint

zarr = pytest.importorskip("zarr")
ENGINE = Xzarr3BackendEntrypoint
pytestmark = [pytest.mark.filterwarnings(each) for each in (*QUIET, "ignore:what was written to:UserWarning")]
MADE = {  # Of which xarray's own engine takes less than seconds.
    **{name: TREES[name] for name in ("mixed_tree", "inheriting_tree")},
    "nothing": xr.DataTree,
    "only the root": lambda: xr.DataTree(xr.Dataset({"a": ("x", [1])}), name="named"),
}
WRITERS: list[tuple[Any, str]] = [(xzarr3.to_zarr, "a"), (xr.DataTree.to_zarr, "b")]


def ours(store: Any, **options: Any) -> xr.DataTree:
    return xr.open_datatree(store, engine=ENGINE, **options).load()


def theirs(store: Any, **options: Any) -> xr.DataTree:
    return xr.open_datatree(store, engine="zarr", **options).load()


def tree(offset: int = 0) -> xr.DataTree:
    """Three groups, the lowest of which has what it inherits."""
    return xr.DataTree.from_dict({
        "/": xr.Dataset(attrs={"n": offset}, coords={"x": [1, 2, 3]}),
        "/a": xr.Dataset({"v": ("x", np.arange(3) + offset)}, attrs={"n": offset}),
        "/a/b": xr.Dataset({"w": (("x", "y"), np.arange(6.0).reshape(3, 2) + offset)}),
    })  # fmt: skip


@pytest.mark.parametrize(("zarr_format", "chunked"), [(3, False), slow(2, True)])
@pytest.mark.parametrize("name", slow_but(MADE, "mixed_tree", "nothing"))
def test_the_same_as_xarray_writes(tmp_path: Path, name: str, zarr_format: Any, chunked: bool) -> None:
    data = MADE[name]()
    if chunked:
        data = data.chunk()
    group = xzarr3.to_zarr(data, tmp_path / "ours", zarr_format=zarr_format)
    data.to_zarr(tmp_path / "theirs", zarr_format=zarr_format)
    assert (group.zarr_format, group.consolidated) == (zarr_format, True)
    groups = (zarr.open_group(tmp_path / who) for who in ("ours", "theirs"))
    held, there = (each.metadata.consolidated_metadata.flattened_metadata for each in groups)
    assert held.keys() == there.keys()
    options: dict[str, Any]
    for options in ({}, {"consolidated": False}, {"chunks": {}}, {"create_default_indexes": False}):
        same = theirs(tmp_path / "theirs", **options)
        for who in ("ours", "theirs"):
            found, expected = (read(tmp_path / who, **options) for read in (ours, theirs))
            xr.testing.assert_identical(found, expected)
            xr.testing.assert_identical(found, same)
            assert type(found) is xr.DataTree
            assert found.encoding.keys() == expected.encoding.keys()
            for node in found.subtree if options.get("consolidated", True) else ():
                other = expected[node.path]  # Without a copy, directories list their files in any order.
                assert list(node.children) == list(other.children)
                assert list(node.variables) == list(other.variables)
                assert list(map(type, node.xindexes.values())) == list(map(type, other.xindexes.values()))
    groups, reference = (xr.open_groups(tmp_path / "theirs", engine=each) for each in (ENGINE, "zarr"))
    assert groups.keys() == reference.keys()
    for key, dataset in reference.items():
        check_same(groups[key], dataset)


def test_a_part_of_a_tree(tmp_path: Path) -> None:
    part: Any = inheriting_tree()["/a"]
    for write, who in WRITERS:
        write(part, tmp_path / who, encoding={"/a/b": {"w": {"dtype": "int16"}}})
    xr.testing.assert_identical(ours(tmp_path / "a"), theirs(tmp_path / "b"))
    assert xzarr3.open_array(tmp_path / "a", "b/w").dtype == np.int16
    assert "x" in xzarr3.open_group(tmp_path / "a")  # It is inherited no more.


def test_encoding_by_path(tmp_path: Path) -> None:
    stored = {"v": {"dtype": "float32", "_FillValue": -1.0}}
    encoding: dict[str, Any] = {"/a": stored, "/a/b": {"w": {"chunks": (3, 1)}}}
    for write, who in WRITERS:
        write(tree(), tmp_path / who, encoding=encoding)
    for path in ("a/v", "a/b/w"):
        found, expected = (json.loads((tmp_path / who / path / "zarr.json").read_text()) for who in "ab")
        for key in ("data_type", "chunk_grid", "attributes", "dimension_names"):
            assert found[key] == expected[key]
    with pytest.raises(KeyError, match="which is not a variable") as caught:
        xzarr3.to_zarr(tree(), tmp_path / "c", encoding={"/a": {"nothing": {}}})
    assert "raised for the group '/a'" in caught.value.__notes__
    assert not (tmp_path / "c").exists()


@pytest.mark.slow
@pytest.mark.parametrize("zarr_format", [3, 2, "3-draft"])
def test_a_large_tree_computed_later(tmp_path: Path, zarr_format: Any) -> None:
    data = large_tree()
    later = xzarr3.to_zarr(data.chunk(), tmp_path, compute=False, zarr_format=zarr_format)
    assert xzarr3.open_group(tmp_path).zarr_format == zarr_format
    dask.compute(later)
    xr.testing.assert_identical(ours(tmp_path), data)
    if zarr_format != "3-draft":
        xr.testing.assert_identical(theirs(tmp_path), data)


@pytest.mark.parametrize("mode", ["w", "w-", "a"])
def test_nothing_is_written_if_one_node_cannot_be(tmp_path: Path, mode: Any) -> None:
    data = tree()
    data["/a/b"].attrs["bad"] = object()
    xzarr3.to_zarr(tree(), tmp_path / "there")
    for place in ("new", "there"):
        with pytest.raises(xzarr3.MetadataError, match="bad") as caught:
            xzarr3.to_zarr(data, tmp_path / place, mode=mode)
        assert "raised for the group '/a/b'" in caught.value.__notes__
    assert not (tmp_path / "new").exists()
    xr.testing.assert_identical(ours(tmp_path / "there"), tree())


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
    assert not [key for key in store.list() if key.startswith("d")]


@pytest.mark.parametrize("mode", ["a", "r+"])
def test_a_group_is_computed_from_what_another_group_of_the_call_is_set_to(mode: str) -> None:
    def both(v: Any, w: Any) -> xr.DataTree:
        return xr.DataTree.from_dict({"/a": xr.Dataset({"v": ("x", v)}), "/b": xr.Dataset({"w": ("x", w)})})

    store = xzarr3.to_zarr(both([1.0, 2.0], [0.0, 0.0])).store
    tens = xzarr3.open_dataset(store, "a")["v"].data * 10
    xzarr3.to_zarr(both(dask.array.full(2, 7.0, chunks=1), tens), store, mode=mode)
    found = ours(store)
    assert (found["a/v"].values.tolist(), found["b/w"].values.tolist()) == ([7, 7], [10, 20])


@pytest.mark.parametrize("there", [False, True])
def test_a_block_that_fails_leaves_what_was_there(tmp_path: Path, there: bool) -> None:
    if there:
        xzarr3.to_zarr(tree(), tmp_path)
    before, data = contents(tmp_path), tree().chunk()
    values = dask.array.ones(3, chunks=1).map_blocks(lambda block: 1 // 0, dtype=float, meta=np.empty(0))
    data["/new"] = xr.DataTree(xr.Dataset({"w": ("x", values)}))
    refused(ZeroDivisionError, None, lambda: xzarr3.to_zarr(data, tmp_path, mode="a"))
    assert contents(tmp_path) == before
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("chunks", [None, {}])
def test_a_tree_replaces_what_is_there_or_what_it_reads_from(tmp_path: Path, chunks: Any) -> None:
    xzarr3.to_zarr(mixed_tree(), tmp_path)
    for mode in (None, "w-"):
        with pytest.raises(xzarr3.NodeExistsError, match="mode 'w'"):
            xzarr3.to_zarr(tree(), tmp_path, mode=mode)
    xzarr3.to_zarr(tree(), tmp_path, mode="w")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "x", "zarr.json"]
    xzarr3.to_zarr(xr.open_datatree(tmp_path, engine=ENGINE, chunks=chunks), tmp_path, mode="w")
    xr.testing.assert_identical(ours(tmp_path), tree())
    again = ENGINE().open_datatree(tmp_path)
    assert again.map_over_datasets(lambda ds: ds.assign_attrs(seen=1)).attrs["seen"] == 1
    again.encoding = {"a": 1}
    assert again.encoding == {"a": 1}


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
    assert set(expected.groups) == {"/", "/a", "/a/b", "/a/b/c", "/a/b/c/d", "/e"}
    for options in ({}, {"consolidated": False}):
        for read in (ours, theirs):
            xr.testing.assert_identical(read(tmp_path / "ours", **options), expected)


def test_mode_r_plus_sets_values_only() -> None:
    store, more = NotingStore(), tree(3)
    xzarr3.to_zarr(tree(), store)
    store.changes.clear()
    xzarr3.to_zarr(tree(3), store, mode="r+")
    found = ours(store)
    assert (found["a/v"].values.tolist(), found["a/b/w"].values[0].tolist()) == ([3, 4, 5], [3, 4])
    more["/new"] = xr.DataTree(xr.Dataset({"v": 1}))
    refused(xzarr3.NodeNotFoundError, None, lambda: xzarr3.to_zarr(more, store, mode="r+"))
    assert not [key for key in store.changes if key.endswith("zarr.json")]


@pytest.mark.parametrize("options", [{"append_dim": "x"}, {"region": "auto"}])
def test_to_zarr_refuses_to_append_trees_and_to_write_regions_of_them(options: Any) -> None:
    store = xzarr3.to_zarr(tree()).store
    before = contents(store)
    with pytest.raises(ValueError, match=r"is not for trees; write each dataset by a call of its own"):
        xzarr3.to_zarr(tree(), store, **options)
    assert contents(store) == before


def test_little_is_done_for_documents() -> None:
    """Each is written once, after the data, the root last; the copy is made without reading them again."""
    store, data = NotingStore(), large_tree()
    with heard() as requests:
        xzarr3.to_zarr(data.chunk(), store)
    own = [key for key in store.changes if not key.startswith(".xzarr3-")]
    documents = [at for at, key in enumerate(own) if key.endswith("zarr.json")]
    arrays = sum(len(node.to_dataset(inherit=False).variables) for node in data.subtree)
    assert documents == list(range(len(own) - 21 - arrays, len(own)))
    assert (own[-1], len(set(own))) == ("zarr.json", len(own))
    reads = [each.key for each in requests if each.operation != "put"]
    assert len([key for key in reads if key.endswith("zarr.json")]) <= 4


@pytest.mark.slow
def test_each_changed_group_updates_the_copies_once() -> None:
    store, data = NotingStore(), large_tree()
    xzarr3.to_zarr(data, store)
    store.changes.clear()
    data.attrs["title"] = "another one"
    data["/model1/member 2/more"] = xr.DataArray(np.zeros(6), dims="x")
    data["/model3/member 3"].attrs["changed"] = True
    xzarr3.to_zarr(data, store, mode="a")
    written = [key for key in store.changes if key.endswith("zarr.json") and not key.startswith(".xzarr3-")]
    assert written.count("zarr.json") <= 3  # Its attributes, and copies for two groups.
    assert set(written) == {"zarr.json", "model1/member 2/more/zarr.json", "model3/member 3/zarr.json"}
    for options in ({}, {"consolidated": False}):
        xr.testing.assert_identical(ours(store, **options), data)


@pytest.mark.parametrize("engine", [ENGINE, "zarr"])
def test_an_error_names_the_group_of_a_tree_that_cannot_be_opened(tmp_path: Path, engine: Any) -> None:
    xzarr3.to_zarr(tree(), tmp_path / "b")
    for chunk in (tmp_path / "b/x/c").iterdir():
        chunk.write_bytes(b"x")
    with pytest.raises(Exception) as caught:  # noqa: PT011 - theirs is any
        xr.open_datatree(tmp_path / "b", engine=engine)
    assert "path '.'" in " ".join(getattr(caught.value, "__notes__", [])), caught.value


def test_accessors(tmp_path: Path) -> None:
    ds = xr.Dataset({"t": ("x", [1.0, 2.0])}, coords={"x": [1, 2]})
    group = ds.xzarr3.to_zarr(tmp_path / "ds", encoding={"t": {"dtype": "float32"}}, zarr_format=2)
    assert (group.zarr_format, group["t"].dtype) == (2, np.float32)
    ds.xzarr3.to_zarr(tmp_path / "ds", "w", "below")
    xr.testing.assert_identical(xr.open_dataset(tmp_path / "ds", engine="zarr", group="below").load(), ds)
    ds["t"].xzarr3.to_zarr(tmp_path / "da", mode="w")
    xr.testing.assert_identical(xr.open_dataarray(tmp_path / "da", engine="zarr").load(), ds["t"])
    ds.chunk().xzarr3.to_zarr(tmp_path / "later", compute=False).compute()
    xr.testing.assert_identical(xzarr3.open_dataset(tmp_path / "later").load(), ds)
    assert "Dataset" in repr(ds.xzarr3)
    accessor: Any = tree().xzarr3
    accessor.to_zarr(tmp_path / "tree", "w", {"/a": {"v": {"dtype": "int8"}}}, True, "group", True)
    found = theirs(tmp_path / "tree", group="group")
    assert found["a/v"].dtype == "int8"
    xr.testing.assert_equal(found, tree())
    assert "x" in xzarr3.open_group(tmp_path / "tree", "group/a/b")
