"""Arrays in stores as dask arrays: their blocks, graphs, names and elements."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from _graphs import numbers, sample, tasks
from _recording import recording
from _slow import slow
from _things import Thing, refused
from _unprivileged import run_child
from dask.array.core import normalize_chunks
from dask.blockwise import Blockwise

import xzarr3
from xzarr3 import LocalStore, MemoryStore, NodeNotFoundError, NodeTypeError, Store, from_zarr

SYNC: Any = {"scheduler": "sync"}


@pytest.mark.parametrize("chunks", ["units", "grouped", "auto", -1])
@pytest.mark.parametrize(("shape", "units"), [
    ((), ()), ((0,), (3,)), ((0, 5), (2, 2)), ((5, 0, 2), (2, 3, 1)), ((1,), (100,)), ((7,), (7,)),
    ((7,), (3,)), ((3, 1, 5, 2), (2, 1, 5, 1)),
])  # fmt: skip
def test_shapes(shape: tuple[int, ...], units: tuple[int, ...], chunks: Any, store: Store) -> None:
    values = np.arange(1, int(np.prod(shape)) + 1, dtype="int16").reshape(shape)
    array = xzarr3.create_array(store, data=values, chunks=units)
    lazy = from_zarr(array, chunks=chunks)
    assert (lazy.shape, lazy.dtype, lazy.ndim) == (array.shape, array.dtype, array.ndim)
    np.testing.assert_array_equal(lazy.compute(**SYNC), values, strict=True)
    np.testing.assert_array_equal((lazy + 1).sum().compute(**SYNC), (values + 1).sum())
    np.testing.assert_array_equal(lazy[...].compute(**SYNC), values)


def test_results_are_independent(store: Store) -> None:
    """Buffers that threads use again must not show in results that were handed out."""
    lazy = from_zarr(sample(store, data=np.arange(20_000.0), chunks=1000, compressors=None), chunks="units")
    blocks, again = (dask.compute(*lazy.to_delayed(), scheduler=each) for each in ("threads", "sync"))
    np.testing.assert_array_equal(np.concatenate(blocks), np.arange(20_000.0))
    again[0][:] = -1
    np.testing.assert_array_equal(lazy.compute(**SYNC), np.arange(20_000.0))
    assert all(block.flags.writeable for block in blocks)


def test_sources(tmp_path: Path) -> None:
    local = LocalStore(tmp_path / "x.zarr")
    array, root, names = sample(local, "a/b"), local.root, set()
    for source, path in (
        (array, ""), (local, "a/b"), (root, "a/b"), (Path(root), "/a/b/"), (f"file://{root}", "a/b"),
        (f"{root}/a", "b"),
    ):  # fmt: skip
        lazy = from_zarr(source, path)
        np.testing.assert_array_equal(lazy.compute(**SYNC), numbers(30, 40))
        names.add(lazy.name)
    assert len(names) == 2, "the same array has the same name; seen from another root it may have another"
    for missing, error in (("a/c", NodeNotFoundError), ("a", NodeTypeError)):
        refused(error, None, lambda missing=missing: from_zarr(local, missing))


def test_errors_reach_the_caller() -> None:
    memory = MemoryStore()
    lazy = from_zarr(sample(memory), chunks="units")
    memory.set("c/1/1", b"broken")
    for scheduler in ("sync", "threads"):
        with pytest.raises(xzarr3.ChunkDecodeError, match="c/1/1"):
            lazy.mean().compute(scheduler=scheduler)
    np.testing.assert_array_equal(lazy[:, 20:].compute(**SYNC), numbers(30, 40)[:, 20:])


VALUES = np.arange(240, dtype="int32").reshape(20, 12)


def chunked(**options: Any) -> xzarr3.Array:
    settings: dict[str, Any] = {"chunks": (2, 3), "shards": (8, 6), "dimension_names": ("time", "x")}
    return xzarr3.create_array(xzarr3.MemoryStore(), **{"data": VALUES, **settings, **options})


DASKS: list[Any] = [
    5, -1, (5, 4), (5, -1), [5, 4], (None, 4), ((3, 17), 6), ((3, 17), (6, 6)), (20, (1,) * 12), "1 kB",
    "64 MiB", "auto", ("auto", 3), ("auto", "auto"), {0: 5}, {0: 5, 1: -1}, {1: (5, 7)}, {0: "auto"}, {},
    np.int64(7), 7.0, 10**6, (np.int32(4), 5), {0: None},
]  # fmt: skip


@pytest.mark.parametrize("chunks", DASKS, ids=repr)
def test_what_dask_accepts_means_what_it_means_to_dask(chunks: Any) -> None:
    array = chunked()
    lazy, previous = from_zarr(array, chunks=chunks), array.write_chunk_sizes
    expected = normalize_chunks(chunks, VALUES.shape, dtype=VALUES.dtype, previous_chunks=previous)
    assert lazy.chunks == expected
    np.testing.assert_array_equal(lazy.compute(**SYNC), VALUES, strict=True)
    blocks = da.from_array(VALUES, chunks=expected).to_delayed().ravel()
    for found, block in zip(lazy.to_delayed().ravel(), blocks, strict=True):
        np.testing.assert_array_equal(*dask.compute(found, block, **SYNC), strict=True)


@pytest.mark.parametrize(("chunks", "expected"), [
    ("units", ((8, 8, 4), (6, 6))), ("chunks", ((2,) * 10, (3,) * 4)), (("chunks", -1), ((2,) * 10, (12,))),
    ({"time": 5, "x": -1}, ((5,) * 4, (12,))), ({"time": "units", "x": "chunks"}, ((8, 8, 4), (3,) * 4)),
    ({"x": 4}, ((20,), (4, 4, 4))), ({-1: 4}, ((20,), (4, 4, 4))),
], ids=str)  # fmt: skip
def test_blocks_by_name_and_as_stored(chunks: Any, expected: Any) -> None:
    lazy = from_zarr(chunked(), chunks=chunks)
    assert lazy.chunks == expected
    np.testing.assert_array_equal(lazy.compute(**SYNC), VALUES)


def test_blocks_of_what_is_empty_or_has_no_shards() -> None:
    for chunks in ("auto", ("units", "auto"), (-1, "auto"), {"x": "auto"}):
        assert from_zarr(chunked(data=VALUES[:0]), chunks=chunks).chunks == ((0,), (12,))
    array = chunked(shards=None, chunks=((5, 15), 4))
    by_chunks, by_units = (from_zarr(array, chunks=name) for name in ("chunks", "units"))
    assert (by_chunks.chunks, by_chunks.name) == (by_units.chunks, by_units.name)
    assert from_zarr(array, chunks=None).chunks == from_zarr(array).chunks


@pytest.mark.parametrize(("chunks", "match"), [
    ({"tmie": 5}, "did you mean 'time'"), ({2: 5}, "no dimension of the array; accepted: 'time', 'x', 0, 1"),
    ("unit", "chunks='unit'.*accepted: 'grouped', 'units', 'chunks', and"), ((5, 4, 3), "same length"),
    (((3, 4), 6), "add up to shape"), ((5, 50, 0), None),
    ((-5, 4), r"chunks=\(-5, 4\) has a block of length -5; accepted: positive lengths or"),
    (np.int64(-2), "block of length -2|block of length np.int64"), ({"x": -3}, "block of length -3"),
    (((5, -1, 16), 12), "block of length -1"), ("-3 MiB", "block of length '-3 MiB'"),
    (0, r"chunks=0 do not fit an array of shape \(20, 12\): blocks of length 0"),
    ({"x": 0}, "blocks of length 0"), (Thing(), None),
], ids=repr)  # fmt: skip
def test_what_does_not_fit_is_refused(chunks: Any, match: str | None) -> None:
    refused((ValueError, TypeError, NotImplementedError), match, lambda: from_zarr(chunked(), chunks=chunks))


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
    a, b = (from_zarr(sample(), chunks="units") for _ in range(2))
    assert a.npartitions == 12
    for result in (a, (a + 1) * 2, da.sqrt(a) - b / 3, a.astype("f4").clip(0, 1).map_blocks(np.negative)):
        assert len(tasks(result)) == 12
    assert len(tasks((a + 1).sum(split_every=100))) == 12 + 1
    (optimized,) = dask.optimize(da.sqrt(a) - b / 3)
    np.testing.assert_allclose(optimized.compute(**SYNC), np.sqrt(numbers(30, 40)) - numbers(30, 40) / 3)


@pytest.mark.parametrize("shards", [None, (20, 15)])
@pytest.mark.parametrize("shape", [(97, 61), (400, 3), (1, 1000)])
def test_auto_chunks_are_made_of_whole_units(shape: tuple[int, int], shards: tuple[int, int] | None) -> None:
    store = recording()
    array = sample(store, data=numbers(*shape), chunks=(10, 5), shards=shards)
    with store.recorded() as requests:
        lazy = from_zarr(array)
        dask.optimize(lazy[5:, ::2].mean(axis=0))
    assert not requests
    for along, unit in zip(lazy.chunks, array.write_chunks, strict=True):
        assert all(edge % unit == 0 for edge in np.cumsum(along)[:-1])
    assert lazy.npartitions <= array.nshards
    with store.recorded() as requests:
        np.testing.assert_array_equal(lazy.compute(**SYNC), numbers(*shape))
    assert len({request.key for request in requests}) == array.nshards
    if shards is None:
        assert len(requests) == array.nshards


def test_auto_chunks_are_of_a_size_that_is_worth_a_task() -> None:
    large = {"shape": (3650, 720, 1440), "chunks": (1, 720, 1440), "dtype": "float32"}
    lazy = from_zarr(xzarr3.create_array(MemoryStore(), **large))
    assert 16 <= lazy.npartitions <= 2000
    assert max(int(np.prod(block)) * 4 for block in itertools.product(*lazy.chunks)) <= 64 * 2**20
    small = from_zarr(xzarr3.create_array(MemoryStore(), shape=10**8, chunks=1000, dtype="int8"))
    assert small.npartitions <= 200


CHANGES: dict[str, Callable[[xzarr3.Array], object]] = {
    "whole": lambda array: array.set(..., 5), "last element": lambda array: array.set((-1, -1), 5),
    "erased chunk": lambda array: array.set((slice(0, 10), slice(0, 10)), 0),
    "attributes": lambda array: array.attrs.update(x=1), "resize": lambda array: array.resize((20, 40)),
    "append": lambda array: array.append(np.ones((1, 40))), "same values": lambda array: None,
}  # fmt: skip


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
    unseen = process == "elsewhere" and change in ("whole", "last element", "erased chunk")
    assert (after.name == before.name) is (change == "same values" or unseen)
    np.testing.assert_array_equal(after.compute(**SYNC), found[...])
    if change == "append" and process == "here":  # Two versions in one computation.
        both = dask.compute(before.sum(), after.sum(), **SYNC)
        np.testing.assert_allclose(both[1] - both[0], 40)


def test_a_field_of_a_dask_array() -> None:
    values = np.array([(n, f"t{n}") for n in range(4)], [("n", "i4"), ("t", "U2")])
    array = xzarr3.create_array(MemoryStore(), data=values, chunks=2)
    assert int(from_zarr(array)["n"].sum().compute(**SYNC)) == 6


@pytest.mark.parametrize("options", [
    {"chunks": (1, 7, 9)}, {"chunks": (2, 8, 8), "shards": (2, 16, 40)}, {"chunks": (1, [7, 20, 3], 40)},
], ids=repr)  # fmt: skip
@pytest.mark.parametrize("given", [{}, {"chunks": (1, 10, 40)}, {"chunks": (2, 30, 5), "inline_array": True}])
def test_dask_may_index_an_array_itself(options: dict[str, Any], given: dict[str, Any]) -> None:
    values = np.arange(2 * 30 * 40).reshape(2, 30, 40)
    lazy = da.from_array(xzarr3.create_array(MemoryStore(), data=values, **options), **given)
    assert lazy.shape == values.shape
    selections: list[Any] = [
        ..., [1, 0], (0, [3, 29, 4]), (slice(None), [3, 29, 4, 4], slice(None, None, -2)), (..., [5, 5, 1]),
        (slice(None), values[0, :, 0] > 300), (1, slice(25, 3, -4), -1), ([], 0), (slice(None), [], 3),
    ]  # fmt: skip
    for selection in selections:
        np.testing.assert_array_equal(lazy[selection].compute(**SYNC), values[selection], strict=True)
    points = [0, 1, 1], [3, 29, 3], [39, 0, 39]
    np.testing.assert_array_equal(lazy.vindex[points].compute(**SYNC), values[points])
    np.testing.assert_array_equal(np.sort(lazy[lazy > 1000].compute(**SYNC)), values[values > 1000])


def test_keys_that_dask_makes_of_numpys_integers_are_found() -> None:
    values = np.arange(80).reshape(8, 10)
    x = from_zarr(xzarr3.create_array(MemoryStore(), data=values, chunks=(8, 10)))[:, ::-1]
    made, _ = x.dask.layers[x.name].cull({(x.name, np.int64(0), 0)}, set())
    assert (x.name, 0, 0) in made
    points = [0, 7, 2, 6, 3, 5], [9, 0, 1, 2, 3, 4]
    np.testing.assert_array_equal(x.vindex[points].compute(**SYNC), values[:, ::-1][points])
