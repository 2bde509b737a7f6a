"""What the tests of codecs share: chunks, errors, memory, and codecs of other packages."""

import pickle
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from _strategies import attempt

import xzarr3
from xzarr3 import ChunkDecodeError, extensions
from xzarr3.codecs import BytesBytesCodec, ChunkSpec, register_codec, registry
from xzarr3.codecs.base import Codec
from xzarr3.dtypes import parse_dtype

MIB = 2**20
EMPTY = (2**64 - 1, 2**64 - 1)
"""The entry of an inner chunk that is not stored, in the index of its shard."""


def crc32c(data: bytes) -> int:
    """CRC-32C, bit by bit: slow, and made from nothing but the polynomial."""
    remainder = 0xFFFFFFFF
    for octet in data:
        remainder ^= octet
        for _ in range(8):
            remainder = remainder >> 1 ^ (0x82F63B78 if remainder & 1 else 0)
    return remainder ^ 0xFFFFFFFF


def checked(data: bytes) -> bytes:
    return data + struct.pack("<I", crc32c(data))


def spec_of(data_type: Any, shape: tuple[int, ...] = (4,), fill: Any = None) -> ChunkSpec:
    parsed = parse_dtype(data_type).in_native_order()
    return ChunkSpec(shape, parsed, parsed.default_scalar() if fill is None else parsed.cast_scalar(fill))


def peak(call: Callable[[], Any]) -> tuple[int, Exception | None]:
    """The most memory in bytes that a call takes, and the error of a chunk that it ends with."""
    tracemalloc.start()
    try:
        _, error = attempt(call, ChunkDecodeError)
        return tracemalloc.get_traced_memory()[1], error
    finally:
        tracemalloc.stop()


def refused_within(memory: int, call: Callable[[], Any]) -> ChunkDecodeError:
    """The error of a call that takes no more memory in bytes than this."""
    taken, error = peak(call)
    assert isinstance(error, ChunkDecodeError)
    assert taken < memory
    return error


def refused(call: Callable[[], Any], *codecs: str, chunk: Any = (0,), key: str = "c/0") -> ChunkDecodeError:
    """The error of reading a bad chunk, which names one of these codecs, chunk and key, and travels."""
    with pytest.raises(ChunkDecodeError) as caught:
        call()
    error = caught.value
    assert (error.chunk, error.key) == (chunk, key)
    assert error.codec in codecs
    assert error.reason
    for part in (error.codec, str(chunk), key, error.reason):
        assert part in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.chunk, again.key) == (str(error), chunk, key)
    # The cause travels along where tracebacks do, as they do between dask's workers.
    assert type(pickle.loads(pickle.dumps(error.__cause__))) is type(error.__cause__)
    assert isinstance(error, ValueError)
    return error


@dataclass(frozen=True)
class Unchanged(BytesBytesCodec):
    """A codec of another package that hands on what it is given, without a copy."""

    name = "example.unchanged"

    def encoded_size(self, size: int) -> int | None:
        return size

    def max_encoded_size(self, size: int) -> int:
        return size

    def encode(self, data: Any) -> Any:
        return data

    def decode(self, data: Any, limit: int) -> Any:
        return data


@contextmanager
def registered(*codecs: type[Codec]) -> Iterator[None]:
    for codec in codecs:
        register_codec(codec)
    try:
        yield
    finally:
        for codec in codecs:
            del registry._registered[codec.name]
        extensions.forget()


def check_array(values: Any, fill: Any, **options: Any) -> xzarr3.Array:
    """An array is written in parts, read in others by a second handle, and emptied."""
    store = xzarr3.MemoryStore()
    given = {"shape": values.shape, "dtype": values.dtype, "fill_value": fill, **options}
    array = xzarr3.create_array(store, "a", **given)
    expected = np.full(values.shape, fill, values.dtype)
    for part in (np.s_[2:4, 1:9], np.s_[7, 3], np.s_[0:2, 9:], ...):
        array[part] = expected[part] = values[part]
        again = xzarr3.open_array(store, "a")
        assert again.metadata.codecs == array.metadata.codecs
        for selection in (..., np.s_[::2, 1:7:3], np.s_[::-2, 3], (2, 3)):
            assert np.array_equal(again[selection], expected[selection], equal_nan=values.dtype.kind == "f")
    array[...] = np.full(values.shape, fill, values.dtype)
    assert list(store.list_prefix("a/")) == ["a/zarr.json"]
    array[...] = values
    return array
