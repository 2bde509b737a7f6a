"""Any JSON in any document of any format: it is refused with its place, or is what it says, however often.

Documents are valid ones in which values were replaced, dropped or added.
"""

import json
import warnings
from typing import Any, NamedTuple

import _documents
import pytest
from _documents import ENTRY_POINT, OPTIONAL, SHARDS, TIMES, draft_array, draft_codec, text, zarray, zmetadata
from _strategies import DATA_TYPES, JSON_VALUES, LITTLE, array_document, attempt, places
from hypothesis import example, given, settings
from hypothesis import strategies as st

from xzarr3 import MetadataError
from xzarr3.errors import FallbackWarning, printable
from xzarr3.formats import DRAFT, V2, V3, DraftFormat, Format, documents
from xzarr3.model.metadata import ArrayMetadata

pytestmark = pytest.mark.slow
DELTA = {"id": "delta", "dtype": "<i2", "astype": "<i2"}
ZLIB = {"id": "zlib", "level": 1}
TEXT = {"id": "vlen-utf8"}
GZIP, BIG = draft_codec("gzip", level=1), draft_codec("endian", endian="big")
TRANSPOSE = draft_codec("transpose", order="F")
DRAFT_BLOSC = draft_codec("blosc", cname="lz4", clevel=1, shuffle=2, blocksize=0)
SHARD = {"name": "sharding_indexed", "configuration": {
    "chunk_shape": [3, 1], "index_codecs": [LITTLE, "crc32c"], "index_location": "start",
    "codecs": [LITTLE, {"name": "blosc", "configuration": {
        "cname": "lz4", "clevel": 1, "shuffle": "shuffle", "typesize": 2, "blocksize": 0}}],
}}  # fmt: skip
NUMBERS: list[Any] = [
    None, True, False, 0, 1, -1, 2**63, 10**40, 10**400, 0.0, 1.5, 1e300, float("nan"), float("inf"), "", "x",
    [], [0], [None], [[]], {}, {"name": "x"}, {"name": None}, {"must_understand": False},
]  # fmt: skip
"""JSON that is in no document's place."""


class Form(NamedTuple):
    """A format, valid documents of nodes as it holds them, and words that they could have."""

    format: Format
    valid: list[Any]
    words: list[Any]


