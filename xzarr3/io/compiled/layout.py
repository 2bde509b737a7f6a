"""Describes codecs for compiled code: where the elements of a unit are, and which codecs change its bytes."""

from __future__ import annotations

import ctypes
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt
from numcodecs import blosc

from xzarr3.codecs.base import BytesBytesCodec, Codec
from xzarr3.codecs.blosc import SHUFFLES, BloscCodec
from xzarr3.codecs.bytes import BytesCodec
from xzarr3.codecs.crc32c import Crc32cCodec
from xzarr3.codecs.gzip import GzipCodec
from xzarr3.codecs.numcodecs.compressors import ShuffleCodec
from xzarr3.codecs.pipeline import CodecChain
from xzarr3.codecs.sharding import Shard
from xzarr3.codecs.transpose import TransposeCodec
from xzarr3.codecs.zstd import ZstdCodec
from xzarr3.io.compiled.decode import BLOSC, CRC32C, GZIP, SHUFFLE, ZSTD
from xzarr3.io.compiled.encode import FIELDS
from xzarr3.io.compiled.libraries import bind
from xzarr3.io.compiled.read import Chunk, Shards

LARGEST = 2**30
"""Most bytes of a chunk in compiled code; a thread holds one, and two results of codecs."""
LONGEST = 2**48
"""Most elements along a dimension, so that no place exceeds 64 bits."""

Numbers: TypeAlias = npt.NDArray[np.int64]


def address_of(array: Numbers | None) -> int:
    """The address of an array, which has to live as long as it is used; 0 for none."""
    return 0 if array is None else array.ctypes.data


def allocate(size: int) -> npt.NDArray[np.uint8]:
    """Memory that compiled code may write to."""
    return np.empty(size, np.uint8)


class Layout(NamedTuple):
    """How compiled code finds the elements of a unit."""

    chunk: Chunk
    shards: Shards
    kept: tuple[object, ...]
    """The memory whose addresses the others hold."""


class Stages(NamedTuple):
    """The codecs between bytes and bytes, in the order in which they are applied."""

    numbers: list[list[int]]
    """The numbers of each codec."""
    room: int
    """Most bytes between two of them."""
    kept: tuple[object, ...] = ()
    """Memory whose address is among the numbers."""


class Layouts:
    """The layouts for reading, or those for writing. Each is made once.

    Parameters
    ----------
    stages : callable
        Returns the codecs of chunks; None if compiled code does not know one of them.
    """

    def __init__(self, stages: Callable[[CodecChain], Stages | None]) -> None:
        self._stages = stages
        self._made: weakref.WeakKeyDictionary[CodecChain, Layout | None] = weakref.WeakKeyDictionary()

    def of(self, chain: CodecChain) -> Layout | None:
        """The layout of units that these codecs encode; None if compiled code does not know it."""
        try:
            return self._made[chain]
        except KeyError:
            found = self._made[chain] = self._layout(chain)
            return found

    def _layout(self, chain: CodecChain) -> Layout | None:
        shard = chain.shard
        found = self._chunk(chain if shard is None else shard.inner)
        if found is None or shard is None:
            return found
        index = _index(shard)
        if index is None or index.index_size > LARGEST or max(chain.spec.shape) > LONGEST:
            return None
        counts = np.array(shard.counts, np.int64)
        shards = index._replace(counts=address_of(counts))
        return Layout(found.chunk._replace(limit=index.largest), shards, (*found.kept, counts))

    def _chunk(self, chain: CodecChain) -> Layout | None:
        """The layout of units that are not cut into chunks."""
        spec, strides, swap = chain.spec, _strides(chain), _swap(chain)
        if strides is None or swap is None or not spec.shape or not 0 < spec.nbytes <= LARGEST:
            return None
        stages = self._stages(chain)
        if stages is None:
            return None
        numbers = [number for each in stages.numbers for number in each]
        arrays = np.array(spec.shape, np.int64), np.array(strides, np.int64), np.array(numbers, np.int64)
        shape_at, strides_at, stages_at = map(address_of, arrays)
        chunk = Chunk(
            shape_at,
            strides_at,
            spec.dtype.itemsize,
            spec.nbytes,
            swap,
            int(tuple(strides) == chain.strides),
            stages_at,
            len(stages.numbers),
            chain.largest_stored if stages.numbers else spec.nbytes,
            stages.room,
        )
        return Layout(chunk, Shards(0, 0, 0, 0, 0), (*arrays, *stages.kept))


