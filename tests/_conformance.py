"""What tests of stores share: keys, values, threads, and every way to read. The checks are those of
:mod:`xzarr3.testing`."""

import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import _things

from xzarr3 import InvalidKeyError, Store
from xzarr3.stores import Scratch, update, versioned

VALUE = b"0123456789"

INVALID_KEYS: list[Any] = [
    *("", "/", "a/", "/a", "//a", "a//b", ".", "..", "./a", "../a", "a/.", "a/..", "a/./b", "a/../b"),
    *("a/../../outside/planted", "../canary.txt", "../outside/planted", "/tmp/xzarr3-planted"),
    *("../../../../../../../../../../tmp/xzarr3-planted", "a\0b", "\0", "a/\0"),
    *(None, 7, b"a", ("a",), Path("a")),
]

INVALID_PREFIXES: list[Any] = [
    *("a", "/", "//", "/a/", "a//", "../", "a/../", "a/../../outside/", "./", "a/./", "a\0/"),
    *(None, b"a/"),
]


def plain(values: Iterable[Any]) -> list[bytes | None]:
    """The values as bytes, None where there are none."""
    return [None if value is None else bytes(value) for value in values]


def read_back(store: Store, key: str) -> list[bytes | None]:
    """The value of ``key``, by every way there is to read it."""
    value = store.open(key)
    whole = None
    if value is not None:
        with value:
            whole = value.read(0)
            assert value.size in (None, len(whole))
    ways = (store.get(key), versioned(store, key)[0], *store.get_partial_values([(key, (0, None))]), whole)
    assert store.exists(key) is (whole is not None)
    return plain(ways)


def contents(store: Store) -> dict[str, bytes]:
    found = {key: store.get(key) for key in store.list()}
    return {key: b"missing!" if value is None else bytes(value) for key, value in found.items()}


def refused(error: Any, *asks: Callable[[], object], match: str | None = None) -> list[Any]:
    """The errors of things that are all refused."""
    return _things.refused(error, match, *asks)


def without_marks(values: Mapping[str, Any]) -> dict[str, Any]:
    """Documents without the blanks behind them, which tell when they were stored."""
    ends = (".json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")
    return {key: value.rstrip() if key.endswith(ends) else value for key, value in values.items()}


def fill(store: Store, *keys: str) -> None:
    for key in keys:
        store.set(key, VALUE)


def run_threads(*jobs: Callable[[], object]) -> list[Any]:
    """What jobs return that run at the same time; the first error of one is raised."""
    barrier = threading.Barrier(len(jobs))

    def start(job: Callable[[], object]) -> object:
        barrier.wait()
        return job()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(len(jobs)) as pool:
            return [future.result(timeout=120) for future in [pool.submit(start, job) for job in jobs]]
    finally:
        sys.setswitchinterval(before)


def run_numbered(work: Callable[[int], object], count: int) -> None:
    """Run work in threads at the same time, each with its number."""
    run_threads(*(lambda at=at: work(at) for at in range(count)))


def reads(store: Store) -> dict[str, Callable[[Any], object]]:
    """Every way to read a key."""
    return {
        "get": store.get,
        "get range": lambda key: store.get(key, (0, 1)),
        "get into": lambda key: store.get(key, into=Scratch(), limit=10**6),
        "get_partial_values": lambda key: store.get_partial_values([(key, (0, 1))]),
        "open": store.open,
        "open part": lambda key: store.open(key, (0, 1)),
        "versioned": lambda key: versioned(store, key),
        "exists": store.exists,
        "getsize": store.getsize,
    }


def writes(store: Store, key: Any = "a/b") -> dict[str, Callable[[], object]]:
    """Every way to change the value of a key."""
    return {
        "set": lambda: store.set(key, b"planted"),
        "set_values": lambda: store.set_values([(key, b"planted")]),
        "set_partial_values": lambda: store.set_partial_values([(key, 0, b"planted")]),
        "put": lambda: store.put(key, [b"planted"]),
        "put if absent": lambda: store.put(key, [b"planted"], if_version="absent"),
        "update": lambda: update(store, key, lambda stored: [b"planted"]),
        "copy": lambda: store.copy("c", key),
        "erase": lambda: store.erase(key),
        "erase_values": lambda: store.erase_values(["a/b", key, "c"]),
    }


def calls(store: Store, *, is_read: bool = False) -> dict[str, Callable[[Any], object]]:
    """Every way to read a key and, unless it is only read, to change its value."""
    found = reads(store)
    if not is_read:
        found |= {name: lambda key, name=name: writes(store, key)[name]() for name in writes(store)}
    return found


def not_refused(calls: dict[str, Callable[[Any], object]], words: Iterable[Any]) -> list[str]:
    """Which calls take an invalid key or prefix."""
    wrong = []
    for word in words:
        for name, call in calls.items():
            try:
                call(word)
            except InvalidKeyError:
                continue
            wrong.append(f"{name}({word!r})")
    return wrong
