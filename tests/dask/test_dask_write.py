"""Dask arrays into arrays in stores, whatever the blocks are and whatever the stored units are."""

from __future__ import annotations

import gc
import itertools
import logging
import math
import multiprocessing
import pickle
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Container, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from dask.blockwise import Blockwise
from dask.callbacks import Callback
from dask.utils import key_split
from hypothesis import given, settings
from hypothesis import strategies as st

import xzarr3
from xzarr3 import (
    AlignmentError,
    Array,
    LargeWriteWarning,
    LocalStore,
    MemoryStore,
    ReadOnlyError,
    SelectionError,
    StoreError,
    from_zarr,
    store,
)
from xzarr3._types import Buffer
from xzarr3.dask import tiles
from xzarr3.dask import write as writing
from xzarr3.dask.memory import frontier, memory_limit
from xzarr3.dask.spill import Spill
from xzarr3.dask.tiles import plan_axes
from xzarr3.dask.write import BlockWrite, plan_writes
from xzarr3.dask.write_layer import Tiles
from xzarr3.grid import Steps

Values = np.ndarray[Any, np.dtype[Any]]


class CountingStore(MemoryStore):
    """Remembers how often each value was written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: Counter[str] = Counter()

    def set(self, key: str, value: Buffer) -> None:
        self.written[key] += 1
        super().set(key, value)


class LiveBlocks(Callback):
    """Finds out how many bytes of blocks are in memory at most."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def _posttask(self, key: object, result: object, dsk: object, state: Any, worker: object) -> None:
        held = sum(value.nbytes for value in [*state["cache"].values()] if isinstance(value, np.ndarray))
        self.most = max(self.most, held)


