"""Chains of codecs where something is wrong: stored elements, codecs of others, bounds, indexes of shards."""

import base64
import json
import math
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from _chains import MIB, Unchanged, registered, spec_of
from _documents import zarray
from _peers import CRC32C, LITTLE, codec, sharding
from _slow import covering, slow
from _strategies import chunk_document, stored
from _things import refused, refuses

import xzarr3
from xzarr3 import ChunkDecodeError, ChunkEncodeError, MetadataError, StoreError
from xzarr3._types import Buffer
from xzarr3.codecs import BytesCodec, GzipCodec, ShardingCodec, TransposeCodec, base, parse_codec
from xzarr3.codecs.pipeline import MAX_CODECS, CodecChain
from xzarr3.errors import DataTypeValidationError

LAYOUTS: dict[str, dict[str, Any]] = {
    "plain": {"compressors": None}, "one compressor": {"compressors": "zstd"},
    "big endian": {"compressors": None, "serializer": BytesCodec("big")},
    "two compressors": {"compressors": ["gzip", "crc32c"]},
    "transposed": {"filters": TransposeCodec((1, 0)), "compressors": None},
    "plain in shards": {"compressors": None, "shards": (64, 64)},
    "compressed in shards": {"compressors": "zstd", "shards": (64, 64)},
    "compressed shards": {"serializer": ShardingCodec((16, 16)), "compressors": "zstd"},
}  # fmt: skip
TEXT = np.array([["ab", "\U0010ffff\ud800"], ["", "\udfff"]])
TYPES: dict[str, tuple[Any, int, Callable[[Any], Any]]] = {
    "text": ("<U2", 3, lambda array: array), "text, version 2": ("<U2", 2, lambda array: array),
    "big endian text, version 2": (">U2", 2, lambda array: array),
    "field": ([("n", "i2"), ("t", "<U2")], 3, lambda array: array["t"]),
    "field of a field": ([("n", "i2"), ("s", [("t", "<U2")])], 3, lambda array: array["s"]["t"]),
    "field, version 2": ([("n", ">i2"), ("t", ">U2")], 2, lambda array: array["t"]),
}  # fmt: skip


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


