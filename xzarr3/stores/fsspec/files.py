"""What a store asks of a file system of fsspec, and what the answers mean.

fsspec has no contract for failures: some file systems say "not found" whatever went wrong, some give other
bytes than were asked for, and most remember listings that others have changed since. Here only
``FileNotFoundError``, or that a path is no file, is absence, unless another failure led to it; the lengths of
parts are checked; nothing is answered from an old listing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from inspect import signature
from itertools import count
from typing import Any, NamedTuple, TypeAlias

from xzarr3._types import Buffer
from xzarr3.errors import StorePermissionError
from xzarr3.parallel import spread, undisturbed
from xzarr3.stores.base import cut
from xzarr3.stores.in_flight import reserved
from xzarr3.stores.local.folders import TEMPORARY
from xzarr3.stores.locks import key_lock
from xzarr3.tracing.events import sent

FileSystem: TypeAlias = Any  # fsspec is imported when it is needed, and has no types.

MANY = 64  # Requests at a time, of a file system that waits for answers with an event loop.
_FIRST_GUESS = 2**20  # Bytes
_HUGE = 2**28
_LEVELS = 100  # Directories made with one call, which calls itself for each.
_ATTEMPTS = 100
_DEEPEST_CAUSE = 20
LOCAL = frozenset(("file", "local"))
"""What the file system of this machine is called."""
NEAR = LOCAL | {"memory"}
"""Where answers do not have to be waited for."""
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
_LED_TO_ABSENCE = (*_NO_FILE, KeyError, StopIteration)  # Looked for in a listing, and not there.
_ABSENT_STATUSES = (404, 410)
_REFUSED_BY_FTP = re.compile("denied|permission|not allowed|^530", re.IGNORECASE)
NOTHING = object()
"""What :meth:`Files._found` gives where there is nothing."""


def _renew() -> None:
    """A forked child is another process."""
    global PROCESS
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

    size: int
    mark: tuple[object, ...] | None
    """What is another one once the value is; None if nothing tells that."""


def look_of(info: Mapping[str, Any], size: int) -> Look:
    """What the ``info`` of a file system says of a version.

    Only a name of it counts: two versions may have been written at the same time, as far as that is told.
    """
    for name in _TAGS:
        tag = info.get(name)
        if tag and isinstance(tag, (str, int)) and not str(tag).startswith("W/"):
            return Look(size, (name, tag))
    return Look(size, None)


# What a failure means


def _status_of(error: BaseException) -> int | None:
    """The HTTP status that an error of a client library carries."""
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
    """An error and those that led to it, up to the one that a caller was just handling, which did not."""
    current: BaseException | None = error
    for _ in range(_DEEPEST_CAUSE):
        if current is None or current is handled:
            return
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def is_absence(error: BaseException, handled: BaseException | None = None) -> bool:
    """Whether it says that there is no file, and was not made from another failure."""
    return isinstance(error, _NO_FILE) and led_to_absence(error, handled)


def led_to_absence(error: BaseException, handled: BaseException | None = None) -> bool:
    """Whether nothing but absence led to an error."""
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


def innermost(fs: FileSystem) -> frozenset[str]:
    """The names of the file system that gets the paths in the end."""
    return frozenset(protocols([*layers(fs)][-1]))


# Using them


_ASKED = {
    **dict.fromkeys(("info", "isdir", "isfile"), "head"),
    **dict.fromkeys(("ls", "find"), "list"),
    **dict.fromkeys(("pipe_file", "mv"), "put"),
    "rm_file": "delete",
}
"""What the functions of file systems ask for, besides values."""


class Files:
    """What a store does with a file system. Errors are those of the file system; absence is None.

    Parameters
    ----------
    fs : AbstractFileSystem
    concurrency : int, optional
        How many requests there may be under way at once.
    """

    def __init__(self, fs: FileSystem, concurrency: int | None = None) -> None:
        names = frozenset(protocols(fs))
        self.fs, self.names, self.process = fs, names, PROCESS
        self.can_write = not names & _READ_ONLY
        self.moves = bool(names & _MOVES)
        self.in_memory = "memory" in names
        self._is_near = bool(names & NEAR)
        self._usual = _FIRST_GUESS
        self.concurrency, self._slots = self._bounds(concurrency)

    def _bounds(self, asked: int | None) -> tuple[int, AbstractContextManager[object]]:
        """How many requests there may be at once, and what holds the others up."""
        if asked is not None and asked > 1:
            return asked, threading.BoundedSemaphore(asked)
        if asked is None:
            if self._is_near:
                return 1, contextlib.nullcontext()
            if self.fs.async_impl:
                return MANY, threading.BoundedSemaphore(MANY)
        # Of all stores on this file system: few say that threads may use them.
        return 1, key_lock("file system of fsspec", str(id(self.fs)))

    @cached_property
    def creates(self) -> bool:
        """Whether it can store a value only if there is none, in one step for all processes."""
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
        """Ask for what changes something: where another thread does it, Ctrl-C is heard when it is done."""
        if self._is_near:
            return self._ask(function, *args, **options)
        return undisturbed(lambda: self._ask(function, *args, **options))

    def _found(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """What a file system answers, or that there is nothing."""
        handled = sys.exception()
        try:
            return function(*args, **options)
        except Exception as error:
            if is_absence(error, handled):
                return NOTHING
            raise

    def _forget(self) -> None:
        """Have nothing answered from listings that others may have changed since."""
        for fs in layers(self.fs):
            fs.invalidate_cache()

    def _bytes(self, path: str, start: int = 0, end: int | None = None) -> Buffer | None:
        """The bytes between two places, as one of the answers under way."""
        if not self.fs.async_impl:
            self._forget()  # Files that are opened take their sizes from there.
        limits = {"start": start or None, "end": end}
        limits = {name: limit for name, limit in limits.items() if limit is not None}
        size = self._usual if end is None else end - start
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
            self._usual = max(len(found), self._usual * 7 // 8)  # What is to be expected of others.
        return found

    def known_size(self, path: str) -> int | None:
        """The size of a value, if that costs no request; None also if there is none."""
        look = self.look(path) if self.names & (NEAR | _ARCHIVES) else None
        return None if look is None else look.size

    def look(self, path: str) -> Look | None:
        """The size and the version of a value; None if there is none."""
        self._forget()
        info = self._found(self._ask, self.fs.info, path)
        if info is NOTHING or info["type"] == "directory":
            return None
        size = info.get("size")
        if isinstance(size, int):
            return look_of(info, size)
        value = self._bytes(path)
        return None if value is None else Look(len(value), None)

    def parts(self, path: str, ranges: Sequence[tuple[int, int | None]], look: Look) -> list[Buffer] | None:
        """Parts of one version of a value; None if there is another one, or none, by now."""
        try:
            found = spread(lambda wanted: self._within(path, *wanted, look.size), ranges, self.concurrency)
        except Exception:
            if self._is_now(path, look):
                raise
            return None
        parts = [part for part in found if part is not None]
        return parts if len(parts) == len(found) and self._is_now(path, look) else None

    def _is_now(self, path: str, look: Look) -> bool:
        """Whether there is that version of a value now."""
        return self.look(path) == look

    def part(self, path: str, start: int, length: int | None) -> Buffer | None:
        """A part of a value, shorter where the value ends; of a length of 0 or more."""
        if length == 0:
            return None if self.look(path) is None else b""
        if 0 <= start < sys.maxsize and (length is None or length <= _HUGE):
            return self._range(path, start, length)
        return self._by_size(path, start, length)

    def _range(self, path: str, start: int, length: int | None) -> Buffer | None:
        """A part of a value that may end before; never more of it, because files of references are large."""
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
        if start == 0:  # All of it, as far as the file system's own protocol notices what breaks off.
            return found
        look = self.look(path)  # Either the value ends there, or a range was ignored, or broke off.
        return None if look is None else checked(found, *clipped(start, length, look.size))

    def _by_size(self, path: str, start: int, length: int | None) -> Buffer | None:
        """A part that cannot be asked for without knowing how large the value is."""
        look = self.look(path)
        if look is None:
            return None
        found = None if look.mark is None else self.parts(path, [(start, length)], look)
        if found is not None:
            return found[0]
        whole = self._bytes(path)
        return None if whole is None else cut(whole, (start, length))

    def _within(self, path: str, start: int, length: int | None, size: int) -> Buffer | None:
        """A part of a value of that size."""
        first, wanted = clipped(start, length, size)
        found = self._bytes(path, first, first + wanted) if wanted else b""
        return found if found is None else checked(found, first, wanted)

    # Writing

    def put(self, path: str, value: bytes) -> None:
        """Store a value; where somebody might see half of it, it is moved to its place."""
        if not self.moves:
            self._store(path, value)
            return
        temporary = f"{path.rpartition('/')[0]}/{TEMPORARY}{uuid.uuid4().hex}"
        try:
            self._store(temporary, value)
            if self._ask(self.fs.isdir, path):  # Moving would put it in there.
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            self._change(self.fs.mv, temporary, path)
        except BaseException:
            with contextlib.suppress(Exception):  # The error of the write is the one to report.
                self._change(self.fs.rm_file, temporary)
            raise

    def create(self, path: str, value: bytes) -> bool:
        """Store a value if there is none; tell whether that was so."""
        try:
            self._change(self.fs.pipe_file, path, value, mode="create")
        except FileExistsError:
            return False
        return True

    def _store(self, path: str, value: bytes) -> None:
        """Store a value, and make the folders that it needs, which others may remove again."""
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
        """Remove a value if there is one."""
        own = getattr(type(self.fs), "_rm_file", None)
        takes_patterns = self.fs.async_impl and own is not None and own.__module__ == "fsspec.asyn"
        if takes_patterns and set("*?[") & set(path):
            raise WrongBytesError("this file system would take that for a pattern")
        self._found(self._change, self.fs.rm_file, path)

    def prune(self, root: str, folder: str) -> None:
        """Remove a directory and those above it that are empty, up to but without the root."""
        if not self.names & _PRUNES:
            return
        with contextlib.suppress(Exception):  # Not empty, in use, or not ours to remove: it stays.
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
            if below == here or not name:  # A file of that path, or what stands for the directory itself.
                continue
            if kind in ("file", "directory") or self._ask(self.fs.isfile, info["name"]):
                names.add((name, kind == "directory" or info["name"].endswith("/")))
        return names

    def below(self, path: str) -> Iterator[str]:
        """What is below a path, relative to it, in no order."""
        if not self.names & (_OBJECTS | _ARCHIVES):
            yield from self._walk(path)
            return
        self._forget()  # These list all keys at once.
        found = self._found(self._ask, self.fs.find, path, detail=True, withdirs=False)
        beginning = f"{path.strip('/')}/".lstrip("/")
        for name, info in {}.items() if found is NOTHING else found.items():
            key = name.lstrip("/")
            if key.startswith(beginning) and info.get("type") != "directory" and not key.endswith("/"):
                yield key[len(beginning) :]

    def _walk(self, path: str) -> Iterator[str]:
        waiting = [""]
        while waiting:
            found = spread(lambda above: self.entries(self.path(path, above)), waiting, self.concurrency)
            deeper = []
            for above, names in zip(waiting, found, strict=True):
                for name, is_folder in names:
                    if is_folder:
                        deeper.append(f"{above}{name}/")
                    else:
                        yield above + name
            waiting = deeper


def first_names(names: Iterable[str]) -> set[tuple[str, bool]]:
    """The first parts of names, each with whether more follows."""
    return {(name, bool(slash)) for name, slash, _ in (each.partition("/") for each in names)}


def clipped(start: int, length: int | None, size: int) -> tuple[int, int]:
    """Where a part of a value of that size begins, and how many bytes it has."""
    first = min(start if start >= 0 else max(size + start, 0), size)
    return first, size - first if length is None else min(length, size - first)


def checked(found: Buffer, start: int, length: int) -> Buffer:
    """The bytes that were found, if they are as many as were asked for."""
    if len(found) != length:
        raise WrongBytesError(f"asked for {length} bytes from {start} on, found {len(found)}")
    return found
