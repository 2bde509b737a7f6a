"""A store in a directory of the local file system.

Specification: Zarr v3, "File system store". A key is a path below the root, a value is a file.

Reading follows links. What writes and erases goes through links within the root only, and nothing is erased
behind a link that lies below an erased prefix: the link itself is. POSIX systems only.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NoReturn, cast

from xzarr3._types import Buffer, ByteRange
from xzarr3.errors import InvalidKeyError, StoreError, StorePermissionError, shorten
from xzarr3.stores.base import (
    IntoLoader,
    KeySet,
    Loader,
    OversizedError,
    RangeLoader,
    Scratch,
    Store,
    ValueReader,
    Writer,
    check_erasable_prefix,
    check_key,
    check_prefix,
    flat,
    negative_length,
)
from xzarr3.stores.folders import NO_MORE, OTHER_KIND, Folders, LeadsOutError

# Without blocking, so that nobody waits for the writer of a pipe; it makes no difference to a file.
_OPEN = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR})
TEMPORARY = ".xzarr3-partial-"
"""What the files begin with that values are written to before they get their names."""
STAGED = ".xzarr3-staged-"
"""What a directory at the root begins with whose values are still to be moved to their places."""
_ABANDONED = 3600.0  # Seconds without a change after which a temporary file is nobody's any more.
_ATTEMPTS = 100
_SHORT = 512  # Characters; no system has a limit for paths that is lower.
_MOST_PIECES = 512  # Fewer than any system writes with one call.
_SETTLED = 10**9  # Nanoseconds

_serial = itertools.count()


class LocalStore(Store):
    """Values are files below a directory.

    A value is replaced atomically: it is written to a temporary file beside its place and moved there.
    A failed or interrupted write leaves the old value. What a killed writer leaves beside it is no key; it
    is removed once it is an hour old, when the directory it lies in has no key left or by :meth:`sweep`.

    A key that has a value cannot be the beginning of another key: ``a`` and ``a/b`` exclude each other. File
    systems that do not tell upper from lower case, or that change the form of letters, merge such keys.

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

    request_bytes = 2**12

    def __init__(self, root: str | os.PathLike[str], *, read_only: bool = False) -> None:
        super().__init__(read_only=read_only)
        self.root = os.path.abspath(os.path.expanduser(os.fspath(root)))
        if not _is_name(self.root):
            raise StoreError(f"no store at {shorten(self.root)}; accepted: a path that the system can name")
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
        check_key(key)
        if TEMPORARY in key and any(name.startswith(TEMPORARY) for name in key.split("/")):
            raise InvalidKeyError(
                f"invalid key {shorten(key)}; names that begin with '{TEMPORARY}' are taken"
            )
        if not (key.isascii() or _is_name(key)):
            raise InvalidKeyError(f"invalid key {shorten(key)}; accepted: text that the file system can name")
        return self._base + key

    def _check_prefix(self, prefix: str) -> None:
        if check_prefix(prefix):
            self._path(prefix[:-1])

    def check_inside(self, folder: str, key: str) -> None:
        """Refuse a key below a directory that is a link out of the root."""
        above = folder
        while len(above) > len(self.root):
            if os.path.islink(above):
                inside, real = os.path.realpath(self.root), os.path.realpath(folder)
                if real != inside and not real.startswith(os.path.join(inside, "")):
                    raise self._leads_out(key)
                return
            above = os.path.dirname(above)

    def _leads_out(self, key: str) -> InvalidKeyError:
        return InvalidKeyError(f"key '{key}' leads out of {self} through a link; accepted: a link within it")

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
        reader = self._opened(key)
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
        if not self._is_own("get"):
            return super().open_value(key)
        return self._opened(key)

    def _opened(self, key: str) -> _FileReader | None:
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
        return _FileReader(self, key, descriptor, info)

    def _is_own(self, *operations: str) -> bool:
        """Whether operations are those of this class, and not of a derived one, which is to be asked then."""
        return all(getattr(type(self), operation) is _OWN[operation] for operation in operations)

    def loader(self) -> Loader:
        return self._loader(None, sys.maxsize) if self._is_own("get", "open_value") else super().loader()

    def scratch_loader(self, scratch: Scratch, limit: int) -> Loader:
        if not self._is_own("get", "open_value", "loader"):
            return super().scratch_loader(scratch, limit)
        return self._loader(scratch, limit)

    def _loader(self, scratch: Scratch | None, limit: int) -> Loader:
        base = self._base
        open_, close, fstat, readv = os.open, os.close, os.fstat, os.readv

        def load(key: str) -> Buffer | None:
            try:
                descriptor = open_(base + key, _OPEN)
            except OSError as error:
                self._nothing(key, error)
                return None
            try:
                info = fstat(descriptor)
                if stat.S_ISREG(info.st_mode):
                    size = info.st_size
                    if size > limit:
                        raise OversizedError(size, limit)
                    if scratch is None:
                        memory = memoryview(bytearray(size))
                    else:
                        if len(scratch.memory) < size:
                            scratch.memory = memoryview(bytearray(max(size, 2**17)))
                        memory = scratch.memory[:size]
                    count = readv(descriptor, [memory])
                    if count != size:
                        count = _read_rest(descriptor, memory, count, size)
                    return memory[:count]
            except OSError as error:
                self._fail("read", key, error)
            finally:
                close(descriptor)
            self._not_a_file(key, info.st_mode)
            return None

        return load

    def range_loader(self) -> RangeLoader:
        if not self._is_own("get", "open_value"):
            return super().range_loader()
        base = self._base
        open_, close, fstat, pread = os.open, os.close, os.fstat, os.pread

        def load(key: str, starts: Sequence[int], lengths: Sequence[int]) -> tuple[int, list[Buffer]] | None:
            try:
                descriptor = open_(base + key, _OPEN)
            except OSError as error:
                self._nothing(key, error)
                return None
            try:
                info = fstat(descriptor)
                size = info.st_size
                if stat.S_ISREG(info.st_mode):
                    parts: list[Buffer] = [*map(pread, itertools.repeat(descriptor), lengths, starts)]
                    if sum(map(len, parts)) != sum(lengths):  # More than the system reads at once, or less.
                        parts = _FileReader(self, key, descriptor, info).read_each(starts, lengths)
                    return size, parts
            except OverflowError:  # So far out that there is nothing.
                return size, _FileReader(self, key, descriptor, info).read_each(starts, lengths)
            except OSError as error:
                self._fail("read", key, error)
            finally:
                close(descriptor)
            self._not_a_file(key, info.st_mode)
            return None

        return load

    def into_loader(self) -> IntoLoader:
        if not self._is_own("get", "open_value"):
            return super().into_loader()
        base = self._base
        open_, close, fstat, preadv = os.open, os.close, os.fstat, os.preadv

        def load(key: str, start: int, out: memoryview) -> tuple[int, int] | None:
            try:
                descriptor = open_(base + key, _OPEN)
            except OSError as error:
                self._nothing(key, error)
                return None
            try:
                info = fstat(descriptor)
                if stat.S_ISREG(info.st_mode):
                    count = preadv(descriptor, [out], start)
                    if count < len(out):
                        rest = _FileReader(self, key, descriptor, info)
                        count += rest.read_into(start + count, out[count:])
                    return info.st_size, count
            except OverflowError:  # So far out that there is nothing.
                return info.st_size, 0
            except OSError as error:
                self._fail("read", key, error)
            finally:
                close(descriptor)
            self._not_a_file(key, info.st_mode)
            return None

        return load

    def get_partial_values(self, key_ranges: Iterable[tuple[str, ByteRange]]) -> list[Buffer | None]:
        wanted = list(key_ranges)
        places: dict[str, list[int]] = {}
        for at, (key, _) in enumerate(wanted):
            places.setdefault(check_key(key), []).append(at)
        found: list[Buffer | None] = [None] * len(wanted)
        for key, parts in places.items():
            reader = self.open_value(key)
            if reader is not None:
                with reader:
                    for at in parts:
                        found[at] = reader.read(*wanted[at][1])
        return found

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
        with self._writer() as write:
            write(key, [value])

    def writer(self) -> AbstractContextManager[Writer]:
        return self._writer() if self._is_own("set") else super().writer()

    @contextlib.contextmanager
    def _writer(self) -> Iterator[Writer]:
        self._check_writable()
        folders = Folders(self.root)
        pid, token = os.getpid(), os.urandom(4).hex()
        wrote = False

        def write(key: str, pieces: Sequence[Buffer]) -> None:
            nonlocal wrote
            path = self._path(key)
            if len(path) > _SHORT:
                self._check_length(path, key)
            contents = [flat(piece, key) for piece in pieces]
            above, _, name = key.rpartition("/")
            temporary = f"{TEMPORARY}{pid}-{next(_serial)}-{token}"
            try:
                folder, descriptor = _create(folders, above, temporary)
            except LeadsOutError as error:
                raise self._leads_out(key) from error
            except OSError as error:
                self._fail("write", key, error)
            try:
                try:
                    _write_all(descriptor, contents)
                finally:
                    os.close(descriptor)
                os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException as error:
                with contextlib.suppress(OSError):  # The write has failed; that error is the one to report.
                    os.unlink(temporary, dir_fd=folder)
                if isinstance(error, OSError):
                    self._fail("write", key, error)
                raise
            if not wrote:  # Before all is written, too: the writer may be killed.
                self._touch()
                wrote = True

        with folders:
            try:
                yield write
            finally:
                if wrote:
                    self._touch()

    def _check_length(self, path: str, key: str) -> None:
        """Store nothing so deep that no path leads there."""
        try:
            os.lstat(path)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                self._fail("write", key, error)

    def erase(self, key: str) -> None:
        self.erase_values([key])

    def erase_values(self, keys: Iterable[str]) -> None:
        self._check_writable()
        wanted = list(keys)
        for key in wanted:
            self._path(key)
        with Folders(self.root) as folders:
            places: dict[str, str | None] = {}
            for key in wanted:
                above = key.rpartition("/")[0]
                if above not in places:
                    places[above] = self._resolve(folders, above, key)
            for key in wanted:
                above, _, name = key.rpartition("/")
                place = places[above]
                if place is not None:
                    self._unlink(folders, place, name, key)
            self._touch()
            emptied = {place for place in places.values() if place}
            for place in sorted(emptied, key=len, reverse=True):
                self._prune(folders, place, sweep=len(wanted) > 1)

    def erase_prefix(self, prefix: str) -> None:
        self._path(check_erasable_prefix(prefix)[:-1])
        self._check_writable()
        above, _, name = prefix[:-1].rpartition("/")
        with Folders(self.root) as folders:
            place = self._resolve(folders, above, prefix)
            if place is None:
                return
            try:
                is_link = folders.links_to_folder(place, name)
            except OSError as error:
                self._fail("erase", prefix, error)
            if is_link:
                self._unlink(folders, place, name, prefix)
            elif is_link is None:
                self._erase_tree(folders, f"{place}/{name}" if place else name)
            self._touch()
            self._prune(folders, place)

    def _survey(
        self, folders: Folders, top: str, doing: str
    ) -> tuple[list[str], list[tuple[str, str]], list[tuple[str, str]]]:
        """A directory and those below it, and names in them: those of keys and of what killed writers left.

        Upper directories come first. Links are not followed.
        """
        found = [top]
        keys: list[tuple[str, str]] = []
        leftovers: list[tuple[str, str]] = []
        for folder in found:  # It grows meanwhile.
            try:
                for entry in folders.scan(folder):
                    is_temporary = entry.name.startswith(TEMPORARY)
                    if entry.is_dir(follow_symlinks=False):
                        if not is_temporary and not entry.name.startswith(STAGED):
                            found.append(f"{folder}/{entry.name}" if folder else entry.name)
                    elif not is_temporary:
                        keys.append((folder, entry.name))
                    elif _is_abandoned(entry):
                        leftovers.append((folder, entry.name))
            except OSError as error:
                if error.errno != errno.ENOENT:
                    self._fail(doing, folder, error)
        return found, keys, leftovers

    def _erase_tree(self, folders: Folders, top: str) -> None:
        found, keys, leftovers = self._survey(folders, top, "erase")
        for folder, name in keys:
            self._unlink(folders, folder, name, f"{folder}/{name}")
        for folder, name in leftovers:
            _discard(folders, folder, name)
        for folder in reversed(found):
            with contextlib.suppress(OSError):  # Not empty, in use, or not ours to remove: it stays.
                folders.rmdir(folder)

    def _resolve(self, folders: Folders, above: str, key: str, doing: str = "erase") -> str | None:
        try:
            return folders.resolve(above)
        except LeadsOutError as error:
            raise self._leads_out(key) from error
        except OSError as error:
            self._fail(doing, key, error)

    def _unlink(self, folders: Folders, place: str, name: str, key: str) -> None:
        try:
            folders.unlink(place, name)
        except FileNotFoundError:  # The directory has gone, and the key with it.
            return
        except OSError as error:
            self._fail("erase", key, error)

    def prune(self, folder: str) -> None:
        """Remove a directory and its parents while they are empty, up to but without the root."""
        with Folders(self.root) as folders:
            try:
                place = folders.resolve(folder[len(self._base) :])
            except (OSError, LeadsOutError):  # Not to be reached, or not ours: it stays.
                return
            if place:
                self._prune(folders, place)

    def _prune(self, folders: Folders, place: str, *, sweep: bool = False) -> None:
        while place:
            if sweep:
                _sweep_folder(folders, place)
            try:
                folders.rmdir(place)
            except OSError:  # Not empty, in use, or not ours to remove: it stays.
                return
            place = place.rpartition("/")[0]

    def sweep(self, prefix: str = "") -> None:
        """Remove temporary files that killed writers left below ``prefix``, once they are an hour old.

        Directories that hold nothing else go with them. Links are not followed.
        """
        self._check_prefix(prefix)
        self._check_writable()
        with Folders(self.root) as folders:
            place = self._resolve(folders, prefix[:-1], prefix, "sweep")
            if place is None:
                return
            _, _, leftovers = self._survey(folders, place, "sweep")
            for folder, name in leftovers:
                _discard(folders, folder, name)
            for folder in sorted({folder for folder, _ in leftovers}, key=len, reverse=True):
                self._prune(folders, folder)

    # Listable

    def list_prefix(self, prefix: str) -> Iterator[str]:
        self._check_prefix(prefix)
        return self._walk(prefix)

    def _walk(self, prefix: str) -> Iterator[str]:
        levels = [(prefix, iter(self._scan(prefix)))]
        while levels:
            here, entries = levels[-1]
            entry = next(entries, None)
            if entry is None:
                levels.pop()
                continue
            key = here + entry.name
            if not self._is_folder(entry, key):
                yield key
            elif not entry.is_symlink() or not self._is_circle(entry, here):
                levels.append((f"{key}/", iter(self._scan(f"{key}/"))))

    def _is_circle(self, entry: os.DirEntry[str], prefix: str) -> bool:
        """Whether a link in a directory leads to that directory or to one above it."""
        try:
            target = entry.stat()
            above = prefix
            while not os.path.samestat(target, os.stat(self._base + above)):
                if not above:
                    return False
                above = above[: above.rfind("/", 0, -1) + 1]
        except FileNotFoundError:  # Just removed: then there is nothing to list.
            return True
        except OSError as error:
            self._fail("list", prefix + entry.name, error)
        return True

    def list_dir(self, prefix: str) -> tuple[KeySet, KeySet]:
        self._check_prefix(prefix)
        keys: KeySet = set()
        prefixes: KeySet = set()
        for entry in self._scan(prefix):
            if self._is_folder(entry, prefix + entry.name):
                prefixes.add(f"{prefix}{entry.name}/")
            else:
                keys.add(prefix + entry.name)
        return keys, prefixes

    def _is_folder(self, entry: os.DirEntry[str], key: str) -> bool:
        try:
            return entry.is_dir()
        except OSError as error:
            if error.errno == errno.ELOOP:  # A link to itself; who reads it hears of that.
                return False
            self._fail("list", key, error)

    def _scan(self, prefix: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self._base + prefix) as entries:
                return [entry for entry in entries if not _is_hidden(entry)]
        except OSError as error:
            if error.errno in _ABSENT:
                return []
            self._fail("list", prefix, error)


