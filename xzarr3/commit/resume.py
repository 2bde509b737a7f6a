"""Resumable writes: which stores keep what a cut-off write has stored, and what the next write finds.

A write that creates or replaces a node can be resumed. It is identified by the fingerprint of its plan. Its
lease holds the fingerprint and the prefix of what it stores beside its place, and stays if the write is cut
off. The next writer that takes this lease resumes below the same prefix if its plan is the same; otherwise it
removes everything there. Units that are stored, there or in place, are done.
"""

from __future__ import annotations

import warnings

from xzarr3.commit.lease import Holder, boot
from xzarr3.errors import StoreCapabilityError, printable
from xzarr3.stores import Store


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


def warn_of_restart(store: Store) -> None:
    """Warn that a cut-off write is not resumed, as the system was restarted since."""
    warnings.warn(
        f"the system was restarted after an interrupted write to {store}, so values may not have reached the "
        "disk; all are written again; use a LocalStore with fsync=True to keep them",
        stacklevel=2,
    )


def warn_of_another(path: str, store: Store) -> None:
    """Warn that a cut-off write of another plan is dropped at this place."""
    warnings.warn(
        f"a different write to '/{printable(path)}' in {store} was interrupted, so none of it is resumed: "
        "its data or encoding differ, or dask has given its arrays other names, as it does for sources "
        "that it cannot hash; what that write left is removed",
        stacklevel=2,
    )
