"""How much memory a write of blocks that are no tiles takes, and how much there is.

Tiles are written slab by slab along one dimension. A block is in memory from when the first slab that has
elements of it is written until the last one is; what is in memory at a time is found from the plans of the
dimensions, without looking at any block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dask
import numpy as np
import psutil
from dask.utils import parse_bytes

from xzarr3.dask.tiles import AxisTiles, Positions

_SHARE = 0.5  # Of the memory that there is, for the blocks of a write.
_CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def frontier(axes: Sequence[AxisTiles]) -> tuple[int, int]:
    """The dimension along which slabs are best, and how many elements are then in memory at most.

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
    """For each slab, the lengths of blocks in it that it shares with others, and of those it has alone."""
    lengths = np.diff(axis.blocks)
    first, last = axis.users
    kept = lengths > 0
    lengths, first, last = lengths[kept], first[kept], last[kept]
    shared = first < last

    def summed(at: Positions, which: Any) -> Positions:
        return np.bincount(at[which], lengths[which], axis.count).astype(np.int64)

    begun, ended = summed(first, shared), summed(last, shared)
    before = np.cumsum(begun) - begun - np.cumsum(ended)  # From before to behind the slab.
    return before + np.maximum(begun, ended), summed(first, ~shared)


def memory_limit(asked: int | str | None, client: Any = None) -> float:
    """Bytes that blocks may take.

    Parameters
    ----------
    asked : int or str, optional
        So many; by default what dask's configuration has as ``xzarr3.memory-limit``, and otherwise half of
        the memory there is.
    client : distributed.Client, optional
        Whose workers have the memory.
    """
    if asked is None:
        asked = dask.config.get("xzarr3.memory-limit", None)
    if asked is not None:
        text = f"memory_limit={asked!r}; accepted: bytes as a positive number or as in '4 GiB'"
        try:
            limit = float(parse_bytes(asked))
        except ValueError as error:
            raise ValueError(text) from error
        if limit <= 0:
            raise ValueError(text)
        return limit
    if client is not None:
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        limits = [worker["memory_limit"] for worker in workers]
        if limits and all(limits):
            return _SHARE * float(sum(limits))
        if limits:
            return math.inf  # Somebody has chosen that workers have no limit.
    return _SHARE * _machine_memory()


def _machine_memory() -> float:
    """Bytes of memory of this machine, or of what this process is confined to."""
    found: float = psutil.virtual_memory().total
    for path in _CGROUPS:
        try:
            text = Path(path).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():
            found = min(found, int(text))
    return found
