"""Metadata documents: what the text permits is read, everything else is refused with its place."""

from __future__ import annotations

import copy
import json
import pickle
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from _strategies import JSON_VALUES, LITTLE, array_document, attempt, places, stored
from hypothesis import example, given, settings
from hypothesis import strategies as st

import xzarr3
from xzarr3 import DataTypeValidationError, MetadataError, UnknownExtensionError
from xzarr3.formats import documents, v3
from xzarr3.model.metadata import ArrayMetadata, GroupMetadata

CRC = {"name": "crc32c"}
GZIP = {"name": "gzip", "configuration": {"level": 5}}
BLOSC = {
    "name": "blosc",
    "configuration": {"cname": "lz4", "clevel": 1, "shuffle": "shuffle", "typesize": 2, "blocksize": 0},
}
TRANSPOSE = {"name": "transpose", "configuration": {"order": [1, 0]}}


def sharding(chunk_shape: Any = (1, 1), **changes: Any) -> dict[str, Any]:
    configuration = {
        "chunk_shape": list(chunk_shape), "codecs": [LITTLE], "index_codecs": [LITTLE, CRC], **changes
    }  # fmt: skip
    return {
        "name": "sharding_indexed",
        "configuration": {field: value for field, value in configuration.items() if value is not ...},
    }


def parse(document: Any, path: str = "a/b") -> Any:
    return v3.parse(documents.decode(json.dumps(document).encode(), path), path)


def refused(document: Any, kind: type[MetadataError] = MetadataError) -> MetadataError:
    """The error of a document, after a check that it says what it has to say."""
    with pytest.raises(kind) as caught:
        parse(document)
    error = caught.value
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


# Golden documents, written by hand from the text


def test_array_of_the_specification() -> None:
    meta = parse(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [10000, 1000],
            "dimension_names": ["rows", "columns"],
            "data_type": "float64",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1000, 100]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
            "fill_value": "NaN",
            "attributes": {"foo": 42, "bar": "apples", "baz": [1, 2, 3, 4]},
        }
    )
    assert isinstance(meta, ArrayMetadata)
    assert meta.shape == (10000, 1000)
    assert meta.dimension_names == ("rows", "columns")
    assert meta.data_type.name == "float64"
    assert meta.chunk_grid.chunk_shape == (1000, 100)
    assert meta.chunk_key_encoding.key((1, 23)) == "c/1/23"
    assert [codec.to_json() for codec in meta.codecs] == [LITTLE]
    assert meta.fill_value.tobytes() == bytes.fromhex("000000000000f87f")
    assert meta.attributes == {"foo": 42, "bar": "apples", "baz": [1, 2, 3, 4]}
    assert meta.zarr_format == 3


def test_array_with_everything_there_is() -> None:
    meta = parse(
        {
            "node_type": "array",
            "codecs": [
                {"name": "transpose", "configuration": {"order": [2, 0, 1]}, "must_understand": True},
                {
                    "name": "sharding_indexed",
                    "configuration": {
                        "chunk_shape": [4, 2, 3],
                        "codecs": [
                            {"name": "bytes", "configuration": {"endian": "big"}},
                            {"name": "zstd", "configuration": {"level": 7, "checksum": True}},
                        ],
                        "index_codecs": [{"name": "bytes", "configuration": {"endian": "big"}}, "crc32c"],
                        "index_location": "start",
                    },
                },
                "crc32c",
                {"name": "example.hint", "must_understand": False, "configuration": {"x": 1}},
            ],
            "shape": [0, 5, 2**63 - 1],
            "data_type": {"name": "complex64", "configuration": {}},
            "fill_value": [0, "0xffc00001"],
            "chunk_key_encoding": "v2",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3, 4]}},
            "dimension_names": [None, "x", ""],
            "storage_transformers": [],
            "attributes": {"nested": {"must_understand": True}, "": None},
            "zarr_format": 3,
            "x-hint": {"must_understand": False, "name": "hint"},
        }
    )
    assert meta.shape == (0, 5, 2**63 - 1)
    assert meta.dimension_names == (None, "x", "")
    assert meta.chunk_key_encoding.key((1, 23, 45)) == "1.23.45"
    assert [codec.name for codec in meta.codecs] == ["transpose", "sharding_indexed", "crc32c"]
    assert meta.codecs[0].order == (2, 0, 1)
    shard = meta.codecs[1]
    assert shard.chunk_shape == (4, 2, 3)
    assert shard.index_location == "start"
    assert [codec.to_json() for codec in shard.codecs] == [
        {"name": "bytes", "configuration": {"endian": "big"}},
        {"name": "zstd", "configuration": {"level": 7, "checksum": True}},
    ]
    assert meta.fill_value.tobytes() == bytes.fromhex("000000000100c0ff")
    assert meta.attributes == {"nested": {"must_understand": True}, "": None}
    assert meta.ignored["x-hint"] == {"must_understand": False, "name": "hint"}
    # A codec that is passed over stays in the document when that is written again.
    assert v3.document(meta)["codecs"][3] == {
        "name": "example.hint",
        "must_understand": False,
        "configuration": {"x": 1},
    }


def test_least_array() -> None:
    meta = parse(array_document(codecs=["bytes"], data_type="uint8", chunk_key_encoding="default"))
    assert meta.attributes == {}
    assert meta.dimension_names is None
    assert meta.chunk_key_encoding.key((0, 1)) == "c/0/1"
    scalar = parse(array_document(shape=[], chunk_grid=grid([])))
    assert scalar.shape == ()
    assert scalar.chunk_key_encoding.key(()) == "c"


def test_groups() -> None:
    assert parse({"zarr_format": 3, "node_type": "group"}) is not None
    meta = parse({"zarr_format": 3, "node_type": "group", "attributes": {"spam": "ham", "eggs": 42}})
    assert isinstance(meta, GroupMetadata)
    assert meta.attributes == {"spam": "ham", "eggs": 42}
    assert meta.consolidated is None
    meta = parse({"zarr_format": 3, "node_type": "group", "consolidated_metadata": None})
    assert meta.consolidated is None


