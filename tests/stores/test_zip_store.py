"""Zip files as stores: what every store does, what peers read and write, faults, and hostile files."""

from __future__ import annotations

import codecs
import contextlib
import gc
import io
import os
import pickle
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
import warnings
import weakref
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import dask.array
import fsspec
import numpy as np
import pytest
import xarray as xr
from _conformance import VALUE, contents, read_back, run_threads
from _fault_server import FaultServer
from _kinds import conformance, reading
from _opening import opening
from _unprivileged import run_child, run_unprivileged
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import xzarr3
from xzarr3 import LocalStore, MemoryStore, ReadOnlyError, Store, StoreError, StorePermissionError
from xzarr3.errors import (
    ChangedError,
    ConflictError,
    InvalidKeyError,
    NodeExistsError,
    NodeNotFoundError,
)
from xzarr3.stores import ObjectStore
from xzarr3.stores.base import OversizedError, Scratch, ValueReader
from xzarr3.stores.zip import read as zip_files
from xzarr3.stores.zip import write as zip_writing
from xzarr3.stores.zip.store import ZipStore
from xzarr3.stores.zip.write import new_member

codecs.lookup("cp437")  # The user that some children become may not be able to load it.


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.zarr.zip"


def packed(values: dict[str, bytes], *place: Any) -> ZipStore:
    """A zip that holds these values."""
    return ZipStore.pack(MemoryStore(values), *place)


def verified(path: Path) -> dict[str, bytes]:
    """What the peer finds in a zip, all of whose checksums are right."""
    with zipfile.ZipFile(path) as peer:
        assert peer.testzip() is None
        return {name: peer.read(name) for name in peer.namelist()}


def draft_of(path: Path) -> Path:
    """Where a zip is written."""
    return path.with_name(zip_writing.TEMPORARY + path.name)


def fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Other threads of the tests are idle now.
        return os.fork()


def deflated(values: dict[str, bytes], base: Path) -> Store:
    (base / "store").mkdir(exist_ok=True)
    with zipfile.ZipFile(base / "store" / "x.zip", "w", zipfile.ZIP_DEFLATED) as peer:
        for key, value in values.items():
            peer.writestr(key, value)
    return ZipStore(base / "store" / "x.zip")


TestZipFile = conformance(lambda base: ZipStore(base / "store" / "x.zip", mode="w"), travels="closed")
TestZipValue = conformance(lambda base: ZipStore(MemoryStore(), "in/x.zip", mode="a"), travels="closed")
TestReadingZipFile = reading(lambda values, base: packed(values, base / "store" / "x.zip"))
TestReadingDeflatedZip = reading(deflated)
TestReadingZipValue = reading(lambda values, base: packed(values, MemoryStore(), "x.zip"))


class Requests(Store):
    """Values of which parts are asked for; notes each request. Like a server, it does not tell the size."""

    concurrency = 7
    request_bytes = 12345

    def __init__(self, values: dict[str, bytes], version: object = None, *, tells_size: bool = True) -> None:
        super().__init__()
        self.values = values
        self.tells_size = tells_size
        self.asked: list[tuple[int, int | None]] = []
        self.known = version

    def get(self, key: str, byte_range: Any = None) -> bytes | None:
        value = self.values.get(key)
        if value is None:
            return None
        start, length = byte_range or (0, None)
        self.asked.append((start, length))
        first = start if start >= 0 else max(len(value) + start, 0)
        return value[first:] if length is None else value[first:][:length]

    _reader = opening

    def opened(self, key: str, part: Any, version: object | None) -> ValueReader | None:
        return _Asking(self, key) if key in self.values else None


class _Asking(ValueReader):
    def __init__(self, store: Requests, key: str) -> None:
        self._store = store
        self._key = key
        self._version = store.known
        self.size = len(store.values[key]) if store.tells_size else None

    @property
    def version(self) -> object | None:
        return self._version

    def read(self, start: int, length: int | None = None) -> bytes:
        value = self._store.get(self._key, (start, length))
        if value is None or self._store.known != self._version:
            raise ChangedError(f"key '{self._key}' of {self._store} is not what was opened")
        return value


# Peers


KEYS = {
    "zarr.json": b"{}",
    "a/b": VALUE,
    "a/c/d": b"",
    "\u6c23\u6e29/e\u0301": bytes(range(256)) * 300,
    "a": b"beside its own prefix",
}


