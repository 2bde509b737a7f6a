"""Native writes: the files of the Python executor, byte by byte, and nothing lost when something fails."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _native import INDEXES, Seen, grids, interrupt, python_executor, sharding, watching
from _processes import Process, processes, run_processes
from _slow import slow_but
from _unprivileged import run_child, run_unprivileged, unprivileged
from hypothesis import given
from hypothesis import strategies as st

import xzarr3
from xzarr3 import (
    ChunkDecodeError,
    InvalidKeyError,
    LocalStore,
    StoreError,
    StorePermissionError,
)
from xzarr3.io import native, native_write
from xzarr3.stores import locks
from xzarr3.stores.base import update
from xzarr3.stores.local.names import LOCK
from xzarr3.stores.locks import free_key_locks, key_lock

pytestmark = pytest.mark.skipif(native.loaded() is None, reason="native code is absent, or turned off")

ZSTD = {"name": "zstd", "configuration": {"level": 3, "checksum": True}}
CODECS: dict[str, list[Any]] = {
    "none": [],
    "zstd": [{"name": "zstd", "configuration": {"level": 0, "checksum": False}}],
    "zstd-fast": [{"name": "zstd", "configuration": {"level": -7, "checksum": True}}],
    "zstd-small": [{"name": "zstd", "configuration": {"level": 9, "checksum": False}}],
    "blosc": ["blosc"],
    "lz4": [{"name": "blosc", "configuration": {"cname": "lz4", "clevel": 9, "shuffle": "shuffle"}}],
    "bitshuffled": [
        {"name": "blosc", "configuration": {"cname": "zlib", "clevel": 1, "shuffle": "bitshuffle"}}
    ],
    "stored": [{"name": "blosc", "configuration": {"cname": "blosclz", "clevel": 0, "shuffle": "noshuffle"}}],
    "crc32c": ["crc32c"],
    "crc32c-twice": ["crc32c", "crc32c"],
    "zstd-crc32c": [ZSTD, "crc32c"],
    "crc32c-zstd-crc32c-zstd": ["crc32c", ZSTD, "crc32c", ZSTD],
    "shuffle-zstd": [{"name": "numcodecs.shuffle"}, ZSTD],
    "shuffle": [{"name": "numcodecs.shuffle"}],
    "gzip": ["gzip"],
}
BY_PYTHON = frozenset(("gzip",))
DTYPES = (
    "bool", "int8", "uint16", "int32", "float16", "float32", "float64", "complex64", "complex128",
    "datetime64[s]", "S3", "U2",
)  # fmt: skip


@pytest.fixture(autouse=True)
def seen() -> Iterator[Seen]:
    with watching() as found:
        yield found


def contents(root: Path) -> dict[str, bytes | None]:
    """The files in a directory, and None for each directory."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None for path in root.rglob("*")
    }


def both(folder: Path, write: Callable[[xzarr3.Array], object], **options: Any) -> dict[str, bytes | None]:
    """The files that native code writes, as the Python executor does."""
    found = []
    for name in ("native", "python"):
        with python_executor() if name == "python" else contextlib.nullcontext():
            array = xzarr3.create_array(folder / name, **options)
            write(array)
        found.append(contents(folder / name))
    assert found[0] == found[1]
    return found[0]


