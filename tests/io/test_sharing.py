"""What threads, stores, codecs and processes share is not mixed up, and nobody waits for ever.

Indexes of shards are read once, and never believed when the shard is another one.
"""

import json
import os
import resource
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _chains import Unchanged, registered
from _conformance import contents
from _kinds import Four
from _processes import printed_by
from _things import refused, refuses
from _unprivileged import run_child

import xzarr3
from xzarr3 import ChunkDecodeError, LocalStore, MemoryStore, Store
from xzarr3._types import Buffer, ByteRange
from xzarr3.codecs import ShardingCodec
from xzarr3.codecs.sharding import Shard
from xzarr3.io import shards
from xzarr3.parallel import cores
from xzarr3.stores.local import files
from xzarr3.stores.locks import key_lock

TOO_LONG = 30.0  # Seconds after which a thread hangs.
OLD = np.arange(64, dtype="int32").reshape(8, 8)


def finish(*works: Callable[[], Any]) -> list[Any]:
    """What functions return that run at the same time, each in a thread of its own."""
    with ThreadPoolExecutor(len(works)) as pool:
        return [future.result(TOO_LONG) for future in [pool.submit(work) for work in works]]


def test_a_read_in_every_thread_of_the_pool_that_asks_for_more_threads() -> None:
    data = np.random.default_rng(0).random((64, 4096))
    array = xzarr3.create_array(MemoryStore(), data=data, chunks=(1, 4096))

    def read() -> bool:
        return np.array_equal(array.get(threads=4), data)

    futures = [cores.get().submit(read) for _ in range(8)]
    assert [future.result(TOO_LONG) for future in futures] == [True] * 8


@pytest.mark.slow
def test_an_array_is_read_while_the_interpreter_shuts_down(tmp_path: Path) -> None:
    code = f"""
import atexit, numpy as np, xzarr3
array = xzarr3.create_array({str(tmp_path / "a")!r}, data=np.ones(2**20), chunks=2**14)
array[...]
atexit.register(lambda: print(array.get(threads=2).sum()))
"""
    assert [float(line) for line in printed_by(code)] == [2**20]


def test_few_values_that_change_many_chunks_are_shared_out() -> None:
    both = threading.Barrier(2)

    class Meeting(MemoryStore):
        meets = False

        def get(self, key: str, byte_range: ByteRange | None = None) -> Buffer | None:
            if self.meets and "c/" in key:
                both.wait(TOO_LONG)
                self.meets = False
            return super().get(key, byte_range)

    store = Meeting()
    array = xzarr3.create_array(store, data=np.ones(2**21, "float32"), chunks=2**14)
    store.meets = True
    array.set(slice(None, None, 2**14), 2.0, threads=2)
    assert not store.meets, "two threads asked for a value at once"


def test_a_read_or_write_takes_threads_where_they_pay() -> None:
    def number(selection: Any, store: Store | None = None, writes: bool = False, **options: Any) -> int:
        data = np.ones((64, 2**14), "f4")  # Chunks of 64 KiB.
        array = xzarr3.create_array(store or MemoryStore(), data=data, chunks=(1, 2**14), **options)
        return array.engine.threads(array.plan(selection), 4, writes=writes)

    assert number(...) == 4
    assert number(slice(3)) == 1, "little to decode"
    assert number(slice(3), writes=True) == 3, "encoding takes longer"
    assert number(slice(3), writes=True, compressors=None) == 1, "nothing to encode"
    assert number(..., compressors=None) == 1, "nothing to decode"
    slow = MemoryStore().with_traits(request_bytes=2**20)
    assert number(..., slow, compressors=None) == 4, "answers take long"
    assert number(..., shards=(64, 2**14)) == 1, "a shard belongs to one thread"


def test_numbers_of_threads_that_are_none() -> None:
    array = xzarr3.create_array(MemoryStore(), data=np.arange(4), chunks=2)
    words = "accepted: None or an integer of at least 1"
    for threads in (0, -1, "2", 1.5):
        calls = (partial(call, threads=threads) for call in (array.get, array.explain))
        refused(ValueError, words, *calls, partial(array.set, ..., 1, threads=threads))


class Forwarding(MemoryStore):
    other: xzarr3.Array | None = None

    def put(self, key: str, pieces: Sequence[Buffer]) -> None:  # type: ignore[override]
        super().put(key, pieces)
        if self.other is not None and "c/" in key:
            number = int(key.rpartition("/")[2])
            self.other[number * 2] = number


def test_stores_that_write_to_another_array_do_not_wait_for_each_other() -> None:
    number = 200

    def make() -> Callable[[], Any]:
        store = Forwarding()
        array = xzarr3.create_array(store, data=np.zeros(number * 2), chunks=2)
        other = store.other = xzarr3.create_array(MemoryStore(), data=np.zeros(number * 2), chunks=2)

        def work() -> Any:
            for at in np.random.default_rng(id(store) % 2**32).permutation(number).tolist():
                array[at * 2] = at + 1
            return array[::2] - 1, other[::2]

        return work

    for each in finish(*(make() for _ in range(4))):
        for found in each:
            assert np.array_equal(found, np.arange(number))


