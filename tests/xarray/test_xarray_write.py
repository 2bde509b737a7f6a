"""``xzarr3.to_zarr`` writes what xarray's own Zarr engine, zarr-python and tensorstore read back equal."""

import itertools
import os
import re
import time
import warnings
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import _things
import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from _engines import DOCUMENTS, FORMATS, QUIET, NotingStore, contents, document, refused, theirs, write
from _killed import end_at_change
from _slow import covering, slow
from _strategies import attempt
from _xarray_datasets import CORPUS, DATASETS, TEXTS, in_format, written_alike
from numcodecs import get_codec
from xarray.conventions import SerializationWarning

import xzarr3
from xzarr3.codecs.gzip import GzipCodec
from xzarr3.errors import DataTypeValidationError, MetadataError
from xzarr3.xarray import open_dataset, to_zarr

zarr = pytest.importorskip("zarr")
pytestmark = [pytest.mark.filterwarnings(each) for each in QUIET if "Serialization" not in each]
EVERYTHING = {**CORPUS, **TEXTS}
TOP = {3: "a x zarr.json", 2: ".zattrs .zgroup .zmetadata a x", "3-draft": "data meta zarr.json"}
"""What is at the root of a store where small() was written."""


def small() -> xr.Dataset:
    values = np.arange(24.0).reshape(4, 6)
    return xr.Dataset({"a": (("x", "y"), values, {"units": "K"})}, coords={"x": [1, 2, 3, 4]})


@pytest.mark.parametrize("zarr_format", [3, 2])
@pytest.mark.parametrize("name", DATASETS)
def test_documents_say_what_those_of_the_zarr_engine_say(tmp_path: Path, name: str, zarr_format: Any) -> None:
    if not written_alike(name, zarr_format):
        pytest.skip("zarr-python writes structs in another form")
    dataset = in_format(name, zarr_format)
    dataset.encoding.pop("unlimited_dims", None)  # Along such a dimension there is room for more.
    if name == "texts" and zarr_format == 2:
        dataset = dataset.drop_vars("strings")  # Of text of any length, xarray makes text of a fixed one.
    for writer in ("xzarr3" if name in TEXTS else "xzarr3-dask", "zarr"):
        write(dataset, tmp_path / writer[:5], writer, zarr_format=zarr_format, consolidated=True)
    held = document(tmp_path / "xzarr", last="zarr.json" if zarr_format == 3 else ".zmetadata")
    if zarr_format == 3:
        held = held["consolidated_metadata"]
        assert (held["kind"], held["must_understand"]) == ("inline", False)
    else:
        assert held["zarr_consolidated_format"] == 1
    copies = held["metadata"]
    for last in (".zgroup", ".zattrs") if zarr_format == 2 else ():
        found = document(tmp_path / "xzarr", last=last)
        assert found == document(tmp_path / "zarr", last=last) == copies.pop(last)
    for variable in dataset.variables:
        for last in ("zarr.json",) if zarr_format == 3 else (".zarray", ".zattrs"):
            found, expected = (document(tmp_path / place, variable, last) for place in ("xzarr", "zarr"))
            assert copies.pop(variable if zarr_format == 3 else f"{variable}/{last}") == found
            if last == "zarr.json":
                assert expected.pop("storage_transformers") == []
                for codec in expected["codecs"]:
                    if codec.get("configuration") == {}:
                        del codec["configuration"]
            elif last == ".zarray":
                assert {found.pop("compressor")["id"], expected.pop("compressor")["id"]} == {"zstd", "blosc"}
            assert found == expected
    assert copies == {}


@pytest.mark.parametrize("chunks", [None, slow({})])
@pytest.mark.parametrize(("source", "target"), [(3, 2), (2, "3-draft"), ("3-draft", 3)])
def test_from_each_format_to_each(tmp_path: Path, source: Any, target: Any, chunks: Any) -> None:
    for name in EVERYTHING if "3-draft" not in (source, target) else CORPUS:
        to_zarr(EVERYTHING[name](), tmp_path / f"{name}-1", zarr_format=source)
        dataset = open_dataset(tmp_path / f"{name}-1", chunks=chunks if name in CORPUS else None)
        write(dataset, tmp_path / f"{name}-2", "xzarr3", zarr_format=target)
        assert xzarr3.open_group(tmp_path / f"{name}-2").zarr_format == target
        xr.testing.assert_identical(open_dataset(tmp_path / f"{name}-2").load(), dataset.load())


@pytest.mark.parametrize("zarr_format", FORMATS)
def test_data_are_written_before_documents_and_the_root_last(zarr_format: Any) -> None:
    store = NotingStore()
    to_zarr(small().chunk(y=2), store, encoding={"a": {"chunks": (2, 2)}}, zarr_format=zarr_format)
    changes = [key for key in store.changes if not key.startswith(".xzarr3-")]
    is_document = [key.endswith(DOCUMENTS) for key in changes]
    assert (is_document, len(set(changes))) == (sorted(is_document), len(changes))
    last = [".zgroup", ".zmetadata"] if zarr_format == 2 else ["zarr.json"]
    assert changes[-len(last) :] == last


@pytest.mark.parametrize("old", FORMATS)
def test_the_format_is_that_of_what_is_there(tmp_path: Path, old: Any) -> None:
    to_zarr(CORPUS["bare"](), tmp_path, zarr_format=old)
    assert to_zarr(small(), tmp_path, mode="w").zarr_format == old
    assert " ".join(sorted(os.listdir(tmp_path))) == TOP[old]
    assert to_zarr(small(), tmp_path, group="deep/er").zarr_format == old
    for dataset in (CORPUS["bare"]().assign_attrs(old=1), small().assign_attrs(new=2)):
        assert to_zarr(dataset, tmp_path, group="deep", mode="w").zarr_format == old
    for new in {*FORMATS} - {old}:
        with pytest.raises(xzarr3.MetadataError, match=f"the groups above it are stored in format {old}"):
            to_zarr(small(), tmp_path, group="deep", mode="w", zarr_format=new)
    xr.testing.assert_identical(open_dataset(tmp_path, group="deep"), dataset)
    xr.testing.assert_identical(open_dataset(tmp_path), small())


MISSING_BYTES = xr.Dataset({"v": ("x", np.array([b"ab", None], object))})
MISSING_TEXT: dict[str, Any] = {
    "None": np.array(["a", None, "b"], object),
    "NaN": np.array(["a", np.nan, "b"], object),
    "StringDType of None": np.array(["a", None, "b"], np.dtypes.StringDType(na_object=None)),
    "StringDType of NaN": np.array(["a", np.nan, "b"], np.dtypes.StringDType(na_object=np.nan)),
    "pandas": pd.array(["a", pd.NA, "b"], dtype="string"),
}


