"""What a directory holds after the worst: writers killed at any time, disks that are full or fail, and many
processes that change the same chunks and shards at once.
"""

import contextlib
import ctypes
import errno
import itertools
import mmap
import os
import random
import resource
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _conformance import contents, run_numbered
from _damage import files, module_of, os_error
from _processes import Process, processes, run_processes, run_small
from _things import refused
from _unprivileged import own_directory, run_child, unprivileged

import xzarr3
from xzarr3 import LocalStore, StoreError
from xzarr3._types import Buffer
from xzarr3.codecs import BytesCodec, Crc32cCodec, ShardingCodec
from xzarr3.stores.base import update, versioned
from xzarr3.stores.local import system
from xzarr3.stores.local.names import LOCK

NOISE = np.random.default_rng(1).integers(1, 2**60, 4096)

CHECKED: dict[str, Any] = {"compressors": {"name": "crc32c"}}
NESTED = ShardingCodec((8,), (ShardingCodec((2,), (BytesCodec(), Crc32cCodec())),))
LAYOUTS: dict[str, dict[str, Any]] = {
    "chunks": {"chunks": 16, **CHECKED},
    "shards": {"chunks": 4, "shards": 16, **CHECKED},
    "nested shards": {"chunks": 16, "serializer": NESTED, "compressors": None},
    "version 2": {"chunks": 16, "zarr_format": 2},
}


WHOLE: dict[str, dict[str, Any]] = {
    "whole": {"chunks": 4, **CHECKED},
    "whole shards": {"chunks": 4, "shards": 8, **CHECKED},
}


def is_hidden(name: str) -> bool:
    """Whether a file is no key; a lease is one, and stays until the next write of its kind."""
    base = os.path.basename(name)
    return base.endswith(LOCK) or (base.startswith(".xzarr3") and base != ".xzarr3-lease")


class Ledger:
    """What a process is about to do and has done, as it can still be read when it has been killed."""

    def __init__(self, number: int) -> None:
        self._cells = memoryview(mmap.mmap(-1, 16 * number)).cast("q")

    @contextlib.contextmanager
    def entry(self, at: int, new: int) -> Iterator[None]:
        """Note that something becomes ``new``, and after that, that it is."""
        self._cells[2 * at] = new
        yield
        self._cells[2 * at + 1] = new

    def may_be(self, at: int) -> set[int]:
        return {self._cells[2 * at], self._cells[2 * at + 1]}

    def settle(self, at: int, found: int) -> None:
        """Note the state in which it was found."""
        assert found in self.may_be(at), f"{at}: found {found}, which is neither of {self.may_be(at)}"
        self._cells[2 * at] = self._cells[2 * at + 1] = found


def record(serial: int) -> bytes:
    body = f"{serial} ".encode() * (1 + serial % 7 * 900)
    return zlib.crc32(body).to_bytes(4, "big") + body


def serial_of(value: Buffer | None) -> int:
    if value is None:
        return 0
    data = bytes(value)
    assert zlib.crc32(data[4:]).to_bytes(4, "big") == data[:4], "half a value"
    return int(data[4:].split(b" ")[0])


CHANGES: dict[str, Callable[[LocalStore, str, bytes], object]] = {
    "set": lambda store, key, value: store.set(key, value),
    "update": lambda store, key, value: update(store, key, lambda stored: [value]),
    "update to nothing": lambda store, key, value: update(store, key, lambda stored: None),
    "erase": lambda store, key, value: store.erase(key),
}
ERASING = ("erase", "update to nothing")
KEYS = [f"{folder}/{name}" for folder in ("r/a", "r/b/deep", "r") for name in ("0", "1")]
ELEMENTS = 32
ARRAYS = list(LAYOUTS)


