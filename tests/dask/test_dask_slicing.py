"""Dask arrays that read less when they are sliced: what they hold, what they fetch, what they are called."""

import math
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import dask
import dask.array as da
import dask.graph_manipulation
import numpy as np
import pytest
import xarray as xr
from _conformance import refused
from _graphs import calls_of, tick
from _processes import printed_by
from _recording import RecordingStore
from _slow import slow
from _things import Thing
from _unprivileged import run_child
from dask.array.core import getter
from dask.base import collections_to_expr
from dask.utils import key_split
from distributed import protocol
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import xzarr3
from xzarr3 import Array, LocalStore, MemoryStore, StoreError, from_zarr
from xzarr3.dask.array import ZarrArray
from xzarr3.dask.slicing import Along, every
from xzarr3.grid import Edges, Steps

SYNC = {"scheduler": "sync"}


def _made(*shape: int, where: Any = None, **options: Any) -> tuple[Array, np.ndarray[Any, Any]]:
    values = np.arange(1, math.prod(shape) + 1, dtype="int32").reshape(shape)
    return xzarr3.create_array(where or MemoryStore(), data=values, **options), values


def _same(found: da.Array, expected: da.Array, values: np.ndarray[Any, Any]) -> None:
    """A selection is what dask makes of it, but has no empty blocks beside others."""
    chunks = tuple(tuple(filter(None, along)) or (0,) for along in expected.chunks)
    assert found.chunks in ((chunks,) if isinstance(found, ZarrArray) else (chunks, expected.chunks))
    assert all(type(length) is int for along in found.chunks for length in along)
    for name in ("shape", "dtype", "ndim", "size"):
        assert getattr(found, name) == getattr(values, name), name
    assert found.numblocks == tuple(map(len, found.chunks))
    assert found.npartitions == math.prod(found.numblocks)
    assert (found.chunksize, found._meta.shape) == (tuple(map(max, found.chunks)), (0,) * found.ndim)
    np.testing.assert_array_equal(found.compute(**SYNC), values, strict=True)


@st.composite
def _blocks(draw: st.DrawFn, size: int) -> tuple[int, ...]:
    cuts = draw(st.sets(st.integers(1, size - 1))) if size > 1 else ()
    return tuple(np.diff([0, *sorted(cuts), size]).tolist())


@st.composite
def _dimensions(draw: st.DrawFn) -> tuple[int, Any]:
    size = draw(st.sampled_from([0, 1, 2, 3, 7, 12, 30]))
    if size < 2 or draw(st.booleans()):
        return size, draw(st.integers(1, 9))
    return size, list(draw(_blocks(size)))


def _indexes(size: int) -> st.SearchStrategy[Any]:
    ends = st.none() | st.integers(-size - 2, size + 2)
    slices = st.builds(slice, ends, ends, st.sampled_from([None, 1, 1, 2, 3, 5, 50, -1, -2, -3, -7, -50]))
    if not size:
        return slices
    at = st.integers(-size, size - 1)
    return slices | slices | at | at.map(np.int64)


@st.composite
def _selections(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, ...]:
    index = [draw(_indexes(size)) for size in shape]
    first, last = sorted(draw(st.tuples(*[st.integers(0, len(index))] * 2)))
    match draw(st.sampled_from([(), (), (...,), (None,)])):
        case (each,) if each is ...:  # It stands for those in between.
            return (*index[:first], ..., *index[last:])
        case new:
            return (*index[:first], *new, *index[first:last])


