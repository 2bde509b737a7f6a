"""Paths, URLs, stores and nodes of other libraries, wherever a store is named; stores of zarr-python."""

import asyncio
import importlib.util
import pathlib
import pickle
import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import dask.array as da
import fsspec
import numpy as np
import obstore
import pytest
import upath
import xarray as xr
import zarr
from _conformance import INVALID_KEYS, VALUE, calls, contents, fill, not_refused, run_numbered
from _kinds import every_check
from _slow import slow
from _things import Thing, refused
from _unprivileged import run_child
from zarr.core.buffer.cpu import Buffer
from zarr.core.sync import sync
from zarr.storage import FsspecStore, LocalStore, LoggingStore, MemoryStore, ObjectStore, StorePath

import xzarr3
import xzarr3.xarray
from xzarr3 import NodeNotFoundError, NodeTypeError, ReadOnlyError, StoreError, open_store
from xzarr3.errors import StoreCapabilityError, StoreOptionError, StorePermissionError
from xzarr3.stores import foreign as module
from xzarr3.stores.open import locate

HAS_ICECHUNK = importlib.util.find_spec("icechunk") is not None


class OnDisk(LocalStore):
    """A class of a user, which may do anything."""


class InMemory(MemoryStore):
    """A class of a user whose answers a test may change."""


def quiet(store: Any) -> LoggingStore[Any]:
    return LoggingStore(store, log_level="ERROR")


test_foreign_store_in_memory = every_check(lambda base: open_store(MemoryStore()))
test_foreign_store_around_another = pytest.mark.slow(
    every_check(lambda base: open_store(quiet(MemoryStore())))
)
# It keeps empty directories, which look like prefixes.
test_foreign_store_of_files = every_check(lambda base: open_store(OnDisk(base)), leave_out=["erasing"])


def test_open_store_takes_paths_and_stores(tmp_path: Path) -> None:
    path = tmp_path / "a b#c%41.zarr"
    native = xzarr3.LocalStore(path)
    assert open_store(str(path)) == open_store(path) == open_store(f"file://{quote(str(path))}") == native
    for store in (xzarr3.MemoryStore(), xzarr3.LocalStore(path, read_only=True)):
        assert open_store(store) is store
    refused(StoreError, r"(?s)nowhere.*correct the URL", lambda: open_store("nowhere://a/b"))


def test_open_store_knows_zips(tmp_path: Path) -> None:
    path = tmp_path / "x.zarr.zip"
    refused(NodeNotFoundError, "ZipStore", lambda: open_store(path))
    with open_store(path, mode="a") as store:
        store.set("a", VALUE)
    assert open_store(f"file://{path}").get("a") == VALUE
    folder = tmp_path / "folder.zip"
    folder.mkdir()
    assert open_store(folder) == xzarr3.LocalStore(folder)
    for url in ("s3://archive.zip", "gs://archive.zip/", "https://data.zip/", "s3://a.zip/x.zarr"):
        # No bucket and no host is a zip.
        assert str(open_store(url)) == f"<ObjectStore '{url.rstrip('/')}'>"
    for url in ("s3://bucket/a.zip", "https://user:sesame@host/x/a.zip/"):
        for mode in ("a", "r+"):
            said = r"only read.*write a local zip, and upload it"
            (error,) = refused(StoreError, said, partial(open_store, url, mode=mode))
            assert "sesame" not in str(error)


def test_open_store_takes_options(tmp_path: Path) -> None:
    store = open_store(tmp_path, {"fsync": True, "read_only": True})
    assert (store, store.read_only) == (xzarr3.LocalStore(tmp_path, fsync=True, read_only=True), True)
    places = ((tmp_path, "anon"), (xzarr3.MemoryStore(), "read_only"), (tmp_path / "a.zip", "secret"))
    for place, option in places:
        (error,) = refused(TypeError, option, partial(open_store, place, {option: "hush"}))
        assert "hush" not in str(error)
    url: Any = open_store(upath.UPath("s3://bucket/x.zarr", anon=True), {"concurrency": 7})
    assert url.concurrency == 7
    refused(StoreOptionError, "MemoryStore", lambda: open_store(MemoryStore(), {"anon": True}))


