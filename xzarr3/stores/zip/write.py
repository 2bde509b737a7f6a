"""Writes and commits a zip.

A zip grows in a temporary file beside its path, or in a directory for temporary files if it is a value of
another store. Once complete, it is committed in one step. Adding to a zip starts from a copy of it. Changes
that could not be committed stay in the temporary file.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import mmap
import os
import shutil
import struct
import tempfile
import time
import uuid
import zipfile
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import NoReturn
from zipfile import ZipInfo

from xzarr3.errors import (
    ConflictError,
    InvalidKeyError,
    NodeExistsError,
    NodeNotFoundError,
    StoreCapabilityError,
    StoreError,
    StorePermissionError,
    Xzarr3Error,
    shorten,
)
from xzarr3.stores.base import BytesReader, Store, ValueReader
from xzarr3.stores.local import platform
from xzarr3.stores.local.locks import FileLock, LockingError, LockTimeoutError
from xzarr3.stores.zip.read import (
    UNIX,
    Directory,
    crc32,
    digest_of,
    open_path,
    raw_name,
    read_directory,
)

_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_BLOCK = 2**22
_FULL16 = 0xFFFF
_MODE = 0o100644 << 16
_PATIENCE = 0.2  # Seconds; another process may just be removing the lock file.

_ONE = "use one writer at a time, or threads of one process"

TEMPORARY = ".xzarr3-zip-"
"""Prefix of the names of zips that are being written."""
LOCK = ".xzarr3-ziplock-"
"""Prefix of the names of their lock files."""


def new_member(key: str, contents: Iterable[memoryview]) -> tuple[ZipInfo, bytes]:
    """The entry and the local header of a value that is stored uncompressed.

    Raises
    ------
    InvalidKeyError
        If a zip cannot have a member with this name.
    """
    info = ZipInfo(key)
    info.filename = key
    info.create_system, info.external_attr = UNIX, _MODE
    size = crc = 0
    for content in contents:
        size += content.nbytes
        crc = crc32(content, crc)
    info.file_size = info.compress_size = size
    info.CRC = crc
    try:
        return info, info.FileHeader()
    except (UnicodeEncodeError, struct.error) as error:
        raise InvalidKeyError(
            f"invalid key {shorten(key)}; accepted: text that UTF-8 can spell with at most {_FULL16} bytes"
        ) from error


def _fail(doing: str, where: str, error: OSError | OverflowError) -> NoReturn:
    text = f"cannot {doing} {where}: {getattr(error, 'strerror', None) or error}"
    if isinstance(error, PermissionError):
        raise StorePermissionError(f"{text}; use a file that this user may {doing}") from error
    raise StoreError(text) from error


class Draft:
    """A zip being written, in a file of its own that begins with a copy of the old zip.

    Parameters
    ----------
    where : str
        The name of the zip, for error messages.
    mode : str
        ``r+``, ``a``, ``w`` or ``x``.
    """

    path = ""
    """Path of the file; empty if the file does not exist or is gone."""
    _descriptor = -1

    def __init__(self, where: str, mode: str) -> None:
        self.where = where
        self.replaces = mode == "w"
        self.old: Directory | None = None
        """Contents of the old zip."""
        self.end = 0
        """Offset at which the next value is written."""
        self.lineage = uuid.uuid4().hex
        try:
            self._descriptor, self.path = self._made()
            source = None if self.replaces else self._found()
            if source is None and mode == "r+":
                raise NodeNotFoundError(f"{where} does not exist; correct the path, or use mode 'a'")
            if source is not None and mode == "x":
                raise NodeExistsError(f"{where} already exists; use mode 'a' or 'w'")
            if source is not None:
                with source:
                    self._take(source)
            reader = open_path(self.path)
            if reader is None:
                raise StoreError(
                    f"cannot write {where}: another program removed '{self.path}'; use one writer at a time"
                )
            self.reader = reader
        except BaseException as error:
            self.release()
            if isinstance(error, OSError) and not isinstance(error, Xzarr3Error):
                _fail("write", where, error)
            raise

    def _made(self) -> tuple[int, str]:
        """Exclude other writers and create the file; returns its descriptor and path."""
        raise NotImplementedError

    def _found(self) -> ValueReader | None:
        """The old zip, or None."""
        raise NotImplementedError

    def _place(self, total: int) -> None:
        """Commit the file."""
        raise NotImplementedError

    def _take(self, source: ValueReader) -> None:
        """Copy the values of the old zip."""
        old = read_directory(source, self.where)
        for info in itertools.chain(old.members.values(), old.others):
            # Its entry is rewritten, in UTF-8 if needed. The name in its header stays as it is.
            name = info.filename
            if (name != info.orig_filename or not name.isascii()) and name.encode() != raw_name(info):
                raise StoreError(
                    f"cannot add to {self.where}: the name of member {shorten(name)} is not in UTF-8; use "
                    "mode 'r', or make a zip without such members with ZipStore.pack"
                )
        for at in range(0, old.start, _BLOCK):
            self._write([memoryview(source.read(at, min(_BLOCK, old.start - at)))])
        if self.end != old.start:
            raise StoreError(f"cannot copy {self.where}: it is truncated; copy the zip again, whole")
        self.old = old

    def _write(self, pieces: Sequence[memoryview]) -> None:
        """Append pieces. After a failure the next ones are written to the same offset."""
        os.lseek(self._descriptor, self.end, os.SEEK_SET)
        platform.write_all(self._descriptor, pieces)
        self.end += sum(map(len, pieces))

    def append(self, info: ZipInfo, header: bytes, contents: Sequence[memoryview]) -> int:
        """Append a value; returns the offset of its data. Only one thread may call this at a time."""
        info.header_offset = self.end
        try:
            self._write([memoryview(header), *contents])
            self.reader.size = self.end
        except (OSError, OverflowError) as error:
            _fail("write", f"key '{info.filename}' of {self.where}", error)
        return info.header_offset + len(header)

    def commit(self, members: Iterable[ZipInfo]) -> bytes:
        """Write the directory and commit the zip; returns the digest of the directory.

        Raises
        ------
        StoreError
            If that fails. The old zip is then unchanged, and the call can be repeated.
        """
        try:
            total = self._complete(members)
            digest = digest_of(platform.read_at(self._descriptor, total - self.end, self.end))
            self._place(total)
            return digest
        except OSError as error:
            if isinstance(error, Xzarr3Error):
                raise
            _fail("write", self.where, error)

    def _complete(self, members: Iterable[ZipInfo]) -> int:
        """Write the directory; returns the size of the zip."""
        others, comment = ([], b"") if self.old is None else (self.old.others, self.old.comment)
        with open(self._descriptor, "wb", 2**20, closefd=False) as stream:
            stream.seek(self.end)
            try:
                with zipfile.ZipFile(stream, "w") as archive:
                    archive.comment = comment
                    archive.infolist().extend(sorted([*others, *members], key=attrgetter("header_offset")))
            except (struct.error, ValueError, zipfile.LargeZipFile) as error:
                raise StoreError(f"the directory of {self.where} cannot be written: {error}") from error
            return stream.truncate()

    def keep(self, members: Iterable[ZipInfo]) -> str:
        """Make the file outlive :meth:`release`; returns a text that says where it is."""
        os.stat(self.path)  # Fails if another process has removed it.
        try:
            self._complete(members)
            what = "what was written is in"
        except OSError:
            what = "the values that were written, without a directory (see 'zip -FF'), are in"
        path, self.path = self.path, ""
        return f"{what} '{path}' until the zip is written again"

    def _changed(self) -> str:
        return (
            f"cannot write {self.where}: another writer changed it; what was written is in '{self.path}' "
            f"until this is closed; {_ONE}"
        )

    def release(self) -> None:
        """Remove the file, if it still exists, and admit other writers."""
        path, self.path = self.path, ""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
        if path:
            with contextlib.suppress(OSError):  # Another process has removed it, or has it open.
                platform.unlink_at(*os.path.split(path))


class PathDraft(Draft):
    """A zip to be committed as a file.

    Parameters
    ----------
    path : str
        Path of the zip, with links resolved.
    mode, where : str
        See :class:`Draft`.
    fsync : bool
        Whether to wait until the zip is on the disk.
    """

    def __init__(self, path: str, mode: str, where: str, fsync: bool) -> None:
        self._target = path
        self._fsync = fsync
        self._above, name = os.path.split(path)
        # The name is fixed, so that only one writer is active and the next writer removes a leftover. It must
        # not look like a temporary file of a LocalStore, which would remove it an hour after its last change.
        long = len(os.fsencode(name)) > 200
        self._name = hashlib.blake2b(os.fsencode(name), digest_size=16).hexdigest() if long else name
        self._before: tuple[object, ...] | None = None
        self._folder: platform.Folder = ""
        self._lock = FileLock(f"{LOCK}{self._name}")
        super().__init__(where, mode)

    def _made(self) -> tuple[int, str]:
        os.makedirs(self._above, exist_ok=True)
        self._folder = platform.open_folder(self._above, follow_symlinks=True)
        try:
            self._lock.acquire(self._folder, self._name, time.monotonic() + _PATIENCE)
        except (LockTimeoutError, LockingError) as error:
            missing = "its file system has no locks; use one that has"
            if isinstance(error, LockTimeoutError):
                missing = "another ZipStore is writing it, in this process or in another; " + _ONE
            raise StoreError(
                f"cannot write {self.where}: {missing}, or write a directory and make a zip of it with "
                "ZipStore.pack"
            ) from error
        name = f"{TEMPORARY}{self._name}"
        with contextlib.suppress(FileNotFoundError):
            platform.unlink_at(self._above, name)  # Leftover of a killed writer.
        path = os.path.join(self._above, name)
        return os.open(path, _NEW, 0o666), path

    def _found(self) -> ValueReader | None:
        with contextlib.suppress(FileNotFoundError):
            self._before = _state(os.stat(self._target))
            if not os.access(self._target, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return open_path(self._target)

    def _place(self, total: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(self._target)
            if not self.replaces and self._before is None:
                raise NodeExistsError(self._changed())
            if not self.replaces and _state(status) != self._before:
                raise ConflictError(self._changed())
            platform.copy_mode(self._descriptor, status.st_mode)
        whole = self.path
        if not platform.POSIX:  # An open file cannot be renamed there.
            whole = f"{self.path}.whole"
            with open(self.path, "rb") as source, open(whole, "wb") as copy:
                shutil.copyfileobj(source, copy, _BLOCK)
        if self._fsync:
            with open(whole, "r+b") as file:
                platform.sync(file.fileno())
        platform.replace_at(self._above, os.path.basename(whole), os.path.basename(self._target))
        if whole == self.path:
            self.path = ""
        if self._fsync:
            platform.sync_folder(self._above)

    def release(self) -> None:
        super().release()
        self._lock.leave()
        folder, self._folder = self._folder, ""
        platform.close_folder(folder)


def _state(info: os.stat_result) -> tuple[object, ...]:
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns


class ValueDraft(Draft):
    """A zip to be committed as a value of another store.

    Parameters
    ----------
    store : Store
    key : str
    mode, where : str
        See :class:`Draft`.
    """

    def __init__(self, store: Store, key: str, mode: str, where: str) -> None:
        self._store = store
        self._key = key
        self._name = store.identity, key, os.getpid()
        self._version: object = None
        super().__init__(where, mode)

    def _made(self) -> tuple[int, str]:
        self._store._check_writable()
        if _written.setdefault(self._name, self) is not self:
            raise StoreError(f"cannot write {self.where}: another ZipStore is writing it; {_ONE}")
        return tempfile.mkstemp(prefix="xzarr3-", suffix=".zip")

    def _found(self) -> ValueReader | None:
        value, self._version = self._store.get_versioned(self._key)
        return None if value is None else BytesReader(value)

    def _place(self, total: int) -> None:
        value = memoryview(mmap.mmap(self._descriptor, total, access=mmap.ACCESS_READ))
        if self.replaces:
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

    def release(self) -> None:
        super().release()
        if _written.get(self._name) is self:
            del _written[self._name]


_written: dict[object, ValueDraft] = {}
"""The values that this process is writing. Its pid is in the names, so a forked child is not blocked."""
