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
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Literal, TypeAlias, get_args

from xzarr3._types import Buffer, ByteRange
from xzarr3.errors import ChangedError, ReadOnlyError, StoreError, printable
from xzarr3.stores.base import (
    KeySet,
    OversizedError,
    Reader,
    Scratch,
    Store,
    ValueReader,
    Writer,
    check_key,
    flat,
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
    PIECE,
    Directory,
    Member,
    crc32,
    data_start,
    inflate,
    new_member,
)

Mode: TypeAlias = Literal["r", "r+", "a", "w", "w-", "x"]
_Folders: TypeAlias = dict[str, tuple[set[str], set[str]]]

_SLACK = 64  # Bytes of extra fields in a local header that are read along with it.
_ABSENT = "absent"
_PATIENCE = 30.0  # Seconds

_LIVE: weakref.WeakValueDictionary[str, ZipStore] = weakref.WeakValueDictionary()
_recent: deque[ZipStore] = deque(maxlen=4)  # Of other processes: tasks come one after the other.

_READING = "is read-only: it was opened with mode 'r'; accepted: mode 'a' or 'w'"
_CLOSED = "is read-only: it is closed; accepted: opening it with mode 'a'"
_ELSEWHERE = (
    "cannot be written here: another process is writing it; accepted: threads of that process "
    "(scheduler='threads'), or a directory that processes share and that ZipStore.pack makes a zip of"
)


