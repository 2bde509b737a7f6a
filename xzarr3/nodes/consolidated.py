"""Keeps consolidated metadata true: the copies of documents that a group above holds."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import cast

from xzarr3._types import Buffer
from xzarr3.errors import MetadataError, StoreCapabilityError
from xzarr3.formats import Format, documents
from xzarr3.formats.base import Held, node_prefix, refusal, without_consolidated
from xzarr3.model.metadata import GroupMetadata, NodeMetadata
from xzarr3.nodes.documents import Before, gone
from xzarr3.nodes.find import (
    DocumentView,
    depth_first,
    held_below,
    held_of,
    read_documents,
    read_held,
    read_metadata,
)
from xzarr3.nodes.node import ancestors
from xzarr3.nodes.seen import newest, note_date
from xzarr3.parallel import parallel_map
from xzarr3.stores import Store
from xzarr3.stores.base import update
from xzarr3.stores.values import UNCHANGED, Unchanged


def refresh_consolidated(
    store: Store,
    format: Format,
    paths: Sequence[str],
    metas: Mapping[str, NodeMetadata | None] | None = None,
    *,
    holders: Iterable[str] | None = None,
    besides: Container[str] = (),
    before: Before | None = None,
) -> list[str]:
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
        Metadata of the nodes, the topmost first, that were stored just now; they are read where there are
        copies of them already. None for a node that is removed with all nodes below it.
    holders : iterable of str, optional
        Groups whose copies are brought up to date; by default all.
    besides : container of str
        Groups whose copies are up to date already.
    before : Before, optional
        The document of the root with copies, as read before the nodes changed.

    Returns
    -------
    list of str
        The groups that have no document which could hold copies.
    """
    if holders is None:
        above = [place for path in paths for place in ancestors(path)]
        holders = [*above, *(path for path in paths if metas is None and holds_own(format, path))]
    holders = [
        each for each in dict.fromkeys(holders) if format.keys(each).consolidated and each not in besides
    ]
    if before is not None:
        changed = partial(_refreshed, store, format, "", before.key, paths, metas, before)
        if "" in holders and before.update(store, changed):
            holders.remove("")
    keys = [str(format.keys(place).consolidated) for place in holders]
    found, holds = read_documents(store, keys), format.zarr_format
    for holder, key, document in zip(holders, keys, found, strict=True):
        prefix = node_prefix(holder)
        below = [path for path in paths if path == holder or path.startswith(prefix)]
        if document is not None and any(
            format.update_consolidated(document, path[len(prefix) :], GroupMetadata(zarr_format=holds))
            for path in below
        ):
            update(store, key, partial(_refreshed, store, format, holder, key, below, metas, None))
    return [holder for holder, document in zip(holders, found, strict=True) if document is None]


def holds_copies(format: Format, key: str, value: Buffer | None) -> bool:
    """Whether a document holds copies of nodes below; not if it is absent or cannot be read."""
    try:
        document = None if value is None else documents.decode(value, "", key)
    except MetadataError:
        return False
    any_group = GroupMetadata(zarr_format=format.zarr_format)
    return document is not None and format.update_consolidated(document, "any", any_group) is not None


def check_consolidates(store: Store) -> None:
    """Raise if a store is to hold no consolidated metadata.

    Raises
    ------
    StoreCapabilityError
    """
    if store.traits.visible == "at commit":
        raise StoreCapabilityError(
            f"{store} holds no consolidated metadata, as it reads all documents at once without; pass "
            "consolidated=None"
        )


