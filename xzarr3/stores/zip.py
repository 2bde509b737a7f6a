"""A store in a zip, which is a file of this machine or, to be read, a value of another store.

Specification: PKWARE APPNOTE 6.3.10. The names of the members are the keys, as in zarr-python. Members are
stored uncompressed (method 0) or deflated (8).

:mod:`zipfile` reads and writes the directory of a zip. Members are read and written here. A member must be
where the directory says, under its name, and must end before the next one.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import stat
import struct
import threading
import time
import uuid
import warnings
import weakref
import zipfile
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, Literal, TypeAlias, get_args
from zipfile import ZipInfo

from isal import isal_zlib

from xzarr3 import errors
from xzarr3._types import Buffer, Found, Part
from xzarr3.errors import StoreError
from xzarr3.stores.base import Key, Store, Traits, called_as
from xzarr3.stores.interned import interned
from xzarr3.stores.keys import check_key
from xzarr3.stores.local import system
from xzarr3.stores.local.files import Lock, state_of
from xzarr3.stores.local.near import missing_part
from xzarr3.stores.local.store import LocalStore
from xzarr3.stores.locks import fork_safe, key_lock
from xzarr3.stores.values import NO_LIMIT, BytesValue, Into, Value, check_size, clip, cut

Mode: TypeAlias = Literal["r", "r+", "a", "w", "w-", "x"]

TAIL = 2**16 + 98
"""Bytes at the end of a zip that always contain its end records, whatever the comment."""
LARGEST_DIRECTORY = 2**29
"""Largest size in bytes of a directory that is read."""
_HEADER = struct.Struct("<4s5H3L2H")
_STORED, _DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED
_UNIX, _MODE = 3, 0o100644 << 16
_UNICODE, _ENCRYPTED = 0x800, 0x2041
_EMPTY = b"PK\5\6" + bytes(18)  # A zip without members.
_MOST_DEFLATED = 1032  # The best compression factor of deflate.
_BLOCK = 2**22
_SLACK = 60  # Bytes of a header's extra fields that are read along with it.
_OF_INNER = ("concurrency", "request_bytes", "over_read")
_PATIENCE = 0.2  # Seconds that a writer waits for another one.
_WHOLE = "copy the zip again, whole"
_CLOSED = "is read-only: it was opened with mode 'r', or is closed; open it with mode 'a' or 'w'"
_ELSEWHERE = (
    "is being written by another process; close it first, use threads of that process "
    "(scheduler='threads'), or write a directory and make a zip of it with ZipStore.pack"
)


class _Seekable(io.RawIOBase):
    """A zip as :mod:`zipfile` wants it, with its end in memory."""

    def __init__(self, file: Value) -> None:
        self._file, self._tail, self._at = file, bytes(file.read(-TAIL, TAIL)), 0
        self._end = file.size or len(self._tail)
        self.hash = hashlib.blake2b(digest_size=16)
        """Of what was read, which are the end records and the directory."""

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max((0, self._at, self._end)[whence] + offset, 0)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        rest = max(self._end - self._at, 0)
        count = rest if size is None or size < 0 else min(size, rest)
        if count > LARGEST_DIRECTORY:
            raise zipfile.BadZipFile(f"its directory has {count} bytes, {LARGEST_DIRECTORY} at most are read")
        first = self._at - (self._end - len(self._tail))
        data = self._tail[first:][:count] if first >= 0 else bytes(self._file.read(self._at, count))
        self._at += len(data)
        self.hash.update(data)
        return data


class _Zip:
    """The present contents of a zip.

    Parameters
    ----------
    where : str
        The name of the zip, for error messages.
    file : Value
        The bytes of the zip. It is closed when neither the zip nor an open member is in use.

    Raises
    ------
    StoreError
        If the file is not a zip.
    """

    def __init__(self, where: str, file: Value) -> None:
        self.where, self.file = where, file
        if file.size is None:
            with file:
                self.file = BytesValue(file.read(0))
        weakref.finalize(self, self.file.close)
        seekable = _Seekable(self.file)
        try:
            with zipfile.ZipFile(seekable) as archive:
                infos, self.start, self.comment = archive.infolist(), archive.start_dir, archive.comment
        except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError, struct.error) as error:
            raise StoreError(f"cannot read {where}: {error}; {_WHOLE}") from error
        self.lineage = seekable.hash.hexdigest()
        """Distinguishes the contents from those of other zips, and of other writers of this zip."""
        self.members = {name: info for info in infos if (name := _name(info)) is not None}
        self.others = [info for info in infos if _name(info) is None]
        """Members that are no keys: folders, and members with unusable names."""
        self._offsets = sorted([*(info.header_offset for info in infos), self.start])
        self.changes = 0
        self.data: dict[int, int] = {}
        """Offset of a member's data, by offset of the member, once it is known."""

    def version(self, key: str) -> object | None:
        """Distinguishes the value of a key from all its other values."""
        info = self.members.get(key)
        return None if info is None else (self.lineage, info.header_offset, info.CRC, info.file_size)

    def error(self, info: ZipInfo, problem: str, advice: str = _WHOLE) -> StoreError:
        return StoreError(f"cannot read key '{info.filename}' of {self.where}: {problem}; {advice}")

    def read(self, info: ZipInfo, starts: Sequence[int], lengths: Sequence[int]) -> list[Buffer]:
        """Parts of a member as it is stored. Its header is read along with the first ones."""
        parts: list[Buffer] = []
        begin = self.data.get(info.header_offset)
        if begin is None:
            self._check(info)
            offset, size = info.header_offset, _HEADER.size + len(_raw_name(info))
            is_first = list(starts) == [0]
            if is_first:  # One request, with room for the extra fields that some programs add.
                header = self.file.read(offset, size + lengths[0] + _SLACK)
            else:
                places = [offset, *(offset + size + start for start in starts)]
                header, *parts = self.file.read_ranges(places, [size, *lengths])
            extra = self._checked(info, header)
            self.data[info.header_offset] = begin = offset + size + extra
            if is_first or extra:
                parts = [memoryview(header)[size + extra :][: lengths[0]]] if is_first else []
        if not parts or len(parts[0]) < lengths[0]:
            parts = self.file.read_ranges([begin + start for start in starts], lengths)
        if list(map(len, parts)) != list(lengths):
            raise self.error(info, "it is truncated")
        return parts

    def _check(self, info: ZipInfo, size: int = _HEADER.size) -> None:
        """Raise unless a member with a header of ``size`` bytes can be read and ends before the next one."""
        method, stored, full = info.compress_type, info.compress_size, info.file_size
        if info.flag_bits & _ENCRYPTED or method not in (_STORED, _DEFLATED):
            what = "encrypted" if info.flag_bits & _ENCRYPTED else f"compressed by method {method}"
            raise self.error(info, f"it is {what}; accepted: 0 (stored) and 8 (deflate)", "rewrite the zip")
        if stored != full if method == _STORED else full > stored * _MOST_DEFLATED:
            raise self.error(info, f"{stored} bytes of method {method} cannot be a value of {full} bytes")
        after = bisect_left(self._offsets, info.header_offset) + 1
        if after >= len(self._offsets) or info.header_offset + size + stored > self._offsets[after]:
            raise self.error(info, "it overlaps the next member or the directory")

    def _checked(self, info: ZipInfo, header: Buffer) -> int:
        """The size of the extra fields after a header, which must be that of the member."""
        name = _raw_name(info)
        if len(header) < _HEADER.size + len(name):
            raise self.error(info, "it is truncated")
        mark, _, _, method, *_, name_size, extra_size = _HEADER.unpack_from(header)
        is_same = (
            bytes(header[_HEADER.size :][: len(name)]) == name or not name.isascii()
        )  # Other code pages.
        if (mark, method, name_size) != (b"PK\3\4", info.compress_type, len(name)) or not is_same:
            raise self.error(info, "its header contradicts the directory")
        self._check(info, _HEADER.size + int(name_size) + int(extra_size))
        return int(extra_size)

    def whole(self, info: ZipInfo) -> Buffer:
        """A whole value, verified by its checksum."""
        (data,) = self.read(info, [0], [info.compress_size])
        if info.compress_type == _DEFLATED:
            stream = zlib.decompressobj(-15)
            try:  # One more byte than expected shows a member that is too long.
                data = stream.decompress(data, info.file_size + 1)
            except zlib.error as error:
                raise self.error(info, f"it cannot be inflated: {error}") from error
            if len(data) != info.file_size or not stream.eof:
                raise self.error(info, f"it does not inflate to the {info.file_size} bytes of the directory")
        if isal_zlib.crc32(data) != info.CRC:
            raise self.error(info, f"CRC mismatch: expected {info.CRC:#x}, found {isal_zlib.crc32(data):#x}")
        return data