@st.composite
def arrays(draw: st.DrawFn) -> tuple[dict[str, Any], np.ndarray[Any, Any]]:
    """Options of an array, and its values."""
    shape, chunks, dtype, rng = draw(grids(DTYPES))
    most = 2 if dtype.kind in "bU" else 256
    octets = rng.integers(0, most, (*shape, dtype.itemsize), np.uint8)
    if dtype.kind == "U":
        octets[..., 1:] = 0
    values = octets.view(dtype).reshape(shape)
    options: dict[str, Any] = {
        "shape": shape,
        "dtype": dtype,
        "chunks": chunks,
        "compressors": CODECS[draw(st.sampled_from([*CODECS]))],
        "write_empty_chunks": draw(st.booleans()),
    }
    fill: Any = np.zeros((), dtype)[()]
    if dtype.kind in "fc":
        fill = draw(st.sampled_from((dtype.type(0), dtype.type(-0.0), dtype.type("nan"), dtype.type(1))))
        options["fill_value"] = fill
    if dtype.kind != "U":
        values[rng.random(shape) < draw(st.sampled_from((0, 0.5, 0.9, 1)))] = fill
    if dtype.kind == "f" and draw(st.booleans()):  # What equals the fill value, but in other bits.
        values.reshape(-1)[draw(st.integers(0, values.size - 1))] = -fill
    if draw(st.booleans()):
        options["shards"] = tuple(n * draw(st.integers(1, 3)) for n in chunks)
    elif draw(st.booleans()):
        order = draw(st.permutations(range(len(shape))))
        options["filters"] = [{"name": "transpose", "configuration": {"order": order}}]
    if draw(st.booleans()):
        options["serializer"] = {"name": "bytes", "configuration": {"endian": "big"}}
    if draw(st.booleans()):
        options["chunk_key_encoding"] = {"name": "v2", "configuration": {"separator": "."}}
    return options, values


