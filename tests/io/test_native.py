"""Native code: the files, results and errors of the Python executor; no access outside of its memory."""

import itertools
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import xarray as xr
from _conformance import without_marks
from _large_as_small import python_executor
from _peers import BIG, LITTLE, codec, sharding
from _processes import Process, processes, run_processes
from _slow import slow, slow_but
from _things import refused, refuses
from _unprivileged import run_child, run_unprivileged, unprivileged
from hypothesis import given
from hypothesis import strategies as st

import xzarr3
from xzarr3 import ChunkDecodeError, LocalStore, StoreError, StorePermissionError
from xzarr3.arrays import Array
from xzarr3.codecs import Crc32cCodec
from xzarr3.commit.directory import StagedFolder
from xzarr3.io import native, native_read, native_write
from xzarr3.stores import BytesValue, locks
from xzarr3.stores.base import update
from xzarr3.stores.local.names import LOCK
from xzarr3.stores.locks import free_key_locks, key_lock

pytestmark = pytest.mark.skipif(native.loaded() is None, reason="native code is absent, or turned off")


ZSTD = codec("zstd", level=3, checksum=True)
SHUFFLE = codec("numcodecs.shuffle")
CODECS: dict[str, list[Any]] = {
    "none": [], "zstd": ["zstd"], "blosc": ["blosc"], "gzip": ["gzip"], "crc32c": ["crc32c"],
    "zstd-fast": [codec("zstd", level=-7, checksum=True)],
    "zstd-small": [codec("zstd", level=9, checksum=False)],
    "lz4": [codec("blosc", cname="lz4", clevel=9, shuffle="shuffle")],
    "blocks": [codec("blosc", cname="zstd", clevel=5, shuffle="shuffle", typesize=4, blocksize=128)],
    "bitshuffled": [codec("blosc", cname="zstd", clevel=3, shuffle="bitshuffle")],
    "bitshuffled-zlib": [codec("blosc", cname="zlib", clevel=1, shuffle="bitshuffle")],
    "stored": [codec("blosc", cname="blosclz", clevel=0, shuffle="noshuffle")],
    "zstd-crc32c": [ZSTD, "crc32c"], "crc32c-zstd-crc32c-zstd": ["crc32c", ZSTD, "crc32c", ZSTD],
    "shuffle": [SHUFFLE], "shuffle-gzip": [SHUFFLE, "gzip"], "shuffle-zstd": [SHUFFLE, "zstd"],
    "gzip-zstd-crc32c": ["gzip", "zstd", "crc32c"],
    "shuffle-shuffle-crc32c-zstd": [SHUFFLE, SHUFFLE, "crc32c", "zstd"],
}  # fmt: skip
DTYPES = (
    "bool", "int8", "uint16", "int32", "float16", "float32", "float64", "complex64", "complex128",
    "datetime64[s]", "S3", "U2",
)  # fmt: skip
GZIP = codec("gzip", level=5)
TILES = [np.s_[y : y + 32, x : x + 32] for y in range(0, 256, 32) for x in range(0, 256, 32)]
WRITTEN = [np.s_[:, 8:24], np.s_[40:50, 40:48]]
PARTS = [*(np.s_[y : y + 32, 8:24] for y in range(0, 256, 32)), WRITTEN[1]]
FEW_AND_MANY = pytest.mark.parametrize("region", [np.s_[1:3, 5:12], np.s_[1:, 3:4]], ids=["few", "many"])
IN_PARTS: dict[str, Any] = {"shape": (20, 20), "chunks": (2, 5), "dtype": "uint16"}


class Seen:
    """What native code did: the rows that it was given, and those that it left."""

    rows = left = 0

    def taken(self) -> tuple[int, int]:
        found = self.rows, self.left
        self.rows = self.left = 0
        return found


@contextmanager
def watching() -> Iterator[Seen]:
    native.report()  # Each codec has proved itself then: these are no rows of a test.
    found, do, write_again = Seen(), native.Call.do, native.Call.write_again

    def count(call: native.Call) -> None:
        found.rows += len(call.status)
        found.left += int(np.count_nonzero(np.isin(call.status, (native.LEFT, 3))))

    def done(self: native.Call, name: str, job: list[int]) -> None:
        do(self, name, job)
        count(self)

    def written(self: native.Call, packed: Any) -> int:
        result = write_again(self, packed)
        count(self)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native.Call, "do", done)
        patch.setattr(native.Call, "write_again", written)
        yield found


@pytest.fixture(autouse=True)
def seen() -> Iterator[Seen]:
    with watching() as found:
        yield found


def contents(root: Path) -> dict[str, bytes | None]:
    """The files in a directory, and None for each directory."""
    files = {str(path.relative_to(root)): path for path in root.rglob("*")}
    return {name: path.read_bytes() if path.is_file() else None for name, path in files.items()}


def written(folder: Path, write: Callable[[xzarr3.Array], object], **options: Any) -> dict[str, bytes | None]:
    """The files that native code writes, which are those of the Python executor."""
    for name, executor in (("native", nullcontext), ("python", python_executor)):
        with executor():
            write(xzarr3.create_array(folder / name, **options))
    found = contents(folder / "native")
    assert without_marks(found) == without_marks(contents(folder / "python"))
    return found


