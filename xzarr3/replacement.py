"""Putting a node, with all that is below it, into its place in a store: all of it or nothing.

Values and documents are first written to where :mod:`xzarr3.staging` keeps them. They then take the place of
what is there, and the documents of the groups above are brought up to date. If something fails, what was
there is put back.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from xzarr3 import changes, looks
from xzarr3._types import Buffer
from xzarr3.carrying import Kept
from xzarr3.errors import NodeExistsError, ReadOnlyError, StoreError, printable
from xzarr3.folding import check_names
from xzarr3.formats import Format, documents
from xzarr3.formats.base import Held, node_prefix
from xzarr3.hierarchy import open_group
from xzarr3.lookup import Look, held_below, read_documents, read_metadata
from xzarr3.metadata import ArrayMetadata, GroupMetadata, NodeMetadata
from xzarr3.node_documents import Journal, drop_from_consolidated
from xzarr3.node_making import groups_missing, make_groups_above
from xzarr3.nodes import ancestors, document_lock
from xzarr3.resuming import Plan, check_resumable
from xzarr3.staging import Places, Room, goes_on_in_place, is_occupied, kept_at, recover, stage
from xzarr3.stores import Store
from xzarr3.stores.base import UNCHANGED, Unchanged


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
    plan : Plan, optional
        What is written, if it is to be possible to take that up again where it was cut off.
    is_leased : bool
        The caller has the lease of the place, from before :meth:`put` to after it.

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
        plan: Plan | None = None,
        is_leased: bool = False,
    ) -> None:
        if store.read_only:
            raise ReadOnlyError(f"cannot write to {store}, which is read-only")
        names = None if names is None else list(names)
        self._target = store
        self._format = format
        self._path = path
        self._overwrite = overwrite
        self._how = how
        below = [node_prefix(path) + name for name in names or ()]
        check_names(store, format, path, [*below, *arrays])
        self._places = Places.of(store, format, path)
        self._arrays = dict(arrays)
        self._plan = plan
        self._begun = False
        if plan is not None:
            check_resumable(store)
            recover(store, self._places, plan)
        kept = self._check()
        self._staging = stage(
            store,
            self._places,
            names,
            self._arrays,
            overwrite=overwrite,
            plan=plan,
            is_leased=is_leased,
            kept=kept,
        )
        if store.concurrency > 1:
            looks.in_the_making(self.store, map(format.array_key, self._arrays))

    @property
    def store(self) -> Store:
        """What takes the values and documents, under the keys that they will have."""
        return self._staging.store

    def _check(self) -> Kept:
        """Refuse whatever is in the way, and find what stays; nothing is written by this."""
        store, path = self._target, self._path
        if store.folder is not None:
            for folder in self._places.folders:
                _check_folders(store, folder, path)
        groups_missing(Look(store), self._format, path)
        if self._overwrite or goes_on_in_place(store, self._places, self._plan):
            return kept_at(store, self._places, self._arrays)
        if is_occupied(store, self._places):
            raise NodeExistsError(
                f"'/{path}' in {store} is not empty; accepted: another place, or {self._how} to replace what "
                "is there"
            )
        return Kept()

    def begin(self) -> Room:
        """Make room for values, before the first one is stored; gives what :meth:`enter` takes.

        Raises
        ------
        NodeExistsError
            If something has come into the way since the replacement was planned.
        """
        if self._plan is None:
            with self.discarding():
                self._staging.begin()
            return self._staging.room
        try:
            self._staging.begin()
        except BaseException as error:
            try:
                self._staging.leave()  # It may have been reserved before.
            except StoreError as another:
                error.add_note(f"others may have to wait for minutes, as the place is reserved: {another}")
            raise
        self._begun = True
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
        if self._plan is not None:
            self._leave(error)
            return
        try:
            if close:
                self._staging.close()
            self._staging.discard()
        except StoreError as another:
            error.add_note(f"chunks that were written already could not be removed: {another}")

    def _leave(self, error: BaseException) -> None:
        if not self._begun:
            return
        try:
            self._staging.leave()
        except StoreError as another:
            error.add_note(f"others may have to wait for minutes, as the place is still reserved: {another}")
        error.add_note(
            f"what was stored for '/{self._path}' in {self._target} is kept: the same call with resume=True "
            "writes what is left; a call without it begins anew"
        )

    def put(self, nodes: Mapping[str, NodeMetadata], *, consolidate: bool = False) -> None:
        """Put what was written in its place, and into the documents above; all of it or nothing.

        Parameters
        ----------
        nodes : mapping of str to metadata
            What was written, by path relative to the node, which itself has the empty path.
        consolidate : bool
            Make the consolidated metadata of the root anew.
        """
        with self.discarding(), document_lock(self._target):
            before = self._documents_above()
            journal: Journal = {}
            try:
                for format in self._places.formats:  # First, so that no copy outlives what it says.
                    drop_from_consolidated(self._target, format, self._path, journal)
                self._staging.swap()
                prefix = node_prefix(self._path)
                changes.note_documents(self._target, [f"{prefix}{each}".rstrip("/") for each in nodes])
                if self._path:
                    self._finish_above(nodes, consolidate, journal)
            except BaseException as error:
                self._undo(before, journal, error)
                raise
        try:
            self._staging.clean()
        except StoreError as error:
            warnings.warn(
                f"what was written to '/{printable(self._path)}' in {self._target} is in its place, but not "
                f"all could be removed of what it replaced, or needed until then: {error}",
                stacklevel=4,
            )

    def _undo(self, before: Mapping[str, bytes | None], journal: Journal, error: BaseException) -> None:
        """Put back what was there before ``error``, or tell in a note what could not be."""
        note = f"what was there could not be put back; old and new data are in {self._staging.whereabouts()}"
        try:
            self._staging.put_back()
            note = (
                f"what was there is in its place, but documents above '/{self._path}' are not; their "
                "consolidated metadata can be made anew with consolidate_metadata()"
            )
            for key, value in before.items():
                if key in journal:
                    self._undo_document(key, value, journal[key])
        except BaseException as another:
            error.add_note(f"{note}: {another}")
            raise error from another

    def _undo_document(self, key: str, before: bytes | None, ours: bytes) -> None:
        """Put a document back, or what was said in it of the node, if others have changed it since."""

        def change(stored: Buffer | None) -> list[Buffer] | Unchanged | None:
            if stored is None or stored == before:
                return UNCHANGED
            if stored == ours:
                return None if before is None else [before]
            if before is None:
                return UNCHANGED
            changed = self._put_back_copies(key, stored)
            return UNCHANGED if changed is None else [changed]

        if before is None and not self._target.erases_conditionally:
            if self._target.get(key) == ours:
                self._target.erase(key)
            return
        self._target.update(key, change)

    def _put_back_copies(self, key: str, stored: Buffer) -> bytes | None:
        """A consolidated document as others left it, with the node as it is stored and what is below it."""
        for above in ancestors(self._path):
            for format in self._places.formats:
                if key != format.consolidated_key(above):
                    continue
                document = documents.decode(stored, above, key.rpartition("/")[2])
                relative = self._path[len(node_prefix(above)) :]
                changed = format.update_consolidated(document, relative, None)
                meta = read_metadata(self._target, format, self._path, consolidated=False, again=True)
                if changed is None or meta is None:
                    continue
                found: dict[str, Held] = {}
                if isinstance(meta, GroupMetadata):
                    found = held_below(self._target, format, self._path)
                for below, each in {"": meta, **found}.items():
                    place = f"{self._path}/{below}" if below else self._path
                    said = each if not below else format.parse_again(each, place)
                    there = f"{relative}/{below}" if below else relative
                    changed = format.update_consolidated(changed, there, said) or changed
                return documents.encode(changed, above)
        return None

    def _documents_above(self) -> dict[str, bytes | None]:
        """The documents above that putting the node in its place may change, by key."""
        keys = [*self._format.hierarchy_documents()] if self._path else []
        for above in ancestors(self._path):
            for format in self._places.formats:
                keys.extend(format.document_keys(above))
        keys = list(dict.fromkeys(keys))
        values = self._target.get_values(keys)
        return {key: None if value is None else bytes(value) for key, value in zip(keys, values, strict=True)}

    def _finish_above(self, nodes: Mapping[str, NodeMetadata], consolidate: bool, journal: Journal) -> None:
        """Make the groups above that are missing, and bring the copies that others hold up to date."""
        store, format, path = self._target, self._format, self._path
        made = make_groups_above(store, format, path, None, journal)
        metas: dict[str, NodeMetadata] = {
            each: GroupMetadata(zarr_format=format.zarr_format) for each in made
        }
        metas.update((f"{path}/{name}" if name else path, meta) for name, meta in nodes.items())
        holders = {
            str(format.consolidated_key(above)): above
            for above in ancestors(path)
            if format.consolidated_key(above) is not None
            and not (consolidate and not above)  # The root's is made anew.
        }
        for key, document in zip(holders, read_documents(store, [*holders]), strict=True):
            above = holders[key]
            prefix = node_prefix(above)
            below = {each[len(prefix) :]: meta for each, meta in metas.items() if each.startswith(prefix)}
            if document is not None and format.update_consolidated(document, *next(iter(below.items()))):
                store.update(key, partial(_with_nodes, format, above, key, below, journal))
        if consolidate:
            options: Any = {"zarr_format": format.zarr_format, "use_consolidated": False}
            open_group(store, mode="r+", **options).consolidate()


def _with_nodes(
    format: Format,
    holder: str,
    key: str,
    below: Mapping[str, NodeMetadata],
    journal: Journal,
    stored: Buffer | None,
) -> list[Buffer] | Unchanged:
    """A consolidated document that holds these nodes."""
    if stored is None:
        return UNCHANGED
    document = documents.decode(stored, holder, key.rpartition("/")[2])
    for relative, meta in below.items():
        document = format.update_consolidated(document, relative, meta) or document
    journal[key] = documents.encode(document, holder)
    return [journal[key]]


def _check_folders(store: Store, folder: str, path: str) -> None:
    """See to it that whatever there is on the way to a directory of the node is one."""
    place = os.path.join(str(store.folder), folder) if folder else str(store.folder)
    while not os.path.lexists(place) and os.path.dirname(place) != place:
        place = os.path.dirname(place)
    if os.path.exists(place) and not os.path.isdir(place):
        raise StoreError(
            f"cannot write to '/{path}' in {store}: '{place}' is a file, not a directory; accepted: another "
            "place, or removing the file by hand"
        )
