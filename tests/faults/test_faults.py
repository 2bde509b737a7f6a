"""What goes wrong below: no permission, broken documents and chunks, failing disks, killed and interrupted
processes, stores that vanish. An error says where; the old value stays; nothing unreadable becomes fill.
"""

import contextlib
import errno
import itertools
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import msgspec
import numpy as np
import pytest
from _conformance import contents, read_back
from _damage import failing, files, os_error
from _peers import CRC32C, blosc, codec
from _things import refused
from _unprivileged import run_child, unprivileged
from _waiting import WaitingStore
from dask import threaded

import xzarr3
from xzarr3 import Array, ChunkDecodeError, LocalStore, MemoryStore, Store, StoreError, StorePermissionError
from xzarr3._types import Buffer
from xzarr3.codecs import CastValueCodec
from xzarr3.copying import values as copied_values
from xzarr3.dask import from_zarr
from xzarr3.dask import store as store_dask
from xzarr3.parallel import Pool, cores, undisturbed, waiters
from xzarr3.stores.local import system

# The faults are injected into functions of Python.
pytestmark = pytest.mark.usefixtures("python_executor")


LAYOUTS: dict[str, dict[str, Any]] = {
    "plain": {"compressors": None},
    "zstd": {"compressors": codec("zstd", level=1, checksum=False)},
    "gzip": {"compressors": codec("gzip", level=1)},
    "blosc": {"compressors": blosc("lz4", "shuffle", 8)},
    "crc32c": {"compressors": CRC32C},
    "sharded": {"shards": (8, 8), "compressors": CRC32C},
    "transposed": {"filters": codec("transpose", order=[1, 0])},
}

ALL = pytest.mark.parametrize("layout", LAYOUTS)


def _values() -> np.ndarray[Any, np.dtype[np.float64]]:
    """Nothing in it is zero, so that the fill value shows."""
    return np.random.default_rng(7).random((16, 16)) + 1


def _make(store: Store | Path | str, layout: str = "plain", path: str = "", **options: Any) -> Array:
    """An array of 16 by 16 in chunks of 4 by 4 or, sharded, in shards of 8 by 8."""
    return xzarr3.create_array(
        store, path, **{"data": _values(), "chunks": (4, 4), **LAYOUTS[layout], **options}
    )


def _first(array: Array) -> str:
    return array.chunk_key((0,) * array.ndim)


READS: dict[str, Callable[[Array], object]] = {
    "whole": lambda array: array[...],
    "threads": lambda array: array.get(threads=2),
    "one unit": lambda array: array.read_chunk((0, 0)),
    "element": lambda array: array[1, 1],
    "part": lambda array: array[1:3, ::2],
    "strided": lambda array: array[::-3, ::5],
    "task": lambda array: next(array.chunk_tasks())(),
    "numpy": np.asarray,
    "dask": lambda array: from_zarr(array).compute(scheduler="sync"),
    "dask threads": lambda array: _compute_in_threads(array),
}


def _compute_in_threads(array: Array) -> object:
    with ThreadPoolExecutor(2) as pool:  # That of dask itself is dead in a forked child.
        return from_zarr(array, chunks="units").compute(scheduler="threads", pool=pool)


def reads_of(array: Array) -> list[Callable[[], object]]:
    return [partial(read, array) for read in READS.values()]


@contextmanager
def permitted(mode: int, *paths: Path) -> Iterator[None]:
    before = [path.stat().st_mode for path in paths]
    for path in paths:
        os.chmod(path, mode)
    try:
        yield
    finally:
        for path, each in zip(paths, before, strict=True):
            os.chmod(path, each)


@unprivileged()
def test_reading_without_permission(base: Path) -> None:
    for layout in LAYOUTS:
        root = base / "store" / layout
        array = _make(root, layout)
        lazy, chunk = from_zarr(array, chunks="units"), root / _first(array)
        for locked in (chunk, chunk.parent, root / "c"):
            with permitted(0, locked):
                for error in refused(StorePermissionError, f"key 'c/.*{root}", *reads_of(array)):
                    assert isinstance(error.__cause__, PermissionError)
        with permitted(0, chunk):  # The others are read.
            np.testing.assert_array_equal(lazy[8:].compute(scheduler="sync"), _values()[8:])
        np.testing.assert_array_equal(array[...], _values())


