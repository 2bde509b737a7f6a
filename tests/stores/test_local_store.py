"""The local store beyond what every store does: locks between processes, fsync, and what lies in the way."""

import contextlib
import errno
import fcntl
import os
import pickle
import shutil
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from _conformance import contents, run_threads
from _damage import files, os_error
from _processes import Process, orphan, processes, run_processes
from _slow import slow
from _things import refused
from _unprivileged import run_child, unprivileged

from xzarr3 import ConflictError, InvalidKeyError, LocalStore, Store, StoreError, StorePermissionError
from xzarr3._types import Buffer
from xzarr3.stores.base import update, versioned
from xzarr3.stores.local import files as local_files
from xzarr3.stores.local import system
from xzarr3.stores.local.files import Lock, is_left, lock_of
from xzarr3.stores.local.names import LOCK
from xzarr3.stores.values import UNCHANGED


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture(params=["of what is open", slow("of the whole file")])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of locking, where there are two."""
    if request.param == "of the whole file":
        monkeypatch.setattr(system, "HAS_OFD", False)
    return str(request.param)


def folders(root: str | Path) -> list[str]:
    return sorted(os.path.relpath(folder, root) for folder, _, _ in os.walk(root) if folder != str(root))


def count(stored: Buffer | None) -> list[Buffer]:
    return [b"%d" % (1 + (0 if stored is None else int(bytes(stored))))]


def count_up(store: Store, key: str) -> None:
    update(store, key, count)


def compare(store: Store, key: str, new: bytes | None) -> bool:
    return store.put(key, None if new is None else [new], if_version=versioned(store, key)[1])


def leave(path: Path, content: bytes = b"half a val") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    left = path.with_name(path.name + LOCK)
    left.write_bytes(content)
    return left


def test_local_store_options_travel(tmp_path: Path) -> None:
    plain = LocalStore(tmp_path)
    for options in ({"fsync": True}, {"locks": False}, {"read_only": True}):
        store = LocalStore(tmp_path, **options)
        twin = pickle.loads(pickle.dumps(store))
        assert twin == store
        assert twin != plain
        assert twin.identity == plain.identity
        assert {name: getattr(twin, name) for name in options} == options
    hasty = plain.with_traits(conflict_deadline=5.0)
    assert pickle.loads(pickle.dumps(hasty)).traits.conflict_deadline == 5.0
    assert LocalStore(tmp_path, locks=False).traits.conditional == "threads"


def test_put_refuses_a_directory_that_was_there_elsewhere(store: LocalStore) -> None:
    store.set("a", b"1")
    state, said = pickle.dumps(store), "use a directory that all processes share"
    shutil.rmtree(store.root)
    run_child(lambda: refused(StoreError, said, lambda: pickle.loads(state).set("a", b"1"))).checked()
    assert not os.path.exists(store.root)


def test_ranges_that_a_damaged_index_asks_for_take_no_memory(store: LocalStore) -> None:
    store.set("a", b"0123456789")
    with store.open("a") as value:
        assert value.read_ranges([0, 2**40, 8], [3, 5, 2**40]) == [b"012", b"", b"89"]


def test_update_makes_changes_keeps_and_erases(store: LocalStore) -> None:
    seen = []

    def change(key: str, new: Any) -> None:
        update(store, key, lambda stored: seen.append(stored and bytes(stored)) or new)

    change("a/b", [b"one", b"", b"two"])
    change("a/b", UNCHANGED)
    change("a/b", [memoryview(b"three")])
    assert contents(store) == files(store.root) == {"a/b": b"three"}
    for key, new in (("a/b", None), ("a/b/c", None), ("a/b/c", UNCHANGED)):
        change(key, new)
        assert (files(store.root), folders(store.root)) == ({}, [])
    assert seen == [None, b"onetwo", b"onetwo", b"three", None, None]


def fail(stored: Buffer | None) -> list[Buffer]:
    raise LookupError("of the change")


@pytest.mark.parametrize("change", [fail, lambda stored: [5], lambda stored: [b"x", None]])
def test_update_whose_change_makes_no_value(store: LocalStore, change: Any) -> None:
    store.set("a/b", b"value")
    for key in ("a/b", "new/key"):
        error, text = (LookupError, "of the change") if change is fail else (StoreError, key)
        refused(error, text, partial(update, store, key, change))
        assert (files(store.root), folders(store.root)) == ({"a/b": b"value"}, ["a"])
    update(store, "a/b", lambda stored: [b"later"])
    assert store.get("a/b") == b"later"


def test_keys_cannot_be_names_of_lock_files(store: LocalStore) -> None:
    for key in (f"a{LOCK}", f"a{LOCK}/b", f"a/b{LOCK}", LOCK):
        asks = (store.get, store.erase, partial(store.set, value=b""))
        refused(InvalidKeyError, "reserved", *(partial(ask, key) for ask in asks))
    assert not os.path.exists(store.root)
    store.set(f"a{LOCK}s", b"")
    assert list(store.list()) == [f"a{LOCK}s"]


def test_put_where_the_system_has_no_such_file(store: LocalStore) -> None:
    """The name of a lock file is longer than that of its value; a part of a path is a file, or all of it is
    a directory."""
    key = "x" * (255 - len(LOCK))
    count_up(store, key)
    assert store.get(key) == b"1"
    refused(StoreError, "File name too long.*use shorter names", lambda: store.set("x" + key, b""))
    store.set("a/b", b"1")
    refused(StoreError, r"key 'a/b/c'.*a part of this one is a file", lambda: store.set("a/b/c", b""))
    writes = (lambda: store.set("a", b""), lambda: update(store, "a", lambda stored: [b""]))
    refused(StoreError, r"key 'a' .*Is a directory", *writes)
    assert files(store.root) == {"a/b": b"1", key: b"1"}


def _changed(store: Store, act: Callable[[], object]) -> Buffer | None:
    """The value that is there when an act comes while another process changes the value, and waits."""

    def change(stored: Buffer | None) -> list[Buffer]:
        Process.say()
        time.sleep(0.3)
        return [stored or b"nothing", b"+"]

    with processes(lambda: update(store, "a/b", change)) as (other,):
        assert other.hear()
        act()
        assert other.wait(60) == 0
    return store.get("a/b")


@pytest.mark.usefixtures("way")
def test_put_and_erase_come_after_the_change_that_is_under_way(store: LocalStore) -> None:
    store.set("a/b", b"1")
    assert _changed(store, lambda: update(store, "a/b", lambda stored: [bytes(stored or b"") * 2])) == b"1+1+"
    assert _changed(store, lambda: store.set("a/b", b"2")) == b"2"
    assert _changed(store, lambda: store.erase("a/b")) is None
    assert _changed(store, lambda: store.set("a/b", b"3")) == b"3"
    assert files(store.root) == {"a/b": b"3"}


def test_put_with_a_version_has_one_winner(store: LocalStore) -> None:
    def compete() -> None:
        for _ in range(60):
            won = False
            while not won:
                value, version = versioned(store, "a/b")
                won = store.put("a/b", count(value), if_version=version)

    run_processes(*[compete] * 3)
    assert store.get("a/b") == b"180"
    assert compare(store, "a/b", None)
    assert (files(store.root), folders(store.root)) == ({}, [])


def hold(store: Store, key: str) -> Callable[[], None]:
    """A work that changes a key until it is killed, and says when it has begun."""

    def change(stored: Buffer | None) -> list[Buffer]:
        Process.say()
        signal.pause()
        return [b"held"]

    return lambda: update(store, key, change)


@pytest.mark.usefixtures("way")
def test_lock_that_is_held_too_long_is_told(store: LocalStore) -> None:
    store.set("a/b", b"1")
    hasty = store.with_traits(conflict_deadline=0.3)
    with processes(hold(store, "a/b"), hold(store, "a/c")) as holders:
        assert all(holder.hear() for holder in holders)
        writes = (count_up, partial(compare, new=b"x"), partial(LocalStore.set, value=b"x"), LocalStore.erase)
        said = r"key 'a/b' .*__lock', for 0\.3 s; reduce "
        refused(ConflictError, said, *(partial(write, hasty, "a/b") for write in writes))
        Path(store.root, "a", "b").write_bytes(b"1")  # An erasure is done, and waits to be sure of it.
        for key in ("a/d", "c", "a/e/f"):  # Others do not wait.
            update(hasty, key, count)
        assert sorted(store.list()) == ["a/b", "a/d", "a/e/f", "c"]
        assert store.list_dir("a/") == ({"a/b", "a/d"}, {"a/e/"})
        assert list(store.leftovers()) == []
        store.erase_prefix("a/")
        assert sorted(files(store.root)) == [f"a/b{LOCK}", f"a/c{LOCK}", "c"], "what is in use stays"


@pytest.mark.usefixtures("way")
def test_lock_of_a_killed_process_is_free(store: LocalStore) -> None:
    for key in ("a/b", "new/b"):
        store.set("a/b", b"1")
        with processes(hold(store, key)) as (holder,):
            assert holder.hear()
            holder.kill()
        assert list(store.leftovers()) == [f"{key}{LOCK}"]
        update(store, key, count)
        assert set(files(store.root)) == {"a/b", key}


@pytest.mark.usefixtures("way")
def test_lock_is_not_kept_by_a_forked_child_of_its_holder(store: LocalStore, tmp_path: Path) -> None:
    """Another thread forks in the middle of a change; then the parent is killed, and the child lives on."""
    store.set("a/b", b"1")

    def begin() -> None:
        changing = threading.Event()

        def change(stored: Buffer | None) -> None:
            changing.set()
            threading.Event().wait()

        threading.Thread(target=lambda: update(store, "a/b", change), daemon=True).start()
        changing.wait()

    with orphan(begin, tmp_path / "child"):
        count_up(store, "a/b")
    assert files(store.root) == {"a/b": b"2"}


@pytest.mark.parametrize("content", [b"", b"half a value"], ids=["empty", "written"])
def test_leftovers_are_no_keys_and_the_next_writer_removes_them(content: bytes, store: LocalStore) -> None:
    store.set("x", b"2")
    for act, value in (
        (lambda: store.set("a/b", b"2"), {"a/b": b"2"}),
        (lambda: count_up(store, "a/b"), {"a/b": b"2"}),
        (lambda: store.copy("x", "a/b"), {"a/b": b"2"}),
        (lambda: compare(store, "a/b", b"2"), {"a/b": b"2"}),
        (lambda: store.erase("a/b"), {}),
        (lambda: store.erase_prefix("a/"), {}),
    ):
        store.set("a/b", b"1")
        leave(Path(store.root) / "a" / "b", content)
        assert sorted(store.list()) == ["a/b", "x"]
        assert store.list_dir("a/") == ({"a/b"}, set())
        assert list(store.leftovers()) == list(store.leftovers("a/")) == [f"a/b{LOCK}"]
        assert list(store.leftovers("b/")) == []
        act()
        assert files(store.root) == {**value, "x": b"2"}
    assert os.listdir(store.root) == ["x"]


def _try(path: str, seconds: float = 5, *, late: bool = False) -> Lock:
    return Lock(path, time.monotonic() + seconds, shared=True, late=late)


@pytest.fixture
def before_locking(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], list[int]]:
    """Has something happen between making a file and locking it, once; gives what is locked."""
    real, locked = system.lock, list[int]()

    def arrange(happen: Callable[[], object]) -> list[int]:
        def lock(descriptor: int) -> bool:
            locked.append(descriptor)
            if len(locked) == 1:
                happen()
            return real(descriptor)

        monkeypatch.setattr(system, "lock", lock)
        return locked

    return arrange


@pytest.mark.usefixtures("way")
def test_lock_that_another_takes_before_its_creator(tmp_path: Path, before_locking: Any) -> None:
    path = str(tmp_path / "a")
    before_locking(lambda: _try(path).fill([b"other"], fsync=False))
    with _try(path) as lock:
        assert (tmp_path / "a").read_bytes() == b"other"
        lock.fill([b"mine"], fsync=False)
    assert files(tmp_path) == {"a": b"mine"}


@pytest.mark.parametrize("value", [b"other", b"o"])
def test_lock_file_that_tensorstore_adopts(value: bytes, tmp_path: Path, before_locking: Any) -> None:
    """It opens a lock file that is there, locks it, writes into it and renames it; its value stays whole."""
    path, real = str(tmp_path / "a"), system.lock

    def adopt() -> None:
        with open(lock_of(path), "r+b") as file:
            assert real(file.fileno())
            file.write(value)
            file.flush()
            os.rename(lock_of(path), path)

    before_locking(adopt)
    with open(path, "wb"), _try(path) as lock, open(path, "rb") as adopted:
        lock.fill([b"mine"], fsync=False)
        assert adopted.read() == value
    assert files(tmp_path) == {"a": b"mine"}


@pytest.mark.usefixtures("way")
def test_is_left_tells_a_lock_file_that_has_become_the_value(tmp_path: Path, before_locking: Any) -> None:
    """Its holder renames it after it was opened: it is neither left nor removed."""
    path = str(tmp_path / "a")
    lock = _try(path)
    before_locking(lambda: lock.fill([b"v"], fsync=False))
    assert not is_left(lock_of(path), remove=True)
    assert files(tmp_path) == {"a": b"v"}
    with _try(path):
        assert not is_left(lock_of(path), remove=True)
        assert set(files(tmp_path)) == {"a", f"a{LOCK}"}


def test_lock_of_a_removed_file_whose_link_is_still_counted(store: LocalStore, before_locking: Any) -> None:
    store.set("k", b"1")
    path = os.path.join(store.root, "k")
    # As NFS does with a file that is open elsewhere.
    locked = before_locking(lambda: os.rename(f"{path}{LOCK}", os.path.join(store.root, ".nfs0001")))
    with _try(path, late=True) as held:
        assert len(locked) == 2
        assert os.path.samestat(os.fstat(held.descriptor), os.stat(held.name))


def test_lock_is_told_by_the_system(tmp_path: Path) -> None:
    if not system.HAS_OFD:
        pytest.skip("this system has no locks of open files")
    with _try(str(tmp_path / "a")) as lock, open(lock.name, "r+b") as other:
        for start, length in ((0, 0), (0, 1), (2**40, 1)):
            asked = struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
            kind, *_ = struct.unpack("hhqqi0q", fcntl.fcntl(other, fcntl.F_OFD_GETLK, asked))
            assert kind != fcntl.F_UNLCK


def test_lock_leaves_no_descriptors_open(store: LocalStore) -> None:
    count_up(store, "a/b")
    before = len(os.listdir("/proc/self/fd"))
    for n in range(20):
        count_up(store, "a/b")
        count_up(store, f"{n}/x/y")
        compare(store, "a/b", b"1")
        update(store, "a/b", lambda stored: UNCHANGED)
        refused(LookupError, None, lambda: update(store, "a/b", fail))
        _try(os.path.join(store.root, "k"))  # Ctrl-C may lose a lock so.
    assert len(os.listdir("/proc/self/fd")) == before
    assert (list(local_files._open_ones), local_files.held()) == ([], {})


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_update_on_file_systems_without_locks(number: int, way: str, store: Any, monkeypatch: Any) -> None:
    """Changes are refused; values can be replaced whole, and none of them is torn."""

    def refuse(*args: object) -> None:
        raise os_error(number)

    store.set("a/b", b"1")
    monkeypatch.setattr(fcntl, "fcntl" if way == "of what is open" else "flock", refuse)
    writes = [partial(count_up, store, key) for key in ("a/b", "new/b")]
    said = rf"cannot lock key '\w+/b' .*{os.strerror(number)}.*; use .*locks=False"
    refused(StoreError, said, *writes, lambda: compare(store, "a/b", b"x"))
    assert files(store.root) == {"a/b": b"1"}
    leave(Path(store.root) / "a" / "b")
    store.set("a/b", b"2")
    assert files(store.root)["a/b"] == b"2"
    unlocked = LocalStore(store.root, locks=False)
    run_threads(*[lambda: [count_up(unlocked, "a/b") for _ in range(50)]] * 3)
    assert (compare(unlocked, "a/b", b"152"), unlocked.get("a/b")) == (True, b"152")


@pytest.mark.parametrize("number", [errno.EIO, errno.ETIMEDOUT, errno.ESTALE])
def test_lock_that_fails(number: int, store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handle that is stale is no failure: it is got anew."""
    store.set("a/b", b"1")
    real, left = fcntl.fcntl, [3]

    def failing(*args: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise os_error(number)
        return real(*args)

    monkeypatch.setattr(fcntl, "fcntl", failing)
    said = f"cannot write key 'a/b'.*{os.strerror(number)}"
    with nullcontext() if number == errno.ESTALE else pytest.raises(StoreError, match=said):
        count_up(store, "a/b")
    assert files(store.root)["a/b"] == (b"2" if number == errno.ESTALE else b"1")


def test_put_makes_a_directory_again_that_was_just_removed(store: LocalStore, monkeypatch: Any) -> None:
    store.set("a/b/c", b"1")
    real, times = os.open, [3]

    def removed(path: Any, *args: Any, **options: Any) -> int:
        if str(path).endswith(LOCK) and times[0]:
            times[0] -= 1
            shutil.rmtree(os.path.join(store.root, "a"), ignore_errors=True)
        return real(path, *args, **options)

    monkeypatch.setattr(os, "open", removed)
    for write in (lambda: store.set("a/b/c", b"2"), lambda: update(store, "a/b/c", lambda stored: [b"2"])):
        times[0] = 3
        write()
        assert files(store.root) == {"a/b/c": b"2"}


@unprivileged()
def test_update_without_permission(base: Path) -> None:
    store, root, above = LocalStore(base / "store"), base / "store", base / "store" / "a"
    store.set("a/b", b"1")
    change, hasty = partial(count_up, store, "a/b"), store.with_traits(conflict_deadline=0.1)
    for mode in (0o555, 0):
        above.chmod(mode)
        refused(StorePermissionError, "key 'a/", change, lambda: store.set("a/new/x", b""))
        above.chmod(0o755)
    (above / "b").chmod(0)
    refused(StorePermissionError, "cannot read key 'a/b'", change)
    (above / "b").chmod(0o644)
    assert files(root) == {"a/b": b"1"}
    for folder in (root, above):
        folder.chmod(0o300)  # Enough to search and to change, not to list.
    change()
    for folder in (root, above):
        folder.chmod(0o755)
    assert files(root) == {"a/b": b"2"}
    leave(above / "b").chmod(0)  # Of another user.
    refused(ConflictError, "__lock'", lambda: hasty.set("a/b", b"3"))


PLANTS: dict[str, Callable[[Path], object]] = {
    **{f"link to {name}": lambda place, name=name: place.symlink_to(f"../../{name}")  # type: ignore[misc]
       for name in ("canary.txt", "nothing")},
    "directory": Path.mkdir, "pipe": os.mkfifo,
}  # fmt: skip


@pytest.mark.parametrize("kind", PLANTS)
@unprivileged()
def test_lock_file_in_whose_place_something_else_lies(base: Path, kind: str) -> None:
    """A link there is not followed: nothing is made, opened or locked outside."""
    store = LocalStore(base / "store")
    store.set("a/b", b"1")
    PLANTS[kind](base / "store" / "a" / f"b{LOCK}")
    writes = (lambda: count_up(store, "a/b"), lambda: store.set("a/b", b"2"))
    refused(StoreError, "cannot write key 'a/b'", *writes)
    assert list(store.list()) == ["a/b"] or kind == "directory"
    assert (list(store.leftovers()), store.get("a/b")) == ([], b"1")


@contextlib.contextmanager
def recorded(monkeypatch: pytest.MonkeyPatch, root: Path) -> Iterator[list[tuple[str, str]]]:
    """What is done to the disk, by name and path below ``root``."""
    done: list[tuple[str, str]] = []

    def place(what: Any, folder: int | None) -> str:
        opened = what if isinstance(what, int) else folder
        above = "" if opened is None else os.readlink(f"/proc/self/fd/{opened}")
        return os.path.relpath(above if isinstance(what, int) else os.path.join(above, what), root)

    def noting(name: str, real: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            where = place(args[name == "replace"], options.get("dst_dir_fd", options.get("dir_fd")))
            result = real(*args, **options)
            done.append((name, where))
            return result

        return call

    with monkeypatch.context() as patch:
        for name in ("fsync", "replace", "mkdir", "unlink", "rmdir", "writev"):
            patch.setattr(os, name, noting(name, getattr(os, name)))
        yield done


def _synced_after(done: list[tuple[str, str]], step: tuple[str, str], folder: str) -> bool:
    at = len(done) - 1 - done[::-1].index(step)
    return ("fsync", folder) in done[at:]


@pytest.mark.parametrize("put", [
    lambda store: store.put("a/b/c", [b"val", b"ue"]),
    lambda store: update(store, "a/b/c", lambda stored: [b"value"]),
    lambda store: compare(store, "a/b/c", b"value"),
], ids=["put", "update", "compare"])  # fmt: skip
def test_put_is_on_the_disk(put: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content before the name, the name and the directories that lead there before it returns."""
    store = LocalStore(tmp_path / "up" / "store", fsync=True)
    folder = "up/store/a/b"
    for new in (True, False):
        with recorded(monkeypatch, tmp_path) as done:
            put(store)
        file = done.index(("fsync", f"{folder}/c.__lock"))
        assert file < done.index(("replace", f"{folder}/c"))
        assert all(at < file for at, step in enumerate(done) if step == ("writev", f"{folder}/c.__lock"))
        assert _synced_after(done, ("replace", f"{folder}/c"), folder)
        made = [path for name, path in done if name == "mkdir"]
        assert (folder in made) is new
        for path in made:
            assert _synced_after(done, ("mkdir", path), os.path.dirname(path) or "."), path
    with recorded(monkeypatch, tmp_path) as done:
        put(LocalStore(tmp_path / "quick"))
    assert "fsync" not in {name for name, _ in done}


@pytest.mark.parametrize("erase", [
    lambda store: store.erase("a/b/c"),
    lambda store: store.erase("a/b/c", "a/b/d", "x"),
    lambda store: store.erase_prefix("a/"),
    lambda store: update(store, "a/b/c", lambda stored: None),
    lambda store: compare(store, "a/b/c", None),
], ids=["erase", "several", "erase_prefix", "update", "compare"])  # fmt: skip
@pytest.mark.parametrize("others", [["a/b/e"], []])
def test_erase_is_on_the_disk(others: Any, erase: Any, tmp_path: Path, monkeypatch: Any) -> None:
    store = LocalStore(tmp_path / "store", fsync=True)
    store.set_values((key, b"") for key in ("a/b/c", "x", *others))
    with recorded(monkeypatch, tmp_path) as done:
        erase(store)
    steps = [step for step in done if step[0] in ("unlink", "rmdir") and not step[1].endswith(LOCK)]
    assert ("unlink", "store/a/b/c") in steps
    for step in steps:
        folder = os.path.dirname(step[1])
        assert _synced_after(done, step, folder) or not (tmp_path / folder).exists(), step


def test_put_interrupted_as_it_renames_leaves_the_lock_of_another(store: Any, monkeypatch: Any) -> None:
    others: list[Lock] = []
    rename = os.replace

    def replace(source: str, target: str) -> None:
        rename(source, target)
        monkeypatch.setattr(os, "replace", rename)
        others.append(_try(target))
        raise KeyboardInterrupt  # As Python does after a call during which the signal came.

    monkeypatch.setattr(os, "replace", replace)
    refused(KeyboardInterrupt, None, lambda: store.set("k", b"mine"))
    refused(TimeoutError, None, lambda: _try(others[0]._path, 0))
    others[0].fill([b"of another"], fsync=False)
    assert store.get("k") == b"of another"


def test_list_dir_goes_on_after_a_link_that_vanishes(store: LocalStore, monkeypatch: Any) -> None:
    for at in range(8):
        store.set(f"k{at}", b"1")
    os.symlink("..", os.path.join(store.root, "link"))
    stat = os.stat

    def vanished(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        if str(path).endswith("link"):
            raise FileNotFoundError(errno.ENOENT, "vanished", path)
        return stat(path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", vanished)
    assert store.list_dir("") == ({f"k{at}" for at in range(8)}, set())


@pytest.mark.parametrize("act", [lambda s: s.erase("k"), lambda s: s.exclusive("k").__enter__()])
def test_erase_and_exclusive_wait_for_another_process(act: Callable[[Store], Any], store: LocalStore) -> None:
    """What is erased at once and once more after the turn of another may be what that one has just made."""
    store.set("k", b"1")
    hasty = store.with_traits(conflict_deadline=0.1)
    with store.exclusive("k"):
        run_child(lambda: refused(ConflictError, None, lambda: act(hasty))).checked()
        assert store.get("k") == b"1"
    store.erase("k")
    assert store.get("k") is None
