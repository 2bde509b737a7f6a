"""Writes the documents of nodes.

An existing document changes by compare-and-set, so that no change by another writer is lost. This module
knows nothing of chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

import msgspec

from xzarr3._types import Buffer
from xzarr3.errors import OutcomeUnknownError, StoreCapabilityError, StoreError
from xzarr3.formats import Format, documents
from xzarr3.model.metadata import ArrayMetadata, GroupMetadata, NodeMetadata
from xzarr3.nodes import seen
from xzarr3.nodes.find import DocumentView, _is_implied, document_values, held_of
from xzarr3.nodes.node import ancestors
from xzarr3.parallel import parallel_map
from xzarr3.stores import Store
from xzarr3.stores.base import update, versioned
from xzarr3.stores.values import UNCHANGED, Unchanged

DocumentChange: TypeAlias = "Callable[[Buffer | None], Sequence[Buffer] | Unchanged]"
Commit: TypeAlias = "Callable[[DocumentChange, Callable[[Buffer], bool]], None]"


def change_document(
    store: Store,
    format: Format,
    path: str,
    key: str,
    change: Callable[[NodeMetadata], NodeMetadata],
    *,
    commit: Commit | None = None,
    before: Before | None = None,
) -> NodeMetadata:
    """Change one document of a node without losing changes by other writers.

    Parameters
    ----------
    store : Store
    format : Format
    path : str
    key : str
        Key of the document.
    change : callable
        Takes the stored metadata and returns the changed ones; called again if another writer was faster.
    commit : callable, optional
        Stores the changed document, by default :func:`xzarr3.stores.base.update`. Takes the change and a
        function that says whether a stored document has the new shape.
    before : Before, optional
        The document as read before; the change is tried on it first.

    Returns
    -------
    ArrayMetadata or GroupMetadata
        The metadata stored now. Consolidated copies are not updated.

    Raises
    ------
    ConflictError
        If other writers kept changing the document.
    OutcomeUnknownError
        If it is unknown whether the length was changed.
    StoreError
        If the node is gone.
    """
    others = (
        []
        if format.keys("").one_document
        else [other for other in format.keys(path).to_read(consolidated=False) if other != key]
    )
    beside = dict(zip(others, document_values(store, others), strict=True))
    changed: list[NodeMetadata] = []
    shape_said: list[object] = [None]

    def changed_document(stored: Buffer | None) -> list[Buffer] | Unchanged:
        held = held_of(format, path, {**beside, key: stored})
        if stored is None and key in format.keys(path).defining:
            held = None
        if held is not None:
            meta = change(format.parse(held, path))
        elif _is_implied(store, format, path):
            meta = change(GroupMetadata(zarr_format=format.zarr_format))
        else:
            raise gone(store, path)
        changed[:] = [meta]
        consolidated = meta.consolidated if isinstance(meta, GroupMetadata) else None
        document = format.documents(meta, path, consolidated).get(key)
        if document is None:
            raise gone(store, path)
        shape_said[:] = [document.get("shape")]
        newest = seen.newest(store) if consolidated else None  # the copies may be of nodes just replaced
        value = documents.encode(document, path) + documents.mark_of(stored, newest=newest)
        return UNCHANGED if value == stored else [value]

    def is_changed(stored: Buffer) -> bool:
        document = documents.decode(stored, path, key.rpartition("/")[2])
        return bool(document.get("shape") == shape_said[0])

    if commit is not None:
        commit(changed_document, is_changed)
    elif before is None or not before.update(store, changed_document):
        update(store, key, changed_document)
    seen.note_documents(store, [path])
    return changed[0]


def date_nodes(store: Store, format: Format, paths: Sequence[str], now: float) -> None:
    """Date nodes that are put in their places anew, so that handles opened before refuse to go on."""

    def date(key: str) -> None:
        update(store, key, lambda stored: UNCHANGED if stored is None else [documents.redated(stored, now)])
        seen.note_date(store, key, store.get(key))

    parallel_map(date, [format.keys(path).array for path in paths], store.concurrency)


class Before(msgspec.Struct):
    """A document with consolidated copies, as read before the nodes were changed.

    A node stored after this read may go into the copy without being read again, as long as the document has
    not changed: a writer that changes the node later updates the copy later.

    Parameters
    ----------
    key : str
    value : bytes or None
    version : object
    nodes : dict of str to metadata
        Metadata of nodes stored since, by path.
    """

    key: str
    value: Buffer | None
    version: object
    nodes: dict[str, NodeMetadata] = msgspec.field(default_factory=dict)

    @classmethod
    def of_root(cls, store: Store, format: Format) -> Before | None:
        """The document of the root that may hold copies of all nodes; None if the format has none."""
        key = format.keys("").consolidated
        return None if key is None else cls(key, *versioned(store, key))

    def update(self, store: Store, change: DocumentChange) -> bool:
        """Change the document if it is still the same; returns whether that was done.

        ``nodes`` hold for this one attempt: in a later document they may be out of date.
        """
        try:
            pieces = UNCHANGED if self.value is None else change(self.value)
        finally:
            self.nodes = {}
        if isinstance(pieces, Unchanged):  # another writer may have added copies to it meanwhile
            return False
        with suppress(StoreCapabilityError, OutcomeUnknownError):  # the caller reads the document again
            return store.put(self.key, pieces, if_version=self.version)
        return False


Kind = TypeVar("Kind", ArrayMetadata, GroupMetadata)


def with_attributes(meta: Kind, change: Callable[[dict[str, Any]], Mapping[str, Any]], path: str) -> Kind:
    """Metadata with changed attributes, checked to be storable."""
    changed = change(dict(meta.attributes))
    return replace(meta, attributes=documents.plain_attributes(changed, path, stored=meta.attributes))


def gone(store: Store, path: str) -> StoreError:
    """The error for a node that was removed or replaced."""
    return StoreError(f"'/{path}' of {store} was removed or replaced since it was opened; open it again")


def write_documents(
    store: Store,
    format: Format,
    nodes: Mapping[str, NodeMetadata],
    *,
    last: str | None = None,
    replaces: bool = False,
) -> None:
    """Store the documents of several nodes, many in one batch.

    Parameters
    ----------
    store : Store
    format : Format
    nodes : mapping of str to metadata
        The nodes by path.
    last : str, optional
        Path of the node that must not be found before all others are stored. If it is the root, the documents
        of the hierarchy follow.
    replaces : bool
        Equal documents may have been there before. Unchanged the new ones, so that readers can tell.
    """
    encoded = {
        path: {
            key: documents.encode(document, path) for key, document in format.documents(meta, path).items()
        }
        for path, meta in nodes.items()
    }
    if last == "":
        encoded[last].update(
            (key, documents.encode(each)) for key, each in format.hierarchy_documents().items()
        )
    store_documents(store, format, encoded, last=last, replaces=replaces)


def store_documents(
    store: Store,
    format: Format,
    encoded: Mapping[str, Mapping[str, bytes]],
    *,
    last: str | None = None,
    replaces: bool = False,
) -> None:
    """Store encoded documents, for each node path by key; see :func:`write_documents`."""
    hierarchy = format.hierarchy_documents()
    mark = documents.mark_of(documents.marked(b"")) if replaces else b""
    stages: tuple[dict[str, Buffer], ...] = ({}, {}, {}, {}, {})
    for path, own in encoded.items():
        defining = format.keys(path).defining
        for key, value in own.items():
            if key in hierarchy:
                at = 4
            elif key in defining:
                at = 2 if path == last else 1
            else:
                at = 3 if key == format.keys(path).consolidated else 0
            stages[at][key] = value if documents.mark_of(value) else value + mark
    for stage in stages:
        if stage:
            store.set_values(stage.items())
            seen.note_all(store, stage.items())


def create_documents(look: DocumentView, store: Store, format: Format, path: str, meta: NodeMetadata) -> bool:
    """Store the documents of a new node, unless another writer has created one since ``look`` was taken.

    In formats with several documents a node, the attributes come first. A writer that finds those of another
    one, but no node yet, cannot tell whether the other one is alive, and replaces them. Whose node it becomes
    then has its attributes as well: the loser puts back what it found, the winner looks once more. Of two
    that make an array and a group, at least one finds the other, and gives way.

    Returns
    -------
    bool
        Whether they were stored.
    """
    now = seen.date_now(store)
    own = {
        key: documents.dated(documents.encode(document, path), now)
        for key, document in format.documents(meta, path).items()
    }
    *beside, defining = own
    stored: list[str] = []
    for key, value in own.items():
        if not _create(store, key, look.found(key)[1], value):
            _give_way(look, store, own, stored)
            return False
        stored.append(key)
    others = [key for key in format.keys(path).defining if key != defining]
    if format.implicit_groups:
        others += [format.keys(above).array for above in ancestors(path)]
    now_there = DocumentView(store)
    now_there.fetch([*beside, *others])
    is_there = any(value is not None for value in now_there.values(others))
    is_array = defining == format.keys(path).array
    if is_there or (path and is_array and _is_implied(now_there, format, path)):
        _give_way(look, store, own, stored)
        if not store.traits.erases_conditionally:
            store.erase(defining)
        return False
    for key in beside:
        if documents.mark_of(now_there.found(key)[0]) != documents.mark_of(own[key]):
            _exchange(store, key, own[key], own[key], is_own=False)
    seen.note_all(store, own.items())
    return True


def _give_way(look: DocumentView, store: Store, own: Mapping[str, bytes], stored: Sequence[str]) -> None:
    """Put back what was there before some of the documents ``own`` were stored."""
    for key in reversed(stored):
        _exchange(store, key, own[key], look.found(key)[0], is_own=True)


def _exchange(store: Store, key: str, own: bytes, value: Buffer | None, *, is_own: bool) -> None:
    """Set or erase a document with the mark of ``own``; with ``is_own=False``, one with another mark."""
    if value is None and not store.traits.erases_conditionally:
        return

    def exchanged(stored: Buffer | None) -> list[Buffer] | Unchanged | None:
        if stored is None or (documents.mark_of(stored) == documents.mark_of(own)) != is_own:
            return UNCHANGED  # It was erased, or belongs to the right writer.
        return None if value is None else [value]

    update(store, key, exchanged)


def _create(store: Store, key: str, version: object, value: bytes) -> bool:
    try:
        return store.put(key, [value], if_version=version)
    except StoreCapabilityError:  # the store cannot write conditionally: store without a check
        store.set(key, value)
        return True