@pytest.mark.slow
@settings(max_examples=60)
@given(st.data())
def test_any_selections_are_those_of_dask(data: st.DataObject) -> None:
    dimensions = data.draw(st.lists(_dimensions(), max_size=3))
    shape, chunks = (tuple(each[at] for each in dimensions) for at in (0, 1))
    array, values = _made(*shape, chunks=chunks)
    blocks = tuple(data.draw(_blocks(size)) for size in values.shape)
    found = from_zarr(array, chunks=data.draw(st.sampled_from(["units", "grouped", -1, 4, blocks])))
    expected = da.from_array(values, chunks=found.chunks or ())
    assert isinstance(found, ZarrArray)
    _same(found, expected, values)
    for _ in range(data.draw(st.integers(1, 3))):
        index = data.draw(_selections(values.shape))
        try:
            values = np.asarray(values[index])
        except IndexError:
            with pytest.raises(IndexError):
                found[index]
            break
        found, expected = found[index], expected[index]
        if expected.shape != values.shape:  # Dask is wrong about x[-9::-1] of a short array.
            if found.shape == expected.shape:  # Once it is an array of dask, which has a new dimension.
                break
            expected = da.from_array(values, chunks=found.chunks)
        _same(found, expected, values)


def test_long_dimensions_with_few_uneven_blocks() -> None:
    blocks = Edges(((1, 1), (10**12, 3), (5, 2)))
    view = every(blocks, blocks.total).selected(slice(None, None, -2))
    assert (view.number, sum(view.lengths)) == (6, view.count)
    assert Along(Steps(10), 0, 1, 10**17).selected(slice(5, None)).number == 10**16


BAD = [
    30, -31, (0, 40), (0, 0, 0), (..., 99), (0, 0, ..., 0), 1.5, "n", slice(None, None, 0), (slice("a"),),
    ([0, 30],), ([True, False],), ([0], [1]), (..., ...), Thing(), {},
]  # fmt: skip


@pytest.mark.parametrize("index", BAD, ids=repr)
def test_what_dask_refuses_is_refused_in_the_same_way(index: Any) -> None:
    array, values = _made(30, 40, chunks=10)
    with pytest.raises(Exception) as theirs:  # noqa: PT011
        da.from_array(values, chunks=10)[index].compute(**SYNC)
    with pytest.raises(type(theirs.value), match=f"^{re.escape(str(theirs.value))}$"):
        from_zarr(array, chunks="units")[index].compute(**SYNC)


@pytest.mark.parametrize("index", [
    ([3, 29, 3],), slow((5, [1, -1])), ([1, 2], 5), slow((slice(None, None, -2), [0, 39, 7])),
    slow(([], 3)), slow((slice(4, 20), np.arange(9))), (np.arange(30) % 3 == 0, slice(3)),
    slow((None, 3, [5, 5])), slow((True, 3)), da.from_array(np.array([1, 5, 28]), chunks=2),
    slow(np.arange(1200).reshape(30, 40) % 7 == 0), (slice(2, 9), None, slice(None), None),
    slow((slice(np.int64(3), np.uint8(7)), 0)),
], ids=repr)  # fmt: skip
def test_other_indexes_are_those_of_dask(index: Any) -> None:
    array, values = _made(30, 40, chunks=(10, 7))
    expected, lazy = da.from_array(values, chunks=(10, 7)), from_zarr(array, chunks="units")
    assert lazy[index].chunks == expected[index].chunks or np.isnan(expected[index].shape).any()
    np.testing.assert_array_equal(lazy[index].compute(**SYNC), expected[index].compute(**SYNC), strict=True)


def test_masks_and_empty_blocks_that_are_left_out() -> None:
    array, values = _made(30, chunks=10)
    lazy = from_zarr(array, chunks=((0, 10, 0, 20),))
    assert lazy.chunks == ((10, 20),)
    np.testing.assert_array_equal(lazy[5:][::2].compute(**SYNC), values[5::2])
    np.testing.assert_array_equal(lazy[lazy > 20].compute(**SYNC), values[values > 20])


