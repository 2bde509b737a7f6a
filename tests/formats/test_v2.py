"""Documents of version 2: what the text permits is read and written again, everything else is refused."""

import base64
import json
import pickle
import zlib
from dataclasses import replace
from functools import partial
from typing import Any

import numcodecs
import numpy as np
import pytest
from _conformance import contents
from _documents import refused, text, zarray, zmetadata
from _things import refuses

import xzarr3
from xzarr3 import InvalidKeyError, MetadataError, UnknownExtensionError
from xzarr3.codecs import BytesCodec, TransposeCodec, default_serializer, parse_codec
from xzarr3.dtypes import Int16, parse_dtype
from xzarr3.formats.base import DocumentKey, is_array
from xzarr3.formats.v2 import V2, V2Format
from xzarr3.grid import RegularGrid, grid_for
from xzarr3.model.chunk_keys import ChunkKeyEncoding
from xzarr3.model.metadata import ArrayMetadata, GroupMetadata

DELTA = {"id": "delta", "dtype": "<i2", "astype": "<i2"}
ZLIB = {"id": "zlib", "level": 1}
SHUFFLE = {"id": "shuffle", "elementsize": 2}
TEXT = {"id": "vlen-utf8"}
JSON2 = json.loads(json.dumps(numcodecs.JSON().get_config()))
OBJECTS: dict[str, Any] = {"dtype": "|O", "fill_value": None}
NETCDF = {"_NCZARR_ARRAY": {"dimrefs": ["/c", "/d"]}}


def read(held: Any, path: str = "a/b") -> Any:
    """What documents say; of any type, so that tests need not tell."""
    return V2.parse(json.loads(json.dumps(held)), path)


def parse(document: Any, attributes: Any = None, **held: Any) -> Any:
    more = {} if attributes is None else {".zattrs": attributes}
    return read({".zarray": document, **held, **more})


def metadata(**changes: Any) -> Any:
    return replace(parse(zarray()), **changes)


def stored(meta: Any) -> Any:
    return V2.hold(meta, "a/b")[".zarray"]


def test_array_of_the_specification() -> None:
    meta = parse({
        "chunks": [1000, 1000], "compressor": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1},
        "dtype": "<f8", "fill_value": "NaN", "filters": [{"id": "delta", "dtype": "<f8", "astype": "<f4"}],
        "order": "C", "shape": [10000, 10000], "zarr_format": 2,
    })  # fmt: skip
    assert isinstance(meta, ArrayMetadata)
    assert (meta.shape, meta.chunk_grid) == ((10000, 10000), RegularGrid((1000, 1000)))
    assert meta.data_type == parse_dtype("float64")
    assert meta.chunk_key_encoding == ChunkKeyEncoding("v2", ".")
    assert [meta.chunk_key_encoding.key(coords) for coords in ((0, 0), (2, 4))] == ["0.0", "2.4"]
    assert [codec.name for codec in meta.codecs] == ["numcodecs.delta", "bytes", "blosc"]
    assert meta.codecs[1] == BytesCodec("little")
    assert meta.fill_value.tobytes() == bytes.fromhex("000000000000f87f")
    assert not meta.fill_is_null
    assert (meta.attributes, meta.dimension_names, meta.zarr_format) == ({}, None, 2)


def test_stored_array_of_the_specification() -> None:
    document = {
        "chunks": [10, 10], "compressor": {"id": "zlib", "level": 1}, "dtype": "<i4", "fill_value": 42,
        "filters": None, "order": "C", "shape": [20, 20], "zarr_format": 2,
    }  # fmt: skip
    attributes = {"foo": 42, "bar": "apples", "baz": [1, 2, 3, 4]}
    meta = parse(document, attributes)
    assert (meta.fill_value, meta.attributes) == (np.int32(42), attributes)
    assert V2.hold(meta) == {".zattrs": attributes, ".zarray": document}


@pytest.mark.parametrize(("dtype", "native"), [
    ([["r", "|u1"], ["g", "|u1"], ["b", "|u1"]], [("r", "u1"), ("g", "u1"), ("b", "u1")]),
    ([["foo", "<f4"], ["bar", [["baz", "<f4"], ["qux", "<i4"]]]],
     [("foo", "f4"), ("bar", [("baz", "f4"), ("qux", "i4")])]),
    ([["a", ">i2"], ["b", ">f8"]], [("a", ">i2"), ("b", ">f8")]),
], ids=["bytes", "nested", "big"])  # fmt: skip
def test_fields(dtype: Any, native: Any) -> None:
    """The first two are the specification's; a fill value is in the byte order of its field."""
    wanted = np.dtype(native)
    fill = np.arange(wanted.itemsize, dtype="u1").view(wanted)[0]
    document = zarray(dtype=dtype, fill_value=base64.b64encode(fill.tobytes()).decode())
    meta = parse(document)
    assert np.asarray(meta.fill_value).astype(wanted).tobytes() == fill.tobytes()
    assert stored(meta) == document
    chunk = np.full((2, 3), fill)
    assert meta.chain.decode(chunk.tobytes()).astype(wanted).tobytes() == chunk.tobytes()
    if ">" not in str(dtype):
        assert meta.data_type.to_native_dtype() == wanted
    elif "<" not in str(dtype):
        assert meta.fill_value.dtype.isnative


