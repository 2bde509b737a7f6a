"""Arrays in stores as dask arrays, and dask arrays into stores, on the schedulers of one machine."""

from __future__ import annotations

import gc
import itertools
import os
import pickle
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import dask
import dask.array as da
import numpy as np
import pytest
from _opening import opening
from _things import Thing
from _unprivileged import run_child
from dask.blockwise import Blockwise
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import xzarr3
from xzarr3 import (
    AlignmentError,
    Array,
    ChunkDecodeError,
    DataTypeValidationError,
    LocalStore,
    MemoryStore,
    NodeNotFoundError,
    NodeTypeError,
    ReadOnlyError,
    SelectionError,
    Store,
    StoreError,
    from_zarr,
    store,
)
from xzarr3._types import Buffer, ByteRange
from xzarr3.stores import ValueReader
from xzarr3.stores.readers import BytesReader

SCHEDULER = "sync"


class CountingStore(MemoryStore):
    """Remembers which values were read and written."""

    def __init__(self) -> None:
        super().__init__()
        self.read: Counter[str] = Counter()
        self.written: Counter[str] = Counter()

    def get(self, key: str, byte_range: ByteRange | None = None) -> Buffer | None:
        self.read[key] += 1
        return super().get(key, byte_range)

    _reader = opening

    def opened(self, key: str, part: Any, version: object | None) -> ValueReader | None:
        self.read[key] += 1
        value = super().get(key)
        return None if value is None else BytesReader(value)

    def set(self, key: str, value: Buffer) -> None:
        self.written[key] += 1
        super().set(key, value)

    def forget(self) -> None:
        self.read.clear()
        self.written.clear()

    @property
    def chunks_read(self) -> Counter[str]:
        return Counter({key: n for key, n in self.read.items() if not key.endswith("zarr.json")})


def _values(*shape: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.random.default_rng(sum(shape)).random(shape) + 1


def _make(where: Store | Path | str, path: str = "", **options: Any) -> Array:
    return xzarr3.create_array(where, path, **{"data": _values(30, 40), "chunks": (10, 10), **options})


def _contents(where: Store) -> dict[str, bytes]:
    return {key: bytes(where.get(key) or b"") for key in where.list()}


def _tasks(*collections: Any) -> int:
    """How many tasks are left after optimization."""
    return len(dict(dask.optimize(*collections)[0].__dask_graph__()))


# Reading


@pytest.mark.parametrize("layout", [{}, {"shards": (20, 20)}, {"compressors": None}], ids=str)
@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ("units", None),
        ("auto", None),
        (-1, ((30,), (40,))),
        (7, ((7, 7, 7, 7, 2), (7, 7, 7, 7, 7, 5))),
        ((10, 40), ((10, 10, 10), (40,))),
        (((1, 29), (13, 20, 7)), ((1, 29), (13, 20, 7))),
        ((-1, 25), ((30,), (25, 15))),
        (100, ((30,), (40,))),
        ({0: 15}, ((15, 15), None)),
        ("1 kiB", None),
        ((None, 20), (None, (20, 20))),
    ],
    ids=str,
)
def test_chunks(chunks: Any, expected: Any, layout: dict[str, Any], store: Store) -> None:
    array = _make(store, **layout)
    lazy = from_zarr(array, chunks=chunks)
    for wanted, found, size in zip(expected or (None, None), lazy.chunks, (30, 40), strict=True):
        assert wanted is None or found == wanted
        assert sum(found) == size
    if chunks == "units":
        assert lazy.chunksize == array.write_chunks
    if chunks == "1 kiB":
        assert max(map(np.prod, itertools.product(*lazy.chunks))) * 8 <= 1024
    assert (lazy.shape, lazy.dtype, lazy.ndim) == (array.shape, array.dtype, array.ndim)
    result = lazy.compute(scheduler=SCHEDULER)
    assert type(result) is np.ndarray
    assert result.dtype == array.dtype
    np.testing.assert_array_equal(result, _values(30, 40))
    for block, (rows, columns) in zip(
        lazy.to_delayed().ravel(), itertools.product(*map(_slices, lazy.chunks)), strict=True
    ):
        np.testing.assert_array_equal(
            block.compute(scheduler=SCHEDULER), _values(30, 40)[rows, columns], strict=True
        )


def _slices(lengths: tuple[int, ...]) -> list[slice]:
    edges = np.cumsum((0, *lengths)).tolist()
    return list(itertools.starmap(slice, itertools.pairwise(edges)))


@pytest.mark.parametrize("chunks", ["units", "auto", -1])
@pytest.mark.parametrize(
    ("shape", "units"),
    [
        ((), ()),
        ((0,), (3,)),
        ((0, 5), (2, 2)),
        ((5, 0, 2), (2, 3, 1)),
        ((1,), (100,)),
        ((7,), (7,)),
        ((7,), (3,)),
        ((3, 1, 5, 2), (2, 1, 5, 1)),
    ],
)
def test_shapes(shape: tuple[int, ...], units: tuple[int, ...], chunks: Any, store: Store) -> None:
    values = np.arange(1, int(np.prod(shape)) + 1, dtype="int16").reshape(shape)
    array = xzarr3.create_array(store, data=values, chunks=units)
    lazy = from_zarr(array, chunks=chunks)
    assert lazy.shape == shape
    np.testing.assert_array_equal(lazy.compute(scheduler=SCHEDULER), values, strict=True)
    np.testing.assert_array_equal((lazy + 1).sum().compute(scheduler=SCHEDULER), (values + 1).sum())
    np.testing.assert_array_equal(lazy[...].compute(scheduler=SCHEDULER), values)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "complex64", ">f4"])
def test_data_types(dtype: str, store: Store) -> None:
    values = np.arange(12).reshape(3, 4).astype(dtype)
    array = xzarr3.create_array(store, data=values, chunks=2)
    lazy = from_zarr(array)
    assert lazy.dtype == array.dtype == lazy._meta.dtype
    result = lazy.compute(scheduler=SCHEDULER)
    assert result.dtype == lazy.dtype
    np.testing.assert_array_equal(result, values)


