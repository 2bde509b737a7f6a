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
import hashlib
import itertools
import os
import random
import stat
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from xzarr3._types import Buffer
from xzarr3.stores.local import system
from xzarr3.stores.local.names import LOCK, STAGED
from xzarr3.stores.values import Closing, OversizedError, Scratch, Value

if TYPE_CHECKING:
    from xzarr3.stores.local.store import LocalStore

T = TypeVar("T")

_CREATE = system.OPEN_LOCK | os.O_CREAT | (os.O_EXCL if system.POSIX else 0)
_CANNOT = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL})
_MOST_NAME = 255  # Bytes.
_SETTLED = 10**9  # Nanoseconds
_FIRST_PAUSE, _LONGEST_PAUSE = 0.0002, 0.025  # Seconds
_SHARE = 8  # A pause is one part in this many of the time waited so far.


# Reading


def version_of(info: os.stat_result) -> object:
    """Identifies the state of a file. Its time alone would not: a copy may have the time of its original."""
    return info.st_dev, info.st_ino, info.st_mtime_ns, info.st_ctime_ns, info.st_size


class FileValue(Value):
    """An open file. All parts come from one version, even if the value is replaced meanwhile."""

    def __init__(self, store: LocalStore, key: str, descriptor: int, info: os.stat_result) -> None:
        self._store, self._key = store, key
        self._descriptor = descriptor
        self._info = info
        self.size: int = info.st_size

    @property
    def version(self) -> object | None:
        changed = max(self._info.st_mtime_ns, self._info.st_ctime_ns)
        # A file changed just now may change again within the same tick of the file system's clock.
        return None if time.time_ns() - changed < _SETTLED else version_of(self._info)

    def _read(self, read: Callable[..., T], *what: object) -> T:
        try:
            return read(self._descriptor, self.size, *what)
        except OSError as error:
            self._store._fail("read", self._key, error)

    def read(self, start: int, length: int | None = None) -> Buffer:
        return self._read(_part_of, start, length)

    def read_ranges(self, starts: Sequence[int], lengths: Sequence[int]) -> list[Buffer]:
        return self._read(_parts_of, starts, lengths)

    def read_into(self, start: int, out: memoryview) -> int:
        return self._read(_part_into, start, out)

    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


# The system refuses some offsets beyond the end of a file.


def _part_of(descriptor: int, size: int, start: int, length: int | None) -> Buffer:
    if start < 0:
        start = max(size + start, 0)
    wanted = max(size - start, 0)
    if length is not None:
        wanted = min(wanted, length)
    return system.read_at(descriptor, wanted, start) if wanted else b""


def _parts_of(descriptor: int, size: int, starts: Sequence[int], lengths: Sequence[int]) -> list[Buffer]:
    parts: list[Buffer] = []
    with contextlib.suppress(OSError, OverflowError, ValueError):  # Handled below, part by part.
        parts += map(system.pread, itertools.repeat(descriptor), lengths, starts)
    if len(parts) != len(starts) or sum(map(len, parts)) != sum(lengths):  # Short reads, or an error.
        each = zip(starts, lengths, strict=True)
        return [_part_of(descriptor, size, start, length) for start, length in each]
    return parts


def _part_into(descriptor: int, size: int, start: int, out: memoryview) -> int:
    if start >= size:
        return 0
    count = system.preadv(descriptor, [out], start)
    if count != len(out):
        count += system.read_into_at(descriptor, out[count:], start + count)
    return count


def read_whole(store: LocalStore, key: str, path: str, scratch: Scratch | None, limit: int) -> Buffer | None:
    """The bytes of a file; None if there is none. One function, for speed: it reads chunks."""
    try:
        descriptor = os.open(path, system.OPEN)
    except OSError as error:
        store._nothing(key, error)
        return None
    try:
        info = os.fstat(descriptor)
        if stat.S_ISREG(info.st_mode):
            size = info.st_size
            if size > limit:
                raise OversizedError(size, limit)
            memory = memoryview(bytearray(size)) if scratch is None else scratch.part(size)
            count = system.preadv(descriptor, [memory], 0)
            if count != size:
                count += system.read_into_at(descriptor, memory[count:], count)
            return memory[:count]
    except OSError as error:
        store._fail("read", key, error)
    finally:
        os.close(descriptor)
    store._not_a_file(key, info.st_mode)
    return None


# Replacing