def consolidated(metadata: Any, **changes: Any) -> dict[str, Any]:
    held = {"kind": "inline", "must_understand": False, "metadata": metadata, **changes}
    return {
        "zarr_format": 3,
        "node_type": "group",
        "attributes": {},
        "consolidated_metadata": {field: value for field, value in held.items() if value is not ...},
    }


def test_consolidated_metadata() -> None:
    group = {"zarr_format": 3, "node_type": "group", "attributes": {"a": 1}}
    document = consolidated({"g": group, "g/x": array_document(), "y": array_document(shape=[2, 3])})
    assert sorted(parse(document).consolidated) == ["g", "g/x", "y"]
    store = xzarr3.MemoryStore({"zarr.json": json.dumps(document).encode()})
    root = xzarr3.open_group(store)
    assert root.consolidated
    assert root["g"].attrs["a"] == 1
    assert root["g/x"].shape == (4, 6)
    assert root["g"]["x"].path == "g/x"
    assert root["y"].shape == (2, 3)
    without = consolidated({"y": array_document()}, must_understand=...)
    assert list(parse(without).consolidated) == ["y"]


def grid(chunk_shape: Any, **configuration: Any) -> dict[str, Any]:
    return {"name": "regular", "configuration": {"chunk_shape": chunk_shape, **configuration}}


@pytest.mark.parametrize(
    ("encoding", "keys"),
    [
        ("default", ["c", "c/3", "c/1/23/45"]),
        ("v2", ["0", "3", "1.23.45"]),
        ({"name": "default"}, ["c", "c/3", "c/1/23/45"]),
        ({"name": "default", "configuration": {}}, ["c", "c/3", "c/1/23/45"]),
        ({"name": "default", "configuration": {"separator": "/"}}, ["c", "c/3", "c/1/23/45"]),
        ({"name": "default", "configuration": {"separator": "."}}, ["c", "c.3", "c.1.23.45"]),
        ({"name": "v2", "configuration": {"separator": "/"}}, ["0", "3", "1/23/45"]),
        ({"name": "v2", "configuration": {"separator": "."}}, ["0", "3", "1.23.45"]),
    ],
    ids=str,
)
def test_chunk_keys(encoding: Any, keys: list[str]) -> None:
    found = parse(array_document(chunk_key_encoding=encoding)).chunk_key_encoding
    coordinates: list[tuple[int, ...]] = [(), (3,), (1, 23, 45)]
    for coords, key in zip(coordinates, keys, strict=True):
        assert found.key(coords) == key
        assert found.coords(key, len(coords)) == coords
    for other in ("", "c/", "c/01", "c/-1", "c/1/", "01", "-1", "1.", "c/1/23/45/6", "c/\u0661", "zarr.json"):
        assert found.coords(other, 1) is None


def test_shorthand_names_mean_objects_with_the_name_only() -> None:
    short = parse(array_document(data_type="uint8", codecs=["bytes", "zstd", "crc32c"]))
    long = parse(
        array_document(data_type={"name": "uint8"}, codecs=[{"name": "bytes"}, {"name": "zstd"}, CRC])
    )
    assert short.codecs == long.codecs
    assert short.data_type == long.data_type


def test_blosc_needs_its_typesize_only_to_shuffle() -> None:
    for typesize in (0, 1, ...):
        configuration = {**BLOSC["configuration"], "shuffle": "noshuffle", "typesize": typesize}
        configuration = {field: value for field, value in configuration.items() if value is not ...}
        meta = parse(array_document(codecs=[LITTLE, {"name": "blosc", "configuration": configuration}]))
        assert meta.codecs[1].shuffle == "noshuffle"


def test_names_of_early_version_3_writers() -> None:
    codecs = parse(array_document(codecs=[{"name": "endian", "configuration": {"endian": "big"}}])).codecs
    assert codecs[0].to_json() == {"name": "bytes", "configuration": {"endian": "big"}}


# Malformed documents: each names the field, what was found and what would be accepted

ARRAY_FIELDS = (
    "shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs",
    "zarr_format", "node_type",
)  # fmt: skip


@pytest.mark.parametrize("field", ARRAY_FIELDS)
def test_missing_field(field: str) -> None:
    assert refused(array_document(**{field: ...})).field == field