@pytest.mark.filterwarnings("ignore::xarray.conventions.SerializationWarning")
@pytest.mark.parametrize("chunked", [False, slow(True)])
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("kind", MISSING_TEXT)
def test_missing_text_is_kept_by_its_mark(tmp_path: Path, kind: str, zarr_format: Any, chunked: bool) -> None:
    values = MISSING_TEXT[kind]
    if chunked and kind != "pandas":
        values = da.from_array(values, chunks=2)
    dataset, mark = xr.Dataset({"v": ("x", values)}), "missing_value" if kind == "NaN" else "_FillValue"
    to_zarr(dataset, tmp_path / "a", zarr_format=zarr_format, encoding={"v": {mark: "?"}})
    to_zarr(open_dataset(tmp_path / "a"), tmp_path / "again", zarr_format=5 - zarr_format)
    to_zarr(dataset, tmp_path / "a", append_dim="x")
    for path, times in (("a", 2), ("again", 1)):
        found = open_dataset(tmp_path / path)
        xr.testing.assert_identical(theirs(tmp_path / path), found)
        assert found["v"].fillna("missing").values.tolist() == ["a", "missing", "b"] * times
    before = contents(tmp_path)
    message = r"'v' has missing text at index \(1,\).*\.fillna\(''\).*encoding={'v': {'_FillValue': 'NA'}}"
    with pytest.raises(xzarr3.DataTypeValidationError, match=message):
        to_zarr(dataset, tmp_path / "a", mode="w", zarr_format=zarr_format)
    assert contents(tmp_path) == before


def test_missing_bytes_are_kept_by_a_mark_in_version_2() -> None:
    store = to_zarr(MISSING_BYTES, zarr_format=2, encoding={"v": {"_FillValue": b"??"}}).store
    found = open_dataset(store)
    assert found["v"].isnull().values.tolist() == [False, True]
    for chunks in (None, {}):
        with pytest.raises(xzarr3.DataTypeValidationError, match=r"'v' has missing bytes at index"):
            to_zarr(open_dataset(store, chunks=chunks), zarr_format=3)
    xr.testing.assert_equal(open_dataset(to_zarr(found[{"x": [0]}], zarr_format=3).store), found[{"x": [0]}])


TRANSPOSE = {"name": "transpose", "configuration": {"order": [1, 0]}}
BIG_ENDIAN = {"name": "bytes", "configuration": {"endian": "big"}}
DOTS, DOTS_V2 = ({"name": name, "configuration": {"separator": "."}} for name in ("default", "v2"))


@pytest.mark.parametrize(("encoding", "field", "expected"), [
    ({"chunks": (2, 3)}, "chunk_grid", {"name": "regular", "configuration": {"chunk_shape": [2, 3]}}),
    ({"chunks": 9}, "chunk_grid", {"name": "regular", "configuration": {"chunk_shape": [9, 9]}}),
    ({"compressors": None}, "codecs", ["bytes"]), ({"compressors": "gzip"}, "codecs", ["bytes", "gzip"]),
    ({"compressors": [{"name": "zstd", "configuration": {"level": 5}}]}, "codecs", ["bytes", "zstd"]),
    ({"compressors": GzipCodec(level=1)}, "codecs", ["bytes", "gzip"]),
    ({"compressors": zarr.codecs.BloscCodec(cname="lz4")}, "codecs", ["bytes", "blosc"]),
    ({"compressors": ["zstd", "crc32c"]}, "codecs", ["bytes", "zstd", "crc32c"]),
    ({"filters": TRANSPOSE}, "codecs", ["transpose", "bytes", "zstd"]),
    ({"serializer": BIG_ENDIAN, "compressors": None}, "codecs", [BIG_ENDIAN]),
    ({"shards": (4, 6)}, "codecs", ["sharding_indexed"]),
    ({"fill_value": -1.0}, "fill_value", -1.0), ({"fill_value": None}, "fill_value", "NaN"),
    ({"dtype": "int16"}, "data_type", "int16"),
    ({"dtype": "float32", "_FillValue": None}, "data_type", "float32"),
    ({"chunk_key_encoding": {"name": "v2", "separator": "."}}, "chunk_key_encoding", DOTS_V2),
    ({"chunk_key_encoding": DOTS}, "chunk_key_encoding", DOTS),
], ids=lambda value: str(value)[:40])  # fmt: skip
def test_encoding(tmp_path: Path, encoding: dict[str, Any], field: str, expected: Any) -> None:
    with pytest.warns(SerializationWarning) if encoding.get("dtype") == "int16" else nullcontext():
        to_zarr(small(), tmp_path, encoding={"a": encoding})
    found = document(tmp_path, "a")[field]
    if field == "codecs" and expected != [BIG_ENDIAN]:
        found = [codec["name"] for codec in found]
    assert found == expected
    np.testing.assert_array_equal(theirs(tmp_path)["a"], small()["a"])
    np.testing.assert_array_equal(open_dataset(tmp_path)["a"], small()["a"])


@pytest.mark.parametrize(("encoding", "expected"), [
    ({}, {"chunks": [4, 6], "fill_value": "NaN", "dtype": "<f8", "order": "C"}),
    ({"_FillValue": None}, {"fill_value": None}), ({"dtype": ">f4"}, {"dtype": ">f4", "fill_value": "NaN"}),
    ({"dtype": "int16", "_FillValue": 7}, {"dtype": "<i2", "fill_value": 7}),
    ({"compressors": None}, {"compressor": None, "filters": None}),
    ({"compressor": {"id": "zlib", "level": 1}}, {"compressor": {"id": "zlib", "level": 1}}),
    ({"compressors": "gzip"}, {"compressor": {"id": "gzip", "level": 5}}),
    ({"order": "F", "compressors": ()}, {"order": "F", "compressor": None}),
    ({"filters": [{"id": "delta", "dtype": "<f8"}]},) * 2,
    ({"filters": [{"id": "zlib", "level": 2}], "compressor": {"id": "bz2", "level": 1}},) * 2,
    ({"chunk_key_encoding": {"name": "v2", "separator": "/"}}, {"dimension_separator": "/"}),
], ids=lambda value: str(value)[:50])  # fmt: skip
def test_encoding_in_version_2(tmp_path: Path, encoding: dict[str, Any], expected: dict[str, Any]) -> None:
    dataset = small() + 10
    to_zarr(dataset, tmp_path, encoding={"a": encoding}, zarr_format=2)
    found = document(tmp_path, "a", ".zarray")
    assert {key: found[key] for key in expected} == expected
    assert document(tmp_path, "a", ".zattrs") == {"_ARRAY_DIMENSIONS": ["x", "y"], **dataset["a"].attrs}
    np.testing.assert_array_equal(theirs(tmp_path)["a"], dataset["a"])
    np.testing.assert_array_equal(open_dataset(tmp_path)["a"], dataset["a"])
    to_zarr(open_dataset(tmp_path, chunks={}), tmp_path / "again", zarr_format=2)
    kept = document(tmp_path / "again", "a", ".zarray")
    for key in kept.keys() - {"order", "dtype", "dimension_separator"}:  # As with xarray's own engine.
        if key == "filters":  # numcodecs also writes the parameters that have defaults.
            assert [*map(get_codec, kept[key] or ())] == [*map(get_codec, found[key] or ())]
        else:
            assert kept[key] == ("NaN" if key == "fill_value" and found[key] is None else found[key])


