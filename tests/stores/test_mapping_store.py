"""Dictionaries and other mappings of users: changes are seen on both sides."""

from __future__ import annotations

import gc
import sys
from collections import UserDict
from typing import Any

import numpy as np
import pytest
import zarr
from _conformance import VALUE, contents
from _kinds import conformance
from zarr.core.buffer.cpu import Buffer

import xzarr3
from xzarr3 import InvalidKeyError, ReadOnlyError, StoreError, open_store
from xzarr3.stores.mapping import MappingStore

TestDictionary = conformance(lambda base: open_store({}), travels="copy")
TestOtherMapping = conformance(lambda base: open_store(UserDict()), travels="copy", stamps=False)
TestMemoryOfZarrPython = conformance(
    lambda base: open_store(zarr.storage.MemoryStore()), travels="copy", ranges=20
)


def test_changes_are_seen_on_both_sides() -> None:
    values: dict[str, Any] = {}
    array = xzarr3.create_array(values, "a", data=np.arange(4), chunks=2)
    assert sorted(values) == ["a/c/0", "a/c/1", "a/zarr.json", "zarr.json"]
    assert {type(each) for each in values.values()} == {bytes}
    values["a/c/0"] = values["a/c/1"]
    np.testing.assert_array_equal(array[:], [2, 3, 2, 3])
    values["a/c/0"] = bytearray(values["a/c/0"])
    np.testing.assert_array_equal(array[:], [2, 3, 2, 3])
    del values["a/c/1"]
    np.testing.assert_array_equal(xzarr3.open_array(values, "a")[:], [2, 3, 0, 0])


def test_values_of_a_mapping_that_is_no_dictionary_are_read_only_if_they_are_asked_for() -> None:
    """They may be on a disk, and need not fit into memory."""
    asked: list[str] = []

    class Far(UserDict[str, bytes]):
        def __getitem__(self, key: str) -> bytes:
            asked.append(key)
            return super().__getitem__(key)

    values = Far()
    xzarr3.create_array(values, "a", data=np.arange(6), chunks=2)
    asked.clear()
    array = xzarr3.open_array(values, "a")
    assert not array.store.tells_changes
    assert array[1] == 1
    assert "a/c/1" not in asked
    assert "a/c/2" not in asked
    assert xzarr3.from_zarr(values, "a").sum().compute() == 15


def test_one_mapping_has_one_store() -> None:
    values: dict[str, bytes] = {}
    store = open_store(values)
    assert open_store(values) is store
    assert open_store({}) is not store
    assert open_store({}).identity != store.identity
    del store
    gc.collect()
    assert open_store(values).get("a") is None


@pytest.mark.parametrize("kind", [bytes, bytearray, Buffer.from_bytes])
def test_names_of_dask_follow_every_change(kind: Any) -> None:
    values: dict[str, Any] = {"a": kind(b"123")}
    store = MappingStore(values)

    def token() -> object:
        found = store.__dask_tokenize__()
        assert store.__dask_tokenize__() == found
        return found

    seen = [token()]
    values["a"] = kind(b"124")
    seen.append(token())
    values["b"] = kind(b"")
    seen.append(token())
    store.set("b", b"x")
    seen.append(token())
    del values["a"]
    seen.append(token())
    values["a"] = bytearray(b"123")
    seen.append(token())
    values["a"][0] = 7
    seen.append(token())
    assert len(set(seen)) == len(seen)


def test_replaced_values_are_not_kept() -> None:
    old, gone = bytes(range(200)), bytes(range(201))
    store = open_store({"a": old, "b": gone})
    store.stamp([""])
    store.set("a", b"new")
    store.erase("b")
    assert max(sys.getrefcount(old), sys.getrefcount(gone)) <= 2  # The name here, and the argument.


def test_buffers_stay_buffers() -> None:
    """A mapping that zarr-python writes is read by it afterwards."""
    values: dict[str, Any] = {}
    root = zarr.open_group(store=values, mode="w")
    root.create_array("a", data=np.arange(6), chunks=(2,))
    array = xzarr3.open_array(values, "a", mode="r+")
    np.testing.assert_array_equal(array[:], np.arange(6))
    array[1:5] = 7
    assert {isinstance(each, Buffer) for each in values.values()} == {True}
    np.testing.assert_array_equal(root["a"][:], [0, 7, 7, 7, 7, 5])
    root["a"][0] = 9
    assert array[0] == 9
    memory = zarr.storage.MemoryStore()
    xzarr3.create_array(memory, data=np.arange(3))
    np.testing.assert_array_equal(zarr.open_array(memory)[:], np.arange(3))


def test_read_only_is_kept_and_is_the_same_place() -> None:
    values: dict[str, Any] = {}
    writable = open_store(zarr.storage.MemoryStore(values))
    fixed = open_store(zarr.storage.MemoryStore(values, read_only=True))
    writable.set("a", VALUE)
    assert (contents(fixed), fixed.identity) == ({"a": VALUE}, writable.identity)
    assert fixed.__dask_tokenize__() == writable.__dask_tokenize__()
    with pytest.raises(ReadOnlyError):
        fixed.set("a", b"")
    with pytest.raises(ReadOnlyError):
        xzarr3.create_array(zarr.storage.MemoryStore(values, read_only=True), shape=3, dtype="i4")


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        ({1: b""}, TypeError, "with 1: bytes"),
        ({"a": "text"}, TypeError, "with 'a': str"),
        ({"t2m": {"chunks": (1,)}}, TypeError, "dict of str to bytes|mapping, of str to bytes"),
        ({"../a": b""}, InvalidKeyError, "../a"),
    ],
)
def test_other_dictionaries_are_refused(values: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        xzarr3.open_group(values)


def test_what_a_user_puts_in_later_is_checked_when_it_is_read() -> None:
    values: dict[str, Any] = {}
    store = open_store(values)
    values["a"] = 5
    with pytest.raises(StoreError, match=r"'a'.*found int; accepted: bytes"):
        store.get("a")