def in_memory(draw: Any, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same values in another order in memory."""
    how = draw(st.sampled_from(("C", "F", "backwards", "apart")))
    if how == "backwards":
        back = (slice(None, None, -1),) * values.ndim
        return np.ascontiguousarray(values[back])[back]
    if how == "apart":
        wide = np.zeros([2 * n + 1 for n in values.shape], values.dtype)
        place = wide[(slice(1, None, 2),) * values.ndim]
        place[...] = values
        return place
    return np.array(values, order=how)


@given(made=arrays(), data=st.data())
def test_files_are_those_of_the_python_executor(
    tmp_path_factory: pytest.TempPathFactory, made: Any, data: st.DataObject
) -> None:
    """Also where an index names an element several times: the last value counts."""
    options, values = made
    parts, lists = [], []
    for n in values.shape:
        start = data.draw(st.integers(0, n - 1))
        parts.append(data.draw(st.sampled_from((slice(None), slice(start, n), slice(0, start + 1)))))
        lists.append(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=2 * n)))
    first = in_memory(data.draw, values)
    second = in_memory(data.draw, values[::-1])[tuple(parts)]
    way = data.draw(st.sampled_from(("oindex", "vindex")))
    fewest = min(map(len, lists))
    index = tuple(np.array(each if way == "oindex" else each[:fewest]) for each in lists)
    third = values[::-1][np.ix_(*index) if way == "oindex" else index]
    threads, few = data.draw(st.integers(1, 3)), data.draw(st.sampled_from((1, native_write.FEW_PARTS)))

    def write(array: xzarr3.Array) -> None:
        array.set(..., first, threads=threads)
        array.set(tuple(parts), second, threads=threads)
        getattr(array, way)[index] = third

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native_write, "FEW_PARTS", few)
        both(tmp_path_factory.mktemp("write"), write, **options)


@pytest.mark.parametrize("codecs", CODECS)
@pytest.mark.parametrize("layout", slow_but(["chunks", "shards", "transposed", "big"], "shards"))
def test_all_units_are_written_by_native_code(tmp_path: Path, codecs: str, layout: str, seen: Seen) -> None:
    values = np.cumsum(np.random.default_rng(0).normal(size=(50, 40)), axis=1).round(2).astype("float32")
    values[:20, :30] = 0
    options: dict[str, Any] = {"chunks": (4, 10), "shape": values.shape, "dtype": "float32"}
    options["compressors"] = CODECS[codecs]
    if layout == "shards":
        options["shards"] = (8, 20)
    elif layout == "transposed":
        options["filters"] = [{"name": "transpose", "configuration": {"order": (1, 0)}}]
    elif layout == "big":
        options["serializer"] = {"name": "bytes", "configuration": {"endian": "big"}}
    both(tmp_path, lambda array: array.set(..., values), **options)
    assert (seen.rows > 0, seen.left) == (codecs not in BY_PYTHON, 0)


def test_empty_units_are_left_out(tmp_path: Path, seen: Seen) -> None:
    values = np.zeros((12, 12), "int32")
    values[5, 7] = 1

    def write(array: xzarr3.Array) -> None:
        for each in (np.ones_like(values), values):
            array.set(..., each)

    files = both(tmp_path, write, shape=(12, 12), chunks=(3, 4), dtype="int32")
    assert sum(content is not None for name, content in files.items() if name.startswith("c")) == 1
    assert seen.left == 11  # They were stored: Python erases them.
    seen.left = 0
    files = both(
        tmp_path / "new", lambda array: array.set(..., values), shape=(12, 12), chunks=(3, 4), dtype="int32"
    )
    assert seen.left == 0
    assert [name for name in files if name.startswith("c")] == ["c", "c/1", "c/1/1"]


@INDEXES
def test_indexes_at_the_start_and_without_a_checksum(
    tmp_path: Path, index_codecs: Any, at: str, seen: Seen
) -> None:
    values = np.arange(60, dtype="int16").reshape(6, 10)
    values[:2] = 0
    shard = sharding([2, 5], ZSTD, index_codecs=index_codecs, at=at)
    options = {"shape": values.shape, "dtype": "int16", "chunks": (4, 5), "compressors": None}
    both(tmp_path, lambda array: array.set(..., values), serializer=shard, **options)
    assert (seen.rows, seen.left) == (4, 0)


def test_chunks_of_different_sizes(tmp_path: Path, seen: Seen) -> None:
    values = np.arange(13 * 11, dtype="float32").reshape(13, 11)
    options = {"shape": values.shape, "dtype": "float32", "chunks": ((3, 7, 3), (5, 1, 5))}
    both(tmp_path, lambda array: array.set(..., values), **options)
    assert (seen.rows, seen.left) == (9, 0)


def open_files() -> int:
    return len(os.listdir("/dev/fd"))


@pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="the system does not tell which files are open")
@pytest.mark.parametrize("shards", [None, (8, 8)])
def test_an_interrupted_write_leaves_no_temporary_file_no_lock_and_no_open_file(
    tmp_path: Path, shards: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = xzarr3.create_array(tmp_path / "a", shape=(16, 16), chunks=(2, 2), shards=shards, dtype="int64")
    array[...] = 1
    before = contents(tmp_path), open_files()
    interrupt(monkeypatch)
    values = np.arange(256).reshape(16, 16)
    with pytest.raises(KeyboardInterrupt):
        array.set(..., values, threads=1)
    assert contents(tmp_path).keys() == before[0].keys()
    assert open_files() == before[1]
    keys = [array.engine.key((i, j)) for i in range(8) for j in range(8)]

    def can_take() -> bool:
        with free_key_locks(array.store.identity, keys) as held:
            return all(held)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(can_take).result()
    monkeypatch.undo()
    found = array[...]
    assert np.all((found == 1) | (found == values))
    array.set(..., values)
    assert np.array_equal(array[...], values)


@pytest.mark.parametrize("interrupted", [False, True])
def test_the_time_of_the_root_changes(
    tmp_path: Path, interrupted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = xzarr3.create_array(tmp_path / "a", shape=16, chunks=2, dtype="int8")
    array[...] = 1
    os.utime(tmp_path / "a", (1, 1))
    if interrupted:
        interrupt(monkeypatch, 1)
    with pytest.raises(KeyboardInterrupt) if interrupted else contextlib.nullcontext():
        array.set(..., 2, threads=1)
    assert os.stat(tmp_path / "a").st_mtime > 1


@pytest.mark.parametrize("options", [{"fsync": True}, {"locks": False}], ids=str)
def test_other_stores_are_left_to_the_python_executor(
    tmp_path: Path, options: dict[str, bool], seen: Seen
) -> None:
    """Those of derived classes, too: see test_native_read.py."""
    store = LocalStore(tmp_path / "a", **options)
    array = xzarr3.create_array(store, shape=16, chunks=2, dtype="int8", compressors=None)
    array[...] = np.arange(16)
    assert seen.rows == 0
    assert (tmp_path / "a" / "c" / "1").read_bytes() == b"\2\3"


def test_a_trace_counts_what_is_written(tmp_path: Path, seen: Seen) -> None:
    array = xzarr3.create_array(tmp_path / "a", shape=16, chunks=2, dtype="int8", compressors=None)
    with xzarr3.trace() as trace:
        array[...] = np.arange(1, 17)
    assert seen.rows == 8
    found = trace.arrays["/"]
    assert [found[name] for name in ("requests", "put", "chunks_encoded", "bytes_written")] == [8, 8, 8, 16]


def test_a_thread_takes_large_chunks_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C is heard after each of them."""
    array = xzarr3.create_array(tmp_path / "a", shape=(8, 2**20), chunks=(1, 2**20), dtype="int8")
    taken = []
    original = native.Call.do

    def do(self: native.Call, name: str, job: list[int]) -> None:
        taken.append(self.run)
        original(self, name, job)

    monkeypatch.setattr(native.Call, "do", do)
    array.set(..., np.ones((8, 2**20), "int8"), threads=1)
    assert taken == [1]


# Faults


def _array(base: Path, **options: Any) -> xzarr3.Array:
    options = {"shape": (8, 8), "chunks": (2, 2), "dtype": "int32", "compressors": None} | options
    return xzarr3.create_array(base / "store", **options)


def _prepared(base: Path) -> None:
    _array(base)[...] = 1


def _leftovers(base: Path) -> list[str]:
    return [name for _, _, names in os.walk(base) for name in names if name.endswith(LOCK)]


@unprivileged(_prepared)
def test_a_directory_without_permission(base: Path) -> None:
    folder = base / "store" / "c" / "1"
    folder.chmod(0o555)
    array = xzarr3.open_array(base / "store", mode="r+")
    with pytest.raises(StorePermissionError):
        array[...] = 2
    with pytest.raises(StorePermissionError):
        array[2, 1] = 2
    found = array[...]
    assert np.all(found[2:4] == 1)
    assert np.all((found == 1) | (found == 2))
    folder.parent.chmod(0o000)
    with pytest.raises(StorePermissionError):
        array[0, 1] = 3
    folder.parent.chmod(0o755)
    folder.chmod(0o755)
    array[...] = 3
    assert np.all(array[...] == 3)
    assert _leftovers(base) == []


@unprivileged(_prepared)
def test_a_directory_in_the_place_of_a_chunk(base: Path) -> None:
    (base / "store" / "c" / "2" / "2").unlink()
    (base / "store" / "c" / "2" / "2").mkdir()
    array = xzarr3.open_array(base / "store", mode="r+")
    with pytest.raises(StoreError, match="cannot write key 'c/2/2'"):
        array[...] = 2
    assert _leftovers(base) == []


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"chunks": (2, 2), "shards": (4, 8)}], ids=str)
def test_a_full_disk_keeps_old_values(options: dict[str, Any]) -> None:
    def work(base: Path) -> None:
        array = _array(base, shape=(512, 512), **{"chunks": (256, 256)} | options)
        array[...] = 1
        before = contents(base / "store")
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (60, hard))
        with pytest.raises(StoreError, match="File too large"):
            array[...] = 2
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert contents(base / "store") == before

    run_unprivileged(work).checked()


