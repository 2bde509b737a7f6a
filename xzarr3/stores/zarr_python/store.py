"""A store around an object with the asynchronous store interface of zarr-python.

Derived classes know more about the objects of one library: :mod:`xzarr3.stores.zarr_python.icechunk` and
:mod:`xzarr3.stores.zarr_python.virtualizarr`.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
import threading
import weakref
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, ClassVar, Final, TypeVar, cast

from xzarr3._types import Buffer, ByteRange
from xzarr3.errors import (
    InvalidKeyError,
    ReadOnlyError,
    StoreCapabilityError,
    StoreError,
    StorePermissionError,
    Xzarr3Error,
    printable,
    shorten,
)
from xzarr3.parallel import parallel_map, undisturbed
from xzarr3.stores.base import KeySet, Store, check_key, cut
from xzarr3.stores.in_flight import Estimate, reserved
from xzarr3.stores.locks import fork_safe
from xzarr3.stores.readers import BytesReader, Reader, Scratch, ValueReader
from xzarr3.stores.zarr_python.interface import (
    is_requestable,
    layers,
    prototype,
    request_of,
    unwrapped,
    wrapped,
)
from xzarr3.stores.zarr_python.loop import run
from xzarr3.tracing.events import sent

Result = TypeVar("Result")

_CONCURRENCY: Final = 64
_DOCUMENTS: Final = frozenset(("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata"))
"""Names that are never prefixes, so that listing a group needs no request to tell."""
_KINDS: Final = {"read": "get", "find": "head", "write": "put", "erase": "delete", "list": "list"}
"""The kinds of requests that are reported."""
_IRREGULAR: Final = object()
"""Stands for an answer that does not fit the request."""
_LOADED_IN = os.getpid()

_live: weakref.WeakValueDictionary[str, ZarrPythonStore] = weakref.WeakValueDictionary()
_finding = fork_safe(threading.RLock())


class ZarrPythonStore(Store):
    """Values are those of an object with the asynchronous store interface of zarr-python.

    :func:`~xzarr3.open_store` makes one for each such object that no class of xzarr3 can read natively:
    stores around other stores, such as zarr-python's ``LoggingStore``, and stores of other libraries. Equal
    objects share one. Threads wait for coroutines on one event loop, so up to 64 requests are in flight.

    The interface has no versions of values. So a value is read whole, even if only parts of it are wanted:
    between two requests another program might replace it. Changes by :meth:`compare_and_set` and
    :meth:`update` are safe from threads of this process only. A key that has a value is listed as a key, not
    as a prefix as well. Closing this store does not close the object, which is its owner's.

    The pickled form is that of the object. Values in the memory of a process, below any number of stores
    around them, cannot be written by other processes. A forked process cannot use the store, because the
    threads of its libraries do not exist there; start processes with ``spawn`` or ``forkserver``.

    Parameters
    ----------
    store : object
        See :func:`~xzarr3.stores.zarr_python.interface.has_interface`.
    read_only : bool
        Refuse every write; the object may do so as well.

    Examples
    --------
    >>> class Letters:
    ...     supports_writes = supports_deletes = False
    ...     supports_listing = True
    ...     async def get(self, key, prototype, byte_range=None):
    ...         return prototype.buffer.from_bytes(b"value") if key == "a" else None
    ...     async def exists(self, key):
    ...         return key == "a"
    ...     async def list_dir(self, prefix):
    ...         yield "a"
    ...     list_prefix = set = delete = list_dir
    >>> store = ZarrPythonStore(Letters())
    >>> bytes(store.get("a", (1, 3))), store.get("b"), store.writeable
    (b'alu', None, False)
    """

    _tells = False  # The requests to the object are reported instead.

    _accepted: ClassVar[str] = "any"
    """Which keys the object can hold, for messages."""
    _advice: ClassVar[str] = "use threads (scheduler='threads'), or a store that processes share"
    """What to do where the object cannot be pickled."""
    _of_one_version: ClassVar[bool] = False
    """Whether values stay as they are while they are read, so that parts may be requested one by one."""

    def __init__(self, store: Any, *, read_only: bool = False) -> None:
        is_fixed = bool(getattr(store, "read_only", False)) or not store.supports_writes
        super().__init__(read_only=read_only or is_fixed)
        self.foreign = store
        """The object."""
        self.concurrency = _CONCURRENCY
        self._usual = Estimate()
        self._is_copy = False
        lacking = () if store.supports_deletes else ("erase", "erase_values")
        self._lacking = frozenset(lacking if store.supports_listing else (*lacking, "list", "list_dir"))

    def __repr__(self) -> str:
        return printable(f"<{type(self).__name__} {self._name()}>")

    def _name(self) -> str:
        """The name of the object, in one line."""
        text, kind = " ".join(str(self.foreign).split()), type(self.foreign).__name__
        return shorten(text if kind in text else f"{kind} {text}")[1:-1]

    def __reduce__(self) -> tuple[object, ...]:
        try:
            data = pickle.dumps(self.foreign, 5)
        except Exception as error:
            raise StoreError(
                f"{self} cannot be sent to other processes: pickling it raised {type(error).__name__}; "
                f"{self._advice}"
            ) from error
        return _restore, (type(self), data, self._identity, self.read_only)

    def _has(self, *operations: str) -> bool:
        return super()._has(*(name for name in operations if name not in self._lacking))

    @property
    def writes_conditionally(self) -> bool:  # type: ignore[override]
        """True only for the memory of this process, which no other process can write to."""
        return in_process(self.foreign)

    # What derived classes know. They override no more than that: after an override of the hooks below, others
    # would return to the defaults of Store.

    def _holds(self, key: str) -> bool:
        """Whether the object can hold a key; if not, the key is absent."""
        return True

    def _gives_parts(self, key: str) -> bool:
        """Whether parts of a value can be requested."""
        return True

    def _says_absent(self, error: Exception) -> bool:
        """Whether an error of the object means that a key has no value."""
        return False

    def _listed(self, prefix: str) -> str:
        """The prefix to list in order to find the keys below ``prefix``."""
        return prefix

    def _is_around(self, store: object) -> bool:
        return self.foreign is store

    def _is_lost_in_copies(self) -> bool:
        """Whether changes made in another process are lost."""
        return in_process(self.foreign)

    def _check_writable(self) -> None:
        if self._is_copy:
            raise ReadOnlyError(
                f"{self} is a copy in another process, whose changes would be lost; use threads "
                "(scheduler='threads'), or a store that processes share, such as a directory"
            )
        super()._check_writable()

    # Requests

    def _wait(self, kind: str, call: Callable[[], Coroutine[Any, Any, Result]], size: int = 0) -> Result:
        """Wait for what a coroutine function returns, and report the request."""
        if os.getpid() != _LOADED_IN:
            raise StoreError(
                f"{self} cannot be used in a forked process; start processes with 'spawn' or 'forkserver'"
            )

        with sent(kind) as request:
            found = run(call())
            request.size = size
            if kind in ("get", "get_range"):
                request.value(cast("Buffer | None", found))
            return found

    def _ask(
        self, doing: str, key: str, call: Callable[[], Coroutine[Any, Any, Result]], size: int = 0
    ) -> Result:
        """Wait for what a coroutine function returns, and translate its errors."""
        try:
            return self._wait(_KINDS[doing], call, size)
        except Xzarr3Error:
            raise
        except Exception as error:
            raise self._failure(doing, key, error) from error

    def _failure(self, doing: str, key: str, error: Exception) -> StoreError:
        what = f"key {shorten(key)}" if key else "keys"
        text = f"cannot {doing} {what} of {self}: {_line(error)}"
        if isinstance(error, PermissionError):
            return StorePermissionError(f"{text}; pass credentials that permit it")
        return (StoreCapabilityError if isinstance(error, NotImplementedError) else StoreError)(text)

    # Readable

    def _get(self, key: str, byte_range: ByteRange | None) -> Buffer | None:
        if not self._holds(check_key(key)):
            return None
        if byte_range is None or byte_range == (0, None):
            return self._whole(key)
        if self._gives_parts(key) and is_requestable(byte_range):
            found = self._part(key, byte_range)
            if found is not _IRREGULAR:
                return found  # type: ignore[no-any-return]
        value = self._whole(key)
        return None if value is None else cut(value, byte_range)

    def _whole(self, key: str) -> Buffer | None:
        with reserved(self._usual.size):
            value = self._ask("read", key, lambda: self._asked(key, None))
        if value is not None:
            self._usual.note(len(value))
        return value

    async def _asked(self, key: str, request: object) -> Buffer | None:
        try:
            found = await self.foreign.get(key, prototype(), request)
        except Exception as error:
            if self._says_absent(error):
                return None
            raise
        return None if found is None else unwrapped(found)

    def _part(self, key: str, byte_range: ByteRange) -> Any:
        """A part of a value; ``_IRREGULAR`` if the store fails or the value seems to end within the part."""
        start, length = byte_range
        most = -start if start < 0 else length
        try:
            with reserved(self._usual.size if most is None else most):
                part = self._wait("get_range", lambda: self._asked(key, request_of(byte_range)))
        except Xzarr3Error:
            raise
        except Exception:  # noqa: BLE001 - stores raise what they like beyond the end of a value
            return _IRREGULAR
        if part is None:
            return None
        if most is not None and len(part) != most:
            return _IRREGULAR
        return cut(part, (0, length)) if start < 0 else part

    def _exists(self, key: str) -> bool:
        return self._holds(key) and self._ask("find", key, lambda: self._is_key(key))

    def _reader(self, scratch: Scratch | None, limit: int) -> Reader:
        return _ZarrPythonReader(self, scratch, limit)

    # Writeable

    def _set(self, key: str, value: bytes) -> None:
        if not self._holds(key):
            raise InvalidKeyError(f"{self} cannot hold key {shorten(key)}; accepted: {self._accepted}")

        async def write() -> None:
            try:
                await self.foreign.set(key, wrapped(value))
            except IsADirectoryError:  # Some stores keep directories that have become empty.
                if await all_of(self.foreign.list_prefix(f"{key}/")):
                    raise
                await self.foreign.delete_dir(key)
                await self.foreign.set(key, wrapped(value))

        # Ctrl-C does not interrupt a change, whose outcome would be unknown.
        undisturbed(lambda: self._ask("write", key, write, len(value)))

    def _erase(self, key: str) -> None:
        if "erase" in self._lacking:
            self._cannot_erase("erase")
        if not self._holds(key):
            return

        async def erase() -> None:
            if await self._is_key(key):  # Some stores would remove a directory of that name.
                await self.foreign.delete(key)

        undisturbed(lambda: self._ask("erase", key, erase))

    # Listable

    def _list(self, prefix: str) -> list[str]:
        listed = self._listed(prefix)
        return self._ask("list", prefix, lambda: all_of(self.foreign.list_prefix(listed)))

    def _list_dir(self, prefix: str) -> tuple[KeySet, KeySet]:
        return self._ask("list", prefix, lambda: self._entries(prefix))

    async def _entries(self, prefix: str) -> tuple[KeySet, KeySet]:
        found = await all_of(self.foreign.list_dir(prefix.rstrip("/")))
        names = {name.rstrip("/") for name in found} - {""}
        slots = asyncio.Semaphore(self.concurrency)

        async def is_key(name: str) -> bool:
            async with slots:
                return await self._is_key(prefix + name)

        unclear = sorted(names - _DOCUMENTS)
        told = await asyncio.gather(*map(is_key, unclear))
        keys = (names & _DOCUMENTS) | {name for name, yes in zip(unclear, told, strict=True) if yes}
        return {prefix + name for name in keys}, {f"{prefix}{name}/" for name in names - keys}

    async def _is_key(self, key: str) -> bool:
        try:
            return self._holds(key) and bool(await self.foreign.exists(key))
        except Exception as error:
            if self._says_absent(error):
                return False
            raise


class _ZarrPythonReader(Reader):
    """Reads values through the interface."""

    _store: ZarrPythonStore

    def get(self, key: str) -> Buffer | None:
        return self._store._get(key, None)

    def get_into(self, key: str, start: int, out: memoryview) -> tuple[int | None, int] | None:
        value = self._store._get(key, None if start == 0 else (start, len(out) + 1))
        if value is None:
            return None
        out[: len(value)] = value[: len(out)]
        return (len(value) if start == 0 else None), min(len(value), len(out) + (start > 0))

    def open(
        self, key: str, part: tuple[int, int] | None = None, version: object | None = None
    ) -> ValueReader | None:
        store = self._store
        if not store._of_one_version:
            value = store._get(key, None)
            return None if value is None else BytesReader(value)
        first = part or (0, 1)
        found = store._get(key, first)
        return None if found is None else _PartsReader(store, key, first, found)


class _PartsReader(ValueReader):
    """Requests parts of a value that does not change meanwhile; the first part is already there."""

    def __init__(self, store: ZarrPythonStore, key: str, first: tuple[int, int], found: Buffer) -> None:
        self._store, self._key = store, key
        self._first: tuple[ByteRange, Buffer] | None = (first, found)

    def read(self, start: int, length: int | None = None) -> Buffer:
        (part,) = self.read_ranges([start], [length])  # type: ignore[list-item]
        return part

    def read_ranges(self, starts: Sequence[int], lengths: Sequence[int]) -> list[Buffer]:
        wanted: list[ByteRange] = [*zip(starts, lengths, strict=True)]
        if self._first is not None and wanted == [self._first[0]]:
            return [self._first[1]]
        store, key = self._store, self._key
        parts = parallel_map(lambda part: store._get(key, part), wanted, store.concurrency)
        found = [part for part in parts if part is not None]
        if len(found) < len(parts):
            raise StoreError(f"key '{key}' of {store} was removed while it was read")
        return found


async def all_of(found: Any) -> list[str]:
    """All names of an asynchronous iterator, or of a coroutine that returns one."""
    if inspect.isawaitable(found):
        found = await found
    return [name async for name in found]


def _line(error: BaseException) -> str:
    """What an error says, in one line."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def in_process(store: Any) -> bool:
    """Whether values are in the memory of a process, below any number of stores around it."""
    kinds = (kind for layer in layers(store) for kind in type(layer).__mro__)
    return any(kind.__module__ == "zarr.storage._memory" for kind in kinds)


def adapted(store: Any, kind: type[ZarrPythonStore]) -> ZarrPythonStore:
    """The store of this process around an object; one and the same for one object.

    Parameters
    ----------
    store : object
    kind : type
        The class of a new store.
    """
    with _finding:
        for found in [*_live.values()]:
            if type(found) is kind and found._is_around(store):
                return found
        made = kind(store)
        _live[made._identity] = made
    return made


def _restore(kind: type[ZarrPythonStore], data: bytes, identity: str, read_only: bool) -> ZarrPythonStore:
    with _finding:
        found = _live.get(identity)
        if found is not None and found.read_only is read_only:
            return found
        made = kind(pickle.loads(data), read_only=read_only)
        made._identity = identity
        made._is_copy = made._is_lost_in_copies()
        _live[identity] = made
    return made
