"""Stores of zarr-python and of other libraries with its asynchronous interface, such as Icechunk.

Objects are recognized by the module and the name of their class, so that no other library is imported. A
store of zarr-python that xzarr3 can read itself is opened natively: it then has locks, versions and leases. A
class that is derived from one of these may do something else, and is called through its interface.
"""

from __future__ import annotations

import os
import pickle
import re
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from xzarr3 import errors
from xzarr3._types import Buffer, ByteRange, Found, Part
from xzarr3.errors import StoreError, shorten
from xzarr3.parallel import parallel_map, undisturbed
from xzarr3.stores.base import Names, Store, Traits, called_as
from xzarr3.stores.in_flight import Estimate, reserved
from xzarr3.stores.keys import DOCUMENTS
from xzarr3.stores.local.store import LocalStore
from xzarr3.stores.locks import fork_safe
from xzarr3.stores.values import BytesValue, Value, WholeValue, cut, joined
from xzarr3.tracing.events import sent

Result = TypeVar("Result")

_MANY: Final = 64  # Requests at a time.
"""Names that are never prefixes, so that listing a group needs no request to tell."""
_DOING: Final = {"head": "find", "put": "write", "delete": "erase", "list": "list"}
_ERRORS: Final = (
    (PermissionError, errors.StorePermissionError),
    (NotImplementedError, errors.StoreCapabilityError),
    (Exception, StoreError),
)
_LONGEST: Final = 2**48  # Bytes. Stores compute with numbers of 64 bits, and no value is that large.
_IN_ICECHUNK = re.compile(r"(?:.+/)?(?:zarr\.json|c((?:/(?:0|[1-9][0-9]{0,9}))*))", re.DOTALL)
_NO_FILE = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
_PROCESS = os.getpid()

_live: weakref.WeakValueDictionary[str, ForeignStore] = weakref.WeakValueDictionary()
_finding = fork_safe(threading.RLock())


