"""Finishes swaps that killed writers left, takes leases after them, and removes what they had staged.

:func:`take` does so for a writer of the same place, :func:`settle` where a node of a directory is opened, and
:func:`recover` for a whole store. :func:`sweep` removes leftovers of writes that had replaced nothing.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
import warnings
from collections.abc import Mapping
from typing import Any, cast

from xzarr3.commit import copies, renames
from xzarr3.commit.lease import (
    SWAPPING,
    Holder,
    Lease,
    check_complete,
    holder_at,
    keys_above,
    lease_key,
    place_key,
)
from xzarr3.commit.leftovers import ABANDONED, age, is_top, said_in
from xzarr3.commit.resume import warn_of_another
from xzarr3.commit.transaction import BEGUN, OLD, SWAP, Swap, finish_above, nodes_at
from xzarr3.errors import NodeExistsError, NodeNotFoundError, StoreError, printable, short_traceback
from xzarr3.formats import Format, parse_format
from xzarr3.formats.base import fits, node_prefix
from xzarr3.nodes.absent import what_is_there
from xzarr3.nodes.erase import formats_in
from xzarr3.nodes.find import find_format
from xzarr3.stores import LocalStore, Store, StoreLike
from xzarr3.stores.local.files import discard, lock_of, staging_folders
from xzarr3.stores.local.names import STAGED
from xzarr3.stores.open import locate, was_made


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


def _is_missing(store: Store) -> bool:
    if store.folder is not None:
        return not os.path.isdir(store.folder)
    return store.listable and next(iter(store.list_prefix("")), None) is None


def recover_swaps(store: Store) -> list[str]:
    """Finish the swaps of killed writers, and remove leftovers of other killed writes.

    Returns
    -------
    list of str
        Paths of the nodes whose swaps were finished.
    """
    if store.folder is None:
        ended = [_recovered(store, top) for top in staged_prefixes(store)]
        return [f"/{path}" for path in ended if path is not None]
    ended, failed = [], None
    for key, found in _swaps_in(store):
        try:
            swap = _listed(store, found)
            ended.append(finish_swap(store, key, "" if swap is None else swap.path))
        except StoreError as error:  # raised after the other swaps are finished
            failed = failed or error
    sweep(store)
    if failed is not None:
        raise failed
    return [f"/{path}" for path in ended if path is not None]


def _recovered(store: Store, top: str) -> str | None:
    """Finish the swap whose values lie under a prefix, or remove them; returns the path of the node."""
    key = said_in(store.get(f"{top}{BEGUN}")).get("lease")
    if not isinstance(key, str):
        _remove_abandoned(store, top)  # no lease tells whether the writer lives, but its age does
        return None
    holder = holder_at(store, key)
    if holder.owner and holder.top != top:  # its writer has lost the lease and will give up
        copies.remove_keys(store, top)
    elif holder.state == SWAPPING or holder.plan is None:  # writes with a plan can be resumed
        try:
            done = finish_swap(store, key, key.rpartition("/")[0])
            if done is None:
                copies.remove_keys(store, top)
            return done
        except NodeExistsError:  # its writer lives
            if holder.state == SWAPPING:
                raise
    return None


# Taking a lease


def take(lease: Lease, store: Store, path: str, until: float | None = None) -> tuple[bool, str | None]:
    """Take the lease of a place, after what its previous holder left is finished, resumed or removed.

    Parameters
    ----------
    lease : Lease
    store : Store
    path : str
        Path of the node, for messages.
    until : float, optional
        Until when to wait for a living holder, on the clock of :func:`time.monotonic`.

    Returns
    -------
    resumes : bool
        Whether the previous holder was cut off in a write of the same plan, whose values are there.
    path : str or None
        Path of the node whose swap was finished, if any was left.

    Raises
    ------
    NodeExistsError
        If a living writer holds the lease.
    """
    lease.reserve(path, until)
    left, wanted = lease.displaced, lease.wanted
    if left is None:
        return False, None
    try:
        if left.state == SWAPPING:
            done = _finish(store, lease.key, left)
            if wanted.top:  # otherwise it is released at once: until then, others find what was left
                lease.say(path, wanted.state, wanted.top)
            return False, done
        if left.top == wanted.top:
            return is_top(left.top), None
        if is_top(left.top):
            if wanted.plan is not None and left.plan not in (None, wanted.plan):
                warn_of_another(path, store)
            _remove_left(store, left.top)
        return False, None
    except BaseException:  # the lease keeps its content for the next writer
        lease.leave()
        raise


def finish_swap(store: Store, key: str, path: str, until: float | None = None) -> str | None:
    """Finish the swap of a writer that has ended, or remove what it staged; for the rest see :func:`take`.

    Returns
    -------
    str or None
        Path of the node, if its swap was finished.
    """
    lease = Lease(store, key, "replace")
    done = take(lease, store, path, until)[1]
    lease.release()
    return done


def _finish(store: Store, key: str, said: Holder) -> str | None:
    """Finish the swap that a lease names; returns the path of the node if the new one is in its place."""
    swap = _listed(store, said)
    done = False
    if swap is not None:
        # expected only where the key follows from the path
        if store.folder is not None and key != place_key(store, swap.path, ""):
            raise StoreError(
                f"key '{said.top}{SWAP}' lists what is to be done at '/{printable(swap.path)}', but the "
                f"lease '{key}' names it; remove both keys"
            )
        if store.folder is not None:
            done = renames.finish(cast("LocalStore", store), said.top, swap)
        else:
            done = copies.finish(store, _format_of(store, swap), said.top, swap)
        there = find_format(store, swap.path)
        if there is not None:
            finish_above(store, there, swap.path, nodes_at(store, there, swap.path))
    _remove_left(store, said.top)
    return swap.path if swap is not None and done else None


def _remove_left(store: Store, top: str) -> None:
    """Remove what another write has staged; a failure is only a warning, as leftovers block no writer."""
    try:
        if store.folder is not None:
            renames.remove_staged(cast("LocalStore", store), top)
        else:
            copies.remove_keys(store, top)
    except StoreError as error:
        warnings.warn(
            f"some of what a killed process left in {store} could not be removed: {error}", stacklevel=2
        )


def _listed(store: Store, found: Holder) -> Swap | None:
    """What is left to do in the swap that a lease names."""
    if found.state != SWAPPING:
        return None
    if not is_top(found.top):
        raise StoreError(
            f"nothing of {store} is removed: {printable(found.top)!r} is not a prefix of values that a write "
            "staged; remove the lease if xzarr3 has not written it"
        )
    key = f"{found.top}{SWAP}"
    value = store.get(key)
    return None if value is None else Swap.parse(value, key)


def format_swapped(store: Store) -> Format | None:
    """The format of a root node whose swap is unfinished."""
    swap = _listed(store, Holder.parse(store.get(place_key(store, "", ""))))
    return None if swap is None else _format_of(store, swap)


def _format_of(store: Store, swap: Swap) -> Format:
    """The format of the documents of a swap."""
    there = (each for each in formats_in(store) if fits(each, swap.zarr_format))
    return next(there, None) or parse_format(swap.zarr_format)


# Directories


def settle(store: Store, path: str) -> bool:
    """Finish the swap of an ended writer at a path or above it, in a directory.

    Called when a node was not found there, whether it is opened read only or not.

    Returns
    -------
    bool
        Whether a swap was under way, so that the node may be there now.

    Raises
    ------
    IncompleteWriteError
        If the swap cannot be finished, for example without permission to write.
    """
    if store.folder is None:
        return False
    local = cast("LocalStore", store)
    done = False
    for key in keys_above(store, path):
        found = Holder.parse(store.get(key))
        done = done or found.state == SWAPPING
        if found.state == SWAPPING and found.is_dead:
            writable = LocalStore(local.root, **{**local._options(), "read_only": False})
            try:
                finish_swap(writable, key, path, time.monotonic() + store.traits.conflict_deadline)
            except (StoreError, NodeExistsError):
                check_complete(store, path, f"node at '/{path}'")  # its message says what finishes the swap
    return done


def finish_near(store: Store, path: str) -> None:
    """Finish the swaps of dead writers in a directory at a path, above it or below it.

    Raises
    ------
    StoreError
        If a swap cannot be finished.
    """
    for key, found in _swaps_in(store):
        if found.is_dead is not False:
            try:
                swap = _listed(store, found)
            except StoreError:  # a damaged list is reported to writers of the same place
                swap = None
            near = key in keys_above(store, path) if swap is None else _are_related(swap.path, path)
            if near:
                finish_swap(store, key, path)


def _are_related(one: str, other: str) -> bool:
    """Whether two paths are equal or one is above the other."""
    return node_prefix(one).startswith(node_prefix(other)) or node_prefix(other).startswith(node_prefix(one))


def _swaps_in(store: Store) -> list[tuple[str, Holder]]:
    """The leases in a directory whose places are being swapped, by key."""
    found = [lease_key(f"{os.path.basename(folder)}/") for folder in staging_folders(str(store.folder))]
    holders = map(Holder.parse, store.get_values(found))
    return [(key, each) for key, each in zip(found, holders, strict=True) if each.state == SWAPPING]


# Leftovers


def staged_prefixes(store: Store) -> list[str]:
    """Key prefixes under which writes have stored staged values or notes."""
    if not store.listable:
        return []
    return sorted(prefix for prefix in store.list_dir("")[1] if prefix.startswith(STAGED))


def sweep(store: Store) -> None:
    """Remove leftovers of killed writes that had replaced nothing.

    Raises
    ------
    StoreError
        If they cannot be removed.
    """
    if store.folder is None:
        for top in staged_prefixes(store):
            _remove_abandoned(store, top)
        return
    folders = staging_folders(str(store.folder))
    leases = [lease_key(f"{os.path.basename(folder)}/") for folder in folders]
    holders = [Holder.parse(value) for value in store.get_values(leases)] if folders else []
    needed = {holder.top for holder in holders if holder.state or holder.is_dead is not True}
    for folder, holder in zip(folders, holders, strict=True):
        with contextlib.suppress(OSError):  # not empty
            discard(lock_of(os.path.join(folder, lease_key(""))))  # of a writer killed as it released it
            os.rmdir(folder)
            continue
        is_needed = holder.state or f"{os.path.basename(folder)}/" in needed
        if not is_needed and not os.path.lexists(os.path.join(folder, OLD)) and _is_abandoned(folder):
            renames.remove_at_once(cast("LocalStore", store), folder)


def _is_abandoned(folder: str) -> bool:
    """Whether no directory below this one has changed for :data:`ABANDONED` seconds."""
    limit = time.time() - ABANDONED
    with contextlib.suppress(FileNotFoundError):  # another process is at work here
        found = (os.lstat(below) for below, _, _ in os.walk(folder))
        return all(stat.S_ISDIR(info.st_mode) and info.st_mtime <= limit for info in found)  # no planted link
    return False


def _remove_abandoned(store: Store, top: str) -> None:
    """Remove leftovers under a prefix in a store of keys that no later write will resume."""
    said = said_in(store.get(f"{top}{BEGUN}"))
    named = said.get("lease")
    if isinstance(named, str):
        holder = holder_at(store, named)
        if holder.top == top or (holder.owner and not holder.top):
            return  # the next writer there resumes it or removes it
    if age(said.get("time")) >= ABANDONED:  # without a lease, nothing else tells whether the writer lives
        store.erase(f"{top}{BEGUN}")  # first, so that a living writer does not continue without the rest
        store.erase_prefix(top)
