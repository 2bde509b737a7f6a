"""A store in a zip file, which is a file of this machine or a value of another store.

Specification: PKWARE APPNOTE 6.3.10; the names of the members are the keys, as zarr-python has them. See
:mod:`xzarr3.stores.zip.read` for what is read of it and what is refused, and
:mod:`xzarr3.stores.zip.write` for how a zip comes to its place.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from multiprocessing.util import Finalize, is_exiting
from types import TracebackType
from typing import Literal, TypeAlias, get_args

from xzarr3._types import Buffer, ByteRange
from xzarr3.errors import ChangedError, NodeNotFoundError, ReadOnlyError, StoreError, printable, shorten
from xzarr3.stores.base import (
    ABSENT,
    KeySet,
    OversizedError,
    Reader,
    Scratch,
    Store,
    ValueReader,
    Writer,
    check_key,
    flat,
)
from xzarr3.stores.local import platform
from xzarr3.stores.locks import fork_safe
from xzarr3.stores.sharing import share
from xzarr3.stores.zip.read import TAIL, MemberReader, View, open_path, read_directory
from xzarr3.stores.zip.write import Draft, PathDraft, ValueDraft, new_member

Mode: TypeAlias = Literal["r", "r+", "a", "w", "w-", "x"]

_PATIENCE = 10.0  # Seconds
_WEIGHT = 8  # Of its directory, which it keeps in memory while no task uses it.

_LIVE: weakref.WeakValueDictionary[str, ZipStore] = weakref.WeakValueDictionary()
_READING = "is read-only: it was opened with mode 'r'; accepted: mode 'a' or 'w'"
_CLOSED = "is read-only: it is closed; accepted: opening it with mode 'a'"
_ELSEWHERE = (
    "cannot be used here: another process is writing it, or was when it was pickled; accepted: closing it "
    "first, threads of that process (scheduler='threads'), or a directory that processes share and that "
    "ZipStore.pack makes a zip of"
)


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
    as it was, and the error says in which file what was written is until somebody writes the zip again.

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
    The name of that file begins with ``.xzarr3-zip-``, that of its lock with ``.xzarr3-ziplock-``. A killed
    writer leaves them behind, until the next one; a directory store around them takes them for keys. Nothing
    can be added to a zip with names that are not UTF-8.

    As a value of another store the zip is written to a temporary file and set when the store is closed. There
    is no lock between processes then; if somebody else changed the value meanwhile that is an error, but in
    mode ``w`` the last one wins.

    A member whose name is no key (``../x``, ``/x``, ``a//b``) cannot be read, which :attr:`unusable` tells;
    the others can. A backslash or a colon within a name is a letter like others. A member that is encrypted
    or compressed in another way is listed, and reading it is an error. Of members of the same name the last
    one counts. A zip is refused, all of it, whose members overlap, lie outside of it, or have sizes that
    cannot be, and one whose directory is not whole.

    In another process a store that is being written, or was when it was pickled, can be neither read nor
    written.

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
        self._set_up(path, key, mode, fsync)
        if mode == "r":
            self._become_read_only()
            self._opened()
        else:
            self._begin({"w-": "x"}.get(mode, mode))
        _LIVE[self._identity] = self

    def _set_up(self, path: str | os.PathLike[str] | Store, key: str | None, mode: Mode, fsync: bool) -> None:
        if isinstance(path, Store):
            if key is None:
                raise ValueError(f"no key of a zip in {path}; accepted: key='...'")
            check_key(key)
        elif key is not None:
            raise ValueError(
                f"key={key!r} with a path: accepted: a Store and the key of its value, or a path"
            )
        elif not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"not the place of a zip: {type(path).__name__}; accepted: a path or a Store")
        else:
            path = os.path.abspath(os.path.expanduser(os.fspath(path)))
            if not platform.is_name(path) or not os.path.basename(path):
                raise StoreError(f"no zip at {shorten(path)}; accepted: a path that the system can name")
        self.path: str | None = None if isinstance(path, Store) else str(path)
        self._inner: Store | None = path if isinstance(path, Store) else None
        self.key = key
        self.mode: Mode = mode
        self.fsync = fsync
        self._view: View | None = None
        self._draft: Draft | None = None
        self._expected: bytes | None = None
        self._is_elsewhere = False
        self._finalizer: Finalize | None = None
        self._lock = fork_safe(threading.RLock())
        self._pid = os.getpid()

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
        return self.identity, self._opened().token

    # Opening and closing

    def _opened(self) -> View:
        view = self._view
        if view is not None:
            return view
        with self._lock:
            if self._view is None:
                self._view = self._read()
            return self._view

    def _read(self) -> View:
        """Read the directory."""
        if self._is_elsewhere:
            raise StoreError(f"{self} {_ELSEWHERE}")
        if self._inner is None:
            file = open_path(str(self.path))
        else:
            file = self._inner.reader().open(str(self.key), (-TAIL, TAIL))
        if file is None:
            raise NodeNotFoundError(f"there is no {self}; accepted: a zip that is there, or mode 'w'")
        try:
            directory = read_directory(file, str(self))
            if self._expected not in (None, directory.digest):
                raise ChangedError(
                    f"{self} has been replaced since it was opened; accepted: opening it again"
                )
        except BaseException:
            file.close()
            raise
        self._expected = directory.digest
        return View(str(self), file, self._inner is None, directory, directory.digest)

    def _begin(self, mode: str) -> None:
        draft: Draft
        if self._inner is not None:
            draft = ValueDraft(self._inner, str(self.key), mode, str(self))
        else:
            draft = PathDraft(os.path.realpath(str(self.path)), mode, str(self), self.fsync)
        view = View(str(self), draft.reader, True, draft.old, draft.lineage)
        view.changes = 0 if draft.old is not None else 1  # A new zip is one even without members.
        self._draft, self._view = draft, view
        self._finalizer = Finalize(self, _end, (draft, view), exitpriority=10)

    @property
    def unusable(self) -> dict[str, str]:
        """Names of members that no key can have, and why."""
        return dict(self._opened().unusable)

    @property
    def _is_inherited(self) -> bool:
        """Whether this process is a forked child, which writes to no zip of its parent."""
        return self._pid != os.getpid()

    def _check_writable(self) -> None:
        if self._is_elsewhere or (self._draft is not None and self._is_inherited):
            raise ReadOnlyError(f"{self} {_ELSEWHERE}")
        if self.read_only:
            raise ReadOnlyError(f"{self} {_READING if self.mode == 'r' else _CLOSED}")

    def _writing(self) -> tuple[Draft, View]:
        """What is written; who calls holds the lock, so that nobody else writes or closes the store."""
        self._check_writable()
        if self._draft is None or self._view is None:
            raise ReadOnlyError(f"{self} {_CLOSED}")
        return self._draft, self._view

    def flush(self) -> None:
        """Bring what was written to its place and go on writing.

        Raises
        ------
        StoreError
            If that fails. What is at the place is then what was there before, and it can be tried again.
        """
        with self._lock:
            self._writing()
            self._commit()
            self._begin("r+")

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
                self._view = None
            elif not self._is_inherited:
                self._commit()
                self._become_read_only()

    def discard(self) -> None:
        """Forget what was written since the store was opened, and write no more."""
        with self._lock:
            if self._draft is not None and not self._is_inherited:
                self._let_go(None)
                self._become_read_only()

    def _commit(self) -> None:
        draft, view = self._writing()
        expected = None if draft.old is None else draft.old.digest
        if view.changes:
            expected = draft.commit(view.members.values())
        del view  # What is open cannot be removed everywhere.
        self._let_go(expected)

    def _let_go(self, expected: bytes | None) -> None:
        """Have done with what was written; what is read is what is at the place then."""
        draft, self._draft = self._draft, None
        self._view, self._expected = None, expected
        if self._finalizer is not None:
            self._finalizer.cancel()
        if draft is not None:
            draft.release()

    def _become_read_only(self) -> None:
        """Write no more; reading costs what it costs the store around the zip."""
        self.read_only = True
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
        place = self._inner if self._inner is not None else self.path
        is_elsewhere = self._is_elsewhere or self._draft is not None
        return _restore, (self._identity, place, self.key, self._expected, is_elsewhere)

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
        info = view.members.get(key)
        if info is None:
            return None
        return view.whole(info) if byte_range is None else view.parts(info, [byte_range])[0]

    def _exists(self, key: str) -> bool:
        return key in self._opened().members

    def _reader(self, scratch: Scratch | None, limit: int) -> Reader:
        return _ZipReader(self, scratch, limit)

    def stamp(self, keys: Sequence[str]) -> object:
        view = self._opened()
        return [view.version(view.members.get(key)) if key else view.token for key in keys]

    def version(self, key: str) -> object | None:
        view = self._opened()
        return view.version(view.members.get(key))

    # Writeable

    def _set(self, key: str, value: bytes) -> None:
        self._put(key, [memoryview(value)])

    def _put(self, key: str, contents: list[memoryview]) -> None:
        info, header = new_member(key, contents)
        with self._lock:
            draft, view = self._writing()
            view.put(info, draft.append(info, header, contents))

    def _writer(self, scratch: Scratch | None, limit: int) -> Writer:
        return _ZipWriter(self, scratch, limit)

    def _get_versioned(self, key: str) -> tuple[Buffer | None, object]:
        view = self._opened()
        info = view.members.get(key)
        return (None, ABSENT) if info is None else (view.whole(info), view.version(info))

    def _compare_and_set(self, key: str, version: object, value: bytes | None) -> bool:
        with self._lock:
            _, view = self._writing()
            same: bool = (view.version(view.members.get(key)) or ABSENT) == version
            if same and value is None:
                view.remove([key])
            elif same:
                self._put(key, [memoryview(value or b"")])
            return same

    def _erase_values(self, keys: Sequence[str]) -> None:
        with self._lock:
            self._writing()[1].remove(keys)

    def _erase_prefix(self, prefix: str) -> None:
        with self._lock:
            view = self._writing()[1]
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
        info = view.members.get(key)
        if info is None:
            return None
        size, limit = info.file_size, self._limit
        # What is deflated may be a bit longer than without.
        if size > limit or info.compress_size > limit + limit // 1000 + 1000:
            raise OversizedError(max(size, info.compress_size), limit)
        if self._scratch is None or not view.is_plain(info):
            return view.whole(info)
        memory = self._scratch.part(size)
        view.read_into(info, 0, memory)
        return memory

    def open(
        self, key: str, part: tuple[int, int] | None = None, version: object | None = None
    ) -> ValueReader | None:
        view = self._store._opened()
        info = view.members.get(key)
        return None if info is None else MemberReader(view, info)


class _ZipWriter(Writer):
    """Puts members into a zip, in pieces."""

    _store: ZipStore

    def set(self, key: str, pieces: Sequence[Buffer]) -> None:
        self._store._put(key, [flat(piece, key) for piece in pieces])


def _end(draft: Draft, view: View) -> None:
    """Close a zip that nobody has closed: nobody knows it any more, or the interpreter exits."""
    if is_exiting():
        _finish(draft, view, sys.exc_info()[1] or getattr(sys, "last_value", None))
        return
    # The collector of garbage may be at work anywhere, also where this thread holds a lock of another store.
    helper = threading.Thread(target=_finish, args=(draft, view, None), name="xzarr3-zip")
    helper.start()
    helper.join(_PATIENCE)


def _finish(draft: Draft, view: View, failure: BaseException | None) -> None:
    """Bring a zip to its place, unless the program failed; what cannot get there is kept where it is."""
    members = view.members.values()
    is_failure = failure is not None and not isinstance(failure, SystemExit)
    try:
        if view.changes and not is_failure:
            draft.commit(members)
        elif view.changes and members:
            raise StoreError(f"the program ended with {type(failure).__name__}")
    except BaseException as error:
        try:
            kept = draft.keep(members)
        except OSError as lost:
            kept = f"what was written is lost: {lost}"
        raise StoreError(f"{view.where} was not closed and is as it was before; {kept}") from error
    finally:
        draft.release()


def _restore(
    identity: str, place: str | Store, key: str | None, expected: bytes | None, is_elsewhere: bool
) -> ZipStore:
    def make() -> ZipStore:
        store = ZipStore.__new__(ZipStore)
        Store.__init__(store, read_only=True)
        store._identity = identity
        store._set_up(place, key, "r", fsync=False)
        store._expected, store._is_elsewhere = expected, is_elsewhere
        store._become_read_only()
        return store

    original = _LIVE.get(identity)
    if original is not None and not original._is_inherited:
        return original
    return share((identity, expected, is_elsewhere), make, _WEIGHT)
