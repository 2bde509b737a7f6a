"""Calls to an fsspec file system, and the interpretation of its answers.

fsspec has no contract for failures. Some file systems report "not found" for any failure, some return other
bytes than requested, and most keep listings that other writers have changed since. This module counts as
absence only a ``FileNotFoundError`` that no other failure caused, or a path that is no file. It checks the
length of every part, and never answers from an old listing.
"""

from __future__ import annotations

import contextlib
import errno
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
from itertools import count
from typing import Any, NamedTuple, TypeAlias

from xzarr3._types import Buffer
from xzarr3.errors import StorePermissionError
from xzarr3.parallel import parallel_map, undisturbed
from xzarr3.stores.base import cut
from xzarr3.stores.in_flight import Estimate, reserved
from xzarr3.stores.local.folders import ABANDONED, TEMPORARY
from xzarr3.stores.local.locks import LOCK_NAME
from xzarr3.stores.locks import key_lock
from xzarr3.tracing.events import sent

FileSystem: TypeAlias = Any  # fsspec is imported when needed, and has no types.

MANY = 64  # Requests at a time for a file system that waits with an event loop.
_HUGE = 2**28
_LEVELS = 100  # Directories created with one call, which recurses for each of them.
_ATTEMPTS = 100
_DEEPEST_CAUSE = 20
LOCAL = frozenset(("file", "local"))
"""Names of the file system of this machine."""
NEAR = LOCAL | {"memory"}
"""File systems whose answers come without latency."""
CACHES = frozenset(("simplecache", "filecache", "blockcache", "cached"))
HTTP = frozenset(("http", "https"))
_ARCHIVES = frozenset(("zip", "tar", "libarchive"))
_CREATES = frozenset(("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az"))
_OBJECTS = _CREATES | {"adl", "oss", "memory"}
_MOVES = LOCAL | {"sftp", "ssh"}
_PRUNES = _MOVES | {"ftp"}
_READ_ONLY = _ARCHIVES | {"reference"}
_TAGS = ("ETag", "etag", "e_tag", "generation")

_NO_FILE = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
_LED_TO_ABSENCE = (*_NO_FILE, KeyError, StopIteration)  # A lookup in a listing that found nothing.
_ABSENT_STATUSES = (404, 410)
_REFUSED_BY_FTP = re.compile("denied|permission|not allowed|^530", re.IGNORECASE)
NOTHING = object()
"""What :meth:`Files._found` returns for absence."""


def _renew() -> None:
    """Give a forked child a process name of its own."""
    global PROCESS
    PROCESS = uuid.uuid4().hex
    loops = sys.modules.get("fsspec.asyn")
    if loops is not None:  # The loop's thread is not in the child; not every fsspec resets it.
        loops.reset_lock()


PROCESS = uuid.uuid4().hex
"""Identifies this process."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


class WrongBytesError(Exception):
    """A file system returned something other than what was requested."""


class FileInfo(NamedTuple):
    """The properties of a value, without its bytes."""

    size: int
    mark: tuple[object, ...] | None
    """Different for each version of the value; None if nothing tells versions apart."""


def info_of(info: Mapping[str, Any], size: int) -> FileInfo:
    """The version of a value in the ``info`` of a file system.

    Only a tag counts. Two versions may have the same time, because times are coarse.
    """
    for name in _TAGS:
        tag = info.get(name)
        if tag and isinstance(tag, (str, int)) and not str(tag).startswith("W/"):
            return FileInfo(size, (name, tag))
    return FileInfo(size, None)


# Interpretation of failures


def _status_of(error: BaseException) -> int | None:
    """The HTTP status in an error of a client library."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):  # botocore
        found = response.get("ResponseMetadata")
        status = found.get("HTTPStatusCode") if isinstance(found, Mapping) else None
        return status if isinstance(status, int) else None
    for name in ("status", "status_code", "code"):
        for holder in (error, response):
            status = getattr(holder, name, None)
            if isinstance(status, int) and 400 <= status < 600:
                return status
    return None


