"""What differs between operating systems: locks of open files, bytes at offsets, and names.

A system without :mod:`fcntl` is taken for Windows, where an open file can be neither renamed nor removed.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import re
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from types import ModuleType
from typing import Any


def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


# Their members differ between systems and are looked up when used.
_fcntl: Any = _module("fcntl")
_msvcrt: Any = _module("msvcrt")

POSIX = _fcntl is not None
"""Whether open files can be renamed and removed."""
HAS_OFD = sys.platform == "linux" and hasattr(_fcntl, "F_OFD_SETLK")
"""Whether the system has locks that belong to the open file, not to the process, on network mounts too."""
_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
OPEN: int = os.O_RDONLY | _FLAGS
"""Flags for opening a file to read. Non-blocking, so that a pipe without a writer does not block."""
OPEN_LOCK: int = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | _FLAGS
"""Flags for opening a lock file."""
SEARCH: int = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0) | _FLAGS
"""Flags for opening a directory; searching needs less permission than reading."""
_FLOCK = struct.Struct("hhqqi0q")  # `struct flock` of Linux.
_WHOLE = b"" if not HAS_OFD else _FLOCK.pack(_fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
_FAR = 2**30  # Beyond every byte that is read: on Windows locked bytes cannot be read by others.
_LOCKED = frozenset({errno.EAGAIN, errno.EACCES, errno.EDEADLK})
_FULL_SYNC = getattr(_fcntl, "F_FULLFSYNC", None)
_MOST_PIECES = 512  # Every system accepts so many in one call.
_MOST = 2**30 if sys.platform == "darwin" else sys.maxsize  # macOS refuses 2 GiB in one call.


def lock(descriptor: int) -> bool:
    """Lock an open file, without waiting; returns False if it is locked through another opening of it.

    Raises
    ------
    OSError
        If the file system has no locks.
    """
    try:
        if HAS_OFD:
            _fcntl.fcntl(descriptor, _fcntl.F_OFD_SETLK, _WHOLE)
        elif POSIX:
            _fcntl.flock(descriptor, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
        else:
            os.lseek(descriptor, _FAR, os.SEEK_SET)
            _msvcrt.locking(descriptor, _msvcrt.LK_NBLCK, 1)
    except OSError as error:
        if error.errno not in _LOCKED:
            raise
        return False
    return True


_turn = threading.Lock()


def _seek_read(descriptor: int, length: int, start: int) -> bytes:
    with _turn:
        os.lseek(descriptor, start, os.SEEK_SET)
        return os.read(descriptor, length)


def _read_less(descriptor: int, length: int, start: int) -> bytes:
    return os.pread(descriptor, min(length, _MOST), start)


def _read_less_into(descriptor: int, buffers: Sequence[memoryview], start: int) -> int:
    part = pread(descriptor, len(buffers[0]), start)
    buffers[0][: len(part)] = part
    return len(part)


# Like the functions of :mod:`os` with these names. Both may read less than requested.
pread: Callable[[int, int, int], bytes] = getattr(os, "pread", _seek_read)
preadv: Callable[[int, Sequence[memoryview], int], int] = getattr(os, "preadv", _read_less_into)
if sys.platform == "darwin":
    pread, preadv = _read_less, _read_less_into


def read_at(descriptor: int, length: int, start: int) -> bytes:
    """The bytes at an offset; fewer where the file ends."""
    value = pread(descriptor, length, start)
    while len(value) < length:
        more = pread(descriptor, length - len(value), start + len(value))
        if not more:
            break
        value += more
    return value


def read_into_at(descriptor: int, out: memoryview, start: int) -> int:
    """Read the bytes at an offset into ``out``; returns their number, less where the file ends."""
    count = 0
    while count < len(out):
        more = preadv(descriptor, [out[count:]], start + count)
        if not more:
            break
        count += more
    return count


def write_all(descriptor: int, pieces: Sequence[Any]) -> None:
    """Write buffers one after the other at the current position of the file."""
    rest = deque(memoryview(piece) for piece in pieces if len(piece))
    while rest:
        group = list(islice(rest, _MOST_PIECES))
        if hasattr(os, "writev") and sum(map(len, group)) <= _MOST:
            done = os.writev(descriptor, group)
        else:
            done = os.write(descriptor, group[0][:_MOST])
        while rest and done >= len(rest[0]):
            done -= len(rest.popleft())
        if done:  # The disk is nearly full, or it was too much for one call.
            rest[0] = rest[0][done:]


def sync(descriptor: int) -> None:
    """Wait until the contents of a file are on the disk."""
    if _FULL_SYNC is not None:
        with contextlib.suppress(OSError):  # The file system lacks it; fsync as on other systems.
            _fcntl.fcntl(descriptor, _FULL_SYNC)
            return
    os.fsync(descriptor)


def sync_folder(path: str) -> None:
    """Wait until the names in a directory are on the disk. Windows needs no such call."""
    if POSIX:
        descriptor = os.open(path, OPEN)
        try:
            sync(descriptor)
        finally:
            os.close(descriptor)


def tells_late(device: int) -> bool:
    """Whether only the closing of a file may tell that the disk is full: where there is no local device."""
    return POSIX and os.major(device) == 0


# Names

_REFUSED = re.compile(
    r'[\\:*?"<>|\x00-\x1f]|[. ](/|$)|(^|/)(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³])[. ]*(\.[^/]*)?(/|$)',
    re.IGNORECASE,
)


def is_name(text: str) -> bool:
    """Whether the file system can store a name and returns it unchanged."""
    try:
        return "\0" not in text and os.fsdecode(os.fsencode(text)) == text
    except UnicodeError:
        return False


def is_key(key: str) -> bool:
    """Whether a key names a file below the root; on Windows, no drive, device or stream."""
    if not POSIX and _REFUSED.search(key):
        return False
    return key.isascii() or is_name(key)
