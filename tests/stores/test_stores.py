"""The stores: each against the common conformance tests, and what each does beyond them."""

from __future__ import annotations

import os
import pickle
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import fsspec
import pytest
from _conformance import VALUE, contents, read_back, run_threads
from _kinds import NOT_PICKLED, conformance, reading
from _things import Thing
from _unprivileged import run_child
from fsspec.implementations.local import LocalFileSystem
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import xzarr3
from xzarr3 import (
    InvalidKeyError,
    InvalidRangeError,
    LocalStore,
    MemoryStore,
    NodeNotFoundError,
    ReadOnlyError,
    Store,
    StoreCapabilityError,
    StoreError,
    open_store,
)
from xzarr3._types import Buffer, ByteRange
from xzarr3.stores import CacheStore, LoggingStore, ReadOnlyStore, WrapperStore
from xzarr3.stores.base import check_key, check_prefix, cut, flat, merge, sorted_parts
from xzarr3.stores.fsspec.store import FsspecStore
from xzarr3.stores.zip.store import ZipStore


class Held(Store):
    """A dictionary; a derived class says what can be done with it."""

    def __init__(self, values: dict[str, bytes] | None = None, *, read_only: bool = False) -> None:
        super().__init__(read_only=read_only)
        self.values = {} if values is None else values
        self.lock = threading.RLock()


class Gets(Held):
    def get(self, key: str, byte_range: ByteRange | None = None) -> Buffer | None:
        value = self.values.get(check_key(key))
        return value if value is None or byte_range is None else cut(value, byte_range)


class Sets(Held):
    def set(self, key: str, value: Buffer) -> None:
        self._check_writable()
        self.values[check_key(key)] = bytes(flat(value, key))


class Erases(Held):
    def erase(self, key: str) -> None:
        self._check_writable()
        self.values.pop(check_key(key), None)


class Lists(Held):
    def list(self) -> Iterator[str]:
        return iter(list(self.values))


class ListsPrefixes(Held):
    def list_prefix(self, prefix: str) -> Iterator[str]:
        check_prefix(prefix)
        return (key for key in list(self.values) if key.startswith(prefix))


class ListsDirectories(Held):
    def list_dir(self, prefix: str) -> tuple[set[str], set[str]]:
        check_prefix(prefix)
        below = [key[len(prefix) :] for key in list(self.values) if key.startswith(prefix)]
        return (
            {prefix + key for key in below if "/" not in key},
            {f"{prefix}{key.partition('/')[0]}/" for key in below if "/" in key},
        )


class GetsParts(Held):
    def get_partial_values(self, key_ranges: Iterable[tuple[str, ByteRange]]) -> list[Buffer | None]:
        found = [(self.values.get(check_key(key)), byte_range) for key, byte_range in key_ranges]
        return [None if value is None else cut(value, byte_range) for value, byte_range in found]


class SetsParts(Held):
    def set_partial_values(self, key_start_values: Iterable[tuple[str, int, Buffer]]) -> None:
        self._check_writable()
        with self.lock:
            parts = sorted_parts(key_start_values)
            changed = {key: merge(key, self.values.get(key), pieces) for key, pieces in parts.items()}
            self.values.update({key: bytes(value) for key, value in changed.items()})


class ErasesValues(Held):
    def erase_values(self, keys: Iterable[str]) -> None:
        self._check_writable()
        for key in [check_key(key) for key in keys]:
            self.values.pop(key, None)


class Plain(Gets, Sets, Erases, ListsPrefixes):
    """Whole values, as most stores have them."""


class Dictionary(Gets, Sets, Erases, Lists):
    """As little as a key-value database has."""


class Tree(Gets, Sets, ErasesValues, ListsDirectories):
    """Can list one directory at a time."""


class Partial(GetsParts, SetsParts, ErasesValues, ListsDirectories):
    """Only parts of values, which the text calls a store with partial access."""


class Published(Gets, Lists):
    """What lies on a server."""


