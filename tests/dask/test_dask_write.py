"""Dask arrays into arrays in stores, whatever the blocks are and whatever the stored units are."""

import itertools
import math
import pickle
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import cloudpickle
import dask
import dask.array as da
import msgspec
import numpy as np
import pytest
import xarray as xr
from _conformance import contents, refused
from _graphs import blank, calls_of, numbers, sample, tasks
from _recording import recording
from _slow import slow, slow_but
from dask.blockwise import Blockwise
from dask.callbacks import Callback
from dask.utils import key_split
from hypothesis import given, settings
from hypothesis import strategies as st

import xzarr3
from xzarr3 import ArgumentError, LocalStore, MemoryStore, SelectionError, Store, StoreError, from_zarr, store
from xzarr3.dask.plan import BlockWrite, plan_writes
from xzarr3.dask.tiles import frontier, memory_limit, plan_axes
from xzarr3.dask.write_layer import Tiles
from xzarr3.grid import Steps

Values = np.ndarray[Any, np.dtype[Any]]
NOTHING = np.empty((0, 0))


class CountingStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.written: Counter[str] = Counter()
        """How often each value was written."""

    def put(self, key: str, pieces: Any) -> None:
        self.written[key] += 1
        super().put(key, pieces)


class LiveBlocks(Callback):
    """Finds out how many bytes of blocks are in memory at most."""

    most = 0

    def _posttask(self, key: object, result: object, dsk: object, state: Any, worker: object) -> None:
        held = sum(value.nbytes for value in [*state["cache"].values()] if isinstance(value, np.ndarray))
        self.most = max(self.most, held)


@st.composite
def lengths(draw: st.DrawFn, size: int, *, empty: bool) -> tuple[int, ...]:
    """Lengths of blocks that make up a dimension."""
    cuts = sorted(draw(st.lists(st.integers(0, size), max_size=5)))
    found = [b - a for a, b in itertools.pairwise([0, *cuts, size])]
    return tuple(found) if empty else tuple(n for n in found if n) or (max(size, 1),)


@st.composite
def writes(draw: st.DrawFn) -> tuple[Any, ...]:
    """Shape and layout of an array, a region of it in any spelling, its slices, and blocks."""
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
    region: Any = ...
    if draw(st.booleans()):
        bounds = [[0, n] for n in shape]
    else:
        spelt = [(start or None, stop - n or None) for (start, stop), n in zip(bounds, shape, strict=True)]
        region = tuple(slice(*each) for each in draw(st.sampled_from([bounds, spelt])))
        if shape and bounds[0] == [0, shape[0]]:
            region = (..., *region[1:])
    return shape, layout, region, tuple(draw(lengths(stop - start, empty=True)) for start, stop in bounds)


def _check(case: tuple[Any, ...], scheduler: Any, where: Any = None) -> None:
    shape, layout, region, blocks = case
    counting = CountingStore() if where is None else where
    old = np.arange(1, math.prod(shape) + 1, dtype="i4").reshape(shape)
    target = xzarr3.create_array(counting, data=old, overwrite=True, **layout)
    expected = old.copy()
    expected[region] *= -1
    source = da.from_array(-old[region], chunks=blocks)
    written = getattr(counting, "written", Counter())
    written.clear()
    store(source, target, regions=None if region is ... else region, scheduler=scheduler)
    np.testing.assert_array_equal(target[...], expected)
    if where is None:
        assert set(written.values()) <= {1}, "each unit is written once"
        changed = np.argwhere(expected != old)
        units = [
            {axis.index(int(at)) for at in changed[:, along]}
            for along, axis in enumerate(target.metadata.chunk_grid.axes)
        ]
        assert len(written) == (math.prod(map(len, units)) if changed.size else int(shape == ()))


@pytest.mark.parametrize("scheduler", [slow("sync"), "threads"])
@settings(max_examples=60)
@given(case=writes())
def test_any_blocks_into_any_units(scheduler: str, case: tuple[Any, ...]) -> None:
    _check(case, scheduler)


