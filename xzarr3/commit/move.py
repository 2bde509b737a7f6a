"""Moves a node, with all nodes below it, to another path of its hierarchy.

A directory is renamed. Elsewhere values are copied within the store, documents last, and the old ones are
erased when all copies are there: after a crash the node is at the old path, or at both. A transactional store
gets the documents first, as its commit makes all of them visible together. Values are not decoded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from xzarr3.commit.create import make_groups_above
from xzarr3.commit.lease import is_lease
from xzarr3.errors import NodeExistsError, StoreCapabilityError, StoreError
from xzarr3.formats import Format
from xzarr3.formats.base import node_prefix
from xzarr3.nodes.case_folding import check_names
from xzarr3.nodes.consolidated import drop_from_consolidated, refresh_consolidated
from xzarr3.nodes.erase import clear_leftovers, erase_stages, formats_in, keys_at, leaving_stages
from xzarr3.nodes.find import load_below
from xzarr3.nodes.seen import note_documents
from xzarr3.parallel import parallel_map
from xzarr3.stores import LocalStore, Store
from xzarr3.stores.base import MOST_COPIED


def move_node(store: Store, format: Format, source: str, target: str) -> None:
    """Move the node at ``source`` to ``target``; the caller has checked that the one is there.

    Groups above the new path are created. No other program may write to the node at the same time.

    Raises
    ------
    NodeExistsError
        If something is at the new path, or one of the two paths lies within the other.
    NodeTypeError
        If there is an array above the new path.
    StoreCapabilityError
        If the store cannot list or erase.
    StoreError
        If a value cannot be copied or erased. The node is then at its old path, or at both.
    """
    if not store.erasable:
        raise StoreCapabilityError(
            f"cannot move '/{source}' in {store}: the store cannot erase; copy it instead"
        )
    one, other = node_prefix(source), node_prefix(target)
    if one.startswith(other) or other.startswith(one):
        raise NodeExistsError(
            f"cannot move '/{source}' to '/{target}' in {store}: one of the two paths is within the other; "
            "choose another path"
        )
    formats = formats_in(store, source, format)
    found = keys_at(store, formats, target)
    if found:
        raise NodeExistsError(
            f"cannot move '/{source}' to '/{target}' in {store}: key {min(found)!r} is there; delete what is "
            "there first, or choose another path"
        )
    check_names(store, format, target)
    below = [source, *(node_prefix(source) + each for each in load_below(store, format, source))]
    made = make_groups_above(store, format, target)
    if isinstance(store, LocalStore) and format.keys(source).prefixes == (one,):
        _rename(store, source, target)
    else:
        _copy_and_erase(store, formats, source, target)
    moved = [target + path[len(source) :] for path in below]
    note_documents(store, [*below, *moved])
    drop_from_consolidated(store, format, source)
    refresh_consolidated(store, format, [*made, *moved])


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


def _copy_and_erase(store: Store, formats: tuple[Format, ...], source: str, target: str) -> None:
    """Copy the values of a node, documents last, and erase the old ones, documents first.

    A transactional store takes documents first: it has no place for chunks of a node that does not exist yet.
    """
    keys = keys_at(store, formats, source)
    leaving = leaving_stages(formats, source, keys)
    renamed = _renaming(formats, source, target)
    for stage in leaving if store.traits.visible == "at commit" else reversed(leaving):
        parallel_map(
            lambda key: store.copy(key, renamed(key)),
            [key for key in stage if not is_lease(key)],
            min(store.concurrency, MOST_COPIED),
        )
    erase_stages(store, leaving)
    for format in formats:
        for prefix in format.keys(source).prefixes:
            clear_leftovers(store, prefix)


def _renaming(formats: Iterable[Format], source: str, target: str) -> Callable[[str], str]:
    """A function from the keys of a node to those at its new path."""
    documents: dict[str, str] = {}
    prefixes: dict[str, str] = {}
    for format in formats:
        documents.update(zip(format.keys(source).documents, format.keys(target).documents, strict=True))
        prefixes.update(zip(format.keys(source).prefixes, format.keys(target).prefixes, strict=True))

    def renamed(key: str) -> str:
        if key in documents:
            return documents[key]
        prefix = next(prefix for prefix in prefixes if key.startswith(prefix))
        return prefixes[prefix] + key[len(prefix) :]

    return renamed