class Work:
    """What a process does over and over until it is killed, and what is to be found after that."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = LocalStore(root)
        xzarr3.create_group(self.store)
        arrays = {**LAYOUTS, **WHOLE, "grown": {"shape": 0, "chunks": 5, **CHECKED}}
        for name, layout in arrays.items():
            xzarr3.create_array(*self._place(name), **{"shape": ELEMENTS, "dtype": "int64", **layout})
        self.records = Ledger(len(KEYS))
        self.elements = {name: Ledger(ELEMENTS) for name in ARRAYS}
        self.shape = Ledger(1)
        self.attributes = Ledger(len(ARRAYS))
        self.serial = 0

    def _place(self, name: str) -> tuple[LocalStore, str]:
        return (LocalStore(self.root / "2"), "") if name == "version 2" else (self.store, name)

    def open(self, name: str) -> xzarr3.Array:
        return xzarr3.open_array(*self._place(name), mode="r+")

    def run(self, seed: float) -> None:
        rng = random.Random(seed)
        steps = [self._record, self._record, self._element, self._element, self._grow, self._attribute]
        steps += [self._whole, self._consolidate]
        for serial in itertools.count(self.serial + 1):
            rng.choice(steps)(serial, rng)

    def _record(self, serial: int, rng: random.Random) -> None:
        at = rng.randrange(len(KEYS))
        key = KEYS[at]
        how = rng.choice([*CHANGES, "compare"])
        with self.records.entry(at, 0 if how in ERASING else serial):
            if how == "compare":
                version = versioned(self.store, key)[1]
                assert self.store.put(key, [record(serial)], if_version=version)
            else:
                CHANGES[how](self.store, key, record(serial))

    def _element(self, serial: int, rng: random.Random) -> None:
        name = rng.choice(ARRAYS)
        at = rng.randrange(ELEMENTS)
        new = rng.choice([serial, 0])  # So that chunks get empty and are erased.
        with self.elements[name].entry(at, new):
            self.open(name).set(at, new, threads=1)

    def _grow(self, serial: int, rng: random.Random) -> None:
        array = self.open("grown")
        (size,) = array.shape
        grows = size < 40 and rng.random() < 0.7
        new = size + 3 if grows else rng.randrange(size + 1)
        with self.shape.entry(0, new):
            array.append(np.arange(size + 1, size + 4)) if grows else array.resize(new)

    def _attribute(self, serial: int, rng: random.Random) -> None:
        at = rng.randrange(len(ARRAYS))
        with self.attributes.entry(at, serial):
            self.open(ARRAYS[at]).attrs["serial"] = serial

    def _whole(self, serial: int, rng: random.Random) -> None:
        self.open(rng.choice([*WHOLE])).set(..., serial, threads=1)

    def _consolidate(self, serial: int, rng: random.Random) -> None:
        xzarr3.consolidate_metadata(self.store)

    def check(self) -> None:
        """See that everything is old or new, by whatever way one looks."""
        expected = set()
        for at, key in enumerate(KEYS):
            found = serial_of(self.store.get(key))
            self.records.settle(at, found)
            self.serial = max(self.serial, found)
            if found:
                expected.add(key)
        listed = set(self.store.list())
        assert {key for key in listed if key.startswith("r/")} == expected
        assert set(self.store.list_prefix("r/")) == expected
        assert self.store.list_dir("r/")[0] == {key for key in expected if key.count("/") == 1}
        assert not any(is_hidden(key) for key in listed)
        for number, name in enumerate(ARRAYS):
            for at, element in enumerate(self.open(name)[...].tolist()):
                self.elements[name].settle(at, element)
                self.serial = max(self.serial, element)
            found = self.open(name).attrs.get("serial", 0)
            assert isinstance(found, int)
            self.attributes.settle(number, found)
            self.serial = max(self.serial, found)
        self.shape.settle(0, self.open("grown").shape[0])
        for name, units in (("whole", 8), ("whole shards", 4)):
            for unit in np.split(self.open(name)[...], units):
                assert len(set(unit.tolist())) == 1, "a unit is torn"
                self.serial = max(self.serial, int(unit[0]))
        assert set(dict(xzarr3.open_group(self.store))) >= {*ARRAYS[:3], "grown", "whole"}


def killed_over_and_over(work: Work, times: int, seed: int) -> int:
    """Kill two processes after they began, again and again; returns how many files were left by them."""
    rng = random.Random(seed)

    def write() -> None:
        Process.say()
        work.run(rng.random())

    for round_ in range(times):
        # The other one uses the same directories and, in them, the same lock files.
        other, key = LocalStore(work.root), f"r/b/deep/other{round_ % 3}"

        def beside(other: LocalStore = other, key: str = key) -> None:
            Process.say()
            for serial in itertools.count(1):
                update(other, key, lambda stored: [record(serial)] if stored is None else None)  # noqa: B023

        with processes(write, beside) as started:
            assert all(process.hear() for process in started)
            time.sleep(rng.uniform(0, 0.03))  # The moment of the kill is left to chance.
            for process in started:
                assert not process.ended(), "a writer failed"
                process.kill()
        serial_of(work.store.get(key))
        work.store.erase(key)
        new = {"r/b/deep/x": b"x", "r/a/x": b"x"}
        stored_within_bounds(work.store, new)
        work.store.erase(*new)
        work.check()
    return sum(map(is_hidden, files(work.root)))


def stored_within_bounds(store: LocalStore, values: dict[str, bytes]) -> None:
    """Update values in a child, which is killed if it waits for a lock that nobody gives back."""

    def work() -> None:
        for key, value in values.items():
            update(store, key, lambda stored, value=value: [value])  # type: ignore[misc]

    run_child(work).checked()
    assert {key: store.get(key) for key in values} == values


def _nothing_is_left(work: Work) -> None:
    """What killed writers left is no key, is told, and goes with the next write of the same key."""
    zarr = pytest.importorskip("zarr")
    store = work.store
    (work.root / f"zarr.json{LOCK}").write_bytes(b"{")
    keys, prefixes = store.list_dir("")
    assert not any(map(is_hidden, keys | prefixes))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # It says that there are things it does not know.
        members = dict(zarr.open_group(str(work.root), mode="r", use_consolidated=False).members())
    assert set(members) >= {*ARRAYS[:3], "grown", "whole"}
    before = contents(store)
    for name in list(store.leftovers()):
        key = name.removesuffix(LOCK)
        update(store, key, lambda stored: stored if stored is None else [bytes(stored)])
    assert not any(map(is_hidden, files(work.root)))
    assert contents(store) == before == files(work.root)


@pytest.mark.parametrize("seed", range(4))
def test_writers_killed_at_any_time_leave_old_or_new_values(seed: int, tmp_path: Path) -> None:
    run_small(killed_at_any_time, seed, str(tmp_path / "store"))


def killed_at_any_time(seed: int, root: str) -> None:
    work = Work(Path(root))
    work.check()
    left = killed_over_and_over(work, 150, 1000 + seed)
    assert work.serial > 20, "the writers wrote nothing"
    assert left <= len(KEYS) + 3 + 60, "more than one file for each key"
    _nothing_is_left(work)


def test_a_writer_killed_at_each_call_of_the_system(tmp_path: Path) -> None:
    run_small(killed_at_each_call, str(tmp_path / "store"))


def killed_at_each_call(place: str) -> None:
    root = Path(place)
    store = LocalStore(root)
    calls = ("open", "close", "writev", "replace", "unlink", "rmdir", "mkdir", "fstat", "stat", "lstat")
    calls += ("utime", "preadv", "fsync")
    acts = [*((name, "a/b/c") for name in CHANGES), *((name, "n/o/p") for name in ("set", "update"))]

    def act_until(name: str, key: str, n: int, after: bool) -> None:
        real = {call: getattr(module_of(call), call) for call in calls}
        numbers = itertools.count()

        def watched(call: str) -> Any:
            def run(*args: Any, **options: Any) -> Any:
                mine = next(numbers) == n
                if mine and not after:
                    os.kill(os.getpid(), 9)
                result = real[call](*args, **options)
                if mine:
                    os.kill(os.getpid(), 9)
                return result

            return run

        for call in calls:
            setattr(module_of(call), call, watched(call))
        CHANGES[name](LocalStore(root, fsync=(name, key) == ("set", "a/b/c")), key, record(2))

    total = 0
    for (name, key), after in itertools.product(acts, (False, True)):
        for n in itertools.count():
            store.set("a/b/c", record(1))
            store.erase("n/o/p")
            with processes(partial(act_until, name, key, n, after)) as (child,):
                status = child.wait(120)
            if status == 0:
                break
            assert status == 9, "it failed otherwise"
            total += 1
            assert serial_of(store.get(key)) in (int(key == "a/b/c"), 0 if name in ERASING else 2)
            assert set(store.list()) <= {"a/b/c", "n/o/p"}
            assert set(files(root)) <= {"a/b/c", key, key + LOCK}, "more than one file is left"
            stored_within_bounds(store, {key: record(3)})
            assert set(files(root)) <= {"a/b/c", key}
    assert total > 60


@contextlib.contextmanager
def small_disk(base: Path, options: bytes) -> Iterator[None]:
    """A small file system at ``store``, in a mount namespace of this process."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_namespace, private = 0x00020000, 1 << 18 | 1 << 14
    place = os.fsencode(base / "store")
    if (
        libc.unshare(new_namespace) != 0
        or libc.mount(b"none", b"/", None, private, None) != 0
        or libc.mount(b"tmpfs", place, b"tmpfs", 0, options) != 0
    ):
        raise PermissionError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        yield
    finally:
        libc.umount2(place, 2)


