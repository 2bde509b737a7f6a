"""What goes wrong below: no permission, broken documents and chunks, failing disks, killed and interrupted
processes, stores that vanish. An error says where; the old value stays; nothing unreadable becomes fill.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import json
import os
import pickle
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import dask
import dask.array as da
import numpy as np
import pytest
from _conformance import contents, read_back, run_threads
from _unprivileged import own_directory, run_child, run_unprivileged
from dask import threaded

import xzarr3
from xzarr3 import (
    Array,
    ChunkDecodeError,
    LocalStore,
    MemoryStore,
    MetadataError,
    NodeExistsError,
    NodeNotFoundError,
    NodeTypeError,
    Store,
    StoreError,
    StorePermissionError,
    Xzarr3Error,
    copying,
)
from xzarr3._types import Buffer
from xzarr3.dask import from_zarr
from xzarr3.dask import store as store_dask
from xzarr3.parallel import Pool, cores, undisturbed, waiters
from xzarr3.stores import ValueReader
from xzarr3.stores.local import platform
from xzarr3.stores.readers import Reader

LAYOUTS: dict[str, dict[str, Any]] = {
    "plain": {"compressors": None},
    "zstd": {"compressors": {"name": "zstd", "configuration": {"level": 1, "checksum": False}}},
    "gzip": {"compressors": {"name": "gzip", "configuration": {"level": 1}}},
    "blosc": {
        "compressors": {
            "name": "blosc",
            "configuration": {
                "cname": "lz4",
                "clevel": 5,
                "shuffle": "shuffle",
                "typesize": 8,
                "blocksize": 0,
            },
        }
    },
    "crc32c": {"compressors": {"name": "crc32c"}},
    "sharded": {"shards": (8, 8), "compressors": {"name": "crc32c"}},
    "transposed": {"filters": {"name": "transpose", "configuration": {"order": [1, 0]}}},
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
    """Key of the first stored unit."""
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


# No permission


def test_reading_without_permission() -> None:
    """Each error is of the class that says so, and names the store and the key."""

    def work(base: Path) -> None:
        for layout in LAYOUTS:
            root = base / "store" / layout
            array = _make(root, layout)
            chunk = root / _first(array)
            for locked in (chunk, chunk.parent, root / "c"):
                mode = locked.stat().st_mode
                os.chmod(locked, 0)
                for name, read in READS.items():
                    with pytest.raises(StorePermissionError) as caught:
                        read(array)
                    assert str(root) in str(caught.value), (layout, name)
                    assert "key 'c/" in str(caught.value), (layout, name)
                    assert isinstance(caught.value.__cause__, PermissionError)
                os.chmod(locked, mode)
            np.testing.assert_array_equal(array[...], _values())

    run_unprivileged(work).checked()


def test_opening_without_permission() -> None:
    """It is not said that there is nothing, nor made anew."""

    def work(base: Path) -> None:
        root = base / "store" / "root"
        xzarr3.create_group(root)
        _make(root, path="a/x")
        xzarr3.consolidate_metadata(root)
        for locked, path in (
            (root / "zarr.json", ""),
            (root, ""),
            (root / "a/x/zarr.json", "a/x"),
            (root / "a", "a/x"),
        ):
            mode = locked.stat().st_mode
            os.chmod(locked, 0)
            for ask in (
                lambda path=path: xzarr3.open(root, path),
                lambda path=path: xzarr3.open_array(root, path),
                lambda path=path: xzarr3.open_group(root, path),
                lambda path=path: xzarr3.open_group(root, path, mode="a"),
                lambda path=path: xzarr3.open_group(root, path, mode="w-"),
                lambda path=path: xzarr3.open_group(root, path, mode="w"),
                lambda path=path: xzarr3.create_array(root, path, shape=3, dtype="i1"),
                lambda path=path: from_zarr(root, path),
            ):
                # A document that cannot be read is no reason to refuse mode "w-" in another way.
                with pytest.raises((StorePermissionError, xzarr3.NodeExistsError)) as caught:
                    ask()
                assert str(root) in str(caught.value)
            with pytest.raises(StorePermissionError, match=r"zarr\.json"):
                xzarr3.open(root, path)
            os.chmod(locked, mode)
        assert xzarr3.open_array(root, "a/x")[0, 0] == _values()[0, 0]

    run_unprivileged(work).checked()


def test_listing_without_permission() -> None:
    def work(base: Path) -> None:
        root = base / "store" / "root"
        group = xzarr3.create_group(root)
        _make(root, path="a/x")
        store = LocalStore(root)
        for folder, prefix in ((root, ""), (root / "a", "a/"), (root / "a" / "x", "a/x/")):
            os.chmod(folder, 0o300)
            for ask in (
                lambda prefix=prefix: list(store.list_prefix(prefix)),
                lambda prefix=prefix: store.list_dir(prefix),
                lambda: list(store.list()),
                lambda: xzarr3.create_group(store, overwrite=True),
            ):
                with pytest.raises(StorePermissionError) as caught:
                    ask()
                assert str(root) in str(caught.value)
                assert "list" in str(caught.value)
            os.chmod(folder, 0o755)
        os.chmod(root / "a", 0o300)
        for ask in (
            lambda: list(group["a"]),  # type: ignore[call-overload]
            lambda: list(group.members(max_depth=None)),
            group.tree,
            group.consolidate,
            lambda: group.__delitem__("a"),
        ):
            with pytest.raises(StorePermissionError, match="a/"):
                ask()
        os.chmod(root / "a", 0o755)
        assert list(group["a"]) == ["x"]  # type: ignore[call-overload]

    run_unprivileged(work).checked()


def test_writing_without_permission() -> None:
    def work(base: Path) -> None:
        for layout in LAYOUTS:
            root = base / "store" / layout
            array = _make(root, layout)
            before = contents(array.store)
            folders = [Path(folder) for folder, _, _ in os.walk(root)]
            for folder in folders:
                os.chmod(folder, 0o555)
            for write in (
                lambda array=array: array.set(..., 5),
                lambda array=array: array.set(..., 5, threads=2),
                lambda array=array: array.set((1, 1), 5),
                lambda array=array: array.set(..., 0),
                lambda array=array: array.resize((4, 4)),
                lambda array=array: array.append(np.ones((4, 16))),
                lambda array=array: array.attrs.update(x=1),
                lambda root=root: xzarr3.create_array(root, shape=1, dtype="i1", overwrite=True),
                lambda root=root: xzarr3.create_group(root, "new"),
                lambda root=root: xzarr3.open_group(root, mode="w"),
                lambda array=array: xzarr3.store(da.ones((16, 16), chunks=8), array, scheduler="sync"),
            ):
                with pytest.raises(Xzarr3Error) as caught:
                    write()
                if not isinstance(caught.value, NodeTypeError):  # Below an array, there is no group.
                    assert isinstance(caught.value, StorePermissionError)
                    assert str(root) in str(caught.value)
            assert contents(array.store) == before
            assert array.shape == xzarr3.open_array(root).shape == (16, 16)
            assert dict(array.attrs) == {}
            for folder in folders:
                os.chmod(folder, 0o755)
            assert contents(array.store) == before

    run_unprivileged(work).checked()


def test_new_store_without_permission() -> None:
    def work(base: Path) -> None:
        (base / "store" / "locked").mkdir(mode=0o555)
        root = base / "store" / "locked" / "new.zarr"
        for make in (
            lambda: xzarr3.create_group(root),
            lambda: _make(root),
            lambda: xzarr3.open_group(root, mode="a"),
            lambda: xzarr3.open_group(root, mode="w"),
        ):
            with pytest.raises(StorePermissionError) as caught:
                make()
            assert str(root) in str(caught.value)
            assert "zarr.json" in str(caught.value)
        assert os.listdir(base / "store" / "locked") == []

    run_unprivileged(work).checked()


def test_unreadable_chunks_do_not_hinder_the_building_of_a_graph() -> None:
    def work(base: Path) -> None:
        array = _make(base / "store")
        os.chmod(base / "store" / _first(array), 0)
        lazy = from_zarr(array, chunks="units")
        np.testing.assert_array_equal(lazy[8:].compute(scheduler="sync"), _values()[8:])
        with pytest.raises(StorePermissionError):
            lazy[:4].compute(scheduler="sync")

    run_unprivileged(work).checked()


def test_links_into_forbidden_directories() -> None:
    """Listing has to look at what a link points to."""

    def work(base: Path) -> None:
        store = LocalStore(base / "store")
        store.set("a/b", b"x")
        (base / "outside").chmod(0)
        (base / "store" / "link").symlink_to("../outside/deep")
        try:
            keys = list(store.list())
        except StoreError:
            pass
        else:
            assert "a/b" in keys
        try:
            keys = list(store.list_dir("")[1])
        except StoreError:
            pass
        else:
            assert "a/" in keys
        (base / "outside").chmod(0o755)

    outcome = run_unprivileged(work)
    assert outcome.error is None, outcome.trace


# Nothing there


@pytest.mark.parametrize("kind", ["absent", "empty", "file", "foreign"])
def test_missing_store(kind: str, tmp_path: Path) -> None:
    root = tmp_path / "none.zarr"
    if kind == "file":
        root.write_bytes(b"not a store")
    elif kind != "absent":
        root.mkdir()
    if kind == "foreign":
        (root / "readme.txt").write_text("hello")
    for ask in (
        lambda: xzarr3.open(root),
        lambda: xzarr3.open_array(root),
        lambda: xzarr3.open_group(root, mode="r+"),
        lambda: xzarr3.open_array(root, "a/b"),
        lambda: xzarr3.consolidate_metadata(root),
        lambda: from_zarr(root),
    ):
        with pytest.raises(NodeNotFoundError) as caught:
            ask()
        assert isinstance(caught.value, FileNotFoundError)
        assert str(root) in str(caught.value)
        assert "zarr.json" in str(caught.value)
    assert sorted(os.listdir(tmp_path)) == ([] if kind == "absent" else ["none.zarr"])
    assert not root.is_dir() or os.listdir(root) == (["readme.txt"] if kind == "foreign" else [])


def test_missing_node(store: Store) -> None:
    root = xzarr3.create_group(store)
    root.create_array("a/x", shape=3, dtype="i1")
    for ask in (
        lambda: root["y"],
        lambda: root["a/y"],
        lambda: root["a/x/y"],
        lambda: xzarr3.open(store, "a/y"),
        lambda: xzarr3.open_group(store, "a/x/c"),
        lambda: root.__delitem__("a/y"),
    ):
        with pytest.raises(NodeNotFoundError) as caught:
            ask()
        assert repr(store) in str(caught.value)
    with pytest.raises(NodeNotFoundError, match=r"'y'.*there are: a"):
        root["y"]
    with pytest.raises(KeyError):
        root["y"]
    with pytest.raises(NodeTypeError):
        xzarr3.open_array(store, "a")
    with pytest.raises(NodeTypeError):
        xzarr3.open_group(store, "a/x")


# Documents that are none

NOT_JSON = {
    "empty": b"",
    "space": b" \n\t",
    "brace": b"{",
    "text": b"<html>404 not found</html>",
    "binary": bytes(range(256)),
    "not utf-8": b'{"zarr_format": 3, "node_type": "\xff\xfe"}',
    "null": b"null",
    "number": b"3",
    "string": b'"group"',
    "list": b'[{"zarr_format": 3}]',
    "two": b'{"zarr_format": 3, "node_type": "group"}{}',
    "trailing": b'{"zarr_format": 3, "node_type": "group"} x',
    "deep list": b"[" * 200_000,
    "deep object": b'{"a":' * 200_000,
    "deep attributes": b'{"zarr_format": 3, "node_type": "group", "attributes": {"a":'
    + b"[" * 100_000
    + b"]" * 100_000
    + b"}}",
    "zeros": bytes(4096),
    "no format": b'{"node_type": "group"}',
    "format 2": b'{"zarr_format": 2, "node_type": "group"}',
    "format true": b'{"zarr_format": true, "node_type": "group"}',
    "format 1e400": b'{"zarr_format": 1e400, "node_type": "group"}',
    "no type": b'{"zarr_format": 3}',
    "other type": b'{"zarr_format": 3, "node_type": ["array"]}',
    "bare array": b'{"zarr_format": 3, "node_type": "array"}',
}


@pytest.mark.parametrize("name", NOT_JSON)
def test_document_that_is_none(name: str, store: Store) -> None:
    root = xzarr3.create_group(store)
    root.create_array("a/x", data=np.arange(4))
    store.set("a/zarr.json", NOT_JSON[name])
    for ask in (
        lambda: xzarr3.open(store, "a"),
        lambda: xzarr3.open_group(store, "a", mode="a"),
        lambda: xzarr3.open_array(store, "a"),
        lambda: root["a"],
        lambda: dict(root),
    ):
        with pytest.raises(MetadataError, match="'/a'"):
            ask()
    assert bytes(store.get("a/zarr.json") or b"") == NOT_JSON[name]
    assert xzarr3.open_array(store, "a/x")[:].tolist() == [0, 1, 2, 3]


def test_document_cut_off_anywhere(store: Store) -> None:
    """Each of them is an error of ours; none is read as something else."""
    _make(store, "sharded")
    document = bytes(store.get("zarr.json") or b"")
    for length in range(len(document) - 1):
        store.set("zarr.json", document[:length])
        with pytest.raises(MetadataError):
            xzarr3.open(store)


def test_document_with_one_byte_wrong(store: Store) -> None:
    _make(store, "sharded")
    document = bytes(store.get("zarr.json") or b"")
    rng = random.Random(11)
    refused = 0
    for _ in range(400):
        wrong = bytearray(document)
        wrong[rng.randrange(len(wrong))] = rng.randrange(256)
        store.set("zarr.json", wrong)
        try:
            array = xzarr3.open_array(store)
            if array.size < 10_000:
                array[...]
        except (MetadataError, ChunkDecodeError, NodeTypeError):
            refused += 1
    assert refused > 50


# Chunks that are none


@ALL
def test_truncated_chunk(layout: str, store: Store) -> None:
    array = _make(store, layout)
    key = _first(array)
    whole = bytes(store.get(key) or b"")
    for length in sorted({0, 1, 2, 7, len(whole) // 2, len(whole) - 4, len(whole) - 1}):
        store.set(key, whole[:length])
        for name, read in READS.items():
            with pytest.raises(ChunkDecodeError) as caught:
                read(array)
            assert key in str(caught.value), (name, length)
            assert "(0, 0)" in str(caught.value), (name, length)
            assert caught.value.key == key
            assert caught.value.chunk == (0, 0)
        rest = slice(8, None)
        np.testing.assert_array_equal(array[rest, rest], _values()[rest, rest])
    store.set(key, whole)
    np.testing.assert_array_equal(array[...], _values())


@pytest.mark.parametrize("layout", ["plain", "crc32c"])
def test_chunk_with_more_behind_it(layout: str, store: Store) -> None:
    array = _make(store, layout)
    key = _first(array)
    whole = bytes(store.get(key) or b"")
    for more in (b"\0", b"x" * 8, whole):
        store.set(key, whole + more)
        for read in READS.values():
            with pytest.raises(ChunkDecodeError, match=key):
                read(array)


@ALL
def test_corrupt_chunk(layout: str, store: Store) -> None:
    """An error of ours or, where no checksum guards the bytes, other values: no other error, no crash."""
    array = _make(store, layout)
    key = _first(array)
    whole = bytes(store.get(key) or b"")
    rng = random.Random(13)
    caught = 0
    for _ in range(120):
        wrong = bytearray(whole)
        for _ in range(rng.choice([1, 1, 1, 8])):
            wrong[rng.randrange(len(wrong))] ^= 1 << rng.randrange(8)
        if wrong == whole:
            continue
        store.set(key, wrong)
        try:
            read = array[...]
        except ChunkDecodeError as error:
            caught += 1
            assert error.key == key  # noqa: PT017 - only some of them are refused
            continue
        assert read.shape == (16, 16)
        assert "crc32c" not in layout, "a checksum does not miss a few bits"
        np.testing.assert_array_equal(read[8:], _values()[8:])
    if layout in ("crc32c", "sharded"):
        assert caught >= 100


@ALL
def test_chunk_of_noise(layout: str, store: Store) -> None:
    array = _make(store, layout)
    rng = random.Random(17)
    for size in (1, 16, 127, 129, 600, 5000):
        for noise in (rng.randbytes(size), b"\xff" * size, bytes(size)):
            store.set(_first(array), noise)
            with pytest.raises(ChunkDecodeError, match=_first(array)):
                array[...]


@ALL
def test_writing_to_a_part_of_a_corrupt_chunk(layout: str, store: Store) -> None:
    """What cannot be read cannot be kept, so it is not overwritten; all of it can be replaced."""
    array = _make(store, layout)
    key = _first(array)
    broken = bytes(store.get(key) or b"")[:-3]
    store.set(key, broken)
    for selection in ((1, 1), (slice(0, 3), slice(0, 4))):
        with pytest.raises(ChunkDecodeError, match=key):
            array[selection] = 5
        assert bytes(store.get(key) or b"") == broken
    array[...] = _values() + 1
    np.testing.assert_array_equal(array[...], _values() + 1)


def test_directory_in_place_of_a_chunk(tmp_path: Path) -> None:
    """It cannot be written over, and is left alone; its neighbours are as they were."""
    array = _make(tmp_path / "store")
    key = _first(array)
    (tmp_path / "store" / key).unlink()
    (tmp_path / "store" / key).mkdir()
    (tmp_path / "store" / key / "inside").write_bytes(b"precious")
    before = contents(array.store)
    for write in (lambda: array.set((slice(0, 4), slice(0, 4)), 5), lambda: array.set((0, 0), 5)):
        with pytest.raises(StoreError, match=key):
            write()
    assert contents(array.store) == before
    np.testing.assert_array_equal(array[4:], _values()[4:])


def test_pipe_in_place_of_a_chunk(tmp_path: Path) -> None:
    """Nobody waits for a writer that will never come, and what is no value is not taken for none."""
    for layout in LAYOUTS:
        _make(tmp_path / layout, layout)
        os.unlink(tmp_path / layout / "c/0/0")
        os.mkfifo(tmp_path / layout / "c/0/0")

    def work() -> None:
        for layout in LAYOUTS:
            array = xzarr3.open_array(tmp_path / layout)
            for read in READS.values():
                with pytest.raises(StoreError, match="c/0/0"):
                    read(array)

    run_child(work).checked()


def test_absent_chunk_is_the_fill_value(store: Store) -> None:
    for layout in LAYOUTS:
        array = _make(store, layout, path=layout, fill_value=-3.5)
        store.erase(f"{layout}/c/0/0")
        unit = array.write_chunks[0]
        expected = _values()
        expected[:unit, :unit] = -3.5
        for selection in (..., (slice(1, 3), slice(None, None, 2)), (0, 0), (slice(None, None, -3), 5)):
            np.testing.assert_array_equal(array[selection], expected[selection])
        assert (array.read_chunk((0, 0)) == -3.5).all()


def test_errors_travel_between_processes(store: Store) -> None:
    """Workers of dask send them home, with all they say."""
    array = _make(store, "sharded")
    store.set(_first(array), bytes(store.get(_first(array)) or b"")[:-3])
    store.set("bad/zarr.json", b"{")
    for raising in (
        lambda: array[...],
        lambda: xzarr3.open(store, "bad"),
        lambda: xzarr3.open(store, "none"),
        lambda: store.get("a//b"),
        lambda: array[99],
        lambda: xzarr3.open_array(store).__setitem__(0, 1),
        lambda: xzarr3.create_array(store, "new", shape=1, dtype="i1", fill_value="x"),
    ):
        with pytest.raises(Xzarr3Error) as caught:
            raising()
        twin = pickle.loads(pickle.dumps(caught.value))
        assert type(twin) is type(caught.value)
        assert str(twin) == str(caught.value)
        assert {k: v for k, v in vars(twin).items() if k != "__notes__"} == vars(caught.value)


# Failing disks

ERRORS = [errno.EIO, errno.EMFILE, errno.ESTALE, errno.ENOMEM, errno.ETIMEDOUT]


@contextmanager
def failing(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    error: BaseException,
    *,
    after: int = 0,
    only: Callable[[object], bool] = lambda what: True,
) -> Iterator[list[object]]:
    """Let ``os.name`` raise from its call number ``after`` on; yields the first arguments of those calls."""
    module = platform if name in ("pread", "preadv") else os  # Where it is looked up.
    real = getattr(module, name)
    numbers = itertools.count()
    failed: list[object] = []

    def fail(what: object, *args: object, **kwargs: object) -> object:
        folder = kwargs.get("dir_fd", kwargs.get("src_dir_fd"))
        place = what if folder is None else f"{_place(folder)}/{what}"
        if not only(place) or next(numbers) < after:
            return real(what, *args, **kwargs)
        failed.append(what)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(module, name, fail)
        yield failed


def _os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def _in(root: str | Path) -> Callable[[object], bool]:
    """Whether a path or a descriptor is below ``root``, so that only the store is disturbed."""

    def below(what: object) -> bool:
        path = _place(what) if isinstance(what, int) else os.fsdecode(what)  # type: ignore[arg-type]
        return path.startswith(str(root))

    return below


def _place(descriptor: object) -> str:
    """The path of what is open."""
    return os.readlink(f"/proc/self/fd/{descriptor}")


def _files(root: str | Path) -> dict[str, bytes]:
    """All files of a directory, those that are no keys too."""
    return {
        os.path.relpath(os.path.join(folder, name), root): Path(folder, name).read_bytes()
        for folder, _, names in os.walk(root)
        for name in names
    }


@pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.get)
@pytest.mark.parametrize("name", ["open", "fstat", "pread", "preadv"])
def test_failing_reads_are_errors_and_never_fill(
    name: str, number: int, local_store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = 0
    for layout in LAYOUTS:
        array = _make(local_store, layout, path=layout)
        for way, read in READS.items():
            error = _os_error(number)
            with failing(monkeypatch, name, error, only=_in(local_store.root)) as failed:
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


@pytest.mark.parametrize("name", ["open", "preadv", "fstat"])
def test_failing_reads_of_documents(
    name: str, local_store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    _make(local_store, path="a/x")
    with failing(monkeypatch, name, _os_error(errno.EIO), only=_in(local_store.root)) as failed:
        for ask in (
            lambda: xzarr3.open(local_store, "a/x"),
            lambda: xzarr3.open_group(local_store, mode="a"),
            lambda: xzarr3.create_array(local_store, "b", shape=1, dtype="i1"),
        ):
            with pytest.raises(StoreError, match=r"zarr\.json|xzarr3-lease"):
                ask()
    assert failed


def test_failing_stat_is_no_absence(local_store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    array = _make(local_store)
    with failing(monkeypatch, "stat", _os_error(errno.EIO), only=_in(local_store.root)):
        with pytest.raises(StoreError):
            local_store.exists("zarr.json")
        with pytest.raises((StoreError, NodeExistsError)):
            xzarr3.create_array(local_store, shape=1, dtype="i1")
        local_store.stamp(["zarr.json"])
    np.testing.assert_array_equal(array[...], _values())


def test_failing_scan(local_store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    root = xzarr3.create_group(local_store)
    _make(local_store, path="a/x")
    with failing(monkeypatch, "scandir", _os_error(errno.EIO), only=_in(local_store.root)):
        for ask in (
            lambda: list(local_store.list()),
            lambda: local_store.list_dir("a/"),
            lambda: list(root),
            lambda: root.__delitem__("a"),
            lambda: xzarr3.create_group(local_store, "a", overwrite=True),
        ):
            with pytest.raises(StoreError, match=local_store.root):
                ask()
    np.testing.assert_array_equal(root["a/x"][...], _values())  # type: ignore[index]


@pytest.mark.parametrize("limit", [1, 7, 100])
def test_short_reads_and_writes(limit: int, local_store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system call may do less than it was asked to."""
    preadv, pread, write = os.preadv, os.pread, os.write

    def short_preadv(descriptor: int, buffers: list[memoryview], at: int) -> int:
        return preadv(descriptor, [memoryview(buffers[0])[:limit]], at)

    monkeypatch.setattr(platform, "preadv", short_preadv)
    monkeypatch.setattr(
        platform, "pread", lambda descriptor, size, at: pread(descriptor, min(size, limit), at)
    )
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, memoryview(data)[:limit]))
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
        """The file ends 8 bytes early."""
        left = os.fstat(descriptor).st_size - 8 - at
        return preadv(descriptor, [memoryview(buffers[0])[:left]], at) if left > 0 else 0

    monkeypatch.setattr(platform, "preadv", shrunken)
    monkeypatch.setattr(
        platform, "pread", lambda descriptor, size, at: pread(descriptor, max(0, min(size, 40 - at)), at)
    )
    for read in READS.values():
        with pytest.raises(ChunkDecodeError, match="c/"):
            read(array)


