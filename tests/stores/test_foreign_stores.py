"""Stores, groups, arrays and paths of other libraries, wherever a store is named."""

from __future__ import annotations

import importlib.util
import pathlib
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import dask.array as da
import fsspec
import numpy as np
import obstore
import pytest
import upath
import xarray as xr
import zarr
from _slow import slow
from _things import Thing, refused
from zarr.core.buffer.cpu import Buffer
from zarr.storage import (
    FsspecStore,
    LocalStore,
    LoggingStore,
    MemoryStore,
    ObjectStore,
    StorePath,
    WrapperStore,
    ZipStore,
)

import xzarr3
import xzarr3.xarray
from xzarr3 import NodeTypeError, ReadOnlyError, StoreError, StoreOptionError, open_store
from xzarr3.stores.open import locate

HAS_ICECHUNK = importlib.util.find_spec("icechunk") is not None


class OwnStore(LocalStore):
    """A class of a user."""


def logged(base: Path) -> Any:
    return LoggingStore(MemoryStore(), log_level="ERROR")


def session(base: Path) -> Any:
    import icechunk

    storage = icechunk.local_filesystem_storage(str(base / "repository"))
    return icechunk.Repository.create(storage).writable_session("main").store


STORES: dict[str, Callable[[Path], Any]] = {
    "dict": lambda base: {},
    "MemoryStore": lambda base: MemoryStore(),
    "LocalStore": lambda base: LocalStore(base / "a"),
    "derived": lambda base: OwnStore(base / "a"),
    "LoggingStore": logged,
    "ObjectStore, memory": lambda base: ObjectStore(obstore.store.MemoryStore()),
    "ObjectStore, files": lambda base: ObjectStore(obstore.store.LocalStore(base)),
    "FsspecStore, memory": lambda base: FsspecStore.from_url(f"memory://{base.name}/a.zarr"),
    "FsspecStore, files": lambda base: FsspecStore.from_url(f"file://{base}/a.zarr", {"auto_mkdir": True}),
    "StorePath": lambda base: StorePath(MemoryStore(), "a/b"),
    "group": lambda base: zarr.open_group(LocalStore(base), path="a/b", mode="w"),
    "UPath, memory": lambda base: upath.UPath(f"memory://{base.name}/b.zarr"),
    "UPath, files": lambda base: upath.UPath(f"file://{base}/b.zarr"),
    "UPath, path": lambda base: upath.UPath(base / "b.zarr"),
    "pathlib": lambda base: pathlib.Path(base / "c.zarr"),
    "mapper": lambda base: fsspec.get_mapper(f"memory://{base.name}/d.zarr"),
    "obstore": lambda base: obstore.store.MemoryStore(),
}
if hasattr(zarr.storage, "ManagedMemoryStore"):  # zarr-python 3.1 has none.
    STORES["ManagedMemoryStore"] = lambda base: zarr.storage.ManagedMemoryStore(path="some/where")
if HAS_ICECHUNK:
    STORES["Icechunk"] = session

QUICK = ("dict", "LocalStore", "FsspecStore, memory", "StorePath", "UPath, files")
each_store = pytest.mark.parametrize(
    "make", [make if name in QUICK else slow(make) for name, make in STORES.items()], ids=STORES
)


def dataset() -> xr.Dataset:
    values = np.arange(60, dtype="float64").reshape(5, 12)
    values[0, 0] = np.nan
    coords = {"time": np.arange(5), "x": np.linspace(0, 1, 12)}
    return xr.Dataset({"t": (("time", "x"), values, {"units": "K"})}, coords, {"title": "T"})


def for_zarr_python(store: Any) -> tuple[Any, dict[str, Any]]:
    """What zarr-python takes for the same store, and the options for xarray's engine."""
    options: dict[str, Any] = {"consolidated": False, "zarr_format": 3}
    handle = getattr(store, "store_path", store)
    if isinstance(handle, StorePath):
        return handle.store, {**options, "group": handle.path}
    if type(store) is dict:
        assert all(isinstance(each, bytes) for each in store.values())
        return MemoryStore({key: Buffer.from_bytes(each) for key, each in store.items()}), options
    if type(store).__module__.startswith("obstore"):
        return ObjectStore(store), options
    return store, options


