"""Mistakes and names from elsewhere: what the error says, how near the user's line is, rules for messages."""

import ast
import pickle
import re
import shutil
import socket
import sys
import traceback
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from _conformance import refused
from _fault_server import FaultServer

import xzarr3
from xzarr3.errors import FULL_TRACEBACK
from xzarr3.extensions import forget

MOST_FRAMES = 4
"""How many frames may follow the user's own line."""
LONGEST = 400
"""Most characters of a message before a list of names."""
LIST = re.compile(r"(accepted|has|have|knows): ")
NOT_SAID = re.compile(r"\n|no such directory|iterable|unhashable|len\(\)|callable|understood|multiply|\*\*\*")
"""What Python would say instead, and what must stay secret."""


def strings() -> Iterator[str]:
    """The strings of the package that are no docstrings, with braces for what f-strings insert."""
    for path in Path(xzarr3.__file__).parent.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Expr):
                node.value = ast.Constant(None)
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                parts = (each.value if isinstance(each, ast.Constant) else "{}" for each in node.values)
                yield "".join(map(str, parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
            elif isinstance(node, ast.keyword) and node.arg == "accepted":
                yield f"accepted: {ast.unparse(node.value).lstrip('f').strip(chr(39))}"


VERBS = "call|choose|correct|create|give|install|leave|make|open|pass|pip|raise|read|repeat|use|wait|write"


def test_words_that_no_message_has() -> None:
    not_said = rf"accepted: ({VERBS})\b(?!=)|\b(somebody|someone|whoever)\b"
    assert [text for text in strings() if re.search(not_said, text)] == []


class Things:
    """Stores and files in one folder, which mistakes only read."""

    def __init__(self, folder: Path, web: str) -> None:
        self.folder, self.web, self.empty = folder, web, xzarr3.MemoryStore()
        self.store = self.path("store.zarr")
        self.dataset = xr.Dataset(
            {name: (("time", "lat", "lon"), np.ones((12, 6, 8), "f4")) for name in ("t2m", "pr")},
            {
                "time": pd.date_range("2000-01-01", periods=12, freq="MS"), "lat": np.linspace(-75, 75, 6),
                "lon": np.arange(8) * 45.0,
            },
        )  # fmt: skip
        later = pd.date_range("2001-01-01", periods=2, freq="MS")
        self.more = self.dataset.isel(time=slice(2)).assign_coords(time=later)
        self.values = self.dataset.drop_vars(["lat", "lon"])
        xzarr3.to_zarr(self.dataset, self.store)
        self.group = xzarr3.open_group(self.store)
        self.array = xzarr3.create_array(xzarr3.MemoryStore(), shape=(10, 20), chunks=(5, 5), dtype="f4")
        for name in ("outer/inner", "empty", "ice/snapshots", "ice/transactions", "ice/manifests"):
            (folder / name).mkdir(parents=True)
        shutil.copytree(self.store, folder / "outer/inner/data.zarr")
        (folder / "link").symlink_to("nowhere")
        (folder / "file.nc").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
        (folder / "file3.nc").write_bytes(b"CDF\x02" + bytes(40))
        (folder / "file.grib").write_bytes(b"GRIB" + bytes(40))
        (folder / "notes.txt").write_text("hello")
        for name, top in (("zipped.zarr", folder / "store.zarr"), ("above.zip", folder)):
            with zipfile.ZipFile(folder / name, "w") as packed:
                for path in sorted(Path(self.store).rglob("zarr.json")):
                    packed.write(path, path.relative_to(top))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.closed = f"http://127.0.0.1:{free.getsockname()[1]}"

    def path(self, name: str) -> str:
        return str(self.folder / name)


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Things]:
    with FaultServer.start() as server:  # Nothing is there, and one directory is denied.
        server.fault("status", "/denied/*", status=403)
        yield Things(tmp_path_factory.mktemp("mistakes"), server.url)


def made(run: Callable[[], Any]) -> BaseException:
    """The error of a mistake; its traceback begins in this function."""
    try:
        run()
    except Exception as error:  # noqa: BLE001 - its class is what is tested
        return error
    pytest.fail("no error was raised")


def check_manners(error: BaseException) -> None:
    """What holds for every message and traceback."""
    text = str(error)
    assert not NOT_SAID.search(text)
    assert len(LIST.split(text)[0]) <= LONGEST
    frames = len(traceback.extract_tb(error.__traceback__)) - 2  # Without `made` and the own line.
    assert frames <= MOST_FRAMES
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), text)


def memory() -> xzarr3.MemoryStore:
    return xzarr3.MemoryStore()


def create(**options: Any) -> xzarr3.Array:
    return xzarr3.create_array(xzarr3.MemoryStore(), **{"shape": (10, 20), "dtype": "f4", **options})


def ours(place: Any, **options: Any) -> xr.Dataset:
    return xr.open_dataset(place, engine="xzarr3", **options)


def encoded(things: Any, encoding: Any) -> None:
    xzarr3.to_zarr(things.dataset, xzarr3.MemoryStore(), encoding=encoding)