def _forget() -> None:
    """A forked child writes to no zip of its parent, and waits for no thread of it."""
    for store in list(_LIVE.values()):
        store._lock = threading.RLock()
        if store._draft is not None:
            store._draft.forked()
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
    A zip is written to a file beside its place, which it takes in one step. Who adds to one adds to a copy of
    it, which takes the space of a second zip and the time to copy it. One thread at a time writes a value.
    The name of that file begins with ``.xzarr3-zip-``. A killed writer leaves it behind, until the next one;
    a directory store around it takes it for a key. Nothing can be added to a zip with names that are not
    UTF-8, or with members that cannot be read.

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
    writes_conditionally = True
    publishes_at_close = True

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
        self._prepare(mode, fsync)
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

    def _prepare(self, mode: Mode, fsync: bool) -> None:
        self.mode: Mode = mode
        self.fsync = fsync
        self._view: _View | None = None
        self._draft: Draft | None = None
        self._expected: bytes | None = None
        self._snapshot: tuple[Any, ...] | None = None
        self._is_twin = False
        self._why = _READING
        self._finalizer: weakref.finalize[..., ZipStore] | None = None
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        if self.path:
            return f"<ZipStore '{printable(self.path)}'>"
        return f"<ZipStore '{printable(str(self.key))}' of {self._inner}>"

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
        self._view = _View(str(self), file, directory, directory.digest)

    def _begin(self, mode: str) -> None:
        draft: Draft
        if self._inner is not None:
            draft = ValueDraft(self._inner, str(self.key), mode, str(self))
        else:
            draft = PathDraft(os.path.realpath(str(self.path)), mode, str(self), self.fsync)
        self._draft = draft
        self._view = _View(str(self), draft.file, draft.old, draft.lineage)
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

    def _check_writable(self) -> None:
        if self.read_only:
            raise ReadOnlyError(f"{self} {self._why}")
        if self._draft is not None and self._draft.pid != os.getpid():
            raise ReadOnlyError(f"{self} {_ELSEWHERE}")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[tuple[Draft, _View]]:
        """No other thread writes or closes the store meanwhile."""
        with self._lock:
            self._check_writable()
            draft = self._draft
            if draft is None:
                raise ReadOnlyError(f"{self} {_CLOSED}")
            yield draft, self._opened()

    def flush(self) -> None:
        """Bring what was written to its place and go on writing.

        Raises
        ------
        StoreError
            If that fails. What is at the place is then what was there before, and it can be tried again.
        """
        with self._writing() as (draft, view):
            self._commit(draft, view)
            try:
                self._begin("r+")
            except BaseException:
                self._become_read_only()
                raise

    def close(self) -> None:
        """Bring what was written to its place, and write no more; reading opens the zip again.

        Raises
        ------
        StoreError
            If that fails, for want of space, say. What is at the place is then what was there before, the
            store stays open, and it can be tried again.
        """
        with self._lock:
            if self._draft is None:
                self._view = None if self._snapshot is None else self._view
            elif self._draft.pid == os.getpid():
                self._commit(self._draft, self._opened())
                self._become_read_only()

    def discard(self) -> None:
        """Forget what was written since the store was opened, and write no more."""
        with self._lock:
            if self._draft is not None and self._draft.pid == os.getpid():
                self._let_go()
                self._expected = None
                self._become_read_only()

    def _commit(self, draft: Draft, view: _View) -> None:
        if view.changes:
            self._expected = draft.commit(view.members.values())
        else:
            self._expected = draft.old.digest if draft.old is not None else None
        self._let_go()

    def _let_go(self) -> None:
        if self._finalizer is not None:
            self._finalizer.detach()
            self._finalizer = None
        if self._draft is not None:
            self._draft.release()
            self._draft = None

    def _become_read_only(self) -> None:
        self.read_only = True
        self._why = _CLOSED
        self._view = None
        self._take_after_inner()

    def _take_after_inner(self) -> None:
        """Reading costs what it costs the other store."""
        if self._inner is not None:
            self.concurrency = self._inner.concurrency
            self.request_bytes = self._inner.request_bytes

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.discard()

    def __reduce__(self) -> tuple[object, ...]:
        with self._lock:
            snapshot = self._snapshot if self._draft is None else self._opened().snapshot()
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

    def _get(self, key: str, byte_range: ByteRange | None) -> Buffer | None:
        view = self._opened()
        member = view.members.get(key)
        if member is None:
            return None
        if byte_range is None:
            return view.whole(member)
        return view.parts(member, [byte_range])[0]

    def _exists(self, key: str) -> bool:
        return key in self._opened().members

    def _reader(self, scratch: Scratch | None, limit: int) -> Reader:
        return _ZipReader(self, scratch, limit)

    def stamp(self, keys: Sequence[str]) -> object:
        view = self._opened()
        return [view.version(view.members.get(key)) if key else view.token() for key in keys]

    def version(self, key: str) -> object | None:
        view = self._opened()
        return view.version(view.members.get(key))

    # Writeable

    def _set(self, key: str, value: bytes) -> None:
        self._put(key, [memoryview(value)])

    def _put(self, key: str, contents: list[memoryview]) -> None:
        member = _member_of(key, contents)
        with self._writing() as (draft, view):
            draft.append(member, contents)
            view.put(key, member)

    def _writer(self, scratch: Scratch | None, limit: int) -> Writer:
        return _ZipWriter(self, scratch, limit)

    def _get_versioned(self, key: str) -> tuple[Buffer | None, object]:
        view = self._opened()
        member = view.members.get(key)
        return (None, _ABSENT) if member is None else (view.whole(member), view.version(member))

    def _compare_and_set(self, key: str, version: object, value: bytes | None) -> bool:
        contents = [] if value is None else [memoryview(value)]
        member = _member_of(key, contents)
        with self._writing() as (draft, view):
            if (view.version(view.members.get(key)) or _ABSENT) != version:
                return False
            if value is None:
                view.remove([key])
            else:
                draft.append(member, contents)
                view.put(key, member)
            return True

    def _erase_values(self, keys: Sequence[str]) -> None:
        with self._writing() as (_, view):
            view.remove(keys)

    def _erase_prefix(self, prefix: str) -> None:
        with self._writing() as (_, view):
            view.remove(view.below(prefix))

    # Listable

    def _list(self, prefix: str) -> Iterator[str]:
        with self._lock:
            return iter(self._opened().below(prefix))

    def _list_dir(self, prefix: str) -> tuple[KeySet, KeySet]:
        with self._lock:
            return self._opened().directly_below(prefix)


