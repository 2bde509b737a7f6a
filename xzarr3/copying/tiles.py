"""Tiles: the pieces in which values are copied from one chunk grid to another.

A tile is made of whole stored units of the target, so that no two tiles write the same unit. Chunks of the
source that lie in several tiles are read for each of them. So tiles grow, as far as memory allows, along the
dimensions where that saves most.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from xzarr3.grid import Edges, Grid, Steps

Coords = tuple[int, ...]


@dataclass(frozen=True)
class Tiles:
    """A target divided into tiles of whole units.

    Parameters
    ----------
    grid : Grid
        The stored units of the target.
    shape : tuple of int
        Shape of the array.
    per_tile : tuple of int
        Number of units of a tile along each dimension.

    Examples
    --------
    >>> from xzarr3.grid import RegularGrid
    >>> tiles = Tiles(RegularGrid((2, 5)), (7, 10), (2, 1))
    >>> tiles.counts, tiles.region((1, 0))
    ((2, 2), (slice(4, 7, None), slice(0, 5, None)))
    """

    grid: Grid
    shape: tuple[int, ...]
    per_tile: tuple[int, ...]

    @property
    def counts(self) -> Coords:
        """Number of tiles along each dimension."""
        counts = self.grid.counts(self.shape)
        return tuple(-(-count // per) for count, per in zip(counts, self.per_tile, strict=True))

    def units(self, coords: Coords) -> Iterator[Coords]:
        """Coordinates of the units of a tile."""
        axes = zip(coords, self.per_tile, self.grid.counts(self.shape), strict=True)
        return product([range(at * per, min((at + 1) * per, count)) for at, per, count in axes])

    def region(self, coords: Coords) -> tuple[slice, ...]:
        """The region of the array that a tile covers."""
        axes = zip(coords, self.per_tile, self.grid.axes, self.shape, strict=True)
        return tuple(
            slice(axis.start(at * per), min(axis.start(min((at + 1) * per, axis.count(size))), size))
            for at, per, axis, size in axes
        )

    def over(self, region: Sequence[slice]) -> Iterator[Coords]:
        """Coordinates of the tiles that share elements with a region."""
        ranges = [
            range(axis.index(part.start) // per, axis.index(part.stop - 1) // per + 1)
            if part.stop > part.start
            else range(0)
            for part, per, axis in zip(region, self.per_tile, self.grid.axes, strict=True)
        ]
        return product(ranges)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The largest length of a tile along each dimension."""
        axes = zip(self.shape, self.per_tile, self.grid.axes, strict=True)
        return tuple(min(size, per * axis.longest) for size, per, axis in axes)

    @property
    def elements(self) -> int:
        """The most elements of a tile."""
        return math.prod(self.lengths)

    def at_least(self, elements: int) -> Tiles:
        """Tiles of at least so many elements, if the array has them: the last dimensions grow first."""
        per_tile, counts = [*self.per_tile], self.grid.counts(self.shape)
        for at in reversed(range(len(per_tile))):
            while replace(self, per_tile=tuple(per_tile)).elements < elements and per_tile[at] < counts[at]:
                per_tile[at] *= 2
        return replace(self, per_tile=tuple(per_tile))

    def reads(self, chunks: Grid) -> int:
        """How often chunks of another grid are read, over all tiles."""
        return math.prod(
            _meetings(axis, per, other, size)
            for axis, per, other, size in zip(
                self.grid.axes, self.per_tile, chunks.axes, self.shape, strict=True
            )
        )


def product(ranges: Sequence[range]) -> Iterator[Coords]:
    """All coordinates in some ranges, one at a time: :func:`itertools.product` would hold each range."""
    if not ranges:
        yield ()
        return
    for at in ranges[0]:
        for others in product(ranges[1:]):
            yield (at, *others)


def tiles_for(grid: Grid, chunks: Grid, shape: tuple[int, ...], most: int) -> Tiles:
    """Tiles of at most so many elements, or of one unit, that read chunks of the source least often.

    Parameters
    ----------
    grid, chunks : Grid
        The units of the target, and the chunks of the source.
    shape : tuple of int
    most : int
        Elements of a tile.

    Examples
    --------
    Maps are copied to series: a tile of all times has as many series as fit.

    >>> from xzarr3.grid import RegularGrid
    >>> tiles_for(RegularGrid((1000, 2, 2)), RegularGrid((1, 90, 180)), (1000, 90, 180), 2**20).per_tile
    (1, 45, 5)
    """
    tiles = Tiles(grid, shape, (1,) * len(shape))
    while True:
        grown = list(_grown(tiles, chunks, most))
        if not grown:
            return tiles
        tiles = max(grown, key=lambda each: each[0])[1]


def _grown(tiles: Tiles, chunks: Grid, most: int) -> Iterator[tuple[float, Tiles]]:
    """Larger tiles that save reads; each with the saving by growth, both as logarithms."""
    before, held = tiles.reads(chunks), max(tiles.elements, 1)
    counts = tiles.grid.counts(tiles.shape)
    for at, (per, count) in enumerate(zip(tiles.per_tile, counts, strict=True)):
        for more in _more(tiles, chunks, at, max(1, per * most // held)):
            if not per < min(more, count):
                continue
            bigger = tuple(min(more, count) if axis == at else n for axis, n in enumerate(tiles.per_tile))
            found = Tiles(tiles.grid, tiles.shape, bigger)
            saved = math.log(before / max(found.reads(chunks), 1)) if before else 0.0
            if saved > 0 and found.elements <= most:
                yield saved / math.log(max(found.elements / held, 1 + 1e-9)), found


def _more(tiles: Tiles, chunks: Grid, at: int, most: int) -> tuple[int, ...]:
    """Numbers of units of a tile along a dimension that are worth a look."""
    axis, other, per = tiles.grid.axes[at], chunks.axes[at], tiles.per_tile[at]
    length = min(per * max(axis.longest, 1), max(tiles.shape[at], 1))
    aligned = per * (math.lcm(length, max(other.longest, 1)) // length)
    covering = -(-max(other.longest, 1) // max(axis.longest, 1))
    return per * 2, aligned, covering, most


def _meetings(axis: Steps | Edges, per: int, other: Steps | Edges, size: int) -> int:
    """How many pairs of a tile and a chunk share elements along a dimension."""
    if not size:
        return 0
    tiles, chunks, shared = -(-axis.count(size) // per), other.count(size), 0
    if isinstance(axis, Steps) and isinstance(other, Steps):
        shared = (size - 1) // math.lcm(max(per * axis.length, 1), max(other.length, 1))
    elif axis == other and per == 1:
        shared = chunks - 1
    elif tiles == 1 or chunks == 1:
        shared = 0
    return tiles + chunks - 1 - shared
