"""What a store of one's own needs, and what it gets: four methods, checked and told in one place."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _conformance import INVALID_KEYS, INVALID_PREFIXES, contents
from _kinds import NOT_PICKLED, READS, conformance
from _unprivileged import run_unprivileged

import xzarr3
from xzarr3 import InvalidKeyError, LocalStore, MemoryStore, ReadOnlyError, Store, StoreCapabilityError
from xzarr3._types import Buffer, ByteRange
from xzarr3.stores import WrapperStore, cut
from xzarr3.stores.base import Reader
from xzarr3.tracing import events


class Four(Store):
    """As little as a store needs; it checks nothing."""

    def __init__(self, values: dict[str, bytes] | None = None, *, read_only: bool = False) -> None:
        super().__init__(read_only=read_only)
        self.values = {} if values is None else values

    def _get(self, key: str, byte_range: ByteRange | None) -> Buffer | None:
        value = self.values.get(key)
        return value if value is None or byte_range is None else cut(value, byte_range)

    def _set(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def _erase(self, key: str) -> None:
        self.values.pop(key, None)

    def _list(self, prefix: str) -> Iterable[str]:
        return list(self.values)


class Files(Store):
    """Four methods over a directory, which go wherever a key leads."""

    def __init__(self, root: Path, *, read_only: bool = False) -> None:
        super().__init__(read_only=read_only)
        self.root = str(root)

    def _path(self, key: str) -> str:
        return os.path.join(self.root, key)

    def _get(self, key: str, byte_range: ByteRange | None) -> Buffer | None:
        try:
            value = Path(self._path(key)).read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        return value if byte_range is None else cut(value, byte_range)

    def _set(self, key: str, value: bytes) -> None:
        os.makedirs(os.path.dirname(self._path(key)), exist_ok=True)
        Path(self._path(key)).write_bytes(value)

    def _erase(self, key: str) -> None:
        Path(self._path(key)).unlink(missing_ok=True)

    def _list(self, prefix: str) -> Iterable[str]:
        for above, _, names in os.walk(self.root):
            for name in names:
                yield os.path.relpath(os.path.join(above, name), self.root)


def writes(store: Store, key: str) -> list[Callable[[], object]]:
    return [
        lambda: store.set(key, b"x"),
        lambda: store.set_values([(key, b"x")]),
        lambda: store.set_partial_values([(key, 0, b"x")]),
        lambda: store.erase(key),
        lambda: store.erase_values([key]),
        lambda: store.erase_prefix(f"{key}/"),
        lambda: store.compare_and_set(key, "absent", b"x"),
        lambda: store.update(key, lambda stored: [b"x"]),
        lambda: store.copy_values([("there", key)]),
        lambda: store.copy_values([(key, "there")]),
    ]


TestFourMethods = conformance(lambda base: Four(), holds_versions=False, stamps=False, **NOT_PICKLED)


def test_a_store_of_four_methods_writes_nowhere_else() -> None:
    """Hostile keys are refused before the store hears of them."""

    def work(top: Path) -> list[str]:
        base = top / "store"
        base.mkdir(exist_ok=True)
        canary = base / "canary.txt"
        canary.write_text("sings")
        store = Files(base / "root")
        store.set("there", b"1")
        wrong = []
        hostile = ["../canary.txt", "../../etc/passwd", str(canary), "a/../../canary.txt", "a//b", ""]
        for key in hostile:
            for call in (*writes(store, key), *(partial(read, store, key) for read in READS.values())):
                try:
                    call()
                except InvalidKeyError:
                    continue
                wrong.append(key)
        assert canary.read_text() == "sings"
        assert sorted(os.listdir(base)) == ["canary.txt", "root"]
        assert contents(store) == {"there": b"1"}
        return wrong

    assert run_unprivileged(work).checked() == []


def test_a_read_only_store_of_four_methods_is_not_written() -> None:
    values = {"there": b"1", "a/b": b"2"}
    store = Four(values, read_only=True)
    for call in writes(store, "a"):
        with pytest.raises(ReadOnlyError, match="is read-only"):
            call()
    with pytest.raises(ReadOnlyError), store.writer() as writer:
        writer.set("a", [b""])
    assert values == {"there": b"1", "a/b": b"2"}


@pytest.mark.parametrize("key", INVALID_KEYS, ids=repr)
def test_no_invalid_key_reaches_a_store(key: Any) -> None:
    store = Four({"there": b"1"})
    for call in (*writes(store, key)[:5], *writes(store, key)[6:], lambda: store.getsize(key)):
        with pytest.raises(InvalidKeyError):
            call()
    for name, read in READS.items():
        if not name.startswith("list"):
            with pytest.raises(InvalidKeyError):
                read(store, key)
    assert store.values == {"there": b"1"}


@pytest.mark.parametrize("prefix", INVALID_PREFIXES, ids=repr)
def test_no_invalid_prefix_reaches_a_store(prefix: Any) -> None:
    store = Four({"there": b"1"})
    for ask in (store.list_prefix, store.list_dir, store.erase_prefix, store.sweep):
        with pytest.raises(InvalidKeyError):
            ask(prefix)


def test_what_a_class_lacks_it_says() -> None:
    class Reading(Store):
        def _get(self, key: str, byte_range: ByteRange | None) -> Buffer | None:
            return b"value"

    store = Reading()
    assert (store.readable, store.writeable, store.erasable, store.listable) == (True, False, False, False)
    with pytest.raises(ReadOnlyError, match="cannot be written"):
        store.set("a", b"")
    for ask in (store.list, lambda: store.list_prefix("a/"), lambda: store.list_dir("")):
        with pytest.raises(StoreCapabilityError, match="cannot list"):
            ask()


def test_public_methods_are_few() -> None:
    """Those of the specification, and the few that are needed beyond."""
    public = {name for name, held in vars(Store).items() if callable(held) and not name.startswith("_")}
    specification = {
        *("get", "get_partial_values", "set", "set_partial_values", "erase", "erase_values", "erase_prefix"),
        *("list", "list_prefix", "list_dir", "exists", "getsize"),
    }
    changes = {"get_versioned", "compare_and_set", "update"}
    threads = {"reader", "writer", "get_values", "set_values", "copy_values"}
    facts = {"stamp", "version", "tag", "close", "sweep", "leftovers", "list_sizes"}
    assert public == specification | changes | threads | facts


def turned(value: Buffer) -> bytes:
    return bytes(octet ^ 255 for octet in bytes(value))


class Old(MemoryStore):
    """Overrides public methods."""

    def get(self, key: str, byte_range: ByteRange | None = None) -> Buffer | None:
        value = super().get(key, byte_range)
        return None if value is None else turned(value)

    def set(self, key: str, value: Buffer) -> None:
        super().set(key, turned(value))


class New(MemoryStore):
    """The same with the methods that a class has."""

    def _get(self, key: str, byte_range: ByteRange | None) -> Buffer | None:
        value = super()._get(key, byte_range)
        return None if value is None else turned(value)

    def _set(self, key: str, value: bytes) -> None:
        super()._set(key, turned(value))


@pytest.mark.parametrize("kind", [Old, New])
@pytest.mark.parametrize("options", [{"compressors": None}, {}, {"shards": 8}], ids=repr)
def test_a_derived_class_is_asked(kind: type[MemoryStore], options: dict[str, Any]) -> None:
    store, values = kind(), np.arange(16)
    array = xzarr3.create_array(store, "a", data=values, chunks=4, **options)
    np.testing.assert_array_equal(array[:], values)
    array[3:6] = 7
    values[3:6] = 7
    np.testing.assert_array_equal(xzarr3.open_array(store, "a")[1:9], values[1:9])
    assert not bytes(MemoryStore._get(store, "a/zarr.json", None) or b"").startswith(b"{")


@pytest.mark.parametrize(
    ("base", "name"),
    [
        *((base, name) for base in (MemoryStore, Four) for name in ("list", "list_prefix", "_list")),
        *((WrapperStore, name) for name in ("list", "list_prefix", "list_dir", "_list", "_list_dir")),
    ],
)
def test_every_way_to_list_is_made_from_the_one_of_a_class(name: str, base: type[Store]) -> None:
    def hidden(self: Any, *prefix: str) -> Any:
        found = getattr(super(kind, self), name)(*prefix)
        if "dir" in name:
            return tuple({each for each in names if "hidden" not in each} for names in found)
        return (key for key in found if "hidden" not in key)

    kind = type("Hiding", (base,), {name: hidden})
    values = {"a/b": b"", "a/hidden": b"", "c": b"", "hidden/d": b""}
    store = kind(MemoryStore(values) if base is WrapperStore else values)
    assert sorted(store.list()) == sorted(store.list_prefix("")) == ["a/b", "c"]
    assert list(store.list_prefix("a/")) == ["a/b"]
    assert store.list_dir("") == ({"c"}, {"a/"})
    assert store.list_dir("a/") == ({"a/b"}, set())


def test_a_reader_of_ones_own_is_kept_where_nothing_else_changes(tmp_path: Path) -> None:
    class Noting(LocalStore):
        def _set(self, key: str, value: bytes) -> None:
            super()._set(key, value)

    assert type(Noting(tmp_path).reader()) is type(LocalStore(tmp_path).reader())

    class Reading(LocalStore):
        def _get(self, key: str, byte_range: ByteRange | None) -> Buffer | None:
            return super()._get(key, byte_range)

    assert type(Reading(tmp_path).reader()) is Reader


# What is told

WROTE = ("set", "update", "compare_and_set")


def test_each_request_is_told_once(tmp_path: Path) -> None:
    heard: list[tuple[str, str, int, str]] = []

    def hear(request: events.Request) -> None:
        heard.append((request.operation, request.key, request.size, request.outcome))

    events.listen(hear)
    try:
        for store in (Four(), LocalStore(tmp_path), WrapperStore(MemoryStore())):
            heard.clear()
            store.set("a", b"12345")
            store.get("a", (1, 2))
            assert store.reader().get("none") is None
            store.update("a", lambda stored: [b"new"])
            with pytest.raises(InvalidKeyError):
                store.get("../a")
            assert list(store.list_prefix("")) == ["a"]
            told = [each for each in heard if each[0] not in ("update", "compare_and_set", "get_versioned")]
            assert told[:3] == [("set", "a", 5, "ok"), ("get", "a", 2, "ok"), ("get", "none", 0, "absent")]
            assert told[-1][:2] == ("list", "")
            assert sum(size for name, _, size, _ in heard if name in WROTE) == 8
    finally:
        events.listen_no_more(hear)
    heard.clear()
    Four().set("a", b"")
    assert heard == []


def test_who_appends_where_others_may_be_lost_is_warned(tmp_path: Path) -> None:
    for store in (MemoryStore(), LocalStore(tmp_path), xzarr3.CacheStore(MemoryStore())):
        assert store.writes_conditionally
        xzarr3.create_array(store, shape=0, chunks=2, dtype="i4").append(np.arange(3))
    for store in (Four(), LocalStore(tmp_path / "b", locks=False), WrapperStore(Four())):
        assert not store.writes_conditionally
        array = xzarr3.create_array(store, shape=0, chunks=2, dtype="i4")
        with pytest.warns(UserWarning, match="rows that they append .* may be lost"):
            array.append(np.arange(3))
        np.testing.assert_array_equal(array[:], np.arange(3))
