"""The stores: every one against the common conformance tests, and what each does beyond them."""

from __future__ import annotations

import os
import pickle
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from _conformance import VALUE, ReadingConformance, StoreConformance, contents, read_back, run_threads
from _things import Thing
from _unprivileged import run_child
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
from xzarr3.stores.base import check_key, check_prefix, cut, flat, merge, sorted_parts


class Held(Store):
    """A dictionary that travels; what can be done with it is for others to say."""

    def __init__(self, values: dict[str, bytes] | None = None, *, read_only: bool = False) -> None:
        super().__init__(read_only=read_only)
        self.values = {} if values is None else values
        self.lock = threading.RLock()

    def __reduce__(self) -> tuple[object, ...]:
        HELD[self._identity] = self.values
        here = (self._identity, dict(self.values), self.read_only, os.getpid())
        return _restore_held, (type(self), *here)


HELD: dict[str, dict[str, bytes]] = {}


def _restore_held(
    kind: type[Held], identity: str, values: dict[str, bytes], read_only: bool, process: int
) -> Held:
    here = process == os.getpid()
    store = kind(HELD[identity] if here else values, read_only=read_only or not here)
    store._identity = identity
    return store


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


class Masked(Store):
    """A storage transformer: values are masked and go to another store, in parts where they come in parts."""

    def __init__(self, inner: Store) -> None:
        super().__init__(read_only=inner.read_only)
        self.inner = inner

    @property
    def identity(self) -> object:
        return "Masked", self.inner.identity

    @property
    def readable(self) -> bool:
        return self.inner.readable

    @property
    def writeable(self) -> bool:
        return self.inner.writeable

    @property
    def erasable(self) -> bool:
        return self.inner.erasable

    @property
    def listable(self) -> bool:
        return self.inner.listable

    def __repr__(self) -> str:
        return f"<Masked {self.inner}>"

    def __reduce__(self) -> tuple[object, ...]:
        return Masked, (self.inner,)

    def __dask_tokenize__(self) -> object:
        return "Masked", self.inner.__dask_tokenize__()

    def get(self, key: str, byte_range: ByteRange | None = None) -> Buffer | None:
        value = self.inner.get(key, byte_range)
        return None if value is None else _mask(value)

    def get_partial_values(self, key_ranges: Iterable[tuple[str, ByteRange]]) -> list[Buffer | None]:
        found = self.inner.get_partial_values(key_ranges)
        return [None if value is None else _mask(value) for value in found]

    def stamp(self, keys: Sequence[str]) -> object:
        return self.inner.stamp(keys)

    def set(self, key: str, value: Buffer) -> None:
        self.inner.set(key, _mask(flat(value, key)))

    def set_partial_values(self, key_start_values: Iterable[tuple[str, int, Buffer]]) -> None:
        self.inner.set_partial_values(
            (key, start, _mask(flat(value, key))) for key, start, value in key_start_values
        )

    def erase(self, key: str) -> None:
        self.inner.erase(key)

    def erase_values(self, keys: Iterable[str]) -> None:
        self.inner.erase_values(keys)

    def erase_prefix(self, prefix: str) -> None:
        self.inner.erase_prefix(prefix)

    def list(self) -> Iterator[str]:
        return self.inner.list()

    def list_prefix(self, prefix: str) -> Iterator[str]:
        return self.inner.list_prefix(prefix)

    def list_dir(self, prefix: str) -> tuple[set[str], set[str]]:
        return self.inner.list_dir(prefix)


def _mask(value: Buffer) -> bytes:
    return bytes(byte ^ 0x5A for byte in bytes(value))


class HeldConformance(StoreConformance):
    kind: type[Held]
    holds_versions = False
    stamps = False
    travels = "copy"

    def make(self, base: Path) -> Store:
        return self.kind()

    def read_only(self, store: Store) -> Store:
        assert isinstance(store, Held)
        return self.kind(store.values, read_only=True)


class TestPlainStore(HeldConformance):
    kind = Plain


