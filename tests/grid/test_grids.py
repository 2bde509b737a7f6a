"""Chunk grids, above all rectilinear ones: documents, arrays against numpy, and other libraries."""

import itertools
import json
import math
import pickle
import tempfile
from collections.abc import Iterator
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from _conformance import contents
from _documents import document
from _strategies import array_document, attempt, same_bits, selections, stored, uneven_layouts
from _things import refused, refuses
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import xzarr3
from xzarr3 import MetadataError, SelectionError, UnknownExtensionError
from xzarr3.codecs import BytesCodec, ShardingCodec, TransposeCodec
from xzarr3.grid import Edges, RectilinearGrid, RegularGrid, Steps, grid_for, parse_grid

LITTLE = BytesCodec("little")
JUNK: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 9), st.integers(), st.floats(), st.text(max_size=3)),
    lambda inner: st.lists(inner, max_size=4), max_leaves=12,
)  # fmt: skip
AGREEING: list[tuple[Any, Any]] = [
    ((2, 3), (2, 3)), ((2, 3), (2, 3, 4)), ((2, 3), (2, 3, 3, 4)), ((2,), (2, 2, 2)), ((), (2,)), (2, 2),
]  # fmt: skip
DIFFERING: list[tuple[Any, Any]] = [
    ((2, 3, 3), (2, 3, 4)), ((2, 3), (2, 4)), ((2, 3), (3, 2)), ((2, 2, 3), (2, 3)), ((2, 3), 2), (2, 3),
]  # fmt: skip
PIPELINES = {
    "zarr-python": {"codec_pipeline.path": "zarr.core.codec_pipeline.BatchedCodecPipeline"},
    "zarrs": {"codec_pipeline.path": "zarrs.ZarrsCodecPipeline", "codec_pipeline.strict": True},
}


def rectilinear(chunk_shapes: list[Any], **configuration: Any) -> dict[str, Any]:
    configuration = {"kind": "inline", "chunk_shapes": chunk_shapes, **configuration}
    return {"name": "rectilinear", "configuration": configuration}


def written(shape: list[int], chunk_shapes: list[Any], chunks: Any = None, **changes: Any) -> xzarr3.Array:
    return stored(array_document(shape=shape, chunk_grid=rectilinear(chunk_shapes), **changes), chunks)


def made(**options: Any) -> xzarr3.Array:
    return xzarr3.create_array(xzarr3.MemoryStore(), **options)


