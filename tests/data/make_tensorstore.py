"""Stores of both formats as tensorstore writes them: ``python make_tensorstore.py DIRECTORY``.

What it cannot write is printed, and left out.
"""

import sys
from importlib.metadata import version
from pathlib import Path
from shutil import rmtree

import ml_dtypes
import numpy as np
import tensorstore
from _expected import NUMBERS, Expected, any_bits

DIRECTORY = Path(sys.argv[1]) / f"tensorstore-{version('tensorstore')}"
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}

ML = (
    "bfloat16", "float8_e3m4", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
    "float8_e5m2fnuz", "float4_e2m1fn", "int2", "int4",
)  # fmt: skip
# Values of the types narrower than a byte.
SMALL = {"int2": [-2, -1, 0, 1], "int4": [-8, -1, 7, 0, 3], "float4_e2m1fn": [-6, 0.5, -0.0, 1.5, 4]}


def bits(dtype, shape=(5,)):
    """Values of a dtype of any bits at all; of all bits there are if they are few."""
    dtype = np.dtype(dtype)
    if dtype.name in SMALL:
        return np.resize(np.array(SMALL[dtype.name]).astype(dtype), shape)
    return any_bits(np.random.default_rng(5), dtype, shape)


def write(path, driver, metadata, values, part, options):
    """Write one array and return what tensorstore then reads."""
    spec = {"driver": driver, "kvstore": {"driver": "file", "path": str(path)}, **options}
    array = tensorstore.open({**spec, "metadata": metadata}, create=True).result()
    if part is not None:
        array[part].write(values[part]).result()
    array = tensorstore.open(spec).result()
    fill = None if array.fill_value is None else np.asarray(array.fill_value)
    return np.asarray(array.read().result()), fill


class Store:
    def __init__(self, name, driver):
        self.path, self.driver = DIRECTORY / name, driver
        self.expected = Expected(self.path)

    def array(self, name, metadata, values, *, part=slice(None), record=None, names=None, **options):
        try:
            read, fill = write(self.path / name, self.driver, metadata, values, part, options)
        except ValueError as error:
            print(f"tensorstore does not write {self.driver} {name}: {error}")  # noqa: T201
            rmtree(self.path / name, ignore_errors=True)
            return
        if part is not None and record is None:
            assert read[part].tobytes() == values[part].tobytes(), name
        if record is not None:
            read, fill = record, None
        self.expected.array(name, read, names=names, fill=fill, attributes=metadata.get("attributes"))


HALF = slice(0, 3)


def version_2():
    store = Store("v2", "zarr")

    def plain(dtype, *, shape=(5,), chunks=(3,), fill_value=None, compressor=None, **more):
        metadata = {"shape": list(shape), "chunks": list(chunks), "dtype": dtype}
        return {**metadata, "compressor": compressor, "fill_value": fill_value, **more}

    for order in "<>":
        side = {"<": "little", ">": "big"}[order]
        for name in ("b1", *NUMBERS):
            single = name in ("b1", "i1", "u1")
            if single and order == ">":
                continue
            values = bits(name) if name != "b1" else np.array([True, False, True, True, False])
            fill = {"f": 1.5, "c": [1.5, -2.0], "b": True}.get(values.dtype.kind, 7)
            metadata = plain(("|" if single else order) + name, fill_value=fill)
            store.array(f"{side}/{name}", metadata, values, part=HALF)
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "int4"):
        store.array(f"ml/{name}", plain(name), bits(getattr(ml_dtypes, name)))
    grid = bits("i4", (5, 7))
    for name, compressor in {
        "blosc": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": -1, "blocksize": 0},
        "zlib": {"id": "zlib", "level": 1}, "gzip": {"id": "gzip", "level": 1},
        "bz2": {"id": "bz2", "level": 1}, "zstd": {"id": "zstd", "level": 1},
    }.items():  # fmt: skip
        metadata = plain("<i4", shape=(5, 7), chunks=(3, 4), fill_value=-1, compressor=compressor)
        store.array(f"codecs/{name}", metadata, grid, part=HALF)
    for order in "CF":
        for name, separator in (("dot", "."), ("slash", "/")):
            layout = {"order": order, "dimension_separator": separator}
            metadata = plain("<i4", shape=(5, 7), chunks=(3, 4), **layout)
            store.array(f"layouts/{order}_{name}", metadata, grid)
    fields = [["count", "<i4"], ["weight", ">f8"], ["raw", "|S3"], ["block", "<i2", [2]]]
    record = np.zeros(3, [("count", "<i4"), ("weight", ">f8"), ("raw", "S3"), ("block", "<i2", (2,))])
    record["count"] = [1, 2, 3]
    metadata = plain(fields, shape=(3,), chunks=(2,))
    store.array("record", metadata, record["count"], record=record, field="count")
    store.array("scalar", plain("<f8", shape=(), chunks=(), fill_value=2.5), np.array(0.0), part=None)
    store.expected.save()