class TestDictionaryStore(HeldConformance):
    kind = Dictionary


class TestTreeStore(HeldConformance):
    kind = Tree


class TestPartialStore(HeldConformance):
    kind = Partial
    replaces = False


class TestMaskedMemoryStore(StoreConformance):
    holds_versions = False
    travels = "copy"

    def make(self, base: Path) -> Store:
        return Masked(MemoryStore())

    def read_only(self, store: Store) -> Store:
        assert isinstance(store, Masked)
        return Masked(MemoryStore(contents(store.inner), read_only=True))


class TestMaskedLocalStore(StoreConformance):
    holds_versions = False
    nests = False

    def make(self, base: Path) -> Store:
        return Masked(LocalStore(base / "store"))

    def read_only(self, store: Store) -> Store:
        assert isinstance(store, Masked)
        assert isinstance(store.inner, LocalStore)
        return Masked(LocalStore(store.inner.root, read_only=True))


class TestReadingPublished(ReadingConformance):
    def make(self, base: Path) -> Store:
        return Published(dict(self.VALUES))


class TestReadingPublishedParts(ReadingConformance):
    def make(self, base: Path) -> Store:
        return PublishedParts(dict(self.VALUES))


class TestReadingPartial(ReadingConformance):
    def make(self, base: Path) -> Store:
        return Partial(dict(self.VALUES), read_only=True)


class TestReadingMemoryStore(ReadingConformance):
    def make(self, base: Path) -> Store:
        return MemoryStore(self.VALUES, read_only=True)


class TestReadingLocalStore(ReadingConformance):
    def make(self, base: Path) -> Store:
        writer = LocalStore(base / "store")
        for key, value in self.VALUES.items():
            writer.set(key, value)
        return LocalStore(base / "store", read_only=True)


class TestReadingMasked(ReadingConformance):
    def make(self, base: Path) -> Store:
        masked = {key: _mask(value) for key, value in self.VALUES.items()}
        return Masked(MemoryStore(masked, read_only=True))


class TestMemoryStore(StoreConformance):
    travels = "copy"

    def make(self, base: Path) -> Store:
        return MemoryStore()

    def read_only(self, store: Store) -> Store:
        return MemoryStore(contents(store), read_only=True)

    def test_made_from_a_mapping(self) -> None:
        given = {"a/b": bytearray(b"x"), "c": memoryview(b"yy")}
        store = MemoryStore(given)
        given["a/b"][:] = b"#"
        given["d"] = bytearray(b"later")
        assert contents(store) == {"a/b": b"x", "c": b"yy"}
        with pytest.raises(InvalidKeyError):
            MemoryStore({"../a": b""})

    def test_unpickled_it_is_the_same_object(self) -> None:
        store = MemoryStore()
        assert pickle.loads(pickle.dumps(store)) is store

    def test_another_process_sees_the_newest_pickle(self) -> None:
        """A worker that still holds an old copy must not answer with it."""
        store = MemoryStore({"a": b"old"})
        first = pickle.dumps(store)
        store.set("a", b"new")
        second = pickle.dumps(store)

        def work() -> list[bytes]:
            old = pickle.loads(first)
            new = pickle.loads(second)
            again = pickle.loads(first)
            return [bytes(copy.get("a")) for copy in (old, new, again)]

        assert run_child(work).checked() == [b"old", b"new", b"old"]

    def test_writes_in_another_process_are_refused(self) -> None:
        store = MemoryStore({"a": b"old"})
        array = xzarr3.create_array(store, "x", data=[1, 2, 3])
        data = pickle.dumps((store, array))

        def work() -> list[str]:
            copy, moved = pickle.loads(data)
            refused = []
            for write in (
                lambda: copy.set("a", b"lost"),
                lambda: copy.erase("a"),
                lambda: moved.__setitem__(0, 5),
                lambda: moved.resize((9,)),
                lambda: moved.attrs.update(lost=True),
            ):
                with pytest.raises(ReadOnlyError) as caught:
                    write()
                refused.append(type(caught.value).__name__)
            assert moved[:].tolist() == [1, 2, 3]
            return refused

        assert run_child(work).checked() == ["ReadOnlyError"] * 5