@pytest.mark.parametrize(("dtype", "native", "endian"), [
    ("|b1", "?", None), ("|i1", "i1", None), ("|u1", "u1", None), ("<i2", "i2", "little"),
    (">i2", "i2", "big"), ("<i4", "i4", "little"), (">i4", "i4", "big"), ("<i8", "i8", "little"),
    (">i8", "i8", "big"), ("<u2", "u2", "little"), (">u8", "u8", "big"), ("<f2", "f2", "little"),
    (">f4", "f4", "big"), ("<f8", "f8", "little"), ("<c8", "c8", "little"), (">c16", "c16", "big"),
    ("<m8[s]", "m8[s]", "little"), (">M8[ns]", "M8[ns]", "big"), ("<M8[10us]", "M8[10us]", "little"),
    ("|S12", "S12", None), ("<U3", "U3", "little"), (">U3", "U3", "big"), ("|V5", "V5", None),
    ([["a", ">i2"], ["b", ">f8"]], [("a", "i2"), ("b", "f8")], "big"),
    ([["a", "<i2"], ["b", "|S3"]], [("a", "i2"), ("b", "S3")], "little"),
    # ``>S1`` has no byte order, and yet means something to NCZarr.
    (">S1", "S1", None), ("<S1", "S1", None), (">V3", "V3", None), ("<i1", "i1", None), (">u1", "u1", None),
], ids=str)  # fmt: skip
def test_simple_types_and_their_byte_order(dtype: Any, native: Any, endian: str | None) -> None:
    meta = parse(zarray(dtype=dtype, fill_value=None))
    assert meta.data_type.to_native_dtype() == np.dtype(native)
    assert meta.data_type.to_native_dtype().isnative
    assert (meta.codecs, meta.fill_is_null, meta.ignored) == ((BytesCodec(endian),), True, {})
    for each in (meta, pickle.loads(pickle.dumps(meta))):  # Spelled as it was.
        assert stored(each) == zarray(dtype=dtype, fill_value=None)
    other = replace(meta, data_type=parse_dtype("uint16"), fill_value=np.uint16(0), codecs=(BytesCodec(),))
    assert stored(other)["dtype"] == "<u2"


@pytest.mark.parametrize(("dtype", "value", "bits"), [
    ("<f4", "NaN", "0000c07f"), ("<f4", "Infinity", "0000807f"), ("<f4", "-Infinity", "000080ff"),
    (">f8", -0.0, "0000000000000080"), ("<f8", 5e-324, "0100000000000000"), ("<f2", 0.0999755859375, "662e"),
    ("<c8", ["NaN", -1.5], "0000c07f0000c0bf"), ("|b1", True, "01"), ("<i8", -(2**63), "00" * 7 + "80"),
    ("<u8", 2**64 - 1, "ff" * 8), ("|S3", "/wBh", "ff0061"), ("|V2", "AQI=", "0102"),
    ("<M8[ns]", -(2**63), "00" * 7 + "80"), (">m8[s]", 258, "0201" + "00" * 6),
    ("<U2", "ø", "f8000000" + "00" * 4),
])  # fmt: skip
def test_fill_values(dtype: str, value: Any, bits: str) -> None:
    meta = parse(zarray(dtype=dtype, fill_value=value))
    wanted = np.dtype(dtype).newbyteorder("=")
    assert np.asarray(meta.fill_value, wanted).astype(wanted.newbyteorder("<")).tobytes().hex() == bits
    assert json.dumps(stored(meta)["fill_value"]) == json.dumps(value)  # -0.0 is not 0.0.
    assert not meta.fill_is_null


def test_no_fill_value() -> None:
    for document in (zarray(fill_value=None), zarray(fill_value=...), zarray(fill_value=..., filters=...)):
        meta = parse(document)
        assert (meta.fill_is_null, meta.fill_value, meta.codecs) == (True, 0, (BytesCodec("little"),))
        assert stored(meta) == document
        assert stored(replace(meta, origin=None))["fill_value"] is None


