"""The tiles of a write, one for each task, the blocks that each tile overlaps, and the memory that they take.

No two tiles share a stored unit, whatever the blocks are. For each dimension there is a list of tile edges
and block edges. The tiles are the product of the dimensions and are never listed here.

Tiles that are no blocks are written slab by slab along one dimension. A block stays in memory from the first
slab that contains its elements to the last. The most that is in memory at a time follows from the tiles of
each dimension; single blocks are not looked at.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from dask.base import get_scheduler
from dask.blockwise import BlockwiseDep

from xzarr3 import options
from xzarr3.grid import Edges, Steps

Positions = npt.NDArray[np.int64]

Cut = tuple[int, int, int, int]
"""Along a dimension: length of a block, start and stop of its part, and first element of that in the tile."""

_WORTH = 2**20  # Bytes from which a tile is worth its own task.
_LARGEST = 2**26  # Bytes beyond which a tile is cut at edges of stored units, unless blocks are larger.
_ENOUGH = 32  # Number of tiles that keeps all threads busy.


@dataclass(frozen=True, eq=False)
class AxisTiles:
    """The tiles and blocks of one dimension of a source.

    Parameters
    ----------
    edges : ndarray of int
        First element of each tile, counted from the start of the source, and the length of the dimension.
    blocks : ndarray of int
        The same for the blocks, some of which may be empty.
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
        """Whether each tile is one block."""
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
    def overlapped(self) -> tuple[Positions, Positions]:
        """For each tile, the first block that overlaps it, and one past the last."""
        first = np.searchsorted(self.blocks, self.edges[:-1], "right") - 1
        return first, np.searchsorted(self.blocks, self.edges[1:], "left")

    @cached_property
    def users(self) -> tuple[Positions, Positions]:
        """For each block, the first and the last tile that it overlaps; last < first for an empty block."""
        first = np.searchsorted(self.edges, self.blocks[:-1], "right") - 1
        last = np.searchsorted(self.edges, self.blocks[1:], "left") - 1
        empty = np.diff(self.blocks) == 0
        return first, np.where(empty, first - 1, last)

    def parts(self, tile: int) -> list[tuple[int, Cut]]:
        """The blocks of a tile: for each, its index and its cut."""
        low, high = int(self.edges[tile]), int(self.edges[tile + 1])
        first, stop = (int(bounds[tile]) for bounds in self.overlapped)
        found = []
        for block in range(first, stop):
            start, end = int(self.blocks[block]), int(self.blocks[block + 1])
            begin, finish = max(low, start), min(high, end)
            if begin < finish:
                found.append((block, (end - start, begin - start, finish - start, begin - low)))
        return found


class Regions(BlockwiseDep):
    """The region of each tile in the target, in which the first one begins at ``starts``."""

    def __init__(self, axes: Sequence[AxisTiles], starts: Sequence[int]) -> None:
        self.axes, self.starts = axes, starts
        self.numblocks = tuple(axis.count for axis in axes)
        self.produces_tasks = False

    def __getitem__(self, idx: tuple[int, ...]) -> tuple[slice, ...]:
        return tuple(
            [
                slice(start + int(axis.edges[at]), start + int(axis.edges[at + 1]))
                for at, axis, start in zip(idx, self.axes, self.starts, strict=True)
            ]
        )


def _packed(edges: Positions) -> bytes:
    """The pickled form of edges: their compressed lengths, most of which repeat."""
    return zlib.compress(np.diff(edges, prepend=0).astype("<i8").tobytes(), 1)


def _unpacked(packed: bytes) -> Positions:
    return np.cumsum(np.frombuffer(zlib.decompress(packed), "<i8"), dtype=np.int64)


def block_edges(lengths: Sequence[int]) -> Positions:
    """First element of each block, and the end of the last one."""
    edges = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(np.fromiter(lengths, np.int64, len(lengths)), out=edges[1:])
    return edges


