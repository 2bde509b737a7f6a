"""Copies between formats: nothing is lost, chunks stay as they are if they can, or the copy is refused."""

import itertools
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from _conformance import contents
from _fault_server import FaultServer
from _things import refused
from _waiting import WaitingStore

import xzarr3
from xzarr3 import ChangedError, LocalStore, MemoryStore, MetadataError, NodeExistsError, Store
from xzarr3.codecs import GzipCodec, ZstdCodec
from xzarr3.conventions.fill_value_attribute import encode_fill_value

FORMATS = (3, 2, "3-draft")
DELTA = {"id": "delta", "dtype": "<i4"}


def hierarchy(store: Store, zarr_format: Any, **options: Any) -> xzarr3.Group:
    """Groups in groups, arrays of several types and layouts, missing chunks, attributes."""
    options = {"compressors": "gzip", **options}
    attributes = {"title": "all", "n": [1, {"a": None}]}
    root = xzarr3.create_group(store, zarr_format=zarr_format, attributes=attributes)
    values = np.arange(24, dtype="float32").reshape(4, 6)
    values[0, 0] = np.nan
    root.create_array("f4", data=values, chunks=(2, 4), dimension_names=("y", "x"), **options)
    root.create_array("order", data=values.astype(">f8"), chunks=(3, 3), order="F", **options)
    layout = {"shape": (9, 9), "chunks": (2, 2), "dtype": "int16", "fill_value": -7}
    sparse = root.create_array("deep/er/sparse", **layout, **options)
    sparse[3:5, 2:7] = np.arange(10).reshape(2, 5)
    root.create_array("scalar", data=np.float64(2.5), attributes={"units": "K"}, **options)
    root.create_array("bool", data=np.array([True, False, True]), **options)
    root.create_array("none", shape=(0, 3), dtype="uint8", **options)
    root.create_group("empty", attributes={"left": "alone"})
    return xzarr3.open_group(store)


def variables(store: Any, **options: Any) -> list[str]:
    with xr.open_dataset(store, engine="xzarr3", **options) as found:
        return [str(name) for name in found.variables]


@pytest.mark.parametrize("source_format", [3, 2])
@pytest.mark.parametrize("zarr_format", [3, 2])
def test_copy_keeps_the_order_of_variables(source_format: Any, zarr_format: Any, tmp_path: Path) -> None:
    source, whole, part = (LocalStore(tmp_path / name) for name in ("source", "whole", "part"))
    ds = xr.Dataset({name: ("time", [1.0, 2]) for name in "zbqa"}, {"time": [0, 1]})
    xzarr3.to_zarr(ds, source, zarr_format=source_format)
    xzarr3.to_zarr(ds, source, group="of/it")
    order = variables(source)
    assert order == ["z", "b", "q", "a", "time"]
    xzarr3.copy(source, whole, zarr_format=zarr_format)
    xzarr3.copy(source, part, source_path="of/it", path="g/h", zarr_format=zarr_format)
    assert variables(whole) == variables(whole, group="of/it") == variables(part, group="g/h") == order


def assert_same(one: xzarr3.Group, other: xzarr3.Group, *, masked: bool = False) -> None:
    """Whether nodes say the same; with ``masked``, those of ``other`` say in an attribute what is masked."""
    assert dict(one.attrs) == dict(other.attrs)
    left, right = dict(one.members(max_depth=None)), dict(other.members(max_depth=None))
    assert left.keys() == right.keys()
    for path, node in left.items():
        same = right[path]
        assert type(same) is type(node), path
        attributes = dict(same.attrs)
        if masked and isinstance(node, xzarr3.Array) and node.dimension_names:
            assert attributes.pop("_FillValue") == encode_fill_value(node.fill_value, node.dtype)
        assert attributes == dict(node.attrs), path
        if isinstance(node, xzarr3.Array):
            assert same.dtype == node.dtype
            # Version 2 may say of a scalar that it has no names, where others say nothing.
            assert (same.dimension_names or ()) == (node.dimension_names or ())
            assert same.chunks == node.chunks
            bits = node.metadata.data_type.bits
            assert bits(same.metadata.fill_value) == bits(node.metadata.fill_value)
            assert same.get().tobytes() == node.get().tobytes(), path


