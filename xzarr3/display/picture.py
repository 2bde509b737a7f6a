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
from xzarr3.grid import Edges, Steps
from xzarr3.io.selection import DimChoice, DimSelection, Indices, Points

if TYPE_CHECKING:
    from xzarr3.io.plan import ReadPlan
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
    inner = [*map(Steps, shard.grid.chunk_shape)] if shard else [None] * len(shape)
    axes = [_axis(shape[at], names[at], grids[at], inner[at]) for at in drawn]
    boxes = itertools.chain.from_iterable(
        itertools.product(*(_runs(plan.selection[at], shape[at], inner[at] or grids[at]) for at in drawn))
        for plan in plans
        if not isinstance(plan.selection, Points) and 0 not in plan.buffer_shape
    )
    left_out = f"<div>the last {_DRAWN} of {len(shape)} dimensions</div>" if drawn.start else ""
    return drawing(axes, list(itertools.islice(boxes, _MOST_BOXES))) + left_out


def _axis(size: int, name: str | None, grid: Steps | Edges, inner: Steps | None) -> Axis:
    count = grid.count(size)
    every = -(-count // _MOST_EDGES)
    starts = [grid.start(at) for at in range(every, count, every)]
    fine: list[int] = []
    if inner is not None and every == 1:
        step = inner.length * -(-size // (inner.length * _MOST_FINE))
        for begin, end in itertools.pairwise([0, *starts, size]):
            fine += range(begin + step, end, step)
    label = f"{size:,}" if name is None else f"{cut(name, _LONGEST_LABEL)}: {size:,}"
    return Axis(size=size, label=label, edges=tuple(starts), fine=tuple(fine))


def _runs(chosen: DimChoice, size: int, axis: Steps | Edges) -> list[tuple[int, int]]:
    """The runs of touched chunks along a dimension, as elements."""
    coords = np.array([[axis.index(chosen.start), axis.index(chosen.stop - 1)]])
    if not isinstance(chosen, DimSelection):
        coords = _joined(axis.locate(chosen.indices)[0])
    elif chosen.step > min(axis.distinct) and chosen.count <= _MOST_ELEMENTS:
        coords = _joined(axis.locate(chosen.start + chosen.step * np.arange(chosen.count))[0])
    return [
        (axis.start(first), min(axis.start(last) + axis.length_at(last), size))
        for first, last in coords.tolist()
    ]


def _joined(coords: Indices) -> Indices:
    """First and last of each run of neighbours among ascending coordinates; not too many runs."""
    gaps = np.diff(coords)
    apart = np.flatnonzero(gaps > max([1, *np.sort(gaps)[:-_MOST_RUNS].tolist()]))
    return np.stack([coords[[0, *(apart + 1)]], coords[[*apart, -1]]], axis=1)
