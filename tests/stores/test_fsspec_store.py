"""Stores on file systems of fsspec: conformance, and that no failure is ever taken for absence."""

from __future__ import annotations

import asyncio
import contextlib
import ftplib
import functools
import hashlib
import json
import multiprocessing
import os
import pickle
import threading
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import dask.array as da
import fsspec
import numpy as np
import pytest
import xarray as xr
from _conformance import VALUE, contents, read_back
from _kinds import READS, conformance, fork_beside, reading
from _opening import opening
from _unprivileged import run_child
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.implementations.reference import LazyReferenceMapper

import xzarr3
from xzarr3 import LocalStore, Store, StoreError
from xzarr3.errors import ChangedError, InvalidKeyError, StorePermissionError
from xzarr3.stores import cut, in_flight
from xzarr3.stores.fsspec import web as fsspec_web
from xzarr3.stores.fsspec.files import info_of
from xzarr3.stores.fsspec.store import FsspecStore, store_for

SECRET = "hunter2-very-secret"


class Slow(AsyncFileSystem):
    """Objects in files of a directory, asked for in an event loop.

    Each answer comes after ``latency`` seconds, and after ``awaited`` requests were under way together.
    """

    protocol = "slow"
    under_way = 0
    most = awaited = 0
    requests: ClassVar[list[str]] = []
    tells: ClassVar[tuple[str, ...]] = ("ETag",)

    def __init__(self, place: str = "", latency: float = 0.0, token: str = "", **options: Any) -> None:
        super().__init__(**options)
        self.place = place
        self.latency = latency

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("slow://").strip("/")

    def _file(self, path: str) -> str:
        return os.path.join(self.place, hashlib.sha256(path.encode(errors="surrogatepass")).hexdigest())

    async def _wait(self, what: str) -> None:
        cls = Slow
        cls.requests.append(what)
        cls.under_way += 1
        cls.most = max(cls.most, cls.under_way)
        try:
            await asyncio.sleep(self.latency)
            for _ in range(20_000):
                if cls.most >= cls.awaited:
                    break
                await asyncio.sleep(0.001)
        finally:
            cls.under_way -= 1

    def _read(self, file: str) -> tuple[str, bytes]:
        with open(file, "rb") as opened:
            return pickle.load(opened)  # type: ignore[no-any-return]

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        await self._wait(f"cat {path} {start} {end}")
        return self._read(self._file(self._strip_protocol(path)))[1][start:end]

    async def _pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        await self._wait(f"pipe {path}")
        os.makedirs(self.place, exist_ok=True)
        path = self._strip_protocol(path)
        temporary = f"{self._file(path)}.{uuid.uuid4().hex}"
        with open(temporary, "wb") as opened:
            pickle.dump((path, bytes(value)), opened)
        os.replace(temporary, self._file(path))

    async def _rm_file(self, path: str, **_: Any) -> None:
        await self._wait(f"rm {path}")
        os.unlink(self._file(self._strip_protocol(path)))

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        await self._wait(f"info {path}")
        path = self._strip_protocol(path)
        found = {"name": path, "type": "file", "size": len(self._read(self._file(path))[1])}
        status = os.stat(self._file(path))
        names = {"ETag": f'"{status.st_ino}-{status.st_mtime_ns}"', "mtime": status.st_mtime}
        return {**found, **{name: names[name] for name in self.tells}}

    async def _ls(self, path: str, detail: bool = True, **_: Any) -> list[dict[str, Any]]:
        await self._wait(f"ls {path}")
        path = self._strip_protocol(path)
        beginning = f"{path}/" if path else ""
        found: dict[str, dict[str, Any]] = {}
        for file in os.listdir(self.place) if os.path.isdir(self.place) else []:
            try:
                name, value = self._read(os.path.join(self.place, file)) if "." not in file else ("", b"")
            except FileNotFoundError:
                continue
            if name.startswith(beginning) and name:
                child, slash, _rest = name[len(beginning) :].partition("/")
                kind = "directory" if slash else "file"
                found[child + slash] = {"name": beginning + child, "type": kind, "size": len(value)}
        if not found:
            raise FileNotFoundError(path)
        return list(found.values())


fsspec.register_implementation("slow", Slow, clobber=True)
"".encode("cp437")  # Of names in archives; children without rights cannot import it.


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    Slow.requests.clear()
    Slow.most = Slow.under_way = Slow.awaited = 0
    yield
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


UNVERSIONED = {"stamps": False, "holds_versions": False}


class TestMemory(conformance(lambda base: FsspecStore(f"memory://{uuid.uuid4().hex}/x.zarr"), stamps=False)):  # type: ignore[misc]
    def test_value_beside_prefix_of_the_same_name(self, store: Store) -> None:
        """It is the file system that lets one of the two be."""
        store.set("a/b", VALUE)
        with pytest.raises(StoreError, match="a/b/c"):
            store.set("a/b/c", b"below")
        assert contents(store) == {"a/b": VALUE}

    def test_pickling_to_another_process(self, store: Store) -> None:
        """The memory stays here; what a child inherited by fork is of the past."""
        store.set("a/b", VALUE)
        array = xzarr3.create_array(store, "x", data=[1, 2, 3])
        data = pickle.dumps((store, array))

        def work() -> object:
            twin, there = pickle.loads(data)
            for ask in (
                lambda: twin.get("a/b"),
                lambda: twin.exists("a/b"),
                lambda: twin.reader().open("a/b"),
                lambda: twin.set("a/b", b""),
                lambda: twin.erase("a/b"),
                lambda: list(twin.list()),
                lambda: twin.list_dir(""),
                lambda: there[:],
                lambda: there.__setitem__(0, 5),
                lambda: pickle.loads(pickle.dumps(twin)).get("a/b"),
                lambda: store.get("a/b"),
                lambda: store.set("a/b", b""),
                lambda: store.erase("a/b"),
            ):
                with pytest.raises(StoreError, match="memory of another process"):
                    ask()
            assert "memory" in repr(twin)
            return twin.identity

        assert run_child(work).checked() == store.identity
        assert store.get("a/b") == VALUE
        assert pickle.loads(data)[1][:].tolist() == [1, 2, 3]


def test_memory_of_an_instance_is_refused() -> None:
    fs = MemoryFileSystem(global_store=False, skip_instance_cache=True)
    for given in (fs, DirFileSystem(path="/some/place", fs=fs)):
        with pytest.raises(StoreError, match="global_store=False; make it without"):
            FsspecStore(given, "x.zarr")


def local_files(base: Path) -> FsspecStore:
    return FsspecStore(DirFileSystem(path=str(base), fs=LocalFileSystem()), "store")


TestLocalFiles = conformance(local_files, nests=False, **UNVERSIONED)


def test_only_whole_values_get_the_name(tmp_path: Path) -> None:
    store = local_files(tmp_path)
    store.set("a/b", VALUE)
    with (tmp_path / "store/a/b").open("rb") as old:
        store.set("a/b", b"new")
        assert old.read() == VALUE
    assert os.listdir(tmp_path / "store/a") == ["b"]
    store.erase("a/b")
    assert os.listdir(tmp_path / "store") == []


def test_a_write_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    class Full(LocalFileSystem):
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
        with pytest.raises(StoreError, match=f"'{key}'.*no space left"):
            store.set(key, b"others")
    assert contents(store) == {"a/b": VALUE}
    assert os.listdir(tmp_path / "store/a") == ["b"]