@pytest.mark.parametrize(("make", "expected"), [
    *((lambda base, url=url: url, "ObjectStore")
      for url in ("s3://bucket/x", "https://example.invalid/x.zarr", "gs://a/b")),
    *((lambda base, url=url: url, "FsspecStore") for url in ("memory://x", "dir::memory://x")),
    # A drive, or a name with a colon, is no URL.
    *((lambda base, url=url: url, "LocalStore") for url in ("file:///x.zarr", "C:")),
    (lambda base: LocalStore(base), "LocalStore"),
    (lambda base: LocalStore(base, read_only=True), "LocalStore"),
    (lambda base: OnDisk(base), "ForeignStore"),
    (lambda base: MemoryStore(read_only=True), "ForeignStore"),
    (lambda base: ObjectStore(obstore.store.MemoryStore(), read_only=True), "ObjectStore"),
    (lambda base: ObjectStore(obstore.store.LocalStore(base)), "LocalStore"),
    (lambda base: FsspecStore.from_url("memory://x", read_only=True), "FsspecStore"),
    (lambda base: FsspecStore.from_url(f"file://{base}", read_only=True), "LocalStore"),
    (lambda base: FsspecStore.from_url("https://example.org/x.zarr", read_only=True), "ObjectStore"),
    (lambda base: LoggingStore(LocalStore(base, read_only=True)), "ForeignStore"),
    (lambda base: zarr.storage.WrapperStore(LocalStore(base, read_only=True)), "LocalStore"),
    (lambda base: upath.UPath("s3://bucket/x.zarr", anon=True), "ObjectStore"),
    (lambda base: upath.UPath("https://example.org/x.zarr"), "ObjectStore"),
    (lambda base: fsspec.filesystem("memory"), "FsspecStore"),
    (lambda base: fsspec.get_mapper("memory://a"), "FsspecStore"),
    (lambda base: fsspec.get_mapper(str(base)), "LocalStore"),
    (lambda base: obstore.store.S3Store("bucket", skip_signature=True), "ObjectStore"),
])  # fmt: skip
def test_known_stores_are_opened_natively(make: Callable[[Path], Any], expected: str, tmp_path: Path) -> None:
    given = make(tmp_path)
    store = open_store(given)
    assert type(store).__name__ == expected
    if getattr(given, "read_only", False):
        assert store.read_only
        refused(ReadOnlyError, None, lambda: store.set("zarr.json", b""))


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


def test_open_store_refuses_a_manifest_store_of_virtualizarr() -> None:
    manifests = pytest.importorskip("virtualizarr.manifests")
    registry = pytest.importorskip("obspec_utils.registry")
    group = manifests.ManifestGroup(arrays={})
    virtual = manifests.ManifestStore(group, registry=registry.ObjectStoreRegistry())
    said = r"ManifestStore of VirtualiZarr; .*to_icechunk.*to_kerchunk"
    for use in (open_store, xzarr3.open_group, xzarr3.open_dataset):
        refused(TypeError, said, partial(use, virtual), partial(use, quiet(virtual)))


def dataset() -> xr.Dataset:
    values = np.arange(60, dtype="float64").reshape(5, 12)
    values[0, 0] = np.nan
    coords = {"time": np.arange(5), "x": np.linspace(0, 1, 12)}
    return xr.Dataset({"t": (("time", "x"), values, {"units": "K"})}, coords, {"title": "T"})


def test_a_zip_of_zarr_python(tmp_path: Path) -> None:
    with zarr.storage.ZipStore(tmp_path / "a.zip", mode="w") as store:
        xzarr3.create_array(store, "x", data=np.arange(6), chunks=4)
    with zarr.storage.ZipStore(tmp_path / "a.zip", mode="r") as store:
        for opened in (zarr.open_array(store, path="x"), xzarr3.open_array(store, "x")):
            np.testing.assert_array_equal(opened[:], np.arange(6))
        assert type(open_store(store)) is xzarr3.ZipStore
        refused(ReadOnlyError, None, lambda: xzarr3.to_zarr(dataset(), store))


def test_a_zip_of_the_user_stays_open(tmp_path: Path) -> None:
    with xzarr3.ZipStore(tmp_path / "a.zip", mode="w") as archive:
        group = xzarr3.create_group(archive, "a")
        xzarr3.to_zarr(dataset(), group, group="b")
        xzarr3.copy({"zarr.json": b'{"zarr_format": 3, "node_type": "group"}'}, group, path="c")
        xzarr3.create_array(group, "d", data=np.arange(3))
    assert sorted(xzarr3.open_group(tmp_path / "a.zip", "a")) == ["b", "c", "d"]