class OneIsSlow(Executor):
    """Runs the tasks of a dask graph in this thread, as if there were two of which one is slow once.

    The first task that is ``slow`` does not end before ``most`` others that began after it.
    """

    _max_workers = 2

    def __init__(self, slow: Callable[[object], bool], most: int) -> None:
        self.most, self.passed = most, 0
        self._slow = slow
        self._held: Callable[[], None] | None = None

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(function(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
                future.set_exception(error)

        if self._held is None and not self.passed and self._slow(args[0][0][0]):
            self._held = run
            return future
        run()
        if self._held is not None:
            self.passed += 1
            if self.passed == self.most:
                self._held()
                self._held = None
        return future


def _values(*shape: int) -> Values:
    return np.random.default_rng(sum(shape)).random(shape) + 1


def _make(shape: Any, chunks: Any, where: Any = None, **options: Any) -> Array:
    store = MemoryStore() if where is None else where
    return xzarr3.create_array(store, shape=shape, chunks=chunks, **{"dtype": "f8", **options})


def _made(values: Values, chunks: Any) -> da.Array:
    """A dask array of values that are in memory only block by block."""

    def block(block_info: Any = None) -> Values:
        return values[tuple(slice(*each) for each in block_info[None]["array-location"])].copy()

    chunks = da.core.normalize_chunks(chunks, values.shape, dtype=values.dtype)
    return da.map_blocks(block, chunks=chunks, dtype=values.dtype, meta=values[:0, :0])


def _tasks(*collections: Any) -> dict[Any, Any]:
    return dict(dask.optimize(*collections)[0].__dask_graph__())


# Any blocks into any units


@st.composite
def lengths(draw: st.DrawFn, size: int, *, empty: bool) -> tuple[int, ...]:
    """Lengths of blocks that make up a dimension."""
    cuts = sorted(draw(st.lists(st.integers(0, size), max_size=5)))
    found = [b - a for a, b in itertools.pairwise([0, *cuts, size])]
    return tuple(found) if empty else tuple(n for n in found if n) or (max(size, 1),)


@st.composite
def writes(draw: st.DrawFn) -> tuple[Any, ...]:
    """Shape and layout of an array, a region of it, and blocks."""
    shape = tuple(draw(st.lists(st.integers(0, 20), max_size=3)))
    layout: dict[str, Any]
    match draw(st.sampled_from(["regular", "shards", "rectilinear"])) if shape else "scalar":
        case "regular":
            layout = {"chunks": tuple(draw(st.integers(1, 8)) for _ in shape)}
        case "shards":
            inner = tuple(draw(st.integers(1, 3)) for _ in shape)
            layout = {"chunks": inner, "shards": tuple(n * draw(st.integers(1, 4)) for n in inner)}
        case "rectilinear":
            layout = {"chunks": [list(draw(lengths(size, empty=False))) for size in shape]}
        case _:
            layout = {"chunks": ()}
    bounds = [sorted(draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape]
    region = ... if draw(st.booleans()) else tuple(slice(*each) for each in bounds)
    sizes = shape if region is ... else tuple(stop - start for start, stop in bounds)
    blocks = tuple(draw(lengths(size, empty=True)) for size in sizes)
    return shape, layout, region, blocks


def _check(case: tuple[Any, ...], scheduler: Any, where: Any = None) -> None:
    shape, layout, region, blocks = case
    counting = CountingStore() if where is None else where
    old = np.arange(1, math.prod(shape) + 1, dtype="i4").reshape(shape)
    target = xzarr3.create_array(counting, shape=shape, dtype="i4", overwrite=True, **layout)
    target[...] = old
    expected = old.copy()
    expected[region] *= -1
    source = da.from_array(-old[region], chunks=blocks)
    if isinstance(counting, CountingStore):
        counting.written.clear()
    store(source, target, regions=None if region is ... else region, scheduler=scheduler)
    np.testing.assert_array_equal(target[...], expected)
    if isinstance(counting, CountingStore):
        assert set(counting.written.values()) <= {1}, "each unit is written once"
        bounds = [
            (0, n) if region is ... else (region[at].start, region[at].stop) for at, n in enumerate(shape)
        ]
        units = [
            axis.index(high - 1) - axis.index(low) + 1 if low < high else 0
            for (low, high), axis in zip(bounds, target.metadata.chunk_grid.axes, strict=True)
        ]
        assert len(counting.written) == math.prod(units)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(writes())
def test_any_blocks_into_any_units(case: tuple[Any, ...]) -> None:
    _check(case, "sync")


@settings(max_examples=30, deadline=None)
@given(writes())
def test_any_blocks_into_any_units_in_threads(case: tuple[Any, ...]) -> None:
    _check(case, "threads")


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


CASES: list[tuple[Any, ...]] = [
    ((23, 17), {"chunks": (4, 5)}, ..., ((7, 7, 9), (3, 14))),
    ((23, 17), {"chunks": (2, 3), "shards": (8, 6)}, (slice(3, 20), slice(1, 17)), ((5,) * 3 + (2,), (16,))),
    ((12, 9), {"chunks": [[5, 1, 6], [2, 7]]}, ..., ((6, 6), (0, 5, 4))),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_any_blocks_into_any_units_in_processes(
    case: tuple[Any, ...], tmp_path: Path, processes: ProcessPoolExecutor
) -> None:
    with dask.config.set(pool=processes):
        _check(case, "processes", LocalStore(tmp_path))


def test_data_that_others_lose() -> None:
    """What has been reported elsewhere: blocks, regions and appended parts that do not fit shards."""
    values = _values(100, 60)
    for options in ({"chunks": (10, 10), "shards": (40, 30)}, {"chunks": (16, 16)}):
        for chunks in ((25, 60), (10, 10), (33, 7), (100, 1)):
            target = xzarr3.create_array(MemoryStore(), shape=(100, 60), dtype="f8", **options)
            for _ in range(3):
                target[...] = 0
                store(da.from_array(values, chunks=chunks), target, scheduler="threads", num_workers=8)
                np.testing.assert_array_equal(target[...], values)
    grown = _make((0, 60), (16, 16))
    for start, stop in ((0, 7), (7, 21), (21, 22), (22, 100)):
        grown.resize((stop, 60))
        part = da.from_array(values[start:stop], chunks=(3, 60))
        store(part, grown, regions=(slice(start, stop),), scheduler="threads", num_workers=8)
    np.testing.assert_array_equal(grown[...], values)


def test_what_is_outside_a_region_is_kept_by_writers_at_the_same_time(tmp_path: Path) -> None:
    """Two calls write to the halves of each unit."""
    values = _values(64, 64)
    target = _make((64, 64), (16, 16), LocalStore(tmp_path))

    def write(rows: slice) -> None:
        source = da.from_array(values[rows], chunks=(5, 9))
        store(source, target, regions=(rows,), scheduler="threads")

    for _ in range(5):
        target[...] = 0
        halves = [slice(0, 24), slice(24, 64)]
        with ThreadPoolExecutor(2) as pool:
            list(
                pool.map(
                    lambda rows: store(
                        da.from_array(values[rows], chunks=(5, 9)),
                        target,
                        regions=(rows,),
                        scheduler="threads",
                    ),
                    halves,
                )
            )
        np.testing.assert_array_equal(target[...], values)


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_sources_that_share_units(scheduler: str) -> None:
    """The second is written after the first, because not every store can compare."""
    counting = CountingStore()
    target = _make((40, 40), (16, 16), counting)
    values = _values(40, 40)
    regions = [(slice(0, 20),), (slice(20, 40), slice(0, 20)), (slice(20, 40), slice(20, 40))]
    for _ in range(3):
        target[...] = 0
        sources = [da.from_array(values[region], chunks=7) for region in regions]
        store(sources, [target] * 3, regions=regions, scheduler=scheduler)
        np.testing.assert_array_equal(target[...], values)
    overlapping = [(slice(0, 21),), regions[1]]
    target[...] = 0
    sources = [da.from_array(values[region], chunks=7) for region in overlapping]
    with pytest.raises(AlignmentError, match="same elements"):
        store(sources, [target] * 2, regions=overlapping)
    assert not target[...].any()


# Elements


def test_blocks_of_several_data_types() -> None:
    """What dask was told wrongly is converted as it would be for a block alone."""

    def mixed(block: Values, block_info: Any = None) -> Values:
        at = block_info[None]["chunk-location"]
        return block.astype("f8") + 0.5 if at == (1,) else block

    source = da.arange(20, chunks=7, dtype="i8").map_blocks(mixed, dtype="i8")
    target = _make(20, 5)
    store(source, target, scheduler="sync")
    expected = np.arange(20.0)
    expected[7:14] += 0.5
    np.testing.assert_array_equal(target[...], expected)
    with pytest.raises(ValueError, match="int64"):
        store(source, _make(20, 5, dtype="i8"), scheduler="sync")


ELEMENTS = {
    "string": ("string", np.array(["a", "é\0b", "", "x" * 99, "c", "d", "e"], np.dtypes.StringDType())),
    "struct": ([("n", "i4"), ("t", "U2")], np.array([(n, f"t{n}") for n in range(7)], "i4,U2")),
    "datetime": ("M8[ns]", np.array(["2020-01-01", "NaT", *["2000-02-29"] * 5], "M8[ns]")),
    "bytes": ("bytes", np.array([b"a", b"\0\0", b"", b"x" * 99, b"c\0", b"d", b"e"], object)),
}


@pytest.mark.parametrize("limit", [None, 1])
@pytest.mark.parametrize("kind", ELEMENTS)
def test_elements_other_than_numbers(kind: str, limit: int | None) -> None:
    dtype, values = ELEMENTS[kind]
    values = values.astype([("n", "i4"), ("t", "U2")]) if kind == "struct" else values
    target = _make(7, 3, dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LargeWriteWarning)
        store(da.from_array(values, chunks=2), target, memory_limit=limit, scheduler="threads")
    assert target[...].tolist() == values.tolist()


@pytest.mark.parametrize("chunks", [5, 7, 20, 3])
def test_masked_elements_are_refused(chunks: int) -> None:
    masked = np.ma.masked_array(np.arange(20.0), mask=np.arange(20) % 3 == 0)
    with pytest.raises(xzarr3.DataTypeValidationError, match="masked"):
        store(da.from_array(masked, chunks=chunks), _make(20, 5), scheduler="sync")
    target = _make(20, 5)
    store(da.from_array(np.ma.masked_array(np.arange(20.0)), chunks=chunks), target, scheduler="sync")
    np.testing.assert_array_equal(target[...], np.arange(20.0))


def test_blocks_of_another_shape_than_dask_was_told() -> None:
    source = da.zeros((20, 20), chunks=7).map_blocks(lambda block: block[:, 1:], dtype="f8")
    with pytest.raises(SelectionError, match=r"has shape \(., .\), but .chunks of the dask array says"):
        store(source, _make((20, 20), 8), scheduler="sync")


# What is refused


def test_bad_arguments_write_nothing(tmp_path: Path) -> None:
    counting = CountingStore()
    target = _make((20, 20), 8, counting)
    source = da.ones((20, 20), chunks=7)
    counting.written.clear()
    read_only = xzarr3.open_array(LocalStore(_make(4, 2, tmp_path).store.root, read_only=True))
    unknown = da.from_array(np.arange(20.0), chunks=7)
    cases: list[tuple[Any, Any, dict[str, Any], type[Exception]]] = [
        (source[unknown[:20] > 3], target, {}, SelectionError),
        (source, target, {"regions": (slice(None, None, 2),)}, SelectionError),
        (source, target, {"regions": (slice(0, 10),)}, SelectionError),
        (source, target, {"regions": (3,)}, SelectionError),
        (source[:, :19], target, {}, SelectionError),
        (source, np.zeros((20, 20)), {}, TypeError),
        (np.ones((20, 20)), target, {}, TypeError),
        ([source, source], [target], {}, SelectionError),
        ([source, source], [target, target], {}, AlignmentError),
        (da.ones(4, chunks=3), read_only, {}, ReadOnlyError),
        (source, target, {"memory_limit": 0}, ValueError),
        (source, target, {"memory_limit": "much"}, ValueError),
        (source, target, {"scheduler": "none such"}, ValueError),
    ]
    for sources, targets, options, error in cases:
        with pytest.raises(error):
            store(sources, targets, **options)
    assert not counting.written
    store(source, target, lock=True)
    np.testing.assert_array_equal(target[...], np.ones((20, 20)))


def test_a_target_of_zarr_python_is_refused() -> None:
    zarr = pytest.importorskip("zarr")
    target = zarr.create_array(zarr.storage.MemoryStore(), shape=(20, 20), chunks=(8, 8), dtype="f8")
    with pytest.raises(TypeError, match="accepted: dask arrays and xzarr3 arrays"):
        store(da.ones((20, 20), chunks=7), target)


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_a_source_that_reads_the_target(scheduler: str) -> None:
    values = _values(20, 20)
    for change, start in (
        (lambda x: x(chunks=7) + 1, 0),
        (lambda x: x(chunks=8)[::-1], 0),
        (lambda x: x(chunks=7).T, 0),
        (lambda x: x(chunks=7), 0),
        (lambda x: x(chunks=8) + 1, 0),
        (lambda x: x(chunks=8)[8:] + 1, 8),
    ):
        target = xzarr3.create_array(MemoryStore(), data=values, chunks=8)
        expected = values.copy()
        expected[: 20 - start] = change(partial(da.from_array, values)).compute()
        lazy = change(partial(from_zarr, target))
        store(lazy, target, regions=(slice(0, 20 - start),), scheduler=scheduler)
        np.testing.assert_array_equal(target[...], expected)
        assert not [key for key in target.store.list() if "xzarr3" in key]


def test_a_block_is_made_again_of_what_it_replaces() -> None:
    """As on a cluster, where a worker is lost that has written it."""
    target = xzarr3.create_array(MemoryStore(), data=np.arange(100.0), chunks=10)
    delayed = store(from_zarr(target, chunks="units") + 1, target, compute=False)
    tasks = _tasks(delayed)
    results: dict[Any, Any] = {}

    def run(key: Any, *, again: bool) -> None:
        for needed in tasks[key].dependencies:
            if needed not in results:
                run(needed, again=again)
        for _ in range(1 + again):
            results[key] = tasks[key]({each: results[each] for each in tasks[key].dependencies})

    run(delayed.key, again=True)
    np.testing.assert_array_equal(target[...], np.arange(100.0) + 1)


def test_a_block_that_is_stored_alone_reads_nothing_that_is_replaced() -> None:
    target = xzarr3.create_array(MemoryStore(), data=np.arange(100.0), chunks=10)
    with pytest.raises(AlignmentError, match="reads what the same call writes"):
        store(from_zarr(target) + 1, target, compute=False, return_stored=True)
    stored = store(from_zarr(target) + 1, target, return_stored=True)
    assert isinstance(stored, da.Array)
    np.testing.assert_array_equal(stored.compute(), np.arange(100.0) + 1)


def _wrapped(target: Array) -> da.Array:
    def block(values: Values, block_id: Any = None) -> Values:
        return values + target[::-1][10 * block_id[0] : 10 * block_id[0] + 10]

    return da.map_blocks(block, da.zeros(100, chunks=10), dtype="f8")


def _in_xarray(path: Path) -> Any:
    return pytest.importorskip("xarray").open_dataset(path.parent, engine="xzarr3")["x"]


OTHER_WAYS: dict[str, Any] = {
    "the array alone": lambda target, path: da.from_array(target, chunks=10)[::-1],
    "in the tasks": lambda target, path: da.from_array(target, chunks=10, inline_array=True)[::-1],
    "a directory above": lambda target, path: from_zarr(path.parent, path.name)[::-1],
    "a link": lambda target, path: from_zarr(_linked(path))[::-1],
    "optimized": lambda target, path: dask.optimize(from_zarr(target, chunks=10)[::-1] + 1)[0],
    "a delayed": lambda target, path: da.from_delayed(
        dask.delayed(lambda array: array[::-1])(target), (100,), "f8"
    ).rechunk(10),
    "zarr-python": lambda target, path: da.from_array(_by_zarr_python(path), chunks=10)[::-1],
    "an argument": lambda target, path: da.map_blocks(
        _and_array, da.zeros(100, chunks=10), array=target, dtype="f8"
    ),
    "a closure": lambda target, path: _wrapped(target),
    "xarray": lambda target, path: _in_xarray(path).chunk(t=10).data[::-1],
    "xarray, selected before": lambda target, path: _in_xarray(path)[::-1].chunk(t=10).data,
}


def _linked(path: Path) -> Path:
    link = path.parent / "link"
    link.symlink_to(path)
    return link


def _by_zarr_python(path: Path) -> Any:
    return pytest.importorskip("zarr").open_array(path, mode="r")


def _and_array(block: Values, array: Any = None) -> Values:
    return block + array[90:]  # type: ignore[no-any-return]


@pytest.mark.parametrize("way", OTHER_WAYS)
def test_a_source_that_reads_the_target_in_another_way(way: str, tmp_path: Path) -> None:
    xzarr3.create_group(tmp_path)
    path = tmp_path / "x"
    target = xzarr3.create_array(
        LocalStore(path), data=np.arange(100.0), chunks=10, dimension_names=["t"], overwrite=True
    )
    source = OTHER_WAYS[way](target, path)
    expected = source.compute()
    store(source, target)
    np.testing.assert_array_equal(target[...], expected)


@pytest.mark.parametrize("inline", [False, True])
def test_blocks_of_from_array_may_be_replaced(inline: bool) -> None:
    target = xzarr3.create_array(MemoryStore(), data=np.arange(100.0), chunks=10)
    store(da.from_array(target, chunks=20, inline_array=inline) + 1, target)
    np.testing.assert_array_equal(target[...], np.arange(100.0) + 1)


class _Pipeline:
    """Has a target at hand that its method does not read."""

    def __init__(self, target: Array) -> None:
        self.target = target

    def run(self) -> None:
        def twice(block: Values) -> Values:
            return block * self._factor

        source = da.ones(100, chunks=30)
        store(source.map_blocks(self.same).map_blocks(twice, dtype="f8"), self.target)

    _factor = 2

    def same(self, block: Values) -> Values:
        return block


def test_a_target_at_hand() -> None:
    target = _make(100, 10)
    _Pipeline(target).run()
    assert np.all(target[...] == 2)


def test_targets_in_two_hierarchies_are_the_same(tmp_path: Path) -> None:
    xzarr3.create_group(tmp_path)
    one = _make(20, 7, tmp_path / "x")
    other = xzarr3.open_array(tmp_path, "x", mode="r+")
    with pytest.raises(AlignmentError, match="two sources write the same elements"):
        store([da.ones(20, chunks=5), da.zeros(20, chunks=5)], [one, other])
    values = np.arange(20.0)
    parts = [da.from_array(part, chunks=2) for part in (values[:10], values[10:])]
    store(parts, [one, other], regions=[slice(0, 10), slice(10, 20)], scheduler="threads")
    np.testing.assert_array_equal(one[...], values)


def test_errors_of_sources_and_stores() -> None:
    def fail(block: Values, block_info: Any = None) -> Values:
        if block_info[None]["chunk-location"] == (1, 1):
            raise ArithmeticError("no such block")
        return block

    target = _make((20, 20), 8)
    for scheduler in ("sync", "threads"):
        with pytest.raises(ArithmeticError, match="no such block"):
            store(da.ones((20, 20), chunks=7).map_blocks(fail, dtype="f8"), target, scheduler=scheduler)


# The graph


@pytest.mark.parametrize("chunk", [10, 15])
@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("sst", "write-zarr-sst"),
        ("t2m", "t2m-write-zarr"),
        ("u10", "u10-write-zarr"),
        ("2m temperature", "2m_temperature-write-zarr"),
        ("precipitation_flux", "precipitation_flux-write-zarr"),
        ("feedface", "feedface-write-zarr"),
        ("_", "write-zarr-root"),
        ("f" * 32, f"write-zarr-{'f' * 32}"),
    ],
)
def test_dashboards_show_which_variable_is_written(name: str, shown: str, chunk: int) -> None:
    target = xzarr3.create_array(MemoryStore(), f"a/{name}", shape=30, chunks=chunk, dtype="f8")
    delayed = store(da.ones(30, chunks=10) + 1, target, compute=False)
    assert shown in {key_split(key) for key in _tasks(delayed)}


def test_aligned_blocks_are_fused_with_their_writing() -> None:
    values = _values(40, 40)
    source = xzarr3.create_array(MemoryStore(), data=values, chunks=20)
    target = _make((40, 40), 10)
    delayed = store((from_zarr(source, chunks="units") + 1) * 2, target, compute=False)
    names = [key[0] for key in _tasks(delayed) if isinstance(key, tuple)]
    assert len(names) == 4
    assert all(name.startswith("write-zarr-root-") for name in names)
    assert all(isinstance(delayed.dask.layers[name], Blockwise) for name in set(names))
    delayed.compute()
    np.testing.assert_array_equal(target[...], (values + 1) * 2)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(10**6,), (1000, 1000), (100, 100, 100)], ids=str)