@each_store
def test_open_store_xarray_reads_what_was_written(make: Callable[[Path], Any], tmp_path: Path) -> None:
    store, ds = make(tmp_path), dataset()
    mode: Any = "w" if isinstance(store, zarr.Group) else None
    encoding = {"t": {"chunks": (2, 4), "shards": (4, 12)}}
    xzarr3.to_zarr(ds, store, mode=mode, encoding=encoding)
    place, options = for_zarr_python(store)
    with xr.open_dataset(place, engine="zarr", **options) as again:
        xr.testing.assert_identical(again.load(), ds)
    more = ds.isel(time=slice(0, 3)).assign_coords(time=[5, 6, 7]).chunk({"time": 2})
    with pytest.warns(UserWarning, match="may be lost") if warns(store) else nullcontext():
        xzarr3.to_zarr(more, store, append_dim="time")
    place, options = for_zarr_python(store)
    with xr.open_dataset(place, engine="zarr", **options) as again:
        xr.testing.assert_identical(again.load(), xr.concat([ds, more.load()], "time"))


def warns(store: Any) -> bool:
    """Whether an append tells that it cannot keep other processes away."""
    opened, _ = locate(store)
    return opened.traits.conditional == "threads" and opened.traits.visible == "at once"


@each_store
def test_what_xarrays_engine_wrote_is_read(make: Callable[[Path], Any], tmp_path: Path) -> None:
    store, ds = make(tmp_path), dataset()
    if type(store) is dict:
        pytest.skip("zarr-python would keep buffers of its own in it")
    place, options = for_zarr_python(store)
    if isinstance(store, upath.UPath) and store.protocol == "memory":
        place = FsspecStore.from_upath(store)
    ds.to_zarr(
        place,
        mode="w",
        encoding={"t": {"chunks": (2, 4)}},
        consolidated=False,
        group=options.get("group"),
        zarr_format=3,
    )
    with xr.open_dataset(store, engine="xzarr3", chunks={}) as again:
        xr.testing.assert_identical(again.load(), ds)
    xr.testing.assert_identical(xzarr3.open_dataset(store).load(), ds)
    assert xzarr3.open_group(store).attrs["title"] == "T"
    np.testing.assert_array_equal(xzarr3.from_zarr(store, "t")[1:, ::2], ds.t.values[1:, ::2])
    copied = xzarr3.copy(store, {})
    np.testing.assert_array_equal(copied["t"][:], ds.t.values)
    array = xzarr3.open_array(store, "t", mode="r+")
    array[3:5, 3:9] = -1
    with xr.open_dataset(place, engine="zarr", consolidated=False, group=options.get("group")) as again:
        np.testing.assert_array_equal(again.t[3:5, 3:9], np.full((2, 6), -1))


@each_store
def test_arrays_and_groups(make: Callable[[Path], Any], tmp_path: Path) -> None:
    store = make(tmp_path)
    root = xzarr3.open_group(store, mode="a", attributes={"a": 1})
    root.create_group("b").create_array("c", data=np.arange(10), chunks=3)
    made = xzarr3.create_array(store, "d", shape=(4, 4), chunks=(2, 2), dtype="f4", fill_value=1)
    made[1:3] = 5
    assert sorted(name for name, _ in xzarr3.open_group(store).members(max_depth=None)) == ["b", "b/c", "d"]
    with pytest.warns(UserWarning, match="may be lost") if warns(store) else nullcontext():
        made.resize((3, 4))
        made.resize((6, 4))
    np.testing.assert_array_equal(made[:, 0], [1, 5, 5, 1, 1, 1])
    xzarr3.create_array(store, "d", data=np.arange(3), overwrite=True)
    del root["b"]
    assert [name for name, _ in xzarr3.open_group(store).members()] == ["d"]
    np.testing.assert_array_equal(xzarr3.open_array(store, "d")[:], np.arange(3))
    assert xzarr3.recover(store) == []


