"""Finishes swaps that killed writers left, takes leases after them, and removes what they had staged.

:func:`take` does so for a writer of the same place, :func:`settle` where a node is opened, and
:func:`recover_swaps` for a whole store. :func:`sweep` removes leftovers of writes that had replaced nothing.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
import warnings
from collections.abc import Iterable, Iterator
from functools import partial
from typing import cast

from xzarr3.commit.lease import (
    CLOSING,
    SWAPS,
    Holder,
    Lease,
    check_complete,
    keeps_leases,
    keys_above,
    lease_key,
    place_key,
)
from xzarr3.commit.leftovers import ABANDONED, age, said_in
from xzarr3.commit.renames import remove, remove_partial, sweep_directory
from xzarr3.commit.resume import Resumption, is_top, settled
from xzarr3.commit.stage import BEGUN, SWAP, NodeKeys, staged_prefixes, staging_folders
from xzarr3.commit.swap import Swap
from xzarr3.errors import NodeExistsError, StoreError, printable
from xzarr3.formats import Format, ZarrFormat, parse_format
from xzarr3.formats.base import node_prefix
from xzarr3.nodes.erase import formats_in
from xzarr3.stores import LocalStore, Store

_SWEPT = 8  # leftovers of other writes removed by a write that replaces nothing


def check_top(store: Store, top: str) -> None:
    """Raise unless ``top`` is a prefix made by a write: nothing else may be removed."""
    if not is_top(top):
        raise StoreError(
            f"nothing of {store} is removed: {printable(top)!r} is not a prefix of values that a write "
            "staged; remove the lease if xzarr3 has not written it"
        )


def remove_staged(store: Store, top: str, known: list[str] | None = None) -> None:
    """Remove everything that a write has staged, the list of steps first.

    Parameters
    ----------
    store : Store
    top : str
    known : list of str, optional
        Keys of the staged values; by default those that are listed.
    """
    check_top(store, top)
    store.erase(f"{top}{SWAP}")
    if store.folder is not None:
        remove(os.path.join(str(store.folder), top[:-1]))
        return
    ends = {f"{top}{BEGUN}", f"{top}{SWAP}"}
    keys = sorted(set(store.list_prefix(top)) - ends) if known is None else known
    store.erase_values([*keys, f"{top}{BEGUN}"])


def take(
    lease: Lease,
    store: Store,
    places: NodeKeys,
    resumed: Resumption | None = None,
    *,
    staged: bool | None = None,
    until: float | None = None,
) -> bool:
    """Take the lease of a place, and finish the swap of its previous holder if that was killed.

    Parameters
    ----------
    lease : Lease
    store : Store
    places : Places
    resumed, staged
        As :func:`settled` has them.
    until : float, optional
        Until when to wait for a living holder, on the clock of :func:`time.monotonic`.

    Returns
    -------
    bool
        Whether this write resumes a cut-off write of its plan; see :func:`settled`.

    Raises
    ------
    NodeExistsError
        If a living writer holds the lease.
    """
    with _reserved(lease, store, places.path, until):
        if lease.said.state in SWAPS:
            lease.say(places.path, "", lease.top)
        return settled(lease, resumed, partial(_remove_left, store), staged=staged)


@contextlib.contextmanager
def _reserved(lease: Lease, store: Store, path: str, until: float | None = None) -> Iterator[Swap | None]:
    """Take the lease of a place, and finish the swap of its previous holder if that was killed.

    If the block raises, the lease is left with its content for the next writer.
    """
    lease.reserve(path, until)
    if store.folder is not None:  # a writer that is just reserving the place is refused anyway
        remove_partial(os.path.join(str(store.folder), os.path.dirname(lease.key)))
    try:
        yield _finish(lease, store, lease.key, lease.said)
    except BaseException:
        lease.leave()
        raise


def _remove_left(store: Store, top: str) -> None:
    """Remove what another write has staged; a failure is only a warning, as leftovers block no writer."""
    try:
        remove_staged(store, top)
    except StoreError as error:
        warnings.warn(
            f"some of what a killed process left in {store} could not be removed: {error}", stacklevel=2
        )


def finish_swap(store: Store, key: str, path: str, until: float | None = None) -> Swap | None:
    """Finish the swap of a killed writer, found by the key of its lease.

    Parameters
    ----------
    store : Store
    key : str
    path : str
        Path of the node, for messages.
    until : float, optional
        Until when to wait for a writer that is finishing it already, on the clock of :func:`time.monotonic`.

    Returns
    -------
    Swap or None
        The swap, if something was left to do.

    Raises
    ------
    NodeExistsError
        If the writer lives.
    """
    found = Lease(store, key, "replace").there()
    if found.state not in SWAPS:
        return None
    if not keeps_leases(store):
        done = _finish(None, store, key, found)
        store.erase(key)
        return done
    return _finish_alone(store, key, path, until)


def _finish_alone(
    store: Store, key: str, path: str, until: float | None = None, top: str = ""
) -> Swap | None:
    """Finish the swap of a killed writer; without one, remove what it has staged under ``top``."""
    lease = Lease(store, key, "replace")
    # the previous holder may have finished its swap itself
    with _reserved(lease, store, path, until) as done:
        if done is None and top:
            remove_staged(store, top)
    lease.release()
    return done


def _finish(lease: Lease | None, store: Store, key: str, said: Holder) -> Swap | None:
    """Finish the swap that a lease names; None if only its staged values were left to remove."""
    if said.state not in SWAPS:
        return None
    swap = _listed(store, said)
    if swap is not None:
        # expected only where the key follows from the path
        expected = place_key(store, swap.path, "") if store.folder is not None else key
        if (swap.renames, key) != (store.folder is not None, expected):
            raise StoreError(
                f"key '{said.top}{SWAP}' lists what is to be done at '/{printable(swap.path)}', but "
                f"the lease '{key}' names it; remove both keys"
            )
        format = _format_of(store, swap.zarr_format)
        say = partial(say_state, store, key, swap.path, said.top, lease)
        if said.state == CLOSING and not swap.renames:
            swap.close(store, format)
        elif not swap.carry_out(store, said.top, format, say):
            swap = None
    _remove_left(store, said.top)
    return swap


def say_state(store: Store, key: str, path: str, top: str, lease: Lease | None, state: str) -> None:
    """Store the state of a place in its lease."""
    if lease is not None:
        lease.say(path, state, top)
    else:  # no lease keeps other writers away, but readers are told
        store.set(key, Holder(state=state, top=top, left=True).text())


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
        done = done or found.state in SWAPS
        if found.state in SWAPS and found.is_dead:
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
    for key, found in _leases_in(store):
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


def _leases_in(store: Store) -> list[tuple[str, Holder]]:
    """The leases in a directory whose places are being swapped, by key."""
    keys = [lease_key(f"{os.path.basename(folder)}/") for folder in staging_folders(store)]
    found = [(key, Holder.parse(value)) for key, value in zip(keys, store.get_values(keys), strict=True)]
    return [(key, holder) for key, holder in found if holder.state in SWAPS]


def _listed(store: Store, found: Holder) -> Swap | None:
    """The stored list of steps of the swap that a lease names."""
    if found.state not in SWAPS:
        return None
    check_top(store, found.top)
    key = f"{found.top}{SWAP}"
    value = store.get(key)
    return None if value is None else Swap.parse(value, key)


def format_swapped(store: Store) -> Format | None:
    """The format of a root node whose swap is unfinished."""
    swap = _listed(store, Holder.parse(store.get(place_key(store, "", ""))))
    return None if swap is None else _format_of(store, swap.zarr_format)


def _format_of(store: Store, zarr_format: ZarrFormat) -> Format:
    """The format of the documents of a swap."""
    there = [each for each in formats_in(store) if each.answers_to(zarr_format)]
    return there[0] if there else parse_format(zarr_format)


def recover_swaps(store: Store) -> list[str]:
    """Finish the swaps of killed writers, and remove leftovers of other killed writes.

    Returns
    -------
    list of str
        Paths of the nodes whose swaps were finished.
    """
    ended: list[str] = []
    if store.folder is not None:
        failed: StoreError | None = None
        for leased, found in _leases_in(store):
            try:
                there = _listed(store, found)
                done = finish_swap(store, leased, "" if there is None else there.path)
            except StoreError as error:  # raised after the other swaps are finished
                failed = failed or error
            else:
                ended += [] if done is None else [f"/{done.path}"]
        sweep_directory(store)
        if failed is not None:
            raise failed
        return ended
    for top in staged_prefixes(store):
        begun = said_in(store.get(f"{top}{BEGUN}"))
        key = begun.get("lease")
        if not isinstance(key, str):
            remove_abandoned(store, [top])  # no lease tells whether the writer lives, but its age does
            continue
        holder = Lease(store, key, "replace").there()
        done = None
        if not _may_be_of(holder, top):  # its writer has lost the lease and will give up
            remove_staged(store, top)
        elif holder.state in SWAPS:
            done = finish_swap(store, key, _path_of(key))
        elif holder.plan is None:  # writes with a plan can be resumed
            with contextlib.suppress(NodeExistsError):  # its writer lives
                done = _finish_alone(store, key, _path_of(key), top=top)
        ended += [] if done is None else [f"/{done.path}"]
    return ended


def _may_be_of(holder: Holder, top: str) -> bool:
    """Whether staged values may belong to the holder of a lease; an empty ``top`` may mean any."""
    return holder.top == top or bool(holder.owner and not holder.top)


def _path_of(key: str) -> str:
    """The path of a node, from the key of its lease; for messages."""
    return key.rpartition("/")[0]


def sweep(store: Store, tops: Iterable[str] | None = None) -> None:
    """Remove leftovers of killed writes that had replaced nothing.

    Parameters
    ----------
    store : Store
    tops : iterable of str, optional
        Key prefixes of these leftovers, in a store of keys; by default, a few are picked at random.

    Raises
    ------
    StoreError
        If they cannot be removed.
    """
    if store.folder is not None:
        sweep_directory(store)
        return
    if tops is None:
        found = staged_prefixes(store)
        tops = random.sample(found, min(len(found), _SWEPT))
    remove_abandoned(store, tops)


def remove_abandoned(store: Store, tops: Iterable[str]) -> None:
    """Remove leftovers under these prefixes that no later write will resume."""
    for top in tops:
        begun, leased = store.get_values([f"{top}{BEGUN}", lease_key(top)])
        said = said_in(begun)
        named = said.get("lease")
        if isinstance(named, str) and _may_be_of(Lease(store, named, "replace").there(), top):
            continue  # the next writer there resumes it or removes it
        if leased is not None:  # a write that sets values of existing arrays, or one that is being removed
            holder = Holder.parse(leased)
            is_kept = holder.is_dead is False or age(holder.renewed) < ABANDONED
        else:  # without leases, only the age tells whether the writer may still live
            is_kept = (named is None or not keeps_leases(store)) and age(said.get("time")) < ABANDONED
        if not is_kept:
            # First, so that a living writer does not continue without the rest.
            store.erase_values([f"{top}{BEGUN}", lease_key(top)])
            store.erase_prefix(top)