@pytest.mark.parametrize("chunked", [False, True])
def test_chunks_of_several_lengths(tmp_path: Path, chunked: bool) -> None:
    dataset = small().chunk(x=2, y=5) if chunked else small()
    to_zarr(dataset, tmp_path, encoding={"a": {"chunks": ((1, 3), [2, 1, 3])}})
    assert document(tmp_path, "a")["chunk_grid"]["name"] == "rectilinear"
    found = open_dataset(tmp_path, chunks={})["a"]
    assert found.chunks == found.encoding["chunks"] == ((1, 3), (2, 1, 3))
    assert found.encoding["preferred_chunks"] == {"x": (1, 3), "y": (2, 1, 3)}
    assert found[1:, ::-2].chunks == da.from_array(np.zeros((4, 6)), found.chunks)[1:, ::-2].chunks
    assert open_dataset(tmp_path, chunks={"x": 2})["a"].chunks == ((2, 2), (2, 1, 3))
    xr.testing.assert_identical(open_dataset(tmp_path), small())
    if zarr.config.get("array.rectilinear_chunks", None) is not None:
        with zarr.config.set({"array.rectilinear_chunks": True}):
            xr.testing.assert_identical(theirs(tmp_path), small())
            for key in ("chunks", "preferred_chunks"):
                assert theirs(tmp_path)["a"].encoding[key] == found.encoding[key]
    for chunks in (None, {}):
        to_zarr(open_dataset(tmp_path, chunks=chunks), tmp_path / "again", mode="w")
        xr.testing.assert_identical(theirs(tmp_path / "again"), small())
    lengths = document(tmp_path / "again", "a")["chunk_grid"]["configuration"]["chunk_shape"]
    assert lengths == [3, 3], "the largest ones, which all tools can read"


def test_explicit_encoding_takes_the_place_of_the_variables_own(tmp_path: Path) -> None:
    dataset, own = small(), {"chunks": (1, 1), "dtype": "float32", "compressors": None}
    dataset["a"].encoding = dict(own)
    to_zarr(dataset, tmp_path, encoding={"a": {"chunks": (4, 3)}})
    found = document(tmp_path, "a")
    assert found["data_type"] == "float64"
    assert found["chunk_grid"]["configuration"]["chunk_shape"] == [4, 3]
    assert [codec["name"] for codec in found["codecs"]] == ["bytes", "zstd"]
    assert dataset["a"].encoding == own


ELSEWHERE: list[dict[str, Any]] = [
    {"chunks": (3,)}, {"chunks": (3, 3), "shards": (9,)}, {"chunks": (3, 4), "shards": (9, 9)},
    {"fill_value": np.float32(np.nan), "dtype": "int32", "_FillValue": -1},
    {"zlib": True, "complevel": 4, "source": "a.nc", "original_shape": (1,), "contiguous": False},
    {"serializer": {"name": "bytes"}}, {"preferred_chunks": {"x": 1}, "write_empty_chunks": None},
    {"filters": ({"name": "transpose", "configuration": {"order": [2, 0, 1]}},)},
    {"filters": ({"name": "numcodecs.delta", "configuration": {"dtype": "<i4"}},), "chunks": (2, 3)},
    {"compressors": ({"name": "numcodecs.zfpy"},), "shards": (4, 6), "chunks": (2, 3)},
    {"serializer": {"name": "vlen-utf8"}}, {"serializer": BIG_ENDIAN, "filters": "rot13"},
    {"fill_value": 1e300, "dtype": "float32"}, {"fill_value": "x"}, {"dtype": "int16", "_FillValue": 99999},
    {"dtype": "int16", "missing_value": 1e30}, {"dtype": "int16", "_FillValue": np.nan},
    {"chunks": ((1, 3), (6,)), "shards": "many"}, {"chunks": (0, 2), "shards": (4, 6)},
    {"chunk_key_encoding": {"name": "suffix", "configuration": {"suffix": ".x"}}},
    {"serializer": BIG_ENDIAN, "chunks": ((1, 3), 6)},
]  # fmt: skip
OTHER_WAYS = [(3, True), (2, False), ("3-draft", True)]


@pytest.mark.parametrize(("encoding", "zarr_format", "chunked"), [
    *((encoding, 3, False) for encoding in ELSEWHERE),
    *(slow(encoding, *OTHER_WAYS[number % 3]) for number, encoding in enumerate(ELSEWHERE)),
], ids=lambda value: str(value)[:60])  # fmt: skip
@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.filterwarnings("ignore:saving variable a with floating point data")
def test_an_encoding_from_elsewhere(tmp_path: Path, encoding: Any, chunked: bool, zarr_format: Any) -> None:
    dataset = small().chunk(x=3, y=4) if chunked else small()
    dataset["a"].encoding = encoding
    to_zarr(dataset, tmp_path, zarr_format=zarr_format)
    np.testing.assert_array_equal(open_dataset(tmp_path)["a"], small()["a"])
    if zarr_format != "3-draft":
        np.testing.assert_array_equal(theirs(tmp_path)["a"], small()["a"])


def test_only_what_does_not_fit_is_left_out(tmp_path: Path) -> None:
    def codecs(place: Path) -> list[str]:
        return [codec["name"] for codec in document(place, "a")["codecs"]]

    dataset = small()
    dataset["a"].encoding = {"filters": (TRANSPOSE,), "compressors": ("gzip",), "chunks": (2, 3)}
    to_zarr(dataset, tmp_path / "a")
    assert codecs(tmp_path / "a") == ["transpose", "bytes", "gzip"]
    to_zarr(dataset.isel(x=1), tmp_path / "b")
    assert codecs(tmp_path / "b") == ["bytes", "gzip"]
    with pytest.raises(ValueError, match="order"):
        to_zarr(dataset.isel(x=1), tmp_path / "c", encoding={"a": {"filters": [TRANSPOSE]}})
    dataset["a"].encoding = {"write_empty_chunks": False}
    to_zarr(dataset, tmp_path / "d", write_empty_chunks=True)


PACKED = {"dtype": "i2", "scale_factor": 0.1, "_FillValue": -999}
DAYS = {"units": "days since 1900-01-01"}


def _with(name: Any, values: Any = (1.0, 2.0)) -> xr.Dataset:
    """A variable of one dimension; texts that are no objects are dates."""
    values = np.asarray(values)
    return xr.Dataset({name: ("d", values.astype("M8[ns]") if values.dtype.kind == "U" else values)})


def _text(*values: str | None) -> Any:
    return np.array(values, object)


