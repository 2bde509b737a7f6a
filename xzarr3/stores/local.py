"""A store in a directory of the local file system.

Specification: Zarr v3, "File system store". A key is a path below the root, a value is a file.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import NoReturn

from xzarr3._types import Buffer, ByteRange
from xzarr3.errors import InvalidKeyError, StoreError, StorePermissionError
from xzarr3.stores.base import KeySet, Loader, Store, ValueReader, check_key, check_prefix

# Without blocking, so that nobody waits for the writer of a pipe; it makes no difference to a file.
_OPEN = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR})
TEMPORARY = ".xzarr3-partial-"
STAGED = ".xzarr3-staged-"
"""What a directory at the root begins with whose values are still to be moved to their places."""
_ATTEMPTS = 100
_KEPT_SCRATCH = 32 * 2**20

_serial = itertools.count()


class _Scratch(threading.local):
    """Memory of this thread that whole values are read into."""

    buffer = memoryview(bytearray(0))


_local = _Scratch()


class LocalStore(Store):
    """Values are files below a directory.

    A value is replaced atomically: it is written to a temporary file beside its place and moved there.
    A failed or interrupted write leaves the old value.

    Parameters
    ----------
    root : str or path
        The directory. It need not exist; the first write makes it.
    read_only : bool
        Refuse every write.

    Examples
    --------
    >>> import tempfile
    >>> store = LocalStore(tempfile.mkdtemp())
    >>> store.set("c/0", b"value")
    >>> bytes(store.get("c/0"))
    b'value'
    >>> store.set("../escape", b"")
    Traceback (most recent call last):
    xzarr3.errors.InvalidKeyError: invalid key '../escape'; accepted: ...
    """

    def __init__(self, root: str | os.PathLike[str], *, read_only: bool = False) -> None:
        super().__init__(read_only=read_only)
        self.root = os.path.abspath(os.path.expanduser(os.fspath(root)))
        self._base = os.path.join(self.root, "")

    def __repr__(self) -> str:
        return f"<LocalStore '{self.root}'>"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and (other.root, other.read_only) == (self.root, self.read_only)

    def __hash__(self) -> int:
        return hash(self.root)

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (self.root, self.read_only)

    @property
    def identity(self) -> object:
        return "LocalStore", os.path.realpath(self.root)

    def __dask_tokenize__(self) -> object:
        return self.identity, self.stamp([""])

    def _path(self, key: str) -> str:
        path = self._base + check_key(key)
        if TEMPORARY in key:
            raise InvalidKeyError(f"invalid key {key!r}; names that begin with '{TEMPORARY}' are taken")
        try:
            os.fsencode(path)
        except UnicodeEncodeError as error:
            raise InvalidKeyError(f"invalid key {key!r}: {error.reason}; accepted: Unicode text") from error
        return path

    def check_inside(self, folder: str, key: str) -> None:
        """Refuse a key below a directory that is a link out of the root."""
        above = folder
        while len(above) > len(self.root):
            if os.path.islink(above):
                inside, real = os.path.realpath(self.root), os.path.realpath(folder)
                if real != inside and not real.startswith(os.path.join(inside, "")):
                    raise InvalidKeyError(
                        f"key '{key}' leads out of {self} through a link; accepted: a link within it"
                    )
                return
            above = os.path.dirname(above)

    def _nothing(self, key: str, error: OSError) -> None:
        """See to it that there really is nothing where a file could not be opened."""
        if error.errno not in _ABSENT or (error.errno == errno.ENOENT and os.path.islink(self._base + key)):
            self._fail("read", key, error)

    def _not_a_file(self, key: str, mode: int) -> None:
        if not stat.S_ISDIR(mode):
            raise StoreError(f"cannot read key '{key}' of {self}: it is neither a file nor a directory")

    def _fail(self, doing: str, key: str, error: OSError) -> NoReturn:
        text = f"cannot {doing} key '{key}' of {self}: {error.strerror or error}"
        if isinstance(error, PermissionError):
            raise StorePermissionError(f"{text}; accepted: a path this user may {doing}") from error
        raise StoreError(text) from error

    # Readable

    def get(self, key: str, byte_range: ByteRange | None = None) -> Buffer | None:
        reader = self.open_value(key)
        if reader is None:
            return None
        with reader:
            return reader.read(*(byte_range or (0, None)))

    def exists(self, key: str) -> bool:
        path = self._path(key)
        try:
            return stat.S_ISREG(os.stat(path).st_mode)
        except OSError as error:
            if error.errno in _ABSENT:
                return False
            self._fail("read", key, error)

    def open_value(self, key: str) -> ValueReader | None:
        path = self._path(key)
        try:
            descriptor = os.open(path, _OPEN)
        except OSError as error:
            self._nothing(key, error)
            return None
        try:
            info = os.fstat(descriptor)
        except OSError as error:
            os.close(descriptor)
            self._fail("read", key, error)
        if not stat.S_ISREG(info.st_mode):
            os.close(descriptor)
            self._not_a_file(key, info.st_mode)
            return None
        return _FileReader(self, key, descriptor, info.st_size)

    def loader(self) -> Loader:
        base = self._base
        open_, close, fstat, readv = os.open, os.close, os.fstat, os.readv
        scratch = _local.buffer

        def load(key: str) -> Buffer | None:
            nonlocal scratch
            try:
                descriptor = open_(base + key, _OPEN)
            except OSError as error:
                self._nothing(key, error)
                return None
            try:
                info = fstat(descriptor)
                if stat.S_ISREG(info.st_mode):
                    size = info.st_size
                    if len(scratch) < size:
                        scratch = memoryview(bytearray(max(size, 2**17)))
                        if size <= _KEPT_SCRATCH:
                            _local.buffer = scratch
                    count = readv(descriptor, [scratch[:size]])
                    if count != size:
                        count = _read_rest(descriptor, scratch, count, size)
                    return scratch[:count]
            except OSError as error:
                self._fail("read", key, error)
            finally:
                close(descriptor)
            self._not_a_file(key, info.st_mode)
            return None

        return load

    def stamp(self, keys: Sequence[str]) -> object:
        return [self.version(key) for key in keys]

    def version(self, key: str) -> object | None:
        try:
            info = os.stat(self._base + key)
        except OSError:  # There is none, or none to be seen; reading it will say which.
            return None
        return info.st_ino, info.st_mtime_ns, info.st_size

    # Writeable

    def _touch(self) -> None:
        """Let the root's time of modification tell of every change: xarray names its tasks after it."""
        with contextlib.suppress(OSError):  # The write itself is done; some systems keep no such time.
            os.utime(self.root)

    def set(self, key: str, value: Buffer) -> None:
        self._check_writable()
        path = self._path(key)
        folder = os.path.dirname(path)
        self.check_inside(folder, key)
        temporary = os.path.join(folder, f"{TEMPORARY}{os.getpid()}-{next(_serial)}-{os.urandom(4).hex()}")
        try:
            descriptor = _create(temporary)
        except OSError as error:
            self._fail("write", key, error)
        try:
            try:
                _write_all(descriptor, value)
            finally:
                os.close(descriptor)
            os.replace(temporary, path)
            self._touch()
        except BaseException as error:
            _discard(temporary)
            if isinstance(error, OSError):
                self._fail("write", key, error)
            raise

    def erase(self, key: str) -> None:
        self.erase_values([key])

    def erase_values(self, keys: Iterable[str]) -> None:
        self._check_writable()
        paths = {key: self._path(key) for key in keys}
        folders: set[str] = set()
        for key, path in paths.items():
            folder = os.path.dirname(path)
            if folder not in folders:
                self.check_inside(folder, key)
                folders.add(folder)
        for key, path in paths.items():
            try:
                os.unlink(path)
            except OSError as error:
                if error.errno not in _ABSENT:
                    self._fail("erase", key, error)
        self._touch()
        for folder in sorted(folders, key=len, reverse=True):
            self.prune(folder)

    def prune(self, folder: str) -> None:
        """Remove a directory and its parents while they are empty, up to but without the root."""
        while len(folder) > len(self.root):
            try:
                os.rmdir(folder)
            except OSError:  # Not empty, in use, or not ours to remove: it stays.
                return
            folder = os.path.dirname(folder)

    # Listable

    def list_prefix(self, prefix: str) -> Iterator[str]:
        return self._walk(check_prefix(prefix), frozenset())

    def _walk(self, prefix: str, links: frozenset[tuple[int, int]]) -> Iterator[str]:
        for entry in self._scan(prefix):
            key = prefix + entry.name
            if not self._is_folder(entry, key):
                yield key
            elif not entry.is_symlink():
                yield from self._walk(f"{key}/", links)
            else:
                info = entry.stat()
                here = (info.st_dev, info.st_ino)
                if here not in links:
                    yield from self._walk(f"{key}/", links | {here})

    def list_dir(self, prefix: str) -> tuple[KeySet, KeySet]:
        keys: KeySet = set()
        prefixes: KeySet = set()
        for entry in self._scan(check_prefix(prefix)):
            if self._is_folder(entry, prefix + entry.name):
                prefixes.add(f"{prefix}{entry.name}/")
            else:
                keys.add(prefix + entry.name)
        return keys, prefixes

    def _is_folder(self, entry: os.DirEntry[str], key: str) -> bool:
        try:
            return entry.is_dir()
        except OSError as error:
            self._fail("list", key, error)

    def _scan(self, prefix: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self._base + prefix) as entries:
                return [entry for entry in entries if not entry.name.startswith((TEMPORARY, STAGED))]
        except OSError as error:
            if error.errno in _ABSENT:
                return []
            self._fail("list", prefix, error)


