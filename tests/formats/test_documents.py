"""Documents of version 3: what the text permits is read, everything else is refused with its place."""

import json
import pickle
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from _documents import changed, document, refused, text
from _strategies import JSON_VALUES, LITTLE, array_document, attempt, stored
from _things import case, measured, refuses
from hypothesis import example, given
from hypothesis import strategies as st

import xzarr3
from xzarr3 import DataTypeValidationError, MetadataError, UnknownExtensionError
from xzarr3.formats import V2, V3, documents, v3
from xzarr3.model.metadata import ArrayMetadata, GroupMetadata

CRC = {"name": "crc32c"}
GZIP = {"name": "gzip", "configuration": {"level": 5}}
BIG = {"name": "bytes", "configuration": {"endian": "big"}}
BLOSC = {"cname": "lz4", "clevel": 1, "shuffle": "shuffle", "typesize": 2, "blocksize": 0}
TRANSPOSE = {"name": "transpose", "configuration": {"order": [1, 0]}}
GROUP = {"zarr_format": 3, "node_type": "group"}
NESTED = [(3, "own"), (2, "own"), ("3-draft", "own"), (3, "consolidated"), (2, "consolidated")]


def codec(name: str, configuration: Any) -> dict[str, Any]:
    return {"name": name, "configuration": configuration}


def sharding(chunk_shape: Any = (1, 1), **changes: Any) -> dict[str, Any]:
    whole = {"chunk_shape": list(chunk_shape), "codecs": [LITTLE], "index_codecs": [LITTLE, CRC]}
    return codec("sharding_indexed", changed(whole, **changes))


def grid(chunk_shape: Any, **configuration: Any) -> dict[str, Any]:
    return codec("regular", {"chunk_shape": chunk_shape, **configuration})


def consolidated(metadata: Any, **changes: Any) -> dict[str, Any]:
    held = changed({"kind": "inline", "must_understand": False, "metadata": metadata}, **changes)
    return {**GROUP, "attributes": {}, "consolidated_metadata": held}


def parse(document: Any, path: str = "a/b") -> Any:
    return v3.parse(documents.decode(json.dumps(document).encode(), path), path)


def test_array_of_the_specification() -> None:
    attributes = {"foo": 42, "bar": "apples", "baz": [1, 2, 3, 4]}
    meta = parse({
        "zarr_format": 3, "node_type": "array", "shape": [10000, 1000], "data_type": "float64",
        "dimension_names": ["rows", "columns"], "chunk_grid": grid([1000, 100]),
        "chunk_key_encoding": codec("default", {"separator": "/"}), "codecs": [LITTLE],
        "fill_value": "NaN", "attributes": attributes,
    })  # fmt: skip
    assert isinstance(meta, ArrayMetadata)
    assert (meta.shape, meta.dimension_names) == ((10000, 1000), ("rows", "columns"))
    assert (meta.data_type.name, meta.chunk_grid.chunk_shape) == ("float64", (1000, 100))
    assert meta.chunk_key_encoding.key((1, 23)) == "c/1/23"
    assert [codec.to_json() for codec in meta.codecs] == [LITTLE]
    assert meta.fill_value.tobytes() == bytes.fromhex("000000000000f87f")
    assert (meta.attributes, meta.zarr_format) == (attributes, 3)


def test_array_with_everything_there_is() -> None:
    inner = [BIG, codec("zstd", {"level": 7, "checksum": True})]
    hint = {"name": "example.hint", "must_understand": False, "configuration": {"x": 1}}
    shards = sharding([4, 2, 3], codecs=inner, index_codecs=[BIG, "crc32c"], index_location="start")
    transpose = {**codec("transpose", {"order": [2, 0, 1]}), "must_understand": True}
    meta = parse({
        "node_type": "array", "codecs": [transpose, shards, "crc32c", hint], "shape": [0, 5, 2**63 - 1],
        "data_type": {"name": "complex64", "configuration": {}}, "fill_value": [0, "0xffc00001"],
        "chunk_key_encoding": "v2", "chunk_grid": grid([2, 3, 4]), "dimension_names": [None, "x", ""],
        "storage_transformers": [], "attributes": {"nested": {"must_understand": True}, "": None},
        "zarr_format": 3, "x-hint": {"must_understand": False, "name": "hint"},
    })  # fmt: skip
    assert (meta.shape, meta.dimension_names) == ((0, 5, 2**63 - 1), (None, "x", ""))
    assert meta.chunk_key_encoding.key((1, 23, 45)) == "1.23.45"
    order, shard, checksum = meta.codecs
    assert order.order == (2, 0, 1)
    assert (shard.chunk_shape, shard.index_location) == ((4, 2, 3), "start")
    assert ([each.to_json() for each in shard.codecs], checksum.name) == (inner, "crc32c")
    assert meta.fill_value.tobytes() == bytes.fromhex("000000000100c0ff")
    assert meta.attributes == {"nested": {"must_understand": True}, "": None}
    assert meta.ignored["x-hint"] == {"must_understand": False, "name": "hint"}
    assert v3.document(meta)["codecs"][3] == hint  # A codec that is passed over stays in the document.