class PublishedParts(GetsParts, ListsDirectories):
    """The same with ranges."""


UNVERSIONED = {"holds_versions": False, "stamps": False, **NOT_PICKLED}
TestDictionaryStore = conformance(lambda base: Dictionary(), **UNVERSIONED)
TestTreeStore = conformance(lambda base: Tree(), **UNVERSIONED)
TestPartialStore = conformance(lambda base: Partial(), replaces=False, **UNVERSIONED)
TestMemoryStore = conformance(lambda base: MemoryStore(), travels="copy")
TestLocalStore = conformance(lambda base: LocalStore(base / "store"), nests=False)
TestReadingPublished = reading(lambda values, base: Published(values))
TestReadingPublishedParts = reading(lambda values, base: PublishedParts(values))
TestReadingMemoryStore = reading(lambda values, base: MemoryStore(values, read_only=True))


# Memory


def test_memory_made_from_a_mapping() -> None:
    given = {"a/b": bytearray(b"x"), "c": memoryview(b"yy")}
    store = MemoryStore(given)
    given["a/b"][:] = b"#"
    given["d"] = bytearray(b"later")
    assert contents(store) == {"a/b": b"x", "c": b"yy"}
    with pytest.raises(InvalidKeyError):
        MemoryStore({"../a": b""})


class Derived(MemoryStore):
    """Holds more than its base."""

    tag = "of the class"


def test_memory_in_another_process_is_that_of_the_newest_pickle() -> None:
    """A worker that still holds an old copy must not answer with it."""
    store = Derived({"a": b"old"})
    store.tag = "of the store"
    first = pickle.dumps(store)
    store.set("a", b"new")
    second = pickle.dumps(store)
    assert pickle.loads(first) is pickle.loads(second) is store

    def work() -> list[tuple[object, ...]]:
        copies = [pickle.loads(data) for data in (first, second, first)]
        return [(type(copy), copy.tag, bytes(copy.get("a"))) for copy in copies]

    values = (b"old", b"new", b"old")
    assert run_child(work).checked() == [(Derived, "of the store", value) for value in values]


def test_memory_in_another_process_refuses_writes() -> None:
    store = MemoryStore({"a": b"old"})
    data = pickle.dumps((store, xzarr3.create_array(store, "x", data=[1, 2, 3])))

    def work() -> list[int]:
        copy, array = pickle.loads(data)
        for write in (
            lambda: copy.set("a", b"lost"),
            lambda: copy.erase("a"),
            lambda: array.__setitem__(0, 5),
            lambda: array.resize((9,)),
            lambda: array.attrs.update(lost=True),
        ):
            with pytest.raises(ReadOnlyError):
                write()
        return array[:].tolist()  # type: ignore[no-any-return]

    assert run_child(work).checked() == [1, 2, 3]


def test_threads_of_a_memory_store_lose_no_writes() -> None:
    store = MemoryStore()
    run_threads(*[lambda at=at: [store.set(f"{at}/{step}", b"x") for step in range(500)] for at in range(8)])  # type: ignore[misc]
    assert len(list(store.list())) == store._version == 4000


def test_parts_do_not_undo_what_another_thread_stores() -> None:
    """Between the reading of the old value and the writing of the new one there is no room for others."""
    store = MemoryStore({"a": b"-" * 10})
    wrong = []

    def whole() -> None:
        for step in range(3000):
            value = b"%010d" % step
            store.set("a", value)
            found = bytes(store.get("a") or b"")
            if found not in (value, value[:-1] + b"x"):
                wrong.append((value, found))

    def parts() -> None:
        for _ in range(3000):
            store.set_partial_values([("a", 9, b"x")])

    run_threads(whole, parts)
    assert wrong == []


# Local files


