"""Writes stored units as a plan divides the values: the work of one thread.

Each unit is replaced as a whole. If only a part of it is given, the unit is read first. A changed shard gets
newly encoded inner chunks where they change, and the stored bytes of all other inner chunks. This module
starts no threads and knows nothing of selections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from xzarr3._types import AnyArray, Buffer
from xzarr3.codecs.base import ChunkSpec
from xzarr3.codecs.pipeline import CodecChain
from xzarr3.codecs.sharding import Shard
from xzarr3.errors import ChunkDecodeError, ChunkError
from xzarr3.io.projection import Addressing, Inner, Slices
from xzarr3.io.read import leased
from xzarr3.io.shards import forget_index
from xzarr3.stores.base import update
from xzarr3.stores.locks import key_lock
from xzarr3.stores.values import UNCHANGED, OversizedError, Unchanged
from xzarr3.tracing.counters import for_array

if TYPE_CHECKING:
    from xzarr3.io.executor import Engine, Runs


class UnitWriter:
    """Writes units in one thread.

    Parameters
    ----------
    engine : Engine
    addressing : Addressing
        The way in which ``inner`` describes the given elements of a unit.
    keep_empty : bool
        Whether to store units that hold only the fill value.
    fields : tuple of str
        The fields of the elements to write; all fields if empty.
    left_out : list, optional
        Gets the coordinates of the units that are absent afterwards.
    """

    def __init__(
        self,
        engine: Engine,
        addressing: Addressing,
        *,
        keep_empty: bool,
        fields: tuple[str, ...] = (),
        left_out: list[tuple[int, ...]] | None = None,
    ) -> None:
        self._engine = engine
        self._store = engine.store
        self._addressing = addressing
        self._keep_empty = keep_empty
        self._fields = fields
        self._left_out = left_out

    @for_array(lambda writer: writer._engine)
    def run(self, runs: Runs, source: AnyArray) -> int:
        """Write units until none are left, each with its part of ``source``; returns 0."""
        while run := runs.take():
            chain, units = run
            for unit in units:
                if runs.stopped:
                    break
                key = self._engine.key(unit.coords)
                try:
                    change = self._replace if all(unit.whole) and not self._fields else self.update
                    stored = change(chain, key, unit.inner, source[unit.outer])
                except ChunkError as error:
                    error.key, error.chunk = key, unit.coords
                    raise
                if chain.shard is not None:  # The kept index is out of date now.
                    forget_index(chain.shard, self._engine.store_identity, key)
                if not stored and self._left_out is not None:
                    self._left_out.append(unit.coords)
        return 0

    def _replace(self, chain: CodecChain, key: str, inner: Inner, values: AnyArray) -> bool:
        """Store a unit whose elements are all given; returns whether the unit exists afterwards."""
        spec = chain.spec
        if self._is_empty(spec, values):
            with key_lock(self._store.identity, key):
                if self._engine.waiting or self._store.exists(key):
                    self._store.erase(key)
            return False
        if values.shape != spec.shape or not isinstance(self._addressing, Slices) or _is_mesh(inner):
            chunk = spec.data_type.filled(spec.shape, spec.fill_value)
            self._addressing.put(chunk, inner, values)
            values = chunk
        pieces = chain.encoded_pieces(values, keep_empty=self._keep_empty)
        self._store.put(key, pieces)
        return True

    @for_array(lambda writer: writer._engine)
    def update(self, chain: CodecChain, key: str, inner: Inner, values: AnyArray) -> bool:
        """Change a part of a unit without losing changes by other writers.

        Returns whether the unit exists afterwards.
        """
        spec = chain.spec
        there = True

        def change(stored: Buffer | None) -> list[Buffer] | Unchanged | None:
            nonlocal there
            there = True
            if stored is None and self._is_empty(spec, values):
                there = False
                return UNCHANGED
            if chain.shard is not None:
                pieces = self._updated_shard(chain.shard, stored, inner, values)
            else:
                data = self._updated(chain, stored, inner, values)
                pieces = [] if data is None else [data]
            if pieces or stored is None or self._store.traits.erases_conditionally:
                there = bool(pieces)
                return pieces or None
            return chain.encoded_pieces(spec.data_type.filled(spec.shape, spec.fill_value))

        try:
            with leased() as scratch:
                update(self._store, key, change, into=scratch, limit=self._engine.largest_value)
        except OversizedError as error:
            raise ChunkDecodeError(str(error), codec=chain.codecs[-1].name) from error
        return there

    def _updated(
        self, chain: CodecChain, stored: Buffer | None, inner: Inner, values: AnyArray
    ) -> Buffer | None:
        """A stored chunk with a part of it replaced; None if it then holds only the fill value."""
        spec = chain.spec
        if stored is None:
            chunk = spec.data_type.filled(spec.shape, spec.fill_value)
        else:
            chunk = np.array(chain.decode(stored), dtype=spec.dtype)
        self._addressing.put(chunk, inner, values, self._fields)
        if not self._keep_empty and spec.data_type.holds_only(chunk, spec.fill_value):
            return None
        return chain.encode(chunk, keep_empty=self._keep_empty)

    def _updated_shard(
        self, shard: Shard, stored: Buffer | None, inner: Inner, values: AnyArray
    ) -> list[Buffer]:
        """A stored shard with a part of it replaced, in pieces; empty if no inner chunk is left."""
        chosen, units = self._addressing.divide(inner, shard.grid.chunk_shape, shard.spec.shape)
        entries: list[list[int] | None] = [None] * len(units)
        index = None if stored is None else shard.read_index(stored)
        if index is not None:
            entries = index[chosen].reshape(-1, 2).tolist()
        changes: dict[tuple[int, ...], Buffer | None] = {}
        for entry, unit in zip(entries, units, strict=True):
            new = values[unit.outer]
            try:
                if self._is_all(new, unit.inner, shard.inner.spec.shape):
                    empty = self._is_empty(shard.inner.spec, new)
                    data = None if empty else shard.inner.encode(new, keep_empty=self._keep_empty)
                else:
                    old = None if entry is None or stored is None else shard.cut(stored, entry)
                    data = self._updated(shard.inner, old, unit.inner, new)
            except ChunkError as error:
                error.inner_chunk = unit.coords + (error.inner_chunk or ())
                raise
            changes[unit.coords] = data
        return shard.rewritten(stored or b"", index, changes)

    def _is_all(self, values: AnyArray, inner: Inner, shape: tuple[int, ...]) -> bool:
        """Whether ``values`` are all elements of a chunk, in their order."""
        all_given = isinstance(self._addressing, Slices) and not _is_mesh(inner) and not self._fields
        return all_given and values.shape == shape

    def _is_empty(self, spec: ChunkSpec, values: AnyArray) -> bool:
        """Whether values are not stored, because they hold only the fill value."""
        return (
            not self._keep_empty and not self._fields and spec.data_type.holds_only(values, spec.fill_value)
        )


def _is_mesh(inner: Inner) -> bool:
    """Whether there are arrays among the slices. An array may name an element several times."""
    return any(not isinstance(chosen, slice) for chosen in inner)
