"""The texts of faults that users make, whole, and rules for all texts of the package."""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xzarr3

PACKAGE = Path(xzarr3.__file__).parent


def create(**options: Any) -> xzarr3.Array:
    return xzarr3.create_array(xzarr3.MemoryStore(), **{"shape": (10,), "dtype": "int32", **options})


def group() -> xzarr3.Group:
    made = xzarr3.create_group(xzarr3.MemoryStore())
    made.create_array("temperature", shape=(4, 6), dtype="float32")
    return made


def field() -> xzarr3.Array:
    return create(dtype=[("speed", "f4"), ("angle", "f4")])


def damaged(change: Callable[[bytes], bytes], **options: Any) -> Any:
    array = create(data=np.arange(10, dtype="int32"), shape=None, dtype=None, **options)
    array.store.set("c/0", change(bytes(array.store.get("c/0") or b"")))
    return array[...]


def flipped(data: bytes) -> bytes:
    return data[:1] + bytes([data[1] ^ 1]) + data[2:]


def read_only() -> None:
    made = group()
    xzarr3.open_array(made.store, "temperature", mode="r")[0] = 1


def two_with_one_name() -> None:
    group_ = group()
    group_.create_array("temperature", shape=(1,), dtype="int8")


def to_zarr(**options: Any) -> None:
    from xzarr3.xarray import to_zarr

    store = xzarr3.MemoryStore()
    dataset = xr.Dataset({"tas": ("time", np.arange(4.0))})
    to_zarr(dataset, store)
    to_zarr(dataset, store, **options)


