"""Documents of version 2: what the text permits is read and written again, everything else is refused."""

from __future__ import annotations

import base64
import copy
import json
import pickle
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
from _strategies import JSON_VALUES, attempt, places
from hypothesis import example, given, settings
from hypothesis import strategies as st

from xzarr3 import DataTypeValidationError, InvalidKeyError, MetadataError, UnknownExtensionError
from xzarr3.codecs import BytesCodec, TransposeCodec, parse_codec
from xzarr3.dtypes import Int16, parse_dtype
from xzarr3.formats import documents
from xzarr3.formats.v2 import V2, V2Format
from xzarr3.grid import RegularGrid, grid_for
from xzarr3.model.chunk_keys import ChunkKeyEncoding
from xzarr3.model.metadata import ArrayMetadata, GroupMetadata
from xzarr3.model.storage_transformers import StorageTransformer

DATA = Path(__file__).parents[1] / "data"
DELTA = {"id": "delta", "dtype": "<i2", "astype": "<i2"}
ZLIB = {"id": "zlib", "level": 1}
SHUFFLE = {"id": "shuffle", "elementsize": 2}
TEXT = {"id": "vlen-utf8"}
JSON2 = json.loads(json.dumps(numcodecs.JSON().get_config()))


def zarray(**changes: Any) -> dict[str, Any]:
    """The ``.zarray`` of a 4 by 6 array of int16 in 2 by 3 chunks; ``...`` leaves a field out."""
    document = {
        "zarr_format": 2,
        "shape": [4, 6],
        "chunks": [2, 3],
        "dtype": "<i2",
        "compressor": None,
        "fill_value": 0,
        "order": "C",
        "filters": None,
        **changes,
    }
    return {field: value for field, value in document.items() if value is not ...}


def read(held: Any, path: str) -> Any:
    """What documents say; of any type, so that tests need not tell."""
    return V2.parse(held, path)


def parse(document: Any, attributes: Any = None, **held: Any) -> Any:
    given = {".zarray": document, **held}
    if attributes is not None:
        given[".zattrs"] = attributes
    return read(json.loads(json.dumps(given)), "a/b")


def refused(document: Any, kind: type[MetadataError] = MetadataError, **held: Any) -> MetadataError:
    """The error of documents, after a check that it says what it has to say."""
    with pytest.raises(kind) as caught:
        parse(document, **held)
    return complete(caught.value)


def complete(error: MetadataError) -> MetadataError:
    """An error that says where, which field, and what would be accepted."""
    message = str(error)
    assert error.path == "a/b"
    assert "'/a/b'" in message
    assert error.field
    assert f"field '{error.field}'" in message
    assert error.accepted
    assert f"accepted: {error.accepted}" in message
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), type(again)) == (message, type(error))
    return error


def names(meta: ArrayMetadata) -> list[str]:
    return [codec.name for codec in meta.codecs]


# Golden documents, written by hand from the text


def test_array_of_the_specification() -> None:
    meta = parse(
        {
            "chunks": [1000, 1000],
            "compressor": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1},
            "dtype": "<f8",
            "fill_value": "NaN",
            "filters": [{"id": "delta", "dtype": "<f8", "astype": "<f4"}],
            "order": "C",
            "shape": [10000, 10000],
            "zarr_format": 2,
        }
    )
    assert isinstance(meta, ArrayMetadata)
    assert meta.shape == (10000, 10000)
    assert meta.chunk_grid == RegularGrid((1000, 1000))
    assert meta.data_type == parse_dtype("float64")
    assert meta.chunk_key_encoding == ChunkKeyEncoding("v2", ".")
    assert [meta.chunk_key_encoding.key(coords) for coords in ((0, 0), (2, 4))] == ["0.0", "2.4"]
    assert names(meta) == ["numcodecs.delta", "bytes", "blosc"]
    assert meta.codecs[1] == BytesCodec("little")
    assert meta.fill_value.tobytes() == bytes.fromhex("000000000000f87f")
    assert not meta.fill_is_null
    assert meta.attributes == {}
    assert meta.dimension_names is None
    assert meta.zarr_format == 2


def test_stored_array_of_the_specification() -> None:
    document = {
        "chunks": [10, 10],
        "compressor": {"id": "zlib", "level": 1},
        "dtype": "<i4",
        "fill_value": 42,
        "filters": None,
        "order": "C",
        "shape": [20, 20],
        "zarr_format": 2,
    }
    attributes = {"foo": 42, "bar": "apples", "baz": [1, 2, 3, 4]}
    meta = parse(document, attributes)
    assert meta.fill_value == np.int32(42)
    assert meta.attributes == attributes
    assert V2.hold(meta) == {".zattrs": attributes, ".zarray": {**document, "dimension_separator": "."}}


@pytest.mark.parametrize(
    ("dtype", "native"),
    [
        ([["r", "|u1"], ["g", "|u1"], ["b", "|u1"]], [("r", "u1"), ("g", "u1"), ("b", "u1")]),
        (
            [["x", "<f4"], ["y", "<f4"], ["z", "<f4", [2, 2]]],
            [("x", "f4"), ("y", "f4"), ("z", "f4", (2, 2))],
        ),
        (
            [["foo", "<f4"], ["bar", [["baz", "<f4"], ["qux", "<i4"]]]],
            [("foo", "f4"), ("bar", [("baz", "f4"), ("qux", "i4")])],
        ),
    ],
)
def test_fields_of_the_specification(dtype: Any, native: Any) -> None:
    wanted = np.dtype(native)
    fill = np.arange(wanted.itemsize, dtype="u1")
    document = zarray(dtype=dtype, fill_value=base64.b64encode(fill.tobytes()).decode())
    meta = parse(document)
    assert meta.data_type.to_native_dtype() == wanted
    assert meta.fill_value.tobytes() == fill.tobytes()
    assert V2.hold(meta)[".zarray"] == {**document, "dimension_separator": "."}


