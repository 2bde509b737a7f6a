"""Stores of version 2 as zarr-python 2 writes them: ``python make_zarr_python_2.py DIRECTORY``."""

from __future__ import annotations

import sys
import warnings
from functools import partial
from pathlib import Path

import numcodecs
import numpy as np
import zarr
from _expected import FILLS, NUMBERS, Expected, any_bits, objects

DIRECTORY = Path(sys.argv[1]) / f"zarr-python-{zarr.__version__}"
LOSSY = {"fixedscaleoffset", "quantize", "bitround", "astype", "categorize"}


class Store:
    def __init__(self, name):
        path = DIRECTORY / name
        self.root = zarr.open_group(zarr.DirectoryStore(str(path)), mode="w")
        self.expected = Expected(path)
        self.bits = partial(any_bits, np.random.default_rng(2))

    def array(self, path, values, *, chunks=None, part=..., kind=None, attributes=None, **options):
        """Write an array, or a part of it, and keep what zarr-python then reads."""
        values = np.asarray(values)
        given = {"dtype": values.dtype, "compressor": None, "fill_value": None, **options}
        array = self.root.create(path, shape=values.shape, chunks=chunks or values.shape or None, **given)
        array[part] = values[part]
        array.attrs.update(attributes or {})
        read = array[...]
        lossy = any(filter_.codec_id in LOSSY for filter_ in array.filters or [])
        lossy = lossy or path == "filter/delta_f8"
        if not lossy and values.dtype.kind != "O":
            assert np.asarray(read)[part].tobytes() == values[part].tobytes(), path
        fill = None if array.fill_value is None or kind == "json" else array.fill_value
        if values.dtype.kind == "O":
            fill = None
        elif fill is not None:
            fill = np.asarray(fill, values.dtype)
        self.expected.array(path, read, kind=kind, fill=fill, attributes=attributes)
        return array

    def close(self, *, consolidated=False):
        self.expected.group("", self.root.attrs.asdict())

        def visit(path, node):
            if isinstance(node, zarr.Group):
                self.expected.group(path, node.attrs.asdict())

        self.root.visititems(visit)
        if consolidated:
            zarr.consolidate_metadata(self.root.store)
        self.expected.save()


RECORD = [("name", "S5"), ("count", "<i4"), ("weight", ">f8")]
NESTED = [("at", [("x", "<f4"), ("y", ">i2")]), ("when", "<M8[s]"), ("flag", "|b1"), ("word", "<U2")]
SUBARRAY = [("block", "<u2", (2, 3)), ("z", "<c8")]
HALF = {"chunks": (3,), "part": slice(0, 3)}
PEOPLE = [(b"ada", 3, 1.5), (b"", -1, np.nan), (b"grace", 2**31 - 1, -0.0)]


