"""Stores on file systems of fsspec: the checks of every store, and that no failure is taken for absence."""

from __future__ import annotations

import asyncio
import contextlib
import ftplib
import functools
import itertools
import json
import os
import pickle
import threading
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pytest
import xarray as xr
from _conformance import VALUE, contents, read_back, reads
from _kinds import every_check, fork_beside, hostile_keys
from _slow import slow_but
from _things import refused
from _unprivileged import run_child
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.implementations.reference import LazyReferenceMapper

import xzarr3
from xzarr3 import LocalStore, ReadOnlyError, Store, StoreError
from xzarr3.errors import ChangedError, InvalidKeyError, StorePermissionError
from xzarr3.stores import cut, in_flight, update
from xzarr3.stores.fsspec import FsspecStore, _tag, store_for

SECRET = "hunter2-very-secret"


class Slow(AsyncFileSystem):
    """Objects of a service, asked for in an event loop.

    Each answer comes after ``latency`` seconds, and after ``awaited`` requests were under way together.
    """

    protocol = "slow"
    tells_versions = True
    under_way = most = awaited = 0
    requests: ClassVar[list[str]] = []
    places: ClassVar[dict[str, dict[str, tuple[bytes, int]]]] = {}
    versions = itertools.count()

    def __init__(self, place: str = "", latency: float = 0.0, token: str = "", **options: Any) -> None:
        super().__init__(**options)
        self.place, self.latency = place, latency
        self.objects = Slow.places.setdefault(place, {})

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("slow://").strip("/")

    async def _wait(self, what: str) -> None:
        Slow.requests.append(what)
        Slow.under_way += 1
        Slow.most = max(Slow.most, Slow.under_way)
        try:
            await asyncio.sleep(self.latency)
            for _ in range(20_000):
                if Slow.most >= Slow.awaited:
                    break
                await asyncio.sleep(0.001)
        finally:
            Slow.under_way -= 1

    def _found(self, path: str) -> tuple[bytes, int]:
        path = self._strip_protocol(path)
        if path not in self.objects:
            raise FileNotFoundError(path)
        return self.objects[path]

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        await self._wait(f"cat {path} {start} {end}")
        return self._found(path)[0][start:end]

    async def _pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        await self._wait(f"pipe {path}")
        self.objects[self._strip_protocol(path)] = bytes(value), next(Slow.versions)

    async def _rm_file(self, path: str, **_: Any) -> None:
        await self._wait(f"rm {path}")
        self._found(path)
        del self.objects[self._strip_protocol(path)]

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        await self._wait(f"info {path}")
        value, version = self._found(path)
        tag = {"ETag": f'"{version}"'} if self.tells_versions else {}
        return {"name": self._strip_protocol(path), "type": "file", "size": len(value), **tag}

    async def _ls(self, path: str, detail: bool = True, **_: Any) -> list[dict[str, Any]]:
        await self._wait(f"ls {path}")
        path = self._strip_protocol(path)
        beginning = f"{path}/" if path else ""
        found: dict[str, dict[str, Any]] = {}
        for name, (value, _version) in self.objects.items():
            if name.startswith(beginning):
                child, slash, _rest = name[len(beginning) :].partition("/")
                kind = "directory" if slash else "file"
                found[child + slash] = {"name": beginning + child, "type": kind, "size": len(value)}
        if not found:
            raise FileNotFoundError(path)
        return list(found.values())


class Mute(Slow):
    """Says nothing of versions."""

    protocol = "mute"
    tells_versions = False


class FileTransfer(LocalFileSystem):
    """The file system of fsspec for SFTP as far as a store can tell, without a server."""

    protocol = "sftp"


for kind in (Slow, Mute):
    fsspec.register_implementation(kind.protocol, kind, clobber=True)
"".encode("cp437")  # Of names in archives; children without rights cannot import it.


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    Slow.requests.clear()
    Slow.most = Slow.under_way = Slow.awaited = 0
    Failing.answer, Failing.spared = None, ()
    yield
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


def in_memory(base: Path) -> FsspecStore:
    return FsspecStore(f"memory://{uuid.uuid4().hex}/x.zarr")


def local_files(base: Path) -> FsspecStore:
    return FsspecStore(DirFileSystem(path=str(base), fs=LocalFileSystem()), uuid.uuid4().hex)


def transferred(base: Path) -> FsspecStore:
    return FsspecStore(FileTransfer(), f"{base}/{uuid.uuid4().hex}")


def slow(base: Path) -> FsspecStore:
    return FsspecStore("slow://bucket/x.zarr", storage_options={"place": f"{base}/{uuid.uuid4().hex}"})


def archive(base: Path) -> FsspecStore:
    os.makedirs(base, exist_ok=True)
    with zipfile.ZipFile(base / "x.zip", "w") as file:
        file.mkdir("a")
        for key in ("a/b", "e/f/g", "x"):
            file.writestr(key, VALUE)
    return FsspecStore(f"zip://::file://{base / 'x.zip'}")


def referenced(base: Path) -> FsspecStore:
    os.makedirs(base, exist_ok=True)
    (base / "data").write_bytes(b"#####" + VALUE + b"abcdef#####")
    (base / "x").write_bytes(VALUE)
    references = {"a/b": ["{{u}}", 5, 10], "e/f/g": VALUE.decode(), "x": [f"file://{base}/x"]}
    hostile = {"../out": "no key", "/out": "no key"}
    templates = {"u": f"file://{base / 'data'}"}
    document = {"version": 1, "templates": templates, "refs": {**references, **hostile}}
    return FsspecStore("reference://", storage_options={"fo": document})