def write_consolidated(
    store: Store, format: Format, path: str, order: Iterable[str] = ()
) -> tuple[GroupMetadata, dict[str, Held]]:
    """Copy the documents of all nodes below a group into its consolidated metadata.

    Nodes stay in the order of the consolidated metadata that are there. Others come after them, in the
    ``order`` of these relative paths, and last those that only a listing shows.

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
        If there is no group, or the store holds no consolidated metadata.
    """
    check_consolidates(store)
    key = format.keys(path).consolidated
    if key is None:
        raise refusal(
            format.zarr_format, "consolidated_metadata", "consolidate()",
            "formats 3 and 2, or no consolidated metadata", path,
        )  # fmt: skip
    written: list[tuple[bool, GroupMetadata, dict[str, Held]]] = []

    def change(stored: Buffer | None) -> list[Buffer]:
        # Read the nodes after the document that will hold them. A writer that changes a node updates that
        # document afterwards, if it holds consolidated metadata; the compare-and-set then fails and this runs
        # again.
        known, metadata = _group_with(store, format, path, key, stored)
        below = held_below(DocumentView(store), format, path)
        paths = dict.fromkeys([*(known or ()), *order, *below])
        below = {each: below[each] for each in depth_first(each for each in paths if each in below)}
        written[:] = [(known is not None, metadata, below)]
        document = format.documents(metadata, path, below)[key]
        return [documents.encode(document, path) + documents.mark_of(stored, newest=newest(store))]

    while True:
        update(store, key, change)
        before, metadata, below = written[0]
        # Without consolidated metadata before, a simultaneous change has not touched the document: read
        # again.
        if before or held_below(DocumentView(store), format, path) == below:
            return metadata, below


def _group_with(
    store: Store, format: Format, path: str, key: str, stored: Buffer | None
) -> tuple[list[str] | None, GroupMetadata]:
    """The paths in the consolidated metadata of a group, and its own metadata, given its document ``key``.

    The paths are None if there are no consolidated metadata.
    """
    held = found = None
    if not format.keys("").one_document:
        held = found = read_held(store, format, path, consolidated=False)
    elif stored is not None:
        found = held_of(format, path, {key: stored})
        held = without_consolidated(found)
    metadata = None if held is None else format.parse(held, path)
    if not isinstance(metadata, GroupMetadata):
        raise gone(store, path)
    if stored is None or (format.keys("").one_document and held == found):
        return None, metadata
    try:
        if not format.keys("").one_document:
            name = key.rpartition("/")[2]
            found = {**cast("dict[str, Held]", held), name: documents.decode(stored, path, name)}
        before = format.parse(found, path)
    except MetadataError:  # they are written anew, which needs no more than their order
        return [], metadata
    return [*(cast("GroupMetadata", before).consolidated or ())], metadata


def holds_own(format: Format, path: str) -> bool:
    """Whether the format keeps consolidated copies in a document that does not define the node."""
    key = format.keys(path).consolidated
    return key is not None and key not in format.keys(path).defining


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
    note_date(store, key, stored)  # A node that is put in its place after this has a later date.
    found = documents.decode(stored, holder, key.rpartition("/")[2])
    document: Held = found
    if metas is not None and metas[paths[0]] is not None:
        top = paths[0][len(node_prefix(holder)) :]
        if format.update_consolidated(found, top, None) not in (None, found):
            metas = None  # Another writer has copied one of these nodes since, so it may have changed it.
    are_read = metas is None
    if metas is None:
        metas = dict(zip(paths, nodes_now(store, format, paths, before), strict=True))
    for path in paths:
        relative = path[len(node_prefix(holder)) :]
        document = format.update_consolidated(document, relative, metas[path]) or document
    if documents.are_equal(document, found):
        # Another writer may have read a node before it was erased, and be about to store a copy of it.
        is_late = are_read and None in metas.values() and store.traits.conditional == "service"
        return [documents.remarked(stored)] if is_late else UNCHANGED
    return [documents.encode(document, holder) + documents.mark_of(stored, newest=newest(store))]


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
    except BaseException as error:
        error.add_note(
            f"'/{path}' itself is changed, so repeat no append and no drop(); consolidated metadata that "
            "hold a copy of it may not be, until the next change of it or consolidate_metadata()"
        )
        raise


def refresh_copies(store: Store, format: Format, path: str) -> None:
    """Bring the consolidated copies of a node up to date, after its own document was changed."""
    with copies_to_follow(path):
        refresh_consolidated(store, format, [path])


def drop_from_consolidated(store: Store, format: Format, path: str) -> None:
    """Remove a node, and all nodes below it, from the consolidated copies above."""
    refresh_consolidated(store, format, [path], {path: None})