@pytest.mark.parametrize("how", ["aligned", "misaligned"])
def test_a_million_units_are_no_work(shape: tuple[int, ...], how: str) -> None:
    """Nor to send."""
    blocks, unit = (1, 1) if how == "aligned" else (2, 3)
    target = xzarr3.create_array(
        MemoryStore(), shape=[n * unit for n in shape], chunks=unit, dtype="f8", compressors=None
    )
    source = da.zeros(target.shape, chunks=blocks)
    took = []
    for _ in range(3):
        gc.collect()
        start = time.thread_time()
        delayed = plan_writes(_jobs([source], [target])).delayed()
        took.append(time.thread_time() - start)
    limit = 0.05 if how == "aligned" else 0.5
    assert min(took) < 2 * limit, "twice of what it takes on an idle machine"
    assert not any(layer.is_materialized() for layer in delayed.dask.layers.values())
    if len(shape) > 1 or how == "misaligned":
        layers = [layer for name, layer in delayed.dask.layers.items() if name.startswith(("write", "store"))]
        assert len(cloudpickle.dumps(layers)) < 200_000


def test_the_layer_of_tiles() -> None:
    target = _make((60, 60), 16)
    delayed = store(da.ones((60, 60), chunks=10), target, compute=False)
    (layer,) = (layer for layer in delayed.dask.layers.values() if isinstance(layer, Tiles))
    assert not layer.is_materialized()
    again = pickle.loads(pickle.dumps(layer))
    assert not again.is_materialized()
    np.testing.assert_array_equal(again._axes[0].edges, layer._axes[0].edges)
    assert set(layer.get_output_keys()) == set(again) == set(layer)
    assert len(layer) == 16
    kept, needed = layer.cull({(layer.name, 0, 0)}, set())
    assert set(kept) == {(layer.name, 0, 0)}
    assert len(needed[layer.name, 0, 0]) == 4
    pickle.loads(cloudpickle.dumps(delayed))
    delayed.compute(scheduler="sync")
    assert target[...].all()