test_fsspec_store_in_memory = every_check(in_memory)
test_fsspec_store_of_local_files = every_check(local_files)
test_fsspec_store_over_sftp = every_check(transferred)
test_fsspec_store_asynchronous = every_check(slow)
test_fsspec_store_keys_of_local_files = hostile_keys(local_files)
test_fsspec_store_keys_over_sftp = hostile_keys(transferred)
test_fsspec_store_keys_in_an_archive = hostile_keys(archive, is_read=True)
test_fsspec_store_keys_of_references = hostile_keys(referenced, is_read=True)


@pytest.mark.parametrize("make", [archive, referenced])
def test_fsspec_store_that_is_only_read(make: Callable[[Path], FsspecStore], tmp_path: Path) -> None:
    store = make(tmp_path)
    assert contents(store) == dict.fromkeys(("a/b", "e/f/g", "x"), VALUE)
    assert (*store.list_dir(""), [*store.list("e/")]) == ({"x"}, {"a/", "e/"}, ["e/f/g"])
    assert store.list_dir("a/") == ({"a/b"}, set())
    for key in contents(store):
        assert read_back(store, key) == [VALUE] * 4
        for part in ((2, 3), (-4, 2), (8, 9), (20, 1), (0, 0)):
            assert store.get(key, part) == cut(VALUE, part)
    for absent in ("none", "a", "a/b/c", "e/f"):
        assert read_back(store, absent) == [None] * 4
    for write in (lambda: store.set("n", b""), lambda: store.erase("x"), lambda: store.erase_prefix("a/")):
        refused(ReadOnlyError, None, write)


def test_fsspec_store_memory_is_not_that_of_another_process() -> None:
    """The memory stays here; what a child inherited by fork is of the past."""
    store = FsspecStore(f"memory://{uuid.uuid4().hex}")
    store.set("a/b", VALUE)
    array = xzarr3.create_array(store, "x", data=[1, 2, 3])
    data = pickle.dumps((store, array))

    def work() -> object:
        twin, there = pickle.loads(data)
        calls = [functools.partial(read, "a/b") for each in (twin, store) for read in reads(each).values()]
        for ask in (
            *calls,
            *(lambda: twin.set("a/b", b""), lambda: store.erase("a/b"), lambda: [*twin.list()]),
            *(lambda: twin.list_dir(""), lambda: there[:], lambda: there.__setitem__(0, 5)),
            lambda: pickle.loads(pickle.dumps(twin)).get("a/b"),
        ):
            refused(StoreError, "memory of another process", ask)
        return twin.identity

    assert run_child(work).checked() == store.identity
    assert store.get("a/b") == VALUE
    assert pickle.loads(data)[1][:].tolist() == [1, 2, 3]


# Files that get their names when they are complete


@pytest.mark.parametrize("make", [local_files, transferred])
def test_fsspec_store_replaces_files_whole(make: Callable[[Path], FsspecStore], tmp_path: Path) -> None:
    store = make(tmp_path)
    store.set("a/b", VALUE)
    (root,) = tmp_path.iterdir()
    with (root / "a/b").open("rb") as old:
        store.set("a/b", b"new")
        assert old.read() == VALUE
    assert os.listdir(root / "a") == ["b"]
    store.erase("a/b")
    assert os.listdir(root) == []
    assert not store.traits.durable


def test_fsspec_store_that_cannot_write_leaves_nothing(tmp_path: Path) -> None:
    class Full(FileTransfer):
        is_full = False

        def pipe_file(self, path: str, value: bytes, **_: Any) -> None:
            Path(path).write_bytes(value[:2] if self.is_full else value)
            if self.is_full:
                raise OSError(28, "no space left")

    fs = Full(skip_instance_cache=True)
    store = FsspecStore(fs, str(tmp_path / "store"))
    store.set("a/b", VALUE)
    fs.is_full = True
    for key in ("a/b", "a/c"):
        refused(StoreError, f"'{key}'.*no space left", partial(store.set, key, b"others"))
    assert contents(store) == {"a/b": VALUE}
    assert os.listdir(tmp_path / "store/a") == ["b"]


@pytest.mark.parametrize("kind", [LocalFileSystem, FileTransfer])
def test_fsspec_store_leaves_one_file_of_a_killed_writer(kind: type[LocalFileSystem], tmp_path: Path) -> None:
    store = FsspecStore(kind(), str(tmp_path / "store"))
    xzarr3.create_group(store)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "mv", lambda *paths: os._exit(7))  # Killed before the file gets its name.
        for key in ("a/b", "a/b", "c/d/e"):
            with pytest.raises(AssertionError, match="died without a result"):
                run_child(functools.partial(store.set, key, VALUE))
    assert sorted(store.leftovers()) == ["a/b.__lock", "c/d/e.__lock"]
    assert [*store.leftovers("a/")] == ["a/b.__lock"]
    assert [*store.list()] == ["zarr.json"]
    assert store.list_dir("c/d/") == (set(), set())
    for name in ("a/b.__lock", "x.__lock/y"):
        for call in (store.get, store.erase, functools.partial(store.set, value=b"")):
            refused(InvalidKeyError, "are taken", partial(call, name))
    store.set("a/b", b"next")
    assert contents(store).keys() == {"zarr.json", "a/b"}
    assert [*store.leftovers()] == ["c/d/e.__lock"]


