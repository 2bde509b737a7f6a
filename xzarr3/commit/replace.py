"""Creates or replaces a node with all nodes below it, as one change to its place in the store.

A reader finds the old node, the new one, or an error that says that a write is under way.

Values and documents are first written beside the old node: in a directory by
:mod:`xzarr3.commit.replace_directory`, in other stores by :mod:`xzarr3.commit.swap`. They are written in
place where there is no old node, or where the user can compute it again. Then they take the place of the old
node, and the documents of the groups above are brought up to date.

This module chooses the way of writing. It knows nothing of codecs or of how values are computed.
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
from xzarr3.commit.recover import finish_near, finish_swap, recover_swaps, take
from xzarr3.commit.replace_directory import Directories
from xzarr3.commit.resume import Resumption
from xzarr3.commit.stage import (
    BEGUN,
    NodeKeys,
    Staging,
    foreign_keys,
    is_occupied,
    lease_at,
    occupied,
    taken_up,
    verified,
)
from xzarr3.commit.staged import Beside
from xzarr3.commit.swap import finish_above, full_paths
from xzarr3.errors import (
    NodeExistsError,
    NodeNotFoundError,
    ReadOnlyError,
    StoreCapabilityError,
    StoreError,
    levels_to_caller,
    printable,
    short_traceback,
)
from xzarr3.formats import Format
from xzarr3.formats.base import node_prefix
from xzarr3.model.metadata import ArrayMetadata, NodeMetadata
from xzarr3.nodes import changes, revalidation
from xzarr3.nodes.absent import what_is_there
from xzarr3.nodes.case_folding import check_names
from xzarr3.nodes.consolidated import drop_from_consolidated
from xzarr3.nodes.create import groups_missing
from xzarr3.nodes.erase import erase_stages, keys_at
from xzarr3.nodes.find import DocumentView
from xzarr3.nodes.foreign_keys import chunks_of, documents_among
from xzarr3.nodes.node import document_lock
from xzarr3.parallel import parallel_map
from xzarr3.stores import LocalStore, Store, StoreLike
from xzarr3.stores.open import locate, was_made


class Replacement:
    """A write that creates or replaces one node.

    Parameters
    ----------
    store : Store
    format : Format
        Format in which the node is stored.
    path : str
        Path of the node.
    names : iterable of str, optional
        Names of the nodes directly below that are written; None for an array, which has chunks instead.
    arrays : mapping of str to ArrayMetadata
        The arrays that are written, by path.
    overwrite : bool
        Replace the existing node; without it, the place must be empty.
    how : str
        What a user passes to replace an existing node, for messages.
    resumed : Resumption, optional
        Identifies the write, if it can be resumed.
    lease : Lease, optional
        The lease of the place, if the caller holds it from before :meth:`put` to after it.
    in_place : bool
        Erase the old node before the first value is stored, in a store that cannot rename.
    is_alone : bool
        Bring the documents above up to date. Without it, the caller does so once, after several writes.

    Raises
    ------
    NodeExistsError
        If the place is not empty and ``overwrite`` is not set, or if a file may be a chunk of an array whose
        documents cannot be read. Other files are kept.
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
            raise ReadOnlyError(f"{store} is read-only")
        names = None if names is None else list(names)
        self._target = store
        self._format = format
        self._path = path
        self._overwrite = overwrite
        self._how = how
        if store.folder is not None:
            finish_near(store, path)
        below = [node_prefix(path) + name for name in names or ()]
        check_names(store, format, path, [*below, *arrays])
        self._places = NodeKeys.of(store, format, path)
        self._arrays = dict(arrays)
        self._resumed = resumed
        self._staging = self._chosen(names, lease, in_place)
        self._staging.is_alone = is_alone
        if store.concurrency > 1:
            revalidation.in_the_making(self.store, map(format.array_key, self._arrays))

    @property
    def store(self) -> Store:
        """Takes the values and documents, under their final keys."""
        return self._staging.store

    @property
    def replaces(self) -> bool:
        """Whether readers may have cached equal documents that no inode tells from the new ones.

        New documents are then marked, so that readers can tell. A resumed write in place needs no mark: it is
        told from other writes by the content of its documents.
        """
        staging = self._staging
        if isinstance(staging, InPlace):
            return self._resumed is None and staging.replaces
        return isinstance(staging, Beside)

    def _chosen(self, names: list[str] | None, lease: Lease | None, in_place: bool) -> Staging:
        """Choose the way of writing for this store and place; raises if something is in the way."""
        store, places, resumed, arrays = self._target, self._places, self._resumed, self._arrays
        key = lease_at(store, places).key
        if resumed is not None:
            resumed.find(key)
        if store.folder is not None:
            local = cast("LocalStore", store)
            for folder in places.folders:
                _check_folders(local, folder, self._path)
            groups_missing(DocumentView(store), self._format, self._path)
            self._check_room()
            return Directories(local, places, arrays, overwrite=self._overwrite, resumed=resumed)
        groups_missing(DocumentView(store), self._format, self._path)
        in_place = in_place or store.traits.visible == "at commit"
        goes_on = resumed is not None and resumed.goes_on_in_place(places)
        if goes_on or not self._overwrite:
            if not goes_on:
                self._check_room()
            return InPlace(store, places, names, arrays, resumed=resumed, lease=lease)
        there = keys_at(store, places.formats, self._path)
        if lease is None and key in there:
            finish_swap(store, key, self._path)  # the swap has ended now, finished here or by another writer
            self._places = places = NodeKeys.of(store, self._format, self._path)
            there = keys_at(store, places.formats, self._path)
        there = places.own(there)
        seen = there, foreign_keys(store, places, arrays, keys=there)
        if there and not store.erasable:
            raise StoreCapabilityError(
                f"{store} cannot erase, so '/{self._path}' cannot be replaced; write to another path"
            )
        if in_place or (seen[1] == there and not (resumed is not None and resumed.is_staged)):
            return InPlace(store, places, names, arrays, resumed=resumed, lease=lease, seen=seen)
        return Beside(store, places, arrays, resumed=resumed, lease=lease, seen=seen)

    def _check_room(self) -> None:
        if not self._overwrite and is_occupied(self._target, self._places):
            check_complete(self._target, self._path, f"node '/{self._path}'")
            raise NodeExistsError(
                f"'/{self._path}' in {self._target} is not empty; write to another path, or pass "
                f"{self._how} to replace what is stored there"
            )

    def begin(self) -> None:
        """Prepare the place, as :meth:`Staging.begin` does."""
        with self.discarding():
            self._staging.begin()
        if self._resumed is not None:
            self._resumed.has_begun = True

    def check_again(self) -> None:
        """Raise if another writer has written to the place since; called before documents are stored."""
        groups_missing(DocumentView(self._target), self._format, self._path)
        self._staging.check()

    def documents_first(self, write: Callable[[], None]) -> None:
        """Store the documents before the values, in a store that takes no value before."""
        if self._target.traits.visible == "at commit":
            with self.discarding():
                write()

    def documents_last(self, write: Callable[[], None]) -> None:
        """Store the documents after the values, unless they are stored already."""
        if self._target.traits.visible != "at commit":
            self.check_again()
            write()

    @contextmanager
    def discarding(self) -> Iterator[None]:
        """Remove the written values if the block raises."""
        try:
            yield
        except BaseException as error:
            self.discard(error)
            raise

    def discard(self, error: BaseException) -> None:
        """Remove the values written before ``error``; those of a resumable write stay."""
        if self._resumed is not None:
            self._resumed.leave(error)
            return
        try:
            self._staging.discard()
        except StoreError as another:
            error.add_note(f"chunks that were written already could not be removed: {another}")
        if (
            self._target.traits.visible == "at commit"
            and isinstance(self._staging, InPlace)
            and self._staging.replaces
        ):
            error.add_note(
                f"the old node '/{self._path}' is erased in {self._target}; discard the changes of the "
                "transaction, or write again, before you commit it"
            )

    def put(self, nodes: Mapping[str, NodeMetadata], *, consolidate: bool = False) -> None:
        """Put the written node in its place, and its documents into the consolidated metadata above.

        Parameters
        ----------
        nodes : mapping of str to metadata
            Metadata of the written nodes, by path relative to this node, which has the empty path.
        consolidate : bool
            Rewrite the consolidated metadata of the root.
        """
        with self.discarding(), document_lock(self._target):
            self._staging.swap(nodes, consolidate)
        try:
            self._staging.clean()
        except StoreError as error:
            warnings.warn(
                f"'/{printable(self._path)}' in {self._target} was written, but some values that it "
                f"replaced, or that it needed while writing, could not be removed: {error}",
                stacklevel=levels_to_caller(),
            )


