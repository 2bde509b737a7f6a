"""What happens around the methods of every store: keys are checked, writes permitted, requests reported.

:class:`~xzarr3.Store` puts a guard around each method of the contract that a class implements, so that a
class holds only what is its own.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from xzarr3._types import Buffer, ByteRange
from xzarr3.errors import InvalidKeyError, StoreCapabilityError
from xzarr3.stores.keys import check_key, check_prefix
from xzarr3.stores.locks import key_lock
from xzarr3.stores.values import (
    ABSENT,
    ANY,
    BytesValue,
    OversizedError,
    Scratch,
    Value,
    check_range,
    flat,
)
from xzarr3.tracing.events import UNHEARD, Request, everywhere, told

if TYPE_CHECKING:
    from xzarr3.stores.base import Names, Store

Method = Callable[..., Any]


def _asked(
    store: Store,
    operation: str,
    key: str,
    start: int | None = None,
    length: int | None = None,
    number: int = 1,
) -> Request:
    """A request to be reported, if anybody listens and the class does not report by itself."""
    listeners = everywhere.listeners
    if not listeners or not store.reports:
        return UNHEARD
    return Request(store, listeners, operation, key, start, length, number)


def _get(method: Method) -> Method:
    names = method.__code__.co_varnames[: method.__code__.co_argcount + method.__code__.co_kwonlyargcount]
    takes_all = "into" in names and "limit" in names

    @wraps(method)
    def get(
        store: Store,
        key: str,
        byte_range: ByteRange | None = None,
        *,
        into: Scratch | None = None,
        limit: int = sys.maxsize,
    ) -> Buffer | None:
        check_key(key)
        check_range(byte_range)
        with _asked(store, "get", key, *(byte_range or (None, None))) as request:
            if takes_all:
                value: Buffer | None = method(store, key, byte_range, into=into, limit=limit)
            else:
                value = method(store, key, byte_range)
                if value is not None and len(value) > limit:
                    raise OversizedError(len(value), limit)
            request.value(value)
            return value

    return get


def _put(method: Method) -> Method:
    @wraps(method)
    def put(store: Store, key: str, pieces: Sequence[Buffer] | None, *, if_version: object = ANY) -> bool:
        store.check_writable()
        contents = None if pieces is None else [flat(piece, check_key(key)) for piece in pieces]
        with key_lock(store.identity, check_key(key)), _asked(store, "put", key) as request:
            request.size = sum(map(len, contents or ()))
            if if_version is ANY:
                return method(store, key, contents) is not False
            if store.traits.conditional == "service":
                done = method(store, key, contents, if_version=if_version)
            else:
                done = _compared(store, method, key, contents, if_version)
            if done is False:
                request.outcome = "changed"
            elif contents is None:
                request.outcome = "erased"
            return done is not False

    return put


def _compared(
    store: Store, method: Method, key: str, contents: Sequence[Buffer] | None, version: object
) -> bool:
    """Store a value if its bytes are still those of a version; the caller has locked out other threads."""
    with store.exclusive(key):
        stored = store.get(key)
        if version != (ABSENT if stored is None else hashlib.sha256(stored).hexdigest()):
            return False
        if contents is None:
            store.erase(key)
        else:
            method(store, key, contents)
        return True


def _erase(method: Method) -> Method:
    @wraps(method)
    def erase(store: Store, *keys: str) -> None:
        store.check_writable()
        for key in keys:
            check_key(key)
        if keys:
            with _asked(store, "erase", keys[0], number=len(keys)):
                method(store, *keys)

    return erase


def _list(method: Method) -> Method:
    @wraps(method)
    def list(store: Store, prefix: str = "") -> Iterator[str]:
        check_prefix(prefix)
        if not store.listable:
            raise StoreCapabilityError(
                f"{store} cannot be listed; use keys by name, or consolidated metadata"
            )
        found: Iterable[str] = method(store, prefix)
        if prefix:
            found = (key for key in found if key.startswith(prefix))
        request = _asked(store, "list", prefix, number=0)
        return iter(found) if request is UNHEARD else told(request, iter(found))

    return list


def _open(method: Method) -> Method:
    @wraps(method)
    def open(
        store: Store, key: str, first: tuple[int, int | None] | None = None, version: object | None = None
    ) -> Value | None:
        check_key(key)
        check_range(first)
        with _asked(store, "open" if first is None else "get", key, *(first or (None, None))) as request:
            value: Value | None = method(store, key, first, version)
            if request is UNHEARD:
                return value
            if value is None:
                request.outcome = "absent"
                return None
            if isinstance(value, BytesValue) and first in (None, (0, None)):
                request.size = value.size  # The whole value is in memory; no request follows.
                return value
            if first is not None:
                request.operation = ""  # Reading will be reported.
            return _ToldValue(store, key, value)

    return open


class _ToldValue(Value):
    """An open value whose reads are reported."""

    def __init__(self, store: Store, key: str, inner: Value) -> None:
        self._store, self._key, self._inner = store, key, inner
        self.size = inner.size

    @property
    def version(self) -> object | None:
        return self._inner.version

    def read(self, start: int, length: int | None = None) -> Buffer:
        with _asked(self._store, "read", self._key, start, length) as request:
            part = self._inner.read(start, length)
            request.value(part)
            return part

    def read_ranges(self, starts: Sequence[int], lengths: Sequence[int]) -> list[Buffer]:
        with _asked(self._store, "read", self._key, number=len(starts)) as request:
            parts = self._inner.read_ranges(starts, lengths)
            request.values(parts)
            return parts

    def iter_ranges(self, starts: Sequence[int], lengths: Sequence[int]) -> Iterator[Buffer]:
        def later() -> Iterator[Buffer]:  # Sends no request before the first part is wanted.
            yield from self._inner.iter_ranges(starts, lengths)

        request = _asked(self._store, "read", self._key, number=len(starts))
        return told(request, later(), sizes=True)

    def read_into(self, start: int, out: memoryview) -> int:
        with _asked(self._store, "read", self._key, start, len(out)) as request:
            count = request.size = self._inner.read_into(start, out)
            return count

    def close(self) -> None:
        self._inner.close()


def _erase_prefix(method: Method) -> Method:
    @wraps(method)
    def erase_prefix(store: Store, prefix: str) -> None:
        if not check_prefix(prefix):
            raise InvalidKeyError("the empty prefix names the whole store; erase its keys by name")
        store.check_writable()
        with _asked(store, "erase_prefix", prefix):
            method(store, prefix)

    return erase_prefix


def _list_dir(method: Method) -> Method:
    @wraps(method)
    def list_dir(store: Store, prefix: str) -> tuple[Names, Names]:
        check_prefix(prefix)
        if not (store.listable or store.traits.browsable):
            raise StoreCapabilityError(
                f"{store} cannot be listed; use keys by name, or consolidated metadata"
            )
        with _asked(store, "list", prefix) as request:
            keys, prefixes = method(store, prefix)
            request.number = len(keys) + len(prefixes)
            return keys, prefixes

    return list_dir


def _copy(method: Method) -> Method:
    @wraps(method)
    def copy(store: Store, source: str, target: str) -> None:
        check_key(source)
        store.check_writable()
        with key_lock(store.identity, check_key(target)), _asked(store, "copy", source):
            method(store, source, target)

    return copy


class _Held(threading.local):
    """The keys that this thread keeps others from changing."""

    def __init__(self) -> None:
        self.keys: set[object] = set()


_held = _Held()


def _exclusive(method: Method) -> Method:
    @wraps(method)
    @contextmanager
    def exclusive(store: Store, key: str) -> Iterator[None]:
        store.check_writable()
        place = store.identity, check_key(key)
        if place in _held.keys:
            yield
            return
        with key_lock(*place), method(store, key):
            _held.keys.add(place)
            try:
                yield
            finally:
                _held.keys.discard(place)

    return exclusive


GUARDS: Final[dict[str, Callable[[Method], Method]]] = {
    "get": _get,
    "put": _put,
    "erase": _erase,
    "list": _list,
    "open": _open,
    "erase_prefix": _erase_prefix,
    "list_dir": _list_dir,
    "copy": _copy,
    "exclusive": _exclusive,
}
"""By the name of a method of the contract: what is put around the method of a class."""