@pytest.mark.parametrize(("kind", "layout"), [
    (kind, layout)
    for kind in TYPES
    for layout in (("plain", "one compressor") if "version 2" in kind else LAYOUTS)
])  # fmt: skip
@pytest.mark.parametrize("code", [0x110000, slow(2**31), slow(2**32 - 1)])
def test_characters_that_are_none(kind: str, layout: str, code: int) -> None:
    store, array, values = text_array(kind, layout)
    assert np.array_equal(array[...], values)
    (key,) = [key for key in store.list_prefix("") if not key.rpartition("/")[2].startswith((".z", "zarr"))]
    wrong = values.copy()
    text = TYPES[kind][2](wrong)
    order = np.dtype("u4").newbyteorder(text.dtype.byteorder)
    text.view(np.dtype((order, (text.dtype.itemsize // 4,))))[40, 7, 1] = code
    store.set(key, bytes(array.metadata.chain.encode(wrong.astype(array.metadata.chain.spec.dtype))))
    places: list[Any] = [
        ..., (40, 7), (slice(40, 41), slice(4, 9)), (slice(None), 7),
        (slice(60, None, -4), slice(None, None, 7)), ([3, 40], [7, 7]),
    ]  # fmt: skip
    for error in refuses(array.__getitem__, places, ChunkDecodeError, f"found '0x{code:X}'"):
        assert (error.key, error.chunk) == (key, (0, 0))
        assert error.codec in ("bytes", "sharding_indexed")
        assert error.inner_chunk in (None, (2, 0))
        assert isinstance(error.__cause__, DataTypeValidationError)
    refused(ChunkDecodeError, None, lambda: array.vindex[[40, 1], [7, 7]])
    if layout in ("plain", "big endian", "plain in shards", "compressed in shards"):
        assert np.array_equal(array[3:9, 20:30], values[3:9, 20:30])
    one = wrong[40, 7:8].reshape(())
    refused(DataTypeValidationError, None, lambda: array.set(..., wrong), lambda: array.set((40, 7), one))


def test_fill_values_of_characters_that_are_none() -> None:
    for code in (0x10FFFF, 0x110000):
        fill = base64.b64encode(struct.pack("<hII", 1, 97, code)).decode()
        document = zarray(shape=[3], chunks=[3], dtype=[["n", "<i2"], ["t", "<U2"]], fill_value=fill)
        store = xzarr3.MemoryStore({".zarray": json.dumps(document).encode()})
        if code == 0x10FFFF:
            assert xzarr3.open_array(store)[1].tolist() == (1, "a\U0010ffff")
        else:
            refuses(xzarr3.open_array, [store], MetadataError, "0x110000")


class _ForeignError(Exception):
    """What is no error of Python's or ours."""


FAILURES: list[Exception] = [
    error("no luck")
    for error in (ZeroDivisionError, ValueError, KeyError, RuntimeError, OSError, zlib.error, struct.error,
                  _ForeignError)
]  # fmt: skip


class _Plan:
    where = ""
    error: BaseException = ValueError()

    @classmethod
    def step(cls, where: str) -> None:
        if where == cls.where:
            raise cls.error


@dataclass(frozen=True)
class _FailingFilter(base.ArrayArrayCodec):
    name = "example.filter"

    def resolve(self, spec: base.ChunkSpec) -> base.ChunkSpec:
        return spec

    def encode(self, array: Any, spec: base.ChunkSpec) -> Any:
        _Plan.step("encode")
        return array

    def decode(self, array: Any, spec: base.ChunkSpec) -> Any:
        _Plan.step("decode")
        return array[:1] if _Plan.where == "shape" else array


@dataclass(frozen=True)
class _FailingSerializer(base.ArrayBytesCodec):
    name = "example.serializer"

    def encoded_size(self, spec: base.ChunkSpec) -> int | None:
        return spec.nbytes

    def max_encoded_size(self, spec: base.ChunkSpec) -> int:
        return spec.nbytes

    def encode(self, array: Any, spec: base.ChunkSpec) -> Buffer:
        _Plan.step("encode")
        return array.tobytes()  # type: ignore[no-any-return]

    def decode(self, data: Buffer, spec: base.ChunkSpec) -> Any:
        _Plan.step("decode")
        shape = (math.prod(spec.shape),) if _Plan.where == "shape" else spec.shape
        return np.frombuffer(data, spec.dtype).reshape(shape)


@dataclass(frozen=True)
class _FailingCompressor(Unchanged):
    name = "example.compressor"

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
WITHIN = ShardingCodec((2, 2), (_FailingFilter(), BytesCodec("little")))
INDEX = ShardingCodec((2, 2), (BytesCodec(),), (BytesCodec(), _FailingCompressor(), parse_codec("crc32c")))
CONDITIONAL = parse_codec("gzip"), _FailingCompressor()
SWAP = TransposeCodec((1, 0))
PLACES: dict[str, tuple[str, dict[str, Any]]] = {
    "filter": ("filter", {"filters": _FailingFilter(), "compressors": None}),
    "filter among others": ("filter", {"filters": [SWAP, _FailingFilter(), SWAP], "compressors": None}),
    "serializer": ("serializer", {"serializer": _FailingSerializer(), "compressors": "gzip"}),
    "compressor": ("compressor", {"compressors": ["gzip", _FailingCompressor(), "crc32c"]}),
    "compressor that is alone": ("direct", {"compressors": _FailingDirectly()}),
    "in conditional": ("compressor", {"compressors": xzarr3.codecs.ConditionalCodec(CONDITIONAL)}),
    "in shards": ("compressor", {"compressors": _FailingCompressor(), "shards": (8, 8)}),
    "in compressed shards": ("filter", {"serializer": WITHIN, "compressors": "gzip"}),
    "index": ("compressor", {"serializer": INDEX, "compressors": None}),
}


@pytest.fixture
def failing() -> Iterator[type[_Plan]]:
    _Plan.where = ""
    with registered(*EXAMPLES):
        yield _Plan


def example(place: str) -> xzarr3.Array:
    options = {"chunks": (8, 8), **PLACES[place][1]}
    if "shards" in options:
        options["chunks"] = (2, 2)
    array = xzarr3.create_array(xzarr3.MemoryStore(), shape=(16, 16), dtype="int32", **options)
    array[...] = np.arange(256).reshape(16, 16)
    return array


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
def test_what_a_codec_of_another_package_raises(failing: type[_Plan], place: str, error: Exception) -> None:
    array, values = example(place), np.arange(256).reshape(16, 16)
    assert np.array_equal(array[...], values)
    failing.error = error
    change, replace_all = partial(array.set, (9, 9), 1), partial(array.set, np.s_[8:, 8:], 5)
    decoding, encoding = (lambda: array[9, 9], lambda: array[8:, 8:], change), (change, replace_all)
    for where, kind, uses in (("decode", ChunkDecodeError, decoding), ("encode", ChunkEncodeError, encoding)):
        failing.where = where
        found = refused(kind, "no luck", *uses)
        failing.where = ""
        for each in found:
            assert type(each) is kind
            assert (each.codec, each.chunk, each.key) == (f"example.{PLACES[place][0]}", (1, 1), "c/1/1")
            assert each.__cause__ is error
            assert type(error).__name__ in each.reason
            if place in ("in shards", "in compressed shards"):
                assert each.inner_chunk == (0, 0)
        assert np.array_equal(array[...], values)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("error", [MemoryError("none"), StoreError("lost"), KeyboardInterrupt()], ids=repr)
def test_what_is_handed_on_as_it_is(failing: type[_Plan], place: str, error: BaseException) -> None:
    array = example(place)
    failing.error = error
    for failing.where in ("decode", "encode"):
        with pytest.raises(type(error)) as caught:
            array[9, 9] = 1
        assert caught.value is error


@pytest.mark.parametrize("place", ["filter", "serializer", "compressor"])
def test_a_codec_that_returns_something_else(failing: type[_Plan], place: str, monkeypatch: Any) -> None:
    array = example(place)
    failing.where = "shape"
    monkeypatch.setattr(_FailingCompressor, "decode", lambda self, data, limit: None)
    words = "." if place == "compressor" else "shape"
    for error in refuses(array.__getitem__, (..., (9, 9)), ChunkDecodeError, words):
        assert place == "compressor" or error.codec == f"example.{PLACES[place][0]}"
        assert (error.chunk, error.key) != (None, None)


def test_a_size_that_cannot_be_told(failing: type[_Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    failing.error, failing.where = TypeError("no luck"), "size"
    monkeypatch.setattr(_FailingSerializer, "encoded_size", lambda self, spec: failing.step("size"))
    make = partial(CodecChain, (_FailingSerializer(),), spec_of("int8"))
    (error,) = refused(MetadataError, r"example\.serializer.*no luck", make)
    assert error.field == "codecs[0]"


def limits_of(chain: CodecChain) -> list[int]:
    return [limit for _, limit in chain._compressors] + [chain.max_encoded_size]


@pytest.mark.parametrize("size", [1, 1024, 50 * MIB])
@pytest.mark.parametrize("compressor", [
    GzipCodec(), parse_codec("numcodecs.lzma"), parse_codec("zstd"),
    xzarr3.codecs.ConditionalCodec(["gzip"] * 64),
], ids=lambda codec: codec.name)  # fmt: skip
def test_bounds_do_not_grow_with_the_number_of_codecs(size: int, compressor: Any) -> None:
    many = CodecChain((BytesCodec(), *[compressor] * (MAX_CODECS - 1)), spec_of("uint8", (size,)))
    assert max(limits_of(many)) <= 2 * size + MIB
    one = CodecChain((BytesCodec(), compressor), spec_of("uint8", (size,)))
    assert limits_of(one)[0] == size
    noise = np.random.default_rng(1).integers(0, 256, min(size, 5000), "u1")
    if size <= 1024:
        assert np.array_equal(many.decode(many.encode(noise)), noise)


def test_bounds_do_not_grow_with_shards_in_shards() -> None:
    codecs: tuple[Any, ...] = (BytesCodec(),)
    for _ in range(60):
        codecs = (ShardingCodec((100,), codecs), GzipCodec(), GzipCodec())
    chain = CodecChain(codecs, spec_of("uint8", (100,)))
    assert max(limits_of(chain)) <= 60 * 2 * 2**12 + 2 * MIB
    values = np.random.default_rng(1).integers(0, 256, 100, "u1")
    assert np.array_equal(chain.decode(chain.encode(values)), values)


@pytest.mark.slow
@pytest.mark.parametrize("inner", ["gzip", "numcodecs.bz2", "numcodecs.lzma", "zstd"])
def test_bounds_of_many_small_chunks_hold(inner: str) -> None:
    codecs = (ShardingCodec((1,), (BytesCodec(), parse_codec(inner), parse_codec("crc32c"))), GzipCodec())
    chain = CodecChain(codecs, spec_of("uint8", (1000,)))
    values = np.random.default_rng(1).integers(1, 256, 1000, "u1")
    assert np.array_equal(chain.decode(chain.encode(values)), values)
    assert limits_of(chain)[0] >= len(CodecChain(codecs[:1], spec_of("uint8", (1000,))).encode(values))


@pytest.mark.parametrize("number", [MAX_CODECS, MAX_CODECS + 1, 3000])
def test_lists_of_many_codecs(number: int) -> None:
    compressors = [codec("gzip", level=1)] * number
    inner = [LITTLE, *compressors[1:]]
    index = (LITTLE, *[CRC32C] * (number - 1))
    for field, codecs in {
        "codecs": inner,
        "codecs[1].configuration.codecs": [LITTLE, codec("conditional", codecs=compressors)],
        "codecs[0].configuration.codecs": [sharding((1,), *inner)],
        "codecs[0].configuration.index_codecs": [sharding((1,), LITTLE, index=index)],
    }.items():
        document = chunk_document("int16", (4,), codecs)
        if number <= MAX_CODECS:
            array = stored(document)
            array[...] = [1, 2, 3, 4]
            assert array[...].tolist() == [1, 2, 3, 4]
            continue
        (error,) = refuses(stored, [document], MetadataError, str(MAX_CODECS))
        assert error.field == field


@dataclass(frozen=True)
class _Writing(Unchanged):
    """Writes an array of its own before it hands on what it is given."""

    name = "example.writing"
    depth: int = 1

    def encode(self, data: Buffer) -> Buffer:
        write_another(replace(self, depth=self.depth - 1) if self.depth else None)
        return data


def write_another(codec: base.BytesBytesCodec | None = None) -> None:
    """Write an array whose chunks have to be put together in memory, and look at it."""
    values = np.full((4, 8, 8), 200, "u1")
    options = {"shape": values.shape, "chunks": (4, 4, 4), "dtype": "u1", "compressors": codec}
    array = xzarr3.create_array(xzarr3.MemoryStore(), **options)
    array[...] = values
    assert (array[...] == 200).all()


class _WritingStore(xzarr3.MemoryStore):
    busy = False

    def put(self, key: str, pieces: Any) -> None:
        if not self.busy:
            self.busy = True
            write_another()
            self.busy = False
        super().put(key, pieces)


@pytest.mark.parametrize(("compressors", "store", "shards"), covering(
    [None, _Writing(), [_Writing(2), _Writing()], [_Writing(), "gzip"]],
    [xzarr3.MemoryStore, _WritingStore], [None, (8, 8)], quick=[],
), ids=repr)  # fmt: skip
def test_an_array_is_written_while_another_is(store: Any, compressors: Any, shards: Any) -> None:
    values = np.arange(256, dtype="u1").reshape(16, 16)
    options: dict[str, Any] = {"chunks": (4, 4), "shards": shards, "compressors": compressors}
    with registered(_Writing):
        array = xzarr3.create_array(store(), shape=values.shape, dtype="u1", **options)
        array[...] = values
        assert np.array_equal(array[...], values)
        expected = values.copy()
        array[2:13, 3:15] = expected[2:13, 3:15] = values[2:13, 3:15].T.reshape(11, 12)
        assert np.array_equal(array[...], expected)
