"""What a store of one's own needs and gets: four methods, checked and reported in one place."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from _conformance import VALUE, run_numbered, writes
from _kinds import Files, Four, every_check, hostile_keys
from _recording import heard
from _things import refused

import xzarr3
from xzarr3 import LocalStore, MemoryStore, ReadOnlyError, Store, StoreCapabilityError, stores
from xzarr3._types import Buffer, ByteRange
from xzarr3.stores import Key, WrapperStore, cut, update, versioned
from xzarr3.testing import CHECKS, StoreCheckError, check_store

KINDS: dict[str, Callable[[Path], Store]] = {
    "memory": lambda base: MemoryStore(),
    "dict": lambda base: MemoryStore({}),
    "local": LocalStore,
    "local, fsync": lambda base: LocalStore(base, fsync=True),
    "local, no locks": lambda base: LocalStore(base, locks=False),
    "four methods": lambda base: Four(),
    "cache": lambda base: stores.CacheStore(MemoryStore()),
    "zip": lambda base: stores.ZipStore(f"{base}.zip", mode="w"),
    "fsspec": lambda base: stores.FsspecStore(f"memory://{base}"),
}

test_memory = every_check(KINDS["memory"])
test_dict = every_check(KINDS["dict"])
test_local = every_check(KINDS["local"])
test_local_fsync = every_check(KINDS["local, fsync"])
test_local_without_locks = every_check(KINDS["local, no locks"])
test_four_methods = every_check(KINDS["four methods"])
test_wrapper = every_check(lambda base: WrapperStore(MemoryStore()))

test_hostile_keys_of_files = hostile_keys(Files)
test_hostile_keys_of_local_files = hostile_keys(LocalStore)
test_hostile_keys_of_a_wrapper = hostile_keys(lambda base: WrapperStore(LocalStore(base)))


SPECIFICATION = {
    "get": "key", "get_partial_values": "key_ranges", "set": "key value", "erase": "keys",
    "set_partial_values": "key_start_values", "erase_values": "keys", "erase_prefix": "prefix",
    "list": "prefix", "list_prefix": "prefix", "list_dir": "prefix",
}  # fmt: skip
"""The operations of the abstract store interface and their arguments; what they do is in ``check_store``."""


@pytest.mark.parametrize("operation", SPECIFICATION)
def test_store_has_the_operations_of_the_specification(operation: str) -> None:
    _, *found = inspect.signature(getattr(Store, operation)).parameters
    assert " ".join(found).startswith(SPECIFICATION[operation])


def test_specification_is_written_once() -> None:
    """A class that overrides what is made of the contract would be passed by; it is refused."""
    for name in ("get_partial_values", "set", "set_partial_values", "erase_values", "list_prefix", "exists"):
        with pytest.raises(TypeError, match=rf"Own has \['{name}'\].*implement 'get', 'put'"):
            type("Own", (Store,), {name: lambda self, *given: None})


class Published(Store):
    def get(self, key: str, byte_range: ByteRange | None = None) -> Buffer | None:
        return None if key != "a/b" else VALUE if byte_range is None else cut(VALUE, byte_range)


class Archive(Published):
    def put(self, key: str, pieces: Sequence[Buffer]) -> None:
        raise AssertionError("not asked for")


def test_what_a_class_lacks_it_says() -> None:
    store = Published()
    assert (store.readable, store.writeable, store.erasable, store.listable) == (True, False, False, False)
    assert (store.get("a/b"), store.getsize("a/b")) == (VALUE, 10)
    assert [store.exists(key) for key in ("a/b", "x")] == [True, False]
    writes = (lambda: store.set("a", b""), lambda: update(store, "a", lambda stored: [b""]))
    refused(ReadOnlyError, r"Published.*'put'", *writes)
    archive = Archive()
    refused(StoreCapabilityError, "erase", lambda: archive.erase("a"), lambda: archive.erase_values(["a"]))
    refused(StoreCapabilityError, "list", lambda: list(store.list()), lambda: store.list_dir("a/"))
    refused(StoreCapabilityError, "list", lambda: archive.erase_prefix("a/"))


BROKEN: dict[str, tuple[str, dict[str, Any]]] = {
    "values": ("get", {"get": lambda self, key, byte_range=None: Four.get(self, key, byte_range) and b"#"}),
    "ranges": ("range", {"get": lambda self, key, byte_range=None: Four.get(self, key)}),
    "lists": ("list", {"list": lambda self, prefix="": ["a/b"] * 2}),
    "erasing": ("erasing", {"erase": lambda self, *keys: None}),
    "absent": ("get", {"get": lambda self, key, byte_range=None: Four.get(self, key, byte_range) or b""}),
    "updates": ("counter", {"put": lambda self, key, pieces: self.values.setdefault(key, b"".join(pieces))}),
    "open_values": ("size", {"open": lambda self, key, first=None, version=None: _wrong_value(self, key)}),
    "pickling": ("pickle", {"__reduce__": lambda self: (int, (5,))}),
}


def _wrong_value(store: Four, key: str) -> Any:
    value = xzarr3.stores.BytesValue(store.values[key]) if key in store.values else None
    if value is not None:
        value.size = 3
    return value


def test_check_store_refuses_unknown_checks() -> None:
    refused(ValueError, "speed", lambda: check_store(MemoryStore, leave_out=["speed"]))


@pytest.mark.parametrize("check", BROKEN)
def test_check_store_says_what_a_store_does_wrong(check: str) -> None:
    word, methods = BROKEN[check]
    kind = type("Broken", (Four,), methods)
    said = rf"(?s){check}: .*found: .*{word}"
    refused(StoreCheckError, said, lambda: check_store(kind, leave_out=CHECKS.keys() - {check}))


class Noting(Four):
    calls: ClassVar[list[str]] = []

    def put(self, key: str, pieces: Sequence[Buffer]) -> None:
        self.calls.append(key)
        super().put(key, pieces)

    def erase(self, *keys: str) -> None:
        self.calls.extend(keys)
        super().erase(*keys)


def test_a_read_only_store_is_not_called() -> None:
    store = Noting({"a/b": VALUE, "c": VALUE}, read_only=True)
    refused(ReadOnlyError, None, *writes(store).values(), lambda: store.erase_prefix("a/"))
    assert store.calls == []


REQUESTS: dict[str, tuple[Callable[[Store], object], list[str]]] = {
    "get": (lambda store: store.get("a/b"), ["get"]),
    "a part": (lambda store: store.get("a/b", (0, 1)), ["get"]),
    "set": (lambda store: store.set("a/b", b"x"), ["put"]),
    "update": (lambda store: update(store, "a/b", lambda stored: [b"x"]), ["get", "put"]),
    "erase_values": (lambda store: store.erase_values(["a/b", "c"]), ["erase"]),
    "list": (lambda store: [*store.list()], ["list"]),
    "list_dir": (lambda store: store.list_dir("a/"), ["list"]),
    "copy": (lambda store: store.copy("a/b", "d"), ["get", "put"]),
    "erase_prefix": (lambda store: store.erase_prefix("a/"), ["list", "erase"]),
}


@pytest.mark.parametrize("wrap", [lambda store: store, WrapperStore], ids=["itself", "wrapped"])
@pytest.mark.parametrize("request_", REQUESTS)
def test_each_request_is_reported_once(request_: str, wrap: Callable[[Store], Store]) -> None:
    act, expected = REQUESTS[request_]
    store = wrap(Four({"a/b": VALUE, "c": VALUE}))
    with heard() as found:
        act(store)
    assert [request.operation for request in found] == expected


def test_key_knows_its_size_and_is_text() -> None:
    key = Key("a/b", 10)
    assert (key, key.size, {key: 1}["a/b"]) == ("a/b", 10, 1)
    twin = pickle.loads(pickle.dumps(key))
    assert (twin, twin.size) == ("a/b", 10)


@pytest.mark.parametrize("kind", ["memory", "local", "zip", "fsspec", "cache", "four methods"])
def test_threads_change_parts_of_chunks(kind: str, tmp_path: Path) -> None:
    with KINDS[kind](tmp_path / "x") as store:
        plain = xzarr3.create_array(store, "p", shape=(64,), chunks=(32,), dtype="i4")
        shards = xzarr3.create_array(store, "s", shape=(64,), chunks=(8,), shards=(32,), dtype="i4")

        def work(at: int) -> None:
            for array in (plain, shards):
                for place in range(at, 64, 4):
                    array[place] = place + 1

        run_numbered(work, 4)
        for name in "ps":
            assert xzarr3.open_array(store, name)[:].tolist() == list(range(1, 65))


DURABLE: dict[str, tuple[Callable[[Path], Store], bool]] = {
    **{kind: (KINDS[kind], False) for kind in ("memory", "dict", "four methods", "local", "zip", "fsspec")},
    "local, fsync": (KINDS["local, fsync"], True),
    "zip, fsync": (lambda base: stores.ZipStore(f"{base}.zip", mode="w", fsync=True), True),
    "a service": (lambda base: xzarr3.open_store("s3://bucket/x.zarr"), True),
}
"""Stores of each kind, and whether their values are known to be there after a crash of the system."""


@pytest.mark.parametrize("kind", DURABLE)
@pytest.mark.parametrize("wrap", ["itself", "CacheStore", "ReadOnlyStore", "WrapperStore"])
def test_durable_is_what_the_wrapped_store_is(kind: str, wrap: str, tmp_path: Path) -> None:
    make, expected = DURABLE[kind]
    with make(tmp_path / "x") as store:
        if wrap == "CacheStore":
            store.close()  # A zip that is being written has no cache.
        found = store if wrap == "itself" else getattr(stores, wrap)(store)
        assert found.traits.durable is expected


def test_versioned_tells_absence_and_content() -> None:
    store = Four()
    absent = versioned(store, "a")
    store.set("a", b"1")
    one = versioned(store, "a")
    store.set("a", b"2")
    store.set("a", b"1")
    assert absent == (None, "absent")
    assert one == versioned(store, "a"), "without versions of a service, equal bytes are one version"