@unprivileged()
def test_opening_without_permission(base: Path) -> None:
    """It is not said that there is nothing, nor made anew."""
    root = base / "store" / "root"
    xzarr3.create_group(root)
    _make(root, path="a/x")
    xzarr3.consolidate_metadata(root)
    for locked, path in (("zarr.json", ""), ("", ""), ("a/x/zarr.json", "a/x"), ("a", "a/x")):
        with permitted(0, root / locked):
            # A document that cannot be read is no reason to refuse mode "w-" in another way.
            refused(
                (StorePermissionError, xzarr3.NodeExistsError), str(root),
                *(partial(open_, root, path) for open_ in (xzarr3.open, xzarr3.open_array, from_zarr)),
                *(partial(xzarr3.open_group, root, path, mode=mode) for mode in ("r", "a", "w-", "w")),
                partial(xzarr3.create_array, root, path, shape=3, dtype="i1"),
            )  # fmt: skip
            refused(StorePermissionError, r"zarr\.json", partial(xzarr3.open, root, path))
    assert xzarr3.open_array(root, "a/x")[0, 0] == _values()[0, 0]


@unprivileged()
def test_listing_without_permission(base: Path) -> None:
    root = base / "store" / "root"
    group: Any = xzarr3.create_group(root)
    _make(root, path="a/x")
    store = LocalStore(root)
    for prefix in ("", "a/", "a/x/"):
        asks = [lambda prefix=prefix: list(store.list_prefix(prefix)), partial(store.list_dir, prefix)]
        asks += [] if prefix else [partial(xzarr3.create_group, store, overwrite=True)]
        with permitted(0o300, root / prefix):
            refused(StorePermissionError, f"list .*{root}", *asks, lambda: list(store.list()))
    with permitted(0o300, root / "a"):
        asks = [lambda: list(group["a"]), lambda: list(group.members(max_depth=None)), group.tree]
        refused(StorePermissionError, "a/", *asks, group.consolidate, partial(group.__delitem__, "a"))
    assert "a" not in group  # Its document went first, and then what is below it could not be found.


@unprivileged()
def test_writing_without_permission(base: Path) -> None:
    for layout in LAYOUTS:
        root = base / "store" / layout
        array = _make(root, layout)
        before = contents(array.store)
        with permitted(0o555, *(Path(folder) for folder, _, _ in os.walk(root))):
            refused(
                StorePermissionError, str(root),
                *(partial(array.set, *given) for given in ((..., 5), ((1, 1), 5), (..., 0))),
                *(partial(array.set, ..., 5, threads=2), partial(array.resize, (4, 4))),
                *(partial(array.append, np.ones((4, 16))), partial(array.attrs.update, x=1)),
                partial(xzarr3.create_array, root, shape=1, dtype="i1", overwrite=True),
                *(partial(xzarr3.create_group, root / "new"), partial(xzarr3.open_group, root, mode="w")),
                partial(xzarr3.open_group, root / "new", mode="a"),
                partial(xzarr3.store, da.ones((16, 16), chunks=8), array, scheduler="sync"),
            )  # fmt: skip
            assert contents(array.store) == before
        assert array.shape == xzarr3.open_array(root).shape == (16, 16)
        assert dict(array.attrs) == {}
        assert contents(array.store) == before


@unprivileged()
def test_links_into_forbidden_directories(base: Path) -> None:
    """Listing has to look at what a link points to."""
    store = LocalStore(base / "store")
    store.set("a/b", b"x")
    (base / "store" / "link").symlink_to("../outside/deep")
    with permitted(0, base / "outside"):
        with contextlib.suppress(StoreError):
            assert "a/b" in store.list()
        with contextlib.suppress(StoreError):
            assert "a/" in store.list_dir("")[1]


@pytest.mark.parametrize("kind", ["absent", "empty", "file", "foreign"])
def test_missing_store(kind: str, tmp_path: Path) -> None:
    root = tmp_path / "none.zarr"
    if kind == "file":
        root.write_bytes(b"not a store")
    elif kind != "absent":
        root.mkdir()
        (root / "readme.txt").write_text("hello") if kind == "foreign" else None
    asks = [xzarr3.open, xzarr3.open_array, xzarr3.consolidate_metadata, from_zarr]
    opens = partial(xzarr3.open_group, root, mode="r+"), partial(xzarr3.open_array, root, "a/b")
    assert issubclass(xzarr3.NodeNotFoundError, FileNotFoundError)
    refused(xzarr3.NodeNotFoundError, str(root), *(partial(ask, root) for ask in asks), *opens)
    assert sorted(os.listdir(tmp_path)) == ([] if kind == "absent" else ["none.zarr"])
    assert not root.is_dir() or os.listdir(root) == (["readme.txt"] if kind == "foreign" else [])


