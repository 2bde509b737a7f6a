"""A store in a zip, which is a file of this machine or a value of another store.

Specification: PKWARE APPNOTE 6.3.10. The names of the members are the keys, as in zarr-python.
:mod:`xzarr3.stores.zip.read` reads the zip and decides what is refused. :mod:`xzarr3.stores.zip.write` writes
and commits it.
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
from xzarr3.errors import (
    ArgumentError,
    ArgumentTypeError,
    ChangedError,
    NodeNotFoundError,
    ReadOnlyError,
    StoreError,
    listed,
    printable,
    shorten,
)
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
from xzarr3.stores.local.near import missing_part
from xzarr3.stores.locks import fork_safe
from xzarr3.stores.sharing import share
from xzarr3.stores.zip.read import TAIL, MemberReader, View, open_path, read_directory
from xzarr3.stores.zip.write import Draft, PathDraft, ValueDraft, new_member

Mode: TypeAlias = Literal["r", "r+", "a", "w", "w-", "x"]

_PATIENCE = 10.0  # Seconds
_WEIGHT = 8  # Weight in `xzarr3.stores.sharing`: the directory is kept in memory while no task uses it.

_LIVE: weakref.WeakValueDictionary[str, ZipStore] = weakref.WeakValueDictionary()
_READING = "is read-only: it was opened with mode 'r'; use mode 'a' or 'w'"
_CLOSED = "is read-only: it is closed; open it with mode 'a'"
_ELSEWHERE = (
    "cannot be used here: another process is writing it, or was when it was pickled; close it first, "
    "use threads of that process (scheduler='threads'), or write a directory that processes share and "
    "make a zip of it with ZipStore.pack"
)


class ZipStore(Store):
    """Values are members of a zip, uncompressed.

    Reading requests the end of the zip and its directory once, and then one request for each value. Deflated
    members can be read as well. A value that is read whole is verified by its checksum. For a part, the store
    verifies that the member is where the directory says and that the part has the right length.

    Writing needs a single writer: one store object, which all threads of its process may use. Its changes are
    committed to the zip by :meth:`close`, by :meth:`flush` or at the end of a ``with`` statement. Until then
    other readers see the old zip, also if this process is killed. A ``with`` statement that ends with an
    error discards the changes, see :meth:`discard`. A store that is not closed explicitly is closed when it
    is garbage collected or when the interpreter exits. If that fails, or if the program ends with an error,
    the zip stays unchanged. The error then names the file that holds the changes until the zip is written
    again.

    Replaced and erased values keep their space in the zip; :meth:`pack` makes a zip without them. Equal
    values, set in the same order, give equal bytes.

    Parameters
    ----------
    path : str, path or Store
        The zip file; or the store that holds the zip as a value, together with ``key``.
    key : str, optional
        The key of that value.
    mode : {"r", "r+", "a", "w", "w-", "x"}
        ``r`` reads a zip. ``r+`` adds to an existing zip; ``a`` does so or creates one. ``w`` creates a zip
        and replaces an existing one. ``w-`` and ``x`` create a zip and refuse to replace one.
    read_only : bool, optional
        Refuse every write; only mode ``r`` does.
    fsync : bool
        Wait until the zip is on the disk before it is renamed to its path.

    Notes
    -----
    A zip is written to a temporary file beside its path and then renamed in one step. Adding to a zip starts
    from a copy of it, which takes the space of a second zip and the time to copy it. One thread at a time
    writes a value. The name of the temporary file begins with ``.xzarr3-zip-``, that of its lock file with
    ``.xzarr3-ziplock-``. A killed writer leaves both behind until the next writer removes them; a directory
    store around them takes them for keys. Nothing can be added to a zip with names that are not UTF-8.

    A zip that is a value of another store is written to a temporary file and set when the store is closed.
    Processes do not exclude each other then. If another writer changed the value meanwhile, closing raises an
    error; in mode ``w`` the last writer wins instead.

    Members whose names cannot be keys (``../x``, ``/x``, ``a//b``) cannot be read and are listed in
    :attr:`unusable`; the others can be read. Backslashes and colons in names are ordinary characters. A
    member that is encrypted, or compressed by another method, is listed, but reading it raises an error. Of
    several members with one name the last one counts. A zip is refused as a whole if its members overlap, lie
    outside of it or have impossible sizes, or if its directory is incomplete.

    A store that is being written, or was being written when it was pickled, can be neither read nor written
    in another process.

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
    xzarr3.errors.ReadOnlyError: <ZipStore '...'> is read-only: it was opened with mode 'r'; use ...
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
            raise ArgumentError(f"mode={mode!r}; accepted: {listed(get_args(Mode))}")
        if read_only is not None and read_only != (mode == "r"):
            raise ArgumentError(
                f"read_only={read_only!r} with mode={mode!r}; use read_only=True with mode='r' only"
            )
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
                raise ArgumentError(f"no key of a zip in {path}; pass key='...'")
            check_key(key)
        elif key is not None:
            raise ArgumentError(
                f"key={key!r} with a path; give a Store and the key of its value, or a path alone"
            )
        elif not isinstance(path, (str, os.PathLike)):
            raise ArgumentTypeError(
                f"not the place of a zip: {type(path).__name__}; accepted: a path or a Store"
            )
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
    def survives_crashes(self) -> bool:  # type: ignore[override]
        """Whether the zip is on the disk once it is committed."""
        return self.fsync if self._inner is None else self._inner.survives_crashes

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
        """Read the directory of the zip."""
        if self._is_elsewhere:
            raise StoreError(f"{self} {_ELSEWHERE}")
        if self._inner is None:
            file = open_path(str(self.path))
        else:
            file = self._inner.reader().open(str(self.key), (-TAIL, TAIL))
        if file is None:
            near = "" if self._inner is not None else f"; {missing_part(os.path.abspath(str(self.path)))}"
            raise NodeNotFoundError(f"{self} does not exist; correct the path, or use mode 'w'{near}")
        try:
            directory = read_directory(file, str(self))
            if self._expected not in (None, directory.digest):
                raise ChangedError(f"{self} has been replaced since it was opened; open it again")
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
        view.changes = 0 if draft.old is not None else 1  # A new zip is a change, even without members.
        self._draft, self._view = draft, view
        self._finalizer = Finalize(self, _end, (draft, view), exitpriority=10)

    @property
    def unusable(self) -> dict[str, str]:
        """Names of members that cannot be keys, and the reasons."""
        return dict(self._opened().unusable)

    @property
    def _is_inherited(self) -> bool:
        """Whether this process is a forked child, which must not write to its parent's zip."""
        return self._pid != os.getpid()

    def _check_writable(self) -> None:
        if self._is_elsewhere or (self._draft is not None and self._is_inherited):
            raise ReadOnlyError(f"{self} {_ELSEWHERE}")
        if self.read_only:
            raise ReadOnlyError(f"{self} {_READING if self.mode == 'r' else _CLOSED}")

    def _writing(self) -> tuple[Draft, View]:
        """The draft and its view. The caller holds the lock, so that no other thread writes or closes."""
        self._check_writable()
        if self._draft is None or self._view is None:
            raise ReadOnlyError(f"{self} {_CLOSED}")
        return self._draft, self._view

    def flush(self) -> None:
        """Commit the changes to the zip and keep it open for writing.

        Raises
        ------
        StoreError
            If that fails. The old zip is then unchanged, and the call can be repeated.
        """
        with self._lock:
            self._writing()
            self._commit()
            self._begin("r+")

    def close(self) -> None:
        """Commit the changes to the zip and end writing. A later read opens the zip again.

        Raises
        ------
        StoreError
            If that fails, for example because the disk is full. The old zip is then unchanged, the store
            stays open, and the call can be repeated.
        """
        with self._lock:
            if self._draft is None:
                self._view = None
            elif not self._is_inherited:
                self._commit()
                self._become_read_only()

    def discard(self) -> None:
        """Discard all changes since the store was opened, and end writing."""
        with self._lock:
            if self._draft is not None and not self._is_inherited:
                self._let_go(None)
                self._become_read_only()

    def _commit(self) -> None:
        draft, view = self._writing()
        expected = None if draft.old is None else draft.old.digest
        if view.changes:
            expected = draft.commit(view.members.values())
        del view  # Some systems cannot remove an open file.
        self._let_go(expected)

    def _let_go(self, expected: bytes | None) -> None:
        """Release the draft. Later reads open the zip again and expect the directory digest ``expected``."""
        draft, self._draft = self._draft, None
        self._view, self._expected = None, expected
        if self._finalizer is not None:
            self._finalizer.cancel()
        if draft is not None:
            draft.release()

    def _become_read_only(self) -> None:
        """End writing. From now on reading costs what it costs in the store that holds the zip."""
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
        """Make a zip of all values of a store, sorted by key; equal values give equal bytes.

        To remove replaced and erased values from a zip, pack it to its own path.

        Parameters
        ----------
        source : Store
        path, key, fsync
            See :class:`ZipStore`; an existing zip is replaced.
        prefix : str
            Pack only the keys that begin with it, and remove it from their names.

        Returns
        -------
        ZipStore
            The zip, opened for reading.

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
                        raise StoreError(f"key '{name}' of {source} was removed while it was packed")
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
        info, header = new_member(check_key(key), contents)
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

    def _list_sizes(self, prefix: str) -> Iterator[tuple[str, int | None]]:
        with self._lock:
            view = self._opened()
            return iter([(key, view.members[key].file_size) for key in view.below(prefix)])


class _ZipReader(Reader):
    """Reads members of a zip."""

    _store: ZipStore

    def get(self, key: str) -> Buffer | None:
        view = self._store._opened()
        info = view.members.get(check_key(key))
        if info is None:
            return None
        size, limit = info.file_size, self._limit
        # Deflate may enlarge a value slightly.
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
        info = view.members.get(check_key(key))
        return None if info is None else MemberReader(view, info)


class _ZipWriter(Writer):
    """Writes members to a zip, each from several pieces."""

    _store: ZipStore

    def set(self, key: str, pieces: Sequence[Buffer]) -> None:
        self._store._put(key, [flat(piece, key) for piece in pieces])


def _end(draft: Draft, view: View) -> None:
    """Finish a zip that was not closed, when it is garbage collected or the interpreter exits."""
    if is_exiting():
        _finish(draft, view, sys.exc_info()[1] or getattr(sys, "last_value", None))
        return
    # Garbage collection may run anywhere, also while this thread holds the lock of another store.
    helper = threading.Thread(target=_finish, args=(draft, view, None), name="xzarr3-zip")
    helper.start()
    helper.join(_PATIENCE)


def _finish(draft: Draft, view: View, failure: BaseException | None) -> None:
    """Commit a zip unless the program failed; if it cannot be committed, keep the changes in their file."""
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