@pytest.mark.parametrize("old", FORMATS)
@pytest.mark.parametrize("new", FORMATS)
def test_between_all_formats_and_back(old: Any, new: Any, tmp_path: Path) -> None:
    store = MemoryStore()
    source = hierarchy(store, old)
    copied = xzarr3.copy(source, tmp_path / "copy", zarr_format=new)
    assert copied.zarr_format == new
    assert_same(source, copied, masked=old == 2 and new != 2)
    back = xzarr3.copy(tmp_path / "copy", MemoryStore(), zarr_format=old)
    assert_same(source, back)


@pytest.mark.parametrize("new", [2, "3-draft"])
def test_chunks_are_moved_as_they_are(new: Any) -> None:
    store, target = MemoryStore(), MemoryStore()
    array = xzarr3.create_array(store, "a", shape=(5, 5), chunks=2, dtype="int32", compressors="gzip")
    array[...] = np.arange(25).reshape(5, 5)
    store.set("a/c/0/0", b"damaged")  # A copy does not look into chunks.
    xzarr3.copy(store, target, zarr_format=new)
    prefix, separator = {2: ("a/", "."), "3-draft": ("data/a/c", "/")}[new]
    moved = {
        key.removeprefix(prefix).replace(separator, "/"): value
        for key, value in contents(target).items()
        if key.startswith(prefix) and ".z" not in key
    }
    assert moved == {key[4:]: value for key, value in contents(store).items() if "/c/" in key}


@pytest.mark.parametrize(("options", "new", "field"), [
    ({"shards": 4, "chunks": 2}, 2, "sharding_indexed"),
    ({"shards": 4, "chunks": 2}, "3-draft", "sharding_indexed"), ({"chunks": [[1, 3, 4]]}, 2, "chunk_grid"),
    ({"chunks": [[1, 3, 4]]}, "3-draft", "chunk_grid"), ({"compressors": "zstd"}, "3-draft", "zstd"),
    ({"filters": [DELTA]}, "3-draft", "filters=None"),
], ids=range(6))  # fmt: skip
def test_what_a_format_cannot_say(options: dict[str, Any], new: Any, field: str) -> None:
    store, target = MemoryStore(), MemoryStore()
    xzarr3.create_array(store, "fine", data=np.arange(3), compressors="gzip")
    xzarr3.create_array(store, "g/a", data=np.arange(8, dtype="<i4"), **{"compressors": "gzip", **options})
    with pytest.raises(MetadataError, match=field) as caught:
        xzarr3.copy(store, target, zarr_format=new)
    assert "g/a" in str(caught.value)
    assert list(target.list()) == []


def test_recoding_makes_it_sayable() -> None:
    store = MemoryStore()
    data = np.arange(64, dtype="int32").reshape(8, 8)
    xzarr3.create_array(store, "a", data=data, chunks=(2, 2), shards=(4, 8), fill_value=5)
    copied = xzarr3.copy(store, MemoryStore(), zarr_format="3-draft", compressors="gzip", shards=None)["a"]
    assert (copied.chunks, copied.shards) == ((2, 2), None)
    np.testing.assert_array_equal(copied[...], data)
    again = xzarr3.copy(store, MemoryStore(), compressors=ZstdCodec(level=9))["a"]
    assert (again.shards, again.compressors) == ((4, 8), (ZstdCodec(level=9),))
    np.testing.assert_array_equal(again[...], data)
    refused(MetadataError, "shards", lambda: xzarr3.copy(store, MemoryStore(), shards=(3, 8)))


