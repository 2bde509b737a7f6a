"""What compressors do to a sample of the data: how small it gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from xzarr3._types import AnyArray
from xzarr3.arrays import Array
from xzarr3.codecs.base import Codec
from xzarr3.codecs.blosc import BloscCodec
from xzarr3.codecs.zstd import ZstdCodec
from xzarr3.copying.settings import Settings

SAMPLE_BYTES = 2**23
_DEFAULT_RATIO = 2.0
RATE = 1e9
"""Bytes of elements that one core usually decodes or encodes in a second, taken for every compressor that is
compared. None is measured, so that the same data get the same advice on a busy machine."""

CODECS: dict[str, Codec | None] = {
    "none": None,
    "zstd": ZstdCodec(level=3),
    "blosc-lz4": BloscCodec(cname="lz4", clevel=5, shuffle="shuffle"),
    "blosc-zstd": BloscCodec(cname="zstd", clevel=5, shuffle="bitshuffle"),
}
"""The compressors that are compared; all of them are fast to decode."""


class Compression(NamedTuple):
    """A compressor and what it does to a sample."""

    name: str
    compressors: list[Any] | None
    ratio: float
    """Bytes of the elements for each stored byte."""
    is_measured: bool = True


def compressions(sample: AnyArray | None, array: Array) -> list[Compression]:
    """All compressors on a sample; without one, what is assumed of one of them."""
    tried = {"zstd": CODECS["zstd"]} if sample is None else CODECS
    return [compressed(sample, array, name, [codec] if codec else []) for name, codec in tried.items()]


def compressed(sample: AnyArray | None, array: Array, name: str, codecs: Sequence[Codec]) -> Compression:
    """Encode a sample as one chunk, with the filters of the array; without a sample, what is assumed."""
    compressors = [codec.to_json() for codec in codecs] or None
    if sample is None:
        return Compression(name, compressors, _DEFAULT_RATIO, is_measured=False)
    settings = Settings(chunks=sample.shape, shards=None, compressors=compressors)
    encoded = bytes(settings.metadata(array, array.format).chain.encode(sample, keep_empty=True))
    return Compression(name, compressors, sample.nbytes / max(len(encoded), 1))