@pytest.mark.parametrize(
    ("dtype", "native", "endian"),
    [
        ("|b1", "?", None), ("|i1", "i1", None), ("|u1", "u1", None), ("<i2", "i2", "little"),
        (">i2", "i2", "big"), ("<i4", "i4", "little"), (">i4", "i4", "big"), ("<i8", "i8", "little"),
        (">i8", "i8", "big"), ("<u2", "u2", "little"), (">u8", "u8", "big"), ("<f2", "f2", "little"),
        (">f4", "f4", "big"), ("<f8", "f8", "little"), ("<c8", "c8", "little"), (">c16", "c16", "big"),
        ("<m8[s]", "m8[s]", "little"), (">M8[ns]", "M8[ns]", "big"), ("<M8[10us]", "M8[10us]", "little"),
        ("|S12", "S12", None), ("<U3", "U3", "little"), (">U3", "U3", "big"), ("|V5", "V5", None),
        ([["a", ">i2"], ["b", ">f8"]], [("a", "i2"), ("b", "f8")], "big"),
        ([["a", "<i2"], ["b", "|S3"]], [("a", "i2"), ("b", "S3")], "little"),
    ],
    ids=str,
)  # fmt: skip
def test_simple_types_and_their_byte_order(dtype: Any, native: Any, endian: str | None) -> None:
    meta = parse(zarray(dtype=dtype, fill_value=None))
    assert meta.data_type.to_native_dtype() == np.dtype(native)
    assert meta.data_type.to_native_dtype().isnative
    assert meta.codecs == (BytesCodec(endian),)
    assert meta.fill_is_null
    assert V2.hold(meta)[".zarray"] == zarray(dtype=dtype, fill_value=None, dimension_separator=".")


def test_fields_of_several_byte_orders() -> None:
    dtype = [["a", "<i2"], ["b", ">f8"], ["c", [["d", ">u2"]]]]
    native = np.dtype([("a", "<i2"), ("b", ">f8"), ("c", [("d", ">u2")])])
    value = np.array((1, 2.5, (3,)), native)[()]
    document = zarray(dtype=dtype, fill_value=base64.b64encode(value.tobytes()).decode())
    meta = parse(document)
    assert V2.hold(meta)[".zarray"] == {**document, "dimension_separator": "."}
    assert meta.fill_value.tolist() == (1, 2.5, (3,))
    data = np.full((2, 3), value).tobytes()
    assert meta.chain.decode(data).tolist() == [[(1, 2.5, (3,))] * 3] * 2


@pytest.mark.parametrize("order", "<>")
def test_fill_value_of_fields_is_in_the_byte_order_of_the_fields(order: str) -> None:
    value = np.array((258, 1.5), [("a", f"{order}i2"), ("b", f"{order}f8")])[()]
    text = base64.b64encode(value.tobytes()).decode()
    meta = parse(zarray(dtype=[["a", f"{order}i2"], ["b", f"{order}f8"]], fill_value=text))
    assert meta.fill_value.tolist() == (258, 1.5)
    assert meta.fill_value.dtype.isnative
    assert V2.hold(meta)[".zarray"]["fill_value"] == text


@pytest.mark.parametrize(
    ("dtype", "value", "bits"),
    [
        ("<f4", "NaN", "0000c07f"), ("<f4", "Infinity", "0000807f"), ("<f4", "-Infinity", "000080ff"),
        (">f8", -0.0, "0000000000000080"), ("<f8", 5e-324, "0100000000000000"),
        ("<f2", 0.0999755859375, "662e"),
        ("<c8", ["NaN", -1.5], "0000c07f0000c0bf"), ("|b1", True, "01"), ("<i8", -(2**63), "00" * 7 + "80"),
        ("<u8", 2**64 - 1, "ff" * 8), ("|S3", "/wBh", "ff0061"), ("|V2", "AQI=", "0102"),
        ("<M8[ns]", -(2**63), "00" * 7 + "80"), (">m8[s]", 258, "0201" + "00" * 6),
        ("<U2", "ø", "f8000000" + "00" * 4),
    ],
)  # fmt: skip
def test_fill_values(dtype: str, value: Any, bits: str) -> None:
    meta = parse(zarray(dtype=dtype, fill_value=value))
    wanted = np.dtype(dtype).newbyteorder("=")
    assert np.asarray(meta.fill_value, wanted).astype(wanted.newbyteorder("<")).tobytes().hex() == bits
    document = V2.hold(meta)[".zarray"]
    assert document["fill_value"] == value
    assert json.dumps(document["fill_value"]) == json.dumps(value)  # -0.0 is not 0.0.
    assert not meta.fill_is_null


def test_no_fill_value() -> None:
    for document in (zarray(fill_value=None), zarray(fill_value=...)):
        meta = parse(document)
        assert meta.fill_is_null
        assert meta.fill_value == 0
        assert V2.hold(meta)[".zarray"]["fill_value"] is None


def test_least_array() -> None:
    meta = parse(zarray(filters=..., fill_value=...))
    assert meta.codecs == (BytesCodec("little"),)
    scalar = parse(zarray(shape=[], chunks=[]))
    assert scalar.shape == ()
    assert scalar.chunk_key_encoding.key(()) == "0"


@pytest.mark.parametrize(
    ("fields", "keys"),
    [
        ({}, ["0", "3", "1.23.45"]),
        ({"dimension_separator": "."}, ["0", "3", "1.23.45"]),
        ({"dimension_separator": "/"}, ["0", "3", "1/23/45"]),
    ],
)
def test_chunk_keys(fields: Any, keys: list[str]) -> None:
    meta = parse(zarray(**fields))
    coordinates: list[tuple[int, ...]] = [(), (3,), (1, 23, 45)]
    assert [meta.chunk_key_encoding.key(coords) for coords in coordinates] == keys
    assert V2.hold(meta)[".zarray"]["dimension_separator"] == fields.get("dimension_separator", ".")


# Codecs


@pytest.mark.parametrize(
    ("fields", "codecs"),
    [
        ({}, ["bytes"]),
        ({"filters": []}, ["bytes"]),
        ({"order": "F"}, ["transpose", "bytes"]),
        ({"order": "F", "shape": [4], "chunks": [2]}, ["bytes"]),
        ({"compressor": ZLIB}, ["bytes", "numcodecs.zlib"]),
        ({"filters": [DELTA]}, ["numcodecs.delta", "bytes"]),
        ({"filters": [SHUFFLE], "compressor": ZLIB}, ["bytes", "numcodecs.shuffle", "numcodecs.zlib"]),
        ({"filters": [SHUFFLE, ZLIB]}, ["bytes", "numcodecs.shuffle", "numcodecs.zlib"]),
        (
            {"order": "F", "filters": [DELTA, SHUFFLE, {"id": "crc32"}], "compressor": ZLIB},
            ["transpose", "numcodecs.delta", "bytes", "numcodecs.shuffle", "numcodecs.crc32",
             "numcodecs.zlib"],
        ),
        ({"dtype": "|O", "fill_value": "", "filters": [TEXT]}, ["vlen-utf8"]),
        ({"dtype": "|O", "fill_value": 0, "filters": [TEXT], "compressor": ZLIB},
         ["vlen-utf8", "numcodecs.zlib"]),
        ({"dtype": "|O", "fill_value": None, "filters": [{"id": "vlen-bytes"}]}, ["vlen-bytes"]),
        ({"dtype": "|O", "fill_value": None, "filters": [JSON2, ZLIB]},
         ["numcodecs.json2", "numcodecs.zlib"]),
        ({"dtype": "|O", "fill_value": None, "filters": [TEXT], "order": "F"}, ["transpose", "vlen-utf8"]),
    ],
    ids=str,
)  # fmt: skip
def test_chains(fields: Any, codecs: list[str]) -> None:
    document = zarray(**fields)
    meta = parse(document)
    assert names(meta) == codecs
    assert_same(V2.hold(meta)[".zarray"], document)