class ForeignStore(Store):
    """Values are those of a store that is derived from zarr-python's ``zarr.abc.store.Store``.

    :func:`~xzarr3.open_store` makes one for each such object that no class of xzarr3 can read natively:
    stores around other stores, such as zarr-python's ``LoggingStore``, its ``MemoryStore``, and stores of
    other libraries. Equal objects share one. Threads wait for coroutines on zarr-python's event loop, so up
    to 64 requests are in flight.

    The interface has no versions of values. So a value is read whole, even if only parts of it are wanted:
    between two requests another program might replace it. Changes by :func:`~xzarr3.stores.update` are safe
    from threads of this process only. A key that has a value is listed as a key, not as a prefix as well.
    Closing this store does not close the object, which is its owner's.

    The pickled form is that of the object. Values in the memory of a process, below any number of stores
    around them, cannot be written by other processes. A forked process cannot use the store, because the
    threads of its libraries do not exist there; start processes with ``spawn`` or ``forkserver``.

    Parameters
    ----------
    store : zarr.abc.store.Store
    """

    reports = False  # The requests to the object are reported instead.
    _accepted = "any key"
    _advice = "use threads (scheduler='threads'), or a store that processes share, such as a directory"

    def __init__(self, store: Any) -> None:
        self.foreign = store
        """The object."""
        self._usual, self._is_copy = Estimate(), False
        able = {"erase": store.supports_deletes, "list": store.supports_listing}
        kinds = {kind.__module__ for layer in _layers(store) for kind in type(layer).__mro__}
        self._is_lost_in_copies = "zarr.storage._memory" in kinds
        """Whether changes made in another process are lost."""
        super().__init__(
            read_only=bool(store.read_only) or not store.supports_writes,
            operations=tuple(name for name in Traits().operations if able.get(name, True)),
            concurrency=_MANY,
            conditional="processes" if self._is_lost_in_copies else "threads",
        )

    def __repr__(self) -> str:
        return errors.printable(f"<{type(self).__name__} {self._label()}>")

    def _label(self) -> str:
        """The name of the object, in one line."""
        text, kind = " ".join(str(self.foreign).split()), type(self.foreign).__name__
        return shorten(text if kind in text else f"{kind} {text}")[1:-1]

    def __reduce__(self) -> tuple[object, ...]:
        try:
            return _restore, (type(self), pickle.dumps(self.foreign, 5), self._name, self.traits)
        except Exception as error:
            failure = f"pickling it raised {type(error).__name__}; {self._advice}"
            raise StoreError(f"{self} cannot be sent to other processes: {failure}") from error

    def check_writable(self) -> None:
        if self._is_copy:
            why = "is a copy in another process, whose changes would be lost"
            raise errors.ReadOnlyError(f"{self} {why}; {ForeignStore._advice}")
        super().check_writable()

    # What a derived class knows

    def _is_around(self, store: object) -> bool:
        return self.foreign is store

    def _holds(self, key: str) -> bool:
        """Whether the object can hold a key; if not, the key is absent."""
        return True

    async def _found(self, answer: Awaitable[Result]) -> Result | None:
        """An answer; None if it is an error of the object that means that a key has no value."""
        return await answer

    # Requests

    def _ask(self, kind: str, key: str, call: Coroutine[Any, Any, Result], size: int = 0) -> Result:
        """Wait for a coroutine on zarr-python's loop, to which clients of the object belong."""
        from zarr.core.sync import sync

        try:
            if os.getpid() != _PROCESS:
                raise RuntimeError("this is a forked process; start processes with 'spawn' or 'forkserver'")
            with sent(kind) as request:
                found = sync(call)
                request.size = len(found) if isinstance(found, bytes) else size
                request.outcome = "absent" if found is None and "get" in kind else "ok"
                return found
        except Exception as error:
            call.close()
            text = f"cannot {_DOING.get(kind, 'read')} key '{key}' of {self}: {said(error)}"
            raise next((ours for theirs, ours in _ERRORS if isinstance(error, theirs)))(text) from error

    # Readable

    def get(self, key: str, byte_range: Part = None) -> Found:  # type: ignore[override]
        if not self._holds(key):
            return None
        with reserved(self._usual.size):
            value = self._ask("get", key, self._get(key))
        if value is not None:
            self._usual.note(len(value))
        return value if byte_range is None or value is None else cut(value, byte_range)

    async def _get(self, key: str, request: object = None) -> Buffer | None:
        from zarr.core.buffer.cpu import buffer_prototype

        found: Any = await self._found(self.foreign.get(key, buffer_prototype, request))
        return None if found is None else found.to_bytes()

    def open(self, key: str, first: Part = None, version: object = None) -> Value | None:
        if first is not None:
            value = self.get(key)
            return None if value is None else BytesValue(value)
        return WholeValue(partial(self.get, key), f"key '{key}' of {self}") if self._has(key) else None

    def _has(self, key: str) -> bool:
        return self._holds(key) and bool(self._ask("head", key, self._found(self.foreign.exists(key))))

    # Writeable

    @called_as(Store.put)
    def put(self, key: str, pieces: Sequence[Buffer]) -> None:
        from zarr.core.buffer.cpu import Buffer as ZarrBuffer

        if not self._holds(key):
            raise errors.InvalidKeyError(f"{self} cannot hold key {shorten(key)}; accepted: {self._accepted}")
        value = joined(pieces)

        async def write() -> None:
            try:
                await self.foreign.set(key, ZarrBuffer.from_bytes(value))
            except IsADirectoryError:  # Some stores keep directories that have become empty.
                if await _all_of(self.foreign.list_prefix(f"{key}/")):
                    raise
                await self.foreign.delete_dir(key)
                await self.foreign.set(key, ZarrBuffer.from_bytes(value))

        # Ctrl-C does not interrupt a change, whose outcome would be unknown.
        undisturbed(lambda: self._ask("put", key, write(), len(value)))

    def erase(self, *keys: str) -> None:
        def erase(key: str) -> None:
            if self._has(key):  # Some stores would remove a directory of that name.
                undisturbed(lambda: self._ask("delete", key, self.foreign.delete(key)))

        parallel_map(erase, keys, _MANY)

    # Listable

    def list(self, prefix: str = "") -> Sequence[str]:
        return self._ask("list", prefix, _all_of(self.foreign.list_prefix(prefix)))

    def list_dir(self, prefix: str) -> tuple[Names, Names]:
        found = self._ask("list", prefix, _all_of(self.foreign.list_dir(prefix.rstrip("/"))))
        names = {prefix + name.rstrip("/") for name in found if name.strip("/")}
        unclear = sorted(names - {prefix + name for name in DOCUMENTS})
        are_keys = parallel_map(self._has, unclear, _MANY)
        folders = {name for name, is_key in zip(unclear, are_keys, strict=True) if not is_key}
        return names - folders, {f"{name}/" for name in folders}