def test_fsspec_store_does_not_take_a_locked_folder_for_an_empty_one(tmp_path: Path) -> None:
    store = FsspecStore(LocalFileSystem(), str(tmp_path / "store"))
    store.set("a/b", VALUE)
    store.set("c/d/e", VALUE)

    def work() -> None:
        for ask in (
            *(functools.partial(read, "c/d/e") for read in reads(store).values()),
            *(lambda: list(store.list()), lambda: store.list_dir("c/d/"), lambda: store.set("c/d/new", b"")),
        ):
            refused(StorePermissionError, r"c/d|list key ''", ask)

    root = tmp_path / "store"
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent, root, root / "c"):
        os.chmod(folder, 0o755)
    os.chmod(root / "c/d", 0)
    try:
        run_child(work, drop=True).checked()
    finally:
        os.chmod(root / "c/d", 0o755)


# Failures are no absence


class Failing(Slow):
    """Answers everything with an error, or with what is no answer."""

    protocol = "failing"
    answer: ClassVar[Any] = None
    spared: ClassVar[tuple[str, ...]] = ()

    async def _fail(self, path: str, *_: Any, **__: Any) -> Any:
        if isinstance(Failing.answer, BaseException):
            raise Failing.answer
        return Failing.answer() if callable(Failing.answer) else Failing.answer

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> Any:
        if path.endswith(Failing.spared):
            return await super()._cat_file(path, start, end)
        return await self._fail(path)

    _info = _ls = _pipe_file = _rm_file = _fail


fsspec.register_implementation("failing", Failing, clobber=True)


class StatusError(Exception):
    """An error of a client library, which keeps the status in one of three places."""

    def __init__(self, status: int, where: str = "status") -> None:
        super().__init__(f"{where} {status}")
        if where == "status":
            self.status = status
        else:
            botocore = {"ResponseMetadata": {"HTTPStatusCode": status}}
            self.response = botocore if where == "boto" else type("Response", (), {"status_code": status})()


def missing(cause: BaseException | None = None, context: BaseException | None = None) -> BaseException:
    error = FileNotFoundError("a/b")
    error.__context__ = context
    if cause is not None:
        error.__cause__ = cause
    return error


TABLE = KeyError("a")
TABLE.__context__ = ValueError("table")
FAILURES: list[Any] = [
    *(ConnectionError("refused"), KeyError("a/b"), missing(ConnectionError("refused"))),
    *(missing(StatusError(503)), missing(context=TimeoutError("too slow")), missing(TABLE)),
    *(ftplib.error_temp("421 Too many connections"), missing(ftplib.error_perm("500 Unknown command"))),
    *(fsspec.exceptions.FSTimeoutError("too slow"), OSError(5, "input/output"), NotImplementedError()),
    *(ValueError("what"), StatusError(503, "boto"), missing(StatusError(503, "requests"))),
    # Others do not count, and a name says nothing.
    *(StatusError(404), ftplib.error_perm("550 No such file or directory."), asyncio.CancelledError()),
    missing(type("NoSuchKey", (Exception,), {})()),
]
REFUSALS: list[Any] = [
    *(missing(ftplib.error_perm("550 Permission denied")), ftplib.error_perm("530 Log in first")),
    *(PermissionError(13, "denied"), StatusError(401), StatusError(403), missing(StatusError(403))),
    *(StatusError(403, "boto"), StatusError(403, "requests"), missing(StatusError(403, "boto"))),
]
ABSENCES: list[Any] = [
    *(missing(), missing(ftplib.error_perm("550 No such file or directory.")), missing(KeyError("a/b"))),
    *(missing(StatusError(404, where)) for where in ("status", "boto", "requests")),
    *(IsADirectoryError(21, "directory"), NotADirectoryError(20, "no directory")),
]


def named(value: Any) -> str:
    return repr(value).replace(" ", "") + ("-of-" + repr(value.__cause__) if value.__cause__ else "")


@pytest.fixture
def failing(tmp_path: Path) -> FsspecStore:
    fs = Failing(place=str(tmp_path / "store"), skip_instance_cache=True)
    return FsspecStore(fs, "bucket/x.zarr", concurrency=4)


def questions(store: Store) -> list[Callable[[], object]]:
    """All that can be asked about one key, and what is below it."""
    parts = [(3, 4), (3, None), (-3, 2), (3, 0)]
    return [
        *(functools.partial(store.get, "a/b", part) for part in parts),
        *(functools.partial(read, "a/b") for read in reads(store).values()),
        *(lambda: [*store.list("a/b/")], lambda: store.list_dir("a/b/")),
    ]


@pytest.mark.parametrize("error", FAILURES, ids=named)
def test_fsspec_store_failures_are_errors_that_name_the_key(failing: FsspecStore, error: Any) -> None:
    Failing.answer = error
    changes = (
        *(lambda: failing.set("a/b", VALUE), lambda: failing.erase("a/b")),
        *(lambda: failing.erase_prefix("a/b/"), lambda: update(failing, "a/b", lambda stored: [b"new"])),
    )
    for ask in (*questions(failing), *(() if isinstance(error, asyncio.CancelledError) else changes)):
        refused(StoreError, "a/b", ask)