def causes(error: BaseException, handled: BaseException | None = None) -> Iterator[BaseException]:
    """An error and its causes, up to the error that a caller was already handling, which is no cause."""
    current: BaseException | None = error
    for _ in range(_DEEPEST_CAUSE):
        if current is None or current is handled:
            return
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def is_absence(error: BaseException, handled: BaseException | None = None) -> bool:
    """Whether an error says that a file does not exist, and no other failure caused it."""
    return isinstance(error, _NO_FILE) and led_to_absence(error, handled)


def led_to_absence(error: BaseException, handled: BaseException | None = None) -> bool:
    """Whether all causes of an error are absences."""
    return all(map(_says_absent, causes(error, handled)))


def _says_absent(error: BaseException) -> bool:
    if isinstance(error, _LED_TO_ABSENCE):
        return True
    status = _status_of(error)
    if status is not None:
        return status in _ABSENT_STATUSES
    is_ftp = type(error).__module__ == "ftplib"
    return is_ftp and str(error).startswith("550") and not _says_refused(error)


def is_refusal(error: BaseException, handled: BaseException | None = None) -> bool:
    """Whether access was refused."""
    return any(map(_says_refused, causes(error, handled)))


def _says_refused(error: BaseException) -> bool:
    if isinstance(error, (PermissionError, StorePermissionError)) or _status_of(error) in (401, 403):
        return True
    return type(error).__module__ == "ftplib" and _REFUSED_BY_FTP.search(str(error)) is not None


# Structure of file systems


def protocols(fs: FileSystem) -> tuple[str, ...]:
    """The protocol names of a file system."""
    names = type(fs).protocol  # Caching file systems return that of the inner one.
    if not isinstance(names, (str, tuple, list)):
        names = fs.protocol
    return (names,) if isinstance(names, str) else tuple(names)


def inner(fs: FileSystem) -> FileSystem:
    """The file system that another one forwards its paths to, or None."""
    own = object.__getattribute__(fs, "__dict__")  # Some forward attributes to the inner one.
    return own.get("sync_fs", own.get("fs"))


def layers(fs: FileSystem) -> Iterator[FileSystem]:
    """A file system and those that it forwards its paths to."""
    while fs is not None:
        yield fs
        fs = inner(fs)


def innermost(fs: FileSystem) -> frozenset[str]:
    """The protocol names of the file system that finally receives the paths."""
    return frozenset(protocols([*layers(fs)][-1]))


# Requests


_ASKED = {
    **dict.fromkeys(("info", "isdir", "isfile"), "head"),
    **dict.fromkeys(("ls", "find"), "list"),
    **dict.fromkeys(("pipe_file", "mv"), "put"),
    "rm_file": "delete",
}
"""Request kinds of the file system functions that do not read values."""


