"""The functions that the tasks of a write run."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from xzarr3._types import AnyArray
from xzarr3.arrays import Array
from xzarr3.dask.blocks import threads_of
from xzarr3.dask.ending import Gate
from xzarr3.dask.tiles import Cut
from xzarr3.errors import SelectionError

Tile = tuple[int, ...]
Region = tuple[slice, ...]
Cuts = tuple[tuple[Cut, ...], ...]


class Sink:
    """Writes the tiles of a job to its target while the gate is open."""

    def __init__(self, target: Array, gate: Gate) -> None:
        self.target, self._gate = target, gate

    def write(self, region: Region, values: AnyArray) -> None:
        """Write one tile."""
        with self._gate.passing():
            self.target.set(region, values, threads=threads_of(self.target))


def write_block(block: AnyArray, sink: Sink, region: Region, *after: object) -> None:
    """Write a block that is a tile, after the tasks ``after``."""
    _check_shape(sink.target, block, tuple(part.stop - part.start for part in region))
    sink.write(region, block)


def write_tile(sink: Sink, region: Region, cuts: Cuts, *given: Any) -> None:
    """Write a tile made of parts of blocks.

    ``given`` are the blocks, and after them the results of tasks that had to be done before.
    """
    parts = list(itertools.product(*cuts))
    target, blocks = sink.target, given[: len(parts)]
    if len(parts) == 1:
        sink.write(region, _part(target, blocks[0], parts[0]))
        return
    dtypes = {block.dtype if type(block) is np.ndarray else None for block in blocks}
    common = dtypes.pop() if len(dtypes) == 1 else None
    whole = np.empty(
        tuple(part.stop - part.start for part in region), target.dtype if common is None else common
    )
    for block, part in zip(blocks, parts, strict=True):
        values = _part(target, block, part)
        if common is None:  # Checked here, so that no value is cast with loss and no mask is dropped.
            values = target.fitted(values, values.shape)
        whole[tuple(slice(to, to + end - begin) for _, begin, end, to in part)] = values
    sink.write(region, whole)


def _part(target: Array, block: AnyArray, cuts: tuple[Cut, ...]) -> AnyArray:
    """The part of a block that a tile takes."""
    _check_shape(target, block, tuple(length for length, *_ in cuts))
    values = block if isinstance(block, np.ndarray) else np.asarray(block)
    taken: AnyArray = values[tuple(slice(begin, end) for _, begin, end, _ in cuts)]
    return taken


def _check_shape(target: Array, block: AnyArray, expected: tuple[int, ...]) -> None:
    if np.shape(block) != expected:
        raise SelectionError(
            f"a block for array '{target.name}' has shape {np.shape(block)}, but .chunks of the dask array "
            f"says {expected}; correct .chunks"
        )