class _Member(Value):
    """Parts of one member, as it was when it was opened. A deflated one is inflated whole, once."""

    def __init__(self, zipped: _Zip, info: ZipInfo) -> None:
        self._zip, self._info = zipped, info
        self._whole: Buffer | None = None
        self.size: int = info.file_size
        self.version = zipped.version(info.filename)

    def read(self, start: int, length: int | None = None) -> Buffer:
        return self.read_ranges([start], [self.size if length is None else length])[0]

    def read_ranges(self, starts: Sequence[int], lengths: Sequence[int]) -> list[Buffer]:
        parts = [clip(self.size, *part) for part in zip(starts, lengths, strict=True)]
        firsts, sizes = [first for first, _ in parts], [size for _, size in parts]
        if self._whole is None and (self._info.compress_type == _DEFLATED or self.size in sizes):
            self._whole = self._zip.whole(self._info)
        if self._whole is None:
            return self._zip.read(self._info, firsts, sizes)
        return [cut(self._whole, part) for part in parts]


def _raw_name(info: ZipInfo) -> bytes:
    """The bytes of a member's name in the file."""
    name = info.orig_filename
    return name.encode("utf-8" if info.flag_bits & _UNICODE or name.isascii() else "cp437")


def _name(info: ZipInfo) -> str | None:
    """The key of a member, which becomes its name; None if it is a folder, or has a name that is no key.

    Names that come from Unix are UTF-8 if they can be, although Info-ZIP does not mark them so.
    """
    name = info.orig_filename if "\0" in info.orig_filename else info.filename
    if not name.isascii() and name == info.orig_filename and info.create_system == _UNIX:
        with contextlib.suppress(UnicodeDecodeError):
            name = _raw_name(info).decode()
    info.filename = name
    with contextlib.suppress(errors.InvalidKeyError):
        return check_key(name)
    return None


