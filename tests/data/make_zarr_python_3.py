"""Stores of both formats as zarr-python 3 writes them.

``python make_zarr_python_3.py DIRECTORY [STORE ...]``; what a version cannot write is printed, and left out.
"""

import sys
from functools import partial
from pathlib import Path
from shutil import rmtree

import numcodecs
import numpy as np
import zarr
from _expected import FILLS, NUMBERS, Expected, any_bits, objects
from zarr import codecs as codecs3

DIRECTORY = Path(sys.argv[1]) / f"zarr-python-{zarr.__version__}"
try:
    from zarr.codecs import numcodecs as adapted
except ImportError:
    from numcodecs import zarr3 as adapted


class Store:
    def __init__(self, name, zarr_format):
        self.path, self.zarr_format = DIRECTORY / name, zarr_format
        self.root = zarr.open_group(self.path, mode="w", zarr_format=zarr_format)
        self.expected = Expected(self.path)
        self.bits = partial(any_bits, np.random.default_rng(4))

    def array(self, path, values, *, part=..., lossy=False, filled=True, **options):
        """Write an array, or a part of it, and keep what zarr-python then reads."""
        values = np.asarray(values)
        given = {"dtype": values.dtype, "chunks": values.shape, "compressors": None, **options}
        try:
            array = self.root.create_array(path, shape=values.shape, **given)
            if part is not None:
                array[part] = values[part]
            array = zarr.open_array(self.root.store, path=path, mode="r", zarr_format=self.zarr_format)
            read = np.asarray(array[...])
            if part is not None and not lossy and not same(read[part], values[part]):
                raise ValueError(f"{read!r} was read, {values!r} was written")
        except Exception as error:  # noqa: BLE001
            print(f"{zarr.__version__} does not write {self.zarr_format} {path}: {error!r}")  # noqa: T201
            rmtree(self.path / path, ignore_errors=True)
            return
        fill = array.metadata.fill_value if filled and read.dtype.kind not in "OT" else None
        given = {"names": options.get("dimension_names"), "attributes": options.get("attributes")}
        given["fill"] = None if fill is None else np.asarray(fill, read.dtype)
        self.expected.array(path, read, **given)

    def group(self, path, attributes=None):
        self.root.create_group(path, attributes=attributes)
        self.expected.group(path, attributes)

    def close(self, *, consolidated=False):
        for path, node in self.root.members(max_depth=None):
            if isinstance(node, zarr.Group):
                self.expected.group(path, node.attrs.asdict())
        self.expected.group("", self.root.attrs.asdict())
        if consolidated:
            zarr.consolidate_metadata(self.root.store, zarr_format=self.zarr_format)
        self.expected.save()


def same(read, written):
    """Whether two arrays have the same bits, or the same objects, in whatever byte order."""
    if read.dtype.kind in "OT" or written.dtype.kind == "O":
        return list(read.ravel()) == list(written.ravel())
    return read.astype(written.dtype).tobytes() == written.tobytes()


RECORD = [("name", "S5"), ("count", "<i4"), ("weight", "<f8")]
BIG_RECORD = [("word", ">U2"), ("count", ">i4"), ("weight", ">f8")]
NESTED = [("at", [("x", "<f4"), ("y", "<i2")]), ("when", "<M8[10s]"), ("flag", "|b1"), ("raw", "V3")]
HALF = {"chunks": (3,), "part": slice(0, 3)}