def test_transpose_is_of_all_dimensions() -> None:
    meta = parse(zarray(shape=[4, 6, 5], chunks=[2, 3, 4], order="F"))
    assert meta.codecs[0] == TransposeCodec((2, 1, 0))


def test_shuffle_of_netcdf() -> None:
    """Elements of 0 bytes are those of the array; numcodecs would leave them as they are."""
    document = zarray(dtype="<i4", filters=[{"id": "shuffle", "elementsize": 0}], compressor=ZLIB)
    meta = parse(document)
    assert_same(V2.hold(meta)[".zarray"], document)
    values = np.arange(6, dtype="<i4").reshape(2, 3) * 1001
    shuffled = values.view("u1").reshape(6, 4).T.tobytes()
    assert meta.chain.decode(zlib.compress(shuffled)).tolist() == values.tolist()
    assert zlib.decompress(meta.chain.encode(values)) == shuffled


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("encoded", "<>")
def test_bytes_have_the_order_of_the_last_filter(order: str, encoded: str) -> None:
    """numcodecs' filters do not look at the array's data type, so their own says what they get."""
    filters = [{"id": "delta", "dtype": f"{order}i4", "astype": f"{encoded}i2"}]
    document = zarray(dtype=f"{order}i4", filters=filters)
    meta = parse(document)
    assert meta.codecs[1] == BytesCodec({"<": "little", ">": "big"}[encoded])
    assert_same(V2.hold(meta)[".zarray"], document)
    values = (np.arange(6).reshape(2, 3) * 7 - 3).astype(f"{order}i4")
    stored = numcodecs.Delta(f"{order}i4", f"{encoded}i2").encode(values).tobytes()
    assert bytes(meta.chain.encode(values.astype("=i4"))) == stored
    assert meta.chain.decode(stored).tolist() == values.tolist()


@pytest.mark.parametrize(
    ("fields", "field", "found"),
    [
        ({"filters": [ZLIB, DELTA]}, "filters[1]", "delta"),
        ({"filters": [SHUFFLE, TEXT], "dtype": "|O"}, "filters[1]", "vlen-utf8"),
        ({"filters": [TEXT, TEXT], "dtype": "|O", "fill_value": None}, "filters[1]", "vlen-utf8"),
        ({"filters": [DELTA, {"id": "nope"}]}, "filters[1]", "nope"),
        ({"compressor": {"id": "nope"}}, "compressor", "nope"),
        ({"dtype": "|O", "filters": [{"id": "pickle", "protocol": 5}]}, "filters[0].id", "pickle"),
        ({"dtype": "|O", "filters": [{"id": "msgpack2"}]}, "filters[0].id", "msgpack2"),
        ({"dtype": "|O", "filters": [{"id": "vlen-array", "dtype": "<i4"}]}, "filters[0].id", "vlen-array"),
        ({"dtype": "|O", "compressor": {"id": "pickle", "protocol": 5}}, "compressor.id", "pickle"),
        ({"dtype": "|O"}, "dtype", "|O"),
        ({"dtype": "|O", "filters": [DELTA]}, "dtype", "|O"),
        ({"dtype": "<f3"}, "dtype", "<f3"),
        ({"dtype": "<f16"}, "dtype", "<f16"),
    ],
    ids=str,
)
def test_unknown_extensions(fields: Any, field: str, found: str) -> None:
    error = refused(zarray(**fields), UnknownExtensionError)
    assert error.field is not None
    assert error.field.startswith(field)
    assert found in str(error)


# Attributes and names of dimensions


@pytest.mark.parametrize(
    ("attributes", "extra", "found"),
    [
        ({"_ARRAY_DIMENSIONS": ["y", "x"]}, {}, ("y", "x")),
        ({"_ARRAY_DIMENSIONS": ["y"]}, {}, None),
        ({"_ARRAY_DIMENSIONS": ["y", 1]}, {}, None),
        ({"_ARRAY_DIMENSIONS": "yx"}, {}, None),
        ({"_ARRAY_DIMENSIONS": None}, {}, None),
        ({"_nczarr_array": {"dimrefs": ["/y", "/g/x"], "storage": "chunked"}}, {}, ("y", "x")),
        ({"_nczarr_array": {"dimension_references": ["/y", "/g/x"]}}, {}, ("y", "x")),
        ({"_NCZARR_ARRAY": {"dimrefs": ["/y", "x"]}}, {}, ("y", "x")),
        ({}, {"_NCZARR_ARRAY": {"dimrefs": ["/time", "/lon"]}}, ("time", "lon")),
        ({}, {"_nczarr_array": {"dimrefs": ["/time", "/lon"]}}, ("time", "lon")),
        ({}, {"_nczarr_array": {"dimrefs": ["/time"]}}, None),
        ({}, {"_nczarr_array": "dimrefs"}, None),
        ({}, {"_nczarr_array": {"dimrefs": [None, {}]}}, None),
        ({"_ARRAY_DIMENSIONS": ["a", "b"]}, {"_NCZARR_ARRAY": {"dimrefs": ["/c", "/d"]}}, ("a", "b")),
        ({"_ARRAY_DIMENSIONS": ["a"]}, {"_NCZARR_ARRAY": {"dimrefs": ["/c", "/d"]}}, None),
    ],
)
def test_names_of_dimensions(attributes: Any, extra: Any, found: Any) -> None:
    meta = parse(zarray(**extra), {"units": "m", **attributes})
    assert meta.dimension_names == found
    wanted = {"units": "m", **attributes}
    if found is not None:
        wanted.pop("_ARRAY_DIMENSIONS", None)
    assert meta.attributes == wanted
    held = V2.hold(meta)
    assert held[".zattrs"] == (wanted if found is None else {**wanted, "_ARRAY_DIMENSIONS": list(found)})
    assert_same(held[".zarray"], zarray(**extra))