_OWN = {operation: getattr(LocalStore, operation) for operation in ("get", "loader", "open_value", "set")}


class _FileReader(ValueReader):
    """Parts of an open file: the same version of it, even if it is replaced meanwhile."""

    def __init__(self, store: LocalStore, key: str, descriptor: int, info: os.stat_result) -> None:
        self._store = store
        self._key = key
        self._descriptor = descriptor
        self._info = info
        self.size: int = info.st_size

    @property
    def version(self) -> object | None:
        info = self._info
        changed = max(info.st_mtime_ns, info.st_ctime_ns)
        # A file changed just now may change again within the same tick of the clock its times are taken from.
        if time.time_ns() - changed < _SETTLED:
            return None
        return info.st_dev, info.st_ino, info.st_mtime_ns, info.st_ctime_ns, info.st_size

    def read(self, start: int, length: int | None = None) -> Buffer:
        if start < 0:
            start = max(self.size + start, 0)
        wanted = max(self.size - start, 0)
        if length is not None:
            if length < 0:
                raise negative_length(length)
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

    def read_ranges(self, starts: Sequence[int], lengths: Sequence[int]) -> list[Buffer]:
        try:
            parts = [*map(os.pread, itertools.repeat(self._descriptor), lengths, starts)]
        except (OSError, OverflowError, ValueError):  # Places beyond the end, for one; told apart below.
            return self.read_each(starts, lengths)
        whole = sum(map(len, parts)) == sum(lengths)
        return cast("list[Buffer]", parts) if whole else self.read_each(starts, lengths)

    def iter_ranges(self, starts: Sequence[int], lengths: Sequence[int]) -> Iterator[Buffer]:
        return map(self.read, starts, lengths)

    def read_each(self, starts: Sequence[int], lengths: Sequence[int]) -> list[Buffer]:
        """Several parts, each read until it is whole."""
        return [self.read(start, length) for start, length in zip(starts, lengths, strict=True)]

    def read_into(self, start: int, out: memoryview) -> int:
        count = 0
        try:
            while count < len(out):
                more = os.preadv(self._descriptor, [out[count:]], start + count)
                if not more:
                    break
                count += more
        except OverflowError:  # So far out that there is nothing.
            return count
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