def test_persist_and_what_depends_on_a_write() -> None:
    target = _make((60, 60), 16)
    delayed = store(da.ones((60, 60), chunks=7), target, compute=False)
    after = dask.delayed(lambda _: float(target[...].sum()))(delayed)
    assert after.compute() == 3600
    target[...] = 0
    (kept,) = dask.persist(delayed)
    assert target[...].all()
    assert kept.compute() is None
    target[...] = 0
    found: list[bool] = []
    begun = dask.delayed(lambda: found.append(bool(target[...].any())))()
    plan_writes(_jobs([da.ones((60, 60), chunks=7)], [target])).delayed(after=begun).compute()
    assert found == [False]
    assert target[...].all()


def test_what_two_writes_read_is_read_once() -> None:
    values = _values(40, 40)
    source = xzarr3.create_array(MemoryStore(), data=values, chunks=10)
    lazy = from_zarr(source, chunks="units")
    targets = [_make((40, 40), 10) for _ in range(3)]
    delayed = store([lazy, lazy, lazy + 1], targets, compute=False)
    assert sum(str(key).count("read-zarr") > 0 for key in _tasks(delayed)) == 16
    delayed.compute()
    np.testing.assert_array_equal(targets[1][...], values)
    np.testing.assert_array_equal(targets[2][...], values + 1)


