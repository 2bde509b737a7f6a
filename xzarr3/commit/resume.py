"""Resumable writes: what a cut-off write leaves, and what the next write finds.

A write that creates or replaces a node can be resumed. It is identified by the fingerprint of its plan. Its
lease holds the fingerprint and the key prefix ``top`` of what it stages. The lease of a cut-off write stays.
The next writer that takes this lease resumes in the same ``top`` if its plan is the same; otherwise it
removes everything under ``top``. Units that are stored, there or in place, are done.
"""

from __future__ import annotations

import re
import uuid
import warnings
from collections.abc import Callable, Mapping

from xzarr3.commit.lease import SWAPS, Holder, Lease, boot
from xzarr3.commit.leftovers import said_in
from xzarr3.commit.stage import BEGUN, NodeKeys
from xzarr3.errors import StoreCapabilityError, StoreError, printable
from xzarr3.stores import Store
from xzarr3.stores.local.names import STAGED

_ABOUT = "about"
_LARGEST = 2**24  # largest note read, in bytes
_TOP = re.compile(f"{re.escape(STAGED)}[0-9a-f]{{32}}/", re.ASCII)


def is_top(prefix: str) -> bool:
    """Whether a prefix is the ``top`` of a write."""
    return _TOP.fullmatch(prefix) is not None


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


class Resumption:
    """A resumable write that creates or replaces a node.

    Parameters
    ----------
    store : Store
    path : str
        Path of the node, for messages.
    plan : str
        Fingerprint of everything that decides which bytes are stored where.
    documents : mapping of str to bytes
        The documents of the node by key. A write whose documents are stored had come to its end.
    """

    _is_kept = "is kept: the same call with resume=True writes what is left; a call without it begins anew"

    def __init__(
        self, store: Store, path: str, plan: str, documents: Mapping[str, bytes] | None = None
    ) -> None:
        self._store = store
        self._path = path
        self.plan = plan
        self.documents = {} if documents is None else documents
        self.top = f"{STAGED}{uuid.uuid4().hex}/"
        """Prefix of all keys that the write stores beside its place."""
        self.is_staged: bool | None = None
        """Whether the cut-off write staged its values; None if it had stored none."""
        self.lease: Lease | None = None
        """Keeps other writers away, once taken."""
        self.has_begun = False

    def find(self, key: str) -> None:
        """Look for a cut-off write of this plan that held the lease with this key.

        A write that was cut off during its swap is not resumed: its swap is finished first.
        """
        found = Lease(self._store, key, "replace").there()
        if found.plan == self.plan and found.state not in SWAPS and is_top(found.top):
            if may_be_lost(self._store, found):
                warnings.warn(
                    f"the system was restarted after an interrupted write to {self._store}, so values may "
                    "not have reached the disk; all are written again; use a LocalStore with fsync=True to "
                    "keep them",
                    stacklevel=2,
                )
                return  # What it has stored lies under another prefix, and is removed.
            self.top = found.top
            begun = self._store.get(f"{self.top}{BEGUN}")
            self.is_staged = None if begun is None else said_in(begun).get("staged") is True

    def goes_on_in_place(self, places: NodeKeys) -> bool:
        """Whether the place holds values of a cut-off in-place write of this plan, not yet whole."""
        keys = sorted({key for each in places.formats for key in each.defining_keys(places.path)})
        return self.is_staged is False and not any(
            value is not None and bytes(value) != self.documents.get(key)
            for key, value in zip(keys, self._store.get_values(keys), strict=True)
        )

    def taken(self, lease: Lease) -> bool:
        """Note the taken lease; returns whether its previous holder left what :meth:`find` had found."""
        self.lease, left = lease, lease.displaced
        if left is not None and left.plan not in (None, self.plan):
            warn_of_another(self._path, self._store)
        same = left is not None and (left.plan, left.top) == (self.plan, self.top)
        return same and self._store.exists(f"{self.top}{BEGUN}")

    def leave(self, error: BaseException) -> None:
        """Leave the lease and the values for a later call to resume, after ``error``."""
        lease, self.lease = self.lease, None
        if lease is None:
            return
        try:
            lease.leave()
        except StoreError as another:
            error.add_note(f"others may have to wait for minutes, as this write seems to go on: {another}")
        if self.has_begun:
            error.add_note(f"what was written to '/{self._path}' in {self._store} {self._is_kept}")


def settled(
    lease: Lease,
    resumed: Resumption | None,
    remove: Callable[[str], object],
    *,
    staged: bool | None = None,
) -> bool:
    """Resume the write of the displaced holder, or remove its leftovers; returns whether it resumes.

    Parameters
    ----------
    lease : Lease
        The lease of the place, just taken.
    resumed : Resumption, optional
    remove : callable
        Removes all keys with a prefix; called if this write does not resume.
    staged : bool, optional
        Whether this write stages its values; None where all writes do.
    """
    if resumed is not None and resumed.taken(lease) and staged in (None, resumed.is_staged):
        return True
    if lease.displaced is not None and is_top(lease.displaced.top):
        remove(lease.displaced.top)
    return False


def warn_of_another(path: str, store: Store) -> None:
    """Warn that a cut-off write of another plan is dropped at this place."""
    warnings.warn(
        f"a different write to '/{printable(path)}' in {store} was interrupted, so none of it is resumed: "
        "its data or encoding differ, or dask has given its arrays other names, as it does for sources "
        "that it cannot hash; what that write left is removed",
        stacklevel=2,
    )