EXPRESSIONS: dict[str, Callable[[Any], Any]] = {
    "slice": lambda x: x[3:27, 5:],
    "steps": lambda x: x[::3, ::-7],
    "reverse": lambda x: x[::-1, ::-1],
    "integer": lambda x: x[17],
    "element": lambda x: x[17, -1],
    "empty": lambda x: x[5:5],
    "slice of a slice": lambda x: x[5:25][::2][1:, 3],
    "fancy": lambda x: x[[3, 29, 3, 0]],
    "new axis": lambda x: x[:, None, 4:8],
    "mask": lambda x: x[x > 1.5],
    "arithmetic": lambda x: (x * 2 - 1) / (x + 3) ** 2,
    "with itself": lambda x: x + x[::-1] * x.T[:30, :30].sum(),
    "sum": lambda x: x.sum(),
    "mean": lambda x: x.mean(axis=1),
    "std": lambda x: x.std(axis=0),
    "extremes": lambda x: x.max(axis=0) - x.min(axis=0),
    "argmax": lambda x: x.argmax(axis=0),
    "cumulative": lambda x: x.cumsum(axis=1),
    "transpose": lambda x: x.T @ x,
    "reshape": lambda x: x.reshape(-1)[::7],
    "comparison": lambda x: (x > 1.5).any(axis=0),
}


@pytest.mark.parametrize("chunks", ["units", "auto", (7, 13)], ids=str)
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_expressions_equal_those_of_numpy(name: str, chunks: Any) -> None:
    array = _make(MemoryStore())
    found = EXPRESSIONS[name](from_zarr(array, chunks=chunks)).compute(scheduler=SCHEDULER)
    np.testing.assert_allclose(found, EXPRESSIONS[name](_values(30, 40)), rtol=1e-13)


@pytest.mark.parametrize("chunks", [(30, 40), (10, 40), (3, 7), ((1, 28, 1), (39, 1))], ids=str)
def test_rechunk(chunks: Any) -> None:
    lazy = from_zarr(_make(MemoryStore()), chunks="units").rechunk(chunks)
    np.testing.assert_array_equal(lazy.compute(scheduler=SCHEDULER), _values(30, 40))


def test_results_are_independent(store: Store) -> None:
    """Buffers that threads use again must not show in results that were handed out."""
    array = _make(store, data=np.arange(20_000.0), chunks=1000, compressors=None)
    lazy = from_zarr(array, chunks="units")
    blocks = dask.compute(*lazy.to_delayed(), scheduler="threads")
    again = dask.compute(*lazy.to_delayed(), scheduler="sync")
    np.testing.assert_array_equal(np.concatenate(blocks), np.arange(20_000.0))
    again[0][:] = -1
    np.testing.assert_array_equal(lazy.compute(scheduler=SCHEDULER), np.arange(20_000.0))
    assert all(block.flags.writeable for block in blocks)


def test_sources(tmp_path: Path) -> None:
    local = LocalStore(tmp_path / "x.zarr")
    array = _make(local, "a/b")
    names = set()
    for source, path in (
        (array, ""),
        (local, "a/b"),
        (local.root, "a/b"),
        (Path(local.root), "/a/b/"),
        (f"file://{local.root}", "a/b"),
        (f"{local.root}/a", "b"),
    ):
        lazy = from_zarr(source, path)
        np.testing.assert_array_equal(lazy.compute(scheduler=SCHEDULER), _values(30, 40))
        names.add(lazy.name)
    assert len(names) == 2, "the same array has the same name; seen from another root it may have another"
    with pytest.raises(NodeNotFoundError):
        from_zarr(local, "a/c")
    with pytest.raises(NodeTypeError):
        from_zarr(local, "a")
    assert xzarr3.from_zarr is from_zarr


@pytest.mark.parametrize(
    "chunks", [(3,), (1, 2, 3), "bogus", (10, 50, 0), ((10, 10), (40,)), (-3, 4), Thing()]
)
def test_impossible_chunks(chunks: Any) -> None:
    with pytest.raises((ValueError, TypeError, NotImplementedError)):
        from_zarr(_make(MemoryStore()), chunks=chunks)


def test_errors_reach_the_caller() -> None:
    memory = MemoryStore()
    array = _make(memory)
    lazy = from_zarr(array, chunks="units")
    memory.set("c/1/1", b"broken")
    for scheduler in ("sync", "threads"):
        with pytest.raises(ChunkDecodeError, match="c/1/1"):
            lazy.mean().compute(scheduler=scheduler)
    np.testing.assert_array_equal(lazy[:, 20:].compute(scheduler=SCHEDULER), _values(30, 40)[:, 20:])


# The graph


@pytest.mark.parametrize("chunks", ["units", "auto", (7, 9), ((1, 29), (13, 27))], ids=str)
@pytest.mark.parametrize("shape", [(), (50,), (30, 40), (8, 9, 10)])
def test_one_blockwise_layer(shape: tuple[int, ...], chunks: Any) -> None:
    chunks = chunks if isinstance(chunks, str) or len(shape) == 2 else -1
    lazy = from_zarr(_make(MemoryStore(), data=_values(*shape), chunks=7 if shape else ()), chunks=chunks)
    assert list(lazy.dask.layers) == [lazy.name]
    layer = lazy.dask.layers[lazy.name]
    assert isinstance(layer, Blockwise)
    assert not layer.is_materialized()
    assert len(lazy.dask) == lazy.npartitions == len(dict(lazy.dask))
    assert set(dict(lazy.dask)) == set(dask.core.flatten(lazy.__dask_keys__()))