def test_groups() -> None:
    meta = parse({**GROUP, "attributes": {"spam": "ham", "eggs": 42}})
    assert isinstance(meta, GroupMetadata)
    assert (meta.attributes, meta.consolidated) == ({"spam": "ham", "eggs": 42}, None)
    assert parse({**GROUP, "consolidated_metadata": None}).consolidated is None
    assert parse({**GROUP, "x": {"must_understand": False}}).ignored == {"x": {"must_understand": False}}
    refused(parse, {**GROUP, "shape": [1]}, field="shape", kind=UnknownExtensionError)
    refused(parse, {**GROUP, "x": {"must_understand": True}}, field="x", kind=UnknownExtensionError)


def test_consolidated_metadata() -> None:
    group = {**GROUP, "attributes": {"a": 1}}
    bad = array_document(shape=[4, -6])
    arrays = {"g/x": array_document(), "y": array_document(shape=[2, 3]), "bad": bad}
    document = consolidated({"g": group, **arrays})
    assert sorted(parse(document).consolidated) == ["bad", "g", "g/x", "y"]
    root = xzarr3.open_group(xzarr3.MemoryStore({"zarr.json": json.dumps(document).encode()}))
    assert root.consolidated
    assert (root["g"].attrs["a"], root["g/x"].shape, root["g"]["x"].path) == (1, (4, 6), "g/x")
    assert root["y"].shape == (2, 3)
    refused(root.__getitem__, "bad", field="shape[1]", path="bad")  # Only who asks for it is refused.
    without = consolidated({"y": array_document()}, must_understand=...)
    assert list(parse(without).consolidated) == ["y"]


@pytest.mark.parametrize("separator", ["/", "."])
@pytest.mark.parametrize("name", ["default", "v2"])
def test_chunk_keys(name: str, separator: str) -> None:
    encodings: list[Any] = [codec(name, {"separator": separator})]
    if separator == {"default": "/", "v2": "."}[name]:
        encodings += [name, {"name": name}, codec(name, {})]
    first = {"default": f"c{separator}", "v2": ""}[name]
    keys = {(): {"default": "c", "v2": "0"}[name], (3,): f"{first}3"}
    keys[1, 23, 45] = first + separator.join(("1", "23", "45"))
    for encoding in encodings:
        found = parse(array_document(chunk_key_encoding=encoding)).chunk_key_encoding
        for coords, key in keys.items():
            assert (found.key(coords), found.coords(key, len(coords))) == (key, coords)
        wrong = ("", "c/", "c/01", "c/-1", "c/1/", "01", "-1", "1.", "c/1/23/45/6", "c/\u0661", "zarr.json")
        assert [found.coords(other, 1) for other in wrong] == [None] * len(wrong)


def test_forms_that_mean_the_same() -> None:
    for shape, lengths in (([0, 6], [0, 3]), ([0, 0], [0, 0])):  # Chunks have no length there only.
        meta = parse(array_document(shape=shape, chunk_grid=grid(lengths)))
        assert meta.chunk_grid.counts(meta.shape)[0] == 0
    scalar = parse(array_document(shape=[], chunk_grid=grid([])))
    assert (scalar.shape, scalar.attributes, scalar.dimension_names) == ((), {}, None)
    short = parse(array_document(data_type="uint8", codecs=["bytes", "zstd", "crc32c"]))
    long = array_document(data_type={"name": "uint8"}, codecs=[{"name": "bytes"}, {"name": "zstd"}, CRC])
    assert (short.codecs, short.data_type) == (parse(long).codecs, parse(long).data_type)
    # Early writers of version 3 called the codec so.
    assert parse(array_document(codecs=[codec("endian", {"endian": "big"})])).codecs[0].to_json() == BIG
    for typesize in (0, 1, ...):  # Blosc needs it only to shuffle.
        blosc = codec("blosc", changed(BLOSC, shuffle="noshuffle", typesize=typesize))
        meta = parse(array_document(codecs=[LITTLE, blosc]))
        assert meta.codecs[1].shuffle == "noshuffle"


