"""What threads, stores, codecs and processes share is not mixed up, and nobody waits for ever."""

from __future__ import annotations

import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from _conformance import contents
from _kinds import Four
from _unprivileged import run_child

import xzarr3
from xzarr3 import ChunkDecodeError, LocalStore, MemoryStore, Store, extensions
from xzarr3._types import Buffer, ByteRange
from xzarr3.codecs import BytesBytesCodec, ShardingCodec, register_codec, registry
from xzarr3.parallel import cores
from xzarr3.stores.locks import key_lock

TOO_LONG = 30.0  # Seconds after which a thread hangs.


def finish(*works: Callable[[], Any]) -> list[Any]:
    """What functions return that run at the same time, each in a thread of its own."""
    with ThreadPoolExecutor(len(works)) as pool:
        return [future.result(TOO_LONG) for future in [pool.submit(work) for work in works]]


@pytest.fixture
def codec() -> Iterator[Callable[[type[BytesBytesCodec]], None]]:
    """Registers a codec for one test."""
    names: list[str] = []

    def register(cls: type[BytesBytesCodec]) -> None:
        register_codec(cls)
        names.append(cls.name)

    yield register
    for name in names:
        registry._registered.pop(name, None)
    extensions.forget()


# Threads


def test_a_read_in_every_thread_of_the_pool_that_asks_for_more_threads() -> None:
    data = np.random.default_rng(0).random((64, 4096))
    array = xzarr3.create_array(MemoryStore(), data=data, chunks=(1, 4096))

    def read() -> bool:
        return np.array_equal(array.get(threads=4), data)

    futures = [cores.get().submit(read) for _ in range(8)]
    assert [future.result(TOO_LONG) for future in futures] == [True] * 8


@pytest.mark.slow
def test_an_array_is_read_while_the_interpreter_shuts_down(tmp_path: Path) -> None:
    code = (
        "import atexit, numpy as np, xzarr3\n"
        f"array = xzarr3.create_array({str(tmp_path / 'a')!r}, data=np.ones(2**20), chunks=2**14)\n"
        "array[...]\n"
        "atexit.register(lambda: print(array.get(threads=2).sum()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert float(done.stdout) == 2**20


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


# Locks


class Forwarding(MemoryStore):
    """Stores what it gets in another array as well."""

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
        store.other = xzarr3.create_array(MemoryStore(), data=np.zeros(number * 2), chunks=2)

        def work() -> Any:
            for at in np.random.default_rng(id(store) % 2**32).permutation(number).tolist():
                array[at * 2] = at + 1
            return array[::2] - 1, store.other[::2] if store.other is not None else None

        return work

    for written, forwarded in finish(*(make() for _ in range(4))):
        assert np.array_equal(written, np.arange(number))
        assert np.array_equal(forwarded, np.arange(number))


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


# Memory


def test_a_codec_may_read_another_array(codec: Callable[[Any], None], tmp_path: Path) -> None:
    inner = xzarr3.create_array(tmp_path / "inner", data=np.arange(2000), chunks=100)

    @dataclass(frozen=True)
    class Reading(BytesBytesCodec):
        name = "test-reading"

        @classmethod
        def from_configuration(cls, configuration: Mapping[str, Any]) -> Self:
            return cls()

        def encoded_size(self, size: int) -> int:
            return size

        def max_encoded_size(self, size: int) -> int:
            return size

        def encode(self, data: Buffer) -> Buffer:
            return bytes(data)

        def decode(self, data: Buffer, limit: int) -> Buffer:
            assert inner[:].sum() == 1999000
            return data

    codec(Reading)
    data = np.arange(64, dtype="int32").reshape(8, 8)
    for shards in (None, (4, 4)):
        array = xzarr3.create_array(
            tmp_path / f"a{shards}", data=data, chunks=(2, 2), shards=shards, compressors=Reading()
        )
        assert np.array_equal(array[...], data)
        array[1:7, 1:7] = -1
        assert array[...].sum() == data.sum() - data[1:7, 1:7].sum() - 36


# Stores and what they hold


@pytest.mark.parametrize("length", [0, 15, 17, 32])
def test_a_chunk_of_another_size_is_refused_where_the_store_tells_none(length: int) -> None:
    made = xzarr3.create_array(MemoryStore(), data=np.arange(8, dtype="u2"), chunks=8, compressors=None)
    array = xzarr3.open_array(Four({**contents(made.store), "c/0": bytes(length)}))
    for selection in (..., slice(None, None, 2)):
        with pytest.raises(ChunkDecodeError, match=r"key 'c/0'.*expected 16"):
            array[selection]


@pytest.mark.parametrize("options", [{}, {"shards": 16}])
def test_a_value_that_no_chunk_can_need_is_not_read(options: dict[str, Any], tmp_path: Path) -> None:
    array = xzarr3.create_array(tmp_path / "a", data=np.arange(32), chunks=8, **options)
    place = tmp_path / "a" / "c" / "0"
    with place.open("r+b") as file:
        file.truncate(2**40)  # Bytes, of which the disk holds hardly any.
    for call in (lambda: array[...], lambda: array.set(slice(1, 3), 1), lambda: array.resize(5)):
        with pytest.raises(
            ChunkDecodeError, match=r"key 'c/0'.*(at most \d+ bytes expected|index is not valid)"
        ):
            call()
    xzarr3.open_array(tmp_path / "a")


# Descriptors


def test_many_writers_get_by_with_few_descriptors(tmp_path: Path) -> None:
    def work() -> float:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        taken = max(int(name.name) for name in Path("/proc/self/fd").iterdir())
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken + 150, hard))
        array = xzarr3.create_array(tmp_path / "a", shape=(400, 4), chunks=(1, 4), dtype="int32")
        step = 25

        def write(at: int) -> Callable[[], None]:
            return lambda: array.set(slice(at, at + step), at + 1, threads=1)

        finish(*(write(at) for at in range(0, 400, step)))
        return float(array[...].sum())

    assert run_child(work).checked() == sum(4 * 25 * (at + 1) for at in range(0, 400, 25))


