"""The functions that the tasks of a write run."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from xzarr3._types import AnyArray
from xzarr3.arrays import Array
from xzarr3.dask.blocks import threads_of
from xzarr3.dask.ending import Gate
from xzarr3.dask.forks import Forks
from xzarr3.dask.tiles import Cut
from xzarr3.errors import SelectionError
from xzarr3.stores.foreign import IcechunkStore

Tile = tuple[int, ...]
Region = tuple[slice, ...]
Cuts = tuple[tuple[Cut, ...], ...]


class Sink:
    """Writes the tiles of a job to its target while the gate is open.

    Parameters
    ----------
    target : Array
    gate : Gate
    forks : Forks, optional
        What other processes write to, in place of the store of ``target``.
    """

    def __init__(self, target: Array, gate: Gate, forks: Forks | None = None) -> None:
        self.target, self._gate, self._forks = target, gate, forks

    def __reduce__(self) -> tuple[object, ...]:
        if self._forks is None:
            return Sink, (self.target, self._gate)
        _, *state = self.target.__getstate__()
        return ForkedSink, (self._forks.fork, type(self.target), state, self._gate)

    def write(self, region: Region, values: AnyArray) -> bytes | None:
        """Write one tile; the result is None, or the fork that has it."""
        with self._gate.passing():
            self.target.set(region, values, threads=threads_of(self.target))
        return None


class ForkedSink:
    """Writes each tile to a fork of its own of a session, in another process than that of the session."""

    def __init__(self, fork: bytes, kind: type[Array], state: Sequence[object], gate: Gate) -> None:
        self._given = fork, kind, state, gate
        self.target = self._on(IcechunkStore.forked(fork))

    def __reduce__(self) -> tuple[object, ...]:
        return ForkedSink, self._given

    def _on(self, store: IcechunkStore) -> Array:
        _, kind, state, _ = self._given
        array = kind.__new__(kind)
        array.__setstate__((store, *state))
        return array

    def write(self, region: Region, values: AnyArray) -> bytes:
        """Write one tile; returns the fork."""
        fork, _, _, gate = self._given
        store = IcechunkStore.forked(fork)
        Sink(self._on(store), gate).write(region, values)
        return store.fork()


def write_block(block: AnyArray, sink: Sink | ForkedSink, region: Region, *after: object) -> bytes | None:
    """Write a block that is a tile, after the tasks ``after``."""
    _check_shape(sink.target, block, tuple(part.stop - part.start for part in region))
    return sink.write(region, block)


def write_tile(sink: Sink | ForkedSink, region: Region, cuts: Cuts, *given: Any) -> bytes | None:
    """Write a tile made of parts of blocks.

    ``given`` are the blocks, and after them the results of tasks that had to be done before.
    """
    parts = list(itertools.product(*cuts))
    target, blocks = sink.target, given[: len(parts)]
    if len(parts) == 1:
        return sink.write(region, _part(target, blocks[0], parts[0]))
    elements = target.zdtype.to_native_dtype()
    whole = np.empty(tuple(part.stop - part.start for part in region), elements)
    for block, part in zip(blocks, parts, strict=True):
        values = _part(target, block, part)
        if type(values) is not np.ndarray or values.dtype != elements:
            values = target.fitted(values, values.shape)  # So no value is cast with loss, no mask dropped.
        whole[tuple(slice(to, to + end - begin) for _, begin, end, to in part)] = values
    return sink.write(region, whole)


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