@pytest.mark.parametrize("error", REFUSALS, ids=named)
def test_fsspec_store_refusals_are_errors_of_their_own(failing: FsspecStore, error: Any) -> None:
    Failing.answer = error
    for ask in [*questions(failing), lambda: failing.set("a/b", VALUE), lambda: failing.erase("a/b")]:
        refused(StorePermissionError, "a/b", ask)


@pytest.mark.parametrize("error", ABSENCES, ids=named)
def test_fsspec_store_absence_is_no_error(failing: FsspecStore, error: Any) -> None:
    Failing.answer = error
    for ask in questions(failing):
        assert ask() in (None, [], (set(), set()), False, [None], (None, "absent"))
    failing.erase("a/b")


@pytest.mark.parametrize("answer", [lambda: None, lambda: "text", lambda: 5, dict, lambda: [None]])
def test_fsspec_store_takes_no_other_answers(failing: FsspecStore, answer: Any) -> None:
    Failing.answer = staticmethod(answer).__func__
    for ask in (lambda: failing.get("a/b"), lambda: failing.open("a/b"), lambda: failing.get("a/b", (2, 3))):
        refused(StoreError, "a/b", ask)


@pytest.mark.parametrize("error", FAILURES[:6], ids=named)
def test_fsspec_store_failures_are_no_fill_values(failing: FsspecStore, error: Any) -> None:
    place = FsspecStore(Slow(place=failing._fs.place, skip_instance_cache=True), "bucket/x.zarr")
    xzarr3.create_array(place, "x", data=np.arange(1, 7), chunks=(2,), fill_value=0)
    Failing.answer, Failing.spared = error, ("zarr.json",)
    array = xzarr3.open_array(failing, "x")
    for selection in (slice(None), 2):
        with pytest.raises(StoreError, match="x/c/"):
            array[selection]
    Failing.answer = FileNotFoundError("gone")
    assert array[:].tolist() == [0] * 6


def test_fsspec_store_ignores_what_a_caller_is_handling(tmp_path: Path) -> None:
    stores = [FsspecStore("memory://b"), FsspecStore(LocalFileSystem(), str(tmp_path))]
    try:
        raise ConnectionError("of somebody else")
    except ConnectionError:
        assert [store.get("none") for store in stores] == [None, None]


class Misranging(Slow):
    """Does with ranges what servers do to them."""

    protocol = "misranging"
    way: ClassVar[str] = ""

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        whole = await super()._cat_file(path)
        if (start is None and end is None) or Misranging.way == "ignores":
            return whole
        if Misranging.way == "416" and (start or 0) >= len(whole):
            raise StatusError(416)
        part = whole[start:end]
        return part[: len(part) // 2] if Misranging.way == "short" else part


@pytest.mark.parametrize("way", ["ignores", "short", "416", ""])
def test_fsspec_store_parts_are_right_or_an_error(tmp_path: Path, way: str) -> None:
    store = FsspecStore(Misranging(place=str(tmp_path / "store"), skip_instance_cache=True), "bucket")
    for value in (VALUE, b"", b"1"):
        Misranging.way = ""
        store.set("a", value)
        Misranging.way = way
        wrong = 0
        for part in itertools.product(range(-12, 13), (None, *range(13))):
            try:
                assert store.get("a", part) == cut(value, part), part
            except StoreError:
                wrong += 1
        assert (wrong > 0) is (way in ("ignores", "short") and len(value) > (way == "ignores"))


# Listings


class Remembering(Slow):
    """Remembers listings, as most file systems of object storage do, and lists markers of directories."""

    protocol = "remembering"

    async def _ls(self, path: str, detail: bool = True, **options: Any) -> list[dict[str, Any]]:
        path = self._strip_protocol(path)
        if path not in self.dircache:
            markers = [{"name": f"{path}{end}", "type": "file", "size": 0} for end in ("/", "/marker/")]
            self.dircache[path] = [*markers, *await super()._ls(path, detail)]
        return self.dircache[path]

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        for info in await self._ls(path.rpartition("/")[0]):
            if info["name"] == path:
                return info
        raise FileNotFoundError(path)

    def invalidate_cache(self, path: str | None = None) -> None:
        self.dircache.clear()


def test_fsspec_store_lists_are_not_of_the_past(tmp_path: Path) -> None:
    store = FsspecStore(Remembering(place=str(tmp_path)), "bucket")
    other = FsspecStore(Slow(place=str(tmp_path)), "bucket")
    other.set("a/b", VALUE)
    assert [*store.list()] == ["a/b"]
    assert store.list_dir("a/") == ({"a/b"}, {"a/marker/"})
    other.set("a/c", VALUE)
    other.set("d", b"longer than before")
    assert sorted(store.list()) == ["a/b", "a/c", "d"]
    assert store.getsize("d") == 18
    other.set("d", b"short")
    assert read_back(store, "d") == [b"short"] * 4
    other.erase("a/b")
    assert store.open("a/b") is None


def test_fsspec_store_is_empty_where_its_root_is_not_there(tmp_path: Path) -> None:
    for store in (
        FsspecStore(LocalFileSystem(), str(tmp_path / "none")),
        FsspecStore("memory://none"),
        FsspecStore("slow://none", storage_options={"place": str(tmp_path / "none")}),
    ):
        assert list(store.list()) == []
        assert store.list_dir("") == (set(), set())
        store.erase_prefix("a/")
        assert not (tmp_path / "none").exists()


# Many at a time


@pytest.mark.parametrize("concurrency", [None, 7, 1])
def test_fsspec_store_sends_requests_at_once_within_a_bound(tmp_path: Path, concurrency: int | None) -> None:
    store = FsspecStore(Slow(place=str(tmp_path)), "b", concurrency=concurrency)
    bound = 64 if concurrency is None else concurrency
    assert store.concurrency == bound
    keys = [f"c/{at}" for at in range(130 if concurrency is None else 40)]
    Slow.awaited = bound
    store.set_values((key, key.encode()) for key in keys)
    with ThreadPoolExecutor(3) as pool:
        jobs = [pool.submit(store.get_values, keys) for _ in range(3)]
        for job in jobs:
            assert job.result(timeout=120) == [key.encode() for key in keys]
    assert Slow.most == bound
    value = store.open("c/5")
    assert value is not None
    Slow.most, Slow.awaited = 0, min(bound, 15)
    assert value.read_ranges([0, 1, 2] * 5, [1, 1, 1] * 5) == [b"c", b"/", b"5"] * 5
    assert Slow.most == min(bound, 15)


def test_fsspec_store_uses_a_file_system_that_is_not_for_threads_by_one() -> None:
    class Single(MemoryFileSystem):
        protocol = "single"
        store: ClassVar[dict[str, Any]] = {}
        inside = 0

        def cat_file(self, *given: Any, **options: Any) -> bytes:
            assert Single.inside == 0, "two threads at once"
            Single.inside += 1
            time.sleep(0.002)
            Single.inside -= 1
            return super().cat_file(*given, **options)

    fs = Single(skip_instance_cache=True)
    stores = [FsspecStore(fs, "/a"), FsspecStore(fs, "/a")]
    stores[0].set("x", VALUE)
    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(stores[at % 2].get, "x") for at in range(30)]
        assert [job.result(timeout=120) for job in jobs] == [VALUE] * 30