def on_a_small_disk(options: bytes, work: Callable[[Path], object]) -> None:
    """Run something in a child with a small file system of its own; only harmless paths may be in it."""

    def mounted() -> str:
        try:
            with small_disk(base, options):
                work(base / "store")
        except PermissionError as error:
            return f"no file system can be mounted here: {error.strerror}"
        return ""

    with own_directory() as base:
        reason = run_child(mounted).checked()
    if reason:
        pytest.skip(reason)


def ballast(root: Path) -> None:
    folder = root / "ballast"
    folder.mkdir()
    with contextlib.suppress(OSError):
        for n in range(5001):
            (folder / str(n)).write_bytes(b"")
    size = 2**16
    while size >= 4096:
        try:
            with open(folder / "0", "ab", buffering=0) as file:
                if file.write(bytes(size)) < size:
                    size //= 2
        except OSError:
            size //= 2


def fill_and_free(root: Path, fill: Callable[[], object], free: Callable[[], object], **options: Any) -> None:
    store, noise = LocalStore(root / "s", **options), NOISE
    store.set("a/b", noise.tobytes())
    array = xzarr3.create_array(store, "x", data=noise, chunks=4096, **CHECKED)
    shard = xzarr3.create_array(store, "y", data=noise, chunks=1024, shards=4096, **CHECKED)
    emptied = xzarr3.create_array(store, "z", data=noise, chunks=2048, **CHECKED)
    store.set_values((f"c/{n}", bytes(9000)) for n in range(3))
    before = files(store.root)
    fill()
    large, version = noise.tobytes() * 3, versioned(store, "a/b")[1]
    for write in (
        *(partial(store.set, "a/b", large[::-1]), partial(store.set, "new/b", large)),
        lambda: update(store, "a/b", lambda stored: [stored, noise.tobytes(), noise.tobytes()]),
        lambda: update(store, "n/e/w", lambda stored: [large]),
        lambda: store.put("a/b", [large], if_version=version),
        *(partial(one.set, slice(1, 2000), noise[2001:4000]) for one in (array, shard)),
        partial(array.append, noise),
    ):
        refused(StoreError, str(root), write)
        assert files(store.root) == before
        assert np.array_equal(xzarr3.open_array(store, "x"), noise)
        assert np.array_equal(xzarr3.open_array(store, "y"), noise)
    store.erase("c/0")  # Whatever is full, one can erase.
    update(store, "c/1", lambda stored: None)
    emptied[:2048] = 0
    store.erase_prefix("c/")
    assert before.keys() - files(store.root).keys() == {"c/0", "c/1", "c/2", "z/c/0"}
    free()
    array[1:2000] = shard[1:2000] = 7
    update(store, "a/b", lambda stored: [bytes(stored or b"")[:8]])
    assert store.get("a/b") == noise.tobytes()[:8]
    for name in ("x", "y"):
        again = xzarr3.open_array(store, name)[...]
        assert (again[1:2000] == 7).all()
        assert np.array_equal(again[2000:], noise[2000:])
    assert not any(map(is_hidden, files(store.root)))


