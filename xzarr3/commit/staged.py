"""Stages the values of a write beside the node that they replace, until all are stored.

:class:`Staged` is what all such writes have in common. :class:`Beside` copies the values within the store to
their place. :mod:`xzarr3.commit.replace_directory` renames them instead.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping, Set

from xzarr3.commit.lease import SWAPPING, Lease, keeps_leases
from xzarr3.commit.leftovers import now
from xzarr3.commit.recover import remove_staged, say_state, sweep, take
from xzarr3.commit.resume import Resumption
from xzarr3.commit.stage import (
    BEGUN,
    NEW,
    SWAP,
    NodeKeys,
    StagedKeys,
    Staging,
    foreign_keys,
    gone,
    lease_at,
    staged_prefixes,
    taken_up,
    without,
)
from xzarr3.commit.swap import Swap
from xzarr3.errors import StoreError
from xzarr3.formats.base import node_prefix
from xzarr3.model.metadata import ArrayMetadata, NodeMetadata
from xzarr3.parallel import parallel_map
from xzarr3.stores import Store
from xzarr3.stores.local.names import STAGED


class Staged(Staging):
    """Values that are staged beside their place until all are stored, and then swapped in.

    A note beside the values tells when they were begun, and which lease keeps other writers away. Who removes
    the values removes it last.

    Parameters
    ----------
    store : Store
    places : Places
    arrays : mapping of str to ArrayMetadata
        The arrays that are written, by path.
    resumed : Resumption, optional
        Identifies the write, if it can be resumed.
    lease : Lease, optional
        The lease of the place, if the caller holds it.
    """

    def __init__(
        self,
        store: Store,
        places: NodeKeys,
        arrays: Mapping[str, ArrayMetadata],
        resumed: Resumption | None,
        lease: Lease | None = None,
    ) -> None:
        self._target = store
        self._places = places
        self._arrays = arrays
        self._resumed = resumed
        self._top = f"{STAGED}{uuid.uuid4().hex}/" if resumed is None else resumed.top
        self._given = self._lease = lease
        self._swapping = False
        self._others: list[str] = []
        self._copied: list[str] | None = None  # keys to remove at the end; None for all
        self._hidden: tuple[str, ...] = (
            self._top,
        )  # removed from messages, so that keys have their final names

    def _note_begin(self) -> None:
        """Note the beginning of the write."""
        self._swapping = False
        self._note(BEGUN, now(staged=True, lease=self._key))

    @contextlib.contextmanager
    def _hiding(self) -> Iterator[None]:
        """Remove the staging prefix from error messages, so that keys have their final names."""
        try:
            yield
        except StoreError as error:
            raise without(error, *self._hidden) from error.__cause__

    def _check_kept(self) -> None:
        """Raise if another writer has removed the values."""
        if not self._target.exists(f"{self._top}{BEGUN}"):
            raise gone(self._target)

    def _carry_out(
        self, swap: Swap, nodes: Mapping[str, NodeMetadata], known: Set[str] = frozenset()
    ) -> bool:
        """Store the list of steps, say that the swap is under way, and do it; returns whether it was done."""
        self._note(SWAP, swap.text())
        self._say(SWAPPING)
        self._swapping = True
        try:
            return swap.carry_out(self._target, self._top, self._places.formats[0], self._say, nodes, known)
        except BaseException as error:
            error.add_note(
                f"'/{swap.path}' in {self._target} may be replaced only in part; xzarr3.recover(store), or "
                "the next write to it, finishes that, or gives it up where nothing has left its place yet"
            )
            raise

    def _note(self, name: str, said: bytes) -> None:
        """Store a note beside the staged values."""
        with self._hiding():
            self._target.set(f"{self._top}{name}", said)

    @property
    def _key(self) -> str:
        return self._lease.key if self._lease is not None else lease_at(self._target, self._places).key

    @property
    def _is_held(self) -> bool:
        return self._lease is not None and (self._given is None or self._given.is_held)

    def _say(self, state: str) -> None:
        """Store the state of the place in its lease."""
        lease = self._lease if self._is_held else None
        with self._hiding():
            say_state(self._target, self._key, self._places.path, self._top, lease, state)

    def clean(self) -> None:
        self._swapping = False
        try:
            remove_staged(self._target, self._top, self._copied)
        finally:  # leftovers do not block other writers, so release the lease
            if not self._is_held:
                self._target.erase(self._key)
            elif self._given is not None:
                self._given.say(self._places.path, "", "")
            elif self._lease is not None:
                self._lease.release()
        sweep(self._target, self._others)

    def discard(self) -> None:
        own = self._lease if self._given is None else None
        if self._swapping:
            if own is not None:
                own.leave()
            return
        try:
            self._remove()
        finally:
            if own is not None:
                own.release()

    def _remove(self) -> None:
        remove_staged(self._target, self._top)


class Beside(Staged):
    """Stages values under keys of their own and copies them to their final keys at the end.

    One writer at a time does so at a place.

    Parameters
    ----------
    store, places, arrays, resumed, lease
        As :class:`Staged` has them.
    seen : (set of str, set of str), optional
        The keys found at the place, and those among them that stay.
    """

    def __init__(
        self,
        store: Store,
        places: NodeKeys,
        arrays: Mapping[str, ArrayMetadata],
        *,
        resumed: Resumption | None = None,
        lease: Lease | None = None,
        seen: tuple[set[str], set[str]] | None = None,
    ) -> None:
        super().__init__(store, places, arrays, resumed, lease)
        self._seen = seen
        if lease is None and keeps_leases(store):
            self._lease = lease_at(store, places, None if resumed is None else resumed.plan, self._top)
        self.store: StagedKeys = StagedKeys(store, f"{self._top}{NEW}/", places.formats[0])

    def begin(self) -> None:
        if self._lease is not None and self._given is None:
            take(self._lease, self._target, self._places, self._resumed, staged=True)
        self._note_begin()

    def swap(self, nodes: Mapping[str, NodeMetadata], consolidate: bool) -> None:
        format, path, store = self._places.formats[0], self._places.path, self._target
        new = self.store.written()
        encoded: dict[str, dict[str, str]] = {f"{node_prefix(path)}{each}".rstrip("/"): {} for each in nodes}
        for key, value in self.store.documents.items():
            place = format.place(key)
            own = encoded.setdefault("" if place is None else place.path, {})
            own[key] = value.decode("utf-8", "surrogatepass")
        if not any(key in self.store.documents for key in format.defining_keys(path)):
            raise StoreError(
                f"cannot replace '/{path}' in {store}: its new document is not among the "
                f"{len(self.store.documents)} that were written; write it again"
            )
        self._check_kept()
        there = self._places.keys(store)
        self._check_listed(there)
        kept = self._kept(there)
        coming = new | self.store.documents.keys()
        away = self._places.stages(there - (kept - taken_up(format, kept, coming.__contains__)))
        alone = self.is_alone and self._given is None
        swap = Swap(path, format.zarr_format, self._key, away, sorted(new), encoded, consolidate, alone)
        self._others = [top for top in staged_prefixes(store) if top != self._top]
        if self._resumed is None:
            self._copied = [f"{self._top}{NEW}/{key}" for key in swap.copies]
        self._carry_out(swap, nodes)

    def _kept(self, there: set[str]) -> set[str]:
        """The existing keys that are no part of a hierarchy."""
        if self._seen is not None and there <= self._seen[0]:
            return self._seen[1] & there
        return foreign_keys(self._target, self._places, self._arrays, keys=there)

    def _check_listed(self, there: set[str]) -> None:
        """Raise if an existing document of the node is not listed: other keys may be unlisted as well."""
        keys = {key for format in self._places.formats for key in format.defining_keys(self._places.path)}
        if not keys.isdisjoint(there):
            return
        asked = sorted(keys)
        for key, found in zip(
            asked, parallel_map(self._target.exists, asked, self._target.concurrency), strict=True
        ):
            if found:
                raise StoreError(
                    f"cannot replace '/{self._places.path}' in {self._target}: key '{key}' exists, but is "
                    "not listed; use a store that lists all of its keys"
                )
