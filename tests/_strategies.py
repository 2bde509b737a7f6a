"""Strategies and helpers that the tests of the core share: any data type, value, layout and selection."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from hypothesis import strategies as st

import xzarr3
from xzarr3.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, TransposeCodec
from xzarr3.codecs.zstd import ZstdCodec
from xzarr3.dtypes import DateTime64, RawBits, Struct, TimeDelta64, ZDType, parse_dtype
from xzarr3.dtypes.fixed_length import FixedLengthUTF32, NullTerminatedBytes

NUMERIC = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip
"""The names of the core data types, which are also numpy's."""

DATA_TYPES = (*NUMERIC, "r8", "r24", "r128")


def native(name: str) -> np.dtype[Any]:
    """numpy's dtype for a core data type."""
    return np.dtype(f"V{int(name[1:]) // 8}") if name[0] == "r" else np.dtype(name)


def from_bits(raw: bytes, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """The elements that these bytes are; any bits for numbers, 0 or 1 for truth values."""
    if dtype.kind == "b":
        raw = bytes(octet & 1 for octet in raw)
    return np.frombuffer(raw, dtype).copy()


def same_bits(left: Any, right: Any) -> bool:
    """Whether two arrays have the same dtype, shape and bytes: -0.0 is not 0.0, a NaN is itself."""
    one, other = np.asarray(left), np.asarray(right)
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


def attempt(call: Callable[[], Any], *errors: type[Exception]) -> tuple[Any, Exception | None]:
    """What a call returns, or the error of one of these kinds that it raises; others go through."""
    try:
        return call(), None
    except errors as error:
        return None, error


def elements(name: str) -> st.SearchStrategy[np.generic]:
    """Scalars of a data type: any bits, and the values that tend to go wrong."""
    dtype = native(name)
    size = dtype.itemsize
    anything = st.binary(min_size=size, max_size=size).map(lambda raw: from_bits(raw, dtype)[0])
    return st.one_of(st.sampled_from(special(name)), anything)


def special(name: str) -> list[np.generic]:
    """Zero, the bounds, and for floating point numbers -0.0, infinities, subnormals and several NaNs."""
    dtype = native(name)
    if dtype.kind == "b":
        return [np.False_, np.True_]
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return [dtype.type(value) for value in (0, 1, info.min, info.max)]
    if dtype.kind == "V":
        return [np.void(bytes(dtype.itemsize)), np.void(b"\xff" * dtype.itemsize)]
    part = np.dtype(f"f{dtype.itemsize // (2 if dtype.kind == 'c' else 1)}")
    unsigned = np.dtype(f"u{part.itemsize}")
    mantissa, sign = np.finfo(part).nmant, 1 << (8 * part.itemsize - 1)
    infinity = ((1 << (8 * part.itemsize - 1 - mantissa)) - 1) << mantissa
    quiet = 1 << (mantissa - 1)
    bits = [
        0, sign, 1, sign | 1, infinity, sign | infinity,
        infinity | quiet, sign | infinity | quiet, infinity | 1, infinity | quiet | 3,
    ]  # fmt: skip
    numbers = [number.tobytes() for number in np.array(bits, unsigned)]
    if dtype.kind == "f":
        return [from_bits(raw, dtype)[0] for raw in numbers]
    return [from_bits(real + imag, dtype)[0] for real in numbers for imag in numbers[1::3]]


@st.composite
def values(draw: st.DrawFn, name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """An array of a data type; its elements repeat, so that large ones stay cheap to draw."""
    pool = draw(st.lists(elements(name), min_size=1, max_size=6))
    seed = draw(st.integers(0, 2**32 - 1))
    picked = np.random.default_rng(seed).integers(0, len(pool), math.prod(shape))
    raw = b"".join(pool[at].tobytes() for at in picked)
    return np.frombuffer(raw, native(name)).reshape(shape) if raw else np.empty(shape, native(name))


EXTENSION_TYPES = (
    {"name": "raw_bytes", "configuration": {"length_bytes": 3}},
    {"name": "fixed_length_utf32", "configuration": {"length_bytes": 12}},
    {"name": "null_terminated_bytes", "configuration": {"length_bytes": 5}},
    {"name": "numpy.datetime64", "configuration": {"unit": "s", "scale_factor": 10}},
    {"name": "numpy.timedelta64", "configuration": {"unit": "ns", "scale_factor": 1}},
    "string",
    "bytes",
)
"""Data types beyond the core, as version 3 spells them; structs and those of ml_dtypes come besides."""

SMALL_NAMES = (
    "int2", "int4", "uint2", "uint4", "bfloat16", "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn",
    "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
    "float8_e5m2fnuz", "float8_e8m0fnu",
)  # fmt: skip
"""The data types of ml_dtypes."""


@lru_cache(maxsize=8)
def data_types(*, variable: bool = True, small: bool = True) -> st.SearchStrategy[ZDType]:
    """Any data type of version 3, in any byte order, structs of structs included; a struct has one order.

    With ``variable``, those without a fixed size, too; with ``small``, those of ml_dtypes.
    """
    specs = [*DATA_TYPES, *EXTENSION_TYPES, *(SMALL_NAMES if small else ())]
    types = [parse_dtype(spec) for spec in specs]
    fixed = [each for each in types if not each.is_variable]
    orders = st.sampled_from(["little", "big"])
    one = st.builds(ZDType.in_byte_order, st.sampled_from(fixed), orders)
    times = st.builds(
        lambda kind, unit, scale, order: kind(unit=unit, scale_factor=scale, endianness=order),
        st.sampled_from([DateTime64, TimeDelta64]),
        st.sampled_from(["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as"]),
        st.one_of(st.sampled_from([1, 2**31 - 1]), st.integers(1, 2**31 - 1)), orders,
    )  # fmt: skip
    sized = st.one_of(
        st.builds(RawBits, st.integers(1, 20).map(lambda size: 8 * size)),
        st.builds(NullTerminatedBytes, st.integers(1, 20)),
        st.builds(FixedLengthUTF32, st.integers(1, 9), endianness=orders),
    )
    names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=4)
    leaf = st.one_of(one, times, sized)

    def struct(inner: st.SearchStrategy[ZDType]) -> st.SearchStrategy[ZDType]:
        fields = st.lists(st.tuples(names, inner), min_size=1, max_size=3, unique_by=lambda field: field[0])

        def build(pairs: list[tuple[str, ZDType]], order: str) -> ZDType:
            return Struct(tuple((name, each.in_byte_order(order)) for name, each in pairs))

        return st.builds(build, fields, orders)

    flat = struct(leaf)
    kinds = [leaf, leaf, flat, struct(st.one_of(leaf, flat))]
    if variable:
        kinds.append(st.sampled_from([each for each in types if each.is_variable]))
    return st.one_of(kinds)


@lru_cache(maxsize=512)
def scalars(data_type: ZDType) -> st.SearchStrategy[Any]:
    """Scalars of any data type: any bits that mean something."""
    if isinstance(data_type, Struct):
        return st.tuples(*(scalars(each) for _, each in data_type.fields)).map(data_type.cast_scalar)
    if data_type.name == "string":
        return st.text(max_size=9)
    if data_type.name == "bytes":
        return st.binary(max_size=9)
    if isinstance(data_type, FixedLengthUTF32):
        return st.text(max_size=data_type.length).map(data_type.cast_scalar)
    if isinstance(data_type, NullTerminatedBytes):
        return st.binary(max_size=data_type.length).map(data_type.cast_scalar)
    if data_type.name in DATA_TYPES:
        return elements(data_type.name)
    machine = data_type.in_native_order()

    def scalar(raw: bytes) -> Any:
        return machine.decoded(np.frombuffer(raw, machine.to_native_dtype()))[0]

    size = data_type.item_size
    return st.binary(min_size=size, max_size=size).map(scalar)


@st.composite
def arrays_of(draw: st.DrawFn, data_type: ZDType, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """An array of any data type; its elements repeat, so that large ones stay cheap to draw."""
    pool = draw(st.lists(scalars(data_type), min_size=1, max_size=4))
    seed = draw(st.integers(0, 2**32 - 1))
    array = data_type.filled(shape, pool[0])
    picks = np.random.default_rng(seed).integers(0, len(pool), math.prod(shape))
    for at, pick in zip(np.ndindex(shape), picks, strict=True):
        array[at] = data_type.filled((), pool[pick])[()]
    return array


def shapes(min_dims: int = 0, max_dims: int = 4) -> st.SearchStrategy[tuple[int, ...]]:
    """Small shapes, some of them empty along a dimension."""
    lengths = st.sampled_from([0, 1, 2, 3, 5, 7, 9])
    return st.lists(lengths, min_size=min_dims, max_size=max_dims).map(tuple)


@st.composite
def compressors(draw: st.DrawFn) -> list[Any]:
    """Codecs from bytes to bytes: none, one or several, checksums among them."""
    one = st.one_of(
        st.builds(ZstdCodec, level=st.sampled_from([-5, 0, 1, 9]), checksum=st.booleans()),
        st.builds(GzipCodec, level=st.integers(0, 9)),
        st.builds(
            BloscCodec, cname=st.sampled_from(["lz4", "lz4hc", "blosclz", "zlib", "zstd"]),
            clevel=st.integers(0, 9), shuffle=st.sampled_from([None, "noshuffle", "shuffle", "bitshuffle"]),
            typesize=st.sampled_from([None, 1, 3, 8]),
        ),
        st.just(Crc32cCodec()),
    )  # fmt: skip
    return draw(st.lists(one, max_size=2))


@st.composite
def layouts(draw: st.DrawFn, name: str, shape: tuple[int, ...]) -> dict[str, Any]:
    """Options of ``create_array``: grid, shards (nested ones too), codecs, fill value and keys."""
    ndim, orders = len(shape), st.permutations(range(len(shape))).map(tuple)
    inner = tuple(draw(st.sampled_from([1, 2, 3, 4, 11])) for _ in shape)
    keys = [None, "v2", {"name": "default", "separator": "."}, {"name": "v2", "separator": "/"}]
    options: dict[str, Any] = {
        "dtype": name if name[0] == "r" else native(name), "chunks": inner,
        "filters": [TransposeCodec(draw(orders))] if ndim and draw(st.booleans()) else None,
        "serializer": BytesCodec(draw(st.sampled_from(["little", "big"]))),
        "compressors": draw(compressors()), "fill_value": draw(st.one_of(st.none(), elements(name))),
        "chunk_key_encoding": draw(st.sampled_from(keys)), "write_empty_chunks": draw(st.booleans()),
    }  # fmt: skip
    kind = draw(st.sampled_from(["plain", "plain", "sharded", "start", "nested", "squeezed"]))
    if kind == "plain":
        return options
    shard = tuple(length * draw(st.sampled_from([1, 2, 3])) for length in inner)
    if kind == "sharded":
        return {**options, "shards": shard}
    codecs = (*(options.pop("filters") or ()), options.pop("serializer"), *options.pop("compressors"))
    location, little, check = st.sampled_from(["start", "end"]), BytesCodec("little"), Crc32cCodec()
    index_codecs = st.sampled_from([(little, check), (BytesCodec("big"),), (little, check, check)])
    index = {"index_codecs": draw(index_codecs), "index_location": draw(location)}
    options |= {"serializer": ShardingCodec(inner, codecs, **index), "compressors": None, "chunks": shard}
    if kind == "nested":
        options["serializer"] = ShardingCodec(shard, (options["serializer"],), index_location=draw(location))
        options["chunks"] = tuple(length * draw(st.sampled_from([1, 2])) for length in shard)
    if kind == "squeezed":  # Codecs around a shard: it cannot be read in parts.
        options["compressors"] = draw(compressors())
        if ndim and draw(st.booleans()):
            order = draw(orders)
            options["filters"] = TransposeCodec(order)
            options["chunks"] = tuple(shard[order.index(axis)] for axis in range(ndim))
            # The shard sees the chunk transposed, so the chunk is given with its dimensions put back.
    return options


@st.composite
def edges(draw: st.DrawFn, size: int) -> list[int]:
    """Lengths of chunks that cover a dimension."""
    lengths = draw(st.lists(st.integers(1, 4), max_size=3))
    while sum(lengths) < size:
        lengths.append(draw(st.sampled_from([1, 2, 4, 11])))
    return lengths


@st.composite
def uneven_layouts(draw: st.DrawFn, name: str, shape: tuple[int, ...]) -> dict[str, Any]:
    """Options of ``create_array`` for chunks, or shards, of different lengths."""
    lengths = [draw(edges(size)) for size in shape]
    dtype: Any = name if name[0] == "r" else native(name)
    options: dict[str, Any] = {"dtype": dtype, "compressors": draw(compressors())}
    if draw(st.booleans()):
        scale = [draw(st.sampled_from([1, 2])) for _ in shape]
        shards = [[n * by for n in along] for along, by in zip(lengths, scale, strict=True)]
        return {**options, "chunks": (1,) * len(shape), "shards": shards}
    return {**options, "chunks": lengths}


@st.composite
def selections(draw: st.DrawFn, shape: tuple[int, ...]) -> Any:
    """A basic selection that fits the shape: integers, slices with any step, at most one Ellipsis."""
    indices: list[Any] = []
    for length in shape[: draw(st.integers(0, len(shape)))]:
        bound = st.one_of(st.none(), st.integers(-length - 2, length + 2))
        step = st.sampled_from([None, 1, 2, 3, -1, -2, -4, 100, -100])
        index: st.SearchStrategy[Any] = st.builds(slice, bound, bound, step)
        if length:
            whole = st.integers(-length, length - 1)
            index = st.one_of(index, index, whole, whole.map(np.int64))
        indices.append(draw(index))
    if draw(st.booleans()):
        if draw(st.booleans()) and len(indices) == len(shape) and indices:
            # The Ellipsis in front counts from the back, which is the same here.
            indices.insert(draw(st.integers(0, len(indices))), ...)
        else:
            indices.append(...)
    if len(indices) == 1 and draw(st.booleans()):
        return indices[0]
    return tuple(indices)


_WORDS = st.sampled_from(
    [
        "bytes", "zstd", "regular", "default", "v2", "NaN", "0x7fc00000", "float32", "r16", "/", "3", "",
        "é\0", "sharding_indexed", "transpose", "must_understand", "name", "configuration",
    ]
)  # fmt: skip
_FIELDS = st.sampled_from(["name", "configuration", "must_understand", "chunk_shape", "codecs"])
JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.integers(-2, 6), st.floats(),
        st.text(max_size=6), _WORDS,
    ),
    lambda children: st.one_of(
        st.lists(children, max_size=3),
        st.dictionaries(st.one_of(st.text(max_size=4), _FIELDS), children, max_size=3),
    ),
    max_leaves=6,
)  # fmt: skip
"""Any JSON value, NaN and infinities included, with the words of documents among the strings."""

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}


