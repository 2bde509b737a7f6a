"""The draft of May 2022: keys and documents as its text has them, by hand."""

import json
import pickle
import warnings
from dataclasses import replace
from typing import Any

import _documents
import numpy as np
import pytest
from _documents import ENTRY_POINT, OPTIONAL, SHARDS, TIMES, draft_array, draft_codec, draft_grid, refused
from _strategies import same_bits
from _things import refuses

import xzarr3
from xzarr3 import MemoryStore, MetadataError, NodeNotFoundError, UnknownExtensionError
from xzarr3.codecs import BloscCodec, BytesCodec, GzipCodec, ShardingCodec, TransposeCodec, ZstdCodec
from xzarr3.dtypes import parse_dtype
from xzarr3.errors import FallbackWarning
from xzarr3.formats import DRAFT, DraftFormat, documents
from xzarr3.formats.base import DocumentKey
from xzarr3.formats.draft.arrays import fallback_warning
from xzarr3.grid import RegularGrid, grid_for
from xzarr3.model.chunk_keys import ChunkKeyEncoding, DraftChunkKeyEncoding
from xzarr3.model.metadata import ArrayMetadata, GroupMetadata

LITTLE, REVERSE = BytesCodec("little"), TransposeCodec((1, 0))
GZIP, BIG = draft_codec("gzip", level=1), draft_codec("endian", endian="big")
TRANSPOSE = draft_codec("transpose", order="F")
BLOSC = draft_codec("blosc", cname="lz4", clevel=1, shuffle=2, blocksize=0)
changed, document, CODEC, URI = _documents.changed, _documents.document, _documents.CODEC, _documents.URI
THING = {"extension": "http://x.org/t", "type": "text", "fallback": "r32"}
"""A data type that nobody knows."""
EXAMPLE = {
    "shape": [10000, 1000], "dimension_names": ["rows", "columns"], "data_type": "<f8",
    "chunk_grid": {"type": "regular", "chunk_shape": [1000, 100], "separator": "/"},
    "chunk_memory_layout": "C", "codecs": [GZIP], "fill_value": "NaN", "extensions": [],
    "attributes": {"foo": 42, "bar": "apples", "baz": [1, 2, 3, 4]},
}  # fmt: skip
"""The first example of the text."""
VALUES = np.arange(24, dtype="<i4").reshape(4, 6)
INNER = {"meta/e/in.group.json", "meta/e/in/a.array.json", "data/e/in/a/c0"}
EXPLICIT = {"meta/e.group.json", "meta/e/a.array.json", "data/e/a/c0"} | INNER
IMPLICIT = {"meta/i/deep/a.array.json", "data/i/deep/a/c0"}
TOP = {"meta/top.array.json", "data/top/c0"}
ALL = {"zarr.json", "meta/topmost.array.json", "data/topmost/c0"} | EXPLICIT | IMPLICIT | TOP


def line(data_type: Any, fill_value: Any, **changes: Any) -> dict[str, Any]:
    named = {"data_type": data_type, "fill_value": fill_value, **changes}
    return draft_array(shape=[3], chunk_grid=draft_grid([2]), **named)


def parse(document: Any, format: DraftFormat = DRAFT) -> Any:
    return format.parse({"array": documents.decode(json.dumps(document).encode())}, "a/b")


def written(meta: Any, format: DraftFormat = DRAFT) -> dict[str, Any]:
    return documents.decode(documents.encode(format.hold(meta, "a/b")["array"]))


def kept(document: Any, format: DraftFormat = DRAFT) -> Any:
    """What a document says, after a check that it is written as it was."""
    meta = parse(document, format)
    assert written(meta, format) == document
    return meta


def same(left: ArrayMetadata, right: ArrayMetadata) -> bool:
    plain = ("shape", "data_type", "chunk_grid", "chunk_key_encoding", "codecs", "attributes", "fill_is_null",
             "dimension_names", "storage_transformers", "zarr_format")  # fmt: skip
    fills = (left.data_type.bits(left.fill_value), right.data_type.bits(right.fill_value))
    return fills[0] == fills[1] and all(getattr(left, name) == getattr(right, name) for name in plain)


@pytest.mark.parametrize("path", ["", "foo", "foo/bar", "é/a.array"])
@pytest.mark.parametrize("suffix", [".json", ".txt", "", "-x", ".meta.json"])
def test_keys_of_documents(path: str, suffix: str) -> None:
    encoding = {"type": "json", "metadata_key_suffix": suffix}
    format = DraftFormat.from_entry_point({**ENTRY_POINT, "metadata_encoding": encoding})
    assert format.hierarchy_documents()["zarr.json"]["metadata_encoding"] == encoding
    array, group = (f"meta/{path}.{kind}{suffix}".replace("/.", "/") for kind in ("array", "group"))
    assert format.keys(path).documents == (array, group)
    assert (set(format.keys(path).defining), format.keys(path).array) == ({array, group}, array)
    assert format.place(array) == DocumentKey(path, "array")
    assert format.place(group) == DocumentKey(path, "group")
    document = {"attributes": {"a": 1}}
    assert format.documents(GroupMetadata(attributes={"a": 1}), path) == {group: document}
    above, _, name = path.rpartition("/")
    assert format.keys(above).child_names([group], []) == ({name} - {""}, set())