def zstd(level: Any, checksum: Any = False) -> list[Any]:
    return [LITTLE, codec("zstd", {"level": level, "checksum": checksum})]


def blosc(**changes: Any) -> list[Any]:
    return [LITTLE, codec("blosc", {**BLOSC, **changes})]


SHARDS, CHUNK_SHAPE = "codecs[0].configuration", "chunk_grid.configuration.chunk_shape"
INVALID: list[tuple[str, str, str, list[Any]]] = [
    # field, field of the error, part of what would be accepted, values
    ("zarr_format", "zarr_format", "3", [..., 2, 4, "3", True, None]),
    ("node_type", "node_type", "'array', 'group'", [..., "dataset", None, ["array"]]),
    ("shape", "shape", "array", [..., 4, None, "46", {"0": 4}]), ("shape", "shape", "64", [[1] * 65]),
    ("shape", "shape[0]", "int", [[True, 6]]),
    ("shape", "shape[1]", "int", [[4, "6"], [4, 6.0], [4, 6.5], [4, None]]),
    ("shape", "shape[1]", "from 0 to 2^63 - 1", [[4, -1], [4, 2**63], [4, 10**30]]),
    ("data_type", "data_type", "object", [..., None]), ("data_type", "data_type", "a name", [5, []]),
    ("data_type", "data_type", "'name'", [{}, {"name": 5}]),
    ("data_type", "data_type.configuration", "an object", [codec("int16", []), codec("int16", None)]),
    ("data_type", "data_type.must_understand", "true",
     [{"name": "int16", "must_understand": False}, {"name": "x", "must_understand": False},
      {"name": "int16", "must_understand": "true"}]),
    ("chunk_grid", "chunk_grid", "object", [..., None, [2, 3]]),
    ("chunk_grid", "chunk_grid", "'name'", [{"configuration": {}}]),
    ("chunk_grid", "chunk_grid.must_understand", "true",
     [{**grid([2, 3]), "must_understand": value} for value in (False, 0)]),
    ("chunk_grid", CHUNK_SHAPE, "integers",
     ["regular", {"name": "regular"}, grid(None), grid(2), grid([2, "3"]), grid([2, 3.0]), grid([2, True]),
      grid([2, 2**64])]),
    ("chunk_grid", CHUNK_SHAPE, "2 dimensions", [grid([2]), grid([2, 3, 1])]),
    ("chunk_grid", CHUNK_SHAPE, "at least 1", [grid([2, 0]), grid([2, -3])]),
    ("chunk_key_encoding", "chunk_key_encoding", "object", [..., None]),
    ("chunk_key_encoding", "chunk_key_encoding", "'name'", [{"name": None}]),
    ("chunk_key_encoding", "chunk_key_encoding.must_understand", "true",
     [{"name": "v2", "must_understand": False}]),
    ("chunk_key_encoding", "chunk_key_encoding.configuration.separator", "'/', '.'",
     [codec(name, {"separator": value})
      for value in ("-", "", "//", None, 1, ["/"], True) for name in ("default", "v2")]),
    ("codecs", "codecs", "array", [..., None, "bytes", {"name": "bytes"}]),
    ("codecs", "codecs", "not empty", [[]]), ("codecs", "codecs[0]", "object", [[None]]),
    ("codecs", "codecs[1]", "a name", [[LITTLE, 5]]),
    ("codecs", "codecs[1]", "'name'", [[LITTLE, {}], [LITTLE, {"name": None}]]),
    ("codecs", "codecs[1].configuration", "object",
     [[LITTLE, codec("zstd", [])], [LITTLE, codec("zstd", None)]]),
    ("codecs", "codecs[1].must_understand", "true",
     [[LITTLE, {**CRC, "must_understand": value}] for value in ("no", None)]),
    ("codecs", "codecs", "array to bytes",
     [[CRC], [GZIP, LITTLE], [TRANSPOSE], [{"name": "x.y", "must_understand": False}]]),
    ("codecs", "codecs", "one array to bytes", [[LITTLE, LITTLE], [sharding(), LITTLE]]),
    ("codecs", "codecs", "array to array codecs, then", [[LITTLE, TRANSPOSE]]),
    ("codecs", "codecs[0].configuration.endian", "'little', 'big'",
     [["bytes"], *([codec("bytes", {"endian": value})] for value in ("LITTLE", None))]),
    ("codecs", "codecs[1].configuration.level", "integer from 0 to 9",
     [[LITTLE, "gzip"],
      *([LITTLE, codec("gzip", {"level": value})] for value in (-1, 10, 5.0, "5", None, True, 10**30))]),
    ("codecs", "codecs[1].configuration.level", "integer from",
     [zstd(level) for level in (23, -131073, 0.0, None, True)]),
    ("codecs", "codecs[1].configuration.checksum", "true or false", [zstd(0, 1)]),
    ("codecs", "codecs[1].configuration.cname", "'lz4'",
     [[LITTLE, "blosc"], blosc(cname="lz5"), blosc(cname=None)]),
    ("codecs", "codecs[1].configuration.clevel", "0 to 9", [blosc(clevel=10), blosc(clevel="5")]),
    ("codecs", "codecs[1].configuration.shuffle", "'noshuffle', 'shuffle', 'bitshuffle'",
     [blosc(shuffle=value) for value in (1, "yes", None)]),
    ("codecs", "codecs[1].configuration.typesize", "1",
     [blosc(typesize=value) for value in (-1, 0, 1.5, None)]),
    ("codecs", "codecs[1].configuration.blocksize", "0", [blosc(blocksize=-1), blosc(blocksize=2**40)]),
    ("codecs", "codecs[0].configuration.order", "",
     [[codec("transpose", {"order": order}), LITTLE] for order in (
         [0], [0, 1, 2], [0, 0], [1, 2], [-1, 0], [0.0, 1], ["0", "1"], [True, 0], "C", "F", None, 5)]),
    ("codecs", "codecs[0].configuration.order", "integers", [["transpose", LITTLE]]),
    ("codecs", f"{SHARDS}.chunk_shape", "",
     [[sharding(shape)] for shape in (
         [2], [2, 3, 1], [3, 3], [2, 2], [4, 6], [0, 1], [-1, 1], [1.0, 1], [True, 1], [2**70, 1])]),
    ("codecs", f"{SHARDS}.codecs", "list", [[sharding(codecs=...)]]),
    ("codecs", f"{SHARDS}.codecs", "not empty", [[sharding(codecs=[])]]),
    ("codecs", f"{SHARDS}.codecs", "array", [[sharding(codecs="bytes")]]),
    ("codecs", f"{SHARDS}.codecs", "array to bytes", [[sharding(codecs=[GZIP])]]),
    ("codecs", f"{SHARDS}.codecs[0].configuration.endian", "'little'", [[sharding(codecs=["bytes"])]]),
    ("codecs", f"{SHARDS}.codecs[1].name", " more", [[sharding(codecs=[LITTLE, "nope"])]]),
    ("codecs", f"{SHARDS}.codecs[0].configuration.chunk_shape", "divide",
     [[sharding(codecs=[sharding([3, 3])])]]),
    ("codecs", f"{SHARDS}.index_codecs", "list", [[sharding(index_codecs=...)]]),
    ("codecs", f"{SHARDS}.index_codecs", "not empty", [[sharding(index_codecs=[])]]),
    ("codecs", f"{SHARDS}.index_codecs", "array to bytes", [[sharding(index_codecs=[CRC])]]),
    ("codecs", f"{SHARDS}.index_codecs", "fixed size", [[sharding(index_codecs=[LITTLE, GZIP])]]),
    ("codecs", f"{SHARDS}.index_codecs[0].configuration.endian", "'little'",
     [[sharding(index_codecs=["bytes"])]]),
    ("codecs", f"{SHARDS}.index_location", "'start'",
     [[sharding(index_location=place)] for place in ("middle", None, 0, True, "End")]),
    ("dimension_names", "dimension_names", "array", ["xy", {"x": 0}]),
    ("dimension_names", "dimension_names", "2 strings", [["x"], [], ["x", "y", "z"]]),
    ("dimension_names", "dimension_names[1]", "a string", [["x", 1]]),
    ("attributes", "attributes", "object", [None, [], "x"]),
    ("storage_transformers", "storage_transformers", "array", [None, {}]),
    ("storage_transformers", "storage_transformers[0]", "object", [[5]]),
]  # fmt: skip


