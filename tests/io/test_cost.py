"""What a chunk costs: Python calls, which are as many on every machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _graphs import calls_of

import xzarr3
from xzarr3.codecs import BloscCodec, GzipCodec, ZstdCodec

COMPRESSORS = [None, ZstdCodec(), BloscCodec("lz4"), GzipCodec(1)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "size"), [(32, 16 * 2**10), (4, 2**20)], ids=["32 of 64 KiB", "4 of 4 MiB"]
)
@pytest.mark.parametrize("shards", [False, True], ids=["chunks", "shards"])
@pytest.mark.parametrize("compressor", COMPRESSORS, ids=["plain", "zstd", "blosc", "gzip"])
def test_a_further_chunk_takes_six_python_calls_at_most(
    tmp_path: Path, compressor: Any, shards: bool, number: int, size: int
) -> None:
    options = {"compressors": compressor, "shards": (number, size) if shards else None}
    data = np.ones((number, size), "float32")
    array = xzarr3.create_array(tmp_path / "a", data=data, chunks=(1, size), **options)

    def further(*columns: slice) -> float:
        half = calls_of(lambda: array.get((slice(0, number // 2), *columns), threads=1))
        whole = calls_of(lambda: array.get((slice(None), *columns), threads=1))
        return (whole - half) / (number - number // 2)

    assert further() <= 6
    if compressor is not None and not shards:
        assert further(slice(1, None)) <= 6
