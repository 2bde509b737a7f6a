"""The codecs of numcodecs in version 3 of the format against zarr-python, both ways."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _strategies import same_bits

import xzarr3
from xzarr3.codecs import codec_from_json

zarr = pytest.importorskip("zarr", minversion="3")
zarr_numcodecs = pytest.importorskip("zarr.codecs.numcodecs")


def numbers(dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return (np.random.default_rng(7).normal(size=shape) * 10).astype(dtype)


PAIRS: list[tuple[str, list[Any], list[Any]]] = [
    ("i4", [("Delta", {"dtype": "<i4"})], []),
    ("i4", [("Delta", {"dtype": "int32", "astype": "int16"})], []),
    ("i4", [("Delta", {"dtype": "<i4", "astype": ">i2"})], []),
    ("f8", [("FixedScaleOffset", {"offset": 1, "scale": 100, "astype": "<i4"})], [("Zlib", {"level": 3})]),
    ("f8", [("FixedScaleOffset", {"offset": 1.5, "scale": 4, "dtype": "float64"})], []),
    ("f8", [("Quantize", {"digits": 2})], [("BZ2", {})]),
    ("f8", [("AsType", {"encode_dtype": ">f4", "decode_dtype": "<f8"})], [("LZ4", {})]),
    ("f4", [("BitRound", {"keepbits": 4})], [("LZMA", {})]),
    ("?", [("PackBits", {})], []),
    ("i4", [], [("Shuffle", {}), ("Zstd", {"level": 3})]),
    ("i4", [], [("Shuffle", {"elementsize": 2}), ("GZip", {"level": 3})]),
    ("i4", [], [("CRC32", {}), ("CRC32C", {}), ("Adler32", {}), ("Fletcher32", {}), ("JenkinsLookup3", {})]),
    ("i4", [], [("CRC32", {"location": "end"}), ("CRC32C", {"location": "start"})]),
    ("i4", [], [("JenkinsLookup3", {"initval": 7})]),
    ("f8", [], [("Blosc", {"cname": "zstd", "clevel": 3, "shuffle": 2}), ("LZMA", {"preset": 1})]),
    ("f8", [], [("Blosc", {})]),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("dtype", "filters", "compressors"), PAIRS, ids=repr)
def test_with_zarr_python(dtype: str, filters: Any, compressors: Any, tmp_path: Path) -> None:
    swapped = any(">" in str(value) for _, options in filters for value in options.values())
    if swapped and tuple(map(int, zarr.__version__.split(".")[:2])) < (3, 4):
        pytest.skip("zarr-python 3.1 does not read back what it encodes in another byte order")
    values = (numbers("f8", (7, 9)) * 3).astype(dtype)
    theirs = {
        "filters": [getattr(zarr_numcodecs, name)(**options) for name, options in filters] or None,
        "compressors": [getattr(zarr_numcodecs, name)(**options) for name, options in compressors] or None,
    }
    options: dict[str, Any] = {"shape": values.shape, "chunks": (4, 5), "dtype": values.dtype}
    zarr.create_array(tmp_path / "theirs", **options, **theirs)[...] = values
    expected = zarr.open_array(tmp_path / "theirs", mode="r")[...]
    assert same_bits(xzarr3.open_array(tmp_path / "theirs")[...], expected)
    # Ours, made of the objects of zarr-python and of the document that it wrote.
    ours = xzarr3.create_array(tmp_path / "ours", **options, **theirs)
    ours[...] = values
    assert same_bits(ours[...], expected)
    assert same_bits(zarr.open_array(tmp_path / "ours", mode="r")[...], expected)
    document = json.loads((tmp_path / "theirs" / "zarr.json").read_text())
    parsed = [codec_from_json(item) for item in document["codecs"]]
    mine = json.loads((tmp_path / "ours" / "zarr.json").read_text())
    assert [_of_any_type_size(codec_from_json(item)) for item in mine["codecs"]] == [
        _of_any_type_size(codec) for codec in parsed
    ]
    copy = xzarr3.open_array(tmp_path / "theirs", mode="r+")
    copy[...] = values
    assert same_bits(zarr.open_array(tmp_path / "theirs", mode="r")[...], expected)


def _of_any_type_size(codec: Any) -> Any:
    """Ours notes the size of elements, which numcodecs finds out."""
    return dataclasses.replace(codec, typesize=None) if codec.name == "blosc" else codec


@pytest.mark.filterwarnings("ignore")
def test_swapped_bytes_of_zarr_python_are_refused(tmp_path: Path) -> None:
    """An array and its filters have one byte order; zarr-python does not always read these back itself."""
    values = numbers("i4", (7, 9))
    options: dict[str, Any] = {"shape": values.shape, "chunks": (4, 5), "dtype": "i4", "compressors": None}
    filters = [zarr_numcodecs.Delta(dtype=">i4")]
    zarr.create_array(tmp_path / "theirs", filters=filters, **options)[...] = values
    for ask in (
        lambda: xzarr3.open_array(tmp_path / "theirs")[...],
        lambda: xzarr3.create_array(tmp_path / "ours", filters=filters, **options),
    ):
        with pytest.raises(xzarr3.MetadataError, match="one byte order"):
            ask()
