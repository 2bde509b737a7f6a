"""A store in a zip file, which is a file of this machine or a value of another store.

Specification: PKWARE APPNOTE 6.3.10; the names of the members are the keys, as zarr-python has them. See
:mod:`xzarr3.stores.zip_format` for what is read of it and what is refused, and
:mod:`xzarr3.stores.zip_files` for how a zip comes to its place.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import stat
import sys
import threading
import weakref
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Literal, TypeAlias, get_args

from xzarr3._types import Buffer, ByteRange
from xzarr3.concurrency import spread
from xzarr3.errors import ChangedError, ReadOnlyError, StoreError
from xzarr3.stores.base import (
    IntoLoader,
    KeySet,
    Loader,
    OversizedError,
    RangeLoader,
    Scratch,
    Store,
    ValueReader,
    Writer,
    check_erasable_prefix,
    check_key,
    check_prefix,
    cut,
    flat,
    is_same,
    negative_length,
)
from xzarr3.stores.zip_files import (
    Draft,
    LocalFile,
    PathDraft,
    Source,
    ValueDraft,
    check_path,
    open_path,
    open_value,
)
from xzarr3.stores.zip_format import (
    LOCAL,
    STORED,
    Directory,
    Member,
    crc32,
    data_start,
    encoded_name,
    inflate,
)

Mode: TypeAlias = Literal["r", "r+", "a", "w", "w-", "x"]

_SLACK = 64  # Bytes of extra fields in a local header that are read along with it.
_ABSENT = "absent"
_PATIENCE = 30.0  # Seconds

_LIVE: weakref.WeakValueDictionary[str, ZipStore] = weakref.WeakValueDictionary()
_recent: deque[ZipStore] = deque(maxlen=4)  # Of other processes: tasks come one after the other.


def _forget() -> None:
    """A forked child writes to no zip of its parent, and waits for no thread of it."""
    for store in list(_LIVE.values()):
        store._forked()
    _LIVE.clear()
    _recent.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


class ZipStore(Store):
    """Values are members of a zip, stored as they are.

    Reading asks for the end of the zip and its directory once, and then for each value once. Members that are
    deflated are read as well. The checksum of a value is verified whenever all of it is read; of a part it is
    verified that the member is where the directory says, and that the part is as long as it must be.

    Writing needs one writer: one store object, whose values all threads of its process may set. What it
    writes is not in the zip before :meth:`close` or :meth:`flush`, or the end of the ``with`` statement.
    Until then others see the zip as it was, also if this process is killed. A ``with`` statement that ends
    with an error writes nothing, see :meth:`discard`. A store that nobody closes is closed when it is
    forgotten and when the interpreter exits. If that fails, or the program ends with an error, the zip stays
    as it was, and what was written is kept in a file beside it, ``x.zarr.zip.unfinished-0``.

    Values that were replaced or erased keep their space; :meth:`pack` makes a zip without them. The same
    values, set in the same order, make the same bytes.

    Parameters
    ----------
    path : str, path or Store
        The zip file; or the store that holds it as a value, and then ``key``.
    key : str, optional
        The key of that value.
    mode : {"r", "r+", "a", "w", "w-", "x"}
        ``r`` reads a zip; ``r+`` adds to one that is there, ``a`` also makes a new one; ``w`` makes a new
        one, which replaces what is there; ``w-`` and ``x`` make one where there is none.
    read_only : bool, optional
        Refuse every write; only mode ``r`` does.
    fsync : bool
        Have all of it on the disk before the zip is at its place.

    Notes
    -----
    A zip is written to a file beside its place, which it takes in one step. Who adds to one adds to a clone
    of it or, where the file system cannot clone, to a copy, which takes the space of a second zip and the
    time to copy it. The name of that file begins with ``.xzarr3-zip-``. A killed writer leaves it behind,
    until the next one; a directory store around it takes it for a key.

    As a value of another store the zip is written to a temporary file and set when the store is closed. There
    is no lock between processes then; if somebody else changed the value meanwhile that is an error, but in
    mode ``w`` the last one wins.

    A member whose name is no key (``../x``, ``/x``, ``a//b``, no UTF-8) cannot be read, which
    :attr:`unusable` tells; the others can. A backslash or a colon within a name is a letter like others. A
    member that is encrypted, compressed in another way, overlaps another one or lies outside of the zip is
    listed, and reading it is an error. Of members of the same name the last one counts.

    In another process a store that is being written is a read-only copy of what it held when it was pickled,
    on the same machine only.

    Examples
    --------
    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/x.zarr.zip"
    >>> with ZipStore(path, mode="w") as store:
    ...     store.set("a/b", b"value")
    >>> store = ZipStore(path)
    >>> bytes(store.get("a/b", (1, 3)))
    b'alu'
    >>> store.set("a/c", b"")
    Traceback (most recent call last):
    xzarr3.errors.ReadOnlyError: <ZipStore '...'> is read-only: it was opened with mode 'r'; accepted: ...
    """

    request_bytes = 2**12

    def __init__(
        self,
        path: str | os.PathLike[str] | Store,
        key: str | None = None,
        *,
        mode: Mode = "r",
        read_only: bool | None = None,
        fsync: bool = False,
    ) -> None:
        if mode not in get_args(Mode):
            raise ValueError(f"mode={mode!r}: accepted: {', '.join(map(repr, get_args(Mode)))}")
        if read_only is not None and read_only != (mode == "r"):
            raise ValueError(f"read_only={read_only!r} with mode={mode!r}: accepted: True with 'r' only")
        super().__init__(read_only=mode == "r")
        self._place(path, key)
        self.mode = mode
        self.fsync = fsync
        self._view: _View | None = None
        self._draft: Draft | None = None
        self._expected: bytes | None = None
        self._snapshot: tuple[Any, ...] | None = None
        self._is_twin = False
        self._why = _READING
        self._finalizer: weakref.finalize[..., ZipStore] | None = None
        self._renew()
        if mode == "r":
            self._take_after_inner()
            self._open()
        else:
            self._begin({"w-": "x"}.get(mode, mode))
        _LIVE[self._identity] = self

    def _place(self, path: str | os.PathLike[str] | Store, key: str | None) -> None:
        self._inner: Store | None = None
        self.path: str | None = None
        self.key = key
        if isinstance(path, Store):
            if key is None:
                raise ValueError(f"no key of a zip in {path}; accepted: key='...'")
            check_key(key)
            self._inner = path
        elif key is not None:
            raise ValueError(
                f"key={key!r} with a path: accepted: a Store and the key of its value, or a path"
            )
        elif not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"not the place of a zip: {type(path).__name__}; accepted: a path or a Store")
        else:
            self.path = check_path(os.path.abspath(os.path.expanduser(os.fspath(path))))

    def _renew(self) -> None:
        self._lock = threading.RLock()
        self._turn = threading.Condition()
        self._active = 0
        self._closing = False

    def _forked(self) -> None:
        self._renew()
        if self._draft is not None:
            self._draft.forked()

    def __repr__(self) -> str:
        return (
            f"<ZipStore '{self.path}'>"
            if self._inner is None
            else f"<ZipStore '{self.key}' of {self._inner}>"
        )

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._recipe() == self._recipe()

    def __hash__(self) -> int:
        return hash((self.path, self.key))

    def _recipe(self) -> tuple[object, ...]:
        return self.path, self._inner, self.key, self.read_only

    @property
    def identity(self) -> object:
        if self._inner is not None:
            return "ZipStore", self._inner.identity, self.key
        return "ZipStore", os.path.realpath(str(self.path))

    def __dask_tokenize__(self) -> object:
        return self.identity, self._opened().token()

    # Opening and closing

    def _open(self) -> None:
        """Read the directory."""
        if self._snapshot is not None:
            self._view = _copy_of(self._snapshot, str(self), self.path)
            return
        file: Source
        if self._inner is not None:
            file, directory = open_value(self._inner, str(self.key), str(self))
        else:
            file, directory = open_path(str(self.path), str(self))
        if self._expected not in (None, directory.digest):
            raise ChangedError(f"{self} has been replaced since it was opened; accepted: opening it again")
        self._expected = directory.digest
        self._view = _View(str(self), (file, file), directory, None)

    def _begin(self, mode: str) -> None:
        draft: Draft
        where = str(self)
        if self._inner is not None:
            draft = ValueDraft(self._inner, str(self.key), mode, where, self.fsync)
        else:
            draft = PathDraft(os.path.realpath(str(self.path)), mode, where, self.fsync)
        self._draft = draft
        self._view = _View(where, (draft.file, draft.file), draft.old, draft.lineage)
        self._view.changes = 0 if draft.old is not None else 1  # A new zip is one even without members.
        self._finalizer = weakref.finalize(self, _end, draft, self._view)
        self._finalizer.atexit = False  # Then _close_all has done it.
        _watch_exit()

    def _opened(self) -> _View:
        view = self._view
        if view is None:
            with self._lock:
                if self._view is None:
                    self._open()
                view = self._view
                if view is None:
                    raise StoreError(f"{self} cannot be opened")
        return view

    @property
    def unusable(self) -> dict[str, str]:
        """Names of members that no key can have, and why."""
        return dict(self._opened().unusable)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """No thread sets a value meanwhile."""
        with self._turn:
            while self._closing:
                self._turn.wait()
            self._closing = True
            while self._active:
                self._turn.wait()
        try:
            yield
        finally:
            with self._turn:
                self._closing = False
                self._turn.notify_all()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[tuple[Draft, _View]]:
        """Nobody closes the store meanwhile."""
        with self._turn:
            while self._closing:
                self._turn.wait()
            self._check_writable()
            draft, view = self._draft, self._opened()
            if draft is None:
                raise ReadOnlyError(f"{self} {_CLOSED}")
            self._active += 1
        try:
            yield draft, view
        finally:
            with self._turn:
                self._active -= 1
                if not self._active:
                    self._turn.notify_all()

    def _check_writable(self) -> None:
        if self.read_only:
            raise ReadOnlyError(f"{self} {self._why}")
        if self._draft is not None and self._draft.pid != os.getpid():
            raise ReadOnlyError(f"{self} {_ELSEWHERE}")

    def flush(self) -> None:
        """Bring what was written to its place and go on writing.

        Raises
        ------
        StoreError
            If that fails. What is at the place is then what was there before, and it can be tried again.
        """
        self._check_writable()
        with self._alone():
            self._commit()
            try:
                self._begin("r+")
            except BaseException:
                self._become_read_only(_CLOSED)
                raise

    def close(self) -> None:
        """Bring what was written to its place, and write no more; reading opens the zip again.

        Raises
        ------
        StoreError
            If that fails, for want of space, say. What is at the place is then what was there before, the
            store stays open, and it can be tried again.
        """
        with self._alone():
            if self._draft is None or self._draft.pid != os.getpid():
                self._release_view()
                return
            self._commit()
            self._become_read_only(_CLOSED)

    def discard(self) -> None:
        """Forget what was written since the store was opened, and write no more."""
        with self._alone():
            if self._draft is not None and self._draft.pid == os.getpid():
                self._let_go()
                self._expected = None
                self._become_read_only(_CLOSED)

    def _commit(self) -> None:
        draft, view = self._draft, self._opened()
        if draft is None:
            raise ReadOnlyError(f"{self} {_CLOSED}")
        if view.changes:
            self._expected = draft.commit(view.members)
        else:
            self._expected = view.lineages[0] if isinstance(view.lineages[0], bytes) else None
        self._let_go()

    def _let_go(self) -> None:
        if self._finalizer is not None:
            self._finalizer.detach()
            self._finalizer = None
        if self._draft is not None:
            self._draft.release()
            self._draft = None

    def _become_read_only(self, why: str) -> None:
        self.read_only = True
        self._why = why
        self._view = None
        self._take_after_inner()

    def _take_after_inner(self) -> None:
        """Reading costs what it costs the other store."""
        if self._inner is not None:
            self.concurrency = self._inner.concurrency
            self.request_bytes = self._inner.request_bytes

    def _release_view(self) -> None:
        if self._snapshot is None and self._draft is None:
            self._view = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.discard()

    def __reduce__(self) -> tuple[object, ...]:
        with self._lock:
            snapshot = self._snapshot
            if self._draft is not None:
                snapshot = self._opened().snapshot()
            place = self._inner if self._inner is not None else self.path
            return _restore, (self._identity, place, self.key, self._expected, snapshot)

    @staticmethod
    def pack(
        source: Store,
        path: str | os.PathLike[str] | Store,
        key: str | None = None,
        *,
        prefix: str = "",
        fsync: bool = False,
    ) -> ZipStore:
        """Make a zip of all values of a store, sorted by key; equal values make equal bytes.

        To have a zip without what was replaced and erased in it, pack it to its own place.

        Parameters
        ----------
        source : Store
        path, key, fsync
            See :class:`ZipStore`; what is there is replaced.
        prefix : str
            Take the keys that begin with it, and leave it out of their names.

        Returns
        -------
        ZipStore
            The zip, to be read.

        Examples
        --------
        >>> import tempfile
        >>> from xzarr3 import MemoryStore
        >>> source = MemoryStore({"b": b"2", "a": b"1"})
        >>> list(ZipStore.pack(source, tempfile.mkdtemp() + "/x.zip").list())
        ['a', 'b']
        """
        with ZipStore(path, key, mode="w", fsync=fsync) as target:
            keys = sorted(source.list_prefix(prefix))
            step = 4 * source.concurrency
            for at in range(0, len(keys), step):
                some = keys[at : at + step]
                for name, value in zip(some, source.get_values(some), strict=True):
                    if value is None:
                        raise StoreError(f"key '{name}' of {source} vanished while it was packed")
                    target.set(name[len(prefix) :], value)
        return target

    # Readable

    def get(self, key: str, byte_range: ByteRange | None = None) -> Buffer | None:
        check_key(key)
        view = self._opened()
        member = view.members.get(key)
        if member is None:
            return None
        if byte_range is None:
            return view.whole(key, member)
        return view.part(key, member, *byte_range)

    def exists(self, key: str) -> bool:
        return check_key(key) in self._opened().members

    def get_partial_values(self, key_ranges: Iterable[tuple[str, ByteRange]]) -> list[Buffer | None]:
        wanted = list(key_ranges)
        places: dict[str, list[int]] = {}
        for at, (key, _) in enumerate(wanted):
            places.setdefault(check_key(key), []).append(at)
        view = self._opened()
        found: list[Buffer | None] = [None] * len(wanted)

        def read(key: str) -> None:
            member = view.members.get(key)
            if member is not None:
                ranges = [_from_start(wanted[at][1], member.size) for at in places[key]]
                starts, lengths = zip(*ranges, strict=True)
                for at, part in zip(places[key], view.parts(key, member, starts, lengths), strict=True):
                    found[at] = part

        spread(read, places, self.concurrency)
        return found

    def open_value(self, key: str) -> ValueReader | None:
        if not self._is_own("get"):
            return super().open_value(key)
        check_key(key)
        view = self._opened()
        member = view.members.get(key)
        return None if member is None else _MemberReader(view, key, member)

    def _is_own(self, *operations: str) -> bool:
        """Whether operations are those of this class, and not of a derived one, which is to be asked then."""
        return all(
            getattr(type(self), operation) is _OWN[operation]
            or is_same(getattr(type(self), operation), _OWN[operation])
            for operation in operations
        )

    def loader(self) -> Loader:
        if not self._is_own("get", "open_value"):
            return super().loader()

        def load(key: str) -> Buffer | None:
            view = self._opened()
            member = view.members.get(key)
            return None if member is None else view.whole(key, member)

        return load

    def scratch_loader(self, scratch: Scratch, limit: int) -> Loader:
        if not self._is_own("get", "open_value", "loader"):
            return super().scratch_loader(scratch, limit)

        def load(key: str) -> Buffer | None:
            view = self._opened()
            member = view.members.get(key)
            if member is None:
                return None
            size = member.size
            # What is deflated may be a bit longer than without.
            if size > limit or member.stored > limit + limit // 1000 + 1000:
                raise OversizedError(max(size, member.stored), limit)
            if not view.is_plain(member):
                return view.whole(key, member)
            if len(scratch.memory) < size:
                scratch.memory = memoryview(bytearray(max(size, 2**17)))
            memory = scratch.memory[:size]
            view.whole_into(key, member, memory)
            return memory

        return load

    def range_loader(self) -> RangeLoader:
        if not self._is_own("get", "open_value"):
            return super().range_loader()

        def load(
            key: str, starts: Sequence[int], lengths: Sequence[int]
        ) -> tuple[int | None, list[Buffer]] | None:
            view = self._opened()
            member = view.members.get(key)
            return None if member is None else (member.size, view.parts(key, member, starts, lengths))

        return load

    def into_loader(self) -> IntoLoader:
        if not self._is_own("get", "open_value"):
            return super().into_loader()

        def load(key: str, start: int, out: memoryview) -> tuple[int | None, int] | None:
            view = self._opened()
            member = view.members.get(key)
            return None if member is None else (member.size, view.part_into(key, member, start, out))

        return load

    def stamp(self, keys: Sequence[str]) -> object:
        view = self._opened()
        return [view.version(view.members.get(key)) if key else view.token() for key in keys]

    def version(self, key: str) -> object | None:
        view = self._opened()
        return view.version(view.members.get(key))

    # Writeable

    def set(self, key: str, value: Buffer) -> None:
        self._set(check_key(key), [flat(value, key)])

    def _set(self, key: str, contents: list[memoryview]) -> None:
        name = encoded_name(key)
        with self._writing() as (draft, view):
            member = draft.append(name, contents, key)
            with self._lock:
                view.put(key, member)

    def writer(self) -> AbstractContextManager[Writer]:
        if not self._is_own("set"):
            return super().writer()

        def write(key: str, pieces: Sequence[Buffer]) -> None:
            self._set(check_key(key), [flat(piece, key) for piece in pieces])

        return contextlib.nullcontext(write)

    def set_values(self, items: Iterable[tuple[str, Buffer]]) -> None:
        self._check_writable()
        wanted = [(check_key(key), value) for key, value in items]
        for key, value in wanted:
            self.set(key, value)

    def get_versioned(self, key: str) -> tuple[Buffer | None, object]:
        check_key(key)
        view = self._opened()
        member = view.members.get(key)
        return (None, _ABSENT) if member is None else (view.whole(key, member), view.version(member))

    def compare_and_set(self, key: str, version: object, value: Buffer | None) -> bool:
        self._check_writable()
        name = encoded_name(check_key(key))
        with self._writing() as (draft, view):
            member = None if value is None else draft.append(name, [flat(value, key)], key)
            with self._lock:
                if (view.version(view.members.get(key)) or _ABSENT) != version:
                    return False
                if member is None:
                    view.remove([key])
                else:
                    view.put(key, member)
                return True

    def erase(self, key: str) -> None:
        self.erase_values([key])

    def erase_values(self, keys: Iterable[str]) -> None:
        wanted = [check_key(key) for key in keys]
        with self._writing() as (_, view), self._lock:
            view.remove(wanted)

    def erase_prefix(self, prefix: str) -> None:
        check_erasable_prefix(prefix)
        with self._writing() as (_, view), self._lock:
            view.remove(view.below(prefix))

    # Listable

    def list_prefix(self, prefix: str) -> Iterator[str]:
        check_prefix(prefix)
        view = self._opened()
        with self._lock:
            return iter(view.below(prefix))

    def list_dir(self, prefix: str) -> tuple[KeySet, KeySet]:
        check_prefix(prefix)
        view = self._opened()
        with self._lock:
            return view.directly_below(prefix)


_OWN = {operation: getattr(ZipStore, operation) for operation in ("get", "loader", "open_value", "set")}

_READING = "is read-only: it was opened with mode 'r'; accepted: mode 'a' or 'w'"
_CLOSED = "is read-only: it is closed; accepted: opening it with mode 'a'"
_ELSEWHERE = (
    "cannot be written here: another process is writing it; accepted: threads of that process "
    "(scheduler='threads'), or a directory that processes share and that ZipStore.pack makes a zip of"
)


class _View:
    """What a zip holds at present, and how its values are read.

    Parameters
    ----------
    where : str
        The name of the zip, for messages.
    files : tuple
        The zip and what is being written.
    directory : Directory or None
    lineage : str or None
        What tells the members that are being written from those of other writers.
    """

    def __init__(
        self,
        where: str,
        files: tuple[Source, Source],
        directory: Directory | None,
        lineage: str | None,
    ) -> None:
        self.where = where
        self.files = files
        self.members: dict[str, Member] = {} if directory is None else directory.members
        self.unusable: dict[str, str] = {} if directory is None else directory.unusable
        self.lineages: tuple[object, object] = (None if directory is None else directory.digest, lineage)
        self.changes = 0
        self._sorted: list[str] | None = None
        self._kept: tuple[int, tuple[Any, ...]] | None = None

    def token(self) -> object:
        """What changes with every change."""
        return self.lineages, self.changes

    def version(self, member: Member | None) -> object | None:
        """What tells the value of a member from all others of its key."""
        if member is None:
            return None
        return self.lineages[member.source], member.header, member.crc, member.size

    # Changing it; who calls holds the lock of the store.

    def put(self, key: str, member: Member) -> None:
        """A new value."""
        if self._sorted is not None and key not in self.members:
            insort(self._sorted, key)
        self.members[key] = member
        self.changes += 1

    def remove(self, keys: Iterable[str]) -> None:
        """No values."""
        gone = [key for key in keys if self.members.pop(key, None) is not None]
        if gone:
            self.changes += 1
            names = self._sorted
            if len(gone) > 8 or names is None:
                self._sorted = None
            else:
                for key in gone:
                    del names[bisect_left(names, key)]

    def _names(self) -> list[str]:
        if self._sorted is None:
            self._sorted = sorted(self.members)
        return self._sorted

    def below(self, prefix: str) -> list[str]:
        """The keys that begin with a prefix."""
        names = self._names()
        if not prefix:
            return names[:]
        return names[bisect_left(names, prefix) : bisect_left(names, prefix[:-1] + _AFTER_SLASH)]

    def directly_below(self, prefix: str) -> tuple[set[str], set[str]]:
        """The keys and the prefixes directly below a prefix."""
        names = self._names()
        keys: set[str] = set()
        prefixes: set[str] = set()
        size = len(prefix)
        at = bisect_left(names, prefix) if prefix else 0
        stop = bisect_left(names, prefix[:-1] + _AFTER_SLASH) if prefix else len(names)
        while at < stop:
            name = names[at]
            slash = name.find("/", size)
            if slash < 0:
                keys.add(name)
                at += 1
            else:
                below = name[: slash + 1]
                prefixes.add(below)
                at += 1
                if at < stop and names[at].startswith(below):  # Many are passed over at once.
                    at = bisect_left(names, below[:-1] + _AFTER_SLASH, at, stop)
        return keys, prefixes

    # Reading

    def _name(self, key: str) -> str:
        return f"key '{key}' of {self.where}"

    def is_plain(self, member: Member) -> bool:
        """Whether the value is stored as it is."""
        return member.method == STORED and member.problem is None

    def whole(self, key: str, member: Member) -> Buffer:
        """All of a value, its checksum verified."""
        if member.problem is not None:
            raise self._unreadable(key, member)
        file = self.files[member.source]
        if member.start >= 0:
            data = file.read(member.start, member.stored)
        else:
            ask = min(member.limit, member.least_start + member.stored + _SLACK) - member.header
            block = memoryview(file.read(member.header, ask))
            start = data_start(block, member, _spelled(key), self._name(key))
            data = block[start - member.header :][: member.stored]
            if len(data) < member.stored and len(block) == ask:  # Extra fields that were not expected.
                data = file.read(start, member.stored)
            member.start = start
        if len(data) != member.stored:
            raise self._cut_off(key)
        if member.method != STORED:
            data = inflate(data, member.size, self._name(key))
        self._verify(key, member, data)
        return data

    def whole_into(self, key: str, member: Member, out: memoryview) -> None:
        """The same of a plain value, into memory."""
        file = self.files[member.source]
        count = 0
        if member.start < 0:
            head = bytearray(LOCAL.size + member.name_size)
            count = file.read_into(member.header, head, out) - len(head)
            start = data_start(head, member, _spelled(key), self._name(key))
            if start != member.least_start:
                count = file.read_into(start, bytearray(), out)
            member.start = start
        else:
            count = file.read_into(member.start, bytearray(), out)
        if count != len(out):
            raise self._cut_off(key)
        self._verify(key, member, out)

    def part(self, key: str, member: Member, start: int, length: int | None) -> Buffer:
        """A part of a value."""
        first, wanted = _from_start((start, length), member.size)
        (found,) = self.parts(key, member, [first], [wanted])
        return found

    def parts(self, key: str, member: Member, starts: Sequence[int], lengths: Sequence[int]) -> list[Buffer]:
        """Several parts of a value; they are shorter where it ends."""
        size = member.size
        wanted = [
            (start, min(length, size - start)) if start < size else (size, 0)
            for start, length in zip(starts, lengths, strict=True)
        ]
        if not self.is_plain(member) or wanted == [(0, size)]:
            whole = memoryview(self.whole(key, member))
            return [whole[start : start + length] for start, length in wanted]
        places = [start for start, length in wanted if length]
        sizes = [length for _, length in wanted if length]
        found = iter(self._stored_parts(key, member, places, sizes) if places else [])
        parts: list[Buffer] = []
        for _, length in wanted:
            part = next(found) if length else b""
            if len(part) != length:
                raise self._cut_off(key)
            parts.append(part)
        return parts

    def _stored_parts(self, key: str, member: Member, starts: list[int], lengths: list[int]) -> list[Buffer]:
        file = self.files[member.source]
        if member.start < 0:
            least = member.least_start
            head, *parts = file.read_ranges(
                [member.header, *(least + start for start in starts)], [least - member.header, *lengths]
            )
            first = data_start(head, member, _spelled(key), self._name(key))
            member.start = first
            if first == least:
                return parts
        return file.read_ranges([member.start + start for start in starts], lengths)

    def part_into(self, key: str, member: Member, start: int, out: memoryview) -> int:
        """A part of a value into memory; returns its size."""
        count = min(len(out), max(member.size - start, 0))
        memory = out[:count]
        if count and count == member.size and self.is_plain(member):
            self.whole_into(key, member, memory)
        elif count:
            (memory[:],) = self.parts(key, member, [start], [count])
        return count

    def _verify(self, key: str, member: Member, data: Buffer) -> None:
        found = crc32(data)
        if found != member.crc:
            raise StoreError(
                f"{self._name(key)} is damaged: its checksum is {found:08x}; accepted: the {member.crc:08x} "
                "that the directory says"
            )

    def _cut_off(self, key: str) -> StoreError:
        return StoreError(f"{self._name(key)} is cut off; accepted: a whole zip file")

    def _unreadable(self, key: str, member: Member) -> StoreError:
        return StoreError(f"cannot read {self._name(key)}: {member.problem}")

    # For other processes

    def snapshot(self) -> tuple[Any, ...]:
        """What another process of this machine needs to read the same."""
        if self._kept is None or self._kept[0] != self.changes:
            files = [_file_name(file) for file in self.files]
            members = [
                (
                    key,
                    *(getattr(member, field) for field in _FIELDS),
                    member.start,
                    member.limit,
                    member.problem,
                )
                for key, member in list(self.members.items())
            ]
            snapshot = socket.gethostname(), files, members, self.unusable, self.lineages, self.changes
            self._kept = self.changes, snapshot
        return self._kept[1]


_FIELDS = ("header", "name_size", "method", "crc", "stored", "size", "source")
_AFTER_SLASH = chr(ord("/") + 1)


def _spelled(key: str) -> bytes | None:
    # Other letters may be spelled as the code page of another time has them.
    return key.encode() if key.isascii() else None


def _file_name(file: Source) -> tuple[str, int, int] | None:
    if not isinstance(file, LocalFile):
        return None
    info = file.status()
    return file.path, info.st_dev, info.st_ino


def _copy_of(snapshot: tuple[Any, ...], where: str, path: str | None) -> _View:
    """What a store held that another process is writing."""
    host, names, members, unusable, lineages, changes = snapshot
    if host != socket.gethostname():
        raise StoreError(
            f"{where} is being written on '{host}', where alone it can be read; accepted: closing it first"
        )
    first, second = (_file_again(name, where, path) for name in names)
    view = _View(where, (first, second), None, None)
    for key, *fields, start, limit, problem in members:
        member = Member(*fields)
        member.start, member.limit, member.problem = start, limit, problem
        view.members[key] = member
    view.unusable, view.lineages, view.changes = unusable, lineages, changes
    return view


def _file_again(name: tuple[str, int, int] | None, where: str, path: str | None) -> LocalFile:
    """The same file, which may have got its place by now."""
    if name is not None:
        known, *node = name
        for place in (known, path):
            with contextlib.suppress(FileNotFoundError):
                if place is not None:
                    file = LocalFile(os.open(place, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)), where, place)
                    info = file.status()
                    if [info.st_dev, info.st_ino] == node and stat.S_ISREG(info.st_mode):
                        return file
    raise ChangedError(
        f"{where} was being written when it was pickled and has changed since; accepted: closing it first"
    )


class _MemberReader(ValueReader):
    """Parts of one member, which is what it was when it was opened."""

    def __init__(self, view: _View, key: str, member: Member) -> None:
        self._view = view
        self._key = key
        self._member = member
        self._whole: memoryview | None = None
        self.size: int = member.size

    @property
    def version(self) -> object | None:
        return self._view.version(self._member)

    def read(self, start: int, length: int | None = None) -> Buffer:
        first, wanted = _from_start((start, length), self.size)
        return self.read_ranges([first], [wanted])[0]

    def read_ranges(self, starts: Sequence[int], lengths: Sequence[int]) -> list[Buffer]:
        view, member = self._view, self._member
        if view.is_plain(member):
            return view.parts(self._key, member, starts, lengths)
        if self._whole is None:  # Inflated once.
            self._whole = memoryview(view.whole(self._key, member))
        whole = self._whole
        return [cut(whole, wanted) for wanted in zip(starts, lengths, strict=True)]

    def read_into(self, start: int, out: memoryview) -> int:
        if self._view.is_plain(self._member):
            return self._view.part_into(self._key, self._member, start, out)
        return super().read_into(start, out)


def _from_start(byte_range: ByteRange, size: int) -> tuple[int, int]:
    """A range of bytes, counted from the start of a value."""
    start, length = byte_range
    if length is not None and length < 0:
        raise negative_length(length)
    return start if start >= 0 else max(size + start, 0), size if length is None else length


def _end(draft: Draft, view: _View) -> None:
    """Close a zip that nobody has closed and nobody knows any more."""
    if draft.pid != os.getpid():  # In a child of the process that writes it.
        return
    if isinstance(draft, ValueDraft):
        # The collector of garbage may be at work anywhere, also where this thread holds a lock of that store.
        helper = threading.Thread(target=_finish, args=(draft, view), name="xzarr3-zip")
        try:
            helper.start()
        except RuntimeError:  # The interpreter is shutting down and starts no more threads.
            _finish(draft, view)
        else:
            helper.join(_PATIENCE)
    else:
        _finish(draft, view)


def _finish(draft: Draft, view: _View, reason: str = "") -> None:
    """Bring a zip to its place, unless there is a reason not to; what cannot get there is kept beside it."""
    try:
        if view.changes and not reason:
            draft.commit(view.members)
        elif view.changes and (view.members or draft.old is not None):
            raise StoreError(reason)
    except BaseException as error:
        try:
            kept = draft.keep(view.members)
        except OSError as lost:
            kept = f"what was written is lost: {lost}"
        raise StoreError(f"{view.where} was not closed and is as it was before; {kept}") from error
    finally:
        draft.release()


def _close_all() -> None:
    """Close what nobody has closed when the interpreter exits, or a process of multiprocessing ends."""
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    is_failure = error is not None and not isinstance(error, SystemExit)
    reason = f"the program ended with {type(error).__name__}" if is_failure else ""
    for store in list(_LIVE.values()):
        finalizer = store._finalizer
        if finalizer is not None and finalizer.detach() is not None:
            draft, view = store._draft, store._view
            if draft is not None and view is not None and draft.pid == os.getpid():
                try:
                    _finish(draft, view, reason)
                except StoreError:
                    sys.excepthook(*sys.exc_info())


atexit.register(_close_all)
_watching = 0  # The process of multiprocessing that will call it.


def _watch_exit() -> None:
    """A process of multiprocessing ends without what is registered to be done at exit."""
    global _watching
    module = sys.modules.get("multiprocessing.process")
    if module is not None and module.parent_process() is not None and _watching != os.getpid():
        from multiprocessing.util import Finalize

        _watching = os.getpid()
        Finalize(None, _close_all, exitpriority=10)


def _restore(
    identity: str,
    place: str | Store,
    key: str | None,
    expected: bytes | None,
    snapshot: tuple[Any, ...] | None,
) -> ZipStore:
    store = _LIVE.get(identity)
    if store is not None and (
        not store._is_twin or (store._expected == expected and store._snapshot == snapshot)
    ):
        return store
    store = ZipStore.__new__(ZipStore)
    Store.__init__(store, read_only=True)
    store._identity = identity
    store._place(place, key)
    store.mode, store.fsync = "r", False
    store._view = store._draft = store._finalizer = None
    store._expected, store._snapshot = expected, snapshot
    store._why = _READING if snapshot is None else _ELSEWHERE
    store._is_twin = True
    store._renew()
    if snapshot is None:
        store._take_after_inner()
    _LIVE[identity] = store
    _recent.append(store)
    return store