def test_it_fuses_with_what_follows() -> None:
    a = from_zarr(_make(MemoryStore()), chunks="units")
    b = from_zarr(_make(MemoryStore()), chunks="units")
    assert a.npartitions == 12
    assert _tasks(a) == 12
    assert _tasks((a + 1) * 2) == 12
    assert _tasks(da.sqrt(a) - b / 3) == 12
    assert _tasks(a.astype("float32").clip(0, 1).map_blocks(np.negative)) == 12
    assert _tasks((a + 1).sum(split_every=100)) == 12 + 1
    (optimized,) = dask.optimize(da.sqrt(a) - b / 3)
    np.testing.assert_allclose(
        optimized.compute(scheduler=SCHEDULER), np.sqrt(_values(30, 40)) - _values(30, 40) / 3
    )


@pytest.mark.parametrize(
    ("selection", "units"),
    [
        ((slice(0, 5), slice(0, 5)), {(0, 0)}),
        ((slice(12, 13), slice(39, None)), {(1, 3)}),
        ((slice(9, 11), slice(0, 1)), {(0, 0), (1, 0)}),
        ((29, 5), {(2, 0)}),
        ((15,), {(1, 0), (1, 1), (1, 2), (1, 3)}),
        ((slice(None, None, 20), 0), {(0, 0), (2, 0)}),
        ((slice(20, 10, -1), slice(25, 5, -20)), {(1, 2), (2, 2)}),
        ((slice(None, 10), [0, 35]), {(0, 0), (0, 3)}),
    ],
    ids=str,
)
@pytest.mark.parametrize("layout", [{}, {"shards": (10, 10), "chunks": (5, 5)}], ids=["chunks", "shards"])
def test_slicing_touches_only_the_units_it_needs(
    selection: Any, units: set[tuple[int, int]], layout: dict[str, Any]
) -> None:
    counting = CountingStore()
    array = _make(counting, **layout)
    lazy = from_zarr(array, chunks="units")
    counting.forget()
    found = (lazy[selection] + 1).compute(scheduler=SCHEDULER)
    values = _values(30, 40)
    np.testing.assert_array_equal(found, values[selection] + 1)
    assert set(counting.chunks_read) == {array.chunk_key(unit) for unit in units}
    assert max(counting.chunks_read.values(), default=0) <= 1
    if not any(isinstance(chosen, list) for chosen in selection):
        assert _tasks(lazy[selection] + 1) <= 3 * len(units) + 1


def test_building_reads_nothing() -> None:
    counting = CountingStore()
    array = _make(counting)
    counting.forget()
    lazy = from_zarr(array)[5:, ::2].mean(axis=0)
    dask.optimize(lazy)
    pickle.dumps(lazy)
    assert not counting.read
    assert not counting.written


@pytest.mark.parametrize("shards", [None, (20, 15)])
@pytest.mark.parametrize("shape", [(97, 61), (400, 3), (1, 1000)])
def test_auto_chunks_are_made_of_whole_units(shape: tuple[int, int], shards: tuple[int, int] | None) -> None:
    """Each unit is read once, by one task."""
    counting = CountingStore()
    array = _make(counting, data=_values(*shape), chunks=(10, 5), shards=shards)
    lazy = from_zarr(array)
    for along, unit in zip(lazy.chunks, array.write_chunks, strict=True):
        assert all(edge % unit == 0 for edge in np.cumsum(along)[:-1])
    assert lazy.npartitions <= array.nchunks
    counting.forget()
    np.testing.assert_array_equal(lazy.compute(scheduler=SCHEDULER), _values(*shape))
    assert set(counting.chunks_read.values()) == {1}
    assert len(counting.chunks_read) == array.nchunks


def test_auto_chunks_are_of_a_size_that_is_worth_a_task() -> None:
    array = xzarr3.create_array(
        MemoryStore(), shape=(3650, 720, 1440), chunks=(1, 720, 1440), dtype="float32"
    )
    lazy = from_zarr(array)
    assert 16 <= lazy.npartitions <= 2000
    sizes = [int(np.prod(block)) * 4 for block in itertools.islice(itertools.product(*lazy.chunks), 20)]
    assert max(sizes) <= 64 * 2**20
    small = from_zarr(xzarr3.create_array(MemoryStore(), shape=10**8, chunks=1000, dtype="int8"))
    assert small.npartitions <= 200


MILLION = [((1000, 1000), "units"), ((100, 100, 100), "units"), ((10**6,), "auto"), ((1000, 1000), "auto")]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["memory", "local"])
@pytest.mark.parametrize(("shape", "chunks"), MILLION, ids=str)
def test_a_million_chunks_are_no_work(
    shape: tuple[int, ...], chunks: str, where: str, tmp_path: Path
) -> None:
    """The time does not depend on the number of chunks."""
    array = xzarr3.create_array(
        MemoryStore() if where == "memory" else tmp_path, shape=shape, chunks=1, dtype="f4"
    )
    from_zarr(array, chunks=chunks)
    took = []
    gc.collect()
    for _ in range(9):
        start = time.thread_time()
        lazy = from_zarr(array, chunks=chunks)
        took.append(time.thread_time() - start)
    assert array.nchunks == 10**6
    assert min(took) < 0.020
    corner = lazy[(slice(0, 2),) * len(shape)].compute(scheduler=SCHEDULER)
    assert (corner == 0).all()


@pytest.mark.parametrize("where", ["memory", "local"])
def test_graphs_pickle_small(where: str, tmp_path: Path) -> None:
    array = xzarr3.create_array(
        MemoryStore() if where == "memory" else tmp_path, shape=(1000, 1000), chunks=1, dtype="f4"
    )
    lazy = from_zarr(array, chunks="units")
    assert len(cloudpickle.dumps(lazy.dask)) < 20_000
    assert len(cloudpickle.dumps((lazy + 1).dask)) < 40_000
    auto = from_zarr(array)
    assert len(cloudpickle.dumps(auto.dask)) < 5_000
    twin = pickle.loads(pickle.dumps(lazy))
    assert twin.name == lazy.name
    assert (twin[3:5, 3:5].compute(scheduler=SCHEDULER) == 0).all()


# Names