class _ZipReader(Reader):
    """Reads members of a zip."""

    _store: ZipStore

    def get(self, key: str) -> Buffer | None:
        view = self._store._opened()
        member = view.members.get(key)
        if member is None:
            return None
        size, limit = member.file_size, self._limit
        # What is deflated may be a bit longer than without.
        if size > limit or member.compress_size > limit + limit // 1000 + 1000:
            raise OversizedError(max(size, member.compress_size), limit)
        if self._scratch is None or not member.is_plain or not isinstance(view.file, LocalFile):
            return view.whole(member)
        memory = self._scratch.part(size)
        view.read_into(view.file, member, 0, memory)
        return memory

    def get_ranges(
        self, key: str, starts: Sequence[int], lengths: Sequence[int]
    ) -> tuple[int | None, list[Buffer]] | None:
        view = self._store._opened()
        member = view.members.get(key)
        if member is None:
            return None
        return member.file_size, view.parts(member, zip(starts, lengths, strict=True))

    def open(
        self, key: str, part: tuple[int, int] | None = None, version: object | None = None
    ) -> ValueReader | None:
        view = self._store._opened()
        member = view.members.get(key)
        return None if member is None else _MemberReader(view, member)


class _ZipWriter(Writer):
    """Puts members into a zip, in pieces."""

    _store: ZipStore

    def set(self, key: str, pieces: Sequence[Buffer]) -> None:
        self._store._put(key, [flat(piece, key) for piece in pieces])


def _member_of(key: str, contents: list[memoryview]) -> Member:
    size, crc = 0, 0
    for content in contents:
        size += content.nbytes
        crc = crc32(content, crc)
    return new_member(key, size, crc)