INVALID: list[tuple[str, Any, str, Any]] = [
    # field, value, field of the error, part of what would be accepted
    ("zarr_format", 2, "zarr_format", "3"),
    ("zarr_format", 4, "zarr_format", "3"),
    ("zarr_format", "3", "zarr_format", "3"),
    ("zarr_format", True, "zarr_format", "3"),
    ("zarr_format", None, "zarr_format", "3"),
    ("node_type", "dataset", "node_type", "'array', 'group'"),
    ("node_type", None, "node_type", "'array', 'group'"),
    ("node_type", ["array"], "node_type", "'array', 'group'"),
    ("shape", 4, "shape", "array"),
    ("shape", None, "shape", "array"),
    ("shape", "46", "shape", "array"),
    ("shape", {"0": 4}, "shape", "array"),
    ("shape", [4, "6"], "shape[1]", "int"),
    ("shape", [4, 6.0], "shape[1]", "int"),
    ("shape", [4, 6.5], "shape[1]", "int"),
    ("shape", [True, 6], "shape[0]", "int"),
    ("shape", [4, None], "shape[1]", "int"),
    ("shape", [4, -1], "shape[1]", "from 0"),
    ("shape", [4, 2**63], "shape[1]", "2^63 - 1"),
    ("shape", [4, 10**30], "shape[1]", "2^63 - 1"),
    ("shape", [1] * 65, "shape", "64"),
    ("data_type", None, "data_type", "object"),
    ("data_type", 5, "data_type", "str"),
    ("data_type", [], "data_type", "str"),
    ("data_type", {}, "data_type", "'name'"),
    ("data_type", {"name": 5}, "data_type", "'name'"),
    ("data_type", {"name": "int16", "configuration": []}, "data_type", "'configuration'"),
    ("data_type", {"name": "int16", "configuration": None}, "data_type", "'configuration'"),
    ("data_type", {"name": "int16", "must_understand": False}, "data_type.must_understand", "true"),
    ("data_type", {"name": "x", "must_understand": False}, "data_type.must_understand", "true"),
    ("data_type", {"name": "int16", "must_understand": "true"}, "data_type.must_understand", "true"),
    ("chunk_grid", None, "chunk_grid", "object"),
    ("chunk_grid", [2, 3], "chunk_grid", "object"),
    ("chunk_grid", {"configuration": {}}, "chunk_grid", "'name'"),
    ("chunk_grid", "regular", "chunk_grid.configuration.chunk_shape", "integers"),
    ("chunk_grid", {"name": "regular"}, "chunk_grid.configuration.chunk_shape", "integers"),
    ("chunk_grid", {**grid([2, 3]), "must_understand": False}, "chunk_grid.must_understand", "true"),
    ("chunk_grid", {**grid([2, 3]), "must_understand": 0}, "chunk_grid.must_understand", "true"),
    ("chunk_grid", grid(None), "chunk_grid.configuration.chunk_shape", "integers"),
    ("chunk_grid", grid(2), "chunk_grid.configuration.chunk_shape", "integers"),
    ("chunk_grid", grid([2]), "chunk_grid.configuration.chunk_shape", "2 integers"),
    ("chunk_grid", grid([2, 3, 1]), "chunk_grid.configuration.chunk_shape", "2 integers"),
    ("chunk_grid", grid([2, "3"]), "chunk_grid.configuration.chunk_shape", "integers"),
    ("chunk_grid", grid([2, 3.0]), "chunk_grid.configuration.chunk_shape", "integers"),
    ("chunk_grid", grid([2, True]), "chunk_grid.configuration.chunk_shape", "integers"),
    ("chunk_grid", grid([2, 0]), "chunk_grid.configuration.chunk_shape", "at least 1"),
    ("chunk_grid", grid([2, -3]), "chunk_grid.configuration.chunk_shape", "at least 1"),
    ("chunk_grid", grid([2, 2**64]), "chunk_grid.configuration.chunk_shape", "integers"),
    ("chunk_key_encoding", None, "chunk_key_encoding", "object"),
    ("chunk_key_encoding", {"name": None}, "chunk_key_encoding", "'name'"),
    (
        "chunk_key_encoding",
        {"name": "v2", "must_understand": False},
        "chunk_key_encoding.must_understand",
        "true",
    ),
    *[
        (
            "chunk_key_encoding",
            {"name": name, "configuration": {"separator": separator}},
            "chunk_key_encoding.configuration.separator",
            "'/', '.'",
        )
        for name in ("default", "v2")
        for separator in ("-", "", "//", None, 1, ["/"], True)
    ],
    ("codecs", None, "codecs", "array"),
    ("codecs", "bytes", "codecs", "array"),
    ("codecs", {"name": "bytes"}, "codecs", "array"),
    ("codecs", [], "codecs", "not empty"),
    ("codecs", [None], "codecs[0]", "object"),
    ("codecs", [LITTLE, 5], "codecs[1]", "str"),
    ("codecs", [LITTLE, {}], "codecs[1]", "'name'"),
    ("codecs", [LITTLE, {"name": None}], "codecs[1]", "'name'"),
    ("codecs", [LITTLE, {"name": "zstd", "configuration": []}], "codecs[1].configuration", "object"),
    ("codecs", [LITTLE, {"name": "zstd", "configuration": None}], "codecs[1].configuration", "object"),
    ("codecs", [LITTLE, {**CRC, "must_understand": "no"}], "codecs[1].must_understand", "true"),
    ("codecs", [LITTLE, {**CRC, "must_understand": None}], "codecs[1].must_understand", "true"),
    ("codecs", [CRC], "codecs", "array to bytes"),
    ("codecs", [GZIP, LITTLE], "codecs", "array to bytes"),
    ("codecs", [LITTLE, LITTLE], "codecs", "one array to bytes"),
    ("codecs", [LITTLE, TRANSPOSE], "codecs", "array to array codecs, then"),
    ("codecs", [TRANSPOSE], "codecs", "array to bytes"),
    ("codecs", [sharding(), LITTLE], "codecs", "one array to bytes"),
    ("codecs", [{"name": "x.y", "must_understand": False}], "codecs", "array to bytes"),
    ("codecs", ["bytes"], "codecs[0].configuration.endian", "'little', 'big'"),
    ("codecs", [{"name": "bytes", "configuration": {"endian": "LITTLE"}}],
     "codecs[0].configuration.endian", "'little', 'big'"),
    ("codecs", [{"name": "bytes", "configuration": {"endian": None}}],
     "codecs[0].configuration.endian", "'little', 'big'"),
    ("codecs", [LITTLE, "gzip"], "codecs[1].configuration.level", "0 to 9"),
    *[
        ("codecs", [LITTLE, {"name": "gzip", "configuration": {"level": level}}],
         "codecs[1].configuration.level", "integer from 0 to 9")
        for level in (-1, 10, 5.0, "5", None, True, 10**30)
    ],
    *[
        ("codecs", [LITTLE, {"name": "zstd", "configuration": {"level": level, "checksum": False}}],
         "codecs[1].configuration.level", "integer from")
        for level in (23, -131073, 0.0, None, True)
    ],
    ("codecs", [LITTLE, {"name": "zstd", "configuration": {"level": 0, "checksum": 1}}],
     "codecs[1].configuration.checksum", "true or false"),
    *[
        ("codecs", [LITTLE, {"name": "blosc", "configuration": {**BLOSC["configuration"], field: value}}],
         f"codecs[1].configuration.{field}", accepted)
        for field, value, accepted in [
            ("cname", "lz5", "'lz4'"), ("cname", None, "'zstd'"), ("clevel", 10, "0 to 9"),
            ("clevel", "5", "0 to 9"), ("shuffle", 1, "'bitshuffle'"), ("shuffle", "yes", "'noshuffle'"),
            ("shuffle", None, "'shuffle'"), ("typesize", -1, "1"), ("typesize", 1.5, "1"),
            ("typesize", 0, "1"), ("typesize", None, "1"), ("blocksize", -1, "0"), ("blocksize", 2**40, "0"),
        ]
    ],
    ("codecs", [LITTLE, "blosc"], "codecs[1].configuration.cname", "'lz4'"),
    *[
        ("codecs", [{"name": "transpose", "configuration": {"order": order}}, LITTLE],
         "codecs[0].configuration.order", "")
        for order in (
            [0], [0, 1, 2], [0, 0], [1, 2], [-1, 0], [0.0, 1], ["0", "1"], [True, 0], "C", "F", None, 5,
        )
    ],
    ("codecs", ["transpose", LITTLE], "codecs[0].configuration.order", "integers"),
    *[
        ("codecs", [sharding(shape)], "codecs[0].configuration.chunk_shape", "")
        for shape in (
            [2], [2, 3, 1], [3, 3], [2, 2], [4, 6], [0, 1], [-1, 1], [1.0, 1], [True, 1], [2**70, 1],
        )
    ],
    ("codecs", [sharding(codecs=...)],
     "codecs[0].configuration.codecs", "list"),
    ("codecs", [sharding(index_codecs=...)], "codecs[0].configuration.index_codecs", "list"),
    ("codecs", [sharding(codecs=[])], "codecs[0].configuration.codecs", "not empty"),
    ("codecs", [sharding(codecs="bytes")], "codecs[0].configuration.codecs", "array"),
    ("codecs", [sharding(codecs=["bytes"])],
     "codecs[0].configuration.codecs[0].configuration.endian", "'little'"),
    ("codecs", [sharding(codecs=[LITTLE, "nope"])], "codecs[0].configuration.codecs[1].name", "'gzip'"),
    ("codecs", [sharding(codecs=[GZIP])], "codecs[0].configuration.codecs", "array to bytes"),
    ("codecs", [sharding(codecs=[sharding([3, 3])])],
     "codecs[0].configuration.codecs[0].configuration.chunk_shape", "divide"),
    ("codecs", [sharding(index_codecs=[LITTLE, GZIP])], "codecs[0].configuration.index_codecs", "fixed size"),
    ("codecs", [sharding(index_codecs=["bytes"])],
     "codecs[0].configuration.index_codecs[0].configuration.endian", "'little'"),
    ("codecs", [sharding(index_codecs=[])], "codecs[0].configuration.index_codecs", "not empty"),
    ("codecs", [sharding(index_codecs=[CRC])], "codecs[0].configuration.index_codecs", "array to bytes"),
    *[
        ("codecs", [sharding(index_location=place)], "codecs[0].configuration.index_location", "'start'")
        for place in ("middle", None, 0, True, "End")
    ],
    ("dimension_names", "xy", "dimension_names", "array"),
    ("dimension_names", ["x"], "dimension_names", "2 strings"),
    ("dimension_names", [], "dimension_names", "2 strings"),
    ("dimension_names", ["x", "y", "z"], "dimension_names", "2 strings"),
    ("dimension_names", ["x", 1], "dimension_names[1]", "str"),
    ("dimension_names", {"x": 0}, "dimension_names", "array"),
    ("attributes", None, "attributes", "object"),
    ("attributes", [], "attributes", "object"),
    ("attributes", "x", "attributes", "object"),
    ("storage_transformers", None, "storage_transformers", "array"),
    ("storage_transformers", {}, "storage_transformers", "array"),
    ("storage_transformers", [5], "storage_transformers[0]", "object"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value", "place", "accepted"),
    INVALID,
    ids=[f"{at}-{field}-{json.dumps(value)[:50]}" for at, (field, value, _, _) in enumerate(INVALID)],
)
def test_malformed_field(field: str, value: Any, place: str, accepted: str) -> None:
    error = refused(array_document(**{field: value}))
    assert error.field == place
    assert accepted in str(error.accepted)
    if isinstance(error.found, (int, float, str)) or error.found is None:
        assert f"found {error.found!r}" in str(error)


@pytest.mark.parametrize(("shape", "lengths"), [([0, 6], [0, 3]), ([0, 0], [0, 0])], ids=str)
def test_chunks_have_no_length_only_along_empty_dimensions(shape: list[int], lengths: list[int]) -> None:
    meta = parse(array_document(shape=shape, chunk_grid=grid(lengths)))
    assert meta.chunk_grid.counts(meta.shape)[0] == 0


FILLS = {
    "bool": [None, 0, "true"],
    "int8": [None, 1.0, 128, -129, "0", True],
    "uint64": [-1, 2**64, 1e3],
    "float32": [None, "nan", "0x7fc000", [0], True],
    "complex128": [0, "NaN", [0], [0, 1, 2], [None, 0]],
    "r16": [0, "AA==", [0], [0, 256]],
}


@pytest.mark.parametrize("data_type", FILLS)
def test_fill_value_that_is_not_permitted(data_type: str) -> None:
    for fill in FILLS[data_type]:
        error = refused(array_document(data_type=data_type, fill_value=fill), DataTypeValidationError)
        assert error.field == "fill_value"
        assert repr(data_type) in str(error)


# Extensions that are not known, and fields that need not be understood


@pytest.mark.parametrize(
    ("changes", "place", "accepted"),
    [
        ({"data_type": "datetime64"}, "data_type", "'int64'"),
        ({"data_type": {"name": "urn:example:datetime", "configuration": {"unit": "ns"}}}, "data_type",
         "'int8'"),
        ({"data_type": {"name": "int16", "configuration": {"x": 1}}}, "data_type", "'int16'"),
        ({"data_type": {"name": "int16", "x": {"must_understand": True}}}, "data_type.x", "'name'"),
        ({"data_type": "r7"}, "data_type", "'int8'"),
        ({"chunk_grid": {"name": "hexagonal", "configuration": {}}}, "chunk_grid.name", "'regular'"),
        ({"chunk_grid": "rectangular"}, "chunk_grid.name", "'regular'"),
        ({"chunk_grid": grid([2, 3], origin=[0, 0])}, "chunk_grid.configuration.origin", "chunk_shape"),
        ({"chunk_grid": {**grid([2, 3]), "x": 1}}, "chunk_grid.x", "'configuration'"),
        ({"chunk_key_encoding": "fanout"}, "chunk_key_encoding.name", "'default', 'v2'"),
        ({"chunk_key_encoding": {"name": "default", "configuration": {"order": "C"}}},
         "chunk_key_encoding.configuration.order", "separator"),
        ({"chunk_key_encoding": {"name": "v2", "x": None}}, "chunk_key_encoding.x", "'configuration'"),
        ({"codecs": [LITTLE, "lzma"]}, "codecs[1].name", "'gzip'"),
        ({"codecs": [LITTLE, {"name": "https://example.com/c", "configuration": {"a": 1}}]},
         "codecs[1].name", "'blosc'"),
        ({"codecs": [LITTLE, {"name": "lzma", "must_understand": True}]}, "codecs[1].name", "'gzip'"),
        ({"codecs": [LITTLE, {**CRC, "level": 3}]}, "codecs[1].level", "'configuration'"),
        ({"codecs": [LITTLE, {**CRC, "configuration": {"x": 1}}]}, "codecs[1].configuration.x", "no such"),
        ({"codecs": [{"name": "bytes", "configuration": {"endian": "little", "x": {}}}]},
         "codecs[0].configuration.x", "'endian'"),
        ({"codecs": [sharding(x=1)]}, "codecs[0].configuration.x", "'chunk_shape'"),
        ({"storage_transformers": ["cache"]}, "storage_transformers[0].name", "none"),
        ({"storage_transformers": [{"name": "a", "must_understand": False}, {"name": "b"}]},
         "storage_transformers[1].name", "none"),
        ({"extensions": []}, "extensions", "must_understand"),
        ({"x": None}, "x", "must_understand"),
        ({"x": False}, "x", "must_understand"),
        ({"x": {}}, "x", "must_understand"),
        ({"x": {"must_understand": True}}, "x", "must_understand"),
        ({"x": {"must_understand": 0}}, "x", "must_understand"),
        ({"x": {"must_understand": "false"}}, "x", "must_understand"),
        ({"x": [{"must_understand": False}]}, "x", "must_understand"),
        ({"consolidated_metadata": {"kind": "inline", "metadata": {}}}, "consolidated_metadata",
         "must_understand"),
    ],
    ids=str,
)  # fmt: skip
def test_unknown_extension(changes: dict[str, Any], place: str, accepted: str) -> None:
    error = refused(array_document(**changes), UnknownExtensionError)
    assert error.field == place
    assert accepted in str(error.accepted)


def test_unknown_field_of_a_group() -> None:
    document = {"zarr_format": 3, "node_type": "group"}
    assert refused({**document, "shape": [1]}, UnknownExtensionError).field == "shape"
    assert refused({**document, "x": {"must_understand": True}}, UnknownExtensionError).field == "x"
    assert parse({**document, "x": {"must_understand": False}}).ignored == {"x": {"must_understand": False}}


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"metadata": ...}, "consolidated_metadata.metadata"),
        ({"metadata": []}, "consolidated_metadata.metadata"),
        ({"metadata": {"x": 5}}, "consolidated_metadata.metadata"),
        ({"kind": ...}, "consolidated_metadata.kind"),
        ({"kind": "file"}, "consolidated_metadata.kind"),
        ({"must_understand": True}, "consolidated_metadata.must_understand"),
        ({"metadata": {"../x": array_document()}}, "consolidated_metadata.metadata"),
        ({"metadata": {"": array_document()}}, "consolidated_metadata.metadata"),
        ({"metadata": {"/x": array_document()}}, "consolidated_metadata.metadata"),
    ],
    ids=str,
)
def test_malformed_consolidated_metadata(changes: dict[str, Any], place: str) -> None:
    document = consolidated({"x": array_document()})
    held = {**document["consolidated_metadata"], **changes}
    document["consolidated_metadata"] = {name: value for name, value in held.items() if value is not ...}
    assert str(refused(document).field).startswith(place)
    for other in (5, [], "inline", True):
        assert refused({**document, "consolidated_metadata": other}).field == "consolidated_metadata"