@pytest.mark.parametrize("field", dict.fromkeys(field for field, *_ in INVALID))
def test_malformed_field(field: str) -> None:
    for place, accepted, values in (row for of, *row in INVALID if of == field):
        for value in values:
            expected = field if value is ... else place
            error = refused(parse, array_document(**{field: value}), field=expected)
            assert value is ... or accepted in str(error.accepted)
            if value is None or isinstance(error.found, (int, float, str)):
                assert f"found {error.found!r}" in str(error)


def test_fill_values_and_literals_of_older_writers() -> None:
    refused(parse, array_document(fill_value=...), field="fill_value")
    wrong = {"bool": 0, "int8": 128, "float32": "nan", "complex128": [0], "r16": "AA=="}
    for data_type, fill in wrong.items():
        document = array_document(data_type=data_type, fill_value=fill)
        error = refused(parse, document, field="fill_value", kind=DataTypeValidationError)
        assert repr(data_type) in str(error)
    refused(parse, {}, field="zarr_format")
    # Literals of older writers are read.
    form = json.dumps(array_document(data_type="float32", fill_value="FILL", attributes={"x": "FILL"}))
    for literal, value in (("NaN", np.nan), ("Infinity", np.inf), ("-Infinity", -np.inf)):
        meta = v3.parse(documents.decode(form.replace('"FILL"', literal).encode()))
        assert isinstance(meta, ArrayMetadata)
        assert np.array_equal(meta.fill_value, value, equal_nan=True)
    # Where they were read among attributes, they stay; nobody can set them.
    assert json.loads(documents.encode(v3.document(meta)))["attributes"] == {"x": -np.inf}
    assert v3.document(meta)["fill_value"] == -np.inf
    assert v3.document(replace(meta, origin=None))["fill_value"] == "-Infinity"
    nan = [{"a": float("nan")}]
    refuses(lambda given: documents.plain_attributes(given, "a/b"), nan, MetadataError, "JSON")


