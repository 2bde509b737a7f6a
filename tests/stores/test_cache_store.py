"""The cache: never a wrong value, no more bytes than allowed, no request too many."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import random
import re
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from _conformance import VALUE, contents, run_threads
from _kinds import ARRAYS, NOT_PICKLED, conformance, fork_beside
from _opening import opening
from _servers import S3Server, WebServer
from _unprivileged import run_child, run_unprivileged
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

import xzarr3
from xzarr3 import LocalStore, MemoryStore, Store, StoreError
from xzarr3._types import Buffer
from xzarr3.errors import ChangedError, StorePermissionError
from xzarr3.stores import CacheStore, LoggingStore, ObjectStore, cut
from xzarr3.stores.base import OversizedError, Scratch, ValueReader
from xzarr3.stores.cache.directory import FOLDER

# Stores to be cached


class Remote(MemoryStore):
    """As a server far away: versions, requests that are counted, and a part that comes with the first answer.

    ``after`` is called before an answer is given.
    """

    concurrency = 8
    request_bytes = 64

    def __init__(self, values: dict[str, bytes] | None = None) -> None:
        super().__init__(values)
        self.requests: list[tuple[Any, ...]] = []
        self.after: Callable[[str], object] = lambda key: None
        self._versions: Counter[str] = Counter()

    def set(self, key: str, value: Buffer) -> None:
        super().set(key, value)
        self._versions[key] += 1

    def erase(self, key: str) -> None:
        super().erase(key)
        self._versions[key] += 1

    def current(self, key: str) -> str:
        return f"etag {self._versions[key]}"

    def ask(self, key: str, *what: object) -> tuple[Buffer | None, str]:
        self.requests.append((key, *what))
        found = super().get(key), self.current(key)
        self.after(key)
        return found

    def get(self, key: str, byte_range: Any = None) -> Buffer | None:
        value, _ = self.ask(key, *(byte_range or ()))
        return value if value is None or byte_range is None else cut(value, byte_range)

    def get_versioned(self, key: str) -> tuple[Buffer | None, object]:
        return self.ask(key)

    def exists(self, key: str) -> bool:
        return self.ask(key, "exists")[0] is not None

    _reader = opening

    def opened(self, key: str, part: tuple[int, int] | None, version: object | None) -> ValueReader | None:
        if part is None:
            value, found = self.ask(key, "open")
            return None if value is None else RemoteReader(self, key, found, None, len(value))
        start, length = part
        if version is not None:
            return RemoteReader(self, key, version, None, None)
        value, found = self.ask(key, start, length)
        if value is None:
            return None
        return RemoteReader(self, key, found, (start, length, cut(value, (start, length))), len(value))


class RemoteReader(ValueReader):
    def __init__(
        self,
        store: Remote,
        key: str,
        version: object,
        first: tuple[int, int, Buffer] | None,
        size: int | None,
    ) -> None:
        self._store, self._key, self._version, self._first, self.size = store, key, version, first, size

    @property
    def version(self) -> object:
        return self._version

    def read(self, start: int, length: int | None = None) -> Buffer:
        if self._first is not None and self._first[0] == start and self.size is not None:
            wanted = -start if start < 0 else self.size if length is None else min(length, self.size)
            if wanted <= len(self._first[2]):
                return self._first[2][:length]
        value, version = self._store.ask(self._key, start, length)
        if value is None or version != self._version:
            raise ChangedError(f"{self._key} changed")
        self.size = len(value)
        return cut(value, (start, length))


class Silent(Store):
    """A store of somebody's own, that knows nothing of versions."""

    def __init__(self, values: dict[str, bytes] | None = None) -> None:
        super().__init__()
        self.values = values or {}
        self.requests: list[tuple[Any, ...]] = []

    def get(self, key: str, byte_range: Any = None) -> Buffer | None:
        self.requests.append((key, *(byte_range or ())))
        value = self.values.get(key)
        return value if value is None or byte_range is None else cut(value, byte_range)

    def set(self, key: str, value: Buffer) -> None:
        self.values[key] = bytes(value)

    def erase(self, key: str) -> None:
        self.values.pop(key, None)

    def list(self) -> Iterator[str]:
        return iter(list(self.values))


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(params=["memory", "directory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    return {} if request.param == "memory" else {"directory": tmp_path / "cache"}


def cached(store: Store, **options: Any) -> tuple[CacheStore, Clock]:
    cache, clock = CacheStore(store, **options), Clock()
    cache._clock = clock
    return cache, clock


# Conformance

CACHED = {"stamps": False}
TestCachedLocalStore = conformance(
    lambda base: CacheStore(LocalStore(base / "store" / "values")), nests=False, **CACHED
)
TestMemoryStoreInDirectory = conformance(
    lambda base: CacheStore(MemoryStore(), directory=base / "store" / "cache"), travels="copy", **CACHED
)
TestCachedRemoteStore = conformance(
    lambda base: CacheStore(Remote()), holds_versions=False, **CACHED, **NOT_PICKLED
)


# Hits, misses and age


def test_values_are_asked_for_once(place: dict[str, Any]) -> None:
    inner = Remote({"a": VALUE, "b": b"bb"})
    cache, _ = cached(inner, **place)
    for _ in range(3):
        assert [cache.get("a"), cache.reader().get("a"), cache.get("a", (1, 2))] == [VALUE, VALUE, b"12"]
        assert cache.get_values(["a", "b", "a"]) == [VALUE, b"bb", VALUE]
        assert cache.exists("a")
        assert cache.reader().get_ranges("a", [1, 8], [2, 9]) == (10, [b"12", b"89"])
        out = bytearray(4)
        assert cache.reader().get_into("a", 3, memoryview(out)) == (10, 4)
        assert out == b"3456"
        with cache.reader().open("a") as reader:  # type: ignore[union-attr]
            assert (reader.size, bytes(reader.read(-2))) == (10, b"89")
    assert inner.requests == [("a",), ("b",)]
    assert cache.misses == 2
    assert cache.hits > 20


def test_what_is_absent_is_asked_for_each_time(place: dict[str, Any]) -> None:
    inner = Remote()
    cache, _ = cached(inner, **place)
    assert [cache.get("a"), cache.exists("a"), cache.reader().open("a"), cache.get("a", (0, 1))] == [
        *(None, False, None, None)
    ]
    assert len(inner.requests) == 4
    inner.set("a", VALUE)
    assert cache.get("a") == VALUE


def test_old_values_are_asked_for_again(place: dict[str, Any]) -> None:
    inner = Remote({"a": b"0"})
    cache, clock = cached(inner, max_age=60, **place)
    assert cache.get("a") == b"0"
    inner.set("a", b"1")
    clock.now += 59.9
    assert cache.get("a") == b"0"
    clock.now += 0.2
    assert cache.get("a") == b"1"
    inner.set("a", b"2")
    clock.now -= 1000
    assert cache.get("a") == b"2", "what comes from the future is not trusted"
    inner.erase("a")
    assert cache.get("a") == b"2"
    clock.now += 61
    assert cache.get("a") is None
    clock.now -= 61
    assert cache.get("a") is None, "what has gone is forgotten"


def test_age_counts_from_before_the_request(place: dict[str, Any]) -> None:
    inner = Remote({"a": b"old"})
    cache, clock = cached(inner, max_age=60, **place)
    inner.after = lambda key: setattr(clock, "now", clock.now + 59)
    cache.get("a")
    inner.set("a", b"new")
    clock.now += 2
    assert cache.get("a") == b"new"


@pytest.mark.parametrize("max_age", [0, None])
def test_never_and_always(max_age: float | None, place: dict[str, Any]) -> None:
    inner = Remote({"a": b"x" * 1000})
    cache, clock = cached(inner, max_age=max_age, **place)
    for _ in range(3):
        assert cache.get("a") == b"x" * 1000
        clock.now += 1e9
    expected = [("a",)] if max_age is None else [("a",), ("a", 0, 1), ("a", 0, 1)]
    assert inner.requests == expected, "a large value is compared by its version, not read again"
    inner.set("a", b"y")
    assert cache.get("a") == (b"x" * 1000 if max_age is None else b"y")


def test_values_of_a_store_without_versions(place: dict[str, Any]) -> None:
    inner = Silent({"a": VALUE})
    cache, clock = cached(inner, max_age=60, **place)
    assert cache.get("a", (1, 2)) == b"12"
    assert inner.requests == [("a", 1, 2)], "a part is asked for as it is, and not kept"
    load, out = cache.reader().get_into, bytearray(10)
    for _ in range(2):
        assert load("a", 0, memoryview(out)) in ((None, 10), (10, 10))
        assert out == VALUE
    assert inner.requests[1:] == [("a", 0, 1), ("a", 0, 11)], "what turns out to be all of it is kept"
    assert cache.get("a") == VALUE
    clock.now += 61
    inner.values["a"] = b"new"
    assert cache.get("a") == b"new"


@pytest.mark.slow
def test_local_files_are_compared_by_their_version(tmp_path: Path, place: dict[str, Any]) -> None:
    local = LocalStore(tmp_path / "store")
    local.set("a", VALUE)
    os.utime(tmp_path / "store/a", (1e9, 1e9))
    time.sleep(1.1)  # As long as a file is new, its version is unsure.
    inner = LoggingStore(local)
    cache, clock = cached(inner, max_age=60, **place)
    for _ in range(3):
        assert cache.get("a") == VALUE
        clock.now += 61
    found = Counter(record.operation for record in inner.records)
    assert found == {"open": 3, "read": 1}
    local.set("a", b"new")
    assert cache.get("a") == b"new"


def test_file_with_the_time_of_another_is_another_version(tmp_path: Path) -> None:
    """As ``cp -p`` and ``tar`` make them."""
    store = LocalStore(tmp_path)
    store.set("a", b"1")
    stamp, version, info = store.stamp(["a"]), store.version("a"), os.stat(tmp_path / "a")
    time.sleep(0.02)
    with open(tmp_path / "a", "r+b") as file:
        file.write(b"2")
    os.utime(tmp_path / "a", ns=(info.st_atime_ns, info.st_mtime_ns))
    assert store.stamp(["a"]) != stamp
    assert store.version("a") != version


def test_dask_takes_no_old_value_for_a_new_one(tmp_path: Path) -> None:
    array = xzarr3.create_array(LocalStore(tmp_path), shape=4, chunks=4, dtype="i4")
    array[:] = 1
    old, new = (CacheStore(LocalStore(tmp_path), max_age=age) for age in (None, 0))
    assert np.all(xzarr3.open_array(old)[:] == 1)
    array[:] = 2
    later = CacheStore(LocalStore(tmp_path), max_age=None)
    lazy = [xzarr3.from_zarr(store) for store in (old, new, later, old)]
    assert len({each.name for each in lazy}) == 3
    assert [found[0] for found in dask.compute(*lazy)] == [1, 2, 2, 1]
    assert xzarr3.from_zarr(new).name == lazy[1].name
    assert dask.base.tokenize(old) != dask.base.tokenize(old)
    assert dask.base.tokenize(new) == dask.base.tokenize(new)


def test_copied_values_are_asked_for_again(place: dict[str, Any]) -> None:
    class Copying(MemoryStore):
        copied = 0

        def copy_values(self, pairs: Any) -> None:
            wanted = list(pairs)
            self.copied += len(wanted)
            super().copy_values(wanted)

    inner = Copying({"a": b"new", "b": b"old"})
    cache, _ = cached(inner, **place)
    assert cache.get_values(["a", "b"]) == [b"new", b"old"]
    cache.copy_values(iter([("a", "b")]))
    assert inner.copied == 1
    assert cache.get("b") == b"new"


# Parts


def test_parts_are_kept(place: dict[str, Any]) -> None:
    value = random.Random(3).randbytes(5000)
    inner = Remote({"a": value})
    cache, _ = cached(inner, **place)
    for _ in range(3):
        assert cache.get("a", (100, 50)) == value[100:150]
        with cache.reader().open("a", (-40, 40)) as reader:  # type: ignore[union-attr]
            assert reader.read(-40, 40) == value[-40:]
            assert reader.size == 5000
            assert [bytes(part) for part in reader.iter_ranges([7, 100, 900], [3, 50, 9])] == [
                *(value[7:10], value[100:150], value[900:909])
            ]
            assert reader.read_into(7, memoryview(bytearray(3))) == 3
        assert cache.reader().get_ranges("a", [100, 7], [50, 3]) == (5000, [value[100:150], value[7:10]])
    assert inner.requests == [("a", 100, 50), ("a", -40, 40), ("a", 7, 3), ("a", 900, 9)]


def test_parts_of_two_versions_are_never_mixed(place: dict[str, Any]) -> None:
    inner = Remote({"a": b"1" * 1000})
    cache, clock = cached(inner, max_age=60, **place)
    assert cache.get("a", (0, 10)) == b"1" * 10
    inner.set("a", b"2" * 900)
    assert cache.get("a", (0, 10)) == b"1" * 10, "this part is kept"
    with cache.reader().open("a", (0, 10)) as reader:  # type: ignore[union-attr]
        assert reader.read(0, 10) == b"1" * 10
        with pytest.raises(ChangedError, match="a changed"):
            reader.read(10, 10)
    assert cache.get("a", (0, 10)) == b"2" * 10, "then the old version is forgotten"
    inner.set("a", b"3" * 900)
    assert cache.get("a", (20, 10)) == b"3" * 10, "nothing was told of the old version: the new one will do"
    assert cache.get_partial_values([("a", (0, 10)), ("a", (20, 10))]) == [b"3" * 10, b"3" * 10]
    inner.set("a", b"4" * 900)
    assert cache.get_partial_values([("a", (0, 10)), ("a", (50, 10))]) == [b"4" * 10, b"4" * 10]
    inner.set("a", b"5" * 900)
    assert cache.reader().get_ranges("a", [0, 70], [10, 10]) == (900, [b"5" * 10, b"5" * 10])
    inner.erase("a")
    assert cache.get("a", (200, 10)) is None
    inner.set("a", b"6" * 900)
    clock.now += 61
    assert cache.get("a", (0, 10)) == b"6" * 10


def test_store_that_opens_whatever_version_there_is(place: dict[str, Any]) -> None:
    class Ignoring(Remote):
        _reader = opening

        def opened(self, key: str, part: Any, version: object | None) -> Any:
            return super().opened(key, part, None)

    inner = Ignoring({"a": b"1" * 1000})
    cache, _ = cached(inner, **place)
    assert cache.get("a", (0, 10)) == b"1" * 10
    inner.set("a", b"2" * 1000)
    with cache.reader().open("a", (0, 10)) as reader:  # type: ignore[union-attr]
        assert reader.read(0, 10) == b"1" * 10
        with pytest.raises(ChangedError, match="was replaced or removed"):
            reader.read(10, 10)
    assert cache.get("a", (0, 10)) == b"2" * 10


def test_what_was_compared_is_fresh_again(place: dict[str, Any]) -> None:
    """Parts outlive their age with their version."""
    inner = Remote({"a": b"x" * 1000, "parts": b"1" * 1000})
    cache, clock = cached(inner, max_age=60, **place)
    cache.get("a")
    assert [cache.get("parts", (start, 10)) for start in (0, 500)] == [b"1" * 10] * 2
    clock.now += 61
    inner.requests.clear()
    for _ in range(3):
        assert cache.get("a") == b"x" * 1000
    with cache.reader().open("parts", (0, 10)) as reader:  # type: ignore[union-attr]
        assert [reader.read(0, 10), reader.read(500, 10)] == [b"1" * 10] * 2
    assert inner.requests == [("a", 0, 1), ("parts", 0, 10)]


def test_value_that_is_opened_again_is_of_the_version_that_is_stored(place: dict[str, Any]) -> None:
    inner = Remote({"a": b"1" * 1000})
    cache, _ = cached(inner, max_age=0, **place)
    with cache.reader().open("a", (0, 10)) as reader:  # type: ignore[union-attr]
        assert [reader.read(0, 10), reader.read(500, 10)] == [b"1" * 10] * 2
        version = reader.version
    inner.requests.clear()
    with cache.reader().open("a", (0, 10), version) as reader:  # type: ignore[union-attr]
        assert reader.version == version
        assert [reader.read(0, 10), reader.read(500, 10)] == [b"1" * 10] * 2
    assert inner.requests == [("a", 0, 10)]
    inner.set("a", b"2" * 1000)
    with cache.reader().open("a", (0, 10), version) as reader:  # type: ignore[union-attr]
        assert reader.version != version
        assert [reader.read(0, 10), reader.read(500, 10)] == [b"2" * 10] * 2


def test_shards_are_read_part_by_part_and_kept(place: dict[str, Any]) -> None:
    inner = Remote()
    values = np.arange(4096, dtype="int32").reshape(64, 64)
    xzarr3.create_array(inner, "x", data=values, chunks=(8, 8), shards=(32, 32))
    cache, clock = cached(inner, **place)
    array = xzarr3.open_array(cache, "x")
    places: list[Any] = [(slice(0, 8), slice(8, 24)), (slice(40, 41), 3), (slice(3, 60), slice(30, 34))]
    for place_ in places:
        np.testing.assert_array_equal(array[place_], values[place_])
    inner.requests.clear()
    for place_ in places:
        np.testing.assert_array_equal(array[place_], values[place_])
    assert inner.requests == []
    other = xzarr3.open_array(inner, "x", mode="r+")
    values[:] = other[:] = -values
    inner.requests.clear()
    clock.now += 301
    for place_ in places:
        np.testing.assert_array_equal(array[place_], values[place_])


def test_shard_that_is_replaced_while_its_parts_are_kept(place: dict[str, Any]) -> None:
    """Within ``max_age`` either version may be seen; one thread sees only one at a time."""
    inner = Remote()
    array = xzarr3.create_array(inner, "x", data=np.zeros((64,), "int16"), chunks=(4,), shards=(64,))
    cache, _ = cached(inner, **place)
    through = xzarr3.open_array(cache, "x")
    rng = random.Random(5)
    for step in range(1, 60):
        if rng.random() < 0.3:
            array[:] = step
        start = rng.randrange(60)
        selection = slice(start, start + rng.randrange(1, 30))
        found = set(through.get(selection, threads=1).tolist())
        assert len(found) == 1


# Writes


WRITES: dict[str, Callable[[Store], object]] = {
    "set": lambda store: store.set("a", b"new"),
    "set_values": lambda store: store.set_values([("a", b"new"), ("b", b"x")]),
    "set_partial_values": lambda store: store.set_partial_values([("a", 0, b"new")]),
    "compare_and_set": lambda store: store.compare_and_set("a", store.get_versioned("a")[1], b"new"),
    "update": lambda store: store.update("a", lambda stored: [b"new"]),
    "updater": lambda store: _through(store.writer(), lambda writer: writer.update("a", lambda _: [b"new"])),
    "writer": lambda store: _through(store.writer(), lambda writer: writer.set("a", [b"new"])),
}


ERASES: dict[str, Callable[[Store], object]] = {
    "erase": lambda store: store.erase("a"),
    "erase_values": lambda store: store.erase_values(["b", "a"]),
    "erase_prefix": lambda store: store.erase_prefix("p/"),
    "compare_and_set": lambda store: store.compare_and_set("a", store.get_versioned("a")[1], None),
}


def _through(opened: Any, do: Callable[[Any], object]) -> None:
    with opened as function:
        do(function)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("remote", [True, False])
def test_writes_take_effect_at_once(write: str, remote: bool, place: dict[str, Any]) -> None:
    inner = (Remote if remote else MemoryStore)({"a": b"old", "c": b"kept"})
    cache, _ = cached(inner, max_age=None, **place)
    other, _ = cached(inner, max_age=None, **place)
    for store in (cache, other):
        assert [store.get("a"), store.get("a", (0, 2)), store.get("c")] == [b"old", b"ol", b"kept"]
    WRITES[write](cache)
    assert [cache.get("a"), cache.get("a", (0, 2)), cache.get("c")] == [b"new", b"ne", b"kept"]
    if place:
        assert other.get("a") == b"new", "in a directory, for every store there"


@pytest.mark.parametrize("erase", ERASES)
def test_erasing_takes_effect_at_once(erase: str, place: dict[str, Any]) -> None:
    inner = Remote({"a": b"old", "p/a": b"1", "p/b/c": b"2" * 100, "q": b"3"})
    cache, _ = cached(inner, max_age=None, **place)
    keys = list(contents(cache))
    cache.get("p/b/c", (3, 4))
    ERASES[erase](cache)
    left = contents(inner)
    assert {key: value for key in keys if (value := cache.get(key)) is not None} == left
    assert cache.get("p/b/c", (3, 4)) == (None if erase == "erase_prefix" else b"2222")
    assert ("a" in left) is (erase == "erase_prefix")


SLOW_READS = {**WRITES, **{name: ERASES[name] for name in ("erase", "erase_prefix")}}


def expect_no_old_value(inner: Remote, cache: CacheStore, key: str, answers: list[Any]) -> None:
    """A read that overlaps a write may return the old value, but nobody may get it from the cache later."""
    (answer,) = answers
    assert answer in (b"old", b"new", None)
    expected = MemoryStore.get(inner, key)
    assert expected != b"old"
    assert [cache.get(key), cache.get(key)] == [expected] * 2


@pytest.mark.parametrize("write", SLOW_READS)
def test_read_around_a_write_does_not_bring_back_the_old_value(write: str, place: dict[str, Any]) -> None:
    inner = Remote({"a": b"old", "p/a": b"old"})
    cache, _ = cached(inner, max_age=None, **place)
    key = "p/a" if write == "erase_prefix" else "a"
    asked, written = threading.Event(), threading.Event()
    answers: list[Any] = []

    def slow(key: str) -> None:
        if threading.current_thread() is reader:
            asked.set()
            assert written.wait(120)

    reader = threading.Thread(target=lambda: answers.append(cache.get(key)))
    inner.after = slow
    reader.start()
    assert asked.wait(120)
    SLOW_READS[write](cache)
    inner.after = lambda key: None
    written.set()
    reader.join()
    expect_no_old_value(inner, cache, key, answers)


@pytest.mark.parametrize("write", SLOW_READS)
def test_read_within_a_write_does_not_bring_back_the_old_value(write: str, place: dict[str, Any]) -> None:
    """The answer comes while the store below still has the old value."""
    inner = Remote({"a": b"old", "p/a": b"old"})
    cache, _ = cached(inner, max_age=None, **place)
    key = "p/a" if write == "erase_prefix" else "a"
    answers: list[Any] = []
    original = inner._lock

    class Within:
        def __enter__(self) -> None:
            if not answers:
                inner._lock = original
                answers.append(cache.get(key))
                inner._lock = Within()  # type: ignore[assignment]
            original.__enter__()

        def __exit__(self, *args: object) -> None:
            original.__exit__(*args)  # type: ignore[arg-type]

    inner._lock = Within()  # type: ignore[assignment]
    SLOW_READS[write](cache)
    inner._lock = original
    expect_no_old_value(inner, cache, key, answers)


def test_slow_read_that_begins_within_a_write(place: dict[str, Any]) -> None:
    """And ends after it."""
    asked, written = threading.Event(), threading.Event()

    class Written(Remote):
        def set(self, key: str, value: Buffer) -> None:
            self.after = lambda key: (asked.set(), written.wait(120))
            reader.start()
            assert asked.wait(120)
            super().set(key, value)

    inner = Written({"a": b"old"})
    cache, _ = cached(inner, max_age=None, **place)
    answers: list[Any] = []
    reader = threading.Thread(target=lambda: answers.append(cache.get("a")))
    cache.set("a", b"new")
    inner.after = lambda key: None
    written.set()
    reader.join()
    assert answers == [b"old"]
    assert [cache.get("a"), cache.get("a")] == [b"new", b"new"]


def test_slow_read_of_a_part_does_not_bring_back_the_old_value(place: dict[str, Any]) -> None:
    inner = Remote({"a": b"1" * 1000})
    cache, _ = cached(inner, max_age=None, **place)

    def replace(key: str) -> None:
        inner.after = lambda key: None
        cache.set("a", b"2" * 1000)

    inner.after = replace
    assert cache.get("a", (0, 10)) == b"1" * 10
    assert cache.get("a", (0, 10)) == b"2" * 10


@pytest.mark.slow
def test_who_has_written_never_reads_the_old_value_again(place: dict[str, Any]) -> None:
    """Also not from another thread that asked before and whose answer is still on its way."""
    inner = Remote({f"k{at}": b"0" for at in range(3)})
    inner.after = lambda key: time.sleep(random.random() * 0.002)
    cache, _ = cached(inner, max_age=None, **place)
    written = dict.fromkeys(range(3), 0)

    def write(at: int) -> None:
        for number in range(1, 200):
            cache.set(f"k{at}", str(number).encode())
            written[at] = number
            time.sleep(random.random() * 0.003)

    def read() -> None:
        while min(written.values()) < 199:
            at = random.randrange(3)
            least = written[at]
            assert int(bytes(cache.get(f"k{at}") or b"")) >= least

    run_threads(*(lambda at=at: write(at) for at in range(3)), *[read] * 6)  # type: ignore[misc]
    assert cache.hits > 0


def test_failed_write_leaves_nothing_behind(place: dict[str, Any]) -> None:
    class Failing(Remote):
        def set(self, key: str, value: Buffer) -> None:
            super().set(key, value)
            raise StoreError("no answer")

    inner = Failing({"a": b"old"})
    cache, _ = cached(inner, max_age=None, **place)
    cache.get("a")
    with pytest.raises(StoreError, match="no answer"):
        cache.set("a", b"perhaps stored")
    assert cache.get("a") == b"perhaps stored"
    assert cache.get("a") == b"perhaps stored"
    assert cache.hits == 1


# Many at the same time


def test_many_threads_ask_once(place: dict[str, Any]) -> None:
    """An error reaches all that wait, and no failure is kept."""
    inner = Remote({"a": VALUE, "b": VALUE})
    inner.after = lambda key: time.sleep(0.2)
    cache, _ = cached(inner, **place)
    found: list[Any] = []
    run_threads(*[lambda: found.append(cache.get("a"))] * 12)
    assert found == [VALUE] * 12
    assert inner.requests == [("a",)]

    def fail(key: str) -> None:
        time.sleep(0.02)
        raise StoreError("no answer")

    inner.after = fail
    errors: list[Any] = []

    def work() -> None:
        with pytest.raises(StoreError, match="no answer") as caught:
            cache.get("b")
        errors.append(caught.value)

    run_threads(*[work] * 8)
    assert len({id(error) for error in errors}) == 8
    inner.after = lambda key: None
    assert cache.get("b") == VALUE


def test_who_is_interrupted_leaves_the_others_a_chance() -> None:
    inner = Remote({"a": VALUE})
    first = threading.Event()

    def interrupt(key: str) -> None:
        if not first.is_set():
            first.set()
            time.sleep(0.2)
            raise KeyboardInterrupt

    inner.after = interrupt
    cache, _ = cached(inner)
    interrupted: list[type[BaseException]] = []

    def work() -> None:
        try:
            assert cache.get("a") == VALUE
        except KeyboardInterrupt as error:
            interrupted.append(type(error))

    run_threads(*[work] * 4)
    assert interrupted == [KeyboardInterrupt]


def test_values_that_are_too_large_are_refused_kept_or_not(tmp_path: Path, place: dict[str, Any]) -> None:
    inner = LocalStore(tmp_path / "store")
    inner.set("a", b"x" * 5000)
    cache, _ = cached(inner, **place)
    for _ in range(2):
        with pytest.raises(OversizedError, match="found 5000 bytes, at most 100 bytes"):
            cache.reader(Scratch(), 100).get("a")
        assert bytes(cache.reader(Scratch(), 5000).get("a") or b"") == b"x" * 5000


def test_size_of_a_value_is_limited_far_away_as_well(place: dict[str, Any]) -> None:
    """The version comes with it, where there are ranges."""
    inner = Remote({"a": b"x" * 5000, "e": b""})
    cache, clock = cached(inner, max_age=60, **place)
    with pytest.raises(OversizedError):
        cache.reader(Scratch(), 100).get("a")
    load = cache.reader(Scratch(), 5000).get
    for _ in range(2):
        assert [bytes(load("a") or b""), load("no"), load("e")] == [b"x" * 5000, None, b""]
        clock.now += 61
    limited = [("a", 0, 100), ("a", 0, 5000), ("no", 0, 5000), ("e", 0, 5000)]
    assert inner.requests == [*limited, ("a", 0, 1), ("no", 0, 5000), ("e", 0, 5000)]

    class Rangeless(Remote):
        _reader = opening

        def opened(self, key: str, part: Any, version: object | None) -> Any:
            self.requests.append((key, "no ranges"))
            raise StoreError("no ranges here")

    inner = Rangeless({"a": b"x" * 5000, "b": b"y"})
    cache, _ = cached(inner, max_age=60, **place)
    load = cache.reader(Scratch(), 5000).get
    for _ in range(2):
        assert [bytes(load(key) or b"") for key in "ab"] == [b"x" * 5000, b"y"]
    assert inner.requests == [("a", "no ranges"), ("a",), ("b",)]


# Bytes


def folder_bytes(directory: Path) -> int:
    total = 0
    for path in (directory / FOLDER).iterdir():
        if path.name[:2] in ("v-", "t-"):
            try:
                total += path.stat().st_size
            except FileNotFoundError:
                continue
    return total


@pytest.mark.parametrize("size", [1000, 3000])
def test_bytes_are_bounded_and_the_unused_goes_first(
    size: int, place: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xzarr3.stores.cache.directory._TOUCHED", -1)
    most = 20 * size if not place else 82_000
    inner = Remote({f"k{at}": bytes([at]) * size for at in range(40)})
    cache, _ = cached(inner, max_bytes=most, **place)
    for at in range(40):
        cache.get(f"k{at}")
        cache.get("k0")
        assert cache.size <= most
        assert not place or folder_bytes(place["directory"]) <= cache.size
    assert cache.size > 0.8 * most
    assert inner.requests.count(("k0",)) == 1
    inner.requests.clear()
    for key in ("k0", "k39", "k38"):
        assert cache.get(key) == bytes([int(key[1:])]) * size
    assert inner.requests == []
    cache.get("k1")
    assert inner.requests == [("k1",)]
    inner.set("large", b"x" * 90_000)
    for _ in range(2):
        assert cache.get("large") == b"x" * 90_000
    assert len(inner.requests) == 3, "what is larger than all there may be is not kept"
    if place:
        for at in range(40):
            cache.set(f"k{at}", b"new")
        assert cache.size == folder_bytes(place["directory"]) == 0
    cache.clear()
    assert cache.size == 0


def test_many_small_parts_are_bounded_as_well() -> None:
    inner = Remote({"a": bytes(100_000)})
    cache, _ = cached(inner, max_bytes=50_000)
    for at in range(1000):
        cache.get("a", (at, 1))
    assert len(cache._kept._entries) < 130  # type: ignore[attr-defined]


def test_what_was_replaced_does_not_count_for_ever(tmp_path: Path) -> None:
    inner = Remote({"a": b"1", "b": b"2"})
    cache, _ = cached(inner, max_bytes=50_000, max_age=None, directory=tmp_path)
    cache.get("b")
    for at in range(60):
        cache.set("a", bytes([at]))
        assert [cache.get("a"), cache.get("a")] == [bytes([at])] * 2
        assert cache.size == 2 * 4096
    cache.get("b")
    assert inner.requests.count(("b",)) == 1, "there was room all the time"
    assert (cache.hits, cache.misses) == (61, 61)


def _work(directory: Path, root: Path, seed: int, results: Any, steps: int = sys.maxsize) -> None:
    try:
        rng = random.Random(seed)
        cache = CacheStore(LocalStore(root), max_bytes=200_000, directory=directory)
        largest = 0
        for _ in range(steps):
            at = rng.randrange(60)
            if rng.random() < 0.1:
                size = rng.randrange(1, 9000)
                cache.set(f"k{at}", f"{at} ".encode() + bytes([size % 251]) * size)
            elif rng.random() < 0.02:
                cache.erase(f"k{at}")
            else:
                value = cache.get(f"k{at}")
                if value is not None:
                    head, _, rest = bytes(value).partition(b" ")
                    assert head == str(at).encode()
                    assert set(rest) <= {len(rest) % 251}
            largest = max(largest, cache.size)
        results.put((seed, largest, cache.hits, cache.misses))
    except BaseException as error:
        results.put((seed, repr(error), 0, 0))
        raise


@pytest.mark.slow
def test_processes_share_a_directory(tmp_path: Path) -> None:
    """Four of them, with random reads and writes: no wrong value, and no more bytes than allowed."""
    context = multiprocessing.get_context("spawn" if sys.platform == "darwin" else "fork")
    results = context.Queue()
    arguments = [(tmp_path / "cache", tmp_path / "store", seed, results, 500) for seed in range(4)]
    workers = [context.Process(target=_work, args=each) for each in arguments]
    for worker in workers:
        worker.start()
    largest = 0
    while any(worker.is_alive() for worker in workers):
        if (tmp_path / "cache" / FOLDER).is_dir():
            largest = max(largest, folder_bytes(tmp_path / "cache"))
        time.sleep(0.01)
        if not results.empty() and results.qsize() == 4:
            break
    found = [results.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join(120)
        assert worker.exitcode == 0, found
    assert all(size <= 200_000 for _, size, _, _ in found), found
    # What is seen file by file may count a value in its old and in its new place.
    assert 100_000 < largest <= 200_000 + 9_100
    assert sum(hits for *_, hits, _ in found) > 300, found
    cache = CacheStore(LocalStore(tmp_path / "store"), directory=tmp_path / "cache", max_bytes=200_000)
    for key in LocalStore(tmp_path / "store").list():
        assert cache.get(key) == cache.inner.get(key), "nothing old is left"
    files = [path for path in (tmp_path / "cache" / FOLDER).iterdir() if path.name.startswith("v-")]
    assert cache.size == sum(-(-path.stat().st_size // 4096) * 4096 for path in files)


# The directory


def value_files(directory: Path) -> list[Path]:
    """The files of the values, the smallest first."""
    return sorted((directory / FOLDER).glob("v-*"), key=lambda path: path.stat().st_size)


def filled(base: Path, **options: Any) -> tuple[CacheStore, Remote, list[Path]]:
    """A cache of two values in a directory, the store below, and the files of the values."""
    inner = Remote({"a": VALUE, "b": b"b" * 5000})
    inner._identity = "the same"
    cache = CacheStore(inner, directory=base / "cache", **options)
    cache.get("a")
    cache.get("b")
    cache.get("b", (0, 10))
    inner.requests.clear()
    return cache, inner, value_files(base / "cache")


def test_files_are_for_this_user_alone(tmp_path: Path) -> None:
    def work() -> set[int]:
        os.umask(0)
        _, _, files = filled(tmp_path)
        assert len(files) == 2
        modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "cache" / FOLDER).iterdir()}
        assert stat.S_IMODE((tmp_path / "cache" / FOLDER).stat().st_mode) == 0o700
        return modes

    assert run_child(work).checked() == {0o600}


DAMAGES: dict[str, Callable[[bytes, bytes], list[bytes]]] = {
    "flip each byte": lambda small, large: [
        small[:at] + bytes([small[at] ^ bit]) + small[at + 1 :]
        for at in range(len(small))
        for bit in (1, 128)
    ],
    "truncate": lambda small, large: [small[:size] for size in range(len(small))],
    "longer": lambda small, large: [small + b"\0", small + small],
    "another file": lambda small, large: [large],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_not_believed(damage: str, tmp_path: Path) -> None:
    _, _, files = filled(tmp_path)
    small, large = (path.read_bytes() for path in files)
    for content in DAMAGES[damage](small, large):
        cache, inner, found = filled(tmp_path)
        assert [path.name for path in found] == [path.name for path in files]
        files[0].write_bytes(content)
        assert [cache.get("a"), cache.get("b")] == [VALUE, b"b" * 5000]
        assert inner.requests == [("a",)], content


def test_file_that_is_not_of_ours_is_not_believed(tmp_path: Path) -> None:
    """Its checksum is right; nothing else is."""
    cache, inner, files = filled(tmp_path)
    name, key = files[0], b"a"
    for version, lengths in (
        (b"\xff(", (1, 2)),
        (b"(" * 5000, (1, 5000)),
        (b"1 + 1", (1, 2**31)),
        (b"", (9, 0)),
    ):
        summed = struct.pack("<IIqd", *lengths, -7, float("nan")) + key + version + b"forged"
        name.write_bytes(b"xz3cach2" + zlib.crc32(summed).to_bytes(4, "little") + summed)
        inner.requests.clear()
        assert cache.get("a") == VALUE
        assert inner.requests == [("a",)], version


def test_links_are_refused() -> None:
    def work(base: Path) -> list[str]:
        store = base / "store"
        cache, inner, files = filled(store)
        found = []
        for path in files:
            path.unlink()
            path.symlink_to(base / "canary.txt")
        found.append(str([cache.get("a"), cache.get("b")] == [VALUE, b"b" * 5000]))
        found.append(str(any(path.is_symlink() for path in files)))
        for name in ("ledger", *(f"l-{at:02}" for at in range(64))):
            path = store / "cache" / FOLDER / name
            path.unlink(missing_ok=True)
            path.symlink_to(base / "canary.txt")
        with pytest.raises(StoreError):
            cache.set("a", b"new")
        found.append(str(bytes(cache.get("a") or b"")))
        shutil.rmtree(store / "cache" / FOLDER)
        (store / "cache" / FOLDER).symlink_to(base / "outside")
        with pytest.raises(StoreError, match="not a link"):
            CacheStore(inner, directory=store / "cache")
        return found

    assert run_unprivileged(work).checked() == ["True", "False", str(VALUE)]


def test_folders_of_others_are_refused(tmp_path: Path) -> None:
    for mode in (0o755, 0o770, 0o702):
        (tmp_path / FOLDER).mkdir(exist_ok=True)
        (tmp_path / FOLDER).chmod(mode)
        with pytest.raises(StorePermissionError, match=r"give a directory of this user with mode 0o700"):
            CacheStore(MemoryStore(), directory=tmp_path)
    if os.geteuid() == 0:
        (tmp_path / FOLDER).chmod(0o700)
        os.chown(tmp_path / FOLDER, 65534, 65534)
        with pytest.raises(StorePermissionError, match="belongs to user 65534"):
            CacheStore(MemoryStore(), directory=tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError):
        CacheStore(MemoryStore(), directory=tmp_path / "file")


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(b"x" * 100_000)
    inner = MemoryStore({f"k/{at}": bytes(3000) for at in range(20)})
    cache = CacheStore(inner, directory=tmp_path, max_bytes=20_000)
    cache.get("k/0")
    names = ["t-x", "t-", "v-", "v-x", "t-1-", "t-\u0663-0123456789abcdef", f"t-{10**30}-0123456789abcdef"]
    for name in names:
        (tmp_path / FOLDER / name).write_bytes(b"")
    (tmp_path / FOLDER / "notes.txt").write_bytes(b"y" * 100_000)
    for name in (f"v-{0:040x}", "t-5-0123456789abcdef"):
        (tmp_path / FOLDER / name).mkdir()
    for at in range(20):
        assert cache.get(f"k/{at}") == bytes(3000)
    cache.get("k/19")
    assert cache.hits == 2, "there was room made"
    cache.clear()
    assert {path.name for path in (tmp_path / FOLDER).iterdir()} >= {*names, "notes.txt"}
    assert (tmp_path / "mine").stat().st_size == (tmp_path / FOLDER / "notes.txt").stat().st_size == 100_000


def test_hostile_keys_are_hashed(tmp_path: Path) -> None:
    inner = Remote({"\u6c23/e\u0301": b"1", "x" * 4000: b"2", "..." + "/d" * 300: b"3", "%2e%2e%2f": b"4"})
    cache, _ = cached(inner, directory=tmp_path)
    for _ in range(2):
        assert contents(cache) == contents(inner)
    names = {path.name for path in (tmp_path / FOLDER).iterdir()}
    values = [name for name in names if name.startswith("v-")]
    assert len(values) == 4
    assert all(re.fullmatch("v-[0-9a-f]{40}-whole", name) for name in values)


def test_stores_in_one_directory_do_not_mix(tmp_path: Path) -> None:
    one, two = MemoryStore({"a": b"1"}), MemoryStore({"a": b"2"})
    stores = [CacheStore(store, directory=tmp_path / "cache") for store in (one, two, one)]
    for _ in range(2):
        assert [store.get("a") for store in stores] == [b"1", b"2", b"1"]
    assert [store.misses for store in stores] == [1, 1, 0]


def test_removed_directory_is_made_again(tmp_path: Path) -> None:
    cache, _, _ = filled(tmp_path)
    shutil.rmtree(tmp_path / "cache")
    assert cache.get("a") == VALUE
    cache.set("a", b"new")
    assert [cache.get("a"), cache.get("a")] == [b"new", b"new"]
    assert (tmp_path / "cache" / FOLDER).is_dir()


def test_full_disk_and_lost_rights_keep_nothing() -> None:
    """A value that cannot be forgotten is not replaced: otherwise others would go on reading the old one."""

    def work(base: Path) -> list[object]:
        cache, inner, _ = filled(base / "store")
        folder = base / "store" / "cache" / FOLDER
        folder.chmod(0o500)
        with pytest.raises(StoreError, match="cannot remove values from the cache"):
            cache.set("a", b"new")
        assert MemoryStore.get(inner, "a") == VALUE
        inner.set("c", b"c")
        found: list[object] = [bytes(cache.get(key) or b"") for key in "acc"]
        folder.chmod(0o300)
        return [*found, bytes(cache.get("a") or b""), inner.requests]

    assert run_unprivileged(work).checked() == [VALUE, b"c", b"c", VALUE, [("c",), ("c",)]]


@pytest.mark.slow
def test_killed_processes_leave_nothing_wrong(tmp_path: Path) -> None:
    """Killed at any time, while they fill and change the directory."""
    root, directory = tmp_path / "store", tmp_path / "cache"
    context = multiprocessing.get_context("fork")
    rng = random.Random(7)
    for round_ in range(4):
        results = context.Queue()
        workers = [
            context.Process(target=_work, args=(directory, root, 10 * round_ + at, results))
            for at in range(2)
        ]
        for worker in workers:
            worker.start()
        time.sleep(0.1 + rng.random() * 0.2)
        for worker in workers:
            worker.kill()
            worker.join()
        local = LocalStore(root)
        cache = CacheStore(local, directory=directory, max_bytes=200_000)
        for key in local.list():
            assert cache.get(key) == local.get(key)
            assert cache.get(key) == local.get(key)
        assert folder_bytes(directory) <= cache.size <= 200_000
    for at in range(60):
        local.set(f"k{at}", f"{at} ".encode() + bytes(8000))
        cache.get(f"k{at}", None)
    cache.clear()
    for at in range(60):
        cache.get(f"k{at}")
    assert not [path for path in (directory / FOLDER).iterdir() if path.name.startswith("t-")], "swept"


@contextlib.contextmanager
def locked_by_another(path: Path) -> Iterator[None]:
    """A process that holds the lock of a file, and is suspended."""
    script = """
import fcntl, os, sys
fcntl.flock(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)
print(flush=True)
input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.kill()


@pytest.mark.slow
def test_suspended_process_stops_no_reader(tmp_path: Path) -> None:
    inner = Remote({f"k/{at}": bytes([at]) * 100 for at in range(50)})
    cache, clock = cached(inner, directory=tmp_path, max_age=60)
    assert cache.get("k/0") == bytes(100)
    with locked_by_another(tmp_path / FOLDER / "ledger"):
        for at in range(50):
            assert cache.get(f"k/{at}") == bytes([at]) * 100
        assert cache.hits == 1, "what is kept is found"
        for path in (tmp_path / FOLDER).glob("v-*"):
            path.write_bytes(b"damaged")
        assert cache.get("k/0") == bytes(100)
        cache.set("k/0", b"new")
        assert cache.get("k/0") == b"new"
        inner.set("k/1", b"newer")
        clock.now += 61
        assert cache.get("k/1") == b"newer"
        assert cache.size >= 0
    cache.get("k/2")
    hits = cache.hits
    cache.get("k/2")
    assert cache.hits == hits + 1
    assert folder_bytes(tmp_path) <= cache.size


def test_suspended_process_stops_writers_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xzarr3.stores.cache.directory._DEADLINE", 0.2)
    inner = MemoryStore({"a": b"1"})
    cache = CacheStore(inner, directory=tmp_path)
    with locked_by_another(tmp_path / FOLDER / cache._kept._stripe("a")):  # type: ignore[attr-defined]
        assert cache.get("a") == b"1"
        with pytest.raises(StoreError, match=r"another process has held a lock for 0\.2 s"):
            cache.set("a", b"2")
    assert inner.get("a") == b"1"
    cache.set("a", b"2")
    assert cache.get("a") == b"2"


# Travelling


def test_it_travels_without_its_values(place: dict[str, Any]) -> None:
    cache = CacheStore(MemoryStore({"a": VALUE}), max_bytes=12345, max_age=7, **place)
    empty = len(pickle.dumps(cache))
    cache.set("b", b"x" * 1000)
    cache.inner.erase("b")
    cache.get("a")
    assert len(pickle.dumps(cache)) < empty + 100
    twin = pickle.loads(pickle.dumps(cache))
    assert (twin.max_bytes, twin.max_age, twin.directory) == (12345, 7, cache.directory)
    assert twin.get("a") == VALUE
    assert (twin.hits, cache.hits) == (1, 1), "copies in one process share what they keep"
    data = pickle.dumps(cache)

    def work() -> tuple[object, ...]:
        other = pickle.loads(data)
        return bytes(other.get("a")), other.hits, other.misses

    expected = (1, 0) if place else (0, 1)
    assert run_child(work).checked() == (VALUE, *expected)


def test_settings_are_checked(tmp_path: Path) -> None:
    for options in ({"max_bytes": 0}, {"max_bytes": -5}, {"max_age": -1}, {"max_age": float("nan")}):
        with pytest.raises(ValueError, match="accepted"):
            CacheStore(MemoryStore(), **options)  # type: ignore[arg-type]
    for options in ({"max_bytes": 1.5}, {"directory": 5}):
        with pytest.raises(TypeError):
            CacheStore(MemoryStore(), **options)  # type: ignore[arg-type]


@pytest.mark.slow
def test_it_survives_fork(place: dict[str, Any]) -> None:
    """While other threads are in the middle of everything."""
    inner = Remote({f"k{at}": bytes([at]) * 500 for at in range(20)})
    cache, _ = cached(inner, max_bytes=100_000, **place)

    def busy() -> None:
        key = f"k{random.randrange(20)}"
        cache.get(key)
        cache.set(key, cache.inner.get(key) or b"")
        cache.get(key, (1, 2))

    assert fork_beside(busy, lambda: contents(cache) == contents(inner), 10) == [True] * 10
    assert cache.get("k1") == bytes([1]) * 500


def test_child_holds_no_lock_of_its_parent(tmp_path: Path) -> None:
    cache, _, _ = filled(tmp_path)
    reading, writing = os.pipe()
    children: list[int] = []

    def fork_within(stored: Any) -> Any:
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
        children.append(child)
        return [b"new"]

    cache.update("a", fork_within)
    assert [cache.get("a"), cache.get("a")] == [b"new", b"new"]
    assert cache.hits > 0
    os.close(writing)
    os.waitpid(children[0], 0)
    os.close(reading)


# All of it against a dictionary


class CacheMachine(RuleBasedStateMachine):
    """Reads, writes through the cache, writes by somebody else, and time that passes.

    What is read must be one of the values that the key had within the last ``max_age`` seconds, and not one
    from before the last write through the cache.
    """

    keys = Bundle("keys")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp()
        self.history: dict[str, list[tuple[float, bytes | None]]] = {}

    @initialize(
        max_age=st.sampled_from([0, 10, None]),
        in_directory=st.booleans(),
        kind=st.sampled_from(["remote", "memory", "silent", "local"]),
        max_bytes=st.sampled_from([900, 20_000, 10**6]),
    )
    def start(self, max_age: float | None, in_directory: bool, kind: str, max_bytes: int) -> None:
        self.max_age = max_age
        self.inner: Any = {
            "remote": Remote,
            "memory": MemoryStore,
            "silent": Silent,
            "local": lambda: LocalStore(self.folder + "/store"),
        }[kind]()
        place = f"{self.folder}/cache" if in_directory else None
        self.cache, self.clock = cached(self.inner, max_age=max_age, max_bytes=max_bytes, directory=place)

    @rule(target=keys, name=st.sampled_from(["a", "b", "p/a", "p/b"]))
    def key(self, name: str) -> str:
        return name

    def now(self, key: str) -> bytes | None:
        return self.history.get(key, [(0.0, None)])[-1][1]

    def note(self, key: str, value: bytes | None, *, forget: bool) -> None:
        entries = self.history.setdefault(key, [(0.0, None)])
        if forget:
            entries.clear()
        entries.append((self.clock.now, value))

    def allowed(self, key: str) -> list[bytes | None]:
        entries = self.history.get(key, [(0.0, None)])
        ends = [*(begun for begun, _ in entries[1:]), float("inf")]
        age = float("inf") if self.max_age is None else self.max_age
        return [
            value
            for (_, value), end in zip(entries, ends, strict=True)
            if end == float("inf") or self.clock.now - end < age
        ]

    @rule(key=keys, value=st.binary(max_size=300), through=st.booleans(), way=st.sampled_from(list(WRITES)))
    def write(self, key: str, value: bytes, through: bool, way: str) -> None:
        store = self.cache if through else self.inner
        if way == "update":
            store.update(key, lambda stored: [value])
        elif way == "writer":
            _through(store.writer(), lambda writer: writer.set(key, [value[:5], value[5:]]))
        elif way == "compare_and_set":
            assert self.cache.get_versioned(key)[0] == self.now(key), "this always asks below"
            assert store.compare_and_set(key, store.get_versioned(key)[1], value)
        else:
            store.set(key, value)
        self.note(key, value, forget=through)

    @rule(key=keys, through=st.booleans())
    def erase(self, key: str, through: bool) -> None:
        (self.cache if through else self.inner).erase(key)
        self.note(key, None, forget=through)

    @rule(through=st.booleans())
    def erase_prefix(self, through: bool) -> None:
        (self.cache if through else self.inner).erase_prefix("p/")
        for key in ("p/a", "p/b"):
            self.note(key, None, forget=through)

    @rule(seconds=st.sampled_from([0.5, 6, 11]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(key=keys, way=st.sampled_from(["get", "get_values", "loader", "open", "into"]))
    def read(self, key: str, way: str) -> None:
        found: Any
        if way == "get":
            found = self.cache.get(key)
        elif way == "get_values":
            found = self.cache.get_values([key])[0]
        elif way == "loader":
            found = self.cache.reader().get(key)
        elif way == "open":
            found = self.opened(key)
        else:
            out = bytearray(400)
            placed = self.cache.reader().get_into(key, 0, memoryview(out))
            found = None if placed is None else out[: placed[1]]
        found = None if found is None else bytes(found)
        assert found in self.allowed(key), way

    def opened(self, key: str) -> bytes | None:
        for _ in range(3):
            try:
                reader = self.cache.reader().open(key)
                if reader is None:
                    return None
                with reader:
                    return bytes(reader.read(0, 3)) + bytes(reader.read(3))
            except ChangedError:
                continue
        raise AssertionError("it changed three times")

    @rule(key=keys, start=st.integers(-5, 310), length=st.integers(0, 20))
    def read_part(self, key: str, start: int, length: int) -> None:
        found = self.cache.get(key, (start, length))
        allowed = [
            None if value is None else bytes(cut(value, (start, length))) for value in self.allowed(key)
        ]
        assert (None if found is None else bytes(found)) in allowed

    @rule()
    def travel(self) -> None:
        if isinstance(self.inner, LocalStore):
            self.cache = pickle.loads(pickle.dumps(self.cache))
            self.cache._clock = self.clock

    @invariant()
    def bounded(self) -> None:
        if hasattr(self, "cache"):
            assert self.cache.size <= self.cache.max_bytes

    def teardown(self) -> None:
        shutil.rmtree(self.folder)


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(
    max_examples=50, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.slow
class TestCacheMachineForLonger(CacheMachine.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(TestCacheMachine.settings, max_examples=500)


# Over servers


@pytest.mark.slow
def test_over_s3(s3_server: S3Server, place: dict[str, Any]) -> None:
    url = f"s3://{s3_server.bucket()}/store"
    far = ObjectStore(url, storage_options=s3_server.storage_options)
    values = np.arange(64 * 64, dtype="int32").reshape(64, 64)
    for name, options in ARRAYS.items():
        xzarr3.create_array(far, name, data=values, **options)
    inner = LoggingStore(far)
    cache, clock = cached(inner, **place)
    arrays = [xzarr3.open_array(cache, name) for name in ARRAYS]
    selections: list[Any] = [
        (slice(0, 8), slice(8, 24)),
        (slice(40, 41), 3),
        (slice(3, 60), slice(30, 34)),
        ...,
    ]
    for again in (False, True):
        inner.clear()
        for array in arrays:
            for selection in selections:
                np.testing.assert_array_equal(array[selection], values[selection])
        if again:
            assert not inner.records
    clock.now += 301
    for array in arrays:
        np.testing.assert_array_equal(array[:], values)
    assert inner.records, "what is old is asked for again"
    for name in ARRAYS:
        xzarr3.open_array(far, name, mode="r+")[:] = -values
    clock.now += 301
    for array in arrays:
        for selection in selections:
            np.testing.assert_array_equal(array[selection], -values[selection])
    through = xzarr3.open_array(cache, "sharded", mode="r+")
    through[3, 5:9] = 7
    values = -values
    values[3, 5:9] = 7
    np.testing.assert_array_equal(through[:], values)
    np.testing.assert_array_equal(xzarr3.open_array(far, "sharded")[:], values)
    large = np.random.default_rng(0).bytes(3 * 2**20)
    far.set("large", large)
    assert cache.get("large") == large
    clock.now += 301
    inner.clear()
    assert cache.get("large") == large
    assert [(record.operation, record.size) for record in inner.records] == [("open", 0)]
    far.set("empty", b"")
    for _ in range(2):
        assert [bytes(value or b"no") for value in cache.get_values(["empty", "absent"])] == [b"no", b"no"]
        assert bytes(cache.reader(Scratch(), 1000).get("empty") or b"") == b""
        clock.now += 301


@pytest.mark.parametrize("way", ["", "/compressed"])
def test_over_a_web_server(http_server: WebServer, way: str, place: dict[str, Any]) -> None:
    name, path = http_server.directory()
    local = LocalStore(path)
    values = np.arange(64 * 64, dtype="int32").reshape(64, 64)
    for array_name, options in ARRAYS.items():
        xzarr3.create_array(local, array_name, data=values, **options)
    cache, clock = cached(ObjectStore(f"{http_server.url}{way}/{name}"), **place)
    names = [name for name in ARRAYS if not way or "shard" not in name]
    arrays = [xzarr3.open_array(cache, name) for name in names]
    for again in (False, True):
        before = len(http_server.log())
        for array in arrays:
            np.testing.assert_array_equal(array[:], values)
            np.testing.assert_array_equal(array[3:60, 30:34], values[3:60, 30:34])
        if again and not way:
            assert len(http_server.log()) == before
    for name in ARRAYS:
        xzarr3.open_array(local, name, mode="r+")[:] = -values
    clock.now += 301
    for array in arrays:
        np.testing.assert_array_equal(array[3:60, 30:34], -values[3:60, 30:34])
        np.testing.assert_array_equal(array[:], -values)