def test_a_forked_child_writes_while_its_parent_holds_the_lock_of_the_same_chunk() -> None:
    array = xzarr3.create_array(MemoryStore(), data=np.zeros(4), chunks=4)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with key_lock(array.engine.store_identity, "c/0"):
            held.set()
            done.wait(TOO_LONG)

    def child() -> float:
        array[1] = 5
        return float(array[1])

    with ThreadPoolExecutor(1) as pool:
        pool.submit(hold)
        held.wait(TOO_LONG)
        try:
            assert run_child(child).checked() == 5
        finally:
            done.set()


def test_a_codec_may_read_another_array(tmp_path: Path) -> None:
    inner = xzarr3.create_array(tmp_path / "inner", data=np.arange(2000), chunks=100)

    @dataclass(frozen=True)
    class Reading(Unchanged):
        name = "test-reading"

        def decode(self, data: Buffer, limit: int) -> Buffer:
            assert inner[:].sum() == 1999000
            return data

    data = np.arange(64, dtype="int32").reshape(8, 8)
    options: dict[str, Any] = {"chunks": (2, 2), "compressors": Reading()}
    with registered(Reading):
        for shards in (None, (4, 4)):
            array = xzarr3.create_array(tmp_path / f"a{shards}", data=data, shards=shards, **options)
            assert np.array_equal(array[...], data)
            array[1:7, 1:7] = -1
            assert array[...].sum() == data.sum() - data[1:7, 1:7].sum() - 36


@pytest.mark.parametrize("length", [0, 15, 17, 32])
def test_a_chunk_of_another_size_is_refused_where_the_store_tells_none(length: int) -> None:
    made = xzarr3.create_array(MemoryStore(), data=np.arange(8, dtype="u2"), chunks=8, compressors=None)
    array = xzarr3.open_array(Four({**contents(made.store), "c/0": bytes(length)}))
    refuses(array.get, (..., slice(None, None, 2)), ChunkDecodeError, r"key 'c/0'.*expected 16")


@pytest.mark.parametrize("options", [{}, {"shards": 16}])
def test_a_value_that_no_chunk_can_need_is_not_read(options: dict[str, Any], tmp_path: Path) -> None:
    array = xzarr3.create_array(tmp_path / "a", data=np.arange(32), chunks=8, **options)
    with (tmp_path / "a" / "c" / "0").open("r+b") as file:
        file.truncate(2**40)  # Bytes, of which the disk holds hardly any.
    match = r"key 'c/0'.*(at most \d+ bytes expected|index is not valid)"
    set_part, cut = partial(array.set, slice(1, 3), 1), partial(array.resize, 5)
    refused(ChunkDecodeError, match, lambda: array[...], set_part, cut)
    xzarr3.open_array(tmp_path / "a")
    # Nor is a chunk beyond what a file can hold.
    shape, path = (2**62, 2**62), tmp_path / "b"
    array = xzarr3.create_array(path, shape=shape, chunks=shape, dtype="f8", compressors=None)
    assert array[5, 5] == 0
    (path / "c" / "0").mkdir(parents=True)
    (path / "c" / "0" / "0").write_bytes(b"short")
    refuses(array.get, [(5, 5)], ChunkDecodeError, "found 5 bytes")


def test_shards_and_blocks_of_n5_are_not_compressed_once_more() -> None:
    for serializer in (ShardingCodec((4,)), "n5_default"):
        array = xzarr3.create_array(MemoryStore(), data=np.arange(64), chunks=16, serializer=serializer)
        assert (len(array.metadata.codecs), array[5]) == (1, 5)