def array_document(**changes: Any) -> dict[str, Any]:
    """A valid document of a 4 by 6 array of int16 in 2 by 3 chunks; ``...`` leaves a field out."""
    document: dict[str, Any] = {
        "zarr_format": 3, "node_type": "array", "shape": [4, 6], "data_type": "int16",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0, "codecs": [LITTLE], **changes,
    }  # fmt: skip
    return {field: value for field, value in document.items() if value is not ...}


def chunk_document(dtype: str, chunk: tuple[int, ...], codecs: list[Any], **changes: Any) -> dict[str, Any]:
    """The document of an array that is one chunk."""
    grid = {"name": "regular", "configuration": {"chunk_shape": list(chunk)}}
    fill: Any = False if dtype == "bool" else 0
    return array_document(
        **{"shape": list(chunk), "data_type": dtype, "chunk_grid": grid, "fill_value": fill, **changes},
        codecs=codecs,
    )


def stored(document: Mapping[str, Any], chunks: Mapping[str, bytes] | None = None) -> xzarr3.Array:
    """The array of a document and chunks that somebody else wrote, open for writing."""
    store = xzarr3.MemoryStore({"zarr.json": json.dumps(document).encode(), **(chunks or {})})
    return xzarr3.open_array(store, mode="r+")


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values within a JSON value, its own among them."""
    yield path
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, inner in items:
        yield from places(inner, (*path, key))