class TestLocalStore(StoreConformance):
    nests = False

    def make(self, base: Path) -> Store:
        return LocalStore(base / "store")

    def read_only(self, store: Store) -> Store:
        assert isinstance(store, LocalStore)
        return LocalStore(store.root, read_only=True)

    def test_a_key_is_a_path_and_a_value_a_file(self, tmp_path: Path) -> None:
        store = LocalStore(tmp_path / "not" / "there")
        assert store.get("a/b") is None
        assert not (tmp_path / "not").exists(), "reading makes nothing"
        store.set("a/b", VALUE)
        assert (tmp_path / "not/there/a/b").read_bytes() == VALUE
        (tmp_path / "not/there/a/c").write_bytes(b"by hand")
        assert contents(store) == {"a/b": VALUE, "a/c": b"by hand"}

    def test_files_get_the_permissions_the_user_wants(self, tmp_path: Path) -> None:
        def work() -> tuple[int, int]:
            os.umask(0o027)
            store = LocalStore(tmp_path / "store")
            store.set("a/b", VALUE)
            return os.stat(f"{store.root}/a/b").st_mode & 0o777, os.stat(f"{store.root}/a").st_mode & 0o777

        assert run_child(work).checked() == (0o640, 0o750)

    def test_erasing_removes_empty_directories_but_not_the_root(self, tmp_path: Path) -> None:
        store = LocalStore(tmp_path / "store")
        store.set("a/b/c", VALUE)
        store.set("a/d", VALUE)
        store.erase("a/b/c")
        assert sorted(os.listdir(tmp_path / "store/a")) == ["d"]
        store.erase("a/d")
        assert os.listdir(tmp_path / "store") == []
        store.erase("a/d")
        assert (tmp_path / "store").is_dir()

    def test_leftovers_of_a_killed_writer_are_no_keys(self, tmp_path: Path) -> None:
        store = LocalStore(tmp_path / "store")
        store.set("a/b", VALUE)
        names = _temporary_names(store)
        assert names, "a value goes through a temporary file"
        for name in names:
            (tmp_path / "store/a" / name).write_bytes(b"half")
        assert contents(store) == {"a/b": VALUE}
        assert store.list_dir("a/") == ({"a/b"}, set())
        store.set("a/b", b"new")
        assert contents(store) == {"a/b": b"new"}

    def test_names_of_temporary_files_are_no_keys(self, tmp_path: Path) -> None:
        """What could be stored under such a name would not be listed, nor erased with its group."""
        store = LocalStore(tmp_path / "store")
        store.set("a/b", VALUE)
        (name,) = _temporary_names(store)
        try:
            store.set(f"a/{name}", b"hidden")
        except InvalidKeyError:
            assert contents(store) == {"a/b": VALUE}
        else:
            assert contents(store) == {"a/b": VALUE, f"a/{name}": b"hidden"}

    def test_relative_root_stays_where_it_was(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "one").mkdir()
        (tmp_path / "two").mkdir()
        monkeypatch.chdir(tmp_path / "one")
        store = LocalStore("here/x.zarr")
        monkeypatch.chdir(tmp_path / "two")
        store.set("a", VALUE)
        pickle.loads(pickle.dumps(store)).set("b", VALUE)
        assert sorted(os.listdir(tmp_path / "one/here/x.zarr")) == ["a", "b"]
        assert os.listdir(tmp_path / "two") == []

    def test_equal_roots_make_equal_stores(self, tmp_path: Path) -> None:
        store = LocalStore(tmp_path / "a")
        twin = LocalStore(f"{tmp_path}/b/../a/")
        assert store == twin
        assert hash(store) == hash(twin)
        assert store.__dask_tokenize__() == twin.__dask_tokenize__()
        assert store != LocalStore(tmp_path / "b")
        assert store != LocalStore(tmp_path / "a", read_only=True)
        assert store != tmp_path / "a"

    def test_root_that_is_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"precious")
        store = LocalStore(tmp_path / "file")
        assert store.get("zarr.json") is None
        assert list(store.list()) == []
        with pytest.raises(StoreError, match="file"):
            store.set("zarr.json", b"{}")
        store.erase("zarr.json")
        assert (tmp_path / "file").read_bytes() == b"precious"

    def test_links_within_the_store_are_followed(self, tmp_path: Path) -> None:
        store = LocalStore(tmp_path / "store")
        store.set("real/a", VALUE)
        (tmp_path / "store/alias").symlink_to("real")
        (tmp_path / "store/real/b").symlink_to("a")
        assert sorted(store.list()) == ["alias/a", "alias/b", "real/a", "real/b"]
        assert read_back(store, "alias/b") == [VALUE] * 4
        assert store.list_dir("") == (set(), {"alias/", "real/"})

    def test_circles_of_links_end(self, tmp_path: Path) -> None:
        store = LocalStore(tmp_path / "store")
        store.set("a/b", VALUE)
        (tmp_path / "store/a/up").symlink_to("..")
        (tmp_path / "store/a/self").symlink_to(".")
        (tmp_path / "store/a/root").symlink_to(tmp_path / "store")
        listed = []
        for key in store.list():
            listed.append(key)
            assert len(listed) < 1000
        assert "a/b" in listed
        assert bytes(store.get("a/up/a/b") or b"") == VALUE

    def test_link_that_points_to_itself_can_be_listed_but_not_read(self, tmp_path: Path) -> None:
        store = LocalStore(tmp_path / "store")
        store.set("a/b", VALUE)
        (tmp_path / "store/a/loop").symlink_to("loop")
        for read in (store.get, store.exists, store.reader().open, store.reader().get):
            with pytest.raises(StoreError, match="a/loop"):
                read("a/loop")
        try:
            keys = list(store.list())
        except StoreError as error:
            assert "loop" in str(error)  # noqa: PT017 - either answer will do
        else:
            assert "a/b" in keys

    def test_link_to_nothing_is_not_absent(self, tmp_path: Path) -> None:
        """The value is elsewhere and cannot be read: content that git-annex has not fetched, say."""
        store = LocalStore(tmp_path / "store")
        store.set("a/b", VALUE)
        (tmp_path / "store/a/gone").symlink_to(".git/annex/objects/gone")
        for read in (store.get, store.reader().open, store.reader().get):
            with pytest.raises(StoreError, match="a/gone"):
                read("a/gone")

    def test_what_is_no_file_is_no_value(self, tmp_path: Path) -> None:
        """And nobody waits for a pipe that no one writes to."""

        def work() -> list[str]:
            store = LocalStore(tmp_path / "store")
            store.set("a/b", VALUE)
            os.mkfifo(tmp_path / "store/a/pipe")
            answers = []
            for read in (store.get, store.reader().open, store.reader().get):
                try:
                    answers.append(repr(read("a/pipe")))
                except StoreError:
                    answers.append("error")
            return answers

        answers = run_child(work).checked()
        assert set(answers) <= {"None", "error"}

    @pytest.mark.slow
    def test_descriptors_are_not_left_open(self, tmp_path: Path) -> None:
        store = LocalStore(tmp_path / "store")
        store.set("a/b", VALUE)
        os.mkdir(tmp_path / "store/a/folder")
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            read_back(store, "a/b")
            read_back(store, "a/folder")
            read_back(store, "a/none")
            store.set("a/b", VALUE)
            with pytest.raises(StoreError):
                store.set("a/folder", VALUE)
            for at in range(40):
                store.set(f"many/{at}/x", VALUE)
            next(iter(store.list()))
            store.erase_values([f"many/{at}/x" for at in range(20)])
            store.erase_prefix("many/")
            store.erase_prefix("none/")
            store.erase("a/none/x")
            store.sweep()
        assert len(os.listdir("/proc/self/fd")) == before

    def test_only_whole_values_get_the_name(self, tmp_path: Path) -> None:
        """The inode changes with each write: nobody writes into the file that others read."""
        store = LocalStore(tmp_path / "store")
        store.set("a", VALUE)
        with (tmp_path / "store/a").open("rb") as old:
            store.set("a", b"new")
            assert old.read() == VALUE
            assert os.fstat(old.fileno()).st_nlink == 0

    def test_special_bits_of_the_directory_are_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "store").mkdir(mode=0o700)
        store = LocalStore(tmp_path / "store")
        store.set("a/b", VALUE)
        store.erase("a/b")
        assert stat.S_IMODE(os.stat(tmp_path / "store").st_mode) == 0o700


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