def test_peers_read_what_is_written(path: Path) -> None:
    with ZipStore(path, mode="w") as store:
        for key, value in KEYS.items():
            store.set(key, b"replaced")
            store.set(key, value)
        store.set("gone", b"erased")
        store.erase("gone")
    assert verified(path) == KEYS
    with zipfile.ZipFile(path) as peer:
        for info in peer.infolist():
            assert info.compress_type == zipfile.ZIP_STORED
            assert info.date_time == (1980, 1, 1, 0, 0, 0)
            assert info.external_attr >> 16 == 0o100644
    if shutil.which("unzip"):
        done = subprocess.run(["unzip", "-t", path], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "No errors detected" in done.stdout


def test_fsspec_and_tensorstore_read_what_is_written(path: Path) -> None:
    packed(KEYS, path)
    files = fsspec.filesystem("zip", fo=str(path))
    for key, value in KEYS.items():
        if key != "a":  # There it is a directory.
            assert files.cat_file(key) == value
    tensorstore = pytest.importorskip("tensorstore")
    base = {"driver": "file", "path": str(path)}
    peer = tensorstore.KvStore.open({"driver": "zip", "base": base}).result()
    assert {name.decode() for name in peer.list().result()} == set(KEYS)
    for key, value in KEYS.items():
        assert peer.read(key).result().value == value


@pytest.mark.parametrize("mode", ["w", "a"])
def test_zarr_reads_what_is_written(path: Path, mode: Any) -> None:
    zarr = pytest.importorskip("zarr")
    data = np.arange(600.0).reshape(20, 30)
    with ZipStore(path, mode=mode) as store:
        group = xzarr3.create_group(store, attributes={"x": 1})
        group.create_array("plain", data=data, chunks=(7, 7))
        group.create_array("sharded", data=data, chunks=(5, 5), shards=(10, 15))
    peer = zarr.open_group(zarr.storage.ZipStore(path, mode="r"), mode="r")
    assert peer.attrs["x"] == 1
    assert np.array_equal(peer["plain"][:], data)
    assert np.array_equal(peer["sharded"][3:17, 4:], data[3:17, 4:])


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
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
    assert np.array_equal(again["a"][:], data)
    assert np.array_equal(again["b"][:], data + 1)


def test_what_others_have_in_a_zip_stays(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as peer:
        peer.mkdir("folder")
        info = zipfile.ZipInfo("a/b", (2020, 2, 3, 4, 5, 6))
        info.comment = b"about it"
        info.compress_type = zipfile.ZIP_DEFLATED
        peer.writestr(info, b"z" * 1000)
        peer.writestr("../out", b"not a key")
        peer.writestr("old", b"old")
        peer.comment = b"about all"
    with ZipStore(path, mode="r+") as store:
        assert sorted(store.list()) == ["a/b", "old"]
        store.set("new", b"new")
        store.erase("old")
        assert contents(store) == {"a/b": b"z" * 1000, "new": b"new"}
    with zipfile.ZipFile(path) as peer:
        assert peer.testzip() is None
        assert peer.comment == b"about all"
        assert peer.namelist() == ["folder/", "a/b", "../out", "new"]
        assert peer.getinfo("a/b").date_time == (2020, 2, 3, 4, 5, 6)
        assert peer.getinfo("a/b").comment == b"about it"
        assert peer.read("../out") == b"not a key"


def test_names_of_other_times(path: Path) -> None:
    """Names that are not said to be UTF-8 are in code page 437, unless a field spells them.

    Such a zip is read, and not added to.
    """
    raw = "\u00e9/x".encode("cp437")
    field = b"\1" + zlib.crc32(b"u1").to_bytes(4, "little") + "\u6c23".encode()
    extra = struct.pack("<2H", 0x7075, len(field)) + field
    data = built([Entry(raw, b"one"), Entry(b"u1", b"two", extra=extra)])
    path.write_bytes(data)
    expected = {"\u00e9/x": b"one", "\u6c23": b"two"}
    assert contents(ZipStore(path)) == expected
    with zipfile.ZipFile(path) as peer:
        assert peer.namelist()[0] == "\u00e9/x"
    with pytest.raises(StoreError, match=r"not in UTF-8; use mode 'r'.*with ZipStore\.pack"):
        ZipStore(path, mode="a")
    assert path.read_bytes() == data
    assert os.listdir(path.parent) == [path.name]
    ZipStore.pack(ZipStore(path), path)
    with ZipStore(path, mode="a") as store:
        store.set("b", b"three")
    assert contents(ZipStore(path)) == {**expected, "b": b"three"}


def test_zip_made_by_info_zip_is_read(tmp_path: Path, path: Path) -> None:
    if not shutil.which("zip"):
        pytest.skip("needs the program 'zip'")
    with contextlib.chdir(tmp_path):
        store = LocalStore("s")
        values = {key: value for key, value in KEYS.items() if key != "a"}
        for key, value in values.items():
            store.set(key, value)
        environment = os.environ | {"LC_ALL": "C.UTF-8"}
        for options in (["-0"], ["-9"], ["-0", "-fz"]):
            path.unlink(missing_ok=True)
            subprocess.run(
                ["zip", "-q", "-r", *options, path, "."], cwd="s", check=True, timeout=120, env=environment
            )
            zipped = ZipStore(path)
            assert contents(zipped) == values, options
            for key, value in values.items():
                part = ZipStore(path).get(key, (3, 4))
                assert bytes(part or b"") == value[3:7]


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_zip_made_in_one_go_is_read(path: Path, compression: int) -> None:
    """Sizes follow the data, because nobody knew them before."""

    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

        def seek(self, *_: Any) -> int:
            raise OSError("a pipe")

        def tell(self) -> int:
            raise OSError("a pipe")

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", compression) as peer:
        for key, value in KEYS.items():
            with peer.open(key, "w", force_zip64=key == "a/b") as member:
                member.write(value)
    path.write_bytes(pipe.getvalue())
    assert contents(ZipStore(path)) == KEYS
    assert bytes(ZipStore(path).get("a/b", (2, 3)) or b"") == VALUE[2:5]


# Many and large members


def calls(work: Callable[[], object]) -> int:
    """How many functions are called."""
    count = 0

    def note(frame: object, event: str, what: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.slow
def test_more_members_than_two_bytes_can_count(path: Path) -> None:
    number = 0xFFFF + 4465
    with ZipStore(path, mode="w") as store:
        for at in range(number):
            store.set(f"c/{at // 1000}/{at}", at.to_bytes(3, "little"))
    with zipfile.ZipFile(path) as peer:
        assert len(peer.namelist()) == number
        assert peer.read("c/69/69999") == (69_999).to_bytes(3, "little")
    store = ZipStore(path)
    assert store.list_dir("") == (set(), {"c/"})
    assert len(store.list_dir("c/")[1]) == 70
    assert len(store.list_dir("c/3/")[0]) == 1000
    assert bytes(store.get("c/66/66123") or b"") == (66_123).to_bytes(3, "little")
    with ZipStore(path, mode="a") as more:
        more.set("d", b"more")
        more.erase_prefix("c/0/")
    assert len(list(ZipStore(path).list())) == number - 999
    with zipfile.ZipFile(path, "a") as peer:
        peer.writestr("e", b"peer")
    assert bytes(ZipStore(path).get("e") or b"") == b"peer"


def test_listing_many_members_looks_at_few() -> None:
    store = ZipStore(MemoryStore(), "x.zip", mode="w")
    view = store._opened()
    for at in range(20_000):
        member, _ = new_member(f"a/{at % 10}/c/{at}", [])
        member.header_offset = at
        view.put(member, at)
    store.list_dir("")
    assert calls(lambda: [store.list_dir("a/"), store.list_dir("a/3/")]) < 1000
    assert store.list_dir("a/") == (set(), {f"a/{at}/" for at in range(10)})
    assert store.list_dir("a/3/") == (set(), {"a/3/c/"})
    assert len(store.list_dir("a/3/c/")[0]) == 2000
    store.discard()


def test_zip_beyond_four_gigabytes(path: Path) -> None:
    """Sparse, so that it costs no space."""
    for mode, old in (("w", {}), ("r+", {"old": b"old"})):
        packed(old, path)
        with ZipStore(path, mode=mode) as store:  # type: ignore[arg-type]
            store.set("a", b"first")
            assert store._draft is not None
            store._draft.end = 5 * 2**30
            store.set("b", b"beyond")
            store.set("c", b"last")
        assert path.stat().st_size > 2**32
        assert verified(path) == contents(ZipStore(path))
        assert verified(path) == {**old, "a": b"first", "b": b"beyond", "c": b"last"}


def test_member_beyond_four_gigabytes(path: Path) -> None:
    """Its data are a hole in the file; the records are those that a store writes."""
    size = 2**32 + 10
    large, (small, header) = zipfile.ZipInfo("m"), new_member("s", [memoryview(b"x")])
    large.file_size = large.compress_size = size
    large.CRC, large.header_offset = 77, 0
    with path.open("wb") as out:
        out.write(large.FileHeader())
        out.seek(size - 3, os.SEEK_CUR)
        out.write(b"end")
        small.header_offset = out.tell()
        out.write(header + b"x")
        with zipfile.ZipFile(out, "w") as peer:
            peer.infolist().extend([large, small])
    store = ZipStore(path)
    reader = store.reader().open("m")
    assert reader is not None
    assert reader.size == size
    assert bytes(reader.read(-3)) == b"end"
    assert bytes(reader.read(size - 5, 100)) == b"\0\0end"
    assert bytes(store.get("s") or b"") == b"x"
    with zipfile.ZipFile(path) as peer:
        assert peer.getinfo("m").file_size == size
        assert peer.read("s") == b"x"
        if sys.version_info < (3, 12):
            return  # It reads all that lies before, and verifies the checksum.
        with peer.open("m") as stream:
            stream.seek(size - 3)
            # The peer verifies the checksum at the end, which this hole does not have.
            stream._expected_crc = None  # type: ignore[attr-defined]
            assert stream.read() == b"end"


def test_equal_values_make_equal_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with ZipStore(tmp_path / name, mode="w") as store:
            store.set_values(KEYS.items())
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    packed(KEYS, tmp_path / "three")
    packed(dict(reversed(KEYS.items())), tmp_path / "four")
    assert (tmp_path / "three").read_bytes() == (tmp_path / "four").read_bytes()


def test_packing_reclaims_space(path: Path) -> None:
    with ZipStore(path, mode="w") as store:
        for at in range(5):
            store.set("a/b", bytes([at]) * 10_000)
        store.set("c", b"kept")
    assert path.stat().st_size > 50_000
    packed = ZipStore.pack(ZipStore(path), path)
    assert path.stat().st_size < 11_000
    assert contents(packed) == {"a/b": b"\4" * 10_000, "c": b"kept"}
    assert packed.read_only
    part = ZipStore.pack(packed, MemoryStore(), "y.zip", prefix="a/")
    assert contents(part) == {"b": b"\4" * 10_000}


# Requests


@pytest.mark.parametrize("version", [None, "v1"])
def test_opening_reads_the_end_and_each_member_is_one_request(path: Path, version: object) -> None:
    with ZipStore(path, mode="w") as writer:
        for at in range(3000):
            writer.set(f"c/{at}", bytes([at % 256]) * 1000)
    data = path.read_bytes()
    server = Requests({"x.zip": data}, version)
    store = ZipStore(server, "x.zip")
    (tail, directory) = server.asked
    assert tail == (-zip_files.TAIL, zip_files.TAIL)
    assert directory[1] is not None
    assert directory[0] > 3_000_000
    assert sum(directory) < len(data)
    assert store.concurrency == 7
    assert store.request_bytes == 12345
    server.asked.clear()
    for at in (5, 2999, 0):
        assert bytes(store.get(f"c/{at}") or b"") == bytes([at % 256]) * 1000
    assert len(server.asked) == 3
    assert all(length is not None and length < 1100 for _, length in server.asked)
    server.asked.clear()
    assert bytes(store.get("c/5", (7, 20)) or b"") == b"\5" * 20
    assert server.asked[0][1] == 20, "its place is known by now"
    list(store.list())
    store.exists("c/7")
    store.list_dir("c/")
    assert len(server.asked) == 1


@pytest.mark.parametrize("tells_size", [True, False])
def test_small_zip_is_opened_by_one_request(path: Path, tells_size: bool) -> None:
    packed(KEYS, path)
    server = Requests({"x.zip": path.read_bytes()}, tells_size=tells_size)
    store = ZipStore(server, "x.zip")
    assert len(server.asked) == 1
    assert contents(store) == KEYS
    packed({"a": b"x" * 200_000, "b": VALUE}, path)
    larger = ZipStore(Requests({"x.zip": path.read_bytes()}, tells_size=tells_size), "x.zip")
    assert contents(larger) == {"a": b"x" * 200_000, "b": VALUE}


def test_value_that_is_replaced_is_noticed(path: Path) -> None:
    packed({"a": b"x" * 100_000}, path)
    server = Requests({"x.zip": path.read_bytes()}, "v1")
    store = ZipStore(server, "x.zip")
    assert store.get("a", (0, 1)) == b"x"
    server.known = "v2"
    with pytest.raises(ChangedError, match=r"x\.zip"):
        store.get("a")
    server.values.clear()
    with pytest.raises(ChangedError):
        store.get("a")


@pytest.mark.parametrize("is_value", [False, True])
def test_file_that_is_replaced_stays_what_it_was_for_its_readers(path: Path, is_value: bool) -> None:
    packed({"a": b"old"}, path)
    reader = ZipStore(LocalStore(path.parent), path.name) if is_value else ZipStore(path)
    data = pickle.dumps(reader)
    packed({"a": b"new"}, path)
    assert bytes(reader.get("a") or b"") == b"old"
    assert bytes(ZipStore(path).get("a") or b"") == b"new"

    def work() -> None:
        with pytest.raises(ChangedError, match="replaced"):
            pickle.loads(data).get("a")

    run_child(work).checked()


def test_zip_on_a_web_server(path: Path, fault_server: FaultServer) -> None:
    """Opening costs two requests, the end of the value and the directory, and each value one."""
    with ZipStore(path, mode="w") as writer:
        for at in range(3000):
            writer.set(f"c/{at}", bytes([at % 256]) * 1000)
        xzarr3.create_array(writer, "s", data=np.arange(64), chunks=(4,), shards=(32,))
    fault_server.put("/data/x.zarr.zip", path.read_bytes())
    server = ObjectStore.from_url(f"{fault_server.url}/data", storage_options={"allow_http": True})
    store = ZipStore(server, "x.zarr.zip")
    assert store.concurrency == server.concurrency > 1
    assert len(fault_server.log()) <= 2
    fault_server.clear_log()
    assert bytes(store.get("c/7") or b"") == b"\7" * 1000
    assert len(fault_server.log()) == 1
    found = store.get_values([f"c/{at}" for at in range(50)])
    assert [bytes(value or b"") for value in found] == [bytes([at]) * 1000 for at in range(50)]
    assert len(fault_server.log()) == 51
    assert xzarr3.open_array(store, "s")[3:50].tolist() == list(range(3, 50))
    data = pickle.dumps(store)
    assert pickle.loads(data).get("c/8") == b"\x08" * 1000
    fault_server.put("/data/x.zarr.zip", b"something else")
    with pytest.raises(StoreError, match=r"x\.zarr\.zip"):
        store.get("c/10")


def test_zip_written_to_an_object_store(fault_server: FaultServer) -> None:
    """It gets there when it is closed, and nobody's changes are lost."""
    options = {"endpoint": fault_server.url, "allow_http": True, "anon": True, "region": "us-east-1"}
    server = ObjectStore.from_url("s3://bucket/in", storage_options=options)
    with ZipStore(server, "x.zip", mode="w") as store:
        xzarr3.create_array(store, "a", data=np.arange(100), chunks=(7,))
        assert fault_server.keys() == []
    assert fault_server.keys() == ["/bucket/in/x.zip"]
    with zipfile.ZipFile(io.BytesIO(fault_server.get("/bucket/in/x.zip") or b"")) as peer:
        assert peer.testzip() is None
    with ZipStore(server, "x.zip", mode="a") as store:
        store.set("b", VALUE)
    again = ZipStore(server, "x.zip")
    assert again.get("b") == VALUE
    assert xzarr3.open_array(again, "a")[:].tolist() == list(range(100))
    late = ZipStore(server, "x.zip", mode="a")
    late.set("c", b"late")
    fault_server.put("/bucket/in/x.zip", b"theirs")
    with pytest.raises(ConflictError):
        late.close()
    late.discard()
    assert fault_server.get("/bucket/in/x.zip") == b"theirs"


# One writer


@pytest.mark.slow
def test_second_writer_is_refused(path: Path) -> None:
    with ZipStore(path, mode="w") as store:
        store.set("a", b"x")
        for mode in ("w", "a", "x"):
            with pytest.raises(StoreError, match="one writer at a time") as caught:
                ZipStore(path, mode=mode)  # type: ignore[arg-type]
            assert str(path) in str(caught.value)

        def work() -> str:
            with pytest.raises(StoreError, match="one writer at a time"):
                ZipStore(path, mode="a")
            return "refused"

        assert run_child(work).checked() == "refused"
    with ZipStore(path, mode="a") as store:
        assert contents(store) == {"a": b"x"}
    memory = MemoryStore()
    with ZipStore(memory, "x", mode="w"):
        with pytest.raises(StoreError, match="one writer at a time"):
            ZipStore(memory, "x", mode="w")
        ZipStore(memory, "y", mode="w").discard()
    ZipStore(memory, "x", mode="a").discard()


def test_link_names_the_same_zip(path: Path, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    link = tmp_path / "deep" / "link.zip"
    link.symlink_to(path)
    with ZipStore(link, mode="w") as store:
        store.set("a", b"x")
        with pytest.raises(StoreError, match="one writer"):
            ZipStore(path, mode="w")
        assert store.identity == ("ZipStore", str(path))
    assert link.is_symlink()
    assert contents(ZipStore(path)) == {"a": b"x"}
    assert os.listdir(tmp_path / "deep") == ["link.zip"]


def test_forked_child_writes_and_removes_nothing(path: Path) -> None:
    store = ZipStore(path, mode="w")
    store.set("a", b"x")

    def work() -> dict[str, bytes]:
        with pytest.raises(ReadOnlyError, match="scheduler='threads'"):
            store.set("b", b"y")
        with pytest.raises(ReadOnlyError, match=r"ZipStore\.pack"):
            store.erase("a")
        found = contents(store)
        store.close()
        store.discard()
        assert store._finalizer is not None
        store._finalizer()
        return found

    assert run_child(work).checked() == {"a": b"x"}
    assert not path.exists()
    store.set("b", b"y")
    store.close()
    assert contents(ZipStore(path)) == {"a": b"x", "b": b"y"}


def test_child_that_outlives_its_parent_does_not_keep_the_lock(path: Path) -> None:
    """The writer is killed; its child still has its descriptors."""
    reading_end, writing_end = os.pipe()
    first = fork()
    if first == 0:
        store = ZipStore(path, mode="w")
        store.set("a", b"x")
        if fork() == 0:
            os.write(writing_end, os.getpid().to_bytes(4, "little"))
        signal.alarm(60)
        signal.pause()
        os._exit(0)
    second = int.from_bytes(os.read(reading_end, 4), "little")
    os.close(reading_end)
    os.close(writing_end)
    try:
        os.kill(first, signal.SIGKILL)
        os.waitpid(first, 0)
        with ZipStore(path, mode="w") as store:
            store.set("b", b"y")
    finally:
        os.kill(second, signal.SIGKILL)
    assert contents(ZipStore(path)) == {"b": b"y"}


def test_pickled_while_it_is_written(path: Path) -> None:
    """Another process would find the old zip at its place, or none, and is refused."""
    packed({"a": b"old"}, path)
    store = ZipStore(path, mode="a")
    array = xzarr3.create_array(store, "x", data=np.full(8, 7), chunks=(2,))
    assert pickle.loads(pickle.dumps(store)) is store
    data = pickle.dumps((store, array))

    def work() -> None:
        twin, its_array = pickle.loads(data)
        with pytest.raises(ReadOnlyError, match="scheduler='threads'"):
            twin.set("c", b"")
        with pytest.raises(ReadOnlyError, match="another process"):
            its_array[:4] = 9
        for read in (lambda: twin.get("a"), lambda: its_array[:], lambda: list(twin.list())):
            with pytest.raises(StoreError, match="close it first"):
                read()
        assert pickle.loads(pickle.dumps(twin)) is twin

    run_child(work).checked()
    store.close()
    run_child(work).checked()
    assert array[:].tolist() == [7] * 8
    data = pickle.dumps((store, array))
    assert run_child(lambda: pickle.loads(data)[1][:].tolist()).checked() == [7] * 8


@pytest.mark.parametrize("inner", [None, "memory"])
def test_threads_of_dask_write(path: Path, inner: str | None) -> None:
    memory = MemoryStore()
    place: tuple[Any, ...] = (path,) if inner is None else (memory, "x.zip")
    rng = np.random.default_rng(3)
    data = rng.normal(size=(60, 50, 4))
    dataset = xr.Dataset(
        {
            "plain": (("t", "y", "x"), dask.array.from_array(data, chunks=(7, 50, 4))),
            "small": (("t", "y", "x"), dask.array.from_array(data + 1, chunks=(30, 10, 2))),
        },
        coords={"t": np.arange(60), "y": np.linspace(0, 1, 50)},
    )
    with ZipStore(*place, mode="w") as store, dask.config.set(scheduler="threads", num_workers=6):
        xzarr3.to_zarr(dataset, store, encoding={"small": {"chunks": (10, 5, 2), "shards": (30, 10, 2)}})
        assert not path.exists()
        xr.testing.assert_identical(xr.open_dataset(store, engine="xzarr3").load(), dataset.load())
    again = xr.open_dataset(ZipStore(*place), engine="xzarr3", chunks={})
    xr.testing.assert_identical(again.load(), dataset.load())
    assert inner or verified(path)


def test_flushing_and_closing_while_threads_write(path: Path) -> None:
    store = ZipStore(path, mode="w")
    stored: list[str] = []
    closing, progress = threading.Event(), threading.Semaphore(0)
    early: list[bool] = []

    def work(at: int) -> None:
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

    run_threads(close, *(lambda at=at: work(at) for at in range(4)))  # type: ignore[misc]
    assert set(ZipStore(path).list()) == set(stored)
    assert not any(early), "who writes while it is flushed waits"


# Closing


def run_script(text: str, *arguments: object, ok: bool = True) -> subprocess.CompletedProcess[str]:
    """A process with a ``store``, written to a file or, if asked for, to a value of another store."""
    script = """
import os, resource, sys, time
from xzarr3 import LocalStore, ZipStore
path, mode, is_value = sys.argv[1], sys.argv[2], sys.argv[3:] == ["True"]
place = (LocalStore(os.path.dirname(path)), os.path.basename(path)) if is_value else (path,)
store = ZipStore(*place, mode=mode)
"""
    command = [sys.executable, "-c", script + text, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert not ok or done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
@pytest.mark.parametrize("is_value", [False, True])
def test_closed_at_exit(path: Path, is_value: bool) -> None:
    run_script("store.set('a', b'x')\nassert not os.path.exists(path)", path, "w", is_value)
    assert contents(ZipStore(path)) == {"a": b"x"}
    done = run_script("store.set('b', b'y')\nsys.exit(3)", path, "a", is_value, ok=False)
    assert done.returncode == 3, "that is no failure"
    assert contents(ZipStore(path)) == {"a": b"x", "b": b"y"}
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.slow
def test_value_closed_where_its_store_is_locked() -> None:
    """A store in a cycle is forgotten while another thread, or this one, writes to the store around it."""
    memory = MemoryStore()

    class Holder:
        pass

    holder: Any = Holder()
    holder.store, holder.self = ZipStore(memory, "x.zip", mode="w"), holder
    holder.store.set("a", b"x")
    del holder
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("xzarr3.stores.zip.store._PATIENCE", 0.1)
        with memory._lock:
            gc.collect()
    for _ in range(5000):
        if memory.exists("x.zip"):
            break
        time.sleep(0.02)
    assert contents(ZipStore(memory, "x.zip")) == {"a": b"x"}


@pytest.mark.slow
def test_closed_when_it_is_forgotten(path: Path) -> None:
    store = ZipStore(path, mode="w")
    store.set("a", b"x")
    del store
    gc.collect()
    assert contents(ZipStore(path)) == {"a": b"x"}
    assert os.listdir(path.parent) == [path.name]


def test_with_statement_that_fails_writes_nothing(path: Path) -> None:
    packed({"a": b"old"}, path)
    before = path.read_bytes()
    for mode in ("w", "a", "r+"):
        store = ZipStore(path, mode=mode)  # type: ignore[arg-type]
        store.set("a", b"new")
        with pytest.raises(KeyError), store:
            raise KeyError("x")
        assert path.read_bytes() == before
        assert os.listdir(path.parent) == [path.name]
        assert bytes(store.get("a") or b"") == b"old"
        with pytest.raises(ReadOnlyError, match="closed"):
            store.set("a", b"new")


def test_closed_store_is_read(path: Path) -> None:
    store = ZipStore(path, mode="w")
    store.set("a", b"x")
    store.close()
    store.close()
    assert contents(store) == {"a": b"x"}
    assert store.read_only
    with pytest.raises(ReadOnlyError, match="mode 'a'"):
        store.set("b", b"")
    with pytest.raises(ReadOnlyError):
        store.flush()
    reader = ZipStore(path)
    with reader.reader().open("a") as opened:  # type: ignore[union-attr]
        reader.close()
        assert bytes(opened.read(0)) == b"x"
    assert contents(reader) == {"a": b"x"}


@pytest.mark.parametrize("mode", ["w", "a"])
def test_readers_see_the_old_zip_until_it_is_closed(path: Path, mode: Any) -> None:
    packed({"a": b"old"}, path)
    path.chmod(0o640)
    with ZipStore(path, mode=mode) as store:
        store.set("a", b"new")
        assert contents(ZipStore(path)) == verified(path) == {"a": b"old"}
        store.flush()
        assert contents(ZipStore(path)) == {"a": b"new"}
    assert contents(ZipStore(path)) == {"a": b"new"}
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


@pytest.mark.parametrize("is_value", [False, True])
def test_modes(path: Path, is_value: bool) -> None:
    place: Any = (MemoryStore(), "x.zarr.zip") if is_value else (path,)
    for mode in ("r", "r+"):
        with pytest.raises(NodeNotFoundError, match=r"x\.zarr\.zip"):
            ZipStore(*place, mode=mode)
    assert os.listdir(path.parent) == []
    with ZipStore(*place, mode="x") as store:
        store.set("a", b"x")
    for mode in ("x", "w-"):
        with pytest.raises(NodeExistsError, match="already"):
            ZipStore(*place, mode=mode)
    assert os.listdir(path.parent) == ([] if is_value else [path.name])


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        (("x.zip",), {"mode": "rw"}, ValueError),
        (("x.zip",), {"mode": "w", "read_only": True}, ValueError),
        (("x.zip",), {"read_only": False}, ValueError),
        (("x.zip", "key"), {}, ValueError),
        ((MemoryStore(),), {}, ValueError),
        ((MemoryStore(), "../x"), {}, InvalidKeyError),
        ((None,), {}, TypeError),
        (("a\0b",), {}, StoreError),
    ],
)
def test_arguments_that_are_refused(arguments: Any, options: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"accepted|use read_only=True|give a Store|pass key="):
        ZipStore(*arguments, **options)


def test_places_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="not a file"):
        ZipStore(tmp_path)
    with pytest.raises(ReadOnlyError):
        ZipStore(MemoryStore(read_only=True), "x", mode="w")


def test_equality_and_names(path: Path) -> None:
    packed(KEYS, path)
    memory = MemoryStore()
    packed(KEYS, memory, "y.zip")
    one, other = ZipStore(path), ZipStore(str(path))
    assert one == other
    assert len({one, other}) == 1
    assert one != ZipStore(memory, "y.zip") == ZipStore(memory, "y.zip")
    assert repr(one) == f"<ZipStore '{path}'>"
    assert repr(ZipStore(memory, "y.zip")) == f"<ZipStore 'y.zip' of {memory}>"
    assert one.identity == ("ZipStore", str(path))
    assert one.__dask_tokenize__() == other.__dask_tokenize__()
    assert one.stamp(["a/b"]) == other.stamp(["a/b"])
    assert one.version("a/b") == other.version("a/b") is not None


@pytest.mark.parametrize("is_value", [False, True])
@pytest.mark.parametrize("old", [{}, {"a": b"old"}], ids=["none", "old"])
def test_somebody_else_makes_or_changes_it_meanwhile(path: Path, old: Any, is_value: bool) -> None:
    place: Any = (LocalStore(path.parent), path.name) if is_value else (path,)
    if old:
        packed(old, *place)
    store = ZipStore(*place, mode="a")
    store.set("b", b"mine")
    path.write_bytes(b"theirs")
    with pytest.raises((ConflictError, NodeExistsError), match="another writer"):
        store.close()
    store.discard()
    assert path.read_bytes() == b"theirs"


# Faults


def generation(number: int) -> dict[str, bytes]:
    """Values that tell which of them belong together."""
    rng = random.Random(number)
    return {f"k/{at}": number.to_bytes(4, "little") + rng.randbytes(6000 + 500 * at) for at in range(12)}


def generation_of(path: Path) -> int:
    """Which values are in a zip: all of one generation."""
    found = contents(ZipStore(path))
    if not found:
        return -1
    number = int.from_bytes(found["k/0"][:4], "little")
    assert found == generation(number)
    return number


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["w", "a"])
def test_killed_at_any_time(path: Path, mode: Any) -> None:
    """What is there after a SIGKILL is the last that was closed, or the one after it."""
    rng = random.Random(mode)
    last, killed_within, rounds, wait = -1, 0, 0, 0.02
    ZipStore(path, mode="w").close()
    while rounds < 300 and (rounds < 30 or last < 6 or killed_within < 6):
        rounds += 1
        reading_end, writing_end = os.pipe()
        child = fork()
        if child == 0:
            try:
                os.close(reading_end)
                for number in range(last + 1, last + 1000):
                    with ZipStore(path, mode=mode) as store:
                        for key, value in generation(number).items():
                            store.set(key, value)
                    os.write(writing_end, number.to_bytes(4, "little"))
            finally:
                os._exit(1)
        os.close(writing_end)
        time.sleep(rng.uniform(0.1 * wait, 2 * wait))
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        with os.fdopen(reading_end, "rb") as stream:
            data = stream.read()
        reported = int.from_bytes(data[-4:], "little") if data else last
        found = generation_of(path)
        assert reported <= found <= reported + 1
        verified(path)
        wait *= 1.3 if found == last else 0.9  # So that about one is written each time, on any machine.
        leftovers = [name for name in os.listdir(path.parent) if name != path.name]
        assert all(name.startswith((zip_writing.TEMPORARY, zip_writing.LOCK)) for name in leftovers)
        killed_within += bool(leftovers)
        last = found
    assert last >= 6
    assert killed_within >= 6, "the test killed nobody who was writing"
    with ZipStore(path, mode="r+") as store:
        store.set("k/0", b"")
        store.erase("k/0")
    verified(path)
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["w", "a"])
def test_opened_while_it_gets_its_place(path: Path, mode: Any) -> None:
    """A reader that opens the zip at any time finds one generation, never a mixture and never an error."""
    packed(generation(0), path)
    done = threading.Event()
    seen: set[int] = set()

    def write() -> None:
        number = 0
        while (number < 30 or len(seen) < 5) and number < 3000:
            number += 1
            with ZipStore(path, mode=mode) as store:
                store.set_values(generation(number).items())
        done.set()

    def read() -> None:
        while not done.is_set():
            seen.add(generation_of(path))

    run_threads(write, read, read)
    assert len(seen) >= 5


