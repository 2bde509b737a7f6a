"""Where a write puts its values until they take the place of what is there, and how they take it.

Three ways: renaming directories, copying keys in a store that cannot rename, and writing in place where there
is nothing to replace. In the first two, what is replaced exists somewhere until the new values are whole.

A write that can be taken up again leaves its values where they are when it is cut off. The next one with the
same plan finds them: below a name made of the fingerprint of the plan, or in place, if nobody else has
reserved that since.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import os
import random
import shutil
import stat
import sys
import threading
import time
import uuid
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from xzarr3._types import Buffer, ByteRange
from xzarr3.carrying import Kept, carry
from xzarr3.commit.lease import NAME, Holder, Lease, is_lease, keeps_leases, lease_key
from xzarr3.commit.leftovers import ABANDONED, age, now
from xzarr3.concurrency import spread
from xzarr3.errors import (
    ConflictError,
    MetadataError,
    NodeExistsError,
    StoreCapabilityError,
    StoreError,
    listed,
    printable,
)
from xzarr3.formats import Format
from xzarr3.lookup import find_format
from xzarr3.metadata import ArrayMetadata
from xzarr3.node_erasing import (
    chunks_among,
    chunks_of,
    documents_among,
    erase_stages,
    foreign_among,
    formats_in,
    keys_at,
    leaving_stages,
)
from xzarr3.resuming import (
    Plan,
    forget_moves,
    forget_moves_at,
    forget_settings,
    note_end,
    note_moves,
    tops_listed,
    undo_moves,
)
from xzarr3.stores import LocalStore, Store, platform
from xzarr3.stores.base import UNCHANGED, Change, Scratch, Unchanged
from xzarr3.stores.folders import Folders
from xzarr3.stores.local import STAGED, TEMPORARY, FileWriter, is_busy

_NEW, _OLD = "new", "old"
_BEGUN = "begun"  # Is there from the beginning of a write to its end.
_CARRIED = "carried"  # Beside it: that files were brought back which are no part of a hierarchy.
_ENDED = "ended"  # What it is called once somebody puts the values in their place, or removes them.
_BEGUN_ASIDE = "aside"  # Beside it: that values lie aside, and where what they replace is copied to.
_ATTEMPTS = 10
_SWEPT = 8  # Of what other writes have left, by one that replaces nothing.
_RENEWED = 3600.0  # Seconds after which a write tells that it is still going on, where that has to be told.


@dataclass(frozen=True)
class Places:
    """Where in a store a node is with all that is below it, whatever of that there is yet.

    Parameters
    ----------
    path : str
        Path of the node.
    formats : tuple of Format
        The formats in which nodes can be there, the one that is written first.
    folders : tuple of str
        Keys that begin with one of these and a ``/`` belong to it; all keys if one is empty.
    documents : tuple of str
        Keys of documents of the node that lie elsewhere.
    """

    path: str
    formats: tuple[Format, ...]
    folders: tuple[str, ...]
    documents: tuple[str, ...]

    @classmethod
    def of(cls, store: Store, format: Format, path: str) -> Places:
        """Those of the node at ``path``, which is to be written in ``format``."""
        prefixes = format.prefixes(path)
        formats = [format]
        for there in (store, *(_aside(store) if store.renames_trees else ())):
            for other in formats_in(there):
                # Below the root, another format may be found in these places but has none of its own.
                if other not in formats and (not path or other.prefixes(path) == prefixes):
                    formats.append(other)
        folders = {prefix.rstrip("/") for each in formats for prefix in each.prefixes(path)}
        if "" in folders:
            return cls(path, tuple(formats), ("",), ())
        below = tuple(f"{folder}/" for folder in folders)
        keys = {key for each in formats for key in each.document_keys(path) if not key.startswith(below)}
        return cls(path, tuple(formats), tuple(sorted(folders)), tuple(sorted(keys)))

    def keys(self, store: Store) -> set[str]:
        """The keys that are there, without leases and values of writes that are under way or were killed."""
        found = keys_at(store, self.formats, self.path)
        return {key for key in found if not key.startswith(STAGED) and not is_lease(key)}

    def stages(self, keys: Iterable[str]) -> list[list[str]]:
        """Keys in the order in which they are to be removed, all of a list together."""
        return leaving_stages(self.formats, self.path, keys)

    def rank(self, key: str) -> tuple[bool, bool, int, bool, str]:
        """Sorts keys in the order in which they are to be removed.

        Documents come first, from the top down, and among those of a node what makes it one; before them all
        what holds the documents of all nodes.
        """
        kinds = [place.kind for place in (each.place(key) for each in self.formats) if place is not None]
        tells_all = any(key == each.consolidated_key(self.path) for each in self.formats)
        return not tells_all, not kinds, key.count("/"), "other" in kinds, key


def is_occupied(store: Store, places: Places) -> bool:
    """Whether there is anything but leases and values of writes that are under way or were killed.

    A store that cannot list is only asked for the documents of a node.
    """
    documents = places.documents
    if not store.listable:
        documents = tuple(key for each in places.formats for key in each.document_keys(places.path))
    if any(spread(store.exists, documents, store.concurrency)):
        return True
    if not store.listable:
        return False
    folders = [f"{folder}/" if folder else "" for folder in places.folders]
    for keys, prefixes in spread(store.list_dir, folders, store.concurrency):
        if any(not found.startswith(STAGED) and not is_lease(found) for found in keys | prefixes):
            return True
    return False


def foreign_keys(
    store: Store,
    places: Places,
    arrays: Mapping[str, ArrayMetadata],
    moved_from: Store | None = None,
    keys: set[str] | None = None,
) -> set[str]:
    """The keys that are there and no part of a Zarr hierarchy: they stay where that is replaced.

    Parameters
    ----------
    store : Store
    places : Places
    arrays : mapping of str to ArrayMetadata
        The arrays that will be there, by path. What has the name of one of their chunks is replaced with
        them: they would take it for their own, and killed writes leave chunks without documents.
    moved_from : Store, optional
        Where the keys of ``store`` have been moved from.
    keys : set of str, optional
        The keys that are there, if they were listed already.

    Raises
    ------
    NodeExistsError
        If some may be chunks of an array whose documents cannot be read, or cannot lie beside the new ones.
    """
    if keys is None:
        keys = places.keys(store)
    home = store if moved_from is None else moved_from
    return foreign_among(
        store,
        places.formats,
        places.path,
        keys,
        documents_among(places.formats, keys),
        format=places.formats[0],
        arrays=arrays,
        undone="nothing was written",
        home=home,
        chunks_elsewhere=partial(_orphans, home, places),
    )


def kept_at(store: Store, places: Places, arrays: Mapping[str, ArrayMetadata]) -> Kept:
    """What stays at a place that is about to be replaced, if there is something that may not be, an error.

    Raises
    ------
    NodeExistsError
        As :func:`foreign_keys`.
    """
    keys = places.keys(store)
    foreign = foreign_keys(store, places, arrays, keys=keys)
    return Kept() if store.folder is None else Kept.among(store.folder, foreign, keys)


def _taken_up(format: Format, keys: Iterable[str], is_there: Callable[[str], bool]) -> set[str]:
    """Those of some keys that a new node takes for its own, such as a lone document of attributes."""
    places = {key: format.place(key) for key in keys}
    return {
        key
        for key, place in places.items()
        if place is not None and any(map(is_there, (key, *format.defining_keys(place.path))))
    }


def _orphans(store: Store, places: Places, keys: set[str]) -> set[str]:
    """Those of ``keys`` that belong to nodes whose documents are where a killed write left them."""
    found: set[str] = set()
    for aside in _aside(store):
        with contextlib.suppress(StoreError):  # It was just removed, or is not ours to read.
            there = places.keys(aside)
            found.update(keys.intersection(documents_among(places.formats, there | keys)))
            documents = documents_among(places.formats, there)
            found |= chunks_among(aside, places.formats, documents, keys)[0]
    return found


def format_aside(store: Store) -> Format | None:
    """The format of a root that a killed write moved aside, if there is one."""
    for aside in _aside(store):
        with contextlib.suppress(StoreError, MetadataError):
            found = find_format(aside, "")
            if found is not None:
                return found
    return None


def _aside(store: Store) -> Iterator[Store]:
    """What writes that are under way or were killed have moved aside, or were about to move there."""
    if store.folder is not None:
        for folder in _staging_folders(store):
            for part in (_OLD, _NEW):
                if os.path.isdir(os.path.join(folder, part)):
                    yield LocalStore(os.path.join(folder, part), read_only=True)
    else:
        for top in _staged_prefixes(store):
            for part in (_OLD, _NEW):
                yield _StagedKeys(store, f"{top}{part}/")


def _staged_prefixes(store: Store) -> list[str]:
    """What the keys begin with that writes have moved aside, or noted."""
    if not store.listable:
        return []
    return sorted(prefix for prefix in store.list_dir("")[1] if prefix.startswith(STAGED))


def _staging_folders(store: Store) -> list[str]:
    try:
        with os.scandir(str(store.folder)) as entries:
            return [
                entry.path
                for entry in entries
                if entry.name.startswith(STAGED) and entry.is_dir(follow_symlinks=False)
            ]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StoreError(f"cannot list {store}: {error.strerror or error}") from error


@dataclass(frozen=True)
class Room:
    """Where a write has begun; picklable.

    Parameters
    ----------
    id : str
        Tells it from what is made in its place once it was removed. Who begins where it is goes on in it.
    lease : Lease, optional
        What reserves it.
    owner : str
        As whose it was reserved; the lease may have been taken again since.
    """

    id: str = ""
    lease: Lease | None = None
    owner: str = ""

    @property
    def is_held(self) -> bool:
        """Whether nobody in this process has taken the lease again."""
        return self.lease is None or self.lease.owner == self.owner


class Staging(ABC):
    """The values of one write, from the first chunk until they are what is found at their place.

    ``store`` takes them, under the keys that they will have.
    """

    store: Store
    room = Room()
    """Where the write has begun that is ended or discarded."""

    @abstractmethod
    def begin(self) -> None:
        """Make room for values, before the first one is stored, or go on where that was done; see ``room``.

        Raises
        ------
        NodeExistsError
            If something has come into the way since the write was planned.
        """

    def enter(self, room: Room) -> None:
        """End, or discard, what has begun there, maybe in another process."""
        self.room = room

    def check(self) -> None:  # noqa: B027 - others see it when they swap
        """Refuse, before the documents are stored, what has come into the way since."""

    @abstractmethod
    def swap(self) -> None:
        """Put what was written in the place of what is there, which is kept.

        Raises
        ------
        NodeExistsError
            If there is what may not be replaced.
        StoreError
            If some of what was written is not there any more, or it cannot be put in its place.
        """

    @abstractmethod
    def put_back(self) -> None:
        """Undo :meth:`swap`, or as much of it as was done."""

    @abstractmethod
    def clean(self) -> None:
        """Remove what was replaced, once the new values are whole, and what killed writes left."""

    def close(self) -> None:  # noqa: B027 - most need not know
        """Take no more values: the write has failed, but some of its tasks may not have ended."""

    @abstractmethod
    def discard(self) -> None:
        """Remove what was written, unless it or what it replaces is the only copy of something."""

    def leave(self) -> None:  # noqa: B027 - most cannot be taken up again
        """Leave everything as it is for a write that takes it up again."""

    @abstractmethod
    def whereabouts(self) -> str:
        """Where old and new values lie, for the case that they could not be put back."""


def stage(
    store: Store,
    places: Places,
    names: Iterable[str] | None,
    arrays: Mapping[str, ArrayMetadata],
    *,
    overwrite: bool,
    plan: Plan | None = None,
    is_leased: bool = False,
    kept: Kept | None = None,
) -> Staging:
    """The way to write a node that suits a store and what is there.

    Parameters
    ----------
    store : Store
    places : Places
        Where the node will be.
    names : iterable of str or None
        Names of the nodes directly below a group; None for an array.
    arrays : mapping of str to ArrayMetadata
        The arrays that are written, by path.
    overwrite : bool
        Replace what is there; otherwise there must be nothing.
    plan : Plan, optional
        What is written, if it is to be possible to take that up again.
    is_leased : bool
        The caller has the lease of the place.
    kept : Kept, optional
        What stays there.
    """
    if store.renames_trees:
        return _Folders(cast("LocalStore", store), places, arrays, overwrite=overwrite, plan=plan, kept=kept)
    is_aside = plan is not None and overwrite and store.exists(f"{plan.top}{_BEGUN_ASIDE}")
    if not is_aside and (
        not overwrite or goes_on_in_place(store, places, plan) or not is_occupied(store, places)
    ):  # Otherwise it was looked at before.
        return InPlace(store, places, names, arrays, plan=plan, is_leased=is_leased)
    if not store.erasable:
        raise StoreCapabilityError(
            f"{store} cannot erase, so '/{places.path}' cannot be replaced; accepted: another place"
        )
    return _Keys(store, places, arrays, plan=plan, is_leased=is_leased)


def goes_on_in_place(store: Store, places: Places, plan: Plan | None) -> bool:
    """Whether what is there was left by a write of this plan, which was cut off before it was whole."""
    if plan is None or store.renames_trees:
        return False
    if _lease_at(store, places).there().plan != plan.fingerprint:
        return False
    if store.exists(f"{plan.top}{_BEGUN_ASIDE}"):  # What is there is what it was to replace.
        return False
    return store.exists(f"{plan.top}{_BEGUN}") and not _foreign_documents(store, places, plan)


def _foreign_documents(store: Store, places: Places, plan: Plan) -> bool:
    """Whether there is a document that makes the node one and is not that of a plan."""
    keys = sorted({key for each in places.formats for key in each.defining_keys(places.path)})
    found = zip(keys, store.get_values(keys), strict=True)
    return any(value is not None and bytes(value) != plan.documents.get(key) for key, value in found)


def recover(store: Store, places: Places, plan: Plan) -> None:
    """Undo what a write of this plan was just putting in its place when it was killed, or end it.

    Raises
    ------
    NodeExistsError
        If that write is still going on.
    """
    if store.folder is not None:
        top = os.path.join(store.folder, plan.top.rstrip("/"))
        if os.path.lexists(os.path.join(top, "moves")):
            lease = _lease_at(store, places, plan)
            lease.reserve(places.path)
            try:
                aside = undo_moves(top, store.folder)
                if aside is not None:
                    _remove(aside)
                    _remove(top)
                    lease.release()
            finally:
                lease.leave()


def _check_left(lease: Lease, plan: Plan, store: Store, path: str) -> None:
    """Warn of a write of another plan that was cut off here."""
    if _left(lease) not in (None, plan.fingerprint):
        warnings.warn(
            f"a write to '/{printable(path)}' in {store} was cut off that is not the same as this one, so "
            "nothing of it is taken up: its data or encoding are others, or dask has given its arrays other "
            "names, as it does for what it cannot name by its content; what it left is removed by a later "
            "call, once it "
            "has not changed for a day",
            stacklevel=2,
        )


def _verified(lease: Lease, path: str) -> bool:
    """Whether anybody is in the way; who has lost the place hears of it by an error."""
    lease.verify(path)
    return False


def _left(lease: Lease) -> str | None:
    """The plan of the write that had a place before, if it can be taken up again."""
    return None if lease.displaced is None else lease.displaced.plan


def _lease_at(store: Store, places: Places, plan: Plan | None = None) -> Lease:
    """The lease of a place.

    It lies there, but not in a directory, of which the place is renamed away.
    """
    key = lease_key(places.formats[0].chunk_prefix(places.path) if places.path else "")
    if store.renames_trees:
        place = hashlib.blake2b(places.path.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        key = lease_key(f"{STAGED}{place}/")
    if plan is None:
        return Lease(store, key, "replace")
    beside = f"{plan.top}{_BEGUN}", now
    return Lease(store, key, "replace", plan=plan.fingerprint, beside=beside)


def _lease(store: Store, places: Places, plan: Plan | None = None) -> Lease | None:
    """The lease of a place; None where none is kept."""
    return _lease_at(store, places, plan) if keeps_leases(store) else None


class _StagedFolder(LocalStore):
    """The directory that takes values, called in messages what it will be."""

    def __init__(self, root: str, shown: str, /, **options: bool) -> None:
        super().__init__(root, **options)
        self._shown = shown
        self._closed = False

    def __repr__(self) -> str:
        return self._shown

    def __reduce__(self) -> tuple[object, ...]:
        return partial(_StagedFolder, **self._options()), (self.root, self._shown)

    def _file_writer(self, scratch: Scratch | None, limit: int) -> FileWriter:
        if not os.path.isdir(self.root):  # It is made once; what was in it would be missed.
            raise _gone(self)
        return _StagedWriter(self, scratch, limit)

    def close(self) -> None:
        """Take no more values."""
        self._closed = True

    def reopen(self) -> None:
        """Take values again: what is computed later may be computed again."""
        self._closed = False


class _StagedWriter(FileWriter):
    """Puts values into a directory as long as the write goes on."""

    _store: _StagedFolder

    def _check_open(self, key: str) -> None:
        # Dask's threads finish what they are at when another one has failed.
        if self._store._closed:
            raise StoreError(
                f"cannot write key '{key}' of {self._store}: the write has failed and was given up"
            )

    def set(self, key: str, pieces: Sequence[Buffer]) -> None:
        self._check_open(key)
        super().set(key, pieces)

    def update(self, key: str, change: Change) -> None:
        self._check_open(key)
        super().update(key, change)

    def close(self) -> None:
        super().close()
        if self._store._closed:
            _remove(os.path.dirname(self._store.root))


def _gone(store: Store) -> StoreError:
    return StoreError(
        f"cannot write to {store}: values that this write stored before are gone, as somebody has removed "
        f"them; another write does that if nothing was stored for {ABANDONED / 3600:g} hours, and an earlier "
        "attempt at this one when it is cleaned up late; accepted: the same again, or a new call"
    )


class _Folders(Staging):
    """Directories that are renamed: the old ones aside, then the new ones to their places.

    Nothing is renamed over something that is there. Files that are no part of a Zarr hierarchy get a second
    name among the new values before anything is renamed. What was moved aside is looked at before it is
    removed: if such files have come meanwhile, all is put back and done again with them, and anything at all
    is put back where there must be nothing.
    """

    def __init__(
        self,
        store: LocalStore,
        places: Places,
        arrays: Mapping[str, ArrayMetadata],
        *,
        overwrite: bool,
        plan: Plan | None = None,
        kept: Kept | None = None,
    ) -> None:
        self._target = store
        self._places = places
        self._arrays = arrays
        self._kept = Kept() if kept is None else kept
        self._overwrite = overwrite
        self._plan = plan
        self._lease: Lease | None = None
        # What is replaced has a place of its own each time.
        self._aside = self._top = os.path.join(store.root, f"{STAGED}{uuid.uuid4().hex}")
        if plan is not None:
            self._top = os.path.join(store.root, plan.top.rstrip("/"))
            self._lease = _lease_at(store, places, plan)
        self._old = os.path.join(self._aside, _OLD)
        self._new = os.path.join(self._top, _NEW)
        self._begun = os.path.join(self._top, _BEGUN)
        self._ended = os.path.join(self._top, _ENDED)
        self._is_ending = False
        self._staged = self.store = _StagedFolder(self._new, repr(store), **store._options())
        self._moves: list[tuple[str, str]] = []

    def _units(self, folder: str) -> list[str]:
        """What can be renamed as a whole in a directory that is laid out as the store, in the order to go.

        The documents of the group leave first and come last, so that no reader sees it with arrays that
        are not its own.
        """
        if "" in self._places.folders:
            if not os.path.lexists(folder):
                return []
            names = [
                name
                for name in os.listdir(folder)
                if not name.startswith((TEMPORARY, STAGED)) and name != NAME
            ]
            return sorted(names, key=self._places.rank)
        documents = sorted(self._places.documents, key=self._places.rank)
        # Documents of what is below come before its chunks.
        folders = sorted(self._places.folders, key=lambda name: (not self._has_documents(name), name))
        return [unit for unit in (*documents, *folders) if os.path.lexists(os.path.join(folder, unit))]

    def _has_documents(self, folder: str) -> bool:
        formats, path = self._places.formats, self._places.path
        return any(each.listing_prefix(path) == f"{folder}/" for each in formats)

    def begin(self) -> None:
        self._check_undone()
        if self._plan is not None and self._lease is not None:
            self._lease.reserve(self._places.path)
            _check_left(self._lease, self._plan, self._target, self._places.path)
            if not os.path.lexists(self._begun):  # Somebody was about to remove what is there.
                _remove(self._top)
            _remove_partial(self._new)
            # Who reserves the place just now is refused anyway.
            _remove_partial(os.path.join(self._target.root, os.path.dirname(self._lease.key)))
        self._staged.reopen()
        try:
            with Folders(self._target.root) as folders:  # Somebody may have put a link there.
                folders.make(f"{os.path.basename(self._top)}/{_NEW}")
                top = folders.open(os.path.basename(self._top))
                self.room = Room(_room_in(top))
        except OSError as error:
            raise StoreError(f"cannot write to {self._target}: {error.strerror or error}") from error
        self._is_ending = False

    def _end(self) -> bool:
        """Let nobody else put the values in their place, or remove them; whether nobody else has done that.

        It may be a task that is run once more, as its worker was lost, or what cleans up after an earlier
        attempt.
        """
        if self._is_ending or self._plan is not None:
            return os.path.lexists(self._begun if self._plan is not None else self._ended)
        try:
            with open(self._begun, "rb") as file:
                if file.read().decode("ascii", "replace") != self.room.id:
                    return False
            platform.rename(self._begun, self._ended)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StoreError(
                f"cannot replace '/{self._places.path}' in {self._target}: {error.strerror or error}"
            ) from error
        self._is_ending = True
        return True

    def check(self) -> None:
        if not self._overwrite and is_occupied(self._target, self._places):
            raise _occupied(self._target, self._places)

    def _check_undone(self) -> None:
        if os.path.lexists(self._old):
            raise StoreError(
                f"cannot replace '/{self._places.path}' in {self._target}: an earlier attempt was not "
                f"undone, its data are in {self.whereabouts()}; accepted: a new call"
            )

    def _stays(self, unit: str) -> bool:
        """Whether something in the root is left where it is, as it is no part of a hierarchy."""
        if unit not in self._kept.alone:
            return False
        formats = self._places.formats
        for below, _, names in os.walk(os.path.join(self._target.root, unit)):
            relative = platform.relative(below, self._target.root)
            if any(each.place(f"{relative}/{name}") is not None for name in names for each in formats):
                return False  # Somebody has made a node there since.
        return True

    def _carry_over(self, units: Sequence[str]) -> None:
        """Give the files that stay a place among the new values, if they are in what will be renamed."""
        folders = tuple(f"{unit}/" for unit in units)
        names = [name for name in self._kept.names if name.startswith(folders) or name in units]
        taken = _taken_up(self._places.formats[0], names, self._is_new)
        top = os.path.basename(self._top)
        carry(
            self._target.root,
            "",
            f"{top}/{_NEW}",
            sorted(set(names) - taken),
            replace=True,
            fsync=self._target.fsync,
        )

    def _is_new(self, key: str) -> bool:
        return os.path.lexists(os.path.join(self._new, key))

    def _left_behind(self, old: str) -> frozenset[str]:
        """The files that are no part of a hierarchy in what was moved aside, and in the store no more.

        Raises
        ------
        NodeExistsError
            If there is what may not be replaced.
        """
        if not os.path.lexists(old):
            return frozenset()
        aside = LocalStore(old, read_only=True)
        keys = self._places.keys(aside)
        if not self._overwrite:
            if keys:
                raise _occupied(self._target, self._places)
            return frozenset()
        foreign = foreign_keys(aside, self._places, self._arrays, self._target, keys)
        missing = {name for name in Kept.among(old, foreign, keys).names if not self._is_in_root(name)}
        missing -= _taken_up(self._places.formats[0], missing, self._is_in_root)
        return frozenset(name for name in missing if not self._led_to_folder(old, name))

    def _is_in_root(self, key: str) -> bool:
        return os.path.lexists(os.path.join(self._target.root, key))

    def _led_to_folder(self, old: str, name: str) -> bool:
        """Whether something was a link to a directory where it was, which may be a node."""
        try:
            target = os.readlink(os.path.join(old, name))
        except OSError:  # It is no link.
            return False
        return os.path.isdir(os.path.join(self._target.root, os.path.dirname(name), target))

    def swap(self) -> None:
        left: frozenset[str] = frozenset()
        self._check_undone()
        if not self._end():
            raise _gone(self._target)
        for _ in range(_ATTEMPTS):
            self._check_undone()
            if self._lease is not None:
                self._lease.verify(self._places.path)
            self.check()
            self._rename_all()
            left = self._left_behind(self._old)
            if not left:
                return
            self.put_back()
            self._kept = kept_at(self._target, self._places, self._arrays)
        raise NodeExistsError(
            f"cannot replace '/{self._places.path}' in {self._target}: again and again somebody puts files "
            f"there, {listed(sorted(left)[:5])}; accepted: a new call"
        )

    def _rename_all(self) -> None:
        """Rename what is there, and then what is new; what fails halfway is for :meth:`put_back`."""
        root, old, new = self._target.root, self._old, self._new
        with contextlib.suppress(OSError):  # It is looked at below.
            os.utime(self._top)
        try:
            news = self._units(new)
            units = [unit for unit in self._units(root) if unit in news or not self._stays(unit)]
            self._carry_over(units)
            aside = [(os.path.join(root, unit), os.path.join(old, unit)) for unit in units]
            ahead = [(os.path.join(new, unit), os.path.join(root, unit)) for unit in self._units(new)[::-1]]
            if not self._end():  # Now, as what was found in it may not have been all.
                raise _gone(self._target)
            for place, _ in aside:
                self._check_inside(place)
            for _, place in ahead:
                self._check_inside(place)
            for folder in dict.fromkeys(os.path.dirname(target) for _, target in aside + ahead):
                os.makedirs(folder, exist_ok=True)
            if self._plan is not None:
                note_moves(self._top, self._places.path, self._aside, aside + ahead, root)
            with Folders(root) as folders:
                for move in aside:
                    self._moves.append(move)
                    _rename(folders, root, *move)
                for move in ahead:
                    self._moves.append(move)
                    if os.path.lexists(move[1]):
                        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), move[1])
                    _rename(folders, root, *move)
            if self._target.fsync:
                with Folders(root) as folders:
                    for place in dict.fromkeys(os.path.dirname(target) for _, target in ahead):
                        relative = platform.relative(place, root)
                        folders.sync("" if relative == "." else relative)
        except StoreError:
            raise
        except OSError as error:
            raise StoreError(
                f"cannot replace '/{self._places.path}' in {self._target}: {error.strerror or error}"
            ) from error

    def _check_inside(self, place: str) -> None:
        if self._places.path:
            self._target.check_inside(os.path.dirname(place), self._places.path)

    def close(self) -> None:
        self._staged.close()

    def put_back(self) -> None:
        failed = True  # The last move may be one that failed, and only that one.
        while self._moves:
            source, target = self._moves[-1]
            if os.path.lexists(target) and not (failed and os.path.lexists(source)):
                _move_back(target, source)
            self._moves.pop()
            failed = False
        for unit in (*self._places.documents, *self._places.folders):
            folder = os.path.dirname(os.path.join(self._old, unit))
            with contextlib.suppress(OSError):  # It is not there or not empty; that is for discard to see.
                while folder != self._aside:
                    if os.path.isdir(folder):
                        os.rmdir(folder)
                    folder = os.path.dirname(folder)
            self._target.prune(os.path.dirname(os.path.join(self._target.root, unit)))
        if self._plan is not None:
            with _removing(self._top):
                forget_moves(self._top)
            with contextlib.suppress(OSError):  # It was not made, or is not empty.
                os.rmdir(self._aside)

    def clean(self) -> None:
        self._moves.clear()
        others = [each for each in _staging_folders(self._target) if each not in (self._top, self._aside)]
        abandoned = [folder for folder in others if _is_abandoned(folder)]
        for folder in others:
            with _removing(folder):
                forget_moves_at(folder, self._places.path)
            self._bring_back(folder)  # While what was replaced is still there to tell chunks from files.
        if self._plan is not None:
            with _removing(self._top):
                note_end(self._top, self._aside)
            _remove(self._aside)
        _remove(self._top)
        if self._lease is not None:
            self._lease.release()
        for folder in abandoned:
            if self._may_remove(folder):
                _remove_at_once(self._target, folder)

    def _bring_back(self, folder: str) -> None:
        """Bring files back, once, that are no part of a hierarchy from where a killed write has left them."""
        old = os.path.join(folder, _OLD)
        if _is_carried(folder) or not _holds_files(old) or not _only_old_at(folder, self._places):
            return
        with contextlib.suppress(NodeExistsError):  # Then it stays as it is.
            left = sorted(self._left_behind(old))
            source = platform.relative(old, self._target.root)
            with _removing(folder):
                carry(self._target.root, source, "", left, replace=False, fsync=self._target.fsync)
                _note_carried(self._target.root, folder)

    def _may_remove(self, folder: str) -> bool:
        """Whether an abandoned directory holds no replaced values but such as were replaced again now."""
        if not _only_old_at(folder, self._places):
            return False
        try:
            return _is_carried(folder) or not self._left_behind(os.path.join(folder, _OLD))
        except NodeExistsError:
            return False

    def discard(self) -> None:
        if os.path.lexists(self._old):
            raise StoreError(f"'{self._old}' may hold what was replaced")
        if self._end():
            _remove_at_once(self._target, self._top)  # What is begun again there is not removed with it.
            return
        for folder in (self._new, self._top):
            with contextlib.suppress(OSError):  # It holds something of another attempt.
                os.rmdir(folder)

    def leave(self) -> None:
        if self._lease is not None:
            self._lease.leave()

    def whereabouts(self) -> str:
        return f"'{self._old}' and '{self._new}'"


def _room_in(folder: platform.Folder) -> str:
    """What tells a staged directory from others of its name, which is noted there by the first who asks."""
    room = uuid.uuid4().hex
    try:
        file = platform.open_at(folder, _BEGUN, os.O_WRONLY | os.O_CREAT | os.O_EXCL | platform.NO_FOLLOW)
    except FileExistsError:
        file = platform.open_at(folder, _BEGUN, os.O_RDONLY | platform.NO_FOLLOW)
        try:
            return os.read(file, 2 * len(room)).decode("ascii", "replace")
        finally:
            os.close(file)
    try:
        os.write(file, room.encode())
    finally:
        os.close(file)
    return room


def _holds_files(folder: str) -> bool:
    """Whether there is a file below a directory, or a link."""
    return any(
        names or any(os.path.islink(os.path.join(below, each)) for each in inner)
        for below, inner, names in os.walk(folder)
    )


def _is_carried(folder: str) -> bool:
    return os.path.lexists(os.path.join(folder, _CARRIED))


def _note_carried(root: str, folder: str) -> None:
    """Note that all files were brought back: what is left are values, of which nothing may tell later."""
    with Folders(root) as folders:
        top = folders.open(os.path.basename(folder))
        os.close(platform.open_at(top, _CARRIED, os.O_WRONLY | os.O_CREAT | platform.NO_FOLLOW))


def _occupied(store: Store, places: Places) -> NodeExistsError:
    return NodeExistsError(
        f"'/{places.path}' in {store} is not empty: somebody else has written there since this write was "
        "planned; accepted: another place, or replacing what is there with a new call"
    )


def _rename(folders: Folders, root: str, source: str, target: str) -> None:
    """Rename within a store; no link on the way leads out of it."""
    folders.rename(platform.relative(source, root), platform.relative(target, root))


def _move_back(target: str, source: str) -> None:
    if os.path.lexists(source):
        raise StoreError(f"'{target}' cannot be moved back, because there is '{source}'")
    platform.rename(target, source)


@contextlib.contextmanager
def _removing(folder: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot remove what is in '{folder}': {error.strerror or error}") from error


def _remove_partial(folder: str) -> None:
    """Remove what killed writers have left beside values, whether that is recent or not."""
    for below, _, names in os.walk(folder):
        for name in names:
            if name.startswith(TEMPORARY):
                with contextlib.suppress(OSError):  # It is no value, and may just have become one.
                    os.unlink(os.path.join(below, name))


def _remove(folder: str) -> None:
    failure: OSError | None = None
    for _ in range(_ATTEMPTS):
        try:
            _remove_tree(folder)
        except OSError as error:
            if not os.path.lexists(folder):
                return
            failure = error
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                break  # Otherwise somebody else put something there, or took it away, just now.
        else:
            return
    raise StoreError(f"cannot remove '{folder}': {failure}") from failure


def _remove_tree(folder: str) -> None:
    """Remove a directory, but for files that a network file system removes itself, once nobody reads them."""
    busy: list[str] = []

    def failed(act: object, path: str, problem: Any) -> None:
        error = problem[1] if isinstance(problem, tuple) else problem
        if is_busy(os.path.basename(path), error):
            busy.append(path)
        elif error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not any(
            each.startswith(os.path.join(path, "")) for each in busy
        ):
            raise error

    if sys.version_info >= (3, 12):
        shutil.rmtree(folder, onexc=failed)
    else:
        shutil.rmtree(folder, onerror=failed)


def _remove_at_once(store: Store, folder: str) -> None:
    """Remove a directory under another name: its writer, if there is one, must not find a part of it."""
    removed = os.path.join(str(store.folder), f"{STAGED}{uuid.uuid4().hex}")
    try:
        platform.rename(folder, removed)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(f"cannot remove '{folder}': {error}") from error
    _remove(removed)


def _is_abandoned(folder: str) -> bool:
    """Whether nothing has changed anywhere below a directory for a long time."""
    limit = time.time() - ABANDONED
    for below, _, _ in os.walk(folder):
        try:
            info = os.lstat(below)
        except FileNotFoundError:
            return False  # Somebody is at work here.
        if not stat.S_ISDIR(info.st_mode) or info.st_mtime > limit:
            return False
    return True


def _only_old_at(folder: str, places: Places) -> bool:
    """Whether a staging directory holds no replaced values but such as lay in these places."""
    old = os.path.join(folder, _OLD)
    allowed = tuple(os.path.join(old, each, "") if each else os.path.join(old, "") for each in places.folders)
    files = {os.path.join(old, key) for key in places.documents}
    for below, inner, names in os.walk(old):
        links = [name for name in inner if os.path.islink(os.path.join(below, name))]
        for found in (os.path.join(below, name) for name in (*names, *links)):
            if found not in files and not os.path.join(found, "").startswith(allowed):
                return False
    return True


def _without(error: StoreError, *prefixes: str) -> StoreError:
    """An error in whose message keys are called what they will be."""
    for prefix in prefixes:
        error.args = tuple(
            argument.replace(prefix, "") if isinstance(argument, str) else argument for argument in error.args
        )
    return error


@contextlib.contextmanager
def _naming(key: str) -> Iterator[None]:
    """Errors about what a write says of itself name no key that a user could know."""
    try:
        yield
    except (NodeExistsError, ConflictError):
        raise
    except StoreError as error:
        raise _without(error, key.rpartition("/")[0] + "/") from error.__cause__


@dataclass(frozen=True)
class _Mark:
    """What a key says that is there from the beginning of a write to its end."""

    room: str = ""
    is_ending: bool = False

    @classmethod
    def parse(cls, value: Buffer | None) -> _Mark:
        try:
            said = {} if value is None else json.loads(bytes(value))
        except (ValueError, RecursionError):
            return cls()
        if not isinstance(said, dict):
            return cls()
        return cls(str(said.get("room", "")), said.get("is_ending") is True)

    def text(self) -> bytes:
        """The value, which also tells when it was stored, as that of :func:`now`."""
        said = {**json.loads(now()), "room": self.room, "is_ending": self.is_ending}
        return json.dumps(said).encode()


class _StagedKeys(Store):
    """Keys below a prefix, called in messages what they will be."""

    _tells = False

    def __init__(self, store: Store, prefix: str, begun: str | None = None) -> None:
        super().__init__(read_only=store.read_only)
        self._begun = begun
        self.room = ""
        """What tells it from others of its name, where that is known."""
        self._renewed = time.time()
        self.concurrency = store.concurrency
        self.request_bytes = store.request_bytes
        self.over_read = store.over_read
        self._store = store
        self._prefix = prefix
        self._guard = threading.Lock()
        self._written: set[str] = set()
        self._alone = True  # No copy of this one may have written something.

    def __getstate__(self) -> dict[str, object]:
        self._alone = False
        return {**self.__dict__, "_guard": None, "_written": set()}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._guard = threading.Lock()

    def may_have_more(self) -> None:
        """Others may have stored values here before."""
        self._alone = False

    def written(self) -> set[str]:
        """The keys of all values that were stored and not erased, in other processes, too.

        Raises
        ------
        StoreError
            If they have to be listed, and some that were stored here are not.
        """
        with self._guard:
            found = set(self._written)
        if self._alone:
            return found
        there = set(self.list_prefix(""))
        if not found <= there:
            raise StoreError(
                f"{len(found - there)} keys that were stored in {self} are not listed, "
                f"{listed(sorted(found - there)[:3])}, so that those of other processes may not be either; "
                "accepted: a store that lists all of its keys"
            )
        return there

    def __repr__(self) -> str:
        return repr(self._store)

    @property
    def writeable(self) -> bool:
        return self._store.writeable

    @property
    def erasable(self) -> bool:
        return self._store.erasable

    def _renamed(self, error: StoreError) -> StoreError:
        return _without(error, self._prefix)

    def _get(self, key: str, byte_range: ByteRange | None) -> Buffer | None:
        try:
            return self._store.get(self._prefix + key, byte_range)
        except StoreError as error:
            raise self._renamed(error) from error.__cause__

    def renew(self) -> None:
        """Tell others that the write goes on.

        Raises
        ------
        StoreError
            If somebody has removed what says that it has begun, and with it what was written.
        """
        if self._begun is not None:
            with _naming(self._begun):
                self._store.update(self._begun, self._going_on)
            self._renewed = time.time()

    def _going_on(self, stored: Buffer | None) -> list[Buffer]:
        found = _Mark.parse(stored)
        if stored is None or found.is_ending or (self.room and found.room != self.room):
            raise _gone(self._store)
        return [_Mark(found.room).text()]

    def _set(self, key: str, value: bytes) -> None:
        if time.time() - self._renewed > _RENEWED:
            self.renew()
        try:
            self._store.set(self._prefix + key, value)
        except StoreError as error:
            raise self._renamed(error) from error.__cause__
        with self._guard:
            self._written.add(key)

    def _erase_values(self, keys: Sequence[str]) -> None:
        with self._guard:
            self._written.difference_update(keys)
        try:
            self._store.erase_values([self._prefix + key for key in keys])
        except StoreError as error:
            raise self._renamed(error) from error.__cause__

    def _list(self, prefix: str) -> Iterator[str]:
        for key in self._store.list_prefix(self._prefix + prefix):
            yield key[len(self._prefix) :]


class _Keys(Staging):
    """Keys that are copied: old values aside before they are erased, then new ones to their places.

    Of several writers one at a time does that at a place. Nothing is erased before all copies are there.
    """

    def __init__(
        self,
        store: Store,
        places: Places,
        arrays: Mapping[str, ArrayMetadata],
        *,
        plan: Plan | None = None,
        is_leased: bool = False,
    ) -> None:
        self._target = store
        self._places = places
        self._arrays = arrays
        self._plan = plan
        # What is replaced has a place of its own each time.
        self._aside_top = self._top = f"{STAGED}{uuid.uuid4().hex}/"
        if plan is not None:
            self._top = plan.top
        self._tops = [self._aside_top]  # Also of those who were cut off while they carried out the plan.
        self._new, self._old = f"{self._top}{_NEW}/", f"{self._aside_top}{_OLD}/"
        self._begun = f"{self._top}{_BEGUN}"
        self._lease = None if is_leased else _lease(store, places, plan)
        self.store: _StagedKeys = _StagedKeys(store, self._new, self._begun)
        self._aside: set[str] = set()
        self._put: set[str] = set()
        self._erasing = False
        self._is_ending = False

    def begin(self) -> None:
        plan = self._plan
        if plan is not None and self._lease is not None:
            self._lease.reserve(self._places.path)
            _check_left(self._lease, plan, self._target, self._places.path)
            if not self._target.exists(self._begun):  # Somebody was about to remove what is there.
                self._target.erase_prefix(self._top)
            self.store.may_have_more()
            self._tops = [*tops_listed(self._target.get(f"{self._top}{_BEGUN_ASIDE}")), *self._tops]
            self._target.set(f"{self._top}{_BEGUN_ASIDE}", "\n".join(self._tops).encode())
        if plan is None:
            self._enter()
            return
        with _naming(self._begun):
            self._target.set(self._begun, now())

    def _enter(self) -> None:
        """Note what tells this place from another one of its name, or go on with what was noted."""
        room = uuid.uuid4().hex

        def change(stored: Buffer | None) -> list[Buffer]:
            nonlocal room
            found = _Mark.parse(stored)
            if found.is_ending:
                raise ConflictError(
                    f"cannot write to {self._target}: an earlier attempt at this write is just being cleaned "
                    "up; accepted: the same again in a moment, or a new call"
                )
            room = found.room or room
            return [_Mark(room).text()]

        with _naming(self._begun):
            self._target.update(self._begun, change)
        self.room = Room(room)

    def _end(self, *, is_lost: bool = False) -> bool:
        """Let nobody else put the values in their place, or remove them; whether nobody else has.

        With ``is_lost``, also where nothing says any more that the write has begun.
        """
        ends = False

        def change(stored: Buffer | None) -> list[Buffer] | Unchanged:
            nonlocal ends
            found = _Mark.parse(stored)
            ends = is_lost if stored is None else found.room == self.room.id and not found.is_ending
            return [_Mark(self.room.id, is_ending=True).text()] if ends else UNCHANGED

        with _naming(self._begun):
            self._target.update(self._begun, change)
        return ends

    def swap(self) -> None:
        self.store.room = self.room.id
        self.store.renew()
        if self._plan is not None and self._lease is not None:
            self._lease.verify(self._places.path)
            self._target.set(f"{self._aside_top}{_BEGUN}", now())
        elif self._lease is not None:
            self._lease.reserve(self._places.path)
        forget_settings(self._target, _staged_prefixes(self._target), self._places.path)
        new = self._new_keys()
        if self._plan is None:  # Before the first value is removed, somebody says so: so these are all.
            self._is_ending = self._end()
            if not self._is_ending:
                raise _gone(self._target)
        there = self._places.keys(self._target)
        self._check_listed(there)
        kept = foreign_keys(self._target, self._places, self._arrays, keys=there)
        there = there - (kept - _taken_up(self._places.formats[0], kept, new.__contains__))
        old = self._places.stages(there)
        self._aside, self._put = there, new
        self._copy([[key for stage in old for key in stage]], "", self._old)
        self._check_copied(there, self._old)
        self._erasing = True
        erase_stages(self._target, old)
        self._copy(self._places.stages(new)[::-1], self._new, "")
        self._check_there(documents_among(self._places.formats, new))
        self._check_copied(new, "")

    def _check_copied(self, keys: set[str], prefix: str) -> None:
        """See to it that copies of all values are there, before what they were made from is erased."""
        there = set(self._target.list_prefix(prefix)) if prefix else self._places.keys(self._target)
        missing = sorted(key for key in keys if prefix + key not in there)
        copies = [prefix + key for key in missing]  # A list may be behind.
        found = spread(self._target.exists, copies, self._target.concurrency)
        lost = [key for key, is_there in zip(missing, found, strict=True) if not is_there]
        if lost:
            raise StoreError(
                f"cannot replace '/{self._places.path}' in {self._target}: {len(lost)} values were not "
                f"copied, {listed(lost[:5])}"
            )

    def _new_keys(self) -> set[str]:
        """What was written, if the documents of the node are among that."""
        new = self.store.written()
        format, path = self._places.formats[0], self._places.path
        if not new.intersection(format.defining_keys(path)):
            raise StoreError(
                f"cannot replace '/{path}' in {self._target}: its new document is not among the {len(new)} "
                "keys that were written, or are listed; accepted: a new call"
            )
        return new

    def _check_listed(self, there: set[str]) -> None:
        """See to it that documents of the node that are there are listed; or else others may be missed."""
        keys = {key for format in self._places.formats for key in format.defining_keys(self._places.path)}
        asked = sorted(keys - there)
        found = spread(self._target.exists, asked, self._target.concurrency)
        for key in itertools.compress(asked, found):
            raise StoreError(
                f"cannot replace '/{self._places.path}' in {self._target}: key '{key}' is there, but not "
                "listed; accepted: a store that lists all of its keys"
            )

    def _check_there(self, keys: Sequence[str]) -> None:
        """See to it that documents have arrived."""
        found = spread(self._target.exists, keys, self._target.concurrency)
        missing = [key for key, is_there in zip(keys, found, strict=True) if not is_there]
        if missing:
            raise StoreError(
                f"cannot replace '/{self._places.path}' in {self._target}: {len(missing)} of its new "
                f"documents did not arrive, {listed(missing[:5])}"
            )

    def put_back(self) -> None:
        if not self._erasing:
            return
        own = self._places.keys(self._target).intersection(self._aside | self._put)
        erase_stages(self._target, self._places.stages(own))
        self._copy(self._places.stages(self._aside)[::-1], self._old, "")
        self._erasing = False

    def _copy(self, stages: Iterable[Sequence[str]], source: str, target: str) -> None:
        """Copy values from below one prefix to below another; those of a list in any order."""
        try:
            for keys in stages:
                self._target.copy_values((source + key, target + key) for key in keys)
        except StoreError as error:
            raise _without(error, self._new, self._old) from error.__cause__

    def clean(self) -> None:
        self._erasing = False
        try:
            self._remove()
        finally:
            if self._lease is not None:
                self._lease.release()
        _remove_abandoned(self._target, self._places, _staged_prefixes(self._target))

    def _remove(self) -> None:
        if self._plan is not None:  # First, so that no values are missed that are about to be erased.
            self._target.erase_prefix(self._plan.journal)
        for top in dict.fromkeys((*self._tops, self._top)):
            keys = set(self._target.list_prefix(top)) - {f"{top}{_BEGUN}"}
            self._target.erase_values(keys)
            self._target.erase(f"{top}{_BEGUN}")  # Last, as that it has begun is to be known to the end.

    def leave(self) -> None:
        if self._lease is not None:
            self._lease.leave()

    def discard(self) -> None:
        try:
            if not self._erasing and (self._is_ending or self._plan is not None or self._end(is_lost=True)):
                self._remove()
        finally:
            if self._lease is not None:
                self._lease.release()

    def whereabouts(self) -> str:
        return f"keys of {self._target} that begin with '{self._old}' and '{self._new}'"


def _remove_abandoned(store: Store, places: Places | None, tops: Iterable[str]) -> None:
    """Remove what killed writes left, but replaced values only if they lay in places that are whole now."""
    documents = places.documents if places is not None else ()
    folders = tuple(f"{folder}/" if folder else "" for folder in places.folders) if places is not None else ()
    for top in tops:
        marks = [f"{top}{_BEGUN}", lease_key(top)]
        begun, leased = store.get_values(marks)
        # Without one, somebody has begun to remove it.
        if (begun is not None and age(begun) < ABANDONED) or (
            begun is None and leased is not None and Holder.parse(leased).is_dead is not True
        ):
            continue
        aside = f"{top}{_OLD}/"
        keys = set(store.list_prefix(top))
        old = {key[len(aside) :] for key in keys if key.startswith(aside)}
        if all(key in documents or key.startswith(folders) for key in old):
            # First: its writer, if there is one, must not go on without the rest.
            store.erase_values(keys.intersection(marks))
            store.erase_values(keys.difference(marks))


def sweep(store: Store) -> None:
    """Remove what was left by killed writes that had replaced nothing, or a few of them in other stores.

    Raises
    ------
    StoreError
        If it is not possible.
    """
    if store.folder is not None:
        for folder in _staging_folders(store):
            if not os.path.lexists(os.path.join(folder, _OLD)) and _is_abandoned(folder):
                _remove_at_once(store, folder)
        return
    tops = _staged_prefixes(store)
    _remove_abandoned(store, None, random.sample(tops, min(len(tops), _SWEPT)))


class InPlace(Staging):
    """For where nothing is to be replaced and moving would be copying: the last document makes it seen.

    The place is reserved before the first value is stored, so that of several writers that find it empty one
    gets it; the others hear of that. Nothing is erased once another writer has taken the place.
    """

    def __init__(
        self,
        store: Store,
        places: Places,
        names: Iterable[str] | None,
        arrays: Mapping[str, ArrayMetadata],
        *,
        plan: Plan | None = None,
        is_leased: bool = False,
    ) -> None:
        self.store = store
        self._places = places
        self._arrays = arrays
        self._names = None if names is None else list(names)
        self._plan = plan
        self._lease = None if is_leased else _lease(store, places, plan)
        self._whole = False
        self._is_mixed = False  # With what somebody has written who reserves nothing.

    def begin(self) -> None:
        self._is_mixed = False
        if self._lease is None:
            return
        # Before it is reserved, as what was reserved is not known any more after that.
        goes_on = goes_on_in_place(self.store, self._places, self._plan)
        self._lease.reserve(self._places.path)
        self.room = Room(self._lease.term, self._lease, self._lease.owner)
        if self._plan is None and self._lease.continues:
            return
        if self._plan is not None:
            goes_on = goes_on and _left(self._lease) in (None, self._plan.fingerprint)
            _check_left(self._lease, self._plan, self.store, self._places.path)
            if not goes_on:
                self.store.erase_prefix(self._plan.top)
            self.store.set(f"{self._plan.top}{_BEGUN}", now())
            if goes_on:
                return
        looks: tuple[Callable[[], object], ...] = (
            partial(is_occupied, self.store, self._places),
            partial(_staged_prefixes, self.store),
        )
        occupied, tops = spread(lambda look: look(), looks, self.store.concurrency)
        if occupied:  # By somebody who has finished since.
            self._lease.release()
            raise _occupied(self.store, self._places)
        # Of arrays that were there before, and may have had the same documents.
        forget_settings(self.store, cast("list[str]", tops), self._places.path)

    def check(self) -> None:
        format, path = self._places.formats[0], self._places.path
        keys = format.defining_keys(path)
        there: list[Callable[[], bool]] = [partial(self._is_there, key) for key in keys]
        if self._lease is not None:
            there.append(partial(_verified, self._lease, path))
            if not self.room.is_held:
                raise _gone(self.store)
        found = spread(lambda ask: ask(), there, self.store.concurrency)
        if any(found):
            self._is_mixed = True
            error = _occupied(self.store, self._places)
            error.add_note("chunks that were written are not removed, as they may be of either writer")
            raise error

    def _is_there(self, key: str) -> bool:
        """Whether somebody else has stored a document."""
        if self._plan is None or key not in self._plan.documents:
            return self.store.exists(key)
        stored = self.store.get(key)
        return stored is not None and bytes(stored) != self._plan.documents[key]

    def swap(self) -> None:
        self._whole = True

    def put_back(self) -> None:
        self._whole = False

    def enter(self, room: Room) -> None:
        self.room = room
        if room.lease is not None:
            self._lease = room.lease

    def clean(self) -> None:
        if self._plan is not None:
            self.store.erase_prefix(self._plan.top)
        if self._lease is not None:
            self._lease.release()

    def leave(self) -> None:
        if self._lease is not None:
            self._lease.leave()

    def discard(self) -> None:
        if self._lease is not None:
            if not self.room.is_held:
                return
            try:
                self._lease.take_anew()  # Nobody begins the same again while it is removed.
            except BaseException:
                self._lease.release()
                raise
            if not self._lease.holds():
                return  # Whatever is there is somebody else's, or nothing was begun.
        try:
            if not self._whole and not self._is_mixed:
                self._erase()
        finally:
            if self._lease is not None:
                self._lease.release()

    def _erase(self) -> None:
        if self._names is None:
            self.store.erase_values(self._own(self._places.keys(self.store)))
            return
        format, path = self._places.formats[0], self._places.path
        hierarchy = () if path else format.hierarchy_documents()
        self.store.erase_values([*hierarchy, *format.document_keys(path)])
        below = [f"{path}/{name}" if path else name for name in self._names]
        self.store.erase_values([key for each in below for key in format.document_keys(each)])
        prefixes = [prefix for each in below for prefix in format.prefixes(each)]
        keys = {key for prefix in prefixes for key in self.store.list_prefix(prefix)}
        self.store.erase_values(self._own(keys))

    def _own(self, keys: set[str]) -> set[str]:
        """What is part of the hierarchy among keys where there was nothing before."""
        formats = self._places.formats
        return {*documents_among(formats, keys), *chunks_of(formats[0], self._arrays, keys)}

    def whereabouts(self) -> str:
        return f"'/{self._places.path}' of {self.store}"