@pytest.mark.parametrize(
    "document", [b"{", b'{"zarr_format": 3, "node_type": ["array"]}', b"[" * 10**5], ids=len
)
def test_document_that_is_none(document: bytes, store: Store) -> None:
    root = xzarr3.create_group(store)
    root.create_array("a/x", data=np.arange(4))
    store.set("a/zarr.json", document)
    opens = (xzarr3.open, partial(xzarr3.open_group, mode="a"), xzarr3.open_array)
    asks = (*(partial(ask, store, "a") for ask in opens), lambda: root["a"], lambda: dict(root))
    refused(xzarr3.MetadataError, "'/a'", *asks)
    assert bytes(store.get("a/zarr.json") or b"") == document
    assert xzarr3.open_array(store, "a/x")[:].tolist() == [0, 1, 2, 3]


@ALL
def test_chunk_that_is_too_short_or_too_long(layout: str, store: Store) -> None:
    array = _make(store, layout)
    key = _first(array)
    whole = bytes(store.get(key) or b"")
    wrong = [whole[:end] for end in sorted({0, 1, 2, 7, len(whole) // 2, len(whole) - 4, len(whole) - 1})]
    if layout in ("plain", "crc32c"):
        wrong += [whole + more for more in (b"\0", b"x" * 8, whole)]
    for value in wrong:
        store.set(key, value)
        for error in refused(ChunkDecodeError, key, *reads_of(array)):
            assert ("(0, 0)" in str(error), error.key, error.chunk) == (True, key, (0, 0)), len(value)
        rest = slice(8, None)
        np.testing.assert_array_equal(array[rest, rest], _values()[rest, rest])
    store.set(key, whole)
    np.testing.assert_array_equal(array[...], _values())


def test_directory_in_place_of_a_chunk(tmp_path: Path) -> None:
    """It cannot be written over, and is left alone; its neighbours are as they were."""
    array = _make(tmp_path / "store")
    key = _first(array)
    (tmp_path / "store" / key).unlink()
    (tmp_path / "store" / key).mkdir()
    (tmp_path / "store" / key / "inside").write_bytes(b"precious")
    before = contents(array.store)
    chunk = (slice(0, 4), slice(0, 4))
    refused(StoreError, key, partial(array.set, chunk, 5), partial(array.set, (0, 0), 5))
    assert contents(array.store) == before
    np.testing.assert_array_equal(array[4:], _values()[4:])


def test_pipe_in_place_of_a_chunk(tmp_path: Path) -> None:
    """Nobody waits for a writer that will never come, and what is no value is not taken for none."""

    def work() -> None:
        for layout in LAYOUTS:
            array = _make(tmp_path / layout, layout)
            os.unlink(tmp_path / layout / "c/0/0")
            os.mkfifo(tmp_path / layout / "c/0/0")
            refused(StoreError, "c/0/0", *reads_of(array))

    run_child(work).checked()


ERRORS = [errno.EIO, errno.EMFILE, errno.ESTALE, errno.ENOMEM, errno.ETIMEDOUT]


@pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.get)
@pytest.mark.parametrize("name", ["open", "fstat", "pread", "preadv"])
def test_failing_reads_are_errors_and_never_fill(
    name: str, number: int, local_store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = 0
    for layout in LAYOUTS:
        array = _make(local_store, layout, path=layout)
        for way, read in READS.items():
            error = os_error(number)
            with failing(monkeypatch, name, error, root=local_store.root) as failed:
                try:
                    result = np.asarray(read(array))
                except StoreError as caught:
                    assert failed, way
                    assert local_store.root in str(caught)  # noqa: PT017
                    assert f"{layout}/c/" in str(caught)  # noqa: PT017
                    assert caught.__cause__ is error  # noqa: PT017
                    failures += 1
                else:
                    assert not failed, f"{way} of {layout} swallowed an error"
                    assert result.all(), "the fill value"
        np.testing.assert_array_equal(array[...], _values())
    assert failures >= (1 if name == "pread" else 3)


@pytest.mark.parametrize("name", ["open", "preadv", "fstat", "scandir"])
def test_failing_documents(name: str, local_store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    _make(local_store, path="a/x")
    root = xzarr3.open_group(local_store, mode="r+")
    by_documents = (
        *(lambda: xzarr3.open(local_store, "a/x"), lambda: xzarr3.open_group(local_store, mode="a")),
        lambda: xzarr3.create_array(local_store, "b", shape=1, dtype="i1"),
    )
    by_lists = (
        *(lambda: list(local_store.list()), lambda: local_store.list_dir("a/"), lambda: list(root)),
        *(lambda: root.__delitem__("a"), lambda: xzarr3.create_group(local_store, "a", overwrite=True)),
    )
    told, asks = (r"zarr\.json|xzarr3-lease", by_documents)
    if name == "scandir":
        told, asks = local_store.root, by_lists
    with failing(monkeypatch, name, os_error(errno.EIO), root=local_store.root) as failed:
        refused(StoreError, told, *asks)
    assert failed
    np.testing.assert_array_equal(root["a/x"][...], _values())  # type: ignore[index]


def test_failing_stat_is_no_absence(local_store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    _make(local_store)
    with failing(monkeypatch, "stat", os_error(errno.EIO), root=local_store.root):
        with pytest.raises((StoreError, xzarr3.NodeExistsError)):
            xzarr3.create_array(local_store, shape=1, dtype="i1")
        assert local_store.versions(["zarr.json"]) == [None]
    with failing(monkeypatch, "stat", os_error(errno.EIO), root=f"{local_store.root}/c"):
        refused(StoreError, "cannot erase key 'c/'", partial(local_store.erase_prefix, "c/"))
    np.testing.assert_array_equal(xzarr3.open_array(local_store)[...], _values())


@pytest.mark.parametrize("limit", [1, 7, 100])
def test_short_reads_and_writes(limit: int, local_store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    preadv, pread = os.preadv, os.pread

    def short_preadv(descriptor: int, buffers: list[memoryview], at: int) -> int:
        return preadv(descriptor, [memoryview(buffers[0])[:limit]], at)

    monkeypatch.setattr(system, "preadv", short_preadv)
    monkeypatch.setattr(system, "pread", lambda descriptor, size, at: pread(descriptor, min(size, limit), at))
    monkeypatch.setattr(os, "writev", lambda file, data: os.write(file, memoryview(data[0])[:limit]))
    for layout in LAYOUTS:
        array = _make(local_store, layout, path=layout)
        np.testing.assert_array_equal(array[...], _values())
        np.testing.assert_array_equal(array[1:3, ::3], _values()[1:3, ::3])
        array[0, 0] = 9
        assert array[0, 0] == 9


def test_file_that_shrinks_while_it_is_read(local_store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the last chunk left in a buffer must not stand in for what is missing."""
    array = _make(local_store)
    array.get(threads=1)
    preadv, pread = os.preadv, os.pread

    def shrunken(descriptor: int, buffers: list[memoryview], at: int) -> int:
        left = os.fstat(descriptor).st_size - 8 - at
        return preadv(descriptor, [memoryview(buffers[0])[:left]], at) if left > 0 else 0

    monkeypatch.setattr(system, "preadv", shrunken)
    monkeypatch.setattr(system, "pread", lambda file, size, at: pread(file, max(0, min(size, 40 - at)), at))
    refused(ChunkDecodeError, "c/", *reads_of(array))


WRITE_FAULTS: list[tuple[str, BaseException]] = [
    *(("writev", os_error(number)) for number in (errno.EIO, errno.ENOSPC, errno.EDQUOT)),
    *(("replace", os_error(number)) for number in (errno.EIO, errno.EXDEV)),
    *(("open", os_error(number)) for number in (errno.EMFILE, errno.EROFS)),
    *((name, KeyboardInterrupt()) for name in ("writev", "replace")),
]


@pytest.mark.parametrize(("name", "error"), WRITE_FAULTS, ids=repr)
def test_failing_write_leaves_the_old_value(
    name: str, error: BaseException, local_store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = b"old value" * 1000
    local_store.set("a/b", old)
    before = files(local_store.root)
    expected = StoreError if isinstance(error, OSError) else KeyboardInterrupt
    for value in (b"new", b"new" * 10_000, b""):
        if name == "writev" and not value:
            continue
        with failing(monkeypatch, name, error, root=local_store.root) as failed:
            sets = (partial(local_store.set, key, value) for key in ("a/b", "a/new"))
            told, _ = refused(expected, None, *sets)
        assert failed
        if isinstance(error, OSError):
            assert told.__cause__ is error
            assert all(word in str(told) for word in ("a/b", local_store.root, error.strerror))
        assert files(local_store.root) == before, "nothing new, nothing left over"
        assert read_back(local_store, "a/b") == [old] * 4


def test_failing_write_with_a_leftover(local_store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first error is the one that is told; the leftover is no key."""
    local_store.set("a/b", b"old")
    with (
        failing(monkeypatch, "unlink", os_error(errno.EACCES)),
        failing(monkeypatch, "replace", os_error(errno.EIO)),
        pytest.raises(StoreError, match="Input/output error"),
    ):
        local_store.set("a/b", b"new")
    assert len(files(local_store.root)) == 2
    assert contents(local_store) == {"a/b": b"old"}
    assert local_store.list_dir("a/") == ({"a/b"}, set())


def test_failing_writes_change_no_document(local_store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    root = xzarr3.create_group(local_store, attributes={"title": "old"})
    array = root.create_array("x", data=_values(), chunks=(4, 4), attributes={"units": "K"})
    before = contents(local_store)
    with failing(monkeypatch, "replace", os_error(errno.ENOSPC)):
        for write in (
            *(partial(array.attrs.update, units="C"), partial(array.attrs.__setitem__, "units", "C")),
            *(partial(array.attrs.__delitem__, "units"), partial(root.attrs.update, title="new")),
            *(partial(array.resize, shape) for shape in ((4, 4), (40, 40))),
            *(root.consolidate, partial(root.create_group, "new")),
        ):
            refused(StoreError, None, write)
            assert contents(local_store) == before
            assert (array.shape, root.consolidated) == ((16, 16), False)
            assert (dict(array.attrs), dict(root.attrs)) == ({"units": "K"}, {"title": "old"})
    np.testing.assert_array_equal(array[...], _values())


ERASING: dict[str, Callable[[LocalStore], object]] = {
    "erase": lambda store: store.erase("a/c/d"),
    "erase several": lambda store: store.erase("a/b", "a/c/d", "a/c/e"),
    "erase_prefix": lambda store: store.erase_prefix("a/"),
}


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS, errno.EPERM, errno.EBUSY])
@pytest.mark.parametrize("name", ERASING)
def test_failing_erasure_is_told(name: str, number: int, local_store: LocalStore, monkeypatch: Any) -> None:
    keys = {"a/b", "a/c/d", "a/c/e", "b"}
    for after in range(3 if name != "erase" else 1):
        for key in keys:
            local_store.set(key, b"value")
        error = os_error(number)
        erase = partial(ERASING[name], local_store)
        with failing(monkeypatch, "unlink", error, after=after, locks=False) as failed:
            (told,) = refused(StoreError, re.escape(os.strerror(number)), erase)
        assert (told.__cause__, len(failed), len(keys - {*local_store.list()})) == (error, 1, after)
        named = "key 'a/'" if name == "erase_prefix" else f"{failed[0]}'"
        assert named.removeprefix(local_store.root + "/") in str(told)
        erase()
    assert "b" in local_store.list()


def test_a_resize_that_fails_to_erase_shows_no_fill_values(local_store: LocalStore, monkeypatch: Any) -> None:
    root = xzarr3.create_group(local_store)
    array = root.create_array("x", data=np.arange(1, 8), chunks=3)
    root.consolidate()
    with failing(monkeypatch, "unlink", os_error(errno.EIO), root=f"{local_store.root}/x/c", locks=False):
        refused(StoreError, "cannot erase key 'x/c/2'", partial(array.resize, 4))
    assert [each["x"][...].tolist() for each in (xzarr3.open_group(local_store), root)] == [[1, 2, 3, 4]] * 2


def test_a_new_array_whose_values_cannot_be_stored_is_not_there(store: Store, monkeypatch: Any) -> None:
    """Else fill values would be read in place of what is missing; an array that cannot go is told."""
    root = xzarr3.create_group(store)
    root.consolidate()
    before = contents(store)
    options: Any = {"chunks": 1, "filters": CastValueCodec("int8")}
    create = partial(root.create_array, "x", data=[1, 2, 1000], **options)
    refused(xzarr3.ChunkEncodeError, "out of the range", create)
    assert contents(store) == before
    with monkeypatch.context() as patch:
        patch.setattr(type(store), "erase", _unreachable)
        (error,) = refused(xzarr3.ChunkEncodeError, "out of the range", create)
    assert "may still be in" in error.__notes__[0]
    assert root.create_array("x", data=[1, 2, 3], overwrite=True, **options)[...].tolist() == [1, 2, 3]


def _unreachable(store: Store, *keys: str) -> None:
    raise StoreError("cannot be reached")


def test_directories_may_stay_behind(local_store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("a/b", "a/c/d", "a/c/e", "b"):
        local_store.set(key, b"value")
    with failing(monkeypatch, "rmdir", os_error(errno.EACCES)) as failed:
        local_store.erase_prefix("a/")
        local_store.erase("b")
    assert failed
    assert files(local_store.root) == {}


def test_erased_prefix_is_no_node_at_once(local_store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it stops: a document goes before the chunks that it describes."""
    for after in range(14):
        xzarr3.create_group(local_store, "g", overwrite=True)
        for path in ("g/x", "g/y/z"):
            xzarr3.create_array(local_store, path, data=np.arange(6), chunks=2)
        with failing(monkeypatch, "unlink", os_error(errno.EIO), after=after):
            with contextlib.suppress(StoreError):
                local_store.erase_prefix("g/")
            left = set(files(local_store.root))
        for path in ("g", "g/x", "g/y/z"):
            whole = sum(key.startswith(f"{path}/c/") for key in left) == 3 or path == "g"
            assert whole or f"{path}/zarr.json" not in left, "a node without its chunks"
            assert after == 0 or "g/zarr.json" not in left
        local_store.erase_prefix("g/")
    assert sorted(files(local_store.root)) == ["zarr.json"]


def test_interrupted_erasure(local_store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for call in ("unlink", "open", "rmdir", "scandir", "stat"):
        for after in range(4):
            for key in ("a/b", "a/c/d", "b"):
                local_store.set(key, b"value")
            fault = failing(monkeypatch, call, KeyboardInterrupt(), after=after)
            with contextlib.suppress(KeyboardInterrupt), fault as failed:
                local_store.erase_prefix("a/")
            assert failed or after > 0
            assert "b" in local_store.list()
    assert len(os.listdir("/proc/self/fd")) == before


class SlowStore(WaitingStore):
    traits = msgspec.structs.replace(MemoryStore.traits, request_bytes=2**20, tells_changes=False)
    accesses = 0

    @contextmanager
    def troubled(self, trouble: Callable[[], object]) -> Iterator[None]:
        def before(*request: str) -> None:
            self.accesses += 1
            time.sleep(0.001)
            self.trouble()

        self.accesses, self.trouble, self.before = 0, trouble, before
        yield
        self.before = None


def _fail_in_other_threads() -> None:
    if threading.current_thread() is not threading.main_thread():
        raise StoreError("cannot be reached")


def _of_400_units() -> tuple[SlowStore, Array]:
    store = SlowStore()
    return store, xzarr3.create_array(store, data=np.arange(400_000.0), chunks=1000, compressors=None)


def _transfer(array: Array, direction: str, threads: int) -> None:
    if direction == "read":
        array.get(threads=threads)
    else:
        array.set(..., np.arange(400_000.0) + 1, threads=threads)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("direction", ["read", "write"])
def test_interrupt_stops_all_threads(direction: str, threads: int) -> None:
    """It is heard soon, nothing goes on behind one's back, and the array can be used again."""

    def work() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        store, array = _of_400_units()
        seen: set[int] = set()

        def press() -> None:
            seen.add(threading.get_ident())
            if store.accesses >= 20 and len(seen) == threads:
                store.trouble = lambda: None
                os.kill(os.getpid(), signal.SIGINT)

        with store.troubled(press), pytest.raises(KeyboardInterrupt):
            _transfer(array, direction, threads)
        assert 20 <= store.accesses < 200, "it came soon"
        found = array.get(threads=threads) - np.arange(400_000.0)
        assert set(np.unique(found)) == ({0.0} if direction == "read" else {0.0, 1.0}), "old and new units"
        array.set(..., np.arange(400_000.0) + 1, threads=threads)
        np.testing.assert_array_equal(array[...], np.arange(400_000.0) + 1)

    run_child(work).checked()


class HeldStore(MemoryStore):
    """Holds each access up until it may go on, and knows how many there are."""

    traits = msgspec.structs.replace(MemoryStore.traits, concurrency=2)

    def __init__(self) -> None:
        super().__init__()
        self.held = False
        self.helped, self.go = threading.Event(), threading.Event()
        self.inside: set[int] = set()

    def _hold(self, key: str) -> None:
        if self.held and key.startswith("c/"):
            self.inside.add(threading.get_ident())
            try:
                if threading.current_thread() is not threading.main_thread():
                    self.helped.set()
                while not self.go.wait(0.1):
                    pass
            except KeyboardInterrupt:
                self.inside.discard(threading.get_ident())
                raise

    def get(self, key: str, byte_range: Any = None) -> Buffer | None:
        self._hold(key)
        return super().get(key, byte_range)

    def put(self, key: str, pieces: Any) -> None:  # type: ignore[override]
        self._hold(key)
        super().put(key, pieces)
        self.inside.discard(threading.get_ident())


def _interrupted(store: HeldStore, work: Callable[[], object], times: int) -> int:
    """Press Ctrl-C while a helping thread is at work in the store; how many threads are when it ends."""
    heard: list[int] = []
    returned = threading.Event()

    def hear(*_: object) -> None:
        if not returned.is_set():
            heard.append(1)
            raise KeyboardInterrupt

    def press() -> None:
        assert store.helped.wait(120)
        for number in range(times):
            os.kill(os.getpid(), signal.SIGINT)
            pause = 0.001
            while len(heard) <= number and not returned.is_set():
                time.sleep(pause)
                pause *= 2
                if pause > 0.5:  # It came just before this thread began to wait.
                    os.kill(os.getpid(), signal.SIGINT)
        store.go.set()

    signal.signal(signal.SIGINT, hear)
    store.held = True
    presser = threading.Thread(target=press)
    presser.start()
    try:
        work()
    except KeyboardInterrupt:
        inside = len(store.inside)
    else:
        pytest.fail("nothing was interrupted")
    finally:
        returned.set()
        presser.join(120)
    assert len(heard) >= times or inside
    return inside


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("way", ["array", "single request", "copy", "dask", "buffer"])
def test_nothing_is_stored_or_read_after_an_interrupt_came_back(way: str, times: int) -> None:
    """Also not by a thread that was in the middle of it, however often Ctrl-C is pressed meanwhile."""
    values, out, before = np.arange(4.0), *np.full((2, 4), -1.0)

    def read(array: Array) -> None:
        try:
            array.get(out=out, threads=2)
        finally:
            before[...] = out

    def work() -> bool:
        store = HeldStore()
        array = xzarr3.create_array(MemoryStore() if way == "copy" else store, data=values, chunks=1)
        lazy = da.from_array(values + 1, chunks=1)
        acts: dict[str, Callable[[], object]] = {
            "array": lambda: array.set(..., values + 1, threads=2),
            "single request": lambda: undisturbed(lambda: store.set("c/0", b"a")),
            "copy": lambda: xzarr3.copy(array, store, threads=2),
            "dask": lambda: store_dask(lazy, array, scheduler="threads", num_workers=2),
            "buffer": lambda: read(array),
        }
        threaded.pools.clear()  # Of earlier tests, whose threads are not in this child.
        inside = _interrupted(store, acts[way], times)
        for pool in (waiters, cores) if way == "buffer" else ():
            pool.get().shutdown()  # So that whoever is still at work comes to an end.
        return bool((out == before).all() if way == "buffer" else inside == 0)

    assert run_child(work).checked()


def test_a_thread_that_was_being_started_at_ctrl_c_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool that is interrupted then does not know of the thread that it has started."""
    start, over, inside = threading.Thread.start, threading.Event(), threading.Event()
    done: list[int] = []

    def move() -> int:
        inside.set()
        over.wait(0.3)  # Nobody ends it earlier, if it is waited for.
        done.append(1)
        return 1

    def interrupted(thread: threading.Thread) -> None:
        monkeypatch.undo()
        start(thread)
        assert inside.wait(30)
        raise KeyboardInterrupt

    pool = Pool(2, "new")  # One that has no idle threads.
    monkeypatch.setattr(copied_values, "waiters", pool)
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    refused(KeyboardInterrupt, None, lambda: copied_values.do_all(iter([move] * 4), 2, lambda size: None))
    found = list(done)
    over.set()
    assert found == [1]


INTERRUPTED_START = """
import threading
from xzarr3.parallel import parallel_map
start = threading.Thread.start
def interrupted(thread):
    start(thread)
    raise KeyboardInterrupt
threading.Thread.start = interrupted
try:
    parallel_map(len, ["a", "b"], 2)
except KeyboardInterrupt:
    threading.Thread.start = start
print(parallel_map(len, ["a", "bc"], 2))
"""


def test_a_program_that_was_interrupted_while_it_started_a_thread_comes_to_its_end() -> None:
    command = [sys.executable, "-c", INTERRUPTED_START]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert (ended.stdout, ended.stderr) == ("[1, 2]\n", "")


def test_a_failed_write_with_dask_can_be_tried_again() -> None:
    store = SlowStore()
    array = xzarr3.create_array(store, shape=4, chunks=1, dtype="f8")
    write = store_dask(da.ones(4, chunks=1), array, compute=False)
    for again in (lambda: dask.compute(write, scheduler="threads", num_workers=2), write.compute):
        with store.troubled(_fail_in_other_threads), pytest.raises(StoreError, match="cannot be reached"):
            write.compute(scheduler="threads", num_workers=2)
        again()
        np.testing.assert_array_equal(array[...], 1)


@pytest.mark.parametrize("direction", ["read", "write"])
def test_failure_in_one_thread_stops_the_others(direction: str) -> None:
    store, array = _of_400_units()
    with store.troubled(_fail_in_other_threads), pytest.raises(StoreError, match="cannot be reached"):
        _transfer(array, direction, 2)
    assert store.accesses < 200, f"{store.accesses} of 400 units were handled after the failure"


@pytest.mark.parametrize("how", ["removed", "renamed", "emptied"])
@ALL
def test_vanished_store_is_an_error(layout: str, how: str, tmp_path: Path) -> None:
    root = tmp_path / "store"
    group = xzarr3.create_group(root)
    array = _make(root, layout, path="a/x", fill_value=-1)
    xzarr3.consolidate_metadata(root)
    held = xzarr3.open_group(root)
    lazy = from_zarr(array, chunks="units")
    if how == "renamed":
        os.rename(root, tmp_path / "elsewhere")
    else:
        shutil.rmtree(root)
        if how == "emptied":
            root.mkdir()
    refused(StoreError, "store", *reads_of(array))
    refused(
        StoreError, None,
        *(lambda: held["a/x"][...], lambda: pickle.loads(pickle.dumps(array))[...], lambda: list(array)),
        lambda: lazy.compute(scheduler="sync"),
        lambda: lazy[:3, :3].sum().compute(scheduler="threads"),
    )  # fmt: skip
    opens = (partial(group.__getitem__, "a"), partial(xzarr3.open, root), partial(xzarr3.open, root, "a/x"))
    refused(xzarr3.NodeNotFoundError, None, *opens)


@pytest.mark.parametrize("after", [0, 1, 5, 50, 150, 199])
def test_store_vanishes_while_it_is_read(after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(5).random(50_000) + 1
    root = tmp_path / "store"
    array = xzarr3.create_array(root, data=values, chunks=250, compressors=None)
    real, numbers = os.open, itertools.count()

    def vanish(path: Any, *args: Any, **options: Any) -> int:
        if "dir_fd" not in options and str(root) in os.fsdecode(path) and next(numbers) == after:
            shutil.rmtree(root)
        return real(path, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", vanish)
        try:
            np.testing.assert_array_equal(array.get(threads=2), values)
        except StoreError:
            assert not root.exists()
    assert not root.exists()
    refused(StoreError, None, lambda: array[...])


@pytest.mark.parametrize("layout", ["plain", "zstd", "sharded"])
def test_forked_child_and_parent_both_read(layout: str, local_store: LocalStore) -> None:
    """The threads that helped before the fork are not there in the child."""
    values = np.random.default_rng(9).random((512, 256))
    shards = {"shards": (256, 256)} if layout == "sharded" else {}
    array = _make(local_store, layout, data=values, chunks=(64, 64), **shards)
    np.testing.assert_array_equal(array.get(threads=2), values)

    def work() -> float:
        for _ in range(3):
            np.testing.assert_array_equal(array.get(threads=2), values)
        array.set(slice(0, 64), 1.0, threads=2)
        return float(run_child(lambda: array.get(threads=2)[0].sum()).checked())

    assert run_child(work).checked() == 256
    values[:64] = 1
    np.testing.assert_array_equal(array.get(threads=2), values)
    array.set(..., values + 1, threads=2)
    np.testing.assert_array_equal(array[...], values + 1)