def leave_descriptors(number: int) -> None:
    """This process may open so many files more."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = max(int(name.name) for name in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened + number, hard))


def test_many_writers_get_by_with_few_descriptors(tmp_path: Path) -> None:
    def work() -> float:
        leave_descriptors(150)
        array = xzarr3.create_array(tmp_path / "a", shape=(400, 4), chunks=(1, 4), dtype="int32")

        def write(at: int) -> Callable[[], None]:
            return lambda: array.set(slice(at, at + 25), at + 1, threads=1)

        finish(*(write(at) for at in range(0, 400, 25)))
        return float(array[...].sum())

    assert run_child(work).checked() == sum(4 * 25 * (at + 1) for at in range(0, 400, 25))


def test_a_writer_gets_by_with_few_descriptors(tmp_path: Path) -> None:
    def work() -> int:
        store = LocalStore(tmp_path / "s")
        store.set("start", b"")
        leave_descriptors(4)
        for at in range(20):
            store.set(f"a/b/{at}/d/e/f", b"2")
        leave_descriptors(200)
        return sum(1 for _ in store.list())

    assert run_child(work).checked() == 21


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch, python_executor: None) -> list[int]:
    """The sizes of the indexes that are decoded, with an empty cache that takes shards of any age.

    Native code reads the index each time.
    """
    found: list[int] = []
    decode = Shard.decode_index

    def counting(self: Shard, data: Any) -> Any:
        found.append(len(data))
        return decode(self, data)

    monkeypatch.setattr(Shard, "decode_index", counting)
    monkeypatch.setattr(shards, "_indexes", shards._Indexes())
    monkeypatch.setattr(files, "_SETTLED", 0)
    return found


def sharded(path: Path, data: Any = OLD) -> xzarr3.Array:
    xzarr3.create_array(path, data=data, chunks=(2, 2), shards=(8, 8), overwrite=True)
    return xzarr3.open_array(path)


def test_a_shard_changed_just_now_is_looked_at_again(tmp_path: Path, decoded: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(files, "_SETTLED", 3600 * 10**9)
    array = sharded(tmp_path / "a")
    decoded.clear()
    assert [array[3, 5] for _ in range(3)] == [29] * 3
    assert len(decoded) == 3


@pytest.mark.parametrize("how", ["this library", "replaced", "in place", "in place, times put back"])
def test_a_changed_shard_is_seen(how: str, tmp_path: Path, decoded: list[int]) -> None:
    array = sharded(tmp_path / "a")
    # The values compress to other sizes, so that an old index would lead to the wrong bytes.
    new = np.where(OLD % 2 == 0, 7, OLD * 1_000_003).astype("int32")
    sharded(tmp_path / "b", new)
    assert array[3, 5] == 29
    place, other = (tmp_path / name / "c" / "0" / "0" for name in "ab")
    times = place.stat()
    if how == "this library":
        xzarr3.open_array(tmp_path / "a", mode="r+")[...] = new
    elif how == "replaced":
        os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
        os.replace(other, place)
    else:
        place.write_bytes(other.read_bytes())
        if how.endswith("back"):
            os.utime(place, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert array[3, 5] == new[3, 5]
    for at in np.ndindex(8, 8):
        assert array[at] == new[at]


def test_what_is_kept_is_bounded(tmp_path: Path, decoded: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "MOST_KEPT", 4000)  # Bytes: three indexes and their overhead.
    data = np.arange(10 * 64, dtype="int32").reshape(80, 8)
    array = sharded(tmp_path / "a", data)
    for _ in range(2):
        for row in range(0, 80, 8):
            assert array[row, 0] == data[row, 0]
    assert shards._indexes._size <= 4000
    assert len(shards._indexes._kept) == 3
    decoded.clear()
    assert (array[72, 0], len(decoded)) == (data[72, 0], 0)
    assert (array[0, 0], len(decoded)) == (data[0, 0], 1)


def test_an_index_that_is_wrong_is_not_kept(tmp_path: Path, decoded: list[int]) -> None:
    array = sharded(tmp_path / "a")
    place = tmp_path / "a" / "c" / "0" / "0"
    content = place.read_bytes()
    place.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    refuses(array.get, [(3, 5), (3, 5)], ChunkDecodeError, "shard index")
    place.write_bytes(content)
    assert array[3, 5] == 29


def test_threads_share_what_is_kept(tmp_path: Path, decoded: list[int]) -> None:
    data = np.arange(40 * 64, dtype="int32").reshape(320, 8)
    array = sharded(tmp_path / "a", data)

    def look(seed: int) -> bool:
        rows = np.random.default_rng(seed).integers(0, 320, 200).tolist()
        return all(array[row, 3] == data[row, 3] for row in rows)

    assert finish(*(lambda seed=seed: look(seed) for seed in range(6))) == [True] * 6
    assert len(shards._indexes._kept) == 40


def test_an_index_is_not_taken_for_that_of_another_layout(tmp_path: Path, decoded: list[int]) -> None:
    """A document may describe the same shard in another way; its index then has another shape."""
    data = np.arange(48, dtype="int32").reshape(4, 12)
    xzarr3.create_array(tmp_path / "a", data=data, chunks=(2, 2), shards=(4, 12), compressors=None)
    right = (tmp_path / "a" / "zarr.json").read_text()
    wrong = json.loads(right)
    wrong["shape"] = wrong["chunk_grid"]["configuration"]["chunk_shape"] = [12, 4]
    (tmp_path / "a" / "zarr.json").write_text(json.dumps(wrong))
    assert xzarr3.open_array(tmp_path / "a")[:2, :2].shape == (2, 2)
    (tmp_path / "a" / "zarr.json").write_text(right)
    assert np.array_equal(xzarr3.open_array(tmp_path / "a")[2:4, 4:6], data[2:4, 4:6])


def test_a_forked_child_reads_while_its_parent_looks_into_the_cache(tmp_path: Path, decoded: Any) -> None:
    array = sharded(tmp_path / "a")
    with shards._indexes._lock:
        assert run_child(lambda: int(array[3, 5])).checked() == 29