@each_store
def test_trees_and_replacing(make: Callable[[Path], Any], tmp_path: Path) -> None:
    store, ds = make(tmp_path), dataset()
    tree = xr.DataTree.from_dict({"/": ds, "/below": ds + 1})
    mode: Any = "w" if isinstance(store, zarr.Group) else None
    xzarr3.to_zarr(tree, store, mode=mode)
    with xr.open_datatree(store, engine="xzarr3") as again:
        xr.testing.assert_identical(again.load(), tree)
    xzarr3.to_zarr((ds * 2).chunk({"time": 2}), store, mode="w")
    assert xr.open_dataset(store, engine="xzarr3").load().identical(ds * 2)
    opened, _ = locate(store)
    assert not [key for key in opened.list() if "below" in key or "xzarr3" in key]


# What is opened natively


def test_a_zip_of_zarr_python(tmp_path: Path) -> None:
    with ZipStore(tmp_path / "a.zip", mode="w") as store:
        xzarr3.create_array(store, "x", data=np.arange(6), chunks=4)
    with ZipStore(tmp_path / "a.zip", mode="r") as store:
        np.testing.assert_array_equal(zarr.open_array(store, path="x")[:], np.arange(6))
        assert type(open_store(store)) is xzarr3.ZipStore
        np.testing.assert_array_equal(xzarr3.open_array(store, "x")[:], np.arange(6))
        refused(ReadOnlyError, None, lambda: xzarr3.to_zarr(dataset(), store))


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda base: LocalStore(base), "LocalStore"),
        (lambda base: LocalStore(base, read_only=True), "LocalStore"),
        (lambda base: OwnStore(base), "ForeignStore"),
        (lambda base: MemoryStore(read_only=True), "ForeignStore"),
        (lambda base: ObjectStore(obstore.store.MemoryStore(), read_only=True), "ObjectStore"),
        (lambda base: ObjectStore(obstore.store.LocalStore(base)), "LocalStore"),
        (lambda base: FsspecStore.from_url("memory://x", read_only=True), "FsspecStore"),
        (lambda base: FsspecStore.from_url(f"file://{base}", read_only=True), "LocalStore"),
        (lambda base: FsspecStore.from_url("https://example.org/x.zarr", read_only=True), "ObjectStore"),
        (lambda base: LoggingStore(LocalStore(base, read_only=True)), "ForeignStore"),
        (lambda base: WrapperStore(LocalStore(base, read_only=True)), "LocalStore"),
        (lambda base: upath.UPath("s3://bucket/x.zarr", anon=True), "ObjectStore"),
        (lambda base: upath.UPath("https://example.org/x.zarr"), "ObjectStore"),
        (lambda base: fsspec.filesystem("memory"), "FsspecStore"),
        (lambda base: fsspec.get_mapper("memory://a"), "FsspecStore"),
        (lambda base: fsspec.get_mapper(str(base)), "LocalStore"),
        (lambda base: obstore.store.S3Store("bucket", skip_signature=True), "ObjectStore"),
    ],
)
def test_known_stores_are_opened_natively(make: Callable[[Path], Any], expected: str, tmp_path: Path) -> None:
    foreign = make(tmp_path)
    store = open_store(foreign)
    assert type(store).__name__ == expected
    if getattr(foreign, "read_only", False):
        assert store.read_only
        refused(ReadOnlyError, None, lambda: store.set("zarr.json", b""))


def test_options_of_a_upath_and_of_the_call_go_together() -> None:
    path = upath.UPath("s3://bucket/x.zarr", anon=True)
    store: Any = open_store(path, {"concurrency": 7})
    assert store.concurrency == 7
    refused(StoreOptionError, "MemoryStore", lambda: open_store(MemoryStore(), {"anon": True}))


