"""``optional``: arrays whose elements may have no value, in every layout and tool, with numpy's masks."""

import json
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from _things import refused, refuses
from hypothesis import given
from hypothesis import strategies as st

import xzarr3
from xzarr3 import DataTypeValidationError, MemoryStore, MetadataError, SelectionError
from xzarr3.dtypes import Optional, parse_dtype
from xzarr3.errors import ArgumentError, ChunkDecodeError, UnknownExtensionError

HEAD = (1).to_bytes(8, "little")
OPTIONAL = xzarr3.codecs.OptionalCodec(["packbits"], ["bytes"])
INT = Optional(parse_dtype("int32"))
TEXT = Optional(parse_dtype("string"))
LAYOUTS: dict[str, dict[str, Any]] = {
    "chunks": {"chunks": (2, 3)}, "shards": {"chunks": (1, 3), "shards": (4, 3)},
    "F": {"chunks": (3, 2), "order": "F", "compressors": None}, "rectilinear": {"chunks": ((1, 6), (5,))},
    "codecs": {"serializer": xzarr3.codecs.OptionalCodec(["bytes", "gzip"], ["bytes", "zstd"])},
}  # fmt: skip
TYPES = ["bool", "int8", "uint64", "float32", "complex64", "datetime64[s]", "r16", ">i4", "int4", "<U3"]


def _masked(dtype: str = "int32", shape: tuple[int, ...] = (7, 5), seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    native = parse_dtype(dtype).in_native_order().to_native_dtype()
    size = int(np.prod(shape))
    if native.kind == "M":
        data = rng.integers(0, 2**31, size).astype(native)
    elif native.kind == "U":
        data = np.array([f"{number % 99}" for number in range(size)], native)
    else:
        data = rng.integers(0, 7 if dtype == "int4" else 256, size * native.itemsize, "u1")
        data = (data & 1).view(bool) if native.kind == "b" else data.view(native)
    return np.ma.MaskedArray(data.reshape(shape), mask=rng.random(shape) < 0.4)


def _same(found: Any, expected: Any) -> None:
    assert isinstance(found, np.ma.MaskedArray)
    np.testing.assert_array_equal(np.ma.getmaskarray(found), np.ma.getmaskarray(expected))
    assert found.compressed().tobytes() == expected.compressed().astype(found.dtype).tobytes()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", TYPES)
def test_values_and_masks_come_back(dtype: str, layout: str, tmp_path: Path) -> None:
    expected = _masked(dtype)
    xzarr3.create_array(tmp_path, data=expected, dtype=Optional(parse_dtype(dtype)), **LAYOUTS[layout])
    array = pickle.loads(pickle.dumps(xzarr3.open_array(tmp_path, mode="r+", chunk_cache="1 MB")))
    _same(array[...], expected)
    _same(array[5:0:-2, [0, 3]], expected[5:0:-2, [0, 3]])
    array[2:4, 1:] = expected[2:4, 1:] = expected[4:6, 1:]
    array[6, 0] = expected[6, 0] = np.ma.masked
    _same(array[...], expected)
    assert np.ma.is_masked(array[6, 0])


@given(
    values=st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=40),
    chunk=st.integers(1, 9),
    fill=st.none() | st.integers(-3, 3),
)
def test_lists_with_none_come_back(values: list[int | None], chunk: int, fill: int | None) -> None:
    store = MemoryStore()
    xzarr3.create_array(store, data=values, dtype=INT, chunks=chunk, fill_value=fill)
    array = xzarr3.open_array(store, mode="r+")
    assert (array[...].tolist(), array.fill_value) == (values, fill)
    array.append(values[::-1])
    assert array[...].tolist() == values + values[::-1]
    array.resize(len(values) + 1)
    array.resize(len(values) + 3)
    assert array[-2:].tolist() == [fill, fill]


@given(st.lists(st.none() | st.text(st.characters(codec="utf-8")), min_size=1), st.integers(1, 5))
def test_text_keeps_none_apart_from_empty_text(values: list[str | None], chunk: int) -> None:
    array = xzarr3.array(values, dtype=TEXT, chunks=chunk)
    assert array[...].tolist() == values
    array[0] = None
    assert array[...].tolist() == [None, *values[1:]]