class Files:
    """The file system operations of a store. Errors are those of the file system; None means absence.

    Parameters
    ----------
    fs : AbstractFileSystem
    concurrency : int, optional
        Most requests in flight at once.
    """

    def __init__(self, fs: FileSystem, concurrency: int | None = None) -> None:
        names = frozenset(protocols(fs))
        self.fs, self.names, self.process = fs, names, PROCESS
        self.can_write = not names & _READ_ONLY
        self.moves = bool(names & _MOVES)
        self.keeps = bool(innermost(fs) & (_OBJECTS - {"memory"}))
        self.in_memory = "memory" in names
        self._is_near = bool(names & NEAR)
        self._usual = Estimate()
        self.concurrency, self._slots = self._bounds(concurrency)

    def _bounds(self, asked: int | None) -> tuple[int, AbstractContextManager[object]]:
        """The most requests at once, and the context that limits them."""
        if asked is not None and asked > 1:
            return asked, threading.BoundedSemaphore(asked)
        if asked is None:
            if self._is_near:
                return 1, contextlib.nullcontext()
            if self.fs.async_impl:
                return MANY, threading.BoundedSemaphore(MANY)
        # One lock for all stores on this file system: few file systems say that threads may share them.
        return 1, key_lock("file system of fsspec", str(id(self.fs)))

    @cached_property
    def creates(self) -> bool:
        """Whether it can store a value only if none exists, in one step for all processes."""
        kind = type(self.fs)
        function = getattr(kind, "_pipe_file", kind.pipe_file)
        return bool(self.names & _CREATES) and "mode" in signature(function).parameters

    def path(self, root: str, key: str) -> str:
        """The path of a key below a root."""
        return f"{root.rstrip('/')}/{key}" if root else key

    def _ask(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        name = getattr(function, "__name__", "")
        with sent(_ASKED.get(name, "")) as request, self._slots:
            found = function(*args, **options)
            request.size = len(args[1]) if name == "pipe_file" else 0
            return found

    def _change(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Make a request that changes something. Ctrl-C is deferred until it is done."""
        if self._is_near:
            return self._ask(function, *args, **options)
        return undisturbed(lambda: self._ask(function, *args, **options))

    def _found(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call a function; returns ``NOTHING`` for absence."""
        handled = sys.exception()
        try:
            return function(*args, **options)
        except Exception as error:
            if is_absence(error, handled):
                return NOTHING
            raise

    def _forget(self) -> None:
        """Drop cached listings, which other writers may have changed since."""
        for fs in layers(self.fs):
            fs.invalidate_cache()

    def _bytes(self, path: str, start: int = 0, end: int | None = None) -> Buffer | None:
        """The bytes from ``start`` to ``end``, counted against the limit of bytes in flight."""
        if not self.fs.async_impl:
            self._forget()  # Opened files take their sizes from the listings.
        limits = {"start": start or None, "end": end}
        limits = {name: limit for name, limit in limits.items() if limit is not None}
        size = self._usual.size if end is None else end - start
        budget = contextlib.nullcontext() if self._is_near else reserved(size)
        with sent("get_range" if limits else "get") as request, self._slots, budget:
            found = self._found(self.fs.cat_file, path, **limits)
            if found is NOTHING:
                request.value(None)
                return None
            if not isinstance(found, (bytes, bytearray, memoryview)):
                raise WrongBytesError(f"found {type(found).__name__}; accepted: bytes")
            request.value(found)
        if end is None:
            self._usual.note(len(found))
        return found

    def known_size(self, path: str) -> int | None:
        """The size of a value, if known without a remote request; None also without a value."""
        look = self.look(path) if self.names & (NEAR | _ARCHIVES) else None
        return None if look is None else look.size

    def look(self, path: str) -> FileInfo | None:
        """The size and the version of a value; None if it does not exist."""
        self._forget()
        info = self._found(self._ask, self.fs.info, path)
        if info is NOTHING or info["type"] == "directory":
            return None
        size = info.get("size")
        if isinstance(size, int):
            return info_of(info, size)
        value = self._bytes(path)
        return None if value is None else FileInfo(len(value), None)

    def parts(
        self, path: str, ranges: Sequence[tuple[int, int | None]], look: FileInfo
    ) -> list[Buffer] | None:
        """Parts of one version of a value; None if the value has been changed or removed since ``look``."""
        try:
            found = parallel_map(
                lambda wanted: self._within(path, *wanted, look.size), ranges, self.concurrency
            )
        except Exception:
            if self._is_now(path, look):
                raise
            return None
        parts = [part for part in found if part is not None]
        return parts if len(parts) == len(found) and self._is_now(path, look) else None

    def _is_now(self, path: str, look: FileInfo) -> bool:
        """Whether a value still has the given version."""
        return self.look(path) == look

    def part(self, path: str, start: int, length: int | None) -> Buffer | None:
        """A part of a value, of a length of 0 or more; shorter where the value ends."""
        if length == 0:
            return None if self.look(path) is None else b""
        if 0 <= start < sys.maxsize and (length is None or length <= _HUGE):
            return self._range(path, start, length)
        return self._by_size(path, start, length)

    def _range(self, path: str, start: int, length: int | None) -> Buffer | None:
        """A part of a value; never reads more than the part, because referenced files are large."""
        try:
            found = self._bytes(path, start, None if length is None else start + length)
        except Exception as error:
            look = None
            if not is_refusal(error) and (start or length is not None):
                with contextlib.suppress(Exception):  # The first error is the one to report.
                    look = self.look(path)
            if look is not None and start >= look.size:  # Services refuse ranges beyond the end.
                return b""
            raise
        if found is None or len(found) == length or (start == 0 and length is None):
            return found
        if length is not None and len(found) > length:
            raise WrongBytesError(f"asked for {length} bytes, found {len(found)}: ranges are not supported")
        if start == 0:  # Complete, as far as the file system's own protocol detects truncation.
            return found
        look = self.look(path)  # The value ends there, or the range was ignored or truncated.
        return None if look is None else checked(found, *clipped(start, length, look.size))

    def _by_size(self, path: str, start: int, length: int | None) -> Buffer | None:
        """A part that cannot be requested without the size of the value."""
        look = self.look(path)
        if look is None:
            return None
        found = None if look.mark is None else self.parts(path, [(start, length)], look)
        if found is not None:
            return found[0]
        whole = self._bytes(path)
        return None if whole is None else cut(whole, (start, length))

    def _within(self, path: str, start: int, length: int | None, size: int) -> Buffer | None:
        """A part of a value of known size."""
        first, wanted = clipped(start, length, size)
        found = self._bytes(path, first, first + wanted) if wanted else b""
        return found if found is None else checked(found, first, wanted)

    # Writing

    def put(self, path: str, value: bytes) -> None:
        """Store a value; by renaming a temporary file where other readers might see half of it."""
        if not self.moves:
            self._store(path, value)
            return
        temporary = f"{path.rpartition('/')[0]}/{TEMPORARY}{uuid.uuid4().hex}"
        try:
            self._store(temporary, value)
            if self._ask(self.fs.isdir, path):  # Moving would put the file into the directory.
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            self._change(self.fs.mv, temporary, path)
        except BaseException:
            with contextlib.suppress(Exception):  # The error of the write is the one to report.
                self._change(self.fs.rm_file, temporary)
            raise

    def create(self, path: str, value: bytes) -> bool:
        """Store a value if none exists; returns whether that was so."""
        try:
            self._change(self.fs.pipe_file, path, value, mode="create")
        except FileExistsError:
            return False
        return True

    def _store(self, path: str, value: bytes) -> None:
        """Store a value, and create missing directories, which other writers may remove again."""
        for attempt in count(1):
            try:
                self._change(self.fs.pipe_file, path, value)
                return
            except Exception as error:
                lacks_folder = isinstance(error, FileNotFoundError) and attempt < _ATTEMPTS
                again = lacks_folder if self.moves else attempt == 1
                if self.names & _OBJECTS or is_refusal(error) or not again:
                    raise
            with contextlib.suppress(FileNotFoundError, FileExistsError):
                self._make_folders(path.rpartition("/")[0])

    def _make_folders(self, folder: str) -> None:
        names = folder.split("/")
        for number in [*range(_LEVELS, len(names), _LEVELS), len(names)]:
            self._change(self.fs.makedirs, "/".join(names[:number]), exist_ok=True)

    def erase(self, path: str) -> None:
        """Remove a value if it exists."""
        own = getattr(type(self.fs), "_rm_file", None)
        takes_patterns = self.fs.async_impl and own is not None and own.__module__ == "fsspec.asyn"
        if takes_patterns and set("*?[") & set(path):
            raise WrongBytesError("this file system would read that key as a pattern")
        self._found(self._change, self.fs.rm_file, path)

    def prune(self, root: str, folder: str) -> None:
        """Remove a directory and its parents while they are empty, up to the root, which stays."""
        if not self.names & _PRUNES:
            return
        with contextlib.suppress(Exception):  # Not empty, in use, or not ours: it stays.
            while folder.startswith(f"{root.rstrip('/')}/"):
                with contextlib.suppress(FileNotFoundError):
                    self._change(self.fs.rmdir, folder)
                folder = folder.rpartition("/")[0]

    # Listing

    def entries(self, path: str) -> set[tuple[str, bool]]:
        """The names directly below a path, each with whether it is a directory."""
        self._forget()
        found = self._found(self._ask, self.fs.ls, path, detail=True)
        names = set()
        here = path.strip("/")
        for info in () if found is NOTHING else found:
            below, kind = info["name"].strip("/"), info["type"]
            name = below.rpartition("/")[2]
            if below == here or not name:  # A file with that path, or a marker of the directory itself.
                continue
            if kind in ("file", "directory") or self._ask(self.fs.isfile, info["name"]):
                names.add((name, kind == "directory" or info["name"].endswith("/")))
        return names

    def below(self, path: str) -> Iterator[str]:
        """The files below a path, relative to it, in any order."""
        if not self.names & (_OBJECTS | _ARCHIVES):
            yield from self._walk(path)
            return
        self._forget()  # Such file systems list all keys with one call.
        found = self._found(self._ask, self.fs.find, path, detail=True, withdirs=False)
        beginning = f"{path.strip('/')}/".lstrip("/")
        for name, info in {}.items() if found is NOTHING else found.items():
            key = name.lstrip("/")
            if key.startswith(beginning) and info.get("type") != "directory" and not key.endswith("/"):
                yield key[len(beginning) :]

    def _walk(self, path: str) -> Iterator[str]:
        waiting = [""]
        while waiting:
            found = parallel_map(
                lambda above: self.entries(self.path(path, above)), waiting, self.concurrency
            )
            deeper = []
            for above, names in zip(waiting, found, strict=True):
                for name, is_folder in names:
                    if is_folder:
                        deeper.append(f"{above}{name}/")
                    else:
                        yield above + name
            waiting = deeper

    def leftovers(self, path: str) -> Iterator[tuple[str, bool]]:
        """Temporary files below a path, relative to it, each with whether its writer has been killed."""
        for name in self.below(path) if self.moves else ():
            last = name.rpartition("/")[2]
            if last.startswith(TEMPORARY) and last != LOCK_NAME:  # A lock is that of a LocalStore.
                yield name, self._is_abandoned(self.path(path, name))

    def _is_abandoned(self, path: str) -> bool:
        info = self._found(self._ask, self.fs.info, path)
        changed = None if info is NOTHING else info.get("mtime")  # A number, or with SFTP a datetime.
        seconds = changed.timestamp() if isinstance(changed, datetime) else changed
        return isinstance(seconds, (int, float)) and time.time() - seconds > ABANDONED


def first_names(names: Iterable[str]) -> set[tuple[str, bool]]:
    """The first components of names, each with whether more components follow."""
    return {(name, bool(slash)) for name, slash, _ in (each.partition("/") for each in names)}


def clipped(start: int, length: int | None, size: int) -> tuple[int, int]:
    """Start and length of a part, clipped to a value of ``size`` bytes."""
    first = min(start if start >= 0 else max(size + start, 0), size)
    return first, size - first if length is None else min(length, size - first)


def checked(found: Buffer, start: int, length: int) -> Buffer:
    """``found``, if it has the requested length."""
    if len(found) != length:
        raise WrongBytesError(f"asked for {length} bytes from {start} on, found {len(found)}")
    return found