FORMS = {
    "v3": Form(
        V3,
        [
            array_document(),
            array_document(
                data_type="float32", fill_value="0xffc00001", dimension_names=["x", None],
                attributes={"a": {"b": [1, None]}}, hint={"must_understand": False}, storage_transformers=[],
                codecs=[{"name": "transpose", "configuration": {"order": [1, 0]}}, SHARD, "crc32c"],
                chunk_key_encoding={"name": "v2", "configuration": {"separator": "/"}}),
            array_document(
                shape=[], chunk_grid={"name": "regular", "configuration": {"chunk_shape": []}},
                data_type={"name": "r16"}, fill_value=[1, 2],
                codecs=["bytes", "zstd", {"name": "x", "must_understand": False}]),
            array_document(
                data_type="complex64", fill_value=[1, "NaN"],
                codecs=[LITTLE, {"name": "gzip", "configuration": {"level": 5}}, {"name": "crc32c"}]),
            array_document(
                data_type="float32", codecs=[
                    {"name": "bitround", "configuration": {"keepbits": 12}},
                    {"name": "scale_offset", "configuration": {"offset": 1, "scale": 2}},
                    {"name": "cast_value", "configuration": {
                        "data_type": "int16", "rounding": "towards-zero", "out_of_range": "clamp",
                        "scalar_map": {"encode": [["NaN", 9]], "decode": [[9, "NaN"]]}}},
                    {"name": "numcodecs.delta", "configuration": {"dtype": "<i2"}},
                    {"name": "reshape", "configuration": {"shape": [[0, 1]]}},
                    {"name": "packbits", "configuration": {"padding_encoding": "first_byte", "last_bit": 15}},
                    {"name": "numcodecs.zlib", "configuration": {"level": 1}}]),
            {"zarr_format": 3, "node_type": "group", "attributes": {}, "consolidated_metadata": {
                "kind": "inline", "must_understand": False,
                "metadata": {"x": array_document(), "g": {"zarr_format": 3, "node_type": "group"}}}},
        ],
        ["bytes", {"name": "x", "must_understand": False}, {"name": "bytes"}, {"name": "sharding_indexed"}],
    ),
    "v2": Form(
        V2,
        [
            {".zarray": zarray(), ".zattrs": {"_ARRAY_DIMENSIONS": ["y", "x"], "a": [1, None]}},
            {".zarray": zarray(
                dtype=">f8", fill_value="NaN", order="F", dimension_separator="/", compressor=ZLIB)},
            {".zarray": zarray(
                filters=[DELTA, {"id": "shuffle", "elementsize": 2}, {"id": "crc32"}],
                compressor={"id": "zstd", "level": 1})},
            {".zarray": zarray(dtype="|O", fill_value="", filters=[TEXT], compressor={"id": "lz4"})},
            {".zarray": zarray(
                dtype="|O", fill_value="", compressor={"id": "zlib"}, order="F",
                filters=[{"id": "json2"}])},
            {".zarray": zarray(dtype=[["a", "<i2"], ["b", [["c", "<f4"]]]], fill_value=None)},
            {".zarray": zarray(
                dtype="<f4", shape=[], chunks=[],
                compressor={"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": -1, "blocksize": 0},
                filters=[
                    {"id": "fixedscaleoffset", "scale": 10, "offset": 1, "dtype": "<f4", "astype": "|u1"}]),
             ".zattrs": {"_ARRAY_DIMENSIONS": []}},
            {".zarray": zarray(_NCZARR_ARRAY={"dimrefs": ["/y", "/x"], "storage": "chunked"}),
             ".nczarray": {"dimrefs": ["/a", "/b"]}},
            {".zarray": zarray(dtype="<M8[ns]", fill_value=-(2**63)), ".zattrs": {"nan": float("nan")}},
            {".zgroup": {"zarr_format": 2, "_NCZARR_GROUP": {}}, ".zattrs": {"a": 1}},
            zmetadata({"a/.zarray": zarray(), "b/.zgroup": {"zarr_format": 2}, "b/.zattrs": {}}),
        ],
        [
            "F", "<f8", "|O", "<U4", "|S3", "|V9", ">M8[us]", "<M8", "<U2147483647", "<V0", "|S0", "AAAA",
            "NaN", {"id": "x"}, {"id": None}, {"id": "pickle"}, {"id": "packbits"}, {"id": "base64"},
            {"id": "vlen-bytes"}, {"id": "json2"}, {"id": "zfpy"}, {"id": "pcodec"}, {"id": "categorize"},
            {"id": "astype", "encode_dtype": ">f4", "decode_dtype": "<i2"}, {"id": "bitround", "keepbits": 3},
            {"id": "lzma", "format": 1, "check": -1, "preset": None, "filters": None},
            {"id": "bz2", "level": 1}, {"id": "quantize", "digits": 1, "dtype": "<f4"}, [["a", "<i2"]],
            [["a", "<i2", [3]]], DELTA, ZLIB, TEXT,
        ],
    ),
    "3-draft": Form(
        DRAFT,
        [
            {"array": draft_array()},
            {"array": draft_array(
                data_type={"extension": TIMES, "type": "<M8[ns]", "fallback": ["<i8", "r64"]},
                codecs=[TRANSPOSE, BIG, DRAFT_BLOSC], storage_transformers=[SHARDS], extensions=[OPTIONAL],
                dimension_names=["y", None], chunk_memory_layout=..., attributes={"foo": 42, "baz": [1, 2]})},
            {"array": draft_array(
                data_type="<f8", fill_value="NaN", codecs=[GZIP],
                chunk_grid=_documents.draft_grid([2, 3], separator="."))},
            {"group": {"attributes": {"a": 1}}},
        ],
        [
            *DATA_TYPES, "<f8", ">i2", "|b1", "<M8[ns]", "r", "r0", "r7", "r99999999999", "C", "F",
            "+Infinity", "Infinity", "0x", "0xzz", "0b1", "0x0000", "0b" + "1" * 16, GZIP, BIG, TRANSPOSE,
            DRAFT_BLOSC, SHARDS, [GZIP], [BIG, GZIP], [GZIP, BIG], [TRANSPOSE], [SHARDS], OPTIONAL,
            [OPTIONAL], _documents.URI, -(2**63), [2**62, 2**62], {"extension": TIMES, "type": ">m8[s]"},
            {"extension": "http://x.org/t", "type": 1, "fallback": ["q", "r16"]},
            draft_codec("zlib", level=1),
        ],
    ),
}  # fmt: skip
VALID = [(name, held) for name, form in FORMS.items() for held in form.valid]


def as_stored(format: Format, held: Any) -> Any:
    """What documents hold once they were text; None where there is no document of a node among them."""
    if format is V3:
        return documents.decode(json.dumps(held).encode()) if isinstance(held, dict) else None
    whole = {name: each for name, each in held.items() if isinstance(each, dict)}
    held = {name: documents.decode(json.dumps(each).encode()) for name, each in whole.items()}
    return held if held.keys() & {".zarray", ".zgroup", "array", "group"} else None