def lock_of(path: str) -> str:
    """The path of the lock file of a value; a name that would be too long is replaced by a hash."""
    above, name = os.path.split(path)
    if len(name) > _MOST_NAME // 4 and len(os.fsencode(name)) > _MOST_NAME - len(LOCK):
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    return os.path.join(above, name + LOCK)


class LockingError(OSError):
    """The file system does not support locks."""


class LockTimeoutError(Exception):
    """Another writer held a lock for too long."""


class Lock(Closing):
    """The lock of a value, held from now on by this thread; it is the file that becomes the next value.

    Parameters
    ----------
    path : str
        The file of the value.
    end : float
        Time of :func:`time.monotonic` at which waiting ends.
    shared : bool
        Whether other processes may be at the value. Otherwise nothing is locked, and the file has a name of
        its own.

    Raises
    ------
    LockTimeoutError
        If the lock was not free in time.
    LockingError
        If the file system does not support locks.
    OSError
        If the lock file cannot be created; :class:`FileNotFoundError` if the directory is gone.
    """

    def __init__(self, path: str, end: float, *, shared: bool = True) -> None:
        self._path = path
        self.name = lock_of(path if shared else f"{path}.{uuid.uuid4().hex}")
        self._shared = shared
        self._descriptor = -1
        self._is_held = False
        self.is_filled = False
        try:
            self._wait(end)
        except BaseException:
            self.close()
            raise

    def _wait(self, end: float) -> None:
        began = None
        while not self._take():
            now = time.monotonic()
            began = now if began is None else began
            if now >= end:
                raise LockTimeoutError
            pause = max(_FIRST_PAUSE, min((now - began) / _SHARE, _LONGEST_PAUSE))
            time.sleep(min(pause, end - now) * random.uniform(0.5, 1))

    def _take(self) -> bool:
        """Create and lock the file, or remove one that was left; returns whether the lock is held."""
        try:
            self._descriptor = os.open(self.name, _CREATE, 0o666)
        except FileExistsError:
            discard(self.name)
            return False
        except PermissionError:
            if system.POSIX:
                raise
            return False  # Windows refuses a name that is being removed.
        _open_ones.add(self)
        try:
            self._is_held = not self._shared or (system.lock(self._descriptor) and self._is_own())
        except OSError as error:
            if error.errno in _CANNOT:
                self._is_held = True  # Without locks no other process can hold it.
                self.close()
                raise LockingError(*error.args) from error
            if error.errno != errno.ESTALE:
                raise
        if not self._is_held:
            self.close()
        return self._is_held

    def _is_own(self) -> bool:
        """Whether the locked file is the one that was created, not removed or filled by another process."""
        info = os.fstat(self._descriptor)
        return info.st_nlink > 0 and info.st_size == 0

    def fill(self, pieces: Sequence[Buffer], *, fsync: bool, late: bool) -> None:
        """Write the value and rename the file to be it, which releases the lock.

        Parameters
        ----------
        pieces : sequence of bytes-like
        fsync : bool
            Wait until the bytes are on the disk.
        late : bool
            Whether only the closing of the file tells that the disk is full.
        """
        if not system.POSIX:  # An open file cannot be renamed.
            self._fill_another(pieces, fsync)
        else:
            system.write_all(self._descriptor, pieces)
            if fsync:
                system.sync(self._descriptor)
            elif late:
                os.close(os.dup(self._descriptor))
            os.rename(self.name, self._path)
        self.is_filled = True
        self.close()

    def _fill_another(self, pieces: Sequence[Buffer], fsync: bool) -> None:
        with open(self.name + LOCK, "wb") as file:
            file.writelines(pieces)
            if fsync:
                file.flush()
                system.sync(file.fileno())
        for pause in (2**n / 1000 for n in range(9)):
            with contextlib.suppress(PermissionError):  # Another process has the old value open.
                os.replace(self.name + LOCK, self._path)
                return
            time.sleep(pause)
        os.replace(self.name + LOCK, self._path)

    def close(self) -> None:
        """Release the lock; its file is removed unless it is the value now."""
        if self._descriptor >= 0:
            remains = self._is_held and not (self.is_filled and system.POSIX)
            if remains and system.POSIX:
                with contextlib.suppress(OSError):  # The next writer of the key removes it.
                    os.unlink(self.name)
            self.lose()
            if remains and not system.POSIX:
                with contextlib.suppress(OSError):  # Another writer waits for it.
                    os.unlink(self.name)

    def lose(self) -> None:
        """Close the file. A forked child does so, as the lock is its parent's."""
        descriptor, self._descriptor = self._descriptor, -1
        self._is_held = False
        _open_ones.discard(self)
        if descriptor >= 0:
            os.close(descriptor)

    @property
    def is_held(self) -> bool:
        """Whether the lock has been neither released nor lost."""
        return self._is_held


