"""Objects with zarr-python's asynchronous store interface, called through it; and which are not."""

from __future__ import annotations

import asyncio
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _conformance import INVALID_KEYS, VALUE, calls, contents, fill, not_refused, run_numbered
from _kinds import every_check
from _things import refused
from _unprivileged import run_child
from zarr.core.sync import sync
from zarr.storage import LocalStore, LoggingStore, MemoryStore, WrapperStore

import xzarr3
from xzarr3 import ReadOnlyError, Store, StoreCapabilityError, StoreError, StorePermissionError, open_store
from xzarr3.stores import foreign as module


class OnDisk(LocalStore):
    """A class of a user, which may do anything."""


class InMemory(MemoryStore):
    """A class of a user whose answers a test may change."""


def quiet(store: Any) -> LoggingStore[Any]:
    return LoggingStore(store, log_level="ERROR")


def on_disk(base: Path) -> Store:
    return open_store(OnDisk(base))


test_foreign_store_in_memory = every_check(lambda base: open_store(MemoryStore()))
test_foreign_store_around_another = pytest.mark.slow(
    every_check(lambda base: open_store(quiet(MemoryStore())))
)
# It keeps empty directories, which look like prefixes.
test_foreign_store_of_files = every_check(on_disk, leave_out=["erasing"])


def test_foreign_store_takes_no_key_that_leads_out() -> None:
    store = open_store(InMemory())
    fill(store, "a/b", "c")
    assert not_refused(calls(store), INVALID_KEYS) == []


def test_foreign_store_erases_no_directory(tmp_path: Path) -> None:
    store = open_store(OnDisk(tmp_path))
    store.set("a/b/c", VALUE)
    store.erase("a", "a/b", "none")
    assert contents(store) == {"a/b/c": VALUE}


# What a store answers


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError("the wire\nis cut"), StoreError),
        (PermissionError("not yours"), StorePermissionError),
        (NotImplementedError("later"), StoreCapabilityError),
        (RuntimeError(), StoreError),
    ],
)
def test_foreign_store_errors_are_of_this_package(error: Exception, kind: type[StoreError]) -> None:
    class Broken(InMemory):
        async def get(self, *args: Any, **options: Any) -> Any:
            raise error

        set = exists = get

        async def list_dir(self, prefix: str) -> Any:
            raise error
            yield

    store = open_store(Broken())
    for call in (
        *(lambda: store.get("a/b"), lambda: store.get("a/b", (0, 2)), lambda: store.open("a/b")),
        *(lambda: store.set("a/b", b""), lambda: store.erase("a/b"), lambda: store.list_dir("a/b/")),
    ):
        with pytest.raises(kind, match=rf"a/b.*Broken.*{type(error).__name__}") as caught:
            call()
        assert "\n" not in str(caught.value)
        assert caught.value.__cause__ is error
    refused(kind, None, lambda: xzarr3.open_group(Broken()))


def test_foreign_store_takes_no_other_values() -> None:
    class Text(InMemory):
        async def get(self, *args: Any, **options: Any) -> Any:
            return "text"

    refused(StoreError, "'a'", lambda: open_store(Text()).get("a"))


@pytest.mark.parametrize("lacks", ["supports_writes", "supports_deletes", "supports_listing"])
def test_foreign_store_lacks_what_the_object_lacks(lacks: str) -> None:
    foreign = InMemory()
    open_store(foreign).set("a", VALUE)
    lacking = type("Lacking", (InMemory,), {lacks: False})(foreign._store_dict)
    store = open_store(lacking)
    able = {
        "supports_writes": store.writeable,
        "supports_deletes": store.erasable,
        "supports_listing": store.listable,
    }
    assert not able[lacks]
    with pytest.raises(ReadOnlyError if lacks == "supports_writes" else StoreError):
        list(store.list()) if lacks == "supports_listing" else store.erase("a")
    assert store.get("a") == VALUE
    if store.writeable:
        array = xzarr3.create_array(store, "x", data=np.arange(6), chunks=2)
        array[2:5] = 9
        np.testing.assert_array_equal(xzarr3.open_array(store, "x")[:], [0, 1, 9, 9, 9, 5])


# At the same time


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
    assert len(names) == 1
    assert threading.current_thread().name not in names

    async def call() -> object:
        return store.get("a")

    assert asyncio.run(call()) == VALUE, "another loop runs in this thread, as in Jupyter"
    refused(StoreError, r"SyncError: .*within a running loop", lambda: sync(call()))


def test_foreign_store_reads_no_value_to_find_it() -> None:
    class Found(InMemory):
        async def get(self, *args: Any, **options: Any) -> Any:
            raise AssertionError("no value is needed")

    foreign = Found()
    open_store(foreign).set("a", VALUE)
    assert [open_store(foreign).exists(key) for key in "ab"] == [True, False]


# One store for one object, and other processes


def test_foreign_store_is_one_for_one_object() -> None:
    foreign = InMemory()
    store = open_store(foreign)
    assert open_store(foreign) is store
    assert open_store(WrapperStore(foreign)) is store
    other = open_store(InMemory())
    assert other.identity != store.identity


def elsewhere(data: bytes, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What another process would get."""
    monkeypatch.setattr(module, "_live", type(module._live)())
    return pickle.loads(data)


@pytest.mark.slow
def test_foreign_store_does_not_write_memory_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(quiet(quiet(MemoryStore())))
    store.set("a", VALUE)
    twin = elsewhere(pickle.dumps(store), monkeypatch)
    assert (contents(twin), twin.identity) == ({"a": VALUE}, store.identity)
    refused(ReadOnlyError, "copy in another process", lambda: twin.set("a", b""))


def test_foreign_store_writes_files_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(OnDisk(tmp_path))
    twin = elsewhere(pickle.dumps(store), monkeypatch)
    twin.set("a", VALUE)
    assert contents(store) == {"a": VALUE}
    guarded = pickle.loads(pickle.dumps(store.with_traits(read_only=True)))
    assert (guarded.read_only, store.read_only) == (True, False)


def test_foreign_store_that_cannot_be_pickled_says_so() -> None:
    foreign = InMemory()
    foreign.lock = threading.Lock()
    with pytest.raises(StoreError, match=r"cannot be sent to other processes: .*TypeError; use threads"):
        pickle.dumps(xzarr3.create_array(foreign, shape=3, dtype="i4"))


def test_foreign_store_refuses_a_forked_process() -> None:
    store = open_store(InMemory())
    store.set("a", VALUE)

    def work() -> str:
        with pytest.raises(StoreError) as caught:
            store.get("a")
        return str(caught.value)

    assert "forked process; start processes with 'spawn'" in run_child(work).checked()


def test_store_of_refuses_a_manifest_store_of_virtualizarr() -> None:
    manifests = pytest.importorskip("virtualizarr.manifests")
    registry = pytest.importorskip("obspec_utils.registry")
    virtual = manifests.ManifestStore(
        manifests.ManifestGroup(arrays={}), registry=registry.ObjectStoreRegistry()
    )
    for given in (virtual, quiet(virtual)):
        for use in (open_store, xzarr3.open_group, xzarr3.open_dataset):
            with pytest.raises(TypeError, match=r"ManifestStore of VirtualiZarr; .*to_icechunk.*to_kerchunk"):
                use(given)