def written(things: Any, dataset: Any, **options: Any) -> None:
    xzarr3.to_zarr(dataset, things.store, **options)


def away(url: str, **options: Any) -> Any:
    return xzarr3.open(url, storage_options={"retries": 0, "deadline": 2, **options})


NotFound, WrongNode = xzarr3.NodeNotFoundError, xzarr3.NodeTypeError
Argument, WrongType, Unknown = xzarr3.ArgumentError, xzarr3.ArgumentTypeError, xzarr3.UnknownNameError
Document, Extension = xzarr3.MetadataError, xzarr3.UnknownExtensionError
Store, Denied, Option = xzarr3.StoreError, xzarr3.StorePermissionError, xzarr3.StoreOptionError
Selection, DataType = xzarr3.SelectionError, xzarr3.DataTypeValidationError

ARGUMENTS = {
    "compressor": "compressors=", "compression": "compressors=", "complevel": "{'level': 1}",
    "zlib": "{'name': 'gzip', 'configuration': {'level': 5}}", "chunk": "did you mean 'chunks'",
    "chunksizes": "chunks=", "chunk_shape": "chunks=", "contiguous": "chunks=-1",
    "shard": "did you mean 'shards'", "fillvalue": "did you mean 'fill_value'",
    "filter": "did you mean 'filters'", "codecs": "filters=..., serializer=... and compressors=...",
    "object_codec": "dtype='string'", "dims": "dimension_names=", "attrs": "attributes=",
    "atributes": "did you mean 'attributes'", "dimension_separator": "chunk_key_encoding={'separator': '/'}",
    "zarr_version": "zarr_format=", "config": "write_empty_chunks=",
    "synchronizer": "leave 'synchronizer' out", "cache_metadata": "leave 'cache_metadata' out",
    "chunk_store": "one store", "mode": "overwrite=True",
}  # fmt: skip

