"""The draft of May 2022: keys and documents as its text has them, by hand."""

from __future__ import annotations

import copy
import gzip
import json
import pickle
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from _strategies import DATA_TYPES, JSON_VALUES, attempt, elements, native, places, same_bits
from hypothesis import given, settings
from hypothesis import strategies as st

from xzarr3 import DataTypeValidationError, InvalidKeyError, MetadataError, UnknownExtensionError
from xzarr3.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    ShardingCodec,
    TransposeCodec,
    ZstdCodec,
)
from xzarr3.dtypes import parse_dtype
from xzarr3.errors import FallbackWarning, printable
from xzarr3.formats import DRAFT, FORMATS, DraftFormat, documents, parse_format
from xzarr3.formats.base import DocumentKey
from xzarr3.grid import RegularGrid
from xzarr3.model.chunk_keys import ChunkKeyEncoding, DraftChunkKeyEncoding
from xzarr3.model.metadata import ArrayMetadata, GroupMetadata

URI = "https://purl.org/zarr/spec/core/3.0"
EARLY_URI = "https://purl.org/zarr/spec/protocol/core/3.0"
CODEC = "https://purl.org/zarr/spec/codecs/{}/1.0"
TIMES = "https://purl.org/zarr/spec/extensions/data-types/datetime/1.0"
SHARDING = "https://purl.org/zarr/spec/storage_transformers/sharding/1.0"

ENTRY_POINT = {
    "zarr_format": URI,
    "metadata_encoding": {"type": "json", "metadata_key_suffix": ".json"},
    "extensions": [],
}
EARLY_ENTRY_POINT = {
    "zarr_format": EARLY_URI,
    "metadata_encoding": EARLY_URI,
    "metadata_key_suffix": ".json",
    "extensions": [],
}
OPTIONAL = {"extension": "http://example.org/zarr/extension/foo", "must_understand": False,
            "configuration": {"foo": "bar"}}  # fmt: skip
EARLY = DraftFormat.from_entry_point(EARLY_ENTRY_POINT)

GZIP = {"type": CODEC.format("gzip"), "configuration": {"level": 1}}
BIG = {"type": CODEC.format("endian"), "configuration": {"endian": "big"}}
TRANSPOSE = {"type": CODEC.format("transpose"), "configuration": {"order": "F"}}
BLOSC = {
    "type": CODEC.format("blosc"),
    "configuration": {"cname": "lz4", "clevel": 1, "shuffle": 2, "blocksize": 0},
}  # fmt: skip
SHARDS = {"extension": SHARDING, "type": "indexed", "configuration": {"chunks_per_shard": [2, 3]}}

EXAMPLE = {
    "shape": [10000, 1000],
    "dimension_names": ["rows", "columns"],
    "data_type": "<f8",
    "chunk_grid": {"type": "regular", "chunk_shape": [1000, 100], "separator": "/"},
    "chunk_memory_layout": "C",
    "codecs": [GZIP],
    "fill_value": "NaN",
    "extensions": [],
    "attributes": {"foo": 42, "bar": "apples", "baz": [1, 2, 3, 4]},
}
"""The first example of the text."""

TIME_EXAMPLE = {
    "shape": [10000, 1000],
    "data_type": {"extension": TIMES, "type": "<M8[ns]", "fallback": "<i8"},
    "chunk_grid": {"type": "regular", "chunk_shape": [1000, 100], "separator": "/"},
    "chunk_memory_layout": "C",
    "codecs": [GZIP],
    "fill_value": None,
    "extensions": [],
    "attributes": {},
}
"""Its second example."""


def array_document(**changes: Any) -> dict[str, Any]:
    """A valid document of a 4 by 6 array of int16 in 2 by 3 chunks; ``...`` leaves a field out."""
    document: dict[str, Any] = {
        "shape": [4, 6],
        "data_type": "int16",
        "chunk_grid": {"type": "regular", "chunk_shape": [2, 3], "separator": "/"},
        "chunk_memory_layout": "C",
        "codecs": [],
        "fill_value": 0,
        "extensions": [],
        "attributes": {},
        **changes,
    }
    return {field: value for field, value in document.items() if value is not ...}


def line(data_type: Any, fill_value: Any, **changes: Any) -> dict[str, Any]:
    """The document of an array of one dimension."""
    grid = {"type": "regular", "chunk_shape": [2], "separator": "/"}
    return array_document(shape=[3], data_type=data_type, chunk_grid=grid, fill_value=fill_value, **changes)


def parse(document: Any, format: DraftFormat = DRAFT) -> Any:
    return format.parse({"array": documents.decode(json.dumps(document).encode())}, "a/b")


def written(meta: Any, format: DraftFormat = DRAFT) -> dict[str, Any]:
    """The document of an array as it is read again."""
    return documents.decode(documents.encode(format.hold(meta, "a/b")["array"]))


def same(left: ArrayMetadata, right: ArrayMetadata) -> bool:
    """Whether two arrays are the same in all that a document says."""
    plain = ("shape", "data_type", "chunk_grid", "chunk_key_encoding", "codecs", "attributes", "fill_is_null",
             "dimension_names", "storage_transformers", "zarr_format")  # fmt: skip
    fills = (left.data_type.bits(left.fill_value), right.data_type.bits(right.fill_value))
    return fills[0] == fills[1] and all(getattr(left, name) == getattr(right, name) for name in plain)


def refused(
    call: Any, field: str, kind: type[MetadataError] = MetadataError, path: str = "a/b"
) -> MetadataError:
    """The error of a call, after a check that it says what it has to say."""
    with pytest.raises(kind) as caught:
        call()
    error = caught.value
    assert (error.path, error.field) == (path, field)
    assert error.accepted
    assert f"field '{field}'" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), type(again)) == (str(error), type(error))
    return error


# Keys


@pytest.mark.parametrize(
    ("path", "array", "group"),
    [
        ("", "meta/array.json", "meta/group.json"),
        ("foo", "meta/foo.array.json", "meta/foo.group.json"),
        ("foo/bar", "meta/foo/bar.array.json", "meta/foo/bar.group.json"),
        ("foo/baz", "meta/foo/baz.array.json", "meta/foo/baz.group.json"),
        ("é/a.array", "meta/é/a.array.array.json", "meta/é/a.array.group.json"),
    ],
)
def test_keys_of_documents(path: str, array: str, group: str) -> None:
    assert DRAFT.array_key(path) == array
    assert DRAFT.document_keys(path) == (array, group)
    assert set(DRAFT.defining_keys(path)) == {array, group}
    assert DRAFT.place(array) == DocumentKey(path, "array")
    assert DRAFT.place(group) == DocumentKey(path, "group")


@pytest.mark.parametrize(
    ("path", "array", "group"),
    [
        ("", "meta/root.array.json", "meta/root.group.json"),
        ("foo", "meta/root/foo.array.json", "meta/root/foo.group.json"),
        ("foo/bar", "meta/root/foo/bar.array.json", "meta/root/foo/bar.group.json"),
    ],
)
def test_keys_of_earlier_tools(path: str, array: str, group: str) -> None:
    assert EARLY.document_keys(path) == (array, group)
    assert EARLY.place(array) == DocumentKey(path, "array")
    assert EARLY.place(group) == DocumentKey(path, "group")
    assert EARLY.chunk_prefix(path) == f"data/root/{path}/".replace("//", "/")
    assert DRAFT.place("meta/root.array.json") == DocumentKey("root", "array")
    assert EARLY.place("meta/array.json") is None


@pytest.mark.parametrize(
    "key",
    [
        "", "zarr.json", "meta", "meta/", "meta/foo", "meta/foo.json", "meta/foo/array.json",
        "meta/.array.json",
        "meta/foo/.group.json", "meta//foo.array.json", "data/foo.array.json", "data/foo/c0/0",
        "foo.array.json",
        "meta/foo.array.json.bak", "metafoo.array.json", "meta/foo.array.txt", "meta/../foo.array.json",
        "meta/foo/...group.json",
    ],
)  # fmt: skip
def test_keys_of_no_document(key: str) -> None:
    assert DRAFT.place(key) is None


