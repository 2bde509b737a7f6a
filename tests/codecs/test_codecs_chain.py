"""Chains of codecs where something is wrong: stored elements, codecs of others, bounds, indexes of shards."""

from __future__ import annotations

import base64
import json
import math
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import xzarr3
from xzarr3 import ChunkDecodeError, ChunkEncodeError, ChunkError, MetadataError, StoreError
from xzarr3._types import Buffer
from xzarr3.codecs import (
    ArrayArrayCodec,
    ArrayBytesCodec,
    BytesBytesCodec,
    BytesCodec,
    ChunkSpec,
    ConditionalCodec,
    Crc32cCodec,
    GzipCodec,
    ShardingCodec,
    TransposeCodec,
    parse_codec,
    register_codec,
    registry,
)
from xzarr3.codecs.pipeline import MAX_CODECS, CodecChain, most_encoded
from xzarr3.codecs.sharding import Shard
from xzarr3.dtypes import parse_dtype
from xzarr3.errors import DataTypeValidationError

EMPTY = 2**64 - 1
MIB = 2**20


# Characters that are none

LAYOUTS: dict[str, dict[str, Any]] = {
    "plain": {"compressors": None},
    "big endian": {"compressors": None, "serializer": BytesCodec("big")},
    "one compressor": {"compressors": "zstd"},
    "two compressors": {"compressors": ["gzip", "crc32c"]},
    "transposed": {"filters": TransposeCodec((1, 0)), "compressors": None},
    "plain in shards": {"compressors": None, "shards": (64, 64)},
    "compressed in shards": {"compressors": "zstd", "shards": (64, 64)},
    "compressed shards": {"serializer": ShardingCodec((16, 16)), "compressors": "zstd"},
}
TEXT = np.array([["ab", "\U0010ffff\ud800"], ["", "\udfff"]])
TYPES: dict[str, tuple[Any, int, Callable[[Any], Any]]] = {
    "text": ("<U2", 3, lambda array: array),
    "text, version 2": ("<U2", 2, lambda array: array),
    "big endian text, version 2": (">U2", 2, lambda array: array),
    "field": ([("n", "i2"), ("t", "<U2")], 3, lambda array: array["t"]),
    "field of a field": ([("n", "i2"), ("s", [("t", "<U2")])], 3, lambda array: array["s"]["t"]),
    "field, version 2": ([("n", "<i2"), ("t", ">U2")], 2, lambda array: array["t"]),
    "field of arrays, version 2": ([("n", "<i2"), ("t", "<U2", (2,))], 2, lambda array: array["t"][..., 0]),
}