# What is done with the things, the class of the error, and two strings that it has.
MISTAKES: list[tuple[Callable[[Any], Any], type[Exception], str, str]] = [
    # What is not there, or is something else.
    (lambda t: xzarr3.open(t.path("file.nc")), NotFound, "HDF5 file", "VirtualiZarr"),
    (lambda t: ours(t.path("file.nc")), NotFound, "HDF5", "open_dataset(path)"),
    (lambda t: ours(t.path("file.nc"), group="a"), NotFound, "HDF5", "'/a'"),
    (lambda t: xzarr3.open_group(t.path("file3.nc")),
     NotFound, "netCDF-3", "with xr.open_dataset(path), convert"),
    (lambda t: ours(t.path("file.grib")), NotFound, "a GRIB file", "convert it with xzarr3.to_zarr()"),
    (lambda t: xzarr3.open(f"{t.store}/zarr.json"), Document, "document of a node", "open the folder"),
    (lambda t: xzarr3.open(t.path("notes.txt")), NotFound, "it is a file", "correct"),
    (lambda t: xzarr3.open(t.path("ice")), NotFound, "an Icechunk repo", "session"),
    (lambda t: xzarr3.open(t.path("zipped.zarr")), NotFound, "a zip", "ZipStore("),
    (lambda t: ours(t.path("above.zip")), NotFound, "'store.zarr'", "group"),
    (lambda t: xzarr3.open(t.path("abov.zip")), NotFound, "'above.zip'?", "exist"),
    (lambda t: ours(t.path("outer/inner")), NotFound, "it has: 'data.zarr'", "open"),
    (lambda t: xzarr3.open("/dev/null"), NotFound, "neither a directory", "correct"),
    (lambda t: xzarr3.open(t.path("link")), NotFound, "neither", "correct the path"),
    (lambda t: xzarr3.open(t.path("empty")), NotFound, "directory is empty", "empty'"),
    (lambda t: xzarr3.open(xzarr3.MemoryStore()), NotFound, "nothing", "stored there"),
    (lambda t: xzarr3.open(t.path("stroe.zarr")), NotFound, "no 'stroe.zarr'", "n 'store.zarr'?"),
    (lambda t: ours(t.path("e.zarr")), NotFound, "no 'e.zarr'", "it has: "),
    (lambda t: ours(t.path("s*.zarr")), NotFound, "'s*.zarr'", "open_mfdataset("),
    (lambda t: xzarr3.open(t.path("outr?/x")), NotFound, "'outr?/x'", "xzarr3.open_mfdataset("),
    (lambda t: xzarr3.open(t.path("outr/x")), NotFound, "'outr'", "'outer'?"),
    (lambda t: ours(f"{t.store}/t2n"), NotFound, "'t2n'", "'t2m'?"),
    (lambda t: xzarr3.copy(t.path("stre.zarr"), memory()), NotFound, "'stre", "'store"),
    (lambda t: xzarr3.consolidate_metadata(t.path("stor.zarr")), NotFound, "'stor.zarr'", "'store.zarr'?"),
    (lambda t: xzarr3.recover(t.path("stor.zarr")), NotFound, "recover", "'store"),
    (lambda t: xzarr3.open(t.store, zarr_format=2), NotFound, "than 2", "leave"),
    # Places and their options.
    (lambda t: xzarr3.open("s3:/bucket/x"), Store, "'s3://bucket/x'?", "pathlib"),
    (lambda t: xzarr3.create_group(Path("s3://b/x")), Store, "'s3://b/x'?", "text"),
    (lambda t: ours("s3:/bucket/x"), Store, "'s3://bucket/x'?", "pathlib"),
    (lambda t: xzarr3.open("s3//bucket/x"), Store, "'s3://bucket/x'?", "URL"),
    (lambda t: xzarr3.open_store("gs:/bucket/x"), Store, "'gs://bucket/x'?", "URL"),
    (lambda t: xzarr3.open("https:/h/x"), Store, "'https://h/x'?", "URL"),
    (lambda t: xzarr3.open("file:/data/x"), Store, "'file:///data/x'?", "URL"),
    (lambda t: xzarr3.open("C:\\data\\x"), Store, "a path of Windows", "'/mnt/c/"),
    (lambda t: xzarr3.open("htps://h/x"), Store, "mean 'https'?", "knows"),
    (lambda t: xzarr3.open("webdav://h/x"), Store, "webdav4", "pip install"),
    (lambda t: away(f"{t.closed}/x"), Store, "connection is refused", "address"),
    (lambda t: away("s3://b/x", endpoint_url=t.closed, allow_http=True, anon=True),
     Store, "the connection is refused", "correct the address"),
    (lambda t: away("s3://b/x", endpoint_url="h:9"), Store, "URL", "https://"),
    (lambda t: away(f"{t.web}/denied/x"), Denied, "403", "credentials"),
    (lambda t: away("s3://b/x", endpoint_url=t.closed, allow_http=True, annon=True),
     Store, "'annon'", "did you mean 'anon'?"),
    (lambda t: away(t.closed, client_opts={}), Store, "'client_opts'", "'client_options'?"),
    (lambda t: xzarr3.open(t.store, storage_options="anon"), WrongType, "'anon'", "{'anon': True}"),
    (lambda t: ours(t.store, storage_options={"anon": True}), Option, "'anon'", "fsync"),
    (lambda t: ours(f"simplecache::{t.web}/x.zarr"), Store, "open_store(...)", "CacheStore("),
    (lambda t: xzarr3.open(""), Store, "the empty path", "'.'"),
    (lambda t: xzarr3.from_zarr(None), WrongType, "NoneType", "a path"),
    # Nodes and their names.
    (lambda t: xzarr3.open_group(t.store, "t2m"), WrongNode, "array, not", "open_array"),
    (lambda t: xzarr3.open_group(f"{t.store}/t2m"), WrongNode, "array, not", "store.zarr'"),
    (lambda t: ours(f"{t.store}/t2m"), WrongNode, "take 't2m' of the group", "zarr'"),
    (lambda t: ours(t.store, group="t2m"), WrongNode, "take 't2m'", "'/'"),
    (lambda t: xzarr3.open_array(t.store), WrongNode, "group, not", "open_group()"),
    (lambda t: xzarr3.from_zarr(t.store), WrongNode, "the path of an array", "'t2m'"),
    (lambda t: xzarr3.open_group(t.store, mode="r+").require_group("t2m"), WrongNode, "'/t2m'", "choose"),
    (lambda t: t.group["t2"], NotFound, "no array or group 't2'", "mean 't2m'?"),
    (lambda t: t.group["T2M"], NotFound, "'T2M'", "did you mean 't2m'?"),
    (lambda t: t.group["t2m/x"], NotFound, "'/t2m' is an array", "no nodes"),
    (lambda t: t.group["ocean/x"], NotFound, "'ocean/x'", "has: 't2m'"),
    (lambda t: xzarr3.open_array(t.store, "t2n"), NotFound, "'/t2n'", "'t2m'?"),
    (lambda t: xzarr3.from_zarr(t.store, "t2n"), NotFound, "'/t2n'", "'t2m'?"),
    (lambda t: ours(t.store, group="forecast"), NotFound, "'/forecast'", "has"),
    (lambda t: xzarr3.open_group(t.store, mode="r+").__delitem__("t2n"), NotFound, "'t2n'", "'t2m'?"),
    (lambda t: t.group[0], xzarr3.InvalidKeyError, "not a path of a node: 0", "a string"),
    (lambda t: t.group.t2m, AttributeError, "'t2m'", "group['t2m']"),
    (lambda t: t.group.create_aray, AttributeError, "aray'", "n 'create_array'?"),
    (lambda t: xzarr3.codecs.Zstd, AttributeError, "'Zstd'", "did you mean 'ZstdCodec'?"),
    (lambda t: xzarr3.LoggingStore, AttributeError, "'LoggingStore'", "use trace(log=True)"),
    (lambda t: xzarr3.open_gruop, AttributeError, "'open_gruop'", "'open_group'?"),
    (lambda t: t.group["t2m"].resize((1, 1, 1)), Store, "read-only", "mode='r+'"),
    (lambda t: t.group.attrs.update(a=1), Store, "read-only", "mode='r+'"),
    (lambda t: xzarr3.create_group(t.path("notes.txt")), Store, "notes.txt'", "one is a file"),
    (lambda t: xzarr3.to_zarr(t.values, t.path("notes.txt")), Store, "is a file", "another path"),
    (lambda t: xzarr3.create_array(t.store, "t2m/x", shape=1, dtype="i1"),
     WrongNode, "'/t2m' is an array", "below a group"),
    (lambda t: t.array.read_chunk((5, 5)), Selection, "(2, 4) chunks", "from 0"),
    (lambda t: xzarr3.create_group(t.store), FileExistsError, "exists", "overwrite"),
    (lambda t: written(t, t.dataset), FileExistsError, "not empty", "mode 'w'"),
    (lambda t: xzarr3.open(t.store, mode="rw"), Argument, "mode='rw'", "'r+'"),
    (lambda t: ours(t.store, mode="w"), Argument, "mode='w'", "'r'"),
    (lambda t: xzarr3.open(xzarr3.MemoryStore({"zarr.json": b'{"zarr_format": 3'})),
     Document, "'zarr.json'", "truncated"),
    (lambda t: xzarr3.open(xzarr3.MemoryStore({"zarr.json": b'{"zarr_format": 4, "node_type": "group"}'})),
     Document, "found 4", "accepted: 3"),
    # Arrays.
    (lambda t: create(dtype="int61"), Extension, "'int61'", "did you mean 'int64'?"),
    (lambda t: create(dtype=None), Document, "'dtype'", "or 'data'"),
    (lambda t: create(shape=(-1, 2)), Document, "shape[0]", "found -1"),
    (lambda t: create(shape=3, dimension_names="time"), Document, "1 dimension; found 'time'", "a list of"),
    (lambda t: create(shape=3, chunks=(2, 2)), Document, "1 dimension; found (2, 2)", "such as (3,)"),
    (lambda t: xzarr3.to_zarr(xr.Dataset(attrs={1: 2}), memory()), Document, "found 1", ".attrs.pop(1)"),
    (lambda t: create(shape=(1.5, 2)), Document, "'shape'", "integers"),
    (lambda t: create(chunks="auto2"), Document, "'auto2'", "a shape"),
    (lambda t: create(chunks={"x": 5}), Document, "{'x': 5}", "such as (10"),
    (lambda t: create(chunks=(0, 5)), Document, "chunks[0]", "at least 1"),
    (lambda t: create(chunks=((3, 3), 20)), Document, "to 6", "at least 10"),
    (lambda t: create(chunks=(3, 3), shards=(10, 20)), Document, "not a multiple", "try shards=(9, 18)"),
    (lambda t: create(chunks=(5, 5), shards=(2, 2)), Document, "not a multiple", "try shards=(5, 5)"),
    (lambda t: create(chunks=(5, 5), shards=(10, 20), zarr_format=2), Document, "format 2", "no shards"),
    (lambda t: create(compressors="zlib"), Extension, "'zlib'", "n 'numcodecs.zlib'?"),
    (lambda t: create(compressors="lz4"), Extension, "'lz4'", "'numcodecs.lz4'?"),
    (lambda t: create(compressors="jpeg2k"), Extension, "install the package", "register_codec"),
    (lambda t: create(compressors=5), Document, "'compressors': not a codec; found 5", "its name"),
    (lambda t: create(filters="bitruond"), Extension, "field 'filters.name'", "mean 'bitround'?"),
    (lambda t: create(serializer=[None]), Document, "'serializer': not a codec; found [None]", "its name"),
    (lambda t: create(compressors={"name": "zstd", "configuration": {"level": 99}}),
     Document, "field 'compressors.configuration.level'", "found 99; accepted: an integer from "),
    (lambda t: create(order="K"), Document, "'K'", "'C', 'F'"),
    (lambda t: create(attributes={"a": {1}}), Document, "attributes.a", "JSON"),
    (lambda t: create().attrs.__setitem__("a", {1}), Document, "attributes.a", "JSON"),
    (lambda t: create().set(0, "x"), DataType, "'float32'", "<U1"),
    (lambda t: create(dtype="i4").set(0, np.nan), DataType, "'int32'", "nan"),
    (lambda t: create(dtype="i1").set(0, 300), DataType, "'int8'", "300"),
    (lambda t: t.array[10], Selection, "10 is out of bounds", "-10 to 9"),
    (lambda t: t.array.oindex[[0, 11]], Selection, "11 is out", "-10 to 9"),
    (lambda t: t.array[1.5], Selection, "float", "integers"),
    (lambda t: t.array.mean(), AttributeError, "'mean'", "read it first, as in array[...].mean"),
    (lambda t: t.array["x"], Selection, "str", "slices"),
    (lambda t: t.array[::0], Selection, "zero", "slice(None, None, 0)"),
    (lambda t: t.array.vindex[[0, 1], [1, 2, 3]], Selection, "(3,)", ".oindex"),
    (lambda t: t.array[np.ones((3, 3), bool)], Selection, "(3, 3)", "(10, 20)"),
    (lambda t: t.array.get(out=np.zeros(3)), Selection, "float32", "(3,)"),
    (lambda t: t.array.get(threads=0), Argument, "threads=0", "at least 1"),
    (lambda t: t.array.resize(5), Selection, "(10, 20)", "pass 2 lengths"),
    (lambda t: t.array.append(np.ones((3, 1)), axis=1), Selection, "(3, 1)", "(10, n)"),
    (lambda t: t.array.append(np.zeros((1, 20)), axis=5), Selection, "axis 5", "-2 to 1"),
    (lambda t: xzarr3.store(np.zeros(3), t.array), WrongType, "ndarray", "array[...]"),
    (lambda t: xzarr3.store(da.zeros(3), "x"), WrongType, "into str", "open_array("),
    (lambda t: xzarr3.store(da.zeros(3), t.array), Selection, "(3,)", "regions="),
    (lambda t: xzarr3.from_zarr(t.array, chunks="unit"), Argument, "'unit'", "'units'"),
    # Datasets.
    (lambda t: written(t, t.more, append_dim="tiem"), Argument, "'tiem'", "did you mean 'time'?"),
    (lambda t: written(t, t.more.isel(lat=slice(3)), append_dim="time"),
     Argument, "'lat' has 3 here and 6 in the store", ".reindex_like()"),
    (lambda t: written(t, t.more.assign_coords(lat=t.more.lat + 1), append_dim="time"),
     Argument, "'lat' at [0] is -74.0 here and -75.0 in the store", ".interp_like()"),
    (lambda t: written(t, t.more, prepend_dim="time"),
     Argument, "though the labels increase", "prepend those that precede"),
    (lambda t: written(t, t.more, prepend_dim="time", mode="a"), Argument, "mode='a'", "leave mode out"),
    (lambda t: written(t, t.more[["t2m"]], append_dim="time"), Argument, "'pr'", "append all"),
    (lambda t: written(t, t.more.assign(x=t.more.t2m), append_dim="time"), Argument, "'x'", "mode='a'"),
    (lambda t: written(t, t.more, append_dim="time", encoding={"t2m": {"dtype": "i2"}}),
     Argument, "'t2m' already exists", "leave it out"),
    (lambda t: written(t, t.more, append_dim="time", mode="w"), Argument, "mode='w'", "leave mode out"),
    (lambda t: written(t, t.more.assign(t2m=t.more.t2m.astype(str)), append_dim="time"),
     Argument, "Mismatched dtypes", ".astype()"),
    (lambda t: written(t, t.more, region="auto"),
     Unknown, "2001-01-01 00:00:00, 2001-02-01", "has 12 from 2000-01-01 00:00:00 to 2000-12-01"),
    (lambda t: written(t, t.dataset.isel(lat=[0, 2]), region="auto"), Argument, "[0, 2]", ".sortby('lat')"),
    (lambda t: written(t, t.values.isel(time=slice(2)), region={"time": slice(3)}),
     Argument, "'time' has 2 here and 3 in the region", "slice(0, 2)"),
    (lambda t: written(t, t.values.isel(time=slice(2)), region={"time": slice(11, 13)}),
     Argument, "'time' has 2 here and 1 in the region", "append_dim"),
    (lambda t: written(t, t.values, region={"tiem": slice(12)}), Argument, "'tiem'", "mean 'time'?"),
    (lambda t: written(t, t.values.isel(time=[0]), region={"time": 0}),
     WrongType, "slice objects", "{'time': slice(0, 1)}"),
    (lambda t: written(t, t.values, region={"time": slice(0, 12, 2)}), Argument, "step", "each run"),
    (lambda t: written(t, t.values, region={"time": slice(12)}, append_dim="time"),
     Argument, "in both", "leave it out of ``region``"),
    (lambda t: written(t, t.dataset, region={"time": slice(12)}), Argument, "in common", ".drop_vars("),
    (lambda t: xzarr3.to_zarr(t.values, t.path("stor.zarr"), region={"time": slice(12)}),
     NotFound, "'stor.zarr'", "'store.zarr'?"),
    (lambda t: written(t, t.values, region=[0]), WrongType, "a dict", "'auto'"),
    (lambda t: written(t, t.dataset.isel(lat=slice(3)), mode="a"), Argument, "'lat' has 3 here", "mode='w'"),
    (lambda t: written(t, t.dataset.rename(lat="y"), mode="a"), Argument, "'y'", ".rename()"),
    (lambda t: written(t, t.dataset.assign(x=1), mode="r+"), Argument, "['x']", "``mode='a'``"),
    (lambda t: written(t, t.dataset, mode="x"), Argument, "mode='x'", "'w-'"),
    (lambda t: xzarr3.to_zarr(np.zeros(3), memory()), WrongType, "ndarray", "create_array"),
    (lambda t: encoded(t, {"t2n": {}}), Unknown, "'t2n'", "mean 't2m'?"),
    (lambda t: encoded(t, {"chunks": 5}), Unknown, "by variable", "{'t2m': {'ch"),
    (lambda t: encoded(t, {"t2m": "zstd"}), WrongType, "'zstd'", "dictionary"),
    (lambda t: encoded(t, {"t2m": {"scale_facor": 1}}), Argument, "'scale_facor'", "'scale_factor'?"),
    (lambda t: encoded(t, {"t2m": {"dtype": "int61"}}), WrongType, "'int61'", "did you mean 'int64'?"),
    (lambda t: encoded(t, {"time": {"units": "days after 2000"}}), Argument, "'time'", "'days since 2000"),
    (lambda t: encoded(t, {"t2m": {"chunks": (1, 6)}}),
     Document, "'/t2m', field 'chunks'", "3 dimensions; found (1, 6)"),
    (lambda t: encoded(t, {"t2m": {"chunks": (5, 3, 3), "shards": (12, 6, 8)}}),
     Document, "'/t2m'", "try shards=(10, 6, 6)"),
    (lambda t: encoded(t, {"t2m": {"compressors": "ztsd"}}), Extension, "'/t2m'", "mean 'zstd'?"),
    (lambda t: xzarr3.to_zarr(t.dataset.assign(o=("time", [object()] * 12)), memory()),
     Argument, "'o'", ".astype("),
    (lambda t: xzarr3.to_zarr(t.dataset.rename(t2m="a/b"), memory()), Argument, "'a/b'", ".rename()"),
    (lambda t: written(t, t.more, append_dim=["time"]), Argument, "['time']", "existing"),
    (lambda t: ours(t.store, group=1), xzarr3.InvalidKeyError, "not a path of a node: 1", "a string"),
    (lambda t: ours(t.store, keep_variables=1), WrongType, "1 names no variables", "accepted"),
    (lambda t: xzarr3.open_mfdataset(memory()), WrongType, "MemoryStore", "accepted: stores"),
    (lambda t: xzarr3.open_mfdataset([t.store], concat_dim=1, combine="nested"),
     Argument, "concat_dim=1", "names of dimensions"),
    (lambda t: encoded(t, 1), WrongType, "encoding=1", "accepted"),
    (lambda t: xzarr3.store(None, create()), WrongType, "NoneType", "accepted: dask arrays"),
    (lambda t: xzarr3.advise(t.dataset, access="series"), Selection, "'series'", "weights by"),
    (lambda t: xzarr3.advise(t.dataset, shape=3), WrongType, "leave shape= and dtype= out", "data="),
    (lambda t: xzarr3.advise(t.dataset, dims=["time"]), Argument, "dims=['time']", "3 names"),
    (lambda t: xzarr3.advise(shape=1.5, dtype="f4"), Document, "field 'shape'", "found 1.5"),
    (lambda t: xzarr3.open_store(t.store, mode="w"), Argument, "mode='w'", "accepted: 'r', 'r+', 'a'"),
    (lambda t: xzarr3.open_dataset(t.store, chunk_cache="much"), Argument, "chunk_cache='much'", "'64 MiB'"),
    (lambda t: xzarr3.advise(t.dataset, target=["s3"]), Argument, "['s3']", "or a store"),
    (lambda t: ours(t.store, missing="eror"), Argument, "'eror'", "'error'?"),
    (lambda t: written(t, t.more, encoding=1, append_dim="time"),
     WrongType, "encoding=1", "accepted: for each"),
    (lambda t: encoded(t, {"time": {"calendar": 5}}), Argument, "'time'", "cannot be encoded"),
    (lambda t: xzarr3.drop(t.store, time=slice(None, [])), Argument, "slice(None, [], ", "label"),
    (lambda t: xzarr3.drop(t.store, ["time"]), WrongType, "indexers=['time']", "a mapping"),
    (lambda t: xzarr3.open_mfdataset([t.store], drop_variables=1), WrongType, "1 names no", "list"),
    (lambda t: xzarr3.from_zarr(t.array, name=5), WrongType, "name=5", "a string or None"),
    (lambda t: xzarr3.from_zarr(t.array, chunks=1.5), Argument, "chunks=1.5", "shape (10, 20)"),
    (lambda t: xzarr3.batches(t.array, 5, 2), Selection, "samples=5", "a list of selections"),
    (lambda t: xzarr3.config.set([1]), WrongType, "[1]", "a mapping of names to values"),
    (lambda t: xzarr3.LocalStore(None), WrongType, "not a path: None", "pathlib.Path"),
    (lambda t: xzarr3.MemoryStore([1]), WrongType, "not a store: [1]", "a dict"),
    (lambda t: memory().put("a", None), WrongType, "key 'a'", "erase()"),
    (lambda t: memory().put("a", 5), WrongType, "cannot store 5", "a list of bytes"),
    (lambda t: memory().get("a", 5), xzarr3.InvalidRangeError, "not a byte range: 5", "(0, 10)"),
    (lambda t: create().update_attributes(5), WrongType, "no attributes: (5,)", "a mapping"),
    (lambda t: create(storage_transformers=5), Document, "found 5", "its name or its JSON"),
    (lambda t: create(shape=b"x"), Document, "found b'x'", "integers of at least 0"),
    (lambda t: create().append(np.zeros((1, 20)), axis=slice(1)), Selection, "slice(", "-2"),
    (lambda t: xzarr3.open_dataset(t.store, chunks=[1, 6, 8]), WrongType, "chunks=[1, 6, 8]", "a mapping"),
    (lambda t: xzarr3.open_mfdataset([t.store], chunks="10 MB"), WrongType, "chunks='10 MB'", "'grouped'"),
    (lambda t: ours(t.store, store=t.store), WrongType, "store.zarr'; accepted", "a data store of xarray"),
    (lambda t: xzarr3.set_options(thread=3), Unknown, "no option 'thread'", "did you mean 'threads'?"),
    (lambda t: xzarr3.open_dataset(t.store, chunks={"time": -3}),
     Argument, "{'time': -3}", "accepted: positive lengths or sizes, or -1"),
    (lambda t: ours(t.store, nullable="yes"), WrongType, "nullable='yes'", "accepted: True, False"),
    (lambda t: ours(t.store, consolidated="no"), WrongType, "consolidated='no'", "None"),
    (lambda t: written(t, t.dataset, mode="w", resume="no"), WrongType, "resume='no'", "True"),
    (lambda t: xzarr3.create_group(t.store, overwrite="no"), WrongType, "overwrite='no'", "True, False"),
    (lambda t: encoded(t, {"t2m": {"write_empty_chunks": "no"}}),
     WrongType, "'t2m': write_empty_chunks='no'", "True, False, None"),
    *((lambda t, name=name: written(t, t.dataset, mode="w", **{name: "no"}),
       WrongType, f"{name}='no'", "accepted: True, False")
      for name in ("check_labels", "widen_units", "consolidated", "write_empty_chunks", "compute")),
    # Names from elsewhere.
    *((lambda t, name=name: xzarr3.create_array(t.empty, shape=4, dtype="i1", **{name: 1}),
       WrongType, f"create_array() has no argument '{name}'", told) for name, told in ARGUMENTS.items()),
    *((lambda t, name=name: xzarr3.group().create_array("x", shape=4, dtype="i1", **{name: 1}),
       WrongType, f"a group has no argument '{name}'", told) for name, told in [*ARGUMENTS.items()][:-1]),
    (lambda t: create(zlib=True, complevel=9), WrongType, "for 'zlib', 'complevel' use", "{'level': 9}"),
    (lambda t: xzarr3.group().create_array("x", shape=4, dtype="i1", zlib=True, complevel=9),
     WrongType, "for 'zlib', 'complevel' use", "{'level': 9}"),
    (lambda t: xzarr3.group(synchronizer=None), WrongType, "group() has", "leave 'synchronizer' out"),
    (lambda t: xzarr3.open_group("x", cache_attrs=1), WrongType, "open_group() ", "leave 'cache_attrs' out"),
    (lambda t: xzarr3.create_group("x", mode="w"), WrongType, "create_group() has", "overwrite=True"),
    (lambda t: xzarr3.open("x", shape=3), WrongType, "open() has", "create_array() creates"),
    (lambda t: xzarr3.open_array("x", chunk_shape=3), WrongType, "open_array() ", "create_array() creates"),
    (lambda t: xzarr3.open("x", mode="w"), Argument, "mode='w'", "create_array() and create_group() create"),
    (lambda t: xzarr3.from_zarr("x", component="y"), WrongType, "from_zarr() has", "use path="),
    (lambda t: xzarr3.group().create_array("x", shape=4, dtype="i1", zarr_format=2),
     WrongType, "'zarr_format'", "that of the group"),
    (lambda t: xzarr3.open_zarr("x", synchronizer=None), WrongType, "'synchronizer'", "'synchronizer' out"),
    (lambda t: xzarr3.open_dataset("x", drop_variable="t"), WrongType, "'drop_variable'", "drop_variables'?"),
    (lambda t: xzarr3.open_datatree("x", chunk_store=None), WrongType, "open_datatree() ", "in one store"),
    (lambda t: ours("x", consolidate=True), WrongType, "'consolidate'", "did you mean 'consolidated'?"),
    (lambda t: ours("x", chunk=1), WrongType, "open_dataset() has", "did you mean 'chunks'?"),
    (lambda t: xr.open_datatree("x", engine="xzarr3", zarr_version=2),
     WrongType, "open_datatree() has", "use zarr_format="),
    (lambda t: xzarr3.to_zarr(xr.Dataset(), encodng={}), WrongType, "'encodng'", "did you mean 'encoding'?"),
    (lambda t: t.dataset.xzarr3.to_zarr(chunk=3), WrongType, "'chunk'", "encoding={'name': {'chunks': ...}}"),
    (lambda t: xzarr3.copy("x", "y", storage_options={}),
     WrongType, "copy() has", "use source_options=... and target_options=..."),
    (lambda t: xzarr3.check("x", decod="all"), WrongType, "check() has", "did you mean 'decode'?"),
    (lambda t: list(t.group.members(max_dept=1)), WrongType, "members() has", "did you mean 'max_depth'?"),
    (lambda t: xzarr3.advise(acces={}), WrongType, "advise() has", "did you mean 'access'?"),
    (lambda t: xzarr3.zeros(3, fill_value=7), WrongType, "fill_value=7 for", "use full()"),
    (lambda t: t.group.ones("x", shape=1, fill_value=7), WrongType, "fill_value=7 for", "leave it out"),
    (lambda t: xzarr3.from_array(None, data=[1], shape=3), WrongType, "from_array()", "leave shape=... out"),
    *((lambda t, given=given: xzarr3.to_zarr(t.values[["t2m"]], t.empty, encoding={"t2m": given}),
       Argument, "unexpected encoding parameters for variable 't2m'", told)
      for given, told in (
          ({"zlib": True}, "for 'zlib' use compressors={'name': 'gzip', 'configuration': {'level': 5}}; acc"),
          ({"zlib": True, "complevel": 9}, "; for 'zlib', 'complevel' use compressors={'name': 'gzip', "),
          ({"chunksizes": (2,)}, "for 'chunksizes' use chunks="), ({"shuffle": True}, "BloscCodec"),
          ({"fletcher32": True}, "crc32c"))),
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "kind", "first", "second"), MISTAKES, ids=[f"{first} {second}" for *_, first, second in MISTAKES]
)
def test_mistake(things: Things, call: Any, kind: type[Exception], first: str, second: str) -> None:
    error = made(lambda: call(things))
    assert isinstance(error, kind), repr(error)
    assert isinstance(error, xzarr3.Xzarr3Error | AttributeError)
    assert first in str(error)
    assert second in str(error)
    assert not [*things.empty.list()]
    check_manners(error)


