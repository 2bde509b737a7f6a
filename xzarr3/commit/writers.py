"""Keeps apart who replaces a node and who writes values in its arrays, where answers are waited for.

In memory and in a directory, a write sees that an array has left its place before it stores a unit. Over
latency it looks once, and its requests may arrive when another node is there. So who writes values in a group
holds a shared lease beside that of the group, and then looks whether somebody replaces the group or a node
above it. Who replaces a node says so in the lease of the place first, and then waits for the shared leases of
all who write in it. Of two at once, at least one sees the other.
"""

from __future__ import annotations

import time
import uuid
import warnings
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

import msgspec

from xzarr3.commit.lease import (
    SHARED,
    Lease,
    LeaseLostError,
    check_complete,
    holder_at,
    is_lease,
    keeps_leases,
    lease_key,
)
from xzarr3.commit.transaction import Transaction, take
from xzarr3.errors import NodeExistsError, StoreError, contended, levels_to_caller
from xzarr3.formats import Format
from xzarr3.formats.base import node_prefix
from xzarr3.stores import Store

_MOST_NAMED = 200  # Arrays in a lease, which is small.


def keeps_apart(store: Store) -> bool:
    """Whether writers of values hold shared leases in a store."""
    return store.folder is None and store.concurrency > 1 and keeps_leases(store)


@contextmanager
def writing(store: Store, format: Format, group: str, arrays: Collection[str]) -> Iterator[str]:
    """Hold a shared lease while values are written in arrays of a group.

    Parameters
    ----------
    store : Store
    format : Format
    group : str
        Path of the group.
    arrays : collection of str
        Paths of the arrays.

    Yields
    ------
    str
        The key of the lease.

    Raises
    ------
    IncompleteWriteError
        If another writer is replacing the group, or a node above it.
    LeaseLostError
        If the lease was lost, so that the values may be in another node by now.
    """
    key = f"{lease_key(_prefix(format, group))}{SHARED}{uuid.uuid4().hex}"
    named = sorted(arrays) if len(arrays) <= _MOST_NAMED else [group]
    lease = Lease(store, key, "write", top=msgspec.json.encode(named).decode())
    lease.take()
    try:
        check_complete(store, group, f"group '/{group}' to write to")
        yield key
        if not (lease.is_sure or lease.holds()):
            raise LeaseLostError(
                f"another writer took lease '{key}' of {store} away, as this write seemed to have been "
                f"abandoned; '/{group}' may have been replaced since, and hold values of this write: read it"
            )
    finally:
        try:
            lease.release()
        except StoreError as error:
            warnings.warn(
                f"who replaces '/{group}' in {store} may have to wait, as the lease '{key}' could not be "
                f"taken away yet: {error}",
                stacklevel=levels_to_caller(),
            )


def shared_beside(store: Store, format: Format, path: str) -> list[str]:
    """The keys of the leases of those who write values in a node and in others of its group."""
    if not path or not keeps_apart(store):
        return []
    return [*filter(_is_shared, store.list_dir(_prefix(format, path.rpartition("/")[0]))[0])]


def wait_for_writers(
    way: type[Transaction], store: Store, path: str, keys: Iterable[str], own: Collection[str]
) -> bool:
    """Wait until nobody writes values in a node any more; who begins now has seen that it is being replaced.

    What one who has ended has left within the node is finished or removed.

    Parameters
    ----------
    way : type of Transaction
        How nodes are replaced in the store.
    store : Store
    path : str
        Path of the node.
    keys : iterable of str
        The keys of the node and of all nodes below it, listed since the caller has said that it replaces it,
        and those that :func:`shared_beside` tells.
    own : collection of str
        Keys of leases of the caller.

    Returns
    -------
    bool
        Whether there were any writers, so that the keys may be others now.

    Raises
    ------
    ConflictError
        If a living writer holds a shared lease for longer than :attr:`Traits.conflict_deadline` seconds, or
        makes, replaces or erases a node within this one.
    """
    until = time.monotonic() + store.traits.conflict_deadline
    leases = set(filter(is_lease, keys)).difference(own)
    for key in sorted(leases):
        is_shared = _is_shared(key)
        if _writes_in(path, store, key) if is_shared else holder_at(store, key).purpose == "replace":
            lease = Lease(store, key, "replace")
            try:
                take(way, lease, store, path, until if is_shared else None)
            except NodeExistsError:
                doing = "writing values in" if is_shared else "writing or erasing a node within"
                raise contended(key, store, f"another writer kept {doing} '/{path}'") from None
            lease.release()
    return bool(leases)


def _prefix(format: Format, group: str) -> str:
    return format.keys(group).chunks if group else ""


def _is_shared(key: str) -> bool:
    return key.rpartition("/")[2].startswith(lease_key("") + SHARED)


def _writes_in(path: str, store: Store, key: str) -> bool:
    """Whether the holder of a shared lease writes values in a node; not if it has ended just now."""
    said = holder_at(store, key)
    try:
        named = msgspec.json.decode(said.top or "[]", type=list[str])
    except msgspec.MsgspecError:
        return bool(said.owner)
    within = node_prefix(path)
    return any(node_prefix(each).startswith(within) or within.startswith(node_prefix(each)) for each in named)