def test_keys_of_chunks() -> None:
    for path, coords, key in [
        ("foo/baz", (1, 0), "data/foo/baz/c1/0"),
        ("foo/baz", (0, 0), "data/foo/baz/c0/0"),
        ("", (0, 1), "data/c0/1"),
        ("a", (1, 23, 45), "data/a/c1/23/45"),
        ("a", (7,), "data/a/c7"),
        ("a", (), "data/a/c"),
    ]:
        assert DRAFT.chunk_prefix(path) + DRAFT.chunk_key_encoding.key(coords) == key
        found = DRAFT.chunk_key_encoding.coords(key[len(DRAFT.chunk_prefix(path)) :], len(coords))
        assert found == coords
    assert DraftChunkKeyEncoding(separator=".").key((1, 23, 45)) == "c1.23.45"
    assert DraftChunkKeyEncoding(separator=".").coords("c1.23", 2) == (1, 23)
    for key in ("c/0/0", "0/0", "c0", "c0/0/0", "c00/0", "c0/-1", "c0/", "c0.0", "d0/0", "cc0/0"):
        assert DraftChunkKeyEncoding().coords(key, 2) is None


def test_only_the_draft_has_its_keys_of_chunks() -> None:
    with pytest.raises(UnknownExtensionError):
        ChunkKeyEncoding("draft")
    with pytest.raises(MetadataError, match="only the draft"):
        DraftChunkKeyEncoding().to_json()
    with pytest.raises(MetadataError, match="not a separator"):
        DraftChunkKeyEncoding(separator="-")
    assert DraftChunkKeyEncoding() != ChunkKeyEncoding()
    assert DraftChunkKeyEncoding() == pickle.loads(pickle.dumps(DraftChunkKeyEncoding()))


def test_prefixes() -> None:
    assert DRAFT.prefixes("foo/bar") == ("meta/foo/bar/", "data/foo/bar/")
    assert DRAFT.prefixes("") == ("meta/", "data/")
    assert DRAFT.listing_prefix("foo") == "meta/foo/"
    assert DRAFT.listing_prefix("") == "meta/"
    assert EARLY.prefixes("foo") == ("meta/root/foo/", "data/root/foo/")
    assert EARLY.listing_prefix("") == "meta/root/"


def test_the_children_of_the_example() -> None:
    # A group at /foo/bar and an array at /foo/baz/qux: /foo has an explicit and an implicit group.
    assert DRAFT.child_names(["meta/foo/bar.group.json"], ["meta/foo/baz/"], "foo") == ({"bar", "baz"}, set())
    assert DRAFT.child_names([], ["meta/foo/"], "") == ({"foo"}, set())
    assert DRAFT.child_names(["meta/foo/baz/qux.array.json"], [], "foo/baz") == ({"qux"}, set())


def test_what_is_no_child() -> None:
    keys = [
        "meta/array.json",
        "meta/group.json",
        "meta/README",
        "meta/x.array",
        "meta/y.json",
        "meta/.array.json",
    ]
    prefixes = ["meta/__zarr/", "meta/../", "meta/./"]
    assert DRAFT.child_names(keys, prefixes, "") == (set(), set())
    assert DRAFT.child_names(["meta/a.array.json", "meta/a.group.json"], ["meta/a/"], "") == ({"a"}, set())
    assert DRAFT.child_names(["meta/a.array.json.group.json"], [], "") == ({"a.array.json"}, set())
    assert EARLY.child_names(["meta/root/a.array.json"], ["meta/root/b/"], "") == ({"a", "b"}, set())


@pytest.mark.parametrize("suffix", [".txt", "", "-x", ".meta.json"])
def test_the_suffix_is_in_all_keys(suffix: str) -> None:
    encoding = {"type": "json", "metadata_key_suffix": suffix}
    format = DraftFormat.from_entry_point({**ENTRY_POINT, "metadata_encoding": encoding})
    assert format.document_keys("a/b") == (f"meta/a/b.array{suffix}", f"meta/a/b.group{suffix}")
    assert format.document_keys("") == (f"meta/array{suffix}", f"meta/group{suffix}")
    assert format.place(f"meta/a/b.group{suffix}") == DocumentKey("a/b", "group")
    assert format.place(f"meta/array{suffix}") == DocumentKey("", "array")
    assert format.child_names([f"meta/a/b.group{suffix}"], [], "a") == ({"b"}, set())
    assert format.hierarchy_documents()["zarr.json"]["metadata_encoding"] == encoding
    group = format.documents(GroupMetadata(attributes={"a": 1}), "a")
    assert group == {f"meta/a.group{suffix}": {"attributes": {"a": 1}}}


@given(
    st.lists(
        st.text(min_size=1, max_size=5).filter(lambda name: "/" not in name and name.strip(".")), max_size=3
    )
)
def test_a_key_tells_its_path(names: list[str]) -> None:
    path = "/".join(names)
    for format in (DRAFT, EARLY, DraftFormat(suffix="")):
        array, group = format.document_keys(path)
        if format.suffix:
            assert format.place(array) == DocumentKey(path, "array")
            assert format.place(group) == DocumentKey(path, "group")
        assert format.place(array) is not None


@pytest.mark.parametrize("name", [".", "..", "...", "__x", "__"])
def test_names_that_no_node_has(name: str) -> None:
    with pytest.raises(InvalidKeyError, match="not a name for a node"):
        DRAFT.check_name(name, name)


@pytest.mark.parametrize("name", ["zarr.json", "array.json", "é", "a.b", "_x", "c0", "data", "meta", "root"])
def test_names_that_a_node_may_have(name: str) -> None:
    DRAFT.check_name(name, name)


def test_the_array_comes_before_the_group() -> None:
    held = {"meta/a.array.json": array_document(), "meta/a.group.json": {"attributes": {}}}
    asked: list[str] = []

    def get(keys: Any) -> list[Any]:
        asked.extend(keys)
        return [held.get(key) for key in keys]

    assert DRAFT.fetch("a", get) == {"array": array_document()}
    assert asked[0] == "meta/a.array.json"
    del held["meta/a.array.json"]
    assert DRAFT.fetch("a", get) == {"group": {"attributes": {}}}
    del held["meta/a.group.json"]
    assert DRAFT.fetch("a", get) is None
    assert DRAFT.is_array({"array": {}})
    assert not DRAFT.is_array({"group": {}})
    assert DRAFT.implicit_groups


def test_the_draft_is_a_value() -> None:
    assert parse_format("3-draft") is DRAFT
    assert FORMATS["3-draft"] is DRAFT
    assert DraftFormat() == DRAFT
    assert DraftFormat(suffix=".txt") != DRAFT
    assert DRAFT.writable
    for format in (DRAFT, EARLY):
        assert pickle.loads(pickle.dumps(format)) == format
        assert hash(pickle.loads(pickle.dumps(format))) == hash(format)


# Entry points


def test_the_entry_points_of_the_text() -> None:
    assert DraftFormat.from_entry_point(ENTRY_POINT) == DRAFT
    assert DRAFT.hierarchy_documents() == {"zarr.json": ENTRY_POINT}
    extended = {**ENTRY_POINT, "extensions": [OPTIONAL]}
    format = DraftFormat.from_entry_point(extended)
    assert format.document_keys("a") == DRAFT.document_keys("a")
    assert format.writable
    assert format.hierarchy_documents() == {"zarr.json": extended}


@pytest.mark.parametrize("uri", [URI, URI.replace("https", "http"), URI[:-1] + "7", EARLY_URI])
def test_any_minor_version_of_the_major_one_is_read(uri: str) -> None:
    entry_point = {**ENTRY_POINT, "zarr_format": uri}
    assert DraftFormat.is_entry_point(entry_point)
    format = DraftFormat.from_entry_point(entry_point)
    assert format.document_keys("a") == DRAFT.document_keys("a")
    assert format.hierarchy_documents()["zarr.json"]["zarr_format"] == uri


def test_the_entry_point_of_earlier_tools() -> None:
    assert DraftFormat.is_entry_point(EARLY_ENTRY_POINT)
    assert not EARLY.writable
    assert EARLY.root == "root"
    assert EARLY.hierarchy_documents() == {"zarr.json": EARLY_ENTRY_POINT}
    other = DraftFormat.from_entry_point({**EARLY_ENTRY_POINT, "metadata_key_suffix": ".j"})
    assert other.array_key("a") == "meta/root/a.array.j"
    for meta in (GroupMetadata(), parse(array_document())):
        with pytest.raises(MetadataError, match="cannot express this"):
            EARLY.documents(meta, "a")
    with pytest.raises(MetadataError, match="cannot express this"):
        EARLY.hold(parse(array_document()), "a")


