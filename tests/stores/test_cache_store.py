"""The cache: never a wrong value, no more bytes than allowed, no request too many."""

import contextlib
import itertools
import os
import pickle
import random
import shutil
import signal
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import xarray as xr
from _conformance import VALUE, contents, run_threads
from _kinds import ARRAYS, Four, Remote, Unsized, every_check, fork_beside
from _processes import Process, processes, run_processes
from _slow import slow
from _things import refused
from _unprivileged import run_child, unprivileged
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import xzarr3
from xzarr3 import LocalStore, MemoryStore, Store, StoreError, ZipStore
from xzarr3._types import Buffer
from xzarr3.errors import ChangedError, StorePermissionError
from xzarr3.nodes import seen
from xzarr3.stores import CacheStore, Value, cut, update, versioned
from xzarr3.stores import cache as caches
from xzarr3.stores.cache import FOLDER
from xzarr3.stores.values import OversizedError

SELECTIONS: list[Any] = [(slice(0, 8), slice(8, 24)), (slice(40, 41), 3), (slice(3, 60), slice(30, 34)), ...]

test_check_store_in_memory = every_check(lambda base: CacheStore(LocalStore(base)))
test_check_store_in_a_directory = every_check(
    lambda base: CacheStore(Remote(), directory=base), leave_out=["pickling"]
)
test_check_store_in_a_store = every_check(lambda base: CacheStore(LocalStore(base), directory=MemoryStore()))


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(caches, "clock", found := Clock())
    return found