GOLDEN = {
    "zarr_format": 3, "node_type": "array", "shape": [4, 4], "fill_value": None, "attributes": {},
    "data_type": {"name": "optional", "configuration": {"name": "uint8", "configuration": {}}},
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 2]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "codecs": [{"name": "optional", "configuration": {
        "mask_codecs": [{"name": "packbits"}],
        "data_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]}}],
}  # fmt: skip
"""The document of an array that zarrs 0.23 wrote."""


def _chunk(mask: int, *values: int) -> bytes:
    return HEAD + len(values).to_bytes(8, "little") + bytes([mask, *values])


def test_a_document_of_zarrs_and_chunks_after_the_specification() -> None:
    """Two lengths, the mask from its lowest bit, and the values that are there."""
    chunks = {
        "c/0/0": _chunk(0b1001, 0, 5), "c/0/1": _chunk(0b1011, 2, 3, 7), "c/1/0": _chunk(0b0111, 8, 9, 12),
    }  # fmt: skip
    found = xzarr3.open_array(MemoryStore({"zarr.json": json.dumps(GOLDEN).encode(), **chunks}))
    expected = [[0, None, 2, 3], [None, 5, None, 7], [8, 9, None, None], [12, None, None, None]]
    assert found[...].tolist() == expected
    written = MemoryStore()
    options: dict[str, Any] = {"chunks": (2, 2), "compressors": None, "serializer": OPTIONAL}
    xzarr3.create_array(written, data=found[...], dtype=Optional(parse_dtype("uint8")), **options)
    assert {key: written.get(key) for key in written.list("c/")} == chunks
    assert json.loads(bytes(written.get("zarr.json")))["fill_value"] is None


def test_the_fill_value_is_null_or_in_a_list() -> None:
    store = MemoryStore()
    xzarr3.create_array(store, shape=2, dtype=INT, fill_value=7)
    assert json.loads(bytes(store.get("zarr.json")))["fill_value"] == [7]
    assert xzarr3.open_array(store)[...].tolist() == [7, 7]
    documents = [{**GOLDEN, "fill_value": wrong} for wrong in (7, [], [1, 2], ["x"], [None])]
    stores = [MemoryStore({"zarr.json": json.dumps(document).encode()}) for document in documents]
    refuses(xzarr3.open_array, stores, DataTypeValidationError, "fill")


def test_damaged_chunks_are_errors() -> None:
    store = MemoryStore({"zarr.json": json.dumps(GOLDEN).encode()})
    for chunk in (
        b"", HEAD, _chunk(0b1001, 0), _chunk(0b1001, 0, 5, 6), _chunk(0b1001, 0, 5)[:-1],
        _chunk(0b1001, 0, 5) + b"x", _chunk(0, 1), b"\xff" * 16 + b"\x09\0\5", HEAD + bytes(8) + b"\x09",
    ):  # fmt: skip
        store.set("c/0/0", chunk)
        refuses(xzarr3.open_array(store).get, [...], ChunkDecodeError)


def test_other_types_codecs_formats_and_values_are_refused() -> None:
    for inner, words in (
        ({"name": "optional", "configuration": {"name": "int8"}}, "'optional' of 'optional'"),
        ({"name": "struct", "configuration": {"fields": [{"name": "x", "data_type": "int8"}]}}, "'struct'"),
        ({"name": "nope"}, "unknown data type"), ({}, "unknown data type"),
    ):  # fmt: skip
        refuses(parse_dtype, [{"name": "optional", "configuration": inner}], UnknownExtensionError, words)
    given: dict[str, Any] = {"shape": 4, "dtype": Optional(parse_dtype("float32"))}
    refuses(lambda options: xzarr3.create_array(MemoryStore(), **given | options), [
        {"serializer": "bytes"}, {"serializer": "packbits"}, {"zarr_format": 2}, {"zarr_format": "3-draft"},
        {"filters": [{"name": "scale_offset", "configuration": {"offset": 1, "scale": 2}}]},
        {"dtype": "float32", "serializer": OPTIONAL},
    ], MetadataError, "optional")  # fmt: skip
    values = [[1.5, 2], [2**31, 0], np.array([np.inf, 1.0]), ["a", None]]
    refuses(partial(xzarr3.array, dtype=INT), values, DataTypeValidationError)


@pytest.mark.parametrize(("inner", "values", "expected"), [
    ("bytes", np.array([b"", None, b"a\0"], object), [b"", None, b"a\0"]),
    ("int64", [2**53 + 1, None, 3.0], [2**53 + 1, None, 3]),  # All digits are kept.
    ("int64", [2**53 + 1, float("nan")], [2**53 + 1, None]), ("uint64", [2**64 - 1, 0], [2**64 - 1, 0]),
    ("int32", np.array([1, np.nan]), [1, None]), ("string", ["", float("nan"), None], ["", None, None]),
])  # fmt: skip
def test_what_has_no_value(inner: str, values: Any, expected: list[Any]) -> None:
    assert xzarr3.array(values, dtype=Optional(parse_dtype(inner)), chunks=2)[...].tolist() == expected
    found = xzarr3.array([1.5, np.nan, None], dtype=Optional(parse_dtype("float64")))[...]
    assert np.ma.getmaskarray(found).tolist() == [False, False, True]
    assert np.isnan(found[1])


def test_lists_of_masked_arrays_keep_the_masks() -> None:
    one, other = np.ma.array([1, 2], mask=[0, 1]), np.ma.array([3, 4])
    for values, expected in (
        ([one, [5, 6], other], [[1, None], [5, 6], [3, 4]]), (([one], [other]), [[[1, None]], [[3, 4]]]),
        ([np.ma.array(5, mask=True), 1], [None, 1]),
    ):  # fmt: skip
        assert xzarr3.array(values, dtype=INT)[...].tolist() == expected
        refused(DataTypeValidationError, "cannot hold masked elements", partial(xzarr3.array, values))
        for dtype in ("int64", "float64", "S3"):
            with pytest.raises(DataTypeValidationError, match="cannot hold masked elements"):
                parse_dtype(dtype).cast_array(values)
    for array in (parse_dtype("int64").cast_array([other, [5, 6]]), xzarr3.array([other, [5, 6]])):
        assert array[...].tolist() == [[3, 4], [5, 6]]
    calls = (partial(call, [one, [1, 2, 3]]) for call in (xzarr3.array, INT.cast_array))
    refused(MetadataError, "same shape", *calls)


def test_no_mask_is_dropped_in_silence(tmp_path: Path) -> None:
    masked = _masked()
    array = xzarr3.create_array(tmp_path / "a", data=masked, dtype=INT, chunks=(2, 3))
    plain = xzarr3.create_array(tmp_path / "b", shape=masked.shape, dtype="int32", chunks=(3, 2))
    refused(TypeError, "without a value", lambda: np.asarray(array))
    refused(SelectionError, "leave out 'out'", lambda: array.get(out=np.empty(masked.shape, "int32")))
    store = partial(xzarr3.store, xzarr3.from_zarr(array), plain)
    refused(DataTypeValidationError, "masked", lambda: plain.set(..., array[...]), store)
    refused(ArgumentError, "optional", lambda: xzarr3.concat([array, plain], 0))
    refused(ArgumentError, "masks", lambda: xzarr3.batches(array, range(3), 2))
    assert "only the elements of one" in str(xzarr3.diff(tmp_path / "a", tmp_path / "b"))


def test_dask_has_masked_blocks(tmp_path: Path) -> None:
    masked = _masked()
    array = xzarr3.create_array(tmp_path / "a", data=masked, dtype=INT, chunks=(2, 3))
    read = xzarr3.from_zarr(array)
    assert isinstance(read._meta, np.ma.MaskedArray)
    _same(read[1:, ::2].compute(), masked[1:, ::2])
    assert read.sum().compute() == masked.sum()
    for blocks in ((2, 3), (3, 2), (7, 5)):
        target = xzarr3.create_array(tmp_path / f"{blocks}", shape=masked.shape, dtype=INT, chunks=(2, 3))
        xzarr3.store(da.from_array(masked, chunks=blocks), target)
        _same(target[...], masked)
    for name in ("bfloat16", "int4"):  # numpy's own fill value of these cannot be converted to them.
        small = Optional(parse_dtype(name))
        joined = xzarr3.from_zarr(xzarr3.array([1, None, 0, None], dtype=small, chunks=3)).compute()
        assert (joined.astype("f4").tolist(), joined.filled()[1]) == ([1, None, 0, None], 0)


def test_tools_keep_the_mask(tmp_path: Path) -> None:
    masked = _masked()
    options: dict[str, Any] = {"chunks": (2, 3), "dimension_names": ("y", "x")}
    array = xzarr3.create_array(tmp_path / "a", data=masked, dtype=INT, **options)
    copied = xzarr3.copy(tmp_path / "a", tmp_path / "b", chunks=(3, 5))
    _same(copied[...], masked)
    assert "values" not in str(xzarr3.diff(tmp_path / "a", tmp_path / "b")).split("/\n")[1]
    joined = xzarr3.concat([array, copied], 0)
    _same(joined[...], np.ma.concatenate([masked, masked]))
    _same(xzarr3.from_zarr(joined)[3:9].compute(), np.ma.concatenate([masked, masked])[3:9])
    at = tuple(int(each[0]) for each in np.nonzero(~masked.mask))
    copied[at] = np.ma.masked
    assert f"{list(at)}  {masked[at]} | None" in str(xzarr3.diff(tmp_path / "a", tmp_path / "b"))
    assert xzarr3.check(tmp_path / "a").ok
    zeros = xzarr3.zeros_like(array)
    assert (zeros.zdtype, zeros[0, 0]) == (INT, 0)
    assert "optional int32" in repr(array)


@pytest.mark.parametrize("chunks", [None, {}])
def test_xarray_sees_marks(chunks: Any, tmp_path: Path) -> None:
    group = xzarr3.open_group(tmp_path, mode="w")
    given: dict[str, tuple[str, list[Any], Any]] = {
        "small": ("int16", [1, None, 3], np.array([1, np.nan, 3], "f4")),
        "int": ("int64", [2**53, None, -(2**63)], np.array([2.0**53, np.nan, -(2.0**63)])),
        "unsigned": ("uint64", [2**63, None, 2**64 - 2048], np.array([2.0**63, np.nan, 2.0**64 - 2048])),
        "float": ("float32", [1.5, None, np.inf], np.array([1.5, np.nan, np.inf], "f4")),
        "truth": ("bool", [True, None, False], np.array([True, np.nan, False], object)),
        "text": ("string", ["", None, "a"], np.array(["", np.nan, "a"], object)),
        "time": ("datetime64[s]", [], np.array(["2000-01-01", "NaT", "1969-01-01"], "M8[s]")),
    }
    for name, (inner, values, expected) in given.items():
        data, dtype = values or np.ma.MaskedArray(expected, np.isnat(expected)), Optional(parse_dtype(inner))
        group.create_array(name, data=data, dtype=dtype, chunks=2, dimension_names=("x",))
    large = {"odd": ("int64", 2**53 + 1), "last": ("int64", 2**63 - 1), "last u8": ("uint64", 2**64 - 1)}
    for name, (inner, value) in large.items():
        dtype = Optional(parse_dtype(inner))
        group.create_array(name, data=[value, None, 0], dtype=dtype, dimension_names=("x",))
    found = xr.open_dataset(tmp_path, engine="xzarr3", chunks=chunks)
    for name, (_, _, expected) in given.items():
        assert (found[name].dtype, repr(found[name].values)) == (expected.dtype, repr(expected))
        assert repr(found[name][2:0:-1].values) == repr(expected[2:0:-1])
    assert found.drop_vars(large).isnull().sum().compute().to_array().values.tolist() == [1] * len(given)
    for name in large:
        refused(DataTypeValidationError, rf"{name}.*2\*\*53", found[name].load)


@pytest.mark.parametrize(("inner", "chunks"), [
    ("int32", None), ("int32", {}), ("float32", {}), ("bool", None),
])  # fmt: skip
def test_xarray_appends_beside_optional_ones(inner: str, chunks: Any, tmp_path: Path) -> None:
    """What has no value is NaN or NaT here and no value there, and values that do not grow stay.

    xarray loads objects, as truth values with NaN are, from dask with a warning.
    """
    group = xzarr3.open_group(tmp_path, mode="w")
    held = _masked(inner, (4, 3))
    dtype = Optional(parse_dtype(inner))
    group.create_array("v", data=held, dtype=dtype, chunks=(3, 2), dimension_names=("t", "x"))
    group.create_array("still", data=held[0], dtype=dtype, chunks=2, dimension_names=("x",))
    given = xr.open_dataset(tmp_path, engine="xzarr3", chunks=chunks)
    xzarr3.to_zarr(given, tmp_path, append_dim="t")
    stored = xzarr3.open_group(tmp_path)
    np.testing.assert_array_equal(stored["still"][...].tolist(), held[0].tolist())
    found = xr.open_dataset(tmp_path, engine="xzarr3", chunks=chunks)
    for part in (slice(0, 4), slice(4, 8)):
        assert repr(found.v[part].values) == repr(given.v.values)
    if inner == "int32":
        np.testing.assert_array_equal(np.ma.getmaskarray(stored["v"][4:]), held.mask)
        np.testing.assert_array_equal(stored["v"][4:].compressed(), held.compressed())
    other = given.assign(still=given.still.isnull().astype(given.still.dtype))
    refused(ValueError, "'still'", lambda: xzarr3.to_zarr(other, tmp_path, append_dim="t"))
    assert xzarr3.open_array(tmp_path, "v").shape == (8, 3)