def test_a_key_is_a_path_and_a_value_a_file(tmp_path: Path) -> None:
    store, root = LocalStore(tmp_path / "not" / "there"), tmp_path / "not" / "there"
    assert store.get("a/b") is None
    assert not (tmp_path / "not").exists(), "reading makes nothing"
    store.set("a/b", VALUE)
    assert (root / "a/b").read_bytes() == VALUE
    (root / "a/c").write_bytes(b"by hand")
    assert contents(store) == {"a/b": VALUE, "a/c": b"by hand"}
    store.set("a/d/e", VALUE)
    store.erase("a/d/e")
    assert sorted(os.listdir(root / "a")) == ["b", "c"], "no empty directory is left"
    store.erase_prefix("a/")
    store.erase("a/b")
    assert os.listdir(root) == [], "but the root stays"


def test_modes_of_files_and_directories(tmp_path: Path) -> None:
    """They follow the umask; those of the root stay."""
    (tmp_path / "store").mkdir(mode=0o700)

    def work() -> list[int]:
        os.umask(0o027)
        store = LocalStore(tmp_path / "store")
        store.set("a/b", VALUE)
        store.set("gone/b", VALUE)
        store.erase("gone/b")
        return [stat.S_IMODE(os.stat(f"{store.root}/{name}").st_mode) for name in ("a/b", "a", "")]

    assert run_child(work).checked() == [0o640, 0o750, 0o700]


def test_leftovers_of_a_killed_writer_are_no_keys(local_store: LocalStore) -> None:
    """Nothing can be stored under the name of a temporary file: it would not be listed, nor erased."""
    local_store.set("a/b", VALUE)
    (name,) = _temporary_names(local_store)
    Path(local_store.root, "a", name).write_bytes(b"half")
    assert contents(local_store) == {"a/b": VALUE}
    assert local_store.list_dir("a/") == ({"a/b"}, set())
    with pytest.raises(InvalidKeyError):
        local_store.set(f"a/{name}", b"hidden")
    local_store.set("a/b", b"new")
    assert contents(local_store) == {"a/b": b"new"}


def _temporary_names(store: LocalStore) -> list[str]:
    """The names that the store gives to the temporary files of one write."""
    names = []
    real = os.replace

    def spy(source: str, target: str, **folders: int) -> None:
        names.append(os.path.basename(source))
        real(source, target, **folders)

    os.replace = spy  # type: ignore[assignment]
    try:
        store.set("a/b", VALUE)
    finally:
        os.replace = real
    return names


def test_equal_roots_make_equal_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path / "a")
    twin = LocalStore(f"{tmp_path}/b/../a/")
    assert store == twin
    assert hash(store) == hash(twin)
    assert store.__dask_tokenize__() == twin.__dask_tokenize__()
    assert store not in (LocalStore(tmp_path / "b"), LocalStore(tmp_path / "a", read_only=True))
    assert store != tmp_path / "a"
    monkeypatch.chdir(tmp_path)
    relative = LocalStore("a")
    monkeypatch.chdir("/")
    assert relative == pickle.loads(pickle.dumps(relative)) == store, "a relative root stays where it was"


def test_root_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"precious")
    store = LocalStore(tmp_path / "file")
    assert store.get("zarr.json") is None
    assert list(store.list()) == []
    with pytest.raises(StoreError, match="file"):
        store.set("zarr.json", b"{}")
    store.erase("zarr.json")
    assert (tmp_path / "file").read_bytes() == b"precious"


def test_links_within_the_store_are_followed(local_store: LocalStore) -> None:
    local_store.set("real/a", VALUE)
    root = Path(local_store.root)
    (root / "alias").symlink_to("real")
    (root / "real/b").symlink_to("a")
    assert sorted(local_store.list()) == ["alias/a", "alias/b", "real/a", "real/b"]
    assert read_back(local_store, "alias/b") == [VALUE] * 4
    assert local_store.list_dir("") == (set(), {"alias/", "real/"})
    for name, target in (("up", ".."), ("self", "."), ("root", root)):
        (root / "real" / name).symlink_to(target)
    listed = []
    for key in local_store.list():
        listed.append(key)
        assert len(listed) < 1000, "a circle of links ends"
    assert "real/a" in listed
    assert read_back(local_store, "real/up/real/a") == [VALUE] * 4


