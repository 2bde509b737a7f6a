"""Tables of mistakes that users make."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import dask.array as da
import numpy as np
import xarray as xr
from _mistaken import Things

import xzarr3


def memory() -> xzarr3.MemoryStore:
    return xzarr3.MemoryStore()


def create(**options: Any) -> xzarr3.Array:
    return xzarr3.create_array(xzarr3.MemoryStore(), **{"shape": (10, 20), "dtype": "f4", **options})


def ours(place: Any, **options: Any) -> xr.Dataset:
    return xr.open_dataset(place, engine="xzarr3", **options)


def encoded(things: Things, encoding: Any) -> None:
    xzarr3.to_zarr(things.dataset, xzarr3.MemoryStore(), encoding=encoding)


def written(things: Things, dataset: Any, **options: Any) -> None:
    xzarr3.to_zarr(dataset, things.store, **options)


def away(url: str, **options: Any) -> Any:
    return xzarr3.open(url, storage_options={"retries": 0, "deadline": 2, **options})


NotFound, WrongNode = xzarr3.NodeNotFoundError, xzarr3.NodeTypeError
Argument, WrongType, Unknown = xzarr3.ArgumentError, xzarr3.ArgumentTypeError, xzarr3.UnknownNameError
Document, Extension = xzarr3.MetadataError, xzarr3.UnknownExtensionError
Store, Denied, Option = xzarr3.StoreError, xzarr3.StorePermissionError, xzarr3.StoreOptionError
Selection, DataType = xzarr3.SelectionError, xzarr3.DataTypeValidationError

Call: TypeAlias = Callable[[Things], Any]
Mistake: TypeAlias = tuple[Call, type[Exception], str, str, str]
"""What was done, the class of the error, two strings that must appear, and one that must not."""
NONE = "no such directory"

WHAT_IS_THIS: dict[str, Mistake] = {
    "netCDF-4": (lambda t: xzarr3.open(t.path("file.nc")), NotFound, "HDF5 file", "VirtualiZarr", NONE),
    "netCDF-4 by xarray": (lambda t: ours(t.path("file.nc")), NotFound, "HDF5", "open_dataset(path)", "='"),
    "netCDF-4 and a group": (lambda t: ours(t.path("file.nc"), group="a"), NotFound, "HDF5", "'/a'", NONE),
    "netCDF-3": (
        lambda t: xzarr3.open_group(t.path("file3.nc")),
        NotFound, "netCDF-3", "with xr.open_dataset(path), convert", "engine=",
    ),
    "text": (lambda t: xzarr3.open(t.path("notes.txt")), NotFound, "it is a file", "correct", NONE),
    "Icechunk": (lambda t: xzarr3.open(t.path("ice")), NotFound, "an Icechunk repo", "session", "zarr.json"),
    "zip by another name": (
        lambda t: xzarr3.open(t.path("zipped.zarr")), NotFound, "a zip", "ZipStore(", NONE,
    ),
    "zip with a folder": (
        lambda t: ours(t.path("above.zip")), NotFound, "'store.zarr'", "group", "zarr.json",
    ),
    "zip that is absent": (
        lambda t: xzarr3.open(t.path("abov.zip")), NotFound, "'above.zip'?", "exist", NONE,
    ),
    "one level above": (
        lambda t: ours(t.path("outer/inner")), NotFound, "it has: 'data.zarr'", "open", "zarr.json",
    ),
    "device": (lambda t: xzarr3.open("/dev/null"), NotFound, "neither a directory", "correct", NONE),
    "link to nowhere": (lambda t: xzarr3.open(t.path("link")), NotFound, "neither", "correct the path", NONE),
    "empty folder": (lambda t: xzarr3.open(t.path("empty")), NotFound, "directory is empty", "empty'", NONE),
    "empty memory": (lambda t: xzarr3.open(xzarr3.MemoryStore()), NotFound, "nothing", "stored there", NONE),
    "absent": (
        lambda t: xzarr3.open(t.path("stroe.zarr")), NotFound, "no 'stroe.zarr'", "n 'store.zarr'?", NONE,
    ),
    "absent and not near": (
        lambda t: ours(t.path("e.zarr")), NotFound, "no 'e.zarr'", "it has: ", "did you mean",
    ),
    "pattern": (lambda t: ours(t.path("s*.zarr")), NotFound, "'s*.zarr'", "open_mfdataset(", "did you"),
    "pattern above": (lambda t: xzarr3.open(t.path("outr?/x")), NotFound, "'outr?/x'", "engine='xz", "did"),
    "absent folder above": (lambda t: xzarr3.open(t.path("outr/x")), NotFound, "'outr'", "'outer'?", NONE),
    "absent variable by path": (lambda t: ours(f"{t.store}/t2n"), NotFound, "'t2n'", "'t2m'?", NONE),
    "absent source of a copy": (
        lambda t: xzarr3.copy(t.path("stre.zarr"), memory()), NotFound, "'stre", "'store", NONE,
    ),
    "absent to consolidate": (
        lambda t: xzarr3.consolidate_metadata(t.path("stor.zarr")),
        NotFound, "'stor.zarr'", "'store.zarr'?", NONE,
    ),
    "absent to recover": (lambda t: xzarr3.recover(t.path("stor.zarr")), NotFound, "recover", "'store", NONE),
    "other format": (lambda t: xzarr3.open(t.store, zarr_format=2), NotFound, "than 2", "leave", "zarr.json"),
}  # fmt: skip
PLACES: dict[str, Mistake] = {
    "s3:/": (lambda t: xzarr3.open("s3:/bucket/x"), Store, "'s3://bucket/x'?", "pathlib", "LocalStore"),
    "s3:/ to write": (lambda t: xzarr3.create_group(Path("s3://b/x")), Store, "'s3://b/x'?", "text", "Local"),
    "s3:/ in xarray": (lambda t: ours("s3:/bucket/x"), Store, "'s3://bucket/x'?", "pathlib", "LocalStore"),
    "s3//": (lambda t: xzarr3.open("s3//bucket/x"), Store, "'s3://bucket/x'?", "URL", "LocalStore"),
    "gs:/": (lambda t: xzarr3.open_store("gs:/bucket/x"), Store, "'gs://bucket/x'?", "URL", "LocalStore"),
    "https:/": (lambda t: xzarr3.open("https:/h/x"), Store, "'https://h/x'?", "URL", "LocalStore"),
    "file:/": (lambda t: xzarr3.open("file:/data/x"), Store, "'file:///data/x'?", "URL", "LocalStore"),
    "Windows": (lambda t: xzarr3.open("C:\\data\\x"), Store, "a path of Windows", "'/mnt/c/", "LocalStore"),
    "protocol": (lambda t: xzarr3.open("htps://h/x"), Store, "mean 'https'?", "knows", "target"),
    "package of a protocol": (
        lambda t: xzarr3.open("webdav://h/x"), Store, "webdav4", "pip install", "extra",
    ),
    "closed port": (lambda t: away(f"{t.closed}/x"), Store, "connection is refused", "address", "obstore"),
    "wrong endpoint": (
        lambda t: away("s3://b/x", endpoint_url=t.closed, allow_http=True, anon=True),
        Store, "the connection is refused", "correct the address", "accepted",
    ),
    "endpoint without scheme": (
        lambda t: away("s3://b/x", endpoint_url="h:9"), Store, "URL", "https://", "x'",
    ),
    "denied": (lambda t: away(f"{t.web}/denied/x"), Denied, "403", "credentials", "obstore"),
    "typed option of S3": (
        lambda t: away("s3://b/x", endpoint_url=t.closed, allow_http=True, annon=True),
        Store, "'annon'", "did you mean 'anon'?", "***",
    ),
    "typed option of HTTP": (
        lambda t: away(t.closed, client_opts={}), Store, "'client_opts'", "'client_options'?", "***",
    ),
    "options that are text": (
        lambda t: xzarr3.open(t.store, storage_options="anon"),
        WrongType, "'anon'", "{'anon': True}", "update",
    ),
    "options of S3 for a path": (
        lambda t: ours(t.store, storage_options={"anon": True}), Option, "'anon'", "fsync", "s3",
    ),
    "cache of fsspec": (
        lambda t: ours(f"simplecache::{t.web}/x.zarr"), Store, "open_store(...)", "CacheStore(", "denied",
    ),
    "no path": (lambda t: xzarr3.open(""), Store, "the empty path", "'.'", "zarr.json"),
    "None": (lambda t: xzarr3.from_zarr(None), WrongType, "NoneType", "a path", "NoneType'"),
}  # fmt: skip
NODES: dict[str, Mistake] = {
    "array as group": (
        lambda t: xzarr3.open_group(t.store, "t2m"), WrongNode, "array, not", "open_array", "None",
    ),
    "array as store": (
        lambda t: xzarr3.open_group(f"{t.store}/t2m"), WrongNode, "array, not", "store.zarr'", "None",
    ),
    "array in xarray": (
        lambda t: ours(f"{t.store}/t2m"), WrongNode, "take 't2m' of the group", "zarr'", "None",
    ),
    "array as group of xarray": (
        lambda t: ours(t.store, group="t2m"), WrongNode, "take 't2m'", "'/'", "None",
    ),
    "group as array": (lambda t: xzarr3.open_array(t.store), WrongNode, "group, not", "open_group()", "None"),
    "group in dask": (
        lambda t: xzarr3.from_zarr(t.store), WrongNode, "the path of an array", "'t2m'", "None",
    ),
    "array to require": (
        lambda t: xzarr3.open_group(t.store, mode="r+").require_group("t2m"),
        WrongNode, "'/t2m'", "choose", "None",
    ),
    "variable": (lambda t: t.group["t2"], NotFound, "no array or group 't2'", "mean 't2m'?", "zarr.json"),
    "variable in capitals": (lambda t: t.group["T2M"], NotFound, "'T2M'", "did you mean 't2m'?", "zarr.json"),
    "below an array": (lambda t: t.group["t2m/x"], NotFound, "'/t2m' is an array", "no nodes", "did you"),
    "in an absent group": (lambda t: t.group["ocean/x"], NotFound, "'ocean/x'", "has: 't2m'", "zarr.json"),
    "path of an array": (
        lambda t: xzarr3.open_array(t.store, "t2n"), NotFound, "'/t2n'", "'t2m'?", "zarr.json",
    ),
    "path for dask": (lambda t: xzarr3.from_zarr(t.store, "t2n"), NotFound, "'/t2n'", "'t2m'?", "zarr.json"),
    "group of xarray": (
        lambda t: ours(t.store, group="forecast"), NotFound, "'/forecast'", "has", "zarr.json",
    ),
    "to delete": (
        lambda t: xzarr3.open_group(t.store, mode="r+").__delitem__("t2n"),
        NotFound, "'t2n'", "'t2m'?", "zarr.json",
    ),
    "number for a name": (lambda t: t.group[0], xzarr3.InvalidKeyError, "a string", "int", "zarr.json"),
    "attribute of a group": (lambda t: t.group.t2m, AttributeError, "'t2m'", "group['t2m']", "mean"),
    "method of a group": (
        lambda t: t.group.create_aray, AttributeError, "aray'", "n 'create_array'?", "item",
    ),
    "function": (lambda t: xzarr3.open_gruop, AttributeError, "'open_gruop'", "'open_group'?", "item"),
    "read-only array": (lambda t: t.group["t2m"].resize((1, 1, 1)), Store, "read-only", "mode='r+'", "w-"),
    "read-only attributes": (lambda t: t.group.attrs.update(a=1), Store, "read-only", "mode='r+'", "w-"),
    "group in a file": (
        lambda t: xzarr3.create_group(t.path("notes.txt")), Store, "notes.txt'", "one is a file", "None",
    ),
    "dataset in a file": (
        lambda t: xzarr3.to_zarr(t.values, t.path("notes.txt")), Store, "is a file", "another path", "None",
    ),
    "array below an array": (
        lambda t: xzarr3.create_array(t.store, "t2m/x", shape=1, dtype="i1"),
        WrongNode, "'/t2m' is an array", "below a group", "None",
    ),
    "chunk that is not there": (
        lambda t: t.array.read_chunk((5, 5)), Selection, "(2, 4) chunks", "from 0", "None",
    ),
    "existing group": (
        lambda t: xzarr3.create_group(t.store), FileExistsError, "exists", "overwrite", "mode",
    ),
    "existing dataset": (lambda t: written(t, t.dataset), FileExistsError, "not empty", "mode 'w'", "over"),
    "mode": (lambda t: xzarr3.open(t.store, mode="rw"), Argument, "mode='rw'", "'r+'", "w-"),
    "mode of xarray": (lambda t: ours(t.store, mode="w"), Argument, "mode='w'", "'r'", "zarr.json"),
    "truncated document": (
        lambda t: xzarr3.open(xzarr3.MemoryStore({"zarr.json": b'{"zarr_format": 3'})),
        Document, "'zarr.json'", "truncated", "absent",
    ),
    "future format": (
        lambda t: xzarr3.open(xzarr3.MemoryStore({"zarr.json": b'{"zarr_format": 4, "node_type": "group"}'})),
        Document, "found 4", "accepted: 3", "absent",
    ),
}  # fmt: skip
ARRAYS: dict[str, Mistake] = {
    "data type": (lambda t: create(dtype="int61"), Extension, "'int61'", "did you mean 'int64'?", "numpy"),
    "no data type": (lambda t: create(dtype=None), Document, "'dtype'", "or 'data'", "None"),
    "negative shape": (lambda t: create(shape=(-1, 2)), Document, "shape[0]", "found -1", "chunk"),
    "fraction in a shape": (lambda t: create(shape=(1.5, 2)), Document, "'shape'", "integers", "chunk"),
    "text for chunks": (lambda t: create(chunks="auto2"), Document, "'auto2'", "a shape", "shards"),
    "dictionary of chunks": (
        lambda t: create(chunks={"x": 5}), Document, "{'x': 5}", "such as (10", "shards",
    ),
    "chunk of zero": (lambda t: create(chunks=(0, 5)), Document, "chunks[0]", "at least 1", "shards"),
    "chunks that add up to less": (
        lambda t: create(chunks=((3, 3), 20)), Document, "to 6", "at least 10", "sha",
    ),
    "shards of odd chunks": (
        lambda t: create(chunks=(3, 3), shards=(10, 20)),
        Document, "not a multiple", "try shards=(9, 18)", "None",
    ),
    "shards below chunks": (
        lambda t: create(chunks=(5, 5), shards=(2, 2)),
        Document, "not a multiple", "try shards=(5, 5)", "None",
    ),
    "shards in version 2": (
        lambda t: create(chunks=(5, 5), shards=(10, 20), zarr_format=2),
        Document, "format 2", "no shards", "None",
    ),
    "codec of numcodecs": (
        lambda t: create(compressors="zlib"), Extension, "'zlib'", "n 'numcodecs.zlib'?", "None",
    ),
    "fast codec": (lambda t: create(compressors="lz4"), Extension, "'lz4'", "'numcodecs.lz4'?", "None"),
    "codec of a package": (
        lambda t: create(compressors="jpeg2k"), Extension, "install the package", "register_codec", "?",
    ),
    "number for a codec": (lambda t: create(compressors=5), Document, "not a codec: int", "its name", "None"),
    "level": (
        lambda t: create(compressors={"name": "zstd", "configuration": {"level": 99}}),
        Document, "99", "22", "None",
    ),
    "order": (lambda t: create(order="K"), Document, "'K'", "'C', 'F'", "None"),
    "attribute that is no JSON": (
        lambda t: create(attributes={"a": {1}}), Document, "attributes.a", "JSON", "path",
    ),
    "attribute set": (
        lambda t: create().attrs.__setitem__("a", {1}), Document, "attributes.a", "JSON", "path",
    ),
    "text for a number": (lambda t: create().set(0, "x"), DataType, "'float32'", "<U1", "."),
    "nan for an integer": (lambda t: create(dtype="i4").set(0, np.nan), DataType, "'int32'", "nan", "object"),
    "number beyond the type": (lambda t: create(dtype="i1").set(0, 300), DataType, "'int8'", "300", "object"),
    "index": (lambda t: t.array[10], Selection, "10 is out of bounds", "-10 to 9", "None"),
    "orthogonal index": (lambda t: t.array.oindex[[0, 11]], Selection, "11 is out", "-10 to 9", "None"),
    "fraction for an index": (lambda t: t.array[1.5], Selection, "float", "integers", "None"),
    "name for an index": (lambda t: t.array["x"], Selection, "str", "slices", "None"),
    "step": (lambda t: t.array[::0], Selection, "zero", "slice(None, None, 0)", "bounds"),
    "points that do not pair": (
        lambda t: t.array.vindex[[0, 1], [1, 2, 3]], Selection, "(3,)", ".oindex", "None",
    ),
    "mask": (lambda t: t.array[np.ones((3, 3), bool)], Selection, "(3, 3)", "(10, 20)", "None"),
    "buffer": (lambda t: t.array.get(out=np.zeros(3)), Selection, "float32", "(3,)", "None"),
    "threads": (lambda t: t.array.get(threads=0), Argument, "threads=0", "at least 1", "bounds"),
    "resize": (lambda t: t.array.resize(5), Selection, "(10, 20)", "pass 2 lengths", "None"),
    "appended shape": (
        lambda t: t.array.append(np.ones((3, 1)), axis=1), Selection, "(3, 1)", "(10, n)", "None",
    ),
    "axis": (lambda t: t.array.append(np.zeros((1, 20)), axis=5), Selection, "axis 5", "-2 to 1", "None"),
    "values in memory": (
        lambda t: xzarr3.store(np.zeros(3), t.array), WrongType, "ndarray", "array[...]", "None",
    ),
    "path for a target": (
        lambda t: xzarr3.store(da.zeros(3), "x"), WrongType, "into str", "open_array(", "None",
    ),
    "shape of a source": (
        lambda t: xzarr3.store(da.zeros(3), t.array), Selection, "(3,)", "regions=", "None",
    ),
    "text for blocks": (
        lambda t: xzarr3.from_zarr(t.array, chunks="unit"), Argument, "'unit'", "'units'", "None",
    ),
}  # fmt: skip
DATASETS: dict[str, Mistake] = {
    "dimension to append along": (
        lambda t: written(t, t.more, append_dim="tiem"), Argument, "'tiem'", "did you mean 'time'?", "region",
    ),
    "append of fewer latitudes": (
        lambda t: written(t, t.more.isel(lat=slice(3)), append_dim="time"),
        Argument, "'lat' has 3 here and 6 in the store", ".reindex_like()", "!=",
    ),
    "append of other latitudes": (
        lambda t: written(t, t.more.assign_coords(lat=t.more.lat + 1), append_dim="time"),
        Argument, "'lat' at [0] is -74.0 here and -75.0 in the store", ".interp_like()", "!=",
    ),
    "prepend of what follows": (
        lambda t: written(t, t.more, prepend_dim="time"),
        Argument, "though the labels increase", "prepend those that precede", "!=",
    ),
    "prepend with a mode": (
        lambda t: written(t, t.more, prepend_dim="time", mode="a"),
        Argument, "mode='a'", "leave mode out", "!=",
    ),
    "append of some variables": (
        lambda t: written(t, t.more[["t2m"]], append_dim="time"), Argument, "'pr'", "append all", "region",
    ),
    "append of a new variable": (
        lambda t: written(t, t.more.assign(x=t.more.t2m), append_dim="time"),
        Argument, "'x'", "mode='a'", "region",
    ),
    "append with an encoding": (
        lambda t: written(t, t.more, append_dim="time", encoding={"t2m": {"dtype": "i2"}}),
        Argument, "'t2m' already exists", "leave it out", "region",
    ),
    "append with a mode": (
        lambda t: written(t, t.more, append_dim="time", mode="w"),
        Argument, "mode='w'", "leave mode out", "region",
    ),
    "append of text": (
        lambda t: written(t, t.more.assign(t2m=t.more.t2m.astype(str)), append_dim="time"),
        Argument, "Mismatched dtypes", ".astype()", "region",
    ),
    "labels of a region": (
        lambda t: written(t, t.more, region="auto"),
        Unknown, "2001-01-01 00:00:00, 2001-02-01", "has 12 from 2000-01-01 00:00:00 to 2000-12-01", '"Not',
    ),
    "gaps in a region": (
        lambda t: written(t, t.dataset.isel(lat=[0, 2]), region="auto"),
        Argument, "[0, 2]", ".sortby('lat')", "!=",
    ),
    "size of a region": (
        lambda t: written(t, t.values.isel(time=slice(2)), region={"time": slice(3)}),
        Argument, "'time' has 2 here and 3 in the region", "slice(0, 2)", "!=",
    ),
    "region past the end": (
        lambda t: written(t, t.values.isel(time=slice(2)), region={"time": slice(11, 13)}),
        Argument, "'time' has 2 here and 1 in the region", "append_dim", "!=",
    ),
    "dimension of a region": (
        lambda t: written(t, t.values, region={"tiem": slice(12)}),
        Argument, "'tiem'", "mean 'time'?", "append",
    ),
    "index for a region": (
        lambda t: written(t, t.values.isel(time=[0]), region={"time": 0}),
        WrongType, "slice objects", "{'time': slice(0, 1)}", "append",
    ),
    "step of a region": (
        lambda t: written(t, t.values, region={"time": slice(0, 12, 2)}),
        Argument, "step", "each run", "append",
    ),
    "region and append": (
        lambda t: written(t, t.values, region={"time": slice(12)}, append_dim="time"),
        Argument, "in both", "leave it out of ``region``", "!=",
    ),
    "coordinates in a region": (
        lambda t: written(t, t.dataset, region={"time": slice(12)}),
        Argument, "in common", ".drop_vars(", "!=",
    ),
    "region of no store": (
        lambda t: xzarr3.to_zarr(t.values, t.path("stor.zarr"), region={"time": slice(12)}),
        NotFound, "'stor.zarr'", "'store.zarr'?", "!=",
    ),
    "list for a region": (
        lambda t: written(t, t.values, region=[0]), WrongType, "a dict", "'auto'", "append",
    ),
    "other size": (
        lambda t: written(t, t.dataset.isel(lat=slice(3)), mode="a"),
        Argument, "'lat' has 3 here", "mode='w'", "!=",
    ),
    "other dimensions": (
        lambda t: written(t, t.dataset.rename(lat="y"), mode="a"), Argument, "'y'", ".rename()", "region",
    ),
    "new variable without adding": (
        lambda t: written(t, t.dataset.assign(x=1), mode="r+"), Argument, "['x']", "``mode='a'``", "region",
    ),
    "mode of writing": (lambda t: written(t, t.dataset, mode="x"), Argument, "mode='x'", "'w-'", "region"),
    "array for a dataset": (
        lambda t: xzarr3.to_zarr(np.zeros(3), memory()), WrongType, "ndarray", "create_array", "attribute",
    ),
    "variable to encode": (lambda t: encoded(t, {"t2n": {}}), Unknown, "'t2n'", "mean 't2m'?", '"enc'),
    "encoding of everything": (
        lambda t: encoded(t, {"chunks": 5}), Unknown, "by variable", "{'t2m': {'ch", "mean",
    ),
    "encoding that is text": (
        lambda t: encoded(t, {"t2m": "zstd"}), WrongType, "'zstd'", "dictionary", "update",
    ),
    "key of an encoding": (
        lambda t: encoded(t, {"t2m": {"scale_facor": 1}}),
        Argument, "'scale_facor'", "'scale_factor'?", "region",
    ),
    "data type of an encoding": (
        lambda t: encoded(t, {"t2m": {"dtype": "int61"}}),
        WrongType, "'int61'", "did you mean 'int64'?", "understood",
    ),
    "units of an encoding": (
        lambda t: encoded(t, {"time": {"units": "days after 2000"}}),
        Argument, "'time'", "'days since 2000", "region",
    ),
    "chunks of an encoding": (
        lambda t: encoded(t, {"t2m": {"chunks": (1, 6)}}),
        Document, "'/t2m', field 'chunks'", "3 dimensions; found (1, 6)", "None",
    ),
    "shards of an encoding": (
        lambda t: encoded(t, {"t2m": {"chunks": (5, 3, 3), "shards": (12, 6, 8)}}),
        Document, "'/t2m'", "try shards=(10, 6, 6)", "None",
    ),
    "codec of an encoding": (
        lambda t: encoded(t, {"t2m": {"compressors": "ztsd"}}), Extension, "'/t2m'", "mean 'zstd'?", "None",
    ),
    "objects": (
        lambda t: xzarr3.to_zarr(t.dataset.assign(o=("time", [object()] * 12)), memory()),
        Argument, "'o'", ".astype(", "None",
    ),
    "slash in a name": (
        lambda t: xzarr3.to_zarr(t.dataset.rename(t2m="a/b"), memory()),
        Argument, "'a/b'", ".rename()", "None",
    ),
    "list of dimensions": (
        lambda t: written(t, t.more, append_dim=["time"]), Argument, "['time']", "existing", "unhashable",
    ),
    "number for a group": (
        lambda t: ours(t.store, group=1), xzarr3.InvalidKeyError, "a path must be a string", "int", "strip",
    ),
    "number for a name": (
        lambda t: ours(t.store, keep_variables=1), WrongType, "1 names no variables", "accepted", "iterable",
    ),
    "store for a list": (
        lambda t: xzarr3.open_mfdataset(memory()), WrongType, "MemoryStore", "accepted: stores", "iterable",
    ),
    "number for a dimension": (
        lambda t: xzarr3.open_mfdataset([t.store], concat_dim=1, combine="nested"),
        Argument, "concat_dim=1", "names of dimensions", "iterable",
    ),
    "number for encodings": (lambda t: encoded(t, 1), WrongType, "encoding=1", "accepted", "iterable"),
    "nothing for dask arrays": (
        lambda t: xzarr3.store(None, create()), WrongType, "NoneType", "accepted: dask arrays", "iterable",
    ),
    "text for patterns": (
        lambda t: xzarr3.advise(t.dataset, access="series"), Selection, "'series'", "weights by", "items",
    ),
    "list for a target": (
        lambda t: xzarr3.advise(t.dataset, target=["s3"]), Argument, "['s3']", "or a store", "unhashable",
    ),
    "answer to absent chunks": (
        lambda t: ours(t.store, missing="eror"), Argument, "'eror'", "'error'?", "None",
    ),
    "number for encodings of an append": (
        lambda t: written(t, t.more, encoding=1, append_dim="time"),
        WrongType, "encoding=1", "accepted: for each", "iterable",
    ),
    "calendar that is no text": (
        lambda t: encoded(t, {"time": {"calendar": 5}}), Argument, "'time'", "cannot be encoded", "None",
    ),
    "list for a label": (
        lambda t: xzarr3.drop(t.store, time=slice(None, [])), Argument, "slice(None, [], ", "label", "'_'",
    ),
    "list for what is dropped": (
        lambda t: xzarr3.drop(t.store, ["time"]), WrongType, "indexers=['time']", "a mapping", "iterable",
    ),
    "number for names to drop": (
        lambda t: xzarr3.open_mfdataset([t.store], drop_variables=1),
        WrongType, "1 names no", "list", "iterable",
    ),
    "name of a dask array": (
        lambda t: xzarr3.from_zarr(t.array, name=5), WrongType, "name=5", "a string or None", "callable",
    ),
    "blocks of a fraction": (
        lambda t: xzarr3.from_zarr(t.array, chunks=1.5), Argument, "chunks=1.5", "shape (10, 20)", "None",
    ),
    "number for samples": (
        lambda t: xzarr3.batches(t.array, 5, 2), Selection, "samples=5", "a list of selections", "iterable",
    ),
    "list for options": (
        lambda t: xzarr3.config.set([1]), WrongType, "[1]", "a mapping of names to values", "iterable",
    ),
    "list for a store in memory": (
        lambda t: xzarr3.MemoryStore([1]), WrongType, "not a store: [1]", "a dict", "items",
    ),
    "nothing to store under a key": (
        lambda t: memory().put("a", None), WrongType, "key 'a'", "erase()", "len()",
    ),
    "number to store under a key": (
        lambda t: memory().put("a", 5), WrongType, "cannot store 5", "a list of bytes", "iterable",
    ),
    "number for a range of bytes": (
        lambda t: memory().get("a", 5), xzarr3.InvalidRangeError, "not a byte range: 5", "(0, 10)", "len()",
    ),
    "number for attributes": (
        lambda t: create().update_attributes(5), WrongType, "no attributes: (5,)", "a mapping", "iterable",
    ),
    "number for storage transformers": (
        lambda t: create(storage_transformers=5), Document, "found 5", "its name or its JSON", "iterable",
    ),
    "bytes for a shape": (
        lambda t: create(shape=b"x"), Document, "found b'x'", "integers of at least 0", "None",
    ),
    "slice for an axis": (
        lambda t: create().append(np.zeros((1, 20)), axis=slice(1)), Selection, "slice(", "-2", "multiply",
    ),
    "negative chunks": (
        lambda t: xzarr3.open_dataset(t.store, chunks={"time": -3}),
        Argument, "{'time': -3}", "accepted: positive lengths or sizes, or -1", "add up",
    ),
    "text for a truth value": (
        lambda t: ours(t.store, nullable="yes"), WrongType, "nullable='yes'", "accepted: True, False", "None",
    ),
    "text for one that may be None": (
        lambda t: ours(t.store, consolidated="no"), WrongType, "consolidated='no'", "None", "field",
    ),
    "text for resume": (
        lambda t: written(t, t.dataset, mode="w", resume="no"), WrongType, "resume='no'", "True", "None",
    ),
    "text for overwrite": (
        lambda t: xzarr3.create_group(t.store, overwrite="no"),  # type: ignore[arg-type]
        WrongType, "overwrite='no'", "True, False", "None",
    ),
    "text for empty chunks": (
        lambda t: encoded(t, {"t2m": {"write_empty_chunks": "no"}}),
        WrongType, "'t2m': write_empty_chunks='no'", "True, False, None", "contradicts",
    ),
    **{
        f"text for {name}": (
            lambda t, name=name: written(t, t.dataset, mode="w", **{name: "no"}),
            WrongType, f"{name}='no'", "accepted: True, False", "supported",
        )
        for name in ("check_labels", "widen_units", "consolidated", "write_empty_chunks", "compute")
    },
}  # fmt: skip
TABLES = {
    "what is this": WHAT_IS_THIS,
    "places": PLACES,
    "nodes": NODES,
    "arrays": ARRAYS,
    "datasets": DATASETS,
}
MISTAKES = {f"{title}: {name}": case for title, table in TABLES.items() for name, case in table.items()}