@pytest.mark.slow
@pytest.mark.parametrize("way", ["new", "copied"])
def test_full_disk_loses_nothing(path: Path, way: str) -> None:
    """The system lets no file grow any more, at each size that one of them reaches."""
    old = {"a": b"old" * 5000}
    packed(old, path)
    before = path.read_bytes()
    mode: Any = "w" if way == "new" else "a"

    def work(limit: int) -> tuple[int, dict[str, bytes]]:
        stored = {} if way == "new" else dict(old)
        failed = 0
        store = ZipStore(path, mode=mode)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        for at in range(6):
            try:
                store.set(f"b/{at}", bytes([at]) * 3000)
                stored[f"b/{at}"] = bytes([at]) * 3000
            except StoreError as error:
                assert f"b/{at}" in str(error)  # noqa: PT017 - some do not fail
                failed += 1
        assert contents(store) == stored
        try:
            store.close()
        except StoreError as error:
            assert str(path) in str(error)  # noqa: PT017
            failed += 1
            assert contents(store) == stored
            assert contents(ZipStore(path)) == old
            assert path.read_bytes() == before
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        if not store.read_only:
            store.set("c", b"room again")
            stored["c"] = b"room again"
            store.close()
        assert contents(store) == contents(ZipStore(path)) == stored
        return failed, stored

    failures = 0
    for limit in (5000, 15_500, 18_000, 20_000, 30_000, 33_250, 33_400, 33_700, 60_000):
        failed, stored = run_child(lambda limit=limit: work(limit)).checked()  # type: ignore[misc]
        failures += failed
        assert verified(path) == contents(ZipStore(path)) == stored
        path.write_bytes(before)
    assert failures > 5


