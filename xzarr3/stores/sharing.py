"""Sharing of unpickled stores: equal pickled forms become one store object in each process.

A worker receives thousands of arrays, each with its store. Sharing gives them one client, one cache and one
request count. The stores that were used last are kept alive between tasks.
"""

from __future__ import annotations

import copyreg
import pickle
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, TypeVar, cast

from xzarr3.stores.base import Store
from xzarr3.stores.locks import fork_safe

_Kind = TypeVar("_Kind", bound=Store)

_MOST_KEPT = 32  # Total weight of the stores that are kept alive without users.
_MOST_BESIDE = 512  # Objects kept alive with one store.
_PLAIN = frozenset((str, bytes, int, float, bool, type(None)))
_SETTINGS = (
    "read_only", "concurrency", "request_bytes", "over_read", "conflict_deadline",
    "fsync", "locks", "follow_links", "level", "keep", "max_age",
)  # fmt: skip

_lock = fork_safe(threading.Lock())
_shared: dict[Hashable, tuple[weakref.ref[Store], list[object]]] = {}
_kept: OrderedDict[int, tuple[Store, int, OrderedDict[Hashable, object]]] = OrderedDict()


def share(key: Hashable, make: Callable[[], _Kind], weight: int = 1) -> _Kind:
    """The store of this process for a key; made if there is none, or if its settings have changed.

    Parameters
    ----------
    key : hashable
        Describes the store completely.
    make : callable
        Makes the store, without any request.
    weight : int
        Share of the limit on kept stores that this store takes; an ordinary store takes 1.
    """
    with _lock:
        found = _find(key)
        if found is not None and id(found) in _kept:
            _kept.move_to_end(id(found))
            return cast("_Kind", found)
    made = make() if found is None else found
    with _lock:
        store = _find(key)  # Another thread may have stored one meanwhile.
        if store is None:
            store = made
            _shared[key] = weakref.ref(store, partial(_forget, key)), _settings(store)
        _kept.setdefault(id(store), (store, weight, OrderedDict()))
        dropped = []  # Released outside the lock: dropping a store may run any finalizer.
        while len(_kept) > 1 and sum(weight for _, weight, _ in _kept.values()) > _MOST_KEPT:
            dropped.append(_kept.popitem(last=False))
    return cast("_Kind", store)


def _find(key: Hashable) -> Store | None:
    entry = _shared.get(key)
    found = None if entry is None else entry[0]()
    return None if found is None or entry is None or _settings(found) != entry[1] else found


def _forget(key: Hashable, gone: weakref.ref[Store]) -> None:
    entry = _shared.get(key)
    if entry is not None and entry[0] is gone:
        del _shared[key]


def keep_beside(store: Store, key: Hashable, thing: object) -> None:
    """Keep ``thing`` alive for as long as ``store`` is kept alive; no effect if the store is not kept."""
    with _lock:
        entry = _kept.get(id(store))
        if entry is None:
            return
        things = entry[2]
        things[key] = thing
        things.move_to_end(key)
        dropped = things.popitem(last=False) if len(things) > _MOST_BESIDE else None
    del dropped


def _settings(store: Store) -> list[object]:
    """The settings that users may change on an existing store."""
    found = vars(store)
    return [found.get(name) for name in _SETTINGS]


def is_plain(value: object, *kinds: type) -> bool:
    """Whether a value consists of simple types and ``kinds`` only, so that equal values pickle equally."""
    if type(value) in _PLAIN:
        return True
    if type(value) in (list, tuple):
        return all(is_plain(item, *kinds) for item in cast("list[object]", value))
    if type(value) is dict:
        return all(is_plain(item, *kinds) for pair in value.items() for item in pair)
    import logging

    if type(value) is logging.Logger:  # It is pickled by its name.
        return True
    return isinstance(value, kinds) and is_plain(vars(value), *kinds)


def reduced(store: Store, kind: type[Store], *kinds: type, weight: int = 1) -> tuple[object, ...]:
    """What ``__reduce__`` returns for a store that its state describes completely.

    A store of a derived class is not shared. It is pickled as if there were no ``__reduce__``.

    Parameters
    ----------
    store : Store
    kind : type
        The class that calls this function.
    *kinds : type
        Types that the state may contain besides simple types.
    weight : int
        See :func:`share`.
    """
    state: dict[str, Any] = dict(store.__getstate__())  # type: ignore[call-overload]
    rest = {name: value for name, value in state.items() if name != "inner"}
    if type(store) is not kind or not is_plain(rest, *kinds):
        return copyreg.__newobj__, (type(store),), state  # type: ignore[attr-defined]
    return _restore, (kind, pickle.dumps(sorted(rest.items()), 5), state.get("inner"), weight)


def _restore(kind: type[_Kind], recipe: bytes, inner: Store | None, weight: int) -> _Kind:
    def make() -> _Kind:
        state = dict(pickle.loads(recipe))
        if inner is not None:
            state["inner"] = inner
        store = kind.__new__(kind)
        set_state = getattr(store, "__setstate__", vars(store).update)
        set_state(state)
        return store

    return share((kind, recipe, id(inner)), make, weight)