def test_a_writer_gets_by_with_few_descriptors(tmp_path: Path) -> None:
    def work() -> int:
        store = LocalStore(tmp_path / "s")
        store.set("start", b"")
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        opened = max(int(name.name) for name in Path("/proc/self/fd").iterdir())
        resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 4, hard))
        for at in range(20):
            store.set(f"a/b/{at}/d/e/f", b"2")
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        return sum(1 for _ in store.list())

    assert run_child(work).checked() == 21


# What is read into


def test_chunks_beyond_what_a_file_can_hold(tmp_path: Path) -> None:
    array = xzarr3.create_array(
        tmp_path / "a", shape=(2**62, 2**62), chunks=(2**62, 2**62), dtype="float64", compressors=None
    )
    assert array[5, 5] == 0
    (tmp_path / "a" / "c" / "0").mkdir(parents=True)
    (tmp_path / "a" / "c" / "0" / "0").write_bytes(b"short")
    with pytest.raises(ChunkDecodeError, match="found 5 bytes"):
        array[5, 5]


def test_a_read_takes_threads_where_they_pay() -> None:
    def number(selection: Any, store: Store | None = None, **options: Any) -> int:
        data = np.ones((64, 2**14), "f4")  # Chunks of 64 KiB.
        array = xzarr3.create_array(store or MemoryStore(), data=data, chunks=(1, 2**14), **options)
        return array.engine.threads(array.plan(selection), 4)

    assert number(...) == 4
    assert number(slice(3)) == 1, "little to decode"
    assert number(..., compressors=None) == 1, "nothing to decode"
    slow = MemoryStore().with_traits(request_bytes=2**20)
    assert number(..., slow, compressors=None) == 4, "answers take long"
    assert number(..., shards=(64, 2**14)) == 1, "a shard belongs to one thread"


@pytest.mark.parametrize("threads", [0, -1, "2", 1.5])
def test_numbers_of_threads_that_are_none(threads: Any) -> None:
    array = xzarr3.create_array(MemoryStore(), data=np.arange(4), chunks=2)
    calls = (lambda: array.get(threads=threads), lambda: array.set(..., 1, threads=threads))
    for call in (*calls, lambda: array.explain(threads=threads)):
        with pytest.raises(ValueError, match="accepted: None or an integer of at least 1"):
            call()


@pytest.mark.parametrize("serializer", [ShardingCodec((4,)), "n5_default"], ids=str)
def test_shards_and_blocks_of_n5_are_not_compressed_once_more(serializer: Any) -> None:
    array = xzarr3.create_array(MemoryStore(), data=np.arange(64), chunks=16, serializer=serializer)
    assert len(array.metadata.codecs) == 1
    assert array[5] == 5
