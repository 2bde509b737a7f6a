"""Which libraries read an array, by a table of the data types, codecs and layouts that each of them knows.

"Reads" means: opens the array by its documents and returns the same shape and values as xzarr3. The table is
about names: what a library refuses in the configuration of a codec or in a fill value is not in it.
``tests/checks/test_readers.py`` reads every array of ``tests/data`` with the installed libraries, compares,
and lists the arrays whose names a library knows and which it refuses all the same. The draft of May 2022 is
read by none of them: zarr-python 2 had it as an experiment that was removed.

Knows documents as JSON and no stores.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from xzarr3.formats.base import Held
from xzarr3.formats.v2 import ARRAY
from xzarr3.model.metadata import ArrayMetadata

_TESTED = "tests/checks/test_readers.py"
DOCUMENTED = "by its documentation"


class Row(NamedTuple):
    """What a library reads of a format, since when, and how that is known. Names stand between blanks."""

    reader: str
    zarr_format: int
    data_types: str
    """In version 2 the kinds of numpy's, ``record``, or other names."""
    codecs: str
    layouts: str
    """Chunk grids, dimensions ``named`` and ``unnamed``, and ``filters`` of version 2."""
    since: str
    """The oldest version that is known to read them; empty where its documentation names none."""
    checked: str
    """The file of the test, or ``"by its documentation"``."""


_REALS = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64"
_NUMBERS = f"{_REALS} complex64 complex128"
_JS = f"{_REALS} string fixed_length_utf32"
_TYPES = (
    f"{_NUMBERS} numpy.datetime64 numpy.timedelta64 string fixed_length_utf32 null_terminated_bytes "
    "variable_length_bytes bytes raw_bytes structured"
)
_SMALL = "int4 bfloat16 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz"
_SMALLER = "int2 float4_e2m1fn float8_e3m4 float8_e8m0fnu"
_KINDS = "b i u f c m M S U V O record"
_CORE = "bytes transpose gzip blosc zstd crc32c sharding_indexed"
_NUMCODECS = (
    "adler32 astype bitround blosc bz2 crc32 crc32c delta fixedscaleoffset fletcher32 gzip jenkins_lookup3 "
    "lz4 lzma packbits quantize shuffle zlib zstd"
)
_V2_CODECS = f"{_NUMCODECS} base64 categorize vlen-bytes vlen-utf8"
_V3_CODECS = f"{_CORE} vlen-utf8 vlen-bytes numcodecs.{_NUMCODECS.replace(' ', ' numcodecs.')}"
_GDAL_V2 = "bitround blosc delta fixedscaleoffset gzip lzma quantize shuffle zlib zstd"
_JS_V2 = "blosc delta gzip lz4 shuffle vlen-utf8 zlib zstd"
_JS_V3 = (
    f"{_CORE} vlen-utf8 bitround cast_value scale_offset numcodecs.blosc numcodecs.delta numcodecs.gzip "
    "numcodecs.lz4 numcodecs.shuffle numcodecs.zlib numcodecs.zstd"
)
_ANY, _ANY_V2 = "regular named unnamed", "regular named unnamed filters"
_NEW_CODECS = "scale_offset cast_value"

