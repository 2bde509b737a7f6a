"""Putting a node, with all that is below it, into its place in a store: the old one or the new one is there.

Values and documents are first written beside what is there: in a directory see
:mod:`xzarr3.commit.replace_directory`, in other stores :mod:`xzarr3.commit.swap`. They are written in place
where there is nothing, or where the user can compute it again. Then they take the place of what is there, and
the documents of the groups above are brought up to date.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

from xzarr3.commit.lease import ERASING, IN_PLACE, Lease, check_complete, keeps_leases
from xzarr3.commit.leftovers import now
from xzarr3.commit.replace_directory import Directories
from xzarr3.commit.resume import Resumption, forget_settings
from xzarr3.commit.stage import (
    BEGUN,
    Places,
    Room,
    Staging,
    foreign_keys,
    gone,
    is_occupied,
    lease_at,
    occupied,
    staged_prefixes,
    taken_up,
    verified,
)
from xzarr3.commit.swap import (
    Beside,
    finish_above,
    finish_near,
    finish_swap,
    full_paths,
    recover_swaps,
    take,
)
from xzarr3.errors import (
    NodeExistsError,
    NodeNotFoundError,
    ReadOnlyError,
    StoreCapabilityError,
    StoreError,
    printable,
)
from xzarr3.formats import Format
from xzarr3.formats.base import node_prefix
from xzarr3.model.metadata import ArrayMetadata, NodeMetadata
from xzarr3.nodes import changes, revalidation
from xzarr3.nodes.create import groups_missing
from xzarr3.nodes.documents import drop_from_consolidated
from xzarr3.nodes.erase import chunks_of, documents_among, erase_stages, keys_at
from xzarr3.nodes.find import Look
from xzarr3.nodes.folding import check_names
from xzarr3.nodes.node import document_lock
from xzarr3.parallel import spread
from xzarr3.stores import LocalStore, Store, StoreLike, open_store


class Replacement:
    """A node on its way to its place in a store.

    Parameters
    ----------
    store : Store
    format : Format
        How it is stored.
    path : str
        Path of the node.
    names : iterable of str, optional
        Names of the nodes directly below it that are written; None for an array, which has chunks.
    arrays : mapping of str to ArrayMetadata
        The arrays that are written, by path.
    overwrite : bool
        Replace what is there; otherwise there must be nothing.
    how : str
        What a user says to replace what is there, for messages.
    resumed : Resumption, optional
        What tells the write from others, if it can be taken up again where it was cut off.
    lease : Lease, optional
        The lease of the place, which the caller has from before :meth:`put` to after it.
    in_place : bool
        Erase what is there before the first value is stored, where nothing can be renamed.
    is_alone : bool
        Bring the documents above up to date; otherwise the caller does so, for others that follow, too.

    Raises
    ------
    NodeExistsError
        If there is something and ``overwrite`` is not set, or if something is there that may be chunks of
        an array whose documents cannot be read. Other files are kept.
    NodeTypeError
        If there is an array above.
    ReadOnlyError, StoreError
        If the store cannot be written.
    """

    def __init__(
        self,
        store: Store,
        format: Format,
        path: str,
        names: Iterable[str] | None,
        arrays: Mapping[str, ArrayMetadata],
        *,
        overwrite: bool,
        how: str,
        resumed: Resumption | None = None,
        lease: Lease | None = None,
        in_place: bool = False,
        is_alone: bool = True,
    ) -> None:
        if store.read_only:
            raise ReadOnlyError(f"cannot write to {store}, which is read-only")
        names = None if names is None else list(names)
        self._target = store
        self._format = format
        self._path = path
        self._overwrite = overwrite
        self._how = how
        if store.renames_trees:
            finish_near(store, path)
        below = [node_prefix(path) + name for name in names or ()]
        check_names(store, format, path, [*below, *arrays])
        self._places = Places.of(store, format, path)
        self._arrays = dict(arrays)
        self._resumed = resumed
        self._staging = self._chosen(names, lease, in_place)
        self._staging.is_alone = is_alone
        if store.concurrency > 1:
            revalidation.in_the_making(self.store, map(format.array_key, self._arrays))

    @property
    def store(self) -> Store:
        """What takes the values and documents, under the keys that they will have."""
        return self._staging.store

    @property
    def replaces(self) -> bool:
        """Whether readers may know documents that are equal to those that come, and have no other inode.

        Those of a write that is taken up again in place are told by what they say.
        """
        staging = self._staging
        if isinstance(staging, InPlace):
            return self._resumed is None and staging.replaces
        return isinstance(staging, Beside)

    def _chosen(self, names: list[str] | None, lease: Lease | None, in_place: bool) -> Staging:
        """The way to write that suits the store and what is there; whatever is in the way is refused."""
        store, places, resumed, arrays = self._target, self._places, self._resumed, self._arrays
        key = lease_at(store, places).key
        if resumed is not None:
            resumed.find(key)
        if store.renames_trees:
            local = cast("LocalStore", store)
            for folder in places.folders:
                _check_folders(local, folder, self._path)
            groups_missing(Look(store), self._format, self._path)
            self._check_room()
            return Directories(local, places, arrays, overwrite=self._overwrite, resumed=resumed)
        groups_missing(Look(store), self._format, self._path)
        goes_on = resumed is not None and resumed.goes_on_in_place(places)
        if goes_on or not self._overwrite:
            if not goes_on:
                self._check_room()
            return InPlace(store, places, names, arrays, resumed=resumed, lease=lease)
        there = keys_at(store, places.formats, self._path)
        if lease is None and key in there:
            finish_swap(store, key, self._path)  # Whether here or by another writer, it has ended now.
            self._places = places = Places.of(store, self._format, self._path)
            there = keys_at(store, places.formats, self._path)
        there = places.own(there)
        seen = there, foreign_keys(store, places, arrays, keys=there)
        if there and not store.erasable:
            raise StoreCapabilityError(
                f"{store} cannot erase, so '/{self._path}' cannot be replaced; accepted: another place"
            )
        if in_place or (seen[1] == there and not (resumed is not None and resumed.is_staged)):
            return InPlace(store, places, names, arrays, resumed=resumed, lease=lease, seen=seen)
        return Beside(store, places, arrays, resumed=resumed, lease=lease, seen=seen)

    def _check_room(self) -> None:
        if not self._overwrite and is_occupied(self._target, self._places):
            check_complete(self._target, self._path, f"node '/{self._path}'")
            raise NodeExistsError(
                f"'/{self._path}' in {self._target} is not empty; accepted: another place, or {self._how} to "
                "replace what is there"
            )

    def begin(self) -> Room:
        """Make room for values, before the first one is stored; gives what :meth:`enter` takes.

        Raises
        ------
        NodeExistsError
            If something has come into the way since the replacement was planned.
        """
        with self.discarding():
            self._staging.begin()
        if self._resumed is not None:
            self._resumed.has_begun = True
        return self._staging.room

    def enter(self, room: Room) -> None:
        """End, or discard, what has begun there, maybe in another process."""
        self._staging.enter(room)

    def check_again(self) -> None:
        """Refuse what came into the way since, before documents are stored."""
        groups_missing(Look(self._target), self._format, self._path)
        self._staging.check()

    @contextmanager
    def discarding(self) -> Iterator[None]:
        """Remove what was written if the block fails."""
        try:
            yield
        except BaseException as error:
            self.discard(error)
            raise

    def discard(self, error: BaseException, *, close: bool = False) -> None:
        """Remove what was written before ``error``; with ``close``, for good.

        What can be taken up again stays.
        """
        if self._resumed is not None:
            self._resumed.leave(error)
            return
        try:
            if close:
                self._staging.close()
            self._staging.discard()
        except StoreError as another:
            error.add_note(f"chunks that were written already could not be removed: {another}")

    def put(self, nodes: Mapping[str, NodeMetadata], *, consolidate: bool = False) -> None:
        """Put what was written in its place, and into the documents above.

        Parameters
        ----------
        nodes : mapping of str to metadata
            What was written, by path relative to the node, which itself has the empty path.
        consolidate : bool
            Make the consolidated metadata of the root anew.
        """
        with self.discarding(), document_lock(self._target):
            self._staging.swap(nodes, consolidate)
        try:
            self._staging.clean()
        except StoreError as error:
            warnings.warn(
                f"what was written to '/{printable(self._path)}' in {self._target} is in its place, but not "
                f"all could be removed of what it replaced, or needed until then: {error}",
                stacklevel=4,
            )


class InPlace(Staging):
    """For where nothing is to be replaced, or may be away for long: the last document makes it seen.

    The place is reserved before the first value is stored, so that of several writers that find it empty one
    gets it; the others hear of that. Nothing is erased once another writer has taken the place.

    Parameters
    ----------
    store : Store
    places : Places
    names : list of str, optional
        Names of the nodes directly below; None for an array.
    arrays : mapping of str to ArrayMetadata
        The arrays that are written, by path.
    resumed : Resumption, optional
        What tells the write from others, if it can be taken up again.
    lease : Lease, optional
        The lease of the place, if the caller has it.
    seen : (set of str, set of str), optional
        The keys that were there before, and those that stay; the others are erased first.
    """

    def __init__(
        self,
        store: Store,
        places: Places,
        names: list[str] | None,
        arrays: Mapping[str, ArrayMetadata],
        *,
        resumed: Resumption | None = None,
        lease: Lease | None = None,
        seen: tuple[set[str], set[str]] | None = None,
    ) -> None:
        self.store = store
        self._places = places
        self._arrays = arrays
        self._names = names
        self._resumed = resumed
        self._seen = seen
        self._given = lease
        self._lease = None
        if resumed is not None:
            self._lease = lease_at(store, places, resumed.plan, resumed.top)
        elif lease is None and keeps_leases(store):
            self._lease = lease_at(store, places)
        self._whole = False
        self._is_mixed = False  # With what somebody has written who reserves nothing.

    @property
    def replaces(self) -> bool:
        """Whether something was there that is erased."""
        return self._seen is not None and not self._seen[0] <= self._seen[1]

    def begin(self) -> None:
        self._is_mixed = self._whole = False
        if self._lease is None:
            self._make_room(Look(self.store))
            return
        goes_on = take(self._lease, self.store, self._places, self._resumed, staged=False)
        self.room = Room(self._lease.term, self._lease, self._lease.owner)
        has_room = self._lease.said.state == IN_PLACE or not self.replaces
        if self._resumed is None and self._lease.continues and has_room:
            return
        look = Look(self.store)
        try:
            if not goes_on:
                self._make_room(look)
            if self._lease.said.state == ERASING or (
                self.replaces and self._resumed is None
            ):  # From now on values are stored, which stay.
                self._lease.say(self._places.path, IN_PLACE)
        except BaseException:
            self._lease.release()
            raise
        if self._resumed is not None:  # After what was there has gone: nothing of it is taken for its own.
            self.store.set(f"{self._resumed.top}{BEGUN}", now(staged=False, lease=self._lease.key))
        if not goes_on:
            # Of arrays that were there before, and may have had the same documents.
            forget_settings(self.store, staged_prefixes(look), self._places.path)

    def _make_room(self, look: Look) -> None:
        """Erase what is there if it is to be replaced; otherwise there must be nothing."""
        if self._seen is None:
            if self._lease is not None and is_occupied(look, self._places):  # By who has finished since.
                raise occupied(self.store, self._places)
            return
        places, store = self._places, self.store
        there = places.keys(store)
        known, kept = self._seen
        if not there <= known:
            kept = foreign_keys(store, places, self._arrays, keys=there)
            # It was planned where there was nothing, so that nothing would be replaced before all is stored.
            if known <= self._seen[1] and not there <= known | kept:
                raise occupied(store, places)
        coming = {key for path in self._arrays for key in places.formats[0].document_keys(path)}
        coming.update(places.formats[0].document_keys(places.path))
        leaving = there - (kept - taken_up(places.formats[0], kept, coming.__contains__))
        lease = self._lease or self._given
        if leaving and lease is not None and lease.is_held:
            lease.say(places.path, ERASING)
        for format in places.formats if leaving else ():
            drop_from_consolidated(store, format, places.path)
        erase_stages(store, places.stages(leaving))
        if lease is not None and lease is self._given and lease.said.state == ERASING:
            lease.say(places.path, IN_PLACE)

    def check(self) -> None:
        format, path = self._places.formats[0], self._places.path
        keys = format.defining_keys(path)
        there: list[Callable[[], bool]] = [partial(self._is_there, key) for key in keys]
        if self._lease is not None:
            there.append(partial(verified, self._lease, path))
            if not self.room.is_held:
                raise gone(self.store)
        found = spread(lambda ask: ask(), there, self.store.concurrency)
        if any(found):
            self._is_mixed = True
            error = occupied(self.store, self._places)
            error.add_note("chunks that were written are not removed, as they may be of either writer")
            raise error

    def _is_there(self, key: str) -> bool:
        """Whether somebody else has stored a document."""
        if self._resumed is None or key not in self._resumed.documents:
            return self.store.exists(key)
        stored = self.store.get(key)
        return stored is not None and bytes(stored) != self._resumed.documents[key]

    def swap(self, nodes: Mapping[str, NodeMetadata], consolidate: bool) -> None:
        store, format, path = self.store, self._places.formats[0], self._places.path
        for each in self._places.formats:  # First, so that no copy outlives what it says.
            drop_from_consolidated(store, each, path)
        metas = full_paths(path, nodes)
        changes.note_documents(store, list(metas))
        try:
            if self.is_alone:
                finish_above(store, format, path, list(metas), metas, consolidate)
        except BaseException:  # What was written is removed, as none was there before.
            for each in self._places.formats:
                drop_from_consolidated(store, each, path)
            raise
        self._whole = True

    def clean(self) -> None:
        if self._resumed is not None:
            self.store.erase_prefix(self._resumed.top)
        if self._lease is not None:
            self._lease.release()
        elif self._given is not None and self._given.is_held and self._given.said.state:
            self._given.say(self._places.path, "")

    def discard(self) -> None:
        if self._lease is not None:
            if not self.room.is_held:
                return
            try:
                self._lease.take_anew()  # Nobody begins the same again while it is removed.
            except BaseException:
                self._lease.release()
                raise
            if not self._lease.holds():  # Whatever is there is somebody else's, or nothing was begun.
                self._lease.release()
                return
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


def _check_folders(store: LocalStore, folder: str, path: str) -> None:
    """See to it that whatever there is on the way to a directory of the node is one."""
    place = os.path.join(store.root, folder) if folder else store.root
    while not os.path.lexists(place) and os.path.dirname(place) != place:
        place = os.path.dirname(place)
    if os.path.exists(place) and not os.path.isdir(place):
        raise StoreError(
            f"cannot write to '/{path}' in {store}: '{place}' is a file, not a directory; accepted: another "
            "place, or removing the file by hand"
        )


def _is_missing(store: Store) -> bool:
    if store.folder is not None:
        return not os.path.isdir(store.folder)
    return store.listable and next(iter(store.list_prefix("")), None) is None


def recover(store: StoreLike, *, storage_options: Mapping[str, Any] | None = None) -> list[str]:
    """Finish what writers were just putting in its place when they were killed; remove what others left.

    A write with ``mode="w"`` to an object store ends in a short swap, in which the old node has left and the
    new one is not whole; whoever opens it then gets an :class:`IncompleteWriteError`. All that is needed to
    finish the swap is stored by then. The next write to the same place finishes it as well.

    Parameters
    ----------
    store : path, URL or Store
    storage_options : mapping, optional
        What the store takes besides; see :func:`xzarr3.open_store`.

    Returns
    -------
    list of str
        Paths of the nodes that are in their place now.

    Raises
    ------
    NodeNotFoundError
        If nothing is stored at a path or URL.
    NodeExistsError
        If a writer is still at it, as far as can be told within a minute.
    StoreError
        If the store cannot be read or written.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.recover(xzarr3.MemoryStore())
    []
    """
    opened = open_store(store, storage_options, mode="r+")
    with contextlib.nullcontext() if opened is store else opened:
        if opened is not store and _is_missing(opened):
            raise NodeNotFoundError(
                f"nothing is stored in {opened}, so there is nothing to recover; accepted: the path or URL "
                "of a store that was written to"
            )
        return recover_swaps(opened)