def test_malformed_document_within_consolidated_metadata() -> None:
    document = consolidated({"x": array_document(shape=[4, -6]), "ok": array_document()})
    store = xzarr3.MemoryStore({"zarr.json": json.dumps(document).encode()})
    root = xzarr3.open_group(store)
    assert root["ok"].shape == (4, 6)
    with pytest.raises(MetadataError) as caught:
        root["x"]
    assert (caught.value.path, caught.value.field) == ("x", "shape[1]")


# What need not be understood is kept


def test_unknown_fields_that_may_be_ignored_are_kept_on_rewrite() -> None:
    hint = {"must_understand": False, "name": "hint", "configuration": {"a": [1, {"b": None}]}}
    array = stored(array_document(**{"x-hint": hint, "attributes": {"old": 1}}))
    array.attrs["new"] = 2
    array.resize((5, 6))
    array.append(np.zeros((1, 6), "int16"))
    document = json.loads(bytes(array.store.get("zarr.json")))
    assert document["x-hint"] == hint
    assert document["attributes"] == {"old": 1, "new": 2}
    assert document["shape"] == [6, 6]
    group = {"zarr_format": 3, "node_type": "group", "x-hint": hint}
    store = xzarr3.MemoryStore({"zarr.json": json.dumps(group).encode()})
    xzarr3.open_group(store, mode="r+").attrs["a"] = 1
    xzarr3.consolidate_metadata(store)
    assert json.loads(bytes(store.get("zarr.json")))["x-hint"] == hint


