"""Where the bytes of a zip come from and go to: files of this machine, and values of other stores.

A zip that is written grows in a file beside its place (or, as a value of another store, in a directory for
temporary files); it gets there when it is complete, in one step. Who adds to one adds to a clone or a copy of
it. What cannot get to its place in the end stays in a file that can be seen, named ``x.zip.unfinished-0``.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import mmap
import os
import stat
import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
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
    shorten,
)
from xzarr3.stores.base import Store, ValueReader
from xzarr3.stores.zip_format import (
    STORED,
    TAIL,
    Directory,
    Member,
    central_entry,
    crc32,
    end_records,
    entries,
    local_header,
    read_directory,
)

_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_READ = os.O_RDONLY | _FLAGS | getattr(os, "O_NONBLOCK", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_WRITE = os.O_RDWR | _FLAGS | _NO_LINK
_ATTEMPTS = 50
_MOST_PIECES = 512  # Fewer than any system writes with one call.
_BLOCK = 2**22
_CLONE = 0x40049409  # FICLONE of Linux
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
_NO_LOCKS = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK, errno.EINVAL})

TEMPORARY = ".xzarr3-zip-"
"""What the names of zips that are being written begin with."""


def fail(doing: str, where: str, error: OSError) -> NoReturn:
    """Raise our error for one of the system."""
    text = f"cannot {doing} {where}: {error.strerror or error}"
    if isinstance(error, PermissionError):
        raise StorePermissionError(f"{text}; accepted: a file this user may {doing}") from error
    raise StoreError(text) from error


class Source(Protocol):
    """Bytes at places, for many threads at once."""

    def read(self, start: int, length: int) -> Buffer:
        """Fewer bytes where they end."""

    def read_ranges(self, starts: Sequence[int], lengths: Sequence[int]) -> list[Buffer]:
        """Several parts."""

    def read_into(self, start: int, head: bytearray, out: memoryview) -> int:
        """Read into ``head`` and then into ``out``; returns how many bytes."""


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
        self._close = os.close

    def __del__(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            self._close(descriptor)

    def status(self) -> os.stat_result:
        """What the system knows of it."""
        return os.fstat(self.descriptor)

    def read(self, start: int, length: int) -> bytes:
        try:
            value = os.pread(self.descriptor, length, start)
            while len(value) < length:
                more = os.pread(self.descriptor, length - len(value), start + len(value))
                if not more:
                    break
                value += more
        except (OSError, OverflowError) as error:
            self._fail(error)
        return value

    def read_ranges(self, starts: Sequence[int], lengths: Sequence[int]) -> list[Buffer]:
        return [self.read(start, length) for start, length in zip(starts, lengths, strict=True)]

    def read_into(self, start: int, head: bytearray, out: memoryview) -> int:
        try:
            count = os.preadv(self.descriptor, [head, out] if head else [out], start)
            while len(head) <= count < len(head) + len(out):
                more = os.preadv(self.descriptor, [out[count - len(head) :]], start + count)
                if not more:
                    break
                count += more
        except (OSError, OverflowError) as error:
            self._fail(error)
        return count

    def _fail(self, error: OSError | OverflowError) -> NoReturn:
        fail("read", self.where, error if isinstance(error, OSError) else OSError(str(error)))


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
        reader = store.open_part(key, -TAIL, TAIL)
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
        reader = self._store.open_part(self._key, start, length, self.version)
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

    def read_into(self, start: int, head: bytearray, out: memoryview) -> int:
        if not head:
            with self._opened(start, len(out)) as reader:
                return reader.read_into(start, out)
        found = memoryview(self.read(start, len(head) + len(out)))
        head[: len(found)] = found[: len(head)]
        rest = found[len(head) :]
        out[: len(rest)] = rest
        return len(found)


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
        if isinstance(error, StoreError | NodeNotFoundError):
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


def write_at(descriptor: int, at: int, pieces: Sequence[memoryview]) -> None:
    """Write pieces one after the other."""
    for first in range(0, len(pieces), _MOST_PIECES):
        group = pieces[first : first + _MOST_PIECES]
        done = os.pwritev(descriptor, group, at)
        at += done
        for piece in group:
            rest = piece[min(done, len(piece)) :]
            done -= len(piece) - len(rest)
            while rest:  # More than the system writes at once, or a disk that is filling up.
                count = os.pwrite(descriptor, rest, at)
                rest = rest[count:]
                at += count


def _copy(source: int, target: int, size: int) -> None:
    """The first ``size`` bytes of a file into an empty one."""
    import fcntl

    try:
        fcntl.ioctl(target, _CLONE, source)
    except OSError:  # Few file systems can.
        start = _next_data(source, 0, size)
        while start < size:
            block = os.pread(source, min(_BLOCK, size - start), start)
            if not block:
                raise OSError(errno.EIO, "the file ends before its end") from None
            write_at(target, start, [memoryview(block)])
            start = _next_data(source, start + len(block), size)
        if os.fstat(source).st_size < size:
            raise OSError(errno.EIO, "the file ends before its end") from None
    os.ftruncate(target, size)


def _next_data(descriptor: int, start: int, size: int) -> int:
    """Where a file goes on after a hole."""
    try:
        return os.lseek(descriptor, start, os.SEEK_DATA)
    except OSError as error:
        return size if error.errno == errno.ENXIO else start


def _sync_folder(path: str) -> None:
    descriptor = os.open(os.path.dirname(path), os.O_RDONLY | _FLAGS)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Draft:
    """A zip that is being written: what is new lies in a file of its own, at the places it will have.

    Parameters
    ----------
    file : LocalFile
    path : str
        Where that file is.
    where : str
        The name of the zip, for messages.
    fsync : bool
        Whether to wait until all is on the disk.
    """

    def __init__(self, file: LocalFile, path: str, where: str, fsync: bool) -> None:
        self.file = file
        self.path = path
        self.old: Directory | None = None
        """What the zip held before."""
        self.old_entries = b""
        self.end = 0
        self.where = where
        self.fsync = fsync
        self.pid = os.getpid()
        self.lineage = uuid.uuid4().hex
        self._space = threading.Lock()

    def _take(self, old: Directory, entries: bytes) -> None:
        """Add to a zip, whose values the file is to begin with."""
        end = old.end
        if end.shift:
            raise StoreError(
                f"cannot add to {self.where}: {end.shift} bytes were put in front of it; accepted: mode 'r', "
                "or a zip without them"
            )
        self.old, self.old_entries, self.end = old, entries, end.directory

    def append(self, name: bytes, contents: Sequence[memoryview], key: str) -> Member:
        """Write a value; many threads may do so."""
        size, crc = 0, 0
        for content in contents:
            size += content.nbytes
            crc = crc32(content, crc)
        head = local_header(name, crc, size)
        total = len(head) + size
        with self._space:
            at = self.end
            self.end += total
        try:
            write_at(self.file.descriptor, at, [memoryview(head), *contents])
        except (OSError, OverflowError) as error:
            with self._space:
                if self.end == at + total:  # Else others have written behind it, and it stays unused.
                    self.end = at
            fail("write", f"key '{key}' of {self.where}", _as_os_error(error))
        member = Member(at, len(name), STORED, crc, size, size, 1)
        member.start = at + len(head)
        member.limit = at + total
        return member

    def commit(self, members: Mapping[str, Member]) -> bytes:
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
            if isinstance(error, StoreError | NodeExistsError):
                raise
            fail("write", self.where, error)
        return digest

    def _complete(self, members: Mapping[str, Member]) -> tuple[int, bytes]:
        """Write the directory; returns the size of the zip and the digest of the directory."""
        listed = self._entries(members)
        digest = hashlib.blake2b(digest_size=16)
        length = 0
        for entry in listed:
            digest.update(entry)
            length += len(entry)
        comment = b"" if self.old is None else self.old.end.comment
        last = end_records(len(listed), self.end, length, comment)
        total = self.end + length + len(last)
        write_at(self.file.descriptor, self.end, [memoryview(b"".join(listed)), memoryview(last)])
        os.ftruncate(self.file.descriptor, total)
        return total, digest.digest()

    def keep(self, members: Mapping[str, Member]) -> str:
        """Have what was written outlive :meth:`release`; says where it is."""
        try:
            self._complete(members)
            what = "what was written is in"
        except OSError:
            what = "the values that were written, without a directory (see 'zip -FF'), are in"
        return f"{what} '{self._kept()}'"

    def _entries(self, members: Mapping[str, Member]) -> list[bytes]:
        listed = []
        if self.old is not None:
            for name, member, reason, raw in entries([self.old_entries], self.old.end, self.where):
                kept = members.get(name)
                # What is no key, such as a directory, is not ours to remove.
                is_other = reason is not None or name.endswith("/")
                if is_other or (kept is not None and not kept.source and kept.header == member.header):
                    listed.append(raw)
        new = [(member.header, key, member) for key, member in members.items() if member.source]
        listed += [central_entry(key.encode(), member) for _, key, member in sorted(new, key=_place_of)]
        return listed

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


def _place_of(item: tuple[int, str, Member]) -> int:
    return item[0]


def _as_os_error(error: OSError | OverflowError) -> OSError:
    return error if isinstance(error, OSError) else OSError(errno.EFBIG, str(error))


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
    """

    def __init__(self, path: str, mode: str, where: str, fsync: bool) -> None:
        self.target = path
        temporary = temporary_path(path)
        self._lock, descriptor = _locked(temporary, where)
        super().__init__(LocalFile(descriptor, where, temporary), temporary, where, fsync)
        self._before: tuple[object, ...] | None = None
        self._replaces = mode == "w"
        try:
            self._begin(mode)
        except BaseException:
            self.release()
            raise

    def _begin(self, mode: str) -> None:
        if mode == "w":
            return
        try:
            base, old = open_path(self.target, self.where)
        except NodeNotFoundError:
            if mode == "r+":
                raise
            return
        if mode == "x":
            raise NodeExistsError(f"there is {self.where} already; accepted: mode 'a' or 'w'")
        try:
            if not os.access(self.target, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            self._before = _state(base.status())
            self._take(old, base.read(old.end.directory, old.end.directory_size))
            _copy(base.descriptor, self.file.descriptor, self.end)
        except OSError as error:
            if isinstance(error, StoreError):
                raise
            fail("write", self.where, error)

    def _place(self, total: int) -> None:
        if self._before is not None and _state(os.stat(self.target)) != self._before:
            raise ConflictError(
                f"cannot write {self.where}: somebody else changed it; what was written is in '{self.path}' "
                "until this is closed; accepted: one writer at a time"
            )
        if not self._has_name():
            raise StoreError(f"cannot write {self.where}: somebody removed '{self.path}'")
        with contextlib.suppress(FileNotFoundError):
            os.fchmod(self.file.descriptor, stat.S_IMODE(os.stat(self.target).st_mode))
        if self.fsync:
            os.fsync(self.file.descriptor)
        if self._replaces or self._before is not None:
            os.replace(self.path, self.target)
        else:
            self._create()
        if self.fsync:
            _sync_folder(self.target)

    def _has_name(self) -> bool:
        """Whether the file is still where it was made."""
        with contextlib.suppress(FileNotFoundError):
            return os.path.samestat(os.lstat(self.path), self.file.status())
        return False

    def _create(self) -> None:
        """Give the file its name, if no other has it."""
        try:
            os.link(self.path, self.target)
        except FileExistsError as error:
            raise NodeExistsError(
                f"cannot write {self.where}: somebody else has written it; accepted: mode 'a' or 'w'"
            ) from error
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            os.rename(self.path, self.target)

    def _kept(self) -> str:
        number = -1
        while True:
            number += 1
            place = f"{self.target}.unfinished-{number}"
            try:
                if self._has_name():
                    try:
                        os.link(self.path, place)
                    except OSError as error:
                        if error.errno not in _NO_LINKS:
                            raise
                        os.close(os.open(place, _WRITE | os.O_CREAT | os.O_EXCL, 0o600))
                        os.replace(self.path, place)
                else:  # Somebody has removed it.
                    copy = LocalFile(
                        os.open(place, _WRITE | os.O_CREAT | os.O_EXCL, 0o666), self.where, place
                    )
                    _copy(self.file.descriptor, copy.descriptor, self.file.status().st_size)
            except FileExistsError:
                continue
            return place

    def release(self) -> None:
        import fcntl

        if self._lock < 0:
            return
        with contextlib.suppress(OSError):  # It has got its place, or is nobody's.
            if os.path.samestat(os.lstat(self.path), os.fstat(self._lock)):
                os.unlink(self.path)
        lock, self._lock = self._lock, -1
        with contextlib.suppress(OSError):  # Closing it frees it as well, unless a child has it.
            fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)

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


