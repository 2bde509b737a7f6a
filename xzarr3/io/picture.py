"""Draws the grid of an array, and the chunks that a plan touches. Makes no requests.

An array of more than three dimensions is drawn by its last three.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from xzarr3.display.svg import Axis, Box, drawing
from xzarr3.display.text import cut
from xzarr3.grid import Edges, Steps
from xzarr3.io.selection import DimChoice, DimSelection, Points

if TYPE_CHECKING:
    from xzarr3.io.plan import ReadPlan
    from xzarr3.model.metadata import ArrayMetadata

_DRAWN = 3  # Dimensions
_MOST_EDGES, _MOST_FINE = 30, 40  # Along one dimension; of more, every second or third is drawn.
_MOST_RUNS = 24  # Touched runs of chunks along one dimension; closer ones are joined.
_MOST_BOXES = 600
_MOST_ELEMENTS = 10**5  # Steps longer than a chunk are looked at one by one, up to so many.
_LONGEST_LABEL = 23

_Run: TypeAlias = "tuple[int, int]"
_Numbers: TypeAlias = npt.NDArray[np.int64]


def picture(meta: ArrayMetadata, plans: Iterable[ReadPlan] = ()) -> str:
    """The array as SVG, with the chunks that plans touch in another color; empty if it has no elements.

    Parameters
    ----------
    meta : ArrayMetadata
    plans : iterable of ReadPlan
    """
    if not meta.shape or 0 in meta.shape:
        return ""
    first = max(len(meta.shape) - _DRAWN, 0)
    inner = _inner(meta)
    names = meta.dimension_names or (None,) * len(meta.shape)
    axes = [
        _axis(meta.shape[at], names[at], meta.chunk_grid.axes[at], inner[at])
        for at in range(first, len(meta.shape))
    ]
    touched = itertools.chain.from_iterable(_touched(meta, plan, first) for plan in plans)
    boxes = list(itertools.islice(touched, _MOST_BOXES))
    left_out = "" if not first else f"<div>the last {len(axes)} of {len(meta.shape)} dimensions</div>"
    return drawing(axes, boxes) + left_out


def _inner(meta: ArrayMetadata) -> tuple[int | None, ...]:
    """Lengths of inner chunks; None without shards."""
    shard = meta.chain.shard
    return (None,) * len(meta.shape) if shard is None else shard.grid.largest


def _axis(size: int, name: str | None, grid: Steps | Edges, inner: int | None) -> Axis:
    count = grid.count(size)
    every = -(-count // _MOST_EDGES)
    starts = [grid.start(at) for at in range(every, count, every)]
    fine: list[int] = []
    if inner is not None and every == 1:
        step = inner * -(-size // (inner * _MOST_FINE))
        for begin, end in itertools.pairwise([0, *starts, size]):
            fine += range(begin + step, end, step)
    label = str(size) if name is None else f"{cut(name, _LONGEST_LABEL)}: {size}"
    return Axis(size=size, label=label, edges=tuple(starts), fine=tuple(fine))


def _touched(meta: ArrayMetadata, plan: ReadPlan, first: int) -> Iterator[Box]:
    """The regions of the touched chunks along the drawn dimensions."""
    shape, grids, inner = meta.shape, meta.chunk_grid.axes, _inner(meta)
    selection, drawn = plan.selection, range(first, len(shape))
    if 0 in plan.buffer_shape:
        return
    if not isinstance(selection, Points):
        yield from itertools.product(*(_runs(selection[at], shape[at], grids[at], inner[at]) for at in drawn))
        return
    others = [at for at in range(len(shape)) if at not in selection.axes]
    chosen = dict(zip(others, selection.others, strict=True))
    indices = dict(zip(selection.axes, selection.indices, strict=True))
    cells = {at: _cells(indices[at], shape[at], grids[at], inner[at]) for at in drawn if at in indices}
    runs = [_runs(chosen[at], shape[at], grids[at], inner[at]) for at in drawn if at in chosen]
    columns = [along for cell in cells.values() for along in cell]
    rows = np.unique(np.stack(columns, axis=1), axis=0).tolist() if columns else [[]]
    for row in rows:
        for combination in itertools.product(*runs):
            points, slices = iter(zip(row[::2], row[1::2], strict=True)), iter(combination)
            yield tuple(next(points) if at in cells else next(slices) for at in drawn)


def _cells(
    elements: _Numbers, size: int, grid: Steps | Edges, inner: int | None
) -> tuple[_Numbers, _Numbers]:
    """For each element the first element of its chunk, and the one after the last."""
    index, within = grid.locate(elements)
    low = elements - within
    if inner is not None:
        low = low + within // inner * inner
        high = low + inner
    elif isinstance(grid, Steps):
        high = low + min(grid.length, size)
    else:
        known = {at: grid.length_at(at) for at in np.unique(index).tolist()}
        high = low + np.array([known[at] for at in index.tolist()], np.int64)
    return low, np.minimum(high, size)


def _runs(chosen: DimChoice, size: int, grid: Steps | Edges, inner: int | None) -> list[_Run]:
    """The runs of touched chunks along a dimension, as elements."""
    if isinstance(chosen, DimSelection):
        shortest = inner or min(grid.distinct)
        if chosen.step <= shortest or chosen.count > _MOST_ELEMENTS:
            elements = np.array([chosen.start, chosen.stop - 1])
            low, high = _cells(elements, size, grid, inner)
            return [(int(low[0]), int(high[1]))]
        elements = chosen.start + chosen.step * np.arange(chosen.count)
    else:
        elements = chosen.indices
    low, high = _cells(elements, size, grid, inner)
    gaps = low[1:] - high[:-1]
    widest = np.sort(gaps)[::-1][_MOST_RUNS - 1 : _MOST_RUNS]
    apart = gaps > max([0, *widest.tolist()])
    begins = np.concatenate([low[:1], low[1:][apart]])
    ends = np.concatenate([high[:-1][apart], high[-1:]])
    return list(zip(begins.tolist(), ends.tolist(), strict=True))