def test_left_by_a_killed_writer(path: Path, tmp_path: Path) -> None:
    """It is removed by the next writer; a second name is not cut."""
    packed({"a": b"old"}, path)
    left = draft_of(path)
    os.link(path, left)  # Killed between giving the zip its name and taking the other one away.
    with ZipStore(path, mode="w") as store:
        store.set("a", b"new")
        assert contents(ZipStore(path)) == {"a": b"old"}
    assert contents(ZipStore(path)) == {"a": b"new"}
    left.write_bytes(b"garbage")
    with ZipStore(path, mode="a") as store:
        store.set("b", b"more")
    assert contents(ZipStore(path)) == {"a": b"new", "b": b"more"}
    assert os.listdir(tmp_path) == [path.name]


def test_draft_is_not_swept(path: Path, tmp_path: Path) -> None:
    """A directory store around it removes what looks abandoned, which a writer may seem to be for hours."""
    store = ZipStore(path, mode="w")
    store.set("a", b"1")
    for each in tmp_path.iterdir():
        os.utime(each, (0, 0))
    LocalStore(tmp_path).sweep()
    with pytest.raises(StoreError, match="one writer at a time"):
        ZipStore(path, mode="w")
    store.close()
    assert contents(ZipStore(path)) == {"a": b"1"}