FAULTS: dict[str, tuple[Callable[[], Any], str]] = {
    "data type": (
        lambda: create(dtype="flaot32"),
        "node '/': unknown data type; found 'flaot32'; did you mean 'float32'? accepted: 'float32', "
        "'float6_e3m2fn', 'bool', 'int8', 'int16', 'int32', 'int64', 'uint8', 'uint16', 'uint32' and 33 more",
    ),
    "data type of objects": (
        lambda: create(dtype=object),
        "node '/': numpy's dtype 'object' does not say what the objects are; found dtype('O'); accepted: "
        "'string' for text, 'bytes' for bytes",
    ),
    "fill value": (
        lambda: create(fill_value="cold"),
        "node '/', field 'fill_value': value cannot be held for data type 'int32'; found 'cold'; accepted: "
        "an integer from -2147483648 to 2147483647, without fraction or exponent",
    ),
    "format": (
        lambda: create(zarr_format=4),
        "field 'zarr_format': unknown Zarr format; found 4; accepted: 3, 2, '3-draft'",
    ),
    "shape": (
        lambda: create(shape="large"),
        "node '/', field 'shape': not a shape; found 'large'; accepted: integers of at least 0",
    ),
    "chunk lengths": (
        lambda: create(chunks=(2, 2)),
        "node '/', field 'chunks': the array has 1 dimensions; found (2, 2); accepted: 1 integers or lists "
        "of integers, such as (10,)",
    ),
    "chunks in shards": (
        lambda: create(chunks=(4,), shards=(10,)),
        "node '/', field 'codecs[0].configuration.chunk_shape': shards=(10,) is not a multiple of "
        "chunks=(4,); found [4]; accepted: chunks that divide shards=(10,) evenly; try shards=(8,) or (12,)",
    ),
    "dimension names": (
        lambda: create(dimension_names=["x", "y"]),
        "node '/', field 'dimension_names': the array has 1 dimensions; found ['x', 'y']; accepted: 1 "
        "strings or None",
    ),
    "codec": (
        lambda: create(compressors="gzpi"),
        "node '/', field 'name': unknown codec; found 'gzpi'; did you mean 'gzip'? accepted: 'gzip', "
        "'bitround', 'blosc', 'bytes', 'cast_value', 'conditional', 'crc32c', 'endian', 'n5_default', "
        "'numcodecs.adler32' and 30 more",
    ),
    "codec of format 2": (
        lambda: create(compressors={"id": "zlbi"}, zarr_format=2),
        "node '/', field 'id': unknown codec; found 'zlbi'; did you mean 'zlib'? accepted: 'zlib', "
        "'adler32', 'astype', 'bitround', 'blosc', 'bz2', 'crc32', 'crc32c', 'delta', 'fixedscaleoffset' and "
        "14 more",
    ),
    "setting of a codec": (
        lambda: create(compressors={"name": "gzip", "configuration": {"level": 3, "levl": 3}}),
        "node '/', field 'configuration.levl': codec 'gzip': no such field; found 3; did you mean 'level'? "
        "accepted: 'level'",
    ),
    "value of a setting": (
        lambda: create(compressors={"name": "gzip", "configuration": {"level": 30}}),
        "node '/', field 'configuration.level': codec 'gzip': not a valid value; found 30; accepted: an "
        "integer from 0 to 9",
    ),
    "codec in the wrong place": (
        lambda: create(filters="zstd"),
        "node '/': codec 'zstd' cannot be used here; found 'zstd'; accepted: codecs from arrays to arrays "
        "('filters')",
    ),
    "mode": (
        lambda: xzarr3.open_group(xzarr3.MemoryStore(), mode="q"),
        "mode='q'; accepted: 'r', 'r+', 'a', 'w', 'w-'",
    ),
    "missing chunks": (
        lambda: xzarr3.open_array(group().store, "temperature", missing="erorr"),
        "missing='erorr'; did you mean 'error'? accepted: 'fill', 'warn', 'error'",
    ),
    "store": (
        lambda: xzarr3.open_store(5),
        "not a store: int; accepted: a path, a URL, a Store, a dict of str to bytes, a store, group or array "
        "of zarr-python, the store of an Icechunk session, a store of obstore, a mapper or file system of "
        "fsspec",
    ),
    "store options": (
        lambda: xzarr3.open_store("/data", storage_options={"fsnc": True}),
        "storage_options 'fsnc' have no meaning for '/data'; did you mean 'fsync'? accepted: 'read_only', "
        "'fsync', 'locks'",
    ),
    "region": (
        lambda: to_zarr(region={"tmie": slice(2)}),
        "all keys in ``region`` are not in Dataset dimensions, got ['tmie'] and ['time']; unknown: 'tmie'; "
        "did you mean 'time'? accepted: 'time'",
    ),
    "dimension to append along": (
        lambda: to_zarr(append_dim="tmie"),
        "append_dim='tmie' does not match any existing dataset dimensions {'time': 4}; did you mean 'time'? "
        "accepted: 'time'",
    ),
    "encoding of no variable": (
        lambda: to_zarr(encoding={"tas": {"chunks": 2}, "tsa": {}}),
        "encoding for 'tsa', which is not a variable; did you mean 'tas'? accepted: 'tas'",
    ),
    "setting of an encoding": (
        lambda: to_zarr(encoding={"tas": {"chunk": 2}}),
        "unexpected encoding parameters for variable 'tas': ['chunk']; did you mean 'chunks'? accepted: "
        "'chunks', 'shards', 'compressors', 'filters', 'serializer', 'fill_value', 'chunk_key_encoding', "
        "'write_empty_chunks', 'order', 'dtype' and 7 more",
    ),
    "member": (
        lambda: group()["tempreture"],
        "no array or group 'tempreture' in <xzarr3.Group / of <MemoryStore, 2 keys>>; did you mean "
        "'temperature'? the group has: 'temperature'",
    ),
    "array for a group": (
        lambda: xzarr3.open_group(group().store, "temperature"),
        "'/temperature' of <MemoryStore, 2 keys> is an array, not a group; open it with xzarr3.open_array(), "
        "or take 'temperature' of the group '/' of <MemoryStore, 2 keys>, as with xarray",
    ),
    "consolidated": (
        lambda: xzarr3.open_group(group().store, use_consolidated=True),
        "node '/', field 'consolidated_metadata': the group holds no consolidated metadata; call "
        "consolidate_metadata() first, or open_group() without use_consolidated=True",
    ),
    "existing node": (
        two_with_one_name,
        "an array or group already exists at '/temperature' in <MemoryStore, 2 keys>; pass overwrite=True "
        "to replace it",
    ),
    "index": (
        lambda: group()["temperature"][5],
        "axis 0: index 5 is out of bounds for length 4; accepted: -4 to 3",
    ),
    "too many indices": (
        lambda: group()["temperature"][0, 0, 0],
        "too many indices: 3 for an array of 2 dimensions; give 2 at most",
    ),
    "kind of index": (
        lambda: group()["temperature"].oindex["a"],
        "axis 0: not a basic selection: str; accepted: integers, slices and one Ellipsis",
    ),
    "mask": (
        lambda: group()["temperature"].vindex[np.ones((4, 5), bool)],
        "axis 0: a mask of shape (4, 5) does not fit dimensions of shape (4, 6)",
    ),
    "field": (
        lambda: field()["sped"],
        "array '/' has no field 'sped'; did you mean 'speed'? accepted: 'speed', 'angle'",
    ),
    "values that do not fit": (
        lambda: group()["temperature"].__setitem__(slice(2), np.ones((3, 6))),
        "cannot write values of shape (3, 6) to a selection of shape (2, 6) of array '/temperature'",
    ),
    "append": (
        lambda: group()["temperature"].append(np.ones((1, 5))),
        "cannot append values of shape (1, 5) to array '/temperature' of shape (4, 6) along axis 0; give "
        "values of shape (n, 6)",
    ),
    "key": (
        lambda: xzarr3.MemoryStore().get("/a"),
        "invalid key '/a'; accepted: names separated by single '/', relative, none of them empty, '.' or "
        "'..'",
    ),
    "read-only array": (
        read_only,
        "'/temperature' of <MemoryStore, 2 keys> is read-only; open it with mode='r+'",
    ),
    "corrupt chunk": (
        lambda: damaged(flipped, compressors="crc32c"),
        "key 'c/0', chunk (0,), codec 'crc32c': chunk cannot be decoded: checksum mismatch: stored is "
        "0x2238a83b, the data have 0x02c6a945",
    ),
    "truncated chunk": (
        lambda: damaged(lambda data: data[:7], compressors=None),
        "key 'c/0', chunk (0,), codec 'bytes': chunk cannot be decoded: found 7 bytes, expected 40 for "
        "shape (10,) of 'int32'",
    ),
    "truncated shard": (
        lambda: damaged(lambda data: data[:7], chunks=(5,), shards=(10,)),
        "key 'c/0', chunk (0,), codec 'sharding_indexed': chunk cannot be decoded: the shard is truncated: "
        "found 7 bytes, its index alone takes 36",
    ),
    "threads": (
        lambda: xzarr3.set_options(max_document_bytes=0),
        "field 'max_document_bytes': not a size; found 0; accepted: a positive number of bytes",
    ),
    "bucket": (
        lambda: xzarr3.open_store("s3://"),
        "not a URL of an object store; accepted: 's3://', 'gs://' or 'az://', a bucket or container and "
        "names, none of them empty, '.' or '..'; 'https://' with a host, a port and a path, in which '?' is "
        "'%3F' and '#' is '%23'; signatures of requests are given as "
        "client_options={'default_headers': {...}}",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_text(fault: str) -> None:
    run, text = FAULTS[fault]
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the text is compared whole
        run()
    assert str(caught.value).strip('"').replace("\\\\", "\\") == text


def strings() -> Iterator[str]:
    """The strings of the package that are no docstrings, with braces for what f-strings insert."""
    for path in sorted(PACKAGE.rglob("*.py")):
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


def test_accepted_precedes_no_advice() -> None:
    verbs = (
        "call|choose|correct|create|give|install|leave|make|open|pass|pip|raise|read|repeat|use|wait|write"
    )
    assert [text for text in strings() if re.search(rf"accepted: ({verbs})\b(?!=)", text)] == []


def test_plain_words() -> None:
    assert [text for text in strings() if re.search(r"\b(somebody|someone|whoever)\b", text)] == []