def test_tiles_of_a_sensible_size() -> None:
    """Few tasks where units are small, and none of many units where these are large."""

    def counts(units: Any, shape: Any, blocks: Any, itemsize: int = 8) -> tuple[int, ...]:
        chunks = da.core.normalize_chunks(blocks, shape, dtype="f8")
        axes = plan_axes([Steps(n) for n in units], [0] * len(shape), chunks, itemsize)
        return tuple(axis.count for axis in axes)

    assert counts((512, 512), (6144, 6144), (300, 300)) == (12, 12)
    assert math.prod(counts((1,), (10**6,), (999,))) <= 1010
    assert math.prod(counts((10,), (10**6,), (999,))) <= 1010
    assert math.prod(counts((3, 3), (3000, 3000), (2, 2))) <= 1500**2 / 100
    assert max(counts((1, 10**4), (10**4, 10**4), (10**4, 1))) >= 6, "not one task for all"


# Memory


@pytest.mark.parametrize(
    ("shape", "blocks", "units"),
    [
        ((3072, 3072), (150, 150), (256, 256)),
        ((3072, 3072), (256, 256), (150, 150)),
        ((400, 300, 300), (10, 75, 75), (24, 64, 64)),
        ((3000, 6000), (3000, 70), (256, 256)),
        ((6000, 3000), (70, 3000), (256, 256)),
    ],
    ids=str,
)
def test_few_blocks_wait_for_others(shape: Any, blocks: Any, units: Any) -> None:
    target = _make(shape, units, dtype="f4", compressors=None)
    source = da.random.default_rng(1).random(shape, chunks=blocks, dtype="f4")
    chunks = source.chunks
    axes = plan_axes([Steps(n) for n in units], [0] * len(shape), chunks, 4)
    _, elements = frontier(axes)
    with LiveBlocks() as live:
        store(source, target, scheduler="threads", num_workers=2)
    assert live.most < target.nbytes / 4
    tile = 4 * math.prod(int(axis.lengths.max()) for axis in axes)
    assert live.most <= 1.2 * (4 * elements + 2 * (tile + 4 * math.prod(map(max, chunks))))