def test_storage_transformers_that_may_be_ignored_are_kept_on_rewrite() -> None:
    transformers = [{"name": "example.cache", "must_understand": False, "configuration": {"size": 1}}]
    array = stored(array_document(storage_transformers=transformers))
    array.attrs["new"] = 2
    assert json.loads(bytes(array.store.get("zarr.json")))["storage_transformers"] == transformers


def test_rewriting_changes_nothing_else() -> None:
    document = array_document(
        attributes={"a": 1.5, "b": [None, True, "é"]},
        dimension_names=["x", None],
        chunk_key_encoding={"name": "v2", "configuration": {"separator": "."}},
        codecs=[TRANSPOSE, sharding([3, 1], codecs=[LITTLE, BLOSC], index_location="start"), CRC],
        data_type="float32",
        fill_value="0x7fc00001",
    )
    array = stored(document)
    array.attrs["c"] = 0
    written = json.loads(bytes(array.store.get("zarr.json")))
    document["attributes"]["c"] = 0
    assert written == document


# Text that is no document at all


@pytest.mark.parametrize(
    "data",
    [
        b"", b" ", b"\0" * 8, b"\xff\xfe", b"nul", b"null", b"3", b"[]", b'"x"', b"true", b"{", b'{"a":}',
        b"{}x", b'{"a" 1}', b"{'a': 1}", b'{"a": 01}', b'{"a": 1,}', b'{"\xff": 1}', b"<html></html>",
        b'{"a": ' + b"9" * 5000 + b"}", b"[" * 200_000, b'{"a":' * 200_000, b"-", b'{"zarr_format":3,',
    ],
    ids=lambda data: repr(data[:20]),
)  # fmt: skip
def test_text_that_is_no_json_object(data: bytes) -> None:
    with pytest.raises(MetadataError) as caught:
        documents.decode(data, "a/b", "zarr.json")
    assert caught.value.path == "a/b"
    assert "'/a/b'" in str(caught.value)
    assert "zarr.json" in str(caught.value)
    store = xzarr3.MemoryStore({"a/b/zarr.json": data})
    for opener in (xzarr3.open, xzarr3.open_array, xzarr3.open_group):
        with pytest.raises(MetadataError, match="'/a/b'"):
            opener(store, "a/b")