def test_names_of_dimensions_of_netcdf_4_8() -> None:
    assert parse(zarray(), **{".nczarray": {"dimrefs": ["/y", "/x"]}}).dimension_names == ("y", "x")
    assert parse(zarray(), **{".nczarray": {"dimrefs": 5}}).dimension_names is None


def test_no_dimensions_have_no_names() -> None:
    meta = parse(zarray(shape=[], chunks=[]), {"_ARRAY_DIMENSIONS": []})
    assert meta.dimension_names == ()
    assert V2.hold(meta)[".zattrs"] == {"_ARRAY_DIMENSIONS": []}
    assert V2.hold(parse(zarray(shape=[], chunks=[])))[".zattrs"] == {}


def test_unknown_fields_are_kept() -> None:
    document = zarray(_NCZARR_ARRAY={"dimrefs": ["/y", "/x"]}, note=None, order="F")
    assert_same(V2.hold(parse(document))[".zarray"], document)
    group = {"zarr_format": 2, "_NCZARR_GROUP": {"dims": {"y": 4}}}
    assert V2.hold(read({".zgroup": group}, ""))[".zgroup"] == group


@pytest.mark.parametrize("dtype", [">S1", "<S1", ">V3", "<i1", ">u1", "<b1"])
def test_dtype_is_spelled_as_it_was(dtype: str) -> None:
    """``>S1`` has no byte order, and yet means something to NCZarr."""
    document = zarray(dtype=dtype, fill_value=None)
    meta = parse(document)
    assert meta.data_type == parse(zarray(dtype=f"|{dtype[1:]}", fill_value=None)).data_type
    assert_same(V2.hold(meta)[".zarray"], document)
    assert text(V2.hold(pickle.loads(pickle.dumps(meta)))) == text(V2.hold(meta))
    assert meta.ignored == {}
    other = replace(meta, data_type=parse_dtype("uint16"), fill_value=np.uint16(0), codecs=(BytesCodec(),))
    assert V2.hold(other)[".zarray"]["dtype"] == "<u2"


# Groups and consolidated metadata


def test_groups() -> None:
    meta = read({".zgroup": {"zarr_format": 2}}, "")
    assert isinstance(meta, GroupMetadata)
    assert (meta.attributes, meta.consolidated, meta.ignored, meta.zarr_format) == ({}, None, {}, 2)
    meta = read({".zgroup": {"zarr_format": 2}, ".zattrs": {"spam": "ham", "eggs": 42}}, "")
    assert meta.attributes == {"spam": "ham", "eggs": 42}
    held = {".zattrs": {"spam": "ham", "eggs": 42}, ".zgroup": {"zarr_format": 2}}
    assert V2.hold(meta) == held
    assert list(V2.hold(meta)) == [".zattrs", ".zgroup"]


def consolidated(metadata: Any, version: Any = 1) -> dict[str, Any]:
    whole = {"zarr_consolidated_format": version, "metadata": metadata}
    return {
        ".zgroup": {"zarr_format": 2},
        ".zattrs": {},
        ".zmetadata": {field: value for field, value in whole.items() if value is not ...},
    }


def test_consolidated_metadata() -> None:
    group = {"zarr_format": 2}
    metadata = {
        ".zgroup": group,
        ".zattrs": {"title": "x"},
        "g/.zgroup": {**group, "consolidated_metadata": {"metadata": {}, "kind": "inline"}},
        "g/.zattrs": {"a": 1},
        "g/x/.zarray": zarray(),
        "y/.zarray": zarray(shape=[2, 3]),
        "y/.zattrs": {"_ARRAY_DIMENSIONS": ["a", "b"]},
        "y/.nczarray": {},
        "lost/.zattrs": {},
    }
    meta = read(consolidated(metadata), "")
    assert sorted(meta.consolidated) == ["g", "g/x", "y"]
    assert read(meta.consolidated["y"], "y").dimension_names == ("a", "b")
    assert read(meta.consolidated["g"], "g").attributes == {"a": 1}
    assert read(meta.consolidated["g"], "g").ignored == {}
    assert sorted(V2.consolidated_below(meta.consolidated, "g")) == ["x"]


def test_groups_above_are_implied() -> None:
    metadata = {
        "a/b/c/.zarray": zarray(),
        "a/.zattrs": {"n": 1},
        "d/.zarray": zarray(),
        "d/e/.zarray": zarray(),
    }
    meta = read(consolidated(metadata), "")
    assert sorted(meta.consolidated) == ["a", "a/b", "a/b/c", "d", "d/e"]
    assert read(meta.consolidated["a"], "a").attributes == {"n": 1}
    assert not V2.is_array(meta.consolidated["a/b"])
    assert V2.is_array(meta.consolidated["d"])


@pytest.mark.parametrize(
    ("held", "field"),
    [
        (consolidated({}, version=2), ".zmetadata.zarr_consolidated_format"),
        (consolidated({}, version="1"), ".zmetadata.zarr_consolidated_format"),
        (consolidated({}, version=True), ".zmetadata.zarr_consolidated_format"),
        (consolidated({}, version=...), ".zmetadata.zarr_consolidated_format"),
        (consolidated(...), ".zmetadata.metadata"),
        (consolidated([]), ".zmetadata.metadata"),
        (consolidated({"a/.zarray": 5}), ".zmetadata.metadata['a/.zarray']"),
        (consolidated({"a/.zattrs": None}), ".zmetadata.metadata['a/.zattrs']"),
        (consolidated({"a/../b/.zarray": {}}), ".zmetadata.metadata"),
        (consolidated({"a//b/.zarray": {}}), ".zmetadata.metadata"),
        (consolidated({"/.zarray": {}, "//.zgroup": {}}), ".zmetadata.metadata"),
        ({".zgroup": {"zarr_format": 3}}, "zarr_format"),
        ({".zgroup": {"zarr_format": "2"}}, "zarr_format"),
        ({".zgroup": {}}, "zarr_format"),
        ({".zgroup": {"zarr_format": 2}, ".zattrs": []}, ".zattrs"),
        ({".zarray": zarray(), ".zattrs": None}, ".zattrs"),
    ],
)  # fmt: skip
def test_malformed_groups(held: Any, field: str) -> None:
    with pytest.raises(MetadataError) as caught:
        read(held, "a/b")
    assert complete(caught.value).field == field


