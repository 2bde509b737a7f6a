"""What a chunk costs: Python calls, which are as many on every machine."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xzarr3
from xzarr3.codecs import BloscCodec, GzipCodec, ZstdCodec


def calls(read: Callable[[], Any]) -> int:
    """Number of Python functions that are called: the least of some runs, as others may call in between."""
    number = 0

    def count(_: Any, event: str, __: Any) -> None:
        nonlocal number
        number += event == "call"

    found = []
    gc.disable()  # What collects garbage may call functions as well.
    try:
        for _ in range(4):
            number = 0
            sys.setprofile(count)
            try:
                read()
            finally:
                sys.setprofile(None)
            found.append(number)
    finally:
        gc.enable()
    return min(found)


@pytest.mark.slow
@pytest.mark.parametrize("size", [16 * 2**10, 2**20], ids=["64 KiB", "4 MiB"])
@pytest.mark.parametrize("shards", [False, True], ids=["chunks", "shards"])
@pytest.mark.parametrize(
    "compressor",
    [None, ZstdCodec(), BloscCodec("lz4"), GzipCodec(1)],
    ids=["plain", "zstd", "blosc", "gzip"],
)
def test_a_further_chunk_takes_six_python_calls_at_most(
    tmp_path: Path, compressor: Any, shards: bool, size: int
) -> None:
    number = 4 if size == 2**20 else 32
    options = {"compressors": compressor, "shards": (number, size) if shards else None}
    data = np.ones((number, size), "float32")
    array = xzarr3.create_array(tmp_path / "a", data=data, chunks=(1, size), **options)

    def further(*columns: slice) -> float:
        half = calls(lambda: array.get((slice(0, number // 2), *columns), threads=1))
        whole = calls(lambda: array.get((slice(None), *columns), threads=1))
        return (whole - half) / (number - number // 2)

    assert further() <= 6
    if compressor is not None and not shards:
        assert further(slice(1, None)) <= 6