@pytest.mark.slow
@pytest.mark.parametrize("ready", [True, False])
def test_fsspec_store_in_a_forked_child(tmp_path: Path, ready: bool) -> None:
    """The loop is in the midst of something when the child is made."""
    options = {"place": str(tmp_path), "latency": 0.001}
    store = FsspecStore(Slow(**options), "b") if ready else FsspecStore("slow://b", storage_options=options)
    keys = [f"a/{at}" for at in range(20)]
    store.set_values((key, VALUE) for key in keys)
    data = pickle.dumps(store)

    def work() -> object:
        twin = pickle.loads(data)
        store.set("child", b"of the fork")
        twin.set("twin", b"by pickle")
        assert [store.get("twin"), twin.get("child")] == [b"by pickle", b"of the fork"]
        return store.get_values(keys) == [VALUE] * 20, store.identity == twin.identity

    assert fork_beside(lambda: store.get_values(keys), work, 3) == [(True, True)] * 3


# What stands for a store


def test_store_for_finds_the_store(tmp_path: Path) -> None:
    local = LocalFileSystem()
    for given in (
        fsspec.get_mapper(f"file://{tmp_path}/x"),
        DirFileSystem(path="x", fs=DirFileSystem(path=str(tmp_path), fs=local)),
        fsspec.FSMap("x", DirFileSystem(path=str(tmp_path), fs=local)),
        fsspec.FSMap(f"{tmp_path}/x", AsyncFileSystemWrapper(local, asynchronous=True)),
    ):
        assert store_for(given) == LocalStore(tmp_path / "x")
    store = store_for(fsspec.get_mapper("slow://b/x", place=str(tmp_path)), read_only=True)
    assert (type(store), repr(store), store.read_only) == (FsspecStore, "<FsspecStore 'slow://b/x'>", True)
    joined = FsspecStore(fsspec.get_mapper("slow://b/x", place=str(tmp_path)), "y/")
    assert repr(joined) == "<FsspecStore 'slow://b/x/y'>"
    for wrong in (5, object(), None, {}):
        refused(TypeError, "mapper", partial(store_for, wrong))
    refused(TypeError, "storage_options", lambda: FsspecStore(local, str(tmp_path), storage_options={"a": 1}))
    for number in (0, -1, 1.5, "4"):
        with pytest.raises(ValueError, match=r"concurrency.*at least 1"):
            FsspecStore(local, str(tmp_path), concurrency=number)


def test_fsspec_store_makes_asynchronous_file_systems_again(tmp_path: Path) -> None:
    fs = Slow(place=str(tmp_path), asynchronous=True)
    for given, path in ((fs, "b"), (DirFileSystem(path="b", fs=fs, asynchronous=True), "")):
        store = FsspecStore(given, path)
        store.set("a", VALUE)
        assert store.get("a") == VALUE


@pytest.mark.parametrize(
    ("url", "options", "text"),
    [
        ("nosuch://a/b", {}, "nosuch.*correct the URL"),
        ("webdav://a/b", {}, "(?i)webdav4.*install the package"),
        ("zip://::file:///none.zip", {}, r"none\.zip"),
        ("reference://", {"fo": "/none.json"}, r"none\.json"),
    ],
)
def test_fsspec_store_says_what_it_cannot_open(url: str, options: dict[str, Any], text: str) -> None:
    refused(StoreError, text, lambda: FsspecStore(url, storage_options=options))


