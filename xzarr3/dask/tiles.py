"""Which task writes what: the tiles of a write, and the blocks that each of them is made of.

No two tiles share a unit of storage, whatever the blocks are. Along each dimension a plan says where tiles
begin and which blocks they overlap; the tiles are the product of these plans and are never listed here.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from xzarr3.grid import Edges, Steps

Positions = npt.NDArray[np.int64]

Cut = tuple[int, int, int, int]
"""The length of a block, from where to where it is taken, and where that goes in the tile."""

_WORTH = 2**20  # Bytes of a tile that is worth a task of its own.
_LARGEST = 2**26  # Bytes beyond which a tile is cut into units, unless blocks are larger.
_ENOUGH = 32  # Tiles that keep all threads busy.


@dataclass(frozen=True, eq=False)
class AxisTiles:
    """One dimension of a source, in tiles.

    Parameters
    ----------
    edges : ndarray of int
        Where tiles begin, and the length of the dimension; counted from the first element of the source.
    blocks : ndarray of int
        The same of the blocks, some of which may be empty.
    """

    edges: Positions
    blocks: Positions

    def __getstate__(self) -> tuple[bytes, bytes]:
        return _packed(self.edges), _packed(self.blocks)

    def __setstate__(self, state: tuple[bytes, bytes]) -> None:
        edges, blocks = map(_unpacked, state)
        self.__dict__.update(edges=edges, blocks=blocks)

    @cached_property
    def aligned(self) -> bool:
        """Whether tiles are blocks."""
        return np.array_equal(self.edges, self.blocks)

    @property
    def count(self) -> int:
        """Number of tiles."""
        return len(self.edges) - 1

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(self.edges[-1])

    @cached_property
    def lengths(self) -> Positions:
        """Lengths of the tiles."""
        return np.diff(self.edges)

    @cached_property
    def overlapped(self) -> tuple[Positions, Positions]:
        """For each tile, the first block that has elements of it, and one past the last one."""
        first = np.searchsorted(self.blocks, self.edges[:-1], "right") - 1
        return first, np.searchsorted(self.blocks, self.edges[1:], "left")

    @cached_property
    def users(self) -> tuple[Positions, Positions]:
        """For each block, the first tile that has elements of it, and the last one; last < first if none."""
        first = np.searchsorted(self.edges, self.blocks[:-1], "right") - 1
        last = np.searchsorted(self.edges, self.blocks[1:], "left") - 1
        empty = np.diff(self.blocks) == 0
        return first, np.where(empty, first - 1, last)

    def parts(self, tile: int) -> list[tuple[int, Cut]]:
        """What a tile is made of: indexes of blocks, and what of each goes where."""
        low, high = int(self.edges[tile]), int(self.edges[tile + 1])
        first, stop = (int(bounds[tile]) for bounds in self.overlapped)
        found = []
        for block in range(first, stop):
            start, end = int(self.blocks[block]), int(self.blocks[block + 1])
            begin, finish = max(low, start), min(high, end)
            if begin < finish:
                found.append((block, (end - start, begin - start, finish - start, begin - low)))
        return found


def _packed(edges: Positions) -> bytes:
    """Edges as they are pickled: lengths, most of which come again and again."""
    return zlib.compress(np.diff(edges, prepend=0).astype("<i8").tobytes(), 1)


def _unpacked(packed: bytes) -> Positions:
    return np.cumsum(np.frombuffer(zlib.decompress(packed), "<i8"), dtype=np.int64)


def block_edges(lengths: Sequence[int]) -> Positions:
    """Where blocks begin and the last one ends."""
    edges = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(np.fromiter(lengths, np.int64, len(lengths)), out=edges[1:])
    return edges


def within_units(units: Steps | Edges, elements: Positions) -> tuple[Positions, Positions]:
    """Of the units that hold some elements, the first element and one past the last one."""
    if isinstance(units, Steps):
        length = min(units.length, np.iinfo(np.int64).max // 4)
        low = elements - elements % length
        return low, low + length
    index = units.locate(elements)[0].tolist()
    low = np.array([units.start(at) for at in index], np.int64)
    return low, np.array([units.start(at + 1) for at in index], np.int64)


def is_aligned(units: Steps | Edges, start: int, blocks: Positions) -> bool:
    """Whether no unit holds elements of two blocks, the first of which begins at ``start``."""
    size = blocks[-1]
    inner = blocks[(blocks > 0) & (blocks < size)] + start
    if isinstance(units, Steps):
        return not np.any(inner % units.length)
    return bool(np.all(within_units(units, inner)[0] == inner))


def plan_axes(
    units: Sequence[Steps | Edges], starts: Sequence[int], chunks: Sequence[Sequence[int]], itemsize: int
) -> list[AxisTiles]:
    """Tiles for blocks of any lengths.

    Parameters
    ----------
    units : sequence of Steps or Edges
        The units of storage along each dimension.
    starts : sequence of int
        Where the first block begins.
    chunks : sequence of sequence of int
        The lengths of the blocks.
    itemsize : int
    """
    blocks = [block_edges(lengths) for lengths in chunks]
    aligned = [is_aligned(*each) for each in zip(units, starts, blocks, strict=True)]
    if all(aligned) or not all(int(edges[-1]) for edges in blocks):
        return [AxisTiles(edges, edges) for edges in blocks]
    by_unit = [
        distinct(edges) if fits else _unit_edges(grid, start, int(edges[-1]))
        for grid, start, edges, fits in zip(units, starts, blocks, aligned, strict=True)
    ]
    chosen = by_unit
    if _mean_bytes(by_unit, itemsize) < _WORTH:
        chosen = [
            distinct(edges) if fits else _near_edges(grid, start, edges)
            for grid, start, edges, fits in zip(units, starts, blocks, aligned, strict=True)
        ]
        chosen = _grouped(chosen, itemsize)
    whole = itemsize * math.prod(int(edges[-1]) for edges in blocks)
    limit = max(min(_LARGEST, whole // _ENOUGH), _mean_bytes(blocks, itemsize), _WORTH)
    chosen = _cut(chosen, list(zip(units, starts, strict=True)), itemsize, limit)
    return [*map(AxisTiles, chosen, blocks)]


def _mean_bytes(edges: Sequence[Positions], itemsize: int) -> float:
    return itemsize * math.prod(int(along[-1]) / max(len(along) - 1, 1) for along in edges)


def _unit_edges(units: Steps | Edges, start: int, size: int) -> Positions:
    """Where the units begin that hold elements of a region."""
    stop = start + size
    if isinstance(units, Steps):
        first = start - start % units.length + units.length
        inner = np.arange(first, stop, units.length, dtype=np.int64)
    else:
        every = np.cumsum(np.fromiter(units.lengths(stop), np.int64))
        inner = every[(every > start) & (every < stop)]
    return np.concatenate([[0], inner - start, [size]]).astype(np.int64)


def _near_edges(units: Steps | Edges, start: int, blocks: Positions) -> Positions:
    """Edges of units as near as there are to those of blocks."""
    size = int(blocks[-1])
    inner = blocks[(blocks > 0) & (blocks < size)] + start
    low, high = within_units(units, inner)
    near = np.where(inner - low <= high - inner, low, high) - start
    return distinct(np.concatenate([[0], near[(near > 0) & (near < size)], [size]]).astype(np.int64))


def distinct(edges: Positions) -> Positions:
    """Edges in their order without those of empty pieces."""
    kept: Positions = edges[np.concatenate([[True], edges[1:] != edges[:-1]])]
    return kept


def _grouped(edges: Sequence[Positions], itemsize: int) -> list[Positions]:
    """Tiles made of several, where they are so small that tasks take longer to be started than to run."""
    chosen = list(edges)
    while 2 * _mean_bytes(chosen, itemsize) <= _WORTH // 4:
        at = max(range(len(chosen)), key=lambda axis: len(chosen[axis]))
        if len(chosen[at]) <= 9:
            break
        along = chosen[at]
        chosen[at] = np.append(along[:-1:2], along[-1])
    return chosen


def _cut(
    edges: Sequence[Positions], grids: Sequence[tuple[Steps | Edges, int]], itemsize: int, limit: float
) -> list[Positions]:
    """Tiles of no more than ``limit`` bytes each, unless they are single units."""
    chosen = list(edges)
    for axis in sorted(range(len(chosen)), key=lambda axis: -int(np.max(np.diff(chosen[axis]), initial=0))):
        longest = [int(np.max(np.diff(along), initial=0)) for along in chosen]
        factor = itemsize * math.prod(longest) / limit
        if factor <= 1:
            break
        wanted = max(int(longest[axis] / factor), 1)
        finer = _unit_edges(*grids[axis], int(chosen[axis][-1]))
        chosen[axis] = _runs(chosen[axis], finer, wanted)
    return chosen


def _runs(edges: Positions, finer: Positions, length: int) -> Positions:
    """Some of the edges ``finer``, all of ``edges`` among them, about ``length`` elements apart."""
    kept = [0]
    wanted = set(edges.tolist())
    last = 0
    previous = 0
    for edge in finer.tolist()[1:]:
        if edge - last > length and previous > last:
            kept.append(previous)
            last = previous
        if edge in wanted:
            kept.append(edge)
            last = edge
        previous = edge
    return np.array(kept, np.int64)


def chunks_of(axes: Sequence[AxisTiles]) -> tuple[tuple[int, ...], ...]:
    """The lengths of the tiles, as dask has those of blocks."""
    return tuple(tuple(along.lengths.tolist()) for along in axes)