@pytest.mark.parametrize("separator", [..., ".", "/"])
def test_chunk_keys(separator: Any) -> None:
    meta = parse(zarray(dimension_separator=separator))
    sign = "." if separator is ... else separator
    for coords, key in (((), "0"), ((3,), "3"), ((1, 23, 45), sign.join(("1", "23", "45")))):
        assert meta.chunk_key_encoding.key(coords) == key
    assert stored(replace(meta, origin=None))["dimension_separator"] == sign
    scalar = parse(zarray(shape=[], chunks=[]))
    assert (scalar.shape, scalar.chunk_key_encoding.key(())) == ((), "0")
    # Lengths of chunks that some writers store.
    for shape, chunks, grid in (([0, 6], [0, 3], (1, 3)), ([0, 0], [0, 5], (1, 5)), ([4, 6], [9, 9], (9, 9))):
        assert parse(zarray(shape=shape, chunks=chunks)).chunk_grid == RegularGrid(grid)


@pytest.mark.parametrize(("fields", "codecs"), [
    ({}, "bytes"), ({"filters": []}, "bytes"), ({"order": "F"}, "transpose bytes"),
    ({"order": "F", "shape": [4], "chunks": [2]}, "bytes"),
    ({"compressor": ZLIB}, "bytes numcodecs.zlib"), ({"filters": [DELTA]}, "numcodecs.delta bytes"),
    ({"filters": [SHUFFLE], "compressor": ZLIB}, "bytes numcodecs.shuffle numcodecs.zlib"),
    ({"filters": [SHUFFLE, ZLIB]}, "bytes numcodecs.shuffle numcodecs.zlib"),
    ({"order": "F", "filters": [DELTA, SHUFFLE, {"id": "crc32"}], "compressor": ZLIB},
     "transpose numcodecs.delta bytes numcodecs.shuffle numcodecs.crc32 numcodecs.zlib"),
    (OBJECTS | {"fill_value": "", "filters": [TEXT]}, "vlen-utf8"),
    (OBJECTS | {"fill_value": 0, "filters": [TEXT], "compressor": ZLIB}, "vlen-utf8 numcodecs.zlib"),
    (OBJECTS | {"filters": [{"id": "vlen-bytes"}]}, "vlen-bytes"),
    (OBJECTS | {"filters": [JSON2, ZLIB]}, "numcodecs.json2 numcodecs.zlib"),
    (OBJECTS | {"filters": [TEXT], "order": "F"}, "transpose vlen-utf8"),
], ids=lambda value: "-".join(value) if isinstance(value, dict) else "")  # fmt: skip
def test_chains(fields: Any, codecs: str) -> None:
    document = zarray(**fields)
    meta = parse(document)
    assert [codec.name for codec in meta.codecs] == codecs.split()
    assert text(stored(meta)) == text(document)


def test_shuffle_of_netcdf() -> None:
    """Elements of 0 bytes are those of the array; numcodecs would leave them as they are."""
    document = zarray(dtype="<i4", filters=[{"id": "shuffle", "elementsize": 0}], compressor=ZLIB)
    meta = parse(document)
    assert text(stored(meta)) == text(document)
    values = np.arange(6, dtype="<i4").reshape(2, 3) * 1001
    shuffled = values.view("u1").reshape(6, 4).T.tobytes()
    assert meta.chain.decode(zlib.compress(shuffled)).tolist() == values.tolist()
    assert zlib.decompress(meta.chain.encode(values)) == shuffled


@pytest.mark.parametrize(("fields", "field", "found"), [
    ({"filters": [ZLIB, DELTA]}, "filters[1]", "delta"),
    ({"filters": [SHUFFLE, TEXT], "dtype": "|O"}, "filters[1]", "vlen-utf8"),
    ({"filters": [TEXT, TEXT], "dtype": "|O", "fill_value": None}, "filters[1]", "vlen-utf8"),
    ({"filters": [DELTA, {"id": "nope"}]}, "filters[1]", "nope"),
    ({"compressor": {"id": "nope"}}, "compressor", "nope"),
    *(({"dtype": "|O", "filters": [config]}, "filters[0].id", config["id"]) for config in (
        {"id": "pickle", "protocol": 5}, {"id": "msgpack2"}, {"id": "vlen-array", "dtype": "<i4"})),
    ({"dtype": "|O", "compressor": {"id": "pickle", "protocol": 5}}, "compressor.id", "pickle"),
    ({"dtype": "|O"}, "dtype", "|O"), ({"dtype": "|O", "filters": [DELTA]}, "dtype", "|O"),
    ({"dtype": "<f3"}, "dtype", "<f3"), ({"dtype": "<f16"}, "dtype", "<f16"),
], ids=lambda value: value if isinstance(value, str) else "")  # fmt: skip
def test_unknown_extensions(fields: Any, field: str, found: str) -> None:
    error = refused(parse, zarray(**fields), kind=UnknownExtensionError)
    assert str(error.field).startswith(field)
    assert found in str(error)