@pytest.mark.slow
def test_name_is_the_same_in_every_process(local_store: LocalStore) -> None:
    array = _make(local_store, "a/b", attributes={"z": 1, "a": {"b": [1.5, None]}})
    expected = from_zarr(array).name
    assert from_zarr(array).name == expected
    assert from_zarr(xzarr3.open_array(local_store.root, "a/b")).name == expected
    assert from_zarr(pickle.loads(pickle.dumps(array))).name == expected
    program = "import sys, xzarr3; print(xzarr3.from_zarr(sys.argv[1], 'a/b').name)"
    for seed in ("1", "2"):
        out = subprocess.run(
            [sys.executable, "-c", program, local_store.root],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        assert out.stdout.strip() == expected
    memory = _make(MemoryStore())
    assert run_child(lambda: from_zarr(memory).name).checked() == from_zarr(memory).name


def test_names_tell_apart_what_differs(local_store: LocalStore) -> None:
    a, b = _make(local_store, "a"), _make(local_store, "b")
    other = _make(MemoryStore(), "a")
    assert from_zarr(a, chunks=(10, 10)).name == from_zarr(a, chunks="units").name
    names = [
        from_zarr(a).name,
        from_zarr(a, chunks=(7, 7)).name,
        from_zarr(a, chunks=((7, 7, 7, 7, 2), (40,))).name,
        from_zarr(a, chunks=((7, 7, 7, 2, 7), (40,))).name,
        from_zarr(b).name,
        from_zarr(other).name,
        from_zarr(a, name="mine").name,
    ]
    assert len(set(names)) == len(names)
    assert names[-1] == "mine"
    np.testing.assert_array_equal(from_zarr(a, name="mine").compute(scheduler=SCHEDULER), a[...], strict=True)


CHANGES: dict[str, Callable[[Array], object]] = {
    "whole": lambda array: array.set(..., 5),
    "element": lambda array: array.set((12, 12), 5),
    "last element": lambda array: array.set((-1, -1), 5),
    "erased chunk": lambda array: array.set((slice(0, 10), slice(0, 10)), 0),
    "attributes": lambda array: array.attrs.update(x=1),
    "resize": lambda array: array.resize((20, 40)),
    "append": lambda array: array.append(np.ones((1, 40))),
    "same values": lambda array: None,
}


@pytest.mark.parametrize("process", ["here", "elsewhere"])
@pytest.mark.parametrize("change", CHANGES)
def test_name_changes_with_the_content(change: str, process: str, local_store: LocalStore) -> None:
    array = _make(local_store)
    before = from_zarr(array, chunks=-1)
    if process == "here":
        CHANGES[change](array)
    else:
        run_child(lambda: CHANGES[change](xzarr3.open_array(local_store.root, mode="r+")) and None).checked()
    found = xzarr3.open_array(local_store)
    after = from_zarr(found, chunks=-1)
    assert (after.name == before.name) is (change == "same values")
    np.testing.assert_array_equal(after.compute(scheduler=SCHEDULER), found[...])


@pytest.mark.parametrize("change", [name for name in CHANGES if name != "same values"])
def test_name_changes_with_the_content_of_a_memory_store(change: str) -> None:
    array = _make(MemoryStore())
    before = from_zarr(array).name
    CHANGES[change](array)
    assert from_zarr(array).name != before


@pytest.mark.slow
@pytest.mark.parametrize("process", ["here", "elsewhere"])
def test_name_changes_with_any_chunk_of_many(process: str, local_store: LocalStore) -> None:
    """Two arrays computed together must not be taken for one because the change was not looked at."""
    array = _make(local_store, data=np.arange(1, 3001.0), chunks=1, compressors=None)
    rng = random.Random(29)
    stale = []
    for at in rng.sample(range(3000), 12):
        before = from_zarr(array)
        time.sleep(0.01)  # The clocks of some file systems tick so slowly.
        if process == "here":
            array[at] = -1
        else:
            run_child(lambda at=at: array.__setitem__(at, -1)).checked()
        if from_zarr(array).name == before.name:
            stale.append(at)
    assert stale == []


def test_two_versions_in_one_computation(local_store: LocalStore) -> None:
    array = _make(local_store, data=np.arange(10.0), chunks=5)
    old = from_zarr(array)
    array.resize((20,))
    array[10:] = 1
    new = from_zarr(array)
    total = dask.compute(old.sum(), new.sum(), scheduler=SCHEDULER)
    assert total == (45.0, 55.0)


# Writing


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
@pytest.mark.parametrize("layout", [{}, {"shards": (20, 20)}, {"compressors": None}], ids=str)
def test_store(layout: dict[str, Any], scheduler: str, store: Store) -> None:
    target = _make(store, data=np.zeros((30, 40)), **layout)
    source = da.from_array(_values(30, 40), chunks=(20, 20))
    assert xzarr3.store(source, target, scheduler=scheduler) is None
    np.testing.assert_array_equal(xzarr3.open_array(store)[...], _values(30, 40))


@pytest.mark.slow
def test_store_in_other_processes(local_store: LocalStore) -> None:
    target = _make(local_store, "x", data=np.zeros((30, 40)))
    other = _make(local_store, "y", data=np.zeros((30, 40)))
    source = da.from_array(_values(30, 40), chunks=(20, 20))
    memory = _make(MemoryStore(), data=np.zeros((30, 40)))
    with dask.config.set(scheduler="processes", num_workers=2):
        store([source, source + 1], [target, other])
        np.testing.assert_array_equal(from_zarr(target, chunks=15).compute(), _values(30, 40))
        with pytest.raises(ReadOnlyError):
            store(source, memory)
    assert (memory[...] == 0).all()
    np.testing.assert_array_equal(target[...], _values(30, 40))
    np.testing.assert_array_equal(other[...], _values(30, 40) + 1)


def test_every_unit_is_written_once() -> None:
    counting = CountingStore()
    target = _make(counting, data=np.zeros((35, 45)))
    counting.forget()
    store(da.from_array(_values(35, 45), chunks=(20, 30)), target, scheduler="threads")
    assert set(counting.written.values()) == {1}
    assert len(counting.written) == target.nchunks
    assert not counting.chunks_read, "whole units need not be read"
    np.testing.assert_array_equal(target[...], _values(35, 45))


def test_blocks_are_fused_with_their_writing() -> None:
    source = from_zarr(_make(MemoryStore()), chunks="units")
    target = _make(MemoryStore(), data=np.zeros((30, 40)))
    delayed = store((source + 1) * 2, target, compute=False)
    assert delayed is not None
    assert _tasks(delayed) == 12 + 1
    delayed.compute(scheduler=SCHEDULER)
    np.testing.assert_array_equal(target[...], (_values(30, 40) + 1) * 2)


def test_store_later() -> None:
    counting = CountingStore()
    target = _make(counting, "x", data=np.zeros((30, 40)))
    other = _make(counting, "y", data=np.zeros((30, 40)))
    before = _contents(counting)
    source = da.from_array(_values(30, 40), chunks=(10, 40))
    first = store(source, target, compute=False)
    second = store(source, other, compute=False)
    again = store(source + 1, target, compute=False)
    assert _contents(counting) == before
    assert first is not None
    assert first.compute(scheduler=SCHEDULER) is None
    np.testing.assert_array_equal(target[...], _values(30, 40))
    assert (other[...] == 0).all()
    dask.compute(second, again, scheduler="threads")
    np.testing.assert_array_equal(target[...], _values(30, 40) + 1)
    np.testing.assert_array_equal(other[...], _values(30, 40))
    target[...] = 0
    first.compute(scheduler=SCHEDULER)
    np.testing.assert_array_equal(target[...], _values(30, 40))
    pickle.loads(cloudpickle.dumps(again)).compute(scheduler=SCHEDULER)
    np.testing.assert_array_equal(target[...], _values(30, 40) + 1)


@pytest.mark.parametrize(
    ("region", "chunks"),
    [
        ((slice(10, 20), slice(None)), (10, 20)),
        ((slice(10, 20),), (10, 20)),
        ((slice(None, 20), slice(10, 25)), (20, 10)),
        ((slice(20, None), slice(-10, None)), (10, 10)),
        ((slice(3, 9), slice(12, 18)), (6, 6)),
        ((slice(3, 13), slice(0, 10)), ((7, 3), (10,))),
        ((..., slice(0, 10)), (10, 10)),
        (..., (10, 10)),
        ((slice(5, 5), slice(None)), (1, 10)),
    ],
    ids=str,
)
def test_regions(region: Any, chunks: Any, store: Store) -> None:
    target = _make(store)
    expected = _values(30, 40)
    part = -expected[region]
    expected[region] = part
    xzarr3.store(da.from_array(part, chunks=chunks), target, regions=region, scheduler="threads")
    np.testing.assert_array_equal(target[...], expected)


def test_appended_edge(store: Store) -> None:
    """The array grows by what is not a multiple of its units, several times."""
    target = xzarr3.create_array(store, data=_values(7, 4), chunks=(5, 4))
    expected = _values(7, 4)
    for step, count in enumerate((3, 4, 1, 11)):
        more = _values(count, 4) + step
        start = target.shape[0]
        target.resize((start + count, 4))
        left = -start % 5
        blocks = ((left, count - left), (4,)) if 0 < left < count else (count, 4)
        region = (slice(start, None), slice(None))
        xzarr3.store(da.from_array(more, chunks=blocks), target, regions=region, scheduler="threads")
        expected = np.concatenate([expected, more])
        np.testing.assert_array_equal(xzarr3.open_array(store)[...], expected)


def test_several_sources_and_targets(store: Store) -> None:
    targets = [_make(store, name, data=np.zeros((30, 40))) for name in ("x", "y")]
    source = da.from_array(_values(30, 40), chunks=(10, 20))
    xzarr3.store([source, source * 2], targets, scheduler="threads")
    np.testing.assert_array_equal(targets[0][...], _values(30, 40))
    np.testing.assert_array_equal(targets[1][...], _values(30, 40) * 2)
    halves = [(slice(0, 10), slice(None)), (slice(10, 30), slice(None))]
    xzarr3.store(
        (source[:10] + 5, source[10:] + 6), (targets[0], targets[0]), regions=halves, scheduler="threads"
    )
    np.testing.assert_array_equal(targets[0][:10], _values(30, 40)[:10] + 5)
    np.testing.assert_array_equal(targets[0][10:], _values(30, 40)[10:] + 6)
    assert xzarr3.store([], []) is None


def test_a_shared_source_is_computed_once() -> None:
    calls = []

    def count(block: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        calls.append(block.shape)
        return block

    source = da.from_array(_values(30, 40), chunks=(10, 20)).map_blocks(
        count, dtype="f8", meta=np.empty((0, 0))
    )
    targets = [_make(MemoryStore(), data=np.zeros((30, 40))) for _ in range(3)]
    store([source, source + 1, source.rechunk((30, 40))], targets, scheduler=SCHEDULER)
    assert len(calls) == 6
    np.testing.assert_array_equal(targets[1][...], _values(30, 40) + 1)


def test_a_target_may_be_its_own_source(store: Store) -> None:
    target = _make(store)
    xzarr3.store(from_zarr(target) * 2, target, scheduler="threads")
    np.testing.assert_array_equal(target[...], _values(30, 40) * 2)
    xzarr3.store(from_zarr(target) * 2, target, scheduler="threads")
    np.testing.assert_array_equal(target[...], _values(30, 40) * 4)


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,)])
def test_small_shapes_are_stored(shape: tuple[int, ...]) -> None:
    target = xzarr3.create_array(MemoryStore(), shape=shape, dtype="f8", chunks=2 if shape else ())
    store(da.ones(shape), target, scheduler=SCHEDULER)
    np.testing.assert_array_equal(target[...], np.ones(shape))