def types(zarr_format):
    """Every data type; a part of most is missing chunks."""
    store = Store(f"types{zarr_format}", zarr_format)
    store.array("bool", [True, False, True, True, False], fill_value=True, **HALF)
    orders = "<>" if zarr_format == 2 else "<"
    for order in orders:
        side = {"<": "little", ">": "big"}[order]
        for name in NUMBERS:
            if name in ("i1", "u1") and order == ">":
                continue
            values = store.bits(order + name)
            fill = {"f": 1.5, "c": 1.5 - 2j}.get(values.dtype.kind, 7)
            store.array(f"{side}/{name}", values, fill_value=fill, **HALF)
        words = np.array(["", "é", "日本語", "😀x", "abcd"], order + "U4")
        store.array(f"{side}/U4", words, fill_value="ø", **HALF)
        moments = np.array(["1970-01-01", "NaT", "2024-02-29", "1900-01-01", "2262-04-11"], order + "M8[D]")
        for unit in ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "10us", "15m"):
            store.array(f"{side}/M8_{unit}", moments.astype(f"{order}M8[{unit}]"), **HALF)
        for unit in ("ps", "fs", "as", "ns", "s", "D", "25s"):
            spans = store.bits(order + "i8").view(f"{order}m8[{unit}]")
            store.array(f"{side}/m8_{unit}", spans)
        store.array(f"{side}/m8_s_fill", store.bits(order + "i8").view(order + "m8[s]"), fill_value=3, **HALF)
    if zarr_format == 3:
        for name in ("i2", "f8", "c16", "U4", "M8[ns]", "m8[25s]"):
            values = np.array(["", "é", "日本語", "😀x", "abcd"]) if "U" in name else store.bits("<" + name)
            store.array(f"big/{name}", values, serializer=codecs3.BytesCodec(endian="big"))
    store.array("S4", np.array([b"", b"a", b"\xff\x00\xfe", b"abcd", b"zz"], "S4"), fill_value=b"no", **HALF)
    store.array("V3", store.bits("V3"), fill_value=np.void(b"\x01\x02\xff"), **HALF)
    words = objects(["", "é", "日本語", "x" * 50, "nul\x00in"])
    store.array("string", words, **{**HALF, "dtype": str, "fill_value": "none"})
    store.array("string_default", words, chunks=(2,), dtype=str)
    store.array("string_compressed", words, chunks=(2,), dtype=str, compressors="auto")
    store.array("string_2d", objects(["a", "bc", "", "é"]).reshape(2, 2), chunks=(2, 1), dtype=str)
    blobs = objects([b"", b"\x00\xff", b"abc", b"y" * 40, b"\x00"])
    variable = zarr.dtype.VariableLengthBytes() if hasattr(zarr, "dtype") else bytes
    options = {"chunks": (2,), "dtype": variable}
    store.array("bytes", blobs, **options)
    store.array("bytes_missing", blobs, **options, part=slice(0, 2), fill_value=b"no")
    store.close(consolidated=zarr_format == 3 and zarr.__version__ >= "3.4")


def structs(zarr_format):
    store = Store(f"structs{zarr_format}", zarr_format)
    people = np.array([(b"ada", 3, 1.5), (b"", -1, np.nan), (b"grace", 2**31 - 1, -0.0)], RECORD)
    two = {"chunks": (2,), "part": slice(0, 2)}
    store.array("record", people, fill_value=np.array((b"x", 1, 2), RECORD)[()], **two)
    store.array("record_default", people, **two)
    store.array("record_big", np.array([("é", 1, 2.5), ("", -1, np.inf)], BIG_RECORD))
    nested = np.array([((1, 2), "2020-01-01", True, b"ab\xff"), ((np.nan, -3), "NaT", False, b"c")], NESTED)
    store.array("nested", nested, chunks=(1,), part=slice(0, 1), fill_value=np.zeros((), NESTED)[()])
    store.close()


def layouts(zarr_format):
    store = Store(f"layouts{zarr_format}", zarr_format)
    values = store.bits("<i4", (5, 7))
    for name in ("v2", "default") if zarr_format == 3 else ("v2",):
        for separator in "./":
            keys = {"name": name, "separator": separator}
            path = f"keys/{name}_{'dot' if separator == '.' else 'slash'}"
            store.array(path, values, chunks=(3, 4), part=np.s_[0:3], fill_value=-7, chunk_key_encoding=keys)
    cube = store.bits("<f4", (3, 4, 5))
    if zarr_format == 2:
        store.array("F", cube, chunks=(2, 3, 4), order="F")
    else:
        transposed = [codecs3.TransposeCodec(order=(2, 0, 1))]
        store.array("transposed", cube, chunks=(2, 3, 4), filters=transposed)
        store.array("sharded", values, chunks=(1, 2), shards=(3, 4), compressors="auto", fill_value=-1)
        options = {"dimension_names": ("y", None), "attributes": {"units": "m", "a": [1, None]}}
        store.array("names", values, chunks=(3, 4), **options)
    fills = {
        **FILLS, "date": ("M8[D]", np.datetime64("2001-01-01")), "span": ("m8[s]", np.timedelta64(-5, "s")),
    }  # fmt: skip
    for name, (dtype, fill) in fills.items():
        values = np.full(3, np.asarray(fill, dtype))
        store.array(f"fill/{name}", values, dtype=dtype, chunks=(2,), part=None, fill_value=fill)
    store.array("scalar/f8", np.array(2.5), fill_value=0)
    store.array("scalar/missing", np.array(9, "i4"), part=None, fill_value=9)
    store.array("empty", np.zeros((0, 3), "<i2"), chunks=(2, 2), fill_value=1)
    store.close()


def adapter(name):
    """The class that makes a codec of numcodecs one of version 3."""
    classes = {cls.lower(): cls for cls in dir(adapted)}
    return getattr(adapted, classes[name.replace("_", "")])