def test_documents_of_earlier_tools_are_held_as_they_are() -> None:
    for document in (array_document(), line("<i4", 7, codecs=..., extensions=...)):
        meta = parse(document, EARLY)
        assert EARLY.hold(meta) == {"array": document}
        assert same(EARLY.parse(EARLY.hold(meta), "a/b"), meta)
        with pytest.raises(MetadataError, match="cannot express this"):
            EARLY.documents(meta, "a/b")
    assert EARLY.hold(GroupMetadata(attributes={"a": 1})) == {"group": {"attributes": {"a": 1}}}


def test_what_was_warned_of_is_parsed_again_in_silence() -> None:
    named = {"extension": "http://x.org/t", "type": "text", "fallback": "r32"}
    with pytest.warns(FallbackWarning):
        meta = parse(line(named, None))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same(DRAFT.parse_again(DRAFT.hold(meta), "a/b"), meta)


@pytest.mark.parametrize(
    "document",
    [
        {"zarr_format": 3, "node_type": "group", "attributes": {}},
        {"zarr_format": 3, "node_type": "array"},
        {"zarr_format": 2},
        {"zarr_format": "3"},
        {},
    ],
)
def test_what_is_no_entry_point(document: dict[str, Any]) -> None:
    assert not DraftFormat.is_entry_point(document)


@pytest.mark.parametrize(
    ("changes", "field", "kind"),
    [
        ({"zarr_format": "https://purl.org/zarr/spec/core/4.0"}, "zarr_format", MetadataError),
        ({"zarr_format": "https://purl.org/zarr/spec/core/3"}, "zarr_format", MetadataError),
        ({"zarr_format": "https://example.org/core/3.0"}, "zarr_format", MetadataError),
        ({"zarr_format": URI + "\n"}, "zarr_format", MetadataError),
        ({"zarr_format": 3}, "zarr_format", MetadataError),
        ({"zarr_format": ...}, "zarr_format", MetadataError),
        ({"metadata_encoding": ...}, "metadata_encoding", MetadataError),
        ({"metadata_encoding": {"type": "yaml", "metadata_key_suffix": ".yml"}}, "metadata_encoding",
            UnknownExtensionError),
        (
            {"metadata_encoding": {"extension": "https://x.org/y", "type": "json",
                    "metadata_key_suffix": ".j"}},
            "metadata_encoding", UnknownExtensionError,
        ),
        ({"metadata_encoding": {"metadata_key_suffix": ".json"}}, "metadata_encoding.type", MetadataError),
        ({"metadata_encoding": {"type": "json", "x": 1}}, "metadata_encoding.x", UnknownExtensionError),
        ({"metadata_encoding": {"type": "json", "metadata_key_suffix": 1}},
            "metadata_encoding.metadata_key_suffix", MetadataError),
        ({"metadata_encoding": {"type": "json", "metadata_key_suffix": "/.."}},
            "metadata_encoding.metadata_key_suffix", MetadataError),
        ({"metadata_encoding": "https://x.org/yaml"}, "metadata_encoding", UnknownExtensionError),
        ({"metadata_encoding": 1}, "metadata_encoding", MetadataError),
        ({"metadata_encoding": None}, "metadata_encoding", MetadataError),
        ({"metadata_key_suffix": ".json"}, "metadata_key_suffix", UnknownExtensionError),
        ({"extensions": ...}, "extensions", MetadataError),
        ({"extensions": {}}, "extensions", MetadataError),
        ({"extensions": [1]}, "extensions[0]", MetadataError),
        ({"extensions": [{**OPTIONAL, "must_understand": True}]}, "extensions[0]", UnknownExtensionError),
        ({"extensions": [OPTIONAL, {**OPTIONAL, "must_understand": "false"}]},
            "extensions[1].must_understand", MetadataError),
        ({"extensions": [{"extension": "http://x.org"}]}, "extensions[0].must_understand", MetadataError),
        ({"extensions": [{**OPTIONAL, "extension": 1}]}, "extensions[0].extension", MetadataError),
        ({"extensions": [{**OPTIONAL, "more": 1}]}, "extensions[0].more", UnknownExtensionError),
        ({"unknown": 1}, "unknown", UnknownExtensionError),
    ],
)  # fmt: skip
def test_entry_points_that_are_refused(
    changes: dict[str, Any], field: str, kind: type[MetadataError]
) -> None:
    document = {name: value for name, value in {**ENTRY_POINT, **changes}.items() if value is not ...}
    refused(lambda: DraftFormat.from_entry_point(document), field, kind, path="")


def test_names_of_a_later_minor_version_are_passed_over() -> None:
    entry_point = {**ENTRY_POINT, "zarr_format": URI[:-1] + "1", "news": [1]}
    format = DraftFormat.from_entry_point(entry_point)
    assert format.hierarchy_documents() == {"zarr.json": entry_point}
    meta = parse(array_document(news={"a": 1}), format)
    assert written(meta, format) == array_document(news={"a": 1})
    group = format.parse({"group": {"attributes": {}, "news": 3}}, "a")
    assert format.hold(group, "a") == {"group": {"attributes": {}, "news": 3}}
    refused(lambda: DRAFT.hold(group, "a/b"), "news")
    refused(lambda: DRAFT.hold(meta, "a/b"), "news")


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_any_json_in_an_entry_point(data: st.DataObject) -> None:
    document = copy.deepcopy(
        data.draw(
            st.sampled_from([ENTRY_POINT, EARLY_ENTRY_POINT, {**ENTRY_POINT, "extensions": [OPTIONAL]}])
        )
    )
    spoil(document, data)
    assert isinstance(DraftFormat.is_entry_point(document), bool)
    format, error = attempt(lambda: DraftFormat.from_entry_point(document), MetadataError)
    if error is None:
        assert format.hierarchy_documents()["zarr.json"] == document
    else:
        assert error.field
        assert error.accepted
        assert printable(error.field) in str(error)


def spoil(document: Any, data: st.DataObject) -> None:
    """Put any JSON in place of one of the values of a document."""
    path = data.draw(st.sampled_from([path for path in places(document) if path]))
    for name in path[:-1]:
        document = document[name]
    document[path[-1]] = data.draw(st.one_of(JSON_VALUES, st.sampled_from(WORDS)))


WORDS: list[Any] = [
    *DATA_TYPES, "<f8", ">i2", "|b1", "<M8[ns]", "r", "r0", "r7", "r99999999999", "C", "F", "+Infinity",
    "Infinity",
    "0x", "0xzz", "0b1", "0x0000", "0b" + "1" * 16, GZIP, BIG, TRANSPOSE, BLOSC, SHARDS, [GZIP], [BIG, GZIP],
    [GZIP, BIG], [TRANSPOSE], [SHARDS], OPTIONAL, [OPTIONAL], URI, EARLY_URI, 2**63, -(2**63),
    [2**62, 2**62], 10**400,
    {"extension": "http://x.org/t", "type": 1, "fallback": ["q", "r16"]},
    {"extension": TIMES, "type": ">m8[s]"},
    {"codec": CODEC.format("zlib"), "configuration": {"level": 1}}, {"must_understand": False},
]  # fmt: skip


# Documents of groups


def test_the_group_of_the_text() -> None:
    document = {"attributes": {"spam": "ham", "eggs": 42}}
    meta = DRAFT.parse({"group": document}, "a")
    assert isinstance(meta, GroupMetadata)
    assert meta.attributes == {"spam": "ham", "eggs": 42}
    assert meta.zarr_format == "3-draft"
    assert DRAFT.documents(meta, "foo/bar") == {"meta/foo/bar.group.json": document}
    assert DRAFT.documents(meta, "") == {"meta/group.json": document}


@pytest.mark.parametrize(
    ("document", "field", "kind"),
    [
        ({}, "attributes", MetadataError),
        ({"attributes": []}, "attributes", MetadataError),
        ({"attributes": {}, "zarr_format": 3}, "zarr_format", UnknownExtensionError),
        ({"attributes": {}, "extensions": []}, "extensions", UnknownExtensionError),
    ],
)
def test_groups_that_are_refused(document: dict[str, Any], field: str, kind: type[MetadataError]) -> None:
    refused(lambda: DRAFT.parse({"group": document}, "a/b"), field, kind)


# Documents of arrays


