"""Chunks and shards whose shape the user leaves open, or gives as a size."""

import math
from typing import Any

import pytest
from _conformance import refused
from hypothesis import example, given
from hypothesis import strategies as st

import xzarr3
from xzarr3 import MetadataError
from xzarr3.nodes.auto_chunks import auto_chunks, auto_shards, chunks_in_shards

FIELD: dict[str, Any] = {"shape": (365, 721, 1440), "dtype": "float32"}
MIB = 2**20


def made(**options: Any) -> xzarr3.Array:
    return xzarr3.create_array(xzarr3.MemoryStore(), **options)


def bytes_of(array: xzarr3.Array, shape: Any) -> int:
    return math.prod(shape) * array.dtype.itemsize


@pytest.mark.parametrize(
    ("chunks", "most"),
    [("auto", 4 * MIB), (None, 4 * MIB), (True, 4 * MIB), ("2 MB", 2 * 10**6), ("512 KiB", 2**19)],
)
def test_chunks_of_a_size(chunks: Any, most: int) -> None:
    array = made(**FIELD, chunks=chunks)
    assert most / 2.2 < bytes_of(array, array.chunks) <= most
    assert array.shards is None
    assert made(**FIELD, chunks=-1).chunks == made(**FIELD, chunks=False).chunks == FIELD["shape"]


@pytest.mark.parametrize(("shards", "most"), [("auto", 64 * MIB), (True, 64 * MIB), ("100 MB", 10**8)])
@pytest.mark.parametrize("chunks", ["auto", (5, 103, 90), "100 kB"])
def test_shards_of_a_size(shards: Any, most: int, chunks: Any) -> None:
    array = made(**FIELD, chunks=chunks, shards=shards)
    assert array.shards is not None
    assert most / 4 < bytes_of(array, array.shards) <= most
    assert all(shard % chunk == 0 for shard, chunk in zip(array.shards, array.chunks, strict=True))
    if chunks == (5, 103, 90):
        assert array.chunks == chunks
    else:
        assert bytes_of(array, array.chunks) <= (MIB if chunks == "auto" else 10**5)


@pytest.mark.parametrize(
    "shards", [(365, 721, 1440), (73, 721, 1440), (100, 100, 100), (10, 721, 1440), ((300, 65), 721, 1440)]
)
def test_chunks_in_given_shards_are_of_a_sensible_size(shards: Any) -> None:
    array = made(**FIELD, shards=shards)
    shard = [along[0] if isinstance(along, tuple) else along for along in shards]
    nbytes = bytes_of(array, array.chunks)
    assert min(MIB, bytes_of(array, shard) / 16) / 8 < nbytes <= MIB
    assert array.nchunks >= 8 * array.nshards or bytes_of(array, shard) < 2**16
    small = made(shape=(100, 100), dtype="int8", shards=(10, 10))
    assert small.chunks == small.shards == (10, 10)


@pytest.mark.parametrize(("shards", "expected"), [(-1, (12, 9)), ((-1, 3), (12, 3)), ((3, -1), (3, 9))])
def test_shards_of_a_whole_dimension_are_multiples_of_chunks(shards: Any, expected: Any) -> None:
    assert made(shape=(10, 8), dtype="int8", chunks=3, shards=shards).shards == expected


@pytest.mark.parametrize("field", ["chunks", "shards"])
@pytest.mark.parametrize("wrong", ["large", "0", "1e999 MB"])
def test_what_is_no_size_is_refused(field: str, wrong: str) -> None:
    refused(MetadataError, lambda: made(**FIELD, **{field: wrong}), match=f"'{field}': not a size.*'2 MB'")


@given(
    shape=st.lists(st.integers(0, 5000), max_size=4).map(tuple),
    itemsize=st.sampled_from([1, 2, 8, 400]),
    limit=st.integers(1, 10**7),
    shards=st.integers(1, 10**8),
)
@example(shape=(), itemsize=2, limit=1, shards=1)
def test_shapes_fit_together(shape: tuple[int, ...], itemsize: int, limit: int, shards: int) -> None:
    chunks = auto_chunks(shape, itemsize, limit)
    assert math.prod(chunks) * itemsize <= limit or set(chunks) <= {1}
    units = auto_shards(shape, chunks, itemsize, shards)
    for unit, size, chunk in zip(units, shape, chunks, strict=True):
        assert unit % chunk == 0
        assert unit < size + chunk or unit == chunk
    assert math.prod(units) * itemsize <= shards or units == chunks
    grid = made(shape=shape, chunks=units, dtype="int8").metadata.chunk_grid
    inner = chunks_in_shards(grid, itemsize, limit)
    assert all(unit % chunk == 0 for unit, chunk in zip(units, inner, strict=True))
    assert math.prod(inner) * itemsize <= limit or set(inner) <= {1}