def test_what_is_no_key_or_name() -> None:
    for name in ("zarr.json", "array.json", "é", "a.b", "_x", "c0", "data", "meta", "root"):
        DRAFT.check_name(name, name)
    names = (".", "..", "...", "__x", "__")
    refuses(lambda name: DRAFT.check_name(name, name), names, xzarr3.InvalidKeyError, "not a name for a node")
    for key in (
        "", "zarr.json", "meta", "meta/", "meta/foo", "meta/foo.json", "meta/foo/array.json",
        "meta/.array.json", "meta/foo/.group.json", "meta//foo.array.json", "data/foo.array.json",
        "data/foo/c0/0", "foo.array.json", "meta/foo.array.json.bak", "metafoo.array.json",
        "meta/foo.array.txt", "meta/../foo.array.json", "meta/foo/...group.json",
    ):  # fmt: skip
        assert DRAFT.place(key) is None, key


def test_keys_of_chunks() -> None:
    for path, coords, key in [
        ("foo/baz", (1, 0), "data/foo/baz/c1/0"), ("foo/baz", (0, 0), "data/foo/baz/c0/0"),
        ("", (0, 1), "data/c0/1"), ("a", (1, 23, 45), "data/a/c1/23/45"), ("a", (7,), "data/a/c7"),
        ("a", (), "data/a/c"),
    ]:  # fmt: skip
        assert DRAFT.keys(path).chunks + DRAFT.chunk_key_encoding.key(coords) == key
        found = DRAFT.chunk_key_encoding.coords(key[len(DRAFT.keys(path).chunks) :], len(coords))
        assert found == coords
    assert DraftChunkKeyEncoding(separator=".").key((1, 23, 45)) == "c1.23.45"
    assert DraftChunkKeyEncoding(separator=".").coords("c1.23", 2) == (1, 23)
    for key in ("c/0/0", "0/0", "c0", "c0/0/0", "c00/0", "c0/-1", "c0/", "c0.0", "d0/0", "cc0/0"):
        assert DraftChunkKeyEncoding().coords(key, 2) is None
    # No other format has them.
    refuses(ChunkKeyEncoding, ["draft"], UnknownExtensionError)
    refuses(DraftChunkKeyEncoding.to_json, [DraftChunkKeyEncoding()], MetadataError, "only the draft")
    refuses(lambda sign: DraftChunkKeyEncoding(separator=sign), ["-"], MetadataError, "separator")
    assert DraftChunkKeyEncoding() != ChunkKeyEncoding()
    assert DraftChunkKeyEncoding() == pickle.loads(pickle.dumps(DraftChunkKeyEncoding()))


def test_prefixes_and_children() -> None:
    assert DRAFT.keys("foo/bar").prefixes == ("meta/foo/bar/", "data/foo/bar/")
    assert DRAFT.keys("").prefixes == ("meta/", "data/")
    assert [DRAFT.keys(path).listing for path in ("foo", "")] == ["meta/foo/", "meta/"]
    # A group at /foo/bar and an array at /foo/baz/qux: /foo has an explicit and an implicit group.
    names = ("array.json", "group.json", "README", "x.array", "y.json", ".array.json")
    none = [f"meta/{name}" for name in names]
    for path, keys, prefixes, names in (
        ("foo", ["meta/foo/bar.group.json"], ["meta/foo/baz/"], {"bar", "baz"}),
        ("", [], ["meta/foo/"], {"foo"}),
        ("", ["meta/a.array.json", "meta/a.group.json"], ["meta/a/"], {"a"}),
        ("", ["meta/a.array.json.group.json"], [], {"a.array.json"}),
        ("", none, ["meta/__zarr/", "meta/../", "meta/./"], set()),
    ):
        assert DRAFT.keys(path).child_names(keys, prefixes) == (names, set())


@pytest.mark.parametrize("entry_point", [
    ENTRY_POINT, {**ENTRY_POINT, "extensions": [OPTIONAL]},
    *({**ENTRY_POINT, "zarr_format": uri} for uri in (URI.replace("https", "http"), _documents.EARLY_URI)),
    {**ENTRY_POINT, "zarr_format": URI[:-1] + "7", "news": [1]},
], ids=["text", "extended", "http", "early", "later"])  # fmt: skip
def test_entry_points(entry_point: dict[str, Any]) -> None:
    assert DraftFormat.is_entry_point(entry_point)
    format = DraftFormat.from_entry_point(entry_point)
    assert format.keys("a").documents == DRAFT.keys("a").documents
    assert format.hierarchy_documents() == {"zarr.json": entry_point}
    assert (format == DRAFT) is (entry_point == ENTRY_POINT)
    if "news" in entry_point:
        # Names of a later minor version are passed over and kept, and are not those of this one.
        held = {"group": {"attributes": {}, "news": 3}}
        group = format.parse(held, "a")
        assert format.hold(group, "a") == held
        for each in (kept(draft_array(news={"a": 1}), format), group):
            refused(DRAFT.hold, each, "a/b", field="news")