LOSSES: dict[str, tuple[Any, dict[str, Any], str]] = {
    "large": ([1e9], {"dtype": "i2"}, r"1000000000\.0.*int16.*'v'.*-32768 to 32767"),
    "rounded": ([3e4, 32767.5], {"dtype": "i2"}, r"32767\.5"),
    "2**31 of float32": (np.array([2.0**31], "f4"), {"dtype": "i4"}, "int32"),
    "2**63": ([2.0**63], {"dtype": "i8"}, "int64"), "-1": ([-1], {"dtype": "u8"}, "-1.*uint64"),
    "2**64": (np.array([2**64 - 1], "u8"), {"dtype": "i8"}, "18446744073709551615"),
    "infinite": ([np.inf], {"dtype": "i2", "_FillValue": -1}, "inf"),
    "missing": ([1.0, np.nan], {"dtype": "i2"}, "missing value.*_FillValue"),
    "fill value": ([1.0, -0.9], {"dtype": "i2", "_FillValue": -1}, r"-0\.9.*_FillValue -1"),
    "exactly the fill value": ([1.0, 255], {"dtype": "u1", "_FillValue": 255}, r"255\.0 at.*\.where\("),
    "integer fill value": ([5, 0, -1], {"dtype": "i2", "_FillValue": -1}, "-1 at index.*_FillValue -1"),
    "fill value of the same type": (np.array([1, 0], "i4"), {"_FillValue": 0}, "0 at index.*_FillValue 0"),
    "missing value": (np.array([1, 0], "i4"), {"missing_value": 0}, "0 at index.*missing_value 0"),
    "packed": ([5e3], {**PACKED, "_FillValue": None},
        r"value 5000\.0 at index .* read as -1553\.6.* scale_factor 0\.1.*-3276\.8 to 3276\.\d+"),
    "missing, packed": ([1.0, np.nan], {**PACKED, "_FillValue": None}, "missing value"),
    "packed fill value": ([1.0, -99.9], PACKED, r"-99\.9.*_FillValue -999 and read as missing"),
    "unsigned": ([256.0], {"dtype": "i1", "_Unsigned": "true", "_FillValue": -1}, r"256\.0.*0 to 255"),
    "date": (["2100-01-01"], {"dtype": "i4", "units": "seconds since 1970-01-01"},
        "2100-01-01 at index .* read as 1963-11-25T17:31:44 from data type int32 with units"),
    "no date": (["1900-01-01", "NaT"], {"dtype": "i4", **DAYS}, "missing value.*int32"),
    "day 0": (["1900-01-01", "NaT"], {"dtype": "i8", **DAYS, "_FillValue": 0}, "_FillValue 0"),
    "duration": (np.array([10**6], "m8[s]"), {"dtype": "i2", "units": "seconds"},
        "11 days 13:46:40 at index .* read as 0 days 04:42:40 from data type int16 with"),
    "short float": ([1.0, 1e300], {"dtype": "f4"}, "float32"),
    "times of a short float": (["2000-01-01T00:00", "2020-02-03T04:05"],
        {"dtype": "f4", "units": "days since 2000-01-01"},
        "value 2020-02-03T04:05 at index .* would be read as 2020-02-03T04:0.* from data type float32"),
    "integers that are read as floats": ([1, 2**53 + 1], {"_FillValue": -1},
        rf"value {2**53 + 1} at index .* read as {2**53} from data type int64 with _FillValue -1"),
    "truth": ([1.0, 0.5], {"dtype": "bool"}, r"value 0\.5 at .* would be read as True from"),
    "imaginary": ([1j, 2], {"dtype": "f8"}, r"\.real and \.imag"),
    "marked text": (_text("a", "NA"), {"_FillValue": "NA"}, "value NA at index .* NA and read as missing"),
    "long text": (_text("a", "abc"), {"dtype": "U2"}, "abc at index .* read as ab from data type <U2"),
    "long mark": (_text("a", None), {"dtype": "U2", "_FillValue": "NONE"},
        "missing text at index .*, which would be read as 'NO'"),
}  # fmt: skip
"""Values (plain texts are dates), an encoding that cannot say them, and what is said of them."""


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("dtype", ["bool", "u1", "i8"])
@pytest.mark.parametrize("packing", [{"scale_factor": 0.5}, {"add_offset": -1.0}], ids=repr)
def test_integers_go_to_packed_variables(packing: dict[str, Any], dtype: str, lazy: bool) -> None:
    asked = {"dtype": "i2", "_FillValue": -999, **packing}
    floats, integers = _with("v", [1.5, np.nan]), _with("v", np.array([0, 1], dtype))
    integers = integers.chunk(d=1) if lazy else integers
    for before in (floats + (0.5 if "add_offset" in packing else 0), integers):
        group = to_zarr(before, encoding={"v": asked})
        to_zarr(integers, group.store, append_dim="d")
        assert group["v"].dtype == "i2"
        message = r"value 1000000 at index .*'v'"
        refused(group.store, _with("v", [10**6]), message, append_dim="d")
        np.testing.assert_array_equal(open_dataset(group.store).v, np.r_[before.v.values, 0.0, 1.0])


@pytest.mark.parametrize("lazy", [False, True])
def test_packing_is_one_finite_number(lazy: bool) -> None:
    dataset = _with("v", [2.0, np.nan])
    dataset = dataset.chunk(d=1) if lazy else dataset
    for packing in ({"scale_factor": 2}, {"scale_factor": np.array([0.5])}, {"add_offset": np.array([1])}):
        encoding = {"v": {"dtype": "i2", "_FillValue": -9, **packing}}
        assert open_dataset(to_zarr(dataset, encoding=encoding).store).v.values.tolist()[0] == 2
        assert [*packing.values()] == [encoding["v"][name] for name in packing]
    for value in (np.nan, np.inf, [], [1.0, 2.0]):
        for name in ("scale_factor", "add_offset"):
            with pytest.raises(ValueError, match=rf"variable 'v': {name}=.*; accepted: a finite number"):
                to_zarr(dataset, encoding={"v": {name: value}})
    with pytest.raises(ValueError, match=r"variable 'v': missing_value=\[1, 2\] .*; accepted: one value"):
        to_zarr(dataset, encoding={"v": {"missing_value": [1, 2]}})


IN_BLOCKS = ("packed", "short float", "times of a short float", "truth", "imaginary", "long text")
QUICK_LOSSES = [
    *((case, False, False) for case in LOSSES),
    *((case, True, False) for case in (*IN_BLOCKS, "integers that are read as floats")),
]


@pytest.mark.parametrize(
    ("case", "chunked", "kept"), covering(LOSSES, [False, True], [False, True], quick=QUICK_LOSSES)
)
def test_values_that_an_encoding_cannot_say(tmp_path: Path, case: str, chunked: bool, kept: bool) -> None:
    values, encoding, message = LOSSES[case]
    encoding = {key: value for key, value in encoding.items() if value is not None}
    dataset = _with("v", values).chunk(d=1) if chunked else _with("v", values)
    if kept:  # From a file: nothing tells whether the values still fit.
        dataset["v"].encoding = encoding
    to_zarr(small(), tmp_path)
    with warnings.catch_warnings(), dask.config.set(scheduler="synchronous"):
        warnings.simplefilter("ignore" if chunked else "error", RuntimeWarning)
        warnings.simplefilter("ignore", SerializationWarning)
        with pytest.raises(xzarr3.errors.DataTypeValidationError, match=message) as caught:
            to_zarr(dataset, tmp_path, mode="w", encoding=None if kept else {"v": encoding})
    advice = "; call .drop_encoding()" if kept else "; change what encoding={'v': ...} asks for"
    others = ("; if such values are missing, make them NaN", "; mark it by a text", "the .real and .imag")
    assert any(each in str(caught.value) for each in (advice, *others))
    xr.testing.assert_identical(open_dataset(tmp_path), small())
    assert sorted(os.listdir(tmp_path)) == ["a", "x", "zarr.json"]