def test_empty_object_is_no_document() -> None:
    assert refused({}).field == "zarr_format"


def test_nan_literals_of_older_writers_are_read() -> None:
    text = json.dumps(array_document(data_type="float32", fill_value="FILL", attributes={"x": "FILL"}))
    for literal, value in (("NaN", np.nan), ("Infinity", np.inf), ("-Infinity", -np.inf)):
        meta = v3.parse(documents.decode(text.replace('"FILL"', literal).encode()))
        assert isinstance(meta, ArrayMetadata)
        assert np.array_equal(meta.fill_value, value, equal_nan=True)
    # Where they were read among attributes, they stay; nobody can set them.
    assert json.loads(documents.encode(v3.document(meta)))["attributes"] == {"x": -np.inf}
    with pytest.raises(MetadataError, match="JSON"):
        documents.plain_attributes({"a": float("nan")}, "a/b")
    document = v3.document(meta)
    assert document["fill_value"] == "-Infinity"


@pytest.mark.parametrize("field", ["shape", "data_type", "chunk_grid", "codecs", "fill_value", "x"])
@pytest.mark.parametrize("depth", [50, 500, 900, 5_000, 100_000])
def test_deep_nesting(field: str, depth: int) -> None:
    text = json.dumps(array_document(**{field: "DEEP"}))
    for opening, closing in (("[", "]"), ('{"a":', "}"), ('{"name":', "}")):
        data = text.replace('"DEEP"', opening * depth + "1" + closing * depth).encode()
        meta, error = attempt(
            lambda data=data: v3.parse(documents.decode(data, "", "zarr.json")), MetadataError
        )
        assert meta is None
        assert str(error)


@pytest.mark.parametrize("depth", [3, 30, 300, 1000])
def test_shards_within_shards_within_shards(depth: int) -> None:
    codecs = json.dumps([LITTLE])
    for _ in range(depth):
        shard = json.dumps(sharding([2, 3], codecs="INNER"))
        codecs = "[" + shard.replace('"INNER"', codecs) + "]"
    data = json.dumps(array_document(codecs="CODECS")).replace('"CODECS"', codecs).encode()
    meta, error = attempt(lambda: v3.parse(documents.decode(data, "", "zarr.json")), MetadataError)
    if error is None:
        assert isinstance(v3.document(meta), dict)
    assert error is None or depth > 3


def test_deep_attributes_are_kept() -> None:
    deep: Any = 1
    for _ in range(90):
        deep = {"a": [deep]}
    array = stored(array_document(attributes={"deep": deep}))
    array.attrs["x"] = 1
    assert xzarr3.open_array(array.store).attrs["deep"] == deep


# Any change of a valid document