def test_fsspec_store_shows_no_secrets(tmp_path: Path) -> None:
    Failing.answer = ConnectionError(f"cannot reach https://user:{SECRET}@host/x?sig={SECRET} now")
    given = {"place": str(tmp_path), "token": SECRET}
    references = {"fo": {"a/b": [f"https://u:{SECRET}@h/x?s={SECRET}", 1, 2]}, "fs": {"failing": given}}
    for store in (
        FsspecStore(Failing(**given), "bucket/x.zarr"),
        FsspecStore("failing://bucket/x", storage_options=given),
        FsspecStore("dir::failing://b", storage_options={"failing": given}),
        FsspecStore("reference://", storage_options=references),
    ):
        shown = [repr(store), str(store), repr(store.identity), repr(store.__dask_tokenize__())]
        for ask in questions(store):
            try:
                shown.append(repr(ask()))
            except StoreError as error:
                shown.append(str(error))
        assert SECRET not in "\n".join(shown)
        assert pickle.loads(pickle.dumps(store)).identity == store.identity
    for place in (f"user:{SECRET}@a?token={SECRET}", f"user:se@{SECRET}@a", f"::ftp://user:{SECRET}@a.tar"):
        with pytest.raises(StoreError) as caught:
            FsspecStore(f"nosuch://{place}", storage_options={"password": SECRET})
        assert SECRET not in str(caught.value)


def test_fsspec_store_identities_are_those_of_places(tmp_path: Path) -> None:
    def identity(**options: Any) -> object:
        return FsspecStore("slow://b/x", storage_options={"place": str(tmp_path), **options}).identity

    here = FsspecStore(Slow(place=str(tmp_path)), "b/x")
    assert identity() == identity() == here.identity
    assert identity(place=f"{tmp_path}/other") != identity()
    assert FsspecStore("memory://a").identity != FsspecStore("memory://b").identity
    assert run_child(lambda: pickle.loads(pickle.dumps(here)).identity).checked() == here.identity


@pytest.mark.parametrize("kind", ["simplecache", "filecache", "blockcache"])
def test_fsspec_store_refuses_caches_of_fsspec(kind: str) -> None:
    """They leave what a failed download has written, and take a failure to look for absence."""
    reference = {"fo": {"a": ["memory://b/a"]}, "fs": fsspec.filesystem(kind, target_protocol="memory")}
    for url, options in ((f"{kind}::memory://b", {}), ("reference://", reference)):
        with pytest.raises(StoreError, match=r"cache of fsspec.*use CacheStore"):
            FsspecStore(url, storage_options=options)


# References


@pytest.mark.parametrize(
    "reference",
    [
        *(["file://{}/none", 0, 5], ["file://{}/none"], ["file://{}/data", 5, 20], ["file://{}/data", 5, -2]),
        *(["ftp://host/data", 5, 2], ["file://{}/data", 50, 2], ["file://{}/data", "x", 2]),
        *(["file://{}/data", 0.5, 2], ["file://{}/data", 5], ["file://{}/data", 5, None], [None, 5, 2], []),
    ],
    ids=repr,
)
def test_fsspec_store_references_that_lead_nowhere_are_errors(tmp_path: Path, reference: Any) -> None:
    (tmp_path / "data").write_bytes(VALUE)
    given = [part.format(tmp_path) if isinstance(part, str) else part for part in reference]
    fs = fsspec.filesystem("reference", fo={"a/b": given}, remote_protocol="file")
    for store in (FsspecStore(fs), store_for(fsspec.FSMap("", fs, missing_exceptions=(Exception,)))):
        for read, *asked in ((store.get,), (store.get, (1, None)), (store.open,), (store.exists,)):
            refused(StoreError, "a/b", partial(read, "a/b", *asked))
        assert store.get("a/c") is None


def test_fsspec_store_references_that_cannot_be_reached_are_errors(tmp_path: Path) -> None:
    for error, kind in ((ConnectionError("refused"), StoreError), (StatusError(403), StorePermissionError)):
        Failing.answer = error
        fs = Failing(place=str(tmp_path), skip_instance_cache=True)
        store = FsspecStore("reference://", storage_options={"fo": {"a/b": ["failing://x", 2, 30]}, "fs": fs})
        for ask in questions(store)[:-2]:
            refused(kind, "a/b", ask)