def test_what_xarray_masks_stays_masked(tmp_path: Path) -> None:
    values = {"t": [280.5, np.nan, 281.0], "n": [0, 1, 2], "z": [0.0, np.nan, 1.0]}
    packed = xr.Dataset({name: ("x", each, {"units": "K"}) for name, each in values.items()})
    encoding = {"t": {"dtype": "int16", "scale_factor": 0.1, "_FillValue": 0, "add_offset": 270.0}}
    for old, new in ((2, 3), (3, 2)):
        one, other, back = (tmp_path / f"{name}{old}" for name in ("one", "other", "back"))
        xzarr3.to_zarr(packed, one, encoding=encoding, zarr_format=old)
        xzarr3.copy(one, other, zarr_format=new)
        xzarr3.copy(other, back, zarr_format=old)
        for path, engine in ((other, "xzarr3"), (other, "zarr"), (back, "xzarr3")):
            with xr.open_dataset(path, engine=engine) as found:
                xr.testing.assert_allclose(found.load(), packed)
                assert found.n.dtype == packed.n.dtype, engine


@pytest.mark.parametrize("fill", [0, 7])
def test_absent_chunks_are_stored_where_their_value_would_be_left_open(fill: int) -> None:
    """Version 2 masks its fill value in xarray, so it cannot stand for values that are there."""
    store, target = MemoryStore(), MemoryStore()
    layout = {"shape": 6, "chunks": 2, "dtype": "i4", "dimension_names": ["x"], "compressors": None}
    array = xzarr3.create_array(store, "a", fill_value=fill, **layout)
    array[2:4] = [1, 2]
    copied = xzarr3.copy(store, target, zarr_format=2)["a"]
    assert copied.fill_value is None
    assert copied[...].tolist() == [fill, fill, 1, 2, fill, fill]
    stored = [np.frombuffer(contents(target)[f"a/{at}"], "<i4").tolist() for at in range(3)]
    assert stored == [[fill, fill], [1, 2], [fill, fill]]


def test_existing_nodes_are_refused(tmp_path: Path) -> None:
    store, other = LocalStore(tmp_path / "a.zarr"), MemoryStore()
    hierarchy(store, 3)
    xzarr3.copy(store, store, source_path="f4", path="twin")
    np.testing.assert_array_equal(xzarr3.open_array(store, "twin")[...], xzarr3.open_array(store, "f4")[...])
    xzarr3.create_group(other, "there")
    refused(NodeExistsError, "overwrite", lambda: xzarr3.copy(store, other, source_path="deep", path="there"))
    xzarr3.copy(store, other, source_path="deep", path="there", overwrite=True)
    assert "er/sparse" in xzarr3.open_group(other, "there")


def test_consolidated_metadata_come_along() -> None:
    store = MemoryStore()
    hierarchy(store, 3)
    xzarr3.consolidate_metadata(store)
    assert xzarr3.copy(store, MemoryStore(), zarr_format=2).consolidated
    assert not xzarr3.copy(store, MemoryStore(), zarr_format=2, consolidated=False).consolidated
    draft = MemoryStore()
    xzarr3.copy(store, draft, zarr_format="3-draft")
    assert_same(xzarr3.open_group(store), xzarr3.open_group(draft))


@pytest.mark.parametrize("places", [
    "outer: outer:", "outer: outer:below", "outer:deep outer:deep/er/copy", "outer:deep/er outer:deep",
    "outer/f4: outer:", "outer: outer/f4:", "outer: outer/f4/copy:", "outer/f4: link:",
])  # fmt: skip
def test_a_source_that_overlaps_the_target_is_refused(places: str, tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "outer")
    hierarchy(store, 3)
    (tmp_path / "link").symlink_to(tmp_path / "outer")
    before = contents(store), sorted(tmp_path.rglob("*"))
    (source, source_path), (target, path) = (each.split(":") for each in places.split())
    copy = partial(xzarr3.copy, tmp_path / source, tmp_path / target, overwrite=True)
    words = "choose another path|contains the other"
    refused(NodeExistsError, words, partial(copy, source_path=source_path, path=path))
    assert (contents(store), sorted(tmp_path.rglob("*"))) == before


