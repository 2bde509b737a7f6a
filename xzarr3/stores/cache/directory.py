"""The part of :class:`~xzarr3.stores.CacheStore` that keeps values in a directory, for many processes.

All files are in a folder named ``xzarr3-cache-1``, which belongs to one user. A file name is a hash of the
store's identity and the key, followed by the part. A file contains, with all numbers in little-endian order:

* the bytes ``xz3cach2`` and a CRC-32 of everything that follows, 4 bytes;
* the lengths of the key and of the version, 4 bytes each, and the size of the whole value or -1, 8 bytes;
* the time at which the value was certainly current, in seconds since 1970, as a float of 8 bytes;
* the key, the version as a Python literal, and the kept bytes.

A file is written as ``t-new`` and gets its name once it is complete. Its content does not change afterwards.
A process that adds a file holds the lock of the file ``ledger`` and first adds the size to the total there.
Removed or replaced files remain in that total until it exceeds the limit; then all files are counted again.
The files therefore never take more than the limit. A writer to the store holds the lock of the key's stripe
and leaves a new random number in it. By that number a reader sees that the value it has read may be outdated.
A killed process holds no lock.

No reader waits long for a lock: it rather does not keep what it has read. A writer waits up to half a minute.

Why not :mod:`diskcache`: it unpickles what it finds in its directory, has no checksums, and would be one more
dependency. The caches of fsspec keep whole files, without checksums.
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
from collections.abc import Collection, Iterator

from isal import isal_zlib

from xzarr3._types import Buffer
from xzarr3.errors import ArgumentTypeError, StoreError, StorePermissionError, shorten
from xzarr3.stores.cache.memory import HEAD, WHOLE, CachedValues, Entry, Part
from xzarr3.stores.local import platform
from xzarr3.stores.local.platform import Folder
from xzarr3.stores.sharing import is_plain

FOLDER = "xzarr3-cache-1"
"""The folder with all files of a cache."""

_MAGIC = b"xz3cach2"
_SUMMED_FROM = len(_MAGIC) + 4
_FIELDS = struct.Struct("<IIqd")
_START = _SUMMED_FROM + _FIELDS.size
_COUNT = struct.Struct("<Q")
_BLOCK = 4096  # Bytes; the size of a file on disk is a multiple of it.
_LOCKS = [f"l-{at:02}" for at in range(64)]
_TOUCHED = 10**9  # Nanoseconds after which the use of a file is recorded again.
_PAUSE = 0.0005  # Seconds
_PATIENCE = 0.003  # Seconds that a reader waits for the lock of a stripe.
_LEDGER_PATIENCE = 0.1  # Seconds that a reader waits for the lock of the ledger.
_QUEUE = 1.0  # Seconds that a thread waits for other threads that use the ledger.
_DEADLINE = 30.0  # Seconds that a writer waits.
_SPARE = 10  # One part in this many of the limit is freed in addition when room is made.
_FLAGS = platform.NO_FOLLOW | getattr(os, "O_NONBLOCK", 0)
_TEMPORARY, _LEDGER = "t-new", "ledger"
_IS_VALUE = re.compile(r"v-[0-9a-f]{40}(-[0-9a-z-]+)?", re.ASCII)


class DirectoryKept(CachedValues):
    """Values in a directory. The least recently used values make room for new ones.

    Parameters
    ----------
    path : str
    max_bytes : int
        Limit on the size of all files, including those of other processes.
    identity : object
        The identity of the store.
    """

    def __init__(self, path: str, max_bytes: int, identity: object) -> None:
        self.path = path
        self._hash = hashlib.blake2b(repr(identity).encode("utf-8", "surrogatepass"), digest_size=20)
        self._files: set[int] = set()
        super().__init__(max_bytes)
        self._open()

    def reset(self) -> None:
        """Close inherited lock files: a lock lasts while any process has its descriptor open."""
        super().reset()
        self._turn = threading.Lock()
        for descriptor in self._files:
            os.close(descriptor)
        self._files = set()

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
                f"cannot keep a cache in '{folder}': {error.strerror or error}; give a directory that this "
                "user may write, not a link"
            ) from error
        info = os.stat(opened)
        if not platform.is_own(info):
            platform.close_folder(opened)
            raise StorePermissionError(
                f"cannot keep a cache in '{folder}', which belongs to user {info.st_uid} with mode "
                f"{stat.S_IMODE(info.st_mode):#o}; give a directory of this user with mode 0o700"
            )
        self._folder: Folder = opened
        self._closing = weakref.finalize(self, platform.close_folder, opened)

    @contextlib.contextmanager
    def _locked(self, name: str, patience: float, *, shared: bool = False) -> Iterator[int]:
        """Create a file if needed and lock it; raises BlockingIOError if another process holds the lock."""
        flags = os.O_RDWR | os.O_CREAT | _FLAGS
        try:
            descriptor = platform.open_at(self._folder, name, flags, 0o600)
        except FileNotFoundError:  # Another process has removed the folder.
            self._closing()
            self._open()
            descriptor = platform.open_at(self._folder, name, flags, 0o600)
        files = self._files
        files.add(descriptor)
        try:
            end, pause = time.monotonic() + patience, _PAUSE
            while not platform.lock_file(descriptor, shared=shared):
                if time.monotonic() >= end:
                    reason = f"another process has held a lock for {patience:g} s"
                    raise BlockingIOError(errno.EAGAIN, reason, name)
                time.sleep(pause)
                pause = min(1.2 * pause, 0.01)
            yield descriptor
        finally:
            if files is self._files:  # A child forked meanwhile has closed it already.
                files.discard(descriptor)
                platform.unlock_file(descriptor)
                os.close(descriptor)

    def _name(self, key: str, part: Part) -> str:
        named = self._hash.copy()
        named.update(f"\0{key}".encode("utf-8", "surrogatepass"))
        suffix = part if isinstance(part, str) else f"{part[0]}-{'' if part[1] is None else part[1]}"
        return f"v-{named.hexdigest()}-{suffix}"

    def _stripe(self, key: str) -> str:
        return _LOCKS[int(self._name(key, WHOLE)[2:4], 16) % len(_LOCKS)]

    def _read(self, name: str, length: int | None = None) -> tuple[bytes, int]:
        """The beginning of a file and its time of use; empty if the file cannot be read or is not regular."""
        try:
            descriptor = platform.open_at(self._folder, name, os.O_RDONLY | _FLAGS)
        except OSError:
            return b"", 0
        try:
            info = os.fstat(descriptor)
            size = info.st_size if length is None else min(info.st_size, length)
            is_file = stat.S_ISREG(info.st_mode)
            return platform.read_at(descriptor, size, 0) if is_file else b"", info.st_mtime_ns
        except OSError:
            return b"", 0
        finally:
            os.close(descriptor)

    def find(self, key: str, part: Part) -> Entry | None:
        """The kept entry of any age, if its file is intact."""
        name = self._name(key, part)
        data, used = self._read(name)
        if data and time.time_ns() - used > _TOUCHED:
            with contextlib.suppress(OSError):
                platform.touch_at(self._folder, name)
        return _entry(data, key) if data else None

    def ticket(self, key: str) -> object | None:
        """Take a ticket before reading a value; None if the value is being written and cannot be kept."""
        with contextlib.suppress(OSError), self._locked(self._stripe(key), _PATIENCE) as stripe:
            return platform.pread(stripe, 16, 0)
        return None

    def keep(self, key: str, part: Part, entry: Entry, ticket: object | None) -> None:
        """Keep an entry, unless it is too large or the ticket is no longer valid."""
        pieces = _pieces(key, entry)
        size = _taken(sum(map(len, pieces)))
        if size > self.max_bytes or ticket is None or not self._turn.acquire(timeout=_QUEUE):
            return
        try:
            # The disk may be full or the folder gone: a value that is not kept is read again.
            with contextlib.suppress(OSError), self._locked(_LEDGER, _LEDGER_PATIENCE) as ledger:
                data = platform.pread(ledger, _COUNT.size, 0)
                total = _COUNT.unpack(data)[0] if len(data) == _COUNT.size else self.max_bytes
                if total + size > self.max_bytes:
                    total = self._evict(self.max_bytes - size)
                _put(ledger, _COUNT.pack(total + size))
                try:
                    self._add(self._name(key, part), pieces, self._stripe(key), ticket)
                finally:
                    self._remove(_TEMPORARY)  # Usually renamed already.
        finally:
            self._turn.release()

    def _add(self, name: str, pieces: list[Buffer], stripe: str, ticket: object) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _FLAGS
        descriptor = platform.open_at(self._folder, _TEMPORARY, flags, 0o600)
        try:
            platform.write_all(descriptor, [memoryview(piece).cast("B") for piece in pieces])
        finally:
            os.close(descriptor)
        with self._locked(stripe, _PATIENCE) as locked:
            if platform.pread(locked, 16, 0) == ticket:
                platform.replace_at(self._folder, _TEMPORARY, name)

    def _values(self) -> Iterator[tuple[int, int, str]]:
        """Time of use, size on disk and name of each value file."""
        for entry in platform.scan_at(self._folder):
            if _IS_VALUE.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError):
                    info = entry.stat(follow_symlinks=False)
                    yield info.st_mtime_ns, _taken(info.st_size), entry.name

    def _evict(self, room: int) -> int:
        """Count the files and remove those beyond ``room``; returns the size of the remaining ones."""
        files = sorted(self._values(), reverse=True)
        total = sum(size for _, size, _ in files)
        while files and total > room - min(room, self.max_bytes // _SPARE):
            _, size, name = files.pop()
            self._remove(name)
            total -= size
        return total

    def _remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            platform.unlink_at(self._folder, name)

    @property
    def size(self) -> int:
        """Size of all files in bytes."""
        try:
            with contextlib.ExitStack() as locks:
                with contextlib.suppress(BlockingIOError):  # The holder may add a file meanwhile.
                    locks.enter_context(self._locked(_LEDGER, _QUEUE))
                return sum(size for _, size, _ in self._values())
        except OSError as error:
            raise self._failed("count values of", error) from error

    def _failed(self, what: str, error: OSError) -> StoreError:
        return StoreError(
            f"cannot {what} the cache in '{self.path}': {error.strerror or error}; give a directory that "
            "can be written and locked"
        )

    @contextlib.contextmanager
    def writing(self, keys: Collection[str], prefix: str | None = None) -> Iterator[None]:
        """Forget values while they are written; see :meth:`CachedValues.writing`."""
        with contextlib.ExitStack() as locks:
            try:
                for name in {self._stripe(key) for key in keys} if prefix is None else _LOCKS:
                    # The lock is shared: other writers may write at the same time.
                    stripe = locks.enter_context(self._locked(name, _DEADLINE, shared=True))
                    _put(stripe, os.urandom(16))
                for name in [self._name(key, part) for key in keys for part in (WHOLE, HEAD)]:
                    self._remove(name)
                if prefix is not None:
                    wanted = prefix.encode("utf-8", "surrogatepass")
                    for _, _, name in self._values():
                        data, _ = self._read(name, _START + len(wanted))
                        if not data or data[_START:] == wanted:
                            self._remove(name)
            except OSError as error:
                raise self._failed("remove values from", error) from error
            yield


def _put(descriptor: int, data: bytes) -> None:
    """Write ``data`` at the start of a file."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, data)


