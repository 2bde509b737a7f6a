"""Arrays of version 2 written here are read by zarr-python and tensorstore, and the reverse, bit for bit."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest

import xzarr3

zarr = pytest.importorskip("zarr", minversion="3.1")

AnyArray = np.ndarray[Any, Any]
SHAPE, CHUNKS = (7, 9), (3, 4)
MISSING = np.s_[3:6, 4:8]
"""The chunk that holds nothing but the fill value."""

SIMPLE = (
    "|b1", "|i1", "|u1", "<i2", ">i2", "<u2", ">u2", "<i4", ">i4", "<u4", ">u4", "<i8", ">i8", "<u8", ">u8",
    "<f2", ">f2", "<f4", ">f4", "<f8", ">f8", "<c8", ">c8", "<c16", ">c16",
)  # fmt: skip
MOMENTS = (
    "<M8[ns]", ">M8[ns]", "<M8[D]", ">M8[us]", "<M8[10s]", "<M8[Y]", "<m8[ns]", ">m8[ms]", "<m8[h]",
    ">m8[25s]",
)  # fmt: skip
STRINGS = ("|S1", "|S7", "<U1", ">U1", "<U6", ">U6", "|V1", "|V5")
RECORDS: dict[str, Any] = {
    "record": [("a", "<i4"), ("b", "<f8"), ("c", "S3")],
    "record_big": [("a", ">i4"), ("b", ">f8")],
    "record_nested": [("a", [("x", "<f4"), ("y", "<f4")]), ("b", "?")],
}
MIXED = np.dtype([("a", "<i2"), ("b", ">f8"), ("c", "<U2")])
DTYPES = (*SIMPLE, *MOMENTS, *STRINGS, *RECORDS)


def turns(cases: Iterable[Any]) -> list[tuple[Any, str, str]]:
    """Each case with both orders and both separators, in two of the four pairs of these by turns."""
    pairs = (("C", "."), ("F", "/"), ("C", "/"), ("F", "."))
    return [(case, *pairs[2 * (at % 2) + turn]) for at, case in enumerate(cases) for turn in (0, 1)]


def native(name: str) -> np.dtype[Any]:
    dtype: np.dtype[Any] = np.dtype(RECORDS.get(name, name))
    return dtype


def noise(dtype: np.dtype[Any], shape: tuple[int, ...] = SHAPE, seed: int = 0) -> AnyArray:
    """Values of random bits, where a data type permits any."""
    rng = np.random.default_rng(seed)
    if dtype.names is not None:
        values = np.zeros(shape, dtype)
        for at, name in enumerate(dtype.names):
            values[name] = noise(dtype[name], shape, seed + at)
        return values
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind == "U":
        words = np.array(["", "a", "é", "日本", "😀x", "abcdef"], dtype)
        return words[rng.integers(0, len(words), shape)]
    return np.frombuffer(rng.bytes(math.prod(shape) * dtype.itemsize), dtype).reshape(shape).copy()


def fill_of(dtype: np.dtype[Any]) -> Any:
    """A fill value other than zero."""
    if dtype.names is not None:
        return np.array(tuple(fill_of(dtype[name]) for name in dtype.names), dtype)[()]
    values: dict[str, Any] = {"b": True, "i": -3, "u": 7, "f": 1.5, "c": 1.5 - 2j, "S": b"x", "U": "ø"}
    if dtype.kind == "V":
        return np.void(b"\x01" * dtype.itemsize)
    return np.asarray(values.get(dtype.kind, 5)).astype(dtype)[()]


def sample(dtype: np.dtype[Any]) -> AnyArray:
    values = noise(dtype)
    values[MISSING] = fill_of(dtype)
    return values


def assert_same_bits(found: Any, wanted: AnyArray) -> None:
    """Compare element types, shape and every bit; the byte order in memory is nobody's business."""
    found = np.asarray(found)
    assert (found.dtype.newbyteorder("="), found.shape) == (wanted.dtype.newbyteorder("="), wanted.shape)
    assert found.astype(wanted.dtype).tobytes() == wanted.tobytes()


def keys(path: Path) -> set[str]:
    """The keys of all chunks below an array."""
    names = {file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()}
    return {name for name in names if not name.rpartition("/")[2].startswith(".z")}


def document(path: Path, name: str = ".zarray") -> Any:
    return json.loads((path / name).read_text())