def test_what_is_no_entry_point() -> None:
    version_3 = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    for other in (
        version_3, {"zarr_format": 3, "node_type": "array"}, {"zarr_format": 2}, {"zarr_format": "3"}, {},
        {**version_3, "metadata_encoding": {}},
    ):  # fmt: skip
        assert not DraftFormat.is_entry_point(other)
    assert DraftFormat.is_entry_point({"zarr_format": 3, "metadata_encoding": {}})  # It is then refused.
    # As those of zarr-python 2, by its name.
    assert DraftFormat.is_entry_point(_documents.EARLY_ENTRY_POINT)
    words = r"(?s)experimental version 3 of zarr-python 2.*zarr-python 2\.18"
    refuses(DraftFormat.from_entry_point, [_documents.EARLY_ENTRY_POINT], UnknownExtensionError, words)


BAD_ENTRY_POINTS: dict[str, list[Any]] = {
    "zarr_format": [
        ..., 3, "https://purl.org/zarr/spec/core/4.0", "https://purl.org/zarr/spec/core/3",
        "https://example.org/core/3.0", URI + "\n",
    ],
    "metadata_encoding": [..., 1, None], "metadata_encoding.type": [{"metadata_key_suffix": ".json"}],
    "metadata_encoding.metadata_key_suffix": [{"type": "json", "metadata_key_suffix": n} for n in (1, "/..")],
    "extensions": [..., {}], "extensions[0]": [[1]],
    "extensions[0].extension": [[{**OPTIONAL, "extension": 1}]],
    "extensions[0].must_understand": [[{"extension": "http://x.org"}]],
    "extensions[1].must_understand": [[OPTIONAL, {**OPTIONAL, "must_understand": "false"}]],
}  # fmt: skip
UNKNOWN_ENTRY_POINTS: dict[str, list[Any]] = {
    "metadata_encoding": [
        {"type": "yaml", "metadata_key_suffix": ".yml"}, "https://x.org/yaml",
        {"extension": "https://x.org/y", "type": "json", "metadata_key_suffix": ".j"},
    ],
    "metadata_encoding.x": [{"type": "json", "x": 1}], "metadata_key_suffix": [".json"],
    "extensions[0]": [[{**OPTIONAL, "must_understand": True}]],
    "extensions[0].more": [[{**OPTIONAL, "more": 1}]], "unknown": [1],
}  # fmt: skip


@pytest.mark.parametrize(("table", "kind"), [
    (BAD_ENTRY_POINTS, MetadataError), (UNKNOWN_ENTRY_POINTS, UnknownExtensionError)])  # fmt: skip
def test_entry_points_that_are_refused(table: dict[str, list[Any]], kind: type[MetadataError]) -> None:
    for place, values in table.items():
        for value in values:
            document = changed(ENTRY_POINT, **{place.partition(".")[0].partition("[")[0]: value})
            refused(DraftFormat.from_entry_point, document, field=place, kind=kind, path="")


def test_the_group_of_the_text() -> None:
    document = {"attributes": {"spam": "ham", "eggs": 42}}
    meta = DRAFT.parse({"group": document}, "a")
    assert isinstance(meta, GroupMetadata)
    assert (meta.attributes, meta.zarr_format) == (document["attributes"], "3-draft")
    assert DRAFT.documents(meta, "foo/bar") == {"meta/foo/bar.group.json": document}
    for wrong in ({}, {"attributes": []}):
        refused(DRAFT.parse, {"group": wrong}, "a/b", field="attributes")
    for name in ("zarr_format", "extensions"):
        held = {"group": {"attributes": {}, name: 3}}
        refused(DRAFT.parse, held, "a/b", field=name, kind=UnknownExtensionError)


def test_the_array_of_the_text() -> None:
    meta = kept(EXAMPLE)  # With the data type that this state of the text has.
    assert (meta.shape, meta.dimension_names) == ((10000, 1000), ("rows", "columns"))
    assert (meta.data_type, meta.chunk_grid) == (parse_dtype("float64"), RegularGrid((1000, 100)))
    assert (meta.chunk_key_encoding, meta.codecs) == (DraftChunkKeyEncoding(), (LITTLE, GzipCodec(1)))
    assert np.isnan(meta.fill_value)
    assert meta.attributes == {"foo": 42, "bar": "apples", "baz": [1, 2, 3, 4]}
    assert meta.zarr_format == "3-draft"
    today = kept({**EXAMPLE, "data_type": "float64"})
    assert same(today, meta)
    assert meta.ignored == {}


