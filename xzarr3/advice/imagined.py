"""An array that is only imagined: its chunks have sizes but no values.

Planning a read of it gives the requests and bytes that a read of a real array would take, because the plan
is the same one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from xzarr3._types import Buffer, ByteRange
from xzarr3.arrays import Array
from xzarr3.codecs.pipeline import CodecChain
from xzarr3.codecs.sharding import Shard
from xzarr3.model.metadata import ArrayMetadata
from xzarr3.stores.base import Store, Traits
from xzarr3.stores.values import Value, cut


@dataclass(frozen=True)
class Target:
    """The costs of a place where data are kept.

    Parameters
    ----------
    name : str
    latency : float
        Seconds that one request takes besides its bytes.
    at_once : int
        Number of requests that are made at the same time.
    bandwidth : float
        Bytes in a second, over all requests.
    request_bytes : int
        As :attr:`xzarr3.Store.request_bytes`.
    over_read : float
        As :attr:`xzarr3.Store.over_read`.
    """

    name: str
    latency: float
    at_once: int
    bandwidth: float
    request_bytes: int
    over_read: float

    @classmethod
    def of(cls, store: Store) -> Target:
        """The costs of a store: those of a disk if it answers one request at a time, else those of S3."""
        kind = TARGETS["s3" if store.concurrency > 1 else "disk"]
        return cls(
            type(store).__name__, kind.latency, max(store.concurrency, kind.at_once), kind.bandwidth,
            store.traits.request_bytes, store.traits.over_read,
        )  # fmt: skip


TARGETS = {
    "s3": Target("s3", 0.03, 64, 500e6, 2**20, 2.0),
    "disk": Target("disk", 0.0001, 1, 1e9, 2**16, math.inf),
}
"""Usual costs: an object store within its region, and a disk of a workstation."""


class ImaginedStore(Store):
    """Has a value of an assumed size for every chunk.

    Parameters
    ----------
    target : Target
    """

    def __init__(self, target: Target) -> None:
        super().__init__()
        is_disk = target.over_read == math.inf and target.at_once == 1
        self.traits = Traits(
            read_only=True,
            concurrency=target.at_once,
            request_bytes=target.request_bytes,
            over_read=target.over_read,
            folder="" if is_disk else None,  # Enough for :class:`~xzarr3.io.fetch.Price`.
        )
        self._indexes: dict[tuple[int, ...], bytes] = {}
        self._array: Array | None = None
        self._ratio = 1.0

    def holds(self, array: Array, ratio: float) -> None:
        """Say which array is stored, and how many times smaller than its elements an encoded chunk is."""
        self._array, self._ratio = array, ratio

    def get(self, key: str, byte_range: ByteRange | None = None) -> Buffer | None:  # type: ignore[override]
        return None if byte_range is None else cut(b"", byte_range)

    def open(
        self, key: str, first: tuple[int, int | None] | None = None, version: object | None = None
    ) -> Value | None:
        return self.value(key)

    def value(self, key: str) -> ImaginedValue | None:
        """What is stored under the key of a chunk; None under another key."""
        array = self._array
        if array is None:
            return None
        coords = array.metadata.chunk_key_encoding.coords(key, array.ndim)
        if coords is None:
            return None
        shape = array.metadata.chunk_grid.chunk_shape_at(coords)
        chain = array.engine.chain_of(shape)
        if chain.shard is None:
            return ImaginedValue(encoded_size(chain, self._ratio), 0, b"")
        shard = chain.shard
        if shape not in self._indexes:
            sizes = np.full(shard.number, encoded_size(shard.inner, self._ratio), np.uint64)
            self._indexes[shape] = b"".join(map(bytes, shard.with_index(sizes, [])))
        size = shard_size(shard, self._ratio)
        start = shard.index_start if shard.index_start >= 0 else size + shard.index_start
        return ImaginedValue(size, start, self._indexes[shape])


class ImaginedValue(Value):
    """A value that is zero everywhere but in its index."""

    def __init__(self, size: int, start: int, index: bytes) -> None:
        self.size: int = size
        self._start, self._index = start, index

    def read(self, start: int, length: int | None = None) -> Buffer:
        begin = max(self.size + start, 0) if start < 0 else start
        end = self.size if length is None else min(begin + length, self.size)
        found = bytearray(max(end - begin, 0))
        low, high = max(begin, self._start), min(end, self._start + len(self._index))
        if low < high:
            found[low - begin : high - begin] = self._index[low - self._start : high - self._start]
        return found


def encoded_size(chain: CodecChain, ratio: float) -> int:
    """Bytes of an encoded chunk whose elements shrink by ``ratio``; exact where no codec shrinks them."""
    return chain.spec.nbytes if chain.is_plain else max(1, math.ceil(chain.spec.nbytes / ratio))


def shard_size(shard: Shard, ratio: float) -> int:
    """Bytes of a shard with all its inner chunks."""
    return shard.index_size + shard.number * encoded_size(shard.inner, ratio)


def imagined(metadata: ArrayMetadata, target: Target, ratio: float) -> Array:
    """An array of this layout, all of whose chunks exist, at a place with these costs."""
    store = ImaginedStore(target)
    array = Array(store, "", metadata)
    store.holds(array, ratio)
    return array
