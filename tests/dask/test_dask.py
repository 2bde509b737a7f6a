"""Arrays in stores as dask arrays: their blocks, graphs, names and elements."""

from __future__ import annotations

import itertools
import pickle
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from _graphs import numbers, sample, tasks
from _recording import recording
from _slow import slow, slow_but
from _things import Thing
from _unprivileged import run_child
from dask.blockwise import Blockwise
from hypothesis import given, settings
from hypothesis import strategies as st

import xzarr3
from xzarr3 import (
    Array,
    ChunkDecodeError,
    LargeWriteWarning,
    LocalStore,
    MemoryStore,
    NodeNotFoundError,
    NodeTypeError,
    Store,
    from_zarr,
    store,
)

# Reading


@pytest.mark.parametrize("layout", [slow({}), {"shards": (20, 20)}, slow({"compressors": None})], ids=str)
@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ("units", None),
        ("grouped", None),
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
    array = sample(store, **layout)
    lazy = from_zarr(array, chunks=chunks)
    for wanted, found, size in zip(expected or (None, None), lazy.chunks, (30, 40), strict=True):
        assert wanted is None or found == wanted
        assert sum(found) == size
    if chunks == "units":
        assert lazy.chunksize == array.write_chunks
    if chunks == "1 kiB":
        assert max(map(np.prod, itertools.product(*lazy.chunks))) * 8 <= 1024
    assert (lazy.shape, lazy.dtype, lazy.ndim) == (array.shape, array.dtype, array.ndim)
    result = lazy.compute(**SYNC)
    assert type(result) is np.ndarray
    np.testing.assert_array_equal(result, numbers(30, 40), strict=True)
    regions = itertools.product(*map(_slices, lazy.chunks))
    for block, region in zip(lazy.to_delayed().ravel(), regions, strict=True):
        np.testing.assert_array_equal(block.compute(**SYNC), numbers(30, 40)[region], strict=True)


def _slices(lengths: tuple[int, ...]) -> list[slice]:
    edges = np.cumsum((0, *lengths)).tolist()
    return list(itertools.starmap(slice, itertools.pairwise(edges)))


@pytest.mark.parametrize("chunks", ["units", "grouped", "auto", -1])
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
    np.testing.assert_array_equal(lazy.compute(**SYNC), values, strict=True)
    np.testing.assert_array_equal((lazy + 1).sum().compute(**SYNC), (values + 1).sum())
    np.testing.assert_array_equal(lazy[...].compute(**SYNC), values)


SYNC: Any = {"scheduler": "sync"}

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


@pytest.mark.parametrize("chunks", [slow("units"), slow("grouped"), (7, 13)], ids=str)
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_expressions_equal_those_of_numpy(name: str, chunks: Any) -> None:
    array = sample()
    found = EXPRESSIONS[name](from_zarr(array, chunks=chunks)).compute(**SYNC)
    np.testing.assert_allclose(found, EXPRESSIONS[name](numbers(30, 40)), rtol=1e-13)


def test_results_are_independent(store: Store) -> None:
    """Buffers that threads use again must not show in results that were handed out."""
    array = sample(store, data=np.arange(20_000.0), chunks=1000, compressors=None)
    lazy = from_zarr(array, chunks="units")
    blocks = dask.compute(*lazy.to_delayed(), scheduler="threads")
    again = dask.compute(*lazy.to_delayed(), scheduler="sync")
    np.testing.assert_array_equal(np.concatenate(blocks), np.arange(20_000.0))
    again[0][:] = -1
    np.testing.assert_array_equal(lazy.compute(**SYNC), np.arange(20_000.0))
    assert all(block.flags.writeable for block in blocks)


def test_sources(tmp_path: Path) -> None:
    local = LocalStore(tmp_path / "x.zarr")
    array = sample(local, "a/b")
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
        np.testing.assert_array_equal(lazy.compute(**SYNC), numbers(30, 40))
        names.add(lazy.name)
    assert len(names) == 2, "the same array has the same name; seen from another root it may have another"
    with pytest.raises(NodeNotFoundError):
        from_zarr(local, "a/c")
    with pytest.raises(NodeTypeError):
        from_zarr(local, "a")
    assert xzarr3.from_zarr is from_zarr


@pytest.mark.parametrize(
    ("chunks", "match"),
    [
        ((3,), None),
        ((1, 2, 3), None),
        ("unit", "chunks='unit'.*'grouped', 'units'"),
        ((10, 50, 0), None),
        (((10, 10), (40,)), None),
        ((-3, 4), None),
        (Thing(), None),
    ],
    ids=str,
)
def test_impossible_chunks(chunks: Any, match: str | None) -> None:
    with pytest.raises((ValueError, TypeError, NotImplementedError), match=match):
        from_zarr(sample(), chunks=chunks)


def test_errors_reach_the_caller() -> None:
    memory = MemoryStore()
    array = sample(memory)
    lazy = from_zarr(array, chunks="units")
    memory.set("c/1/1", b"broken")
    for scheduler in ("sync", "threads"):
        with pytest.raises(ChunkDecodeError, match="c/1/1"):
            lazy.mean().compute(scheduler=scheduler)
    np.testing.assert_array_equal(lazy[:, 20:].compute(**SYNC), numbers(30, 40)[:, 20:])


