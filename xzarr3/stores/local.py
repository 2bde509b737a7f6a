"""A store in a directory of the local file system.

Specification: Zarr v3, "File system store". A key is a path below the root, a value is a file.

Reading follows links, unless it is told to stay within the root. What writes and erases goes through links
within the root only, and nothing is erased behind a link that lies below an erased prefix: the link itself
is. What systems do differently is in :mod:`~xzarr3.stores.platform`.
"""

from __future__ import annotations

import contextlib
import copyreg
import errno
import itertools
import math
import os
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import NoReturn, TypeVar, cast

from xzarr3._types import Buffer, ByteRange
from xzarr3.errors import ConflictError, InvalidKeyError, StoreError, StorePermissionError, printable, shorten
from xzarr3.stores import platform
from xzarr3.stores.base import KeySet, Store, check_key, flat, negative_length
from xzarr3.stores.file_locks import LOCK_NAME, FileLock, LockingError, LockTimeoutError
from xzarr3.stores.folders import NO_MORE, OTHER_KIND, Folders, LeadsOutError
from xzarr3.stores.locks import key_lock
from xzarr3.stores.platform import Folder
from xzarr3.stores.readers import UNCHANGED, Change, OversizedError, Reader, Scratch, ValueReader, Writer
from xzarr3.stores.sharing import share

T = TypeVar("T")

# Without blocking, so that nobody waits for the writer of a pipe; it makes no difference to a file.
_OPEN = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR})
_IS_LINK = frozenset({errno.ELOOP, errno.EMLINK})
TEMPORARY = ".xzarr3-partial-"
"""What the files begin with that values are written to before they get their names."""
STAGED = ".xzarr3-staged-"
"""What a directory at the root begins with whose values are still to be moved to their places."""
_ABANDONED = 3600.0  # Seconds without a change after which a temporary file is nobody's any more.
_ATTEMPTS = 100
_SHORT = 512  # Characters; no system has a limit for paths that is lower.
_SETTLED = 10**9  # Nanoseconds

_serial = itertools.count()