def test_the_array_of_the_text() -> None:
    meta = parse(EXAMPLE)
    assert meta.shape == (10000, 1000)
    assert meta.dimension_names == ("rows", "columns")
    assert meta.data_type == parse_dtype("float64")
    assert meta.chunk_grid == RegularGrid((1000, 100))
    assert meta.chunk_key_encoding == DraftChunkKeyEncoding()
    assert meta.codecs == (BytesCodec("little"), GzipCodec(1))
    assert np.isnan(meta.fill_value)
    assert meta.attributes == {"foo": 42, "bar": "apples", "baz": [1, 2, 3, 4]}
    assert meta.zarr_format == "3-draft"
    assert written(meta) == EXAMPLE  # As it was, with the data type that this state of the text has.


def test_the_array_of_the_text_with_the_data_type_of_today() -> None:
    document = {**EXAMPLE, "data_type": "float64"}
    meta = parse(document)
    assert not meta.as_read
    assert written(meta) == document
    assert same(meta, parse(EXAMPLE))
    assert parse(EXAMPLE).as_read
    assert not parse(EXAMPLE).ignored


def test_the_datetimes_of_the_text() -> None:
    meta = parse(TIME_EXAMPLE)
    assert meta.data_type == parse_dtype("M8[ns]")
    assert meta.codecs == (BytesCodec("little"), GzipCodec(1))
    assert same_bits(meta.fill_value, np.datetime64("NaT", "ns"))
    assert not meta.fill_is_null
    assert written(meta) == TIME_EXAMPLE


def test_a_new_document_in_full() -> None:
    meta = ArrayMetadata(
        shape=(4, 6), data_type=parse_dtype("float32"), chunk_grid=RegularGrid((2, 3)),
        chunk_key_encoding=DraftChunkKeyEncoding(separator="."), fill_value=np.float32("inf"),
        codecs=(TransposeCodec((1, 0)), BytesCodec("big"), GzipCodec(4)), attributes={"units": "m"},
        dimension_names=("y", None), zarr_format="3-draft",
    )  # fmt: skip
    assert DRAFT.documents(meta, "a/b") == {
        "meta/a/b.array.json": {
            "shape": [4, 6],
            "dimension_names": ["y", None],
            "data_type": "float32",
            "chunk_grid": {"type": "regular", "chunk_shape": [2, 3], "separator": "."},
            "chunk_memory_layout": "F",
            "codecs": [BIG, {"type": CODEC.format("gzip"), "configuration": {"level": 4}}],
            "fill_value": "+Infinity",
            "extensions": [],
            "attributes": {"units": "m"},
        }
    }
    assert same(parse(written(meta)), meta)


@pytest.mark.parametrize(
    ("name", "dtype", "endian"),
    [
        ("|b1", "bool", "little"), ("b1", "bool", "little"), ("i1", "int8", "little"),
        ("|u1", "uint8", "little"),
        ("<i2", "int16", "little"), (">i2", "int16", "big"), ("<u8", "uint64", "little"),
        (">u4", "uint32", "big"),
        ("<f2", "float16", "little"), (">f8", "float64", "big"), ("<c8", "complex64", "little"),
        (">c16", "complex128", "big"), ("r8", "V1", "little"), ("r24", "V3", "little"),
        ("r128", "V16", "little"),
    ],
)  # fmt: skip
def test_names_of_data_types(name: str, dtype: str, endian: str) -> None:
    fill = {
        "b": False,
        "c": "0x" + "0" * 2 * np.dtype(dtype).itemsize,
        "V": "0x" + "00" * np.dtype(dtype).itemsize,
    }
    document = line(name, fill.get(np.dtype(dtype).kind, 0), codecs=[GZIP])
    meta = parse(document)
    assert meta.data_type.to_native_dtype() == np.dtype(dtype)
    order = None if np.dtype(dtype).itemsize == 1 or name[0] == "r" else endian
    assert meta.codecs == (BytesCodec(order), GzipCodec(1))
    assert written(meta) == document
    # A codec that says the order says it for all names.
    opposite = {"type": CODEC.format("endian"), "configuration": {"endian": "little"}}
    meta = parse(line(name, document["fill_value"], codecs=[opposite]))
    assert meta.codecs == (BytesCodec("little" if order else None),)


@pytest.mark.parametrize(
    "name",
    [
        "i2", "f8", "<i1", "|i2", "=f8", "<q4", "float128", "int", "r7", "r0", "r", "r-8", "r8 ",
        "r99999999999", "", "<M8[ns]",
        "M8[ns]", "|S3", "<U4", "|O", "string", "INT8", None, 1, True, [], ["int8"], {}, {"name": "int8"},
        {"extension": "http://x.org/t"}, {"extension": 1, "type": "int8"}, {"type": "int8"},
        {"extension": "http://x.org/t", "type": "x"},
        {"extension": "http://x.org/t", "type": "x", "fallback": None},
        {"extension": "http://x.org/t", "type": "x", "fallback": []},
        {"extension": "http://x.org/t", "type": "x", "fallback": ["y", None, 3, {}]},
        {"extension": "http://x.org/t", "type": "x", "fallback": "int8", "more": 1},
        {"extension": TIMES, "type": "<M8"}, {"extension": TIMES, "type": "M8[ns]"},
        {"extension": TIMES, "type": "<M8[10us]"},
        {"extension": TIMES, "type": "<M8[generic]"}, {"extension": TIMES, "type": 1},
    ],
)  # fmt: skip
def test_data_types_that_are_refused(name: Any) -> None:
    with pytest.raises(MetadataError) as caught:
        parse(line(name, 0))
    assert str(caught.value.field).startswith("data_type")
    assert caught.value.path == "a/b"
    assert caught.value.accepted