@pytest.mark.parametrize(
    "make",
    [
        *(lambda base: MemoryStore(), LocalStore, lambda base: Plain(), lambda base: Dictionary()),
        *(lambda base: Tree(), lambda base: Partial(), lambda base: Masked(MemoryStore())),
    ],
    ids=["memory", "local", "plain", "dictionary", "tree", "partial", "masked"],
)
@given(steps=st.lists(STEPS, max_size=12), wanted=st.lists(st.tuples(KEYS, st.integers(-14, 14)), max_size=4))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_store_is_a_mapping(
    make: Callable[[Path], Store],
    steps: list[tuple[Any, ...]],
    wanted: list[tuple[str, int]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    store = make(tmp_path_factory.mktemp("store"))
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
        model[key][start if start >= 0 else max(len(model[key]) + start, 0) :] if key in model else None
        for key, start in wanted
    ]


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


class Nothing(Held):
    """A store that can do nothing."""


class SetsOnly(Sets):
    """A pipe into the dark."""


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
        (Nothing, (False, False, False, False), set()),
        (Gets, (True, False, False, False), READ),
        (GetsParts, (True, False, False, False), READ),
        (Published, (True, False, False, True), READ | LIST),
        (Lists, (False, False, False, True), LIST),
        (ListsPrefixes, (False, False, False, True), LIST),
        (ListsDirectories, (False, False, False, True), LIST),
        (SetsOnly, (False, True, False, False), {"set"}),
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
        writes = name in WRITE | ERASE
        if writes and not store.writeable:
            assert isinstance(caught.value, ReadOnlyError)
        else:
            assert isinstance(caught.value, StoreCapabilityError)
            assert isinstance(caught.value, NotImplementedError)
            asked = "get" if name in READ and name != "get_partial_values" else name
            assert f"cannot {asked};" in str(caught.value)
        assert "use a store with '" in str(caught.value)
        assert store.values == {"a/b": b"y"}
    assert store.stamp(["a/b"]) != store.stamp(["a/b"])


def test_abilities_of_a_read_only_store() -> None:
    store = Plain({"a/b": VALUE}, read_only=True)
    assert (store.readable, store.writeable, store.erasable, store.listable) == (True, False, False, True)


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


def test_parts_of_one_key_are_read_from_one_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path / "store")
    store.set("a", VALUE)
    opened = []
    real = os.open

    def spy(path: str, *args: Any, **options: Any) -> int:
        opened.append(path)
        return real(path, *args, **options)

    monkeypatch.setattr(os, "open", spy)
    found = store.get_partial_values([("a", (0, 2)), ("b", (0, 1)), ("a", (-2, None)), ("a", (3, 0))])
    assert [None if part is None else bytes(part) for part in found] == [b"01", None, b"89", b""]
    assert opened == [f"{store.root}/a", f"{store.root}/b"]