def _locked(path: str, where: str) -> tuple[int, int]:
    """Make a file and lock it: two descriptors, the first of which holds the lock."""
    import fcntl

    for _ in range(_ATTEMPTS):
        try:
            made = True
            lock = os.open(path, _WRITE | os.O_CREAT | os.O_EXCL, 0o666)
        except FileNotFoundError as error:
            try:
                os.makedirs(os.path.dirname(path))
            except FileExistsError:
                continue
            except OSError:
                fail("write", where, error)
            continue
        except FileExistsError:
            made = False
            try:
                lock = os.open(path, _WRITE)
            except FileNotFoundError:
                continue
            except OSError as error:
                fail("write", where, error)
        except OSError as error:
            fail("write", where, error)
        keep = False
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise StoreError(
                    f"cannot write {where}: another ZipStore is writing it, in this process or in another; "
                    "accepted: one writer at a time, the threads of one process, or a directory that "
                    "ZipStore.pack makes a zip of"
                ) from error
            info = os.fstat(lock)
            try:
                is_there = os.path.samestat(info, os.lstat(path))
            except FileNotFoundError:
                is_there = False
            if is_there and made:
                keep = True
                return lock, os.open(path, _WRITE)
            if is_there:  # Left by a writer that was killed; it may be a second name of its zip.
                os.unlink(path)
        except OSError as error:
            keep = False
            if isinstance(error, StoreError):
                raise
            if error.errno in _NO_LOCKS:
                raise StoreError(
                    f"cannot write {where}: its file system has no locks; accepted: one that has, or a "
                    "directory that ZipStore.pack makes a zip of"
                ) from error
            fail("write", where, error)
        finally:
            if not keep:
                os.close(lock)
    raise StoreError(f"cannot write {where}: others keep writing it; accepted: one writer at a time")