class LocalStore(Store):
    """Values are files below a directory.

    A value is replaced atomically: it is written to a temporary file beside its place and moved there.
    A failed or interrupted write leaves the old value. What a killed writer leaves beside it is no key; it
    is removed once it is an hour old, when the directory it lies in has no key left or by :meth:`sweep`.

    :meth:`update`, and what writes a part of a chunk or a shard, loses no change that other threads,
    processes and hosts make in the same way. It holds a lock of the key from reading the old value to
    replacing it, in a lock file beside the value, which is gone afterwards. A network mount has to support
    locks for that, and the hosts have to be of one kind. Who replaces a value whole takes no lock: if that
    happens while a part of the old one is being changed, it is noticed up to the moment before the new one
    gets its name, and the change is made again; after that moment, the last one wins.

    Pickled while the directory is there, it is not made anew by whoever writes elsewhere: a process on
    another machine that does not share the directory gets an error, and no directory of its own.

    A key that has a value cannot be the beginning of another key: ``a`` and ``a/b`` exclude each other. File
    systems that do not tell upper from lower case, or that change the form of letters, merge such keys.

    Parameters
    ----------
    root : str or path
        The directory. It need not exist; the first write makes it.
    read_only : bool
        Refuse every write.
    fsync : bool
        Wait until the disk has what is written or erased, so that it is there after the system has crashed.
    locks : bool
        Whether processes take turns where they change parts of values. Without, threads of one process do;
        that is for file systems that have no locks, and only one process may write then.
    follow_links : bool
        Whether reading and listing follow links out of the root. Otherwise such keys are refused, as they
        are when writing; links within the root are always followed.

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

    request_bytes = 2**12
    over_read = math.inf
    renames_trees = True

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
        self._base = os.path.join(self.root, "")
        self._was_there = False

    def __repr__(self) -> str:
        return f"<LocalStore '{printable(self.root)}'>"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and (other.root, other._options()) == (self.root, self._options())

    def __hash__(self) -> int:
        return hash(self.root)

    def __reduce__(self) -> tuple[object, ...]:
        if type(self) is not LocalStore:
            return copyreg.__newobj__, (type(self),), self.__dict__  # type: ignore[attr-defined]
        there = self._was_there or os.path.isdir(self.root)
        return _restore, (self.root, self.read_only, self.fsync, self.locks, self.follow_links, there)

    def _check_writable(self) -> None:
        super()._check_writable()
        if self._was_there and not os.path.isdir(self.root):
            raise StoreError(
                f"the directory of {self} was there when the store was pickled and is not there for process "
                f"{os.getpid()} of {socket.gethostname()}; accepted: a directory that all processes share"
            )

    def _options(self) -> dict[str, bool]:
        return {name: getattr(self, name) for name in ("read_only", "fsync", "locks", "follow_links")}

    @property
    def identity(self) -> object:
        return "LocalStore", os.path.realpath(self.root)

    @property
    def writes_conditionally(self) -> bool:  # type: ignore[override]
        """Whether processes take turns."""
        return self.locks

    @property
    def folder(self) -> str:
        return self.root

    @property
    def survives_crashes(self) -> bool:
        """Whether the disk has what was stored."""
        return self.fsync

    @cached_property
    def _lock_identity(self) -> object:
        return self.identity

    def __dask_tokenize__(self) -> object:
        return self.identity, self.stamp([""])

    def _path(self, key: str) -> str:
        if TEMPORARY in key and any(name.startswith(TEMPORARY) for name in key.split("/")):
            raise InvalidKeyError(
                f"invalid key {shorten(key)}; names that begin with '{TEMPORARY}' are taken"
            )
        if not platform.is_key(key):
            raise InvalidKeyError(f"invalid key {shorten(key)}; accepted: text that the file system can name")
        return self._base + key

    def _check_prefix(self, prefix: str) -> None:
        if prefix:
            self._path(prefix[:-1])

    def check_inside(self, folder: str, key: str) -> None:
        """Refuse a key below a directory that is a link out of the root."""
        above = folder
        while len(above) > len(self.root):
            if os.path.islink(above):
                inside, real = os.path.realpath(self.root), os.path.realpath(folder)
                if real != inside and not real.startswith(os.path.join(inside, "")):
                    raise self._leads_out(key)
                return
            above = os.path.dirname(above)

    def _leads_out(self, key: str) -> InvalidKeyError:
        return InvalidKeyError(f"key '{key}' leads out of {self} through a link; accepted: a link within it")

    def _nothing(self, key: str, error: OSError) -> None:
        """See to it that there really is nothing where a file could not be opened."""
        if isinstance(error, StoreError):
            raise error
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
        text = f"cannot {doing} key '{key}' of {self}: {error.strerror or error}"
        if isinstance(error, PermissionError):
            raise StorePermissionError(f"{text}; accepted: a path this user may {doing}") from error
        raise StoreError(text) from error

    # Readable

    def _get(self, key: str, byte_range: ByteRange | None) -> Buffer | None:
        reader = self._opened(key)
        if reader is None:
            return None
        with reader:
            return reader.read(*(byte_range or (0, None)))

    def _exists(self, key: str) -> bool:
        path = self._path(key)
        try:
            return stat.S_ISREG(self._stat(path).st_mode)
        except StoreError:
            raise
        except OSError as error:
            if error.errno in _ABSENT:
                return False
            self._fail("read", key, error)

    @property
    def _open(self) -> Callable[[str, int], int]:
        """What opens the file of a path."""
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
        """Do something with a name in an open directory, which returns None if the name is that of a link."""
        here = key
        with Folders(self.root) as folders:
            for _ in range(_ATTEMPTS):
                above, _, name = here.rpartition("/")
                try:
                    place = folders.resolve(above)
                    if place is None:
                        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
                    done = act(folders.open(place), name)
                    if done is not None:
                        return done
                    here = folders.without_links(f"{place}/{name}" if place else name)
                except LeadsOutError as error:
                    raise self._leads_out(key) from error
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))

    def _opened(self, key: str) -> _FileReader | None:
        path = self._path(key)
        try:
            descriptor = self._open(path, _OPEN)
        except OSError as error:
            self._nothing(key, error)
            return None
        try:
            info = os.fstat(descriptor)
        except OSError as error:
            os.close(descriptor)
            self._fail("read", key, error)
        if not stat.S_ISREG(info.st_mode):
            os.close(descriptor)
            self._not_a_file(key, info.st_mode)
            return None
        return _FileReader(self, key, descriptor, info)

    def _reader(self, scratch: Scratch | None, limit: int) -> Reader:
        return _LocalReader(self, scratch, limit)

    def _get_partial_values(self, wanted: Sequence[tuple[str, ByteRange]]) -> list[Buffer | None]:
        places: dict[str, list[int]] = {}
        for at, (key, _) in enumerate(wanted):
            places.setdefault(key, []).append(at)
        found: list[Buffer | None] = [None] * len(wanted)
        for key, parts in places.items():
            reader = self._opened(key)
            if reader is not None:
                with reader:
                    for at in parts:
                        found[at] = reader.read(*wanted[at][1])
        return found

    def stamp(self, keys: Sequence[str]) -> object:
        return [self.version(key) for key in keys]

    def version(self, key: str) -> object | None:
        try:
            info = self._stat(self._base + key)
        except OSError:  # There is none, or none to be seen; reading it will say which.
            return None
        return _version(info)

    # Writeable

    def _touch(self) -> None:
        """Let the root's time of modification tell of every change: xarray names its tasks after it."""
        with contextlib.suppress(OSError):  # The write itself is done; some systems keep no such time.
            os.utime(self.root)

    def _set(self, key: str, value: bytes) -> None:
        with self._file_writer(None, sys.maxsize) as writer:
            writer.set(key, [value])

    def _writer(self, scratch: Scratch | None, limit: int) -> Writer:
        return self._file_writer(scratch, limit)

    def _file_writer(self, scratch: Scratch | None, limit: int) -> FileWriter:
        return FileWriter(self, scratch, limit)

    @contextlib.contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        with FileWriter(self) as writer, writer.locked(key):
            yield

    def _check_length(self, path: str, key: str) -> None:
        """Store nothing so deep that no path leads there."""
        try:
            os.lstat(path)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                self._fail("write", key, error)

    def _erase_values(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._path(key)
        with Folders(self.root) as folders:
            places: dict[str, str | None] = {}
            for key in keys:
                above = key.rpartition("/")[0]
                if above not in places:
                    places[above] = self._resolve(folders, above, key)
            for key in keys:
                above, _, name = key.rpartition("/")
                place = places[above]
                if place is not None:
                    self._unlink(folders, place, name, key)
            self._touch()
            emptied = {place for place in places.values() if place}
            for place in sorted(emptied, key=len, reverse=True):
                self._prune(folders, place, sweep=len(keys) > 1)
            if self.fsync and keys:
                found = {place for place in places.values() if place is not None}
                self._sync_erased(folders, found, keys[0])

    def _erase_prefix(self, prefix: str) -> None:
        self._path(prefix[:-1])
        above, _, name = prefix[:-1].rpartition("/")
        with Folders(self.root) as folders:
            place = self._resolve(folders, above, prefix)
            if place is None:
                return
            try:
                is_link = folders.links_to_folder(place, name)
            except OSError as error:
                self._fail("erase", prefix, error)
            emptied = [place]
            if is_link:
                self._unlink(folders, place, name, prefix)
            elif is_link is None:
                emptied += self._erase_tree(folders, f"{place}/{name}" if place else name)
            self._touch()
            self._prune(folders, place)
            if self.fsync:
                self._sync_erased(folders, emptied, prefix)

    def _sync_erased(self, folders: Folders, places: Iterable[str], key: str) -> None:
        """Wait until the disk knows that names are gone, directories among them."""
        try:
            folders.sync_erased(places)
        except FileNotFoundError:  # The root has gone.
            return
        except OSError as error:
            self._fail("erase", key, error)

    def _survey(
        self, folders: Folders, top: str, doing: str
    ) -> tuple[list[str], list[tuple[str, str]], list[tuple[str, str]]]:
        """A directory and those below it, and names in them: those of keys and of what killed writers left.

        Upper directories come first. Links are not followed.
        """
        found = [top]
        keys: list[tuple[str, str]] = []
        leftovers: list[tuple[str, str]] = []
        for folder in found:  # It grows meanwhile.
            try:
                for entry in folders.scan(folder):
                    is_temporary = entry.name.startswith(TEMPORARY)
                    if entry.is_dir(follow_symlinks=False):
                        if not is_temporary and not entry.name.startswith(STAGED):
                            found.append(f"{folder}/{entry.name}" if folder else entry.name)
                    elif not is_temporary:
                        keys.append((folder, entry.name))
                    elif entry.name == LOCK_NAME or _is_abandoned(entry):
                        leftovers.append((folder, entry.name))
            except OSError as error:
                if error.errno != errno.ENOENT:
                    self._fail(doing, folder, error)
        return found, keys, leftovers

    def _erase_tree(self, folders: Folders, top: str) -> Sequence[str]:
        found, keys, leftovers = self._survey(folders, top, "erase")
        for folder, name in keys:
            self._unlink(folders, folder, name, f"{folder}/{name}")
        for folder, name in leftovers:
            _discard(folders, folder, name)
        for folder in reversed(found):
            with contextlib.suppress(OSError):  # Not empty, in use, or not ours to remove: it stays.
                folders.rmdir(folder)
        return found

    def _resolve(self, folders: Folders, above: str, key: str, doing: str = "erase") -> str | None:
        try:
            return folders.resolve(above)
        except LeadsOutError as error:
            raise self._leads_out(key) from error
        except OSError as error:
            self._fail(doing, key, error)

    def _unlink(self, folders: Folders, place: str, name: str, key: str) -> None:
        try:
            folders.unlink(place, name)
        except FileNotFoundError:  # The directory has gone, and the key with it.
            return
        except OSError as error:
            if not is_busy(name, error):
                self._fail("erase", key, error)

    def prune(self, folder: str) -> None:
        """Remove a directory and its parents while they are empty, up to but without the root."""
        with Folders(self.root) as folders:
            try:
                place = folders.resolve(folder[len(self._base) :])
            except (OSError, LeadsOutError):  # Not to be reached, or not ours: it stays.
                return
            if place:
                self._prune(folders, place)

    def _prune(self, folders: Folders, place: str, *, sweep: bool = False) -> None:
        while place:
            if sweep:
                _sweep_folder(folders, place)
            if not _remove_folder(folders, place):
                return
            place = place.rpartition("/")[0]

    def _sweep(self, prefix: str) -> None:
        """Remove temporary files that killed writers left below ``prefix``, once they are an hour old.

        Directories that hold nothing else go with them. Links are not followed.
        """
        self._check_prefix(prefix)
        with Folders(self.root) as folders:
            place = self._resolve(folders, prefix[:-1], prefix, "sweep")
            if place is None:
                return
            _, _, leftovers = self._survey(folders, place, "sweep")
            for folder, name in leftovers:
                _discard(folders, folder, name)
            for folder in sorted({folder for folder, _ in leftovers}, key=len, reverse=True):
                self._prune(folders, folder)

    # Listable

    def _list(self, prefix: str) -> Iterator[str]:
        self._check_prefix(prefix)
        return self._walk(prefix)

    def _walk(self, prefix: str) -> Iterator[str]:
        levels = [(prefix, iter(self._scan(prefix)))]
        while levels:
            here, entries = levels[-1]
            entry = next(entries, None)
            if entry is None:
                levels.pop()
                continue
            key = here + entry.name
            if not self._is_folder(entry, key):
                yield key
            elif not entry.is_symlink() or not self._is_circle(entry, here):
                levels.append((f"{key}/", iter(self._scan(f"{key}/"))))

    def _is_circle(self, entry: os.DirEntry[str] | _Entry, prefix: str) -> bool:
        """Whether a link in a directory leads to that directory or to one above it."""
        try:
            target = entry.stat()
            above = prefix
            while not os.path.samestat(target, os.stat(self._base + above)):
                if not above:
                    return False
                above = above[: above.rfind("/", 0, -1) + 1]
        except FileNotFoundError:  # Just removed: then there is nothing to list.
            return True
        except OSError as error:
            self._fail("list", prefix + entry.name, error)
        return True

    def _list_dir(self, prefix: str) -> tuple[KeySet, KeySet]:
        self._check_prefix(prefix)
        keys: KeySet = set()
        prefixes: KeySet = set()
        for entry in self._scan(prefix):
            if self._is_folder(entry, prefix + entry.name):
                prefixes.add(f"{prefix}{entry.name}/")
            else:
                keys.add(prefix + entry.name)
        return keys, prefixes

    def _is_folder(self, entry: os.DirEntry[str] | _Entry, key: str) -> bool:
        try:
            return entry.is_dir()
        except OSError as error:
            if error.errno == errno.ELOOP:  # A link to itself; who reads it hears of that.
                return False
            self._fail("list", key, error)

    def _scan(self, prefix: str) -> Sequence[os.DirEntry[str] | _Entry]:
        if not self.follow_links:
            return self._scan_inside(prefix)
        try:
            with os.scandir(self._base + prefix) as entries:
                return [entry for entry in entries if not _is_hidden(entry)]
        except OSError as error:
            if error.errno in _ABSENT:
                return []
            self._fail("list", prefix, error)

    def _scan_inside(self, prefix: str) -> list[_Entry]:
        """The entries of a directory; links that lead out of the root are refused."""
        found: list[_Entry] = []
        with Folders(self.root) as folders:
            place = self._resolve(folders, prefix[:-1], prefix, "list")
            if place is None:
                return found
            try:
                with contextlib.closing(folders.scan(place)) as entries:
                    for entry in entries:
                        if not _is_hidden(entry):
                            if entry.is_symlink():
                                folders.without_links(f"{place}/{entry.name}" if place else entry.name)
                            found.append(_Entry(entry, self._base + prefix))
            except LeadsOutError as error:
                raise self._leads_out(prefix + entry.name) from error
            except OSError as error:
                if error.errno not in _ABSENT:
                    self._fail("list", prefix, error)
        return found


class _Entry:
    """What is known of an entry of a directory after that has been closed."""

    def __init__(self, entry: os.DirEntry[str], base: str) -> None:
        self.name = entry.name
        self._base = base
        self._is_link = entry.is_symlink()
        try:
            self._is_folder = entry.is_dir()
        except OSError as error:
            if error.errno != errno.ELOOP:  # A link to itself; who reads it hears of that.
                raise
            self._is_folder = False

    def is_dir(self) -> bool:
        return self._is_folder

    def is_symlink(self) -> bool:
        return self._is_link

    def stat(self) -> os.stat_result:
        return os.stat(self._base + self.name)


class _LocalReader(Reader):
    """Reads files."""

    _store: LocalStore

    def __init__(self, store: LocalStore, scratch: Scratch | None, limit: int) -> None:
        super().__init__(store, scratch, limit)
        self._base = store._base
        self._open = store._open

    def get(self, key: str) -> Buffer | None:
        if self._scratch is None:
            self._store._path(check_key(key))  # Paths of nodes that users give may be none of files.
        try:
            descriptor = self._open(self._base + key, _OPEN)
        except OSError as error:
            self._store._nothing(key, error)
            return None
        try:
            info = os.fstat(descriptor)
            if stat.S_ISREG(info.st_mode):
                size = info.st_size
                if size > self._limit:
                    raise OversizedError(size, self._limit)
                scratch = self._scratch
                if scratch is None:
                    memory = memoryview(bytearray(size))
                else:
                    if len(scratch.memory) < size:
                        scratch.memory = memoryview(bytearray(max(size, 2**17)))
                    memory = scratch.memory[:size]
                count = platform.readv(descriptor, [memory])
                if count != size:
                    count = _read_rest(descriptor, memory, count, size)
                return memory[:count]
        except OSError as error:
            self._store._fail("read", key, error)
        finally:
            os.close(descriptor)
        self._store._not_a_file(key, info.st_mode)
        return None

    def get_ranges(
        self, key: str, starts: Sequence[int], lengths: Sequence[int]
    ) -> tuple[int, list[Buffer]] | None:
        store = self._store
        try:
            descriptor = self._open(self._base + key, _OPEN)
        except OSError as error:
            store._nothing(key, error)
            return None
        try:
            info = os.fstat(descriptor)
            size = info.st_size
            if stat.S_ISREG(info.st_mode):
                parts: list[Buffer] = [*map(platform.pread, itertools.repeat(descriptor), lengths, starts)]
                if sum(map(len, parts)) != sum(lengths):  # More than the system reads at once, or less.
                    parts = _FileReader(store, key, descriptor, info).read_each(starts, lengths)
                return size, parts
        except OverflowError:  # So far out that there is nothing.
            return size, _FileReader(store, key, descriptor, info).read_each(starts, lengths)
        except OSError as error:
            store._fail("read", key, error)
        finally:
            os.close(descriptor)
        store._not_a_file(key, info.st_mode)
        return None

    def get_into(self, key: str, start: int, out: memoryview) -> tuple[int, int] | None:
        store = self._store
        try:
            descriptor = self._open(self._base + key, _OPEN)
        except OSError as error:
            store._nothing(key, error)
            return None
        try:
            info = os.fstat(descriptor)
            if stat.S_ISREG(info.st_mode):
                count = platform.preadv(descriptor, [out], start)
                if count < len(out):
                    rest = _FileReader(store, key, descriptor, info)
                    count += rest.read_into(start + count, out[count:])
                return info.st_size, count
        except OverflowError:  # So far out that there is nothing.
            return info.st_size, 0
        except OSError as error:
            store._fail("read", key, error)
        finally:
            os.close(descriptor)
        store._not_a_file(key, info.st_mode)
        return None

    def open(
        self, key: str, part: tuple[int, int] | None = None, version: object | None = None
    ) -> ValueReader | None:
        return self._store._opened(check_key(key))


class _RetryError(Exception):
    """Something failed that may be otherwise once the directories are opened anew."""

    def __init__(self, doing: str, error: OSError) -> None:
        super().__init__(doing)
        self.doing = doing
        self.error = error


class FileWriter(Writer):
    """Puts values into files, and changes them, each under its lock."""

    _store: LocalStore

    def __init__(self, store: LocalStore, scratch: Scratch | None = None, limit: int = sys.maxsize) -> None:
        super().__init__(store, scratch, limit)
        self._memory = Scratch() if scratch is None else scratch
        self.folders = Folders(store.root)
        self._beginning = f"{TEMPORARY}{os.getpid()}-"
        self._end = f"-{os.urandom(4).hex()}"
        self._wrote = False
        self._lock = FileLock() if store.locks else None
        self._above: str | None = None

    def close(self) -> None:
        self._leave()
        try:
            if self._wrote:
                self._store._touch()
        finally:
            self.folders.forget()

    def check(self, key: str) -> None:
        """Refuse a key under which nothing can be stored."""
        path = self._store._path(check_key(key))
        if len(path) > _SHORT:
            self._store._check_length(path, key)

    def set(self, key: str, pieces: Sequence[Buffer]) -> None:
        self.check(key)
        contents = [flat(piece, key) for piece in pieces]
        above, _, name = key.rpartition("/")
        temporary = self.temporary()
        try:
            folder, descriptor = _create(self.folders, above, temporary)
        except LeadsOutError as error:
            raise self._store._leads_out(key) from error
        except OSError as error:
            self._store._fail("write", key, error)
        self.finish(key, contents, folder, descriptor, temporary, name)
        if self._store.fsync:
            self.sync(key, above)

    def temporary(self) -> str:
        """A name that no file has."""
        return f"{self._beginning}{next(_serial)}{self._end}"

    def finish(
        self,
        key: str,
        contents: list[memoryview],
        folder: Folder,
        descriptor: int,
        temporary: str,
        name: str,
        may_replace: Callable[[], bool] | None = None,
    ) -> bool:
        """Write a value into a new file, which then gets its name if it still may; returns whether it did."""
        try:
            try:
                platform.write_all(descriptor, contents)
                if self._store.fsync:
                    platform.sync(descriptor)
            finally:
                os.close(descriptor)
            if may_replace is not None and not may_replace():
                platform.unlink_at(folder, temporary)
                return False
            platform.replace_at(folder, temporary, name)
        except BaseException as error:
            with contextlib.suppress(OSError):  # The write has failed; that error is the one to report.
                platform.unlink_at(folder, temporary)
            if isinstance(error, OSError) and not isinstance(error, StoreError):
                self._store._fail("write", key, error)
            raise
        self.touch()
        return True

    def touch(self) -> None:
        """Let the root tell of the change, at the first one and at the end."""
        if not self._wrote:  # Before all is written, too: the writer may be killed.
            self._store._touch()
            self._wrote = True

    def sync(self, key: str, above: str) -> None:
        """Wait until the disk knows the name of a value."""
        try:
            self.folders.sync(self.folders.real(above))
        except LeadsOutError as error:
            raise self._store._leads_out(key) from error
        except FileNotFoundError:  # Somebody has just erased it.
            return
        except OSError as error:
            self._store._fail("write", key, error)

    def update(self, key: str, change: Change) -> None:
        self.check(key)
        store = self._store
        with key_lock(self._store._lock_identity, key):
            end = time.monotonic() + store.conflict_deadline
            conflicts = failures = 0
            while True:
                try:
                    if self._attempt(key, change, end):
                        return
                except _RetryError as again:
                    self._start_anew(key, again, failures)
                    failures += 1
                    continue
                conflicts += 1
                if time.monotonic() >= end:
                    raise ConflictError(
                        f"cannot change key '{key}' of {store}: others replaced it {conflicts} times within "
                        f"{store.conflict_deadline:g} s; accepted: fewer writers of it, or a longer "
                        "conflict_deadline"
                    )

    def _start_anew(self, key: str, again: _RetryError, failures: int) -> None:
        if failures >= (1 if again.error.errno in NO_MORE else _ATTEMPTS):
            self._store._fail(again.doing, key, again.error)
        self._leave()
        self.folders.forget()

    @contextlib.contextmanager
    def locked(self, key: str) -> Iterator[None]:
        """Hold the lock of a key."""
        self.check(key)
        above, _, name = key.rpartition("/")
        with key_lock(self._store._lock_identity, key):
            end = time.monotonic() + self._store.conflict_deadline
            failures = 0
            while True:
                try:
                    folder = self._enter(key, above)
                    self._acquire(key, folder, name, end)
                    break
                except _RetryError as again:
                    self._start_anew(key, again, failures)
                    failures += 1
            try:
                yield
            finally:
                self._release()
                self._tidy(key, above)

    def _attempt(self, key: str, change: Change, end: float) -> bool:
        """Change a value; returns False if somebody replaced it meanwhile."""
        above, _, name = key.rpartition("/")
        ready: Sequence[Buffer] | None = None
        if self._find(key, above) is None:
            made = change(None)
            if made is UNCHANGED or made is None:
                return True
            ready = made
        folder = self._enter(key, above)
        self._acquire(key, folder, name, end)
        kept = True
        try:
            descriptor, info = self._open(key, folder, name)
            try:
                stored = None if info is None else self._read(key, descriptor, info.st_size)
                if descriptor >= 0 and not platform.POSIX:  # What is open cannot be replaced there.
                    os.close(descriptor)
                    descriptor = -1
                pieces = ready if stored is None and ready is not None else change(stored)

                def may_replace() -> bool:
                    self._check_lock(key)
                    return _is_still(info, folder, name)

                if pieces is UNCHANGED or (pieces is None and stored is None):
                    kept = stored is not None
                elif pieces is None:
                    if not self._erase(key, folder, name, may_replace):
                        return False
                    kept = False
                elif not self._put(key, pieces, folder, name, may_replace):
                    return False
            finally:
                if descriptor >= 0:
                    with contextlib.suppress(OSError):  # It was only read.
                        os.close(descriptor)
        finally:
            self._release()
        if not kept:
            self._tidy(key, above)
        elif self._store.fsync:
            self.sync(key, above)
        return True

    def _find(self, key: str, above: str) -> str | None:
        """The path of a directory without the links in it, or None if it is not there."""
        if above != self._above:
            self._leave()  # As long as the directory of its lock is open.
            self._above = above
        try:
            return self.folders.resolve(above)
        except LeadsOutError as error:
            raise self._store._leads_out(key) from error
        except OSError as error:
            raise self._retry("write", key, error) from error

    def _enter(self, key: str, above: str) -> Folder:
        """An open directory, which is made if it is not there."""
        if above != self._above:
            self._leave()
            self._above = above
        try:
            return _made(self.folders, above)
        except LeadsOutError as error:
            raise self._store._leads_out(key) from error
        except OSError as error:
            raise self._retry("write", key, error) from error

    def _retry(self, doing: str, key: str, error: OSError) -> _RetryError:
        if error.errno not in NO_MORE and error.errno != errno.ENOENT:
            self._store._fail(doing, key, error)
        return _RetryError(doing, error)

    def _acquire(self, key: str, folder: Folder, name: str, end: float) -> None:
        if self._lock is None:
            return
        try:
            self._lock.acquire(folder, name, end)
        except LockTimeoutError as error:
            who = f", maybe one of the processes {error.holders}" if error.holders else ""
            raise ConflictError(
                f"cannot change key '{key}' of {self._store}: somebody else{who} held its lock for "
                f"{self._store.conflict_deadline:g} s; accepted: fewer writers of it, or a longer "
                "conflict_deadline"
            ) from error
        except LockingError as error:
            raise StoreError(
                f"cannot lock key '{key}' of {self._store}: {error.strerror}; accepted: a file system with "
                "locks, or LocalStore(..., locks=False) if no other process writes to it"
            ) from error
        except OSError as error:
            raise self._retry("lock", key, error) from error

    def _check_lock(self, key: str) -> None:
        if self._lock is not None and not self._lock.held:
            raise StoreError(
                f"cannot change key '{key}' of {self._store}: the process was forked in the middle of it; "
                "accepted: to fork at another time"
            )

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _leave(self) -> None:
        self._above = None
        if self._lock is not None:
            self._lock.leave()

    def _open(self, key: str, folder: Folder, name: str) -> tuple[int, os.stat_result | None]:
        """The open file of a value, -1 if there is none, and what it is like."""
        store = self._store
        try:
            if store.follow_links:
                descriptor = platform.open_at(folder, name, _OPEN)
            else:
                descriptor = store._open_inside(store._base + key, _OPEN)
        except OSError as error:
            if error.errno in NO_MORE:
                raise _RetryError("read", error) from error
            store._nothing(key, error)
            return -1, None
        try:
            info = os.fstat(descriptor)
        except OSError as error:
            os.close(descriptor)
            store._fail("read", key, error)
        if not stat.S_ISREG(info.st_mode):
            os.close(descriptor)
            store._not_a_file(key, info.st_mode)
            return -1, None
        return descriptor, info

    def _read(self, key: str, descriptor: int, size: int) -> Buffer:
        if size > self._limit:
            raise OversizedError(size, self._limit)
        memory = self._memory.part(size)
        try:
            count = platform.readv(descriptor, [memory])
            if count != size:
                count = _read_rest(descriptor, memory, count, size)
        except OSError as error:
            self._store._fail("read", key, error)
        return memory[:count]

    def _put(
        self, key: str, pieces: Sequence[Buffer], folder: Folder, name: str, may_replace: Callable[[], bool]
    ) -> bool:
        contents = [flat(piece, key) for piece in pieces]
        temporary = self.temporary()
        try:
            descriptor = platform.open_at(folder, temporary, _CREATE)
        except OSError as error:
            raise self._retry("write", key, error) from error
        return self.finish(key, contents, folder, descriptor, temporary, name, may_replace)

    def _erase(self, key: str, folder: Folder, name: str, may_erase: Callable[[], bool]) -> bool:
        try:
            if not may_erase():
                return False
            platform.unlink_at(folder, name)
        except StoreError:
            raise
        except FileNotFoundError:
            return True
        except OSError as error:
            self._store._fail("erase", key, error)
        self.touch()
        return True

    def _tidy(self, key: str, above: str) -> None:
        """Remove the directory that a lock was needed in, if it is empty."""
        self._leave()
        try:
            place = self.folders.real(above)
        except (OSError, LeadsOutError):  # Not to be reached, or not ours: it stays.
            return
        self._store._prune(self.folders, place)
        if self._store.fsync:
            self._store._sync_erased(self.folders, {place}, key)


def _version(info: os.stat_result) -> object:
    """What tells the states of a file from each other; a copy may have the time of its original."""
    return info.st_dev, info.st_ino, info.st_mtime_ns, info.st_ctime_ns, info.st_size


class _FileReader(ValueReader):
    """Parts of an open file: the same version of it, even if it is replaced meanwhile."""

    def __init__(self, store: LocalStore, key: str, descriptor: int, info: os.stat_result) -> None:
        self._store = store
        self._key = key
        self._descriptor = descriptor
        self._info = info
        self.size: int = info.st_size

    @property
    def version(self) -> object | None:
        info = self._info
        changed = max(info.st_mtime_ns, info.st_ctime_ns)
        # A file changed just now may change again within the same tick of the clock its times are taken from.
        if time.time_ns() - changed < _SETTLED:
            return None
        return _version(info)

    def read(self, start: int, length: int | None = None) -> Buffer:
        if start < 0:
            start = max(self.size + start, 0)
        wanted = max(self.size - start, 0)
        if length is not None:
            if length < 0:
                raise negative_length(length)
            wanted = min(wanted, length)
        if wanted == 0:
            return b""  # The system refuses to hear of places far beyond the end.
        try:
            return platform.read_at(self._descriptor, wanted, start)
        except OSError as error:
            self._store._fail("read", self._key, error)

    def read_ranges(self, starts: Sequence[int], lengths: Sequence[int]) -> list[Buffer]:
        try:
            parts = [*map(platform.pread, itertools.repeat(self._descriptor), lengths, starts)]
        except (OSError, OverflowError, ValueError):  # Places beyond the end, for one; told apart below.
            return self.read_each(starts, lengths)
        whole = sum(map(len, parts)) == sum(lengths)
        return cast("list[Buffer]", parts) if whole else self.read_each(starts, lengths)

    def iter_ranges(self, starts: Sequence[int], lengths: Sequence[int]) -> Iterator[Buffer]:
        return map(self.read, starts, lengths)

    def read_each(self, starts: Sequence[int], lengths: Sequence[int]) -> list[Buffer]:
        """Several parts, each read until it is whole."""
        return [self.read(start, length) for start, length in zip(starts, lengths, strict=True)]

    def read_into(self, start: int, out: memoryview) -> int:
        try:
            return platform.read_into_at(self._descriptor, out, start)
        except OverflowError:  # So far out that there is nothing.
            return 0
        except OSError as error:
            self._store._fail("read", self._key, error)

    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


def _read_rest(descriptor: int, scratch: memoryview, count: int, size: int) -> int:
    while count < size:
        more = platform.readv(descriptor, [scratch[count:size]])
        if more == 0:
            break
        count += more
    return count


def _made(folders: Folders, above: str) -> Folder:
    """Open a directory, which is made if it is not there."""
    try:
        return folders.make(above)
    except OSError as error:
        if error.errno not in OTHER_KIND:
            raise
        return folders.make(folders.real(above))


def _is_still(info: os.stat_result | None, folder: Folder, name: str) -> bool:
    """Whether a name is that of the file that was read, None for that of none."""
    try:
        now = platform.stat_at(folder, name, follow_symlinks=True)
    except FileNotFoundError:
        return info is None
    if info is None:
        return stat.S_ISDIR(now.st_mode)  # Which is no value, and not replaced by one.
    return (now.st_ino, now.st_mtime_ns, now.st_size, now.st_dev) == (
        *(info.st_ino, info.st_mtime_ns, info.st_size),
        info.st_dev,
    )


def _create(folders: Folders, above: str, name: str) -> tuple[Folder, int]:
    """Open a directory and a new file in it.

    The directories above it are made, too, which others may be removing just now.
    """
    spared = False
    for _ in range(_ATTEMPTS):
        folder = _made(folders, above)
        try:
            return folder, platform.open_at(folder, name, _CREATE)
        except FileNotFoundError:
            folders.forget()
        except OSError as error:
            if error.errno not in NO_MORE or spared:
                raise
            folders.forget()  # So many are open that there is none left for the file.
            spared = True
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), above)


