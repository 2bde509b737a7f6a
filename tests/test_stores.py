"""The stores: every one against the common conformance tests, and what each does beyond them."""

from __future__ import annotations

import os
import pickle
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from _conformance import VALUE, StoreConformance, contents, read_back
from _unprivileged import run_child

import xzarr3
from xzarr3 import InvalidKeyError, LocalStore, MemoryStore, ReadOnlyError, Store, StoreError, open_store
from xzarr3._types import Buffer, ByteRange
from xzarr3.stores.base import check_key, check_prefix, cut


class Plain(Store):
    """The least a store can be: everything else is what the base class makes of it."""

    def __init__(self, values: dict[str, bytes] | None = None, *, read_only: bool = False) -> None:
        super().__init__(read_only=read_only)
        self.values = {} if values is None else values

    def __reduce__(self) -> tuple[object, ...]:
        PLAIN[self._identity] = self.values
        return _restore_plain, (self._identity, dict(self.values), self.read_only, os.getpid())

    def get(self, key: str, byte_range: ByteRange | None = None) -> Buffer | None:
        value = self.values.get(check_key(key))
        return value if value is None or byte_range is None else cut(value, byte_range)

    def set(self, key: str, value: Buffer) -> None:
        self._check_writable()
        self.values[check_key(key)] = bytes(value)

    def erase(self, key: str) -> None:
        self._check_writable()
        self.values.pop(check_key(key), None)

    def list_prefix(self, prefix: str) -> Iterator[str]:
        check_prefix(prefix)
        return (key for key in list(self.values) if key.startswith(prefix))


PLAIN: dict[str, dict[str, bytes]] = {}


def _restore_plain(identity: str, values: dict[str, bytes], read_only: bool, process: int) -> Plain:
    here = process == os.getpid()
    store = Plain(PLAIN[identity] if here else values, read_only=read_only or not here)
    store._identity = identity
    return store


class ReadablePlain(Store):
    """A store that can be read only, with nothing but the two methods it must have."""

    def get(self, key: str, byte_range: ByteRange | None = None) -> Buffer | None:
        value = {"a/b": VALUE}.get(check_key(key))
        return value if value is None or byte_range is None else cut(value, byte_range)

    def list_prefix(self, prefix: str) -> Iterator[str]:
        return iter([key for key in ["a/b"] if key.startswith(check_prefix(prefix))])


class TestPlainStore(StoreConformance):
    holds_versions = False
    stamps = False
    travels = "copy"

    def make(self, base: Path) -> Store:
        return Plain()

    def read_only(self, store: Store) -> Store:
        assert isinstance(store, Plain)
        return Plain(store.values, read_only=True)


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
        for read in (store.get, store.exists, store.open_value, store.loader()):
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
        for read in (store.get, store.open_value, store.loader()):
            with pytest.raises(StoreError, match="a/gone"):
                read("a/gone")

    def test_what_is_no_file_is_no_value(self, tmp_path: Path) -> None:
        """And nobody waits for a pipe that no one writes to."""

        def work() -> list[str]:
            store = LocalStore(tmp_path / "store")
            store.set("a/b", VALUE)
            os.mkfifo(tmp_path / "store/a/pipe")
            answers = []
            for read in (store.get, store.open_value, store.loader()):
                try:
                    answers.append(repr(read("a/pipe")))
                except StoreError:
                    answers.append("error")
            return answers

        answers = run_child(work, timeout=5).checked()
        assert set(answers) <= {"None", "error"}

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

    def spy(source: str, target: str) -> None:
        names.append(os.path.basename(source))
        real(source, target)

    os.replace = spy  # type: ignore[assignment]
    try:
        store.set("a/b", VALUE)
    finally:
        os.replace = real
    return names


def test_store_that_has_only_the_two_methods_it_must_have() -> None:
    store = ReadablePlain()
    assert read_back(store, "a/b") == [VALUE] * 4
    assert read_back(store, "a/c") == [None] * 4
    assert store.list_dir("") == (set(), {"a/"})
    assert list(store.list()) == ["a/b"]
    for write in (
        lambda: store.set("a/b", b"x"),
        lambda: store.set_partial_values([("a/b", 0, b"x")]),
        lambda: store.erase("a/b"),
        lambda: store.erase_values(["a/b"]),
        lambda: store.erase_prefix("a/"),
    ):
        with pytest.raises(ReadOnlyError, match="ReadablePlain"):
            write()
    assert store.stamp(["a/b"]) != store.stamp(["a/b"])


def test_value_that_vanishes_while_its_parts_are_read() -> None:
    store = Plain({"a/b": VALUE})
    reader = store.open_value("a/b")
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
    "location",
    ["s3://bucket/x", "https://example.invalid/x.zarr", "memory://x", "zip::file:///x", "gs://a/b"],
)
def test_open_store_refuses_urls_it_has_no_store_for(location: str) -> None:
    with pytest.raises(StoreError) as caught:
        open_store(location)
    assert location in str(caught.value)
    assert "accepted" in str(caught.value)


@pytest.mark.parametrize("thing", [None, 5, b"path", {}, ["a"], object()])
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