def group(**attributes: Any) -> GroupMetadata:
    return GroupMetadata(attributes=attributes, zarr_format=2)


def test_consolidated_documents_are_written() -> None:
    array = parse(zarray(), {"_ARRAY_DIMENSIONS": ["y", "x"]})
    below = {"g/x": V2.hold(array), "g": {**V2.hold(group(a=1)), ".zmetadata": {}}}
    stored = V2.documents(group(title="x"), "top", below)
    assert list(stored) == ["top/.zattrs", "top/.zgroup", "top/.zmetadata"]
    assert stored["top/.zmetadata"] == {
        "zarr_consolidated_format": 1,
        "metadata": {
            ".zgroup": {"zarr_format": 2},
            ".zattrs": {"title": "x"},
            "g/.zgroup": {"zarr_format": 2},
            "g/.zattrs": {"a": 1},
            "g/x/.zarray": {**zarray(), "dimension_separator": "."},
            "g/x/.zattrs": {"_ARRAY_DIMENSIONS": ["y", "x"]},
        },
    }
    names = [key.rpartition("/")[2] for key in stored]
    held = dict(zip(names, stored.values(), strict=True))
    assert sorted(read(held, "top").consolidated) == ["g", "g/x"]


def test_consolidated_documents_are_updated() -> None:
    array = parse(zarray())
    below = {"g": V2.hold(group()), "g/x": V2.hold(array), "gx": V2.hold(array)}
    document = V2.documents(group(), "", below)[".zmetadata"]
    before = copy.deepcopy(document)

    def keys(relative: str, meta: Any) -> list[str]:
        changed = V2.update_consolidated(document, relative, meta)
        assert document == before
        assert changed is not None
        return sorted(changed["metadata"])

    every = [
        ".zattrs", ".zgroup", "g/.zattrs", "g/.zgroup", "g/x/.zarray", "g/x/.zattrs", "gx/.zarray",
        "gx/.zattrs",
    ]  # fmt: skip
    assert keys("", group(n=1)) == every
    assert (V2.update_consolidated(document, "", group(n=1)) or {})["metadata"][".zattrs"] == {"n": 1}
    assert keys("g", group()) == every
    assert keys("g", array) == [".zattrs", ".zgroup", "g/.zarray", "g/.zattrs", "gx/.zarray", "gx/.zattrs"]
    assert keys("g", None) == [".zattrs", ".zgroup", "gx/.zarray", "gx/.zattrs"]
    assert keys("h/i", array) == [*every, "h/i/.zarray", "h/i/.zattrs"]
    assert V2.update_consolidated(document, "", None) is None
    for other in ({}, {"zarr_consolidated_format": 1}, {"zarr_consolidated_format": 2, "metadata": {}}):
        assert V2.update_consolidated(other, "g", None) is None


# Keys


def test_keys() -> None:
    assert V2.document_keys("a/b")[:4] == ("a/b/.zarray", "a/b/.zgroup", "a/b/.zattrs", "a/b/.zmetadata")
    assert V2.defining_keys("") == (".zarray", ".zgroup")
    assert V2.array_key("a") == "a/.zarray"
    assert V2.chunk_prefix("a") == "a/"
    assert V2.prefixes("") == ("",)
    assert V2.listing_prefix("a") == "a/"
    assert V2.consolidated_key("") == ".zmetadata"
    assert V2.child_names(["a/.zgroup", "a/0"], ["a/b/", "a/c d/"], "a") == (set(), {"b", "c d"})
    assert pickle.loads(pickle.dumps(V2)) == V2 == V2Format()
    assert V2.zarr_format == 2


@pytest.mark.parametrize(
    ("key", "path", "kind"),
    [
        (".zarray", "", "array"), ("a/.zgroup", "a", "group"), ("a/b/.zattrs", "a/b", "other"),
        ("a/.zmetadata", "a", "other"), (".nczarr", "", "other"), ("a/.nczarray", "a", "other"),
        ("a/.nczgroup", "a", "other"), ("a/.nczattr", "a", "other"), ("a/.nczattrs", "a", "other"),
        ("a/.nczvar", "a", "other"),
    ],
)  # fmt: skip
def test_places(key: str, path: str, kind: str) -> None:
    place = V2.place(key)
    assert place is not None
    assert (place.path, place.kind) == (path, kind)
    assert key in V2.document_keys(path)


@pytest.mark.parametrize("key", ["0", "a/0.0", "zarr.json", "a/zarray", ".zarray/0", "x.zarray", ".zarrays"])
def test_other_keys_have_no_place(key: str) -> None:
    assert V2.place(key) is None


def test_names_of_nodes() -> None:
    for name in ("a", "__x", "...", "é", "0", "0.0", ".hidden", "a b"):
        V2.check_name(name, name)
    for name in (
        "",
        ".",
        "..",
        "a\\b",
        ".zarray",
        ".zgroup",
        ".zattrs",
        ".zmetadata",
        ".nczarray",
        "zarr.json",
    ):
        with pytest.raises(InvalidKeyError, match="accepted"):
            V2.check_name(name, f"x/{name}")


def test_documents_of_a_node_are_asked_for_at_once() -> None:
    calls: list[list[str]] = []
    store: dict[str, Any] = {
        "a/.zarray": {"array": 1}, "a/.zattrs": {"n": 1}, "a/.zgroup": {}, "a/.zmetadata": {},
        "g/.zgroup": {"group": 1}, "g/.zmetadata": {"m": 1}, "g/.nczarray": {},
        "lost/.zattrs": {},
    }  # fmt: skip

    def get(keys: Any) -> Any:
        calls.append(list(keys))
        return [store.get(key) for key in keys]

    assert V2.fetch("a", get) == {".zarray": {"array": 1}, ".zattrs": {"n": 1}}
    assert V2.fetch("g", get) == {".zgroup": {"group": 1}, ".zmetadata": {"m": 1}}
    assert V2.fetch("lost", get) is None
    assert V2.fetch("", get) is None
    assert len(calls) == 4


# What version 2 cannot say


class Plain(StorageTransformer):
    name = "example.plain"

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> Plain:
        return cls()

    def wrap(self, store: Any, prefix: str, metadata: Any) -> Any:
        return store


def metadata(**changes: Any) -> Any:
    return replace(parse(zarray()), **changes)


