"""Locks of this process: a registry that frees them after a fork, and one lock for each key of a store.

A fork copies locks in their present state. A lock held by another thread then stays locked for ever in the
child, which does not have that thread. Locks that outlive a call are therefore passed to :func:`fork_safe`.
"""

from __future__ import annotations

import os
import threading
from typing import Any, TypeVar
from weakref import WeakSet, WeakValueDictionary

Lock = TypeVar("Lock")


def fork_safe(lock: Lock) -> Lock:
    """Register a lock to be free in forked children; returns the lock.

    Parameters
    ----------
    lock : threading.Lock or threading.RLock
    """
    _noted.add(lock)
    return lock


def _free() -> None:
    """Free all registered locks in a forked child, as :mod:`threading` does with its own."""
    for lock in list(_noted):
        lock._at_fork_reinit()
    _locks.clear()


_noted: WeakSet[Any] = WeakSet()
_locks: WeakValueDictionary[object, threading.RLock] = WeakValueDictionary()
_guard = fork_safe(threading.Lock())

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free)


def key_lock(store: object, key: str) -> threading.RLock:
    """The lock of one key. A thread that holds it may write to other keys.

    Parameters
    ----------
    store : object
        The identity of the store.
    key : str
    """
    with _guard:
        return _locks.setdefault((store, key), threading.RLock())