# Refusals


def _refused(
    error: type[Exception], sources: Any, targets: Any, match: str | None = None, **options: Any
) -> None:
    """``store`` refuses at once, and neither writes nor computes anything."""
    stores = [target.store for target in (targets if isinstance(targets, list | tuple) else [targets])]
    before = [_contents(each) for each in stores]
    for compute in (True, False):
        with pytest.raises(error, match=match):
            store(sources, targets, compute=compute, scheduler=SCHEDULER, **options)
    assert [_contents(each) for each in stores] == before


@pytest.mark.parametrize(
    "chunks",
    [
        (10, 15),
        (5, 10),
        (9, 40),
        (11, 10),
        (1, 1),
        ((10, 10, 5, 5), (40,)),
        ((4, 26), (40,)),
        ((30,), (39, 1)),
    ],
    ids=str,
)
def test_blocks_that_share_a_unit_are_put_together(chunks: Any) -> None:
    for layout in ({}, {"shards": (20, 20)}):
        target = _make(MemoryStore(), data=np.zeros((30, 40)), **layout)
        store(da.from_array(_values(30, 40), chunks=chunks), target, scheduler="threads")
        np.testing.assert_array_equal(target[...], _values(30, 40))


def _never(block: object) -> object:
    raise AssertionError("computed")