SHARDING = {
    "name": "sharding_indexed",
    "configuration": {
        "chunk_shape": [1, 1],
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    },
}


def float_of_bits(bits: int) -> dict[str, Any]:
    """An array of float32 whose fill value has these bits."""
    value = np.array([bits], "u4").view("f4")[0]
    return {"data_type": parse_dtype("float32"), "codecs": (BytesCodec(),), "fill_value": value}


REVERSE = TransposeCodec((1, 0))
UNSAYABLE: list[tuple[str, dict[str, Any]]] = [
    ("chunk_grid", {"chunk_grid": grid_for([[1, 3], 3], (4, 6))}),
    ("chunk_key_encoding", {"chunk_key_encoding": ChunkKeyEncoding()}),
    ("storage_transformers", {"storage_transformers": (Plain(),)}),
    ("codecs[0]", {"codecs": (parse_codec(SHARDING),)}),
    ("codecs[1]", {"codecs": (REVERSE, REVERSE, BytesCodec())}),
    ("dimension_names", {"dimension_names": ("y", None)}),
    ("attributes._ARRAY_DIMENSIONS",
     {"dimension_names": ("y", "x"), "attributes": {"_ARRAY_DIMENSIONS": ["a", "b"]}}),
    ("fill_value", float_of_bits(0xFFC00000)),
    ("fill_value", float_of_bits(0x7FC00001)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("field", "changes"), UNSAYABLE, ids=[f"{at}-{field}" for at, (field, _) in enumerate(UNSAYABLE)]
)
def test_what_cannot_be_said(field: str, changes: dict[str, Any]) -> None:
    with pytest.raises(MetadataError) as caught:
        V2.hold(metadata(**changes), "a/b")
    assert complete(caught.value).field == field
    assert "format 2" in str(caught.value)


def test_other_orders_of_dimensions_cannot_be_said() -> None:
    three = {"shape": (4, 6, 2), "chunk_grid": RegularGrid((2, 3, 1))}
    for order in ((0, 2, 1), (1, 0, 2), (2, 0, 1)):
        with pytest.raises(MetadataError, match="format 2"):
            V2.hold(metadata(**three, codecs=(TransposeCodec(order), BytesCodec())))
    identity = metadata(**three, codecs=(TransposeCodec((0, 1, 2)), BytesCodec()))
    assert V2.hold(identity)[".zarray"]["order"] == "C"
    reverse = metadata(**three, codecs=(TransposeCodec((2, 1, 0)), BytesCodec()))
    assert V2.hold(reverse)[".zarray"]["order"] == "F"


def test_names_of_no_dimension_are_no_names() -> None:
    meta = metadata(dimension_names=(None, None))
    assert V2.hold(meta)[".zattrs"] == {}
    same = metadata(dimension_names=("y", "x"), attributes={"_ARRAY_DIMENSIONS": ["y", "x"]})
    assert V2.hold(same)[".zattrs"] == {"_ARRAY_DIMENSIONS": ["y", "x"]}


class Nameless(Int16):
    _zarr_v3_name = "example.nameless"

    def to_json(self, zarr_format: Any) -> Any:
        if zarr_format == 2:
            raise TypeError("no name")
        return super().to_json(zarr_format)


def test_data_types_without_a_name() -> None:
    with pytest.raises(MetadataError, match="format 2") as caught:
        V2.hold(metadata(data_type=Nameless()), "a/b")
    assert complete(caught.value).field == "data_type"


@pytest.mark.parametrize("codecs", [["crc32c"], ["gzip", "crc32c"], ["zstd"], ["gzip", "zstd"], []])
def test_all_bytes_codecs_but_the_last_are_filters(codecs: list[str]) -> None:
    configurations: dict[str, Any] = {"gzip": {"level": 5}, "zstd": {"level": 3, "checksum": False}}
    chain = [parse_codec({"name": name, "configuration": configurations.get(name, {})}) for name in codecs]
    document = V2.hold(metadata(codecs=(BytesCodec("big"), *chain)))[".zarray"]
    assert [filter_["id"] for filter_ in document["filters"] or []] == codecs[:-1]
    assert (document["compressor"] or {}).get("id") == (codecs[-1] if codecs else None)
    assert document["dtype"] == ">i2"
    assert [codec.name.removeprefix("numcodecs.") for codec in parse(document).codecs] == ["bytes", *codecs]


# Malformed documents: each names the field, what was found and what would be accepted


@pytest.mark.parametrize("field", ["zarr_format", "shape", "chunks", "dtype", "compressor", "order"])
def test_missing_field(field: str) -> None:
    assert refused(zarray(**{field: ...})).field == field


INVALID: list[tuple[str, Any, str, str]] = [
    # field, value, field of the error, part of what would be accepted
    ("zarr_format", 1, "zarr_format", "2"),
    ("zarr_format", 3, "zarr_format", "2"),
    ("zarr_format", "2", "zarr_format", "2"),
    ("zarr_format", 2.0, "zarr_format", "2"),
    ("zarr_format", True, "zarr_format", "2"),
    ("zarr_format", None, "zarr_format", "2"),
    ("shape", 4, "shape", "array"),
    ("shape", None, "shape", "array"),
    ("shape", "46", "shape", "array"),
    ("shape", {"0": 4}, "shape", "array"),
    ("shape", [4, "6"], "shape[1]", "integer"),
    ("shape", [4, 6.0], "shape[1]", "integer"),
    ("shape", [True, 6], "shape[0]", "integer"),
    ("shape", [4, None], "shape[1]", "integer"),
    ("shape", [4, -1], "shape[1]", "from 0"),
    ("shape", [4, 2**63], "shape[1]", "2^63 - 1"),
    ("shape", [1] * 65, "shape", "64"),
    ("chunks", None, "chunks", "array"),
    ("chunks", True, "chunks", "array"),
    ("chunks", False, "chunks", "array"),
    ("chunks", 2, "chunks", "array"),
    ("chunks", [2], "chunks", "2 integers"),
    ("chunks", [2, 3, 1], "chunks", "2 integers"),
    ("chunks", [2, "3"], "chunks[1]", "integer"),
    ("chunks", [2, 3.0], "chunks[1]", "integer"),
    ("chunks", [2, True], "chunks[1]", "integer"),
    ("chunks", [2, 0], "chunks[1]", "from 1"),
    ("chunks", [2, -3], "chunks[1]", "from 1"),
    ("chunks", [2, 2**63], "chunks[1]", "from 1"),
    ("dtype", None, "dtype", "string"),
    ("dtype", 5, "dtype", "string"),
    ("dtype", {"name": "int16"}, "dtype", "string"),
    ("dtype", "", "dtype", ""),
    ("dtype", "int17", "dtype", ""),
    ("dtype", "<i3", "dtype", ""),
    ("dtype", "<U99999999999", "dtype", ""),
    ("dtype", "<M8[parsec]", "dtype", ""),
    ("dtype", [], "dtype", ""),
    ("dtype", [["a"]], "dtype", ""),
    ("dtype", [["a", "<i2"], ["a", "<i2"]], "dtype", ""),
    ("dtype", [["a", "|O"]], "dtype", ""),
    ("dtype", [["a", "<i2", [-1]]], "dtype", ""),
    ("dtype", [[1, "<i2"]], "dtype", ""),
    ("compressor", "zlib", "compressor", "'id'"),
    ("compressor", [], "compressor", "'id'"),
    ("compressor", {}, "compressor", "'id'"),
    ("compressor", {"id": None}, "compressor", "'id'"),
    ("compressor", {"name": "zlib"}, "compressor", "'id'"),
    ("compressor", {"id": "zlib", "level": 99}, "compressor.level", "9"),
    ("compressor", {"id": "zlib", "level": "1"}, "compressor.level", "9"),
    ("compressor", {"id": "blosc", "cname": "x", "clevel": 5, "shuffle": 1}, "compressor.cname", "'lz4'"),
    ("fill_value", "x", "fill_value", ""),
    ("fill_value", 0.5, "fill_value", ""),
    ("fill_value", 2**15, "fill_value", ""),
    ("fill_value", [0], "fill_value", ""),
    ("fill_value", {}, "fill_value", ""),
    ("fill_value", True, "fill_value", ""),
    ("fill_value", "NaN", "fill_value", ""),
    ("order", None, "order", "'C', 'F'"),
    ("order", "A", "order", "'C', 'F'"),
    ("order", "c", "order", "'C', 'F'"),
    ("order", ["C"], "order", "'C', 'F'"),
    ("filters", {}, "filters", "array"),
    ("filters", "delta", "filters", "array"),
    ("filters", False, "filters", "array"),
    ("filters", [None], "filters[0]", "'id'"),
    ("filters", [DELTA, "zlib"], "filters[1]", "'id'"),
    ("filters", [{"id": 5}], "filters[0]", "'id'"),
    ("filters", [{"id": "delta", "dtype": "<f8"}], "filters[0]", ""),
    ("filters", [{"id": "delta", "dtype": 5}], "filters[0]", ""),
    ("filters", [TEXT], "filters[0]", ""),
    ("dimension_separator", None, "dimension_separator", "'.', '/'"),
    ("dimension_separator", "", "dimension_separator", "'.', '/'"),
    ("dimension_separator", "-", "dimension_separator", "'.', '/'"),
    ("dimension_separator", ["."], "dimension_separator", "'.', '/'"),
]


@pytest.mark.parametrize(
    ("field", "value", "place", "accepted"),
    INVALID,
    ids=[f"{at}-{field}-{json.dumps(value)[:50]}" for at, (field, value, _, _) in enumerate(INVALID)],
)
def test_malformed_field(field: str, value: Any, place: str, accepted: str) -> None:
    error = refused(zarray(**{field: value}))
    assert error.field is not None
    assert error.field == place if accepted else error.field.startswith(place)
    assert accepted in str(error.accepted)


def test_fill_values_of_other_types_are_refused() -> None:
    fields: list[dict[str, Any]] = [
        {"dtype": "<f8", "fill_value": "nan"}, {"dtype": "<f8", "fill_value": []},
        {"dtype": "<c8", "fill_value": [1]}, {"dtype": "|S3", "fill_value": "é"},
        {"dtype": "|S3", "fill_value": "AAAAAAAA"}, {"dtype": "|V2", "fill_value": "A"},
        {"dtype": [["a", "<i2"]], "fill_value": "AA"}, {"dtype": "<U1", "fill_value": "ab"},
        {"dtype": "|O", "filters": [TEXT], "fill_value": []}, {"dtype": "|b1", "fill_value": 2},
    ]  # fmt: skip
    for each in fields:
        assert refused(zarray(**each), DataTypeValidationError).field == "fill_value", each


@pytest.mark.parametrize(
    ("shape", "chunks", "read"),
    [([0, 6], [0, 3], (1, 3)), ([0, 0], [0, 5], (1, 5)), ([4, 6], [9, 9], (9, 9))],
)
def test_lengths_of_chunks_that_some_writers_store(shape: Any, chunks: Any, read: Any) -> None:
    assert parse(zarray(shape=shape, chunks=chunks)).chunk_grid == RegularGrid(read)


# Any document at all


VALID: list[dict[str, Any]] = [
    {".zarray": zarray(), ".zattrs": {"_ARRAY_DIMENSIONS": ["y", "x"], "a": [1, None]}},
    {".zarray": zarray(dtype=">f8", fill_value="NaN", order="F", dimension_separator="/", compressor=ZLIB)},
    {".zarray": zarray(filters=[DELTA, SHUFFLE, {"id": "crc32"}], compressor={"id": "zstd", "level": 1})},
    {".zarray": zarray(dtype="|O", fill_value="", filters=[TEXT], compressor={"id": "lz4"})},
    {
        ".zarray": zarray(
            dtype="|O",
            fill_value="",
            filters=[{"id": "categorize", "labels": ["x"], "dtype": "|O", "astype": "<u2"}],
            compressor={"id": "base64"},
            order="F",
        )
    },
    {".zarray": zarray(dtype=[["a", "<i2"], ["b", [["c", ">f4", [2]]]]], fill_value=None)},
    {
        ".zarray": zarray(
            dtype="<f4",
            shape=[],
            chunks=[],
            compressor={"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": -1, "blocksize": 0},
            filters=[{"id": "fixedscaleoffset", "scale": 10, "offset": 1, "dtype": "<f4", "astype": "|u1"}],
        ),
        ".zattrs": {"_ARRAY_DIMENSIONS": []},
    },
    {
        ".zarray": zarray(_NCZARR_ARRAY={"dimrefs": ["/y", "/x"], "storage": "chunked"}),
        ".nczarray": {"dimrefs": ["/a", "/b"]},
    },
    {".zarray": zarray(dtype="<M8[ns]", fill_value=-(2**63)), ".zattrs": {"nan": float("nan")}},
    {".zgroup": {"zarr_format": 2, "_NCZARR_GROUP": {}}, ".zattrs": {"a": 1}},
    consolidated({"a/.zarray": zarray(), "b/.zgroup": {"zarr_format": 2}, "b/.zattrs": {}}),
]  # fmt: skip


def change(held: Any, path: tuple[Any, ...], how: str, value: Any) -> Any:
    """A copy of documents in which one value was replaced or dropped, or something was put beside it."""
    if not path:
        return held
    changed = copy.deepcopy(held)
    target = changed
    for key in path[:-1]:
        target = target[key]
    if how == "drop":
        del target[path[-1]]
    elif how == "add" and isinstance(target, list):
        target.insert(path[-1], value)
    elif how == "add":
        target[json.dumps(value)[:5]] = value
    else:
        target[path[-1]] = value
    return changed


@st.composite
def changed_documents(draw: st.DrawFn) -> Any:
    held = draw(st.sampled_from(VALID))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(places(held))))
        how = draw(st.sampled_from(["replace", "replace", "drop", "add"]))
        value = draw(st.one_of(JSON_VALUES, st.sampled_from(WORDS)))
        held = change(held, path, how, value)
    return held