@pytest.mark.parametrize("chunked", [False, slow(True)])
@pytest.mark.parametrize(("values", "encoding"), [
    ([-32768.0, 32767.0], {"dtype": "i2"}), ([-32768, 32767], {"dtype": "i2"}),
    ([0, 255.0, np.nan], {"dtype": "u1", "_FillValue": 7}),
    ([0.0, 200.0, np.nan], {"dtype": "i1", "_Unsigned": "true", "_FillValue": -1}),
    ([np.nan, np.nan], {"dtype": "i1", "_FillValue": 0}), ([], {"dtype": "i1"}),
    ([-3276.8, 3276.7, np.nan], PACKED),
    (["1900-01-01", "NaT", "2100-01-01"], {"dtype": "i4", **DAYS, "_FillValue": -1}),
    (["1900-01-01", "2100-01-01"], {"dtype": "i4", **DAYS}), (["NaT"], {"dtype": "i8", **DAYS}),
], ids=lambda value: str(value)[:40])  # fmt: skip
def test_values_that_an_integer_can_hold(tmp_path: Path, values: Any, encoding: Any, chunked: bool) -> None:
    for writer in ("xzarr3-dask" if chunked else "xzarr3", "zarr"):
        write(_with("v", values), tmp_path / writer[:5], writer, encoding={"v": encoding}, zarr_format=3)
    xr.testing.assert_identical(theirs(tmp_path / "xzarr"), theirs(tmp_path / "zarr"))
    xr.testing.assert_identical(open_dataset(tmp_path / "xzarr"), theirs(tmp_path / "zarr"))


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_missing_value_beside_nan_is_kept(zarr_format: Any, chunked: bool) -> None:
    dataset = _with("v", [1.5, np.nan]).chunk(d=1 if chunked else 2)
    store = to_zarr(dataset, encoding={"v": {"missing_value": -9.0}}, zarr_format=zarr_format).store
    to_zarr(dataset, store, append_dim="d")
    again = to_zarr(open_dataset(store), zarr_format=5 - zarr_format)
    for each in (store, again.store):
        np.testing.assert_array_equal(xzarr3.open_array(each, "v"), [1.5, -9, 1.5, -9])
        np.testing.assert_array_equal(open_dataset(each)["v"], [1.5, np.nan, 1.5, np.nan])
        refused(each, _with("v", [-9.0]), "read as missing", append_dim="d")


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("dtype", ["S1", object])
def test_single_bytes_are_not_joined(dtype: Any, zarr_format: Any) -> None:
    dataset = xr.Dataset({"v": (("d", "e"), np.array([[b"a", b""], [b"b", b"c"]], dtype))})
    store = to_zarr(dataset, zarr_format=zarr_format).store
    to_zarr(dataset, store, append_dim="d")
    xr.testing.assert_equal(open_dataset(store), xr.concat([dataset, dataset], "d").astype("S"))


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(("values", "units", "dtype", "stored"), [
    *((np.array([1, 1002, 2003], "m8[ms]"), "seconds", dtype, [0.001, 1.002, 2.003])
      for dtype in ("f4", "f8")),
    *((np.array([1, 2], "m8[s]"), "milliseconds", dtype, [1000, 2000]) for dtype in ("i8", "f8")),
    *((np.array(["1970-01-01", "1970-01-02"], "M8[s]"), "milliseconds since 1970-01-01", dtype, [0, 86400000])
      for dtype in ("i8", "f8")),
], ids=str)  # fmt: skip
def test_times_in_other_units(values: Any, units: str, dtype: str, stored: list[Any], chunked: bool) -> None:
    dataset = xr.Dataset({"v": ("d", values)})
    dataset = dataset.chunk(d=len(values) - 1) if chunked else dataset
    group = to_zarr(dataset, encoding={"v": {"units": units, "dtype": dtype}})
    to_zarr(dataset, group.store, append_dim="d")
    np.testing.assert_array_equal(group["v"], np.array([*stored, *stored], dtype))
    assert group["v"].attrs.get("dtype") == (str(values.dtype) if values.dtype.kind == "m" else None)


@pytest.mark.parametrize("dtype", ["i4", "i8"])
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("calendar", ["standard", "gregorian", "proleptic_gregorian"])
def test_dates_all_of_which_are_missing_are_appended(calendar: str, chunked: bool, dtype: str) -> None:
    def dates(*given: str) -> xr.Dataset:
        return _with("v", [*given]).chunk(d=1) if chunked else _with("v", [*given])

    encoding = {"v": {"dtype": dtype, **DAYS, "calendar": calendar, "_FillValue": -1}}
    store = to_zarr(dates("NaT", "NaT"), encoding=encoding).store
    for date in ("NaT", "2000-01-01"):
        to_zarr(dates(date), store, append_dim="d")
    found = open_dataset(store)["v"]
    assert found.isnull().values.tolist() == [True, True, True, False]
    assert found.encoding["calendar"] == ("proleptic_gregorian" if calendar[0] == "p" else calendar)


@pytest.mark.parametrize("dtype", ["i2", "f4"])
def test_values_that_equal_a_fill_value_among_the_attributes_are_missing(tmp_path: Path, dtype: str) -> None:
    marked = xr.Dataset({"v": ("d", np.array([1, -9], dtype), {"_FillValue": np.dtype(dtype).type(-9)})})
    to_zarr(marked, tmp_path / "a")
    to_zarr(open_dataset(tmp_path / "a", mask_and_scale=False), tmp_path / "b")
    to_zarr(marked, tmp_path / "c", encoding={"v": {"dtype": "i1"}})
    for read, path in itertools.product((open_dataset, theirs), "abc"):
        np.testing.assert_array_equal(read(tmp_path / path)["v"], [1, np.nan])


@pytest.mark.filterwarnings("ignore::xarray.conventions.SerializationWarning")
@pytest.mark.parametrize("chunked", [False, True])
def test_fractions_that_are_rounded_are_told_once(chunked: bool) -> None:
    values = np.array([1, 1.25, 7.5, np.nan, 2.25, 3])
    dataset = xr.Dataset({"v": ("x", values), "packed": ("x", values), "t": ("x", values.astype("M8[s]"))})
    dataset["t"].encoding = {"units": "days since 1970-01-01", "dtype": "f8"}
    dataset["packed"].encoding = {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1}
    dataset["v"].encoding = {"dtype": "i2", "_FillValue": -1}
    place = r"\(1,\) of block \(1,\)|\(0,\) of block \(.,\)" if chunked else r"\(2,\) has .* error, 0\.5"
    for _ in range(2):  # The next write is one of its own.
        with pytest.warns(UserWarning, match="rounded") as told:
            to_zarr(dataset.chunk(x=1) if chunked else dataset, xzarr3.MemoryStore())
        (said,) = (str(each.message) for each in told)
        assert re.search(rf"^fractions of variable 'v' .* dtype int16.* at index ({place})", said)


