"""Stores on file systems of fsspec: the checks of every store, and that no failure is taken for absence."""

import asyncio
import contextlib
import ftplib
import itertools
import json
import os
import pickle
import threading
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pytest
import xarray as xr
from _conformance import VALUE, contents, read_back, reads, run_threads
from _kinds import every_check, fork_beside, hostile_keys
from _slow import slow_but
from _strategies import attempt
from _things import refused
from _unprivileged import run_child, unprivileged
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
    protocol = "mute"
    tells_versions = False


class FileTransfer(LocalFileSystem):
    """The file system of fsspec for SFTP as far as a store can tell, without a server."""

    protocol = "sftp"


"".encode("cp437")  # Of names in archives; children without rights cannot import it.


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    Slow.requests.clear()
    Slow.most = Slow.under_way = Slow.awaited = 0
    Failing.answer = None
    yield
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


def local_files(base: Path) -> FsspecStore:
    return FsspecStore(DirFileSystem(path=str(base), fs=LocalFileSystem()), uuid.uuid4().hex)


def reads_of(store: Store, key: str) -> list[Callable[[], object]]:
    return [partial(read, key) for read in reads(store).values()]


def transferred(base: Path) -> FsspecStore:
    return FsspecStore(FileTransfer(), f"{base}/{uuid.uuid4().hex}")


def slow(base: Path, kind: type[Slow] = Slow, path: str = "b", **options: Any) -> FsspecStore:
    return FsspecStore(kind(place=str(base), skip_instance_cache=True), path, **options)


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


test_fsspec_store_in_memory = every_check(lambda base: FsspecStore(f"memory://{uuid.uuid4().hex}/x.zarr"))
test_fsspec_store_of_local_files = every_check(local_files)
test_fsspec_store_over_sftp = every_check(transferred)
test_fsspec_store_asynchronous = every_check(lambda base: slow(Path(f"{base}-{uuid.uuid4().hex}")))
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
    erase, below = lambda: store.erase("x"), lambda: store.erase_prefix("a/")
    refused(ReadOnlyError, None, lambda: store.set("n", b""), erase, below)


def test_fsspec_store_memory_is_not_that_of_another_process() -> None:
    """The memory stays here; what a child inherited by fork is of the past."""
    store = FsspecStore(f"memory://{uuid.uuid4().hex}")
    store.set("a/b", VALUE)
    array = xzarr3.create_array(store, "x", data=[1, 2, 3])
    data = pickle.dumps((store, array))

    def work() -> object:
        twin, there = pickle.loads(data)
        refused(
            StoreError, "memory of another process",
            *reads_of(twin, "a/b"), *reads_of(store, "a/b"),
            *(lambda: twin.set("a/b", b""), lambda: store.erase("a/b"), lambda: [*twin.list()]),
            *(lambda: twin.list_dir(""), lambda: there[:], lambda: there.set(0, 5)),
            lambda: pickle.loads(pickle.dumps(twin)).get("a/b"),
        )  # fmt: skip
        return twin.identity

    assert run_child(work).checked() == store.identity
    assert store.get("a/b") == VALUE
    assert pickle.loads(data)[1][:].tolist() == [1, 2, 3]


def test_fsspec_store_that_cannot_write_leaves_nothing(tmp_path: Path) -> None:
    class Full(FileTransfer):
        is_full = False

        def pipe_file(self, path: str, value: bytes, **_: Any) -> None:
            Path(path).write_bytes(value[:2] if self.is_full else value)
            if self.is_full:
                raise OSError(28, "no space left")

    fs = Full(skip_instance_cache=True)
    store = FsspecStore(fs, str(tmp_path / "store"))
    for value in (b"old", VALUE):
        store.set("a/b", value)
    fs.is_full = True
    for key in ("a/b", "a/c"):
        refused(StoreError, f"'{key}'.*no space left", partial(store.set, key, b"others"))
    assert (contents(store), os.listdir(tmp_path / "store/a")) == ({"a/b": VALUE}, ["b"])
    store.erase("a/b")
    assert os.listdir(tmp_path / "store") == []