UNKNOWN: list[tuple[str, str, str, list[Any]]] = [
    # field, field of the error, part of what would be accepted, values
    ("data_type", "data_type", "'numpy.datetime64'", ["datetime64"]),
    ("data_type", "data_type", "'int8'", [codec("urn:example:datetime", {"unit": "ns"})]),
    ("data_type", "data_type", "'int16'", [codec("int16", {"x": 1})]),
    ("data_type", "data_type", "and 34 more", ["r7"]),
    ("data_type", "data_type.x", "'name'", [{"name": "int16", "x": {"must_understand": True}}]),
    ("chunk_grid", "chunk_grid.name", "'regular'", [codec("hexagonal", {}), "rectangular"]),
    ("chunk_grid", "chunk_grid.configuration.origin", "chunk_shape", [grid([2, 3], origin=[0, 0])]),
    ("chunk_grid", "chunk_grid.x", "'configuration'", [{**grid([2, 3]), "x": 1}]),
    ("chunk_key_encoding", "chunk_key_encoding.name", "'default', 'v2'", ["fanout"]),
    ("chunk_key_encoding", "chunk_key_encoding.configuration.order", "separator",
     [codec("default", {"order": "C"})]),
    ("chunk_key_encoding", "chunk_key_encoding.x", "'configuration'", [{"name": "v2", "x": None}]),
    ("codecs", "codecs[1].name", " more",
     [[LITTLE, "lzma"], [LITTLE, codec("https://example.com/c", {"a": 1})],
      [LITTLE, {"name": "lzma", "must_understand": True}]]),
    ("codecs", "codecs[1].level", "'configuration'", [[LITTLE, {**CRC, "level": 3}]]),
    ("codecs", "codecs[1].configuration.x", "no such", [[LITTLE, codec("crc32c", {"x": 1})]]),
    ("codecs", "codecs[0].configuration.x", "'endian'", [[codec("bytes", {"endian": "little", "x": {}})]]),
    ("codecs", "codecs[0].configuration.x", "'chunk_shape'", [[sharding(x=1)]]),
    ("storage_transformers", "storage_transformers[0].name", "none", [["cache"]]),
    ("storage_transformers", "storage_transformers[1].name", "none",
     [[{"name": "a", "must_understand": False}, {"name": "b"}]]),
    ("extensions", "extensions", "must_understand", [[]]),
    ("x", "x", "must_understand",
     [None, False, {}, {"must_understand": True}, {"must_understand": 0}, {"must_understand": "false"},
      [{"must_understand": False}]]),
    ("consolidated_metadata", "consolidated_metadata", "must_understand", [codec("inline", {})]),
]  # fmt: skip