def test_a_process_with_few_descriptors(tmp_path: Path) -> None:
    def work() -> None:
        array = xzarr3.create_array(tmp_path / "a", shape=(100, 4), chunks=(1, 2), dtype="int8")
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_files() + 12, hard))
        array[...] = 5
        assert np.all(array[...] == 5)

    run_child(work).checked()
    assert np.all(xzarr3.open_array(tmp_path / "a")[...] == 5)


@pytest.mark.parametrize("target", ["../../outside", "{base}/outside", "../../outside/missing"])
@pytest.mark.parametrize("place", ["c", "c/1"])
def test_a_link_out_of_the_store_is_refused(target: str, place: str) -> None:
    def prepare(base: Path) -> None:
        _prepared(base)
        (base / "store" / place).rename(base / "store" / "gone")
        (base / "store" / place).symlink_to(target.format(base=base))

    def work(base: Path) -> None:
        array = xzarr3.open_array(base / "store", mode="r+")
        with pytest.raises(InvalidKeyError, match="leads out"):
            array[...] = 2
        with pytest.raises(InvalidKeyError, match="leads out"):
            array[2:4, :] = 2

    run_unprivileged(work, prepare=prepare).checked()


@unprivileged(_prepared)
def test_a_link_within_the_store_is_followed_and_one_in_the_place_of_a_chunk_replaced(base: Path) -> None:
    outside, chunk = base / "outside" / "deep" / "data.bin", base / "store" / "c" / "2" / "1"
    chunk.unlink()
    chunk.symlink_to(outside)
    (base / "store" / "c" / "1").rename(base / "store" / "other")
    (base / "store" / "c" / "1").symlink_to("../other")
    array = xzarr3.open_array(base / "store", mode="r+")
    array[...] = 2
    assert (base / "store" / "other" / "0").read_bytes() == np.full(4, 2, "int32").tobytes()
    assert not chunk.is_symlink()
    assert outside.read_bytes() == bytes(range(256))