def _discard(folders: Folders, folder: str, name: str) -> None:
    """Remove what is no key; whether that succeeds is no matter of the caller's keys."""
    with contextlib.suppress(OSError):
        if name == LOCK_NAME:
            FileLock().discard(folders.open(folder))
        else:
            folders.unlink(folder, name)


def _remove_folder(folders: Folders, folder: str) -> bool:
    """Remove a directory if nothing is in it but a lock file that nobody uses."""
    try:
        try:
            folders.rmdir(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            FileLock().discard(folders.open(folder))
            folders.rmdir(folder)
    except OSError:  # Not empty, in use, or not ours to remove: it stays.
        return False
    return True


def _sweep_folder(folders: Folders, folder: str) -> None:
    """Remove abandoned temporary files of a directory that holds nothing else."""
    names = []
    try:
        with contextlib.closing(folders.scan(folder)) as entries:
            for entry in entries:
                if not entry.name.startswith(TEMPORARY):
                    return
                if entry.name != LOCK_NAME and not _is_abandoned(entry):
                    return
                names.append(entry.name)
    except OSError:  # It has gone, or is not ours to look into: it stays as it is.
        return
    for name in names:
        _discard(folders, folder, name)


def is_busy(name: str, error: OSError) -> bool:
    """Whether a file could not be removed that a network file system removes itself.

    It keeps a file that somebody has erased and somebody else still reads, under a name like ``.nfs0001``.
    """
    return error.errno == errno.EBUSY and name.startswith(".nfs")


def _is_abandoned(entry: os.DirEntry[str]) -> bool:
    try:
        return time.time() - entry.stat(follow_symlinks=False).st_mtime > _ABANDONED
    except FileNotFoundError:  # Its writer has just moved it to its place.
        return False


def _is_hidden(entry: os.DirEntry[str]) -> bool:
    """Whether it is a temporary file, or a directory of values that are still to be moved."""
    if entry.name.startswith(STAGED):
        return entry.is_dir(follow_symlinks=False)
    return entry.name.startswith(TEMPORARY)


def _restore(
    root: str, read_only: bool, fsync: bool, locks: bool, follow_links: bool, was_there: bool
) -> LocalStore:
    def make() -> LocalStore:
        store = LocalStore(root, read_only=read_only, fsync=fsync, locks=locks, follow_links=follow_links)
        store._was_there = was_there  # One that is made here instead would be seen by nobody else.
        return store

    return share((LocalStore, root, read_only, fsync, locks, follow_links, was_there), make)