class IcechunkStore(ForeignStore):
    """Values are those of an Icechunk session.

    What is written becomes visible to others when the owner of the session commits it, all at once. This
    store never commits. Icechunk notices at the commit if another session has changed the same chunks or
    documents. So the session itself gives the guarantees that xzarr3 gives elsewhere with a lease, staged
    values and a swap. None of their keys is written, as Icechunk holds only documents and chunks of Zarr
    version 3 with the chunk key encoding ``default``. Other keys count as absent, and are refused when
    written.

    - Documents are stored before chunks: Icechunk takes a chunk only within the shape of a known array.
    - A node that is replaced is erased first, within the session. After an error, call
      ``session.discard_changes()``, or write again, before you commit: parts of the write may be in the
      session.
    - Threads of one process may write to one session. Partial writes of one chunk wait for each other.
    - Other processes can read a session made with ``repo.readonly_session``. A writable session stays in its
      process. Dask tasks in other processes write to forks of it, which are merged into it at the end.
    - Consolidated metadata are not written; a session has all documents at hand.

    Values do not change while they are read, except by writes to the same session. So shards are read in
    parts.
    """

    _accepted = "documents and chunks of Zarr version 3 with the chunk key encoding 'default'"
    _advice = (
        "commit the session and read it with repo.readonly_session(...) there, and write with threads "
        "(scheduler='threads')"
    )

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self._layer = next(layer for layer in _layers(store) if hasattr(layer, "session"))
        session = self._layer.session
        self._snapshot: str | None = session.snapshot_id if session.read_only else None
        self._is_lost_in_copies = not session.read_only
        self._fork: Any = None
        changes = {"visible": "at commit", "tells_changes": session.read_only}
        self.traits = msgspec.structs.replace(self.traits, **changes)

    def _label(self) -> str:
        session = self._layer.session
        where = f"snapshot {session.snapshot_id}"
        return where if session.branch is None else f"session of branch '{session.branch}' on {where}"

    @property
    def snapshot(self) -> str:
        """The id of the snapshot that the session began with; that of its commit once it is committed."""
        return str(self._layer.session.snapshot_id)

    @property
    def identity(self) -> object:
        """The snapshot of a read-only session, which is the same in every process; else the session."""
        return type(self).__name__, self._snapshot or self._name

    def versions(self, keys: Sequence[str]) -> Sequence[object | None]:
        return [self._snapshot] * len(keys)

    def check_writable(self) -> None:
        if self._layer.session.read_only and not self._is_copy:
            since = "" if self.read_only else " since its session was committed"
            advice = "write to a new session, as repo.writable_session(...) makes, or to the repository"
            raise errors.ReadOnlyError(f"{self} is read-only{since}; {advice}")
        super().check_writable()

    @property
    def can_fork(self) -> bool:
        """Whether other processes can write to forks of the session."""
        return self._layer is self.foreign and not (self._is_copy or self._layer.session.read_only)

    @property
    def moves_nodes(self) -> bool:
        """Whether the session was made to move nodes, and takes no other changes."""
        return str(getattr(self._layer.session, "mode", "")).endswith(".rearrange")

    def move(self, source: str, target: str) -> None:
        """Move a node in a session that does this without a copy.

        Raises
        ------
        StoreError
            If Icechunk refuses it.
        """
        try:
            undisturbed(lambda: self._layer.session.move(f"/{source}", f"/{target}"))
        except Exception as error:
            raise StoreError(f"cannot move '/{source}' to '/{target}' in {self}: {said(error)}") from error

    def go_on(self, session: Any) -> None:
        """Read and write another session of the same repository from now on."""
        self.foreign = self._layer = session.store

    @classmethod
    def forked(cls, fork: bytes) -> IcechunkStore:
        """The store of a fork in another process, which :meth:`fork` sends back."""
        session = pickle.loads(fork)
        store = cls(session.store)
        store._fork = session
        return store

    def fork(self) -> bytes:
        """The pickled form of a fork of the session, which knows what the session holds now."""
        try:
            return pickle.dumps(self._fork or self._layer.session.fork(), 5)
        except Exception as error:
            failure = f"forking it raised {said(error)}; {ForeignStore._advice}"
            raise StoreError(f"{self} cannot be written by other processes: {failure}") from error

    def merge(self, fork: bytes) -> None:
        """Take over what was written to a fork of the session."""
        try:
            undisturbed(lambda: self._layer.session.merge(pickle.loads(fork)))
        except Exception as error:
            raise StoreError(f"cannot merge into {self}: {said(error)}") from error

    def _is_around(self, store: object) -> bool:
        # A session makes a new store object each time.
        return type(self.foreign) is type(store) and bool(self.foreign == store)

    def _holds(self, key: str) -> bool:
        found = _IN_ICECHUNK.fullmatch(key)
        return found is not None and all(int(at) < 2**32 for at in (found[1] or "").split("/")[1:])

    async def _found(self, answer: Awaitable[Result]) -> Result | None:
        try:
            return await answer
        except Exception as error:
            # A key such as "a/c" may be that of a chunk, and also the path of node "c" in group "a".
            if type(error).__name__ == "InvalidInputError" and "there is not an array at" in str(error):
                return None
            raise

    def get(self, key: str, byte_range: Part = None) -> Found:  # type: ignore[override]
        part = None
        # Icechunk returns wrong parts of documents.
        if byte_range is not None and not key.endswith("zarr.json") and self._holds(key):
            part = self._part(key, *byte_range)
        return super().get(key, byte_range) if part is None else part

    def _part(self, key: str, start: int, length: int | None) -> Buffer | None:
        """A part of a value; None if the store gives anything else, such as beyond the end of the value."""
        from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest

        most = -start if start < 0 else length
        if length == 0 or max(abs(start), most or 0) >= _LONGEST or (start, length) == (0, None):
            return None
        request: object = OffsetByteRequest(start)
        if most is not None:
            request = SuffixByteRequest(most) if start < 0 else RangeByteRequest(start, start + most)
        with suppress(StoreError), reserved(self._usual.size if most is None else most):
            part = self._ask("get_range", key, self._get(key, request))
            if part is not None and most in (None, len(part)):
                return cut(part, (0, length)) if start < 0 else part
        return None

    def open(self, key: str, first: Part = None, version: object = None) -> Value | None:
        if first == (0, None):
            return super().open(key, first)
        wanted = first or (0, 1)
        found = self.get(key, wanted)
        return None if found is None else _Parts(self, key, wanted, found)

    def list(self, prefix: str = "") -> Sequence[str]:
        while prefix and not self._has(f"{prefix}zarr.json"):  # Only below a node can keys be listed.
            prefix = prefix[: prefix.rstrip("/").rfind("/") + 1]
        return super().list(prefix)


