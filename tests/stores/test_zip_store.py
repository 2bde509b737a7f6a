"""Zip files as stores: what peers read and write, requests, one writer, faults, and hostile files."""

import codecs
import contextlib
import gc
import io
import os
import pickle
import random
import re
import resource
import shutil
import struct
import subprocess
import sys
import threading
import warnings
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _conformance import VALUE, contents, read_back, run_numbered
from _kinds import Remote, Unsized, every_check
from _processes import killed_at_call, orphan
from _things import refused
from _unprivileged import run_child, unprivileged
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import xzarr3
from xzarr3 import LocalStore, MemoryStore, ReadOnlyError, Store, StoreCapabilityError, StoreError
from xzarr3.errors import ChangedError, ConflictError, InvalidKeyError, NodeExistsError, NodeNotFoundError
from xzarr3.stores import ZipStore
from xzarr3.stores import zip as zip_files
from xzarr3.stores.local.names import LOCK
from xzarr3.stores.values import OversizedError

codecs.lookup("cp437")  # The user that some children become may not be able to load it.

test_check_store = every_check(lambda base: ZipStore(base / "x.zip", mode="w"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.zarr.zip"


def packed(values: dict[str, bytes], path: Path) -> ZipStore:
    return ZipStore.pack(MemoryStore(values), path)


def writing(path: Path, mode: Any = "w", **values: bytes) -> ZipStore:
    store = ZipStore(path, mode=mode)
    store.set_values(values.items())
    return store


def verified(path: Path) -> dict[str, bytes]:
    """What the peer finds in a zip, all of whose checksums are right."""
    with zipfile.ZipFile(path) as peer:
        assert peer.testzip() is None
        return {name: peer.read(name) for name in peer.namelist()}


def draft_of(path: Path) -> Path:
    return path.with_name(path.name + LOCK)


def ran(*command: Any) -> tuple[bool, str]:
    """Whether a program succeeds, and what it prints."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode == 0, done.stdout + done.stderr


KEYS = {
    "zarr.json": b"{}", "a/b": VALUE, "a/c/d": b"", "\u6c23\u6e29/e\u0301": bytes(range(256)) * 300,
    "a": b"beside its own prefix",
}  # fmt: skip
COMPRESSIONS = pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])


def test_peers_read_what_is_written(path: Path) -> None:
    with writing(path, gone=b"erased") as store:
        for key, value in KEYS.items():
            store.set(key, b"replaced")
            store.set(key, value)
        store.erase("gone")
    assert verified(path) == KEYS
    for info in zipfile.ZipFile(path).infolist():
        told = (info.compress_type, info.date_time, info.external_attr >> 16)
        assert told == (zipfile.ZIP_STORED, (1980, 1, 1, 0, 0, 0), 0o100644)
    if shutil.which("unzip"):
        succeeds, said = ran("unzip", "-t", path)
        assert (succeeds, "No errors detected" in said) == (True, True), said


@COMPRESSIONS
def test_what_zarr_writes_is_read_and_added_to(path: Path, compression: int) -> None:
    zarr = pytest.importorskip("zarr")
    data = np.arange(600.0).reshape(20, 30)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of duplicate names.
        peer_store = zarr.storage.ZipStore(path, mode="w", compression=compression)
        peer = zarr.create_group(peer_store, attributes={"x": 1})
        array = peer.create_array("a", shape=data.shape, dtype="f8", chunks=(5, 5), shards=(10, 15))
        array[:] = 0
        array[:] = data  # Members of the same name: the last one counts.
        peer_store.close()
    assert np.array_equal(xzarr3.open_array(ZipStore(path), "a")[:], data)
    with ZipStore(path, mode="a") as store:
        xzarr3.open_group(store, mode="a").create_array("b", data=data + 1, chunks=(6, 6))
    again = zarr.open_group(zarr.storage.ZipStore(path, mode="r"), mode="r")
    for name, expected in (("a", data), ("b", data + 1)):
        assert np.array_equal(again[name][:], expected)


def test_what_others_have_in_a_zip_stays(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as peer:
        peer.mkdir("folder")
        info = zipfile.ZipInfo("a/b", (2020, 2, 3, 4, 5, 6))
        info.comment, info.compress_type = b"about it", zipfile.ZIP_DEFLATED
        peer.writestr(info, b"z" * 1000)
        peer.writestr("../out", b"not a key")
        peer.writestr("old", b"old")
        peer.comment = b"about all"
    with ZipStore(path, mode="r+") as store:
        assert sorted(store.list()) == ["a/b", "old"]
        store.set("new", b"new")
        store.erase("old")
        assert contents(store) == {"a/b": b"z" * 1000, "new": b"new"}
    expected = {"folder/": b"", "a/b": b"z" * 1000, "../out": b"not a key", "new": b"new"}
    assert [*verified(path).items()] == [*expected.items()]
    peer, told = zipfile.ZipFile(path), zipfile.ZipFile(path).getinfo("a/b")
    assert (peer.comment, told.comment) == (b"about all", b"about it")
    assert told.date_time == (2020, 2, 3, 4, 5, 6)


@pytest.mark.skipif(sys.version_info < (3, 13), reason="zipfile does not read these fields")
def test_names_that_are_not_utf_8_are_read_and_not_added_to(path: Path) -> None:
    """They are in code page 437, unless a field spells them."""
    field = b"\1" + zlib.crc32(b"u1").to_bytes(4, "little") + "\u6c23".encode()
    extra = struct.pack("<2H", 0x7075, len(field)) + field
    data = built([Entry("\u00e9/x".encode("cp437"), b"one"), Entry(b"u1", b"two", extra=extra)])
    path.write_bytes(data)
    expected = {"\u00e9/x": b"one", "\u6c23": b"two"}
    assert contents(ZipStore(path)) == expected
    assert zipfile.ZipFile(path).namelist()[0] == "\u00e9/x"
    refused(StoreError, r"not in UTF-8; copy it with ZipStore\.pack", lambda: ZipStore(path, mode="a"))
    assert (path.read_bytes(), os.listdir(path.parent)) == (data, [path.name])
    ZipStore.pack(ZipStore(path), path)
    writing(path, "a", b=b"three").close()
    assert contents(ZipStore(path)) == {**expected, "b": b"three"}


def by_info_zip(path: Path, *options: str) -> None:
    folder = path.with_name("s")
    LocalStore(folder).set_values((key, value) for key, value in KEYS.items() if key != "a")
    command, environment = ["zip", "-q", "-r", *options, path, "."], os.environ | {"LC_ALL": "C.UTF-8"}
    subprocess.run(command, cwd=folder, check=True, timeout=120, env=environment)


def in_one_go(path: Path, compression: int) -> None:
    """Sizes follow the data, because nobody knew them before."""

    class Pipe(io.BytesIO):
        def tell(self) -> int:
            raise OSError("a pipe")

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", compression) as peer:
        for key, value in KEYS.items():
            with peer.open(key, "w", force_zip64=key == "a/b") as member:
                member.write(value)
    path.write_bytes(pipe.getvalue())


@pytest.mark.parametrize(("make", "options"), [
    (by_info_zip, ["-0"]), (by_info_zip, ["-9"]), (by_info_zip, ["-0", "-fz"]),
    (in_one_go, [zipfile.ZIP_STORED]), (in_one_go, [zipfile.ZIP_DEFLATED]),
])  # fmt: skip
def test_what_other_programs_write_is_read(path: Path, make: Any, options: list[Any]) -> None:
    if make is by_info_zip and shutil.which("zip") is None:
        pytest.skip("needs the program 'zip'")
    make(path, *options)
    found = contents(ZipStore(path))
    assert found == {key: value for key, value in KEYS.items() if key != "a" or make is in_one_go}
    for key, value in found.items():
        assert ZipStore(path).get(key, (3, 4)) == value[3:7]


def test_member_beyond_four_gigabytes(path: Path) -> None:
    """Its data are a hole in the file."""
    size = 2**32 + 10
    large, small = zipfile.ZipInfo("m"), zipfile.ZipInfo("s")
    large.file_size = large.compress_size = size
    large.CRC, large.header_offset = 77, 0
    small.file_size = small.compress_size = 1
    small.CRC = zlib.crc32(b"x")
    with path.open("wb") as out:
        out.write(large.FileHeader())
        out.seek(size - 3, os.SEEK_CUR)
        out.write(b"end")
        small.header_offset = out.tell()
        out.write(small.FileHeader() + b"x")
        with zipfile.ZipFile(out, "w") as peer:
            peer.infolist().extend([large, small])
    store = ZipStore(path)
    value = store.open("m")
    assert value.size == store.getsize("m") == size
    assert [value.read(-3), value.read(size - 5, 100), store.get("s")] == [b"end", b"\0\0end", b"x"]


def test_equal_values_make_equal_bytes_and_packing_reclaims_space(tmp_path: Path) -> None:
    for at, values in enumerate((KEYS, dict(reversed(KEYS.items())))):
        with writing(tmp_path / f"written {at}", a=bytes(50_000)) as store:
            store.set_values(KEYS.items())
        packed(values, tmp_path / f"packed {at}")
    for how in ("written", "packed"):
        assert (tmp_path / f"{how} 0").read_bytes() == (tmp_path / f"{how} 1").read_bytes()
    written = tmp_path / "written 0"
    before = written.stat().st_size
    again = ZipStore.pack(ZipStore(written), written)
    assert (contents(again), again.read_only) == (KEYS, True)
    assert written.stat().st_size < before - 50_000


def test_opening_reads_the_end_and_each_member_is_one_request(path: Path) -> None:
    packed({f"c/{at}": bytes([at % 256]) * 1000 for at in range(3000)}, path)
    server = Remote({"x.zip": path.read_bytes()})
    store = ZipStore(server, "x.zip")
    (tail, directory) = server.requests
    assert tail == ("x.zip", -zip_files.TAIL, zip_files.TAIL)
    assert 3_000_000 < directory[1] < sum(directory[1:]) < path.stat().st_size
    for name in ("concurrency", "request_bytes", "over_read"):
        assert getattr(store.traits, name) == getattr(server.traits, name) != getattr(ZipStore.traits, name)
    server.requests.clear()
    for at in (5, 2999, 0):
        assert store.get(f"c/{at}") == bytes([at % 256]) * 1000
    assert len(server.requests) == 3
    assert all(length < 1100 for _, _, length in server.requests)
    server.requests.clear()
    assert store.get("c/5", (7, 20)) == b"\5" * 20
    assert (list(store.list_dir("c/")[1]), store.exists("c/7"), len(list(store.list()))) == ([], True, 3000)
    assert [length for _, _, length in server.requests] == [20], "its place is known by now"


@pytest.mark.parametrize("kind", [Remote, Unsized])
def test_small_zip_is_read_by_one_request_and_another_one_is_noticed(path: Path, kind: type[Remote]) -> None:
    for values in (KEYS, {"a": b"x" * 200_000, "b": VALUE}):
        packed(values, path)
        server = kind({"x.zip": path.read_bytes()})
        store = ZipStore(server, "x.zip")
        assert len(server.requests) == 1 + (kind is Unsized)
        assert contents(store) == values
    if kind is Remote:
        for change in (lambda: server.set("x.zip", b"new"), lambda: server.erase("x.zip")):
            change()
            refused(ChangedError, r"x\.zip", lambda: store.get("a"))


@pytest.mark.parametrize(("error", "words", "given", "mode"), [
    *((ValueError, None, given, "r") for given in (("x.zip", "key"), (MemoryStore(),))),
    (InvalidKeyError, None, (MemoryStore(), "../x"), "r"), (TypeError, None, (None,), "r"),
    (StoreError, None, ("a\0b",), "r"), (StoreError, None, ("/",), "r"),
    (ValueError, "rw", ("x.zip",), "rw"),
    *((NodeNotFoundError, r"none\.zip", ("none.zip",), mode) for mode in ("r", "r+")),
    *((NodeExistsError, "already", ("there.zip",), mode) for mode in ("x", "w-")),
    *((StoreCapabilityError, r"local path.*ZipStore\.pack.*upload it", (store, "x.zip"), mode)
      for store in (MemoryStore(), LocalStore(".")) for mode in ("w", "a", "r+", "x")),
])  # fmt: skip
def test_places_and_modes_that_are_refused(
    error: Any, words: str | None, given: Any, mode: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    writing(Path("there.zip"), "x", a=b"x").close()
    refused(error, words, lambda: ZipStore(*given, mode=mode))
    assert os.listdir() == ["there.zip"]


def test_second_writer_is_refused(path: Path, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    link = tmp_path / "deep" / "link.zip"
    link.symlink_to(path)

    def try_to_write() -> None:
        for mode in ("w", "a", "x"):
            refused(StoreError, f"{path}.*one writer at a time", lambda: ZipStore(path, mode=mode))  # noqa: B023

    with writing(link, a=b"x"):
        try_to_write()
        run_child(try_to_write).checked()
        assert link.is_symlink()
    writing(path, "a", b=b"y").close()
    assert contents(ZipStore(path)) == {"a": b"x", "b": b"y"}
    assert os.listdir(tmp_path / "deep") == ["link.zip"]


def test_forked_child_writes_and_removes_nothing(path: Path) -> None:
    store = writing(path, a=b"x")

    def work() -> None:
        refused(ReadOnlyError, "scheduler='threads'.*ZipStore.pack", lambda: store.set("b", b"y"))
        refused(ReadOnlyError, r"ZipStore\.pack", lambda: store.erase("a"))
        refused(StoreError, "another process", lambda: store.get("a"))
        store.close()
        store.discard()

    run_child(work).checked()
    assert not path.exists()
    store.set("b", b"y")
    store.close()
    assert contents(ZipStore(path)) == {"a": b"x", "b": b"y"}


def test_child_that_outlives_its_parent_does_not_keep_the_lock(path: Path, tmp_path: Path) -> None:
    """The writer is killed; its child still has its descriptors."""
    with orphan(lambda: writing(path, a=b"x"), tmp_path / "child"):
        writing(path, b=b"y").close()
    assert contents(ZipStore(path)) == {"b": b"y"}


def test_pickled_while_it_is_written(path: Path) -> None:
    """Another process would find the old zip, or none, and is refused."""
    packed({"a": b"old"}, path)
    store = ZipStore(path, mode="a")
    array = xzarr3.create_array(store, "x", data=np.full(8, 7), chunks=(2,))
    assert pickle.loads(pickle.dumps(store)) is store
    assert not pickle.loads(pickle.dumps(store.with_traits(read_only=True))).writeable
    data = pickle.dumps(array)

    def work() -> None:
        there = pickle.loads(data)  # Of itself this breaks nothing, as a pool of processes would.
        refused(StoreError, "another process; close it first", lambda: there[...])

    run_child(work).checked()
    store.close()
    run_child(work).checked()
    data = pickle.dumps(array)

    def read() -> tuple[bool, list[int]]:
        there = pickle.loads(data)
        assert pickle.loads(pickle.dumps(there.store)) is pickle.loads(data).store
        return there.store.read_only, there[:].tolist()

    assert run_child(read).checked() == (True, [7] * 8)


def test_flushing_and_closing_while_threads_write(path: Path) -> None:
    store = ZipStore(path, mode="w")
    stored: list[str] = []
    closing, progress = threading.Event(), threading.Semaphore(0)
    early: list[bool] = []

    def write(at: int) -> None:
        try:
            for step in range(10_000):
                store.set(f"{at}/{step}", b"x" * 50)
                stored.append(f"{at}/{step}")
                progress.release()
        except ReadOnlyError:
            early.append(not closing.is_set())

    def close() -> None:
        for _ in range(3):
            for _ in range(20):
                assert progress.acquire(timeout=60)
            before = set(stored)
            store.flush()
            assert before <= set(ZipStore(path).list())
        closing.set()
        store.close()

    run_numbered(lambda at: write(at) if at else close(), 5)
    assert set(ZipStore(path).list()) == set(stored)
    assert not any(early), "who writes while it is flushed waits"


UNCLOSED = r"<ZipStore '.*x\.zarr\.zip'> was not closed, so nothing was written to it"


@pytest.mark.slow
@pytest.mark.parametrize("end", ["", "store.x = store; del store", "raise RuntimeError('it fails')"])
def test_zip_store_that_is_never_closed_writes_nothing_and_warns(path: Path, end: str) -> None:
    packed({"a": b"1"}, path)
    before = path.read_bytes()
    code = f"import sys, xzarr3\nstore = xzarr3.ZipStore(sys.argv[1], mode='a')\nstore.set('b', b'2')\n{end}"
    succeeds, said = ran(sys.executable, "-c", code, path)
    assert (succeeds, bool(re.search(f"UserWarning: {UNCLOSED}", said))) == ("raise" not in end, True), said
    assert (path.read_bytes(), os.listdir(path.parent)) == (before, [path.name])


def test_zip_store_that_is_forgotten_warns_and_admits_the_next(path: Path) -> None:
    stores = [writing(path, a=b"1")]
    with pytest.warns(UserWarning, match=UNCLOSED):
        stores.clear()
    gc.collect()
    assert os.listdir(path.parent) == []
    writing(path, b=b"2").close()
    assert contents(ZipStore(path)) == {"b": b"2"}


@pytest.mark.parametrize("mode", ["w", "a", "r+"])
def test_with_statement_that_fails_writes_nothing(path: Path, mode: Any) -> None:
    packed({"a": b"old"}, path)
    before = path.read_bytes()
    store = writing(path, mode, a=b"new")
    with pytest.raises(KeyError), store:
        raise KeyError("x")
    assert (path.read_bytes(), os.listdir(path.parent)) == (before, [path.name])
    assert store.get("a") == b"old"
    refused(ReadOnlyError, "closed", lambda: store.set("a", b"new"))


def test_calls_that_open_a_zip_by_its_path_complete_it(path: Path) -> None:
    xzarr3.save_group(path, a=[1])
    assert xzarr3.consolidate_metadata(path).consolidated
    assert xzarr3.open_group(path).consolidated
    xzarr3.save(path, [2, 3], path="b")
    assert [*xzarr3.load(path)] == ["a", "b"]
    with xzarr3.ZipStore(path, mode="a") as store:
        xzarr3.save(store, [4], path="c")
        xzarr3.consolidate_metadata(store)
        xzarr3.save_group(store, [5], [6], path="d")  # It is not closed by the calls before.
    assert xzarr3.load(path, "d/arr_1").tolist() == [6]


def test_closed_store_is_read_and_so_are_others_of_the_same_zip(path: Path) -> None:
    store = ZipStore(path, mode="w")
    reading, twin = store.with_traits(read_only=True), store.with_traits(conflict_deadline=1.0)
    twin.set("a", b"x")
    opened = store.open("a")
    refused(ReadOnlyError, None, lambda: reading.set("b", b"2"))
    for each in (reading, store, store, twin):
        each.close()
    assert opened.read(0) == b"x", "what was opened before"
    assert (verified(path), store.read_only) == ({"a": b"x"}, True)
    assert [contents(each) for each in (store, twin, reading)] == [{"a": b"x"}] * 3
    refused(ReadOnlyError, "mode 'a'", lambda: store.set("b", b""), store.flush, lambda: twin.set("b", b""))
    reader = ZipStore(path)
    with reader.open("a") as opened:
        reader.close()
        assert opened.read(0) == b"x"
    assert contents(reader) == {"a": b"x"}


@pytest.mark.parametrize("mode", ["w", "a"])
def test_readers_see_the_old_zip_until_it_is_closed(path: Path, mode: Any) -> None:
    packed({"a": b"old"}, path)
    path.chmod(0o640)
    readers = [ZipStore(path), ZipStore(LocalStore(path.parent), path.name)]
    with writing(path, mode, a=b"new") as store:
        assert contents(ZipStore(path)) == verified(path) == {"a": b"old"}
        store.flush()
        assert contents(ZipStore(path)) == {"a": b"new"}
    assert contents(ZipStore(path)) == {"a": b"new"}
    assert [reader.get("a") for reader in readers] == [b"old"] * 2, "what was opened before"
    assert path.stat().st_mode & 0o777 == 0o640, "its rights stay"


def test_nothing_changed_nothing_written(path: Path) -> None:
    packed({"a": b"old"}, path)
    before = path.stat()
    with ZipStore(path, mode="a") as store:
        store.erase("not there")
        store.flush()
    after = path.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert os.listdir(path.parent) == [path.name]
    ZipStore(path, mode="w").close()
    assert contents(ZipStore(path)) == verified(path) == {}


def test_names_and_versions(path: Path) -> None:
    packed(KEYS, path)
    memory = MemoryStore({"y.zip": path.read_bytes()})
    one, other, inner = ZipStore(path), ZipStore(str(path)), ZipStore(memory, "y.zip")
    assert (repr(one), repr(inner)) == (f"<ZipStore '{path}'>", f"<ZipStore 'y.zip' of {memory}>")
    assert one.identity == other.identity != inner.identity
    assert one.__dask_tokenize__() == other.__dask_tokenize__()
    before = one.versions(["", "a/b", "none"])
    assert (before, before[2]) == (other.versions(["", "a/b", "none"]), None)
    with ZipStore(path, mode="a") as store:
        store.set("a/b", VALUE)
        assert None not in [*before[:2], *store.versions(["", "a/b"])]
        assert all(x != y for x, y in zip(before, store.versions(["", "a/b"]), strict=False))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["w", "a"])
def test_killed_at_any_call(path: Path, mode: Any) -> None:
    old, new = ({f"k/{at}": bytes([which]) * (6000 + 500 * at) for at in range(3)} for which in (1, 2))

    def write() -> None:
        with ZipStore(path, mode=mode) as store:
            store.set_values(new.items())

    packed(old, path)
    calls, found, left = killed_at_call(-1, write), [], 0
    for call in range(0, calls, 2):
        packed(old, path)
        assert os.listdir(path.parent) == [path.name], "what the last one left is gone"
        killed_at_call(call, write)
        found.append(verified(path))
        assert found[-1] == contents(ZipStore(path))
        leftovers = {*os.listdir(path.parent)} - {path.name}
        assert leftovers <= {draft_of(path).name}
        left += len(leftovers)
    assert [old in found, new in found, all(each in (old, new) for each in found)] == [True] * 3
    assert left > calls // 8, "the test killed nobody who was writing"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["w", "a"])
def test_full_disk_loses_nothing(path: Path, mode: Any) -> None:
    """The system lets no file grow any more, at each size that one of them reaches."""
    old = {"a": b"old" * 5000}
    packed(old, path)
    before = path.read_bytes()

    def work(limit: int) -> tuple[int, dict[str, bytes]]:
        stored = {} if mode == "w" else dict(old)
        failed: list[str] = []
        store = ZipStore(path, mode=mode)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        for at in range(6):
            try:
                store.set(f"b/{at}", bytes([at]) * 3000)
                stored[f"b/{at}"] = bytes([at]) * 3000
            except StoreError as error:
                failed.append(str(error))
        assert contents(store) == stored
        try:
            store.close()
        except StoreError as error:
            failed.append(str(error))
            assert (contents(store), contents(ZipStore(path)), path.read_bytes()) == (stored, old, before)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        if not store.read_only:
            store.set("c", b"room again")
            stored["c"] = b"room again"
            store.close()
        assert contents(store) == contents(ZipStore(path)) == stored
        assert all(str(path) in text for text in failed)
        return len(failed), stored

    failures = 0
    for limit in (5000, 15_500, 18_000, 20_000, 30_000, 33_250, 33_400, 33_700, 60_000):
        failed, stored = run_child(lambda limit=limit: work(limit)).checked()
        failures += failed
        assert verified(path) == contents(ZipStore(path)) == stored
        path.write_bytes(before)
    assert failures > 5


def test_left_by_a_killed_writer(path: Path, tmp_path: Path) -> None:
    """It is no key of the folder, and is removed by the next writer; a second name is not cut."""
    packed({"a": b"old"}, path)
    left, folder = draft_of(path), LocalStore(path.parent)
    os.link(path, left)  # Killed between giving the zip its name and taking the other one away.
    with writing(path, a=b"new"):
        assert contents(ZipStore(path)) == {"a": b"old"}
        assert (list(folder.list()), list(folder.leftovers())) == ([path.name], [])
    assert contents(ZipStore(path)) == {"a": b"new"}
    left.write_bytes(b"garbage")
    assert (list(folder.list()), list(folder.leftovers())) == ([path.name], [left.name])
    writing(path, "a", b=b"more").close()
    assert contents(ZipStore(path)) == {"a": b"new", "b": b"more"}
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("old", [{}, {"a": b"old"}], ids=["none", "old"])
@pytest.mark.parametrize("change", ["the zip", "the draft"])
def test_somebody_else_changes_it_meanwhile(path: Path, old: dict[str, bytes], change: str) -> None:
    if old:
        packed(old, path)
    store = writing(path, "a", b=b"mine")
    theirs = packed({"c": b"theirs"}, path.with_name("y")).path
    if change == "the zip":
        os.replace(theirs, path)
    else:
        os.unlink(draft_of(path))
    refused(ConflictError, r"x\.zarr\.zip.*another writer", store.close)
    assert contents(store) == {**old, "b": b"mine"}
    if change == "the draft":
        with writing(path, c=b"theirs"):
            refused(ConflictError, None, store.close)
            store.discard()
    store.discard()
    assert contents(ZipStore(path)) == {"c": b"theirs"}
    assert draft_of(path).name not in os.listdir(path.parent)


@unprivileged()
def test_temporary_file_that_is_a_link_is_not_followed(base: Path) -> None:
    os.symlink(base / "canary.txt", draft_of(base / "store" / "x.zip"))
    refused(StoreError, r"x\.zip", lambda: ZipStore(base / "store" / "x.zip", mode="w"))


@unprivileged()
def test_what_may_not_be_written_or_read(base: Path) -> None:
    folder = base / "store"
    packed({"a": b"x"}, folder / "x.zip")
    for place, mode, name, how in (
        ("x.zip", 0o400, "x.zip", "a"), ("x.zip", 0, "x.zip", "r"), ("", 0o500, "y.zip", "w"),
    ):  # fmt: skip
        (folder / place).chmod(mode)
        said = "may read" if how == "r" else "may write"
        refused(xzarr3.StorePermissionError, said, lambda: ZipStore(folder / name, mode=how))  # type: ignore[arg-type] # noqa: B023
        assert os.listdir(folder) == ["x.zip"]


def test_file_that_is_cut_off_under_its_reader(path: Path) -> None:
    store = packed({"a": b"x" * 1000}, path)
    store.get("a", (0, 1))
    os.truncate(path, 500)
    refused(StoreError, "truncated", lambda: store.get("a"), lambda: store.get("a", (900, 10)))
    refused(StoreError, "copy the zip again, whole", lambda: ZipStore(path))


NAMES = st.sampled_from(["a", "a/b", "a/c/d", "b", "\u00e9/x", "zarr.json"])
STEPS = st.one_of(
    st.tuples(st.just("set"), NAMES, st.binary(max_size=20)),
    st.tuples(st.just("erase"), NAMES),
    st.tuples(st.just("erase_prefix"), st.sampled_from(["a/", "a/c/", "\u00e9/"])),
    st.tuples(st.sampled_from(["close", "flush", "discard", "pack"])),
)
ON_ONE_PATH = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@given(steps=st.lists(STEPS, max_size=20))
@settings(max_examples=30, suppress_health_check=ON_ONE_PATH)
def test_it_is_a_mapping(steps: list[Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("zip") / "x"
    store = ZipStore(path, mode="a")
    model: dict[str, bytes] = {}
    committed: dict[str, bytes] = {}
    store.flush()
    for name, *given_ in steps:
        if name == "pack":
            store.close()
            ZipStore.pack(ZipStore(path), path)
        else:
            getattr(store, name)(*given_)
        if name == "set":
            model[given_[0]] = given_[1]
        elif name == "erase":
            model.pop(given_[0], None)
        elif name == "erase_prefix":
            model = {key: value for key, value in model.items() if not key.startswith(given_[0])}
        else:
            model = dict(committed) if name == "discard" else model
            committed = dict(model)
            store = store if name == "flush" else ZipStore(path, mode="a")
        assert contents(store) == model
        assert sorted(store.list_prefix("a/")) == sorted(key for key in model if key.startswith("a/"))
        assert contents(ZipStore(path)) == committed
    store.close()
    assert verified(path) == model


@dataclass
class Entry:
    """A member, and what is said of it that is not true; -1 stands for what is true."""

    name: bytes
    data: bytes = b""
    flags: int = 0
    method: int = 0
    size: int = -1
    stored: int = -1
    crc: int = -1
    extra: bytes = b""
    local_extra: bytes = b""
    local_name: bytes = b""
    offset: int = -1
    alone: bool = False
    """Nothing of it lies in the file but its entry."""

    def __post_init__(self) -> None:
        self.size = len(self.data) if self.size < 0 else self.size
        self.crc = zlib.crc32(self.data) if self.crc < 0 else self.crc
        self.data = zlib.compress(self.data, wbits=-15) if self.method == 8 else self.data
        self.stored = len(self.data) if self.stored < 0 else self.stored

    def sums(self) -> tuple[int, ...]:
        return self.crc, min(self.stored, 0xFFFFFFFF), min(self.size, 0xFFFFFFFF)

    def local(self) -> bytes:
        name = self.local_name or self.name
        fields = (20, self.flags, self.method, 0, 0x21, *self.sums(), len(name), len(self.local_extra))
        head = struct.pack("<4s5H3L2H", b"PK\3\4", *fields)
        return head + name + self.local_extra + self.data

    def central(self, offset: int) -> bytes:
        head = struct.pack(
            "<4s6H3L5H2L",
            *(b"PK\1\2", 20, 20, self.flags, self.method, 0, 0x21, *self.sums()),
            *(len(self.name), len(self.extra), 0, 0, 0, 0, offset if self.offset < 0 else self.offset),
        )
        return head + self.name + self.extra


def built(
    entries: Sequence[Entry], *, comment: bytes = b"", before: bytes = b"", middle: bytes = b"", **end: int
) -> bytes:
    """A zip file; ``end`` has what it says of its directory: number of members, length and place."""
    body, directory = b"", b""
    for entry in entries:
        directory += entry.central(len(body))
        body += b"" if entry.alone else entry.local()
    end = {"number": len(entries), "length": len(directory), "place": len(body), **end}
    told = (end["number"], end["number"], end["length"], end["place"], len(comment))
    return before + body + directory + middle + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, *told) + comment


def wide_end(number: int, length: int, place: int) -> bytes:
    record = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, number, number, length, place)
    return record + struct.pack("<4sLQL", b"PK\6\7", 0, place + length, 1)


GOOD = Entry(b"good", b"value")
FULL = {"number": 0xFFFF, "length": 0xFFFFFFFF}
WHOLES: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "not a zip file"),
    "something else": (b"<html>login</html>" * 100, "not a zip file"),
    "cut off": (built([GOOD])[:-1], "not a zip file"),
    "cut off before": (built([GOOD])[60:], "Bad offset"),
    "directory too long": (built([GOOD], length=10**6), "Bad offset"),
    "directory too short": (built([GOOD], length=46, place=0), "Bad magic number"),
    "wide end lies": (built([GOOD], **FULL, middle=wide_end(2**60, 2**50, 39)), "Bad offset"),
    "name that is not UTF-8": (built([GOOD, Entry(b"\xff\xfe", flags=0x800)]), "utf-8"),
    "extra fields that are cut off": (built([GOOD, Entry(b"b", extra=b"\1\0\x20\0")]), "Corrupt extra field"),
}


@pytest.mark.parametrize("name", WHOLES)
def test_zip_that_contradicts_itself(path: Path, name: str) -> None:
    data, match = WHOLES[name]
    path.write_bytes(data)
    refused(
        StoreError, rf"x\.zarr\.zip.*{match}.*copy the zip again",
        lambda: ZipStore(path),
        lambda: ZipStore(path, mode="a"),
        lambda: ZipStore(Unsized({"x.zarr.zip": data}), "x.zarr.zip"),
    )  # fmt: skip
    assert path.read_bytes() == data, "nothing is mended here"
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize(
    ("comment", "before"),
    [(b"", b""), (b"a comment", b""), (b"", b"#!/bin/sh\n"), (b"c" * 65535, b"b" * 70_000)],
)
def test_zip_with_something_around_it(path: Path, comment: bytes, before: bytes) -> None:
    path.write_bytes(built([GOOD, Entry(b"b", VALUE)], comment=comment, before=before))
    there = {"good": b"value", "b": VALUE}
    for server in (kind({"x": path.read_bytes()}) for kind in (Remote, Unsized)):
        assert contents(ZipStore(path)) == contents(ZipStore(server, "x")) == there
    writing(path, "a", new=b"more").close()
    assert verified(path) == contents(ZipStore(path)) == {**there, "new": b"more"}
    assert path.read_bytes().startswith(before)
    assert zipfile.ZipFile(path).comment == comment
    path.write_bytes(before + built([GOOD], middle=wide_end(1, 50, 39)))
    assert contents(ZipStore(path)) == {"good": b"value"}


GARBLED = Entry(b"bad", bytes(1000), method=8)
GARBLED.data = b"\xff" * len(GARBLED.data)
ZIP64 = struct.pack("<2H2Q", 1, 16, 2**62, 2**62)
MEMBERS: dict[str, tuple[Entry, str]] = {
    "encrypted": (Entry(b"bad", b"x" * 20, flags=1), "encrypted.*rewrite the zip"),
    "strongly encrypted": (Entry(b"bad", b"x" * 20, flags=0x41), "encrypted"),
    "bzip2": (Entry(b"bad", b"x", method=12), "method 12; accepted"),
    "other name": (Entry(b"bad", b"x", local_name=b"dab"), "contradicts"),
    "longer name": (Entry(b"bad", b"x", local_name=b"worse"), "contradicts"),
    "bomb": (Entry(b"bad", b"\0" * 10**6, method=8, size=1000), "does not inflate to the 1000 bytes"),
    "inflates to less": (Entry(b"bad", b"\0" * 1000, method=8, size=1001), "does not inflate to the 1001"),
    "garbled": (GARBLED, "cannot be inflated"),
    "wrong checksum": (Entry(b"bad", b"xyz", crc=5), "CRC mismatch: expected 0x5"),
    "wrong checksum, deflated": (Entry(b"bad", b"xyz", method=8, crc=5), "CRC mismatch"),
    "far beyond": (Entry(b"bad", b"x", offset=0xFFFFFFF0), "overlaps"),
    "huge": (Entry(b"bad", b"x", size=2**32 - 2, stored=2**32 - 2), "overlaps"),
    "wider than all": (Entry(b"bad", b"x", size=2**32 - 1, stored=2**32 - 1, extra=ZIP64), "overlaps"),
    "two sizes": (Entry(b"bad", b"xy", size=5), "2 bytes of method 0 cannot be a value of 5 bytes"),
    "within another": (Entry(b"bad", b"x", offset=36, alone=True), "overlaps|contradicts"),
    "large bomb": (Entry(b"bad", b"\0" * 1000, method=8, size=2**31), "cannot be a value"),
    "no deflate": (Entry(b"bad", b"", method=8, size=40, stored=0), "cannot be a value"),
}


@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.parametrize("is_last", [True, False])
def test_member_that_cannot_be_read(path: Path, name: str, is_last: bool) -> None:
    """It is listed, so that nobody takes it for absent; the others are read, also once more were added."""
    entry, match = MEMBERS[name]
    end = [] if is_last else [Entry(b"end", b"e")]
    path.write_bytes(built([Entry(b"other", b"also"), Entry(b"last", b"l" * 600), entry, *end]))

    def expect(store: ZipStore) -> None:
        assert ("bad" in set(store.list()), store.exists("bad")) == (True, True)
        value, size = store.open("bad"), min(entry.size, 10**6)
        refused(
            StoreError, rf"key 'bad' of .*zip.*({match})",
            *(lambda: store.get("bad"), lambda: store.get("bad", (0, None)), lambda: value.read(0)),
            *(lambda: store.get_values(["bad"]), lambda: value.read_ranges([0], [size])),
            lambda: value.read_into(0, memoryview(bytearray(size))),
        )  # fmt: skip
        assert store.get("last") == b"l" * 600

    expect(ZipStore(path))
    expect(ZipStore(MemoryStore({"x.zip": path.read_bytes()}), "x.zip"))
    if name == "far beyond":  # The place of new members.
        refused(StoreError, "members lie beyond its directory", lambda: ZipStore(path, mode="a"))
        return
    writing(path, "a", new=b"new").close()
    expect(ZipStore(path))
    assert ZipStore(path).get("new") == b"new"
    if name == "wrong checksum":
        assert ZipStore(path).get("bad", (0, 2)) == b"xy", "of parts nothing is known"


def test_members_that_overlap_are_refused(path: Path) -> None:
    """Two names of one member, as a bomb has them, and one whose extra field pushes it into the next."""
    entry, following = Entry(b"a", VALUE), Entry(b"b", b"next")
    path.write_bytes(built([entry, Entry(b"a", VALUE, offset=0, alone=True), following]))
    refused(StoreError, "overlaps", lambda: ZipStore(path).get("a"))
    data = bytearray(built([entry, following]))
    data[28:30] = b"\5\0"
    path.write_bytes(data)
    whole, part = lambda: ZipStore(path).get("a"), lambda: ZipStore(path).get("a", (2, 3))
    refused(StoreError, "overlaps the next member", whole, part)
    assert ZipStore(path).get("b") == b"next"


def test_extra_fields_of_the_header_that_the_directory_does_not_have(path: Path) -> None:
    for size in (0, 4, 40, 300, 60_000):
        field = struct.pack("<2H", 0x6666, size) + bytes(size)
        path.write_bytes(built([Entry(b"a", VALUE, local_extra=field), Entry(b"b", b"next")]))
        for part in (None, (2, 3)):
            for store in (ZipStore(path), ZipStore(MemoryStore({"x": path.read_bytes()}), "x")):
                assert store.get("a", part) == (VALUE[2:5] if part else VALUE)
                assert set(read_back(store, "a")) == {VALUE}


UNUSABLE = [
    *(b"../escape", b"a/../../escape", b"/etc/passwd", b"//x", b"a//b", b"./a"),
    *(b"a/./b", b"..", b".", b"", b"/", b"nul\0byte"),
]


@unprivileged()
def test_names_that_are_no_keys_do_not_hide_the_others(base: Path) -> None:
    entries = [Entry(name, b"planted") for name in UNUSABLE]
    data = built([GOOD, *entries, Entry(b"dir/"), Entry(b"x/y/", b""), Entry(b"last", VALUE)])
    (base / "store" / "x.zip").write_bytes(data)
    store = ZipStore(base / "store" / "x.zip")
    assert contents(store) == {"good": b"value", "last": VALUE}
    assert store.list_dir("") == ({"good", "last"}, set())
    refused(InvalidKeyError, None, *(partial(store.get, name.decode()) for name in UNUSABLE))


@pytest.mark.slow
@unprivileged()
def test_memory_is_bounded(base: Path) -> None:
    """A sparse file that claims a huge directory, a huge member and a bomb."""
    place = base / "store" / "x.zip"
    with open("/proc/self/statm") as status:
        taken = int(status.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + 2**30,) * 2)
    with place.open("wb") as out:
        out.truncate(2**40)
        out.seek(2**40)
        out.write(wide_end(2**33, 2**39, 2**39) + built([], **FULL, place=0xFFFFFFFF))
    refused(StoreError, r"directory has \d+ bytes, \d+ at most", lambda: ZipStore(place))
    place.write_bytes(built([Entry(b"bad", b"\0" * 2**26, method=8, size=100)]))
    begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(StoreError, "does not inflate to the 100 bytes", lambda: ZipStore(place).get("bad"))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - begin < 2**15


def test_limit_counts_before_anything_is_read() -> None:
    """Of what a deflated member takes, too: its data may go on and on without making a byte."""
    long = Entry(b"long", b"value", method=8)
    long.data = b"\0\0\0\xff\xff" * 100_000 + long.data
    long.stored = len(long.data)
    noise = random.Random(0).randbytes(100_000)
    data = built([Entry(b"bomb", bytes(2**20), method=8), long, Entry(b"noise", noise, method=8)])
    server = Remote({"x": data})
    store = ZipStore(server, "x")
    assert store.get("long") == b"value"
    assert store.get("noise", limit=len(noise)) == noise
    server.requests.clear()
    refused(OversizedError, None, *(partial(store.get, key, limit=len(noise)) for key in ("bomb", "long")))
    assert server.requests == []


def test_key_that_a_zip_cannot_name(path: Path) -> None:
    with writing(path, **{"y" * 65_535: b"long"}) as store:
        for key in ("\udc80", "x" * 70_000):
            refused(InvalidKeyError, "accepted", partial(store.set, key, b""))
    assert verified(path) == contents(ZipStore(path)) == {"y" * 65_535: b"long"}


def readable(store: Store) -> dict[str, bytes | None]:
    """The value of each key; None if it cannot be read."""
    found: dict[str, bytes | None] = dict.fromkeys(store.list())
    for key in found:
        with contextlib.suppress(StoreError):
            found[key] = bytes(store.get(key))
    return found


TIMED = Entry(b"c", b"y", extra=struct.pack("<2H4s", 0x5455, 4, b"time"))
WHOLE = built(
    [GOOD, Entry(b"a/b", VALUE, method=8), Entry("\u00e9".encode(), b"x" * 50, flags=0x800), TIMED],
    comment=b"hey",
)
BYTES = st.sampled_from([0, 1, 0xFF, 0x50, 8]) | st.integers(0, 255)
CHANGES = st.tuples(st.integers(0, len(WHOLE) - 1), BYTES)


@example(changes=[(len(WHOLE) - 9, 0)])  # Members that seem to be where the directory is.
@given(changes=st.lists(CHANGES, max_size=4))
@settings(max_examples=100, suppress_health_check=ON_ONE_PATH)
def test_adding_to_any_bytes_ends_in_our_error_or_keeps_what_was_readable(path: Path, changes: Any) -> None:
    whole = bytearray(WHOLE)
    for at, byte in changes:
        whole[at] = byte
    path.write_bytes(whole)
    try:
        before = readable(ZipStore(path))
        with ZipStore(path, mode="a") as store:
            store.set("new", b"new")
    except StoreError:
        assert path.read_bytes() == whole
        return
    assert readable(ZipStore(path)) == before | {"new": b"new"}