def test_misaligned_sources_among_aligned_ones() -> None:
    good = da.from_array(_values(30, 40), chunks=(10, 10))
    bad = good.rechunk((10, 9))
    for sources in itertools.permutations([good, good, bad]):
        targets = [_make(MemoryStore(), data=np.zeros((30, 40))) for _ in range(3)]
        store(list(sources), targets, scheduler=SCHEDULER)
        for target in targets:
            np.testing.assert_array_equal(target[...], _values(30, 40))


@pytest.mark.parametrize("region", [(slice(5, 25),), (slice(5, 25), slice(None)), (slice(1, 21),)], ids=str)
def test_regions_that_shift_blocks_off_the_units(region: Any) -> None:
    target = _make(MemoryStore())
    expected = _values(30, 40)
    expected[region] = 7
    store(da.full((20, 40), 7.0, chunks=(10, 40)), target, regions=region, scheduler="threads")
    np.testing.assert_array_equal(target[...], expected)


@pytest.mark.parametrize(
    ("one", "two", "overlap"),
    [
        ((slice(0, 10),), (slice(0, 10),), True),
        ((slice(0, 15),), (slice(15, 30),), False),
        ((slice(0, 12), slice(0, 10)), (slice(12, 20), slice(0, 10)), False),
        ((slice(0, 30), slice(0, 1)), (slice(29, 30), slice(1, 2)), False),
        (..., (slice(3, 4), slice(3, 4)), True),
    ],
    ids=str,
)
@pytest.mark.parametrize("twin", ["same", "opened", "pickled", "linked"])
def test_two_sources_that_share_a_unit(one: Any, two: Any, overlap: bool, twin: str, tmp_path: Path) -> None:
    """They are refused only if they share elements."""
    target = _make(tmp_path / "store", data=np.zeros((30, 40)))
    if twin == "linked":
        (tmp_path / "link").symlink_to("store")
    other = {
        "same": lambda: target,
        "opened": lambda: xzarr3.open_array(tmp_path / "store", mode="r+"),
        "pickled": lambda: pickle.loads(pickle.dumps(target)),
        "linked": lambda: xzarr3.open_array(tmp_path / "link", mode="r+"),
    }[twin]()
    sources = [da.ones(np.empty((30, 40))[region].shape, chunks=-1) for region in (one, two)]
    if overlap:
        _refused(AlignmentError, sources, [target, other], regions=[one, two])
        return
    store(sources, [target, other], regions=[one, two], scheduler="threads")
    expected = np.zeros((30, 40))
    expected[one] = expected[two] = 1
    np.testing.assert_array_equal(target[...], expected)


def test_two_sources_beside_each_other_are_accepted(tmp_path: Path) -> None:
    """The counterpart: they touch the same rows and the same columns, but no common unit."""
    target = _make(tmp_path / "store", data=np.zeros((30, 40)))
    regions = [(slice(0, 15), slice(0, 20)), (slice(20, 30), slice(0, 20)), (slice(0, 30), slice(20, 40))]
    sources = [da.full((15, 20), 1.0), da.full((10, 20), 2.0), da.full((30, 20), 3.0)]
    sources = [source.rechunk(-1) for source in sources]
    store(sources, [target] * 3, regions=regions, scheduler="threads")
    expected = np.zeros((30, 40))
    for value, region in enumerate(regions, start=1):
        expected[region] = value
    np.testing.assert_array_equal(target[...], expected)


