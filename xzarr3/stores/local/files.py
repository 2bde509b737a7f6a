"""Reads files, replaces them under a lock, and removes them.

A new value is written into the lock file of its key, ``KEY.__lock``, which is then renamed to be the value.
So a reader sees the old value or the new one, and a killed writer leaves one file at most. The protocol is
that of tensorstore; the two exclude each other.

- A writer creates the lock file, which must not exist, and locks it as an open file. Unless the file then has
  no name any more or holds bytes, because another process took it first, the key is the writer's own.
- If the lock file exists, the writer opens and locks it, so that no other process has it, checks by a second
  opening that it still has its name, removes it, and begins anew.
- Only the holder of the lock renames or removes a lock file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import stat
import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING
from weakref import WeakSet

from xzarr3._types import Buffer
from xzarr3.errors import StoreError, StorePermissionError
from xzarr3.stores.local import system
from xzarr3.stores.local.names import LOCK, STAGED
from xzarr3.stores.values import Closing, Value, clip

if TYPE_CHECKING:
    from xzarr3.stores.local.store import LocalStore

_FOLDER = system.OPEN | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_CREATE = system.OPEN_LOCK | os.O_CREAT | (os.O_EXCL if system.POSIX else 0)
NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL})
"""The errors of a file system that has no locks."""
_SETTLED = 10**9  # Nanoseconds
_FIRST_PAUSE, _LONGEST_PAUSE = 0.0002, 0.025  # Seconds
_SHARE = 8  # A pause is one part in this many of the time waited so far.


# Reading


def version_of(info: os.stat_result) -> object:
    """Identifies the state of a file. Its time alone would not: a copy may have the time of its original."""
    return info.st_dev, info.st_ino, info.st_mtime_ns, info.st_ctime_ns, info.st_size


def state_of(path: str) -> object | None:
    """Identifies the state of a file; None if it is missing or inaccessible: reading it will tell which."""
    try:
        return version_of(os.stat(path))
    except OSError:
        return None


class FileValue(Value):
    """An open file. All parts come from one version, even if the value is replaced meanwhile."""

    def __init__(self, store: LocalStore, key: str, descriptor: int, info: os.stat_result) -> None:
        self._store, self._key, self._descriptor = store, key, descriptor
        self.size: int = info.st_size
        changed = max(info.st_mtime_ns, info.st_ctime_ns)
        # A file changed just now may change again within the same tick of the file system's clock.
        self.version = None if time.time_ns() - changed < _SETTLED else version_of(info)

    # The system refuses some offsets beyond the end of a file.

    def read(self, start: int, length: int | None = None) -> Buffer:
        first, wanted = clip(self.size, start, length)
        try:
            return system.read_at(self._descriptor, wanted, first) if wanted else b""
        except OSError as error:
            self._store._fail("read", self._key, error)

    def read_into(self, start: int, out: memoryview) -> int:
        try:
            return system.read_into_at(self._descriptor, out, start) if start < self.size else 0
        except OSError as error:
            self._store._fail("read", self._key, error)

    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


# Replacing


def lock_of(path: str) -> str:
    """The path of the lock file of a value."""
    return path + LOCK


class Lock(Closing):
    """The lock of a value, held from now on; it is the open file that becomes the next value.

    Parameters
    ----------
    path : str
        The file of the value.
    end : float
        Time of :func:`time.monotonic` at which waiting ends.
    shared : bool
        Whether other processes may be at the value. Otherwise nothing is locked, and the file has a name of
        its own.
    late : bool
        Whether only the closing of the file tells that the disk is full, as on network mounts.

    Raises
    ------
    TimeoutError
        If the lock was not free in time.
    OSError
        If the file cannot be created; :class:`FileNotFoundError` if the directory is gone. One of
        :data:`NO_LOCKS` if the file system has no locks.
    """

    descriptor = -1

    def __init__(self, path: str, end: float, *, shared: bool, late: bool) -> None:
        self._path, self._shared, self._late = path, shared, late
        self.name = lock_of(path if shared else f"{path}.{uuid.uuid4().hex}")
        began = time.monotonic()
        while not self._take():
            now = time.monotonic()
            if now >= end:
                raise TimeoutError
            pause = max(_FIRST_PAUSE, min((now - began) / _SHARE, _LONGEST_PAUSE))
            time.sleep(min(pause, end - now) * random.uniform(0.5, 1))

    def _take(self) -> bool:
        """Create and lock the file, or remove one that was left; returns whether the lock is held."""
        try:
            descriptor = os.open(self.name, _CREATE, 0o666)
        except FileExistsError:
            discard(self.name)
            return False
        try:
            if not self._shared or system.lock(descriptor):
                info = os.fstat(descriptor)
                # A network mount may still count the link of a file that another writer has removed.
                if info.st_nlink and not info.st_size and (not self._late or self._names(info)):
                    _open_ones.add(self)
                    self.descriptor = descriptor
        except OSError as error:
            if error.errno in NO_LOCKS:
                os.unlink(self.name)  # No other process can have it.
            if error.errno != errno.ESTALE:
                raise
        finally:
            if self.descriptor < 0:
                os.close(descriptor)
        return self.descriptor >= 0

    def fill(self, pieces: Sequence[Buffer], *, fsync: bool) -> None:
        """Write the value and rename the file to be it, which releases the lock."""
        if system.POSIX:
            system.write_all(self.descriptor, pieces)
            self.publish(fsync=fsync)
            self.lose()
        else:  # An open file cannot be renamed.
            with open(self.name + LOCK, "wb") as file:
                file.writelines(pieces)
                file.flush()
                if fsync:
                    system.sync(file.fileno())
            os.replace(self.name + LOCK, self._path)
            self.close()

    def publish(self, *, fsync: bool) -> None:
        """Rename the file, which holds the value now. It stays open, except on Windows."""
        if fsync:
            system.sync(self.descriptor)
        elif self._late:
            os.close(os.dup(self.descriptor))
        if not system.POSIX:
            self.lose()
        os.replace(self.name, self._path)

    def is_in_place(self) -> bool:
        """Whether the lock is held and its file still has its name."""
        return self.descriptor >= 0 and self._names(os.fstat(self.descriptor))

    def _names(self, info: os.stat_result) -> bool:
        """Whether the name of the lock is that of a file."""
        try:
            return os.path.samestat(os.lstat(self.name), info)
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Release the lock; its file is removed unless it is the value now."""
        if self.descriptor >= 0:
            first, then = (self.unlink, self.lose) if system.POSIX else (self.lose, self.unlink)
            try:
                first()
            finally:  # Also after Ctrl-C: nobody else could take the lock.
                then()

    def unlink(self) -> None:
        """Remove the file, unless it is the value now."""
        with contextlib.suppress(OSError):  # The next writer of the key does it.
            # Ctrl-C may come once the file was renamed; another writer may then have one of this name.
            if self.descriptor < 0 or self.is_in_place():
                os.unlink(self.name)

    __del__ = close  # Ctrl-C may come before anybody holds the object.

    def lose(self) -> None:
        """Close the file. A forked child does so, as the lock is its parent's."""
        descriptor, self.descriptor = self.descriptor, -1
        _open_ones.discard(self)
        with contextlib.suppress(OSError):  # What is written has arrived.
            os.close(descriptor)