@pytest.mark.parametrize(("select", "expected"), [
    (lambda x: x[5, 10:20], {("c/0/0", 5 * 80 + 40, 40)}),
    (lambda x: x[5][10:20], {("c/0/0", 5 * 80 + 40, 40)}),
    (lambda x: x[15:17], {("c/1/0", 400, 160), ("c/1/1", 400, 160)}),
    (lambda x: x[::-1][0][::-1][-3:], {("c/2/0", 9 * 80, 12)}),
    (lambda x: x[::20, 39], {("c/0/1", 76, 4), ("c/2/1", 76, 4)}),
    (lambda x: x[25:25], set()),
    (lambda x: x[3:5, None, 2:4].transpose(2, 0, 1) + 1, {("c/0/0", 248, 88)}),
    (lambda x: x[12, [3, 30]], {("c/1/0", 160, 80), ("c/1/1", 160, 80)}),
    (lambda x: x[4].max(), {("c/0/0", 320, 80), ("c/0/1", 320, 80)}),
])  # fmt: skip
def test_the_selected_is_fetched(select: Callable[[Any], Any], expected: set[tuple[str, int, int]]) -> None:
    store = RecordingStore(MemoryStore())
    _, values = _made(30, 40, where=store, chunks=(10, 20), compressors=None)
    lazy = select(from_zarr(store, chunks="units"))
    with store.recorded() as requests:
        found = lazy.compute(**SYNC)
    np.testing.assert_array_equal(found, select(values))
    assert {(key, start, length) for key, start, length, _ in requests} == expected
    assert len(requests) == len(expected)


@pytest.mark.slow
@settings(max_examples=40)
@given(st.data())
def test_whatever_is_selected_together_is_read_once(data: st.DataObject) -> None:
    dimensions = data.draw(st.lists(_dimensions(), min_size=1, max_size=3), "dimensions")
    shape, store = tuple(size for size, _ in dimensions), RecordingStore(MemoryStore())
    _, values = _made(*shape, where=store, chunks=[n for _, n in dimensions])
    lazy = from_zarr(store, chunks="units")
    indexes = data.draw(st.lists(_selections(shape), min_size=2, max_size=6), "indexes")
    assume(0 not in shape or not any(isinstance(at, (int, np.integer)) for index in indexes for at in index))
    with store.recorded() as requests:
        found = dask.compute([lazy[index] for index in indexes], **SYNC)[0]
    keys = [key for key, *_ in requests]
    assert len(keys) == len(set(keys))
    for result, index in zip(found, indexes, strict=True):
        alone = lazy[index].compute(optimize_graph=False, **SYNC)
        np.testing.assert_array_equal(result, values[index], strict=True)
        np.testing.assert_array_equal(alone, values[index], strict=True)


@pytest.mark.parametrize("keep", [dask.persist, dask.optimize])
def test_selections_are_computed_together_with_what_was_persisted(keep: Any) -> None:
    """Of two layers of one name dask takes the last one, which may hold values and answer nothing."""
    array, values = _made(10, 6, chunks=(4, 3))
    lazy = from_zarr(array, chunks="units")
    (kept,) = keep(lazy)
    assert kept.name == lazy.name
    for both in ((lazy[1:9, ::-1], kept), (kept, lazy[1:9, ::-1]), (lazy[1:9, ::-1], lazy[3], kept, lazy)):
        for lazily, found in zip(both, dask.compute(*both, **SYNC), strict=True):
            np.testing.assert_array_equal(found, lazily.compute(**SYNC), strict=True)
    anomaly = lazy[2:9] - kept.mean(axis=0)
    np.testing.assert_array_equal(anomaly.compute(**SYNC), values[2:9] - values.mean(axis=0))
    twice = dask.optimize(*dask.optimize(kept[2:5] - lazy[3:6] + lazy[0]))[0]
    np.testing.assert_array_equal(twice.compute(**SYNC), values[2:5] - values[3:6] + values[0])


def test_results_of_one_block_do_not_share_their_memory() -> None:
    array, values = _made(10, 4, chunks=10)
    lazy = from_zarr(array)
    indexes: list[Any] = [slice(9), slice(1, None), 3, (slice(None, None, -1), 2), slice(None)]
    found = dask.compute([lazy[index] for index in indexes], **SYNC)[0]
    for result, index in zip(found, indexes, strict=True):
        np.testing.assert_array_equal(result, values[index])
        result[...] = -1