class _View:
    """What a zip holds at present, and how its values are read.

    Parameters
    ----------
    where : str
        The name of the zip, for messages.
    file : Source
    directory : Directory or None
    lineage : object
        What tells its members from those of other zips, and of other writers of this one.
    """

    def __init__(self, where: str, file: Source, directory: Directory | None, lineage: object) -> None:
        self.where = where
        self.file = file
        self.members: dict[str, Member] = {} if directory is None else directory.members
        self.unusable: dict[str, str] = {} if directory is None else directory.unusable
        self.lineage = lineage
        self.changes = 0
        self._folders: _Folders | None = None
        self._kept: tuple[int, tuple[Any, ...]] | None = None

    def token(self) -> object:
        """What changes with every change."""
        return self.lineage, self.changes

    def version(self, member: Member | None) -> object | None:
        """What tells the value of a member from all others of its key."""
        if member is None:
            return None
        return self.lineage, member.header_offset, member.CRC, member.file_size

    # Changing and listing it; who calls holds the lock of the store.

    def put(self, key: str, member: Member) -> None:
        """A new value."""
        self.members[key] = member
        self.changes += 1
        if self._folders is not None:
            _enter(self._folders, key)

    def remove(self, keys: Iterable[str]) -> None:
        """No values."""
        for key in keys:
            if self.members.pop(key, None) is not None:
                self.changes += 1
                self._folders = None

    def below(self, prefix: str) -> list[str]:
        """The keys that begin with a prefix."""
        return [key for key in self.members if key.startswith(prefix)]

    def directly_below(self, prefix: str) -> tuple[set[str], set[str]]:
        """The keys and the prefixes directly below a prefix."""
        if self._folders is None:
            self._folders = {}
            for key in self.members:
                _enter(self._folders, key)
        keys, prefixes = self._folders.get(prefix, ((), ()))
        return set(keys), set(prefixes)

    # Reading

    def _name(self, member: Member) -> str:
        return f"key '{member.filename}' of {self.where}"

    def whole(self, member: Member) -> Buffer:
        """All of a value, its checksum verified."""
        self._check(member)
        size = member.compress_size
        if member.start >= 0:
            data = self.file.read(member.start, size)
        else:
            ask = min(member.limit, member.least_start + size + _SLACK) - member.header_offset
            block = memoryview(self.file.read(member.header_offset, ask))
            member.start = data_start(block, member, self._name(member))
            data = block[member.start - member.header_offset :][:size]
            if len(data) < size and len(block) == ask:  # Extra fields that were not expected.
                data = self.file.read(member.start, size)
        if len(data) != size:
            raise self._cut_off(member)
        if not member.is_plain:
            data = inflate([data], 0, member.file_size, member.file_size, self._name(member))
        self._verify(member, data)
        return data

    def read_into(self, file: LocalFile, member: Member, start: int, out: memoryview) -> None:
        """A part of a plain value into memory."""
        if file.read_into(self._start(member) + start, out) != len(out):
            raise self._cut_off(member)
        if len(out) == member.file_size:
            self._verify(member, out)

    def parts(self, member: Member, ranges: Iterable[ByteRange]) -> list[Buffer]:
        """Several parts of a value; they are shorter where it ends."""
        self._check(member)
        size = member.file_size
        wanted = [_within(byte_range, size) for byte_range in ranges]
        if (0, size) in wanted:
            window, first = memoryview(self.whole(member)), 0
        elif member.is_plain:
            return self._stored_parts(member, wanted)
        else:
            some = [(start, start + length) for start, length in wanted if length] or [(0, 0)]
            first, last = min(start for start, _ in some), max(stop for _, stop in some)
            window = memoryview(self._inflated(member, first, last) if last else b"")
        return [window[start - first :][:length] if length else b"" for start, length in wanted]

    def _inflated(self, member: Member, first: int, last: int) -> bytes:
        """A part of a deflated value, with little more memory than it takes."""
        start, size = self._start(member), member.compress_size
        pieces = (self.file.read(start + at, min(PIECE, size - at)) for at in range(0, size, PIECE))
        return inflate(pieces, first, last, member.file_size, self._name(member))

    def _start(self, member: Member) -> int:
        if member.start < 0:
            head = self.file.read(member.header_offset, LOCAL.size + member.name_size)
            member.start = data_start(head, member, self._name(member))
        return member.start

    def _stored_parts(self, member: Member, wanted: list[tuple[int, int]]) -> list[Buffer]:
        starts = [start for start, length in wanted if length]
        lengths = [length for _, length in wanted if length]
        least = member.least_start
        found: list[Buffer] = []
        if member.start < 0 and starts:
            head, *found = self.file.read_ranges(
                [member.header_offset, *(least + start for start in starts)],
                [least - member.header_offset, *lengths],
            )
            member.start = data_start(head, member, self._name(member))
        if starts and not (found and member.start == least):
            found = self.file.read_ranges([member.start + start for start in starts], lengths)
        if [len(part) for part in found] != lengths:
            raise self._cut_off(member)
        following = iter(found)
        return [next(following) if length else b"" for _, length in wanted]

    def _check(self, member: Member) -> None:
        if member.problem is not None:
            raise StoreError(f"cannot read {self._name(member)}: {member.problem}")

    def _verify(self, member: Member, data: Buffer) -> None:
        found = crc32(data)
        if found != member.CRC:
            raise StoreError(
                f"{self._name(member)} is damaged: its checksum is {found:08x}; accepted: the "
                f"{member.CRC:08x} that the directory says"
            )

    def _cut_off(self, member: Member) -> StoreError:
        return StoreError(f"{self._name(member)} is cut off; accepted: a whole zip file")

    # For other processes

    def snapshot(self) -> tuple[Any, ...]:
        """What another process of this machine needs to read the same."""
        if self._kept is None or self._kept[0] != self.changes:
            if not isinstance(self.file, LocalFile):
                raise StoreError(f"{self.where} is in no file")
            info = self.file.status()
            place = socket.gethostname(), self.file.path, (info.st_dev, info.st_ino)
            state = dict(self.members), self.unusable, self.lineage, self.changes
            self._kept = self.changes, (*place, *state)
        return self._kept[1]


