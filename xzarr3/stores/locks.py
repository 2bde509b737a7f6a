"""Locks of this process, one for each key of a store."""

from __future__ import annotations

import os
import threading
from weakref import WeakValueDictionary

_locks: WeakValueDictionary[object, threading.RLock] = WeakValueDictionary()
_guard = threading.Lock()


def _renew() -> None:
    """A forked child must not wait for a thread of its parent to give a lock back."""
    global _guard
    _guard = threading.Lock()
    _locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


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