def _create(folders: Folders, above: str, name: str) -> tuple[int, int]:
    """Open a directory and a new file in it.

    The directories above it are made, too, which others may be removing just now.
    """
    spared = False
    for _ in range(_ATTEMPTS):
        try:
            folder = folders.make(above)
        except OSError as error:
            if error.errno not in OTHER_KIND:
                raise
            folder = folders.make(folders.real(above))
        try:
            return folder, os.open(name, _CREATE, 0o666, dir_fd=folder)
        except FileNotFoundError:
            folders.forget()
        except OSError as error:
            if error.errno not in NO_MORE or spared:
                raise
            folders.forget()  # So many are open that there is none left for the file.
            spared = True
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), above)


def _write_all(descriptor: int, pieces: list[memoryview]) -> None:
    for at in range(0, len(pieces), _MOST_PIECES):
        group = pieces[at : at + _MOST_PIECES]
        done = os.writev(descriptor, group) if len(group) > 1 else os.write(descriptor, group[0])
        for piece in group:
            if done < len(piece):  # More than the system writes at once, or a disk that is filling up.
                rest = piece[done:]
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
                done = len(piece)
            done -= len(piece)


def _discard(folders: Folders, folder: str, name: str) -> None:
    """Remove what is no key; whether that succeeds is no matter of the caller's keys."""
    with contextlib.suppress(OSError):
        folders.unlink(folder, name)