@pytest.mark.parametrize(("attributes", "extra", "found"), [
    ({"_ARRAY_DIMENSIONS": ["y", "x"]}, {}, ("y", "x")),
    *(({"_ARRAY_DIMENSIONS": names}, {}, None) for names in (["y"], ["y", 1], "yx", None)),
    ({"_nczarr_array": {"dimrefs": ["/y", "/g/x"], "storage": "chunked"}}, {}, ("y", "x")),
    ({"_nczarr_array": {"dimension_references": ["/y", "/g/x"]}}, {}, ("y", "x")),
    ({"_NCZARR_ARRAY": {"dimrefs": ["/y", "x"]}}, {}, ("y", "x")),
    ({}, NETCDF, ("c", "d")), ({}, {"_nczarr_array": {"dimrefs": ["/time", "/lon"]}}, ("time", "lon")),
    *(({}, {"_nczarr_array": wrong}, None)
      for wrong in ("dimrefs", {"dimrefs": ["/time"]}, {"dimrefs": [None, {}]})),
    ({"_ARRAY_DIMENSIONS": ["a", "b"]}, NETCDF, ("a", "b")), ({"_ARRAY_DIMENSIONS": ["a"]}, NETCDF, None),
    ({}, {"note": None, "order": "F"}, None),  # A field that nobody knows is kept.
], ids=range(16))  # fmt: skip
def test_names_of_dimensions(attributes: Any, extra: Any, found: Any) -> None:
    meta = parse(zarray(**extra), {"units": "m", **attributes})
    assert meta.dimension_names == found
    wanted = {"units": "m", **attributes}
    if found is not None:
        wanted.pop("_ARRAY_DIMENSIONS", None)
    assert (meta.attributes, V2.hold(meta)[".zattrs"]) == (wanted, {"units": "m", **attributes})
    named = {} if found is None else {"_ARRAY_DIMENSIONS": list(found)}
    assert V2.hold(replace(meta, origin=None))[".zattrs"] == {**wanted, **named}
    held = V2.hold(replace(meta, attributes={**meta.attributes, "n": 1}))
    assert held[".zattrs"] == {**wanted, **named, "n": 1}
    assert text(held[".zarray"]) == text(zarray(**extra))


def test_names_of_dimensions_elsewhere() -> None:
    # netCDF 4.8 had a document of its own for them.
    assert parse(zarray(), **{".nczarray": {"dimrefs": ["/y", "/x"]}}).dimension_names == ("y", "x")
    assert parse(zarray(), **{".nczarray": {"dimrefs": 5}}).dimension_names is None
    scalar = zarray(shape=[], chunks=[])
    meta = parse(scalar, {"_ARRAY_DIMENSIONS": []})
    assert meta.dimension_names == ()
    same = metadata(dimension_names=("y", "x"), attributes={"_ARRAY_DIMENSIONS": ["y", "x"]})
    for held, names in ((meta, []), (same, ["y", "x"])):
        assert V2.hold(held)[".zattrs"] == {"_ARRAY_DIMENSIONS": names}
    for unnamed in (parse(scalar), metadata(dimension_names=(None, None))):
        assert V2.hold(unnamed)[".zattrs"] == {}


def group(**attributes: Any) -> GroupMetadata:
    return GroupMetadata(attributes=attributes, zarr_format=2)


def test_groups() -> None:
    meta = read({".zgroup": {"zarr_format": 2}}, "")
    assert isinstance(meta, GroupMetadata)
    assert (meta.attributes, meta.consolidated, meta.ignored, meta.zarr_format) == ({}, None, {}, 2)
    netcdf = {"zarr_format": 2, "_NCZARR_GROUP": {"dims": {"y": 4}}}
    held = {".zattrs": {"spam": "ham", "eggs": 42}, ".zgroup": netcdf}
    meta = read(held, "")
    assert (meta.attributes, V2.hold(meta)) == ({"spam": "ham", "eggs": 42}, held)
    assert list(V2.hold(meta)) == [".zattrs", ".zgroup"]  # In which order they are stored.


