"""Writes of other processes to a session of Icechunk: tasks write to forks of it, which are merged.

A fork is made when dask sends the tasks away, so it knows the documents that were stored before. Each task
writes to a copy of its own and returns that, and the tasks that wait for others merge what these return. So
a task that runs again, since its worker was lost, adds nothing twice. Tasks of this process write to the
session itself.

A task does not see what another one wrote. So no two tasks may write parts of one stored unit.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import dask.local
import dask.threaded
from dask.base import get_scheduler

from xzarr3.errors import StoreCapabilityError
from xzarr3.stores import Store
from xzarr3.stores.foreign import IcechunkStore


class Forks:
    """The fork of a session that the tasks of one write begin with.

    Parameters
    ----------
    store : IcechunkStore
        The store of the session.
    """

    def __init__(self, store: IcechunkStore) -> None:
        self.store = store

    @cached_property
    def fork(self) -> bytes:
        """The pickled form."""
        return self.store.fork()

    def merge(self, written: bytes | None) -> None:
        """Take over what tasks of other processes have written; later tasks begin with another fork."""
        if written is not None:
            self.store.merge(written)
        vars(self).pop("fork", None)


def forks_of(store: Store, scheduler: Any = None) -> Forks | None:
    """The forks for a write to a session by a scheduler that runs tasks in other processes; else None.

    Raises
    ------
    StoreCapabilityError
        If the scheduler would write to a transaction that has no forks.
    """
    in_process = (None, dask.threaded.get, dask.local.get_sync)
    if store.traits.visible != "at commit" or get_scheduler(scheduler=scheduler) in in_process:
        return None
    store.check_writable()
    if isinstance(store, IcechunkStore) and store.can_fork:
        return Forks(store)
    raise StoreCapabilityError(
        f"{store} can be written by this process only, and the scheduler of dask runs tasks in others; "
        "pass scheduler='threads', in to_zarr as chunkmanager_store_kwargs={'scheduler': 'threads'}, or "
        "set it with dask.config.set"
    )


def merged(written: Iterable[bytes | None]) -> bytes | None:
    """One fork that has what all have; None if no task wrote to a fork."""
    first, *others = [pickle.loads(fork) for fork in written if fork is not None] or [None]
    if first is None:
        return None
    first.merge(*others)
    return pickle.dumps(first, 5)
