"""Replacing a node: new values are stored beside the old ones, then put in their place.

The old node stays readable while the new one is computed. Then one short swap follows, which only goes
forward: what is to be done is stored as a list beside the new values, and the lease of the place says that it
is under way. The documents leave, then the chunks; the new chunks are copied within the store; the documents
come, those of children first. In a directory all of this is renamed: :mod:`xzarr3.commit.replace_directory`.

A writer that is killed before the old documents have left leaves the old node, which may be changed again;
what was staged is removed. One that is killed later leaves all that is needed to go on: the next writer does,
or :func:`xzarr3.recover`, and in a directory whoever opens the node and does not find it. Others who open it
meanwhile are told.
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
    Places,
    Room,
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
from xzarr3.nodes.create import make_groups_above
from xzarr3.nodes.documents import (
    drop_from_consolidated,
    refresh_consolidated,
    store_documents,
    write_consolidated,
)
from xzarr3.nodes.erase import erase_stages, formats_in
from xzarr3.nodes.find import find_format, held_below, read_metadata
from xzarr3.nodes.node import ancestors
from xzarr3.parallel import spread
from xzarr3.stores import LocalStore, Store
from xzarr3.stores.base import UNCHANGED, Change, Unchanged, joined
from xzarr3.stores.local.folders import STAGED

_SWEPT = 8  # Of what other writes have left, by one that replaces nothing.


@dataclass(frozen=True)
class Swap:
    """What puts staged values in their place, so that another writer can do it as well.

    Parameters
    ----------
    path : str
        Path of the node.
    zarr_format : {3, 2, "3-draft"}
    lease : str
        Key of the lease of the place.
    away : list of lists of str
        The keys that leave, all of a list before the next one.
    copies : list of str
        The keys that come, from below where they are staged.
    documents : mapping
        For each path of a node its documents by key.
    consolidate : bool
        Make the consolidated metadata of the root anew.
    is_alone : bool
        It brings the documents above up to date; otherwise whoever does more than this does.
    renames : bool
        What leaves and what comes are units that are renamed in a directory, their documents among them.
    overwrite : bool
        Whatever has come since is replaced as well. Without, if something has, nothing is.
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
        """The list as it is stored."""
        return json.dumps(asdict(self), separators=(",", ":")).encode("utf-8", "surrogatepass")

    @classmethod
    def parse(cls, value: Buffer, key: str) -> Swap:
        """What :meth:`text` has made.

        Raises
        ------
        StoreError
            If it is something else.
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
            f"key '{key}' is no list of what is left to do, so that a swap cannot be finished; accepted: "
            f"looking at what begins with '{top}', moving what is good to its place, and removing the rest "
            "and the lease"
        )

    def _rename(
        self,
        store: LocalStore,
        top: str,
        format: Format,
        nodes: Mapping[str, NodeMetadata] | None,
        known: Set[str],
    ) -> bool:
        """Do all that is to be done in a directory, but what was done already."""
        away = [each for stage in self.away for each in stage]
        again = nodes is None
        if again and not has_begun(store, top, self._first_away(), self.copies):
            self._follow_old(store)
            return False
        if not swap_units(store, top, away, self.copies, overwrite=self.overwrite, again=again):
            if again:
                kept = keep(store, top, NEW)
                warnings.warn(
                    f"what a killed process was putting at '/{printable(self.path)}' in {store} is kept in "
                    f"'{kept}', as somebody else has written there since",
                    stacklevel=2,
                )
            return False
        self._finish_above(store, format, nodes)
        metas = _nodes_at(store, format, self.path) if nodes is None else full_paths(self.path, nodes)
        arrays = {path: meta for path, meta in metas.items() if isinstance(meta, ArrayMetadata)}
        bring_back(store, top, format, self.path, arrays, overwrite=self.overwrite, known=known)
        return True

    def _first_away(self) -> list[str]:
        """What leaves first: while some of it is in its place, the old node can be found, and be changed."""
        away = [each for stage in self.away for each in stage]
        own = {key for format in FORMATS.values() for key in format.document_keys(self.path)}
        return [each for each in away if each in own] or away[:1]

    def _follow_old(self, store: Store) -> None:
        """Bring copies of the old node back, which left first."""
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
        """Do all that is to be done; what another writer had done already is done again where that is safe.

        Parameters
        ----------
        store : Store
        top : str
            What the keys begin with of what is staged.
        format : Format
        say : callable
            Tells others the state of the place, and that it is still this writer's.
        nodes : mapping of str to metadata, optional
            What comes, by relative path; without it, another writer has begun, and it is read.
        known : set of str
            Keys of what was there and was looked at before.

        Returns
        -------
        bool
            Whether all is in its place. Otherwise nothing is, as somebody else has written there, or the
            writer that had begun was killed before anything left.
        """
        if nodes is None and not self.renames and self._is_untouched(store):
            self._follow_old(store)
            return False
        for each in formats_in(store, self.path, format):  # First, so that no copy outlives what it says.
            drop_from_consolidated(store, each, self.path)
        if isinstance(store, LocalStore):
            return self._rename(store, top, format, nodes, known)
        erase_stages(store, self.away)
        self._copy(store, f"{top}{NEW}/")
        encoded = self._encoded()
        last = {self.path: encoded.get(self.path, {})}
        store_documents(store, format, {path: own for path, own in encoded.items() if path not in last})
        say(CLOSING)  # From now on, what is there of the last documents is new, and may have been changed.
        store_documents(store, format, last, last=self.path)
        self._finish_above(store, format, nodes)
        return True

    def _is_untouched(self, store: Store) -> bool:
        """Whether nothing of what is replaced has left, so that it may have been changed since."""
        first = next((stage for stage in self.away if stage), [])
        return bool(first) and all(spread(store.exists, first, store.concurrency))

    def close(self, store: Store, format: Format, nodes: Mapping[str, NodeMetadata] | None = None) -> None:
        """Store what is missing of the last documents, and bring the copies above up to date."""
        encoded = self._encoded()
        own = encoded.get(self.path, {})
        there = dict(zip(own, spread(store.exists, own, store.concurrency), strict=True))
        copied = format.consolidated_key(self.path)
        if any(there.values()) and not there.get(str(copied), True):  # What it says may be old by now.
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
        """Copy values, and see to it that they have come: nothing else is at their keys."""
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
        asked = sorted(missing)  # A list may be behind.
        found = spread(store.exists, asked, store.concurrency)
        lost = [key for key, is_there in zip(asked, found, strict=True) if not is_there]
        if lost:
            raise StoreError(
                f"cannot replace '/{self.path}' in {store}: {len(lost)} values were not copied, "
                f"{listed(lost[:5])}"
            )


def full_paths(path: str, nodes: Mapping[str, NodeMetadata]) -> dict[str, NodeMetadata]:
    """Nodes by their paths, instead of those that are relative to the uppermost one."""
    return {f"{node_prefix(path)}{below}".rstrip("/"): meta for below, meta in nodes.items()}


def _nodes_at(store: Store, format: Format, path: str) -> dict[str, NodeMetadata]:
    """The nodes that are at a place and below it, by path."""
    meta = read_metadata(store, format, path, consolidated=False, again=True)
    below = held_below(store, format, path)
    nodes = {each: format.parse_again(held, node_prefix(path) + each) for each, held in below.items()}
    return full_paths(path, nodes if meta is None else {"": meta, **nodes})


def _common_prefix(keys: Iterable[str]) -> str:
    """The longest prefix, empty or with a '/' at its end, with which all keys begin."""
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
    """Make the groups above that are missing, and bring the copies that others hold up to date.

    Parameters
    ----------
    store : Store
    format : Format
    path : str
        Path of what was written.
    paths : sequence of str
        The nodes that were written.
    metas : mapping of str to metadata, optional
        What they are, by path, if nobody else can have changed them.
    consolidates : bool
        Make the consolidated metadata of the root anew.
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
    """Values that lie beside their place until all are there, and are swapped with what is there then.

    A note beside them tells this attempt at the write from others, which may use the same keys: the tasks of
    a write can be computed again. Whoever is about to put the values in their place, or to remove them, says
    so in the note first, so that nobody else does.

    Parameters
    ----------
    store : Store
    places : Places
    arrays : mapping of str to ArrayMetadata
        The arrays that are written, by path.
    resumed : Resumption, optional
        What tells the write from others, if it can be taken up again.
    lease : Lease, optional
        The lease of the place, if the caller has it.
    """

    def __init__(
        self,
        store: Store,
        places: Places,
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
        self._others: list[str] = []
        self._copied: list[str] | None = None  # What is to be removed in the end; by default, all.
        self._hidden: tuple[str, ...] = (
            self._top,
        )  # Left out of messages, so that keys are what they will be.

    def _note_begin(self) -> None:
        """Note that the write begins, or go on with what was noted before."""
        self._is_ending = self._swapping = False
        if self._resumed is not None:
            self._note(BEGUN, now(staged=True, lease=self._key))
            return
        room = uuid.uuid4().hex

        def change(stored: Buffer | None) -> list[Buffer]:
            nonlocal room
            found = said_in(stored)
            if found.get("ending") is True and self._target.renames_trees:
                found = {}  # If it is removed, then all of it at once, so that the end will notice.
            elif found.get("ending") is True:
                raise ConflictError(
                    f"cannot write to {self._target}: an earlier attempt at this write is just being cleaned "
                    "up; accepted: the same again in a moment, or a new call"
                )
            room = str(found.get("room") or room)
            return [self._begun(room)]

        self._update_begun(change)
        self.room = Room(room, self._lease)

    def _begun(self, room: str, *, ending: bool = False) -> bytes:
        return now(staged=True, lease=self._key, room=room, ending=ending)

    def _update_begun(self, change: Change) -> None:
        key = f"{self._top}{BEGUN}"
        with self._hiding():
            try:
                self._target.update(key, change)
            except StoreCapabilityError:  # It cannot tell attempts apart that come at the same time.
                pieces = change(self._target.get(key))
                if pieces is not None and pieces is not UNCHANGED:
                    self._target.set(key, joined(pieces))

    @contextlib.contextmanager
    def _hiding(self) -> Iterator[None]:
        """Leave out of the messages of errors where values lie until they take their place."""
        try:
            yield
        except StoreError as error:
            raise without(error, *self._hidden) from error.__cause__

    def _end(self, *, is_lost: bool = False) -> bool:
        """Let nobody else put the values in their place, or remove them; whether nobody else has.

        With ``is_lost``, also where nothing says any more that the write has begun.
        """
        ends = False
        mine = self._begun(self.room.id, ending=True)

        def change(stored: Buffer | None) -> list[Buffer] | Unchanged:
            nonlocal ends
            found = said_in(stored)
            is_ours = found.get("room") == self.room.id and not found.get("ending")
            # It may have been stored already by a request that failed after that.
            ends = is_lost if stored is None else is_ours or found == said_in(mine)
            return [mine] if ends else UNCHANGED

        self._update_begun(change)
        return ends

    def _claim(self) -> None:
        """From now on, nobody else puts the values in their place, or removes them."""
        if self._resumed is None:
            self._is_ending = self._end()
            if not self._is_ending:
                raise gone(self._target)

    def enter(self, room: Room) -> None:
        super().enter(room)
        if room.lease is not None and self._given is not None:
            self._given = room.lease

    def _carry_out(
        self, swap: Swap, nodes: Mapping[str, NodeMetadata], known: Set[str] = frozenset()
    ) -> bool:
        """Note what is to be done, tell others that it is under way, and do it; whether it was done."""
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
        """Store what a write says of itself beside its values."""
        with self._hiding():
            self._target.set(f"{self._top}{name}", said)

    @property
    def _key(self) -> str:
        return self._lease.key if self._lease is not None else lease_at(self._target, self._places).key

    @property
    def _is_held(self) -> bool:
        return self._lease is not None and (self._given is None or self._given.is_held)

    def _say(self, state: str) -> None:
        """Tell others that the place is not whole from now on."""
        lease = self._lease if self._is_held else None
        with self._hiding():
            _say(self._target, self._key, self._places.path, self._top, lease, state)

    def clean(self) -> None:
        self._swapping = False
        try:
            remove_staged(self._target, self._top, self._copied)
        finally:  # Whatever could not be removed is in nobody's way.
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
        try:  # A directory that nothing is noted in may be that of an attempt which just begins.
            if self._is_ending or self._end(is_lost=not self._target.renames_trees):
                self._remove()
        finally:
            if own is not None:
                own.release()

    def _remove(self) -> None:
        remove_staged(self._target, self._top)


class Beside(Staged):
    """Keys that are copied to their places once all are there.

    Of several writers one at a time does that at a place.

    Parameters
    ----------
    store, places, arrays, resumed, lease
        As :class:`Staged` has them.
    seen : (set of str, set of str), optional
        The keys that were there before, and those of them that stay.
    """

    def __init__(
        self,
        store: Store,
        places: Places,
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
        before = self.room.id
        self._note_begin()
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
                f"{len(self.store.documents)} that were written; accepted: a new call"
            )
        self._claim()  # Whoever removes a value says so before: so the listed ones are all.
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
        """Those of the keys that are there which are no part of a hierarchy."""
        if self._seen is not None and there <= self._seen[0]:
            return self._seen[1] & there
        return foreign_keys(self._target, self._places, self._arrays, keys=there)

    def _check_listed(self, there: set[str]) -> None:
        """See to it that documents of the node that are there are listed; or else others may be missed."""
        keys = {key for format in self._places.formats for key in format.defining_keys(self._places.path)}
        if not keys.isdisjoint(there):
            return
        asked = sorted(keys)
        for key, found in zip(
            asked, spread(self._target.exists, asked, self._target.concurrency), strict=True
        ):
            if found:
                raise StoreError(
                    f"cannot replace '/{self._places.path}' in {self._target}: key '{key}' is there, but not "
                    "listed; accepted: a store that lists all of its keys"
                )


def check_top(store: Store, top: str) -> None:
    """Refuse what is no prefix of what a write has staged."""
    if not is_top(top):
        raise StoreError(
            f"nothing of {store} is removed: {printable(top)!r} is no prefix of what a write has staged; "
            "accepted: a lease of xzarr3"
        )


def remove_staged(store: Store, top: str, known: list[str] | None = None) -> None:
    """Remove what a write has stored to the side: first the list, as nothing is left to be done.

    Parameters
    ----------
    store : Store
    top : str
    known : list of str, optional
        The keys of its values; by default those that are listed.
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
    places: Places,
    resumed: Resumption | None = None,
    *,
    staged: bool | None = None,
    until: float | None = None,
) -> bool:
    """Take the lease of a place, and end what the one before was putting there when it was killed.

    Parameters
    ----------
    lease : Lease
    store : Store
    places : Places
    resumed, staged
        As :func:`settled` has them.
    until : float, optional
        How long to wait for a writer that lives, on the clock of :func:`time.monotonic`.

    Returns
    -------
    bool
        Whether the write goes on where one of its plan was cut off; see :func:`settled`.

    Raises
    ------
    NodeExistsError
        If somebody else has it, and lives.
    """
    with _reserved(lease, store, places.path, until):
        if lease.said.state in SWAPS:
            lease.say(places.path, "", lease.top)
        return settled(lease, resumed, partial(_remove_left, store), staged=staged)


@contextlib.contextmanager
def _reserved(lease: Lease, store: Store, path: str, until: float | None = None) -> Iterator[Swap | None]:
    """Take the lease of a place, and end what the one before was putting there when it was killed.

    If the block fails, the lease is left to the next one, with all that it says.
    """
    lease.reserve(path, until)
    if store.renames_trees:  # Who reserves the place just now is refused anyway.
        remove_partial(os.path.join(str(store.folder), os.path.dirname(lease.key)))
    try:
        yield _finish(lease, store, lease.key, lease.said)
    except BaseException:
        lease.leave()
        raise


def _remove_left(store: Store, top: str) -> None:
    """Remove what another write has stored to the side and needs no more; what stays is in nobody's way."""
    try:
        remove_staged(store, top)
    except StoreError as error:
        warnings.warn(
            f"not all could be removed that a killed process has left in {store}: {error}", stacklevel=2
        )


def finish_swap(store: Store, key: str, path: str, until: float | None = None) -> Swap | None:
    """End what a killed writer was putting in a place, which has a lease with this key.

    Parameters
    ----------
    store : Store
    key : str
    path : str
        Path of the node, for messages.
    until : float, optional
        How long to wait for who is at it already, on the clock of :func:`time.monotonic`.

    Returns
    -------
    Swap or None
        What was done, if there was something left to do.

    Raises
    ------
    NodeExistsError
        If it lives.
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
    """End what a killed writer was putting in a place, or remove what it has below ``top``."""
    lease = Lease(store, key, "replace")
    with _reserved(lease, store, path, until) as done:  # Whoever had it may just have come to its end.
        if done is None and top:
            remove_staged(store, top)
    lease.release()
    return done


def _finish(lease: Lease | None, store: Store, key: str, said: Holder) -> Swap | None:
    """End a swap that is under way, if one is; None if nothing but its values were left to remove."""
    if said.state not in SWAPS:
        return None
    swap = _listed(store, said)
    if swap is not None:
        expected = place_key(store, swap.path, "") if store.renames_trees else key  # If that can be told.
        if (swap.renames, key) != (store.renames_trees, expected):
            raise StoreError(
                f"key '{said.top}{SWAP}' lists what is to be done at '/{printable(swap.path)}', but it is "
                f"the lease '{key}' that names it; accepted: removing both by hand"
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
    """Tell others the state of a place."""
    if lease is not None:
        lease.say(path, state, top)
    else:  # Nobody keeps others away; a reader is told nevertheless.
        store.set(key, Holder(state=state, top=top, left=True).text())


def settle(store: Store, path: str) -> bool:
    """Finish what a writer that has ended was putting at a place in a directory, or at one above it.

    That is for who did not find a node there, whether it opens it to read only or not.

    Returns
    -------
    bool
        Whether something was being put there, and may have come to its place.

    Raises
    ------
    IncompleteWriteError
        If that is not possible, as it may not write there.
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
                check_complete(store, path, f"node at '/{path}'")  # Which says what finishes it.
    return done


def finish_near(store: Store, path: str) -> None:
    """Finish what dead writers were putting in a directory at a place, above it, or below it.

    Raises
    ------
    StoreError
        If that is not possible.
    """
    for key, found in _leases_in(store):
        if found.is_dead is not False:
            try:
                swap = _listed(store, found)
            except StoreError:  # It is damaged, which is for those to hear of who come to the same place.
                swap = None
            near = key in keys_above(store, path) if swap is None else _are_related(swap.path, path)
            if near:
                finish_swap(store, key, path)


def _are_related(one: str, other: str) -> bool:
    """Whether a node is another one, or above or below it."""
    return node_prefix(one).startswith(node_prefix(other)) or node_prefix(other).startswith(node_prefix(one))


def _leases_in(store: Store) -> list[tuple[str, Holder]]:
    """The leases of places in a directory where something is being swapped, by their keys."""
    keys = [lease_key(f"{os.path.basename(folder)}/") for folder in staging_folders(store)]
    found = [(key, Holder.parse(value)) for key, value in zip(keys, store.get_values(keys), strict=True)]
    return [(key, holder) for key, holder in found if holder.state in SWAPS]


def _listed(store: Store, found: Holder) -> Swap | None:
    """What a writer has listed that was about to swap something."""
    if found.state not in SWAPS:
        return None
    check_top(store, found.top)
    key = f"{found.top}{SWAP}"
    value = store.get(key)
    return None if value is None else Swap.parse(value, key)


def format_swapped(store: Store) -> Format | None:
    """The format of a root that a killed writer was putting in its place."""
    swap = _listed(store, Holder.parse(store.get(place_key(store, "", ""))))
    return None if swap is None else _format_of(store, swap.zarr_format)


def _format_of(store: Store, zarr_format: ZarrFormat) -> Format:
    """The format of the documents of a swap."""
    there = [each for each in formats_in(store) if each.answers_to(zarr_format)]
    return there[0] if there else parse_format(zarr_format)


def recover_swaps(store: Store) -> list[str]:
    """End what killed writers were putting in place, and remove what others have left.

    Returns
    -------
    list of str
        Paths of the nodes that are in their place now.
    """
    ended: list[str] = []
    if store.renames_trees:
        failed: StoreError | None = None
        for leased, found in _leases_in(store):
            try:
                there = _listed(store, found)
                done = finish_swap(store, leased, "" if there is None else there.path)
            except StoreError as error:  # The others are finished first.
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
        if not _may_be_of(holder, top):  # Its writer has lost the place, and gives up.
            remove_staged(store, top)
        elif holder.state in SWAPS:
            done = finish_swap(store, key, _path_of(key))
        elif holder.plan is None:  # Others can be taken up.
            with contextlib.suppress(NodeExistsError):  # Its writer lives.
                done = _finish_alone(store, key, _path_of(key), top=top)
        ended += [] if done is None else [f"/{done.path}"]
    return ended


def _may_be_of(holder: Holder, top: str) -> bool:
    """Whether values may be those of who has a lease; one that is for more than these names none."""
    return holder.top == top or bool(holder.owner and not holder.top)


def _path_of(key: str) -> str:
    """The path of a node, for messages, by the key of its lease."""
    return key.rpartition("/")[0]


def sweep(store: Store, tops: Iterable[str] | None = None) -> None:
    """Remove what was left by killed writes that had replaced nothing.

    Parameters
    ----------
    store : Store
    tops : iterable of str, optional
        What the keys of these begin with, where they lie under keys; by default, a few are looked for.

    Raises
    ------
    StoreError
        If it is not possible.
    """
    if store.folder is not None:
        sweep_directory(store)
        return
    if tops is None:
        found = staged_prefixes(store)
        tops = random.sample(found, min(len(found), _SWEPT))
    remove_abandoned(store, tops)


def remove_abandoned(store: Store, tops: Iterable[str]) -> None:
    """Remove what killed writes left that nobody is to take up, of those with these prefixes."""
    for top in tops:
        begun, leased = store.get_values([f"{top}{BEGUN}", lease_key(top)])
        said = said_in(begun)
        named = said.get("lease")
        if isinstance(named, str) and _may_be_of(Lease(store, named, "replace").there(), top):
            continue  # The next one to write there takes it up, or removes it.
        if leased is not None:  # What sets values elsewhere, or is just being removed.
            holder = Holder.parse(leased)
            is_kept = holder.is_dead is False or age(holder.renewed) < ABANDONED
        else:  # Where no leases are kept, nobody else writes, and nothing tells of who does.
            is_kept = (named is None or not keeps_leases(store)) and age(said.get("time")) < ABANDONED
        if not is_kept:
            # First: its writer, if there is one, must not go on without the rest.
            store.erase_values([f"{top}{BEGUN}", lease_key(top)])
            store.erase_prefix(top)