@pytest.mark.parametrize(("disk", "fsync"), [
    (b"size=512k", False), (b"size=512k", True), (b"size=4m,nr_inodes=60", False),
])  # fmt: skip
def test_full_disk(disk: bytes, fsync: bool) -> None:
    def work(root: Path) -> None:
        def free() -> None:
            for file in (root / "ballast").iterdir():
                file.unlink()

        fill_and_free(root, lambda: ballast(root), free, fsync=fsync)

    on_a_small_disk(disk, work)


@pytest.mark.parametrize("limit", [2000, 0])
@unprivileged()
def test_files_that_may_not_grow(base: Path, limit: int) -> None:
    """The limit of a process shows itself in the middle of a file."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    fill, free = (partial(resource.setrlimit, resource.RLIMIT_FSIZE, (most, hard)) for most in (limit, hard))
    fill_and_free(base / "store", fill, free)


FAULTS = ["open", "writev", "fsync", "replace", "unlink", "mkdir", "fstat", "stat", "preadv"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.parametrize("name", FAULTS)
def test_calls_fail_in_turn(name: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever it is: the value is the old or the new one, the error is ours, the next write works."""
    store = LocalStore(tmp_path / "store", fsync=True)
    array = xzarr3.create_array(store, "x", data=np.arange(1, 65), chunks=8, shards=64, **CHECKED)
    real = getattr(module_of(name), name)
    acts: dict[str, Callable[[], object]] = {
        "a/b": lambda: store.set("a/b", record(2)),
        "a/c": lambda: update(store, "a/c", lambda stored: [record(2)[:5], record(2)[5:]]),
        "new/c": lambda: update(store, "new/c", lambda stored: [record(2)]),
        "a/d": lambda: update(store, "a/d", lambda stored: None),
        "x/c/0": lambda: array.set(5, 1000, threads=1),
    }
    failures = 0
    for key, act in acts.items():
        for nth in range(100):
            for each in ("a/b", "a/c", "a/d"):
                store.set(each, record(1))
            array[5] = 6
            numbers = itertools.count()

            def fail(*args: Any, nth: int = nth, numbers: Iterator[int] = numbers, **options: Any) -> Any:
                if next(numbers) == nth:
                    raise os_error(number)
                return real(*args, **options)

            with monkeypatch.context() as patch:
                patch.setattr(module_of(name), name, fail)
                failed = None
                try:
                    act()
                except StoreError as error:
                    failed = error
                reached = next(numbers) > nth
            if failed:
                failures += 1
                assert all(word in str(failed) for word in (key, os.strerror(number)))
                assert isinstance(failed.__cause__, OSError)
            if key == "x/c/0":
                found = array[...].tolist()
                assert found[5] in ((6, 1000) if failed else (1000,))
                assert found[:5] + found[6:] == [*range(1, 6), *range(7, 65)]
            else:
                new = {"a/d": 0}.get(key, 2)
                assert serial_of(store.get(key)) in ({1, new} if failed and key != "new/c" else {new, 0})
                assert failed or serial_of(store.get(key)) == new
            assert set(store.list()) <= {*acts, "x/zarr.json", "zarr.json"}
            act()
            store.erase("new/c")
            if not reached:
                break
        else:
            raise AssertionError("it never ended")
    assert failures or name in ("unlink", "preadv", "fstat", "mkdir")
    assert not any(map(is_hidden, files(store.root)))


