"""Stores of the tests' own, and the tests that every kind of store takes, in one line a kind."""

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from _conformance import INVALID_KEYS, INVALID_PREFIXES, calls, contents, fill, not_refused, run_threads
from _unprivileged import run_child, run_unprivileged

from xzarr3 import MemoryStore, Store
from xzarr3._types import Buffer, ByteRange
from xzarr3.errors import ChangedError
from xzarr3.stores import Traits, Value, WrapperStore, cut
from xzarr3.testing import CHECKS, check_store

ARRAYS: dict[str, dict[str, Any]] = {
    "plain": {"chunks": (16, 16), "compressors": None},
    "compressed": {"chunks": (16, 16)},
    "sharded": {"chunks": (8, 8), "shards": (32, 32)},
    "plain shards": {"chunks": (8, 8), "shards": (32, 32), "compressors": None},
}
"""Ways to store an array of 64 x 64 elements."""


class Four(Store):
    """As little as a store needs."""

    def __init__(self, values: dict[str, bytes] | None = None, *, read_only: bool = False) -> None:
        super().__init__(read_only=read_only)
        self.values = {} if values is None else values

    @property
    def identity(self) -> object:
        return "Four"

    def get(self, key: str, byte_range: ByteRange | None = None) -> Buffer | None:
        value = self.values.get(key)
        return value if value is None or byte_range is None else cut(value, byte_range)

    def put(self, key: str, pieces: Sequence[Buffer]) -> None:
        self.values[key] = b"".join(pieces)

    def erase(self, *keys: str) -> None:
        for key in keys:
            self.values.pop(key, None)

    def list(self, prefix: str = "") -> Iterable[str]:
        return list(self.values)


class Unlisted(WrapperStore):
    """Another store, which cannot list, as a web server."""

    @property
    def listable(self) -> bool:
        return False


class Files(Store):
    """Four methods over a directory, which go wherever a key leads."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = str(root)

    def _path(self, key: str) -> Path:
        return Path(os.path.join(self.root, key))

    def get(self, key: str, byte_range: ByteRange | None = None) -> Buffer | None:
        try:
            value = self._path(key).read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        return value if byte_range is None else cut(value, byte_range)

    def put(self, key: str, pieces: Sequence[Buffer]) -> None:
        self._path(key).parent.mkdir(parents=True, exist_ok=True)
        self._path(key).write_bytes(b"".join(pieces))

    def erase(self, *keys: str) -> None:
        for key in keys:
            self._path(key).unlink(missing_ok=True)

    def list(self, prefix: str = "") -> Iterable[str]:
        for above, _, names in os.walk(self.root):
            for name in names:
                yield os.path.relpath(os.path.join(above, name), self.root)


class Remote(MemoryStore):
    """As a server far away: versions, requests that are counted, and a part that comes with the first answer.

    ``after`` is called before an answer is given.
    """

    traits = Traits(concurrency=8, request_bytes=64, over_read=3.0, conditional="processes")

    def __init__(self, values: dict[str, bytes] | None = None) -> None:
        super().__init__()
        self._values.update(values or {})
        self.requests: list[tuple[Any, ...]] = []
        self.after: Callable[[str], object] = lambda key: None
        self.changes: Counter[str] = Counter()

    def put(self, key: str, pieces: Sequence[Buffer]) -> None:
        super().put(key, pieces)
        self.changes[key] += 1

    def erase(self, *keys: str) -> None:
        super().erase(*keys)
        self.changes.update(keys)

    def ask(self, key: str, *what: object) -> tuple[Buffer | None, str]:
        self.requests.append((key, *what))
        found = self._values.get(key), f"etag {self.changes[key]}"
        self.after(key)
        return found

    def get(self, key: str, byte_range: Any = None) -> Buffer | None:
        value, _ = self.ask(key, *(byte_range or ()))
        return value if value is None or byte_range is None else cut(value, byte_range)

    def open(self, key: str, first: Any = None, version: object = None) -> Value | None:
        if first is not None and version is not None:
            return RemoteValue(self, key, version, None, None)
        value, found = self.ask(key, *(() if first == (0, None) else first or ("open",)))
        if value is None:
            return None
        part = None if first is None else (*first, cut(value, first))
        return RemoteValue(self, key, found, part, len(value))


class RemoteValue(Value):
    version: Any = None

    def __init__(self, store: Remote, key: str, version: object, first: Any, size: int | None) -> None:
        self._store, self._key, self.version, self._first, self.size = store, key, version, first, size

    def read(self, start: int, length: int | None = None) -> Buffer:
        if self._first is not None and self._first[0] == start and self.size is not None:
            wanted = -start if start < 0 else self.size if length is None else min(length, self.size)
            if wanted <= len(self._first[2]):
                return cut(self._first[2], (0, length))
        value, version = self._store.ask(self._key, start, length)
        if value is None or version != self.version:
            raise ChangedError(f"{self._key} changed")
        self.size = len(value)
        return cut(value, (start, length))


class Unsized(Remote):
    """Says the size of no value, but tells versions."""

    def open(self, key: str, first: Any = None, version: object = None) -> Value | None:
        value = super().open(key, first, version)
        value.size = None
        return value


def every_check(make: Callable[[Path], Store], *, leave_out: Iterable[str] = ()) -> Any:
    """A test that runs each check of :func:`check_store` on a store that ``make`` makes in a directory."""
    wanted = [name for name in CHECKS if name not in {*leave_out}]

    @pytest.mark.parametrize("check", wanted)
    def test_check_store(check: str, tmp_path: Path) -> None:
        check_store(lambda: make(tmp_path / "store"), leave_out=CHECKS.keys() - {check})

    return test_check_store


def hostile_keys(make: Callable[[Path], Store], *, is_read: bool = False) -> Any:
    """A test that no method takes a key that leads out of the store ``make`` makes, as nobody."""

    def work(base: Path) -> list[str]:
        store = make(base / "store")
        by_prefix: dict[str, Callable[[Any], object]] = {
            "list_prefix": lambda prefix: [*store.list_prefix(prefix)],
            "list_dir": store.list_dir,
        }
        if not is_read:
            fill(store, "a/b", "c")
            by_prefix["erase_prefix"] = store.erase_prefix
            assert contents(store).keys() == {"a/b", "c"}
        by_key = calls(store, is_read=is_read)
        return not_refused(by_key, INVALID_KEYS) + not_refused(by_prefix, INVALID_PREFIXES)

    def test_no_key_leads_out() -> None:
        assert run_unprivileged(work).checked() == []

    return test_no_key_leads_out


def fork_beside(busy: Callable[[], object], work: Callable[[], Any], times: int) -> list[Any]:
    """What ``work`` returns in children that are forked one by one while other threads are busy."""
    stop, found = threading.Event(), []

    def go_on() -> None:
        while not stop.is_set():
            busy()

    def fork() -> None:
        try:
            found.extend(run_child(work).checked() for _ in range(times))
        finally:
            stop.set()

    run_threads(fork, *[go_on] * 3)
    return found