class _Draft(Value):
    """The lock file of a zip, in which the next one is written; see :mod:`xzarr3.stores.local.files`.

    What is in it is read through a second opening, which is closed once no reader is left.

    Parameters
    ----------
    target : str
        Path of the zip, with links resolved.
    where : str
        The name of the zip, for error messages.
    replaces : bool
        Whether an old zip is replaced, whatever happened to it meanwhile.
    """

    _file = -1  # The second opening.

    def __init__(self, target: str, where: str, *, replaces: bool) -> None:
        self.where, self._target, self._replaces = where, target, replaces
        self.end = 0
        folder = os.path.dirname(target)
        with _failing(f"write {where}"):
            os.makedirs(folder, exist_ok=True)
            if os.path.exists(target) and not os.access(target, os.W_OK):
                raise PermissionError(13, "the zip may not be written", target)
            late, end = system.tells_late(os.stat(folder).st_dev), time.monotonic() + _PATIENCE
            try:
                self.lock = Lock(target, end, shared=system.POSIX, late=late)
            except TimeoutError as error:
                raise StoreError(
                    f"cannot write {where}: another ZipStore is writing it, in this process or in another; "
                    "use one writer at a time, or threads of one process"
                ) from error
            self._before = state_of(target)
            self._file = os.open(self.lock.name, system.OPEN)
            self.forget = weakref.finalize(self, _warn, where, self.lock)

    def copy(self, old: _Zip) -> None:
        """Begin with the members of an old zip."""
        infos = [*old.members.values(), *old.others]
        if any(info.filename.encode() != _raw_name(info) for info in infos):
            raise StoreError(
                f"cannot add to {self.where}: names of members are not in UTF-8; copy it with ZipStore.pack"
            )
        if any(info.header_offset >= old.start for info in infos):  # Where new members would be.
            raise StoreError(f"cannot add to {self.where}: members lie beyond its directory; {_WHOLE}")
        for at in range(0, old.start, _BLOCK):
            self.append([old.file.read(at, min(_BLOCK, old.start - at))])

    def read(self, start: int, length: int | None = None) -> Buffer:
        if self._file < 0:
            raise StoreError(f"{self.where} {_ELSEWHERE}")
        return system.read_at(self._file, self.end - start if length is None else length, start)

    def append(self, pieces: Sequence[Buffer]) -> None:
        """Append bytes. After a failure the next ones are written to the same offset."""
        with _failing(f"write {self.where}"):
            os.lseek(self.lock.descriptor, self.end, os.SEEK_SET)
            system.write_all(self.lock.descriptor, pieces)
        self.end += sum(map(len, pieces))

    def commit(self, zipped: _Zip, *, fsync: bool) -> None:
        """Write the directory and rename the file; if that fails, the old zip is as it was."""
        with _failing(f"write {self.where}"):
            with open(self.lock.descriptor, "wb", 2**20, closefd=False) as stream:
                stream.seek(self.end)
                with zipfile.ZipFile(stream, "w") as archive:
                    archive.comment = zipped.comment
                    members = [*zipped.others, *zipped.members.values()]
                    archive.infolist().extend(sorted(members, key=attrgetter("header_offset")))
                stream.truncate()
            now = state_of(self._target)
            if not self.lock.is_in_place() or not (self._replaces or now == self._before):
                raise errors.ConflictError(f"cannot write {self.where}: another writer changed it meanwhile")
            if now is not None:
                os.chmod(self.lock.name, stat.S_IMODE(os.stat(self._target).st_mode))
            self._make_free()
            self.lock.publish(fsync=fsync)
            self.forget.detach()
            self.lock.lose()
            if fsync:
                system.sync_folder(os.path.dirname(self._target))

    def release(self) -> None:
        """Remove the file, unless it was renamed. What was opened before can still be read."""
        self._make_free()
        self.forget.detach()
        self.lock.close()

    def _make_free(self) -> None:
        if not system.POSIX:  # An open file can be neither renamed nor removed.
            self.close()

    def close(self) -> None:
        descriptor, self._file = self._file, -1
        if descriptor >= 0:
            os.close(descriptor)

    __del__ = close