def test_put_where_closing_tells_of_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a network mount does: it is asked before the old value is replaced."""
    store, real = LocalStore(tmp_path / "store"), os.close
    store.set("a/b", b"old")
    monkeypatch.setattr(system, "tells_late", lambda device: True)

    def late(descriptor: int) -> None:
        written = os.readlink(f"/proc/self/fd/{descriptor}").endswith(LOCK)
        real(descriptor)
        if written:
            raise os_error(errno.EDQUOT)

    writes = partial(store.set, "a/b", b"new"), partial(update, store, "a/b", lambda stored: [b"new"])
    with monkeypatch.context() as patch:
        patch.setattr(os, "close", late)
        refused(StoreError, "Disk quota exceeded; free some space", *writes)
    assert files(store.root) == {"a/b": b"old"}


WAYS = ("store", "root", "x")
"""The root of a hierarchy, a link to it, and an array in it as a root of its own."""


def _made(tmp_path: Path, layout: str, size: int) -> None:
    (tmp_path / "root").symlink_to("store")
    options = {"zarr_format": 3, **LAYOUTS[layout]}
    xzarr3.create_group(tmp_path / "store", zarr_format=options["zarr_format"])
    xzarr3.create_array(tmp_path / "store", "x", shape=size, dtype="int64", **options)


def _opened(tmp_path: Path, way: str) -> xzarr3.Array:
    place, path = (tmp_path / "store" / "x", "") if way == "x" else (tmp_path / way, "x")
    return xzarr3.open_array(place, path, mode="r+")


def in_four_processes(work: Callable[[int, int], None], threads: int) -> None:
    """Run work in so many threads of each, which are told the numbers of their process and their own."""
    run_processes(*(partial(run_numbered, partial(work, process), threads) for process in range(4)))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_processes_and_threads_that_write_disjoint_elements_lose_nothing(layout: str, tmp_path: Path) -> None:
    size = 96
    _made(tmp_path, layout, size)
    expected = np.random.default_rng(3).integers(1, 2**60, size)
    order = np.random.default_rng(4).permutation(size)

    def write(process: int, thread: int) -> None:
        array = _opened(tmp_path, WAYS[process % 3])
        for at in order[process * 3 + thread :: 4 * 3].tolist():
            array.set(at, -1, threads=1)
            array.set(at, 0, threads=1)  # Which may leave a chunk or a shard without any value.
            array.set(at, expected[at], threads=1)
            assert array[at] == expected[at]

    in_four_processes(write, 3)
    assert np.array_equal(xzarr3.open_array(tmp_path / "store", "x"), expected)
    assert not any(map(is_hidden, files(tmp_path)))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_killed_writers_lose_nothing_of_the_others(layout: str, tmp_path: Path) -> None:
    size, n_processes = 64, 4
    _made(tmp_path, layout, size)
    ledger = Ledger(size)
    rng = random.Random(9)

    def work(process: int, seed: float) -> Callable[[], None]:
        def go() -> None:
            array = _opened(tmp_path, WAYS[process % 3])
            mine = list(range(process, size, n_processes))
            for serial in range(1, 10**6):
                at = mine[serial * 7 % len(mine)]
                new = int(seed * 10**6) * 10**6 + serial
                with ledger.entry(at, new):
                    array.set(at, new, threads=1)

        return go

    for _ in range(8):
        with processes(*(work(process, rng.random()) for process in range(n_processes))) as started:
            time.sleep(rng.uniform(0.05, 0.15))
            rng.shuffle(started)
            for process in started:
                assert not process.ended(), "a writer failed"
                process.kill()
                time.sleep(rng.uniform(0, 0.02))
        for at, element in enumerate(xzarr3.open_array(tmp_path / "store", "x")[...].tolist()):
            ledger.settle(at, element)
    assert (xzarr3.open_array(tmp_path / "store", "x")[...] > 0).sum() > size // 2


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("kind", ["array", "group"])
def test_processes_that_set_attributes_lose_nothing(kind: str, zarr_format: int, tmp_path: Path) -> None:
    (tmp_path / "root").symlink_to("store")
    root = xzarr3.create_group(tmp_path / "store", zarr_format=zarr_format)
    make = partial(root.create_array, shape=4, dtype="i4") if kind == "array" else root.create_group
    make("x")
    root.consolidate()

    def work(process: int, thread: int) -> None:
        node = xzarr3.open(tmp_path / ("store", "root")[process % 2], "x", mode="r+")
        for n in range(12):
            node.attrs.update({f"{process}-{thread}-{n}": n})

    in_four_processes(work, 2)
    every = itertools.product(range(4), range(2), range(12))
    expected = {f"{process}-{thread}-{n}": n for process, thread, n in every}
    assert dict(xzarr3.open(tmp_path / "store", "x").attrs) == expected
    assert dict(xzarr3.open_group(tmp_path / "store")["x"].attrs) == expected