def types():
    store = Store("types")
    store.array("bool", [True, False, True, True, False], chunks=(3,), fill_value=True)
    for order in "<>":
        side = {"<": "little", ">": "big"}[order]
        for name in NUMBERS:
            if name in ("i1", "u1") and order == ">":
                continue
            dtype = np.dtype(order + name)
            values = store.bits(dtype)
            fill = {"f": 1.5, "c": 1.5 - 2j}.get(dtype.kind, 7)
            store.array(f"{side}/{name}", values, **HALF, fill_value=fill)
        floats = np.array([np.nan, np.inf, -np.inf, -0.0, 5e-324, 1.7e308], order + "f8")
        payloads = np.array([0x7FF0000000000123, 0xFFF8000000000000], order + "u8").view(floats.dtype)
        store.array(f"{side}/f8_special", np.concatenate([floats, payloads]))
        words = np.array(["", "é", "日本語", "😀x", "abcd"], order + "U4")
        store.array(f"{side}/U4", words, **HALF, fill_value="ø")
        moments = np.array(["1970-01-01", "NaT", "2024-02-29", "1900-01-01", "2262-04-11"], order + "M8[D]")
        for unit in ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "10us", "15m", "7D"):
            dtype = np.dtype(f"{order}M8[{unit}]")
            store.array(f"{side}/M8_{unit}", moments.astype(dtype), chunks=(3,), fill_value=None)
        for unit in ("ps", "fs", "as", "ns", "s", "D", "25s"):
            store.array(f"{side}/m8_{unit}", store.bits(order + "i8").view(f"{order}m8[{unit}]"))
        nat = np.array([3, "NaT", -9, 4, 5], f"{order}m8[s]")
        store.array(f"{side}/m8_s_fill_nat", nat, fill_value=np.timedelta64("NaT", "s"), **HALF)
        whole = np.array(["2001-01-01", "NaT", "2002-01-01", "2003-01-01", "2004-01-01"], f"{order}M8[ns]")
        filled = np.datetime64("1999-12-31", "ns")
        store.array(f"{side}/M8_ns_fill", whole, **HALF, fill_value=filled)
    strings = np.array([b"", b"a", b"\xff\x00\xfe", b"abcd", b"zz"], "S4")
    store.array("S4", strings, fill_value=b"no", **HALF)
    store.array("V3", store.bits("V3"), **HALF, fill_value=np.void(b"\x01\x02\xff"))
    people = np.array(PEOPLE, RECORD)
    other = np.array((b"x", 1, 2), RECORD)[()]
    store.array("record", people, chunks=(2,), part=slice(0, 2), fill_value=other)
    store.array("record_zero", people, chunks=(2,), part=slice(0, 2), fill_value=0)
    store.array("record_null", people, chunks=(2,))
    nested = np.array([((1, 2), "2020-01-01", True, "ab"), ((np.nan, -3), "NaT", False, "é")], NESTED)
    store.array("nested", nested, chunks=(1,), part=slice(0, 1), fill_value=0)
    store.array("subarray", store.bits(np.dtype(SUBARRAY), (2,)), chunks=(1,))
    store.close(consolidated=True)


def variable():
    store = Store("variable")
    words = objects(["", "é", "日本語", "x" * 50, "nul\x00in"])
    options = {"dtype": object, "chunks": (2,)}
    text = {"object_codec": numcodecs.VLenUTF8(), **options}
    store.array("utf8", words, fill_value="", **text)
    store.array("utf8_missing", words, fill_value="none", part=slice(0, 2), **text)
    store.array("utf8_null", words, **text)
    store.array("utf8_compressed", words, **text | {"compressor": numcodecs.Zstd(1)})
    # What zarr.create does when nothing is said of a fill value.
    store.array("utf8_default", words, fill_value=0, **text)
    store.array("utf8_default_missing", words, fill_value="", part=slice(0, 2), **text)
    store.array("utf8_2d", np.array([["a", "bc"], ["", "é"]], object), **text | {"chunks": (1, 2)})
    table = np.array([["a", "bc", "d"], ["", "é", "f"]], object)
    store.array("utf8_f", table, order="F", **text | {"chunks": (2, 3)})
    blobs = objects([b"", b"\x00\xff", b"abc", b"y" * 40, b"\x00"])
    binary = {"object_codec": numcodecs.VLenBytes(), "kind": "bytes", **options}
    store.array("bytes", blobs, **binary)
    store.array("bytes_default", blobs, fill_value=0, **binary)
    anything = objects([{"a": [1, 2.5, None]}, [1, "é"], "text", None, True])
    json = {"object_codec": numcodecs.JSON(), "kind": "json", **options}
    store.array("json", anything, **json)
    store.array("json_2d", np.array([["a", 1], [None, "é"]], object), **json | {"chunks": (2, 2)})
    store.array("json_compressed", objects(["x", "y", "z"]), **json | {"compressor": numcodecs.Blosc()})
    store.array("json_missing", anything, part=slice(0, 2), fill_value="none", **json)
    store.close()


