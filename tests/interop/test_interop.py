"""What is written here is read by other libraries, and the reverse, bit for bit, in versions 3 and 2."""

import itertools
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
from _conformance import refused
from _peers import (
    BIG,
    CRC32C,
    DATA,
    DTYPES,
    LIBRARIES,
    LITTLE,
    PEERS,
    SAMPLE_VALUES,
    SAMPLES,
    ZSTD,
    AnyArray,
    Codec,
    Fill,
    Gdal,
    GdalBindings,
    Library,
    Request,
    Xzarr3,
    blosc,
    codec,
    find_gdal,
    sharding,
)

import xzarr3

pytestmark = pytest.mark.filterwarnings("ignore:::(zarr|tests)")  # zarr-python warns of much.

DOCUMENTS = {"zarr.json", ".zarray", ".zattrs", ".zgroup"}
DIRECTIONS = [pair for peer in PEERS for pair in (("xzarr3", peer), (peer, "xzarr3"))]
Direction = tuple[Library, Library]


@cache
def library(name: str) -> Any:
    try:
        return LIBRARIES[name]()
    except ImportError as error:
        pytest.skip(f"{name} is not installed: {error}")


def zarr_python() -> Any:
    return library("zarr-python").module


@pytest.fixture(params=DIRECTIONS, ids="-to-".join)
def direction(request: pytest.FixtureRequest) -> Direction:
    writer, reader = request.param
    return library(writer), library(reader)


@pytest.fixture(params=PEERS)
def peer(request: pytest.FixtureRequest) -> Library:
    return library(request.param)


def check_possible(request: Request, writer: Library | None, reader: Library | Gdal | None) -> None:
    """Skip what one of the libraries is known not to do, and say why."""
    for reason in (writer and writer.cannot_write(request), reader and reader.cannot_read(request)):
        if reason:
            pytest.skip(reason)


def noise(request: Request, seed: int = 0) -> AnyArray:
    return random(request.native, request.shape, seed)


def random(dtype: np.dtype[Any], shape: tuple[int, ...], seed: int = 0) -> AnyArray:
    """Values of random bits where the data type permits any: NaNs of any payload, infinities, subnormals."""
    rng = np.random.default_rng(seed)
    if dtype.names is not None:
        values = np.zeros(shape, dtype)
        for at, name in enumerate(dtype.names):
            values[name] = random(dtype[name], shape, seed + at)
        return values
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind == "U":
        words = np.array(["", "a", "é", "日本", "😀x", "abcdef"], dtype)
        return words[rng.integers(0, len(words), shape)]
    return np.frombuffer(rng.bytes(math.prod(shape) * dtype.itemsize), dtype).reshape(shape).copy()


def assert_same_bits(found: Any, wanted: AnyArray) -> None:
    """Compare shape, dtype (of version 2 in any byte order) and every bit."""
    found = np.asarray(found)
    assert found.shape == wanted.shape
    if wanted.dtype.kind in "TO":
        assert found.tolist() == wanted.tolist()
        return
    assert found.dtype in (wanted.dtype, wanted.dtype.newbyteorder("="))
    found = found.astype(wanted.dtype)
    if found.tobytes() != wanted.tobytes():
        octets = [np.frombuffer(array.tobytes(), np.uint8) for array in (found, wanted)]
        differing = np.flatnonzero(octets[0] != octets[1]) // wanted.dtype.itemsize
        where = [tuple(map(int, np.unravel_index(at, wanted.shape))) for at in np.unique(differing)[:5]]
        pytest.fail(f"differ at {where}: {[found[at] for at in where]}, not {[wanted[at] for at in where]}")


def stored(path: Path) -> dict[str, bytes]:
    files = {file.relative_to(path).as_posix(): file for file in path.rglob("*") if file.is_file()}
    return {key: file.read_bytes() for key, file in files.items() if not DOCUMENTS & {key.rpartition("/")[2]}}


def keys(path: Path) -> set[str]:
    return set(stored(path))


def document(path: Path, name: str = "zarr.json") -> Any:
    return json.loads((path / name).read_text())


def layouts(request: Request) -> dict[str, Request]:
    """The request with each of the codec chains, for chunks of 4 x 5, in shards of 8 x 10 if any."""
    swap, checked = codec("transpose", order=[1, 0]), codec("zstd", level=3, checksum=True)
    size = request.native.itemsize
    plain: dict[str, tuple[Codec, ...]] = {
        "little": (LITTLE,), "big": (BIG,), "gzip": (LITTLE, codec("gzip", level=5)), "zstd": (LITTLE, ZSTD),
        "zstd-checksum": (LITTLE, checked), "zstd-fast": (LITTLE, codec("zstd", level=-5, checksum=False)),
        "blosc": (LITTLE, blosc("lz4", "shuffle", size)), "crc32c": (LITTLE, CRC32C),
        "gzip-crc32c-zstd": (LITTLE, codec("gzip", level=1), CRC32C, ZSTD), "transpose": (swap, LITTLE),
        "transpose-big-blosc": (swap, BIG, blosc("zstd", "bitshuffle", size)),
    }  # fmt: skip
    sharded: dict[str, tuple[Codec, ...]] = {
        "shard": (sharding((4, 5), LITTLE, ZSTD),),
        "shard-start": (sharding((4, 5), LITTLE, codec("gzip", level=1), location="start"),),
        "shard-uncompressed": (sharding((4, 5), BIG, CRC32C),),
        "shard-index-unchecked": (sharding((4, 5), LITTLE, index=(LITTLE,)),),
        "shard-index-big": (sharding((4, 5), LITTLE, index=(BIG, CRC32C), location="start"),),
        "shard-inner-transpose": (sharding((4, 5), swap, LITTLE, blosc("lz4", "shuffle", size)),),
        # zarr-python wants inner chunks that also divide the shard before it is transposed.
        "shard-transposed": (swap, sharding((2, 2), LITTLE, checked)),
        "shard-compressed": (sharding((4, 5), LITTLE, index=(LITTLE,)), codec("gzip", level=1)),
        "shard-nested": (sharding((4, 10), sharding((2, 5), LITTLE, ZSTD)),),
        "shard-nested-start": (sharding((4, 10), sharding((2, 5), LITTLE, ZSTD, location="start")),),
    }
    return {
        **{name: replace(request, codecs=codecs) for name, codecs in plain.items()},
        **{name: replace(request, codecs=codecs, chunks=(8, 10)) for name, codecs in sharded.items()},
    }


LAYOUTS = tuple(layouts(Request()))
SOME_LAYOUTS = ("big", "zstd", "transpose-big-blosc", "shard", "shard-start", "shard-nested")


def turned(order: tuple[int, ...], where: str) -> Request:
    """Three dimensions in an order that, unlike one of two, need not be its own inverse."""
    swap = codec("transpose", order=list(order))
    codecs: dict[str, tuple[Codec, ...]] = {
        "chunks": (swap, LITTLE),
        "within-shards": (sharding((2, 3, 1), swap, LITTLE),),
        "around-shards": (swap, sharding((2, 2, 2), LITTLE)),
    }
    return Request(shape=(5, 7, 4), chunks=(4, 6, 2), dtype="int32", codecs=codecs[where])


