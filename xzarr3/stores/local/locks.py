"""Locks between processes and hosts, one for each name in a directory.

A lock is one byte of a lock file in the same directory. The same file thus has the same lock, by whatever
root, path or link it is reached. A hash of the file's name selects the byte, so that different names rarely
wait for each other. The system releases the locks of a process that dies.

The lock file is created when needed, and its last user removes it. To remove it, a process locks all of it
and makes it longer. A process that gets a lock afterwards sees by the length that the file is removed, and
starts again. This also works on network mounts, which cache names for a while.

On Linux the locks belong to the open file, not to the process (open file description locks), so that they
exclude threads too. On macOS the whole file is locked with BSD's flock. On Windows bytes are locked, and a
file that another process has open cannot be removed, so it need not be made longer. A forked child closes the
lock files of its parent; otherwise the locks would outlive the parent.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import random
import stat
import threading
import time

from xzarr3.stores.local import platform
from xzarr3.stores.local.folders import TEMPORARY
from xzarr3.stores.local.platform import Folder

LOCK_NAME = f"{TEMPORARY}lock"
"""Default name of the lock file in a directory."""

_OPEN = os.O_RDWR | platform.NO_FOLLOW | getattr(os, "O_NONBLOCK", 0)
_CANNOT = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL})
_FIRST_PAUSE = 0.0002  # Seconds
_LONGEST_PAUSE = 0.025
_SHARE = 8  # A pause is one part in this many of the time waited so far.

_open_ones: dict[int, FileLock] = {}
_opening = threading.RLock()


def _before_fork() -> None:
    _opening.acquire()


def _in_parent() -> None:
    _opening.release()


def _in_child() -> None:
    for lock in _open_ones.values():
        lock.lose()
    _open_ones.clear()
    _opening.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)


class LockingError(OSError):
    """The file system does not support locks."""


class LockTimeoutError(Exception):
    """Another holder kept a lock for too long."""


class FileLock:
    """The lock of one name at a time, for one thread.

    The lock file stays open until :meth:`leave`, so that further names in the same directory cost little.

    Parameters
    ----------
    file_name : str
        Name of the lock file.
    """

    def __init__(self, file_name: str = LOCK_NAME) -> None:
        self._file_name = file_name
        self._descriptor = -1
        self._folder: Folder = -1
        self._is_shared = False

    @property
    def held(self) -> bool:
        """Whether the lock file is open, so that an acquired lock still exists."""
        return self._descriptor >= 0

    def acquire(self, folder: Folder, name: str, end: float) -> None:
        """Wait for the lock of a name.

        Parameters
        ----------
        folder : int or str
            The open directory. It must stay open and unchanged until :meth:`leave`.
        name : str
        end : float
            Time of :func:`time.monotonic` at which waiting ends.

        Raises
        ------
        LockTimeoutError
            If the lock was not free in time.
        LockingError
            If the file system does not support locks.
        OSError
            If the lock file cannot be created; :class:`FileNotFoundError` if the directory is gone.
        """
        at = _place(name)
        started = None
        while not self._take(folder, at):
            now = time.monotonic()
            if started is None:
                started = now
            if now >= end:
                self.leave()
                raise LockTimeoutError
            pause = max(_FIRST_PAUSE, min((now - started) / _SHARE, _LONGEST_PAUSE))
            time.sleep(min(pause, end - now) * random.uniform(0.5, 1))

    def _take(self, folder: Folder, at: int) -> bool:
        """Try to lock a byte; returns whether that succeeded."""
        if self._descriptor < 0:
            self._open(folder, os.O_CREAT)
        try:
            if not platform.lock_range(self._descriptor, at, 1):
                return False
            info = os.fstat(self._descriptor)
            if info.st_nlink and not info.st_size:
                if not self._is_shared:
                    self._share(folder, info.st_mode)
                return True
            if info.st_nlink:  # A process was killed while it removed the file.
                self._remove()
        except OSError as error:
            stale = error.errno == errno.ESTALE
            if error.errno in _CANNOT:
                with contextlib.suppress(OSError):  # Without locks the file is useless.
                    platform.unlink_at(folder, self._file_name)
            self._close()
            if error.errno in _CANNOT:
                raise LockingError(error.errno, error.strerror) from error
            if not stale:
                raise
        self._close()
        return False

    def _open(self, folder: Folder, flags: int) -> None:
        with _opening:  # Not during a fork, so that the child knows which files are open.
            self._descriptor = platform.open_at(folder, self._file_name, _OPEN | flags)
            self._folder = folder
            _open_ones[id(self)] = self
            self._is_shared = False

    def _share(self, folder: Folder, mode: int) -> None:
        """Check that it is a regular file, and let every writer of the directory lock it."""
        if not stat.S_ISREG(mode):
            raise FileExistsError(errno.EEXIST, f"'{self._file_name}' exists and is not a file")
        missing = os.stat(folder).st_mode & 0o222 & ~mode
        if missing:
            with contextlib.suppress(OSError):  # It belongs to another user, whose process will do the same.
                platform.copy_mode(self._descriptor, mode | missing | missing << 1)
        self._is_shared = True

    def release(self) -> None:
        """Release the lock."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):  # Closing releases the lock too.
                platform.unlock_range(self._descriptor)

    def leave(self) -> None:
        """Close the lock file, and remove it if no other process holds a lock in it."""
        if self._descriptor >= 0:
            try:
                with contextlib.suppress(OSError):  # The file stays until another user removes it.
                    if platform.POSIX:
                        self._remove()
            finally:
                self._close()
            if not platform.POSIX:
                with contextlib.suppress(OSError):  # Another process has it open and removes it later.
                    os.unlink(os.path.join(str(self._folder), self._file_name))

    def _remove(self) -> None:
        """Remove the lock file if no other process holds a lock in it, and mark it as removed."""
        if not platform.lock_range(self._descriptor, 0, 0):
            return
        info = os.fstat(self._descriptor)
        if not info.st_nlink:
            return
        if info.st_size and not os.path.samestat(platform.stat_at(self._folder, self._file_name), info):
            return
        if not info.st_size:
            os.ftruncate(self._descriptor, 1)
        platform.unlink_at(self._folder, self._file_name)

    def _close(self) -> None:
        with _opening:
            self.lose()
            _open_ones.pop(id(self), None)

    def lose(self) -> None:
        """Close the lock file without removing it. A forked child does so: the lock is its parent's."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):  # Nothing was written, so nothing is lost.
                os.close(descriptor)

    def discard(self, folder: Folder) -> None:
        """Remove the lock file of a directory if it exists and is not in use.

        Raises
        ------
        OSError
            If that is not possible.
        """
        self._open(folder, 0)
        self.leave()


def _place(name: str) -> int:
    """The byte that represents a name."""
    digest = hashlib.blake2b(os.fsencode(name), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 2
