"""Which units of an array, shards or chunks, are stored."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from xzarr3.grid import Grid
from xzarr3.io.selection import BasicSelection, basic_selection
from xzarr3.parallel import spread

if TYPE_CHECKING:
    from xzarr3.array import Array

FEW = 4096
"""Units up to which asking the store for each is cheaper than listing it."""


def stored_units(
    array: Array, region: BasicSelection = ..., shape: tuple[int, ...] | None = None, grid: Grid | None = None
) -> Iterator[tuple[int, ...]]:
    """The coordinates of those units that are stored and lie between the ends of ``region``.

    The shape and the grid are those of the array, if no others are given.
    """
    shape, grid = shape or array.shape, grid or array.metadata.chunk_grid
    bounds = unit_bounds(region, shape, grid)
    store = array.engine.store
    if math.prod(map(len, bounds)) <= FEW:
        few = list(itertools.product(*bounds))
        there = spread(store.exists, [array.engine.key(coords) for coords in few], store.concurrency)
        yield from itertools.compress(few, there)
        return
    # Of many units, most of which may never have been written, the store is asked what there is.
    prefix, keys = array.engine.prefix, array.metadata.chunk_key_encoding
    for key in list(array.engine.store.list_prefix(prefix)):
        found = keys.coords(key[len(prefix) :], array.ndim)
        if found is not None and all(at in bound for at, bound in zip(found, bounds, strict=True)):
            yield found


def unit_bounds(region: BasicSelection, shape: tuple[int, ...], grid: Grid) -> list[range]:
    """The coordinates of units between the ends of a region, along each dimension."""
    return [
        range(axis.index(chosen.start), axis.index(chosen.stop - 1) + 1) if chosen.count else range(0)
        for chosen, axis in zip(basic_selection(region, shape), grid.axes, strict=True)
    ]


def are_few(region: BasicSelection, shape: tuple[int, ...], grid: Grid) -> bool:
    """Whether a region has so few units that the store is asked for each rather than listed."""
    return math.prod(map(len, unit_bounds(region, shape, grid))) <= FEW