def test_copies_of_arrays_in_other_blocks() -> None:
    values = _values(500, 400)
    source = xzarr3.create_array(MemoryStore(), data=values, chunks=(30, 50))
    for lazy, expected in (
        (from_zarr(source, chunks="units"), values),
        (from_zarr(source, chunks=(77, 400)), values),
        (from_zarr(source, chunks="units")[7:, 13:300], values[7:, 13:300]),
        (from_zarr(source, chunks="units")[::2], values[::2]),
        (from_zarr(source, chunks="units")[::-1], values[::-1]),
        (from_zarr(source, chunks="units")[5], values[5]),
        (from_zarr(source, chunks="units").T, values.T),
    ):
        target = _make(expected.shape, 64)
        store(lazy, target, scheduler="threads")
        np.testing.assert_array_equal(target[...], expected)


def _left(tmp_path: Path) -> list[Path]:
    return list(tmp_path.glob("xzarr3-write-*"))


@pytest.mark.slow
@pytest.mark.parametrize("read", [False, True])
def test_what_needs_too_much_memory_goes_through_a_directory(
    read: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiles, "_LARGEST", 2**14)
    monkeypatch.setattr(tiles, "_WORTH", 2**12)
    values = _values(300, 200)
    target = _make((310, 200), (1, 200))
    blocks = _made(values, (300, 1))
    if read:
        blocks = from_zarr(xzarr3.create_array(MemoryStore(), data=values, chunks=(300, 1)), chunks="units")
    region = (slice(10, 310),)
    slow = OneIsSlow(lambda key: not str(key).startswith(("('block-", "('read-")), 40 if read else 120)
    with dask.config.set({"temporary-directory": str(tmp_path)}):
        with pytest.warns(LargeWriteWarning, match="a temporary directory") as warned, LiveBlocks() as live:
            store(blocks, target, regions=region, memory_limit="100 kB", scheduler="threads", pool=slow)
        assert [each.filename for each in warned] == [__file__]
        np.testing.assert_array_equal(target[10:], values)
        assert not target[:10].any()
        assert slow.passed == slow.most, "one task took as long as many others"
        assert live.most <= 50_000, "blocks go on being made while the directory is"
        assert not _left(tmp_path)
        target[...] = 0
        with pytest.warns(LargeWriteWarning), dask.config.set({"xzarr3.memory-limit": 100_000}):
            delayed = store(blocks, target, regions=region, compute=False)
        for _ in range(2):
            dask.compute(delayed)
            np.testing.assert_array_equal(target[10:], values)
            assert not _left(tmp_path)
            target[...] = 0


def test_no_directory_is_made_before_it_is_needed(tmp_path: Path) -> None:
    target = _make((30, 200), (1, 200))
    source = da.ones((30, 200), chunks=(30, 1))
    with dask.config.set({"temporary-directory": str(tmp_path / "new")}), pytest.warns(LargeWriteWarning):
        delayed = store(source, target, memory_limit=1000, compute=False)
    assert not (tmp_path / "new").exists()
    delayed.compute()
    assert np.all(target[...] == 1)
    assert (tmp_path / "new").exists()
    assert not _left(tmp_path / "new")


