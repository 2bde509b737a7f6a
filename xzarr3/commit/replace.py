"""Chooses how a node is made or replaced in a store, and carries it out: all of it or nothing.

Such a write can be resumed. It is identified by the fingerprint of its plan. Its lease holds the fingerprint
and the prefix of what it stores beside its place, and stays if the write is cut off. The next writer that
takes this lease resumes below the same prefix if its plan is the same; otherwise it removes everything there.
Units that are stored, there or in place, are done.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from xzarr3.commit.create import groups_missing
from xzarr3.commit.directory import Directory
from xzarr3.commit.keys import Keys, Session
from xzarr3.commit.lease import SWAPPING, Holder, Lease, boot, check_complete, holder_at
from xzarr3.commit.places import Place
from xzarr3.commit.recover import finish_near, sweep
from xzarr3.commit.staged import BEGUN, is_top, said_in
from xzarr3.commit.transaction import NewNode, Transaction
from xzarr3.errors import (
    NodeExistsError,
    ReadOnlyError,
    StoreCapabilityError,
    StoreError,
    levels_to_caller,
    printable,
)
from xzarr3.nodes.case_folding import check_names
from xzarr3.nodes.find import DocumentView
from xzarr3.parallel import parallel_map
from xzarr3.stores import LocalStore, Store


@contextmanager
def write(*transactions: Transaction) -> Iterator[None]:
    """Begin transactions, let the block store the values, then publish; after an error all is given up.

    Transactions that were published before the error stay.
    """
    done: list[Transaction] = []
    begun: list[Transaction] = []
    number = max((each.target.concurrency for each in transactions), default=1)

    def begin(each: Transaction) -> None:
        begun.append(each)
        each.begin()

    def publish(each: Transaction) -> None:
        each.publish()
        done.append(each)

    try:
        parallel_map(begin, transactions, number)
        yield
        parallel_map(publish, transactions, number)
    except BaseException as error:
        for each in begun:
            if each not in done:
                each.give_up(error)
        raise
    finally:
        for each in done:
            _clean(each)


def _clean(done: Transaction) -> None:
    """Remove what a published write needs no more; a failure is a warning, as the node is whole."""
    try:
        done.clean()
        if done.is_staged:
            sweep(done.target)
    except StoreError as error:
        warnings.warn(
            f"'/{printable(done.place.path)}' in {done.target} was written, but some values that it "
            f"replaced, or that it needed while writing, could not be removed: {error}",
            stacklevel=levels_to_caller(("xzarr3", "contextlib")),  # `write` is a context manager
        )


def transaction(
    store: Store,
    new: NewNode,
    *,
    overwrite: bool,
    how: str,
    plan: str | None = None,
    lease: Lease | None = None,
) -> Transaction:
    """The transaction that makes or replaces a node, in the way that suits the store.

    Parameters
    ----------
    store : Store
    new : NewNode
    overwrite : bool
        Replace what is there; without it, the place must be empty.
    how : str
        What a user passes to replace an existing node, for messages.
    plan : str, optional
        As :class:`Transaction` has it.
    lease : Lease, optional
        The lease of the place, if the caller holds it from before the write to after it.

    Raises
    ------
    NodeExistsError
        If the place is not empty and ``overwrite`` is not set, or if something that is no part of a Zarr
        hierarchy is in the way.
    NodeTypeError
        If there is an array above.
    ReadOnlyError, StoreError
        If the store cannot be written.
    """
    if store.read_only:
        raise ReadOnlyError(f"{store} is read-only")
    format, path = new.format, new.path
    if store.folder is not None:
        finish_near(store, path)
    check_names(store, format, path, [each for each in new.nodes if each != path])
    place = Place.of(store, format, path, new.nodes)
    groups_missing(DocumentView(store), format, path)
    if store.folder is not None:
        _check_folders(cast("LocalStore", store), place)
    left = _left(place, plan)
    in_place = left is not None and store.folder is None
    goes_on = in_place and not said_in(store.get(f"{left}{BEGUN}")).get("staged")
    if not (overwrite or goes_on) and place.is_occupied():
        check_complete(store, path, f"node '/{path}'")
        raise NodeExistsError(
            f"'/{path}' in {store} is not empty; write to another path, or pass {how} to replace what is "
            "stored there"
        )
    way: type[Transaction] = Keys
    if store.folder is not None:
        way = Directory
    elif store.traits.visible == "at commit":
        way = Session
    return way(place, new, overwrite=overwrite, plan=plan, left=left, goes_on=goes_on, lease=lease)


def _left(place: Place, plan: str | None) -> str | None:
    """Prefix of what a cut-off write of this plan has left, if it can be resumed."""
    left = None if plan is None else holder_at(place.store, place.lease().key)
    if left is None or left.plan != plan or left.state == SWAPPING or not is_top(left.top):
        return None
    if may_be_lost(place.store, left):
        _warn_of_restart(place.store)
        return None
    return left.top if place.store.folder is not None or place.store.exists(f"{left.top}{BEGUN}") else None


def _check_folders(store: LocalStore, place: Place) -> None:
    """Raise if something on the path to a directory of the node is not a directory."""
    for prefix in place.prefixes:
        folder = os.path.join(store.root, prefix.rstrip("/")) if prefix else store.root
        while not os.path.lexists(folder) and os.path.dirname(folder) != folder:
            folder = os.path.dirname(folder)
        if os.path.exists(folder) and not os.path.isdir(folder):
            raise StoreError(
                f"cannot write to '/{place.path}' in {store}: '{folder}' is a file, not a directory; write "
                "to another path, or remove the file"
            )


# Resuming


def check_resumable(store: Store) -> None:
    """Raise if writes to a store cannot be resumed.

    Raises
    ------
    StoreCapabilityError
    """
    if store.traits.visible != "at once":
        lacks = "keeps nothing of a write that was cut off"
    elif not store.readable or not store.listable:
        lacks = "cannot be read and listed"
    elif not store.erasable:
        lacks = "cannot erase"
    else:
        return
    raise StoreCapabilityError(
        f"resume=True keeps what is stored in {store}, which {lacks}; write to a store that can be read, "
        "listed, written and erased, such as a directory, or pass resume=False"
    )


def may_be_lost(store: Store, holder: Holder) -> bool:
    """Whether a crash of this system since may have lost values stored by the holder of a lease."""
    host, started = boot()
    return not store.traits.durable and holder.host == host and holder.boot != started


def _warn_of_restart(store: Store) -> None:
    """Warn that a cut-off write is not resumed, as the system was restarted since."""
    warnings.warn(
        f"the system was restarted after an interrupted write to {store}, so values may not have reached the "
        "disk; all are written again; use a LocalStore with fsync=True to keep them",
        stacklevel=2,
    )
