"""Moves a node with all nodes below it to another path of its hierarchy.

A directory is renamed. In a session of Icechunk, all changes become visible at once, so that a node is copied
and erased; a session that was made to rearrange nodes does it without a copy.
"""

from __future__ import annotations

import os
from typing import cast

from xzarr3.commit.create import make_groups_above
from xzarr3.commit.recover import alone
from xzarr3.errors import NodeExistsError, StoreCapabilityError, StoreError
from xzarr3.formats import Format
from xzarr3.formats.base import node_prefix
from xzarr3.nodes.case_folding import check_names
from xzarr3.nodes.consolidated import drop_from_consolidated, refresh_consolidated
from xzarr3.nodes.documents import date_nodes
from xzarr3.nodes.erase import erase_node, formats_in, keys_at, leaving_stages
from xzarr3.nodes.find import load_below
from xzarr3.nodes.seen import date_now, note_documents
from xzarr3.parallel import parallel_map
from xzarr3.stores import LocalStore, Store
from xzarr3.stores.foreign import IcechunkStore


def move_node(store: Store, format: Format, source: str, target: str) -> None:
    """Move the node at ``source`` to ``target``; the caller has checked that the one is there.

    Groups above the new path are created. No other program may store values in the node at the same time.

    Raises
    ------
    NodeExistsError
        If something is at the new path, one of the two paths lies within the other, or another writer does
        not end its swap of one of them.
    NodeTypeError
        If there is an array above the new path.
    StoreCapabilityError
        If the node is no directory, and the store no session.
    StoreError
        If the directory cannot be renamed, or the session not be changed.
    """
    in_session = store.traits.visible == "at commit"
    is_folder = isinstance(store, LocalStore) and format.keys(source).prefixes == (node_prefix(source),)
    if not (in_session or is_folder):
        raise StoreCapabilityError(
            f"cannot move '/{source}' in {store}: only the directory of a node is renamed; copy it with "
            "xzarr3.copy(), then delete it"
        )
    one, other = node_prefix(source), node_prefix(target)
    if one.startswith(other) or other.startswith(one):
        raise NodeExistsError(
            f"cannot move '/{source}' to '/{target}' in {store}: one of the two paths is within the other; "
            "choose another path"
        )
    first, second = sorted((source, target))  # Two moves between the same places wait for each other.
    with alone(store, format, first), alone(store, format, second):
        _move(store, format, source, target)


def _move(store: Store, format: Format, source: str, target: str) -> None:
    found = keys_at(store, formats_in(store, source, format), target)
    if found:
        raise NodeExistsError(
            f"cannot move '/{source}' to '/{target}' in {store}: key {min(found)!r} is there; delete what is "
            "there first, or choose another path"
        )
    check_names(store, format, target)
    held = load_below(store, format, source)
    below = [source, *(node_prefix(source) + each for each in held)]
    made = make_groups_above(store, format, target)
    if store.traits.visible == "at commit":
        _move_in_session(store, format, source, target)
    else:
        date_nodes(store, format, below, date_now(store))  # Handles of what was there before are told.
        _rename(cast("LocalStore", store), source, target)
    moved = [target + path[len(source) :] for path in below]
    note_documents(store, [*below, *moved])
    drop_from_consolidated(store, format, source)
    refresh_consolidated(store, format, [*made, *moved])


def _move_in_session(store: Store, format: Format, source: str, target: str) -> None:
    """Copy a node and erase the old one, unless the session itself moves nodes."""
    if isinstance(store, IcechunkStore) and store.moves_nodes:
        store.move(source, target)
        return

    def copy(key: str) -> None:
        store.copy(key, target + key[len(source) :])

    formats = formats_in(store, source, format)
    try:
        # Documents first: the session takes only chunks of arrays that it knows.
        for keys in leaving_stages(formats, source, keys_at(store, formats, source)):
            parallel_map(copy, keys, 1 if format.place(keys[0]) is not None else store.concurrency)
        erase_node(store, source, format)
    except BaseException as error:
        error.add_note(
            f"'/{source}' is moved in part in {store}; discard the changes of the session, and call again"
        )
        raise


def _rename(store: LocalStore, source: str, target: str) -> None:
    """Rename the directory of a node."""
    try:
        old, new = (os.path.join(store.root, path) for path in (source, target))
        folders = [store.check_inside(os.path.dirname(path), source) for path in (old, new)]
        os.rename(old, new)
        for folder in folders if store.fsync else ():
            store.sync(folder)
    except OSError as error:
        raise StoreError(
            f"cannot rename '{source}' of {store} to '{target}': {error.strerror or error}"
        ) from error