TURNED = ("chunks", "within-shards", "around-shards")
CNAMES, SHUFFLES = ("blosclz", "lz4", "lz4hc", "zlib", "zstd"), ("noshuffle", "shuffle", "bitshuffle")
SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((), ()), ((1,), (1,)), ((3,), (8,)), ((0,), (4,)), ((3, 0, 2), (2, 2, 2)),
    ((2, 9, 4, 5), (1, 4, 3, 5)), ((1, 3, 1, 2, 1, 2), (1, 2, 1, 2, 1, 1)),
]  # fmt: skip


def shaped(shape: tuple[int, ...], chunks: tuple[int, ...], sharded: bool = False) -> Request:
    if not sharded:
        return Request(shape=shape, chunks=chunks)
    outer = tuple(2 * length for length in chunks)
    return Request(shape=shape, chunks=outer, codecs=(sharding(chunks, LITTLE, ZSTD),))


def named(*parts: Any) -> str:
    return "-".join("x".join(map(str, part)) if isinstance(part, tuple) else str(part) for part in parts)


OF_LAYOUTS = {
    named(layout, dtype): request
    for dtype in DTYPES
    for layout, request in layouts(Request(dtype=dtype)).items()
}
OF_BLOSC = {
    named("blosc", cname, shuffle, dtype): Request(
        shape=(4000,), chunks=(1500,), dtype=dtype,
        codecs=(LITTLE, blosc(cname, shuffle, np.dtype(dtype).itemsize)),
    )
    for cname, shuffle, dtype in itertools.product(CNAMES, SHUFFLES, ("uint8", "float32", "complex128"))
}  # fmt: skip
OF_SHAPES: dict[str, Request] = {
    **{
        named("transpose", order, where): turned(order, where)
        for order in ((2, 1, 0), (2, 0, 1), (1, 2, 0))
        for where in TURNED
    },
    **{
        named("shape", shape, "shards" if sharded else "chunks"): shaped(shape, chunks, sharded)
        for shape, chunks in SHAPES
        for sharded in (False, True)
    },
}
REQUESTS = OF_LAYOUTS | OF_BLOSC | OF_SHAPES
WAYS = [
    # All pairs of layout and type, of layout and direction, and of type and direction; so with blosc.
    *((name, at // len(LAYOUTS) + at % len(LAYOUTS)) for at, name in enumerate(OF_LAYOUTS)),
    *((name, at // 9 + at // 3 % 3 * 2 + at % 3 * 3) for at, name in enumerate(OF_BLOSC)),
    *itertools.product(OF_SHAPES, range(len(DIRECTIONS))),
]
"""Requests, each with the direction that it goes, or from which on one is looked for that it can go.

Not all requests in all directions: of 113 mutants of codecs, data types, formats and io, these catch the 90
that all would.
"""


def values_for(request: Request) -> AnyArray:
    """Random bits, of which some chunks, inner chunks and a shard are not stored, or which repeat."""
    if request.fill != Request().fill:
        values = np.full(request.shape, request.fill.scalar(request.dtype))
        values[5, 6] = 1  # The rest of its chunk is the fill value.
        return values
    if request.shape in ((4000,), (40, 100)):
        few = replace(request, shape=(*request.shape[:-1], request.shape[-1] // 100))
        return np.repeat(noise(few), 100, axis=-1)
    values = noise(request)
    if request.shape == Request().shape:
        values[0:8, 5:10] = values[8:, 10:] = 0
    return values


def way(request: Request, first: int) -> Direction:
    """The first direction from this one on that both libraries can go."""
    for at in range(len(DIRECTIONS)):
        writer, reader = map(library, DIRECTIONS[(first + at) % len(DIRECTIONS)])
        if not (writer.cannot_write(request) or reader.cannot_read(request)):
            return writer, reader
    raise AssertionError("nobody can")


@pytest.mark.parametrize(("name", "first"), WAYS)
def test_arrays(name: str, first: int, tmp_path: Path) -> None:
    request = REQUESTS[name]
    writer, reader = way(request, first)
    values = values_for(request)
    writer.save(tmp_path / "a", request, values)
    if request.shape == (4000,):
        assert (tmp_path / "a/c/0").stat().st_size < 1500 * values.itemsize / 2
    assert_same_bits(reader.read(tmp_path / "a"), values)
    if values.shape == Request().shape:
        assert_same_bits(reader.read(tmp_path / "a", np.s_[3:9, 6]), values[3:9, 6])


KEYS = {
    ("default", "/"): {"c/0/0", "c/2/2", "c/0/2", "c/2/0"},
    ("default", "."): {"c.0.0", "c.2.2", "c.0.2", "c.2.0"},
    ("v2", "/"): {"0/0", "2/2", "0/2", "2/0"},
    ("v2", "."): {"0.0", "2.2", "0.2", "2.0"},
}


@pytest.mark.parametrize(("name", "separator"), KEYS)
def test_chunk_keys(direction: Direction, name: str, separator: str, tmp_path: Path) -> None:
    writer, reader = direction
    request = Request(keys={"name": name, "configuration": {"separator": separator}})
    values = noise(request)
    values[4:8] = values[:, 5:10] = 0
    scalar = replace(request, shape=(), chunks=())
    of_scalar = {"default": {"c"}, "v2": {"0"}}[name]
    cases = ((request, values, KEYS[name, separator]), (scalar, np.array(1.5, "f4"), of_scalar))
    for at, (made, wanted, named) in enumerate(cases):
        path = tmp_path / str(at)
        writer.save(path, made, wanted)
        assert keys(path) == named
        assert_same_bits(reader.read(path), wanted)


@pytest.mark.parametrize("layout", SOME_LAYOUTS)
def test_absent_chunks_are_not_stored(direction: Direction, layout: str, tmp_path: Path) -> None:
    writer, reader = direction
    request = layouts(Request(dtype="uint16", fill=Fill(258, "0102"), shape=(16, 20)))[layout]
    values = np.full(request.shape, 258, "uint16")
    writer.save(tmp_path / "a", request, values)
    assert keys(tmp_path / "a") == set()
    assert_same_bits(reader.read(tmp_path / "a"), values)
    values[8:10, 10:13] = [[1], [2]]
    writer.write(tmp_path / "a", np.s_[8:10, 10:13], values[8:10, 10:13])
    (key,) = keys(tmp_path / "a")
    index = 2 * 2 * 16 + 4
    assert (tmp_path / "a" / key).stat().st_size < index + 4 * 5 * 2 + 80
    assert_same_bits(reader.read(tmp_path / "a"), values)


FILLS = [
    ("bool", Fill(True, "01")), ("int8", Fill(-128, "80")), ("int16", Fill(-32767, "8001")),
    ("int64", Fill(-(2**63), "8000000000000000")), ("uint32", Fill(2**32 - 1, "ffffffff")),
    ("uint64", Fill(2**64 - 1, "ffffffffffffffff")), ("float16", Fill("NaN", "7e00")),
    ("float16", Fill("-Infinity", "fc00")), ("float16", Fill("0x7e01", "7e01")),
    ("float32", Fill("NaN", "7fc00000")), ("float32", Fill("0x7fc00001", "7fc00001")),
    ("float32", Fill("0xffc00000", "ffc00000")), ("float32", Fill("Infinity", "7f800000")),
    ("float32", Fill("-Infinity", "ff800000")), ("float32", Fill(-0.0, "80000000")),
    ("float32", Fill(9.969209968386869e36, "7cf00000")), ("float32", Fill(1.401298464324817e-45, "00000001")),
    ("float64", Fill("NaN", "7ff8000000000000")), ("float64", Fill("0x7ff0000000000001", "7ff0000000000001")),
    ("float64", Fill("Infinity", "7ff0000000000000")), ("float64", Fill(-0.0, "8000000000000000")),
    ("float64", Fill(0.1, "3fb999999999999a")), ("complex64", Fill(["NaN", -0.0], "7fc0000080000000")),
    ("complex64", Fill(["0x7fc00001", "Infinity"], "7fc000017f800000")),
    ("complex128", Fill([1.5, "-Infinity"], "3ff8000000000000fff0000000000000")),
]  # fmt: skip


@pytest.mark.parametrize("layout", ["zstd", "shard"])
@pytest.mark.parametrize(("dtype", "fill"), FILLS, ids=lambda v: str(v.json) if isinstance(v, Fill) else v)
def test_fill_values(direction: Direction, dtype: str, fill: Fill, layout: str, tmp_path: Path) -> None:
    writer, reader = direction
    request = layouts(Request(dtype=dtype, fill=fill))[layout]
    check_possible(request, writer, reader)
    writer.create(tmp_path / "a", request)
    if isinstance(writer, Xzarr3):
        found = document(tmp_path / "a")["fill_value"]
        assert (str(found), type(found)) == (str(fill.json), type(fill.json))
    values = np.full(request.shape, fill.scalar(dtype))
    assert_same_bits(reader.read(tmp_path / "a"), values)
    values[5, 6] = 1  # The rest of its chunk is the fill value.
    writer.write(tmp_path / "a", np.s_[5, 6], values[5, 6])
    assert_same_bits(reader.read(tmp_path / "a"), values)


ATTRIBUTES = {
    "units": "K", "nested": {"list": [1, 2.5, None, True, []], "empty": {}},
    "température": 'µ \u2028 "quoted"\n', "large": 2**53, "small": -1e-300,
}  # fmt: skip


@pytest.mark.parametrize("names", [None, ("lat", "lon"), ("lat", None), (None, None)], ids=str)
def test_names_and_attributes(direction: Direction, names: Any, tmp_path: Path) -> None:
    writer, reader = direction
    request = Request(names=names, attributes=ATTRIBUTES)
    writer.create(tmp_path / "a", request)
    found = reader.describe(tmp_path / "a")
    assert (found.shape, found.dtype, found.chunks) == (request.shape, request.native, request.chunks)
    assert found.attributes == ATTRIBUTES
    assert (found.names or (None, None)) == (names or (None, None))


def test_attributes_that_json_lacks_are_read(tmp_path: Path) -> None:
    attributes = {"valid_range": [-math.inf, math.inf], "missing_value": math.nan}
    zarr_python().create_array(str(tmp_path / "a"), shape=(2,), dtype="f4", attributes=attributes)
    assert str(dict(xzarr3.open_array(tmp_path / "a").attrs)) == str(attributes)


@pytest.mark.parametrize("layout", SOME_LAYOUTS)
def test_writing_in_turns(direction: Direction, layout: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    request = layouts(Request(dtype="int16"))[layout]
    values = np.zeros(request.shape, "int16")
    direction[0].create(tmp_path / "a", request)
    for turn in range(10):
        reader, writer = direction[turn % 2], direction[1 - turn % 2]
        low = [int(rng.integers(0, size)) for size in values.shape]
        high = [int(rng.integers(start, size)) + 1 for start, size in zip(low, values.shape, strict=True)]
        part = tuple(map(slice, low, high))
        values[part] = 0 if turn in (4, 7) else rng.integers(-9, 9, values[part].shape)
        writer.write(tmp_path / "a", part, values[part])
        assert_same_bits(reader.read(tmp_path / "a"), values)


@pytest.mark.parametrize("layout", ["zstd", "shard"])
def test_resize_and_append(direction: Direction, layout: str, tmp_path: Path) -> None:
    changer, reader = direction
    request = layouts(Request(dtype="int32", fill=Fill(-1, "ffffffff")))[layout]
    values = noise(request)
    reader.save(tmp_path / "a", request, values)
    more = noise(replace(request, shape=(6, 13)), seed=1)
    changer.append(tmp_path / "a", more)
    values = np.concatenate([values, more])
    assert_same_bits(reader.read(tmp_path / "a"), values)
    # At the edges of chunks: what else is cut off is up to the library.
    changer.resize(tmp_path / "a", (8, 10))
    assert_same_bits(reader.read(tmp_path / "a"), values[:8, :10])
    changer.resize(tmp_path / "a", (9, 20))
    grown = np.full((9, 20), -1, "int32")
    grown[:8, :10] = values[:8, :10]
    assert_same_bits(reader.read(tmp_path / "a"), grown)


@pytest.mark.parametrize("layout", ["zstd", "shard"])
def test_what_resize_cut_off_stays_away(peer: Library, layout: str, tmp_path: Path) -> None:
    request = layouts(Request(dtype="int32"))[layout]
    values = noise(request)
    peer.save(tmp_path / "a", request, values)
    library("xzarr3").resize(tmp_path / "a", (5, 7))
    library("xzarr3").resize(tmp_path / "a", (9, 13))
    values[5:] = values[:, 7:] = 0
    assert_same_bits(peer.read(tmp_path / "a"), values)


TREE: dict[str, dict[str, Any]] = {
    "": {"title": "a tree", "Conventions": "CF-1.8"}, "ocean": {"depth": [0, 10]},
    "ocean/deep": {"n": [1, None]}, "ocean/deep/so": {"units": "1e-3"}, "ocean/sst": {},
    "time": {"calendar": "360_day"}, "größe 1": {},
}  # fmt: skip
"""Attributes of the nodes; the arrays are those that have values below."""
VALUES: dict[str, AnyArray] = {
    "ocean/deep/so": np.arange(6, dtype="float64").reshape(2, 3),
    "ocean/sst": np.arange(4, dtype="int16"),
    "time": np.array(7, "uint8"),
}


def write_tree(path: Path, module: Any, zarr_format: Any = 3) -> None:
    """Write the tree with xzarr3 or zarr-python, whose functions have the same names."""
    root = module.open_group(str(path), mode="w-", attributes=TREE[""], zarr_format=zarr_format)
    for name, attributes in TREE.items():
        if name in VALUES:
            chunks = tuple(max(1, size // 2) for size in VALUES[name].shape)
            root.create_array(name, data=VALUES[name], chunks=chunks, attributes=attributes)
        elif name:
            root.create_group(name, attributes=attributes)


def check_tree(group: Any, path: str = "") -> None:
    """Compare what the group of this path, opened by either library, shows with the tree."""
    start = len(path and f"{path}/")
    nodes = {name[start:]: name for name in TREE if name == path or name.startswith(path and f"{path}/")}
    found = {"": group, **dict(group.members(max_depth=None))}
    assert {name: dict(node.attrs) for name, node in found.items()} == {
        name: TREE[whole] for name, whole in nodes.items()
    }
    direct = {name for name in nodes if name and "/" not in name}
    assert set(group) == direct
    assert {name for name, _ in group.arrays()} == {name for name in direct if nodes[name] in VALUES}
    for name, whole in nodes.items():
        if whole in VALUES:
            assert_same_bits(group[name][...], VALUES[whole])


def mark_documents_below(path: Path) -> None:
    """Give the nodes other attributes, so that those that are found come out of the root's document."""
    for file in path.rglob("*"):
        if file.parent != path and file.name in ("zarr.json", ".zattrs"):
            other = {"read": "here"}
            held = {**json.loads(file.read_text()), "attributes": other} if file.name[0] == "z" else other
            file.write_text(json.dumps(held))


@pytest.mark.parametrize("consolidated", [False, True])
@pytest.mark.parametrize("zarr_format", [3, 2])
def test_groups(zarr_format: int, consolidated: bool, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for path, module in ((ours, xzarr3), (theirs, zarr_python())):
        write_tree(path, module, zarr_format)
        if consolidated:
            module.consolidate_metadata(str(path))
    check_tree(xzarr3.open_group(theirs))
    check_tree(zarr_python().open_group(str(ours), mode="r"))
    for node in TREE if zarr_format == 3 else ():
        assert ("consolidated_metadata" in document(ours / node)) is (consolidated and node == "")
        assert said(document(ours / node)) == said(document(theirs / node))


@pytest.mark.parametrize("below", ["", "ocean"])
@pytest.mark.parametrize("zarr_format", [3, 2])
@pytest.mark.parametrize("ours", [True, False])
def test_consolidated_metadata(ours: bool, zarr_format: int, below: str, tmp_path: Path) -> None:
    path, modules = tmp_path / "g", (xzarr3, zarr_python())
    writer, reader = modules if ours else modules[::-1]
    write_tree(path, writer, zarr_format)
    writer.consolidate_metadata(str(path), **{"path": below} if below else {})
    mark_documents_below(path / below)
    root = reader.open_group(str(path), path=below, mode="r", use_consolidated=True)
    check_tree(root, below)
    if not below:
        check_tree(root["ocean"], "ocean")
        check_tree(reader.open_group(str(path), mode="r"))


def test_consolidated_metadata_are_kept_up_to_date(tmp_path: Path) -> None:
    path, zarr = tmp_path / "g", zarr_python()
    write_tree(path, zarr)
    zarr.consolidate_metadata(str(path), zarr_format=3)
    root = xzarr3.open_group(path, mode="r+")
    root.create_array("ocean/ssh", data=np.ones(3, "float32"))
    root["ocean/sst"].append(np.array([4, 5], "int16"))
    root["ocean/deep"].attrs["level"] = 3
    del root["time"]
    seen = zarr.open_consolidated(str(path), zarr_format=3)
    assert_same_bits(seen["ocean/ssh"][...], np.ones(3, "float32"))
    assert_same_bits(seen["ocean/sst"][...], np.arange(6, dtype="int16"))
    assert seen["ocean/deep"].attrs["level"] == 3
    assert "time" not in seen


def said(node: Any) -> Any:
    """A document with what the specification lets a writer leave out or shorten written in full.

    - ``storage_transformers``: absent means none (zarr-python writes an empty list).
    - ``attributes``: absent means none (tensorstore leaves them out).
    - ``configuration``: absent means empty; a codec without one may be its name alone.
    - ``separator``: absent means ``/`` for ``default`` and ``.`` for ``v2`` (tensorstore leaves it out then).
    - ``index_location``: absent means ``end`` (tensorstore leaves it out then).
    - ``consolidated_metadata`` of a group within those of another one repeat what these hold (zarr-python
      writes them, empty). This is no part of the specification.
    """
    full = {**node, "attributes": node.get("attributes", {})}
    assert full.pop("storage_transformers", []) == []
    if full["node_type"] == "array":
        encoding = full["chunk_key_encoding"]
        default = {"default": "/", "v2": "."}[encoding["name"]]
        separator = encoding.get("configuration", {}).get("separator", default)
        full["chunk_key_encoding"] = {"name": encoding["name"], "configuration": {"separator": separator}}
        full["codecs"] = said_codecs(full["codecs"])
    elif "consolidated_metadata" in full:
        held = full["consolidated_metadata"]
        nodes = {name: said(below) for name, below in held["metadata"].items()}
        for below in nodes.values():
            below.pop("consolidated_metadata", None)
        full["consolidated_metadata"] = {**held, "metadata": nodes}
    return full


def said_codecs(codecs: list[Any]) -> list[Any]:
    full = []
    for given in codecs:
        one = {"name": given} if isinstance(given, str) else given
        configuration = dict(one.get("configuration", {}))
        if one["name"] == "sharding_indexed":
            configuration.setdefault("index_location", "end")
            for field in ("codecs", "index_codecs"):
                configuration[field] = said_codecs(configuration[field])
        full.append({"name": one["name"], "configuration": configuration})
    return full


FEW_DTYPES = ("bool", "int16", "float64", "complex64")
"""One of each kind and size; of the others, documents differ in the type, the fill value and its size."""


def with_dtypes(every: Iterable[str], *closely: str) -> Iterable[tuple[str, str]]:
    """Each with few data types, and these with all of them."""
    return dict.fromkeys([*itertools.product(every, FEW_DTYPES), *itertools.product(closely, DTYPES)])


@pytest.mark.parametrize(
    ("layout", "dtype"), with_dtypes(LAYOUTS, "defaults", "transpose-big-blosc", "shard-inner-transpose")
)
def test_documents_of_tensorstore(layout: str, dtype: str, tmp_path: Path) -> None:
    plain = Request(dtype=dtype, codecs=(LITTLE,), names=("lat", None), attributes=ATTRIBUTES)
    request = plain if layout == "defaults" else layouts(plain)[layout]
    tensorstore = library("tensorstore")
    check_possible(request, tensorstore, None)
    tensorstore.create(tmp_path / "theirs", request)
    library("xzarr3").create(tmp_path / "ours", request)
    assert said(document(tmp_path / "ours")) == said(document(tmp_path / "theirs"))


def check_both(
    tmp_path: Path, values: AnyArray, *, lossy: bool = False, ours: Any = None, **options: Any
) -> None:
    """The same call of both libraries stores the same keys and documents, which each reads of each.

    What is stored is the same, too, unless it is compressed by other libraries. ``ours`` are options that are
    others here; ``lossy`` codecs make of the values what zarr-python reads.
    """
    options = {"shape": values.shape, "dtype": values.dtype, "zarr_format": 3, **options}
    paths, version_2 = [tmp_path / "ours", tmp_path / "theirs"], options["zarr_format"] == 2
    made = [module.create_array for module in (xzarr3, zarr_python())]
    for path, create, given in zip(paths, made, (options | (ours or {}), options), strict=True):
        create(path, **given)[...] = values
    openers: list[Any] = [xzarr3.open_array, lambda path: zarr_python().open_array(path, mode="r")]
    if lossy:
        values = np.asarray(openers[1](paths[1])[...]).astype(values.dtype)
    for path, opened in itertools.product(paths, openers):
        assert_same_bits(opened(path)[...], values)
    assert keys(paths[0]) == keys(paths[1])
    if not version_2:
        arrays = [xzarr3.open_array(path).metadata.chain.codecs for path in paths]
        assert arrays[0] == arrays[1]
        assert lossy or said(document(paths[0])) == said(document(paths[1]))
        return
    if "gzip" not in str(options.get("compressors")).lower():
        assert stored(paths[0]) == stored(paths[1])
    found, wanted = ({**document(path, ".zarray"), **document(path, ".zattrs")} for path in paths)
    for each in (found, wanted):  # What is a filter there may be the compressor here.
        codecs = [*(each.pop("filters") or []), each.pop("compressor")]
        each["codecs"] = [codec["id"] for codec in codecs if codec]
    assert json.dumps(found, sort_keys=True) == json.dumps(wanted, sort_keys=True)


OPTIONS: dict[str, Callable[[Any], dict[str, Any]]] = {
    # Given the module of zarr-python's codecs, the options of `create_array`.
    "defaults": lambda codecs: {},
    "uncompressed": lambda codecs: {"compressors": None, "filters": None},
    "zstd": lambda codecs: {"compressors": codecs.ZstdCodec(level=9, checksum=True)},
    "gzip": lambda codecs: {"compressors": codecs.GzipCodec(level=6)},
    "blosc": lambda codecs: {"compressors": codecs.BloscCodec(cname="lz4", clevel=3, shuffle="bitshuffle")},
    "blosc-defaults": lambda codecs: {"compressors": codecs.BloscCodec()},
    "two-compressors": lambda codecs: {"compressors": [codecs.GzipCodec(level=1), codecs.Crc32cCodec()]},
    "big": lambda codecs: {"serializer": codecs.BytesCodec(endian="big")},
    "transpose": lambda codecs: {"filters": [codecs.TransposeCodec(order=(1, 0))]},
    "shards": lambda codecs: {"shards": (8, 10)},
    "shards-blosc": lambda codecs: {"shards": (8, 10), "compressors": codecs.BloscCodec(cname="zstd")},
    "v2-keys": lambda codecs: {"chunk_key_encoding": {"name": "v2", "separator": "/"}},
    "dots": lambda codecs: {"chunk_key_encoding": {"name": "default", "separator": "."}},
    "names": lambda codecs: {"dimension_names": ("lat", None)},
    "attributes": lambda codecs: {"attributes": ATTRIBUTES},
    "fill": lambda codecs: {"fill_value": 1},
}


@pytest.mark.parametrize(
    ("options", "dtype"), with_dtypes(OPTIONS, "defaults", "blosc-defaults", "big", "shards", "fill")
)
def test_documents_of_zarr_python(options: str, dtype: str, tmp_path: Path) -> None:
    values = values_for(Request(dtype=dtype))
    check_both(tmp_path, values, chunks=(4, 5), **OPTIONS[options](zarr_python().codecs))


SHAPE, CHUNKS = (7, 9), (3, 4)
MISSING = np.s_[3:6, 4:8]
"""The chunk that holds nothing but the fill value."""
SIMPLE = (
    "|b1", "|i1", "|u1", "<i2", ">i2", "<u2", ">u2", "<i4", ">i4", "<u4", ">u4", "<i8", ">i8", "<u8", ">u8",
    "<f2", ">f2", "<f4", ">f4", "<f8", ">f8", "<c8", ">c8", "<c16", ">c16",
)  # fmt: skip
OTHERS = (
    "<M8[ns]", ">M8[ns]", "<M8[D]", ">M8[us]", "<M8[10s]", "<M8[Y]", "<m8[ns]", ">m8[ms]", "<m8[h]",
    ">m8[25s]", "|S1", "|S7", "<U1", ">U1", "<U6", ">U6", "|V1", "|V5", "record", "record_big",
    "record_nested",
)  # fmt: skip
RECORDS: dict[str, Any] = {
    "record": [("a", "<i4"), ("b", "<f8"), ("c", "S3")], "record_big": [("a", ">i4"), ("b", ">f8")],
    "record_nested": [("a", [("x", "<f4"), ("y", "<f4")]), ("b", "?")],
    "record_mixed": [("a", "<i2"), ("b", ">f8"), ("c", "<U2")],
}  # fmt: skip
COMPRESSORS: dict[str, Any] = {
    "zstd": numcodecs.Zstd(3), "zstd_checksum": numcodecs.Zstd(3, checksum=True), "zlib": numcodecs.Zlib(1),
    "gzip": numcodecs.GZip(5), "bz2": numcodecs.BZ2(1), "lz4": numcodecs.LZ4(),
    "lzma": numcodecs.LZMA(preset=1), "blosc": numcodecs.Blosc("lz4", 5, 1),
    "blosc_auto": numcodecs.Blosc("zstd", 5, -1), "blosc_bit": numcodecs.Blosc("zlib", 5, 2),
    "blosc_none": numcodecs.Blosc("blosclz", 5, 0), "none": None,
}  # fmt: skip
FILTERS: dict[str, tuple[str, list[Any]]] = {
    "delta": ("<i4", [numcodecs.Delta("<i4")]), "delta_big": (">i4", [numcodecs.Delta(">i4")]),
    "delta_narrow": ("<i4", [numcodecs.Delta("<i4", "<i2")]),
    "fixedscaleoffset": ("<f8", [numcodecs.FixedScaleOffset(3, 10, "<f8", "<i4")]),
    "fixedscaleoffset_big": (">f4", [numcodecs.FixedScaleOffset(3, 10, ">f4", ">i2")]),
    "quantize": ("<f4", [numcodecs.Quantize(2, "<f4")]), "bitround": ("<f4", [numcodecs.BitRound(9)]),
    "astype": ("<f8", [numcodecs.AsType("<f4", "<f8")]),
    "astype_big": (">i4", [numcodecs.AsType(">i8", ">i4")]), "packbits": ("|b1", [numcodecs.PackBits()]),
    "shuffle": ("<i4", [numcodecs.Shuffle(4)]), "crc32": ("<i4", [numcodecs.CRC32()]),
    "adler32": (">i4", [numcodecs.Adler32()]), "fletcher32": ("<i4", [numcodecs.Fletcher32()]),
    "jenkins": ("<i4", [numcodecs.JenkinsLookup3()]),
    "several": ("<i4", [numcodecs.Delta("<i4"), numcodecs.Shuffle(4), numcodecs.Zlib(1), numcodecs.CRC32()]),
    "two_of_arrays": ("<f8", [numcodecs.AsType("<f4", "<f8"), numcodecs.BitRound(9)]),
}  # fmt: skip
OF_BYTES = ("shuffle", "crc32", "adler32", "fletcher32", "jenkins_lookup3", "zlib")
LOSSY = ("fixedscaleoffset", "quantize", "bitround", "astype", "two_of_arrays")


def native(name: str) -> np.dtype[Any]:
    dtype: np.dtype[Any] = np.dtype(RECORDS.get(name, name))
    return dtype


def fill_of(dtype: np.dtype[Any]) -> Any:
    if dtype.names is not None:
        return np.array(tuple(fill_of(dtype[name]) for name in dtype.names), dtype)[()]
    values: dict[str, Any] = {"b": True, "i": -3, "u": 7, "f": 1.5, "c": 1.5 - 2j, "S": b"x", "U": "ø"}
    if dtype.kind == "V":
        return np.void(b"\x01" * dtype.itemsize)
    return np.asarray(values.get(dtype.kind, 5)).astype(dtype)[()]


def sample(name: str, shape: tuple[int, ...] = SHAPE) -> AnyArray:
    values = random(native(name), shape)
    if shape == SHAPE:
        values[MISSING] = fill_of(values.dtype)
    return values


def of_version_2(dtype: np.dtype[Any], separator: str = ".", **options: Any) -> dict[str, Any]:
    keys = {"name": "v2", "separator": separator}
    options = {"chunks": CHUNKS, "compressors": None, "fill_value": fill_of(dtype), **options}
    return {"zarr_format": 2, "chunk_key_encoding": keys, **options}


def turns(cases: Iterable[Any]) -> list[tuple[Any, str, str]]:
    """Each case with both orders and both separators, in two of the four pairs of these by turns."""
    pairs = (("C", "."), ("F", "/"), ("C", "/"), ("F", "."))
    return [(case, *pairs[2 * (at % 2) + turn]) for at, case in enumerate(cases) for turn in (0, 1)]


VERSION_2: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    # The data type, the shape and options.
    **{
        named(dtype, order, separator): (dtype, SHAPE, {"order": order, "separator": separator})
        for dtype, order, separator in turns(SIMPLE + OTHERS)
    },
    **{
        named(name, dtype): (dtype, SHAPE, {"compressors": compressor, "order": "CF"[number % 2]})
        for at, (name, compressor) in enumerate(COMPRESSORS.items())
        for number, dtype in enumerate(("|u1", ">i2", "<f8", "record_big", "<U6"), at)
    },
    **{
        named(dtype, shape, order, separator): (
            dtype, shape, {"chunks": chunks, "order": order, "separator": separator})
        for separator in "./"
        for dtype, shape, chunks, order in [
            *((dtype, (), (), "C") for dtype in ("<f8", ">i2", "|S3", "record")),
            ("<i4", (0,), (4,), "C"), ("<i4", (3,), (8,), "C"),
            *(("<i4", (3, 0), (2, 2), order) for order in "CF"),
            *(("<i4", (2, 3, 4, 5), (1, 2, 4, 3), order) for order in "CF")]
    },
}  # fmt: skip


@pytest.mark.parametrize("name", VERSION_2)
def test_arrays_of_version_2(name: str, tmp_path: Path) -> None:
    dtype, shape, options = VERSION_2[name]
    if dtype == "record_nested" and zarr_python().__version__ < "3.2":
        pytest.skip("zarr-python 3.1 has no fields of fields")
    check_both(tmp_path, sample(dtype, shape), **of_version_2(native(dtype), **options))


@pytest.mark.parametrize(("name", "order", "compressor"), [
    (name, order, ("none", "zlib")[(at + turn) % 2])
    for at, name in enumerate(FILTERS)
    for turn, order in enumerate("CF")
])  # fmt: skip
def test_filters_of_version_2(name: str, order: str, compressor: str, tmp_path: Path) -> None:
    dtype, filters = FILTERS[name]
    lossy = name.startswith(LOSSY)
    values = (np.arange(63).reshape(SHAPE) % 40 - 7).astype(dtype)
    values[MISSING] = fill_of(values.dtype)
    if values.dtype.kind == "f":
        values += np.asarray(0.25, values.dtype)
    options = of_version_2(values.dtype, order=order, filters=filters, compressors=COMPRESSORS[compressor])
    if not lossy:
        options["fill_value"] = 7 if values.dtype.kind != "b" else True
    # What works on bytes stands behind the serializer here, and so among the compressors.
    packed = [each for each in filters if each.codec_id in OF_BYTES]
    packed += [options["compressors"]] * (compressor != "none")
    ours = {"filters": [each for each in filters if each.codec_id not in OF_BYTES], "compressors": packed}
    if order == "C" or not any(each.codec_id == "bitround" for each in filters):
        check_both(tmp_path, values, lossy=lossy, ours=ours, **options)
        return
    # numcodecs gives C order back, so zarr-python reads other elements than it wrote.
    for module, given in ((zarr_python(), options), (xzarr3, options | ours)):
        path = tmp_path / module.__name__
        module.create_array(path, shape=SHAPE, dtype=values.dtype, **given)[...] = values
        found = np.asarray(zarr_python().open_array(path, mode="r")[...])
        assert_same_bits(xzarr3.open_array(path)[...], found)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("compressor", ["none", "zlib"])
def test_elements_of_any_length_in_version_2(compressor: str, order: str, tmp_path: Path) -> None:
    words = np.array(["", "a", "é", "日本語", "x" * 300], dtype=np.dtypes.StringDType())
    octets = np.array([b"", b"\x00\xff", b"abc", b"y" * 40, b"\x00"], dtype=object)
    their_bytes = zarr_python().dtype.VariableLengthBytes()
    for kind, fill, theirs, ours in ((words, "", "string", "string"), (octets, b"", their_bytes, "bytes")):
        given = of_version_2(kind.dtype, order=order, compressors=COMPRESSORS[compressor], fill_value=fill)
        values = kind[np.arange(63).reshape(SHAPE) % 5]
        check_both(tmp_path / ours, values, **{**given, "dtype": theirs, "ours": {"dtype": ours}})


@pytest.mark.parametrize(("dtype", "filters", "field"), [
    ("record_mixed", [], "dtype"), ("<i4", [numcodecs.Delta("<i4", ">i8")], "filters[0].astype"),
    ("<i4", [numcodecs.Delta(">i4")], "filters[0].dtype"),
    ("<f8", [numcodecs.AsType(">f4", "<f8")], "filters[0].encode_dtype"),
])  # fmt: skip
def test_several_byte_orders_are_refused(dtype: str, filters: list[Any], field: str, tmp_path: Path) -> None:
    """No value is read, and ``check`` says that the array is sound but not read here."""
    given = of_version_2(native(dtype), filters=filters or None)
    zarr_python().create_array(tmp_path, shape=SHAPE, dtype=native(dtype), **given)[...] = sample(dtype)
    (error,) = refused(
        xzarr3.UnknownExtensionError, lambda: xzarr3.open_array(tmp_path), match="one byte order"
    )
    assert error.field == field
    assert {finding.code for finding in xzarr3.check(tmp_path).findings} == {"extension-unknown"}


def test_no_fill_value_in_version_2(tmp_path: Path) -> None:
    zarr_python().create_array(tmp_path, shape=4, dtype="<i4", **of_version_2(native("<i4"), chunks=(2,)))
    path = tmp_path / ".zarray"
    path.write_text(json.dumps({**document(tmp_path, ".zarray"), "fill_value": None}))
    array = xzarr3.open_array(tmp_path, mode="r+")
    assert array[...].tolist() == [0, 0, 0, 0]
    array[0:2] = 0
    assert keys(tmp_path) == {"0"}  # What is not stored is nobody's zero.
    array.attrs["n"] = 1
    assert document(tmp_path, ".zarray")["fill_value"] is None


def test_parts_of_version_2_are_replaced_by_turns(tmp_path: Path) -> None:
    values, zarr = sample("<i4"), zarr_python()
    options = of_version_2(values.dtype, compressors=numcodecs.Zlib(1), order="F")
    zarr.create_array(tmp_path, shape=SHAPE, dtype="<i4", **options)[...] = values
    for module, other, part in ((xzarr3, zarr, np.s_[2:5, 3:9]), (zarr, xzarr3, np.s_[0:3, ::2])):
        module.open_array(tmp_path, mode="r+")[part] = values[part] = -values[part] - 1
        assert_same_bits(other.open_array(tmp_path, mode="r")[...], values)


def in_tensorstore(path: Path, **options: Any) -> Any:
    return library("tensorstore")._open(path, driver="zarr", **options)


TENSORSTORE: dict[str, Any] = {
    "none": None, **{name: {"id": name, "level": 1} for name in ("zlib", "gzip", "bz2", "zstd")},
    "blosc": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},
    "blosc_auto": {"id": "blosc", "cname": "zstd", "clevel": 5, "shuffle": -1, "blocksize": 0},
}  # fmt: skip


@pytest.mark.parametrize(("case", "order", "separator"), turns(
    (dtype, compressor)
    for dtype in SIMPLE
    for compressor in TENSORSTORE
    if compressor in ("none", "blosc") or dtype in ("|b1", ">i2", "<f8")
))  # fmt: skip
def test_version_2_of_tensorstore(case: tuple[str, str], order: str, separator: str, tmp_path: Path) -> None:
    (dtype, compressor), ours, theirs = case, tmp_path / "ours", tmp_path / "theirs"
    values, config = sample(dtype), TENSORSTORE[compressor]
    fill = fill_of(values.dtype)
    metadata = {
        "shape": list(SHAPE), "chunks": list(CHUNKS), "dtype": dtype, "order": order, "compressor": config,
        "fill_value": [fill.real, fill.imag] if values.dtype.kind == "c" else values.dtype.type(fill).item(),
        "dimension_separator": separator,
    }  # fmt: skip
    in_tensorstore(theirs, metadata=metadata, create=True)[...] = values
    assert_same_bits(xzarr3.open_array(theirs)[...], values)
    given = of_version_2(values.dtype, compressors=config, order=order, separator=separator)
    xzarr3.create_array(ours, shape=SHAPE, dtype=dtype, **given)[...] = values
    assert_same_bits(in_tensorstore(ours).read().result(), values)
    assert keys(ours) == keys(theirs)


def test_tensorstore_resizes_version_2(tmp_path: Path) -> None:
    values = sample("<i4")
    xzarr3.create_array(tmp_path, shape=SHAPE, dtype="<i4", **of_version_2(values.dtype))[...] = values
    in_tensorstore(tmp_path).resize(exclusive_max=[9, 9]).result()
    array = xzarr3.open_array(tmp_path, mode="r+")
    assert array.shape == (9, 9)
    array.append(np.ones((1, 9), "<i4"))
    found = np.asarray(in_tensorstore(tmp_path).read().result())
    assert_same_bits(found, np.concatenate([values, np.full((2, 9), -3, "i4"), np.ones((1, 9), "i4")]))


OF_NUMCODECS: list[tuple[str, dict[str, dict[str, Any]], dict[str, dict[str, Any]]]] = [
    # The data type, filters and compressors with their options.
    ("i4", {"Delta": {"dtype": "<i4"}}, {}), ("i4", {"Delta": {"dtype": "int32", "astype": "int16"}}, {}),
    ("i4", {"Delta": {"dtype": "<i4", "astype": ">i2"}}, {}),
    ("f8", {"FixedScaleOffset": {"offset": 1, "scale": 100, "astype": "<i4"}}, {"Zlib": {"level": 3}}),
    ("f8", {"FixedScaleOffset": {"offset": 1.5, "scale": 4, "dtype": "float64"}}, {}),
    ("f8", {"Quantize": {"digits": 2}}, {"BZ2": {}}),
    ("f8", {"AsType": {"encode_dtype": ">f4", "decode_dtype": "<f8"}}, {"LZ4": {}}),
    ("f4", {"BitRound": {"keepbits": 4}}, {"LZMA": {}}), ("?", {"PackBits": {}}, {}),
    ("i4", {}, {"Shuffle": {}, "Zstd": {"level": 3}}),
    ("i4", {}, {"Shuffle": {"elementsize": 2}, "GZip": {"level": 3}}),
    ("i4", {}, {"CRC32": {}, "CRC32C": {}, "Adler32": {}, "Fletcher32": {}, "JenkinsLookup3": {}}),
    ("i4", {}, {"CRC32": {"location": "end"}, "CRC32C": {"location": "start"}}),
    ("i4", {}, {"JenkinsLookup3": {"initval": 7}}),
    ("f8", {}, {"Blosc": {"cname": "zstd", "clevel": 3, "shuffle": 2}, "LZMA": {"preset": 1}}),
    ("f8", {}, {"Blosc": {}}),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "filters", "compressors"), OF_NUMCODECS, ids=repr)
def test_codecs_of_numcodecs(dtype: str, filters: Any, compressors: Any, tmp_path: Path) -> None:
    zarr_numcodecs = pytest.importorskip("zarr.codecs.numcodecs")
    if ">" in repr(filters) and zarr_python().__version__ < "3.4":
        pytest.skip("zarr-python 3.1 does not read back what it encodes in another byte order")
    values = (np.random.default_rng(7).normal(size=SHAPE) * 30).astype(dtype)
    codecs = {
        kind: [getattr(zarr_numcodecs, name)(**given) for name, given in each.items()] or None
        for kind, each in (("filters", filters), ("compressors", compressors))
    }
    check_both(tmp_path, values, lossy=True, chunks=(4, 5), **codecs)


def test_filters_of_another_byte_order_are_refused(tmp_path: Path) -> None:
    """An array and its filters have one byte order; zarr-python does not always read these back itself."""
    filters = [pytest.importorskip("zarr.codecs.numcodecs").Delta(dtype=">i4")]
    options: dict[str, Any] = {"shape": SHAPE, "dtype": "i4", "filters": filters}
    zarr_python().create_array(tmp_path / "theirs", **options)[...] = 1
    refused(
        xzarr3.MetadataError,
        lambda: xzarr3.open_array(tmp_path / "theirs"),
        lambda: xzarr3.create_array(tmp_path / "ours", **options),
        match="one byte order",
    )


def test_raw_bits_have_another_name_in_zarr_python(tmp_path: Path) -> None:
    """The specification calls them ``r24``, zarr-python ``raw_bytes``; both names are known here."""
    values = np.frombuffer(bytes(range(12)), "V3")
    zarr_python().create_array(str(tmp_path / "a"), data=values, chunks=(2,))
    array = xzarr3.open_array(tmp_path / "a")
    assert array.zdtype.name == "raw_bytes"
    assert array[...].tobytes() == values.tobytes()
    xzarr3.create_array(tmp_path / "b", data=values, chunks=(2,))
    assert zarr_python().open_array(str(tmp_path / "b"))[...].tobytes() == values.tobytes()
    xzarr3.create_array(tmp_path / "c", data=values, dtype="r24").attrs["rewritten"] = True
    assert document(tmp_path / "c")["data_type"] == "r24"


@pytest.fixture(scope="module")
def gdal() -> Gdal:
    """A GDAL that reads the final version 3, or a skip that says why there is none."""
    found = find_gdal()
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture
def bindings(gdal: Gdal) -> GdalBindings:
    """GDAL's own bindings, for what the model of rasters does not show."""
    if not isinstance(gdal, GdalBindings):
        pytest.skip(f"{gdal.label} shows no groups, names and attributes; `bash ci/gdal.sh` runs this")
    return gdal


def assert_gdal_reads(found: AnyArray, wanted: AnyArray) -> None:
    """Compare with what GDAL calls the same: bool is uint8 to it, and a raster of one dimension has two."""
    wanted = wanted.view(np.uint8) if wanted.dtype == bool else wanted
    assert found.size == wanted.size
    assert_same_bits(found.reshape(wanted.shape), wanted)


GDAL_REQUESTS: dict[str, Request] = {
    **{
        name: REQUESTS[name]
        for layout, dtype in itertools.product(LAYOUTS, DTYPES)
        if (name := named(layout, dtype)) and (layout in ("zstd", "shard") or dtype in ("int16", "float64"))
    },
    **{
        named("transpose", order, where): turned(order, where)
        for order in ((2, 1, 0), (0, 2, 1), (2, 0, 1))
        for where in TURNED
    },
    **{
        named("blosc", cname, shuffle): Request(
            shape=(40, 100), chunks=(15, 100), codecs=(LITTLE, blosc(cname, shuffle, 4))
        )
        for cname, shuffle in itertools.product(CNAMES, SHUFFLES)
    },
    **{
        named("keys", *key): Request(keys={"name": key[0], "configuration": {"separator": key[1]}})
        for key in KEYS
    },
    **{
        named("shape", shape): shaped(shape, chunks)
        for shape, chunks in [((), ()), ((7,), (3,)), ((3,), (8,)), ((5, 7, 4), (2, 7, 3)),
                              ((2, 3, 4, 5), (1, 2, 3, 4))]
    },
    **{
        named("fill", dtype, fill.json, layout): layouts(Request(dtype=dtype, fill=fill))[layout]
        for dtype, fill in FILLS
        for layout in ("zstd", "shard")
    },
}  # fmt: skip


@pytest.mark.parametrize("name", GDAL_REQUESTS)
def test_gdal_reads(gdal: Gdal, name: str, tmp_path: Path) -> None:
    request = GDAL_REQUESTS[name]
    check_possible(request, None, gdal)
    values = values_for(request)
    Xzarr3().save(tmp_path / "a", request, values)
    assert_gdal_reads(gdal.read(tmp_path / "a"), values)


@pytest.fixture(params=[False, True], ids=["plain", "consolidated"])
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, bool]:
    write_tree(tmp_path / "g", xzarr3)
    if request.param:
        xzarr3.consolidate_metadata(tmp_path / "g")
    return tmp_path / "g", request.param


def test_gdal_reads_arrays_of_a_hierarchy(gdal: Gdal, tree: tuple[Path, bool]) -> None:
    for name in ("ocean/deep/so", "ocean/sst"):
        assert_gdal_reads(gdal.read(tree[0], f"/{name}"), VALUES[name])


def test_gdal_reads_groups(bindings: GdalBindings, tree: tuple[Path, bool]) -> None:
    path, consolidated = tree
    root = bindings.root(path, USE_CONSOLIDATED_METADATA="YES" if consolidated else "NO")

    def walk(group: Any, prefix: str) -> dict[str, dict[str, Any]]:
        found = {prefix.strip("/"): {a.GetName(): a.Read() for a in group.GetAttributes()}}
        for name in group.GetMDArrayNames():
            array = group.OpenMDArray(name)
            found[f"{prefix}/{name}".strip("/")] = {a.GetName(): a.Read() for a in array.GetAttributes()}
            if array.GetUnit():  # GDAL takes this attribute out.
                found[f"{prefix}/{name}".strip("/")]["units"] = array.GetUnit()
            assert_gdal_reads(np.asarray(array.ReadAsArray()), VALUES[f"{prefix}/{name}".strip("/")])
        for name in group.GetGroupNames():
            found.update(walk(group.OpenGroup(name), f"{prefix}/{name}"))
        return found

    wanted = {name: dict(attributes or {}) for name, attributes in TREE.items()}
    wanted["ocean"]["depth"] = (0, 10)
    assert walk(root, "") == wanted


def test_gdal_reads_names_and_fill_value(bindings: GdalBindings, tmp_path: Path) -> None:
    request = Request(fill=Fill("NaN", "7fc00000"), names=("lat", "lon"))
    Xzarr3().save(tmp_path / "a", request, noise(request))
    array = bindings.array(tmp_path / "a")
    assert [dimension.GetName() for dimension in array.GetDimensions()] == ["lat", "lon"]
    assert array.GetBlockSize() == [4, 5]
    assert bytes(array.GetNoDataValueAsRaw()) == request.fill_scalar.tobytes()


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype != "bool"])
@pytest.mark.parametrize("options", [
    {}, {"COMPRESS": "GZIP"}, {"COMPRESS": "ZSTD", "ZSTD_CHECKSUM": "YES"},
    {"COMPRESS": "BLOSC", "BLOSC_CNAME": "zlib", "BLOSC_SHUFFLE": "BIT"}, {"CHUNK_MEMORY_LAYOUT": "F"},
    {"SHARD_CHUNK_SHAPE": "2,5", "COMPRESS": "ZSTD"},
], ids=lambda options: "-".join(options.values()) or "none")  # fmt: skip
def test_stores_of_gdal(bindings: GdalBindings, options: dict[str, str], dtype: str, tmp_path: Path) -> None:
    values = noise(Request(dtype=dtype))
    values[:4, 5:10] = 0
    bindings.save(tmp_path / "g", values, (4, 5), **options)
    array = xzarr3.open_group(tmp_path / "g")["data"]
    assert isinstance(array, xzarr3.Array)
    assert array.dimension_names == ("d0", "d1")
    assert (array.shards is not None) == ("SHARD_CHUNK_SHAPE" in options)
    assert_same_bits(array[...], values)


KEPT = sorted(path.relative_to(DATA).as_posix() for path in DATA.glob("*/*sharded"))


def test_every_kind_of_store_was_kept() -> None:
    assert {path.split("-3")[0].split("-0")[0] for path in KEPT} == {"zarr-python", "tensorstore"}
    assert {path.partition("/")[2] for path in KEPT} == set(SAMPLES)


@pytest.mark.parametrize("kept", KEPT)
def test_kept_stores(kept: str) -> None:
    array = xzarr3.open_array(xzarr3.LocalStore(DATA / kept, read_only=True))
    request = SAMPLES[kept.partition("/")[2]]
    assert_same_bits(array[...], SAMPLE_VALUES)
    assert_same_bits(array[1:6:2, 9:2:-3], SAMPLE_VALUES[1:6:2, 9:2:-3])
    assert (array.write_chunks, array.dimension_names) == (request.chunks, request.names)
    assert (array.fill_value, dict(array.attrs)) == (-1, request.attributes)