def test_handles_give_the_store_and_the_path(tmp_path: Path) -> None:
    root = zarr.open_group(LocalStore(tmp_path), mode="w")
    array = root.create_group("a").create_array("b", data=np.arange(4))
    for found in (
        xzarr3.open_array(array)[:], xzarr3.open_array(root["a"], "b")[:], xzarr3.from_zarr(array),
    ):  # fmt: skip
        np.testing.assert_array_equal(found, np.arange(4))
    assert xzarr3.open(root["a"]).path == "a"
    xzarr3.store(da.arange(4, chunks=2) * 2, array)
    xzarr3.store([da.ones(2, chunks=2)], [array], regions=[(slice(2, 4),)])
    np.testing.assert_array_equal(array[:], [0, 2, 1, 1])
    made = xzarr3.create_array(root["a"], "c/d", shape=3, dtype="i4")
    assert (made.path, made.store.folder) == ("a/c/d", str(tmp_path))
    assert xzarr3.create_group(StorePath(LocalStore(tmp_path), "e"), "f").path == "e/f"
    assert xzarr3.open_group(made.store).path == ""
    assert xzarr3.open_array(xzarr3.open_group(tmp_path, "a"), "b").path == "a/b"
    assert xzarr3.copy(root["a"], root, path="copied")["b"].shape == (4,)
    assert xzarr3.consolidate_metadata(root["a"]).path == "a"
    assert open_store(root) == open_store(tmp_path)
    reading = zarr.open_group(LocalStore(tmp_path, read_only=True), mode="r")
    refused(NodeTypeError, None, lambda: xzarr3.open_group(array))
    refused(ReadOnlyError, None, lambda: xzarr3.create_group(reading, "g"))
    refused(TypeError, r"Group of '/a' in .* is no whole store", lambda: open_store(root["a"]))


def session(base: Path) -> Any:
    import icechunk

    storage = icechunk.local_filesystem_storage(str(base / "repository"))
    return icechunk.Repository.create(storage).writable_session("main").store