VALID: list[dict[str, Any]] = [
    array_document(),
    array_document(
        data_type="float32",
        fill_value="0xffc00001",
        dimension_names=["x", None],
        attributes={"a": {"b": [1, None]}},
        codecs=[TRANSPOSE, sharding([3, 1], codecs=[LITTLE, BLOSC], index_location="start"), CRC],
        chunk_key_encoding={"name": "v2", "configuration": {"separator": "/"}},
        storage_transformers=[],
        hint={"must_understand": False},
    ),
    array_document(
        shape=[],
        chunk_grid=grid([]),
        data_type={"name": "r16"},
        fill_value=[1, 2],
        codecs=["bytes", "zstd", {"name": "x", "must_understand": False}],
    ),
    array_document(data_type="complex64", fill_value=[1, "NaN"], codecs=[LITTLE, GZIP, CRC]),
    consolidated({"x": array_document(), "g": {"zarr_format": 3, "node_type": "group"}}),
]


def test_the_documents_to_change_are_valid() -> None:
    for document in VALID:
        assert parse(document) is not None


def change(document: Any, path: tuple[Any, ...], how: str, value: Any) -> Any:
    """A copy of a JSON value, with what is at the path replaced or dropped, or something added to it."""
    if not path and how == "replace":
        return value
    changed = copy.deepcopy(document)
    target = changed
    for key in path[:-1] if how != "add" else path:
        target = target[key]
    if how == "replace":
        target[path[-1]] = value
    elif how == "drop" and path:
        del target[path[-1]]
    elif isinstance(target, dict):
        target[json.dumps(value)[:5]] = value
    elif isinstance(target, list):
        target.insert(0, value)
    return changed


@st.composite
def changed_documents(draw: st.DrawFn) -> Any:
    document = draw(st.sampled_from(VALID))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(places(document))))
        how = draw(st.sampled_from(["replace", "replace", "drop", "add"]))
        document = change(document, path, how, draw(JSON_VALUES))
    return document


def read(data: bytes) -> tuple[Any, MetadataError | None]:
    meta, error = attempt(lambda: v3.parse(documents.decode(data, "a/b", "zarr.json"), "a/b"), MetadataError)
    assert error is None or isinstance(error, MetadataError)
    return meta, error


def check_outcome(data: bytes) -> None:
    """A document is refused with its place, or is what it says however often it is written again."""
    meta, error = read(data)
    if error is not None:
        assert error.path == "a/b"
        assert error.field
        assert str(error).startswith("node '/a/b', field ")
        assert len(str(error)) < 1000
        return
    held = meta.consolidated if isinstance(meta, GroupMetadata) else None
    document = v3.document(meta, held)
    text, refusal = attempt(lambda: documents.encode(document), MetadataError)
    if refusal is not None:  # Literals that JSON lacks can be read and not be written.
        assert b"NaN" in data or b"Infinity" in data
        return
    again = v3.parse(documents.decode(text, "a/b", "zarr.json"), "a/b")
    assert v3.document(again, held) == document
    if isinstance(meta, ArrayMetadata):
        assert isinstance(again, ArrayMetadata)
        assert again.codecs == meta.codecs
        assert again.fill_value.tobytes() == meta.fill_value.tobytes()
        given = json.loads(data)
        for field in ("shape", "attributes", "data_type"):
            if field in given and not isinstance(given[field], dict):
                assert document[field] == given[field]


@pytest.mark.slow
@settings(max_examples=1000, deadline=None)
@given(changed_documents())
def test_any_change_is_read_or_refused(document: Any) -> None:
    check_outcome(json.dumps(document).encode())


@pytest.mark.parametrize("document", VALID, ids=range(len(VALID)))
def test_every_single_replacement_is_read_or_refused(document: dict[str, Any]) -> None:
    values: list[Any] = [
        None, True, False, 0, 1, -1, 2**63, 10**40, 0.0, 1.5, 1e300, float("nan"), float("inf"), "", "x",
        "bytes", [], [0], [None], [[]], {}, {"name": "x"}, {"name": None}, {"must_understand": False},
        {"name": "x", "must_understand": False}, {"name": "bytes"}, {"name": "sharding_indexed"},
    ]  # fmt: skip
    for path in places(document):
        for value in values:
            check_outcome(json.dumps(change(document, path, "replace", value)).encode())
        check_outcome(json.dumps(change(document, path, "drop", None)).encode())


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.binary(max_size=40), JSON_VALUES.map(lambda value: json.dumps(value).encode())))
@example(b'{"zarr_format": 3, "node_type": "array"}')
@example(b'{"zarr_format": 3, "node_type": "group", "attributes": {"\\ud800": 1}}')
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    meta, error = read(data)
    assert (meta is None) == (error is not None)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(VALID), st.data())
def test_damaged_text_is_read_or_refused(document: dict[str, Any], data: st.DataObject) -> None:
    raw = bytearray(json.dumps(document).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.none(), st.integers(0, len(raw))))
    _, error = read(bytes(raw[:cut]))
    assert error is None or str(error)


def test_errors_of_opening_name_the_node() -> None:
    document = json.dumps(array_document(data_type="int17")).encode()
    store = xzarr3.MemoryStore({"deep/er/zarr.json": document})
    openers: list[Callable[..., Any]] = [xzarr3.open, xzarr3.open_array, xzarr3.open_group]
    for opener in openers:
        with pytest.raises(UnknownExtensionError) as caught:
            opener(store, "/deep/er/")
        assert caught.value.path == "deep/er"
        assert caught.value.field == "data_type"
        assert caught.value.found == "int17"
        message = str(caught.value)
        for part in ("'/deep/er'", "'data_type'", "'int17'", "'int16'"):
            assert part in message
    assert isinstance(caught.value, ValueError)