def check_killed(write: Callable[[int], object], check: Callable[[], object]) -> None:
    """Kill a process that writes one value after the other, some times, and look at what it leaves."""

    def write_on() -> None:
        for value in range(2, 10**9):
            write(value)
            Process.say()

    for _ in range(4):
        with processes(write_on) as (child,):
            assert child.hear()
        check()


@pytest.mark.parametrize("shards", [None, (64, 64)])
def test_a_killed_writer_leaves_old_or_new_chunks(tmp_path: Path, shards: Any) -> None:
    options: dict[str, Any] = {"chunks": (32, 32), "shards": shards, "dtype": "int64", "compressors": None}
    array = xzarr3.create_array(tmp_path / "a", shape=(256, 256), **options)
    array[...] = 1

    def check() -> None:
        found = array[...].reshape(8, 32, 8, 32).swapaxes(1, 2).reshape(64, -1)
        assert np.all(found == found[:, :1])
        assert found.min() >= 1

    check_killed(lambda value: array.set(..., value, threads=1), check)


# Parts of chunks

FEW_AND_MANY = pytest.mark.parametrize("region", [np.s_[1:3, 5:12], np.s_[1:, 3:4]], ids=["few", "many"])


@FEW_AND_MANY
@pytest.mark.parametrize("codecs", slow_but([*CODECS], "none", "zstd-crc32c"))
def test_parts_are_written_by_native_code(
    tmp_path: Path, codecs: str, region: tuple[slice, ...], seen: Seen
) -> None:
    values = np.arange(400, dtype="uint16").reshape(20, 20)

    rows = []

    def write(array: xzarr3.Array) -> None:
        array.set(..., values, threads=1)
        before = seen.rows
        array.set(region, values[region] + 7, threads=1)
        rows.append(seen.rows - before)

    both(tmp_path, write, shape=(20, 20), chunks=(2, 5), dtype="uint16", compressors=CODECS[codecs])
    with python_executor():
        found = xzarr3.open_array(tmp_path / "native")[...]
    values[region] += 7
    assert np.array_equal(found, values)
    assert ([number > 0 for number in rows], seen.left) == ([codecs not in BY_PYTHON, False], 0)