@pytest.mark.parametrize(("compressor", "indexes", "moved"), [
    # Less than a quarter of the block is read by itself, whatever else is read.
    (None, [3, 90], {(3 * 800, 800), (90 * 800, 800)}),
    (None, [slice(0, 24), 3], {(0, 24 * 800), (3 * 800, 800)}),
    (None, [slice(20, None, -1), 50], {(0, 21 * 800), (50 * 800, 800)}),
    (None, [slice(7, 7), 7], {(7 * 800, 800)}),
    # All others share the block, of which one alone reads only its part.
    (None, [slice(0, 60), slice(20, 100)], {(0, 80_000)}),
    (None, [slice(5, 50), 90], {(5 * 800, 45 * 800), (90 * 800, 800)}),
    (None, [slice(50, 5, -1)], {(6 * 800, 45 * 800)}),
    # Selections of the same rows share these.
    (None, [(3, slice(0, 50)), (3, slice(40, 99))], {(3 * 800, 800)}),
    (None, [(3, slice(0, 50))], {(3 * 800, 400)}),
    # A compressed chunk can only be read whole.
    ({"name": "zstd"}, [3, 90], None),
], ids=str)  # fmt: skip
def test_selections_of_less_than_a_quarter_of_a_block_are_read_by_themselves(
    compressor: Any, indexes: list[Any], moved: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xzarr3.dask.array._GRAIN", 800)
    values = np.arange(10_000.0).reshape(100, 100)
    store = RecordingStore(MemoryStore(), request_bytes=100)
    xzarr3.create_array(store, data=values, chunks=(100, 100), compressors=compressor)
    lazy = from_zarr(store, chunks="units")
    with store.recorded() as requests:
        found = dask.compute([lazy[index] for index in indexes], **SYNC)[0]
    for result, index in zip(found, indexes, strict=True):
        np.testing.assert_array_equal(result, values[index])
    found_parts = [(start, length) for _, start, length, _ in requests]
    assert sorted(found_parts) == sorted(moved) if moved else len(found_parts) == 1


def test_only_inner_chunks_that_are_selected_are_read_and_once() -> None:
    store = RecordingStore(MemoryStore())
    _, values = _made(40, 40, where=store, chunks=(10, 10), shards=(40, 40), compressors=None)
    lazy = from_zarr(store, chunks="units")
    index, chunk = 16 * 16 + 4, 10 * 10 * 4
    for select, chunks in (
        (lambda x: (x[25, 3:9],), 1), (lambda x: (x[25, 3:9], x[22:24, 5:].sum(0), x[3, 3]), 6)
    ):  # fmt: skip
        with store.recorded() as requests:
            found = dask.compute(*select(lazy), **SYNC)
        for one, expected in zip(found, select(values), strict=True):
            np.testing.assert_array_equal(one, expected)
        assert sum(length for _, _, length, _ in requests) <= index + chunks * chunk


def test_reads_are_shared_in_a_graph_that_a_scheduler_optimizes(tmp_path: Path) -> None:
    """On a cluster that is done where the graph was sent to."""
    array, values = _made(60, 60, where=tmp_path, chunks=20)
    lazy = from_zarr(array, chunks="units")
    results = [lazy[at] for at in range(5, 15)] + [lazy[1:] - lazy[:-1]]
    graph = pickle.loads(pickle.dumps(collections_to_expr(results, True))).optimize().__dask_graph__()
    readers, left = 0, list(graph.values())
    while left:  # Tasks that read may be a part of another one.
        task = left.pop()
        readers += getattr(task, "func", None) is getter
        left += task.args[0].values() if getattr(task, "args", ()) and isinstance(task.args[0], dict) else ()
    assert readers == array.nshards
    found = dask.get(graph, [result.__dask_keys__() for result in results])
    np.testing.assert_array_equal(np.concatenate(found[3]), values[8])
    rows = [np.concatenate(row, 1) for row in found[-1]]
    np.testing.assert_array_equal(np.concatenate(rows), np.diff(values, axis=0))


def test_annotated_and_waited_for() -> None:
    array, values = _made(30, 40, chunks=10)
    lazy = from_zarr(array, chunks="units")
    again = dask.graph_manipulation.wait_on(lazy[3:25:2, 7])
    np.testing.assert_array_equal((again - lazy[3:25:2, 7]).compute(**SYNC), np.zeros(11))
    with dask.annotate(retries=2):
        np.testing.assert_array_equal(lazy[1:, 3].compute(**SYNC), values[1:, 3])
    with dask.config.set({"optimization.fuse.active": False}):
        np.testing.assert_array_equal((lazy[1:] - lazy[:-1]).compute(**SYNC), np.diff(values, axis=0))


@pytest.mark.slow
def test_query_planning_of_dask_is_refused_in_words(tmp_path: Path) -> None:
    _made(10, where=tmp_path, chunks=5)
    program = """
        import sys, dask
        dask.config.set({"array.query-planning": True})
        import dask.array as da, numpy as np, xarray as xr, xzarr3
        array, lazy = xzarr3.open_array(sys.argv[1]), da.ones(10, chunks=5)
        store = xzarr3.to_zarr(xr.Dataset({"t": ("x", np.arange(3.0))})).store
        for work in (
            lambda: xzarr3.from_zarr(array), lambda: xzarr3.store(lazy, array),
            lambda: xr.open_dataset(store, engine="xzarr3", chunks={}),
            lambda: xzarr3.to_zarr(xr.Dataset({"a": ("x", lazy)})),
        ):
            try:
                work()
            except NotImplementedError as error:
                print(error)
        print(float(xr.open_dataset(store, engine="xzarr3")["t"].sum()))
    """
    *said, total = printed_by(program, str(tmp_path))
    assert (len(said), total) == (4, "3.0")
    assert all("'array.query-planning': True" in each and "set it to False" in each for each in said)


def test_there_are_tasks_for_needed_blocks_only() -> None:
    lazy = from_zarr(_made(100, 100, chunks=10)[0], chunks="units")
    for part, number in ((lazy[5, 10:20], 1), (lazy[::50], 20), (lazy[9:11, -1], 2), (lazy[95:][::-1], 10)):
        assert type(part) is ZarrArray
        (optimized,) = dask.optimize(part)
        assert len(dict(optimized.dask)) == part.npartitions == number
        assert list(part.dask.layers) == [lazy.name, part.name]


def test_dask_reads_from_an_array_what_it_needs() -> None:
    store = RecordingStore(MemoryStore())
    array, values = _made(30, 40, where=store, chunks=(10, 20), compressors=None)
    lazy = da.from_array(array, chunks=array.chunks)
    assert (lazy.chunks, lazy.dtype, type(lazy._meta)) == (((10,) * 3, (20, 20)), values.dtype, np.ndarray)
    with store.recorded() as requests:
        found = lazy[15:17, 3:5].compute(**SYNC)
    np.testing.assert_array_equal(found, values[15:17, 3:5])
    assert [(key, start, length) for key, start, length, _ in requests] == [("c/1/0", 412, 88)]
    np.testing.assert_array_equal((da.ones((30, 40)) + da.asanyarray(array)).compute(**SYNC), values + 1)


def test_names_tell_what_is_selected(local_store: LocalStore) -> None:
    array, _ = _made(30, 40, where=local_store, path="a", chunks=10)
    whole = from_zarr(array, chunks=10)
    lazy, mine = from_zarr(array, chunks="units"), from_zarr(array, name="mine")
    ways = [
        [lazy[5, 10:20], lazy[5][10:20], lazy[:, 10:20][5], lazy[-25, 10:-20], lazy[5:6, 5:][0, 5:15]],
        [lazy, lazy[...], lazy[:], lazy[::-1][::-1], lazy[:30, 0:], lazy[-99:99], whole],
        [lazy[::-2], lazy[::-1][::2]], [lazy[3:3], lazy[9:5], lazy[5:][0:0]],
        [lazy[1:], lazy[::-1][:-1][::-1]],
        *([each] for each in (lazy[5:6], lazy[5], lazy[6], lazy[:, 5], mine[2:])),
        *([from_zarr(array, chunks=chunks)] for chunks in (-1, (7, 7), ((20, 10), 40), ((10, 20), 40))),
        [from_zarr(array, chunks=-1)[5]], [mine, mine[::-1][::-1]],
        [from_zarr(_made(30, 40, chunks=10)[0], chunks="units")],
        [from_zarr(_made(30, 40, where=local_store, path="b", chunks=10)[0], chunks="units")],
    ]  # fmt: skip
    names = [{each.name for each in same} for same in ways]
    assert [len(each) for each in names] == [1] * len(ways)
    assert (len(set().union(*names)), mine.name) == (len(ways), "mine")
    again = from_zarr(xzarr3.open_array(local_store, "a"), chunks="units")[5, 10:20]
    assert again.name == ways[0][0].name
    array[0, 0] = 9
    assert from_zarr(array, chunks="units")[5, 10:20].name != again.name


@pytest.mark.slow
def test_names_are_the_same_in_every_process(local_store: LocalStore) -> None:
    options: Any = {"attributes": {"z": 1, "a": {"b": [1.5, None]}}}
    array, _ = _made(30, 40, where=local_store, path="a/air", chunks=10, **options)
    expected = [from_zarr(array, chunks=7)[5, ::-3].name, from_zarr(array).name]
    for twin in (xzarr3.open_array(local_store.root, "a/air"), pickle.loads(pickle.dumps(array))):
        assert from_zarr(twin).name == expected[1]
    lazy = "xzarr3.from_zarr(sys.argv[1], 'a/air'"
    program = f"import sys, xzarr3; print({lazy}, chunks=7)[5, ::-3].name, {lazy}).name, sep='\\n')"
    for seed in ("1", "2"):
        assert printed_by(program, local_store.root, PYTHONHASHSEED=seed) == expected
    memory, _ = _made(30)
    assert run_child(lambda: from_zarr(memory).name).checked() == from_zarr(memory).name


@pytest.mark.parametrize(("path", "prefix", "split"), [
    ("", "read-zarr-root-", "read-zarr-root"), ("a/air", "read-zarr-air-", "read-zarr-air"),
    ("air_temp", "read-zarr-air-temp-", "read-zarr-air-temp"), ("t2m", "read-zarr-t2m-", "read-zarr"),
    ("a b(c)'\"", "read-zarr-a-b-c-", "read-zarr-a-b-c"),
    ("\u6c17\u6e29", "read-zarr-root-", "read-zarr-root"),
    ("x" * 99, f"read-zarr-{'x' * 40}-", f"read-zarr-{'x' * 40}"),
])  # fmt: skip
def test_prefixes_say_what_is_read(path: str, prefix: str, split: str) -> None:
    array, _ = _made(30, where=MemoryStore(), path=path, chunks=10)
    for lazy in (from_zarr(array), from_zarr(array)[3:], from_zarr(array, chunks=((0, 30),))):
        assert lazy.name.startswith(prefix)
        assert key_split(lazy.name) == split
        assert all(key_split(key) == split for key in lazy.dask)


def test_the_root_says_nothing_about_an_array(local_store: LocalStore, tmp_path: Path) -> None:
    shapes: dict[str, Any] = {"many": (1000, 2), "flat": 5000, "few": 10}
    options: dict[str, Any] = {"chunks": 1, "dtype": "i1"}
    arrays = [xzarr3.create_array(local_store, name, shape=shapes[name], **options) for name in shapes]
    for array in arrays:
        array[0] = 1
    before = [from_zarr(array).name for array in arrays]
    tick(tmp_path)
    os.utime(local_store.root)
    os.utime(Path(local_store.root) / "many")
    xzarr3.create_array(local_store, "other", data=np.arange(3))
    assert [from_zarr(array).name for array in arrays] == before
    for at, array in enumerate(arrays):
        array[-1] = 1
        assert from_zarr(array).name != before[at]


def test_names_cost_no_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that cannot tell whether anything has changed is not asked unit by unit."""
    store = RecordingStore(MemoryStore())
    array, _ = _made(300, where=store, chunks=1)
    for method in ("exists", "get", "open"):
        monkeypatch.setattr(store, method, lambda *args: pytest.fail("asked"))
    assert len({from_zarr(array).name for _ in range(3)}) == 1, "its documents tell the name"


def test_results_are_plain_dask_arrays() -> None:
    array, values = _made(30, 40, chunks=10)
    lazy = from_zarr(array, chunks="units")
    selected, expected = lazy[3:20, ::2], values[3:20, ::2]
    (kept,) = dask.persist(selected, **SYNC)
    for found in (
        selected + 1, -selected, selected.T, selected.sum(axis=0), selected.astype("f8"), selected.rechunk(5),
        da.concatenate([selected, selected]), selected.map_blocks(np.negative), selected.reshape(-1),
        selected.persist(**SYNC), kept, np.sqrt(selected), selected.squeeze().T,
    ):  # fmt: skip
        assert type(found) is da.Array
    assert (kept.name, kept.chunks) == (selected.name, selected.chunks)
    row = np.concatenate([block.compute(**SYNC) for block in selected.to_delayed()[0]], 1)
    for found, wanted in (
        (kept[1:3], expected[1:3]), (expected + selected, expected * 2), (da.ones(20) * selected, expected),
        (dask.compute({"a": [selected]}, **SYNC)[0]["a"][0], expected), (selected, expected),
        (dask.delayed(np.sum)(selected).compute(**SYNC), expected.sum()), (row, expected[:7]),
    ):  # fmt: skip
        np.testing.assert_array_equal(np.asarray(found), wanted)
    assert len(selected) == 17
    assert "read-zarr-root" in repr(selected)
    assert "30" in lazy._repr_html_()
    assert lazy.dask._repr_html_()
    assert selected.copy().name
    seen = []
    with dask.config.set(array_plugins=[lambda made: seen.append(type(made))]):
        from_zarr(array, chunks="units")
    assert seen == [da.Array], "a plugin of dask gets plain arrays"


def test_what_is_changed_in_place_does_not_read_what_was() -> None:
    array, values = _made(30, 40, chunks=10)
    changed, masked, out, sized, renamed = (from_zarr(array, chunks="units") for _ in range(5))
    changed[5:7] = -1
    assert "setitem" in changed.name
    assert changed.name in changed.dask.layers
    again = pickle.loads(pickle.dumps(changed))
    assert (type(again), again.name) == (da.Array, changed.name)
    expected = np.where(np.isin(np.arange(30), (5, 6))[:, None], -1, values)
    np.testing.assert_array_equal(changed[4:8, 3].compute(**SYNC), expected[4:8, 3])
    masked = masked[::2]
    masked[masked > 100] = 0
    np.testing.assert_array_equal(masked[::-3].compute(**SYNC), np.where(values > 100, 0, values)[::2][::-3])
    np.add(out, 1, out=out)
    np.testing.assert_array_equal(out[2].compute(**SYNC), values[2] + 1)
    assert sized.compute_chunk_sizes().chunks == ((10,) * 3, (10,) * 4)
    renamed._name = renamed.name
    assert type(pickle.loads(pickle.dumps(renamed))) is da.Array
    for same in (sized, renamed):
        np.testing.assert_array_equal(same[2].compute(**SYNC), values[2])


@pytest.mark.parametrize("where", [slow("memory"), "local"])
@pytest.mark.parametrize("shape", [(1000, 1000), slow((10**7,))], ids=str)
def test_what_is_pickled_and_sent_is_small(shape: tuple[int, ...], where: str, tmp_path: Path) -> None:
    place: Any = MemoryStore() if where == "memory" else tmp_path
    array = xzarr3.create_array(place, shape=shape, chunks=1, dtype="f4")
    lazy = from_zarr(array, chunks="units")
    selected = lazy[::-3][5:]
    assert len(cloudpickle.dumps(from_zarr(array).dask)) < 5_000
    assert len(pickle.dumps(selected)) < 3000
    assert len(pickle.dumps(selected.dask)) < 4000
    twin = pickle.loads(pickle.dumps(selected))
    assert (type(twin), twin.name, twin.shape) == (ZarrArray, selected.name, selected.shape)
    corner = (slice(0, 3),) * len(shape)
    assert twin[corner].name == selected[corner].name
    np.testing.assert_array_equal(twin[corner].compute(**SYNC), np.zeros((3,) * len(shape), "f4"))
    if len(shape) == 2:  # Of sums along one dimension, dask lists all blocks.
        assert len(cloudpickle.dumps((lazy + 1).dask)) < 40_000
        for part in (lazy[corner], (lazy + 1)[corner], lazy[corner].sum()):
            sent = protocol.dumps(protocol.to_serialize(collections_to_expr([part], True)))
            assert sum(memoryview(frame).nbytes for frame in sent) < 16_000
    assert not any(layer.is_materialized() for layer in (lazy + lazy[::-1]).dask.layers.values())
    edges = np.random.default_rng(1).integers(1, 99, 1000).tolist()
    uneven = xzarr3.create_array(MemoryStore(), shape=sum(edges), chunks=[edges], dtype="i1")
    assert len(pickle.dumps(from_zarr(uneven, chunks="units")[::7].dask)) < 40 * len(edges)


@pytest.mark.parametrize("chunks", ["units", "grouped"])
@pytest.mark.parametrize("where", ["memory", "local"])
def test_work_does_not_depend_on_the_number_of_chunks(where: str, chunks: str, tmp_path: Path) -> None:
    """It is counted in calls of functions, of which ten million chunks would need more."""
    for name, shape, unit in (("many", (3163, 3163), 1), ("large", (1000,) * 3, 10)):
        place: Any = MemoryStore() if where == "memory" else tmp_path / name
        array = xzarr3.create_array(place, shape=shape, chunks=unit, dtype="f4")
        lazy, half = from_zarr(array, chunks=chunks), slice(shape[0] // 2, None)
        indexes: list[Any] = [(slice(2, 5),) * len(shape), 7, half, slice(None, None, -3), (half, ...)]
        works = [lambda array=array: from_zarr(array, chunks=chunks)]
        works += [lambda lazy=lazy, index=index: lazy[index] for index in indexes]
        assert max(calls_of(work) for work in works) < 5000


def test_an_array_that_shrank_meanwhile() -> None:
    array, _ = _made(30, 40, chunks=10)
    lazy = from_zarr(array, chunks="units")
    array.resize((15, 40))
    refused(StoreError, lambda: lazy.compute(**SYNC), match="was larger")
    np.testing.assert_array_equal(lazy[:10].compute(**SYNC), array[:10])
    assert lazy[:15].name not in (lazy.name, from_zarr(array, chunks="units").name)


def test_xarray_takes_it_for_an_array_of_dask() -> None:
    """It compares types, and refuses to work with chunked arrays of several."""
    array, values = _made(30, 40, chunks=10)
    lazy = from_zarr(array, chunks="units")
    data = xr.Dataset({"a": (("y", "x"), lazy), "b": ("x", da.ones(40, chunks=30))})
    np.testing.assert_array_equal(data.compute().a, values)
    assert data.unify_chunks().chunks["x"] == (10, 10, 10, 10)
    added = xr.apply_ufunc(np.add, data.a, data.b.chunk(x=10), dask="parallelized", output_dtypes=["f8"])
    np.testing.assert_array_equal(added, values + 1)
    selected = data.a.isel(y=5, x=slice(10, 20))
    assert isinstance(selected.data, ZarrArray)
    assert selected.data.npartitions == 1
    np.testing.assert_array_equal(selected.compute(**SYNC), values[5, 10:20])
    assert data.a.chunk({"x": 40}).data.numblocks == (3, 1)
    assert {type(lazy), da.Array} == {da.Array}
    assert (type(lazy) is da.Array, type(pickle.loads(pickle.dumps(lazy))) is type(lazy)) == (False, True)
