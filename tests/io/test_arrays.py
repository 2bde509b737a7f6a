"""Arrays against numpy: any shape, layout, selection and sequence of operations, and failures in between."""

import itertools
import json
import math
import multiprocessing
import pickle
import shutil
import tempfile
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast

import _strategies
import dask
import dask.array as da
import numcodecs
import numpy as np
import pytest
import xarray as xr
from _conformance import contents
from _documents import zarray
from _killed import MortalStore
from _large_as_small import large_as_small
from _slow import slow
from _strategies import attempt, native, same_bits, selections, values
from _things import Thing, refused, refuses
from _waiting import WaitingStore
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import xzarr3
from xzarr3 import DataTypeValidationError, MetadataError, ReadOnlyError, SelectionError, StoreError
from xzarr3.codecs import BloscCodec, BytesCodec, GzipCodec, TransposeCodec
from xzarr3.codecs.numcodecs.filters import FixedScaleOffsetCodec
from xzarr3.dtypes import RawBytes
from xzarr3.model import metadata

LAYOUTS: dict[str, dict[str, Any]] = {
    "plain": {"compressors": None}, "zstd": {}, "shards": {"shards": (2, 6)},
    "gzip": {"compressors": GzipCodec(1)}, "uneven": {"chunks": [[2, 2, 2, 3], [3, 1, 2]]},
}  # fmt: skip
ROUND_TRIPS: list[dict[str, Any]] = [
    {"chunks": (2, 3)}, {"chunks": (1, 2), "shards": (2, 4)}, {"chunks": ([1, 3], [2, 1, 2])}
]  # fmt: skip


def made(store: xzarr3.Store | None = None, path: str = "", **options: Any) -> xzarr3.Array:
    return xzarr3.create_array(xzarr3.MemoryStore() if store is None else store, path, **options)


def simple(shape: Any = (4, 6), **options: Any) -> xzarr3.Array:
    """An array of int16, its elements counted up."""
    data = np.arange(math.prod(shape), dtype="int16").reshape(shape)
    return made(data=data, **{"chunks": (2, 3), **options})


def laid_out(layout: str, old: Any, store: xzarr3.Store | None = None) -> xzarr3.Array:
    """An array with these values, in chunks of 2 by 3 unless the layout says otherwise."""
    return made(store, data=old, **{"chunks": (2, 3), **LAYOUTS[layout]})