WORDS: list[Any] = [
    None, True, False, 0, 1, -1, 2**63, 10**40, 0.0, 1.5, 1e300, float("nan"), float("inf"), "", "x", "F",
    "<f8", "|O", "<U4", "|S3", "|V9", ">M8[us]", "<M8", "<U2147483647", "<V0", "|S0", "AAAA", "NaN", [], [0],
    [None], [[]], {}, {"id": "x"}, {"id": None}, {"id": "pickle"}, {"id": "packbits"}, {"id": "base64"},
    {"id": "vlen-bytes"}, {"id": "json2"}, {"id": "zfpy"}, {"id": "pcodec"}, {"id": "categorize"},
    {"id": "astype", "encode_dtype": ">f4", "decode_dtype": "<i2"}, {"id": "bitround", "keepbits": 3},
    {"id": "lzma", "format": 1, "check": -1, "preset": None, "filters": None}, {"id": "bz2", "level": 1},
    {"id": "quantize", "digits": 1, "dtype": "<f4"}, [["a", "<i2"]], [["a", "<i2", [3]]], DELTA, ZLIB, TEXT,
]  # fmt: skip


def check_outcome(held: dict[str, Any]) -> None:
    """Documents are refused with their place, or are what they say however often they are written again."""
    if ".zarray" not in held and ".zgroup" not in held:
        return
    # As fetch() has them: JSON, objects all.
    held = {name: document for name, document in held.items() if isinstance(document, dict)}
    if ".zarray" not in held and ".zgroup" not in held:
        return
    meta, error = attempt(lambda: read(held, "a/b"), MetadataError)
    if error is not None:
        assert isinstance(error, MetadataError)
        assert error.path == "a/b"
        assert error.field
        assert str(error).startswith("node '/a/b', field ")
        assert len(str(error)) < 1500
        return
    if isinstance(meta, GroupMetadata):
        stored = V2.documents(meta, "", meta.consolidated)
        again = read(stored, "")
        assert text([again.attributes, again.ignored]) == text([meta.attributes, meta.ignored])
        assert (again.consolidated is None) == (meta.consolidated is None)
        assert set(again.consolidated or ()) == set(meta.consolidated or ())
        return
    written = V2.hold(meta, "a/b")
    again = read(json.loads(json.dumps(written)), "a/b")
    assert isinstance(meta, ArrayMetadata)
    assert isinstance(again, ArrayMetadata)
    assert text(V2.hold(again)) == text(written)
    assert again.codecs == meta.codecs
    assert again.stores_as(meta)
    assert again.dimension_names == meta.dimension_names
    assert again.fill_is_null == meta.fill_is_null
    assert_same(written[".zarray"], held[".zarray"])