def _sweep_folder(folders: Folders, folder: str) -> None:
    """Remove abandoned temporary files of a directory that holds nothing else."""
    names = []
    try:
        with contextlib.closing(folders.scan(folder)) as entries:
            for entry in entries:
                if not entry.name.startswith(TEMPORARY) or not _is_abandoned(entry):
                    return
                names.append(entry.name)
    except OSError:  # It has gone, or is not ours to look into: it stays as it is.
        return
    for name in names:
        _discard(folders, folder, name)


def _is_abandoned(entry: os.DirEntry[str]) -> bool:
    try:
        return time.time() - entry.stat(follow_symlinks=False).st_mtime > _ABANDONED
    except FileNotFoundError:  # Its writer has just moved it to its place.
        return False


def _is_hidden(entry: os.DirEntry[str]) -> bool:
    """Whether it is a temporary file, or a directory of values that are still to be moved."""
    if entry.name.startswith(STAGED):
        return entry.is_dir(follow_symlinks=False)
    return entry.name.startswith(TEMPORARY)


def _is_name(text: str) -> bool:
    """Whether the file system can have that name, and gives it back as it is."""
    try:
        return "\0" not in text and os.fsdecode(os.fsencode(text)) == text
    except UnicodeError:
        return False


def _restore(root: str, read_only: bool) -> LocalStore:
    return LocalStore(root, read_only=read_only)