@pytest.mark.parametrize("target", ["link", ".git/annex/objects/gone"], ids=["itself", "nothing"])
def test_links_that_lead_to_no_value_are_not_absent(local_store: LocalStore, target: str) -> None:
    """The value is elsewhere and cannot be read: content that git-annex has not fetched, say."""
    local_store.set("a/b", VALUE)
    Path(local_store.root, "a/link").symlink_to(target)
    for read in (local_store.get, local_store.reader().open, local_store.reader().get):
        with pytest.raises(StoreError, match="a/link"):
            read("a/link")
    assert "a/b" in set(local_store.list())


def test_what_is_no_file_is_no_value(local_store: LocalStore) -> None:
    """Nobody waits for a pipe that no one writes to."""

    def work() -> set[str]:
        local_store.set("a/b", VALUE)
        os.mkfifo(f"{local_store.root}/a/pipe")
        answers = set()
        for read in (local_store.get, local_store.reader().open, local_store.reader().get):
            try:
                answers.add(repr(read("a/pipe")))
            except StoreError:
                answers.add("error")
        return answers

    assert run_child(work).checked() <= {"None", "error"}


@pytest.mark.slow
def test_descriptors_are_not_left_open(local_store: LocalStore) -> None:
    local_store.set("a/b", VALUE)
    os.mkdir(f"{local_store.root}/a/folder")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        for key in ("a/b", "a/folder", "a/none"):
            read_back(local_store, key)
        local_store.set("a/b", VALUE)
        with pytest.raises(StoreError):
            local_store.set("a/folder", VALUE)
        for at in range(40):
            local_store.set(f"many/{at}/x", VALUE)
        next(iter(local_store.list()))
        local_store.erase_values([f"many/{at}/x" for at in range(20)])
        local_store.erase_prefix("many/")
        local_store.erase_prefix("none/")
        local_store.erase("a/none/x")
        local_store.sweep()
    assert len(os.listdir("/proc/self/fd")) <= before  # Earlier tests may close something late.


def test_only_whole_values_get_the_name(local_store: LocalStore) -> None:
    """The inode changes with each write: nobody writes into the file that others read."""
    local_store.set("a", VALUE)
    with open(f"{local_store.root}/a", "rb") as old:
        local_store.set("a", b"new")
        assert old.read() == VALUE
        assert os.fstat(old.fileno()).st_nlink == 0