def test_value_that_vanishes_while_its_parts_are_read() -> None:
    store = Plain({"a/b": VALUE})
    reader = store.reader().open("a/b")
    assert reader is not None
    store.erase("a/b")
    with pytest.raises(StoreError, match="a/b"), reader:
        reader.read(0, 3)


def test_open_store(tmp_path: Path) -> None:
    path = tmp_path / "a b#c%41.zarr"
    assert open_store(str(path)) == open_store(path) == LocalStore(path)
    assert open_store(f"file://{quote(str(path))}") == LocalStore(path)
    for store in (MemoryStore(), LocalStore(path, read_only=True)):
        assert open_store(store) is store
    assert open_store("C:") == LocalStore("C:"), "a drive or a name with a colon is no URL"


@pytest.mark.parametrize(
    ("location", "kind"),
    [
        ("s3://bucket/x", "ObjectStore"),
        ("https://example.invalid/x.zarr", "ObjectStore"),
        ("gs://a/b", "ObjectStore"),
        ("memory://x", "FsspecStore"),
        ("dir::memory://x", "FsspecStore"),
        ("file:///x.zarr", "LocalStore"),
    ],
)
def test_open_store_knows_what_a_url_is(location: str, kind: str) -> None:
    assert type(open_store(location)).__name__ == kind


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