def refused():
    """Arrays that have to be refused: reading them would run or need what is not to be had."""
    store = Store("refused")
    options = {"shape": 3, "dtype": object, "object_codec": numcodecs.Pickle(), "compressor": None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        store.root.create("pickle", **options)[:] = objects(["a", {"b": 1}, None])
        store.root.create("pickle_filled", fill_value={"a": 1}, **options)
    arrays = store.root.create("arrays", shape=2, dtype="array:i4", compressor=None)
    arrays[:] = objects([np.arange(2, dtype="i4"), np.arange(3, dtype="i4")])
    store.expected.refuse("arrays", "its elements are arrays")
    store.expected.refuse("pickle", "an object is unpickled")
    store.expected.refuse("pickle_filled", "an object is unpickled")
    store.close()


def layouts():
    """Orders, separators, fill values, missing chunks and no dimensions at all."""
    store = Store("layouts")
    values = store.bits("<i4", (5, 7))
    for order in "CF":
        for name, separator in (("dot", "."), ("slash", "/")):
            options = {"order": order, "dimension_separator": separator, "chunks": (3, 4)}
            store.array(f"{order}_{name}", values, **options)
            store.array(f"{order}_{name}_missing", values, part=np.s_[0:3], fill_value=-7, **options)
    cube = store.bits(">f4", (3, 4, 5))
    store.array("F_cube_big", cube, order="F", chunks=(2, 3, 4), compressor=numcodecs.Zlib(1))
    store.array("C_cube_slash", cube, dimension_separator="/", chunks=(2, 4, 3), compressor=numcodecs.Zlib(1))
    people = np.array(PEOPLE * 2, RECORD).reshape(2, 3)
    store.array("F_record", people, order="F", chunks=(2, 2))
    fills = {
        **FILLS, "minus_inf": (">f4", -np.inf), "text": (">U3", "日本"), "zero_text": ("<U2", 0),
        "zero_bytes": ("|S2", 0), "zero_void": ("|V2", 0), "zero_date": ("<M8[D]", 0),
    }  # fmt: skip
    options = {"shape": 3, "chunks": 2, "compressor": None}
    for name, (dtype, fill) in fills.items():
        array = store.root.create(f"fill/{name}", dtype=dtype, fill_value=fill, **options)
        scalar = np.asarray(array.fill_value, array.dtype)
        store.expected.array(f"fill/{name}", array[...], fill=scalar)
    store.array("scalar/f8", np.array(2.5, "<f8"))
    store.array("scalar/big", np.array(-3, ">i2"), dimension_separator="/", compressor=numcodecs.GZip(1))
    store.array("scalar/text", np.array("é", "<U3"))
    empty = store.root.create("scalar/missing", shape=(), dtype="<i4", fill_value=9, compressor=None)
    store.expected.array("scalar/missing", empty[...], fill=np.array(9, "<i4"))
    store.array("empty", np.zeros((0, 3), "<i2"), chunks=(2, 2), fill_value=1)
    store.close()


def codecs():
    store = Store("codecs")
    counts = np.arange(40, dtype="<i4").reshape(8, 5) * 3 - 20
    lzma2, delta = {"id": 33, "preset": 1}, {"id": 3, "dist": 4}
    compressors = {
        "zlib": numcodecs.Zlib(9), "gzip": numcodecs.GZip(5), "bz2": numcodecs.BZ2(5),
        "lz4": numcodecs.LZ4(), "lz4_fast": numcodecs.LZ4(acceleration=9), "base64": numcodecs.Base64(),
        "lzma": numcodecs.LZMA(preset=1), "lzma_alone": numcodecs.LZMA(format=2, preset=1),
        "lzma_raw": numcodecs.LZMA(format=3, filters=[lzma2]),
        "lzma_delta": numcodecs.LZMA(format=3, filters=[delta, lzma2]),
        "zstd": numcodecs.Zstd(3), "zstd_checksum": numcodecs.Zstd(3, checksum=True),
        "zstd_fast": numcodecs.Zstd(-5),
    }  # fmt: skip
    for name, compressor in compressors.items():
        store.array(f"compressor/{name}", counts, chunks=(4, 5), compressor=compressor)
    for cname in numcodecs.blosc.list_compressors():
        for name, shuffle in {"auto": -1, "0": 0, "1": 1, "2": 2}.items():
            compressor = numcodecs.Blosc(cname, 5, shuffle)
            store.array(f"compressor/blosc_{cname}_{name}", counts, compressor=compressor)
    compressor = numcodecs.Blosc("lz4", 9, 1, blocksize=64)
    store.array("compressor/blosc_big_i2", counts.astype(">i2"), compressor=compressor)
    store.array("compressor/blosc_0", counts, compressor=numcodecs.Blosc("zstd", 0))
    store.array("compressor/default", counts, compressor="default")
    floats = np.round(np.sin(np.arange(20.0)) * 100, 3).astype("<f8")
    scaled = numcodecs.FixedScaleOffset(offset=10, scale=10, dtype="<f8", astype="<i2")
    same = numcodecs.FixedScaleOffset(offset=-1, scale=100, dtype="<f4")
    filters = {
        "delta": (counts, numcodecs.Delta("<i4")), "delta_i2": (counts, numcodecs.Delta("<i4", "<i2")),
        "delta_big": (counts.astype(">i8"), numcodecs.Delta(">i8", ">i4")),
        "delta_f8": (floats, numcodecs.Delta("<f8")), "fixedscaleoffset": (floats, scaled),
        "fixedscaleoffset_same": (floats.astype("<f4"), same),
        "quantize": (floats, numcodecs.Quantize(digits=1, dtype="<f8")),
        "quantize_f4": (floats, numcodecs.Quantize(digits=1, dtype="<f8", astype="<f4")),
        "packbits": (counts % 7 < 3, numcodecs.PackBits()),
        "astype": (floats, numcodecs.AsType("<f4", "<f8")),
        "astype_int": (counts, numcodecs.AsType(">i2", "<i4")), "shuffle": (counts, numcodecs.Shuffle(4)),
        "bitround": (floats.astype("<f4"), numcodecs.BitRound(8)), "crc32": (counts, numcodecs.CRC32()),
        "crc32_end": (counts, numcodecs.CRC32(location="end")), "adler32": (counts, numcodecs.Adler32()),
        "fletcher32": (counts, numcodecs.Fletcher32()), "jenkins": (counts, numcodecs.JenkinsLookup3()),
        "zlib": (counts, numcodecs.Zlib(1)),
    }  # fmt: skip
    for name, (values, one) in filters.items():
        store.array(f"filter/{name}", values, filters=[one], compressor=numcodecs.Zlib(1))
    delta = [numcodecs.Delta("<i4")]
    store.array("filter/three", counts, filters=[*delta, numcodecs.Shuffle(4), numcodecs.CRC32()])
    store.array("filter/delta_f_order", counts, filters=delta, order="F", chunks=(4, 5))
    store.array("filter/fixedscaleoffset_f_order", floats.reshape(4, 5), filters=[scaled], order="F")
    store.array("filter/missing", counts, filters=delta, chunks=(4, 5), part=slice(0, 4), fill_value=5)
    store.array("filter/uncompressed", counts, filters=[numcodecs.Delta("<i4", "<i2")])
    words = np.array(["cat", "dog", "", "cat"], "<U3")
    store.array("filter/categorize", words, filters=[numcodecs.Categorize(["cat", "dog"], "<U3")])
    store.close()


def hierarchy():
    store = Store("hierarchy")
    store.root.attrs.update({"title": "ø", "nested": {"a": [1, None, True, 1e300]}, "nan": float("nan")})
    for path in ("empty", "with/deep/inner", "with/attrs"):
        store.root.require_group(path)
    store.root["with/attrs"].attrs["units"] = "m s-1"
    attributes = {"_ARRAY_DIMENSIONS": ["y", "x"], "scale_factor": 0.1, "flags": [1, 2]}
    store.array("with/deep/values", store.bits("<u2", (2, 3)), attributes=attributes)
    store.array("top", store.bits("<i8", (4,)), attributes={"inf": float("inf")})
    store.close(consolidated=True)


if __name__ == "__main__":
    for make in (types, variable, refused, layouts, codecs, hierarchy):
        make()