def test_leftovers_are_no_keys(tmp_path: Path) -> None:
    store = local_files(tmp_path)
    store.set("a/b", VALUE)
    file = tmp_path / "store/a/.xzarr3-partial-old"
    file.write_bytes(b"half")
    os.utime(file, (0, 0))
    assert contents(store) == {"a/b": VALUE}
    assert store.list_dir("a/") == ({"a/b"}, set())
    with pytest.raises(InvalidKeyError):
        store.get("a/.xzarr3-partial-old")


class FileTransfer(LocalFileSystem):
    """The file system of fsspec for SFTP as far as a store can tell, without a server."""

    protocol = "sftp"

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        found = super().info(path, **options)
        return {**found, "mtime": datetime.fromtimestamp(found["mtime"], tz=UTC)}


@pytest.mark.parametrize("kind", [LocalFileSystem, FileTransfer])
def test_sweep_removes_what_killed_writers_left(kind: type[LocalFileSystem], tmp_path: Path) -> None:
    store = FsspecStore(kind(), str(tmp_path / "store"))
    xzarr3.create_group(store)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "mv", lambda *paths: os._exit(7))  # Killed before the file gets its name.
        for key in ("a/b", "c/d/e"):
            with pytest.raises(AssertionError, match="died without a result"):
                run_child(functools.partial(store.set, key, VALUE))
    names = [name for name, _ in store.leftovers()]
    assert [name.rpartition("/")[0] for name in sorted(names)] == ["a", "c/d"]
    store.set("a/b", VALUE)
    store.sweep()
    assert len(list(store.leftovers())) == 2, "a writer may still be at work"
    (tmp_path / "store/a/.xzarr3-partial-lock").touch()
    for folder, _, files in os.walk(tmp_path):
        for name in files:
            os.utime(os.path.join(folder, name), (0, 0))
    assert sorted(store.leftovers("a/")) == [(name, True) for name in names if name.startswith("a/")]
    report = xzarr3.check(store)
    assert [finding.code for finding in report.findings].count("key-temporary") == 2
    store.sweep("a/")
    assert [name for name, _ in store.leftovers()] == [name for name in names if name.startswith("c/")]
    store.sweep()
    assert sorted(os.listdir(tmp_path / "store")) == ["a", "zarr.json"]
    assert sorted(os.listdir(tmp_path / "store/a")) == [".xzarr3-partial-lock", "b"]


def test_folder_that_may_not_be_read_is_no_empty_one(tmp_path: Path) -> None:
    store = local_files(tmp_path)
    store.set("a/b", VALUE)
    store.set("c/d/e", VALUE)

    def work() -> None:
        for ask in (
            lambda: list(store.list()),
            lambda: store.list_dir("c/d/"),
            lambda: store.get("c/d/e"),
            lambda: store.exists("c/d/none"),
            lambda: store.set("c/d/new", b""),
            lambda: store.reader().open("c/d/e"),
        ):
            with pytest.raises(StorePermissionError, match=r"c/d|list key ''"):
                ask()

    root = tmp_path / "store"
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent, root, root / "c"):
        os.chmod(folder, 0o755)
    os.chmod(root / "c/d", 0)
    try:
        run_child(work, drop=True).checked()
    finally:
        os.chmod(root / "c/d", 0o755)


def archive(values: dict[str, bytes], base: Path) -> FsspecStore:
    os.makedirs(base / "store", exist_ok=True)
    with zipfile.ZipFile(base / "store/x.zip", "w") as file:
        file.mkdir("a")
        for key, value in values.items():
            file.writestr(key, value)
    return FsspecStore(f"zip://::file://{base / 'store/x.zip'}")


def referenced(values: dict[str, bytes], base: Path) -> FsspecStore:
    os.makedirs(base / "store", exist_ok=True)
    (base / "store/data").write_bytes(b"#####" + VALUE + b"abcdef#####")
    (base / "store/x").write_bytes(b"x")
    where = f"file://{base / 'store/data'}"
    references = {
        "a/b": ["{{u}}", 5, 10],
        "a/c/d": "",
        "e/f/g": [where, 15, 6],
        "\N{SNOWFLAKE}/e\u0301": [f"file://{base / 'store/x'}"],
        "../out": "no key",
        "/out": "no key",
    }
    document = {"version": 1, "templates": {"u": where}, "refs": references}
    return FsspecStore("reference://", storage_options={"fo": document})


TestAsynchronous = conformance(
    lambda base: FsspecStore("slow://bucket/x.zarr", storage_options={"place": str(base / "store")}),
    **UNVERSIONED,
)
TestArchive = reading(archive)
TestReferences = reading(referenced)


# Failures are no absence


class Failing(Slow):
    """Answers everything with an error, or with what is no answer."""

    protocol = "failing"
    answer: ClassVar[Any] = None
    spared: ClassVar[tuple[str, ...]] = ()

    async def _fail(self, path: str) -> Any:
        if isinstance(Failing.answer, BaseException):
            raise Failing.answer
        return Failing.answer() if callable(Failing.answer) else Failing.answer

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> Any:
        if path.endswith(Failing.spared):
            return await super()._cat_file(path, start, end)
        return await self._fail(path)

    async def _info(self, path: str, **_: Any) -> Any:
        return await self._fail(path)

    async def _ls(self, path: str, detail: bool = True, **_: Any) -> Any:
        return await self._fail(path)

    async def _pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        if Failing.answer is None:
            await super()._pipe_file(path, value)
        else:
            await self._fail(path)

    async def _rm_file(self, path: str, **_: Any) -> None:
        await self._fail(path)


fsspec.register_implementation("failing", Failing, clobber=True)


class StatusError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class BotoError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"boto {status}")
        self.response = {"ResponseMetadata": {"HTTPStatusCode": status}}