def test_consolidated_metadata() -> None:
    inner = {"zarr_format": 2, "consolidated_metadata": {"metadata": {}, "kind": "inline"}}
    documents = {
        ".zgroup": {"zarr_format": 2}, ".zattrs": {"title": "x"}, "g/.zgroup": inner, "g/.zattrs": {"a": 1},
        "g/x/.zarray": zarray(), "y/.zarray": zarray(shape=[2, 3]),
        "y/.zattrs": {"_ARRAY_DIMENSIONS": ["a", "b"]}, "y/.nczarray": {}, "lost/.zattrs": {},
        "i/j/k/.zarray": zarray(), "i/.zattrs": {"n": 1}, "y/e/.zarray": zarray(),
    }  # fmt: skip
    found = read(zmetadata(documents), "").consolidated
    assert sorted(found) == ["g", "g/x", "i", "i/j", "i/j/k", "y", "y/e"]  # Groups above are implied.
    assert read(found["y"], "y").dimension_names == ("a", "b")
    assert (read(found["g"], "g").attributes, read(found["g"], "g").ignored) == ({"a": 1}, {})
    assert read(found["i"], "i").attributes == {"n": 1}
    assert [path for path, held in found.items() if is_array(held)] == ["g/x", "y", "i/j/k", "y/e"]
    assert sorted(found.below("g")) == ["x"]


MALFORMED: dict[str, list[Any]] = {
    ".zmetadata.zarr_consolidated_format": [zmetadata({}, version) for version in (2, "1", True, ...)],
    ".zmetadata.metadata": [zmetadata(found) for found in (
        ..., [], {"a/../b/.zarray": {}}, {"a//b/.zarray": {}}, {"/.zarray": {}, "//.zgroup": {}})],
    ".zmetadata.metadata['a/.zarray']": [zmetadata({"a/.zarray": 5})],
    ".zmetadata.metadata['a/.zattrs']": [zmetadata({"a/.zattrs": None})],
    "zarr_format": [{".zgroup": {"zarr_format": 3}}, {".zgroup": {"zarr_format": "2"}}, {".zgroup": {}}],
    ".zattrs": [{".zgroup": {"zarr_format": 2}, ".zattrs": []}, {".zarray": zarray(), ".zattrs": None}],
}  # fmt: skip


def test_malformed_groups() -> None:
    for field, held in ((field, each) for field, every in MALFORMED.items() for each in every):
        refused(read, held, field=field)


def test_consolidated_documents_are_written() -> None:
    array = parse(zarray(), {"_ARRAY_DIMENSIONS": ["y", "x"]})
    below = {"g/x": V2.hold(array), "g": {**V2.hold(group(a=1)), ".zmetadata": {}}}
    stored = V2.documents(group(title="x"), "top", below)
    assert list(stored) == ["top/.zattrs", "top/.zgroup", "top/.zmetadata"]
    assert stored["top/.zmetadata"] == {
        "zarr_consolidated_format": 1,
        "metadata": {
            ".zgroup": {"zarr_format": 2}, ".zattrs": {"title": "x"}, "g/.zgroup": {"zarr_format": 2},
            "g/.zattrs": {"a": 1}, "g/x/.zarray": zarray(), "g/x/.zattrs": {"_ARRAY_DIMENSIONS": ["y", "x"]},
        },
    }  # fmt: skip
    held = {key.rpartition("/")[2]: document for key, document in stored.items()}
    assert sorted(read(held, "top").consolidated) == ["g", "g/x"]
    # Those that are not valid are not updated.
    whole = V2.documents(group(), "", {"g": V2.hold(group())})[".zmetadata"]
    assert V2.update_consolidated(whole, "", None) is None
    for other in ({}, {"zarr_consolidated_format": 1}, {"zarr_consolidated_format": 2, "metadata": {}}):
        assert V2.update_consolidated(other, "g", None) is None


