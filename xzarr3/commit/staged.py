"""Stages the values of a write beside the node that they replace, until all are stored.

:class:`Staged` is what all such writes have in common. :class:`Beside` copies the values within the store to
their place. :mod:`xzarr3.commit.replace_directory` renames them instead.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping, Set

from xzarr3._types import Buffer
from xzarr3.commit.lease import SWAPPING, Lease, keeps_leases
from xzarr3.commit.leftovers import now, said_in
from xzarr3.commit.recover import remove_staged, say_state, sweep, take
from xzarr3.commit.resume import Resumption, forget_settings
from xzarr3.commit.stage import (
    BEGUN,
    NEW,
    SWAP,
    Attempt,
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
from xzarr3.errors import ConflictError, StoreCapabilityError, StoreError
from xzarr3.formats.base import node_prefix
from xzarr3.model.metadata import ArrayMetadata, NodeMetadata
from xzarr3.parallel import parallel_map
from xzarr3.stores import Store
from xzarr3.stores.base import Change, update
from xzarr3.stores.local.names import STAGED
from xzarr3.stores.values import UNCHANGED, Unchanged, joined


class Staged(Staging):
    """Values that are staged beside their place until all are stored, and then swapped in.

    A note beside the values identifies this attempt at the write: the tasks of a write can be computed again,
    so another attempt may use the same keys. An attempt that is about to put the values in place, or to
    remove them, says so in the note first, so that no other attempt does either.

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
        self._is_ending = False
        self._is_shared = False
        self._others: list[str] = []
        self._copied: list[str] | None = None  # keys to remove at the end; None for all
        self._hidden: tuple[str, ...] = (
            self._top,
        )  # removed from messages, so that keys have their final names

    def _note_begin(self, shared: bool) -> None:
        """Note the beginning of the write; of a shared write, join the attempt noted before."""
        self._is_ending = self._swapping = False
        self._is_shared = shared
        if self._resumed is not None:
            self._note(BEGUN, now(staged=True, lease=self._key))
            return
        room = uuid.uuid4().hex
        if not shared:
            self._note(BEGUN, self._begun(room))
            self.room = Attempt(room, self._lease)
            return

        def change(stored: Buffer | None) -> list[Buffer]:
            nonlocal room
            found = said_in(stored)
            if found.get("ending") is True and self._target.folder is not None:
                found = {}  # a directory is removed as a whole, so the end of this attempt will notice
            elif found.get("ending") is True:
                raise ConflictError(
                    f"cannot write to {self._target}: an earlier attempt at this write is being cleaned up; "
                    "try again in a moment"
                )
            room = str(found.get("room") or room)
            return [self._begun(room)]

        self._update_begun(change)
        self.room = Attempt(room, self._lease)

    def _begun(self, room: str, *, ending: bool = False) -> bytes:
        return now(staged=True, lease=self._key, room=room, ending=ending)

    def _update_begun(self, change: Change) -> None:
        key = f"{self._top}{BEGUN}"
        with self._hiding():
            try:
                update(self._target, key, change)
            except StoreCapabilityError:  # the store cannot tell simultaneous attempts apart
                pieces = change(self._target.get(key))
                if pieces is not None and pieces is not UNCHANGED:
                    self._target.set(key, joined(pieces))

    @contextlib.contextmanager
    def _hiding(self) -> Iterator[None]:
        """Remove the staging prefix from error messages, so that keys have their final names."""
        try:
            yield
        except StoreError as error:
            raise without(error, *self._hidden) from error.__cause__

    def _end(self, *, is_lost: bool = False) -> bool:
        """Note that this attempt is ending; returns False if another attempt has ended or removed the write.

        With ``is_lost``, also returns True if the note is gone.
        """
        ends = False
        mine = self._begun(self.room.id, ending=True)

        def change(stored: Buffer | None) -> list[Buffer] | Unchanged:
            nonlocal ends
            found = said_in(stored)
            is_ours = found.get("room") == self.room.id and not found.get("ending")
            # an earlier request may have stored this note and failed afterwards
            ends = is_lost if stored is None else is_ours or found == said_in(mine)
            return [mine] if ends else UNCHANGED

        self._update_begun(change)
        return ends

    def _claim(self) -> None:
        """Make sure that no other attempt puts the values in place or removes them.

        A write in a directory that shares its values with no other attempt needs no claim: the directory is
        removed as a whole, so the swap would notice.
        """
        if self._resumed is None and (self._is_shared or self._target.folder is None):
            self._is_ending = self._end()
            if not self._is_ending:
                raise gone(self._target)

    def enter(self, room: Attempt) -> None:
        super().enter(room)
        if room.lease is not None and self._given is not None:
            self._given = room.lease

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
        try:  # a directory without a note may belong to an attempt that is just beginning
            if self._is_ending or self._end(is_lost=self._target.folder is None):
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

    def begin(self, shared: bool = False) -> None:
        if self._lease is not None and self._given is None:
            take(self._lease, self._target, self._places, self._resumed, staged=True)
        before = self.room.id
        self._note_begin(shared)
        if self.room.id != before:
            self.store.forget()

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
        self._claim()  # any attempt that removes values notes that first, so the list of values is complete
        there = self._places.keys(store)
        self._check_listed(there)
        kept = self._kept(there)
        coming = new | self.store.documents.keys()
        away = self._places.stages(there - (kept - taken_up(format, kept, coming.__contains__)))
        alone = self.is_alone and self._given is None
        swap = Swap(path, format.zarr_format, self._key, away, sorted(new), encoded, consolidate, alone)
        self._others = [top for top in staged_prefixes(store) if top != self._top]
        forget_settings(store, self._others, path)
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