def _swap(chain: CodecChain) -> int | None:
    """Width of the numbers whose bytes are stored in the other order; None if that is not possible."""
    dtype, stored = chain.spec.dtype, chain.stored_dtype
    if stored is None or dtype.hasobject or not dtype.isnative or stored.shape:
        return None
    if stored == dtype:
        return 0
    width = dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize
    return width if dtype.kind in "iufcmM" and width in (2, 4, 8) else None


def _strides(chain: CodecChain) -> list[int] | None:
    """Bytes between stored elements along each dimension; None if a filter does more than transpose."""
    shape = chain.spec.shape
    order = list(range(len(shape)))  # The dimension of the array for each stored dimension.
    for each in chain.filters:
        if type(each) is not TransposeCodec:
            return None
        order = [order[axis] for axis in each.order]
    stored = _packed([shape[axis] for axis in order], chain.spec.dtype.itemsize)
    return [stored[order.index(axis)] for axis in range(len(shape))]


def _packed(shape: Sequence[int], itemsize: int) -> list[int]:
    """The strides of an array in C order."""
    return [*itertools.accumulate(shape[:0:-1], int.__mul__, initial=itemsize)][::-1]


def _index(shard: Shard) -> Shards | None:
    """The shards without their counts; None if compiled code does not read their index."""
    _, start, codecs = cast("tuple[tuple[int, ...], int, tuple[Codec, ...]]", shard.index_layout)
    is_checked = len(codecs) == 2 and type(codecs[1]) is Crc32cCodec
    if not (type(codecs[0]) is BytesCodec and codecs[0].endian == "little" and len(codecs) <= 1 + is_checked):
        return None
    if is_checked and bind()["crc32c"]:
        return None
    return Shards(0, shard.index_size, int(start == 0), int(is_checked), shard.max_inner_size)


# Reading

_DECODERS: dict[type[Codec], tuple[int, str]] = {
    ZstdCodec: (ZSTD, "zstd"),
    BloscCodec: (BLOSC, "blosc"),
    GzipCodec: (GZIP, "gzip"),
    Crc32cCodec: (CRC32C, "crc32c"),
    ShuffleCodec: (SHUFFLE, ""),
}
"""The codecs that compiled code decodes: their numbers, and the libraries that they need."""


def _decoders(chain: CodecChain) -> Stages | None:
    numbers, room = [], chain.spec.nbytes
    for codec, limit in chain.decompressors:
        known = next((_DECODERS[kind] for kind in _DECODERS if _decodes_like(codec, kind)), None)
        if known is None or (known[1] and bind()[known[1]]):
            return None
        numbers.append([known[0], limit, getattr(codec, "elementsize", 0) or 1])
        room = max(room, limit)
    return None if chain.settles else Stages(numbers, room)


def _decodes_like(codec: Codec, kind: type[Codec]) -> bool:
    """Whether a codec is of a kind, and no derived class decodes in another way."""
    return isinstance(codec, kind) and type(codec).decode is kind.decode  # type: ignore[attr-defined]


reading = Layouts(_decoders)

# Writing


def _encoders(chain: CodecChain) -> Stages | None:
    numbers, kept, room = [], list[object](), chain.spec.nbytes
    for codec, limit in reversed(chain.decompressors):
        found, most = _encoder(codec, kept), codec.max_encoded_size(limit)
        if found is None or most > 2 * LARGEST:
            return None
        kind, *others = found
        numbers.append([kind, limit, most, *others, *[0] * (FIELDS - 3 - len(others))])
        room = max(room, most)
    # Structs may have gaps, which say nothing about being equal to the fill value.
    return None if chain.spec.dtype.names else Stages(numbers, room, tuple(kept))


def _encoder(codec: BytesBytesCodec, kept: list[object]) -> list[int] | None:
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


writing = Layouts(_encoders)