CASES: list[tuple[Any, ...]] = [
    ((23, 17), {"chunks": (4, 5)}, ..., ((7, 7, 9), (3, 14))),
    ((23, 17), {"chunks": (2, 3), "shards": (8, 6)}, (slice(3, 20), slice(1, 17)), ((5,) * 3 + (2,), (16,))),
    ((12, 9), {"chunks": [[5, 1, 6], [2, 7]]}, ..., ((6, 6), (0, 5, 4))),
]


@pytest.mark.slow
def test_writes_in_other_processes(tmp_path: Path, processes: ProcessPoolExecutor) -> None:
    memory = blank((30, 40), 10)
    with dask.config.set(scheduler="processes", pool=processes):
        for case in CASES:
            _check(case, "processes", LocalStore(tmp_path))
        refused(xzarr3.ReadOnlyError, lambda: store(da.ones((30, 40), chunks=20), memory))
    assert not memory[...].any()


@pytest.mark.slow
def test_writes_on_a_cluster(client: Any, tmp_path: Path) -> None:
    for case in CASES:
        _check(case, client, LocalStore(tmp_path))


def test_what_is_outside_a_region_is_kept_by_writers_at_the_same_time(tmp_path: Path) -> None:
    values, target = numbers(64, 64), blank((64, 64), (16, 16), LocalStore(tmp_path))

    def write(rows: slice) -> None:
        store(da.from_array(values[rows], chunks=(5, 9)), target, regions=(rows,), scheduler="threads")

    for _ in range(5):
        target[...] = 0
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(write, [slice(0, 24), slice(24, 64)]))
        np.testing.assert_array_equal(target[...], values)


def test_a_shared_source_is_computed_once() -> None:
    values, call = numbers(30, 40), mock.Mock(side_effect=lambda block: block)
    source = da.from_array(values, chunks=(10, 20)).map_blocks(call, dtype="f8", meta=NOTHING, name="called")
    targets = [sample(data=np.zeros((30, 40))) for _ in range(4)]
    store([source, source + 1, source.rechunk((30, 40)), source.rechunk((10, 9))], targets, scheduler="sync")
    assert call.call_count == 6
    for target, added in zip(targets, (0, 1, 0, 0), strict=True):
        np.testing.assert_array_equal(target[...], values + added)