class ValueDraft(Draft):
    """A zip that will be a value of another store.

    Parameters
    ----------
    store : Store
    key : str
    mode : str
        ``r+``, ``a``, ``w`` or ``x``.
    where : str
    fsync : bool
    """

    def __init__(self, store: Store, key: str, mode: str, where: str, fsync: bool) -> None:
        self._is_kept = False
        self._store = store
        self._key = key
        self._name = store.identity, key
        store._check_writable()
        with _writing_guard:
            if _writing.get(self._name) == os.getpid():
                raise StoreError(
                    f"cannot write {where}: another ZipStore of this process is writing it; accepted: one "
                    "writer at a time"
                )
            _writing[self._name] = os.getpid()
        try:
            value, self._version = (None, None) if mode == "w" else store.get_versioned(key)
            self._replaces = mode == "w"
            if value is None and mode == "r+":
                raise NodeNotFoundError(f"there is no {where}; accepted: the key of a zip, or mode 'a'")
            if value is not None and mode == "x":
                raise NodeExistsError(f"there is {where} already; accepted: mode 'a' or 'w'")
            try:
                descriptor, path = tempfile.mkstemp(prefix="xzarr3-", suffix=".zip")
            except OSError as error:
                fail("write", f"a temporary file for {where}", error)
            super().__init__(LocalFile(descriptor, where, path), path, where, fsync)
            if value is not None:
                self._seed(memoryview(value))
        except BaseException:
            self.release()
            raise

    def _seed(self, value: memoryview) -> None:
        def read(start: int, length: int) -> Buffer:
            return value[start : start + length]

        old = read_directory(read, value[-TAIL:], len(value), self.where)
        self._take(old, bytes(read(old.end.directory, old.end.directory_size)))
        try:
            write_at(self.file.descriptor, 0, [value[: self.end]])
        except OSError as error:
            fail("write", f"a temporary file for {self.where}", error)

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
            raise ConflictError(
                f"cannot write {self.where}: somebody else changed it; what was written is in '{self.path}' "
                "until this is closed; accepted: one writer at a time"
            )

    def _kept(self) -> str:
        self._is_kept = True
        return self.path

    def release(self) -> None:
        with _writing_guard:
            _writing.pop(self._name, None)
        if self._is_kept:
            return
        with contextlib.suppress(OSError, AttributeError):  # There is none, or it is nobody's.
            os.unlink(self.path)


_writing: dict[object, int] = {}
_writing_guard = threading.RLock()  # A store may be forgotten, and closed, at any time.


def _renew() -> None:
    """A forked child must not wait for a thread of its parent to give the lock back."""
    global _writing_guard
    _writing_guard = threading.RLock()
    _writing.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


def check_path(path: str) -> str:
    """Return ``path`` if the system can name it."""
    try:
        known = "\0" not in path and os.fsdecode(os.fsencode(path)) == path
    except UnicodeError:
        known = False
    if not known or not os.path.basename(path):
        raise StoreError(f"no zip at {shorten(path)}; accepted: a path that the system can name")
    return path