def test_keys() -> None:
    assert V2.keys("a/b").documents[:4] == ("a/b/.zarray", "a/b/.zgroup", "a/b/.zattrs", "a/b/.zmetadata")
    assert V2.keys("").defining == (".zarray", ".zgroup")
    assert (V2.keys("a").array, V2.keys("a").chunks, V2.keys("a").listing) == ("a/.zarray", "a/", "a/")
    assert (V2.keys("").prefixes, V2.keys("").consolidated) == (("",), ".zmetadata")
    assert V2.keys("a").child_names(["a/.zgroup", "a/0"], ["a/b/", "a/c d/"]) == (set(), {"b", "c d"})
    assert pickle.loads(pickle.dumps(V2)) == V2 == V2Format()
    kinds = {".zarray": "array", ".zgroup": "group"}
    netcdf = (".nczarr", ".nczarray", ".nczgroup", ".nczattr", ".nczattrs", ".nczvar")
    for name in (".zarray", ".zgroup", ".zattrs", ".zmetadata", *netcdf):
        for key, path in ((name, ""), (f"a/b/{name}", "a/b")):
            assert V2.place(key) == DocumentKey(path, kinds.get(name, "other"))  # type: ignore[arg-type]
            assert key in V2.keys(path).documents
    for key in ("0", "a/0.0", "zarr.json", "a/zarray", ".zarray/0", "x.zarray", ".zarrays"):
        assert V2.place(key) is None
    for name in ("a", "__x", "...", "é", "0", "0.0", ".hidden", "a b"):
        V2.check_name(name, name)
    wrong = ("", ".", "..", "a\\b", ".zarray", ".zgroup", ".zattrs", ".zmetadata", ".nczarray", "zarr.json")
    refuses(lambda name: V2.check_name(name, f"x/{name}"), wrong, InvalidKeyError, "accepted")


class Nameless(Int16):
    _zarr_v3_name = "example.nameless"

    def to_json(self, zarr_format: Any) -> Any:
        if zarr_format == 2:
            raise TypeError("no name")
        return super().to_json(zarr_format)


def float_of_bits(bits: int) -> dict[str, Any]:
    value = np.array([bits], "u4").view("f4")[0]
    return {"data_type": parse_dtype("float32"), "codecs": (BytesCodec(),), "fill_value": value}


def in_three_dimensions(*orders: tuple[int, ...]) -> dict[str, Any]:
    codecs = (*map(TransposeCodec, orders), BytesCodec())
    return {"shape": (4, 6, 2), "chunk_grid": RegularGrid((2, 3, 1)), "codecs": codecs}


LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
SHARDING = {"chunk_shape": [1, 1], "codecs": [LITTLE], "index_codecs": [LITTLE]}
UNSAYABLE: list[tuple[str, list[dict[str, Any]]]] = [
    ("chunk_grid", [{"chunk_grid": grid_for([[1, 3], 3], (4, 6))}]),
    ("chunk_key_encoding", [{"chunk_key_encoding": ChunkKeyEncoding()}]),
    ("data_type", [{"data_type": Nameless()}]),
    ("codecs[0]", [
        {"codecs": (parse_codec({"name": "sharding_indexed", "configuration": SHARDING}),)},
        *(in_three_dimensions(order) for order in ((0, 2, 1), (1, 0, 2), (2, 0, 1))),
    ]),
    ("codecs[1]", [{"codecs": (TransposeCodec((1, 0)), TransposeCodec((1, 0)), BytesCodec())}]),
    ("dimension_names", [{"dimension_names": ("y", None)}]),
    ("attributes._ARRAY_DIMENSIONS",
     [{"dimension_names": ("y", "x"), "attributes": {"_ARRAY_DIMENSIONS": ["a", "b"]}}]),
    ("fill_value", [float_of_bits(0xFFC00000), float_of_bits(0x7FC00001)]),
]  # fmt: skip


@pytest.mark.parametrize(("field", "all_changes"), UNSAYABLE, ids=[field for field, _ in UNSAYABLE])
def test_what_cannot_be_said(field: str, all_changes: list[dict[str, Any]]) -> None:
    for changes in all_changes:
        assert "format 2" in str(refused(stored, metadata(**changes), field=field))


def test_codecs_and_orders_that_version_2_has() -> None:
    error = refused(stored, metadata(codecs=(parse_codec("packbits"),)), field="codecs[0]")
    assert error.accepted == "'numcodecs.packbits'"  # What a codec of version 3 is called here.
    for order, word, codec in (
        ((0, 1, 2), "C", BytesCodec("little")), ((2, 1, 0), "F", TransposeCodec((2, 1, 0))),
    ):  # fmt: skip
        document = stored(metadata(**in_three_dimensions(order)))
        assert (document["order"], parse(document).codecs[0]) == (word, codec)


@pytest.mark.parametrize("codecs", [["crc32c"], ["gzip", "crc32c"], ["zstd"], ["gzip", "zstd"], []])
def test_all_bytes_codecs_but_the_last_are_filters(codecs: list[str]) -> None:
    configurations: dict[str, Any] = {"gzip": {"level": 5}, "zstd": {"level": 3, "checksum": False}}
    chain = [parse_codec({"name": name, "configuration": configurations.get(name, {})}) for name in codecs]
    document = stored(metadata(codecs=(BytesCodec("big"), *chain)))
    assert [filter_["id"] for filter_ in document["filters"] or []] == codecs[:-1]
    assert (document["compressor"] or {}).get("id") == (codecs[-1] if codecs else None)
    assert document["dtype"] == ">i2"
    assert [codec.name.removeprefix("numcodecs.") for codec in parse(document).codecs] == ["bytes", *codecs]