def _enter(folders: _Folders, key: str) -> None:
    """Note a key in its folder, and the folder in those above."""
    below = key[: key.rfind("/") + 1]
    folders.setdefault(below, (set(), set()))[0].add(key)
    while below:
        above = below[: below.rfind("/", 0, -1) + 1]
        prefixes = folders.setdefault(above, (set(), set()))[1]
        if below in prefixes:
            return
        prefixes.add(below)
        below = above


def _within(byte_range: ByteRange, size: int) -> tuple[int, int]:
    """The start and the length of what a value of ``size`` bytes has of a range."""
    start, length = byte_range
    if length is not None and length < 0:
        raise negative_length(length)
    first = min(start if start >= 0 else max(size + start, 0), size)
    return first, size - first if length is None else min(length, size - first)


def _copy_of(snapshot: tuple[Any, ...], where: str, path: str | None) -> _View:
    """What a store held that another process is writing, or that has got its place by now."""
    host, known, node, members, unusable, lineage, changes = snapshot
    if host != socket.gethostname():
        raise StoreError(
            f"{where} is being written on '{host}', where alone it can be read; accepted: closing it first"
        )
    for place in (known, path):
        with contextlib.suppress(FileNotFoundError):
            if place is not None:
                file = LocalFile(os.open(place, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)), where, place)
                info = file.status()
                if (info.st_dev, info.st_ino) == node and stat.S_ISREG(info.st_mode):
                    view = _View(where, file, None, lineage)
                    view.members, view.unusable, view.changes = members, unusable, changes
                    return view
    raise ChangedError(
        f"{where} was being written when it was pickled and has changed since; accepted: closing it first"
    )


class _MemberReader(ValueReader):
    """Parts of one member, which is what it was when it was opened."""

    def __init__(self, view: _View, member: Member) -> None:
        self._view = view
        self._member = member
        self.size: int = member.file_size

    @property
    def version(self) -> object | None:
        return self._view.version(self._member)

    def read(self, start: int, length: int | None = None) -> Buffer:
        return self._view.parts(self._member, [(start, length)])[0]

    def read_ranges(self, starts: Sequence[int], lengths: Sequence[int]) -> list[Buffer]:
        return self._view.parts(self._member, zip(starts, lengths, strict=True))

    def read_into(self, start: int, out: memoryview) -> int:
        view, member = self._view, self._member
        if not (member.is_plain and isinstance(view.file, LocalFile) and start >= 0):
            return super().read_into(start, out)
        count = min(len(out), max(member.file_size - start, 0))
        view.read_into(view.file, member, start, out[:count])
        return count


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
    members = view.members.values()
    try:
        if view.changes and not reason:
            draft.commit(members)
        elif view.changes and (members or draft.old is not None):
            raise StoreError(reason)
    except BaseException as error:
        try:
            kept = draft.keep(members)
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
        draft, view, finalizer = store._draft, store._view, store._finalizer
        if draft is None or view is None or draft.pid != os.getpid():
            continue
        if finalizer is not None and finalizer.detach() is not None:
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
    state = (snapshot or ())[-2:]  # The lineage and the changes.
    if store is not None and (
        not store._is_twin or (store._expected == expected and (store._snapshot or ())[-2:] == state)
    ):
        return store
    store = ZipStore.__new__(ZipStore)
    Store.__init__(store, read_only=True)
    store._identity = identity
    store._place(place, key)
    store._prepare("r", fsync=False)
    store._expected, store._snapshot = expected, snapshot
    store._why = _READING if snapshot is None else _ELSEWHERE
    store._is_twin = True
    if snapshot is None:
        store._take_after_inner()
    _LIVE[identity] = store
    _recent.append(store)
    return store