class Operations(RuleBasedStateMachine):
    """An array in a store beside one of numpy's, through writes, resizes, appends, reopening and pickling."""

    folder: str | None = None
    older: xzarr3.Array | None = None
    shrunk = False

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()

    @initialize(data=st.data(), large=st.booleans())
    def make(self, data: st.DataObject, large: bool) -> None:
        if large:
            self.stack.enter_context(large_as_small())
        self.data_type = data.draw(st.sampled_from(_strategies.DATA_TYPES))
        shape = data.draw(_strategies.shapes(max_dims=3))
        layouts = (_strategies.layouts, _strategies.uneven_layouts)
        options = data.draw(st.one_of(*(layout(self.data_type, shape) for layout in layouts)))
        self.keep_empty = options.get("write_empty_chunks", False)
        self.places: dict[Any, Any] = {}
        store: xzarr3.Store = xzarr3.MemoryStore()
        if data.draw(st.booleans()):
            self.folder = tempfile.mkdtemp()
            store = xzarr3.LocalStore(self.folder)
        self.attributes: dict[str, Any] = {}
        self.array = made(store, "group/array", shape=shape, **options)
        self.size = data.draw(st.sampled_from([None, 1, 600, 2000, 2**20]))
        self.array.chunk_cache = self.size and xzarr3.ChunkCache(self.size)
        self.model = self.filled(shape)
        if data.draw(st.booleans()):
            xzarr3.consolidate_metadata(store)

    def filled(self, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        return np.full(shape, self.array.fill_value, self.array.dtype)

    def teardown(self) -> None:
        self.stack.close()
        if self.folder is not None:
            shutil.rmtree(self.folder)

    @rule(data=st.data(), threads=st.sampled_from([None, 1, 3]))
    def write(self, data: st.DataObject, threads: int | None) -> None:
        selection = data.draw(selections(self.model.shape))
        new = data.draw(values(self.data_type, np.shape(self.model[selection])))
        kind = data.draw(st.sampled_from(["whole", "scalar", "broadcast", "strided", "fill value"]))
        if kind == "scalar":
            new = data.draw(_strategies.elements(self.data_type))
        elif kind == "broadcast" and new.ndim and 0 not in new.shape:
            new = new[tuple(slice(0, 1) if data.draw(st.booleans()) else slice(None) for _ in new.shape)]
        elif kind == "strided" and new.ndim:
            new = np.repeat(new, 2, axis=0)[::-2]
        elif kind == "fill value":
            new = self.array.fill_value
        other = data.draw(st.booleans())
        array = xzarr3.open_array(self.array.store, "group/array", mode="r+") if other else self.array
        array.write_empty_chunks = self.keep_empty
        array.set(selection, new, threads=threads)
        self.model[selection] = new

    @rule(data=st.data())
    def resize(self, data: st.DataObject) -> None:
        shape = tuple(data.draw(st.integers(0, 10)) for _ in self.model.shape)
        self.array.resize(shape)
        self.shrunk = True  # What is left of a chunk may be the fill value alone.
        old, self.model = self.model, self.filled(shape)
        both = tuple(slice(min(pair)) for pair in zip(shape, old.shape, strict=True))
        self.model[both] = old[both]

    @precondition(lambda self: self.model.ndim and self.model.size < 5000)
    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        axis = data.draw(st.integers(-self.model.ndim, self.model.ndim - 1))
        shape = list(self.model.shape)
        shape[axis] = data.draw(st.integers(0, 4))
        new = data.draw(values(self.data_type, tuple(shape)))
        self.model = np.concatenate([self.model, new], axis=axis)
        assert self.array.append(new, axis=axis) == self.model.shape

    @rule(how=st.sampled_from(["path", "group", "pickle"]))
    def reopen(self, how: str) -> None:
        if how == "pickle":
            self.array = pickle.loads(pickle.dumps(self.array))
            return
        options: Any = {"mode": "r+", "chunk_cache": self.size}
        if how == "path":
            self.array = xzarr3.open_array(self.array.store, "group/array", **options)
        else:
            self.array = xzarr3.open_group(self.array.store, **options)["group/array"]  # type: ignore[assignment]
        self.array.write_empty_chunks = self.keep_empty

    @rule()
    def keep_a_handle(self) -> None:
        self.older = xzarr3.open_array(self.array.store, "group/array", mode="r+")
        self.older.write_empty_chunks = self.keep_empty

    @precondition(lambda self: self.older is not None)
    @rule(data=st.data())
    def use_the_older_handle(self, data: st.DataObject) -> None:
        """It does not know of what was appended, or cut off, since it was opened."""
        older = cast("xzarr3.Array", self.older)
        selection = data.draw(selections(older.shape))
        part = self.model[(*map(slice, older.shape), ...)]
        if part.shape != older.shape:
            if older.size:
                with pytest.raises(StoreError, match="open it again"):
                    older[...] = older.fill_value
            return
        new = data.draw(values(self.data_type, np.shape(part[selection])))
        older.set(selection, new)
        part[selection] = new
        assert same_bits(older.get(), part)

    @rule(key=st.text(max_size=3), value=st.integers())
    def set_attribute(self, key: str, value: int) -> None:
        self.array.attrs[key] = value
        self.attributes[key] = value

    @rule(data=st.data(), threads=st.sampled_from([1, 4]))
    def read(self, data: st.DataObject, threads: int) -> None:
        selection = data.draw(selections(self.model.shape))
        expected = np.asarray(self.model[selection])
        assert same_bits(self.array.get(selection, threads=threads), expected)
        out = np.empty_like(expected)
        assert self.array.get(selection, out=out, threads=threads) is out
        assert same_bits(out, expected)
        for task in self.array.chunk_tasks():
            assert same_bits(task(), self.model[task.selection])

    @invariant()
    def all_is_the_same(self) -> None:
        if not hasattr(self, "array"):
            return
        assert self.array.shape == self.model.shape
        assert same_bits(self.array.get(), self.model)
        assert dict(self.array.attrs) == self.attributes
        cache = self.array.chunk_cache
        if cache is not None:
            held = sum(each.values.nbytes + 512 for each in cache._kept.values())
            assert cache.nbytes == held <= cache.size
        grid, tasks = self.array.metadata.chunk_grid, list(self.array.chunk_tasks())
        grid.check(self.array.shape)
        places = {task.coords: [part.start for part in task.selection] for task in tasks}
        places = {at: (starts, grid.chunk_shape_at(at)) for at, starts in places.items()}
        assert all(self.places.get(at, place) == place for at, place in places.items()), "chunks stay"
        self.places = places
        if self.array.size and self.array.ndim and not self.keep_empty:  # A scalar is always stored.
            prefix = "group/array/"
            keys = {key for key in self.array.store.list() if key.startswith(prefix)} - {f"{prefix}zarr.json"}
            units = {task.key: self.model[task.selection] for task in tasks}
            assert keys <= units.keys()
            fill = self.array.fill_value.tobytes()
            empty = [key for key in keys if units[key].tobytes() == fill * units[key].size]
            assert not empty or self.shrunk, "what holds only the fill value is not stored"


SEQUENCES = settings(max_examples=60, stateful_step_count=15)
Operations.TestCase.settings = settings(SEQUENCES, max_examples=15)
TestOperations = Operations.TestCase


@pytest.mark.slow
class TestMoreOperations(Operations.TestCase):  # type: ignore[misc, valid-type]
    settings = SEQUENCES


@pytest.mark.parametrize(("dtype", "value"), [
        ("int8", np.nan), ("int8", np.inf), ("int8", 0.5), ("int8", 128), ("int8", -129), ("uint8", -1),
        ("uint64", -1), ("uint64", 2.0**64), ("int64", 2.0**63), ("int64", 2**63), ("int32", 2.0**31),
        ("bool", 2), ("bool", 0.5), ("bool", np.nan), ("float32", 1e39), ("float16", 65520.0),
        ("float32", 1j), ("complex64", 1e39), ("int8", "1"), ("float64", "1"), ("int8", None),
        ("float64", None), ("int8", b"1"), ("int64", np.datetime64("2000-01-01")), ("int8", 1j),
        ("r24", b"abcd"), ("r24", 5), ("r24", np.void(b"ab")), ("int8", np.array([0, 0, 0, np.nan])),
        ("float64", Thing()), ("int16", {"a": 1}), ("uint8", 2**70), ("float64", 10**400),
        ("int8", np.array([(1, 2)], "i1,i1")),
], ids=repr)  # fmt: skip
def test_values_that_a_type_cannot_hold(dtype: str, value: Any) -> None:
    array = xzarr3.create_array(xzarr3.MemoryStore(), "a", shape=4, chunks=2, dtype=dtype)
    before = array[...]
    places = (..., 1) if np.ndim(value) == 0 else (...,)
    for error in refuses(lambda at: array.set(at, value), places, DataTypeValidationError, "accepted:"):
        assert "'/a'" in str(error)
        assert str(native(dtype)) in str(error)
    new = np.array([value]) if np.ndim(value) == 0 else value
    refused(DataTypeValidationError, None, lambda: array.append(new))
    assert same_bits(array[...], before)
    assert (array.shape, list(array.store.list_prefix("a/"))) == ((4,), ["a/zarr.json"])


def test_values_of_other_byte_orders_and_shapes() -> None:
    array, new = simple(), np.arange(24, dtype=">i2").reshape(4, 6)
    array[...] = -new
    array[...] = new[np.newaxis, np.newaxis]  # As numpy does, leading dimensions of length 1 are dropped.
    assert np.array_equal(array[...], new)
    assert array[...].dtype.isnative
    assert made(data=new)[...].dtype.isnative
    shapes = [(5,), (4, 5), (2, 4, 6), (3, 1), (6, 4), (0,)]
    refuses(lambda shape: array.set(..., np.zeros(shape, "int16")), shapes, SelectionError, "shape")
    assert np.array_equal(array[...], new)
    array[::-1] = array
    assert np.array_equal(array[...], new[::-1])
    one = [np.array(["one"]), np.array([b"one"]), np.array(["2020"], "M8[Y]"), np.ones(1, [("a", "i4")])]
    for single, (shape, selection) in itertools.product(one, (((2,), 0), ((), ...))):
        array = made(shape=shape, dtype=single.dtype)
        array[selection] = single
        assert array[selection] == single[0]


@pytest.mark.parametrize("name", ["float16", "float32", "float64", "complex64", "complex128"])
def test_a_chunk_of_negative_zeros_or_other_nans_is_not_empty(name: str) -> None:
    array = made(shape=4, chunks=2, dtype=name, fill_value=0)
    array[...] = -native(name).type(0)
    assert np.signbit(array[...].real).all()
    assert len(list(array.store.list())) == 3
    nans = [value for value in _strategies.special(name) if np.isnan(value)]
    array = made(shape=4, chunks=2, dtype=name, fill_value=nans[0])
    array[0:2] = nans[1]
    array[2:4] = nans[0]
    assert array[0].tobytes() == nans[1].tobytes()
    assert [task.key for task in array.chunk_tasks() if array.store.exists(task.key)] == ["c/0"]


@pytest.mark.parametrize("options", [{}, {"shards": (4, 6)}], ids=["chunks", "shards"])
def test_fill_only_chunks_are_stored_on_request(options: dict[str, Any]) -> None:
    array = made(shape=(4, 6), chunks=(2, 3), dtype="int16", write_empty_chunks=True, **options)
    array[0:2, 0:3] = array[2, 3] = 0
    for each in (array, pickle.loads(pickle.dumps(array))):
        each[...] = 0
        assert all(array.store.exists(task.key) for task in array.chunk_tasks())
    assert (array[...] == 0).all()
    if options:
        assert len(bytes(array.store.get("c/0/0") or b"")) > 4 * 12


@pytest.mark.parametrize(("dtype", "items", "fill"), [
    ("string", ["é\0b", "", "x" * 300], "no"), ("bytes", [b"\0", b"", b"c"], b"-")])  # fmt: skip
def test_elements_of_any_size_are_cut_off_and_filled(dtype: str, items: list[Any], fill: Any) -> None:
    array = made(data=np.array(items, object), dtype=dtype, fill_value=fill, chunks=2)
    assert array[...].tolist() == items
    array.resize(2)
    array.resize(4)
    assert array[...].tolist() == [*items[:2], fill, fill]
    array[...] = fill
    assert list(array.store.list()) == ["zarr.json"]


def test_parts_of_chunks_whose_truth_values_are_other_bytes() -> None:
    """Any byte but zero is true, also where only a part of a chunk is read."""
    array = made(shape=(4, 300), chunks=(4, 300), dtype="bool", compressors=None)
    stored = np.arange(1200, dtype="u1").reshape(4, 300)
    array.store.set("c/0/0", stored.tobytes())
    for selection in ((1, 5), (slice(None), 7), (slice(1, 3), slice(0, 300, 7)), (...,)):
        assert array.get(selection).view("u1").tolist() == (stored[selection] != 0).view("u1").tolist()


def test_fields_are_read_into_what_fits_them() -> None:
    values = np.array([(n, n / 2, f"e{n}") for n in range(11)], [("x", "i4"), ("y", "f8"), ("name", "U3")])
    array = made(data=values, chunks=2, shards=4)
    out = np.empty(2, "float64")
    assert array.get(("y", slice(3, 5)), out=out) is out
    assert out.tolist() == [1.5, 2.0]
    assert array[["name", "x"]].dtype == values[["name", "x"]].dtype
    refused(SelectionError, "cannot read float64 of shape", partial(array.get, ("y", slice(3, 6)), out=out))
    refused(SelectionError, "not a selection of fields", lambda: array["x", "y"])
    array["x"] = 3
    array[1:3, ["y", "name"]] = np.array([(1.5, "a"), (2.5, "b")], [("y", "f8"), ("name", "U3")])
    values["x"] = 3
    values["y"][1:3], values["name"][1:3] = [1.5, 2.5], ["a", "b"]
    assert same_bits(array[...], values)


@pytest.mark.parametrize("options", [
    {"compressors": None}, {"compressors": "zstd"}, {"shards": ()}, {"chunk_key_encoding": "v2"},
], ids=str)  # fmt: skip
def test_arrays_of_no_dimensions(options: dict[str, Any]) -> None:
    array = made(shape=(), dtype="float64", fill_value=2.5, **options)
    assert array[()] == array.read_chunk(()) == 2.5
    assert (type(array[()]), type(array[...]), array.get().shape) == (np.float64, np.float64, ())
    array[...] = -1.5
    assert xzarr3.open_array(array.store)[()] == -1.5
    assert (array.nchunks, array.cdata_shape, array.size) == (1, (), 1)
    assert [task() for task in array.chunk_tasks()] == [np.float64(-1.5)]
    refused(SelectionError, None, lambda: array[0], lambda: array.append(3))
    refused(TypeError, None, lambda: len(array), lambda: next(iter(array)))
    assert float(np.asarray(array)) == -1.5


def test_iteration_conversion_and_comparison() -> None:
    array = simple()
    expected = array[...]
    assert (len(array), [row.tolist() for row in array]) == (4, expected.tolist())
    assert same_bits(np.asarray(array), expected)
    assert same_bits(np.asarray(array, "float32"), expected.astype("float32"))
    refused(ValueError, "copy", lambda: np.array(array, copy=False))
    assert (np.add(array, 1) == expected + 1).all()
    others, words = (2, 2.0, np.int64(2), expected), r"read it first: array\[\.\.\.\] == value"
    refuses(lambda other: array == other, others, xzarr3.ArgumentTypeError, words)
    refuses(lambda other: array != other, others, xzarr3.ArgumentTypeError, words)
    assert (expected == array).all(), "numpy reads it"
    assert array != "auto"
    assert ([None, array].index(array), {array: 1}[array]) == (1, 1)


def test_result_array_has_to_fit() -> None:
    array = simple()
    frozen = np.zeros((4, 6), "int16")
    frozen.flags.writeable = False
    unfit = [np.empty((4, 5), "i2"), np.empty((4, 6), "i4"), np.empty(24, "i2"), np.empty((4, 6), ">i2")]
    others = [np.int16(7), [0] * 24, bytearray(48), memoryview(bytearray(48))]
    for words, outs in (("into", unfit), ("read-only", [frozen]), ("accepted: an ndarray", others)):
        refuses(lambda out: array.get(out=out), outs, SelectionError, words)
    assert not frozen.any()
    for fits in (np.empty((6, 4), "i2").T, np.empty((8, 12), "i2")[::2, ::-2], array[...].copy("F")):
        assert array.get(out=fits) is fits
        assert np.array_equal(fits, array[...])


def test_properties() -> None:
    array = made(
        None, "/group/array/", shape=(10, 20), chunks=(3, 5), shards=(6, 20), dtype="float32", fill_value=-1,
        dimension_names=("y", None), filters=TransposeCodec((1, 0)), serializer=BytesCodec("big"),
        compressors=[BloscCodec("lz4"), GzipCodec(1)],
    )  # fmt: skip
    expected = {
        "path": "group/array", "name": "/group/array", "basename": "array", "shape": (10, 20), "ndim": 2,
        "size": 200, "nbytes": 800, "chunks": (3, 5), "shards": (6, 20), "write_chunks": (6, 20),
        "cdata_shape": (4, 4), "nchunks": 16, "shard_grid_shape": (2, 1), "nshards": 2,
        "order": "F", "dtype": np.float32, "fill_value": -1,
        "dimension_names": ("y", None), "filters": (TransposeCodec((1, 0)),),
        "serializer": BytesCodec("big"), "read_only": False,
    }  # fmt: skip
    assert {name: getattr(array, name) for name in expected} == expected
    assert array.zdtype.name == "float32"
    assert isinstance(array.fill_value, np.float32)
    assert [codec.name for codec in array.compressors] == ["blosc", "gzip"]
    for part in ("/group/array", "(10, 20)", "float32", "blosc"):
        assert part in array.info
    assert "float32" in repr(array)
    assert xzarr3.open_array(array.store, "group/array").compressors == array.compressors
    assert made(array.store, "w", shape=(10, 20), chunks=(-1, 5), dtype="int8").chunks == (10, 5)


def test_pickled_arrays_are_the_same() -> None:
    attributes = {"a": [1, None]}
    array = simple(attributes=attributes, dimension_names=["x", None], fill_value=-3)
    others = (array, xzarr3.open_array(array.store), array.blocks, array.attrs, array.explain())
    again, read_only, blocks, attrs, found = pickle.loads(pickle.dumps(others))
    assert again.store is array.store
    for name in ("shape", "dtype", "chunks", "compressors", "fill_value", "dimension_names", "path"):
        assert getattr(again, name) == getattr(read_only, name) == getattr(array, name)
    assert (again.read_only, read_only.read_only) == (False, True)
    assert np.array_equal(blocks[1, 0], array.blocks[1, 0])
    assert dict(again.attrs) == dict(attrs) == attributes
    assert list(found) == list(array.explain())


@settings(max_examples=100)
@given(st.data())
def test_plans_name_just_the_chunks_that_are_touched(data: st.DataObject) -> None:
    shape = data.draw(_strategies.shapes())
    chunks = tuple(data.draw(st.integers(1, 5)) for _ in shape)
    array = xzarr3.create_array(xzarr3.MemoryStore(), shape=shape, chunks=chunks, dtype="int8")
    selection = data.draw(selections(shape))
    touched = np.zeros(shape, bool)
    touched[selection] = True
    expected = {tuple(int(n) // c for n, c in zip(at, chunks, strict=True)) for at in np.argwhere(touched)}
    plan = array.plan(selection)
    assert (plan.shape, plan.number) == (np.shape(touched[selection]), len(expected))
    assert list(plan.coords()) == sorted(expected)
    tasks = list(array.chunk_tasks(selection))
    assert [task.coords for task in tasks] == sorted(expected)
    assert [task.key for task in tasks] == ["/".join(["c", *map(str, at)]) for at in sorted(expected)]


def test_work_and_room_do_not_depend_on_the_number_of_chunks() -> None:
    array = made(shape=(2**62, 2**62), chunks=1, dtype="int8", fill_value=5)
    assert (array.nchunks, array[5:7, -1].tolist()) == (2**124, [5, 5])
    array[2**61, 2**61] = 3
    assert (len(list(array.store.list())), array[2**61 - 1 : 2**61 + 2, 2**61].tolist()) == (2, [5, 3, 5])
    assert array[:: 2**60, 0].tolist() == [5, 5, 5, 5]
    assert next(array.chunk_tasks((slice(3, 9), 4))).coords == (3, 4)


def test_chunks_are_clipped_to_the_array() -> None:
    array, one = simple((3, 4)), simple((5,), chunks=2)
    for shape in (np.int64(7), (np.int32(5),)):
        one.resize(shape)
    assert (array.cdata_shape, array.chunk_key((1, 1))) == ((2, 2), "c/1/1")
    assert array.read_chunk((0, 0)).tolist() == [[0, 1, 2], [4, 5, 6]]
    assert array.read_chunk((np.int64(1), 1)).tolist() == [[11]]
    assert one.read_chunk(2).tolist() == one.read_chunk(np.int64(2)).tolist() == [4]
    wrong = [(2, 0), (0, 2), (-1, 0), (0,), (0, 0, 0), 0, (), (0.5, 0), ("0", 0), (None, 0)]
    for call in (array.read_chunk, array.chunk_key):
        refuses(call, wrong, SelectionError)


def sum_of(task: xzarr3.ChunkTask) -> int:
    return int(task().sum())


@pytest.mark.slow
def test_tasks_run_in_other_processes(tmp_path: Path) -> None:
    data = np.arange(1000, dtype="int64").reshape(10, 100)
    local = xzarr3.create_array(tmp_path / "a.zarr", "x", data=data, chunks=(4, 30), shards=(8, 60))
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        for array in (local, made(data=data, chunks=(4, 30))):
            tasks = list(array.chunk_tasks())
            assert sum(pool.map(sum_of, tasks)) == data.sum()
            assert len(pickle.dumps(tasks[0])) < 40_000
    assert [task.shape for task in local.chunk_tasks((0, slice(None)))] == [(8, 60), (8, 40)]


@pytest.mark.parametrize("options", [slow({"chunks": 256}), {"shards": 256, "chunks": 8}])
def test_parts_of_one_chunk_written_by_threads_are_all_kept(store: xzarr3.Store, options: Any) -> None:
    handles = [made(store, shape=256, dtype="int16", **options), xzarr3.open_array(store, mode="r+")]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda at: handles[at % 2].set(at, at + 1), range(256)))
    assert handles[0][...].tolist() == list(range(1, 257))


@pytest.mark.parametrize("whole", [[1, 2, 3, 4], [0, 0, 0, 0]], ids=["values", "the fill value"])
@pytest.mark.parametrize("shards", [None, 4])
def test_a_chunk_written_whole_while_a_part_of_it_is_changed(whole: list[int], shards: int | None) -> None:
    """Either one comes first; never is the whole one lost but for the part."""
    has_read, written = threading.Event(), threading.Event()

    class Slow(xzarr3.MemoryStore):
        def get(self, key: str, byte_range: Any = None) -> Any:
            value = super().get(key, byte_range)
            if threading.current_thread().name == "partial" and not has_read.is_set():
                has_read.set()
                written.wait(0.2)  # Not for ever: who writes has to wait for this thread.
            return value

    array = xzarr3.create_array(Slow(), data=np.full(4, 9, "i4"), chunks=2 if shards else 4, shards=shards)
    partial = threading.Thread(target=array.set, args=(slice(0, 1), 5), name="partial")
    partial.start()
    assert has_read.wait(120)
    array[:] = whole
    written.set()
    partial.join()
    assert array[:].tolist() in (whole, [5, *whole[1:]])


def test_cutting_off_much_that_was_never_written_is_cheap() -> None:
    array = made(WaitingStore(0), shape=2**20, chunks=1, dtype="int8")
    array[-1] = array[5] = 1
    array.store.count.requests.clear()
    array.resize(10)
    assert sorted(array.store.list()) == ["c/5", "zarr.json"]
    assert 0 < len(array.store.count.requests) < 10_000


def test_shapes_that_an_array_cannot_get() -> None:
    row, column = np.zeros((1, 6)), np.zeros((4, 1))
    array, either = simple(), (SelectionError, MetadataError)
    before = contents(array.store)
    shapes = [5, (4,), (4, 6, 1), (-1, 6), (), (2**63, 6), "ab", (4, None), (4, 6.5), None]
    refuses(array.resize, shapes, either)
    refuses(lambda given: array.append(*given), [
        (np.zeros((1, 5)), 0), (np.zeros(6), 0), (column, 0), (row, 1), (row, 2), (row, -3), (row[None], 0),
        (5, 0), ([], 0), (row, None), (row, "a"), (row, 0.0),
    ], either)  # fmt: skip
    assert (array.shape, contents(array.store)) == ((4, 6), before)
    # Chunks of no length cover nothing more.
    grid = {"name": "regular", "configuration": {"chunk_shape": [0, 3]}}
    array = _strategies.stored(_strategies.array_document(shape=[0, 6], chunk_grid=grid))
    assert array[...].shape == (0, 6)
    before, new = contents(array.store), np.zeros((2, 6), "int16")
    refused(MetadataError, "chunk_shape", lambda: array.resize((2, 6)), lambda: array.append(new))
    assert (contents(array.store), array.shape) == (before, (0, 6))


def test_read_only_arrays_are_not_changed(store: xzarr3.Store) -> None:
    made(store, data=np.arange(6), chunks=2, attributes={"a": 1})
    before = contents(store)
    arrays = [xzarr3.open_array(store), xzarr3.open_array(xzarr3.ReadOnlyStore(store), mode="r+")]
    if isinstance(store, xzarr3.LocalStore):
        closed = xzarr3.LocalStore(store.root, read_only=True)
        arrays.append(xzarr3.open_array(closed, mode="r+"))
        refused(ReadOnlyError, None, lambda: made(closed, data=np.arange(3), overwrite=True))
    for array in arrays:
        assert array.read_only
        attrs = array.attrs
        refused(
            ReadOnlyError, None, partial(array.__setitem__, 0, 1), partial(array.set, ..., 1),
            partial(array.resize, 3), partial(array.append, [1]), partial(attrs.update, a=2),
            partial(attrs.__delitem__, "a"), attrs.clear,
        )  # fmt: skip
        assert array.attrs["a"] == 1
    assert contents(store) == before


class FailingStore(MortalStore):
    error = StoreError("no space left")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("threads", [1, 4])
def test_a_failed_write_leaves_old_or_new_chunks(layout: str, threads: int) -> None:
    old = np.arange(48, dtype="int16").reshape(8, 6)
    parts: list[Any] = [..., (slice(1, 7), slice(1, None)), (slice(None, None, -2), 3)]
    for selection, allowed in itertools.product(parts, range(4)):
        store = FailingStore()
        array = laid_out(layout, old, store)
        new = old.copy()
        new[selection] = -1
        store.left = allowed
        refused(StoreError, "no space", partial(array.set, selection, -1, threads=threads))
        store.left = float("inf")
        changed = 0
        for task in xzarr3.open_array(store).chunk_tasks():
            found = task()
            assert same_bits(found, old[task.selection]) or same_bits(found, new[task.selection])
            changed += not same_bits(found, old[task.selection])
        assert changed <= allowed


@pytest.mark.filterwarnings("ignore:others may have to wait")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_failed_append_leaves_the_old_array(layout: str) -> None:
    old, new = np.arange(18, dtype="int16").reshape(3, 6), np.full((4, 6), -5, "int16")
    for allowed in range(20):
        store = FailingStore()
        array = laid_out(layout, old, store)
        store.left = allowed
        _, error = attempt(lambda array=array: array.append(new), StoreError)
        store.left = float("inf")
        after = xzarr3.open_array(store)
        if error is None:
            assert after.shape == array.shape == (7, 6)
            assert same_bits(after[...], np.concatenate([old, new]))
            break
        assert same_bits(after[...], old)
        assert same_bits(array[...], old)
        array.resize((9, 6))
        assert not array[3:].any(), "nothing was left behind"
        array.resize((3, 6))
        array.append(new)  # Once there is room again it works.
        assert same_bits(xzarr3.open_array(store)[3:], new)
    assert allowed > 2


@pytest.mark.filterwarnings("ignore:others may have to wait")
def test_a_failed_resize_leaves_the_old_array_or_the_new() -> None:
    for allowed in range(8):
        store = FailingStore()
        array = xzarr3.create_array(store, data=np.arange(16, dtype="int16"), chunks=3)
        store.left = allowed
        _, error = attempt(lambda array=array: array.resize(4), StoreError)
        store.left = float("inf")
        after = xzarr3.open_array(store)
        assert after.shape == array.shape
        assert after.shape == ((16,) if allowed <= 1 else (4,))  # The first write is that of a lease.
        assert after[...].tolist() == list(range(after.shape[0]))
        if error is None:
            break
    assert 2 < allowed < 9


NOT_MADE: list[dict[str, Any]] = [
    {"data": [1.5], "dtype": "int8"}, {"data": [1, 2, 3], "shape": (2,)},
    {"data": [1], "attributes": {"a": float("nan")}}, {"data": [1], "attributes": {"a": Thing()}},
    {"data": [1], "fill_value": "x"}, {"data": [1], "chunks": 0}, {"data": [1], "compressors": "nope"},
    {"data": [1], "dimension_names": ["x", "y"]}, {"data": [Thing()]},
    {"data": ["text"], "dtype": "int8"}, {"shape": (2**63,), "dtype": "int8"},
    {"shape": (1,) * 65, "dtype": "int8"}, {"shape": (-1,), "dtype": "int8"}, {"dtype": "int8"},
    {"shape": 3}, {"data": [1], "chunk_key_encoding": "v3"},
    {"data": [1], "chunk_key_encoding": {"name": "v2", "separator": "-"}},
    {"data": [1], "zarr_format": 2}, {"data": [1], "shards": 3, "chunks": 2},
]  # fmt: skip


@pytest.mark.parametrize("options", NOT_MADE, ids=range(len(NOT_MADE)))
def test_an_array_that_cannot_be_made_leaves_the_old_one(options: dict[str, Any]) -> None:
    array = made(None, "a", data=np.arange(4), chunks=2, attributes={"old": True})
    before = contents(array.store)
    make = partial(made, array.store, **options)
    both = partial(make, "a", overwrite=True), partial(make, "b/c")
    refused((MetadataError, SelectionError), None, *both)
    assert contents(array.store) == before


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_corrupt_chunk_is_not_overwritten_by_a_partial_write(layout: str) -> None:
    array = laid_out(layout, np.arange(24, dtype="int16").reshape(4, 6))
    array.store.set("c/0/0", b"corrupt")
    write, cut = partial(array.set, (0, 0), 1), partial(array.resize, (1, 2))
    refused(xzarr3.ChunkDecodeError, "c/0/0", write, cut)
    assert bytes(array.store.get("c/0/0") or b"") == b"corrupt"
    array[0:2] = 3
    assert (array[0:2] == 3).all()


def of_version_2(**changes: Any) -> xzarr3.Array:
    document = zarray(**{"shape": [5], "chunks": [2], "dtype": "<i4", "fill_value": None, **changes})
    store = xzarr3.MemoryStore({".zarray": json.dumps(document).encode()})
    return xzarr3.open_array(store, mode="r+")


def test_a_fill_value_that_is_null_keeps_every_chunk() -> None:
    array = of_version_2()
    assert array.fill_value is None
    assert array[...].tolist() == [0] * 5
    array[:3] = 0
    assert contents(array.store).keys() == {".zarray", "0", "1"}
    array[3:] = 7
    array.resize((3,))
    assert bytes(array.store.get("1") or b"") == bytes(8)


@pytest.mark.parametrize("fill", [0, None])
@pytest.mark.parametrize("name", ["bits", "default_scalar", "from_json_scalar"])
def test_an_element_for_which_there_is_no_memory(monkeypatch: Any, name: str, fill: int | None) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(RawBytes, name, fails)
    needed = name != "from_json_scalar" or fill is not None
    with pytest.raises(MetadataError, match="no memory for one element") if needed else nullcontext():
        of_version_2(shape=[1], chunks=[1], dtype="|V12", fill_value=fill)


@pytest.mark.slow
def test_chains_of_large_fill_values_are_not_kept() -> None:
    assert metadata._MAX_KEPT_FILL < 10**6
    metadata._chain.cache_clear()
    for size in (1000, 10**6):
        array = made(shape=1, dtype=f"r{8 * size}", compressors=None)
        assert xzarr3.open_array(array.store)[:].tobytes() == bytes(size)
        assert metadata._chain.cache_info().currsize == 1


@pytest.mark.parametrize("offsets", [(100, 100.0), (100.0, 100)], ids=repr)
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_codecs_that_are_equal_and_not_the_same(offsets: tuple[float, float], zarr_format: int) -> None:
    """numpy subtracts an integer from unsigned bytes with the result wrapped, a float without."""
    data = np.array([1, 2, 200], "u1")
    options: dict[str, Any] = {"chunks": 3, "compressors": None, "zarr_format": zarr_format}
    for offset in offsets:
        array = made(data=data, filters=[FixedScaleOffsetCodec("|u1", "<i2", offset, 1)], **options)
        peer = numcodecs.FixedScaleOffset(offset, 1, "|u1", "<i2")
        assert bytes(array.store.get(array.chunk_key(0)) or b"") == peer.encode(data).tobytes()
        again = xzarr3.open_array(array.store)
        (codec,) = (codec for codec in again.metadata.codecs if isinstance(codec, FixedScaleOffsetCodec))
        assert repr(codec.offset) == repr(offset)


def test_members_of_a_consolidated_group_are_those_below_its_path() -> None:
    group = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    names = ["g", "g1", "g10", "g1/z", "g1/a", "g1/a/b", "g1-a", "g1.a", "g10/c", "g1é", "g1/é"]
    inline = {"kind": "inline", "must_understand": False, "metadata": dict.fromkeys(names, group)}
    document = {**group, "consolidated_metadata": inline}
    root = xzarr3.open_group(xzarr3.MemoryStore({"zarr.json": json.dumps(document).encode()}))
    for name in names:
        below = [path.removeprefix(f"{name}/") for path in names if path.startswith(f"{name}/")]
        assert [path for path, _ in root[name].members(None)] == below  # type: ignore[union-attr]
    assert [path for path, _ in root.members(None)].count("g1/a/b") == 1
    assert list(pickle.loads(pickle.dumps(root))["g1"]) == ["z", "a", "é"]


def test_a_data_array_keeps_the_names_of_its_dimensions() -> None:
    attrs = {"units": "K", "valid_range": np.array([0, 400], "i2")}
    coords = {"lat": [10.0, 20.0], "time": [0, 1, 2]}
    given = xr.DataArray(np.arange(6.0).reshape(3, 2), dims=("time", "lat"), coords=coords, attrs=attrs)
    for data in (given, given.variable, given.chunk({"time": 2})):
        store = xzarr3.MemoryStore()
        root = xzarr3.create_group(store)
        root.create_array("t", data=data)
        array = xzarr3.open_array(store, "t")
        assert array.dimension_names == ("time", "lat")
        assert dict(array.attrs) == {"units": "K", "valid_range": [0, 400]}
        np.testing.assert_array_equal(array[...], given.values)
        assert list(root) == ["t"]  # The coordinates are not stored.
        assert xzarr3.open_dataset(store)["t"].dims == given.dims
    named = xzarr3.create_array(store, "n", data=given, dimension_names=["a", None], attributes={"b": 1})
    assert (named.dimension_names, dict(named.attrs)) == (("a", None), {"b": 1})
    refused(MetadataError, "data", lambda: made(data=given.to_dataset(name="t")))


def test_a_dask_array_is_stored_block_by_block() -> None:
    lock, made, kept, most = threading.Lock(), [], [], []

    def block(block: Any) -> Any:
        with lock:
            made.append(1)
            most.append(len(made) - len(kept))
        return block

    class Counting(xzarr3.MemoryStore):
        def put(self, key: str, pieces: Any) -> None:  # type: ignore[override]
            super().put(key, pieces)
            with lock:
                kept.extend([1] * ("/c/" in key))

    values, store = np.arange(200 * 16, dtype="i4").reshape(200, 16), Counting()
    data = da.from_array(values, chunks=(2, 16)).map_blocks(block, dtype="i4", meta=np.empty((0, 0), "i4"))
    with dask.config.set(scheduler="threads", num_workers=2):
        array = xzarr3.create_array(store, "a", data=data)
    assert (array.chunks, len(made)) == ((2, 16), 100)
    assert max(most) < 20
    np.testing.assert_array_equal(xzarr3.open_array(store, "a")[...], values)


@pytest.mark.parametrize("zarr_format", [3, 2, "3-draft"])
def test_dask_arrays_of_any_blocks_are_stored(zarr_format: Any) -> None:
    values = np.arange(70.0).reshape(7, 10)
    data = da.from_array(values, chunks=((1, 4, 2), (3, 7)))
    store = xzarr3.MemoryStore()
    make: Any = partial(xzarr3.create_array, store, zarr_format=zarr_format)
    assert make("g/a", data=data).chunks == (4, 7)
    assert make("g/b", data=data, chunks=(5, 3), dtype="f4", fill_value=3).dtype == np.float32
    assert make("g/c", data=data[0], shape=(3, 10)).shape == (3, 10)
    assert make("g/d", data=data.sum()).shape == ()
    if zarr_format == 3:
        assert make("g/e", data=data, shards=(4, 5)).shards == (4, 5)
        np.testing.assert_array_equal(xzarr3.open_array(store, "g/e")[...], values)
    for name, expected in (("a", values), ("b", values), ("c", values[[0, 0, 0]]), ("d", values.sum())):
        np.testing.assert_array_equal(xzarr3.open_array(store, f"g/{name}")[...], expected)
    refused(xzarr3.NodeExistsError, None, lambda: make("g/a", data=data))
    refused(MetadataError, "compute_chunk_sizes", lambda: make("g/f", data=data[data > 3]))


def test_an_array_is_replaced_by_what_is_made_of_it(store: xzarr3.Store) -> None:
    values = np.arange(40)
    xzarr3.create_array(store, "a", data=values, chunks=8)
    lazy = xzarr3.from_zarr(xzarr3.open_array(store, "a"))
    xzarr3.create_array(store, "a", data=lazy[::-1] + 1, chunks=5, overwrite=True)
    np.testing.assert_array_equal(xzarr3.open_array(store, "a")[...], values[::-1] + 1)

    def fails(block: Any) -> Any:
        raise ArithmeticError("no block")

    broken = da.concatenate([da.zeros(20, chunks=5), da.zeros(20, chunks=5).map_blocks(fails, dtype=float)])
    replace, make = (partial(xzarr3.create_array, store, path, data=broken) for path in "ab")
    refused(ArithmeticError, "no block", partial(replace, overwrite=True), make)
    np.testing.assert_array_equal(xzarr3.open_array(store, "a")[...], values[::-1] + 1)
    unsafe = da.from_array(np.array([1.5]))
    refused(xzarr3.DataTypeValidationError, None, lambda: made(store, "b", data=unsafe, dtype="i4"))
    assert list(xzarr3.open_group(store)) == ["a"]


def same_elements(data_type: Any, one: Any, other: Any) -> bool:
    left, right = np.asarray(one), np.asarray(other)
    if left.shape != right.shape:
        return False
    bits = data_type.in_native_order().bits
    return all(bits(left[at]) == bits(right[at]) for at in np.ndindex(left.shape))


@pytest.mark.parametrize("zarr_format", [3, slow(2), "3-draft"])
@given(st.data())
@settings(max_examples=120)
def test_every_type_in_every_format(zarr_format: Any, data: st.DataObject) -> None:
    data_type = data.draw(_strategies.data_types())
    machine = data_type.in_native_order()
    shape = data.draw(_strategies.shapes(max_dims=3))
    values = data.draw(_strategies.arrays_of(machine, shape))
    options = {
        "chunks": tuple(data.draw(st.sampled_from([1, 2, 4])) for _ in shape),
        "fill_value": data.draw(st.one_of(st.none(), _strategies.scalars(machine))),
        "compressors": data.draw(st.sampled_from([None, "gzip"])), "order": data.draw(st.sampled_from("CF")),
        "write_empty_chunks": data.draw(st.booleans()), "zarr_format": zarr_format,
    }  # fmt: skip
    store = xzarr3.MemoryStore()
    array, error = attempt(lambda: made(store, "a", shape=shape, dtype=data_type, **options), MetadataError)
    if error is not None:
        assert list(store.list()) == []
        assert zarr_format != 3
        return
    array[...] = values
    again = xzarr3.open_array(store, "a")
    assert same_elements(data_type, again.get(), values)
    if shape and math.prod(shape):
        part = tuple(slice(None, None, data.draw(st.sampled_from([1, 2, -1]))) for _ in shape)
        assert same_elements(data_type, again.get(part), values[part])
        first = (0,) * len(shape)
        array[first] = array.metadata.fill_value
        values = values.copy()
        values[first] = machine.filled((), array.metadata.fill_value)[()]
    # Where another format has the data type, so has a copy.
    other = 3 if zarr_format != 3 else data.draw(st.sampled_from([2, "3-draft"]))
    target = xzarr3.MemoryStore()
    copied, error = attempt(lambda: xzarr3.copy(again, target, zarr_format=other), MetadataError)
    if error is not None:
        assert (list(target.list()), zarr_format) == ([], 3)
        return
    for found in (again, copied):
        assert same_elements(data_type, found.get(), values)
        # The copy of a scalar, which is always stored, may lack a fill value.
        if options["fill_value"] is not None and (shape or found is again):
            assert machine.bits(found.metadata.fill_value) == machine.bits(options["fill_value"])


@given(st.data())
@settings(max_examples=40)
def test_every_type_through_dask(data: st.DataObject) -> None:
    data_type = data.draw(_strategies.data_types())
    machine = data_type.in_native_order()
    values = data.draw(_strategies.arrays_of(machine, (4, 5)))
    store = xzarr3.MemoryStore()
    layout = data.draw(st.sampled_from(ROUND_TRIPS))
    xzarr3.create_array(store, "a", data=values, dtype=data_type, **layout)
    lazy = xzarr3.from_zarr(store, "a", chunks="units")
    assert lazy.dtype == machine.to_native_dtype()
    assert same_elements(data_type, lazy.compute(scheduler="sync"), values)
    target = xzarr3.create_array(store, "b", shape=(4, 5), dtype=data_type, **layout)
    for blocks in (lazy, lazy.rechunk((3, 4))):
        target[...] = target.fill_value
        xzarr3.store(blocks, target, scheduler=data.draw(st.sampled_from(["sync", "threads"])))
        assert same_elements(data_type, target.get(), values)