@pytest.mark.parametrize(("field", "place", "accepted", "values"), UNKNOWN, ids=[row[1] for row in UNKNOWN])
def test_unknown_extension(field: str, place: str, accepted: str, values: list[Any]) -> None:
    for value in values:
        error = refused(parse, array_document(**{field: value}), field=place, kind=UnknownExtensionError)
        assert accepted in str(error.accepted)


def test_malformed_consolidated_metadata() -> None:
    whole = consolidated({"x": array_document()})
    for field, values in {
        "metadata": [..., [], {"x": 5}, *({path: array_document()} for path in ("../x", "", "/x"))],
        "kind": [..., "file"], "must_understand": [True],
    }.items():  # fmt: skip
        for value in values:
            held = changed(whole["consolidated_metadata"], **{field: value})
            error = refused(parse, {**whole, "consolidated_metadata": held})
            assert str(error.field).startswith(f"consolidated_metadata.{field}")
    for other in (5, [], "inline", True):
        refused(parse, {**whole, "consolidated_metadata": other}, field="consolidated_metadata")


def test_what_may_be_ignored_is_kept_on_rewrite() -> None:
    hint = {"must_understand": False, "name": "hint", "configuration": {"a": [1, {"b": None}]}}
    transformers = [{**codec("example.cache", {"size": 1}), "must_understand": False}]
    given = {"x-hint": hint, "attributes": {"old": 1}, "storage_transformers": transformers}
    before = array_document(**given)
    array = stored(before)
    array.attrs["new"] = 2
    array.resize((5, 6))
    array.append(np.zeros((1, 6), "int16"))
    assert document(array.store) == {**before, "attributes": {"old": 1, "new": 2}, "shape": [6, 6]}
    store = xzarr3.MemoryStore({"zarr.json": json.dumps({**GROUP, "x-hint": hint}).encode()})
    xzarr3.open_group(store, mode="r+").attrs["a"] = 1
    xzarr3.consolidate_metadata(store)
    assert document(store)["x-hint"] == hint


@pytest.mark.parametrize("data", [
    b"", b" ", b"\0" * 8, b"\xff\xfe", b"nul", b"null", b"3", b"[]", b'"x"', b"true", b"{", b'{"a":}',
    b"{}x", b'{"a" 1}', b"{'a': 1}", b'{"a": 01}', b'{"a": 1,}', b'{"\xff": 1}', b"<html></html>",
    b'{"a": ' + b"9" * 5000 + b"}", b"[" * 200_000, b'{"a":' * 200_000, b"-", b'{"zarr_format":3,',
], ids=lambda data: repr(data[:20]))  # fmt: skip
def test_text_that_is_no_json_object(data: bytes) -> None:
    (error,) = refuses(lambda name: documents.decode(data, "a/b", name), ["zarr.json"], MetadataError)
    assert (error.path, "'/a/b'" in str(error), "zarr.json" in str(error)) == ("a/b", True, True)
    unknown = json.dumps(array_document(data_type="int17")).encode()
    stores = [xzarr3.MemoryStore({"a/b/zarr.json": value}) for value in (data, unknown)]
    for opener in (xzarr3.open, xzarr3.open_array, xzarr3.open_group):
        refuses(partial(opener, path="/a/b/"), stores, MetadataError, "'/a/b'")


@pytest.mark.parametrize("field", ["shape", "data_type", "chunk_grid", "codecs", "fill_value", "x"])
@pytest.mark.parametrize("depth", [50, 500, 900, 5_000, 100_000])
def test_deep_nesting(field: str, depth: int) -> None:
    form = json.dumps(array_document(**{field: "DEEP"}))
    for opening, closing in (("[", "]"), ('{"a":', "}"), ('{"name":', "}")):
        data = form.replace('"DEEP"', opening * depth + "1" + closing * depth).encode()
        refuses(lambda data: v3.parse(documents.decode(data, "", "zarr.json")), [data], MetadataError)


