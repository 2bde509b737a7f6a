"""The cost of reading a part of an array, estimated from its metadata alone. No store is accessed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from xzarr3.arrays import Array
from xzarr3.dask.slicing import Part, extent
from xzarr3.grid import Edges, Steps
from xzarr3.io.fetch import Price, parts_of
from xzarr3.io.projection import Slices

Cost: TypeAlias = Callable[[tuple[Part, ...]], int]


def cost_of(source: object) -> Cost:
    """A function that estimates the cost of reading a part of a source.

    The cost is the number of bytes that could be transferred in the same time.

    Parameters
    ----------
    source : object
        An array, or an object with an array as its attribute ``array``. For any other source all parts have
        the same cost.

    Examples
    --------
    >>> import xzarr3
    >>> options = {"shape": (8, 4000), "chunks": (4, 4000), "dtype": "f8"}
    >>> packed = xzarr3.create_array(xzarr3.MemoryStore(), **options)
    >>> row, all_of_it = (slice(2, 3, 1), slice(0, 4000, 1)), (slice(0, 4, 1), slice(0, 4000, 1))
    >>> cost_of(packed)(row) == cost_of(packed)(all_of_it)
    True
    >>> plain = xzarr3.create_array(xzarr3.MemoryStore(), **options, compressors=None)
    >>> cost_of(plain)(row) < cost_of(plain)(all_of_it) / 3
    True
    """
    array = source if isinstance(source, Array) else getattr(source, "array", None)
    if not isinstance(array, Array):
        return lambda parts: 0 if _is_empty(parts) else 1
    chain, shard = array.metadata.chain, array.metadata.chain.shard
    axes: Sequence[Steps | Edges] = array.metadata.chunk_grid.axes
    if shard is not None:
        chain, axes = shard.inner, [Steps(length) for length in shard.grid.chunk_shape]
    price, request = Price.of(array.store, array.engine.meta.chain), array.store.traits.request_bytes

    def cost(parts: tuple[Part, ...]) -> int:
        number, inner = 1, []
        for part, axis in zip(parts, axes, strict=True):
            low, high, step = extent(part)
            if low >= high:
                return 0
            count = -((low - high) // step)
            touched = min(axis.index(high - 1) - axis.index(low) + 1, count)
            number *= touched
            inner.append(slice(0, (-(-count // touched) - 1) * step + 1, step))
        each = chain.spec.nbytes
        if chain.is_plain:
            rows = parts_of(chain, Slices(), tuple(inner), price)
            if rows is not None:
                each = sum(row.length for row in rows) + request * (len(rows) - 1)
        return number * (each + request)

    return cost


def _is_empty(parts: tuple[Part, ...]) -> bool:
    return any(low >= high for low, high, _ in map(extent, parts))