def test_stores_of_a_folder_and_of_one_above_it_overlap(fault_server: FaultServer, tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}/outer"
    remote = (fault_server.storage_options, "s3://bucket/outer")
    for options, place in (({}, str(tmp_path / "outer")), ({}, url), remote):
        outer, inner = (xzarr3.open_store(each, options, mode="a") for each in (place, f"{place}/inner"))
        xzarr3.create_array(inner, data=np.arange(3))
        xzarr3.create_array(outer, "b", data=np.arange(3))
        cached = xzarr3.CacheStore(inner)
        places = ((inner, outer, ""), (cached, outer, ""), (outer, inner, "a"), (inner, outer, "inner/a"))
        for source, target, path in places:
            with pytest.raises(NodeExistsError, match="contains the other"):
                xzarr3.copy(source, target, path=path, overwrite=True)
        assert xzarr3.copy(inner, outer, path="beside").shape == (3,)


@pytest.mark.parametrize("path", ["", "g/a"])
def test_a_failed_copy_leaves_what_was_there(store: Store, path: str) -> None:
    class Broken(MemoryStore):
        def get(self, key: str, *arguments: Any) -> Any:
            if key.endswith("c/3"):
                raise xzarr3.StoreError("cannot be read")
            return super().get(key, *arguments)

    source = Broken()
    xzarr3.create_array(source, data=np.arange(10), chunks=2)
    refused(xzarr3.StoreError, "cannot be read", lambda: xzarr3.copy(source, store, path=path))
    assert contents(store) == {}
    xzarr3.create_array(store, path, data=np.ones(3), chunks=1)
    before = contents(store)
    with pytest.raises(xzarr3.StoreError, match="cannot be read"):
        xzarr3.copy(source, store, path=path, overwrite=True)
    assert contents(store) == before
    empty = MemoryStore()
    xzarr3.create_array(empty, shape=10, chunks=2, dtype="i8")
    assert not xzarr3.copy(empty, store, path=path, overwrite=True)[...].any()