def _taken(length: int) -> int:
    return -(-max(length, 1) // _BLOCK) * _BLOCK


def _pieces(key: str, entry: Entry) -> list[Buffer]:
    name = key.encode("utf-8", "surrogatepass")
    version = repr(entry.version if is_plain(entry.version) else None).encode()
    size = -1 if entry.size is None else entry.size
    summed = _FIELDS.pack(len(name), len(version), size, entry.checked) + name + version
    checksum = isal_zlib.crc32(entry.value, isal_zlib.crc32(summed))
    return [_MAGIC + checksum.to_bytes(4, "little") + summed, entry.value]


def _entry(data: bytes, key: str) -> Entry | None:
    """The entry in a file; None if the file is not intact."""
    view = memoryview(data)
    if len(data) < _START or view[:_SUMMED_FROM] != _MAGIC + isal_zlib.crc32(view[_SUMMED_FROM:]).to_bytes(
        4, "little"
    ):
        return None
    key_length, version_length, size, checked = _FIELDS.unpack_from(data, _SUMMED_FROM)
    end = _START + key_length
    if data[_START:end] != key.encode("utf-8", "surrogatepass"):
        return None
    version = _version(data[end : end + version_length])
    return Entry(view[end + version_length :], version, None if size < 0 else size, checked)


def _version(text: bytes) -> object | None:
    if text != b"None":
        with contextlib.suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            found: object = ast.literal_eval(text.decode(errors="replace"))
            return found
    return None


def check_place(directory: object) -> str:
    """The absolute path of the directory of a cache."""
    if not isinstance(directory, (str, os.PathLike)):
        raise ArgumentTypeError(f"not a directory of a cache: {shorten(directory)}; accepted: a path or None")
    return os.path.abspath(os.path.expanduser(os.fspath(directory)))