@pytest.mark.parametrize("unit", ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as"])
@pytest.mark.parametrize("kind", ["M", "m"])
def test_times(kind: str, unit: str) -> None:
    dtype = np.dtype(f"{kind}8[{unit}]")
    for order, endian in (("<", "little"), (">", "big")):
        document = line({"extension": TIMES, "type": f"{order}{kind}8[{unit}]", "fallback": f"{order}i8"}, -5)
        meta = parse(document)
        assert meta.data_type.to_native_dtype() == dtype
        assert meta.codecs == (BytesCodec(endian),)
        assert same_bits(meta.fill_value, np.array(-5, dtype)[()])
        assert written(meta) == document
    for value in (None, "NaT", -(2**63)):
        assert np.isnat(parse(line({"extension": TIMES, "type": f"<{kind}8[{unit}]"}, value)).fill_value)
    new = ArrayMetadata(
        shape=(3,), data_type=parse_dtype(dtype), chunk_grid=RegularGrid((2,)), codecs=(BytesCodec("big"),),
        chunk_key_encoding=DraftChunkKeyEncoding(), fill_value=dtype.type("NaT", unit), zarr_format="3-draft",
    )  # fmt: skip
    document = written(new)
    assert document["data_type"] == {"extension": TIMES, "type": f"<{kind}8[{unit}]", "fallback": "int64"}
    assert document["fill_value"] == -(2**63)
    assert document["codecs"] == [BIG]
    assert same(parse(document), new)


# Fallbacks


@pytest.mark.parametrize(
    ("fallback", "dtype", "fill"),
    [
        ("int32", "int32", 0), ("<i4", "int32", 0), (["r32"], "V4", None),
        (["date", "r32", "int32"], "V4", None),
        ([{"extension": "http://x.org/u", "type": "y"}, "float32"], "float32", 1.5),
        ([{"extension": TIMES, "type": "<M8[D]"}, "int64"], "M8[D]", None),
    ],
)  # fmt: skip
def test_the_first_known_fallback_is_used_with_a_warning(fallback: Any, dtype: str, fill: Any) -> None:
    named = {"extension": "http://x.org/t", "type": {"of": "thing"}, "fallback": fallback}
    document = line(named, fill, attributes={"a": 1})
    with pytest.warns(FallbackWarning) as caught:
        meta = parse(document)
    message = str(caught[0].message)
    assert "'/a/b'" in message
    assert "'http://x.org/t'" in message
    assert repr({"of": "thing"}) in message
    assert f"'{meta.data_type.name}'" in message
    assert caught[0].filename == __file__
    assert meta.data_type.to_native_dtype() == np.dtype(dtype)
    assert meta.fill_is_null == (fill is None and dtype != "M8[D]")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert written(meta) == document  # A rewritten document still says what the data are.
    assert meta.ignored == {"data_type": named}


def test_a_fill_value_that_the_fallback_lacks() -> None:
    named = {"extension": "http://x.org/t", "type": "text", "fallback": "r32"}
    with pytest.warns(FallbackWarning, match="fill value 'none' is not one"):
        meta = parse(line(named, "none"))
    assert meta.fill_is_null
    assert meta.fill_value.tobytes() == bytes(4)
    assert written(meta)["fill_value"] == "none"


def test_who_does_not_want_fallbacks_makes_the_warning_an_error() -> None:
    named = {"extension": "http://x.org/t", "type": "text", "fallback": "r32"}
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        with pytest.raises(FallbackWarning):
            parse(line(named, None))


def test_a_fallback_does_not_outlive_its_array() -> None:
    named = {"extension": "http://x.org/t", "type": "text", "fallback": "int16"}
    with pytest.warns(FallbackWarning):
        meta = parse(line(named, 0))
    other = parse(line("int32", 0))
    mixed = replace(meta, data_type=other.data_type, fill_value=other.fill_value, codecs=other.codecs)
    assert written(mixed)["data_type"] == "int32"


# Fill values


@pytest.mark.parametrize(
    ("data_type", "value", "expected"),
    [
        ("bool", True, np.bool_(True)), ("bool", False, np.bool_(False)),
        ("int8", -128, np.int8(-128)), ("uint64", 2**64 - 1, np.uint64(2**64 - 1)),
        ("int64", -(2**63), np.int64(-(2**63))),
        ("int16", "0xfffe", np.int16(-2)), ("int16", "0b1111111111111110", np.int16(-2)),
        ("uint8", "0xFf", np.uint8(255)),
        ("int32", "0x00000001", np.int32(1)), ("float64", 1, np.float64(1)),
        ("float64", 0.1, np.float64(0.1)),
        ("float32", 0.1, np.float32(0.1)), ("float64", "0x3ff0000000000000", np.float64(1)),
        ("float16", "0x3c00", np.float16(1)),
        ("float16", "0b0011110000000000", np.float16(1)), ("float32", "+Infinity", np.float32("inf")),
        ("float32", "Infinity", np.float32("inf")), ("float32", "-Infinity", np.float32("-inf")),
        ("float64", -0.0, np.float64(-0.0)),
        ("complex64", "0x3f80000040000000", np.complex64(1 + 2j)),
        ("complex128", [1, "-Infinity"], np.complex128(complex(1, -np.inf))),
        ("complex64", "0b" + "0" * 64, np.complex64(0)),
        ("r24", "0x0102ff", np.void(b"\1\2\xff")), ("r8", "0b10000001", np.void(b"\x81")),
    ],
)  # fmt: skip
def test_fill_values(data_type: str, value: Any, expected: Any) -> None:
    document = line(data_type, value)
    meta = parse(document)
    assert same_bits(meta.fill_value, expected)
    assert written(meta) == document


def test_nans() -> None:
    assert parse(line("float32", "NaN")).fill_value.view(np.uint32) == 0x7FC00000
    assert parse(line("float16", "NaN")).fill_value.view(np.uint16) == 0x7E00
    assert parse(line("float64", "NaN")).fill_value.view(np.uint64) == 0x7FF8000000000000
    assert parse(line("float32", "0xffc00001")).fill_value.view(np.uint32) == 0xFFC00001
    # A signalling NaN stays one.
    assert parse(line("float64", "0x7ff0000000000001")).fill_value.tobytes() == (0x7FF0000000000001).to_bytes(
        8, "little"
    )


def test_literals_of_older_writers() -> None:
    document = documents.decode(json.dumps(line("float64", float("nan"))).encode())
    meta = DRAFT.parse({"array": document}, "a/b")
    assert np.isnan(meta.fill_value)
    assert written(meta)["fill_value"] == "NaN"


@given(st.sampled_from(DATA_TYPES), st.data())
@settings(deadline=None)
def test_every_fill_value_is_written_as_it_is(name: str, data: st.DataObject) -> None:
    value = np.asarray(data.draw(elements(name)), native(name))[()]
    zeros = "0x" + "00" * native(name).itemsize
    fill = {"b": False, "c": zeros, "V": zeros}.get(native(name).kind, 0)
    meta = parse(line(name, fill))
    meta = replace(meta, fill_value=value)
    document = written(meta)
    assert same_bits(parse(document).fill_value, value)
    if native(name).kind == "b":
        assert isinstance(document["fill_value"], bool)
    elif native(name).kind in "iu":
        assert type(document["fill_value"]) is int
    elif native(name).kind in "cV":
        if native(name).kind == "V":
            assert document["fill_value"] == "0x" + value.tobytes().hex()
        assert len(document["fill_value"]) == 2 + 2 * native(name).itemsize


@pytest.mark.parametrize(
    ("data_type", "value"),
    [
        ("bool", 0), ("bool", "true"), ("bool", "0x01"), ("bool", None), ("int8", None), ("int8", 128),
        ("int8", 1.0),
        ("int8", True), ("int8", "1"), ("int8", "NaN"), ("int8", "0x1"), ("int8", "0x001"), ("int8", "0b1"),
        ("int8", "0x0_"),
        ("int8", "0xg0"), ("int16", "0x 001"), ("int16", "0x+001"), ("uint8", -1), ("int64", 2**63),
        ("float32", None),
        ("float32", True), ("float32", "nan"), ("float32", "inf"), ("float32", 1e39), ("float64", 10**400),
        ("float32", "0x00"),
        ("float32", []), ("float32", {}), ("complex64", 1), ("complex64", [1]), ("complex64", [1, 2, 3]),
        ("complex64", "NaN"),
        ("complex64", [1, None]), ("complex64", None), ("r16", 0), ("r16", [0, 0]), ("r16", "0x00"),
        ("r16", "AAA="), ("r16", None),
        ({"extension": TIMES, "type": "<M8[s]"}, 1.5), ({"extension": TIMES, "type": "<M8[s]"}, 2**63),
        ({"extension": TIMES, "type": "<M8[s]"}, True),
        ({"extension": TIMES, "type": "<M8[s]"}, "2020-01-01"),
    ],
)  # fmt: skip
def test_fill_values_that_are_refused(data_type: Any, value: Any) -> None:
    refused(lambda: parse(line(data_type, value)), "fill_value", DataTypeValidationError)


# Codecs and layouts


@pytest.mark.parametrize(
    ("layout", "codecs", "expected"),
    [
        ("C", [], (BytesCodec("little"),)),
        ("F", [], (TransposeCodec((1, 0)), BytesCodec("little"))),
        ("C", ..., (BytesCodec("little"),)),
        ("C", [BIG], (BytesCodec("big"),)),
        ("F", [BIG, GZIP], (TransposeCodec((1, 0)), BytesCodec("big"), GzipCodec(1))),
        (..., [TRANSPOSE, GZIP], (TransposeCodec((1, 0)), BytesCodec("little"), GzipCodec(1))),
        (..., [TRANSPOSE, BIG, GZIP, GZIP],
            (TransposeCodec((1, 0)), BytesCodec("big"), GzipCodec(1), GzipCodec(1))),
        ("C", [TRANSPOSE], (TransposeCodec((1, 0)), BytesCodec("little"))),
        ("C", [BLOSC], (BytesCodec("little"), BloscCodec("lz4", 1, "bitshuffle", 2, 0))),
    ],
)  # fmt: skip
def test_layouts_and_codecs(layout: Any, codecs: Any, expected: tuple[Any, ...]) -> None:
    document = array_document(chunk_memory_layout=layout, codecs=codecs)
    meta = parse(document)
    assert meta.codecs == expected
    assert written(meta) == document


@pytest.mark.parametrize(
    ("order", "expected"),
    [("C", (0, 1, 2)), ("F", (2, 1, 0)), ([2, 0, 1], (2, 0, 1)), ([0, 1, 2], (0, 1, 2))],
)
def test_transpositions(order: Any, expected: tuple[int, ...]) -> None:
    document = array_document(
        shape=[4, 6, 8], chunk_grid={"type": "regular", "chunk_shape": [2, 3, 4], "separator": "/"},
        chunk_memory_layout=...,
        codecs=[{"type": CODEC.format("transpose"), "configuration": {"order": order}}],
    )  # fmt: skip
    meta = parse(document)
    assert meta.codecs[0] == TransposeCodec(expected)
    assert written(meta) == document
    chunk = np.arange(24, dtype="<i2").reshape(2, 3, 4)
    assert bytes(meta.chain.encode(chunk)) == chunk.transpose(expected).tobytes()


def test_what_chunks_hold() -> None:
    chunk = np.arange(6, dtype=np.int16).reshape(2, 3)
    for changes, stored in [
        ({}, chunk.astype("<i2").tobytes()),
        ({"chunk_memory_layout": "F"}, chunk.astype("<i2").tobytes("F")),
        ({"codecs": [BIG]}, chunk.astype(">i2").tobytes()),
        ({"codecs": [BIG], "chunk_memory_layout": "F"}, chunk.astype(">i2").tobytes("F")),
        ({"data_type": ">i2"}, chunk.astype(">i2").tobytes()),
    ]:
        chain = parse(array_document(**changes)).chain
        assert bytes(chain.encode(chunk)) == stored
        assert same_bits(chain.decode(stored).astype(np.int16), chunk)


@pytest.mark.parametrize("more", [{}, {"configuration": {}}])
def test_gzip_without_a_configuration_is_read(more: dict[str, Any]) -> None:
    document = array_document(codecs=[{"type": CODEC.format("gzip"), **more}])
    meta = parse(document)
    chunk = np.arange(6, dtype="<i2").reshape(2, 3)
    assert same_bits(meta.chain.decode(gzip.compress(chunk.tobytes(), 9)).astype("<i2"), chunk)
    assert gzip.decompress(bytes(meta.chain.encode(chunk))) == chunk.tobytes()
    assert written(meta) == document


@pytest.mark.parametrize(
    "uri", [CODEC.format("gzip"), CODEC.format("gzip").replace("codecs", "codec").replace("https", "http")]
)
def test_uris_of_codecs(uri: str) -> None:
    document = array_document(codecs=[{"type": uri, "configuration": {"level": 1}}])
    meta = parse(document)
    assert meta.codecs[-1] == GzipCodec(1)
    assert written(meta) == document


@pytest.mark.parametrize(
    ("configuration", "expected"),
    [
        ({"clevel": 1, "shuffle": 2}, BloscCodec("lz4", 1, "bitshuffle", 2)),
        ({"clevel": 0, "shuffle": 0}, BloscCodec("lz4", 0, "noshuffle", 2)),
        ({"clevel": 9}, BloscCodec("lz4", 9, "shuffle", 2)),
        (
            {"clevel": 9, "shuffle": -1, "cname": "zstd", "blocksize": 64},
            BloscCodec("zstd", 9, "shuffle", 2, 64),
        ),
    ],
)
def test_blosc(configuration: dict[str, Any], expected: BloscCodec) -> None:
    document = array_document(codecs=[{"type": CODEC.format("blosc"), "configuration": configuration}])
    assert parse(document).codecs[-1] == expected
    assert written(parse(document)) == document
    assert parse(written(replace(parse(document), as_read={}))).codecs[-1] == expected


@pytest.mark.parametrize(
    ("changes", "field", "kind"),
    [
        ({"codecs": None}, "codecs", MetadataError),
        ({"codecs": GZIP}, "codecs", MetadataError),
        ({"codecs": [1]}, "codecs[0]", MetadataError),
        ({"codecs": ["gzip"]}, "codecs[0]", MetadataError),
        ({"codecs": [{}]}, "codecs[0].type", MetadataError),
        ({"codecs": [{"type": 1}]}, "codecs[0].type", MetadataError),
        ({"codecs": [GZIP, {"type": CODEC.format("zstd")}]}, "codecs[1].type", UnknownExtensionError),
        ({"codecs": [{"type": "gzip"}]}, "codecs[0].type", UnknownExtensionError),
        ({"codecs": [{"type": CODEC.format("gzip")[:-1] + "1"}]}, "codecs[0].type", UnknownExtensionError),
        ({"codecs": [{**GZIP, "configuration": []}]}, "codecs[0].configuration", MetadataError),
        ({"codecs": [{**GZIP, "configuration": {"level": 10}}]}, "codecs[0].configuration.level",
            MetadataError),
        ({"codecs": [{**GZIP, "configuration": {"level": 1, "x": 1}}]}, "codecs[0].configuration.x",
            UnknownExtensionError),
        ({"codecs": [{**GZIP, "must_understand": False}]}, "codecs[0].must_understand",
            UnknownExtensionError),
        ({"codecs": [{**BLOSC, "configuration": {"shuffle": 1}}]}, "codecs[0].configuration.clevel",
            MetadataError),
        ({"codecs": [{**BLOSC, "configuration": {"clevel": 1, "shuffle": 3}}]},
            "codecs[0].configuration.shuffle", MetadataError),
        ({"codecs": [{**BLOSC, "configuration": {"clevel": 1, "shuffle": "shuffle"}}]},
            "codecs[0].configuration.shuffle", MetadataError),
        ({"codecs": [{**BLOSC, "configuration": {"clevel": 1, "cname": "x"}}]},
            "codecs[0].configuration.cname", MetadataError),
        ({"codecs": [{**BIG, "configuration": {}}]}, "codecs[0].configuration.endian", MetadataError),
        ({"codecs": [{**BIG, "configuration": {"endian": ">"}}]}, "codecs[0].configuration.endian",
            MetadataError),
        ({"codecs": [{**TRANSPOSE, "configuration": {}}]}, "codecs[0].configuration.order", MetadataError),
        ({"codecs": [{**TRANSPOSE, "configuration": {"order": "K"}}]}, "codecs[0].configuration.order",
            MetadataError),
        ({"codecs": [{**TRANSPOSE, "configuration": {"order": [0, 0]}}]}, "codecs[0].configuration.order",
            MetadataError),
        ({"codecs": [{**TRANSPOSE, "configuration": {"order": [0.0, 1]}}]}, "codecs[0].configuration.order",
            MetadataError),
        ({"codecs": [{**TRANSPOSE, "configuration": {"order": [0, 1, 2]}}]}, "codecs", MetadataError),
        ({"codecs": [GZIP, TRANSPOSE]}, "codecs", MetadataError),
        ({"codecs": [GZIP, BIG]}, "codecs", MetadataError),
        ({"codecs": [BIG, BIG]}, "codecs", MetadataError),
        ({"codecs": [TRANSPOSE], "chunk_memory_layout": "F"}, "chunk_memory_layout", MetadataError),
        ({"chunk_memory_layout": "A"}, "chunk_memory_layout", MetadataError),
        ({"chunk_memory_layout": None}, "chunk_memory_layout", MetadataError),
        ({"chunk_memory_layout": ["C"]}, "chunk_memory_layout", MetadataError),
        ({"chunk_memory_layout": {}}, "chunk_memory_layout", MetadataError),
        ({"chunk_memory_layout": ...}, "chunk_memory_layout", MetadataError),
        ({"chunk_memory_layout": {"extension": "https://example.org/layout/1.0", "type": "hilbert"}},
            "chunk_memory_layout", UnknownExtensionError),
        ({"shape": ...}, "shape", MetadataError),
        ({"shape": 4}, "shape", MetadataError),
        ({"shape": [4, 6.0]}, "shape[1]", MetadataError),
        ({"shape": [4, True]}, "shape[1]", MetadataError),
        ({"shape": [4, -1]}, "shape[1]", MetadataError),
        ({"shape": [4, 2**63]}, "shape[1]", MetadataError),
        ({"shape": [4]}, "chunk_grid.chunk_shape", MetadataError),
        ({"data_type": ...}, "data_type", MetadataError),
        ({"fill_value": ...}, "fill_value", MetadataError),
        ({"extensions": ...}, "extensions", MetadataError),
        ({"attributes": ...}, "attributes", MetadataError),
        ({"attributes": []}, "attributes", MetadataError),
        ({"chunk_grid": ...}, "chunk_grid", MetadataError),
        ({"chunk_grid": []}, "chunk_grid", MetadataError),
        ({"chunk_grid": {"type": "regular", "separator": "/"}}, "chunk_grid.chunk_shape", MetadataError),
        ({"chunk_grid": {"chunk_shape": [2, 3], "separator": "/"}}, "chunk_grid.type", MetadataError),
        ({"chunk_grid": {"type": "regular", "chunk_shape": [2, 0]}}, "chunk_grid.chunk_shape[1]",
            MetadataError),
        ({"chunk_grid": {"type": "regular", "chunk_shape": [2, 2**70]}}, "chunk_grid.chunk_shape[1]",
            MetadataError),
        ({"chunk_grid": {"type": "regular", "chunk_shape": [2, "3"]}}, "chunk_grid.chunk_shape[1]",
            MetadataError),
        ({"chunk_grid": {"type": "regular", "chunk_shape": [2, 3], "separator": "-"}},
            "chunk_grid.separator", MetadataError),
        ({"chunk_grid": {"type": "regular", "chunk_shape": [2, 3], "separator": None}},
            "chunk_grid.separator", MetadataError),
        ({"chunk_grid": {"type": "regular", "chunk_shape": [2, 3], "x": 1}}, "chunk_grid.x",
            UnknownExtensionError),
        ({"chunk_grid": {"type": "rectangular", "chunk_shape": [2, 3]}}, "chunk_grid", UnknownExtensionError),
        ({"chunk_grid": {"type": [], "chunk_shape": [2, 3]}}, "chunk_grid", UnknownExtensionError),
        ({"chunk_grid": {"extension": "http://x.org", "type": "regular", "chunk_shape": [2, 3]}},
            "chunk_grid", UnknownExtensionError),
        ({"extensions": [{**OPTIONAL, "must_understand": True}]}, "extensions[0]", UnknownExtensionError),
        ({"storage_transformers": {}}, "storage_transformers", MetadataError),
        ({"storage_transformers": [1]}, "storage_transformers[0]", MetadataError),
        ({"storage_transformers": [{"extension": "http://x.org", "type": "x"}]}, "storage_transformers[0]",
            UnknownExtensionError),
        ({"storage_transformers": [{"extension": "http://x.org"}]}, "storage_transformers[0].type",
            MetadataError),
        ({"storage_transformers": [{**SHARDS, "type": "other"}]}, "storage_transformers[0]",
            UnknownExtensionError),
        ({"storage_transformers": [SHARDS, SHARDS]}, "storage_transformers[1]", UnknownExtensionError),
        ({"storage_transformers": [{**SHARDS, "configuration": {}}]},
            "storage_transformers[0].configuration.chunks_per_shard", MetadataError),
        ({"storage_transformers": [{**SHARDS, "configuration": {"chunks_per_shard": [2]}}]},
            "storage_transformers[0].configuration.chunks_per_shard", MetadataError),
        ({"storage_transformers": [{**SHARDS, "configuration": {"chunks_per_shard": [2, 0]}}]},
            "storage_transformers[0].configuration.chunks_per_shard", MetadataError),
        ({"dimension_names": ["y"]}, "dimension_names", MetadataError),
        ({"dimension_names": ["y", 1]}, "dimension_names", MetadataError),
        ({"dimension_names": None}, "dimension_names", MetadataError),
        ({"zarr_format": 3}, "zarr_format", UnknownExtensionError),
        ({"compressor": None}, "compressor", UnknownExtensionError),
        ({"x": {"must_understand": False}}, "x", UnknownExtensionError),
    ],
)  # fmt: skip
def test_arrays_that_are_refused(changes: dict[str, Any], field: str, kind: type[MetadataError]) -> None:
    refused(lambda: parse(array_document(**changes)), field, kind)


@pytest.mark.parametrize("shape", [[], [0], [3], [0, 5], [1, 2, 3, 4]])
def test_any_number_of_dimensions(shape: list[int]) -> None:
    grid = {"type": "regular", "chunk_shape": [2] * len(shape), "separator": "."}
    for layout in "CF":
        document = array_document(shape=shape, chunk_grid=grid, chunk_memory_layout=layout)
        meta = parse(document)
        assert meta.shape == tuple(shape)
        assert written(meta) == document


def test_chunks_without_length_where_the_array_has_none() -> None:
    document = array_document(
        shape=[0, 6], chunk_grid={"type": "regular", "chunk_shape": [0, 3], "separator": "/"}
    )
    meta = parse(document)
    assert meta.chunk_grid == RegularGrid((1, 3))
    assert written(meta) == document
    assert written(replace(meta, shape=(5, 6)))["chunk_grid"]["chunk_shape"] == [1, 3]


def test_the_separator_may_be_left_out() -> None:
    document = array_document(chunk_grid={"type": "regular", "chunk_shape": [2, 3]})
    meta = parse(document)
    assert meta.chunk_key_encoding == DraftChunkKeyEncoding(separator="/")
    assert written(meta) == document


def test_extensions_that_need_not_be_understood_are_kept() -> None:
    document = array_document(extensions=[OPTIONAL])
    meta = parse(document)
    assert written(meta) == document
    changed = replace(meta, attributes={"a": 1}, shape=(9, 9))
    assert written(changed) == array_document(extensions=[OPTIONAL], attributes={"a": 1}, shape=[9, 9])


def test_shards() -> None:
    document = array_document(
        storage_transformers=[SHARDS], codecs=[GZIP], chunk_memory_layout="F", data_type=">i2"
    )
    meta = parse(document)
    assert meta.chunk_grid == RegularGrid((4, 9))
    inner = (TransposeCodec((1, 0)), BytesCodec("big"), GzipCodec(1))
    assert meta.codecs == (ShardingCodec((2, 3), inner, (BytesCodec("little"),), "end"),)
    assert written(meta) == document
    for uri in (SHARDING, SHARDING.replace("https", "http")):
        assert parse(
            array_document(storage_transformers=[{**SHARDS, "extension": uri}])
        ).chunk_grid == RegularGrid((4, 9))
    assert parse(array_document(storage_transformers=[])).chunk_grid == RegularGrid((2, 3))


def test_a_shard_of_the_text() -> None:
    # Chunks one after the other, then for each its offset and length, and 2^64 - 1 twice for those left out.
    document = array_document(
        storage_transformers=[{**SHARDS, "configuration": {"chunks_per_shard": [2, 2]}}], data_type="uint8"
    )
    first, last = np.arange(6, dtype=np.uint8).reshape(2, 3), np.arange(6, 12, dtype=np.uint8).reshape(2, 3)
    empty = np.uint64(2**64 - 1)
    index = np.array([[0, 6], [empty, empty], [empty, empty], [6, 6]], "<u8")
    shard = first.tobytes() + last.tobytes() + index.tobytes()
    values = parse(document).chain.decode(shard)
    expected = np.zeros((4, 6), np.uint8)
    expected[:2, :3], expected[2:, 3:] = first, last
    assert same_bits(values, expected)
    assert bytes(parse(document).chain.encode(expected)) == shard


@pytest.mark.slow
@given(st.data())
@settings(max_examples=1000, deadline=None)
def test_any_json_in_an_array(data: st.DataObject) -> None:
    extended = array_document(
        data_type={"extension": TIMES, "type": "<M8[ns]", "fallback": ["<i8", "r64"]},
        codecs=[TRANSPOSE, BIG, BLOSC],
        storage_transformers=[SHARDS], dimension_names=["y", None], extensions=[OPTIONAL],
        chunk_memory_layout=...,
    )  # fmt: skip
    early = {**array_document(codecs=...),
        "compressor": {"codec": CODEC.format("gzip"), "configuration": {"level": 1}},
             "data_type": "<i2", "attributes": {"filters": [{"id": "delta", "dtype": "<i2"}]}}  # fmt: skip
    document = copy.deepcopy(
        data.draw(st.sampled_from([EXAMPLE, TIME_EXAMPLE, array_document(), extended, early]))
    )
    spoil(document, data)
    format = data.draw(st.sampled_from([DRAFT, DRAFT, EARLY]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        meta, error = attempt(lambda: format.parse({"array": document}, "a/b"), MetadataError)
        if error is not None:
            assert error.path == "a/b"
            assert error.field
            assert printable(error.field) in str(error)
        elif format.writable and is_json(document):
            assert same(parse(written(meta)), meta)


def is_json(document: Any) -> bool:
    """Whether a document holds nothing but what JSON has: no infinities and no NaN."""
    try:
        json.dumps(document, allow_nan=False)
    except ValueError:
        return False
    return True


@given(JSON_VALUES)
def test_any_json_as_a_group(value: Any) -> None:
    for document in ({"attributes": value}, {"attributes": {}, "x": value}, value):
        if isinstance(document, dict):
            group, error = attempt(lambda: DRAFT.parse({"group": document}, "a"), MetadataError)  # noqa: B023
            assert group is not None or error.field


def test_documents_nested_too_deeply() -> None:
    fallback: Any = "int8"
    for _ in range(5000):
        fallback = {"extension": "http://x.org/t", "type": "x", "fallback": [fallback]}
    with pytest.raises(MetadataError):
        DRAFT.parse({"array": array_document(data_type=fallback)}, "a/b")


# What the draft cannot say


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"codecs": (BytesCodec("little"), ZstdCodec(3))}, "codecs"),
        ({"codecs": (BytesCodec("little"), Crc32cCodec())}, "codecs"),
        ({"codecs": (BytesCodec("little"), BloscCodec("lz4", 5, "shuffle", 7))}, "codecs"),
        ({"codecs": (ShardingCodec((1, 1)),)}, "codecs"),
        ({"codecs": (TransposeCodec((1, 0)), TransposeCodec((1, 0)), BytesCodec("little"))}, "codecs"),
        ({"chunk_key_encoding": ChunkKeyEncoding()}, "chunk_key_encoding"),
        ({"chunk_key_encoding": ChunkKeyEncoding("v2")}, "chunk_key_encoding"),
        ({"chunk_key_encoding": DraftChunkKeyEncoding(scalar="c0")}, "chunk_key_encoding"),
        ({"fill_is_null": True}, "fill_value"),
        ({"ignored": {"x": 1}}, "x"),
    ],
)
def test_what_the_draft_cannot_say(changes: dict[str, Any], field: str) -> None:
    meta = replace(parse(array_document()), **changes)
    error = refused(lambda: DRAFT.hold(meta, "a/b"), field)
    assert "3-draft cannot express this" in str(error)