def within_units(units: Steps | Edges, elements: Positions) -> tuple[Positions, Positions]:
    """For each element, the first element of its stored unit, and one past the last."""
    if isinstance(units, Steps):
        length = min(units.length, np.iinfo(np.int64).max // 4)
        low = elements - elements % length
        return low, low + length
    index = units.locate(elements)[0].tolist()
    low = np.array([units.start(at) for at in index], np.int64)
    return low, np.array([units.start(at + 1) for at in index], np.int64)


def is_aligned(units: Steps | Edges, start: int, blocks: Positions) -> bool:
    """Whether no stored unit contains elements of two blocks; the first block begins at ``start``."""
    size = blocks[-1]
    inner = blocks[(blocks > 0) & (blocks < size)] + start
    return bool(np.all(within_units(units, inner)[0] == inner))


def plan_axes(
    units: Sequence[Steps | Edges], starts: Sequence[int], chunks: Sequence[Sequence[int]], itemsize: int
) -> list[AxisTiles]:
    """Plan the tiles of a write, for blocks of any lengths.

    Parameters
    ----------
    units : sequence of Steps or Edges
        The stored units of the target along each dimension.
    starts : sequence of int
        First element of the first block in the target.
    chunks : sequence of sequence of int
        The lengths of the blocks.
    itemsize : int
    """
    blocks = [block_edges(lengths) for lengths in chunks]
    aligned = [is_aligned(*each) for each in zip(units, starts, blocks, strict=True)]
    if all(aligned) or not all(int(edges[-1]) for edges in blocks):
        return [AxisTiles(edges, edges) for edges in blocks]
    grids = list(zip(units, starts, strict=True))

    def cut(how: Callable[[Steps | Edges, int, Positions], Positions]) -> list[Positions]:
        each = zip(grids, blocks, aligned, strict=True)
        return [np.unique(edges) if fits else how(*grid, edges) for grid, edges, fits in each]

    chosen = cut(_unit_edges)
    if _mean_bytes(chosen, itemsize) < _WORTH:
        chosen = _grouped(cut(_near_edges), itemsize)
    whole = itemsize * math.prod(int(edges[-1]) for edges in blocks)
    limit = max(min(_LARGEST, whole // _ENOUGH), _mean_bytes(blocks, itemsize), _WORTH)
    chosen = _cut(chosen, grids, itemsize, limit)
    return [*map(AxisTiles, chosen, blocks)]


def _mean_bytes(edges: Sequence[Positions], itemsize: int) -> float:
    return itemsize * math.prod(int(along[-1]) / max(len(along) - 1, 1) for along in edges)


def _unit_edges(units: Steps | Edges, start: int, blocks: Positions) -> Positions:
    """The edges of stored units within a region, and the ends of the region."""
    size = int(blocks[-1])
    stop = start + size
    if isinstance(units, Steps):
        first = start - start % units.length + units.length
        inner = np.arange(first, stop, units.length, dtype=np.int64)
    else:
        every = np.cumsum(np.fromiter(units.lengths(stop), np.int64))
        inner = every[(every > start) & (every < stop)]
    return np.concatenate([[0], inner - start, [size]]).astype(np.int64)


def _near_edges(units: Steps | Edges, start: int, blocks: Positions) -> Positions:
    """For each block edge, the nearest edge of a stored unit."""
    size = int(blocks[-1])
    inner = blocks[(blocks > 0) & (blocks < size)] + start
    low, high = within_units(units, inner)
    near = np.where(inner - low <= high - inner, low, high) - start
    return np.unique(np.concatenate([[0], np.clip(near, 0, size), [size]]).astype(np.int64))


def _grouped(edges: Sequence[Positions], itemsize: int) -> list[Positions]:
    """Join tiles that are so small that a task takes longer to start than to run."""
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
    """Cut tiles to at most ``limit`` bytes each, or to single stored units if these are larger."""
    chosen = list(edges)
    for axis in sorted(range(len(chosen)), key=lambda axis: -int(np.max(np.diff(chosen[axis]), initial=0))):
        longest = [int(np.max(np.diff(along), initial=0)) for along in chosen]
        factor = itemsize * math.prod(longest) / limit
        if factor <= 1:
            break
        wanted = max(int(longest[axis] / factor), 1)
        finer = _unit_edges(*grids[axis], chosen[axis])
        chosen[axis] = _runs(chosen[axis], finer, wanted)
    return chosen


def _runs(edges: Positions, finer: Positions, length: int) -> Positions:
    """All of ``edges``, and some of ``finer``, so that they are about ``length`` elements apart."""
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


_SHARE = 0.5  # Share of the total memory that the blocks of a write may take.


def frontier(axes: Sequence[AxisTiles]) -> tuple[int, int]:
    """The dimension whose slabs need the least memory, and the most elements in memory at a time then.

    Examples
    --------
    >>> from xzarr3.grid import Steps
    >>> from xzarr3.dask.tiles import plan_axes
    >>> frontier(plan_axes([Steps(512)] * 2, [0, 0], [[300] * 20] * 2, 4))
    (0, 3600000)
    """
    found = []
    for at, axis in enumerate(axes):
        others = [other for other in axes if other is not axis]
        across = math.prod(other.size for other in others)
        within = across
        if all(other.aligned for other in others):
            within = math.prod(int(np.max(np.diff(other.blocks), initial=0)) for other in others)
        straddling, inside = _straddling(axis)
        most = np.max(straddling * float(across) + inside * float(within), initial=0.0)
        found.append((int(most), at))
    most, at = min(found, default=(0, 0))
    return at, most


def _straddling(axis: AxisTiles) -> tuple[Positions, Positions]:
    """For each slab, the summed lengths of blocks that it shares with others, and of blocks it has alone."""
    lengths = np.diff(axis.blocks)
    first, last = axis.users
    kept = lengths > 0
    lengths, first, last = lengths[kept], first[kept], last[kept]
    shared = first < last

    def summed(at: Positions, which: Any) -> Positions:
        return np.bincount(at[which], lengths[which], axis.count).astype(np.int64)

    begun, ended = summed(first, shared), summed(last, shared)
    before = np.cumsum(begun) - begun - np.cumsum(ended)  # Blocks from before the slab to past it.
    return before + np.maximum(begun, ended), summed(first, ~shared)


def memory_limit(scheduler: Any = None) -> float:
    """Bytes that the blocks of a write may take, which ``scheduler`` runs.

    They are the option ``memory_limit``, or half of the memory of all workers or of this machine, or of what
    the control group of this process has. No limit applies if a worker has none.
    """
    limit = options.memory_limit()
    if limit is not None:
        return limit
    client: Any = getattr(get_scheduler(scheduler=scheduler), "__self__", None)
    if hasattr(client, "scheduler_info"):
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        limits = [worker["memory_limit"] for worker in workers]
        if limits:
            return _SHARE * sum(limits) if all(limits) else math.inf
    from distributed.system import memory_limit as of_machine  # Imports all of the package.

    return _SHARE * of_machine()
