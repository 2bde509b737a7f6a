"""Where the bytes of a zip come from and go to: files of this machine, and values of other stores.

A zip that is written grows in a file beside its place (or, as a value of another store, in a directory for
temporary files); it gets there when it is complete, in one step. Who adds to one adds to a copy of it. What
cannot get to its place in the end stays in a file that can be seen, named ``x.zip.unfinished-0``.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import mmap
import os
import stat
import tempfile
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import NoReturn, Protocol

from xzarr3._types import Buffer
from xzarr3.errors import (
    ChangedError,
    ConflictError,
    NodeExistsError,
    NodeNotFoundError,
    StoreCapabilityError,
    StoreError,
    StorePermissionError,
    Xzarr3Error,
    shorten,
)
from xzarr3.stores import platform
from xzarr3.stores.base import Store, ValueReader
from xzarr3.stores.zip_format import (
    TAIL,
    Directory,
    Member,
    digest_of,
    directory_of,
    find_end,
    read_directory,
)

_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_READ = os.O_RDONLY | _FLAGS | getattr(os, "O_NONBLOCK", 0)
_WRITE = os.O_RDWR | _FLAGS | getattr(os, "O_NOFOLLOW", 0)
_ATTEMPTS = 50
_BLOCK = 2**22
_NO_LOCKS = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK, errno.EINVAL})

TEMPORARY = ".xzarr3-zip-"
"""What the names of zips that are being written begin with."""
_LOCK = ".lock"  # How the file ends that is locked where it is another one.


def fail(doing: str, where: str, error: OSError | OverflowError) -> NoReturn:
    """Raise our error for one of the system."""
    text = f"cannot {doing} {where}: {getattr(error, 'strerror', None) or error}"
    if isinstance(error, PermissionError):
        raise StorePermissionError(f"{text}; accepted: a file this user may {doing}") from error
    raise StoreError(text) from error


class Source(Protocol):
    """Bytes at places, for many threads at once."""

    def read(self, start: int, length: int) -> Buffer:
        """Fewer bytes where they end."""

    def read_ranges(self, starts: Sequence[int], lengths: Sequence[int]) -> list[Buffer]:
        """Several parts."""


class LocalFile:
    """An open file; it is closed when nobody needs it any more.

    Parameters
    ----------
    descriptor : int
    where : str
        Its name in messages.
    path : str
        Its place.
    """

    def __init__(self, descriptor: int, where: str, path: str) -> None:
        self.descriptor = descriptor
        self.where = where
        self.path = path
        self.is_temporary = False
        self._close = os.close
        # Where a file that is open cannot be moved, it is closed for that while nobody reads it.
        self._turn = contextlib.nullcontext() if platform.POSIX else threading.RLock()

    def __del__(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            self._close(descriptor)
        if self.is_temporary:
            with contextlib.suppress(OSError):  # Somebody else has removed it.
                platform.unlink(self.path)

    def move(self, target: str) -> None:
        """Give it another place, where there may be one, in one step."""
        if platform.POSIX:
            os.replace(self.path, target)
            return
        with self._turn:
            descriptor, self.descriptor = self.descriptor, -1
            os.close(descriptor)
            try:
                platform.replace(self.path, target)
                self.path = target
            finally:
                self.descriptor = os.open(self.path, _WRITE)

    def remove(self) -> None:
        """Remove it, at once or when nobody reads it any more."""
        if platform.POSIX:
            os.unlink(self.path)
        else:
            self.is_temporary = True

    def status(self) -> os.stat_result:
        """What the system knows of it."""
        return os.fstat(self.descriptor)

    def read(self, start: int, length: int) -> bytes:
        try:
            with self._turn:
                return platform.read_at(self.descriptor, length, start)
        except (OSError, OverflowError) as error:
            fail("read", self.where, error)

    def read_ranges(self, starts: Sequence[int], lengths: Sequence[int]) -> list[Buffer]:
        return [self.read(start, length) for start, length in zip(starts, lengths, strict=True)]

    def read_into(self, start: int, out: memoryview) -> int:
        """Read into memory; returns the number of bytes, fewer where they end."""
        try:
            with self._turn:
                return platform.read_into_at(self.descriptor, out, start)
        except (OSError, OverflowError) as error:
            fail("read", self.where, error)

    def write(self, start: int, pieces: Iterable[Buffer]) -> int:
        """Write pieces one after the other; returns where they end."""
        for piece in pieces:
            rest = memoryview(piece)
            while rest:  # More than the system writes at once, or a disk that is filling up.
                with self._turn:
                    count = platform.pwrite(self.descriptor, rest, start)
                rest = rest[count:]
                start += count
        return start


class ValueFile:
    """A value of another store, all parts from the version that was found first.

    Parameters
    ----------
    store : Store
    key : str
    where : str
        Its name in messages.
    """

    def __init__(self, store: Store, key: str, where: str) -> None:
        self._store = store
        self._key = key
        self._where = where
        reader = store.reader().open(key, (-TAIL, TAIL))
        if reader is None:
            raise NodeNotFoundError(f"there is no {where}; accepted: the key of a zip, or another mode")
        self.tail = reader.read(-TAIL, TAIL)
        self.size = reader.size
        self.version = reader.version
        # Without a version to ask for, only what is open is sure to stay as it is.
        self._reader = reader if self.version is None else None
        if self._reader is None:
            reader.close()

    def __del__(self) -> None:
        reader: ValueReader | None = getattr(self, "_reader", None)
        if reader is not None:
            reader.close()

    @contextlib.contextmanager
    def _opened(self, start: int, length: int) -> Iterator[ValueReader]:
        if self._reader is not None:
            yield self._reader
            return
        reader = self._store.reader().open(self._key, (start, length), self.version)
        if reader is None:
            raise ChangedError(f"{self._where} has been erased since it was opened")
        with reader:
            if reader.version != self.version:
                raise ChangedError(
                    f"{self._where} has been replaced since it was opened; accepted: opening it again"
                )
            yield reader

    def read(self, start: int, length: int) -> Buffer:
        with self._opened(start, length) as reader:
            return reader.read(start, length)

    def read_ranges(self, starts: Sequence[int], lengths: Sequence[int]) -> list[Buffer]:
        if not starts:
            return []
        with self._opened(starts[0], lengths[0]) as reader:
            return reader.read_ranges(starts, lengths)


def open_value(store: Store, key: str, where: str) -> tuple[ValueFile, Directory]:
    """A zip that is a value of another store."""
    file = ValueFile(store, key, where)
    return file, read_directory(file.read, file.tail, file.size, where)


def open_path(path: str, where: str) -> tuple[LocalFile, Directory]:
    """A zip that is a file."""
    try:
        file = _opened(path, where)
        size = file.status().st_size
        start = max(size - TAIL, 0)
        return file, read_directory(file.read, file.read(start, size - start), size, where)
    except OSError as error:
        if isinstance(error, Xzarr3Error):
            raise
        fail("read", where, error)


def _opened(path: str, where: str) -> LocalFile:
    try:
        file = LocalFile(os.open(path, _READ), where, path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NodeNotFoundError(f"there is no {where}; accepted: a zip that is there, or mode 'w'") from error
    if not stat.S_ISREG(file.status().st_mode):
        raise StoreError(f"{where} is not a file; accepted: a zip file")
    return file


# Writing


class Draft:
    """A zip that is being written, in a file of its own, which begins with what the zip held before.

    Parameters
    ----------
    file : LocalFile
    where : str
        The name of the zip, for messages.
    """

    def __init__(self, file: LocalFile, where: str) -> None:
        self.file = file
        self.old: Directory | None = None
        """What the zip held before."""
        self.end = 0
        """Where the next value will be."""
        self.where = where
        self.pid = os.getpid()
        self.lineage = uuid.uuid4().hex

    def _take(self, source: Source, old: Directory) -> None:
        """Begin with the values of another zip."""
        end = old.end
        if end.shift:
            raise StoreError(
                f"cannot add to {self.where}: {end.shift} bytes were put in front of it; accepted: mode 'r', "
                "or a zip without them"
            )
        for member in itertools.chain(old.members.values(), old.others):
            # Its entry is written anew, and might then say something else.
            problem = member.problem
            if member.is_respelled or "\0" in member.filename:
                problem = "its name is not in UTF-8"
            if problem is not None:
                raise StoreError(
                    f"cannot add to {self.where}: member {shorten(member.filename)}: {problem}; accepted: "
                    "mode 'r', or a zip without such members, as ZipStore.pack makes of those it can read"
                )
        for at in range(0, end.directory, _BLOCK):
            length = min(_BLOCK, end.directory - at)
            block = source.read(at, length)
            if len(block) != length:
                raise StoreError(f"cannot copy {self.where}: it ends before its end")
            self.file.write(at, [block])
        self.old, self.end = old, end.directory

    def append(self, member: Member, contents: Sequence[memoryview]) -> None:
        """Write a value behind the others; one thread at a time may do so."""
        member.header_offset = self.end
        head = member.FileHeader()
        try:
            # Where that fails, the next one is written to the same place.
            self.end = self.file.write(self.end, [head, *contents])
        except (OSError, OverflowError) as error:
            fail("write", f"key '{member.filename}' of {self.where}", error)
        member.start, member.limit = member.header_offset + len(head), self.end

    def commit(self, members: Iterable[Member]) -> bytes:
        """Write the directory and bring the zip to its place; returns the digest of the directory.

        Raises
        ------
        StoreError
            If that fails. What is at the place is then what was there before, and it can be tried again.
        """
        try:
            total, digest = self._complete(members)
            self._place(total)
        except OSError as error:
            if isinstance(error, Xzarr3Error):
                raise
            fail("write", self.where, error)
        return digest

    def _complete(self, members: Iterable[Member]) -> tuple[int, bytes]:
        """Write the directory; returns the size of the zip and the digest of the directory."""
        others, comment = ([], b"") if self.old is None else (self.old.others, self.old.end.comment)
        listed = sorted(itertools.chain(members, others), key=lambda member: member.header_offset)
        directory = directory_of(listed, self.end, comment)
        total = self.file.write(self.end, [directory])
        os.ftruncate(self.file.descriptor, total)
        end = find_end(directory[-TAIL:], total, self.where)
        return total, digest_of(memoryview(directory)[: end.directory_size])

    def keep(self, members: Iterable[Member]) -> str:
        """Have what was written outlive :meth:`release`; says where it is."""
        try:
            self._complete(members)
            what = "what was written is in"
        except OSError:
            what = "the values that were written, without a directory (see 'zip -FF'), are in"
        return f"{what} '{self._kept()}'"

    def _changed(self) -> str:
        return (
            f"cannot write {self.where}: somebody else changed it; what was written is in "
            f"'{self.file.path}' until this is closed; accepted: one writer at a time"
        )

    def _place(self, total: int) -> None:
        raise NotImplementedError

    def _kept(self) -> str:
        """Have the file outlive the release; returns where it is."""
        raise NotImplementedError

    def release(self) -> None:
        """Remove the file, if it is still there, and let others write."""
        raise NotImplementedError

    def forked(self) -> None:
        """Within a forked child: hold nothing that keeps others from writing."""


class PathDraft(Draft):
    """A zip that will be a file.

    Parameters
    ----------
    path : str
        Its place, with no link in it.
    mode : str
        ``r+``, ``a``, ``w`` or ``x``.
    where : str
    fsync : bool
        Whether to wait until all is on the disk.
    """

    def __init__(self, path: str, mode: str, where: str, fsync: bool) -> None:
        self._target = path
        self._fsync = fsync
        temporary = temporary_path(path)
        self._lock = _locked(temporary, where)
        try:
            super().__init__(LocalFile(os.open(temporary, _WRITE), where, temporary), where)
            self._before = None if mode == "w" else self._begin(mode)
            self._replaces = mode == "w"
        except BaseException:
            self.release()
            raise

    def _begin(self, mode: str) -> tuple[object, ...] | None:
        """Take over what is at the place; returns its state."""
        try:
            source, old = open_path(self._target, self.where)
        except NodeNotFoundError:
            if mode == "r+":
                raise
            return None
        if mode == "x":
            raise NodeExistsError(f"there is {self.where} already; accepted: mode 'a' or 'w'")
        if not os.access(self._target, os.W_OK):
            fail("write", self.where, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
        try:
            self._take(source, old)
        except OSError as error:
            if isinstance(error, Xzarr3Error):
                raise
            fail("write", self.where, error)
        return _state(source.status())

    def _place(self, total: int) -> None:
        if not self._has_name():
            raise StoreError(f"cannot write {self.where}: somebody removed '{self.file.path}'")
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(self._target)
            if not self._replaces and self._before is None:
                raise NodeExistsError(self._changed())
            if not self._replaces and _state(status) != self._before:
                raise ConflictError(self._changed())
            platform.copy_mode(self.file.descriptor, status.st_mode)
        if self._fsync:
            platform.sync(self.file.descriptor)
        self.file.move(self._target)
        if self._fsync:
            platform.sync_folder(os.path.dirname(self._target))

    def _has_name(self) -> bool:
        """Whether the file is still where it was made."""
        with contextlib.suppress(FileNotFoundError):
            return os.path.samestat(os.lstat(self.file.path), self.file.status())
        return False

    def _kept(self) -> str:
        places = (f"{self._target}.unfinished-{number}" for number in itertools.count())
        place = next(place for place in places if not os.path.lexists(place))
        if self._has_name():
            self.file.move(place)
        else:  # Somebody has removed it.
            copy = LocalFile(os.open(place, _WRITE | os.O_CREAT | os.O_EXCL, 0o666), self.where, place)
            for at in range(0, self.file.status().st_size, _BLOCK):
                copy.write(at, [self.file.read(at, _BLOCK)])
        return place

    def release(self) -> None:
        lock, self._lock = self._lock, -1
        if lock < 0:
            return
        path = temporary_path(self._target)
        file: LocalFile | None = getattr(self, "file", None)  # None if it could not be opened.
        with contextlib.suppress(OSError):  # It has got its place, or is nobody's.
            if os.path.samestat(os.lstat(path), os.fstat(lock) if file is None else file.status()):
                os.unlink(path) if file is None else file.remove()
        with contextlib.suppress(OSError):  # Closing it frees it as well, unless a child has it.
            platform.unlock_file(lock)
        os.close(lock)
        if not platform.POSIX:
            with contextlib.suppress(OSError):  # Somebody waits for it, and removes it later.
                os.unlink(f"{path}{_LOCK}")

    def forked(self) -> None:
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)


def _state(info: os.stat_result) -> tuple[object, ...]:
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns


def temporary_path(path: str) -> str:
    """Where a zip is written before it gets its place; always the same, so that only one is.

    It is no temporary file of a :class:`LocalStore`, which would remove it after an hour without a value.
    """
    folder, name = os.path.split(path)
    if len(os.fsencode(name)) > 200:
        name = hashlib.blake2b(os.fsencode(name), digest_size=16).hexdigest()
    return os.path.join(folder, f"{TEMPORARY}{name}")


def _locked(path: str, where: str) -> int:
    """Make an empty file and lock it; returns the descriptor that holds the lock.

    Where what is locked cannot be moved, it is another file, beside it.
    """
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        for _ in range(_ATTEMPTS):
            lock = os.open(path if platform.POSIX else f"{path}{_LOCK}", _WRITE | os.O_CREAT, 0o666)
            try:
                if not platform.lock_file(lock):
                    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
                if not platform.POSIX:
                    os.close(os.open(path, _WRITE | os.O_CREAT | os.O_TRUNC, 0o666))
                    lock, kept = -1, lock
                    return kept
                info = os.fstat(lock)
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(info, os.lstat(path)):
                        if not info.st_size and info.st_nlink == 1:
                            lock, kept = -1, lock
                            return kept
                        os.unlink(path)  # Left by a writer that was killed.
            finally:
                if lock >= 0:
                    os.close(lock)
    except BlockingIOError as error:
        raise StoreError(
            f"cannot write {where}: another ZipStore is writing it, in this process or in another; accepted: "
            "one writer at a time, the threads of one process, or a directory that ZipStore.pack makes a zip "
            "of"
        ) from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            fail("write", where, error)
        raise StoreError(
            f"cannot write {where}: its file system has no locks; accepted: one that has, or a directory "
            "that ZipStore.pack makes a zip of"
        ) from error
    raise StoreError(f"cannot write {where}: others keep writing it; accepted: one writer at a time")


class _Bytes:
    """A value that is in memory."""

    def __init__(self, value: Buffer) -> None:
        self._value = memoryview(value)

    def read(self, start: int, length: int) -> Buffer:
        return self._value[start : start + length]

    def read_ranges(self, starts: Sequence[int], lengths: Sequence[int]) -> list[Buffer]:
        return [self.read(start, length) for start, length in zip(starts, lengths, strict=True)]


class ValueDraft(Draft):
    """A zip that will be a value of another store.

    Parameters
    ----------
    store : Store
    key : str
    mode : str
        ``r+``, ``a``, ``w`` or ``x``.
    where : str
    """

    def __init__(self, store: Store, key: str, mode: str, where: str) -> None:
        self._is_kept = False
        self._store = store
        self._key = key
        self._name = store.identity, key, os.getpid()
        store._check_writable()
        if _written.setdefault(self._name, self) is not self:
            raise StoreError(
                f"cannot write {where}: another ZipStore of this process is writing it; accepted: one "
                "writer at a time"
            )
        try:
            value, self._version = (None, None) if mode == "w" else store.get_versioned(key)
            self._replaces = mode == "w"
            if value is None and mode == "r+":
                raise NodeNotFoundError(f"there is no {where}; accepted: the key of a zip, or mode 'a'")
            if value is not None and mode == "x":
                raise NodeExistsError(f"there is {where} already; accepted: mode 'a' or 'w'")
            descriptor, path = tempfile.mkstemp(prefix="xzarr3-", suffix=".zip")
            super().__init__(LocalFile(descriptor, where, path), where)
            if value is not None:
                source = _Bytes(value)
                self._take(source, read_directory(source.read, value[-TAIL:], len(value), where))
        except BaseException as error:
            self.release()
            if isinstance(error, OSError) and not isinstance(error, Xzarr3Error):
                fail("write", f"a temporary file for {where}", error)
            raise

    def _place(self, total: int) -> None:
        value = memoryview(mmap.mmap(self.file.descriptor, total, access=mmap.ACCESS_READ))
        if self._replaces:
            self._store.set(self._key, value)
            return
        try:
            done = self._store.compare_and_set(self._key, self._version, value)
        except StoreCapabilityError:
            done = self._store.get_versioned(self._key)[1] == self._version
            if done:
                self._store.set(self._key, value)
        if not done:
            raise ConflictError(self._changed())

    def _kept(self) -> str:
        self._is_kept = True
        return self.file.path

    def release(self) -> None:
        _written.pop(self._name, None)
        if not self._is_kept:
            with contextlib.suppress(OSError, AttributeError):  # There is none, or it is nobody's.
                self.file.remove()


_written: dict[object, ValueDraft] = {}
"""The values that this process is writing; the identity of the process keeps a forked child from waiting."""


def check_path(path: str) -> str:
    """Return ``path`` if the system can name it."""
    try:
        known = "\0" not in path and os.fsdecode(os.fsencode(path)) == path
    except UnicodeError:
        known = False
    if not known or not os.path.basename(path):
        raise StoreError(f"no zip at {shorten(path)}; accepted: a path that the system can name")
    return path