class InPlace(Staging):
    """Writes in place: where there is no old node, or the old one may be erased first.

    The last document makes the new node visible.

    The place is reserved before the first value is stored. Of several writers that find it empty, one gets
    it; the others get an error. No writer erases anything after another one has taken the place.

    Parameters
    ----------
    store : Store
    places : Places
    names : list of str, optional
        Names of the nodes directly below; None for an array.
    arrays : mapping of str to ArrayMetadata
        The arrays that are written, by path.
    resumed, lease
        As for :class:`~xzarr3.commit.staged.Staged`.
    seen : (set of str, set of str), optional
        The keys found at the place, and those among them that stay; the others are erased first.
    """

    def __init__(
        self,
        store: Store,
        places: NodeKeys,
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
        self._is_mixed = False  # mixed with keys of a writer that takes no lease

    @property
    def replaces(self) -> bool:
        """Whether existing keys are to be erased."""
        return self._seen is not None and not self._seen[0] <= self._seen[1]

    def begin(self) -> None:
        self._is_mixed = self._whole = False
        if self._lease is None:
            self._make_room(DocumentView(self.store))
            return
        goes_on = take(self._lease, self.store, self._places, self._resumed, staged=False)
        look = DocumentView(self.store)
        try:
            if not goes_on:
                self._make_room(look)
            if self._lease.said.state == ERASING or (
                self.replaces and self._resumed is None
            ):  # from now on, values are stored
                self._lease.say(self._places.path, IN_PLACE)
        except BaseException:
            self._lease.release()
            raise
        # after the old node is erased, so a resumed write never takes old values for its own
        if self._resumed is not None:
            self.store.set(f"{self._resumed.top}{BEGUN}", now(staged=False, lease=self._lease.key))

    def _make_room(self, look: DocumentView) -> None:
        """Erase the old node if it is to be replaced; otherwise raise if the place is not empty."""
        if self._seen is None:
            # no longer empty if another writer has finished since
            if self._lease is not None and is_occupied(look, self._places):
                raise occupied(self.store, self._places)
            return
        places, store = self._places, self.store
        there = places.keys(store)
        known, kept = self._seen
        if not there <= known:
            kept = foreign_keys(store, places, self._arrays, keys=there)
            # The plan found nothing to replace, so nothing may be erased before all values are stored.
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
        found = parallel_map(lambda ask: ask(), there, self.store.concurrency)
        if any(found):
            self._is_mixed = True
            error = occupied(self.store, self._places)
            error.add_note("chunks that were written are not removed, as they may be of either writer")
            raise error

    def _is_there(self, key: str) -> bool:
        """Whether another writer has stored a document."""
        if self._resumed is None or key not in self._resumed.documents:
            return self.store.exists(key)
        stored = self.store.get(key)
        return stored is not None and bytes(stored) != self._resumed.documents[key]

    def swap(self, nodes: Mapping[str, NodeMetadata], consolidate: bool) -> None:
        store, format, path = self.store, self._places.formats[0], self._places.path
        for each in self._places.formats:  # first, so that no consolidated copy outlives its document
            drop_from_consolidated(store, each, path)
        metas = full_paths(path, nodes)
        changes.note_documents(store, list(metas))
        try:
            if self.is_alone:
                finish_above(store, format, path, list(metas), metas, consolidate)
        except BaseException:  # the caller removes the new node: there was no old one
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
        try:
            # Without the lease, the values belong to another writer, or none were written.
            is_ours = self._lease is None or self._lease.holds()
            if is_ours and not self._whole and not self._is_mixed:
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
        """Keys that are part of the hierarchy, in a place that was empty before."""
        formats = self._places.formats
        return {*documents_among(formats, keys), *chunks_of(formats[0], self._arrays, keys)}


def _check_folders(store: LocalStore, folder: str, path: str) -> None:
    """Raise if something on the path to a directory of the node is not a directory."""
    place = os.path.join(store.root, folder) if folder else store.root
    while not os.path.lexists(place) and os.path.dirname(place) != place:
        place = os.path.dirname(place)
    if os.path.exists(place) and not os.path.isdir(place):
        raise StoreError(
            f"cannot write to '/{path}' in {store}: '{place}' is a file, not a directory; write to another "
            "path, or remove the file"
        )


def _is_missing(store: Store) -> bool:
    if store.folder is not None:
        return not os.path.isdir(store.folder)
    return store.listable and next(iter(store.list_prefix("")), None) is None


@short_traceback
def recover(store: StoreLike, *, storage_options: Mapping[str, Any] | None = None) -> list[str]:
    """Finish swaps whose writers were killed, and remove leftovers of other killed writes.

    In an object store, a write with ``mode="w"`` ends in a short swap: the old node has left and the new one
    is not whole. A reader that opens the node then gets an :class:`IncompleteWriteError`. By then, everything
    that is needed to finish the swap is stored. The next write to the same place finishes it as well.

    Parameters
    ----------
    store : path, URL or Store
    storage_options : mapping, optional
        Further options of the store; see :func:`xzarr3.open_store`.

    Returns
    -------
    list of str
        Paths of the nodes whose swaps were finished.

    Raises
    ------
    NodeNotFoundError
        If nothing is stored at a path or URL.
    NodeExistsError
        If a writer may still be alive: leases are watched for up to a minute.
    StoreError
        If the store cannot be read or written.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.recover(xzarr3.MemoryStore())
    []
    """
    opened, _ = locate(store, storage_options, mode="r+")
    made = was_made(opened, store)
    with opened if made else contextlib.nullcontext():
        if made and _is_missing(opened):
            raise NodeNotFoundError(
                f"nothing is stored in {opened}, so there is nothing to recover; correct the path or URL: "
                f"{what_is_there(opened, '')}"
            )
        return recover_swaps(opened)