WRITE_FAULTS = [
    ("write", errno.EIO),
    ("write", errno.ENOSPC),
    ("write", errno.EDQUOT),
    ("replace", errno.EIO),
    ("replace", errno.EXDEV),
    ("close", errno.EIO),
    ("open", errno.EMFILE),
    ("open", errno.EROFS),
]


@pytest.mark.parametrize(("name", "number"), WRITE_FAULTS)
def test_failing_write_leaves_the_old_value(
    name: str, number: int, local_store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = b"old value" * 1000
    local_store.set("a/b", old)
    before = _files(local_store.root)
    for value in (b"new", b"new" * 10_000, b""):
        error = _os_error(number)
        with failing(monkeypatch, name, error, only=_in(local_store.root)) as failed:
            if name == "write" and not value:
                continue
            with pytest.raises(StoreError) as caught:
                local_store.set("a/b", value)
            with pytest.raises(StoreError):
                local_store.set("a/new", value)
        assert failed
        assert caught.value.__cause__ is error
        assert "a/b" in str(caught.value)
        assert local_store.root in str(caught.value)
        assert os.strerror(number) in str(caught.value)
        assert _files(local_store.root) == before, "nothing new, nothing left over"
        assert read_back(local_store, "a/b") == [old] * 4


def test_disk_that_fills_up_within_a_value(local_store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    old = b"old value" * 1000
    local_store.set("a/b", old)
    real = os.write

    def fill_up(descriptor: int, data: memoryview) -> int:
        if os.lseek(descriptor, 0, os.SEEK_CUR) >= 5000:
            raise _os_error(errno.ENOSPC)
        return real(descriptor, memoryview(data)[:5000])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fill_up)
        with pytest.raises(StoreError, match="No space left"):
            local_store.set("a/b", b"new" * 5000)
    assert _files(local_store.root) == {"a/b": old}


def test_interrupted_write_leaves_the_old_value(
    local_store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    local_store.set("a/b", b"old")
    for name in ("write", "replace"):
        with (
            failing(monkeypatch, name, KeyboardInterrupt(), only=_in(local_store.root)),
            pytest.raises(KeyboardInterrupt),
        ):
            local_store.set("a/b", b"new")
        assert _files(local_store.root) == {"a/b": b"old"}


def test_failing_write_whose_leftover_cannot_be_removed(
    local_store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first error is the one that is told; the leftover is no key."""
    local_store.set("a/b", b"old")
    with (
        failing(monkeypatch, "unlink", _os_error(errno.EACCES)),
        failing(monkeypatch, "replace", _os_error(errno.EIO)),
        pytest.raises(StoreError, match="Input/output error"),
    ):
        local_store.set("a/b", b"new")
    assert len(_files(local_store.root)) == 2
    assert contents(local_store) == {"a/b": b"old"}
    assert local_store.list_dir("a/") == ({"a/b"}, set())


@pytest.mark.parametrize("threads", [1, 2])
@ALL
def test_array_on_a_failing_disk_holds_old_and_new_units(
    layout: str, threads: int, local_store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = np.tile(_values(), (16, 16))
    array = _make(local_store, layout, data=old, chunks=(32, 32), **_shards(layout))
    new = old + 1
    with (
        failing(monkeypatch, "write", _os_error(errno.ENOSPC), after=2, only=_in(local_store.root)),
        failing(monkeypatch, "writev", _os_error(errno.ENOSPC), after=2, only=_in(local_store.root)),
        pytest.raises(StoreError, match="No space left"),
    ):
        array.set(..., new, threads=threads)
    found = xzarr3.open_array(local_store)
    states = []
    for task in found.chunk_tasks():
        unit = task()
        is_old, is_new = (np.array_equal(unit, values[task.selection]) for values in (old, new))
        assert is_old or is_new, task.coords
        states.append(is_new)
    assert any(states)
    assert not all(states)
    assert all(key == "zarr.json" or key.startswith("c/") for key in _files(local_store.root))


def _shards(layout: str) -> dict[str, object]:
    return {"shards": (64, 64)} if layout == "sharded" else {}


def test_failing_append_changes_nothing_that_is_seen(
    local_store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = _make(local_store, chunks=(3, 4))  # The last row of chunks is shared with what is appended.
    document = local_store.get("zarr.json")
    for after in itertools.count():
        with failing(monkeypatch, "replace", _os_error(errno.ENOSPC), after=after):
            try:
                assert array.append(np.full((5, 16), 7.0)) == (21, 16)
                break
            except StoreError:
                pass
        assert array.shape == (16, 16)
        assert local_store.get("zarr.json") == document
        np.testing.assert_array_equal(array[...], _values())
        np.testing.assert_array_equal(xzarr3.open_array(local_store)[...], _values())
    assert after >= 5
    np.testing.assert_array_equal(xzarr3.open_array(local_store)[:16], _values())
    assert (array[16:] == 7).all()


def test_failing_writes_of_documents_change_nothing(
    local_store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = xzarr3.create_group(local_store, attributes={"title": "old"})
    array = root.create_array("x", data=_values(), chunks=(4, 4), attributes={"units": "K"})
    before = contents(local_store)
    with failing(monkeypatch, "replace", _os_error(errno.ENOSPC)):
        for write in (
            lambda: array.attrs.update(units="C"),
            lambda: array.attrs.__setitem__("units", "C"),
            lambda: array.attrs.__delitem__("units"),
            lambda: root.attrs.update(title="new"),
            lambda: array.resize((4, 4)),
            lambda: array.resize((40, 40)),
            root.consolidate,
            lambda: root.create_group("new"),
        ):
            with pytest.raises(StoreError):
                write()
            assert contents(local_store) == before
            assert array.shape == (16, 16)
            assert dict(array.attrs) == {"units": "K"}
            assert dict(root.attrs) == {"title": "old"}
            assert root.consolidated is False
    np.testing.assert_array_equal(array[...], _values())


# Erasing on a failing disk

ERASING: dict[str, Callable[[LocalStore], object]] = {
    "erase": lambda store: store.erase("a/c/d"),
    "erase_values": lambda store: store.erase_values(["a/b", "a/c/d", "a/c/e"]),
    "erase_prefix": lambda store: store.erase_prefix("a/"),
}


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS, errno.EPERM, errno.EBUSY])
@pytest.mark.parametrize("name", ERASING)
def test_failing_erasure_is_told(
    name: str, number: int, local_store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the key that could not be erased, whichever of them it is."""
    keys = {"a/b", "a/c/d", "a/c/e", "b"}
    for after in range(3 if name != "erase" else 1):
        for key in keys:
            local_store.set(key, b"value")
        error = _os_error(number)
        with (
            failing(monkeypatch, "unlink", error, after=after) as failed,
            pytest.raises(StoreError, match=re.escape(os.strerror(number))) as caught,
        ):
            ERASING[name](local_store)
        assert caught.value.__cause__ is error
        assert len(failed) == 1
        left = set(local_store.list())
        assert len(keys - left) == after
        assert f"a/{'c/' if failed[0] in 'de' else ''}{failed[0]}'" in str(caught.value)
        ERASING[name](local_store)
    assert "b" in local_store.list()


@pytest.mark.parametrize(
    ("call", "number"), [("open", errno.EMFILE), ("open", errno.EIO), ("stat", errno.EIO)]
)
@pytest.mark.parametrize("name", ["erase", "erase_prefix"])
def test_failing_look_at_what_is_to_be_erased(
    name: str, call: str, number: int, local_store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any look may fail; then nothing is erased, or all of it."""
    keys = ["a/b", "a/c/d", "a/c/e", "b"]
    failures = 0
    for after in itertools.count():
        for key in keys:
            local_store.set(key, b"value")
        with failing(monkeypatch, call, _os_error(number), after=after) as failed:
            try:
                ERASING[name](local_store)
            except StoreError as error:
                assert os.strerror(number) in str(error)  # noqa: PT017 - not every look matters
                assert sorted(local_store.list()) == keys
                failures += 1
            else:
                assert "a/c/d" not in local_store.list()
        if not failed:
            break
    assert failures > 0 or (name, call) == ("erase", "stat")


def test_failing_scan_keeps_all_from_being_erased(
    local_store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ["a/b", "a/c/d", "a/c/e", "b"]
    for key in keys:
        local_store.set(key, b"value")
    for after in range(2):
        with (
            failing(monkeypatch, "scandir", _os_error(errno.EIO), after=after),
            pytest.raises(StoreError, match="Input/output error"),
        ):
            local_store.erase_prefix("a/")
        assert sorted(local_store.list()) == keys


def test_directories_that_cannot_be_removed_are_no_failure(
    local_store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("a/b", "a/c/d", "a/c/e", "b"):
        local_store.set(key, b"value")
    with failing(monkeypatch, "rmdir", _os_error(errno.EACCES)) as failed:
        local_store.erase_prefix("a/")
        local_store.erase("b")
    assert failed
    assert _files(local_store.root) == {}


def test_erased_prefix_is_no_node_from_the_first_moment(
    local_store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it stops: what lies deeper goes after all that lies above it."""
    for after in range(14):
        xzarr3.create_group(local_store, "g", overwrite=True)
        for path in ("g/x", "g/y/z"):
            xzarr3.create_array(local_store, path, data=np.arange(6), chunks=2)
        before = set(_files(local_store.root))
        with failing(monkeypatch, "unlink", _os_error(errno.EIO), after=after) as failed:
            try:
                local_store.erase_prefix("g/")
            except StoreError:
                left = set(_files(local_store.root))
                deepest = max((key.count("/") for key in before - left), default=0)
                assert not [key for key in left if key.startswith("g/") and key.count("/") < deepest]
            else:
                assert not failed
        local_store.erase_prefix("g/")
    assert sorted(_files(local_store.root)) == ["zarr.json"]


def test_interrupted_erasure(local_store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for call in ("unlink", "open", "rmdir", "scandir", "stat"):
        for after in range(4):
            for key in ("a/b", "a/c/d", "b"):
                local_store.set(key, b"value")
            with (
                failing(monkeypatch, call, KeyboardInterrupt(), after=after) as failed,
                contextlib.suppress(KeyboardInterrupt),
            ):
                local_store.erase_prefix("a/")
            assert failed or after > 0
            assert "b" in local_store.list()
    assert len(os.listdir("/proc/self/fd")) == before


def test_writes_beyond_a_file_size_limit() -> None:
    """A full disk as the kernel tells it: in the middle of a file."""

    def work(base: Path) -> None:
        _fill_up(base / "store", lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, 2**16)))

    run_unprivileged(work).checked()


def test_writes_to_a_full_file_system() -> None:
    """The same on a small file system that is really full; without the right to mount one, on the limit."""

    def work(base: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        new_namespace, private = 0x00020000, 1 << 18 | 1 << 14
        mounted = (
            libc.unshare(new_namespace) == 0
            and libc.mount(b"none", b"/", None, private, None) == 0
            and libc.mount(b"tmpfs", os.fsencode(base / "store"), b"tmpfs", 0, b"size=2m") == 0
        )
        if mounted:
            _fill_up(base / "store", lambda: (base / "store" / "ballast").write_bytes(bytes(1_600_000)))
        else:
            _fill_up(base / "store", lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, 2**16)))

    with own_directory() as base:
        run_child(lambda: work(base)).checked()  # Only harmless paths; mounting takes the rights of root.


def _fill_up(root: Path, fill: Callable[[], object]) -> None:
    """Write values that fit and, when little space is left, values that do not."""
    store = LocalStore(root / "x.zarr")
    old = random.Random(1).randbytes(50_000)
    store.set("a/b", old)
    array = xzarr3.create_array(
        store, "y", data=np.arange(40_000.0), chunks=10_000, compressors=None, fill_value=-1
    )
    fill()
    before = _files(store.root)
    for key in ("a/b", "a/new", "c/new"):
        with pytest.raises(StoreError, match=key):
            store.set(key, random.Random(2).randbytes(1_000_000))
    assert _files(store.root) == before
    assert read_back(store, "a/b") == [old] * 4

    def append_on_and_on() -> None:  # Each time takes as much space as one of the old chunks.
        for _ in range(100):
            array.append(np.arange(10_000.0))

    with pytest.raises(StoreError, match="y/c/"):
        append_on_and_on()
    kept = xzarr3.open_array(store, "y")
    assert kept.shape == array.shape
    np.testing.assert_array_equal(kept[:40_000], np.arange(40_000.0))
    assert not (kept[...] == -1).any()
    assert all(".xzarr3" not in name for name in _files(store.root))


# Killed processes


def _record(key: str, generation: int) -> bytes:
    """A value that tells whether it is whole."""
    body = f"{key} {generation} ".encode() * (100 + 900 * (generation % 5))
    return zlib.crc32(body).to_bytes(4, "big") + body


def test_killed_writer_leaves_old_or_new_values(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    keys = [f"{a}/{b}" for a in "abc" for b in range(4)]
    rng = random.Random(19)
    for key in keys:
        store.set(key, _record(key, 0))
    seen = set()
    for round_ in range(12):

        def write(round_: int = round_) -> NoReturn:
            for generation in itertools.count(1000 * round_ + 1):
                for key in keys:
                    store.set(key, _record(key, generation))
            raise AssertionError

        _kill_after(write, 0.01 + 0.03 * rng.random())
        assert sorted(store.list()) == sorted(keys)
        for key in keys:
            (value, *others) = read_back(store, key)
            assert value is not None
            assert others == [value] * 3
            assert zlib.crc32(value[4:]).to_bytes(4, "big") == value[:4], f"half of {key} was written"
            name, generation, _ = value[4:].split(b" ", 2)
            assert name.decode() == key
            seen.add(generation)
        leftovers = len(_files(store.root)) - len(keys)
        assert store.list_dir("a/")[0] == {key for key in keys if key.startswith("a/")}
    assert len(seen) > 12, "the children wrote nothing"
    assert leftovers <= 12


@pytest.mark.parametrize("layout", ["plain", "zstd", "sharded"])
def test_killed_writer_of_an_array_leaves_whole_units(layout: str, tmp_path: Path) -> None:
    """Also where parts of units are changed."""
    array = _make(
        tmp_path / "store", layout, data=np.zeros((64, 64)), chunks=(8, 8), write_empty_chunks=True,
        **({"shards": (32, 32)} if layout == "sharded" else {}),
    )  # fmt: skip
    rng = random.Random(23)

    def write() -> NoReturn:
        for generation in itertools.count(1):
            array.set(..., generation, threads=1)
        raise AssertionError

    for _ in range(4):
        _kill_after(write, 0.02 + 0.04 * rng.random())
        found = xzarr3.open_array(tmp_path / "store")
        for task in found.chunk_tasks():
            assert len(np.unique(task())) == 1
        assert xzarr3.open_group(tmp_path, mode="a").store.exists("store/zarr.json")


def _kill_after(work: Callable[[], object], seconds: float) -> None:
    """Fork, let the child work, kill it without warning."""
    ready, started = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Other threads of the tests are idle now.
        child = os.fork()
    if child == 0:
        try:
            os.write(started, b"x")
            work()
        finally:
            os._exit(1)
    os.read(ready, 1)
    os.close(ready)
    os.close(started)
    time.sleep(seconds)
    assert os.waitpid(child, os.WNOHANG) == (0, 0), "the child ended by itself"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


# Interrupts


class SlowStore(MemoryStore):
    """Each access takes a while; counts them."""

    delay = 0.0
    request_bytes = 2**20

    def __init__(self) -> None:
        super().__init__()
        self.accesses = 0
        self.threads: set[int] = set()

    def _check_reading(self, key: str) -> None:
        """Nothing is wrong."""

    def _wait(self) -> None:
        self.accesses += 1
        self.threads.add(threading.get_ident())
        time.sleep(self.delay)

    def _reader(self, scratch: Any, limit: int) -> Reader:
        return _SlowReader(self, super()._reader(scratch, limit))

    def set(self, key: str, value: Buffer) -> None:
        self._wait()
        super().set(key, value)


class _SlowReader(Reader):
    _store: SlowStore

    def __init__(self, store: SlowStore, inner: Reader) -> None:
        super().__init__(store)
        self._inner = inner

    def get(self, key: str) -> Buffer | None:
        self._store._wait()
        return self._inner.get(key)

    def open(self, key: str, part: Any = None, version: object | None = None) -> ValueReader | None:
        self._store._check_reading(key)
        self._store._wait()
        return self._inner.open(key, part, version)


def _transfer(array: Array, direction: str, values: np.ndarray[Any, Any], threads: int) -> None:
    if direction == "read":
        array.get(threads=threads)
    else:
        array.set(..., values, threads=threads)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("direction", ["read", "write"])
def test_interrupt_stops_all_threads(direction: str, threads: int) -> None:
    """Control-C arrives soon, nothing goes on behind one's back, and the array can be used again."""

    def work() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        store = SlowStore()
        values = np.arange(2_000_000.0)
        array = xzarr3.create_array(store, data=values, chunks=1000, compressors=None)
        store.accesses = 0
        store.threads.clear()
        store.delay = 0.005
        alarm = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        alarm.start()
        with pytest.raises(KeyboardInterrupt):
            _transfer(array, direction, values + 1, threads)
        alarm.join()
        before = store.accesses
        time.sleep(0.1)
        assert store.accesses == before, "a thread goes on"
        assert 0 < before < 1000, "it came soon"
        assert len(store.threads) == threads
        store.delay = 0
        found = array.get(threads=threads)
        if direction == "read":
            np.testing.assert_array_equal(found, values)
        else:
            assert set(np.unique(found - values)) == {0.0, 1.0}, "old and new units"
            array.set(..., values + 1, threads=threads)
            np.testing.assert_array_equal(array[...], values + 1)

    run_child(work).checked()


def test_interrupt_of_a_real_process(tmp_path: Path) -> None:
    """As a user at a terminal: python reading a store on disk, and a signal."""
    values = np.random.default_rng(3).random(2_000_000)
    xzarr3.create_array(tmp_path / "store", data=values, chunks=5000)
    program = (
        "import sys, threading, xzarr3\n"
        "array = xzarr3.open_array(sys.argv[1])\n"
        "expected = array.get(threads=2)\n"
        "interrupts = 0\n"
        "try:\n"
        "    print('ready', flush=True)\n"
        "    while True:\n"
        "        array.get(threads=2)\n"
        "except KeyboardInterrupt:\n"
        "    interrupts += 1\n"
        "assert (array.get(threads=2) == expected).all()\n"
        "print('interrupts', interrupts, flush=True)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "store")],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        text=True,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.15)
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate(timeout=120)
    finally:
        child.kill()
        child.wait()
    assert out == "interrupts 1\n"
    assert child.returncode == 0


class HeldStore(MemoryStore):
    """Holds each access up until it may go on, and knows how many there are."""

    concurrency = 2

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

    def set(self, key: str, value: Buffer) -> None:
        self._hold(key)
        super().set(key, value)
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
@pytest.mark.parametrize("way", ["array", "single request", "copy", "dask"])
def test_nothing_is_stored_after_an_interrupt_came_back(way: str, times: int) -> None:
    """Also not by a thread that was in the middle of it, however often Ctrl-C is pressed meanwhile."""
    values = np.arange(4.0)

    def work() -> int:
        store = HeldStore()
        if way == "copy":
            source = xzarr3.create_array(MemoryStore(), data=values, chunks=1)
            return _interrupted(store, lambda: xzarr3.copy(source, store, threads=2), times)
        if way == "single request":
            return _interrupted(store, lambda: undisturbed(lambda: store.set("c/0", b"a")), times)
        array = xzarr3.create_array(store, shape=4, chunks=1, dtype="f8")
        if way == "array":
            return _interrupted(store, lambda: array.set(..., values + 1, threads=2), times)
        source = da.from_array(values + 1, chunks=1)
        write = partial(store_dask, source, array, scheduler="threads", num_workers=2)
        threaded.pools.clear()  # Of earlier tests, whose threads are not in this child.
        return _interrupted(store, write, times)

    assert run_child(work).checked() == 0


def test_a_thread_that_copies_is_waited_for_if_ctrl_c_came_while_it_was_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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

    monkeypatch.setattr(copying, "waiters", Pool(2, "new"))  # One that has no idle threads.
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        copying._do_all(iter([move] * 4), 2, lambda size: None)
    found = list(done)
    over.set()
    assert found == [1]


@pytest.mark.parametrize("times", [1, 3])
def test_nothing_is_read_into_a_buffer_after_an_interrupt_came_back(times: int) -> None:
    def work() -> bool:
        store = HeldStore()
        array = xzarr3.create_array(store, data=np.arange(4.0), chunks=1)
        out, before = np.full((2, 4), -1.0)

        def read() -> None:
            try:
                array.get(out=out, threads=2)
            finally:
                before[...] = out

        _interrupted(store, read, times)
        waiters.get().shutdown()  # So that whoever is still at work comes to an end.
        cores.get().shutdown()
        return bool((out == before).all())

    assert run_child(work).checked()


def test_a_failed_write_with_dask_can_be_tried_again() -> None:
    store = FailingStore()
    array = xzarr3.create_array(store, shape=4, chunks=1, dtype="f8")
    write = store_dask(da.ones(4, chunks=1), array, compute=False)
    store.delay = 0.001
    with pytest.raises(StoreError, match="cannot write key"):
        write.compute(scheduler="threads", num_workers=2)
    store.delay = 0
    dask.compute(write, scheduler="threads", num_workers=2)
    np.testing.assert_array_equal(array[...], 1)
    store.delay = 0.001
    with pytest.raises(StoreError, match="cannot write key"):
        write.compute(scheduler="threads", num_workers=2)
    store.delay = 0
    write.compute(scheduler="threads", num_workers=2)


class FailingStore(SlowStore):
    """Fails in every thread but the first."""

    def _check_reading(self, key: str) -> None:
        if self.delay and threading.current_thread() is not threading.main_thread():
            raise StoreError(f"cannot read key '{key}'")

    def set(self, key: str, value: Buffer) -> None:
        if self.delay and threading.current_thread() is not threading.main_thread():
            raise StoreError(f"cannot write key '{key}'")
        super().set(key, value)


@pytest.mark.parametrize("direction", ["read", "write"])
def test_failure_in_one_thread_stops_the_others(direction: str) -> None:
    """Who reads hours of data wants to hear of the failure now."""
    store = FailingStore()
    values = np.arange(400_000.0)
    array = xzarr3.create_array(store, data=values, chunks=1000, compressors=None)
    store.accesses, store.delay = 0, 0.001
    with pytest.raises(StoreError, match="cannot"):
        _transfer(array, direction, values + 1, 2)
    assert store.accesses < 200, f"{store.accesses} of 400 units were handled after the failure"


# Stores that vanish


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
    for read in READS.values():
        with pytest.raises(StoreError, match=r"store"):
            read(array)
    for ask in (
        lambda: held["a/x"][...],  # type: ignore[index]
        lambda: lazy.compute(scheduler="sync"),
        lambda: lazy[:3, :3].sum().compute(scheduler="threads"),
        lambda: pickle.loads(pickle.dumps(array))[...],
        lambda: list(array),
    ):
        with pytest.raises(StoreError):
            ask()
    for open_ in (lambda: group["a"], lambda: xzarr3.open(root), lambda: xzarr3.open(root, "a/x")):
        with pytest.raises(NodeNotFoundError):
            open_()


def test_vanished_array_in_a_store_that_stays(store: Store) -> None:
    root = xzarr3.create_group(store)
    array = _make(store, path="x")
    _make(store, path="y")
    del root["x"]
    for read in READS.values():
        with pytest.raises(StoreError, match="/x"):
            read(array)
    np.testing.assert_array_equal(root["y"][...], _values())  # type: ignore[index]


def test_store_that_vanishes_while_it_is_read(tmp_path: Path) -> None:
    """All or an error; never the fill value for what was gone already."""
    values = np.random.default_rng(5).random(50_000) + 1
    failures = 0
    for round_ in range(6):
        root = tmp_path / f"store-{round_}"
        array = xzarr3.create_array(root, data=values, chunks=250, compressors=None)

        def remove(root: Path = root) -> None:
            (root / "zarr.json").unlink()
            shutil.rmtree(root)

        remover = threading.Timer(0.002 * round_, remove)
        remover.start()
        while remover.is_alive():
            try:
                np.testing.assert_array_equal(array.get(threads=2), values)
            except StoreError:
                failures += 1
        with pytest.raises(StoreError):
            array[...]
    assert failures > 0


# Processes and threads


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


def test_fork_while_other_threads_write(local_store: LocalStore) -> None:
    """A lock that was held when the process forked must not be waited for in the child."""
    array = _make(local_store, "zstd", data=np.zeros((256, 256)), chunks=(256, 256))
    stop = threading.Event()

    def write() -> None:
        for at in itertools.cycle(range(256)):
            if stop.is_set():
                return
            array.set(at, at, threads=1)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for at in range(8):
            run_child(lambda at=at: array.set((slice(None), at), 1.0, threads=1)).checked()
    finally:
        stop.set()
        writer.join()


@pytest.mark.parametrize("layout", ["plain", "zstd", "sharded"])
@pytest.mark.parametrize("handles", ["one array", "an array each"])
def test_threads_that_write_parts_of_one_unit_lose_nothing(handles: str, layout: str, store: Store) -> None:
    count = 8
    make = {"data": np.zeros((count * 4, 32)), "chunks": (8, 8), "shards": None}
    if layout == "sharded":
        make["shards"] = (32, 32)
    else:
        make["chunks"] = (32, 32)
    array = _make(store, layout, **{**LAYOUTS[layout], **make})

    for generation in range(1, 6):

        def write(at: int, generation: int = generation) -> None:
            mine = array if handles == "one array" else xzarr3.open_array(store, mode="r+")
            for row in range(at, count * 4, count):  # Rows of one thread lie between those of others.
                mine.set(row, 100 * generation + at, threads=1)

        run_threads(*(lambda at=at: write(at) for at in range(count)))  # type: ignore[misc]
        expected = np.broadcast_to(100.0 * generation + np.arange(count * 4)[:, None] % count, (32, 32))
        np.testing.assert_array_equal(array[...], expected)


def test_readers_during_writes_see_whole_units(store: Store) -> None:
    array = _make(store, "zstd", data=np.ones((64, 64)), chunks=(32, 32))
    end = time.monotonic() + 0.5
    seen = set()

    def write() -> None:
        for generation in itertools.cycle(range(2, 9)):
            if time.monotonic() > end:
                return
            array.set(..., generation, threads=1)

    def read() -> None:
        mine = xzarr3.open_array(store)
        while time.monotonic() < end:
            for coords in itertools.product(range(2), repeat=2):
                unit = np.unique(mine.read_chunk(coords))
                assert len(unit) == 1, "half of it is of another write"
                seen.add(float(unit[0]))

    run_threads(write, read, read)
    assert len(seen) > 1


def test_document_is_always_whole_to_readers(local_store: LocalStore) -> None:
    array = _make(local_store, attributes={"n": 0})
    end = time.monotonic() + 0.5

    def write() -> None:
        for n in itertools.count():
            if time.monotonic() > end:
                return
            array.attrs.put({"n": n, "padding": "x" * (n % 5000)})

    def read() -> None:
        last = 0
        while time.monotonic() < end:
            n = xzarr3.open_array(local_store).attrs["n"]
            assert n >= last
            last = n

    run_threads(write, read, read)
    assert json.loads(bytes(local_store.get("zarr.json") or b""))["attributes"]["n"] > 10