def _warn(where: str, lock: Lock) -> None:
    """Say that a zip was never closed, when its store is gone or the interpreter exits."""
    if lock.descriptor >= 0:  # Not in a forked child, which has none.
        lock.close()
        text = f"{where} was not closed, so nothing was written to it; use 'with', or call close()"
        warnings.warn(text, stacklevel=2)


@contextlib.contextmanager
def _failing(doing: str) -> Iterator[None]:
    """Errors of the system as those of a store."""
    try:
        yield
    except errors.Xzarr3Error:
        raise
    except (OSError, struct.error, ValueError, zipfile.LargeZipFile) as error:
        kind = errors.StorePermissionError if isinstance(error, PermissionError) else StoreError
        advice = "use a path that this user may write, or free some space"
        raise kind(f"cannot {doing}: {getattr(error, 'strerror', None) or error}; {advice}") from error


class ZipStore(Store):
    """Values are members of a zip, uncompressed.

    Reading requests the end of the zip and its directory once, and then one request for each value; a store
    that cannot tell the size of the zip reads all of it. Deflated members are read as well, each as a whole.
    A value that is read whole is verified by its checksum. For a part, the store verifies that the member is
    where the directory says and that the part has the right length.

    Writing needs a single writer: one store object, which all threads of its process may use. Its changes are
    committed to the zip by :meth:`close`, by :meth:`flush` or at the end of a ``with`` statement. Until then
    other readers see the old zip, also if this process is killed. A ``with`` statement that ends with an
    error discards the changes, see :meth:`discard`. A store that is never closed writes nothing, and warns.

    Replaced and erased values keep their space in the zip; :meth:`pack` makes a zip without them. Equal
    values, set in the same order, give equal bytes.

    Parameters
    ----------
    path : str, path or Store
        The zip file; or the store that holds the zip as a value, together with ``key``. Such a zip can only
        be read. To make one, write a zip to a local path and upload it.
    key : str, optional
        The key of that value.
    mode : {"r", "r+", "a", "w", "w-", "x"}
        ``r`` reads a zip. ``r+`` adds to an existing zip; ``a`` does so or creates one. ``w`` creates a zip
        and replaces an existing one. ``w-`` and ``x`` create a zip and refuse to replace one.
    fsync : bool
        Wait until the zip is on the disk before it is renamed to its path.

    Notes
    -----
    A zip is written to its lock file, as values of a :class:`LocalStore` are: ``x.zip.__lock`` beside
    ``x.zip``, which is then renamed in one step. Adding to a zip starts from a copy of it, which takes the
    space of a second zip and the time to copy it. A killed writer leaves that file behind until the next
    writer removes it. Nothing can be added to a zip with names that are not UTF-8.

    Members whose names cannot be keys (``../x``, ``/x``, ``a//b``) are ignored. Backslashes and colons in
    names are ordinary characters. A member that is encrypted, compressed by another method, of an impossible
    size, or that overlaps another one, is listed, but reading it raises an error. Of several members with one
    name the last one counts.

    A store that is being written can be neither read nor written in another process.

    Examples
    --------
    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/x.zarr.zip"
    >>> with ZipStore(path, mode="w") as store:
    ...     store.set("a/b", b"value")
    >>> store = ZipStore(path)
    >>> bytes(store.get("a/b", (1, 3)))
    b'alu'
    >>> store.set("a/c", b"")
    Traceback (most recent call last):
    xzarr3.errors.ReadOnlyError: <ZipStore '...'> is read-only: it was opened with mode 'r', or ...
    """

    traits = Traits(request_bytes=2**12, conditional="processes", visible="at close", tells_changes=True)
    _not_pickled = Store._not_pickled | {"_zip", "_draft", "_lock"}
    _zip: _Zip | None = None
    _draft: _Draft | None = None
    _writer: int | None = None  # The process that writes the zip, -1 if it is another one.

    def __init__(
        self,
        path: str | os.PathLike[str] | Store,
        key: str | None = None,
        *,
        mode: Mode = "r",
        fsync: bool = False,
    ) -> None:
        if mode not in get_args(Mode):
            raise errors.ArgumentError(f"mode={mode!r}; accepted: {errors.listed(get_args(Mode))}")
        if isinstance(path, Store) != isinstance(key, str):
            raise errors.ArgumentError(
                f"key={key!r} with {errors.shorten(path)}; accepted: a Store and the key of a zip, or a path"
            )
        self.path: str | None = None
        self.mode, self._lock = mode, fork_safe(threading.RLock())
        if isinstance(path, Store):
            self._inner, self.key, of = path, check_key(str(key)), path.traits
            own: dict[str, Any] = {name: getattr(of, name) for name in _OF_INNER}
        else:
            self.path = LocalStore(path).root
            folder, self.key = os.path.split(os.path.realpath(self.path))
            self._inner, own = LocalStore(folder), {"durable": fsync}
        super().__init__(read_only=mode == "r", **own)
        if mode == "r":
            self._opened()
        else:
            self._begin("x" if mode == "w-" else mode)
        interned((self._name, os.getpid()), lambda: self, keep=False)

    def __repr__(self) -> str:
        where = f"'{errors.printable(self.path or self.key)}'"
        return f"<ZipStore {where}>" if self.path else f"<ZipStore {where} of {self._inner}>"

    @property
    def identity(self) -> object:
        return "ZipStore", self._inner.identity, self.key

    @property
    def read_only(self) -> bool:
        """Whether every write is refused, as once the zip is closed."""
        is_open = self._draft is not None and self._draft.lock.descriptor >= 0  # None in a forked child.
        return self.traits.read_only or not is_open

    def check_writable(self) -> None:
        with self._lock:  # A flush ends one draft before it begins the next.
            self._writing()

    def __reduce__(self) -> tuple[object, ...]:
        writer = None if self._writer is None else -1
        return _restored, (self._name, self.__getstate__() | {"_writer": writer})

    # Opening and closing

    @property
    def _is_elsewhere(self) -> bool:
        """Whether the zip is written by another process: this one has a copy, or was forked from it."""
        return self._writer is not None and self._writer != os.getpid()

    def _opened(self) -> _Zip:
        """The present contents."""
        if self._is_elsewhere:
            raise StoreError(f"{self} {_ELSEWHERE}")
        found = self._zip
        if found is None:
            with self._lock:
                found = self._zip = self._zip or self._found()
        return found

    def _found(self) -> _Zip:
        file = self._inner.open(self.key, (-TAIL, TAIL))
        if file is None:
            near = f"; {missing_part(self.path)}" if self.path else ""
            advice = "correct the path, use mode 'w', or close the store that is writing it"
            raise errors.NodeNotFoundError(f"{self} does not exist; {advice}{near}")
        return _Zip(str(self), file)

    def _begin(self, mode: str) -> None:
        """Begin to write."""
        if self.path is None:
            raise errors.StoreCapabilityError(
                f"cannot write {self}, a value of another store; write a zip at a local path "
                "(ZipStore.pack makes one of any store), then upload it"
            )
        path = os.path.join(str(self._inner.folder), self.key)
        draft = _Draft(path, str(self), replaces=mode == "w")
        try:
            exists = self._inner.exists(self.key)
            if exists and mode == "x":
                raise errors.NodeExistsError(f"{self} already exists; use mode 'a' or 'w'")
            is_new = mode == "w" or not (exists or mode == "r+")
            zipped = _Zip(str(self), BytesValue(_EMPTY)) if is_new else self._found()
            draft.copy(zipped)
        except BaseException:
            draft.release()
            raise
        zipped.file.close()
        zipped.file, zipped.lineage = draft, uuid.uuid4().hex
        zipped.changes = int(is_new)
        self._zip, self._draft, self._writer = zipped, draft, os.getpid()

    def _writing(self) -> tuple[_Draft, _Zip]:
        """The draft and its contents. The caller holds the lock, so that no other thread writes or closes."""
        if self._is_elsewhere:
            raise errors.ReadOnlyError(f"{self} {_ELSEWHERE}")
        if self.read_only or self._draft is None or self._zip is None:
            raise errors.ReadOnlyError(f"{self} {_CLOSED}")
        return self._draft, self._zip

    def flush(self) -> None:
        """Commit the changes to the zip and keep it open for writing.

        Raises
        ------
        StoreError
            If that fails. The old zip is then unchanged, and the call can be repeated.
        """
        with self._lock:
            draft, zipped = self._writing()
            if zipped.changes:
                draft.commit(zipped, fsync=self.traits.durable)
                self._begin("r+")

    def close(self) -> None:
        """Commit the changes to the zip and end writing. A later read opens the zip again.

        Raises
        ------
        StoreError
            If that fails, for example because the disk is full. The old zip is then unchanged, the store
            stays open, and the call can be repeated.
        """
        with self._lock:
            draft, zipped = self._draft, self._zip
            if not self.read_only and draft is not None and zipped is not None and zipped.changes:
                draft.commit(zipped, fsync=self.traits.durable)
            self.discard()

    def discard(self) -> None:
        """Discard all changes since the store was opened, and end writing."""
        with self._lock:
            if not self._is_elsewhere:
                if self._draft is not None and not self.traits.read_only:
                    self._draft.release()
                self._zip = self._draft = self._writer = None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self.close()
        else:
            self.discard()

    @staticmethod
    def pack(source: Store, path: str | os.PathLike[str], *, fsync: bool = False) -> ZipStore:
        """Make a zip of all values of a store, sorted by key; equal values give equal bytes.

        To remove replaced and erased values from a zip, pack it to its own path.

        Parameters
        ----------
        source : Store
        path, fsync
            See :class:`ZipStore`; an existing zip is replaced.

        Returns
        -------
        ZipStore
            The zip, opened for reading.

        Examples
        --------
        >>> import tempfile
        >>> from xzarr3 import MemoryStore
        >>> source = MemoryStore({"b": b"2", "a": b"1"})
        >>> list(ZipStore.pack(source, tempfile.mkdtemp() + "/x.zip").list())
        ['a', 'b']
        """
        with ZipStore(path, mode="w", fsync=fsync) as target:
            keys, step = sorted(source.list()), 4 * source.concurrency
            for some in (keys[at : at + step] for at in range(0, len(keys), step)):
                for key, value in zip(some, source.get_values(some), strict=True):
                    if value is None:
                        raise StoreError(f"key '{key}' of {source} was removed while it was packed")
                    target.set(key, value)
        return target

    # The contract

    def get(self, key: str, byte_range: Part = None, *, into: Into = None, limit: int = NO_LIMIT) -> Found:
        zipped = self._opened()
        info = zipped.members.get(key)
        if info is None:
            return None
        if byte_range is not None:
            return _Member(zipped, info).read(*byte_range)
        check_size(info.file_size, limit)
        check_size(info.compress_size, limit + limit // 1000 + 1000)  # Deflate may enlarge a value slightly.
        return zipped.whole(info)

    def open(self, key: str, first: Part = None, version: object = None) -> Value | None:
        zipped = self._opened()
        info = zipped.members.get(key)
        return None if info is None else _Member(zipped, info)

    @called_as(Store.put)
    def put(self, key: str, pieces: Sequence[Buffer]) -> None:
        info = ZipInfo(key)
        info.filename, info.create_system, info.external_attr = key, _UNIX, _MODE
        info.file_size = info.compress_size = sum(map(len, pieces))
        info.CRC = 0
        for piece in pieces:
            info.CRC = isal_zlib.crc32(piece, info.CRC)
        try:
            header = info.FileHeader()
        except (UnicodeEncodeError, struct.error) as error:
            raise errors.InvalidKeyError(
                f"invalid key {errors.shorten(key)}; accepted: at most 65535 bytes of UTF-8"
            ) from error
        with self._lock:
            draft, zipped = self._writing()
            info.header_offset = draft.end
            draft.append([header, *pieces])
            zipped.data[info.header_offset] = info.header_offset + len(header)
            zipped.members[key] = info
            zipped.changes += 1

    def erase(self, *keys: str) -> None:
        for key in keys:
            with key_lock(self.identity, key), self._lock:  # Not while another thread changes the value.
                zipped = self._writing()[1]
                zipped.changes += zipped.members.pop(key, None) is not None

    def list(self, prefix: str = "") -> Iterator[str]:
        with self._lock:
            members = self._opened().members
            return iter([Key(key, info.file_size) for key, info in members.items() if key.startswith(prefix)])

    def versions(self, keys: Sequence[str]) -> Sequence[object | None]:
        zipped = self._opened()
        return [zipped.version(key) if key else (zipped.lineage, zipped.changes) for key in keys]


def _restored(name: str, state: dict[str, Any]) -> ZipStore:
    """The store of a pickled form: the original in its own process, else one that reads, if nobody writes."""

    def make() -> ZipStore:
        made = ZipStore.__new__(ZipStore)
        vars(made).update(state, _lock=fork_safe(threading.RLock()))
        return made

    store = interned((name, os.getpid()), make, keep=state["_writer"] is None)
    return store._with(state["traits"])