@pytest.fixture(params=["memory", "directory", "store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    where = {"memory": None, "directory": tmp_path / "cache", "store": MemoryStore()}
    return {"directory": where[request.param]}


@pytest.fixture
def cached(place: dict[str, Any]) -> Callable[..., tuple[CacheStore, Any]]:
    def make(values: dict[str, bytes], kind: type[Remote] = Remote, **options: Any) -> Any:
        inner = kind(values)
        return CacheStore(inner, **place, **options), inner

    return make


def test_values_are_asked_for_once(cached: Any) -> None:
    cache, inner = cached({"a": VALUE, "b": b"bb"})
    for _ in range(3):
        assert [cache.get("a"), cache.get("a", limit=10), cache.get("a", (1, 2))] == [VALUE, VALUE, b"12"]
        assert cache.get_values(["a", "b", "a"]) == [VALUE, b"bb", VALUE]
        assert cache.exists("a")
        with cache.open("a") as value:
            assert (value.size, bytes(value.read(-2))) == (10, b"89")
    assert inner.requests == [("a",), ("b",)]
    assert cache.misses == 2
    assert cache.hits > 20


def test_old_values_are_asked_for_again(cached: Any, clock: Clock) -> None:
    cache, inner = cached({}, max_age=60)
    for stored, passed, expected in (
        (b"0", 0, b"0"), (b"1", 59.9, b"0"), (b"1", 0.2, b"1"),
        (b"2", -1000, b"2"),  # What comes from the future is not trusted.
        (None, 0, b"2"), (None, 61, None), (None, -61, None),
    ):  # fmt: skip
        inner.erase("a") if stored is None else inner.set("a", stored)
        clock.now += passed
        assert cache.get("a") == expected, (stored, passed)
    inner.set("a", b"3")
    inner.after = lambda key: setattr(clock, "now", clock.now + 59)
    cache.get("a")
    inner.set("a", b"4")
    clock.now += 2
    assert cache.get("a") == b"4", "age counts from before the request"


@pytest.mark.parametrize("max_age", [0, None])
def test_never_and_always(max_age: float | None, cached: Any, clock: Clock) -> None:
    cache, inner = cached({"a": b"x" * 1000}, max_age=max_age)
    for _ in range(3):
        assert cache.get("a") == b"x" * 1000
        clock.now += 1e9
    expected = [("a",)] if max_age is None else [("a",), ("a", 0, 1), ("a", 0, 1)]
    assert inner.requests == expected, "a large value is compared by its version, not read again"
    inner.set("a", b"y")
    assert cache.get("a") == (b"x" * 1000 if max_age is None else b"y")


def test_local_files_are_compared_by_versions(
    tmp_path: Path, place: Any, clock: Any, monkeypatch: Any
) -> None:
    # As long as a file is new, its version is unsure.
    monkeypatch.setattr("xzarr3.stores.local.files._SETTLED", 0)
    local = LocalStore(tmp_path / "store")
    local.set("a", VALUE)
    os.utime(tmp_path / "store/a", (1e9, 1e9))
    cache = CacheStore(local, max_age=60, **place)
    with xzarr3.trace() as t:
        for _ in range(3):
            assert cache.get("a") == VALUE
            clock.now += 61
    assert t.total["bytes_read"] == len(VALUE)
    local.set("a", b"new")
    assert cache.get("a") == b"new"


def test_dask_takes_no_old_value_for_a_new_one(tmp_path: Path) -> None:
    array = xzarr3.create_array(tmp_path, data=np.ones(4, "i4"), chunks=4)
    old, new, later = (CacheStore(LocalStore(tmp_path), max_age=age) for age in (None, 0, None))
    assert np.all(xzarr3.open_array(old)[:] == 1)
    array[:] = 2
    lazy = [xzarr3.from_zarr(store) for store in (old, new, later, old)]
    assert len({each.name for each in lazy}) == 3
    assert [found[0] for found in dask.compute(*lazy)] == [1, 2, 2, 1]
    assert xzarr3.from_zarr(new).name == lazy[1].name
    assert dask.base.tokenize(old) != dask.base.tokenize(old)
    assert dask.base.tokenize(new) == dask.base.tokenize(new)


def test_parts_are_kept(cached: Any) -> None:
    value = random.Random(3).randbytes(5000)
    cache, inner = cached({"a": value})
    for _ in range(3):
        assert cache.get("a", (100, 50)) == value[100:150]
        with cache.open("a", (-40, 40)) as reader:
            assert reader.read(-40, 40) == value[-40:]
            assert reader.size == cache.getsize("a") == 5000
            assert [bytes(part) for part in reader.read_ranges([7, 100, 900], [3, 50, 9])] == [
                *(value[7:10], value[100:150], value[900:909])
            ]
            assert reader.read_into(7, memoryview(bytearray(3))) == 3
        with cache.open("a") as reader:
            assert reader.read_ranges([100, 7], [50, 3]) == [value[100:150], value[7:10]]
    assert inner.requests == [("a", 100, 50), ("a", -40, 40), ("a", 7, 3), ("a", 900, 9)]


def test_parts_of_two_versions_are_never_mixed(cached: Any, clock: Clock) -> None:
    cache, inner = cached({"a": b"1" * 1000}, max_age=60)
    assert cache.get("a", (0, 10)) == b"1" * 10
    inner.set("a", b"2" * 900)
    assert cache.get("a", (0, 10)) == b"1" * 10, "this part is kept"
    with cache.open("a", (0, 10)) as reader:
        assert reader.read(0, 10) == b"1" * 10
        refused(ChangedError, "a changed", lambda: reader.read(10, 10))
    assert cache.get("a", (0, 10)) == b"2" * 10, "then the old version is forgotten"
    inner.set("a", b"3" * 900)
    assert cache.get("a", (20, 10)) == b"3" * 10, "nothing was told of the old version: the new one will do"
    inner.erase("a")
    assert cache.get("a", (200, 10)) is None
    inner.set("a", b"6" * 900)
    clock.now += 61
    assert cache.get("a", (0, 10)) == b"6" * 10


@pytest.mark.parametrize("max_age", [0, 60, None])
@pytest.mark.parametrize(
    "versions", [[(np.nan, 0), (np.nan, 1)], [np.inf, -np.inf], [np.int64(0), np.int64(1)]], ids=repr
)
def test_versions_that_an_entry_cannot_have_count_as_none(versions: Any, max_age: Any, cached: Any) -> None:
    class Odd(Remote):
        def ask(self, key: str, *what: object) -> tuple[Buffer | None, Any]:
            return super().ask(key, *what)[0], versions[self.changes[key]]

    cache, _ = cached({"a": b"1" * 1000}, kind=Odd, max_age=max_age)
    for now in (b"1", b"2"):
        for _ in range(3):
            assert cache.get("a", (10, 10)) == now * 10
            with cache.open("a") as reader:
                assert reader.read(20, 10) == now * 10
        assert cache.get("a") == cache.get("a") == now * 1000
        cache.set("a", b"2" * 1000)


def test_store_that_opens_whatever_version_there_is(cached: Any) -> None:
    cache, inner = cached({"a": b"1" * 1000})
    assert cache.get("a", (0, 10)) == b"1" * 10
    inner.set("a", b"2" * 1000)
    opened = inner.open
    inner.open = lambda key, first=None, version=None: opened(key, first)
    with cache.open("a", (0, 10)) as value:
        assert value.read(0, 10) == b"1" * 10
        refused(ChangedError, "was replaced while it was read", lambda: value.read(10, 10))
    assert cache.get("a", (0, 10)) == b"2" * 10


def test_what_was_compared_is_fresh_again(cached: Any, clock: Clock) -> None:
    cache, inner = cached({"a": b"x" * 1000, "parts": b"1" * 1000}, max_age=60)
    cache.get("a")
    assert [cache.get("parts", (start, 10)) for start in (0, 500)] == [b"1" * 10] * 2
    clock.now += 61
    inner.requests.clear()
    for _ in range(3):
        assert cache.get("a") == b"x" * 1000
    with cache.open("parts", (0, 10)) as reader:
        assert [reader.read(0, 10), reader.read(500, 10)] == [b"1" * 10] * 2
    assert inner.requests == [("a", 0, 1), ("parts", 0, 10)]


CHANGES: dict[str, Callable[[Store], object]] = {
    "set": lambda store: store.set("a", b"new"),
    "set_values": lambda store: store.set_values([("a", b"new"), ("b", b"x")]),
    "set_partial_values": lambda store: store.set_partial_values([("a", 0, b"new")]),
    "put": lambda store: store.put("a", [b"new"], if_version=versioned(store, "a")[1]),
    "update": lambda store: update(store, "a", lambda stored: [b"new"]),
    "copy": lambda store: store.copy("q", "a"),
    "erase": lambda store: store.erase("a"),
    "erase_values": lambda store: store.erase_values(["b", "a"]),
    "erase_prefix": lambda store: store.erase_prefix("p/"),
    "put nothing": lambda store: store.put("a", None, if_version=versioned(store, "a")[1]),
    "update to nothing": lambda store: update(store, "a", lambda stored: None),
}


@pytest.mark.parametrize("kind", [Remote, MemoryStore])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changes_take_effect_at_once(change: Any, kind: Any, place: dict[str, Any]) -> None:
    values = {"a": b"old", "p/a": b"1", "p/b/c": b"2" * 100, "q": b"3"}
    inner = kind(dict(values))
    cache, other = (CacheStore(inner, max_age=None, **place) for _ in range(2))

    def found(store: Store, part: Any = None) -> dict[str, bytes]:
        return {key: value for key in values if (value := store.get(key, part)) is not None}

    for store in (cache, other):
        assert (found(store), len(found(store, (0, 2)))) == (values, 4)
    change(cache)
    after = found(inner)
    assert after != values
    assert (found(cache), found(cache, (0, 2))) == (after, {key: each[:2] for key, each in after.items()})
    if place["directory"]:
        assert found(other) == after, "in a directory, for every store there"


@pytest.mark.parametrize("way", ["set", "set_values", "erase", "erase_prefix"])
@pytest.mark.parametrize("read", ["before to after", "within", "within to after"])
@pytest.mark.parametrize("size", [None, 2], ids=["whole", "part"])
def test_read_beside_a_write_does_not_bring_back_the_old_value(
    size: int | None, read: str, way: str, cached: Any
) -> None:
    """A read that overlaps a write may return the old value, but nobody may get it from the cache later."""
    cache, inner = cached({"a": b"old", "p/a": b"old"}, max_age=None)
    key, lock = "p/a" if way == "erase_prefix" else "a", inner._lock
    get = partial(cache.get, key, size and (0, size))
    asked, may_end = threading.Event(), threading.Event()
    answers: list[Any] = []
    reader = threading.Thread(target=lambda: answers.append(get()))

    def begin() -> None:
        inner._lock = lock
        reader.start()
        assert asked.wait(120)
        if read == "within":
            may_end.set()
            reader.join()

    class Within:
        """The store below still has the old value."""

        def __enter__(self) -> None:
            begin()
            lock.__enter__()

        def __exit__(self, *args: object) -> None:
            lock.__exit__(*args)

    def answer(key: str) -> None:
        if threading.current_thread() is reader:
            asked.set()
            assert may_end.wait(120)

    inner.after = answer
    if read == "before to after":
        begin()
    else:
        inner._lock = Within()
    CHANGES[way](cache)
    may_end.set()
    reader.join()
    assert answers[0] in (b"old"[:size], b"new"[:size], None)
    expected = inner._values.get(key)
    assert expected != b"old"
    assert [get(), get()] == [expected and expected[:size]] * 2


def test_failed_write_leaves_nothing_behind(place: dict[str, Any]) -> None:
    class Failing(Remote):
        def put(self, key: str, pieces: Sequence[Buffer]) -> None:
            super().put(key, pieces)
            raise StoreError("no answer")

    inner = Failing({"a": b"old"})
    cache = CacheStore(inner, max_age=None, **place)
    cache.get("a")
    refused(StoreError, "no answer", lambda: cache.set("a", b"perhaps stored"))
    assert ([cache.get("a") for _ in range(2)], cache.hits) == ([b"perhaps stored"] * 2, 1)


def test_many_threads_ask_once(place: dict[str, Any]) -> None:
    """An error reaches all that wait, and no failure is kept."""
    inner = Remote({"a": VALUE, "b": VALUE})
    inner.after = lambda key: time.sleep(0.2)
    cache = CacheStore(inner, **place)
    found: list[Any] = []
    run_threads(*[lambda: found.append(cache.get("a"))] * 12)
    assert found == [VALUE] * 12
    assert inner.requests == [("a",)]

    def fail(key: str) -> None:
        time.sleep(0.02)
        raise StoreError("no answer")

    inner.after = fail
    errors: list[Any] = []
    run_threads(*[lambda: errors.extend(refused(StoreError, "no answer", lambda: cache.get("b")))] * 8)
    assert len({id(error) for error in errors}) == 8
    inner.after = lambda key: None
    assert cache.get("b") == VALUE


def test_values_that_are_too_large_are_refused_kept_or_not(cached: Any, clock: Clock) -> None:
    cache, inner = cached({"a": b"x" * 5000, "e": b""}, max_age=60)
    for _ in range(2):
        refused(OversizedError, "found 5000 bytes, at most 100 bytes", lambda: cache.get("a", limit=100))
    for _ in range(2):
        found = [cache.get(key, limit=5000) for key in ("a", "no", "e")]
        assert found == [b"x" * 5000, None, b""]
        clock.now += 61
    limited = [("a", 0, 100), ("a", 0, 100), ("a", 0, 5000), ("no", 0, 5000), ("e", 0, 5000)]
    assert inner.requests == [*limited, ("a", 0, 1), ("no", 0, 5000), ("e", 0, 5000)]
    cache.get("a")
    refused(OversizedError, None, lambda: cache.get("a", limit=100))


class Rangeless(Remote):
    def open(self, key: str, first: Any = None, version: object = None) -> Value | None:
        raise StoreError("no ranges here")


@pytest.mark.parametrize(("kind", "hits"), [(Rangeless, 2), (Unsized, 1)])
def test_value_that_is_cut_at_a_limit_is_not_kept(kind: Any, hits: int, place: dict[str, Any]) -> None:
    cache = CacheStore(kind({"a": b"x" * 5000}), max_age=60, **place)
    for _ in range(2):
        refused(OversizedError, None, lambda: cache.get("a", limit=20))
        assert cache.get("a", limit=5000) == b"x" * 5000
    assert cache.get("a") == b"x" * 5000
    assert cache.hits >= hits


def files(directory: Path) -> list[Path]:
    """The files of the entries, the smallest first."""
    found = [path for path in (directory / FOLDER).glob("*/**/*") if path.is_file()]
    return sorted(found, key=lambda path: path.stat().st_size)


def test_bytes_are_bounded_and_the_unused_goes_first(cached: Any) -> None:
    size, most = 1000, 40_000
    cache, inner = cached({f"k{at}": bytes([at]) * size for at in range(40)}, max_bytes=most)
    for at in range(40):
        cache.get(f"k{at}")
        cache.get("k0")
        assert cache.size <= most
    assert cache.size > 0.6 * most
    assert inner.requests.count(("k0",)) == 1
    inner.requests.clear()
    for key in ("k0", "k39", "k38", "k1"):
        assert cache.get(key) == bytes([int(key[1:])]) * size
    assert inner.requests == [("k1",)]
    inner.set("large", bytes(most + 1))
    for _ in range(2):
        assert cache.get("large") == bytes(most + 1)
    assert len(inner.requests) == 3, "what is larger than all there may be is not kept"
    cache.clear()
    assert cache.size == 0
    inner.set("parts", bytes(100_000))
    for at in range(200):  # What each is kept with counts as well.
        cache.get("parts", (at, 1))
    assert 30 < len(cache._kept.sizes()) < 100


def test_other_values_of_the_store_are_left_alone() -> None:
    there = MemoryStore({"mine": bytes(10**5), f"{FOLDER}": b"mine, too"})
    cache = CacheStore(Remote({f"k/{at}": bytes(300) for at in range(30)}), directory=there, max_bytes=9000)
    for at in range(30):
        cache.get(f"k/{at}")
    assert 0 < cache.size <= 9000
    cache.clear()
    assert {"mine", FOLDER} <= set(there.list()) <= {"mine", FOLDER, f"{FOLDER}/writes"}


def assert_whole(key: str, value: Any) -> None:
    """It is one of those that :func:`work` stores under the key."""
    head, _, rest = bytes(value).partition(b" ")
    assert head == key[1:].encode()
    assert set(rest) <= {len(rest) % 251}


def work(directory: Path, root: str, seed: int, told: Path, steps: int = sys.maxsize) -> None:
    rng = random.Random(seed)
    cache = CacheStore(LocalStore(root), max_bytes=200_000, directory=directory)
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
                assert_whole(f"k{at}", value)
    told.write_text(f"{cache.size} {cache.hits}")


def filled(base: Path, **options: Any) -> tuple[CacheStore, Remote]:
    inner = Remote({"a": VALUE, "b": b"b" * 5000})
    inner._name = "the same"
    cache = CacheStore(inner, directory=base / "cache", **options)
    cache.get("a")
    cache.get("b")
    inner.requests.clear()
    return cache, inner


def test_damaged_files_are_not_believed(tmp_path: Path) -> None:
    """Each byte is changed, the end cut off, something added, or it is another file."""
    cache, inner = filled(tmp_path)
    small, large = files(tmp_path / "cache")
    whole = small.read_bytes()
    changed = [(at, bytes([whole[at] ^ bit])) for at in range(len(whole)) for bit in (1, 128)]
    for content in (
        *(whole[:at] + byte + whole[at + 1 :] for at, byte in changed),
        *(whole[:size] for size in range(len(whole))),
        *(whole + b"\0", whole + whole, large.read_bytes()),
    ):
        small.write_bytes(content)
        assert [cache.get("a"), cache.get("b")] == [VALUE, b"b" * 5000]
        assert inner.requests == [("a",)], content
        inner.requests.clear()
        assert cache.get("a") == VALUE
        assert not inner.requests, "it is kept anew"


def test_directory_is_for_this_user_alone(tmp_path: Path) -> None:
    filled(tmp_path)
    assert stat.S_IMODE((tmp_path / "cache" / FOLDER).stat().st_mode) == 0o700
    (tmp_path / FOLDER).mkdir()
    again = partial(CacheStore, MemoryStore(), directory=tmp_path)
    for mode in (0o755, 0o770, 0o702):
        (tmp_path / FOLDER).chmod(mode)
        refused(StorePermissionError, "give a directory of this user, mode 0o700", again)
    if os.geteuid() == 0:
        (tmp_path / FOLDER).chmod(0o700)
        os.chown(tmp_path / FOLDER, 65534, 65534)
        refused(StorePermissionError, "belongs to user 65534", again)
    (tmp_path / "file").write_text("")
    refused(StoreError, None, lambda: CacheStore(MemoryStore(), directory=tmp_path / "file"))


@unprivileged()
def test_links_are_not_followed(base: Path) -> None:
    (base / "store" / FOLDER).symlink_to(base / "outside")
    refused(StoreError, "cannot keep a cache", lambda: CacheStore(MemoryStore(), directory=base / "store"))
    cache, _ = filled(base / "store")
    for path in files(base / "store" / "cache"):
        path.unlink()
        path.symlink_to(base / "canary.txt")
    for _ in range(2):
        assert [cache.get("a"), cache.get("b")] == [VALUE, b"b" * 5000]


def test_hostile_keys_are_kept_or_not(tmp_path: Path) -> None:
    values = {
        "\u6c23/e\u0301": b"1", "..." + "/d" * 100: b"3", "%2e%2e%2f": b"4", "whole": b"5",
        "whole/head": b"6",
    }  # fmt: skip
    inner = Remote({**values, "x" * 4000: b"2"})
    cache = CacheStore(inner, directory=tmp_path)
    for _ in range(2):
        assert contents(cache) == contents(inner)
    assert cache.hits == len(values), "no file has a name of 4,000 bytes"
    assert os.listdir(tmp_path) == [FOLDER]


def test_stores_in_one_directory_do_not_mix(tmp_path: Path) -> None:
    one, two = MemoryStore({"a": b"1"}), MemoryStore({"a": b"2"})
    stores = [CacheStore(store, directory=tmp_path / "cache") for store in (one, two, one)]
    for _ in range(2):
        assert [store.get("a") for store in stores] == [b"1", b"2", b"1"]
    assert [store.misses for store in stores] == [1, 1, 0]
    stores[0].clear()
    assert [store.get("a") for store in stores] == [b"1", b"2", b"1"]
    assert [store.misses for store in stores] == [2, 1, 0]


@unprivileged()
def test_lost_rights_keep_nothing(base: Path) -> None:
    """A value that cannot be forgotten is not replaced: otherwise others would go on reading the old one."""
    cache, inner = filled(base / "store")
    for above, _, _ in os.walk(base / "store" / "cache"):
        os.chmod(above, 0o500)
    refused(StoreError, FOLDER, lambda: cache.set("a", b"new"))
    assert inner._values["a"] == VALUE
    inner._values["c"] = b"c"
    assert ([cache.get(key) for key in "acc"], inner.requests) == ([VALUE, b"c", b"c"], [("c",), ("c",)])


@pytest.mark.slow
def test_processes_share_a_directory_and_leave_nothing_wrong_when_killed(tmp_path: Path) -> None:
    """No wrong value, and no more bytes than allowed.

    What a killed process was storing is another writer's change to the others: they see it once they look.
    """
    local, directory, rng = LocalStore(tmp_path / "store"), tmp_path / "cache", random.Random(7)
    told = [tmp_path / f"told {seed}" for seed in range(4)]
    run_processes(*(partial(work, directory, local.root, seed, told[seed], 500) for seed in range(4)))
    sizes, hits = zip(*(map(int, path.read_text().split()) for path in told), strict=True)
    assert max(sizes) <= 200_000 * (1 + 4 / 8)
    assert sum(hits) > 100
    cache, current = (
        CacheStore(local, directory=directory, max_bytes=200_000, max_age=age) for age in (None, 0)
    )
    for key in local.list():
        assert cache.get(key) == local.get(key), "nothing old is left"
    for round_ in range(4):
        works = (partial(work, directory, local.root, 10 * round_ + at, tmp_path) for at in range(2))
        with processes(*works):
            time.sleep(0.2 + rng.random() * 0.3)
        for key in local.list():
            assert_whole(key, cache.get(key))
            assert current.get(key) == local.get(key)
        assert cache.size <= 250_000
    assert cache.hits > 0


@pytest.mark.slow
def test_suspended_process_stops_no_reader_and_a_writer_for_a_while(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(caches, "_DEADLINE", 0.3)
    inner = Remote({f"k/{at}": bytes([at]) * 100 for at in range(5)})
    cache = CacheStore(inner, directory=tmp_path, max_age=60)
    assert cache.get("k/0") == bytes(100)

    def hold() -> None:
        with LocalStore(tmp_path).exclusive(f"{FOLDER}/writes"):
            Process.say()
            signal.pause()

    with processes(hold) as (holder,):
        assert holder.hear()
        for at in range(5):
            assert cache.get(f"k/{at}") == bytes([at]) * 100
        assert cache.hits == 1, "what is kept is found"
        refused(StoreError, "lock", lambda: cache.set("k/0", b"new"))
        assert inner._values["k/0"] == bytes(100)
    cache.set("k/0", b"new")
    assert [cache.get("k/0"), cache.get("k/0"), cache.hits] == [b"new", b"new", 2]


def test_it_travels_without_its_values(place: dict[str, Any]) -> None:
    cache = CacheStore(MemoryStore({"a": VALUE}), max_bytes=12345, max_age=7, **place)
    assert cache.get("a") == VALUE
    twin = pickle.loads(pickle.dumps(cache))
    assert (twin.max_bytes, twin.max_age) == (12345, 7)
    assert twin.get("a") == VALUE
    assert (twin.hits, cache.hits) == (1, 1), "copies in one process share what they keep"
    data = pickle.dumps(cache)

    def work() -> tuple[object, ...]:
        other = pickle.loads(data)
        return bytes(other.get("a")), other.hits, other.misses

    shares = isinstance(place["directory"], Path)
    assert run_child(work).checked()[0] == VALUE
    assert not shares or run_child(work).checked() == (VALUE, 1, 0)


def test_settings_are_checked(tmp_path: Path) -> None:
    sizes, ages = (0, -5, 1.5, "much"), (-1, np.nan, "1")
    assert CacheStore(MemoryStore(), max_bytes="2 kB").max_bytes == 2000
    for name, value in [*(("max_bytes", size) for size in sizes), *(("max_age", age) for age in ages)]:
        refused(ValueError, f"{name}=.*accepted", partial(CacheStore, MemoryStore(), **{name: value}))
    refused(TypeError, None, lambda: CacheStore(MemoryStore(), directory=5))


@pytest.mark.slow
def test_it_survives_fork(cached: Any) -> None:
    cache, inner = cached({f"k{at}": bytes([at]) * 500 for at in range(20)}, max_bytes=100_000)

    def busy() -> None:
        key = f"k{random.randrange(20)}"
        cache.get(key)
        cache.set(key, cache.inner.get(key) or b"")
        cache.get(key, (1, 2))

    assert fork_beside(busy, lambda: contents(cache) == contents(inner), 10) == [True] * 10
    assert cache.get("k1") == bytes([1]) * 500


MODELLED = ("a", "b", "p/a", "p/b")
KEY, WAYS = st.sampled_from(MODELLED), st.sampled_from(["set", "put", "update"])


class CacheMachine(RuleBasedStateMachine):
    """Reads, writes through the cache, writes by somebody else, and time that passes.

    What is read must be one of the values that the key had within the last ``max_age`` seconds, and not one
    from before the last write through the cache.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp()
        self.before, self.clock = caches.clock, Clock()
        caches.clock = self.clock
        self.history: dict[str, list[tuple[float, bytes | None]]] = {key: [(0.0, None)] for key in MODELLED}

    @initialize(
        max_age=st.sampled_from([0, 10, None]),
        in_directory=st.booleans(),
        kind=st.sampled_from([Remote, MemoryStore, Four, LocalStore]),
        max_bytes=st.sampled_from([900, 20_000, 10**6]),
    )
    def start(self, max_age: float | None, in_directory: bool, kind: Any, max_bytes: int) -> None:
        self.max_age = max_age
        self.inner: Any = kind(self.folder + "/store") if kind is LocalStore else kind()
        place = f"{self.folder}/cache" if in_directory else None
        self.cache = CacheStore(self.inner, max_age=max_age, max_bytes=max_bytes, directory=place)

    def note(self, key: str, value: bytes | None, through: bool) -> None:
        if through:
            self.history[key].clear()
        self.history[key].append((self.clock.now, value))

    def allowed(self, key: str) -> list[bytes | None]:
        entries = self.history[key]
        ends = [*(begun for begun, _ in entries[1:]), float("inf")]
        age = float("inf") if self.max_age is None else self.max_age
        return [
            value
            for (_, value), end in zip(entries, ends, strict=True)
            if end == float("inf") or self.clock.now - end < age
        ]

    @rule(key=KEY, value=st.binary(max_size=300), through=st.booleans(), way=WAYS)
    def write(self, key: str, value: bytes, through: bool, way: str) -> None:
        store = self.cache if through else self.inner
        if way == "update":
            update(store, key, lambda stored: [value])
        elif way == "put":
            found, version = versioned(self.cache, key)
            assert found == self.history[key][-1][1], "this always asks below"
            assert store.put(key, [value[:5], value[5:]], if_version=version)
        else:
            store.set(key, value)
        self.note(key, value, through)

    @rule(key=KEY, through=st.booleans())
    def erase(self, key: str, through: bool) -> None:
        (self.cache if through else self.inner).erase(key)
        self.note(key, None, through)

    @rule(through=st.booleans())
    def erase_prefix(self, through: bool) -> None:
        (self.cache if through else self.inner).erase_prefix("p/")
        for key in ("p/a", "p/b"):
            self.note(key, None, through)

    @rule(seconds=st.sampled_from([0.5, 6, 11]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(key=KEY, way=st.sampled_from(["get", "get_values", "limit", "open"]))
    def read(self, key: str, way: str) -> None:
        reads: dict[str, Callable[[], Any]] = {
            "get": lambda: self.cache.get(key),
            "get_values": lambda: self.cache.get_values([key])[0],
            "limit": lambda: self.cache.get(key, limit=1000),
            "open": lambda: self.opened(key),
        }
        assert reads[way]() in self.allowed(key), way

    def opened(self, key: str) -> Any:
        for _ in range(3):
            with contextlib.suppress(ChangedError):
                reader = self.cache.open(key)
                return reader and bytes(reader.read(0, 3)) + bytes(reader.read(3))
        raise AssertionError("it changed three times")

    @rule(key=KEY, start=st.integers(-5, 310), length=st.integers(0, 20))
    def read_part(self, key: str, start: int, length: int) -> None:
        allowed = [None if value is None else cut(value, (start, length)) for value in self.allowed(key)]
        assert self.cache.get(key, (start, length)) in allowed

    @rule()
    def travel(self) -> None:
        if isinstance(self.inner, LocalStore):
            self.cache = pickle.loads(pickle.dumps(self.cache))

    @invariant()
    def bounded(self) -> None:
        if hasattr(self, "cache"):
            assert self.cache.size <= self.cache.max_bytes

    def teardown(self) -> None:
        caches.clock = self.before
        shutil.rmtree(self.folder)


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(
    max_examples=50, stateful_step_count=40, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("where", ["memory", slow("S3")])
def test_arrays_are_read_part_by_part_and_kept(
    where: str, place: dict[str, Any], clock: Clock, request: pytest.FixtureRequest
) -> None:
    far: Any = Remote()
    if where == "S3":
        server = request.getfixturevalue("s3_server")
        url = f"s3://{server.bucket()}/store"
        far = xzarr3.ObjectStore(url, storage_options=server.storage_options)
    cache = CacheStore(far, **place)
    values = np.arange(64 * 64, dtype="int32").reshape(64, 64)
    stored = [xzarr3.create_array(far, name, data=values, **layout) for name, layout in ARRAYS.items()]
    arrays = [xzarr3.open_array(cache, name, mode="r+") for name in ARRAYS]

    def expect(values: Any) -> None:
        for array, selection in itertools.product(arrays, SELECTIONS):
            np.testing.assert_array_equal(array[selection], values[selection])

    expect(values)
    with xzarr3.trace() as t:
        expect(values)
    assert t.total["requests"] == 0
    clock.now += 301
    expect(values)
    for array in stored:
        array[:] = -values
    clock.now += 301
    expect(-values)
    for array in arrays:
        array[3, 5:9] = 7
    values[3, 5:9] = -7
    expect(-values)
    assert [array[3, 5] for array in stored] == [7] * len(stored)


def test_cache_store_refuses_a_zip_that_is_being_written(tmp_path: Path) -> None:
    with ZipStore(tmp_path / "a.zip", mode="w") as made:
        made.set("k", b"1")
        refused(ValueError, r"ZipStore .*a\.zip.*close or commit it first", lambda: CacheStore(made))
    assert CacheStore(made).get("k") == b"1"
    assert CacheStore(ZipStore(tmp_path / "a.zip")).get("k") == b"1"


@pytest.mark.parametrize("zarr_format", [3, 2, "3-draft"])
@pytest.mark.parametrize("max_age", [0, 300, None])
def test_kept_chunks_are_not_decoded_by_later_documents(
    max_age: Any, zarr_format: Any, cached: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor new chunks by documents of before: the values would be neither the old nor the new ones."""
    monkeypatch.setattr(seen, "RECENT", 0)
    cache, inner = cached({}, max_age=max_age)

    def scaled(by: float) -> xr.Dataset:
        encoding = {"dtype": "i2", "scale_factor": by, "_FillValue": -1, "chunks": (4,)}
        return xr.Dataset({"v": ("x", (np.arange(8.0) + by) * by, {}, encoding)})

    for consolidated, by in itertools.product((True, False), (2.0, 3.0)):
        xzarr3.to_zarr(scaled(1.0), inner, mode="w", zarr_format=zarr_format)
        opened = partial(
            xr.open_dataset, cache, engine="xzarr3", chunks=None, cache=False,
            consolidated=None if zarr_format == "3-draft" else consolidated,
        )  # fmt: skip
        older = opened()
        clock.now += 290
        assert older["v"][:4].values.tolist() == [1, 2, 3, 4]
        xzarr3.to_zarr(scaled(by), inner, mode="w", zarr_format=zarr_format)
        refused(ChangedError, older["v"].load)
        clock.now += 290 * (by == 3)
        np.testing.assert_array_equal(opened()["v"], scaled(by)["v"])


def test_documents_stay_when_room_is_made_for_chunks(cached: Any) -> None:
    """If they went first, nothing would tell that the chunks which stay are those of an older array."""
    cache, inner = cached({}, max_bytes=6_000, max_age=None)
    for start in (1, 100):
        xzarr3.create_array(inner, "v", data=np.arange(20.0) + start, chunks=1, overwrite=True)
        found = xzarr3.open_array(cache, "v")
        for at in range(20):
            assert found[[0, at]].tolist() == [start, start + at]
    assert cache.size <= 6_000
