"""Replaces a node by a swap: new values are staged beside the old node, then put in its place.

The old node stays readable while the new one is computed. One short swap follows. It only goes forward: the
list of its steps is stored beside the new values, and the lease of the place says that the swap is under way.
The old documents leave, then the old chunks. The new chunks are copied within the store. The new documents
come last, those of children first. In a directory all of this is done by renaming:
:mod:`xzarr3.commit.replace_directory`.

If a writer is killed before the old documents have left, the old node stays and can be changed again; the
staged values are removed. If it is killed later, everything needed to finish the swap is stored. The next
writer finishes it, or :func:`xzarr3.recover`; in a directory also a reader that opens the node and does not
find it. Until then, other readers that open the node get an error.

This module moves keys and documents. It knows nothing of how values were computed.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from functools import partial
from typing import cast

from xzarr3._types import Buffer
from xzarr3.commit.lease import (
    CLOSING,
    SWAPPING,
    SWAPS,
    Holder,
    Lease,
    check_complete,
    keeps_leases,
    keys_above,
    lease_key,
    place_key,
)
from xzarr3.commit.leftovers import ABANDONED, age, now, said_in
from xzarr3.commit.renames import (
    bring_back,
    has_begun,
    is_unit,
    keep,
    remove,
    remove_partial,
    swap_units,
    sweep_directory,
)
from xzarr3.commit.resume import Resumption, forget_settings, is_top, settled
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
    staging_folders,
    taken_up,
    without,
)
from xzarr3.errors import ConflictError, NodeExistsError, StoreCapabilityError, StoreError, listed, printable
from xzarr3.formats import FORMATS, Format, ZarrFormat, parse_format
from xzarr3.formats.base import node_prefix
from xzarr3.model.metadata import ArrayMetadata, GroupMetadata, NodeMetadata
from xzarr3.nodes import changes
from xzarr3.nodes.consolidated import drop_from_consolidated, refresh_consolidated, write_consolidated
from xzarr3.nodes.create import make_groups_above
from xzarr3.nodes.documents import store_documents
from xzarr3.nodes.erase import erase_stages, formats_in
from xzarr3.nodes.find import find_format, held_below, read_metadata
from xzarr3.nodes.node import ancestors
from xzarr3.parallel import parallel_map
from xzarr3.stores import LocalStore, Store
from xzarr3.stores.base import UNCHANGED, Change, Unchanged, joined
from xzarr3.stores.local.folders import STAGED

_SWEPT = 8  # leftovers of other writes removed by a write that replaces nothing


@dataclass(frozen=True)
class Swap:
    """The stored list of steps of one swap, so that another writer can finish it.

    Parameters
    ----------
    path : str
        Path of the node.
    zarr_format : {3, 2, "3-draft"}
    lease : str
        Key of the lease of the place.
    away : list of lists of str
        Keys that leave; all keys of one list leave before the next list.
    copies : list of str
        Keys that come, relative to the staging prefix.
    documents : mapping
        For each node path, its documents by key.
    consolidate : bool
        Rewrite the consolidated metadata of the root.
    is_alone : bool
        Bring the documents above up to date; otherwise the caller of the swap does.
    renames : bool
        Keys in ``away`` and ``copies`` are units that are renamed in a directory, documents included.
    overwrite : bool
        Also replace what has appeared since. Without it, if something has appeared, nothing is replaced.
    """

    path: str
    zarr_format: ZarrFormat
    lease: str
    away: list[list[str]]
    copies: list[str]
    documents: dict[str, dict[str, str]]
    consolidate: bool
    is_alone: bool = True
    renames: bool = False
    overwrite: bool = True

    def text(self) -> bytes:
        """The stored form."""
        return json.dumps(asdict(self), separators=(",", ":")).encode("utf-8", "surrogatepass")

    @classmethod
    def parse(cls, value: Buffer, key: str) -> Swap:
        """The swap stored by :meth:`text`.

        Raises
        ------
        StoreError
            If the value is no such list.
        """
        try:
            said = json.loads(bytes(value))
            found = cls(**said)
            moved = [each for stage in found.away for each in stage] + found.copies
            keys = [each for own in found.documents.values() for each in own]
            is_text = all(isinstance(each, str) for each in (*moved, *keys, found.path, found.lease))
            if is_text and (not found.renames or all(map(is_unit, moved))):
                return found
        except (ValueError, TypeError, AttributeError, RecursionError):
            pass
        top = key.removesuffix(SWAP)
        raise StoreError(
            f"key '{key}' does not list what is left to do, so the swap cannot be completed; look at the "
            f"keys that begin with '{top}', copy good values to their final keys, and remove the rest and "
            "the lease"
        )

    def _rename(
        self,
        store: LocalStore,
        top: str,
        format: Format,
        nodes: Mapping[str, NodeMetadata] | None,
        known: Set[str],
    ) -> bool:
        """Carry out the swap in a directory; finished steps are not repeated."""
        away = [each for stage in self.away for each in stage]
        again = nodes is None
        if again and not has_begun(store, top, self._first_away(), self.copies):
            self._follow_old(store)
            return False
        if not swap_units(store, top, away, self.copies, overwrite=self.overwrite, again=again):
            if again:
                kept = keep(store, top, NEW)
                warnings.warn(
                    f"what a killed process was committing at '/{printable(self.path)}' in {store} is kept "
                    f"in '{kept}', because another writer has written there since",
                    stacklevel=2,
                )
            return False
        self._finish_above(store, format, nodes)
        metas = _nodes_at(store, format, self.path) if nodes is None else full_paths(self.path, nodes)
        arrays = {path: meta for path, meta in metas.items() if isinstance(meta, ArrayMetadata)}
        bring_back(store, top, format, self.path, arrays, overwrite=self.overwrite, known=known)
        return True

    def _first_away(self) -> list[str]:
        """The units that leave first: as long as one is in place, the old node can be found and changed."""
        away = [each for stage in self.away for each in stage]
        own = {key for format in FORMATS.values() for key in format.document_keys(self.path)}
        return [each for each in away if each in own] or away[:1]

    def _follow_old(self, store: Store) -> None:
        """Restore the consolidated copies of the old node, which were removed first."""
        format = find_format(store, self.path)
        if format is not None:
            nodes = _nodes_at(store, format, self.path)
            finish_above(store, format, self.path, list(nodes), nodes, False)

    def carry_out(
        self,
        store: Store,
        top: str,
        format: Format,
        say: Callable[[str], None],
        nodes: Mapping[str, NodeMetadata] | None = None,
        known: Set[str] = frozenset(),
    ) -> bool:
        """Carry out the swap; steps that another writer had finished are repeated where that is safe.

        Parameters
        ----------
        store : Store
        top : str
            Key prefix of the staged values.
        format : Format
        say : callable
            Stores the state of the place in the lease, and raises if the lease was lost.
        nodes : mapping of str to metadata, optional
            Metadata of the new nodes, by relative path. Without it, another writer began the swap, and the
            metadata are read.
        known : set of str
            Keys of the old node that were examined before.

        Returns
        -------
        bool
            Whether the swap is complete. If not, nothing was replaced: another writer has written to the
            place, or the writer that began the swap was killed before anything left.
        """
        if nodes is None and not self.renames and self._is_untouched(store):
            self._follow_old(store)
            return False
        # first, so that no consolidated copy outlives its document
        for each in formats_in(store, self.path, format):
            drop_from_consolidated(store, each, self.path)
        if isinstance(store, LocalStore):
            return self._rename(store, top, format, nodes, known)
        erase_stages(store, self.away)
        self._copy(store, f"{top}{NEW}/")
        encoded = self._encoded()
        last = {self.path: encoded.get(self.path, {})}
        store_documents(store, format, {path: own for path, own in encoded.items() if path not in last})
        # from now on, last documents that exist are new, and other writers may have changed them
        say(CLOSING)
        store_documents(store, format, last, last=self.path)
        self._finish_above(store, format, nodes)
        return True

    def _is_untouched(self, store: Store) -> bool:
        """Whether the old node is still whole, so that it may have been changed since."""
        first = next((stage for stage in self.away if stage), [])
        return bool(first) and all(parallel_map(store.exists, first, store.concurrency))

    def close(self, store: Store, format: Format, nodes: Mapping[str, NodeMetadata] | None = None) -> None:
        """Store the missing ones of the last documents, and bring the copies above up to date."""
        encoded = self._encoded()
        own = encoded.get(self.path, {})
        there = dict(zip(own, parallel_map(store.exists, own, store.concurrency), strict=True))
        copied = format.consolidated_key(self.path)
        # the listed consolidated metadata may be out of date
        if any(there.values()) and not there.get(str(copied), True):
            own = {key: value for key, value in own.items() if key != copied}
        missing = {key: value for key, value in own.items() if not there[key]}
        store_documents(store, format, {self.path: missing}, last=self.path)
        if len(own) < len(there):
            write_consolidated(store, format, self.path)
        self._finish_above(store, format, nodes)

    def _finish_above(self, store: Store, format: Format, nodes: Mapping[str, NodeMetadata] | None) -> None:
        changes.note_documents(store, list(self.documents))
        if self.is_alone:
            metas = None if nodes is None else full_paths(self.path, nodes)
            finish_above(store, format, self.path, list(self.documents), metas, self.consolidate)

    def _encoded(self) -> dict[str, dict[str, bytes]]:
        return {
            path: {key: text.encode("utf-8", "surrogatepass") for key, text in own.items()}
            for path, own in self.documents.items()
        }

    def _copy(self, store: Store, staged: str) -> None:
        """Copy the staged values to their final keys, and check that all have arrived.

        The old values have left, so a final key that exists holds a new value.
        """
        missing = set(self.copies)
        for copy in (store.copy_values, partial(Store.copy_values, store)):
            try:
                copy((staged + key, key) for key in sorted(missing))
            except StoreError as error:
                raise without(error, staged) from error.__cause__
            if missing:
                prefix = _common_prefix(missing)
                missing.difference_update(store.list_prefix(prefix))
            if not missing:
                return
        asked = sorted(missing)  # listings may lag behind writes
        found = parallel_map(store.exists, asked, store.concurrency)
        lost = [key for key, is_there in zip(asked, found, strict=True) if not is_there]
        if lost:
            raise StoreError(
                f"cannot replace '/{self.path}' in {store}: {len(lost)} values were not copied, "
                f"{listed(lost[:5])}"
            )


def full_paths(path: str, nodes: Mapping[str, NodeMetadata]) -> dict[str, NodeMetadata]:
    """Nodes by full path instead of by path relative to the uppermost node."""
    return {f"{node_prefix(path)}{below}".rstrip("/"): meta for below, meta in nodes.items()}


def _nodes_at(store: Store, format: Format, path: str) -> dict[str, NodeMetadata]:
    """The nodes at a path and below it, by path."""
    meta = read_metadata(store, format, path, consolidated=False, again=True)
    below = held_below(store, format, path)
    nodes = {each: format.parse_again(held, node_prefix(path) + each) for each, held in below.items()}
    return full_paths(path, nodes if meta is None else {"": meta, **nodes})


def _common_prefix(keys: Iterable[str]) -> str:
    """The longest common prefix of all keys that is empty or ends with '/'."""
    first, last = min(keys), max(keys)
    at = 0
    while at < min(len(first), len(last)) and first[at] == last[at]:
        at += 1
    return first[: first.rfind("/", 0, at) + 1]


def finish_above(
    store: Store,
    format: Format,
    path: str,
    paths: Sequence[str],
    metas: Mapping[str, NodeMetadata] | None,
    consolidates: bool,
) -> None:
    """Create missing groups above, and bring consolidated copies in groups above up to date.

    Parameters
    ----------
    store : Store
    format : Format
    path : str
        Path of the written node.
    paths : sequence of str
        Paths of all written nodes.
    metas : mapping of str to metadata, optional
        Their metadata by path, if no other process can have changed them.
    consolidates : bool
        Rewrite the consolidated metadata of the root.
    """
    if not path:
        return
    made = make_groups_above(store, format, path)
    if metas is not None:
        metas = {**{each: GroupMetadata(zarr_format=format.zarr_format) for each in made}, **metas}
    above = [each for each in ancestors(path) if each or not consolidates]
    refresh_consolidated(store, format, [*made, *paths], metas, holders=above)
    if consolidates:
        write_consolidated(store, format, "")


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
            if found.get("ending") is True and self._target.renames_trees:
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
                self._target.update(key, change)
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
        if self._resumed is None and (self._is_shared or not self._target.renames_trees):
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
            _say(self._target, self._key, self._places.path, self._top, lease, state)

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
            if self._is_ending or self._end(is_lost=not self._target.renames_trees):
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


def check_top(store: Store, top: str) -> None:
    """Raise unless ``top`` is a prefix made by a write: nothing else may be removed."""
    if not is_top(top):
        raise StoreError(
            f"nothing of {store} is removed: {printable(top)!r} is not a prefix of values that a write "
            "staged; remove the lease if xzarr3 has not written it"
        )


def remove_staged(store: Store, top: str, known: list[str] | None = None) -> None:
    """Remove everything that a write has staged, the list of steps first.

    Parameters
    ----------
    store : Store
    top : str
    known : list of str, optional
        Keys of the staged values; by default those that are listed.
    """
    check_top(store, top)
    store.erase(f"{top}{SWAP}")
    if store.renames_trees:
        remove(os.path.join(str(store.folder), top[:-1]))
        return
    ends = {f"{top}{BEGUN}", f"{top}{SWAP}"}
    keys = sorted(set(store.list_prefix(top)) - ends) if known is None else known
    store.erase_values([*keys, f"{top}{BEGUN}"])


def take(
    lease: Lease,
    store: Store,
    places: NodeKeys,
    resumed: Resumption | None = None,
    *,
    staged: bool | None = None,
    until: float | None = None,
) -> bool:
    """Take the lease of a place, and finish the swap of its previous holder if that was killed.

    Parameters
    ----------
    lease : Lease
    store : Store
    places : Places
    resumed, staged
        As :func:`settled` has them.
    until : float, optional
        Until when to wait for a living holder, on the clock of :func:`time.monotonic`.

    Returns
    -------
    bool
        Whether this write resumes a cut-off write of its plan; see :func:`settled`.

    Raises
    ------
    NodeExistsError
        If a living writer holds the lease.
    """
    with _reserved(lease, store, places.path, until):
        if lease.said.state in SWAPS:
            lease.say(places.path, "", lease.top)
        return settled(lease, resumed, partial(_remove_left, store), staged=staged)


@contextlib.contextmanager
def _reserved(lease: Lease, store: Store, path: str, until: float | None = None) -> Iterator[Swap | None]:
    """Take the lease of a place, and finish the swap of its previous holder if that was killed.

    If the block raises, the lease is left with its content for the next writer.
    """
    lease.reserve(path, until)
    if store.renames_trees:  # a writer that is just reserving the place is refused anyway
        remove_partial(os.path.join(str(store.folder), os.path.dirname(lease.key)))
    try:
        yield _finish(lease, store, lease.key, lease.said)
    except BaseException:
        lease.leave()
        raise


def _remove_left(store: Store, top: str) -> None:
    """Remove what another write has staged; a failure is only a warning, as leftovers block no writer."""
    try:
        remove_staged(store, top)
    except StoreError as error:
        warnings.warn(
            f"some of what a killed process left in {store} could not be removed: {error}", stacklevel=2
        )


def finish_swap(store: Store, key: str, path: str, until: float | None = None) -> Swap | None:
    """Finish the swap of a killed writer, found by the key of its lease.

    Parameters
    ----------
    store : Store
    key : str
    path : str
        Path of the node, for messages.
    until : float, optional
        Until when to wait for a writer that is finishing it already, on the clock of :func:`time.monotonic`.

    Returns
    -------
    Swap or None
        The swap, if something was left to do.

    Raises
    ------
    NodeExistsError
        If the writer lives.
    """
    found = Lease(store, key, "replace").there()
    if found.state not in SWAPS:
        return None
    if not keeps_leases(store):
        done = _finish(None, store, key, found)
        store.erase(key)
        return done
    return _finish_alone(store, key, path, until)


def _finish_alone(
    store: Store, key: str, path: str, until: float | None = None, top: str = ""
) -> Swap | None:
    """Finish the swap of a killed writer; without one, remove what it has staged under ``top``."""
    lease = Lease(store, key, "replace")
    # the previous holder may have finished its swap itself
    with _reserved(lease, store, path, until) as done:
        if done is None and top:
            remove_staged(store, top)
    lease.release()
    return done


def _finish(lease: Lease | None, store: Store, key: str, said: Holder) -> Swap | None:
    """Finish the swap that a lease names; None if only its staged values were left to remove."""
    if said.state not in SWAPS:
        return None
    swap = _listed(store, said)
    if swap is not None:
        # expected only where the key follows from the path
        expected = place_key(store, swap.path, "") if store.renames_trees else key
        if (swap.renames, key) != (store.renames_trees, expected):
            raise StoreError(
                f"key '{said.top}{SWAP}' lists what is to be done at '/{printable(swap.path)}', but "
                f"the lease '{key}' names it; remove both keys"
            )
        format = _format_of(store, swap.zarr_format)
        say = partial(_say, store, key, swap.path, said.top, lease)
        if said.state == CLOSING and not swap.renames:
            swap.close(store, format)
        elif not swap.carry_out(store, said.top, format, say):
            swap = None
    _remove_left(store, said.top)
    return swap


def _say(store: Store, key: str, path: str, top: str, lease: Lease | None, state: str) -> None:
    """Store the state of a place in its lease."""
    if lease is not None:
        lease.say(path, state, top)
    else:  # no lease keeps other writers away, but readers are told
        store.set(key, Holder(state=state, top=top, left=True).text())


def settle(store: Store, path: str) -> bool:
    """Finish the swap of an ended writer at a path or above it, in a directory.

    Called when a node was not found there, whether it is opened read only or not.

    Returns
    -------
    bool
        Whether a swap was under way, so that the node may be there now.

    Raises
    ------
    IncompleteWriteError
        If the swap cannot be finished, for example without permission to write.
    """
    if not store.renames_trees:
        return False
    local = cast("LocalStore", store)
    done = False
    for key in keys_above(store, path):
        found = Holder.parse(store.get(key))
        done = done or found.state in SWAPS
        if found.state in SWAPS and found.is_dead:
            writable = LocalStore(local.root, **{**local._options(), "read_only": False})
            try:
                finish_swap(writable, key, path, time.monotonic() + store.conflict_deadline)
            except (StoreError, NodeExistsError):
                check_complete(store, path, f"node at '/{path}'")  # its message says what finishes the swap
    return done


def finish_near(store: Store, path: str) -> None:
    """Finish the swaps of dead writers in a directory at a path, above it or below it.

    Raises
    ------
    StoreError
        If a swap cannot be finished.
    """
    for key, found in _leases_in(store):
        if found.is_dead is not False:
            try:
                swap = _listed(store, found)
            except StoreError:  # a damaged list is reported to writers of the same place
                swap = None
            near = key in keys_above(store, path) if swap is None else _are_related(swap.path, path)
            if near:
                finish_swap(store, key, path)


def _are_related(one: str, other: str) -> bool:
    """Whether two paths are equal or one is above the other."""
    return node_prefix(one).startswith(node_prefix(other)) or node_prefix(other).startswith(node_prefix(one))


def _leases_in(store: Store) -> list[tuple[str, Holder]]:
    """The leases in a directory whose places are being swapped, by key."""
    keys = [lease_key(f"{os.path.basename(folder)}/") for folder in staging_folders(store)]
    found = [(key, Holder.parse(value)) for key, value in zip(keys, store.get_values(keys), strict=True)]
    return [(key, holder) for key, holder in found if holder.state in SWAPS]


def _listed(store: Store, found: Holder) -> Swap | None:
    """The stored list of steps of the swap that a lease names."""
    if found.state not in SWAPS:
        return None
    check_top(store, found.top)
    key = f"{found.top}{SWAP}"
    value = store.get(key)
    return None if value is None else Swap.parse(value, key)


def format_swapped(store: Store) -> Format | None:
    """The format of a root node whose swap is unfinished."""
    swap = _listed(store, Holder.parse(store.get(place_key(store, "", ""))))
    return None if swap is None else _format_of(store, swap.zarr_format)


def _format_of(store: Store, zarr_format: ZarrFormat) -> Format:
    """The format of the documents of a swap."""
    there = [each for each in formats_in(store) if each.answers_to(zarr_format)]
    return there[0] if there else parse_format(zarr_format)


def recover_swaps(store: Store) -> list[str]:
    """Finish the swaps of killed writers, and remove leftovers of other killed writes.

    Returns
    -------
    list of str
        Paths of the nodes whose swaps were finished.
    """
    ended: list[str] = []
    if store.renames_trees:
        failed: StoreError | None = None
        for leased, found in _leases_in(store):
            try:
                there = _listed(store, found)
                done = finish_swap(store, leased, "" if there is None else there.path)
            except StoreError as error:  # raised after the other swaps are finished
                failed = failed or error
            else:
                ended += [] if done is None else [f"/{done.path}"]
        sweep_directory(store)
        if failed is not None:
            raise failed
        return ended
    for top in staged_prefixes(store):
        begun = said_in(store.get(f"{top}{BEGUN}"))
        key = begun.get("lease")
        if not isinstance(key, str):
            continue
        holder = Lease(store, key, "replace").there()
        done = None
        if not _may_be_of(holder, top):  # its writer has lost the lease and will give up
            remove_staged(store, top)
        elif holder.state in SWAPS:
            done = finish_swap(store, key, _path_of(key))
        elif holder.plan is None:  # writes with a plan can be resumed
            with contextlib.suppress(NodeExistsError):  # its writer lives
                done = _finish_alone(store, key, _path_of(key), top=top)
        ended += [] if done is None else [f"/{done.path}"]
    return ended


def _may_be_of(holder: Holder, top: str) -> bool:
    """Whether staged values may belong to the holder of a lease; an empty ``top`` may mean any."""
    return holder.top == top or bool(holder.owner and not holder.top)


def _path_of(key: str) -> str:
    """The path of a node, from the key of its lease; for messages."""
    return key.rpartition("/")[0]


def sweep(store: Store, tops: Iterable[str] | None = None) -> None:
    """Remove leftovers of killed writes that had replaced nothing.

    Parameters
    ----------
    store : Store
    tops : iterable of str, optional
        Key prefixes of these leftovers, in a store of keys; by default, a few are picked at random.

    Raises
    ------
    StoreError
        If they cannot be removed.
    """
    if store.folder is not None:
        sweep_directory(store)
        return
    if tops is None:
        found = staged_prefixes(store)
        tops = random.sample(found, min(len(found), _SWEPT))
    remove_abandoned(store, tops)


def remove_abandoned(store: Store, tops: Iterable[str]) -> None:
    """Remove leftovers under these prefixes that no later write will resume."""
    for top in tops:
        begun, leased = store.get_values([f"{top}{BEGUN}", lease_key(top)])
        said = said_in(begun)
        named = said.get("lease")
        if isinstance(named, str) and _may_be_of(Lease(store, named, "replace").there(), top):
            continue  # the next writer there resumes it or removes it
        if leased is not None:  # a write that sets values of existing arrays, or one that is being removed
            holder = Holder.parse(leased)
            is_kept = holder.is_dead is False or age(holder.renewed) < ABANDONED
        else:  # without leases only the age tells
            is_kept = (named is None or not keeps_leases(store)) and age(said.get("time")) < ABANDONED
        if not is_kept:
            # First, so that a living writer does not continue without the rest.
            store.erase_values([f"{top}{BEGUN}", lease_key(top)])
            store.erase_prefix(top)