def test_other_orders_of_dimensions_than_two() -> None:
    grid = {"type": "regular", "chunk_shape": [1, 1, 1], "separator": "/"}
    meta = parse(array_document(shape=[2, 2, 2], chunk_grid=grid))
    other = replace(meta, codecs=(TransposeCodec((1, 0, 2)), BytesCodec("little")))
    refused(lambda: DRAFT.hold(other, "a/b"), "codecs")
    for order, layout in (((0, 1, 2), "C"), ((2, 1, 0), "F")):
        fine = replace(meta, codecs=(TransposeCodec(order), BytesCodec("little")))
        assert written(fine)["chunk_memory_layout"] == layout


@pytest.mark.parametrize("dtype", ["U4", "S3", "M8[10us]", [("a", "i4")], "string"])
def test_data_types_that_the_draft_cannot_say(dtype: Any) -> None:
    data_type = parse_dtype(np.dtype(dtype) if dtype != "string" else "string")
    base = parse(array_document())
    meta = replace(base, data_type=data_type, fill_value=data_type.default_scalar())
    refused(lambda: DRAFT.hold(meta, "a/b"), "data_type")


def test_rectilinear_grids() -> None:
    from xzarr3.grid import grid_for

    base = parse(array_document())
    meta = replace(base, chunk_grid=grid_for(((1, 3), (6,)), (4, 6)))
    refused(lambda: DRAFT.hold(meta, "a/b"), "chunk_grid")


