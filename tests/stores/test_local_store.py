"""The local store beyond the conformance routine: locks between processes, fsync, links that are refused."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import pickle
import resource
import shutil
import signal
import stat
import struct
import subprocess
import threading
import time
import unicodedata
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from _conformance import contents, read_back, run_threads
from _kinds import READS, conformance, fork_beside
from _processes import Process, processes, run_processes
from _unprivileged import run_child, run_unprivileged

import xzarr3
from xzarr3 import (
    ConflictError,
    InvalidKeyError,
    InvalidRangeError,
    LocalStore,
    MemoryStore,
    NodeExistsError,
    Store,
    StoreError,
    StorePermissionError,
)
from xzarr3._types import Buffer, ByteRange
from xzarr3.nodes import case_folding
from xzarr3.stores.base import UNCHANGED, OversizedError, Scratch
from xzarr3.stores.local import locks as local_locks
from xzarr3.stores.local import platform
from xzarr3.stores.local.folders import Folders
from xzarr3.stores.local.locks import LOCK_NAME, FileLock
from xzarr3.xarray import to_zarr


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture(params=["of what is open", "of the whole file"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of locking, where there are two."""
    if request.param == "of the whole file":
        monkeypatch.setattr(platform, "HAS_OFD", False)
    return str(request.param)


def files(root: str | Path) -> dict[str, bytes]:
    """All files below a directory, those that are no keys, too."""
    return {
        os.path.relpath(os.path.join(folder, name), root): Path(folder, name).read_bytes()
        for folder, _, names in os.walk(root)
        for name in names
    }


def folders(root: str | Path) -> list[str]:
    """All directories below one."""
    return sorted(os.path.relpath(folder, root) for folder, _, _ in os.walk(root) if folder != str(root))


def count(stored: Buffer | None) -> list[Buffer]:
    """A change that counts."""
    return [b"%d" % (1 + (0 if stored is None else int(bytes(stored))))]


# What a change does


def test_a_value_is_made_changed_kept_and_erased(store: LocalStore) -> None:
    seen = []

    def change(new: Any) -> Callable[[Buffer | None], Any]:
        def change(stored: Buffer | None) -> Any:
            seen.append(None if stored is None else bytes(stored))
            return new

        return change

    store.update("a/b", change([b"one", b"", b"two"]))
    store.update("a/b", change(UNCHANGED))
    store.update("a/b", change([memoryview(b"three")]))
    assert contents(store) == files(store.root) == {"a/b": b"three"}
    store.update("a/b", change(None))
    assert seen == [None, b"onetwo", b"onetwo", b"three"]
    assert files(store.root) == {}
    assert folders(store.root) == []


@pytest.mark.parametrize("new", [None, UNCHANGED])
def test_nothing_is_made_where_nothing_is_stored(new: Any, store: LocalStore) -> None:
    store.update("a/b/c", lambda stored: new)
    assert not os.path.exists(store.root)
    store.set("x", b"")
    store.update("a/b/c", lambda stored: new)
    assert folders(store.root) == []
    os.makedirs(Path(store.root) / "a" / "b")
    store.update("a/b/c", lambda stored: new)
    assert folders(store.root) == []


def test_one_updater_changes_many_keys(store: LocalStore) -> None:
    keys = [f"{a}/{b}/{c}" for a in "abc" for b in range(9) for c in range(2)] + ["top"]
    with store.writer(Scratch()) as writer:
        update = writer.update
        for _ in range(3):
            for key in keys:
                update(key, count)
        assert set(store.list()) == set(keys)
        for key in keys[:-2]:
            update(key, lambda stored: None)
    assert files(store.root) == {keys[-2]: b"3", "top": b"3"}
    assert folders(store.root) == ["c", "c/8"]


def test_values_beyond_the_limit_are_not_read(store: LocalStore) -> None:
    store.set("a", bytes(101))
    with store.writer(Scratch(), 100) as writer:
        update = writer.update
        with pytest.raises(OversizedError, match="101 bytes"):
            update("a", count)
        update("b", count)
    assert files(store.root) == {"a": bytes(101), "b": b"1"}


def test_places_are_counted_alike_in_all_ways_of_reading(store: LocalStore) -> None:
    store.set("a", b"0123456789")
    ranges = [(-3, 2), (0, 4), (8, 9), (2**70, 1), (10, 1)]
    expected = [b"78", b"0123", b"89", b"", b""]
    reader, starts, lengths = store.reader(), *zip(*ranges, strict=True)
    assert [
        bytes(part or b"") for part in store.get_partial_values([("a", each) for each in ranges])
    ] == expected
    assert reader.get_ranges("a", starts, lengths) == (10, expected)
    with reader.open("a") as opened:
        assert opened.read_ranges(starts, lengths) == expected
    for ask in (lambda: store.get("a", (0, -1)), lambda: reader.get_ranges("a", [0], [-1])):
        with pytest.raises(InvalidRangeError, match="-1"):
            ask()
    for start, count in ((6, 4), (10, 0), (2**70, 0)):
        assert reader.get_into("a", start, memoryview(bytearray(5))) == (10, count)


def fail(stored: Buffer | None) -> list[Buffer]:
    raise LookupError("of the change")


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (fail, LookupError, "of the change"),
        (lambda stored: [5], StoreError, "a/b|new/key"),
        (lambda stored: [b"x", None], StoreError, "a/b|new/key"),
        (lambda stored: ["text"], StoreError, "a/b|new/key"),
    ],
    ids=["raises", "number", "none", "text"],
)
def test_a_change_that_makes_no_value(store: LocalStore, change: Any, error: Any, text: str) -> None:
    store.set("a/b", b"value")
    for key in ("a/b", "new/key"):
        with pytest.raises(error, match=text):
            store.update(key, change)
        assert files(store.root) == {"a/b": b"value"}
    store.update("a/b", lambda stored: [b"later"])
    assert store.get("a/b") == b"later"


def test_keys_of_changes_are_checked(store: LocalStore) -> None:
    for key in ("../x", "/x", "", f"a/{LOCK_NAME}", LOCK_NAME):
        with pytest.raises(InvalidKeyError):
            store.update(key, count)
        with pytest.raises(InvalidKeyError):
            store.compare_and_set(key, None, b"x")
    with pytest.raises(StoreError):
        store.update("x" * 5000, count)
    assert not os.path.exists(store.root)


