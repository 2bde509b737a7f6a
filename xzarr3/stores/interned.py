"""One object for equal stores of this process, however many times they were unpickled.

A worker receives thousands of arrays, each with its store. Equal stores become one object, so that they share
one client, one cache and one count of requests. Those that were used last are kept alive between tasks.
"""

from __future__ import annotations

import copyreg
import pickle
import threading
import uuid
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

from xzarr3.stores.locks import fork_safe

if TYPE_CHECKING:
    from xzarr3.stores.base import Store

T = TypeVar("T")

_MOST_BESIDE = 512  # Objects kept alive with one store.
_PLAIN = (str, bytes, int, float, bool, type(None))


class Interned:
    """Objects of this process by what describes them completely; those used last are kept alive.

    Parameters
    ----------
    most : int
        How many are kept alive.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = fork_safe(threading.RLock())
        self._live: weakref.WeakValueDictionary[Hashable, Any] = weakref.WeakValueDictionary()
        # With each what is kept beside it.
        self._kept: OrderedDict[Hashable, tuple[Any, OrderedDict[Hashable, Any]]] = OrderedDict()

    def __call__(self, key: Hashable, make: Callable[[], T], *, keep: bool = True) -> T:
        """The object for a key; ``make`` makes it, without any request, if there is none."""
        with self._lock:
            found = self._live.get(key)
            if found is None:
                found = self._live[key] = make()
            if keep:
                self._kept.setdefault(key, (found, OrderedDict()))
                self._kept.move_to_end(key)
            dropped = [self._kept.popitem(last=False) for _ in range(len(self._kept) - self._most)]
        del dropped  # Outside the lock, as dropping an object may run any finalizer.
        return cast("T", found)

    def keep_beside(self, owner: object, key: Hashable, thing: object) -> None:
        """Keep ``thing`` alive for as long as ``owner`` is kept alive; no effect if it is not kept."""
        with self._lock:
            things = next((things for each, things in self._kept.values() if each is owner), None)
            if things is None:
                return
            things[key] = thing
            things.move_to_end(key)
            dropped = things.popitem(last=False) if len(things) > _MOST_BESIDE else None
        del dropped


interned = Interned(32)
"""The stores of this process."""


@dataclass(frozen=True)
class Named:
    """An object of a user, and a name that no other object ever gets, unlike its :func:`id`."""

    thing: Any = field(compare=False)
    name: str = field(default_factory=lambda: uuid.uuid4().hex)


def named(thing: object) -> Named:
    """The name of an object: one and the same for as long as somebody holds it."""
    return interned((Named, id(thing)), lambda: Named(thing), keep=False)


def reduced(store: Store, kind: type[Store], *kinds: type) -> tuple[object, ...]:
    """What ``__reduce__`` returns for a store that its state describes completely.

    A store of a derived class, or with a state that is no plain data, is pickled as if there were no
    ``__reduce__``.

    Parameters
    ----------
    store : Store
    kind : type
        The class that calls this function.
    *kinds : type
        Types that the state may contain besides plain ones.
    """
    from xzarr3.stores.base import Traits

    state = store.__getstate__()
    rest = {name: value for name, value in state.items() if name not in ("inner", "_name")}
    if type(store) is not kind or not is_plain(rest, Traits, *kinds):
        return copyreg.__newobj__, (type(store),), state  # type: ignore[attr-defined]
    return _restore, (kind, pickle.dumps(sorted(rest.items()), 5), state.get("inner"))


def _restore(kind: type[Any], recipe: bytes, inner: Store | None) -> Any:
    def make() -> Any:
        state = dict(pickle.loads(recipe))
        if inner is not None:
            state["inner"] = inner
        store = object.__new__(kind)
        vars(store).update(state)
        return store

    return interned((kind, recipe, id(inner)), make)


def is_plain(value: object, *kinds: type) -> bool:
    """Whether a value consists of plain types and ``kinds`` only, so that equal values pickle equally."""
    if type(value) in _PLAIN:
        return True
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return all(is_plain(item, *kinds) for item in value)
    if type(value) is dict:
        return all(is_plain(item, *kinds) for pair in value.items() for item in pair)
    return isinstance(value, kinds)
