"""Writing units of storage, as a plan divides the values: what one thread does.

Each unit is replaced whole; one of which only a part is given is read before. A shard is put together from
the inner chunks that change and, as they are stored, all others.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import numpy as np

from xzarr3._types import AnyArray, Buffer
from xzarr3.codecs.base import ChunkSpec
from xzarr3.codecs.chain import CodecChain, Shard
from xzarr3.division import Addressing, Inner, Slices
from xzarr3.errors import ChunkDecodeError, ChunkError
from xzarr3.reading import leased
from xzarr3.stores.base import OversizedError, Writer
from xzarr3.threads import Runs

if TYPE_CHECKING:
    from xzarr3.engine import Engine

_unit_locks: WeakValueDictionary[object, threading.RLock] = WeakValueDictionary()
_guard = threading.Lock()


def _renew_locks() -> None:
    """A forked child must not wait for a thread of its parent to give a lock back."""
    global _guard
    _guard = threading.Lock()
    _unit_locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


def _unit_lock(store: object, key: str) -> threading.RLock:
    """The lock of a unit, that of nothing else: while it is held, a store may write to another array."""
    with _guard:
        return _unit_locks.setdefault((store, key), threading.RLock())


class UnitWriter:
    """Writes units, for one thread.

    Parameters
    ----------
    engine : Engine
    write : callable
        What the store's ``writer`` gives.
    addressing : Addressing
        How it is told which elements of a unit are given.
    keep_empty : bool
        Store units that hold only the fill value as well.
    fields : tuple of str
        The fields of the elements that are given; all, if there are none here.
    """

    def __init__(
        self,
        engine: Engine,
        write: Writer,
        addressing: Addressing,
        *,
        keep_empty: bool,
        fields: tuple[str, ...] = (),
    ) -> None:
        self._engine = engine
        self._store = engine.store
        self._write = write
        self._addressing = addressing
        self._keep_empty = keep_empty
        self._fields = fields

    def run(self, runs: Runs, source: AnyArray) -> int:
        """Write the units that are left with their parts of ``source``; none of them is missing."""
        while run := runs.take():
            chain, units = run
            for unit in units:
                if runs.stopped:
                    break
                coords, _, inner, outer, whole = unit
                key = self._engine.key(coords)
                try:
                    if all(whole) and not self._fields:
                        self._replace(chain, key, inner, source[outer])
                    else:
                        self.update(chain, key, inner, source[outer])
                except ChunkError as error:
                    error.key, error.chunk = key, coords
                    raise
        return 0

    def _replace(self, chain: CodecChain, key: str, inner: Inner, values: AnyArray) -> None:
        """Store a unit all of whose elements are given."""
        spec = chain.spec
        if self._is_empty(spec, values):
            with _unit_lock(self._engine.store_identity, key):
                if self._store.exists(key):
                    self._store.erase(key)
            return
        if values.shape != spec.shape or not isinstance(self._addressing, Slices) or _is_mesh(inner):
            chunk = spec.data_type.filled(spec.shape, spec.fill_value)
            self._addressing.put(chunk, inner, values)
            values = chunk
        pieces = chain.encoded_pieces(values, keep_empty=self._keep_empty)
        # Not while another thread changes a part of what it has read before: this would be lost entirely.
        with _unit_lock(self._engine.store_identity, key):
            self._write(key, pieces)

    def update(self, chain: CodecChain, key: str, inner: Inner, values: AnyArray) -> None:
        """Change a part of a unit."""
        with _unit_lock(self._engine.store_identity, key), leased() as scratch:
            load = self._store.scratch_loader(scratch, self._engine.largest_value)
            try:
                stored = load(key)
            except OversizedError as error:
                raise ChunkDecodeError(str(error), codec=chain.codecs[-1].name) from error
            spec = chain.spec
            if stored is None and self._is_empty(spec, values):
                return
            if chain.shard is not None:
                pieces = self._updated_shard(chain.shard, stored, inner, values)
            else:
                data = self._updated(chain, stored, inner, values)
                pieces = [] if data is None else [data]
            if pieces:
                self._write(key, pieces)
            elif stored is not None:
                self._store.erase(key)

    def _updated(
        self, chain: CodecChain, stored: Buffer | None, inner: Inner, values: AnyArray
    ) -> Buffer | None:
        """A stored chunk with a part of it replaced; None if it then holds the fill value only."""
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
        """A stored shard with a part of it replaced, in pieces; none if no inner chunk is left."""
        chosen, units = self._addressing.divide(inner, shard.grid.chunk_shape, shard.spec.shape)
        entries: list[list[int] | None] = [None] * len(units)
        if stored is not None:
            entries = shard.read_index(stored)[chosen].reshape(-1, 2).tolist()
        changes: dict[tuple[int, ...], Buffer | None] = {}
        for entry, unit in zip(entries, units, strict=True):
            coords, _, chosen_elements, outer, _ = unit
            new = values[outer]
            try:
                if self._is_all(new, chosen_elements, shard.inner.spec.shape):
                    empty = self._is_empty(shard.inner.spec, new)
                    data = None if empty else shard.inner.encode(new, keep_empty=self._keep_empty)
                else:
                    old = None if entry is None or stored is None else shard.cut(stored, entry)
                    data = self._updated(shard.inner, old, chosen_elements, new)
            except ChunkError as error:
                error.inner_chunk = coords + (error.inner_chunk or ())
                raise
            changes[coords] = data
        return shard.rewritten(stored, changes)

    def _is_all(self, values: AnyArray, inner: Inner, shape: tuple[int, ...]) -> bool:
        """Whether these are all elements of a chunk, in their order."""
        all_given = isinstance(self._addressing, Slices) and not _is_mesh(inner) and not self._fields
        return all_given and values.shape == shape

    def _is_empty(self, spec: ChunkSpec, values: AnyArray) -> bool:
        """Whether values are not stored, because they are the fill value only."""
        return (
            not self._keep_empty and not self._fields and spec.data_type.holds_only(values, spec.fill_value)
        )


def _is_mesh(inner: Inner) -> bool:
    """Whether there are arrays among the slices, which may name an element several times."""
    return any(not isinstance(chosen, slice) for chosen in inner)