@pytest.mark.parametrize(("option", "stored"), [(None, False), (False, False), (True, True)])
def test_write_empty_chunks(option: bool | None, stored: bool) -> None:
    dataset = xr.Dataset({"a": ("x", np.full(4, np.nan))})
    store = to_zarr(dataset, write_empty_chunks=option).store
    assert store.exists("a/c/0") is stored
    to_zarr(dataset, store, mode="w", encoding={"a": {"write_empty_chunks": stored}})
    assert store.exists("a/c/0") is stored


@pytest.mark.parametrize("zarr_format", [3, 2])
@pytest.mark.parametrize("lazy", [False, True])
def test_scalars_and_indexes_of_fill_values_are_stored(zarr_format: Any, lazy: bool, tmp_path: Path) -> None:
    # The number of an ensemble's first member is zero, as the fill value is.
    ds = xr.Dataset({"t": (("time", "x"), [[1.5]])}, {"time": [0], "x": [0.0], "number": 0, "surface": 0.0})
    ds["number"] = ds["number"].chunk() if lazy else ds["number"]
    by_zarr, ours = tmp_path / "zarr", tmp_path / "ours"
    copied, recoded = xzarr3.MemoryStore(), xzarr3.MemoryStore()
    ds.to_zarr(by_zarr, zarr_format=zarr_format, consolidated=True)  # It leaves these chunks out.
    to_zarr(ds, ours, zarr_format=zarr_format)
    xzarr3.copy(by_zarr, copied)
    more: Any = {"chunks": {"x": 2, "time": 2}, "shards": {"x": 4}} if zarr_format == 3 else {"chunks": 2}
    xzarr3.copy(by_zarr, recoded, **more)
    for store in (ours, copied, recoded):
        assert not xzarr3.check(store).findings
        with xr.open_dataset(store, engine="xzarr3", missing="error") as found:
            xr.testing.assert_identical(found.load(), ds.load())
    root = xzarr3.open_group(ours, mode="r+")
    for name in ("number", "time"):
        root[name][...] = 1
        root[name][...] = 0
    to_zarr(ds.drop_vars(["number", "surface"]), ours, append_dim="time", check_labels=False)
    root = xzarr3.open_group(ours, missing="error")
    assert (root["number"][()], root["time"][:].tolist()) == (0, [0, 0])
    if zarr_format == 3:
        assert contents(ours).keys() >= {"number/c", "time/c/0", "x/c/0"}


@pytest.mark.parametrize("name", ["a", None, "x"])
def test_data_arrays_are_appended(name: str | None) -> None:
    array = small()["a"].rename(name)
    store = to_zarr(array, zarr_format="3-draft").store
    to_zarr(array.assign_coords(x=array.x + 4), store, append_dim="x")
    found = xr.open_dataarray(store, engine="xzarr3")  # type: ignore[arg-type]
    xr.testing.assert_identical(found[:4], array)
    np.testing.assert_array_equal(found[4:], array)


def test_mode_w_minus_refuses_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    to_zarr(small(), tmp_path / "empty")
    for mode in ("w-", None):
        with pytest.raises(FileExistsError, match="mode 'w' to replace"):
            to_zarr(small(), tmp_path / "empty", mode=mode)
    (tmp_path / "notes.txt").write_text("mine")
    _things.refused(xzarr3.NodeExistsError, "not empty", lambda: to_zarr(small(), tmp_path))
    with pytest.raises(xzarr3.NodeTypeError, match="'/a' is an array, not a group"):
        to_zarr(small(), tmp_path / "empty", group="a/b")


@pytest.mark.parametrize(("zarr_format", "copies"), [(3, None), (3, True), (3, False), (2, None), (2, True)])
def test_groups(tmp_path: Path, zarr_format: Any, copies: bool | None) -> None:
    path, options = tmp_path / "a", {"consolidated": copies, "zarr_format": zarr_format}
    to_zarr(small().assign_attrs(old=1), path, group="one/two", **options)
    to_zarr(CORPUS["bare"]()["b"], path, group="/one", mode="w", **options)
    to_zarr(small().rename(y="z"), path, group="one/two", **options)
    to_zarr(small(), path, group="three", **options)
    _things.refused(xzarr3.NodeExistsError, "/three", lambda: to_zarr(small(), path, group="three"))
    nodes = {"one", "one/b", "one/two", "one/two/a", "one/two/x", "three", "three/a", "three/x"}
    if zarr_format == 2:
        held = document(path, last=".zmetadata")["metadata"]
        assert {key.rpartition("/")[0] for key in held} - {""} == nodes
    else:
        held = document(path).get("consolidated_metadata")
        assert held is None if copies is False else held["metadata"].keys() == nodes
    expected = {"one": CORPUS["bare"]()[["b"]], "one/two": small().rename(y="z"), "three": small()}
    for group, dataset in expected.items():
        for read in (open_dataset, theirs):
            xr.testing.assert_identical(read(path, group=group, consolidated=False), dataset)
        xr.testing.assert_identical(open_dataset(path, group=group), dataset)
    tree = xr.open_datatree(path, engine="xzarr3")
    assert {node.path for node in tree.subtree} == {"/", "/one", "/one/two", "/three"}


@pytest.mark.parametrize("zarr_format", [3, 2])
@pytest.mark.parametrize(("able", "told"), [((), "list"), (("list",), "cannot erase, so .*not be replaced")])
def test_a_store_that_cannot_list_or_erase(able: Any, told: str, zarr_format: Any) -> None:
    whole = xzarr3.MemoryStore()
    store = whole.with_traits(operations=("get", "put", *able))
    to_zarr(small().chunk(x=2), store, zarr_format=zarr_format)
    xr.testing.assert_identical(open_dataset(store), small())
    to_zarr(CORPUS["bare"](), store, group="g")
    before = contents(whole)
    for group in (None, "g"):
        with pytest.raises(xzarr3.NodeExistsError, match=r"is not empty|mode .w. to replace"):
            to_zarr(small(), store, group=group)
        with pytest.raises(xzarr3.StoreError, match=told):
            to_zarr(small(), store, group=group, mode="w")
    assert contents(whole) == before
    xr.testing.assert_identical(open_dataset(store, group="g"), CORPUS["bare"]())


@pytest.mark.parametrize("value", [
    b"bytes", np.array([b"a"]), np.complex64(1), pd.Timestamp("2000-01-01"), np.timedelta64(3, "D"),
    np.datetime64("2000-01-01", "ns"), np.array(["2000"], "M8[ns]"), {1, 2}, {"a": [1, np.array([1j])]},
    {1: 2}, "\ud800", _things.Thing(),
], ids=repr)  # fmt: skip
@pytest.mark.parametrize("mode", ["w-", "a"])
def test_attributes_that_json_cannot_hold(value: Any, mode: Any) -> None:
    store, place = xzarr3.MemoryStore(), r"field 'attributes\.history[^']*'.*found .*attrs.pop\('history'\)"
    if mode == "a":
        to_zarr(small(), store)
    before = contents(store)
    for node in ("/b", "/"):
        dataset = small().rename(a="b")
        (dataset["b"] if node == "/b" else dataset).attrs["history"] = value
        with pytest.raises(xzarr3.MetadataError, match=f"node '{node}', {place}"):
            to_zarr(dataset, store, mode=mode)
        assert contents(store) == before