# Earlier tools


def early(**changes: Any) -> dict[str, Any]:
    """A document as zarr-python 2.18 wrote them."""
    return {name: value for name, value in {
        "attributes": {}, "chunk_grid": {"chunk_shape": [2, 3], "separator": ".", "type": "regular"},
        "chunk_memory_layout": "F", "data_type": ">i2", "dimension_separator": ".", "extensions": [],
        "fill_value": 7, "shape": [4, 6],
        "compressor": {"codec": "https://purl.org/zarr/spec/codec/gzip/1.0", "configuration": {"level": 1}},
        **changes,
    }.items() if value is not ...}  # fmt: skip


def test_a_document_of_an_earlier_tool() -> None:
    meta = parse(early(), EARLY)
    assert meta.codecs == (TransposeCodec((1, 0)), BytesCodec("big"), GzipCodec(1))
    assert meta.chunk_key_encoding == DraftChunkKeyEncoding(separator=".")
    assert same_bits(meta.fill_value, np.int16(7))
    assert meta.zarr_format == "3-draft"
    refused(lambda: parse(early(dimension_separator=...)), "compressor", UnknownExtensionError)


@pytest.mark.parametrize(
    ("data_type", "fill", "dtype", "expected"),
    [
        ("bool", True, "bool", True), ("u1", 1, "u1", 1), ("i1", -1, "i1", -1),
        ("<f8", "Infinity", "f8", np.inf),
        ("<f4", "NaN", "f4", np.nan),
        ({"extension": "TODO: bytestring array protocol URL", "fallback": None, "type": "|S3"}, "eHl6", "S3",
            b"xyz"),
        ({"extension": "TODO: unicode array protocol URL", "fallback": None, "type": "<U3"}, "é", "U3", "é"),
        (
            {"extension": "https://zarr-specs.readthedocs.io/en/core-protocol-v3.0-dev/protocol/extensions/complex-dtypes/v1.0.html",
             "fallback": None, "type": "<c16"}, [1.0, 2.0], "c16", 1 + 2j,
        ),
        (
            {"extension": "https://zarr-specs.readthedocs.io/en/latest/extensions/data-types/datetime/v1.0.html",
             "fallback": None, "type": ">m8[s]"}, -(2**63), "m8[s]", "NaT",
        ),
        ({"extension": "TODO: structured array protocol URL", "fallback": None,
                "type": [["a", "<i2"], ["b", "<f4"]]}, "AAAAAAAA", [("a", "<i2"), ("b", "<f4")], (0, 0)),
        ({"extension": "TODO: structured array protocol URL", "fallback": None, "type": [["", "|V3"]]},
            "AAAA", "V3", b"\0\0\0"),
    ],
)  # fmt: skip
def test_data_types_of_earlier_tools(data_type: Any, fill: Any, dtype: Any, expected: Any) -> None:
    meta = parse(early(data_type=data_type, fill_value=fill), EARLY)
    native = meta.data_type.to_native_dtype()
    assert native.newbyteorder("=") == np.dtype(dtype)
    wanted = np.void(expected) if dtype == "V3" else np.array(expected, dtype)
    assert np.asarray(meta.fill_value, native).tobytes() == wanted.tobytes()