# What cannot get to its place


def forget(stores: list[ZipStore], monkeypatch: pytest.MonkeyPatch) -> str:
    """What is said when a store that cannot be closed is forgotten."""
    said: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    monkeypatch.setattr(threading, "excepthook", said.append)
    place = weakref.ref(stores.pop())
    gc.collect()
    assert place() is None
    (found,) = said
    return str(found.exc_value)


@pytest.mark.slow
def test_what_cannot_get_to_its_place_is_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2):
        packed({"a": b"0"}, path)
        stores = [ZipStore(path, mode="a")]
        stores[0].set("hours of work", bytes([number]) * 100)
        os.utime(path)  # As whoever changes the zip does.
        with pytest.raises(ConflictError):
            stores[0].close()
        left = draft_of(path)
        assert str(left) in forget(stores, monkeypatch)
        assert contents(ZipStore(left)) == {"a": b"0", "hours of work": bytes([number]) * 100}
        assert contents(ZipStore(path)) == {"a": b"0"}
        assert sorted(os.listdir(path.parent)) == sorted([path.name, left.name])


@pytest.mark.slow
def test_file_of_a_draft_that_somebody_removes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stores = [ZipStore(path, mode="w")]
    stores[0].set("a", b"1" * 100)
    os.unlink(draft_of(path))
    with pytest.raises(StoreError, match=r"x\.zarr\.zip"):
        stores[0].close()
    assert "what was written is lost" in forget(stores, monkeypatch)
    assert os.listdir(path.parent) == []


@pytest.mark.slow
def test_value_that_cannot_get_to_its_place_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = MemoryStore()
    stores = [ZipStore(memory, "x", mode="a")]
    stores[0].set("a", b"1")
    memory.set("x", b"of somebody else")
    said = forget(stores, monkeypatch)
    left = said.split("'")[-2]
    assert contents(ZipStore(left)) == {"a": b"1"}
    os.unlink(left)
    assert memory.get("x") == b"of somebody else"


@pytest.mark.slow
def test_full_disk_at_exit_keeps_what_was_written(path: Path) -> None:
    script = """
for at in range(100):
    store.set(f"a/{at}", b"x" * 1000)
resource.setrlimit(resource.RLIMIT_FSIZE, (105_000, 105_000))
"""
    done = run_script(script, path, "w", ok=False)
    left = draft_of(path)
    assert f"'{left}'" in done.stderr
    assert "zip -FF" in done.stderr
    assert left.read_bytes().count(b"x" * 1000) == 100
    assert os.listdir(path.parent) == [left.name]


@pytest.mark.parametrize("mode", ["w", "a"])
@pytest.mark.parametrize("is_value", [False, True])
def test_program_that_fails_does_not_replace_a_zip_by_half_of_it(
    path: Path, mode: str, is_value: bool
) -> None:
    packed({"a": b"1", "b": b"2"}, path)
    before = path.read_bytes()
    script = "store.set('a', b'half')\nraise RuntimeError('the program fails')"
    done = run_script(script, path, mode, is_value, ok=False)
    assert done.returncode == 1
    assert path.read_bytes() == before
    left = done.stderr.rstrip().split("'")[-2]
    assert is_value or left == str(draft_of(path))
    assert contents(ZipStore(left)) == ({"a": b"half"} if mode == "w" else {"a": b"half", "b": b"2"})
    os.unlink(left)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_closed_where_a_process_of_multiprocessing_ends(path: Path, tmp_path: Path, method: str) -> None:
    script = f"""
import multiprocessing, sys
from xzarr3.stores.zip.store import ZipStore

def work(path, fails):
    global store
    store = ZipStore(path, mode="w")
    store.set("a", b"x")
    if fails:
        raise RuntimeError

if __name__ == "__main__":
    for at, fails in enumerate([False, True]):
        process = multiprocessing.get_context("{method}").Process(target=work, args=(sys.argv[at + 1], fails))
        process.start()
        process.join()
"""
    program, other = tmp_path / "program.py", tmp_path / "other.zip"
    program.write_text(script)
    run = [sys.executable, str(program), str(path), str(other)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120, check=True)
    assert contents(ZipStore(path)) == {"a": b"x"}
    if sys.version_info >= (3, 13):
        return  # A process of multiprocessing tells nobody any more that it ends with an error.
    left = draft_of(other)
    assert str(left) in done.stderr
    assert contents(ZipStore(left)) == {"a": b"x"}
    assert not other.exists()


@pytest.mark.slow
def test_upload_at_exit_is_waited_for(path: Path) -> None:
    script = """
from xzarr3.stores.zip import store as module
module._PATIENCE = 0.1

class Slow(LocalStore):
    def set(self, key, value):
        time.sleep(1.5)
        super().set(key, value)

store.discard()
store = ZipStore(Slow(os.path.dirname(path)), "x.zip", mode="w")
store.set("a", b"x")
"""
    run_script(script, path, "w")
    assert contents(ZipStore(LocalStore(path.parent), "x.zip")) == {"a": b"x"}


def test_temporary_file_that_is_a_link_is_not_followed() -> None:
    def prepare(base: Path) -> None:
        (base / "outside" / "victim").write_bytes(b"alive")
        os.symlink(base / "outside" / "victim", draft_of(base / "store" / "x.zip"))
        os.symlink(base / "outside" / "lock", base / "store" / f"{zip_writing.LOCK}y.zip")

    def work(base: Path) -> dict[str, bytes]:
        with ZipStore(base / "store" / "x.zip", mode="w") as store:
            store.set("a", b"x")
        with pytest.raises(StoreError, match=r"y\.zip"):
            ZipStore(base / "store" / "y.zip", mode="w")
        assert not os.path.lexists(base / "outside" / "lock")
        return contents(ZipStore(base / "store" / "x.zip"))

    assert run_unprivileged(work, prepare=prepare).checked() == {"a": b"x"}


def test_what_may_not_be_written_or_read() -> None:
    def work(base: Path) -> None:
        folder = base / "store"
        ZipStore.pack(MemoryStore({"a": b"x"}), folder / "x.zip")
        (folder / "x.zip").chmod(0o400)
        with pytest.raises(StorePermissionError, match="may write"):
            ZipStore(folder / "x.zip", mode="a")
        (folder / "x.zip").chmod(0o000)
        with pytest.raises(StorePermissionError, match="may read"):
            ZipStore(folder / "x.zip")
        assert os.listdir(folder) == ["x.zip"]
        folder.chmod(0o500)
        with pytest.raises(StorePermissionError, match="may write"):
            ZipStore(folder / "y.zip", mode="w")

    run_unprivileged(work).checked()