def outcome(array: xzarr3.Array, selection: Any) -> tuple[Any, ...]:
    """The bytes of a result, or the error in words, with what its cause and chunk are."""
    try:
        found = array.vindex[tuple(selection)] if isinstance(selection, list) else array.oindex[selection]
    except xzarr3.Xzarr3Error as error:
        return type(error), str(error), type(error.__cause__)
    return found.shape, found.dtype, found.tobytes()


def read(array: xzarr3.Array, selection: Any) -> tuple[Any, ...]:
    """The outcome of native code, which is that of the Python executor."""
    found = outcome(array, selection)
    with python_executor():
        assert found == outcome(array, selection)
    return found


def orthogonal(values: np.ndarray[Any, Any], index: Any) -> np.ndarray[Any, Any]:
    """What ``oindex`` means: each dimension is selected from on its own."""
    index = index if isinstance(index, tuple) else (index,)
    for axis in reversed(range(len(index))):
        values = values[(slice(None),) * axis + (index[axis],)]
    return np.ascontiguousarray(values)


@st.composite
def arrays(draw: st.DrawFn) -> tuple[dict[str, Any], np.ndarray[Any, Any]]:
    ndim = draw(st.integers(1, 4))
    shape = tuple(draw(st.integers(1, (40, 12, 8, 5)[ndim - 1])) for _ in range(ndim))
    chunks = tuple(draw(st.integers(1, n + 2)) for n in shape)
    dtype, rng = np.dtype(draw(st.sampled_from(DTYPES))), np.random.default_rng(draw(st.integers(0, 100)))
    octets = rng.integers(0, 2 if dtype.kind in "bU" else 256, (*shape, dtype.itemsize), np.uint8)
    if dtype.kind == "U":
        octets[..., 1:] = 0
    values = octets.view(dtype).reshape(shape)
    codecs = CODECS[draw(st.sampled_from([*CODECS]))]
    options: dict[str, Any] = {"shape": shape, "dtype": dtype, "chunks": chunks, "compressors": codecs}
    options["write_empty_chunks"] = draw(st.booleans())
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
        options["filters"] = [codec("transpose", order=draw(st.permutations(range(len(shape)))))]
    if draw(st.booleans()):
        options["serializer"] = BIG
    if draw(st.booleans()):
        options["chunk_key_encoding"] = codec("v2", separator=".")
    return options, values