@pytest.mark.parametrize("depth", [3, 30, 300, 1000])
def test_shards_within_shards_within_shards(depth: int) -> None:
    codecs = json.dumps([LITTLE])
    for _ in range(depth):
        codecs = f"[{json.dumps(sharding([2, 3], codecs='INNER'))}]".replace('"INNER"', codecs)
    data = json.dumps(array_document(codecs="CODECS")).replace('"CODECS"', codecs).encode()
    meta, error = attempt(lambda: v3.parse(documents.decode(data, "", "zarr.json")), MetadataError)
    if error is None:
        assert isinstance(v3.document(meta), dict)
    assert error is None or depth > 3


@pytest.mark.slow
@given(st.dictionaries(st.text(), JSON_VALUES))
@example({"a": float("nan"), "b": [float("inf"), {}], "c": []})
@example({"größe": 'x: {"a", [b]}\\', "\ud800": "\udfff", "n": 2**70, "z": -0.0})
def test_documents_are_indented_as_json_does_it(document: dict[str, Any]) -> None:
    assert documents.encode(document) == json.dumps(document, indent=2).encode()


def test_a_new_node_is_held_beside_those_of_its_group() -> None:
    before = ["x", "a", "a/b", "a/b/c", "d", "d/e"]
    document: Any = {"consolidated_metadata": {"metadata": dict.fromkeys(before)}}
    for path, after in (
        ("a/f", ["x", "a", "a/b", "a/b/c", "a/f", "d", "d/e"]), ("g", [*before, "g"]), ("a/b", before),
        ("lost/h", [*before, "lost/h"]),
    ):  # fmt: skip
        changed = v3.V3.update_consolidated(document, path, GroupMetadata())
        assert changed is not None
        assert list(changed["consolidated_metadata"]["metadata"]) == after
        assert changed["consolidated_metadata"]["metadata"][path] == v3.V3.hold(GroupMetadata(), path)


def nested(levels: int, zarr_format: Any, place: str) -> xzarr3.MemoryStore:
    """An array, or a group with a consolidated copy of it, whose attributes have many levels."""
    store = xzarr3.MemoryStore()
    xzarr3.create_group(store, zarr_format=zarr_format)
    xzarr3.create_array(store, "a", shape=3, dtype="i4", zarr_format=zarr_format, attributes={"deep": "here"})
    if place == "consolidated":
        xzarr3.consolidate_metadata(store)
    deep = (b"[" * levels) + (b"]" * levels)
    for key in list(store.list()):
        if place == "own" or "/" not in key:
            store.set(key, bytes(store.get(key) or b"").replace(b'"here"', deep))
    return store


@pytest.mark.parametrize(("zarr_format", "place"), NESTED)
def test_attributes_nested_too_deeply_are_refused_when_they_are_read(zarr_format: Any, place: str) -> None:
    openers: list[Callable[[Any], Any]] = [lambda store: xzarr3.open_array(store, "a")]
    if place == "consolidated":
        openers = [xzarr3.open_group, lambda store: xr.open_dataset(store, engine="xzarr3")]
    stores = [nested(levels, zarr_format, place) for levels in (300, 700, 5000, 200_000)]
    for opener in openers:
        refuses(opener, stores, MetadataError, r"nested too deeply.*256 levels")


@pytest.mark.parametrize(("zarr_format", "place"), NESTED[:-1])
def test_attributes_nested_as_deeply_as_may_be_are_copied(zarr_format: Any, place: str) -> None:
    store = nested(240, zarr_format, place)
    if place == "own":
        xzarr3.open_array(store, "a", mode="r+").attrs["x"] = 1  # The document is written again.
    array = xzarr3.open_group(store)["a"]
    for found in (dict(array.attrs), array.attrs.asdict(), pickle.loads(pickle.dumps(array)).attrs):
        value, levels = found["deep"], 0
        while value:
            (value,), levels = value, levels + 1
        assert levels == 239


@pytest.mark.slow
def test_a_document_that_inflates_is_refused_before_it_does(tmp_path: Path) -> None:
    path, spaces = tmp_path / "a.zip", b" " * 2**20
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("zarr.json", "w") as file:
        file.write(json.dumps(GROUP)[:-1].encode())
        for _ in range(300):
            file.write(spaces)
        file.write(b"}")
    assert path.stat().st_size < 2**20
    zipped = xzarr3.ZipStore, lambda path: xzarr3.FsspecStore(f"zip::{path}")
    for opener in (xzarr3.open_group, xzarr3.open, xzarr3.create_group):
        for store in zipped if opener is xzarr3.open_group else zipped[:1]:
            with measured() as peak:
                refuses(opener, [store(path)], MetadataError, r"too large.*67108864 bytes")
            assert peak[0] < 16 * 2**20


