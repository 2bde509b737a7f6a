"""Locks of this process: what a fork does to them, and one for each key of a store.

A fork copies locks as they are, also those that other threads hold, which the child does not have. The child
must not wait for these threads; so locks that outlive a call are handed to :func:`fork_safe`.
"""

from __future__ import annotations

import os
import threading
from typing import Any, TypeVar
from weakref import WeakSet, WeakValueDictionary

Lock = TypeVar("Lock")


def fork_safe(lock: Lock) -> Lock:
    """Have a lock free in forked children; returns it.

    Parameters
    ----------
    lock : threading.Lock or threading.RLock
    """
    _noted.add(lock)
    return lock


def _free() -> None:
    """Free all locks in a forked child, as :mod:`threading` does with its own."""
    for lock in list(_noted):
        lock._at_fork_reinit()
    _locks.clear()


_noted: WeakSet[Any] = WeakSet()
_locks: WeakValueDictionary[object, threading.RLock] = WeakValueDictionary()
_guard = fork_safe(threading.Lock())

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free)


def key_lock(store: object, key: str) -> threading.RLock:
    """The lock of a key, and of no other: who holds it may well write to another key.

    Parameters
    ----------
    store : object
        The identity of the store.
    key : str
    """
    with _guard:
        return _locks.setdefault((store, key), threading.RLock())
