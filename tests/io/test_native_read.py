"""Native reads: the results and errors of the Python executor, and no access outside of their memory."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _native import INDEXES, Seen, grids, interrupt, python_executor, sharding, watching
from _slow import slow_but
from _unprivileged import run_child
from hypothesis import given
from hypothesis import strategies as st

import xzarr3
from xzarr3 import LocalStore
from xzarr3.codecs import Crc32cCodec
from xzarr3.io import native, native_read
from xzarr3.stores import BytesValue

pytestmark = pytest.mark.skipif(native.loaded() is None, reason="native code is absent, or turned off")

ZSTD = {"name": "zstd", "configuration": {"level": 3, "checksum": False}}
SHUFFLE = {"name": "numcodecs.shuffle"}
CODECS: dict[str, list[Any]] = {
    "none": [],
    "zstd": ["zstd"],
    "blosc": ["blosc"],
    "bitshuffled": [
        {"name": "blosc", "configuration": {"cname": "zstd", "clevel": 3, "shuffle": "bitshuffle"}}
    ],
    "gzip": ["gzip"],
    "crc32c": ["crc32c"],
    "zstd-crc32c": ["zstd", "crc32c"],
    "shuffle-gzip": [SHUFFLE, "gzip"],
    "shuffle-zstd": [SHUFFLE, "zstd"],
    "gzip-zstd-crc32c": ["gzip", "zstd", "crc32c"],
    "crc32c-zstd": ["crc32c", "zstd"],
    "shuffle-shuffle-crc32c-zstd": [SHUFFLE, SHUFFLE, "crc32c", "zstd"],
}
DTYPES = ("int8", "uint16", "int32", "float32", "float64", "complex64", "complex128", "datetime64[s]", "S3")


@pytest.fixture(scope="module", autouse=True)
def seen() -> Iterator[Seen]:
    with watching() as found:
        yield found


def outcome(array: xzarr3.Array, selection: Any) -> tuple[Any, ...]:
    """The bytes of a result, or the error in words, with what its cause and chunk are."""
    try:
        kind = array.vindex if isinstance(selection, list) else array.oindex
        found = kind[tuple(selection) if isinstance(selection, list) else selection]
    except xzarr3.Xzarr3Error as error:
        return type(error), str(error), type(error.__cause__)
    return found.shape, found.dtype, found.tobytes()


def orthogonal(values: np.ndarray[Any, Any], index: tuple[Any, ...]) -> np.ndarray[Any, Any]:
    """What ``oindex`` means: each dimension is selected from on its own."""
    for axis in reversed(range(values.ndim)):
        values = values[(slice(None),) * axis + (index[axis],)]
    return values


def both(array: xzarr3.Array, selection: Any) -> tuple[Any, ...]:
    """The outcome of native code, which is that of the Python executor."""
    found = outcome(array, selection)
    with python_executor():
        assert found == outcome(array, selection)
    return found


@st.composite
def arrays(draw: st.DrawFn) -> tuple[dict[str, Any], np.ndarray[Any, Any]]:
    """Options of an array, and its values."""
    shape, chunks, dtype, rng = draw(grids(DTYPES))
    values = rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    values[rng.random(shape) < draw(st.sampled_from((0, 0.5, 1)))] = 0
    options: dict[str, Any] = {
        "chunks": chunks,
        "compressors": CODECS[draw(st.sampled_from([*CODECS]))],
        "fill_value": draw(st.sampled_from((0, 1))) if dtype.kind in "iufc" else None,
    }
    if draw(st.booleans()):
        options["shards"] = tuple(n * draw(st.integers(1, 3)) for n in chunks)
    if draw(st.booleans()):
        order = draw(st.permutations(range(len(shape))))
        options["filters"] = [{"name": "transpose", "configuration": {"order": order}}]
        options.pop("shards", None)
    if draw(st.booleans()):
        options["serializer"] = {"name": "bytes", "configuration": {"endian": "big"}}
    return options, values.view(dtype).reshape(shape)


@st.composite
def selections(draw: st.DrawFn, shape: tuple[int, ...]) -> Any:
    if draw(st.integers(0, 3)) == 0:
        number = draw(st.integers(1, 9))
        each = [
            np.array(draw(st.lists(st.integers(0, n - 1), min_size=number, max_size=number))) for n in shape
        ]
        if len(shape) > 1 and draw(st.booleans()):
            at = draw(st.integers(0, len(shape) - 1))
            return [*each[:at], slice(None, None, draw(st.integers(1, 3))), *each[at + 1 :]]
        return each
    chosen: list[Any] = []
    by_indices = draw(st.booleans())
    for n in shape:
        if by_indices and draw(st.booleans()):
            chosen.append(np.array(draw(st.lists(st.integers(-n, n - 1), min_size=1, max_size=2 * n))))
            continue
        start, stop = draw(st.integers(-n, n)), draw(st.integers(-n, n))
        step = draw(st.sampled_from((1, 1, 2, 3, 7, -1, -2)))
        chosen.append(draw(st.sampled_from((slice(None), slice(start, stop, step), n - 1, -n))))
    return tuple(chosen)


@given(made=arrays(), data=st.data())
def test_results_are_those_of_the_python_executor(
    tmp_path_factory: pytest.TempPathFactory, made: Any, data: st.DataObject, seen: Seen
) -> None:
    options, values = made
    path = tmp_path_factory.mktemp("read") / "a.zarr"
    array = xzarr3.create_array(path, shape=values.shape, dtype=values.dtype, **options)
    # A part is written, so that some units are absent.
    half = tuple(slice(0, data.draw(st.integers(0, n))) for n in values.shape)
    array[half] = values[half]
    expected = np.full(values.shape, array.fill_value, values.dtype)
    expected[half] = values[half]
    before = seen.rows
    for _ in range(3):
        selection = data.draw(selections(values.shape))
        shape, _, found = both(array, selection)
        index = tuple(selection)
        if not isinstance(selection, list) or all(isinstance(each, np.ndarray) for each in index):
            wanted = expected[index] if isinstance(selection, list) else orthogonal(expected, index)
            assert (shape, found) == (wanted.shape, np.ascontiguousarray(wanted).tobytes())
        # Python takes many indices in small chunks, and a single inner chunk.
        is_python = any(isinstance(each, np.ndarray) for each in index) or array.oindex.plan(index).chunks < 2
        assert seen.rows > before or 0 in shape or is_python
        before = seen.rows


@pytest.mark.parametrize("options", [{}, {"shards": (4, 20, 20)}])
def test_arrays_of_indices_are_read_by_native_code(
    tmp_path: Path, options: dict[str, Any], seen: Seen
) -> None:
    values = np.arange(8 * 30 * 30, dtype="int32").reshape(8, 30, 30)
    array = xzarr3.create_array(tmp_path / "a", data=values, **{"chunks": (2, 10, 10), **options})
    some = np.array([7, 0, 0, 3, 4])
    for index in ((some,), (some, slice(None), slice(3, 25, 4)), (some, some + 9), (5, slice(None), some)):
        before, left = seen.rows, seen.left
        selection = index + (slice(None),) * (3 - len(index))
        assert both(array, selection)[2] == np.ascontiguousarray(orthogonal(values, selection)).tobytes()
        assert (seen.rows > before, seen.left) == (True, left)


@INDEXES
def test_indexes_at_the_start_and_without_a_checksum(
    tmp_path: Path, index_codecs: Any, at: str, seen: Seen
) -> None:
    values = np.arange(60, dtype="int16").reshape(6, 10)
    shard = sharding([2, 5], ZSTD, index_codecs=index_codecs, at=at)
    array = xzarr3.create_array(
        tmp_path / "a", data=values, chunks=(4, 5), compressors=None, serializer=shard
    )
    before, left = seen.rows, seen.left
    assert both(array, ...)[2] == values.tobytes()
    assert (seen.rows > before, seen.left) == (True, left)


def test_chunks_of_different_sizes(tmp_path: Path, seen: Seen) -> None:
    values = np.arange(13 * 11, dtype="float32").reshape(13, 11)
    array = xzarr3.create_array(tmp_path / "a", data=values, chunks=((3, 7, 3), (5, 1, 5)))
    before = seen.rows
    for selection in (..., (slice(2, 12, 3), slice(None, None, -2)), (4, slice(None))):
        assert both(array, selection)[2] == np.ascontiguousarray(values[selection]).tobytes()
    assert seen.rows == before + 9 + 6 + 3


@pytest.mark.parametrize("codecs", CODECS)
@pytest.mark.parametrize("shards", [None, (8, 20)], ids=["chunks", "shards"])
def test_all_units_are_read_by_native_code(tmp_path: Path, codecs: str, shards: Any, seen: Seen) -> None:
    values = np.random.default_rng(0).normal(size=(50, 40)).round(2).astype("float32")
    array = xzarr3.create_array(
        tmp_path / "a", data=values, chunks=(4, 10), shards=shards, compressors=CODECS[codecs]
    )
    before, left = seen.rows, seen.left
    for selection in (..., (slice(None, None, 3), slice(5, 37))):
        assert both(array, selection)[2] == np.ascontiguousarray(values[selection]).tobytes()
    assert seen.rows > before
    assert seen.left == left


def test_one_chunk_is_read_by_native_code_if_it_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: Seen
) -> None:
    monkeypatch.setattr(native_read, "FEW", 8)
    for size, rows in ((2**20, 1), (2**10, 0)):
        values = np.arange(size)
        array = xzarr3.create_array(tmp_path / f"{size}", data=values, chunks=size, compressors="zstd")
        before = seen.rows
        assert both(array, np.s_[1:])[2] == values[1:].tobytes()
        assert seen.rows == before + rows


@pytest.mark.parametrize("shards", [None, (8, 8)], ids=["chunks", "shards"])
@pytest.mark.parametrize("step", [2**63 - 1, 2**63, -(2**63), -(10**30)])
def test_a_step_that_exceeds_64_bits(tmp_path: Path, step: int, shards: Any, seen: Seen) -> None:
    values = np.arange(1, 65, dtype="float32").reshape(8, 8)
    array = xzarr3.create_array(tmp_path / "a", data=values, chunks=(2, 2), shards=shards)
    before = seen.rows
    assert both(array, slice(3, None, step))[2] == values[3:4].tobytes()
    column = values[1:3, 0 if step > 0 else -1]
    assert both(array, [np.array([1, 2]), slice(None, None, step)])[2] == column.tobytes()
    assert seen.rows > before


@pytest.mark.parametrize("codecs", [None, "zstd"])
def test_a_long_step_over_large_elements(tmp_path: Path, codecs: Any, seen: Seen) -> None:
    """The distance of the elements exceeds 64 bits, which matters to a checked build only."""
    array = xzarr3.create_array(
        tmp_path / "a", shape=(2**46, 2**18), chunks=(2, 2**18), dtype="float64", compressors=codecs
    )
    array[0, :2] = 1
    before = seen.rows
    assert array[:: 2**43, :2].tolist() == [[1, 1], *[[0, 0]] * 7]
    assert seen.rows > before


def test_chunks_between_the_steps_of_points_take_no_memory(tmp_path: Path, seen: Seen) -> None:
    array = xzarr3.create_array(tmp_path / "a", shape=(8, 10**12), chunks=(1, 1000), dtype="int8")
    array[3, :5] = 7
    before = seen.rows
    found = array.vindex[[1, 3, 5, 7], :: 10**11]
    assert (found.sum(), found[1, 0], seen.rows) == (7, 7, before)


@pytest.mark.parametrize("memory", [True, False])
def test_inner_chunks_of_a_shard_in_memory(memory: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.arange(2**16, dtype="float32").reshape(256, 256)
    array = xzarr3.create_array(
        xzarr3.MemoryStore(), data=values, chunks=(16, 16), shards=values.shape, compressors="zstd"
    )
    taken, allocate = [], native._allocate

    def allocated(size: int) -> Any:
        taken.append(size)
        if not memory:
            raise MemoryError
        return allocate(size)

    monkeypatch.setattr(native, "_allocate", allocated)
    monkeypatch.setattr(native, "_lent", native._Lent())
    monkeypatch.setattr(native, "WORTH", 1e-3)
    assert np.array_equal(array.get((slice(200, 3, -3), slice(None)), threads=1), values[200:3:-3])
    monkeypatch.setattr(native, "_lent", native._Lent())
    assert np.array_equal(array.get(..., threads=3), values)
    assert taken[1] == 3 * taken[0]


def damages(data: bytes, rng: np.random.Generator) -> Iterator[bytes]:
    """Ways in which stored bytes may differ from what they should be."""
    for cut in (0, 1, 4, len(data) // 2, len(data) - 1):
        yield data[:cut]
    yield data + b"\0"
    yield data + data
    yield data[:-4] + bytes(4)
    for number in range(60):
        found = bytearray(data)
        reach = len(data) if number % 2 else 160  # Heads and indexes are among the first or the last bytes.
        for _ in range(int(rng.integers(1, 4))):
            found[int(rng.integers(-reach, reach)) % len(found)] = int(rng.integers(256))
        yield bytes(found)


GZIP = {"name": "gzip", "configuration": {"level": 5}}
SHARDS = {
    "shard": sharding([2, 16]),
    "shard, index first": sharding([2, 16], at="start"),
    "shard, gzip": sharding([2, 16], GZIP),
    "shard, gzip, index first": sharding([2, 16], GZIP, at="start"),
}
TO_DAMAGE: dict[str, dict[str, Any]] = {
    **{name: {"chunks": (2, 16), "compressors": codecs} for name, codecs in CODECS.items()},
    **{name: {"chunks": (4, 64), "serializer": shard} for name, shard in SHARDS.items()},
}


@pytest.mark.parametrize("name", slow_but(TO_DAMAGE, "zstd", "shard"))
def test_damaged_values_give_the_same_result_or_error(tmp_path: Path, name: str, seen: Seen) -> None:
    values = (np.arange(4 * 64) % 50).astype("float32").reshape(4, 64)
    array = xzarr3.create_array(tmp_path / "a", data=values, **{"compressors": None, **TO_DAMAGE[name]})
    file = tmp_path / "a" / "c" / "0" / "0"
    data = file.read_bytes()
    before, failed = seen.rows, 0
    parts: list[Any] = [(slice(None), 3), [np.array([0, 3]), np.array([3, 60])]]
    for number, damaged in enumerate(damages(data, np.random.default_rng(0))):
        file.write_bytes(damaged)
        for selection in (..., parts[number // 2 % 2]):
            failed += isinstance(both(array, selection)[0], type)
    assert failed
    assert seen.rows > before


def test_a_block_of_blosc_that_is_larger_than_its_data(tmp_path: Path, seen: Seen) -> None:
    stored = {"name": "blosc", "configuration": {"cname": "lz4", "clevel": 0, "shuffle": "noshuffle"}}
    values = np.arange(64, dtype="float32")
    array = xzarr3.create_array(tmp_path / "a", data=values, chunks=64, compressors=["zstd", stored])
    file = tmp_path / "a" / "c" / "0"
    data = bytearray(file.read_bytes())
    data[8:12] = (int.from_bytes(data[4:8], "little") + 1).to_bytes(4, "little")
    file.write_bytes(data)
    assert both(array, ...)[0] is xzarr3.ChunkDecodeError


@pytest.mark.parametrize("offset", [2**40, 2**63 - 1, 2**63, 2**64 - 2])
def test_an_index_in_memory_may_hold_any_offset(offset: int, seen: Seen) -> None:
    array = xzarr3.create_array(
        xzarr3.MemoryStore(), data=np.arange(64.0), chunks=64, compressors=None, serializer=sharding([2])
    )
    stored = bytearray(array.store.get("c/0") or b"")
    stored[-32:-24] = offset.to_bytes(8, "little")
    array.store.set("c/0", bytes(stored))
    before = seen.rows
    assert both(array, ...)[0] is xzarr3.ChunkDecodeError
    assert seen.rows > before


def test_what_is_no_file_is_left_to_the_python_executor(tmp_path: Path, seen: Seen) -> None:
    values = np.arange(64, dtype="float32")
    array = xzarr3.create_array(tmp_path / "a", data=values, chunks=4, compressors=None)
    folder = tmp_path / "a" / "c"
    left = seen.left
    (folder / "1").unlink()
    assert both(array, ...)[2][16:32] == bytes(16)
    assert seen.left == left  # It is absent.
    (folder / "1").symlink_to(folder / "gone")
    assert both(array, ...)[0] is xzarr3.StoreError
    (folder / "1").unlink()
    (folder / "1").symlink_to(folder / "2")
    assert both(array, ...)[2][16:32] == values[8:12].tobytes()
    (folder / "1").unlink()
    (folder / "1").mkdir()
    assert both(array, ...)[2][16:32] == bytes(16)
    (folder / "1").rmdir()
    os.mkfifo(folder / "1")
    assert both(array, ...)[0] is xzarr3.StoreError
    assert seen.left > left


class Turned(LocalStore):
    """A store whose values have all bits turned round."""

    def get(self, key: str, byte_range: Any = None, **how: Any) -> Any:
        found = super().get(key, byte_range, **how)
        return None if found is None else bytes(octet ^ 255 for octet in bytes(found))

    def put(self, key: str, pieces: Any) -> None:  # type: ignore[override]
        super().put(key, [bytes(octet ^ 255 for octet in b"".join(pieces))])

    def open(self, key: str, *how: object) -> Any:
        value = self.get(key)
        return None if value is None else BytesValue(value)


@pytest.mark.parametrize("make", [Turned, xzarr3.WrapperStore])
@pytest.mark.parametrize(
    "options", [{"compressors": None}, {"shards": (8, 8), "compressors": "zstd"}], ids=str
)
def test_other_stores_are_left_to_the_python_executor(
    tmp_path: Path, options: dict[str, Any], make: Any, seen: Seen
) -> None:
    values, before = np.arange(256, dtype="int32").reshape(16, 16), seen.rows
    store = make(LocalStore(tmp_path) if make is xzarr3.WrapperStore else tmp_path)
    array = xzarr3.create_array(store, data=values, chunks=(4, 4), **options)
    for selection in (..., (3, 5), (slice(5, 7), slice(None, None, 3))):
        assert np.array_equal(array[selection], values[selection])
    assert np.array_equal(array.vindex[[1, 9], [2, 3]], values[[1, 9], [2, 3]])
    array[2:6, 7] = -1
    assert (xzarr3.open_array(store)[2:6, 7] == -1).all()
    if "shards" not in options:  # Native code may decode a shard that a store gave.
        assert seen.rows == before
    assert (tmp_path / "zarr.json").read_bytes().startswith(b"{") is (make is xzarr3.WrapperStore)


@pytest.mark.parametrize("free", [2, 3, 4])
def test_a_process_with_few_descriptors(tmp_path: Path, free: int) -> None:
    def work() -> None:
        array = xzarr3.create_array(tmp_path / "a", data=np.arange(4096.0), chunks=16, shards=1024)
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        taken = [os.open(tmp_path, os.O_RDONLY) for _ in range(50)]  # Also those between others.
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken) + 1, hard))
        for descriptor in taken[-free:]:
            os.close(descriptor)
        assert np.array_equal(array.get(threads=4), np.arange(4096.0))

    run_child(work).checked()


def test_absent_chunks_are_named(tmp_path: Path) -> None:
    array = xzarr3.create_array(tmp_path / "a", shape=(6, 6), chunks=(2, 3), dtype="int8", fill_value=7)
    array[2:4, 0:3] = 1
    strict = xzarr3.open_array(tmp_path / "a", missing="error")
    for selection in (..., (slice(None), 1), [np.array([5, 0]), np.array([0, 5])]):
        assert both(strict, selection)[0] is xzarr3.MissingChunksError


def test_a_place_in_a_larger_array_is_all_that_is_written(tmp_path: Path, seen: Seen) -> None:
    values = np.arange(24 * 18, dtype="float32").reshape(24, 18)
    wholes = [np.empty((40, 40), "float32"), np.empty((40, 40), "float32").T]
    wholes.append(np.memmap(tmp_path / "mapped", "float32", "w+", shape=(40, 40)))
    for number, codecs in enumerate(CODECS.values()):
        array = xzarr3.create_array(tmp_path / str(number), data=values, chunks=(5, 4), compressors=codecs)
        for whole in wholes:
            whole[...] = -1
            place, before = whole[3:27:2, 30:12:-1], seen.rows
            array.get((slice(None, None, 2), slice(None)), out=place)
            assert np.array_equal(place, values[::2])
            assert seen.rows > before
            place[...] = -1
            assert np.all(whole == -1)


@pytest.mark.parametrize("shards", [None, (8, 8)], ids=["chunks", "shards"])
def test_an_interrupted_read_leaves_no_open_file(
    tmp_path: Path, shards: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.arange(1024).reshape(32, 32)
    array = xzarr3.create_array(tmp_path / "a", data=values, chunks=(2, 2), shards=shards)
    before = len(os.listdir("/dev/fd"))
    interrupt(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        array.get(threads=2)
    assert len(os.listdir("/dev/fd")) == before
    monkeypatch.undo()
    assert np.array_equal(array[...], values)


def test_a_trace_counts_what_is_read(tmp_path: Path, seen: Seen) -> None:
    """As the explanation says, for chunks, for parts of them and for shards."""
    values = np.arange(64, dtype="int16").reshape(8, 8)
    for name, options in {
        "parts": {"compressors": None},
        "chunks": {"compressors": "zstd"},
        "shards": {"shards": (8, 4), "compressors": "zstd"},
    }.items():
        array = xzarr3.create_array(tmp_path / name, data=values, chunks=(4, 2), **options)
        (tmp_path / name / "c" / "0" / "1").unlink()
        for selection in (..., (slice(0, 3), slice(None)), (5, slice(1, 6))):
            before, expected = seen.rows, array.explain(selection)
            with xzarr3.trace() as trace:
                array.get(selection)
            assert seen.rows > before
            found = trace.arrays["/"]
            assert found["bytes_read"] == expected.bytes_moved
            assert found["chunks_decoded"] == expected.chunks
            assert (found["requests"] - found["absent"], found["absent"]) == (
                expected.requests,
                expected.absent,
            )


def test_what_finds_no_memory_is_left_to_the_python_executor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def allocate(size: int) -> Any:
        raise MemoryError

    array = xzarr3.create_array(tmp_path / "a", shape=16, dtype="int8", chunks=2)
    monkeypatch.setattr(native, "_allocate", allocate)
    monkeypatch.setattr(native, "_lent", native._Lent())
    array[...] = np.arange(16)
    assert np.array_equal(array[...], np.arange(16))


class OtherSum(Crc32cCodec):
    """Adds another checksum than the real one."""

    def encode(self, data: Any) -> bytes:
        return bytes(super().encode(data))[:-4] + b"none"

    def decode(self, data: Any, limit: int) -> bytes:
        return bytes(data)[:-4]


def test_a_library_that_does_not_agree_with_python_is_not_used() -> None:
    found = native.loaded()
    assert found is not None
    for known in native._CODECS:
        assert native._agrees(found, known.sample(), encodes=False)
        assert known.encoder is None or native._agrees(found, known.sample(), encodes=True)
    assert not native._agrees(found, OtherSum(), encodes=False)
    assert not native._agrees(found, OtherSum(), encodes=True)


GUARDED = r"""
    import ctypes, mmap, sys
    from pathlib import Path
    import numpy as np
    import xzarr3
    from xzarr3.io import native, native_read, native_write

    PAGE, MARK = mmap.PAGESIZE, 0xA5
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    around, number = [], 0

    def allocate(size):
        # The memory ends where a page begins that nobody may touch; 16 bytes are what decoders align to.
        global number
        number += 1
        end = -(-size // PAGE) * PAGE
        memory = np.frombuffer(mmap.mmap(-1, end + PAGE), np.uint8)
        assert protect(memory.ctypes.data + end, PAGE, 0) == 0
        memory[:end] = MARK
        start = end - -(-size // 16) * 16
        around.extend((memory[:start], memory[start + size : end]))
        return memory[start : start + size]

    native._allocate = allocate
    native._KEPT = -1  # Each call gets memory of its own.
    native_read.FEW = native_read.FEW_INNER = native_write.FEW = 1
    assert native.report() == "in use"
    for path in sorted(Path(sys.argv[1]).iterdir()):
        array = xzarr3.open_array(path, mode="r+")
        # The result, too, ends before a page that nobody may touch, and so does what is written.
        out = allocate(array.nbytes).view(array.dtype).reshape(array.shape)
        # Random values do not shrink, and take all the room there is.
        for values in (np.random.default_rng(0).random(array.shape, array.dtype), array[...]):
            out[...] = values
            array[...] = out
            array[1:, :-1] = out[1:, :-1]
            assert np.array_equal(array[...], values)
        for damaged in (False, True):
            try:
                array.get(out=out)
                array.vindex[tuple(np.array([0, n - 1]) for n in array.shape)]
                array[tuple(slice(1, None, 3) for n in array.shape)]
            except xzarr3.Xzarr3Error:
                assert damaged
            for file in path.rglob("c/*/*"):
                data = bytearray(file.read_bytes())
                data[len(data) // 2] ^= 0x55
                file.write_bytes(data[:-1])
        while around:
            assert (around.pop() == MARK).all()
    assert number > 100, number
"""


@pytest.mark.slow
def test_no_byte_outside_of_its_memory_is_touched(tmp_path: Path) -> None:
    """All memory of native code ends before a page that nobody may touch, and has marks around it."""
    values = (np.arange(40 * 30) % 50).astype("float32").reshape(40, 30)
    arrays = tmp_path / "arrays"
    for number, codecs in enumerate(CODECS.values()):
        for shards in (None, (21, 16)):
            path = arrays / f"{number}-{shards}"
            xzarr3.create_array(path, data=values, chunks=(7, 8), shards=shards, compressors=codecs)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(GUARDED), str(arrays)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