@pytest.mark.parametrize("kind", [MemoryStore, WaitingStore])
@pytest.mark.parametrize("zarr_format", [3, 2])
@pytest.mark.parametrize("joined", [False, True])
def test_values_are_not_copied_with_the_scale_of_an_older_handle(
    joined: bool, zarr_format: Any, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, packed = kind(), {"scale_factor": 0.5}
    options: dict[str, Any] = {"data": np.arange(6), "chunks": 2, "attributes": packed}
    array = xzarr3.create_array(store, "a", zarr_format=zarr_format, **options)
    array[0] = 0
    source = xzarr3.concat([array, array], 0) if joined else array
    other = xzarr3.open_array(store, "a", mode="r+")
    for scale in (0.25, 0.5):
        other.attrs["scale_factor"] = scale
        other[...] = np.arange(6) / scale
        late = time.monotonic() + 2.1  # What was seen before is looked at again.
        monkeypatch.setattr(time, "monotonic", partial(float, late))
        for chunks in ("keep", 3):
            target = MemoryStore()
            if scale == 0.25:
                with pytest.raises(ChangedError, match=r"'scale_factor' is 0\.25 and was 0\.5"):
                    xzarr3.copy(source, target, chunks=chunks)
                assert not [*target.list()]
            else:
                assert xzarr3.copy(source, target, chunks=chunks)[:6].tolist() == [*range(0, 12, 2)]
    assert source[:6].tolist() == [*range(0, 12, 2)]


def test_chunks_that_were_left_behind_are_nobodys(store: Store) -> None:
    xzarr3.create_array(store, "g/a", data=np.arange(8), chunks=2)
    store.erase("g/a/zarr.json")
    before = contents(store)
    with pytest.raises(NodeExistsError, match="4 keys"):
        xzarr3.create_array(store, "g/a", shape=8, chunks=2, dtype="i8")
    with pytest.raises(NodeExistsError, match="not empty"):
        xzarr3.copy(xzarr3.create_array(MemoryStore(), shape=8, dtype="i8"), store, path="g/a")
    assert contents(store) == before
    array = xzarr3.create_array(store, "g/a", shape=8, chunks=2, dtype="i8", overwrite=True)
    assert not array[...].any()


def test_huge_sparse_arrays_are_copied_without_walking_through_them() -> None:
    store = MemoryStore()
    layout = {"shape": (10**6, 10**6), "chunks": (1000, 1000), "dtype": "i2", "compressors": "gzip"}
    array = xzarr3.create_array(store, "a", fill_value=-1, **layout)
    array[5, 7] = array[999_999, 999_999] = 3
    sharded = xzarr3.create_array(store, "b", shape=10**9, chunks=1000, shards=10**6, dtype="i1")
    sharded[10**8 : 10**8 + 5] = 1
    copied = xzarr3.copy(store, MemoryStore(), zarr_format=3, compressors="zstd", shards=None)
    assert copied["a"][5, 6:8].tolist() == copied["a"][999_999, 999_998:].tolist() == [-1, 3]
    assert copied["b"].shards is None
    assert copied["b"][10**8 - 1 : 10**8 + 6].tolist() == [0, 1, 1, 1, 1, 1, 0]


def test_nodes_that_no_group_leads_to_are_not_lost() -> None:
    store = MemoryStore()
    xzarr3.create_array(store, "g/h/a", data=np.arange(3), zarr_format=2)
    store.erase("g/.zgroup")
    target = MemoryStore()
    refused(MetadataError, r"g/h.*no document", lambda: xzarr3.copy(store, target))
    assert list(target.list()) == []


def test_what_xarray_masks_in_text_scalars_and_by_attributes(tmp_path: Path) -> None:
    text = ["", "a", "b"]
    kinds = {"text": np.array(text, "U3"), "string": np.array(text, object), "raw": np.array(text, "S3")}
    dataset = xr.Dataset({name: ("x", values) for name, values in kinds.items()} | {"scalar": 5.0})
    dataset.to_zarr(tmp_path / "3.zarr", zarr_format=3, consolidated=False)
    xzarr3.copy(tmp_path / "3.zarr", tmp_path / "2.zarr", zarr_format=2)
    for engine in ("zarr", "xzarr3"):
        with xr.open_dataset(tmp_path / "2.zarr", engine=engine, consolidated=False) as found:
            assert found.text.values.tolist() == found.string.values.tolist() == text
            assert found.scalar.item() == 5.0


@pytest.mark.parametrize("fill", [-1, None])
@pytest.mark.parametrize("dtype", ["i2", "f4"])
def test_a_fill_value_beside_an_attribute(dtype: str, fill: int | None, tmp_path: Path) -> None:
    """NCZarr writes both; xarray masks the fill value, and the attribute only where that is null."""
    old, new = tmp_path / "2.zarr", tmp_path / "3.zarr"
    xzarr3.create_array(
        old, "v", data=np.array([0, -1, 5], dtype), zarr_format=2, fill_value=-1, dimension_names=["x"],
        attributes={"_FillValue": 0},
    )  # fmt: skip
    if fill is None:
        document = json.loads((old / "v/.zarray").read_text())
        (old / "v/.zarray").write_text(json.dumps({**document, "fill_value": None}))
    xzarr3.copy(old, new, zarr_format=3)
    expected = [0, np.nan, 5] if fill is not None else [np.nan, -1, 5]
    for engine, path in itertools.product(("xzarr3", "zarr"), (old, new)):
        with xr.open_dataset(path, engine=engine, consolidated=False) as found:
            np.testing.assert_array_equal(found.v.values, expected, err_msg=f"{engine} {path.name}")


def test_names_of_dimensions_in_an_attribute_of_version_3(tmp_path: Path) -> None:
    attributes = {"_ARRAY_DIMENSIONS": ["x"], "units": "K"}
    xzarr3.create_array(tmp_path / "3.zarr", "v", data=np.arange(3), attributes=attributes)
    xzarr3.copy(tmp_path / "3.zarr", tmp_path / "2.zarr", zarr_format=2)
    with xr.open_dataset(tmp_path / "2.zarr", engine="xzarr3") as found:
        assert (found.v.values.tolist(), found.v.attrs) == ([0, 1, 2], {"units": "K"})


def test_codecs_that_need_not_be_understood_are_not_those_of_new_chunks() -> None:
    store = MemoryStore()
    xzarr3.create_array(store, "a", data=np.arange(4), compressors=None)
    document = json.loads(bytes(store.get("a/zarr.json")))
    document["codecs"].append({"name": "example.note", "must_understand": False})
    store.set("a/zarr.json", json.dumps(document).encode())
    assert xzarr3.copy(store, MemoryStore())["a"][...].tolist() == [0, 1, 2, 3]
    target = MemoryStore()
    assert xzarr3.copy(store, target, compressors="gzip")["a"][...].tolist() == [0, 1, 2, 3]
    names = [codec["name"] for codec in json.loads(bytes(target.get("a/zarr.json")))["codecs"]]
    assert names == ["bytes", "gzip"]


def test_nodes_are_not_lost_that_consolidated_metadata_or_lists_lack() -> None:
    store, unlisted = MemoryStore(), WaitingStore(listable=False)
    xzarr3.create_array(store, "g/a", data=np.arange(3))
    xzarr3.consolidate_metadata(store)
    stale = bytes(store.get("zarr.json"))
    for key in store.list():
        unlisted.set(key, store.get(key))
    assert xzarr3.copy(unlisted, MemoryStore())["g/a"][...].tolist() == [0, 1, 2]
    xzarr3.create_array(store, "b", data=np.arange(4))
    store.set("zarr.json", stale)
    source = xzarr3.open_group(store)
    assert list(source) == ["g"]
    copied = xzarr3.copy(source, MemoryStore())
    assert copied.consolidated
    assert copied["b"][...].tolist() == [0, 1, 2, 3]


GRID = np.arange(64).reshape(8, 8)
PACKING = {"id": "fixedscaleoffset", "dtype": "<f8", "astype": "|u1", "scale": 4.0, "offset": 0.0}
FILTERED: dict[str, tuple[Any, dict[str, Any]]] = {
    "delta": (GRID**2, {"filters": [{"id": "delta", "dtype": "<i8"}]}),
    "delta in single bytes": (GRID.astype("<i4"), {"filters": [{**DELTA, "astype": "|i1"}]}),
    "packed": (GRID / 4, {"filters": [PACKING]}),
    "big endian": (GRID.astype(">i2"), {"filters": [{"id": "delta", "dtype": ">i2"}]}),
    "transposed": (GRID, {"order": "F"}),
}


@pytest.mark.parametrize(("kind", "old"), [(kind, old) for kind in FILTERED for old in (3, 2)])
def test_an_array_with_a_filter_goes_where_there_are_none(kind: str, old: Any) -> None:
    data, options = FILTERED[kind]
    store = MemoryStore()
    array = xzarr3.create_array(store, "a", data=data, chunks=(3, 3), zarr_format=old, **options)
    xzarr3.create_array(store, "b", data=np.arange(3), compressors="gzip", zarr_format=old)
    assert array.filters
    stored = bytes(store.get("b/0" if old == 2 else "b/c/0"))
    for new in FORMATS:
        copied = xzarr3.copy(store, MemoryStore(), zarr_format=new, filters=None, compressors="gzip")
        for array_copied in (copied["a"], xzarr3.open_array(copied.store, "a")):
            np.testing.assert_array_equal(array_copied[...], data)
            assert (array_copied.filters, array_copied.compressors) == ((), (GzipCodec(),))
    kept = xzarr3.copy(store, MemoryStore(), filters=None)
    assert kept["a"].compressors == array.compressors
    assert kept.store.get("b/0" if old == 2 else "b/c/0") == stored


@pytest.mark.parametrize("old", [3, 2])
def test_a_copy_with_other_filters_and_serializers(old: Any) -> None:
    store = MemoryStore()
    data = np.arange(64, dtype="<i4").reshape(8, 8)
    xzarr3.create_array(store, "a", data=data, chunks=(4, 4), compressors="gzip", zarr_format=old)
    copied = xzarr3.copy(store, MemoryStore(), filters=[DELTA])["a"]
    assert [codec.name for codec in copied.filters] == ["numcodecs.delta"]
    np.testing.assert_array_equal(xzarr3.open_array(copied.store, "a")[...], data)
    big = {"name": "bytes", "configuration": {"endian": "big"}}
    copied = xzarr3.copy(store, MemoryStore(), zarr_format=3, serializer=big, compressors=None)["a"]
    assert copied.store.get("a/c/0/0") == data[:4, :4].astype(">i4").tobytes()
    np.testing.assert_array_equal(copied[...], data)
    usual = xzarr3.copy(copied.store, MemoryStore(), serializer="auto")["a"]
    assert usual.store.get("a/c/0/0") == data[:4, :4].tobytes()
    with pytest.raises(MetadataError, match=r"'/a'.*zstd"):
        xzarr3.copy(store, MemoryStore(), filters="zstd", zarr_format=3)
    refused(MetadataError, r"gzip", lambda: xzarr3.copy(store, MemoryStore(), serializer="gzip"))


def test_filters_within_shards_are_left_out() -> None:
    store, data = MemoryStore(), np.arange(64, dtype="<i4")
    xzarr3.create_array(store, "a", data=data, chunks=8, shards=32, filters=[DELTA])
    copied = xzarr3.copy(store, MemoryStore(), filters=None)["a"]
    assert (copied.shards, copied.filters) == ((32,), ())
    np.testing.assert_array_equal(copied[...], data)


@pytest.mark.parametrize("dtype", ["str", "U3"])
@pytest.mark.parametrize(("attributes", "marks"), [
    ({"_FillValue": "b"}, "NA"),
    ({"missing_value": "b"}, ["b", "NA"]), ({"missing_value": ["b", "NA"]}, ["b", "NA"]),
])  # fmt: skip
def test_copy_keeps_what_text_is_missing(dtype: str, attributes: Any, marks: Any, tmp_path: Path) -> None:
    paths = [tmp_path / f"{at}" for at in range(3)]
    root = xzarr3.create_group(paths[0], zarr_format=2)
    settings = {"fill_value": "NA", "dimension_names": ["x"], "attributes": attributes}
    root.create_array("s", shape=4, chunks=4, dtype=dtype, **settings)[:] = np.array(["a", "NA", "", "b"])
    xzarr3.copy(paths[0], paths[1], zarr_format=3)
    xzarr3.copy(paths[1], paths[2], zarr_format=2)
    ways = itertools.product(map(str, paths), ("zarr", "xzarr3"))
    found = [xr.open_dataset(path, engine=engine, consolidated=False) for path, engine in ways]
    assert found[0].s.isnull().values[1]
    for ds in found[1:]:
        assert ds.s.values.tolist()[2] == ""
        xr.testing.assert_equal(ds.load(), found[0].load())
    assert dict(xzarr3.open_array(paths[1], path="s").attrs) == {"missing_value": marks}


def test_names_of_dimensions_in_a_document_of_nczarr() -> None:
    """That document is not copied; the names that it alone has are."""
    source, target = MemoryStore(), MemoryStore()
    xzarr3.create_group(source, zarr_format=2).create_array("v", data=np.ones((4, 6)))
    source.set(".nczgroup", b"{}")
    source.set("v/.nczarray", b'{"dimrefs": ["/y", "/x"]}')
    assert xzarr3.open_array(source, "v").dimension_names == ("y", "x")
    xzarr3.copy(source, target)
    assert xzarr3.open_array(target, "v").dimension_names == ("y", "x")