STORES: dict[str, Callable[[Path], Any]] = {
    "dict": lambda base: {},
    "MemoryStore": lambda base: MemoryStore(),
    "LocalStore": lambda base: LocalStore(base / "a"),
    "derived": lambda base: OnDisk(base / "a"),
    "LoggingStore": lambda base: quiet(MemoryStore()),
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


def by_xarray(store: Any, expected: xr.Dataset) -> None:
    place, options = for_zarr_python(store)
    with xr.open_dataset(place, engine="zarr", consolidated=False, **options) as again:
        xr.testing.assert_identical(again.load(), expected)


def for_zarr_python(store: Any) -> tuple[Any, dict[str, Any]]:
    """What zarr-python takes for the same store, and the options for xarray's engine."""
    handle, options = getattr(store, "store_path", store), {"zarr_format": 3}
    if isinstance(handle, StorePath):
        return handle.store, {**options, "group": handle.path}
    if type(store) is dict:
        assert all(isinstance(each, bytes) for each in store.values())
        return MemoryStore({key: Buffer.from_bytes(each) for key, each in store.items()}), options
    if isinstance(store, upath.UPath) and store.protocol == "memory":
        return FsspecStore.from_upath(store), options
    return ObjectStore(store) if type(store).__module__.startswith("obstore") else store, options


def may_lose(store: Any) -> Any:
    """Expects to be told that an append cannot keep other processes away, where it cannot."""
    traits = locate(store)[0].traits
    warns = traits.conditional == "threads" and traits.visible == "at once"
    return pytest.warns(UserWarning, match="may be lost") if warns else nullcontext()


@each_store
def test_xarray_reads_what_was_written(make: Callable[[Path], Any], tmp_path: Path) -> None:
    store, ds = make(tmp_path), dataset()
    mode: Any = "w" if isinstance(store, zarr.Group) else None
    encoding = {"t": {"chunks": (2, 4), "shards": (4, 12)}}
    xzarr3.to_zarr(ds, store, mode=mode, encoding=encoding)
    by_xarray(store, ds)
    more = ds.isel(time=slice(0, 3)).assign_coords(time=[5, 6, 7]).chunk({"time": 2})
    with may_lose(store):
        xzarr3.to_zarr(more, store, append_dim="time")
    by_xarray(store, xr.concat([ds, more.load()], "time"))
    xzarr3.to_zarr(xr.DataTree.from_dict({"/": ds, "/below": ds + 1}), store, mode="w")
    xzarr3.to_zarr((ds * 2).chunk({"time": 2}), store, mode="w")
    by_xarray(store, ds * 2)
    assert not [key for key in locate(store)[0].list() if "below" in key or "xzarr3" in key]


@each_store
def test_what_xarrays_engine_wrote_is_read(make: Callable[[Path], Any], tmp_path: Path) -> None:
    store, ds = make(tmp_path), dataset()
    if type(store) is dict:
        pytest.skip("zarr-python would keep buffers of its own in it")
    place, options = for_zarr_python(store)
    ds.to_zarr(place, mode="w", encoding={"t": {"chunks": (2, 4)}}, consolidated=False, **options)
    with xr.open_dataset(store, engine="xzarr3", chunks={}) as again:
        xr.testing.assert_identical(again.load(), ds)
    xr.testing.assert_identical(xzarr3.open_dataset(store).load(), ds)
    assert xzarr3.open_group(store).attrs["title"] == "T"
    np.testing.assert_array_equal(xzarr3.from_zarr(store, "t")[1:, ::2], ds.t.values[1:, ::2])
    np.testing.assert_array_equal(xzarr3.copy(store, {})["t"][:], ds.t.values)
    array = xzarr3.open_array(store, "t", mode="r+")
    array[3:5, 3:9] = ds.t[3:5, 3:9] = -1
    by_xarray(store, ds)
    with may_lose(store):
        array.resize((3, 12))
        array.resize((5, 12))
    np.testing.assert_array_equal(array[2:, 0], [24, np.nan, np.nan])
    root = xzarr3.open_group(store, mode="a", attributes={"a": 1})
    root.create_group("b").create_array("c", data=np.arange(10), chunks=3)
    del root["b"]
    assert {name for name, _ in root.members(max_depth=None)} == {"t", "time", "x"}
    assert xzarr3.recover(store) == []


def test_foreign_store_takes_no_key_that_leads_out_and_erases_no_directory(tmp_path: Path) -> None:
    store = open_store(InMemory())
    fill(store, "a/b", "c")
    assert not_refused(calls(store), INVALID_KEYS) == []
    files = open_store(OnDisk(tmp_path))
    files.set("a/b/c", VALUE)
    files.erase("a", "a/b", "none")
    assert contents(files) == {"a/b/c": VALUE}


@pytest.mark.parametrize(("error", "kind"), [
    (OSError("the wire\nis cut"), StoreError),
    (PermissionError("not yours"), StorePermissionError),
    (NotImplementedError("later"), StoreCapabilityError),
    (RuntimeError(), StoreError),
])  # fmt: skip
def test_foreign_store_errors_are_of_this_package(error: Exception, kind: type[StoreError]) -> None:
    class Broken(InMemory):
        async def get(self, *args: Any, **options: Any) -> Any:
            raise error

        set = exists = get

        async def list_dir(self, prefix: str) -> Any:
            raise error
            yield

    store = open_store(Broken())
    for found in refused(
        kind, rf"a/b.*Broken.*{type(error).__name__}",
        *(lambda: store.get("a/b"), lambda: store.get("a/b", (0, 2)), lambda: store.open("a/b")),
        *(lambda: store.set("a/b", b""), lambda: store.erase("a/b"), lambda: store.list_dir("a/b/")),
    ):  # fmt: skip
        assert ("\n" in str(found), found.__cause__) == (False, error)
    refused(kind, None, lambda: xzarr3.open_group(Broken()))


@pytest.mark.parametrize("lacks", ["writes", "deletes", "listing"])
def test_foreign_store_lacks_what_the_object_lacks(lacks: str) -> None:
    foreign = InMemory()
    open_store(foreign).set("a", VALUE)
    store = open_store(type("Lacking", (InMemory,), {f"supports_{lacks}": False})(foreign._store_dict))
    able = {"writes": store.writeable, "deletes": store.erasable, "listing": store.listable}
    assert not able[lacks]
    lost: Any = (lambda: list(store.list())) if lacks == "listing" else (lambda: store.erase("a"))
    refused(ReadOnlyError if lacks == "writes" else StoreError, None, lost)
    assert store.get("a") == VALUE
    if store.writeable:
        array = xzarr3.create_array(store, "x", data=np.arange(6), chunks=2)
        array[2:5] = 9
        np.testing.assert_array_equal(xzarr3.open_array(store, "x")[:], [0, 1, 9, 9, 9, 5])


def test_foreign_store_takes_no_other_values_and_reads_none_to_find_it() -> None:
    class Text(InMemory):
        async def get(self, *args: Any, **options: Any) -> Any:
            return "text"

    store = open_store(Text())
    store.set("a", VALUE)
    refused(StoreError, "'a'", lambda: store.get("a"))
    assert [store.exists(key) for key in "ab"] == [True, False]


@pytest.mark.parametrize("number", [2, 24])
def test_foreign_store_has_many_requests_in_flight(number: int) -> None:
    class Together(InMemory):
        """Answers reads of chunks only when so many are under way at the same time."""

        barrier: asyncio.Barrier | None = None

        async def get(self, key: str, *args: Any, **options: Any) -> Any:
            if "/c/" in key:
                self.barrier = self.barrier or asyncio.Barrier(number)
                await asyncio.wait_for(self.barrier.wait(), 20)
            return await super().get(key, *args, **options)

    foreign = Together()
    xzarr3.create_array(foreign, "a", data=np.arange(number), chunks=1)
    np.testing.assert_array_equal(xzarr3.open_array(foreign, "a")[:], np.arange(number))
    parts = open_store(foreign).get_partial_values((f"a/c/{at}", (0, 1)) for at in range(number))
    assert len(parts) == number


def test_foreign_store_shares_one_loop_among_threads() -> None:
    names = set()

    class Seen(InMemory):
        async def get(self, *args: Any, **options: Any) -> Any:
            names.add(threading.current_thread().name)
            return await super().get(*args, **options)

    store = open_store(Seen())
    store.set("a", VALUE)
    run_numbered(lambda at: [store.get("a") for _ in range(20)], 8)
    assert len(names - {threading.current_thread().name}) == len(names) == 1

    async def call() -> object:
        return store.get("a")

    assert asyncio.run(call()) == VALUE, "another loop runs in this thread, as in Jupyter"
    refused(StoreError, r"SyncError: .*within a running loop", lambda: sync(call()))


def test_foreign_store_is_one_for_one_object() -> None:
    foreign = InMemory()
    store = open_store(foreign)
    assert open_store(foreign) is open_store(zarr.storage.WrapperStore(foreign)) is store
    assert open_store(InMemory()).identity != store.identity


@pytest.mark.parametrize("is_in_memory", [slow(True), False])
def test_foreign_store_elsewhere(is_in_memory: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(quiet(quiet(MemoryStore())) if is_in_memory else OnDisk(tmp_path))
    store.set("a", VALUE)
    data = pickle.dumps(store)
    monkeypatch.setattr(module, "_live", type(module._live)())
    twin = pickle.loads(data)
    assert (contents(twin), twin.identity) == ({"a": VALUE}, store.identity)
    if is_in_memory:
        refused(ReadOnlyError, "copy in another process", lambda: twin.set("b", b""))
    else:
        twin.set("b", VALUE)
        assert contents(store) == {"a": VALUE, "b": VALUE}
    guarded = pickle.loads(pickle.dumps(store.with_traits(read_only=True)))
    assert (guarded.read_only, store.read_only) == (True, False)
    hasty = open_store(quiet(MemoryStore())).with_traits(conflict_deadline=1.0)
    pickle.loads(pickle.dumps(hasty)).set("a", VALUE)  # The store that it was made of is the same, and there.
    assert contents(hasty) == {"a": VALUE}


def test_foreign_store_that_cannot_be_in_another_process_says_so() -> None:
    foreign = InMemory()
    foreign.lock = threading.Lock()
    array = xzarr3.create_array(foreign, shape=3, dtype="i4")
    said = r"cannot be sent to other processes: .*TypeError; use threads"
    refused(StoreError, said, lambda: pickle.dumps(array))
    said = "forked process; start processes with 'spawn'"
    run_child(lambda: refused(StoreError, said, lambda: array.store.get("a"))).checked()