def version_3():
    store = Store("v3", "zarr3")

    def plain(data_type, fill, *codecs, shape=(5,), chunks=(3,), **more):
        return {
            "shape": list(shape), "data_type": data_type, "fill_value": fill,
            "codecs": list(codecs or [LITTLE]),
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunks)}}, **more,
        }  # fmt: skip

    for name in (
        "bool", "int8", "uint8", "int16", "uint32", "int64", "float16", "float64", "complex64", "complex128",
    ):  # fmt: skip
        values = bits(name) if name != "bool" else np.array([True, False, True, True, False])
        fill = {"f": 1.5, "c": [1.5, "NaN"], "b": True}.get(values.dtype.kind, 7)
        store.array(f"types/{name}", plain(name, fill), values, part=HALF)
    for name in ML:
        fill = -1 if "int" in name else 1.5
        store.array(f"ml/{name}", plain(name, fill), bits(getattr(ml_dtypes, name)), part=HALF)
    # tensorstore reads the fill value 2 of this type as 2**-63; no chunk is missing here.
    values = bits(ml_dtypes.float8_e8m0fnu)
    store.array("ml/float8_e8m0fnu", plain("float8_e8m0fnu", 2.0), values, record=values)
    for name, fill in {"bfloat16": "0x7fc1", "float8_e5m2": "0x7d"}.items():
        values = bits(getattr(ml_dtypes, name))
        store.array(f"ml/{name}_nan", plain(name, "NaN"), values, part=HALF)
        store.array(f"ml/{name}_hex", plain(name, fill), values, part=HALF)
    big = {"name": "bytes", "configuration": {"endian": "big"}}
    store.array("ml/bfloat16_big", plain("bfloat16", 0, big), bits(ml_dtypes.bfloat16))
    grid = bits("f4", (5, 7))
    gzip = {"name": "gzip", "configuration": {"level": 1}}
    transpose = {"name": "transpose", "configuration": {"order": [1, 0]}}
    shards = {
        "name": "sharding_indexed",
        "configuration": {
            "chunk_shape": [1, 2], "codecs": [transpose, LITTLE, gzip], "index_location": "start",
            "index_codecs": [LITTLE, {"name": "crc32c"}],
        },
    }  # fmt: skip
    store.array("transposed", plain("float32", 0, transpose, LITTLE, gzip, shape=(5, 7), chunks=(3, 4)), grid)
    store.array("shards", plain("float32", -1, shards, shape=(5, 7), chunks=(3, 4)), grid, part=HALF)
    names = {"dimension_names": ["y", None], "attributes": {"units": "m"}}
    settings = {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 4, "blocksize": 0}
    blosc = {"name": "blosc", "configuration": settings}
    metadata = plain("float32", 0, LITTLE, blosc, shape=(5, 7), chunks=(3, 4), **names)
    store.array("names", metadata, grid, names=["y", None])
    settings = {**shards["configuration"], "chunk_shape": [3], "codecs": [{"name": "bytes"}]}
    metadata = plain("int4", -3, {**shards, "configuration": settings}, shape=(11,), chunks=(6,))
    store.array("ml/int4_shards", metadata, bits(ml_dtypes.int4, (11,)), part=slice(0, 7))
    store.expected.save()


if __name__ == "__main__":
    version_2()
    version_3()