@FEW_AND_MANY
def test_parts_that_are_not_there_are_not_made(tmp_path: Path, region: tuple[slice, ...], seen: Seen) -> None:
    def write(array: xzarr3.Array) -> None:
        array.set(region, 0)
        array[0, 0] = 1
        array.set(region, 0)

    files = both(tmp_path, write, shape=(20, 20), chunks=(2, 5), dtype="uint16")
    assert [name for name in files if name.startswith("c")] == ["c", "c/0", "c/0/0"]
    assert seen.rows > 0


@FEW_AND_MANY
def test_parts_that_leave_the_fill_value_erase_their_chunks(
    tmp_path: Path, region: tuple[slice, ...], seen: Seen
) -> None:
    def write(array: xzarr3.Array) -> None:
        array.set(region, 3)
        array.set(region, 0)

    files = both(tmp_path, write, shape=(20, 20), chunks=(2, 5), dtype="uint16")
    assert [name for name, content in files.items() if content is not None] == ["zarr.json"]
    assert seen.left > 0


@FEW_AND_MANY
@pytest.mark.parametrize("damage", [b"", b"x" * 20, b"x" * 10**6])
def test_parts_of_damaged_chunks_are_refused(
    tmp_path: Path, damage: bytes, region: tuple[slice, ...], seen: Seen
) -> None:
    array = xzarr3.create_array(tmp_path / "a", shape=(20, 20), chunks=(2, 5), dtype="int64")
    array[...] = 1
    seen.rows = 0
    for chunk in (tmp_path / "a" / "c").glob("*/*"):
        chunk.write_bytes(damage)
    before = contents(tmp_path / "a")
    with pytest.raises(ChunkDecodeError):
        array.set(region, 2)
    assert contents(tmp_path / "a") == before
    assert seen.rows > 0


def test_parts_count_as_reads_and_writes_in_a_trace(tmp_path: Path, seen: Seen) -> None:
    array = xzarr3.create_array(tmp_path / "a", data=np.arange(40), chunks=4)
    seen.rows = 0
    with xzarr3.trace() as trace:
        array[1:39] = 7
    found = trace.arrays["/"]
    assert (seen.rows, found["get"], found["put"]) == (8, 2, 10)
    assert (array[0], array[39]) == (0, 39)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_killed_writer_of_parts_leaves_old_or_new_chunks(tmp_path: Path, codec: str) -> None:
    array = xzarr3.create_array(
        tmp_path / "a", shape=(256, 64), chunks=(32, 32), dtype="int64", compressors=CODECS[codec]
    )
    array[...] = 1

    def write(value: int) -> None:
        array.set((slice(None), slice(8, 24)), value, threads=1)
        array.set((slice(40, 50), slice(40, 48)), value, threads=1)

    def check() -> None:
        found = array[...]
        many = found[:, 8:24].reshape(8, -1)
        assert np.all(many == many[:, :1])
        assert np.all(found[40:50, 40:48] == found[40, 40])
        assert min(many.min(), found[40, 40]) >= 1
        found[:, 8:24] = found[40:50, 40:48] = 1
        assert np.all(found == 1)

    check_killed(write, check)


def test_parts_by_native_code_and_by_python_at_once(tmp_path: Path) -> None:
    """Two processes change parts of the same chunks; the lock files of either way keep the other out."""
    array = xzarr3.create_array(tmp_path / "a", shape=(20, 4), chunks=(2, 4), dtype="int32")
    array[...] = 1

    def python() -> None:
        native.switch.is_on = False
        for value in range(2, 150):
            array[:, 1:2] = value
            array[3, 1] = value

    def code() -> None:
        for value in range(2, 300):
            array[:, 2:3] = -value
            array[3, 2] = -value

    run_processes(python, code)
    assert array[...].tolist() == [[1, 149, -299, 1]] * 20