def test_what_vanishes_from_the_directory_is_no_fill_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy(*given: Any) -> None:
        for path in tmp_path.glob("xzarr3-write-*/c/*/*"):
            path.unlink()
        copied(*given)

    copied = writing.copy_tile
    monkeypatch.setattr(writing, "copy_tile", copy)
    target = _make((30, 200), (1, 200))
    options = {"temporary-directory": str(tmp_path)}
    with dask.config.set(options), pytest.raises(StoreError), pytest.warns(LargeWriteWarning):
        store(da.ones((30, 200), chunks=(30, 1)), target, memory_limit=1000, scheduler="sync")


@pytest.mark.parametrize("how", ["dask.compute", "persist", "compute"])
def test_the_directory_goes_after_an_error_of_what_dask_computes(how: str, tmp_path: Path) -> None:
    may_pass: list[bool] = []

    def check(block: Any, block_info: Any = None) -> Any:
        if block_info[0]["chunk-location"][1] == 150 and not may_pass:
            raise ArithmeticError
        return block

    source = da.ones((30, 200), chunks=(30, 1)).map_blocks(check, dtype="f8")
    target = _make((30, 200), (1, 200))
    with dask.config.set({"temporary-directory": str(tmp_path)}), pytest.warns(LargeWriteWarning):
        delayed = store(source, target, memory_limit=1000, compute=False)
    run = {
        "dask.compute": lambda: dask.compute(delayed),
        "persist": delayed.persist,
        "compute": delayed.compute,
    }
    with dask.config.set(scheduler="sync"):
        with pytest.raises(ArithmeticError):
            run[how]()
        assert not _left(tmp_path)
        may_pass.append(True)
        run[how]()
    assert np.all(target[...] == 1)
    assert not _left(tmp_path)


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_the_directory_goes_after_an_error(scheduler: str, tmp_path: Path) -> None:
    source = da.ones((30, 200), chunks=(30, 1)).map_blocks(_fail_at, dtype="f8")
    target = _make((30, 200), (1, 200), LocalStore(tmp_path / "a.zarr"))
    options = {"temporary-directory": str(tmp_path)}
    with dask.config.set(options), pytest.raises(ArithmeticError), pytest.warns(LargeWriteWarning):
        store(source, target, memory_limit=1000, scheduler=scheduler)
    assert not _left(tmp_path)


def _fail_at(block: Values, block_info: Any = None) -> Values:
    if block_info[None]["chunk-location"][1] == 150:
        raise ArithmeticError("no such block")
    return block


def test_the_memory_there_is() -> None:
    assert 2**26 < memory_limit(None) < 2**50
    assert memory_limit("2 GiB") == 2**31
    with dask.config.set({"xzarr3.memory-limit": "1 MiB"}):
        assert memory_limit(None) == 2**20
        assert memory_limit(7) == 7


# What is stored, again


@pytest.mark.parametrize("compute", [True, False])
def test_stored_arrays(compute: bool) -> None:
    values = _values(50, 40)
    counting = CountingStore()
    target = _make((60, 40), 16, counting)
    source = da.from_array(values, chunks=(7, 9))
    counting.written.clear()
    found = store(source, target, regions=(slice(5, 55),), return_stored=True, compute=compute)
    assert isinstance(found, da.Array)
    assert bool(counting.written) is compute
    np.testing.assert_array_equal(found.compute(), values)
    np.testing.assert_array_equal(target[5:55], values)
    assert found.dtype == target.dtype
    one, two = store([source, source + 1], [_make((50, 40), 16), _make((50, 40), 9)], return_stored=True)
    np.testing.assert_array_equal((two - one).compute(), (values + 1) - values)
    assert store(source, target, regions=(slice(5, 55),)) is None


def test_only_what_is_computed_of_stored_arrays_is_written() -> None:
    counting = CountingStore()
    target = _make((60, 40), 16, counting)
    counting.written.clear()
    found = store(da.ones((60, 40), chunks=7), target, return_stored=True, compute=False)
    assert isinstance(found, da.Array)
    np.testing.assert_array_equal(found[:5, :5].compute(), np.ones((5, 5)))
    assert set(counting.written) == {"c/0/0"}


# A journal


def _jobs(sources: list[da.Array], targets: list[Array]) -> list[BlockWrite]:
    return [
        BlockWrite(source, target, ..., in_place=True)
        for source, target in zip(sources, targets, strict=True)
    ]


class ListJournal:
    """Keeps where tiles begin in a list."""

    def __init__(self, finished: dict[int, set[tuple[int, ...]]]) -> None:
        self._finished = finished
        self.written: list[tuple[int, tuple[int, ...]]] = []

    def finished(self, job: int, target: Array, regions: Any, /) -> Container[tuple[int, ...]]:
        known = self._finished.get(job, set())
        return {tile for tile in np.ndindex(regions.numblocks) if begin_of(regions[tile]) in known}

    def write(self, job: int, target: Array, region: Any, values: Any, threads: int | None, /) -> None:
        target.set(region, values, threads=threads)
        self.written.append((job, begin_of(region)))