@pytest.mark.parametrize(("modules", "extra", "use"), [
    (["obstore", "obstore.store"], "object", lambda: xzarr3.open("https://example.org/x.zarr")),
    (["obstore", "obstore.store"], "object", lambda: xzarr3.open_group("s3://b/x.zarr", mode="a")),
    (["numcodecs.pcodec"], "codecs", lambda: create(serializer="numcodecs.pcodec")),
    (["zfpy"], "codecs", lambda: create(serializer="numcodecs.zfpy")),
    (["zfpy"], "codecs", lambda: create(serializer=xzarr3.codecs.ZfpCodec())),
    (["ml_dtypes"], "ml-dtypes", lambda: create(dtype={"name": "float8_e3m4"})),
])  # fmt: skip
def test_missing_extra(monkeypatch: Any, modules: list[str], extra: str, use: Any) -> None:
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)
    forget()  # An earlier test may have used the data type.
    error = made(use)
    assert isinstance(error, xzarr3.Xzarr3Error)
    assert f"pip install 'xzarr3[{extra}]'" in str(error)
    check_manners(error)


def test_causes_stay_and_all_frames_can_be_had(things: Things, monkeypatch: pytest.MonkeyPatch) -> None:
    run = partial(encoded, things, {"time": {"units": "days after 2000"}})
    short = made(run)
    assert isinstance(short.__cause__, ValueError)
    assert short.__notes__ == [f"raised for variable 'time' of dtype {things.dataset.time.dtype}"]
    monkeypatch.setenv(FULL_TRACEBACK, "1")
    full = made(run)
    assert str(full) == str(short)
    names = [frame.filename for frame in traceback.extract_tb(full.__traceback__)]
    assert len(names) > len(traceback.extract_tb(short.__traceback__)) + MOST_FRAMES
    assert names[-1].endswith("plan.py")