def test_damaged_values_are_noticed(path: Path) -> None:
    packed({"a": b"x" * 1000, "b": b"y" * 1000}, path)
    data = bytearray(path.read_bytes())
    data[500] ^= 1
    path.write_bytes(data)
    store = ZipStore(path)
    for read in (
        lambda: store.get("a"),
        lambda: store.reader().get("a"),
        lambda: store.get("a", (0, None)),
        lambda: store.reader().get_into("a", 0, memoryview(bytearray(1000))),
        lambda: store.reader().get_ranges("a", [0], [1000]),
        lambda: store.get_values(["a"]),
    ):
        with pytest.raises(StoreError, match=r"key 'a' of .*x\.zarr\.zip.*CRC mismatch"):
            read()
    assert bytes(store.get("a", (0, 999)) or b"")[:3] == b"xxx", "of parts nothing is known"
    assert bytes(store.get("b") or b"") == b"y" * 1000


def test_file_that_is_cut_off_under_its_reader(path: Path) -> None:
    packed({"a": b"x" * 1000}, path)
    store = ZipStore(path)
    os.truncate(path, 500)
    for read in (lambda: store.get("a"), lambda: store.get("a", (900, 10))):
        with pytest.raises(StoreError, match="truncated"):
            read()
    with pytest.raises(StoreError, match="copy the zip again, whole"):
        ZipStore(path)


# A mapping


NAMES = st.sampled_from(["a", "a/b", "a/c/d", "b", "\u00e9/x", "zarr.json"])


STEPS = st.one_of(
    st.tuples(st.just("set"), NAMES, st.binary(max_size=20)),
    st.tuples(st.just("erase"), NAMES),
    st.tuples(st.just("erase_prefix"), st.sampled_from(["a/", "a/c/", "\u00e9/"])),
    st.tuples(st.sampled_from(["close", "flush", "discard", "reopen", "pack"])),
)


@pytest.mark.parametrize("way", ["copied", "value"])
@given(steps=st.lists(STEPS, max_size=20))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_it_is_a_mapping(way: str, steps: list[Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    memory = MemoryStore()
    place: tuple[Any, ...] = (memory, "x") if way == "value" else (tmp_path_factory.mktemp("zip") / "x",)
    store = ZipStore(*place, mode="a")
    model: dict[str, bytes] = {}
    committed: dict[str, bytes] = {}
    store.flush()
    for name, *given_ in steps:
        if name == "set":
            model[given_[0]] = given_[1]
            store.set(*given_)
        elif name.startswith("erase"):
            model = {
                key: value
                for key, value in model.items()
                if not (key.startswith(given_[0]) if name == "erase_prefix" else key == given_[0])
            }
            getattr(store, name)(*given_)
        else:
            if name == "discard":
                model = dict(committed)
                store.discard()
            elif name == "flush":
                store.flush()
            else:
                store.close()
                if name == "pack":
                    ZipStore.pack(ZipStore(*place), *place)
            committed = dict(model)
            if name != "flush":
                store = ZipStore(*place, mode="a")
        assert contents(store) == model
        assert sorted(store.list_prefix("a/")) == sorted(key for key in model if key.startswith("a/"))
        assert contents(ZipStore(*place)) == committed
    store.close()
    data = bytes(memory.get("x") or b"") if way == "value" else place[0].read_bytes()
    with zipfile.ZipFile(io.BytesIO(data)) as peer:
        assert peer.testzip() is None
        assert {name: peer.read(name) for name in peer.namelist()} == model


def test_compare_and_set_and_update(path: Path) -> None:
    with ZipStore(path, mode="w") as store:
        _, absent = store.get_versioned("a")
        assert store.compare_and_set("a", absent, b"1")
        assert not store.compare_and_set("a", absent, b"2")
        value, version = store.get_versioned("a")
        assert value is not None
        assert pickle.loads(pickle.dumps(version)) == version
        store.set("a", b"1")
        assert not store.compare_and_set("a", version, None)

        def work() -> None:
            for _ in range(50):
                store.update("n", lambda old: [b"%d" % (int(bytes(old or b"0")) + 1)])

        run_threads(*[work] * 6)
        assert bytes(store.get("n") or b"") == b"300"
        store.update("n", lambda old: None)
        assert store.get("n") is None
    with ZipStore(path, mode="a") as store:
        assert list(store.list()) == ["a"]
        assert store.compare_and_set("b", absent, b"2")
        assert sorted(store.list()) == ["a", "b"]
    with ZipStore(path, mode="a") as store:
        assert contents(store) == {"a": b"1", "b": b"2"}
        _, version = store.get_versioned("a")
        assert store.compare_and_set("a", version, None)
    assert contents(ZipStore(path)) == {"b": b"2"}


# Hostile zips, built by hand


@dataclass
class Entry:
    """A member, and what is said of it that is not true."""

    name: bytes
    data: bytes = b""
    flags: int = 0
    method: int = 0
    size: int | None = None
    stored: int | None = None
    crc: int | None = None
    extra: bytes = b""
    local_extra: bytes = b""
    local_name: bytes | None = None
    offset: int | None = None
    disk: int = 0
    alone: bool = False
    """Nothing of it lies in the file but its entry."""

    def __post_init__(self) -> None:
        self.size = len(self.data) if self.size is None else self.size
        self.crc = zlib.crc32(self.data) if self.crc is None else self.crc
        self.data = zlib.compress(self.data, wbits=-15) if self.method == 8 else self.data
        self.stored = len(self.data) if self.stored is None else self.stored
        self.local_name = self.name if self.local_name is None else self.local_name

    def sums(self) -> tuple[Any, ...]:
        assert self.stored is not None
        assert self.size is not None
        return self.crc, min(self.stored, 0xFFFFFFFF), min(self.size, 0xFFFFFFFF)

    def local(self) -> bytes:
        assert self.local_name is not None
        names = (len(self.local_name), len(self.local_extra))
        head = struct.pack("<4s5H3L2H", b"PK\3\4", 20, self.flags, self.method, 0, 0x21, *self.sums(), *names)
        return head + self.local_name + self.local_extra + self.data

    def central(self, offset: int) -> bytes:
        lengths = (len(self.name), len(self.extra), 0, self.disk, 0)
        head = struct.pack(
            "<4s6H3L5H2L",
            *(b"PK\1\2", 20, 20, self.flags, self.method, 0, 0x21),
            *(*self.sums(), *lengths, 0, offset if self.offset is None else self.offset),
        )
        return head + self.name + self.extra


def built(
    entries: Sequence[Entry],
    *,
    number: int | None = None,
    length: int | None = None,
    place: int | None = None,
    comment: bytes = b"",
    comment_length: int | None = None,
    before: bytes = b"",
    middle: bytes = b"",
    disk: int = 0,
) -> bytes:
    """A zip file, with fields of its end as they are asked for."""
    body, directory = b"", b""
    for entry in entries:
        directory += entry.central(len(body))
        body += b"" if entry.alone else entry.local()
    number = len(entries) if number is None else number
    end = struct.pack(
        "<4s4H2LH",
        *(b"PK\5\6", disk, disk, number, number),
        len(directory) if length is None else length,
        len(body) if place is None else place,
        len(comment) if comment_length is None else comment_length,
    )
    return before + body + directory + middle + end + comment


GOOD = Entry(b"good", b"value")


def wide_end(number: int, length: int, place: int, *, shift: int = 0) -> bytes:
    record = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, number, number, length, place)
    return record + struct.pack("<4sLQL", b"PK\6\7", 0, place + length + shift, 1)


WHOLES: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "no end"),
    "something else": (b"<html>login</html>" * 100, "no end"),
    "cut off": (built([GOOD])[:-1], "no end"),
    "cut off before": (built([GOOD])[10:], "does not lie within"),
    "more behind it": (built([GOOD]) + b"\n", "no end"),
    "more members": (built([GOOD], number=2), "not one of 2 members|cannot be listed"),
    "more members of long names": (built([Entry(b"n" * 100)], number=2), "not one of 2 members"),
    "fewer members": (built([GOOD, Entry(b"b")], number=1), "not one of 1 members"),
    "no members": (built([GOOD], number=0), "not one of 0 members"),
    "many members": (built([GOOD], number=60_000), "cannot be listed"),
    "directory beyond": (built([GOOD], place=10**6), "does not lie within"),
    "directory too long": (built([GOOD], length=10**6), "does not lie within"),
    "directory too short": (built([GOOD], length=46, place=0), "Bad magic number"),
    "directory elsewhere": (built([GOOD], length=60, place=0), "not one of"),
    "other disk": (built([GOOD], disk=3), "several files"),
    "comment longer": (built([GOOD], comment=b"x", comment_length=9), "no end"),
    "comment shorter": (built([GOOD], comment=b"xxxx", comment_length=2), "no end"),
    "end within the comment": (built([GOOD], comment=built([])), "2 ends"),
    "zip within the comment": (built([GOOD], comment=built([Entry(b"good", b"other")])), "2 ends"),
    "wide end missing": (
        built([GOOD], middle=struct.pack("<4sLQL", b"PK\6\7", 0, 10, 1)),
        "ZIP64 end is not where",
    ),
    "wide end contradicts": (built([GOOD], middle=wide_end(2, 50, 39)), "contradict"),
    "wide end lies": (
        built([GOOD], number=0xFFFF, length=0xFFFFFFFF, middle=wide_end(2**60, 50, 39)),
        "cannot be listed|does not lie within",
    ),
    "name that is not UTF-8": (built([GOOD, Entry(b"\xff\xfe", flags=0x800)]), "damaged, or too new"),
    "extra fields that are cut off": (built([GOOD, Entry(b"b", extra=b"\1\0\x20\0")]), "damaged, or too new"),
    "entry that is cut off": (built([GOOD], length=49, place=0), "does not lie|not one of"),
    "end within the directory": (
        built(
            [GOOD, Entry(b"b", extra=struct.pack("<2H", 7, 20) + wide_end(1, 50, 0)[-20:])],
            middle=wide_end(2, 121, 70),
        ),
        "not one of 2 members",
    ),
    "wide directory is huge": (
        built([GOOD], number=0xFFFF, length=0xFFFFFFFF, middle=wide_end(2**50, 2**60, 39)),
        "does not lie within",
    ),
}


