"""Arrays and groups of version 2: made, changed, resized, erased, consolidated and copied."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xzarr3
from xzarr3 import MetadataError, NodeExistsError, NodeNotFoundError, NodeTypeError


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> xzarr3.Store:
    if request.param == "memory":
        return xzarr3.MemoryStore()
    return xzarr3.LocalStore(tmp_path / "root.zarr")


def keys(store: xzarr3.Store) -> list[str]:
    return sorted(store.list())


def document(store: xzarr3.Store, key: str) -> Any:
    data = store.get(key)
    assert data is not None
    return json.loads(bytes(data))


def array_of(group: xzarr3.Group, path: str) -> xzarr3.Array:
    found = group[path]
    assert isinstance(found, xzarr3.Array)
    return found


def sample(store: xzarr3.Store) -> xzarr3.Group:
    """A hierarchy of three levels."""
    root = xzarr3.create_group(store, attributes={"title": "root"}, zarr_format=2)
    root.create_array("a", data=np.arange(6, dtype="<i4"), chunks=2, compressors=None)
    root.create_array("g/x", data=np.arange(4.0), chunks=3, dimension_names=["t"], compressors=None)
    return root


def test_what_is_stored(store: xzarr3.Store) -> None:
    root = sample(store)
    assert root.zarr_format == 2
    assert root["a"].zarr_format == root["g"].zarr_format == 2
    assert keys(store) == [
        ".zattrs", ".zgroup", "a/.zarray", "a/.zattrs", "a/0", "a/1", "a/2", "g/.zattrs", "g/.zgroup",
        "g/x/.zarray", "g/x/.zattrs", "g/x/0", "g/x/1",
    ]  # fmt: skip
    assert document(store, ".zgroup") == {"zarr_format": 2}
    assert document(store, ".zattrs") == {"title": "root"}
    assert document(store, "a/.zarray") == {
        "zarr_format": 2,
        "shape": [6],
        "chunks": [2],
        "dtype": "<i4",
        "compressor": None,
        "fill_value": 0,
        "order": "C",
        "filters": None,
        "dimension_separator": ".",
    }
    assert document(store, "g/x/.zattrs") == {"_ARRAY_DIMENSIONS": ["t"]}
    assert bytes(store.get("a/1") or b"") == np.array([2, 3], "<i4").tobytes()


def test_what_is_opened(store: xzarr3.Store) -> None:
    sample(store)
    root = xzarr3.open_group(store)
    assert root.zarr_format == 2
    assert sorted(root) == ["a", "g"]
    assert [name for name, _ in root.members(max_depth=None)] == ["a", "g", "g/x"]
    assert array_of(root, "g/x").dimension_names == ("t",)
    assert dict(root["g/x"].attrs) == {}
    assert array_of(root, "a")[...].tolist() == [0, 1, 2, 3, 4, 5]
    assert xzarr3.open_array(store, "g/x")[...].tolist() == [0.0, 1.0, 2.0, 3.0]
    with pytest.raises(NodeNotFoundError):
        xzarr3.open(store, zarr_format=3)
    with pytest.raises(NodeNotFoundError):
        xzarr3.open(store, "b")
    with pytest.raises(NodeTypeError):
        xzarr3.open_group(store, "a")


def test_a_group_has_one_format(store: xzarr3.Store) -> None:
    root = sample(store)
    assert root.create_array("b", shape=2, dtype="i2").zarr_format == 2
    with pytest.raises(MetadataError, match="zarr_format"):
        xzarr3.create_array(store, "c", shape=2, dtype="i2", zarr_format=3)
    assert not any(key.endswith("zarr.json") for key in keys(store))


def test_attributes(store: xzarr3.Store) -> None:
    array = sample(store)["g/x"]
    array.attrs["units"] = "m"
    assert document(store, "g/x/.zattrs") == {"_ARRAY_DIMENSIONS": ["t"], "units": "m"}
    assert dict(xzarr3.open_array(store, "g/x").attrs) == {"units": "m"}
    group = xzarr3.open_group(store, mode="r+")
    group.attrs.update(n=[1, None])
    assert document(store, ".zattrs") == {"title": "root", "n": [1, None]}
    del group.attrs["title"]
    assert document(store, ".zattrs") == {"n": [1, None]}
    with pytest.raises(MetadataError):
        group.attrs["bad"] = float("nan")
    assert document(store, ".zattrs") == {"n": [1, None]}


def test_attributes_of_netcdf_stay(store: xzarr3.Store) -> None:
    sample(store)
    text = {
        "_nczarr_array": {"dimension_references": ["/y"], "storage": "chunked"},
        "_NCProperties": "version=2",
    }
    store.set("a/.zattrs", json.dumps(text).encode())
    store.set("a/.zarray", json.dumps({**document(store, "a/.zarray"), "_NCZARR_ARRAY": {"x": 1}}).encode())
    array = xzarr3.open_array(store, "a", mode="r+")
    assert array.dimension_names == ("y",)
    array.attrs["n"] = 1
    assert document(store, "a/.zattrs") == {**text, "_ARRAY_DIMENSIONS": ["y"], "n": 1}
    assert document(store, "a/.zarray")["_NCZARR_ARRAY"] == {"x": 1}


def test_resize_and_append(store: xzarr3.Store) -> None:
    array = array_of(sample(store), "a")
    array.resize(3)
    assert document(store, "a/.zarray")["shape"] == [3]
    assert [key for key in keys(store) if key.startswith("a/")] == ["a/.zarray", "a/.zattrs", "a/0", "a/1"]
    array.append(np.array([9, 8], "<i4"))
    assert xzarr3.open_array(store, "a")[...].tolist() == [0, 1, 2, 9, 8]
    array.resize(7)
    assert array[...].tolist() == [0, 1, 2, 9, 8, 0, 0]


@pytest.mark.parametrize("separator", [".", "/"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_two_dimensions(store: xzarr3.Store, order: Any, separator: str) -> None:
    values = np.arange(63, dtype=">f4").reshape(7, 9)
    array = xzarr3.create_array(
        store, "a", data=values, chunks=(3, 4), order=order, zarr_format=2, fill_value=np.nan,
        chunk_key_encoding={"name": "v2", "separator": separator},
    )  # fmt: skip
    assert document(store, "a/.zarray")["order"] == order
    assert document(store, "a/.zarray")["dtype"] == ">f4"
    assert document(store, "a/.zarray")["fill_value"] == "NaN"
    assert array.dtype == "=f4"
    assert f"a/2{separator}1" in keys(store)
    array[2:5, 3:] = -1
    values[2:5, 3:] = -1
    found = xzarr3.open_array(store, "a")
    assert found[...].tolist() == values.tolist()
    assert found[::2, 8].tolist() == values[::2, 8].tolist()
    array.resize((4, 20))
    wanted = np.full((4, 20), np.nan)
    wanted[:, :9] = values[:4]
    np.testing.assert_array_equal(xzarr3.open_array(store, "a")[...], wanted)


def test_chunks_are_in_the_order_that_is_asked_for() -> None:
    values = np.arange(6, dtype="<i2").reshape(2, 3)
    store = xzarr3.MemoryStore()
    xzarr3.create_array(store, data=values, order="F", zarr_format=2, compressors=None)
    assert bytes(store.get("0.0") or b"") == values.tobytes("F")
    store = xzarr3.MemoryStore()
    xzarr3.create_array(store, data=values.astype(">i2"), zarr_format=2, compressors=None)
    assert bytes(store.get("0.0") or b"") == values.astype(">i2").tobytes()


@pytest.mark.parametrize(
    "options",
    [
        {"shards": (4, 6)},
        {"chunks": [[1, 3], 3]},
        {"chunk_key_encoding": "default"},
        {"filters": [{"name": "transpose", "configuration": {"order": [1, 0, 2]}}], "shape": (4, 6, 2),
         "chunks": (2, 3, 1)},
        {"dimension_names": ["y", None]},
        {"filters": [{"id": "delta", "dtype": "<i2", "astype": ">i2"}]},
    ],
    ids=str,
)  # fmt: skip
def test_what_version_2_has_no_words_for(store: xzarr3.Store, options: dict[str, Any]) -> None:
    given = {"shape": (4, 6), "dtype": "<i2", "chunks": (2, 3), **options}
    with pytest.raises(MetadataError) as caught:
        xzarr3.create_array(store, "a", zarr_format=2, **given)
    assert caught.value.path == "a"
    assert keys(store) == []


# Consolidated metadata


def test_consolidated_metadata_follow(store: xzarr3.Store) -> None:
    sample(store)
    root = xzarr3.consolidate_metadata(store)
    assert root.consolidated

    def held() -> dict[str, Any]:
        found: dict[str, Any] = document(store, ".zmetadata")["metadata"]
        return found

    assert sorted(held()) == [
        ".zattrs", ".zgroup", "a/.zarray", "a/.zattrs", "g/.zattrs", "g/.zgroup", "g/x/.zarray",
        "g/x/.zattrs",
    ]  # fmt: skip
    xzarr3.open_array(store, "g/x", mode="r+").attrs["n"] = 1
    assert held()["g/x/.zattrs"] == {"_ARRAY_DIMENSIONS": ["t"], "n": 1}
    xzarr3.open_array(store, "a", mode="r+").resize(9)
    assert held()["a/.zarray"]["shape"] == [9]
    root = xzarr3.open_group(store, mode="r+")
    assert root.consolidated
    assert root["g/x"].attrs["n"] == 1
    root.attrs["title"] = "new"
    assert held()[".zattrs"] == {"title": "new"}
    assert xzarr3.open_group(store).attrs["title"] == "new"
    root.create_array("h/i/y", shape=2, dtype="u1")
    assert {"h/.zgroup", "h/i/.zgroup", "h/i/y/.zarray"} <= held().keys()
    del root["g"]
    assert not any(key.startswith("g") for key in [*held(), *keys(store)])
    assert sorted(xzarr3.open_group(store)) == ["a", "h"]
    root.create_array("a", shape=2, dtype="u1", overwrite=True)
    assert held()["a/.zarray"]["dtype"] == "|u1"


def test_consolidated_metadata_are_trusted_when_asked(store: xzarr3.Store) -> None:
    sample(store)
    xzarr3.consolidate_metadata(store)
    store.set("a/.zattrs", b'{"later": 1}')
    assert dict(xzarr3.open_group(store)["a"].attrs) == {}
    assert dict(xzarr3.open_group(store, use_consolidated=False)["a"].attrs) == {"later": 1}


# Erasing


def test_overwriting_leaves_nothing(store: xzarr3.Store) -> None:
    sample(store)
    xzarr3.consolidate_metadata(store)
    for key in (".nczarr", "a/.nczarray", "a/.nczattr", "g/.nczgroup"):
        store.set(key, b"{}")
    xzarr3.create_group(store, overwrite=True, zarr_format=2)
    assert keys(store) == [".zattrs", ".zgroup"]


def test_what_is_no_part_of_it_is_not_erased(store: xzarr3.Store) -> None:
    root = sample(store)
    store.set("a/notes.txt", b"mine")
    del root["a"]
    assert [key for key in keys(store) if key.startswith("a/")] == ["a/notes.txt"]
    xzarr3.create_group(store, overwrite=True, zarr_format=2)
    assert keys(store) == [".zattrs", ".zgroup", "a/notes.txt"]
    assert store.get("a/notes.txt") == b"mine"


def test_formats_replace_each_other(store: xzarr3.Store) -> None:
    sample(store)
    xzarr3.create_array(store, data=np.arange(3), overwrite=True, zarr_format=3)
    assert keys(store) == ["c/0", "zarr.json"]
    xzarr3.create_array(store, data=np.arange(3), overwrite=True, zarr_format=2)
    assert keys(store) == [".zarray", ".zattrs", "0"]


def test_what_exists_is_not_replaced(store: xzarr3.Store) -> None:
    root = sample(store)
    before = keys(store)
    with pytest.raises(NodeExistsError):
        root.create_array("a", shape=2, dtype="i2")
    with pytest.raises(NodeTypeError):
        root.create_array("a/b", shape=2, dtype="i2")
    assert keys(store) == before


# Copies


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
    document = json.loads((tmp_path / "b/zarr.json").read_text())
    assert [codec["name"] for codec in document["codecs"]] == ["transpose", "bytes", "blosc"]
    assert document["codecs"][1]["configuration"] == {"endian": "big"}
    assert document["codecs"][2]["configuration"]["typesize"] == 4
    assert copied.dimension_names == ("y", "x")
    assert copied[...].tolist() == values.tolist()
    back: Any = xzarr3.copy(tmp_path / "b", tmp_path / "c", zarr_format=2)
    assert back[...].tolist() == values.tolist()
    assert (tmp_path / "c/2.1").read_bytes() == (tmp_path / "a/2.1").read_bytes()
    found = json.loads((tmp_path / "c/.zarray").read_text())
    wanted = json.loads((tmp_path / "a/.zarray").read_text())
    wanted["compressor"]["shuffle"] = 1
    assert {**found, "fill_value": None} == {**wanted, "fill_value": None}
    xzarr3.copy(tmp_path / "a", tmp_path / "d", zarr_format=2)
    assert json.loads((tmp_path / "d/.zarray").read_text()) == json.loads(path.read_text())
    other: Any = xzarr3.copy(tmp_path / "a", tmp_path / "e", compressors="zstd")
    assert other.metadata.codecs[-1].name == "zstd"
    assert json.loads((tmp_path / "e/.zarray").read_text())["compressor"]["id"] == "zstd"


# dask


def test_dask(tmp_path: Path) -> None:
    da = pytest.importorskip("dask.array")
    values = np.arange(120, dtype="<f4").reshape(10, 12)
    array = xzarr3.create_array(
        tmp_path / "a", shape=(10, 12), dtype="<f4", chunks=(5, 4), zarr_format=2, order="F"
    )
    xzarr3.store(da.from_array(values, chunks=(5, 12)), array)
    lazy = xzarr3.from_zarr(tmp_path / "a")
    assert lazy.chunks == ((5, 5), (4, 4, 4)) or lazy.shape == (10, 12)
    assert (lazy + 1).compute(scheduler="sync").tolist() == (values + 1).tolist()