INVALID: list[tuple[str, str, str, list[Any]]] = [
    # field, field of the error, part of what would be accepted, values
    ("zarr_format", "zarr_format", "2", [..., 1, 3, "2", 2.0, True, None]),
    ("shape", "shape", "array", [..., 4, None, "46", {"0": 4}]),
    ("shape", "shape[0]", "integer", [[True, 6]]),
    ("shape", "shape[1]", "integer", [[4, "6"], [4, 6.0], [4, None]]),
    ("shape", "shape[1]", "from 0 to 2^63 - 1", [[4, -1], [4, 2**63]]), ("shape", "shape", "64", [[1] * 65]),
    ("chunks", "chunks", "array", [..., None, True, False, 2]),
    ("chunks", "chunks", "2 integers", [[2], [2, 3, 1]]),
    ("chunks", "chunks[1]", "integer", [[2, "3"], [2, 3.0], [2, True]]),
    ("chunks", "chunks[1]", "from 1", [[2, 0], [2, -3], [2, 2**63]]),
    ("dtype", "dtype", "string", [..., None, 5, {"name": "int16"}]),
    ("dtype", "dtype", "",
     ["", "int17", "<i3", "<U99999999999", "<M8[parsec]", [], [["a"]], [["a", "<i2"], ["a", "<i2"]],
      [["a", "|O"]], [["a", "<i2", [-1]]], [[1, "<i2"]], [["a", "<f4"], ["b", "<f4", [2, 2]]],
      [["a", "<i2"], ["b", ">f8"]]]),
    ("compressor", "compressor", "'id'", [..., "zlib", [], {}, {"id": None}, {"name": "zlib"}]),
    ("compressor", "compressor.level", "9", [{"id": "zlib", "level": value} for value in (99, "1")]),
    ("compressor", "compressor.cname", "'lz4'", [{"id": "blosc", "cname": "x", "clevel": 5, "shuffle": 1}]),
    ("fill_value", "fill_value", "", ["x", 0.5, 2**15, [0], {}, True, "NaN"]),
    ("order", "order", "'C', 'F'", [..., None, "A", "c", ["C"]]),
    ("filters", "filters", "array", [{}, "delta", False]),
    ("filters", "filters[0]", "'id'", [[None], [{"id": 5}]]),
    ("filters", "filters[1]", "'id'", [[DELTA, "zlib"]]),
    ("filters", "filters[0]", "",
     [[{"id": "delta", "dtype": "<f8"}], [{"id": "delta", "dtype": 5}], [TEXT]]),
    ("dimension_separator", "dimension_separator", "'.', '/'", [None, "", "-", ["."]]),
]  # fmt: skip


@pytest.mark.parametrize("field", dict.fromkeys(field for field, *_ in INVALID))
def test_malformed_field(field: str) -> None:
    for place, accepted, values in (case for of, *case in INVALID if of == field):
        for value in values:
            error = refused(parse, zarray(**{field: value}))
            assert error.field == place if accepted else str(error.field).startswith(place)
            assert value is ... or accepted in str(error.accepted)


AnyArray = np.ndarray[Any, Any]
SHAPE = (5, 7)
WORDS = np.array(
    [[f"{i}{'é' if j % 2 else 'x'}{j}" * (1 + (i * j) % 3) if (i + j) % 4 else "" for j in range(7)]
     for i in range(5)], dtype=object
)  # fmt: skip
LABELS = sorted({*WORDS.ravel()} - {""})
OCTETS = np.fromiter((word.encode() for word in WORDS.ravel()), object, WORDS.size).reshape(SHAPE)
LONGEST = max(map(len, LABELS))

# Values, the dtype that the document names, the filter, and the data type to ask for here.
KINDS: dict[str, tuple[AnyArray, str, Any, str]] = {
    "vlen-utf8": (WORDS, "|O", numcodecs.VLenUTF8(), "string"),
    "vlen-bytes": (OCTETS, "|O", numcodecs.VLenBytes(), "bytes"),
    "json2": (WORDS, "|O", numcodecs.JSON(), "string"),
    "vlen-utf8 fixed": (WORDS.astype(f"<U{LONGEST}"), f"<U{LONGEST}", numcodecs.VLenUTF8(), f"<U{LONGEST}"),
    "vlen-bytes fixed": (OCTETS.astype("S99"), "|S99", numcodecs.VLenBytes(), "|S99"),
}  # fmt: skip
COMPRESSORS: dict[str, Any] = {"none": None, "zlib": numcodecs.Zlib(1)}


