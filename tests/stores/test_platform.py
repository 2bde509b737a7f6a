"""What differs between operating systems, as far as this one can show it."""

import errno
import os
import re
from pathlib import Path
from typing import Any

import pytest

from xzarr3 import LocalStore
from xzarr3.stores.local import system

HERE = Path(__file__).parents[1]
WORKFLOW = HERE.parent / ".github" / "workflows" / "test.yml"
REFUSED = ("a\\b", "..\\x", "C:", "a:b", "con", "a/NUL.txt", "com1", "lpt9.x/a", "a.", "a /b", "a?", "\x07")
TAKEN = ("c/0/1", "zarr.json", "a.b", "console", "nulls/x", ".zattrs", "é", "com10", "a/.zarray", "c/0.0.0")


def test_is_key_refuses_names_of_devices_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(map(system.is_key, REFUSED))
    monkeypatch.setattr(system, "POSIX", False)
    assert not any(map(system.is_key, REFUSED))
    assert all(map(system.is_key, TAKEN))


@pytest.mark.parametrize("limit", [1, 1000])
def test_write_all_and_read_at_by_calls_that_take_little(
    limit: int, tmp_path: Path, monkeypatch: Any
) -> None:
    """macOS refuses more than 2 GiB in one call; Windows has no calls that read at an offset."""
    monkeypatch.setattr(system, "_MOST", limit)
    monkeypatch.setattr(system, "pread", system._read_less)
    monkeypatch.setattr(system, "preadv", system._read_less_into)
    pieces = [b"", b"a" * 3000, b"b", b"", bytes(range(256)) * 5]
    with open(tmp_path / "file", "w+b") as file:
        system.write_all(file.fileno(), pieces)
        whole = b"".join(pieces)
        assert (tmp_path / "file").read_bytes() == whole
        memory = memoryview(bytearray(5000))
        for read in (system._read_less, system._seek_read):
            monkeypatch.setattr(system, "pread", read)
            assert system.read_at(file.fileno(), 4000, 10) == whole[10:4010]
            assert system.read_into_at(file.fileno(), memory, 5) == len(whole) - 5
            assert memory[: len(whole) - 5] == whole[5:]


def test_sync_asks_for_more_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a file system of macOS has no full sync, a file is synced as elsewhere."""
    synced: list[int] = []
    asked: list[tuple[int, int]] = []

    class Control:
        def fcntl(self, descriptor: int, command: int) -> None:
            asked.append((descriptor, command))
            if len(asked) == 1:
                raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(os, "fsync", synced.append)
    monkeypatch.setattr(system, "_fcntl", Control())
    monkeypatch.setattr(system, "_FULL_SYNC", 51)
    system.sync(5)
    system.sync(5)
    assert (asked, synced) == ([(5, 51)] * 2, [5])


def test_put_where_an_open_file_cannot_be_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows: the lock file stays a file of its own, and goes with the lock."""
    monkeypatch.setattr(system, "POSIX", False)
    for options in ({}, {"fsync": True}, {"locks": False}):
        store = LocalStore(tmp_path / str(options), **options)
        for value in (b"one", b"two"):
            store.set("a/b", value)
        assert store.get("a/b") == b"two"
        assert [*store.list(), *os.listdir(Path(store.root) / "a")] == ["a/b", "b"]


def test_the_workflow_runs_tests_that_are_there() -> None:
    named = re.findall(r"tests/[\w*/]+\.py", WORKFLOW.read_text("utf-8"))
    assert "tests/stores/test_platform.py" in named
    assert len({path for pattern in named for path in HERE.parent.glob(pattern)}) >= len(named)