ROWS: tuple[Row, ...] = (
    Row("zarr-python", 3, _TYPES, _V3_CODECS, _ANY, "3.1.6", _TESTED),
    Row("zarr-python", 3, "struct", _NEW_CODECS, "", "3.4.2", _TESTED),
    Row("zarr-python", 2, _KINDS, _V2_CODECS, _ANY_V2, "2.18.7", _TESTED),
    Row("xarray", 3, _TYPES, _V3_CODECS, "regular named", "2026.9.0", _TESTED),
    Row("xarray", 3, "struct", _NEW_CODECS, "", "2026.9.0", _TESTED),
    Row("xarray", 2, _KINDS, _V2_CODECS, "regular named filters", "2026.9.0", _TESTED),
    Row("tensorstore", 3, f"{_NUMBERS} {_SMALL}", _CORE, _ANY, "0.1.71", _TESTED),
    Row("tensorstore", 3, _SMALLER, "", "", "0.1.86", _TESTED),
    Row("tensorstore", 2, f"b i u f c {_SMALL}", "blosc bz2 gzip zlib zstd", _ANY, "0.1.71", _TESTED),
    Row("GDAL", 3, _NUMBERS, _CORE, _ANY, "3.13", _TESTED),
    Row("GDAL", 2, "b i u f c", _GDAL_V2, _ANY_V2, "3.13", _TESTED),
    Row("zarrita.js", 3, _JS, _JS_V3, _ANY, "", DOCUMENTED),
    Row("zarrita.js", 2, "b i u f S U O", _JS_V2, _ANY_V2, "", DOCUMENTED),
)
"""The table."""
READERS = tuple(dict.fromkeys(row.reader for row in ROWS))


def readable_by(meta: ArrayMetadata, held: Held) -> tuple[dict[str, str], dict[str, str]]:
    """The libraries that read an array with the version they need, and the others with the reason."""
    readers: dict[str, str] = {}
    others: dict[str, str] = {}
    wanted = list(_features(meta, held))
    for reader in READERS:
        rows = [row for row in ROWS if (row.reader, row.zarr_format) == (reader, meta.zarr_format)]
        since: list[str] = []
        unknown = [] if rows else [f"Zarr format {meta.zarr_format}"]
        for column, name, said in wanted if rows else ():
            found = [row.since for row in rows if name in getattr(row, column).split()]
            since += found[:1]
            unknown += [] if found else [said]
        if unknown:
            others[reader] = f"does not know {', '.join(dict.fromkeys(unknown))}"
        else:
            readers[reader] = newest(since)
    return readers, others


def newest(versions: Iterable[str]) -> str:
    """The newest of some versions; empty without any."""
    return max(versions, key=lambda text: [int(part) for part in text.split(".") if part], default="")


def _features(meta: ArrayMetadata, held: Held) -> Iterator[tuple[str, str, str]]:
    """What a reader must know: the column of the table, the name there, and what a message says."""
    if meta.zarr_format == 3:
        data_type, codecs = _name(held["data_type"]), list(_names(held["codecs"]))
    elif meta.zarr_format == 2:
        document = held[ARRAY]
        stages = [*(document.get("filters") or ()), document.get("compressor")]
        data_type, codecs = _kind(document["dtype"]), [each["id"] for each in stages if each]
        if document.get("filters"):
            yield "layouts", "filters", "filters in version 2"
    else:
        return
    yield "data_types", data_type, f"data type {data_type!r}"
    yield from (("codecs", name, f"codec {name!r}") for name in codecs)
    yield "layouts", meta.chunk_grid.name, f"chunk grid {meta.chunk_grid.name!r}"
    if meta.dimension_names is None and (meta.shape or meta.zarr_format == 2):
        yield "layouts", "unnamed", "dimensions without names"
    if meta.storage_transformers:
        yield "layouts", "transformed", "storage transformers"


def _name(extension: Any) -> str:
    return str(extension.get("name") if isinstance(extension, dict) else extension)


def _names(codecs: Any) -> Iterator[str]:
    """The names of codecs, and of the codecs within shards."""
    for codec in codecs:
        yield _name(codec)
        if _name(codec) == "sharding_indexed":
            inner = codec["configuration"]
            yield from _names([*inner["codecs"], *inner.get("index_codecs", ())])


def _kind(dtype: Any) -> str:
    """The kind of a numpy dtype as version 2 names it."""
    match = re.fullmatch(r"[<>|=]?([biufcmMSUVO])(\d*)(\[.*\])?", dtype) if isinstance(dtype, str) else None
    return match[1] if match is not None else dtype if isinstance(dtype, str) else "record"
