"""Locks between processes and hosts, one for each name in a directory.

A lock is one byte of a lock file, which lies in the directory itself: by whatever root, path or link a file
is reached, its lock is the same. Which byte it is tells the name of the file, so that different names do not
wait for each other. The system takes a lock away from a process that dies.

The lock file is made when it is needed and removed by the last one who used it. Who removes it holds all of
it and makes it longer first: who gets a lock of it after that sees that it is nobody's any more, also on
network mounts, where names are remembered for a while, and starts anew.

On Linux the locks belong to what is open and not to the process (open file description locks), so that
threads exclude each other, too. On macOS the whole file is locked in the manner of BSD. On Windows, where
bytes are locked as well, nobody can remove the lock file while somebody else has it open, so that it need not
be made longer. A forked child closes what its parent has open; otherwise the lock would outlive the parent.
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
"""What the lock file of a directory is called, unless somebody wants one of his own."""

_OPEN = os.O_RDWR | platform.NO_FOLLOW | getattr(os, "O_NONBLOCK", 0)
_CANNOT = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL})
_FIRST_PAUSE = 0.0002  # Seconds
_LONGEST_PAUSE = 0.025
_SHARE = 8  # A pause is this part of the time waited so far.

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
    """The file system has no locks."""


class LockTimeoutError(Exception):
    """Somebody else held a lock for too long."""


class FileLock:
    """The lock of one name at a time, for one thread.

    The lock file stays open and in its place until :meth:`leave`, so that more names of the same directory
    cost little.

    Parameters
    ----------
    file_name : str
        What the lock file is called.
    """

    def __init__(self, file_name: str = LOCK_NAME) -> None:
        self._file_name = file_name
        self._descriptor = -1
        self._folder: Folder = -1
        self._is_shared = False

    @property
    def held(self) -> bool:
        """Whether the lock file is open, so that a lock which was got is still there."""
        return self._descriptor >= 0

    def acquire(self, folder: Folder, name: str, end: float) -> None:
        """Wait until nobody else has the lock of a name.

        Parameters
        ----------
        folder : int or str
            The open directory; it must stay open and the same until :meth:`leave`.
        name : str
        end : float
            The time, as :func:`time.monotonic` tells it, at which waiting ends.

        Raises
        ------
        LockTimeoutError
            If it took too long.
        LockingError
            If the file system has no locks.
        OSError
            If there can be no lock file; :class:`FileNotFoundError` if the directory has been removed.
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
        """Whether the lock could be had at once."""
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
            if info.st_nlink:  # Who was about to remove it has been killed.
                self._remove()
        except OSError as error:
            stale = error.errno == errno.ESTALE
            if error.errno in _CANNOT:
                with contextlib.suppress(OSError):  # It is of no use to anybody.
                    platform.unlink_at(folder, self._file_name)
            self._close()
            if error.errno in _CANNOT:
                raise LockingError(error.errno, error.strerror) from error
            if not stale:
                raise
        self._close()
        return False

    def _open(self, folder: Folder, flags: int) -> None:
        with _opening:  # A child is forked before or after, so that it knows what is open.
            self._descriptor = platform.open_at(folder, self._file_name, _OPEN | flags)
            self._folder = folder
            _open_ones[id(self)] = self
            self._is_shared = False

    def _share(self, folder: Folder, mode: int) -> None:
        """See that it is a file in which all may lock who may write to the directory."""
        if not stat.S_ISREG(mode):
            raise FileExistsError(errno.EEXIST, f"there is a '{self._file_name}' that is no file")
        missing = os.stat(folder).st_mode & 0o222 & ~mode
        if missing:
            with contextlib.suppress(OSError):  # It belongs to somebody else, who will do the same.
                platform.copy_mode(self._descriptor, mode | missing | missing << 1)
        self._is_shared = True

    def release(self) -> None:
        """Let others have the lock."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):  # Closing it does the same.
                platform.unlock_range(self._descriptor)

    def leave(self) -> None:
        """Close the lock file, and remove it if nobody else holds a lock of it."""
        if self._descriptor >= 0:
            try:
                with contextlib.suppress(OSError):  # It stays until somebody else removes it.
                    if platform.POSIX:
                        self._remove()
            finally:
                self._close()
            if not platform.POSIX:
                with contextlib.suppress(OSError):  # Somebody has it open, and removes it later.
                    os.unlink(os.path.join(str(self._folder), self._file_name))

    def _remove(self) -> None:
        """Remove the lock file if nobody else holds a lock of it, and let those see it who have it open."""
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
        """Close the lock file, as a forked child does: the lock is that of the parent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):  # Nothing was written to it that could be lost.
                os.close(descriptor)

    def discard(self, folder: Folder) -> None:
        """Remove the lock file of a directory, if it is there and nobody uses it.

        Raises
        ------
        OSError
            If that is not possible.
        """
        self._open(folder, 0)
        self.leave()


def _place(name: str) -> int:
    """The byte that stands for a name."""
    digest = hashlib.blake2b(os.fsencode(name), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 2