class _FileReader(ValueReader):
    """Parts of an open file: the same version of it, even if it is replaced meanwhile."""

    def __init__(self, store: LocalStore, key: str, descriptor: int, size: int) -> None:
        self._store = store
        self._key = key
        self._descriptor = descriptor
        self.size: int = size

    def read(self, start: int, length: int | None = None) -> Buffer:
        if start < 0:
            start = max(self.size + start, 0)
        wanted = max(self.size - start, 0)
        if length is not None:
            wanted = min(wanted, length)
        if wanted == 0:
            return b""  # The system refuses to hear of places far beyond the end.
        try:
            value = os.pread(self._descriptor, wanted, start)
            while len(value) < wanted:
                more = os.pread(self._descriptor, wanted - len(value), start + len(value))
                if not more:
                    break
                value += more
        except OSError as error:
            self._store._fail("read", self._key, error)
        return value

    def read_into(self, start: int, out: memoryview) -> int:
        count = 0
        try:
            while count < len(out):
                more = os.preadv(self._descriptor, [out[count:]], start + count)
                if not more:
                    break
                count += more
        except OSError as error:
            self._store._fail("read", self._key, error)
        return count

    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


def _read_rest(descriptor: int, scratch: memoryview, count: int, size: int) -> int:
    while count < size:
        more = os.readv(descriptor, [scratch[count:size]])
        if more == 0:
            break
        count += more
    return count


def _create(path: str) -> int:
    """Open a new file, and make the directories above it, which others may be removing just now."""
    for _ in range(_ATTEMPTS):
        try:
            return os.open(path, _CREATE, 0o666)
        except FileNotFoundError:
            with contextlib.suppress(FileNotFoundError, FileExistsError):
                os.makedirs(os.path.dirname(path), exist_ok=True)
    return os.open(path, _CREATE, 0o666)


def _write_all(descriptor: int, value: Buffer) -> None:
    rest = memoryview(value).cast("B")
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _discard(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:  # The write has failed already; that error is the one to report.
        return


def _restore(root: str, read_only: bool) -> LocalStore:
    return LocalStore(root, read_only=read_only)