def in_memory(draw: Any, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
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


@st.composite
def selections(draw: st.DrawFn, shape: tuple[int, ...]) -> Any:
    """Points as a list, one of which may be a slice; or what ``oindex`` takes."""
    if draw(st.integers(0, 3)) == 0:
        number = draw(st.integers(1, 9))
        lists = [st.lists(st.integers(0, n - 1), min_size=number, max_size=number) for n in shape]
        points: list[Any] = [np.array(draw(each)) for each in lists]
        if len(shape) > 1 and draw(st.booleans()):
            points[draw(st.integers(0, len(shape) - 1))] = slice(None, None, draw(st.integers(1, 3)))
        return points
    chosen: list[Any] = []
    by_indices = draw(st.booleans())
    for n in shape:
        if by_indices and draw(st.booleans()):
            chosen.append(np.array(draw(st.lists(st.integers(-n, n - 1), min_size=1, max_size=2 * n))))
            continue
        step = draw(st.sampled_from((1, 1, 2, 3, 7, -1, -2)))
        part = slice(draw(st.integers(-n, n)), draw(st.integers(-n, n)), step)
        chosen.append(draw(st.sampled_from((slice(None), part, n - 1, -n))))
    return tuple(chosen)


@given(made=arrays(), data=st.data())
def test_files_are_those_of_the_python_executor(tmp_path_factory: Any, made: Any, data: Any) -> None:
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
        written(tmp_path_factory.mktemp("write"), write, **options)


@given(made=arrays(), data=st.data())
def test_results_are_those_of_the_python_executor(tmp_path_factory: Any, made: Any, data: Any) -> None:
    options, values = made
    array = xzarr3.create_array(tmp_path_factory.mktemp("read") / "a.zarr", **options)
    half = tuple(slice(0, data.draw(st.integers(0, n))) for n in values.shape)  # Other units are absent.
    array[half] = values[half]
    expected = np.full(values.shape, array.fill_value, values.dtype)
    expected[half] = values[half]
    with watching() as seen:
        for _ in range(3):
            selection = data.draw(selections(values.shape))
            shape, _, found = read(array, selection)
            index = tuple(selection)
            if not isinstance(selection, list) or all(isinstance(each, np.ndarray) for each in index):
                points = expected[index] if isinstance(selection, list) else orthogonal(expected, index)
                assert (shape or (), found) == (np.shape(points) if shape else (), points.tobytes())
            # Python takes text, truth values, many indices in small chunks, and a single inner chunk.
            is_python = values.dtype.kind in "bU" or any(isinstance(each, np.ndarray) for each in index)
            is_python = is_python or array.oindex.plan(index).chunks < 2
            assert seen.taken()[0] > 0 or 0 in shape or is_python


LAYOUTS: dict[str, dict[str, Any]] = {
    "chunks": {}, "shards": {"shards": (8, 20)}, "big": {"serializer": BIG},
    "transposed": {"filters": [codec("transpose", order=(1, 0))]},
    "uneven": {"chunks": ((20, 3, 27), (30, 10))},
}  # fmt: skip
for _index, _at in itertools.product([[LITTLE], [LITTLE, codec("crc32c")]], ["start", "end"]):
    LAYOUTS[f"{len(_index)} codecs of an index at the {_at}"] = {
        "chunks": (8, 20), "serializer": sharding((4, 10), LITTLE, ZSTD, index=_index, location=_at)
    }  # fmt: skip


QUICK = [*((name, "shards") for name in CODECS), *(("none", name) for name in LAYOUTS if name != "shards")]
MORE = itertools.product([name for name in CODECS if name != "none"], ["chunks", "transposed", "big"])


@pytest.mark.parametrize(("codecs", "layout"), [*QUICK, *(slow(*each) for each in MORE)])
def test_all_units_are_taken_by_native_code(tmp_path: Path, codecs: str, layout: str, seen: Seen) -> None:
    values = np.cumsum(np.random.default_rng(0).normal(size=(50, 40)), axis=1).round(2).astype("float32")
    values[:20, :30] = 0
    options = {"chunks": (4, 10), "compressors": CODECS[codecs], **LAYOUTS[layout]}
    written(tmp_path, lambda array: array.set(..., values), shape=(50, 40), dtype="float32", **options)
    rows, left = seen.taken()
    assert (rows > 0, left) == ("gzip" not in codecs, 0)
    array = xzarr3.open_array(tmp_path / "native")
    some = np.array([7, 0, 0, 23, 34])
    indices: list[Any] = [np.s_[:], np.s_[::3, 5:37], np.s_[2:49:3, ::-2], 4]
    if layout != "uneven":  # Python finds the chunks of single elements there.
        indices += [some, (some, np.s_[3:25:4]), (some, some + 5)]
    for index in indices:
        assert read(array, index)[2] == orthogonal(values, index).tobytes()
        rows, left = seen.taken()
        assert (rows > 0, left) == (True, 0)


def test_new_nodes_are_written_so_while_their_stage_is_there(tmp_path: Path, seen: Seen) -> None:
    values = np.arange(100, dtype="float64").reshape(10, 10)
    dataset = xr.Dataset({"a": (("y", "x"), values, {}, {"chunks": (2, 5)})})
    made = xzarr3.to_zarr(dataset, tmp_path / "store", mode="w")["a"]
    assert seen.taken() == (10, 0)
    assert np.array_equal(made[:], values)
    stage = tmp_path / "stage"
    stage.mkdir()
    staged = Array(StagedFolder(str(stage), "stage"), "a", made.metadata, format=made.format)
    staged[:] = values
    shutil.rmtree(stage)
    with pytest.raises(StoreError, match=r"cannot write to stage: .* are gone"):
        staged[:] = values
    assert not stage.exists()


def test_one_chunk_is_read_so_if_it_takes_long(tmp_path: Path, monkeypatch: Any, seen: Seen) -> None:
    monkeypatch.setattr(native_read, "FEW", 8)
    for size, rows in ((2**20, 1), (2**10, 0)):
        values = np.arange(size)
        array = xzarr3.create_array(tmp_path / f"{size}", data=values, chunks=size, compressors="zstd")
        seen.taken()
        assert read(array, np.s_[1:])[2] == values[1:].tobytes()
        assert seen.rows == rows


def test_empty_units_are_left_out(tmp_path: Path, seen: Seen) -> None:
    values = np.zeros((12, 12), "int32")
    values[5, 7] = 1
    options = {"shape": (12, 12), "chunks": (3, 4), "dtype": "int32"}
    files = written(tmp_path / "new", lambda array: array.set(..., values), **options)
    assert [name for name in files if name.startswith("c")] == ["c", "c/1", "c/1/1"]
    assert seen.taken()[1] == 0
    written(tmp_path, lambda array: [array.set(..., each) for each in (1, values)], **options)
    assert seen.left == 11  # Python erases what was stored.


@pytest.mark.parametrize("shards", [None, (8, 8)], ids=["chunks", "shards"])
@pytest.mark.parametrize("step", [2**63 - 1, 2**63, -(2**63), -(10**30)])
def test_a_step_that_exceeds_64_bits(tmp_path: Path, step: int, shards: Any, seen: Seen) -> None:
    values = np.arange(1, 65, dtype="float32").reshape(8, 8)
    array = xzarr3.create_array(tmp_path / "a", data=values, chunks=(2, 2), shards=shards)
    seen.taken()
    assert read(array, slice(3, None, step))[2] == values[3:4].tobytes()
    column = values[1:3, 0 if step > 0 else -1]
    assert read(array, [np.array([1, 2]), slice(None, None, step)])[2] == column.tobytes()
    assert seen.rows > 0


@pytest.mark.parametrize("codecs", [None, "zstd"])
def test_long_steps_over_large_elements(tmp_path: Path, codecs: Any, seen: Seen) -> None:
    """The distance of the elements exceeds 64 bits, which matters to a checked build only."""
    options = {"chunks": (2, 2**18), "dtype": "float64", "compressors": codecs}
    array = xzarr3.create_array(tmp_path / "a", shape=(2**46, 2**18), **options)
    array[0, :2] = 1
    seen.taken()
    assert array[:: 2**43, :2].tolist() == [[1, 1], *[[0, 0]] * 7]
    assert seen.rows > 0
    # Chunks between the steps of points take no memory.
    array = xzarr3.create_array(tmp_path / "b", shape=(8, 10**12), chunks=(1, 1000), dtype="int8")
    array[3, :5] = 7
    seen.taken()
    found = array.vindex[[1, 3, 5, 7], :: 10**11]
    assert (found.sum(), found[1, 0], seen.rows) == (7, 7, 0)


@pytest.mark.parametrize("memory", [True, False])
def test_memory_that_is_there_or_not(memory: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.arange(2**16, dtype="float32").reshape(256, 256)
    options = {"chunks": (16, 16), "shards": values.shape, "compressors": "zstd"}
    array = xzarr3.create_array(xzarr3.MemoryStore(), data=values, **options)
    allocate = Mock(side_effect=native._allocate if memory else MemoryError)
    monkeypatch.setattr(native, "_allocate", allocate)
    monkeypatch.setattr(native, "_lent", native._Lent())
    monkeypatch.setattr(native, "WORTH", 1e-3)
    assert np.array_equal(array.get((slice(200, 3, -3), slice(None)), threads=1), values[200:3:-3])
    monkeypatch.setattr(native, "_lent", native._Lent())
    assert np.array_equal(array.get(..., threads=3), values)
    first, second = (call.args[0] for call in allocate.call_args_list[:2])
    assert second == 3 * first
    # What finds none is left to the Python executor.
    monkeypatch.setattr(native, "_lent", native._Lent())
    array = xzarr3.create_array(tmp_path / "a", shape=16, dtype="int8", chunks=2)
    array[...] = np.arange(16)
    assert np.array_equal(array[...], np.arange(16))


def test_a_thread_takes_large_chunks_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C is heard after each of them."""
    array = xzarr3.create_array(tmp_path / "a", shape=(8, 2**20), chunks=(1, 2**20), dtype="int8")
    taken, original = [], native.Call.do

    def do(self: native.Call, name: str, job: list[int]) -> None:
        taken.append(self.run)
        original(self, name, job)

    monkeypatch.setattr(native.Call, "do", do)
    array.set(..., np.ones((8, 2**20), "int8"), threads=1)
    assert taken == [1]


def test_a_place_in_a_larger_array_is_all_that_is_written(tmp_path: Path, seen: Seen) -> None:
    values = np.arange(24 * 18, dtype="float32").reshape(24, 18)
    mapped = np.memmap(tmp_path / "mapped", "float32", "w+", shape=(40, 40))
    wholes = [np.empty((40, 40), "float32"), np.empty((40, 40), "float32").T, mapped]
    for number, codecs in enumerate(CODECS.values()):
        array = xzarr3.create_array(tmp_path / str(number), data=values, chunks=(5, 4), compressors=codecs)
        for whole in wholes:
            whole[...] = -1
            seen.taken()
            place = whole[3:27:2, 30:12:-1]
            array.get((slice(None, None, 2), slice(None)), out=place)
            assert np.array_equal(place, values[::2])
            assert seen.rows > 0
            place[...] = -1
            assert np.all(whole == -1)


class Turned(LocalStore):
    def get(self, key: str, byte_range: Any = None, **how: Any) -> Any:
        found = super().get(key, byte_range, **how)
        return None if found is None else bytes(octet ^ 255 for octet in bytes(found))

    def put(self, key: str, pieces: Any) -> None:  # type: ignore[override]
        super().put(key, [bytes(octet ^ 255 for octet in b"".join(pieces))])

    def open(self, key: str, *how: object) -> Any:
        value = self.get(key)
        return None if value is None else BytesValue(value)


OTHER_STORES: dict[str, Callable[[Path], xzarr3.Store]] = {
    "derived": Turned, "wrapped": lambda path: xzarr3.WrapperStore(LocalStore(path)),
    "fsync": partial(LocalStore, fsync=True), "without locks": partial(LocalStore, locks=False),
}  # fmt: skip


@pytest.mark.parametrize("kind", OTHER_STORES)
@pytest.mark.parametrize("options", [{"compressors": None}, {"shards": (8, 8), "compressors": "zstd"}])
def test_other_stores_are_left_to_python(tmp_path: Path, options: Any, kind: str, seen: Seen) -> None:
    values = np.arange(256, dtype="int32").reshape(16, 16)
    store = OTHER_STORES[kind](tmp_path)
    array = xzarr3.create_array(store, data=values, chunks=(4, 4), **options)
    assert seen.rows == 0
    for selection in (..., (3, 5), (slice(5, 7), slice(None, None, 3))):
        assert np.array_equal(array[selection], values[selection])
    assert np.array_equal(array.vindex[[1, 9], [2, 3]], values[[1, 9], [2, 3]])
    if "shards" not in options and kind in ("derived", "wrapped"):  # It may decode a shard that a store gave.
        assert seen.rows == 0
    seen.taken()
    array[2:6, 7] = -1
    assert seen.rows == 0
    assert (xzarr3.open_array(store)[2:6, 7] == -1).all()
    assert (tmp_path / "zarr.json").read_bytes().startswith(b"{") is (kind != "derived")


@pytest.mark.parametrize(("zarr_format", "separator", "ndim"), [
    (3, "/", 1), (3, ".", 2), (3, "/", 3), (2, ".", 1), (2, "/", 2), (2, ".", 3), ("3-draft", "/", 2),
])  # fmt: skip
def test_keys_are_those_of_python(tmp_path: Path, zarr_format: Any, separator: str, ndim: int) -> None:
    values = np.arange(1, 1 + 4**ndim, dtype="int16").reshape((4,) * ndim)
    options: dict[str, Any] = {"chunks": (1,) * ndim, "dtype": "int16", "zarr_format": zarr_format}
    if zarr_format != "3-draft":  # It has but one way, of keys such as c0/1.
        encoding = {"name": "v2" if zarr_format == 2 else "default", "separator": separator}
        options["chunk_key_encoding"] = encoding
    written(tmp_path, lambda array: array.set(..., values), path="a", shape=values.shape, **options)
    assert np.array_equal(xzarr3.open_array(tmp_path / "native", "a")[...], values)


def test_a_trace_counts_what_is_read_and_written(tmp_path: Path, seen: Seen) -> None:
    values = np.arange(1, 65, dtype="int16").reshape(8, 8)
    for name, options in {
        "parts": {"compressors": None}, "chunks": {"compressors": "zstd"},
        "shards": {"shards": (8, 4), "compressors": "zstd"},
    }.items():  # fmt: skip
        array = xzarr3.create_array(tmp_path / name, shape=(8, 8), chunks=(4, 2), dtype="int16", **options)
        seen.taken()
        with xzarr3.trace() as trace:
            array[...] = values
        units, found = array.nshards or array.nchunks, trace.arrays["/"]
        counts = (found[each] for each in ("requests", "put", "chunks_encoded"))
        assert (seen.rows, *counts) == (units, units, units, 8)
        assert found["bytes_written"] == sum(path.stat().st_size for path in (tmp_path / name).glob("c/*/*"))
        (tmp_path / name / "c" / "0" / "1").unlink()
        for selection in (..., (slice(0, 3), slice(None)), (5, slice(1, 6))):
            seen.taken()
            expected = array.explain(selection)
            with xzarr3.trace() as trace:
                array.get(selection)
            found, all_asked = trace.arrays["/"], expected.requests + expected.absent
            assert (seen.rows > 0, found["requests"], found["absent"]) == (True, all_asked, expected.absent)
            assert (found["bytes_read"], found["chunks_decoded"]) == (expected.bytes_moved, expected.chunks)
    array = xzarr3.create_array(tmp_path / "changed", data=np.arange(40), chunks=4)
    seen.taken()
    with xzarr3.trace() as trace:
        array[1:39] = 7
    found = trace.arrays["/"]
    assert (seen.rows, found["get"], found["put"]) == (8, 2, 10)
    assert (array[0], array[39]) == (0, 39)


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


def unchecked(*codecs: Any, location: str = "end") -> Any:
    """The codec of a shard without a checksum, so that any index is believed."""
    return sharding((2, 16), LITTLE, *codecs, index=(LITTLE,), location=location)


TO_DAMAGE: dict[str, dict[str, Any]] = {
    **{name: {"chunks": (2, 16), "compressors": codecs} for name, codecs in CODECS.items()},
    "shard": {"chunks": (4, 64), "serializer": unchecked()},
    "shard, index first": {"chunks": (4, 64), "serializer": unchecked(location="start")},
    "shard, gzip": {"chunks": (4, 64), "serializer": unchecked(GZIP)},
    "shard, gzip, index first": {"chunks": (4, 64), "serializer": unchecked(GZIP, location="start")},
}


@pytest.mark.parametrize("name", slow_but(TO_DAMAGE, "zstd", "shard"))
def test_damaged_values_give_the_same_result_or_error(tmp_path: Path, name: str, seen: Seen) -> None:
    values = (np.arange(4 * 64) % 50).astype("float32").reshape(4, 64)
    array = xzarr3.create_array(tmp_path / "a", data=values, **{"compressors": None, **TO_DAMAGE[name]})
    file = tmp_path / "a" / "c" / "0" / "0"
    data = file.read_bytes()
    seen.taken()
    failed = 0
    parts: list[Any] = [(slice(None), 3), [np.array([0, 3]), np.array([3, 60])]]
    for number, damaged in enumerate(damages(data, np.random.default_rng(0))):
        file.write_bytes(damaged)
        for selection in (..., parts[number // 2 % 2]):
            failed += isinstance(read(array, selection)[0], type)
    assert failed
    assert seen.rows > 0


def test_of_blosc_only_the_blocks_that_are_needed_are_read(tmp_path: Path, seen: Seen) -> None:
    values = np.random.default_rng(0).random((2, 128, 128), dtype="float32")
    blosc = codec("blosc", cname="zstd", clevel=5, shuffle="shuffle", typesize=4, blocksize=4096)
    array = xzarr3.create_array(tmp_path / "a", data=values, chunks=(1, 128, 128), compressors=blosc)
    file = tmp_path / "a" / "c" / "0" / "0" / "0"
    data = file.read_bytes()
    for index in [np.s_[:, 7, 9], np.s_[:, 6:11, 3::5], np.s_[:, 127:, 127:], np.s_[:, ::127], np.s_[:, 3:]]:
        assert read(array, index)[2] == orthogonal(values, index).tobytes()
    with xzarr3.trace() as trace:
        assert np.array_equal(array[0, 7:9], values[0, 7:9])
    assert 0 < trace.arrays["/"]["bytes_read"] < len(data) / 4
    file.write_bytes(data[:-4000] + bytes(4000))
    assert np.array_equal(array[0, 7:9], values[0, 7:9])
    for index in (np.s_[0, 127], np.s_[0]):
        assert read(array, index)[0] is ChunkDecodeError
    for damaged in damages(data, np.random.default_rng(0)):
        file.write_bytes(damaged)
        for index in (np.s_[:, 7, 9], np.s_[:, 120:, 5]):
            found = outcome(array, index)
            with python_executor():
                expected = outcome(array, index)
            assert found == expected or isinstance(expected[0], type)  # What is damaged may lie elsewhere.
    assert seen.left < seen.rows
    maps = np.resize(values, (1, 512, 512))
    array = xzarr3.create_array(tmp_path / "b", data=maps, chunks=maps.shape, compressors="blosc")
    seen.taken()
    assert (array[0, 500, 9], array.vindex[[0], [3], [4]], seen.taken()) == (
        maps[0, 500, 9],
        maps[0, 3, 4],
        (2, 0),
    )


def test_a_block_of_blosc_that_is_larger_than_its_data(tmp_path: Path) -> None:
    codecs = ["zstd", codec("blosc", cname="lz4", clevel=0, shuffle="noshuffle")]
    values = np.arange(64, dtype="float32")
    array = xzarr3.create_array(tmp_path / "a", data=values, chunks=64, compressors=codecs)
    file = tmp_path / "a" / "c" / "0"
    data = bytearray(file.read_bytes())
    data[8:12] = (int.from_bytes(data[4:8], "little") + 1).to_bytes(4, "little")
    file.write_bytes(data)
    assert read(array, ...)[0] is ChunkDecodeError


@pytest.mark.parametrize("offset", [2**40, 2**63 - 1, 2**63, 2**64 - 2])
def test_an_index_in_memory_may_hold_any_offset(offset: int, seen: Seen) -> None:
    serializer = sharding((2,), LITTLE, index=(LITTLE,))
    options = {"chunks": 64, "compressors": None, "serializer": serializer}
    array = xzarr3.create_array(xzarr3.MemoryStore(), data=np.arange(64.0), **options)
    stored = bytearray(array.store.get("c/0") or b"")
    stored[-32:-24] = offset.to_bytes(8, "little")
    array.store.set("c/0", bytes(stored))
    seen.taken()
    assert read(array, ...)[0] is ChunkDecodeError
    assert seen.rows > 0


def test_what_is_no_file_is_left_to_the_python_executor(tmp_path: Path, seen: Seen) -> None:
    values = np.arange(64, dtype="float32")
    array = xzarr3.create_array(tmp_path / "a", data=values, chunks=4, compressors=None)
    chunk = tmp_path / "a" / "c" / "1"
    seen.taken()
    chunk.unlink()
    assert read(array, ...)[2][16:32] == bytes(16)
    assert seen.left == 0  # It is absent.
    chunk.symlink_to(chunk.parent / "gone")
    assert read(array, ...)[0] is StoreError
    chunk.unlink()
    chunk.symlink_to(chunk.parent / "2")
    assert read(array, ...)[2][16:32] == values[8:12].tobytes()
    chunk.unlink()
    chunk.mkdir()
    assert read(array, ...)[2][16:32] == bytes(16)
    chunk.rmdir()
    os.mkfifo(chunk)
    assert read(array, ...)[0] is StoreError
    assert seen.left > 0


def test_absent_chunks_are_named(tmp_path: Path) -> None:
    array = xzarr3.create_array(tmp_path / "a", shape=(6, 6), chunks=(2, 3), dtype="int8", fill_value=7)
    array[2:4, 0:3] = 1
    strict = xzarr3.open_array(tmp_path / "a", missing="error")
    places: list[Any] = [..., (slice(None), 1), [np.array([5, 0]), np.array([0, 5])]]
    assert {read(strict, place)[0] for place in places} == {xzarr3.MissingChunksError}


class Interrupting:
    """The library, whose calls do one run of rows in no time; one of the calls is interrupted at its end."""

    def __init__(self, library: Any, most: int) -> None:
        self._library, self._left = library, most

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._library, name)
        if name not in ("xzarr3_read", "xzarr3_write"):
            return function

        def called(job: Any) -> None:
            function(job)
            self._left -= 1
            if self._left == 0:
                raise KeyboardInterrupt

        return called


def interrupt(act: Callable[[], object], most: int = 3) -> None:
    found = native.loaded()
    assert found is not None
    changed = found._replace(library=Interrupting(found.library, most))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "_SLICE", 0)
        patch.setattr(native, "_loaded", lambda: changed)
        with pytest.raises(KeyboardInterrupt):
            act()


@pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="the system does not tell which files are open")
@pytest.mark.parametrize("shards", [None, (8, 8)], ids=["chunks", "shards"])
def test_an_interrupt_leaves_no_temporary_file_no_lock_and_no_open_file(tmp_path: Path, shards: Any) -> None:
    array = xzarr3.create_array(tmp_path / "a", shape=(32, 32), chunks=(2, 2), shards=shards, dtype="int64")
    array[...] = 1
    values = np.arange(1024).reshape(32, 32)
    keys = [array.engine.key(at) for at in np.ndindex(16, 16)]

    def can_take() -> bool:
        with free_key_locks(array.store.identity, keys) as held:
            return all(held)

    for act in (lambda: array.get(threads=2), lambda: array.set(..., values, threads=1)):
        before = contents(tmp_path).keys(), len(os.listdir("/dev/fd"))
        interrupt(act)
        assert (contents(tmp_path).keys(), len(os.listdir("/dev/fd"))) == before
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(can_take).result()
        found = array[...]
        assert np.all((found == 1) | (found == values))
    array.set(..., values)
    assert np.array_equal(array[...], values)


@pytest.mark.parametrize("interrupted", [False, True])
def test_the_time_of_the_root_changes(tmp_path: Path, interrupted: bool) -> None:
    array = xzarr3.create_array(tmp_path / "a", shape=16, chunks=2, dtype="int8")
    array[...] = 1
    os.utime(tmp_path / "a", (1, 1))
    if interrupted:
        interrupt(lambda: array.set(..., 2, threads=1), 1)
    else:
        array.set(..., 2, threads=1)
    assert os.stat(tmp_path / "a").st_mtime > 1


def _prepared(base: Path) -> None:
    options = {"chunks": (2, 2), "dtype": "int32", "compressors": None}
    xzarr3.create_array(base / "store", shape=(8, 8), **options)[...] = 1


def _leftovers(base: Path) -> list[str]:
    return [name for _, _, names in os.walk(base) for name in names if name.endswith(LOCK)]


@unprivileged(_prepared)
def test_a_directory_without_permission(base: Path) -> None:
    folder = base / "store" / "c" / "1"
    folder.chmod(0o555)
    array = xzarr3.open_array(base / "store", mode="r+")
    refuses(lambda place: array.set(place, 2), (..., (2, 1)), StorePermissionError)
    found = array[...]
    assert np.all(found[2:4] == 1)
    assert np.all((found == 1) | (found == 2))
    folder.parent.chmod(0o000)
    refused(StorePermissionError, None, lambda: array.set((0, 1), 3))
    folder.parent.chmod(0o755)
    folder.chmod(0o755)
    array[...] = 3
    assert np.all(array[...] == 3)
    assert _leftovers(base) == []


@unprivileged(_prepared)
def test_a_directory_in_the_place_of_a_chunk(base: Path) -> None:
    chunk = base / "store" / "c" / "2" / "2"
    chunk.unlink()
    chunk.mkdir()
    array = xzarr3.open_array(base / "store", mode="r+")
    refuses(partial(array.set, ...), [2], StoreError, "cannot write key 'c/2/2'")
    assert _leftovers(base) == []


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"chunks": (2, 2), "shards": (4, 8)}], ids=str)
def test_a_full_disk_keeps_old_values(options: dict[str, Any]) -> None:
    def work(base: Path) -> None:
        options_ = {"chunks": (256, 256), "dtype": "int32", "compressors": None} | options
        array = xzarr3.create_array(base / "store", shape=(512, 512), **options_)
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
        shards = xzarr3.create_array(tmp_path / "a", data=np.arange(4096.0), chunks=16, shards=1024)
        array = xzarr3.create_array(tmp_path / "b", shape=(100, 4), chunks=(1, 2), dtype="int8")
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        taken = [os.open(tmp_path, os.O_RDONLY) for _ in range(50)]  # Also those between others.
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken) + 1, hard))
        for more in (2, 1, 1, 8):
            for _ in range(more):
                os.close(taken.pop())
            assert np.array_equal(shards.get(threads=4), np.arange(4096.0))
        array[...] = 5
        assert np.all(array[...] == 5)

    run_child(work).checked()
    assert np.all(xzarr3.open_array(tmp_path / "b")[...] == 5)


@pytest.mark.parametrize("target", ["../../outside", "{base}/outside", "../../outside/missing"])
@pytest.mark.parametrize("place", ["c", "c/1"])
def test_a_link_out_of_the_store_is_refused(target: str, place: str) -> None:
    def prepare(base: Path) -> None:
        _prepared(base)
        (base / "store" / place).rename(base / "store" / "gone")
        (base / "store" / place).symlink_to(target.format(base=base))

    def work(base: Path) -> None:
        array = xzarr3.open_array(base / "store", mode="r+")
        refuses(lambda at: array.set(at, 2), (..., slice(2, 4)), xzarr3.InvalidKeyError, "leads out")

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


@pytest.mark.parametrize(("writes", "regions", "options"), [
    ([...], TILES, {}), ([...], TILES, {"shards": (64, 64)}), (WRITTEN, PARTS, {}),
    (WRITTEN, PARTS, {"compressors": "zstd"}),
], ids=["chunks", "shards", "parts", "parts, compressed"])  # fmt: skip
def test_a_killed_writer_leaves_old_or_new_chunks(
    tmp_path: Path, writes: Any, regions: Any, options: Any
) -> None:
    """A process that writes one value after the other is killed: each region holds one of them."""
    options = {"chunks": (32, 32), "dtype": "int64", "compressors": None, **options}
    array = xzarr3.create_array(tmp_path / "a", shape=(256, 256), **options)
    array[...] = 1

    def write_on() -> None:
        for value in range(2, 10**9):
            for selection in writes:
                array.set(selection, value, threads=1)
            Process.say()

    for _ in range(4):
        with processes(write_on) as (child,):
            assert child.hear()
        found = array[...]
        for region in regions:
            assert found[region].max() == found[region].min() >= 1
            found[region] = 1
        assert np.all(found == 1)


@FEW_AND_MANY
@pytest.mark.parametrize("codecs", slow_but([*CODECS], "none", "zstd-crc32c"))
def test_parts_are_written_by_native_code(tmp_path: Path, codecs: str, region: Any, seen: Seen) -> None:
    values = np.arange(400, dtype="uint16").reshape(20, 20)
    rows = []

    def write(array: xzarr3.Array) -> None:
        array.set(..., values, threads=1)
        seen.rows = 0
        array.set(region, values[region] + 7, threads=1)
        rows.append(seen.rows)

    written(tmp_path, write, **IN_PARTS, compressors=CODECS[codecs])
    with python_executor():
        found = xzarr3.open_array(tmp_path / "native")[...]
    values[region] += 7
    assert np.array_equal(found, values)
    assert ([number > 0 for number in rows], seen.left) == (["gzip" not in codecs, False], 0)


@FEW_AND_MANY
def test_parts_of_the_fill_value_are_neither_made_nor_kept(tmp_path: Path, region: Any, seen: Seen) -> None:
    def write(array: xzarr3.Array) -> None:
        array.set(region, 0)
        array[0, 0] = 1
        array.set(region, 0)

    files = written(tmp_path / "absent", write, **IN_PARTS)
    assert [name for name in files if name.startswith("c")] == ["c", "c/0", "c/0/0"]
    assert seen.taken()[0] > 0
    files = written(tmp_path, lambda array: [array.set(region, 3), array.set(region, 0)], **IN_PARTS)
    assert [name for name, content in files.items() if content is not None] == ["zarr.json"]
    assert seen.left > 0


@FEW_AND_MANY
@pytest.mark.parametrize("damage", [b"", b"x" * 20, b"x" * 10**6])
def test_parts_of_damaged_chunks_are_refused(tmp_path: Path, damage: bytes, region: Any, seen: Seen) -> None:
    array = xzarr3.create_array(tmp_path / "a", **IN_PARTS)
    array[...] = 1
    seen.taken()
    for chunk in (tmp_path / "a" / "c").glob("*/*"):
        chunk.write_bytes(damage)
    before = contents(tmp_path / "a")
    refused(ChunkDecodeError, None, lambda: array.set(region, 2))
    assert contents(tmp_path / "a") == before
    assert seen.rows > 0


def test_parts_by_native_code_and_by_python_at_once(tmp_path: Path) -> None:
    """Two processes change parts of the same chunks; the lock files of either way keep the other out."""
    array = xzarr3.create_array(tmp_path / "a", shape=(20, 4), chunks=(2, 4), dtype="int32")
    array[...] = 1

    def work(column: int, last: int, sign: int, is_on: bool) -> None:
        native.switch.is_on = is_on
        for value in range(2, last + 1):
            array[:, column : column + 1] = sign * value
            array[3, column] = sign * value

    run_processes(lambda: work(1, 149, 1, False), lambda: work(2, 299, -1, True))
    assert array[...].tolist() == [[1, 149, -299, 1]] * 20


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
    # One is forgotten unless it is used.
    used = key_lock(store, "used")
    for number in range(3 * locks._MANY):
        key_lock(store, str(number))
    assert len(locks._locks) <= locks._MANY
    assert key_lock(store, "used") is used


def test_a_chunk_that_another_changes_is_written_later(tmp_path: Path, seen: Seen, monkeypatch: Any) -> None:
    array = xzarr3.create_array(tmp_path / "a", shape=16, chunks=2, dtype="int8", compressors=None)
    array[...] = 1
    seen.taken()
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


class OtherSum(Crc32cCodec):
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
    command = [sys.executable, "-c", textwrap.dedent(GUARDED), str(arrays)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