def _of_a(**encoding: Any) -> dict[str, Any]:
    return {"encoding": {"a": encoding}}


V2, DRAFT = {"zarr_format": 2}, {"zarr_format": "3-draft"}
UNKNOWN = xr.Dataset({"a": ("d", da.from_array(np.arange(9), chunks=4)[da.from_array(np.arange(9)) > 3])})
LEVELS = xr.Coordinates.from_pandas_multiindex(pd.MultiIndex.from_product([[1], [2, 3]]), "z")
REFUSED: dict[str, tuple[xr.Dataset, dict[str, Any], type[Exception], str]] = {
    "unknown key": (small(), _of_a(chunk=3), ValueError, "'a'.*'chunk'.*'chunks'"),
    "key of version 2": (small(), _of_a(compressor=None), ValueError, "compressors="),
    "units of numbers": (small(), _of_a(units="days since 2000-01-01"), ValueError, "float64"),
    "unknown variable": (small(), {"encoding": {"b": {}}}, KeyError, "'b'.*'a', 'x'"),
    "chunks of 3 dimensions": (small(), _of_a(chunks=(1, 2, 3)), ValueError, "'/a'.*'chunks'.*2 dimensions"),
    "chunks of version 3": (small(), {**V2, **_of_a(chunks=((1, 3), 6))}, ValueError,
        "'/a', field 'chunk_grid'.*2"),
    "shards of no chunks": (small(), _of_a(chunks=(2, 4), shards=(4, 6)), ValueError, r"\b4\b"),
    "shards in version 2": (small(), {**V2, **_of_a(shards=(4, 6))}, ValueError, "express"),
    "text in the draft": (TEXTS["texts"](), DRAFT, MetadataError, "'data_type': .*draft cannot express"),
    "copies in the draft": (small(), {**DRAFT, "consolidated": True}, MetadataError,
        "'consolidated_metadata'.*cannot express"),
    "unknown codec": (small(), _of_a(compressors="rot13"), ValueError, "'/a'.*rot13"),
    "two compressors": (small(), {**V2, **_of_a(compressor=None, compressors=None)}, ValueError,
        "for 'compressor' use compr"),
    "NaN as integer": (small(), _of_a(dtype="i2", fill_value=np.nan), ValueError, "'/a'"),
    "NaN as mark": (small(), _of_a(dtype="i2", _FillValue=np.nan), ValueError, "NaN"),
    "large mark": (small(), _of_a(**{**PACKED, "_FillValue": 99999}), ValueError, "_FillValue.*'a'.*int16"),
    **{
        f"mark {mark!r}": (_with("v"), {"encoding": {"v": {"dtype": "u8", "_FillValue": mark}}}, ValueError,
            "_FillValue of variable 'v' does not fit data type uint64")
        for mark in (2.0**64, np.float32(2**64), np.int64(-1))
    },
    "mark of bytes": (MISSING_BYTES, {"encoding": {"v": {"_FillValue": b"??"}}}, ValueError,
        r"node '/v', field 'attributes._FillValue'"),
    "missing bytes": (MISSING_BYTES, {}, DataTypeValidationError, r"'v' has missing bytes at index \(1,\)"),
    "the end of bytes": (_with("v", np.array([b"a", b"b\0"], object)), {}, DataTypeValidationError,
        r"value b'b\\x00' at index \(1,\) would be read as b'b'"),
    "fill value in version 2": (small(), {**V2, **_of_a(fill_value=1)}, ValueError, "the '_FillValue'"),
    "order": (small(), _of_a(order="K"), ValueError, "'/a', field 'order'"),
    "empty chunks": (small(), {"write_empty_chunks": True, **_of_a(write_empty_chunks=False)}, ValueError,
        "write_empty_chunks"),
    "compute": (small(), {"compute": "template"}, TypeError, "compute='template'; accepted: True, False"),
    "mode x": (small(), {"mode": "x"}, ValueError, "mode='x'.*'w', 'w-'"),
    "format 4": (small(), {"zarr_format": 4}, ValueError, "zarr_format.*4.*3, 2, '3-draft'"),
    "storage options": (small(), {"storage_options": {"a": 1}}, TypeError, "storage_options"),
    "document as name": (_with("zarr.json"), {}, ValueError, r"'zarr\.json'"),
    "document of version 2": (_with(".zarray"), V2, ValueError, r"'\.zarray'"),
    "empty name": (_with(""), {}, ValueError, "''"), "number as name": (_with(3), {}, TypeError, "name 3"),
    "reserved name": (_with("__zarr_x"), {}, ValueError, "'__zarr' are reserved"),
    "name of ours": (_with(".xzarr3-staged-x"), {}, ValueError, r"'\.xzarr3-' are reserved"),
    "group of ours": (small(), {"group": "a/.xzarr3-partial-x"}, ValueError, "are reserved"),
    "backslash": (small(), {"group": "a\\b"}, ValueError, "names without"),
    "number as dimension": (xr.Dataset({"a": ((4,), [1.0])}), {}, TypeError, "name 4 of a dimension.*'a'"),
    "unknown lengths": (UNKNOWN, {}, ValueError, r"'a'.*compute_chunk_sizes\(\)"),
    "data type": (_with("s", np.zeros(2, np.longdouble)), {}, ValueError,
        r"'/s', field 'data_type'.*drop_vars"),
    "levels": (xr.Dataset(coords=LEVELS), {}, NotImplementedError, "'z'.*MultiIndex.*reset_index"),
}  # fmt: skip
"""Datasets, options, and the error with what it says."""


@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_anything_is_written(tmp_path: Path, case: str) -> None:
    dataset, options, error, message = REFUSED[case]
    _things.refused(error, message, lambda: to_zarr(dataset, tmp_path / "new", **options))
    assert not (tmp_path / "new").exists()
    old = NotingStore()
    to_zarr(CORPUS["bare"](), old)
    old.fail_at = len(old.changes)
    _things.refused(error, message, lambda: to_zarr(dataset, old, **{"mode": "w", **options}))


def test_what_cannot_be_cleaned_up_is_told() -> None:
    store = NotingStore()
    store.fail_at = 2
    (error,) = _things.refused(xzarr3.StoreError, "disk is full", lambda: to_zarr(small(), store))
    assert "not all that was written already could be removed" in str(error.__notes__)


