"""A store in the memory of this process."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

from xzarr3._types import Buffer, Found, Part
from xzarr3.errors import ArgumentTypeError, ReadOnlyError, shorten
from xzarr3.parallel import is_child
from xzarr3.stores.base import Key, Store, Traits, called_as
from xzarr3.stores.interned import Named, interned, is_plain, named
from xzarr3.stores.keys import check_key
from xzarr3.stores.locks import fork_safe, key_lock
from xzarr3.stores.values import BytesValue, Value, cut, joined


class MemoryStore(Store):
    """Keys and values in a dictionary.

    Unpickled in the same process, the result is the same store. Unpickled in another process, it is a
    read-only copy, because writes there could not reach the original. In a process forked by
    :mod:`multiprocessing`, a store made before the fork is read-only too.

    Parameters
    ----------
    values : mutable mapping of str to bytes, optional
        The dictionary that holds the values; changes are seen on both sides. Changes that do not go through
        the store are not noticed by what was read before, such as an open dataset.
    read_only : bool
        Refuse every write.

    Raises
    ------
    TypeError
        If a key is no string or a value is not bytes.
    InvalidKeyError
        If a key cannot be the key of a store.

    Examples
    --------
    >>> values = {"a/b": b"value"}
    >>> store = MemoryStore(values)
    >>> bytes(store.get("a/b", (1, 3)))
    b'alu'
    >>> store.set("a/c", b"1")
    >>> values["a/c"], store.get("x") is None, store.list_dir("")
    (b'1', True, (set(), {'a/'}))
    """

    _not_pickled = Store._not_pickled | {"_name", "_values", "_lock", "_numbers", "_is_copy", "_pid"}
    _given: Named | None = None  # The dictionary of a user; all stores of it have its name.
    traits = Traits(request_bytes=2**10, over_read=math.inf, conditional="processes", tells_changes=True)

    def __init__(self, values: MutableMapping[str, Any] | None = None, *, read_only: bool = False) -> None:
        # The user may change a given dictionary, too, and make another store of it.
        traits = {} if values is None else {"tells_changes": False}
        super().__init__(read_only=read_only, **traits)
        self._values: MutableMapping[str, Any] = {} if values is None else values
        if not isinstance(self._values, MutableMapping):
            raise ArgumentTypeError(f"not a store: {shorten(values)}; accepted: a dict, of str to bytes")
        for key, value in list(self._values.items()):
            if not isinstance(key, str) or not isinstance(value, bytes | bytearray | memoryview):
                raise ArgumentTypeError(
                    f"not a store: a {type(values).__name__} with {shorten(key)}: {type(value).__name__}; "
                    "accepted: a dict, or another mutable mapping, of str to bytes"
                )
            check_key(key)
        if values is not None:
            self._given = named(values)
            self._name = self._given.name
        self._lock = fork_safe(threading.Lock())
        self._numbers: dict[str, int] = {"": 0}  # Of the last change of each key, and of all.
        self._is_copy = False
        self._pid = os.getpid()
        interned((self._name, self._pid), lambda: self, keep=False)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, {len(self._values)} keys>"

    def __reduce__(self) -> tuple[object, ...]:
        # Of a derived class also what it has beside this one, as far as it is plain data.
        own = {name: value for name, value in self.__getstate__().items() if is_plain(value, Traits)}
        with self._lock:
            values = {key: bytes(value) for key, value in self._values.items()}
            return _restored, (type(self), self._name, values, dict(self._numbers), own)

    @property
    def identity(self) -> object:
        """The same as that of the copies in other processes."""
        return MemoryStore.__name__, self._name

    @property
    def read_only(self) -> bool:
        return self._is_copy or super().read_only

    def check_writable(self) -> None:
        if self._is_copy or (self._pid != os.getpid() and is_child()):
            raise ReadOnlyError(
                f"{self} is a copy in another process, which cannot be written; use threads, or a store that "
                "processes share, such as a directory"
            )
        super().check_writable()

    # What these leave out is done around them.
    def get(self, key: str, byte_range: Part = None) -> Found:  # type: ignore[override]
        value: Buffer | None = self._values.get(key)
        return value if value is None or byte_range is None else cut(value, byte_range)

    @called_as(Store.put)
    def put(self, key: str, pieces: Sequence[Buffer]) -> None:
        value = joined(pieces)
        with self._lock:
            self._values[key] = value
            self._numbers[""] += 1
            self._numbers[key] = self._numbers[""]

    def erase(self, *keys: str) -> None:
        for key in keys:
            with key_lock(self.identity, key), self._lock:  # Not while another thread changes the value.
                self._values.pop(key, None)
                self._numbers.pop(key, None)
                self._numbers[""] += 1

    def list(self, prefix: str = "") -> Iterator[str]:
        with self._lock:
            found = list(self._values.items())
        return (Key(key, len(value)) for key, value in found if key.startswith(prefix))

    def open(self, key: str, first: Part = None, version: object = None) -> Value | None:
        with self._lock:
            number, value = self.versions([key])[0], self._values.get(key)
        return None if value is None else BytesValue(value, number)

    def versions(self, keys: Sequence[str]) -> Sequence[object | None]:
        if not self.traits.tells_changes:
            return [None] * len(keys)
        return [self._numbers.get(key) for key in keys]


def _restored(
    kind: type[MemoryStore], name: str, values: dict[str, bytes], numbers: dict[str, int], own: dict[str, Any]
) -> MemoryStore:
    """The store of a pickled form: the original in its own process, else a copy that cannot be written."""

    def make() -> MemoryStore:
        copy = object.__new__(kind)
        MemoryStore.__init__(copy)
        vars(copy).update(own, _name=name, _values=values, _numbers=numbers, _is_copy=True)
        return copy

    place = name, os.getpid()  # A forked child is another process.
    store = interned(place, make, keep=False)
    if store._is_copy and store._numbers != numbers:  # Copies may have been made at any time.
        store = interned((*place, numbers[""]), make, keep=False)
    return store if store._is_copy else store._with(own.get("traits", store.traits))
