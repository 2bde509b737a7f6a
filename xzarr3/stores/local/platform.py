"""What systems do differently, in one place.

POSIX systems (Linux, macOS) open directories, read and write at places, and lock with :mod:`fcntl`. What has
no :mod:`fcntl` is treated as Windows: directories are known by their paths, reading at a place takes two
calls, a file that is open can neither be moved nor replaced nor removed, and :mod:`msvcrt` locks.
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
"""A directory: its descriptor, or its path, as where the system opens none."""


def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


# Their members differ between systems, which is looked at when they are used.
_fcntl: Any = _module("fcntl")
_msvcrt: Any = _module("msvcrt")

POSIX = (
    _fcntl is not None and {os.open, os.stat, os.unlink, os.mkdir, os.rmdir, os.rename} <= os.supports_dir_fd
)
"""Whether directories can be opened, and files that are open be moved, replaced and removed."""
HAS_OFD = sys.platform == "linux" and hasattr(_fcntl, "F_OFD_SETLK")
"""Whether there are locks of parts of a file that belong to what is open, and not to the process."""

_FULL_SYNC = getattr(_fcntl, "F_FULLFSYNC", None)
_MOST_PIECES = 512  # Fewer than any system writes with one call.
# Bytes; macOS refuses to read or write 2 GiB with one call.
_MOST = 2**30 if sys.platform == "darwin" else sys.maxsize
_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
# Searching a directory takes less permission than reading it, where a system tells the two apart.
_SEARCH = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0) | _FLAGS
_READ = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _FLAGS
OPEN: int = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _FLAGS
"""How a file is opened to be read, so that nobody waits for the writer of a pipe."""
NO_FOLLOW: int = getattr(os, "O_NOFOLLOW", 2**30)
"""For :func:`open_at`: a link is not opened."""
_JUNCTION = 0xA0000003  # What Windows calls a directory that leads elsewhere.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.2  # Seconds
_LONGEST = 259  # Characters of a path, where Windows is not told to take longer ones.


# Directories


def open_folder(name: str, above: Folder | None = None, *, follow_symlinks: bool = False) -> Folder:
    """Open a directory, which may be in one that is open, for what is in it."""
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
    """Another handle of an open directory, to be closed on its own."""
    return os.dup(folder) if isinstance(folder, int) else folder


def close_folder(folder: Folder) -> None:
    if isinstance(folder, int):
        os.close(folder)


def _named(folder: Folder, name: str) -> tuple[str, int | None]:
    """What the functions of :mod:`os` take for a name in a directory: a path, and an open directory."""
    return (name, folder) if isinstance(folder, int) else (os.path.join(folder, name), None)


def _patiently(act: Callable[..., T], *args: Any, **options: Any) -> T:
    """Do what Windows refuses while somebody has a file open, which is mostly over soon."""
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
    """What is in a directory. The entries are good until the next one is asked for."""
    # Opened anew: what is open already may be there only to be searched, or be shared with forked processes.
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
    """Rename a file or a directory; what has the new name is not replaced on all systems."""
    (path, start), (target, end) = _named(folder, name), _named(to, renamed)
    _patiently(os.rename, path, target, src_dir_fd=start, dst_dir_fd=end)


def replace_at(folder: Folder, name: str, replaced: str) -> None:
    """Give a file a name in the same directory that another one may have, in one step."""
    (path, at), (target, _) = _named(folder, name), _named(folder, replaced)
    _patiently(os.replace, path, target, src_dir_fd=at, dst_dir_fd=at)


def link_at(folder: Folder, name: str, to: Folder) -> None:
    """Give a file or a link a second name in another directory."""
    (path, start), (target, end) = _named(folder, name), _named(to, name)
    if POSIX:
        os.link(path, target, src_dir_fd=start, dst_dir_fd=end, follow_symlinks=False)
    elif hasattr(os, "link") and not os.path.islink(path):
        os.link(path, target)
    else:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP), name)


def copy_link_at(folder: Folder, name: str, to: Folder) -> None:
    """Make a link that says the same as another one."""
    (path, start), (target, end) = _named(folder, name), _named(to, name)
    to_folder = not POSIX and os.path.isdir(path)
    os.symlink(os.readlink(path, dir_fd=start), target, to_folder, dir_fd=end)


def is_folder_error(error: OSError, path: str) -> bool:
    """Whether no file could be opened because a directory has its name, where Windows says another thing."""
    return not POSIX and isinstance(error, PermissionError) and os.path.isdir(path)


def is_hidden(path: str) -> bool:
    """Whether the system says of a path that nothing is there because the path is too long for it."""
    return not POSIX and len(path) > _LONGEST and not _takes_long_paths()


@functools.cache
def _takes_long_paths() -> bool:
    import ctypes

    load: Any = getattr(ctypes, "WinDLL", None)
    if load is None:
        return True
    try:
        ask = load("ntdll").RtlAreLongPathsEnabled
    except (OSError, AttributeError):  # An older one, which takes none.
        return False
    ask.restype = ctypes.c_ubyte
    return bool(ask())


def copy_mode(descriptor: int, mode: int) -> None:
    """Give an open file the permissions of another one, where files have such."""
    if POSIX:
        os.fchmod(descriptor, stat.S_IMODE(mode))


def copy_status(descriptor: int, folder: Folder, name: str, info: os.stat_result) -> None:
    """Give a file that was just written the permissions and the times of another one."""
    copy_mode(descriptor, info.st_mode)
    path = descriptor if POSIX else _named(folder, name)[0]
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def is_own(info: os.stat_result) -> bool:
    """Whether something is this user's alone, which on Windows the directory above it decides."""
    return not POSIX or (info.st_uid == os.geteuid() and not info.st_mode & 0o077)