def test_a_new_document_in_full() -> None:
    meta = ArrayMetadata(
        shape=(4, 6), data_type=parse_dtype("float32"), chunk_grid=RegularGrid((2, 3)),
        chunk_key_encoding=DraftChunkKeyEncoding(separator="."), fill_value=np.float32("inf"),
        codecs=(REVERSE, BytesCodec("big"), GzipCodec(4)), attributes={"units": "m"},
        dimension_names=("y", None), zarr_format="3-draft",
    )  # fmt: skip
    assert DRAFT.documents(meta, "a/b") == {"meta/a/b.array.json": {
        "shape": [4, 6], "dimension_names": ["y", None], "data_type": "float32",
        "chunk_grid": {"type": "regular", "chunk_shape": [2, 3], "separator": "."},
        "chunk_memory_layout": "F", "codecs": [BIG, draft_codec("gzip", level=4)],
        "fill_value": "+Infinity", "extensions": [], "attributes": {"units": "m"},
    }}  # fmt: skip
    assert same(parse(written(meta)), meta)


@pytest.mark.parametrize(("name", "dtype", "endian"), [
    ("|b1", "bool", None), ("b1", "bool", None), ("i1", "int8", None), ("|u1", "uint8", None),
    ("<i2", "int16", "little"), (">i2", "int16", "big"), ("<u8", "uint64", "little"),
    (">u4", "uint32", "big"), ("<f2", "float16", "little"), (">f8", "float64", "big"),
    ("<c8", "complex64", "little"), (">c16", "complex128", "big"), ("r8", "V1", None),
    ("r24", "V3", None), ("r128", "V16", None),
])  # fmt: skip
def test_names_of_data_types(name: str, dtype: str, endian: str | None) -> None:
    zeros = "0x" + "00" * np.dtype(dtype).itemsize
    fill = {"b": False, "c": zeros, "V": zeros}.get(np.dtype(dtype).kind, 0)
    meta = kept(line(name, fill, codecs=[GZIP]))
    assert meta.data_type.to_native_dtype() == np.dtype(dtype)
    assert meta.codecs == (BytesCodec(endian), GzipCodec(1))
    # A codec that says the order says it for all names.
    meta = parse(line(name, fill, codecs=[draft_codec("endian", endian="little")]))
    assert meta.codecs == (BytesCodec(endian and "little"),)


def test_data_types_that_are_refused() -> None:
    thing = {"extension": "http://x.org/t", "type": "x"}
    for name in (
        "i2", "f8", "<i1", "|i2", "=f8", "<q4", "float128", "int", "r7", "r0", "r", "r-8", "r8 ",
        "r99999999999", "", "<M8[ns]", "M8[ns]", "|S3", "<U4", "|O", "string", "INT8", None, 1, True, [],
        ["int8"], {}, {"name": "int8"}, {"type": "int8"}, {"extension": "http://x.org/t"},
        {"extension": 1, "type": "int8"}, thing, {**thing, "fallback": "int8", "more": 1},
        *({**thing, "fallback": fallback} for fallback in (None, [], ["y", None, 3, {}])),
        *({"extension": TIMES, "type": name} for name in ("<M8", "M8[ns]", "<M8[10us]", "<M8[generic]", 1)),
    ):  # fmt: skip
        assert str(refused(parse, line(name, 0)).field).startswith("data_type")


