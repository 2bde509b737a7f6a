"""Describes codecs for compiled code: how the elements of a unit are encoded."""

from __future__ import annotations

import ctypes
import sys
import weakref
from typing import NamedTuple

import numpy as np
from numcodecs import blosc

from xzarr3.codecs.base import BytesBytesCodec, Codec
from xzarr3.codecs.blosc import SHUFFLES, BloscCodec
from xzarr3.codecs.crc32c import Crc32cCodec
from xzarr3.codecs.numcodecs.compressors import ShuffleCodec
from xzarr3.codecs.pipeline import CodecChain
from xzarr3.codecs.transpose import TransposeCodec
from xzarr3.codecs.zstd import ZstdCodec
from xzarr3.io.compiled.decode import BLOSC, CRC32C, SHUFFLE, ZSTD
from xzarr3.io.compiled.encode import FIELDS
from xzarr3.io.compiled.libraries import bind
from xzarr3.io.compiled.read import Chunk, Shards
from xzarr3.io.compiled.read_layout import LARGEST, LONGEST, address_of, index_of, strides_of


class Layout(NamedTuple):
    """How compiled code stores the elements of a unit."""

    chunk: Chunk
    shards: Shards
    room: int
    """Bytes of the result of a codec."""
    kept: tuple[object, ...]
    """The memory whose addresses the others hold."""


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
    return found._replace(shards=index._replace(counts=address_of(counts)), kept=(*found.kept, counts))


def _chunk(chain: CodecChain) -> Layout | None:
    """The layout of units that are not cut into chunks; None if compiled code does not know a codec."""
    dtype, stored, shape = chain.spec.dtype, chain.stored_dtype, chain.spec.shape
    if stored is None or dtype.hasobject or dtype.names:
        return None
    if not shape or not 0 < chain.spec.nbytes <= LARGEST:
        return None
    if sys.byteorder != "little" or stored.shape or not dtype.isnative:
        return None
    swap = 0
    if stored != dtype:
        swap = dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize
        if dtype.kind not in "iufcmM" or swap not in (2, 4, 8):
            return None
    order = list(range(len(shape)))
    for each in chain.filters:
        if type(each) is not TransposeCodec:
            return None
        order = [order[axis] for axis in each.order]
    strides = np.empty(len(shape), np.int64)
    strides[order] = strides_of([shape[axis] for axis in order], dtype.itemsize)
    stages: list[int] = []
    names: list[object] = []
    room = chain.spec.nbytes
    for codec, limit in reversed(chain.decompressors):
        found = _stage(codec, names)
        most = codec.max_encoded_size(limit)
        if found is None or most > 2 * LARGEST:
            return None
        kind, *numbers = found
        stages += [kind, limit, most, *numbers, *[0] * (FIELDS - 3 - len(numbers))]
        room = max(room, most)
    arrays = np.array(shape, np.int64), strides, np.array(stages, np.int64)
    size, number, limit = chain.spec.nbytes, len(stages) // FIELDS, chain.largest_stored
    shape_at, strides_at, stages_at = map(address_of, arrays)
    chunk = Chunk(shape_at, strides_at, dtype.itemsize, size, swap, 0, stages_at, number, limit, room)
    return Layout(chunk, Shards(0, 0, 0, 0, 0), room, (*arrays, *names))


def _stage(codec: BytesBytesCodec, kept: list[object]) -> list[int] | None:
    """The number of a codec and its parameters; None if compiled code does not know it.

    ``kept`` gets memory whose address is among the parameters.
    """
    if isinstance(codec, ZstdCodec) and _encodes_like(codec, ZstdCodec):
        return [ZSTD, codec.level, int(codec.checksum)] if not bind()["the encoder of zstd"] else None
    if isinstance(codec, BloscCodec) and _encodes_like(codec, BloscCodec):
        if bind()["the encoder of blosc"] or codec.cname not in blosc.list_compressors():
            return None
        name = ctypes.create_string_buffer(codec.cname.encode())
        kept.append(name)
        shuffle = SHUFFLES.index(codec.shuffle or "noshuffle")
        size = codec.typesize or 1
        return [BLOSC, codec.clevel, shuffle, size, codec.blocksize, ctypes.addressof(name)]
    if isinstance(codec, Crc32cCodec) and _encodes_like(codec, Crc32cCodec):
        return [CRC32C] if not bind()["crc32c"] else None
    if isinstance(codec, ShuffleCodec) and _encodes_like(codec, ShuffleCodec):
        return [SHUFFLE, codec.elementsize or 1]
    return None


def _encodes_like(codec: Codec, kind: type[Codec]) -> bool:
    """Whether no class derived from ``kind`` encodes in another way."""
    return type(codec).encode is kind.encode  # type: ignore[attr-defined]