@pytest.mark.parametrize("kind", ["memory", "local", "wrapped", "fsspec"])
def test_documents_have_a_size_that_can_be_set(kind: str, tmp_path: Path) -> None:
    store: xzarr3.Store = xzarr3.LocalStore(tmp_path)
    if kind in ("memory", "wrapped"):
        store = xzarr3.MemoryStore()
    attributes = {"text": "x" * 5000}
    xzarr3.create_array(store, "a", data=np.arange(3), attributes=attributes)
    if kind == "wrapped":
        store = xzarr3.WrapperStore(store)
    elif kind == "fsspec":
        store = xzarr3.FsspecStore(tmp_path.as_uri())
    with xzarr3.set_options(max_document_bytes=4000):
        refuses(lambda opener: opener(), (
            lambda: xzarr3.open_array(store, "a"), lambda: dict(xzarr3.open_group(store).members())["a"],
            lambda: xzarr3.create_array(store, "a", shape=3, dtype="i4"),
        ), MetadataError, r"'/a'.*zarr.json.*too large.*4000 bytes")  # fmt: skip
    assert dict(xzarr3.open_array(store, "a").attrs) == attributes


DATA = Path(__file__).parents[1] / "data"
V2_NAMES = (".zarray", ".zgroup", ".zattrs", ".nczarray")


def held_documents() -> dict[str, tuple[Any, Any]]:
    """The format and the documents of every node, by its path, those of consolidated copies included."""
    found: dict[str, tuple[Any, Any]] = {}
    for path in sorted(DATA.rglob("zarr.json")):
        name, document = str(path.parent.relative_to(DATA)), documents.decode(path.read_bytes())
        below = (document.get("consolidated_metadata") or {}).get("metadata", {})
        found |= {name: (V3, document)} | {f"{name}//{each}": (V3, held) for each, held in below.items()}
    for folder in sorted({path.parent for name in (".zarray", ".zgroup") for path in DATA.rglob(name)}):
        paths = [folder / name for name in V2_NAMES if (folder / name).exists()]
        held = {path.name: documents.decode(path.read_bytes()) for path in paths}
        found[str(folder.relative_to(DATA))] = (V2, held)
    return found


def metadata_of(name: str) -> Any:
    format, held = HELD[name]
    return attempt(lambda: format.parse(held, name), MetadataError)[0]


HELD = held_documents()
READ = [name for name in HELD if metadata_of(name) is not None]
WRITERS = sorted({name.partition("/")[0] for name in READ})


def without(held: Any, *fields: str) -> Any:
    """Documents without some of their fields, and without those that a rewrite adds with nothing in them."""
    if "zarr_format" in held:
        return {name: value for name, value in held.items() if name not in fields}
    return {
        name: without({"zarr_format": 2, **document}, *fields) if name != ".zattrs" else document
        for name, document in held.items()
        if name in (".zarray", ".zgroup") or (name == ".zattrs" and document and "attributes" not in fields)
    }


def test_there_are_documents_of_every_writer() -> None:
    assert len(HELD) - 25 < len(READ) > 500
    assert {name.partition("/")[0].rpartition("-")[0] for name in HELD} >= {"gdal", "netcdf-c", "tensorstore"}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_rewrite_loses_nothing(writer: str) -> None:
    for name in READ:
        if name.startswith(f"{writer}/"):
            with case(name):
                check_rewrite(name)


def check_rewrite(name: str) -> None:
    """Written again a node is as it was, and with a change in one field it differs in that field alone."""
    (format, held), meta = HELD[name], metadata_of(name)

    def check(changed: Any, *fields: str) -> Any:
        # What is in the documents, whatever they are kept in.
        found, fields = json.loads(text(format.hold(changed))), ("consolidated_metadata", *fields)
        assert text(without(found, *fields)) == text(without(json.loads(text(held)), *fields))
        return format.parse(found, name)

    check(meta)
    added = replace(meta, attributes={**meta.attributes, "added": [1]})
    assert check(added, "attributes").attributes["added"] == [1]
    if isinstance(meta, ArrayMetadata):
        assert format.parse(format.hold(replace(meta, origin=None)), name).stores_as(meta)
        if meta.shape and meta.chunk_grid.is_regular:
            shape = (meta.shape[0] + 1, *meta.shape[1:])
            assert check(replace(meta, shape=shape), "shape").shape == shape