def expanded(value: Any, size: int = 0) -> list[int]:
    """The lengths of the chunks along a dimension, written out as the extension says; none dropped."""
    if isinstance(value, int):
        return [value] * -(-size // value)
    runs = [item if isinstance(item, list) else [item, 1] for item in value]
    return [length for length, count in runs for _ in range(count)]


@st.composite
def axes(draw: st.DrawFn, size: int, unit: int = 1) -> Any:
    """The chunks of a dimension as a document has them: all lengths are multiples of ``unit``."""
    length = st.sampled_from([1, 2, 3, 4, 7, 10]).map(lambda n: n * unit)
    if draw(st.integers(0, 3)) == 0:
        return draw(length)
    item = st.one_of(length, st.tuples(length, st.integers(1, 3)).map(list))
    items: list[Any] = draw(st.lists(item, max_size=4))
    missing = size - sum(i if isinstance(i, int) else i[0] * i[1] for i in items)
    while missing > 0:
        items.append(draw(length))
        missing -= items[-1]
    return items


@pytest.mark.parametrize(("chunk_shapes", "lengths"), [
    # The third axis of the first: [[4, 2]] is two chunks of 4, the second of which is stored whole.
    ([4, [1, 2, 3], [[4, 2]], [[1, 3], 3], [4, 4, 4]], ((4, 2), (1, 2, 3), (4, 2), (1, 1, 1, 3), (4, 2))),
    ([[[2, 3]], [[1, 6]], [1, [2, 1], 3], [[1, 3], 3], [6]],
     ((2, 2, 2), (1,) * 6, (1, 2, 3), (1, 1, 1, 3), (6,))),
], ids=["README", "earlier"])  # fmt: skip
def test_the_examples_of_the_extension(chunk_shapes: list[Any], lengths: Any) -> None:
    array = written([6] * 5, chunk_shapes)
    assert isinstance(array.metadata.chunk_grid, RectilinearGrid)
    assert array.chunks == array.write_chunks == lengths
    assert array.shards is None
    assert array.shard_grid_shape == tuple(map(len, lengths))
    values = np.arange(6**5, dtype="int16").reshape((6,) * 5)
    array[...] = values
    assert np.array_equal(array[...], values)
    coords = [*np.ndindex(*map(len, lengths))]
    assert set(array.store.list()) == {"zarr.json", *("c/" + "/".join(map(str, at)) for at in coords)}
    size = math.prod(expanded(value, 6)[at] for value, at in zip(chunk_shapes, coords[-1], strict=True))
    assert len(array.store.get(array.chunk_key(coords[-1])) or b"") == 2 * size


def test_golden_chunks() -> None:
    """A 3 by 6 array in rows [2, 1] and columns [1, 3, 4], of which the last reaches beyond it."""
    chunks = {
        "c/0/0": bytes([0, 0, 10, 0]),  # (0, 0) and (1, 0)
        "c/0/1": bytes([1, 0, 2, 0, 3, 0, 11, 0, 12, 0, 13, 0]),
        "c/0/2": bytes([4, 0, 5, 0, 255, 255, 255, 255, 14, 0, 15, 0, 255, 255, 255, 255]),
        "c/1/1": bytes([21, 0, 22, 0, 23, 0]),
    }
    values = np.array([[0, 1, 2, 3, 4, 5], [10, 11, 12, 13, 14, 15], [-1, 21, 22, 23, -1, -1]], "int16")
    array, made = (written([3, 6], [[2, 1], [1, 3, 4]], each, fill_value=-1) for each in (chunks, None))
    assert np.array_equal(array[...], values)
    assert array.read_chunk((0, 2)).tolist() == [[4, 5], [14, 15]]
    refused(SelectionError, None, lambda: array.read_chunk((0, 3)), lambda: array[3])
    made[...] = values
    assert {key: value for key, value in contents(made.store).items() if key != "zarr.json"} == chunks


LENGTH = "an integer of at least 1"
BAD: list[tuple[str, str, list[Any]]] = [
    # place, words, chunk_shapes
    ("", "the array has 2 dimensions", [[4], [4, 6, 1]]),
    ("", "not a valid value", ["46", None]),
    ("[1]", LENGTH, [[4, value] for value in (0, -6, 6.0, True, "6", None, {}, 2**63)]),
    ("[1][1]", LENGTH, [[4, each] for each in ([3, 0, 3], [3, -1, 4], [3, 3.0], [3, False], [3, "3"])]),
    ("[1][0]", "a pair", [[4, [run]] for run in ([3], [3, 2, 1], [])]),
    ("[1][0][1]", LENGTH, [[4, [[3, count]]] for count in (0, 2.0, True, 10**30)]),
    ("[1][0][0]", LENGTH, [[4, [[0, 3]]], [4, [[[3, 1], 2]]]]),
    ("[1]", "whose sum is at least 6", [[4, [3, 2]], [4, []]]),
    ("[0]", "whose sum is at least 4", [[[[1, 3]], 6]]),
]


@pytest.mark.parametrize(("place", "words", "values"), BAD)
def test_a_grid_that_is_none_is_refused(place: str, words: str, values: list[Any]) -> None:
    for error in refuses(lambda shapes: written([4, 6], shapes), values, MetadataError, words):
        assert error.field == f"chunk_grid.configuration.chunk_shapes{place}"


def test_the_fields_of_the_configuration() -> None:
    def opened(name: str = "rectilinear", **configuration: Any) -> xzarr3.Array:
        return stored(array_document(chunk_grid={"name": name, "configuration": configuration}))

    given: dict[str, Any] = {"kind": "inline", "chunk_shapes": [4, 6]}
    for configuration, error, match in (
        ({"chunk_shapes": [4, 6]}, MetadataError, r"chunk_grid\.configuration\.kind': missing field"),
        (given | {"kind": "external"}, MetadataError, "not a valid value; found 'external'"),
        ({"kind": "inline"}, MetadataError, r"chunk_shapes': missing field"),
        (given | {"origin": [0, 0]}, UnknownExtensionError, r"chunk_grid\.configuration\.origin"),
        ({"name": "hexagonal"}, UnknownExtensionError, "accepted: 'regular', 'rectilinear'"),
    ):
        refused(error, match, partial(opened, **configuration))
    assert opened(**given, note={"must_understand": False}).chunks == (4, 6)


@pytest.mark.slow
@settings(max_examples=500)
@given(JUNK, st.sampled_from([(), (0,), (6,), (3, 5)]))
def test_any_chunk_shapes_open_or_are_refused(chunk_shapes: Any, shape: tuple[int, ...]) -> None:
    given = rectilinear(chunk_shapes)["configuration"]
    grid, error = attempt(lambda: parse_grid("rectilinear", given, shape), MetadataError)
    if error is None:
        assert parse_grid("rectilinear", grid.configuration(), shape) == grid
    else:
        assert str(error.field).startswith("chunk_grid.configuration.chunk_shapes")
    asked, error = attempt(lambda: grid_for(chunk_shapes, shape), MetadataError)
    if error is None:
        asked.check(shape)


def test_a_short_document_of_very_many_chunks() -> None:
    """Neither opening nor reading makes anything for each chunk: there would be no end."""
    array = written([2 * 10**12 + 5], [[[1, 10**12], 5, [1, 10**12], [2**62, 2**62]]])
    array[10**12 - 1 : 10**12 + 7] = np.arange(8)
    assert (array[10**12 + 2], array[-1], array.shard_grid_shape) == (3, 0, (2 * 10**12 + 1,))
    assert array.chunk_key(10**12 + 1) in set(array.store.list())
    assert array.metadata.chunk_grid.region((10**12,), array.shape) == (slice(10**12, 10**12 + 5),)
    array.resize((10**12 + 3,))
    assert array[10**12 - 2 :].tolist() == [0, 0, 1, 2, 3]
    refused(MetadataError, "too many chunks", lambda: array.chunks)


@pytest.mark.parametrize("many", [2, 3, 2**62])
def test_points_where_chunks_reach_beyond_what_64_bits_count(many: int) -> None:
    grid = rectilinear([[3, [2, 1], [2**62, many], [1, 5]], [5, [6, 1]]])
    held = array_document(shape=[10, 10], chunk_grid=grid, dimension_names=["x", "y"])
    group = b'{"zarr_format": 3, "node_type": "group"}'
    store = xzarr3.MemoryStore({"zarr.json": group, "t/zarr.json": json.dumps(held).encode()})
    store.set("t/c/1/1", np.arange(12, dtype="<i2").tobytes())
    dataset = xr.open_dataset(store, engine="xzarr3")
    x, y = (xr.DataArray(points, dims="p") for points in ([1, 4, 9], [0, 7, 9]))
    assert dataset.t.isel(x=x, y=y).values.tolist() == [0, 8, 0]
    assert dataset.t.isel(x=x[:0], y=y[:0]).shape == (0,)


@pytest.mark.parametrize(("chunks", "shape", "grid"), [
        (4, (10, 3), RegularGrid((4, 4))), ((4, -1), (10, 3), RegularGrid((4, 3))),
        (-1, (10, 0), RegularGrid((10, 1))), (np.int64(4), (10,), RegularGrid((4,))),
        (np.array([4, 5]), (10, 10), RegularGrid((4, 5))), (((4, 4, 2), (3,)), (10, 3), RegularGrid((4, 3))),
        ([[10], [3]], (10, 3), RegularGrid((10, 3))), ([[12], [3]], (10, 3), RegularGrid((12, 3))),
        (((0,), (2, 1)), (0, 3), RegularGrid((1, 2))), ([[], 2], (0, 3), RegularGrid((1, 2))),
        ([[[4, 3]], 2], (10, 3), RegularGrid((4, 2))), ([[[4, 2], 2], 2], (10, 3), RegularGrid((4, 2))),
        ((), (), RegularGrid(())), ([[3, 4], 5], (7, 10), RectilinearGrid(((3, 4), 5))),
        (((3, 4), (5, 5)), (7, 10), RectilinearGrid(((3, 4), (5, 5)))),
        ([np.array([3, 4]), -1], (7, 10), RectilinearGrid((((3, 1), (4, 1)), 10))),
        ([[3, 3, 4]], (10,), RectilinearGrid((((3, 2), 4),))),
        ([[4, 4, 1, 1]], (10,), RectilinearGrid((((4, 2), (1, 2)),))),
        ([[2, 4, 9]], (7,), RectilinearGrid(((2, 4, 9),))),
], ids=range(19))  # fmt: skip
def test_grid_for(chunks: Any, shape: tuple[int, ...], grid: Any) -> None:
    found = grid_for(chunks, shape)
    assert found == grid
    found.check(shape)


def test_what_is_no_grid() -> None:
    refusals: dict[str, list[Any]] = {
        "chunks": [0, -2, 2.5, "auto", None, True, (4,), (4, 4, 4), 2**63],
        "chunks[1]": [(4, 0), (4, 2.0), (4, True)], "chunks[0]": [([4, 4], 3), ([], 3), ("ab", 3)],
        "chunks[0][2]": [([4, 4, 0, 2], 3), ([4, 4, -1], 3)], "chunks[0][1]": [([4, 6.0], 3)],
        "chunks[0][0][1]": [([[4, 0], 10], 3)],
    }  # fmt: skip
    for field, values in refusals.items():
        for error in refuses(lambda chunks: grid_for(chunks, (10, 3)), values, MetadataError):
            assert error.field == field


@pytest.mark.parametrize("chunks", [((3, 2), 4), ([3, 2], -1), [np.array([3, 2]), (2, 2)]])
def test_create_array_with_lists_of_lengths(chunks: Any, zarr: Any) -> None:
    """A list is what it says, also where a regular grid has the same chunks until the array grows."""
    array = made(shape=(5, 4), chunks=chunks, dtype="int8")
    grid = document(array.store)["chunk_grid"]
    assert (grid["name"], grid["configuration"]["chunk_shapes"][0]) == ("rectilinear", [3, 2])
    array.resize((7, 4))
    assert array.metadata.chunk_grid.region((2, 0), array.shape)[0] == slice(5, 7)
    peer = zarr.create_array({}, shape=(5, 4), chunks=chunks, dtype="int8")
    assert peer.metadata.to_dict()["chunk_grid"]["name"] == "rectilinear"


def test_lists_of_lengths_of_shards_and_of_formats_with_regular_grids() -> None:
    array = made(shape=(10, 12, 7), chunks=[[4, 4, 4], [1, 5, 5, 1], [3, [2, 2]]], dtype="int8")
    assert document(array.store)["chunk_grid"] == rectilinear([[[4, 3]], [1, [5, 2], 1], [3, [2, 2]]])
    array = made(shape=(10,), shards=((4, 4, 2),), chunks=2, dtype="int8")
    assert (array.shards, array.chunks) == (((4, 4, 2),), (2,))
    uneven = partial(made, shape=(10,), shards=10, chunks=((5, 5),), dtype="int8")
    refused(MetadataError, "cannot lie in shards", uneven)
    for zarr_format in (2, "3-draft"):
        make = partial(made, shape=(10, 7), dtype="int8", zarr_format=zarr_format)
        assert make(chunks=((4, 4, 2), [7])).chunks == (4, 7)
        refused(MetadataError, "chunk_grid", partial(make, chunks=((4, 2, 4), 7)))


@given(st.integers(0, 30).flatmap(lambda size: st.tuples(st.just(size), axes(size))))
def test_a_dimension_is_what_its_lengths_say(case: tuple[int, Any]) -> None:
    size, value = case
    full = expanded(value, size)
    (axis,) = RectilinearGrid((value,)).axes
    starts = [0, *itertools.accumulate(full)]
    within = [at for at, low in enumerate(starts[:-1]) if low < size]
    assert axis.count(size) == len(within)
    assert axis.lengths(size) == (tuple(min(full[at], size - starts[at]) for at in within) or (0,))
    for at in within:
        assert (axis.start(at), axis.length_at(at)) == (starts[at], full[at])
        assert {axis.index(element) for element in range(starts[at], starts[at] + full[at])} == {at}
    assert set(axis.distinct) == set(full) or isinstance(axis, Steps)
    assert list(axis.distinct) == sorted(axis.distinct, reverse=True)
    assert axis.longest == max(axis.distinct, default=0)
    lengths = axis.lengths(size)
    pairs = tuple(sum(lengths[at : at + 2]) for at in range(0, len(lengths), 2))
    assert axis.paired().lengths(size) == pairs


@given(
    st.integers(0, 30).flatmap(lambda size: st.tuples(st.just(size), axes(size, 2))), st.integers(0, 80),
    st.sampled_from([1, 2]),
)  # fmt: skip
@example((0, []), 5, 2)
def test_a_dimension_that_grows(case: tuple[int, Any], new: int, unit: int) -> None:
    (axis,) = RectilinearGrid((case[1],)).axes
    grown = axis.covering(new, unit)
    assert axis.agrees(grown)
    assert grown.agrees(axis)
    if isinstance(axis, Steps) or isinstance(grown, Steps):
        assert axis == grown
        return
    assert grown.total >= new
    before, after = (expanded(each.to_json()) for each in (axis, grown))
    assert after[: len(before)] == before
    added = after[len(before) :]
    assert bool(added) == (new > axis.total)
    assert all(length % unit == 0 for length in added)
    assert grown.total == new or grown.total < new + unit or not added
    if before and added:
        assert max(added) <= max(before)
        assert all(length == max(before) for length in added[:-1])


def test_grids_compare_by_what_they_mean() -> None:
    for pair in (*AGREEING, *DIFFERING):
        left, right = (RectilinearGrid((each,)) for each in pair)
        assert left.agrees(right) is right.agrees(left) is (pair in AGREEING), pair
    assert not RegularGrid((2,)).agrees(RectilinearGrid((2,)))
    assert not RegularGrid((2,)).agrees(RegularGrid((3,)))
    assert not RectilinearGrid(((2, 3),)).agrees(RectilinearGrid(((2, 3), 1)))
    one, other = RectilinearGrid(([2, 2, 3], 4)), RectilinearGrid((((2, 2), (3, 1)), 4))
    assert one == other == pickle.loads(pickle.dumps(one))
    assert (hash(one), one.is_regular, RectilinearGrid((2, 4)).is_regular) == (hash(other), False, True)
    assert (one.largest, [*one.sample_shapes()]) == ((3, 4), [(3, 4), (2, 4)])
    assert [*RectilinearGrid(((2, 3), (5, 1, 4))).sample_shapes()] == [(3, 5), (2, 5), (3, 4), (3, 1)]
    assert one.axes == (Edges(((2, 2), (3, 1))), Steps(4))


def test_a_grid_of_steps_only_is_read_as_a_regular_one() -> None:
    array = written([5, 7], [2, 3])
    assert array.chunks == array.write_chunks == (2, 3)
    values = np.arange(49).reshape(7, 7)
    array[...] = values[:5]
    array.append(values[5:])
    assert np.array_equal(array[...], values)
    assert document(array.store)["chunk_grid"] == rectilinear([2, 3])


def test_appending_pieces_adds_chunks_that_are_the_pieces() -> None:
    first = np.arange(31 + 28 + 31)
    array = made(data=first, chunks=[[31, 28, 31]])
    for days, more in ((30, [30]), (31, [30, 31]), (30, [30, 31, 30]), (67, [30, 31, 30, 31, 31, 5])):
        array.append(np.arange(days))
        assert array.chunks == ((31, 28, 31, *more),)
    array.resize((150,))
    assert array.chunks == ((31, 28, 31, 30, 30),)
    array.append(np.arange(1))
    assert array.chunks == ((31, 28, 31, 30, 31),)


@pytest.mark.parametrize("orders", [[], [(1, 2, 0)], [(1, 2, 0), (0, 2, 1)], [(2, 1, 0), (1, 2, 0)]])
def test_shards_grow_by_whole_inner_chunks(orders: list[tuple[int, ...]]) -> None:
    turned = np.array([2, 3, 5])  # The lengths of the inner chunks, as the array has its dimensions.
    for order in orders:
        turned = turned[list(order)]
    array = made(
        shape=(6, 15, 15), dtype="int32", chunks=[[4, 2], [6, 9], [10, 5]], compressors=None,
        filters=[TransposeCodec(order) for order in orders],
        serializer=ShardingCodec(tuple(turned.tolist()), (LITTLE,)),
    )  # fmt: skip
    values = np.arange(8 * 16 * 16, dtype="int32").reshape(8, 16, 16)
    array[...] = values[:6, :15, :15]
    if not orders:
        assert array.shards == array.write_chunks == ((4, 2), (6, 9), (10, 5))
        assert (array.chunks, array.shard_grid_shape) == ((2, 3, 5), (2, 2, 2))
        assert "shards" in array.info
    array.append(values[6:7, :15, :15])
    array.append(values[:7, 15:, :15], 1)
    array.resize((8, 16, 16))
    assert array.metadata.chunk_grid == RectilinearGrid(((4, 2, 2), (6, 9, 3), (10, 5, 5)))
    array[7] = values[7]
    array[:7, :, 15] = values[:7, :, 15]
    assert np.array_equal(array[...], values)


def test_inner_chunks_that_do_not_divide_every_shard() -> None:
    inner = ShardingCodec((4,), (LITTLE,))
    shards = partial(made, shape=(18,), chunks=[[8, 4, 6]], serializer=inner, dtype="int32")
    refused(MetadataError, r"shards=\(6,\) is not a multiple", shards)

    def turned(*chunk_shape: int) -> xzarr3.Array:
        codecs = (TransposeCodec((1, 0)), ShardingCodec(chunk_shape, (LITTLE,)))
        return written([8, 8], [[4, 4], [2, 3, 3]], codecs=[codec.to_json() for codec in codecs])

    assert turned(1, 4).shard_grid_shape == (2, 3)
    of_others = partial(written, [12], [[8, 4, 2]], codecs=[inner.to_json()], data_type="int32")
    refused(MetadataError, "is not a multiple of chunks", of_others, lambda: turned(2, 4))


def test_a_chunk_of_another_shape_is_refused() -> None:
    array = written([7], [[2, 5]], {"c/0": bytes(10), "c/1": bytes(10)})
    assert array[2:].tolist() == [0] * 5
    (error,) = refused(xzarr3.ChunkDecodeError, None, lambda: array[...])
    assert (error.chunk, error.key) == ((0,), "c/0")


def test_what_was_cut_off_or_left_behind_does_not_come_back() -> None:
    array = made(data=np.arange(1, 10), chunks=[[2, 3, 4]], write_empty_chunks=True)
    for size in (5, 3):
        array.resize((size,))
        assert set(array.store.list()) == {"zarr.json", "c/0", "c/1"}
    array.resize((9,))
    assert (array[...].tolist(), array.chunks) == ([1, 2, 3, 0, 0, 0, 0, 0, 0], ((2, 3, 4),))
    # A chunk that a write left under a key that the grid lacked may have had any shape.
    array = made(data=np.arange(5, dtype="int16"), chunks=[[2, 3]], compressors=None)
    array.store.set("c/2", bytes(14))
    array.store.set("c/3", b"what is this")
    array.resize((10,))
    assert (array[...].tolist(), array.chunks) == ([0, 1, 2, 3, 4, 0, 0, 0, 0, 0], ((2, 3, 3, 2),))
    assert [array.store.exists(key) for key in ("c/2", "c/3")] == [False, False]


RESHAPED = [{"name": "reshape", "configuration": {"shape": [-1, 4]}}]


@pytest.mark.parametrize("codecs", [
    {"filters": RESHAPED}, {"filters": [*RESHAPED, TransposeCodec((1, 0))]},
    {"filters": RESHAPED, "serializer": ShardingCodec((1, 2), (BytesCodec(),))},
])  # fmt: skip
def test_chunks_that_codecs_cannot_encode_are_not_added(codecs: dict[str, Any]) -> None:
    array = made(data=np.arange(12), chunks=[[4, 8]], dimension_names=["x"], compressors=None, **codecs)
    for change in (lambda: array.resize(15), lambda: array.append([1, 2, 3])):
        refused(MetadataError, r"node '/'.*the chunk has 3 elements", change)
        assert xzarr3.open_array(array.store)[...].tolist() == array[...].tolist() == [*range(12)]
    array.append([12] * 4)
    assert xzarr3.open_array(array.store)[...].tolist() == [*range(12), *[12] * 4]
    # Chunks of several lengths that begin where the elements do would not fit, either.
    group = xzarr3.create_group(xzarr3.MemoryStore())
    group.create_array("x", data=array[...], chunks=[[4, 8, 4]], dimension_names=["x"], **codecs)
    xzarr3.drop(group.store, x=slice(None, 2))
    assert xzarr3.open_array(group.store, "x")[...].tolist() == [*range(3, 12), *[12] * 4]


def test_a_handle_goes_on_when_another_one_has_resized_the_array() -> None:
    one = made(data=np.arange(5), chunks=[[2, 3]])
    other = xzarr3.open_array(one.store, mode="r+")
    other.append(np.arange(5, 9))
    assert one[...].tolist() == [0, 1, 2, 3, 4]
    one.append(np.arange(9, 11))
    assert (one[...].tolist(), one.chunks) == ([*range(11)], ((2, 3, 3, 1, 2),))
    other.attrs["units"] = "m"
    assert xzarr3.open_array(one.store).chunks == one.chunks


def test_blocks_of_dask_arrays_make_a_regular_grid() -> None:
    blocks = da.ones((10, 7), chunks=((4, 4, 2), (7,)))
    assert made(data=blocks).chunks == xzarr3.from_array(None, data=blocks).chunks == (4, 7)
    ds = xr.Dataset({"t": (("y", "x"), blocks)})
    for encoding in ({}, {"t": {"chunks": blocks.chunks}}):
        assert xzarr3.to_zarr(ds, encoding=encoding)["t"].chunks == (4, 7)


def test_dask_has_the_chunks_of_the_grid() -> None:
    values = np.arange(10 * 12).reshape(10, 12)
    array = made(data=values, chunks=[[1, 5, 4], [8, 4]])
    lazy = xzarr3.from_zarr(array, chunks="units")
    assert lazy.chunks == ((1, 5, 4), (8, 4)) == array.chunks
    for each in (lazy, xzarr3.from_zarr(array), xzarr3.from_zarr(array, chunks=(-1, "auto"))):
        assert np.array_equal(each.compute(), values)
        assert np.array_equal(each[3:, ::-2].T.compute(), values[3:, ::-2].T)
    grown = written([0, 6], [[], [4, 4]])
    assert xzarr3.from_zarr(grown, chunks="units").chunks == grown.chunks == ((0,), (4, 2))


def test_small_chunks_are_grouped_along_their_edges() -> None:
    lengths = [*range(1, 201)] * 5
    array = made(shape=(sum(lengths), 4), dtype="int64", chunks=[lengths, 4], fill_value=3)
    lazy = xzarr3.from_zarr(array)
    assert 16 <= len(lazy.chunks[0]) < 500
    edges = set(itertools.accumulate(lengths))
    assert set(itertools.accumulate(lazy.chunks[0])) <= edges
    assert int(lazy.sum().compute()) == 3 * array.size


@pytest.fixture(params=PIPELINES)
def zarr(request: pytest.FixtureRequest) -> Iterator[Any]:
    """zarr-python, with its own codecs or those of zarrs, if it knows rectilinear grids."""
    module = pytest.importorskip("zarr")
    if request.param == "zarrs":
        pytest.importorskip("zarrs")
    if "rectilinear_chunks" not in module.config.get("array"):
        pytest.skip(f"zarr-python {module.__version__} has no rectilinear grids")
    with module.config.set({"array.rectilinear_chunks": True, **PIPELINES[request.param]}):
        yield module


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed` codec")
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_other_libraries_read_what_is_written_here(zarr: Any, data: st.DataObject) -> None:
    # They want at least one chunk along each dimension.
    shape = tuple(data.draw(st.lists(st.sampled_from([1, 2, 3, 5, 8, 13]), min_size=1, max_size=3)))
    values = np.arange(math.prod(shape), dtype="int32").reshape(shape) + 1
    one_compressor = {"compressors": data.draw(st.sampled_from([None, "zstd"]))}
    with tempfile.TemporaryDirectory() as folder:
        options = data.draw(uneven_layouts("int32", shape)) | one_compressor
        ours = xzarr3.create_array(folder, data=values, **options)

        def check() -> None:
            assert np.array_equal(zarr.open_array(folder, mode="r")[...], values)

        check()
        selection = data.draw(selections(shape))
        ours[selection] = values[selection] = -7
        check()
        more = -values[:2]
        ours.append(more)
        values = np.concatenate([values, more])
        check()


@pytest.mark.slow
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_other_libraries_write_is_read_here(zarr: Any, data: st.DataObject) -> None:
    # Theirs wants lengths that are the size together; a document may have more.
    unit = tuple(data.draw(st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=3)))
    sharded = data.draw(st.booleans())
    lengths = [
        [n * each if sharded else n for n in data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))]
        for each in unit
    ]
    shape = tuple(map(sum, lengths))
    grid = {"chunks": unit, "shards": lengths} if sharded else {"chunks": lengths}
    values = np.arange(math.prod(shape), dtype="int32").reshape(shape) + 1
    with tempfile.TemporaryDirectory() as folder:
        theirs = zarr.create_array(folder, shape=shape, dtype="int32", **grid)
        theirs[...] = values
        ours = xzarr3.open_array(folder, mode="r+")
        assert ours.metadata.chunk_grid.name == "rectilinear"
        assert same_bits(ours[...], values)
        if not sharded:  # Theirs cannot grow shards that do not divide evenly.
            theirs.append(values)
            ours = xzarr3.open_array(folder, mode="r+")
            values = np.concatenate([values, values])
            assert same_bits(ours[...], values)
        selection = data.draw(selections(ours.shape))
        assert same_bits(ours.get(selection), np.asarray(values[selection]))
        ours[selection] = -7
        values[selection] = -7
        assert np.array_equal(zarr.open_array(folder, mode="r")[...], values)