LIES: dict[str, tuple[list[Entry], str]] = {
    "other disk": ([Entry(b"bad", b"x", disk=2)], "another file"),
    "beyond": ([Entry(b"bad", b"x", offset=10**6)], "within the zip"),
    "far beyond": ([Entry(b"bad", b"x", offset=0xFFFFFFF0)], "within the zip"),
    "too large": ([Entry(b"bad", b"x", size=500, stored=500)], "overlaps|within the zip"),
    "huge": ([Entry(b"bad", b"x", size=0xFFFFFFFF, stored=0xFFFFFFFF)], "within the zip"),
    "wider than all": (
        [
            Entry(
                *(b"bad", b"x"),
                size=0xFFFFFFFF,
                stored=0xFFFFFFFF,
                extra=struct.pack("<2H2Q", 1, 16, 2**62, 2**62),
            )
        ],
        "within the zip",
    ),
    "too short ZIP64": (
        [Entry(b"bad", b"x", size=0xFFFFFFFF, extra=struct.pack("<2HL", 1, 4, 9) + b"")],
        "Corrupt zip64",
    ),
    "two sizes": ([Entry(b"bad", b"xy", size=5)], "in 2 bytes and not in 5"),
    "overlap": ([Entry(b"bad", b"x", offset=0, alone=True)], "overlap"),
    "overlap by a letter": (
        [Entry("\u00e9".encode(), b"x", flags=0x800, stored=2, size=2)],
        "overlap|does not lie within",
    ),
    "within another": (
        [Entry(b"bad", b"x", offset=36, alone=True)],
        "overlap",
    ),
    "no header": ([Entry(b"bad", b"x", offset=-1 % 2**32)], "within the zip"),
    "large bomb": ([Entry(b"bad", b"\0" * 1000, method=8, size=2**31)], "cannot be"),
    "no deflate": ([Entry(b"bad", b"", method=8, size=40, stored=0)], "cannot be|inflates to 0"),
}
"""Members that cannot be where they are said to be, or as large; no other is trusted then, either."""
for _name, (_entries, _match) in LIES.items():
    WHOLES[f"member: {_name}"] = built([GOOD, *_entries]), _match
    WHOLES[f"first member: {_name}"] = built([*_entries, GOOD]), f"{_match}|overlaps"


@pytest.mark.parametrize("name", WHOLES)
def test_zip_that_contradicts_itself(path: Path, name: str) -> None:
    data, match = WHOLES[name]
    path.write_bytes(data)
    for open_ in (
        lambda: ZipStore(path),
        lambda: ZipStore(path, mode="a"),
        lambda: ZipStore(MemoryStore({"k/x.zip": data}), "k/x.zip"),
        lambda: ZipStore(Requests({"k/x.zip": data}, tells_size=False), "k/x.zip"),
    ):
        with pytest.raises(StoreError, match=r"x\.(zarr\.)?zip") as caught:
            open_()
        assert "the zip" in str(caught.value)
    with pytest.raises(StoreError, match=match):
        ZipStore(path)
    assert path.read_bytes() == data, "nothing is mended here"
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize(
    ("comment", "before"),
    [
        *((b"", b""), (b"a comment", b""), (b"PK\5\6" + b"x" * 18, b""), (built([])[:-2] + b"\7\7", b"")),
        *((b"", b"#!/bin/sh\n"), (b"c" * 65535, b"b" * 70_000)),
    ],
)
def test_zip_with_something_around_it(path: Path, comment: bytes, before: bytes) -> None:
    path.write_bytes(built([GOOD, Entry(b"b", VALUE)], comment=comment, before=before))
    store = ZipStore(path)
    assert contents(store) == {"good": b"value", "b": VALUE}
    if b"PK" not in comment:  # The peer takes the last one for the end, whatever follows it.
        assert zipfile.ZipFile(path).read("b") == VALUE
    with ZipStore(path, mode="a") as store:
        store.set("new", b"more")
    assert contents(ZipStore(path)) == {"good": b"value", "b": VALUE, "new": b"more"}
    assert path.read_bytes().startswith(before)
    if b"PK" not in comment:
        with zipfile.ZipFile(path) as peer:
            assert peer.comment == comment
            assert peer.testzip() is None
    path.write_bytes(before + built([GOOD], middle=wide_end(1, 50, 39)))
    assert contents(ZipStore(path)) == {"good": b"value"}


GARBLED = Entry(b"bad", bytes(1000), method=8)
GARBLED.data = b"\xff" * len(GARBLED.data)
MEMBERS: dict[str, tuple[list[Entry], str]] = {
    "encrypted": ([Entry(b"bad", b"x" * 20, flags=1)], "encrypted"),
    "strongly encrypted": ([Entry(b"bad", b"x" * 20, flags=0x41)], "encrypted"),
    "bzip2": ([Entry(b"bad", b"x", method=12)], r"method 12 \(bzip2\)"),
    "unknown method": ([Entry(b"bad", b"x", method=777)], "method 777"),
    "other name": ([Entry(b"bad", b"x", local_name=b"dab")], "contradict"),
    "longer name": ([Entry(b"bad", b"x", local_name=b"worse")], "contradict|overlap the next member"),
    "bomb": ([Entry(b"bad", b"\0" * 10**6, method=8, size=1000)], "more than 1000"),
    "inflates to less": ([Entry(b"bad", b"\0" * 1000, method=8, size=1001)], "to 1000 bytes"),
    "wrong checksum": ([Entry(b"bad", b"xyz", crc=5)], "CRC mismatch"),
    "wrong checksum, deflated": ([Entry(b"bad", b"xyz", method=8, crc=5)], "CRC mismatch"),
}
UNREADABLE = ("encrypted", "strongly encrypted", "bzip2", "unknown method", "other name", "longer name")
"""Of which no part can be read either, nor whether they end before it."""


@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.parametrize("first", [True, False])
def test_member_that_cannot_be_read(path: Path, name: str, first: bool) -> None:
    """It is listed, so that nobody takes it for absent; the others are read.

    Its entry is written anew when the zip is added to; what was wrong in it must not look right then.
    """
    entries, match = MEMBERS[name]
    others = [Entry(b"other", b"also"), Entry(b"last", b"l" * 600)]
    path.write_bytes(built([GOOD, *entries, *others] if first else [*others, *entries]))
    for store in (ZipStore(path), ZipStore(MemoryStore({"x.zip": path.read_bytes()}), "x.zip")):
        assert "bad" in set(store.list())
        assert store.exists("bad")
        for read in (
            lambda store=store: store.get("bad"),
            lambda store=store: store.reader().get("bad"),
            lambda store=store: store.reader(Scratch()).get("bad"),
            lambda store=store: store.get_partial_values([("bad", (0, None))]),
            lambda store=store: store.get("bad", (10**7, 1)) if name in UNREADABLE else store.get("bad"),
        ):
            with pytest.raises(StoreError, match=match) as caught:  # type: ignore[var-annotated]
                read()  # type: ignore[misc]
            assert "key 'bad' of" in str(caught.value)
            assert "zip" in str(caught.value)
        assert bytes(store.get("other") or b"") == b"also"
        assert bytes(store.get("last") or b"") == b"l" * 600
    before = path.read_bytes()
    try:
        with ZipStore(path, mode="a") as store:
            store.set("new", b"new")
    except StoreError:
        assert path.read_bytes() == before
    else:
        store = ZipStore(path)
        assert [store.get("other"), store.get("new")] == [b"also", b"new"]
        with pytest.raises(StoreError, match=match):
            store.get("bad")
    assert os.listdir(path.parent) == [path.name]


def test_extra_fields_of_the_header_that_the_directory_does_not_have(path: Path) -> None:
    for size in (0, 4, 40, 300, 60_000):
        field = struct.pack("<2H", 0x6666, size) + bytes(size)
        path.write_bytes(built([Entry(b"a", VALUE, local_extra=field), Entry(b"b", b"next")]))
        for parts in (False, True):
            for store in (ZipStore(path), ZipStore(MemoryStore({"x": path.read_bytes()}), "x")):
                if parts:
                    assert bytes(store.get("a", (2, 3)) or b"") == VALUE[2:5]
                out = bytearray(10)
                store.reader().get_into("a", 0, memoryview(out))
                assert out == VALUE
                assert read_back(store, "a") == [VALUE] * 4
    data = bytearray(built([Entry(b"a", VALUE), Entry(b"b", b"next")]))
    data[28:30] = b"\5\0"  # An extra field that pushes the data into what follows.
    path.write_bytes(data)
    for byte_range in (None, (2, 3)):
        with pytest.raises(StoreError, match="overlap the next member"):
            ZipStore(path).get("a", byte_range)