def test_what_cannot_be_changed(store: LocalStore) -> None:
    store.set("a/b", b"1")
    guarded = LocalStore(store.root, read_only=True)
    version = guarded.get_versioned("a/b")[1]
    for write in (
        lambda: guarded.update("a/b", count),
        lambda: guarded.compare_and_set("a/b", version, b"2"),
    ):
        with pytest.raises(xzarr3.ReadOnlyError):
            write()
    with pytest.raises(StoreError, match="a/b/c"):
        store.update("a/b/c", count)
    with pytest.raises(StoreError, match=r"key 'a' .*Is a directory"):
        store.update("a", count)
    assert files(store.root) == {"a/b": b"1"}


def test_a_derived_store_is_asked(tmp_path: Path) -> None:
    class Turned(LocalStore):
        def get(self, key: str, byte_range: ByteRange | None = None) -> Buffer | None:
            value = super().get(key, byte_range)
            return None if value is None else bytes(octet ^ 255 for octet in bytes(value))

        def set(self, key: str, value: Buffer) -> None:
            super().set(key, bytes(octet ^ 255 for octet in bytes(value)))

    store = Turned(tmp_path / "store")
    run_processes(*[lambda: [store.update("a/b", count) for _ in range(40)]] * 3)
    assert store.get("a/b") == b"120"
    assert files(store.root) == {"a/b": bytes(octet ^ 255 for octet in b"120")}


def test_comparing_and_setting_has_one_winner(store: LocalStore) -> None:
    """Of all that set, erase or make the same version, one is told that it was first."""
    won = store.root + "-won"
    os.mkdir(won)

    def work(name: str) -> Callable[[], None]:
        def compete() -> None:
            for round_ in range(60):
                while True:
                    value, version = store.get_versioned("a/b")
                    number = 0 if value is None else int(bytes(value).split()[0])
                    if number > round_:
                        break
                    new = f"{round_ + 1} {name}".encode()
                    if store.compare_and_set("a/b", version, new):
                        Path(won, f"{round_} {name}").touch()

        return compete

    run_processes(*map(work, "xyz"))
    assert sorted(int(name.split()[0]) for name in os.listdir(won)) == list(range(60))
    _, version = store.get_versioned("a/b")
    assert not store.compare_and_set("a/b", None, b"other")
    assert store.compare_and_set("a/b", version, None)
    assert not store.compare_and_set("a/b", version, None)
    assert files(store.root) == {}
    assert folders(store.root) == []
    assert store.compare_and_set("a/b", store.get_versioned("a/b")[1], b"again")
    assert files(store.root) == {"a/b": b"again"}


# System calls


