"""What happens around the methods of every store: keys are checked, writes permitted, requests reported.

:class:`~xzarr3.Store` puts a guard around each method of the contract that a class implements, so that a
class holds only what is its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from inspect import CO_VARKEYWORDS
from typing import TYPE_CHECKING, Any, Final

from xzarr3._types import Buffer, Found, Part
from xzarr3.errors import ArgumentTypeError, InvalidKeyError, StoreCapabilityError, shorten
from xzarr3.stores.keys import check_key, check_prefix
from xzarr3.stores.locks import key_lock
from xzarr3.stores.values import (
    ABSENT,
    ANY,
    NO_LIMIT,
    BytesValue,
    Into,
    Value,
    check_range,
    check_size,
    digest,
    flat,
)
from xzarr3.tracing.events import UNHEARD, Request, everywhere, here, told

if TYPE_CHECKING:
    from xzarr3.stores.base import Names, Store

Method = Callable[..., Any]


def _asked(store: Store, operation: str, key: str, byte_range: Part = None, **how: Any) -> Request:
    """A request to be reported, if anybody listens.

    It is not reported where the class reports by itself, where the method is made from others, and where the
    store calls it as part of another request.
    """
    if not everywhere.listeners:
        return UNHEARD
    outer = here.request
    is_part = outer is not None and outer.store is store and outer.is_told
    is_own = operation in store._own or operation == "read"
    return Request(store, operation, key, byte_range, is_told=store.reports and is_own and not is_part, **how)


def _get(method: Method) -> Method:
    code = method.__code__
    named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    # Memory that is used again is only for a class that names it, and knows.
    takes_limit = "limit" in named or bool(code.co_flags & CO_VARKEYWORDS)
    takes_all = takes_limit and "into" in named

    def ask(store: Store, key: str, byte_range: Part, into: Into, limit: int) -> Found:
        value: Found
        if takes_all:
            value = method(store, key, byte_range, into=into, limit=limit)
        elif takes_limit:
            value = method(store, key, byte_range, limit=limit)
        else:
            value = method(store, key, byte_range)
        check_size(0 if value is None else len(value), limit)
        return value

    @wraps(method)
    def get(
        store: Store, key: str, byte_range: Part = None, *, into: Into = None, limit: int = NO_LIMIT
    ) -> Found:
        check_key(key)
        if byte_range is not None:
            check_range(byte_range)
        if not everywhere.listeners:
            return ask(store, key, byte_range, into, limit)
        with _asked(store, "get", key, byte_range) as request:
            value = ask(store, key, byte_range, into, limit)
            request.value(value)
            return value

    return get


def _put(method: Method) -> Method:
    def ask(store: Store, key: str, contents: Sequence[Buffer] | None, **version: object) -> bool:
        with _asked(store, "erase" if contents is None else "put", key) as request:
            if method(store, key, contents, **version) is False:
                request.outcome = "changed"
                return False
            request.size = sum(map(len, contents or ()))
            return True

    @wraps(method)
    def put(store: Store, key: str, pieces: Sequence[Buffer] | None, *, if_version: object = ANY) -> bool:
        store.check_writable()
        check_key(key)
        contents = None if pieces is None else [flat(piece, key) for piece in _sequence(pieces, key)]
        if contents is None and if_version is ANY:
            raise ArgumentTypeError(f"nothing to store under key '{key}'; erase() erases without a version")
        with key_lock(store.identity, key):
            if if_version is not ANY:
                if store.traits.conditional == "service":
                    return ask(store, key, contents, if_version=if_version)
                return _compared(store, ask, key, contents, if_version)
            if everywhere.listeners:
                return ask(store, key, contents)
            return method(store, key, contents) is not False

    return put


def _sequence(pieces: Iterable[Buffer], key: str) -> Iterable[Buffer]:
    if isinstance(pieces, Iterable):
        return pieces
    raise ArgumentTypeError(f"cannot store {shorten(pieces)} under key '{key}'; accepted: a list of bytes")


def _compared(
    store: Store, ask: Method, key: str, contents: Sequence[Buffer] | None, version: object
) -> bool:
    """Store a value if its bytes are still those of a version; the caller has locked out other threads."""
    with store.exclusive(key):
        stored = store.get(key)
        if version != (ABSENT if stored is None else digest(stored)):
            return False
        if contents is None:
            store.erase(key)
        else:
            ask(store, key, contents)
        return True


def _around(guard: Callable[..., Any]) -> Callable[[Method], Method]:
    """What puts a guard around a method; the guard takes the method, then what the method takes."""

    def put_around(method: Method) -> Method:
        @wraps(method)
        def guarded(store: Store, *args: Any, **options: Any) -> Any:
            return guard(method, store, *args, **options)

        return guarded

    return put_around


@_around
def _erase(method: Method, store: Store, *keys: str) -> None:
    store.check_writable()
    if not store._can("erase"):
        raise StoreCapabilityError(f"{store} cannot erase; use a store that permits it")
    for key in keys:
        check_key(key)
    if keys:
        with _asked(store, "erase", keys[0], number=len(keys)):
            method(store, *keys)


def _check_listable(prefix: str, store: Store, is_listable: bool) -> None:
    check_prefix(prefix)
    if not is_listable:
        raise StoreCapabilityError(f"{store} cannot be listed; use keys by name, or consolidated metadata")


@_around
def _list(method: Method, store: Store, prefix: str = "") -> Iterator[str]:
    _check_listable(prefix, store, store.listable)
    with _asked(store, "list", prefix, number=0, in_parts=True) as request:
        found: Iterator[str] = iter(method(store, prefix))
    if prefix:
        found = (key for key in found if key.startswith(prefix))
    return found if request is UNHEARD else told(request, found)


def _open(method: Method) -> Method:
    @wraps(method)
    def open(store: Store, key: str, first: Part = None, version: object = None) -> Value | None:
        check_key(key)
        if first is not None:
            check_range(first)
        value: Value | None
        if not everywhere.listeners:
            value = method(store, key, first, version)
            return value
        with _asked(store, "open", key, first) as request:
            value = method(store, key, first, version)
            if value is None:
                request.outcome = "absent"
                return None
            whole = first in (None, (0, None)) or not request.is_told
            if whole and isinstance(value, BytesValue):  # It is in memory; no request follows.
                request.byte_range, request.size = (0, None), value.size
                return value
            if first is not None:  # Reading is reported instead.
                request.is_told = False
            return _ToldValue(store, key, value)

    return open


class _ToldValue(Value):
    """An open value whose reads are reported."""

    def __init__(self, store: Store, key: str, inner: Value) -> None:
        self._store, self._key, self._inner = store, key, inner
        self.size, self.version = inner.size, inner.version

    def read(self, start: int, length: int | None = None) -> Buffer:
        with _asked(self._store, "read", self._key, (start, length)) as request:
            part = self._inner.read(start, length)
            request.value(part)
            return part

    def read_ranges(self, starts: Sequence[int], lengths: Sequence[int]) -> list[Buffer]:
        first = (starts[0], lengths[0]) if starts else None
        with _asked(self._store, "read", self._key, first, number=len(starts)) as request:
            parts = self._inner.read_ranges(starts, lengths)
            request.size = sum(map(len, parts))
            return parts

    def read_into(self, start: int, out: memoryview) -> int:
        with _asked(self._store, "read", self._key, (start, len(out))) as request:
            count = request.size = self._inner.read_into(start, out)
            return count

    def close(self) -> None:
        self._inner.close()


@_around
def _erase_prefix(method: Method, store: Store, prefix: str) -> None:
    if not check_prefix(prefix):
        raise InvalidKeyError("the empty prefix names the whole store; erase its keys by name")
    store.check_writable()
    with _asked(store, "erase_prefix", prefix):
        method(store, prefix)


@_around
def _list_dir(method: Method, store: Store, prefix: str) -> tuple[Names, Names]:
    _check_listable(prefix, store, store.listable or store.traits.browsable)
    with _asked(store, "list_dir", prefix) as request:
        keys, prefixes = method(store, prefix)
        request.number = len(keys) + len(prefixes)
        return keys, prefixes


@_around
def _copy(method: Method, store: Store, source: str, target: str) -> None:
    check_key(source)
    store.check_writable()
    with key_lock(store.identity, check_key(target)), _asked(store, "copy", source):
        method(store, source, target)


@_around
@contextmanager
def _exclusive(method: Method, store: Store, key: str) -> Iterator[None]:
    store.check_writable()
    with key_lock(store.identity, check_key(key)), method(store, key):
        yield


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
