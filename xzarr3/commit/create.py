"""Creates nodes, and the groups above them, where there is room.

Checks first that the path is free or may be overwritten. Knows nothing of the values of arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress

from xzarr3.commit.lease import check_complete, lease_key
from xzarr3.errors import IncompleteWriteError, NodeExistsError, NodeTypeError, contended
from xzarr3.formats import Format, documents
from xzarr3.formats.base import is_array, node_prefix
from xzarr3.model.metadata import ArrayMetadata, GroupMetadata, NodeMetadata
from xzarr3.nodes.case_folding import check_names
from xzarr3.nodes.consolidated import copies_to_follow, holds_own, refresh_consolidated
from xzarr3.nodes.documents import _create, create_documents
from xzarr3.nodes.erase import orphans_of
from xzarr3.nodes.find import DocumentView, find_format, held_of, read_held
from xzarr3.nodes.node import ancestors
from xzarr3.parallel import parallel_map
from xzarr3.stores import Store

_ATTEMPTS = 10  # To make a group where others are at it.


def make_groups_above(store: Store, format: Format, path: str, look: DocumentView | None = None) -> list[str]:
    """Create the missing groups above a node, if the format needs them.

    Does not update consolidated copies.

    Returns
    -------
    list of str
        Paths of the new groups, from the top down.

    Raises
    ------
    NodeTypeError
        If there is an array above.
    IncompleteWriteError
        If a group above is being made, replaced or erased.
    """
    look = DocumentView(store) if look is None else look
    hierarchy = format.hierarchy_documents()
    look.fetch([*hierarchy, *(key for above in ancestors(path) for key in format.keys(above).defining)])
    missing = groups_missing(look, format, path)
    for key, document in hierarchy.items():
        if look.found(key)[0] is None:
            _create(store, key, look.found(key)[1], documents.encode(document))
    if format.implicit_groups or not missing:
        return []
    # A group that is being made or replaced is absent for a moment: do not create one in its place.
    check_complete(store, missing[0], f"group '/{missing[0]}'", to_write=True)
    meta = GroupMetadata(zarr_format=format.zarr_format)
    look.fetch(key for above in missing for key in format.documents(meta, above))

    def make(above: str) -> bool:
        now = look
        for _ in range(_ATTEMPTS):
            if create_documents(now, store, format, above, meta):
                return True
            now = DocumentView(store)  # Another writer was faster, or has described a node, but not made it.
            held = read_held(now, format, above)
            if held is not None:
                break
        else:
            raise contended(format.keys(above).defining[-1], store, "others kept making and erasing a node")
        refresh_consolidated(store, format, [above])  # A copy may be of what this writer has put back.
        if is_array(held):
            raise _array_above(store, path, above)
        return False

    made = parallel_map(make, missing[::-1], store.concurrency)
    return [above for above, done in zip(missing[::-1], made, strict=True) if done]


def groups_missing(look: DocumentView, format: Format, path: str) -> list[str]:
    """The missing groups above a node, from the bottom up.

    Raises
    ------
    NodeTypeError
        If there is an array above.
    """
    missing = []
    look.fetch(key for above in ancestors(path) for key in format.keys(above).defining)
    for above in reversed([*ancestors(path)]):
        keys = format.keys(above).defining
        held = held_of(format, above, dict(zip(keys, look.values(keys), strict=True)))
        if held is None:
            missing.append(above)
        elif is_array(held):
            raise _array_above(look, path, above)
    return missing


def _array_above(store: Store, path: str, above: str) -> NodeTypeError:
    return NodeTypeError(
        f"cannot create '/{path}' in {store}: '/{above}' is an array, not a group; choose a path below "
        "a group"
    )


def make_node(
    store: Store,
    format: Format,
    path: str,
    meta: NodeMetadata,
    *,
    look: DocumentView | None = None,
    fill: Callable[[], object] = lambda: None,
) -> None:
    """Create a node, and the groups above it, where there is none; the caller has checked the path.

    Parameters
    ----------
    store : Store
    format : Format
    path : str
    meta : ArrayMetadata or GroupMetadata
    look : DocumentView, optional
        :meth:`DocumentView.around` the path, if the caller has it already.
    fill : callable, optional
        Stores the values of an array, before consolidated metadata show it.

    Raises
    ------
    NodeExistsError
        If there is a node, or a key that a new array would read as its chunk.
    NodeTypeError
        If there is an array above.
    IncompleteWriteError
        If the node, or a group above, is being replaced.
    """
    if store.read_only:
        store.check_writable()
    check_names(store, format, path)
    is_array = isinstance(meta, ArrayMetadata)
    if look is None:
        look = DocumentView.around(store, path)
    look.fetch(format.documents(meta, path))
    orphans = orphans_of(look, format, path, meta) if isinstance(meta, ArrayMetadata) else ()
    _check_room(store, look, path, None if is_array else format, orphans)
    if store.folder is not None or not (look.listable and _has_no_lease(look, path)):
        check_complete(store, path, f"array '/{path}'" if is_array else f"group '/{path}'")
    made = make_groups_above(store, format, path, look)
    if not create_documents(look, store, format, path, meta):
        refresh_consolidated(store, format, [path])  # A copy may be of what this writer has put back.
        groups_missing(DocumentView(store), format, path)  # Raises where an array is above by now.
        raise _there_is_one(store, path)
    fill()
    with copies_to_follow(path):
        bare = refresh_consolidated(store, format, [*made, path])
        if not all(holds_own(format, each) for each in bare):  # Another writer has erased a group above.
            with suppress(IncompleteWriteError):  # Or replaces it.
                refresh_consolidated(store, format, [*make_groups_above(store, format, path), path])


def _has_no_lease(look: DocumentView, path: str) -> bool:
    """Whether the listing of a path, which a new array needs anyway, shows no lease of a writer."""
    prefix = node_prefix(path)
    return lease_key(prefix) not in look.list_dir(prefix)[0]


def _there_is_one(store: Store, path: str) -> NodeExistsError:
    return NodeExistsError(
        f"an array or group already exists at '/{path}' in {store}; pass overwrite=True to replace it"
    )


def _check_room(
    store: Store, look: DocumentView, path: str, for_group_of: Format | None, orphans: Collection[str]
) -> None:
    """Raise if there is a node at a path, or keys that a new array would read as its chunks.

    A group may be created where one of the same format is only implied by nodes below it.
    """
    format = find_format(look, path)
    implied = format is not None and not any(look.exists(key) for key in format.keys(path).defining)
    if format is not None and not (implied and format == for_group_of):
        raise _there_is_one(store, path)
    if orphans:
        raise NodeExistsError(
            f"{len(orphans)} keys at '/{path}' in {store}, such as {min(orphans)!r}, would become chunks of "
            "the new array; pass overwrite=True to erase them, or choose another path"
        )