# The graph


@pytest.mark.parametrize("chunks", ["units", "grouped", (7, 9), ((1, 29), (13, 27))], ids=str)
@pytest.mark.parametrize("shape", [(), (50,), (30, 40), (8, 9, 10)])
def test_one_blockwise_layer(shape: tuple[int, ...], chunks: Any) -> None:
    chunks = chunks if isinstance(chunks, str) or len(shape) == 2 else -1
    lazy = from_zarr(sample(data=numbers(*shape), chunks=7 if shape else ()), chunks=chunks)
    assert list(lazy.dask.layers) == [lazy.name]
    layer = lazy.dask.layers[lazy.name]
    assert isinstance(layer, Blockwise)
    assert not layer.is_materialized()
    assert len(lazy.dask) == lazy.npartitions == len(dict(lazy.dask))
    assert set(dict(lazy.dask)) == set(dask.core.flatten(lazy.__dask_keys__()))


def test_it_fuses_with_what_follows() -> None:
    a = from_zarr(sample(), chunks="units")
    b = from_zarr(sample(), chunks="units")
    assert a.npartitions == 12
    assert len(tasks(a)) == 12
    assert len(tasks((a + 1) * 2)) == 12
    assert len(tasks(da.sqrt(a) - b / 3)) == 12
    assert len(tasks(a.astype("float32").clip(0, 1).map_blocks(np.negative))) == 12
    assert len(tasks((a + 1).sum(split_every=100))) == 12 + 1
    (optimized,) = dask.optimize(da.sqrt(a) - b / 3)
    np.testing.assert_allclose(optimized.compute(**SYNC), np.sqrt(numbers(30, 40)) - numbers(30, 40) / 3)


def test_building_reads_nothing() -> None:
    store = recording()
    array = sample(store)
    with store.recorded() as requests:
        lazy = from_zarr(array)[5:, ::2].mean(axis=0)
        dask.optimize(lazy)
    assert not requests


@pytest.mark.parametrize("shards", [None, (20, 15)])
@pytest.mark.parametrize("shape", [(97, 61), (400, 3), (1, 1000)])
def test_auto_chunks_are_made_of_whole_units(shape: tuple[int, int], shards: tuple[int, int] | None) -> None:
    """Each unit is read once, by one task."""
    store = recording()
    array = sample(store, data=numbers(*shape), chunks=(10, 5), shards=shards)
    lazy = from_zarr(array)
    for along, unit in zip(lazy.chunks, array.write_chunks, strict=True):
        assert all(edge % unit == 0 for edge in np.cumsum(along)[:-1])
    assert lazy.npartitions <= array.nshards
    with store.recorded() as requests:
        np.testing.assert_array_equal(lazy.compute(**SYNC), numbers(*shape))
    assert len({request.key for request in requests}) == array.nshards
    if shards is None:
        assert len(requests) == array.nshards


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


# Names


def test_names_tell_apart_what_differs(local_store: LocalStore) -> None:
    a, b = sample(local_store, "a"), sample(local_store, "b")
    other = sample(None, "a")
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
    np.testing.assert_array_equal(from_zarr(a, name="mine").compute(**SYNC), a[...], strict=True)


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


@pytest.mark.parametrize("process", ["here", slow("elsewhere"), slow("memory")])
@pytest.mark.parametrize("change", CHANGES)
def test_name_changes_with_the_content(change: str, process: str, local_store: LocalStore) -> None:
    array = sample(MemoryStore() if process == "memory" else local_store)
    before = from_zarr(array, chunks=-1)
    if process == "elsewhere":
        run_child(lambda: CHANGES[change](xzarr3.open_array(local_store.root, mode="r+")) and None).checked()
    else:
        CHANGES[change](array)
    found = xzarr3.open_array(array.store)
    after = from_zarr(found, chunks=-1)
    # Of values alone that another process changes, nothing is noticed.
    unseen = process == "elsewhere" and change in ("whole", "element", "last element", "erased chunk")
    assert (after.name == before.name) is (change == "same values" or unseen)
    np.testing.assert_array_equal(after.compute(**SYNC), found[...])


def test_two_versions_in_one_computation(local_store: LocalStore) -> None:
    array = sample(local_store, data=np.arange(10.0), chunks=5)
    old = from_zarr(array)
    array.resize((20,))
    array[10:] = 1
    new = from_zarr(array)
    total = dask.compute(old.sum(), new.sum(), **SYNC)
    assert total == (45.0, 55.0)


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
    np.testing.assert_array_equal(lazy.compute(**SYNC), values)
    selection = tuple(slice(rng.randrange(size + 1), None, rng.choice([1, 2, -1])) for size in shape)
    np.testing.assert_array_equal((lazy[selection] * 2).compute(**SYNC), values[selection] * 2)


# Elements other than numbers


RECORD = [("n", "i4"), ("t", "U2")]