def stored_again(format: Format, meta: Any) -> Any:
    written = format.documents(meta, "a/b", getattr(meta, "consolidated", None))
    return format.held("a/b", {key: json.loads(json.dumps(value)) for key, value in written.items()})


def check_outcome(format: Format, held: Any) -> None:
    """Documents are refused with their place, or are what they say however often they are written again."""
    held, error = attempt(lambda: as_stored(format, held), MetadataError)
    if held is None:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        meta, error = attempt(lambda: format.parse(held, "a/b"), MetadataError)
        if error is not None:
            assert isinstance(error, MetadataError)
            assert (error.path, bool(error.field)) == ("a/b", True)
            assert str(error).startswith("node '/a/b', field ")
            assert printable(error.field) in str(error)
            assert len(str(error)) < 1500
            return
        written = stored_again(format, meta)
        again = format.parse(written, "a/b")
    assert text(stored_again(format, again)) == text(written)
    assert text([again.attributes, again.ignored]) == text([meta.attributes, meta.ignored])
    if isinstance(meta, ArrayMetadata):
        assert isinstance(again, ArrayMetadata)
        assert again.codecs == meta.codecs
        assert again.stores_as(meta)
        assert again.data_type.bits(again.fill_value) == meta.data_type.bits(meta.fill_value)
        assert (again.fill_is_null, again.dimension_names) == (meta.fill_is_null, meta.dimension_names)
    else:
        assert set(again.consolidated or ()) == set(meta.consolidated or ())
    for field in ("shape", "attributes", "data_type") if format is V3 else ():
        assert field not in held or isinstance(held[field], dict) or written[field] == held[field]


def altered(held: Any, path: tuple[Any, ...], how: str, value: Any) -> Any:
    """A copy of documents in which one value was replaced or dropped, or another one put beside it."""
    if not path:
        return held
    target = copied = json.loads(json.dumps(held))
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
    return copied


@st.composite
def altered_documents(draw: st.DrawFn) -> tuple[str, Any]:
    name, held = draw(st.sampled_from(VALID))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(places(held))))
        how = draw(st.sampled_from(["replace", "replace", "drop", "add"]))
        value = draw(st.one_of(JSON_VALUES, st.sampled_from(NUMBERS + FORMS[name].words)))
        held = altered(held, path, how, value)
    return name, held


@settings(max_examples=3000)
@given(altered_documents())
@example(("v2", {".zarray": zarray(dtype=[[""] * 2]), ".zattrs": {}}))
def test_any_change_is_read_or_refused(case: tuple[str, Any]) -> None:
    name, held = case
    check_outcome(FORMS[name].format, held)


@pytest.mark.parametrize("name", FORMS)
def test_every_single_replacement_is_read_or_refused(name: str) -> None:
    form = FORMS[name]
    for held in form.valid:
        assert form.format.parse(held, "a/b")
        for path in places(held):
            for value in NUMBERS + form.words:
                check_outcome(form.format, altered(held, path, "replace", value))
            check_outcome(form.format, altered(held, path, "drop", None))


@settings(max_examples=300)
@given(st.sampled_from([ENTRY_POINT, {**ENTRY_POINT, "extensions": [OPTIONAL]}]), st.data())
def test_any_json_in_an_entry_point(document: dict[str, Any], data: st.DataObject) -> None:
    path = data.draw(st.sampled_from([path for path in places(document) if path]))
    value = data.draw(st.one_of(JSON_VALUES, st.sampled_from(FORMS["3-draft"].words)))
    document = altered(document, path, "replace", value)
    assert isinstance(DraftFormat.is_entry_point(document), bool)
    format, error = attempt(lambda: DraftFormat.from_entry_point(document), MetadataError)
    if error is None:
        assert format.hierarchy_documents()["zarr.json"] == document
    else:
        assert all((error.field, error.accepted, printable(error.field) in str(error)))


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    raw = bytearray(json.dumps(draw(st.sampled_from(FORMS["v3"].valid))).encode())
    for _ in range(draw(st.integers(1, 3))):
        raw[draw(st.integers(0, len(raw) - 1))] = draw(st.integers(0, 255))
    return bytes(raw[: draw(st.one_of(st.none(), st.integers(0, len(raw))))])


@settings(max_examples=600)
@given(st.one_of(st.binary(max_size=40), JSON_VALUES.map(lambda each: json.dumps(each).encode()), damaged()))
@example(b'{"zarr_format": 3, "node_type": "array"}')
@example(b'{"zarr_format": 3, "node_type": "group", "attributes": {"\\ud800": 1}}')
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    meta, error = attempt(lambda: V3.parse(documents.decode(data, "a/b", "zarr.json"), "a/b"), MetadataError)
    assert (meta is None) == (error is not None)
