"""Locks of this process: a registry that frees them after a fork, and one lock for each key of a store.

A fork copies locks in their present state. A lock held by another thread then stays locked for ever in the
child, which does not have that thread. Locks that outlive a call are therefore passed to :func:`fork_safe`.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import compress
from operator import methodcaller
from typing import Any, TypeVar
from weakref import WeakSet, ref

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
_locks: dict[object, ref[threading.RLock]] = {}  # Plain, as a WeakValueDictionary takes four times as long.
_MANY = 4096  # Each time the number grows by so many, unused ones are forgotten.
_guard = fork_safe(threading.Lock())

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free)


_acquire, _release = methodcaller("acquire", blocking=False), methodcaller("release")


@contextlib.contextmanager
def free_key_locks(store: object, keys: Iterable[str]) -> Iterator[list[bool]]:
    """Hold the locks of those keys that no other thread holds; gives for each key whether it is held.

    Never waits, so several threads that do this with the same keys in any order cannot block each other.
    """
    with _guard:
        locks = [_lock_of((store, key)) for key in keys]
    held: list[bool] = []
    try:
        # Neither line runs Python code in between, so that Ctrl-C leaves no lock behind.
        held.extend(map(_acquire, locks))
        yield held
    finally:
        deque(map(_release, compress(locks, held)), maxlen=0)


def key_lock(store: object, key: str) -> threading.RLock:
    """The lock of one key. A thread that holds it may write to other keys.

    Parameters
    ----------
    store : object
        The identity of the store.
    key : str
    """
    with _guard:
        return _lock_of((store, key))


def _lock_of(name: object) -> threading.RLock:
    """The lock of a name, while ``_guard`` is held; locks that nobody uses are forgotten now and then."""
    known = _locks.get(name)
    lock = None if known is None else known()
    if lock is None:
        if known is None and len(_locks) % _MANY == _MANY - 1:
            for unused in [name for name, known in _locks.items() if known() is None]:
                del _locks[unused]
        lock = threading.RLock()
        _locks[name] = ref(lock)
    return lock