@pytest.mark.slow
@given(st.dictionaries(st.text(), JSON_VALUES))
@example({"a": float("nan"), "b": [float("inf"), {}], "c": []})
@example({"größe": 'x: {"a", [b]}\\', "\ud800": "\udfff", "n": 2**70, "z": -0.0})
def test_documents_are_indented_as_json_does_it(document: dict[str, Any]) -> None:
    assert documents.encode(document) == json.dumps(document, indent=2).encode()


def test_a_new_node_is_held_beside_those_of_its_group() -> None:
    group = GroupMetadata()
    document: Any = {
        "consolidated_metadata": {"metadata": dict.fromkeys(["x", "a", "a/b", "a/b/c", "d", "d/e"])}
    }
    for path, expected in (
        ("a/f", ["x", "a", "a/b", "a/b/c", "a/f", "d", "d/e"]),
        ("g", ["x", "a", "a/b", "a/b/c", "d", "d/e", "g"]),
        ("a/b", ["x", "a", "a/b", "a/b/c", "d", "d/e"]),
        ("lost/h", ["x", "a", "a/b", "a/b/c", "d", "d/e", "lost/h"]),
    ):
        changed = v3.V3.update_consolidated(document, path, group)
        assert changed is not None
        assert list(changed["consolidated_metadata"]["metadata"]) == expected
        assert changed["consolidated_metadata"]["metadata"][path] == v3.V3.hold(group, path)


def nested(levels: int, zarr_format: Any, place: str) -> xzarr3.MemoryStore:
    """An array, or a group with a consolidated copy of it, whose attributes have many levels."""
    store = xzarr3.MemoryStore()
    xzarr3.create_group(store, zarr_format=zarr_format)
    xzarr3.create_array(store, "a", shape=3, dtype="i4", zarr_format=zarr_format, attributes={"deep": "here"})
    if place == "consolidated":
        xzarr3.consolidate_metadata(store)
    deep = (b"[" * levels) + (b"]" * levels)
    for key in list(store.list()):
        value = bytes(store.get(key) or b"")
        if place == "own" or "/" not in key:
            store.set(key, value.replace(b'"here"', deep))
    return store


@pytest.mark.parametrize("levels", [300, 700, 5000, 200_000])
@pytest.mark.parametrize(
    ("zarr_format", "place"),
    [(3, "own"), (2, "own"), ("3-draft", "own"), (3, "consolidated"), (2, "consolidated")],
)
def test_attributes_nested_too_deeply_are_refused_when_they_are_read(
    levels: int, zarr_format: Any, place: str
) -> None:
    store = nested(levels, zarr_format, place)
    openers: list[Callable[[], Any]] = [lambda: xzarr3.open_array(store, "a")]
    if place == "consolidated":
        openers = [lambda: xzarr3.open_group(store), lambda: xr.open_dataset(store, engine="xzarr3")]
    for opener in openers:
        with pytest.raises(MetadataError, match=r"nested too deeply.*at most 256 levels"):
            opener()


@pytest.mark.parametrize(
    ("zarr_format", "place"), [(3, "own"), (2, "own"), ("3-draft", "own"), (3, "consolidated")]
)
def test_attributes_nested_as_deeply_as_may_be_are_copied(zarr_format: Any, place: str) -> None:
    store = nested(240, zarr_format, place)
    array = xzarr3.open_group(store)["a"]
    for found in (dict(array.attrs), array.attrs.asdict(), pickle.loads(pickle.dumps(array)).attrs):
        value, levels = found["deep"], 0
        while value:
            (value,), levels = value, levels + 1
        assert levels == 239


def inflating(path: Path, size: int) -> None:
    """A zip with a document that is mostly spaces."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("zarr.json", "w") as file:
        file.write(b'{"zarr_format": 3, "node_type": "group"')
        for _ in range(size // 2**20):
            file.write(b" " * 2**20)
        file.write(b"}")


@pytest.mark.slow
def test_a_document_that_inflates_is_refused_before_it_does(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    inflating(path, 300 * 2**20)
    assert path.stat().st_size < 2**20
    for opener in (xzarr3.open_group, xzarr3.open, xzarr3.create_group):
        tracemalloc.start()
        with pytest.raises(
            MetadataError, match=r"too large.*67108864 bytes; raise the limit with xzarr3.set_options"
        ):
            opener(xzarr3.ZipStore(path))
        assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
        tracemalloc.stop()
    pytest.importorskip("fsspec")
    tracemalloc.start()
    with pytest.raises(MetadataError, match="too large"):
        xzarr3.open_group(xzarr3.FsspecStore(f"zip::{path}"))
    assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
    tracemalloc.stop()


@pytest.mark.parametrize("kind", ["memory", "local", "logged", "fsspec"])
def test_documents_have_a_size_that_can_be_set(kind: str, tmp_path: Path) -> None:
    store: xzarr3.Store = (
        xzarr3.MemoryStore() if kind in ("memory", "logged") else xzarr3.LocalStore(tmp_path)
    )
    attributes = {"text": "x" * 5000}
    xzarr3.create_array(store, "a", data=np.arange(3), attributes=attributes)
    if kind == "logged":
        store = xzarr3.LoggingStore(store)
    elif kind == "fsspec":
        store = xzarr3.FsspecStore(tmp_path.as_uri())
    with xzarr3.set_options(max_document_bytes=4000):
        openers: list[Callable[[], Any]] = [
            lambda: xzarr3.open_array(store, "a"),
            lambda: dict(xzarr3.open_group(store).members())["a"],
            lambda: xzarr3.create_array(store, "a", shape=3, dtype="i4"),
        ]
        for opener in openers:
            with pytest.raises(MetadataError, match=r"'/a'.*zarr.json.*too large.*4000 bytes"):
                opener()
    assert dict(xzarr3.open_array(store, "a").attrs) == attributes
    for wrong in (0, -1, 1.5, "1"):
        with pytest.raises(MetadataError, match="max_document_bytes"):
            xzarr3.set_options(max_document_bytes=wrong)  # type: ignore[arg-type]