@pytest.mark.parametrize("mode", ["a", "r+"])
def test_open_store_writes_no_zip_into_an_object_store(mode: Any) -> None:
    for url in ("s3://bucket/a.zip", "https://example.org/x/a.zip/"):
        with pytest.raises(StoreError, match=r"only read.*write a local zip, and upload it"):
            open_store(url, mode=mode)


# Handles


def test_handles_give_the_store_and_the_path(tmp_path: Path) -> None:
    root = zarr.open_group(LocalStore(tmp_path), mode="w")
    array = root.create_group("a").create_array("b", data=np.arange(4))
    np.testing.assert_array_equal(xzarr3.open_array(array)[:], np.arange(4))
    np.testing.assert_array_equal(xzarr3.open_array(root["a"], "b")[:], np.arange(4))
    np.testing.assert_array_equal(xzarr3.from_zarr(array), np.arange(4))
    assert xzarr3.open(root["a"]).path == "a"
    xzarr3.store(da.arange(4, chunks=2) * 2, array)
    xzarr3.store([da.ones(2, chunks=2)], [array], regions=[(slice(2, 4),)])
    np.testing.assert_array_equal(array[:], [0, 2, 1, 1])
    array[:] = np.arange(4)
    made = xzarr3.create_array(root["a"], "c/d", shape=3, dtype="i4")
    assert (made.path, made.store.folder) == ("a/c/d", str(tmp_path))
    assert xzarr3.create_group(StorePath(LocalStore(tmp_path), "e"), "f").path == "e/f"
    assert xzarr3.open_group(made.store).path == ""
    assert xzarr3.open_array(xzarr3.open_group(tmp_path, "a"), "b").path == "a/b"
    assert xzarr3.copy(root["a"], root, path="copied")["b"].shape == (4,)
    assert xzarr3.consolidate_metadata(root["a"]).path == "a"
    refused(NodeTypeError, None, lambda: xzarr3.open_group(array))
    reading = zarr.open_group(LocalStore(tmp_path, read_only=True), mode="r")
    refused(ReadOnlyError, None, lambda: xzarr3.create_group(reading, "g"))
    assert open_store(root) == open_store(tmp_path)
    refused(TypeError, r"Group of '/a' in .* is no whole store", lambda: open_store(root["a"]))


def test_a_zip_of_the_user_stays_open(tmp_path: Path) -> None:
    """Also if it is named by one of its groups."""
    with xzarr3.ZipStore(tmp_path / "a.zip", mode="w") as archive:
        group = xzarr3.create_group(archive, "a")
        xzarr3.to_zarr(dataset(), group, group="b")
        xzarr3.copy({"zarr.json": b'{"zarr_format": 3, "node_type": "group"}'}, group, path="c")
        xzarr3.create_array(group, "d", data=np.arange(3))
    assert sorted(xzarr3.open_group(tmp_path / "a.zip", "a")) == ["b", "c", "d"]


OPENERS: list[Callable[[Any], object]] = [
    *(xzarr3.open, xzarr3.open_group, xzarr3.create_group, xzarr3.from_zarr, xzarr3.recover),
    *(xzarr3.consolidate_metadata, xzarr3.open_dataset),
    lambda thing: xzarr3.copy(thing, {}),
    lambda thing: xzarr3.copy({"zarr.json": b'{"zarr_format": 3, "node_type": "group"}'}, thing),
]
THINGS = [
    *(Thing(), 5, None, ["a"], b"path", np.arange(3)),
    *(xr.Dataset(), zarr.storage, Buffer.from_bytes(b"")),
]


@pytest.mark.parametrize(
    ("use", "thing"), [*((open_store, each) for each in THINGS), *((use, Thing()) for use in OPENERS)]
)
def test_other_things_are_refused(use: Callable[[Any], object], thing: Any) -> None:
    accepted = "a path, a URL, .* dict .*Icechunk.*obstore"
    refused(TypeError, rf"not a store: .*; accepted: {accepted}", lambda: use(thing))