@pytest.mark.parametrize(("one", "two", "overlap"), [
    ((slice(0, 10),), (slice(0, 10),), True), ((slice(0, 15),), (slice(15, 30),), False),
    ((slice(0, 12), slice(0, 10)), (slice(12, 20), slice(0, 10)), False),
    ((slice(0, 30), slice(0, 1)), (slice(29, 30), slice(1, 2)), False),
    (..., (slice(3, 4), slice(3, 4)), True),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("twin", ["same", "opened", "below", "pickled", "linked"])
def test_two_sources_that_share_a_unit(one: Any, two: Any, overlap: bool, twin: str, tmp_path: Path) -> None:
    xzarr3.create_group(tmp_path)
    target = sample(tmp_path / "store", data=np.zeros((30, 40)))
    (tmp_path / "linked").symlink_to("store")
    other = target if twin == "same" else pickle.loads(pickle.dumps(target))
    if twin not in ("same", "pickled"):
        place = {"opened": ("store",), "below": ("", "store"), "linked": ("linked",)}[twin]
        other = xzarr3.open_array(tmp_path / place[0], *place[1:], mode="r+")
    sources = [da.ones(np.empty((30, 40))[region].shape, chunks=-1) for region in (one, two)]
    expected = np.zeros((30, 40))
    if overlap:
        with pytest.raises(xzarr3.AlignmentError, match="same elements"):
            store(sources, [target, other], regions=[one, two])
    else:
        store(sources, [target, other], regions=[one, two], scheduler="threads")
        expected[one] = expected[two] = 1
    np.testing.assert_array_equal(target[...], expected)


def test_blocks_of_several_data_types() -> None:
    """What dask was told wrongly is converted as it would be for a block alone."""

    def mixed(block: Values, block_info: Any = None) -> Values:
        return block.astype("f8") + 0.5 if block_info[None]["chunk-location"] == (1,) else block

    source = da.arange(20, chunks=7, dtype="i8").map_blocks(mixed, dtype="i8")
    target = blank(20, 5)
    store(source, target, scheduler="sync")
    expected = np.arange(20.0)
    expected[7:14] += 0.5
    np.testing.assert_array_equal(target[...], expected)
    refused(ValueError, lambda: store(source, blank(20, 5, dtype="i8"), scheduler="sync"), match="int64")


@pytest.mark.parametrize("chunks", [5, 7, 20, 3])
def test_masked_elements_are_refused(chunks: int) -> None:
    masked = np.ma.masked_array(np.arange(20.0), mask=np.arange(20) % 3 == 0)
    with pytest.raises(xzarr3.DataTypeValidationError, match="masked"):
        store(da.from_array(masked, chunks=chunks), blank(20, 5), scheduler="sync")
    target = blank(20, 5)
    store(da.from_array(np.ma.masked_array(np.arange(20.0)), chunks=chunks), target, scheduler="sync")
    np.testing.assert_array_equal(target[...], np.arange(20.0))


def test_blocks_of_another_shape_than_dask_was_told() -> None:
    source = da.zeros((20, 20), chunks=7).map_blocks(lambda block: block[:, 1:], dtype="f8")
    with pytest.raises(SelectionError, match=r"has shape \(., .\), but .chunks of the dask array says"):
        store(source, blank((20, 20), 8), scheduler="sync")


ONES = da.ones((30, 40), chunks=7)
REFUSED: dict[str, tuple[Any, Any, dict[str, Any], Any]] = {
    "too wide": (da.ones((30, 41)), None, {}, SelectionError),
    "too few dimensions": (da.ones(30), None, {}, SelectionError),
    "too short": (da.ones((1, 40)), None, {}, SelectionError),
    "smaller than the region": (da.ones((10, 40)), None, {"regions": (slice(0, 20),)}, SelectionError),
    "beyond the end": (da.ones((10, 40)), None, {"regions": (slice(25, 35),)}, SelectionError),
    "steps": (da.ones((15, 40)), None, {"regions": (slice(None, None, 2),)}, SelectionError),
    "backwards": (ONES, None, {"regions": (slice(None, None, -1),)}, SelectionError),
    "an integer": (da.ones(40), None, {"regions": (0,)}, SelectionError),
    "too many slices": (ONES, None, {"regions": (slice(None),) * 3}, SelectionError),
    "a list": (ONES, None, {"regions": ([0, 1],)}, (SelectionError, TypeError)),
    "unknown shape": (ONES[da.ones(30, chunks=7) > 0], None, {}, SelectionError),
    "two sources, one target": ([ONES] * 2, [None], {}, SelectionError),
    "one source, two targets": ([ONES], [None] * 2, {}, SelectionError),
    "two regions": ([ONES], [None], {"regions": [..., ...]}, SelectionError),
    "the same elements": ([ONES] * 2, [None] * 2, {}, xzarr3.AlignmentError),
    "a list and no list": ([ONES] * 2, None, {}, (SelectionError, TypeError)),
    "an array of numpy": (np.ones((30, 40)), None, {}, TypeError),
    "a delayed": ([dask.delayed(1)], [None], {}, TypeError),
    "into numpy": (ONES, np.zeros((30, 40)), {}, TypeError),
    "into a path": (ONES, "path", {}, TypeError),
    "unknown scheduler": (ONES, None, {"scheduler": "none such"}, ValueError),
}  # fmt: skip
"""Sources, targets (None is an array of 30 x 40), options and the error."""


@pytest.mark.parametrize("case", REFUSED)
def test_refused_at_once(case: str) -> None:
    sources, targets, options, error = REFUSED[case]
    counting = recording(CountingStore())
    array = sample(counting)
    counting.inner.written.clear()  # type: ignore[attr-defined]
    chosen = [array for _ in targets] if isinstance(targets, list) else array if targets is None else targets
    for compute in (True,) if "scheduler" in options else (True, False):
        with counting.recorded() as requests, pytest.raises(error):
            store(sources, chosen, compute=compute, **options)
        assert not requests
    assert not counting.inner.written  # type: ignore[attr-defined]


def test_targets_that_cannot_be_written_to(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    sample(tmp_path)
    source = da.ones((30, 40), chunks=10).map_blocks(lambda block: 1 // 0, meta=NOTHING)
    read_only, values = LocalStore(tmp_path, read_only=True), zarr.storage.MemoryStore()
    zarr.create_array(values, shape=(30, 40), chunks=(8, 8), dtype="f8")
    foreign = zarr.open_array(values.with_read_only(True), mode="r")
    for target in (xzarr3.open_array(tmp_path), xzarr3.open_array(read_only, mode="r+"), foreign):
        refused(xzarr3.ReadOnlyError, partial(store, source, target))
    refused(TypeError, lambda: store(source, [np.zeros((30, 40))]), match="xzarr3 arrays")


def test_a_source_that_reads_a_target_of_the_call_is_refused() -> None:
    """Whatever its blocks are: some would be computed from values that the call has already replaced."""
    values = numbers(20, 20)
    target, other = (xzarr3.create_array(MemoryStore(), data=values, chunks=8) for _ in range(2))
    for compute in (True, False):
        with pytest.raises(ArgumentError, match=r"reads array '/'.*store it in another array"):
            store(from_zarr(target, chunks=8)[8:] + 1, target, regions=(slice(0, 12),), compute=compute)
    with pytest.raises(ArgumentError, match="the same call overwrites"):
        store([da.ones((20, 20), chunks=8), from_zarr(target) + 1], [target, other])
    for each in (target, other):
        np.testing.assert_array_equal(each[...], values)
    store(from_zarr(target).compute() + da.ones((20, 20), chunks=7), target)
    np.testing.assert_array_equal(target[...], values + 1)


def _in_xarray(path: Path) -> Any:
    return xr.open_dataset(path.parent, engine="xzarr3")["x"]


TENS = da.zeros(100, chunks=10)
OTHER_WAYS: dict[str, Any] = {
    "its own blocks": lambda target, path: da.from_array(target, chunks=20) + 1,
    "in the tasks": lambda target, path: da.from_array(target, chunks=10, inline_array=True)[::-1],
    "its chunks": lambda target, path: from_zarr(target, chunks=10) + 1,
    "a directory above": lambda target, path: from_zarr(path.parent, path.name)[::-1],
    "a link": lambda target, path: from_zarr(path.parent / "link")[::-1],
    "optimized": lambda target, path: dask.optimize(from_zarr(target, chunks=10)[::-1] + 1)[0],
    "delayed": lambda target, path: da.from_delayed(dask.delayed(np.flip)(target), (100,), "f8").rechunk(10),
    "zarr-python": lambda target, path: da.from_array(pytest.importorskip("zarr").open_array(path), 10),
    "an argument": lambda target, path: TENS.map_blocks(
        lambda block, array=None: block + array[90:], array=target, dtype="f8"
    ),
    "a closure": lambda target, path: TENS.map_blocks(lambda block: block + target[90:], dtype="f8"),
    "xarray": lambda target, path: _in_xarray(path).chunk(t=10).data[::-1],
    "xarray, selected before": lambda target, path: _in_xarray(path)[::-1].chunk(t=10).data,
}


@pytest.mark.parametrize("way", OTHER_WAYS)
def test_a_source_that_reads_the_target_in_another_way(way: str, tmp_path: Path) -> None:
    xzarr3.create_group(tmp_path)
    path, values = tmp_path / "x", np.arange(100.0)
    options: dict[str, Any] = {"chunks": 10, "dimension_names": ["t"], "overwrite": True}
    target = xzarr3.create_array(LocalStore(path), data=values, **options)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(ArgumentError, match="the same call overwrites"):
        store(OTHER_WAYS[way](target, path), target)
    np.testing.assert_array_equal(target[...], values)


def test_a_target_that_a_function_holds_counts_as_read() -> None:
    """Whether it reads it cannot be told; the error says what to do."""
    held = SimpleNamespace(target=blank(100, 10), factor=2)
    source = da.ones(100, chunks=30).map_blocks(lambda block: block * held.factor, dtype="f8")
    refused(ArgumentError, lambda: store(source, held.target), match="or holds it in a function")


def test_store_tells_of_a_misspelt_argument_before_it_writes() -> None:
    target = xzarr3.zeros(4)
    with pytest.raises(TypeError, match=r"store\(\) has no argument 'region'; did you mean 'regions'"):
        store(da.ones(4), target, region=(slice(0, 4),))
    assert not target[...].any()
    store(da.ones(4), target, scheduler="sync", num_workers=1)
    assert target[...].all()


def test_store_later() -> None:
    memory, values = MemoryStore(), numbers(30, 40)
    target, other = (sample(memory, name, data=np.zeros((30, 40))) for name in "xy")
    before, source = contents(memory), da.from_array(values, chunks=(10, 40))
    first, again = (store(each, target, compute=False) for each in (source, source + 1))
    second = store(source, other, compute=False)
    assert contents(memory) == before
    assert first.compute(scheduler="sync") is None
    np.testing.assert_array_equal(target[...], values)
    assert (other[...] == 0).all()
    dask.compute(second, again, scheduler="threads")
    np.testing.assert_array_equal(other[...], values)
    np.testing.assert_array_equal(target[...], values + 1)
    for later, added in ((first, 0), (pickle.loads(cloudpickle.dumps(again)), 1)):
        later.compute(scheduler="sync")
        np.testing.assert_array_equal(target[...], values + added)


def test_failing_source_leaves_old_and_new_units(store: Store) -> None:
    target, values = sample(store, data=np.zeros((30, 40))), numbers(30, 40)

    def fail(block: Values, block_id: tuple[int, ...]) -> Any:
        return 1 // 0 if block_id == (1, 2) else block

    source = da.from_array(values, chunks=10).map_blocks(fail, dtype="f8", meta=NOTHING)
    for scheduler in ("sync", "threads"):
        refused(ZeroDivisionError, partial(xzarr3.store, source, target, scheduler=scheduler))
    for task in target.chunk_tasks():
        unit = task()
        assert (unit == 0).all() or np.array_equal(unit, values[task.selection])
    assert (target[10:20, 20:30] == 0).all()


def test_failing_store_is_an_error(store: Store) -> None:
    target = sample(store, data=np.zeros((30, 40)))

    def fail(self: Store, key: str, pieces: Any) -> None:
        raise StoreError(f"cannot write key '{key}'")

    store.__class__ = type("Failing", (type(store),), {"put": fail})
    store.traits = msgspec.structs.replace(store.traits, plain_files=False)
    for scheduler in ("sync", "threads"):
        with pytest.raises(StoreError, match="c/"):
            xzarr3.store(da.ones((30, 40), chunks=10), target, scheduler=scheduler)
    assert (target[...] == 0).all()


@pytest.mark.parametrize("chunk", [10, 15])
@pytest.mark.parametrize(("name", "shown"), [
    ("sst", "write-zarr-sst"), ("t2m", "t2m-write-zarr"), ("2m temperature", "2m_temperature-write-zarr"),
    ("_", "write-zarr-root"), ("f" * 32, f"write-zarr-{'f' * 32}"),
])  # fmt: skip
def test_dashboards_show_which_variable_is_written(name: str, shown: str, chunk: int) -> None:
    target = xzarr3.create_array(MemoryStore(), f"a/{name}", shape=30, chunks=chunk, dtype="f8")
    delayed = store(da.ones(30, chunks=10) + 1, target, compute=False)
    assert shown in {key_split(key) for key in tasks(delayed)}


def test_aligned_blocks_are_fused_with_their_writing() -> None:
    values = numbers(40, 40)
    source, target = xzarr3.create_array(MemoryStore(), data=values, chunks=20), blank((40, 40), 10)
    delayed = store((from_zarr(source, chunks="units") + 1) * 2, target, compute=False)
    names = [key[0] for key in tasks(delayed) if isinstance(key, tuple)]
    assert len(names) == 4
    assert all(name.startswith("write-zarr-root-") for name in names)
    assert all(isinstance(delayed.dask.layers[name], Blockwise) for name in set(names))
    delayed.compute()
    np.testing.assert_array_equal(target[...], (values + 1) * 2)


@pytest.mark.parametrize("shape", slow_but([(10**6,), (1000, 1000), (100, 100, 100)], (1000, 1000)), ids=str)
@pytest.mark.parametrize("how", ["aligned", "misaligned"])
def test_a_million_units_are_no_work(shape: tuple[int, ...], how: str) -> None:
    blocks, unit = (1, 1) if how == "aligned" else (2, 3)
    target = blank([n * unit for n in shape], unit)
    job = partial(BlockWrite, da.zeros(target.shape, chunks=blocks), target, ..., in_place=True)
    assert calls_of(lambda: plan_writes([job()]).delayed()) < 20_000
    delayed = plan_writes([job()]).delayed()
    assert not any(layer.is_materialized() for layer in delayed.dask.layers.values())
    if len(shape) > 1 or how == "misaligned":
        layers = [layer for name, layer in delayed.dask.layers.items() if name.startswith(("write", "store"))]
        assert len(cloudpickle.dumps(layers)) < 200_000


def test_the_layer_of_tiles_is_pickled_and_persisted() -> None:
    target = blank((60, 60), 16)
    delayed = store(da.ones((60, 60), chunks=7), target, compute=False)
    again = pickle.loads(cloudpickle.dumps(delayed))
    (layer,) = (each for each in again.dask.layers.values() if isinstance(each, Tiles))
    assert (layer.is_materialized(), len(layer)) == (False, 16)
    assert dask.delayed(lambda _: float(target[...].sum()))(delayed).compute() == 3600
    for write in (lambda: again.compute(scheduler="sync"), lambda: dask.persist(delayed)[0].compute()):
        target[...] = 0
        assert write() is None
        assert target[...].all()
    target[...] = 0
    found: list[bool] = []
    jobs = [BlockWrite(da.ones((60, 60), chunks=7), target, ..., in_place=True)]
    plan_writes(jobs).delayed(lambda: found.append(bool(target[...].all()))).compute()
    assert found == [True]


def test_tiles_of_a_sensible_size() -> None:
    def counts(units: Any, shape: Any, blocks: Any, itemsize: int = 8) -> tuple[int, ...]:
        chunks = da.core.normalize_chunks(blocks, shape, dtype="f8")
        axes = plan_axes([Steps(n) for n in units], [0] * len(shape), chunks, itemsize)
        return tuple(axis.count for axis in axes)

    assert counts((512, 512), (6144, 6144), (300, 300)) == (12, 12)
    assert max(*counts((1,), (10**6,), (999,)), *counts((10,), (10**6,), (999,))) <= 1010
    assert math.prod(counts((3, 3), (3000, 3000), (2, 2))) <= 1500**2 / 100
    assert max(counts((1, 10**4), (10**4, 10**4), (10**4, 1))) >= 6, "not one task for all"


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "blocks", "units"), [
    ((3072, 3072), (150, 150), (256, 256)), ((3072, 3072), (256, 256), (150, 150)),
    ((400, 300, 300), (10, 75, 75), (24, 64, 64)), ((3000, 6000), (3000, 70), (256, 256)),
    ((6000, 3000), (70, 3000), (256, 256)),
], ids=str)  # fmt: skip
def test_few_blocks_wait_for_others(shape: Any, blocks: Any, units: Any) -> None:
    target = blank(shape, units, dtype="f4", compressors=None)
    source = da.random.default_rng(1).random(shape, chunks=blocks, dtype="f4")
    axes = plan_axes([Steps(n) for n in units], [0] * len(shape), source.chunks, 4)
    _, elements = frontier(axes)
    with LiveBlocks() as live:
        store(source, target, scheduler="synchronous")  # Threads would wait for one that is late.
    assert live.most < target.nbytes / 4
    tile = 4 * math.prod(int(np.diff(axis.edges).max()) for axis in axes)
    assert live.most <= 4 * elements + 2 * (tile + 4 * math.prod(map(max, source.chunks)))


def test_what_needs_too_much_memory_is_told_with_the_way(tmp_path: Path) -> None:
    target = blank((310, 200), (1, 200))
    source, region = da.ones((300, 200), chunks=(300, 1)), (slice(10, 310),)
    told = r"468.75 kiB of memory.*limit is 97.66 kiB.*'p2p'.*xzarr3.copy\("
    expected = pytest.warns(xzarr3.LargeWriteWarning, match=told)
    with expected as warned, xzarr3.set_options(memory_limit="100 kB"):
        store(source, target, regions=region)
    assert [each.filename for each in warned] == [__file__]
    assert target[10:].all()
    assert not target[:10].any()
    with pytest.warns(xzarr3.LargeWriteWarning), xzarr3.set_options(memory_limit=100_000):
        delayed = store(source, target, regions=region, compute=False)
    delayed.compute()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with xzarr3.set_options(memory_limit="1 MB"):
            store(source, target, regions=region)
        with xzarr3.set_options(memory_limit=1):
            store(da.ones((310, 200), chunks=(1, 200)), target)
            # An array of the shape of the blocks, which is copied then, is the way that the warning names.
            blocks = blank((60, 40), (60, 1))
            store(da.from_array(numbers(60, 40), chunks=(60, 1)), blocks)
    copied = xzarr3.copy(blocks, tmp_path, chunks=(1, 40))
    assert copied.chunks == (1, 40)
    np.testing.assert_array_equal(copied[...], numbers(60, 40))
    assert 2**26 < memory_limit() < 2**50
    with xzarr3.set_options(memory_limit="2 GiB"):
        assert memory_limit() == 2**31


@pytest.mark.parametrize("blocks", [(8, 8), (5, 7)])
def test_finished_tiles_are_left_out(blocks: tuple[int, int]) -> None:
    made: list[Any] = []

    def noted(block: Values, block_info: Any = None) -> Values:
        made.append(block_info[None]["chunk-location"])
        return block

    source = da.ones((16, 24), chunks=blocks).map_blocks(noted, dtype="f8", meta=NOTHING)
    targets = [blank((16, 24), 8), blank((16, 24), 8)]
    jobs = [BlockWrite(source, target, ...) for target in targets]
    plan_writes(jobs).delayed().compute(scheduler="sync")
    assert all(target[...].all() for target in targets)
    targets[0].store.erase(targets[0].engine.key((1, 2)))
    made.clear()
    plan_writes(jobs, resume=True).delayed().compute(scheduler="sync")
    assert targets[0][...].all()
    assert 0 < len(set(made)) < math.prod(source.numblocks), "blocks that nobody needs are not made"
    made.clear()
    assert plan_writes(jobs, resume=True).delayed().compute() is None
    assert not made


@pytest.mark.slow
def test_streaming_through_small_workers(client: Any, tmp_path: Path) -> None:
    assert memory_limit() == memory_limit(client) == pytest.approx(700 * 2**20)
    shape = (64, 1024, 1024)
    source = blank(shape, (5, 512, 512), LocalStore(tmp_path / "a"), dtype="f4", compressors=None)
    for at in range(0, 64, 16):
        source[at : at + 16] = np.arange(at, at + 16, dtype="f4")[:, None, None]
    target = blank(shape, (8, 300, 300), LocalStore(tmp_path / "b"), dtype="f4", compressors=None)
    store(from_zarr(source, chunks="units") + 1, target)
    for at in range(0, 64, 16):
        assert (target[at : at + 16] == np.arange(at + 1, at + 17, dtype="f4")[:, None, None]).all()
    rows = blank((300, 200), (3, 200), LocalStore(tmp_path / "c"))
    store(da.from_array(numbers(300, 200), chunks=(300, 2)).rechunk((3, 200), method="p2p"), rows)
    np.testing.assert_array_equal(rows[...], numbers(300, 200))