def test_a_null_fill_value_of_an_earlier_tool() -> None:
    meta = parse(early(fill_value=None), EARLY)
    assert meta.fill_is_null
    assert meta.fill_value == 0


def test_shards_of_an_earlier_tool() -> None:
    meta = parse(early(storage_transformers=[SHARDS]), EARLY)
    inner = (TransposeCodec((1, 0)), BytesCodec("big"), GzipCodec(1))
    assert meta.codecs == (ShardingCodec((2, 3), inner, (BytesCodec("little"),), "end"),)
    assert meta.chunk_grid == RegularGrid((4, 9))


def test_a_later_document_below_an_earlier_entry_point() -> None:
    assert same(parse(EXAMPLE, EARLY), parse(EXAMPLE))
    assert same(parse(array_document(codecs=[BIG]), EARLY), parse(array_document(codecs=[BIG])))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"compressor": {"codec": "https://purl.org/zarr/spec/codec/x/1.0", "configuration": {}}},
            "compressor.codec"),
        ({"compressor": {"codec": 1}}, "compressor.codec"),
        ({"compressor": []}, "compressor"),
        ({"data_type": "<q2"}, "data_type"),
        ({"data_type": {"extension": "TODO: object array protocol URL", "type": "|O", "fallback": None}},
            "data_type"),
        ({"chunk_memory_layout": "A"}, "chunk_memory_layout"),
        ({"attributes": {"filters": 1}}, "attributes.filters"),
        ({"attributes": {"filters": [{"id": "x"}]}}, "attributes.filters[0]"),
        ({"fill_value": "x"}, "fill_value"),
        ({"shape": [1, 2, 3]}, "chunk_grid.chunk_shape"),
        ({"unknown": 1}, "unknown"),
    ],
)  # fmt: skip
def test_documents_of_earlier_tools_that_are_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(MetadataError) as caught:
        parse(early(**changes), EARLY)
    assert str(caught.value.field).startswith(field)
    assert caught.value.path == "a/b"
