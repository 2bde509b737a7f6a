"""Draws the grid of an array, and the chunks that plans touch. Makes no requests.

An array of more than three dimensions is drawn by its last three. Selections of single points are not drawn.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from xzarr3.display.svg import Axis, drawing
from xzarr3.display.text import cut

if TYPE_CHECKING:
    from xzarr3.grid import Edges, Steps
    from xzarr3.io.plan import ReadPlan
    from xzarr3.io.selection import DimChoice
    from xzarr3.model.metadata import ArrayMetadata

_DRAWN = 3  # Dimensions
_MOST_EDGES, _MOST_FINE = 30, 40  # Along one dimension; of more, every second or third is drawn.
_MOST_RUNS = 24  # Touched runs of chunks along one dimension; closer ones are joined.
_MOST_BOXES = 600
_MOST_ELEMENTS = 10**5  # Steps longer than a chunk are looked at one by one, up to so many.
_LONGEST_LABEL = 23


def picture(meta: ArrayMetadata, plans: Iterable[ReadPlan] = ()) -> str:
    """The array as SVG, with the chunks that plans touch in another color; empty if it has no elements."""
    shape, grids, shard = meta.shape, meta.chunk_grid.axes, meta.chain.shard
    if not shape or 0 in shape:
        return ""
    drawn = range(max(len(shape) - _DRAWN, 0), len(shape))
    names = meta.dimension_names or (None,) * len(shape)
    inner = shard.grid.axes if shard else [None] * len(shape)
    axes = [_axis(shape[at], names[at], grids[at], inner[at]) for at in drawn]
    boxes = itertools.chain.from_iterable(
        itertools.product(*(_runs(plan.selection[at], shape[at], inner[at] or grids[at]) for at in drawn))
        for plan in plans
        if isinstance(plan.selection, tuple) and 0 not in plan.buffer_shape
    )
    left_out = f"<div>the last {_DRAWN} of {len(shape)} dimensions</div>" if drawn.start else ""
    return drawing(axes, list(itertools.islice(boxes, _MOST_BOXES))) + left_out


def _axis(size: int, name: str | None, grid: Steps | Edges, inner: Steps | Edges | None) -> Axis:
    count = grid.count(size)
    every = -(-count // _MOST_EDGES)
    starts = [grid.start(at) for at in range(every, count, every)]
    fine: list[int] = []
    if inner is not None and every == 1:
        step = inner.longest * -(-size // (inner.longest * _MOST_FINE))
        for begin, end in itertools.pairwise([0, *starts, size]):
            fine += range(begin + step, end, step)
    label = str(size) if name is None else f"{cut(name, _LONGEST_LABEL)}: {size}"
    return Axis(size=size, label=label, edges=tuple(starts), fine=tuple(fine))


def _runs(chosen: DimChoice, size: int, axis: Steps | Edges) -> list[tuple[int, int]]:
    """The runs of touched chunks along a dimension, as elements; not too many."""
    indices, step = getattr(chosen, "indices", None), getattr(chosen, "step", 0)
    if step > min(axis.distinct) and chosen.count <= _MOST_ELEMENTS:
        indices = np.arange(chosen.start, chosen.stop, step)
    if indices is None:
        runs = [(axis.index(chosen.start), axis.index(chosen.stop - 1))]
    else:
        coords, _ = axis.locate(indices)
        gaps = np.diff(coords)
        apart = np.flatnonzero(gaps > max([1, *np.sort(gaps)[:-_MOST_RUNS].tolist()]))
        runs = np.stack([coords[[0, *(apart + 1)]], coords[[*apart, -1]]], axis=1).tolist()
    return [(axis.start(a), min(axis.start(b) + axis.length_at(b), size)) for a, b in runs]