_open_ones: WeakSet[Lock] = WeakSet()
_held = threading.local()


def held() -> dict[str, Lock]:
    """The locks that this thread holds while it changes values by what they were, by path."""
    return vars(_held)


def _in_child() -> None:
    held().clear()
    for each in list(_open_ones):
        each.lose()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def is_left(name: str, at: int | None = None, *, remove: bool = False) -> bool:
    """Whether a lock file is there and no process holds it; it is then removed on request."""
    with contextlib.ExitStack() as stack:

        def opened() -> int:
            descriptor = os.open(name, system.OPEN_LOCK, dir_fd=at)
            stack.callback(os.close, descriptor)
            return descriptor

        try:
            file = opened()
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise FileExistsError(errno.EEXIST, f"'{os.path.basename(name)}' is not a file")
            # Network mounts look a name up anew when they open it.
            is_free = system.lock(file) and os.path.sameopenfile(file, opened())
            if is_free and remove and system.POSIX:
                os.unlink(name, dir_fd=at)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESTALE):
                raise
            return False
        return is_free


def discard(name: str, at: int | None = None) -> None:
    """Remove a lock file that no process holds; one that another user alone may lock stays."""
    with contextlib.suppress(PermissionError):
        is_left(name, at, remove=True)


# Directories


def failed(text: str, error: OSError) -> StoreError:
    """The error for a call to the system that failed."""
    kind = StorePermissionError if isinstance(error, PermissionError) else StoreError
    return kind(f"{text}: {error.strerror or error}")


def staging_folders(root: str) -> list[str]:
    """The directories in the root of a store in which writes have staged values, or have their leases."""
    try:
        with os.scandir(root) as entries:
            return [
                entry.path
                for entry in entries
                if entry.name.startswith(STAGED) and entry.is_dir(follow_symlinks=False)
            ]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise failed(f"cannot list '{root}'", error) from error


def make(folder: str, *, fsync: bool) -> None:
    """Make a directory and those above it, as far as they are missing."""
    missing = [folder]
    while not os.path.isdir(os.path.dirname(missing[-1])):
        missing.append(os.path.dirname(missing[-1]))
    for each in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(each)
        if fsync:
            system.sync_folder(os.path.dirname(each))


def prune(folders: Iterable[str]) -> None:
    """Remove directories, one above the other, while they are empty."""
    with contextlib.suppress(OSError):  # Not empty, in use, or not ours: it stays.
        for folder in folders:
            os.rmdir(folder)


def remove(name: str, at: int | None = None) -> bool:
    """Remove a file or a link if it is there; returns False for a directory, which stays."""
    try:
        os.unlink(name, dir_fd=at)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        # NFS keeps an erased file that another process still reads, under a name like ".nfs0001".
        if error.errno != errno.EBUSY or not os.path.basename(name).startswith(".nfs"):
            if stat.S_ISDIR(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
                return False
            raise
    return True


def is_value(path: str) -> bool:
    """Whether a path is there and no directory."""
    try:
        return not stat.S_ISDIR(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def erase_tree(top: str, at: int | None = None) -> None:
    """Remove a directory and all in it, from the top down, except what others are writing.

    No link is followed. A document goes before what it describes.
    """
    if not hasattr(os, "fwalk"):
        import shutil

        shutil.rmtree(top)
        return
    try:
        folder = os.open(top, _FOLDER, dir_fd=at)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        return
    try:
        with os.scandir(folder) as found:
            entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found]
        for name, is_folder in entries:
            if not is_folder:
                (discard if name.endswith(LOCK) else remove)(name, folder)
        for name, is_folder in entries:
            if is_folder and not name.startswith(STAGED):
                erase_tree(name, folder)
    finally:
        os.close(folder)
    with contextlib.suppress(OSError):  # Not empty, in use, or not ours: it stays.
        os.rmdir(top, dir_fd=at)
