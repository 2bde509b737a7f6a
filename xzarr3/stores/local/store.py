"""A store in a directory of the local file system.

Specification: Zarr v3, "File system store". A key is a path below the root, a value is a file.

Reading follows links. Writing and erasing follow links within the root only. A link below an erased prefix is
itself erased, and nothing behind it. That a directory is within the root is checked once, and again when it
has become another one.

This module maps keys to paths and names errors. :mod:`~xzarr3.stores.local.files` reads, replaces and removes
files, and :mod:`~xzarr3.stores.local.system` hides the differences between operating systems.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import stat
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, NoReturn

from xzarr3._types import Buffer, Found, Part
from xzarr3.errors import (
    ArgumentTypeError,
    InvalidKeyError,
    StoreError,
    StorePermissionError,
    contended,
    printable,
    shorten,
)
from xzarr3.stores.base import Key, Names, Store, Traits, called_as
from xzarr3.stores.interned import reduced
from xzarr3.stores.keys import check_key
from xzarr3.stores.local import files, system
from xzarr3.stores.local.files import FileValue, Lock, state_of
from xzarr3.stores.local.names import LOCK, STAGED, is_lock
from xzarr3.stores.locks import key_lock
from xzarr3.stores.values import NO_LIMIT, Into, Value, check_size, part_of

_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR})
_ATTEMPTS = 100  # To make a directory that other processes remove.
_MOST_KNOWN = 4096  # Directories.
_ADVICE = {  # What to do if a file cannot be written.
    errno.ENOTDIR: "; write to another path, since a part of this one is a file",
    errno.ENAMETOOLONG: "; use shorter names: the system must also be able to name the lock file",
    errno.ENOSPC: "; free some space, or write to another disk",
    errno.EDQUOT: "; free some space, or write to another disk",
    errno.EROFS: "; write to another path, since this file system is read-only",
}


class LocalStore(Store):
    """Values are files below a directory.

    A value is replaced atomically: it is written to a lock file beside it, ``KEY.__lock``, which is then
    renamed. A failed or interrupted write leaves the old value. The lock file that a killed writer leaves is
    no key; the next writer of the key removes it. Names that end with ``.__lock`` are reserved for this.

    Writers of one key take turns: threads, processes and hosts, those that replace a value whole as well as
    :func:`~xzarr3.stores.update` and every write to a part of a chunk or a shard, which hold the lock from
    reading the old value to replacing it. So no change is lost. A network mount must support locks for that,
    and all hosts must run the same kind of system. Where it does not, whole values can still be written.

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

    traits = Traits(request_bytes=2**12, over_read=math.inf, conditional="processes", tells_changes=True)
    _not_pickled = Store._not_pickled | {"identity", "_name"}

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        read_only: bool = False,
        fsync: bool = False,
        locks: bool = True,
    ) -> None:
        if not isinstance(root, str | os.PathLike):
            raise ArgumentTypeError(f"not a path: {root!r}; accepted: a string or a pathlib.Path")
        self.fsync = fsync
        self.locks = locks
        self.root = os.path.abspath(os.path.expanduser(os.fspath(root)))
        if not system.is_name(self.root):
            raise StoreError(f"no store at {shorten(self.root)}; accepted: a path that the system can name")
        super().__init__(
            read_only=read_only,
            folder=self.root,
            durable=fsync,
            conditional="processes" if locks else "threads",
            plain_files=system.POSIX and type(self) is LocalStore,
        )
        self._base = os.path.join(self.root, "")
        self._was_there = False  # When pickled. A directory made elsewhere would not be shared.
        self._known: dict[str, tuple[int, int]] = {}  # Directories within the root: device and number.

    def __repr__(self) -> str:
        return f"<LocalStore '{printable(self.root)}'>"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.traits == self.traits  # Its root is among them.

    def __hash__(self) -> int:
        return hash(self.root)

    def __reduce__(self) -> tuple[object, ...]:
        return reduced(self, LocalStore)

    def __getstate__(self) -> dict[str, Any]:
        is_there = self._was_there or os.path.isdir(self.root)
        return super().__getstate__() | {"_was_there": is_there, "_known": {}}

    def check_writable(self) -> None:
        super().check_writable()
        if self._was_there and not os.path.isdir(self.root):
            import socket  # Here and in `files`: what few need loads with the first use.

            raise StoreError(
                f"the directory of {self} existed when the store was pickled, but does not exist for process "
                f"{os.getpid()} of {socket.gethostname()}; use a directory that all processes share"
            )

    def _options(self) -> dict[str, bool]:
        return {name: getattr(self, name) for name in ("read_only", "fsync", "locks")}

    @cached_property
    def identity(self) -> object:
        return "LocalStore", os.path.realpath(self.root)

    def _path(self, key: str) -> str:
        """The path of a key's file. Every key gets here before its file is touched."""
        if LOCK in key and is_lock(key):
            raise InvalidKeyError(f"invalid key {shorten(key)}: names that end with '{LOCK}' are reserved")
        if not (system.POSIX and key.isascii()) and not system.is_key(key):  # One call less for most keys.
            raise InvalidKeyError(f"invalid key {shorten(key)}; accepted: text that the file system can name")
        return self._base + key

    def check_inside(self, path: str, key: str) -> str:
        """The path without links below the root, as it is at this moment.

        Raises
        ------
        InvalidKeyError
            If it leads out of the root.
        """
        if system.POSIX and ".." not in path and not any(map(os.path.islink, self._up(path))):
            return path
        root, real = os.path.realpath(self.root), os.path.realpath(path)
        if real != root and not real.startswith(os.path.join(root, "")):
            raise InvalidKeyError(
                f"key {shorten(key)} leads out of {self} through a link; keep links within the store"
            )
        return real

    def _nothing(self, key: str, error: OSError) -> None:
        """Raise unless a file could not be opened because the key has no value."""
        path = self._base + key
        if isinstance(error, PermissionError) and not system.POSIX and os.path.isdir(path):
            return
        if error.errno not in _ABSENT or (error.errno == errno.ENOENT and os.path.islink(path)):
            self._fail("read", key, error)

    def _fail(self, doing: str, key: str, error: OSError) -> NoReturn:
        if isinstance(error, StoreError):  # The message is complete already.
            raise error
        text = f"cannot {doing} key '{key}' of {self}: {error.strerror or error}"
        if key.endswith("/") and error.filename:  # Anything below a prefix.
            text += f": '{error.filename}'"
        if isinstance(error, PermissionError):
            raise StorePermissionError(f"{text}; use a path that this user may {doing}") from error
        advice = _ADVICE.get(error.errno or 0, "") if doing == "write" else ""
        raise StoreError(text + advice) from error

    # Readable

    def get(self, key: str, byte_range: Part = None, *, into: Into = None, limit: int = NO_LIMIT) -> Found:
        if byte_range is not None:
            return part_of(self, key, byte_range)
        found = self._opened(key)
        if found is None:
            return None
        descriptor, info = found
        try:  # Without a FileValue, for speed.
            check_size(info.st_size, limit)
            memory = memoryview(bytearray(info.st_size)) if into is None else into.part(info.st_size)
            return memory[: system.read_into_at(descriptor, memory, 0)]
        except OSError as error:
            self._fail("read", key, error)
        finally:
            os.close(descriptor)

    def open(self, key: str, first: Part = None, version: object = None) -> Value | None:
        found = self._opened(key)
        return None if found is None else FileValue(self, key, *found)

    def _opened(self, key: str) -> tuple[int, os.stat_result] | None:
        """The descriptor of the file of a value, which the caller closes, and what is known of it."""
        path = self._path(key)
        try:
            descriptor = os.open(path, system.OPEN)
        except OSError as error:
            self._nothing(key, error)
            return None
        try:
            info = os.fstat(descriptor)
        except OSError as error:
            os.close(descriptor)
            self._fail("read", key, error)
        if stat.S_ISREG(info.st_mode):
            return descriptor, info
        os.close(descriptor)
        if not stat.S_ISDIR(info.st_mode):
            raise StoreError(f"cannot read key '{key}' of {self}: it is neither a file nor a directory")
        return None

    def versions(self, keys: Sequence[str]) -> Sequence[object | None]:
        return [state_of(self._path(check_key(key)) if key else self._base) for key in keys]

    # Writeable

    def touch(self) -> None:
        """Update the root's time of modification at every change: xarray derives task names from it."""
        with contextlib.suppress(OSError):  # The write itself is done. Some systems keep no such time.
            os.utime(self.root)

    @called_as(Store.put)
    def put(self, key: str, pieces: Sequence[Buffer]) -> None:
        path = self._path(key)
        try:
            with files.held().pop(path, None) or self._lock(key, path, needed=False) as lock:
                lock.fill(pieces, fsync=self.fsync)
            if self.fsync:
                system.sync_folder(os.path.dirname(path))
        except OSError as error:
            self._fail("write", key, error)
        self.touch()

    def exclusive(self, key: str) -> AbstractContextManager[None]:
        return self.created(key) if self.locks else contextlib.nullcontext()

    @contextlib.contextmanager
    def created(self, key: str, *, needed: bool = True) -> Iterator[None]:
        """Hold the file that becomes the next value of a key, and its lock.

        Without ``needed``, nothing is locked where the system has no locks.
        """
        path = self._path(key)
        if path in files.held():
            yield
            return
        try:
            with self._lock(key, path, needed=needed) as lock:
                files.held()[path] = lock
                yield
        finally:
            if files.held().pop(path, None) is not None:  # Nothing was stored.
                self._prune(key, [os.path.dirname(path)])

    def _lock(self, key: str, path: str, *, needed: bool, doing: str = "write") -> Lock:
        """The lock of a value; one that locks nothing if the system has none and none is needed."""
        seconds, shared = self.traits.conflict_deadline, self.locks
        end, attempts = time.monotonic() + seconds, _ATTEMPTS
        while True:
            try:
                device = self._enter(key, path, make=True)
                return Lock(path, end, shared=shared, late=system.tells_late(device or 0))
            except FileNotFoundError as error:  # Another process removes the directory, as it is empty.
                attempts -= 1
                if not attempts:
                    self._fail(doing, key, error)
            except TimeoutError as error:
                if error.errno is not None:  # Of the system, as from a network mount.
                    self._fail(doing, key, error)
                how = f"another writer held its lock, '{files.lock_of(path)}', for {seconds:g} s"
                raise contended(key, self, how) from error
            except OSError as error:
                if error.errno in files.NO_LOCKS and needed:
                    raise StoreError(
                        f"cannot lock key '{key}' of {self}: {error.strerror}; use a file system with locks, "
                        "or LocalStore(..., locks=False) if no other process writes to it"
                    ) from error
                if error.errno not in files.NO_LOCKS or not shared:
                    self._fail(doing, key, error)
                shared = False

    def _enter(self, key: str, path: str, *, make: bool) -> int | None:
        """Check that the directory of a path is within the root; returns its device, None if it is absent."""
        above = os.path.dirname(path)
        try:
            info = os.stat(above)
        except (FileNotFoundError, NotADirectoryError):
            real = self.check_inside(above, key)
            if not make:
                return None
            files.make(real, fsync=self.fsync)
            info = os.stat(above)
        else:
            if self._known.get(above) == (info.st_dev, info.st_ino):
                return info.st_dev
            self.check_inside(above, key)
        if self.fsync and make:
            self.sync(above)  # Another writer may have just made it.
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[above] = info.st_dev, info.st_ino
        return info.st_dev

    def handle(self, key: str, *, make: bool) -> tuple[int, int] | None:
        """A descriptor of the directory of a key, which the caller closes, and its device; None if absent."""
        path = self._path(key)
        device = self._enter(key, path, make=make)
        return None if device is None else (os.open(os.path.dirname(path), system.SEARCH), device)

    def sync(self, folder: str) -> None:
        """Wait until the names in a directory, and in those above it up to the root, are on the disk."""
        for each in (*self._up(folder), self.root):
            system.sync_folder(each)

    def _up(self, folder: str) -> Iterator[str]:
        """A directory and those above it, up to the root, which is left out."""
        while len(folder) > len(self.root):
            yield folder
            folder = os.path.dirname(folder)

    def erase(self, *keys: str) -> None:
        paths = {key: self._path(key) for key in keys}
        places = {os.path.dirname(path): key for key, path in paths.items()}
        try:
            for above, key in list(places.items()):
                if self._enter(key, paths[key], make=False) is None:
                    del places[above]
            for key, path in paths.items():
                if os.path.dirname(path) in places:
                    self._erase(key, path)
        except OSError as error:
            self._fail("erase", key, error)
        self.touch()
        self._prune(key, places)

    def _erase(self, key: str, path: str) -> None:
        with key_lock(self.identity, key):
            held = files.held().get(path)
            if held is not None and not held.is_in_place():  # The directory was replaced meanwhile.
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            if not self.locks or held is not None:
                files.remove(path)
            elif files.is_value(path):
                # In its turn, as another writer may have read the value, or have just created it.
                with self._lock_to_erase(key, path):
                    files.remove(path)

    def _lock_to_erase(self, key: str, path: str) -> AbstractContextManager[object]:
        try:
            return self._lock(key, path, needed=False, doing="erase")
        except StoreError as error:
            if getattr(error.__cause__, "errno", None) not in (errno.ENOSPC, errno.EDQUOT):
                raise
            return contextlib.nullcontext()  # A full disk can be emptied; nobody else gets a lock there.

    def erase_prefix(self, prefix: str) -> None:
        path = self._path(prefix[:-1])
        try:
            is_there = self._enter(prefix, path, make=False) is not None
            if is_there and stat.S_ISDIR(os.stat(path).st_mode):
                (files.remove if os.path.islink(path) else files.erase_tree)(path)
        except OSError as error:  # Else it is absent, was just erased by another process, or leads to itself.
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                self._fail("erase", prefix, error)
        self.touch()
        self._prune(prefix, [os.path.dirname(path)])

    def _prune(self, key: str, folders: Collection[str]) -> None:
        """Remove directories that are empty now, and wait until what was erased is gone from the disk."""
        for folder in sorted(folders, key=len, reverse=True):
            files.prune(self._up(folder))
        try:
            for folder in folders if self.fsync else ():
                with contextlib.suppress(FileNotFoundError):  # Another writer has just erased it.
                    system.sync_folder(next(filter(os.path.isdir, self._up(folder)), self.root))
        except OSError as error:
            self._fail("erase", key, error)

    # Listable

    def list(self, prefix: str = "") -> Iterator[str]:
        waiting = [prefix]
        while waiting:
            keys, prefixes = self.list_dir(waiting.pop())
            yield from keys
            waiting.extend(prefixes)

    def leftovers(self, prefix: str = "") -> Iterator[str]:
        for above, folders, names in os.walk(self._path(prefix[:-1]) if prefix else self.root):
            folders[:] = [name for name in folders if not name.startswith(STAGED)]
            for path in (os.path.join(above, name) for name in names if name.endswith(LOCK)):
                with contextlib.suppress(OSError):  # One that cannot be opened may be in use.
                    if files.is_left(path):
                        yield path[len(self._base) :].replace(os.sep, "/")

    def _is_circle(self, key: str, prefix: str) -> bool:
        """Whether a link in a directory leads to that directory or to one above it, or nowhere any more."""
        try:
            target = os.stat(self._base + key)
        except (FileNotFoundError, NotADirectoryError):
            return True
        above = (prefix[:at] for at in (0, *(at + 1 for at, each in enumerate(prefix) if each == "/")))
        return any(os.path.samestat(target, os.stat(self._base + each)) for each in above)

    def list_dir(self, prefix: str) -> tuple[Names, Names]:
        keys: Names = set()
        prefixes: Names = set()
        try:
            with os.scandir(self._path(prefix[:-1]) if prefix else self._base) as entries:
                for entry in entries:
                    key = prefix + entry.name
                    if entry.name.endswith(LOCK) or (
                        entry.name.startswith(STAGED) and entry.is_dir(follow_symlinks=False)
                    ):
                        continue
                    if not _is_folder(entry):
                        keys.add(Key(key, _size_of(entry)))
                    elif not entry.is_symlink() or not self._is_circle(key, prefix):
                        prefixes.add(f"{key}/")
        except OSError as error:
            if error.errno not in _ABSENT:
                self._fail("list", prefix, error)
        return keys, prefixes


def _size_of(entry: os.DirEntry[str]) -> int | None:
    """The size of a file in bytes; None for links, which may lead anywhere, and for what is no file."""
    with contextlib.suppress(OSError):  # Just removed, or inaccessible; reading it tells which.
        return entry.stat().st_size if entry.is_file(follow_symlinks=False) else None
    return None


def _is_folder(entry: os.DirEntry[str]) -> bool:
    with contextlib.suppress(OSError):  # A link to itself, for example; reading it raises the error.
        return entry.is_dir()
    return False
