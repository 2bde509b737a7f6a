"""MemoryStore: a dictionary of its own or of the user's, and what other processes get of it."""

from __future__ import annotations

import pickle
import threading
from collections import UserDict
from pathlib import Path
from typing import Any

import pytest
from _conformance import VALUE, contents, run_threads
from _things import Thing, refused
from _unprivileged import run_child

import xzarr3
from xzarr3 import InvalidKeyError, MemoryStore, ZipStore
from xzarr3.stores import update


@pytest.mark.parametrize("kind", [dict, UserDict])
def test_memory_store_keeps_the_mapping_that_it_is_given(kind: type[Any]) -> None:
    values = kind({"a/b": b"x"})
    store = MemoryStore(values)
    store.set("c", bytearray(b"yy"))
    values["d"] = b"by hand"
    del values["a/b"]
    assert contents(store) == {"c": b"yy", "d": b"by hand"}
    assert type(values["c"]) is bytes
    store.erase("c")
    assert dict(values) == {"d": b"by hand"}


@pytest.mark.parametrize(("values", "error", "words"), [
    ({1: b""}, TypeError, "dict with 1: bytes"),
    ({"a": "text"}, TypeError, "'a': str"),
    ({"a": Thing()}, TypeError, "'a': Thing"),
    ({"../a": b""}, InvalidKeyError, r"\.\./a"),
])  # fmt: skip
def test_memory_store_refuses_other_dictionaries(values: Any, error: type[Exception], words: str) -> None:
    refused(error, words, lambda: MemoryStore(values))


def test_memory_stores_of_one_dictionary_are_one_place() -> None:
    values: dict[str, bytes] = {}
    one, other = MemoryStore(values), xzarr3.open_store(values)
    assert one.identity == other.identity
    assert len({MemoryStore({"a": bytes([at])}).identity for at in range(64)}) == 64, "of none that is gone"
    one.set("a", VALUE)
    assert other.get("a") is values["a"], "it is not copied"


def test_versions_of_a_users_dictionary_are_not_known() -> None:
    """The user may change a value without the store; of its own dictionary a store knows every change."""
    assert MemoryStore({"a": b"old"}).versions(["a", ""]) == [None, None]
    own = MemoryStore()
    own.set("a", b"old")
    before = own.versions(["a", "b", ""])
    own.set("b", b"")
    after = own.versions(["a", "b", ""])
    assert (before[0], before[1]) == (after[0], None)
    assert before[2] != after[2]


def test_with_traits_is_kept_by_a_pickle_without_the_first_store() -> None:
    store = MemoryStore().with_traits(conflict_deadline=1.0)
    guarded = pickle.loads(pickle.dumps(store.with_traits(read_only=True)))
    data = pickle.dumps(store)
    store.set("a", VALUE)
    assert (guarded.read_only, guarded.get("a")) == (True, VALUE)
    assert (pickle.loads(data).writeable, pickle.loads(data).get("a")) == (True, VALUE)


def test_dask_names_follow_a_users_dictionary() -> None:
    """A name is never the same for other values, whoever changed them through the store."""
    values: dict[str, bytes] = {}
    array = xzarr3.create_array(values, "a", data=[1, 2, 3], chunks=(3,), compressors=None)
    before = xzarr3.from_zarr(array).name
    array[0] = 5
    assert xzarr3.from_zarr(array).name != before


def test_memory_store_in_another_process_is_that_of_the_newest_pickle() -> None:
    """A worker that still holds an old copy must not answer with it."""
    store = MemoryStore()
    store.set("a", b"old")
    first = pickle.dumps(store)
    store.set("a", b"new")
    second = pickle.dumps(store)
    assert pickle.loads(first) is pickle.loads(second) is store

    def work() -> list[bytes]:
        return [bytes(pickle.loads(data).get("a")) for data in (first, second, first)]

    assert run_child(work).checked() == [b"old", b"new", b"old"]


@pytest.mark.parametrize("kind", ["memory", "zip"])
def test_erase_is_not_undone_by_an_update_under_way(kind: str, tmp_path: Path) -> None:
    store = MemoryStore() if kind == "memory" else ZipStore(tmp_path / "a.zip", mode="w")
    store.set("a", b"old")
    thread = threading.Thread(target=store.erase, args=["a"])

    def change(stored: Any) -> list[Any]:
        thread.start()
        thread.join(0.05)  # It waits for the lock of the key.
        return [stored, b"+"]

    update(store, "a", change)
    thread.join(60)
    assert store.get("a") is None
    store.close()


def test_set_partial_values_does_not_undo_what_another_thread_stores() -> None:
    """Between the reading of the old value and the writing of the new one there is no room for others."""
    store = MemoryStore()
    store.set("a", b"-" * 10)
    wrong = []

    def whole() -> None:
        for step in range(2000):
            value = b"%010d" % step
            store.set("a", value)
            found = bytes(store.get("a") or b"")
            if found not in (value, value[:-1] + b"x"):
                wrong.append((value, found))

    def parts() -> None:
        for _ in range(2000):
            store.set_partial_values([("a", 9, b"x")])

    run_threads(whole, parts)
    assert wrong == []