def made_by(library: Any, path: Path, values: AnyArray, **options: Any) -> Any:
    """An array of version 2; what zarr-python warns of is no matter of ours."""
    given = {
        "shape": values.shape, "dtype": values.dtype, "chunks": CHUNKS, "compressors": None,
        "fill_value": ..., "separator": ".", **options,
    }  # fmt: skip
    given["chunk_key_encoding"] = {"name": "v2", "separator": given.pop("separator")}
    if given["fill_value"] is ...:
        given["fill_value"] = fill_of(values.dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        array = library.create_array(path, zarr_format=2, **given)
        array[...] = values
    return array


def stored(path: Path) -> dict[str, bytes]:
    """Keys and values of all chunks."""
    return {key: (path / key).read_bytes() for key in keys(path)}


def read_by_zarr_python(path: Path) -> AnyArray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(zarr.open_array(path, mode="r", zarr_format=2)[...])


def read_by_xzarr3(path: Path) -> AnyArray:
    array = xzarr3.open_array(path, zarr_format=2)
    assert array.zarr_format == 2
    return np.asarray(array[...])


def check_both(tmp_path: Path, values: AnyArray, *, same_bytes: bool = True, **options: Any) -> None:
    """Write with both libraries and read with both; chunks and documents are the same."""
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    made_by(zarr, theirs, values, **options)
    made_by(xzarr3, ours, values, **options)
    for path in (theirs, ours):
        for read in (read_by_xzarr3, read_by_zarr_python):
            assert_same_bits(read(path), values)
    assert keys(ours) == keys(theirs)
    if same_bytes:
        assert stored(ours) == stored(theirs)
    found, wanted = document(ours), document(theirs)
    for field in ("shape", "chunks", "dtype", "order", "zarr_format", "dimension_separator", "fill_value"):
        assert json.dumps(found[field]) == json.dumps(wanted[field]), field
    assert document(ours, ".zattrs") == document(theirs, ".zattrs")


@pytest.mark.parametrize(("dtype", "shape", "chunks", "order"), [
    *((dtype, (), (), "C") for dtype in ("<f8", ">i2", "|S3", "record")), ("<i4", (0,), (4,), "C"),
    ("<i4", (3,), (8,), "C"), *(("<i4", (3, 0), (2, 2), order) for order in "CF"),
    *(("<i4", (2, 3, 4, 5), (1, 2, 4, 3), order) for order in "CF"),
])  # fmt: skip
@pytest.mark.parametrize("separator", [".", "/"])
def test_shapes(
    tmp_path: Path, dtype: str, shape: tuple[int, ...], chunks: tuple[int, ...], separator: str, order: str
) -> None:
    check_both(tmp_path, noise(native(dtype), shape), chunks=chunks, separator=separator, order=order)
    if not shape:
        assert keys(tmp_path / "ours") == {"0"}


@pytest.mark.parametrize(("dtype", "order", "separator"), turns(DTYPES))
def test_data_types(tmp_path: Path, dtype: str, order: str, separator: str) -> None:
    if dtype == "record_nested" and [int(part) for part in zarr.__version__.split(".")[:2]] < [3, 2]:
        pytest.skip("zarr-python 3.1 has no fields of fields")
    values = sample(native(dtype))
    check_both(tmp_path, values, order=order, separator=separator)
    assert f"1{separator}1" not in keys(tmp_path / "ours")


def check_refused(path: Path, field: str) -> None:
    """No value is read, and ``check`` says that the array is sound but not read here."""
    with pytest.raises(xzarr3.UnknownExtensionError, match="one byte order") as refused:
        xzarr3.open_array(path)
    assert refused.value.field == field
    assert {finding.code for finding in xzarr3.check(path).findings} == {"extension-unknown"}


def test_fields_of_several_byte_orders_are_refused(tmp_path: Path) -> None:
    made_by(zarr, tmp_path / "a", sample(MIXED))
    check_refused(tmp_path / "a", "dtype")


@pytest.mark.parametrize(("dtype", "filters", "field"), [
    ("<i4", [numcodecs.Delta("<i4", ">i8")], "filters[0].astype"),
    ("<i4", [numcodecs.Delta(">i4")], "filters[0].dtype"),
    ("<f8", [numcodecs.AsType(">f4", "<f8")], "filters[0].encode_dtype"),
])  # fmt: skip
def test_filters_of_another_byte_order_are_refused(
    tmp_path: Path, dtype: str, filters: list[Any], field: str
) -> None:
    values = np.arange(63).reshape(SHAPE).astype(dtype)
    made_by(zarr, tmp_path / "a", values, filters=filters, fill_value=0)
    check_refused(tmp_path / "a", field)


COMPRESSORS: dict[str, Any] = {
    "zstd": numcodecs.Zstd(3), "zstd_checksum": numcodecs.Zstd(3, checksum=True), "zlib": numcodecs.Zlib(1),
    "gzip": numcodecs.GZip(5), "bz2": numcodecs.BZ2(1), "lz4": numcodecs.LZ4(),
    "lzma": numcodecs.LZMA(preset=1), "blosc": numcodecs.Blosc("lz4", 5, 1),
    "blosc_auto": numcodecs.Blosc("zstd", 5, -1), "blosc_bit": numcodecs.Blosc("zlib", 5, 2),
    "blosc_none": numcodecs.Blosc("blosclz", 5, 0),
}  # fmt: skip


@pytest.mark.parametrize(("compressor", "dtype", "order"), [
    (compressor, dtype, "CF"[(at + turn) % 2])
    for at, compressor in enumerate(COMPRESSORS)
    for turn, dtype in enumerate(("|u1", ">i2", "<f8", "record_big", "<U6"))
])  # fmt: skip
def test_compressors(tmp_path: Path, compressor: str, dtype: str, order: str) -> None:
    values = sample(native(dtype))
    check_both(
        tmp_path, values, compressors=COMPRESSORS[compressor], order=order, same_bytes=compressor != "gzip"
    )


FILTERS: dict[str, tuple[str, list[Any]]] = {
    "delta": ("<i4", [numcodecs.Delta("<i4")]),
    "delta_big": (">i4", [numcodecs.Delta(">i4")]),
    "delta_narrow": ("<i4", [numcodecs.Delta("<i4", "<i2")]),
    "fixedscaleoffset": ("<f8", [numcodecs.FixedScaleOffset(3, 10, "<f8", "<i4")]),
    "fixedscaleoffset_big": (">f4", [numcodecs.FixedScaleOffset(3, 10, ">f4", ">i2")]),
    "quantize": ("<f4", [numcodecs.Quantize(2, "<f4")]),
    "bitround": ("<f4", [numcodecs.BitRound(9)]),
    "astype": ("<f8", [numcodecs.AsType("<f4", "<f8")]),
    "astype_big": (">i4", [numcodecs.AsType(">i8", ">i4")]),
    "packbits": ("|b1", [numcodecs.PackBits()]),
    "shuffle": ("<i4", [numcodecs.Shuffle(4)]),
    "crc32": ("<i4", [numcodecs.CRC32()]),
    "adler32": (">i4", [numcodecs.Adler32()]),
    "fletcher32": ("<i4", [numcodecs.Fletcher32()]),
    "jenkins": ("<i4", [numcodecs.JenkinsLookup3()]),
    "several": ("<i4", [numcodecs.Delta("<i4"), numcodecs.Shuffle(4), numcodecs.Zlib(1), numcodecs.CRC32()]),
    "two_of_arrays": ("<f8", [numcodecs.AsType("<f4", "<f8"), numcodecs.BitRound(9)]),
}
OF_BYTES = ("shuffle", "crc32", "adler32", "fletcher32", "jenkins_lookup3", "zlib")
LOSSY = ("fixedscaleoffset", "quantize", "bitround", "astype", "two_of_arrays")


@pytest.mark.parametrize(("name", "order", "compressor"), [
    (name, order, (None, "zlib")[(at + turn) % 2])
    for at, name in enumerate(FILTERS)
    for turn, order in enumerate("CF")
])  # fmt: skip
def test_filters(tmp_path: Path, name: str, compressor: str | None, order: str) -> None:
    dtype, filters = FILTERS[name]
    values = (np.arange(63).reshape(SHAPE) % 40 - 7).astype(dtype)
    values[MISSING] = fill_of(values.dtype)
    if values.dtype.kind == "f":
        values += np.asarray(0.25, values.dtype)
    options = {"filters": filters, "compressors": COMPRESSORS.get(compressor or ""), "order": order}
    if not name.startswith(LOSSY):
        options["fill_value"] = 7 if values.dtype.kind != "b" else True
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    made_by(zarr, theirs, values, **options)
    # What works on bytes stands behind the serializer here, and so among the compressors.
    of_arrays = [each for each in filters if each.codec_id not in OF_BYTES]
    rest = [each for each in filters if each.codec_id in OF_BYTES]
    rest += [options["compressors"]] * (compressor is not None)
    made_by(xzarr3, ours, values, **{**options, "filters": of_arrays, "compressors": rest})
    if order == "F" and any(each.codec_id == "bitround" for each in filters):
        # numcodecs gives C order back, so zarr-python reads other elements than it wrote.
        assert_same_bits(read_by_xzarr3(theirs), read_by_zarr_python(theirs))
        assert_same_bits(read_by_xzarr3(ours), read_by_zarr_python(ours))
        return
    assert stored(ours) == stored(theirs)
    for path in (theirs, ours):
        assert_same_bits(read_by_xzarr3(path), read_by_zarr_python(theirs))
        assert_same_bits(read_by_zarr_python(path), read_by_zarr_python(theirs))
    found, wanted = document(ours), document(theirs)
    if compressor is not None:
        assert [each["id"] for each in found["filters"]] == [each["id"] for each in wanted["filters"]]
    if not name.startswith(LOSSY):
        assert_same_bits(read_by_xzarr3(ours), values)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("compressor", [None, "zlib"])
def test_strings_of_any_length(tmp_path: Path, compressor: str | None, order: str) -> None:
    words = np.array(["", "a", "é", "日本語", "x" * 300], dtype=np.dtypes.StringDType())
    values = words[np.arange(63).reshape(SHAPE) % 5]
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    for library, path in ((zarr, theirs), (xzarr3, ours)):
        options = {"dtype": "string", "fill_value": "", "order": order}
        made_by(library, path, values, compressors=COMPRESSORS.get(compressor or ""), **options)
    assert document(ours)["filters"] == [{"id": "vlen-utf8"}]
    assert document(ours)["dtype"] == "|O"
    assert stored(ours) == stored(theirs)
    for path in (theirs, ours):
        assert xzarr3.open_array(path)[...].tolist() == values.tolist()
        assert read_by_zarr_python(path).tolist() == values.tolist()


def test_objects_of_zarr_python(tmp_path: Path) -> None:
    items = np.array([b"", b"\x00\xff", b"abc", b"y" * 40, b"\x00"], dtype=object)
    options = {"dtype": zarr.dtype.VariableLengthBytes(), "chunks": (2,), "fill_value": b""}
    made_by(zarr, tmp_path / "a", items, **options)
    found = xzarr3.open_array(tmp_path / "a")
    assert found[...].tolist() == items.tolist()
    xzarr3.copy(found, tmp_path / "b", zarr_format=2)
    assert read_by_zarr_python(tmp_path / "b").tolist() == items.tolist()


def test_no_fill_value(tmp_path: Path) -> None:
    zarr.create_array(
        tmp_path / "a", shape=(4,), chunks=(2,), dtype="<i4", zarr_format=2, fill_value=None, compressors=None
    )
    path = tmp_path / "a/.zarray"
    path.write_text(json.dumps({**document(tmp_path / "a"), "fill_value": None}))
    array = xzarr3.open_array(tmp_path / "a", mode="r+")
    assert array[...].tolist() == [0, 0, 0, 0]
    array[0:2] = 0
    assert keys(tmp_path / "a") == {"0"}  # What is not stored is nobody's zero.
    array.attrs["n"] = 1
    assert document(tmp_path / "a")["fill_value"] is None


def test_parts_are_replaced_by_turns(tmp_path: Path) -> None:
    values = sample(np.dtype("<i4"))
    made_by(zarr, tmp_path / "a", values, compressors=numcodecs.Zlib(1), order="F")
    xzarr3.open_array(tmp_path / "a", mode="r+")[2:5, 3:9] = 11
    values[2:5, 3:9] = 11
    assert_same_bits(read_by_zarr_python(tmp_path / "a"), values)
    zarr.open_array(tmp_path / "a", mode="r+")[0:3, ::2] = 12
    values[0:3, ::2] = 12
    assert_same_bits(read_by_xzarr3(tmp_path / "a"), values)


def check_hierarchy(group: Any, of_x: dict[str, Any]) -> None:
    assert dict(group.attrs) == {"title": "ø"}
    assert dict(group["g/h"].attrs) == {"n": [1, None]}
    assert dict(group["g/x"].attrs) == of_x
    assert group["g/x"][...].tolist() == [0, 1, 2, 3, 4]
    assert sorted(name for name, _ in group.members(max_depth=None)) == ["g", "g/h", "g/x"]


@pytest.mark.parametrize("consolidated", [False, True])
def test_hierarchies_of_both(consolidated: bool, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    named = {"units": "m", "_ARRAY_DIMENSIONS": ["x"]}
    root = xzarr3.create_group(ours, zarr_format=2, attributes={"title": "ø"})
    root.create_group("g/h", attributes={"n": [1, None]})
    root.create_array("g/x", data=np.arange(5), dimension_names=["x"], attributes={"units": "m"})
    xzarr3.consolidate_metadata(ours)
    check_hierarchy(zarr.open_group(ours, mode="r", zarr_format=2, use_consolidated=consolidated), named)
    group = zarr.open_group(theirs, mode="w", zarr_format=2, attributes={"title": "ø"})
    group.create_group("g").create_group("h", attributes={"n": [1, None]})
    array = group["g"].create_array("x", shape=(5,), dtype="<i8", attributes=named)
    array[...] = np.arange(5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(theirs, zarr_format=2)
    found = xzarr3.open_group(theirs, use_consolidated=consolidated)
    assert (found.zarr_format, found.consolidated) == (2, consolidated)
    check_hierarchy(found, {"units": "m"})
    inner = found["g/x"]
    assert isinstance(inner, xzarr3.Array)
    assert inner.dimension_names == ("x",)


@pytest.fixture(scope="module")
def tensorstore() -> Any:
    return pytest.importorskip("tensorstore")


def opened(tensorstore: Any, path: Path, **options: Any) -> Any:
    spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": str(path)}, **options}
    context = tensorstore.Context({"file_io_sync": False})
    return tensorstore.open(spec, context=context).result()


# One compressor is as good as the other for most data types.
TENSORSTORE_COMPRESSORS: dict[str, Any] = {
    "none": None,
    **{name: {"id": name, "level": 1} for name in ("zlib", "gzip", "bz2", "zstd")},
    "blosc": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},
    "blosc_auto": {"id": "blosc", "cname": "zstd", "clevel": 5, "shuffle": -1, "blocksize": 0},
}
TENSORSTORE_CASES = [
    (dtype, compressor)
    for dtype in SIMPLE
    for compressor in TENSORSTORE_COMPRESSORS
    if compressor in ("none", "blosc") or dtype in ("|b1", ">i2", "<f8")
]


@pytest.mark.parametrize(("case", "order", "separator"), turns(TENSORSTORE_CASES))
def test_tensorstore(
    tensorstore: Any, tmp_path: Path, case: tuple[str, str], order: str, separator: str
) -> None:
    dtype, compressor = case
    values = sample(np.dtype(dtype))
    fill = fill_of(values.dtype)
    config = TENSORSTORE_COMPRESSORS[compressor]
    metadata = {
        "shape": list(SHAPE), "chunks": list(CHUNKS), "dtype": dtype, "order": order, "compressor": config,
        "fill_value": [fill.real, fill.imag] if values.dtype.kind == "c" else values.dtype.type(fill).item(),
        "dimension_separator": separator,
    }  # fmt: skip
    array = opened(tensorstore, tmp_path / "theirs", metadata=metadata, create=True)
    array[...] = values
    assert_same_bits(read_by_xzarr3(tmp_path / "theirs"), values)
    made_by(xzarr3, tmp_path / "ours", values, compressors=config, order=order, separator=separator)
    assert_same_bits(opened(tensorstore, tmp_path / "ours").read().result(), values)
    assert keys(tmp_path / "ours") == keys(tmp_path / "theirs")


def test_tensorstore_resizes_what_is_written_here(tensorstore: Any, tmp_path: Path) -> None:
    values = sample(np.dtype("<i4"))
    made_by(xzarr3, tmp_path / "a", values)
    opened(tensorstore, tmp_path / "a").resize(exclusive_max=[9, 9]).result()
    array = xzarr3.open_array(tmp_path / "a", mode="r+")
    assert array.shape == (9, 9)
    array.append(np.ones((1, 9), "<i4"))
    found = np.asarray(opened(tensorstore, tmp_path / "a").read().result())
    assert found.shape == (10, 9)
    assert_same_bits(found[:7], values)
    assert found[9].tolist() == [1] * 9
    assert set(found[7:9].ravel().tolist()) == {-3}
