"""Readers and writers of a :class:`~xzarr3.LocalStore`: they read and replace the files of values.

This module knows nothing of chunks or documents. Locks, directories and system calls are in other modules of
this package.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from xzarr3._types import Buffer
from xzarr3.errors import StoreError, contended
from xzarr3.stores.local import platform
from xzarr3.stores.local.erase import Eraser
from xzarr3.stores.local.folders import NO_MORE, TEMPORARY
from xzarr3.stores.local.locks import FileLock, LockingError, LockTimeoutError
from xzarr3.stores.local.platform import Folder
from xzarr3.stores.locks import key_lock
from xzarr3.stores.values import Closing, OversizedError, Scratch, Value, flat

if TYPE_CHECKING:
    from xzarr3.stores.local.store import LocalStore

T = TypeVar("T")

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_ATTEMPTS = 100
_SHORT = 512  # Characters; the path limit of every system is higher.
_SETTLED = 10**9  # Nanoseconds

_serial = itertools.count()


def version_of(info: os.stat_result) -> object:
    """Identifies the state of a file. Its time alone would not: a copy may have the time of its original."""
    return info.st_dev, info.st_ino, info.st_mtime_ns, info.st_ctime_ns, info.st_size


class FileReader(Value):
    """Parts of an open file. They come from one version, even if the value is replaced meanwhile."""

    def __init__(self, store: LocalStore, key: str, descriptor: int, info: os.stat_result) -> None:
        self._store = store
        self._key = key
        self._descriptor = descriptor
        self.info = info
        self.size: int = info.st_size

    @property
    def version(self) -> object | None:
        info = self.info
        changed = max(info.st_mtime_ns, info.st_ctime_ns)
        # A file changed just now may change again within the same tick of the file system's clock.
        if time.time_ns() - changed < _SETTLED:
            return None
        return version_of(info)

    def _read(self, read: Callable[..., T], *what: object) -> T:
        try:
            return read(self._descriptor, self.size, *what)
        except OSError as error:
            self._store._fail("read", self._key, error)

    def read(self, start: int, length: int | None = None) -> Buffer:
        return self._read(_part_of, start, length)

    def read_ranges(self, starts: Sequence[int], lengths: Sequence[int]) -> list[Buffer]:
        return self._read(_parts_of, starts, lengths)

    def iter_ranges(self, starts: Sequence[int], lengths: Sequence[int]) -> Iterator[Buffer]:
        return map(self.read, starts, lengths)

    def read_into(self, start: int, out: memoryview) -> int:
        return self._read(_part_into, start, out)

    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


# Parts of an open file of known size. The system refuses some offsets beyond the end.


def _part_of(descriptor: int, size: int, start: int, length: int | None) -> Buffer:
    if start < 0:
        start = max(size + start, 0)
    wanted = max(size - start, 0)
    if length is not None:
        wanted = min(wanted, length)
    return platform.read_at(descriptor, wanted, start) if wanted else b""


def _parts_of(descriptor: int, size: int, starts: Sequence[int], lengths: Sequence[int]) -> list[Buffer]:
    parts: list[Buffer] = []
    with contextlib.suppress(OSError, OverflowError, ValueError):  # Handled below, part by part.
        parts += map(platform.pread, itertools.repeat(descriptor), lengths, starts)
    if len(parts) != len(starts) or sum(map(len, parts)) != sum(lengths):  # Short reads, or an error.
        each = zip(starts, lengths, strict=True)
        return [_part_of(descriptor, size, start, length) for start, length in each]
    return parts


def _part_into(descriptor: int, size: int, start: int, out: memoryview) -> int:
    if start >= size:
        return 0
    count = platform.preadv(descriptor, [out], start)
    if count != len(out):
        count += platform.read_into_at(descriptor, out[count:], start + count)
    return count


def read_whole(
    store: LocalStore, key: str, path: str, scratch: Scratch | None, limit: int
) -> Buffer | None:
    """The bytes of a file; None if there is none. One function, for speed: it reads chunks."""
    try:
        descriptor = store._open(path, platform.OPEN)
    except OSError as error:
        store._nothing(key, error)
        return None
    try:
        info = os.fstat(descriptor)
        if stat.S_ISREG(info.st_mode):
            size = info.st_size
            if size > limit:
                raise OversizedError(size, limit)
            if scratch is None:
                memory = memoryview(bytearray(size))
            else:
                memory = scratch.part(size)
            count = platform.preadv(descriptor, [memory], 0)
            if count != size:
                count += platform.read_into_at(descriptor, memory[count:], count)
            return memory[:count]
    except OSError as error:
        store._fail("read", key, error)
    finally:
        os.close(descriptor)
    store._not_a_file(key, info.st_mode)
    return None


@functools.lru_cache(maxsize=1)
def _around(pid: int) -> tuple[str, str]:
    """Start and end of the names of the temporary files of this process; a number is between them."""
    return f"{TEMPORARY}{pid}-", f"-{os.urandom(4).hex()}"


class _RetryError(Exception):
    """A failure that may not occur again once the directories are reopened."""

    def __init__(self, doing: str, error: OSError) -> None:
        super().__init__(doing)
        self.doing = doing
        self.error = error


class FileWriter(Closing):
    """Writes values to files and changes them, each under the lock of its key."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store
        self.folders = Eraser(store)
        self._beginning, self._end = _around(os.getpid())
        self._touched = False
        self._changed = False  # Since the root was touched.
        self._lock = FileLock() if store.locks else None
        self._above: str | None = None

    def close(self) -> None:
        self._leave()
        try:
            if self._changed:
                self._store._touch()
        finally:
            self.folders.forget()

    def check(self, key: str) -> None:
        """Raise if no value can be stored under a key."""
        path = self._store._path(key)
        if len(path) > _SHORT:
            self._store._check_length(path, key)

    def set(self, key: str, pieces: Sequence[Buffer]) -> None:
        self.check(key)
        contents = [flat(piece, key) for piece in pieces]
        above, _, name = key.rpartition("/")
        self._persistently(key, lambda: self._put(key, contents, self._enter(key, above), name))
        if self._store.fsync:
            self.sync(key, above)

    def touch(self) -> None:
        """Update the root's time of modification after the first change; `close` does so after later ones."""
        if self._touched:
            self._changed = True
        else:  # Not at the end only: the writer may be killed.
            self._store._touch()
            self._touched = True

    @property
    def around(self) -> tuple[bytes, bytes]:
        """Start and end of the names of temporary files; a number is between them."""
        return self._beginning.encode(), self._end.encode()

    def sync(self, key: str, above: str) -> None:
        """Wait until the name of a value is on the disk."""
        try:
            self.folders.sync(self.folders.real(above))
        except FileNotFoundError:  # Another writer has just erased it.
            return
        except OSError as error:
            self._store._fail("write", key, error)

    def _persistently(self, key: str, act: Callable[[], T]) -> T:
        """Call ``act``, and repeat it with reopened directories if one is gone or too many are open."""
        failures = 0
        while True:
            try:
                return act()
            except _RetryError as again:
                if failures >= (1 if again.error.errno in NO_MORE else _ATTEMPTS):
                    self._store._fail(again.doing, key, again.error)
            failures += 1
            self._leave()
            self.folders.forget()

    @contextlib.contextmanager
    def locked(self, key: str) -> Iterator[None]:
        """Hold the lock of a key."""
        self.check(key)
        above, _, name = key.rpartition("/")
        with key_lock(self._store.identity, key):
            end = time.monotonic() + self._store.traits.conflict_deadline
            self._persistently(key, lambda: self._acquire(key, self._enter(key, above), name, end))
            try:
                yield
            finally:
                self._release()
                self._tidy(key, above)

    def _reach(self, key: str, above: str, reach: Callable[[str], T]) -> T:
        """Go to a directory; if it is a new one, first close the lock file of the old one."""
        if above != self._above:
            self._leave()  # While the directory of the lock is still open.
            self._above = above
        try:
            return reach(above)
        except OSError as error:
            raise self._retry("write", key, error) from error

    def _enter(self, key: str, above: str) -> Folder:
        """An open directory, created if needed."""
        return self._reach(key, above, self.folders.make_real)

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
            raise contended(
                key, self._store, f"another writer held its lock for {self._store.traits.conflict_deadline:g} s"
            ) from error
        except LockingError as error:
            raise StoreError(
                f"cannot lock key '{key}' of {self._store}: {error.strerror}; use a file system with locks, "
                "or LocalStore(..., locks=False) if no other process writes to it"
            ) from error
        except OSError as error:
            raise self._retry("lock", key, error) from error

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _leave(self) -> None:
        self._above = None
        if self._lock is not None:
            self._lock.leave()

    def _put(
        self,
        key: str,
        contents: Sequence[memoryview],
        folder: Folder,
        name: str,
    ) -> None:
        """Write a new file and rename it."""
        temporary = f"{self._beginning}{next(_serial)}{self._end}"
        try:
            descriptor = platform.open_at(folder, temporary, _CREATE)
        except OSError as error:
            raise self._retry("write", key, error) from error
        try:
            try:
                platform.write_all(descriptor, contents)
                if self._store.fsync:
                    platform.sync(descriptor)
            finally:
                os.close(descriptor)
            platform.replace_at(folder, temporary, name)
        except BaseException as error:
            with contextlib.suppress(OSError):  # The write has failed, and that error is reported.
                platform.unlink_at(folder, temporary)
            if isinstance(error, OSError):
                self._store._fail("write", key, error)
            raise
        self.touch()

    def _tidy(self, key: str, above: str) -> None:
        """Remove the directory of a lock file if it is empty."""
        self._leave()
        try:
            place = self.folders.real(above)
        except OSError:  # Inaccessible or not ours: it stays.
            return
        self.folders.prune(place)
        if self._store.fsync:
            self.folders.sync_gone({place}, key)