def begin_of(region: Any) -> tuple[int, ...]:
    return tuple(part.start for part in region)


@pytest.mark.parametrize("blocks", [(8, 8), (5, 7)])
def test_finished_tiles_are_left_out(blocks: tuple[int, int]) -> None:
    made: list[tuple[int, int]] = []

    def noted(block: Values, block_info: Any = None) -> Values:
        made.append(block_info[None]["chunk-location"])
        return block

    source = da.ones((16, 24), chunks=blocks).map_blocks(noted, dtype="f8", meta=np.empty((0, 0)))
    targets = [_make((16, 24), 8), _make((16, 24), 8)]
    everything = ListJournal({})
    plan_writes(_jobs([source, source], targets), journal=everything).delayed().compute(scheduler="sync")
    all_ = [tile for job, tile in everything.written if job == 0]
    assert sorted(all_) == sorted(tile for job, tile in everything.written if job == 1) == sorted(set(all_))
    assert all(target[...].all() for target in targets)
    for target in targets:
        target[...] = 0
    made.clear()
    journal = ListJournal({0: set(all_), 1: set(all_[1:])})
    plan_writes(_jobs([source, source], targets), journal=journal).delayed().compute(scheduler="sync")
    assert journal.written == [(1, all_[0])]
    assert not targets[0][...].any()
    assert targets[1][...].any()
    assert len(set(made)) < math.prod(source.numblocks), "blocks that nobody needs are not made"
    made.clear()
    done = ListJournal({0: set(all_), 1: set(all_)})
    assert plan_writes(_jobs([source, source], targets), journal=done).delayed().compute() is None
    assert not made


# Clusters


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed")
    with (
        dask.config.set({"distributed.worker.daemon": True}),
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            memory_limit="700 MiB",
            dashboard_address=":0",
            host="127.0.0.1",
            silence_logs=logging.CRITICAL,
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.run(lambda paths: sys.path.extend(set(paths) - set(sys.path)), list(sys.path))
        yield client


@pytest.mark.slow
def test_any_blocks_into_any_units_on_a_cluster(client: Any, tmp_path: Path) -> None:
    rng = random.Random(7)

    def cut(size: int) -> tuple[int, ...]:
        cuts = sorted(rng.randrange(size + 1) for _ in range(rng.randrange(5)))
        return tuple(np.diff([0, *cuts, size]).tolist())

    for number in range(25):
        shape = tuple(rng.randrange(20) for _ in range(rng.randrange(1, 4)))
        bounds = [sorted((rng.randrange(n + 1), rng.randrange(n + 1))) for n in shape]
        layout = {"chunks": tuple(rng.randrange(1, 7) for _ in shape)}
        region = tuple(slice(*each) for each in bounds)
        blocks = tuple(cut(stop - start) for start, stop in bounds)
        _check((shape, layout, region, blocks), client, LocalStore(tmp_path / str(number)))


@pytest.mark.slow
def test_a_cluster_rechunks_what_needs_too_much_memory(client: Any, tmp_path: Path) -> None:
    values = _values(300, 200)
    target = _make((300, 200), (3, 200), LocalStore(tmp_path))
    with pytest.warns(LargeWriteWarning, match="the workers' disks"):
        store(da.from_array(values, chunks=(300, 2)), target, memory_limit="100 kB")
    np.testing.assert_array_equal(target[...], values)
    limit = memory_limit(None, client)
    assert limit == pytest.approx(700 * 2**20)


@pytest.mark.slow
def test_streaming_through_small_workers(client: Any, tmp_path: Path) -> None:
    """From store to store, with something in between, and little of it in memory."""
    shape = (64, 1024, 1024)
    source = _make(shape, (5, 512, 512), LocalStore(tmp_path / "a"), dtype="f4", compressors=None)
    for at in range(0, 64, 16):
        source[at : at + 16] = np.arange(at, at + 16, dtype="f4")[:, None, None]
    target = _make(shape, (8, 300, 300), LocalStore(tmp_path / "b"), dtype="f4", compressors=None)
    store(from_zarr(source, chunks="units") + 1, target)
    for at in range(0, 64, 16):
        assert (target[at : at + 16] == np.arange(at + 1, at + 17, dtype="f4")[:, None, None]).all()


def test_values_put_aside_stay_while_another_write_clears_up() -> None:
    store = MemoryStore()
    array = xzarr3.create_array(store, "a", data=np.arange(12), chunks=3)
    xzarr3.to_zarr(xr.Dataset({"v": ("x", [1])}), store, group="g")
    axes = [tiles.AxisTiles(np.array([0, 6, 12]), np.array([0, 6, 12]))]
    aside = Spill(array, axes, axes, here=False)  # As on a cluster.
    aside.make()
    aside.array[...] = np.arange(12)
    xzarr3.to_zarr(xr.Dataset({"v": ("x", [2])}), store, group="g", mode="w")
    assert aside.array[...].tolist() == list(range(12))
    aside.remove()
    assert not [key for key in store.list() if "xzarr3" in key]


def test_a_new_array_has_the_chunks_of_its_dask_array() -> None:
    lazy = da.arange(10, chunks=4)
    assert xzarr3.create_array(xzarr3.MemoryStore(), "a", data=lazy).chunks == (4,)