class _Parts(Value):
    """Parts of a value that does not change meanwhile; the first part is already there."""

    concurrency = _MANY

    def __init__(self, store: Store, key: str, first: ByteRange, found: Buffer) -> None:
        self._store, self._key, self._first, self._found = store, key, first, found

    def read(self, start: int, length: int | None = None) -> Buffer:
        part = self._found if (start, length) == self._first else self._store.get(self._key, (start, length))
        if part is None:
            raise errors.ChangedError(f"key '{self._key}' of {self._store} was removed while it was read")
        return part


def said(error: Exception) -> str:
    """The kind of an error of another library, and the first line of its text."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


async def _all_of(names: AsyncIterator[str]) -> list[str]:
    return [name async for name in names]


def store_of(store: Any) -> Store | None:
    """The store for a store of zarr-python's kind, or for a session of Icechunk; None for other objects.

    Raises
    ------
    ArgumentTypeError
        If it is a ``ManifestStore`` of VirtualiZarr.
    """
    if type(store).__module__ == "icechunk.session":
        return store_of(getattr(store, "store", None))
    interface = getattr(sys.modules.get("zarr.abc.store"), "Store", None)
    if interface is None or not isinstance(store, interface):
        return None
    found = _native(store)
    if found is not None:
        return found
    kinds = (each for layer in _layers(store) for each in type(layer).__mro__)
    names = {f"{each.__module__}.{each.__qualname__}" for each in kinds}
    if "virtualizarr.manifests.store.ManifestStore" in names:
        raise errors.ArgumentTypeError(
            "not a store: a ManifestStore of VirtualiZarr; write it with "
            "store.to_virtual_dataset().vz.to_icechunk(...) or .vz.to_kerchunk(...), and open what that wrote"
        )
    return _adapted(store, IcechunkStore if "icechunk.store.IcechunkStore" in names else ForeignStore)


def _native(store: Any) -> Store | None:
    """The store of this package for a store of zarr-python, if there is one that does the same."""
    kind = type(store)
    name = kind.__qualname__ if kind.__module__.startswith("zarr.storage._") else ""
    if name == "WrapperStore":
        return store_of(store._store)
    if name == "LocalStore":
        return LocalStore(os.fspath(store.root), read_only=store.read_only)
    if name == "ZipStore" and store.read_only and isinstance(store.path, os.PathLike):
        from xzarr3.stores.zip import ZipStore  # A writer of zarr-python holds the file open.

        return ZipStore(os.fspath(store.path), mode="r")
    if name == "FsspecStore" and {*store.allowed_exceptions} == set(_NO_FILE):
        from xzarr3.stores.fsspec import store_for

        return store_for(store.fs, store.path, read_only=store.read_only)
    if name == "ObjectStore":
        prefix = getattr(store.store, "prefix", None)
        if type(store.store).__name__ == "LocalStore" and isinstance(prefix, os.PathLike):
            return LocalStore(os.fspath(prefix), read_only=store.read_only)
        from xzarr3.stores.object.store import ObjectStore

        return ObjectStore(store.store, read_only=store.read_only)
    return None


def _layers(store: Any) -> Iterator[Any]:
    """A store of zarr-python and the stores that it wraps, the outermost one first."""
    while store is not None:
        yield store
        store = getattr(store, "_store", None)


def _adapted(store: Any, kind: type[ForeignStore]) -> ForeignStore:
    """The store of this process around an object; one and the same for one object."""
    with _finding:
        for found in [*_live.values()]:
            if type(found) is kind and found._is_around(store):
                return found
        made = kind(store)
        _live[made._name] = made
    return made


def _restore(kind: type[ForeignStore], data: bytes, name: str, traits: Traits) -> Store:
    with _finding:
        found = _live.get(name)
        if found is None:
            found = _live[name] = kind(pickle.loads(data))
            found._name, found._is_copy = name, found._is_lost_in_copies
    return found._with(traits)