@pytest.mark.filterwarnings("ignore:.* was written, but some values")
@pytest.mark.parametrize(("kind", "group", "zarr_format", "many", "of_tree"), [
    *(("store", group, 3, many, False) for group in (None, "deep/below") for many in (1, 10**9)),
    slow("store", None, 2, 1, False), slow("store", "deep/below", 2, 10**9, False),
    slow("store", None, "3-draft", 10**9, False), slow("store", "deep/below", "3-draft", 1, False),
    slow("store", None, 3, 1, True), slow("store", "deep/below", 3, 1, True),
    slow("directory", None, 3, 10**9, False), slow("directory", "deep/below", 3, 10**9, False),
    slow("directory", "deep/below", 2, 1, False), slow("directory", None, "3-draft", 1, False),
])  # fmt: skip
def test_a_failed_write_leaves_old_or_new(
    tmp_path: Path, kind: str, group: Any, zarr_format: Any, many: int, of_tree: bool
) -> None:
    old, new, later = CORPUS["bare"](), small(), small().chunk(x=2)
    if of_tree:
        old, new, later = (xr.DataTree.from_dict({"/": each, "/a2/b": each}) for each in (old, new, later))

    def found(**options: Any) -> Any:
        read = xr.open_datatree if of_tree else xr.open_dataset
        return read(store, engine="xzarr3", group=group, **options)

    outcomes = []
    for n in itertools.count():
        store: Any = NotingStore() if kind == "store" else xzarr3.LocalStore(tmp_path / str(n))
        to_zarr(small().rename(y="z"), store, group="beside", zarr_format=zarr_format)
        to_zarr(old, store, group=group, mode="w", zarr_format=zarr_format)
        beside, counted, failed = contents(store), itertools.count(), 0

        def fail(error: type[Exception] = OSError) -> None:
            nonlocal failed
            failed += 1
            if failed <= many:
                raise error(28, f"No space left on device, '{tmp_path}'")

        def count(key: str, counted: Any = counted, n: int = n, fail: Any = fail) -> None:
            if next(counted) >= n:
                fail(xzarr3.StoreError)

        with (
            pytest.MonkeyPatch.context() as patch,
            dask.config.set(scheduler="synchronous"),
            warnings.catch_warnings(record=True),
        ):
            if kind == "store":
                patch.setattr(store, "_count", count)
            else:
                end_at_change(n, fail, patch.setattr)
            _, failure = attempt(partial(to_zarr, later, store, group=group, mode="w"), xzarr3.StoreError)
        begun = "xzarr3.recover(store)" in " ".join(getattr(failure, "__notes__", ()))
        outcomes.append("new" if failure is None else "ended" if begun else "old")
        if failure is not None:
            assert str(tmp_path) in str(failure)
            assert ".xzarr3-staged" not in str(failure)
            if begun:
                done = xzarr3.recover(store)
                assert done in ([f"/{group or ''}"], [])
                assert found().identical(new) or (not done and found().identical(old))
            else:
                assert {key: each for key, each in contents(store).items() if ".xzarr3" not in key} == beside
        to_zarr(new, store, group=group, mode="w")
        assert xzarr3.open_group(store, group or "").zarr_format == zarr_format
        for consolidated in (None, False):
            assert found(consolidated=consolidated).identical(new)
        if not failed:
            break
    assert set(outcomes) == {"old", "ended", "new"}
    assert outcomes.count("ended") > 5


@pytest.mark.parametrize("separator", ["/", "."])
def test_an_array_whose_replacement_was_killed_can_be_replaced(tmp_path: Path, separator: str) -> None:
    path, rename = tmp_path / "a", os.rename
    encoding = {"name": "default", "configuration": {"separator": separator}}
    xzarr3.create_array(path, data=np.arange(4), chunks=2, chunk_key_encoding=encoding)
    works = [rename, rename]  # The first one says that the write ends.
    killed = mock.patch("os.rename", lambda *given, **folders: works.pop()(*given, **folders))
    with killed, pytest.raises(IndexError) as info:
        to_zarr(small(), path, mode="w")
    assert "xzarr3.recover(store)" in str(info.value.__notes__)
    assert not (path / "zarr.json").exists()
    (path / "c.99x").write_text("mine")
    to_zarr(small(), path, mode="w")
    assert (path / "c.99x").read_text() == "mine"
    xr.testing.assert_identical(open_dataset(path), small())


def test_what_killed_writes_left_is_removed_a_day_later(tmp_path: Path) -> None:
    def leave(name: str, *files: str, days: float = 1.1) -> Path:
        top = tmp_path / f".xzarr3-staged-{name}"
        for file in files or ("new/a/c/0",):
            (top / file).parent.mkdir(parents=True, exist_ok=True)
            (top / file).write_bytes(b"x")
        then = time.time() - days * 86400
        for folder, _, _ in os.walk(top):
            os.utime(folder, (then, then))
        return top

    to_zarr(small(), tmp_path)
    fresh, gone, running = leave("fresh", days=0.9), leave("gone"), leave("running")
    os.utime(running / "new" / "a" / "c")
    old = leave("old", "old/g/zarr.json", "new/g/zarr.json")
    to_zarr(small(), tmp_path, group="h")
    assert [path.exists() for path in (fresh, gone, running, old)] == [True, False, True, True]
    xr.testing.assert_identical(theirs(tmp_path, consolidated=False), small())
    for group in ("gg", "g"):
        to_zarr(small(), tmp_path, group=group, mode="w")
    assert all(path.exists() for path in (fresh, running, old)), "nothing tells what old is"


@pytest.mark.parametrize("compute", [True, False])
def test_what_cannot_be_replaced_is_seen_before_anything_is_computed(tmp_path: Path, compute: bool) -> None:
    never = mock.Mock(side_effect=AssertionError("computed"))
    to_zarr(small(), tmp_path)
    (tmp_path / "b" / "c").mkdir(parents=True)
    (tmp_path / "b" / "c" / "notes.txt").write_text("mine")
    dataset = small().chunk(x=2)
    values = dataset["a"].data.map_blocks(never, dtype="f8", meta=np.empty((0, 0)), name="never")
    dataset["b"] = dataset["a"].copy(data=values)
    with pytest.raises(xzarr3.NodeExistsError, match=r"no part of a Zarr hierarchy.*'b'; nothing was repl"):
        to_zarr(dataset, tmp_path, mode="w", compute=compute)
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "x", "zarr.json"]
    assert (tmp_path / "b" / "c" / "notes.txt").read_text() == "mine"
    xr.testing.assert_identical(open_dataset(tmp_path), small())


@pytest.mark.parametrize("mode", ["w", "w-"])
def test_a_file_is_in_the_way(tmp_path: Path, mode: Any) -> None:
    file = tmp_path / "a.nc"
    file.write_bytes(b"CDF")
    for path, group in ((file, None), (file / "b", "c"), (tmp_path, "a.nc"), (tmp_path, "a.nc/b")):
        with pytest.raises(xzarr3.StoreError, match=r"a\.nc' is a file, not a directory"):
            to_zarr(small(), path, group=group, mode=mode)
    assert (file.read_bytes(), os.listdir(tmp_path)) == (b"CDF", ["a.nc"])


@pytest.mark.parametrize("name", CORPUS)
def test_tensorstore_reads_the_same(tmp_path: Path, name: str) -> None:
    tensorstore, dataset = pytest.importorskip("tensorstore"), CORPUS[name]()
    to_zarr(dataset, tmp_path)
    for variable in dataset.variables:
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(tmp_path / variable)}}
        read = tensorstore.open(spec, read=True).result().read().result()
        np.testing.assert_array_equal(read, zarr.open_array(tmp_path / variable, mode="r")[...])
