"""Writes the documents of nodes and keeps consolidated copies of them up to date.

An existing document changes by compare-and-set, so that no change by another writer is lost. This module
knows nothing of chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from xzarr3._types import Buffer
from xzarr3.commit.length import Length
from xzarr3.errors import OutcomeUnknownError, StoreCapabilityError, StoreError
from xzarr3.formats import Format, documents
from xzarr3.formats.base import Held, node_prefix
from xzarr3.model.metadata import ArrayMetadata, GroupMetadata, NodeMetadata
from xzarr3.nodes import changes, revalidation
from xzarr3.nodes.find import (
    DocumentView,
    _is_implied,
    document_values,
    held_below,
    held_of,
    read_documents,
    read_held,
    read_metadata,
)
from xzarr3.nodes.node import ancestors
from xzarr3.parallel import parallel_map
from xzarr3.stores import Store
from xzarr3.stores.base import ABSENT, UNCHANGED, Unchanged, joined


def change_document(
    store: Store,
    format: Format,
    path: str,
    key: str,
    change: Callable[[NodeMetadata], NodeMetadata],
    *,
    length: Length | None = None,
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
    length : Length, optional
        Change the document only as long as this right to change the length of the array holds.
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
        if format.one_document
        else [other for other in format.reading_keys(path, consolidated=False) if other != key]
    )
    beside = dict(zip(others, document_values(store, others), strict=True))
    changed: list[NodeMetadata] = []
    shape_said: list[object] = [None]

    def changed_document(stored: Buffer | None) -> list[Buffer] | Unchanged:
        held = held_of(format, path, {**beside, key: stored})
        if stored is None and key in format.defining_keys(path):
            held = None
        if held is not None:
            meta = change(format.parse_again(held, path))
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
        value = documents.encode(document, path) + documents.mark_of(stored)
        return UNCHANGED if value == stored else [value]

    def is_changed(stored: Buffer) -> bool:
        document = documents.decode(stored, path, key.rpartition("/")[2])
        return bool(document.get("shape") == shape_said[0])

    if length is not None:
        length.commit(changed_document, is_changed)
    elif before is None or not before.update(store, changed_document):
        store.update(key, changed_document)
    changes.note_documents(store, [path])
    return changed[0]


@dataclass
class Before:
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
    nodes: dict[str, NodeMetadata] = field(default_factory=dict)

    @classmethod
    def of_root(cls, store: Store, format: Format) -> Before | None:
        """The document of the root that may hold copies of all nodes; None if the format has none."""
        key = format.consolidated_key("")
        return None if key is None else cls(key, *store.get_versioned(key))

    def update(self, store: Store, change: Callable[[Buffer | None], Sequence[Buffer] | Unchanged]) -> bool:
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
            return store.compare_and_set(self.key, self.version, joined(pieces))
        return False


Kind = TypeVar("Kind", ArrayMetadata, GroupMetadata)


def with_attributes(meta: Kind, change: Callable[[dict[str, Any]], Mapping[str, Any]], path: str) -> Kind:
    """Metadata with changed attributes, checked to be storable."""
    changed = change(dict(meta.attributes))
    return replace(meta, attributes=documents.plain_attributes(changed, path, stored=meta.attributes))


def gone(store: Store, path: str) -> StoreError:
    """The error for a node that was removed or replaced."""
    return StoreError(
        f"'/{path}' of {store} was removed or replaced since it was opened; accepted: opening it again"
    )


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
        Equal documents may have been there before. Mark the new ones, so that readers can tell.
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
    """Store encoded documents, as :func:`write_documents` does.

    Parameters
    ----------
    store : Store
    format : Format
    encoded : mapping
        For each node path, its documents by key.
    last : str, optional
    replaces : bool
    """
    hierarchy = format.hierarchy_documents()
    mark = documents.mark_of(documents.marked(b"")) if replaces else b""
    stages: tuple[dict[str, Buffer], ...] = ({}, {}, {}, {}, {})
    for path, own in encoded.items():
        defining = format.defining_keys(path)
        for key, value in own.items():
            if key in hierarchy:
                at = 4
            elif key in defining:
                at = 2 if path == last else 1
            else:
                at = 3 if key == format.consolidated_key(path) else 0
            stages[at][key] = value + mark
    for stage in stages:
        if stage:
            store.set_values(stage.items())
            revalidation.note_all(store, stage.items())


def create_documents(
    look: DocumentView,
    store: Store,
    format: Format,
    path: str,
    meta: NodeMetadata,
) -> bool:
    """Store the documents of a new node, unless another writer has created one since ``look`` was taken.

    Returns
    -------
    bool
        Whether they were stored.
    """
    for key, document in format.documents(meta, path).items():
        value = documents.encode(document, path)
        if not _create(store, key, look.found(key)[1], value):
            return False
        revalidation.note_all(store, [(key, value)])
    return True


def _create(store: Store, key: str, version: object, value: bytes) -> bool:
    try:
        if store.compare_and_set(key, version, value):
            return True
        if version != ABSENT:
            return False
        there, version = store.get_versioned(key)  # a third-party store may have another version for "absent"
        return there is None and store.compare_and_set(key, version, value)
    except StoreCapabilityError:  # the store cannot write conditionally: store without a check
        store.set(key, value)
        return True


def refresh_consolidated(
    store: Store,
    format: Format,
    paths: Sequence[str],
    metas: Mapping[str, NodeMetadata | None] | None = None,
    *,
    holders: Iterable[str] | None = None,
    besides: Container[str] = (),
    before: Before | None = None,
) -> None:
    """Bring consolidated copies up to date, in the nodes themselves and in the groups above.

    Nodes are read after the version of the document that holds their copies. So of several simultaneous
    changes, the last one stays in the copy as it does in the node.

    Parameters
    ----------
    store : Store
    format : Format
    paths : sequence of str
        Paths of the changed nodes.
    metas : mapping of str to metadata, optional
        Metadata of the nodes, if no other process can have changed them. None for a node that is removed with
        all nodes below it.
    holders : iterable of str, optional
        Groups whose copies are brought up to date; by default all.
    besides : container of str
        Groups whose copies are up to date already.
    before : Before, optional
        The document of the root with copies, as read before the nodes changed.
    """
    if holders is None:
        above = [place for path in paths for place in ancestors(path)]
        holders = [*above, *(path for path in paths if metas is None and _holds_own(format, path))]
    holders = [
        each for each in dict.fromkeys(holders) if format.consolidated_key(each) and each not in besides
    ]
    if before is not None:
        changed = partial(_refreshed, store, format, "", before.key, paths, metas, before)
        if "" in holders and before.update(store, changed):
            holders.remove("")
    keys = [str(format.consolidated_key(place)) for place in holders]
    found, holds = read_documents(store, keys), format.zarr_format
    for holder, key, document in zip(holders, keys, found, strict=True):
        prefix = node_prefix(holder)
        below = [path for path in paths if path == holder or path.startswith(prefix)]
        if document is not None and any(
            format.update_consolidated(document, path[len(prefix) :], GroupMetadata(zarr_format=holds))
            for path in below
        ):
            store.update(key, partial(_refreshed, store, format, holder, key, below, metas, None))


def write_consolidated(store: Store, format: Format, path: str) -> tuple[GroupMetadata, dict[str, Held]]:
    """Copy the documents of all nodes below a group into its consolidated metadata.

    Returns
    -------
    GroupMetadata
        The group.
    dict
        The copied documents, by relative path.

    Raises
    ------
    MetadataError
        If the format has no consolidated metadata.
    StoreError
        If there is no group.
    """
    key = format.consolidated_key(path)
    if key is None:
        raise format.refuse(
            path, "consolidated_metadata", "consolidate()", "listing the store, or format 3 or 2"
        )
    written: list[tuple[bool, GroupMetadata, dict[str, Held]]] = []

    def change(stored: Buffer | None) -> list[Buffer]:
        # Read the nodes after the document that will hold them. A writer that changes a node updates that
        # document afterwards, if it holds consolidated metadata; the compare-and-set then fails and this runs
        # again.
        before, metadata = _group_with(store, format, path, key, stored)
        below = held_below(DocumentView(store), format, path)
        written[:] = [(before, metadata, below)]
        document = format.documents(metadata, path, below)[key]
        return [documents.encode(document, path) + documents.mark_of(stored)]

    while True:
        store.update(key, change)
        before, metadata, below = written[0]
        # Without consolidated metadata before, a simultaneous change has not touched the document: read
        # again.
        if before or held_below(DocumentView(store), format, path) == below:
            return metadata, below


def _group_with(
    store: Store, format: Format, path: str, key: str, stored: Buffer | None
) -> tuple[bool, GroupMetadata]:
    """Whether there are consolidated metadata, and the metadata of the group, given its document ``key``."""
    held = None
    if not format.one_document:
        held, before = read_held(store, format, path, consolidated=False), stored is not None
    elif stored is not None:
        found = held_of(format, path, {key: stored})
        held = format.without_consolidated(found)
        before = held != found
    metadata = None if held is None else format.parse_again(held, path)
    if not isinstance(metadata, GroupMetadata):
        raise gone(store, path)
    return before, metadata


def _holds_own(format: Format, path: str) -> bool:
    """Whether the format keeps consolidated copies in a document that does not define the node."""
    key = format.consolidated_key(path)
    return key is not None and key not in format.defining_keys(path)


def _refreshed(
    store: Store,
    format: Format,
    holder: str,
    key: str,
    paths: Sequence[str],
    metas: Mapping[str, NodeMetadata | None] | None,
    before: Before | None,
    stored: Buffer | None,
) -> list[Buffer] | Unchanged:
    if stored is None:
        return UNCHANGED
    found = document = documents.decode(stored, holder, key.rpartition("/")[2])
    if metas is None:
        metas = dict(zip(paths, nodes_now(store, format, paths, before), strict=True))
    for path in paths:
        relative = path[len(node_prefix(holder)) :]
        document = format.update_consolidated(document, relative, metas[path]) or document
    if document == found:
        return UNCHANGED
    return [documents.encode(document, holder) + documents.mark_of(stored)]


def nodes_now(
    store: Store, format: Format, paths: Sequence[str], before: Before | None
) -> list[NodeMetadata | None]:
    """Metadata of nodes, read after the document that holds their copies; None for nodes that are gone."""
    known = {} if before is None else before.nodes
    # a Look bypasses caches
    read = partial(read_metadata, DocumentView(store), format, consolidated=False, again=True)
    unknown = [path for path in paths if path not in known]
    found = dict(zip(unknown, parallel_map(read, unknown, store.concurrency), strict=True))
    return [known[path] if path in known else found[path] for path in paths]


@contextmanager
def copies_to_follow(path: str) -> Iterator[None]:
    """Add a note to errors in a ``with`` statement: only consolidated copies of a node may be unchanged."""
    try:
        yield
    except StoreError as error:
        error.add_note(
            f"'/{path}' itself is changed; consolidated metadata that hold a copy of it may not be, until "
            "the next change of it or consolidate_metadata()"
        )
        raise


def refresh_copies(store: Store, format: Format, path: str) -> None:
    """Bring the consolidated copies of a node up to date, after its own document was changed."""
    with copies_to_follow(path):
        refresh_consolidated(store, format, [path])


def drop_from_consolidated(store: Store, format: Format, path: str) -> None:
    """Remove a node, and all nodes below it, from the consolidated copies above."""
    refresh_consolidated(store, format, [path], {path: None})