@pytest.mark.parametrize("kind", [LocalFileSystem, FileTransfer])
def test_fsspec_store_leaves_one_file_of_a_killed_writer(kind: type[LocalFileSystem], tmp_path: Path) -> None:
    store = FsspecStore(kind(), str(tmp_path / "store"))
    xzarr3.create_group(store)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "mv", lambda *paths: os._exit(7))  # Killed before the file gets its name.
        for key in ("a/b", "a/b", "c/d/e"):
            killed = partial(run_child, partial(store.set, key, VALUE))
            refused(AssertionError, "died without a result", killed)
    assert (sorted(store.leftovers()), [*store.leftovers("a/")]) == (
        ["a/b.__lock", "c/d/e.__lock"], ["a/b.__lock"],
    )  # fmt: skip
    assert ([*store.list()], store.list_dir("c/d/")) == (["zarr.json"], (set(), set()))
    calls = (store.get, store.erase, partial(store.set, value=b""))
    for name in ("a/b.__lock", "x.__lock/y"):
        refused(InvalidKeyError, "are taken", *(partial(call, name) for call in calls))
    store.set("a/b", b"next")
    assert (contents(store).keys(), [*store.leftovers()]) == ({"zarr.json", "a/b"}, ["c/d/e.__lock"])


@unprivileged()
def test_fsspec_store_does_not_take_a_locked_folder_for_an_empty_one(base: Path) -> None:
    store = FsspecStore(LocalFileSystem(), str(base / "store"))
    store.set("a/b", VALUE)
    store.set("c/d/e", VALUE)
    os.chmod(base / "store/c/d", 0)
    asks = (lambda: list(store.list()), lambda: store.list_dir("c/d/"), lambda: store.set("c/d/new", b""))
    refused(StorePermissionError, r"c/d|list key ''", *reads_of(store, "c/d/e"), *asks)


class Failing(Slow):
    """Answers everything with an error, or with what is no answer."""

    protocol = "failing"
    answer: ClassVar[Any] = None

    async def _fail(self, path: str, *_: Any, **__: Any) -> Any:
        if isinstance(Failing.answer, BaseException):
            raise Failing.answer
        return Failing.answer

    _cat_file = _info = _ls = _pipe_file = _rm_file = _fail


for kind in (Slow, Mute, Failing):
    fsspec.register_implementation(kind.protocol, kind, clobber=True)


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
    return slow(tmp_path, Failing, "bucket/x.zarr", concurrency=4)


def questions(store: Store) -> list[Callable[[], object]]:
    parts = [partial(store.get, "a/b", part) for part in ((3, 4), (3, None), (-3, 2), (3, 0))]
    return [*parts, *reads_of(store, "a/b"), lambda: [*store.list("a/b/")], lambda: store.list_dir("a/b/")]


@pytest.mark.parametrize("error", [*FAILURES, *REFUSALS], ids=named)
def test_fsspec_store_failures_are_errors_that_name_the_key(failing: FsspecStore, error: Any) -> None:
    Failing.answer = error
    kind = StorePermissionError if error in REFUSALS else StoreError
    refused(kind, "a/b", *questions(failing))
    if not isinstance(error, asyncio.CancelledError):
        change, erase = lambda: failing.set("a/b", VALUE), lambda: failing.erase("a/b")
        refused(kind, "a/b", change, erase, lambda: update(failing, "a/b", lambda stored: [b"new"]))
        refused(StoreError, "a/b", lambda: failing.erase_prefix("a/b/"))


@pytest.mark.parametrize("error", ABSENCES, ids=named)
def test_fsspec_store_absence_is_no_error(failing: FsspecStore, error: Any) -> None:
    Failing.answer = error
    for ask in questions(failing):
        assert ask() in (None, [], (set(), set()), False, [None], (None, "absent"))
    failing.erase("a/b")


@pytest.mark.parametrize("answer", [None, "text", 5, {}, [None]], ids=repr)
def test_fsspec_store_takes_no_other_answers(failing: FsspecStore, answer: Any) -> None:
    Failing.answer = answer
    parts = (partial(failing.get, "a/b", part) for part in (None, (2, 3)))
    refused(StoreError, "a/b", lambda: failing.open("a/b"), *parts)


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
    store = slow(tmp_path, Misranging)
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
    assert ([*store.list()], store.list_dir("a/")) == (["a/b"], ({"a/b"}, {"a/marker/"}))
    other.set("a/c", VALUE)
    other.set("d", b"longer than before")
    assert (sorted(store.list()), store.getsize("d")) == (["a/b", "a/c", "d"], 18)
    other.set("d", b"short")
    other.erase("a/b")
    assert (read_back(store, "d"), store.open("a/b")) == ([b"short"] * 4, None)