def codes_of(text: Any) -> Any:
    """The code points of an array of text."""
    order = np.dtype("u4").newbyteorder(text.dtype.byteorder)
    return text.view(np.dtype((order, (text.dtype.itemsize // 4,))))


def has_layout(kind: str, layout: str) -> bool:
    return "version 2" not in kind or layout in ("plain", "one compressor")


def text_array(kind: str, layout: str) -> tuple[xzarr3.MemoryStore, xzarr3.Array, Any]:
    """An array of text all over which there are all characters that are permitted, and its values."""
    dtype, zarr_format, text_of = TYPES[kind]
    values = np.zeros((64, 64), np.dtype(dtype))
    text_of(values)[...] = np.tile(TEXT, (32, 32))
    options = dict(LAYOUTS[layout])
    chunks = (16, 16) if "shards" in options else (64, 64)
    store = xzarr3.MemoryStore()
    xzarr3.create_array(store, data=values, chunks=chunks, zarr_format=zarr_format, **options)
    return store, xzarr3.open_array(store, mode="r+"), values


@pytest.mark.parametrize(
    ("kind", "layout"), [(kind, layout) for kind in TYPES for layout in LAYOUTS if has_layout(kind, layout)]
)
@pytest.mark.parametrize("code", [0x110000, 2**31, 2**32 - 1])
def test_characters_that_are_none(kind: str, layout: str, code: int) -> None:
    store, array, values = text_array(kind, layout)
    assert np.array_equal(array[...], values)
    (key,) = [key for key in store.list_prefix("") if not key.rpartition("/")[2].startswith((".z", "zarr"))]
    wrong = values.copy()
    codes_of(TYPES[kind][2](wrong))[40, 7, 1] = code
    store.set(key, bytes(array.metadata.chain.encode(wrong.astype(array.metadata.chain.spec.dtype))))
    for selection in (
        ...,
        (40, 7),
        (slice(40, 41), slice(4, 9)),
        (slice(None), 7),
        (slice(60, None, -4), slice(None, None, 7)),
        ([3, 40], [7, 7]),
    ):
        with pytest.raises(ChunkDecodeError, match=f"found '0x{code:X}'") as caught:
            array[selection]
        assert (caught.value.key, caught.value.chunk) == (key, (0, 0))
        assert caught.value.codec in ("bytes", "sharding_indexed")
        assert caught.value.inner_chunk in (None, (2, 0))
        assert isinstance(caught.value.__cause__, DataTypeValidationError)
    with pytest.raises(ChunkDecodeError):
        array.vindex[[40, 1], [7, 7]]
    if layout in ("plain", "big endian", "plain in shards", "compressed in shards"):
        assert np.array_equal(array[3:9, 20:30], values[3:9, 20:30])
    with pytest.raises(DataTypeValidationError):
        array[...] = wrong
    with pytest.raises(DataTypeValidationError):
        array[40, 7] = wrong[40, 7:8].reshape(())


@pytest.mark.parametrize("dtype", ["<U3", ">U3", "<U1", ">U5"])
def test_text_is_checked_as_it_lies(dtype: str) -> None:
    data_type = parse_dtype(dtype)
    array = np.full((6, 8), "a\U0010ffff", dtype)
    assert data_type.has_unused_bits
    for view in (array, array.T, array[::2, ::-3], array[0, 0:0], array[1, 1, ...], array[:0]):
        assert data_type.decoded(view) is view
    codes_of(array)[2, 3, -1] = 0x110000
    for view in (array, array.T, array[::2, ::-1], array[2, 3, ...]):
        with pytest.raises(DataTypeValidationError, match="0x110000"):
            data_type.decoded(view)
        with pytest.raises(DataTypeValidationError, match="0x110000"):
            parse_dtype("<U9").cast_array(view)
    assert data_type.decoded(array[::2, ::-3]).shape == (3, 3)


def test_fill_values_of_characters_that_are_none() -> None:
    raw = struct.pack("<hII", 1, 97, 0x110000)
    document = {
        "zarr_format": 2, "shape": [3], "chunks": [3], "dtype": [["n", "<i2"], ["t", "<U2"]], "order": "C",
        "filters": None, "compressor": None, "fill_value": base64.b64encode(raw).decode(),
    }  # fmt: skip
    with pytest.raises(MetadataError, match="0x110000"):
        xzarr3.open_array(xzarr3.MemoryStore({".zarray": json.dumps(document).encode()}))
    raw = struct.pack("<hII", 1, 97, 0x10FFFF)
    document["fill_value"] = base64.b64encode(raw).decode()
    array = xzarr3.open_array(xzarr3.MemoryStore({".zarray": json.dumps(document).encode()}))
    assert array[1].tolist() == (1, "a\U0010ffff")


# Codecs of other packages that fail


class _ForeignError(Exception):
    """What is no error of Python's or ours."""


FAILURES: list[Exception] = [
    ZeroDivisionError("no luck"),
    ValueError("no luck"),
    KeyError("no luck"),
    RuntimeError("no luck"),
    OSError("no luck"),
    zlib.error("no luck"),
    struct.error("no luck"),
    _ForeignError("no luck"),
]


class _Plan:
    """What the codecs below raise, in which method."""

    where = ""
    error: BaseException = ValueError()

    @classmethod
    def step(cls, where: str) -> None:
        if where == cls.where:
            raise cls.error


@dataclass(frozen=True)
class _FailingFilter(ArrayArrayCodec):
    name = "example.filter"

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> Self:
        return cls()

    def resolve(self, spec: ChunkSpec) -> ChunkSpec:
        return spec

    def encode(self, array: Any, spec: ChunkSpec) -> Any:
        _Plan.step("encode")
        return array

    def decode(self, array: Any, spec: ChunkSpec) -> Any:
        _Plan.step("decode")
        return array[:1] if _Plan.where == "shape" else array


@dataclass(frozen=True)
class _FailingSerializer(ArrayBytesCodec):
    name = "example.serializer"

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> Self:
        return cls()

    def encoded_size(self, spec: ChunkSpec) -> int | None:
        return spec.nbytes

    def max_encoded_size(self, spec: ChunkSpec) -> int:
        return spec.nbytes

    def encode(self, array: Any, spec: ChunkSpec) -> Buffer:
        _Plan.step("encode")
        return array.tobytes()  # type: ignore[no-any-return]

    def decode(self, data: Buffer, spec: ChunkSpec) -> Any:
        _Plan.step("decode")
        shape = (math.prod(spec.shape),) if _Plan.where == "shape" else spec.shape
        return np.frombuffer(data, spec.dtype).reshape(shape)


@dataclass(frozen=True)
class _FailingCompressor(BytesBytesCodec):
    name = "example.compressor"

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> Self:
        return cls()

    def encoded_size(self, size: int) -> int | None:
        return size

    def max_encoded_size(self, size: int) -> int:
        return size

    def encode(self, data: Buffer) -> Buffer:
        _Plan.step("encode")
        return data

    def decode(self, data: Buffer, limit: int) -> Buffer:
        _Plan.step("decode")
        return data


@dataclass(frozen=True)
class _FailingDirectly(_FailingCompressor):
    """One that decodes straight to where a chunk is wanted."""

    name = "example.direct"
    direct_from = 0

    def decode_into(self, data: Buffer, out: memoryview) -> bool:
        _Plan.step("decode")
        out[:] = bytes(data)
        return True


EXAMPLES = (_FailingFilter, _FailingSerializer, _FailingCompressor, _FailingDirectly)
PLACES: dict[str, tuple[str, dict[str, Any]]] = {
    "filter": ("example.filter", {"filters": _FailingFilter(), "compressors": None}),
    "filter among others": (
        "example.filter",
        {"filters": [TransposeCodec((1, 0)), _FailingFilter(), TransposeCodec((1, 0))], "compressors": None},
    ),
    "serializer": ("example.serializer", {"serializer": _FailingSerializer(), "compressors": "gzip"}),
    "compressor": ("example.compressor", {"compressors": ["gzip", _FailingCompressor(), "crc32c"]}),
    "compressor that is alone": ("example.direct", {"compressors": _FailingDirectly()}),
    "in conditional": (
        "example.compressor",
        {"compressors": ConditionalCodec(["gzip", _FailingCompressor()])},
    ),
    "in shards": ("example.compressor", {"compressors": _FailingCompressor(), "shards": (8, 8)}),
    "in compressed shards": (
        "example.filter",
        {
            "serializer": ShardingCodec((2, 2), (_FailingFilter(), BytesCodec("little"))),
            "compressors": "gzip",
        },
    ),
    "index": (
        "example.compressor",
        {
            "serializer": ShardingCodec(
                (2, 2), (BytesCodec(),), (BytesCodec("little"), _FailingCompressor(), Crc32cCodec())
            ),
            "compressors": None,
        },
    ),
}


@pytest.fixture
def failing() -> Iterator[type[_Plan]]:
    for codec in EXAMPLES:
        register_codec(codec)
    _Plan.where = ""
    yield _Plan
    _Plan.where = ""
    for codec in EXAMPLES:
        del registry._loaded[codec.name]
    registry._parsed.clear()


def example(place: str) -> xzarr3.Array:
    options = PLACES[place][1]
    array = xzarr3.create_array(
        xzarr3.MemoryStore(), shape=(16, 16), dtype="int32", **options,
        chunks=(2, 2) if "shards" in options else (8, 8),
    )  # fmt: skip
    array[...] = np.arange(256).reshape(16, 16)
    return array


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
def test_what_a_codec_of_another_package_raises(failing: type[_Plan], place: str, error: Exception) -> None:
    array, values = example(place), np.arange(256).reshape(16, 16)
    assert np.array_equal(array[...], values)
    failing.error = error
    attempts: list[tuple[str, Callable[[], object], type[ChunkError]]] = [
        ("decode", lambda: array[9, 9], ChunkDecodeError),
        ("decode", lambda: array[8:, 8:], ChunkDecodeError),
        ("decode", lambda: array.__setitem__((9, 9), 1), ChunkDecodeError),
        ("encode", lambda: array.__setitem__((9, 9), 1), ChunkEncodeError),
        ("encode", lambda: array.__setitem__((slice(8, None), slice(8, None)), 5), ChunkEncodeError),
    ]
    for where, attempt, kind in attempts:
        failing.where = where
        with pytest.raises(kind, match="no luck") as caught:
            attempt()
        failing.where = ""
        assert type(caught.value) is kind
        assert caught.value.codec == PLACES[place][0]
        assert caught.value.chunk == (1, 1)
        assert caught.value.key == "c/1/1"
        assert caught.value.__cause__ is error
        assert type(error).__name__ in caught.value.reason
        if place in ("in shards", "in compressed shards"):
            assert caught.value.inner_chunk == (0, 0)
        assert np.array_equal(array[...], values)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "error", [MemoryError("none left"), StoreError("elsewhere"), KeyboardInterrupt()], ids=repr
)
def test_what_is_handed_on_as_it_is(failing: type[_Plan], place: str, error: BaseException) -> None:
    array = example(place)
    failing.error = error
    for failing.where in ("decode", "encode"):
        with pytest.raises(type(error)) as caught:
            array[9, 9] = 1
        assert caught.value is error


@pytest.mark.parametrize("place", ["filter", "serializer"])
def test_a_codec_that_returns_another_shape(failing: type[_Plan], place: str) -> None:
    array = example(place)
    failing.where = "shape"
    for selection in (..., (9, 9)):
        with pytest.raises(ChunkDecodeError, match="shape") as caught:
            array[selection]
        assert caught.value.codec == PLACES[place][0]
        assert caught.value.key is not None


def test_a_codec_that_returns_no_bytes(failing: type[_Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    array = example("compressor")
    monkeypatch.setattr(_FailingCompressor, "decode", lambda self, data, limit: None)
    with pytest.raises(ChunkDecodeError) as caught:
        array[9, 9]
    assert (caught.value.chunk, caught.value.key) == ((1, 1), "c/1/1")


def test_a_size_that_cannot_be_told(failing: type[_Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    failing.error, failing.where = TypeError("no luck"), "size"
    monkeypatch.setattr(_FailingSerializer, "encoded_size", lambda self, spec: failing.step("size"))
    with pytest.raises(MetadataError, match=r"example\.serializer.*no luck") as caught:
        CodecChain((_FailingSerializer(),), ChunkSpec((4,), parse_dtype("int8"), np.int8(0)))
    assert caught.value.field == "codecs[0]"


# Bounds


def spec_of(size: int) -> ChunkSpec:
    return ChunkSpec((size,), parse_dtype("uint8"), np.uint8(0))


def limits_of(chain: CodecChain) -> list[int]:
    return [limit for _, limit in chain._compressors] + [chain.max_encoded_size]


@pytest.mark.parametrize("size", [1, 1024, 50 * MIB])
@pytest.mark.parametrize(
    "compressor",
    [GzipCodec(), ConditionalCodec(["gzip"] * 64), parse_codec("numcodecs.lzma"), parse_codec("zstd")],
    ids=lambda codec: codec.name,
)
def test_bounds_do_not_grow_with_the_number_of_codecs(size: int, compressor: Any) -> None:
    many = CodecChain((BytesCodec(), *[compressor] * (MAX_CODECS - 1)), spec_of(size))
    assert max(limits_of(many)) <= 2 * size + MIB
    one = CodecChain((BytesCodec(), compressor), spec_of(size))
    assert limits_of(one)[0] == size
    noise = np.random.default_rng(1).integers(0, 256, min(size, 5000), "u1")
    if size <= 1024:
        assert np.array_equal(many.decode(many.encode(noise)), noise)


def test_bounds_do_not_grow_with_shards_in_shards() -> None:
    codecs: tuple[Any, ...] = (BytesCodec(),)
    for _ in range(60):
        codecs = (ShardingCodec((100,), codecs), GzipCodec(), GzipCodec())
    chain = CodecChain(codecs, spec_of(100))
    assert max(limits_of(chain)) <= 60 * 2 * 2**12 + 2 * MIB
    values = np.random.default_rng(1).integers(0, 256, 100, "u1")
    assert np.array_equal(chain.decode(chain.encode(values)), values)


@pytest.mark.parametrize("inner", ["gzip", "numcodecs.bz2", "numcodecs.lzma", "zstd"])
def test_bounds_of_many_small_chunks_hold(inner: str) -> None:
    """Where each inner chunk takes far more than its one byte."""
    codecs = (ShardingCodec((1,), (BytesCodec(), parse_codec(inner), Crc32cCodec())), GzipCodec())
    chain = CodecChain(codecs, spec_of(3000))
    values = np.random.default_rng(1).integers(1, 256, 3000, "u1")
    assert np.array_equal(chain.decode(chain.encode(values)), values)
    assert limits_of(chain)[0] >= len(CodecChain(codecs[:1], spec_of(3000)).encode(values))


@pytest.mark.parametrize("depth", [1, 2, 20])
def test_bounds_within_conditional(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each one decodes to at most what its document can be believed to mean, however they are nested."""
    limits: list[int] = []
    decode = GzipCodec.decode

    def noting(self: GzipCodec, data: Buffer, limit: int) -> Buffer:
        limits.append(limit)
        return decode(self, data, limit)

    monkeypatch.setattr(GzipCodec, "decode", noting)
    codec: Any = GzipCodec()
    for _ in range(depth):
        codec = ConditionalCodec([codec] * 2 + [GzipCodec()] * 10)
    value: Any = b"zarr"

    def encoded(codec: Any, data: bytes) -> bytes:
        """Every codec applied, whether it helps or not."""
        if not isinstance(codec, ConditionalCodec):
            return bytes(codec.encode(data))
        applied = 0
        for bit, each in list(enumerate(codec.codecs))[1:]:  # One branch is enough of a tree that deep.
            data, applied = encoded(each, data), applied | 1 << bit
        return applied.to_bytes(2, "little") + data

    value = encoded(codec, value)
    assert bytes(codec.decode(value, 1024)) == b"zarr"
    assert len(limits) > 10 * depth
    assert max(limits) <= 2 * 1024 + MIB
    assert codec.max_encoded_size(1024) <= 2 * 1024 + MIB + 2


def test_a_bomb_in_many_layers_ends_early() -> None:
    """What would be 64 MiB on the way to a chunk of 1 KiB."""
    chain = CodecChain((BytesCodec(), *[GzipCodec()] * 4), spec_of(1024))
    value: Any = bytes(64 * MIB)
    for _ in range(3):
        value = zlib.compress(value, 9, 31)
    value = zlib.compress(bytes(value), 9, 31)
    with pytest.raises(ChunkDecodeError, match="at most"):
        chain.decode(value)


def test_elements_of_no_fixed_size_keep_their_bound() -> None:
    data_type = parse_dtype("string")
    spec = ChunkSpec((2,), data_type, "")
    chain = CodecChain((parse_codec("vlen-utf8"), *[GzipCodec()] * 60), spec)
    assert set(limits_of(chain)) == {2**31 - 1}


def gzips(number: int) -> list[Any]:
    return [{"name": "gzip", "configuration": {"level": 1}}] * number


@pytest.mark.parametrize("number", [MAX_CODECS, MAX_CODECS + 1, 3000])
def test_lists_of_many_codecs(number: int) -> None:
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    inner = [little, *gzips(number - 1)]
    shard = {"chunk_shape": [1], "codecs": [little], "index_codecs": [little], "index_location": "end"}
    checks = [{"name": "crc32c"}] * (number - 1)
    lists = {
        "codecs": inner,
        "codecs[1].configuration.codecs": [
            little, {"name": "conditional", "configuration": {"codecs": gzips(number)}}],
        "codecs[0].configuration.codecs": [
            {"name": "sharding_indexed", "configuration": {**shard, "codecs": inner}}],
        "codecs[0].configuration.index_codecs": [
            {"name": "sharding_indexed", "configuration": {**shard, "index_codecs": [little, *checks]}}],
    }  # fmt: skip
    for field, codecs in lists.items():
        document = {
            "zarr_format": 3, "node_type": "array", "shape": [4], "data_type": "int16", "codecs": codecs,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}}, "fill_value": 0,
            "chunk_key_encoding": {"name": "default"}, "attributes": {},
        }  # fmt: skip
        store = xzarr3.MemoryStore({"zarr.json": json.dumps(document).encode()})
        if number <= MAX_CODECS:
            array = xzarr3.open_array(store, mode="r+")
            array[...] = [1, 2, 3, 4]
            assert array[...].tolist() == [1, 2, 3, 4]
            continue
        with pytest.raises(MetadataError, match=str(MAX_CODECS)) as caught:
            xzarr3.open_array(store)
        assert caught.value.field == field


# Entries of the index of a shard


def shard_with(entries: list[tuple[int, int]], body: bytes) -> bytes:
    return body + b"".join(struct.pack("<QQ", *entry) for entry in entries)


def shard_array(value: bytes, nested: bool) -> xzarr3.Array:
    inner: Any = (BytesCodec("little"),)
    if nested:
        inner = (ShardingCodec((2,), inner, (BytesCodec("little"),)),)
    codec = ShardingCodec((4,), inner, (BytesCodec("little"),))
    store = xzarr3.MemoryStore()
    array = xzarr3.create_array(
        store, shape=(16,), chunks=(16,), dtype="uint8", serializer=codec, compressors=None, fill_value=9
    )
    store.set("c/0", value)
    return array


PART = {False: bytes([1, 2, 3, 4]), True: shard_with([(0, 2), (2, 2)], bytes([1, 2, 3, 4]))}
LIES = {
    "no offset": lambda size, end: (EMPTY, size),
    "no offset and no size": lambda size, end: (EMPTY, 0),
    "no size": lambda size, end: (0, EMPTY),
    "one less": lambda size, end: (EMPTY - 1, EMPTY),
    "two less": lambda size, end: (EMPTY, EMPTY - 1),
    "huge": lambda size, end: (0, 2**63),
    "too large": lambda size, end: (0, size + MIB),
    "beyond the end": lambda size, end: (end - size + 1, size),
    "far beyond the end": lambda size, end: (2**63, size),
    "sum beyond 64 bits": lambda size, end: (EMPTY - 1, size),
}


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("lie", LIES)
def test_entries_that_cannot_be_true(lie: str, nested: bool) -> None:
    part = PART[nested]
    size, end = len(part), len(part) + 64
    entries = [(0, size), (EMPTY, EMPTY), LIES[lie](size, end), (0, size)]
    value = shard_with(entries, part)
    array = shard_array(value, nested)
    attempts: dict[str, Callable[[], object]] = {
        "whole": lambda: array[...],
        "most": lambda: array[1:],
        "an element": lambda: array[9],
        "decoded": lambda: array.metadata.chain.decode(value),
        "changed there": lambda: array.__setitem__(9, 1),
        "replaced there": lambda: array.__setitem__(slice(8, 12), 1),
        "changed elsewhere": lambda: array.__setitem__(1, 1),
        "replaced elsewhere": lambda: array.__setitem__(slice(4, 8), 1),
        "emptied elsewhere": lambda: array.__setitem__(slice(0, 4), 9),
    }
    for what, attempt in attempts.items():
        with pytest.raises(ChunkDecodeError) as caught:
            attempt()
        assert caught.value.inner_chunk is not None, what
        assert caught.value.inner_chunk[0] == 2, what
        assert caught.value.codec == "sharding_indexed", what
        assert what == "decoded" or (caught.value.key, caught.value.chunk) == ("c/0", (0,))
        assert bytes(array.store.get("c/0")) == value, what
    assert array[0:8].tolist() == [1, 2, 3, 4, 9, 9, 9, 9]


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(data=st.data(), nested=st.booleans())
def test_there_is_one_answer(data: st.DataObject, nested: bool) -> None:
    """Whatever way is taken, an inner chunk is there, is not there, or is an error."""
    part = PART[nested]
    size, end = len(part), len(part) + 64
    numbers = st.one_of(
        st.sampled_from([0, 1, size, size + 1, end - size, end, EMPTY, EMPTY - 1, 2**63]),
        st.integers(0, EMPTY),
    )
    entry = st.one_of(st.just((0, size)), st.just((EMPTY, EMPTY)), st.tuples(numbers, numbers))
    entries = [data.draw(entry) for _ in range(4)]
    array = shard_array(shard_with(entries, part), nested)
    shard = array.metadata.chain.shard
    assert isinstance(shard, Shard)
    expected = []
    for offset, length in entries:
        if (offset, length) == (EMPTY, EMPTY):
            expected.append("absent")
        else:
            fits = length == 0 or (offset + length <= end and length <= shard.max_inner_size)
            expected.append("there" if fits and offset != EMPTY else "error")
    index = np.array(entries, np.uint64)
    try:
        there = shard.present(index, size=end)
        assert [
            ("there" if each else "absent") for each in ([True] * 4 if there is None else there)
        ] == expected
        assert there is None or not there.all()
    except ChunkDecodeError as error:
        where = error.inner_chunk
        if where is None or expected[where[0]] != "error":
            raise
    for at, what in enumerate(expected):
        alone = [(0, size)] * 4
        alone[at] = entries[at]
        array = shard_array(shard_with(alone, part), nested)
        value = bytes(array.store.get("c/0"))
        before = None
        try:
            before = array[4 * at : 4 * at + 4].tolist()
        except ChunkDecodeError:
            # An inner chunk may be where it is said to be, and be something else.
            assert what == "error" or entries[at] != (0, size)
        if what == "absent":
            assert before == [9, 9, 9, 9]
        other = (at + 1) % 4
        if what == "error":
            assert before is None
            with pytest.raises(ChunkDecodeError):
                array[4 * other] = 77
            assert bytes(array.store.get("c/0")) == value
        else:
            array[4 * other] = 77
            if before is None:
                with pytest.raises(ChunkDecodeError):
                    array[4 * at : 4 * at + 4]
            else:
                assert array[4 * at : 4 * at + 4].tolist() == before


def test_the_inner_chunk_of_a_shard_without_dimensions() -> None:
    codec = ShardingCodec((), (BytesCodec("little"),), (BytesCodec("little"),))
    array = xzarr3.create_array(
        xzarr3.MemoryStore(), shape=(), dtype="uint8", serializer=codec, compressors=None, chunks=()
    )
    array.store.set("c", shard_with([(EMPTY, 1)], b"\1"))
    for attempt in (lambda: array[...], lambda: array.metadata.chain.decode(array.store.get("c"))):
        with pytest.raises(ChunkDecodeError) as caught:
            attempt()
        assert caught.value.inner_chunk == ()
    array.store.set("c", shard_with([(0, 1)], b"\1"))
    assert array[()] == 1


# Who writes an array while another one is written


@dataclass(frozen=True)
class _Writing(BytesBytesCodec):
    """Writes an array of its own before it hands on what it is given."""

    name = "example.writing"
    depth: int = 1

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> Self:
        return cls(**configuration)

    def configuration(self) -> dict[str, Any]:
        return {"depth": self.depth}

    def encoded_size(self, size: int) -> int:
        return size

    def max_encoded_size(self, size: int) -> int:
        return size

    def encode(self, data: Buffer) -> Buffer:
        write_another(replace(self, depth=self.depth - 1) if self.depth else None)
        return data

    def decode(self, data: Buffer, limit: int) -> Buffer:
        return data


def write_another(codec: BytesBytesCodec | None = None) -> None:
    """Write an array whose chunks have to be put together in memory, and look at it."""
    values = np.full((4, 8, 8), 200, "u1")
    array = xzarr3.create_array(
        xzarr3.MemoryStore(), shape=values.shape, chunks=(4, 4, 4), dtype="u1", compressors=codec
    )
    array[...] = values
    assert (array[...] == 200).all()


class _WritingStore(xzarr3.MemoryStore):
    """Writes another array before it writes a value."""

    busy = False

    def set(self, key: str, value: Any) -> None:
        if not self.busy:
            self.busy = True
            write_another()
            self.busy = False
        super().set(key, value)

    def set_pieces(self, key: str, pieces: Any) -> None:
        self.set(key, b"".join(self._look(pieces)))

    def _look(self, pieces: Any) -> Any:
        write_another()
        return pieces


@pytest.mark.parametrize("store", [xzarr3.MemoryStore, _WritingStore])
@pytest.mark.parametrize(
    "compressors", [None, _Writing(), [_Writing(2), _Writing()], [_Writing(), "gzip"]], ids=repr
)
@pytest.mark.parametrize("shards", [None, (8, 8)])
def test_an_array_is_written_while_another_is(store: Any, compressors: Any, shards: Any) -> None:
    register_codec(_Writing)
    try:
        values = np.arange(256, dtype="u1").reshape(16, 16)
        array = xzarr3.create_array(
            store(), shape=values.shape, chunks=(4, 4), shards=shards, dtype="u1", compressors=compressors
        )
        array[...] = values
        assert np.array_equal(array[...], values)
        array[2:13, 3:15] = values[2:13, 3:15].T.reshape(11, 12)
        expected = values.copy()
        expected[2:13, 3:15] = values[2:13, 3:15].T.reshape(11, 12)
        assert np.array_equal(array[...], expected)
    finally:
        del registry._loaded[_Writing.name]
        registry._parsed.clear()


def test_pieces_are_good_as_long_as_they_are_there() -> None:
    chain = CodecChain((BytesCodec("little"),), ChunkSpec((4, 4), parse_dtype("int32"), np.int32(0)))
    values = np.arange(64, dtype="i4").reshape(8, 8)
    corners = [values[at : at + 4, along : along + 4] for at in (0, 4) for along in (0, 4)]
    encoded = [chain.encoded_pieces(corner) for corner in corners]
    parts = [chain.encode(corner) for corner in corners]
    for corner, pieces, part in zip(corners, encoded, parts, strict=True):
        assert b"".join(pieces) == bytes(part) == corner.tobytes()


def test_memory_is_used_again() -> None:
    """Otherwise every chunk would take fresh memory, which is what all this is for."""
    chain = CodecChain((BytesCodec("little"),), ChunkSpec((4, 4), parse_dtype("int32"), np.int32(0)))
    corner = np.arange(64, dtype="i4").reshape(8, 8)[:4, :4]

    def place(data: Any) -> int:
        return np.frombuffer(data, "u1").__array_interface__["data"][0]  # type: ignore[no-any-return]

    first = place(chain.encode(corner))
    assert {place(chain.encode(corner)) for _ in range(10)} == {first}
    kept = chain.encode(corner)
    part = memoryview(kept)[8:16]
    assert place(kept) == first
    del kept
    assert place(chain.encode(corner)) != first  # A part of it is still there.
    assert bytes(part) == corner.tobytes()[8:16]
    del part
    assert place(chain.encode(corner)) == first


def test_memory_comes_back_after_an_error(failing: type[_Plan]) -> None:
    chain = CodecChain(
        (BytesCodec("little"), _FailingCompressor()), ChunkSpec((4, 4), parse_dtype("int32"), np.int32(0))
    )
    corner = np.arange(64, dtype="i4").reshape(8, 8)[:4, :4]
    failing.error = ValueError("no luck")
    for failing.where in ("encode", "", "encode", ""):
        if failing.where:
            with pytest.raises(ChunkEncodeError):
                chain.encode(corner)
        else:
            assert bytes(chain.encode(corner)) == corner.tobytes()


def test_most_encoded() -> None:
    assert most_encoded(0) == MIB
    assert most_encoded(MIB) == 3 * MIB