def test_open_store_refuses_urls_it_has_no_store_for() -> None:
    with pytest.raises(StoreError, match="nowhere") as caught:
        open_store("nowhere://a/b")
    assert "correct the URL" in str(caught.value)


def test_open_store_takes_options(tmp_path: Path) -> None:
    store = open_store(tmp_path, {"fsync": True, "read_only": True})
    assert (store, store.read_only) == (LocalStore(tmp_path, fsync=True, read_only=True), True)
    for place, option in ((tmp_path, "anon"), (MemoryStore(), "read_only"), (tmp_path / "a.zip", "secret")):
        with pytest.raises(TypeError, match=option) as caught:
            open_store(place, {option: "hush"})
        assert "hush" not in str(caught.value)


def test_open_store_takes_what_other_libraries_have(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    obstore = pytest.importorskip("obstore.store")
    assert type(open_store(fsspec.filesystem("memory"))).__name__ == "FsspecStore"
    assert type(open_store(fsspec.get_mapper("memory://a"))).__name__ == "FsspecStore"
    assert open_store(fsspec.get_mapper(str(tmp_path))) == LocalStore(tmp_path)
    assert type(open_store(obstore.S3Store("bucket", skip_signature=True))).__name__ == "ObjectStore"


@pytest.mark.parametrize("thing", [None, 5, b"path", {}, ["a"], Thing()])
def test_open_store_refuses_other_things(thing: object) -> None:
    with pytest.raises(TypeError, match="not a store"):
        open_store(thing)  # type: ignore[arg-type]


def test_memory_store_survives_its_readers(tmp_path: Path) -> None:
    """The old value stays valid for who holds it."""
    store = MemoryStore({"a": b"old"})
    value = store.get("a", (0, 3))
    store.set("a", b"new")
    store.erase("a")
    assert value is not None
    assert bytes(value) == b"old"


def test_stamp_is_the_same_for_other_handles_and_processes(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    store.set("a", VALUE)
    expected = store.stamp(["a", "b"])
    assert LocalStore(tmp_path / "store").stamp(["a", "b"]) == expected
    assert run_child(lambda: LocalStore(tmp_path / "store").stamp(["a", "b"])).checked() == expected
    memory = MemoryStore({"a": VALUE})
    memory.set("b", VALUE)
    data = pickle.dumps(memory)
    assert run_child(lambda: pickle.loads(data).stamp(["a"])).checked() == memory.stamp(["a"])


def test_stamp_changes_when_another_process_writes(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    store.set("a", VALUE)
    before = store.stamp(["a"])
    run_child(lambda: LocalStore(tmp_path / "store").set("a", b"9876543210")).checked()
    assert store.stamp(["a"]) != before


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


def test_threads_of_a_memory_store_lose_no_writes() -> None:
    store = MemoryStore()

    def work(at: int) -> None:
        for step in range(500):
            store.set(f"{at}/{step}", b"x")

    threads = [threading.Thread(target=work, args=(at,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(store.list())) == 4000
    assert store._version == 4000