def test_a_defect_keeps_its_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **options: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("xzarr3.commit.create.make_node", broken)
    error = made(lambda: xzarr3.create_group(xzarr3.MemoryStore()))
    assert traceback.extract_tb(error.__traceback__)[-1].name == "broken"


def test_errors_of_an_iteration_are_short(tmp_path: Path) -> None:
    group = xzarr3.create_group(tmp_path)
    group.create_array("a", shape=1, dtype="i1")
    (tmp_path / "a" / "zarr.json").write_bytes(b"{")
    for run in (lambda: list(group.arrays()), lambda: list(group.members()), lambda: group["a"]):
        error = made(run)
        assert "node '/a'" in str(error)
        check_manners(error)


def test_names_from_elsewhere_for_functions_around_others() -> None:
    refused(TypeError, lambda: xzarr3.zeros(3, compressor="zstd"), match="compressors=")
    refused(TypeError, lambda: xr.DataTree().xzarr3.to_zarr(zarr_version=2), match="use zarr_format=")


def test_a_key_that_is_not_there_is_told_without_quotes() -> None:
    error = xzarr3.UnknownNameError("no variable 'a'")
    assert str(error) == "no variable 'a'"
    assert isinstance(error, KeyError)


def test_a_warning_names_the_line_of_the_user(things: Things, tmp_path: Path) -> None:
    shutil.copytree(things.store, tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy" / "t2m" / "c")
    array = xzarr3.open_array(tmp_path / "copy", "t2m", missing="warn")
    with pytest.warns(xzarr3.MissingChunksWarning) as caught:
        array.oindex[0]
    assert caught[0].filename == __file__
