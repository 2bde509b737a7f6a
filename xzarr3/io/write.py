"""Writes stored units as a plan divides the values: the work of one thread.

Each unit is replaced as a whole. If only a part of it is given, the unit is read first. A changed shard gets
newly encoded inner chunks where they change, and the stored bytes of all other inner chunks. This module
starts no threads and knows nothing of selections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, TypeAlias, cast

import msgspec
import numpy as np

from xzarr3._types import AnyArray, Buffer
from xzarr3.codecs.base import ChunkSpec
from xzarr3.codecs.pipeline import CodecChain
from xzarr3.codecs.sharding import Shard
from xzarr3.errors import ChunkDecodeError, ChunkError
from xzarr3.io.plan import Batch
from xzarr3.io.projection import Inner, Slices
from xzarr3.io.read import ThreadScratch
from xzarr3.io.shards import forget_index
from xzarr3.parallel import is_wanted
from xzarr3.stores.base import Store, update
from xzarr3.stores.locks import key_lock
from xzarr3.stores.values import ABSENT, UNCHANGED, OversizedError, Unchanged
from xzarr3.tracing.counters import for_array

if TYPE_CHECKING:
    from xzarr3.io.executor import Engine
    from xzarr3.io.projection import ChunkProjection
    from xzarr3.stores.local.store import LocalStore


Change: TypeAlias = "Callable[[UnitWriter, CodecChain, str, Inner, AnyArray], bool]"


class UnitWriter(msgspec.Struct, frozen=True, eq=False):
    """Writes units in one thread.

    Parameters
    ----------
    engine : Engine
    addressing : Slices
        The way in which ``inner`` describes the given elements of a unit.
    keep_empty : bool
        Whether to store units that hold only the fill value.
    confirm : callable
        As :meth:`xzarr3.io.executor.Engine.write` has it.
    fields : tuple of str
        The fields of the elements to write; all fields if empty.
    owns_ends : bool
        As :meth:`xzarr3.io.executor.Engine.write` has it.
    """

    engine: Engine
    addressing: Slices
    keep_empty: bool
    confirm: Callable[[], None]
    fields: tuple[str, ...] = ()
    owns_ends: bool = True

    @for_array(lambda writer: writer.engine)
    def run(self, batches: Iterable[Batch], source: AnyArray) -> int:
        """Write units until none are left, each with its part of ``source``; returns 0."""
        from xzarr3.io.native_write import change_part, changes  # imports the libraries of the codecs

        store, change = cast("LocalStore", self.engine.store), change_part if changes(self) else None
        if change is not None:
            store.check_writable()
        try:
            for chain, units in batches:
                for unit in units:
                    if not is_wanted():
                        break
                    key = self.engine.key(unit.coords)
                    self._write(chain, key, unit, source[unit.outer], change)
                    if chain.shard is not None:  # The kept index is out of date now.
                        forget_index(chain.shard, self.engine.store_identity, key)
        finally:
            if change is not None:
                store.touch()
        return 0

    def _write(
        self, chain: CodecChain, key: str, unit: ChunkProjection, values: AnyArray, change: Change | None
    ) -> None:
        is_whole = all(unit.whole) and not self.fields
        # Past the end of the array, others may have appended elements.
        is_part = not is_whole or (values.shape != chain.spec.shape and not self.owns_ends)
        if is_part and change is not None and change(self, chain, key, unit.inner, values):
            return
        try:
            if is_part:
                try:
                    self.update(chain, key, unit.inner, values, may_be_new=is_whole)
                    return
                except ChunkDecodeError:  # If all elements of the array are given, nothing is lost by it.
                    if not is_whole:
                        raise
            self._replace(chain, key, unit.inner, values)
        except ChunkError as error:
            error.key, error.chunk = key, unit.coords
            raise

    def _replace(self, chain: CodecChain, key: str, inner: Inner, values: AnyArray) -> None:
        """Store a unit whose elements are all given, or erase it."""
        spec, store = chain.spec, self.engine.store
        if self._is_empty(spec, values):
            with key_lock(store.identity, key):
                if self.engine.waiting or store.exists(key):
                    with _created(store, key):
                        self.confirm()
                        store.erase(key)
            return
        if values.shape != spec.shape or _is_mesh(inner):
            chunk = spec.data_type.filled(spec.shape, spec.fill_value)
            self.addressing.put(chunk, inner, values)
            values = chunk
        pieces = chain.encoded_pieces(values, keep_empty=self.keep_empty)
        with key_lock(store.identity, key), _created(store, key):
            self.confirm()
            store.put(key, pieces)

    @for_array(lambda writer: writer.engine)
    def update(
        self, chain: CodecChain, key: str, inner: Inner, values: AnyArray, *, may_be_new: bool = False
    ) -> None:
        """Change a part of a unit without losing changes by other writers.

        With ``may_be_new``, a service is asked to create the unit before it is asked for its value.
        """
        spec, store = chain.spec, self.engine.store

        def change(stored: Buffer | None) -> list[Buffer] | Unchanged | None:
            self.confirm()
            if stored is None and self._is_empty(spec, values):
                return UNCHANGED
            if chain.shard is not None:
                pieces = self._updated_shard(chain.shard, stored, inner, values)
            else:
                data = self._updated(chain, stored, inner, values)
                pieces = [] if data is None else [data]
            if pieces or stored is None or store.traits.erases_conditionally:
                return pieces or None
            return chain.encoded_pieces(spec.data_type.filled(spec.shape, spec.fill_value))

        if may_be_new and self.engine.waiting and store.traits.conditional == "service":
            pieces = change(None)
            if isinstance(pieces, list) and store.put(key, pieces, if_version=ABSENT):
                return
        limit = self.engine.meta.chain.largest_stored
        try:
            with ThreadScratch() as scratch:
                update(store, key, change, into=scratch, limit=limit)
        except OversizedError as error:
            raise ChunkDecodeError(str(error), codec=chain.codecs[-1].name) from error

    def _updated(
        self, chain: CodecChain, stored: Buffer | None, inner: Inner, values: AnyArray
    ) -> Buffer | None:
        """A stored chunk with a part of it replaced; None if it then holds only the fill value."""
        spec = chain.spec
        if stored is None:
            chunk = spec.data_type.filled(spec.shape, spec.fill_value)
        else:
            chunk = np.array(chain.decode(stored), dtype=spec.dtype)
        self.addressing.put(chunk, inner, values, self.fields)
        return self._encoded(chain, chunk)

    def _encoded(self, chain: CodecChain, chunk: AnyArray) -> Buffer | None:
        """A whole chunk as it is stored; None if it is not, because it holds only the fill value."""
        if not self.keep_empty and chain.spec.data_type.holds_only(chunk, chain.spec.fill_value):
            return None
        return chain.encode(chunk, keep_empty=self.keep_empty)

    def _updated_shard(
        self, shard: Shard, stored: Buffer | None, inner: Inner, values: AnyArray
    ) -> list[Buffer]:
        """A stored shard with a part of it replaced, in pieces; empty if no inner chunk is left."""
        chosen, units = self.addressing.divide(inner, shard.grid.chunk_shape, shard.spec.shape)
        entries: list[list[int] | None] = [None] * len(units)
        index = None if stored is None else shard.read_index(stored)
        if index is not None:
            entries = index[chosen].reshape(-1, 2).tolist()
        changes: dict[tuple[int, ...], Buffer | None] = {}
        for entry, unit in zip(entries, units, strict=True):
            new = values[unit.outer]
            try:
                if new.shape == shard.inner.spec.shape and not (self.fields or _is_mesh(unit.inner)):
                    data = self._encoded(shard.inner, new)
                else:
                    old = None if entry is None or stored is None else shard.cut(stored, entry)
                    data = self._updated(shard.inner, old, unit.inner, new)
            except ChunkError as error:
                error.inner_chunk = unit.coords + (error.inner_chunk or ())
                raise
            changes[unit.coords] = data
        return shard.rewritten(stored or b"", index, changes)

    def _is_empty(self, spec: ChunkSpec, values: AnyArray) -> bool:
        """Whether values are not stored, because they hold only the fill value."""
        return not self.keep_empty and not self.fields and spec.data_type.holds_only(values, spec.fill_value)


def _created(store: Store, key: str) -> AbstractContextManager[object]:
    """Holds the file of the next value of a key, if the store has files."""
    if not store.traits.plain_files:
        return nullcontext()
    return cast("LocalStore", store).created(key, needed=False)


def _is_mesh(inner: Inner) -> bool:
    """Whether there are arrays among the slices. An array may name an element several times."""
    return any(not isinstance(chosen, slice) for chosen in inner)