# Locks


def test_locks_held_by_others_are_not_waited_for() -> None:
    store = object()
    ready, done = threading.Event(), threading.Event()

    def hold() -> None:
        with key_lock(store, "b"):
            ready.set()
            done.wait(60)

    with ThreadPoolExecutor(1) as pool:
        holder = pool.submit(hold)
        ready.wait()
        with free_key_locks(store, ["a", "b", "c"]) as held:
            assert held == [True, False, True]
            with key_lock(store, "a"):
                pass
        done.set()
        holder.result()
    with free_key_locks(store, ["a", "b", "c"]) as held:
        assert held == [True, True, True]


def test_key_lock_is_forgotten_unless_it_is_used() -> None:
    store = object()
    used = key_lock(store, "used")
    for number in range(3 * locks._MANY):
        key_lock(store, str(number))
    assert len(locks._locks) <= locks._MANY
    assert key_lock(store, "used") is used


def test_a_chunk_that_another_thread_changes_is_written_afterwards(
    tmp_path: Path, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = xzarr3.create_array(tmp_path / "a", shape=16, chunks=2, dtype="int8", compressors=None)
    array[...] = 1
    seen.rows = 0
    has_read, is_left = threading.Event(), threading.Event()
    original = native_write.NativeWrite.run

    def write(self: Any, threads: int) -> Any:
        left = original(self, threads)
        is_left.set()
        return left

    monkeypatch.setattr(native_write.NativeWrite, "run", write)

    def change(stored: Any) -> list[bytes]:
        has_read.set()
        is_left.wait()
        return [b"\7" + bytes(stored)[1:]]

    thread = threading.Thread(target=lambda: update(array.store, "c/3", change))
    thread.start()
    has_read.wait()
    array[...] = 2
    thread.join()
    assert (seen.rows, seen.left) == (8, 1)
    assert np.all(array[...] == 2)


def test_changes_of_parts_beside_whole_writes(tmp_path: Path) -> None:
    array = xzarr3.create_array(tmp_path / "a", shape=(12, 8), chunks=(3, 4), dtype="int32")
    array[...] = 1
    barrier = threading.Barrier(2)

    def work(selection: Any, sign: int) -> None:
        barrier.wait()
        for number in range(2, 60):
            array.set(selection, sign * number)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, ((slice(None, None, 3), 0), ...), (-1, 1)))
    found = array[...]
    assert np.isin(found[::3, 0], (59, -59)).all()
    found[::3, 0] = 59
    assert np.all(found == 59)


@pytest.mark.parametrize(
    ("zarr_format", "separator", "ndim"),
    [(3, "/", 1), (3, ".", 2), (3, "/", 3), (2, ".", 1), (2, "/", 2), (2, ".", 3), ("3-draft", "/", 2)],
)
def test_keys_are_those_of_the_python_executor(
    tmp_path: Path, zarr_format: Any, separator: str, ndim: int
) -> None:
    values = np.arange(1, 1 + 4**ndim, dtype="int16").reshape((4,) * ndim)
    options: dict[str, Any] = {"shape": values.shape, "chunks": (1,) * ndim, "dtype": "int16"}
    if zarr_format != "3-draft":  # It has but one way, of keys such as c0/1.
        encoding = {"name": "v2" if zarr_format == 2 else "default", "separator": separator}
        options["chunk_key_encoding"] = encoding
    keys = []
    for executor in (contextlib.nullcontext, python_executor):
        with executor():
            group = xzarr3.create_group(tmp_path / executor.__name__, zarr_format=zarr_format)
            array = group.create_array("a", **options)
            array[...] = values
            assert np.array_equal(array[...], values)
            keys.append(sorted(array.store.list()))
    assert keys[0] == keys[1]
