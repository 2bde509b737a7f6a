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
from typing import Any

from xzarr3.errors import NodeExistsError, NodeTypeError, ReadOnlyError, StoreError
from xzarr3.formats import Format, documents
from xzarr3.formats.base import node_prefix
from xzarr3.hierarchy import open_group
from xzarr3.metadata import NodeMetadata
from xzarr3.nodes import (
    ancestors,
    document_lock,
    drop_from_consolidated,
    make_groups_above,
    read_document,
    read_held,
)
from xzarr3.staging import InPlace, Places, check_no_foreign, is_occupied, stage
from xzarr3.stores import LocalStore, Store


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
    overwrite : bool
        Replace what is there; otherwise there must be nothing.
    how : str
        What a user says to replace what is there, for messages.

    Raises
    ------
    NodeExistsError
        If there is something, or what is there is not all Zarr.
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
        *,
        overwrite: bool,
        how: str,
    ) -> None:
        if store.read_only:
            raise ReadOnlyError(f"cannot write to {store}, which is read-only")
        self._target = store
        self._format = format
        self._path = path
        self._overwrite = overwrite
        self._how = how
        self._places = Places.of(store, format, path)
        self._check()
        self._staging = stage(store, self._places, names)

    @property
    def store(self) -> Store:
        """What takes the values and documents, under the keys that they will have."""
        return self._staging.store

    def _check(self) -> None:
        """Refuse whatever is in the way; nothing is written by this."""
        store, path = self._target, self._path
        if isinstance(store, LocalStore):
            for folder in self._places.folders:
                _check_folders(store, folder, path)
        for above in ancestors(path):
            held = read_held(store, self._format, above)
            if held is not None and self._format.is_array(held):
                raise NodeTypeError(
                    f"cannot write to '/{path}' in {store}: '/{above}' is an array, not a group"
                )
        if self._overwrite:
            check_no_foreign(store, self._places)
        elif is_occupied(store, self._places):
            raise NodeExistsError(
                f"'/{path}' in {store} is not empty; accepted: another place, or {self._how} to replace what "
                "is there"
            )

    def check_again(self) -> None:
        """Refuse what came into the way since; not where values are written in place, and lie there."""
        if not isinstance(self._staging, InPlace):
            self._check()

    @contextmanager
    def discarding(self) -> Iterator[None]:
        """Remove what was written if the block fails."""
        try:
            yield
        except BaseException as error:
            self.discard(error)
            raise

    def discard(self, error: BaseException, *, close: bool = False) -> None:
        """Remove what was written before ``error``; with ``close``, for good."""
        try:
            if close:
                self._staging.close()
            self._staging.discard()
        except StoreError as another:
            error.add_note(f"chunks that were written already could not be removed: {another}")

    def put(self, nodes: Mapping[str, NodeMetadata], *, consolidate: bool = False) -> None:
        """Put what was written in its place, and into the documents above; all of it or nothing.

        Parameters
        ----------
        nodes : mapping of str to metadata
            What was written, by path relative to the node, which itself has the empty path.
        consolidate : bool
            Make the consolidated metadata of the root anew.
        """
        with self.discarding(), document_lock:
            before = {key: _copy_of(self._target, key) for key in self._keys_above()}
            try:
                for format in self._places.formats:  # First, so that no copy outlives what it says.
                    drop_from_consolidated(self._target, format, self._path)
                self._staging.swap()
                if self._path:
                    self._finish_above(nodes, consolidate)
            except BaseException as error:
                self._undo(before, error)
                raise
        try:
            self._staging.clean()
        except StoreError as error:
            warnings.warn(
                f"what was written to '/{self._path}' in {self._target} is in its place, but not all of what "
                f"it replaced could be removed: {error}",
                stacklevel=4,
            )

    def _undo(self, above: Mapping[str, bytes | None], error: BaseException) -> None:
        """Put back what was there before ``error``, or tell in a note what could not be."""
        note = f"what was there could not be put back; old and new data are in {self._staging.whereabouts()}"
        try:
            self._staging.put_back()
            note = (
                f"what was there is in its place, but documents above '/{self._path}' are not; their "
                "consolidated metadata can be made anew with consolidate_metadata()"
            )
            for key, value in above.items():
                if value is None:
                    self._target.erase(key)
                elif self._target.get(key) != value:
                    self._target.set(key, value)
        except BaseException as another:
            error.add_note(f"{note}: {another}")
            raise error from another

    def _keys_above(self) -> Iterator[str]:
        """The keys of documents above that putting the node in its place may change."""
        if self._path:
            yield from self._format.hierarchy_documents()
        for above in ancestors(self._path):
            for format in self._places.formats:
                yield from format.document_keys(above)

    def _finish_above(self, nodes: Mapping[str, NodeMetadata], consolidate: bool) -> None:
        """Make the groups above that are missing, and bring the copies that others hold up to date."""
        store, format, path = self._target, self._format, self._path
        make_groups_above(store, format, path)
        for above in ancestors(path):
            key = format.consolidated_key(above)
            if key is None or (consolidate and not above):
                continue  # The root's is made anew.
            found = read_document(store, key, above)
            if found is None:
                continue
            document, relative = found, path[len(node_prefix(above)) :]
            for name, meta in nodes.items():
                there = f"{relative}/{name}" if name else relative
                document = format.update_consolidated(document, there, meta) or document
            if document is not found:
                store.set(key, documents.encode(document, above))
        if consolidate:
            options: Any = {"zarr_format": format.zarr_format, "use_consolidated": False}
            open_group(store, mode="r+", **options).consolidate()


def _copy_of(store: Store, key: str) -> bytes | None:
    value = store.get(key)
    return None if value is None else bytes(value)


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