def test_fsspec_store_is_empty_where_its_root_is_not_there(tmp_path: Path) -> None:
    local = FsspecStore(LocalFileSystem(), str(tmp_path / "none"))
    for store in (local, FsspecStore("memory://none"), slow(tmp_path)):
        try:
            raise ConnectionError("of somebody else")
        except ConnectionError:
            assert (store.get("none"), list(store.list()), store.list_dir("")) == (None, [], (set(), set()))
        store.erase_prefix("a/")
        assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("concurrency", [None, 7, 1])
def test_fsspec_store_sends_requests_at_once_within_a_bound(tmp_path: Path, concurrency: int | None) -> None:
    store = slow(tmp_path, concurrency=concurrency)
    bound = 64 if concurrency is None else concurrency
    assert store.concurrency == bound
    keys = [f"c/{at}" for at in range(130 if concurrency is None else 40)]
    Slow.awaited = bound
    store.set_values((key, key.encode()) for key in keys)
    found = run_threads(*[partial(store.get_values, keys)] * 3)
    assert found == [[key.encode() for key in keys]] * 3
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
    assert run_threads(*(partial(stores[at % 2].get, "x") for at in range(30))) == [VALUE] * 30


@pytest.mark.slow
@pytest.mark.parametrize("ready", [True, False])
def test_fsspec_store_in_a_forked_child(tmp_path: Path, ready: bool) -> None:
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


def test_store_for_finds_the_store(tmp_path: Path) -> None:
    local, mapper = LocalFileSystem(), fsspec.get_mapper("slow://b/x", place=str(tmp_path))
    for given in (
        fsspec.get_mapper(f"file://{tmp_path}/x"),
        DirFileSystem(path="x", fs=DirFileSystem(path=str(tmp_path), fs=local)),
        fsspec.FSMap("x", DirFileSystem(path=str(tmp_path), fs=local)),
        fsspec.FSMap(f"{tmp_path}/x", AsyncFileSystemWrapper(local, asynchronous=True)),
    ):
        assert store_for(given) == LocalStore(tmp_path / "x")
    store = store_for(mapper, read_only=True)
    assert (type(store), repr(store), store.read_only) == (FsspecStore, "<FsspecStore 'slow://b/x'>", True)
    assert repr(FsspecStore(mapper, "y/")) == "<FsspecStore 'slow://b/x/y'>"
    refused(TypeError, "mapper", *(partial(store_for, wrong) for wrong in (5, object(), None, {})))
    local_store = partial(FsspecStore, local, str(tmp_path))
    refused(TypeError, "storage_options", lambda: local_store(storage_options={"a": 1}))
    wrong = (partial(local_store, concurrency=number) for number in (0, -1, 1.5, "4"))
    refused(ValueError, r"concurrency.*at least 1", *wrong)


def test_fsspec_store_makes_asynchronous_file_systems_again(tmp_path: Path) -> None:
    fs = Slow(place=str(tmp_path), asynchronous=True)
    for given, path in ((fs, "b"), (DirFileSystem(path="b", fs=fs, asynchronous=True), "")):
        store = FsspecStore(given, path)
        store.set("a", VALUE)
        assert store.get("a") == VALUE


CACHES = ("simplecache", "filecache", "blockcache")


