"""Memory that a write needs if its blocks are not tiles, and memory that it may use.

Tiles are written slab by slab along one dimension. A block stays in memory from the first slab that contains
its elements to the last. The most that is in memory at a time follows from the tiles of each dimension;
single blocks are not looked at.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from dask.base import get_scheduler

from xzarr3 import options
from xzarr3.dask.tiles import AxisTiles, Positions

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