ELEMENTS: dict[str, tuple[Any, list[Any], Any]] = {
    "bool": ("?", [True, False, True, False, True, True, False], "?"),
    "half": ("f2", [0, 1, 2.5, -1, 4, 5, 6], "f2"),
    "complex": ("c8", [0, 1j, 2, 3, 4, 5, 6], "c8"),
    "big endian": (">f4", [0, 1, 2, 3, 4, 5, 6], ">f4"),
    "string": ("string", ["a", "é\0b", "", "x" * 99, "c", "d", "e"], np.dtypes.StringDType()),
    "bytes": ("bytes", [b"a", b"\0\0", b"", b"x" * 99, b"c\0", b"d", b"e"], object),
    "struct": (RECORD, [(n, f"t{n}") for n in range(7)], RECORD),
    "datetime": (
        "M8[ns]", ["2020-01-01", "NaT", "1969-12-31T23:59:59.999999999", *["2000-02-29"] * 4], "M8[ns]"
    ),
    "timedelta": ("m8[h]", [1, -1, "NaT", 0, 5, 6, 7], "m8[h]"),
    "text": ("U3", ["a", "bcd", "", "éé", "e", "f", "g"], "U3"),
    "raw": ("r24", [b"abc", b"\0\0\0", b"xy\0", b"123", b"4", b"5", b"6"], "V3"),
}  # fmt: skip
"""Data types in stores, seven values, and the data types of these in memory."""


LAYOUTS: list[tuple[str, dict[str, Any]]] = [
    ("regular", {"chunks": 3}),
    ("rectilinear", {"chunks": [[1, 4, 2]]}),
    ("sharded", {"chunks": 2, "shards": 4}),
]


def _check_elements(kind: str, folder: Path, scheduler: Any, layouts: Any = LAYOUTS) -> None:
    dtype, items, in_memory = ELEMENTS[kind]
    values = np.array(items, in_memory)
    for name, options in layouts:
        source = xzarr3.create_array(folder / kind / name, dtype=dtype, shape=7, **options)
        source[...] = values
        lazy = from_zarr(source, chunks="units")
        assert lazy.dtype == source.dtype == lazy._meta.dtype
        computed = lazy.compute(scheduler=scheduler)
        assert computed.dtype == lazy.dtype
        assert computed.tolist() == values.tolist()
        assert lazy[::2].rechunk(4).compute(scheduler=scheduler).tolist() == values[::2].tolist()
        target = xzarr3.create_array(folder / kind / f"{name}-copy", dtype=dtype, shape=7, **options)
        misaligned = da.from_array(values, chunks=2)
        for blocks, limit in (
            (lazy, None),
            (da.from_array(values, chunks=lazy.chunks), None),
            (misaligned, 1),
        ):
            target[...] = values[0]
            with warnings.catch_warnings(), xzarr3.set_options(memory_limit=limit):
                warnings.simplefilter("ignore", LargeWriteWarning)
                store(blocks, target, scheduler=scheduler)
            assert target[...].tolist() == values.tolist()
        assert pickle.loads(pickle.dumps(target))[...].tolist() == values.tolist()


@pytest.mark.parametrize("kind", slow_but(ELEMENTS, "string", "struct", "datetime"))
@pytest.mark.parametrize("scheduler", [slow("sync"), "threads"])
def test_elements_other_than_numbers(kind: str, scheduler: str, tmp_path: Path) -> None:
    _check_elements(kind, tmp_path, scheduler)


@pytest.mark.slow
def test_elements_other_than_numbers_on_a_cluster(client: Any, tmp_path: Path) -> None:
    for number, kind in enumerate(ELEMENTS):  # What a layout needs does not depend on the kind of elements.
        _check_elements(kind, tmp_path, client, LAYOUTS[number % 3 : number % 3 + 1])


def test_a_field_of_a_dask_array(tmp_path: Path) -> None:
    _, items, dtype = ELEMENTS["struct"]
    array = xzarr3.create_array(tmp_path / "a", dtype=dtype, data=np.array(items, dtype), chunks=2)
    assert int(from_zarr(array)["n"].sum().compute(**SYNC)) == 21


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
        found = lazy[selection].compute(**SYNC)
        np.testing.assert_array_equal(found, values[selection], strict=True)
    points = [0, 1, 1], [3, 29, 3], [39, 0, 39]
    np.testing.assert_array_equal(lazy.vindex[points].compute(**SYNC), values[points])
    mask = lazy[lazy > 1000].compute(**SYNC)
    np.testing.assert_array_equal(np.sort(mask), values[values > 1000])


def test_keys_that_dask_makes_of_numpys_integers_are_found() -> None:
    """As ``vindex`` does, for a block that several selections need."""
    values = np.arange(80).reshape(8, 10)
    array = xzarr3.create_array(xzarr3.MemoryStore(), data=values, chunks=(8, 10))
    x = xzarr3.from_zarr(array)[:, ::-1]
    made, _ = x.dask.layers[x.name].cull({(x.name, np.int64(0), 0)}, set())
    assert (x.name, 0, 0) in made
    points = [0, 7, 2, 6, 3, 5], [9, 0, 1, 2, 3, 4]
    np.testing.assert_array_equal(x.vindex[points].compute(scheduler="sync"), values[:, ::-1][points])
