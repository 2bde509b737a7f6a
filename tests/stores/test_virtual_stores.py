"""Chunks that are parts of other files: manifests of VirtualiZarr, and references of kerchunk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from _conformance import contents, plain

import xzarr3
from xzarr3 import NodeNotFoundError, ReadOnlyError, StoreError, open_store

manifests = pytest.importorskip("virtualizarr.manifests")
registry = pytest.importorskip("obspec_utils.registry")
obstore = pytest.importorskip("obstore.store")

VALUES = np.arange(35, dtype="<i4").reshape(5, 7)
AROUND = b"#" * 100
"""Bytes of the file before and after each chunk, which are part of none."""


def file_of(chunks: dict[str, bytes], path: Path) -> dict[str, dict[str, Any]]:
    """Write chunks into one file; returns their places."""
    content, places = b"", {}
    for name, value in chunks.items():
        content += AROUND
        places[name] = {"path": path.as_uri(), "offset": len(content), "length": len(value)}
        content += value
    path.write_bytes(content + AROUND)
    return places


def array_of(values: Any, chunks: tuple[int, ...], path: Path, left_out: str = "", **options: Any) -> Any:
    """A virtual array whose chunks are in one file."""
    from virtualizarr.manifests.utils import create_v3_array_metadata

    pieces: dict[str, bytes] = {}
    grid = tuple(-(-size // length) for size, length in zip(values.shape, chunks, strict=True))
    for coords in np.ndindex(*grid):
        block = np.zeros(chunks, values.dtype)
        place = tuple(slice(at * n, (at + 1) * n) for at, n in zip(coords, chunks, strict=True))
        part = values[place]
        block[tuple(map(slice, part.shape))] = part
        pieces[".".join(map(str, coords)) or "0"] = block.tobytes()
    pieces.pop(left_out, None)
    metadata = create_v3_array_metadata(
        shape=values.shape,
        data_type=values.dtype,
        chunk_shape=chunks,
        fill_value=0,
        codecs=[{"name": "bytes", "configuration": {"endian": "little"}}],
        **options,
    )
    return manifests.ManifestArray(
        metadata=metadata, chunkmanifest=manifests.ChunkManifest(file_of(pieces, path), shape=grid)
    )


@pytest.fixture
def virtual(tmp_path: Path) -> Any:
    """A group with an array of two dimensions, one of none, and a group below with another array."""
    names = ("y", "x")
    arrays = {
        "a": array_of(VALUES, (2, 3), tmp_path / "a.bin", left_out="1.1", dimension_names=names),
        "b": array_of(np.array(7, "<i4"), (), tmp_path / "b.bin", dimension_names=()),
    }
    dots = {"name": "default", "separator": "."}
    dotted = array_of(VALUES, (5, 2), tmp_path / "c.bin", dimension_names=names, chunk_key_encoding=dots)
    below = manifests.ManifestGroup(arrays={"c": dotted}, attributes={"deep": True})
    group = manifests.ManifestGroup(arrays=arrays, groups={"g": below}, attributes={"title": "V"})
    files = registry.ObjectStoreRegistry({"file://": obstore.LocalStore()})
    return manifests.ManifestStore(group, registry=files)


def with_hole() -> Any:
    values = VALUES.copy()
    values[2:4, 3:6] = 0
    return values


SELECTIONS: list[Any] = [..., (slice(1, 4), 2), (4, slice(None, None, 3)), ([0, 3, 1], [6, 6, 0])]


@pytest.mark.parametrize("selection", SELECTIONS, ids=repr)
def test_arrays(virtual: Any, selection: Any) -> None:
    array = xzarr3.open_array(virtual, "a")
    np.testing.assert_array_equal(array[selection], with_hole()[selection])
    np.testing.assert_array_equal(xzarr3.open_array(virtual, "g/c")[selection], VALUES[selection])
    assert xzarr3.open_array(virtual, "b")[()] == 7
    np.testing.assert_array_equal(xzarr3.from_zarr(virtual, "a").compute(), with_hole())


def test_it_reads_as_xarrays_engine_does(virtual: Any) -> None:
    options = {"consolidated": False, "zarr_format": 3}
    for group in ("", "g"):
        with (
            xr.open_dataset(virtual, engine="zarr", group=group, **options) as expected,
            xr.open_dataset(virtual, engine="xzarr3", group=group, chunks={}) as found,
        ):
            xr.testing.assert_identical(found.load(), expected.load())
    tree = xr.open_datatree(virtual, engine="xzarr3")
    assert tree.groups == ("/", "/g")


def test_nodes_that_are_not_there(virtual: Any) -> None:
    """VirtualiZarr has the document of a node above for each of them."""
    store = open_store(virtual)
    for path in ("none", "a/none", "g/none", "none/a", "g/c/d", "a/c"):
        with pytest.raises(NodeNotFoundError):
            xzarr3.open(virtual, path)
        assert store.get(f"{path}/zarr.json") is None
    for key in (
        ".zgroup",
        "a/.zarray",
        "a/README",
        "zarr",
        "g/c/0",
        "g/0.0",
        "none/c/0/0",
        "a/c/1/1",
        "a/c/0",
        "a/c.0.0",
    ):
        assert (store.get(key), store.exists(key), store.get(key, (0, 4))) == (None, False, None)


def test_no_part_goes_beyond_its_chunk(virtual: Any) -> None:
    store = open_store(virtual)
    value = bytes(store.get("a/c/0/0") or b"")
    assert len(value) == 24
    for start, length in ((0, 25), (20, 10), (24, 4), (30, None), (-30, None), (-30, 10), (-4, 10)):
        first = start if start >= 0 else max(24 + start, 0)
        expected = value[first:] if length is None else value[first : first + length]
        assert plain([store.get("a/c/0/0", (start, length))]) == [expected]


def test_lists(virtual: Any) -> None:
    store = open_store(virtual)
    keys = [f"a/c/{i}/{j}" for i in range(3) for j in range(3) if (i, j) != (1, 1)]
    keys += [f"g/c/c.0.{at}" for at in range(4)]
    keys += ["b/c", "zarr.json", "a/zarr.json", "b/zarr.json", "g/zarr.json", "g/c/zarr.json"]
    assert sorted(store.list()) == sorted(keys)
    assert sorted(contents(store)) == sorted(keys)
    assert store.list_dir("") == ({"zarr.json"}, {"a/", "b/", "g/"})
    assert store.list_dir("a/") == ({"a/zarr.json"}, {"a/c/"})
    assert store.list_dir("a/c/0/") == ({f"a/c/0/{at}" for at in range(3)}, set())
    assert store.list_dir("none/") == store.list_dir("g/none/") == (set(), set())


def test_a_copy_has_the_chunks_themselves(virtual: Any, tmp_path: Path) -> None:
    copied = xzarr3.copy(virtual, tmp_path / "copy.zarr")
    np.testing.assert_array_equal(copied["a"][...], with_hole())
    assert copied["g"].attrs == {"deep": True}
    for path in tmp_path.glob("*.bin"):
        path.unlink()
    np.testing.assert_array_equal(copied["g/c"][...], VALUES)
    with pytest.raises(StoreError, match="'a/c/0/0'"):
        xzarr3.open_array(virtual, "a")[0, 0]


def test_it_is_read_only(virtual: Any) -> None:
    store = open_store(virtual)
    assert (store.readable, store.listable, store.writeable, store.erasable) == (True, True, False, False)
    with pytest.raises(ReadOnlyError):
        xzarr3.create_array(virtual, "d", shape=3, dtype="i4")
    with pytest.raises(ReadOnlyError):
        xzarr3.to_zarr(xr.Dataset({"x": ("x", [1])}), virtual)


# From netCDF files


@pytest.fixture
def netcdf(tmp_path: Path) -> tuple[Path, xr.Dataset]:
    coords = {"time": np.arange(5), "x": np.linspace(0, 1, 7)}
    ds = xr.Dataset({"t": (("time", "x"), VALUES.astype("f4"), {"units": "K"})}, coords, {"title": "N"})
    path = tmp_path / "a.nc"
    ds.to_netcdf(path, format="NETCDF3_CLASSIC", engine="scipy")
    with xr.open_dataset(path, engine="scipy") as again:
        return path, again.load()


def by_virtualizarr(path: Path) -> Any:
    from virtualizarr.parsers import NetCDF3Parser

    files = registry.ObjectStoreRegistry({"file://": obstore.LocalStore()})
    return NetCDF3Parser()(url=path.as_uri(), registry=files), {}


def by_kerchunk(path: Path) -> Any:
    from kerchunk.netCDF3 import NetCDF3ToZarr

    references = json.loads(json.dumps(NetCDF3ToZarr(str(path)).translate()))
    return "reference://", {"storage_options": {"fo": references, "remote_protocol": "file"}}


@pytest.mark.parametrize("make", [by_virtualizarr, by_kerchunk])
def test_a_netcdf_file_is_read_through(make: Callable[[Path], Any], netcdf: tuple[Path, xr.Dataset]) -> None:
    path, ds = netcdf
    store, options = make(path)
    with xr.open_dataset(store, engine="xzarr3", chunks={}, **options) as found:
        xr.testing.assert_equal(found.load(), ds)
        assert found.t.attrs["units"] == "K"
