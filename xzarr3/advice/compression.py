"""What codecs do to a sample of the data: how small it gets and how fast it is decoded."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np

from xzarr3._types import AnyArray
from xzarr3.api import create_array
from xzarr3.stores import MemoryStore

SAMPLE_BYTES = 2**23
_ROUNDS = 3
_DEFAULT_RATIO = 2.0
_DEFAULT_RATE = 1e9

CODECS: dict[str, Any] = {
    "none": None,
    "zstd": {"name": "zstd", "configuration": {"level": 3, "checksum": False}},
    "blosc-lz4": {
        "name": "blosc",
        "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "blocksize": 0},
    },
    "blosc-zstd": {
        "name": "blosc",
        "configuration": {"cname": "zstd", "clevel": 5, "shuffle": "bitshuffle", "blocksize": 0},
    },
    "gzip": {"name": "gzip", "configuration": {"level": 5}},
}
"""The compressors that are measured, as documents describe them."""


class Compression(NamedTuple):
    """A compressor, measured on a sample."""

    name: str
    compressor: Any
    ratio: float
    """Bytes of the elements for each stored byte."""
    encode: float
    """Bytes of elements that are encoded in a second, on one core."""
    decode: float
    is_measured: bool = True


def assumed(name: str = "zstd", compressor: Any = ...) -> Compression:
    """What is assumed of a compressor where there are no data to measure."""
    given = CODECS[name] if compressor is ... else compressor
    return Compression(name, given, _DEFAULT_RATIO, _DEFAULT_RATE / 4, _DEFAULT_RATE, is_measured=False)


def measured(sample: AnyArray, name: str, compressor: Any) -> Compression:
    """Encode and decode a sample as one chunk.

    The ratio depends on the data, and the speeds on this machine: the best of three rounds.
    """
    array = create_array(
        MemoryStore(), shape=sample.shape, dtype=sample.dtype, chunks=sample.shape, compressors=compressor
    )
    chain = array.engine.meta.chain
    encode = decode = float("inf")
    encoded: Any = b""
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        encoded = bytes(chain.encode(sample, keep_empty=True))
        middle = time.perf_counter()
        found = np.array(chain.decode(encoded))
        decode = min(decode, time.perf_counter() - middle)
        encode = min(encode, middle - began)
    del found
    nbytes = sample.nbytes
    return Compression(
        name,
        compressor,
        nbytes / max(len(encoded), 1),
        nbytes / max(encode, 1e-9),
        nbytes / max(decode, 1e-9),
    )


def compressions(sample: AnyArray | None) -> list[Compression]:
    """All compressors on a sample; without one, what is assumed of one of them."""
    if sample is None or sample.size == 0:
        return [assumed()]
    return [measured(sample, name, compressor) for name, compressor in CODECS.items()]