def document_of(kind: str, compressor: str, order: str, **changes: Any) -> dict[str, Any]:
    _, dtype, filter_, _ = KINDS[kind]
    packed = COMPRESSORS[compressor] and COMPRESSORS[compressor].get_config()
    layout = {"shape": list(SHAPE), "chunks": list(SHAPE), "dtype": dtype, "order": order, **changes}
    return zarray(**layout, fill_value=None, filters=[filter_.get_config()], compressor=packed)


def by_numcodecs(kind: str, compressor: str, order: str) -> dict[str, bytes]:
    """The keys and values of an array, as zarr-python 2 stores it."""
    values = KINDS[kind][0]
    # What zarr-python 3.0 gave the codecs of objects.
    data: Any = np.asarray(values.astype(object), order=order)  # type: ignore[call-overload]
    for codec in (KINDS[kind][2], COMPRESSORS[compressor]):
        data = data if codec is None else codec.encode(data)
    document = document_of(kind, compressor, order)
    return {".zarray": json.dumps(document).encode(), "0.0": bytes(numcodecs.compat.ensure_bytes(data))}


def check(found: Any, values: AnyArray) -> None:
    assert (np.asarray(found).shape, np.asarray(found).tolist()) == (values.shape, values.tolist())


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("compressor", COMPRESSORS)
@pytest.mark.parametrize("kind", KINDS)
def test_chunks_of_zarr_python_2(kind: str, compressor: str, order: Any) -> None:
    stored = by_numcodecs(kind, compressor, order)
    store = xzarr3.MemoryStore(stored)
    values = KINDS[kind][0]
    array = xzarr3.open_array(store, mode="r+")
    check(array[...], values)
    check(array[1:4, ::2], values[1:4, ::2])
    # What is stored again is the same, and so is the document.
    array[...] = array[...]
    again = contents(store)
    assert (again.keys(), again["0.0"]) == (stored.keys(), stored["0.0"])
    assert json.loads(stored[".zarray"]).items() <= V2.hold(array.metadata)[".zarray"].items()
    # A copy in version 3 does without codecs that it lacks.
    copied: Any = xzarr3.copy(array, xzarr3.MemoryStore(), zarr_format=3)
    check(copied[...], values)
    assert copied.dtype == array.dtype
    names = ["transpose"] * (order == "F" and kind != "json2")
    names += [default_serializer(array.metadata.data_type).name]
    names += ["numcodecs.zlib"] * (compressor == "zlib")
    assert [codec.name for codec in copied.metadata.codecs] == names
    if not kind.endswith(" fixed") and (kind, order) != ("json2", "F"):  # json2 knows one order.
        made = xzarr3.create_array(
            xzarr3.MemoryStore(), data=values, chunks=SHAPE, dtype=KINDS[kind][3], zarr_format=2, order=order,
            compressors=COMPRESSORS[compressor], serializer=KINDS[kind][2],
        )  # fmt: skip
        assert contents(made.store)["0.0"] == stored["0.0"]
        assert V2.hold(made.metadata)[".zarray"]["filters"][0]["id"] == KINDS[kind][2].codec_id
    same: Any = xzarr3.copy(array, xzarr3.MemoryStore(), zarr_format=2)
    assert same.metadata.codecs == array.metadata.codecs
    check(same[...], values)


def test_an_order_that_json2_cannot_have() -> None:
    options = {"chunks": SHAPE, "dtype": "string", "zarr_format": 2, "order": "F"}
    make = partial(xzarr3.create_array, shape=SHAPE, serializer=numcodecs.JSON(), **options)
    (error,) = refuses(make, [xzarr3.MemoryStore()], MetadataError, "order 'C' with the codec 'json2'")
    assert error.field == "codecs[0]"


@pytest.mark.parametrize(("kind", "item"), [
    ("vlen-utf8 fixed", "x" * (LONGEST + 1)), ("vlen-bytes fixed", b"x" * 100)])  # fmt: skip
def test_elements_longer_than_the_dtype(kind: str, item: Any) -> None:
    document, arrays = document_of(kind, "none", "C", shape=[2], chunks=[2]), []
    for value in (item[1:], item):
        chunk = bytes(KINDS[kind][2].encode(np.array([value, value[:1]], object)))
        values = {".zarray": json.dumps(document).encode(), "0": chunk}
        arrays.append(xzarr3.open_array(xzarr3.MemoryStore(values)))
    assert arrays[0][...].tolist() == [item[1:], item[:1]]
    refuses(arrays[1].get, [...], xzarr3.ChunkDecodeError, "element of length")