def touch_at(folder: Folder, name: str) -> None:
    """Let the time of modification of a file be now."""
    path, at = _named(folder, name)
    os.utime(path, dir_fd=at, follow_symlinks=not POSIX)


# Names

_REFUSED = re.compile(
    r'[\\:*?"<>|\x00-\x1f]|[. ](/|$)|(^|/)(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³])[. ]*(\.[^/]*)?(/|$)',
    re.IGNORECASE,
)


def is_name(text: str) -> bool:
    """Whether the file system can have that name, and gives it back as it is."""
    try:
        return "\0" not in text and os.fsdecode(os.fsencode(text)) == text
    except UnicodeError:
        return False


def is_key(key: str) -> bool:
    """Whether a key names a file below the root, and on Windows no drive, device, stream or other place."""
    if not POSIX and _REFUSED.search(key):
        return False
    return key.isascii() or is_name(key)


def relative(path: str, root: str) -> str:
    """The path of what is below a root, with ``/`` between names."""
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


# Like the functions of :mod:`os` with these names; both may read less than they are asked to. Of several
# buffers only the first may be read into.
pread: Callable[[int, int, int], bytes]
preadv: Callable[[int, Sequence[memoryview], int], int]
if not (hasattr(os, "pread") and hasattr(os, "preadv")):
    pread, preadv = _seek_read, _seek_read_into
elif sys.platform == "darwin":
    pread, preadv = _pread_less, _preadv_less
else:
    pread, preadv = os.pread, os.preadv


def read_at(descriptor: int, length: int, start: int) -> bytes:
    """The bytes at a place; fewer where the file ends."""
    value = pread(descriptor, length, start)
    while len(value) < length:
        more = pread(descriptor, length - len(value), start + len(value))
        if not more:
            break
        value += more
    return value


def read_into_at(descriptor: int, out: memoryview, start: int) -> int:
    """Read the bytes at a place into memory; returns how many there were, fewer where the file ends."""
    count = 0
    while count < len(out):
        more = preadv(descriptor, [out[count:]], start + count)
        if not more:
            break
        count += more
    return count


def write_all(descriptor: int, pieces: Sequence[memoryview]) -> None:
    """Write pieces one after the other, where the file is."""
    for at in range(0, len(pieces), _MOST_PIECES):
        group = pieces[at : at + _MOST_PIECES]
        done = 0
        if len(group) > 1 and hasattr(os, "writev") and sum(map(len, group)) <= _MOST:
            done = os.writev(descriptor, group)
        for piece in group:
            rest = piece[done:]  # More than the system writes at once, or a disk that is filling up.
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            done = max(done - len(piece), 0)


def sync(descriptor: int) -> None:
    """Wait until the disk has what was written to a file."""
    if _FULL_SYNC is not None:
        with contextlib.suppress(OSError):  # Of a file system that cannot: then as elsewhere.
            _fcntl.fcntl(descriptor, _FULL_SYNC)
            return
    os.fsync(descriptor)


def sync_folder(folder: Folder) -> None:
    """Wait until the disk knows the names in a directory; Windows sees to that itself."""
    if not POSIX:
        return
    descriptor = os.open(".", _READ, dir_fd=folder) if isinstance(folder, int) else os.open(folder, _READ)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


# Locks

_FLOCK = struct.Struct("hhqqi0q")  # `struct flock` of Linux.
_FAR = 2**30  # Where nothing is that is read: Windows keeps others from reading what is locked.
_SHARES = 2**16
_locked: dict[int, tuple[int, int]] = {}


def lock_range(descriptor: int, start: int, length: int) -> bool:
    """Lock bytes of a file, all from ``start`` on if ``length`` is 0, unless others have a lock of them.

    Where the system locks no parts of files for what is open, it is the whole file.
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
    """Free what :func:`lock_range` has locked."""
    if HAS_OFD and POSIX:
        wanted = _FLOCK.pack(_fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0)
        _fcntl.fcntl(descriptor, _fcntl.F_OFD_SETLK, wanted)
    else:
        unlock_file(descriptor)


def lock_file(descriptor: int, *, shared: bool = False) -> bool:
    """Lock a file unless somebody else has; ``shared``, those may who lock it so, too."""
    if not POSIX:
        # Who shares it locks one byte of those that whoever wants it alone locks all of.
        start, length = (_FAR + random.randrange(_SHARES), 1) if shared else (_FAR, _SHARES)
        return _lock_bytes(descriptor, start, length)
    try:
        _fcntl.flock(descriptor, (_fcntl.LOCK_SH if shared else _fcntl.LOCK_EX) | _fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock_file(descriptor: int) -> None:
    """Free what :func:`lock_file` has locked."""
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
    """What tells this start of this machine from others; this machine, where its starts are not told apart.

    Empty if it cannot be told from others.
    """
    try:
        with open(f"{_PROC}/sys/kernel/random/boot_id", "rb") as file:
            return file.read().strip().decode("ascii")
    except (OSError, ValueError):
        if sys.platform == "linux":  # It is hidden; containers of several hosts may have one address.
            return ""
        node = uuid.getnode()
        return "" if node >> 40 & 3 else f"{node:012x}"  # Bits of a number that is not one of its own.


def name_space() -> str:
    """The name space in which this process has its number; empty if the system has only one."""
    try:
        return os.readlink(f"{_PROC}/self/ns/pid")
    except OSError:
        return ""


def process_start(pid: int) -> str:
    """When a process began, as its system counts; empty if it does not tell."""
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
    """Whether there is a process with a number; one of somebody else is one, too."""
    if not POSIX:  # Where to signal a process is to end it.
        import psutil

        return bool(psutil.pid_exists(pid))
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # It is not ours.
        return True
    return True
