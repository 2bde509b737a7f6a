"""The blocks that ``from_zarr(chunks=...)`` makes: those of dask for everything that dask accepts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dask.array.core import normalize_chunks

import xzarr3
from xzarr3 import from_zarr

VALUES = np.arange(240, dtype="int32").reshape(20, 12)


def stored(**options: Any) -> xzarr3.Array:
    settings: dict[str, Any] = {"chunks": (2, 3), "shards": (8, 6), "dimension_names": ("time", "x")}
    return xzarr3.create_array(xzarr3.MemoryStore(), data=VALUES, **{**settings, **options})


DASKS: list[Any] = [
    5, -1, (5, 4), (5, -1), [5, 4], (None, 4), ((3, 17), 6), ((3, 17), (6, 6)), (20, (1,) * 12), "1 kB",
    "64 MiB",
    "auto", ("auto", 3), ("auto", "auto"), {0: 5}, {0: 5, 1: -1}, {1: (5, 7)}, {0: "auto"}, {}, np.int64(7),
    7.0, 10**6,
    (np.int32(4), 5), {0: None},
]  # fmt: skip


@pytest.mark.parametrize("chunks", DASKS, ids=repr)
def test_what_dask_accepts_means_what_it_means_to_dask(chunks: Any) -> None:
    array = stored()
    lazy = from_zarr(array, chunks=chunks)
    previous = array.write_chunk_sizes
    expected = normalize_chunks(chunks, VALUES.shape, dtype=VALUES.dtype, previous_chunks=previous)
    assert lazy.chunks == expected
    np.testing.assert_array_equal(lazy.compute(scheduler="sync"), VALUES)
    np.testing.assert_array_equal(lazy[3:15, ::-2].compute(scheduler="sync"), VALUES[3:15, ::-2])


OURS: dict[str, tuple[Any, Any]] = {
    "units": ("units", ((8, 8, 4), (6, 6))),
    "chunks": ("chunks", ((2,) * 10, (3,) * 4)),
    "names": ({"time": 5, "x": -1}, ((5,) * 4, (12,))),
    "one name": ({"x": 4}, ((20,), (4, 4, 4))),
    "from the end": ({-1: 4}, ((20,), (4, 4, 4))),
    "units by name": ({"time": "units", "x": "chunks"}, ((8, 8, 4), (3,) * 4)),
    "units of a dimension": (("chunks", -1), ((2,) * 10, (12,))),
}


@pytest.mark.parametrize("case", OURS)
def test_blocks_by_name_and_as_stored(case: str) -> None:
    chunks, expected = OURS[case]
    lazy = from_zarr(stored(), chunks=chunks)
    assert lazy.chunks == expected
    np.testing.assert_array_equal(lazy.compute(scheduler="sync"), VALUES)


def test_chunks_without_shards_are_the_units() -> None:
    array = stored(shards=None, chunks=((5, 15), 4))
    assert from_zarr(array, chunks="chunks").chunks == from_zarr(array, chunks="units").chunks
    assert from_zarr(array, chunks="chunks").name == from_zarr(array, chunks="units").name
    assert from_zarr(array, chunks=None).chunks == from_zarr(array).chunks


def test_names_differ_with_the_blocks() -> None:
    array = stored()
    choices = ["units", "chunks", 5, {"time": 5}, ((3, 17), 6)]
    assert len({from_zarr(array, chunks=chunks).name for chunks in choices}) == len(choices)


@pytest.mark.parametrize(
    ("chunks", "match"),
    [
        ({"tmie": 5}, "did you mean 'time'"),
        ({2: 5}, "no dimension of the array; accepted: 'time', 'x', 0, 1"),
        ({0.5: 5}, "no dimension of the array"),
        ("unit", "accepted: 'grouped', 'units', 'chunks', and"),
        ((5, 4, 3), "same length"),
        (((3, 4), 6), "add up to shape"),
    ],
)
def test_what_does_not_fit_is_refused(chunks: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        from_zarr(stored(), chunks=chunks)