class _Held(threading.local):
    """The locks that this thread holds while it changes values by what they were, by path."""

    def __init__(self) -> None:
        self.locks: dict[str, Lock] = {}


_held = _Held()
_open_ones: set[Lock] = set()


def _in_child() -> None:
    for each in list(_open_ones):
        each.lose()
    _held.locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def held(path: str) -> Lock | None:
    """The lock of a value that this thread holds for :func:`holding`, and has not used yet."""
    lock = _held.locks.get(path)
    return lock if lock is not None and lock.is_held else None


@contextlib.contextmanager
def holding(path: str, lock: Lock) -> Iterator[None]:
    """A context in which :func:`held` finds a lock, which is released at its end."""
    with lock:
        _held.locks[path] = lock
        try:
            yield
        finally:
            _held.locks.pop(path, None)


def is_left(name: str, at: int | None = None, *, remove: bool = False) -> bool:
    """Whether a lock file is there and no process holds it; it is then removed on request."""
    with contextlib.ExitStack() as stack:
        try:
            file = _opened(name, at, stack)
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise FileExistsError(errno.EEXIST, f"'{os.path.basename(name)}' is not a file")
            # Network mounts look a name up anew when they open it.
            if not (system.lock(file) and os.path.sameopenfile(file, _opened(name, at, stack))):
                return False
            if remove and system.POSIX:
                os.unlink(name, dir_fd=at)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            return False
    return True


def _opened(name: str, at: int | None, stack: contextlib.ExitStack) -> int:
    descriptor = os.open(name, system.OPEN_LOCK, dir_fd=at)
    stack.callback(os.close, descriptor)
    return descriptor


def discard(name: str, at: int | None = None) -> None:
    """Remove a lock file that no process holds; one that another user alone may lock stays."""
    with contextlib.suppress(PermissionError):
        is_left(name, at, remove=True)


# Directories


def make(folder: str, *, fsync: bool) -> None:
    """Make a directory and those above it, as far as they are missing."""
    above = os.path.dirname(folder)
    if not os.path.isdir(above):
        make(above, fsync=fsync)
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder)
    if fsync:
        system.sync_folder(above)


def prune(folders: Iterable[str]) -> None:
    """Remove directories, one above the other, while they are empty."""
    with contextlib.suppress(OSError):  # Not empty, in use, or not ours: it stays.
        for folder in folders:
            os.rmdir(folder)


def is_busy(name: str, error: OSError) -> bool:
    """Whether a file cannot be removed now but will be removed by its network file system.

    NFS keeps an erased file that another process still reads, under a name like ``.nfs0001``.
    """
    return error.errno == errno.EBUSY and os.path.basename(name).startswith(".nfs")


def remove(name: str, at: int | None = None) -> bool:
    """Remove a file or a link if it is there; returns False for a directory, which stays."""
    try:
        os.unlink(name, dir_fd=at)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        if not is_busy(name, error):
            if stat.S_ISDIR(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
                return False
            raise
    return True


def erase_tree(top: str) -> None:
    """Remove a directory and all in it, except what other processes are writing. No link is followed."""
    for above, folders, names, at in _walk(top):
        if os.sep + STAGED in above:
            continue
        for name in names:
            if name.endswith(LOCK):
                discard(name, at)
            else:
                remove(name, at)
        for name in folders:
            try:
                os.rmdir(name, dir_fd=at)
            except NotADirectoryError:  # A link to a directory.
                remove(name, at)
            except OSError:  # Not empty, in use, or not ours: it stays.
                continue
    with contextlib.suppress(OSError):
        os.rmdir(top)


def _walk(top: str) -> Iterator[tuple[str, list[str], list[str], int | None]]:
    """Directories from the bottom up, what is in them, and their descriptors where the system has these."""
    if hasattr(os, "fwalk"):
        yield from os.fwalk(top, topdown=False, onerror=_failed, follow_symlinks=False)
        return
    for above, folders, names in os.walk(top, topdown=False, onerror=_failed):
        at = partial(os.path.join, above)
        yield above, [*map(at, folders)], [*map(at, names)], None


def _failed(error: OSError) -> None:
    if error.errno != errno.ENOENT:
        raise error