def test_parts_of_one_key_are_read_from_one_version(
    local_store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    local_store.set("a", VALUE)
    opened = []
    real = os.open

    def spy(path: str, *args: Any, **options: Any) -> int:
        opened.append(path)
        return real(path, *args, **options)

    monkeypatch.setattr(os, "open", spy)
    found = local_store.get_partial_values([("a", (0, 2)), ("b", (0, 1)), ("a", (-2, None)), ("a", (3, 0))])
    assert [None if part is None else bytes(part) for part in found] == [b"01", None, b"89", b""]
    assert opened == [f"{local_store.root}/a", f"{local_store.root}/b"]


def test_stamps_in_other_handles_and_processes(local_store: LocalStore) -> None:
    root, memory = local_store.root, MemoryStore({"a": VALUE})
    local_store.set("a", VALUE)
    expected = local_store.stamp(["a", "b"])
    assert LocalStore(root).stamp(["a", "b"]) == expected
    assert run_child(lambda: LocalStore(root).stamp(["a", "b"])).checked() == expected
    run_child(lambda: LocalStore(root).set("a", b"9876543210")).checked()
    assert local_store.stamp(["a", "b"]) != expected
    memory.set("b", VALUE)
    data = pickle.dumps(memory)
    assert run_child(lambda: pickle.loads(data).stamp(["a"])).checked() == memory.stamp(["a"])


# All stores against a dictionary


KEYS = st.sampled_from(["a/b", "a/c/d", "a/c/e", "a.b", "b", "c/f/g", "c/f/\u00e9"])
PREFIXES = st.sampled_from(["a/", "a/c/", "c/", "c/f/", "no/"])
VALUES = st.binary(max_size=12)
PARTS = st.lists(st.tuples(KEYS, st.integers(-1, 14), st.binary(max_size=5)), max_size=4)


STEPS = st.one_of(
    st.tuples(st.just("set"), KEYS, VALUES),
    st.tuples(st.just("set_partial_values"), PARTS),
    st.tuples(st.just("erase"), KEYS),
    st.tuples(st.just("erase_values"), st.lists(KEYS, max_size=4)),
    st.tuples(st.just("erase_prefix"), PREFIXES),
)


def _step(model: dict[str, bytes], name: str, *given: Any) -> bool:
    """Do one step to a dictionary; False if it is one that must be refused."""
    if name == "set":
        model[given[0]] = given[1]
    elif name == "set_partial_values":
        return _store_parts(model, given[0])
    else:
        gone = [given[0]] if name == "erase" else given[0]
        for key in list(model):
            if key.startswith(gone) if name == "erase_prefix" else key in gone:
                del model[key]
    return True


def _store_parts(model: dict[str, bytes], parts: list[tuple[str, int, bytes]]) -> bool:
    """Byte by byte: none may be named twice, and none of those before a part may be left open."""
    taken: set[tuple[str, int]] = set()
    values = {key: list(model.get(key, b"")) for key, _, _ in parts}
    for key, start, part in sorted(parts, key=lambda part: (part[1], len(part[2]))):
        if not 0 <= start <= len(values[key]):
            return False
        for at, byte in enumerate(part, start):
            if (key, at) in taken:
                return False
            taken.add((key, at))
            values[key][at : at + 1] = [byte]
    model.update({key: bytes(value) for key, value in values.items()})
    return True


MAKERS: dict[str, Callable[[Path], Store]] = {
    "memory": lambda base: MemoryStore(),
    "local": LocalStore,
    **{kind.__name__: lambda base, kind=kind: kind() for kind in (Plain, Dictionary, Tree, Partial)},  # type: ignore[misc]
}


@pytest.mark.parametrize("kind", MAKERS)
@given(steps=st.lists(STEPS, max_size=12), wanted=st.lists(st.tuples(KEYS, st.integers(-14, 14)), max_size=4))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_store_is_a_mapping(
    kind: str,
    steps: list[tuple[Any, ...]],
    wanted: list[tuple[str, int]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    store = MAKERS[kind](tmp_path_factory.mktemp("store"))
    model: dict[str, bytes] = {}
    for name, *given_ in steps:
        before = dict(model)
        if _step(model, name, *given_):
            getattr(store, name)(*given_)
        else:
            model = before
            with pytest.raises(InvalidRangeError):
                getattr(store, name)(*given_)
        assert contents(store) == model
    for prefix in ("", "a/", "a/c/", "c/", "no/"):
        below = [key for key in model if key.startswith(prefix)]
        assert sorted(store.list_prefix(prefix)) == sorted(below)
        rests = [key[len(prefix) :].partition("/") for key in below]
        assert store.list_dir(prefix) == (
            {prefix + name for name, slash, _ in rests if not slash},
            {f"{prefix}{name}/" for name, slash, _ in rests if slash},
        )
    found = store.get_partial_values([(key, (start, None)) for key, start in wanted])
    assert [None if part is None else bytes(part) for part in found] == [
        cut(model[key], (start, None)) if key in model else None for key, start in wanted
    ]


# Threads

THREADED: dict[str, Callable[[Path], Store]] = {
    "memory": lambda base: MemoryStore(),
    "local": LocalStore,
    "zip": lambda base: ZipStore(base / "x.zip", mode="w"),
    "fsspec": lambda base: FsspecStore(f"memory://{base.name}"),
    "cache": lambda base: CacheStore(MemoryStore(), directory=base),
    "plain": lambda base: Plain(),
}


@pytest.mark.parametrize("kind", THREADED)
def test_threads_change_parts_of_chunks(kind: str, tmp_path: Path) -> None:
    """Each changes its own elements of chunks and shards that all of them share."""
    with THREADED[kind](tmp_path) as store:
        plain = xzarr3.create_array(store, "p", shape=(64,), chunks=(32,), dtype="i4")
        shards = xzarr3.create_array(store, "s", shape=(64,), chunks=(8,), shards=(32,), dtype="i4")

        def work(at: int) -> None:
            for array in (plain, shards):
                for place in range(at, 64, 4):
                    array[place] = place + 1

        run_threads(*(lambda at=at: work(at) for at in range(4)))  # type: ignore[misc]
    for name in "ps":
        assert xzarr3.open_array(store, name)[:].tolist() == list(range(1, 65))


# What is left after a crash of the system


class FileTransfer(LocalFileSystem):
    """The file system of fsspec for SFTP as far as a store can tell, without a server."""

    protocol = "sftp"


SURVIVES: dict[str, tuple[Callable[[Path], Store], bool]] = {
    "memory": (lambda base: MemoryStore(), False),
    "a dict of the user": (lambda base: open_store({}), False),
    "a class of the user": (lambda base: Plain(), False),
    "a directory": (LocalStore, False),
    "a directory that waits for the disk": (lambda base: LocalStore(base, fsync=True), True),
    "a zip": (lambda base: ZipStore(base / "x.zip", mode="w"), False),
    "a zip that waits for the disk": (lambda base: ZipStore(base / "x.zip", mode="w", fsync=True), True),
    "a zip in memory": (lambda base: ZipStore(MemoryStore(), "x.zip", mode="w", fsync=True), False),
    "a service": (lambda base: open_store("s3://bucket/x.zarr"), True),
    "memory of fsspec": (lambda base: FsspecStore(f"memory://{base.name}"), False),
    "a directory of fsspec": (lambda base: FsspecStore(LocalFileSystem(), str(base)), False),
    "SFTP": (lambda base: FsspecStore(FileTransfer(), str(base)), False),
}
"""Stores of each kind, and whether their values are known to be there after a crash."""


@pytest.mark.parametrize("kind", SURVIVES)
@pytest.mark.parametrize("wrap", [lambda store: store, LoggingStore, CacheStore, ReadOnlyStore, WrapperStore])
def test_survives_crashes(kind: str, wrap: Callable[[Store], Store], tmp_path: Path) -> None:
    make, expected = SURVIVES[kind]
    with make(tmp_path) as store:
        assert wrap(store).survives_crashes is expected


def test_survives_crashes_in_stores_of_other_libraries(tmp_path: Path) -> None:
    obstore = pytest.importorskip("obstore.store")
    fast, slow = obstore.MemoryStore(), obstore.LocalStore(tmp_path)
    assert [open_store(store).survives_crashes for store in (fast, slow)] == [False, False]
    assert open_store(obstore.S3Store("bucket", skip_signature=True)).survives_crashes
    zarr = pytest.importorskip("zarr.storage")
    assert not open_store(zarr.LoggingStore(zarr.LocalStore(tmp_path))).survives_crashes


# Operations that a store lacks


OPERATIONS: dict[str, Callable[[Store], object]] = {
    "get": lambda store: store.get("a/b"),
    "get_partial_values": lambda store: store.get_partial_values([("a/b", (0, 1))]),
    "exists": lambda store: store.exists("a/b"),
    "open_value": lambda store: store.reader().open("a/b"),
    "loader": lambda store: store.reader().get("a/b"),
    "set": lambda store: store.set("a/b", b"x"),
    "set_partial_values": lambda store: store.set_partial_values([("a/b", 0, b"x")]),
    "erase": lambda store: store.erase("a/b"),
    "erase_values": lambda store: store.erase_values(["a/b"]),
    "erase_prefix": lambda store: store.erase_prefix("a/"),
    "list": lambda store: list(store.list()),
    "list_prefix": lambda store: list(store.list_prefix("a/")),
    "list_dir": lambda store: store.list_dir("a/"),
}
READ = {"get", "get_partial_values", "exists", "open_value", "loader"}
WRITE = {"set", "set_partial_values"}
ERASE = {"erase", "erase_values", "erase_prefix"}
LIST = {"list", "list_prefix", "list_dir"}


class Archive(Gets, Sets, Lists):
    """Takes values and never gives one up, as a zip archive does."""


class Unlisted(Gets, Sets, Erases):
    """Does not tell its keys."""


class PartialArchive(GetsParts, SetsParts, Lists):
    """The archive with parts."""


class DarkParts(SetsParts, ErasesValues):
    """Parts, which cannot be read."""


@pytest.mark.parametrize(
    ("kind", "abilities", "works"),
    [
        (Held, (False, False, False, False), set()),
        (Gets, (True, False, False, False), READ),
        (GetsParts, (True, False, False, False), READ),
        (Published, (True, False, False, True), READ | LIST),
        (Lists, (False, False, False, True), LIST),
        (ListsPrefixes, (False, False, False, True), LIST),
        (ListsDirectories, (False, False, False, True), LIST),
        (Sets, (False, True, False, False), {"set"}),
        (Archive, (True, True, False, True), READ | WRITE | LIST),
        (Unlisted, (True, True, True, False), READ | WRITE | {"erase", "erase_values"}),
        (PartialArchive, (True, True, False, True), READ | WRITE | LIST),
        (DarkParts, (False, True, True, False), WRITE | {"erase", "erase_values"}),
        (Plain, (True, True, True, True), set(OPERATIONS)),
    ],
)
def test_operations_that_a_store_lacks(
    kind: type[Held], abilities: tuple[bool, ...], works: set[str]
) -> None:
    """Each either works or says what the store would need."""
    store = kind({"a/b": b"y"})
    assert (store.readable, store.writeable, store.erasable, store.listable) == abilities
    for name, call in OPERATIONS.items():
        store.values = {"a/b": b"y"}
        if name in works:
            call(store)
            continue
        with pytest.raises(StoreError, match=kind.__name__) as caught:
            call(store)
        if name in WRITE | ERASE and not store.writeable:
            assert isinstance(caught.value, ReadOnlyError)
        else:
            assert isinstance(caught.value, StoreCapabilityError)
            assert isinstance(caught.value, NotImplementedError)
            asked = "get" if name in READ and name != "get_partial_values" else name
            assert f"cannot {asked};" in str(caught.value)
        assert "use a store with '" in str(caught.value)
        assert store.values == {"a/b": b"y"}
    assert store.stamp(["a/b"]) != store.stamp(["a/b"])


def test_set_of_a_store_that_sets_parts() -> None:
    store = PartialArchive({"a": b"12345"})
    store.set("a", b"abcde")
    store.set("b", b"")
    store.set("a", b"longer than before")
    assert store.values == {"a": b"longer than before", "b": b""}
    with pytest.raises(StoreCapabilityError, match="replace a value by a shorter one"):
        store.set("a", b"short")
    assert store.values["a"] == b"longer than before"
    dark = DarkParts({"a": b"12345"})
    dark.set("a", b"1")
    assert dark.values == {"a": b"1"}


def test_archive_holds_arrays() -> None:
    """A store that cannot erase is written to as long as nothing is to be erased."""
    store = Archive()
    array = xzarr3.create_array(store, "x", data=[1, 2, 3], chunks=2)
    array[0] = 7
    assert xzarr3.open_array(store, "x")[:].tolist() == [7, 2, 3]
    with pytest.raises(StoreCapabilityError, match="Archive"):
        xzarr3.create_array(store, "x", data=[4], overwrite=True)
    assert xzarr3.open_array(store, "x")[:].tolist() == [7, 2, 3]


@pytest.mark.parametrize("prefixes", [{"a/"}, {"b/"}, {""}, {"a/b"}, {"a"}])
def test_store_that_lists_directories_that_are_none(prefixes: set[str]) -> None:
    class Circle(Gets):
        def list_dir(self, prefix: str) -> tuple[set[str], set[str]]:
            return set(), prefixes

    with pytest.raises(StoreError, match="Circle"):
        list(Circle().list_prefix("a/"))


def test_value_that_vanishes_while_its_parts_are_read() -> None:
    store = Plain({"a/b": VALUE})
    reader = store.reader().open("a/b")
    assert reader is not None
    store.erase("a/b")
    with pytest.raises(StoreError, match="a/b"), reader:
        reader.read(0, 3)


# Opening


@pytest.mark.parametrize(
    ("location", "kind"),
    [
        ("s3://bucket/x", "ObjectStore"),
        ("https://example.invalid/x.zarr", "ObjectStore"),
        ("gs://a/b", "ObjectStore"),
        ("memory://x", "FsspecStore"),
        ("dir::memory://x", "FsspecStore"),
        ("file:///x.zarr", "LocalStore"),
        ("C:", "LocalStore"),  # A drive, or a name with a colon, is no URL.
    ],
)
def test_open_store_knows_what_a_url_is(location: str, kind: str) -> None:
    assert type(open_store(location)).__name__ == kind


def test_open_store_takes_paths_and_stores(tmp_path: Path) -> None:
    path = tmp_path / "a b#c%41.zarr"
    assert open_store(str(path)) == open_store(path) == LocalStore(path)
    assert open_store(f"file://{quote(str(path))}") == LocalStore(path)
    for store in (MemoryStore(), LocalStore(path, read_only=True)):
        assert open_store(store) is store
    with pytest.raises(StoreError, match=r"(?s)nowhere.*correct the URL"):
        open_store("nowhere://a/b")


def test_open_store_knows_zips(tmp_path: Path) -> None:
    path = tmp_path / "x.zarr.zip"
    with pytest.raises(NodeNotFoundError, match="ZipStore"):
        open_store(path)
    with open_store(path, mode="a") as store:
        store.set("a", VALUE)
    assert bytes(open_store(f"file://{path}").get("a") or b"") == VALUE
    folder = tmp_path / "folder.zip"
    folder.mkdir()
    assert open_store(folder) == LocalStore(folder)


@pytest.mark.parametrize(
    "url",
    ["s3://archive.zip", "gs://archive.zip/", "https://data.zip", "https://data.zip/", "s3://a.zip/x.zarr"],
)
def test_open_store_takes_no_bucket_and_no_host_for_a_zip(url: str) -> None:
    assert str(open_store(url)) == f"<ObjectStore '{url.rstrip('/')}'>"


def test_open_store_takes_options(tmp_path: Path) -> None:
    store = open_store(tmp_path, {"fsync": True, "read_only": True})
    assert (store, store.read_only) == (LocalStore(tmp_path, fsync=True, read_only=True), True)
    for place, option in ((tmp_path, "anon"), (MemoryStore(), "read_only"), (tmp_path / "a.zip", "secret")):
        with pytest.raises(TypeError, match=option) as caught:
            open_store(place, {option: "hush"})
        assert "hush" not in str(caught.value)


def test_open_store_takes_what_other_libraries_have(tmp_path: Path) -> None:
    obstore = pytest.importorskip("obstore.store")
    assert type(open_store(fsspec.filesystem("memory"))).__name__ == "FsspecStore"
    assert type(open_store(fsspec.get_mapper("memory://a"))).__name__ == "FsspecStore"
    assert open_store(fsspec.get_mapper(str(tmp_path))) == LocalStore(tmp_path)
    assert type(open_store(obstore.S3Store("bucket", skip_signature=True))).__name__ == "ObjectStore"


@pytest.mark.parametrize("thing", [None, 5, b"path", {1: b""}, {"a": 5}, ["a"], Thing()])
def test_open_store_refuses_other_things(thing: object) -> None:
    with pytest.raises(TypeError, match="not a store"):
        open_store(thing)  # type: ignore[arg-type]