UNUSABLE = [
    *(b"../escape", b"a/../../escape", b"/etc/passwd", b"//x", b"a//b", b"./a"),
    *(b"a/./b", b"..", b".", b"", b"/", b"nul\0byte"),
]


def test_names_that_are_no_keys_do_not_hide_the_others() -> None:
    entries = [Entry(name, b"planted") for name in UNUSABLE]
    data = built([GOOD, *entries, Entry(b"dir/"), Entry(b"x/y/", b""), Entry(b"last", VALUE)])

    def work(base: Path) -> None:
        (base / "store" / "x.zip").write_bytes(data)
        store = ZipStore(base / "store" / "x.zip")
        assert contents(store) == {"good": b"value", "last": VALUE}
        assert store.list_dir("") == ({"good", "last"}, set())
        names = {name.decode() for name in UNUSABLE}
        assert set(store.unusable) == names
        assert all("accepted" in why or "UTF-8" in why for why in store.unusable.values())
        for name in names:
            with pytest.raises(InvalidKeyError):
                store.get(name)
        ZipStore.pack(store, LocalStore(base / "store"), "packed.zip")
        copied = LocalStore(base / "store" / "tree")
        for key in store.list():
            copied.set(key, store.get(key) or b"")
        assert sorted(copied.list()) == ["good", "last"]

    run_unprivileged(work).checked()


def test_names_with_backslashes_and_colons_are_keys() -> None:
    names = ["C:\\windows\\x", "..\\up", "a\\b", "C:", "\\\\server\\share"]
    data = built([Entry(name.encode(), name.encode()) for name in names])

    def work(base: Path) -> None:
        (base / "store" / "x.zip").write_bytes(data)
        store = ZipStore(base / "store" / "x.zip")
        assert contents(store) == {name: name.encode() for name in names}
        copied = LocalStore(base / "store" / "tree")
        for key in store.list():
            copied.set(key, store.get(key) or b"")
        assert sorted(os.listdir(base / "store" / "tree")) == sorted(names)

    run_unprivileged(work).checked()


def test_last_of_several_members_counts(path: Path) -> None:
    path.write_bytes(built([Entry(b"a", b"one"), Entry(b"b", b"x"), Entry(b"a", b"two")]))
    assert contents(ZipStore(path)) == {"a": b"two", "b": b"x"}
    with ZipStore(path, mode="a") as store:
        store.set("c", b"")
    with zipfile.ZipFile(path) as peer:
        assert peer.namelist() == ["b", "a", "c"]
        assert peer.read("a") == b"two"


def test_memory_is_bounded(path: Path) -> None:
    """A sparse file that claims a huge directory, a huge member and a bomb."""

    def work(base: Path) -> None:
        place = base / "store" / "x.zip"
        with open("/proc/self/statm") as status:
            taken = int(status.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + 2**30,) * 2)
        with place.open("wb") as out:
            out.truncate(2**40)
            out.seek(2**40)
            out.write(wide_end(2**33, 2**39, 2**39) + struct.pack("<4s4H2LH", *_FULL_END))
        with pytest.raises(StoreError, match="directory"):
            ZipStore(place)
        bomb = Entry(b"bad", b"\0" * 2**26, method=8, size=100)
        place.write_bytes(built([bomb]))
        begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(StoreError, match="more than 100"):
            ZipStore(place).get("bad")
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - begin < 2**15

    run_unprivileged(work).checked()


def test_limit_counts_before_anything_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what a deflated member takes, too: its data may go on and on without making a byte."""
    long = Entry(b"long", b"value", method=8)
    long.data = b"\0\0\0\xff\xff" * 100_000 + long.data
    long.stored = len(long.data)
    noise = random.Random(0).randbytes(100_000)
    path.write_bytes(built([Entry(b"bomb", bytes(2**20), method=8), long, Entry(b"noise", noise, method=8)]))
    store = ZipStore(path)
    assert bytes(store.get("long") or b"") == b"value"
    load = store.reader(Scratch(), len(noise)).get
    assert bytes(load("noise") or b"") == noise
    monkeypatch.setattr(store._opened(), "file", None)
    for key in ("bomb", "long"):
        with pytest.raises(OversizedError):
            load(key)


_FULL_END = (b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)


def garbled(whole: bytes, data: st.DataObject, least: int) -> bytes:
    """Some bytes are changed at random."""
    found = bytearray(whole)
    for _ in range(data.draw(st.integers(least, 4))):
        at = data.draw(st.integers(0, len(found) - 1))
        found[at] = data.draw(st.sampled_from([0, 1, 0xFF, 0x50, 8]) | st.integers(0, 255))
    return bytes(found)


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_any_bytes_end_in_our_error_or_values(data: st.DataObject) -> None:
    entries = [GOOD, Entry(b"a/b", VALUE, method=8), Entry(b"c", b"x" * 50)]
    whole = garbled(built(entries, comment=b"hey"), data, 1)
    memory = MemoryStore({"x": whole[: len(whole) - data.draw(st.integers(0, 3))]})
    try:
        store = ZipStore(memory, "x")
        keys = list(store.list())
    except StoreError:
        return
    for key in keys:
        for byte_range in (None, (1, 3)):
            with contextlib.suppress(StoreError):
                store.get(key, byte_range)


def test_key_that_a_zip_cannot_name(path: Path) -> None:
    with ZipStore(path, mode="w") as store:
        for key in ("\udc80", "x" * 70_000):
            with pytest.raises(InvalidKeyError, match="accepted"):
                store.set(key, b"")
            with pytest.raises(InvalidKeyError):
                store.compare_and_set(key, "absent", b"")
            assert store.get(key) is None
        store.set("y" * 65_535, b"long")
    assert bytes(ZipStore(path).get("y" * 65_535) or b"") == b"long"
    assert zipfile.ZipFile(path).testzip() is None


@pytest.mark.slow
def test_part_of_a_deflated_value_takes_no_memory_for_all_of_it(path: Path) -> None:
    """A value of 64 MiB that deflates to 64 KiB: a part at its end, and one of a value that says too much."""
    size = 2**26
    data = zlib.compress(bytes(size), wbits=-15)
    entries = []
    for name, claimed in ((b"true", size), (b"liar", size + 1000)):
        entries.append(Entry(name, b"", size=claimed, crc=zlib.crc32(bytes(size)), method=8))
        entries[-1].data, entries[-1].stored = data, len(data)

    def work() -> None:
        path.write_bytes(built(entries))
        store = ZipStore(path)
        reader = store.reader().open("liar")
        assert reader is not None
        assert reader.size == size + 1000, "what it says is known without reading it"
        begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert bytes(store.get("true", (size - 5, 100)) or b"") == bytes(5)
        assert bytes(store.get("true", (3, 4)) or b"") == bytes(4)
        assert [bytes(part) for part in reader.read_ranges([9, 1], [2, 3])] == [bytes(2), bytes(3)]
        with pytest.raises(StoreError, match=f"inflates to {size} bytes"):
            store.get("liar", (-5, None))
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - begin < 2**14  # KiB

    run_child(work).checked()


def test_entries_are_counted_before_objects_are_made_of_them(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_bytes(built([Entry(b"", alone=True) for _ in range(1000)], number=1))
    monkeypatch.setattr(zipfile, "ZipFile", None)
    with pytest.raises(StoreError, match="not one of 1 members"):
        ZipStore(path)


def test_directory_larger_than_is_read_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ZipStore.pack(MemoryStore({f"k/{at}": b"" for at in range(100)}), path)
    monkeypatch.setattr("xzarr3.stores.zip.read.LARGEST_DIRECTORY", 1000)
    with pytest.raises(StoreError, match=r"directory has \d+ bytes, 1000 at most"):
        ZipStore(path)


def readable(store: Store) -> dict[str, bytes | None]:
    """The value of each key; None if it cannot be read."""
    found: dict[str, bytes | None] = dict.fromkeys(store.list())
    for key in found:
        with contextlib.suppress(StoreError):
            found[key] = bytes(store.get(key) or b"")
    return found


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_adding_to_any_bytes_ends_in_our_error_or_keeps_what_was_readable(data: st.DataObject) -> None:
    entries = [GOOD, Entry(b"a/b", VALUE, method=8), Entry("\u00e9".encode(), b"x" * 50, flags=0x800)]
    extra = struct.pack("<2H4s", 0x5455, 4, b"time")
    whole = garbled(built([*entries, Entry(b"c", b"y", extra=extra)], comment=b"hey"), data, 0)
    memory = MemoryStore({"x": whole})
    try:
        before = readable(ZipStore(memory, "x"))
        with ZipStore(memory, "x", mode="a") as store:
            store.set("new", b"new")
    except StoreError:
        assert memory.get("x") == whole
        return
    assert readable(ZipStore(memory, "x")) == before | {"new": b"new"}