@pytest.mark.parametrize(("url", "options", "text"), [
    ("nosuch://a/b", {}, "nosuch.*correct the URL"),
    ("webdav://a/b", {}, "(?i)webdav4.*install the package"),
    ("zip://::file:///none.zip", {}, r"none\.zip"),
    ("reference://", {"fo": "/none.json"}, r"none\.json"),
    # They leave what a failed download has written, and take a failure to look for absence.
    *((f"{kind}::memory://b", {}, "cache of fsspec.*use CacheStore") for kind in CACHES),
    *(("reference://", {"fo": {"a": []}, "fs": kind}, "cache of fsspec.*use CacheStore") for kind in CACHES),
])  # fmt: skip
def test_fsspec_store_says_what_it_cannot_open(url: str, options: dict[str, Any], text: str) -> None:
    if "fs" in options:
        options = {**options, "fs": fsspec.filesystem(options["fs"], target_protocol="memory")}
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
            shown.append(str(attempt(ask, StoreError)))
        assert SECRET not in "\n".join(shown)
        assert pickle.loads(pickle.dumps(store)).identity == store.identity
    for place in (f"user:{SECRET}@a?token={SECRET}", f"user:se@{SECRET}@a", f"::ftp://user:{SECRET}@a.tar"):
        opened = partial(FsspecStore, f"nosuch://{place}", storage_options={"password": SECRET})
        assert SECRET not in str(refused(StoreError, None, opened))


def test_fsspec_store_identities_are_those_of_places(tmp_path: Path) -> None:
    def identity(**options: Any) -> object:
        return FsspecStore("slow://b/x", storage_options={"place": str(tmp_path), **options}).identity

    here = FsspecStore(Slow(place=str(tmp_path)), "b/x")
    assert identity() == identity() == here.identity != identity(place=f"{tmp_path}/other")
    assert FsspecStore("memory://a").identity != FsspecStore("memory://b").identity
    assert run_child(lambda: pickle.loads(pickle.dumps(here)).identity).checked() == here.identity


@pytest.mark.parametrize("reference", [
    *(["file://{}/none", 0, 5], ["file://{}/none"], ["file://{}/data", 5, 20], ["file://{}/data", 5, -2]),
    *(["ftp://host/data", 5, 2], ["file://{}/data", 50, 2], ["file://{}/data", "x", 2]),
    *(["file://{}/data", 0.5, 2], ["file://{}/data", 5], ["file://{}/data", 5, None], [None, 5, 2], []),
], ids=repr)  # fmt: skip
def test_fsspec_store_references_that_lead_nowhere_are_errors(tmp_path: Path, reference: Any) -> None:
    (tmp_path / "data").write_bytes(VALUE)
    given = [part.format(tmp_path) if isinstance(part, str) else part for part in reference]
    fs = fsspec.filesystem("reference", fo={"a/b": given}, remote_protocol="file")
    for store in (FsspecStore(fs), store_for(fsspec.FSMap("", fs, missing_exceptions=(Exception,)))):
        reads = (store.get, partial(store.get, byte_range=(1, None)), store.open, store.exists)
        refused(StoreError, "a/b", *(partial(read, "a/b") for read in reads))
        assert store.get("a/c") is None


def test_fsspec_store_references_that_cannot_be_reached_are_errors(tmp_path: Path) -> None:
    for error, kind in ((ConnectionError("refused"), StoreError), (StatusError(403), StorePermissionError)):
        Failing.answer = error
        fs = Failing(place=str(tmp_path), skip_instance_cache=True)
        store = FsspecStore("reference://", storage_options={"fo": {"a/b": ["failing://x", 2, 30]}, "fs": fs})
        refused(kind, "a/b", *questions(store)[:-2])


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