@pytest.mark.parametrize("unit", ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as"])
@pytest.mark.parametrize("kind", ["M", "m"])
def test_times(kind: str, unit: str) -> None:
    dtype = np.dtype(f"{kind}8[{unit}]")
    for order, endian in (("<", "little"), (">", "big")):
        named = {"extension": TIMES, "type": f"{order}{kind}8[{unit}]", "fallback": f"{order}i8"}
        meta = kept(line(named, -5))
        assert (meta.data_type.to_native_dtype(), meta.codecs) == (dtype, (BytesCodec(endian),))
        assert same_bits(meta.fill_value, np.array(-5, dtype)[()])
    for value in (None, "NaT", -(2**63)):
        assert np.isnat(parse(line({"extension": TIMES, "type": f"<{kind}8[{unit}]"}, value)).fill_value)
    new = ArrayMetadata(
        shape=(3,), data_type=parse_dtype(dtype), chunk_grid=RegularGrid((2,)), codecs=(BytesCodec("big"),),
        chunk_key_encoding=DraftChunkKeyEncoding(), fill_value=dtype.type("NaT", unit), zarr_format="3-draft",
    )  # fmt: skip
    document = written(new)
    assert document["data_type"] == {"extension": TIMES, "type": f"<{kind}8[{unit}]", "fallback": "int64"}
    assert (document["fill_value"], document["codecs"]) == (-(2**63), [BIG])
    assert same(parse(document), new)


@pytest.mark.parametrize(("fallback", "dtype", "fill"), [
    ("int32", "int32", 0), ("<i4", "int32", 0), (["r32"], "V4", None), (["date", "r32", "int32"], "V4", None),
    ([{"extension": "http://x.org/u", "type": "y"}, "float32"], "float32", 1.5),
    ([{"extension": TIMES, "type": "<M8[D]"}, "int64"], "M8[D]", None),
], ids=range(6))  # fmt: skip
def test_the_first_known_fallback_is_used_with_a_warning(fallback: Any, dtype: str, fill: Any) -> None:
    named = {**THING, "type": {"of": "thing"}, "fallback": fallback}
    document = line(named, fill, attributes={"a": 1})
    meta = parse(document)
    message = fallback_warning(meta, "a/b")
    for part in ("'/a/b'", "'http://x.org/t'", repr({"of": "thing"}), f"'{meta.data_type.name}'"):
        assert part in message
    assert meta.data_type.to_native_dtype() == np.dtype(dtype)
    assert meta.fill_is_null == (fill is None and dtype != "M8[D]")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert written(meta) == document  # A rewritten document still says what the data are.
        assert same(DRAFT.parse(DRAFT.hold(meta), "a/b"), meta)
    assert meta.ignored == {"data_type": named}
    other = parse(line("int8", 0))
    storage = {name: getattr(other, name) for name in ("data_type", "fill_value", "fill_is_null", "codecs")}
    mixed = replace(meta, **storage)
    assert written(mixed)["data_type"] == "int8"  # A fallback does not outlive its array.


def test_a_fill_value_that_the_fallback_lacks() -> None:
    meta = parse(line(THING, "none"))
    assert "its fill value is not one" in fallback_warning(meta, "a/b")
    assert meta.fill_is_null
    assert (meta.fill_value.tobytes(), written(meta)["fill_value"]) == (bytes(4), "none")
    meta = parse(line("float64", float("nan")))  # Literals of older writers.
    assert np.isnan(written(meta)["fill_value"])
    assert written(replace(meta, origin=None))["fill_value"] == "NaN"


FILLS: list[tuple[str, Any, Any]] = [
    ("bool", True, np.bool_(True)), ("int8", -128, np.int8(-128)),
    ("uint64", 2**64 - 1, np.uint64(2**64 - 1)), ("int64", -(2**63), np.int64(-(2**63))),
    ("int16", "0xfffe", np.int16(-2)), ("int16", "0b1111111111111110", np.int16(-2)),
    ("uint8", "0xFf", np.uint8(255)), ("float64", 1, np.float64(1)), ("float32", 0.1, np.float32(0.1)),
    ("float64", "0x3ff0000000000000", np.float64(1)), ("float16", "0b0011110000000000", np.float16(1)),
    ("float32", "+Infinity", np.float32("inf")), ("float32", "Infinity", np.float32("inf")),
    ("float32", "-Infinity", np.float32("-inf")), ("float64", -0.0, np.float64(-0.0)),
    ("complex64", "0x3f80000040000000", np.complex64(1 + 2j)),
    ("complex64", "0b" + "0" * 64, np.complex64(0)),
    ("complex128", [1, "-Infinity"], np.complex128(complex(1, -np.inf))),
    ("r24", "0x0102ff", np.void(b"\1\2\xff")), ("r8", "0b10000001", np.void(b"\x81")),
    ("float16", "NaN", np.uint16(0x7E00).view("f2")), ("float32", "NaN", np.uint32(0x7FC00000).view("f4")),
    ("float64", "NaN", np.uint64(0x7FF8000000000000).view("f8")),
    ("float64", "0x7ff0000000000001", np.uint64(0x7FF0000000000001).view("f8")),  # A signalling NaN.
]  # fmt: skip


@pytest.mark.parametrize(("data_type", "value", "expected"), FILLS)
def test_fill_values(data_type: str, value: Any, expected: Any) -> None:
    assert same_bits(kept(line(data_type, value)).fill_value, expected)


REFUSED_FILLS: dict[str, list[Any]] = {
    "bool": [0, "true", "0x01", None],
    "int8": [None, 128, 1.0, True, "1", "NaN", "0x1", "0x001", "0b1", "0x0_", "0xg0"],
    "int16": ["0x 001", "0x+001"], "uint8": [-1], "int64": [2**63],
    "float32": [None, True, "nan", "inf", 1e39, "0x00", [], {}], "float64": [10**400],
    "complex64": [1, [1], [1, 2, 3], "NaN", [1, None], None], "r16": [0, [0, 0], "0x00", "AAA=", None],
    "<M8[s]": [1.5, 2**63, True, "2020-01-01"],
}  # fmt: skip


def test_fill_values_that_are_refused() -> None:
    for data_type, values in REFUSED_FILLS.items():
        named: Any = {"extension": TIMES, "type": data_type} if data_type[0] == "<" else data_type
        for value in values:
            refused(parse, line(named, value), field="fill_value", kind=xzarr3.DataTypeValidationError)


@pytest.mark.parametrize(("layout", "codecs", "expected"), [
    ("C", [], (LITTLE,)), ("F", [], (REVERSE, LITTLE)), ("C", ..., (LITTLE,)),
    ("C", [BIG], (BytesCodec("big"),)), ("F", [BIG, GZIP], (REVERSE, BytesCodec("big"), GzipCodec(1))),
    (..., [TRANSPOSE, GZIP], (REVERSE, LITTLE, GzipCodec(1))),
    (..., [TRANSPOSE, BIG, GZIP, GZIP], (REVERSE, BytesCodec("big"), GzipCodec(1), GzipCodec(1))),
    ("C", [TRANSPOSE], (REVERSE, LITTLE)), ("C", [BLOSC], (LITTLE, BloscCodec("lz4", 1, "bitshuffle", 2, 0))),
    ("C", [{**GZIP, "type": "http://purl.org/zarr/spec/codec/gzip/1.0"}], (LITTLE, GzipCodec(1))),
    *(("C", [changed(GZIP, configuration=empty)], (LITTLE, GzipCodec(5))) for empty in (..., {})),
    *(("C", [draft_codec("blosc", **given)], (LITTLE, BloscCodec(*expected))) for given, expected in (
        ({"clevel": 0, "shuffle": 0}, ("lz4", 0, "noshuffle", 2)), ({"clevel": 9}, ("lz4", 9, "shuffle", 2)),
        ({"clevel": 9, "shuffle": -1, "cname": "zstd", "blocksize": 64}, ("zstd", 9, "shuffle", 2, 64)))),
], ids=range(15))  # fmt: skip
def test_layouts_and_codecs(layout: Any, codecs: Any, expected: tuple[Any, ...]) -> None:
    meta = kept(draft_array(chunk_memory_layout=layout, codecs=codecs))
    assert meta.codecs == parse(written(replace(meta, origin=None))).codecs == expected


@pytest.mark.parametrize(("order", "expected"), [
    ("C", (0, 1, 2)), ("F", (2, 1, 0)), ([2, 0, 1], (2, 0, 1)), ([0, 1, 2], (0, 1, 2)),
])  # fmt: skip
def test_transpositions(order: Any, expected: tuple[int, ...]) -> None:
    cube = {"shape": [4, 6, 8], "chunk_grid": draft_grid([2, 3, 4]), "chunk_memory_layout": ...}
    meta = kept(draft_array(**cube, codecs=[draft_codec("transpose", order=order)]))
    assert meta.codecs[0] == TransposeCodec(expected)
    layout = {(0, 1, 2): "C", (2, 1, 0): "F"}.get(expected)
    if layout:
        assert written(replace(meta, origin=None))["chunk_memory_layout"] == layout
    chunk = np.arange(24, dtype="<i2").reshape(2, 3, 4)
    assert bytes(meta.chain.encode(chunk)) == chunk.transpose(expected).tobytes()


CONFIGURATION = "codecs[0].configuration"
BAD: dict[str, list[Any]] = {  # Values of the field with which the place begins.
    "codecs": [None, GZIP, [draft_codec("transpose", order=[0, 1, 2])], [GZIP, TRANSPOSE], [GZIP, BIG],
               [BIG, BIG]],
    "codecs[0]": [[1], ["gzip"]], "codecs[0].type": [[{}], [{"type": 1}]],
    CONFIGURATION: [[{**GZIP, "configuration": []}]],
    f"{CONFIGURATION}.level": [[draft_codec("gzip", level=10)]],
    f"{CONFIGURATION}.clevel": [[draft_codec("blosc", shuffle=1)]],
    f"{CONFIGURATION}.shuffle": [[draft_codec("blosc", clevel=1, shuffle=value)] for value in (3, "shuffle")],
    f"{CONFIGURATION}.cname": [[draft_codec("blosc", clevel=1, cname="x")]],
    f"{CONFIGURATION}.endian": [[draft_codec("endian")], [draft_codec("endian", endian=">")]],
    f"{CONFIGURATION}.order": [
        [draft_codec("transpose")], *([draft_codec("transpose", order=of)] for of in ("K", [0, 0], [0.0, 1])),
    ],
    "chunk_memory_layout": [..., "A", None, ["C"], {}], "shape": [..., 4],
    "shape[1]": [[4, 6.0], [4, True], [4, -1], [4, 2**63]], "data_type": [...], "fill_value": [...],
    "extensions": [...], "attributes": [..., []], "chunk_grid": [..., []],
    "chunk_grid.chunk_shape": [draft_grid(...), draft_grid([2])],
    "chunk_grid.chunk_shape[1]": [draft_grid([2, length]) for length in (0, 2**70, "3")],
    "chunk_grid.type": [draft_grid([2, 3], type=...)],
    "chunk_grid.separator": [draft_grid([2, 3], separator=value) for value in ("-", None)],
    "storage_transformers": [{}], "storage_transformers[0]": [[1]],
    "storage_transformers[0].type": [[{"extension": "http://x.org"}]],
    "storage_transformers[0].configuration.chunks_per_shard": [
        [changed(SHARDS, configuration=changed({}, chunks_per_shard=value))] for value in (..., [2], [2, 0])
    ],
    "dimension_names": [["y"], ["y", 1], None],
}  # fmt: skip
UNKNOWN: dict[str, list[Any]] = {
    "codecs[0].type": [[{"type": "gzip"}], [{"type": CODEC.format("gzip")[:-1] + "1"}]],
    "codecs[1].type": [[GZIP, {"type": CODEC.format("zstd")}]],
    f"{CONFIGURATION}.x": [[draft_codec("gzip", level=1, x=1)]],
    "codecs[0].must_understand": [[{**GZIP, "must_understand": False}]],
    "chunk_memory_layout": [{"extension": "https://example.org/layout/1.0", "type": "hilbert"}],
    "chunk_grid.x": [draft_grid([2, 3], x=1)],
    "chunk_grid": [
        *(draft_grid([2, 3], type=name) for name in ("rectangular", [])),
        draft_grid([2, 3], extension="http://x.org"),
    ],
    "extensions[0]": [[{**OPTIONAL, "must_understand": True}]],
    "storage_transformers[0]": [[{"extension": "http://x.org", "type": "x"}], [{**SHARDS, "type": "other"}]],
    "storage_transformers[1]": [[SHARDS, SHARDS]], "zarr_format": [3], "compressor": [None],
    "x": [{"must_understand": False}],
}  # fmt: skip


@pytest.mark.parametrize(("table", "kind"), [(BAD, MetadataError), (UNKNOWN, UnknownExtensionError)])
def test_arrays_that_are_refused(table: dict[str, list[Any]], kind: type[MetadataError]) -> None:
    for place, values in table.items():
        for value in values:
            document = draft_array(**{place.partition(".")[0].partition("[")[0]: value})
            refused(parse, document, field=place, kind=kind)
    refused(parse, draft_array(codecs=[TRANSPOSE], chunk_memory_layout="F"), field="chunk_memory_layout")
    refused(parse, draft_array(shape=[4]), field="chunk_grid.chunk_shape")


@pytest.mark.parametrize("shape", [[], [0], [3], [0, 5], [1, 2, 3, 4]], ids=str)
def test_any_number_of_dimensions(shape: list[int]) -> None:
    grid = draft_grid([2] * len(shape), separator=".")
    for layout in "CF":
        assert kept(draft_array(shape=shape, chunk_grid=grid, chunk_memory_layout=layout)).shape == (*shape,)
    meta = kept(draft_array(shape=[4] * len(shape), chunk_grid=changed(grid, separator=...)))
    assert meta.chunk_key_encoding == DraftChunkKeyEncoding(separator="/")


def test_what_is_written_again() -> None:
    meta = kept(draft_array(shape=[0, 6], chunk_grid=draft_grid([0, 3])))  # No length, as the array has none.
    assert meta.chunk_grid == RegularGrid((1, 3))
    assert written(replace(meta, shape=(5, 6)))["chunk_grid"]["chunk_shape"] == [1, 3]
    # Extensions that need not be understood are kept.
    meta = replace(kept(draft_array(extensions=[OPTIONAL])), attributes={"a": 1}, shape=(9, 9))
    assert written(meta) == draft_array(extensions=[OPTIONAL], attributes={"a": 1}, shape=[9, 9])


def test_shards() -> None:
    shards = {"storage_transformers": [SHARDS], "codecs": [GZIP]}
    meta = kept(draft_array(**shards, chunk_memory_layout="F", data_type=">i2"))
    assert meta.chunk_grid == RegularGrid((4, 9))
    inner = (REVERSE, BytesCodec("big"), GzipCodec(1))
    assert meta.codecs == (ShardingCodec((2, 3), inner, (LITTLE,), "end"),)
    other = {**SHARDS, "extension": _documents.SHARDING.replace("https", "http")}
    assert parse(draft_array(storage_transformers=[other])).chunk_grid == RegularGrid((4, 9))
    assert parse(draft_array(storage_transformers=[])).chunk_grid == RegularGrid((2, 3))


def test_a_shard_of_the_text() -> None:
    # Chunks one after the other, then for each its offset and length, and 2^64 - 1 twice for those left out.
    shards = [{**SHARDS, "configuration": {"chunks_per_shard": [2, 2]}}]
    chain = parse(draft_array(storage_transformers=shards, data_type="uint8")).chain
    first, last = np.arange(6, dtype=np.uint8).reshape(2, 3), np.arange(6, 12, dtype=np.uint8).reshape(2, 3)
    empty = np.uint64(2**64 - 1)
    index = np.array([[0, 6], [empty, empty], [empty, empty], [6, 6]], "<u8")
    shard = first.tobytes() + last.tobytes() + index.tobytes()
    expected = np.zeros((4, 6), np.uint8)
    expected[:2, :3], expected[2:, 3:] = first, last
    assert same_bits(chain.decode(shard), expected)
    assert bytes(chain.encode(expected)) == shard


UNSAYABLE: dict[str, list[dict[str, Any]]] = {
    "codecs": [
        *({"codecs": codecs} for codecs in (
            (LITTLE, ZstdCodec(3)), (LITTLE, xzarr3.codecs.Crc32cCodec()),
            (LITTLE, BloscCodec("lz4", 5, "shuffle", 7)), (ShardingCodec((1, 1)),),
            (REVERSE, REVERSE, LITTLE))),
        {"shape": (2, 2, 2), "chunk_grid": RegularGrid((1, 1, 1)),
         "codecs": (TransposeCodec((1, 0, 2)), LITTLE)},
    ],
    "chunk_key_encoding": [{"chunk_key_encoding": ChunkKeyEncoding(*name)} for name in ((), ("v2",))],
    "chunk_grid": [{"chunk_grid": grid_for(((1, 3), (6,)), (4, 6))}], "fill_value": [{"fill_is_null": True}],
    "data_type": [{"data_type": each, "fill_value": each.default_scalar()} for each in map(parse_dtype, (
        "U4", "S3", "M8[10us]", "M8", "m8[7D]", [("a", "i4")], "string"))],
}  # fmt: skip


@pytest.mark.parametrize("field", UNSAYABLE)
def test_what_the_draft_cannot_say(field: str) -> None:
    for changes in UNSAYABLE[field]:
        meta = replace(parse(draft_array()), **changes)
        error = refused(DRAFT.hold, meta, "a/b", field=field)
        assert "3-draft" in str(error)


def written_by_others(entry_point: Any = ENTRY_POINT, chunks: Any = (), **changes: Any) -> MemoryStore:
    plain = draft_array(**{"data_type": "int32", "chunk_grid": draft_grid([2, 6]), **changes})
    documents = {"zarr.json": entry_point, "meta/a.array.json": plain}
    return MemoryStore({key: json.dumps(value).encode() for key, value in documents.items()} | dict(chunks))


def filled() -> MemoryStore:
    """Groups: /e explicit, /i implicit; arrays in both and one at the top."""
    store = MemoryStore()
    for path in ("e", "e/in"):
        xzarr3.create_group(store, path, zarr_format="3-draft")
    for path in ("e/a", "e/in/a", "i/deep/a", "top", "topmost"):
        xzarr3.create_array(store, path, data=np.ones(2), compressors=None, zarr_format="3-draft")
    return store


@pytest.mark.parametrize(("path", "gone"), [
    ("top", TOP), ("i", IMPLICIT), ("i/deep", IMPLICIT), ("e/in", INNER), ("e", EXPLICIT),
], ids=lambda value: value if isinstance(value, str) else "")  # fmt: skip
def test_erasing(path: str, gone: set[str]) -> None:
    store = filled()
    assert set(store.list()) == ALL
    root = xzarr3.open_group(store, mode="r+")
    del root[path]
    assert set(store.list()) == ALL - gone
    refuses(lambda path: xzarr3.open(store, path), [path], NodeNotFoundError)
    assert "top" in root or path == "top"


def test_implicit_groups_and_another_suffix() -> None:
    root = xzarr3.open_group(filled(), mode="r+")
    del root["i/deep/a"], root["e/a"]
    assert ("i" in root, "e" in root) == (False, True)  # One goes with its last member.
    for suffix in (".txt", ""):
        entry_point = {**ENTRY_POINT, "metadata_encoding": {"type": "json", "metadata_key_suffix": suffix}}
        store = MemoryStore({"zarr.json": json.dumps(entry_point).encode()})
        xzarr3.create_array(store, "g/a", data=VALUES, compressors=None, chunks=(4, 6), zarr_format="3-draft")
        assert set(store.list()) == {"zarr.json", f"meta/g/a.array{suffix}", "data/g/a/c0/0"}
        assert document(store, "zarr.json") == entry_point
        assert list(xzarr3.open_group(store)["g"]) == ["a"]


def test_extensions_of_a_hierarchy() -> None:
    store = written_by_others({**ENTRY_POINT, "extensions": [{**OPTIONAL, "must_understand": True}]})
    refuses(lambda path: xzarr3.open(store, path), ("", "a"), UnknownExtensionError, r"example\.org")
    store = written_by_others({**ENTRY_POINT, "extensions": [OPTIONAL]})
    xzarr3.open_array(store, "a", mode="r+").attrs["a"] = 1
    xzarr3.create_group(store, "b", zarr_format="3-draft")
    assert document(store, "zarr.json")["extensions"] == [OPTIONAL]
    store.erase("zarr.json")  # There is no hierarchy without its entry point.
    refuses(lambda path: xzarr3.open(store, path), ["a"], NodeNotFoundError)


def test_a_fallback_is_used_and_said() -> None:
    named = {"extension": "http://example.org/quaternion", "type": "q4", "fallback": ["quat", "int32"]}
    chunks = {"data/a/c0/0": VALUES[:2].tobytes(), "data/a/c1/0": VALUES[2:].tobytes()}
    source = written_by_others(chunks=chunks, data_type=named)
    before = document(source, "meta/a.array.json")
    with pytest.warns(FallbackWarning, match=r"'/a'.*'q4'.*'int32'") as caught:
        array = xzarr3.open_array(source, "a", mode="r+")
    assert caught[0].filename == __file__
    with pytest.warns(FallbackWarning, match="'q4'"):
        assert "a" in dict(xzarr3.open_group(source).members())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        assert same_bits(array[...], VALUES)
        array.attrs["a"] = 1
        array.append(VALUES)
    assert document(source, "meta/a.array.json") == {**before, "shape": [8, 6], "attributes": {"a": 1}}
