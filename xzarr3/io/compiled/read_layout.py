"""Describes codecs for compiled code: how it finds the elements of a stored unit."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from xzarr3.codecs.base import Codec
from xzarr3.codecs.blosc import BloscCodec
from xzarr3.codecs.bytes import BytesCodec
from xzarr3.codecs.crc32c import Crc32cCodec
from xzarr3.codecs.gzip import GzipCodec
from xzarr3.codecs.numcodecs.compressors import ShuffleCodec
from xzarr3.codecs.pipeline import CodecChain
from xzarr3.codecs.sharding import Shard
from xzarr3.codecs.transpose import TransposeCodec
from xzarr3.codecs.zstd import ZstdCodec
from xzarr3.io.compiled.decode import BLOSC, CRC32C, GZIP, SHUFFLE, ZSTD
from xzarr3.io.compiled.libraries import bind
from xzarr3.io.compiled.read import Chunk, Shards

_CODECS: dict[type[Codec], tuple[int, str]] = {
    ZstdCodec: (ZSTD, "zstd"),
    BloscCodec: (BLOSC, "blosc"),
    GzipCodec: (GZIP, "gzip"),
    Crc32cCodec: (CRC32C, "crc32c"),
    ShuffleCodec: (SHUFFLE, ""),
}
"""The codecs that compiled code decodes: their numbers, and the libraries that they need."""


LARGEST = 2**30
"""Most bytes of a chunk in compiled code; a thread holds one."""
LONGEST = 2**48
"""Most elements along a dimension, so that no place exceeds 64 bits."""

Numbers: TypeAlias = npt.NDArray[np.int64]


def address_of(array: Numbers | None) -> int:
    """The address of an array, which has to live as long as it is used; 0 for none."""
    return 0 if array is None else array.ctypes.data


class Layout(NamedTuple):
    """How compiled code finds the elements of a unit."""

    chunk: Chunk
    shards: Shards
    kept: tuple[Numbers, ...]
    """The arrays whose addresses the others hold."""


_layouts: weakref.WeakKeyDictionary[CodecChain, Layout | None] = weakref.WeakKeyDictionary()


def layout_of(chain: CodecChain) -> Layout | None:
    """The layout of units that these codecs encode; None if compiled code does not know it."""
    try:
        return _layouts[chain]
    except KeyError:
        found = _layouts[chain] = _made_layout(chain)
        return found


def _made_layout(chain: CodecChain) -> Layout | None:
    shard = chain.shard
    found = _chunk(chain if shard is None else shard.inner)
    if found is None or shard is None:
        return found
    index = index_of(shard)
    if index is None or index.index_size > LARGEST or max(chain.spec.shape) > LONGEST:
        return None
    counts = np.array(shard.counts, np.int64)
    shards = index._replace(counts=address_of(counts))
    return Layout(found.chunk._replace(limit=index.largest), shards, (*found.kept, counts))


def index_of(shard: Shard) -> Shards | None:
    """The shards without their counts; None if compiled code does not read their index."""
    _, start, codecs = cast("tuple[tuple[int, ...], int, tuple[Codec, ...]]", shard.index_layout)
    is_checked = len(codecs) == 2 and type(codecs[1]) is Crc32cCodec
    if not (type(codecs[0]) is BytesCodec and codecs[0].endian == "little" and len(codecs) <= 1 + is_checked):
        return None
    if is_checked and bind()["crc32c"]:
        return None
    return Shards(0, shard.index_size, int(start == 0), int(is_checked), shard.max_inner_size)


def _chunk(chain: CodecChain) -> Layout | None:
    """The layout of units that are not cut into chunks; None if compiled code does not know a codec."""
    dtype, stored, shape = chain.spec.dtype, chain.stored_dtype, chain.spec.shape
    if stored is None or chain.settles or dtype.hasobject or not dtype.isnative or stored.shape:
        return None
    if not shape or not 0 < chain.spec.nbytes <= LARGEST:
        return None
    swap = 0
    if stored != dtype:
        swap = dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize
        if dtype.kind not in "iufcmM" or swap not in (2, 4, 8):
            return None
    stages: list[tuple[int, int, int]] = []
    room = chain.spec.nbytes
    for codec, limit in chain.decompressors:
        known = next((_CODECS[kind] for kind in _CODECS if _decodes_like(codec, kind)), None)
        if known is None or (known[1] and bind()[known[1]]):
            return None
        stages.append((known[0], limit, getattr(codec, "elementsize", 0) or 1))
        room = max(room, limit)
    stored_shape = shape
    orders: list[tuple[int, ...]] = []
    for filter in chain.filters:
        if type(filter) is not TransposeCodec:
            return None
        stored_shape = tuple(stored_shape[axis] for axis in filter.order)
        orders.append(filter.order)
    strides = strides_of(stored_shape, dtype.itemsize)
    for order in reversed(orders):
        back = [0] * len(order)
        for at, axis in enumerate(order):
            back[axis] = strides[at]
        strides = back
    arrays = np.array(shape, np.int64), np.array(strides, np.int64), np.array(stages, np.int64).reshape(-1)
    chunk = Chunk(
        address_of(arrays[0]),
        address_of(arrays[1]),
        dtype.itemsize,
        chain.spec.nbytes,
        swap,
        int(tuple(strides) == chain.strides),
        address_of(arrays[2]),
        len(stages),
        chain.largest_stored if stages else chain.spec.nbytes,
        room,
    )
    return Layout(chunk, Shards(0, 0, 0, 0, 0), arrays)


def _decodes_like(codec: Codec, kind: type[Codec]) -> bool:
    """Whether a codec is of a kind, and no derived class decodes in another way."""
    return isinstance(codec, kind) and type(codec).decode is kind.decode  # type: ignore[attr-defined]


def strides_of(shape: Sequence[int], itemsize: int) -> list[int]:
    return [*itertools.accumulate(shape[:0:-1], int.__mul__, initial=itemsize)][::-1]