def test_fsspec_store_references_in_a_document(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(VALUE)
    references = {"a/b": [f"file://{tmp_path}/data", 2, 5], "c": "base64:AAEC", "d": '{"a": 2}', "e": "text"}
    (tmp_path / "refs.json").write_text(json.dumps({"version": 1, "refs": references}))
    store = FsspecStore("reference://", storage_options={"fo": f"{tmp_path}/refs.json"})
    assert contents(store) == {"a/b": b"23456", "c": b"\0\1\2", "d": b'{"a": 2}', "e": b"text"}
    twin = pickle.loads(pickle.dumps(store))
    assert (contents(twin), twin.identity) == (contents(store), store.identity)
    assert run_child(lambda: contents(pickle.loads(pickle.dumps(store)))).checked() == contents(store)
    below = FsspecStore(fsspec.FSMap("a", fsspec.filesystem("reference", fo=f"{tmp_path}/refs.json")))
    assert contents(below) == {"b": b"23456"}


def tables(base: Path, found: dict[int, Any]) -> LazyReferenceMapper:
    """What fsspec gives of references that lie in Parquet files, of which the contents are told here."""
    base.mkdir(exist_ok=True)
    array = {"shape": [6, 4], "chunks": [2, 2], "zarr_format": 2}
    metadata = {".zgroup": {"zarr_format": 2}, "g/.zgroup": {"zarr_format": 2}, "v/.zarray": array}
    (base / ".zmetadata").write_text(json.dumps({"metadata": metadata, "record_size": 4}))
    references = LazyReferenceMapper(str(base))
    references.setup()

    def open_refs(field: str, record: int) -> Any:
        table = found.get(record, FileNotFoundError(f"refs.{record}.parq"))
        if isinstance(table, Exception):
            raise table
        return table

    references.open_refs = open_refs
    return references


def test_fsspec_store_references_in_tables(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(VALUE)
    url = f"file://{tmp_path}/data"
    table = {
        "path": np.array([url, None, float("nan"), url], dtype=object),
        "offset": np.array([2, 0, 0, 0]),
        "size": np.array([3, 0, 0, 0]),
        "raw": np.array([None, b"raw", None, None], dtype=object),
    }
    store = FsspecStore(fsspec.filesystem("reference", fo={"x": ""}, remote_protocol="file"))
    store._fs.references = tables(tmp_path / "refs", {0: table})
    assert [store.get(key) for key in ("v/0.0", "v/0.1", "v/1.0", "v/1.1")] == [b"234", b"raw", None, VALUE]
    for absent in ("v/2.0", "v/x", "v/zarr.json", "w/0.0", "v", "v/-1.0"):
        assert store.get(absent) is None, absent
    assert json.loads(bytes(store.get("v/.zarray") or b""))["shape"] == [6, 4]
    assert {"v/0.0", "v/0.1", "v/1.1"} <= {*store.list()}
    assert "v/1.0" not in {*store.list()}
    assert store.list_dir("")[1] == {"g/", "v/"}
    for broken in (ValueError("corrupt"), TypeError("x"), PermissionError(13, "no"), ConnectionError(), None):
        store._fs.references = tables(tmp_path / "refs", {0: broken})
        refused(StoreError, r"v/0\.0", partial(store.get, "v/0.0"))


def test_fsspec_store_references_from_elsewhere_name_no_local_files(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.write_bytes(VALUE)
    elsewhere = FsspecStore("slow://b", storage_options={"place": str(tmp_path / "s")})
    references = {"k": [f"file://{private}"], "m": [str(private)], "n": [f"local://{private}", 1, 2]}
    document = json.dumps({"version": 1, "refs": references})
    elsewhere.set("ref.json", document.encode())
    (tmp_path / "ref.json").write_text(document)

    def store(**options: Any) -> FsspecStore:
        given = {"fo": "slow://b/ref.json", "target_options": {"place": str(tmp_path / "s")}}
        return FsspecStore("reference://", storage_options={**given, **options})

    for options in ({}, {"remote_protocol": "memory"}, {"fs": {"memory": {}}}):
        for read in reads(store(**options)).values():
            for key in "kmn":
                refused(StoreError, f"'{key}'", partial(read, key))
    for trusted in ({"remote_protocol": "file"}, {"fs": {"file": {}}}, {"fs": LocalFileSystem()}):
        assert store(**trusted).get("m") == VALUE
    assert FsspecStore("reference://", storage_options={"fo": f"{tmp_path}/ref.json"}).get("m") == VALUE


def test_fsspec_store_references_to_netcdf(tmp_path: Path) -> None:
    scipy_io = pytest.importorskip("scipy.io")
    kerchunk = pytest.importorskip("kerchunk.netCDF3")
    path = tmp_path / "x.nc"
    with scipy_io.netcdf_file(path, "w") as file:
        file.createDimension("y", 30)
        file.createDimension("x", 4)
        file.createVariable("t", "f8", ("y", "x"))[:] = np.random.default_rng(5).normal(size=(30, 4))
    references = json.loads(json.dumps(kerchunk.NetCDF3ToZarr(str(path)).translate()))
    options = {"fo": references, "remote_protocol": "file"}
    found = xr.open_dataset("reference://", engine="xzarr3", storage_options=options).load()
    with xr.open_dataset(path, engine="scipy") as expected:
        xr.testing.assert_identical(found, expected.load())
    path.write_bytes(path.read_bytes()[:-6])
    broken = xzarr3.open_dataset(FsspecStore("reference://", storage_options=options), consolidated=False)
    refused(StoreError, r"t/0\.0.*asked for|t/0\.0.*reference is to 960 bytes, found 954", broken.load)


# HTTP

BODY = bytes(range(250)) * 40


def test_store_for_http_is_an_object_store_or_reads_by_fsspec(fault_server: Any) -> None:
    pytest.importorskip("aiohttp")
    pytest.importorskip("obstore")
    fault_server.put("/b/x/a", VALUE)

    def store(**options: Any) -> Store:
        fs = fsspec.filesystem("http", skip_instance_cache=True, **options)
        return store_for(fs.get_mapper(f"{fault_server.url}/b/x"))

    plain, signed = store(), store(headers={"Authorization": "Basic eA=="})
    assert (type(plain).__name__, type(signed)) == ("ObjectStore", FsspecStore)
    for each in (plain, signed, pickle.loads(pickle.dumps(signed))):
        assert read_back(each, "a") == [VALUE] * 4
        assert [each.get("a", (2, 3)), each.get("b")] == [b"234", None]
        assert not each.writeable
    assert fault_server.log()[-1]["signed"]
    assert not signed.listable


@pytest.mark.parametrize("fault", ["short", "wrong-range", "narrow-range", "ignore-range"])
def test_fsspec_store_answers_of_the_web_are_checked(fault_server: Any, fault: str) -> None:
    pytest.importorskip("aiohttp")
    fault_server.put("/b/x/a", BODY)
    place = f"{fault_server.url}/b/x/a"
    references = {"a": [place], "part": [f"{place}?token={SECRET}", 100, 100], "none": [f"{place}/no", 2, 3]}
    options = {"fo": references, "remote_protocol": "http"}
    store = FsspecStore("reference://", storage_options=options)
    for key in ("a", "part"):
        fault_server.fault(fault, "/b/x/a")
        with contextlib.suppress(StoreError):
            found = store.get(key)
            assert fault == "wrong-range" or bytes(found or b"") == (BODY if key == "a" else BODY[100:200])
        fault_server.clear_faults()
        assert store.get(key) == (BODY if key == "a" else BODY[100:200])
    refused(StoreError, "none", lambda: store.get("none"))


# One version of a value


Replaced = tuple[FsspecStore, Callable[..., None]]


@pytest.fixture(params=["slow", "mute", "local"])
def replaced(request: pytest.FixtureRequest, tmp_path: Path) -> Replaced:
    """A store, and what stores a value in it, the one after next after so many answers."""
    if request.param == "local":
        store = FsspecStore(LocalFileSystem(), str(tmp_path / "x"), concurrency=4)
    else:
        fs = (Mute if request.param == "mute" else Slow)(place=str(tmp_path), skip_instance_cache=True)
        store = FsspecStore(fs, "b")
    writer, ask, lock = store.with_traits(), store._ask, threading.Lock()

    def replace(key: str, old: bytes, new: bytes, after: int) -> None:
        store._ask = ask
        writer.set(key, old)
        answers = itertools.count(1)

        def counting(*args: Any, **options: Any) -> Any:
            found = ask(*args, **options)
            with lock:
                if next(answers) == after:
                    writer.set(key, new)
            return found

        store._ask = counting

    return store, replace


@pytest.mark.parametrize("after", range(1, 9))
def test_fsspec_store_parts_are_of_one_version(replaced: Replaced, after: int) -> None:
    store, replace = replaced
    for part in (None, (-10, 10), (0, 10)):
        replace("a", bytes([1]) * 5000, bytes([2]) * 5000, after)
        found: list[bytes] = []
        with contextlib.suppress(ChangedError):
            value = store.open("a", part)
            found.append(bytes(value.read(-10, 10)))
            found += map(bytes, value.read_ranges([0, 1000], [10, 10]))
            found.append(bytes(value.read(2000, 10)))
        assert len({*found}) <= 1, "parts of two versions"
        assert found or not store.with_traits()._names & {"file", "mute"}


@pytest.mark.parametrize("after", slow_but(range(1, 6), 1, 3))
@pytest.mark.parametrize("sizes", [(5000, 30), (30, 5000)])
def test_fsspec_store_parts_of_values_that_become_shorter_or_longer(
    replaced: Replaced, after: int, sizes: tuple[int, int]
) -> None:
    store, replace = replaced
    old, new = bytes([1]) * (sizes[0] - 20) + b"a" * 20, bytes([2]) * (sizes[1] - 20) + b"b" * 20
    for part in ((-20, None), (-20, 5), (5, 2**40), (-(2**40), None), (0, 25)):
        expected = [bytes(cut(value, part)) for value in (old, new)]
        replace("a", old, new, after)
        assert store.get("a", part) in expected
        assert store.get("a", part) in expected


def test_fsspec_store_reads_shard_indexes_once(tmp_path: Path) -> None:
    store = FsspecStore(Slow(place=str(tmp_path)), "b")
    data = np.arange(64, dtype="i4")
    array = xzarr3.create_array(store, "x", data=data, shards=(64,), chunks=(2,), compressors=None)
    Slow.requests.clear()
    assert [array[at] for at in range(0, 64, 4)] == [*range(0, 64, 4)]
    asked = [request for request in Slow.requests if request.startswith("cat b/x/c/0")]
    assert len(asked) == 17, "the index and 16 chunks"
    array[:] = data[::-1].copy()
    assert array[5] == 58


def test_fsspec_store_knows_what_tells_versions_apart() -> None:
    for info in ({"ETag": '"x"'}, {"etag": "x", "mtime": 1.7e9}, {"generation": 5}):
        assert _tag(info) is not None
    for info in ({"ETag": 'W/"x"'}, {"ETag": "", "generation": None}, {"mtime": 1.7e9}):
        assert _tag(info) is None


def test_fsspec_store_bounds_the_bytes_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FsspecStore(Slow(place=str(tmp_path)), "b")
    keys = [f"c/{at}" for at in range(20)]
    store.set_values((key, bytes(1000)) for key in keys)

    def most(awaited: int) -> int:
        Slow.most, Slow.awaited = 0, awaited
        store.get_values(keys)
        return Slow.most

    before = in_flight.get_limit()
    try:
        in_flight.set_limit(450)
        assert most(1) == 1
        in_flight.set_limit(5000)
        for _ in range(60):  # What values are like is learned from those that came.
            most(1)
        assert most(5) == 5
    finally:
        in_flight.set_limit(before)
    assert most(6) > 5
    assert in_flight._budget.used == 0