def codecs(zarr_format):
    store = Store(f"codecs{zarr_format}", zarr_format)
    counts = np.arange(40, dtype="<i4").reshape(8, 5) * 3 - 20
    floats = np.round(np.sin(np.arange(20.0)) * 100, 3)
    if zarr_format == 2:
        for name, one in {
            "auto": "auto", "zstd": numcodecs.Zstd(3), "blosc": numcodecs.Blosc("zstd", 3, 2),
            "gzip": numcodecs.GZip(1), "zlib": numcodecs.Zlib(1), "bz2": numcodecs.BZ2(1),
            "lz4": numcodecs.LZ4(), "lzma": numcodecs.LZMA(preset=1),
        }.items():  # fmt: skip
            store.array(name, counts, chunks=(4, 5), compressors=one)
        store.array("delta", counts, filters=[numcodecs.Delta("<i4")], compressors=numcodecs.Zlib(1))
        store.array("packbits", counts % 7 < 3, filters=[numcodecs.PackBits()])
        scaled = numcodecs.FixedScaleOffset(10, 10, "<f8", "<i2")
        store.array("fixedscaleoffset", floats, lossy=True, filters=[scaled])
        store.close()
        return
    for name, one in {
        "auto": "auto", "zstd": codecs3.ZstdCodec(level=3, checksum=True),
        "gzip": codecs3.GzipCodec(level=1), "crc32c": codecs3.Crc32cCodec(),
        "blosc": codecs3.BloscCodec(cname="zstd", clevel=3, shuffle="bitshuffle"),
        "two": [codecs3.GzipCodec(level=1), codecs3.Crc32cCodec()],
    }.items():  # fmt: skip
        store.array(f"core/{name}", counts, chunks=(4, 5), compressors=one)
    for name, options in {
        "blosc": {"cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}, "zlib": {"level": 1},
        "gzip": {"level": 1}, "zstd": {"level": 1}, "bz2": {"level": 1}, "lz4": {"acceleration": 1},
        "lzma": {"preset": 1}, "shuffle": {"elementsize": 4}, "crc32": {},
        "crc32c": {}, "adler32": {}, "fletcher32": {}, "jenkins_lookup3": {},
    }.items():  # fmt: skip
        store.array(f"numcodecs/{name}", counts, chunks=(4, 5), compressors=adapter(name)(**options))
    for name, (values, options) in {
        "delta": (counts, {"dtype": "int32"}), "delta_short": (counts, {"dtype": "<i4", "astype": "<i4"}),
        "fixedscaleoffset": (floats, {"offset": 10, "scale": 10, "dtype": "<f8", "astype": "<i2"}),
        "quantize": (floats, {"digits": 1, "dtype": "<f8"}), "packbits": (counts % 7 < 3, {}),
        "astype": (floats, {"encode_dtype": "float32", "decode_dtype": "float64"}),
        "bitround": (floats.astype("f4"), {"keepbits": 8}),
    }.items():  # fmt: skip
        kind = name.partition("_")[0]
        store.array(f"numcodecs/{name}", values, filters=[adapter(kind)(**options)], lossy=kind != "delta")
    if hasattr(codecs3, "ScaleOffset"):
        scaled = codecs3.ScaleOffset(offset=10.0, scale=10.0)
        store.array("core/scale_offset", floats, filters=[scaled], lossy=True)
    store.close()


def hierarchy(zarr_format):
    store = Store(f"hierarchy{zarr_format}", zarr_format)
    store.root.attrs.update({"title": "ø", "nested": {"a": [1, None, True, 1e300]}})
    store.group("with")
    store.group("with/attrs", {"units": "m s-1"})
    store.group("empty")
    attributes = {"_ARRAY_DIMENSIONS": ["y", "x"], "scale_factor": 0.1}
    store.array("with/values", store.bits("<u2", (2, 3)), attributes=attributes)
    store.array("top", store.bits("<i8", (4,)), attributes={"nan": "NaN"})
    store.close(consolidated=True)


def rectilinear(zarr_format):
    store = Store("rectilinear", zarr_format)
    with zarr.config.set({"array.rectilinear_chunks": True}):
        store.array("line", np.arange(10, dtype="i4"), chunks=[[2, 3, 5]])
        store.array("missing", np.arange(10, dtype="i4"), chunks=[[2, 3, 5]], part=slice(2, 5), fill_value=-1)
        grid = np.arange(60, dtype="i4").reshape(6, 10)
        store.array("runs", grid, chunks=[[2, 2, 2], [1, 1, 1, 7]], compressors="auto")
        store.array("mixed", grid, chunks=[4, [3, 7]])
        store.array("sharded", grid, chunks=(1, 2), shards=[[2, 4], [4, 6]])
        store.close()


STORES = {
    f"{make.__name__}{zarr_format}": (make, zarr_format)
    for make in (types, structs, layouts, codecs, hierarchy) for zarr_format in (2, 3)
} | {"rectilinear": (rectilinear, 3)}  # fmt: skip

if __name__ == "__main__":
    zarr.config.set({"json_indent": None})
    for name, (make, zarr_format) in STORES.items():
        if not sys.argv[2:] or name in sys.argv[2:]:
            make(zarr_format)
