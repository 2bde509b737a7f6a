"""Differences between operating systems, all in one place.

POSIX systems (Linux, macOS) open directories, read at offsets, and lock with :mod:`fcntl`. A system without
:mod:`fcntl` is treated as Windows: directories are known by their paths; reading at an offset takes two
calls; an open file can be neither renamed nor replaced nor removed; and :mod:`msvcrt` locks.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import io
import os
import random
import re
import stat
import struct
import sys
import threading
import time
import uuid
from collections.abc import Callable, Generator, Sequence
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
Folder: TypeAlias = int | str
"""A directory: its descriptor, or its path where the system cannot open directories."""


def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


# Their members differ between systems and are looked up when used.
_fcntl: Any = _module("fcntl")
_msvcrt: Any = _module("msvcrt")

POSIX = (
    _fcntl is not None and {os.open, os.stat, os.unlink, os.mkdir, os.rmdir, os.rename} <= os.supports_dir_fd
)
"""Whether directories can be opened, and open files can be renamed, replaced and removed."""
HAS_OFD = sys.platform == "linux" and hasattr(_fcntl, "F_OFD_SETLK")
"""Whether the system has locks of file ranges that belong to the open file, not to the process."""

_FULL_SYNC = getattr(_fcntl, "F_FULLFSYNC", None)
_MOST_PIECES = 512  # Every system accepts so many in one call.
# Bytes; macOS refuses to read or write 2 GiB in one call.
_MOST = 2**30 if sys.platform == "darwin" else sys.maxsize
_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
# Searching a directory needs less permission than reading it, where a system distinguishes the two.
_SEARCH = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0) | _FLAGS
_READ = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _FLAGS
OPEN: int = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _FLAGS
"""Flags for opening a file to read. Non-blocking, so that a pipe without a writer does not block."""
NO_FOLLOW: int = getattr(os, "O_NOFOLLOW", 2**30)
"""For :func:`open_at`: do not follow a link."""
_JUNCTION = 0xA0000003  # The tag of a directory junction on Windows.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.2  # Seconds
_LONGEST = 259  # Characters of a path, unless Windows is set to accept longer ones.


# Directories


def open_folder(name: str, above: Folder | None = None, *, follow_symlinks: bool = False) -> Folder:
    """Open a directory, optionally by its name in an open directory."""
    if POSIX:
        flags = _SEARCH if follow_symlinks else _SEARCH | NO_FOLLOW
        return os.open(name, flags, dir_fd=above if isinstance(above, int) else None)
    path = name if above is None else _named(above, name)[0]
    info = os.stat(path, follow_symlinks=follow_symlinks)
    if stat.S_ISLNK(info.st_mode) or getattr(info, "st_reparse_tag", 0) == _JUNCTION:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    if not stat.S_ISDIR(info.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    return path


def same_folder(folder: Folder) -> Folder:
    """Another handle of an open directory, to be closed separately."""
    return os.dup(folder) if isinstance(folder, int) else folder


def close_folder(folder: Folder) -> None:
    if isinstance(folder, int):
        os.close(folder)


def _named(folder: Folder, name: str) -> tuple[str, int | None]:
    """The arguments of :mod:`os` functions for a name in a directory: a path and a ``dir_fd``."""
    return (name, folder) if isinstance(folder, int) else (os.path.join(folder, name), None)


def _patiently(act: Callable[..., T], *args: Any, **options: Any) -> T:
    """Repeat what Windows refuses while another process has a file open, which usually ends soon."""
    pause = _FIRST_PAUSE
    while True:
        try:
            return act(*args, **options)
        except PermissionError:
            if POSIX or pause > _LONGEST_PAUSE:
                raise
        time.sleep(pause)
        pause *= 2


def open_at(folder: Folder, name: str, flags: int, mode: int = 0o666) -> int:
    """Open a file in a directory."""
    path, at = _named(folder, name)
    if not POSIX and flags & NO_FOLLOW and os.path.islink(path):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    return os.open(path, (flags if POSIX else flags & ~NO_FOLLOW) | _FLAGS, mode, dir_fd=at)


def stat_at(folder: Folder, name: str, *, follow_symlinks: bool = False) -> os.stat_result:
    path, at = _named(folder, name)
    return os.stat(path, dir_fd=at, follow_symlinks=follow_symlinks)


def scan_at(folder: Folder) -> Generator[os.DirEntry[str]]:
    """The entries of a directory. Each one is valid until the next one is requested."""
    # Opened again: the given descriptor may permit searching only, or be shared with forked processes.
    opened = os.open(".", _READ, dir_fd=folder) if isinstance(folder, int) else folder
    try:
        with os.scandir(opened) as entries:
            yield from entries
    finally:
        if isinstance(opened, int):
            os.close(opened)


def make_at(folder: Folder, name: str) -> None:
    path, at = _named(folder, name)
    os.mkdir(path, dir_fd=at)


def unlink_at(folder: Folder, name: str) -> None:
    path, at = _named(folder, name)
    if not POSIX and stat.S_ISDIR(os.lstat(path).st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    _patiently(os.unlink, path, dir_fd=at)


def rmdir_at(folder: Folder, name: str) -> None:
    path, at = _named(folder, name)
    _patiently(os.rmdir, path, dir_fd=at)


def rename_at(folder: Folder, name: str, to: Folder, renamed: str) -> None:
    """Rename a file or directory. Only some systems replace an existing target."""
    (path, start), (target, end) = _named(folder, name), _named(to, renamed)
    _patiently(os.rename, path, target, src_dir_fd=start, dst_dir_fd=end)


def replace_at(folder: Folder, name: str, replaced: str) -> None:
    """Rename a file within a directory, replacing an existing file in one step."""
    (path, at), (target, _) = _named(folder, name), _named(folder, replaced)
    _patiently(os.replace, path, target, src_dir_fd=at, dst_dir_fd=at)


def link_at(folder: Folder, name: str, to: Folder) -> None:
    """Create a hard link with the same name in another directory."""
    (path, start), (target, end) = _named(folder, name), _named(to, name)
    if POSIX:
        os.link(path, target, src_dir_fd=start, dst_dir_fd=end, follow_symlinks=False)
    elif hasattr(os, "link") and not os.path.islink(path):
        os.link(path, target)
    else:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP), name)


def copy_link_at(folder: Folder, name: str, to: Folder) -> None:
    """Create a copy of a symbolic link in another directory."""
    (path, start), (target, end) = _named(folder, name), _named(to, name)
    to_folder = not POSIX and os.path.isdir(path)
    os.symlink(os.readlink(path, dir_fd=start), target, to_folder, dir_fd=end)


def is_folder_error(error: OSError, path: str) -> bool:
    """Whether a file could not be opened because it is a directory, for which Windows reports no access."""
    return not POSIX and isinstance(error, PermissionError) and os.path.isdir(path)


def is_hidden(path: str) -> bool:
    """Whether the system reports a path as missing because the path is too long."""
    return not POSIX and len(path) > _LONGEST and not _takes_long_paths()


@functools.cache
def _takes_long_paths() -> bool:
    import ctypes

    load: Any = getattr(ctypes, "WinDLL", None)
    if load is None:
        return True
    try:
        ask = load("ntdll").RtlAreLongPathsEnabled
    except (OSError, AttributeError):  # An older Windows without long paths.
        return False
    ask.restype = ctypes.c_ubyte
    return bool(ask())


def copy_mode(descriptor: int, mode: int) -> None:
    """Set the permissions of an open file, where the system has permissions."""
    if POSIX:
        os.fchmod(descriptor, stat.S_IMODE(mode))


def copy_status(descriptor: int, folder: Folder, name: str, info: os.stat_result) -> None:
    """Give a newly written file the permissions and times of another one."""
    copy_mode(descriptor, info.st_mode)
    path = descriptor if POSIX else _named(folder, name)[0]
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def is_own(info: os.stat_result) -> bool:
    """Whether only this user has access. On Windows the parent directory decides that."""
    return not POSIX or (info.st_uid == os.geteuid() and not info.st_mode & 0o077)


def touch_at(folder: Folder, name: str) -> None:
    """Set the time of modification of a file to now."""
    path, at = _named(folder, name)
    os.utime(path, dir_fd=at, follow_symlinks=not POSIX)


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


def relative(path: str, root: str) -> str:
    """A path relative to a root, with ``/`` between names."""
    return os.path.relpath(path, root).replace(os.sep, "/")


# Bytes

_turns = [threading.Lock() for _ in range(64)]


def _seek_read(descriptor: int, length: int, start: int) -> bytes:
    with _turns[descriptor % len(_turns)]:
        os.lseek(descriptor, start, os.SEEK_SET)
        return os.read(descriptor, length)


def _seek_read_into(descriptor: int, buffers: Sequence[memoryview], start: int) -> int:
    with _turns[descriptor % len(_turns)], io.FileIO(descriptor, closefd=False) as file:
        file.seek(start)
        return file.readinto(buffers[0]) or 0


def _pread_less(descriptor: int, length: int, start: int) -> bytes:
    return os.pread(descriptor, min(length, _MOST), start)


def _preadv_less(descriptor: int, buffers: Sequence[memoryview], start: int) -> int:
    return os.preadv(descriptor, [buffers[0][:_MOST]], start)


# Like the functions of :mod:`os` with these names. Both may read less than requested. With several buffers
# only the first one may be filled.
pread: Callable[[int, int, int], bytes]
preadv: Callable[[int, Sequence[memoryview], int], int]
if not (hasattr(os, "pread") and hasattr(os, "preadv")):
    pread, preadv = _seek_read, _seek_read_into
elif sys.platform == "darwin":
    pread, preadv = _pread_less, _preadv_less
else:
    pread, preadv = os.pread, os.preadv


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


def write_all(descriptor: int, pieces: Sequence[memoryview]) -> None:
    """Write pieces one after the other at the current position of the file."""
    for at in range(0, len(pieces), _MOST_PIECES):
        group = pieces[at : at + _MOST_PIECES]
        done = 0
        if len(group) > 1 and hasattr(os, "writev") and sum(map(len, group)) <= _MOST:
            done = os.writev(descriptor, group)
        for piece in group:
            rest = piece[done:]  # The system wrote less: too much for one call, or the disk is nearly full.
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            done = max(done - len(piece), 0)


def sync(descriptor: int) -> None:
    """Wait until the contents of a file are on the disk."""
    if _FULL_SYNC is not None:
        with contextlib.suppress(OSError):  # The file system lacks it; fsync as on other systems.
            _fcntl.fcntl(descriptor, _FULL_SYNC)
            return
    os.fsync(descriptor)


def sync_folder(folder: Folder) -> None:
    """Wait until the names in a directory are on the disk. Windows needs no such call."""
    if not POSIX:
        return
    descriptor = os.open(".", _READ, dir_fd=folder) if isinstance(folder, int) else os.open(folder, _READ)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


# Locks

_FLOCK = struct.Struct("hhqqi0q")  # `struct flock` of Linux.
_FAR = 2**30  # Beyond every byte that is read: on Windows locked bytes cannot be read by others.
_SHARES = 2**16
_locked: dict[int, tuple[int, int]] = {}


def lock_range(descriptor: int, start: int, length: int) -> bool:
    """Lock a range of a file, up to the end if ``length`` is 0; returns False if it is locked already.

    Locks the whole file on systems without range locks that belong to the open file.
    """
    if not POSIX:
        return _lock_bytes(descriptor, start % _FAR, length)
    if not HAS_OFD:
        return lock_file(descriptor)
    try:
        wanted = _FLOCK.pack(_fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
        _fcntl.fcntl(descriptor, _fcntl.F_OFD_SETLK, wanted)
    except BlockingIOError:
        return False
    return True


def unlock_range(descriptor: int) -> None:
    """Release the locks of :func:`lock_range`."""
    if HAS_OFD and POSIX:
        wanted = _FLOCK.pack(_fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0)
        _fcntl.fcntl(descriptor, _fcntl.F_OFD_SETLK, wanted)
    else:
        unlock_file(descriptor)


def lock_file(descriptor: int, *, shared: bool = False) -> bool:
    """Lock a file; returns False if it is locked already. Several holders may have a ``shared`` lock."""
    if not POSIX:
        # A shared lock takes one random byte of the range that an exclusive lock takes as a whole.
        start, length = (_FAR + random.randrange(_SHARES), 1) if shared else (_FAR, _SHARES)
        return _lock_bytes(descriptor, start, length)
    try:
        _fcntl.flock(descriptor, (_fcntl.LOCK_SH if shared else _fcntl.LOCK_EX) | _fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock_file(descriptor: int) -> None:
    """Release the lock of :func:`lock_file`."""
    if POSIX:
        _fcntl.flock(descriptor, _fcntl.LOCK_UN)
    elif descriptor in _locked:
        start, length = _locked.pop(descriptor)
        os.lseek(descriptor, start, os.SEEK_SET)
        _msvcrt.locking(descriptor, _msvcrt.LK_UNLCK, length)


def _lock_bytes(descriptor: int, start: int, length: int) -> bool:
    if _msvcrt is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    os.lseek(descriptor, start, os.SEEK_SET)
    try:
        _msvcrt.locking(descriptor, _msvcrt.LK_NBLCK, length)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EDEADLK):
            raise
        return False
    _locked[descriptor] = start, length
    return True


# Processes

_PROC = "/proc"


@functools.cache
def machine() -> str:
    """Identifies this boot of this machine, or only the machine where the system has no boot id.

    Empty if the machine cannot be identified.
    """
    try:
        with open(f"{_PROC}/sys/kernel/random/boot_id", "rb") as file:
            return file.read().strip().decode("ascii")
    except (OSError, ValueError):
        if sys.platform == "linux":  # Hidden; containers on different hosts may have equal MAC addresses.
            return ""
        node = uuid.getnode()
        return "" if node >> 40 & 3 else f"{node:012x}"  # These bits mark a random or local number.


def name_space() -> str:
    """The namespace of this process's pid; empty if the system has only one."""
    try:
        return os.readlink(f"{_PROC}/self/ns/pid")
    except OSError:
        return ""


def process_start(pid: int) -> str:
    """Start time of a process, in a unit of the system; empty if not available."""
    try:
        with open(f"{_PROC}/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[19].decode("ascii")
    except (OSError, IndexError, ValueError):
        if os.path.isdir(f"{_PROC}/self"):
            return ""
    import psutil

    try:
        return repr(psutil.Process(pid).create_time())
    except (psutil.Error, OSError, ValueError, OverflowError):
        return ""


def is_running(pid: int) -> bool:
    """Whether a process with this pid exists, whichever user owns it."""
    if not POSIX:  # On Windows a signal would end the process.
        import psutil

        return bool(psutil.pid_exists(pid))
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # It belongs to another user.
        return True
    return True
