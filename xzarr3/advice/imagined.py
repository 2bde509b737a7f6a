"""An array that is only imagined: its chunks have sizes but no values.

Planning a read of it gives the requests and bytes that a read of a real array would take, because the plan
is the same one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from xzarr3._types import Buffer
from xzarr3.arrays import Array
from xzarr3.codecs.pipeline import CodecChain
from xzarr3.model.metadata import ArrayMetadata
from xzarr3.stores.base import Store
from xzarr3.stores.values import Value


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

    Examples
    --------
    >>> import xzarr3
    >>> far = xzarr3.advice.Target("far", 0.2, 32, 50e6, 2**23, 2.0)
    >>> xzarr3.advise(shape=(365, 90, 180), dtype="f4", target=far).target.name
    'far'
    """

    name: str
    latency: float
    at_once: int
    bandwidth: float
    request_bytes: int
    over_read: float


TARGETS = {
    "s3": Target("s3", 0.03, 64, 500e6, 2**20, 2.0),
    "disk": Target("disk", 0.0001, 1, 1e9, 2**12, math.inf),
}
"""Usual costs: an object store within its region, and a disk of a workstation."""


class ImaginedStore(Store):
    """The store of an array of this layout, all of whose chunks exist, at a place with these costs."""

    def __init__(self, metadata: ArrayMetadata, target: Target, ratio: float) -> None:
        super().__init__(
            read_only=True, concurrency=target.at_once, request_bytes=target.request_bytes,
            over_read=target.over_read,
            # On a disk, this is enough for :class:`~xzarr3.io.fetch.Price`.
            folder="" if target.over_read == math.inf and target.at_once == 1 else None,
        )  # fmt: skip
        self.array, self._ratio = Array(self, "", metadata), ratio

    def open(
        self, key: str, first: tuple[int, int | None] | None = None, version: object | None = None
    ) -> Value | None:
        coords = self.array.metadata.chunk_key_encoding.coords(key, self.array.ndim)
        if coords is None:
            return None
        chain = self.array.engine.chain_of(self.array.metadata.chunk_grid.chunk_shape_at(coords))
        return _ImaginedValue(chain, self._ratio)


class _ImaginedValue(Value):
    """A value of which only the index can be read, if it is a shard: a plan reads no more."""

    def __init__(self, chain: CodecChain, ratio: float) -> None:
        self.size: int = stored_size(chain, ratio)
        self._shard, self._ratio = chain.shard, ratio

    def read(self, start: int, length: int | None = None) -> Buffer:
        if self._shard is None:
            return b""
        sizes = np.full(self._shard.number, stored_size(self._shard.inner, self._ratio), np.uint64)
        return b"".join(map(bytes, self._shard.with_index(sizes, [])))


def stored_size(chain: CodecChain, ratio: float) -> int:
    """Bytes of a stored chunk or shard whose elements shrink by ``ratio``; exact where no codec shrinks."""
    if chain.shard is not None:
        return chain.shard.index_size + chain.shard.number * stored_size(chain.shard.inner, ratio)
    return chain.spec.nbytes if chain.is_plain else max(1, math.ceil(chain.spec.nbytes / ratio))
