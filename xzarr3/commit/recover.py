"""Finishes swaps that killed writers left, and removes what they had staged.

:func:`settle` does so where a node of a directory is opened, and :func:`recover` for a whole store.
:func:`sweep` removes leftovers of writes that had replaced nothing.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, cast

from xzarr3.commit.directory import Directory, remove_at_once
from xzarr3.commit.keys import Keys
from xzarr3.commit.lease import (
    SWAPPING,
    Holder,
    Lease,
    are_related,
    check_above,
    check_complete,
    holder_at,
    holders_in,
    keeps_leases,
    keys_above,
    lease_key,
    place_key,
    take_apart,
    while_held,
)
from xzarr3.commit.places import Place
from xzarr3.commit.staged import ABANDONED, BEGUN, OLD, age, said_in
from xzarr3.commit.transaction import finish_above, format_of, listed_swap, take
from xzarr3.commit.writers import wait_for_writers
from xzarr3.errors import (
    ConflictError,
    IncompleteWriteError,
    NodeExistsError,
    NodeNotFoundError,
    StoreCapabilityError,
    StoreError,
    short_traceback,
)
from xzarr3.formats import Format
from xzarr3.formats.base import node_prefix
from xzarr3.nodes.absent import what_is_there
from xzarr3.nodes.erase import erase_node
from xzarr3.parallel import parallel_map
from xzarr3.stores import LocalStore, Store, StoreLike
from xzarr3.stores.local.files import discard, lock_of, staging_folders
from xzarr3.stores.local.names import STAGED
from xzarr3.stores.open import locate, was_made

_SWAP_SECONDS, _PAUSE = 1.0, 0.005
"""How long to wait for a swap of a living writer, which renames a few names, and how often to look."""


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
    ended: list[str | None] = []
    if store.folder is None:
        within = []
        for top in staged_prefixes(store):
            try:
                ended.append(_recovered(store, top))
            except IncompleteWriteError:  # A node above it is not there yet, and has its turn first.
                within.append(top)
        ended += [_recovered(store, top) for top in within]
        return [f"/{path}" for path in ended if path is not None]
    failed = None
    for key, found in _swaps_in(store):
        try:
            swap = listed_swap(store, found)
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
        Keys.remove(store, top)
    elif holder.state == SWAPPING or holder.plan is None:  # writes with a plan can be resumed
        try:
            done = finish_swap(store, key, key.rpartition("/")[0])
            if done is None:
                Keys.remove(store, top)
            return done
        except NodeExistsError:  # its writer lives
            if holder.state == SWAPPING:
                raise
    return None


def finish_interrupted(store: Store, path: str) -> bool:
    """Finish swaps of a place, or above it, that were cut off as they were put in their places.

    Returns
    -------
    bool
        Whether there were any.

    Raises
    ------
    StoreCapabilityError
        If the store cannot hold a node back until it is complete.
    """
    if store.traits.visible != "at once":
        raise StoreCapabilityError(
            f"{store} commits by itself, so elements of '/{path}' cannot get other indices in it as one "
            "change; write all that is to be there, with to_zarr(..., mode='w')"
        )
    keys = keys_above(store, path)
    holders = parallel_map(partial(holder_at, store), keys, store.concurrency)
    swaps = [key for key, holder in zip(keys, holders, strict=True) if holder.state == SWAPPING]
    for key in swaps:
        finish_swap(store, key, path, time.monotonic() + store.traits.conflict_deadline)
    return bool(swaps)


def finish_swap(store: Store, key: str, path: str, until: float | None = None) -> str | None:
    """Finish the swap of a writer that has ended, or remove what it staged.

    For the parameters and errors see :func:`xzarr3.commit.transaction.take`.

    Returns
    -------
    str or None
        Path of the node, if its swap was finished.
    """
    lease = Lease(store, key, "replace", path=path)
    way = Directory if store.folder is not None else Keys
    done = take(way, lease, store, path, until)[1]
    lease.release()
    return done


@contextlib.contextmanager
def alone(store: Store, format: Format, path: str) -> Iterator[Lease | None]:
    """Keep other writers away from the place of a node, once what an ended one left there is finished.

    Yields
    ------
    Lease or None
        The lease of the place; None in a store that keeps none.

    Raises
    ------
    NodeExistsError
        If another writer is at work there; in a directory, if it does not end its swap.
    """
    if not keeps_leases(store):
        yield None
        return
    lease = Place.of(store, format, path).lease()
    if store.folder is None:
        take(Keys, lease, store, path)
    else:
        until = time.monotonic() + store.traits.conflict_deadline
        take_apart(
            store, lease.key, path, until, partial(take, Directory, lease, store, path, until), lease.release
        )
    try:
        check_above(store, path)
        yield lease
    finally:
        lease.release()


def erase(store: Store, format: Format, path: str) -> None:
    """Erase a node, with all nodes below it, unless another writer is at work there or above.

    Raises
    ------
    ConflictError
        If another writer makes, replaces or erases a node within this one, or does not end to write values.
    IncompleteWriteError, NodeExistsError
        As :func:`alone`.
    """
    with alone(store, format, path) as lease:
        try:
            key = "" if lease is None else lease.key
            check = partial(wait_for_writers, Keys, store, path, own=[key])
            erase_node(while_held(store, lease, path), path, format, lease=key, check=check)
        except ConflictError:
            finish_above(store, format, path)
            raise


def format_swapped(store: Store) -> Format | None:
    """The format of a root node whose swap is unfinished."""
    swap = listed_swap(store, Holder.parse(store.get(place_key(store, "", ""))))
    return None if swap is None else format_of(store, swap)


# Directories


def settle(store: Store, path: str) -> bool:
    """Finish the swap of an ended writer at a path or above it, in a directory, or wait for a living one.

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
        end = time.monotonic() + _SWAP_SECONDS
        while found.state == SWAPPING and found.is_dead is False and time.monotonic() < end:
            time.sleep(_PAUSE)  # Its writer is at work, and soon done.
            found = Holder.parse(store.get(key))
        if found.state == SWAPPING and found.is_dead:
            writable = LocalStore(local.root, **{**local._options(), "read_only": False})
            try:
                finish_swap(writable, key, path, time.monotonic() + store.traits.conflict_deadline)
            except (StoreError, NodeExistsError):
                check_complete(store, path, f"node at '/{path}'")  # its message says what finishes the swap
    return done


