"""What groups have under the names of zarr-python and h5py, and functions that save and load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from _conformance import contents, refused
from _slow import slow_but

import xzarr3
from xzarr3 import MetadataError, NodeExistsError, NodeTypeError, ReadOnlyError


def test_values_are_set_as_arrays(store: xzarr3.Store) -> None:
    root = xzarr3.group(store)
    root["x"] = np.arange(3)
    root["deep/y"] = [[1.5], [2.5]]
    root["s"] = 3.5
    root["lazy"] = da.ones((10,), chunks=4)
    root["named"] = xr.DataArray([1, 2], dims="time", attrs={"units": "K"})
    root["x"] = root["x"]
    root["lazy"] = xzarr3.from_zarr(root["lazy"]) + 1
    found = {path: node[...].tolist() for path, node in root.members(None) if path != "deep"}
    expected = {"x": [0, 1, 2], "deep/y": [[1.5], [2.5]], "s": 3.5, "lazy": [2.0] * 10, "named": [1, 2]}
    assert (found, root["lazy"].chunks) == (expected, (4,))
    assert (root["named"].dimension_names, dict(root["named"].attrs)) == (("time",), {"units": "K"})
    root["x"] = np.ones(5, "f4")
    assert (root["x"].shape, root["x"].dtype) == ((5,), "f4")


def test_what_cannot_be_set_changes_nothing(store: xzarr3.Store) -> None:
    root = xzarr3.group(store)
    root["x"] = np.arange(3)
    root.create_group("g/h")
    before = contents(store)
    for name in ("g", "x/y"):
        with pytest.raises(NodeTypeError):
            root[name] = 1
    for values in ({"a": 1}, None, [[1], [2, 3]]):
        with pytest.raises(MetadataError):
            root["x"] = values
    assert contents(store) == before
    with pytest.raises(ReadOnlyError):
        xzarr3.open_group(store)["x"] = 1


def test_members_by_kind_without_binding_the_others(store: xzarr3.Store) -> None:
    root = xzarr3.group(store)
    root["x"] = 1
    root.create_group("g")["y"] = 2
    for group in (root, xzarr3.open_group(store), root.consolidate()):
        assert (list(group.array_keys()), list(group.group_keys())) == (["x"], ["g"])
        assert [each.name for each in group.array_values()] == ["/x"]
        assert [each.name for each in group.group_values()] == ["/g"]
        assert (group.nmembers(), group.nmembers(None)) == (2, 3)
        assert group._ipython_key_completions_() == ["g", "x"]
        assert "1 array, 1 group" in group.info
    assert root.get_array("g/y")[()] == 2
    refused(NodeTypeError, lambda: root.get_array("g"), lambda: root.get_group("x"))
    place = root.store_path / "a" / "b"
    assert (place.store, place.path, str(place)) == (store, "a/b", f"{store}/a/b")


def test_names_are_listed_whatever_codecs_the_arrays_have(store: xzarr3.Store) -> None:
    root = xzarr3.group(store)
    root["x"] = 1
    text = bytes(store.get("x/zarr.json") or b"").replace(b'"zstd"', b'"unknown"')
    store.set("y/zarr.json", text)
    assert sorted(root.array_keys()) == ["x", "y"]
    refused(MetadataError, lambda: list(root.array_values()), match="unknown")
    store.set("z/zarr.json", b"{")
    refused(MetadataError, lambda: list(root.array_keys()), match="z")


def test_an_array_that_is_required_keeps_its_values(store: xzarr3.Store) -> None:
    root = xzarr3.group(store)
    made = root.require_array("x", shape=(4,), dtype="f4", chunks=2)
    made[:] = 5
    assert root.require_array("x", shape=4, dtype="f8")[:].tolist() == [5.0] * 4
    assert root.require_array("x", shape=4, dtype="f4", exact=True).chunks == (2,)
    for wrong in ({"shape": 5}, {"shape": 4, "dtype": "i2"}, {"shape": 4, "dtype": "f8", "exact": True}):
        with pytest.raises(NodeTypeError, match="array '/x'"):
            root.require_array("x", **wrong)
    assert root.require_array("y", shape=2).dtype == "f8"
    assert root.create_dataset("d", (2, 2), "i2", chunks=1).chunks == (1, 1)
    assert root.create_dataset("e", data=[1, 2])[:].tolist() == [1, 2]
    assert xzarr3.create_array(store, name="a/b", shape=1, dtype="int8").path == "a/b"
    with pytest.raises(TypeError, match="give one of them"):
        xzarr3.create_array(store, "a", name="c", shape=1, dtype="int8")


def test_attributes_are_updated_at_once(store: xzarr3.Store) -> None:
    root = xzarr3.group(store, attributes={"a": 1, "b": 1})
    assert dict(root.update_attributes({"b": 2, "c": 3}).attrs) == {"a": 1, "b": 2, "c": 3}
    root["x"] = 1
    assert root["x"].update_attributes({"u": "K"}) is not None
    assert dict(xzarr3.open_array(store, "x").attrs) == {"u": "K"}
    refused(MetadataError, lambda: root.update_attributes({"a": 5, "n": float("nan")}))
    assert root.attrs["a"] == 1
    refused(ReadOnlyError, lambda: xzarr3.open_group(store).update_attributes({}))


@pytest.mark.parametrize("zarr_format", [3, 2])
def test_saving_does_not_replace_by_mistake(store: xzarr3.Store, zarr_format: Any) -> None:
    xzarr3.save(store, a=[1, 2], zarr_format=zarr_format)
    before = contents(store)
    for arrays, named in ((([5],), {}), (([5], [6]), {}), ((), {"b": [5]})):
        with pytest.raises(NodeExistsError, match="overwrite=True"):
            xzarr3.save(store, *arrays, **named)
    bad = {"c": [1], "d": np.array([object()])}
    for wrong in (bad, {"x": [3], "x/y": [4]}, {"path": "g", "y": [[1], []]}):
        with pytest.raises((MetadataError, NodeTypeError)):  # All values are checked first.
            xzarr3.save_group(store, overwrite=True, zarr_format=zarr_format, **wrong)
    assert contents(store) == before
    xzarr3.save_group(store, overwrite=True, **{"a/b": [3], "c": [4.5]})
    found = {path: node[...].tolist() for path, node in xzarr3.open_group(store).members(None) if path != "a"}
    assert found == {"a/b": [3], "c": [4.5]}


def test_loading_an_array_or_a_group(store: xzarr3.Store) -> None:
    xzarr3.save(store, [1, 2], [[3.5]], mask=[True], path="p")
    group = xzarr3.open_group(store, "p", mode="r+")
    group.create_group("below")
    found = {name: values.tolist() for name, values in xzarr3.load(store, "p").items()}
    assert found == {"arr_0": [1, 2], "arr_1": [[3.5]], "mask": [True]}
    assert isinstance(xzarr3.load(store, "p/arr_0"), np.ndarray)
    refused(xzarr3.NodeNotFoundError, lambda: xzarr3.load(store, "q"))
    assert xzarr3.tree(store, "p") == group.tree() == xzarr3.tree(xzarr3.open_group(store), "p")


SOURCES: dict[str, dict[str, Any]] = {
    "plain": {"chunks": (3, 4)},
    "sharded": {"chunks": (2, 4), "shards": (6, 8)},
    "rectilinear": {"chunks": ([2, 7, 1], 4)},
    "shards of several lengths": {"chunks": (1, 4), "shards": ([2, 7, 1], 8)},
    "version 2": {"chunks": (3, 4), "zarr_format": 2, "order": "F"},
    "version 2, packed": {
        "chunks": 4, "zarr_format": 2, "filters": [{"id": "shuffle", "elementsize": 4}],
        "compressors": "numcodecs.zlib",
    },
    "turned": {"chunks": 4, "order": "F", "compressors": "blosc"},
}  # fmt: skip
TAKEN: dict[str, dict[str, Any]] = {
    "all": {},
    "chunks": {"chunks": 5, "shards": None},
    "shards": {"chunks": (2, 4), "shards": (4, 12)},
    "type": {"dtype": "f8"},
    "fill value": {"fill_value": 9},
    "codecs": {"compressors": None, "filters": None},
    "format": {"zarr_format": 3, "shards": None, "chunks": 6},
}


@pytest.mark.parametrize("taken", slow_but(TAKEN, "all", "chunks", "format"))
@pytest.mark.parametrize("source", SOURCES)
def test_arrays_from_arrays_hold_the_same(tmp_path: Path, source: str, taken: str) -> None:
    made = xzarr3.create_array(
        tmp_path / "a", shape=(10, 12), dtype="f4", fill_value=-1, dimension_names=("y", "x"),
        attributes={"units": "K"}, **SOURCES[source],
    )  # fmt: skip
    made[3:8, :7] = np.arange(35).reshape(5, 7)
    if taken == "shards" and "version 2" in source:
        with pytest.raises(MetadataError, match="accepted: no shards"):
            xzarr3.from_array(tmp_path / "b", data=made, **TAKEN[taken])
        assert not (tmp_path / "b").exists()
        return
    again = xzarr3.from_array(tmp_path / "b", data=made, **TAKEN[taken])
    np.testing.assert_array_equal(again[...], made[...])
    assert (dict(again.attrs), again.dimension_names) == ({"units": "K"}, ("y", "x"))
    if taken == "all":
        assert repr(again.metadata.codecs) == repr(made.metadata.codecs)
        assert (again.chunks, again.shards, again.zarr_format) == (made.chunks, made.shards, made.zarr_format)
        assert set(contents(again.store)) == set(contents(made.store))
    like = xzarr3.empty_like(made)
    assert (like.chunks, like.shards, like.order, like.dtype) == (made.chunks, made.shards, made.order, "f4")
    assert (like.fill_value, dict(like.attrs), like.dimension_names) == (-1, {}, None)


def test_counts_of_arrays_and_of_what_is_copied() -> None:
    array = xzarr3.zeros((10, 12), chunks=(2, 3), shards=(4, 6), dtype="i2")
    assert (array.cdata_shape, array.nchunks) == ((5, 4), 20)
    assert (array.shard_grid_shape, array.nshards) == ((3, 2), 6)
    assert array.nchunks_initialized == 0
    array[9, 0] = 1
    assert array.nchunks_initialized == 2  # A shard of four chunks, two of which are beyond the end.
    array[...] = 1
    assert array.nchunks_initialized == array.nchunks
    assert xzarr3.zeros((), dtype="i2").nchunks == 1
    assert xzarr3.zeros((0, 3), chunks=1).nchunks == 0
    huge = xzarr3.zeros((10**6, 10**6), chunks=(1000, 1000), dtype="i1")
    huge[5, 5] = 1
    again = xzarr3.from_array(None, data=huge)
    assert (again.nchunks_initialized, again[5, 5], again[6, 6]) == (1, 1, 0)


def test_datasets_open_under_the_names_of_xarray(tmp_path: Path) -> None:
    dataset = xr.Dataset({"t": (("time", "x"), np.arange(12.0).reshape(4, 3))}, coords={"x": [1, 2, 3]})
    xzarr3.to_zarr(dataset, tmp_path)
    xzarr3.to_zarr(dataset + 1, tmp_path, group="a/b", mode="a")
    xr.testing.assert_identical(xzarr3.open_zarr(tmp_path).compute(), dataset)
    xr.testing.assert_equal(xzarr3.open_zarr(tmp_path, "a/b").compute(), dataset + 1)
    assert xzarr3.open_zarr(tmp_path, chunks=None).t.chunks is None
    assert xzarr3.open_zarr(tmp_path).t.chunks == ((4,), (3,))
    tree = xzarr3.open_datatree(tmp_path)
    assert tree.groups == ("/", "/a", "/a/b")
    xr.testing.assert_equal(tree["a/b"].to_dataset().compute(), dataset + 1)
    assert xzarr3.open_datatree(tmp_path, chunks=None, group="a")["b/t"].chunks is None