@pytest.mark.parametrize(
    ("shape", "region"),
    [
        ((30, 41), None),
        ((30,), None),
        ((30, 40, 1), None),
        ((40, 30), None),
        ((1, 40), None),
        ((10, 40), (slice(0, 20),)),
        ((10, 40), (slice(25, 35),)),
        ((15, 40), (slice(None, None, 2),)),
        ((30, 40), (slice(None, None, -1),)),
        ((40,), (0,)),
        ((1, 40), (0,)),
        ((30, 40), (slice(None),) * 3),
        ((30, 40), ("x",)),
        ((30, 40), ([0, 1],)),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(shape: tuple[int, ...], region: Any) -> None:
    target = _make(MemoryStore())
    _refused((SelectionError, TypeError), da.ones(shape, chunks=-1), target, regions=region)  # type: ignore[arg-type]


def test_unequal_numbers_are_refused() -> None:
    target = _make(MemoryStore())
    source = da.ones((30, 40), chunks=10)
    _refused(SelectionError, [source, source], [target])
    _refused(SelectionError, [source], [target, target])
    _refused(SelectionError, [source], [target], regions=[..., ...])


def test_sources_of_unknown_shape_are_refused() -> None:
    target = _make(MemoryStore(), data=np.zeros(30), chunks=10)
    source = da.ones(30, chunks=10)
    _refused((SelectionError, ValueError), source[source > 0], target)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "source", [np.ones((30, 40)), [[1.0]], None, dask.delayed(1)], ids=["numpy", "list", "none", "delayed"]
)
def test_sources_of_another_kind_are_refused(source: Any) -> None:
    target = _make(MemoryStore())
    _refused(TypeError, [source], [target])


@pytest.mark.parametrize("target", [np.zeros((30, 40)), "path", None, {}])
def test_targets_of_another_kind_are_refused(target: Any) -> None:
    with pytest.raises(TypeError, match="cannot store"):
        store(da.ones((30, 40)), target)


def test_one_target_for_a_list_of_sources_is_not_read() -> None:
    """An array can be iterated over, which would read all of it before the mistake is found."""
    counting = CountingStore()
    target = _make(counting)
    counting.forget()
    with pytest.raises((SelectionError, TypeError)):
        store([da.ones((30, 40), chunks=10)] * 2, target)  # type: ignore[arg-type]
    assert not counting.chunks_read
    assert not counting.written


def test_read_only_targets_are_refused_before_anything_is_computed(tmp_path: Path) -> None:
    poison = da.ones((30, 40), chunks=10).map_blocks(_never, meta=np.empty((0, 0)))
    _make(tmp_path / "store")
    for target in (
        xzarr3.open_array(tmp_path / "store"),
        xzarr3.open_array(LocalStore(tmp_path / "store", read_only=True), mode="r+"),
    ):
        _refused(ReadOnlyError, poison, target)


def test_values_that_do_not_fit_the_data_type() -> None:
    target = xzarr3.create_array(MemoryStore(), data=np.arange(10), chunks=5)
    with pytest.raises(DataTypeValidationError):
        store(da.from_array(np.full(10, 0.5), chunks=5), target, scheduler=SCHEDULER)
    assert target[:].tolist() == list(range(10))


def test_failing_source_leaves_old_and_new_units(store: Store) -> None:
    target = _make(store, data=np.zeros((30, 40)))

    def fail(block: np.ndarray[Any, Any], block_id: tuple[int, ...]) -> np.ndarray[Any, Any]:
        if block_id == (1, 2):
            raise RuntimeError("no such thing")
        return block

    source = da.from_array(_values(30, 40), chunks=10).map_blocks(fail, dtype="f8", meta=np.empty((0, 0)))
    for scheduler in ("sync", "threads"):
        with pytest.raises(RuntimeError, match="no such thing"):
            xzarr3.store(source, target, scheduler=scheduler)
    for task in target.chunk_tasks():
        unit = task()
        assert (unit == 0).all() or np.array_equal(unit, _values(30, 40)[task.selection])
    assert (target[10:20, 20:30] == 0).all()


def test_failing_store_is_an_error(store: Store) -> None:
    target = _make(store, data=np.zeros((30, 40)))

    def fail(self: Store, key: str, value: Buffer) -> None:
        raise StoreError(f"cannot write key '{key}'")

    store.__class__ = type("Failing", (type(store),), {"set": fail})
    for scheduler in ("sync", "threads"):
        with pytest.raises(StoreError, match="c/"):
            xzarr3.store(da.ones((30, 40), chunks=10), target, scheduler=scheduler)
    assert (target[...] == 0).all()


@st.composite
def _stores(draw: st.DrawFn) -> tuple[Any, ...]:
    """An array, a region of it and blocks of a source: aligned on purpose, or at random."""
    shape, units, inner, region, blocks = [], [], [], [], []
    for _ in range(draw(st.integers(0, 3))):
        size = draw(st.integers(1, 14))
        unit = draw(st.integers(1, 6))
        start = draw(st.integers(0, size - 1))
        stop = draw(st.integers(start + 1, size))
        if draw(st.booleans()):
            cuts = [edge for edge in range(start + 1, stop) if edge % unit == 0 and draw(st.booleans())]
        else:
            cuts = [edge for edge in range(start + 1, stop) if draw(st.booleans())]
        edges = [start, *cuts, stop]
        shape.append(size)
        units.append(unit)
        inner.append(draw(st.sampled_from([n for n in range(1, unit + 1) if unit % n == 0])))
        region.append(slice(start, stop))
        blocks.append(tuple(np.diff(edges).tolist()))
    return tuple(shape), tuple(units), tuple(inner), tuple(region), tuple(blocks), draw(st.booleans())


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_stores())
def test_any_blocks_are_written(case: tuple[Any, ...]) -> None:
    shape, units, inner, region, blocks, sharded = case
    memory = MemoryStore()
    before = np.arange(1, np.prod(shape, dtype=int) + 1, dtype="int32").reshape(shape)
    layout = {"chunks": inner, "shards": units} if sharded else {"chunks": units}
    target = xzarr3.create_array(memory, data=before, fill_value=-7, **layout)
    part = -before[region] * 10
    source = da.from_array(part, chunks=blocks) if shape else da.from_array(part)
    store(source, target, regions=region, scheduler=SCHEDULER)
    expected = before.copy()
    expected[region] = part
    np.testing.assert_array_equal(xzarr3.open_array(memory)[...], expected)


@pytest.mark.parametrize(
    "lengths", [(0, 10, 20), (10, 0, 20), (10, 20, 0), (30, 0), (0, 0, 30), (10, 0, 0, 20)]
)
def test_empty_blocks_write_nothing_and_disturb_nobody(lengths: tuple[int, ...]) -> None:
    """Concatenation and selection leave such blocks behind."""
    target = _make(MemoryStore(), data=np.zeros((30, 40)))
    store(da.from_array(_values(30, 40), chunks=(lengths, (40,))), target, scheduler=SCHEDULER)
    np.testing.assert_array_equal(target[...], _values(30, 40))
    part = _make(MemoryStore(), data=np.zeros((33, 40)))
    region = (slice(3, 33), slice(None))
    single = (0, 7, 23) if lengths[0] == 0 else (7, 0, 23)
    store(da.from_array(_values(30, 40), chunks=(single, (40,))), part, regions=region, scheduler=SCHEDULER)
    np.testing.assert_array_equal(part[3:], _values(30, 40))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5)), min_size=1, max_size=3),
    st.randoms(use_true_random=False),
)
def test_any_blocks_are_read(dimensions: list[tuple[int, int]], rng: random.Random) -> None:
    shape, units = zip(*dimensions, strict=True)
    values = np.arange(1, np.prod(shape, dtype=int) + 1, dtype="int32").reshape(shape)
    array = xzarr3.create_array(MemoryStore(), data=values, chunks=units)
    blocks = []
    for size in shape:
        cuts = sorted(rng.sample(range(1, size), rng.randrange(size))) if size > 1 else []
        blocks.append(tuple(np.diff([0, *cuts, size]).tolist()))
    lazy = from_zarr(array, chunks=tuple(blocks))
    assert lazy.chunks == tuple(blocks)
    np.testing.assert_array_equal(lazy.compute(scheduler=SCHEDULER), values)
    selection = tuple(slice(rng.randrange(size + 1), None, rng.choice([1, 2, -1])) for size in shape)
    np.testing.assert_array_equal((lazy[selection] * 2).compute(scheduler=SCHEDULER), values[selection] * 2)


