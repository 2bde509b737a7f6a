"""Stores of a draft of version 3 as zarr-python 2.12 to 2.18 wrote them: its experiment of those years.

``ZARR_V3_EXPERIMENTAL_API=1 ZARR_V3_SHARDING=1 python make_zarr_python_draft.py DIRECTORY [STORE ...]``
needs pytest: zarr-python takes a part of its storage transformers from its own tests.

The versions differ in the address of an extension, and in what they have: shards since 2.14, zstd since 2.18.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numcodecs
import numpy as np
import zarr
from _expected import Expected
from zarr._storage.v3 import DirectoryStoreV3

DIRECTORY = Path(sys.argv[1]) / f"zarr-python-{zarr.__version__}-draft"

HALF = {"chunks": (3,), "part": slice(0, 3)}


class Store:
    """A store, its groups, its arrays and what they hold."""

    def __init__(self, name):
        path = DIRECTORY / name
        self.store = DirectoryStoreV3(str(path))
        self.expected = Expected(path)
        self.random = np.random.default_rng(3)

    def bits(self, dtype, shape=(5,)):
        """Values of a dtype of any bits at all."""
        dtype = np.dtype(dtype)
        count = int(np.prod(shape))
        return np.frombuffer(self.random.bytes(count * dtype.itemsize), dtype).reshape(shape)

    def group(self, path, attributes=None):
        """Make an explicit group."""
        group = zarr.open_group(self.store, mode="a", path=path, zarr_version=3)
        group.attrs.update(attributes or {})
        self.expected.group(path, attributes)
        return group

    def array(self, path, values, *, chunks=None, part=..., kind=None, attributes=None, **options):
        """Write an array, or a part of it, and keep what zarr-python then reads."""
        values = np.asarray(values)
        given = {"dtype": values.dtype, "compressor": None, "fill_value": 0, **options}
        given["chunks"] = chunks or values.shape or True
        array = zarr.create(values.shape, store=self.store, path=path, zarr_version=3, **given)
        if part is not None:
            array[part] = values[part]
        for key, value in (attributes or {}).items():
            array.attrs[key] = value
        read = array[...]
        if part is not None and values.dtype.kind != "O":
            assert np.asarray(read)[part].tobytes() == values[part].tobytes(), path
        fill = None if values.dtype.kind == "O" else array.fill_value
        if fill is not None:
            fill = np.asarray(fill, values.dtype)
        # Filters are kept in the attributes, and are none.
        kept = {name: item for name, item in array.attrs.asdict().items() if name != "filters"}
        if read.dtype.names == ("f0",):
            # The data type "V2" was written as one of fields, with one of no name.
            read = read.view(read.dtype["f0"])
        self.expected.array(path, read, kind=kind, fill=fill, attributes=kept)
        return array


def core():
    """Data types, layouts and compressors of the draft."""
    store = Store("core")
    store.group("types", {"title": "ø"})
    store.array("types/bool", [True, False, True, True, False], fill_value=True, **HALF)
    for order in "<>":
        for name in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"):
            if name in ("i1", "u1") and order == ">":
                continue
            values = store.bits(order + name)
            fill = 1.5 if values.dtype.kind == "f" else 7
            side = {"<": "little", ">": "big"}[order]
            store.array(f"types/{side}/{name}", values, fill_value=fill, **HALF)
    for name, fill in {"nan": np.nan, "inf": np.inf, "minus_inf": -np.inf, "null": None}.items():
        part = ... if fill is None else slice(0, 3)
        store.array(f"fill/{name}", store.bits("<f4"), chunks=(3,), part=part, fill_value=fill)
    values = store.bits("<i4", (5, 7))
    for order in "CF":
        for name, separator in (("dot", "."), ("slash", "/")):
            options = {"order": order, "dimension_separator": separator, "chunks": (3, 4)}
            store.array(f"layouts/{order}_{name}", values, part=np.s_[0:3], fill_value=-7, **options)
    options = {"order": "F", "chunks": (2, 3, 4), "compressor": numcodecs.GZip(1)}
    store.array("layouts/F_cube_big", store.bits(">f4", (3, 4, 5)), **options)
    store.array("layouts/plain", values, chunks=(3, 4))
    store.array("scalar", np.array(2.5, "<f8"))
    store.array("scalar_missing", np.array(9, "<i2"), part=None, fill_value=9)
    counts = np.arange(40, dtype="<i4").reshape(8, 5) * 3 - 20
    compressors = {
        "gzip": numcodecs.GZip(5), "zlib": numcodecs.Zlib(1), "bz2": numcodecs.BZ2(1), "lz4": numcodecs.LZ4(),
        "lzma": numcodecs.LZMA(preset=1), "blosc_lz4": numcodecs.Blosc("lz4", 5, 1),
        "blosc_zstd": numcodecs.Blosc("zstd", 3, 2), "blosc_auto": numcodecs.Blosc("zlib", 3, -1),
        "default": "default",
    }  # fmt: skip
    if zarr.__version__ >= "2.18":
        compressors["zstd"] = numcodecs.Zstd(1)
    for name, compressor in compressors.items():
        store.array(f"codecs/{name}", counts, chunks=(4, 5), compressor=compressor)
    return store


def extended():
    """Data types that were extensions, and filters, which stand in the attributes."""
    store = Store("extended")
    store.array("c8", store.bits("<c8"), fill_value=1.5 - 2j, **HALF)
    store.array("c16_big", store.bits(">c16"), chunks=(3,))
    store.array("S3", np.array([b"a", b"\xff\x00b", b"abc"]), chunks=(2,), part=slice(0, 2), fill_value=b"no")
    store.array("U3", np.array(["a", "日本語", "😀"], "<U3"), chunks=(2,), part=slice(0, 2), fill_value="ø")
    store.array("U3_big", np.array(["a", "日本語", "😀"], ">U3"), chunks=(2,), fill_value="")
    moments = np.array(["1970-01-01", "NaT", "2024-02-29"], "<M8[ns]")
    store.array("M8_ns", moments, chunks=(2,), part=slice(0, 2), fill_value=np.datetime64("NaT", "ns"))
    store.array("M8_D", moments.astype("<M8[D]"), fill_value=0)
    store.array("m8_s", np.array([1, "NaT", -5], ">m8[s]"), fill_value=0)
    fields = [("name", "S5"), ("count", "<i4"), ("weight", ">f8")]
    record = np.array([(b"ada", 3, 1.5), (b"", -1, np.nan)], fields)
    store.array("record", record, chunks=(1,), part=slice(0, 1), fill_value=0)
    store.array("V2", store.bits("V2", (3,)))
    squares = np.arange(6, dtype="<i4") ** 2
    store.array("delta", squares, filters=[numcodecs.Delta("<i4")])
    filters = [numcodecs.Delta("<i4"), numcodecs.Shuffle(4)]
    units = {"units": "m"}
    store.array("delta_shuffle", squares, filters=filters, compressor=numcodecs.GZip(1), attributes=units)
    words = {"dtype": object, "chunks": (2,), "object_codec": numcodecs.VLenUTF8()}
    store.array("utf8", np.array(["", "é", "日本語"], object), fill_value="", **words)
    few = np.array(["", "é", "?"], object)
    store.array("utf8_missing", few, part=slice(0, 2), fill_value="none", **words)
    blobs = {"dtype": object, "chunks": (2,), "object_codec": numcodecs.VLenBytes()}
    store.array("bytes", np.array([b"", b"\xff", b"ab"], object), kind="bytes", fill_value=None, **blobs)
    anything = {"dtype": object, "chunks": (2,), "object_codec": numcodecs.JSON()}
    store.array("json", np.array(["a", 1, None], object), kind="json", fill_value=None, **anything)
    return store


def hierarchy():
    """Groups: implicit ones, explicit ones, with attributes, and an array beside a group's document."""
    store = Store("hierarchy")
    store.group("explicit", {"units": "m s-1", "nested": {"a": [1, None, True]}})
    store.group("explicit/inner/deepest")
    attributes = {"_ARRAY_DIMENSIONS": ["y", "x"], "scale": 0.1}
    store.array("explicit/values", store.bits("<u2", (2, 3)), attributes=attributes)
    store.array("implicit/deep/values", store.bits("<i8", (4,)))
    store.array("at_top", store.bits("<i8", (4,)))
    return store