def settle_below(store: Store, path: str) -> list[str]:
    """As :func:`settle` for all places below a path; returns the paths of which swaps were under way."""
    done = []
    for _, found in _swaps_in(store):
        with contextlib.suppress(StoreError):  # a damaged list is reported to writers of the same place
            swap = listed_swap(store, found)
            if swap is not None and swap.path != path and f"{swap.path}/".startswith(node_prefix(path)):
                done.append(swap.path)
    for each in done:
        settle(store, each)
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
                swap = listed_swap(store, found)
            except StoreError:  # a damaged list is reported to writers of the same place
                swap = None
            near = key in keys_above(store, path) if swap is None else are_related(swap.path, path)
            if near:
                finish_swap(store, key, path)


def _swaps_in(store: Store) -> list[tuple[str, Holder]]:
    """The leases in a directory whose places are being swapped, by key."""
    return [(key, each) for key, each in holders_in(store).items() if each.state == SWAPPING]


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
    needed = {each.top for each in holders if each.state == SWAPPING or each.is_dead is not True}
    for folder, holder in zip(folders, holders, strict=True):
        with contextlib.suppress(OSError):  # not empty
            discard(lock_of(os.path.join(folder, lease_key(""))))  # of a writer killed as it released it
            os.rmdir(folder)
            continue
        is_needed = holder.state == SWAPPING or f"{os.path.basename(folder)}/" in needed
        if not is_needed and _is_abandoned(folder):
            remove_at_once(cast("LocalStore", store), folder)


def _is_abandoned(folder: str) -> bool:
    """Whether nothing is kept in a directory, and none below it has changed for :data:`ABANDONED` seconds."""

    def fail(error: OSError) -> None:
        raise error

    limit = time.time() - ABANDONED
    with contextlib.suppress(OSError):  # another process is at work here, or it cannot be looked at
        if OLD not in os.listdir(folder):
            found = (os.lstat(below) for below, _, _ in os.walk(folder, onerror=fail))
            # no planted link
            return all(stat.S_ISDIR(info.st_mode) and info.st_mtime <= limit for info in found)
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
