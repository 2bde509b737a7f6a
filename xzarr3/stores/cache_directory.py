"""What a :class:`~xzarr3.stores.CacheStore` keeps in a directory, for many processes.

All files lie in a folder of its own, ``xzarr3-cache-1``, which belongs to one user alone. Their names are
hashes of the store's identity, the key and the part. A file holds, all numbers in little-endian order:

* the bytes ``xz3cach1``;
* when the value was surely this one, in nanoseconds since 1970, and the complement of that: 8 bytes each;
* a CRC-32 of all that follows, 4 bytes;
* the lengths of the key and of the version, 4 bytes each;
* the size of the whole value or -1, and the length of what is kept, 8 bytes each;
* what is kept, the key, and the version as Python writes it.

A file gets its name when it is complete; before it is called ``t-new``. What it takes is counted before, in
the file ``ledger``, whose lock is held by whoever adds a file, so that all files together never take more
than the limit. Who removes one counts that, unless somebody else holds the lock for long; then too much is
counted, as where a process was killed, until files are counted again to make room. Whoever writes a value to
the store holds the lock of its stripe and leaves a new random number there, by which others see that what
they have read may be what was there before.

Nobody waits long for a lock in order to read: while another process holds one, or many threads want the same
one, what is read is not kept. Who writes waits for half a minute.
"""

from __future__ import annotations

import ast
import contextlib
import errno
import hashlib
import os
import re
import stat
import struct
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager

from isal import isal_zlib

from xzarr3._types import Buffer
from xzarr3.errors import StoreError, StorePermissionError, shorten
from xzarr3.stores import platform
from xzarr3.stores.cache_memory import HEAD, WHOLE, Entry, Part
from xzarr3.stores.platform import Folder

FOLDER = "xzarr3-cache-1"
"""The folder in which all files of a cache lie."""

_MAGIC = b"xz3cach1"
_HEADER = struct.Struct("<8sQQIIIqQ")
_CHECKED = struct.Struct("<QQ")
_SUMMED = struct.Struct("<IIqQ")
_SUMMED_FROM = _HEADER.size - _SUMMED.size
_COUNT = struct.Struct("<Q")
_ALL_BITS = 2**64 - 1
_BLOCK = 4096  # Bytes that a file takes are a multiple of it.
_STRIPES = 64
_TOUCHED = 10**9  # Nanoseconds after which it is noted again that a file was used.
_TRIES = 6
_PAUSE = 0.0005  # Seconds
_PATIENCE = 0.003  # Seconds that a reader waits for a lock that another process has,
_LEDGER_PATIENCE = 0.1  # or for the ledger,
_RESPITE = 1.0  # and for how long it does not wait for that again.
_QUEUE = 1.0  # Seconds that it waits for threads of its process.
_DEADLINE = 30.0  # Seconds that a writer waits.
_SPARE = 10  # This part of the limit is made room for at once.
_LONGEST_VERSION = 2**12  # Characters
_FLAGS = platform.NO_FOLLOW | getattr(os, "O_NONBLOCK", 0)
_VALUE, _LOCK, _TEMPORARY, _LEDGER = "v-", "l-", "t-new", "ledger"
_LOCKS = [f"{_LOCK}{at:02}" for at in range(_STRIPES)]
_IS_VALUE = re.compile(f"{_VALUE}[0-9a-f]{{40}}", re.ASCII)


_own_files: set[int] = set()


def _forked() -> None:
    """A lock is held as long as what it was taken with is open anywhere, which is not to be in a child."""
    for descriptor in list(_own_files):
        os.close(descriptor)
    _own_files.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class _FileEntry(Entry):
    """What was found in a file; its version is looked at when somebody asks."""

    __slots__ = ("_version", "file")

    def __init__(
        self, value: Buffer, version: bytes, size: int | None, checked: float, file: tuple[int, int]
    ) -> None:
        self.value = value
        self._version = version
        self.size = size
        self.checked = checked
        self.file = file

    @property
    def version(self) -> object | None:  # type: ignore[override]
        """That of the value, None if the store could not tell."""
        try:
            found: object = ast.literal_eval(self._version.decode())
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return None
        return found


