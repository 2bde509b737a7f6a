"""File systems of fsspec, used so that a failure is never taken for the absence of a value.

fsspec has no contract for that: some file systems say "not found" whatever went wrong, some give other bytes
than were asked for if the server ignores a range, and most remember listings that others have changed since.
"""

from __future__ import annotations

import contextlib
import errno
import io
import math
import os
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from functools import cached_property
from inspect import signature
from types import FrameType
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote
from weakref import WeakKeyDictionary

from xzarr3._types import Buffer
from xzarr3.concurrency import spread, undisturbed
from xzarr3.errors import StoreError
from xzarr3.stores.base import cut
from xzarr3.stores.in_flight import reserved
from xzarr3.stores.local import TEMPORARY
from xzarr3.stores.locks import key_lock

FileSystem: TypeAlias = Any  # fsspec is imported when it is needed, and has no types.

MANY = 64  # Requests at a time, of a file system that waits for answers with an event loop.
SETTLED = 3.0
"""Seconds after which a value that was written anew has another time of modification for sure."""
_FIRST_GUESS = 2**20  # Bytes
_HUGE = 2**28
_LONG_SUFFIX = 2**20
_LEVELS = 100  # Directories made with one call, which calls itself for each.
_ATTEMPTS = 100
_REPLACED = 4  # Times that a value is replaced while parts of it are read, before all of it is.
_DEEPEST_CAUSE = 20
LOCAL = frozenset(("file", "local"))
"""What the file system of this machine is called."""
_OBJECTS = frozenset(("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "memory"))
_HTTP = frozenset(("http", "https"))
_SUFFIXES = frozenset(("s3", "s3a", "gs", "gcs", "memory")) | _HTTP
_MOVES = LOCAL | {"sftp", "ssh"}
_PRUNES = _MOVES | {"ftp"}
_CREATES = frozenset(("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az"))
_ARCHIVES = frozenset(("zip", "tar", "libarchive"))
_CACHES = frozenset(("simplecache", "filecache", "blockcache", "cached"))
_FIXED = _ARCHIVES | {"blockcache", "cached"}
FIXED = ("fixed",)
"""The mark of a value that never becomes another one."""
_TAGS = ("ETag", "etag", "e_tag", "generation")
_TIMES = ("mtime", "LastModified", "last_modified", "modified", "updated", "modify", "created")
_READ_ONLY = _HTTP | _ARCHIVES | _CACHES | {"reference"}

_ABSENT_TYPES = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
_ABSENT_NUMBERS = frozenset((errno.ENOENT, errno.ENOTDIR, errno.EISDIR))
_ABSENT_STATUSES = (404, 410)
_ABSENT_NAMES = re.compile("NotFound|NoSuch|EntryNot")
_REFUSED_TEXTS = re.compile("denied|permission|not allowed|^530", re.IGNORECASE)
_NO_MEMBER = '"There is no item named'  # A KeyError of zipfile, which older file systems hand on.
_ABSENT_TEXTS = re.compile("not exist|not found|no such", re.IGNORECASE)

_one_at_a_time: WeakKeyDictionary[Any, threading.Lock] = WeakKeyDictionary()
_guard = threading.Lock()


def _renew() -> None:
    """A forked child must not wait for a thread of its parent, and is another process."""
    global _guard, PROCESS
    _guard = threading.Lock()
    _one_at_a_time.clear()
    PROCESS = uuid.uuid4().hex
    loops = sys.modules.get("fsspec.asyn")
    if loops is not None:  # Its thread has stayed behind; not every fsspec sees to that itself.
        loops.reset_lock()


PROCESS = uuid.uuid4().hex
"""Names this process."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


class WrongBytesError(Exception):
    """A file system gave something else than was asked for."""


class Look(NamedTuple):
    """What a file system says of a value without reading it."""

    size: int | None
    mark: tuple[object, ...] | None
    """What is another one once the value is; None if nothing tells that."""
    exact: bool = False
    """Whether a service names its versions like that."""

    def is_same(self, other: Look) -> bool:
        """Whether both are of one version."""
        return self.mark is not None and (self.size, self.mark) == (other.size, other.mark)


def look_of(info: Mapping[str, Any], size: int | None) -> Look:
    """What the ``info`` of a file system says of a version.

    The time of its modification tells nothing as long as it may become the same once more.
    """
    for name in _TAGS:
        tag = info.get(name)
        if tag and isinstance(tag, (str, int)) and not str(tag).startswith("W/"):
            return Look(size, (name, tag), exact=True)
    times = [(name, info[name]) for name in _TIMES if info.get(name) is not None]
    now = time.time()
    if not times or not all(now - _timestamp(value) >= SETTLED for _, value in times):
        return Look(size, None)
    return Look(size, (info.get("ino"), *times))


def _timestamp(value: object) -> float:
    """Seconds since 1970; without end if that cannot be told."""
    try:
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        if isinstance(value, datetime) and value.tzinfo is not None:
            return value.timestamp()
    except (ValueError, OverflowError):
        return math.inf
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.inf


# What a failure means


def status_of(error: BaseException) -> int | None:
    """The HTTP status that an error of a client library carries."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):  # botocore
        found = response.get("ResponseMetadata")
        status = found.get("HTTPStatusCode") if isinstance(found, Mapping) else None
        return status if isinstance(status, int) else None
    for holder, name in (
        (error, "status"),
        (error, "status_code"),
        (error, "code"),
        (response, "status_code"),
    ):
        status = getattr(holder, name, None)
        if isinstance(status, int) and 400 <= status < 600:
            return status
    return None


def causes(error: BaseException) -> Iterator[BaseException]:
    """An error and those that led to it, without what a caller is just handling, which did not."""
    current: BaseException | None = error
    for _ in range(_DEEPEST_CAUSE):
        if current is None:
            return
        yield current
        earlier = None if current.__suppress_context__ else current.__context__
        if earlier is not None and _is_handled_outside(earlier):
            earlier = None
        current = current.__cause__ or earlier


def _is_handled_outside(error: BaseException) -> bool:
    """Whether it was caught in a function that has not ended: what was asked of a file system has."""
    trace = error.__traceback__
    frame: FrameType | None = sys._getframe()
    while trace is not None and frame is not None:
        if frame is trace.tb_frame:
            return True
        frame = frame.f_back
    return False


def is_absence(error: BaseException) -> bool:
    """Whether it says that there is nothing, and was not made from another failure."""
    tells = isinstance(error, _ABSENT_TYPES) or type(error).__module__ == "ftplib"
    return (tells or status_of(error) in _ABSENT_STATUSES) and all(map(_says_absent, causes(error)))


def _says_absent(error: BaseException) -> bool:
    if isinstance(
        error, (*_ABSENT_TYPES, KeyError, StopIteration)
    ):  # Looked for in a listing, and not there.
        return True
    status = status_of(error)
    if status is not None:
        return status in _ABSENT_STATUSES
    if isinstance(error, OSError) and error.errno in _ABSENT_NUMBERS:
        return True
    text = str(error)
    if type(error).__module__ == "ftplib":
        return not _says_refused(error) and (text.startswith("550") or _ABSENT_TEXTS.search(text) is not None)
    if _ABSENT_NAMES.search(type(error).__name__):
        return True
    return type(error) is OSError and _ABSENT_TEXTS.search(text) is not None


def is_refusal(error: BaseException) -> bool:
    """Whether access was refused."""
    return any(map(_says_refused, causes(error)))


def _says_refused(error: BaseException) -> bool:
    if isinstance(error, PermissionError) or status_of(error) in (401, 403):
        return True
    return type(error).__module__ == "ftplib" and _REFUSED_TEXTS.search(str(error)) is not None


# What file systems are made of


def protocols(fs: FileSystem) -> tuple[str, ...]:
    """The names of a file system."""
    names = type(fs).protocol  # Caches give out that of the inner one.
    if not isinstance(names, (str, tuple, list)):
        names = fs.protocol
    return (names,) if isinstance(names, str) else tuple(names)


def inner(fs: FileSystem) -> FileSystem:
    """The file system that another one hands its paths on to, or None."""
    own = object.__getattribute__(fs, "__dict__")  # Some give out that of the inner one.
    return own.get("sync_fs", own.get("fs"))


def layers(fs: FileSystem) -> Iterator[FileSystem]:
    """A file system and those that it hands its paths on to."""
    while fs is not None:
        yield fs
        fs = inner(fs)


def in_memory(fs: FileSystem) -> bool:
    """Whether its values are in the memory of this process."""
    return "memory" in protocols([*layers(fs)][-1])


def rebuilt(value: Any, *, options: bool = False) -> Any:
    """A file system made again as it was made before, but not for use within somebody else's event loop.

    Parameters
    ----------
    value : object
        A file system, or what is given to make one.
    options : bool
        Whether a mapping in ``value`` holds options of a file system.

    Raises
    ------
    StoreError
        If it reads from an open file.
    """
    import fsspec

    if isinstance(value, fsspec.AbstractFileSystem):
        if type(value).__name__ in ("MemoryFileSystem", "LocalFileSystem"):
            return value
        if type(value).__name__ == "AsyncFileSystemWrapper":
            return rebuilt(value.sync_fs)
        arguments = [rebuilt(argument) for argument in value.storage_args if argument is not value]
        return type(value)(*arguments, **rebuilt(value.storage_options, options=True))
    if isinstance(value, Mapping) and options:
        return {
            name: rebuilt(item, options=str(name).endswith("_options") or name == "fs")
            for name, item in value.items()
            if name not in ("asynchronous", "loop")
        }
    if hasattr(value, "read") and not isinstance(value, io.BytesIO):
        raise StoreError("a file that is open in one process cannot be read in another; accepted: its URL")
    return value


# Secrets

_SECRET = re.compile(
    "secret|token|passw|pwd|credential|signature|^sig|auth|cookie|session|header|key|sas|private|connection",
    re.IGNORECASE,
)
_USER = re.compile(r"(\w://)[^/\s'\"@]+@")
_QUERY = re.compile(r"(\w://[^\s'\"<>?]*)\?[^\s'\"<>)\]]*")
_SHORTEST_SECRET = 4


def is_secret(name: object) -> bool:
    """Whether an option of that name may hold a secret."""
    return _SECRET.search(str(name)) is not None


def without_secrets(text: str, secrets: Iterable[str] = ()) -> str:
    """A text for everybody: no user names and passwords, nor queries of URLs, nor known secrets."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return _QUERY.sub(r"\1?...", _USER.sub(r"\1", text))


def secrets_in(value: object, *, secret: bool = False) -> Iterator[str]:
    """The texts among options that are secrets."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from secrets_in(item, secret=secret or is_secret(name))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from secrets_in(item, secret=secret)
    elif isinstance(value, str):
        if secret and len(value) >= _SHORTEST_SECRET:
            yield value
        for found in re.findall(r"\w://[^/\s@:]*:([^/\s]+)@", value):
            yield from secrets_in(found, secret=True)
    elif hasattr(value, "storage_options"):
        yield from secrets_in(value.storage_options)


# Using them


class Files:
    """What a store does with a file system. Errors are those of the file system; absence is None.

    Parameters
    ----------
    fs : AbstractFileSystem
    concurrency : int, optional
        How many requests there may be under way at once.
    """

    def __init__(self, fs: FileSystem, concurrency: int | None = None) -> None:
        self.fs = fs
        names = frozenset(protocols(fs))
        self.names = names
        self.lists = _HTTP.isdisjoint(protocols([*layers(fs)][-1]))
        self.can_write = not names & _READ_ONLY
        self.moves = bool(names & _MOVES)
        self.in_memory = "memory" in names
        self.is_archive = bool(names & _ARCHIVES)
        self._is_http = bool(names & _HTTP)
        self._has_folders = not names & (_OBJECTS | _READ_ONLY)
        self._is_elsewhere = not names & (LOCAL | {"memory"})
        self.tells_size = not self._is_elsewhere or self.is_archive  # Without a request.
        self.usual = _FIRST_GUESS
        self.concurrency, self._slots = self._bounds(concurrency)

    def _bounds(self, asked: int | None) -> tuple[int, AbstractContextManager[object]]:
        """How many requests there may be at once, and what holds the others up."""
        if asked is not None and asked > 1:
            return asked, threading.BoundedSemaphore(asked)
        if asked is None:
            if self.names & (LOCAL | {"memory"}):
                return 1, contextlib.nullcontext()
            if self.fs.async_impl and not self.names & _CACHES:
                return MANY, threading.BoundedSemaphore(MANY)
        with _guard:  # Of all stores on this file system: few say that threads may use them.
            return 1, _one_at_a_time.setdefault(self.fs, threading.Lock())

    @cached_property
    def creates(self) -> bool:
        """Whether it can store a value only if there is none, in one step for all processes."""
        if not self.names & _CREATES:
            return False
        kind = type(self.fs)
        function = getattr(kind, "_pipe_file", kind.pipe_file)
        return "mode" in signature(function).parameters

    def path(self, root: str, key: str) -> str:
        """The path of a key below a root."""
        if not self._is_http:
            return f"{root.rstrip('/')}/{key}" if root else key
        base, mark, query = root.partition("?")
        return f"{base.rstrip('/')}/{quote(key)}{mark}{query}"

    def _ask(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        with self._slots:
            return function(*args, **options)

    def _change(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Ask for what changes something: where another thread does it, Ctrl-C is heard when it is done."""
        if not self._is_elsewhere:
            return self._ask(function, *args, **options)
        return undisturbed(lambda: self._ask(function, *args, **options))

    def _forget(self) -> None:
        """Have nothing answered from listings that others may have changed since."""
        for fs in layers(self.fs):
            if "reference" not in protocols(fs):
                fs.invalidate_cache()

    def _bytes(self, path: str, **limits: int | None) -> Buffer | None:
        if not self.fs.async_impl:
            self._forget()  # Files that are opened take their sizes from there.
        try:
            found = self._fetched(path, **limits)
        except Exception as error:
            if is_absence(error) or (self.is_archive and str(error).startswith(_NO_MEMBER)):
                self._check_absence(path)
                return None
            if self._has_folders and self._is_folder(path, error):
                return None
            raise
        if not isinstance(found, (bytes, bytearray, memoryview)):
            raise WrongBytesError(f"found {type(found).__name__}; accepted: bytes")
        return found

    def _fetched(self, path: str, start: int | None = None, end: int | None = None) -> Any:
        """What the file system gives for a value or a part of it, as one of the answers under way."""
        limits = {name: limit for name, limit in (("start", start), ("end", end)) if limit is not None}
        if not self._is_elsewhere:
            return self._ask(self.fs.cat_file, path, **limits)
        size = (
            -start if start is not None and start < 0 else self.usual if end is None else end - (start or 0)
        )
        with self._slots, reserved(size):
            found = self.fs.cat_file(path, **limits)
        if isinstance(found, (bytes, bytearray, memoryview)) and end is None and not (start or 0) < 0:
            self.note(len(found))
        return found

    def note(self, size: int) -> None:
        """Note the size of a value, for what is to be expected of others."""
        self.usual = max(size, self.usual * 7 // 8)

    def _check_absence(self, path: str) -> None:
        """See to it that there is nothing where a cache says so, which asks in a way that hides failures."""
        if self.names & _CACHES and Files(inner(self.fs), self.concurrency).size(path) is not None:
            raise WrongBytesError("it is there, but did not get into the cache")

    def _is_folder(self, path: str, error: Exception) -> bool:
        """Whether it cannot be read because it is a directory, for which file systems have many errors."""
        if is_refusal(error) or not isinstance(error, OSError):
            return False
        with contextlib.suppress(Exception):
            return bool(self._ask(self.fs.info, path)["type"] == "directory")
        return False

    def whole(self, path: str) -> Buffer | None:
        """A value."""
        return self._bytes(path)

    def size(self, path: str) -> int | None:
        """The size of a value; None if there is none."""
        look = self.look(path)
        return None if look is None else look.size

    def look(self, path: str) -> Look | None:
        """The size and the version of a value; None if there is none."""
        self._forget()
        fs = inner(self.fs) if self.names & _CACHES else self.fs  # A cache may look into a listing only.
        try:
            info = self._ask(fs.info, path)
        except Exception as error:
            if is_absence(error):
                return None
            raise
        if info["type"] == "directory":
            return None
        size = info.get("size")
        if isinstance(size, int):
            if self.names & _FIXED:  # Opened once, or in parts that are kept.
                return Look(size, FIXED)
            return Look(size, None) if self.names & _CACHES else look_of(info, size)
        value = self._bytes(path)
        return None if value is None else Look(len(value), None)

    def first(self, path: str, start: int, length: int) -> tuple[Look, Buffer] | None:
        """A part of a value, and of what version it is if no later part finds another one.

        There are no bytes if nothing tells versions apart.
        """
        while (look := self.look(path)) is not None:
            if look.mark is None:
                return look, b""
            try:
                part = self._at(path, start, length, look.size)
            except Exception:
                if self._is_now(path, look):
                    raise
                continue  # It is another one meanwhile.
            if start < 0 and not self._is_now(path, look):
                continue  # It was looked for where the old one ended.
            return None if part is None else (look, part)
        return None

    def _at(self, path: str, start: int, length: int | None, size: int | None) -> Buffer | None:
        """A part of a value that is of that size, if it is known."""
        if size is None:
            return self.part(path, start, length)
        return self._within(path, start if start >= 0 else max(size + start, 0), length, size)

    def parts(
        self, path: str, ranges: Sequence[tuple[int, int | None]], look: Look, *, check: bool = True
    ) -> list[Buffer] | None:
        """Parts of one version of a value; None if there is another one, or none, by now.

        Without ``check`` that may stay unknown if there is no more than one part.
        """
        try:
            found = spread(lambda wanted: self._at(path, *wanted, look.size), ranges, self.concurrency)
        except Exception:
            if self._is_now(path, look):
                raise
            return None
        checks = check or len(found) > 1 or any(start < 0 for start, _ in ranges)
        if checks and not self._is_now(path, look):
            return None
        parts = [part for part in found if part is not None]
        return parts if len(parts) == len(found) else None

    def _is_now(self, path: str, look: Look) -> bool:
        """Whether there is that version of a value now."""
        if look.mark == FIXED:
            return True
        now = self.look(path)
        return now is not None and now.is_same(look)

    def _size_or_none(self, path: str) -> int | None:
        """The size of a value, for telling what an error means that is reported otherwise."""
        with contextlib.suppress(Exception):
            return self.size(path)
        return None

    def part(self, path: str, start: int, length: int | None) -> Buffer | None:
        """A part of a value, shorter where the value ends; of a length of 0 or more."""
        if start == 0 and length is None:
            return self.whole(path)
        if length == 0:
            return None if self._range(path, 0, 1) is None else b""
        if start < 0 and (not self.names & _SUFFIXES or start < -_LONG_SUFFIX):
            return self._by_size(path, start, length)
        if start < 0:
            tail = self._suffix(path, -start)
            return tail if tail is None or length is None else memoryview(tail)[:length]
        if start >= sys.maxsize or (length is not None and length > _HUGE):
            return self._by_size(path, start, length)
        return self._range(path, start, length)

    def _by_size(self, path: str, start: int, length: int | None) -> Buffer | None:
        """A part that cannot be asked for without knowing how large the value is."""
        for _ in range(_REPLACED):
            look = self.look(path)
            if look is None or look.mark is None:
                break
            found = self.parts(path, [(start, length)], look)
            if found is not None:
                return found[0]
        whole = self.whole(path)
        return None if whole is None else cut(whole, (start, length))

    def _within(self, path: str, start: int, length: int | None, size: int) -> Buffer | None:
        """A part of a value of that size."""
        most = max(size - start, 0)
        wanted = most if length is None else min(length, most)
        found = self.exact(path, start, wanted) if wanted else b""
        if found is not None and len(found) != wanted:
            raise WrongBytesError(f"asked for {wanted} bytes from {start} on, found {len(found)}")
        return found

    def exact(self, path: str, start: int, length: int) -> Buffer | None:
        """A part that the value is known to reach beyond; of another length if it does not."""
        return self._bytes(path, start=start, end=start + length)

    def _suffix(self, path: str, length: int) -> Buffer | None:
        """The last bytes of a value."""
        try:
            found = self._bytes(path, start=-length, end=None)
        except Exception as error:
            if not is_refusal(error) and self._size_or_none(path) == 0:  # Servers refuse ranges of nothing.
                return b""
            raise
        if found is None or len(found) == length:
            return found
        size = self.size(path)  # It is shorter than that, or the server gave all of it.
        if size != len(found):
            raise WrongBytesError(f"asked for the last {length} of {size} bytes, found {len(found)} bytes")
        return memoryview(found)[-length:]

    def _range(self, path: str, start: int, length: int | None) -> Buffer | None:
        """A part of a value that may end before."""
        end = None if length is None else start + length
        try:
            found = self._bytes(path, start=start, end=end)
        except Exception as error:
            size = None if is_refusal(error) else self._size_or_none(path)
            if size is not None and start >= size:  # Servers refuse ranges beyond the end.
                return b""
            raise
        if found is None or (len(found) == length and not (self._is_http and start)):
            return found
        if length is not None and len(found) > length:
            raise WrongBytesError(f"asked for {length} bytes, found {len(found)}: ranges are not supported")
        if start > 0:  # Either the value ends there, or the server ignored the range or broke off.
            size = self.size(path)
            if size is None:
                return None
            expected = max(min(size, size if end is None else end) - start, 0)
            if len(found) != expected:
                raise WrongBytesError(f"asked for {expected} bytes from {start} on, found {len(found)}")
        return found

    # Writing

    def put(self, path: str, value: bytes, *, create: bool = False) -> bool:
        """Store a value; with ``create`` only if there is none, and tell whether that was so."""
        if create:
            try:
                self._change(self.fs.pipe_file, path, value, mode="create")
            except FileExistsError:
                return False
            return True
        if self.moves:
            self._put_and_move(path, value)
            return True
        try:
            self._change(self.fs.pipe_file, path, value)
        except Exception as error:
            if not self._has_folders or is_refusal(error):
                raise
            self._make_folders(path.rpartition("/")[0])
            self._change(self.fs.pipe_file, path, value)
        return True

    def _put_and_move(self, path: str, value: bytes) -> None:
        """Store a value beside its place and move it there, so that nobody sees half of it."""
        folder = path.rpartition("/")[0]
        temporary = f"{folder}/{TEMPORARY}{uuid.uuid4().hex}"
        for attempt in range(_ATTEMPTS):
            try:
                self._change(self.fs.pipe_file, temporary, value)
                break
            except FileNotFoundError:
                if attempt == _ATTEMPTS - 1:
                    raise
            with contextlib.suppress(FileNotFoundError, FileExistsError):  # Others remove and make them, too.
                self._make_folders(folder)
        try:
            if self._ask(self.fs.isdir, path):  # Moving would put it in there.
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            self._change(self.fs.mv, temporary, path)
        except BaseException:
            with contextlib.suppress(Exception):  # The error of the write is the one to report.
                self._change(self.fs.rm_file, temporary)
            raise

    def _make_folders(self, folder: str) -> None:
        names = folder.split("/")
        for count in [*range(_LEVELS, len(names), _LEVELS), len(names)]:
            self._change(self.fs.makedirs, "/".join(names[:count]), exist_ok=True)

    def erase(self, path: str) -> None:
        """Remove a value if there is one."""
        own = getattr(type(self.fs), "_rm_file", None)
        if (
            self.fs.async_impl
            and own is not None
            and own.__module__ == "fsspec.asyn"
            and set("*?[") & set(path)
        ):
            raise WrongBytesError("this file system would take that for a pattern")
        try:
            self._change(self.fs.rm_file, path)
        except Exception as error:
            if not is_absence(error):
                raise

    def prune(self, root: str, folder: str) -> None:
        """Remove a directory and those above it that are empty, up to but without the root."""
        if not self.names & _PRUNES:
            return
        with contextlib.suppress(Exception):  # Not empty, in use, or not ours to remove: it stays.
            while folder.startswith(f"{root.rstrip('/')}/"):
                with contextlib.suppress(FileNotFoundError):
                    self._change(self.fs.rmdir, folder)
                folder = folder.rpartition("/")[0]

    def age(self, path: str, now: float) -> float:
        """Seconds since a file was written."""
        return now - float(self._ask(self.fs.modified, path).timestamp())

    # Listing

    def entries(self, path: str) -> set[tuple[str, bool]]:
        """The names directly below a path, each with whether it is a directory."""
        self._forget()
        try:
            found = self._ask(self.fs.ls, path, detail=True)
        except Exception as error:
            if is_absence(error):
                return set()
            raise
        names = set()
        here = path.strip("/")
        for info in found:
            below = info["name"].strip("/")
            name = below.rpartition("/")[2]
            is_folder = info["type"] == "directory" or info["name"].endswith("/")
            if below == here or not name:  # A file of that path, or what stands for the directory itself.
                continue
            if info["type"] not in ("file", "directory") and not self._ask(self.fs.isfile, info["name"]):
                continue
            names.add((name, is_folder))
        return names

    def below(self, path: str) -> Iterator[str]:
        """What is below a path, relative to it, in no order."""
        if self.names & (_OBJECTS | _ARCHIVES):
            return self._find(path)
        return self._walk(path)

    def _find(self, path: str) -> Iterator[str]:
        """By one listing of all keys, which these file systems have."""
        self._forget()
        top = "" if self.is_archive else path  # Theirs takes some paths for others.
        try:
            found = self._ask(self.fs.find, top, detail=True, withdirs=False)
        except Exception as error:
            if is_absence(error):
                return
            raise
        beginning = f"{path.strip('/')}/".lstrip("/")
        for name, info in found.items():
            key = name.lstrip("/")
            if key.startswith(beginning) and info.get("type") != "directory" and not key.endswith("/"):
                yield key[len(beginning) :]

    def _walk(self, path: str) -> Iterator[str]:
        waiting = [""]
        while waiting:
            found = spread(lambda above: self.entries(f"{path}/{above}"), waiting, self.concurrency)
            deeper = []
            for above, names in zip(waiting, found, strict=True):
                for name, is_folder in names:
                    if is_folder:
                        deeper.append(f"{above}{name}/")
                    else:
                        yield above + name
            waiting = deeper


class CachedFiles(Files):
    """Values kept as local files by fsspec's ``simplecache``.

    They are fetched here, because what it leaves behind after a failed download, or while one is under way,
    it takes for the whole value.
    """

    def __init__(self, fs: FileSystem, concurrency: int | None = None) -> None:
        super().__init__(fs, 1)
        self._inner = files_of(fs.fs, concurrency)
        self.concurrency = self._inner.concurrency
        self._slots = contextlib.nullcontext()

    def path(self, root: str, key: str) -> str:
        return self._inner.path(root, key)

    def _cached(self, path: str) -> str | None:
        """The local file of a value."""
        with key_lock("simplecache", f"{self.fs.storage[-1]}:{path}"):
            stripped = self.fs._strip_protocol(path)
            found: str | None = self.fs._check_file(stripped)
            if found is not None:
                return found
            value = self._inner.whole(path)
            if value is None:
                return None
            name: str = os.path.join(self.fs.storage[-1], self.fs._mapper(stripped))
            temporary = f"{name}{TEMPORARY}{uuid.uuid4().hex}"
            try:
                with open(temporary, "wb") as file:
                    file.write(value)
                os.replace(temporary, name)
            except BaseException:
                with contextlib.suppress(OSError):  # The error of the write is the one to report.
                    os.unlink(temporary)
                raise
            return name

    def whole(self, path: str) -> Buffer | None:
        return self.part(path, 0, None)

    def look(self, path: str) -> Look | None:
        name = self._cached(path)
        if name is None:
            return None
        found = os.stat(name)  # Written once and moved there.
        return Look(found.st_size, (name, found.st_ino, found.st_mtime_ns))

    def part(self, path: str, start: int, length: int | None) -> Buffer | None:
        name = self._cached(path)
        if name is None:
            return None
        with open(name, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            first = min(start if start >= 0 else max(size + start, 0), size)
            file.seek(first)
            return file.read(size - first if length is None else min(length, size - first))

    def exact(self, path: str, start: int, length: int) -> Buffer | None:
        return self.part(path, start, length)

    def entries(self, path: str) -> set[tuple[str, bool]]:
        return self._inner.entries(path)

    def below(self, path: str) -> Iterator[str]:
        return self._inner.below(path)


def files_of(fs: FileSystem, concurrency: int | None = None) -> Files:
    """What to use a file system through."""
    names = protocols(fs)
    if "reference" in names:
        from xzarr3.stores.fsspec_references import ReferenceFiles

        return ReferenceFiles(fs, concurrency)
    if names == ("simplecache",) and not fs.compression:
        return CachedFiles(fs, concurrency)
    from xzarr3.stores.fsspec_http import WebFiles, guarded, is_web

    return WebFiles(fs, concurrency) if is_web(fs) else Files(guarded(fs), concurrency)
