"""A store in a directory of the local file system.

Specification: Zarr v3, "File system store". A key is a path below the root, a value is a file.

Reading follows links, unless the store is told to stay within the root. Writing and erasing follow links
within the root only. A link below an erased prefix is itself erased, and nothing behind it.

This module maps keys to paths. :mod:`~xzarr3.stores.local.files` reads and writes files,
:mod:`~xzarr3.stores.local.folders` walks directories, :mod:`~xzarr3.stores.local.erase` erases keys,
:mod:`~xzarr3.stores.local.locks` holds locks, and :mod:`~xzarr3.stores.local.platform` hides the differences
between operating systems.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import socket
import stat
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, NoReturn, TypeVar

import msgspec

from xzarr3._types import Buffer, ByteRange
from xzarr3.errors import InvalidKeyError, StoreError, StorePermissionError, printable, shorten
from xzarr3.stores.base import Key, Names, Store, Traits
from xzarr3.stores.keys import check_key
from xzarr3.stores.interned import reduced
from xzarr3.stores.local import platform
from xzarr3.stores.local.erase import Eraser
from xzarr3.stores.local.files import FileReader, FileWriter, read_whole, version_of
from xzarr3.stores.local.folders import STAGED, TEMPORARY, Folders, LeadsOutError, is_taken
from xzarr3.stores.local.platform import Folder
from xzarr3.stores.values import Scratch, Value

T = TypeVar("T")

_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR})
_IS_LINK = frozenset({errno.ELOOP, errno.EMLINK})
_ATTEMPTS = 100
_ADVICE = {  # What to do if a file cannot be written.
    errno.ENOTDIR: "; write to another path, since a part of this one is a file",
    errno.ENOSPC: "; free some space, or write to another disk",
    errno.EDQUOT: "; free some space, or write to another disk",
    errno.EROFS: "; write to another path, since this file system is read-only",
}
_OF_EACH = frozenset(("_identity", "_name"))


class LocalStore(Store):
    """Values are files below a directory.

    A value is replaced atomically: it is written to a temporary file in the same directory, which is then
    renamed. A failed or interrupted write leaves the old value. A temporary file that a killed writer leaves
    is no key. Once it is an hour old, it is removed with the prefix above it, or by :meth:`sweep`.

    :meth:`update`, and every write to a part of a chunk or a shard, keeps the changes that other threads,
    processes and hosts make in the same way. It holds a lock of the key from reading the old value to
    replacing it. The lock is in a lock file beside the value, which is removed afterwards. A network mount
    must support locks for that, and all hosts must run the same kind of system. A writer that replaces a
    value whole takes no lock. If this happens while a part of the old value is being changed, the change is
    made again, provided that the replacement comes before the changed value is renamed; otherwise the last
    writer wins.

    A store that is pickled while its directory exists does not create the directory elsewhere. A process on a
    machine that does not share the directory thus gets an error, and no directory of its own.

    A key with a value cannot be the beginning of another key: ``a`` and ``a/b`` exclude each other. File
    systems that ignore case, or that normalize Unicode, merge keys that differ only in that.

    Parameters
    ----------
    root : str or path
        The directory. It need not exist; the first write creates it.
    read_only : bool
        Refuse every write.
    fsync : bool
        Wait until each write or erasure is on the disk, so that it survives a crash of the system.
    locks : bool
        Whether processes exclude each other while they change parts of values. Without it only the threads
        of one process do. Use False for file systems without locks; only one process may write then.
    follow_links : bool
        Whether reading and listing follow links out of the root. Otherwise keys behind such links are
        refused, as writing always refuses them. Links within the root are always followed.

    Examples
    --------
    >>> import tempfile
    >>> store = LocalStore(tempfile.mkdtemp())
    >>> store.set("c/0", b"value")
    >>> bytes(store.get("c/0"))
    b'value'
    >>> store.set("../escape", b"")
    Traceback (most recent call last):
    xzarr3.errors.InvalidKeyError: invalid key '../escape'; accepted: ...
    """

    traits = Traits(
        request_bytes=2**12, over_read=math.inf, conditional="processes", tells_changes=True
    )

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        read_only: bool = False,
        fsync: bool = False,
        locks: bool = True,
        follow_links: bool = True,
    ) -> None:
        super().__init__(read_only=read_only)
        self.fsync = fsync
        self.locks = locks
        self.follow_links = follow_links
        self.root = os.path.abspath(os.path.expanduser(os.fspath(root)))
        if not platform.is_name(self.root):
            raise StoreError(f"no store at {shorten(self.root)}; accepted: a path that the system can name")
        self.traits = msgspec.structs.replace(
            self.traits,
            folder=self.root,
            durable=fsync,
            conditional="processes" if locks else "threads",
            plain_files=follow_links and platform.POSIX and type(self) is LocalStore,
        )
        self._base = os.path.join(self.root, "")
        self._was_there = False  # When pickled. A directory made elsewhere would not be shared.

    def __repr__(self) -> str:
        return f"<LocalStore '{printable(self.root)}'>"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and (other.root, other._options()) == (self.root, self._options())

    def __hash__(self) -> int:
        return hash(self.root)

    def __reduce__(self) -> tuple[object, ...]:
        return reduced(self, LocalStore)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__ | {"_was_there": self._was_there or os.path.isdir(self.root)}
        return {name: value for name, value in state.items() if name not in _OF_EACH}

    def check_writable(self) -> None:
        super().check_writable()
        if self._was_there and not os.path.isdir(self.root):
            raise StoreError(
                f"the directory of {self} existed when the store was pickled, but does not exist for process "
                f"{os.getpid()} of {socket.gethostname()}; use a directory that all processes share"
            )

    def _options(self) -> dict[str, bool]:
        return {name: getattr(self, name) for name in ("read_only", "fsync", "locks", "follow_links")}

    @property
    def identity(self) -> object:
        return self._identity

    @cached_property
    def _identity(self) -> object:
        return "LocalStore", os.path.realpath(self.root)

    def _path(self, key: str) -> str:
        """The path of a key's file. Every key gets here before its file is touched."""
        check_key(key)
        if TEMPORARY in key and is_taken(key):
            raise InvalidKeyError(
                f"invalid key {shorten(key)}: names that begin with '{TEMPORARY}' are reserved"
            )
        if not platform.is_key(key):
            raise InvalidKeyError(f"invalid key {shorten(key)}; accepted: text that the file system can name")
        return self._base + key

    def _check_prefix(self, prefix: str) -> None:
        if prefix:
            self._path(prefix[:-1])

    def check_inside(self, folder: str, key: str) -> None:
        """Raise if a directory is a link out of the root."""
        with Folders(self.root) as folders:
            self._resolve(folders, folder[len(self._base) :].replace(os.sep, "/"), key, "write")

    def _nothing(self, key: str, error: OSError) -> None:
        """Raise unless a file could not be opened because the key has no value."""
        path = self._base + key
        if platform.is_folder_error(error, path):
            return
        if error.errno not in _ABSENT or (
            error.errno == errno.ENOENT and (os.path.islink(path) or platform.is_hidden(path))
        ):
            self._fail("read", key, error)

    def _not_a_file(self, key: str, mode: int) -> None:
        if not stat.S_ISDIR(mode):
            raise StoreError(f"cannot read key '{key}' of {self}: it is neither a file nor a directory")

    def _fail(self, doing: str, key: str, error: OSError) -> NoReturn:
        if isinstance(error, StoreError):  # The message is complete already.
            raise error
        if isinstance(error, LeadsOutError):
            text = f"key '{key}' leads out of {self} through a link; keep links within the store"
            raise InvalidKeyError(text) from error
        text = f"cannot {doing} key '{key}' of {self}: {error.strerror or error}"
        if isinstance(error, PermissionError):
            raise StorePermissionError(f"{text}; use a path that this user may {doing}") from error
        advice = _ADVICE.get(error.errno or 0, "") if doing == "write" else ""
        raise StoreError(text + advice) from error

    # Readable

    def get(
        self,
        key: str,
        byte_range: ByteRange | None = None,
        *,
        into: Scratch | None = None,
        limit: int = sys.maxsize,
    ) -> Buffer | None:
        if byte_range is None:
            return read_whole(self, key, self._path(key), into, limit)
        reader = self._opened(key)
        if reader is None:
            return None
        with reader:
            return reader.read(*byte_range)

    def open(
        self, key: str, first: tuple[int, int | None] | None = None, version: object | None = None
    ) -> Value | None:
        return self._opened(key)

    @property
    def _open(self) -> Callable[[str, int], int]:
        """The function that opens the file at a path."""
        return os.open if self.follow_links else self._open_inside

    @property
    def _stat(self) -> Callable[[str], os.stat_result]:
        return os.stat if self.follow_links else self._stat_inside

    def _open_inside(self, path: str, flags: int) -> int:
        """Open a file without following a link out of the root."""

        def act(folder: Folder, name: str) -> int | None:
            try:
                return platform.open_at(folder, name, flags | platform.NO_FOLLOW)
            except OSError as error:
                if error.errno not in _IS_LINK:
                    raise
                return None

        return self._inside(path[len(self._base) :], act)

    def _stat_inside(self, path: str) -> os.stat_result:
        def act(folder: Folder, name: str) -> os.stat_result | None:
            info = platform.stat_at(folder, name)
            return None if stat.S_ISLNK(info.st_mode) else info

        return self._inside(path[len(self._base) :], act)

    def _inside(self, key: str, act: Callable[[Folder, str], T | None]) -> T:
        """Call ``act`` with an open directory and a name; it returns None if the name is that of a link."""
        here = key
        with Folders(self.root) as folders:
            for _ in range(_ATTEMPTS):
                above, _, name = here.rpartition("/")
                place = folders.resolve(above)
                if place is None:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
                done = act(folders.open(place), name)
                if done is not None:
                    return done
                here = folders.without_links(f"{place}/{name}" if place else name)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))

    def _opened(self, key: str) -> FileReader | None:
        """The open file of a value, or None."""
        path = self._path(key)
        try:
            descriptor = self._open(path, platform.OPEN)
        except OSError as error:
            self._nothing(key, error)
            return None
        return self._reader_of(key, descriptor)

    def _reader_of(self, key: str, descriptor: int) -> FileReader | None:
        """The reader of an open file; None if it is a directory, which is closed."""
        try:
            info = os.fstat(descriptor)
        except OSError as error:
            os.close(descriptor)
            self._fail("read", key, error)
        if not stat.S_ISREG(info.st_mode):
            os.close(descriptor)
            self._not_a_file(key, info.st_mode)
            return None
        return FileReader(self, key, descriptor, info)

    def versions(self, keys: Sequence[str]) -> Sequence[object | None]:
        return [self._version(key) for key in keys]

    def _version(self, key: str) -> object | None:
        path = self._path(key) if key else self._base
        try:
            info = self._stat(path)
        except OSError:  # Missing or inaccessible; reading it will tell which.
            return None
        return version_of(info)

    # Writeable

    def _touch(self) -> None:
        """Update the root's time of modification at every change: xarray derives task names from it."""
        with contextlib.suppress(OSError):  # The write itself is done. Some systems keep no such time.
            os.utime(self.root)

    def put(self, key: str, pieces: Sequence[Buffer]) -> None:  # type: ignore[override]
        with FileWriter(self) as writer:
            writer.set(key, pieces)

    @contextlib.contextmanager
    def exclusive(self, key: str) -> Iterator[None]:
        with FileWriter(self) as writer, writer.locked(key):
            yield

    def _check_length(self, path: str, key: str) -> None:
        """Raise if the path is too long for the system to reach."""
        try:
            os.lstat(path)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                self._fail("write", key, error)

    def erase(self, *keys: str) -> None:
        for key in keys:
            self._path(key)
        with Eraser(self) as folders:
            folders.erase_values(keys)

    def erase_prefix(self, prefix: str) -> None:
        self._path(prefix[:-1])
        with Eraser(self) as folders:
            folders.erase_prefix(prefix)

    def _resolve(self, folders: Folders, above: str, key: str, doing: str) -> str | None:
        try:
            return folders.resolve(above)
        except OSError as error:
            self._fail(doing, key, error)

    def sweep(self, prefix: str = "") -> None:
        """Remove temporary files of killed writers below ``prefix`` that are at least an hour old.

        Directories that contain nothing else are removed too. Links are not followed.
        """
        self.check_writable()
        self._check_prefix(prefix)
        with Eraser(self) as folders:
            folders.sweep(prefix)

    # Listable

    def list(self, prefix: str = "") -> Iterator[str]:
        waiting = [prefix]
        while waiting:
            keys, prefixes = self.list_dir(waiting.pop())
            yield from keys
            waiting.extend(prefixes)

    def leftovers(self, prefix: str = "") -> Iterator[tuple[str, bool]]:
        self._check_prefix(prefix)
        with Eraser(self) as folders:
            yield from folders.temporary_files(prefix)

    def _is_circle(self, key: str, prefix: str) -> bool:
        """Whether a link in a directory leads to that directory or to a directory above it."""
        try:
            target = os.stat(self._base + key)
            above = prefix
            while not os.path.samestat(target, os.stat(self._base + above)):
                if not above:
                    return False
                above = above[: above.rfind("/", 0, -1) + 1]
        except FileNotFoundError:  # The link was just removed, so there is nothing to list.
            return True
        except OSError as error:
            self._fail("list", key, error)
        return True

    def list_dir(self, prefix: str) -> tuple[Names, Names]:
        self._check_prefix(prefix)
        if self.follow_links:
            return self._names(prefix, platform.scan_at(self._base + prefix))
        with Folders(self.root) as folders:
            place = self._resolve(folders, prefix[:-1], prefix, "list")
            if place is None:
                return set(), set()
            check = partial(self._check_link, folders, place)
            return self._names(prefix, folders.scan(place), check)

    @staticmethod
    def _check_link(folders: Folders, place: str, name: str) -> object:
        return folders.without_links(f"{place}/{name}".lstrip("/"))

    def _names(
        self,
        prefix: str,
        entries: Generator[os.DirEntry[str]],
        check_link: Callable[[str], object] | None = None,
    ) -> tuple[Names, Names]:
        keys: Names = set()
        prefixes: Names = set()
        try:
            for entry in entries:
                if _is_hidden(entry):
                    continue
                key, is_link = prefix + entry.name, entry.is_symlink()
                if is_link and check_link is not None:
                    check_link(entry.name)
                if not self._is_folder(entry, prefix):
                    keys.add(Key(key, _size_of(entry)))
                elif not is_link or not self._is_circle(key, prefix):
                    prefixes.add(f"{key}/")
        except LeadsOutError as error:
            self._fail("list", prefix + entry.name, error)
        except OSError as error:
            if error.errno not in _ABSENT:
                self._fail("list", prefix, error)
        finally:
            entries.close()
        return keys, prefixes

    def _is_folder(self, entry: os.DirEntry[str], prefix: str) -> bool:
        try:
            return entry.is_dir()
        except OSError as error:
            if error.errno == errno.ELOOP:  # A link to itself; reading it raises the error.
                return False
            self._fail("list", prefix + entry.name, error)


def _size_of(entry: os.DirEntry[str]) -> int | None:
    """The size of a file in bytes; None for anything else, and for links, which may lead anywhere."""
    try:
        info = entry.stat(follow_symlinks=False)
    except OSError:  # Just removed, or inaccessible; reading it tells which.
        return None
    return info.st_size if stat.S_ISREG(info.st_mode) else None


def _is_hidden(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a temporary file, or a stage directory."""
    if entry.name.startswith(STAGED):
        return entry.is_dir(follow_symlinks=False)
    return entry.name.startswith(TEMPORARY)
