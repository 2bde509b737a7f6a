"""Which units of an array exist in the store. A unit is a shard, or a chunk that is in no shard."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xzarr3.grid import Grid
from xzarr3.io.selection import BasicSelection, basic_selection
from xzarr3.parallel import parallel_map

if TYPE_CHECKING:
    from xzarr3.arrays import Array

FEW = 4096
"""Up to this number of units, one request for each is cheaper than listing the store."""


def stored_units(
    array: Array, region: BasicSelection = ..., shape: tuple[int, ...] | None = None, grid: Grid | None = None
) -> Iterator[tuple[int, ...]]:
    """The coordinates of the units that exist in the store and lie between the ends of ``region``.

    ``shape`` and ``grid`` are those of the array by default.
    """
    shape, grid = shape or array.shape, grid or array.metadata.chunk_grid
    bounds = unit_bounds(region, shape, grid)
    store = array.engine.store
    if math.prod(map(len, bounds)) <= FEW:
        few = list(itertools.product(*bounds))
        there = parallel_map(store.exists, [array.engine.key(coords) for coords in few], store.concurrency)
        yield from itertools.compress(few, there)
        return
    # Many units: the store is listed, as most of them may never have been written.
    prefix, keys = array.engine.prefix, array.metadata.chunk_key_encoding
    for key in list(array.engine.store.list_prefix(prefix)):
        found = keys.coords(key[len(prefix) :], array.ndim)
        if found is not None and all(at in bound for at, bound in zip(found, bounds, strict=True)):
            yield found


@dataclass(frozen=True)
class Stored:
    """How much of an array was stored when it was counted."""

    number: int
    """Number of stored units."""
    nbytes: int
    """Bytes of all of them."""


def count_stored(array: Array) -> Stored:
    """Count the units that exist in the store. Asks the store for the size of every unit."""
    engine = array.engine
    counts = engine.meta.chunk_grid.counts(array.shape)

    def size_of(coords: tuple[int, ...]) -> int | None:
        return engine.store.getsize(engine.key(coords))

    few = math.prod(counts) <= FEW
    units = itertools.product(*map(range, counts)) if few else stored_units(array)
    found = parallel_map(size_of, units, engine.store.concurrency)
    sizes = [size for size in found if size is not None]
    return Stored(len(sizes), sum(sizes))


def unit_bounds(region: BasicSelection, shape: tuple[int, ...], grid: Grid) -> list[range]:
    """The coordinates of the units between the ends of a region, along each dimension."""
    return [
        range(axis.index(chosen.start), axis.index(chosen.stop - 1) + 1) if chosen.count else range(0)
        for chosen, axis in zip(basic_selection(region, shape), grid.axes, strict=True)
    ]


def are_few(region: BasicSelection, shape: tuple[int, ...], grid: Grid) -> bool:
    """Whether a region has so few units that each gets a request and the store is not listed."""
    return math.prod(map(len, unit_bounds(region, shape, grid))) <= FEW