def consolidated():
    """A hierarchy with the consolidated documents of zarr-python, which no draft describes."""
    store = Store("consolidated")
    store.group("g", {"title": "ø"})
    store.group("g/inner")
    store.array("g/values", store.bits("<u2", (2, 3)), attributes={"scale": 0.1})
    zarr.consolidate_metadata(store.store, path="g")
    return store


def only():
    """One array and nothing else: with no group there is no ``zarr.json``."""
    store = Store("only")
    store.array("values", store.bits("<i2", (4,)), chunks=(2,), attributes={"a": 1})
    return store


def root_array():
    """An array that is the root."""
    store = Store("root_array")
    array = zarr.create(4, chunks=2, dtype="<i2", compressor=None, store=store.store, path="", zarr_version=3)
    array[:] = [1, -2, 3, -4]
    store.expected.array("", array[...], fill=np.array(0, "<i2"))
    return store


def shards():
    """Shards as a storage transformer, since 2.14."""
    from zarr._storage.v3_storage_transformers import ShardingStorageTransformer

    store = Store("shards")
    values = store.bits("<i4", (7, 9))
    for name, chunks, options in (
        ("plain", (2, 2), {}),
        ("slash", (2, 3), {"dimension_separator": "/", "compressor": numcodecs.GZip(1)}),
        ("dot", (2, 2), {"dimension_separator": ".", "compressor": numcodecs.Blosc()}),
        ("F", (1, 3), {"order": "F"}),
    ):
        sharding = ShardingStorageTransformer("indexed", chunks_per_shard=chunks)
        options |= {"storage_transformers": [sharding], "fill_value": -1, "part": np.s_[0:4, 0:5]}
        store.array(name, values, chunks=(2, 2), **options)
    sharding = ShardingStorageTransformer("indexed", chunks_per_shard=2)
    store.array("line", store.bits(">u2", (7,)), chunks=(2,), storage_transformers=[sharding])
    return store


STORES = (core, extended, hierarchy, consolidated, only, root_array, shards)

if __name__ == "__main__":
    for make in STORES:
        if not sys.argv[2:] or make.__name__ in sys.argv[2:]:
            make().expected.save()
