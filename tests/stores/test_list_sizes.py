"""Stores that list sizes do so exactly, and with the requests of a list; others say that they do not know."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import obstore
import pytest
from _conformance import fill

from xzarr3 import LocalStore, MemoryStore, Store, ZipStore
from xzarr3.stores import CacheStore, LoggingStore, ObjectStore, ReadOnlyStore, WrapperStore

VALUES = {"a/b": b"12345", "a/c/d": b"1", "e": b"x" * 3000}


class Decrypting(WrapperStore):
    """Changes what is read, so that sizes of the wrapped store mean nothing."""

    def _get(self, key: str, byte_range: Any) -> Any:
        value = self.inner.get(key, byte_range)
        return None if value is None else bytes(value)[::2]


class Filtering(MemoryStore):
    """Lists by a way of its own."""

    def _list(self, prefix: str) -> Any:
        return (key for key in super()._list(prefix) if "hidden" not in key)


def objects(base: Path) -> Store:
    return ObjectStore(obstore.store.MemoryStore())


NATIVE: dict[str, Callable[[Path], Store]] = {
    "local": lambda base: LocalStore(base / "s"),
    "local without links": lambda base: LocalStore(base / "s", follow_links=False),
    "memory": lambda base: MemoryStore(),
    "zip": lambda base: ZipStore(base / "s.zip", mode="w"),
    "object": objects,
    "cached": lambda base: CacheStore(LocalStore(base / "s")),
    "logged": lambda base: LoggingStore(MemoryStore()),
    "wrapped": lambda base: WrapperStore(WrapperStore(MemoryStore())),
}


@pytest.mark.parametrize("make", NATIVE.values(), ids=NATIVE)
def test_sizes(make: Callable[[Path], Store], tmp_path: Path) -> None:
    store = make(tmp_path)
    store.set_values(VALUES.items())
    assert dict(store.list_sizes()) == {key: len(value) for key, value in VALUES.items()}
    assert dict(ReadOnlyStore(store).list_sizes("a/")) == {"a/b": 5, "a/c/d": 1}


@pytest.mark.parametrize(
    "make", [lambda base: Decrypting(MemoryStore()), lambda base: Filtering()], ids=["get", "list"]
)
def test_sizes_of_a_class_that_changes_reading_are_not_known(
    make: Callable[[Path], Store], tmp_path: Path
) -> None:
    store = make(tmp_path)
    store.set_values(VALUES.items())
    assert dict(store.list_sizes("a/")) == {"a/b": None, "a/c/d": None}


def test_sizes_take_the_requests_of_a_list() -> None:
    inner = MemoryStore(VALUES)
    store = LoggingStore(inner)
    assert len(list(store.list_sizes("a/"))) == 2
    assert [(asked.operation, asked.key, asked.number) for asked in store.records] == [("list", "a/", 2)]


def test_size_of_a_link_is_not_known(tmp_path: Path) -> None:
    fill(LocalStore(tmp_path / "s"), "a")
    os.symlink("a", tmp_path / "s" / "b")
    assert dict(LocalStore(tmp_path / "s").list_sizes()) == {"a": 10, "b": None}


def test_leftovers_are_temporary_files_and_no_locks(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    fill(store, "a/b", ".xzarr3-staged-1/a")
    for name, age in {"new": 0, "old": 7200}.items():
        path = tmp_path / "a" / f".xzarr3-partial-{name}"
        path.write_bytes(b"1")
        os.utime(path, (path.stat().st_mtime - age,) * 2)
    (tmp_path / "a" / ".xzarr3-partial-lock").touch()
    (tmp_path / "link").symlink_to("a")
    assert sorted(store.leftovers()) == [("a/.xzarr3-partial-new", False), ("a/.xzarr3-partial-old", True)]
    assert list(store.leftovers("no/")) == []
    store.sweep()
    assert [name for name, _ in WrapperStore(store).leftovers("a/")] == ["a/.xzarr3-partial-new"]