def test_fsspec_store_references_in_tables(tmp_path: Path) -> None:
    """Of what fsspec gives of references that lie in Parquet files, the contents are told here."""
    (tmp_path / "data").write_bytes(VALUE)
    (tmp_path / "refs").mkdir()
    array = {"shape": [6, 4], "chunks": [2, 2], "zarr_format": 2}
    metadata = {".zgroup": {"zarr_format": 2}, "g/.zgroup": {"zarr_format": 2}, "v/.zarray": array}
    (tmp_path / "refs/.zmetadata").write_text(json.dumps({"metadata": metadata, "record_size": 4}))
    url = f"file://{tmp_path}/data"
    tables: dict[int, Any] = {0: {
        "path": np.array([url, None, float("nan"), url], dtype=object),
        "offset": np.array([2, 0, 0, 0]),
        "size": np.array([3, 0, 0, 0]),
        "raw": np.array([None, b"raw", None, None], dtype=object),
    }}  # fmt: skip

    def open_refs(field: str, record: int) -> Any:
        table = tables.get(record, FileNotFoundError(f"refs.{record}.parq"))
        if isinstance(table, Exception):
            raise table
        return table

    store = FsspecStore(fsspec.filesystem("reference", fo={"x": ""}, remote_protocol="file"))
    store._fs.references = references = LazyReferenceMapper(str(tmp_path / "refs"))
    references.setup()
    references.open_refs = open_refs
    assert [store.get(key) for key in ("v/0.0", "v/0.1", "v/1.0", "v/1.1")] == [b"234", b"raw", None, VALUE]
    for absent in ("v/2.0", "v/x", "v/zarr.json", "w/0.0", "v", "v/-1.0"):
        assert store.get(absent) is None, absent
    assert json.loads(bytes(store.get("v/.zarray") or b""))["shape"] == [6, 4]
    assert {"v/0.0", "v/0.1", "v/1.0", "v/1.1"} & {*store.list()} == {"v/0.0", "v/0.1", "v/1.1"}
    assert store.list_dir("")[1] == {"g/", "v/"}
    for broken in (ValueError("corrupt"), TypeError("x"), PermissionError(13, "no"), ConnectionError(), None):
        tables[0] = broken
        refused(StoreError, r"v/0\.0", lambda: store.get("v/0.0"))


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
        for key in "kmn":
            refused(StoreError, f"'{key}'", *reads_of(store(**options), key))
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


def test_store_for_http_is_an_object_store_or_reads_by_fsspec(fault_server: Any) -> None:
    pytest.importorskip("aiohttp")
    pytest.importorskip("obstore")
    fault_server.put("/b/x/a", VALUE)

    made = partial(fsspec.filesystem, "http", skip_instance_cache=True)
    systems = made(), made(headers={"Authorization": "Basic eA=="})
    plain, signed = (store_for(fs.get_mapper(f"{fault_server.url}/b/x")) for fs in systems)
    assert (type(plain).__name__, type(signed)) == ("ObjectStore", FsspecStore)
    for each in (plain, signed, pickle.loads(pickle.dumps(signed))):
        assert read_back(each, "a") == [VALUE] * 4
        assert [each.get("a", (2, 3)), each.get("b")] == [b"234", None]
        assert not each.writeable
    assert fault_server.log()[-1]["signed"]
    assert not signed.listable


Replaced = tuple[FsspecStore, Callable[..., None]]


@pytest.fixture(params=["slow", "mute", "local"])
def replaced(request: pytest.FixtureRequest, tmp_path: Path) -> Replaced:
    """A store, and what stores a value in it, the one after next after so many answers."""
    if request.param == "local":
        store = FsspecStore(LocalFileSystem(), str(tmp_path / "x"), concurrency=4)
    else:
        store = slow(tmp_path, Mute if request.param == "mute" else Slow)
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
@pytest.mark.parametrize("sizes", [(5000, 30), (30, 5000)], ids=["shorter", "longer"])
def test_fsspec_store_parts_of_values_that_become(replaced: Replaced, after: int, sizes: Any) -> None:
    store, replace = replaced
    old, new = bytes([1]) * (sizes[0] - 20) + b"a" * 20, bytes([2]) * (sizes[1] - 20) + b"b" * 20
    for part in ((-20, None), (-20, 5), (5, 2**40), (-(2**40), None), (0, 25)):
        expected = [bytes(cut(value, part)) for value in (old, new)]
        replace("a", old, new, after)
        assert all(store.get("a", part) in expected for _ in range(2))


def test_fsspec_store_reads_shard_indexes_once(tmp_path: Path) -> None:
    store = slow(tmp_path)
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
    store = slow(tmp_path)
    keys = [f"c/{at}" for at in range(20)]
    store.set_values((key, bytes(1000)) for key in keys)

    def most(awaited: int) -> int:
        Slow.most, Slow.awaited = 0, awaited
        store.get_values(keys)
        return Slow.most

    monkeypatch.setattr(in_flight._budget, "limit", 450)
    assert most(1) == 1
    in_flight.set_limit(5000)
    for _ in range(60):  # What values are like is learned from those that came.
        most(1)
    assert most(5) == 5
    monkeypatch.undo()
    assert most(6) > 5
    assert in_flight._budget.used == 0