class DirectoryKept:
    """Values in a directory; those that were not used the longest make room for others.

    Parameters
    ----------
    path : str
    max_bytes : int
        What all files take together, those of other processes counted.
    identity : object
        That of the store.
    """

    def __init__(self, path: str, max_bytes: int, identity: object) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self._hash = hashlib.blake2b(repr(identity).encode("utf-8", "surrogatepass"), digest_size=20)
        self._folder: Folder = -1
        self.reset()
        self._open()

    def reset(self) -> None:
        """Locks of files belong to what is opened anew for each; threads of one process queue up before."""
        self._queues = {name: threading.Lock() for name in (_LEDGER, *_LOCKS)}
        self._impatient_until = 0.0

    def _open(self) -> None:
        folder = os.path.join(self.path, FOLDER)
        try:
            os.makedirs(self.path, mode=0o700, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o700)
            opened = platform.open_folder(folder)
        except OSError as error:
            kind = StorePermissionError if isinstance(error, PermissionError) else StoreError
            raise kind(
                f"cannot keep a cache in '{folder}': {error.strerror or error}; accepted: a directory that "
                "can be written, and no link"
            ) from error
        info = os.stat(opened)
        if not platform.is_own(info):
            platform.close_folder(opened)
            raise StorePermissionError(
                f"cannot keep a cache in '{folder}', which belongs to user {info.st_uid} with mode "
                f"{stat.S_IMODE(info.st_mode):#o}; accepted: one of this user, with mode 0o700"
            )
        self._folder = opened
        self._closing = weakref.finalize(self, platform.close_folder, opened)

    # Locks

    def _open_own(self, name: str) -> int:
        """Open a file of ours, which is made if need be, as the folder is if somebody has removed it."""
        for _ in range(_TRIES):
            try:
                return platform.open_at(self._folder, name, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600)
            except FileNotFoundError:
                self._closing()
                self._open()
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[int | None]:
        """A file with a lock on it; None if another process has it for long."""
        queue = self._queues[name]
        if not queue.acquire(timeout=_QUEUE):
            yield None
            return
        try:
            patience = _PATIENCE
            if name == _LEDGER:
                patience = _LEDGER_PATIENCE if time.monotonic() > self._impatient_until else 0.0
            with _closing(self._open_own(name)) as descriptor:
                is_locked = _lock(descriptor, patience)
                if patience == _LEDGER_PATIENCE and not is_locked:
                    self._impatient_until = time.monotonic() + _RESPITE
                yield descriptor if is_locked else None
        finally:
            queue.release()

    def _failed(self, error: OSError) -> StoreError:
        return StoreError(
            f"cannot remove values from the cache in '{self.path}': {error.strerror or error}; accepted: a "
            "directory that can be written and locked"
        )

    # Names

    def _name(self, key: str, part: Part) -> str:
        named = self._hash.copy()
        named.update(f"\0{key}\0{part}".encode("utf-8", "surrogatepass"))
        return _VALUE + named.hexdigest()

    def _stripe(self, key: str) -> str:
        named = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=1)
        return _LOCKS[named.digest()[0] % _STRIPES]

    # Reading

    def find(self, key: str, part: Part) -> Entry | None:
        name = self._name(key, part)
        try:
            descriptor = platform.open_at(self._folder, name, os.O_RDONLY | _FLAGS)
        except OSError:  # There is none, or something that is none; it is replaced.
            return None
        try:
            info = os.fstat(descriptor)
            if not stat.S_ISREG(info.st_mode):
                return None
            data = platform.read_at(descriptor, info.st_size, 0)
        except OSError:  # It cannot be read: then it is read from the store.
            return None
        finally:
            os.close(descriptor)
        entry = _entry(data, key, (info.st_dev, info.st_ino))
        with contextlib.suppress(OSError):
            if entry is None:
                self._remove([name])
            elif time.time_ns() - info.st_mtime_ns > _TOUCHED:
                platform.touch_at(self._folder, name)
        return entry

    def ticket(self, key: str) -> object | None:
        try:
            with self._locked(self._stripe(key)) as descriptor:
                return None if descriptor is None else platform.pread(descriptor, 16, 0)
        except OSError:  # What is not kept is read again.
            return None

    # Writing

    def keep(self, key: str, part: Part, entry: Entry, ticket: object) -> None:
        pieces = _pieces(key, entry)
        size = _taken(sum(map(len, pieces)))
        if size > self.max_bytes:
            return
        # Where there is no room on the disk, or the folder is gone: what is not kept is read again.
        with contextlib.suppress(OSError), self._locked(self._stripe(key)) as stripe:
            if stripe is not None and platform.pread(stripe, 16, 0) == ticket:
                with self._ledger() as ledger:
                    self._add_file(self._name(key, part), pieces, size, ledger)

    def _add_file(self, name: str, pieces: list[Buffer], size: int, ledger: int) -> None:
        total = _count(ledger)
        if total is None or total + size > self.max_bytes:
            total = self._evict(self.max_bytes - size)
        _put(ledger, _COUNT.pack(total + size))  # A killed process has counted too much.
        gone = size
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _FLAGS
            with _closing(platform.open_at(self._folder, _TEMPORARY, flags, 0o600)) as descriptor:
                platform.write_all(descriptor, [memoryview(piece).cast("B") for piece in pieces])
            before = self._size_of(name)
            platform.replace_at(self._folder, _TEMPORARY, name)
            gone = before
        finally:
            _add(ledger, -gone)
            with contextlib.suppress(FileNotFoundError):  # It has got its name, mostly.
                platform.unlink_at(self._folder, _TEMPORARY)

    @contextlib.contextmanager
    def _ledger(self) -> Iterator[int]:
        """The ledger, locked; whoever has it may be suspended, and reading must go on without it then."""
        with self._locked(_LEDGER) as descriptor:
            if descriptor is None:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            yield descriptor

    def _size_of(self, name: str) -> int:
        try:
            return _taken(platform.stat_at(self._folder, name).st_size)
        except FileNotFoundError:
            return 0

    def _remove(self, names: list[str]) -> None:
        with contextlib.ExitStack() as locks:
            ledger = None
            with contextlib.suppress(BlockingIOError):
                ledger = locks.enter_context(self._ledger())
            for name in names:
                size = self._size_of(name)
                with contextlib.suppress(FileNotFoundError):
                    platform.unlink_at(self._folder, name)
                    if ledger is not None:
                        _add(ledger, -size)

    def _evict(self, room: int) -> int:
        """Remove files until the others take no more than ``room`` bytes; returns what these take."""
        total = 0
        files: list[tuple[int, int, str]] = []
        with contextlib.suppress(FileNotFoundError):  # Of a process that was killed.
            platform.unlink_at(self._folder, _TEMPORARY)
        for entry in platform.scan_at(self._folder):
            if entry.is_file(follow_symlinks=False) and _IS_VALUE.fullmatch(entry.name):
                with contextlib.suppress(FileNotFoundError):
                    info = entry.stat(follow_symlinks=False)
                    size = _taken(info.st_size)
                    files.append((info.st_mtime_ns, size, entry.name))
                    total += size
        if total > room:
            room -= min(room, self.max_bytes // _SPARE)
            for _, size, name in sorted(files):
                if total <= room:
                    break
                with contextlib.suppress(FileNotFoundError):
                    platform.unlink_at(self._folder, name)
                total -= size
        return total

    @property
    def size(self) -> int:
        """Bytes that all files take."""
        try:
            with _closing(self._open_own(_LEDGER)) as ledger:  # Eight bytes are never read half written.
                return _count(ledger) or 0
        except OSError as error:
            raise self._failed(error) from error

    def refresh(self, key: str, part: Part, entry: Entry, checked: float) -> None:
        # Only the very file that was found; another one may hold another version.
        with contextlib.suppress(OSError):
            descriptor = platform.open_at(self._folder, self._name(key, part), os.O_RDWR | _FLAGS)
            try:
                info = os.fstat(descriptor)
                if isinstance(entry, _FileEntry) and entry.file == (info.st_dev, info.st_ino):
                    _put(descriptor, _CHECKED.pack(*_moment(checked)), len(_MAGIC))
            finally:
                os.close(descriptor)

    # Forgetting

    def drop(self, key: str) -> None:
        try:
            names = [self._name(key, WHOLE), self._name(key, HEAD)]
            names = [name for name in names if self._size_of(name)]
            if names:
                self._remove(names)
        except OSError as error:
            raise self._failed(error) from error

    def writing(self, keys: Collection[str]) -> AbstractContextManager[None]:
        def forget() -> None:
            for key in keys:
                self.drop(key)

        return self._written({self._stripe(key) for key in keys}, forget)

    def writing_below(self, prefix: str) -> AbstractContextManager[None]:
        def forget() -> None:
            wanted = prefix.encode("utf-8", "surrogatepass")
            names = [
                entry.name
                for entry in platform.scan_at(self._folder)
                if _IS_VALUE.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
            ]
            found = [name for name in names if self._key_of(name).startswith(wanted)]
            if found:
                self._remove(found)

        return self._written(_LOCKS, forget)

    def _key_of(self, name: str) -> bytes:
        """The key that a file says it is of; it may say nothing of use."""
        try:
            descriptor = platform.open_at(self._folder, name, os.O_RDONLY | _FLAGS)
        except OSError:
            return b""
        try:
            header = platform.pread(descriptor, _HEADER.size, 0)
            if len(header) < _HEADER.size:
                return b""
            _, _, _, _, key_length, _, _, length = _HEADER.unpack(header)
            return platform.pread(descriptor, min(key_length, 2**20), min(_HEADER.size + length, 2**62))
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def _written(self, stripes: Collection[str], forget: Callable[[], None]) -> Iterator[None]:
        with contextlib.ExitStack() as locks:
            try:
                for stripe in stripes:
                    descriptor = locks.enter_context(_closing(self._open_own(stripe)))
                    if not _lock(descriptor, _DEADLINE, shared=True):  # Others may write at the same time.
                        raise OSError(errno.EAGAIN, f"another process has held a lock for {_DEADLINE:g} s")
                    _put(descriptor, os.urandom(16))
                forget()
            except OSError as error:
                if isinstance(error, StoreError):
                    raise
                raise self._failed(error) from error
            yield


@contextlib.contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    """Unlock and close a file in the end, but not in a child forked meanwhile, where that is done."""
    process = os.getpid()
    _own_files.add(descriptor)
    try:
        yield descriptor
    finally:
        if os.getpid() == process:
            _own_files.discard(descriptor)
            platform.unlock_file(descriptor)
            os.close(descriptor)


def _lock(descriptor: int, patience: float, *, shared: bool = False) -> bool:
    """Lock a file; returns whether that could be done within so many seconds."""
    end = time.monotonic() + patience
    pause = _PAUSE
    while not platform.lock_file(descriptor, shared=shared):
        if time.monotonic() >= end:
            return False
        time.sleep(pause)
        pause = min(1.2 * pause, 0.01)
    return True


def _put(descriptor: int, data: bytes, start: int = 0) -> None:
    platform.pwrite(descriptor, memoryview(data), start)


def _taken(length: int) -> int:
    return -(-max(length, 1) // _BLOCK) * _BLOCK


def _count(ledger: int) -> int | None:
    data = platform.pread(ledger, _COUNT.size, 0)
    return int(_COUNT.unpack(data)[0]) if len(data) == _COUNT.size else None


def _add(ledger: int, size: int) -> None:
    _put(ledger, _COUNT.pack(max((_count(ledger) or 0) + size, 0)))


def _moment(checked: float) -> tuple[int, int]:
    moment = min(max(int(checked * 1e9), 0), _ALL_BITS)
    return moment, moment ^ _ALL_BITS


def _pieces(key: str, entry: Entry) -> list[Buffer]:
    name = key.encode("utf-8", "surrogatepass")
    version = _written_version(entry.version)
    summed = _SUMMED.pack(len(name), len(version), -1 if entry.size is None else entry.size, len(entry.value))
    checksum = 0
    for piece in (summed, entry.value, name, version):
        checksum = isal_zlib.crc32(piece, checksum)
    header = _MAGIC + _CHECKED.pack(*_moment(entry.checked)) + checksum.to_bytes(4, "little")
    return [header + summed, entry.value, name, version]


def _written_version(version: object | None) -> bytes:
    """A version as text that gives it back; that of None if there is no such text."""
    if version is None:
        return b"None"
    text = repr(version)
    with contextlib.suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        if len(text) <= _LONGEST_VERSION and ast.literal_eval(text) == version:
            return text.encode()
    return b"None"


def _entry(data: bytes, key: str, file: tuple[int, int]) -> _FileEntry | None:
    """What a file holds, None if it is not as it was written."""
    if len(data) < _HEADER.size:
        return None
    magic, checked, complement, checksum, key_length, version_length, size, length = _HEADER.unpack_from(data)
    start = _HEADER.size
    if magic != _MAGIC or len(data) != start + length + key_length + version_length:
        return None
    view = memoryview(data)
    if isal_zlib.crc32(view[_SUMMED_FROM:]) != checksum:
        return None
    end = start + length
    if data[end : end + key_length] != key.encode("utf-8", "surrogatepass"):
        return None
    # A time that was not written whole is none: long ago.
    moment = checked / 1e9 if checked ^ complement == _ALL_BITS else 0.0
    return _FileEntry(view[start:end], data[end + key_length :], None if size < 0 else size, moment, file)


def check_place(directory: object) -> str:
    """The absolute path of the directory of a cache."""
    if not isinstance(directory, (str, os.PathLike)):
        raise TypeError(f"not a directory of a cache: {shorten(directory)}; accepted: a path or None")
    return os.path.abspath(os.path.expanduser(os.fspath(directory)))
