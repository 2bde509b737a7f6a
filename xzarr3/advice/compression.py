"""What compressors do to a sample of the data: how small it gets."""

from __future__ import annotations

from typing import Any, NamedTuple

from xzarr3._types import AnyArray
from xzarr3.arrays import Array
from xzarr3.copying.settings import Settings

SAMPLE_BYTES = 2**23
_DEFAULT_RATIO = 2.0
RATE = 1e9
"""Bytes of elements that one core usually decodes or encodes in a second, taken for every compressor that is
compared. None is measured, so that the same data get the same advice on a busy machine."""

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
}
"""The compressors that are compared, as documents describe them; all of them are fast to decode."""


class Compression(NamedTuple):
    """A compressor and what it does to a sample."""

    name: str
    compressors: list[Any] | None
    ratio: float
    """Bytes of the elements for each stored byte."""
    is_measured: bool = True


def compressions(sample: AnyArray | None, array: Array) -> list[Compression]:
    """All compressors on a sample; without one, what is assumed of one of them."""
    names = ["zstd"] if sample is None else list(CODECS)
    return [_tried(sample, array, name, [CODECS[name]] if CODECS[name] else None) for name in names]


def present_compression(sample: AnyArray | None, array: Array) -> Compression:
    """What the compressors of an array do to a sample."""
    name = "+".join(each.name for each in array.compressors) or "none"
    return _tried(sample, array, name, [codec.to_json() for codec in array.compressors] or None)


def _tried(sample: AnyArray | None, array: Array, name: str, compressors: list[Any] | None) -> Compression:
    """Encode a sample as one chunk, with the filters of the array; without a sample, what is assumed."""
    if sample is None:
        return Compression(name, compressors, _DEFAULT_RATIO, is_measured=False)
    settings = Settings(chunks=sample.shape, shards=None, compressors=compressors)
    encoded = bytes(settings.metadata(array, array.format).chain.encode(sample, keep_empty=True))
    return Compression(name, compressors, sample.nbytes / max(len(encoded), 1))
