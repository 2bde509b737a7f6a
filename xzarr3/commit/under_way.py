"""Finds nodes that are absent only for the moment in which a swap puts them in their places.

Who lists a group, or reads its consolidated metadata, gets no error for a node that is missing. So in a
directory this module looks for swaps below the group: it finishes that of an ended writer, and waits for a
living one. In a store of keys it reads the lease of each name that has no document.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from xzarr3.formats import Format
from xzarr3.parallel import parallel_map
from xzarr3.stores import Store
from xzarr3.stores.local.files import staging_folders

Found = TypeVar("Found")

_ATTEMPTS = 3


def read_whole(
    store: Store, path: str, read: Callable[[], Found], below: Callable[[Found], object] = lambda found: found
) -> Found:
    """What ``read`` finds of a group, without nodes left out by a swap.

    Parameters
    ----------
    store : Store
    path : str
        Path of the group.
    read : callable
    below : callable, optional
        The part of what was read that tells the nodes below; None if nothing does.

    Raises
    ------
    IncompleteWriteError
        If a swap is under way, and does not end.
    """
    if store.folder is None:
        return read()
    swapped, before = list[str](), None
    for _ in range(_ATTEMPTS):
        state, found = store.versions([""]), read()
        nodes = below(found)
        if nodes is None:
            return found
        swapped = _settled_below(store, path)
        # Each swap changes the root; so do other writes, which change no nodes.
        if not swapped and (store.versions([""]) == state or nodes == before):
            return found
        before = nodes
    _check_complete(store, swapped)
    return found


def settled(store: Store, path: str) -> bool:
    """Finish swaps at a path or above it in a directory; returns whether there were any: look again then."""
    if store.folder is None or not staging_folders(store.folder):
        return False
    from xzarr3.commit.recover import settle

    return settle(store, path)


def _settled_below(store: Store, path: str) -> list[str]:
    """Finish swaps below a group in a directory; returns their paths."""
    if not staging_folders(str(store.folder)):
        return []
    from xzarr3.commit.recover import settle_below

    return settle_below(store, path)


def check_not_under_way(store: Store, format: Format, paths: Sequence[str]) -> None:
    """Raise if one of these paths in a store of keys holds no node only because a writer is replacing it."""
    if not paths or store.folder is not None or store.traits.visible != "at once" or not store.listable:
        return
    from xzarr3.commit.lease import holder_at, place_key

    keys = [place_key(store, path, format.keys(path).chunks) for path in paths]
    holders = parallel_map(partial(holder_at, store), keys, store.concurrency)
    _check_complete(store, [path for path, each in zip(paths, holders, strict=True) if each.state])


def _check_complete(store: Store, paths: Sequence[str]) -> None:
    from xzarr3.commit.lease import check_complete

    for path in paths:
        check_complete(store, path, f"node at '/{path}'")