def because(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def within(error: BaseException, context: BaseException) -> BaseException:
    error.__context__ = context
    return error


FAILURES: list[Any] = [
    ftplib.error_temp("421 Too many connections"),
    because(FileNotFoundError("a/b"), ftplib.error_perm("500 Unknown command")),
    ConnectionError("refused"),
    ConnectionResetError(104, "reset"),
    TimeoutError("too slow"),
    fsspec.exceptions.FSTimeoutError("too slow"),
    OSError(5, "input/output error"),
    KeyError("a/b"),
    RuntimeError("Loop is not running"),
    ValueError("what"),
    StatusError(500),
    StatusError(404),  # Only FileNotFoundError says that there is nothing.
    StatusError(416),
    ftplib.error_perm("550 No such file or directory."),
    BotoError(503),
    because(FileNotFoundError("a/b"), ConnectionError("refused")),
    because(FileNotFoundError("a/b"), StatusError(503)),
    within(FileNotFoundError("a/b"), TimeoutError("too slow")),
    because(FileNotFoundError("a/b"), within(KeyError("a"), ValueError("table"))),
    asyncio.CancelledError(),
    NotImplementedError(),
    because(FileNotFoundError("a/b"), type("NoSuchKey", (Exception,), {})()),  # Its name says nothing.
]


REFUSALS: list[Any] = [
    because(FileNotFoundError("a/b"), ftplib.error_perm("550 Permission denied")),
    ftplib.error_perm("530 Log in first"),
    PermissionError(13, "denied"),
    StatusError(401),
    StatusError(403),
    BotoError(403),
    because(FileNotFoundError("a/b"), StatusError(403)),
    because(OSError(5, "io"), BotoError(403)),
]


ABSENCES: list[Any] = [
    FileNotFoundError("a/b"),
    because(FileNotFoundError("a/b"), ftplib.error_perm("550 No such file or directory.")),
    because(FileNotFoundError("a/b"), KeyError("a/b")),
    because(FileNotFoundError("a/b"), StatusError(404)),
    because(FileNotFoundError("a/b"), BotoError(404)),
    IsADirectoryError(21, "directory"),
    NotADirectoryError(20, "no directory"),
]


def named(values: list[Any]) -> list[str]:
    return [
        repr(value).replace(" ", "") + ("-of-" + repr(value.__cause__) if value.__cause__ else "")
        for value in values
    ]


@pytest.fixture
def failing(tmp_path: Path) -> Iterator[FsspecStore]:
    Failing.answer, Failing.spared = None, ()
    fs = Failing(place=str(tmp_path / "store"), skip_instance_cache=True)
    yield FsspecStore(fs, "bucket/x.zarr", concurrency=4)
    Failing.answer, Failing.spared = None, ()


def questions(store: Store) -> list[Callable[[], object]]:
    """All that can be asked about one key; the last two list what is below it."""
    parts = [(3, 4), (3, None), (-3, 2), (3, 0)]
    return [
        *(functools.partial(store.get, "a/b", part) for part in parts),
        lambda: store.reader().open("a/b", (-4, 4)),
        lambda: store.get_values(["a/b", "a/b", "a/b"]),
        lambda: store.get_partial_values([("a/b", (0, 2)), ("a/b", (5, 2))]),
        *(functools.partial(read, store, "a/b") for read in READS.values()),
    ]


@pytest.mark.parametrize("error", FAILURES, ids=named(FAILURES))
def test_a_failure_is_an_error_that_names_the_key(failing: FsspecStore, error: BaseException) -> None:
    Failing.answer = error
    for ask in questions(failing):
        with pytest.raises(StoreError, match="a/b"):
            ask()
    for change in (
        lambda: failing.set("a/b", VALUE),
        lambda: failing.erase("a/b"),
        lambda: failing.erase_prefix("a/b/"),
        lambda: failing.update("a/b", lambda stored: [b"new"]),
        lambda: failing.set_partial_values([("a/b", 0, b"x")]),
    ):
        if not isinstance(error, asyncio.CancelledError):
            with pytest.raises(StoreError, match="a/b"):
                change()


@pytest.mark.parametrize("error", REFUSALS, ids=named(REFUSALS))
def test_a_refusal_is_an_error_of_its_own(failing: FsspecStore, error: BaseException) -> None:
    Failing.answer = error
    for ask in [*questions(failing), lambda: failing.set("a/b", VALUE), lambda: failing.erase("a/b")]:
        with pytest.raises(StorePermissionError, match="a/b"):
            ask()


@pytest.mark.parametrize("error", ABSENCES, ids=named(ABSENCES))
def test_absence_is_no_error(failing: FsspecStore, error: BaseException) -> None:
    Failing.answer = error
    empty: list[object] = [None, [], (set(), set()), False, [None], [None] * 2, [None] * 3, (None, "absent")]
    for ask in questions(failing):
        assert ask() in empty
    failing.erase("a/b")


@pytest.mark.parametrize("answer", [lambda: None, lambda: "text", lambda: 5, dict, lambda: [None]])
def test_what_is_no_answer_is_an_error(failing: FsspecStore, answer: Callable[[], object]) -> None:
    Failing.answer = staticmethod(answer).__func__
    for ask in questions(failing)[:-2]:
        with pytest.raises(StoreError, match="a/b"):
            ask()


@pytest.mark.parametrize("error", FAILURES[:10] + FAILURES[13:16], ids=named(FAILURES[:10] + FAILURES[13:16]))
def test_arrays_never_show_fill_values_for_failures(failing: FsspecStore, error: BaseException) -> None:
    slow = FsspecStore(Slow(place=failing._filesystem().fs.place, skip_instance_cache=True), "bucket/x.zarr")
    xzarr3.create_array(slow, "x", data=np.arange(1, 7), chunks=(2,), fill_value=0)
    Failing.spared = ("zarr.json",)
    Failing.answer = error
    array = xzarr3.open_array(failing, "x")
    with pytest.raises(StoreError, match="x/c/"):
        array[:]
    with pytest.raises(StoreError, match="x/c/"):
        array[2]
    Failing.answer = FileNotFoundError("gone")
    assert array[:].tolist() == [0] * 6


def test_what_a_caller_is_handling_says_nothing_of_a_key(tmp_path: Path) -> None:
    stores = [FsspecStore("memory://b"), FsspecStore(LocalFileSystem(), str(tmp_path))]
    try:
        raise ConnectionError("of somebody else")
    except ConnectionError:
        assert [store.get("none") for store in stores] == [None, None]


# Ranges


class Misranging(Slow):
    """Does with ranges what servers do to them."""

    protocol = "misranging"
    way: ClassVar[str] = ""

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        whole = await super()._cat_file(path)
        part = whole[start:end]
        if start is None and end is None:
            return whole
        if Misranging.way == "ignores":
            return whole
        if Misranging.way == "short":
            return part[: len(part) // 2]
        if Misranging.way == "416" and (start or 0) >= len(whole):
            raise StatusError(416)
        return part


@pytest.mark.parametrize("way", ["ignores", "short", "416", ""])
def test_ranges_are_right_or_an_error(tmp_path: Path, way: str) -> None:
    store = FsspecStore(Misranging(place=str(tmp_path / "store"), skip_instance_cache=True), "bucket")
    files = store._filesystem()
    for value in (VALUE, b"", b"1"):
        files.put(files.path("bucket", "a"), value)
        right = wrong = 0
        Misranging.way = way
        for start in range(-12, 13):
            for length in (None, *range(13)):
                first = start if start >= 0 else max(len(value) + start, 0)
                try:
                    found = store.get("a", (start, length))
                except StoreError:
                    wrong += 1
                else:
                    right += 1
                    assert found is not None
                    expected = value[first:][:length]
                    if way == "short" and first == 0:  # No answer tells; its own protocol has to.
                        assert expected.startswith(bytes(found))
                    elif way == "ignores" and start > 0 and length == len(value):
                        assert len(found) == length  # Nor does it here.
                    else:
                        assert bytes(found) == expected, (start, length)
        Misranging.way = ""
        assert right > 20
        assert wrong == 0 or way in ("ignores", "short")
        if value == VALUE and way in ("ignores", "short"):
            assert wrong > 30


# Listings


class Remembering(Slow):
    """Remembers listings, as most file systems of object storage do."""

    protocol = "remembering"

    async def _ls(self, path: str, detail: bool = True, **options: Any) -> list[dict[str, Any]]:
        path = self._strip_protocol(path)
        if path not in self.dircache:
            self.dircache[path] = await super()._ls(path, detail)
        return self.dircache[path]  # type: ignore[no-any-return]

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        for info in await self._ls(path.rpartition("/")[0]):
            if info["name"] == path:
                return info
        raise FileNotFoundError(path)

    def invalidate_cache(self, path: str | None = None) -> None:
        self.dircache.clear()


def test_listings_are_not_stale(tmp_path: Path) -> None:
    store = FsspecStore(Remembering(place=str(tmp_path)), "bucket")
    other = FsspecStore(Slow(place=str(tmp_path)), "bucket")
    other.set("a/b", VALUE)
    assert contents(store) == {"a/b": VALUE}
    assert store.list_dir("") == (set(), {"a/"})
    other.set("a/c", VALUE)
    other.set("d", b"longer than before")
    assert sorted(store.list()) == ["a/b", "a/c", "d"]
    assert store.list_dir("") == ({"d"}, {"a/"})
    reader = store.reader().open("d")
    assert reader is not None
    assert reader.size == 18
    other.set("d", b"short")
    assert read_back(store, "d") == [b"short"] * 4
    other.erase("a/b")
    assert sorted(store.list_prefix("a/")) == ["a/c"]
    assert store.reader().open("a/b") is None


class Marked(Slow):
    """Lists directories as object storage with markers does, and what is no key."""

    protocol = "marked"

    async def _ls(self, path: str, detail: bool = True, **options: Any) -> list[dict[str, Any]]:
        path = self._strip_protocol(path)
        found = [{"name": f"{path}/", "type": "file", "size": 0}, *await super()._ls(path, detail)]
        names = (path, f"{path}/marker/") if path == "bucket" else ()
        return [*found, *({"name": name, "type": "directory", "size": 0} for name in names)]


def test_markers_of_directories_are_no_keys(tmp_path: Path) -> None:
    store = FsspecStore(Marked(place=str(tmp_path)), "bucket")
    store.set("a/b", VALUE)
    assert list(store.list()) == ["a/b"]
    assert store.list_dir("a/") == ({"a/b"}, set())


def test_a_root_that_is_not_there_is_empty(tmp_path: Path) -> None:
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
def test_requests_are_made_at_once_within_the_bound(tmp_path: Path, concurrency: int | None) -> None:
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
    reader = store.reader().open("c/5")
    assert reader is not None
    Slow.most, Slow.awaited = 0, min(bound, 15)
    assert reader.read_ranges([0, 1, 2] * 5, [1, 1, 1] * 5) == [b"c", b"/", b"5"] * 5
    assert Slow.most == min(bound, 15)


def test_file_systems_that_are_not_for_threads_are_used_by_one(tmp_path: Path) -> None:
    class Single(MemoryFileSystem):
        protocol = "single"
        store: ClassVar[dict[str, Any]] = {}
        inside = 0

        def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
            assert Single.inside == 0, "two threads at once"
            Single.inside += 1
            time.sleep(0.002)
            Single.inside -= 1
            return super().cat_file(path, start, end)

    fs = Single(skip_instance_cache=True)
    stores = [FsspecStore(fs, "/a"), FsspecStore(fs, "/a")]
    stores[0].set("x", VALUE)
    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(stores[at % 2].get, "x") for at in range(30)]
        assert [job.result(timeout=120) for job in jobs] == [VALUE] * 30


def test_parts_of_open_values_cost_a_look_before_and_after(tmp_path: Path) -> None:
    fs = Slow(place=str(tmp_path))
    store = FsspecStore(fs, "b")
    store.set("a", VALUE)
    for first in ((2, 5), (-4, 4), (-20, 20), (8, 9), (0, 4)):
        for start in range(-12, 13):
            for length in (None, *range(12)):
                reader = store.reader().open("a", first)
                assert reader is not None
                expected = VALUE[start if start >= 0 else max(10 + start, 0) :][:length]
                assert bytes(reader.read(start, length)) == expected, (first, start, length)
    Slow.requests.clear()
    reader = store.reader().open("a", (2, 5))
    assert reader is not None
    assert bytes(reader.read(3, 2)) == b"34"
    assert Slow.requests == ["info b/a", "cat b/a 3 5", "info b/a"]
    assert store.reader().open("none", (2, 5)) is None


# Other processes


@pytest.mark.slow
@pytest.mark.parametrize("ready", [True, False])
def test_a_forked_child_can_use_the_store(tmp_path: Path, ready: bool) -> None:
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
        return store.get_values(keys) == [VALUE] * 20, store.identity == twin.identity

    assert fork_beside(lambda: store.get_values(keys), work, 3) == [(True, True)] * 3
    assert store.get("child") == b"of the fork"
    assert store.get("twin") == b"by pickle"


def test_a_forked_child_opens_an_archive_again(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for at in range(50):
            archive.writestr(f"c/{at}", bytes([at]) * 5000)
    store = FsspecStore(f"zip://::file://{tmp_path / 'x.zip'}")
    ready = FsspecStore(fsspec.filesystem("zip", fo=str(tmp_path / "x.zip")))

    def check() -> bool:
        for _ in range(20):
            for at in range(50):
                assert store.get(f"c/{at}") == ready.get(f"c/{at}") == bytes([at]) * 5000
        return True

    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(check)
        assert run_child(check).checked()
        assert job.result(timeout=120)


def test_dask_writes_and_reads(tmp_path: Path) -> None:
    data = np.random.default_rng(3).normal(size=(40, 30))
    for store in (
        FsspecStore("slow://b/x.zarr", storage_options={"place": str(tmp_path / "slow")}),
        FsspecStore(f"memory://{uuid.uuid4().hex}"),
        FsspecStore(LocalFileSystem(), str(tmp_path / "local")),
    ):
        lazy = xr.DataArray(da.from_array(data, chunks=(10, 10)), dims=("y", "x"), name="v")
        xzarr3.to_zarr(lazy.to_dataset(), store)
        with xzarr3.open_dataset(store) as found:
            np.testing.assert_array_equal(found["v"].values, data)
        lazy = xzarr3.from_zarr(store, "v")
        np.testing.assert_array_equal(lazy.compute(scheduler="threads"), data)
        array = xzarr3.open_array(store, "v", mode="r+")
        np.testing.assert_array_equal(array[3:35:4, -7:], data[3:35:4, -7:])
        array[5:25, 3:7] = -1
        data_now = data.copy()
        data_now[5:25, 3:7] = -1
        np.testing.assert_array_equal(array[:], data_now)


# Creation where there is nothing


class Creating(Slow):
    protocol = "s3"  # Where fsspec creates conditionally.
    rival: ClassVar[bytes | None] = None

    async def _pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        if mode == "create":
            if Creating.rival is not None:
                rival, Creating.rival = Creating.rival, None
                await super()._pipe_file(path, rival)
            if os.path.exists(self._file(self._strip_protocol(path))):
                raise FileExistsError(path)
        await super()._pipe_file(path, value)


def test_creation_notices_other_processes_where_the_file_system_does(tmp_path: Path) -> None:
    store = FsspecStore(Creating(place=str(tmp_path)), "b")
    assert store.creates_conditionally
    _, version = store.get_versioned("a")
    Creating.rival = b"theirs,"
    assert store.compare_and_set("a", version, b"mine") is False
    store.update("b", lambda stored: [stored or b"", b"1"])
    Creating.rival = b"theirs,"
    store.update("c", lambda stored: [stored or b"", b"mine"])
    assert contents(store) == {"a": b"theirs,", "b": b"1", "c": b"theirs,mine"}
    assert not FsspecStore("memory://x").creates_conditionally
    assert not FsspecStore(Slow(place=str(tmp_path)), "b").creates_conditionally


# What stands for a store


def test_what_stands_for_which_store(tmp_path: Path) -> None:
    local = LocalFileSystem()
    for given in (
        fsspec.get_mapper(f"file://{tmp_path}/x"),
        DirFileSystem(path=f"{tmp_path}/x", fs=local),
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
        with pytest.raises(TypeError, match="mapper"):
            store_for(wrong)
    with pytest.raises(TypeError, match="storage_options"):
        FsspecStore(local, str(tmp_path), storage_options={"a": 1})
    for number in (0, -1):
        with pytest.raises(ValueError, match="at least 1"):
            FsspecStore(local, str(tmp_path), concurrency=number)


def test_asynchronous_file_systems_are_made_again(tmp_path: Path) -> None:
    fs = Slow(place=str(tmp_path), asynchronous=True)
    for given, path in ((fs, "b"), (DirFileSystem(path="b", fs=fs, asynchronous=True), "")):
        store = FsspecStore(given, path)
        store.set("a", VALUE)
        assert store.get("a") == VALUE
    reference = fsspec.filesystem("reference", fo={"a": ["slow://b/a", 2, 3]}, fs=fs, asynchronous=True)
    assert FsspecStore(reference).get("a") == b"234"

    class Stubborn(Slow):
        def __init__(self, *args: Any, **options: Any) -> None:
            options["asynchronous"] = options.pop("loud")
            super().__init__(*args, **options)

    with pytest.raises(StoreError, match="asynchronous=False"):
        FsspecStore(Stubborn(loud=True), "b")


@pytest.mark.parametrize(
    ("url", "options", "text"),
    [
        ("nosuch://a/b", {}, "nosuch.*one that fsspec knows"),
        ("webdav://a/b", {}, "(?i)webdav4.*install the package"),
        ("zip://::file:///none.zip", {}, r"none\.zip"),
        ("reference://", {"fo": "/none.json"}, r"none\.json"),
    ],
)
def test_urls_that_lead_nowhere(url: str, options: dict[str, Any], text: str) -> None:
    with pytest.raises(StoreError, match=text):
        FsspecStore(url, storage_options=options)


# Secrets


def test_secrets_are_nowhere_to_be_seen(tmp_path: Path) -> None:
    Failing.answer = ConnectionError(f"cannot reach https://user:{SECRET}@host/x?sig={SECRET} with {SECRET}")
    given = {"place": str(tmp_path), "token": SECRET}
    references = {
        "fo": {"a/b": [f"https://user:{SECRET}@host/x?sig={SECRET}", 1, 2]},
        "fs": {"failing": {"token": SECRET}},
    }
    for store in (
        FsspecStore(Failing(**given), "bucket/x.zarr"),
        FsspecStore("failing://bucket/x", storage_options=given),
        FsspecStore(f"slow://b?token={SECRET}", storage_options={"client_kwargs": {"secret": SECRET}}),
        FsspecStore("dir::failing://b", storage_options={"failing": given}),
        FsspecStore("reference://", storage_options=references),
    ):
        shown = [repr(store), str(store), repr(store.identity), repr(store.__dask_tokenize__())]
        for ask in questions(store):
            try:
                shown.append(repr(ask()))
            except StoreError as error:
                shown += [text for each in chain(error) for text in (str(each), repr(each))]
                shown += [repr(getattr(each, "__notes__", "")) for each in chain(error)]
        assert SECRET not in "\n".join(shown)
        assert pickle.loads(pickle.dumps(store)).identity == store.identity
    with pytest.raises(StoreError) as caught:
        FsspecStore(f"nosuch://user:{SECRET}@a/b?token={SECRET}", storage_options={"password": SECRET})
    assert SECRET not in repr(chain(caught.value))


def chain(error: BaseException | None) -> list[BaseException]:
    """An error and those that it came from."""
    return [] if error is None else [error, *chain(error.__cause__ or error.__context__)]


def test_identities_are_those_of_places(tmp_path: Path) -> None:
    def named(**options: Any) -> object:
        return FsspecStore("slow://b/x", storage_options={"place": str(tmp_path), **options}).identity

    assert named() == named() == FsspecStore(Slow(place=str(tmp_path)), "b/x").identity
    assert named(token="one") == named(token="two"), "whoever asks, the place is the same"
    assert named(latency=0.1) != named()
    assert FsspecStore("memory://a").identity != FsspecStore("memory://b").identity
    here = FsspecStore("slow://b/x", storage_options={"place": str(tmp_path)})
    code = lambda: pickle.loads(pickle.dumps(here)).identity  # noqa: E731
    assert run_child(code).checked() == here.identity


# Caches


@pytest.mark.parametrize("kind", ["simplecache", "filecache", "blockcache"])
def test_caches_of_fsspec_are_refused(tmp_path: Path, kind: str) -> None:
    """They leave what a failed download has written, and take a failure to look for absence."""
    reference = {"fo": {"a": ["memory://b/a"]}, "fs": fsspec.filesystem(kind, target_protocol="memory")}
    for url, options in ((f"{kind}::memory://b", {}), ("reference://", reference)):
        with pytest.raises(StoreError, match=r"cache of fsspec.*use CacheStore"):
            FsspecStore(url, storage_options=options)
    store = FsspecStore("memory://b")
    store.set("a", VALUE)
    assert xzarr3.CacheStore(store, directory=tmp_path).get("a") == VALUE


# References


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        (["file://{}/none", 0, 5], "does not exist"),
        (["file://{}/none"], "does not exist"),
        (["file://{}/data", 5, 20], "found [45]"),
        (["file://{}/data", 50, 20], "found 0"),
        (["ftp://host/data", 5, 2], "ftp"),
        (["file://{}/data", -5, 2], "malformed"),
        (["file://{}/data", 5, -2], "malformed"),
        (["file://{}/data", "x", 2], "malformed"),
        (["file://{}/data", 0.5, 2], "malformed"),
        (["file://{}/data", 5], "malformed"),
        (["file://{}/data", 5, None], "malformed"),
        ([None, 5, 2], "malformed"),
        ([], "malformed"),
        (7, "malformed"),
        ("base64:%%%", "base64"),
    ],
)
def test_references_that_lead_nowhere_are_errors(tmp_path: Path, reference: Any, text: str) -> None:
    (tmp_path / "data").write_bytes(VALUE)
    if isinstance(reference, list) and reference and reference[0]:
        reference = [reference[0].format(tmp_path), *reference[1:]]
    fs = fsspec.filesystem("reference", fo={"a/b": reference}, remote_protocol="file")
    for store in (FsspecStore(fs), store_for(fsspec.FSMap("", fs, missing_exceptions=(Exception,)))):
        with pytest.raises(StoreError, match=f"a/b.*{text}"):
            store.get("a/b")
        with pytest.raises(StoreError, match=f"a/b.*{text}"):
            store.get("a/b", (1, None))
        assert store.get("a/c") is None


def test_a_file_that_is_too_short_is_not_read_whole(tmp_path: Path) -> None:
    """Files that references name are large."""
    asked: list[int | None] = []

    class Large(LocalFileSystem):
        def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
            asked.append(end)
            return super().cat_file(path, start, end)  # type: ignore[no-any-return]

    (tmp_path / "data").write_bytes(VALUE)
    options = {"fo": {"a": [f"file://{tmp_path}/data", 5, 20]}, "fs": Large(skip_instance_cache=True)}
    store = FsspecStore("reference://", storage_options=options)
    for byte_range in (None, (3, 10), (-4, None), (18, 1)):
        with pytest.raises(StoreError, match="found"):
            store.get("a", byte_range)
    assert asked
    assert None not in asked


def test_references_whose_files_cannot_be_reached_are_errors(tmp_path: Path) -> None:
    for error, kind in ((ConnectionError("refused"), StoreError), (StatusError(403), StorePermissionError)):
        Failing.answer, Failing.spared = error, ()
        fs = Failing(place=str(tmp_path), skip_instance_cache=True)
        store = FsspecStore("reference://", storage_options={"fo": {"a/b": ["failing://x", 2, 30]}, "fs": fs})
        for ask in questions(store)[:4]:
            with pytest.raises(kind, match="a/b"):
                ask()
    Failing.answer = None


def test_references_in_a_document(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(VALUE)
    references = {
        "a/b": [f"file://{tmp_path}/data", 2, 5],
        "c": "base64:AAEC",
        "d": '{"zarr_format": 2}',
        "e": "text",
    }
    (tmp_path / "refs.json").write_text(json.dumps({"version": 1, "refs": references}))
    store = FsspecStore("reference://", storage_options={"fo": f"{tmp_path}/refs.json"})
    assert contents(store) == {"a/b": b"23456", "c": b"\0\1\2", "d": b'{"zarr_format": 2}', "e": b"text"}
    twin = pickle.loads(pickle.dumps(store))
    assert contents(twin) == contents(store)
    assert twin.identity == store.identity
    assert run_child(lambda: contents(pickle.loads(pickle.dumps(store)))).checked() == contents(store)
    below = FsspecStore(fsspec.FSMap("a", fsspec.filesystem("reference", fo=f"{tmp_path}/refs.json")))
    assert contents(below) == {"b": b"23456"}


def tables(base: Path, found: dict[int, Any]) -> LazyReferenceMapper:
    """What fsspec gives of references that lie in Parquet files, of which the contents are told here."""
    base.mkdir(exist_ok=True)
    metadata = {
        ".zgroup": {"zarr_format": 2},
        "v/.zarray": {"shape": [6, 4], "chunks": [2, 2], "zarr_format": 2},
        "g/.zgroup": {"zarr_format": 2},
    }
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


def test_references_in_tables(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(VALUE)
    url = f"file://{tmp_path}/data"
    table = {
        "path": np.array([url, None, float("nan"), url], dtype=object),
        "offset": np.array([2, 0, 0, 0]),
        "size": np.array([3, 0, 0, 0]),
        "raw": np.array([None, b"raw", None, None], dtype=object),
    }
    fs = fsspec.filesystem("reference", fo={"x": ""}, remote_protocol="file")
    store = FsspecStore(fs)

    def use(found: dict[int, Any]) -> None:
        store._filesystem().fs.references = tables(tmp_path / "refs", found)

    use({0: table})
    assert store.get("v/0.0") == b"234"
    assert store.get("v/0.1") == b"raw"
    assert store.get("v/1.0") is None
    assert store.get("v/1.1") == VALUE
    for absent in ("v/2.0", "v/3.0", "v/0.2", "v/0", "v/0.0.0", "v/x", "v/zarr.json", "w/0.0", "v", "v/-1.0"):
        assert store.get(absent) is None, absent
    assert json.loads(bytes(store.get("v/.zarray") or b""))["shape"] == [6, 4]
    names = [".zgroup", ".zmetadata", "g/.zgroup", "v/.zarray", "v/0.0", "v/0.1", "v/1.1"]
    assert sorted(store.list()) == names
    assert store.list_dir("") == ({".zgroup", ".zmetadata"}, {"g/", "v/"})
    for broken in (ValueError("corrupt"), TypeError("x"), PermissionError(13, "no"), ConnectionError(), None):
        use({0: broken})
        with pytest.raises(StoreError, match=r"v/0\.0"):
            store.get("v/0.0")


def test_xarray_opens_references_to_netcdf(tmp_path: Path) -> None:
    scipy_io = pytest.importorskip("scipy.io")
    data = np.random.default_rng(5).normal(size=(3, 4))
    with scipy_io.netcdf_file(tmp_path / "x.nc", "w") as file:
        file.createDimension("y", 3)
        file.createDimension("x", 4)
        file.createVariable("t", "f8", ("y", "x"))[:] = data
    raw = (tmp_path / "x.nc").read_bytes()
    offset = raw.index(data.astype(">f8").tobytes())
    document = {
        "zarr_format": 2, "shape": [3, 4], "chunks": [3, 4], "dtype": ">f8", "order": "C",
        "compressor": None, "filters": None, "fill_value": None,
    }  # fmt: skip
    references = {
        ".zgroup": '{"zarr_format": 2}',
        ".zattrs": "{}",
        "t/.zarray": json.dumps(document),
        "t/.zattrs": json.dumps({"_ARRAY_DIMENSIONS": ["y", "x"]}),
        "t/0.0": [f"file://{tmp_path}/x.nc", offset, 96],
    }
    fs = fsspec.filesystem("reference", fo={"version": 1, "refs": references}, remote_protocol="file")
    expected = xr.open_dataset(tmp_path / "x.nc", engine="scipy")
    with xzarr3.open_dataset(FsspecStore(fs), consolidated=False) as found:
        xr.testing.assert_identical(found.load(), expected.load())
    expected.close()
    (tmp_path / "x.nc").write_bytes(raw[: offset + 90])
    with (
        xzarr3.open_dataset(FsspecStore(fs), consolidated=False) as broken,
        pytest.raises(StoreError, match=r"t/0\.0"),
    ):
        broken.load()


# HTTP


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No request is made again."""
    pytest.importorskip("aiohttp")
    pytest.importorskip("obstore")
    monkeypatch.setattr(fsspec_web, "web_store", functools.partial(fsspec_web.web_store, retries=0))


def test_http_is_for_object_stores(fault_server: Any, quick: None) -> None:
    fault_server.put("/b/x/a", VALUE)
    fs = fsspec.filesystem("http", skip_instance_cache=True)
    url = f"{fault_server.url}/b/x"
    for make in (
        lambda: FsspecStore(url),
        lambda: FsspecStore(fs, url),
        lambda: FsspecStore(f"dir::{url}"),
        lambda: FsspecStore(DirFileSystem(path=url, fs=fs)),
    ):
        with pytest.raises(StoreError, match=r"for HTTP; use open_store\(...\)"):
            make()
    assert store_for(fs.get_mapper(url)).get("a") == VALUE
    derived = type("HTTPFileSystem", (type(fs),), {})(skip_instance_cache=True)
    with pytest.raises(StoreError, match="for HTTP; use open_store"):  # It may read in a way of its own.
        store_for(derived.get_mapper(url))
    with pytest.raises(StoreError, match="query"):
        store_for(fs.get_mapper(f"{url}?token={SECRET}"))


def test_http_is_read_by_an_object_store(fault_server: Any, quick: None) -> None:
    aiohttp = pytest.importorskip("aiohttp")
    fault_server.put("/b/x/a", VALUE)
    url = f"{fault_server.url}/b/x"

    def told(**options: Any) -> Any:
        fs = fsspec.filesystem("http", skip_instance_cache=True, **options)
        store = store_for(fs.get_mapper(url))
        assert type(store).__name__ == "ObjectStore"
        assert pickle.loads(pickle.dumps(store)).get("a") == VALUE
        return fault_server.log()[-1]

    mapper = fsspec.filesystem("http").get_mapper(url)
    assert xzarr3.open_store(mapper) == xzarr3.open_store(url)
    assert not told(trust_env=True)["signed"]
    assert told(headers={"Authorization": "Basic eA=="})["signed"]
    assert told(headers={"X-One": "1"}, client_kwargs={"headers": {"Authorization": "Basic eA=="}})["signed"]
    for options in (
        {"client_kwargs": {"timeout": 5}},
        {"client_kwargs": {"auth": aiohttp.BasicAuth("user", SECRET)}},
        {"client_kwargs": {"ssl": False}},
        {"cookies": {"a": "b"}},
        {"get_client": told},
    ):
        fs = fsspec.filesystem("http", skip_instance_cache=True, **options)
        (name,) = options.get("client_kwargs", options)
        with pytest.raises(StoreError, match=rf"(?s){name}.*have no meaning.*accepted: headers.*ObjectStore"):
            store_for(fs.get_mapper(url))
        references = FsspecStore("reference://", storage_options={"fo": {"a": [f"{url}/a"]}, "fs": fs})
        with pytest.raises(StoreError, match=name):
            references.get("a")


def test_queries_of_urls_are_sent_and_not_shown(fault_server: Any, quick: None) -> None:
    fault_server.put("/b/x/a", VALUE)
    place = f"{fault_server.url}/b/x/a?token={SECRET}"
    options = {"fo": {"a": [place], "b": [place, 2, 3], "c": [place, 8, 5]}, "fs": fsspec.filesystem("http")}
    store = FsspecStore("reference://", storage_options=options)
    assert store.get("b") == b"234"
    with pytest.raises(StoreError, match="asked for 5 bytes"):
        store.get("c")
    fault_server.clear_log()
    assert store.get("a") == VALUE
    assert SECRET in str(fault_server.log()[-1])
    assert pickle.loads(pickle.dumps(store)).get("a") == VALUE
    assert SECRET not in repr(store) + repr(store.identity)
    fault_server.fault("status", "/b/x/a", status=403)
    with pytest.raises(StorePermissionError) as caught:
        store.get("a")
    assert SECRET not in "".join(map(str, chain(caught.value)))


def web(server: Any) -> FsspecStore:
    """References to what is below ``/b/x`` of a server."""
    below = f"{server.url}/b/x"
    references = {"a": [f"{below}/a"], "c/0": [f"{below}/c/0"], "part": [f"{below}/a", 2, 100]}
    return FsspecStore("reference://", storage_options={"fo": references, "remote_protocol": "http"})


BODY = bytes(range(250)) * 40


@pytest.mark.parametrize("fault", ["html", "short", "wrong-range", "narrow-range", "ignore-range"])
def test_answers_are_what_was_asked_for_or_errors(fault_server: Any, fault: str, quick: None) -> None:
    fault_server.put("/b/x/a", BODY)
    wrong = 0
    for byte_range in ((0, None), (100, 100), (-100, 7)):
        store = web(fault_server)
        fault_server.fault(fault, "/b/x/a")
        try:
            found = store.get("a", byte_range)
        except StoreError:
            wrong += 1
        else:
            assert found is not None
            assert bytes(found) == cut(BODY, byte_range), byte_range
        fault_server.clear_faults()
        assert read_back(store, "a") == [BODY] * 4
    assert wrong == 3 or fault.endswith("range")


# One version of a value


class Mute(Slow):
    """Says nothing of versions."""

    protocol = "mute"
    tells = ()


fsspec.register_implementation("mute", Mute, clobber=True)


@pytest.fixture(params=["slow", "mute", "reference", "local"])
def replaced(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Store, Callable[..., None]]:
    """A store, and what stores a value in it, the one after next after so many answers."""
    store: Any
    if request.param == "local":
        store = FsspecStore(LocalFileSystem(), str(tmp_path / "x"), concurrency=4)

        def put(key: str, value: bytes) -> None:
            file = tmp_path / "x" / key
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(value)

        inner, names = store._filesystem(), ["_ask"]
    else:
        fs = (Mute if request.param == "mute" else Slow)(place=str(tmp_path), skip_instance_cache=True)
        store = below = FsspecStore(fs, "b")
        inner, names = store._filesystem(), ["_ask", "_bytes"]
        if request.param == "reference":
            references = {"a": ["slow://b/a"], "c/0": ["slow://b/c/0"]}
            store = FsspecStore("reference://", storage_options={"fo": references, "fs": fs})
            inner = store._filesystem()._targets["slow"]

        put = below.set

    lock = threading.Lock()
    functions = {name: getattr(inner, name) for name in names}

    def replace(key: str, old: bytes, new: bytes, after: int) -> None:
        for name, function in functions.items():
            setattr(inner, name, function)
        put(key, old)
        count = 0

        def counting(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
            nonlocal count
            found = function(*args, **options)
            with lock:
                count += 1
                if count != after:
                    return found
            for name, original in functions.items():
                setattr(inner, name, original)
            put(key, new)
            return found

        for name, function in functions.items():
            setattr(inner, name, functools.partial(counting, function))

    return store, replace


@pytest.mark.parametrize("after", range(1, 12))
def test_parts_are_of_one_version(replaced: tuple[Store, Callable[..., None]], after: int) -> None:
    store, replace = replaced
    old, new = bytes([1]) * 5000, bytes([2]) * 5000
    replace("a", old, new, after)
    for _ in range(3):
        found = store.reader().get_ranges("a", [0, 1000, 4000], [10, 10, 10])
        assert found is not None
        assert b"".join(map(bytes, found[1])) in (b"\1" * 30, b"\2" * 30)
    replace("a", old, new, after)
    for opened in (store.reader().open("a"), store.reader().open("a", (-10, 10))):
        assert opened is not None
        found_parts: list[bytes] = []
        with contextlib.suppress(ChangedError):
            found_parts.append(bytes(opened.read(-10, 10)))
            found_parts += map(bytes, opened.read_ranges([0, 1000], [10, 10]))
            found_parts.append(bytes(opened.read(2000, 10)))
        assert len({*found_parts}) <= 1, "parts of two versions"


@pytest.mark.parametrize("after", range(1, 6))
@pytest.mark.parametrize("sizes", [(5000, 30), (30, 5000)])
def test_values_that_become_shorter_or_longer(
    replaced: tuple[Store, Callable[..., None]], after: int, sizes: tuple[int, int]
) -> None:
    store, replace = replaced
    old, new = bytes([1]) * (sizes[0] - 20) + b"a" * 20, bytes([2]) * (sizes[1] - 20) + b"b" * 20
    for ask, expected in (
        (lambda: store.get("a", (-20, None)), (b"a" * 20, b"b" * 20)),
        (lambda: store.get("a", (-20, 5)), (b"a" * 5, b"b" * 5)),
        (lambda: store.get("a", (5, 2**40)), (old[5:], new[5:])),
        (lambda: store.get("a", (-(2**40), None)), (old, new)),
    ):
        replace("a", old, new, after)
        assert bytes(ask() or b"") in expected
        assert bytes(ask() or b"") in expected
    for start, expected in ((-20, (b"a" * 20, b"b" * 20)), (5, (b"\1" * 5, b"\2" * 5))):
        for is_part in (True, False):
            replace("a", old, new, after)
            count = len(expected[0])
            reader = store.reader().open("a", (start, count)) if is_part else store.reader().open("a")
            assert reader is not None
            with contextlib.suppress(ChangedError):
                assert bytes(reader.read(start, count)) in expected


def sharded(store: Store, chunks: dict[int, list[int]]) -> xzarr3.Array:
    array = xzarr3.create_array(
        store, shape=(8,), shards=(8,), chunks=(2,), dtype="i4", compressors=None, fill_value=-1
    )
    for at, values in chunks.items():
        array[at : at + 2] = values
    return array


@pytest.mark.parametrize("after", range(1, 10))
def test_arrays_show_one_version(replaced: tuple[Store, Callable[..., None]], after: int) -> None:
    store, replace = replaced
    old, new, documents = xzarr3.MemoryStore(), xzarr3.MemoryStore(), xzarr3.MemoryStore()
    sharded(old, {0: [0, 1], 2: [2, 3], 4: [4, 5], 6: [6, 7]})
    sharded(new, {0: [100, 101], 2: [102, 103], 6: [300, 301]})  # At other offsets.
    sharded(documents, {})
    array = xzarr3.open_array(Beside(store, documents))
    replace("c/0", old.get("c/0"), new.get("c/0"), after)
    for _ in range(3):
        assert array.get(slice(5, 7)).tolist() in ([5, 6], [-1, 300])


class Beside(Store):
    """Values of one store, documents of another one."""

    def __init__(self, values: Store, documents: Store) -> None:
        super().__init__()
        self.values, self.documents = values, documents
        self.concurrency, self.request_bytes = values.concurrency, 1

    def get(self, key: str, byte_range: Any = None) -> Any:
        return (self.values if key.startswith("c/") else self.documents).get(key, byte_range)

    _reader = opening

    def opened(self, key: str, part: Any, version: object | None) -> Any:
        return self.values.reader().open(key, part, version)


def test_shard_indexes_are_read_once(tmp_path: Path) -> None:
    store = FsspecStore(Slow(place=str(tmp_path)), "b")
    data = np.arange(64, dtype="i4")
    array = xzarr3.create_array(store, "x", data=data, shards=(64,), chunks=(2,), compressors=None)
    Slow.requests.clear()
    for at in range(0, 64, 4):
        assert array[at] == at
    reads = [request for request in Slow.requests if request.startswith("cat b/x/c/0")]
    assert len(reads) == 17, "the index and 16 chunks"
    assert len(Slow.requests) == 17 + 2 + 16, "and what version it is: twice for the index, once for each"
    array[:] = data[::-1].copy()
    assert array[5] == 58


@pytest.mark.parametrize(
    ("info", "tells"),
    [
        ({"ETag": '"x"'}, True),
        ({"etag": "x", "mtime": 1.7e9}, True),
        ({"generation": 5}, True),
        ({"generation": "5"}, True),
        ({"ETag": 'W/"x"'}, False),
        ({"ETag": "", "generation": None}, False),
        ({"mtime": 1.7e9}, False),
        ({}, False),
    ],
)
def test_what_tells_versions_apart(info: dict[str, Any], tells: bool) -> None:
    assert (info_of(info, 7).mark is not None) is tells


# Bytes under way


@pytest.fixture
def limit() -> Iterator[Callable[[int], None]]:
    before = in_flight.get_limit()
    yield in_flight.set_limit
    in_flight.set_limit(before)


def test_bytes_under_way_are_bounded(tmp_path: Path, limit: Callable[[int], None]) -> None:
    store = FsspecStore(Slow(place=str(tmp_path)), "b")
    keys = [f"c/{at}" for at in range(20)]
    store.set_values((key, bytes(1000)) for key in keys)

    def most(ask: Callable[[], object], awaited: int) -> int:
        Slow.most, Slow.awaited = 0, awaited
        ask()
        return Slow.most

    limit(450)
    assert most(lambda: store.get_partial_values([(key, (0, 100)) for key in keys]), 4) == 4
    assert most(lambda: store.get_partial_values([(key, (10, 400)) for key in keys]), 1) == 1
    assert most(lambda: store.get_values(keys), 1) == 1
    limit(5000)
    for _ in range(4):  # What values are like is learned from those that came.
        most(lambda: store.get_values(keys), 1)
    assert most(lambda: store.get_values(keys), 5) == 5
    limit(2**29)
    assert most(lambda: store.get_values(keys), 6) > 5
    assert in_flight._budget.used == 0


# References of others


def test_references_from_elsewhere_name_no_local_files(fault_server: Any, tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    private = tmp_path / "private"
    private.write_bytes(VALUE)
    fault_server.put("/b/data", b"public data")
    for first in ([f"file://{private}"], [str(private)], [f"local://{private}", 2, 5]):
        references = {"k": first, "m": [str(private)], "n": [f"file://{private}", 1, 2]}
        document = json.dumps({"version": 1, "refs": references})
        fault_server.put("/b/ref.json", document.encode())
        url = f"{fault_server.url}/b/ref.json"
        cached = f"simplecache::{url}"
        for options in (
            {"fo": url},
            {"fo": url, "remote_protocol": "http"},
            {"fo": cached, "target_options": {"simplecache": {"cache_storage": str(tmp_path / "c")}}},
        ):
            store = FsspecStore("reference://", storage_options=options)
            for key in "kmn":
                for ask in (
                    lambda: store.get(key),  # noqa: B023
                    lambda: store.get(key, (1, 2)),  # noqa: B023
                    lambda: store.get(key, (1, 0)),  # noqa: B023
                    lambda: store.reader().open(key),  # noqa: B023
                    lambda: store.exists(key),  # noqa: B023
                ):
                    with pytest.raises(StoreError, match=f"'{key}'"):
                        ask()
        (tmp_path / "ref.json").write_text(document)
        for trusted in (
            {"fo": url, "remote_protocol": "file"},
            {"fo": url, "fs": {"file": {}}},
            {"fo": url, "fs": LocalFileSystem()},
            {"fo": str(tmp_path / "ref.json")},
        ):
            assert FsspecStore("reference://", storage_options=trusted).get("m") == VALUE
    references = {"k": [f"{fault_server.url}/b/data", 0, 6]}
    fault_server.put("/b/ref.json", json.dumps({"version": 1, "refs": references}).encode())
    assert FsspecStore("reference://", storage_options={"fo": url}).get("k") == b"public"


# Options


@pytest.mark.parametrize("value", ["false", "true", 0, 1, None])
def test_read_only_is_a_boolean(value: Any) -> None:
    with pytest.raises(StoreError, match=r"read_only=.*accepted: True or False"):
        FsspecStore.from_url("memory://a", {"read_only": value})
    with pytest.raises(StoreError, match="read_only"):
        xzarr3.stores.open_store("memory://a", {"read_only": value})


@pytest.mark.parametrize("value", [0, -1, 1.5, "4"])
def test_concurrency_is_a_number(value: Any) -> None:
    with pytest.raises(StoreError, match=r"concurrency=.*accepted: an integer of at least 1"):
        FsspecStore.from_url("memory://a", {"concurrency": value})
    for make in (FsspecStore, FsspecStore.from_url):
        with pytest.raises(ValueError, match=r"concurrency=.*accepted: an integer of at least 1"):
            make("memory://a", concurrency=value)
    assert FsspecStore.from_url("memory://a", {"read_only": False, "concurrency": 3}).concurrency == 3


def _read_elsewhere(pickled: bytes) -> tuple[bytes | None, object]:
    store = pickle.loads(pickled)
    return bytes(store.get("c/0", (3, 40))), store.identity


@pytest.mark.slow
def test_the_web_in_other_processes(fault_server: Any) -> None:
    pytest.importorskip("aiohttp")
    pytest.importorskip("obstore")
    fault_server.put_all({"/b/x/a": BODY, "/b/x/c/0": BODY})
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        store = web(fault_server)
        assert read_back(store, "a") == [BODY] * 4
        found = pool.submit(_read_elsewhere, pickle.dumps(store)).result(60)
        assert found == (BODY[3:43], store.identity)
