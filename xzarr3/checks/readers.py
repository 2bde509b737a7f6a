"""Which libraries read an array, by a table of the data types, codecs and layouts that each of them knows.

"Reads" means: opens the array by its documents and returns the same shape and values as xzarr3. The table is
about names: what a library refuses in the configuration of a codec or in a fill value is not in it.
``tests/checks/test_readers.py`` reads every array of ``tests/data`` with the installed libraries, compares,
and lists the arrays whose names a library knows and which it refuses all the same. The draft of May 2022 is
read by none of them: zarr-python 2 had it as an experiment that was removed.

Knows documents as JSON and no stores.
"""

from __future__ import annotations

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
    data_type: str
    """In version 2 the kinds of numpy's, ``record``, or other names."""
    codec: str
    """Also ``filters``, those of version 2."""
    layout: str
    """What it reads beside regular chunks of named dimensions: ``unnamed`` ones."""
    since: str
    """The oldest version that is known to read them; empty where its documentation names none."""
    checked: str
    """The file of the test, or ``"by its documentation"``."""


_REALS = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64"
_NUMBERS = f"{_REALS} complex64 complex128"
_TEXT = "string fixed_length_utf32"
_BYTES = "null_terminated_bytes variable_length_bytes bytes raw_bytes"
_TYPES = f"{_NUMBERS} numpy.datetime64 numpy.timedelta64 {_TEXT} {_BYTES} structured"
_SMALL = "int4 bfloat16 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz"
_KINDS = "b i u f c m M S U V O record"
_CORE = "bytes transpose gzip blosc zstd crc32c sharding_indexed"
_COMMON = "bitround blosc delta fixedscaleoffset gzip lzma quantize shuffle zlib zstd"
_NUMCODECS = f"{_COMMON} adler32 astype bz2 crc32 crc32c fletcher32 jenkins_lookup3 lz4 packbits"
_V2_CODECS = f"{_NUMCODECS} base64 categorize vlen-bytes vlen-utf8 filters"
_V3_CODECS = f"{_CORE} vlen-utf8 vlen-bytes numcodecs.{_NUMCODECS.replace(' ', ' numcodecs.')}"
_NEW = "scale_offset cast_value"
_JS_V2 = "blosc delta gzip lz4 shuffle zlib zstd"
_JS_V3 = f"{_CORE} vlen-utf8 bitround {_NEW} numcodecs.{_JS_V2.replace(' ', ' numcodecs.')}"

ROWS: tuple[Row, ...] = (
    Row("zarr-python", 3, _TYPES, _V3_CODECS, "unnamed", "3.1.6", _TESTED),
    Row("zarr-python", 3, "struct", _NEW, "", "3.4.2", _TESTED),
    Row("zarr-python", 2, _KINDS, _V2_CODECS, "unnamed", "2.18.7", _TESTED),
    Row("xarray", 3, _TYPES, _V3_CODECS, "", "2026.9.0", _TESTED),
    Row("xarray", 3, "struct", _NEW, "", "2026.9.0", _TESTED),
    Row("xarray", 2, _KINDS, _V2_CODECS, "", "2026.9.0", _TESTED),
    Row("tensorstore", 3, f"{_NUMBERS} {_SMALL}", _CORE, "unnamed", "0.1.71", _TESTED),
    Row("tensorstore", 3, "int2 float4_e2m1fn float8_e3m4 float8_e8m0fnu", "", "", "0.1.86", _TESTED),
    Row("tensorstore", 2, f"b i u f c {_SMALL}", "blosc bz2 gzip zlib zstd", "unnamed", "0.1.71", _TESTED),
    Row("GDAL", 3, _NUMBERS, _CORE, "unnamed", "3.13", _TESTED),
    Row("GDAL", 2, "b i u f c", f"{_COMMON} filters", "unnamed", "3.13", _TESTED),
    Row("zarrita.js", 3, f"{_REALS} {_TEXT}", _JS_V3, "unnamed", "", DOCUMENTED),
    Row("zarrita.js", 2, "b i u f S U O", f"{_JS_V2} vlen-utf8 filters", "unnamed", "", DOCUMENTED),
)
"""The table."""
READERS = tuple(dict.fromkeys(row.reader for row in ROWS))


def readable_by(meta: ArrayMetadata, held: Held) -> tuple[dict[str, str], dict[str, str]]:
    """The libraries that read an array with the version they need; of the others, what they do not know."""
    readers: dict[str, str] = {}
    others: dict[str, str] = {}
    for reader in READERS:
        rows = [row for row in ROWS if (row.reader, row.zarr_format) == (reader, meta.zarr_format)]
        since: dict[str, str | None] = {}
        for column, name in _features(meta, held) if rows else ():
            said = _SAID.get(name, f"{column.replace('_', ' ')} '{name}'")
            since[said] = next((row.since for row in rows if name in getattr(row, column).split()), None)
        if None in since.values() or not rows:
            unknown = (said for said, known in since.items() if known is None)
            others[reader] = ", ".join(unknown) or f"Zarr format {meta.zarr_format}"
        else:
            readers[reader] = newest(filter(None, since.values()))
    return readers, others


def newest(versions: Iterable[str]) -> str:
    """The newest of some versions; empty without any."""
    return max(versions, key=lambda text: [int(part) for part in text.split(".") if part], default="")


_SAID = {"unnamed": "dimensions without names", "filters": "filters in version 2"}


def _features(meta: ArrayMetadata, held: Held) -> Iterator[tuple[str, str]]:
    """What a reader must know: the column of the table and the name there."""
    if meta.zarr_format == 3:
        data_type, codecs = _name(held["data_type"]), [*_names(held["codecs"])]
    else:
        document = held[ARRAY]
        filters = [*(document.get("filters") or ())]
        named = [each["id"] for each in (*filters, document.get("compressor")) if each]
        codecs, dtype = [*named, "filters"] if filters else named, document["dtype"]
        # numpy's kinds have a byte order before them, and other names do not.
        data_type = "record" if not isinstance(dtype, str) else dtype[1] if dtype[0] in "<>|=" else dtype
    yield "data_type", data_type
    yield from (("codec", name) for name in codecs)
    if meta.chunk_grid.name != "regular":
        yield "layout", meta.chunk_grid.name
    if meta.dimension_names is None and (meta.shape or meta.zarr_format == 2):
        yield "layout", "unnamed"
    if meta.storage_transformers:
        yield "layout", "transformed"


def _name(extension: Any) -> str:
    return str(extension.get("name") if isinstance(extension, dict) else extension)


def _names(codecs: Any) -> Iterator[str]:
    """The names of codecs, and of the codecs within shards."""
    for codec in codecs:
        yield _name(codec)
        if _name(codec) == "sharding_indexed":
            inner = codec["configuration"]
            yield from _names([*inner["codecs"], *inner.get("index_codecs", ())])