def assert_same(written: dict[str, Any], given: dict[str, Any]) -> None:
    """Compare an array document with the one it was made from, but for what the text has a default for."""
    wanted = {"dimension_separator": ".", "filters": None, "fill_value": None, **given}
    wanted["chunks"] = [max(length, 1) for length in wanted["chunks"]]
    assert (written["fill_value"] is None) == (wanted["fill_value"] is None)
    found, wanted = {**written, "fill_value": 0}, {**wanted, "fill_value": 0}
    assert found == wanted or text(found) == text(wanted)  # A NaN only equals itself as text.


def text(document: Any) -> str:
    """A document as text that is the same if it is, NaN and all."""
    return json.dumps(document, sort_keys=True)


@pytest.mark.slow
@settings(max_examples=1500, deadline=None)
@given(changed_documents())
@example({".zarray": zarray(dtype=[[""] * 2]), ".zattrs": {}})
def test_any_change_is_read_or_refused(held: Any) -> None:
    check_outcome(held)


@pytest.mark.parametrize("held", VALID, ids=range(len(VALID)))
def test_every_single_replacement_is_read_or_refused(held: dict[str, Any]) -> None:
    for path in places(held):
        if len(path) < 2:
            continue
        for value in WORDS:
            check_outcome(change(held, path, "replace", value))
        check_outcome(change(held, path, "drop", None))


def test_deep_documents_are_refused() -> None:
    deep: Any = "<i2"
    for _ in range(500):
        deep = [["a", deep]]
    with pytest.raises(MetadataError) as caught:
        read({".zarray": zarray(dtype=deep)}, "a/b")
    assert (caught.value.path, caught.value.field) == ("a/b", "dtype")
    assert caught.value.accepted


STORED = sorted(DATA.glob("*/**/.zarray"))


@pytest.mark.parametrize("file", STORED, ids=[str(file.parent.relative_to(DATA)) for file in STORED])
def test_documents_of_other_tools_are_written_as_they_were(file: Path) -> None:
    attributes = file.with_name(".zattrs")
    given = documents.decode(file.read_bytes())
    held = {".zarray": given}
    if attributes.exists():
        held[".zattrs"] = documents.decode(attributes.read_bytes())
    if file.parent.parent.name == "refused":
        with pytest.raises(UnknownExtensionError, match=r"pickle|vlen-array"):
            read(held, "")
        return
    meta = read(held, "")
    written = V2.hold(meta)
    assert_same(written[".zarray"], given)
    again = V2.hold(read(written, ""))
    assert text(again) == text(written)
    assert text({**written[".zattrs"], **held.get(".zattrs", {})}) == text(written[".zattrs"])
