"""Which libraries read an array, by a table of the data types, codecs and layouts that each of them knows.

"Reads" means: opens the array by its documents and returns the same shape and values as xzarr3. How each
row was verified:

zarr-python 3
    Tests read every array of ``tests/data`` with the installed version (3.4.2) and compare.
xarray
    The same, with its engine ``zarr`` (xarray 2026.9.0), each array alone in a group.
tensorstore
    The same, with its drivers ``zarr3`` and ``zarr`` (0.1.86).
GDAL
    The same, with GDAL 3.13 and its own bindings by ``ci/gdal.sh``. Without these, with the raster model of
    GDAL 3.12 in rasterio, which has no arrays without dimensions, no shards, crc32c, bitround and
    fixedscaleoffset.
zarr-python 2
    Arrays that 2.18.7 wrote and read back are kept in ``tests/data``. It reads version 2 only.
zarrita.js
    Not run: the row follows the data types and codecs that its source registers. Try it before you rely on
    it.

The draft of May 2022 is read by none of them: zarr-python 2 had it as an experiment that was removed.
Knows documents as JSON and no stores.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from xzarr3.errors import listed
from xzarr3.formats.base import Held
from xzarr3.formats.v2 import ARRAY
from xzarr3.model.metadata import ArrayMetadata


@dataclass(frozen=True)
class Features:
    """What a reader must know to read an array.

    Parameters
    ----------
    meta : ArrayMetadata
    document : mapping
        The document that defines the array.
    data_type : str
        The name of the data type; in version 2 the kind of numpy's, ``record``, or another name.
    codecs : tuple of str
        The names of all codecs, those in shards included.
    """

    meta: ArrayMetadata
    document: Mapping[str, Any]
    data_type: str
    codecs: tuple[str, ...]

    @property
    def fill_value(self) -> Any:
        """The fill value as the document has it."""
        return self.document.get("fill_value")

    @classmethod
    def of(cls, meta: ArrayMetadata, held: Held) -> Features:
        """The features of an array, from its documents."""
        read = _DOCUMENTS.get(meta.zarr_format)
        return cls(meta, *(({}, "", ()) if read is None else read(held)))


def _of_version_3(held: Held) -> tuple[Mapping[str, Any], str, tuple[str, ...]]:
    return held, _name(held["data_type"]), tuple(_names(held["codecs"]))


def _of_version_2(held: Held) -> tuple[Mapping[str, Any], str, tuple[str, ...]]:
    document = held[ARRAY]
    stages = [*(document.get("filters") or ()), document.get("compressor")]
    return document, _kind(document["dtype"]), tuple(each["id"] for each in stages if each)


_DOCUMENTS: dict[int | str, Callable[[Held], tuple[Mapping[str, Any], str, tuple[str, ...]]]] = {
    3: _of_version_3,
    2: _of_version_2,
}


def _name(extension: Any) -> str:
    return str(extension.get("name") if isinstance(extension, dict) else extension)


def _names(codecs: Any) -> Iterator[str]:
    """The names of codecs, and of the codecs within shards."""
    for codec in codecs:
        yield _name(codec)
        configuration = codec.get("configuration", {}) if isinstance(codec, dict) else {}
        if _name(codec) == "sharding_indexed":
            yield from _names(configuration.get("codecs", ()))
            yield from _names(configuration.get("index_codecs", ()))


def _kind(dtype: Any) -> str:
    """The kind of a numpy dtype as version 2 names it."""
    if not isinstance(dtype, str):
        return "record"
    match = re.fullmatch(r"[<>|=]?([biufcmMSUVO])(\d*)(\[.*\])?", dtype)
    return dtype if match is None else match[1]


Problem = Callable[[Features], str | None]


@dataclass(frozen=True)
class Reader:
    """What a library reads.

    Parameters
    ----------
    name : str
    data_types : mapping
        The names of data types, by format. A format that is absent is not read.
    codecs : mapping
        The names of codecs, by format.
    problems : mapping
        By format, functions that return why it cannot read an array although it knows all names, or None.
    grids : frozenset of str
        The names of chunk grids.
    """

    name: str
    data_types: Mapping[int, frozenset[str]]
    codecs: Mapping[int, frozenset[str]]
    problems: Mapping[int, tuple[Problem, ...]] = field(default_factory=dict)
    grids: frozenset[str] = frozenset(("regular",))

    def problem(self, array: Features) -> str | None:
        """Why the library cannot read an array; None if it can."""
        version: Any = array.meta.zarr_format
        data_types, codecs = self.data_types.get(version), self.codecs.get(version)
        if data_types is None or codecs is None:
            return f"does not read Zarr format {version}"
        if array.data_type not in data_types:
            return f"does not know data type {array.data_type!r}"
        unknown = [name for name in dict.fromkeys(array.codecs) if name not in codecs]
        if unknown:
            return f"does not know codec {listed(unknown)}"
        if array.meta.chunk_grid.name not in self.grids:
            return f"does not read chunk grid {array.meta.chunk_grid.name!r}"
        if array.meta.storage_transformers:
            return "does not know storage transformers"
        reasons = (check(array) for check in self.problems.get(version, ()))
        return next((reason for reason in reasons if reason is not None), None)


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NUMBERS = _set(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128"
)
_REALS = _NUMBERS - _set("complex64 complex128")
_TIMES = _set("numpy.datetime64 numpy.timedelta64")
_TEXTS = _set("string fixed_length_utf32 null_terminated_bytes variable_length_bytes bytes raw_bytes")
_RECORDS = _set("struct structured")
_SMALL_FLOATS = _set(
    "bfloat16 float4_e2m1fn float8_e3m4 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2 "
    "float8_e5m2fnuz float8_e8m0fnu"
)
_CORE = _set("bytes transpose gzip blosc zstd crc32c sharding_indexed")
_OF_NUMCODECS = _set(
    "adler32 astype base64 bitround blosc bz2 categorize crc32 crc32c delta fixedscaleoffset fletcher32 gzip "
    "jenkins_lookup3 lz4 lzma packbits quantize shuffle vlen-bytes vlen-utf8 zlib zstd"
)
_IN_V3 = _OF_NUMCODECS - _set("base64 categorize vlen-bytes vlen-utf8")


# What is known by name and not read all the same.


def _text_as_objects(array: Features) -> str | None:
    if array.data_type in "SU" and {"vlen-utf8", "vlen-bytes"} & {*array.codecs}:
        return "refuses text of fixed length with a codec of objects, as zarr-python 3.0 wrote it"
    if array.data_type == "O" and not {"vlen-utf8", "vlen-bytes", "categorize"} & {*array.codecs}:
        return "does not read these objects"
    return None


def _fill_of_bytes(array: Features) -> str | None:
    if "vlen-bytes" in array.codecs and not isinstance(array.fill_value, (str, type(None))):
        return f"refuses the fill value {array.fill_value!r} of bytes"
    return None


def _odd_dtypes(array: Features) -> str | None:
    dtype = array.document.get("dtype")
    if array.data_type == "S" and str(dtype)[0] == ">":
        return f"refuses the dtype {dtype!r}"
    if array.data_type == "record" and any(len(each) > 2 for each in dtype or ()):
        return "refuses fields that are arrays"
    if array.data_type == "M" and isinstance(array.fill_value, str) and array.fill_value != "NaT":
        return "refuses a fill value that is a date, as zarr-python 3.0 wrote it"
    return None


def _shuffle_of_netcdf(array: Features) -> str | None:
    filters = array.document.get("filters") or ()
    sizes = [each.get("elementsize") for each in filters if each["id"] == "shuffle"]
    return "does not read the elementsize 0 of shuffle, as netCDF-C writes it" if 0 in sizes else None


def _dimension_names(array: Features) -> str | None:
    return "needs the names of the dimensions" if array.meta.dimension_names is None else None


def _dimension_names_unless_scalar(array: Features) -> str | None:
    return _dimension_names(array) if array.meta.shape else None


def _fields(array: Features) -> str | None:
    return "reads one field at a time" if array.data_type == "record" else None


def _bytes_as_dimension(array: Features) -> str | None:
    if array.data_type in ("S", "V", "raw_bytes"):
        return "reads the bytes of an element as one more dimension"
    return None


def _no_filters(array: Features) -> str | None:
    if array.document.get("filters"):
        return "does not read filters in version 2"
    compressor = array.document.get("compressor") or {}
    if compressor.get("id") == "zstd" and "checksum" in compressor:
        return "refuses the field 'checksum' of zstd in version 2"
    return None


def _codec_after_shards(array: Features) -> str | None:
    codecs = [_name(codec) for codec in array.document["codecs"]]
    if "sharding_indexed" in codecs and codecs[-1] != "sharding_indexed":
        return "takes no codec behind sharding_indexed"
    return None


def _gdal_fill_value(array: Features) -> str | None:
    fill, name = array.fill_value, array.meta.data_type.name
    if name == "uint64" and isinstance(fill, int) and fill >= 2**63:
        return "reads fill values of uint64 as int64"
    if name == "float16" and isinstance(fill, str) and fill.startswith("0x"):
        return "refuses hexadecimal fill values of float16"
    return None


def _gdal_complex_fill_value(array: Features) -> str | None:
    return "refuses complex fill values in version 2" if isinstance(array.fill_value, list) else None


def _gdal_shape(array: Features) -> str | None:
    return "refuses dimensions of length 0" if 0 in array.meta.shape else None


def _gdal_filters(array: Features) -> str | None:
    for stage in (*(array.document.get("filters") or ()), array.document.get("compressor") or {}):
        name, dtype = stage.get("id"), stage.get("dtype")
        if name == "delta" and (stage.get("astype", dtype) != dtype or str(dtype).startswith(">")):
            return "reads the filter delta only with one little-endian dtype"
        if name == "fixedscaleoffset" and stage.get("astype", dtype) != dtype:
            return "reads the filter fixedscaleoffset only with one dtype"
        if name == "lzma" and (stage.get("format", 1) != 1 or stage.get("filters")):
            return "reads lzma only as xz without filters"
    return None


def _gdal_codecs(array: Features) -> str | None:
    text = json.dumps(array.document["codecs"])
    if re.search(r'"level": -', text):
        return "refuses negative levels of zstd"
    if text.count('"sharding_indexed"') > 1 and '"index_location": "start"' in text:
        return "looks for the index of a shard within a shard at its end only"
    for codec in array.document["codecs"]:
        order = codec.get("configuration", {}).get("order") if isinstance(codec, dict) else None
        if isinstance(order, list) and [order[at] for at in order] != list(range(len(order))):
            return "takes the order of transpose for its inverse"
    return None


def _json_literals(array: Features) -> str | None:
    fill = array.fill_value
    return "cannot parse NaN in a document" if isinstance(fill, float) and fill != fill else None


_IN_ZARR_PYTHON = {
    3: _NUMBERS | _TIMES | _TEXTS | _RECORDS,
    2: _set("b i u f c m M S U V O record"),
}
_CODECS_OF_ZARR_PYTHON = {
    3: _CORE
    | _set("vlen-utf8 vlen-bytes scale_offset cast_value")
    | {f"numcodecs.{name}" for name in _IN_V3},
    2: _OF_NUMCODECS,
}

_PROBLEMS_OF_ZARR_PYTHON: dict[int, tuple[Problem, ...]] = {
    3: (_fill_of_bytes,),
    2: (_text_as_objects, _fill_of_bytes, _odd_dtypes, _shuffle_of_netcdf),
}

READERS: tuple[Reader, ...] = (
    Reader("zarr-python 3", _IN_ZARR_PYTHON, _CODECS_OF_ZARR_PYTHON, _PROBLEMS_OF_ZARR_PYTHON),
    Reader("zarr-python 2", {2: _set("b i u f c m M S U V O record")}, {2: _OF_NUMCODECS | {"json2"}}),
    Reader(
        "xarray",
        _IN_ZARR_PYTHON,
        _CODECS_OF_ZARR_PYTHON,
        {
            3: (*_PROBLEMS_OF_ZARR_PYTHON[3], _dimension_names_unless_scalar),
            2: (*_PROBLEMS_OF_ZARR_PYTHON[2], _dimension_names),
        },
    ),
    Reader(
        "tensorstore",
        {
            3: _NUMBERS | _SMALL_FLOATS | _set("int2 int4 raw_bytes"),
            2: _set("b i u f c S V record int4") | _SMALL_FLOATS,
        },
        {3: _CORE, 2: _set("blosc bz2 gzip zlib zstd")},
        {3: (_bytes_as_dimension, _codec_after_shards), 2: (_no_filters, _fields, _bytes_as_dimension)},
    ),
    Reader(
        "GDAL",
        {3: _NUMBERS, 2: _set("b i u f c")},
        {
            3: _CORE,
            2: _set("bitround blosc delta fixedscaleoffset gzip lzma quantize shuffle zlib zstd"),
        },
        {
            3: (_gdal_fill_value, _gdal_shape, _gdal_codecs),
            2: (_gdal_fill_value, _gdal_complex_fill_value, _gdal_shape, _gdal_filters, _shuffle_of_netcdf),
        },
    ),
    Reader(
        "zarrita.js",
        {3: _REALS | _set("string fixed_length_utf32"), 2: _set("b i u f S U O")},
        {
            3: _CORE
            | _set(
                "vlen-utf8 bitround cast_value scale_offset numcodecs.blosc numcodecs.delta numcodecs.gzip"
            )
            | _set("numcodecs.lz4 numcodecs.shuffle numcodecs.zlib numcodecs.zstd"),
            2: _set("blosc delta gzip lz4 shuffle vlen-utf8 zlib zstd"),
        },
        {3: (_json_literals,), 2: (_json_literals,)},
    ),
)
"""The table."""


def readable_by(meta: ArrayMetadata, held: Held) -> tuple[tuple[str, ...], dict[str, str]]:
    """The libraries that read an array, and the others with the reason."""
    array = Features.of(meta, held)
    problems = {reader.name: reader.problem(array) for reader in READERS}
    readers = tuple(name for name, problem in problems.items() if problem is None)
    return readers, {name: problem for name, problem in problems.items() if problem is not None}