def _counted(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[str]:
    """The names of the calls of these functions of :mod:`os`, as they come."""
    calls: list[str] = []

    def watch(name: str, real: Callable[..., Any]) -> None:
        def call(*args: Any, **options: Any) -> Any:
            calls.append(name)
            return real(*args, **options)

        monkeypatch.setattr(os, name, call)

    for name in names:
        watch(name, getattr(os, name))
    return calls


def test_make_tries_the_name_in_the_parent_first(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with Folders(store.root) as folders:
        folders.make("a/b/c")
        folders.forget()
        calls = _counted(monkeypatch, "open", "mkdir")
        folders.make("a/b/d")
        assert calls == [*["open"] * 4, "mkdir", "open"], "the root, a, b, and d, which is not there"
        calls.clear()
        folders.make("a/b/e")
        assert calls == ["open", "mkdir", "open"], "a/b is still open"


def test_make_follows_no_link(store: LocalStore, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    store.set("a/b", b"")
    (Path(store.root) / "a" / "link").symlink_to(tmp_path / "outside")
    with Folders(store.root) as folders:
        for name in ("a/link", "a/link/c"):
            with pytest.raises(OSError, match="directory"):
                folders.make(name)
    assert not list((tmp_path / "outside").iterdir())


@pytest.mark.parametrize(("keys", "times"), [(["a/0"], 1), (["a/0", "a/1"], 2), (["a/0"] * 3, 2)])
def test_touch_the_root_after_the_first_and_the_last_change(
    keys: list[str], times: int, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = _counted(monkeypatch, "utime")
    with store.writer() as writer:
        for key in keys:
            writer.set(key, [b"value"])
    assert len(calls) == times


# Locks


@pytest.mark.slow
@pytest.mark.usefixtures("way")
def test_processes_and_threads_lose_no_change(tmp_path: Path) -> None:
    """By whatever root, link or path they come; directories come and go meanwhile."""
    (tmp_path / "store" / "d" / "e").mkdir(parents=True)
    (tmp_path / "root").symlink_to("store")
    (tmp_path / "store" / "inner").symlink_to("d/e")
    ways = [("store", "d/e/"), ("root", "d/e/"), ("store/d", "e/"), ("store/d/e", ""), ("store", "inner/")]

    def work(process: int) -> Callable[[], None]:
        def go(thread: int) -> None:
            root, prefix = ways[(process + 2 * thread) % len(ways)]
            store = LocalStore(tmp_path / root)
            for n in range(60):
                store.update(f"{prefix}n{n % 2}", count)
                store.update(f"{prefix}{n}/gone", lambda stored: [b""] if stored is None else None)

        return lambda: run_threads(*(lambda at=at: go(at) for at in range(3)))  # type: ignore[misc]

    run_processes(*map(work, range(4)))
    found = files(tmp_path / "store")
    assert found.pop("d/e/n0") == found.pop("d/e/n1") == b"%d" % (4 * 3 * 30)
    assert all(name.endswith("/gone") for name in found), "a lock file is left"
    used = {os.path.dirname(name) for name in found}
    assert set(folders(tmp_path / "store")) == {"d", "d/e", *used}, "an empty directory is left"


def test_without_locks_changes_are_lost(tmp_path: Path) -> None:
    """Otherwise the tests of locks would show nothing."""
    for _ in range(20):
        store = LocalStore(tmp_path / "store", locks=False)
        store.set("a", b"0")
        run_processes(*[lambda: [store.update("a", count) for _ in range(200)]] * 4)  # noqa: B023
        if store.get("a") != b"800":
            return
    raise AssertionError("nothing was lost")


def hold(store: Store, key: str) -> Callable[[], None]:
    """A work that changes a key until it is killed, and says when it has begun."""

    def change(stored: Buffer | None) -> list[Buffer]:
        Process.say()
        signal.pause()
        return [b"held"]

    return lambda: store.update(key, change)


@pytest.mark.usefixtures("way")
def test_who_waits_too_long_is_told_of_the_lock(store: LocalStore) -> None:
    store.set("a/b", b"1")
    store.conflict_deadline = 0.3
    with processes(hold(store, "a/b")) as (holder,):
        assert holder.hear()
        for write in (
            lambda: store.update("a/b", count),
            lambda: store.compare_and_set("a/b", store.get_versioned("a/b")[1], b"x"),
        ):
            with pytest.raises(ConflictError, match=r"key 'a/b' .*0\.3 s; reduce "):
                write()
    store.conflict_deadline = 20
    store.update("a/b", count)
    assert files(store.root) == {"a/b": b"2"}


def test_other_keys_do_not_wait(store: LocalStore) -> None:
    store.set("a/b", b"1")
    store.conflict_deadline = 0.3
    with processes(hold(store, "a/b"), hold(store, "a/c"), hold(store, "new/x")) as holders:
        for holder in holders[:2]:
            assert holder.hear()
        for key in ("a/d", "c", "a/e/f"):
            store.update(key, count)
        assert LOCK_NAME in os.listdir(Path(store.root) / "a"), "it is still in use"
        assert sorted(store.list()) == ["a/b", "a/d", "a/e/f", "c"]
        assert store.list_dir("a/") == ({"a/b", "a/d"}, {"a/e/"})


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_the_lock_of_a_killed_process_is_free(ending: int, store: LocalStore) -> None:
    for key in ("a/b", "new/b"):
        store.set("a/b", b"1")
        with processes(hold(store, key)) as (holder,):
            assert holder.hear()
            os.kill(holder.pid, ending)
            store.update(key, count)
        assert not any(LOCK_NAME in name for name in files(store.root))


@pytest.mark.usefixtures("way")
def test_a_forked_child_does_not_keep_the_lock_of_its_parent(store: LocalStore) -> None:
    """Another thread forks in the middle of a change; then the parent is killed, and the child lives on."""
    store.set("a/b", b"1")
    grandchild = Path(store.root + "-grandchild")

    def work() -> None:
        changing = threading.Event()

        def change(stored: Buffer | None) -> list[Buffer]:
            changing.set()
            threading.Event().wait()
            return [b"never"]

        threading.Thread(target=lambda: store.update("a/b", change), daemon=True).start()
        changing.wait()
        pid = os.fork()
        if pid:
            grandchild.write_text(str(pid))
            Process.say()
        signal.alarm(60)
        signal.pause()
        os._exit(0)

    with processes(work) as (parent,):
        assert parent.hear()
        parent.kill()
        try:
            store.update("a/b", count)
        finally:
            os.kill(int(grandchild.read_text()), signal.SIGKILL)
    assert files(store.root) == {"a/b": b"2"}


def test_who_forks_in_the_middle_of_a_change_has_one_that_goes_on(store: LocalStore) -> None:
    """The lock is that of the parent; what the child would store is refused."""
    store.set("a/b", b"1")

    def work() -> int:
        children = []

        def change(stored: Buffer | None) -> list[Buffer]:
            pid = os.fork()
            if pid == 0:
                return [b"by the child"]
            children.append(pid)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            return [b"by the parent"]

        try:
            store.update("a/b", change)
        except StoreError as error:
            os._exit(7 if "forked" in str(error) else 8)
        return os.waitpid(children[0], 0)[1] >> 8

    assert run_child(work).checked() == 7
    assert files(store.root) == {"a/b": b"by the parent"}


@pytest.mark.slow
def test_children_forked_at_any_moment_hold_no_lock(store: LocalStore) -> None:
    def work() -> tuple[object, ...]:
        return local_locks._open_ones == {}, _own_lock_files(), store.update("c/d", count)

    assert fork_beside(lambda: store.update("a/b", count), work, 30) == [(True, 0, None)] * 30
    assert store.get("c/d") == b"30"


def _own_lock_files() -> int:
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += LOCK_NAME in os.readlink(f"/proc/self/fd/{name}")
    return found


@pytest.mark.parametrize("content", [b"", b"\0", b"more than nothing"], ids=["free", "given up", "foreign"])
def test_a_lock_file_that_was_left(content: bytes, store: LocalStore) -> None:
    """Of somebody who was killed, also on the point of removing it."""
    store.set("a/b", b"1")
    left = Path(store.root) / "a" / LOCK_NAME

    left.write_bytes(content)
    assert list(store.list()) == ["a/b"]
    assert store.list_dir("a/") == ({"a/b"}, set())
    store.update("a/b", count)
    assert files(store.root) == {"a/b": b"2"}

    left.write_bytes(content)
    store.sweep()
    assert files(store.root) == {"a/b": b"2"}

    for erase in (
        lambda: store.erase("a/b"),
        lambda: store.erase_values(["a/b", "a/c"]),
        lambda: store.erase_prefix("a/"),
        lambda: store.update("a/b", lambda stored: None),
    ):
        store.set("a/b", b"1")
        left.write_bytes(content)
        erase()
        assert os.listdir(store.root) == []


def test_a_lock_file_in_use_is_not_swept(store: LocalStore) -> None:
    store.set("a/b", b"1")
    store.set("a/c", b"1")
    lock = Path(store.root) / "a" / LOCK_NAME
    with processes(hold(store, "a/b")) as (holder,):
        assert holder.hear()
        number = lock.stat().st_ino
        os.utime(lock, (0, 0))
        store.sweep()
        store.erase("a/c")
        store.erase_values(["a/b", "a/c"])
        assert lock.stat().st_ino == number
        store.conflict_deadline = 0.2
        with pytest.raises(ConflictError):
            store.update("a/b", count)


def test_no_descriptors_are_left_open(store: LocalStore) -> None:
    store.update("a/b", count)
    before = len(os.listdir("/proc/self/fd"))
    for n in range(20):
        store.update("a/b", count)
        store.update(f"{n}/x/y", count)
        store.compare_and_set("a/b", store.get_versioned("a/b")[1], b"1")
        store.update("a/b", lambda stored: UNCHANGED)
        with pytest.raises(LookupError):
            store.update("a/b", fail)
    assert len(os.listdir("/proc/self/fd")) == before
    assert local_locks._open_ones == {}


def test_an_updater_that_runs_out_of_descriptors_goes_on_with_fewer(store: LocalStore) -> None:
    def work() -> int:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        store.set("start", b"")
        with store.writer() as writer:
            update = writer.update
            for at in range(12):
                update(f"{at}/b/c/d", count)
            opened = max(int(name) for name in os.listdir("/proc/self/fd"))
            resource.setrlimit(resource.RLIMIT_NOFILE, (opened, hard))
            for at in range(20):
                update(f"{at}/b/c/d", count)
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        return sum(int(bytes(store.get(f"{at}/b/c/d") or b"")) for at in range(20))

    assert run_child(work).checked() == 32


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL])
def test_file_systems_without_locks(
    number: int, way: str, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise OSError(number, os.strerror(number))

    store.set("a/b", b"1")
    monkeypatch.setattr(fcntl, "fcntl" if way == "of what is open" else "flock", fail)
    version = store.get_versioned("a/b")[1]
    for write in (
        lambda: store.update("a/b", count),
        lambda: store.update("new/b", count),
        lambda: store.compare_and_set("a/b", version, b"x"),
    ):
        with pytest.raises(StoreError, match=r"cannot lock key '\w+/b' .*; use .*locks=False") as caught:
            write()
        assert os.strerror(number) in str(caught.value)
    assert files(store.root) == {"a/b": b"1"}
    unlocked = LocalStore(store.root, locks=False)
    unlocked.update("a/b", count)
    run_threads(*[lambda: [unlocked.update("a/b", count) for _ in range(50)]] * 3)
    assert unlocked.compare_and_set("a/b", unlocked.get_versioned("a/b")[1], b"152")
    assert files(store.root) == {"a/b": b"152"}


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_locking_that_fails(number: int, store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handle that is stale is no failure: it is got anew."""
    store.set("a/b", b"1")
    real = fcntl.fcntl
    left = [3]

    def fail(*args: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise OSError(number, os.strerror(number))
        return real(*args)

    monkeypatch.setattr(fcntl, "fcntl", fail)
    if number == errno.ESTALE:
        store.update("a/b", count)
        assert files(store.root) == {"a/b": b"2"}
    else:
        with pytest.raises(StoreError, match=r"cannot lock key 'a/b'.*Input/output"):
            store.update("a/b", count)
        assert store.get("a/b") == b"1"


def test_the_locks_of_the_system_are_as_they_are_packed(tmp_path: Path) -> None:
    """The bytes that stand for a name, and all of them, as the kernel shows what is locked."""
    if not platform.HAS_OFD:
        pytest.skip("this system has no locks of open files")
    lock = FileLock()
    folder = os.open(tmp_path, os.O_RDONLY)
    lock.acquire(folder, "name", time.monotonic() + 1)
    try:
        at = local_locks._place("name")
        assert 0 <= at < 2**62
        with open(tmp_path / LOCK_NAME, "r+b") as other:
            for start, length, free in ((at, 1, False), (at + 1, 0, True), (0, at, True), (0, 0, False)):
                asked = struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
                kind, *_ = struct.unpack("hhqqi0q", fcntl.fcntl(other, fcntl.F_OFD_GETLK, asked))
                assert (kind == fcntl.F_UNLCK) is free
    finally:
        lock.release()
        lock.leave()
        os.close(folder)
    assert os.listdir(tmp_path) == []


def test_locks_of_names_differ() -> None:
    names = [f"{a}.{b}" for a in range(300) for b in range(300)]
    assert len({local_locks._place(name) for name in names}) == len(names)


# Values that somebody replaces whole meanwhile


@pytest.mark.parametrize("locks", [True, False])
@pytest.mark.parametrize(
    ("before", "meanwhile"),
    [(b"1", b"8"), (b"1", b"10"), (b"1", None), (None, b"8")],
    ids=["same size", "other size", "erased", "made"],
)
@pytest.mark.parametrize("change", ["store", "erase"])
def test_a_change_begins_anew_when_the_value_was_replaced(
    before: bytes | None, meanwhile: bytes | None, change: str, locks: bool, tmp_path: Path
) -> None:
    store = LocalStore(tmp_path / "store", locks=locks)
    store.set("a/other", b"")
    if before is not None:
        store.set("a/b", before)
    seen: list[bytes | None] = []

    def work(stored: Buffer | None) -> list[Buffer] | None:
        seen.append(None if stored is None else bytes(stored))
        if len(seen) == 1:
            if meanwhile is None:
                store.erase("a/b")
            else:
                store.set("a/b", meanwhile)
        return count(stored) if change == "store" else None

    store.update("a/b", work)
    expected = files(store.root).get("a/b")
    if before is None and change == "erase":
        assert seen == [None], "there was nothing to erase"
        assert expected == meanwhile
    else:
        assert seen == [before, meanwhile]
        assert expected == (None if change == "erase" else bytes(count(meanwhile)[0]))
    assert set(files(store.root)) <= {"a/other", "a/b"}


def test_a_value_written_in_place_is_noticed(store: LocalStore) -> None:
    store.set("a", b"1")
    os.utime(Path(store.root) / "a", (0, 0))
    seen = []

    def work(stored: Buffer | None) -> list[Buffer]:
        seen.append(bytes(stored or b""))
        if len(seen) == 1:
            Path(store.root, "a").write_bytes(b"5")
        return count(stored)

    store.update("a", work)
    assert seen == [b"1", b"5"]
    assert files(store.root) == {"a": b"6"}


def test_a_change_that_never_gets_through(store: LocalStore) -> None:
    store.set("a", b"0")
    store.conflict_deadline = 0.1
    numbers = itertools.count()

    def work(stored: Buffer | None) -> list[Buffer]:
        store.set("a", b"%d" % next(numbers))
        return [b"never"]

    with pytest.raises(
        ConflictError, match=r"key 'a' .*other writers replaced it \d+ times within 0\.1 s; reduce"
    ):
        store.update("a", work)
    assert files(store.root) == {"a": b"%d" % (next(numbers) - 1)}


# Permissions, and what lies in the way


def test_changes_without_permission() -> None:
    def work(base: Path) -> None:
        store = LocalStore(base / "store")
        store.set("a/b", b"1")
        for mode in (0o555, 0):
            os.chmod(base / "store" / "a", mode)
            for write in (lambda: store.update("a/b", count), lambda: store.update("a/new/x", count)):
                with pytest.raises(StorePermissionError, match="key 'a/"):
                    write()
            os.chmod(base / "store" / "a", 0o755)
        os.chmod(base / "store" / "a" / "b", 0)
        with pytest.raises(StorePermissionError, match="cannot read key 'a/b'"):
            store.update("a/b", count)
        os.chmod(base / "store" / "a" / "b", 0o644)
        assert files(store.root) == {"a/b": b"1"}
        for folder in (base / "store", base / "store" / "a"):
            os.chmod(folder, 0o300)  # Enough to search and to change, not to list.
        store.update("a/b", count)
        for folder in (base / "store", base / "store" / "a"):
            os.chmod(folder, 0o755)
        assert files(store.root) == {"a/b": b"2"}

    run_unprivileged(work).checked()


def test_a_lock_file_that_may_not_be_opened() -> None:
    def work(base: Path) -> None:
        store = LocalStore(base / "store")
        store.set("a/b", b"1")
        (base / "store" / "a" / LOCK_NAME).touch(mode=0)
        with pytest.raises(StorePermissionError, match="cannot lock key 'a/b'"):
            store.update("a/b", count)
        assert store.get("a/b") == b"1"

    run_unprivileged(work).checked()


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_who_may_write_in_a_directory_may_lock_in_it(umask: int, store: LocalStore) -> None:
    store.set("a/b", b"1")
    folder = Path(store.root) / "a"
    modes = []

    def look(stored: Buffer | None) -> Any:
        modes.append(stat.S_IMODE((folder / LOCK_NAME).stat().st_mode))
        return UNCHANGED

    def work() -> list[int]:
        os.umask(umask)
        for mode in (0o755, 0o775, 0o777, 0o700):
            os.chmod(folder, mode)
            store.update("a/b", look)
        return modes

    private, shared, public, own = run_child(work).checked()
    assert private == own == 0o666 & ~umask
    assert shared & 0o660 == 0o660
    assert public & 0o666 == 0o666


@pytest.mark.parametrize("kind", ["link", "link to nothing", "directory", "pipe"])
def test_what_lies_where_the_lock_file_would_be(kind: str) -> None:
    """A link there is not followed: nothing is made, opened or locked outside."""

    def prepare(base: Path) -> None:
        LocalStore(base / "store").set("a/b", b"1")
        place = base / "store" / "a" / LOCK_NAME
        if kind == "link":
            place.symlink_to("../../canary.txt")
        elif kind == "link to nothing":
            place.symlink_to("../../planted")
        elif kind == "directory":
            place.mkdir()
        else:
            os.mkfifo(place)

    def work(base: Path) -> None:
        store = LocalStore(base / "store")
        with pytest.raises(StoreError, match="cannot lock key 'a/b'"):
            store.update("a/b", count)
        store.sweep()
        assert list(store.list()) == ["a/b"]
        assert store.get("a/b") == b"1"

    outcome = run_unprivileged(work, prepare=prepare)
    assert outcome.changed == []
    outcome.checked()


CHANGES: dict[str, Callable[[LocalStore], object]] = {
    "update": lambda store: store.update("a/deep/data.bin", lambda stored: [b"planted"]),
    "update new": lambda store: store.update("a/deep/new", lambda stored: [b"planted"]),
    "update below": lambda store: store.update("a/deep/new/below", lambda stored: [b"planted"]),
    "erase": lambda store: store.update("a/deep/data.bin", lambda stored: None),
    "compare": lambda store: store.compare_and_set(
        "a/deep/data.bin", store.get_versioned("a/deep/data.bin")[1], b"planted"
    ),
    "synced": lambda store: LocalStore(store.root, fsync=True).set("a/deep/data.bin", b"planted"),
}


CALLS = ("open", "unlink", "rmdir", "mkdir", "replace", "stat", "lstat", "scandir", "readlink", "utime")
CALLS += ("fsync", "fstat", "ftruncate")


@pytest.mark.parametrize("name", CHANGES)
def test_directories_replaced_by_links_at_any_moment(name: str) -> None:
    """Before each call to the system, in turn, somebody else turns a directory into a link that leads out."""
    assert run_unprivileged(lambda base: _swapped(base, CHANGES[name])).checked() > 5


def _swapped(base: Path, act: Callable[[LocalStore], object]) -> int:
    real = {call: getattr(os, call) for call in (*CALLS, "rename")}
    for n in itertools.count():
        store = LocalStore(base / "store" / str(n))
        store.set("a/zarr.json", b"{}")
        store.set("a/deep/data.bin", b"value")
        root = Path(store.root)
        calls = itertools.count()

        def watched(call: str, n: int = n, calls: Iterator[int] = calls, root: Path = root) -> Any:
            def first(*args: Any, **options: Any) -> Any:
                if next(calls) == n:
                    real["rename"](root / "a", root / "moved")
                    os.symlink("../../outside", root / "a")
                return real[call](*args, **options)

            return first

        with pytest.MonkeyPatch.context() as patch:
            for call in CALLS:
                patch.setattr(os, call, watched(call))
            with contextlib.suppress(StoreError):  # Refused, which is an answer.
                act(store)
            made = next(calls)
        if made <= n:
            return n
    raise AssertionError


def test_root_that_is_removed_during_a_change(store: LocalStore) -> None:
    for moment in ("change", "before"):
        for key in ("a/b", "c"):
            store.set("a/b", b"1")

            calls = itertools.count()

            def change(stored: Buffer | None, calls: Iterator[int] = calls) -> list[Buffer]:
                if next(calls) == 0:
                    shutil.rmtree(store.root, ignore_errors=True)
                return [b"new"]

            with store.writer() as writer:
                update = writer.update
                update(key, count)
                if moment == "before":
                    shutil.rmtree(store.root)
                    next(calls)
                update(key, change)
            assert files(store.root) == {key: b"new"}
            shutil.rmtree(store.root)


# Everything that a store promises, with all options

TestUnlockedLocalStore = conformance(lambda base: LocalStore(base / "store", locks=False), nests=False)
Careful = conformance(lambda base: LocalStore(base / "store", fsync=True, follow_links=False), nests=False)


class TestCarefulLocalStore(Careful):  # type: ignore[misc,valid-type]
    @pytest.fixture(autouse=True)
    def _leave_the_disk_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It takes seconds to put a key of a thousand names on a disk."""
        monkeypatch.setattr(os, "fsync", os.fstat)

    @pytest.mark.slow
    def test_keys_of_many_names(self, store: Store) -> None:
        super().test_keys_of_many_names(store)


def test_options_travel(tmp_path: Path) -> None:
    plain = LocalStore(tmp_path)
    for options in ({"fsync": True}, {"locks": False}, {"follow_links": False}, {"read_only": True}):
        store = LocalStore(tmp_path, **options)
        twin = pickle.loads(pickle.dumps(store))
        assert twin == store
        assert twin != plain
        assert twin.identity == plain.identity
        assert {name: getattr(twin, name) for name in options} == options
    plain.conflict_deadline = 5.0
    assert pickle.loads(pickle.dumps(plain)).conflict_deadline == 5.0
    assert pickle.loads(pickle.dumps(LocalStore(tmp_path))).conflict_deadline == 60.0


# Values that are to survive a crash of the system


@contextlib.contextmanager
def recorded(monkeypatch: pytest.MonkeyPatch, root: Path) -> Iterator[list[tuple[str, str]]]:
    """What is done to the disk, by name and path below ``root``."""
    done: list[tuple[str, str]] = []
    real = {name: getattr(os, name) for name in ("fsync", "replace", "mkdir", "unlink", "rmdir", "write")}

    def place(what: Any, folder: int | None) -> str:
        if isinstance(what, int):
            path = os.readlink(f"/proc/self/fd/{what}")
        else:
            path = os.path.join("" if folder is None else os.readlink(f"/proc/self/fd/{folder}"), what)
        path = os.path.relpath(path, root)
        return path if LOCK_NAME in path or "partial" not in path else f"{os.path.dirname(path)}/new"

    def noting(name: str) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            at = 1 if name == "replace" else 0
            folder = options.get("dst_dir_fd", options.get("dir_fd"))
            where = place(args[at], folder)
            result = real[name](*args, **options)
            if LOCK_NAME not in where:
                done.append((name, where))
            return result

        return call

    with monkeypatch.context() as patch:
        for name in real:
            patch.setattr(os, name, noting(name))
        yield done


def _synced_after(done: list[tuple[str, str]], step: tuple[str, str], folder: str) -> bool:
    at = len(done) - 1 - done[::-1].index(step)
    return ("fsync", folder) in done[at:]


def through_writer(store: LocalStore) -> None:
    with store.writer() as writer:
        writer.set("a/b/c", [b"val", b"ue"])


SYNCED: dict[str, Callable[[LocalStore], object]] = {
    "set": lambda store: store.set("a/b/c", b"value"),
    "writer": through_writer,
    "update": lambda store: store.update("a/b/c", lambda stored: [b"value"]),
    "compare_and_set": lambda store: store.compare_and_set(
        "a/b/c", store.get_versioned("a/b/c")[1], b"value"
    ),
    "set_partial_values": lambda store: store.set_partial_values([("a/b/c", 0, b"value")]),
}
ERASED: dict[str, Callable[[LocalStore], object]] = {
    "erase": lambda store: store.erase("a/b/c"),
    "erase_values": lambda store: store.erase_values(["a/b/c", "a/b/d", "x"]),
    "erase_prefix": lambda store: store.erase_prefix("a/"),
    "update": lambda store: store.update("a/b/c", lambda stored: None),
    "compare_and_set": lambda store: store.compare_and_set("a/b/c", store.get_versioned("a/b/c")[1], None),
}


@pytest.mark.parametrize("how", SYNCED)
def test_what_is_written_is_on_the_disk(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content before the name, the name and the directories that lead there before it returns."""
    store = LocalStore(tmp_path / "up" / "store", fsync=True)
    folder = "up/store/a/b"
    for new in (True, False):
        with recorded(monkeypatch, tmp_path) as done:
            SYNCED[how](store)
        file = done.index(("fsync", f"{folder}/new"))
        assert file < done.index(("replace", f"{folder}/c"))
        assert all(at < file for at, step in enumerate(done) if step == ("write", f"{folder}/new"))
        assert _synced_after(done, ("replace", f"{folder}/c"), folder)
        made = [path for name, path in done if name == "mkdir"]
        assert (folder in made) is new
        for path in made:
            assert _synced_after(done, ("mkdir", path), os.path.dirname(path) or "."), path


@pytest.mark.parametrize("how", ERASED)
@pytest.mark.parametrize("others", [True, False])
def test_what_is_erased_is_gone_from_the_disk(
    others: bool, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path / "store", fsync=True)
    store.set("a/b/c", b"")
    store.set("x", b"")
    if others:
        store.set("a/b/e", b"")
    with recorded(monkeypatch, tmp_path) as done:
        ERASED[how](store)
    steps = [step for step in done if step[0] in ("unlink", "rmdir")]
    assert ("unlink", "store/a/b/c") in steps
    for step in steps:
        folder = os.path.dirname(step[1])
        if (tmp_path / folder).exists():
            assert _synced_after(done, step, folder), step


def test_without_the_option_nothing_waits_for_the_disk(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with recorded(monkeypatch, Path(store.root)) as done:
        store.set("a/b", b"value")
        store.update("a/b", lambda stored: [b"x"])
        store.erase("a/b")
    assert "fsync" not in {name for name, _ in done}


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("nth", range(3))
def test_a_disk_that_fails_to_take_it(
    number: int, nth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the content does not arrive, the old value stays; errors are told, whatever fails to arrive."""
    store = LocalStore(tmp_path / "store", fsync=True)
    real = os.fsync
    for key, write in (
        ("a/b", lambda: store.set("a/b", b"new")),
        ("a/b", lambda: store.update("a/b", lambda stored: [b"new"])),
        ("c/d", lambda: store.set("c/d", b"new")),
    ):
        store.set("a/b", b"old")
        store.erase("c/d")
        calls = itertools.count()

        def break_off(descriptor: int, calls: Iterator[int] = calls) -> None:
            if next(calls) == nth:
                raise OSError(number, os.strerror(number))
            real(descriptor)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", break_off)
            with pytest.raises(StoreError, match=f"cannot write key '{key}'") as caught:
                write()
        assert os.strerror(number) in str(caught.value)
        assert nth or store.get("a/b") == b"old"
        assert set(files(store.root)) <= {"a/b", "c/d"}


# Links that lead out


def _linked(base: Path) -> None:
    store = base / "store"
    xzarr3.create_group(str(store), "g")
    xzarr3.create_array(str(store), "x", data=np.arange(12.0), chunks=3)
    xzarr3.create_array(str(base / "outside" / "array"), data=np.arange(12.0), chunks=3)
    (store / "folder").symlink_to("../outside")
    (store / "array").symlink_to(base / "outside" / "array")
    (store / "file").symlink_to("../canary.txt")
    (store / "up").symlink_to("..")
    (store / "twice").symlink_to("folder")
    (store / "x" / "c" / "1").unlink()
    (store / "x" / "c" / "1").symlink_to("../../../outside/array/c/1")
    (store / "g" / "nothing").symlink_to("../../outside/absent")
    (store / "within").symlink_to("x/c")
    (store / "alias").symlink_to("x/zarr.json")
    (store / "home").symlink_to(store / "x")


OUT = [
    *("folder/zarr.json", "folder/deep/data.bin", "array/zarr.json", "array/c/0", "file", "up/canary.txt"),
    *("twice/zarr.json", "x/c/1", "g/nothing", "folder/absent", "up/absent/x"),
]


@pytest.mark.parametrize("look", READS)
def test_a_confined_store_follows_no_link_out_of_it(look: str) -> None:
    def work(base: Path) -> None:
        store = LocalStore(base / "store", follow_links=False)
        for key in OUT:
            with pytest.raises(InvalidKeyError, match=f"'{key}/?' leads out of .*keep links within"):
                READS[look](store, key)
            assert store.version(key) is None

    outcome = run_unprivileged(work, prepare=_linked)
    assert outcome.changed == []
    outcome.checked()


def test_a_confined_store_follows_links_within_it() -> None:
    def work(base: Path) -> None:
        store, plain = LocalStore(base / "store", follow_links=False), LocalStore(base / "store")
        for key in ("within/0", "alias", "home/zarr.json", "home/c/2", "x/c/0"):
            assert read_back(store, key) == read_back(plain, key) != [None] * 4
            assert store.version(key) == plain.version(key) is not None
        assert read_back(store, "home/c/9") == [None] * 4
        assert xzarr3.open_array(store, "home")[:3].tolist() == [0, 1, 2]
        store.set("within/new", b"new")
        assert plain.get("x/c/new") == b"new"

    run_unprivileged(work, prepare=_linked).checked()


def test_a_confined_store_does_not_list_what_leads_out() -> None:
    def work(base: Path) -> None:
        store = LocalStore(base / "store", follow_links=False)
        for look in (
            lambda: list(store.list()),
            lambda: store.list_dir(""),
            lambda: list(store.list_prefix("x/")),
            lambda: store.list_dir("x/c/"),
            lambda: list(xzarr3.open_group(store)),
        ):
            with pytest.raises(InvalidKeyError, match="leads out of"):
                look()
        for name in ("folder", "array", "file", "up", "twice", "x/c/1", "g/nothing"):
            store.erase(name)
        plain = LocalStore(base / "store")
        assert sorted(store.list()) == sorted(plain.list())
        for prefix in ("", "x/", "within/", "home/", "home/c/", "g/", "no/"):
            assert store.list_dir(prefix) == plain.list_dir(prefix)
        (base / "store" / "circle").symlink_to(".")
        (base / "store" / "itself").symlink_to("itself")
        assert sorted(store.list()) == sorted(plain.list())

    outcome = run_unprivileged(work, prepare=_linked)
    assert outcome.changed == []
    outcome.checked()


def test_arrays_of_a_confined_store() -> None:
    def work(base: Path) -> None:
        store = LocalStore(base / "store", follow_links=False)
        array = xzarr3.open_array(store, "x", mode="r+")
        assert array[:3].tolist() == [0, 1, 2]
        for ask in (
            lambda: array[...],
            lambda: array[3:5],
            lambda: array.get(threads=2),
            lambda: array.set(slice(4, 5), 7),
            lambda: xzarr3.open_array(store, "array"),
            lambda: xzarr3.open(store, "folder"),
        ):
            with pytest.raises(InvalidKeyError, match="leads out of"):
                ask()
        array[3:6] = 9
        assert array[:7].tolist() == [0, 1, 2, 9, 9, 9, 6]

    outcome = run_unprivileged(work, prepare=_linked)
    assert outcome.changed == []
    outcome.checked()


@pytest.mark.parametrize("look", READS)
def test_a_confined_store_reads_nothing_outside_at_any_moment(look: str) -> None:
    """Before each call to the system, in turn, a directory becomes a link that leads out."""

    def act(store: LocalStore) -> None:
        confined = LocalStore(store.root, follow_links=False)
        key = "a/deep" if look.startswith("list") else "a/deep/data.bin"
        found = READS[look](confined, key)
        shown = bytes(found.read(0)) if hasattr(found, "read") else found
        if hasattr(found, "close"):
            found.close()
        text = repr([bytes(part) if isinstance(part, memoryview) else part for part in _parts(shown)])
        assert "secret" not in text

    def prepare(base: Path) -> None:
        (base / "outside" / "deep" / "data.bin").write_bytes(b"secret")
        (base / "outside" / "deep" / "secret").write_bytes(b"secret")

    outcome = run_unprivileged(lambda base: _swapped(base, act), prepare=prepare)
    assert outcome.checked() > 2


def _parts(found: object) -> list[object]:
    if isinstance(found, (list, tuple)):
        return [part for each in found for part in _parts(each)]
    return [found]


# Beside others


def test_zarr_python_finds_nothing_strange(store: LocalStore) -> None:
    zarr = pytest.importorskip("zarr")
    group = xzarr3.create_group(store)
    array = group.create_array("x", data=np.zeros((8, 8)), chunks=(4, 4), shards=(8, 8))
    array[1, 1] = 5
    store.update("zarr.json", lambda stored: [stored])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert dict(zarr.open_group(store.root, mode="r").members()).keys() == {"x"}
    assert sorted(files(store.root)) == ["x/c/0/0", "x/zarr.json", "zarr.json"]


# File systems that take names for each other


@pytest.fixture
def vfat(tmp_path: Path) -> Iterator[Path]:
    """A directory on a file system that folds names, as those of macOS and Windows do."""
    image, place = tmp_path / "image", tmp_path / "mounted"
    if os.geteuid() != 0 or shutil.which("mkfs.vfat") is None or shutil.which("mount") is None:
        pytest.skip("mounting a vfat image needs root, mkfs.vfat and mount")
    with open(image, "wb") as file:
        file.truncate(2**25)
    place.mkdir()
    subprocess.run(["mkfs.vfat", str(image)], check=True, capture_output=True, timeout=120)
    mounted = subprocess.run(
        ["mount", "-o", "loop,shortname=mixed,utf8", str(image), str(place)], capture_output=True, timeout=120
    )
    if mounted.returncode:
        pytest.skip(f"a vfat image cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True, timeout=120)


@pytest.fixture(params=["vfat", "pretended"])
def folds(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Path, str]]:
    """A directory, and a name that its file system takes for another one beside the other case."""
    if request.param == "vfat":
        yield request.getfixturevalue("vfat"), "T"
        return
    monkeypatch.setattr(case_folding, "_folding_of", lambda root: case_folding.Folding(case=True, forms=True))
    monkeypatch.setattr(case_folding, "_may_be_there", lambda folder, name: True)
    yield tmp_path / "store", "E\u0301"


def test_names_that_a_file_system_cannot_tell_apart_are_refused(folds: tuple[Path, str]) -> None:
    root, name = folds
    alike = unicodedata.normalize("NFC", name).lower()
    both = xr.Dataset({name: ("x", np.arange(4.0)), alike: ("y", np.arange(3.0))})
    source = xzarr3.create_group(MemoryStore())
    source.create_array(name, data=np.arange(4.0))
    source.create_array(alike, data=np.arange(3.0))
    for write in (
        lambda place: to_zarr(both, place),
        lambda place: xzarr3.copy(source, place),
        lambda place: xzarr3.copy(source, xzarr3.LoggingStore(LocalStore(place)), zarr_format=2),
    ):
        with pytest.raises(NodeExistsError, match=f"does not distinguish '{alike}' from '{name}'"):
            write(root / "whole")
        assert not (root / "whole").exists() or os.listdir(root / "whole") == []
    group = xzarr3.create_group(root / "group")
    group.create_array(name, data=np.arange(4.0))
    before = sorted(path for path in root.rglob("*"))
    for change in (
        lambda: group.create_array(alike, data=np.arange(3.0)),
        lambda: group.create_array(alike, data=np.arange(3.0), overwrite=True),
        lambda: group.create_array(f"{alike}/below", data=np.arange(3.0)),
        lambda: group.create_group(alike),
        lambda: to_zarr(both[[alike]], root / "group", mode="a"),
        lambda: xzarr3.copy(source[alike], root / "group", path=alike),
    ):
        with pytest.raises(NodeExistsError, match=f"does not distinguish '{alike}' from '{name}'"):
            change()
        assert sorted(path for path in root.rglob("*")) == before
    np.testing.assert_array_equal(group[name][...], np.arange(4.0))
    group.create_array(name, data=np.arange(5.0), overwrite=True)
    group.create_array("other", data=np.arange(5.0))
    to_zarr(both[[alike]], root / "group", mode="w")  # All that was there is replaced.
    assert sorted(xzarr3.open_group(root / "group")) == [alike]


@pytest.mark.parametrize(
    ("case", "forms", "refused"), [(True, False, ["t"]), (False, True, ["\u00e9"]), (False, False, [])]
)
def test_only_names_that_a_file_system_folds_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: bool, forms: bool, refused: list[str]
) -> None:
    """Some, as Apple's with a setting, tell cases apart, and not how a letter with an accent is spelled."""
    monkeypatch.setattr(
        case_folding, "_is_found", lambda folder, name, other: case if name[-1] == "a" else forms
    )
    case_folding._folding.clear()
    group = xzarr3.create_group(tmp_path / "store")
    for name, alike in (("T", "t"), ("e\u0301", "\u00e9")):
        group.create_array(name, data=np.arange(4.0))
        if alike in refused:
            with pytest.raises(NodeExistsError, match="the same node"):
                to_zarr(xr.Dataset({name: ("x", [1]), alike: ("y", [2])}), tmp_path / "store", mode="w")
        else:
            group.create_array(alike, data=np.arange(3.0))
    case_folding._folding.clear()


def test_names_that_differ_in_case_are_two_where_they_are(tmp_path: Path) -> None:
    """What is tried to find that out leaves nothing behind."""
    case_folding._folding.clear()
    both = xr.Dataset({"T": ("x", np.arange(4.0)), "t": ("y", np.arange(3.0))})
    to_zarr(both, tmp_path / "a.zarr")
    if case_folding._folding_of(str(tmp_path / "a.zarr")).case:
        pytest.skip("the file system of temporary files folds names")
    xzarr3.create_array(tmp_path / "a.zarr", "other/T", data=np.arange(2))
    xzarr3.create_array(tmp_path / "a.zarr", "other/t", data=np.arange(3))
    assert xzarr3.open_array(tmp_path / "a.zarr", "other/T")[...].tolist() == [0, 1]
    assert sorted(os.listdir(tmp_path)) == ["a.zarr"]
    assert sorted(os.listdir(tmp_path / "a.zarr")) == ["T", "other", "t", "zarr.json"]