# Elements other than numbers


def _objects(*items: object) -> np.ndarray[Any, Any]:
    result = np.empty(len(items), object)
    for at, item in enumerate(items):
        result[at] = item
    return result


ELEMENTS: dict[str, tuple[Any, np.ndarray[Any, Any]]] = {
    "string": ("string", np.array(["a", "é\0b", "", "x" * 99, "c", "d", "e"], np.dtypes.StringDType())),
    "bytes": ("bytes", _objects(b"a", b"\0\0", b"", b"x" * 99, b"c\0", b"d", b"e")),
    "struct": (
        [("n", "i4"), ("t", "U2")],
        np.array([(n, f"t{n}") for n in range(7)], [("n", "i4"), ("t", "U2")]),
    ),
    "datetime": (
        "M8[ns]",
        np.array(["2020-01-01", "NaT", "1969-12-31T23:59:59.999999999", *["2000-02-29"] * 4], "M8[ns]"),
    ),
    "timedelta": ("m8[h]", np.array([1, -1, "NaT", 0, 5, 6, 7], "m8[h]")),
    "text": ("U3", np.array(["a", "bcd", "", "éé", "e", "f", "g"], "U3")),
    "raw": ("r24", np.array([b"abc", b"\0\0\0", b"xy\0", b"123", b"4", b"5", b"6"], "V3")),
}


def _check_elements(kind: str, folder: Path, scheduler: Any) -> None:
    dtype, values = ELEMENTS[kind]
    for name, options in (
        ("regular", {"chunks": 3}),
        ("rectilinear", {"chunks": [[1, 4, 2]]}),
        ("sharded", {"chunks": 2, "shards": 4}),
    ):
        source = xzarr3.create_array(folder / kind / name, dtype=dtype, shape=7, **options)
        source[...] = values
        lazy = from_zarr(source, chunks="units")
        assert lazy.dtype == values.dtype == lazy._meta.dtype
        computed = lazy.compute(scheduler=scheduler)
        assert computed.dtype == values.dtype
        assert computed.tolist() == values.tolist()
        assert lazy[::2].rechunk(4).compute(scheduler=scheduler).tolist() == values[::2].tolist()
        target = xzarr3.create_array(folder / kind / f"{name}-copy", dtype=dtype, shape=7, **options)
        store(from_zarr(source, chunks="units"), target, scheduler=scheduler)
        assert target[...].tolist() == values.tolist()
        blocks = da.from_array(values, chunks=lazy.chunks)
        target[...] = values[0]
        store(blocks, target, scheduler=scheduler)
        assert target[...].tolist() == values.tolist()
        again = pickle.loads(pickle.dumps(target))
        assert again[...].tolist() == values.tolist()


@pytest.mark.parametrize("kind", ELEMENTS)
@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_elements_other_than_numbers(kind: str, scheduler: str, tmp_path: Path) -> None:
    _check_elements(kind, tmp_path, scheduler)


@pytest.mark.slow
def test_elements_other_than_numbers_on_a_cluster(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, memory_limit=0, dashboard_address=":0", host="127.0.0.1"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        for kind in ELEMENTS:
            _check_elements(kind, tmp_path, client)


def test_a_field_of_a_dask_array(tmp_path: Path) -> None:
    dtype, values = ELEMENTS["struct"]
    array = xzarr3.create_array(tmp_path / "a", dtype=dtype, data=values, chunks=2)
    assert int(from_zarr(array)["n"].sum().compute(scheduler=SCHEDULER)) == 21


@pytest.mark.parametrize(
    "options",
    [{"chunks": (1, 7, 9)}, {"chunks": (2, 8, 8), "shards": (2, 16, 40)}, {"chunks": (1, [7, 20, 3], 40)}],
    ids=repr,
)
@pytest.mark.parametrize(
    "blocks", [{}, {"chunks": (1, 10, 40)}, {"chunks": (2, 30, 5), "inline_array": True}]
)
def test_dask_may_index_an_array_itself(options: dict[str, Any], blocks: dict[str, Any]) -> None:
    values = np.arange(2 * 30 * 40).reshape(2, 30, 40)
    array = xzarr3.create_array(MemoryStore(), data=values, **options)
    lazy = da.from_array(array, **blocks)
    assert lazy.shape == values.shape
    selections: list[Any] = [
        ..., [1, 0], (0, [3, 29, 4]), (slice(None), [3, 29, 4, 4], slice(None, None, -2)), (..., [5, 5, 1]),
        (slice(None), values[0, :, 0] > 300), (1, slice(25, 3, -4), -1), ([], 0), (slice(None), [], 3),
    ]  # fmt: skip
    for selection in selections:
        found = lazy[selection].compute(scheduler=SCHEDULER)
        np.testing.assert_array_equal(found, values[selection], strict=True)
    points = [0, 1, 1], [3, 29, 3], [39, 0, 39]
    np.testing.assert_array_equal(lazy.vindex[points].compute(scheduler=SCHEDULER), values[points])
    mask = lazy[lazy > 1000].compute(scheduler=SCHEDULER)
    np.testing.assert_array_equal(np.sort(mask), values[values > 1000])
